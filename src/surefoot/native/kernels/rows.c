/* Activations in 8 bits. */
#include <math.h>
#include <string.h>

#include "simd.h"
#include "surefoot.h"

#define MOST_GROUP 64

typedef struct {
    int64_t q, scale, sums, sums16, bytes;
} places;

static places places_of(int rows, int inputs, int group) {
    int64_t numbers = rows * round_up(inputs, PADDED_INPUTS);
    places at = {0};
    at.scale = round_up(numbers, LINE);
    at.sums = at.scale + round_up(numbers / group * (int64_t)sizeof(float), LINE);
    at.sums16 = at.sums + round_up(numbers / group * (int64_t)sizeof(int32_t), LINE);
    at.bytes = at.sums16 + round_up(numbers / 16 * (int64_t)sizeof(int32_t), LINE);
    return at;
}

int64_t sf_rows_bytes(int rows, int inputs, int group) { return places_of(rows, inputs, group).bytes; }

sf_rows sf_rows_at(uint8_t *buffer, int rows, int inputs, int group) {
    places at = places_of(rows, inputs, group);
    return (sf_rows){
        .q = (int8_t *)(buffer + at.q),
        .scale = (float *)(buffer + at.scale),
        .sums = (int32_t *)(buffer + at.sums),
        .sums16 = (int32_t *)(buffer + at.sums16),
        .rows = rows,
        .inputs = inputs,
        .stride = (int32_t)round_up(inputs, PADDED_INPUTS),
        .group = group,
    };
}

/* One group of `group` numbers; returns the scale. */
static float quantize_group(const float *x, int group, int8_t *q, int32_t *sum, int32_t *sums16) {
    float largest = vec_largest_of(x, group);
    *sum = 0;
    if (largest < SMALLEST || largest == INFINITY) {
        memset(q, 0, group);
        memset(sums16, 0, group / 16 * sizeof *sums16);
        return largest < SMALLEST ? 0.0f : NAN;
    }
    vec steps = vec_set(127.0f / largest);
    for (int i = 0; i < group; i += LANES) {
        vec rounded = vec_round(vec_mul(vec_load(x + i), steps));
        vec_to_int8(q + i, rounded);
        sums16[i / LANES] = (int32_t)vec_sum(rounded); /* exact: small whole numbers */
        *sum += sums16[i / LANES];
    }
    return largest / 127.0f;
}

void sf_quantize(const float *x, sf_rows *rows, int row) {
    int64_t first = (int64_t)row * rows->stride;
    int group = rows->group;
    for (int input = 0; input < rows->stride; input += group) {
        const float *from = x + input;
        float last[MOST_GROUP] = {0};
        if (input + group > rows->inputs) {
            if (input < rows->inputs)
                memcpy(last, from, (rows->inputs - input) * sizeof *last);
            from = last;
        }
        int64_t at = first + input;
        rows->scale[at / group] =
            quantize_group(from, group, rows->q + at, rows->sums + at / group, rows->sums16 + at / 16);
    }
}
