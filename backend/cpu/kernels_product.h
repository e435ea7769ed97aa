// Part of kernels_body.h: rows of activations times a weight. For few rows the weights are unpacked in registers, for many into a
// tile that all rows use; both make the same sums in the same order.

enum {
    direct_most = 8,     // most rows of activations for which weights are unpacked in registers
    step_most = 8,       // most rows of a weight that are multiplied together then
    chunk_columns = 512, // most columns of a tile
    quad = 4,            // weight rows that lie side by side in a tile
    tile_floats = 4096,  // weights of a tile: 16 KiB, half of a first-level cache
    tile_most = 16,      // most quads of a tile
};

// Keeps the compiler from remembering what it has loaded from p.
#define FORGET(p) __asm__("" : "+r"(p))

// ---- few rows ----

// The sums of R weight rows with M rows of activations, and where the rows' bytes are.
typedef struct {
    const uint8_t *raw[8];
    vf sum[8][3];
} direct_state;

INLINE void direct_begin(const int R, const int M, const cpu_weight *w, int row, size_t stride, direct_state *d) {
    UNROLL for (int r = 0; r < R; r++) {
        d->raw[r] = (const uint8_t *)w->data + (size_t)(row + r) * stride;
        UNROLL for (int m = 0; m < M; m++) d->sum[r][m] = v_zero();
    }
}

INLINE void direct_end(const int format, const int R, const int M, const cpu_weight *w, int row, const direct_state *d, float *const *y, int at) {
    if (R % 4 != 0) {
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int m = 0; m < M; m++) {
            y[m][at + r] = has_row_scale(format) ? v_sum(d->sum[r][m]) * w->scales[row + r] : v_sum(d->sum[r][m]);
        }
        return;
    }
    UNROLL for (int m = 0; m < M; m++) UNROLL for (int r = 0; r < R; r += 4) {
        v4 sum = v_sum4(d->sum[r][m], d->sum[r + 1][m], d->sum[r + 2][m], d->sum[r + 3][m]);
        v4_store(y[m] + at + r, has_row_scale(format) ? v4_scaled(sum, w->scales + row + r) : sum);
    }
}

// One block of R rows added to sum. Meanwhile as much is fetched.
INLINE void direct_block(const int format, const int R, const int M, const uint8_t *const *raw, const float *const *x, int at, const uint8_t *fetch, const int far, vf sum[8][3]) {
    // Eight rows' words and their sums are more than there are registers: those are read again for every vector.
    const int reread = R == 8 && has_correction(format);
    if (!fetch_between(M)) fetch_lines(fetch, (size_t)(R * block_bytes(format)), far);
    const uint8_t *at_row[8];
    vi word[8];
    UNROLL for (int r = 0; r < R; r++) {
        at_row[r] = raw[r];
        word[r] = has_correction(format) && !reread ? block_word(format, raw[r]) : vi_set(0);
    }
    UNROLL for (int k = 0; k < block_vectors(format); k++) {
        vf xv[3];
        UNROLL for (int m = 0; m < M; m++) xv[m] = v_load(x[m] + at + (k + has_correction(format)) * LANES);
        UNROLL for (int r = 0; r < R; r++) {
            if (fetch_between(M)) fetch_part(fetch, block_bytes(format) / block_vectors(format), k * R + r, far);
            if (reread) FORGET(at_row[r]);
            vf f = block_vector(format, raw[r], reread ? block_word(format, at_row[r]) : word[r], k);
            UNROLL for (int m = 0; m < M; m++) sum[r][m] = v_fma(f, xv[m], sum[r][m]);
        }
    }
}

INLINE void direct_whole(const int format, const int R, const int M, const cpu_weight *w, int row, const float *const *x, float *const *y, int at) {
    const int bc = block_columns(format), bb = block_bytes(format), pb = panel_block(format);
    const size_t stride = cpu_row_bytes(w);
    const int far = fetch_far((size_t)R * stride);
    const uint8_t *next = (const uint8_t *)w->data + (size_t)(row + R) * stride;
    const int full = w->columns / bc, all = (w->columns + bc - 1) / bc;
    uint8_t rest[8][32 * LANES];
    direct_state d;
    direct_begin(R, M, w, row, stride, &d);
    for (int b = 0; b < all; b++) {
        if (b == full) {
            for (int r = 0; r < R; r++) d.raw[r] = padded(rest[r], d.raw[r], stride - (size_t)full * (size_t)bb, (size_t)bb);
        }
        if (has_correction(format)) {
            UNROLL for (int m = 0; m < M; m++) {
                vf correction = v_load(x[m] + b * pb);
                UNROLL for (int r = 0; r < R; r++) d.sum[r][m] = v_add(d.sum[r][m], correction);
            }
        }
        direct_block(format, R, M, d.raw, x, b * pb, next + (size_t)(b * R) * (size_t)bb, far, d.sum);
        UNROLL for (int r = 0; r < R; r++) d.raw[r] += bb;
    }
    direct_end(format, R, M, w, row, &d, y, at);
}

INLINE void direct_grouped(const int format, const int kind, const int R, const int M, const cpu_weight *w, int row, const float *const *x,
                           float *const *y, int at) {
    const int bc = block_columns(format), bb = block_bytes(format), pb = panel_block(format), wide = scale_group(w) / bc;
    const size_t stride = cpu_row_bytes(w);
    const int far = fetch_far((size_t)R * stride);
    const uint8_t *next = (const uint8_t *)w->data + (size_t)(row + R) * stride;
    const int full = w->columns / bc, all = (w->columns + bc - 1) / bc;
    uint8_t rest[4][128];
    const float *s[4];
    vf scale[4];
    direct_state d;
    direct_begin(R, M, w, row, stride, &d);
    UNROLL for (int r = 0; r < R; r++) s[r] = row_scales(w, row + r);
    for (int b = 0; b < all; b++) {
        if (b < full) {
            UNROLL for (int r = 0; r < R; r++) scale[r] = block_scale(format, kind, w, s[r], wide, b);
        } else {
            for (int r = 0; r < R; r++) {
                float lanes[LANES];
                d.raw[r] = padded(rest[r], d.raw[r], stride - (size_t)full * (size_t)bb, (size_t)bb);
                scale_lanes(w, s[r], b, lanes);
                scale[r] = v_load(lanes);
            }
        }
        vf block[8][3];
        UNROLL for (int m = 0; m < M; m++) {
            vf first = has_correction(format) ? v_load(x[m] + b * pb) : v_zero();
            UNROLL for (int r = 0; r < R; r++) block[r][m] = first;
        }
        direct_block(format, R, M, d.raw, x, b * pb, next + (size_t)(b * R) * (size_t)bb, far, block);
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int m = 0; m < M; m++) d.sum[r][m] = v_fma(scale[r], block[r][m], d.sum[r][m]);
        UNROLL for (int r = 0; r < R; r++) d.raw[r] += bb;
    }
    direct_end(format, R, M, w, row, &d, y, at);
}

#define STEP(R, M)                                                                    \
    do {                                                                              \
        if (is_grouped(format)) {                                                     \
            direct_grouped(format, kind, R, M, w, row, x + i, y + i, row - row0);     \
        } else {                                                                      \
            direct_whole(format, R, M, w, row, x + i, y + i, row - row0);             \
        }                                                                             \
    } while (0)

// Rows of activations by threes and twos, all of them before the next rows of the weight.
INLINE void direct_rows(const int format, const int kind, const cpu_weight *w, int row0, int row1, int n, const float *const *x, float *const *y) {
    int row = row0;
#ifndef LANES_PORTABLE
    if (n == 1 && !is_grouped(format) && format != format_int2_row) {
        const int i = 0;
        for (; row + 8 <= row1; row += 8) STEP(8, 1);
    }
    for (; row + 4 <= row1; row += 4) {
        int i = 0;
        for (; n - i > 4 || n - i == 3; i += 3) STEP(4, 3);
        for (; n - i >= 2; i += 2) STEP(4, 2);
        if (i < n) STEP(4, 1);
    }
#endif
    for (; row < row1; row++) {
        for (int i = 0; i < n; i++) STEP(1, 1);
    }
}

#define DIRECT(name, format, kind)                                                                                                  \
    static void name(const cpu_weight *w, int row0, int row1, int n, const float *const *x, float *const *y) {                      \
        direct_rows(format, kind, w, row0, row1, n, x, y);                                                                          \
    }
DIRECT(direct_f32, format_f32, scale_row)
DIRECT(direct_bf16, format_bf16, scale_row)
DIRECT(direct_f16, format_f16, scale_row)
DIRECT(direct_int8, format_int8_row, scale_row)
DIRECT(direct_int4_row, format_int4_row, scale_row)
DIRECT(direct_int2, format_int2_row, scale_row)
DIRECT(direct_fp8, format_fp8_b128, scale_block)
#if LANES == 8
DIRECT(direct_int3, format_int3_g64, scale_block)
#else
DIRECT(direct_int3, format_int3_g64, scale_spread2)
DIRECT(direct_int4_spread8, format_int4_group, scale_spread8)
#endif
DIRECT(direct_int4_block, format_int4_group, scale_block)
DIRECT(direct_int4_wide, format_int4_group, scale_wide)
DIRECT(direct_int4_spread2, format_int4_group, scale_spread2)
DIRECT(direct_int4_spread4, format_int4_group, scale_spread4)
DIRECT(direct_int4_any, format_int4_group, scale_any)

static void direct(const cpu_weight *w, int row0, int row1, int n, const float *const *x, float *const *y) {
    switch (w->format) {
    case format_f32: direct_f32(w, row0, row1, n, x, y); return;
    case format_bf16: direct_bf16(w, row0, row1, n, x, y); return;
    case format_f16: direct_f16(w, row0, row1, n, x, y); return;
    case format_int8_row: direct_int8(w, row0, row1, n, x, y); return;
    case format_int4_row: direct_int4_row(w, row0, row1, n, x, y); return;
    case format_int2_row: direct_int2(w, row0, row1, n, x, y); return;
    case format_int3_g64: direct_int3(w, row0, row1, n, x, y); return;
    case format_fp8_b128: direct_fp8(w, row0, row1, n, x, y); return;
    }
    switch (scale_kind(w)) {
    case scale_block: direct_int4_block(w, row0, row1, n, x, y); return;
    case scale_wide: direct_int4_wide(w, row0, row1, n, x, y); return;
    case scale_spread2: direct_int4_spread2(w, row0, row1, n, x, y); return;
    case scale_spread4: direct_int4_spread4(w, row0, row1, n, x, y); return;
#if LANES == 16
    case scale_spread8: direct_int4_spread8(w, row0, row1, n, x, y); return;
#endif
    default: direct_int4_any(w, row0, row1, n, x, y); return;
    }
}

// ---- many rows ----

typedef struct {
    float weights[tile_floats];    // by quad, then by vector of columns: the vectors of the quad's rows
    float scales[tile_floats / 8]; // by quad, then by block, in the same way
    // Unfinished sums, for weights of more columns than a chunk: those tiles have the fewest quads.
    float totals[tile_floats / chunk_columns / quad * product_batch * quad * LANES];
} tile_memory;

// Blocks b0 … b0+blocks-1 of one row.
INLINE void tile_fill(const int format, const cpu_weight *w, int row, int b0, int blocks, float *weights, float *scales) {
    const int bb = block_bytes(format), vectors = block_vectors(format);
    const size_t stride = cpu_row_bytes(w);
    const uint8_t *p = (const uint8_t *)w->data + (size_t)row * stride;
    const float *s = row_scales(w, row);
    const int kind = scale_kind(w), wide = scale_group(w) / block_columns(format);
    uint8_t rest[32 * LANES];
    for (int b = b0; b < b0 + blocks; b++) {
        const uint8_t *raw = p + (size_t)b * (size_t)bb;
        if (((size_t)b + 1) * (size_t)bb > stride) {
            raw = padded(rest, raw, stride - (size_t)b * (size_t)bb, (size_t)bb);
        }
        vi word = has_correction(format) ? block_word(format, raw) : vi_set(0);
        UNROLL for (int k = 0; k < vectors; k++) v_store(weights + k * quad * LANES, block_vector(format, raw, word, k));
        weights += vectors * quad * LANES;
        if (is_grouped(format)) {
            if (((size_t)b + 1) * (size_t)block_columns(format) <= (size_t)w->columns) {
                v_store(scales, block_scale_any(format, kind, w, s, wide, b));
            } else {
                scale_lanes(w, s, b, scales);
            }
            scales += quad * LANES;
        }
    }
}

static void tile_fill_any(const cpu_weight *w, int row, int b0, int blocks, float *weights, float *scales) {
    switch (w->format) {
    case format_f32: tile_fill(format_f32, w, row, b0, blocks, weights, scales); break;
    case format_bf16: tile_fill(format_bf16, w, row, b0, blocks, weights, scales); break;
    case format_f16: tile_fill(format_f16, w, row, b0, blocks, weights, scales); break;
    case format_int8_row: tile_fill(format_int8_row, w, row, b0, blocks, weights, scales); break;
    case format_int4_row: tile_fill(format_int4_row, w, row, b0, blocks, weights, scales); break;
    case format_int2_row: tile_fill(format_int2_row, w, row, b0, blocks, weights, scales); break;
    case format_int4_group: tile_fill(format_int4_group, w, row, b0, blocks, weights, scales); break;
    case format_int3_g64: tile_fill(format_int3_g64, w, row, b0, blocks, weights, scales); break;
    case format_fp8_b128: tile_fill(format_fp8_b128, w, row, b0, blocks, weights, scales); break;
    }
}

// What a step of a tile needs beside its weights: blocks of this chunk, where they begin in a panel, and whether sums begin and end here.
typedef struct {
    int blocks, panel, begin, end;
} tile_chunk;

// A block of a quad times M rows of activations, added to sum.
INLINE void tile_block(const int vectors, const int R, const int M, const float *weights, const float *const *x, vf sum[quad][3]) {
    UNROLL for (int k = 0; k < vectors; k++) {
        vf xv[3];
        UNROLL for (int m = 0; m < M; m++) xv[m] = v_load(x[m] + k * LANES);
        UNROLL for (int r = 0; r < R; r++) {
            vf f = v_load(weights + (k * quad + r) * LANES);
            UNROLL for (int m = 0; m < M; m++) sum[r][m] = v_fma(f, xv[m], sum[r][m]);
        }
    }
}

// R rows of a quad times M rows of activations: the same sums in the same order as direct.
INLINE void tile_step(const int vectors, const int corrected, const int grouped, const int R, const int M, const tile_chunk *chunk, const float *weights,
                      const float *scales, const float *const *x, float *totals, vf sum[quad][3]) {
    const float *xb[3];
    UNROLL for (int m = 0; m < M; m++) {
        xb[m] = x[m] + chunk->panel;
        UNROLL for (int r = 0; r < R; r++) sum[r][m] = v_zero();
    }
    if (!chunk->begin) {
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int r = 0; r < R; r++) sum[r][m] = v_load(totals + (m * quad + r) * LANES);
    }
    for (int b = 0; b < chunk->blocks; b++) {
        vf first[3], block[quad][3];
        UNROLL for (int m = 0; m < M; m++) {
            first[m] = corrected ? v_load(xb[m]) : v_zero();
            xb[m] += corrected * LANES;
        }
        if (grouped) {
            UNROLL for (int r = 0; r < R; r++) UNROLL for (int m = 0; m < M; m++) block[r][m] = first[m];
            tile_block(vectors, R, M, weights, xb, block);
            UNROLL for (int r = 0; r < R; r++) UNROLL for (int m = 0; m < M; m++) sum[r][m] = v_fma(v_load(scales + r * LANES), block[r][m], sum[r][m]);
        } else {
            if (corrected) {
                UNROLL for (int r = 0; r < R; r++) UNROLL for (int m = 0; m < M; m++) sum[r][m] = v_add(sum[r][m], first[m]);
            }
            tile_block(vectors, R, M, weights, xb, sum);
        }
        UNROLL for (int m = 0; m < M; m++) xb[m] += vectors * LANES;
        weights += vectors * quad * LANES;
        scales += quad * LANES;
    }
    if (!chunk->end) {
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int r = 0; r < R; r++) v_store(totals + (m * quad + r) * LANES, sum[r][m]);
    }
}

// A quad times M rows of activations; where its sums end, rows of them are scaled and written.
INLINE void tile_quad(const int vectors, const int corrected, const int grouped, const int M, const tile_chunk *chunk, const float *weights,
                      const float *scales, const float *const *x, float *totals, const float *factor, int rows, float *const *y, int at) {
    vf sum[quad][3];
#ifdef LANES_PORTABLE
    for (int r = 0; r < rows; r++) {
        for (int m = 0; m < M; m++) {
            vf one[quad][3];
            tile_step(vectors, corrected, grouped, 1, 1, chunk, weights + r * LANES, scales + r * LANES, x + m, totals + (m * quad + r) * LANES, one);
            sum[r][m] = one[0][0];
        }
    }
    for (int r = rows; r < quad; r++) {
        for (int m = 0; m < M; m++) sum[r][m] = v_zero();
    }
#else
    tile_step(vectors, corrected, grouped, quad, M, chunk, weights, scales, x, totals, sum);
#endif
    if (!chunk->end) return;
    UNROLL for (int m = 0; m < M; m++) {
        v4 s = v_sum4(sum[0][m], sum[1][m], sum[2][m], sum[3][m]);
        if (rows == quad) {
            v4_store(y[m] + at, factor ? v4_scaled(s, factor) : s);
        } else {
            float each[quad];
            v4_store(each, s);
            for (int r = 0; r < rows; r++) y[m][at + r] = factor ? each[r] * factor[r] : each[r];
        }
    }
}

// All quads of a tile times all rows of activations, by threes and at the end by twos.
INLINE void tile_quads(const int vectors, const int corrected, const int grouped, const tile_chunk *chunk, tile_memory *t, const float *factor, int rows,
                       int n, const float *const *x, float *const *y, int at) {
    for (int m = 0, M; m < n; m += M) {
        M = n - m > 4 || n - m == 3 ? 3 : n - m >= 2 ? 2 : 1;
        for (int r = 0; r < rows; r += quad) {
            const int left = rows - r < quad ? rows - r : quad;
            const float *weights = t->weights + r * chunk->blocks * vectors * LANES, *scales = t->scales + r * chunk->blocks * LANES;
            const float *f = factor ? factor + r : NULL;
            float *totals = t->totals + (r / quad * product_batch + m) * quad * LANES;
            switch (M) {
            case 3: tile_quad(vectors, corrected, grouped, 3, chunk, weights, scales, x + m, totals, f, left, y + m, at + r); break;
            case 2: tile_quad(vectors, corrected, grouped, 2, chunk, weights, scales, x + m, totals, f, left, y + m, at + r); break;
            default: tile_quad(vectors, corrected, grouped, 1, chunk, weights, scales, x + m, totals, f, left, y + m, at + r);
            }
        }
    }
}

#define TILE_ARGUMENTS const tile_chunk *chunk, tile_memory *t, const float *factor, int rows, int n, const float *const *x, float *const *y, int at
static void tile_plain(TILE_ARGUMENTS) { tile_quads(8, 0, 0, chunk, t, factor, rows, n, x, y, at); }
static void tile_nibbles(TILE_ARGUMENTS) { tile_quads(8, 1, 0, chunk, t, factor, rows, n, x, y, at); }
static void tile_crumbs(TILE_ARGUMENTS) { tile_quads(16, 1, 0, chunk, t, factor, rows, n, x, y, at); }
static void tile_grouped(TILE_ARGUMENTS) { tile_quads(8, 1, 1, chunk, t, factor, rows, n, x, y, at); }
static void tile_fp8(TILE_ARGUMENTS) { tile_quads(128 / LANES, 0, 1, chunk, t, factor, rows, n, x, y, at); }

static void tile_any(int format, TILE_ARGUMENTS) {
    switch (format) {
    case format_int4_row: tile_nibbles(chunk, t, factor, rows, n, x, y, at); return;
    case format_int2_row: tile_crumbs(chunk, t, factor, rows, n, x, y, at); return;
    case format_int4_group:
    case format_int3_g64: tile_grouped(chunk, t, factor, rows, n, x, y, at); return;
    case format_fp8_b128: tile_fp8(chunk, t, factor, rows, n, x, y, at); return;
    default: tile_plain(chunk, t, factor, rows, n, x, y, at);
    }
}

static void tiles(const cpu_weight *w, int row0, int row1, int n, const float *const *x, float *const *y, tile_memory *t) {
    const int format = w->format, bc = block_columns(format), all = (w->columns + bc - 1) / bc;
    const int most = all < chunk_columns / bc ? all : chunk_columns / bc; // blocks of a chunk
    const int fit = tile_floats / (quad * most * bc), tile_rows = quad * (fit < tile_most ? fit : tile_most);
    for (int row = row0; row < row1; row += tile_rows) {
        const int rows = row1 - row < tile_rows ? row1 - row : tile_rows;
        for (int b = 0; b < all; b += most) {
            const int blocks = all - b < most ? all - b : most;
            const tile_chunk chunk = {blocks, b * panel_block(format), b == 0, b + blocks == all};
            for (int r = 0; r < rows; r++) {
                const int at = (r / quad * quad * blocks) * bc + r % quad * LANES, scales = (r / quad * quad * blocks + r % quad) * LANES;
                tile_fill_any(w, row + r, b, blocks, t->weights + at, t->scales + scales);
            }
            tile_any(format, &chunk, t, has_row_scale(format) ? w->scales + row : NULL, rows, n, x, y, row - row0);
        }
    }
}

#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#ifdef LANES_SHORT
enum { whole_scratch = LARGER(sizeof(short_tile), byte_scratch) };
#else
enum { whole_scratch = byte_scratch };
#endif
enum { product_scratch = LARGER(sizeof(tile_memory), whole_scratch) / sizeof(float) };

// The beginnings of a stretch's first rows and their scales, which no rows before them have fetched.
static void fetch_first(const cpu_weight *w, int row0, int row1) {
    const size_t rows = (size_t)(row1 - row0 < step_most ? row1 - row0 : step_most), stride = cpu_row_bytes(w);
    const uint8_t *first = (const uint8_t *)w->data + (size_t)row0 * stride;
    if (byte_fits(w) && byte_scale_step(w)) fetch_lines((const uint8_t *)row_scales(w, row0), rows * (size_t)scale_count(w) * sizeof(float), 0);
    const size_t begin = stride < fetch_near / step_most ? stride : fetch_near / step_most;
    for (size_t r = 0; r < rows; r++) fetch_lines(first + r * stride, begin, 0);
}

static void product(const cpu_weight *w, int row0, int row1, int n, const float *const *x, float *const *y, float *scratch) {
    if (n <= direct_most) fetch_first(w, row0, row1);
    if (byte_fits(w)) {
        byte_product(w, row0, row1, n, x, y, scratch);
        return;
    }
#ifdef LANES_SHORT
    if (short_fits(w)) {
        short_product(w, row0, row1, n, x, y, (short_tile *)(void *)scratch);
        return;
    }
#endif
    if (n > direct_most) {
        tiles(w, row0, row1, n, x, y, (tile_memory *)(void *)scratch);
    } else {
        direct(w, row0, row1, n, x, y);
    }
}
