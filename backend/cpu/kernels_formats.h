// Part of kernels_body.h: the formats of weights as blocks, and their scales.

// ---- formats: blocks of a row, and how a block becomes vectors ----

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

// A block of fp8 is as long as its scales reach.
INLINE int block_vectors(int format) { return format == format_int2_row ? 16 : format == format_fp8_b128 ? 128 / LANES : 8; }
INLINE int block_columns(int format) { return block_vectors(format) * LANES; }
INLINE int has_correction(int format) {
    return format == format_int4_row || format == format_int4_group || format == format_int3_g64 || format == format_int2_row;
}
// Formats whose scales change along a row: their blocks are summed unscaled, then the sums with the scales. The others' rows are
// summed whole, and scaled at the end if at all.
INLINE int is_grouped(int format) { return format == format_int4_group || format == format_int3_g64 || format == format_fp8_b128; }
INLINE int has_row_scale(int format) { return format == format_int8_row || format == format_int4_row || format == format_int2_row; }
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
    case format_fp8_b128: return 128;
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
#ifdef LANES_FP8_PAIRS
    case format_fp8_b128: return v_half_from_fp8(raw + k / 2 * (2 * LANES), k % 2);
#else
    case format_fp8_b128: return v_from_fp8(raw + k * LANES);
#endif
    case format_int2_row: return vi_float(k < 15 ? vi_and(word, vi_set(3u << (2 * (k & 15)))) : vi_shr(word, 30));
    default: return vi_float(k < 7 ? vi_and(word, vi_set(15u << (4 * (k & 7)))) : vi_shr(word, 28));
    }
}

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
    if (!is_grouped(w->format)) return scale_row;
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
