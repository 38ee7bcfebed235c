/* hidden: names for what is not finished yet. A hidden name stands beside the final one and ends in
 * a random number, so that no two runs share one, on whatever machines they are. Rank 0 locks the
 * file behind it; the system unlocks it when the run ends, however that comes about. So what no
 * lock holds was left by a run that was killed, and the next run removes it.
 */

/* For realpath. */
#define _XOPEN_SOURCE 700

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ra_system.h"
#include "stage_parts.h"

const char *const stage_result_files[STAGE_RESULTS] = {"o.npy", "lse.npy", "dq.npy", "dk.npy",
                                                       "dv.npy"};

enum { DIGITS = 16 };
static const int as_folder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

/* Splits a path at its last slash. What follows it is the name. */
static const char *split(const char *path, char folder[PATH_MAX])
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

bool stage_resolve(const char *path, char resolved[PATH_MAX])
{
    char copy[PATH_MAX], folder[PATH_MAX];
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
    snprintf(copy, sizeof copy, "%.*s", (int)length, path);
    const char *name = split(copy, folder);
    errno = ENOENT;
    if (*name == '\0' || !realpath(folder, resolved))
        return false;
    length = strlen(resolved);
    errno = ENAMETOOLONG;
    return snprintf(resolved + length, PATH_MAX - length, "/%s", name) < (int)(PATH_MAX - length);
}

int64_t stage_hidden_number(const struct stage *stage)
{
    int64_t number;
    if (ra_system_random(&number, sizeof number) != 0)
        stage_fail(stage, "the system has no random numbers: %s", strerror(errno));
    return number;
}

/* What hidden names of this final name begin with. A name has at most 255 bytes. */
static int hidden_start(const char *name, char start[NAME_MAX])
{
    return snprintf(start, NAME_MAX, ".%.200s.", name);
}

bool stage_hidden_path(const char *final, bool inside, int64_t number, char path[PATH_MAX])
{
    char folder[PATH_MAX], start[NAME_MAX];
    hidden_start(split(final, folder), start);
    return snprintf(path, PATH_MAX, "%s/%s%0*" PRIx64, inside ? final : folder, start, DIGITS,
                    (uint64_t)number) < PATH_MAX;
}

bool stage_hidden_own(int file)
{
    /* On a file system that has no locks nobody can take this for a killed run's either. */
    struct stat status;
    if (ra_system_lock(file) != 0)
        return errno != EWOULDBLOCK;
    return fstat(file, &status) == 0 && status.st_nlink > 0;
}

bool stage_is_result(const char *name)
{
    bool is = strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
    for (int r = 0; r < STAGE_RESULTS; r++)
        is = is || strcmp(name, stage_result_files[r]) == 0;
    return is;
}

/* Removes the results in a folder: o.npy last and only if the others have gone, as it is the lock
 * of all. */
static void remove_results(int folder)
{
    for (int r = STAGE_RESULTS - 1; r >= 0; r--)
        if (unlinkat(folder, stage_result_files[r], 0) != 0 && errno != ENOENT)
            return;
}

/* Removes a folder that is open, with the earlier results in it. What else is there came into
 * RESULT while the folders were being exchanged: it is the user's, and moves home. */
static void remove_folder(int folder, const char *path, const char *home)
{
    if (rmdir(path) == 0)
        return;
    int earlier = openat(folder, STAGE_EARLIER, as_folder);
    if (earlier >= 0) {
        remove_results(earlier);
        unlinkat(folder, STAGE_EARLIER, AT_REMOVEDIR);
        close(earlier);
    }
    int to = open(home, as_folder);
    DIR *entries = fdopendir(openat(folder, ".", as_folder));
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        if (!stage_is_result(entry->d_name))
            ra_system_rename_new(folder, entry->d_name, to, entry->d_name);
    if (entries)
        closedir(entries);
    if (to >= 0)
        close(to);
    rmdir(path);
}

void stage_hidden_remove(int folder, const char *path, const char *home)
{
    remove_results(folder);
    remove_folder(folder, path, home);
}

/* Removes what stands under a hidden name, unless its run goes on; home is RESULT. No link is
 * followed: anybody may have put it there. */
static void clear(const char *path, const char *home)
{
    const int as_file = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    int folder = open(path, as_folder);
    int lock =
        folder >= 0 ? openat(folder, stage_result_files[STAGE_O], as_file) : open(path, as_file);
    bool dead = lock >= 0 && ra_system_lock(lock) == 0;
    if (dead && folder >= 0)
        stage_hidden_remove(folder, path, home);
    else if (dead)
        unlink(path);

    /* A folder without its lock has no results yet, or no more. */
    if (folder >= 0 && lock < 0)
        remove_folder(folder, path, home);
    if (lock >= 0)
        close(lock);
    if (folder >= 0)
        close(folder);
}

void stage_hidden_clear(const char *final, bool inside)
{
    char folder[PATH_MAX], start[NAME_MAX], path[PATH_MAX];
    int length = hidden_start(split(final, folder), start);
    const char *place = inside ? final : folder;
    DIR *entries = opendir(place);
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        if (strncmp(entry->d_name, start, (size_t)length) == 0 &&
            strspn(entry->d_name + length, "0123456789abcdef") == DIGITS &&
            entry->d_name[length + DIGITS] == '\0' &&
            snprintf(path, sizeof path, "%s/%s", place, entry->d_name) < PATH_MAX)
            clear(path, final);
    if (entries)
        closedir(entries);
}
