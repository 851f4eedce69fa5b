/* The arithmetic of attention over one block of keys: scores, weights, weighted values.
 *
 * Tiles keep sums in registers; their sizes change no bits.
 */
#ifndef SUREFOOT_ATTENTION_TILE_H
#define SUREFOOT_ATTENTION_TILE_H

#include <math.h>

#include "simd.h"

#define KEY_BLOCK 64
#define ALWAYS_INLINE inline __attribute__((always_inline))

#if VEC_REGISTERS >= 32
#define KEY_TILE 8
#define MIX_TILE 8 /* queries */
#else
#define KEY_TILE 4
#define MIX_TILE 6 /* queries */
#endif

/* Which keys of a block are read, and where they lie. */
typedef struct {
    const uint16_t *keys, *values; /* of one key head, in slot 0 */
    const int32_t *slots;          /* of the block's positions and those behind it */
    int begin, end;                /* within the block */
    int past;                      /* how many slots there are */
    int64_t stride;                /* numbers from slot to slot */
    int dim;                       /* a multiple of LANES */
} key_list;

/* Slots lie anywhere, where the processor doesn't foresee them. */
static inline void prefetch(const key_list *list, const uint16_t *numbers, int position) {
    for (int d = 0; d < list->dim; d += 2 * LANES)
        __builtin_prefetch(numbers + list->slots[position] * list->stride + d);
}

/* Keys as float32, [KEY_BLOCK][dim]: whole tiles, filled up with the keys at the ends. */
static inline void load_keys(const key_list *list, float *to) {
    int begin = list->begin / KEY_TILE * KEY_TILE, end = (list->end + KEY_TILE - 1) / KEY_TILE * KEY_TILE;
    for (int i = begin; i < end; i++) {
        int inside = i < list->begin ? list->begin : i < list->end ? i : list->end - 1;
        const uint16_t *from = list->keys + list->slots[inside] * list->stride;
        for (int d = 0; d < list->dim; d += LANES)
            vec_store(to + i * list->dim + d, vec_from_half(from + d));
        prefetch(list, list->values, inside);
    }
}

/* Values as float32, [dim / LANES][KEY_BLOCK][LANES]. */
static inline void load_values(const key_list *list, float *to) {
    for (int i = list->begin; i < list->end; i++) {
        const uint16_t *from = list->values + list->slots[i] * list->stride;
        for (int d = 0; d < list->dim; d += LANES)
            vec_store(to + d * KEY_BLOCK + i * LANES, vec_from_half(from + d));
        if (i + KEY_BLOCK < list->past)
            prefetch(list, list->keys, i + KEY_BLOCK);
    }
}

/* Scores of one query against KEY_TILE keys. */
static inline void score_tile(const float *query, const float *key, int dim, float *score) {
    vec sum[KEY_TILE];
    for (int i = 0; i < KEY_TILE; i++)
        sum[i] = vec_zero();
    for (int d = 0; d < dim; d += LANES) {
        vec q = vec_load(query + d);
        for (int i = 0; i < KEY_TILE; i++)
            sum[i] = vec_fma(q, vec_load(key + i * dim + d), sum[i]);
    }
    for (int i = 0; i < KEY_TILE; i += 4)
        vec_sum4(score + i, sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
}

/* score[queries][KEY_BLOCK], unscaled: 16 lanes of fma over dim, then vec_sum. */
static inline void score_keys(const float *query, int queries, const float *key, const key_list *list,
                              float *score) {
    for (int k = list->begin / KEY_TILE * KEY_TILE; k < list->end; k += KEY_TILE)
        for (int q = 0; q < queries; q++)
            score_tile(query + q * list->dim, key + k * list->dim, list->dim, score + q * KEY_BLOCK + k);
}

static inline float exp_of(float x) {
    float y[LANES];
    vec_store(y, vec_exp(vec_set(x)));
    return y[0];
}

/* Scores of one query → weights exp(score · scale − largest), zero outside of [begin, end), which isn't
 * empty. Takes `largest` and `sum` further; what came before is to be multiplied with what it returns. */
static inline float weigh(float *score, int begin, int end, float scale, float *largest, float *sum) {
    for (int k = 0; k < begin; k++)
        score[k] = -INFINITY;
    for (int k = end; k < KEY_BLOCK; k++)
        score[k] = -INFINITY;
    vec part[KEY_BLOCK / LANES], top = vec_set(-INFINITY), weights = vec_zero();
    for (int i = 0; i < KEY_BLOCK / LANES; i++) {
        part[i] = vec_mul(vec_load(score + i * LANES), vec_set(scale));
        top = vec_max(top, part[i]);
    }
    float before = *largest, after = vec_largest(top);
    after = after > before ? after : before;
    for (int i = 0; i < KEY_BLOCK / LANES; i++) {
        vec weight = vec_exp(vec_sub(part[i], vec_set(after)));
        weights = vec_add(weights, weight);
        vec_store(score + i * LANES, weight);
    }
    float decay = exp_of(before - after);
    *sum = fmaf(*sum, decay, vec_sum(weights));
    *largest = after;
    return decay;
}

/* mixed[queries][dim] · decay, then + weight · value key by key, for LANES numbers of each value. */
static ALWAYS_INLINE void mix_tile(const float *weight, const float *decay, const int queries,
                                   const float *value, const key_list *list, float *mixed) {
    vec sum[MIX_TILE];
    for (int i = 0; i < queries; i++)
        sum[i] = vec_mul(vec_load(mixed + i * list->dim), vec_set(decay[i]));
    for (int k = list->begin; k < list->end; k++) {
        vec v = vec_load(value + k * LANES);
        for (int i = 0; i < queries; i++)
            sum[i] = vec_fma(vec_set(weight[i * KEY_BLOCK + k]), v, sum[i]);
    }
    for (int i = 0; i < queries; i++)
        vec_store(mixed + i * list->dim, sum[i]);
}

static inline void mix_queries(const float *weight, const float *decay, int queries, const float *value,
                               const key_list *list, float *mixed) {
    switch (queries) {
    case 1: mix_tile(weight, decay, 1, value, list, mixed); return;
    case 2: mix_tile(weight, decay, 2, value, list, mixed); return;
    case 3: mix_tile(weight, decay, 3, value, list, mixed); return;
    case 4: mix_tile(weight, decay, 4, value, list, mixed); return;
    case 5: mix_tile(weight, decay, 5, value, list, mixed); return;
#if MIX_TILE > 6
    case 6: mix_tile(weight, decay, 6, value, list, mixed); return;
    case 7: mix_tile(weight, decay, 7, value, list, mixed); return;
#endif
    default: mix_tile(weight, decay, MIX_TILE, value, list, mixed);
    }
}

static inline void mix_values(const float *weight, const float *decay, int queries, const float *value,
                              const key_list *list, float *mixed) {
    for (int d = 0; d < list->dim; d += LANES)
        for (int q = 0; q < queries; q += MIX_TILE)
            mix_queries(weight + q * KEY_BLOCK, decay + q, queries - q, value + d * KEY_BLOCK, list,
                        mixed + q * list->dim + d);
}

#endif
