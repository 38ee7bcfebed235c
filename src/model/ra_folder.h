/* ra_folder: a model as a folder that other programs read and write: config.json, and one .npy file
 * for each array of weights, by its name.
 *
 * Chapter 10. New here: weights that were trained elsewhere. Names and shapes are those of
 * ring-attention-pytorch: token_emb.weight.npy, layers.0.0.to_qkv.1.weight.npy, ....
 */
#ifndef RA_FOLDER_H
#define RA_FOLDER_H

#include "ra_parameters.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads FOLDER/config.json: see ra_model_config_read. */
RA_CHECKED enum ra_status ra_folder_config(const char *folder, struct ra_model_config *config,
                                           char note[RA_ERROR_SIZE], char error[RA_ERROR_SIZE]);

/* Reads all weights of this model from NAME.npy in a folder, into an array of all; and writes them
 * there, float32: a file that is there already is an error, and is left alone, like all else in the
 * folder. */
RA_CHECKED enum ra_status ra_folder_read(const char *folder, const struct ra_model_config *config,
                                         float *weights, char error[RA_ERROR_SIZE]);
RA_CHECKED enum ra_status ra_folder_write(const char *folder, const struct ra_model_config *config,
                                          const float *weights, char error[RA_ERROR_SIZE]);

#ifdef __cplusplus
}
#endif

#endif
