/* Activations in 12 bits. */
#include <math.h>
#include <string.h>

#include "simd.h"
#include "surefoot.h"

#define LARGEST 2047 /* 127 · 16 + 15 */

typedef struct {
    int64_t high, low, pairs, whole, scale, sums64, sums32, sums16, bytes;
} places;

static int height_of(int rows) { return rows < ROW_TILE ? rows : ROW_TILE; }

static places places_of(int rows, int inputs) {
    int64_t numbers = round_up(rows, height_of(rows)) * round_up(inputs, ACTIVATION_GROUP), whole = sizeof(int32_t);
    places at = {0};
    at.low = SF_PLANES * numbers;
    at.pairs = SF_PLANES * 2 * numbers;
    at.whole = at.pairs + SF_PAIRS * 2 * numbers;
    at.scale = at.whole + SF_WHOLE * 2 * numbers;
    at.sums64 = at.scale + round_up(numbers / ACTIVATION_GROUP * (int64_t)sizeof(float), LINE);
    at.sums32 = at.sums64 + round_up(numbers / 64 * whole, LINE);
    at.sums16 = at.sums32 + round_up(numbers / 32 * whole, LINE);
    at.bytes = at.sums16 + round_up(numbers / 16 * whole, LINE);
    return at;
}

int64_t sf_rows_bytes(int rows, int inputs) { return places_of(rows, inputs).bytes; }

sf_rows sf_rows_at(uint8_t *buffer, int rows, int inputs) {
    places at = places_of(rows, inputs);
    return (sf_rows){
#if SF_PLANES
        .high = (int8_t *)(buffer + at.high),
        .low = (int8_t *)(buffer + at.low),
#endif
#if SF_PAIRS
        .pairs = (int8_t *)(buffer + at.pairs),
#endif
#if SF_WHOLE
        .q = (int16_t *)(buffer + at.whole),
#endif
        .scale = (float *)(buffer + at.scale),
        .sums64 = (int32_t *)(buffer + at.sums64),
        .sums32 = (int32_t *)(buffer + at.sums32),
        .sums16 = (int32_t *)(buffer + at.sums16),
        .rows = rows,
        .inputs = inputs,
        .height = height_of(rows),
        .stride = (int32_t)round_up(inputs, ACTIVATION_GROUP),
    };
}

/* The q of a group, still in float32; returns the scale. */
static float round_group(const float *x, float *q) {
    float largest = vec_largest_of(x, ACTIVATION_GROUP);
    if (largest < SMALLEST || largest == INFINITY) {
        memset(q, 0, ACTIVATION_GROUP * sizeof *q);
        return largest < SMALLEST ? 0.0f : NAN;
    }
    vec steps = vec_set(LARGEST / largest);
    for (int i = 0; i < ACTIVATION_GROUP; i += LANES)
        vec_store(q + i, vec_round(vec_mul(vec_load(x + i), steps)));
    return largest / LARGEST;
}

static void put_numbers(const float *q, sf_rows *rows, int row, int input) {
    const int64_t at = sf_q_at(rows, row, input);
#if SF_PLANES
    for (int i = 0; i < ACTIVATION_GROUP; i += LANES) {
        /* Rounded down: 7.5 less, no whole number lies half-way. */
        vec whole = vec_load(q + i), high = vec_round(vec_mul(vec_sub(whole, vec_set(7.5f)), vec_set(1.0f / 16)));
        vec_to_int8(rows->high + at + i, high);
        vec_to_int8(rows->low + at + i, vec_sub(whole, vec_mul(high, vec_set(16.0f))));
    }
#endif
#if SF_PAIRS
    for (int half = 0; half < 2; half++) {
        int8_t *pair = rows->pairs + sf_group_at(rows, PAIR_GROUP, row, input + half * PAIR_GROUP) * 2 * PAIR_GROUP;
        memcpy(pair, rows->high + at + half * PAIR_GROUP, PAIR_GROUP);
        memcpy(pair + PAIR_GROUP, rows->low + at + half * PAIR_GROUP, PAIR_GROUP);
    }
#endif
#if SF_WHOLE
    for (int i = 0; i < ACTIVATION_GROUP; i++)
        rows->q[at + i] = (int16_t)q[i];
#endif
}

static void put_sums(const float *q, sf_rows *rows, int row, int input) {
    float sums[4]; /* exact: below 2^24 */
    int32_t of16[4];
    vec_sum4(sums, vec_load(q), vec_load(q + 16), vec_load(q + 32), vec_load(q + 48));
    for (int i = 0; i < 4; i++) {
        of16[i] = (int32_t)sums[i];
        rows->sums16[sf_group_at(rows, 16, row, input + i * 16)] = of16[i];
    }
    rows->sums32[sf_group_at(rows, 32, row, input)] = of16[0] + of16[1];
    rows->sums32[sf_group_at(rows, 32, row, input + 32)] = of16[2] + of16[3];
    rows->sums64[sf_group_at(rows, 64, row, input)] = of16[0] + of16[1] + of16[2] + of16[3];
}

static void quantize_group(const float *x, sf_rows *rows, int row, int input) {
    float q[ACTIVATION_GROUP];
    rows->scale[sf_group_at(rows, ACTIVATION_GROUP, row, input)] = round_group(x, q);
    put_numbers(q, rows, row, input);
    put_sums(q, rows, row, input);
}

void sf_quantize(const float *x, sf_rows *rows, int row) {
    int rest = rows->inputs % ACTIVATION_GROUP, whole = rows->inputs - rest;
    for (int input = 0; input < whole; input += ACTIVATION_GROUP)
        quantize_group(x + input, rows, row, input);
    if (rest) {
        float last[ACTIVATION_GROUP] = {0};
        memcpy(last, x + whole, rest * sizeof *last);
        quantize_group(last, rows, row, whole);
    }
}
