/* ra_model_config: the shape of a model as text, which is config.json of a folder and a part of every checkpoint.
 *
 * Chapter 10.
 */
#ifndef RA_MODEL_CONFIG_H
#define RA_MODEL_CONFIG_H

#include <stddef.h>
#include "ra_parameters.h"

/* Reads a JSON object, of which these keys mean something: num_tokens, dim, depth, heads, dim_head; and if
 * they are there num_grouped_query_heads (query heads that share keys), causal, head_map, softcap, lookback (a
 * list, null: none), rotary_theta, rotary_scale, tied, ff_mult. Others are left alone. `name` is of the text,
 * in errors. */
RA_CHECKED enum ra_status ra_model_config_read(const char *name, const char *text,
                                               struct ra_model_config *config,
                                               char error[RA_ERROR_SIZE]);

/* Writes the text, and returns its length, as snprintf does. */
int ra_model_config_write(const struct ra_model_config *config, char *text, size_t size);

#endif
