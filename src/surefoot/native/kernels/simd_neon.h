/* `vec` over NEON: four registers of four. */
#ifndef SUREFOOT_SIMD_NEON_H
#define SUREFOOT_SIMD_NEON_H

#include <arm_neon.h>

#define VEC_REGISTERS 8 /* how many `vec` the registers hold */

typedef struct {
    float32x4_t a, b, c, d;
} vec;

#define VEC_OF_ONE(name, of) \
    static inline vec name(vec x) { return (vec){of(x.a), of(x.b), of(x.c), of(x.d)}; }
#define VEC_OF_TWO(name, of) \
    static inline vec name(vec x, vec y) {                                          \
        return (vec){of(x.a, y.a), of(x.b, y.b), of(x.c, y.c), of(x.d, y.d)};       \
    }

static inline vec vec_set(float x) {
    float32x4_t four = vdupq_n_f32(x);
    return (vec){four, four, four, four};
}
static inline vec vec_zero(void) { return vec_set(0.0f); }
static inline vec vec_load(const float *p) {
    return (vec){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
static inline void vec_store(float *p, vec x) {
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
}
VEC_OF_TWO(vec_add, vaddq_f32)
VEC_OF_TWO(vec_sub, vsubq_f32)
VEC_OF_TWO(vec_mul, vmulq_f32)
VEC_OF_TWO(vec_div, vdivq_f32)
static inline vec vec_fma(vec x, vec y, vec z) {
    return (vec){vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
                 vfmaq_f32(z.d, x.d, y.d)};
}
/* The second where one is no number: NEON's own maximum would be no number then. */
static inline float32x4_t vec_max4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
static inline float32x4_t vec_min4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }
VEC_OF_TWO(vec_max, vec_max4)
VEC_OF_TWO(vec_min, vec_min4)
VEC_OF_ONE(vec_abs, vabsq_f32)
VEC_OF_ONE(vec_round, vrndnq_f32)
static inline vec vec_where_less(vec x, vec y, vec yes, vec no) {
    return (vec){vbslq_f32(vcltq_f32(x.a, y.a), yes.a, no.a), vbslq_f32(vcltq_f32(x.b, y.b), yes.b, no.b),
                 vbslq_f32(vcltq_f32(x.c, y.c), yes.c, no.c), vbslq_f32(vcltq_f32(x.d, y.d), yes.d, no.d)};
}
static inline float32x4_t vec_scale4(float32x4_t x, float32x4_t n) {
    int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127));
    return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
}
VEC_OF_TWO(vec_scale2, vec_scale4)
static inline vec vec_from_int32(const int32_t *p) {
    return (vec){vcvtq_f32_s32(vld1q_s32(p)), vcvtq_f32_s32(vld1q_s32(p + 4)),
                 vcvtq_f32_s32(vld1q_s32(p + 8)), vcvtq_f32_s32(vld1q_s32(p + 12))};
}
static inline vec vec_from_words(int16x8_t first, int16x8_t second) {
    return (vec){vcvtq_f32_s32(vmovl_s16(vget_low_s16(first))), vcvtq_f32_s32(vmovl_high_s16(first)),
                 vcvtq_f32_s32(vmovl_s16(vget_low_s16(second))), vcvtq_f32_s32(vmovl_high_s16(second))};
}
static inline vec vec_from_uint8(const uint8_t *p) {
    uint8x16_t bytes = vld1q_u8(p);
    return vec_from_words(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes))),
                          vreinterpretq_s16_u16(vmovl_high_u8(bytes)));
}
static inline vec vec_from_int8(const int8_t *p) {
    int8x16_t bytes = vld1q_s8(p);
    return vec_from_words(vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
}
static inline void vec_to_int8(int8_t *p, vec x) {
    int16x8_t first = vqmovn_high_s32(vqmovn_s32(vcvtq_s32_f32(x.a)), vcvtq_s32_f32(x.b));
    int16x8_t second = vqmovn_high_s32(vqmovn_s32(vcvtq_s32_f32(x.c)), vcvtq_s32_f32(x.d));
    vst1q_s8(p, vqmovn_high_s16(vqmovn_s16(first), second));
}
static inline float32x4_t vec_bf16_quarter(const uint16_t *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
static inline vec vec_from_bf16(const uint16_t *p) {
    return (vec){vec_bf16_quarter(p), vec_bf16_quarter(p + 4), vec_bf16_quarter(p + 8),
                 vec_bf16_quarter(p + 12)};
}
static inline float32x4_t vec_half_quarter(const uint16_t *p) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
static inline vec vec_from_half(const uint16_t *p) {
    return (vec){vec_half_quarter(p), vec_half_quarter(p + 4), vec_half_quarter(p + 8),
                 vec_half_quarter(p + 12)};
}
static inline void vec_to_half(uint16_t *p, vec x) {
    vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b)));
    vst1q_u16(p + 8, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.c), x.d)));
}
/* Lanes i with i + 8, then i + 4. */
static inline float32x4_t vec_fold(vec x) { return vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d)); }
static inline float vec_sum(vec x) {
    float32x4_t four = vec_fold(x);
    return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
}
/* Of two times four lanes: i with i + 2. */
static inline float32x4_t vec_fold_two(float32x4_t x, float32x4_t y) {
    float32x4_t low = vcombine_f32(vget_low_f32(x), vget_low_f32(y));
    return vaddq_f32(low, vcombine_f32(vget_high_f32(x), vget_high_f32(y)));
}
static inline void vec_sum4(float *p, vec a, vec b, vec c, vec d) {
    vst1q_f32(p, vpaddq_f32(vec_fold_two(vec_fold(a), vec_fold(b)), vec_fold_two(vec_fold(c), vec_fold(d))));
}
static inline float vec_largest(vec x) {
    float32x4_t four = vec_max4(vec_max4(x.a, x.c), vec_max4(x.b, x.d));
    float32x4_t two = vec_max4(four, vextq_f32(four, four, 2));
    return vgetq_lane_f32(vec_max4(two, vextq_f32(two, two, 1)), 0);
}

#endif
