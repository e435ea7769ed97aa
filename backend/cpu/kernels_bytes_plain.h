// Part of kernels_bytes.h: C that every compiler knows, and the dot product of bytes where ARM has it.

static void byte_prepare(int fields, const float *x, int columns, float *panel) {
    const int groups = byte_groups(columns);
    int8_t *numbers = (int8_t *)(void *)panel;
    float *scales = panel + (size_t)groups * (byte_group / 4);
    int32_t *sums = (int32_t *)(void *)(scales + groups);
    memset(numbers, 0, (size_t)groups * byte_group);
    for (int g = 0; g < groups; g++) {
        const int left = columns - g * byte_group, n = left > byte_group ? byte_group : left;
        const float *from = x + (size_t)g * byte_group;
        int8_t *to = numbers + (fields == 2 ? g : g / 2 * 2) * byte_group;
        float top = 0, none = 0;
        for (int c = 0; c < n; c++) {
            const float size = __builtin_fabsf(from[c]);
            top = size > top ? size : top;
            none += from[c] * 0; // NaN if there is anything that is not a finite number
        }
        const int whole = none == 0;
        scales[g] = whole ? top / 127 : __builtin_nanf("");
        const float factor = whole && top > 1e-34f ? 127 / top : 0;
        sums[g] = 0;
        for (int c = 0; c < n && factor > 0; c++) {
            const int number = (int)__builtin_rintf(from[c] * factor);
            to[byte_place(fields, g, c)] = (int8_t)number;
            sums[g] += number;
        }
    }
}

// The fields of a span, as bytes.
INLINE void byte_unpack(const int format, const uint8_t *raw, uint8_t *out) {
    if (byte_fields(format) == 2) {
        for (int i = 0; i < 32; i++) {
            out[i] = raw[i] & 15;
            out[32 + i] = raw[i] >> 4;
        }
        return;
    }
    for (int h = 0; h < 2; h++, raw += byte_span_bytes(format) / 2) {
        for (int k = 0; k < 4; k++) {
            for (int i = 0; i < 16; i++) {
                const int high = format == format_int3_g64 ? raw[16 + i / 2] >> (i % 2 * 4 + k) & 1 : 0;
                out[32 * k + 16 * h + i] = (uint8_t)((raw[i] >> (2 * k) & 3) | high << 2);
            }
        }
    }
}

// Sixteen columns added to four sums.
#ifdef __ARM_FEATURE_DOTPROD
#include <arm_neon.h>
typedef int32x4_t byte_sum;
INLINE byte_sum byte_zero(void) { return vdupq_n_s32(0); }
INLINE byte_sum byte_dot(byte_sum sum, const uint8_t *w, const int8_t *x) { return vdotq_s32(sum, vreinterpretq_s8_u8(vld1q_u8(w)), vld1q_s8(x)); }
INLINE int32_t byte_total(byte_sum sum) { return vaddvq_s32(sum); }
#else
typedef int32_t byte_sum;
INLINE byte_sum byte_zero(void) { return 0; }
INLINE byte_sum byte_dot(byte_sum sum, const uint8_t *w, const int8_t *x) {
    for (int i = 0; i < 16; i++) sum += w[i] * x[i];
    return sum;
}
INLINE int32_t byte_total(byte_sum sum) { return sum; }
#endif

enum { byte_scratch = 0 };

INLINE void byte_rows_of(const int format, const int scaled, const cpu_weight *w, int row0, int row1, int n, const float *const *x, float *const *y, void *scratch) {
    (void)scratch;
    const int groups = byte_groups(w->columns), own = (w->columns + byte_group - 1) / byte_group, spans = (own + byte_span(format) - 1) / byte_span(format);
    const size_t stride = cpu_row_bytes(w), bytes = (size_t)byte_span_bytes(format);
    const int step = byte_scale_step(w);
    for (int row = row0; row < row1; row++) {
        const uint8_t *raw = (const uint8_t *)w->data + (size_t)row * stride;
        const float *scale = row_scales(w, row);
        float sum[product_batch];
        for (int m = 0; m < n; m++) sum[m] = 0;
        for (int span = 0; span < spans; span++) {
            uint8_t rest[48], f[4 * 32];
            const size_t from = (size_t)span * bytes;
            byte_unpack(format, from + bytes <= stride ? raw + from : padded(rest, raw + from, stride - from, bytes), f);
            for (int m = 0; m < n; m++) {
                const int8_t *numbers = byte_numbers(x[m]) + (size_t)span * (size_t)byte_span(format) * byte_group;
                UNROLL for (int s = 0; s < byte_span(format); s++) {
                    const int g = span * byte_span(format) + s;
                    byte_sum part = byte_zero();
                    UNROLL for (int k = 0; k < 4; k++) {
                        const int at = byte_span(format) == 1 ? 16 * k : 32 * k + 16 * s;
                        part = byte_dot(part, f + at, numbers + at);
                    }
                    const float both = (scaled && g < own ? scale[g / step] : 1) * byte_scales(x[m], groups)[g];
                    sum[m] += (float)(byte_total(part) - byte_offset(format) * byte_sums(x[m], groups)[g]) * both;
                }
            }
        }
        for (int m = 0; m < n; m++) y[m][row - row0] = scaled ? sum[m] : sum[m] * scale[0];
    }
}
