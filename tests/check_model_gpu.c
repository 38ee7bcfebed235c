/* check_model_gpu: a model on GPUs, one for each rank, against the same model on the host and one
 * rank: logits, loss and every gradient, of each part that a model can have, in all layouts and
 * rings, and what training makes of it.
 *
 * Chapter 14. In float32 both are as near to each other as sums in float32 are. In bfloat16 both
 * round at the same places, but a sum that comes out a little different may be rounded the other
 * way, and tensor cores read the weights of keys as bfloat16, too. How far apart they are is
 * printed.
 *
 * Usage: check-model-gpu [--small] [PART OF A NAME]
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"
#include "ra_checksum.h"
#include "ra_clock.h"
#include "ra_decoder.h"
#include "ra_gpu.h"
#include "ra_optimizer.h"
#include "ra_slices.h"
#include "ring_attention_model_cuda.h"
#include "verdict.h"

/* A model and a batch of it. */
struct trial {
    const char *name;
    struct ra_model_config config;
    int64_t batch, length;
    bool has_mask, recompute;
    int64_t micro;     /* micro-batches */
    int64_t documents; /* 0: there are none; else one row is so many */
    bool moves;        /* in every second micro-batch, tokens have positions from the last on */
};

/* Where and how it runs. */
struct how {
    const struct ra_model_device *device; /* NULL: the host, each rank by itself */
    enum ra_type type;
    bool recompute;
    enum ra_layout_kind layout;
    int64_t bucket;
    int ring_size; /* 0: all ranks */
    enum ra_transport transport;
    bool shards, deals;
    double timeout; /* 0: a minute */
};

static uint64_t state = 14;
static char error[RA_ERROR_SIZE];
static const struct ra_model_device *gpu;
static int rank, ranks;

__attribute__((noreturn)) static void die(const char *what, const char *why)
{
    fprintf(stderr, "check-model-gpu: %s: %s\n", what, why);
    exit(1);
}

static void *memory(int64_t count, size_t size)
{
    void *made = calloc((size_t)count + 1, size);
    if (!made)
        die("the host", "out of memory");
    return made;
}

static void check(enum ra_status status, const char *why)
{
    if (status != RA_OK)
        die("a call", why);
}

/* ---- A problem's numbers. */

struct inputs {
    struct trial p;
    int64_t numbers, rows; /* of the weights; of all micro-batches */
    float *weights;
    int32_t *tokens, *labels;
    bool *mask;
    int64_t *bounds, *places; /* of documents, and each position's place in its own */
    struct ra_slice *slices;
};

/* Gammas near 1, biases that are not 0, matrices whose scores and activations are of order 1. */
static struct inputs invent(struct trial p)
{
    struct inputs x = {.p = p, .numbers = ra_parameter_numbers(&p.config)};
    int64_t each = p.batch * p.length;
    x.rows = each * p.micro;
    x.weights = memory(x.numbers, sizeof(float));
    x.tokens = memory(x.rows, sizeof(int32_t));
    x.labels = memory(x.rows, sizeof(int32_t));
    x.mask = memory(x.rows, sizeof(bool));
    x.bounds = memory(p.documents + 1, sizeof *x.bounds);
    x.places = memory(p.length, sizeof *x.places);
    x.slices = memory(p.documents + 1, sizeof *x.slices);
    for (int i = 0; i < ra_parameter_count(&p.config); i++) {
        struct ra_parameter w = ra_parameter(&p.config, i);
        bool gamma = strstr(w.name, "gamma") != NULL, is_bias = w.columns == 0 && !gamma;
        double scale = w.columns > 0 ? 1 / sqrt((double)w.columns) : is_bias ? 0.3 : 0.2;
        for (int64_t e = 0; e < w.count; e++)
            x.weights[w.first + e] = (float)(scale * random_normal(&state) + (gamma ? 1 : 0));
    }
    for (int64_t a = 0; a < x.rows; a++) {
        x.tokens[a] = (int32_t)random_below(&state, p.config.vocabulary);
        x.labels[a] =
            random_below(&state, 5) == 0 ? -1 : (int32_t)random_below(&state, p.config.vocabulary);
        x.mask[a] = random_below(&state, 4) > 0;
    }
    for (int64_t d = 0; d <= p.documents; d++)
        x.bounds[d] = d * d * p.length / (p.documents * p.documents + (p.documents == 0));
    for (int64_t i = 0, d = 0; i < p.length; i++) {
        while (d + 1 < p.documents && x.bounds[d + 1] <= i)
            d++;
        x.places[i] = p.documents > 0 ? i - x.bounds[d] : i;
    }
    return x;
}

static void forget(struct inputs *inputs)
{
    free(inputs->weights);
    free(inputs->tokens);
    free(inputs->labels);
    free(inputs->mask);
    free(inputs->bounds);
    free(inputs->places);
    free(inputs->slices);
}

/* ---- What comes out. */

struct outcome {
    double loss;
    int64_t labels;
    float *logits, *gradients; /* of the last micro-batch; all */
};

static struct ra_model *create(const struct trial *p, const struct how *how)
{
    struct ra_model *model;
    int world = how->device ? ranks : 1, P = how->ring_size > 0 ? how->ring_size : world;
    int sets = world / P, set = how->device ? rank / P : 0;
    struct ra_model_run run = {.size = sizeof run,
                               .batch = (p->batch - set + sets - 1) / sets,
                               .length = p->length,
                               .has_mask = p->has_mask,
                               .recompute = how->recompute,
                               .device = how->device,
                               .type = how->type,
                               .layout = how->layout,
                               .bucket = how->bucket,
                               .ring_size = P,
                               .max_slices = p->documents,
                               .max_rows = how->deals ? p->length : 0,
                               .transport = how->transport,
                               .shard_optimizer = how->shards,
                               .timeout = how->timeout > 0 ? how->timeout : 60,
                               .deterministic = how->device != NULL};
    check(ra_model_create(&model, &p->config, &run, how->device ? MPI_COMM_WORLD : MPI_COMM_SELF,
                          error),
          error);
    return model;
}

/* What this rank has of all micro-batches, and where its rows are in the whole of one. */
struct share {
    int64_t rows, *where;
    int32_t *tokens, *labels;
    bool *mask;
    int64_t *places, *moved;
    struct ra_model_batch *batches;
};

static struct share share_of(const struct inputs *inputs, const struct how *how,
                             struct ra_model *model)
{
    const struct trial *p = &inputs->p;
    int64_t whole = p->batch * p->length;
    int world = how->device ? ranks : 1, P = how->ring_size > 0 ? how->ring_size : world;
    int sets = world / P, set = how->device ? rank / P : 0;
    struct ra_model_batch form = RA_MODEL_BATCH_INIT;
    if (p->documents > 0) {
        form.slices = inputs->slices;
        form.slice_count =
            ra_slices_documents(inputs->bounds, p->documents, RA_NO_LOOKBACK, 0, inputs->slices);
        form.deal = how->deals ? RA_DEAL_DOCUMENTS : RA_DEAL_LAYOUT;
        check(ra_model_set_slices(model, &form), ra_model_error(model));
    }
    int64_t n = ra_model_rows(model), batch = (p->batch - set + sets - 1) / sets, rows = batch * n;
    int64_t *positions = memory(n, sizeof *positions);
    ra_model_positions(model, positions);
    struct share share = {.rows = rows,
                          .where = memory(rows, sizeof *share.where),
                          .tokens = memory(rows * p->micro, sizeof(int32_t)),
                          .labels = memory(rows * p->micro, sizeof(int32_t)),
                          .mask = memory(rows * p->micro, sizeof(bool)),
                          .places = positions,
                          .moved = memory(n, sizeof *share.moved),
                          .batches = memory(p->micro, sizeof(struct ra_model_batch))};
    for (int64_t a = 0; a < rows; a++)
        share.where[a] = (a / n * sets + set) * p->length + positions[a % n];
    for (int64_t i = 0; i < rows * p->micro; i++) {
        int64_t from = i / rows * whole + share.where[i % rows];
        share.tokens[i] = inputs->tokens[from];
        share.labels[i] = inputs->labels[from];
        share.mask[i] = inputs->mask[from];
    }
    for (int64_t a = 0; a < n; a++)
        share.moved[a] = p->length - 1 - positions[a];
    for (int64_t a = 0; a < n && p->documents > 0; a++)
        positions[a] = inputs->places[positions[a]];
    for (int64_t k = 0; k < p->micro; k++) {
        share.batches[k] = form;
        share.batches[k].tokens = share.tokens + k * rows;
        share.batches[k].labels = share.labels + k * rows;
        share.batches[k].mask = p->has_mask ? share.mask + k * rows : NULL;
        share.batches[k].positions = p->documents > 0         ? positions
                                     : p->moves && k % 2 == 1 ? share.moved
                                                              : NULL;
    }
    return share;
}

static void forget_share(struct share *share)
{
    free(share->where);
    free(share->tokens);
    free(share->labels);
    free(share->mask);
    free(share->places);
    free(share->moved);
    free(share->batches);
}

static float *to_device(const float *array, int64_t count)
{
    float *placed = gpu->take(count);
    if (!placed || !gpu->put(placed, array, count))
        die("the GPU", "no memory");
    return placed;
}

/* Do all ranks have the same bits? */
static bool same_on_all(const void *data, size_t bytes)
{
    uint64_t sum = ra_checksum(0, data, bytes), least, most;
    MPI_Allreduce(&sum, &least, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&sum, &most, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    return least == most;
}

static struct outcome run(const struct inputs *inputs, struct how how)
{
    struct ra_model *model = create(&inputs->p, &how);
    struct share share = share_of(inputs, &how, model);
    const struct ra_model_device *device = how.device;
    int64_t V = inputs->p.config.vocabulary, all = inputs->p.batch * inputs->p.length * V;
    struct outcome out = {.logits = memory(all, sizeof(float)),
                          .gradients = memory(inputs->numbers, sizeof(float))};
    float *logits = memory(share.rows * V, sizeof(float));
    struct ra_model_loss loss;
    memset(out.gradients, 0xFF, (size_t)inputs->numbers * sizeof(float));
    float *weights = device ? to_device(inputs->weights, inputs->numbers) : inputs->weights;
    float *gradients = device ? to_device(out.gradients, inputs->numbers) : out.gradients;
    check(ra_model_step(model, weights, inputs->p.micro, share.batches, gradients, &loss),
          ra_model_error(model));
    check(ra_model_logits(model, weights, 0, share.rows, logits), ra_model_error(model));
    for (int64_t a = 0; a < share.rows; a++)
        memcpy(out.logits + share.where[a] * V, logits + a * V, (size_t)V * sizeof(float));
    if (device)
        MPI_Allreduce(MPI_IN_PLACE, out.logits, (int)all, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    out.loss = loss.mean;
    out.labels = loss.labels;

    /* Without gradients the loss is the same, to the bit. */
    check(ra_model_step(model, weights, inputs->p.micro, share.batches, NULL, &loss),
          ra_model_error(model));
    EXPECT(loss.mean == out.loss, "the loss alone is %.17g, not %.17g", loss.mean, out.loss);
    if (device) {
        if (!gpu->get(gradients, out.gradients, inputs->numbers))
            die("the GPU", "a copy failed");
        gpu->give_back(weights);
        gpu->give_back(gradients);
        EXPECT(same_on_all(out.gradients, (size_t)inputs->numbers * sizeof(float)),
               "ranks have other gradients than others");
        EXPECT(ranks == 1 ? !gpu->transport(model)
                          : how.transport != RA_HOST_LINK || strstr(gpu->transport(model), "host"),
               "gradients pass by %s", gpu->transport(model));
    }
    ra_model_destroy(model);
    free(logits);
    forget_share(&share);
    return out;
}

static void release(struct outcome *outcome)
{
    free(outcome->logits);
    free(outcome->gradients);
}

/* |a - b| / |b|, where |b| is at least `least`; NaN if one of them has one. */
static double distance(const float *a, const float *b, int64_t count, double least)
{
    double apart = 0, length = 0;
    for (int64_t e = 0; e < count; e++) {
        apart += ((double)a[e] - (double)b[e]) * ((double)a[e] - (double)b[e]);
        length += (double)b[e] * (double)b[e];
    }
    return sqrt(apart) / fmax(sqrt(length), least);
}

/* Compares with the host: each array of gradients by its own length, or by a thousandth of that of
 * all, as some are next to nothing (of the bias of k, which no softmax sees). */
static void compare(const struct inputs *inputs, const struct outcome *got,
                    const struct outcome *right, double allowed, bool tells)
{
    const struct ra_model_config *c = &inputs->p.config;
    int64_t rows = inputs->p.batch * inputs->p.length;
    double all = 0, worst = 0;
    const char *where = "";
    static char name[40];
    for (int64_t e = 0; e < inputs->numbers; e++)
        all += (double)right->gradients[e] * (double)right->gradients[e];
    all = sqrt(all);
    EXPECT(got->labels == right->labels, "%d labels, not %d", (int)got->labels, (int)right->labels);
    double loss = fabs(got->loss - right->loss) / fabs(right->loss);
    EXPECT(loss <= allowed, "the loss is %.9g, not %.9g", got->loss, right->loss);
    double logits = distance(got->logits, right->logits, rows * c->vocabulary, 0);
    EXPECT(logits <= allowed, "the logits are off by %.3g", logits);
    for (int i = 0; i < ra_parameter_count(c); i++) {
        struct ra_parameter w = ra_parameter(c, i);
        double off =
            distance(got->gradients + w.first, right->gradients + w.first, w.count, 1e-3 * all);
        EXPECT(off <= allowed, "the gradient of %s is off by %.3g", w.name, off);
        if (!(off <= worst)) {
            worst = off;
            where = strcpy(name, w.name);
        }
    }
    if (tells && rank == 0)
        printf("%-24s loss %.1e, logits %.1e, gradients %.1e (%s)\n", inputs->p.name, loss, logits,
               worst, where);
}

static bool same(const struct outcome *a, const struct outcome *b, const struct inputs *inputs)
{
    size_t logits =
        (size_t)(inputs->p.batch * inputs->p.length * inputs->p.config.vocabulary) * sizeof(float);
    return a->loss == b->loss && memcmp(a->logits, b->logits, logits) == 0 &&
           memcmp(a->gradients, b->gradients, (size_t)inputs->numbers * sizeof(float)) == 0;
}

static const char *wanted = "";
static bool is_small;

/* All layouts and rings that these ranks have, and both ways by which gradients pass; on one rank,
 * there is one. */
static const struct how ways[] = {
    {.layout = RA_STRIPED},
    {.layout = RA_ZIGZAG, .transport = RA_HOST_LINK},
    {.layout = RA_CONTIGUOUS, .ring_size = 1},
    {.layout = RA_STRIPED, .bucket = 5, .ring_size = 2, .recompute = true},
    {.layout = RA_CONTIGUOUS, .ring_size = 2, .transport = RA_HOST_LINK},
};
enum { WAYS = sizeof ways / sizeof *ways };

/* Is there such a ring, with a row for each? */
static bool is_possible(const struct trial *p, const struct how *how)
{
    int P = how->ring_size > 0 ? how->ring_size : ranks;
    return ranks % P == 0 && ranks / P <= p->batch && !(p->documents > 0 && how->bucket > 0);
}

static void try(struct trial p)
{
    if (!strstr(p.name, wanted))
        return;
    verdict_state.test = p.name;
    p.micro = p.micro > 0 ? p.micro : 1;
    check(ra_model_check(&p.config, error), error);
    struct inputs x = invent(p);
    const struct {
        enum ra_type type;
        double allowed;
    } runs[] = {{RA_FLOAT32, 1e-5}, {RA_BFLOAT16, 0.05}};
    for (int t = 0; t < 2; t++) {
        struct outcome right = run(&x, (struct how){.type = runs[t].type});
        for (int w = 0; w < (ranks > 1 ? WAYS : 1); w++) {
            struct how how = ways[w];
            how.device = gpu;
            how.type = runs[t].type;
            how.deals = p.documents > 0 && w == 1;
            if (!is_possible(&p, &how))
                continue;
            struct outcome first = run(&x, how), again = run(&x, how);
            how.recompute = !how.recompute;
            how.transport = how.transport == RA_HOST_LINK ? RA_ANY_TRANSPORT : RA_HOST_LINK;
            struct outcome recomputed = run(&x, how);
            compare(&x, &first, &right, runs[t].allowed, w == 0);
            EXPECT(same(&first, &again, &x), "a second run has other bits");
            EXPECT(same(&first, &recomputed, &x),
                   "recomputed, with messages passed otherwise, it has other bits");
            release(&first);
            release(&again);
            release(&recomputed);
            verdict("%s, %s, way %d", p.name, t == 0 ? "float32" : "bfloat16", w);
        }
        release(&right);
    }
    forget(&x);
}

/* ---- Models. */

static struct ra_model_config original(void)
{
    struct ra_model_config c;
    ra_model_config_init(&c, sizeof c);
    c.vocabulary = 300;
    c.dim = 64;
    c.depth = 2;
    c.heads = 4;
    c.key_heads = 2;
    c.head_dim = 32;
    c.hidden = 256;
    return c;
}

static struct ra_model_config llama(void)
{
    struct ra_model_config c = original();
    c.norm = RA_NORM_RMS;
    c.feed = RA_FEED_SWIGLU;
    c.feed_bias = false;
    c.hidden = 168;
    c.head_dim = 64;
    c.rotary_theta = 500000;
    return c;
}

static struct ra_model_config qwen(void)
{
    struct ra_model_config c = llama();
    c.head_norm = true;
    c.tied = true;
    return c;
}

static struct ra_model_config mgqa(void)
{
    struct ra_model_config c = original();
    c.norm = RA_NORM_LAYER;
    c.position = RA_POSITIONS_LEARNED;
    c.longest = 400;
    c.position_scale = 0.088;
    c.out_bias = c.qkv_bias = c.logits_bias = true;
    return c;
}

static void try_models(void)
{
    struct ra_model_config odd = original(), seen = llama(), wide = llama(), many = original();
    odd.vocabulary = 77;
    odd.dim = 33;
    odd.heads = 3;
    odd.key_heads = 1;
    odd.head_dim = 6;
    odd.hidden = 35;
    seen.lookback[1] = 40;
    seen.head_map = RA_INTERLEAVED;
    seen.softcap = 20;
    wide.dim = 2048;
    wide.depth = 1;
    wide.head_dim = 128;
    wide.vocabulary = 5000;
    many.vocabulary = 200000;
    many.dim = 16;
    many.depth = 1;
    many.tied = many.logits_bias = true;
    try((struct trial){.name = "original", .config = original(), .batch = 1, .length = 200});
    try((struct trial){.name = "original, batch", .config = original(), .batch = 3, .length = 65});
    try((struct trial){
        .name = "original, micro", .config = original(), .batch = 2, .length = 70, .micro = 3});
    try((struct trial){.name = "original, mask",
                       .config = original(),
                       .batch = 2,
                       .length = 130,
                       .has_mask = true});
    try((struct trial){.name = "llama", .config = llama(), .batch = 1, .length = 300});
    try((struct trial){.name = "llama, window", .config = seen, .batch = 2, .length = 150});
    if (!is_small) {
        /* The second: more logits than are there at a time. */
        try((struct trial){.name = "llama, wide", .config = wide, .batch = 1, .length = 260});
        try((struct trial){.name = "original, blocks", .config = many, .batch = 1, .length = 300});
    }
    try((struct trial){.name = "qwen3", .config = qwen(), .batch = 2, .length = 129});
    try((struct trial){
        .name = "qwen3, micro", .config = qwen(), .batch = 1, .length = 60, .micro = 2});
    try((struct trial){.name = "mgqa", .config = mgqa(), .batch = 2, .length = 200});
    try((struct trial){
        .name = "mgqa, micro", .config = mgqa(), .batch = 2, .length = 40, .micro = 2});
    try((struct trial){.name = "original, moves",
                       .config = original(),
                       .batch = 1,
                       .length = 50,
                       .micro = 4,
                       .moves = true});
    try((struct trial){.name = "odd", .config = odd, .batch = 2, .length = 37});
    try((struct trial){
        .name = "llama, documents", .config = llama(), .batch = 1, .length = 90, .documents = 4});
    try((struct trial){.name = "mgqa, documents",
                       .config = mgqa(),
                       .batch = 1,
                       .length = 70,
                       .documents = 3,
                       .micro = 2});
    try((struct trial){.name = "odd, few rows", .config = odd, .batch = 2, .length = 3});
    many.vocabulary = 600000; /* more gradients than a piece has */
    try((struct trial){.name = "odd, pieces", .config = many, .batch = 1, .length = 12});
}

/* A model on GPUs that learns: weights, gradients, means, squares. */
struct learner {
    struct ra_model *model;
    struct share share;
    float *at[4];
};

/* From `weights`, and from means and squares of all the model, on the host, or NULL. */
static struct learner begin_learning(const struct inputs *inputs, const struct how *how,
                                     float *const arrays[4])
{
    struct learner l = {.model = create(&inputs->p, how)};
    l.share = share_of(inputs, how, l.model);
    for (int i = 0; i < 4; i++) {
        int64_t count = i < 2 ? inputs->numbers : gpu->moments.count(l.model);
        l.at[i] = gpu->take(count);
        if (!l.at[i] || (i < 2 && !gpu->put(l.at[i], arrays[i], count)))
            die("the GPU", "no memory");
        if (i >= 2)
            check(gpu->moments.put(l.model, arrays[i], l.at[i]), ra_model_error(l.model));
    }
    return l;
}

/* All of it, to the host. */
static void fetch(const struct learner *l, int64_t numbers, float *const to[4])
{
    for (int i = 0; i < 2; i++)
        if (!gpu->get(l->at[i], to[i], numbers))
            die("the GPU", "a copy failed");
    for (int i = 2; i < 4; i++)
        check(gpu->moments.get(l->model, l->at[i], to[i]), ra_model_error(l->model));
}

static void end_learning(struct learner *l)
{
    for (int i = 0; i < 4; i++)
        gpu->give_back(l->at[i]);
    forget_share(&l->share);
    ra_model_destroy(l->model);
}

static double learn(struct learner *l, const struct ra_optimizer *how, int64_t step, double *length)
{
    struct ra_model_loss loss;
    check(ra_model_step(l->model, l->at[0], 1, l->share.batches, l->at[1], &loss),
          ra_model_error(l->model));
    check(gpu->learn(l->model, how, step, l->at[1], l->at[0], l->at[2], l->at[3], length),
          ra_model_error(l->model));
    return loss.mean;
}

/* Twenty steps of AdamW on the host and on GPUs; and on GPUs in two parts, of which the second
 * begins with copies of what the first left; and, on several, twice more with an optimiser in
 * shards, whose messages also pass by the host: the same bits. */
static void try_learning(enum ra_type type, double allowed)
{
    enum { STEPS = 20, PARTS = 4 };
    struct trial p = {
        .name = "learning", .config = original(), .batch = 2, .length = 64, .micro = 1};
    struct ra_optimizer rule = {.size = sizeof rule,
                                .rate = 3e-3,
                                .warmup = 5,
                                .steps = STEPS,
                                .beta1 = 0.9,
                                .beta2 = 0.95,
                                .epsilon = 1e-8,
                                .decay = 0.1,
                                .clip = 1};
    struct how how = {.device = gpu, .type = type, .layout = RA_STRIPED};
    if (!strstr(p.name, wanted))
        return;
    verdict_state.test = p.name;
    struct inputs x = invent(p);
    ra_parameters_begin(&p.config, 3, x.weights);
    for (int64_t a = 0; a < x.rows; a++)
        x.labels[a] = x.tokens[(a + 1) % x.rows];
    size_t bytes = (size_t)x.numbers * sizeof(float);
    float *host[4], *begun[4], *straight[4], *other[4];
    for (int i = 0; i < 4; i++) {
        host[i] = memory(x.numbers, sizeof(float));
        begun[i] = memory(x.numbers, sizeof(float));
        straight[i] = memory(x.numbers, sizeof(float));
        other[i] = memory(x.numbers, sizeof(float));
    }
    memcpy(host[0], x.weights, bytes);
    memcpy(begun[0], x.weights, bytes);
    struct how on_host = {.type = type};
    struct ra_model *model = create(&p, &on_host);
    struct share whole = share_of(&x, &on_host, model);
    struct learner gpus = begin_learning(&x, &how, begun);
    double worst = 0, first = 0, last = 0;
    for (int64_t s = 1; s <= STEPS; s++) {
        struct ra_model_loss loss;
        double length;
        check(ra_model_step(model, host[0], 1, whole.batches, host[1], &loss),
              ra_model_error(model));
        double expected =
            ra_optimizer_step(&rule, &p.config, ra_model_share(model), ra_model_threads(model), s,
                              host[1], host[0], host[2], host[3]);
        double got = learn(&gpus, &rule, s, &length);
        double off =
            fmax(fabs(got - loss.mean) / loss.mean, fabs(length - expected) / expected / 10);
        worst = off > worst || isnan(off) ? off : worst;
        first = s == 1 ? loss.mean : first;
        last = loss.mean;
        if (s == STEPS / 2) /* all goes to the host, as a checkpoint does */
            fetch(&gpus, x.numbers, begun);
    }
    EXPECT(last < 0.8 * first, "the loss fell from %g to %g only", first, last);
    EXPECT(worst <= allowed, "losses or lengths are off by %.3g", worst);
    if (rank == 0)
        printf("learning, %s: loss %.4f to %.4f, off by %.1e at most\n",
               type == RA_FLOAT32 ? "float32" : "bfloat16", first, last, worst);
    fetch(&gpus, x.numbers, straight);
    struct ra_optimizer none = {0};
    double length = 0;
    check(gpu->learn(gpus.model, &none, 1, gpus.at[1], gpus.at[0], gpus.at[2], gpus.at[3], &length),
          ra_model_error(gpus.model));
    fetch(&gpus, x.numbers, other);
    EXPECT(isnan(length) && memcmp(straight[0], other[0], bytes) == 0,
           "an optimizer that is none has changed weights");
    int64_t held = gpu->moments.count(gpus.model);
    EXPECT(same_on_all(straight[0], bytes), "ranks have other weights than others");
    end_learning(&gpus);
    for (int part = 1; part < (ranks > 1 ? PARTS : 2); part++) {
        how.shards = part >= 2;
        how.transport = part == 2 ? RA_HOST_LINK : RA_ANY_TRANSPORT;
        gpus = begin_learning(&x, &how, begun);
        for (int64_t s = STEPS / 2 + 1; s <= STEPS; s++)
            learn(&gpus, &rule, s, &length);
        fetch(&gpus, x.numbers, other);
        EXPECT(!how.shards || gpu->moments.count(gpus.model) <= held / ranks + 16 * 64,
               "a share of %d numbers has %d", (int)held, (int)gpu->moments.count(gpus.model));
        for (int i = 0; i < 4; i++)
            EXPECT(how.shards && i == 1 ? true : memcmp(straight[i], other[i], bytes) == 0,
                   "array %d has other bits after a pause%s", i, how.shards ? ", in shards" : "");
        end_learning(&gpus);
    }
    for (int i = 0; i < 4; i++) {
        free(host[i]);
        free(begun[i]);
        free(straight[i]);
        free(other[i]);
    }
    forget_share(&whole);
    ra_model_destroy(model);
    forget(&x);
    verdict("learning, %s", type == RA_FLOAT32 ? "float32" : "bfloat16");
}

/* ---- Going on with a text. */

static struct ra_decoder *open_decoder(const struct trial *p, const struct ra_model_device *device,
                                       enum ra_type type, enum ra_type cache, bool by_host)
{
    struct ra_decoder *decoder;
    struct ra_model_run run = RA_MODEL_RUN_INIT;
    run.length = p->length;
    run.device = device;
    run.type = type;
    run.cache_type = cache;
    run.timeout = 60;
    run.transport = by_host ? RA_HOST_LINK : RA_ANY_TRANSPORT;
    check(ra_decoder_create(&decoder, &p->config, &run, 3, device ? MPI_COMM_WORLD : MPI_COMM_SELF,
                            error),
          error);
    return decoder;
}

static int64_t likeliest(const float *logits, int64_t count)
{
    int64_t best = 0;
    for (int64_t c = 1; c < count; c++)
        best = logits[c] > logits[best] ? c : best;
    return best;
}

/* A prompt, and then the likeliest token, or three at a time, until the text is full: the logits of
 * the host at each token, the same token in float32, and the same bits on all ranks. Returns how
 * far logits are apart at most. */
static double decode(const struct inputs *inputs, enum ra_type type, struct ra_decoder *host,
                     struct ra_decoder *gpus, const float *weights)
{
    int64_t V = inputs->p.config.vocabulary, length = inputs->p.length / 3;
    float *right = memory(3 * V, sizeof *right), *got = memory(3 * V, sizeof *got);
    double worst = 0;
    int64_t added = 1;
    check(ra_decoder_prompt(host, inputs->weights, length, inputs->tokens, right),
          ra_decoder_error(host));
    check(ra_decoder_prompt(gpus, weights, length, inputs->tokens, got), ra_decoder_error(gpus));
    for (int64_t s = 0;; s++) {
        size_t bytes = (size_t)(added * V) * sizeof *got;
        double off = distance(got, right, added * V, 0);
        worst = off > worst || isnan(off) ? off : worst;
        EXPECT(same_on_all(got, bytes), "at %d tokens ranks have other logits", (int)length);
        int64_t next = likeliest(right + (added - 1) * V, V);
        EXPECT(type != RA_FLOAT32 || likeliest(got + (added - 1) * V, V) == next,
               "at %d tokens another one is the likeliest", (int)length);
        int32_t tokens[3] = {(int32_t)next, inputs->tokens[s], inputs->tokens[s + 1]};
        added = s % 4 == 3 ? 3 : 1;
        if (length + added > inputs->p.length)
            break;
        check(ra_decoder_add(host, inputs->weights, added, tokens, right), ra_decoder_error(host));
        check(ra_decoder_add(gpus, weights, added, tokens, got), ra_decoder_error(gpus));
        length += added;
    }
    EXPECT(ra_decoder_length(gpus) == length, "%d tokens", (int)ra_decoder_length(gpus));
    free(right);
    free(got);
    return worst;
}

/* Two texts, by the same decoders, of which the second has other weights in the same array. */
static void decode_twice(struct inputs *inputs, enum ra_type type, enum ra_type cache, bool by_host,
                         double allowed)
{
    float *weights = to_device(inputs->weights, inputs->numbers);
    struct ra_decoder *host = open_decoder(&inputs->p, NULL, RA_FLOAT32, cache, false);
    struct ra_decoder *gpus = open_decoder(&inputs->p, gpu, type, cache, by_host);
    for (int text = 0; text < 2; text++) {
        double worst = decode(inputs, type, host, gpus, weights);
        EXPECT(worst <= allowed, "text %d: logits are off by %.3g", text, worst);
        if (rank == 0 && !by_host && text == 0)
            printf("%-24s logits %.1e\n", inputs->p.name, worst);
        for (int64_t e = 0; e < inputs->numbers; e++)
            inputs->weights[e] *= text == 0 ? 0.5F : 2;
        if (!gpu->put(weights, inputs->weights, inputs->numbers))
            die("the GPU", "a copy failed");
    }
    ra_decoder_destroy(host);
    ra_decoder_destroy(gpus);
    gpu->give_back(weights);
}

static void try_text(struct trial p)
{
    if (!strstr(p.name, wanted))
        return;
    verdict_state.test = p.name;
    p.batch = p.micro = 1;
    check(ra_model_check(&p.config, error), error);
    struct inputs x = invent(p);
    for (int by_host = 0; by_host < (ranks > 1 ? 2 : 1); by_host++) {
        decode_twice(&x, RA_FLOAT32, RA_FLOAT32, by_host, 1e-5);
        verdict("%s, float32%s", p.name, by_host ? ", by the host" : "");
    }
    decode_twice(&x, RA_FLOAT32, RA_FLOAT16, false, 2e-3);
    decode_twice(&x, RA_BFLOAT16, RA_BFLOAT16, false, 0.05);
    verdict("%s, 16 bits", p.name);
    forget(&x);
}

static void try_texts(void)
{
    struct ra_model_config odd = original(), seen = llama(), deep = qwen();
    odd.vocabulary = 77;
    odd.dim = 33;
    odd.heads = 5;
    odd.key_heads = 1;
    odd.head_dim = 6;
    odd.hidden = 35;
    seen.lookback[1] = 20;
    seen.head_map = RA_INTERLEAVED;
    seen.softcap = 20;
    seen.attention_scale = 0.3;
    deep.depth = 4;
    deep.lookback[2] = 0;
    try_text((struct trial){.name = "text, original", .config = original(), .length = 80});
    try_text((struct trial){.name = "text, window", .config = seen, .length = 70});
    try_text((struct trial){.name = "text, deep", .config = deep, .length = 40});
    try_text((struct trial){.name = "text, mgqa", .config = mgqa(), .length = 50});
    try_text((struct trial){.name = "text, odd", .config = odd, .length = 60});
    try_text((struct trial){.name = "text, short", .config = original(), .length = 5});
}

/* ---- What goes between host and device. */

/* Of the stand-in for the runtime: how many bytes went up, or down, so far. A GPU has none. */
extern int64_t cuda_on_host_bytes(bool up) __attribute__((weak));

/* A step sends tokens, labels, and by which rows each token's gradient is added up; its loss comes
 * back. Learning has the length of the gradient come back: with several ranks that of each piece,
 * and the length of all of it go up. */
static void try_traffic(void)
{
    struct trial p = {.name = "traffic", .config = llama(), .batch = 1, .length = 60, .micro = 2};
    struct how how = {.device = gpu, .type = RA_BFLOAT16, .layout = RA_STRIPED};
    if (!cuda_on_host_bytes || !strstr(p.name, wanted))
        return;
    verdict_state.test = p.name;
    struct inputs x = invent(p);
    float *zeros[4] = {x.weights};
    for (int i = 1; i < 4; i++)
        zeros[i] = memory(x.numbers, sizeof(float));
    struct learner l = begin_learning(&x, &how, zeros);
    struct ra_optimizer rule = {.size = sizeof rule,
                                .rate = 1e-3,
                                .beta1 = 0.9,
                                .beta2 = 0.95,
                                .epsilon = 1e-8,
                                .steps = 9};
    struct ra_model_loss loss;
    int64_t rows = l.share.rows, each = (rows * 4 + 255) / 256 * 256;
    int64_t sent = 4 * each + (rows * 4 + 4 + 255) / 256 * 256, pieces = p.config.depth + 1;
    double length;
    for (int s = 0; s < 2; s++) { /* the first also sends angles, which stay */
        int64_t up = cuda_on_host_bytes(true), down = cuda_on_host_bytes(false);
        check(ra_model_step(l.model, l.at[0], p.micro, l.share.batches, l.at[1], &loss),
              ra_model_error(l.model));
        up = cuda_on_host_bytes(true) - up;
        down = cuda_on_host_bytes(false) - down;
        EXPECT(s == 0 ? up > p.micro * sent : up == p.micro * sent,
               "step %d sends %d bytes, not %d", s, (int)up, (int)(p.micro * sent));
        EXPECT(down == 8, "of step %d %d bytes come back", s, (int)down);
        up = cuda_on_host_bytes(true), down = cuda_on_host_bytes(false);
        check(gpu->learn(l.model, &rule, s + 1, l.at[1], l.at[0], l.at[2], l.at[3], &length),
              ra_model_error(l.model));
        up = cuda_on_host_bytes(true) - up;
        down = cuda_on_host_bytes(false) - down;
        EXPECT(up == (ranks > 1 ? 8 : 0) && down == (ranks > 1 ? 8 * pieces : 8),
               "learning sends %d bytes, and %d come back", (int)up, (int)down);
    }
    end_learning(&l);
    for (int i = 1; i < 4; i++)
        free(zeros[i]);
    forget(&x);
    verdict("traffic");
}

/* ---- A rank in trouble. */

/* What a step takes. Its arrays stay if it fails: MPI, or a GPU, may still use them. */
struct attempt {
    struct ra_model *model;
    struct share share;
    float *weights, *gradients;
};

static struct attempt prepare(struct trial p, const struct how *how)
{
    struct inputs x = invent(p);
    struct attempt a = {.model = create(&p, how)};
    verdict_state.test = p.name;
    a.share = share_of(&x, how, a.model);
    a.weights = to_device(x.weights, x.numbers);
    a.gradients = gpu->take(x.numbers);
    forget(&x);
    return a;
}

static enum ra_status step(const struct attempt *a)
{
    struct ra_model_loss loss;
    return ra_model_step(a->model, a->weights, 1, a->share.batches, a->gradients, &loss);
}

/* Each rank is a ring by itself, so that gradients alone pass. The last rank's batch is refused:
 * the others end, too, and say why. */
static void try_trouble(enum ra_transport transport)
{
    struct trial p = {
        .name = "trouble", .config = original(), .batch = ranks, .length = 30, .micro = 1};
    struct how how = {.device = gpu, .ring_size = 1, .transport = transport, .timeout = 3};
    if (ranks == 1 || !strstr(p.name, wanted))
        return;
    struct attempt a = prepare(p, &how);
    if (rank == ranks - 1)
        a.share.tokens[3] = -7;
    enum ra_status status = step(&a);
    const char *text = ra_model_error(a.model);
    EXPECT(status == RA_INVALID && strstr(text, "rank ") && strstr(text, "position 3 is -7"),
           "status %d: %s", status, text);
    ra_model_destroy(a.model);
    verdict("trouble, transport %d", (int)transport);
}

/* The GPU of the last rank fails before a step, or a forward: the others hear why, at once. */
static void try_failure(bool learns)
{
    struct trial p = {
        .name = "failure", .config = original(), .batch = 1, .length = 30, .micro = 1};
    struct how how = {.device = gpu, .timeout = 20};
    if (ranks == 1 || !strstr(p.name, wanted))
        return;
    struct attempt a = prepare(p, &how);
    bool last = rank == ranks - 1;
    if (last)
        ra_gpu_note(a.model->own, cudaErrorInvalidValue, "late()");
    double began = ra_seconds();
    enum ra_status status =
        learns ? step(&a) : ra_model_forward(a.model, a.weights, a.share.batches);
    const char *text = ra_model_error(a.model);
    EXPECT(status == (last ? RA_DEVICE : RA_LOST) && strstr(text, "late: "), "status %d: %s",
           status, text);
    ra_model_destroy(a.model);
    EXPECT(ra_seconds() - began < 30, "%g s", ra_seconds() - began);
    verdict("failure%s", learns ? ", learning" : "");
}

/* A rank begins nothing, as if it had died: the others' waits, on the device or for MPI, end. */
static void try_absence(enum ra_transport transport)
{
    enum { NUMBERS = 4096 };
    struct ra_gpu_ranks *sums;
    cudaStream_t stream;
    MPI_Comm apart; /* no other call of ranks that are late is to meet these */
    if (ranks == 1 || !strstr("absence", wanted))
        return;
    verdict_state.test = "absence";
    float *array = gpu->take(NUMBERS);
    if (!array || cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess)
        die("the GPU", "no memory");
    MPI_Comm_dup(MPI_COMM_WORLD, &apart);
    sums = ra_gpu_ranks_create(apart, NUMBERS, 3, stream);
    if (!sums)
        die("the GPU", "no memory");
    check(ra_gpu_ranks_connect(sums, transport, error), error);
    if (rank < ranks - 1) {
        double began = ra_seconds();
        ra_gpu_ranks_begin(sums, array, (struct ra_gpu_piece){0, NUMBERS}, true, true);
        enum ra_status status = ra_gpu_ranks_end(sums, false, error);
        EXPECT(status == RA_LOST && strstr(error, "waited 3 s"), "status %d: %s", status, error);
        EXPECT(ra_seconds() - began < 30, "%g s", ra_seconds() - began);
    }
    bool all_came = ra_gpu_ranks_destroy(sums);
    EXPECT(!all_came || (rank == ranks - 1 && transport == RA_HOST_LINK), "nobody is missed");
    verdict("absence, transport %d", (int)transport);
}

/* ---- What an observer is told of a step. */

enum { MOST_PARTS = 256 };
static struct told {
    int count;
    struct ra_model_part parts[MOST_PARTS];
} told;

static void note_part(void *observer, const struct ra_model_part *part)
{
    (void)observer;
    if (told.count < MOST_PARTS)
        told.parts[told.count++] = *part;
}

static void want(struct told *all, const char *name, int layer)
{
    all->parts[all->count++] = (struct ra_model_part){.name = name, .layer = layer};
}

/* What was told of these is what is wanted, in this order, one after the other, and within the call
 * that made the step. */
static void compare_parts(const struct told *all, bool is_sum, double began, double ended)
{
    int next = 0;
    double last = began - 1e-3;
    for (int i = 0; i < told.count; i++) {
        const struct ra_model_part *part = &told.parts[i], *one = &all->parts[next];
        if (part->is_sum != is_sum)
            continue;
        EXPECT(next < all->count && strcmp(part->name, one->name) == 0 && part->layer == one->layer,
               "part %d: %s of layer %d, wanted %s of layer %d", next, part->name, part->layer,
               next < all->count ? one->name : "no more", next < all->count ? one->layer : 0);
        EXPECT(part->start >= last - 1e-6 && part->end >= part->start && part->end <= ended + 1e-3,
               "%s of layer %d: from %g to %g, after %g", part->name, part->layer,
               part->start - began, part->end - began, last - began);
        last = part->end;
        if (++next > all->count)
            return;
    }
    EXPECT(next == all->count, "%d parts, wanted %d", next, all->count);
}

/* Sums begin when what they add up is there. */
static void compare_sums(void)
{
    for (int i = 0; i < told.count; i++)
        for (int j = 0; j < told.count; j++) {
            const struct ra_model_part *sum = &told.parts[i], *part = &told.parts[j];
            const char *before = sum->layer < 0 ? "embedding backward" : "qkv backward";
            if (strcmp(sum->name, "sums") == 0 && strcmp(part->name, before) == 0 &&
                part->layer == sum->layer)
                EXPECT(sum->start >= part->end - 1e-6,
                       "sums of layer %d begin at %g, %s ends at %g", sum->layer, sum->start,
                       before, part->end);
        }
}

static void try_trace(enum ra_transport transport, bool shards)
{
    static const char *const forth[] = {"norm", "qkv", "heads", "attention", "out", "norm", "feed"};
    static const char *const back[] = {"feed backward",      "norm backward",  "out backward",
                                       "attention backward", "heads backward", "qkv backward",
                                       "norm backward"};
    struct trial p = {.name = "trace", .config = original(), .batch = 1, .length = 64, .micro = 1};
    struct how how = {.device = gpu,
                      .type = RA_BFLOAT16,
                      .layout = RA_ZIGZAG,
                      .transport = transport,
                      .shards = shards};
    struct ra_optimizer rule = RA_OPTIMIZER_INIT;
    int depth = (int)p.config.depth;
    double length;
    if (!strstr(p.name, wanted))
        return;
    verdict_state.test = p.name;
    struct inputs x = invent(p);
    float *host[4];
    for (int i = 0; i < 4; i++)
        host[i] = memory(x.numbers, sizeof(float));
    memcpy(host[0], x.weights, (size_t)x.numbers * sizeof(float));
    struct learner l = begin_learning(&x, &how, host);
    struct ra_model_loss loss;
    learn(&l, &rule, 1, &length);
    gpu->trace(l.model, note_part, NULL);
    check(ra_model_step(l.model, l.at[0], 1, l.share.batches, l.at[1], &loss),
          ra_model_error(l.model)); /* nobody learns from this one */
    EXPECT(told.count == 0, "%d parts of no step", told.count);
    double began = ra_seconds();
    learn(&l, &rule, 2, &length);
    double ended = ra_seconds();

    struct told parts = {0}, sums = {0};
    bool by_peers = ranks > 1 && strcmp(gpu->transport(l.model), "peer copies") == 0;
    want(&parts, "clear", -1);
    want(&parts, "upload", -1);
    want(&parts, "embedding", -1);
    for (int layer = 0; layer < depth; layer++)
        for (size_t i = 0; i < sizeof forth / sizeof *forth; i++)
            want(&parts, forth[i], layer);
    want(&parts, "loss", -1);
    for (int layer = depth - 1; layer >= 0; layer--)
        for (size_t i = 0; i < sizeof back / sizeof *back; i++)
            want(&parts, back[i], layer);
    want(&parts, "embedding backward", -1);
    want(&parts, "length", -1);
    for (int piece = 0; piece < (shards && ranks > 1 ? depth + 1 : 1); piece++)
        want(&parts, "AdamW", -1);
    for (int layer = depth - 1; layer >= -1 && by_peers; layer--)
        want(&sums, "sums", layer);
    for (int piece = 0; piece < depth + 1 && by_peers && shards; piece++)
        want(&sums, "weights", -1);
    compare_parts(&parts, false, began, ended);
    compare_parts(&sums, true, began, ended);
    compare_sums();

    /* And no more. */
    gpu->trace(l.model, NULL, NULL);
    told.count = 0;
    learn(&l, &rule, 3, &length);
    EXPECT(told.count == 0, "%d parts, though nobody observes", told.count);
    end_learning(&l);
    for (int i = 0; i < 4; i++)
        free(host[i]);
    forget(&x);
    verdict("trace, transport %d%s", (int)transport, shards ? ", optimizer in shards" : "");
}

/* ---- What is refused. */

static void refused(struct ra_model_config config, struct ra_model_run more, const char *words)
{
    struct ra_model *model;
    more.size = sizeof more;
    more.batch = 1;
    more.length = 8;
    more.device = gpu;
    enum ra_status status = ra_model_create(&model, &config, &more, MPI_COMM_WORLD, error);
    EXPECT(status == RA_INVALID && !model && strstr(error, words), "status %d: %s", status, error);
}

static void try_refusals(void)
{
    struct ra_model_config long_rows = original();
    long_rows.dim = 8193;
    verdict_state.test = "refusals";
    refused(long_rows, (struct ra_model_run){0}, "at most 8192");
    refused(original(), (struct ra_model_run){.gather = true}, "gather: ");
    struct ra_model_config parts[6];
    static const char *const names[] = {"norm rms_plus_one", "feed geglu",      "post_norm",
                                        "logits_softcap",    "embedding_scale", "sinks"};
    for (int i = 0; i < 6; i++)
        parts[i] = original();
    parts[0].norm = RA_NORM_RMS_PLUS_ONE;
    parts[1].feed = RA_FEED_GEGLU;
    parts[2].post_norm = true;
    parts[3].logits_softcap = 30;
    parts[4].embedding_scale = 2;
    parts[5].sinks = true;
    for (int i = 0; i < 6; i++)
        refused(parts[i], (struct ra_model_run){0}, names[i]);
    refused(original(), (struct ra_model_run){.type = RA_FLOAT16}, "float32 or bfloat16");
    refused(original(), (struct ra_model_run){.forward_only = true, .shard_optimizer = true},
            "there is no optimizer");
    struct ra_model_config odd = mgqa();
    odd.head_norm = true;
    odd.head_dim = 33;
    refused(odd, (struct ra_model_run){0}, "takes even ones");
    struct ra_decoder *decoder;
    struct ra_model_run run = RA_MODEL_RUN_INIT;
    run.length = 8;
    run.timeout = 5;
    run.device = gpu;
    run.cache_type = rank == ranks - 1 ? (enum ra_type)9 : RA_FLOAT32; /* all hear of it */
    struct ra_model_config plain = original();
    enum ra_status status = ra_decoder_create(&decoder, &plain, &run, 3, MPI_COMM_WORLD, error);
    EXPECT(status == RA_INVALID && strstr(error, "cache_type is 9"), "status %d: %s", status,
           error);
    verdict("refusals");
}

int main(int argc, char **argv)
{
    MPI_Comm machine;
    int place;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Comm_rank(machine, &place);
    verdict_start(rank, 0, "rank %d: ", rank);
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--small") == 0)
            is_small = true;
        else
            wanted = argv[i];
    int devices = 0;
    cudaError_t code = cudaGetDeviceCount(&devices);
    if (code != cudaSuccess || devices == 0)
        die("no CUDA device", code ? cudaGetErrorString(code) : "none found");
    cudaSetDevice(place % devices); /* ranks may share one */
    setvbuf(stdout, NULL, _IOLBF, 0);
    gpu = ra_model_cuda();
    try_models();
    try_learning(RA_FLOAT32, 1e-4);
    try_learning(RA_BFLOAT16, 0.02);
    try_texts();
    try_traffic();
    try_trouble(RA_ANY_TRANSPORT);
    try_trouble(RA_HOST_LINK);
    try_failure(true);
    try_failure(false);
    try_absence(RA_ANY_TRANSPORT);
    try_absence(RA_HOST_LINK);
    try_trace(RA_ANY_TRANSPORT, false);
    try_trace(RA_ANY_TRANSPORT, true);
    try_trace(RA_HOST_LINK, false);
    try_refusals();
    int result = verdict_end();
    MPI_Finalize();
    return result;
}
