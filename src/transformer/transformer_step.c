/* transformer_step: logits, loss and every gradient of one batch, or its logits alone, from files
 * into files. See transformer_step.h.
 */
#include "transformer_step.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "ra_batch.h"
#include "ra_checksum.h"
#include "ra_folder.h"
#include "transformer_device.h"
#include "transformer_files.h"

/* Says whether FOLDER/NAME.npy is there. */
static bool has(const struct transformer *t, const char *folder, const char *name)
{
    char path[PATH_MAX];
    stage_input_path(&t->stage, folder, name, path);
    return stage_all_find(&t->stage, path);
}

/* Opens FOLDER/NAME.npy, an array (B, N). */
static void open_rows(const struct transformer *t, const char *name, bool flags, struct npy *file,
                      int64_t *batch, int64_t *length)
{
    char path[PATH_MAX];
    stage_input_path(&t->stage, t->arguments[0], name, path);
    if (!npy_open(file, path))
        stage_fail(&t->stage, "%s", file->error);
    if (flags != (file->type == NPY_BOOL) || file->dims != 2 ||
        (*batch >= 0 && (file->shape[0] != *batch || file->shape[1] != *length)))
        stage_fail(&t->stage, "%s: must be %s (batch, length), like all inputs", path,
                   flags ? "bool" : "whole numbers");
    *batch = file->shape[0];
    *length = file->shape[1];
}

/* Reads all of it, before anything is computed: whole numbers must be at most `most` and, unless
 * they are labels, at least 0; and all ranks must have the same. */
static void scan_rows(struct transformer *t, struct npy *file, bool is_labels, int64_t most)
{
    struct stage *stage = &t->stage;
    bool flags = file->type == NPY_BOOL;
    int64_t length = file->shape[1];
    size_t bytes = (size_t)length * (flags ? sizeof(bool) : sizeof(int64_t));
    int64_t *row = stage_allocate(stage, length, sizeof *row);
    uint64_t sum = 0;
    for (int64_t b = 0; b < file->shape[0]; b++) {
        if (!npy_read(file, (struct npy_slice){0, 0, b, 1, 1}, flags ? NPY_BOOL : NPY_INT64, row))
            stage_fail(stage, "%s", file->error);
        for (int64_t a = 0; a < length && !flags; a++)
            if (row[a] > most || (row[a] < 0 && !is_labels))
                stage_fail(stage, "%s: [%" PRId64 ", %" PRId64 "] is %" PRId64 ": give %s%" PRId64,
                           file->path, b, a, row[a], is_labels ? "at most " : "0 to ", most);
        sum = ra_checksum(sum, row, bytes);
    }
    transformer_agree(t, "rows", file->path, sum);
}

/* Takes an array (B, N, ...) as one of so many rows: B, or one if they are packed. */
static void as_rows(struct npy *file, int64_t rows)
{
    if (file->shape[0] == rows)
        return;
    file->shape[1] *= file->shape[0];
    file->shape[0] = 1;
}

/* Reads rows first..first + count - 1 of it, and gives each rank of the batch its part of them. */
static void *read_rows(struct transformer *t, struct npy *file, struct ra_batch *batch, int64_t n)
{
    struct stage *stage = &t->stage;
    bool flags = file->type == NPY_BOOL;
    as_rows(file, batch->total);
    int64_t length = file->shape[1], count = batch->rows * length;
    int64_t size = flags ? 1 : (int64_t)sizeof(int32_t);
    int64_t *whole = stage_allocate(stage, count, sizeof *whole);
    char *rows = stage_allocate(stage, count, size);
    char *shard = stage_allocate(stage, batch->set_rows * n, size), error[RA_ERROR_SIZE];
    if (!npy_read(file, (struct npy_slice){0, 0, batch->first, 1, batch->rows},
                  flags ? NPY_BOOL : NPY_INT64, flags ? (void *)rows : (void *)whole))
        stage_fail(stage, "%s", file->error);
    npy_close(file);
    for (int64_t i = 0; i < count && !flags; i++)
        ((int32_t *)rows)[i] = whole[i] < 0 ? -1 : (int32_t)whole[i];
    stage_check(stage, ra_batch_shard(batch, rows, shard, error), error);
    return shard;
}

/* Makes one row of all rows of a batch, whose documents then see each other as little as its rows
 * did, as slices hold for all rows alike. Returns their bounds, and how many there are. */
static int64_t *pack(struct transformer *t, struct npy *tokens, int64_t *count)
{
    struct stage *stage = &t->stage;
    int64_t N = tokens->shape[1], all = tokens->shape[0] * N;
    int64_t *numbers = stage_allocate(stage, all, sizeof *numbers);
    int64_t *bounds = stage_allocate(stage, all + 1, sizeof *bounds);
    if (!npy_read(tokens, (struct npy_slice){0, 0, 0, 1, tokens->shape[0]}, NPY_INT64, numbers))
        stage_fail(stage, "%s", tokens->error);
    *count = 0;
    for (int64_t i = 0; i < all; i++)
        if (i % N == 0 || numbers[i - 1] == t->document_end)
            bounds[(*count)++] = i;
    bounds[*count] = all;
    return bounds;
}

/* The slices of packed documents, and where this rank's rows are in theirs. */
static void add_documents(struct transformer *t, const struct ra_model *model,
                          const int64_t *bounds, int64_t count, struct ra_model_batch *inputs)
{
    int64_t n = ra_model_rows(model), ahead = t->model.causal ? 0 : RA_NO_LOOKBACK;
    int64_t *positions = stage_allocate(&t->stage, n, sizeof *positions);
    struct ra_slice *slices = stage_allocate(&t->stage, count, sizeof *slices);
    inputs->slices = slices;
    inputs->slice_count = ra_slices_documents(bounds, count, RA_NO_LOOKBACK, ahead, slices);
    inputs->positions = positions;
    ra_model_positions(model, positions);
    ra_slices_places(bounds, count, n, positions);
}

/* Creates NAME.npy of the results on rank 0, and opens it on all. */
static void create(const struct transformer *t, const struct ra_whole *output, const char *name,
                   int dims, const int64_t *shape, struct npy *file)
{
    char path[RA_WHOLE_PATH + 20];
    snprintf(path, sizeof path, "%s/%s.npy", output->path, name);
    if (t->stage.world.rank == 0 &&
        (!npy_create(file, path, NPY_FLOAT32, dims, shape) || !npy_close(file)))
        stage_fail(&t->stage, "%s", file->error);
    stage_gather(&t->stage, 0);
    if (!npy_edit(file, path))
        stage_fail(&t->stage, "%s (do all ranks see the same files?)", file->error);
}

/* The batches of this problem whose tokens have this many bytes: a rank brings its share of the
 * rows, and gets its positions of the rows of its set. */
static struct ra_batch *open_batch(struct transformer *t, int64_t rows, int64_t length,
                                   int64_t bytes)
{
    const struct stage_world *world = &t->stage.world;
    struct ra_layout layout = {.kind = t->run.layout, .ranks = t->run.ring_size, .length = length};
    layout.stripes = ra_layout_stripes(layout.ranks, length, t->run.bucket);
    int64_t first = rows * world->rank / world->ranks,
            end = rows * (world->rank + 1) / world->ranks;
    char error[RA_ERROR_SIZE];
    struct ra_batch *batch;
    stage_check(
        &t->stage,
        ra_batch_create(&batch, MPI_COMM_WORLD, layout, bytes, end - first, t->run.timeout, error),
        error);
    return batch;
}

/* Writes loss and gradients, which all ranks have alike. */
static void write_shared(struct transformer *t, const struct ra_whole *output, double loss,
                         const float *gradients)
{
    char path[RA_WHOLE_PATH + 20], error[RA_ERROR_SIZE];
    struct npy file;
    float single = (float)loss;
    if (t->stage.world.rank > 0)
        return;
    snprintf(path, sizeof path, "%s/gradients", output->path);
    transformer_make_folder(t, path);
    stage_check(&t->stage, ra_folder_write(path, &t->model, gradients, error), error);
    snprintf(path, sizeof path, "%s/loss.npy", output->path);
    if (!npy_create(&file, path, NPY_FLOAT32, 0, NULL) ||
        !npy_write(&file, (struct npy_slice){0, 0, 0, 1, 1}, NPY_FLOAT32, &single) ||
        !npy_close(&file))
        stage_fail(&t->stage, "%s", file.error);
    printf("loss %.6f\n", loss);
}

/* Fails if one of these logits is not finite. They begin with number `first` of all, whose shape is
 * given. */
static void check_logits(const struct transformer *t, const float *logits, int64_t count,
                         int64_t first, const int64_t shape[3])
{
    for (int64_t e = first; e < first + count; e++)
        if (!isfinite(logits[e - first]))
            stage_fail(&t->stage,
                       "logits[%" PRId64 ", %" PRId64 ", %" PRId64
                       "] is %g: the model has overflowed",
                       e / shape[2] / shape[1], e / shape[2] % shape[1], e % shape[2],
                       (double)logits[e - first]);
}

/* Collects the logits of this rank's rows of the batch from all ranks of their sets, and writes
 * them. */
static void write_logits(struct transformer *t, const struct ra_whole *output,
                         struct ra_model *model, const float *weights, int64_t rows, int64_t length,
                         const int64_t shape[3])
{
    struct stage *stage = &t->stage;
    int64_t V = t->model.vocabulary, n = ra_model_rows(model), count = t->run.batch * n;
    struct ra_batch *batch = open_batch(t, rows, length, V * (int64_t)sizeof(float));
    float *shard = stage_allocate(stage, count * V, sizeof *shard);
    float *logits = stage_allocate(stage, batch->rows * length * V, sizeof *logits);
    char error[RA_ERROR_SIZE];
    struct npy file;
    stage_check(stage, ra_model_logits(model, weights, 0, count, shard), ra_model_error(model));
    stage_check(stage, ra_batch_unshard(batch, shard, logits, error), error);
    check_logits(t, logits, batch->rows * length * V, batch->first * length * V, shape);
    create(t, output, "logits", 3, shape, &file);
    as_rows(&file, rows);
    if (!npy_write(&file, (struct npy_slice){0, 0, batch->first, 1, batch->rows}, NPY_FLOAT32,
                   logits) ||
        !npy_close(&file))
        stage_fail(stage, "%s", file.error);
    ra_batch_destroy(batch);
}

/* Without labels there is neither loss nor gradient, and so no backward to keep anything for. */
static void expect_no_labels(struct transformer *t)
{
    if (t->run.recompute)
        stage_fail(&t->stage, "--recompute: %s has no labels.npy, so there is no backward",
                   t->arguments[0]);
    t->run.forward_only = true;
}

/* Computes loss and gradients, and writes them. */
static void step(struct transformer *t, const struct ra_whole *output, struct ra_model *model,
                 const float *weights, const struct ra_model_batch *inputs)
{
    float *gradients =
        stage_allocate(&t->stage, ra_parameter_numbers(&t->model), sizeof *gradients);
    struct ra_model_loss loss;
    float *placed = transformer_place(t, gradients, ra_parameter_numbers(&t->model));
    char error[RA_ERROR_SIZE];
    stage_check(&t->stage, ra_model_step(model, weights, 1, inputs, placed, &loss),
                ra_model_error(model));
    transformer_fetch(t, placed, gradients, ra_parameter_numbers(&t->model));
    if (!isfinite(loss.mean))
        stage_fail(&t->stage, "the loss is %g: the model has overflowed", loss.mean);
    stage_check(&t->stage, ra_parameters_finite(&t->model, gradients, "gradients", error), error);
    write_shared(t, output, loss.mean, gradients);
    if (loss.labels == 0 && t->stage.world.rank == 0)
        fprintf(stderr, "%s: %s/labels.npy has no label: loss and gradients are 0\n",
                t->stage.program, t->arguments[0]);
}

/* The files of a batch, and their shape; without labels or a mask, if PROBLEM has none. */
struct files {
    struct npy tokens, labels, mask;
    bool has_labels;
    int64_t rows, length;
};

/* Opens them on all ranks, and refuses those that do not fit together, or that have a number out of
 * range. */
static void open_files(struct transformer *t, struct files *files)
{
    int64_t *rows = &files->rows, *length = &files->length;
    *rows = *length = -1;
    open_rows(t, "tokens", false, &files->tokens, rows, length);
    if (files->has_labels)
        open_rows(t, "labels", false, &files->labels, rows, length);
    else
        expect_no_labels(t);
    if (t->run.has_mask)
        open_rows(t, "mask", true, &files->mask, rows, length);
    stage_agree(&t->stage, 1, "the rows of a batch", *rows);
    stage_agree(&t->stage, 1, "the positions of a row", *length);
    scan_rows(t, &files->tokens, false, t->model.vocabulary - 1);
    if (files->has_labels)
        scan_rows(t, &files->labels, true, t->model.vocabulary - 1);
    if (t->run.has_mask)
        scan_rows(t, &files->mask, false, 1);
}

void transformer_step(struct transformer *t)
{
    char error[RA_ERROR_SIZE];
    struct files files = {.has_labels = has(t, t->arguments[0], "labels")};
    t->run.has_mask = has(t, t->arguments[0], "mask");
    const float *weights = transformer_read_model(t, t->arguments[0]);
    open_files(t, &files);
    static const char *const earlier[] = {"logits.npy", "loss.npy", "gradients", "gradients/?*.npy",
                                          NULL};
    struct ra_whole *output = transformer_begin_output(t, RA_WHOLE_FOLDER, earlier);
    if (t->stage.world.rank == 0)
        transformer_make_folder(t, output->path);
    transformer_opened(t);

    int64_t rows = files.rows, length = files.length;
    const int64_t shape[] = {rows, length, t->model.vocabulary}; /* of the logits */
    int64_t *bounds = NULL, documents = 0;
    if (t->document_end >= 0) {
        bounds = pack(t, &files.tokens, &documents);
        t->run.max_slices = documents;
        length *= rows;
        rows = 1;
    }
    weights = transformer_place(t, weights, ra_parameter_numbers(&t->model));
    struct ra_batch *batch = open_batch(t, rows, length, sizeof(int32_t));
    struct ra_model *model;
    t->run.batch = batch->set_rows;
    t->run.length = length;
    stage_check(&t->stage, ra_model_create(&model, &t->model, &t->run, MPI_COMM_WORLD, error),
                error);
    struct ra_model_batch inputs = {
        .size = sizeof inputs, .tokens = read_rows(t, &files.tokens, batch, ra_model_rows(model))};
    if (bounds)
        add_documents(t, model, bounds, documents, &inputs);
    if (files.has_labels)
        inputs.labels = read_rows(t, &files.labels, batch, ra_model_rows(model));
    ra_batch_destroy(batch);
    if (t->run.has_mask) {
        batch = open_batch(t, rows, length, sizeof(bool));
        inputs.mask = read_rows(t, &files.mask, batch, ra_model_rows(model));
        ra_batch_destroy(batch);
    }

    if (files.has_labels)
        step(t, output, model, weights, &inputs);
    else
        stage_check(&t->stage, ra_model_forward(model, weights, &inputs), ra_model_error(model));
    write_logits(t, output, model, weights, rows, length, shape);
    if (!files.has_labels && t->stage.world.rank == 0)
        printf("%s has no labels.npy: wrote logits, no loss and no gradients\n", t->arguments[0]);
    stage_flush(&t->stage); /* a run that could not print has failed, and leaves nothing */
    transformer_publish_output(t, output);
    ra_model_destroy(model);
}
