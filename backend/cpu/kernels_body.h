// The kernels, in terms of the lanes that one of the lanes_*.h has defined. Included once in every variant's file.
#include <string.h>

#include "kernels.h"

#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(undefined_behavior_sanitizer)
#define SANITIZED
#endif
#endif
#if defined(LANES_PORTABLE) || defined(SANITIZED) || defined(__SANITIZE_ADDRESS__)
// Loops left to the compiler: everything unrolled takes it minutes here, and gains nothing.
#define INLINE static inline
#define UNROLL
#else
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")
#endif

// ---- formats: blocks of a row, and how a block becomes vectors ----

enum {
    chunk_columns = 256, // columns of a tile of unpacked weights
    tile_rows = 16,      // rows of it: 16 KiB, half of a first-level cache
    direct_most = 8,     // up to so many rows of activations the weights are unpacked in registers, beyond into a tile
};

// How the scales of a block's lanes are found.
enum {
    scale_row,     // one for the row
    scale_block,   // one a block
    scale_wide,    // one for several blocks
    scale_spread2, // 2, 4, 8 a block
    scale_spread4,
    scale_spread8,
    scale_any, // groups that do not divide a block, nor the other way round
};

INLINE int block_vectors(int format) { return format == format_int2_row ? 16 : 8; }
INLINE int block_columns(int format) { return block_vectors(format) * LANES; }
INLINE int has_correction(int format) {
    return format == format_int4_row || format == format_int4_group || format == format_int3_g64 || format == format_int2_row;
}
INLINE int is_plain(int format) { return !has_correction(format) && format != format_fp8_b128; }
INLINE int panel_block(int format) { return (block_vectors(format) + has_correction(format)) * LANES; }
INLINE int block_bytes(int format) {
    switch (format) {
    case format_f32: return 32 * LANES;
    case format_bf16:
    case format_f16: return 16 * LANES;
    case format_int3_g64: return 3 * LANES;
    case format_int4_row:
    case format_int4_group:
    case format_int2_row: return 4 * LANES;
    default: return 8 * LANES;
    }
}

INLINE vi block_word(int format, const uint8_t *raw) {
    if (format != format_int3_g64) return vi_load(raw);
    // Spread the 2-bit fields and the high bits to 4-bit fields, and move the offset from 4 to 8.
    vi low = vi_int3_low(raw), high = vi_int3_high(raw);
    low = vi_and(vi_or(low, vi_shl(low, 8)), vi_set(0x00FF00FF));
    low = vi_and(vi_or(low, vi_shl(low, 4)), vi_set(0x0F0F0F0F));
    low = vi_and(vi_or(low, vi_shl(low, 2)), vi_set(0x33333333));
    high = vi_and(vi_or(high, vi_shl(high, 12)), vi_set(0x000F000F));
    high = vi_and(vi_or(high, vi_shl(high, 6)), vi_set(0x03030303));
    high = vi_and(vi_or(high, vi_shl(high, 3)), vi_set(0x11111111));
    return vi_add(vi_or(low, vi_shl(high, 2)), vi_set(0x44444444));
}

// Vector k of a block, as the panel's vector k pairs with it: fields of words keep the power of two of their place.
INLINE vf block_vector(int format, const uint8_t *raw, vi word, int k) {
    switch (format) {
    case format_f32: return v_load((const float *)(const void *)raw + k * LANES);
    case format_bf16: return v_from_bf16((const uint16_t *)(const void *)raw + k * LANES);
    case format_f16: return v_from_f16((const uint16_t *)(const void *)raw + k * LANES);
    case format_int8_row: return v_from_i8((const int8_t *)raw + k * LANES);
    case format_fp8_b128: return v_from_fp8(raw + k * LANES);
    case format_int2_row: return vi_float(k < 15 ? vi_and(word, vi_set(3u << (2 * (k & 15)))) : vi_shr(word, 30));
    default: return vi_float(k < 7 ? vi_and(word, vi_set(15u << (4 * (k & 7)))) : vi_shr(word, 28));
    }
}
INLINE int has_word(int format) { return has_correction(format); }

static int scale_group(const cpu_weight *w) {
    switch (w->format) {
    case format_int4_group: return w->group;
    case format_int3_g64: return 64;
    case format_fp8_b128: return 128;
    default: return w->columns;
    }
}
static int scale_count(const cpu_weight *w) {
    int g = scale_group(w);
    return (w->columns + g - 1) / g;
}
static const float *row_scales(const cpu_weight *w, int row) {
    if (!w->scales) return NULL;
    return w->scales + (size_t)(w->format == format_fp8_b128 ? row / 128 : row) * (size_t)scale_count(w);
}
static int scale_kind(const cpu_weight *w) {
    int bc = block_columns(w->format), g = scale_group(w);
    if (w->format != format_int4_group && w->format != format_int3_g64 && w->format != format_fp8_b128) return scale_row;
    if (g == bc) return scale_block;
    if (g % bc == 0) return scale_wide;
    if (g * 2 == bc) return scale_spread2;
    if (g * 4 == bc) return scale_spread4;
    if (g * 8 == bc) return scale_spread8;
    return scale_any;
}

// What v_from_fp8 leaves out.
INLINE float scale_unit(int format) { return format == format_fp8_b128 ? 256.0f : 1.0f; }

// The scales of block b lane by lane, for any grouping; lanes beyond the row's end get its last scale.
static void scale_lanes(const cpu_weight *w, const float *s, int b, float *lanes) {
    int bc = block_columns(w->format), per_lane = bc / LANES, g = scale_group(w), last = scale_count(w) - 1;
    for (int j = 0; j < LANES; j++) {
        // whole layouts put neighbours in neighbouring lanes, but their groups are never narrower than a block
        int i = (b * bc + (has_correction(w->format) ? j * per_lane : 0)) / g;
        lanes[j] = s[i < last ? i : last] * scale_unit(w->format);
    }
}

INLINE vf block_scale(int format, int kind, const cpu_weight *w, const float *s, int wide, int b) {
    switch (kind) {
    case scale_row: return v_set(s[0]);
    case scale_block: return v_set(s[b] * scale_unit(format));
    case scale_wide: return v_set(s[b / wide] * scale_unit(format));
    case scale_spread2: return v_spread(s + b * 2, 2);
    case scale_spread4: return v_spread(s + b * 4, 4);
#if LANES == 16
    case scale_spread8: return v_spread(s + b * 8, 8);
#endif
    default: {
        float lanes[LANES];
        scale_lanes(w, s, b, lanes);
        return v_load(lanes);
    }
    }
}

static vf block_scale_any(int format, int kind, const cpu_weight *w, const float *s, int wide, int b) { return block_scale(format, kind, w, s, wide, b); }

// ---- panels ----

static size_t panel_floats(int layout, int columns) {
    size_t c = (size_t)columns;
    switch (layout) {
    case layout_nibbles: return (c + 8 * LANES - 1) / (8 * LANES) * (9 * LANES);
    case layout_crumbs: return (c + 16 * LANES - 1) / (16 * LANES) * (17 * LANES);
    default: return (c + 8 * LANES - 1) / (8 * LANES) * (8 * LANES);
    }
}

INLINE void prepare_fields(int vectors, int bits, float offset, const float *x, int columns, float *panel) {
    for (int c = 0; c < columns; c += vectors * LANES, panel += (vectors + 1) * LANES) {
        for (int j = 0; j < LANES; j++) {
            float sum = 0;
            for (int k = 0; k < vectors; k++) {
                int i = c + j * vectors + k;
                float v = i < columns ? x[i] : 0;
                sum += v;
                panel[(1 + k) * LANES + j] = k == vectors - 1 ? v : v / (float)(1u << (bits * k));
            }
            panel[j] = -offset * sum;
        }
    }
}

static void prepare(int layout, const float *x, int columns, float *panel) {
    switch (layout) {
    case layout_nibbles: prepare_fields(8, 4, 8, x, columns, panel); break;
    case layout_crumbs: prepare_fields(16, 2, 2, x, columns, panel); break;
    default:
        memcpy(panel, x, (size_t)columns * sizeof *x);
        memset(panel + columns, 0, (panel_floats(layout, columns) - (size_t)columns) * sizeof *x);
    }
}

// The end of a row, completed with zeros to a block; zeros of the panel meet them.
static const uint8_t *padded(uint8_t *rest, const uint8_t *raw, size_t bytes, size_t block) {
    memset(rest, 0, block);
    memcpy(rest, raw, bytes);
    return rest;
}

// How far ahead of itself a step of rows fetches: the next step's rows where they are near, for the hardware's own
// guessing restarts at every short row, else some lines on.
INLINE size_t fetch_ahead(int R, size_t stride) { return (size_t)R * stride <= 8192 ? (size_t)R * stride : 1024; }

// ---- few rows: weights are unpacked in registers ----

INLINE void direct_plain(const int format, const int R, const int M, const cpu_weight *w, int row, const float *const *x, float *const *y, int at) {
    enum { most_r = 8, most_m = 4 };
    const int bc = block_columns(format), bb = block_bytes(format);
    const size_t stride = cpu_row_bytes(w), ahead = fetch_ahead(R, stride);
    const uint8_t *p = (const uint8_t *)w->data + (size_t)row * stride;
    const uint8_t *raw[most_r];
    uint8_t rest[most_r][32 * LANES];
    vf acc[most_r][most_m];
    UNROLL for (int r = 0; r < R; r++) raw[r] = p + (size_t)r * stride;
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int m = 0; m < M; m++) acc[r][m] = v_zero();
    const int full = w->columns / bc, all = (w->columns + bc - 1) / bc;
    for (int b = 0; b < all; b++) {
        if (b == full) {
            for (int r = 0; r < R; r++) raw[r] = padded(rest[r], raw[r], stride - (size_t)full * (size_t)bb, (size_t)bb);
        }
        UNROLL for (int r = 0; r < R; r++) {
            UNROLL for (int line = 0; line < bb; line += 64) __builtin_prefetch(raw[r] + ahead + line);
        }
        UNROLL for (int k = 0; k < 8; k++) {
            vf xv[most_m];
            UNROLL for (int m = 0; m < M; m++) xv[m] = v_load(x[m] + (b * 8 + k) * LANES);
            UNROLL for (int r = 0; r < R; r++) {
                vf f = block_vector(format, raw[r], vi_set(0), k);
                UNROLL for (int m = 0; m < M; m++) acc[r][m] = v_fma(f, xv[m], acc[r][m]);
            }
        }
        UNROLL for (int r = 0; r < R; r++) raw[r] += bb;
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int m = 0; m < M; m++) {
        y[m][at + r] = format == format_int8_row ? v_sum(acc[r][m]) * w->scales[row + r] : v_sum(acc[r][m]);
    }
}

// One block of R rows: sums of unscaled products, then total += scale·sum.
INLINE void direct_block(const int format, const int R, const int M, const uint8_t *const *raw, const vf *scale, const float *const *x,
                         vf total[4][4]) {
    vi word[4];
    vf d[4][4];
    UNROLL for (int r = 0; r < R; r++) {
        word[r] = has_word(format) ? block_word(format, raw[r]) : vi_set(0);
        UNROLL for (int m = 0; m < M; m++) d[r][m] = has_correction(format) ? v_load(x[m]) : v_zero();
    }
    UNROLL for (int k = 0; k < block_vectors(format); k++) {
        UNROLL for (int r = 0; r < R; r++) {
            vf f = block_vector(format, raw[r], word[r], k);
            UNROLL for (int m = 0; m < M; m++) d[r][m] = v_fma(f, v_load(x[m] + (k + has_correction(format)) * LANES), d[r][m]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int m = 0; m < M; m++) total[r][m] = v_fma(scale[r], d[r][m], total[r][m]);
}

INLINE void direct_blocked(const int format, const int kind, const int R, const int M, const cpu_weight *w, int row, const float *const *x,
                           float *const *y, int at) {
    const int bc = block_columns(format), bb = block_bytes(format), pb = panel_block(format);
    const size_t stride = cpu_row_bytes(w), ahead = fetch_ahead(R, stride);
    const uint8_t *raw[4];
    const float *s[4], *xb[4];
    vf total[4][4], scale[4];
    UNROLL for (int r = 0; r < R; r++) {
        raw[r] = (const uint8_t *)w->data + (size_t)(row + r) * stride;
        s[r] = row_scales(w, row + r);
        UNROLL for (int m = 0; m < M; m++) total[r][m] = v_zero();
    }
    UNROLL for (int m = 0; m < M; m++) xb[m] = x[m];
    const int wide = scale_group(w) / bc;
    uint8_t rest[4][8 * LANES];
    const int full = w->columns / bc, all = (w->columns + bc - 1) / bc;
    for (int b = 0; b < all; b++) {
        if (b < full) {
            UNROLL for (int r = 0; r < R; r++) scale[r] = block_scale(format, kind, w, s[r], wide, b);
        } else {
            for (int r = 0; r < R; r++) {
                float lanes[LANES];
                raw[r] = padded(rest[r], raw[r], stride - (size_t)full * (size_t)bb, (size_t)bb);
                scale_lanes(w, s[r], b, lanes);
                scale[r] = v_load(lanes);
            }
        }
        UNROLL for (int r = 0; r < R; r++) __builtin_prefetch(raw[r] + ahead);
        direct_block(format, R, M, raw, scale, xb, total);
        UNROLL for (int r = 0; r < R; r++) raw[r] += bb;
        UNROLL for (int m = 0; m < M; m++) xb[m] += pb;
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int m = 0; m < M; m++) y[m][at + r] = v_sum(total[r][m]);
}

#define STEP(R, M)                                                                          \
    for (; row + R <= row1; row += R) {                                                     \
        if (is_plain(format)) {                                                             \
            direct_plain(format, R, M, w, row, x, y, row - row0);                           \
        } else {                                                                            \
            direct_blocked(format, kind, R, M, w, row, x, y, row - row0);                   \
        }                                                                                   \
    }

// n is 1, 2 or 4; rows of the weight that do not fill a step go one by one.
INLINE void direct_rows(const int format, const int kind, const cpu_weight *w, int row0, int row1, int n, const float *const *x, float *const *y) {
    int row = row0;
#ifndef LANES_PORTABLE
    if (n == 4) {
        if (is_plain(format)) STEP(2, 4) else STEP(1, 4)
    } else if (n == 2) {
        if (is_plain(format)) STEP(4, 2) else STEP(2, 2)
    } else {
        if (is_plain(format)) STEP(8, 1) else STEP(4, 1)
    }
#endif
    for (int done = row; n > 0; n--, x++, y++) {
        row = done;
        STEP(1, 1)
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
#if LANES == 8
DIRECT(direct_fp8, format_fp8_b128, scale_wide)
DIRECT(direct_int3, format_int3_g64, scale_block)
#else
DIRECT(direct_fp8, format_fp8_b128, scale_block)
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

// ---- many rows: weights are unpacked into a tile that all rows use ----

typedef struct {
    float weights[tile_rows * chunk_columns];
    float scales[tile_rows * (chunk_columns / (8 * LANES)) * LANES];
    float totals[tile_rows * product_batch * LANES];
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
        vi word = has_word(format) ? block_word(format, raw) : vi_set(0);
        UNROLL for (int k = 0; k < vectors; k++) v_store(weights + k * LANES, block_vector(format, raw, word, k));
        weights += vectors * LANES;
        if (!is_plain(format)) {
            if (((size_t)b + 1) * (size_t)block_columns(format) <= (size_t)w->columns) {
                v_store(scales, block_scale_any(format, kind, w, s, wide, b));
            } else {
                scale_lanes(w, s, b, scales);
            }
            scales += LANES;
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

// R rows of the tile times M rows of activations, continuing the totals: the same sums in the same order as direct.
INLINE void tile_plain(const int R, const int M, const float *weights, const float *const *x, int vectors, float *totals) {
    vf acc[4][3];
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int m = 0; m < M; m++) acc[r][m] = v_load(totals + (r * product_batch + m) * LANES);
    for (int k = 0; k < vectors; k++) {
        vf xv[3];
        UNROLL for (int m = 0; m < M; m++) xv[m] = v_load(x[m] + k * LANES);
        UNROLL for (int r = 0; r < R; r++) {
            vf f = v_load(weights + r * chunk_columns + k * LANES);
            UNROLL for (int m = 0; m < M; m++) acc[r][m] = v_fma(f, xv[m], acc[r][m]);
        }
    }
    UNROLL for (int r = 0; r < R; r++) UNROLL for (int m = 0; m < M; m++) v_store(totals + (r * product_batch + m) * LANES, acc[r][m]);
}

INLINE void tile_blocked(const int vectors, const int corrected, const int R, const int M, const float *weights, const float *scales,
                         const float *const *x, int blocks, float *totals) {
    const int scale_stride = chunk_columns / (8 * LANES) * LANES;
    for (int b = 0; b < blocks; b++) {
        const float *wb = weights + b * vectors * LANES;
        const int xb = b * (vectors + corrected) * LANES;
        vf d[4][3];
        UNROLL for (int r = 0; r < R; r++) UNROLL for (int m = 0; m < M; m++) d[r][m] = corrected ? v_load(x[m] + xb) : v_zero();
        UNROLL for (int k = 0; k < vectors; k++) {
            vf xv[3];
            UNROLL for (int m = 0; m < M; m++) xv[m] = v_load(x[m] + xb + (k + corrected) * LANES);
            UNROLL for (int r = 0; r < R; r++) {
                vf f = v_load(wb + r * chunk_columns + k * LANES);
                UNROLL for (int m = 0; m < M; m++) d[r][m] = v_fma(f, xv[m], d[r][m]);
            }
        }
        UNROLL for (int r = 0; r < R; r++) {
            vf s = v_load(scales + r * scale_stride + b * LANES);
            UNROLL for (int m = 0; m < M; m++) {
                float *t = totals + (r * product_batch + m) * LANES;
                v_store(t, v_fma(s, d[r][m], v_load(t)));
            }
        }
    }
}

#ifdef LANES_PORTABLE
enum { tile_r = 1, tile_m = 1 };
#else
enum { tile_r = 4, tile_m = 3 };
#endif
// Rows of activations by threes, then one by one; rows of the tile by fours, then one by one.
#define TILES(call)                                                                    \
    int m = 0;                                                                         \
    for (; m + tile_m <= n; m += tile_m) {                                             \
        const float *xm[tile_m];                                                       \
        int r = 0;                                                                     \
        for (int i = 0; i < tile_m; i++) xm[i] = x[m + i] + x_offset;                  \
        for (; r + tile_r <= rows; r += tile_r) call(tile_r, tile_m, 0);                  \
        for (; r < rows; r++) {                                                        \
            for (int i = 0; i < tile_m; i++) call(1, 1, i);                            \
        }                                                                              \
    }                                                                                  \
    for (; m < n; m++) {                                                               \
        const float *xm[1] = {x[m] + x_offset};                                        \
        int r = 0;                                                                     \
        for (; r + tile_r <= rows; r += tile_r) call(tile_r, 1, 0);                       \
        for (; r < rows; r++) call(1, 1, 0);                                              \
    }
#define CALL_PLAIN(R, M, i)                                                            \
    tile_plain(R, M, t->weights + r * chunk_columns, xm + (i), blocks * 8, t->totals + (r * product_batch + m + (i)) * LANES)
#define CALL_BLOCKED(R, M, i)                                                                                                                    \
    tile_blocked(vectors, corrected, R, M, t->weights + r * chunk_columns, t->scales + r * (chunk_columns / (8 * LANES)) * LANES, xm + (i), blocks, \
                 t->totals + (r * product_batch + m + (i)) * LANES)

static void tiles_plain(tile_memory *t, int rows, int n, const float *const *x, size_t x_offset, int blocks) { TILES(CALL_PLAIN) }
INLINE void tiles_blocked(const int vectors, const int corrected, tile_memory *t, int rows, int n, const float *const *x, size_t x_offset,
                          int blocks) {
    TILES(CALL_BLOCKED)
}
static void tiles_nibbles(tile_memory *t, int rows, int n, const float *const *x, size_t x_offset, int blocks) {
    tiles_blocked(8, 1, t, rows, n, x, x_offset, blocks);
}
static void tiles_crumbs(tile_memory *t, int rows, int n, const float *const *x, size_t x_offset, int blocks) {
    tiles_blocked(16, 1, t, rows, n, x, x_offset, blocks);
}
static void tiles_fp8(tile_memory *t, int rows, int n, const float *const *x, size_t x_offset, int blocks) {
    tiles_blocked(8, 0, t, rows, n, x, x_offset, blocks);
}

static void tile_product(const cpu_weight *w, int row0, int row1, int n, const float *const *x, float *const *y, int at, tile_memory *t) {
    const int format = w->format, bc = block_columns(format), chunk = chunk_columns / bc;
    const int all = (w->columns + bc - 1) / bc, rows = row1 - row0;
    memset(t->totals, 0, (size_t)rows * product_batch * LANES * sizeof(float));
    for (int b = 0; b < all; b += chunk) {
        int blocks = all - b < chunk ? all - b : chunk;
        for (int r = 0; r < rows; r++) {
            tile_fill_any(w, row0 + r, b, blocks, t->weights + r * chunk_columns, t->scales + r * (chunk_columns / (8 * LANES)) * LANES);
        }
        size_t offset = (size_t)b * (size_t)panel_block(format);
        if (is_plain(format)) {
            tiles_plain(t, rows, n, x, offset, blocks);
        } else if (format == format_fp8_b128) {
            tiles_fp8(t, rows, n, x, offset, blocks);
        } else if (format == format_int2_row) {
            tiles_crumbs(t, rows, n, x, offset, blocks);
        } else {
            tiles_nibbles(t, rows, n, x, offset, blocks);
        }
    }
    for (int r = 0; r < rows; r++) {
        for (int m = 0; m < n; m++) {
            float sum = v_sum(v_load(t->totals + (r * product_batch + m) * LANES));
            y[m][at + r] = format == format_int8_row ? sum * w->scales[row0 + r] : sum;
        }
    }
}

static void product(const cpu_weight *w, int row0, int row1, int n, const float *const *x, float *const *y, float *scratch) {
    if (n > direct_most) {
        for (int row = row0; row < row1; row += tile_rows) {
            tile_product(w, row, row1 < row + tile_rows ? row1 : row + tile_rows, n, x, y, row - row0, (tile_memory *)(void *)scratch);
        }
        return;
    }
    for (int i = 0, step; i < n; i += step) {
        step = n - i >= 4 ? 4 : n - i >= 2 ? 2 : 1;
        direct(w, row0, row1, step, x + i, y + i);
    }
}

// ---- rows as numbers, and products with the transpose ----

static void unpack(const cpu_weight *w, int row, float *out) {
    const int n = w->columns;
    const uint8_t *p = (const uint8_t *)w->data + (size_t)row * cpu_row_bytes(w);
    const float *s = row_scales(w, row);
    int c = 0;
    switch (w->format) {
    case format_f32: memcpy(out, p, (size_t)n * sizeof *out); break;
    case format_bf16:
    case format_f16: {
        const uint16_t *h = (const uint16_t *)(const void *)p;
        uint16_t rest[LANES] = {0};
        float numbers[LANES];
        for (; c + LANES <= n; c += LANES) v_store(out + c, w->format == format_bf16 ? v_from_bf16(h + c) : v_from_f16(h + c));
        memcpy(rest, h + c, (size_t)(n - c) * sizeof *rest);
        v_store(numbers, w->format == format_bf16 ? v_from_bf16(rest) : v_from_f16(rest));
        memcpy(out + c, numbers, (size_t)(n - c) * sizeof *out);
        break;
    }
    case format_int8_row:
        for (; c + LANES <= n; c += LANES) v_store(out + c, v_mul(v_from_i8((const int8_t *)p + c), v_set(s[0])));
        for (; c < n; c++) out[c] = (float)(int8_t)p[c] * s[0];
        break;
    case format_fp8_b128: {
        uint8_t rest[LANES] = {0};
        float numbers[LANES];
        for (; c + LANES <= n; c += LANES) v_store(out + c, v_mul(v_from_fp8(p + c), v_set(s[c / 128] * 256)));
        if (c < n) {
            memcpy(rest, p + c, (size_t)(n - c));
            v_store(numbers, v_mul(v_from_fp8(rest), v_set(s[c / 128] * 256)));
            memcpy(out + c, numbers, (size_t)(n - c) * sizeof *out);
        }
        break;
    }
    case format_int2_row:
        for (; c < n; c++) out[c] = (float)((p[c >> 2] >> (2 * (c & 3)) & 3) - 2) * s[0];
        break;
    case format_int3_g64:
        for (; c < n; c++) {
            const uint8_t *g = p + c / 64 * 24;
            int k = c % 64, low = g[k >> 2] >> (2 * (k & 3)) & 3, high = g[16 + (k >> 3)] >> (k & 7) & 1;
            out[c] = (float)((low | high << 2) - 4) * s[c / 64];
        }
        break;
    default:
        for (int g = scale_group(w), i = 0; c < n; i++) {
            float scale = s[i];
            for (int end = n - c < g ? n : c + g; c < end; c++) out[c] = (float)((p[c >> 1] >> (4 * (c & 1)) & 15) - 8) * scale;
        }
    }
}

enum { transposed_rows = 8 };

// out += sum over r < R, in order, of q[r]·rows[r]
INLINE void transposed_step(const int R, const float *q, const float *rows, int columns, float *out) {
    vf qv[transposed_rows];
    UNROLL for (int r = 0; r < R; r++) qv[r] = v_set(q[r]);
    int c = 0;
    for (; c + LANES <= columns; c += LANES) {
        vf acc = v_load(out + c);
        UNROLL for (int r = 0; r < R; r++) acc = v_fma(qv[r], v_load(rows + r * columns + c), acc);
        v_store(out + c, acc);
    }
    if (c < columns) {
        float a[LANES] = {0}, b[LANES] = {0};
        size_t bytes = (size_t)(columns - c) * sizeof *out;
        memcpy(a, out + c, bytes);
        for (int r = 0; r < R; r++) {
            memcpy(b, rows + r * columns + c, bytes);
            v_store(a, v_fma(qv[r], v_load(b), v_load(a)));
        }
        memcpy(out + c, a, bytes);
    }
}

static void transposed(const cpu_weight *w, int row0, int row1, int n, const float *const *q, float *const *out, float *scratch) {
    for (int i = 0; i < n; i++) memset(out[i], 0, (size_t)w->columns * sizeof(float));
    for (int row = row0; row < row1; row += transposed_rows) {
        int rows = row1 - row < transposed_rows ? row1 - row : transposed_rows;
        for (int r = 0; r < rows; r++) unpack(w, row + r, scratch + r * w->columns);
        for (int i = 0; i < n; i++) {
            if (rows == transposed_rows) {
                transposed_step(transposed_rows, q[i] + (row - row0), scratch, w->columns, out[i]);
            } else {
                for (int r = 0; r < rows; r++) transposed_step(1, q[i] + (row - row0) + r, scratch + r * w->columns, w->columns, out[i]);
            }
        }
    }
}

// ---- elementwise ----

// e^x to 2 units in the last place; below e^-87 it stays there instead of becoming subnormal. NaN stays NaN.
INLINE vf v_exp(vf x) {
    x = v_min(v_set(88.3762626647949f), v_max(v_set(-87.3365478515625f), x));
    vf n = v_round(v_mul(x, v_set(1.44269504088896341f)));
    vf r = v_fma(n, v_set(-0.693359375f), x);
    r = v_fma(n, v_set(2.12194440e-4f), r);
    vf p = v_set(1.9875691500e-4f);
    p = v_fma(p, r, v_set(1.3981999507e-3f));
    p = v_fma(p, r, v_set(8.3334519073e-3f));
    p = v_fma(p, r, v_set(4.1665795894e-2f));
    p = v_fma(p, r, v_set(1.6666665459e-1f));
    p = v_fma(p, r, v_set(5.0000001201e-1f));
    p = v_fma(v_mul(p, r), r, v_add(r, v_set(1)));
    return v_mul(p, v_power2(n));
}

static void normalise(const float *x, const float *weight, float epsilon, int n, float *y) {
    vf acc = v_zero();
    int c = 0;
    for (; c + LANES <= n; c += LANES) acc = v_fma(v_load(x + c), v_load(x + c), acc);
    float sum = v_sum(acc);
    for (; c < n; c++) sum += x[c] * x[c];
    float factor = 1.0f / __builtin_sqrtf(sum / (float)n + epsilon);
    for (c = 0; c + LANES <= n; c += LANES) v_store(y + c, v_mul(v_mul(v_load(x + c), v_set(factor)), v_load(weight + c)));
    for (; c < n; c++) y[c] = x[c] * factor * weight[c];
}

INLINE vf v_swiglu(vf gate, vf up) { return v_mul(v_div(gate, v_add(v_set(1), v_exp(v_sub(v_zero(), gate)))), up); }

static void silu_multiply(float *gate, const float *up, int n) {
    int c = 0;
    for (; c + LANES <= n; c += LANES) v_store(gate + c, v_swiglu(v_load(gate + c), v_load(up + c)));
    if (c < n) {
        float a[LANES] = {0}, b[LANES] = {0};
        memcpy(a, gate + c, (size_t)(n - c) * sizeof *a);
        memcpy(b, up + c, (size_t)(n - c) * sizeof *b);
        v_store(a, v_swiglu(v_load(a), v_load(b)));
        memcpy(gate + c, a, (size_t)(n - c) * sizeof *a);
    }
}

static void add(float *x, const float *y, int n) {
    int c = 0;
    for (; c + LANES <= n; c += LANES) v_store(x + c, v_add(v_load(x + c), v_load(y + c)));
    for (; c < n; c++) x[c] += y[c];
}

static void scale(float *x, float factor, int n) {
    int c = 0;
    for (; c + LANES <= n; c += LANES) v_store(x + c, v_mul(v_load(x + c), v_set(factor)));
    for (; c < n; c++) x[c] *= factor;
}

static void combine(float *x, const float *gates, const float *outputs, size_t stride, int count, const float *shared, int n) {
    int c = 0;
    for (; c + LANES <= n; c += LANES) {
        vf acc = v_zero();
        for (int k = 0; k < count; k++) acc = v_fma(v_set(gates[k]), v_load(outputs + (size_t)k * stride + c), acc);
        v_store(x + c, v_add(v_load(x + c), v_add(acc, v_load(shared + c))));
    }
    for (; c < n; c++) {
        float acc = 0;
        for (int k = 0; k < count; k++) acc += gates[k] * outputs[(size_t)k * stride + (size_t)c];
        x[c] += acc + shared[c];
    }
}

// ---- attention ----

INLINE vf load_part(const float *p, int n) {
    if (n >= LANES) return v_load(p);
    float part[LANES] = {0};
    memcpy(part, p, (size_t)n * sizeof *p);
    return v_load(part);
}

// positions of a tile of dots: as many sums as keep the multipliers busy for one query; with four queries three are enough
enum { tile_t = 8 };

INLINE void dot_part(const int Q, const int T, const float *const *q, int q_offset, const float *const *k, int dim, vf acc[4][tile_t]) {
    int c = 0;
    for (; c + LANES <= dim; c += LANES) {
        vf kv[tile_t];
        UNROLL for (int t = 0; t < T; t++) kv[t] = v_load(k[t] + c);
        UNROLL for (int i = 0; i < Q; i++) {
            vf qv = v_load(q[i] + q_offset + c);
            UNROLL for (int t = 0; t < T; t++) acc[i][t] = v_fma(qv, kv[t], acc[i][t]);
        }
    }
    if (c < dim) {
        for (int t = 0; t < T; t++) {
            vf kv = load_part(k[t] + c, dim - c);
            for (int i = 0; i < Q; i++) acc[i][t] = v_fma(v_load(q[i] + q_offset + c), kv, acc[i][t]);
        }
    }
}

INLINE void dot_tile(const int Q, const int T, const float *const *q, const float *const *ka, int dim_a, const float *const *kb, int dim_b, float *out,
                     int stride) {
    vf acc[4][tile_t];
    UNROLL for (int i = 0; i < Q; i++) UNROLL for (int t = 0; t < T; t++) acc[i][t] = v_zero();
    dot_part(Q, T, q, 0, ka, dim_a, acc);
    if (dim_b) dot_part(Q, T, q, (dim_a + LANES - 1) / LANES * LANES, kb, dim_b, acc);
    UNROLL for (int i = 0; i < Q; i++) UNROLL for (int t = 0; t < T; t++) out[i * stride + t] = v_sum(acc[i][t]);
}

static void scores(const float *const *q, int n, const float *const *ka, int dim_a, const float *const *kb, int dim_b, int positions, float *out,
                   int stride) {
    int i = 0;
#ifndef LANES_PORTABLE
    for (; i + 4 <= n; i += 4) {
        int t = 0;
        for (; t + 3 <= positions; t += 3) dot_tile(4, 3, q + i, ka + t, dim_a, kb + t, dim_b, out + i * stride + t, stride);
        for (; t < positions; t++) dot_tile(4, 1, q + i, ka + t, dim_a, kb + t, dim_b, out + i * stride + t, stride);
    }
#endif
    for (; i < n; i++) {
        int t = 0;
#ifndef LANES_PORTABLE
        for (; t + tile_t <= positions; t += tile_t) dot_tile(1, tile_t, q + i, ka + t, dim_a, kb + t, dim_b, out + i * stride + t, stride);
#endif
        for (; t < positions; t++) dot_tile(1, 1, q + i, ka + t, dim_a, kb + t, dim_b, out + i * stride + t, stride);
    }
}

static void index_scores(const float *const *q, int n, const float *weight, float factor, const float *const *k, int dim, int positions, float *out) {
    float dots[4 * attention_tile];
    for (int t = 0; t < positions; t++) out[t] = 0;
    for (int i = 0; i < n; i += 4) {
        int m = n - i < 4 ? n - i : 4;
        scores(q + i, m, k, dim, k, 0, positions, dots, attention_tile);
        for (int j = 0; j < m; j++) {
            for (int t = 0; t < positions; t++) {
                float d = dots[j * attention_tile + t] * factor;
                // not fmaxf: NaN must stay NaN
                out[t] += weight[i + j] * (d < 0 ? 0 : d);
            }
        }
    }
}

static float softmax_step(float *s, int n, float *maximum, float *sum) {
    float m = *maximum;
    for (int t = 0; t < n; t++) m = s[t] > m ? s[t] : m;
    float padded[attention_tile + LANES];
    memcpy(padded, s, (size_t)n * sizeof *s);
    for (int t = n; t < n + LANES; t++) padded[t] = m;
    vf acc = v_zero();
    int t = 0;
    for (; t + LANES <= n; t += LANES) {
        vf e = v_exp(v_sub(v_load(padded + t), v_set(m)));
        v_store(s + t, e);
        acc = v_add(acc, e);
    }
    float total = v_sum(acc);
    if (t < n) {
        float e[LANES];
        v_store(e, v_exp(v_sub(v_load(padded + t), v_set(m))));
        for (int j = 0; t < n; t++, j++) {
            s[t] = e[j];
            total += e[j];
        }
    }
    float old[LANES];
    v_store(old, v_exp(v_set(*maximum - m)));
    *maximum = m;
    *sum = *sum * old[0] + total;
    return old[0];
}

INLINE void weigh_tile(const int Q, const int C, float *const *out, const float *factor, const float *p, int stride, const float *const *v, int c,
                       int positions) {
    vf acc[4][8];
    UNROLL for (int i = 0; i < Q; i++) UNROLL for (int j = 0; j < C; j++)
        acc[i][j] = v_mul(v_load(out[i] + c + j * LANES), v_set(factor[i]));
    for (int t = 0; t < positions; t++) {
        vf vv[8];
        UNROLL for (int j = 0; j < C; j++) vv[j] = v_load(v[t] + c + j * LANES);
        UNROLL for (int i = 0; i < Q; i++) {
            vf pv = v_set(p[i * stride + t]);
            UNROLL for (int j = 0; j < C; j++) acc[i][j] = v_fma(pv, vv[j], acc[i][j]);
        }
    }
    UNROLL for (int i = 0; i < Q; i++) UNROLL for (int j = 0; j < C; j++) v_store(out[i] + c + j * LANES, acc[i][j]);
}

INLINE void weigh_rows(const int Q, float *const *out, const float *factor, const float *p, int stride, const float *const *v, int dim, int positions) {
    int c = 0;
#ifndef LANES_PORTABLE
    if (Q == 1) {
        for (; c + 8 * LANES <= dim; c += 8 * LANES) weigh_tile(Q, 8, out, factor, p, stride, v, c, positions);
    }
#endif
    for (; c + 2 * LANES <= dim; c += 2 * LANES) weigh_tile(Q, 2, out, factor, p, stride, v, c, positions);
    for (; c + LANES <= dim; c += LANES) weigh_tile(Q, 1, out, factor, p, stride, v, c, positions);
    if (c < dim) {
        size_t bytes = (size_t)(dim - c) * sizeof(float);
        for (int i = 0; i < Q; i++) {
            float a[LANES] = {0};
            memcpy(a, out[i] + c, bytes);
            vf acc = v_mul(v_load(a), v_set(factor[i]));
            for (int t = 0; t < positions; t++) acc = v_fma(v_set(p[i * stride + t]), load_part(v[t] + c, dim - c), acc);
            v_store(a, acc);
            memcpy(out[i] + c, a, bytes);
        }
    }
}

static void weigh(float *const *out, const float *factor, int n, const float *p, int stride, const float *const *v, int dim, int positions) {
    int i = 0;
#ifndef LANES_PORTABLE
    for (; i + 4 <= n; i += 4) weigh_rows(4, out + i, factor + i, p + i * stride, stride, v, dim, positions);
#endif
    for (; i < n; i++) weigh_rows(1, out + i, factor + i, p + i * stride, stride, v, dim, positions);
}

static uint64_t read_memory(const void *memory, size_t bytes) {
    vi acc[8];
    UNROLL for (int i = 0; i < 8; i++) acc[i] = vi_set(0);
    const char *p = memory;
    for (size_t o = 0; o + 32 * LANES <= bytes; o += 32 * LANES) {
        UNROLL for (int i = 0; i < 8; i++) acc[i] = vi_xor(acc[i], vi_load(p + o + (size_t)i * 4 * LANES));
    }
    UNROLL for (int i = 1; i < 8; i++) acc[0] = vi_xor(acc[0], acc[i]);
    return vi_fold(acc[0]);
}

#define KERNELS(label)                                                                                                                      \
    {                                                                                                                                       \
        .name = label, .lanes = LANES, .product_scratch = sizeof(tile_memory) / sizeof(float), .transposed_scratch = transposed_rows,       \
        .panel_floats = panel_floats, .prepare = prepare, .product = product, .transposed = transposed, .unpack = unpack,                   \
        .normalise = normalise, .silu_multiply = silu_multiply, .add = add, .combine = combine, .scores = scores,                           \
        .index_scores = index_scores, .softmax_step = softmax_step, .weigh = weigh, .scale = scale, .read = read_memory,                    \
    }
