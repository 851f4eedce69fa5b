/* A group's products with AVX2, which multiplies pairs of 16 bits into 32. */
#ifndef SUREFOOT_DOT_AVX2_H
#define SUREFOOT_DOT_AVX2_H

#define BLOCK_ROWS 4 /* times a strip: eight sums; sixteen registers hold no more beside their factors */
#define BLOCK_STRIPS 1

/* Left to itself, GCC multiplies for all rows before it adds, runs out of registers and is half as fast. */
#define KEEP_ORDER(sum) __asm__("" : "+x"(sum))

INLINE __m256i broadcast_pair(const int16_t *q) {
    int32_t pair;
    memcpy(&pair, q, sizeof pair);
    return _mm256_set1_epi32(pair);
}

INLINE void multiply_group(int rows, int quads, const uint8_t *const *quants, const sf_rows *x, int row,
                           int input, const int32_t *start, vec isum[][BLOCK_STRIPS]) {
    const int16_t *q = x->q + (int64_t)row * x->stride + input;
    /* Widens one pair of every four bytes: −1 makes a zero. */
    const __m128i first = _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1);
    const __m128i second = _mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1);
    const __m256i pairs[2] = {_mm256_broadcastsi128_si256(first), _mm256_broadcastsi128_si256(second)};
    __m256i sum[BLOCK_ROWS][2];
    for (int r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = _mm256_set1_epi32(start[r]);
    for (int pair = 0; pair < 2; pair++)
#pragma GCC unroll 2
        for (int quad = 0; quad < quads; quad++) {
            const __m256i *line = (const __m256i *)(quants[0] + quad * LINE);
            const __m256i low = _mm256_shuffle_epi8(_mm256_loadu_si256(line), pairs[pair]);
            const __m256i high = _mm256_shuffle_epi8(_mm256_loadu_si256(line + 1), pairs[pair]);
            for (int r = 0; r < rows; r++) {
                const __m256i factor = broadcast_pair(q + r * x->stride + quad * QUAD + pair * 2);
                sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(low, factor));
                sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(high, factor));
                KEEP_ORDER(sum[r][0]);
                KEEP_ORDER(sum[r][1]);
            }
        }
    for (int r = 0; r < rows; r++)
        isum[r][0] = vec_pair(_mm256_cvtepi32_ps(sum[r][0]), _mm256_cvtepi32_ps(sum[r][1]));
}

#include "dot_blocks.h"

#endif
