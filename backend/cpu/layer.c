#include "layer.h"

#include <math.h>
#include <string.h>

#include "attention.h"

// ---- the router ----

// a ranks before b: larger, or the same and a lower id; NaN is below every number.
static int before(float a, int a_id, float b, int b_id) {
    if (a != a || b != b) return a == a ? 1 : b == b ? 0 : a_id < b_id;
    return a > b || (a == b && a_id < b_id);
}

void cpu_route(const cpu_layer_call *c, const float *logits, int32_t *ids, float *gates) {
    const int experts = c->experts, wanted = c->per_token;
    float score[cpu_most_experts], choice[cpu_most_experts];
    if (c->sigmoid) {
        for (int e = 0; e < experts; e++) score[e] = 1 / (1 + expf(-logits[e]));
    } else {
        float maximum = -INFINITY, sum = 0;
        for (int e = 0; e < experts; e++) maximum = logits[e] > maximum ? logits[e] : maximum;
        for (int e = 0; e < experts; e++) {
            score[e] = expf(logits[e] - maximum);
            if (score[e] == score[e]) sum += score[e];
        }
        for (int e = 0; e < experts; e++) score[e] /= sum;
    }
    for (int e = 0; e < experts; e++) choice[e] = c->router_bias ? score[e] + c->router_bias[e] : score[e];

    uint8_t open[cpu_most_experts];
    for (int e = 0; e < experts; e++) open[e] = 1;
    if (c->top_groups < c->groups) {
        const int size = experts / c->groups;
        float best[cpu_most_experts];
        uint8_t taken[cpu_most_experts] = {0};
        for (int g = 0; g < c->groups; g++) {
            // the sum of the group's two best
            int first = -1, second = -1;
            for (int e = g * size; e < (g + 1) * size; e++) {
                if (first < 0 || before(choice[e], e, choice[first], first)) {
                    second = first;
                    first = e;
                } else if (second < 0 || before(choice[e], e, choice[second], second)) {
                    second = e;
                }
            }
            best[g] = choice[first];
            if (second >= 0 && choice[second] == choice[second]) best[g] += choice[second];
        }
        for (int e = 0; e < experts; e++) open[e] = 0;
        for (int i = 0; i < c->top_groups; i++) {
            int winner = -1;
            for (int g = 0; g < c->groups; g++) {
                if (!taken[g] && (winner < 0 || before(best[g], g, best[winner], winner))) winner = g;
            }
            taken[winner] = 1;
            for (int e = winner * size; e < (winner + 1) * size; e++) open[e] = 1;
        }
    }
    // The chosen, best first, by insertion.
    int chosen = 0;
    for (int e = 0; e < experts; e++) {
        if (!open[e] || (chosen == wanted && !before(choice[e], e, choice[ids[chosen - 1]], ids[chosen - 1]))) continue;
        int at = chosen < wanted ? chosen++ : chosen - 1;
        for (; at > 0 && before(choice[e], e, choice[ids[at - 1]], ids[at - 1]); at--) ids[at] = ids[at - 1];
        ids[at] = e;
    }
    for (int i = 1; i < chosen; i++) {
        int32_t id = ids[i];
        int at = i;
        for (; at > 0 && ids[at - 1] > id; at--) ids[at] = ids[at - 1];
        ids[at] = id;
    }
    float sum = 0;
    for (int i = 0; i < chosen; i++) {
        gates[i] = score[ids[i]];
        sum += gates[i];
    }
    for (int i = 0; i < chosen; i++) gates[i] = (c->normalise_gates ? gates[i] / (sum + 1e-20f) : gates[i]) * c->routed_scale;
}

typedef struct {
    const cpu_layer_call *c;
    const float *logits;
} route_region;

static void route_rows(void *context, int row0, int row1, int thread) {
    (void)thread;
    route_region *g = context;
    const cpu_layer_call *c = g->c;
    for (int r = row0; r < row1; r++) {
        size_t at = (size_t)r * (size_t)c->per_token;
        cpu_route(c, g->logits + (size_t)r * (size_t)c->experts, c->expert_ids + at, c->gates + at);
    }
}

// ---- steps row by row between the products ----

typedef struct {
    cpu_backend *b;
    const cpu_layer_call *c;
    float *query_latent, *query, *kv, *index_key, *index_weight, *key, *value;
} row_region;

static const float *row_cos(const cpu_layer_call *c, int r) { return c->cos + (size_t)r * (size_t)(c->rope_dim / 2); }
static const float *row_sin(const cpu_layer_call *c, int r) { return c->sin + (size_t)r * (size_t)(c->rope_dim / 2); }

static void layer_norm(const float *x, const float *weight, const float *bias, int n, float *y) {
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) sum += x[i];
    double mean = sum / n;
    for (int i = 0; i < n; i++) squares += (x[i] - mean) * (x[i] - mean);
    double factor = 1 / sqrt(squares / n + 1e-6);
    for (int i = 0; i < n; i++) y[i] = (float)((x[i] - mean) * factor) * weight[i] + bias[i];
}

// MLA: the query's latent is normalised where queries are made, the cache gets its new entry.
static void latent_rows(void *context, int row0, int row1, int thread) {
    (void)thread;
    row_region *g = context;
    const cpu_layer_call *c = g->c;
    const cpu_kernels *k = g->b->kernels;
    for (int r = row0; r < row1; r++) {
        const cpu_cache *cache = &c->caches[c->rows[r].cache];
        size_t position = (size_t)c->rows[r].position;
        if (c->query_rank && !c->caches_only) {
            float *q = g->query_latent + (size_t)r * (size_t)c->query_rank;
            k->normalise(q, c->query_a_norm, c->latent_epsilon, c->query_rank, q);
        }
        const float *kv = g->kv + (size_t)r * (size_t)(c->kv_rank + c->rope_dim);
        k->normalise(kv, c->kv_a_norm, c->latent_epsilon, c->kv_rank, cache->latent + position * (size_t)c->kv_rank);
        cpu_rope(kv + c->kv_rank, cache->rope + position * (size_t)c->rope_dim, c->rope_dim, c->interleaved, row_cos(c, r), row_sin(c, r));
        if (c->index_heads) {
            float *key = cache->index + position * (size_t)c->index_dim;
            layer_norm(g->index_key + (size_t)r * (size_t)c->index_dim, c->index_key_norm, c->index_key_norm_bias, c->index_dim, key);
            cpu_rope(key, key, c->rope_dim, c->interleaved, row_cos(c, r), row_sin(c, r));
            if (!c->caches_only) k->scale(g->index_weight + (size_t)r * (size_t)c->index_heads, 1 / sqrtf((float)c->index_heads), c->index_heads);
        }
    }
}

static void rotate_query_rows(void *context, int row0, int row1, int thread) {
    (void)thread;
    row_region *g = context;
    const cpu_layer_call *c = g->c;
    for (int r = row0; r < row1; r++) {
        for (int h = 0; h < c->heads; h++) {
            float *q = g->query + ((size_t)r * (size_t)c->heads + (size_t)h) * (size_t)(c->nope_dim + c->rope_dim) + c->nope_dim;
            cpu_rope(q, q, c->rope_dim, c->interleaved, row_cos(c, r), row_sin(c, r));
        }
    }
}

static void bias_norm_clip(const cpu_layer_call *c, const cpu_kernels *k, float *x, int heads, const float *bias, const float *norm) {
    int n = heads * c->head_dim;
    if (bias) k->add(x, bias, n);
    if (norm && c->qk_norm == qk_norm_full) k->normalise(x, norm, c->epsilon, n, x);
    if (norm && c->qk_norm == qk_norm_head) {
        for (int h = 0; h < heads; h++) k->normalise(x + h * c->head_dim, norm, c->epsilon, c->head_dim, x + h * c->head_dim);
    }
    if (c->clip > 0) {
        for (int i = 0; i < n; i++) x[i] = x[i] > c->clip ? c->clip : x[i] < -c->clip ? -c->clip : x[i];
    }
}

// GQA: biases, norms, clipping, rotation; the cache gets its new entry.
static void gqa_rows(void *context, int row0, int row1, int thread) {
    (void)thread;
    row_region *g = context;
    const cpu_layer_call *c = g->c;
    const cpu_kernels *k = g->b->kernels;
    const size_t dim = (size_t)c->head_dim, kv_width = dim * (size_t)c->kv_heads;
    for (int r = row0; r < row1; r++) {
        const cpu_cache *cache = &c->caches[c->rows[r].cache];
        size_t position = (size_t)c->rows[r].position;
        float *q = g->query + (size_t)r * dim * (size_t)c->heads, *key = cache->keys + position * kv_width, *value = cache->values + position * kv_width;
        memcpy(key, g->key + (size_t)r * kv_width, kv_width * sizeof(float));
        memcpy(value, g->value + (size_t)r * kv_width, kv_width * sizeof(float));
        bias_norm_clip(c, k, key, c->kv_heads, c->key_bias, c->qk_norm ? c->key_norm : NULL);
        bias_norm_clip(c, k, value, c->kv_heads, c->value_bias, NULL);
        for (int h = 0; h < c->kv_heads; h++)
            cpu_rope(key + (size_t)h * dim, key + (size_t)h * dim, c->rope_dim, c->interleaved, row_cos(c, r), row_sin(c, r));
        if (c->caches_only) continue;
        bias_norm_clip(c, k, q, c->heads, c->query_bias, c->qk_norm ? c->query_norm : NULL);
        for (int h = 0; h < c->heads; h++) cpu_rope(q + (size_t)h * dim, q + (size_t)h * dim, c->rope_dim, c->interleaved, row_cos(c, r), row_sin(c, r));
    }
}

typedef struct {
    const cpu_kernels *kernels;
    float *x;
    const float *y;
    int columns;
} add_region;

static void add_rows(void *context, int row0, int row1, int thread) {
    (void)thread;
    add_region *g = context;
    for (int r = row0; r < row1; r++) g->kernels->add(g->x + (size_t)r * (size_t)g->columns, g->y + (size_t)r * (size_t)g->columns, g->columns);
}

static void add_all(cpu_backend *b, float *x, const float *y, int rows, int columns) {
    add_region g = {b->kernels, x, y, columns};
    cpu_rows_run(b, add_rows, &g, rows, columns);
}

// ---- a layer ----

static float *grow(cpu_backend *b, int buffer, const cpu_layer_call *c, int columns) {
    return cpu_buffer_grow(&b->buffer[buffer], (size_t)c->row_count * (size_t)columns);
}

// query, kv and index projections up to the rotated query, which caches_only leaves unmade; NULL when memory is refused
static float *mla_query(cpu_backend *b, const cpu_layer_call *c, const float *xnorm) {
    row_region g = {.b = b, .c = c};
    g.query = grow(b, buffer_query, c, c->heads * (c->nope_dim + c->rope_dim));
    g.kv = grow(b, buffer_kv, c, c->kv_rank + c->rope_dim);
    g.query_latent = grow(b, buffer_query_latent, c, c->query_rank);
    g.index_key = grow(b, buffer_index_key, c, c->index_dim);
    g.index_weight = grow(b, buffer_index_weight, c, c->index_heads);
    float *index_query = grow(b, buffer_index_query, c, c->index_heads * c->index_dim);
    if (!g.query || !g.kv || !g.query_latent || !g.index_key || !g.index_weight || !index_query) return NULL;

    cpu_panels set = cpu_panels_of(xnorm, c->row_count, c->hidden);
    cpu_product list[4];
    int n = 0, bad = 0;
    if (!c->caches_only) bad |= cpu_product_add(b, list, &n, &set, c->query_rank ? &c->query_a : &c->query_b, c->query_rank ? g.query_latent : g.query);
    bad |= cpu_product_add(b, list, &n, &set, &c->kv_a, g.kv);
    if (c->index_heads) {
        bad |= cpu_product_add(b, list, &n, &set, &c->index_key, g.index_key);
        if (!c->caches_only) bad |= cpu_product_add(b, list, &n, &set, &c->index_score, g.index_weight);
    }
    if (bad) return NULL;
    cpu_products_run(b, list, n);
    cpu_rows_run(b, latent_rows, &g, c->row_count, 4 * (int64_t)(c->query_rank + c->kv_rank + c->index_dim));
    if (c->caches_only) return g.query;
    if (c->query_rank) {
        set = cpu_panels_of(g.query_latent, c->row_count, c->query_rank);
        n = 0;
        bad |= cpu_product_add(b, list, &n, &set, &c->query_b, g.query);
        if (c->index_heads) bad |= cpu_product_add(b, list, &n, &set, &c->index_query, index_query);
        if (bad) return NULL;
        cpu_products_run(b, list, n);
    }
    cpu_rows_run(b, rotate_query_rows, &g, c->row_count, 8 * (int64_t)c->heads * c->rope_dim);
    if (c->index_heads && cpu_index(b, c, index_query, g.index_weight) != 0) return NULL;
    return g.query;
}

static float *gqa_query(cpu_backend *b, const cpu_layer_call *c, const float *xnorm) {
    row_region g = {.b = b, .c = c};
    int width = c->kv_heads * c->head_dim;
    g.query = grow(b, buffer_query, c, c->heads * c->head_dim);
    g.key = grow(b, buffer_kv, c, 2 * width);
    if (!g.query || !g.key) return NULL;
    g.value = g.key + (size_t)c->row_count * (size_t)width;
    cpu_panels set = cpu_panels_of(xnorm, c->row_count, c->hidden);
    cpu_product list[3];
    int n = 0, bad = 0;
    if (!c->caches_only) bad |= cpu_product_add(b, list, &n, &set, &c->query, g.query);
    bad |= cpu_product_add(b, list, &n, &set, &c->key, g.key);
    bad |= cpu_product_add(b, list, &n, &set, &c->value, g.value);
    if (bad) return NULL;
    cpu_products_run(b, list, n);
    cpu_rows_run(b, gqa_rows, &g, c->row_count, 8 * (int64_t)(c->heads + c->kv_heads) * c->head_dim);
    return g.query;
}

// What of a layer's network is computed in one go: the router's logits, the dense or shared network, or both.
enum { network_router = 1, network_dense = 2 };

// result = down(silu(gate normed) * up normed), zeros without a network; logits = router normed
static int network(cpu_backend *b, const cpu_layer_call *c, int parts, const float *normed, float *result, float *logits) {
    const int rows = c->row_count;
    float *gate = grow(b, buffer_gate, c, c->gate.rows), *up = grow(b, buffer_up, c, c->gate.rows);
    if (!gate || !up) return -1;
    cpu_panels set = cpu_panels_of(normed, rows, c->hidden);
    cpu_product list[2];
    int n = 0;
    if ((parts & network_dense) && c->gate.rows) {
        int layout = b->kernels->layout(&c->up);
        if (cpu_product_add(b, list, &n, &set, &c->gate, gate) != 0 || cpu_panels_prepare(b, &set, &c->up) != 0) return -1;
        list[0].up = &c->up;
        list[0].up_panel = set.panel[layout];
        list[0].up_stride = set.stride[layout];
        list[0].y_up = up;
    }
    if ((parts & network_router) && cpu_product_add(b, list, &n, &set, &c->router, logits) != 0) return -1;
    cpu_products_run(b, list, n);
    if (!(parts & network_dense)) return 0;
    if (c->gate.rows) return cpu_linear(b, &c->down, gate, result, rows);
    memset(result, 0, (size_t)rows * (size_t)c->hidden * sizeof(float));
    return 0;
}

int cpu_layer(cpu_backend *b, const cpu_layer_call *c) {
    const int rows = c->row_count, value_width = c->heads * (c->mla ? c->value_dim : c->head_dim);
    float *xnorm = grow(b, buffer_xnorm, c, c->hidden), *hidden = grow(b, buffer_hidden, c, c->hidden);
    float *context = grow(b, buffer_context, c, value_width);
    float *logits = grow(b, buffer_logits, c, c->sparse ? c->experts : 0);
    if (!xnorm || !hidden || !context || !logits) return -1;

    cpu_normalise(b, c->input_norm, c->epsilon, c->x, xnorm, rows, c->hidden);
    float *query = c->mla ? mla_query(b, c, xnorm) : gqa_query(b, c, xnorm);
    if (query && c->caches_only) return 0;
    if (!query || cpu_attention(b, c, query, context) != 0 || cpu_linear(b, &c->output, context, hidden, rows) != 0) return -1;
    add_all(b, c->x, hidden, rows, c->hidden);

    float *normed = c->sparse ? c->normed : xnorm, *result = c->sparse ? c->shared : hidden;
    cpu_normalise(b, c->post_norm, c->epsilon, c->x, normed, rows, c->hidden);
    const int parts = (c->sparse ? network_router : 0) | (c->shared_later ? 0 : network_dense);
    if (network(b, c, parts, normed, result, logits) != 0) return -1;
    if (c->sparse) {
        route_region g = {c, logits};
        cpu_rows_run(b, route_rows, &g, rows, 80 * (int64_t)c->experts);
    } else {
        add_all(b, c->x, result, rows, c->hidden);
    }
    return 0;
}

int cpu_shared_experts(cpu_backend *b, const cpu_layer_call *c) { return network(b, c, network_dense, c->normed, c->shared, NULL); }

// ---- routed experts ----

enum { expert_slots = 1024 }; // most results of one pass, which bounds the memory for inner activations

typedef struct {
    const cpu_kernels *kernels;
    const cpu_expert *experts;
    const cpu_product *down;
    const float *inner;
    int columns;
} inner_region;

static void inner_unit(void *context, int unit, int thread) {
    (void)thread;
    inner_region *g = context;
    const cpu_product *p = &g->down[unit];
    size_t first = (size_t)(p->y_up - g->inner);
    for (int i = 0; i < p->n; i++) {
        g->kernels->prepare(g->kernels->layout(p->w), g->inner + first + (size_t)i * (size_t)g->columns, g->columns, (float *)p->panel + (size_t)i * p->stride);
    }
}

static int experts_pass(cpu_backend *b, int inner, cpu_panels *set, const cpu_expert *experts, const int *first, const int *taken, int count, int slots,
                        float *output, int hidden) {
    const cpu_kernels *k = b->kernels;
    size_t panel = 0;
    for (int l = 0; l < layouts; l++) panel = k->panel_floats(l, inner) > panel ? k->panel_floats(l, inner) : panel;
    float *gate = cpu_buffer_grow(&b->buffer[buffer_gate], (size_t)slots * (size_t)inner), *up = cpu_buffer_grow(&b->buffer[buffer_up], (size_t)slots * (size_t)inner);
    float *panels = cpu_buffer_grow(&b->buffer[buffer_context], (size_t)slots * panel);
    cpu_product *list = (cpu_product *)(void *)cpu_buffer_grow(&b->buffer[buffer_products], (size_t)count * sizeof(cpu_product) / sizeof(float) + 1);
    if (!gate || !up || !panels || !list) return -1;
    int64_t cost = 0;
    for (int e = 0, slot = 0; e < count; e++) {
        const cpu_expert *x = &experts[e];
        int gl = k->layout(&x->gate), ul = k->layout(&x->up);
        list[e] = (cpu_product){.w = &x->gate, .up = &x->up, .panel = set->panel[gl], .stride = set->stride[gl], .up_panel = set->panel[ul],
                                .up_stride = set->stride[ul], .xrow = taken[e] > 0 ? x->rows + first[e] : NULL, .y = gate + (size_t)slot * (size_t)inner,
                                .y_up = up + (size_t)slot * (size_t)inner, .y_stride = (size_t)inner, .n = taken[e]};
        slot += taken[e];
    }
    cpu_products_run(b, list, count);
    for (int e = 0, slot = 0; e < count; e++) {
        const cpu_expert *x = &experts[e];
        // y_up carries where the expert's inner rows are to inner_unit; the product has no second weight
        list[e] = (cpu_product){.w = &x->down, .panel = panels + (size_t)slot * panel, .stride = panel, .yrow = x->slots + first[e], .y = output,
                                .y_up = gate + (size_t)slot * (size_t)inner, .y_stride = (size_t)hidden, .n = taken[e]};
        slot += taken[e];
        cost += 4 * (int64_t)taken[e] * inner;
    }
    inner_region g = {k, experts, list, gate, inner};
    cpu_pool_run(b->pool, inner_unit, &g, count, cost);
    cpu_products_run(b, list, count);
    return 0;
}

int cpu_experts(cpu_backend *b, int hidden, int inner, int rows, const float *input, const cpu_expert *experts, int count, float *output) {
    cpu_panels set = cpu_panels_of(input, rows, hidden);
    for (int e = 0; e < count; e++) {
        if (cpu_panels_prepare(b, &set, &experts[e].gate) != 0 || cpu_panels_prepare(b, &set, &experts[e].up) != 0) return -1;
    }
    int *bounds = (int *)(void *)cpu_buffer_grow(&b->buffer[buffer_units], 2 * (size_t)count);
    if (!bounds) return -1;
    int *first = bounds, *taken = bounds + count;
    for (int e = 0; e < count; e++) first[e] = 0;
    for (int e = 0; e < count;) {
        // experts e … end-1 in this pass; the last one perhaps not with all its rows
        int slots = 0, end = e;
        for (; end < count && slots < expert_slots; end++) {
            int left = experts[end].count - first[end];
            taken[end] = left < expert_slots - slots ? left : expert_slots - slots;
            slots += taken[end];
        }
        if (experts_pass(b, inner, &set, experts + e, first + e, taken + e, end - e, slots, output, hidden) != 0) return -1;
        for (int i = e; i < end; i++) first[i] += taken[i];
        while (e < end && first[e] == experts[e].count) e++;
    }
    return 0;
}

// ---- around the layers ----

typedef struct {
    const cpu_kernels *kernels;
    int per_token, hidden;
    const float *gates, *output, *shared;
    float *x;
} combine_region;

static void combine_rows(void *context, int row0, int row1, int thread) {
    (void)thread;
    combine_region *g = context;
    for (int r = row0; r < row1; r++) {
        size_t at = (size_t)r * (size_t)g->hidden, slot = (size_t)r * (size_t)g->per_token;
        g->kernels->combine(g->x + at, g->gates + slot, g->output + slot * (size_t)g->hidden, (size_t)g->hidden, g->per_token, g->shared + at, g->hidden);
    }
}

void cpu_combine(cpu_backend *b, int rows, int per_token, int hidden, const float *gates, const float *output, const float *shared, float *x) {
    combine_region g = {b->kernels, per_token, hidden, gates, output, shared, x};
    cpu_rows_run(b, combine_rows, &g, rows, (int64_t)hidden * (per_token + 2));
}

typedef struct {
    const cpu_kernels *kernels;
    const cpu_weight *table;
    const int32_t *ids;
    float *x;
} embed_region;

static void embed_rows(void *context, int row0, int row1, int thread) {
    (void)thread;
    embed_region *g = context;
    for (int r = row0; r < row1; r++) g->kernels->unpack(g->table, g->ids[r], g->x + (size_t)r * (size_t)g->table->columns);
}

void cpu_embed(cpu_backend *b, const cpu_weight *table, const int32_t *ids, int count, float *x) {
    embed_region g = {b->kernels, table, ids, x};
    cpu_rows_run(b, embed_rows, &g, count, 4 * (int64_t)table->columns);
}

int cpu_head(cpu_backend *b, int rows, const float *norm, float epsilon, const cpu_weight *head, const float *x, float *normed, float *logits) {
    cpu_normalise(b, norm, epsilon, x, normed, rows, head->columns);
    return cpu_linear(b, head, normed, logits, rows);
}
