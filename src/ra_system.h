/* ra_system: what this project needs of the system that is not in POSIX, or not in macOS. All other
 * files use only POSIX (with XSI, for realpath) and getopt_long, except src/cuda, which needs Linux
 * anyway and may read /proc. So these are the functions to write for another system. ra_system.c
 * has them for Linux, and a second time with nothing but POSIX. The second half has been tested on
 * Linux only; nothing here has ever run on macOS.
 *
 * Common ground. Not installed. A function that returns an int returns 0, or -1 with errno, unless
 * its comment says otherwise.
 */
#ifndef RA_SYSTEM_H
#define RA_SYSTEM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Renames a file or folder unless the new name is taken; exchanges two names. Both are atomic: if
 * the file system cannot do that, errno is EINVAL or ENOSYS. */
int ra_system_rename_new(int from_folder, const char *from, int to_folder, const char *to);
int ra_system_exchange(const char *one, const char *other);

/* Locks an open file for its process, without waiting: EWOULDBLOCK if another one has locked it. */
int ra_system_lock(int file);

/* Reserves this many bytes of disk for a file. Returns 0 or an error: EINVAL or EOPNOTSUPP if the
 * file system cannot reserve anything. */
int ra_system_reserve(int file, int64_t bytes);

/* Calls `visit` for each name in an open folder, except . and .. , until `visit` returns false, and
 * then returns false. On Linux it allocates nothing, so a signal handler may call it. */
bool ra_system_list(int folder, bool (*visit)(void *context, const char *name), void *context);

/* Fills memory with random bytes. */
int ra_system_random(void *bytes, size_t count);

/* Counts the bytes in a pipe, or on their way to a terminal, that have not been read; 0 if that is
 * unknown. */
int ra_system_unread(int file);

/* Counts the processors that this process may run on. */
int ra_system_processors(void);

/* Writes which processors this process may run on, as bytes that are equal for the same set, `most`
 * of them at most. Returns the number of bytes. */
size_t ra_system_affinity(unsigned char *bytes, size_t most);

/* Returns how many processors' time the control group allows this process, rounded up; 0 if there
 * is no limit. */
int ra_system_quota(void);

/* Counts the bytes of memory of the machine. */
int64_t ra_system_memory(void);

/* Counts the bytes of memory that the control group allows; INT64_MAX if there is no limit. */
int64_t ra_system_memory_quota(void);

/* Asks the system to let this process use the tiles of AMX: a thread with tiles has 8 KB more to
 * save. ENOSYS where there is nobody to ask. */
int ra_system_allow_tiles(void);

/* Makes a condition variable whose timed waits use ra_clock's clock, which setting the time does
 * not change. */
int ra_system_condition(pthread_cond_t *condition);
int ra_system_wait_until(pthread_cond_t *condition, pthread_mutex_t *mutex,
                         const struct timespec *end);

#endif
