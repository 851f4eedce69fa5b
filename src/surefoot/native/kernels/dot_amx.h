/* Products with AMX: a tile of up to 16 rows of activations by one of weights, a strip's group of inputs. While
 * the tiles multiply for one strip, the vector unit scales and adds the other strip's sums.
 *
 * The two bytes of an activation have tiles and sums of their own. But a weight of 4 bits is a byte also 16 times
 * over, so that the low bytes times weights and the high bytes times 16 weights make one product and one sum.
 */
#ifndef SUREFOOT_DOT_AMX_H
#define SUREFOOT_DOT_AMX_H

#include "tiles.h"

#ifdef SUREFOOT_EMULATE_TILES
#define PACKED_ROWS 0
#else
#include "dot_vnni.h"
#endif

/* Tiles 0 to 3 are sums: of strip 0 by high and by low bytes, of strip 1 likewise. With pairs, 0 and 2. */
#define HIGH_BYTES 4
#define PAIRS HIGH_BYTES
#define LOW_BYTES 5
#define WEIGHTS_0 6
#define WEIGHTS_1 7

/* The sums of a strip, out of their tiles. */
typedef struct {
    _Alignas(LINE) int32_t high[ROW_TILE][STRIP], low[ROW_TILE][STRIP];
} tile_sums;

/* A span's weights of 4 bits: of each group 16 times the weights, then the weights. */
typedef struct {
    _Alignas(LINE) uint8_t quants[2 * SPAN * STRIP];
} weight_pairs;

static _Thread_local int configured_rows, configured_bytes; /* 0: tiles are released */

/* For so many rows of so many bytes of activations. */
static void configure(int rows, int bytes) {
    if (rows == configured_rows && bytes == configured_bytes)
        return;
    tile_config config = {.palette = 1};
    for (int tile = 0; tile < WEIGHTS_0; tile++) {
        config.rows[tile] = (uint8_t)rows;
        config.row_bytes[tile] = (uint16_t)(tile < HIGH_BYTES ? LINE : bytes);
    }
    for (int tile = WEIGHTS_0; tile <= WEIGHTS_1; tile++) {
        config.rows[tile] = (uint8_t)(bytes / QUAD);
        config.row_bytes[tile] = LINE;
    }
    tile_configure(&config);
    configured_rows = rows;
    configured_bytes = bytes;
}

INLINE void load_activations(int pairs, const sf_rows *x, int row, int input) {
    if (pairs) {
        tile_load(PAIRS, x->pairs + sf_group_at(x, PAIR_GROUP, row, input) * 2 * PAIR_GROUP, 2 * PAIR_GROUP);
        return;
    }
    const int64_t first = sf_q_at(x, row, input);
    tile_load(HIGH_BYTES, x->high + first, ACTIVATION_GROUP);
    tile_load(LOW_BYTES, x->low + first, ACTIVATION_GROUP);
}

/* Tiles are named by constants, so there is one of these for each strip. */
INLINE void multiply_strip_0(int pairs, const uint8_t *quants) {
    tile_load(WEIGHTS_0, quants, LINE);
    tile_zero(0);
    tile_multiply(0, HIGH_BYTES, WEIGHTS_0);
    if (!pairs) {
        tile_zero(1);
        tile_multiply(1, LOW_BYTES, WEIGHTS_0);
    }
}

INLINE void multiply_strip_1(int pairs, const uint8_t *quants) {
    tile_load(WEIGHTS_1, quants, LINE);
    tile_zero(2);
    tile_multiply(2, HIGH_BYTES, WEIGHTS_1);
    if (!pairs) {
        tile_zero(3);
        tile_multiply(3, LOW_BYTES, WEIGHTS_1);
    }
}

INLINE void store_strip_0(int pairs, tile_sums *sums) {
    tile_store(0, sums->high, LINE);
    if (!pairs)
        tile_store(1, sums->low, LINE);
}

INLINE void store_strip_1(int pairs, tile_sums *sums) {
    tile_store(2, sums->high, LINE);
    if (!pairs)
        tile_store(3, sums->low, LINE);
}

INLINE void settle_rows(int pairs, const tile_sums *sums, const strip_terms *strip, const row_terms *terms, int rows,
                        int g, float *y) {
    for (int r = 0; r < rows; r++) {
        int32_t isum[STRIP];
        for (int o = 0; o < STRIP; o++) {
            const int32_t product = pairs ? sums->high[r][o] : sums->high[r][o] * 16 + sums->low[r][o];
            isum[o] = product + terms->start[g][r];
        }
        settle(vec_from_int32(isum), strip, terms, r, g, y + r * PANEL);
    }
}

/* The rows of a tile; y is the strip's, of the tile's first row. */
INLINE void settle_strip(int pairs, const tile_sums *sums, const sf_span *strip, const row_terms *terms, int rows,
                         int g, float *y) {
    if (strip->min) {
        const strip_terms of_strip = gather_strip(1, strip, g);
        settle_rows(pairs, sums, &of_strip, terms, rows, g, y);
    } else {
        const strip_terms of_strip = gather_strip(0, strip, g);
        settle_rows(pairs, sums, &of_strip, terms, rows, g, y);
    }
}

/* `quants`: the strips', a tile of weights for each group. */
INLINE void add_tile(int pairs, const panel_span *span, const uint8_t *const *quants, const sf_rows *x, int row,
                     int rows, float *y) {
    const int group = pairs ? PAIR_GROUP : span->format.group, last = span->groups - 1;
    const int tile_bytes = (1 + pairs) * group * STRIP;
    const sf_span *strip = span->strip;
    row_terms terms;
    tile_sums sums[PANEL_STRIPS];
    gather_terms(group, span, x, row, rows, &terms);
    y += (int64_t)row * PANEL;
    for (int g = 0; g <= last; g++) {
        load_activations(pairs, x, row, span->input + g * group);
        multiply_strip_0(pairs, quants[0] + g * tile_bytes);
        if (row == 0)
            prefetch_share(span, 0, g);
        if (g > 0) {
            store_strip_1(pairs, &sums[1]);
            settle_strip(pairs, &sums[1], &strip[1], &terms, rows, g - 1, y + STRIP);
        }
        multiply_strip_1(pairs, quants[1] + g * tile_bytes);
        if (row == 0)
            prefetch_share(span, 1, g);
        store_strip_0(pairs, &sums[0]);
        settle_strip(pairs, &sums[0], &strip[0], &terms, rows, g, y);
    }
    store_strip_1(pairs, &sums[1]);
    settle_strip(pairs, &sums[1], &strip[1], &terms, rows, last, y + STRIP);
}

/* Tiles all have the same number of rows, since another number needs another configuration, which is slow:
 * what the last has beyond the last row is multiplied, and left. */
INLINE void add_tiles(int pairs, const panel_span *span, const uint8_t *const *quants, const sf_rows *x, float *y) {
    configure(x->height, pairs ? 2 * PAIR_GROUP : span->format.group);
    for (int row = 0; row < x->rows; row += ROW_TILE)
        add_tile(pairs, span, quants, x, row, x->rows - row < ROW_TILE ? x->rows - row : ROW_TILE, y);
}

typedef uint64_t line __attribute__((vector_size(LINE), aligned(1), may_alias));

#define NIBBLES(value) ((value) * 0x0101010101010101u) /* the same in every byte */

/* From nibbles as they are packed (formats.c): two quads share a line. */
static void pair_weights(const uint8_t *nibbles, int groups, weight_pairs *to) {
    const int half = PAIR_GROUP * STRIP;
    uint8_t *times_16 = to->quants;
    for (int g = 0; g < groups; g++, times_16 += 2 * half)
        for (int at = 0; at < half; at += 2 * LINE, nibbles += LINE) {
            const line both = *(const line *)nibbles;
            *(line *)(times_16 + at) = both << 4 & NIBBLES(0xf0u);
            *(line *)(times_16 + at + LINE) = both & NIBBLES(0xf0u);
            *(line *)(times_16 + half + at) = both & NIBBLES(0x0fu);
            *(line *)(times_16 + half + at + LINE) = both >> 4 & NIBBLES(0x0fu);
        }
}

static void add_pairs(const panel_span *span, const sf_rows *x, float *y) {
    weight_pairs weights[PANEL_STRIPS];
    for (int s = 0; s < PANEL_STRIPS; s++)
        pair_weights(span->strip[s].quants, span->groups, &weights[s]);
    const uint8_t *const quants[PANEL_STRIPS] = {weights[0].quants, weights[1].quants};
    add_tiles(1, span, quants, x, y);
}

static void add_planes(const panel_span *span, const sf_rows *x, float *y) {
    const uint8_t *const quants[PANEL_STRIPS] = {span->strip[0].quants, span->strip[1].quants};
    add_tiles(0, span, quants, x, y);
}

#define TAKES_PACKED(format, rows) ((rows) <= PACKED_ROWS || (format).bits == 4)

static void add_span(const panel_span *span, const sf_rows *x, float *y) {
#if PACKED_ROWS
    /* A product of tiles takes as long for 16 inputs as for 64, and getting its sums out as long for one row as
     * for sixteen: registers are faster then. */
    if (x->rows <= PACKED_ROWS || span->format.group == 16) {
        add_blocks(span, x, y);
        return;
    }
#endif
    if (span->packed)
        add_pairs(span, x, y);
    else
        add_planes(span, x, y);
}

/* Linux gives a process the tiles when it asks (Documentation/arch/x86/xstate.rst). */
#ifdef SUREFOOT_EMULATE_TILES
int sf_ready(void) { return 1; }
#else
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023
#define XTILEDATA 18

int sf_ready(void) { return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0; }
#endif

/* What a thread has in tiles is saved and restored whenever it gives way to another. */
void sf_dot_end(void) {
    if (configured_rows)
        tile_release();
    configured_rows = configured_bytes = 0;
}

#endif
