/* ra_decoder: goes on with a text, token by token, over keys and values that are sharded over the
 * ranks.
 *
 * Chapter 10. New here: the past of a text is its keys and values, which do not change as it grows.
 * A prompt goes through the ring once, and leaves them where they are; each new token attends to
 * all of them by tree decoding. All else of a token is computed by all ranks alike, so that all
 * know the next one.
 */
#ifndef RA_DECODER_H
#define RA_DECODER_H

#include "ra_model.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ra_decoder;

/* Makes a decoder for texts of up to run->length tokens in all, on all ranks of comm as one ring,
 * that gets up to `most_new` tokens at once. It is causal, and of one text. Of run also threads,
 * timeout, cache_type, prompt_rows, device and, with one, type, transport and deterministic matter.
 * After RA_LOST, here and below, all is as in ra_model.h. */
RA_CHECKED enum ra_status ra_decoder_create(struct ra_decoder **decoder,
                                            const struct ra_model_config *config,
                                            const struct ra_model_run *run, int64_t most_new,
                                            MPI_Comm comm, char error[RA_ERROR_SIZE]);
void ra_decoder_destroy(struct ra_decoder *decoder);
const char *ra_decoder_error(const struct ra_decoder *decoder);

/* Counts the tokens that there are so far, and the bytes that this rank holds. */
int64_t ra_decoder_length(const struct ra_decoder *decoder);
int64_t ra_decoder_bytes(const struct ra_decoder *decoder);

/* Begins with a text of `count` tokens, at least 1, the same on all ranks, through the ring: each
 * rank computes its own share of them, in pieces of run->prompt_rows rows; but with a device, or a
 * cache_type of 16 bits, all at once. logits (V) are those of the token that comes next, the same
 * on all ranks. RA_INVALID of a token that is none leaves the text that there was; after any other
 * error begin with a prompt again. */
RA_CHECKED enum ra_status ra_decoder_prompt(struct ra_decoder *decoder, const float *weights,
                                            int64_t count, const int32_t *tokens, float *logits);

/* Adds `count` tokens, at most most_new, and gets the logits of what comes after each: (count,
 * V). */
RA_CHECKED enum ra_status ra_decoder_add(struct ra_decoder *decoder, const float *weights,
                                         int64_t count, const int32_t *tokens, float *logits);

#ifdef __cplusplus
}
#endif

#endif
