// Sixteen float lanes: AVX-512 F, BW, VL, DQ, and VNNI for whole numbers.
#include "lanes_x86.h"

#define LANES_VNNI // whole numbers are multiplied and added to 32-bit sums by one instruction

#define LANES 16
typedef __m512 vf;
typedef __m512i vi;

static inline vf v_zero(void) { return _mm512_setzero_ps(); }
static inline vf v_set(float x) { return _mm512_set1_ps(x); }
static inline vf v_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void v_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
static inline vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
// The second operand wins when one is NaN.
static inline vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf v_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
// 2^n for whole n of -126 … 127
static inline vf v_power2(vf n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
// Halves are added until one lane is left.
static inline __m256 v_half(vf x) { return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)); }
static inline float v_sum(vf x) { return eight_sum(v_half(x)); }
// v_sum of each, added in the same order
static inline v4 v_sum4(vf a, vf b, vf c, vf d) { return eight_sum4(v_half(a), v_half(b), v_half(c), v_half(d)); }
// out[k] has p[j*stride+k] in lane j, for k < 8
static inline void v_columns(const float *p, int stride, vf *out) {
    __m512i at = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), _mm512_set1_epi32(stride));
    for (int k = 0; k < 8; k++) out[k] = _mm512_i32gather_ps(at, p + k, 4);
}

static inline vf v_from_i8(const int8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))); }
static inline vf v_from_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
static inline vf v_from_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
// e4m3 read as half precision: the value times 2^-8, exactly, subnormals included.
static inline vf v_from_fp8(const uint8_t *p) {
    __m256i b = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)), 7);
    return _mm512_cvtph_ps(_mm256_and_si256(b, _mm256_set1_epi16((short)0xBF80)));
}

// Sixteen 4-bit fields, of eight bytes, as what a table has for them: an index of it is four bits, whatever is above them.
#define LANES_NIBBLES
static inline vf v_nibbles(const void *p, vf table) {
    const __m512i word = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i shift = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    const __m512i words = _mm512_permutexvar_epi32(word, _mm512_castsi128_si512(_mm_loadl_epi64((const __m128i *)p)));
    return _mm512_permutexvar_ps(_mm512_srlv_epi32(words, shift), table);
}
// Their numbers, for a scale of 1.
static inline vf v_nibble_table(void) { return _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7); }

static inline vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
static inline vi vi_set(uint32_t x) { return _mm512_set1_epi32((int)x); }
static inline vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
static inline vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
static inline vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
static inline vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
#define vi_shr(a, n) _mm512_srli_epi32(a, n)
#define vi_shl(a, n) _mm512_slli_epi32(a, n)
static inline vf vi_float(vi a) { return _mm512_cvtepi32_ps(a); }
// The int3 planes of LANES·8 inputs, two groups of 24 bytes: lane j gets its 8 low fields (16 bits) and its 8 high bits.
static inline vi vi_int3_low(const uint8_t *p) {
    __m128i a = _mm_loadu_si128((const __m128i *)p), b = _mm_loadu_si128((const __m128i *)(p + 24));
    return _mm512_cvtepu16_epi32(_mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1));
}
static inline vi vi_int3_high(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(p + 16)), _mm_loadl_epi64((const __m128i *)(p + 40))));
}

// per scales spread over the lanes; per is 2, 4 or 8 here
static inline vf v_spread(const float *s, int per) {
    if (per == 2) {
        return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
                                     _mm512_castps128_ps512(_mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(const void *)s))));
    }
    if (per == 4) {
        return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3), _mm512_castps128_ps512(_mm_loadu_ps(s)));
    }
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), _mm512_castps256_ps512(_mm256_loadu_ps(s)));
}
static inline uint64_t vi_fold(vi a) {
    __m256i h = _mm256_xor_si256(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    __m128i b = _mm_xor_si128(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    return (uint64_t)(_mm_cvtsi128_si64(b) ^ _mm_extract_epi64(b, 1));
}
