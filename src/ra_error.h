/* ra_error: the text of an error. Internal. */
#ifndef RA_ERROR_H
#define RA_ERROR_H

#include "ra_status.h"

/* Writes the text, of RA_ERROR_SIZE characters at most, unless error is NULL. Returns
 * RA_INVALID. */
__attribute__((format(printf, 2, 3))) enum ra_status ra_error_set(char *error, const char *format,
                                                                  ...);

#endif
