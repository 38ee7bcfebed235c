/* ra_whole: a file or a folder that appears whole or not at all. See ra_whole.h.
 *
 * Common ground, first used in chapter 10.
 */

#include "ra_whole.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ra_error.h"
#include "ra_path.h"
#include "ra_system.h"

_Static_assert(RA_WHOLE_PATH >= PATH_MAX, "a path that is resolved has up to PATH_MAX characters");
enum { DIGITS = 16 };
static const int as_folder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

/* ---- Names. */

/* What hidden names of this final name begin with. A name has at most 255 bytes. */
static int hidden_start(const char *name, char start[NAME_MAX])
{
    return snprintf(start, NAME_MAX, ".%.200s.", name);
}

/* Fills in the paths. A signal may come at any time, and half a path would be somebody else's: so
 * the first character of `hidden` comes last. */
static enum ra_status find(struct ra_whole *whole, const char *path, char *error)
{
    char folder[RA_WHOLE_PATH], start[NAME_MAX], hidden[RA_WHOLE_PATH];
    whole->hidden[0] = '\0';
    if (!ra_path_resolve(path, whole->final))
        return ra_error_set(error, "%.200s: cannot be created: %s", path, strerror(errno));
    hidden_start(ra_path_split(whole->final, folder), start);
    if (snprintf(hidden, RA_WHOLE_PATH, "%s/%s%0*" PRIx64, folder, start, DIGITS,
                 (uint64_t)whole->number) >= RA_WHOLE_PATH ||
        snprintf(whole->path, RA_WHOLE_PATH, "%s/new", hidden) >= RA_WHOLE_PATH)
        return ra_error_set(error, "%.60s...: the path is too long", path);
    strcpy(whole->hidden + 1, hidden + 1);
    atomic_thread_fence(memory_order_release);
    whole->hidden[0] = hidden[0];
    return RA_OK;
}

/* ---- Folders, with all that is in them. A signal handler may call these, so they allocate
 * nothing. */

/* A folder that is walked, what is done with all that it holds, and whether all of it was good. */
struct walk {
    int folder;
    bool (*visit)(int at, const char *name, bool is_folder);
    bool good;
};

/* Visits what has this name in the folder, after all that it holds. */
static bool walk_one(void *context, const char *name)
{
    struct walk *above = context, here = *above;
    here.folder = openat(above->folder, name, as_folder);
    if (here.folder >= 0)
        ra_system_list(here.folder, walk_one, &here);
    above->good = above->visit(above->folder, name, here.folder >= 0) && here.good;
    if (here.folder >= 0)
        close(here.folder);
    return true;
}

static bool walk(int at, const char *name, bool (*visit)(int, const char *, bool))
{
    struct walk above = {at, visit, true};
    walk_one(&above, name);
    return above.good;
}

static bool remove_one(int at, const char *name, bool is_folder)
{
    return unlinkat(at, name, is_folder ? AT_REMOVEDIR : 0) == 0;
}

/* Waits until it is on the disk, as far as its file system can tell. */
static bool sync_one(int at, const char *name, bool is_folder)
{
    int file = openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool good = file >= 0 && (fsync(file) == 0 || (is_folder && errno == EINVAL));
    int reason = errno;
    if (file >= 0)
        close(file);
    errno = reason;
    return good;
}

static void remove_tree(int at, const char *name)
{
    /* Some file systems skip entries while others are removed. */
    for (int tries = 0; tries < 4 && !walk(at, name, remove_one); tries++)
        ;
}

/* Renames something unless the new name is taken. Where the file system cannot tell in the same
 * step, such as on NFS, just before. */
static bool rename_new(int at, const char *from, const char *to)
{
    struct stat there;
    return ra_system_rename_new(at, from, AT_FDCWD, to) == 0 ||
           ((errno == EINVAL || errno == ENOSYS) && lstat(to, &there) != 0 &&
            renameat(at, from, AT_FDCWD, to) == 0);
}

/* ---- Other writers, alive and dead. */

/* Removes a hidden folder, its lock last. An earlier folder that has stepped aside (see exchange)
 * gets its name back, unless another one has it. A signal handler may call this. */
static void remove_hidden(int at, const char *name, int folder, const char *final)
{
    rename_new(folder, "earlier", final);
    remove_tree(folder, "new");
    remove_tree(folder, "earlier");
    unlinkat(folder, "lock", 0);
    unlinkat(at, name, AT_REMOVEDIR);
}

/* Removes what a killed writer has hidden. False if its writer lives, or may live because the
 * lock cannot be tested. */
static bool clear(int at, const char *name, const char *final)
{
    int folder = openat(at, name, as_folder);
    if (folder < 0)
        return true; /* of nobody: it has just gone, or is no folder */

    /* Without a lock it is empty: its writer has not locked it yet, or has gone. */
    int lock = openat(folder, "lock", O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool none = lock < 0 && errno == ENOENT, dead = lock >= 0 && ra_system_lock(lock) == 0;
    if (none)
        unlinkat(at, name, AT_REMOVEDIR);
    if (dead)
        remove_hidden(at, name, folder, final);
    if (lock >= 0)
        close(lock);
    close(folder);
    return none || dead;
}

/* Clears up after all writers of this name that are dead. Returns how many others live, and the
 * hidden name of one of them; -1 with errno: the folder cannot be listed. */
static int clear_all(const struct ra_whole *whole, char other[NAME_MAX + 1])
{
    char folder[RA_WHOLE_PATH], start[NAME_MAX], own[RA_WHOLE_PATH];
    int length = hidden_start(ra_path_split(whole->final, folder), start), alive = 0;
    const char *own_name = ra_path_split(whole->hidden, own);
    DIR *entries = opendir(folder);
    for (struct dirent *entry; entries && (errno = 0, entry = readdir(entries));)
        if (strncmp(entry->d_name, start, (size_t)length) == 0 &&
            strspn(entry->d_name + length, "0123456789abcdef") == DIGITS &&
            entry->d_name[length + DIGITS] == '\0' && strcmp(entry->d_name, own_name) != 0 &&
            !clear(dirfd(entries), entry->d_name, whole->final)) {
            snprintf(other, NAME_MAX + 1, "%s", entry->d_name);
            alive++;
        }
    int reason = errno;
    if (entries)
        closedir(entries);
    errno = reason;
    return reason == 0 ? alive : -1;
}

/* Makes the hidden folder with its lock. False with errno; EAGAIN: before it was locked, another
 * writer has taken it for a dead one's. */
static bool create(struct ra_whole *whole)
{
    char path[RA_WHOLE_PATH + 8];
    struct stat status;
    snprintf(path, sizeof path, "%s/lock", whole->hidden);
    if (mkdir(whole->hidden, 0777) != 0)
        return false;
    whole->lock = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (whole->lock < 0) {
        int reason = errno;
        rmdir(whole->hidden);
        errno = reason == ENOENT ? EAGAIN : reason;
        return false;
    }

    /* On a file system without locks nobody can take this for a dead one's either. */
    bool taken = ra_system_lock(whole->lock) != 0 && errno == EWOULDBLOCK;
    if (!taken && fstat(whole->lock, &status) == 0 && status.st_nlink > 0)
        return true;
    ra_whole_forget(whole);
    errno = EAGAIN;
    return false;
}

/* ---- What has the name already. */

/* Finds something in a folder that none of the patterns matches, by its path from there on. */
static bool find_stranger(const char *folder, const char *const *patterns, const char *inside,
                          char stranger[RA_WHOLE_PATH])
{
    char path[RA_WHOLE_PATH + NAME_MAX + 2];
    snprintf(path, sizeof path, "%s/%s", folder, inside);
    DIR *entries = opendir(path);
    bool found = !entries && errno != ENOTDIR;
    snprintf(stranger, RA_WHOLE_PATH, "%s", inside);
    struct dirent *entry = NULL;
    while (entries && !found && (errno = 0, entry = readdir(entries))) {
        char name[RA_WHOLE_PATH];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(name, sizeof name, "%.3000s%s%s", inside, *inside ? "/" : "", entry->d_name);
        bool known = false;
        for (const char *const *p = patterns; p && *p; p++)
            known = known || fnmatch(*p, name, FNM_PATHNAME | FNM_PERIOD) == 0;
        found = !known || find_stranger(folder, patterns, name, stranger);
        if (!known)
            snprintf(stranger, RA_WHOLE_PATH, "%s", name);
    }
    found = found || (entries && !entry && errno != 0); /* what is not listed may be any file */
    if (entries)
        closedir(entries);
    return found;
}

/* Refuses a name that cannot be given, because of what has it. */
static enum ra_status check(const struct ra_whole *whole, char *error)
{
    struct stat there, other;
    char stranger[RA_WHOLE_PATH], folder[RA_WHOLE_PATH];
    const char *final = whole->final;
    bool is_folder = whole->how & RA_WHOLE_FOLDER;
    if (lstat(final, &there) != 0)
        return errno == ENOENT ? RA_OK : ra_error_set(error, "%.200s: %s", final, strerror(errno));
    if (is_folder ? !S_ISDIR(there.st_mode) : !S_ISREG(there.st_mode))
        return ra_error_set(error, "%.200s: is %s; name a new one", final,
                            is_folder                ? "not a folder"
                            : S_ISDIR(there.st_mode) ? "a folder, not a file"
                                                     : "not a regular file");
    if (!is_folder)
        return whole->how & RA_WHOLE_NEW
                   ? ra_error_set(error, "%.200s: is there already; name a new file", final)
                   : RA_OK;

    /* A mount keeps its place, and a shell that stands in the folder would be left in one that is
     * gone. */
    ra_path_split(final, folder);
    if (stat(folder, &other) == 0 && other.st_dev != there.st_dev)
        return ra_error_set(
            error, "%.200s: is mounted, so it cannot be replaced; name a folder in it", final);
    if (stat(".", &other) == 0 && other.st_dev == there.st_dev && other.st_ino == there.st_ino)
        return ra_error_set(
            error, "%.200s: is the current folder, so it cannot be replaced; name another", final);
    if (find_stranger(final, whole->replaces, "", stranger))
        return ra_error_set(
            error, "%.150s: holds %.80s, which this program does not replace; name a new folder",
            final, *stranger ? stranger : "files that cannot be listed");
    return RA_OK;
}

/* ---- The life of one. */

enum ra_status ra_whole_join(struct ra_whole *whole, const char *path, unsigned how, int64_t number,
                             char *error)
{
    *whole = (struct ra_whole){.how = how, .number = number, .lock = -1};
    return find(whole, path, error);
}

/* Makes the hidden folder, under a number that nobody has. */
static enum ra_status hide(struct ra_whole *whole, const char *path, char *error)
{
    do {
        if (ra_system_random(&whole->number, sizeof whole->number) != 0)
            return ra_error_set(error, "%.200s: the system has no random numbers: %s", path,
                                strerror(errno));
        if (find(whole, path, error) != RA_OK)
            return RA_INVALID;
    } while (!create(whole) && errno == EAGAIN);
    return whole->lock >= 0 ? RA_OK
                            : ra_error_set(error, "%.200s: nothing can be written beside it: %s",
                                           path, strerror(errno));
}

enum ra_status ra_whole_begin(struct ra_whole *whole, const char *path, unsigned how,
                              const char *const *replaces, char *error)
{
    char other[NAME_MAX + 1];
    enum ra_status status = ra_whole_join(whole, path, how, 0, error);
    whole->replaces = replaces;
    if (status == RA_OK) {
        clear_all(whole, other); /* what killed writers have left may fill the disk */
        status = check(whole, error);
    }
    if (status != RA_OK || hide(whole, path, error) != RA_OK) {
        whole->hidden[0] = '\0';
        return RA_INVALID;
    }

    /* Of two that begin at the same time, each has its lock before it looks: one of them sees the
     * other. */
    int others = how & RA_WHOLE_ALONE ? clear_all(whole, other) : 0, reason = errno;
    if (others == 0)
        return RA_OK;
    ra_whole_end(whole);
    if (others < 0)
        return ra_error_set(error,
                            "%.200s: its folder cannot be listed, and another run may write it: %s",
                            path, strerror(reason));
    return ra_error_set(error,
                        "%.150s: another run is writing it (if none is, remove %.100s beside it)",
                        path, other);
}

/* Exchanges the folder with an earlier one. Where the file system cannot do so in one step, such as
 * on NFS, the earlier one steps aside first: a writer that is killed then leaves none for a moment,
 * until the next one brings it back. */
static bool exchange(const struct ra_whole *whole)
{
    if (ra_system_exchange(whole->path, whole->final) == 0)
        return true;
    char earlier[RA_WHOLE_PATH + 8];
    snprintf(earlier, sizeof earlier, "%s/earlier", whole->hidden);
    if ((errno != EINVAL && errno != ENOSYS) || rename(whole->final, earlier) != 0)
        return false;
    if (rename(whole->path, whole->final) == 0)
        return rename(earlier, whole->path) == 0;
    int reason = errno;
    rename(earlier, whole->final);
    errno = reason;
    return false;
}

/* Gives the name, whether anything has it or not. False with errno. */
static bool give_name(const struct ra_whole *whole)
{
    struct stat there;
    bool exchanges = false;
    if (whole->how & RA_WHOLE_NEW)
        return rename_new(AT_FDCWD, whole->path, whole->final);

    /* Who may do what with it stays as it was. Only root can keep the owner. */
    if (lstat(whole->final, &there) == 0) {
        int owned = chown(whole->path, there.st_uid, there.st_gid);
        (void)owned;
        if (chmod(whole->path, there.st_mode & 07777) != 0)
            return false;
        exchanges = whole->how & RA_WHOLE_FOLDER;
    }
    if (!exchanges && rename(whole->path, whole->final) == 0)
        return true;

    /* Also with a folder that has come just now. */
    return (exchanges || errno == EEXIST || errno == ENOTEMPTY) && exchange(whole);
}

/* Gives what is whole another name, since it cannot have its own; `error` says why, and gets the
 * name. */
static enum ra_status set_aside(struct ra_whole *whole, char *error)
{
    char aside[RA_WHOLE_PATH + DIGITS + 2];
    snprintf(aside, sizeof aside, "%s.%0*" PRIx64, whole->final, DIGITS, (uint64_t)whole->number);
    size_t length = strlen(error);
    if (rename_new(AT_FDCWD, whole->path, aside))
        snprintf(error + length, RA_ERROR_SIZE - length, "; what was to replace it is %.200s",
                 aside);
    return RA_INVALID;
}

enum ra_status ra_whole_publish(struct ra_whole *whole, char *error)
{
    char folder[RA_WHOLE_PATH];
    struct stat status;
    ra_path_split(whole->final, folder);

    /* Where locks do not reach from machine to machine, a writer elsewhere may have taken this for
     * dead. */
    if (fstat(whole->lock, &status) != 0 || status.st_nlink == 0)
        return ra_error_set(error, "%.200s: another run has removed it before it was whole",
                            whole->hidden);

    /* All bytes must be on the disk before the name says so; then the name must be there, too. */
    bool waits = !(whole->how & RA_WHOLE_HASTY);
    if (waits && !walk(AT_FDCWD, whole->path, sync_one))
        return ra_error_set(error, "%.200s: cannot be written: %s", whole->final, strerror(errno));
    if (check(whole, error) != RA_OK)
        return set_aside(whole, error);
    if (!give_name(whole) || (waits && !sync_one(AT_FDCWD, folder, true)))
        return ra_error_set(error, "%.200s: cannot be written: %s", whole->final, strerror(errno));
    whole->how &= ~(unsigned)RA_WHOLE_NEW;
    if (whole->how & RA_WHOLE_FOLDER)
        remove_tree(AT_FDCWD, whole->path);
    return RA_OK;
}

void ra_whole_end(struct ra_whole *whole)
{
    int folder = whole->hidden[0] ? open(whole->hidden, as_folder) : -1;
    if (folder >= 0) {
        remove_hidden(AT_FDCWD, whole->hidden, folder, whole->final);
        close(folder);
    }
    ra_whole_forget(whole);
}

void ra_whole_forget(struct ra_whole *whole)
{
    if (whole->hidden[0] && whole->lock >= 0)
        close(whole->lock);
    whole->lock = -1;
    whole->hidden[0] = '\0';
}
