// Eight float lanes in plain C, for processors without the other variants and as a reading aid for them.
#include <math.h>
#include <string.h>

#define LANES 8
typedef struct {
    float f[8];
} vf;
typedef struct {
    uint32_t u[8];
} vi;
#define EACH for (int i = 0; i < 8; i++)

static inline vf v_set(float x) {
    vf r;
    EACH r.f[i] = x;
    return r;
}
static inline vf v_zero(void) { return v_set(0); }
static inline vf v_load(const float *p) {
    vf r;
    memcpy(r.f, p, sizeof r.f);
    return r;
}
static inline void v_store(float *p, vf x) { memcpy(p, x.f, sizeof x.f); }
static inline vf v_add(vf a, vf b) {
    EACH a.f[i] += b.f[i];
    return a;
}
static inline vf v_sub(vf a, vf b) {
    EACH a.f[i] -= b.f[i];
    return a;
}
static inline vf v_mul(vf a, vf b) {
    EACH a.f[i] *= b.f[i];
    return a;
}
static inline vf v_div(vf a, vf b) {
    EACH a.f[i] /= b.f[i];
    return a;
}
// Whether it is fused must not depend on where the compiler inlines it: always where that is one instruction, and a
// processor for which it is not has nothing to contract to.
static inline vf v_fma(vf a, vf b, vf c) {
#ifdef __FP_FAST_FMAF
    EACH c.f[i] = fmaf(a.f[i], b.f[i], c.f[i]);
#else
    EACH c.f[i] += a.f[i] * b.f[i];
#endif
    return c;
}
// The second operand wins when one is NaN.
static inline vf v_max(vf a, vf b) {
    EACH b.f[i] = a.f[i] > b.f[i] ? a.f[i] : b.f[i];
    return b;
}
static inline vf v_min(vf a, vf b) {
    EACH b.f[i] = a.f[i] < b.f[i] ? a.f[i] : b.f[i];
    return b;
}
static inline vf v_round(vf a) {
    EACH a.f[i] = rintf(a.f[i]);
    return a;
}
static inline float bits_float(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
// 2^n for whole n of -126 … 127; NaN gives any number
static inline vf v_power2(vf n) {
    EACH n.f[i] = n.f[i] == n.f[i] ? bits_float((uint32_t)((int32_t)n.f[i] + 127) << 23) : 1;
    return n;
}
static inline float v_sum(vf x) { return ((x.f[0] + x.f[4]) + (x.f[2] + x.f[6])) + ((x.f[1] + x.f[5]) + (x.f[3] + x.f[7])); }

static inline vf v_from_i8(const int8_t *p) {
    vf r;
    EACH r.f[i] = p[i];
    return r;
}
static inline vf v_from_bf16(const uint16_t *p) {
    vf r;
    EACH r.f[i] = bits_float((uint32_t)p[i] << 16);
    return r;
}
static inline float half_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7FFF;
    if (rest >= 0x7C00) return bits_float(sign | 0x7F800000 | (rest & 0x3FF) << 13);
    float f = bits_float(rest << 13) * 0x1p112f;
    return sign ? -f : f;
}
static inline vf v_from_f16(const uint16_t *p) {
    vf r;
    EACH r.f[i] = half_float(p[i]);
    return r;
}
// e4m3 read as half precision: the value times 2^-8, exactly, subnormals included.
static inline vf v_from_fp8(const uint8_t *p) {
    vf r;
    EACH r.f[i] = half_float((uint16_t)((p[i] & 0x80) << 8 | (p[i] & 0x7F) << 7));
    return r;
}

static inline vi vi_load(const void *p) {
    vi r;
    memcpy(r.u, p, sizeof r.u);
    return r;
}
static inline vi vi_set(uint32_t x) {
    vi r;
    EACH r.u[i] = x;
    return r;
}
static inline vi vi_and(vi a, vi b) {
    EACH a.u[i] &= b.u[i];
    return a;
}
static inline vi vi_xor(vi a, vi b) {
    EACH a.u[i] ^= b.u[i];
    return a;
}
static inline vi vi_or(vi a, vi b) {
    EACH a.u[i] |= b.u[i];
    return a;
}
static inline vi vi_add(vi a, vi b) {
    EACH a.u[i] += b.u[i];
    return a;
}
static inline vi vi_shr(vi a, int n) {
    EACH a.u[i] >>= n;
    return a;
}
static inline vi vi_shl(vi a, int n) {
    EACH a.u[i] <<= n;
    return a;
}
static inline vf vi_float(vi a) {
    vf r;
    EACH r.f[i] = (float)(int32_t)a.u[i];
    return r;
}
// The int3 planes of LANES·8 inputs: lane j gets its 8 low fields (16 bits) and its 8 high bits.
static inline vi vi_int3_low(const uint8_t *p) {
    vi r;
    EACH r.u[i] = (uint32_t)p[2 * i] | (uint32_t)p[2 * i + 1] << 8;
    return r;
}
static inline vi vi_int3_high(const uint8_t *p) {
    vi r;
    EACH r.u[i] = p[16 + i];
    return r;
}

// per scales spread over the lanes; per is 2 or 4 here
static inline vf v_spread(const float *s, int per) {
    vf r;
    EACH r.f[i] = s[i * per / 8];
    return r;
}
static inline uint64_t vi_fold(vi a) {
    uint64_t r = 0;
    EACH r ^= (uint64_t)a.u[i] << (i % 2 * 32);
    return r;
}
