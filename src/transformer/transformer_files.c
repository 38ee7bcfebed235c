/* transformer_files: what the commands of 10-transformer read and write, and what all ranks must
 * agree on. See transformer_files.h.
 */
#include "transformer_files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include "ra_checkpoint.h"
#include "ra_checksum.h"
#include "ra_folder.h"
#include "ra_model_config.h"
#include "stage_output.h"

void transformer_agree(const struct transformer *t, const char *what, const char *path,
                       uint64_t sum)
{
    int other = stage_other(&t->stage, (int64_t)sum);
    if (other > 0)
        stage_fail(&t->stage, "ranks disagree about %s of %s: rank %d has read others than rank 0",
                   what, path, other);
}

void transformer_agree_model(const struct transformer *t, const char *path, const float *weights)
{
    char text[1 << 15] = "";
    int length = ra_model_config_write(&t->model, text, sizeof text);
    size_t bytes = (size_t)ra_parameter_numbers(&t->model) * sizeof *weights;
    transformer_agree(t, "sizes or settings", path, ra_checksum(0, text, (size_t)length));
    transformer_agree(t, "weights", path, ra_checksum(0, weights, bytes));
}

void transformer_opened(struct transformer *t)
{
    stage_check_all(&t->stage);
    stage_opened(&t->stage);
}

struct ra_whole *transformer_begin_output(const struct transformer *t, unsigned how,
                                          const char *const *replaces)
{
    static struct ra_whole output; /* as a signal handler removes it */

    /* Files in a folder are written by all ranks; a single file only by the first. */
    stage_begin_output(&t->stage, &output, t->arguments[1], how, replaces, how & RA_WHOLE_FOLDER,
                       "");
    return &output;
}

void transformer_publish_output(const struct transformer *t, struct ra_whole *output)
{
    char error[RA_ERROR_SIZE];
    if (t->stage.world.rank > 0)
        ra_whole_forget(output);
    stage_gather(&t->stage, 0);
    if (t->stage.world.rank == 0)
        stage_check(&t->stage, ra_whole_publish(output, error), error);
    transformer_end_output(t, output);
}

void transformer_end_output(const struct transformer *t, struct ra_whole *output)
{
    /* The other ranks have written, and remove nothing from here on. */
    if (t->stage.world.rank > 0)
        ra_whole_forget(output);
    stage_gather(&t->stage, 0);
    ra_whole_end(output);
}

void transformer_make_folder(const struct transformer *t, const char *path)
{
    if (mkdir(path, 0777) != 0)
        stage_fail(&t->stage, "%s: %s", path, strerror(errno));
}

/* A path that is not there is no folder: as a file it will be refused. */
static bool is_folder(const struct transformer *t, const char *path)
{
    struct stat status;
    bool there = stat(path, &status) == 0;
    if (!there && errno != ENOENT)
        stage_fail(&t->stage, "%s: %s", path, strerror(errno));
    return there && S_ISDIR(status.st_mode);
}

float *transformer_read_model(struct transformer *t, const char *path)
{
    char error[RA_ERROR_SIZE], note[RA_ERROR_SIZE] = "";
    struct ra_training training;
    bool folder = is_folder(t, path);
    enum ra_status status =
        folder ? ra_folder_config(path, &t->model, sizeof t->model, note, error)
               : ra_checkpoint_look(path, &t->model, sizeof t->model, &training, error);
    stage_check(&t->stage, status, error);
    float *weights = stage_allocate(&t->stage, ra_parameter_numbers(&t->model), sizeof *weights);
    status = folder ? ra_folder_weights(path, &t->model, weights, error)
                    : ra_checkpoint_read(path, weights, NULL, NULL, error);
    stage_check(&t->stage, status, error);
    transformer_agree_model(t, path, weights);
    if (*note && t->stage.world.rank == 0)
        fprintf(stderr, "%s: %s\n", t->stage.program, note);
    return weights;
}
