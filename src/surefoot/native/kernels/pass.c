/* One pass through the decoder, layer by layer.
 *
 * Rows go through in parts of at most MOST_ROWS, each part through all layers, so that a long prompt needs no
 * more room than a short one. A part sees the keys of those before it, as it would the keys of a cache.
 */
#include <string.h>

#include "simd.h"
#include "surefoot.h"

#define MOST_ROWS 512
#define ALONE 16384        /* numbers that one thread goes through sooner than it wakes another */
#define LARGEST_HALF 65504.0f

/* One part of a pass. */
typedef struct {
    sf_pool *pool;
    const sf_model *model;
    const sf_pass *whole;
    sf_pass pass;            /* the rows that go on: the part's, in the last layer the wanted ones */
    int first;               /* the part's first row in the whole */
    int index;               /* of the layer */
    const sf_layer *layer;
    int64_t q_width, qkv_width;
    float *qkv, *mixed, *product, *gate_up, *kept; /* [rows][…]; kept: x of the wanted rows */
    float *thread_row;       /* a row of `hidden` numbers for each thread */
    uint8_t *quants, *scratch;
    int64_t *first_key;      /* of the wanted rows */
    int32_t *num_keys;
    sf_rows rows;            /* what goes into the next linear layer */
    const float *weight;     /* of the norm that a step does */
    const float *source;     /* what a step reads */
    int64_t source_width;
} part;

/* ---- steps over rows ---- */

typedef void (*row_step)(part *part, int row, int thread);

typedef struct {
    part *part;
    row_step step;
} row_job;

static void run_row(void *context, int row, int thread) {
    const row_job *job = context;
    job->step(job->part, row, thread);
}

/* `step` for all rows, each of about so many numbers. */
static void each_row(part *part, row_step step, int64_t numbers) {
    row_job job = {part, step};
    if (part->pass.rows * numbers > ALONE)
        sf_parallel(part->pool, run_row, &job, part->pass.rows);
    else
        for (int row = 0; row < part->pass.rows; row++)
            step(part, row, 0);
}

static void norm_row(part *part, int row, int thread) {
    const sf_model *model = part->model;
    float *normed = part->thread_row + (int64_t)thread * round_up(model->hidden, LANES);
    const float *x = part->pass.x + (int64_t)row * model->hidden;
    sf_rms_norm(x, part->weight, model->hidden, model->norm_eps, normed);
    sf_quantize(normed, &part->rows, row);
}

static void quantize_row(part *part, int row, int thread) {
    (void)thread;
    sf_quantize(part->source + row * part->source_width, &part->rows, row);
}

static void gate_row(part *part, int row, int thread) {
    (void)thread;
    const int width = part->model->intermediate;
    float *gate = part->gate_up + (int64_t)row * 2 * width;
    sf_gate(part->model->activation, gate, gate + width, width, gate);
    sf_quantize(gate, &part->rows, row);
}

/* x += norm(product) */
static void add_normed_row(part *part, int row, int thread) {
    (void)thread;
    const int hidden = part->model->hidden;
    float *x = part->pass.x + (int64_t)row * hidden, *product = part->product + (int64_t)row * hidden;
    sf_rms_norm(product, part->weight, hidden, part->model->norm_eps, product);
    for (int i = 0; i < hidden; i += LANES) {
        vec sum = vec_add(vec_load_part(x + i, hidden - i), vec_load_part(product + i, hidden - i));
        vec_store_part(x + i, sum, hidden - i);
    }
}

/* One head's key or value as half, what is too large being taken for the largest (infinities would make a
 * NaN where a weight is zero). */
static void put_head(const float *from, int head_dim, int64_t stride, uint16_t *to) {
    for (int i = 0; i < stride; i += LANES) {
        vec x = vec_load_part(from + i, head_dim - i > 0 ? head_dim - i : 0);
        /* A NaN, being second, stays. */
        x = vec_min(vec_set(LARGEST_HALF), vec_max(vec_set(-LARGEST_HALF), x));
        vec_to_half(to + i, x);
    }
}

/* Norms and turns `count` heads that stand side by side. */
static void place_heads(const part *part, int row, const float *norm, int count, float *x) {
    const sf_model *model = part->model;
    const int64_t rotation = (int64_t)part->layer->rope * part->whole->rows + part->first + row;
    const float *cos = part->whole->cos + rotation * (model->head_dim / 2);
    const float *sin = part->whole->sin + rotation * (model->head_dim / 2);
    for (int head = 0; head < count; head++, x += model->head_dim) {
        if (norm)
            sf_rms_norm(x, norm, model->head_dim, model->norm_eps, x);
        sf_rotate(x, cos, sin, model->head_dim);
    }
}

/* Turns a row's queries and keys, and puts its keys and values where they are kept. */
static void keep_row(part *part, int row, int thread) {
    (void)thread;
    const sf_model *model = part->model;
    const sf_pass *pass = &part->pass;
    float *q = part->qkv + row * part->qkv_width, *k = q + part->q_width;
    place_heads(part, row, part->layer->q_norm, model->heads, q);
    place_heads(part, row, part->layer->k_norm, model->kv_heads, k);
    const int64_t slot = pass->slots[pass->first_key[row] + pass->num_keys[row] - 1];
    const float *v = k + model->kv_heads * model->head_dim;
    int64_t to = (part->index * pass->num_slots + slot) * model->kv_heads * pass->key_stride;
    for (int head = 0; head < model->kv_heads; head++, to += pass->key_stride) {
        put_head(k + head * model->head_dim, model->head_dim, pass->key_stride, pass->keys + to);
        put_head(v + head * model->head_dim, model->head_dim, pass->key_stride, pass->values + to);
    }
}

/* ---- a layer ---- */

static void quantize(part *part, row_step step, int inputs, int64_t numbers) {
    part->rows = sf_rows_at(part->quants, part->pass.rows, inputs);
    each_row(part, step, numbers);
}

static void norm_and_quantize(part *part, const float *weight) {
    part->weight = weight;
    quantize(part, norm_row, part->model->hidden, part->model->hidden);
}

/* x += linear(rows), normed where the family has it so. */
static void add_product(part *part, const sf_linear *linear, const float *post_norm) {
    const int hidden = part->model->hidden;
    sf_apply(part->pool, linear, &part->rows, post_norm ? part->product : part->pass.x, hidden, !post_norm);
    part->weight = post_norm;
    if (post_norm)
        each_row(part, add_normed_row, hidden);
}

/* Goes on with the wanted rows alone: the others' work ends with their keys of the last layer. */
static void keep_wanted(part *part) {
    const int hidden = part->model->hidden;
    sf_pass *pass = &part->pass;
    if (pass->wanted == pass->rows)
        return;
    for (int i = 0; i < pass->wanted; i++) {
        const int row = pass->wanted_rows[i] - part->first;
        part->first_key[i] = pass->first_key[row];
        part->num_keys[i] = pass->num_keys[row];
        memcpy(part->kept + (int64_t)i * hidden, pass->x + (int64_t)row * hidden, hidden * sizeof(float));
        /* Wanted rows ascend, so none is overwritten before its turn. */
        float *to = part->qkv + i * part->qkv_width;
        memmove(to, part->qkv + row * part->qkv_width, part->q_width * sizeof(float));
    }
    pass->x = part->kept;
    pass->first_key = part->first_key;
    pass->num_keys = part->num_keys;
    pass->rows = pass->wanted;
}

static void attend(part *part) {
    const sf_model *model = part->model;
    const sf_pass *pass = &part->pass;
    const int64_t layer = part->index * pass->num_slots * model->kv_heads * pass->key_stride;
    const sf_attention attention = {model->heads, model->kv_heads, model->head_dim, part->layer->window,
                                    model->attention_scale, pass->keys + layer, pass->values + layer};
    sf_attend(part->pool, &attention, pass, part->qkv, part->qkv_width, part->mixed, part->scratch);
}

static void run_layer(part *part) {
    const sf_model *model = part->model;
    const sf_layer *layer = part->layer;
    norm_and_quantize(part, layer->attention_norm);
    sf_apply(part->pool, &layer->qkv, &part->rows, part->qkv, part->qkv_width, 0);
    each_row(part, keep_row, part->qkv_width);
    if (part->index == model->layers - 1)
        keep_wanted(part);
    if (!part->pass.rows)
        return;
    attend(part);
    part->source = part->mixed;
    part->source_width = part->q_width;
    quantize(part, quantize_row, (int)part->q_width, part->q_width);
    add_product(part, &layer->output, layer->attention_post_norm);
    norm_and_quantize(part, layer->mlp_norm);
    sf_apply(part->pool, &layer->gate_up, &part->rows, part->gate_up, 2 * model->intermediate, 0);
    quantize(part, gate_row, model->intermediate, 4 * model->intermediate); /* an exp is dear */
    add_product(part, &layer->down, layer->mlp_post_norm);
}

/* ---- a part ---- */

static int64_t largest_of_three(int64_t a, int64_t b, int64_t c) {
    int64_t most = a > b ? a : b;
    return most > c ? most : c;
}

/* Takes `bytes` off the room, whole lines; with `room` NULL only counts. */
static void *take(uint8_t *room, int64_t *used, int64_t bytes) {
    uint8_t *place = room ? room + *used : NULL;
    *used += round_up(bytes, LINE);
    return place;
}

/* Gives each buffer its place; returns how many bytes they take. */
static int64_t lay_out(part *part, uint8_t *room) {
    const sf_model *model = part->model;
    const int64_t rows = part->pass.rows, number = sizeof(float);
    int64_t used = 0;
    part->qkv = take(room, &used, rows * part->qkv_width * number);
    part->mixed = take(room, &used, rows * part->q_width * number);
    part->product = take(room, &used, rows * model->hidden * number);
    part->gate_up = take(room, &used, rows * 2 * model->intermediate * number);
    part->kept = take(room, &used, rows * model->hidden * number);
    const int64_t thread_rows = sf_pool_threads(part->pool) * round_up(model->hidden, LANES);
    part->thread_row = take(room, &used, thread_rows * number);
    part->first_key = take(room, &used, rows * sizeof *part->first_key);
    part->num_keys = take(room, &used, rows * sizeof *part->num_keys);
    const int widest = (int)largest_of_three(model->hidden, part->q_width, model->intermediate);
    part->quants = take(room, &used, sf_rows_bytes((int)rows, widest));
    part->scratch = take(room, &used, sf_attention_bytes(part->pool, model, &part->pass));
    return used;
}

/* The part from row `first` on. */
static part part_at(sf_pool *pool, const sf_model *model, const sf_pass *whole, int first) {
    const int left = whole->rows - first, rows = left < MOST_ROWS ? left : MOST_ROWS;
    sf_pass pass = *whole;
    pass.rows = rows;
    pass.x += (int64_t)first * model->hidden;
    pass.first_key += first;
    pass.num_keys += first;
    for (; pass.wanted && *pass.wanted_rows < first; pass.wanted--, pass.wanted_rows++)
        pass.logits += model->vocabulary;
    while (pass.wanted && pass.wanted_rows[pass.wanted - 1] >= first + rows)
        pass.wanted--;
    const int64_t q_width = (int64_t)model->heads * model->head_dim;
    return (part){.pool = pool, .model = model, .whole = whole, .pass = pass, .first = first,
                  .q_width = q_width, .qkv_width = q_width + 2 * (int64_t)model->kv_heads * model->head_dim};
}

static int run_part(part *part) {
    uint8_t *room = sf_pool_room(part->pool, lay_out(part, NULL));
    if (!room)
        return -1;
    lay_out(part, room);
    for (part->index = 0; part->index < part->model->layers; part->index++) {
        part->layer = &part->model->layer[part->index];
        run_layer(part);
    }
    if (!part->pass.rows)
        return 0;
    norm_and_quantize(part, part->model->norm);
    sf_apply(part->pool, &part->model->head, &part->rows, part->pass.logits, part->model->vocabulary, 0);
    return 0;
}

int sf_forward(sf_pool *pool, const sf_model *model, const sf_pass *pass) {
    for (int first = 0; first < pass->rows; first += MOST_ROWS) {
        part part = part_at(pool, model, pass, first);
        if (run_part(&part) != 0)
            return -1;
    }
    return 0;
}
