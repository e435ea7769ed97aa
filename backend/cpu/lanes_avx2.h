// Eight float lanes: AVX2, FMA, F16C.
#include "lanes_x86.h"

#define LANES 8
typedef __m256 vf;
typedef __m256i vi;

static inline vf v_zero(void) { return _mm256_setzero_ps(); }
static inline vf v_set(float x) { return _mm256_set1_ps(x); }
static inline vf v_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void v_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
static inline vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
// The second operand wins when one is NaN.
static inline vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vf v_round(vf a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// 2^n for whole n of -126 … 127
static inline vf v_power2(vf n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
static inline float v_sum(vf x) { return eight_sum(x); }
// v_sum of each, added in the same order
static inline v4 v_sum4(vf a, vf b, vf c, vf d) { return eight_sum4(a, b, c, d); }
// out[k] has p[j*stride+k] in lane j, for k < 8
static inline void v_columns(const float *p, int stride, vf *out) {
    __m256 pair[8], four[8];
    for (int h = 0; h < 8; h += 4) {
        for (int i = 0; i < 2; i++) {
            const float *q = p + (h + 2 * i) * stride;
            __m256 a = _mm256_loadu_ps(q), b = _mm256_loadu_ps(q + stride);
            pair[h + 2 * i] = _mm256_unpacklo_ps(a, b);
            pair[h + 2 * i + 1] = _mm256_unpackhi_ps(a, b);
        }
        for (int i = 0; i < 2; i++) {
            __m256d a = _mm256_castps_pd(pair[h + i]), b = _mm256_castps_pd(pair[h + 2 + i]);
            four[h + 2 * i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, b));
            four[h + 2 * i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, b));
        }
    }
    for (int k = 0; k < 4; k++) {
        out[k] = _mm256_permute2f128_ps(four[k], four[4 + k], 0x20);
        out[4 + k] = _mm256_permute2f128_ps(four[k], four[4 + k], 0x31);
    }
}

static inline vf v_from_i8(const int8_t *p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))); }
static inline vf v_from_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static inline vf v_from_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
// e4m3 read as half precision: the value times 2^-8, exactly, subnormals included.
static inline vf v_from_fp8(const uint8_t *p) {
    __m128i b = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p)), 7);
    return _mm256_cvtph_ps(_mm_and_si128(b, _mm_set1_epi16((short)0xBF80)));
}
// Half of sixteen, which are widened together: both are wanted one after the other.
#define LANES_FP8_PAIRS
static inline vf v_half_from_fp8(const uint8_t *p, int half) {
    __m256i b = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)), 7);
    b = _mm256_and_si256(b, _mm256_set1_epi16((short)0xBF80));
    return _mm256_cvtph_ps(half ? _mm256_extracti128_si256(b, 1) : _mm256_castsi256_si128(b));
}

static inline vi vi_load(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline vi vi_set(uint32_t x) { return _mm256_set1_epi32((int)x); }
static inline vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
static inline vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
static inline vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
static inline vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
#define vi_shr(a, n) _mm256_srli_epi32(a, n)
#define vi_shl(a, n) _mm256_slli_epi32(a, n)
static inline vf vi_float(vi a) { return _mm256_cvtepi32_ps(a); }
// The int3 planes of LANES·8 inputs: lane j gets its 8 low fields (16 bits) and its 8 high bits.
static inline vi vi_int3_low(const uint8_t *p) { return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)); }
static inline vi vi_int3_high(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 16))); }

// per scales spread over the lanes; per is 2 or 4 here
static inline vf v_spread(const float *s, int per) {
    if (per == 2) {
        return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(const void *)s))),
                                        _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
    }
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(s)), _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
}
static inline uint64_t vi_fold(vi a) {
    __m128i b = _mm_xor_si128(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    return (uint64_t)(_mm_cvtsi128_si64(b) ^ _mm_extract_epi64(b, 1));
}
