/* 11-cuda: the same attention, on GPUs: a client of libringattn_cuda.
 *
 * Chapter 11. New here: arrays that lie on a device, one GPU for each rank, and calls that return
 * before they are done.
 */
#include <cuda_runtime_api.h>
#include <mpi.h>
#include "ra_kernel.h"
#include "ring_attention_cuda.h"
#include "ring_attention_mpi.h"
#include "stage_device.h"
#include "stage_mpi.h"
#include "stage_plan.h"

/* An error of CUDA is one of this program. */
static void check_cuda(struct stage *stage, cudaError_t code, const char *what)
{
    if (code != cudaSuccess)
        stage_fail(stage, "%s: %s", what, cudaGetErrorString(code));
}

/* What the library tells goes into the timeline: this rank's work, and what it sent. */
static void observe(void *observer, const struct ra_event *event)
{
    stage_observe_trace(observer, event, "send");
}

/* Memory on the device for an array (B, rows, heads, dim); every byte 0xFF, so that what was never
 * written shows in the results. It lives as long as the program. */
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
static struct ra_tensor upload(struct stage *stage, enum stage_input input, int64_t rows,
                               int64_t heads)
{
    enum ra_type type = stage->config.type;
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

/* The key mask on the device, or none. */
static struct ra_tensor upload_mask(struct stage *stage, int64_t rows)
{
    if (!stage->config.has_mask)
        return (struct ra_tensor)RA_NO_TENSOR;
    void *mask = device_array(stage, RA_BOOL, rows, 1, 1).data;
    check_cuda(
        stage,
        cudaMemcpy(mask, stage_mask(stage), (size_t)(stage->B * rows), cudaMemcpyHostToDevice),
        "the mask's way to the GPU");
    return ra_tensor_bn(mask, rows);
}

/* Writes a result, which lies on the device; of 16 bits, as float32. */
static void write_result(struct stage *stage, enum stage_result result, struct ra_tensor array,
                         int64_t rows, int64_t heads, int64_t dim)
{
    int64_t numbers = stage->B * rows * heads * dim;
    float *data = stage_allocate(stage, numbers, sizeof(float));
    if (array.type != RA_FLOAT32) {
        struct ra_tensor wide = device_array(stage, RA_FLOAT32, rows, heads, dim);
        check_cuda(stage, ra_kernel_copy(wide, array, stage->B, rows, heads, dim, NULL),
                   "a result, to be widened");
        check_cuda(stage, cudaDeviceSynchronize(), "a result, to be widened");
        array = wide;
    }
    check_cuda(
        stage,
        cudaMemcpy(data, array.data, (size_t)numbers * sizeof(float), cudaMemcpyDeviceToHost),
        "a result's way to the host");
    stage_write(stage, result, data);
}

int main(int argc, char **argv)
{
    struct stage stage;
    stage_open_mpi(&stage, argc, argv, 11, "11-cuda", "The same attention, on GPUs.");
    stage_take_device(&stage);
    stage.config.device = ra_cuda();
    stage.config.observe = observe;
    stage.config.observer = &stage;
    struct ra_link link;
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    stage_check(
        &stage,
        ra_mpi_link(&link, MPI_COMM_WORLD, stage.config.ring_size, stage.config.timeout, error),
        error);
    stage_show_progress(&stage, &link);
    stage_check(&stage, ra_plan_create(&plan, &stage.config, &link, error), error);
    stage_use_plan(&stage, plan);
    int64_t n = stage.n, m = stage.m, H = stage.H, G = stage.G, D = stage.D;
    struct ra_arrays arrays = RA_ARRAYS_INIT;
    arrays.q = upload(&stage, STAGE_Q, n, H);
    arrays.k = upload(&stage, STAGE_K, m, G);
    arrays.v = upload(&stage, STAGE_V, m, G);
    arrays.mask = upload_mask(&stage, m);

    /* Where heads are exchanged, o travels, as the inputs do. */
    bool o_travels = stage.config.method == RA_EXCHANGED_HEADS || stage.config.method == RA_HYBRID;
    arrays.o = device_array(&stage, o_travels ? stage.config.type : RA_FLOAT32, n, H, D);
    arrays.lse = ra_tensor_bhn(device_array(&stage, RA_FLOAT32, n, H, 1).data, n, H);
    check_cuda(&stage, cudaDeviceSynchronize(), "the inputs");
    stage_lap(&stage, STAGE_READ);

    /* The calls return at once; the time that they take is over when the wait is. */
    stage_check(&stage, ra_cuda_forward(plan, &arrays, NULL), ra_plan_error(plan));
    stage_check(&stage, ra_wait(plan), ra_plan_error(plan));
    stage_lap(&stage, STAGE_FORWARD);
    stage_count_hops(&stage, plan, false);
    write_result(&stage, STAGE_O, arrays.o, n, H, D);
    write_result(&stage, STAGE_LSE, arrays.lse, n, H, 1);

    if (!stage.config.forward_only) {
        arrays.d_out = upload(&stage, STAGE_D_OUT, n, H);
        arrays.dq = device_array(&stage, RA_FLOAT32, n, H, D);
        arrays.dk = device_array(&stage, RA_FLOAT32, m, G, D);
        arrays.dv = device_array(&stage, RA_FLOAT32, m, G, D);
        check_cuda(&stage, cudaDeviceSynchronize(), "the inputs");
        stage_lap(&stage, STAGE_READ);
        stage_check(&stage, ra_cuda_backward(plan, &arrays, NULL), ra_plan_error(plan));
        stage_check(&stage, ra_wait(plan), ra_plan_error(plan));
        stage_lap(&stage, STAGE_BACKWARD);
        stage_count_hops(&stage, plan, true);
        write_result(&stage, STAGE_DQ, arrays.dq, n, H, D);
        write_result(&stage, STAGE_DK, arrays.dk, m, G, D);
        write_result(&stage, STAGE_DV, arrays.dv, m, G, D);
    }
    ra_plan_destroy(plan);
    return stage_close(&stage);
}
