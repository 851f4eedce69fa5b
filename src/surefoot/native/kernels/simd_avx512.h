/* `vec` over AVX-512 (F, BW, DQ, VL): one register. */
#ifndef SUREFOOT_SIMD_AVX512_H
#define SUREFOOT_SIMD_AVX512_H

#include "simd_eight.h"

#define VEC_REGISTERS 32 /* how many `vec` the registers hold */

typedef __m512 vec;

static inline vec vec_set(float x) { return _mm512_set1_ps(x); }
static inline vec vec_zero(void) { return _mm512_setzero_ps(); }
static inline vec vec_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vec_store(float *p, vec x) { _mm512_storeu_ps(p, x); }
static inline vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
static inline vec vec_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
static inline vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
static inline vec vec_div(vec a, vec b) { return _mm512_div_ps(a, b); }
static inline vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline vec vec_max(vec a, vec b) { return _mm512_max_ps(a, b); }
static inline vec vec_min(vec a, vec b) { return _mm512_min_ps(a, b); }
static inline vec vec_abs(vec x) { return _mm512_abs_ps(x); }
static inline vec vec_round(vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vec vec_where_less(vec a, vec b, vec yes, vec no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
}
static inline vec vec_scale2(vec x, vec n) {
    __m512i exponent = _mm512_add_epi32(_mm512_cvttps_epi32(n), _mm512_set1_epi32(127));
    return _mm512_mul_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23)));
}
static inline vec vec_from_int32(const int32_t *p) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(p)); }
static inline vec vec_from_uint8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static inline vec vec_from_int8(const int8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static inline void vec_to_int8(int8_t *p, vec x) {
    _mm_storeu_si128((__m128i *)p, _mm512_cvtsepi32_epi8(_mm512_cvttps_epi32(x)));
}
static inline vec vec_from_bf16(const uint16_t *p) {
    __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}
static inline vec vec_from_half(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline void vec_to_half(uint16_t *p, vec x) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline __m256 vec_fold(vec x) { return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)); }
static inline float vec_sum(vec x) { return eight_sum(vec_fold(x)); }
static inline void vec_sum4(float *p, vec a, vec b, vec c, vec d) {
    eight_store_sums(p, vec_fold(a), vec_fold(b), vec_fold(c), vec_fold(d));
}
static inline float vec_largest(vec x) {
    return eight_largest(_mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}

#endif
