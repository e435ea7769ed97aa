// Part of kernels_body.h, for x86: eight rows of a weight whose sums lie in the lanes of one vector, as products with whole numbers have them.
#ifdef LANES_SHORT

enum {
    octet_rows = 8,
    octet_scale_chunk = 8, // groups of activations whose scales are brought into columns at once
    // Rows of activations that are multiplied with a tile's weights together, as many as there are registers for their sums.
#ifdef LANES_VNNI
    octet_tile_most = 8,
#else
    octet_tile_most = 4,
#endif
};

typedef __m256i s16; // 32 bytes, 16 numbers of 16 bits, or 8 of 32

// Sums of whole numbers in place and in the order written. Left to them, compilers add up in another order, in which products that wait for
// their sum do not fit the registers (170 to 280 GFLOP/s for 256 rows times int4-g64), or copy every sum of a tile (one core, 128 rows times int8 of
// 320 x 320: 80 to 125 GFLOP/s, where float32 multiply-adds alone do 96).
INLINE void octet_add16(s16 *sum, s16 x) { __asm__("vpaddw %1, %0, %0" : "+x"(*sum) : "x"(x)); }
INLINE void octet_add32(s16 *sum, s16 x) { __asm__("vpaddd %1, %0, %0" : "+x"(*sum) : "x"(x)); }

// a's and b's sums by pairs of 32-bit lanes: the first step of three that turn eight vectors into one of their sums.
INLINE s16 octet_pair(s16 a, s16 b) { return _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)); }
INLINE s16 octet_four(s16 a, s16 b) { return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)); }
INLINE s16 octet_eight(s16 a, s16 b) { return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31)); }

// Where eight rows are, and what of them is beyond the matrix's last row.
typedef struct {
    const uint8_t *raw[octet_rows];
    const float *scales;
    size_t stride;
    int count;        // real ones, 0 where all are beyond the end; the others repeat the last
    int groups, step; // scales of a row, and the activations' groups that each is for; step 0: one a row
} octet;

INLINE octet octet_at(const cpu_weight *w, int row, int row1, int step) {
    const int left = row1 - row;
    octet o = {.stride = cpu_row_bytes(w), .count = left < 0 ? 0 : left < octet_rows ? left : octet_rows, .step = step};
    for (int r = 0; r < octet_rows; r++) o.raw[r] = (const uint8_t *)w->data + (size_t)(r < left ? row + r : row1 - 1) * o.stride;
    o.groups = scale_count(w);
    o.scales = row_scales(w, left > 0 ? row : row1 - 1);
    return o;
}

// Brings a stretch of eight rows into the cache, all lines at once, before they are made into a tile row by row.
INLINE void octet_fetch(const octet *o, size_t from, int bytes) {
    UNROLL for (int r = 0; r < octet_rows; r++) {
        for (int line = 0; line < bytes; line += 64) __builtin_prefetch(o->raw[r] + from + line);
    }
}

// The 32-bit numbers of eight vectors as a matrix, transposed.
INLINE void octet_transpose(s16 v[8]) {
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

// The scales of eight rows for the activations' groups g0 … g0+octet_scale_chunk-1, the rows in the lanes. Those of one row lie together.
static void octet_scales(const octet *o, int g0, __m256 *out) {
    const int first = o->step == 1 ? g0 : g0 / o->step, n = o->groups - first;
    const float *from = o->scales + first;
    const s16 there = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    fetch_lines((const uint8_t *)(o->scales + octet_rows * (size_t)(o->groups + first)), octet_rows * octet_scale_chunk * sizeof(float), 0);
    s16 columns[octet_rows];
    UNROLL for (int r = 0; r < octet_rows; r++) {
        const float *row = from + (size_t)(r < o->count ? r : 0) * (size_t)o->groups; // those beyond the end are not stored
        columns[r] = _mm256_castps_si256(_mm256_maskload_ps(row, there));
    }
    octet_transpose(columns);
    if (o->step == 1) {
        UNROLL for (int g = 0; g < octet_scale_chunk; g++) out[g] = _mm256_castsi256_ps(columns[g]);
    } else {
        for (int g = 0; g < octet_scale_chunk; g++) out[g] = _mm256_castsi256_ps(columns[(g0 + g) / o->step - first]);
    }
}

// Loads 64 activations, of which left are there and the others count as zeros, and gives what they are multiplied with to become
// whole numbers of most at most; scale is the step. A group with something that is not a finite number makes every result NaN: no
// finite number with float32 either. Groups so small that the factor would be none count as zeros.
INLINE float octet_load_group(const float *x, int left, float most, float rest[64], __m256 v[8], float *scale) {
    const __m256 sign = _mm256_set1_ps(-0.0f), finite_most = _mm256_set1_ps(3.4028235e38f);
    if (left < 64) {
        memset(rest, 0, 64 * sizeof *rest);
        if (left > 0) memcpy(rest, x, (size_t)left * sizeof *x);
        x = rest;
    }
    __m256 largest = _mm256_setzero_ps(), finite = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    UNROLL for (int i = 0; i < 8; i++) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        const __m256 size = _mm256_andnot_ps(sign, v[i]);
        finite = _mm256_and_ps(finite, _mm256_cmp_ps(size, finite_most, _CMP_LE_OQ));
        largest = _mm256_max_ps(largest, size);
    }
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(largest), _mm256_extractf128_ps(largest, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    const float top = _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
    const int whole = _mm256_movemask_ps(finite) == 255;
    *scale = whole ? top / most : __builtin_nanf("");
    return whole && top > 1e-34f ? most / top : 0;
}

// Sums of eight rows to y, those of formats with one scale a row multiplied with it.
INLINE void octet_store(const octet *o, __m256 sum, float *y) {
    if (o->count == octet_rows) {
        _mm256_storeu_ps(y, o->step ? sum : _mm256_mul_ps(sum, _mm256_loadu_ps(o->scales)));
        return;
    }
    float lanes[octet_rows];
    _mm256_storeu_ps(lanes, sum);
    for (int r = 0; r < o->count; r++) y[r] = o->step ? lanes[r] : lanes[r] * o->scales[r];
}
#endif
