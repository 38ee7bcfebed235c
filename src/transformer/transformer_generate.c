/* transformer_generate: goes on with a text. See transformer_generate.h. */
#include "transformer_generate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_clock.h"
#include "ra_decoder.h"
#include "ra_sample.h"
#include "transformer_files.h"

/* The prompt as tokens: of a model of bytes its bytes, of any other whole numbers between
 * blanks. */
static int64_t read_prompt(struct transformer *t, int32_t *tokens)
{
    int64_t count = 0;
    bool bytes = t->model.vocabulary == 256;
    const char *at = t->prompt;
    for (; bytes && at[count]; count++)
        tokens[count] = (unsigned char)at[count];
    while (!bytes && *(at += strspn(at, " \t\n"))) {
        char *end;
        long long token = strtoll(at, &end, 10);
        if (end == at || token < 0 || token >= t->model.vocabulary)
            stage_fail(&t->stage, "--prompt: %.*s is no token of this model; give 0 to %" PRId64,
                       (int)strcspn(at, " \t\n"), at, t->model.vocabulary - 1);
        tokens[count++] = (int32_t)token;
        at = end;
    }
    if (count == 0)
        stage_fail(&t->stage, "--prompt: give a text to go on with%s",
                   bytes ? "" : ", as numbers of tokens");
    return count;
}

/* Prints a token, as a byte or a number. Ends the run if it cannot be written. */
static void print_token(const struct transformer *t, int32_t token)
{
    if (t->stage.world.rank > 0)
        return;
    if (t->model.vocabulary == 256)
        putchar(token);
    else
        printf("%" PRId32 " ", token);
    stage_flush(&t->stage);
}

void transformer_generate(struct transformer *t)
{
    struct stage *stage = &t->stage;
    char error[RA_ERROR_SIZE];
    const float *weights = transformer_read_model(t, t->arguments[0]);
    int32_t *tokens = stage_allocate(stage, (int64_t)strlen(t->prompt) + 1, sizeof *tokens);
    int64_t count = read_prompt(t, tokens), V = t->model.vocabulary, next;
    float *logits = stage_allocate(stage, V, sizeof *logits);
    struct ra_sample_choice *choices = stage_allocate(stage, V, sizeof *choices);
    struct ra_sample how = {t->temperature, t->top_k, t->top_p, (uint64_t)t->seed};
    struct ra_decoder *decoder;
    transformer_opened(t);
    t->run.length = count + t->count;
    stage_check(stage, ra_decoder_create(&decoder, &t->model, &t->run, 1, MPI_COMM_WORLD, error),
                error);
    double began = ra_seconds(), prompted;
    stage_check(stage, ra_decoder_prompt(decoder, weights, count, tokens, logits),
                ra_decoder_error(decoder));
    prompted = ra_seconds();
    for (int64_t i = 0; i < count; i++)
        print_token(t, tokens[i]);
    for (int64_t i = 0; i < t->count; i++) {
        stage_check(stage, ra_sample_draw(&how, (uint64_t)i, V, logits, choices, &next, error),
                    error);
        int32_t token = (int32_t)next;
        print_token(t, token);
        if (i < t->count - 1)
            stage_check(stage, ra_decoder_add(decoder, weights, 1, &token, logits),
                        ra_decoder_error(decoder));
    }
    if (stage->world.rank == 0) {
        putchar('\n');
        fprintf(stderr, "prompt %.3f s, %.2f ms per token, %" PRId64 " bytes on a rank\n",
                prompted - began,
                1e3 * (ra_seconds() - prompted) / (double)(t->count + (t->count == 0)),
                ra_decoder_bytes(decoder));
    }
    ra_decoder_destroy(decoder);
}
