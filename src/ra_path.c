/* ra_path: which file a path names. See ra_path.h.
 *
 * Common ground.
 */

/* For realpath. */
#define _XOPEN_SOURCE 700

#include "ra_path.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *ra_path_split(const char *path, char folder[PATH_MAX])
{
    const char *slash = strrchr(path, '/');
    if (!slash) {
        strcpy(folder, ".");
        return path;
    }

    /* The root is the one folder whose name ends in a slash. */
    snprintf(folder, PATH_MAX, "%.*s", slash > path ? (int)(slash - path) : 1, path);
    return slash + 1;
}

bool ra_path_resolve(const char *path, char resolved[PATH_MAX])
{
    char copy[PATH_MAX] = "", folder[PATH_MAX];
    if (realpath(path, resolved))
        return true;
    if (errno != ENOENT)
        return false;

    /* It does not exist yet: where will it be? */
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    errno = ENAMETOOLONG;
    if (length >= sizeof copy)
        return false;
    memcpy(copy, path, length);
    const char *name = ra_path_split(copy, folder);
    errno = ENOENT;
    if (*name == '\0' || !realpath(folder, resolved))
        return false;
    length = strlen(resolved);
    errno = ENAMETOOLONG;
    return snprintf(resolved + length, PATH_MAX - length, "/%s", name) < (int)(PATH_MAX - length);
}

bool ra_path_same(const char *one, const char *other)
{
    struct stat a, b;
    char x[PATH_MAX], y[PATH_MAX];
    if (stat(one, &a) == 0 && stat(other, &b) == 0)
        return a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    return ra_path_resolve(one, x) && ra_path_resolve(other, y) && strcmp(x, y) == 0;
}

bool ra_path_within(const char *path, const char *folder)
{
    char inner[PATH_MAX], outer[PATH_MAX];
    if (!ra_path_resolve(path, inner) || !ra_path_resolve(folder, outer))
        return false;
    size_t length = strlen(outer);
    return strncmp(inner, outer, length) == 0 && (inner[length] == '/' || inner[length] == '\0');
}
