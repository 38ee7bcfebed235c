/* ra_struct: structs that begin with their size. See ra_struct.h.
 *
 * Chapter 10.
 */
#include "ra_struct.h"
#include <string.h>
#include "ra_version.h"

enum ra_status ra_struct_take(const char *name, const char *init, void *own, size_t size,
                              size_t least, const void *given, char *error)
{
    size_t theirs = 0;
    if (given)
        memcpy(&theirs, given, sizeof theirs);
    if (theirs < least || theirs > 16 * size || theirs % sizeof(void *) != 0)
        return ra_error_set(error, "%s.size = %zu: begin with %s, which sets it to %zu", name,
                            theirs, init, size);
    for (size_t byte = size; byte < theirs; byte++)
        if (((const char *)given)[byte] != 0)
            return ra_error_set(error,
                                "%s has a field that this version, " RA_VERSION
                                ", does not know: link a newer library",
                                name);
    memcpy(own, given, theirs < size ? theirs : size);
    memcpy(own, &size, sizeof size);
    return RA_OK;
}

void ra_struct_give(void *given, size_t given_size, const void *own, size_t size)
{
    memset(given, 0, given_size);
    memcpy(given, own, given_size < size ? given_size : size);
    if (given_size >= sizeof given_size)
        memcpy(given, &given_size, sizeof given_size);
}
