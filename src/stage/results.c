/* results: the result files: reserved in a hidden folder, and written by rows. publish.c gives that
 * folder its name when all are whole.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "stage_parts.h"

int stage_result_count(const struct stage *stage)
{
    return stage->config.forward_only ? STAGE_DQ : STAGE_RESULTS;
}

/* Finds where RESULT is, or will be, and clears up after runs into it that were killed. */
static void find_folder(struct stage *stage)
{
    struct stat status;
    if (!stage_resolve(stage->result_folder, stage->result))
        stage_fail(stage, "%s: cannot create the result folder: %s", stage->result_folder,
                   strerror(errno));
    if (stage->world.rank > 0)
        return;
    bool there = lstat(stage->result, &status) == 0;
    if (there && !S_ISDIR(status.st_mode))
        stage_fail(stage, "%s: not a folder; RESULT is the folder that gets the results",
                   stage->result_folder);
    if (there && access(stage->result, R_OK) != 0)
        stage_fail(stage, "%s: %s", stage->result_folder, strerror(errno));
    stage_check_names(stage);
    stage_hidden_clear(stage->result, false);
    stage_hidden_clear(stage->result, true);
}

/* Notes the path of the hidden folder; inside RESULT if it cannot be beside it. */
static void note_folder(struct stage *stage)
{
    if (!stage_hidden_path(stage->result, stage->inside, stage->hidden_number, stage->hidden))
        stage_fail(stage, "%.60s...: the path is too long", stage->result);
    stage_unfinished_results(stage->hidden);
}

/* Makes the hidden folder beside RESULT, to be exchanged with it. A RESULT that exists must have
 * room for new files; and a folder that cannot move from there to beside it, because RESULT is a
 * mount or nobody may write around it, could not be exchanged either: it stays inside. */
static void create_folder(struct stage *stage)
{
    struct stat status;
    stage->inside = lstat(stage->result, &status) == 0;
    note_folder(stage);
    if (mkdir(stage->hidden, 0777) != 0)
        stage_fail(stage, "%s: cannot create the result folder: %s",
                   stage->inside ? stage->hidden : stage->result_folder, strerror(errno));
    char beside[PATH_MAX];
    if (stage->inside && stage_hidden_path(stage->result, false, stage->hidden_number, beside) &&
        rename(stage->hidden, beside) == 0) {
        stage->inside = false;
        note_folder(stage);
    }
}

/* Locks the results, for as long as stage->result_lock is open. False if another run was faster. */
static bool lock_results(struct stage *stage)
{
    const struct npy *file = &stage->results[STAGE_O];
    stage->result_lock = fcntl(file->fd, F_DUPFD_CLOEXEC, 0);
    if (stage->result_lock < 0)
        stage_fail(stage, "%s: %s", file->path, strerror(errno));
    if (stage_hidden_own(stage->result_lock))
        return true;
    close(stage->result_lock);
    return false;
}

/* Reserves the results in the hidden folder, so that a full disk or a folder that cannot be written
 * is found before the work and not after it. False if another run cleared the folder away before it
 * was locked. */
static bool create_files(struct stage *stage)
{
    int64_t batches = stage->inputs[STAGE_Q].shape[0];
    create_folder(stage);
    for (int r = 0; r < stage_result_count(stage); r++) {
        bool is_lse = r == STAGE_LSE, of_keys = r == STAGE_DK || r == STAGE_DV;
        int64_t rows[] = {batches, stage->N, stage->H, stage->D};
        int64_t keys[] = {batches, stage->M, stage->G, stage->D};
        int64_t lse[] = {batches, stage->H, stage->N};
        struct npy *file = &stage->results[r];
        const int64_t *shape = is_lse ? lse : of_keys ? keys : rows;
        bool created =
            npy_create(file, stage_unfinished_result(r), stage->result_type, is_lse ? 3 : 4, shape);
        bool cleared = !created && access(stage->hidden, F_OK) != 0 && errno == ENOENT;
        if (created && r == STAGE_O)
            cleared = !lock_results(stage);
        if (cleared)
            return false;
        if (!created)
            stage_fail(stage, "%s", file->error);
    }
    return true;
}

/* Opens the files that rank 0 has created. */
static void edit_files(struct stage *stage)
{
    note_folder(stage);
    for (int r = 0; r < stage_result_count(stage); r++)
        if (!npy_edit(&stage->results[r], stage_unfinished_result(r)))
            stage_fail(stage, "%s (do all ranks see the same files?)", stage->results[r].error);
}

void stage_open_results(struct stage *stage)
{
    find_folder(stage);
    if (stage->world.rank == 0)
        do {
            stage_unfinished_remove();
            stage_close_results(stage);
            stage->hidden_number = stage_hidden_number(stage);
        } while (!create_files(stage));
    stage_check_all(stage);

    /* Where it stands, by what number. */
    stage_gather(stage, stage->hidden_number);
    stage->hidden_number = stage->gathered[0];
    stage_gather(stage, stage->inside);
    stage->inside = stage->gathered[0];
    if (stage->world.rank > 0)
        edit_files(stage);
    stage_check_all(stage);
    stage_open_trace(stage);
}

/* Fails if a result has overflowed, or was never written: the inputs were finite. */
static void check_numbers(struct stage *stage, enum stage_result result, const void *rows,
                          int64_t count)
{
    for (int64_t e = 0; e < count; e++) {
        double number = stage->result_type == NPY_FLOAT64 ? ((const double *)rows)[e]
                                                          : ((const float *)rows)[e];
        if (!isfinite(number) && !(result == STAGE_LSE && number == -INFINITY))
            stage_fail(stage,
                       "%s: %g among the results: too large for %s (scores, sums of values or "
                       "gradients), or never written",
                       stage_result_files[result], number, npy_type_name(stage->result_type));
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
