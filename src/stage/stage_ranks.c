/* stage_ranks: the ranks of a program. See stage_ranks.h. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ra_clock.h"
#include "stage.h"
#include "stage_cleanup.h"

/* When progress was last shown, and whether its line is still open on the terminal. */
static double last_progress;
static bool progress_shown;

static int gather_alone(int64_t mine, int64_t *all, double timeout)
{
    (void)timeout;
    all[0] = mine;
    return 1;
}

static bool speaks_alone(void)
{
    return true;
}

static void show_nobody(double timeout)
{
    (void)timeout;
}

static void follow_nobody(void)
{
}

static void leave_alone(double timeout)
{
    (void)timeout;
}

const struct stage_world stage_alone = {
    0, 1, 1, gather_alone, speaks_alone, show_nobody, follow_nobody, exit, leave_alone};

/* Prints the message, if it is this rank's to print, and ends all ranks: the one that speaks does
 * it, so that its words come out and MPI aborts once. `names`: it says which rank it is. */
__attribute__((noreturn)) static void stop_all(const struct stage *stage, int exit_code,
                                               bool speaks, bool names, const char *message)
{
    char who[40] = "";
    if (names)
        snprintf(who, sizeof who, "rank %d: ", stage->world.rank);
    if (speaks)
        fprintf(stderr, "%s%s: %s%s\n", progress_shown ? "\n" : "", stage->program, who, message);
    else
        stage->world.follow();
    stage_cleanup_now();
    stage->world.stop(exit_code);
    exit(exit_code);
}

void stage_gather(const struct stage *stage, int64_t mine)
{
    char message[200];
    int missing = stage->world.gather(mine, stage->gathered, stage->config.timeout);
    if (missing == stage->world.ranks)
        return;
    snprintf(message, sizeof message,
             "waited more than %g s for rank %d to report; has it died? If it is only slow, give a "
             "longer --timeout",
             stage->config.timeout, missing);
    stop_all(stage, 1, stage->world.speaks(), true, message);
}

/* Gathers the exit codes of all ranks, 0 from those that go on. Returns the first rank in trouble,
 * which speaks for all, or the number of ranks if there is none. */
static int first_in_trouble(const struct stage *stage, int exit_code)
{
    int first = 0;
    stage_gather(stage, exit_code);
    while (first < stage->world.ranks && stage->gathered[first] == 0)
        first++;
    return first;
}

void stage_check_all(const struct stage *stage)
{
    int first = first_in_trouble(stage, 0);
    if (first < stage->world.ranks)
        stop_all(stage, (int)stage->gathered[first], false, false, "");
}

int stage_other(const struct stage *stage, int64_t mine)
{
    stage_check_all(stage);
    stage_gather(stage, mine);
    for (int r = 1; r < stage->world.ranks; r++)
        if (stage->gathered[r] != stage->gathered[0])
            return r;
    return 0;
}

void stage_agree(const struct stage *stage, int exit_code, const char *what, int64_t mine)
{
    int other = stage_other(stage, mine);
    if (other > 0)
        stage_end(stage, exit_code,
                  "ranks disagree about %s: rank 0 has %" PRId64 ", rank %d has %" PRId64, what,
                  stage->gathered[0], other, stage->gathered[other]);
}

bool stage_is_there(const struct stage *stage, const char *path)
{
    struct stat status;
    if (lstat(path, &status) == 0)
        return true;
    if (errno != ENOENT)
        stage_fail(stage, "%s: %s", path, strerror(errno));
    return false;
}

bool stage_all_find(const struct stage *stage, const char *path)
{
    bool there = stage_is_there(stage, path);
    int other = stage_other(stage, there);
    if (other > 0)
        stage_end(stage, 1, "ranks disagree about %s: rank 0 has %s, rank %d has %s", path,
                  stage->gathered[0] ? "it" : "none", other, stage->gathered[0] ? "none" : "it");
    return there;
}

/* Prints the message and ends this rank, and with it all others. */
__attribute__((noreturn, format(printf, 3, 0))) static void end(const struct stage *stage,
                                                                int exit_code, const char *format,
                                                                va_list arguments)
{
    char message[3 * PATH_MAX];
    vsnprintf(message, sizeof message, format, arguments);

    /* A path or a flag may hold line ends: the message must stay one line. */
    for (char *at = message; *at != '\0'; at++)
        if ((unsigned char)*at < ' ' || *at == '\x7f')
            *at = '?';

    /* What goes wrong before all is open goes wrong on all ranks alike, most of the time: the first
     * of them prints it, with its number if other ranks are well. Later each speaks for itself.
     * What all ranks have agreed on names its rank already. */
    int named = 0, ranks = stage->world.ranks;
    sscanf(message, "rank %*d: %n", &named);
    bool names = stage->opened && ranks > 1 && named == 0;
    bool speaks = stage->opened ? stage->world.speaks()
                                : first_in_trouble(stage, exit_code) == stage->world.rank;
    for (int r = 0; r < ranks && !stage->opened; r++)
        names = names || stage->gathered[r] == 0;
    stop_all(stage, exit_code, speaks, names, message);
}

void stage_end(const struct stage *stage, int exit_code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    end(stage, exit_code, format, arguments);
}

void stage_fail(const struct stage *stage, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    end(stage, 1, format, arguments);
}

void stage_check(const struct stage *stage, enum ra_status status, const char *error)
{
    if (status != RA_OK)
        stage_fail(stage, "%s", error);
}

void stage_progress(const struct stage *stage, const char *phase, int64_t done, int64_t total)
{
    /* Once a second, from the second second on, and only where somebody may be looking. */
    double now = ra_seconds();
    if (last_progress == 0)
        last_progress = now;
    if (now - last_progress < 1 || stage->world.rank > 0 || !isatty(STDERR_FILENO))
        return;
    last_progress = now;
    progress_shown = true;
    fprintf(stderr, "\r%s: %s %3.0f %%", stage->program, phase, 100 * (double)done / (double)total);
}

void stage_progress_end(void)
{
    if (progress_shown)
        fputc('\n', stderr);
    progress_shown = false;
}

void stage_flush(const struct stage *stage)
{
    if (fflush(stdout) != 0 || ferror(stdout))
        stage_fail(stage, "cannot write to stdout: %s", strerror(errno));
}

int64_t stage_whole_batch(const struct stage *stage, int64_t b)
{
    int rings = stage->world.ranks / stage->config.ring_size;
    return b * rings + stage->world.rank / stage->config.ring_size;
}
