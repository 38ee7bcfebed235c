/* stage_mpi: a stage program that runs on the ranks of an MPI job. See stage_mpi.h. */
#include "stage_mpi.h"

#include <mpi.h>
#include <sched.h>
#include <stdlib.h>
#include "ra_clock.h"

/* Whether MPI is ours to end. Static, because leave() is called without arguments. */
static bool started_here;

/* A collective that blocks would hang with a rank that has died; this one gives up. */
static bool gather(int64_t mine, int64_t *all, double timeout)
{
    MPI_Request request;
    int done = 0;
    double began = ra_seconds();
    MPI_Iallgather(&mine, 1, MPI_INT64_T, all, 1, MPI_INT64_T, MPI_COMM_WORLD, &request);
    while (!done) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (!done && timeout > 0 && ra_seconds() - began > timeout)
            return false;
        if (!done)
            sched_yield();
    }
    return true;
}

static void stop(int exit_code)
{
    MPI_Abort(MPI_COMM_WORLD, exit_code);
    exit(exit_code);
}

static void leave(void)
{
    if (started_here)
        MPI_Finalize();
}

void stage_open_mpi(struct stage *stage, int argc, char **argv, int number, const char *program,
                    const char *about)
{
    int running;
    MPI_Initialized(&running);
    started_here = !running;
    if (started_here)
        MPI_Init(&argc, &argv);

    *stage = (struct stage){.program = program,
                            .number = number,
                            .about = about,
                            .world = {.gather = gather, .stop = stop, .leave = leave},
                            .config = RA_CONFIG_INIT,
                            .result_type = NPY_FLOAT32};
    MPI_Comm_rank(MPI_COMM_WORLD, &stage->world.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &stage->world.ranks);

    /* Ranks that share memory share the machine. */
    MPI_Comm machine;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Comm_size(machine, &stage->world.ranks_here);
    MPI_Comm_free(&machine);
    stage_open_in(stage, argc, argv);
}
