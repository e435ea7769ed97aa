// What every kernel shares: function constants, addresses, reading weights, reductions.
//
// A weight row is read in units of eight columns, or two at a time (a pair: 8 bytes of int4, 16 of int8), one a lane and step, so
// that 32 lanes read consecutive bytes. Unpacking shifts little: a nibble is masked in place and comes out multiplied by 16^k;
// the activations are divided by the same power of two beforehand (load_activations), which is exact and is paid once for
// all weight rows of a SIMD-group.
//
// WHOLE tells that columns are a multiple of PAIR_COLUMNS and that weights and activations are 16-byte aligned; otherwise weights
// are read byte by byte. Both paths add in the same order.
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

inline bool scale_per_row(uint format) {
    return format == FORMAT_INT8_ROW || format == FORMAT_INT4_ROW || format == FORMAT_INT2_ROW;
}
inline bool scale_per_group(uint format) {
    return format == FORMAT_INT4_GROUP || format == FORMAT_INT3_GROUP64 || format == FORMAT_FP8_BLOCK128;
}

// The number in one column before its scale, read byte by byte.
inline float raw_at(uint format, device const uchar *row, uint column) {
    if (format == FORMAT_F32) return reinterpret_cast<device const float *>(row)[column];
    if (format == FORMAT_BF16) return from_bf16(uint(row[2 * column]) | uint(row[2 * column + 1]) << 8);
    if (format == FORMAT_F16) return from_f16(uint(row[2 * column]) | uint(row[2 * column + 1]) << 8);
    if (format == FORMAT_INT8_ROW) return float(int(uint(row[column]) << 24) >> 24);
    if (format == FORMAT_FP8_BLOCK128) return from_fp8(uint(row[column]));
    if (format == FORMAT_INT2_ROW) return float((uint(row[column / 4]) >> (2 * (column & 3))) & 3u) - 2.0f;
    if (format == FORMAT_INT3_GROUP64) {
        device const uchar *group = row + (column / 64) * 24;
        const uint k = column & 63;
        return float(((uint(group[k >> 2]) >> (2 * (k & 3))) & 3u) | ((uint(group[16 + (k >> 3)]) >> (k & 7)) & 1u) << 2) - 4.0f;
    }
    return float((uint(row[column / 2]) >> (4 * (column & 1))) & 15u) - 8.0f;
}

// Words that a unit takes in registers.
inline uint unit_words(uint format) {
    if (format == FORMAT_F32) return 8;
    if (format == FORMAT_BF16 || format == FORMAT_F16) return 4;
    if (format == FORMAT_INT4_ROW || format == FORMAT_INT4_GROUP || format == FORMAT_INT2_ROW) return 1;
    return 2;
}

// Reads one unit: 2 to 32 bytes.
inline void load_unit(uint format, device const uchar *row, uint unit, thread uint *words) {
    if (format == FORMAT_INT4_GROUP || format == FORMAT_INT4_ROW) {
        words[0] = *reinterpret_cast<device const uint *>(row + unit * 4);
    } else if (format == FORMAT_INT8_ROW || format == FORMAT_FP8_BLOCK128) {
        const uint2 v = *reinterpret_cast<device const uint2 *>(row + unit * 8);
        words[0] = v.x, words[1] = v.y;
    } else if (format == FORMAT_INT3_GROUP64) {
        device const uchar *group = row + (unit / 8) * 24;
        words[0] = uint(*reinterpret_cast<device const ushort *>(group + (unit & 7) * 2));
        words[1] = uint(group[16 + (unit & 7)]);
    } else if (format == FORMAT_INT2_ROW) {
        words[0] = uint(*reinterpret_cast<device const ushort *>(row + unit * 2));
    } else {
        for (uint i = 0; i < unit_words(format) / 4; i++) {
            const uint4 v = *reinterpret_cast<device const uint4 *>(row + unit * unit_words(format) * 4 + i * 16);
            words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
        }
    }
}

// Reads two consecutive units, the first of which is even, with fewer and wider reads: 4 to 64 bytes.
inline void load_pair(uint format, device const uchar *row, uint pair, thread uint *words) {
    if (format == FORMAT_INT4_GROUP || format == FORMAT_INT4_ROW) {
        const uint2 v = *reinterpret_cast<device const uint2 *>(row + pair * 8);
        words[0] = v.x, words[1] = v.y;
    } else if (format == FORMAT_INT8_ROW || format == FORMAT_FP8_BLOCK128) {
        const uint4 v = *reinterpret_cast<device const uint4 *>(row + pair * 16);
        words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else if (format == FORMAT_INT3_GROUP64) {
        device const uchar *group = row + (pair / 4) * 24;
        const uint low = *reinterpret_cast<device const uint *>(group + (pair & 3) * 4);
        const uint high = uint(*reinterpret_cast<device const ushort *>(group + 16 + (pair & 3) * 2));
        words[0] = low, words[1] = high, words[2] = low >> 16, words[3] = high >> 8;
    } else if (format == FORMAT_INT2_ROW) {
        words[0] = *reinterpret_cast<device const uint *>(row + pair * 4);
        words[1] = words[0] >> 16;
    } else {
        load_unit(format, row, pair * 2, words);
        load_unit(format, row, pair * 2 + 1, words + unit_words(format));
    }
}

// A small number in the low bits of 2^23 as a float: subtracting what is there without it leaves the number exactly, and
// with it the zero point. A conversion would be the slower instruction.
inline float from_bits(uint bits, float zero) { return as_type<float>(0x4B000000u | bits) - (8388608.0f + zero); }

// The numbers of a unit; those of four and two bits still carry the power of two of their place.
inline void unpack_unit(uint format, thread const uint *words, thread float *q) {
    if (format == FORMAT_INT4_GROUP || format == FORMAT_INT4_ROW) {
        const uint high = words[0] >> 16;
        for (uint k = 0; k < 4; k++) {
            q[k] = from_bits(words[0] & (15u << (4 * k)), float(8u << (4 * k)));
            q[4 + k] = from_bits(high & (15u << (4 * k)), float(8u << (4 * k)));
        }
    } else if (format == FORMAT_INT8_ROW) {
        for (uint k = 0; k < 4; k++) {
            q[k] = from_bits(((words[0] ^ 0x80808080u) >> (8 * k)) & 255u, 128.0f);
            q[4 + k] = from_bits(((words[1] ^ 0x80808080u) >> (8 * k)) & 255u, 128.0f);
        }
    } else if (format == FORMAT_FP8_BLOCK128) {
        for (uint k = 0; k < 4; k++) {
            q[k] = from_fp8((words[0] >> (8 * k)) & 255u);
            q[4 + k] = from_fp8((words[1] >> (8 * k)) & 255u);
        }
    } else if (format == FORMAT_INT3_GROUP64) {
        for (uint k = 0; k < 8; k++) q[k] = from_bits(((words[0] >> (2 * k)) & 3u) | ((words[1] >> k) & 1u) << 2, 4.0f);
    } else if (format == FORMAT_INT2_ROW) {
        for (uint k = 0; k < 8; k++) q[k] = from_bits(words[0] & (3u << (2 * k)), float(2u << (2 * k)));
    } else if (format == FORMAT_F32) {
        for (uint k = 0; k < 8; k++) q[k] = as_type<float>(words[k]);
    } else {
        for (uint k = 0; k < 4; k++) {
            q[2 * k] = format == FORMAT_BF16 ? from_bf16(words[k] & 0xFFFFu) : from_f16(words[k] & 0xFFFFu);
            q[2 * k + 1] = format == FORMAT_BF16 ? from_bf16(words[k] >> 16) : from_f16(words[k] >> 16);
        }
    }
}

inline void raw8(uint format, bool whole, device const uchar *row, uint unit, uint columns, thread float *q) {
    if (whole) {
        uint words[8];
        load_unit(format, row, unit, words);
        unpack_unit(format, words, q);
    } else {
        for (uint k = 0; k < 8; k++) q[k] = unit * 8 + k < columns ? raw_at(format, row, unit * 8 + k) : 0.0f;
    }
}

// The power of two that raw8 leaves in place k of a unit, inverted.
inline float place_of(uint format, bool whole, uint k) {
    if (!whole) return 1.0f;
    if (format == FORMAT_INT4_ROW || format == FORMAT_INT4_GROUP) return 1.0f / float(1u << (4 * (k & 3)));
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

// The weights of one unit as numbers, scales included.
inline void weights8(uint format, uint group_units, bool whole, thread const Matrix &w, uint row, uint unit, thread float *q) {
    raw8(format, whole, bytes_at(w.data) + ulong(row) * w.row_bytes, unit, w.columns, q);
    float scale = 1.0f;
    if (scale_per_row(format)) scale = floats_at(w.scales)[row];
    if (scale_per_group(format)) scale = group_scale(format, group_units, floats_at(w.scales), w.row_groups, row, unit);
    for (uint k = 0; k < 8; k++) q[k] = q[k] * place_of(format, whole, k) * scale;
}

// One pair of units of XROWS activation rows, ready to be multiplied with weights of a format.
struct Activations {
    float v[MAX_XROWS * PAIR_COLUMNS];
};

inline void load_activations(uint format, bool whole, uint columns, device const float *x, thread const uint *offsets, uint pair,
                             thread Activations &a) {
    for (uint t = 0; t < XROWS; t++) {
        load8(whole, x + offsets[t], pair * 2, columns, a.v + t * PAIR_COLUMNS);
        load8(whole, x + offsets[t], pair * 2 + 1, columns, a.v + t * PAIR_COLUMNS + 8);
        for (uint k = 0; k < PAIR_COLUMNS; k++) a.v[t * PAIR_COLUMNS + k] *= place_of(format, whole, k & 7);
    }
}

// A pair of units of ROWS weight rows as it was read.
template <uint ROWS> struct Weights {
    uint words[ROWS * 2 * UNIT_MAX_WORDS];
    float scales[ROWS];
};

// Rows past the last are read as the last and not used. Unrolled, as the arrays belong in registers.
template <uint ROWS>
inline void load_weights(uint format, uint group_units, bool whole, thread const Matrix &w, uint first, uint last, uint pair,
                         thread Weights<ROWS> &v) {
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
        const uint row = min(first + r, last);
        if (whole) load_pair(format, bytes_at(w.data) + ulong(row) * w.row_bytes, pair, v.words + r * 2 * UNIT_MAX_WORDS);
        v.scales[r] =
            scale_per_group(format) ? group_scale(format, group_units, floats_at(w.scales), w.row_groups, row, pair * 2) : 1.0f;
    }
}

// sums[r · MAX_XROWS + t] += one pair of units of weight row first+r times activation row t.
template <uint ROWS>
inline void multiply_pair(uint format, bool whole, thread const Matrix &w, uint first, uint last, uint pair, thread const Weights<ROWS> &v,
                          thread const Activations &a, thread float *sums) {
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
        float q[PAIR_COLUMNS];
        if (whole) {
            unpack_unit(format, v.words + r * 2 * UNIT_MAX_WORDS, q);
            unpack_unit(format, v.words + r * 2 * UNIT_MAX_WORDS + unit_words(format), q + 8);
        } else {
            device const uchar *row = bytes_at(w.data) + ulong(min(first + r, last)) * w.row_bytes;
            raw8(format, false, row, pair * 2, w.columns, q);
            raw8(format, false, row, pair * 2 + 1, w.columns, q + 8);
        }
        for (uint t = 0; t < XROWS; t++) {
            float dot = 0.0f;
            for (uint k = 0; k < PAIR_COLUMNS; k++) dot = fma(q[k], a.v[t * PAIR_COLUMNS + k], dot);
            sums[r * MAX_XROWS + t] = fma(dot, v.scales[r], sums[r * MAX_XROWS + t]);
        }
    }
}

// This lane's share of the products of ROWS weight rows from `first` on with XROWS activation rows: pairs begin, begin+step …
template <uint ROWS>
inline void multiply_rows(thread const Matrix &w, uint first, uint last, uint begin, uint step, device const float *x,
                          thread const uint *offsets, thread float *sums) {
    const uint pairs = (w.columns + PAIR_COLUMNS - 1) / PAIR_COLUMNS;
    for (uint i = 0; i < ROWS * MAX_XROWS; i++) sums[i] = 0.0f;
    uint pair = begin;
    for (; XROWS == 1 && pair + step < pairs; pair += 2 * step) { // two at a time, for more reads under way
        Weights<ROWS> v;
        Weights<ROWS> next;
        load_weights<ROWS>(FORMAT, GROUP_UNITS, WHOLE, w, first, last, pair, v);
        load_weights<ROWS>(FORMAT, GROUP_UNITS, WHOLE, w, first, last, pair + step, next);
        Activations a;
        load_activations(FORMAT, WHOLE, w.columns, x, offsets, pair, a);
        multiply_pair<ROWS>(FORMAT, WHOLE, w, first, last, pair, v, a, sums);
        load_activations(FORMAT, WHOLE, w.columns, x, offsets, pair + step, a);
        multiply_pair<ROWS>(FORMAT, WHOLE, w, first, last, pair + step, next, a, sums);
    }
    for (; pair < pairs; pair += step) {
        Weights<ROWS> v;
        load_weights<ROWS>(FORMAT, GROUP_UNITS, WHOLE, w, first, last, pair, v);
        Activations a;
        load_activations(FORMAT, WHOLE, w.columns, x, offsets, pair, a);
        multiply_pair<ROWS>(FORMAT, WHOLE, w, first, last, pair, v, a, sums);
    }
}

// A pair of units of two weights that multiply the same activations.
template <uint ROWS>
inline void multiply_two_pairs(thread const Matrix &w, thread const Matrix &w_b, uint first, uint last, uint pair, thread const Weights<ROWS> &v,
                               thread const Weights<ROWS> &v_b, device const float *x, thread const uint *offsets, thread float *sums,
                               thread float *sums_b) {
    Activations a;
    load_activations(FORMAT, WHOLE, w.columns, x, offsets, pair, a);
    multiply_pair<ROWS>(FORMAT, WHOLE, w, first, last, pair, v, a, sums);
    if (FORMAT_B != FORMAT || WHOLE_B != WHOLE) load_activations(FORMAT_B, WHOLE_B, w.columns, x, offsets, pair, a);
    multiply_pair<ROWS>(FORMAT_B, WHOLE_B, w_b, first, last, pair, v_b, a, sums_b);
}

// multiply_rows for two weights that multiply the same activations.
template <uint ROWS>
inline void multiply_two(thread const Matrix &w, thread const Matrix &w_b, uint first, uint last, uint begin, uint step,
                         device const float *x, thread const uint *offsets, thread float *sums, thread float *sums_b) {
    const uint pairs = (w.columns + PAIR_COLUMNS - 1) / PAIR_COLUMNS;
    for (uint i = 0; i < ROWS * MAX_XROWS; i++) sums[i] = sums_b[i] = 0.0f;
    uint pair = begin;
    for (; few_bits(FORMAT) && few_bits(FORMAT_B) && XROWS == 1 && pair + step < pairs; pair += 2 * step) {
        Weights<ROWS> v;
        Weights<ROWS> v_b;
        Weights<ROWS> next;
        Weights<ROWS> next_b;
        load_weights<ROWS>(FORMAT, GROUP_UNITS, WHOLE, w, first, last, pair, v);
        load_weights<ROWS>(FORMAT, GROUP_UNITS, WHOLE, w, first, last, pair + step, next);
        load_weights<ROWS>(FORMAT_B, GROUP_UNITS_B, WHOLE_B, w_b, first, last, pair, v_b);
        load_weights<ROWS>(FORMAT_B, GROUP_UNITS_B, WHOLE_B, w_b, first, last, pair + step, next_b);
        multiply_two_pairs<ROWS>(w, w_b, first, last, pair, v, v_b, x, offsets, sums, sums_b);
        multiply_two_pairs<ROWS>(w, w_b, first, last, pair + step, next, next_b, x, offsets, sums, sums_b);
    }
    for (; pair < pairs; pair += step) {
        Weights<ROWS> v;
        Weights<ROWS> v_b;
        load_weights<ROWS>(FORMAT, GROUP_UNITS, WHOLE, w, first, last, pair, v);
        load_weights<ROWS>(FORMAT_B, GROUP_UNITS_B, WHOLE_B, w_b, first, last, pair, v_b);
        multiply_two_pairs<ROWS>(w, w_b, first, last, pair, v, v_b, x, offsets, sums, sums_b);
    }
}

// The product of row first+r, from its lanes' shares, in lane r; other lanes are left with a product that is not theirs.
template <uint ROWS>
inline float gather_rows(uint format, thread const Matrix &w, uint first, uint last, uint t, uint lane, thread const float *sums) {
    float mine = 0.0f;
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
        const float sum = simd_sum(sums[r * MAX_XROWS + t]);
        mine = lane == r ? sum : mine;
    }
    return scale_per_row(format) ? mine * floats_at(w.scales)[min(first + lane, last)] : mine;
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
