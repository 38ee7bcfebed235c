/* ra_struct: structs that begin with their size, by which a library knows what its caller's header
 * has. Internal.
 *
 * Chapter 08. Every function that is exported and takes such a struct reads it by ra_struct_take
 * alone: an older caller's ends earlier than the library's, and what lies behind is not the
 * struct's.
 */
#ifndef RA_STRUCT_H
#define RA_STRUCT_H

#include <stddef.h>
#include "ra_error.h"

/* Checks the size that a caller's struct begins with. RA_INVALID: `error` says that it must begin
 * with `init`, which makes it `size` bytes here; `least` bytes any header has. */
RA_CHECKED enum ra_status ra_struct_check(const char *name, const char *init, size_t size,
                                          size_t least, const void *given, char *error);

/* Checks a caller's struct as ra_struct_check does, and copies it to `own` of `size` bytes, which
 * has defaults in it: fields that the caller's header lacks keep these, and those that are not
 * known here must be 0. RA_INVALID: `own` may be changed. */
RA_CHECKED enum ra_status ra_struct_take(const char *name, const char *init, void *own, size_t size,
                                         size_t least, const void *given, char *error);

/* Writes `own` to a caller's struct of `given_size` bytes, which gets this size. What is not known
 * here becomes 0. NULL: nothing is written. */
void ra_struct_give(void *given, size_t given_size, const void *own, size_t size);

/* Asserts that a struct ends with the field `last`, without padding: a field that is added later
 * must make it longer, or the size of an older header would not tell that it lacks this field. With
 * pointers of 4 bytes, as in WebAssembly, nobody has an older header. */
#define RA_STRUCT_ENDS(type, last)                                                       \
    _Static_assert(sizeof(void *) < 8 ||                                                 \
                       offsetof(type, last) + sizeof(((type *)0)->last) == sizeof(type), \
                   "the struct ends in padding")

#endif
