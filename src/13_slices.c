/* 13-slices: the same client, whose mask is a list of slices: packed documents, prefixes, chunks,
 * windows to both sides. Chapter 13. New here: slices.npy, the flags that make such masks, and
 * --deal; sinks, slopes, a gradient of lse, the largest scores. The library does the rest.
 */
#include <mpi.h>
#include <ring_attention_mpi.h>
#include <ring_attention_scale.h>
#include "stage_mpi.h"
#include "stage_plan.h"
#include "stage_slices.h"

/* How many rows the rank with the most of them gets if this mask is dealt. A plan without a link
 * knows, and takes no memory for arrays. */
static int64_t most_rows(struct stage *stage, const struct ra_slice *slices, int64_t count)
{
    struct ra_config config = stage->config;
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    int64_t most = 0;
    config.max_rows = stage->N > stage->M ? stage->N : stage->M;
    config.method = RA_RING; /* rows are the same by every method */
    config.group = config.inner = 0;
    stage_check(stage, ra_plan_create(&plan, &config, NULL, error), error);
    stage_check(stage, ra_plan_set_slices(plan, slices, count, (enum ra_deal)stage->deal),
                ra_plan_error(plan));
    for (int side = RA_QUERY_SIDE; side <= RA_KEY_SIDE; side++) {
        int64_t rows = ra_layout_most_rows(ra_plan_layout(plan, (enum ra_side)side));
        most = rows > most ? rows : most;
    }
    ra_plan_destroy(plan);
    return most;
}

/* A plan for what the command line and PROBLEM say, on all ranks. It keeps the link. */
static struct ra_plan *make_plan(struct stage *stage)
{
    struct ra_config *config = &stage->config;
    config->observe = stage_observe;
    config->observer = stage;

    /* Room for the mask, and for the rows that its deal gives a rank. */
    int64_t count;
    const struct ra_slice *slices = stage_slices(stage, &count);
    config->max_slices = slices ? count + 1 : 0;
    if (slices && stage->deal == RA_DEAL_DOCUMENTS)
        config->max_rows = most_rows(stage, slices, count);
    struct ra_scale_mask mask = {slices, count, (enum ra_deal)stage->deal};
    if (slices && config->method == RA_AUTO_METHOD)
        config->expected = &mask;

    struct ra_link link;
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    enum ra_status status =
        ra_mpi_link(&link, MPI_COMM_WORLD, config->ring_size, config->timeout, error);
    stage_check(stage, status, error);
    stage_show_progress(stage, &link);
    stage_check(stage, ra_plan_create(&plan, config, &link, error), error);
    config->expected = NULL;
    if (slices)
        stage_check(stage, ra_plan_set_slices(plan, slices, count, (enum ra_deal)stage->deal),
                    ra_plan_error(plan));
    stage_use_plan(stage, plan);
    return plan;
}

/* An array (H) of a result that this run has, or none. */
static struct ra_tensor head_output(struct stage *stage, enum stage_result result)
{
    bool wanted = stage_writes(stage, result);
    return ra_tensor_h(wanted ? stage_allocate(stage, stage->H, sizeof(float)) : NULL);
}

/* Writes what all ranks together have of a number of each head, of which each has its own part: the
 * sum, or the largest. */
static void write_heads(struct stage *stage, enum stage_result result, struct ra_tensor part)
{
    if (!stage_writes(stage, result))
        return;
    const float *own = part.data;
    double *all = stage_allocate(stage, stage->H, sizeof *all);
    for (int64_t h = 0; h < stage->H; h++)
        all[h] = own[h];
    MPI_Allreduce(MPI_IN_PLACE, all, (int)stage->H, MPI_DOUBLE,
                  result == STAGE_LARGEST ? MPI_MAX : MPI_SUM, MPI_COMM_WORLD);
    stage_write_heads(stage, result, all);
}

int main(int argc, char **argv)
{
    struct stage stage;
    stage_open_mpi(&stage, argc, argv, 13, "13-slices",
                   "The same attention, of masks that are lists of slices.");
    struct ra_plan *plan = make_plan(&stage);

    /* This rank's rows of each array. */
    int64_t n = stage.n, m = stage.m, H = stage.H, G = stage.G, D = stage.D, Dv = stage.Dv;
    struct ra_arrays arrays = RA_ARRAYS_INIT;
    arrays.q = ra_tensor_bnhd(stage_input(&stage, STAGE_Q), RA_FLOAT32, n, H, D);
    arrays.k = ra_tensor_bnhd(stage_input(&stage, STAGE_K), RA_FLOAT32, m, G, D);
    arrays.v = ra_tensor_bnhd(stage_input(&stage, STAGE_V), RA_FLOAT32, m, G, Dv);
    arrays.mask = ra_tensor_bn(stage_mask(&stage), m);
    arrays.o = stage_output(&stage, n, H, Dv);
    arrays.lse = ra_tensor_bhn(stage_output(&stage, n, H, 1).data, n, H);
    arrays.sink = ra_tensor_h(stage_heads(&stage, STAGE_SINK));
    arrays.slopes = ra_tensor_h(stage_heads(&stage, STAGE_SLOPES));
    arrays.largest = head_output(&stage, STAGE_LARGEST);
    stage_lap(&stage, STAGE_READ);
    stage_check(&stage, ra_forward(plan, &arrays), ra_plan_error(plan));
    stage_write_pass(&stage, plan, &arrays, false);
    write_heads(&stage, STAGE_LARGEST, arrays.largest);

    if (!stage.config.forward_only) {
        arrays.d_out = ra_tensor_bnhd(stage_input(&stage, STAGE_D_OUT), RA_FLOAT32, n, H, Dv);
        arrays.dq = stage_output(&stage, n, H, D);
        arrays.dk = stage_output(&stage, m, G, D);
        arrays.dv = stage_output(&stage, m, G, Dv);
        arrays.d_sink = head_output(&stage, STAGE_D_SINK);
        arrays.d_lse = ra_tensor_bhn(stage_d_lse(&stage), n, H);
        stage_check(&stage, ra_backward(plan, &arrays), ra_plan_error(plan));
        stage_write_pass(&stage, plan, &arrays, true);
        write_heads(&stage, STAGE_D_SINK, arrays.d_sink);
    }
    ra_plan_destroy(plan);
    return stage_close(&stage);
}
