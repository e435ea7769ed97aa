//go:build darwin || metalsim

// One layer: norm, attention, residual, norm, router, shared experts (or the dense network) in one command buffer. Phases are separated by
// barriers; everything within a phase may run at the same time. Long calls are cut into parts of consecutive rows.
#include "metal_internal.h"
#include <math.h>
#include <string.h>

// Attention of a part runs over as many rows at a time as this holds partial results for.
static const uint64_t max_partial_bytes = 32u << 20;
// Working memory of a part is about this at most.
static const uint64_t max_part_bytes = 256u << 20;

// ---- sizes that follow from a shape

static uint32_t query_dim(const coli_layer_shape *s) { return s->latent ? s->nope + s->rope : s->head_dim; }
static uint32_t value_width(const coli_layer_shape *s) { return s->heads * (s->latent ? s->value_dim : s->head_dim); }
static uint32_t dim_a(const coli_layer_shape *s) { return s->latent ? s->kv_rank : s->head_dim; }
static bool indexes(const coli_layer_shape *s) { return s->index_heads > 0 && s->index_full; }

// The most splits that any context of up to `positions` needs (see attend_chunk in attention.metal): the count is not monotonic where
// chunks begin to grow.
static uint32_t most_splits(uint32_t positions) { return least(divide_up(positions, ATTEND_CHUNK), ATTEND_MAX_SPLITS); }

static uint64_t partial_row_bytes(const coli_layer_shape *s, uint32_t positions) {
    return (uint64_t)s->heads * most_splits(positions) * (dim_a(s) + 2) * sizeof(float);
}

static uint32_t attend_rows(const coli_layer_shape *s, uint32_t rows, uint32_t positions) {
    const uint64_t fit = max_partial_bytes / partial_row_bytes(s, positions);
    return fit < 1 ? 1 : least(rows, (uint32_t)(fit < rows ? fit : rows));
}

// Everything a part needs, in the order it is taken. Counts are floats per row.
static uint64_t row_floats(const coli_layer_shape *s, uint32_t positions, uint32_t span) {
    uint64_t n = (uint64_t)s->hidden * 2 + (uint64_t)s->heads * query_dim(s) * 2 + value_width(s);
    if (s->latent) {
        n += (uint64_t)s->query_rank * 2 + s->kv_rank + s->rope + (uint64_t)s->heads * s->kv_rank * 2;
    } else {
        n += (uint64_t)s->key_heads * s->head_dim * 3;
    }
    if (indexes(s)) n += (uint64_t)s->index_heads * s->index_dim * 2 + s->index_dim + s->index_heads + positions + span;
    if (s->index_heads > 0) n += s->index_top_k + 2;
    if (s->sparse) n += s->experts + 2 * (uint64_t)s->per_token;
    return n + s->rope;
}

// span: of the longest settling of ties (see RowInfo).
static uint64_t part_bytes(const coli_layer_shape *s, uint32_t rows, uint32_t positions, uint32_t span) {
    return row_floats(s, positions, span) * rows * sizeof(float) + rows * (sizeof(RowInfo) + sizeof(RowTile)) + attend_rows(s, rows, positions) * partial_row_bytes(s, positions) +
           coli_network_bytes(rows, s->inner) + 40 * 256;
}

// Multiply-adds of a row, for the cap on GPU time.
static uint64_t row_products(const coli_layer_shape *s, uint32_t positions) {
    const uint64_t seen = s->index_heads > 0 ? least(positions, s->index_top_k) : positions;
    const uint64_t wide = (uint64_t)s->heads * query_dim(s);
    uint64_t n = (uint64_t)s->hidden * value_width(s) + (uint64_t)s->hidden * s->inner * 3 + (s->sparse ? (uint64_t)s->hidden * s->experts : 0);
    if (s->latent) {
        n += (uint64_t)s->query_rank * s->hidden + wide * (s->query_rank ? s->query_rank : s->hidden) + (uint64_t)(s->kv_rank + s->rope) * s->hidden;
        n += (uint64_t)s->heads * s->kv_rank * (s->nope + s->value_dim) + seen * s->heads * (2 * s->kv_rank + s->rope);
    } else {
        n += (wide + 2 * (uint64_t)s->key_heads * s->head_dim) * s->hidden + seen * wide * 2;
    }
    if (indexes(s)) n += (uint64_t)s->index_heads * s->index_dim * (s->query_rank + (uint64_t)positions);
    return n;
}

uint64_t coli_metal_scratch_bytes(const coli_layer_shape *shape, uint32_t rows, uint32_t positions) {
    uint32_t fit = rows;
    while (fit > 1 && part_bytes(shape, fit, positions, positions) > max_part_bytes) fit = divide_up(fit, 2);
    return part_bytes(shape, fit, positions, positions);
}

// ---- checks

static int check_vector(const float *vector, const char *what, coli_metal_error *error) {
    return vector ? COLI_METAL_OK : coli_fail(error, COLI_METAL_ARGUMENT, "%s is missing", what);
}

static int check_shape(const coli_layer_shape *s, coli_metal_error *error) {
    if (s->hidden == 0 || s->heads == 0) return coli_fail(error, COLI_METAL_ARGUMENT, "a layer without width or heads");
    if (s->latent && (s->kv_rank == 0 || s->kv_rank > ATTEND_MAX_DIM_A || s->rope > ATTEND_MAX_DIM_B)) {
        return coli_fail(error, COLI_METAL_ARGUMENT, "latent attention with rank %u and %u rotated dimensions; kernels take up to %d and %d", s->kv_rank, s->rope,
                         ATTEND_MAX_DIM_A, ATTEND_MAX_DIM_B);
    }
    if (!s->latent && (s->head_dim == 0 || s->head_dim > ATTEND_MAX_DIM_A || s->key_heads == 0 || s->heads % s->key_heads != 0 || s->rope > s->head_dim)) {
        return coli_fail(error, COLI_METAL_ARGUMENT, "attention with %u heads, %u key heads of %u dimensions, %u rotated", s->heads, s->key_heads, s->head_dim, s->rope);
    }
    if (s->index_heads > 0 && (!s->latent || s->query_rank == 0 || s->index_dim == 0 || s->index_dim > HEAD_MAX_DIM || s->index_top_k == 0 || s->rope > s->index_dim)) {
        return coli_fail(error, COLI_METAL_ARGUMENT, "an indexer of %u dimensions choosing %u positions", s->index_dim, s->index_top_k);
    }
    if (s->sparse && (s->experts == 0 || s->experts > ROUTE_MAX_EXPERTS || s->per_token == 0 || s->per_token > s->experts || s->groups == 0 ||
                      s->experts % s->groups != 0 || s->top_groups == 0 || (uint64_t)s->experts / s->groups * s->top_groups < s->per_token)) {
        return coli_fail(error, COLI_METAL_ARGUMENT, "%u of %u experts in %u groups, %u of them chosen; kernels take up to %d experts", s->per_token, s->experts, s->groups,
                         s->top_groups, ROUTE_MAX_EXPERTS);
    }
    return COLI_METAL_OK;
}

static int check_attention(const coli_layer_call *call, coli_metal_error *error) {
    const coli_layer_shape *s = &call->shape;
    const coli_layer_weights *w = &call->weights;
    const uint32_t wide = s->heads * query_dim(s);
    int status = check_vector(w->input_norm, "the attention norm", error);
    if (status == COLI_METAL_OK) status = coli_block_check(&w->output, "output projection", s->hidden, value_width(s), error);
    if (status != COLI_METAL_OK) return status;
    if (s->latent) {
        if (s->query_rank > 0) {
            status = coli_block_check(&w->query_a, "query projection a", s->query_rank, s->hidden, error);
            if (status == COLI_METAL_OK) status = check_vector(w->query_a_norm, "the norm of query projection a", error);
        }
        if (status == COLI_METAL_OK) status = coli_block_check(&w->query_b, "query projection b", wide, s->query_rank ? s->query_rank : s->hidden, error);
        if (status == COLI_METAL_OK) status = coli_block_check(&w->kv_a, "latent projection", s->kv_rank + s->rope, s->hidden, error);
        if (status == COLI_METAL_OK) status = coli_block_check(&w->kv_b, "latent expansion", s->heads * (s->nope + s->value_dim), s->kv_rank, error);
        if (status == COLI_METAL_OK) status = check_vector(w->kv_a_norm, "the norm of the latent projection", error);
    } else {
        status = coli_block_check(&w->query, "query projection", wide, s->hidden, error);
        if (status == COLI_METAL_OK) status = coli_block_check(&w->key, "key projection", s->key_heads * s->head_dim, s->hidden, error);
        if (status == COLI_METAL_OK) status = coli_block_check(&w->value, "value projection", s->key_heads * s->head_dim, s->hidden, error);
        if (status == COLI_METAL_OK && (s->head_norm || s->full_norm)) status = check_vector(w->query_norm, "the query norm", error);
        if (status == COLI_METAL_OK && (s->head_norm || s->full_norm)) status = check_vector(w->key_norm, "the key norm", error);
    }
    if (status == COLI_METAL_OK && indexes(s)) {
        status = coli_block_check(&w->index_query, "index query projection", s->index_heads * s->index_dim, s->query_rank, error);
        if (status == COLI_METAL_OK) status = coli_block_check(&w->index_key, "index key projection", s->index_dim, s->hidden, error);
        if (status == COLI_METAL_OK) status = coli_block_check(&w->index_score, "index weights", s->index_heads, s->hidden, error);
        if (status == COLI_METAL_OK) status = check_vector(w->index_key_norm, "the index key norm", error);
        if (status == COLI_METAL_OK) status = check_vector(w->index_key_norm_bias, "the index key norm's bias", error);
    }
    return status;
}

static int check_network(const coli_layer_call *call, coli_metal_error *error) {
    const coli_layer_shape *s = &call->shape;
    const coli_layer_weights *w = &call->weights;
    int status = check_vector(w->post_norm, "the feed-forward norm", error);
    if (s->inner > 0) {
        if (status == COLI_METAL_OK) status = coli_block_check(&w->gate, "gate", s->inner, s->hidden, error);
        if (status == COLI_METAL_OK) status = coli_block_check(&w->up, "up", s->inner, s->hidden, error);
        if (status == COLI_METAL_OK) status = coli_block_check(&w->down, "down", s->hidden, s->inner, error);
    }
    if (status == COLI_METAL_OK && s->sparse) status = coli_block_check(&w->router, "router", s->experts, s->hidden, error);
    return status;
}

static int check_rows(const coli_layer_call *call, const coli_row *rows, const coli_cache *caches, coli_metal_error *error) {
    for (uint32_t i = 0; i < call->rows; i++) {
        if (rows[i].cache >= call->caches) return coli_fail(error, COLI_METAL_ARGUMENT, "row %u names cache %u of %u", i, rows[i].cache, call->caches);
        if (rows[i].position >= caches[rows[i].cache].capacity) {
            return coli_fail(error, COLI_METAL_ARGUMENT, "row %u is at position %u of a cache of %llu", i, rows[i].position,
                             (unsigned long long)caches[rows[i].cache].capacity);
        }
    }
    return COLI_METAL_OK;
}

// ---- encoding

// A part: `count` rows from `first` on, and the working memory of its phases.
typedef struct {
    coli_metal_submit *submit;
    const coli_layer_call *call;
    const coli_layer_shape *s;
    const coli_layer_weights *w;
    uint32_t first, count;
    uint32_t positions; // of the longest context
    uint32_t span;      // of the longest settling of ties
    bool many;          // the call has many rows: decides between kernels, whatever the part's size, which timing decides
    bool selects;       // some row's context is longer than the indexer's top_k
    uint64_t x, rows, cos, sin;
    uint64_t normed, query_low, query_low_normed, query, query_rotated, kv, index_query, index_query_rotated, index_key, index_weights;
    uint64_t counts, tied, positions_list, scores, order, tiles;
    uint64_t absorbed, attended, partial, values;
    const RowInfo *info;
    RowTile *tiles_memory;
    int32_t *counts_memory, *tied_memory, *positions_memory;
    int32_t *experts_memory;
    float *gates_memory;
} part;

static uint64_t take_rows(part *p, uint64_t floats) {
    uint64_t gpu;
    coli_scratch_take(p->submit, floats * p->count * sizeof(float), &gpu);
    return gpu;
}

static coli_product plain(const part *p, uint64_t x, uint64_t y, const coli_block *w) {
    return (coli_product){.x = x, .y = y, .x_stride = w->columns, .y_stride = w->rows, .count = p->count, .many = p->many};
}

static void project(part *p, const coli_block *w, const char *what, uint64_t x, uint64_t y, const float *bias) {
    const coli_operand operand = coli_weight(p->submit, w, what);
    coli_product product = plain(p, x, y, w);
    if (bias != NULL) {
        product.bias = coli_floats(p->submit, bias, w->rows, what);
        product.flags = MATVEC_BIAS;
    }
    coli_multiply(p->submit, &operand, product);
}

static void norm_rows(part *p, uint64_t x, const float *weight, const char *what, uint64_t y, uint32_t width) {
    coli_encode_norm(p->submit, x, coli_floats(p->submit, weight, width, what), y, width, p->count, p->s->epsilon);
}

static void transform(part *p, HeadParams h, uint32_t heads) {
    const coli_constants none = {0};
    h.rows = p->rows;
    h.cos = p->cos;
    h.sin = p->sin;
    h.interleaved = p->s->interleaved;
    coli_encode(p->submit, KERNEL_HEAD_TRANSFORM, &none, &h, sizeof h, heads, p->count, 1);
}

static void barrier(part *p) { coli_encode_barrier(p->submit); }

// From normed rows to caches extended, and queries in the latent space where they are asked for; the indexer's scores and choice on the way.
static void encode_latent_queries(part *p) {
    const coli_layer_shape *s = p->s;
    const coli_layer_weights *w = p->w;
    const uint32_t head = query_dim(s);
    const bool index = indexes(s), queries = !p->call->caches_only;
    if (!queries) {
        // their projections are left out
    } else if (s->query_rank > 0) {
        project(p, &w->query_a, "query projection a", p->normed, p->query_low, NULL);
    } else {
        project(p, &w->query_b, "query projection b", p->normed, p->query, NULL);
    }
    project(p, &w->kv_a, "latent projection", p->normed, p->kv, NULL);
    if (index) {
        project(p, &w->index_key, "index key projection", p->normed, p->index_key, NULL);
        if (queries && p->selects) project(p, &w->index_score, "index weights", p->normed, p->index_weights, NULL);
    }
    barrier(p);
    if (queries && s->query_rank > 0) {
        coli_encode_norm(p->submit, p->query_low, coli_floats(p->submit, w->query_a_norm, s->query_rank, "the norm of query projection a"), p->query_low_normed,
                         s->query_rank, p->count, s->latent_epsilon);
    }
    transform(p, (HeadParams){.in = p->kv, .in_stride = s->kv_rank + s->rope, .weight = coli_floats(p->submit, w->kv_a_norm, s->kv_rank, "latent norm"),
                              .dim = s->kv_rank, .norm = HEAD_NORM_RMS, .epsilon = s->latent_epsilon, .cache = 1, .out_stride = s->kv_rank}, 1);
    transform(p, (HeadParams){.in = p->kv, .in_stride = s->kv_rank + s->rope, .in_offset = s->kv_rank, .dim = s->rope, .rotated = s->rope, .cache = 2,
                              .out_stride = s->rope}, 1);
    if (index) {
        transform(p, (HeadParams){.in = p->index_key, .in_stride = s->index_dim, .weight = coli_floats(p->submit, w->index_key_norm, s->index_dim, "index key norm"),
                                  .bias = coli_floats(p->submit, w->index_key_norm_bias, s->index_dim, "index key norm bias"), .dim = s->index_dim,
                                  .rotated = s->rope, .norm = HEAD_NORM_LAYER, .epsilon = 1e-6f, .cache = 3, .out_stride = s->index_dim}, 1);
    }
    if (!queries) return;
    barrier(p);
    if (s->query_rank > 0) project(p, &w->query_b, "query projection b", p->query_low_normed, p->query, NULL);
    if (index && p->selects) project(p, &w->index_query, "index query projection", p->query_low_normed, p->index_query, NULL);
    barrier(p);
    const coli_operand kv_b = coli_weight(p->submit, &w->kv_b, "latent expansion");
    coli_constants constants = {.format = kv_b.format, .group_units = kv_b.group_units, .whole = kv_b.whole,
                                .xrows = p->count == 1 ? 1 : p->count == 2 ? 2 : MAX_XROWS};
    const AbsorbParams a = {.w = kv_b.matrix, .q = p->query, .absorbed = p->absorbed, .q_stride = s->heads * head, .q_head_stride = head, .heads = s->heads,
                            .nope = s->nope, .block_rows = s->nope + s->value_dim, .count = p->count};
    p->submit->products += (uint64_t)s->heads * s->nope * s->kv_rank * p->count;
    coli_encode(p->submit, KERNEL_ABSORB, &constants, &a, sizeof a, s->heads, divide_up(p->count, constants.xrows), 1);
    transform(p, (HeadParams){.in = p->query, .in_stride = s->heads * head, .in_head_stride = head, .in_offset = s->nope, .dim = s->rope, .rotated = s->rope,
                              .out = p->query_rotated, .out_stride = s->heads * s->rope, .out_head_stride = s->rope}, s->heads);
    if (index && p->selects) {
        transform(p, (HeadParams){.in = p->index_query, .in_stride = s->index_heads * s->index_dim, .in_head_stride = s->index_dim, .dim = s->index_dim,
                                  .rotated = s->rope, .out = p->index_query_rotated, .out_stride = s->index_heads * s->index_dim,
                                  .out_head_stride = s->index_dim}, s->index_heads);
    }
    barrier(p);
}

static void encode_selection(part *p) {
    const coli_layer_shape *s = p->s;
    const coli_constants none = {0};
    const IndexParams i = {.rows = p->rows, .query = p->index_query_rotated, .weights = p->index_weights, .scores = p->scores, .counts = p->counts,
                           .tied = p->tied, .positions = p->positions_list, .order = p->order, .order_stride = p->span, .heads = s->index_heads, .dim = s->index_dim, .score_stride = p->positions, .top_k = s->index_top_k,
                           .scale_query = 1 / sqrtf((float)s->index_dim), .scale_heads = 1 / sqrtf((float)s->index_heads)};
    p->submit->products += (uint64_t)s->index_heads * s->index_dim * p->positions * p->count;
    coli_encode(p->submit, KERNEL_INDEX_SCORES, &none, &i, sizeof i, divide_up(p->positions, SCORE_THREADS), p->count, 1);
    barrier(p);
    coli_encode(p->submit, KERNEL_INDEX_SELECT, &none, &i, sizeof i, p->count, 1, 1);
    barrier(p);
}

static void encode_grouped_queries(part *p) {
    const coli_layer_shape *s = p->s;
    const coli_layer_weights *w = p->w;
    const uint32_t wide = s->heads * s->head_dim, narrow = s->key_heads * s->head_dim;
    const uint64_t key = p->kv, value = p->kv + (uint64_t)narrow * p->count * sizeof(float);
    const bool queries = !p->call->caches_only;
    if (queries) project(p, &w->query, "query projection", p->normed, p->query, w->query_bias);
    project(p, &w->key, "key projection", p->normed, key, w->key_bias);
    project(p, &w->value, "value projection", p->normed, value, w->value_bias);
    barrier(p);
    if (s->full_norm) {
        if (queries) norm_rows(p, p->query, w->query_norm, "query norm", p->query, wide);
        norm_rows(p, key, w->key_norm, "key norm", key, narrow);
        barrier(p);
    }
    HeadParams h = {.in_head_stride = s->head_dim, .out_head_stride = s->head_dim, .dim = s->head_dim, .epsilon = s->epsilon, .clip = s->clip};
    HeadParams v = h;
    h.rotated = s->rope;
    h.norm = s->head_norm ? HEAD_NORM_RMS : HEAD_NORM_NONE;
    h.in = p->query, h.in_stride = wide, h.out = p->query_rotated, h.out_stride = wide;
    if (s->head_norm) h.weight = coli_floats(p->submit, w->query_norm, s->head_dim, "query norm");
    if (queries) transform(p, h, s->heads);
    h.in = key, h.in_stride = narrow, h.cache = 1, h.out = 0, h.out_stride = narrow;
    if (s->head_norm) h.weight = coli_floats(p->submit, w->key_norm, s->head_dim, "key norm");
    transform(p, h, s->key_heads);
    v.in = value, v.in_stride = narrow, v.cache = 2, v.out_stride = narrow;
    transform(p, v, s->key_heads);
    barrier(p);
}

// How many heads of a row share a tile of attend_tiles; 0: the layer's sizes do not fit the tiles.
static uint32_t tile_heads(const coli_layer_shape *s) {
    const uint32_t shared = s->latent ? s->heads : s->heads / s->key_heads;
    if (dim_a(s) % 32 != 0 || (s->latent && s->rope % 8 != 0)) return 0;
    return shared % 8 == 0 ? 8 : shared % 4 == 0 ? 4 : shared % 2 == 0 ? 2 : 1;
}

// A row of a long call whose context is not a selection is computed in tiles. Decided row by row, so that it does not depend on how the
// call is cut.
static bool tiled(const part *p, uint32_t row) {
    const coli_layer_shape *s = p->s;
    if (!p->many || tile_heads(s) == 0) return false;
    return s->index_heads == 0 || (indexes(s) ? p->info[row].position < s->index_top_k : p->counts_memory[row] < 0);
}

static AttendParams attend_params(const part *p, uint32_t first) {
    const coli_layer_shape *s = p->s;
    const uint32_t a = dim_a(s);
    const bool selection = s->index_heads > 0;
    return (AttendParams){
        .rows = p->rows + first * sizeof(RowInfo),
        .counts = selection ? p->counts + first * sizeof(int32_t) : 0,
        .positions = selection ? p->positions_list + (uint64_t)first * s->index_top_k * sizeof(int32_t) : 0,
        .query_a = (s->latent ? p->absorbed : p->query_rotated) + (uint64_t)first * s->heads * a * sizeof(float),
        .query_b = s->latent ? p->query_rotated + (uint64_t)first * s->heads * s->rope * sizeof(float) : 0,
        .partial = p->partial,
        .out = p->attended + (uint64_t)first * s->heads * a * sizeof(float),
        .heads = s->heads, .heads_per_key = s->latent ? s->heads : s->heads / s->key_heads, .key_stride = s->latent ? a : s->key_heads * a,
        .key_stride_b = s->latent ? s->rope : 0, .top_k = s->index_top_k, .splits = most_splits(p->positions), .scale = s->scale};
}

// Rows first … first+count−1, all tiled.
static void encode_tiles(part *p, uint32_t first, uint32_t count) {
    const coli_layer_shape *s = p->s;
    const coli_constants constants = {.dim_a = dim_a(s), .dim_b = s->latent ? s->rope : 0, .shared_values = s->latent, .heads_per_simd = tile_heads(s)};
    const uint32_t most = TILE_QUERIES / constants.heads_per_simd;
    AttendParams params = attend_params(p, first);
    RowTile *tiles = p->tiles_memory + first;
    params.tiles = p->tiles + first * sizeof(RowTile);
    uint32_t tile_count = 0;
    for (uint32_t i = 0; i < count;) {
        uint32_t n = 1;
        while (n < most && i + n < count && p->info[first + i + n].cache[0] == p->info[first + i].cache[0]) n++;
        tiles[tile_count++] = (RowTile){.first = i, .count = n};
        i += n;
    }
    coli_encode(p->submit, KERNEL_ATTEND_TILES, &constants, &params, sizeof params, s->heads / constants.heads_per_simd, tile_count, 1);
}

static void encode_rows(part *p, uint32_t first, uint32_t count) {
    const coli_layer_shape *s = p->s;
    const uint32_t shared = s->latent ? s->heads : s->heads / s->key_heads;
    const coli_constants constants = {.dim_a = dim_a(s), .dim_b = s->latent ? s->rope : 0, .shared_values = s->latent, .heads_per_simd = shared % 2 == 0 ? 2 : 1};
    const uint32_t step = attend_rows(s, p->count, p->positions);
    for (uint32_t end = first + count; first < end; first += step) {
        const uint32_t n = least(step, end - first);
        const AttendParams params = attend_params(p, first);
        coli_encode(p->submit, KERNEL_ATTEND, &constants, &params, sizeof params, divide_up(s->heads, ATTEND_SIMDGROUPS * constants.heads_per_simd), params.splits, n);
        barrier(p);
        coli_encode(p->submit, KERNEL_ATTEND_MERGE, &constants, &params, sizeof params, s->heads, n, 1);
        barrier(p); // the partial results are used again
    }
}

static void encode_attend(part *p) {
    const coli_layer_shape *s = p->s;
    const uint64_t seen = s->index_heads > 0 ? least(p->positions, s->index_top_k) : p->positions;
    p->submit->products += seen * s->heads * (2 * dim_a(s) + (s->latent ? s->rope : 0)) * p->count;
    for (uint32_t first = 0; first < p->count && p->submit->status == COLI_METAL_OK;) {
        uint32_t n = 1;
        while (first + n < p->count && tiled(p, first + n) == tiled(p, first)) n++;
        if (tiled(p, first)) {
            encode_tiles(p, first, n);
        } else {
            encode_rows(p, first, n);
        }
        first += n;
    }
    barrier(p);
}

static void encode_attention(part *p) {
    const coli_layer_shape *s = p->s;
    norm_rows(p, p->x, p->w->input_norm, "the attention norm", p->normed, s->hidden);
    barrier(p);
    if (s->latent) {
        encode_latent_queries(p);
        if (indexes(s) && p->selects && !p->call->caches_only) encode_selection(p);
    } else {
        encode_grouped_queries(p);
    }
    if (p->call->caches_only) return;
    encode_attend(p);
    uint64_t values = p->attended;
    if (s->latent) { // from the latent space to each head's values
        const coli_operand kv_b = coli_weight(p->submit, &p->w->kv_b, "latent expansion");
        coli_multiply(p->submit, &kv_b, (coli_product){.x = p->attended, .y = p->values, .x_stride = s->heads * s->kv_rank, .y_stride = s->heads * s->value_dim,
                                                       .count = p->count, .many = p->many, .blocks = s->heads, .outputs = s->value_dim, .block_rows = s->nope + s->value_dim,
                                                       .block_first = s->nope, .x_block = s->kv_rank, .y_block = s->value_dim});
        barrier(p);
        values = p->values;
    }
    const coli_operand output = coli_weight(p->submit, &p->w->output, "output projection");
    coli_product product = plain(p, values, p->x, &p->w->output);
    product.flags = MATVEC_ADD;
    coli_multiply(p->submit, &output, product);
}

static void encode_network(part *p) {
    const coli_layer_shape *s = p->s;
    const coli_layer_weights *w = p->w;
    coli_metal_submit *submit = p->submit;
    const uint64_t row_bytes = (uint64_t)s->hidden * sizeof(float);
    uint64_t normed = p->normed, shared = 0, logits = 0;
    if (s->sparse) {
        normed = coli_floats(submit, p->call->normed, (uint64_t)p->call->rows * s->hidden, "normed rows") + p->first * row_bytes;
        shared = coli_floats(submit, p->call->shared, (uint64_t)p->call->rows * s->hidden, "shared experts' output") + p->first * row_bytes;
        logits = take_rows(p, s->experts);
    }
    coli_network network = {0};
    if (s->inner > 0) {
        network = coli_network_open(submit, coli_weight(submit, &w->gate, "gate"), coli_weight(submit, &w->up, "up"), coli_weight(submit, &w->down, "down"),
                                    p->count, s->hidden, s->inner, p->many);
    }
    barrier(p);
    norm_rows(p, p->x, w->post_norm, "the feed-forward norm", normed, s->hidden);
    barrier(p);
    if (s->inner > 0) coli_network_gate_up(submit, &network, normed);
    if (s->sparse) project(p, &w->router, "router", normed, logits, NULL);
    barrier(p);
    if (s->inner > 0) coli_network_down(submit, &network, s->sparse ? shared : p->x, s->sparse ? 0 : MATVEC_ADD);
    if (!s->sparse) return;
    const coli_constants none = {0};
    RouteParams r = {.logits = logits, .experts_count = s->experts, .per_token = s->per_token, .groups = s->groups, .top_groups = s->top_groups, .scale = s->route_scale};
    r.flags = (s->sigmoid ? ROUTE_SIGMOID : 0) | (s->normalise ? ROUTE_NORMALISE : 0) | (w->router_bias ? ROUTE_BIAS : 0);
    if (w->router_bias) r.bias = coli_floats(submit, w->router_bias, s->experts, "router bias");
    p->experts_memory = coli_scratch_take(submit, (uint64_t)p->count * s->per_token * sizeof(int32_t), &r.experts);
    p->gates_memory = coli_scratch_take(submit, (uint64_t)p->count * s->per_token * sizeof(float), &r.gates);
    coli_encode(submit, KERNEL_ROUTE, &none, &r, sizeof r, p->count, 1, 1);
}

// Addresses and working memory of a part. Tables that lie anywhere are copied.
static void open_part(part *p, const coli_row *rows, const coli_cache *caches, const float *cos, const float *sin, const int32_t *counts, const int32_t *positions) {
    const coli_layer_shape *s = p->s;
    const uint64_t head = query_dim(s);
    RowInfo *info = coli_scratch_take(p->submit, p->count * sizeof(RowInfo), &p->rows);
    if (info == NULL) return;
    p->info = info;
    p->selects = false;
    for (uint32_t i = 0; i < p->count; i++) {
        const coli_row *row = &rows[p->first + i];
        const coli_cache *c = &caches[row->cache];
        info[i] = (RowInfo){.position = row->position, .tie_span = row->tie_span};
        if (s->latent) {
            info[i].cache[0] = coli_floats(p->submit, c->latent, c->capacity * s->kv_rank, "latent cache");
            info[i].cache[1] = coli_floats(p->submit, c->rope, c->capacity * s->rope, "rotated cache");
            if (indexes(s)) info[i].cache[2] = coli_floats(p->submit, c->index, c->capacity * s->index_dim, "index cache");
        } else {
            info[i].cache[0] = coli_floats(p->submit, c->keys, c->capacity * s->key_heads * s->head_dim, "key cache");
            info[i].cache[1] = coli_floats(p->submit, c->values, c->capacity * s->key_heads * s->head_dim, "value cache");
        }
        if (s->index_heads > 0 && row->position >= s->index_top_k) p->selects = true;
    }
    p->x = coli_floats(p->submit, p->call->x, (uint64_t)p->call->rows * s->hidden, "residual stream") + (uint64_t)p->first * s->hidden * sizeof(float);
    p->cos = coli_scratch_copy(p->submit, cos + (uint64_t)p->first * (s->rope / 2), (uint64_t)p->count * (s->rope / 2) * sizeof(float));
    p->sin = coli_scratch_copy(p->submit, sin + (uint64_t)p->first * (s->rope / 2), (uint64_t)p->count * (s->rope / 2) * sizeof(float));
    if (s->index_heads > 0) {
        p->counts_memory = coli_scratch_take(p->submit, p->count * sizeof(int32_t), &p->counts);
        p->tied_memory = coli_scratch_take(p->submit, p->count * sizeof(int32_t), &p->tied);
        if (p->tied_memory != NULL) memset(p->tied_memory, 0, p->count * sizeof(int32_t));
        p->positions_memory = coli_scratch_take(p->submit, (uint64_t)p->count * s->index_top_k * sizeof(int32_t), &p->positions_list);
        for (uint32_t i = 0; p->positions_memory != NULL && i < p->count; i++) {
            const int32_t count = indexes(s) ? -1 : counts[p->first + i];
            p->counts_memory[i] = count;
            if (count > 0) {
                memcpy(p->positions_memory + (uint64_t)i * s->index_top_k, positions + (uint64_t)(p->first + i) * s->index_top_k, (size_t)count * sizeof(int32_t));
            }
        }
    }
    p->tiles_memory = coli_scratch_take(p->submit, p->count * sizeof(RowTile), &p->tiles);
    p->normed = take_rows(p, s->hidden);
    p->query = take_rows(p, s->heads * head);
    p->query_rotated = take_rows(p, s->heads * (s->latent ? s->rope : head));
    p->attended = take_rows(p, (uint64_t)s->heads * dim_a(s));
    if (s->latent) {
        p->query_low = take_rows(p, s->query_rank);
        p->query_low_normed = take_rows(p, s->query_rank);
        p->kv = take_rows(p, s->kv_rank + s->rope);
        p->absorbed = take_rows(p, (uint64_t)s->heads * s->kv_rank);
        p->values = take_rows(p, value_width(s));
        if (indexes(s)) {
            p->index_key = take_rows(p, s->index_dim);
            p->index_weights = take_rows(p, s->index_heads);
            p->index_query = take_rows(p, (uint64_t)s->index_heads * s->index_dim);
            p->index_query_rotated = take_rows(p, (uint64_t)s->index_heads * s->index_dim);
            if (p->selects) {
                p->scores = take_rows(p, p->positions);
                p->order = take_rows(p, p->span);
            }
        }
    } else {
        p->kv = take_rows(p, 2 * (uint64_t)s->key_heads * s->head_dim);
    }
    coli_scratch_take(p->submit, attend_rows(s, p->count, p->positions) * partial_row_bytes(s, p->positions), &p->partial);
}

// A selection that was made elsewhere must fit the rows it is used for.
static int check_selection(const coli_layer_call *call, const coli_row *rows, const int32_t *counts, const int32_t *positions, const int32_t *tied,
                           coli_metal_error *error) {
    const coli_layer_shape *s = &call->shape;
    if (s->index_heads == 0) return COLI_METAL_OK;
    if (counts == NULL || positions == NULL) return coli_fail(error, COLI_METAL_ARGUMENT, "a layer of a model with an indexer needs a selection");
    if (s->index_full) return tied ? COLI_METAL_OK : coli_fail(error, COLI_METAL_ARGUMENT, "a layer with an indexer needs room to say which rows chose among equal scores");
    for (uint32_t i = 0; i < call->rows; i++) {
        if (counts[i] < -1 || counts[i] == 0 || counts[i] > (int32_t)s->index_top_k) {
            return coli_fail(error, COLI_METAL_ARGUMENT, "row %u has a selection of %d positions, at most %u expected", i, counts[i], s->index_top_k);
        }
        for (int32_t k = 0; k < counts[i]; k++) {
            const int32_t at = positions[(uint64_t)i * s->index_top_k + (uint32_t)k];
            if (at < 0 || (uint32_t)at > rows[i].position) return coli_fail(error, COLI_METAL_ARGUMENT, "row %u at position %u selects position %d", i, rows[i].position, at);
        }
    }
    return COLI_METAL_OK;
}

// The longest context of some rows, and their longest settling of ties.
static void reach(const coli_row *rows, uint32_t count, uint32_t *positions, uint32_t *span) {
    *positions = *span = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (rows[i].position >= *positions) *positions = rows[i].position + 1;
        if (rows[i].tie_span > *span) *span = rows[i].tie_span;
    }
}

static int run_part(coli_metal *metal, const coli_layer_call *call, const coli_row *rows, const coli_cache *caches, const float *cos, const float *sin, int32_t *counts,
                    int32_t *positions, int32_t *tied, int32_t *experts, float *gates, bool network, uint32_t first, uint32_t count, coli_metal_error *error) {
    const coli_layer_shape *s = &call->shape;
    part p = {.call = call, .s = s, .w = &call->weights, .first = first, .count = count, .many = call->rows >= GEMM_MIN_ROWS};
    reach(rows + first, count, &p.positions, &p.span);
    coli_metal_submit *submit = p.submit = coli_submit_open(metal, part_bytes(s, count, p.positions, p.span), error);
    if (submit == NULL) return COLI_METAL_MEMORY;
    open_part(&p, rows, caches, cos, sin, counts, positions);
    coli_encode_begin(submit);
    encode_attention(&p);
    if (network) {
        encode_network(&p);
        // Visible to the GPU at the commit, which no work on these rows precedes.
        if (s->sparse && s->inner == 0) memset(call->shared + (uint64_t)first * s->hidden, 0, (uint64_t)count * s->hidden * sizeof(float));
    }
    coli_encode_commit(submit);
    coli_submit_seal(submit);
    coli_submit_wait(submit);
    if (submit->status == COLI_METAL_OK) {
        const uint64_t begin = coli_now();
        if (indexes(s) && !call->caches_only) {
            memcpy(counts + first, p.counts_memory, count * sizeof(int32_t));
            memcpy(tied + first, p.tied_memory, count * sizeof(int32_t));
            for (uint32_t i = 0; i < count; i++) {
                if (p.counts_memory[i] > 0) {
                    memcpy(positions + (uint64_t)(first + i) * s->index_top_k, p.positions_memory + (uint64_t)i * s->index_top_k,
                           (size_t)p.counts_memory[i] * sizeof(int32_t));
                }
            }
        }
        if (network && s->sparse) {
            memcpy(experts + (uint64_t)first * s->per_token, p.experts_memory, (uint64_t)count * s->per_token * sizeof(int32_t));
            memcpy(gates + (uint64_t)first * s->per_token, p.gates_memory, (uint64_t)count * s->per_token * sizeof(float));
        }
        coli_count(metal, &metal->counters.scatter_nanoseconds, coli_now() - begin);
    }
    return coli_submit_close(submit, error);
}

static int run(coli_metal *metal, const coli_layer_call *call, const coli_row *rows, const coli_cache *caches, const float *cos, const float *sin, int32_t *counts,
               int32_t *positions, int32_t *tied, int32_t *experts, float *gates, bool network, coli_metal_error *error) {
    network = network && !call->caches_only;
    int status = check_shape(&call->shape, error);
    if (status == COLI_METAL_OK) status = check_attention(call, error);
    if (status == COLI_METAL_OK && network) status = check_network(call, error);
    if (status == COLI_METAL_OK) status = check_rows(call, rows, caches, error);
    if (status == COLI_METAL_OK) status = check_selection(call, rows, counts, positions, tied, error);
    uint32_t longest, span;
    reach(rows, call->rows, &longest, &span);
    for (uint32_t first = 0; status == COLI_METAL_OK && first < call->rows;) {
        uint32_t count = call->rows - first;
        const uint64_t timely = coli_command_buffer_products(metal) / row_products(&call->shape, longest);
        if (timely < count) count = timely < 1 ? 1 : (uint32_t)timely;
        while (count > 1 && part_bytes(&call->shape, count, longest, span) > max_part_bytes) count = divide_up(count, 2);
        @autoreleasepool {
            status = run_part(metal, call, rows, caches, cos, sin, counts, positions, tied, experts, gates, network, first, count, error);
        }
        first += count;
    }
    if (status == COLI_METAL_OK) coli_count(metal, &metal->counters.layers, 1);
    return status;
}

int coli_metal_layer_decode(coli_metal *metal, const coli_layer_call *call, const coli_row *rows, const coli_cache *caches, const float *cos, const float *sin,
                            int32_t *counts, int32_t *positions, int32_t *tied, int32_t *experts, float *gates, coli_metal_error *error) {
    return run(metal, call, rows, caches, cos, sin, counts, positions, tied, experts, gates, true, error);
}

int coli_metal_attn_decode(coli_metal *metal, const coli_layer_call *call, const coli_row *rows, const coli_cache *caches, const float *cos, const float *sin,
                           int32_t *counts, int32_t *positions, int32_t *tied, coli_metal_error *error) {
    return run(metal, call, rows, caches, cos, sin, counts, positions, tied, NULL, NULL, false, error);
}
