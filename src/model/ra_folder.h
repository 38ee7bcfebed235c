/* ra_folder: a model as a folder that other programs read and write: config.json, and its weights,
 * as .safetensors files or as a folder "weights" with one .npy file for each array, by its name.
 *
 * Chapter 10. New here: weights that were trained elsewhere. Names and shapes are those of the
 * model's family: see ra_family.h.
 */
#ifndef RA_FOLDER_H
#define RA_FOLDER_H

#include <stddef.h>
#include "ra_parameters.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads FOLDER/config.json: see ra_model_config_read. */
RA_CHECKED enum ra_status ra_folder_config(const char *folder, struct ra_model_config *config,
                                           size_t size, char note[RA_ERROR_SIZE],
                                           char error[RA_ERROR_SIZE]);

/* Reads which tokens end a text, at most `most` of them, into `tokens`, which is the caller's:
 * eos_token_id, a number or a list, of FOLDER/generation_config.json, or if that has none, of
 * config.json. RA_INVALID: neither has one, or one is not below
 * `vocabulary`. */
RA_CHECKED enum ra_status ra_folder_ends(const char *folder, int64_t vocabulary, int most,
                                         int32_t *tokens, int *count, char error[RA_ERROR_SIZE]);

/* Reads all weights of this model from NAME.npy in a folder, into an array of all; and writes them
 * there, float32: a file that is there already is an error, and is left alone, like all else in the
 * folder. */
RA_CHECKED enum ra_status ra_folder_read(const char *folder, const struct ra_model_config *config,
                                         float *weights, char error[RA_ERROR_SIZE]);
RA_CHECKED enum ra_status ra_folder_write(const char *folder, const struct ra_model_config *config,
                                          const float *weights, char error[RA_ERROR_SIZE]);

/* Reads all weights of this model from what FOLDER has: model.safetensors, or its shards and their
 * index, or weights/NAME.npy. Every array there must be one of the model's; but the table of tied
 * logits and the frequencies of rotations may be there, if they are what the config says. */
RA_CHECKED enum ra_status ra_folder_weights(const char *folder,
                                            const struct ra_model_config *config, float *weights,
                                            char error[RA_ERROR_SIZE]);

/* Writes what config.json must have, as the package of the model's family reads it, into a text of
 * `size` characters. RA_INVALID: the family has no such model, which `error` says, or the text does
 * not fit. */
RA_CHECKED enum ra_status ra_folder_describe(const struct ra_model_config *config, bool bfloat16,
                                             char *text, size_t size, char error[RA_ERROR_SIZE]);

/* Writes all weights of this model there: model.safetensors, or, if they have more than `most`
 * bytes (0: never), shards of at most that, or of one array, and their index. Nothing may have
 * these names. They are float32, or rounded to bfloat16. */
RA_CHECKED enum ra_status ra_folder_store(const char *folder, const struct ra_model_config *config,
                                          const float *weights, bool bfloat16, int64_t most,
                                          char error[RA_ERROR_SIZE]);

#ifdef __cplusplus
}
#endif

#endif
