// Part of kernels_body.h, for x86: products of int8 weights with activations of 16 bits, one scale for 64 columns. Products and their sums within a
// group are exact, and one float step a group adds them up. A multiply instruction does 16 columns where the float path does 8, and
// weights need no conversion: twice the arithmetic a second.
//
// The rounding is half a 32767th of a group's largest activation, which adds less than 4e-5 of the largest result for activations like
// those of a model (rounding_test.go). Preparing activations has to pay, so that matrices of very few columns stay with float32.
#ifdef LANES_SHORT

enum {
    short_group = 64,    // columns that share a scale
    short_octets = 2,    // eights of rows, side by side in a tile
    short_chunk = 8,     // groups of a tile: 16 KiB of weights
    short_few = 6,       // most rows of activations that are multiplied without a tile
    short_columns = 128, // least columns of a weight that is multiplied so
};

static int short_fits(const cpu_weight *w) { return !w->precise && w->format == format_int8_row && w->columns >= short_columns; }

// ---- panels: the groups' numbers, then their scales ----

INLINE int short_groups(int columns) { return (columns + short_group - 1) / short_group; }
static size_t short_panel_floats(int columns) { return (size_t)short_groups(columns) * (short_group / 2 + 1); }
INLINE const float *short_scales(const float *panel, int groups) { return panel + (size_t)groups * (short_group / 2); }

static void short_prepare(const float *x, int columns, float *panel) {
    const int groups = short_groups(columns);
    int16_t *numbers = (int16_t *)(void *)panel;
    float *scales = panel + (size_t)groups * (short_group / 2);
    for (int g = 0; g < groups; g++, x += short_group, numbers += short_group) {
        float rest[short_group];
        __m256 v[8];
        const float factor = octet_load_group(x, columns - g * short_group, 32767, rest, v, scales + g);
        UNROLL for (int i = 0; i < 4; i++) {
            const s16 low = _mm256_cvtps_epi32(_mm256_mul_ps(v[2 * i], _mm256_set1_ps(factor))), high = _mm256_cvtps_epi32(_mm256_mul_ps(v[2 * i + 1], _mm256_set1_ps(factor)));
            _mm256_storeu_si256((__m256i *)(void *)(numbers + 16 * i), _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xD8));
        }
    }
}

// Moves eight rows to group g; a last group that the row does not fill is completed with zeros, which meet zeros of the panel.
INLINE void short_group_at(const octet *o, int g, uint8_t rest[octet_rows][short_group], const uint8_t *at[octet_rows]) {
    const size_t from = (size_t)g * short_group;
    UNROLL for (int r = 0; r < octet_rows; r++) at[r] = o->raw[r] + from;
    if (from + short_group <= o->stride) return;
    for (int r = 0; r < octet_rows; r++) at[r] = padded(rest[r], at[r], o->stride - from, short_group);
}

// ---- few rows ----

// out[m] = the eight rows' sums of one group with M rows of activations. Sums of several rows stay in registers only in the order written.
// Meanwhile as many lines are fetched.
INLINE void short_direct_group(const int M, const uint8_t *const at[octet_rows], const int16_t *const *x, const uint8_t *fetch, const int far, s16 out[3]) {
    if (!fetch_between(M)) fetch_lines(fetch, octet_rows * short_group, far);
    s16 four[2][3], pair[2][3], one[2][3];
    UNROLL for (int h = 0; h < 2; h++) {
        UNROLL for (int i = 0; i < 2; i++) {
            UNROLL for (int j = 0; j < 2; j++) {
                if (fetch_between(M)) fetch_part(fetch, short_group, h * 4 + i * 2 + j, far);
                UNROLL for (int k = 0; k < 4; k++) {
                    const s16 f = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(at[h * 4 + i * 2 + j] + 16 * k)));
                    UNROLL for (int m = 0; m < M; m++) {
                        const s16 xv = _mm256_loadu_si256((const __m256i *)(const void *)(x[m] + 16 * k));
#ifdef LANES_VNNI
                        one[j][m] = _mm256_dpwssd_epi32(k == 0 ? _mm256_setzero_si256() : one[j][m], f, xv);
#else
                        const s16 products = _mm256_madd_epi16(f, xv);
                        if (k == 0) one[j][m] = products;
                        else if (M == 1) one[j][m] = _mm256_add_epi32(one[j][m], products);
                        else octet_add32(&one[j][m], products);
#endif
                    }
                }
            }
            UNROLL for (int m = 0; m < M; m++) pair[i][m] = octet_pair(one[0][m], one[1][m]);
        }
        UNROLL for (int m = 0; m < M; m++) four[h][m] = octet_four(pair[0][m], pair[1][m]);
    }
    UNROLL for (int m = 0; m < M; m++) out[m] = octet_eight(four[0][m], four[1][m]);
}

// One octet of rows: full ones lie a stride apart, and those of a last octet wherever o says.
INLINE void short_direct_octet(const int M, const int full, const octet *o, int groups, const float *const *x, float *const *y, int at_y) {
    const size_t stride = o->stride;
    const int far = fetch_far(octet_rows * stride);
    const uint8_t *line = o->raw[0], *next = line + octet_rows * stride;
    const int16_t *numbers[3];
    const float *steps[3];
    __m256 sum[3];
    UNROLL for (int m = 0; m < M; m++) {
        numbers[m] = (const int16_t *)(const void *)x[m];
        steps[m] = short_scales(x[m], groups);
        sum[m] = _mm256_setzero_ps();
    }
    const int whole_groups = (int)(stride / short_group);
    for (int g = 0; g < groups; g++) {
        const uint8_t *at[octet_rows];
        uint8_t rest[octet_rows][short_group];
        if (full && __builtin_expect(g < whole_groups, 1)) {
            UNROLL for (int r = 0; r < octet_rows; r++) at[r] = line + (size_t)r * stride;
        } else {
            short_group_at(o, g, rest, at);
        }
        s16 whole[3];
        short_direct_group(M, at, numbers, next + (size_t)g * octet_rows * short_group, far, whole);
        UNROLL for (int m = 0; m < M; m++) {
            sum[m] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[m]), _mm256_set1_ps(steps[m][g]), sum[m]);
            numbers[m] += short_group;
        }
        line += short_group;
    }
    UNROLL for (int m = 0; m < M; m++) octet_store(o, sum[m], y[m] + at_y);
}

#define SHORT_OCTET(M)                                                                        \
    do {                                                                                      \
        if (full) short_direct_octet(M, 1, &o, groups, x + i, y + i, row - row0);             \
        else short_direct_octet(M, 0, &o, groups, x + i, y + i, row - row0);                  \
    } while (0)

// Rows of activations by threes and twos, all of them before the next rows of the weight.
static void short_direct(const cpu_weight *w, int row0, int row1, int n, const float *const *x, float *const *y) {
    const int groups = short_groups(w->columns);
    for (int row = row0; row < row1; row += octet_rows) {
        const octet o = octet_at(w, row, row1, 0);
        const int full = o.count == octet_rows;
        int i = 0;
        for (; n - i > 4 || n - i == 3; i += 3) SHORT_OCTET(3);
        for (; n - i >= 2; i += 2) SHORT_OCTET(2);
        if (i < n) SHORT_OCTET(1);
    }
}

// ---- many rows ----

typedef struct {
    s16 weights[short_chunk][short_group / 2][short_octets]; // pairs of columns; eight rows in the lanes
    __m256 sums[product_batch][short_octets];
} short_tile;

// One group of eight rows.
INLINE void short_tile_group(const uint8_t *const at[octet_rows], s16 (*out)[short_octets], int o) {
    const s16 first = _mm256_broadcastsi128_si256(_mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13));
    const s16 second = _mm256_broadcastsi128_si256(_mm_setr_epi8(-1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15));
    UNROLL for (int h = 0; h < 2; h++) {
        s16 v[8];
        UNROLL for (int r = 0; r < 8; r++) v[r] = _mm256_loadu_si256((const __m256i *)(const void *)(at[r] + 32 * h));
        octet_transpose(v);
        UNROLL for (int d = 0; d < 8; d++) {
            out[16 * h + 2 * d][o] = _mm256_srai_epi16(_mm256_shuffle_epi8(v[d], first), 8);
            out[16 * h + 2 * d + 1][o] = _mm256_srai_epi16(_mm256_shuffle_epi8(v[d], second), 8);
        }
    }
}

// The tile's groups, g0 being the first of them, times M rows of activations.
#ifdef LANES_VNNI
INLINE void short_tile_rows(const int M, short_tile *t, int g0, int chunk, int groups, const float *const *x, int m0) {
    const char *numbers[octet_tile_most];
    UNROLL for (int m = 0; m < M; m++) numbers[m] = (const char *)x[m0 + m] + (size_t)g0 * short_group * sizeof(int16_t);
    for (int g = 0; g < chunk; g++) {
        __m512i sum[octet_tile_most];
        UNROLL for (int m = 0; m < M; m++) sum[m] = _mm512_setzero_si512();
        UNROLL for (int p = 0; p < short_group / 2; p++) {
            const __m512i w = _mm512_loadu_si512(t->weights[g][p]);
            UNROLL for (int m = 0; m < M; m++) {
                int32_t two;
                memcpy(&two, numbers[m] + 4 * p, 4);
                sum[m] = _mm512_dpwssd_epi32(sum[m], w, _mm512_set1_epi32(two));
            }
        }
        UNROLL for (int m = 0; m < M; m++) {
            const __m512 step = _mm512_set1_ps(short_scales(x[m0 + m], groups)[g0 + g]);
            float *to = (float *)t->sums[m0 + m];
            _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[m]), step, _mm512_loadu_ps(to)));
            numbers[m] += short_group * sizeof(int16_t);
        }
    }
}
#else
INLINE void short_tile_rows(const int M, short_tile *t, int g0, int chunk, int groups, const float *const *x, int m0) {
    const char *numbers[4];
    UNROLL for (int m = 0; m < M; m++) numbers[m] = (const char *)x[m0 + m] + (size_t)g0 * short_group * sizeof(int16_t);
    for (int g = 0; g < chunk; g++) {
        s16 sum[4][short_octets];
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int o = 0; o < short_octets; o++) sum[m][o] = _mm256_setzero_si256();
        for (int p0 = 0; p0 < short_group / 2; p0 += 8) {
            UNROLL for (int p = 0; p < 8; p++) {
                const s16 w0 = t->weights[g][p0 + p][0], w1 = t->weights[g][p0 + p][1];
                UNROLL for (int m = 0; m < M; m++) {
                    int32_t two;
                    memcpy(&two, numbers[m] + 4 * (p0 + p), 4);
                    const s16 both = _mm256_set1_epi32(two);
                    octet_add32(&sum[m][0], _mm256_madd_epi16(w0, both));
                    octet_add32(&sum[m][1], _mm256_madd_epi16(w1, both));
                }
            }
        }
        UNROLL for (int m = 0; m < M; m++) {
            const __m256 step = _mm256_set1_ps(short_scales(x[m0 + m], groups)[g0 + g]);
            UNROLL for (int o = 0; o < short_octets; o++) t->sums[m0 + m][o] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[m][o]), step, t->sums[m0 + m][o]);
            numbers[m] += short_group * sizeof(int16_t);
        }
    }
}
#endif

static void short_tiles(const cpu_weight *w, int row0, int row1, int n, const float *const *x, float *const *y, short_tile *t) {
    const int groups = short_groups(w->columns);
    for (int row = row0; row < row1; row += short_octets * octet_rows) {
        octet octets[short_octets];
        for (int o = 0; o < short_octets; o++) octets[o] = octet_at(w, row + o * octet_rows, row1, 0);
        for (int m = 0; m < n; m++) UNROLL for (int o = 0; o < short_octets; o++) t->sums[m][o] = _mm256_setzero_ps();
        for (int g0 = 0; g0 < groups; g0 += short_chunk) {
            const int chunk = groups - g0 < short_chunk ? groups - g0 : short_chunk;
            for (int o = 0; o < short_octets; o++) octet_fetch(&octets[o], (size_t)g0 * short_group, chunk * short_group);
            for (int o = 0; o < short_octets; o++) {
                uint8_t rest[octet_rows][short_group];
                for (int g = 0; g < chunk; g++) {
                    const uint8_t *at[octet_rows];
                    short_group_at(&octets[o], g0 + g, rest, at);
                    short_tile_group(at, t->weights[g], o);
                }
            }
            int m = 0;
            for (; n - m >= octet_tile_most; m += octet_tile_most) {
                // Results lie apart in more memory than a second-level cache has: storing waited for it a tenth of the time.
                UNROLL for (int i = 0; i < octet_tile_most; i++) __builtin_prefetch(y[m + i] + (row - row0), 1);
                short_tile_rows(octet_tile_most, t, g0, chunk, groups, x, m);
            }
            if (octet_tile_most > 4 && n - m >= 4) {
                short_tile_rows(4, t, g0, chunk, groups, x, m);
                m += 4;
            }
            switch (n - m) {
            case 3: short_tile_rows(3, t, g0, chunk, groups, x, m); break;
            case 2: short_tile_rows(2, t, g0, chunk, groups, x, m); break;
            case 1: short_tile_rows(1, t, g0, chunk, groups, x, m); break;
            }
        }
        for (int m = 0; m < n; m++) {
            UNROLL for (int o = 0; o < short_octets; o++) octet_store(&octets[o], t->sums[m][o], y[m] + (row - row0) + o * octet_rows);
        }
    }
}

static void short_product(const cpu_weight *w, int row0, int row1, int n, const float *const *x, float *const *y, short_tile *t) {
    if (n <= short_few) short_direct(w, row0, row1, n, x, y);
    else short_tiles(w, row0, row1, n, x, y, t);
}
#endif
