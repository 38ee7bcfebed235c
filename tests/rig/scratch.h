/* scratch: folders that tests write into, made and removed. Who includes it defines _XOPEN_SOURCE
 * 700 or _GNU_SOURCE first, for nftw.
 */
#ifndef SCRATCH_H
#define SCRATCH_H

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Makes a folder that nobody else has, in `parent` or, if that is NULL, where TMPDIR says, and puts
 * its path into `path`. The program ends if it cannot be made. */
static inline void scratch_make(char *path, size_t size, const char *parent, const char *name)
{
    const char *temporary = getenv("TMPDIR");
    parent = parent ? parent : temporary ? temporary : "/tmp";
    for (int i = 0;; i++) {
        snprintf(path, size, "%s/%s-%d-%d", parent, name, (int)getpid(), i);
        if (mkdir(path, 0700) == 0)
            return;
        if (errno != EEXIST) {
            perror(path);
            exit(1);
        }
    }
}

static inline int scratch_remove_one(const char *path, const struct stat *status, int kind,
                                     struct FTW *place)
{
    (void)status, (void)kind, (void)place; /* nftw's interface */
    return remove(path);
}

/* Removes a file, or a folder with all that is in it; one that is not there is fine. The program
 * ends if something stays. */
static inline void scratch_remove(const char *path)
{
    if (nftw(path, scratch_remove_one, 20, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT) {
        perror(path);
        exit(1);
    }
}

/* How many names in this folder are hidden; 0 if there is no folder. */
static inline int scratch_hidden(const char *path)
{
    int count = 0;
    DIR *entries = opendir(path);
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        count += entry->d_name[0] == '.' && strcmp(entry->d_name, ".") != 0 &&
                 strcmp(entry->d_name, "..") != 0;
    if (entries)
        closedir(entries);
    return count;
}

#endif
