// Part of kernels_body.h: weights as numbers, products with the transpose, and what is done element by element.

// ---- rows as numbers, and products with the transpose ----

// Eight weights of few bits (fewer at a row's end) from column c on, a multiple of 8, as bytes. Made one at a time they took a quarter of a
// decoded token with MLA's kv_b as int4.
INLINE void store_fields(const int format, const uint8_t *p, int c, int count, int8_t *out) {
    uint64_t x = 0, high = 0, offset = 8;
    switch (format) {
    case format_int2_row: memcpy(&x, p + c / 4, (size_t)(count + 3) / 4); break;
    case format_int3_g64: memcpy(&x, p + c / 64 * 24 + c % 64 / 4, 2); break;
    default: memcpy(&x, p + c / 2, (size_t)(count + 1) / 2);
    }
    if (format == format_int2_row || format == format_int3_g64) {
        x = (x | x << 24) & 0x000000FF000000FF;
        x = (x | x << 12) & 0x000F000F000F000F;
        x = (x | x << 6) & 0x0303030303030303;
        offset = 2;
    } else {
        x = (x | x << 16) & 0x0000FFFF0000FFFF;
        x = (x | x << 8) & 0x00FF00FF00FF00FF;
        x = (x | x << 4) & 0x0F0F0F0F0F0F0F0F;
    }
    if (format == format_int3_g64) {
        high = p[c / 64 * 24 + 16 + c % 64 / 8];
        high = (high | high << 28) & 0x0000000F0000000F;
        high = (high | high << 14) & 0x0003000300030003;
        x |= ((high | high << 7) & 0x0101010101010101) << 2;
        offset = 4;
    }
    const uint64_t each = 0x0101010101010101, sign = 0x80 * each;
    x = ((x | sign) - offset * each) ^ sign; // no byte borrows from its neighbour
    memcpy(out, &x, 8);
}

typedef uint8_t sixteen_bytes __attribute__((vector_size(16)));

// 32 weights of 4 bits as bytes.
INLINE void store_nibbles(const uint8_t *p, int8_t out[32]) {
    sixteen_bytes v;
    memcpy(&v, p, sizeof v);
    const sixteen_bytes low = (v & 15) - 8, high = (v >> 4) - 8;
    v = __builtin_shufflevector(low, high, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    memcpy(out, &v, sizeof v);
    v = __builtin_shufflevector(low, high, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    memcpy(out + 16, &v, sizeof v);
}

// A row of weights of few bits as numbers.
INLINE void unpack_fields(const int format, const cpu_weight *w, const uint8_t *p, const float *scales, float *out) {
    const int n = w->columns;
    for (int g = scale_group(w), i = 0, c = 0; c < n; i++) {
        const float scale = scales[i];
        const int end = n - c < g ? n : c + g;
        if (format == format_int4_group) {
            for (; c % 2 == 0 && c + 32 <= end; c += 32) {
                int8_t bytes[32];
                store_nibbles(p + c / 2, bytes);
                for (int k = 0; k < 32; k += LANES) v_store(out + c + k, v_mul(v_from_i8(bytes + k), v_set(scale)));
            }
        }
        for (; c % 8 == 0 && c + LANES <= end; c += LANES) {
            int8_t fields[LANES];
            for (int k = 0; k < LANES; k += 8) store_fields(format, p, c + k, 8, fields + k);
            v_store(out + c, v_mul(v_from_i8(fields), v_set(scale)));
        }
        for (; c < end; c++) {
            int8_t fields[8];
            store_fields(format, p, c / 8 * 8, n - c / 8 * 8 < 8 ? n % 8 : 8, fields);
            out[c] = (float)fields[c % 8] * scale;
        }
    }
}

#ifdef LANES_NIBBLES
// A row of int4 groups of a multiple of 64: four vectors at a time.
static void unpack_nibbles(const cpu_weight *w, const uint8_t *p, const float *scales, float *out) {
    const size_t groups = (size_t)(w->columns / w->group), chunks = (size_t)w->group / 64;
    for (size_t g = 0; g < groups; g++) {
        const vf table = v_mul(v_nibble_table(), v_set(scales[g]));
        for (size_t i = 0; i < chunks; i++, p += 32, out += 64) {
            UNROLL for (int k = 0; k < 4; k++) v_store(out + k * LANES, v_nibbles(p + k * LANES / 2, table));
        }
    }
}
#endif

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
    case format_int2_row: unpack_fields(format_int2_row, w, p, s, out); break;
    case format_int3_g64: unpack_fields(format_int3_g64, w, p, s, out); break;
    default:
#ifdef LANES_NIBBLES
        if (w->format == format_int4_group && w->group % 64 == 0 && n % w->group == 0) {
            unpack_nibbles(w, p, s, out);
            break;
        }
#endif
        unpack_fields(format_int4_group, w, p, s, out);
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

// The same for three q and 4 vectors of columns from c on.
INLINE void transposed_tile(const int R, const float *const *q, int at, const float *rows, int columns, int c, float *const *out) {
    vf acc[3][4];
    UNROLL for (int i = 0; i < 3; i++) UNROLL for (int j = 0; j < 4; j++) acc[i][j] = v_load(out[i] + c + j * LANES);
    for (int r = 0; r < R; r++) {
        vf qv[3];
        UNROLL for (int i = 0; i < 3; i++) qv[i] = v_set(q[i][at + r]);
        UNROLL for (int j = 0; j < 4; j++) {
            const vf row = v_load(rows + r * columns + c + j * LANES);
            UNROLL for (int i = 0; i < 3; i++) acc[i][j] = v_fma(qv[i], row, acc[i][j]);
        }
    }
    UNROLL for (int i = 0; i < 3; i++) UNROLL for (int j = 0; j < 4; j++) v_store(out[i] + c + j * LANES, acc[i][j]);
}

static void transposed(const cpu_weight *w, int row0, int row1, int n, const float *const *q, float *const *out, float *scratch) {
    for (int i = 0; i < n; i++) memset(out[i], 0, (size_t)w->columns * sizeof(float));
    for (int row = row0; row < row1; row += transposed_rows) {
        int rows = row1 - row < transposed_rows ? row1 - row : transposed_rows;
        for (int r = 0; r < rows; r++) unpack(w, row + r, scratch + r * w->columns);
        int i = 0;
#ifndef LANES_PORTABLE
        for (; rows == transposed_rows && w->columns % (4 * LANES) == 0 && n - i >= 3; i += 3) {
            for (int c = 0; c < w->columns; c += 4 * LANES) transposed_tile(transposed_rows, q + i, row - row0, scratch, w->columns, c, out + i);
        }
#endif
        for (; i < n; i++) {
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

