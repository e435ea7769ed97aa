// What every kernel shares: function constants, addresses, reading weights, reductions.
//
// A weight row is read in units of eight columns, one unit per lane and step, so that 32 lanes read consecutive bytes. raw8 gives
// the stored numbers without unpacking shifts where it can: a nibble is masked in place and comes out multiplied by 16^k;
// the activations are divided by the same power of two beforehand (prepare8), which is exact and is paid once for all
// weight rows of a SIMD-group. The format's zero point (8 for four bits) is subtracted as zero · Σx.
//
// WHOLE tells that columns are a multiple of 8 and that weights and activations are 16-byte aligned; otherwise weights are
// read byte by byte. Both paths add in the same order.
#include <metal_stdlib>
using namespace metal;

constant uint FORMAT [[function_constant(0)]];
constant uint GROUP_UNITS [[function_constant(1)]]; // units that share a scale (int4-grouped)
constant bool WHOLE [[function_constant(2)]];
constant uint FORMAT_B [[function_constant(3)]]; // the second matrix of fused kernels: up
constant uint GROUP_UNITS_B [[function_constant(4)]];
constant bool WHOLE_B [[function_constant(5)]];
constant uint XROWS [[function_constant(6)]]; // activation rows per SIMD-group: 1, 2 or 4
constant uint DIM_A [[function_constant(7)]];
constant uint DIM_B [[function_constant(8)]];
constant bool SHARED_VALUES [[function_constant(9)]];
constant uint HEADS_PER_SIMD [[function_constant(10)]]; // attend; in attend_tiles heads per tile

inline device const float *floats_at(ulong address) { return reinterpret_cast<device const float *>(address); }
inline device float *mutable_floats_at(ulong address) { return reinterpret_cast<device float *>(address); }
inline device const uint *uints_at(ulong address) { return reinterpret_cast<device const uint *>(address); }
inline device uint *mutable_uints_at(ulong address) { return reinterpret_cast<device uint *>(address); }
inline device const uchar *bytes_at(ulong address) { return reinterpret_cast<device const uchar *>(address); }
inline device const RowInfo *rows_at(ulong address) { return reinterpret_cast<device const RowInfo *>(address); }
inline device const ExpertItem *items_at(ulong address) { return reinterpret_cast<device const ExpertItem *>(address); }
inline device const RowTile *row_tiles_at(ulong address) { return reinterpret_cast<device const RowTile *>(address); }
inline device const Pair *pairs_at(ulong address) { return reinterpret_cast<device const Pair *>(address); }

// e4m3 has the fields of a half with the exponent bias 7 instead of 15; 0x7F and 0xFF are NaN.
inline float from_fp8(uint bits) {
    if ((bits & 0x7Fu) == 0x7Fu) return as_type<float>(0x7FC00000u);
    return float(as_type<half>(ushort(((bits & 0x80u) << 8) | ((bits & 0x7Fu) << 7)))) * 256.0f;
}
inline float from_bf16(uint bits) { return as_type<float>(bits << 16); }
inline float from_f16(uint bits) { return float(as_type<half>(ushort(bits))); }

inline float zero_of(uint format) {
    if (format == FORMAT_INT4_ROW || format == FORMAT_INT4_GROUP) return 8.0f;
    if (format == FORMAT_INT3_GROUP64) return 4.0f;
    if (format == FORMAT_INT2_ROW) return 2.0f;
    return 0.0f;
}
inline bool scale_per_row(uint format) {
    return format == FORMAT_INT8_ROW || format == FORMAT_INT4_ROW || format == FORMAT_INT2_ROW;
}
inline bool scale_per_group(uint format) {
    return format == FORMAT_INT4_GROUP || format == FORMAT_INT3_GROUP64 || format == FORMAT_FP8_BLOCK128;
}

// The stored number in one column, read byte by byte.
inline float raw_at(uint format, device const uchar *row, uint column) {
    if (format == FORMAT_F32) return reinterpret_cast<device const float *>(row)[column];
    if (format == FORMAT_BF16) return from_bf16(uint(row[2 * column]) | uint(row[2 * column + 1]) << 8);
    if (format == FORMAT_F16) return from_f16(uint(row[2 * column]) | uint(row[2 * column + 1]) << 8);
    if (format == FORMAT_INT8_ROW) return float(int(uint(row[column]) << 24) >> 24);
    if (format == FORMAT_FP8_BLOCK128) return from_fp8(uint(row[column]));
    if (format == FORMAT_INT2_ROW) return float((uint(row[column / 4]) >> (2 * (column & 3))) & 3u);
    if (format == FORMAT_INT3_GROUP64) {
        device const uchar *group = row + (column / 64) * 24;
        const uint k = column & 63;
        return float(((uint(group[k >> 2]) >> (2 * (k & 3))) & 3u) | ((uint(group[16 + (k >> 3)]) >> (k & 7)) & 1u) << 2);
    }
    return float((uint(row[column / 2]) >> (4 * (column & 1))) & 15u);
}

// The numbers of one unit; in the whole path those of four and two bits still carry the power of two of their place.
inline void raw8(uint format, bool whole, device const uchar *row, uint unit, uint columns, thread float *q) {
    if (!whole) {
        for (uint k = 0; k < 8; k++) q[k] = unit * 8 + k < columns ? raw_at(format, row, unit * 8 + k) : 0.0f;
        return;
    }
    if (format == FORMAT_INT4_GROUP || format == FORMAT_INT4_ROW) {
        const uint v = *reinterpret_cast<device const uint *>(row + unit * 4);
        for (uint k = 0; k < 8; k++) q[k] = float(v & (15u << (4 * k)));
    } else if (format == FORMAT_INT8_ROW) {
        const uint2 v = *reinterpret_cast<device const uint2 *>(row + unit * 8);
        for (uint k = 0; k < 4; k++) {
            q[k] = float(int(v.x << (24 - 8 * k)) >> 24);
            q[4 + k] = float(int(v.y << (24 - 8 * k)) >> 24);
        }
    } else if (format == FORMAT_FP8_BLOCK128) {
        const uint2 v = *reinterpret_cast<device const uint2 *>(row + unit * 8);
        for (uint k = 0; k < 4; k++) {
            q[k] = from_fp8((v.x >> (8 * k)) & 255u);
            q[4 + k] = from_fp8((v.y >> (8 * k)) & 255u);
        }
    } else if (format == FORMAT_INT3_GROUP64) {
        device const uchar *group = row + (unit / 8) * 24;
        const uint low = uint(*reinterpret_cast<device const ushort *>(group + (unit & 7) * 2));
        const uint high = uint(group[16 + (unit & 7)]);
        for (uint k = 0; k < 8; k++) q[k] = float(((low >> (2 * k)) & 3u) | ((high >> k) & 1u) << 2);
    } else if (format == FORMAT_INT2_ROW) {
        const uint v = uint(*reinterpret_cast<device const ushort *>(row + unit * 2));
        for (uint k = 0; k < 8; k++) q[k] = float(v & (3u << (2 * k)));
    } else if (format == FORMAT_F32) {
        const float4 a = *reinterpret_cast<device const float4 *>(row + unit * 32);
        const float4 b = *reinterpret_cast<device const float4 *>(row + unit * 32 + 16);
        q[0] = a.x, q[1] = a.y, q[2] = a.z, q[3] = a.w;
        q[4] = b.x, q[5] = b.y, q[6] = b.z, q[7] = b.w;
    } else {
        const uint4 v = *reinterpret_cast<device const uint4 *>(row + unit * 16);
        const bool brain = format == FORMAT_BF16;
        q[0] = brain ? from_bf16(v.x & 0xFFFFu) : from_f16(v.x & 0xFFFFu);
        q[1] = brain ? from_bf16(v.x >> 16) : from_f16(v.x >> 16);
        q[2] = brain ? from_bf16(v.y & 0xFFFFu) : from_f16(v.y & 0xFFFFu);
        q[3] = brain ? from_bf16(v.y >> 16) : from_f16(v.y >> 16);
        q[4] = brain ? from_bf16(v.z & 0xFFFFu) : from_f16(v.z & 0xFFFFu);
        q[5] = brain ? from_bf16(v.z >> 16) : from_f16(v.z >> 16);
        q[6] = brain ? from_bf16(v.w & 0xFFFFu) : from_f16(v.w & 0xFFFFu);
        q[7] = brain ? from_bf16(v.w >> 16) : from_f16(v.w >> 16);
    }
}

// The power of two that raw8 leaves in place k of a unit, inverted.
inline float place_of(uint format, bool whole, uint k) {
    if (!whole) return 1.0f;
    if (format == FORMAT_INT4_ROW || format == FORMAT_INT4_GROUP) return 1.0f / float(1u << (4 * k));
    if (format == FORMAT_INT2_ROW) return 1.0f / float(1u << (2 * k));
    return 1.0f;
}

// The scale of a unit of a row, for formats whose scales change along a row.
inline float group_scale(uint format, uint group_units, device const float *scales, uint row_groups, uint row, uint unit) {
    if (format == FORMAT_INT4_GROUP) return scales[row * row_groups + unit / group_units];
    if (format == FORMAT_INT3_GROUP64) return scales[row * row_groups + unit / 8];
    return scales[(row / 128) * row_groups + unit / 16];
}

// Eight activations.
inline void load8(bool whole, device const float *x, uint unit, uint columns, thread float *v) {
    if (whole) {
        const float4 a = *reinterpret_cast<device const float4 *>(x + unit * 8);
        const float4 b = *reinterpret_cast<device const float4 *>(x + unit * 8 + 4);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
        v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
    } else {
        for (uint k = 0; k < 8; k++) v[k] = unit * 8 + k < columns ? x[unit * 8 + k] : 0.0f;
    }
}

// Turns activations into what raw8's numbers are multiplied with; returns zero · Σx.
inline float prepare8(uint format, bool whole, thread float *v) {
    const float zero = zero_of(format);
    float sum = 0.0f;
    if (zero != 0.0f) {
        for (uint k = 0; k < 8; k++) sum += v[k];
    }
    for (uint k = 0; k < 8; k++) v[k] *= place_of(format, whole, k);
    return zero * sum;
}

// The weights of one unit as numbers, scales included.
inline void weights8(uint format, uint group_units, bool whole, thread const Matrix &w, uint row, uint unit, thread float *q) {
    raw8(format, whole, bytes_at(w.data) + ulong(row) * w.row_bytes, unit, w.columns, q);
    float scale = 1.0f;
    if (scale_per_row(format)) scale = floats_at(w.scales)[row];
    if (scale_per_group(format)) scale = group_scale(format, group_units, floats_at(w.scales), w.row_groups, row, unit);
    const float zero = zero_of(format);
    for (uint k = 0; k < 8; k++) {
        const bool inside = whole || unit * 8 + k < w.columns;
        q[k] = inside ? (q[k] * place_of(format, whole, k) - zero) * scale : 0.0f;
    }
}

// One unit of XROWS activation rows, ready to be multiplied with weights of a format.
struct Activations {
    float v[MAX_XROWS * 8];
    float zeros[MAX_XROWS];
};

inline void load_activations(uint format, bool whole, uint columns, device const float *x, thread const uint *offsets, uint unit,
                             thread Activations &a) {
    for (uint t = 0; t < XROWS; t++) {
        load8(whole, x + offsets[t], unit, columns, a.v + t * 8);
        a.zeros[t] = prepare8(format, whole, a.v + t * 8);
    }
}

// sums[r · MAX_XROWS + t] += one unit of weight row first+r times activation row t. Rows past the last are read as the last
// and not used.
template <uint ROWS>
inline void multiply_unit(uint format, uint group_units, bool whole, thread const Matrix &w, uint first, uint last, uint unit,
                          thread const Activations &a, thread float *sums) {
    for (uint r = 0; r < ROWS; r++) {
        const uint row = min(first + r, last);
        float q[8];
        raw8(format, whole, bytes_at(w.data) + ulong(row) * w.row_bytes, unit, w.columns, q);
        const float scale =
            scale_per_group(format) ? group_scale(format, group_units, floats_at(w.scales), w.row_groups, row, unit) : 1.0f;
        for (uint t = 0; t < XROWS; t++) {
            float dot = -a.zeros[t];
            for (uint k = 0; k < 8; k++) dot = fma(q[k], a.v[t * 8 + k], dot);
            sums[r * MAX_XROWS + t] = fma(dot, scale, sums[r * MAX_XROWS + t]);
        }
    }
}

// This lane's share of the products of ROWS weight rows from `first` on with XROWS activation rows.
template <uint ROWS>
inline void multiply_rows(thread const Matrix &w, uint first, uint last, uint lane, device const float *x, thread const uint *offsets,
                          thread float *sums) {
    const uint units = (w.columns + 7) / 8;
    for (uint i = 0; i < ROWS * MAX_XROWS; i++) sums[i] = 0.0f;
    uint unit = lane;
    for (; unit + LANES < units; unit += 2 * LANES) { // two units at a time, for more reads under way
        Activations a;
        Activations b;
        load_activations(FORMAT, WHOLE, w.columns, x, offsets, unit, a);
        load_activations(FORMAT, WHOLE, w.columns, x, offsets, unit + LANES, b);
        multiply_unit<ROWS>(FORMAT, GROUP_UNITS, WHOLE, w, first, last, unit, a, sums);
        multiply_unit<ROWS>(FORMAT, GROUP_UNITS, WHOLE, w, first, last, unit + LANES, b, sums);
    }
    if (unit < units) {
        Activations a;
        load_activations(FORMAT, WHOLE, w.columns, x, offsets, unit, a);
        multiply_unit<ROWS>(FORMAT, GROUP_UNITS, WHOLE, w, first, last, unit, a, sums);
    }
}

// One unit of two weights that multiply the same activations.
template <uint ROWS>
inline void multiply_two_units(thread const Matrix &w, thread const Matrix &w_b, uint first, uint last, uint unit, device const float *x,
                               thread const uint *offsets, thread float *sums, thread float *sums_b) {
    Activations a;
    load_activations(FORMAT, WHOLE, w.columns, x, offsets, unit, a);
    multiply_unit<ROWS>(FORMAT, GROUP_UNITS, WHOLE, w, first, last, unit, a, sums);
    if (FORMAT_B != FORMAT || WHOLE_B != WHOLE) load_activations(FORMAT_B, WHOLE_B, w.columns, x, offsets, unit, a);
    multiply_unit<ROWS>(FORMAT_B, GROUP_UNITS_B, WHOLE_B, w_b, first, last, unit, a, sums_b);
}

// multiply_rows for two weights that multiply the same activations.
template <uint ROWS>
inline void multiply_two(thread const Matrix &w, thread const Matrix &w_b, uint first, uint last, uint lane, device const float *x,
                         thread const uint *offsets, thread float *sums, thread float *sums_b) {
    const uint units = (w.columns + 7) / 8;
    for (uint i = 0; i < ROWS * MAX_XROWS; i++) sums[i] = sums_b[i] = 0.0f;
    uint unit = lane;
    for (; unit + LANES < units; unit += 2 * LANES) {
        multiply_two_units<ROWS>(w, w_b, first, last, unit, x, offsets, sums, sums_b);
        multiply_two_units<ROWS>(w, w_b, first, last, unit + LANES, x, offsets, sums, sums_b);
    }
    if (unit < units) multiply_two_units<ROWS>(w, w_b, first, last, unit, x, offsets, sums, sums_b);
}

// The product of a row, from its lanes' shares.
inline float finish_row(uint format, thread const Matrix &w, uint row, float share) {
    const float sum = simd_sum(share);
    return scale_per_row(format) ? sum * floats_at(w.scales)[row] : sum;
}

// exp of a non-positive number only: no overflow for any argument, and ±0 for ∓∞.
inline float silu(float x) {
    const float e = exp(-abs(x));
    return x * (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}
inline float sigmoid(float x) {
    const float e = exp(-abs(x));
    return (x >= 0.0f ? 1.0f : e) / (1.0f + e);
}

// A number's rank as an integer: NaN lowest, then −∞ … +∞; −0 equals +0.
inline uint order_key(float v) {
    if (isnan(v)) return 0;
    const uint bits = as_type<uint>(v == 0.0f ? 0.0f : v);
    return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

// The sum over a threadgroup, the same in every thread; partial needs one float per SIMD-group. Ends with a barrier.
inline float threadgroup_sum(float v, threadgroup float *partial, uint simdgroups, uint simdgroup, uint lane) {
    v = simd_sum(v);
    if (lane == 0) partial[simdgroup] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float sum = 0.0f;
    for (uint i = 0; i < simdgroups; i++) sum += partial[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return sum;
}
