// What the x86 lanes share: sums of eight lanes, and four results side by side.
#include <immintrin.h>

#define LANES_SHORT // has kernels_octets.h, kernels_short.h and kernels_bytes_x86.h
typedef __m128 v4;

// ((l0+l4)+(l2+l6)) + ((l1+l5)+(l3+l7))
static inline float eight_sum(__m256 x) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
// eight_sum of each, added in the same order
static inline v4 eight_sum4(__m256 a, __m256 b, __m256 c, __m256 d) {
    __m256 ac = _mm256_add_ps(_mm256_blend_ps(a, c, 0xF0), _mm256_permute2f128_ps(a, c, 0x21));
    __m256 bd = _mm256_add_ps(_mm256_blend_ps(b, d, 0xF0), _mm256_permute2f128_ps(b, d, 0x21));
    __m256d low = _mm256_unpacklo_pd(_mm256_castps_pd(ac), _mm256_castps_pd(bd)), high = _mm256_unpackhi_pd(_mm256_castps_pd(ac), _mm256_castps_pd(bd));
    __m256 s = _mm256_add_ps(_mm256_castpd_ps(low), _mm256_castpd_ps(high));
    __m128 ab = _mm256_castps256_ps128(s), cd = _mm256_extractf128_ps(s, 1);
    return _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xDD));
}
static inline void v4_store(float *p, v4 x) { _mm_storeu_ps(p, x); }
static inline v4 v4_scaled(v4 x, const float *factors) { return _mm_mul_ps(x, _mm_loadu_ps(factors)); }
