/* ra_config_check: what a caller asks for, checked; and whether all ranks ask for the same.
 *
 * Chapter 08.
 */
#ifndef RA_CONFIG_CHECK_H
#define RA_CONFIG_CHECK_H

#include "ra_options.h"
#include "ring_attention.h"

/* Copies the caller's config, whose size may be that of an older or newer header, with all defaults
 * filled in: M, G, scale, tiles of at most N and M rows; ring_size stays 0 if it was, and lookback
 * is RA_BAND_FAR if there is no limit. RA_INVALID: `error` (RA_ERROR_SIZE characters) names the
 * field. */
enum ra_status ra_config_read(struct ra_config *config, const struct ra_config *given, char *error);

/* Writes the text of an error; returns RA_INVALID. */
__attribute__((format(printf, 2, 3))) enum ra_status ra_refuse(char *error, const char *format,
                                                               ...);

/* What a rank tells the others when a plan is created: its config, or why it has none. */
struct ra_record {
    int64_t status, values[RA_OPTIONS]; /* 0 for an option that is no field */
    char error[RA_ERROR_SIZE];
};

struct ra_record ra_config_record(const struct ra_config *config, enum ra_status status,
                                  const char *error);

/* Compares the records of all ranks, rings of ring_size. Every rank gets the same status and text
 * from the same records. */
enum ra_status ra_config_compare(const struct ra_record *records, int ranks, int ring_size,
                                 char *error);

#endif
