// What every kernel shares: function constants, addresses, reading weights, reductions.
//
// A weight row is read in units of eight columns, and several at a time: a span of two, or of four where the weights have few bits
// (16 bytes of int4 or int8), one a lane and step, so that 32 lanes read consecutive bytes. Unpacking shifts little: a nibble is masked
// where it is and becomes the mantissa of a suitable power of two (from_bits).
//
// WHOLE tells that columns are a multiple of span_columns and that weights and activations are 16-byte aligned; otherwise weights
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
constant bool SHARE_COLUMNS [[function_constant(11)]];  // matvec: the SIMD-groups of a threadgroup share the columns of the same rows
constant bool FEW [[function_constant(12)]];            // few threadgroups: expert_gate_up takes fewer rows (gate_rows), matvec more, and reads ahead (own_rows)

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

// Reads a span of consecutive units with few and wide reads: 4 to 64 bytes. Unit u lies in words + u · unit_words.
inline void load_span(uint format, uint units, device const uchar *row, uint span, thread uint *words) {
    if (few_bits(format) && units == 4) {
        if (format == FORMAT_INT3_GROUP64) {
            device const uchar *group = row + (span / 2) * 24;
            const uint2 low = *reinterpret_cast<device const uint2 *>(group + (span & 1) * 8);
            const uint high = *reinterpret_cast<device const uint *>(group + 16 + (span & 1) * 4);
            words[0] = low.x, words[2] = low.x >> 16, words[4] = low.y, words[6] = low.y >> 16;
            words[1] = high, words[3] = high >> 8, words[5] = high >> 16, words[7] = high >> 24;
        } else if (format == FORMAT_INT2_ROW) {
            const uint2 v = *reinterpret_cast<device const uint2 *>(row + span * 8);
            words[0] = v.x, words[1] = v.x >> 16, words[2] = v.y, words[3] = v.y >> 16;
        } else {
            const uint4 v = *reinterpret_cast<device const uint4 *>(row + span * 16);
            words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
        }
    } else if (format == FORMAT_INT4_GROUP || format == FORMAT_INT4_ROW) {
        const uint2 v = *reinterpret_cast<device const uint2 *>(row + span * 8);
        words[0] = v.x, words[1] = v.y;
    } else if (format == FORMAT_INT8_ROW || format == FORMAT_FP8_BLOCK128) {
        const uint4 v = *reinterpret_cast<device const uint4 *>(row + span * 16);
        words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else if (format == FORMAT_INT3_GROUP64) {
        device const uchar *group = row + (span / 4) * 24;
        const uint low = *reinterpret_cast<device const uint *>(group + (span & 3) * 4);
        const uint high = uint(*reinterpret_cast<device const ushort *>(group + 16 + (span & 3) * 2));
        words[0] = low, words[1] = high, words[2] = low >> 16, words[3] = high >> 8;
    } else if (format == FORMAT_INT2_ROW) {
        words[0] = *reinterpret_cast<device const uint *>(row + span * 4);
        words[1] = words[0] >> 16;
    } else {
        load_unit(format, row, span * 2, words);
        load_unit(format, row, span * 2 + 1, words + unit_words(format));
    }
}

// Bits at place `at` and above of a word as the small number they stand for: they become the mantissa of the power of two in which place
// `at` counts one, and subtracting that power and the zero point leaves the number exactly. A conversion would be the slower instruction.
inline float from_bits(uint bits, uint at, float zero) {
    return as_type<float>((150u - at) << 23 | bits) - (float(1u << (23 - at)) + zero);
}

// The numbers of a unit, before their scale.
inline void unpack_unit(uint format, thread const uint *words, thread float *q) {
    if (format == FORMAT_INT4_GROUP || format == FORMAT_INT4_ROW) {
        const uint high = words[0] >> 12; // a mantissa holds the lower five nibbles in place, and then the other three
        for (uint k = 0; k < 5; k++) q[k] = from_bits(words[0] & (15u << (4 * k)), 4 * k, 8.0f);
        for (uint k = 5; k < 8; k++) q[k] = from_bits(high & (15u << (4 * (k - 3))), 4 * (k - 3), 8.0f);
    } else if (format == FORMAT_INT8_ROW) {
        for (uint k = 0; k < 4; k++) {
            q[k] = from_bits(((words[0] ^ 0x80808080u) >> (8 * k)) & 255u, 0, 128.0f);
            q[4 + k] = from_bits(((words[1] ^ 0x80808080u) >> (8 * k)) & 255u, 0, 128.0f);
        }
    } else if (format == FORMAT_FP8_BLOCK128) {
        for (uint k = 0; k < 4; k++) {
            q[k] = from_fp8((words[0] >> (8 * k)) & 255u);
            q[4 + k] = from_fp8((words[1] >> (8 * k)) & 255u);
        }
    } else if (format == FORMAT_INT3_GROUP64) {
        for (uint k = 0; k < 8; k++) q[k] = from_bits(((words[0] >> (2 * k)) & 3u) | ((words[1] >> k) & 1u) << 2, 0, 4.0f);
    } else if (format == FORMAT_INT2_ROW) {
        for (uint k = 0; k < 8; k++) q[k] = from_bits(words[0] & (3u << (2 * k)), 2 * k, 2.0f);
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
    for (uint k = 0; k < 8; k++) q[k] *= scale;
}

// A span of ROWS weight rows as it was read.
template <uint ROWS> struct Weights {
    uint words[ROWS * SPAN_MAX_WORDS];
    float scales[ROWS];
};

// Rows past the last are read as the last and not used. Unrolled, as the arrays belong in registers.
template <uint ROWS>
inline void load_weights(uint format, uint group_units, uint units, bool whole, thread const Matrix &w, uint first, uint last, uint span,
                         thread Weights<ROWS> &v) {
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
        const uint row = min(first + r, last);
        if (whole) load_span(format, units, bytes_at(w.data) + ulong(row) * w.row_bytes, span, v.words + r * SPAN_MAX_WORDS);
        v.scales[r] =
            scale_per_group(format) ? group_scale(format, group_units, floats_at(w.scales), w.row_groups, row, span * units) : 1.0f;
    }
}

// Activations in threadgroup memory, STAGE_COLUMNS of them: of 32 spans all four units of one row, two of two rows, or one of four. What 32
// lanes read at once lies side by side, and so does what they write. (A lane's span begins 128 bytes after its neighbour's: read from
// memory, 32 lanes would touch 32 lines at a time.)
inline uint staged_at(uint span, uint part) { return part * LANES + ((span ^ part) & (LANES - 1)); }
inline uint staged_units() { return SPAN_MAX_UNITS / XROWS; }

// This thread's part of the activations staged next: one unit of one row, of the units first_unit … of the spans from first_span on.
inline void fetch_activations(bool whole, uint columns, device const float *x, thread const uint *offsets, uint first_span, uint first_unit,
                              uint thread_index, thread float *v) {
    const uint span = thread_index / SPAN_MAX_UNITS;
    const uint part = thread_index % SPAN_MAX_UNITS;
    const uint unit = (first_span + span) * SPAN_MAX_UNITS + first_unit + part % staged_units();
    uint offset = offsets[0];
    for (uint t = 1; t < XROWS; t++) offset = part / staged_units() == t ? offsets[t] : offset;
    if (unit * UNIT_COLUMNS < columns) {
        load8(whole, x + offset, unit, columns, v);
    } else {
        for (uint k = 0; k < UNIT_COLUMNS; k++) v[k] = 0.0f;
    }
}

inline void stage_activations(thread const float *v, uint thread_index, threadgroup float *staged) {
    const uint span = thread_index / SPAN_MAX_UNITS;
    const uint part = thread_index % SPAN_MAX_UNITS;
    threadgroup float4 *to = reinterpret_cast<threadgroup float4 *>(staged);
    float4 low;
    float4 high;
    low.x = v[0], low.y = v[1], low.z = v[2], low.w = v[3];
    high.x = v[4], high.y = v[5], high.z = v[6], high.w = v[7];
    to[staged_at(span, 2 * part)] = low;
    to[staged_at(span, 2 * part + 1)] = high;
}

// dots[r · MAX_XROWS + t] += unit u of a span of weight row first+r times activation row t. STAGED: the activations come from `staged`.
template <uint ROWS, bool STAGED>
inline void multiply_unit(uint format, uint units, bool whole, thread const Matrix &w, uint first, uint last, uint span, uint u, thread const Weights<ROWS> &v,
                          device const float *x, thread const uint *offsets, threadgroup const float *staged, thread float *dots) {
    float a[UNIT_COLUMNS * MAX_XROWS];
#pragma unroll
    for (uint t = 0; t < MAX_XROWS; t++) {
        if (t >= XROWS) continue;
        if (STAGED) {
            const uint part = 2 * (t * staged_units() + u % staged_units());
            threadgroup const float4 *from = reinterpret_cast<threadgroup const float4 *>(staged);
            const float4 low = from[staged_at(span, part)];
            const float4 high = from[staged_at(span, part + 1)];
            thread float *to = a + t * UNIT_COLUMNS;
            to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w, to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
        } else {
            load8(whole, x + offsets[t], span * units + u, w.columns, a + t * UNIT_COLUMNS);
        }
    }
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
        float q[UNIT_COLUMNS];
        if (whole) {
            unpack_unit(format, v.words + r * SPAN_MAX_WORDS + u * unit_words(format), q);
        } else {
            raw8(format, false, bytes_at(w.data) + ulong(min(first + r, last)) * w.row_bytes, span * units + u, w.columns, q);
        }
#pragma unroll
        for (uint t = 0; t < MAX_XROWS; t++) {
            if (t >= XROWS) continue;
#pragma unroll
            for (uint k = 0; k < UNIT_COLUMNS; k++) {
                dots[r * MAX_XROWS + t] = fma(q[k], a[t * UNIT_COLUMNS + k], dots[r * MAX_XROWS + t]);
            }
        }
    }
}

template <uint ROWS> inline void clear(thread float *numbers) {
#pragma unroll
    for (uint i = 0; i < ROWS * MAX_XROWS; i++) numbers[i] = 0.0f;
}

// sums += the products of a span, times its scales.
template <uint ROWS> inline void add_span(thread const Weights<ROWS> &v, thread const float *dots, thread float *sums) {
#pragma unroll
    for (uint r = 0; r < ROWS; r++) {
#pragma unroll
        for (uint t = 0; t < MAX_XROWS; t++) {
            if (t < XROWS) sums[r * MAX_XROWS + t] = fma(dots[r * MAX_XROWS + t], v.scales[r], sums[r * MAX_XROWS + t]);
        }
    }
}

// A span with activations from memory.
template <uint ROWS>
inline void multiply_span(uint format, uint units, bool whole, thread const Matrix &w, uint first, uint last, uint span, thread const Weights<ROWS> &v,
                          device const float *x, thread const uint *offsets, threadgroup const float *staged, thread float *sums) {
    float dots[ROWS * MAX_XROWS];
    clear<ROWS>(dots);
#pragma unroll
    for (uint u = 0; u < SPAN_MAX_UNITS; u++) {
        if (u < units) multiply_unit<ROWS, false>(format, units, whole, w, first, last, span, u, v, x, offsets, staged, dots);
    }
    add_span<ROWS>(v, dots, sums);
}

// This lane's share of the products of ROWS weight rows from `first` on with XROWS activation rows, and where TWO with the same rows of a
// second weight. STAGED: every thread of the threadgroup takes part, for spans of four units, and a SIMD-group reads all of them, with AHEAD
// (one weight, one activation row) the next before it multiplies; otherwise spans begin, begin+step … of the lane. Which way, and how many rows, does not
// change the order of a row's additions.
template <uint ROWS, bool TWO, bool STAGED, bool AHEAD>
inline void multiply_rows(thread const Matrix &w, thread const Matrix &w_b, uint units, uint first, uint last, uint begin, uint step, uint thread_index,
                          device const float *x, thread const uint *offsets, threadgroup float *staged, thread float *sums, thread float *sums_b) {
    const uint spans = (w.columns + units * UNIT_COLUMNS - 1) / (units * UNIT_COLUMNS);
    clear<ROWS>(sums);
    if (TWO) clear<ROWS>(sums_b);
    if (STAGED) {
        const uint lane = thread_index & (LANES - 1);
        Weights<ROWS> v;
        Weights<ROWS> v_b;
        Weights<ROWS> next;
        float a[UNIT_COLUMNS];
        if (AHEAD) {
            load_weights<ROWS>(FORMAT, GROUP_UNITS, units, WHOLE, w, first, last, min(lane, spans - 1), v);
            fetch_activations(WHOLE, w.columns, x, offsets, 0, 0, thread_index, a);
        }
        for (uint base = 0; base < spans; base += LANES) {
            const uint span = base + lane; // past the last weights are read again, and meet zeros
            if (AHEAD && base + LANES < spans) {
                load_weights<ROWS>(FORMAT, GROUP_UNITS, units, WHOLE, w, first, last, min(span + LANES, spans - 1), next);
            } else if (!AHEAD) {
                load_weights<ROWS>(FORMAT, GROUP_UNITS, units, WHOLE, w, first, last, min(span, spans - 1), v);
                if (TWO) load_weights<ROWS>(FORMAT_B, GROUP_UNITS_B, units, WHOLE_B, w_b, first, last, min(span, spans - 1), v_b);
            }
            float dots[ROWS * MAX_XROWS];
            float dots_b[ROWS * MAX_XROWS];
            clear<ROWS>(dots);
            if (TWO) clear<ROWS>(dots_b);
#pragma unroll
            for (uint u = 0; u < SPAN_MAX_UNITS; u++) {
                if (u % staged_units() == 0) {
                    if (!AHEAD) fetch_activations(WHOLE, w.columns, x, offsets, base, u, thread_index, a);
                    threadgroup_barrier(mem_flags::mem_threadgroup);
                    stage_activations(a, thread_index, staged);
                    threadgroup_barrier(mem_flags::mem_threadgroup);
                    if (AHEAD && base + LANES < spans) fetch_activations(WHOLE, w.columns, x, offsets, base + LANES, 0, thread_index, a);
                }
                multiply_unit<ROWS, true>(FORMAT, units, WHOLE, w, first, last, span, u, v, x, offsets, staged, dots);
                if (TWO) multiply_unit<ROWS, true>(FORMAT_B, units, WHOLE_B, w_b, first, last, span, u, v_b, x, offsets, staged, dots_b);
            }
            add_span<ROWS>(v, dots, sums);
            if (TWO) add_span<ROWS>(v_b, dots_b, sums_b);
            if (AHEAD) v = next; // not used after the last; under the condition above, matvec of 16384 columns took a third longer
        }
        return;
    }
    uint span = begin;
    if (!TWO && XROWS == 1 && span < spans) { // the next span is read ahead; with more rows registers would not suffice
        Weights<ROWS> v;
        Weights<ROWS> next;
        load_weights<ROWS>(FORMAT, GROUP_UNITS, units, WHOLE, w, first, last, span, v);
        for (; span < spans; span += 2 * step) {
            if (span + step < spans) load_weights<ROWS>(FORMAT, GROUP_UNITS, units, WHOLE, w, first, last, span + step, next);
            multiply_span<ROWS>(FORMAT, units, WHOLE, w, first, last, span, v, x, offsets, staged, sums);
            if (span + step >= spans) return;
            if (span + 2 * step < spans) load_weights<ROWS>(FORMAT, GROUP_UNITS, units, WHOLE, w, first, last, span + 2 * step, v);
            multiply_span<ROWS>(FORMAT, units, WHOLE, w, first, last, span + step, next, x, offsets, staged, sums);
        }
        return;
    }
    for (; span < spans; span += step) {
        Weights<ROWS> v;
        Weights<ROWS> v_b;
        load_weights<ROWS>(FORMAT, GROUP_UNITS, units, WHOLE, w, first, last, span, v);
        if (TWO) load_weights<ROWS>(FORMAT_B, GROUP_UNITS_B, units, WHOLE_B, w_b, first, last, span, v_b);
        multiply_span<ROWS>(FORMAT, units, WHOLE, w, first, last, span, v, x, offsets, staged, sums);
        if (TWO) multiply_span<ROWS>(FORMAT_B, units, WHOLE_B, w_b, first, last, span, v_b, x, offsets, staged, sums_b);
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
