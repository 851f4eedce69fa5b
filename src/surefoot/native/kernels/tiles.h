/* The tile instructions that dot_amx.h uses, or, with SUREFOOT_EMULATE_TILES, what they do in plain C, so
 * that its logic can be tested on any machine.
 */
#ifndef SUREFOOT_TILES_H
#define SUREFOOT_TILES_H

#include <stdint.h>
#include <string.h>

/* Palette 1: eight tiles of up to 16 rows of 64 bytes (Intel SDM vol. 1, 18.3). */
typedef struct {
    _Alignas(64) uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

#ifndef SUREFOOT_EMULATE_TILES

#include <immintrin.h>

static inline void tile_configure(const tile_config *config) {
    /* GCC 12 doesn't know that the instruction reads memory, and may drop the stores before it. */
    __asm__ volatile("" : : "r"(config) : "memory");
    _tile_loadconfig(config);
}
#define tile_release() _tile_release()
#define tile_zero(tile) _tile_zero(tile)
#define tile_load(tile, from, stride) _tile_loadd(tile, from, stride)
#define tile_store(tile, to, stride) _tile_stored(tile, to, stride)
#define tile_multiply(sums, a, b) _tile_dpbsud(sums, a, b)

#else

static _Thread_local struct {
    tile_config config;
    _Alignas(64) uint8_t tile[8][16][64];
} tiles;

static inline void tile_configure(const tile_config *config) {
    tiles.config = *config;
    memset(tiles.tile, 0, sizeof tiles.tile);
}
static inline void tile_release(void) { tile_configure(&(tile_config){0}); }
static inline void tile_zero(int tile) { memset(tiles.tile[tile], 0, sizeof tiles.tile[tile]); }
static inline void tile_load(int tile, const void *from, int64_t stride) {
    tile_zero(tile);
    for (int row = 0; row < tiles.config.rows[tile]; row++)
        memcpy(tiles.tile[tile][row], (const uint8_t *)from + row * stride, tiles.config.row_bytes[tile]);
}
static inline void tile_store(int tile, void *to, int64_t stride) {
    for (int row = 0; row < tiles.config.rows[tile]; row++)
        memcpy((uint8_t *)to + row * stride, tiles.tile[tile][row], tiles.config.row_bytes[tile]);
}
/* Signed bytes of a by unsigned ones of b, four at a time. */
static inline void tile_multiply(int sums, int a, int b) {
    for (int row = 0; row < tiles.config.rows[sums]; row++)
        for (int column = 0; column < tiles.config.row_bytes[sums] / 4; column++) {
            int32_t sum;
            memcpy(&sum, &tiles.tile[sums][row][column * 4], sizeof sum);
            for (int k = 0; k < tiles.config.row_bytes[a]; k++)
                sum += (int8_t)tiles.tile[a][row][k] * tiles.tile[b][k / 4][column * 4 + k % 4];
            memcpy(&tiles.tile[sums][row][column * 4], &sum, sizeof sum);
        }
}

#endif
#endif
