/* transformer_convert: models from files to folders, and back. See transformer_convert.h. */
#include "transformer_convert.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "ra_checkpoint.h"
#include "ra_folder.h"
#include "ra_model_config.h"
#include "transformer_files.h"

/* Writes config.json. */
static void write_config(const struct transformer *t, const char *folder, const char *text)
{
    char path[RA_WHOLE_PATH + 20];
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *file = fopen(path, "wx");
    bool written = file && fputs(text, file) != EOF;
    if (!file || fclose(file) != 0 || !written)
        stage_fail(&t->stage, "%s: cannot be written: %s", path, strerror(errno));
}

/* Writes a model into a new folder, in the form of its family. */
static void write_folder(const struct transformer *t, const char *folder, const char *text,
                         const float *weights)
{
    char path[RA_WHOLE_PATH + 20], error[RA_ERROR_SIZE];
    transformer_make_folder(t, folder);
    write_config(t, folder, text);
    if (t->safetensors) {
        stage_check(&t->stage,
                    ra_folder_store(folder, &t->model, weights, t->bfloat16, t->shard, error),
                    error);
        return;
    }
    snprintf(path, sizeof path, "%s/weights", folder);
    transformer_make_folder(t, path);
    stage_check(&t->stage, ra_folder_write(path, &t->model, weights, error), error);
}

void transformer_export(struct transformer *t)
{
    char error[RA_ERROR_SIZE], text[1 << 15];
    const float *weights = transformer_read_model(t, t->arguments[0]);
    t->safetensors =
        t->safetensors || t->bfloat16 || t->shard > 0 || t->model.family != RA_FAMILY_ORIGINAL;
    stage_check(&t->stage, ra_folder_describe(&t->model, t->bfloat16, text, sizeof text, error),
                error);
    struct ra_whole *output = transformer_begin_output(t, RA_WHOLE_FOLDER, NULL);
    transformer_opened(t);
    if (t->stage.world.rank == 0)
        write_folder(t, output->path, text, weights);
    transformer_publish_output(t, output);
}

void transformer_import(struct transformer *t)
{
    char error[RA_ERROR_SIZE];
    const float *weights = transformer_read_model(t, t->arguments[0]);
    struct ra_whole *output = transformer_begin_output(t, RA_WHOLE_NEW | RA_WHOLE_ALONE, NULL);
    transformer_opened(t);
    if (t->stage.world.rank == 0)
        stage_check(&t->stage,
                    ra_checkpoint_write(output, &t->model, NULL, weights, NULL, NULL, error),
                    error);
    transformer_end_output(t, output);
}
