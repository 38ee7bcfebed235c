/* stage_client: a stage program that is a client of the library. See stage_client.h. */
#include "stage_client.h"
#include <mpi.h>
#include "ring_attention_mpi.h"
#include "stage_mpi.h"
#include "stage_plan.h"

int stage_client(int argc, char **argv, int number, const char *program, const char *about)
{
    struct stage stage;
    stage_open_mpi(&stage, argc, argv, number, program, about);
    stage.config.observe = stage_observe;
    stage.config.observer = &stage;
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    struct ra_link link;
    stage_check(
        &stage,
        ra_mpi_link(&link, MPI_COMM_WORLD, stage.config.ring_size, stage.config.timeout, error),
        error);
    stage_show_progress(&stage, &link);
    stage_check(&stage, ra_plan_create(&plan, &stage.config, &link, error), error);
    stage_use_plan(&stage, plan);
    int64_t n = stage.n, m = stage.m, H = stage.H, G = stage.G, D = stage.D;
    struct ra_arrays x = RA_ARRAYS_INIT;
    x.q = ra_tensor_bnhd(stage_input(&stage, STAGE_Q), RA_FLOAT32, n, H, D);
    x.k = ra_tensor_bnhd(stage_input(&stage, STAGE_K), RA_FLOAT32, m, G, D);
    x.v = ra_tensor_bnhd(stage_input(&stage, STAGE_V), RA_FLOAT32, m, G, D);
    x.mask = ra_tensor_bn(stage_mask(&stage), m);
    x.o = stage_output(&stage, n, H, D);
    x.lse = ra_tensor_bhn(stage_output(&stage, n, H, 1).data, n, H);
    stage_lap(&stage, STAGE_READ);

    stage_check(&stage, ra_forward(plan, &x), ra_plan_error(plan));
    stage_count_hops(&stage, plan, false);
    stage_write(&stage, STAGE_O, x.o.data);
    stage_write(&stage, STAGE_LSE, x.lse.data);

    if (!stage.config.forward_only) {
        x.d_out = ra_tensor_bnhd(stage_input(&stage, STAGE_D_OUT), RA_FLOAT32, n, H, D);
        x.dq = stage_output(&stage, n, H, D);
        x.dk = stage_output(&stage, m, G, D);
        x.dv = stage_output(&stage, m, G, D);
        stage_check(&stage, ra_backward(plan, &x), ra_plan_error(plan));
        stage_count_hops(&stage, plan, true);
        stage_write(&stage, STAGE_DQ, x.dq.data);
        stage_write(&stage, STAGE_DK, x.dk.data);
        stage_write(&stage, STAGE_DV, x.dv.data);
    }
    ra_plan_destroy(plan);
    return stage_close(&stage);
}
