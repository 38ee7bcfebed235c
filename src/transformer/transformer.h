/* transformer: the commands of 10-transformer, and their flags. Plumbing of chapter 10.
 */
#ifndef TRANSFORMER_H
#define TRANSFORMER_H

#include "ra_model.h"
#include "ra_whole.h"
#include "stage_mpi.h"

/* All that the command line says. */
struct transformer {
    struct stage stage;
    const char *arguments[2]; /* DATA MODEL, PROBLEM RESULT, ... */

    struct ra_model_config model; /* of a new model */
    struct ra_model_run run;
    int64_t feed_multiple; /* hidden / dim */
    const char *lookback;  /* as text: one, or one for each layer */

    /* train */
    int64_t batch, length, accumulate, steps, warmup, seed, save_every;
    double rate, decay, clip, validation;
    bool resume;

    /* generate */
    const char *prompt;
    int64_t count, top_k;
    double temperature, top_p;

    int64_t repeat; /* bench */

    uint64_t given; /* which flags the command line has, as bits */
};

enum transformer_command {
    TRANSFORMER_TRAIN,
    TRANSFORMER_GENERATE,
    TRANSFORMER_STEP,
    TRANSFORMER_EXPORT,
    TRANSFORMER_IMPORT,
    TRANSFORMER_BENCH,
    TRANSFORMER_COMMANDS
};

/* Reads the command line and returns the command that it names. */
enum transformer_command transformer_options(struct transformer *t, int argc, char **argv);

/* Completes and checks the model that the flags describe. */
void transformer_complete_model(struct transformer *t);

/* Returns a flag that was given and does not describe the model that is there, or NULL if all
 * do. */
const char *transformer_other_flag(const struct transformer *t,
                                   const struct ra_model_config *there);

/* Ends the program with "ranks disagree about WHAT of PATH" unless all ranks have the same checksum
 * of what each has read for itself. */
void transformer_agree(const struct transformer *t, const char *what, const char *path,
                       uint64_t sum);
void transformer_agree_model(const struct transformer *t, const char *path, const float *weights);

/* Unless the status is RA_OK, ends the program with the text. */
void transformer_check(const struct transformer *t, enum ra_status status, const char *error);

/* All ranks have read what they were told to. Until now one of them spoke for all, as the same is
 * wrong with all; from now on each speaks for itself. */
void transformer_opened(struct transformer *t);

/* Makes a folder. */
void transformer_make_folder(const struct transformer *t, const char *path);

/* Begins what a command writes, its last argument, on all ranks. This comes before the work, so
 * that a place where nothing can be written is found then. It is removed if any rank fails before
 * it ends. Only rank 0 publishes it. */
struct ra_whole *transformer_begin_output(const struct transformer *t, unsigned how,
                                          const char *const *replaces);
void transformer_end_output(const struct transformer *t, struct ra_whole *output);

/* Reads a model, which is a file or a folder: t->model, and its weights, in memory of the stage. */
float *transformer_read_model(struct transformer *t, const char *path);

/* The commands. */
void transformer_train(struct transformer *t);
void transformer_generate(struct transformer *t);
void transformer_step(struct transformer *t);
void transformer_export(struct transformer *t);
void transformer_import(struct transformer *t);
void transformer_bench(struct transformer *t);

#endif
