/* Products with AMX: a tile of up to 16 rows of activations by one of weights, a strip's group of inputs. The
 * two bytes of an activation have tiles and sums of their own. While the tiles multiply for one strip, the
 * vector unit scales and adds the other strip's sums.
 */
#ifndef SUREFOOT_DOT_AMX_H
#define SUREFOOT_DOT_AMX_H

#include "tiles.h"

#define PACKED_ROWS 0

/* Tiles 0 to 3 are sums: of strip 0 by high and by low bytes, of strip 1 likewise. */
#define HIGH_BYTES 4
#define LOW_BYTES 5
#define WEIGHTS_0 6
#define WEIGHTS_1 7

/* The sums of a strip, out of their tiles. */
typedef struct {
    _Alignas(LINE) int32_t high[ROW_TILE][STRIP], low[ROW_TILE][STRIP];
} tile_sums;

static _Thread_local int configured_rows, configured_group; /* 0: tiles are released */

static void configure(int rows, int group) {
    if (rows == configured_rows && group == configured_group)
        return;
    tile_config config = {.palette = 1};
    for (int tile = 0; tile < WEIGHTS_0; tile++) {
        config.rows[tile] = (uint8_t)rows;
        config.row_bytes[tile] = (uint16_t)(tile < HIGH_BYTES ? LINE : group);
    }
    for (int tile = WEIGHTS_0; tile <= WEIGHTS_1; tile++) {
        config.rows[tile] = (uint8_t)(group / QUAD);
        config.row_bytes[tile] = LINE;
    }
    tile_configure(&config);
    configured_rows = rows;
    configured_group = group;
}

INLINE void load_activations(const sf_rows *x, int row, int input) {
    const int64_t first = (int64_t)row * x->stride + input;
    tile_load(HIGH_BYTES, x->high + first, x->stride);
    tile_load(LOW_BYTES, x->low + first, x->stride);
}

/* Tiles are named by constants, so there is one of these for each strip. */
INLINE void multiply_strip_0(const uint8_t *quants) {
    tile_load(WEIGHTS_0, quants, LINE);
    tile_zero(0);
    tile_zero(1);
    tile_multiply(0, HIGH_BYTES, WEIGHTS_0);
    tile_multiply(1, LOW_BYTES, WEIGHTS_0);
}

INLINE void multiply_strip_1(const uint8_t *quants) {
    tile_load(WEIGHTS_1, quants, LINE);
    tile_zero(2);
    tile_zero(3);
    tile_multiply(2, HIGH_BYTES, WEIGHTS_1);
    tile_multiply(3, LOW_BYTES, WEIGHTS_1);
}

INLINE void store_strip_0(tile_sums *sums) {
    tile_store(0, sums->high, LINE);
    tile_store(1, sums->low, LINE);
}

INLINE void store_strip_1(tile_sums *sums) {
    tile_store(2, sums->high, LINE);
    tile_store(3, sums->low, LINE);
}

/* Rows `done` to `rows` of a tile; y is the strip's, of the tile's first row. */
INLINE void settle_strip(const tile_sums *sums, const sf_span *strip, const row_terms *terms, int done,
                         int rows, int g, float *y) {
    for (int r = done; r < rows; r++) {
        int32_t isum[STRIP];
        for (int o = 0; o < STRIP; o++)
            isum[o] = sums->high[r][o] * 256 + sums->low[r][o] + terms->start[r][g];
        settle(vec_from_int32(isum), strip, terms, r, g, y + r * PANEL);
    }
}

static void add_tile(const panel_span *span, const sf_rows *x, int row, int done, int rows, float *y) {
    const int group = span->format.group, last = span->groups - 1;
    const sf_span *strip = span->strip;
    row_terms terms;
    tile_sums sums[PANEL_STRIPS];
    gather_terms(span, x, row, rows, &terms);
    y += (int64_t)row * PANEL;
    for (int g = 0; g <= last; g++) {
        load_activations(x, row, span->input + g * group);
        multiply_strip_0(strip[0].quants + g * group * STRIP);
        if (row == 0)
            prefetch_share(span, 0, g);
        if (g > 0) {
            store_strip_1(&sums[1]);
            settle_strip(&sums[1], &strip[1], &terms, done, rows, g - 1, y + STRIP);
        }
        multiply_strip_1(strip[1].quants + g * group * STRIP);
        if (row == 0)
            prefetch_share(span, 1, g);
        store_strip_0(&sums[0]);
        settle_strip(&sums[0], &strip[0], &terms, done, rows, g, y);
    }
    store_strip_1(&sums[1]);
    settle_strip(&sums[1], &strip[1], &terms, done, rows, last, y + STRIP);
}

/* Tiles all have the same number of rows, since another number needs another configuration, which is slow:
 * the last begins where it ends with the last row, and passes over those of the tile before. */
static void add_span(const panel_span *span, const sf_rows *x, float *y) {
    const int rows = x->rows < ROW_TILE ? x->rows : ROW_TILE;
    configure(rows, span->format.group);
    for (int row = 0; row < x->rows; row += rows) {
        const int first = row + rows <= x->rows ? row : x->rows - rows;
        add_tile(span, x, first, row - first, rows, y);
    }
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
    configured_rows = configured_group = 0;
}

#endif
