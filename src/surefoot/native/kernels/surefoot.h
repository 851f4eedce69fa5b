/* The native core: what Python calls, and the shapes that every kernel works on.
 *
 * One library is built per instruction set, from the same files; which kernels it holds is decided by what
 * the compiler was told the processor can do. Every result is a fixed sequence of IEEE operations on one
 * row, the same in every library and for any number of threads (docs/kernels.md).
 *
 * Words: a matrix has `outputs` rows of `inputs` weights. A strip is 16 outputs, a panel two strips. A span
 * is 256 inputs of a strip (the last of a strip may be shorter), a quad four inputs, a group the inputs that
 * share one scale.
 */
#ifndef SUREFOOT_H
#define SUREFOOT_H

#include <stddef.h>
#include <stdint.h>

#define STRIP 16
#define PANEL 32
#define SPAN 256
#define QUAD 4
#define LINE 64        /* bytes of a cache line: one quad of a strip */
/* Rows of activations that lie together, and the most that a dot kernel takes at once; a multiple of what NEON
 * takes, three, there. */
#if defined(__ARM_FEATURE_DOTPROD)
#define ROW_TILE 15
#else
#define ROW_TILE 16
#endif
#define SMALLEST 1e-30f /* numbers to be quantized count as zeros where a group has none as large */

#define EXPORT __attribute__((visibility("default")))

static inline int64_t round_up(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

/* ---- weights: formats.c, pack.c ---- */

/* weight = scale · (q − zero) + min, q unsigned. Names and numbers of the q are those of GGUF blocks; INT8
 * is our own: one bf16 scale per group of 64 (INT8_64) or of 32 (INT8_32). */
enum {
    INT8_64,
    INT8_32,
    Q4_0,
    Q4_1,
    Q5_0,
    Q8_0,
    Q4_K,
    Q5_K,
    Q6_K,
    NUM_FORMATS
};

/* How the scales of a span are kept, [group][16 outputs] each:
 * BF16, HALF: one number a group.  HALF_MIN: a scale and a min, both half.
 * K45: half scale and half min a span, a byte for each a group: scale · byte, min · byte.
 * K6: a half scale a span, a signed byte a group. */
enum { BF16, HALF, HALF_MIN, K45, K6 };

typedef struct {
    int bits;   /* of a q: 4, 5, 6 or 8 */
    int zero;   /* the q that stands for 0 */
    int group;  /* inputs under one scale: 16, 32 or 64 */
    int scales; /* how they are kept */
    int unit;   /* `inputs` is a multiple of this */
} sf_format;

extern const sf_format SF_FORMATS[NUM_FORMATS];

typedef struct {
    int32_t format, outputs, inputs;
    const uint8_t *data;      /* strips one after the other, sf_strip_bytes each; outputs padded to a panel.
                               At an even address; a multiple of 64 is fastest */
} sf_matrix;

/* One span of one strip, ready for a dot product. */
typedef struct {
    const uint8_t *quants; /* [inputs / 4][16 outputs][4] */
    const float *scale;    /* [groups][16] */
    const float *min;      /* [groups][16], NULL in formats without */
} sf_span;

/* Room for one decoded span; 64-byte aligned. */
typedef struct {
    _Alignas(LINE) uint8_t quants[SPAN * STRIP];
    float scale[SPAN / 16 * STRIP];
    float min[SPAN / 32 * STRIP];
} sf_span_room;

EXPORT int64_t sf_strip_bytes(int format, int inputs);
EXPORT int64_t sf_matrix_bytes(int format, int outputs, int inputs); /* padding strips included */

/* Decodes span `span` (inputs from 256 · span on) of strip `strip`; with `packed` its scales alone, and the
 * quants are those of the matrix. 8-bit quants are never copied. */
sf_span sf_decode(const sf_matrix *matrix, int strip, int span, int packed, sf_span_room *room);

/* Packs `outputs` rows of GGUF blocks, `source` as in the file, into `target`. Padding outputs and nothing
 * else are zeros in effect: scale 0. A matrix may be packed in parts, by several threads at once: 32 n
 * outputs at a time, `target` 2 n strips further each time. So too below. */
EXPORT void sf_pack_blocks(int format, int outputs, int inputs, const uint8_t *source, uint8_t *target);

/* Rounds float32 weights [outputs][inputs] to INT8_64 or INT8_32: q − 128 in −127 … 127, the scale a bf16
 * not below largest / 127. Inputs past the end of a last short group count as zeros. Where a weight isn't
 * finite its group's scale is NaN. */
EXPORT void sf_pack_int8(int format, int outputs, int inputs, const float *source, uint8_t *target);

/* The weights of output `output` as float32 [inputs]: scale · (q − zero), then + min, each rounded once. */
EXPORT void sf_unpack(const sf_matrix *matrix, int output, float *target);

/* ---- activations: rows.c ---- */

#define ACTIVATION_GROUP 64

/* Kernels of 8-bit products take an activation as two bytes, q = 16 · high + low, 0 <= low < 16; those that
 * widen to 16 bits take it whole. AVX2 has some of each. Tiles take 32 high and 32 low bytes together too, for
 * weights of 4 bits, which are a byte also 16 times over. */
#if defined(__AVX512VNNI__) || defined(__ARM_FEATURE_DOTPROD) || defined(SUREFOOT_EMULATE_TILES)
#define SF_PLANES 1
#define SF_WHOLE 0
#elif defined(__AVX2__)
#define SF_PLANES 1
#define SF_WHOLE 1
#else
#define SF_PLANES 0
#define SF_WHOLE 1
#endif
#if defined(__AMX_INT8__) || defined(SUREFOOT_EMULATE_TILES)
#define SF_PAIRS 1
#else
#define SF_PAIRS 0
#endif
#define PAIR_GROUP 32

/* Rows of 12-bit activations: x ≈ scale · q, |q| ≤ 2047 = 127 · 16 + 15, one scale per group of 64.
 *
 * They lie in tiles of `height` rows, which is ROW_TILE, or `rows` where there are fewer; and a tile group by
 * group, so that what a kernel takes of its rows at once lies together. `inputs` are zeros from there on; rows
 * past the last are anything. */
typedef struct {
#if SF_PLANES
    int8_t *high, *low; /* [tiles][stride / 64][height][64]; 64-byte aligned */
#endif
#if SF_PAIRS
    int8_t *pairs;      /* [tiles][stride / 32][height][32 high, 32 low]; likewise */
#endif
#if SF_WHOLE
    int16_t *q;         /* likewise */
#endif
    float *scale;       /* [tiles][stride / 64][height] */
    int32_t *sums64, *sums32, *sums16; /* [tiles][stride / 64, / 32, / 16][height]: of the q of each group */
    int32_t rows, inputs, height;
    int32_t stride;     /* inputs rounded up to ACTIVATION_GROUP */
} sf_rows;

/* Where, in an array of one number for `group` inputs, that of input `input` of row `row` is. */
static inline int64_t sf_group_at(const sf_rows *x, int group, int row, int input) {
    const int64_t tile = (unsigned)row / ROW_TILE, inside = (unsigned)row % ROW_TILE;
    return (tile * (x->stride / group) + (unsigned)input / group) * x->height + inside;
}

/* Where the q of input `input` of row `row` is; that of the next row of its tile is ACTIVATION_GROUP further. */
static inline int64_t sf_q_at(const sf_rows *x, int row, int input) {
    return sf_group_at(x, ACTIVATION_GROUP, row, input) * ACTIVATION_GROUP + (unsigned)input % ACTIVATION_GROUP;
}

/* Bytes of the arrays above for so many rows, and their places in one buffer (64-byte aligned) of so many. */
int64_t sf_rows_bytes(int rows, int inputs);
sf_rows sf_rows_at(uint8_t *buffer, int rows, int inputs);

/* q = x · (2047 / largest) rounded to nearest even, scale = largest / 2047 of the group. A group with none
 * as large as SMALLEST has scale 0 and q 0. One row; `x` has `inputs` numbers. Where a number isn't finite its
 * group's scale is NaN, so that it shows in whatever is computed of it. */
void sf_quantize(const float *x, sf_rows *rows, int row);

/* ---- integer products: dot.c, one kernel per instruction set ---- */

/* The outputs of `panels` panels from `panel` on for every row of x, [panels][rows][32] into `y`, no bias. For an
 * output o:
 *     y = 0; for each group g in order: y = fma((float)isum, x.scale · scale[g][o], y),
 *     and with a min then           y = fma(x.scale · (float)sum_g, min[g][o], y),
 * isum = Σ q_x · (q_w − zero) over the group, an exact integer (below 2^25: 64 · 2047 · 255), sum_g = Σ q_x
 * over the group, x.scale that of the 64 inputs that hold g. `y` may not alias anything. */
void sf_panels(const sf_matrix *matrix, int panel, int panels, const sf_rows *x, float *y);

/* Whether this process may use the library's instructions; asks the system for them where it must (AMX).
 * Called once, before anything else. */
EXPORT int sf_ready(void);
/* Called by a thread after the last product of a task: gives back what it had of the tiles (AMX). */
void sf_dot_end(void);

/* ---- threads: pool.c ---- */

typedef struct sf_pool sf_pool;
typedef void (*sf_task)(void *context, int task, int thread);

EXPORT sf_pool *sf_pool_new(int threads); /* NULL when threads can't be had */
EXPORT void sf_pool_free(sf_pool *pool);
int sf_pool_threads(const sf_pool *pool);
/* Room for a pass's numbers, 64-byte aligned, the pool's own: kept from pass to pass, since fresh pages cost
 * more than a small pass. NULL when there is none. */
uint8_t *sf_pool_room(sf_pool *pool, int64_t bytes);
/* Runs tasks 0 … tasks − 1, the caller being thread 0, and returns when all are done. One task, or one
 * thread, runs in place. Tasks are handed out as threads come free; no result may depend on who runs what. */
void sf_parallel(sf_pool *pool, sf_task run, void *context, int tasks);

/* ---- layers: linear.c, pointwise.c, attention.c ---- */

#define MAX_PARTS 3

/* Matrices over the same inputs whose outputs stand side by side: q, k and v, or gate and up. */
typedef struct {
    int32_t parts;
    sf_matrix part[MAX_PARTS];
    const float *bias; /* [sum of outputs], or NULL */
} sf_linear;

/* y = x Wᵀ + b, [rows][y_stride]; or, with `add`, y += x Wᵀ + b (the product first, then the sum with what
 * was there). */
void sf_apply(sf_pool *pool, const sf_linear *linear, const sf_rows *x, float *y, int64_t y_stride, int add);

typedef struct {
    const float *attention_norm, *mlp_norm;             /* [hidden] */
    const float *q_norm, *k_norm;                       /* [head_dim], or NULL */
    const float *attention_post_norm, *mlp_post_norm;   /* [hidden], or NULL */
    sf_linear qkv, output, gate_up, down;
    int32_t window; /* how many keys a row sees, its own included; 0 = all */
    int32_t rope;   /* which of the pass's rotations */
} sf_layer;

enum { SILU, GELU_TANH };

typedef struct {
    int32_t layers, hidden, heads, kv_heads, head_dim, intermediate, vocabulary, activation;
    float norm_eps, attention_scale;
    const sf_layer *layer;
    const float *norm; /* [hidden] */
    sf_linear head;
} sf_model;

/* One pass over a flat list of rows. Row r reads num_keys[r] keys (its own is the last), the first
 * of them at slot slots[first_key[r]], in position order; rows of one chain share a list. Its position is
 * num_keys[r] − 1. A key is of an earlier pass or of an earlier row. */
typedef struct {
    int32_t rows, wanted;
    float *x;                       /* [rows][hidden], the embedded tokens; overwritten */
    const float *cos, *sin;         /* [rotations][rows][head_dim / 2] */
    const int32_t *slots;
    const int64_t *first_key;       /* [rows] */
    const int32_t *num_keys;        /* [rows] */
    uint16_t *keys, *values;        /* half; [layers][num_slots][kv_heads][key_stride], zeros past head_dim */
    int64_t num_slots, key_stride;  /* key_stride: head_dim rounded up to 16 */
    const int32_t *wanted_rows;     /* [wanted], ascending */
    float *logits;                  /* [wanted][vocabulary] */
} sf_pass;

/* Returns 0, or −1 when there is no memory for the pass, which then has changed nothing but the keys of its
 * own rows. */
EXPORT int sf_forward(sf_pool *pool, const sf_model *model, const sf_pass *pass);

/* x Wᵀ + b of float32 rows [rows][inputs] into y [rows][sum of outputs]; 0 or −1 as above. */
EXPORT int sf_linear_forward(sf_pool *pool, const sf_linear *linear, int rows, const float *x, float *y);

/* y = x / rms(x) · weight: Σ x² in 16 lanes, then vec_sum; ÷ n, + eps, 1 / √; (x · that) · weight. */
EXPORT void sf_rms_norm(const float *x, const float *weight, int n, float eps, float *y);
/* gate [n] → activation(gate) · up, into y. */
EXPORT void sf_gate(int activation, const float *gate, const float *up, int n, float *y);
/* Rotary embedding in place, half-split order: pairs (i, i + n / 2). (RoFormer, arXiv 2104.09864 §3.4) */
EXPORT void sf_rotate(float *x, const float *cos, const float *sin, int n);

/* Softmax attention of every row and head of a pass over one layer's keys, which hold the pass's own
 * already. queries and out: [rows][heads · head_dim] float32, query rows `query_stride` apart. `scratch` has
 * sf_attention_bytes, which are enough for any choice of the pass's rows too. Keys are taken in stripes of 512
 * by position, blocks of 64 within; a stripe's (largest score, sum of exp, weighted values) are merged in
 * order. */
typedef struct {
    int32_t heads, kv_heads, head_dim, window;
    float scale;
    const uint16_t *keys, *values; /* of this layer */
} sf_attention;
EXPORT int64_t sf_attention_bytes(sf_pool *pool, const sf_model *model, const sf_pass *pass);
EXPORT void sf_attend(sf_pool *pool, const sf_attention *layer, const sf_pass *pass, const float *queries,
                      int64_t query_stride, float *out, uint8_t *scratch);

#endif
