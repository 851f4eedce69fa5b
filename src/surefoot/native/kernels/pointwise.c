/* What is done to the numbers of one row: norm, gate, rotation.
 *
 * A row's last, partial vector is filled with zeros, so that an element's bits don't depend on its place.
 */
#include <math.h>

#include "simd.h"
#include "surefoot.h"

void sf_rms_norm(const float *x, const float *weight, int n, float eps, float *y) {
    vec squares = vec_zero();
    for (int i = 0; i < n; i += LANES) {
        vec part = vec_load_part(x + i, n - i);
        squares = vec_fma(part, part, squares);
    }
    vec factor = vec_set(1.0f / sqrtf(vec_sum(squares) / (float)n + eps));
    for (int i = 0; i < n; i += LANES) {
        vec part = vec_mul(vec_load_part(x + i, n - i), factor);
        vec_store_part(y + i, vec_mul(part, vec_load_part(weight + i, n - i)), n - i);
    }
}

/* x · sigmoid(slope) */
static inline vec gated(vec x, vec slope) {
    return vec_div(x, vec_add(vec_set(1.0f), vec_exp(vec_sub(vec_zero(), slope))));
}

/* x · Φ(x) by tanh (Hendrycks and Gimpel, arXiv 1606.08415 §2); (1 + tanh u) / 2 is sigmoid(2u). */
static inline vec gelu_tanh(vec x) {
    const vec twice_root = vec_set(1.5957691216057308f); /* 2 √(2 / π) */
    vec cubic = vec_fma(vec_mul(vec_mul(x, x), x), vec_set(0.044715f), x);
    return gated(x, vec_mul(cubic, twice_root));
}

void sf_gate(int activation, const float *gate, const float *up, int n, float *y) {
    for (int i = 0; i < n; i += LANES) {
        vec x = vec_load_part(gate + i, n - i);
        vec open = activation == SILU ? gated(x, x) : gelu_tanh(x);
        vec_store_part(y + i, vec_mul(open, vec_load_part(up + i, n - i)), n - i);
    }
}

void sf_rotate(float *x, const float *cos, const float *sin, int n) {
    float *left = x, *right = x + n / 2;
    for (int i = 0; i < n / 2; i += LANES) {
        int count = n / 2 - i;
        vec a = vec_load_part(left + i, count), b = vec_load_part(right + i, count);
        vec c = vec_load_part(cos + i, count), s = vec_load_part(sin + i, count);
        vec_store_part(left + i, vec_sub(vec_mul(a, c), vec_mul(b, s)), count);
        vec_store_part(right + i, vec_add(vec_mul(b, c), vec_mul(a, s)), count);
    }
}
