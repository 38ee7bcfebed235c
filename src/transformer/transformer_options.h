/* transformer_options: the commands of 10-transformer, and their flags. Plumbing of chapter 10. */
#ifndef TRANSFORMER_OPTIONS_H
#define TRANSFORMER_OPTIONS_H

#include "ra_model.h"
#include "ra_tokens.h"
#include "stage_mpi.h"

/* All that the command line says. */
struct transformer {
    struct stage stage;
    const char *arguments[2]; /* DATA MODEL, PROBLEM RESULT, ... */

    struct ra_model_config model; /* of a new model */
    struct ra_model_run run;
    int64_t feed_multiple; /* hidden / dim */
    const char *lookback;  /* as text: one, or one for each layer */
    const char *biases;    /* as text: where there are some */

    enum ra_token_type token_type; /* train, generate: of a file that does not say it */
    int64_t document_end;          /* train, step, generate: a token, or -1 */
    bool eos;                      /* generate: tokens that end a text are named by FOLDER */
    bool deal;                     /* with document_end: no layout was asked for */

    /* train */
    int64_t batch, length, accumulate, steps, warmup, seed, save_every;
    double rate, decay, clip, validation;
    bool resume;

    /* generate */
    const char *prompt, *prompt_file; /* one of them is NULL */
    int64_t count, top_k;
    double temperature, top_p;

    int64_t repeat; /* bench */

    /* export */
    bool safetensors, bfloat16;
    int64_t shard;

    bool given[80]; /* by option: does the command line have it? */
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

#endif
