/* Sums and maxima of eight lanes: the second half of those of `vec`, whose first step leaves eight. */
#ifndef SUREFOOT_SIMD_EIGHT_H
#define SUREFOOT_SIMD_EIGHT_H

#include <immintrin.h>

/* i with i + 4, then i + 2, i + 1. */
static inline float eight_sum(__m256 eight) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
static inline float eight_largest(__m256 eight) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
/* Four of those sums at once. */
static inline void eight_store_sums(float *p, __m256 a, __m256 b, __m256 c, __m256 d) {
    __m256 ac = _mm256_add_ps(_mm256_permute2f128_ps(a, c, 0x20), _mm256_permute2f128_ps(a, c, 0x31));
    __m256 bd = _mm256_add_ps(_mm256_permute2f128_ps(b, d, 0x20), _mm256_permute2f128_ps(b, d, 0x31));
    __m256 two = _mm256_add_ps(_mm256_shuffle_ps(ac, bd, 0x44), _mm256_shuffle_ps(ac, bd, 0xee));
    __m128 ab = _mm256_castps256_ps128(two), cd = _mm256_extractf128_ps(two, 1);
    _mm_storeu_ps(p, _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xdd)));
}

#endif
