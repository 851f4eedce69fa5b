/* A group's products in plain C, written so that compilers make vectors of it. */
#ifndef SUREFOOT_DOT_PORTABLE_H
#define SUREFOOT_DOT_PORTABLE_H

#define BLOCK_ROWS 4
#define BLOCK_STRIPS 1
#define PACKED_ROWS 0

INLINE void multiply_group(int bits, int rows, int quads, const uint8_t *const *quants, const sf_rows *x,
                           int64_t first, const int32_t *start, vec isum[][BLOCK_STRIPS]) {
    (void)bits;
    for (int r = 0; r < rows; r++) {
        const int16_t *q = x->q + first + r * ACTIVATION_GROUP;
        int32_t sum[STRIP];
        for (int o = 0; o < STRIP; o++)
            sum[o] = start[r];
        for (int quad = 0; quad < quads; quad++)
            for (int o = 0; o < STRIP; o++)
                for (int i = 0; i < QUAD; i++)
                    sum[o] += q[quad * QUAD + i] * quants[0][quad * LINE + o * QUAD + i];
        isum[r][0] = vec_from_int32(sum);
    }
}

#include "dot_blocks.h"

#endif
