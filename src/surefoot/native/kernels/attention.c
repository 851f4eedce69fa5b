/* Softmax attention over keys and values that lie anywhere, the same bits whatever rows come together.
 *
 * Everything a row's result is made of depends on its own keys and their positions alone: a score is a sum
 * in a fixed order, blocks and stripes begin at multiples of their size, and a key that a row doesn't see
 * weighs exactly zero. So how many rows share a block of converted keys is free to choose. The largest score
 * so far is taken out as blocks come (online softmax: Milakov and Gimelshein, arXiv 1805.02867).
 *
 * Row and head together are a query. A pair is a block of rows with a key head; its queries are those of
 * its rows, row by row, in the query heads that share the key head.
 */
#include <math.h>

#include "attention_tile.h"
#include "surefoot.h"

#define STRIPE 512
#define MOST_QUERIES 48 /* that share converted keys, if one row hasn't more: what the L1 cache holds */
#define FEW_PAIRS 4     /* a thread: with fewer, stripes are tasks of their own */

typedef struct {
    int row, rows;
} block; /* consecutive rows of one chain */

/* How a pass is cut. */
typedef struct {
    int dim, group; /* head_dim as stored; query heads that share a key head */
    int kv_heads, window;
    int rows, queries;          /* most of a block */
    int blocks, stripes, pairs; /* stripes: most of a block */
    int split;                  /* whether each stripe is a task */
    int rooms, results;         /* rooms to work in, sets of results of a pair's stripes */
} cut;

typedef struct {
    cut cut;
    const sf_attention *layer;
    const sf_pass *pass;
    const float *queries;
    int64_t query_stride;
    float *out;
    block *blocks;
    float *rooms, *results;
} job;

static int smaller(int a, int b) { return a < b ? a : b; }
static int larger(int a, int b) { return a > b ? a : b; }

/* The first position that the row sees. */
static int first_seen(const sf_pass *pass, int window, int row) {
    return window ? larger(pass->num_keys[row] - window, 0) : 0;
}

static int first_stripe(const sf_pass *pass, int window, int row) {
    return first_seen(pass, window, row) / STRIPE;
}
static int end_stripe(const sf_pass *pass, int row) { return (pass->num_keys[row] - 1) / STRIPE + 1; }

static block next_block(const sf_pass *pass, int row, int most) {
    int end = row + 1;
    while (end < pass->rows && end - row < most && pass->first_key[end] == pass->first_key[row] &&
           pass->num_keys[end] == pass->num_keys[end - 1] + 1)
        end++;
    return (block){row, end - row};
}

/* As many as share keys well, but no fewer blocks than give each thread a pair, and all of like size. */
static int rows_of_blocks(int rows, int kv_heads, int group, int threads) {
    int fair = (int)((int64_t)rows * kv_heads / threads);
    int most = larger(smaller(fair, MOST_QUERIES / group), 1);
    int blocks = (rows + most - 1) / most;
    return blocks ? (rows + blocks - 1) / blocks : 1;
}

static cut plan(sf_pool *pool, int heads, int kv_heads, int window, const sf_pass *pass) {
    int threads = sf_pool_threads(pool), group = heads / kv_heads;
    cut plan = {.dim = (int)pass->key_stride, .group = group, .kv_heads = kv_heads, .window = window,
                .rows = rows_of_blocks(pass->rows, kv_heads, group, threads)};
    for (int row = 0; row < pass->rows;) {
        block next = next_block(pass, row, plan.rows);
        row += next.rows;
        int stripes = end_stripe(pass, row - 1) - first_stripe(pass, window, next.row);
        plan.stripes = larger(plan.stripes, stripes);
        plan.blocks++;
    }
    plan.queries = plan.rows * group;
    plan.pairs = plan.blocks * kv_heads;
    plan.split = plan.pairs < FEW_PAIRS * threads;
    plan.rooms = threads;
    plan.results = plan.split ? plan.pairs : threads;
    return plan;
}

/* Sizes of the parts of the scratch, in floats, whole cache lines each. */
static int64_t room_size(const cut *cut) {
    int64_t of_queries = (int64_t)cut->queries * (cut->dim + KEY_BLOCK) + round_up(cut->queries, LANES);
    return of_queries + 2 * KEY_BLOCK * cut->dim;
}
static int64_t result_size(const cut *cut) {
    return (int64_t)cut->queries * cut->dim + 2 * round_up(cut->queries, LANES);
}

/* Room for the largest cut of any of the rows: of the longest blocks, without a window. */
int64_t sf_attention_bytes(sf_pool *pool, const sf_model *model, const sf_pass *pass) {
    const int threads = sf_pool_threads(pool), group = model->heads / model->kv_heads;
    cut cut = {.dim = (int)pass->key_stride, .rooms = threads,
               .queries = smaller(pass->rows, larger(MOST_QUERIES / group, 1)) * group,
               .results = larger(smaller(pass->rows * model->kv_heads, FEW_PAIRS * threads), threads)};
    for (int row = 0; row < pass->rows; row++)
        cut.stripes = larger(cut.stripes, end_stripe(pass, row));
    int64_t floats = cut.rooms * room_size(&cut) + (int64_t)cut.results * cut.stripes * result_size(&cut);
    return floats * (int64_t)sizeof(float) + round_up(pass->rows * sizeof(block), LINE);
}

/* Of one stripe and each query: the values weighted with exp(score − largest), the largest score, the sum of
 * the weights. */
typedef struct {
    float *mixed, *largest, *sum;
} result;

static result result_at(const job *job, int set, int stripe) {
    const cut *cut = &job->cut;
    float *place = job->results + ((int64_t)set * cut->stripes + stripe) * result_size(cut);
    float *after = place + (int64_t)cut->queries * cut->dim;
    return (result){place, after, after + round_up(cut->queries, LANES)};
}

typedef struct {
    float *query, *key, *value, *score, *decay;
} room;

static room room_at(const job *job, int thread) {
    const cut *cut = &job->cut;
    room own = {.query = job->rooms + thread * room_size(cut)};
    own.key = own.query + (int64_t)cut->queries * cut->dim;
    own.value = own.key + KEY_BLOCK * cut->dim;
    own.score = own.value + KEY_BLOCK * cut->dim;
    own.decay = own.score + cut->queries * KEY_BLOCK;
    return own;
}

/* The queries of a pair side by side, padded to the width of keys. */
static void gather_queries(const job *job, block rows, int kv_head, float *query) {
    const cut *cut = &job->cut;
    int head_dim = job->layer->head_dim;
    for (int row = rows.row; row < rows.row + rows.rows; row++) {
        const float *source = job->queries + row * job->query_stride + kv_head * cut->group * head_dim;
        for (int head = 0; head < cut->group; head++, query += cut->dim)
            for (int i = 0; i < cut->dim; i += LANES)
                vec_store(query + i, vec_load_part(source + head * head_dim + i, larger(head_dim - i, 0)));
    }
}

/* Scores → weights for the queries of one row, which sees [begin, end) of the block. */
static void weigh_row(const job *job, const room *own, result to, int query, int begin, int end) {
    for (int last = query + job->cut.group; query < last; query++) {
        float *score = own->score + query * KEY_BLOCK, *largest = to.largest + query, *sum = to.sum + query;
        if (begin < end)
            own->decay[query] = weigh(score, begin, end, job->layer->scale, largest, sum);
        else {
            memset(score, 0, KEY_BLOCK * sizeof *score);
            own->decay[query] = 1.0f;
        }
    }
}

/* Positions [begin, end) of one block of keys. */
static void attend_block(const job *job, const room *own, block rows, int kv_head, int begin, int end,
                         result to) {
    const cut *cut = &job->cut;
    const sf_pass *pass = job->pass;
    const int base = begin / KEY_BLOCK * KEY_BLOCK, queries = rows.rows * cut->group;
    const key_list list = {
        .keys = job->layer->keys + kv_head * pass->key_stride,
        .values = job->layer->values + kv_head * pass->key_stride,
        .slots = pass->slots + pass->first_key[rows.row] + base,
        .begin = begin - base,
        .end = end - base,
        .past = pass->num_keys[rows.row + rows.rows - 1] - base,
        .stride = cut->kv_heads * pass->key_stride,
        .dim = cut->dim,
    };
    load_keys(&list, own->key);
    score_keys(own->query, queries, own->key, &list, own->score);
    for (int i = 0; i < rows.rows; i++) {
        int first = larger(first_seen(pass, cut->window, rows.row + i) - base, 0);
        int past = smaller(pass->num_keys[rows.row + i] - base, KEY_BLOCK);
        weigh_row(job, own, to, i * cut->group, first, past);
    }
    load_values(&list, own->value);
    mix_values(own->score, own->decay, queries, own->value, &list, to.mixed);
}

static void attend_stripe(const job *job, const room *own, block rows, int kv_head, int stripe,
                          result to) {
    const int queries = rows.rows * job->cut.group;
    int begin = larger(stripe * STRIPE, first_seen(job->pass, job->cut.window, rows.row));
    int end = smaller((stripe + 1) * STRIPE, job->pass->num_keys[rows.row + rows.rows - 1]);
    memset(to.mixed, 0, (size_t)queries * job->cut.dim * sizeof *to.mixed);
    memset(to.sum, 0, queries * sizeof *to.sum);
    for (int i = 0; i < queries; i++)
        to.largest[i] = -INFINITY;
    for (int next; begin < end; begin = next) {
        next = smaller((begin / KEY_BLOCK + 1) * KEY_BLOCK, end);
        attend_block(job, own, rows, kv_head, begin, next, to);
    }
}

/* Adds a later stripe's result of one query to an earlier one's. */
static void merge(result to, result from, int query, int dim) {
    float before = to.largest[query], largest = before > from.largest[query] ? before : from.largest[query];
    float keep = exp_of(before - largest), take = exp_of(from.largest[query] - largest);
    to.sum[query] = fmaf(to.sum[query], keep, from.sum[query] * take);
    to.largest[query] = largest;
    for (int i = query * dim; i < (query + 1) * dim; i += LANES) {
        vec taken = vec_mul(vec_load(from.mixed + i), vec_set(take));
        vec_store(to.mixed + i, vec_fma(vec_load(to.mixed + i), vec_set(keep), taken));
    }
}

/* Merges the stripes of a pair, each query those that its row sees, and puts out the means. */
static void finish_pair(const job *job, int pair, int set) {
    const cut *cut = &job->cut;
    const block rows = job->blocks[pair / cut->kv_heads];
    const int head_dim = job->layer->head_dim, kv_head = pair % cut->kv_heads;
    const int base = first_stripe(job->pass, cut->window, rows.row);
    for (int query = 0; query < rows.rows * cut->group; query++) {
        int row = rows.row + query / cut->group, head = kv_head * cut->group + query % cut->group;
        int first = first_stripe(job->pass, cut->window, row) - base, end = end_stripe(job->pass, row) - base;
        result all = result_at(job, set, first);
        for (int stripe = first + 1; stripe < end; stripe++)
            merge(all, result_at(job, set, stripe), query, cut->dim);
        float *out = job->out + ((int64_t)row * job->layer->heads + head) * head_dim;
        for (int i = 0; i < head_dim; i += LANES) {
            vec mean = vec_div(vec_load(all.mixed + query * cut->dim + i), vec_set(all.sum[query]));
            /* + 0: a zero's sign may come of keys that weigh nothing, and ends here. */
            vec_store_part(out + i, vec_add(mean, vec_zero()), head_dim - i);
        }
    }
}

static void attend_stripes(const job *job, int pair, int first, int end, int set, int thread) {
    const block rows = job->blocks[pair / job->cut.kv_heads];
    const int kv_head = pair % job->cut.kv_heads, base = first_stripe(job->pass, job->cut.window, rows.row);
    const room own = room_at(job, thread);
    gather_queries(job, rows, kv_head, own.query);
    end = smaller(end, end_stripe(job->pass, rows.row + rows.rows - 1) - base);
    for (int stripe = first; stripe < end; stripe++)
        attend_stripe(job, &own, rows, kv_head, base + stripe, result_at(job, set, stripe));
}

static void run_stripe(void *context, int task, int thread) {
    const job *job = context;
    int pair = task / job->cut.stripes, stripe = task % job->cut.stripes;
    attend_stripes(job, pair, stripe, stripe + 1, pair, thread);
}

static void run_finish(void *context, int pair, int thread) {
    (void)thread;
    finish_pair(context, pair, pair);
}

static void run_pair(void *context, int pair, int thread) {
    const job *job = context;
    int set = job->cut.split ? pair : thread;
    attend_stripes(job, pair, 0, job->cut.stripes, set, thread);
    finish_pair(job, pair, set);
}

void sf_attend(sf_pool *pool, const sf_attention *layer, const sf_pass *pass, const float *queries,
               int64_t query_stride, float *out, uint8_t *scratch) {
    job job = {.cut = plan(pool, layer->heads, layer->kv_heads, layer->window, pass),
               .layer = layer, .pass = pass, .queries = queries, .query_stride = query_stride, .out = out};
    const cut *cut = &job.cut;
    job.rooms = (float *)scratch;
    job.results = job.rooms + cut->rooms * room_size(cut);
    job.blocks = (block *)(job.results + (int64_t)cut->results * cut->stripes * result_size(cut));
    for (int row = 0, i = 0; row < pass->rows; row += job.blocks[i++].rows)
        job.blocks[i] = next_block(pass, row, cut->rows);
    if (cut->split && cut->stripes > 1) {
        sf_parallel(pool, run_stripe, &job, cut->pairs * cut->stripes);
        sf_parallel(pool, run_finish, &job, cut->pairs);
    } else
        sf_parallel(pool, run_pair, &job, cut->pairs);
}
