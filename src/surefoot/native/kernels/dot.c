/* Products of 12-bit activations with packed weights.
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
    int packed; /* quants are as the matrix has them */
    int bits;   /* of a quant: 8 where they are decoded */
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

/* What rows of one tile bring to each group of a span, beside their q. */
typedef struct {
    const float *scale[SPAN_GROUPS];      /* of the rows */
    int32_t start[SPAN_GROUPS][ROW_TILE]; /* (OFFSET − zero) · Σ q: where sums begin */
    float total[SPAN_GROUPS][ROW_TILE];   /* scale · Σ q, for the mins */
} row_terms;

INLINE const int32_t *sums_of(const sf_rows *x, int group) {
    return group == 16 ? x->sums16 : group == 32 ? x->sums32 : x->sums64;
}

INLINE void gather_terms(int group, const panel_span *span, const sf_rows *x, int row, int rows,
                         row_terms *terms) {
    const int32_t *sums = sums_of(x, group) + sf_group_at(x, group, row, span->input);
    const float *scale = x->scale + sf_group_at(x, ACTIVATION_GROUP, row, span->input);
    for (int g = 0; g < span->groups; g++, sums += x->height) {
        terms->scale[g] = scale + g * group / ACTIVATION_GROUP * x->height;
        for (int r = 0; r < rows; r++)
            terms->start[g][r] = (OFFSET - span->format.zero) * sums[r];
        if (span->strip[0].min)
            for (int r = 0; r < rows; r++)
                terms->total[g][r] = terms->scale[g][r] * (float)sums[r];
    }
}

/* What a strip brings to a group. */
typedef struct {
    int has_min;
    vec scale, min;
} strip_terms;

INLINE strip_terms gather_strip(int has_min, const sf_span *strip, int g) {
    return (strip_terms){has_min, vec_load(strip->scale + g * STRIP),
                         has_min ? vec_load(strip->min + g * STRIP) : vec_zero()};
}

/* Adds group `g` of a strip to y. */
INLINE void settle(vec isum, const strip_terms *strip, const row_terms *terms, int row, int g, float *y) {
    vec sum = vec_fma(isum, vec_mul(vec_set(terms->scale[g][row]), strip->scale), vec_load(y));
    if (strip->has_min)
        sum = vec_fma(vec_set(terms->total[g][row]), strip->min, sum);
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

#ifndef SUREFOOT_TILES_H
#define TAKES_PACKED(format, rows) ((rows) <= PACKED_ROWS)

static void add_span(const panel_span *span, const sf_rows *x, float *y) { add_blocks(span, x, y); }
int sf_ready(void) { return 1; }
void sf_dot_end(void) {}
#endif

/* Panels that are summed together. */
typedef struct {
    const sf_matrix *matrix;
    int first, end;
} panel_group;

/* Where the span that comes next lies: that of the next panel; after the last one, the first panel's next;
 * after the last of all, the first of the panels that follow. */
static void find_next(const panel_group *group, int panel, panel_span *span) {
    const sf_matrix *matrix = group->matrix;
    const int64_t of_strip = strip_bytes(&span->format, matrix->inputs);
    const int64_t of_span = span_bytes(&span->format, SPAN);
    int next = panel + 1, at = span->input / SPAN;
    if (next == group->end && (at + 1) * SPAN < matrix->inputs) {
        next = group->first;
        at++;
    } else if (next == group->end)
        at = 0;
    span->next_share = next * PANEL < matrix->outputs ? (int)round_up(of_span / span->groups, LINE) : 0;
    for (int s = 0; s < PANEL_STRIPS; s++)
        span->next[s] = matrix->data + (int64_t)(next * PANEL_STRIPS + s) * of_strip + at * of_span;
}

static void add_panel(const panel_group *group, int panel, panel_span *span, const sf_rows *x, float *y) {
    sf_span_room room[PANEL_STRIPS];
    find_next(group, panel, span);
    for (int s = 0; s < PANEL_STRIPS; s++)
        span->strip[s] = sf_decode(group->matrix, panel * PANEL_STRIPS + s, span->input / SPAN, span->packed, &room[s]);
    add_span(span, x, y);
}

/* Span by span, all panels of one before the next, so that the activations of a span stay in the first cache. */
void sf_panels(const sf_matrix *matrix, int panel, int panels, const sf_rows *x, float *y) {
    const panel_group group = {matrix, panel, panel + panels};
    const int64_t of_panel = (int64_t)x->rows * PANEL;
    panel_span span = {.format = SF_FORMATS[matrix->format]};
    span.packed = TAKES_PACKED(span.format, x->rows);
    span.bits = span.packed ? span.format.bits : 8;
    memset(y, 0, (size_t)(panels * of_panel) * sizeof *y);
    for (; span.input < matrix->inputs; span.input += SPAN) {
        span.groups = span_inputs(&span.format, matrix->inputs, span.input / SPAN) / span.format.group;
        for (int i = 0; i < panels; i++)
            add_panel(&group, panel + i, &span, x, y + i * of_panel);
    }
}
