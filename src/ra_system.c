/* ra_system: what POSIX does not have. See ra_system.h.
 *
 * Common ground. With -DRA_SYSTEM_PLAIN it is that of another system, from POSIX alone, also on
 * Linux.
 */
#if defined __linux__ && !defined RA_SYSTEM_PLAIN
#define _GNU_SOURCE
#endif
#include "ra_system.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#ifdef _GNU_SOURCE
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/syscall.h>

int ra_system_rename_new(int from_folder, const char *from, int to_folder, const char *to)
{
    return renameat2(from_folder, from, to_folder, to, RENAME_NOREPLACE);
}

int ra_system_exchange(const char *one, const char *other)
{
    return renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE);
}

int ra_system_reserve(int file, int64_t bytes)
{
    int error;
    do
        error = posix_fallocate(file, 0, bytes);
    while (error == EINTR);
    return error;
}

bool ra_system_list(int folder, bool (*visit)(void *context, const char *name), void *context)
{
    _Alignas(struct dirent64) char entries[2048];
    bool good = true;
    for (ssize_t bytes; good && (bytes = getdents64(folder, entries, sizeof entries)) > 0;)
        for (ssize_t next = 0; good && next < bytes;) {
            const struct dirent64 *entry = (const struct dirent64 *)(const void *)(entries + next);
            next += entry->d_reclen;
            if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
                good = visit(context, entry->d_name);
        }
    return good;
}

int ra_system_random(void *bytes, size_t count)
{
    return getrandom(bytes, count, 0) == (ssize_t)count ? 0 : -1;
}

int ra_system_unread(int file)
{
    int bytes;
    return ioctl(file, FIONREAD, &bytes) == 0 ? bytes : 0;
}

int ra_system_processors(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                       : (int)sysconf(_SC_NPROCESSORS_ONLN);
}

size_t ra_system_affinity(unsigned char *bytes, size_t most)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    size_t count = sizeof set < most ? sizeof set : most;
    memcpy(bytes, &set, count);
    return count;
}

/* Reads a quota of processor time, as Linux writes it: "max 100000", or a number of microseconds of
 * each period. Returns processors, rounded up; 0: no limit, or no such file. */
static int quota_of(const char *group)
{
    char path[4200];
    long long quota = 0, period = 0;
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    bool limited = fscanf(file, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0;
    fclose(file);
    return limited ? (int)((quota + period - 1) / period) : 0;
}

/* The least quota of the control groups of this process: its own, and those around it. */
int ra_system_quota(void)
{
    char group[4096] = "";
    int least = quota_of("");
    FILE *file = fopen("/proc/self/cgroup", "r");
    bool found = file && fscanf(file, "0::%4095[^\n]", group) == 1;
    if (file)
        fclose(file);
    for (char *end = group + strlen(group); found && end; end = strrchr(group, '/')) {
        *end = '\0';
        int quota = quota_of(group);
        if (quota > 0 && (least == 0 || quota < least))
            least = quota;
    }
    return least;
}

int64_t ra_system_memory(void)
{
    return (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
}

int64_t ra_system_memory_quota(void)
{
    long long bytes = 0;
    FILE *file = fopen("/sys/fs/cgroup/memory.max", "r");
    bool limited = file && fscanf(file, "%lld", &bytes) == 1;
    if (file)
        fclose(file);
    return limited ? bytes : INT64_MAX;
}

int ra_system_condition(pthread_cond_t *condition)
{
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    int error = pthread_cond_init(condition, &clock);
    pthread_condattr_destroy(&clock);
    return error;
}

int ra_system_wait_until(pthread_cond_t *condition, pthread_mutex_t *mutex,
                         const struct timespec *end)
{
    return pthread_cond_timedwait(condition, mutex, end);
}

int ra_system_allow_tiles(void)
{
#ifdef SYS_arch_prctl
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    return (int)syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA);
#else
    errno = ENOSYS;
    return -1;
#endif
}

#else

/* Fails: the system cannot do this in one step. */
static int no_such_call(void)
{
    errno = ENOSYS;
    return -1;
}

int ra_system_rename_new(int from_folder, const char *from, int to_folder, const char *to)
{
    (void)from_folder, (void)from, (void)to_folder, (void)to;
    return no_such_call();
}

int ra_system_exchange(const char *one, const char *other)
{
    (void)one, (void)other;
    return no_such_call();
}

int ra_system_reserve(int file, int64_t bytes)
{
    (void)file, (void)bytes;
    return EOPNOTSUPP;
}

bool ra_system_list(int folder, bool (*visit)(void *context, const char *name), void *context)
{
    bool good = true;
    DIR *entries = fdopendir(openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (struct dirent *entry; good && entries && (entry = readdir(entries));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            good = visit(context, entry->d_name);
    if (entries)
        closedir(entries);
    return good;
}

int ra_system_random(void *bytes, size_t count)
{
    int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    bool good = file >= 0 && read(file, bytes, count) == (ssize_t)count;
    if (file >= 0)
        close(file);
    return good ? 0 : -1;
}

int ra_system_unread(int file)
{
    (void)file;
    return 0;
}

int ra_system_processors(void)
{
#ifdef _SC_NPROCESSORS_ONLN
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
#else
    return 1;
#endif
}

size_t ra_system_affinity(unsigned char *bytes, size_t most)
{
    (void)bytes, (void)most;
    return 0;
}

int ra_system_quota(void)
{
    return 0;
}

int64_t ra_system_memory(void)
{
#ifdef _SC_PHYS_PAGES
    return (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
#else
    return INT64_MAX;
#endif
}

int64_t ra_system_memory_quota(void)
{
    return INT64_MAX;
}

int ra_system_condition(pthread_cond_t *condition)
{
    return pthread_cond_init(condition, NULL);
}

/* Such a condition waits by the clock of the calendar. If somebody sets that meanwhile, the wait
 * ends early or late. */
int ra_system_wait_until(pthread_cond_t *condition, pthread_mutex_t *mutex,
                         const struct timespec *end)
{
    struct timespec now, calendar;
    clock_gettime(CLOCK_MONOTONIC, &now);
    clock_gettime(CLOCK_REALTIME, &calendar);
    long nanoseconds = calendar.tv_nsec + end->tv_nsec - now.tv_nsec;
    long seconds = nanoseconds < 0 ? -1 : nanoseconds / 1000000000;
    calendar.tv_sec += end->tv_sec - now.tv_sec + seconds;
    calendar.tv_nsec = nanoseconds - seconds * 1000000000;
    return pthread_cond_timedwait(condition, mutex, &calendar);
}

int ra_system_allow_tiles(void)
{
    errno = ENOSYS;
    return -1;
}

#endif

/* Neither of them has this from POSIX, whose locks end with the first file of the process that is
 * closed. */
int ra_system_lock(int file)
{
    return flock(file, LOCK_EX | LOCK_NB);
}
