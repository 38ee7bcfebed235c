/* batch: runs many command lines of one stage in one MPI job. To start a job takes far longer than
 * to run a small problem, and grid has thousands of them.
 *   mpirun -n P build/batch-03-ring LIST FIRST SECONDS
 * It is linked with the object of a stage whose main is renamed to stage_main. A line of LIST is a
 * command line, split at blanks, whose last word is RESULT; what rank 0 prints on stdout goes to
 * RESULT.counts. The lines before FIRST, counted from 0, are left out. LIST.at says which line is
 * at work, or how many lines there are once all are done. A line that fails, or takes more than
 * SECONDS, ends the job.
 *
 * With BATCH_EARLY in the environment messages come as early as they can. Otherwise a small one
 * nearly always comes when the rank waits for it, and no work shows that it was received into a
 * place that was still in use.
 */
#include <getopt.h>
#include <mpi.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "ra_clock.h"
#include "ra_link.h"

enum { LONGEST_LINE = 4096, MOST_WORDS = 100 };

int stage_main(int argc, char **argv);

/* MPI lets a program stand in for its functions. The receive that was begun last, of data. */
static MPI_Request *receive;

int MPI_Irecv(void *into, int count, MPI_Datatype type, int rank, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    receive = tag < RA_CALL ? request : NULL;
    return PMPI_Irecv(into, count, type, rank, tag, comm, request);
}

/* A rank begins to receive before it sends, so all have sent when they wait here. But gradients
 * that come home are sent later: a rank waits for those in vain, for a moment. */
int MPI_Isend(const void *from, int count, MPI_Datatype type, int rank, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    int code = PMPI_Isend(from, count, type, rank, tag, comm, request), here = 0;
    double start = ra_seconds();
    while (receive && getenv("BATCH_EARLY") && !here && ra_seconds() - start < 0.02) {
        PMPI_Request_get_status(*receive, &here, MPI_STATUS_IGNORE);
        sched_yield();
    }
    receive = NULL;
    return code;
}

/* Ends all ranks: the job cannot go on. */
static void stop(const char *what, const char *which)
{
    fprintf(stderr, "batch: %s: %s\n", which, what);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Notes the line that begins. No rank is still in the line before, and none begins earlier: so
 * if any of them fails, it fails in this line. */
static void note(const char *list, int line)
{
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        char path[LONGEST_LINE];
        snprintf(path, sizeof path, "%s.at", list);
        FILE *file = fopen(path, "w");
        if (!file || fprintf(file, "%d\n", line) < 0 || fclose(file) != 0)
            stop("cannot be written", path);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Runs the stage with the words of a line. */
static void run(char *line)
{
    char *words[MOST_WORDS + 2] = {"stage"}, path[LONGEST_LINE + 10] = "/dev/null";
    int count = 1, rank;
    for (char *word = strtok(line, " \n"); word && count <= MOST_WORDS; word = strtok(NULL, " \n"))
        words[count++] = word;

    /* The counts come from rank 0 alone, but a stage may print on any. */
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0)
        snprintf(path, sizeof path, "%s.counts", words[count - 1]);
    if (!freopen(path, "w", stdout))
        stop("cannot be written", path);

    /* 0 and not 1: glibc then forgets what it was about to read in the line before. */
    optind = 0;
    int exit_code = stage_main(count, words);
    if (exit_code != 0)
        MPI_Abort(MPI_COMM_WORLD, exit_code);
}

int main(int argc, char **argv)
{
    /* A rank that hangs is killed by its alarm, and the job with it. */
    if (argc != 4) {
        fprintf(stderr, "usage: batch LIST FIRST SECONDS\n");
        return 2;
    }
    int first = atoi(argv[2]);
    unsigned seconds = (unsigned)atoi(argv[3]);
    alarm(seconds);

    MPI_Init(&argc, &argv);
    FILE *list = fopen(argv[1], "r");
    if (!list)
        stop("cannot be opened", argv[1]);
    char line[LONGEST_LINE];
    int at = 0;
    for (; fgets(line, sizeof line, list); at++) {
        if (at < first)
            continue;
        alarm(seconds);
        note(argv[1], at);
        run(line);
    }
    note(argv[1], at);
    fclose(list);
    MPI_Finalize();
    return 0;
}
