/* The weight formats: what they are, how large, and their decoding.
 *
 * A matrix is its strips, one after the other; a strip its spans; a span its quants and then its scales,
 * each padded to whole lines of 64 bytes. So a strip is read once, forward, and whatever a span needs lies
 * together.
 *
 * Quants. A quad of a strip, [16 outputs][4 inputs], is one line at 8 bits. At fewer bits, two quads share a
 * line of nibbles: the even one has the low nibble of every byte. What a q has beyond four bits follows in a
 * line of its own, where quad b has bit b of every byte (5 bits, after the four nibble lines of eight quads)
 * or bits 2b and 2b + 1 (6 bits, after the two nibble lines of four).
 *
 * Scales. BF16, HALF: [groups][16] of 16 bits. HALF_MIN: the scales, then the mins likewise. K45: [16]
 * halves d, [16] halves −dmin, then [groups][16] bytes of scales and of mins. K6: [16] halves d, then
 * [groups][16] signed bytes. A scale or min of K45 and K6 is half · byte, one product in float32, which is
 * how GGUF defines it: scale · (q − zero) + min has the very bits of a dequantized block. (−dmin is kept
 * since −(dmin · byte) = −dmin · byte and a − b = a + −b, signs of zeros included.)
 */
#include "formats.h"
#include "simd.h"

const sf_format SF_FORMATS[NUM_FORMATS] = {
    [INT8_64] = {.bits = 8, .zero = 128, .group = 64, .scales = BF16, .unit = 1},
    [INT8_32] = {.bits = 8, .zero = 128, .group = 32, .scales = BF16, .unit = 1},
    [Q4_0] = {.bits = 4, .zero = 8, .group = 32, .scales = HALF, .unit = 32},
    [Q4_1] = {.bits = 4, .zero = 0, .group = 32, .scales = HALF_MIN, .unit = 32},
    [Q5_0] = {.bits = 5, .zero = 16, .group = 32, .scales = HALF, .unit = 32},
    [Q8_0] = {.bits = 8, .zero = 128, .group = 32, .scales = HALF, .unit = 32},
    [Q4_K] = {.bits = 4, .zero = 0, .group = 32, .scales = K45, .unit = 256},
    [Q5_K] = {.bits = 5, .zero = 0, .group = 32, .scales = K45, .unit = 256},
    [Q6_K] = {.bits = 6, .zero = 32, .group = 16, .scales = K6, .unit = 256},
};

int64_t sf_strip_bytes(int format, int inputs) { return strip_bytes(&SF_FORMATS[format], inputs); }

int64_t sf_matrix_bytes(int format, int outputs, int inputs) {
    return round_up(outputs, PANEL) / STRIP * sf_strip_bytes(format, inputs);
}

/* Lines are decoded a register at a time. Vectors of 64 bits, since those of bytes have no shifts: what is
 * shifted from one byte into another is masked out. */
#if defined(__AVX512F__)
#define REGISTER 64
#elif defined(__AVX2__)
#define REGISTER 32
#else
#define REGISTER 16
#endif
typedef uint64_t wide __attribute__((vector_size(REGISTER), aligned(1), may_alias));

#define EVERY_BYTE(value) ((value) * 0x0101010101010101u)

/* The `width` bits of every byte from bit `from` on, moved to bit 4. */
static inline wide above_nibble(wide x, int from, int width) {
    wide moved = from < 4 ? x << (4 - from) : x >> (from - 4);
    return moved & EVERY_BYTE(((1u << width) - 1) << 4);
}

/* A line of nibbles into two quads; `high` has the bits above them, those of the even quad from bit `from`
 * on and those of the odd one after them. */
static inline void decode_line(const uint8_t *nibbles, const uint8_t *high, int from, int width,
                               uint8_t *quants) {
    for (int i = 0; i < LINE; i += REGISTER) {
        wide low = *(const wide *)(nibbles + i), above = *(const wide *)(high + i);
        wide even = low & EVERY_BYTE(15u), odd = low >> 4 & EVERY_BYTE(15u);
        *(wide *)(quants + i) = even | above_nibble(above, from, width);
        *(wide *)(quants + LINE + i) = odd | above_nibble(above, from + width, width);
    }
}

static void decode4(const uint8_t *source, int inputs, uint8_t *quants) {
    for (int input = 0; input < inputs; input += 2 * QUAD, source += LINE, quants += 2 * LINE)
        for (int i = 0; i < LINE; i += REGISTER) {
            wide low = *(const wide *)(source + i);
            *(wide *)(quants + i) = low & EVERY_BYTE(15u);
            *(wide *)(quants + LINE + i) = low >> 4 & EVERY_BYTE(15u);
        }
}

static void decode5(const uint8_t *source, int inputs, uint8_t *quants) {
    for (int input = 0; input < inputs; input += 8 * QUAD, source += 5 * LINE, quants += 8 * LINE) {
        const uint8_t *high = source + 4 * LINE;
        decode_line(source, high, 0, 1, quants);
        decode_line(source + LINE, high, 2, 1, quants + 2 * LINE);
        decode_line(source + 2 * LINE, high, 4, 1, quants + 4 * LINE);
        decode_line(source + 3 * LINE, high, 6, 1, quants + 6 * LINE);
    }
}

static void decode6(const uint8_t *source, int inputs, uint8_t *quants) {
    for (int input = 0; input < inputs; input += 4 * QUAD, source += 3 * LINE, quants += 4 * LINE) {
        const uint8_t *high = source + 2 * LINE;
        decode_line(source, high, 0, 2, quants);
        decode_line(source + LINE, high, 4, 2, quants + 2 * LINE);
    }
}

static void decode_halves(const uint16_t *source, int groups, float *scale) {
    for (int g = 0; g < groups; g++)
        vec_store(scale + g * STRIP, vec_from_half(source + g * STRIP));
}

static void decode_bytes(vec half, const uint8_t *bytes, int groups, float *scale) {
    for (int g = 0; g < groups; g++)
        vec_store(scale + g * STRIP, vec_mul(half, vec_from_uint8(bytes + g * STRIP)));
}

static void decode_scales(int scales, const uint8_t *source, int groups, sf_span_room *room) {
    const uint16_t *words = (const uint16_t *)source;
    switch (scales) {
    case BF16:
        for (int g = 0; g < groups; g++)
            vec_store(room->scale + g * STRIP, vec_from_bf16(words + g * STRIP));
        break;
    case HALF:
        decode_halves(words, groups, room->scale);
        break;
    case HALF_MIN:
        decode_halves(words, groups, room->scale);
        decode_halves(words + groups * STRIP, groups, room->min);
        break;
    case K45:
        decode_bytes(vec_from_half(words), source + 4 * STRIP, groups, room->scale);
        decode_bytes(vec_from_half(words + STRIP), source + (4 + groups) * STRIP, groups, room->min);
        break;
    case K6:
        for (int g = 0; g < groups; g++) {
            vec bytes = vec_from_int8((const int8_t *)source + (2 + g) * STRIP);
            vec_store(room->scale + g * STRIP, vec_mul(vec_from_half(words), bytes));
        }
        break;
    }
}

sf_span sf_decode(const sf_matrix *matrix, int strip, int span, int packed, sf_span_room *room) {
    const sf_format *f = &SF_FORMATS[matrix->format];
    const uint8_t *source = matrix->data + strip * strip_bytes(f, matrix->inputs);
    source += (int64_t)span * span_bytes(f, SPAN);
    int inputs = span_inputs(f, matrix->inputs, span);
    const int bits = packed ? 8 : f->bits;
    switch (bits) {
    case 4: decode4(source, inputs, room->quants); break;
    case 5: decode5(source, inputs, room->quants); break;
    case 6: decode6(source, inputs, room->quants); break;
    }
    decode_scales(f->scales, source + quant_bytes(f, inputs), groups_of(f, inputs), room);
    int has_min = f->scales == HALF_MIN || f->scales == K45;
    return (sf_span){bits == 8 ? source : room->quants, room->scale, has_min ? room->min : NULL};
}

void sf_unpack(const sf_matrix *matrix, int output, float *target) {
    const sf_format *f = &SF_FORMATS[matrix->format];
    int lane = output % STRIP;
    sf_span_room room;
    sf_span span = {0};
    for (int input = 0; input < matrix->inputs; input++) {
        int inside = input % SPAN;
        if (inside == 0)
            span = sf_decode(matrix, output / STRIP, input / SPAN, 0, &room);
        int q = span.quants[inside / QUAD * LINE + lane * QUAD + inside % QUAD] - f->zero;
        int at = inside / f->group * STRIP + lane;
        target[input] = span.scale[at] * (float)q;
        if (span.min)
            target[input] += span.min[at];
    }
}
