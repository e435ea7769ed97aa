// Part of kernels_bytes.h, in AVX2, and in AVX-512 where that has VNNI: sums are whole numbers, and so the same.

enum {
    byte_octets = 2, // eights of rows, side by side in a tile
    byte_chunk = 16, // groups of a tile: 16 KiB of weights
};

static void byte_prepare(int fields, const float *x, int columns, float *panel) {
    const int groups = byte_groups(columns);
    int8_t *numbers = (int8_t *)(void *)panel;
    float *scales = panel + (size_t)groups * (byte_group / 4);
    int32_t *sums = (int32_t *)(void *)(scales + groups);
    for (int g = 0; g < groups; g++) {
        float rest[byte_group];
        __m256 v[8];
        const __m256 factor = _mm256_set1_ps(octet_load_group(x + (size_t)g * byte_group, columns - g * byte_group, 127, rest, v, scales + g));
        s16 bytes[2], sum = _mm256_setzero_si256();
        UNROLL for (int h = 0; h < 2; h++) {
            s16 w[4];
            UNROLL for (int i = 0; i < 4; i++) w[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[4 * h + i], factor));
            const s16 packed = _mm256_packs_epi16(_mm256_packs_epi32(w[0], w[1]), _mm256_packs_epi32(w[2], w[3]));
            bytes[h] = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes[h]), _mm256_set1_epi16(1)));
        }
        __m128i total = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
        total = _mm_add_epi32(total, _mm_unpackhi_epi64(total, total));
        sums[g] = _mm_cvtsi128_si32(total) + _mm_extract_epi32(total, 1);
        if (fields == 2) {
            const s16 apart = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
            UNROLL for (int h = 0; h < 2; h++) bytes[h] = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(bytes[h], apart), 0xD8);
            int8_t *to = numbers + (size_t)g * byte_group;
            _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permute2x128_si256(bytes[0], bytes[1], 0x20));
            _mm256_storeu_si256((__m256i *)(void *)(to + 32), _mm256_permute2x128_si256(bytes[0], bytes[1], 0x31));
        } else {
            const s16 apart = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
            UNROLL for (int h = 0; h < 2; h++) bytes[h] = _mm256_shuffle_epi8(bytes[h], apart);
            // Rows of 16 columns, by fours of fields, are transposed.
            const __m128i a = _mm256_castsi256_si128(bytes[0]), b = _mm256_extracti128_si256(bytes[0], 1);
            const __m128i c = _mm256_castsi256_si128(bytes[1]), d = _mm256_extracti128_si256(bytes[1], 1);
            const __m128i ab0 = _mm_unpacklo_epi32(a, b), ab1 = _mm_unpackhi_epi32(a, b), cd0 = _mm_unpacklo_epi32(c, d), cd1 = _mm_unpackhi_epi32(c, d);
            const __m128i field[4] = {_mm_unpacklo_epi64(ab0, cd0), _mm_unpackhi_epi64(ab0, cd0), _mm_unpacklo_epi64(ab1, cd1), _mm_unpackhi_epi64(ab1, cd1)};
            int8_t *to = numbers + (size_t)(g / 2) * 2 * byte_group + g % 2 * 16;
            UNROLL for (int k = 0; k < 4; k++) _mm_storeu_si128((__m128i *)(void *)(to + 32 * k), field[k]);
        }
    }
}

// ---- weights as numbers ----

// The fields of a span, as bytes.
INLINE void byte_unpack(const int format, const uint8_t *raw, s16 out[4]) {
    if (format == format_int3_g64) {
        const __m128i *p = (const __m128i *)(const void *)raw, *q = (const __m128i *)(const void *)(raw + 24);
        const s16 low = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(p)), _mm_loadu_si128(q), 1);
        // A byte of the high plane is for eight columns: its halves go with two bytes of the low plane.
        const s16 high = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)(const void *)(raw + 16)), _mm256_setr_epi8(0, -1, 1, -1, 2, -1, 3, -1, 4, -1, 5, -1, 6, -1, 7, -1, 8, -1, 9, -1, 10, -1, 11, -1, 12, -1, 13, -1, 14, -1, 15, -1));
        const s16 half = _mm256_and_si256(_mm256_or_si256(high, _mm256_slli_epi16(high, 4)), _mm256_set1_epi8(15));
        // Fields 0 and 2, and 1 and 3, become the halves of bytes.
        const s16 even = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0x04, 0, 0x04, 0x40, 0x44, 0x40, 0x44, 0, 0x04, 0, 0x04, 0x40, 0x44, 0x40, 0x44));
        const s16 odd = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 0, 0x04, 0x04, 0, 0, 0x04, 0x04, 0x40, 0x40, 0x44, 0x44, 0x40, 0x40, 0x44, 0x44));
        const s16 two = _mm256_set1_epi8(0x33), field = _mm256_set1_epi8(15);
        const s16 u = _mm256_or_si256(_mm256_and_si256(low, two), _mm256_shuffle_epi8(even, half));
        const s16 v = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(low, 2), two), _mm256_shuffle_epi8(odd, half));
        out[0] = _mm256_and_si256(u, field);
        out[1] = _mm256_and_si256(v, field);
        out[2] = _mm256_and_si256(_mm256_srli_epi16(u, 4), field);
        out[3] = _mm256_and_si256(_mm256_srli_epi16(v, 4), field);
        return;
    }
    const s16 v = _mm256_loadu_si256((const __m256i *)(const void *)raw), mask = _mm256_set1_epi8(format == format_int2_row ? 3 : 15);
    out[0] = _mm256_and_si256(v, mask);
    if (format == format_int2_row) {
        out[1] = _mm256_and_si256(_mm256_srli_epi16(v, 2), mask);
        out[2] = _mm256_and_si256(_mm256_srli_epi16(v, 4), mask);
        out[3] = _mm256_and_si256(_mm256_srli_epi16(v, 6), mask);
    } else {
        out[1] = _mm256_and_si256(_mm256_srli_epi16(v, 4), mask);
    }
}

// Moves eight rows to a span; a last one that the row does not fill is completed with zeros, which meet zeros of the panel.
INLINE void byte_span_at(const int format, const octet *o, int span, uint8_t rest[octet_rows][48], const uint8_t *at[octet_rows]) {
    const size_t bytes = (size_t)byte_span_bytes(format), from = (size_t)span * bytes;
    UNROLL for (int r = 0; r < octet_rows; r++) at[r] = o->raw[r] + from;
    if (from + bytes <= o->stride) return;
    for (int r = 0; r < octet_rows; r++) at[r] = padded(rest[r], at[r], o->stride - from, bytes);
}

// ---- few rows ----

// A row's fields times a span of activations, in sums of 16 bits, which the first steps towards eight rows' sums keep, or of 32.
#ifdef LANES_VNNI
INLINE s16 byte_products(const int fields, const s16 f[4], const int8_t *x) {
    s16 sum = _mm256_setzero_si256();
    UNROLL for (int k = 0; k < fields; k++) sum = _mm256_dpbusd_epi32(sum, f[k], _mm256_loadu_si256((const __m256i *)(const void *)(x + 32 * k)));
    return sum;
}
INLINE s16 byte_pair(s16 a, s16 b) { return octet_pair(a, b); }
INLINE s16 byte_four(s16 a, s16 b) { return octet_four(a, b); }
#else
INLINE s16 byte_products(const int fields, const s16 f[4], const int8_t *x) {
    s16 sum = _mm256_maddubs_epi16(f[0], _mm256_loadu_si256((const __m256i *)(const void *)x));
    UNROLL for (int k = 1; k < fields; k++)
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(f[k], _mm256_loadu_si256((const __m256i *)(const void *)(x + 32 * k))));
    return sum;
}
INLINE s16 byte_pair(s16 a, s16 b) { return _mm256_add_epi16(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)); }
INLINE s16 byte_four(s16 a, s16 b) {
    return _mm256_madd_epi16(_mm256_add_epi16(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)), _mm256_set1_epi16(1));
}
#endif

// out[s][m] = the eight rows' sums of a span's group s with M rows of activations. Meanwhile as many bytes are fetched.
INLINE void byte_direct_span(const int format, const int M, const uint8_t *const at[octet_rows], const int8_t *const *x, const uint8_t *fetch, const int far, s16 out[2][3]) {
    s16 four[2][3], pair[2][3], one[2][3];
    UNROLL for (int h = 0; h < 2; h++) {
        UNROLL for (int i = 0; i < 2; i++) {
            UNROLL for (int j = 0; j < 2; j++) {
                s16 f[4];
                byte_unpack(format, at[h * 4 + i * 2 + j], f);
                fetch_part(fetch, byte_span_bytes(format), h * 4 + i * 2 + j, far);
                UNROLL for (int m = 0; m < M; m++) one[j][m] = byte_products(byte_fields(format), f, x[m]);
            }
            UNROLL for (int m = 0; m < M; m++) pair[i][m] = byte_pair(one[0][m], one[1][m]);
        }
        UNROLL for (int m = 0; m < M; m++) four[h][m] = byte_four(pair[0][m], pair[1][m]);
    }
    UNROLL for (int m = 0; m < M; m++) {
        const s16 first = _mm256_permute2x128_si256(four[0][m], four[1][m], 0x20), second = _mm256_permute2x128_si256(four[0][m], four[1][m], 0x31);
        out[0][m] = byte_span(format) == 1 ? _mm256_add_epi32(first, second) : first;
        out[1][m] = second;
    }
}

// One octet of rows: full ones lie a stride apart, and those of a last octet wherever o says.
INLINE void byte_direct_octet(const int format, const int scaled, const int M, const int full, const octet *o, int groups, int own, const float *const *x,
                              float *const *y, int at_y) {
    const int spans = (own + byte_span(format) - 1) / byte_span(format), bytes = byte_span_bytes(format);
    const size_t stride = o->stride;
    const uint8_t *line = o->raw[0], *next = line + octet_rows * stride;
    const int8_t *numbers[3];
    const float *steps[3];
    const int32_t *offsets[3];
    __m256 sum[3], scale[octet_scale_chunk];
    UNROLL for (int m = 0; m < M; m++) {
        numbers[m] = byte_numbers(x[m]);
        steps[m] = byte_scales(x[m], groups);
        offsets[m] = byte_sums(x[m], groups);
        sum[m] = _mm256_setzero_ps();
    }
    const int whole_spans = (int)(stride / (size_t)bytes), far = fetch_far(octet_rows * stride);
    for (int span = 0; span < spans; span++) {
        const uint8_t *at[octet_rows];
        uint8_t rest[octet_rows][48];
        if (full && __builtin_expect(span < whole_spans, 1)) {
            UNROLL for (int r = 0; r < octet_rows; r++) at[r] = line + (size_t)r * stride;
        } else {
            byte_span_at(format, o, span, rest, at);
        }
        s16 all[2][3];
        byte_direct_span(format, M, at, numbers, next + (size_t)span * octet_rows * (size_t)bytes, far, all);
        UNROLL for (int s = 0; s < byte_span(format); s++) {
            const int g = span * byte_span(format) + s;
            if (scaled && g % octet_scale_chunk == 0) octet_scales(o, g, scale);
            UNROLL for (int m = 0; m < M; m++) {
                const __m256 step = _mm256_set1_ps(steps[m][g]);
                const __m256 both = scaled ? _mm256_mul_ps(scale[g % octet_scale_chunk], step) : step;
                const s16 offset = _mm256_slli_epi32(_mm256_set1_epi32(offsets[m][g]), byte_offset_bits(format));
                sum[m] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(all[s][m], offset)), both, sum[m]);
            }
        }
        UNROLL for (int m = 0; m < M; m++) numbers[m] += byte_span(format) * byte_group;
        line += bytes;
    }
    UNROLL for (int m = 0; m < M; m++) octet_store(o, sum[m], y[m] + at_y);
}

INLINE void byte_direct(const int format, const int scaled, const int M, const cpu_weight *w, int row0, int row1, const float *const *x, float *const *y) {
    const int groups = byte_groups(w->columns), own = (w->columns + byte_group - 1) / byte_group;
    for (int row = row0; row < row1; row += octet_rows) {
        const octet o = octet_at(w, row, row1, byte_scale_step(w));
        if (o.count == octet_rows) byte_direct_octet(format, scaled, M, 1, &o, groups, own, x, y, row - row0);
        else byte_direct_octet(format, scaled, M, 0, &o, groups, own, x, y, row - row0);
    }
}

// ---- many rows ----

typedef struct {
    s16 weights[byte_chunk][byte_group / 4][byte_octets]; // fours of columns; eight rows in the lanes
    __m256 scales[byte_chunk][byte_octets];
    __m256 sums[product_batch][byte_octets];
} byte_tile;

// One span of eight rows, in the panel's order of columns.
INLINE void byte_tile_span(const int format, const uint8_t *const at[octet_rows], s16 (*out)[byte_group / 4][byte_octets], int o) {
    s16 f[8][4], v[8];
    UNROLL for (int r = 0; r < 8; r++) byte_unpack(format, at[r], f[r]);
    UNROLL for (int k = 0; k < byte_fields(format); k++) {
        UNROLL for (int r = 0; r < 8; r++) v[r] = f[r][k];
        octet_transpose(v);
        UNROLL for (int d = 0; d < 8; d++) {
            if (byte_span(format) == 1) {
                out[0][8 * k + d][o] = v[d];
            } else {
                out[d / 4][4 * k + d % 4][o] = v[d];
            }
        }
    }
}

// Where the panel of group g has its four columns p.
INLINE size_t byte_four_at(const int format, int g, int p) {
    return byte_span(format) == 1 ? (size_t)g * byte_group + 4 * (size_t)p : (size_t)(g / 2) * 2 * byte_group + (size_t)(g % 2 * 16 + p / 4 * 32 + p % 4 * 4);
}

// The tile's groups, g0 being the first of them, times M rows of activations.
#ifdef LANES_VNNI
INLINE void byte_tile_rows(const int format, const int scaled, const int M, byte_tile *t, int g0, int chunk, int groups, const float *const *x, int m0) {
    const float *scales[octet_tile_most];
    const int32_t *offsets[octet_tile_most];
    UNROLL for (int m = 0; m < M; m++) {
        scales[m] = byte_scales(x[m0 + m], groups) + g0;
        offsets[m] = byte_sums(x[m0 + m], groups) + g0;
    }
    for (int g = 0; g < chunk; g++) {
        __m512i sum[octet_tile_most];
        const int8_t *numbers[octet_tile_most];
        UNROLL for (int m = 0; m < M; m++) {
            numbers[m] = byte_numbers(x[m0 + m]) + byte_four_at(format, g0 + g, 0);
            sum[m] = _mm512_set1_epi32(-offsets[m][g] * byte_offset(format));
        }
        UNROLL for (int p = 0; p < byte_group / 4; p++) {
            const __m512i w = _mm512_loadu_si512(t->weights[g][p]);
            UNROLL for (int m = 0; m < M; m++) {
                int32_t four;
                memcpy(&four, numbers[m] + byte_four_at(format, 0, p), 4);
                sum[m] = _mm512_dpbusd_epi32(sum[m], w, _mm512_set1_epi32(four));
            }
        }
        UNROLL for (int m = 0; m < M; m++) {
            const __m512 step = _mm512_set1_ps(scales[m][g]);
            const __m512 both = scaled ? _mm512_mul_ps(_mm512_loadu_ps(t->scales[g]), step) : step;
            float *to = (float *)t->sums[m0 + m];
            _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[m]), both, _mm512_loadu_ps(to)));
        }
    }
}
#else
INLINE void byte_tile_rows(const int format, const int scaled, const int M, byte_tile *t, int g0, int chunk, int groups, const float *const *x, int m0) {
    for (int g = 0; g < chunk; g++) {
        s16 sum[4][byte_octets];
        const int8_t *numbers[4];
        UNROLL for (int m = 0; m < M; m++) numbers[m] = byte_numbers(x[m0 + m]) + byte_four_at(format, g0 + g, 0);
        UNROLL for (int half = 0; half < 2; half++) {
            s16 part[4][byte_octets];
            UNROLL for (int p = 0; p < 8; p++) {
                const s16 w0 = t->weights[g][half * 8 + p][0], w1 = t->weights[g][half * 8 + p][1];
                UNROLL for (int m = 0; m < M; m++) {
                    int32_t four;
                    memcpy(&four, numbers[m] + byte_four_at(format, 0, half * 8 + p), 4);
                    const s16 all = _mm256_set1_epi32(four);
                    if (p == 0) {
                        part[m][0] = _mm256_maddubs_epi16(w0, all);
                        part[m][1] = _mm256_maddubs_epi16(w1, all);
                    } else {
                        octet_add16(&part[m][0], _mm256_maddubs_epi16(w0, all));
                        octet_add16(&part[m][1], _mm256_maddubs_epi16(w1, all));
                    }
                }
            }
            UNROLL for (int m = 0; m < M; m++) UNROLL for (int o = 0; o < byte_octets; o++) {
                const s16 two = _mm256_madd_epi16(part[m][o], _mm256_set1_epi16(1));
                sum[m][o] = half == 0 ? two : _mm256_add_epi32(sum[m][o], two);
            }
        }
        UNROLL for (int m = 0; m < M; m++) {
            const __m256 step = _mm256_set1_ps(byte_scales(x[m0 + m], groups)[g0 + g]);
            const s16 offset = _mm256_slli_epi32(_mm256_set1_epi32(byte_sums(x[m0 + m], groups)[g0 + g]), byte_offset_bits(format));
            UNROLL for (int o = 0; o < byte_octets; o++) {
                const __m256 both = scaled ? _mm256_mul_ps(t->scales[g][o], step) : step;
                t->sums[m0 + m][o] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_sub_epi32(sum[m][o], offset)), both, t->sums[m0 + m][o]);
            }
        }
    }
}
#endif

INLINE void byte_tiles(const int format, const int scaled, const cpu_weight *w, int row0, int row1, int n, const float *const *x, float *const *y, byte_tile *t) {
    const int groups = byte_groups(w->columns), own = (w->columns + byte_group - 1) / byte_group;
    for (int row = row0; row < row1; row += byte_octets * octet_rows) {
        octet octets[byte_octets];
        for (int o = 0; o < byte_octets; o++) octets[o] = octet_at(w, row + o * octet_rows, row1, byte_scale_step(w));
        for (int m = 0; m < n; m++) UNROLL for (int o = 0; o < byte_octets; o++) t->sums[m][o] = _mm256_setzero_ps();
        for (int g0 = 0; g0 < own; g0 += byte_chunk) {
            const int chunk = own - g0 < byte_chunk ? own - g0 : byte_chunk;
            for (int o = 0; o < byte_octets; o++)
                octet_fetch(&octets[o], (size_t)(g0 / byte_span(format)) * (size_t)byte_span_bytes(format), chunk / byte_span(format) * byte_span_bytes(format));
            for (int o = 0; o < byte_octets; o++) {
                uint8_t rest[octet_rows][48];
                for (int g = 0; g < chunk; g += byte_span(format)) {
                    const uint8_t *at[octet_rows];
                    byte_span_at(format, &octets[o], (g0 + g) / byte_span(format), rest, at);
                    byte_tile_span(format, at, t->weights + g, o);
                }
                if (scaled) {
                    for (int g = 0; g < chunk; g += octet_scale_chunk) {
                        __m256 scale[octet_scale_chunk];
                        octet_scales(&octets[o], g0 + g, scale);
                        UNROLL for (int i = 0; i < octet_scale_chunk; i++) t->scales[g + i][o] = scale[i];
                    }
                }
            }
            int m = 0;
            for (; n - m >= octet_tile_most; m += octet_tile_most) {
                // Results lie apart in more memory than a second-level cache has: storing waited for it a tenth of the time.
                UNROLL for (int i = 0; i < octet_tile_most; i++) __builtin_prefetch(y[m + i] + (row - row0), 1);
                byte_tile_rows(format, scaled, octet_tile_most, t, g0, chunk, groups, x, m);
            }
            if (octet_tile_most > 4 && n - m >= 4) {
                byte_tile_rows(format, scaled, 4, t, g0, chunk, groups, x, m);
                m += 4;
            }
            switch (n - m) {
            case 3: byte_tile_rows(format, scaled, 3, t, g0, chunk, groups, x, m); break;
            case 2: byte_tile_rows(format, scaled, 2, t, g0, chunk, groups, x, m); break;
            case 1: byte_tile_rows(format, scaled, 1, t, g0, chunk, groups, x, m); break;
            }
        }
        for (int m = 0; m < n; m++) {
            UNROLL for (int o = 0; o < byte_octets; o++) octet_store(&octets[o], t->sums[m][o], y[m] + (row - row0) + o * octet_rows);
        }
    }
}

enum { byte_scratch = sizeof(byte_tile) };

INLINE void byte_rows_of(const int format, const int scaled, const cpu_weight *w, int row0, int row1, int n, const float *const *x, float *const *y, void *scratch) {
    switch (n) {
    case 1: byte_direct(format, scaled, 1, w, row0, row1, x, y); return;
    case 2: byte_direct(format, scaled, 2, w, row0, row1, x, y); return;
    case 3: byte_direct(format, scaled, 3, w, row0, row1, x, y); return;
    default: byte_tiles(format, scaled, w, row0, row1, n, x, y, scratch);
    }
}
