/* Random numbers, buffers filled with them, and digests of results: the same on every machine.
 *
 * C leaves open in which order the arguments of a call are evaluated, so nothing here may be drawn twice in
 * one expression.
 */
#ifndef DRAW_H
#define DRAW_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t draw_state, digest;

/* SplitMix64 (Steele, Lea and Flood, 2014, doi 10.1145/2660193.2660195, fig. 17) */
static inline uint64_t draw_bits(void) {
    draw_state += 0x9e3779b97f4a7c15;
    uint64_t z = (draw_state ^ draw_state >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}
static inline int between(int least, int most) {
    return least + (int)(draw_bits() % (uint64_t)(most - least + 1));
}
static inline int one_in(int n) { return between(1, n) == 1; }
static inline float draw_number(float largest) {
    return (float)between(-(1 << 23), 1 << 23) * 0x1p-23f * largest;
}
/* A finite half of any sign, its exponent's bits at most so much (15 is for 1 … 2, 30 the most). */
static inline uint16_t draw_half(int exponent) {
    uint16_t number = (uint16_t)(between(0, exponent) << 10);
    return number | (draw_bits() & 0x83ff);
}

/* ---- buffers ---- */

static void *buffers[1000];
static int num_buffers;

static inline void *keep(void *place) {
    if (!place || num_buffers == (int)(sizeof buffers / sizeof *buffers)) {
        fprintf(stderr, "no room for a buffer\n");
        exit(2);
    }
    return buffers[num_buffers++] = place;
}
/* Room for so many things, to the byte; at times not from the start of what the allocator gave, since kernels
 * ask for no alignment but a thing's own. */
static inline void *buffer(int64_t count, int64_t size) {
    int64_t before = one_in(2) ? between(1, 3) * size : 0;
    return (char *)keep(malloc(before + count * size)) + before;
}
static inline void free_buffers(void) {
    while (num_buffers)
        free(buffers[--num_buffers]);
}

static inline float *draw_floats(int64_t count, float largest) {
    float *x = buffer(count, sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = draw_number(largest);
    return x;
}
static inline float *maybe_floats(int64_t count, float largest) {
    return one_in(2) ? draw_floats(count, largest) : NULL;
}

/* Puts far and odd numbers among others. */
static inline void spoil(float *x, int64_t count) {
    static const float odd[] = {0.0f, -0.0f, 1e-40f, -2e-30f, 3e4f, -1e30f, 3e38f, INFINITY, -INFINITY, NAN};
    for (int i = between(1, 3); i; i--) {
        float *place = x + between(0, (int)count - 1);
        *place = odd[between(0, sizeof odd / sizeof *odd - 1)];
    }
}

/* ---- digests ---- */

/* FNV-1a, by words */
static inline void digest_word(uint32_t word) { digest = (digest ^ word) * 0x100000001b3; }
static inline void digest_bytes(const uint8_t *bytes, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        digest_word(bytes[i]);
}
/* What is no number is one thing: processors differ in its sign and payload. */
static inline void digest_floats(const float *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, x + i, sizeof word);
        digest_word(isnan(x[i]) ? 0x7fc00000 : word);
    }
}
static inline void digest_halves(const uint16_t *x, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        digest_word((x[i] & 0x7fff) > 0x7c00 ? 0x7e00 : x[i]);
}

#endif
