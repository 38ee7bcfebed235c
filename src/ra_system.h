/* ra_system: what this project asks of the system that POSIX does not name, or macOS does not have. Elsewhere only
 * POSIX is used (with XSI, for realpath) and getopt_long; src/cuda, whose GPUs want Linux, may read /proc. So this is
 * what another system has to be given. ra_system.c has it for Linux, and once more from POSIX alone; that half has
 * been tried on Linux only. Nothing here has ever run on macOS.
 *
 * Common ground. Not installed. What returns an int returns 0, or -1 with errno, unless it says otherwise.
 */
#ifndef RA_SYSTEM_H
#define RA_SYSTEM_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

/* Renames something unless the new name is taken; exchanges two names. In one step: where that cannot be, errno is
 * EINVAL or ENOSYS. */
int ra_system_rename_new(int from_folder, const char *from, int to_folder, const char *to);
int ra_system_exchange(const char *one, const char *other);

/* Locks an open file for its process, without waiting: EWOULDBLOCK if another one has locked it. */
int ra_system_lock(int file);

/* Gives a file this many bytes on its disk. Returns 0 or an error: EINVAL and EOPNOTSUPP if nothing can be reserved
 * there. */
int ra_system_reserve(int file, int64_t bytes);

/* Calls `visit` for each name in a folder that is open, but . and .. , until it returns false; returns false then. On Linux it
 * allocates nothing, so that a signal handler may call it. */
bool ra_system_list(int folder, bool (*visit)(void *context, const char *name), void *context);

/* Fills memory with random bytes. */
int ra_system_random(void *bytes, size_t count);

/* How many bytes in a pipe, or on their way to a terminal, nobody has read; 0 if that is unknown. */
int ra_system_unread(int file);

/* How many processors this process may run on; and which, as bytes that compare equal if they are the same. Returns
 * how many bytes. */
int ra_system_processors(void);
size_t ra_system_affinity(unsigned char *bytes, size_t most);

/* Processors whose time the control group gives this process, rounded up; 0: no limit. */
int ra_system_quota(void);

/* Bytes of memory that the machine has; and that the control group allows, INT64_MAX if it does not limit them. */
int64_t ra_system_memory(void);
int64_t ra_system_memory_quota(void);

/* A condition with waits that end at a time of ra_clock's clock, which nobody sets. */
int ra_system_condition(pthread_cond_t *condition);
int ra_system_wait_until(pthread_cond_t *condition, pthread_mutex_t *mutex,
                         const struct timespec *end);

#endif
