/* transformer_step: logits, loss and every gradient of one batch, from files into files. See transformer.h.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ra_folder.h"
#include "stage_parts.h"
#include "transformer.h"

/* Opens FOLDER/NAME.npy, an array (B, N). */
static void open_rows(const struct transformer *t, const char *name, bool flags, struct npy *file,
                      int64_t *batch, int64_t *length)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.npy", t->arguments[0], name);
    if (!npy_open(file, path))
        stage_fail(&t->stage, "%s", file->error);
    if (flags != (file->type == NPY_BOOL) || file->dims != 2 ||
        (*batch >= 0 && (file->shape[0] != *batch || file->shape[1] != *length)))
        stage_fail(&t->stage, "%s: must be %s (batch, length), like all inputs", path,
                   flags ? "bool" : "whole numbers");
    *batch = file->shape[0];
    *length = file->shape[1];
}

/* This rank's rows of it. */
static void read_rows(const struct transformer *t, struct npy *file, int64_t set, int64_t sets,
                      int64_t batch, int64_t n, const int64_t *positions, void *rows)
{
    int64_t size = file->type == NPY_BOOL ? 1 : (int64_t)sizeof(int32_t);
    for (int64_t b = 0; b < batch; b++)
        for (int64_t a = 0; a < n; a++) {
            int64_t whole = 0;
            bool flag = false;
            struct npy_slice slice = {1, b * sets + set, positions[a], 1, 1};
            if (!npy_read(file, slice, size == 1 ? NPY_BOOL : NPY_INT64,
                          size == 1 ? (void *)&flag : (void *)&whole))
                stage_fail(&t->stage, "%s", file->error);
            int32_t token = (int32_t)whole;
            memcpy((char *)rows + (b * n + a) * size, size == 1 ? (void *)&flag : (void *)&token,
                   (size_t)size);
        }
}

void transformer_make_folder(const struct transformer *t, const char *path)
{
    if (mkdir(path, 0777) != 0 && errno != EEXIST)
        stage_fail(&t->stage, "%s: %s", path, strerror(errno));
}

/* Creates FOLDER/NAME.npy on rank 0, and opens it on all. */
static void create(const struct transformer *t, const char *name, int dims, const int64_t *shape,
                   struct npy *file)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.npy", t->arguments[1], name);
    if (t->stage.world.rank == 0) {
        unlink(path);
        if (!npy_create(file, path, NPY_FLOAT32, dims, shape) || !npy_close(file))
            stage_fail(&t->stage, "%s", file->error);
    }
    stage_gather(&t->stage, 0);
    if (!npy_edit(file, path))
        stage_fail(&t->stage, "%s", file->error);
}

void transformer_step(struct transformer *t)
{
    struct stage *stage = &t->stage;
    char path[4096], error[RA_ERROR_SIZE];
    struct npy tokens, labels, mask;
    int64_t batch = -1, length = -1;
    snprintf(path, sizeof path, "%s/mask.npy", t->arguments[0]);
    t->run.has_mask = access(path, F_OK) == 0;
    transformer_check(t, ra_folder_config(t->arguments[0], &t->model, error), error);
    open_rows(t, "tokens", false, &tokens, &batch, &length);
    open_rows(t, "labels", false, &labels, &batch, &length);
    if (t->run.has_mask)
        open_rows(t, "mask", true, &mask, &batch, &length);

    /* Row b S + s of the batch goes to set s of S. */
    int64_t sets = stage->world.ranks / t->run.ring_size,
            set = stage->world.rank / t->run.ring_size;
    t->run.batch = (batch - set + sets - 1) / sets;
    t->run.length = length;
    struct ra_model *model;
    transformer_check(t, ra_model_create(&model, &t->model, &t->run, MPI_COMM_WORLD, error), error);
    int64_t n = ra_model_rows(model), rows = t->run.batch * n, V = t->model.vocabulary;
    int64_t numbers = ra_parameter_numbers(&t->model);
    int64_t *positions = stage_allocate(stage, n, sizeof *positions);
    ra_model_positions(model, positions);
    int32_t *own_tokens = stage_allocate(stage, rows, sizeof *own_tokens);
    int32_t *own_labels = stage_allocate(stage, rows, sizeof *own_labels);
    bool *own_mask = stage_allocate(stage, rows, sizeof *own_mask);
    read_rows(t, &tokens, set, sets, t->run.batch, n, positions, own_tokens);
    read_rows(t, &labels, set, sets, t->run.batch, n, positions, own_labels);
    if (t->run.has_mask)
        read_rows(t, &mask, set, sets, t->run.batch, n, positions, own_mask);

    float *weights = stage_allocate(stage, numbers, sizeof *weights);
    float *gradients = stage_allocate(stage, numbers, sizeof *gradients);
    snprintf(path, sizeof path, "%s/weights", t->arguments[0]);
    transformer_check(t, ra_folder_read(path, &t->model, weights, error), error);
    struct ra_model_batch inputs = {own_tokens, own_labels, t->run.has_mask ? own_mask : NULL};
    double loss;
    transformer_check(t, ra_model_step(model, weights, &inputs, gradients, &loss),
                      ra_model_error(model));

    /* Results: each rank writes its own logits, rank 0 all else. */
    struct npy file;
    if (stage->world.rank == 0) {
        transformer_make_folder(t, t->arguments[1]);
        snprintf(path, sizeof path, "%s/gradients", t->arguments[1]);
        transformer_make_folder(t, path);
        transformer_check(t, ra_folder_write(path, &t->model, gradients, error), error);
    }
    create(t, "logits", 3, (int64_t[]){batch, length, V}, &file);
    float *logits = stage_allocate(stage, V, sizeof *logits);
    for (int64_t a = 0; a < rows; a++) {
        ra_model_logits(model, weights, a, 1, logits);
        struct npy_slice slice = {1, a / n * sets + set, positions[a % n], 1, 1};
        if (!npy_write(&file, slice, NPY_FLOAT32, logits))
            stage_fail(stage, "%s", file.error);
    }
    npy_close(&file);
    create(t, "loss", 0, NULL, &file);
    float single = (float)loss;
    if (stage->world.rank == 0) {
        if (!npy_write(&file, (struct npy_slice){0, 0, 0, 1, 1}, NPY_FLOAT32, &single))
            stage_fail(stage, "%s", file.error);
        printf("loss %.6f\n", loss);
    }
    npy_close(&file);
    ra_model_destroy(model);
}
