// Eight float lanes in plain C, for processors without the other variants and as a reading aid for them.
#include <math.h>
#include <string.h>

#define LANES 8
#define LANES_PORTABLE
// Vector types rather than structures of arrays: gcc needed minutes for the latter once everything was inlined, and seconds for these.
typedef float vf __attribute__((vector_size(32)));
typedef uint32_t vi __attribute__((vector_size(32)));
typedef float v4 __attribute__((vector_size(16)));
#define EACH for (int i = 0; i < 8; i++)

static inline vf v_set(float x) {
    vf r = {0};
    EACH r[i] = x;
    return r;
}
static inline vf v_zero(void) { return v_set(0); }
static inline vf v_load(const float *p) {
    vf r = {0};
    memcpy(&r, p, sizeof r);
    return r;
}
static inline void v_store(float *p, vf x) { memcpy(p, &x, sizeof x); }
static inline vf v_add(vf a, vf b) {
    EACH a[i] += b[i];
    return a;
}
static inline vf v_sub(vf a, vf b) {
    EACH a[i] -= b[i];
    return a;
}
static inline vf v_mul(vf a, vf b) {
    EACH a[i] *= b[i];
    return a;
}
static inline vf v_div(vf a, vf b) {
    EACH a[i] /= b[i];
    return a;
}
// Whether it is fused must not depend on where the compiler inlines it: always where that is one instruction, and a
// processor for which it is not has nothing to contract to.
static inline vf v_fma(vf a, vf b, vf c) {
#ifdef __FP_FAST_FMAF
    EACH c[i] = fmaf(a[i], b[i], c[i]);
#else
    EACH c[i] += a[i] * b[i];
#endif
    return c;
}
// The second operand wins when one is NaN.
static inline vf v_max(vf a, vf b) {
    EACH b[i] = a[i] > b[i] ? a[i] : b[i];
    return b;
}
static inline vf v_min(vf a, vf b) {
    EACH b[i] = a[i] < b[i] ? a[i] : b[i];
    return b;
}
static inline vf v_round(vf a) {
    EACH a[i] = rintf(a[i]);
    return a;
}
static inline float bits_float(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
// 2^n for whole n of -126 … 127; NaN gives any number
static inline vf v_power2(vf n) {
    EACH n[i] = n[i] == n[i] ? bits_float((uint32_t)((int32_t)n[i] + 127) << 23) : 1;
    return n;
}
static inline float v_sum(vf x) { return ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7])); }
static inline v4 v_sum4(vf a, vf b, vf c, vf d) { return (v4){v_sum(a), v_sum(b), v_sum(c), v_sum(d)}; }
static inline void v4_store(float *p, v4 x) { memcpy(p, &x, sizeof x); }
static inline v4 v4_scaled(v4 x, const float *factors) {
    for (int i = 0; i < 4; i++) x[i] *= factors[i];
    return x;
}
// out[k] has p[j*stride+k] in lane j, for k < 8
static inline void v_columns(const float *p, int stride, vf *out) {
    for (int k = 0; k < 8; k++) EACH out[k][i] = p[i * stride + k];
}

static inline vf v_from_i8(const int8_t *p) {
    vf r = {0};
    EACH r[i] = p[i];
    return r;
}
static inline vf v_from_bf16(const uint16_t *p) {
    vf r = {0};
    EACH r[i] = bits_float((uint32_t)p[i] << 16);
    return r;
}
static inline float half_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7FFF;
    if (rest >= 0x7C00) return bits_float(sign | 0x7F800000 | (rest & 0x3FF) << 13);
    float f = bits_float(rest << 13) * 0x1p112f;
    return sign ? -f : f;
}
static inline vf v_from_f16(const uint16_t *p) {
    vf r = {0};
    EACH r[i] = half_float(p[i]);
    return r;
}
// e4m3 read as half precision: the value times 2^-8, exactly, subnormals included.
static inline vf v_from_fp8(const uint8_t *p) {
    vf r = {0};
    EACH r[i] = half_float((uint16_t)((p[i] & 0x80) << 8 | (p[i] & 0x7F) << 7));
    return r;
}

static inline vi vi_load(const void *p) {
    vi r = {0};
    memcpy(&r, p, sizeof r);
    return r;
}
static inline vi vi_set(uint32_t x) {
    vi r = {0};
    EACH r[i] = x;
    return r;
}
static inline vi vi_and(vi a, vi b) {
    EACH a[i] &= b[i];
    return a;
}
static inline vi vi_xor(vi a, vi b) {
    EACH a[i] ^= b[i];
    return a;
}
static inline vi vi_or(vi a, vi b) {
    EACH a[i] |= b[i];
    return a;
}
static inline vi vi_add(vi a, vi b) {
    EACH a[i] += b[i];
    return a;
}
static inline vi vi_shr(vi a, int n) {
    EACH a[i] >>= n;
    return a;
}
static inline vi vi_shl(vi a, int n) {
    EACH a[i] <<= n;
    return a;
}
static inline vf vi_float(vi a) {
    vf r = {0};
    EACH r[i] = (float)(int32_t)a[i];
    return r;
}
// The int3 planes of LANES·8 inputs: lane j gets its 8 low fields (16 bits) and its 8 high bits.
static inline vi vi_int3_low(const uint8_t *p) {
    vi r = {0};
    EACH r[i] = (uint32_t)p[2 * i] | (uint32_t)p[2 * i + 1] << 8;
    return r;
}
static inline vi vi_int3_high(const uint8_t *p) {
    vi r = {0};
    EACH r[i] = p[16 + i];
    return r;
}

// per scales spread over the lanes; per is 2 or 4 here
static inline vf v_spread(const float *s, int per) {
    vf r = {0};
    EACH r[i] = s[i * per / 8];
    return r;
}
static inline uint64_t vi_fold(vi a) {
    uint64_t r = 0;
    EACH r ^= (uint64_t)a[i] << (i % 2 * 32);
    return r;
}
