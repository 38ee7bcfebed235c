/* stage_mpi: a stage program that runs on the ranks of an MPI job. See stage_mpi.h. */
#include "stage_mpi.h"

#include <dlfcn.h>
#include <math.h>
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "ra_clock.h"
#include "ra_system.h"

/* The functions of a world have no argument for what they know: so it is static. */
static struct {
    const char *program;
    bool started_here; /* MPI is ours to end */
    int rank, ranks;

    /* What the ranks tell each other: a number that all gather, or only that this rank makes
     * progress. By rank: what comes in, and the requests for it and for what goes out. */
    struct report {
        int64_t is_number, number;
    } own, *reports;
    MPI_Request *in, *out;

    double shown, timeout;    /* when this rank last told of its progress, and how often it does */
    bool (*poll)(void *link); /* whenever this is called */
} world;

/* ---- MPI's own beginning and end. They wait for all ranks without limit, and nothing can be asked
 * meanwhile; so a signal ends this rank in time, and mpirun the others. */

/* Starting a job takes seconds on a busy machine, however well all is. */
enum { SHORTEST_TIMEOUT = 10 };

static char watchdog_text[200];
static int watchdog_code;

static void end_by_watchdog(int number)
{
    (void)number;
    ssize_t written = write(STDERR_FILENO, watchdog_text, strlen(watchdog_text));
    _exit(written < 0 && watchdog_code == 0 ? 1 : watchdog_code);
}

/* Ends this rank, with these words and this code, if what follows takes longer than the timeout. */
static void start_watchdog(double timeout, int exit_code, const char *words)
{
    double seconds = ceil(fmax(timeout, SHORTEST_TIMEOUT));
    watchdog_code = exit_code;
    snprintf(watchdog_text, sizeof watchdog_text, "%s: waited %g s for all ranks to %s\n",
             world.program, seconds, words);
    signal(SIGALRM, end_by_watchdog);
    alarm(timeout > 0 && seconds < 1e9 ? (unsigned)seconds : 0);
}

static void stop_watchdog(void)
{
    alarm(0);
    signal(SIGALRM, SIG_DFL);
}

/* --timeout, before the command line is read, for which MPI must run. What is wrong about it will
 * be said then. */
static double timeout_of(int argc, char **argv)
{
    double seconds = 60;
    for (int a = 1; a < argc; a++)
        if (strncmp(argv[a], "--timeout=", 10) == 0)
            seconds = atof(argv[a] + 10);
        else if (strcmp(argv[a], "--timeout") == 0 && a + 1 < argc)
            seconds = atof(argv[a + 1]);
    return seconds;
}

/* ---- What the ranks tell each other, under a tag that is no ra_message. */

enum { REPORT = 100, END };

/* Begins to receive the next report of a rank. */
static void post_receive(int rank)
{
    MPI_Irecv(&world.reports[rank], 2, MPI_INT64_T, rank, REPORT, MPI_COMM_WORLD, &world.in[rank]);
}

/* Is there nothing more to hear from this rank, and has it got what was sent? Sets *progress if it
 * has told of any. */
static bool has_come(int rank, int64_t *all, bool *progress)
{
    int heard = 0, sent = 0;
    MPI_Test(&world.out[rank], &sent, MPI_STATUS_IGNORE);
    if (world.in[rank] == MPI_REQUEST_NULL)
        return sent;
    MPI_Test(&world.in[rank], &heard, MPI_STATUS_IGNORE);
    *progress = *progress || heard;
    if (heard && world.reports[rank].is_number)
        all[rank] = world.reports[rank].number;
    else if (heard)
        post_receive(rank);
    return false;
}

/* A collective that blocks would hang with a rank that has died; this one gives up, and knows which
 * rank is missing. It gives the others more time than the ring gives them: whoever waits for the
 * dead rank there knows better what was due. */
static int gather(int64_t mine, int64_t *all, double timeout)
{
    double patience = 2 * timeout, began = ra_seconds(), looked = began;
    world.own = (struct report){1, mine};
    all[world.rank] = mine;
    for (int r = 0; r < world.ranks; r++)
        if (r != world.rank) {
            post_receive(r);
            MPI_Isend(&world.own, 2, MPI_INT64_T, r, REPORT, MPI_COMM_WORLD, &world.out[r]);
        }
    for (;;) {
        bool progress = false;
        int missing = world.ranks;
        for (int r = world.ranks - 1; r >= 0; r--)
            if (r != world.rank && !has_come(r, all, &progress))
                missing = r;

        /* A rank that was stopped itself has heard nobody meanwhile. */
        double now = ra_seconds();
        if (progress || now - looked > timeout / 2)
            began = now;
        looked = now;
        if (missing == world.ranks || (timeout > 0 && now - began > patience))
            return missing;
        sched_yield();
    }
}

static void show(double timeout)
{
    static const struct report progress = {0, 0};
    double now = ra_seconds();
    bool due = timeout > 0 && now - world.shown > timeout / 4;
    world.shown = due ? now : world.shown;
    for (int r = 0; r < world.ranks && due; r++) {
        MPI_Request request;
        if (r == world.rank)
            continue;

        /* It never changes, so nobody waits until it has left. Its receiver hears it before this
         * rank's next number. */
        MPI_Isend(&progress, 2, MPI_INT64_T, r, REPORT, MPI_COMM_WORLD, &request);
        MPI_Request_free(&request);
    }
}

/* The link's own poll, after which the others hear of this rank's progress, if it is time for
 * that. */
static bool poll_and_show(void *link)
{
    show(world.timeout);
    return world.poll(link);
}

void stage_show_progress(const struct stage *stage, struct ra_link *link)
{
    world.timeout = stage->config.timeout;
    world.poll = link->poll;
    link->poll = poll_and_show;
}

/* ---- The end of a run that has failed. What one rank notices, others often notice at the same
 * time, or hear of from it: each tells those above it that it will speak, and listens for a moment
 * to those below. */

static bool speaks(void)
{
    const double moment = 1;
    int told = 0;
    for (int r = world.rank + 1; r < world.ranks; r++) {
        MPI_Request request;
        MPI_Isend(NULL, 0, MPI_BYTE, r, END, MPI_COMM_WORLD, &request);
        MPI_Request_free(&request);
    }
    for (double began = ra_seconds(); world.rank > 0 && !told && ra_seconds() - began < moment;) {
        MPI_Iprobe(MPI_ANY_SOURCE, END, MPI_COMM_WORLD, &told, MPI_STATUS_IGNORE);
        sched_yield();
    }
    return !told;
}

/* If that end does not come, for that rank has died, this rank makes its own. */
static void follow(void)
{
    sleep(SHORTEST_TIMEOUT);
}

/* What this rank has printed must be out of its pipe before MPI is aborted: mpirun may then read no
 * more. */
static void drain(double patience)
{
    for (double began = ra_seconds();
         ra_system_unread(STDERR_FILENO) > 0 && ra_seconds() - began < patience;)
        sched_yield();
}

static void stop(int exit_code)
{
    drain(5);

    /* The line of error is printed. Open MPI 4 would add nine about MPI_Abort, and reads this
     * before it does; the same as a setting would also silence what it says when it cannot
     * connect. */
    bool *quiet = dlsym(dlopen(NULL, RTLD_LAZY), "orte_execute_quiet");
    if (quiet)
        *quiet = true;
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    exit(exit_code);
}

static void leave(double timeout)
{
    if (!world.started_here)
        return;
    start_watchdog(timeout, 0, "end MPI; has one died? What this run has written is not affected");
    MPI_Finalize();
    stop_watchdog();
}

/* ---- Opening. */

/* Memory for what the ranks tell each other, once, however often a process opens a stage. */
static void take_memory(const struct stage *stage)
{
    world.rank = stage->world.rank;
    world.ranks = stage->world.ranks;
    world.shown = ra_seconds();
    if (world.reports)
        return;
    size_t ranks = (size_t)world.ranks;
    world.reports = calloc(ranks, sizeof *world.reports);
    world.in = malloc(ranks * sizeof *world.in);
    world.out = malloc(ranks * sizeof *world.out);
    if (!world.reports || !world.in || !world.out) {
        fprintf(stderr, "%s: out of memory\n", world.program);
        stop(1);
    }
    for (int r = 0; r < world.ranks; r++)
        world.in[r] = world.out[r] = MPI_REQUEST_NULL;
}

void stage_begin_mpi(struct stage *stage, int argc, char **argv, int number, const char *program,
                     const char *about)
{
    int running;
    MPI_Initialized(&running);
    world.program = program;
    world.started_here = !running;
    if (world.started_here)
        start_watchdog(timeout_of(argc, argv), 1,
                       "start MPI; has one died? If one is only slow, give a longer --timeout");
    if (world.started_here)
        MPI_Init(&argc, &argv);

    *stage = (struct stage){.program = program,
                            .number = number,
                            .about = about,
                            .world = {.gather = gather,
                                      .speaks = speaks,
                                      .show = show,
                                      .follow = follow,
                                      .stop = stop,
                                      .leave = leave},
                            .config = RA_CONFIG_INIT,
                            .result_type = NPY_FLOAT32};
    MPI_Comm_rank(MPI_COMM_WORLD, &stage->world.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &stage->world.ranks);

    /* Ranks that share memory share the machine. */
    MPI_Comm machine;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Comm_size(machine, &stage->world.ranks_here);
    MPI_Comm_free(&machine);
    if (world.started_here)
        stop_watchdog();
    take_memory(stage);
}

void stage_open_mpi(struct stage *stage, int argc, char **argv, int number, const char *program,
                    const char *about)
{
    stage_begin_mpi(stage, argc, argv, number, program, about);
    stage_open_in(stage, argc, argv);
}
