/* results: the result files: reserved as hidden files, written by rows, given their names when all
 * are whole.
 */
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "stage_parts.h"

static const char *const result_names[STAGE_RESULTS] = {"o", "lse", "dq", "dk", "dv"};

/* How many of the results this run has. */
static int result_count(const struct stage *stage)
{
    return stage->config.forward_only ? STAGE_DQ : STAGE_RESULTS;
}

/* The final path of a result, or of the hidden file that becomes it. */
static void result_path(const struct stage *stage, enum stage_result result, bool hidden,
                        char path[PATH_MAX])
{
    int length =
        hidden ? snprintf(path, PATH_MAX, "%s/.%s.npy.%ld", stage->result_folder,
                          result_names[result], (long)stage->result_suffix)
               : snprintf(path, PATH_MAX, "%s/%s.npy", stage->result_folder, result_names[result]);
    if (length >= PATH_MAX)
        stage_fail(stage, "%.60s...: the path is too long", stage->result_folder);
}

/* Makes the folder of the results, unless it is there. */
static void create_folder(const struct stage *stage)
{
    const char *folder = stage->result_folder;
    struct stat status;
    if (mkdir(folder, 0777) == 0)
        stage_unfinished_note(STAGE_RESULTS, folder);
    else if (errno != EEXIST)
        stage_fail(stage, "%s: cannot create the result folder: %s", folder, strerror(errno));
    else if (stat(folder, &status) != 0 || !S_ISDIR(status.st_mode))
        stage_fail(stage, "%s: not a folder; RESULT is the folder that gets the results", folder);

    /* A folder in the place of a result would stop stage_close after it has replaced others. */
    for (int r = 0; r < STAGE_RESULTS; r++) {
        char path[PATH_MAX];
        result_path(stage, r, false, path);
        if (lstat(path, &status) == 0 && S_ISDIR(status.st_mode))
            stage_fail(stage, "%s: is a folder; the result needs this name", path);
    }
}

/* Reserves the results as hidden files, so that a full disk or a folder that cannot be written is
 * found before the work and not after it. */
static void create_files(struct stage *stage)
{
    int64_t batches = stage->inputs[STAGE_Q].shape[0];
    for (int r = 0; r < result_count(stage); r++) {
        bool is_lse = r == STAGE_LSE, of_keys = r == STAGE_DK || r == STAGE_DV;
        int64_t rows[] = {batches, stage->N, stage->H, stage->D};
        int64_t keys[] = {batches, stage->M, stage->G, stage->D};
        int64_t lse[] = {batches, stage->H, stage->N};
        char path[PATH_MAX];
        result_path(stage, r, true, path);
        stage_unfinished_note(r, path);
        if (!npy_create(&stage->results[r], path, stage->result_type, is_lse ? 3 : 4,
                        is_lse    ? lse
                        : of_keys ? keys
                                  : rows))
            stage_fail(stage, "%s", stage->results[r].error);
    }
}

/* Opens the files that rank 0 has created. */
static void edit_files(struct stage *stage)
{
    for (int r = 0; r < result_count(stage); r++) {
        char path[PATH_MAX];
        result_path(stage, r, true, path);
        stage_unfinished_note(r, path);
        if (!npy_edit(&stage->results[r], path))
            stage_fail(stage, "%s (do all ranks see the same files?)", stage->results[r].error);
    }
}

void stage_open_results(struct stage *stage)
{
    stage_gather(stage, getpid());
    stage->result_suffix = stage->gathered[0];
    if (stage->world.rank == 0) {
        create_folder(stage);
        create_files(stage);
        stage_create_trace(stage);
    }
    stage_check_all(stage);

    /* The folder is new if rank 0 has made it. */
    stage_gather(stage, stage_unfinished_path(STAGE_RESULTS)[0] != '\0');
    if (stage->gathered[0])
        stage_unfinished_note(STAGE_RESULTS, stage->result_folder);
    if (stage->world.rank > 0)
        edit_files(stage);
    stage_check_all(stage);
}

/* Fails if a result has overflowed, or was never written: the inputs were finite. */
static void check_numbers(struct stage *stage, enum stage_result result, const void *rows,
                          int64_t count)
{
    for (int64_t e = 0; e < count; e++) {
        double number = stage->result_type == NPY_FLOAT64 ? ((const double *)rows)[e]
                                                          : ((const float *)rows)[e];
        if (!isfinite(number) && !(result == STAGE_LSE && number == -INFINITY))
            stage_fail(stage, "%s: %g among the results: scores too large for %s, or never written",
                       result_names[result], number, npy_type_name(stage->result_type));
    }
}

void stage_write(struct stage *stage, enum stage_result result, const void *rows)
{
    /* lse has its positions on the last axis: one run of rows for every batch and head. */
    struct npy *file = &stage->results[result];
    bool of_keys = result == STAGE_DK || result == STAGE_DV;
    const struct ra_span *spans = of_keys ? stage->key_spans : stage->query_spans;
    int64_t count = of_keys ? stage->key_span_count : stage->query_span_count;
    int axis = result == STAGE_LSE ? 2 : 1;
    int64_t heads = result == STAGE_LSE ? stage->H : 1;
    int64_t size = stage->result_type == NPY_FLOAT64 ? sizeof(double) : sizeof(float);
    int64_t row_elements = npy_row_elements(file, axis);
    stage_progress_end();
    check_numbers(stage, result, rows,
                  stage->B * heads * (of_keys ? stage->m : stage->n) * row_elements);

    const char *at = rows;
    for (int64_t outer = 0; outer < stage->B * heads; outer++)
        for (int64_t s = 0; s < count; s++) {
            int64_t whole = stage_whole_batch(stage, outer / heads) * heads + outer % heads;
            struct npy_slice slice = {axis, whole, spans[s].first, spans[s].stride, spans[s].count};
            if (!npy_write(file, slice, stage->result_type, at))
                stage_fail(stage, "%s", file->error);
            at += spans[s].count * row_elements * size;
        }
}

void stage_write_gradients(struct stage *stage, const float *gradients)
{
    stage_write(stage, STAGE_DK, gradients);
    stage_write(stage, STAGE_DV, gradients + stage->B * stage->m * stage->G * stage->D);
}

void stage_close_results(struct stage *stage)
{
    for (int r = 0; r < STAGE_RESULTS; r++)
        if (!npy_close(&stage->results[r]))
            stage_fail(stage, "%s", stage->results[r].error);
}

void stage_rename_results(struct stage *stage)
{
    /* An earlier run's gradients must not stand beside a later run's o, so a forward-only run
     * removes them. */
    stage_unfinished_keep(true);
    for (int r = 0; r < STAGE_RESULTS; r++) {
        char path[PATH_MAX];
        result_path(stage, r, false, path);
        if (!stage_unfinished_path(r)[0])
            unlink(path);
        else if (rename(stage_unfinished_path(r), path) != 0)
            stage_fail(stage, "%s: cannot rename the finished result: %s", path, strerror(errno));
    }
    stage_unfinished_forget();
    stage_unfinished_keep(false);
}
