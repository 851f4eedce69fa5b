/* `vec` over AVX2, FMA and F16C: two registers of eight. */
#ifndef SUREFOOT_SIMD_AVX2_H
#define SUREFOOT_SIMD_AVX2_H

#include "simd_eight.h"

#define VEC_REGISTERS 8 /* how many `vec` the registers hold */

typedef struct {
    __m256 low, high;
} vec;

static inline vec vec_pair(__m256 low, __m256 high) { vec y = {low, high}; return y; }
static inline vec vec_set(float x) { return vec_pair(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
static inline vec vec_zero(void) { return vec_pair(_mm256_setzero_ps(), _mm256_setzero_ps()); }
static inline vec vec_load(const float *p) { return vec_pair(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
static inline void vec_store(float *p, vec x) { _mm256_storeu_ps(p, x.low); _mm256_storeu_ps(p + 8, x.high); }
static inline vec vec_add(vec a, vec b) { return vec_pair(_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)); }
static inline vec vec_sub(vec a, vec b) { return vec_pair(_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)); }
static inline vec vec_mul(vec a, vec b) { return vec_pair(_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)); }
static inline vec vec_div(vec a, vec b) { return vec_pair(_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)); }
static inline vec vec_fma(vec a, vec b, vec c) {
    return vec_pair(_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high));
}
static inline vec vec_max(vec a, vec b) { return vec_pair(_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)); }
static inline vec vec_min(vec a, vec b) { return vec_pair(_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)); }
static inline vec vec_abs(vec x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return vec_pair(_mm256_andnot_ps(sign, x.low), _mm256_andnot_ps(sign, x.high));
}
static inline vec vec_round(vec x) {
    return vec_pair(_mm256_round_ps(x.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                    _mm256_round_ps(x.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline vec vec_where_less(vec a, vec b, vec yes, vec no) {
    return vec_pair(_mm256_blendv_ps(no.low, yes.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
                    _mm256_blendv_ps(no.high, yes.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)));
}
static inline __m256 vec_power2(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvttps_epi32(n), _mm256_set1_epi32(127)), 23));
}
static inline vec vec_scale2(vec x, vec n) {
    return vec_pair(_mm256_mul_ps(x.low, vec_power2(n.low)), _mm256_mul_ps(x.high, vec_power2(n.high)));
}
static inline vec vec_from_int32(const int32_t *p) {
    return vec_pair(_mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)p)),
                    _mm256_cvtepi32_ps(_mm256_loadu_si256((const __m256i *)(p + 8))));
}
static inline vec vec_from_uint8(const uint8_t *p) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return vec_pair(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
                    _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))));
}
static inline vec vec_from_int8(const int8_t *p) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)p);
    return vec_pair(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))));
}
static inline void vec_to_int8(int8_t *p, vec x) {
    __m256i words = _mm256_packs_epi32(_mm256_cvttps_epi32(x.low), _mm256_cvttps_epi32(x.high));
    words = _mm256_permute4x64_epi64(words, 0xd8); /* packing works within halves; back in order */
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)p, bytes);
}
static inline __m256 vec_bf16_half(__m128i words) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}
static inline vec vec_from_bf16(const uint16_t *p) {
    return vec_pair(vec_bf16_half(_mm_loadu_si128((const __m128i *)p)),
                    vec_bf16_half(_mm_loadu_si128((const __m128i *)(p + 8))));
}
static inline vec vec_from_half(const uint16_t *p) {
    return vec_pair(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                    _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}
static inline void vec_to_half(uint16_t *p, vec x) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.low, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.high, _MM_FROUND_TO_NEAREST_INT));
}
static inline float vec_sum(vec x) { return eight_sum(_mm256_add_ps(x.low, x.high)); }
static inline void vec_sum4(float *p, vec a, vec b, vec c, vec d) {
    eight_store_sums(p, _mm256_add_ps(a.low, a.high), _mm256_add_ps(b.low, b.high), _mm256_add_ps(c.low, c.high),
                     _mm256_add_ps(d.low, d.high));
}
static inline float vec_largest(vec x) { return eight_largest(_mm256_max_ps(x.low, x.high)); }

#endif
