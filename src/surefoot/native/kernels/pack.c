/* Packing of weights: GGUF blocks, and float32 rounded to 8 bits. The layout is told in formats.c. */
#include <math.h>
#include <string.h>

#include "formats.h"
#include "simd.h"

#define LONGEST_GROUP 64

/* One output's part of a span. */
typedef struct {
    uint8_t q[SPAN];
    uint16_t scale[SPAN / 32], min[SPAN / 32];          /* of each group; K45, K6: the first is the span's */
    uint8_t scale_byte[SPAN / 16], min_byte[SPAN / 32]; /* K45, K6: of each group */
} slice;

static uint16_t word_at(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }

/* ---- blocks of a file; each is read into the slice from input `at` on ---- */

static void read_halves(const uint8_t *bytes, uint8_t *q) {
    for (int i = 0; i < 16; i++) {
        q[i] = bytes[i] & 15;
        q[16 + i] = bytes[i] >> 4;
    }
}

static void read_q4_0(const uint8_t *block, int at, slice *into) {
    into->scale[at / 32] = word_at(block);
    read_halves(block + 2, into->q + at);
}

static void read_q4_1(const uint8_t *block, int at, slice *into) {
    into->scale[at / 32] = word_at(block);
    into->min[at / 32] = word_at(block + 2);
    read_halves(block + 4, into->q + at);
}

static void read_q5_0(const uint8_t *block, int at, slice *into) {
    into->scale[at / 32] = word_at(block);
    read_halves(block + 6, into->q + at);
    uint32_t high = word_at(block + 2) | (uint32_t)word_at(block + 4) << 16;
    for (int i = 0; i < 32; i++)
        into->q[at + i] |= (high >> i & 1) << 4;
}

static void read_q8_0(const uint8_t *block, int at, slice *into) {
    into->scale[at / 32] = word_at(block);
    for (int i = 0; i < 32; i++)
        into->q[at + i] = block[2 + i] ^ 128; /* q + 128, as two's complement has it */
}

/* d, dmin and the 6-bit scales and mins of Q4_K and Q5_K: four bytes hold the first four scales, four the
 * first four mins, with two high bits of the later ones above them; four the low nibbles of those. */
static void read_k_scales(const uint8_t *block, slice *into) {
    into->scale[0] = word_at(block);
    into->min[0] = word_at(block + 2) ^ 0x8000;
    const uint8_t *scales = block + 4, *mins = block + 8, *later = block + 12;
    for (int g = 0; g < 4; g++) {
        into->scale_byte[g] = scales[g] & 63;
        into->min_byte[g] = mins[g] & 63;
        into->scale_byte[4 + g] = (later[g] & 15) | scales[g] >> 6 << 4;
        into->min_byte[4 + g] = later[g] >> 4 | mins[g] >> 6 << 4;
    }
}

static void read_k_nibbles(const uint8_t *bytes, uint8_t *q) {
    for (int pair = 0; pair < SPAN / 64; pair++)
        for (int i = 0; i < 32; i++) {
            q[pair * 64 + i] = bytes[pair * 32 + i] & 15;
            q[pair * 64 + 32 + i] = bytes[pair * 32 + i] >> 4;
        }
}

static void read_q4_k(const uint8_t *block, int at, slice *into) {
    (void)at;
    read_k_scales(block, into);
    read_k_nibbles(block + 16, into->q);
}

static void read_q5_k(const uint8_t *block, int at, slice *into) {
    (void)at;
    read_k_scales(block, into);
    read_k_nibbles(block + 48, into->q);
    for (int g = 0; g < SPAN / 32; g++)
        for (int i = 0; i < 32; i++)
            into->q[g * 32 + i] |= (block[16 + i] >> g & 1) << 4;
}

static void read_q6_k(const uint8_t *block, int at, slice *into) {
    (void)at;
    for (int half = 0; half < 2; half++) {
        const uint8_t *low = block + half * 64, *high = block + 128 + half * 32;
        uint8_t *q = into->q + half * 128;
        for (int i = 0; i < 32; i++) {
            q[i] = (low[i] & 15) | (high[i] & 3) << 4;
            q[32 + i] = (low[32 + i] & 15) | (high[i] >> 2 & 3) << 4;
            q[64 + i] = low[i] >> 4 | (high[i] >> 4 & 3) << 4;
            q[96 + i] = low[32 + i] >> 4 | (high[i] >> 6) << 4;
        }
    }
    memcpy(into->scale_byte, block + 192, 16);
    into->scale[0] = word_at(block + 208);
}

static const struct {
    int bytes;
    void (*read)(const uint8_t *block, int at, slice *into);
} BLOCKS[NUM_FORMATS] = {
    [Q4_0] = {18, read_q4_0},
    [Q4_1] = {20, read_q4_1},
    [Q5_0] = {22, read_q5_0},
    [Q8_0] = {34, read_q8_0},
    [Q4_K] = {144, read_q4_k},
    [Q5_K] = {176, read_q5_k},
    [Q6_K] = {210, read_q6_k},
};

/* ---- a span of a strip, from its slices ---- */

static void put_quants(const slice *from, int inputs, int lane, uint8_t *quants) {
    for (int quad = 0; quad < inputs / QUAD; quad++)
        memcpy(quants + quad * LINE + lane * QUAD, from->q + quad * QUAD, QUAD);
}

static void put_words(const uint16_t *from, int count, uint16_t *to) {
    for (int g = 0; g < count; g++)
        to[g * STRIP] = from[g];
}

static void put_bytes(const uint8_t *from, int count, uint8_t *to) {
    for (int g = 0; g < count; g++)
        to[g * STRIP] = from[g];
}

static void put_scales(int scales, const slice *from, int groups, int lane, uint8_t *target) {
    uint16_t *words = (uint16_t *)target + lane;
    uint8_t *bytes = target + lane;
    switch (scales) {
    case BF16:
    case HALF:
        put_words(from->scale, groups, words);
        break;
    case HALF_MIN:
        put_words(from->scale, groups, words);
        put_words(from->min, groups, words + groups * STRIP);
        break;
    case K45:
        put_words(from->scale, 1, words);
        put_words(from->min, 1, words + STRIP);
        put_bytes(from->scale_byte, groups, bytes + 4 * STRIP);
        put_bytes(from->min_byte, groups, bytes + (4 + groups) * STRIP);
        break;
    case K6:
        put_words(from->scale, 1, words);
        put_bytes(from->scale_byte, groups, bytes + 2 * STRIP);
        break;
    }
}

/* The quads that share lines, [quads][64 bytes]: nibble lines, then a line of the bits above them. */
static inline void encode_lines(int bits, int quads, const uint8_t *restrict quants,
                                uint8_t *restrict target) {
    uint8_t *high = target + quads / 2 * LINE;
    for (int quad = 0; quad < quads; quad += 2, target += LINE)
        for (int i = 0; i < LINE; i++)
            target[i] = (quants[quad * LINE + i] & 15) | quants[(quad + 1) * LINE + i] << 4;
    for (int i = 0; i < LINE && bits > 4; i++) {
        uint8_t together = 0;
        for (int quad = 0; quad < quads; quad++)
            together |= quants[quad * LINE + i] >> 4 << quad * (bits - 4);
        high[i] = together;
    }
}

static void encode_quants(int bits, int inputs, const uint8_t *quants, uint8_t *target) {
    int count = inputs / QUAD;
    switch (bits) { /* with numbers that the compiler knows, the loops become vector instructions */
    case 4:
        for (int quad = 0; quad < count; quad += 2, quants += 2 * LINE, target += LINE)
            encode_lines(4, 2, quants, target);
        break;
    case 5:
        for (int quad = 0; quad < count; quad += 8, quants += 8 * LINE, target += 5 * LINE)
            encode_lines(5, 8, quants, target);
        break;
    case 6:
        for (int quad = 0; quad < count; quad += 4, quants += 4 * LINE, target += 3 * LINE)
            encode_lines(6, 4, quants, target);
        break;
    case 8:
        memcpy(target, quants, count * LINE);
        break;
    }
}

/* Reads one output's part of a span from where the weights come from. */
typedef void (*slice_reader)(int format, const void *source, int inputs, int output, int span, slice *into);

static void pack(int format, int outputs, int inputs, const void *source, slice_reader read,
                 uint8_t *target) {
    const sf_format *f = &SF_FORMATS[format];
    memset(target, 0, sf_matrix_bytes(format, outputs, inputs));
    for (int strip = 0; strip * STRIP < outputs; strip++)
        for (int span = 0; span * SPAN < inputs; span++) {
            int count = span_inputs(f, inputs, span);
            uint8_t quants[SPAN * STRIP] = {0};
            uint8_t *scales = target + quant_bytes(f, count);
            for (int lane = 0; lane < STRIP && strip * STRIP + lane < outputs; lane++) {
                slice part;
                read(format, source, inputs, strip * STRIP + lane, span, &part);
                put_quants(&part, count, lane, quants);
                put_scales(f->scales, &part, groups_of(f, count), lane, scales);
            }
            encode_quants(f->bits, count, quants, target);
            target += span_bytes(f, count);
        }
}

static void read_blocks(int format, const void *source, int inputs, int output, int span, slice *into) {
    const sf_format *f = &SF_FORMATS[format];
    int64_t row_bytes = (int64_t)(inputs / f->unit) * BLOCKS[format].bytes;
    const uint8_t *block = (const uint8_t *)source + output * row_bytes;
    block += (int64_t)(span * SPAN / f->unit) * BLOCKS[format].bytes;
    for (int at = 0; at < span_inputs(f, inputs, span); at += f->unit, block += BLOCKS[format].bytes)
        BLOCKS[format].read(block, at, into);
}

void sf_pack_blocks(int format, int outputs, int inputs, const uint8_t *source, uint8_t *target) {
    pack(format, outputs, inputs, source, read_blocks, target);
}

/* ---- float32, rounded to 8 bits ---- */

/* The least float not below x >= 0 that bf16 can hold. */
static float bf16_above(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0xffff) & 0xffff0000;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint16_t bf16_word(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* One group; returns its scale. */
static uint16_t round_group(const float *x, int group, uint8_t *q) {
    float largest = vec_largest_of(x, group);
    if (largest < SMALLEST || largest == INFINITY) {
        memset(q, 128, group);
        return bf16_word(largest < SMALLEST ? 0.0f : NAN);
    }
    float scale = bf16_above(largest / 127.0f);
    for (int i = 0; i < group; i += LANES) /* none is beyond 127: the scale isn't below largest / 127 */
        vec_to_int8((int8_t *)q + i, vec_round(vec_div(vec_load(x + i), vec_set(scale))));
    for (int i = 0; i < group; i++)
        q[i] ^= 128;
    return bf16_word(scale);
}

static void read_floats(int format, const void *source, int inputs, int output, int span, slice *into) {
    int group = SF_FORMATS[format].group, left = inputs - span * SPAN;
    const float *x = (const float *)source + (int64_t)output * inputs + span * SPAN;
    uint8_t *q = into->q;
    for (int g = 0; g < SPAN / group && left > 0; g++, x += group, q += group, left -= group) {
        if (left >= group) {
            into->scale[g] = round_group(x, group, q);
            continue;
        }
        float last[LONGEST_GROUP] = {0};
        memcpy(last, x, left * sizeof *last);
        into->scale[g] = round_group(last, group, q);
    }
}

void sf_pack_int8(int format, int outputs, int inputs, const float *source, uint8_t *target) {
    pack(format, outputs, inputs, source, read_floats, target);
}
