// Part of kernels_body.h: products with whole numbers. Activations become 16-bit numbers with one scale for 64 columns; products with the
// weights' whole numbers and their sums within a group are exact, and one float step a group adds them up. A multiply instruction does
// 16 columns where the float path does 8, and weights need no conversion: twice the arithmetic a second.
//
// The rounding is half a 32767th of a group's largest activation, which adds less than 4e-5 of the largest result for activations like
// those of a model (short_test.go). Preparing activations has to pay, so that matrices of few columns, as in small models, stay with float32.
#ifdef LANES_SHORT

enum {
    short_group = 64,     // columns that share a scale
    short_rows = 8,       // rows of weights in the lanes of a sum
    short_octets = 2,     // of such rows, side by side in a tile
    short_chunk = 8,      // groups of a tile: 16 KiB of weights
    short_columns = 512,  // least columns of a weight that is multiplied so
};

typedef __m256i s16; // 16 numbers of 16 bits, or 8 of 32

static int short_scale_step(const cpu_weight *w) { return w->format == format_int4_group ? w->group / short_group : 0; } // groups a scale; 0: one a row

// ---- panels: the groups' numbers, then their scales, then what the weights' offset adds to their sums ----

static int short_fits(const cpu_weight *w) {
    return w->columns >= short_columns &&
           (w->format == format_int8_row || w->format == format_int4_row || (w->format == format_int4_group && w->group % short_group == 0));
}

INLINE int short_groups(int columns) { return (columns + short_group - 1) / short_group; }
static size_t short_panel_floats(int columns) { return (size_t)short_groups(columns) * (short_group / 2 + 2); }
INLINE const float *short_scales(const float *panel, int groups) { return panel + (size_t)groups * (short_group / 2); }
INLINE const int32_t *short_offsets(const float *panel, int groups) { return (const int32_t *)(const void *)(panel + (size_t)groups * (short_group / 2 + 1)); }

// Four vectors of neighbouring columns as four of every fourth column.
INLINE void short_by_fours(s16 v[4]) {
    const s16 within = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    const s16 across = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    UNROLL for (int i = 0; i < 4; i++) v[i] = _mm256_shuffle_epi8(v[i], within);
    const s16 low01 = _mm256_unpacklo_epi32(v[0], v[1]), high01 = _mm256_unpackhi_epi32(v[0], v[1]);
    const s16 low23 = _mm256_unpacklo_epi32(v[2], v[3]), high23 = _mm256_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(low01, low23), across);
    v[1] = _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(low01, low23), across);
    v[2] = _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi64(high01, high23), across);
    v[3] = _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi64(high01, high23), across);
}

// Nibbles of a 16-bit word belong to neighbouring columns, and come out of it in four steps: column 4j+k is at k·16+j.
static void short_prepare(int nibbles, const float *x, int columns, float *panel) {
    const int groups = short_groups(columns);
    int16_t *numbers = (int16_t *)(void *)panel;
    float *scales = panel + (size_t)groups * (short_group / 2);
    int32_t *offsets = (int32_t *)(void *)(scales + groups);
    const __m256 sign = _mm256_set1_ps(-0.0f), most = _mm256_set1_ps(3.4028235e38f);
    for (int g = 0; g < groups; g++, x += short_group, numbers += short_group) {
        float rest[short_group];
        const float *from = x;
        if (columns - g * short_group < short_group) {
            memset(rest, 0, sizeof rest);
            memcpy(rest, x, (size_t)(columns - g * short_group) * sizeof *x);
            from = rest;
        }
        __m256 v[8], largest = _mm256_setzero_ps(), finite = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
        UNROLL for (int i = 0; i < 8; i++) {
            v[i] = _mm256_loadu_ps(from + 8 * i);
            const __m256 size = _mm256_andnot_ps(sign, v[i]);
            finite = _mm256_and_ps(finite, _mm256_cmp_ps(size, most, _CMP_LE_OQ));
            largest = _mm256_max_ps(largest, size);
        }
        float lanes[8], top = 0;
        _mm256_storeu_ps(lanes, largest);
        for (int i = 0; i < 8; i++) top = lanes[i] > top ? lanes[i] : top;
        // A group with something that is not a finite number makes every result NaN: no finite number with float32 either.
        const int whole = _mm256_movemask_ps(finite) == 255;
        scales[g] = whole ? top / 32767 : __builtin_nanf("");
        // Groups this small would need a factor that is no number; they count as zeros.
        const __m256 factor = _mm256_set1_ps(whole && top > 1e-34f ? 32767 / top : 0);
        s16 packed[4], sum = _mm256_setzero_si256();
        UNROLL for (int i = 0; i < 4; i++) {
            packed[i] = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(v[2 * i], factor)), _mm256_cvtps_epi32(_mm256_mul_ps(v[2 * i + 1], factor)));
            packed[i] = _mm256_permute4x64_epi64(packed[i], 0xD8);
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(packed[i], _mm256_set1_epi16(1)));
        }
        if (nibbles) short_by_fours(packed);
        UNROLL for (int i = 0; i < 4; i++) _mm256_storeu_si256((__m256i *)(void *)(numbers + 16 * i), packed[i]);
        int32_t parts[8], total = 0;
        _mm256_storeu_si256((__m256i *)(void *)parts, sum);
        for (int i = 0; i < 8; i++) total += parts[i];
        offsets[g] = nibbles ? -8 * total : 0;
    }
}

// ---- weights as numbers ----

INLINE void short_unpack(const int nibbles, const uint8_t *raw, s16 out[4]) {
    if (nibbles) {
        const s16 v = _mm256_loadu_si256((const __m256i *)(const void *)raw), low = _mm256_set1_epi16(15);
        out[0] = _mm256_and_si256(v, low);
        out[1] = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
        out[2] = _mm256_and_si256(_mm256_srli_epi16(v, 8), low);
        out[3] = _mm256_srli_epi16(v, 12);
    } else {
        UNROLL for (int k = 0; k < 4; k++) out[k] = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(raw + 16 * k)));
    }
}

// Eight rows of weights: where they are, and what of them is beyond the matrix's last row or column.
typedef struct {
    const uint8_t *raw[short_rows];
    const float *scales;
    size_t stride;
    int count;        // real ones; the others repeat the last
    int groups, step; // scales of a row, and the activations' groups that each is for
} short_octet;

static short_octet short_octet_at(const cpu_weight *w, int row, int row1) {
    short_octet o = {.stride = cpu_row_bytes(w), .count = row1 - row < short_rows ? row1 - row : short_rows};
    for (int r = 0; r < short_rows; r++) o.raw[r] = (const uint8_t *)w->data + (size_t)(row + (r < o.count ? r : o.count - 1)) * o.stride;
    o.step = short_scale_step(w);
    o.groups = o.step ? (w->columns + w->group - 1) / w->group : 1;
    o.scales = w->scales + (size_t)row * (size_t)o.groups;
    return o;
}

// Moves to group g; a last group that the row does not fill is completed with zeros, which meet zeros of the panel.
INLINE void short_group_at(const int nibbles, const short_octet *o, int g, uint8_t rest[short_rows][short_group], const uint8_t *at[short_rows]) {
    const size_t bytes = nibbles ? short_group / 2 : short_group, from = (size_t)g * bytes;
    UNROLL for (int r = 0; r < short_rows; r++) at[r] = o->raw[r] + from;
    if (from + bytes <= o->stride) return;
    for (int r = 0; r < short_rows; r++) at[r] = padded(rest[r], at[r], o->stride - from, bytes);
}

// The 32-bit numbers of eight vectors as a matrix, transposed.
INLINE void short_transpose(s16 v[8]) {
    s16 a[8], b[8];
    UNROLL for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
    UNROLL for (int i = 0; i < 8; i += 4) {
        UNROLL for (int j = 0; j < 2; j++) {
            b[i + 2 * j] = _mm256_unpacklo_epi64(a[i + j], a[i + 2 + j]);
            b[i + 2 * j + 1] = _mm256_unpackhi_epi64(a[i + j], a[i + 2 + j]);
        }
    }
    UNROLL for (int j = 0; j < 4; j++) {
        v[j] = _mm256_permute2x128_si256(b[j], b[4 + j], 0x20);
        v[4 + j] = _mm256_permute2x128_si256(b[j], b[4 + j], 0x31);
    }
}

// The scales of eight rows for groups g0 … g0+short_chunk-1, the rows in the lanes. Those of one row lie together.
static void short_scale_columns(const short_octet *o, int g0, __m256 *out) {
    // No divisions where the weights' groups are as wide as the activations', as mostly.
    const int step = o->step, first = step == 1 ? g0 : g0 / step, n = o->groups - first < short_rows ? o->groups - first : short_rows;
    float rest[short_rows][short_rows];
    const float *from = o->scales + first;
    size_t stride = (size_t)o->groups;
    UNROLL for (int r = 0; r < short_rows; r++) __builtin_prefetch(from + (size_t)(short_rows + r) * stride);
    if (n < short_rows || o->count < short_rows) {
        memset(rest, 0, sizeof rest);
        for (int r = 0; r < o->count; r++) memcpy(rest[r], from + (size_t)r * stride, (size_t)n * sizeof(float));
        from = rest[0];
        stride = short_rows;
    }
    s16 columns[short_rows];
    UNROLL for (int r = 0; r < short_rows; r++) columns[r] = _mm256_loadu_si256((const __m256i *)(const void *)(from + (size_t)r * stride));
    short_transpose(columns);
    for (int g = 0; g < short_chunk; g++) {
        const int at = step == 1 ? g : (g0 + g) / step - first;
        out[g] = _mm256_castsi256_ps(columns[at < n ? at : n - 1]); // beyond the row's end the last scales stand in
    }
}

// ---- few rows ----

// a's and b's sums by pairs of lanes: the first step of three that turn eight vectors into one of their sums.
INLINE s16 short_pair(s16 a, s16 b) { return _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)); }
INLINE s16 short_four(s16 a, s16 b) { return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)); }
INLINE s16 short_eight(s16 a, s16 b) { return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31)); }

// out[m] = the eight rows' sums of one group with M rows of activations.
INLINE void short_direct_group(const int nibbles, const int M, const uint8_t *const at[short_rows], const int16_t *const *x, s16 out[3]) {
    s16 four[2][3], pair[2][3], one[2][3];
    UNROLL for (int h = 0; h < 2; h++) {
        UNROLL for (int i = 0; i < 2; i++) {
            UNROLL for (int j = 0; j < 2; j++) {
                s16 f[4];
                short_unpack(nibbles, at[h * 4 + i * 2 + j], f);
                UNROLL for (int m = 0; m < M; m++) {
                    s16 sum = _mm256_madd_epi16(f[0], _mm256_loadu_si256((const __m256i *)(const void *)x[m]));
                    UNROLL for (int k = 1; k < 4; k++) sum = _mm256_add_epi32(sum, _mm256_madd_epi16(f[k], _mm256_loadu_si256((const __m256i *)(const void *)(x[m] + 16 * k))));
                    one[j][m] = sum;
                }
            }
            UNROLL for (int m = 0; m < M; m++) pair[i][m] = short_pair(one[0][m], one[1][m]);
        }
        UNROLL for (int m = 0; m < M; m++) four[h][m] = short_four(pair[0][m], pair[1][m]);
    }
    UNROLL for (int m = 0; m < M; m++) out[m] = short_eight(four[0][m], four[1][m]);
}

INLINE void short_store(const cpu_weight *w, int row, int count, __m256 sum, float *y) {
    float lanes[short_rows];
    _mm256_storeu_ps(lanes, sum);
    const float *scales = short_scale_step(w) ? NULL : w->scales + row;
    for (int r = 0; r < count; r++) y[r] = scales ? lanes[r] * scales[r] : lanes[r];
}

INLINE void short_direct(const int nibbles, const int M, const cpu_weight *w, int row0, int row1, const float *const *x, float *const *y) {
    const int groups = short_groups(w->columns), step = short_scale_step(w);
    // The same place of the next eight rows: fetched nearer, short rows are not there in time (4.5 to 8.9 GB/s a core, int4-g64 of 768x2048).
    const size_t ahead = short_rows * cpu_row_bytes(w);
    for (int row = row0; row < row1; row += short_rows) {
        const short_octet o = short_octet_at(w, row, row1);
        uint8_t rest[short_rows][short_group];
        const int16_t *numbers[3];
        __m256 sum[3], scale[short_chunk];
        UNROLL for (int m = 0; m < M; m++) {
            numbers[m] = (const int16_t *)(const void *)x[m];
            sum[m] = _mm256_setzero_ps();
        }
        for (int g = 0; g < groups; g++) {
            if (step && g % short_chunk == 0) short_scale_columns(&o, g, scale);
            const uint8_t *at[short_rows];
            short_group_at(nibbles, &o, g, rest, at);
            UNROLL for (int r = 0; r < short_rows; r++) __builtin_prefetch(at[r] + ahead);
            s16 whole[3];
            short_direct_group(nibbles, M, at, numbers, whole);
            UNROLL for (int m = 0; m < M; m++) {
                const __m256 own = _mm256_set1_ps(short_scales(x[m], groups)[g]);
                const __m256 both = step ? _mm256_mul_ps(scale[g % short_chunk], own) : own;
                if (nibbles) whole[m] = _mm256_add_epi32(whole[m], _mm256_set1_epi32(short_offsets(x[m], groups)[g]));
                sum[m] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[m]), both, sum[m]);
                numbers[m] += short_group;
            }
        }
        UNROLL for (int m = 0; m < M; m++) short_store(w, row, o.count, sum[m], y[m] + (row - row0));
    }
}

// ---- many rows ----

typedef struct {
    __m256i weights[short_chunk][short_group / 2][short_octets]; // pairs of columns; eight rows in the lanes
    __m256 scales[short_octets][short_chunk];
    __m256 sums[product_batch][short_octets];
} short_tile;

// One group of eight rows, in the panel's order of columns.
INLINE void short_tile_group(const int nibbles, const uint8_t *const at[short_rows], s16 (*out)[short_octets], int o) {
    s16 v[8];
    if (nibbles) {
        const s16 low = _mm256_set1_epi16(15);
        UNROLL for (int r = 0; r < 8; r++) v[r] = _mm256_loadu_si256((const __m256i *)(const void *)at[r]);
        short_transpose(v);
        UNROLL for (int d = 0; d < 8; d++) {
            out[d][o] = _mm256_and_si256(v[d], low);
            out[8 + d][o] = _mm256_and_si256(_mm256_srli_epi16(v[d], 4), low);
            out[16 + d][o] = _mm256_and_si256(_mm256_srli_epi16(v[d], 8), low);
            out[24 + d][o] = _mm256_srli_epi16(v[d], 12);
        }
        return;
    }
    const s16 first = _mm256_broadcastsi128_si256(_mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13));
    const s16 second = _mm256_broadcastsi128_si256(_mm_setr_epi8(-1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15));
    UNROLL for (int h = 0; h < 2; h++) {
        UNROLL for (int r = 0; r < 8; r++) v[r] = _mm256_loadu_si256((const __m256i *)(const void *)(at[r] + 32 * h));
        short_transpose(v);
        UNROLL for (int d = 0; d < 8; d++) {
            out[16 * h + 2 * d][o] = _mm256_srai_epi16(_mm256_shuffle_epi8(v[d], first), 8);
            out[16 * h + 2 * d + 1][o] = _mm256_srai_epi16(_mm256_shuffle_epi8(v[d], second), 8);
        }
    }
}

// The tile's groups, g0 being the first of them, times M rows of activations.
INLINE void short_tile_rows(const int nibbles, const int scaled, const int M, short_tile *t, int g0, int chunk, int groups, const float *const *x, int m0) {
    const char *numbers[4];
    UNROLL for (int m = 0; m < M; m++) numbers[m] = (const char *)x[m0 + m] + (size_t)g0 * short_group * sizeof(int16_t);
    for (int g = 0; g < chunk; g++) {
        s16 sum[4][short_octets];
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int o = 0; o < short_octets; o++)
            sum[m][o] = nibbles ? _mm256_set1_epi32(short_offsets(x[m0 + m], groups)[g0 + g]) : _mm256_setzero_si256();
        for (int p = 0; p < short_group / 2; p++) {
            const s16 w0 = _mm256_load_si256(&t->weights[g][p][0]), w1 = _mm256_load_si256(&t->weights[g][p][1]);
            UNROLL for (int m = 0; m < M; m++) {
                int32_t two;
                memcpy(&two, numbers[m] + 4 * p, 4);
                const s16 both = _mm256_set1_epi32(two);
                sum[m][0] = _mm256_add_epi32(sum[m][0], _mm256_madd_epi16(w0, both));
                sum[m][1] = _mm256_add_epi32(sum[m][1], _mm256_madd_epi16(w1, both));
            }
        }
        UNROLL for (int m = 0; m < M; m++) {
            const __m256 own = _mm256_set1_ps(short_scales(x[m0 + m], groups)[g0 + g]);
            UNROLL for (int o = 0; o < short_octets; o++) {
                const __m256 factor = scaled ? _mm256_mul_ps(t->scales[o][g], own) : own;
                t->sums[m0 + m][o] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[m][o]), factor, t->sums[m0 + m][o]);
            }
            numbers[m] += short_group * sizeof(int16_t);
        }
    }
}

INLINE void short_tiles(const int nibbles, const int scaled, const cpu_weight *w, int row0, int row1, int n, const float *const *x, float *const *y, short_tile *t) {
    const int groups = short_groups(w->columns);
    for (int row = row0; row < row1; row += short_octets * short_rows) {
        short_octet octet[short_octets];
        for (int o = 0; o < short_octets; o++) {
            // a second one that is beyond the end repeats the last row
            const int at = row + o * short_rows;
            octet[o] = short_octet_at(w, at < row1 ? at : row1 - 1, row1);
            if (at >= row1) octet[o].count = 0;
        }
        for (int m = 0; m < n; m++) UNROLL for (int o = 0; o < short_octets; o++) t->sums[m][o] = _mm256_setzero_ps();
        for (int g0 = 0; g0 < groups; g0 += short_chunk) {
            const int chunk = groups - g0 < short_chunk ? groups - g0 : short_chunk;
            for (int o = 0; o < short_octets; o++) {
                uint8_t rest[short_rows][short_group];
                for (int g = 0; g < chunk; g++) {
                    const uint8_t *at[short_rows];
                    short_group_at(nibbles, &octet[o], g0 + g, rest, at);
                    short_tile_group(nibbles, at, t->weights[g], o);
                }
                if (scaled) short_scale_columns(&octet[o], g0, t->scales[o]);
            }
            int m = 0;
            for (; n - m >= 4; m += 4) short_tile_rows(nibbles, scaled, 4, t, g0, chunk, groups, x, m);
            switch (n - m) {
            case 3: short_tile_rows(nibbles, scaled, 3, t, g0, chunk, groups, x, m); break;
            case 2: short_tile_rows(nibbles, scaled, 2, t, g0, chunk, groups, x, m); break;
            case 1: short_tile_rows(nibbles, scaled, 1, t, g0, chunk, groups, x, m); break;
            }
        }
        for (int o = 0; o < short_octets; o++) {
            for (int m = 0; m < n; m++) short_store(w, row + o * short_rows, octet[o].count, t->sums[m][o], y[m] + (row - row0) + o * short_rows);
        }
    }
}

INLINE void short_rows_of(const int nibbles, const int scaled, const cpu_weight *w, int row0, int row1, int n, const float *const *x, float *const *y, short_tile *t) {
    switch (n) {
    case 1: short_direct(nibbles, 1, w, row0, row1, x, y); return;
    case 2: short_direct(nibbles, 2, w, row0, row1, x, y); return;
    case 3: short_direct(nibbles, 3, w, row0, row1, x, y); return;
    default: short_tiles(nibbles, scaled, w, row0, row1, n, x, y, t);
    }
}

static void short_product(const cpu_weight *w, int row0, int row1, int n, const float *const *x, float *const *y, short_tile *t) {
    switch (w->format) {
    case format_int8_row: short_rows_of(0, 0, w, row0, row1, n, x, y, t); return;
    case format_int4_row: short_rows_of(1, 0, w, row0, row1, n, x, y, t); return;
    default: short_rows_of(1, 1, w, row0, row1, n, x, y, t);
    }
}
#endif
