// Eight float lanes in two registers: NEON of 64-bit ARM, the baseline there.
#include <arm_neon.h>

#define LANES 8
typedef struct {
    float32x4_t a, b;
} vf;
typedef struct {
    uint32x4_t a, b;
} vi;
typedef float32x4_t v4;

static inline vf v_both(float32x4_t a, float32x4_t b) { return (vf){a, b}; }
static inline vi vi_both(uint32x4_t a, uint32x4_t b) { return (vi){a, b}; }
static inline vf v_set(float x) { return v_both(vdupq_n_f32(x), vdupq_n_f32(x)); }
static inline vf v_zero(void) { return v_set(0); }
static inline vf v_load(const float *p) { return v_both(vld1q_f32(p), vld1q_f32(p + 4)); }
static inline void v_store(float *p, vf x) {
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
}
static inline vf v_add(vf x, vf y) { return v_both(vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b)); }
static inline vf v_sub(vf x, vf y) { return v_both(vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b)); }
static inline vf v_mul(vf x, vf y) { return v_both(vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b)); }
static inline vf v_div(vf x, vf y) { return v_both(vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b)); }
static inline vf v_fma(vf x, vf y, vf z) { return v_both(vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b)); }
// NaN wins, whichever operand it is.
static inline vf v_max(vf x, vf y) { return v_both(vmaxq_f32(x.a, y.a), vmaxq_f32(x.b, y.b)); }
static inline vf v_min(vf x, vf y) { return v_both(vminq_f32(x.a, y.a), vminq_f32(x.b, y.b)); }
static inline vf v_round(vf x) { return v_both(vrndnq_f32(x.a), vrndnq_f32(x.b)); }
// 2^n for whole n of -126 … 127
static inline vf v_power2(vf n) {
    int32x4_t bias = vdupq_n_s32(127);
    return v_both(vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n.a), bias), 23)),
                  vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n.b), bias), 23)));
}
// Halves are added until one lane is left.
static inline float v_sum(vf x) {
    float32x4_t s = vaddq_f32(x.a, x.b);
    float32x2_t h = vadd_f32(vget_low_f32(s), vget_high_f32(s));
    return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}
// v_sum of each, added in the same order
static inline v4 v_sum4(vf a, vf b, vf c, vf d) {
    float32x4_t sa = vaddq_f32(a.a, a.b), sb = vaddq_f32(b.a, b.b), sc = vaddq_f32(c.a, c.b), sd = vaddq_f32(d.a, d.b);
    float32x4_t ab = vcombine_f32(vadd_f32(vget_low_f32(sa), vget_high_f32(sa)), vadd_f32(vget_low_f32(sb), vget_high_f32(sb)));
    float32x4_t cd = vcombine_f32(vadd_f32(vget_low_f32(sc), vget_high_f32(sc)), vadd_f32(vget_low_f32(sd), vget_high_f32(sd)));
    return vpaddq_f32(ab, cd);
}
static inline void v4_store(float *p, v4 x) { vst1q_f32(p, x); }
static inline v4 v4_scaled(v4 x, const float *factors) { return vmulq_f32(x, vld1q_f32(factors)); }
// 4 columns of 4 rows
static inline void v_columns4(const float *p, int stride, float32x4_t *out) {
    float32x4_t a = vld1q_f32(p), b = vld1q_f32(p + stride), c = vld1q_f32(p + 2 * stride), d = vld1q_f32(p + 3 * stride);
    float32x4x2_t ab = vtrnq_f32(a, b), cd = vtrnq_f32(c, d);
    for (int i = 0; i < 2; i++) {
        out[i] = vcombine_f32(vget_low_f32(ab.val[i]), vget_low_f32(cd.val[i]));
        out[2 + i] = vcombine_f32(vget_high_f32(ab.val[i]), vget_high_f32(cd.val[i]));
    }
}
// out[k] has p[j*stride+k] in lane j, for k < 8
static inline void v_columns(const float *p, int stride, vf *out) {
    for (int k = 0; k < 8; k += 4) {
        float32x4_t low[4], high[4];
        v_columns4(p + k, stride, low);
        v_columns4(p + 4 * stride + k, stride, high);
        for (int i = 0; i < 4; i++) out[k + i] = v_both(low[i], high[i]);
    }
}

static inline vf v_from_s16(int16x8_t h) {
    return v_both(vcvtq_f32_s32(vmovl_s16(vget_low_s16(h))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(h))));
}
static inline vf v_from_i8(const int8_t *p) { return v_from_s16(vmovl_s8(vld1_s8(p))); }
static inline vf v_from_bf16(const uint16_t *p) {
    uint16x8_t h = vld1q_u16(p);
    return v_both(vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16)), vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(h), 16)));
}
static inline vf v_from_half(uint16x8_t h) {
    return v_both(vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(h))), vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(h))));
}
static inline vf v_from_f16(const uint16_t *p) { return v_from_half(vld1q_u16(p)); }
// e4m3 read as half precision: the value times 2^-8, exactly, subnormals included.
static inline vf v_from_fp8(const uint8_t *p) {
    uint16x8_t b = vshlq_n_u16(vreinterpretq_u16_s16(vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)))), 7);
    return v_from_half(vandq_u16(b, vdupq_n_u16(0xBF80)));
}

static inline vi vi_load(const void *p) {
    return vi_both(vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)p)), vreinterpretq_u32_u8(vld1q_u8((const uint8_t *)p + 16)));
}
static inline vi vi_set(uint32_t x) { return vi_both(vdupq_n_u32(x), vdupq_n_u32(x)); }
static inline vi vi_and(vi x, vi y) { return vi_both(vandq_u32(x.a, y.a), vandq_u32(x.b, y.b)); }
static inline vi vi_xor(vi x, vi y) { return vi_both(veorq_u32(x.a, y.a), veorq_u32(x.b, y.b)); }
static inline vi vi_or(vi x, vi y) { return vi_both(vorrq_u32(x.a, y.a), vorrq_u32(x.b, y.b)); }
static inline vi vi_add(vi x, vi y) { return vi_both(vaddq_u32(x.a, y.a), vaddq_u32(x.b, y.b)); }
#define vi_shr(x, n) vi_both(vshrq_n_u32((x).a, n), vshrq_n_u32((x).b, n))
#define vi_shl(x, n) vi_both(vshlq_n_u32((x).a, n), vshlq_n_u32((x).b, n))
static inline vf vi_float(vi x) {
    return v_both(vcvtq_f32_s32(vreinterpretq_s32_u32(x.a)), vcvtq_f32_s32(vreinterpretq_s32_u32(x.b)));
}
// The int3 planes of LANES·8 inputs: lane j gets its 8 low fields (16 bits) and its 8 high bits.
static inline vi vi_from_u16(uint16x8_t h) { return vi_both(vmovl_u16(vget_low_u16(h)), vmovl_u16(vget_high_u16(h))); }
static inline vi vi_int3_low(const uint8_t *p) { return vi_from_u16(vreinterpretq_u16_u8(vld1q_u8(p))); }
static inline vi vi_int3_high(const uint8_t *p) { return vi_from_u16(vmovl_u8(vld1_u8(p + 16))); }

// per scales spread over the lanes; per is 2 or 4 here
static inline vf v_spread(const float *s, int per) {
    if (per == 2) return v_both(vdupq_n_f32(s[0]), vdupq_n_f32(s[1]));
    return v_both(vcombine_f32(vdup_n_f32(s[0]), vdup_n_f32(s[1])), vcombine_f32(vdup_n_f32(s[2]), vdup_n_f32(s[3])));
}
static inline uint64_t vi_fold(vi x) {
    uint64x2_t b = vreinterpretq_u64_u32(veorq_u32(x.a, x.b));
    return vgetq_lane_u64(b, 0) ^ vgetq_lane_u64(b, 1);
}
