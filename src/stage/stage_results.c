/* stage_results: the result files: reserved in a hidden folder, and written by rows. The folder
 * becomes RESULT, in one step, when all are whole.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "ra_span.h"
#include "stage.h"
#include "stage_output.h"

static const char *const files[STAGE_RESULTS + 1] = {
    "o.npy", "lse.npy", "dq.npy", "dk.npy", "dv.npy", "d_sink.npy", "largest.npy", NULL};

/* Static, because a signal handler removes it. */
static struct ra_whole results;

enum { FILE_PATH = RA_WHOLE_PATH + 10 };

static const char *path_of(int result, char path[FILE_PATH])
{
    snprintf(path, FILE_PATH, "%s/%s", results.path, files[result]);
    return path;
}

bool stage_writes(const struct stage *stage, enum stage_result result)
{
    if (result == STAGE_LARGEST)
        return stage->largest;
    if (result == STAGE_D_SINK && !stage_has(stage, STAGE_SINK))
        return false;
    return result < STAGE_DQ || !stage->config.forward_only;
}

/* Rank 0 reserves the results in the hidden folder, so that a full disk or a folder that cannot be
 * written is found before the work and not after it. No stage waits for the disk, as that can take
 * longer than the run. */
static void create_files(struct stage *stage)
{
    char path[FILE_PATH];
    if (mkdir(results.path, 0777) != 0)
        stage_fail(stage, "%s: %s", results.path, strerror(errno));
    int64_t B = stage->inputs[STAGE_Q].shape[0];
    int64_t queries[] = {B, stage->N, stage->H, stage->D},
            keys[] = {B, stage->M, stage->G, stage->D};
    int64_t outputs[] = {B, stage->N, stage->H, stage->Dv},
            values[] = {B, stage->M, stage->G, stage->Dv};
    int64_t lse[] = {B, stage->H, stage->N};
    const struct {
        int dims;
        const int64_t *shape;
    } shapes[STAGE_RESULTS] = {
        [STAGE_O] = {4, outputs},        [STAGE_LSE] = {3, lse},   [STAGE_DQ] = {4, queries},
        [STAGE_DK] = {4, keys},          [STAGE_DV] = {4, values}, [STAGE_D_SINK] = {1, &stage->H},
        [STAGE_LARGEST] = {1, &stage->H}};
    for (int r = 0; r < STAGE_RESULTS; r++) {
        if (stage_writes(stage, r) &&
            !npy_create(&stage->results[r], path_of(r, path), stage->result_type, shapes[r].dims,
                        shapes[r].shape))
            stage_fail(stage, "%s", stage->results[r].error);
    }
}

/* The other ranks open the files that rank 0 has created. */
static void edit_files(struct stage *stage)
{
    char path[FILE_PATH];
    for (int r = 0; r < STAGE_RESULTS; r++)
        if (stage_writes(stage, r) && !npy_edit(&stage->results[r], path_of(r, path)))
            stage_fail(stage, "%s (do all ranks see the same files?)", stage->results[r].error);
}

void stage_open_results(struct stage *stage)
{
    stage_begin_output(stage, &results, stage->result_folder, RA_WHOLE_FOLDER | RA_WHOLE_HASTY,
                       files, true, "");
    if (stage->world.rank == 0)
        create_files(stage);
    stage_check_all(stage);
    if (stage->world.rank > 0)
        edit_files(stage);
    stage_check_all(stage);
    stage_open_trace(stage);
}

void stage_name_results(struct stage *stage)
{
    stage_name_output(stage, &results, "");
}

/* Fails if a result has overflowed, or was never written: the inputs were finite. */
static void check_numbers(struct stage *stage, enum stage_result result, const void *rows,
                          int64_t count)
{
    for (int64_t e = 0; e < count; e++) {
        double number = stage->result_type == NPY_FLOAT64 ? ((const double *)rows)[e]
                                                          : ((const float *)rows)[e];
        bool may_be_empty = result == STAGE_LSE || result == STAGE_LARGEST;
        if (!isfinite(number) && !(may_be_empty && number == -INFINITY))
            stage_fail(stage,
                       "%s: %g among the results: too large for %s (scores, sums of values or "
                       "gradients), or never written",
                       files[result], number, npy_type_name(stage->result_type));
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

void stage_write_heads(struct stage *stage, enum stage_result result, const double *numbers)
{
    struct npy *file = &stage->results[result];
    struct npy_slice all = {0, 0, 0, 1, stage->H};
    stage_progress_end();
    for (int64_t h = 0; h < stage->H; h++)
        if (isnan(numbers[h]) || numbers[h] == INFINITY)
            stage_fail(stage, "%s: %g among the results", files[result], numbers[h]);
    if (stage->world.rank == 0 && !npy_write(file, all, NPY_FLOAT64, numbers))
        stage_fail(stage, "%s", file->error);
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
