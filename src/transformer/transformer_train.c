/* transformer_train: trains a model on a file of tokens. See transformer_train.h. */
#include "transformer_train.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "ra_checkpoint.h"
#include "ra_checksum.h"
#include "ra_clock.h"
#include "ra_dataset.h"
#include "ra_math.h"
#include "ra_optimizer.h"
#include "ra_path.h"
#include "transformer_device.h"
#include "transformer_files.h"

/* All that one training run has on this rank. */
struct run {
    struct transformer *t;
    struct ra_tokens tokens;
    struct ra_dataset data;
    struct ra_model *model;
    struct ra_training training;
    bool there; /* MODEL, to go on with */
    int64_t sets, set;
    int64_t windows, *chosen; /* of this set in a batch: how many, and which */

    /* The batches of a step, one after the other: (K, B, room), (K, most) slices. */
    struct ra_model_batch *batches;
    int64_t room, most, *positions, *places;
    int32_t *inputs, *labels;
    bool *mask;
    struct ra_slice *slices;
    int64_t documents, *bounds; /* of a batch */
    float *weights, *gradients, *means, *squares;
    struct transformer_arrays at; /* these, where the model computes */
    struct ra_whole *output;
    char error[RA_ERROR_SIZE];
};

/* ---- Beginning, or going on. */

/* What the command line says of the training. */
static struct ra_training asked(const struct run *run)
{
    const struct transformer *t = run->t;
    return (struct ra_training){.steps = t->steps,
                                .warmup = t->warmup,
                                .batch = t->batch,
                                .length = t->length,
                                .accumulate = t->accumulate,
                                .seed = t->seed,
                                .tokens = run->tokens.count,
                                .rate = t->rate,
                                .decay = t->decay,
                                .clip = t->clip,
                                .validation = t->validation};
}

/* Takes the model that is there: flags that describe one may be left out, or describe the same. */
static void take_model(struct run *run, struct ra_training *before)
{
    struct transformer *t = run->t;
    struct ra_model_config there;
    stage_check(&t->stage,
                ra_checkpoint_look(t->arguments[1], &there, sizeof there, before, run->error),
                run->error);
    const char *flag = transformer_other_flag(t, &there);
    if (flag)
        stage_fail(&t->stage, "%s has another --%s: give the same to go on, or leave it out",
                   t->arguments[1], flag);
    t->model = there;
}

/* What --type adds to the checksum of the tokens, so that a model goes on in the type that it has
 * been trained in. Float32 adds nothing. */
static uint64_t mark_of(enum ra_type type)
{
    return (uint64_t)type * UINT64_C(0x9E3779B97F4A7C15);
}

/* Refuses a MODEL that was trained otherwise, unless it has made no step yet, as one that was
 * imported; then goes on from its step. */
static void resume(struct run *run, const struct ra_training *before)
{
    struct transformer *t = run->t;
    const struct ra_training *now = &run->training;
    if (!t->model.causal)
        stage_fail(
            &t->stage,
            "%s is not causal: it would see its labels, which are the tokens that come next; "
            "train a causal model",
            t->arguments[1]);
    uint64_t tokens = now->data - mark_of(t->run.type);
    bool same_tokens = before->data == tokens + mark_of(RA_FLOAT32) ||
                       before->data == tokens + mark_of(RA_BFLOAT16);
    const struct {
        const char *what;
        bool same;
    } fields[] = {{"--steps", before->steps == now->steps},
                  {"--warmup", before->warmup == now->warmup},
                  {"--batch", before->batch == now->batch},
                  {"--tokens", before->length == now->length},
                  {"--accumulate", before->accumulate == now->accumulate},
                  {"--seed", before->seed == now->seed},
                  {"DATA or --document-end", before->tokens == now->tokens && same_tokens},
                  {"--type", before->data == now->data},
                  {"--rate", before->rate == now->rate},
                  {"--decay", before->decay == now->decay},
                  {"--clip", before->clip == now->clip},
                  {"--validation", before->validation == now->validation}};
    bool trained = before->step > 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (trained && !fields[i].same)
            stage_fail(&t->stage, "%s was trained with another %s: give the same to go on",
                       t->arguments[1], fields[i].what);
    run->training.step = before->step;
}

/* Do documents share a sample, and not see each other? */
static bool has_documents(const struct run *run)
{
    return run->t->document_end >= 0 || run->tokens.documents > 0;
}

/* Reads all tokens once, before the first step: each must be one of the model's. The others hear
 * that this rank is at work, however large the file is. */
static void scan_data(struct run *run)
{
    struct transformer *t = run->t;
    const int64_t part = INT64_C(1) << 24;
    int64_t count = run->tokens.count;

    /* The same tokens in other rows, or documents, are other samples. */
    run->training.data = (uint64_t)run->tokens.columns;
    if (t->document_end >= 0)
        run->training.data =
            ra_checksum(run->training.data, &t->document_end, sizeof t->document_end);
    if (run->tokens.documents > 0)
        run->training.data = ra_checksum(run->training.data, run->tokens.ends,
                                         (size_t)run->tokens.documents * sizeof *run->tokens.ends);
    for (int64_t first = 0; first < count; first += part) {
        int64_t end = count - first < part ? count : first + part;
        stage_check(&t->stage,
                    ra_tokens_scan(&run->tokens, first, end, &run->training.data, run->error),
                    run->error);
        t->stage.world.show(t->run.timeout);
        stage_progress(&t->stage, "tokens read", end, count);
    }
    run->training.data += mark_of(t->run.type);
}

/* Refuses a trace that would take the place of the data or the model. */
static void check_trace(const struct transformer *t)
{
    char index[4096]; /* of Megatron-LM's NAME.bin; other data has none */
    size_t length = strlen(t->arguments[0]);
    snprintf(index, sizeof index, "%.*s.idx", (int)(length > 4 ? length - 4 : 0), t->arguments[0]);
    const struct {
        bool used;
        const char *path, *name;
    } files[] = {{true, t->arguments[0], "DATA"},
                 {true, t->arguments[1], "MODEL"},
                 {t->token_type == RA_TOKEN_MEGATRON, index, "the .idx of DATA"}};
    for (size_t i = 0; i < sizeof files / sizeof *files && t->stage.trace_path; i++)
        if (files[i].used && ra_path_same(t->stage.trace_path, files[i].path))
            stage_end(&t->stage, 2, "--trace %s: is %s; name a new file", t->stage.trace_path,
                      files[i].name);
}

/* Opens DATA, and MODEL if it is there; both must be the same on all ranks. MODEL is read before
 * the tokens are, as each of them must be in its vocabulary. */
static void open_data(struct run *run)
{
    struct transformer *t = run->t;
    struct ra_training before = {0};
    const char *model = t->arguments[1];
    stage_check(&t->stage, ra_tokens_open(&run->tokens, t->arguments[0], t->token_type, run->error),
                run->error);
    if (t->length == 0)
        t->length = run->tokens.columns > 0 ? run->tokens.columns - 1 : 1024;
    t->run.has_mask = run->tokens.columns > 0;
    run->training = asked(run);
    run->there = stage_all_find(&t->stage, model);
    if (run->there && !t->resume)
        stage_fail(&t->stage, "%s: is there already; give --resume to go on with it", model);
    if (run->there)
        take_model(run, &before);
    else if (t->resume)
        transformer_complete_model(t);
    stage_agree(&t->stage, 1, "the step of MODEL", before.step);
    stage_agree(&t->stage, 1, "the tokens of DATA", run->tokens.count);
    stage_agree(&t->stage, 1, "the columns of DATA", run->tokens.columns);
    run->tokens.vocabulary = t->model.vocabulary;
    stage_check(&t->stage,
                ra_dataset_open(&run->data, &run->tokens, t->length, t->validation,
                                (uint64_t)t->seed, t->document_end, run->error),
                run->error);
    scan_data(run);
    transformer_agree(t, "tokens", t->arguments[0], run->training.data);
    if (run->there)
        resume(run, &before);
    else if (t->resume && t->stage.world.rank == 0)
        fprintf(stderr, "%s: %s: is not there, so training begins\n", t->stage.program, model);
}

/* The weights and what AdamW knows of them, from the file, or as learning begins. */
static void open_weights(struct run *run)
{
    struct transformer *t = run->t;
    struct stage *stage = &t->stage;
    int64_t numbers = ra_parameter_numbers(&t->model);
    run->weights = stage_allocate(stage, numbers, sizeof *run->weights);
    run->gradients = stage_allocate(stage, numbers, sizeof *run->gradients);
    run->means = stage_zeros(stage, numbers, sizeof *run->means);
    run->squares = stage_zeros(stage, numbers, sizeof *run->squares);
    if (run->there)
        stage_check(
            stage,
            ra_checkpoint_read(t->arguments[1], run->weights, run->means, run->squares, run->error),
            run->error);
    else
        ra_parameters_begin(&t->model, (uint64_t)t->seed, run->weights);
    size_t bytes = (size_t)numbers * sizeof *run->weights;
    transformer_agree_model(t, t->arguments[1], run->weights);
    transformer_agree(t, "the means of AdamW", t->arguments[1],
                      ra_checksum(ra_checksum(0, run->means, bytes), run->squares, bytes));
}

static void open_model(struct run *run)
{
    struct transformer *t = run->t;
    struct stage *stage = &t->stage;
    int64_t P = t->run.ring_size;
    run->sets = stage->world.ranks / P;
    run->set = stage->world.rank / P;
    run->windows = ra_ceiling_division(t->batch - run->set, run->sets);
    t->run.batch = run->windows;
    t->run.length = t->length;

    /* Slices hold for all rows of a batch. As windows have documents of their own, they become one
     * row, as long on all sets, in which windows see as little of each other as documents do. */
    if (has_documents(run)) {
        run->windows = ra_ceiling_division(t->batch, run->sets);
        t->run.batch = 1;
        t->run.length = run->windows * t->length;
        t->run.max_slices = run->most = run->windows * run->data.most_documents;
        if (t->deal && P > 1) /* no deal is even to the row */
            t->run.max_rows = t->run.length / P + t->run.length / P / 8 + 64;
    }
    transformer_trace_attention(t);
    stage_check(stage, ra_model_create(&run->model, &t->model, &t->run, MPI_COMM_WORLD, run->error),
                run->error);
    transformer_trace_parts(t, run->model);
    run->at = transformer_place_all(t, run->model, run->weights, run->gradients, run->means,
                                    run->squares);
    int64_t n = ra_model_rows(run->model), room = ra_max(n, t->run.max_rows);
    int64_t K = t->accumulate;
    int64_t rows = room * t->run.batch;
    run->room = room;
    run->batches = stage_allocate(stage, K, sizeof *run->batches);
    run->positions = stage_allocate(stage, room, sizeof *run->positions);
    run->places = stage_allocate(stage, K * room, sizeof *run->places);
    run->inputs = stage_allocate(stage, K * rows, sizeof *run->inputs);
    run->labels = stage_allocate(stage, K * rows, sizeof *run->labels);
    run->mask = stage_allocate(stage, K * rows, sizeof *run->mask);
    run->slices = stage_allocate(stage, K * run->most, sizeof *run->slices);
    run->chosen = stage_allocate(stage, run->windows, sizeof *run->chosen);
    run->bounds = stage_allocate(stage, run->most + 1, sizeof *run->bounds);
}

/* ---- Steps. */

/* Chooses the windows of this set: of a batch of training that begins with sample `first`, or of
 * validation with window `first`. Row b S + s of a batch is row b of set s. After the last window
 * of validation, and where other sets have a row more, there is padding: -1. */
static void choose_windows(struct run *run, int64_t first, bool validation)
{
    for (int64_t b = 0; b < run->windows; b++) {
        int64_t sample = first + b * run->sets + run->set;
        int64_t window = validation ? sample : ra_dataset_window(&run->data, sample);
        run->chosen[b] =
            b * run->sets + run->set < run->t->batch && window < run->data.windows ? window : -1;
    }
}

/* Finds the documents of batch k, and which rows of it are this rank's if they are dealt. */
static void find_documents(struct run *run, int64_t k)
{
    struct transformer *t = run->t;
    struct ra_model_batch *batch = &run->batches[k];
    int64_t N = t->length, count = 0, added;
    struct ra_slice *slices = run->slices + k * run->most;
    for (int64_t b = 0; b < run->windows; b++) {
        int64_t window = run->chosen[b], *bounds = run->bounds + count;
        bounds[0] = 0;
        added = 1;
        if (window >= 0)
            stage_check(&t->stage,
                        ra_dataset_documents(&run->data, window, bounds, &added, run->error),
                        run->error);
        for (int64_t d = 0; d < added; d++)
            bounds[d] += b * N;
        count += added;
    }
    run->bounds[count] = t->run.length;
    run->documents = count;
    batch->slices = slices;
    batch->slice_count = ra_slices_documents(run->bounds, count, RA_NO_LOOKBACK, 0, slices);

    /* A deal that is too uneven for the memory is not made: rows lie as without one. */
    batch->deal = t->deal ? RA_DEAL_DOCUMENTS : RA_DEAL_LAYOUT;
    if (t->deal && ra_model_set_slices(run->model, batch) == RA_OK)
        return;
    batch->deal = RA_DEAL_LAYOUT;
    stage_check(&t->stage, ra_model_set_slices(run->model, batch), ra_model_error(run->model));
}

/* Reads this rank's rows of batch k of a step. */
static void read_batch(struct run *run, int64_t k, int64_t first, bool validation)
{
    struct transformer *t = run->t;
    int64_t begin = k * t->run.batch * run->room;
    int32_t *inputs = run->inputs + begin, *labels = run->labels + begin;
    bool *mask = run->mask + begin;
    struct ra_model_batch *batch = &run->batches[k];
    int64_t N = t->length, *places = run->places + k * run->room;
    *batch = (struct ra_model_batch){.size = sizeof *batch, .tokens = inputs, .labels = labels};
    choose_windows(run, first, validation);
    if (has_documents(run))
        find_documents(run, k);
    int64_t n = ra_model_rows(run->model), rows = t->run.batch * n;
    ra_model_positions(run->model, run->positions);
    if (has_documents(run)) {
        memcpy(places, run->positions, (size_t)n * sizeof *places);
        ra_slices_places(run->bounds, run->documents, n, places);
        batch->positions = places;
    }
    for (int64_t e = 0; e < rows; e++) {
        int64_t row = e / n, position = run->positions[e % n];
        int64_t window = run->chosen[row + position / N];
        position %= N;
        inputs[e] = labels[e] = -1;
        if (window >= 0)
            stage_check(&t->stage,
                        ra_dataset_read(&run->data, window, 1, &position, &inputs[e], &labels[e],
                                        run->error),
                        run->error);

        /* No query sees padding, and it has no label: so any token will do there. */
        mask[e] = inputs[e] >= 0;
        inputs[e] = mask[e] ? inputs[e] : 0;
    }
    batch->mask = t->run.has_mask ? mask : NULL;
}

/* The mean loss over all labels of what is not trained on. NaN if there are none. Fails if it is
 * not finite: a model that has overflowed is not saved. */
static double validate(struct run *run)
{
    double sum = 0, labels = 0;
    struct ra_model_loss loss;
    for (int64_t w = run->data.training; w < run->data.windows; w += run->t->batch) {
        read_batch(run, 0, w, true);
        stage_check(&run->t->stage,
                    ra_model_step(run->model, run->at.weights, 1, run->batches, NULL, &loss),
                    ra_model_error(run->model));
        sum += loss.mean * (double)loss.labels;
        labels += (double)loss.labels;
    }
    if (!isfinite(sum))
        stage_fail(&run->t->stage,
                   "after step %" PRId64 " the loss of validation is %g; try a smaller --rate or "
                   "--clip",
                   run->training.step, sum);
    return sum / labels;
}

/* One rank writes for all, as all have the same weights, and had the same gradients. A rank that
 * computes wrong shows here. */
static void save(struct run *run)
{
    struct transformer *t = run->t;
    struct stage *stage = &t->stage;
    int64_t numbers = ra_parameter_numbers(&t->model);
    size_t bytes = (size_t)numbers * sizeof *run->weights;
    transformer_fetch(t, run->at.weights, run->weights, numbers);
    uint64_t sum = ra_checksum(0, run->weights, bytes);
    if (!t->run.shard_optimizer) { /* or each rank has those of its shares */
        transformer_fetch(t, run->at.gradients, run->gradients, numbers);
        sum = ra_checksum(sum, run->gradients, bytes);
    }
    stage_gather(stage, (int64_t)sum);
    for (int r = 1; r < stage->world.ranks; r++)
        if (stage->gathered[r] != stage->gathered[0])
            stage_fail(stage, "after step %" PRId64 " rank %d has other gradients than rank 0",
                       run->training.step, r);
    transformer_fetch_moments(t, run->model, run->at.means, run->means);
    transformer_fetch_moments(t, run->model, run->at.squares, run->squares);
    if (stage->world.rank == 0)
        stage_check(stage,
                    ra_checkpoint_write(run->output, &run->t->model, &run->training, run->weights,
                                        run->means, run->squares, run->error),
                    run->error);
    stage_gather(stage, 0);
}

void transformer_train(struct transformer *t)
{
    struct run run = {.t = t};
    struct stage *stage = &t->stage;
    /* First of all nobody else may write MODEL, as what is read of it must not change. */
    check_trace(t);
    run.output = transformer_begin_output(t, RA_WHOLE_ALONE, NULL);
    open_data(&run);
    open_weights(&run);
    if (stage->world.rank == 0)
        stage_check(stage, ra_checkpoint_try(run.output, &t->model, true, run.error), run.error);
    stage_check_all(stage);
    stage_open_trace(stage);
    transformer_opened(t);
    open_model(&run);
    struct ra_optimizer optimizer = {.size = sizeof optimizer,
                                     .rate = t->rate,
                                     .warmup = t->warmup,
                                     .steps = t->steps,
                                     .beta1 = 0.9,
                                     .beta2 = 0.95,
                                     .epsilon = 1e-8,
                                     .decay = t->decay,
                                     .clip = t->clip};
    double began = ra_seconds(), trained = 0; /* labels of all steps of this run */
    int64_t *step = &run.training.step;
    if (stage->world.rank == 0)
        printf("step loss rate gradient\n");
    while (*step < t->steps) {
        struct ra_model_loss loss;
        for (int64_t k = 0; k < t->accumulate; k++)
            read_batch(&run, k, (*step * t->accumulate + k) * t->batch, false);
        double start = ra_seconds();
        stage_check(stage,
                    ra_model_step(run.model, run.at.weights, t->accumulate, run.batches,
                                  run.at.gradients, &loss),
                    ra_model_error(run.model));
        stage_trace(stage, STAGE_LANE_WORK, "step", (int)*step, start, ra_seconds());
        ++*step;
        double length = transformer_learn(t, run.model, &optimizer, *step, &run.at);
        if (!isfinite(loss.mean) || !isfinite(length))
            stage_fail(stage,
                       "step %" PRId64 ": the loss is %g and the length of the gradient %g; "
                       "try a smaller --rate or --clip",
                       *step, loss.mean, length);
        if (stage->world.rank == 0) {
            printf("%" PRId64 " %.6f %.6f %.4f\n", *step, loss.mean,
                   ra_optimizer_rate(&optimizer, *step), length);
            fflush(stdout);
        }
        char phase[80];
        snprintf(phase, sizeof phase, "loss %.3f, %.0f tokens per second, trained", loss.mean,
                 (double)loss.labels / (ra_seconds() - start));
        trained += (double)loss.labels;
        stage_progress(stage, phase, *step, t->steps);
        if (*step % t->save_every == 0 && *step < t->steps)
            save(&run);
    }
    double seconds = ra_seconds() - began;
    stage_close_trace(stage);
    double loss = validate(&run);
    save(&run);
    stage_progress_end();
    if (stage->world.rank == 0) {
        if (run.data.windows > run.data.training)
            printf("validation %.6f\n", loss);
        fprintf(stderr, "%.1f seconds, %.0f tokens per second\n", seconds, trained / seconds);
    }
    transformer_end_output(t, run.output);
    ra_tokens_close(&run.tokens);
    ra_model_destroy(run.model);
}
