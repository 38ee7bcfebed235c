/* bench-decode: attention of one new token over a cache that is sharded over ranks, by the ring and
 * by a tree.
 *
 *   mpirun -n RANKS build/bench-decode [POSITIONS [REPEATS]]      (65536 positions, 9 repeats)
 *
 * Chapter 10. One layer, 8 query heads on 2 heads of keys, D = 64, one thread of each rank. Both
 * ways get the same keys, striped, and go on when all ranks have o. Bytes are those of the rank
 * that sends most: of the ring as its plan says; of the tree what a reduction sends that doubles
 * the distance at each step. Times are medians. Fails if the results differ by more than rounding,
 * or if ranks have other bits after the tree.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "median.h"
#include "ra_clock.h"
#include "ra_tree.h"
#include "usage.h"

static const char usage[] =
    "usage: mpirun -n RANKS bench-decode [POSITIONS [REPEATS]]      (65536 and 9)\n";

enum { HEADS = 8, KEY_HEADS = 2, DIM = 64, NUMBERS = HEADS * DIM, KEYS = KEY_HEADS * DIM };

static int rank, ranks;

static void check(enum ra_status status, const char *error)
{
    if (status == RA_OK)
        return;
    fprintf(stderr, "bench-decode: %s\n", error);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Number `c` of a row of q (part 0), k (1) or v (2), about -1 to 1. */
static float number(int part, int64_t row, int64_t c)
{
    uint64_t z = (uint64_t)(3 * (row * NUMBERS + c) + part + 1) * 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    return (float)(z >> 40) * 0x1p-23f - 1;
}

/* Bytes of the rank of a ring that sends most. */
static int64_t ring_bytes(struct ra_plan *plan)
{
    int64_t most = 0;
    for (int r = 0; r < ranks; r++) {
        int64_t bytes = 0;
        for (int step = 0; step < ra_plan_hops(plan); step++) {
            struct ra_hop hop;
            check(ra_plan_hop(plan, r, step, false, &hop), ra_plan_error(plan));
            bytes += hop.bytes;
        }
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* The query is on the rank that has row 0 of one: it alone gets o, and sends it to all. */
static double time_ring(struct ra_plan *plan, const struct ra_arrays *arrays, int repeats,
                        double *times)
{
    for (int i = -1; i < repeats; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = ra_seconds();
        check(ra_forward(plan, arrays), ra_plan_error(plan));
        MPI_Bcast(arrays->o.data, NUMBERS, MPI_FLOAT, 0, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
        if (i >= 0)
            times[i] = ra_seconds() - start;
    }
    return median(times, repeats);
}

static double time_tree(struct ra_tree *tree, struct ra_tensor q, struct ra_tensor o, int repeats,
                        double *times)
{
    struct ra_arrays x = RA_ARRAYS_INIT;
    x.q = q;
    x.o = o;
    for (int i = -1; i < repeats; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = ra_seconds();
        check(ra_tree_attend(tree, 1, &x), ra_tree_error(tree));
        MPI_Barrier(MPI_COMM_WORLD);
        if (i >= 0)
            times[i] = ra_seconds() - start;
    }
    return median(times, repeats);
}

/* How many ranks have other bits than rank 0. */
static int others(const float *o)
{
    float first[NUMBERS];
    memcpy(first, o, sizeof first);
    MPI_Bcast(first, NUMBERS, MPI_FLOAT, 0, MPI_COMM_WORLD);
    int count = memcmp(first, o, sizeof first) != 0;
    MPI_Allreduce(MPI_IN_PLACE, &count, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    return count;
}

int main(int argc, char **argv)
{
    answer_usage(argc, argv, "bench-decode", usage);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int64_t positions = argc > 1 ? atoll(argv[1]) : 65536;
    int repeats = argc > 2 ? atoi(argv[2]) : 9;
    if (positions < 1 || repeats < 1 || argc > 3)
        check(RA_INVALID, "usage: bench-decode [POSITIONS [REPEATS]], both at least 1");

    struct ra_config config = RA_CONFIG_INIT;
    config.queries = 1, config.keys = positions, config.heads = HEADS, config.key_heads = KEY_HEADS;
    config.dim = DIM, config.causal = config.forward_only = true, config.layout = RA_STRIPED;
    config.threads = 1;
    char error[RA_ERROR_SIZE];
    struct ra_link link;
    struct ra_plan *plan;
    struct ra_tree *tree;
    check(ra_mpi_link(&link, MPI_COMM_WORLD, 0, config.timeout, error), error);
    check(ra_plan_create(&plan, &config, &link, error), error);
    check(ra_tree_create(&tree, &config, MPI_COMM_WORLD, error), error);

    int64_t m = ra_plan_rows(plan, RA_KEY_SIDE);
    float *k = malloc((size_t)(m * KEYS + 1) * sizeof *k), q[NUMBERS], o[2][NUMBERS], lse[HEADS];
    float *v = malloc((size_t)(m * KEYS + 1) * sizeof *v);
    double *times = malloc((size_t)repeats * sizeof *times);
    if (!k || !v || !times)
        check(RA_OUT_OF_MEMORY, "no memory");
    for (int64_t e = 0; e < NUMBERS; e++)
        q[e] = 4 * number(0, 0, e);
    for (int64_t e = 0; e < m * KEYS; e++) {
        int64_t position = ra_plan_position(plan, RA_KEY_SIDE, e / KEYS);
        k[e] = number(1, position, e % KEYS);
        v[e] = number(2, position, e % KEYS);
    }
    struct ra_arrays x = RA_ARRAYS_INIT;
    x.q = ra_tensor_bnhd(q, RA_FLOAT32, 1, HEADS, DIM);
    x.k = ra_tensor_bnhd(k, RA_FLOAT32, m, KEY_HEADS, DIM);
    x.v = ra_tensor_bnhd(v, RA_FLOAT32, m, KEY_HEADS, DIM);
    x.o = ra_tensor_bnhd(o[0], RA_FLOAT32, 1, HEADS, DIM);
    x.lse = ra_tensor_bhn(lse, 1, HEADS);
    check(ra_tree_fill(tree, positions, x.k, x.v), ra_tree_error(tree));

    double ring = time_ring(plan, &x, repeats, times);
    struct ra_tensor result = ra_tensor_bnhd(o[1], RA_FLOAT32, 1, HEADS, DIM);
    double reduction = time_tree(tree, x.q, result, repeats, times), difference = 0, largest = 0;
    int64_t bytes = ring_bytes(plan);
    int wrong = others(o[1]), steps = 0;
    while (1 << steps < ranks)
        steps++;
    for (int e = 0; e < NUMBERS; e++) {
        largest = fmax(largest, fabs(o[0][e]));
        if (!(fabs(o[0][e] - o[1][e]) <= difference)) /* a NaN stays */
            difference = fabs(o[0][e] - o[1][e]);
    }
    difference /= largest;
    if (rank == 0)
        printf("ring %d bytes %lld us %.0f\ntree %d bytes %lld us %.0f\n"
               "largest difference %.1e\nranks with other bits %d\n",
               ranks, (long long)bytes, 1e6 * ring, ranks,
               (long long)steps * (long long)ra_tree_reduced(tree, 1), 1e6 * reduction, difference,
               wrong);
    ra_tree_destroy(tree);
    ra_plan_destroy(plan);
    free(k), free(v), free(times);
    MPI_Finalize();
    return difference < 1e-5 && wrong == 0 ? 0 : 1;
}
