/* A group's products with AVX2, which multiplies pairs of 16 bits into 32; or pairs of bytes into 16 bits,
 * which nibbles don't overflow. */
#ifndef SUREFOOT_DOT_AVX2_H
#define SUREFOOT_DOT_AVX2_H

#define BLOCK_ROWS 4 /* times a strip: eight sums; sixteen registers hold no more beside their factors */
#define BLOCK_STRIPS 1
#define NIBBLE_ROWS 2 /* each has two sums for one, where bytes are multiplied */
#define PACKED_ROWS BLOCK_ROWS /* one block takes each quant once: no use in storing it decoded */

/* Left to itself, GCC multiplies for all rows before it adds, runs out of registers and is half as fast. */
#define KEEP_ORDER(sum) __asm__("" : "+x"(sum))

INLINE __m256i broadcast_pair(const int16_t *q) {
    int32_t pair;
    memcpy(&pair, q, sizeof pair);
    return _mm256_set1_epi32(pair);
}

/* The `width` bits of every byte from bit `from` on, moved to bit 4. */
INLINE __m256i above_nibbles(__m256i x, int from, int width) {
    const __m256i moved = from < 4 ? _mm256_slli_epi16(x, 4 - from) : _mm256_srli_epi16(x, from - 4);
    return _mm256_and_si256(moved, _mm256_set1_epi8((char)(((1 << width) - 1) << 4)));
}

/* Half a quad of a strip, eight outputs, out of packed quants (formats.c). */
INLINE __m256i load_quad(int bits, const uint8_t *quants, int quad, int half) {
    if (bits == 8)
        return _mm256_loadu_si256((const __m256i *)(quants + quad * LINE) + half);
    const int shared = bits == 6 ? 4 : 8; /* quads whose upper bits are in one line */
    const int at = quad % shared, width = bits - 4;
    quants += quad / shared * (shared * bits / 8) * LINE;
    __m256i nibbles = _mm256_loadu_si256((const __m256i *)(quants + at / 2 * LINE) + half);
    if (at % 2)
        nibbles = _mm256_srli_epi16(nibbles, 4);
    nibbles = _mm256_and_si256(nibbles, _mm256_set1_epi8(15));
    if (bits == 4)
        return nibbles;
    const __m256i above = _mm256_loadu_si256((const __m256i *)(quants + shared / 2 * LINE) + half);
    return _mm256_or_si256(nibbles, above_nibbles(above, at * width, width));
}

INLINE __m256i broadcast_quad(const int8_t *q) {
    int32_t four;
    memcpy(&four, q, sizeof four);
    return _mm256_set1_epi32(four);
}

/* A group of 32 nibbles: bytes by bytes, whose sums still fit 16 bits, being 16 · 15 · 128 at most. It takes
 * fewer instructions than widening, which pays where few rows share them. */
INLINE void multiply_nibbles(int rows, const uint8_t *quants, const sf_rows *x, int64_t first,
                             const int32_t *start, vec isum[][BLOCK_STRIPS]) {
    __m256i high[NIBBLE_ROWS][2], low[NIBBLE_ROWS][2];
    for (int r = 0; r < rows; r++)
        high[r][0] = high[r][1] = low[r][0] = low[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int quad = 0; quad < 8; quad++) {
        const __m256i weights[2] = {load_quad(4, quants, quad, 0), load_quad(4, quants, quad, 1)};
#pragma GCC unroll 2
        for (int r = 0; r < rows; r++) {
            const int64_t at = first + r * ACTIVATION_GROUP + quad * QUAD;
            const __m256i high_bytes = broadcast_quad(x->high + at), low_bytes = broadcast_quad(x->low + at);
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++) {
                high[r][half] = _mm256_add_epi16(high[r][half], _mm256_maddubs_epi16(weights[half], high_bytes));
                low[r][half] = _mm256_add_epi16(low[r][half], _mm256_maddubs_epi16(weights[half], low_bytes));
                KEEP_ORDER(high[r][half]);
                KEEP_ORDER(low[r][half]);
            }
        }
    }
    for (int r = 0; r < rows; r++) {
        __m256i sum[2];
        for (int half = 0; half < 2; half++) {
            const __m256i of_high = _mm256_madd_epi16(high[r][half], _mm256_set1_epi16(16));
            const __m256i of_low = _mm256_madd_epi16(low[r][half], _mm256_set1_epi16(1));
            sum[half] = _mm256_add_epi32(_mm256_add_epi32(of_high, of_low), _mm256_set1_epi32(start[r]));
        }
        isum[r][0] = vec_pair(_mm256_cvtepi32_ps(sum[0]), _mm256_cvtepi32_ps(sum[1]));
    }
}

INLINE void multiply_group(int bits, int rows, int quads, const uint8_t *const *quants, const sf_rows *x,
                           int64_t first, const int32_t *start, vec isum[][BLOCK_STRIPS]) {
    if (bits == 4 && rows <= NIBBLE_ROWS) {
        multiply_nibbles(rows, quants[0], x, first, start, isum);
        return;
    }
    const int16_t *q = x->q + first;
    /* Widens one pair of every four bytes: −1 makes a zero. */
    const __m128i even = _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1);
    const __m128i odd_ones = _mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1);
    const __m256i pairs[2] = {_mm256_broadcastsi128_si256(even), _mm256_broadcastsi128_si256(odd_ones)};
    __m256i sum[BLOCK_ROWS][2];
    for (int r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = _mm256_set1_epi32(start[r]);
#pragma GCC unroll 16 /* a whole group: GCC copies sums at every turn of a loop */
    for (int quad = 0; quad < quads; quad++) {
        const __m256i low = load_quad(bits, quants[0], quad, 0), high = load_quad(bits, quants[0], quad, 1);
#pragma GCC unroll 2
        for (int odd = 0; odd < 2; odd++) {
            const __m256i low_pairs = _mm256_shuffle_epi8(low, pairs[odd]);
            const __m256i high_pairs = _mm256_shuffle_epi8(high, pairs[odd]);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                const __m256i factor = broadcast_pair(q + r * ACTIVATION_GROUP + quad * QUAD + odd * 2);
                sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(low_pairs, factor));
                sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(high_pairs, factor));
                KEEP_ORDER(sum[r][0]);
                KEEP_ORDER(sum[r][1]);
            }
        }
    }
    for (int r = 0; r < rows; r++)
        isum[r][0] = vec_pair(_mm256_cvtepi32_ps(sum[r][0]), _mm256_cvtepi32_ps(sum[r][1]));
}

#include "dot_blocks.h"

#endif
