/* overhead: what a call of the library costs beyond the modules that it calls, on a problem so
 * small that it could show: N = 128, one rank, one head, D = 64, on plain tiles.
 *
 *   build/overhead
 *
 * Both ways take turns, a hundred calls each, and the quickest turn of each counts.
 */
#include <stdio.h>
#include "ra_clock.h"
#include "ring_attention.h"
#include "usage.h"

enum { N = 128, D = 64, CALLS = 100, TURNS = 200 };

static float q[N * D], k[N * D], v[N * D], o[N * D], comp[N * D], max[N], lse[N];
static double sum[N];
static float workspace[64 * 64 * 2 + D * 64 + D];

/* The same as ra_forward, from the modules. */
static void bare(void)
{
    struct ra_queries queries = {.rows = N,
                                 .stride = {D, D, D, D, D},
                                 .q = q,
                                 .o = o,
                                 .comp = comp,
                                 .max = max,
                                 .sum = sum,
                                 .lse = lse};
    struct ra_keys keys = {.rows = N, .stride = {.k = D, .v = D}, .k = k, .v = v};
    struct ra_fold fold = {.dims = RA_DIMS(D),
                           .score = {.scale = 0.125f},
                           .tile = ra_tile_forward,
                           .tile_queries = 64,
                           .tile_keys = 64,
                           .workspace = workspace};
    ra_tile_begin(RA_DIMS(D), &queries);
    ra_band_fold(&fold, &queries, &keys, RA_ALL_KEYS);
    ra_tile_finish(RA_DIMS(D), &queries);
}

int main(int argc, char **argv)
{
    answer_usage(
        argc, argv, "overhead",
        "usage: overhead\nMeasures what a call of the library costs beyond the modules.\n");
    for (int e = 0; e < N * D; e++) {
        q[e] = (float)(e % 7) - 3;
        k[e] = (float)(e % 5) - 2;
        v[e] = (float)(e % 3) - 1;
    }
    struct ra_config config = RA_CONFIG_INIT;
    config.queries = N;
    config.dim = D;
    config.forward_only = true;
    config.tile = RA_PLAIN_TILE;
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    if (ra_plan_create(&plan, &config, NULL, error) != RA_OK) {
        fprintf(stderr, "overhead: %s\n", error);
        return 1;
    }
    struct ra_arrays arrays = RA_ARRAYS_INIT;
    arrays.q = ra_tensor_bnhd(q, RA_FLOAT32, N, 1, D);
    arrays.k = ra_tensor_bnhd(k, RA_FLOAT32, N, 1, D);
    arrays.v = ra_tensor_bnhd(v, RA_FLOAT32, N, 1, D);
    arrays.o = ra_tensor_bnhd(o, RA_FLOAT32, N, 1, D);
    arrays.lse = ra_tensor_bhn(lse, N, 1);

    /* The quickest turn of each way is the one that was disturbed least. */
    double quickest[2] = {1e9, 1e9};
    for (int turn = 0; turn < 2 * TURNS; turn++) {
        double start = ra_seconds();
        for (int call = 0; call < CALLS; call++) {
            if (turn % 2 == 0)
                bare();
            else if (ra_forward(plan, &arrays) != RA_OK)
                return 1;
        }
        double spent = (ra_seconds() - start) / CALLS;
        if (spent < quickest[turn % 2])
            quickest[turn % 2] = spent;
    }
    printf("forward, N = 128, D = 64, one rank: modules %.2f us, library %.2f us, %+.2f us, %+.2f "
           "%%\n",
           1e6 * quickest[0], 1e6 * quickest[1], 1e6 * (quickest[1] - quickest[0]),
           100 * (quickest[1] / quickest[0] - 1));
    ra_plan_destroy(plan);
    return 0;
}
