/* 09-vector: the same client, whose tiles are computed on vectors, by all processors of the
 * machine. Chapter 09. New here: --tile and --threads. The library does the rest.
 */
#include <mpi.h>
#include <ring_attention_mpi.h>
#include "stage_mpi.h"
#include "stage_plan.h"

/* A plan for what the command line and PROBLEM say, on all ranks. It keeps the link. */
static struct ra_plan *make_plan(struct stage *stage)
{
    struct ra_config *config = &stage->config;
    config->observe = stage_observe;
    config->observer = stage;

    struct ra_link link;
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    enum ra_status status =
        ra_mpi_link(&link, MPI_COMM_WORLD, config->ring_size, config->timeout, error);
    stage_check(stage, status, error);
    stage_show_progress(stage, &link);
    stage_check(stage, ra_plan_create(&plan, config, &link, error), error);
    stage_use_plan(stage, plan);
    return plan;
}

int main(int argc, char **argv)
{
    struct stage stage;
    stage_open_mpi(&stage, argc, argv, 9, "09-vector",
                   "The same attention, on vectors and by several threads.");
    struct ra_plan *plan = make_plan(&stage);

    /* This rank's rows of each array. */
    int64_t n = stage.n, m = stage.m, H = stage.H, G = stage.G, D = stage.D;
    struct ra_arrays arrays = RA_ARRAYS_INIT;
    arrays.q = ra_tensor_bnhd(stage_input(&stage, STAGE_Q), RA_FLOAT32, n, H, D);
    arrays.k = ra_tensor_bnhd(stage_input(&stage, STAGE_K), RA_FLOAT32, m, G, D);
    arrays.v = ra_tensor_bnhd(stage_input(&stage, STAGE_V), RA_FLOAT32, m, G, D);
    arrays.mask = ra_tensor_bn(stage_mask(&stage), m);
    arrays.o = stage_output(&stage, n, H, D);
    arrays.lse = ra_tensor_bhn(stage_output(&stage, n, H, 1).data, n, H);
    stage_lap(&stage, STAGE_READ);
    stage_check(&stage, ra_forward(plan, &arrays), ra_plan_error(plan));
    stage_write_pass(&stage, plan, &arrays, false);

    if (!stage.config.forward_only) {
        arrays.d_out = ra_tensor_bnhd(stage_input(&stage, STAGE_D_OUT), RA_FLOAT32, n, H, D);
        arrays.dq = stage_output(&stage, n, H, D);
        arrays.dk = stage_output(&stage, m, G, D);
        arrays.dv = stage_output(&stage, m, G, D);
        stage_check(&stage, ra_backward(plan, &arrays), ra_plan_error(plan));
        stage_write_pass(&stage, plan, &arrays, true);
    }
    ra_plan_destroy(plan);
    return stage_close(&stage);
}
