/* mpi_rig: loaded into mpirun and into its ranks, before their own libraries (LD_PRELOAD), so that
 * jobs of tests end well and begin quickly.
 *
 * Open MPI 4.1.4 with PMIx 4.2.2, as Debian 12 has them, cannot end well while a thread of theirs
 * still runs:
 *
 * - mpirun takes apart the server that its ranks have been connected with. In 4 to 8 of 100 jobs
 *   whose ranks have ended at about the same time and without MPI_Finalize it crashes there, or
 *   waits for ever: its exit code is not what the ranks asked for then. As the process is about to
 *   end, the server may as well stay.
 * - It frees the event loop that its threads have used. An event may still be queued there, on a
 *   busy machine above all, and then libevent's assertion ends mpirun with 134. The loop may stay,
 *   too.
 * - Both unload plugins, and then the thread calls a function of one that is gone: a rank in some
 *   thousands crashes in MPI_Finalize. So nothing is unloaded.
 *
 * A rank in PMIx_Finalize waits 2 s for mpirun's answer. On a busy machine that can be too short:
 * the rank then leaves without it, and mpirun says that it ended improperly, with exit code 1. So
 * ranks wait ten times as long wherever they would wait 2 s.
 *
 * At their beginning mpirun and every rank ask for the machine's PCI devices, which nobody needs
 * here. In a virtual machine each answer is a way out of it and back: a third of what a job of four
 * ranks costs.
 *
 * A rank that waits for a message looks for it, and yields the processor, over and over. To Linux
 * each yield is a time slice used up (since 79104becf42b, in 6.18), so beside programs that compute
 * it gets the processor back for one look in many milliseconds: what takes 8 s alone takes more
 * than 300 s beside six busy loops on two processors. A rank that sleeps has used up nothing, and
 * is back at once. So ranks yield while nobody else wants the processor, and nap for a while after
 * a yield that took long. And a rank that has looked in vain for 0.1 ms naps each time, for a
 * thirtieth of its wait so far, up to 1 ms: tests in which ranks wait for one that is lost
 * take the processors for a fifth. A rank that looks asks MPI for one message after another, and
 * each time that nothing is there Open MPI yields: a yield right after another is none, so that all
 * that it waits for is looked at in one turn. Eight ranks then take the processors for a third
 * less.
 *
 * Open MPI 5.0.7, as Debian 13 has it, ends messages of mpirun's own with a byte of 0, which then
 * stands before the next line that a rank says on stderr, or at the end. A log of them is no text
 * to grep, and that line no longer begins as it should. So no byte of 0 is written to stderr.
 *
 * LeakSanitizer knows what is Open MPI's by the libraries of the functions that asked for it
 * (tests/lsan.supp). It finds them by their frame pointers, and asprintf of the C library has none:
 * it hides its callers, and its own name is known only where the library's debug symbols are
 * installed. Here is one that hides nobody.
 */
#include <dlfcn.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "keep_plugins.h"
#include "ra_clock.h"

/* As in glibc with _GNU_SOURCE, which would bring an asprintf of its own, too. */
#ifndef RTLD_NEXT
#define RTLD_NEXT ((void *)-1L)
#endif

int PMIx_server_finalize(void);
struct event_base;
struct event;
int event_add(struct event *event, const struct timeval *timeout);
void event_base_free(struct event_base *base);
int hwloc_topology_set_io_types_filter(void *topology, int filter);
long syscall(long number, ...);
int vasprintf(char **text, const char *format, va_list arguments);
int asprintf(char **text, const char *format, ...);
int __vasprintf_chk(char **text, int level, const char *format, va_list arguments);
int __asprintf_chk(char **text, int level, const char *format, ...);

int PMIx_server_finalize(void)
{
    return 0; /* PMIX_SUCCESS */
}

void event_base_free(struct event_base *base)
{
    (void)base;
}

int event_add(struct event *event, const struct timeval *timeout)
{
    static const struct timeval longer = {.tv_sec = 20};
    int (*add)(struct event *, const struct timeval *) =
        (int (*)(struct event *, const struct timeval *))dlsym(RTLD_NEXT, "event_add");
    if (!add)
        return -1;
    bool is_last = timeout && timeout->tv_sec == 2 && timeout->tv_usec == 0;
    return add(event, is_last && getenv("OMPI_COMM_WORLD_RANK") ? &longer : timeout);
}

/* Unless hwloc is told which devices to look for, it looks for none. */
int hwloc_topology_set_io_types_filter(void *topology, int filter)
{
    (void)topology, (void)filter;
    return 0;
}

int sched_yield(void)
{
    static _Thread_local int naps;
    static _Thread_local double since, ended;
    double began = ra_seconds();
    if (began - ended < 3e-6)
        return 0;
    if (began - ended > 3e-5)
        since = began; /* something was done in between */
    double waited = began - since;
    if (naps > 0 || waited > 1e-4) {
        double seconds = waited < 6e-4 ? 2e-5 : waited < 3e-2 ? waited / 30 : 1e-3;
        naps -= naps > 0;
        nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * seconds)}, NULL);
    } else {
        syscall(SYS_sched_yield);
        naps = ra_seconds() - began > 1e-3 ? 100 : 0;
    }
    ended = ra_seconds();
    return 0;
}

ssize_t write(int file, const void *bytes, size_t count)
{
    if (file != STDERR_FILENO)
        return syscall(SYS_write, file, bytes, count);
    for (size_t at = 0; at < count;) {
        const char *text = (const char *)bytes + at;
        size_t length = strnlen(text, count - at);
        ssize_t done = length > 0 ? syscall(SYS_write, file, text, length) : 1;
        if (done < 0)
            return at > 0 ? (ssize_t)at : -1;
        at += (size_t)done;
    }
    return (ssize_t)count;
}

int vasprintf(char **text, const char *format, va_list arguments)
{
    va_list again;
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    *text = length < 0 ? NULL : malloc((size_t)length + 1);
    if (*text)
        vsnprintf(*text, (size_t)length + 1, format, again);
    va_end(again);
    return *text ? length : -1;
}

int asprintf(char **text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(text, format, arguments);
    va_end(arguments);
    return length;
}

/* What programs compiled with _FORTIFY_SOURCE call. */
int __vasprintf_chk(char **text, int level, const char *format, va_list arguments)
{
    (void)level;
    return vasprintf(text, format, arguments);
}

int __asprintf_chk(char **text, int level, const char *format, ...)
{
    (void)level;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(text, format, arguments);
    va_end(arguments);
    return length;
}
