/* ra_checkpoint: a model in training, as one file.
 *
 * Chapter 10. New here: a file that is whole or not there. It is written beside its final name, and
 * gets that when every byte is on the disk; a checksum at its end tells what has changed since.
 *
 * The file: the word "ringattn model 2", eight bytes each of text length, numbers and trained; what
 * is known of the training; the config as JSON; the weights and, if it has been trained, the two
 * arrays of the optimizer, float32; a checksum of all that. Little-endian.
 */
#ifndef RA_CHECKPOINT_H
#define RA_CHECKPOINT_H

#include "ra_parameters.h"
#include "ra_whole.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How far the training is, and what must stay so that it can go on to the bit. */
struct ra_training {
    int64_t step, steps, warmup, batch, length, accumulate, seed, tokens;
    double rate, decay, clip, validation;
    uint64_t data; /* ra_tokens_scan's checksum of the tokens, begun with the columns */
};

/* Reads what a file says of its model, without its numbers: `size` is sizeof *config. `training` is
 * all 0 if it has not been trained here. */
RA_CHECKED enum ra_status ra_checkpoint_look(const char *path, struct ra_model_config *config,
                                             size_t size, struct ra_training *training,
                                             char error[RA_ERROR_SIZE]);

/* Reads the arrays, each of ra_parameter_numbers; means and squares may be NULL, and are 0 if the
 * model has not been trained here. A file that is damaged is refused. */
RA_CHECKED enum ra_status ra_checkpoint_read(const char *path, float *weights, float *means,
                                             float *squares, char error[RA_ERROR_SIZE]);

/* Finds out whether the disk has room for a model, before it is trained: reserves the space and
 * gives it back. ra_whole_begin has begun `file`. `learns`: the model has the two arrays of the
 * optimizer. */
RA_CHECKED enum ra_status ra_checkpoint_try(const struct ra_whole *file,
                                            const struct ra_model_config *config, bool learns,
                                            char error[RA_ERROR_SIZE]);

/* Writes a model and publishes `file`: whatever happens, a whole file has its name afterwards, the
 * new one or the one from before. means and squares NULL: a model that is not trained on. Numbers
 * that are not finite are refused as they would be when they are read: a training that overflows
 * leaves the model that was there. Bytes can be written by one rank alone. */
RA_CHECKED enum ra_status ra_checkpoint_write(struct ra_whole *file,
                                              const struct ra_model_config *config,
                                              const struct ra_training *training,
                                              const float *weights, const float *means,
                                              const float *squares, char error[RA_ERROR_SIZE]);

#ifdef __cplusplus
}
#endif

#endif
