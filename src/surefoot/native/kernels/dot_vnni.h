/* A group's products with AVX-512 VNNI: unsigned bytes by signed ones, four at a time into 32 bits. The two
 * bytes of an activation have sums of their own. AMX takes them so too where the rows are few.
 */
#ifndef SUREFOOT_DOT_VNNI_H
#define SUREFOOT_DOT_VNNI_H

#define BLOCK_ROWS 4 /* times two strips, times two bytes: sixteen sums keep both multipliers busy */
#define BLOCK_STRIPS 2
#define PACKED_ROWS BLOCK_ROWS /* one block takes each quant once: no use in storing it decoded */

INLINE __m512i broadcast_quad(const int8_t *q) {
    int32_t four;
    memcpy(&four, q, sizeof four);
    return _mm512_set1_epi32(four);
}

/* The `width` bits of every byte from bit `from` on, moved to bit 4. */
INLINE __m512i above_nibbles(__m512i x, int from, int width) {
    const __m512i moved = from < 4 ? _mm512_slli_epi16(x, 4 - from) : _mm512_srli_epi16(x, from - 4);
    return _mm512_and_si512(moved, _mm512_set1_epi8((char)(((1 << width) - 1) << 4)));
}

/* A quad of a strip out of packed quants (formats.c). */
INLINE __m512i load_quad(int bits, const uint8_t *quants, int quad) {
    if (bits == 8)
        return _mm512_loadu_si512(quants + quad * LINE);
    const int shared = bits == 6 ? 4 : 8; /* quads whose upper bits are in one line */
    const int at = quad % shared, width = bits - 4;
    quants += quad / shared * (shared * bits / 8) * LINE;
    __m512i nibbles = _mm512_loadu_si512(quants + at / 2 * LINE);
    if (at % 2)
        nibbles = _mm512_srli_epi16(nibbles, 4);
    nibbles = _mm512_and_si512(nibbles, _mm512_set1_epi8(15));
    if (bits == 4)
        return nibbles;
    return _mm512_or_si512(nibbles, above_nibbles(_mm512_loadu_si512(quants + shared / 2 * LINE), at * width, width));
}

INLINE void multiply_group(int bits, int rows, int quads, const uint8_t *const *quants, const sf_rows *x,
                           int64_t first, const int32_t *start, vec isum[][BLOCK_STRIPS]) {
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
            weights[s] = load_quad(bits, quants[s], quad);
        for (int r = 0; r < rows; r++) {
            const int64_t at = first + r * ACTIVATION_GROUP + quad * QUAD;
            const __m512i high_bytes = broadcast_quad(x->high + at), low_bytes = broadcast_quad(x->low + at);
            for (int s = 0; s < BLOCK_STRIPS; s++) {
                high[r][s] = _mm512_dpbusd_epi32(high[r][s], weights[s], high_bytes);
                low[r][s] = _mm512_dpbusd_epi32(low[r][s], weights[s], low_bytes);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int s = 0; s < BLOCK_STRIPS; s++)
            isum[r][s] = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[r][s], 4), low[r][s]));
}

#include "dot_blocks.h"

#endif
