/* ra_text: a text that is written piece by piece, into memory that may be too small. Internal. */
#ifndef RA_TEXT_H
#define RA_TEXT_H

#include <stddef.h>
#include <stdint.h>

struct ra_text {
    char *to; /* `size` characters, a final 0 included; NULL if size is 0 */
    size_t size;
    int64_t length; /* of the whole text, as if there were room for it */
};

/* Adds to a text, like printf. */
__attribute__((format(printf, 2, 3))) void ra_text_add(struct ra_text *text, const char *format,
                                                       ...);

#endif
