/* ra_model_struct: the shape of a model, whatever size the header of a caller gives its struct.
 * Internal.
 *
 * Chapter 10.
 */
#ifndef RA_MODEL_STRUCT_H
#define RA_MODEL_STRUCT_H

#include "ra_error.h"
#include "ra_parameters.h"

/* Copies a caller's config: fields that its header lacks get their defaults. RA_INVALID: it did not
 * begin with ra_model_config_init, or has a field that is not known here; `error` says so. */
RA_CHECKED enum ra_status ra_model_config_take(struct ra_model_config *config,
                                               const struct ra_model_config *given, char *error);

/* Returns `given` itself if its header is this one; otherwise takes it as ra_model_config_take
 * does, and returns `room` with the copy. NULL for RA_INVALID. */
const struct ra_model_config *ra_model_config_view(const struct ra_model_config *given,
                                                   struct ra_model_config *room, char *error);

/* Gives a config to a caller, whose struct has `size` bytes. RA_INVALID: a part of the model is in
 * a field which the caller's header lacks: without it, it would be another model. */
RA_CHECKED enum ra_status ra_model_config_give(struct ra_model_config *given, size_t size,
                                               const struct ra_model_config *config, char *error);

/* Refuses a NaN or an Inf in an array of `columns` columns, 0: a vector. */
RA_CHECKED enum ra_status ra_numbers_finite(const char *where, const char *name, int64_t columns,
                                            int64_t count, const float *numbers, char *error);

/* Returns the weights of a layer and those outside of layers: what ra_model_layer_weights
 * and ra_model_end_weights write, of a config that was taken. */
struct ra_layer_weights ra_places_of_layer(const struct ra_model_config *config, const float *all,
                                           int64_t layer);
struct ra_end_weights ra_places_of_ends(const struct ra_model_config *config, const float *all);

#endif
