/* ra_config_check: what a caller asks for, checked; and whether all ranks ask for the same.
 *
 * Chapter 08.
 */
#ifndef RA_CONFIG_CHECK_H
#define RA_CONFIG_CHECK_H

#include "ra_options.h"
#include "ring_attention.h"

/* Copies the caller's config, whatever size it has: an older header's lacks fields, which get their
 * defaults; of a newer one's those that this library does not know must be 0. RA_INVALID: `error`
 * (RA_ERROR_SIZE characters) says what is wrong. */
enum ra_status ra_config_copy(struct ra_config *config, const struct ra_config *given, char *error);

/* Copies and checks the caller's config, with all defaults filled in: M, G, D_v, scale, tiles of at
 * most N and M rows; ring_size stays 0 if it was, and lookback is RA_BAND_FAR if there is no limit.
 * RA_INVALID: `error` (RA_ERROR_SIZE characters) names the field. */
enum ra_status ra_config_read(struct ra_config *config, const struct ra_config *given, char *error);

/* Returns how many numbers of a head rows have under a config, whether it has been read or not. */
static inline struct ra_dims ra_config_dims(const struct ra_config *config)
{
    return (struct ra_dims){config->dim, config->dim_value ? config->dim_value : config->dim};
}

/* Counts the ranks that exchange heads with each other under a config whose ring_size is known:
 * 1: keys move instead. */
static inline int ra_config_group(const struct ra_config *config)
{
    if (config->method == RA_EXCHANGED_HEADS)
        return config->ring_size;
    return config->method == RA_HYBRID ? config->group : 1;
}

/* Checks the method of a config that has been read, once its ring_size is known, and fills in group
 * and inner; `sharing` ranks share the processors of this one's host. */
enum ra_status ra_config_read_method(struct ra_config *config, int sharing, char *error);

/* Reads the values of all fields that ranks compare; 0 for an option that is no field. */
void ra_config_values(const struct ra_config *config, int64_t values[RA_OPTIONS]);

/* Compares the values of rank 0 with those of rank `rank`: RA_DISAGREEMENT if they differ, and the
 * text names the field. */
enum ra_status ra_config_compare(const int64_t first[RA_OPTIONS], const int64_t other[RA_OPTIONS],
                                 int rank, char *error);

#endif
