/* ra_struct: structs that begin with their size, by which a library knows what its caller's header
 * has. Internal.
 *
 * Chapter 10.
 */
#ifndef RA_STRUCT_H
#define RA_STRUCT_H

#include <stddef.h>
#include "ra_error.h"

/* Copies a caller's struct to `own` of `size` bytes, which has defaults in it: fields that the
 * caller's header lacks keep these, and those that are not known here must be 0. `least` bytes any
 * header has. RA_INVALID: `error` says that it must begin with `init`; `own` may be changed. */
RA_CHECKED enum ra_status ra_struct_take(const char *name, const char *init, void *own, size_t size,
                                         size_t least, const void *given, char *error);

/* The other way: writes `own` to a caller's struct of `given_size` bytes, which gets this size.
 * What is not known here becomes 0. */
void ra_struct_give(void *given, size_t given_size, const void *own, size_t size);

/* Takes the config of a model; and gives one, in which RA_INVALID says that a part of the model is
 * in a field which the caller's header lacks: without it, it would be another model. */
struct ra_model_config;
RA_CHECKED enum ra_status ra_model_config_take(struct ra_model_config *config,
                                               const struct ra_model_config *given, char *error);
RA_CHECKED enum ra_status ra_model_config_give(struct ra_model_config *given, size_t size,
                                               const struct ra_model_config *config, char *error);

#endif
