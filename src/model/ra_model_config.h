/* ra_model_config: the shape of a model as text, which is config.json of a folder and a part of
 * every checkpoint.
 *
 * Chapter 10.
 */
#ifndef RA_MODEL_CONFIG_H
#define RA_MODEL_CONFIG_H

#include <stddef.h>
#include "ra_parameters.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Reads a JSON object whose keys page 10e lists; others are refused, with the nearest that is
 * known. `size` is sizeof *config. `name` is of the text, in errors. Where the keys are those of
 * ring-attention-pytorch, its defaults hold for what is left out, and `note` is one line that says
 * so, or "". What is left open otherwise is refused, and so is a model with a part for which an
 * older header's struct has no field. */
RA_CHECKED enum ra_status ra_model_config_read(const char *name, const char *text,
                                               struct ra_model_config *config, size_t size,
                                               char note[RA_ERROR_SIZE], char error[RA_ERROR_SIZE]);

/* Writes the text, and returns its length, as snprintf does; -1 if the config has not begun with
 * ra_model_config_init. */
int ra_model_config_write(const struct ra_model_config *config, char *text, size_t size);

#ifdef __cplusplus
}
#endif

#endif
