/* unfinished: the files and the folder that must go if the program ends before stage_close. Every
 * rank knows them: the first one in trouble removes them before it ends the others, which are not
 * given the time. Static, because a signal handler has no other way to know them.
 */
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "stage_parts.h"

/* The results' files, and behind them their folder. */
static char paths[STAGE_RESULTS + 1][PATH_MAX];

/* Whether results are getting their names, so that it is too late to stop. */
static atomic_bool kept;

void stage_unfinished_note(enum stage_result result, const char *path)
{
    snprintf(paths[result], sizeof paths[result], "%s", path);
}

const char *stage_unfinished_path(enum stage_result result)
{
    return paths[result];
}

void stage_unfinished_forget(void)
{
    for (int r = 0; r <= STAGE_RESULTS; r++)
        paths[r][0] = '\0';
}

void stage_unfinished_remove(void)
{
    for (int r = 0; r < STAGE_RESULTS; r++)
        if (paths[r][0])
            unlink(paths[r]);
    if (paths[STAGE_RESULTS][0])
        rmdir(paths[STAGE_RESULTS]);
}

void stage_unfinished_keep(bool keep)
{
    kept = keep;
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
    const int deadly[] = {SIGINT, SIGTERM, SIGHUP};
    for (int s = 0; s < 3; s++) {
        /* What nohup or a shell's & made us ignore must stay ignored. */
        struct sigaction before;
        sigaction(deadly[s], NULL, &before);
        if (before.sa_handler != SIG_IGN)
            sigaction(deadly[s], &(struct sigaction){.sa_handler = on_signal}, NULL);
    }
}
