/* `vec` in plain C: the reference, and what a compiler vectorizes by itself where there is no header. */
#ifndef SUREFOOT_SIMD_PORTABLE_H
#define SUREFOOT_SIMD_PORTABLE_H

#include <math.h>
#include <string.h>

typedef struct {
    float lane[LANES];
} vec;

#define VEC_REGISTERS 8

#define EACH_LANE(expression)                \
    do {                                     \
        for (int i = 0; i < LANES; i++)      \
            y.lane[i] = (expression);        \
    } while (0)

static inline vec vec_set(float x) { vec y; EACH_LANE(x); return y; }
static inline vec vec_zero(void) { return vec_set(0.0f); }
static inline vec vec_load(const float *p) { vec y; memcpy(&y, p, sizeof y); return y; }
static inline void vec_store(float *p, vec x) { memcpy(p, &x, sizeof x); }
static inline vec vec_add(vec a, vec b) { vec y; EACH_LANE(a.lane[i] + b.lane[i]); return y; }
static inline vec vec_sub(vec a, vec b) { vec y; EACH_LANE(a.lane[i] - b.lane[i]); return y; }
static inline vec vec_mul(vec a, vec b) { vec y; EACH_LANE(a.lane[i] * b.lane[i]); return y; }
static inline vec vec_div(vec a, vec b) { vec y; EACH_LANE(a.lane[i] / b.lane[i]); return y; }
/* a * b + c, rounded once */
static inline vec vec_fma(vec a, vec b, vec c) { vec y; EACH_LANE(fmaf(a.lane[i], b.lane[i], c.lane[i])); return y; }
/* the second where they are equal or one is no number, as x86 has it */
static inline vec vec_max(vec a, vec b) { vec y; EACH_LANE(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]); return y; }
static inline vec vec_min(vec a, vec b) { vec y; EACH_LANE(a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]); return y; }
static inline vec vec_abs(vec x) { vec y; EACH_LANE(fabsf(x.lane[i])); return y; }
static inline vec vec_round(vec x) { vec y; EACH_LANE(rintf(x.lane[i])); return y; } /* ties to even */
/* a < b ? yes : no */
static inline vec vec_where_less(vec a, vec b, vec yes, vec no) { vec y; EACH_LANE(a.lane[i] < b.lane[i] ? yes.lane[i] : no.lane[i]); return y; }
/* x * 2^n for whole n whose result is a normal number */
static inline vec vec_scale2(vec x, vec n) {
    vec y;
    for (int i = 0; i < LANES; i++) {
        int32_t bits = ((int32_t)n.lane[i] + 127) << 23;
        float power;
        memcpy(&power, &bits, sizeof power);
        y.lane[i] = x.lane[i] * power;
    }
    return y;
}
static inline vec vec_from_int32(const int32_t *p) { vec y; EACH_LANE((float)p[i]); return y; }
static inline vec vec_from_uint8(const uint8_t *p) { vec y; EACH_LANE((float)p[i]); return y; }
static inline vec vec_from_int8(const int8_t *p) { vec y; EACH_LANE((float)p[i]); return y; }
/* whole numbers of -128 to 127 */
static inline void vec_to_int8(int8_t *p, vec x) { for (int i = 0; i < LANES; i++) p[i] = (int8_t)x.lane[i]; }
static inline vec vec_from_bf16(const uint16_t *p) {
    vec y;
    for (int i = 0; i < LANES; i++) {
        uint32_t bits = (uint32_t)p[i] << 16;
        memcpy(&y.lane[i], &bits, sizeof bits);
    }
    return y;
}
static inline vec vec_from_half(const uint16_t *p) {
    vec y;
    for (int i = 0; i < LANES; i++) {
        _Float16 half;
        memcpy(&half, &p[i], sizeof half);
        y.lane[i] = (float)half;
    }
    return y;
}
/* ties to even; what is too large becomes infinite */
static inline void vec_to_half(uint16_t *p, vec x) {
    for (int i = 0; i < LANES; i++) {
        _Float16 half = (_Float16)x.lane[i];
        memcpy(&p[i], &half, sizeof half);
    }
}
/* The sum of the lanes: i with i + 8, then i + 4, i + 2, i + 1. */
static inline float vec_sum(vec x) {
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            x.lane[i] += x.lane[i + half];
    return x.lane[0];
}
/* Four of them, to p[0 … 3]. */
static inline void vec_sum4(float *p, vec a, vec b, vec c, vec d) {
    p[0] = vec_sum(a);
    p[1] = vec_sum(b);
    p[2] = vec_sum(c);
    p[3] = vec_sum(d);
}
static inline float vec_largest(vec x) {
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++)
            x.lane[i] = x.lane[i] > x.lane[i + half] ? x.lane[i] : x.lane[i + half];
    return x.lane[0];
}

#endif
