/* 11-cuda: the same attention, on GPUs: a client of libringattn_cuda.
 *
 * Chapter 11. New here: arrays that lie on a device, one GPU for each rank, and calls that return
 * before they are done.
 */
#include <cuda_runtime_api.h>
#include <mpi.h>
#include <stdio.h>
#include "ra_kernel.h"
#include "ring_attention_cuda.h"
#include "ring_attention_mpi.h"
#include "stage_mpi.h"

/* What the command line asks for, in the words of the library. */
static struct ra_config config_of(struct stage *stage)
{
    struct ra_config config = RA_CONFIG_INIT;
    config.batch = stage->B;
    config.queries = stage->N;
    config.keys = stage->M;
    config.heads = stage->H;
    config.key_heads = stage->G;
    config.dim = stage->D;
    config.type = ra_type_bytes(stage->config.type) > 1 ? stage->config.type : RA_FLOAT32;
    config.has_mask = stage->has_mask;
    config.forward_only = stage->config.forward_only;
    config.causal = stage->config.causal;
    config.local_keys = stage->config.local_keys;
    config.lookback = stage->config.lookback;
    config.head_map = stage->config.head_map;
    config.scale = stage->config.scale;
    config.softcap = stage->config.softcap;
    config.layout = stage->config.layout;
    config.bucket = stage->config.bucket;
    config.ring_size = stage->config.ring_size;
    config.tile_queries = stage->config.tile_queries;
    config.tile_keys = stage->config.tile_keys;
    config.timeout = stage->config.timeout;
    config.transport = stage->config.transport;
    config.deterministic = stage->config.deterministic;
    return config;
}

/* An error of the library, or of CUDA, is one of this program. */
static void check(struct stage *stage, enum ra_status status, const char *error)
{
    if (status != RA_OK)
        stage_fail(stage, error);
}

static void check_cuda(struct stage *stage, cudaError_t code, const char *what)
{
    char text[200];
    snprintf(text, sizeof text, "%s: %s", what, cudaGetErrorString(code));
    if (code != cudaSuccess)
        stage_fail(stage, text);
}

/* Ranks of one machine take its GPUs in turn. */
static void take_device(struct stage *stage)
{
    MPI_Comm machine;
    int rank, devices = 0;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
    MPI_Comm_rank(machine, &rank);
    MPI_Comm_free(&machine);
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
        stage_fail(stage, "no CUDA device: this program needs an NVIDIA GPU and its driver; "
                          "nvidia-smi shows what there is");
    check_cuda(stage, cudaSetDevice(rank % devices), "the choice of a GPU");
}

/* What the library tells goes into the timeline: this rank's work, and what it sent. */
static void observe(void *observer, const struct ra_event *event)
{
    static const enum stage_lane lanes[] = {STAGE_LANE_WORK, STAGE_LANE_WORK, STAGE_LANE_KEYS,
                                            STAGE_LANE_GRADIENTS};
    const char *name = event->backward ? "backward" : "forward";
    stage_trace(observer, lanes[event->kind], event->kind == RA_EVENT_WORK ? name : "send",
                event->hop, event->start, event->end);
}

/* All spans of this rank, in memory of the stage's. */
static struct ra_span *spans_of(struct stage *stage, const struct ra_plan *plan, enum ra_side side)
{
    struct ra_layout layout = ra_plan_layout(plan, side);
    int64_t count = ra_layout_spans(layout);
    struct ra_span *spans = stage_allocate(stage, count, sizeof *spans);
    for (int64_t s = 0; s < count; s++)
        spans[s] = ra_layout_span(layout, ra_plan_rank(plan), s);
    return spans;
}

/* Memory on the device for an array (B, rows, heads, dim); every byte 0xFF, so that what nobody
 * wrote shows in the results. It lives as long as the program. */
static struct ra_tensor device_array(struct stage *stage, enum ra_type type, int64_t rows,
                                     int64_t heads, int64_t dim)
{
    void *data = NULL;
    int64_t bytes = stage->B * rows * heads * dim * ra_type_bytes(type);
    check_cuda(stage, cudaMalloc(&data, (size_t)(bytes > 0 ? bytes : 1)), "memory of the GPU");
    check_cuda(stage, cudaMemset(data, 0xFF, (size_t)bytes), "memory of the GPU");
    stage->peak_bytes += bytes;
    return ra_tensor_bnhd(data, type, rows, heads, dim);
}

/* An input on the device, rounded to the type of the plan by the copy of the kernels. */
static struct ra_tensor upload(struct stage *stage, enum stage_input input, enum ra_type type,
                               int64_t rows, int64_t heads)
{
    int64_t D = stage->D, bytes = stage->B * rows * heads * D * (int64_t)sizeof(float);
    struct ra_tensor whole = device_array(stage, RA_FLOAT32, rows, heads, D);
    check_cuda(
        stage,
        cudaMemcpy(whole.data, stage_input(stage, input), (size_t)bytes, cudaMemcpyHostToDevice),
        "an input's way to the GPU");
    if (type == RA_FLOAT32)
        return whole;
    struct ra_tensor rounded = device_array(stage, type, rows, heads, D);
    check_cuda(stage, ra_kernel_copy(rounded, whole, stage->B, rows, heads, D, NULL),
               "an input, to be rounded");
    check_cuda(stage, cudaDeviceSynchronize(), "an input, to be rounded");
    check_cuda(stage, cudaFree(whole.data), "memory of the GPU");
    stage->peak_bytes -= bytes;
    return rounded;
}

/* Writes a result, float32 on the device. */
static void write_result(struct stage *stage, enum stage_result result, struct ra_tensor array,
                         int64_t rows, int64_t heads, int64_t dim)
{
    int64_t numbers = stage->B * rows * heads * dim;
    float *data = stage_allocate(stage, numbers, sizeof(float));
    check_cuda(
        stage,
        cudaMemcpy(data, array.data, (size_t)numbers * sizeof(float), cudaMemcpyDeviceToHost),
        "a result's way to the host");
    stage_write(stage, result, data);
}

/* What the plan says of every hop, to be printed like the counts of the stages before. */
static void count_hops(struct stage *stage, struct ra_plan *plan, bool backward)
{
    for (int step = 0; step < ra_plan_hops(plan); step++) {
        struct ra_hop hop;
        check(stage, ra_plan_hop(plan, ra_plan_rank(plan), step, backward, &hop),
              ra_plan_error(plan));
        stage_count(stage, backward ? "multiply-adds backward" : "multiply-adds forward",
                    hop.distance, hop.multiply_adds);
        stage_count(stage, backward ? "tiles skipped backward" : "tiles skipped forward",
                    hop.distance, hop.tiles_skipped);
        stage_count(stage, backward ? "messages sent backward" : "messages sent forward",
                    hop.distance, hop.messages);
        stage_count(stage, backward ? "bytes sent backward" : "bytes sent forward", hop.distance,
                    hop.bytes);
    }
}

int main(int argc, char **argv)
{
    struct stage stage;
    stage_open_mpi(&stage, argc, argv, 11, "11-cuda", "The same attention, on GPUs.");
    take_device(&stage);
    struct ra_config config = config_of(&stage);
    config.observe = observe;
    config.observer = &stage;
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    check(&stage, ra_cuda_mpi_plan_create(&plan, &config, MPI_COMM_WORLD, error), error);
    stage.peak_bytes += ra_plan_bytes(plan);

    /* The rows of the files that the plan gives to this rank. */
    stage_shard(&stage, spans_of(&stage, plan, RA_QUERY_SIDE),
                ra_layout_spans(ra_plan_layout(plan, RA_QUERY_SIDE)),
                spans_of(&stage, plan, RA_KEY_SIDE),
                ra_layout_spans(ra_plan_layout(plan, RA_KEY_SIDE)));
    int64_t n = stage.n, m = stage.m, H = stage.H, G = stage.G, D = stage.D;
    struct ra_arrays x = RA_ARRAYS_INIT;
    x.q = upload(&stage, STAGE_Q, config.type, n, H);
    x.k = upload(&stage, STAGE_K, config.type, m, G);
    x.v = upload(&stage, STAGE_V, config.type, m, G);
    if (stage.has_mask) {
        void *mask = device_array(&stage, RA_BOOL, m, 1, 1).data;
        check_cuda(
            &stage,
            cudaMemcpy(mask, stage_mask(&stage), (size_t)(stage.B * m), cudaMemcpyHostToDevice),
            "the mask's way to the GPU");
        x.mask = ra_tensor_bn(mask, m);
    }
    x.o = device_array(&stage, RA_FLOAT32, n, H, D);
    x.lse = ra_tensor_bhn(device_array(&stage, RA_FLOAT32, n, H, 1).data, n, H);
    check_cuda(&stage, cudaDeviceSynchronize(), "the inputs");
    stage_lap(&stage, STAGE_READ);

    /* The calls return at once; the time that they take is over when the wait is. */
    check(&stage, ra_cuda_forward(plan, &x, NULL), ra_plan_error(plan));
    check(&stage, ra_wait(plan), ra_plan_error(plan));
    stage_lap(&stage, STAGE_FORWARD);
    count_hops(&stage, plan, false);
    write_result(&stage, STAGE_O, x.o, n, H, D);
    write_result(&stage, STAGE_LSE, x.lse, n, H, 1);

    if (!stage.config.forward_only) {
        x.d_out = upload(&stage, STAGE_D_OUT, config.type, n, H);
        x.dq = device_array(&stage, RA_FLOAT32, n, H, D);
        x.dk = device_array(&stage, RA_FLOAT32, m, G, D);
        x.dv = device_array(&stage, RA_FLOAT32, m, G, D);
        check_cuda(&stage, cudaDeviceSynchronize(), "the inputs");
        stage_lap(&stage, STAGE_READ);
        check(&stage, ra_cuda_backward(plan, &x, NULL), ra_plan_error(plan));
        check(&stage, ra_wait(plan), ra_plan_error(plan));
        stage_lap(&stage, STAGE_BACKWARD);
        count_hops(&stage, plan, true);
        write_result(&stage, STAGE_DQ, x.dq, n, H, D);
        write_result(&stage, STAGE_DK, x.dk, m, G, D);
        write_result(&stage, STAGE_DV, x.dv, m, G, D);
    }
    ra_plan_destroy(plan);
    return stage_close(&stage);
}
