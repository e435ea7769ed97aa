#include "attention.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    query_tile = 18,  // queries whose scores are held at once; multiplied by threes or fours
    query_block = 72, // queries of one unit
};

static size_t padded(const cpu_backend *b, int dim) {
    size_t lanes = (size_t)b->kernels->lanes;
    return ((size_t)dim + lanes - 1) / lanes * lanes;
}
static int least(int a, int b) { return a < b ? a : b; }

void cpu_rope(const float *in, float *out, int dim, int interleaved, const float *cos, const float *sin) {
    float a[cpu_rope_most / 2], b[cpu_rope_most / 2];
    int half = dim / 2;
    for (int j = 0; j < half; j++) {
        a[j] = interleaved ? in[2 * j] : in[j];
        b[j] = interleaved ? in[2 * j + 1] : in[j + half];
    }
    for (int j = 0; j < half; j++) {
        out[j] = a[j] * cos[j] - b[j] * sin[j];
        out[j + half] = b[j] * cos[j] + a[j] * sin[j];
    }
}

// ---- queries over a cache ----

// Where keys and values of a position are: a key has two parts, the second may be empty.
typedef struct {
    const float *key_a, *key_b, *value;
    size_t stride_a, stride_b, stride_value;
    int dim_a, dim_b, dim_value;
    const int32_t *positions; // NULL: all from 0
} cache_view;

// What queries have so far of the online softmax.
typedef struct {
    float maximum[query_block], sum[query_block];
} attention_state;

// One tile of positions from t0 on, of which nt are there, for queries i0 … i0+n-1, query_tile at most. fetch and later are fetched meanwhile,
// while keys and while values are multiplied; NULL: nothing.
static void attend_tile(const cpu_kernels *k, const cache_view *v, int i0, int n, const float *const *q, const int *visible, float *const *out,
                        float *scores, attention_state *state, int t0, int nt, const float *const *ka, const float *const *kb, const float *const *va,
                        const float *const *fetch, const float *const *later) {
    float factor[query_tile];
    int valid[query_tile];
    q += i0;
    out += i0;
    k->scores(q, n, ka, v->dim_a, kb, v->dim_b, nt, scores, attention_tile, fetch, v->dim_value);
    for (int i = 0; i < n; i++) {
        valid[i] = least(nt, visible[i0 + i] - t0);
        if (valid[i] > 0) factor[i] = k->softmax_step(scores + i * attention_tile, valid[i], &state->maximum[i0 + i], &state->sum[i0 + i]);
    }
    for (int i = 0, next; i < n; i = next) {
        next = i + 1;
        if (valid[i] <= 0) continue;
        // Queries that see one or two positions more than the first go along, and then through those alone.
        for (; next < n && valid[next] >= valid[i] && valid[next] < valid[i] + 3; next++) {}
        k->weigh(out + i, factor + i, next - i, scores + i * attention_tile, attention_tile, va, v->dim_value, valid[i], i == 0 ? later : NULL);
        for (int j = i + 1; j < next; j++) {
            const float same = 1;
            if (valid[j] == valid[i]) continue;
            k->weigh(out + j, &same, 1, scores + j * attention_tile + valid[i], attention_tile, va + valid[i], v->dim_value, valid[j] - valid[i], NULL);
        }
    }
}

static int greatest(const int *of, int n) {
    int most = 0;
    for (int i = 0; i < n; i++) most = of[i] > most ? of[i] : most;
    return most;
}

// Online softmax of up to query_block queries over their first visible[i] positions: all of them go through a tile of positions before the next.
static void attend(const cpu_kernels *k, const cache_view *v, int n, const float *const *q, const int *visible, float *const *out, float *scores) {
    attention_state state;
    const int most = greatest(visible, n);
    for (int i = 0; i < n; i++) {
        state.maximum[i] = -INFINITY;
        state.sum[i] = 0;
        memset(out[i], 0, (size_t)v->dim_value * sizeof(float));
    }
    for (int t0 = 0; t0 < most; t0 += attention_tile) {
        const float *ka[attention_tile], *kb[attention_tile], *va[attention_tile], *later[attention_tile];
        const int all = least(attention_tile, most - t0);
        for (int t = 0; t < all; t++) {
            size_t position = (size_t)(v->positions ? v->positions[t0 + t] : t0 + t);
            ka[t] = v->key_a + position * v->stride_a;
            kb[t] = v->dim_b ? v->key_b + position * v->stride_b : ka[t];
            va[t] = v->value + position * v->stride_value;
        }
        // While keys are multiplied the values are fetched (where they are not the keys), and then the next tile's keys.
        const int after = least(attention_tile, most - t0 - attention_tile);
        for (int t = 0; t < all; t++) {
            const int position = t0 + attention_tile + t;
            later[t] = t < after ? v->key_a + (size_t)(v->positions ? v->positions[position] : position) * v->stride_a : ka[t];
        }
        for (int i = 0, first = 1; i < n; i += query_tile) {
            const int count = least(query_tile, n - i), nt = least(all, greatest(visible + i, count) - t0);
            if (nt <= 0) continue;
            attend_tile(k, v, i, count, q, visible, out, scores, &state, t0, nt, ka, kb, va, first && v->value != v->key_a ? va : NULL,
                        first && after > 0 ? later : NULL);
            first = 0;
        }
    }
    for (int i = 0; i < n; i++) k->scale(out[i], 1 / state.sum[i], v->dim_value);
}

// ---- units: stretches of rows of one cache times stretches of heads (of key heads for GQA) ----

typedef struct {
    int row0, row1, head0, head1;
} attention_unit;

typedef struct {
    cpu_backend *b;
    const cpu_layer_call *c;
    const float *query;
    float *context;
    const attention_unit *units; // the last, which see the most, are done first
    int count;
} attention_region;

static int chosen(const cpu_layer_call *c, int row) {
    return c->selection_counts && c->selection_counts[row] >= 0 ? c->selection_counts[row] : -1;
}

// Queries of a unit in row-major order, so that a tile's queries see nearly the same positions. Those whose positions are chosen per row
// go alone.
static void attend_all(attention_region *g, const attention_unit *u, const cache_view *all, int per_row, const float *const *q, float *const *out,
                       float *scores) {
    const cpu_layer_call *c = g->c;
    int n = (u->row1 - u->row0) * per_row;
    for (int i = 0, next; i < n; i = next) {
        cache_view v = *all;
        int visible[query_block], first = u->row0 + i / per_row, count = chosen(c, first);
        next = n;
        if (count >= 0) {
            v.positions = c->selection_positions + (size_t)first * (size_t)c->index_topk;
            next = least(next, (i / per_row + 1) * per_row);
        }
        for (int j = i; j < next; j++) {
            int row = u->row0 + j / per_row;
            if (count < 0 && chosen(c, row) >= 0) {
                next = j;
                break;
            }
            visible[j - i] = count >= 0 ? count : (int)c->rows[row].position + 1;
        }
        attend(g->b->kernels, &v, next - i, q + i, visible, out + i, scores);
    }
}

// With the projections absorbed: the query is brought to the latent space, the context back from it.
static void mla_unit(void *context, int unit, int thread) {
    attention_region *g = context;
    const attention_unit *u = &g->units[g->count - 1 - unit];
    const cpu_layer_call *c = g->c;
    const cpu_kernels *k = g->b->kernels;
    const int heads = u->head1 - u->head0, rows = u->row1 - u->row0, per_head = c->nope_dim + c->value_dim, head_query = c->nope_dim + c->rope_dim;
    const size_t latent = padded(g->b, c->kv_rank), width = latent + padded(g->b, c->rope_dim);
    const size_t panel = k->panel_floats(k->layout(&c->kv_b), c->kv_rank);

    float *scratch = g->b->thread[thread].memory;
    float *queries = scratch + k->product_scratch, *sums = queries + query_block * width, *panels = sums + query_block * (size_t)c->kv_rank;
    float *scores = panels + query_block * panel, *unpacked = scores + query_tile * attention_tile;
    float *q[query_block], *out[query_block];
    for (int i = 0; i < rows * heads; i++) {
        q[i] = queries + (size_t)i * width;
        out[i] = sums + (size_t)i * (size_t)c->kv_rank;
        memset(q[i], 0, width * sizeof(float));
    }
    for (int h = 0; h < heads; h++) {
        const float *from[query_block];
        float *to[query_block];
        for (int r = 0; r < rows; r++) {
            from[r] = g->query + ((size_t)(u->row0 + r) * (size_t)c->heads + (size_t)(u->head0 + h)) * (size_t)head_query;
            to[r] = q[r * heads + h];
        }
        int first = (u->head0 + h) * per_head;
        k->transposed(&c->kv_b, first, first + c->nope_dim, rows, from, to, unpacked);
        for (int r = 0; r < rows; r++) {
            memcpy(to[r] + latent, from[r] + c->nope_dim, (size_t)c->rope_dim * sizeof(float));
            k->scale(to[r], c->scale, (int)width);
        }
    }
    const cpu_cache *cache = &c->caches[c->rows[u->row0].cache];
    cache_view v = {.key_a = cache->latent, .key_b = cache->rope, .value = cache->latent, .stride_a = (size_t)c->kv_rank, .stride_b = (size_t)c->rope_dim,
                    .stride_value = (size_t)c->kv_rank, .dim_a = c->kv_rank, .dim_b = c->rope_dim, .dim_value = c->kv_rank};
    attend_all(g, u, &v, heads, (const float *const *)q, out, scores);
    for (int h = 0; h < heads; h++) {
        const float *x[query_block];
        float *y[query_block];
        for (int r = 0; r < rows; r++) {
            float *p = panels + (size_t)r * panel;
            k->prepare(k->layout(&c->kv_b), out[r * heads + h], c->kv_rank, p);
            x[r] = p;
            y[r] = g->context + ((size_t)(u->row0 + r) * (size_t)c->heads + (size_t)(u->head0 + h)) * (size_t)c->value_dim;
        }
        int first = (u->head0 + h) * per_head + c->nope_dim;
        k->product(&c->kv_b, first, first + c->value_dim, rows, x, y, scratch);
    }
}

static void gqa_unit(void *context, int unit, int thread) {
    attention_region *g = context;
    const attention_unit *u = &g->units[g->count - 1 - unit];
    const cpu_layer_call *c = g->c;
    const int share = c->heads / c->kv_heads, rows = u->row1 - u->row0;
    const size_t dim = (size_t)c->head_dim, width = padded(g->b, c->head_dim), stride = dim * (size_t)c->kv_heads;
    float *queries = g->b->thread[thread].memory, *scores = queries + query_block * width;
    const cpu_cache *cache = &c->caches[c->rows[u->row0].cache];
    for (int kv = u->head0; kv < u->head1; kv++) {
        for (int part = 0; part < share; part += query_block) {
            // More query heads share a key head than a block holds only in theory; then rows is 1.
            int per_row = least(share - part, query_block);
            float *q[query_block], *out[query_block];
            for (int i = 0; i < rows * per_row; i++) {
                size_t head = ((size_t)(u->row0 + i / per_row) * (size_t)c->heads + (size_t)(kv * share + part + i % per_row)) * dim;
                q[i] = queries + (size_t)i * width;
                memset(q[i], 0, width * sizeof(float));
                memcpy(q[i], g->query + head, dim * sizeof(float));
                g->b->kernels->scale(q[i], c->scale, c->head_dim);
                out[i] = g->context + head;
            }
            cache_view v = {.key_a = cache->keys + (size_t)kv * dim, .value = cache->values + (size_t)kv * dim, .stride_a = stride, .stride_value = stride,
                            .dim_a = c->head_dim, .dim_value = c->head_dim};
            attend_all(g, u, &v, per_row, (const float *const *)q, out, scores);
        }
    }
}

size_t cpu_attention_scratch(const cpu_backend *b, const cpu_layer_call *c) {
    const cpu_kernels *k = b->kernels;
    size_t scores = query_tile * attention_tile;
    if (!c->mla) return query_block * padded(b, c->head_dim) + scores;
    size_t panel = 0;
    for (int l = 0; l < layouts; l++) {
        size_t p = k->panel_floats(l, c->kv_rank);
        if (p > panel) panel = p;
    }
    return k->product_scratch + query_block * (padded(b, c->kv_rank) + padded(b, c->rope_dim) + (size_t)c->kv_rank + panel) + scores +
           k->transposed_scratch * (size_t)c->kv_rank;
}

int cpu_attention(cpu_backend *b, const cpu_layer_call *c, const float *query, float *context) {
    const int heads = c->mla ? c->heads : c->kv_heads, share = c->mla ? 1 : c->heads / c->kv_heads, threads = cpu_pool_threads(b->pool);
    if (cpu_thread_grow(b, cpu_attention_scratch(b, c)) != 0) return -1;
    attention_unit *units =
        (attention_unit *)(void *)cpu_buffer_grow(&b->buffer[buffer_units], (size_t)c->row_count * (size_t)heads * sizeof(attention_unit) / sizeof(float));
    if (!units) return -1;
    int count = 0;
    int64_t cost = 0;
    const int width = c->mla ? 2 * c->kv_rank + c->rope_dim : 2 * c->head_dim;
    for (int r = 0, next; r < c->row_count; r = next) {
        int selected = chosen(c, r) >= 0;
        int most = selected ? 1 : least(c->row_count - r, share > query_block ? 1 : query_block / share);
        for (next = r + 1; next < r + most && c->rows[next].cache == c->rows[r].cache && c->rows[next].position == c->rows[next - 1].position + 1 &&
                           chosen(c, next) < 0;
             next++) {}
        // Few rows: several heads a unit, which then read the cache once; but units for every thread.
        int group = query_block / ((next - r) * share), enough = (heads + threads - 1) / threads;
        if (group > enough) group = enough;
        if (group > query_tile) group = query_tile;
        if (group < 1) group = 1;
        for (int h = 0; h < heads; h += group) units[count++] = (attention_unit){r, next, h, least(heads, h + group)};
        for (int i = r; i < next; i++) {
            int64_t seen = selected ? chosen(c, i) : c->rows[i].position + 1;
            cost += seen * c->heads * width;
        }
        if (c->mla) cost += (int64_t)(next - r + 2) * c->heads * (c->nope_dim + c->value_dim) * c->kv_rank;
    }
    attention_region g = {b, c, query, context, units, count};
    cpu_pool_run(b->pool, c->mla ? mla_unit : gqa_unit, &g, count, cost);
    return 0;
}

// ---- the indexer ----

enum {
    index_rows = 16,   // rows whose scores are held at once
    index_stretch = 8, // tiles of positions of a unit
};

typedef struct {
    cpu_backend *b;
    const cpu_layer_call *c;
    const float *query, *weight; // query rotated and padded
    float *scores;
    size_t scores_stride, query_stride, order_stride;
    uint32_t *order; // room for ties
    const int *row; // rows of this pass
    int stretches;
} index_region;

static void index_unit(void *context, int unit, int thread) {
    (void)thread;
    index_region *g = context;
    const cpu_layer_call *c = g->c;
    const int slot = unit / g->stretches, row = g->row[slot], visible = (int)c->rows[row].position + 1;
    const int from = unit % g->stretches * index_stretch * attention_tile, to = least(visible, from + index_stretch * attention_tile);
    const float *index = c->caches[c->rows[row].cache].index, *q[cpu_most_index_heads];
    const size_t width = g->query_stride / (size_t)c->index_heads;
    for (int h = 0; h < c->index_heads; h++) q[h] = g->query + (size_t)row * g->query_stride + (size_t)h * width;
    for (int t = from; t < to; t += attention_tile) {
        const float *k[attention_tile];
        int n = least(attention_tile, to - t);
        for (int i = 0; i < n; i++) k[i] = index + (size_t)(t + i) * (size_t)c->index_dim;
        g->b->kernels->index_scores(q, c->index_heads, g->weight + (size_t)row * (size_t)c->index_heads, 1 / sqrtf((float)c->index_dim), k, c->index_dim, n,
                                    g->scores + (size_t)slot * g->scores_stride + t);
    }
}

// Order-preserving whole number of a float; -0 and 0 are equal, NaN is 0.
static uint32_t rank_of(float f) {
    uint32_t u;
    if (f != f) return 0;
    f += 0.0f;
    memcpy(&u, &f, 4);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

// Moves the count best of span positions to the front as torch.topk does on the CPU, the reference's machine: by libstdc++'s
// std::nth_element with those from n on at -Inf. Which of equal scores it keeps is an accident of that algorithm, and as good as any
// other choice; following it makes our logits comparable with published ones.
static void tie_order(const float *scores, int n, int count, int span, uint32_t *order) {
#define RANK(i) (order[i] < (uint32_t)n ? rank_of(scores[order[i]]) : rank_of(-INFINITY))
#define SWAP(i, j)                \
    do {                          \
        uint32_t kept = order[i]; \
        order[i] = order[j];      \
        order[j] = kept;          \
    } while (0)
    for (int i = 0; i < span; i++) order[i] = (uint32_t)i;
    int first = 0, last = span;
    while (last - first > 3) {
        // The median of the second, middle and last becomes the pivot, at first.
        const int a = first + 1, b = first + (last - first) / 2, c = last - 1;
        const uint32_t ra = RANK(a), rb = RANK(b), rc = RANK(c);
        const int median = ra > rb ? (rb > rc ? b : ra > rc ? c : a) : (ra > rc ? a : rb > rc ? c : b);
        SWAP(first, median);
        int low = first + 1, high = last;
        const uint32_t pivot = RANK(first);
        for (;; low++) {
            while (RANK(low) > pivot) low++;
            do high--;
            while (pivot > RANK(high));
            if (low >= high) break;
            SWAP(low, high);
        }
        if (low <= count - 1) first = low;
        else last = low;
    }
    for (int i = first + 1; i < last; i++)
        for (int j = i; j > first && RANK(j) > RANK(j - 1); j--) SWAP(j, j - 1);
#undef RANK
#undef SWAP
}

static int ascending(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

bool cpu_select(const float *scores, int n, int count, int tie_span, uint32_t *order, int32_t *positions) {
    // The count-th largest rank, 8 bits at a time: prefix holds the bits known, left how many are still to find among them,
    // equal how many have them: in the end, those that are equal to it.
    uint32_t prefix = 0;
    int left = count, equal = n;
    for (int shift = 24; shift >= 0; shift -= 8) {
        int histogram[256] = {0}, bin = 255;
        for (int t = 0; t < n; t++) {
            uint32_t rank = rank_of(scores[t]);
            if (shift == 24 || rank >> (shift + 8) == prefix >> (shift + 8)) histogram[rank >> shift & 255]++;
        }
        while (histogram[bin] < left) left -= histogram[bin--];
        prefix |= (uint32_t)bin << shift;
        equal = histogram[bin];
    }
    const bool tied = equal > left;
    if (tied && tie_span >= n) {
        tie_order(scores, n, count, tie_span, order);
        memcpy(positions, order, (size_t)count * sizeof *positions);
        qsort(positions, (size_t)count, sizeof *positions, ascending);
        return true;
    }
    for (int t = 0, used = 0; t < n && used < count; t++) {
        uint32_t rank = rank_of(scores[t]);
        if (rank > prefix || (rank == prefix && left-- > 0)) positions[used++] = t;
    }
    return tied;
}

static void select_unit(void *context, int unit, int thread) {
    (void)thread;
    index_region *g = context;
    const cpu_layer_call *c = g->c;
    int row = g->row[unit];
    c->selection_tied[row] =
        cpu_select(g->scores + (size_t)unit * g->scores_stride, (int)c->rows[row].position + 1, c->index_topk, (int)c->rows[row].tie_span,
                   g->order + (size_t)unit * g->order_stride, c->selection_positions + (size_t)row * (size_t)c->index_topk);
    c->selection_counts[row] = c->index_topk;
}

int cpu_index(cpu_backend *b, const cpu_layer_call *c, const float *query, const float *weight) {
    int longest = 0, span = 0;
    for (int r = 0; r < c->row_count; r++) {
        c->selection_counts[r] = -1;
        c->selection_tied[r] = 0;
        if (c->rows[r].tie_span > span) span = (int)c->rows[r].tie_span;
        if (c->rows[r].position + 1 > c->index_topk && c->rows[r].position + 1 > longest) longest = (int)c->rows[r].position + 1;
    }
    if (longest == 0) return 0;
    const size_t width = padded(b, c->index_dim), stride = width * (size_t)c->index_heads;
    float *rotated = cpu_buffer_grow(&b->buffer[buffer_index_padded], stride * (size_t)c->row_count);
    float *scores = cpu_buffer_grow(&b->buffer[buffer_index_scores], (size_t)longest * (size_t)least(index_rows, c->row_count));
    uint32_t *order = (uint32_t *)cpu_buffer_grow(&b->buffer[buffer_index_order], (size_t)(span > 0 ? span : 1) * (size_t)least(index_rows, c->row_count));
    if (!rotated || !scores || !order) return -1;
    for (int r = 0; r < c->row_count; r++) {
        const float *cos = c->cos + (size_t)r * (size_t)(c->rope_dim / 2), *sin = c->sin + (size_t)r * (size_t)(c->rope_dim / 2);
        for (int h = 0; h < c->index_heads; h++) {
            const float *from = query + ((size_t)r * (size_t)c->index_heads + (size_t)h) * (size_t)c->index_dim;
            float *to = rotated + (size_t)r * stride + (size_t)h * width;
            memset(to, 0, width * sizeof(float));
            cpu_rope(from, to, c->rope_dim, c->interleaved, cos, sin);
            memcpy(to + c->rope_dim, from + c->rope_dim, (size_t)(c->index_dim - c->rope_dim) * sizeof(float));
        }
    }
    for (int r = 0; r < c->row_count;) {
        int rows[index_rows], n = 0;
        int64_t cost = 0;
        for (; r < c->row_count && n < index_rows; r++) {
            if (c->rows[r].position + 1 <= c->index_topk) continue;
            rows[n++] = r;
            cost += (c->rows[r].position + 1) * c->index_heads * c->index_dim;
        }
        const int stretch = index_stretch * attention_tile;
        index_region g = {.b = b, .c = c, .query = rotated, .weight = weight, .scores = scores, .scores_stride = (size_t)longest,
                          .query_stride = stride, .order_stride = (size_t)span, .order = order, .row = rows,
                          .stretches = (longest + stretch - 1) / stretch};
        cpu_pool_run(b->pool, index_unit, &g, n * g.stretches, cost);
        cpu_pool_run(b->pool, select_unit, &g, n, (int64_t)n * longest * 16);
    }
    return 0;
}
