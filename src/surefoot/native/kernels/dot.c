/* Products of 16-bit activations with packed weights.
 *
 * An instruction set's header does a group of inputs: exact integer sums, which have no order. What becomes
 * of the sums, in floating point, is written here once (`settle`), so it can't differ between them.
 */
#include <string.h>

#include "formats.h"
#include "simd.h"

#define INLINE static inline __attribute__((always_inline))
#define PANEL_STRIPS (PANEL / STRIP)
#define SPAN_GROUPS (SPAN / 16) /* most in a span */

/* A span of both strips of a panel. */
typedef struct {
    sf_format format;
    sf_span strip[PANEL_STRIPS];
    int bits; /* of a quant: 8 where they are decoded */
    int input; /* the first */
    int groups;
    const uint8_t *next[PANEL_STRIPS]; /* what comes after it, packed */
    int next_share;                    /* bytes of that for each of this one's groups */
} panel_span;

/* The hardware's own prefetching stops at the end of a page, which is a span or two away. A share at a time,
 * since loads wait behind a crowd of prefetches. */
INLINE void prefetch_share(const panel_span *span, int strip, int g) {
    for (int byte = 0; byte < span->next_share; byte += LINE)
        __builtin_prefetch(span->next[strip] + g * span->next_share + byte);
}

/* What kernels take off weights before they multiply: 128 where their bytes are signed. */
#if defined(__ARM_FEATURE_DOTPROD) && !defined(SUREFOOT_EMULATE_TILES)
#define OFFSET 128
#else
#define OFFSET 0
#endif

/* What rows bring to each group of a span, beside their q. */
typedef struct {
    const float *scale; /* of the first row's first 64 inputs */
    int scale_stride, group;
    int32_t start[ROW_TILE][SPAN_GROUPS]; /* (OFFSET − zero) · Σ q: where sums begin */
    float total[ROW_TILE][SPAN_GROUPS];   /* scale · Σ q, for the mins */
} row_terms;

INLINE float scale_of(const row_terms *terms, int row, int g) {
    return terms->scale[row * terms->scale_stride + (unsigned)(g * terms->group) / ACTIVATION_GROUP];
}

INLINE const int32_t *group_sums(const sf_rows *x, int group, uint64_t at) {
    return group == 16 ? x->sums16 + at / 16 : group == 32 ? x->sums32 + at / 32 : x->sums64 + at / 64;
}

INLINE void gather_terms(const panel_span *span, const sf_rows *x, int row, int rows, row_terms *terms) {
    const uint64_t first = (uint64_t)row * x->stride + span->input;
    terms->scale = x->scale + first / ACTIVATION_GROUP;
    terms->scale_stride = x->stride / ACTIVATION_GROUP;
    terms->group = span->format.group;
    for (int r = 0; r < rows; r++) {
        const int32_t *sums = group_sums(x, terms->group, first + (uint64_t)r * x->stride);
        for (int g = 0; g < span->groups; g++)
            terms->start[r][g] = (OFFSET - span->format.zero) * sums[g];
        if (span->strip[0].min)
            for (int g = 0; g < span->groups; g++)
                terms->total[r][g] = scale_of(terms, r, g) * (float)sums[g];
    }
}

/* Adds group `g` of a strip to y. */
INLINE void settle(vec isum, const sf_span *strip, const row_terms *terms, int row, int g, float *y) {
    vec scale = vec_mul(vec_set(scale_of(terms, row, g)), vec_load(strip->scale + g * STRIP));
    vec sum = vec_fma(isum, scale, vec_load(y));
    if (strip->min)
        sum = vec_fma(vec_set(terms->total[row][g]), vec_load(strip->min + g * STRIP), sum);
    vec_store(y, sum);
}

#if defined(__AMX_INT8__) || defined(SUREFOOT_EMULATE_TILES)
#include "dot_amx.h"
#elif defined(__AVX512VNNI__)
#include "dot_vnni.h"
#elif defined(__AVX2__)
#include "dot_avx2.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "dot_neon.h"
#else
#include "dot_portable.h"
#endif

/* Where the span after this one of the panel lies; after the last, the next panel's first. */
static void find_next(const sf_matrix *matrix, int panel, panel_span *span) {
    const int64_t of_strip = strip_bytes(&span->format, matrix->inputs);
    const int64_t of_span = span_bytes(&span->format, SPAN);
    const int last = span->input + SPAN >= matrix->inputs;
    if (last && (panel + 1) * PANEL >= matrix->outputs) {
        span->next_share = 0;
        return;
    }
    for (int s = 0; s < PANEL_STRIPS; s++) {
        const int strip = (panel + last) * PANEL_STRIPS + s;
        span->next[s] = matrix->data + strip * of_strip + (last ? 0 : (span->input / SPAN + 1) * of_span);
    }
    span->next_share = (int)round_up(of_span / span->groups, LINE);
}

void sf_panel(const sf_matrix *matrix, int panel, const sf_rows *x, float *y) {
    sf_span_room room[PANEL_STRIPS];
    panel_span span = {.format = SF_FORMATS[matrix->format]};
    const int packed = x->rows <= PACKED_ROWS;
    span.bits = packed ? span.format.bits : 8;
    memset(y, 0, (size_t)x->rows * PANEL * sizeof *y);
    for (int i = 0; i * SPAN < matrix->inputs; i++) {
        span.input = i * SPAN;
        span.groups = span_inputs(&span.format, matrix->inputs, i) / span.format.group;
        find_next(matrix, panel, &span);
        for (int s = 0; s < PANEL_STRIPS; s++)
            span.strip[s] = sf_decode(matrix, panel * PANEL_STRIPS + s, i, packed, &room[s]);
        add_span(&span, x, y);
    }
}
