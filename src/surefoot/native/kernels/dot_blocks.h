/* Rows in blocks that fit into registers. Included by headers that define
 *     BLOCK_STRIPS      how many strips of up to BLOCK_ROWS rows are summed at once
 *     PACKED_ROWS       passes of up to so many rows take quants as they are packed; others, decoded to 8 bits
 *     multiply_group    the sums of a block over one group, from `start` on, as float
 * A quant's bits, a group's size, the number of rows, and whether these are the first, which prefetch for
 * all, reach the innermost loops as constants: all of this is inlined.
 */
#ifndef SUREFOOT_DOT_BLOCKS_H
#define SUREFOOT_DOT_BLOCKS_H

INLINE void add_block(int ahead, int bits, int group, int rows, const panel_span *span, const sf_rows *x,
                      int row, float *y) {
    row_terms terms;
    gather_terms(group, span, x, row, rows, &terms);
    y += (int64_t)row * PANEL;
    for (int s = 0; s < PANEL_STRIPS; s += BLOCK_STRIPS)
        for (int g = 0; g < span->groups; g++) {
            const uint8_t *quants[BLOCK_STRIPS];
            int32_t start[BLOCK_ROWS];
            vec isum[BLOCK_ROWS][BLOCK_STRIPS];
            for (int i = 0; i < BLOCK_STRIPS; i++) {
                quants[i] = span->strip[s + i].quants + g * (group * STRIP * bits / 8);
                if (ahead)
                    prefetch_share(span, s + i, g);
            }
            for (int r = 0; r < rows; r++)
                start[r] = terms.start[g][r];
            multiply_group(bits, rows, group / QUAD, quants, x, sf_q_at(x, row, span->input + g * group), start,
                           isum);
            for (int i = 0; i < BLOCK_STRIPS; i++) {
                const sf_span *strip = &span->strip[s + i];
                const strip_terms of_strip = gather_strip(strip->min != NULL, strip, g);
                for (int r = 0; r < rows; r++)
                    settle(isum[r][i], &of_strip, &terms, r, g, y + r * PANEL + (s + i) * STRIP);
            }
        }
}

INLINE void add_rows(int bits, int group, const panel_span *span, const sf_rows *x, float *y) {
    int row = 0;
    if (x->rows >= BLOCK_ROWS) {
        add_block(1, bits, group, BLOCK_ROWS, span, x, 0, y);
        row = BLOCK_ROWS;
    }
    if (bits == 8) /* below, there is one block */
        for (; row + BLOCK_ROWS <= x->rows; row += BLOCK_ROWS)
            add_block(0, bits, group, BLOCK_ROWS, span, x, row, y);
    switch (x->rows - row) {
    case 1: add_block(row == 0, bits, group, 1, span, x, row, y); break;
    case 2: add_block(row == 0, bits, group, 2, span, x, row, y); break;
    case 3: add_block(row == 0, bits, group, 3, span, x, row, y); break;
    }
}

#define KIND(bits, group) ((bits) << 8 | (group))

static void add_blocks(const panel_span *span, const sf_rows *x, float *y) {
    switch (KIND(span->bits, span->format.group)) {
    case KIND(8, 16): add_rows(8, 16, span, x, y); break;
    case KIND(8, 32): add_rows(8, 32, span, x, y); break;
    case KIND(8, 64): add_rows(8, 64, span, x, y); break;
#if PACKED_ROWS
    case KIND(4, 32): add_rows(4, 32, span, x, y); break;
    case KIND(5, 32): add_rows(5, 32, span, x, y); break;
    case KIND(6, 16): add_rows(6, 16, span, x, y); break;
#endif
    }
}

#endif
