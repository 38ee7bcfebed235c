/* stage_cleanup: what is hidden and must go if the program ends before stage_close.
 * Every rank knows them: the first one in trouble removes them before it ends the others, which are
 * not given the time. Static, because a signal handler has no other way to know them.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>
#include "stage_cleanup.h"

/* The results, the trace, a model, what `step` and `export` write. */
static struct ra_whole *wholes[4];

/* Whether results are getting their names, so that it is too late to stop. */
static atomic_bool kept;

void stage_cleanup_add(struct ra_whole *whole)
{
    int w = 0;
    while (wholes[w] && wholes[w] != whole)
        w++;
    wholes[w] = whole;
}

void stage_cleanup_forget(void)
{
    for (int w = 0; wholes[w]; w++)
        ra_whole_forget(wholes[w]);
}

void stage_cleanup_now(void)
{
    for (int w = 0; wholes[w]; w++)
        ra_whole_end(wholes[w]);
}

void stage_cleanup_end(void)
{
    kept = true;
}

/* Runs on any thread: MPI has some of its own, so blocking a signal would not keep it away. */
static void on_signal(int signal_number)
{
    if (kept)
        return;
    stage_cleanup_now();
    _exit(128 + signal_number);
}

void stage_cleanup_begin(void)
{
    static bool registered;
    if (!registered)
        atexit(stage_cleanup_now);
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
