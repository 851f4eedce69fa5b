/* A group's products with AVX-512 VNNI: unsigned bytes by signed ones, four at a time into 32 bits. The two
 * bytes of an activation have sums of their own.
 */
#ifndef SUREFOOT_DOT_VNNI_H
#define SUREFOOT_DOT_VNNI_H

#define BLOCK_ROWS 4 /* times two strips, times two bytes: sixteen sums keep both multipliers busy */
#define BLOCK_STRIPS 2
#define PACKED_ROWS 0

INLINE __m512i broadcast_quad(const int8_t *q) {
    int32_t four;
    memcpy(&four, q, sizeof four);
    return _mm512_set1_epi32(four);
}

INLINE void multiply_group(int bits, int rows, int quads, const uint8_t *const *quants, const sf_rows *x,
                           int row, int input, const int32_t *start, vec isum[][BLOCK_STRIPS]) {
    (void)bits;
    const int64_t first = (int64_t)row * x->stride + input;
    __m512i high[BLOCK_ROWS][BLOCK_STRIPS], low[BLOCK_ROWS][BLOCK_STRIPS];
    for (int r = 0; r < rows; r++)
        for (int s = 0; s < BLOCK_STRIPS; s++) {
            high[r][s] = _mm512_setzero_si512();
            low[r][s] = _mm512_set1_epi32(start[r]);
        }
#pragma GCC unroll 16 /* a whole group: GCC copies every sum at every turn of a loop */
    for (int quad = 0; quad < quads; quad++) {
        __m512i weights[BLOCK_STRIPS];
        for (int s = 0; s < BLOCK_STRIPS; s++)
            weights[s] = _mm512_loadu_si512(quants[s] + quad * LINE);
        for (int r = 0; r < rows; r++) {
            const int64_t at = first + r * x->stride + quad * QUAD;
            const __m512i high_bytes = broadcast_quad(x->high + at), low_bytes = broadcast_quad(x->low + at);
            for (int s = 0; s < BLOCK_STRIPS; s++) {
                high[r][s] = _mm512_dpbusd_epi32(high[r][s], weights[s], high_bytes);
                low[r][s] = _mm512_dpbusd_epi32(low[r][s], weights[s], low_bytes);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int s = 0; s < BLOCK_STRIPS; s++)
            isum[r][s] = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[r][s], 8), low[r][s]));
}

#include "dot_blocks.h"

#endif
