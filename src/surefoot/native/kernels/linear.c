/* Linear layers: panels shared out among threads, biases, sums. */
#include "simd.h"
#include "surefoot.h"

#define PASS_ROWS (16 * ROW_TILE) /* that go through a panel at once */
#define SUMS (PASS_ROWS * PANEL)  /* numbers that are summed at once: they stay in the fast caches */
#define TASK_WEIGHTS 400000 /* a few panels, which share what they read of the rows */
#define TASKS_PER_THREAD 4  /* or more, where there are panels enough, so that none waits long for another */

typedef struct {
    const sf_linear *linear;
    const sf_rows *x;
    float *y;
    int64_t y_stride;
    int add, panels, panels_a_task;
} product;

static int panels_of(const sf_matrix *matrix) { return (matrix->outputs + PANEL - 1) / PANEL; }

/* From the first row of a tile on. */
static sf_rows rows_from(const sf_rows *x, int first, int rows) {
    const int64_t at = sf_q_at(x, first, 0);
    sf_rows part = *x;
#if SF_PLANES
    part.high += at;
    part.low += at;
#endif
#if SF_PAIRS
    part.pairs += 2 * at;
#endif
#if SF_WHOLE
    part.q += at;
#endif
    part.scale += at / ACTIVATION_GROUP;
    part.sums64 += at / 64;
    part.sums32 += at / 32;
    part.sums16 += at / 16;
    part.rows = rows;
    return part;
}

/* The first `outputs` of a row of a panel, into their place. */
static void put_row(const float *from, const float *bias, int add, int outputs, float *to) {
    int o = 0;
    for (; o + STRIP <= outputs; o += STRIP) {
        vec value = vec_load(from + o);
        if (bias)
            value = vec_add(value, vec_load(bias + o));
        vec_store(to + o, add ? vec_add(vec_load(to + o), value) : value);
    }
    for (; o < outputs; o++) {
        float value = bias ? from[o] + bias[o] : from[o];
        to[o] = add ? to[o] + value : value;
    }
}

/* So many panels of a part, whose outputs begin at `first` of the layer's, for so many rows. */
static void run_panels(const product *job, const sf_matrix *matrix, int panel, int panels, int first,
                       const sf_rows *x, float *y) {
    _Alignas(LINE) float sums[SUMS];
    sf_panels(matrix, panel, panels, x, sums);
    for (int i = 0; i < panels; i++) {
        const int at = (panel + i) * PANEL, left = matrix->outputs - at, outputs = left < PANEL ? left : PANEL;
        const float *bias = job->linear->bias ? job->linear->bias + first + at : NULL;
        for (int r = 0; r < x->rows; r++)
            put_row(sums + ((int64_t)i * x->rows + r) * PANEL, bias, job->add, outputs,
                    y + r * job->y_stride + first + at);
    }
}

/* Panels `begin` to `end` of a part. */
static void run_part(const product *job, const sf_matrix *matrix, int begin, int end, int first) {
    const int all = job->x->rows, most = all < PASS_ROWS ? all : PASS_ROWS, together = SUMS / (most * PANEL);
    for (int panel = begin; panel < end; panel += together)
        for (int row = 0; row < all; row += most) {
            const sf_rows x = rows_from(job->x, row, all - row < most ? all - row : most);
            run_panels(job, matrix, panel, end - panel < together ? end - panel : together, first, &x,
                       job->y + row * job->y_stride);
        }
}

static void run_task(void *context, int task, int thread) {
    const product *job = context;
    const int begin = task * job->panels_a_task, end = begin + job->panels_a_task;
    (void)thread;
    for (int part = 0, before = 0, first = 0; part < job->linear->parts; part++) {
        const sf_matrix *matrix = &job->linear->part[part];
        const int panels = panels_of(matrix), last = end - before < panels ? end - before : panels;
        run_part(job, matrix, begin > before ? begin - before : 0, last, first);
        before += panels;
        first += matrix->outputs;
    }
    sf_dot_end();
}

void sf_apply(sf_pool *pool, const sf_linear *linear, const sf_rows *x, float *y, int64_t y_stride, int add) {
    product job = {linear, x, y, y_stride, add, 0, 1};
    for (int part = 0; part < linear->parts; part++)
        job.panels += panels_of(&linear->part[part]);
    const int worth_it = TASK_WEIGHTS / (PANEL * x->inputs);
    const int fair = job.panels / (TASKS_PER_THREAD * sf_pool_threads(pool));
    const int most = worth_it < fair ? worth_it : fair;
    if (most > 1)
        job.panels_a_task = most;
    sf_parallel(pool, run_task, &job, (job.panels + job.panels_a_task - 1) / job.panels_a_task);
}

typedef struct {
    const float *x;
    sf_rows *rows;
} rounding;

static void run_row(void *context, int row, int thread) {
    const rounding *job = context;
    (void)thread;
    sf_quantize(job->x + (int64_t)row * job->rows->inputs, job->rows, row);
}

int sf_linear_forward(sf_pool *pool, const sf_linear *linear, int rows, const float *x, float *y) {
    const int inputs = linear->part[0].inputs;
    int64_t outputs = 0;
    for (int part = 0; part < linear->parts; part++)
        outputs += linear->part[part].outputs;
    uint8_t *room = sf_pool_room(pool, sf_rows_bytes(rows, inputs));
    if (!room)
        return -1;
    sf_rows rounded = sf_rows_at(room, rows, inputs);
    rounding job = {x, &rounded};
    sf_parallel(pool, run_row, &job, rows);
    sf_apply(pool, linear, &rounded, y, outputs, 0);
    return 0;
}
