/* transformer_files: what the commands of 10-transformer read and write, and what all ranks must
 * agree on.
 */
#ifndef TRANSFORMER_FILES_H
#define TRANSFORMER_FILES_H

#include "ra_whole.h"
#include "transformer_options.h"

/* Ends the program with "ranks disagree about WHAT of PATH" unless all ranks have the same checksum
 * of what each has read for itself. */
void transformer_agree(const struct transformer *t, const char *what, const char *path,
                       uint64_t sum);

/* Ends the program unless all ranks have read the same config and weights. */
void transformer_agree_model(const struct transformer *t, const char *path, const float *weights);

/* Says that all ranks have read what they were told to. Until now one of them spoke for all, as the
 * same is wrong with all; from now on each speaks for itself. */
void transformer_opened(struct transformer *t);

/* Makes a folder. */
void transformer_make_folder(const struct transformer *t, const char *path);

/* Begins what a command writes, its last argument, on all ranks. This comes before the work, so
 * that a place where nothing can be written is found then. It is removed if any rank fails before
 * it ends. Only rank 0 publishes it. */
struct ra_whole *transformer_begin_output(const struct transformer *t, unsigned how,
                                          const char *const *replaces);

/* Publishes it when all ranks have written, and ends it on all ranks. The others forget it first:
 * a rank that is ended meanwhile must not remove what is getting its name. */
void transformer_publish_output(const struct transformer *t, struct ra_whole *output);

/* Ends it on all ranks, when rank 0 has published it. */
void transformer_end_output(const struct transformer *t, struct ra_whole *output);

/* Reads a model, which is a file or a folder: t->model, and its weights, in memory of the stage. */
float *transformer_read_model(struct transformer *t, const char *path);

#endif
