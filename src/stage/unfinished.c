/* unfinished: the hidden files and the folder that must go if the program ends before stage_close.
 * Every rank knows them: the first one in trouble removes them before it ends the others, which are
 * not given the time. Static, because a signal handler has no other way to know them.
 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "ra_whole.h"
#include "stage_parts.h"

/* The results and their folder. Empty: there is none. */
static char results[STAGE_RESULTS][PATH_MAX + 10], folder[PATH_MAX];

/* All else that is hidden: the trace, a model, what `step` and `export` write. */
static struct ra_whole *wholes[4];

/* Whether results are getting their names, so that it is too late to stop. */
static atomic_bool kept;

void stage_unfinished_results(const char *path)
{
    /* A signal may come at any time, and half a path would be somebody else's: none counts until the
     * folder's first character, which comes last. */
    folder[0] = '\0';
    atomic_thread_fence(memory_order_release);
    for (int r = 0; r < STAGE_RESULTS; r++)
        snprintf(results[r], sizeof results[r], "%s/%s", path, stage_result_files[r]);
    snprintf(folder + 1, sizeof folder - 1, "%s", path + 1);
    atomic_thread_fence(memory_order_release);
    folder[0] = path[0];
}

void stage_unfinished_add(struct ra_whole *whole)
{
    int w = 0;
    while (wholes[w] && wholes[w] != whole)
        w++;
    wholes[w] = whole;
}

const char *stage_unfinished_result(enum stage_result result)
{
    return results[result];
}

void stage_unfinished_forget(void)
{
    folder[0] = '\0';
    for (int w = 0; wholes[w]; w++)
        ra_whole_forget(wholes[w]);
}

void stage_unfinished_remove(void)
{
    /* o.npy last: it is the lock of all. */
    bool removed = folder[0] != '\0';
    for (int r = STAGE_RESULTS - 1; r >= 0 && removed; r--)
        removed = unlink(results[r]) == 0 || errno == ENOENT;
    if (removed)
        rmdir(folder);
    for (int w = 0; wholes[w]; w++)
        ra_whole_end(wholes[w]);
}

void stage_unfinished_keep(void)
{
    kept = true;
}

/* Runs on any thread: MPI has some of its own, so blocking a signal would not keep it away. */
static void on_signal(int signal_number)
{
    if (kept)
        return;
    stage_unfinished_remove();
    _exit(128 + signal_number);
}

void stage_unfinished_guard(void)
{
    static bool registered;
    if (!registered)
        atexit(stage_unfinished_remove);
    registered = true;
    kept = false;

    /* What users and batch systems end a program with. After SIGKILL and crashes the next run
     * clears up. */
    const int deadly[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU};
    for (size_t s = 0; s < sizeof deadly / sizeof *deadly; s++) {
        /* What nohup or a shell's & made us ignore must stay ignored. */
        struct sigaction before;
        sigaction(deadly[s], NULL, &before);
        if (before.sa_handler != SIG_IGN)
            sigaction(deadly[s], &(struct sigaction){.sa_handler = on_signal}, NULL);
    }
}
