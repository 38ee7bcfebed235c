/* ra_path: which file a path names, whatever links it goes through, and even before it is there.
 *
 * Common ground. Not installed. A program asks before it writes: would that replace what it reads?
 */
#ifndef RA_PATH_H
#define RA_PATH_H

#include <limits.h>
#include <stdbool.h>

/* Splits a path at its last slash: writes the folder, and returns the name in it. */
const char *ra_path_split(const char *path, char folder[PATH_MAX]);

/* Resolves the links of a path; if nothing is there yet, those of its folder. False with errno. */
bool ra_path_resolve(const char *path, char resolved[PATH_MAX]);

/* Tells whether two paths name the same file or folder, or would if it is not there yet. */
bool ra_path_same(const char *one, const char *other);

/* Tells whether a path names this folder, or something in it. */
bool ra_path_within(const char *path, const char *folder);

#endif
