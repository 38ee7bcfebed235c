/* ra_struct: structs that begin with their size. See ra_struct.h.
 *
 * Chapter 08.
 */
#include "ra_struct.h"
#include <string.h>
#include "ra_version.h"

enum ra_status ra_struct_check(const char *name, const char *init, size_t size, size_t least,
                               const void *given, char *error)
{
    size_t theirs;
    if (!given)
        return ra_error_set(error, "%s is NULL: give the address of one that began with %s", name,
                            init);
    memcpy(&theirs, given, sizeof theirs);
    if (theirs < least || theirs > 16 * size || theirs % sizeof(void *) != 0)
        return ra_error_set(error, "%s.size = %zu: begin with %s, which sets it to %zu", name,
                            theirs, init, size);
    return RA_OK;
}

enum ra_status ra_struct_take(const char *name, const char *init, void *own, size_t size,
                              size_t least, const void *given, char *error)
{
    size_t theirs;
    if (ra_struct_check(name, init, size, least, given, error) != RA_OK)
        return RA_INVALID;
    memcpy(&theirs, given, sizeof theirs);
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
    if (!given)
        return;
    memset(given, 0, given_size);
    memcpy(given, own, given_size < size ? given_size : size);
    if (given_size >= sizeof given_size)
        memcpy(given, &given_size, sizeof given_size);
}
