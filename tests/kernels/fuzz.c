/* Random shapes and data through the kernels, and a digest of what they make of each.
 *
 *     fuzz FIRST COUNT [THREADS]
 *
 * takes `COUNT` seeds from `FIRST` on, each with a number of threads of its own unless it is given. Every
 * buffer has its exact size, so that AddressSanitizer sees one byte too far. What is printed is the same for
 * every instruction set.
 */
#include "draw.h"
#include "surefoot.h"

static int given_threads;

static sf_pool *draw_pool(void) {
    const int threads = between(1, 3);
    sf_pool *pool = sf_pool_new(given_threads ? given_threads : threads);
    if (!pool)
        exit(2);
    return pool;
}

/* ---- matrices ---- */

static const struct {
    int bytes, halves[2]; /* of a block in a file: where its 16-bit floats are, or −1 */
} BLOCKS[NUM_FORMATS] = {
    [Q4_0] = {18, {0, -1}},  [Q4_1] = {20, {0, 2}},  [Q5_0] = {22, {0, -1}},   [Q8_0] = {34, {0, -1}},
    [Q4_K] = {144, {0, 2}}, [Q5_K] = {176, {0, 2}}, [Q6_K] = {210, {208, -1}},
};

static uint8_t *draw_blocks(int format, int count, int exponent) {
    const int bytes = BLOCKS[format].bytes;
    uint8_t *blocks = buffer((int64_t)count * bytes, 1);
    for (int64_t i = 0; i < (int64_t)count * bytes; i++)
        blocks[i] = (uint8_t)draw_bits();
    for (int i = 0; i < count; i++)
        for (int j = 0; j < 2 && BLOCKS[format].halves[j] >= 0; j++) {
            const uint16_t half = draw_half(exponent);
            memcpy(blocks + (int64_t)i * bytes + BLOCKS[format].halves[j], &half, sizeof half);
        }
    return blocks;
}

/* Of a format that can have so many inputs. */
static sf_matrix draw_matrix(int outputs, int inputs, int exponent) {
    int format = between(0, NUM_FORMATS - 1);
    while (inputs % SF_FORMATS[format].unit)
        format = between(0, NUM_FORMATS - 1);
    const int blocks = outputs * (inputs / SF_FORMATS[format].unit);
    uint8_t *data = buffer(sf_matrix_bytes(format, outputs, inputs) / 2, 2);
    if (format == INT8_64 || format == INT8_32) {
        const int64_t count = (int64_t)outputs * inputs;
        float *source = draw_floats(count, ldexpf(1, exponent - 15));
        if (exponent == 30)
            spoil(source, count);
        sf_pack_int8(format, outputs, inputs, source, data);
    } else
        sf_pack_blocks(format, outputs, inputs, draw_blocks(format, blocks, exponent), data);
    return (sf_matrix){format, outputs, inputs, data};
}

static sf_linear draw_linear(int inputs, int parts, const int *outputs, int exponent) {
    sf_linear linear = {.parts = parts};
    int all = 0;
    for (int part = 0; part < parts; all += outputs[part++])
        linear.part[part] = draw_matrix(outputs[part], inputs, exponent);
    linear.bias = maybe_floats(all, 1);
    return linear;
}

/* ---- linear layers ---- */

static void digest_matrix(const sf_matrix *matrix) {
    digest_bytes(matrix->data, sf_matrix_bytes(matrix->format, matrix->outputs, matrix->inputs));
    float *weights = buffer(matrix->inputs, sizeof *weights);
    for (int output = 0; output < matrix->outputs; output++) {
        sf_unpack(matrix, output, weights);
        digest_floats(weights, matrix->inputs);
    }
}

static void try_linear(void) {
    static const int units[] = {1, 32, 256};
    const int unit = units[between(0, 2)], inputs = unit * between(1, 600 / unit);
    const int rows = one_in(16) ? between(250, 270) : between(1, 40), parts = between(1, MAX_PARTS);
    const int exponent = one_in(4) ? 30 : 15;
    int outputs[MAX_PARTS], all = 0;
    for (int part = 0; part < parts; all += outputs[part++])
        outputs[part] = between(1, rows > 40 ? 5 : 100 / parts);
    printf("linear %d to %d in %d, rows %d", inputs, all, parts, rows);
    const sf_linear linear = draw_linear(inputs, parts, outputs, exponent);
    float *x = draw_floats((int64_t)rows * inputs, 1), *y = buffer((int64_t)rows * all, sizeof *y);
    if (one_in(2))
        spoil(x, (int64_t)rows * inputs);
    sf_pool *pool = draw_pool();
    if (sf_linear_forward(pool, &linear, rows, x, y) != 0)
        exit(2);
    sf_pool_free(pool);
    for (int part = 0; part < parts; part++)
        digest_matrix(&linear.part[part]);
    digest_floats(y, (int64_t)rows * all);
}

/* ---- what is done to one row ---- */

static void try_row(void) {
    const int n = between(1, 100);
    printf("row of %d", n);
    float *x = draw_floats(2 * n, 50), *up = draw_floats(2 * n, 2), *y = buffer(n, sizeof *y);
    if (one_in(2))
        spoil(x, 2 * n);
    sf_rms_norm(x, up, n, 1e-5f, y);
    digest_floats(y, n);
    sf_gate(between(SILU, GELU_TANH), x, up, n, y);
    digest_floats(y, n);
    float *cos = draw_floats(n, 1), *sin = draw_floats(n, 1);
    sf_rotate(x, cos, sin, 2 * n);
    digest_floats(x, 2 * n);
}

/* ---- passes ---- */

/* At times a multiple of what blocks have. */
static int draw_width(void) {
    static const int units[] = {1, 1, 32, 256};
    const int unit = units[between(0, 3)];
    return unit * between(1, unit > 100 ? 1 : 100 / unit);
}

static sf_layer draw_layer(const sf_model *model) {
    const int hidden = model->hidden, dim = model->head_dim;
    const int queries = model->heads * dim, keys = model->kv_heads * dim;
    const int qkv[] = {queries, keys, keys}, fused = queries + 2 * keys;
    const int both[] = {model->intermediate, model->intermediate}, twice = 2 * model->intermediate;
    sf_layer layer = {0};
    layer.attention_norm = draw_floats(hidden, 2);
    layer.mlp_norm = draw_floats(hidden, 2);
    layer.q_norm = maybe_floats(dim, 2);
    layer.k_norm = maybe_floats(dim, 2);
    layer.attention_post_norm = maybe_floats(hidden, 2);
    layer.mlp_post_norm = maybe_floats(hidden, 2);
    layer.qkv = one_in(2) ? draw_linear(hidden, 3, qkv, 8) : draw_linear(hidden, 1, &fused, 8);
    layer.output = draw_linear(queries, 1, &hidden, 8);
    layer.gate_up = one_in(2) ? draw_linear(hidden, 2, both, 8) : draw_linear(hidden, 1, &twice, 8);
    layer.down = draw_linear(model->intermediate, 1, &hidden, 8);
    layer.window = one_in(2) ? between(1, one_in(4) ? 600 : 100) : 0;
    layer.rope = between(0, 1);
    return layer;
}

static sf_model draw_model(void) {
    sf_model model = {.norm_eps = 1e-6f};
    model.layers = between(1, 3);
    model.hidden = draw_width();
    model.kv_heads = between(1, 3);
    model.heads = model.kv_heads * between(1, 4);
    model.head_dim = 2 * (one_in(4) ? between(28, 40) : between(1, 20));
    model.intermediate = draw_width();
    model.vocabulary = between(1, 100);
    model.activation = between(SILU, GELU_TANH);
    model.attention_scale = ldexpf(1, between(-6, 0));
    sf_layer *layer = buffer(model.layers, sizeof *layer);
    for (int i = 0; i < model.layers; i++)
        layer[i] = draw_layer(&model);
    model.layer = layer;
    model.norm = draw_floats(model.hidden, 2);
    model.head = draw_linear(model.hidden, 1, &model.vocabulary, 8);
    return model;
}

/* About the length of a block or stripe of keys, or two; mostly few. */
static int draw_context(void) {
    static const int near[] = {6, 6, 6, 64, 64, 64, 128, 512, 512, 1024};
    return near[between(0, 9)] - 6 + between(0, 10);
}

#define STEMS 2

/* Of each row, what it comes after: the row before, any earlier one or a stem, whose lengths are `stem`. */
static void draw_lists(sf_pass *pass, const int *stem) {
    const int longest = (stem[0] > stem[1] ? stem[0] : stem[1]) + pass->rows;
    int32_t *slots = malloc((int64_t)pass->rows * longest * sizeof *slots);
    int32_t *place = buffer(pass->num_slots, sizeof *place);
    int64_t *first_key = buffer(pass->rows, sizeof *first_key), used = 0;
    int32_t *num_keys = buffer(pass->rows, sizeof *num_keys);
    for (int i = 0; i < pass->num_slots; i++) { /* where each key lies: the stems', then the rows' own */
        const int other = between(0, i);
        place[i] = place[other];
        place[other] = i;
    }
    for (int row = 0; row < pass->rows; row++) {
        if (row > 0 && !one_in(4)) { /* a chain goes on, in the same list */
            first_key[row] = first_key[row - 1];
            num_keys[row] = num_keys[row - 1] + 1;
        } else {
            const int parent = row > 0 ? between(-STEMS, row - 1) : -1, of_row = parent >= 0;
            const int32_t *of_stem = parent == -1 ? place : place + stem[0];
            const int32_t *before = of_row ? slots + first_key[parent] : of_stem;
            num_keys[row] = (of_row ? num_keys[parent] : stem[-1 - parent]) + 1;
            first_key[row] = used;
            memcpy(slots + used, before, (num_keys[row] - 1) * sizeof *slots);
            used += num_keys[row] - 1;
        }
        slots[used++] = place[stem[0] + stem[1] + row];
    }
    pass->slots = keep(realloc(slots, used * sizeof *slots));
    pass->first_key = first_key;
    pass->num_keys = num_keys;
}

/* Keys or values of earlier passes; zeros past head_dim. */
static uint16_t *draw_cache(const sf_model *model, const sf_pass *pass) {
    const int64_t count = model->layers * pass->num_slots * model->kv_heads * pass->key_stride;
    uint16_t *cache = buffer(count, sizeof *cache);
    for (int64_t i = 0; i < count; i++)
        cache[i] = i % pass->key_stride < model->head_dim ? draw_half(16) : 0;
    return cache;
}

static void draw_wanted(sf_pass *pass) {
    int32_t *wanted = malloc(pass->rows * sizeof *wanted);
    const int all = one_in(3);
    for (int row = 0; row < pass->rows; row++)
        if (all || one_in(3))
            wanted[pass->wanted++] = row;
    pass->wanted_rows = keep(pass->wanted ? realloc(wanted, pass->wanted * sizeof *wanted) : wanted);
}

/* More than a part of a pass has; or so many that threads share the steps between products; mostly few. */
static int draw_rows(int context, int hidden) {
    if (one_in(32))
        return between(510, 530);
    if (hidden == 256 && one_in(2))
        return between(65, 75);
    return between(1, context > 200 ? 8 : 40);
}

static void try_pass(void) {
    const sf_model model = draw_model();
    int stem[STEMS];
    for (int i = 0; i < STEMS; i++)
        stem[i] = draw_context();
    sf_pass pass = {.key_stride = round_up(model.head_dim, 16)};
    pass.rows = draw_rows(stem[0] + stem[1], model.hidden);
    pass.num_slots = stem[0] + stem[1] + pass.rows;
    printf("pass of %d layers, %d wide, %d of %d heads of %d, stems %d and %d, rows %d", model.layers,
           model.hidden, model.kv_heads, model.heads, model.head_dim, stem[0], stem[1], pass.rows);
    draw_lists(&pass, stem);
    draw_wanted(&pass);
    pass.x = draw_floats((int64_t)pass.rows * model.hidden, 1);
    if (one_in(8))
        spoil(pass.x, (int64_t)pass.rows * model.hidden);
    pass.cos = draw_floats((int64_t)2 * pass.rows * (model.head_dim / 2), 1);
    pass.sin = draw_floats((int64_t)2 * pass.rows * (model.head_dim / 2), 1);
    pass.keys = draw_cache(&model, &pass);
    pass.values = draw_cache(&model, &pass);
    pass.logits = buffer((int64_t)pass.wanted * model.vocabulary, sizeof *pass.logits);
    sf_pool *pool = draw_pool();
    if (sf_forward(pool, &model, &pass) != 0)
        exit(2);
    sf_pool_free(pool);
    const int64_t count = model.layers * pass.num_slots * model.kv_heads * pass.key_stride;
    digest_halves(pass.keys, count);
    digest_halves(pass.values, count);
    digest_floats(pass.logits, (int64_t)pass.wanted * model.vocabulary);
}

int main(int argc, char **argv) {
    static void (*const tries[])(void) = {try_row, try_linear, try_pass};
    if (argc < 3 || !sf_ready())
        return 2;
    given_threads = argc > 3 ? atoi(argv[3]) : 0;
    setvbuf(stdout, NULL, _IONBF, 0); /* what was tried last is what a sanitizer stopped */
    for (int seed = atoi(argv[1]), end = seed + atoi(argv[2]); seed < end; seed++)
        for (int i = 0; i < 3; i++) {
            draw_state = (uint64_t)seed * 3 + i;
            digest = 0xcbf29ce484222325;
            printf("%d ", seed);
            tries[i]();
            printf(": %016llx\n", (unsigned long long)digest);
            free_buffers();
        }
    return 0;
}
