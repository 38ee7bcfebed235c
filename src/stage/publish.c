/* publish: whole results get their names, all at once: the hidden folder and RESULT are exchanged,
 * which the system does in one step. Kills, errors and other runs leave RESULT as one run made it.
 *
 * Where that cannot be, the files are moved one by one: in a RESULT that holds something else,
 * which is the user's and must not move; that is a mount, or this program's own folder; or that
 * lies on a file system without an exchange, such as NFS. Then o.npy goes first and comes last: a
 * folder with an o.npy is of one run here, too, but a run killed in that moment leaves none.
 *
 * No stage waits for the disk (fsync), as that can take longer than the run. Only if the machine
 * loses its power soon after the run can results be lost, or become zeros.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "ra_clock.h"
#include "ra_system.h"
#include "stage_parts.h"

static const int as_folder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

void stage_check_names(const struct stage *stage)
{
    for (int r = 0; r < STAGE_RESULTS; r++) {
        char path[PATH_MAX + 10];
        struct stat status;
        snprintf(path, sizeof path, "%s/%s", stage->result, stage_result_files[r]);
        if (lstat(path, &status) == 0 && S_ISDIR(status.st_mode))
            stage_fail(stage, "%s: is a folder; the result needs this name", path);
    }
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Opens RESULT, and waits until no other run is changing it. -1: there is no RESULT. */
static int lock_folder(const struct stage *stage)
{
    double began = ra_seconds();
    for (;;) {
        int folder = open(stage->result, as_folder);
        if (folder < 0 && errno == ENOENT)
            return -1;
        if (folder < 0)
            stage_fail(stage, "%s: %s", stage->result, strerror(errno));

        /* It may have been exchanged before it was locked. Without locks, we go on. */
        struct stat locked, there;
        bool taken = ra_system_lock(folder) != 0 && errno == EWOULDBLOCK;
        if (!taken && fstat(folder, &locked) == 0 && lstat(stage->result, &there) == 0 &&
            same_file(&locked, &there))
            return folder;
        close(folder);
        if (taken && stage->config.timeout > 0 && ra_seconds() - began > stage->config.timeout)
            stage_fail(stage, "%s: waited %g s for another run that is writing its results there",
                       stage->result, stage->config.timeout);
        if (taken)
            nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}

/* Whether the folder holds nothing but results. */
static bool holds_only_results(int folder)
{
    DIR *entries = fdopendir(openat(folder, ".", as_folder));
    bool only = entries != NULL;
    for (struct dirent *entry; only && (entry = readdir(entries));)
        only = stage_is_result(entry->d_name);
    if (entries)
        closedir(entries);
    return only;
}

/* Exchanges the hidden folder and RESULT, which is open, and removes the earlier results. False if
 * that cannot be. */
static bool exchange(const struct stage *stage, int folder)
{
    /* A shell that stands in RESULT would be left in a folder that is gone. */
    struct stat earlier, here;
    if (!holds_only_results(folder) || fstat(folder, &earlier) != 0 || stat(".", &here) != 0 ||
        same_file(&earlier, &here))
        return false;

    /* Who may do what with RESULT stays as it was. */
    if (chown(stage->hidden, earlier.st_uid, earlier.st_gid) != 0 ||
        chmod(stage->hidden, earlier.st_mode & 07777) != 0 ||
        ra_system_exchange(stage->hidden, stage->result) != 0)
        return false;
    stage_hidden_remove(folder, stage->hidden, stage->result);
    return true;
}

/* Moves the first `count` results from one folder to another, o.npy first or last; moves them back
 * if there is an error, which is in errno. Unless all must be there, what is missing is left
 * out. */
static bool move(int from, int to, int count, bool o_first, bool all)
{
    for (int i = 0; i < count; i++) {
        const char *name = stage_result_files[o_first ? i : count - 1 - i];
        if (renameat(from, name, to, name) == 0 || (!all && errno == ENOENT))
            continue;
        int error = errno;
        while (i-- > 0) {
            name = stage_result_files[o_first ? i : count - 1 - i];
            renameat(to, name, from, name);
        }
        errno = error;
        return false;
    }
    return true;
}

/* Replaces the results in RESULT, which is open, file by file. An error leaves the earlier ones. */
static bool replace(const struct stage *stage, int folder)
{
    int hidden = open(stage->hidden, as_folder);
    bool made = hidden >= 0 && mkdirat(hidden, STAGE_EARLIER, 0777) == 0;
    int earlier = made ? openat(hidden, STAGE_EARLIER, as_folder) : -1;
    bool moved = earlier >= 0 && move(folder, earlier, STAGE_RESULTS, true, false);
    bool replaced = moved && move(hidden, folder, stage_result_count(stage), false, true);
    int error = errno;
    if (moved && !replaced)
        move(earlier, folder, STAGE_RESULTS, false, false);
    if (made && !replaced)
        unlinkat(hidden, STAGE_EARLIER, AT_REMOVEDIR);
    if (replaced)
        stage_hidden_remove(hidden, stage->hidden, stage->result);
    if (earlier >= 0)
        close(earlier);
    if (hidden >= 0)
        close(hidden);
    errno = error;
    return replaced;
}

void stage_name_results(struct stage *stage)
{
    /* Where locks do not reach from machine to machine, a run elsewhere may have taken ours for
     * dead. An empty folder is no result. */
    struct stat status;
    if (fstat(stage->result_lock, &status) != 0 || status.st_nlink == 0)
        stage_fail(stage, "%s: another run has removed the finished results", stage->hidden);

    for (bool named = false; !named;) {
        int folder = lock_folder(stage);
        if (folder >= 0) {
            stage_check_names(stage);
            named = exchange(stage, folder) || replace(stage, folder);
        } else {
            named = rename(stage->hidden, stage->result) == 0;
        }

        /* Another run may have made RESULT since we looked: then it is there now. */
        if (!named && (folder >= 0 || (errno != ENOTEMPTY && errno != EEXIST)))
            stage_fail(stage, "%s: cannot name the finished results: %s", stage->result,
                       strerror(errno));
        if (folder >= 0)
            close(folder);
    }
    stage_unfinished_forget();
    close(stage->result_lock);
}
