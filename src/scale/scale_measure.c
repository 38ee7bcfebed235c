/* scale_measure: the rates of this machine, and the link between two of its ranks. See scale.h. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include "ra_clock.h"
#include "ring_attention.h"
#include "scale.h"

/* Query and key rows of the plan that is timed, and how often everything is. */
enum { ROWS = 1024, TIMES = 9 };

/* The seconds of the rank that took longest: a ring goes at its pace. */
static double longest(double seconds)
{
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return seconds;
}

/* An array of ROWS rows, of numbers that are not all alike. */
static struct ra_tensor array(struct scale *scale, int64_t heads, int64_t dim)
{
    float *data = stage_allocate(&scale->stage, ROWS * heads * dim, sizeof *data);
    for (int64_t e = 0; e < ROWS * heads * dim; e++)
        data[e] = (float)(e * 7919 % 2048) / 2048 - 0.5f;
    return ra_tensor_bnhd(data, RA_FLOAT32, ROWS, heads, dim);
}

/* Measures rates[0], forward, and rates[1], backward: multiply-adds a second of the slowest rank,
 * each rank with attention of its own and all of them at it together. A mean, as a run that is
 * predicted also meets whatever else the machine does. */
static void measure_rates(struct scale *scale, double rates[2])
{
    const struct stage *stage = &scale->stage;
    struct ra_config c = scale->config;
    char error[RA_ERROR_SIZE];
    struct ra_plan *plan;
    c.batch = c.ring_size = 1;
    c.queries = c.keys = ROWS;
    c.heads = 4;
    c.key_heads = RA_SAME;
    c.type = RA_FLOAT32;
    c.causal = c.forward_only = false;
    c.lookback = RA_NO_LOOKBACK;
    scale_check(scale, ra_plan_create(&plan, &c, NULL, error), error);
    struct ra_arrays x = RA_ARRAYS_INIT;
    struct ra_tensor *all[] = {&x.q, &x.k, &x.v, &x.o, &x.d_out, &x.dq, &x.dk, &x.dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        *all[i] = array(scale, c.heads, c.dim);
    x.lse = ra_tensor_bhn(array(scale, c.heads, 1).data, ROWS, c.heads);

    /* The first time, in which memory is touched, does not count. */
    double seconds[2] = {0, 0};
    for (int time = 0; time <= TIMES; time++)
        for (int pass = 0; pass < 2; pass++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double began = ra_seconds();
            enum ra_status status = (pass == 0 ? ra_forward : ra_backward)(plan, &x);
            if (status != RA_OK)
                stage_fail(stage, "%s", ra_plan_error(plan));
            double took = longest(ra_seconds() - began);
            seconds[pass] += time > 0 ? took / TIMES : 0;
        }
    ra_plan_destroy(plan);
    double products = (double)(ROWS * c.heads * c.dim) * ROWS;
    for (int pass = 0; pass < 2; pass++)
        rates[pass] = (pass == 0 ? 2 : 5) * products / seconds[pass];
}

/* Seconds until a message of this many bytes has come from the left neighbour, while all send to
 * the right: the shortest, in which nobody had to wait for a processor. */
static double measure_message(struct scale *scale, int bytes, int times)
{
    int rank = scale->stage.world.rank, P = scale->stage.world.ranks;
    char *from = stage_zeros(&scale->stage, bytes, 1), *to = stage_zeros(&scale->stage, bytes, 1);
    double least = INFINITY;
    for (int time = 0; time < times; time++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double began = ra_seconds();
        MPI_Sendrecv(from, bytes, MPI_BYTE, (rank + 1) % P, 0, to, bytes, MPI_BYTE,
                     (rank + P - 1) % P, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        least = fmin(least, longest(ra_seconds() - began));
    }
    return least;
}

void scale_measure(struct scale *scale)
{
    enum { SHORT = 8, LONG = 1 << 22, LONGEST = 1 << 24 };
    double rates[2], shortest = 0, seconds[2] = {0, 0};
    bool several = scale->stage.world.ranks > 1;
    measure_rates(scale, rates);
    if (several) {
        shortest = measure_message(scale, SHORT, 100 * TIMES);
        seconds[0] = measure_message(scale, LONG, 2 * TIMES);
        seconds[1] = measure_message(scale, LONGEST, TIMES);
    }
    if (scale->stage.world.rank != 0)
        return;
    printf("--forward-rate %.4g --backward-rate %.4g", rates[0], rates[1]);
    if (several) {
        const double bytes[] = {LONG, LONGEST};
        double bandwidth, latency;
        scale_line(bytes, seconds, shortest, &bandwidth, &latency);
        printf(" --bandwidth %.4g --latency %.3g", bandwidth, latency);
    }
    putchar('\n');
}
