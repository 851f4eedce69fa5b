/* A group's products with NEON's dot products: signed bytes by signed ones, four at a time into 32 bits. The
 * two bytes of an activation have sums of their own.
 */
#ifndef SUREFOOT_DOT_NEON_H
#define SUREFOOT_DOT_NEON_H

#define BLOCK_ROWS 3 /* times a strip, times two bytes: 24 sums; 32 registers hold no more beside them */
#define BLOCK_STRIPS 1
#define PACKED_ROWS 0
#define QUARTERS (STRIP / 4)

INLINE int8x16_t broadcast_quad(const int8_t *q) {
    int32_t four;
    memcpy(&four, q, sizeof four);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
}

/* q − 128, signed; OFFSET tells `start` of it. */
INLINE int8x16_t load_weights(const uint8_t *quants) {
    return vreinterpretq_s8_u8(veorq_u8(vld1q_u8(quants), vdupq_n_u8(128)));
}

INLINE void multiply_group(int bits, int rows, int quads, const uint8_t *const *quants, const sf_rows *x,
                           int64_t first, const int32_t *start, vec isum[][BLOCK_STRIPS]) {
    (void)bits;
    int32x4_t high[BLOCK_ROWS][QUARTERS], low[BLOCK_ROWS][QUARTERS];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < QUARTERS; i++) {
            high[r][i] = vdupq_n_s32(0);
            low[r][i] = vdupq_n_s32(start[r]);
        }
    for (int quad = 0; quad < quads; quad++) {
        int8x16_t weights[QUARTERS];
        for (int i = 0; i < QUARTERS; i++)
            weights[i] = load_weights(quants[0] + quad * LINE + i * 16);
        for (int r = 0; r < rows; r++) {
            const int64_t at = first + r * ACTIVATION_GROUP + quad * QUAD;
            const int8x16_t high_bytes = broadcast_quad(x->high + at);
            const int8x16_t low_bytes = broadcast_quad(x->low + at);
            for (int i = 0; i < QUARTERS; i++) {
                high[r][i] = vdotq_s32(high[r][i], weights[i], high_bytes);
                low[r][i] = vdotq_s32(low[r][i], weights[i], low_bytes);
            }
        }
    }
    for (int r = 0; r < rows; r++) {
        int32_t sums[STRIP];
        for (int i = 0; i < QUARTERS; i++)
            vst1q_s32(sums + i * 4, vaddq_s32(vshlq_n_s32(high[r][i], 4), low[r][i]));
        isum[r][0] = vec_from_int32(sums);
    }
}

#include "dot_blocks.h"

#endif
