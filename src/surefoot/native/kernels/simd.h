/* Sixteen float32 at a time, the same on every instruction set.
 *
 * All arithmetic of a pass that isn't an integer dot product is written over `vec`, so that every
 * instruction set does the same operations in the same order and gives the same bits. Fused multiply-adds
 * are asked for by name (`vec_fma`); the compiler may make none of its own (-ffp-contract=off).
 */
#ifndef SUREFOOT_SIMD_H
#define SUREFOOT_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16

#if defined(__AVX512F__)
#include "simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd_avx2.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "simd_neon.h"
#else
#include "simd_portable.h"
#endif

/* What follows is built from the operations above, once for all. */

/* The first `count` <= LANES numbers at p, then zeros. */
static inline vec vec_load_part(const float *p, int count) {
    if (count >= LANES)
        return vec_load(p);
    float room[LANES] = {0};
    memcpy(room, p, count * sizeof *p);
    return vec_load(room);
}
static inline void vec_store_part(float *p, vec x, int count) {
    if (count >= LANES) {
        vec_store(p, x);
        return;
    }
    float room[LANES];
    vec_store(room, x);
    memcpy(p, room, count * sizeof *p);
}

/* exp(x), within 1 ulp or so; 0 below -87.3, so never denormal; x above 88 is taken for 88. A NaN stays one. */
static inline vec vec_exp(vec x) {
    const vec log2e = vec_set(1.44269504088896341f);
    const vec low = vec_set(-87.33654f), high = vec_set(88.0f);
    vec inside = vec_min(high, vec_max(low, x)); /* a NaN, being second, stays: it shows in r */
    vec n = vec_round(vec_mul(vec_min(vec_max(x, low), high), log2e)); /* and here, being first, doesn't */
    /* ln 2 in two parts, so that the remainder keeps its digits (Cody and Waite, 1980). */
    vec r = vec_fma(n, vec_set(-0.693359375f), inside);
    r = vec_fma(n, vec_set(2.12194440e-4f), r);
    vec p = vec_set(1.9875691500e-4f); /* minimax over |r| <= ln(2)/2 (Moshier, Cephes, expf) */
    p = vec_fma(p, r, vec_set(1.3981999507e-3f));
    p = vec_fma(p, r, vec_set(8.3334519073e-3f));
    p = vec_fma(p, r, vec_set(4.1665795894e-2f));
    p = vec_fma(p, r, vec_set(1.6666665459e-1f));
    p = vec_fma(p, r, vec_set(5.0000001201e-1f));
    vec y = vec_fma(vec_mul(r, r), p, vec_add(r, vec_set(1.0f)));
    return vec_where_less(x, low, vec_zero(), vec_scale2(y, n));
}

/* The largest magnitude of n numbers, n a multiple of LANES; infinite where one of them isn't finite. */
static inline float vec_largest_of(const float *x, int n) {
    vec largest = vec_zero();
    for (int i = 0; i < n; i += LANES) /* vec_min gives its second where the first is no number */
        largest = vec_max(largest, vec_min(vec_abs(vec_load(x + i)), vec_set(INFINITY)));
    return vec_largest(largest);
}

#endif
