/* program: one kernel as a program with the command line and the files of the stages.
 *
 * Chapter 11. The program's own name, such as k01-naive or k07-persistent, says which kernel it
 * runs. The numbers are rounded to float32 or, for tensor cores, to bfloat16, unless --type says
 * otherwise, and the results come back as float32.
 */
#include <stdio.h>
#include <string.h>
#include "ra_band.h"
#include "ra_ladder.h"
#include "ra_math.h"
#include "ra_number.h"
#include "stage_tile.h"

/* An error of CUDA, or of a launcher, is one of this program. */
static void check(struct stage *stage, cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        stage_fail(stage, "%s: %s%s", what, cudaGetErrorString(error),
                   error == cudaErrorNotSupported ? " (a --type or a D that this kernel has not?)"
                                                  : "");
}

/* Fails unless there is a GPU that can be used. */
static void check_device(struct stage *stage)
{
    int devices = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0)
        stage_fail(stage,
                   "no CUDA device: %s (this program needs an NVIDIA GPU and its driver; "
                   "nvidia-smi shows what there is)",
                   error == cudaSuccess ? "none found" : cudaGetErrorString(error));
}

/* Memory on the device for an array (B, rows, heads, dim), every byte this one. */
static struct ra_tensor allocate(struct stage *stage, enum ra_type type, int byte, int64_t rows,
                                 int64_t heads, int64_t dim)
{
    int64_t bytes = stage->B * rows * heads * dim * ra_type_bytes(type);
    void *data;
    check(stage, cudaMalloc(&data, (size_t)bytes), "memory on the device");
    check(stage, cudaMemset(data, byte, (size_t)bytes), "memory on the device");
    stage_count(stage, "bytes on the device", 0, bytes);
    return ra_tensor_bnhd(data, type, rows, heads, dim);
}

/* The same for an output: NaN where no kernel writes. And for a sum: 0. */
static struct ra_tensor output(struct stage *stage, int64_t rows, int64_t heads, int64_t dim)
{
    return allocate(stage, RA_FLOAT32, 0xFF, rows, heads, dim);
}

static struct ra_tensor sum(struct stage *stage, int64_t rows, int64_t heads)
{
    return allocate(stage, RA_FLOAT32, 0, rows, heads, stage->D);
}

/* An input, rounded to the type, on the device. */
static struct ra_tensor input(struct stage *stage, enum stage_input which, int64_t rows,
                              int64_t heads)
{
    struct ra_tensor tensor = allocate(stage, stage->config.type, 0xFF, rows, heads, stage->D);
    int64_t count = stage->B * rows * heads * stage->D, size = ra_type_bytes(stage->config.type);
    void *rounded = stage_allocate(stage, count, size);
    ra_number_store(stage->config.type, count, stage_input(stage, which), rounded);
    check(stage, cudaMemcpy(tensor.data, rounded, (size_t)(count * size), cudaMemcpyHostToDevice),
          "to the device");
    return tensor;
}

/* The key mask on the device, or none. */
static struct ra_tensor mask(struct stage *stage)
{
    if (!stage->config.has_mask)
        return (struct ra_tensor)RA_NO_TENSOR;
    struct ra_tensor tensor = allocate(stage, RA_BOOL, 0xFF, stage->M, 1, 1);
    check(stage,
          cudaMemcpy(tensor.data, stage_mask(stage), (size_t)(stage->B * stage->M),
                     cudaMemcpyHostToDevice),
          "to the device");
    return tensor;
}

/* Writes a result, `count` numbers of float32. */
static void write_result(struct stage *stage, enum stage_result which, struct ra_tensor tensor,
                         int64_t count)
{
    float *numbers = stage_allocate(stage, count, sizeof *numbers);
    check(stage,
          cudaMemcpy(numbers, tensor.data, (size_t)count * sizeof *numbers, cudaMemcpyDeviceToHost),
          "from the device");
    stage_write(stage, which, numbers);
}

/* In how many pieces to fold the keys: as many as were asked for, and enough of them that each is
 * added up well. */
static int64_t pieces_of(const struct stage *stage)
{
    int64_t least = ra_ceiling_division(stage->M, ra_kernel_most_keys(stage->config.type));
    return ra_max(stage->pieces, least);
}

/* Launches once for each piece of the keys, and waits for the last. */
static void run(struct stage *stage, const struct ra_kernel *whole, ra_kernel_launch *launch,
                const char *what)
{
    for (int64_t p = 0, pieces = pieces_of(stage); p < pieces; p++) {
        int64_t begin = stage->M * p / pieces, end = stage->M * (p + 1) / pieces;
        struct ra_kernel piece = ra_kernel_keys(*whole, begin, end - begin);
        piece.first = p == 0;
        piece.last = p == pieces - 1;
        check(stage, launch(&piece, 0), what);
    }
    check(stage, cudaStreamSynchronize(0), what);
}

/* Query-key pairs that the band lets see each other, in all batches and heads. */
static int64_t pairs_seen(const struct stage *stage, struct ra_band band)
{
    int64_t pairs = 0;
    for (int64_t a = 0; a < stage->N; a++) {
        int64_t first = a + band.lo > 0 ? a + band.lo : 0;
        int64_t last = a + band.hi < stage->M - 1 ? a + band.hi : stage->M - 1;
        pairs += last >= first ? last - first + 1 : 0;
    }
    return stage->B * stage->H * pairs;
}

/* Gradients, of what the forward has left in kernel. */
static void backward(struct stage *stage, const struct ra_rung *rung, struct ra_kernel *kernel)
{
    int64_t N = stage->N, M = stage->M, H = stage->H, G = stage->G;
    kernel->d_out = input(stage, STAGE_D_OUT, N, H);
    kernel->delta = output(stage, N, H, 1);
    kernel->dq = sum(stage, N, H);
    kernel->dk = sum(stage, M, G);
    kernel->dv = sum(stage, M, G);
    if (rung->semaphores) {
        size_t bytes = (size_t)rung->semaphores(kernel) * sizeof *kernel->semaphores;
        void *semaphores;
        check(stage, cudaMalloc(&semaphores, bytes + 1), "memory on the device");
        check(stage, cudaMemset(semaphores, 0, bytes), "memory on the device");
        kernel->semaphores = semaphores;
    }
    stage_lap(stage, STAGE_READ);

    check(stage, ra_kernel_delta(kernel, 0), "delta");
    run(stage, kernel, rung->backward, "backward");
    stage_lap(stage, STAGE_BACKWARD);
}

static void write_results(struct stage *stage, const struct ra_kernel *kernel)
{
    int64_t rows = kernel->batch * kernel->queries * kernel->heads,
            key_rows = kernel->batch * kernel->keys * kernel->key_heads;
    write_result(stage, STAGE_O, kernel->o, rows * kernel->dim);
    write_result(stage, STAGE_LSE, kernel->lse, rows);
    if (stage->config.forward_only)
        return;
    write_result(stage, STAGE_DQ, kernel->dq, rows * kernel->dim);
    write_result(stage, STAGE_DK, kernel->dk, key_rows * kernel->dim);
    write_result(stage, STAGE_DV, kernel->dv, key_rows * kernel->dim);
}

int main(int argc, char **argv)
{
    const char *slash = strrchr(argv[0], '/'), *program = slash ? slash + 1 : argv[0];
    const struct ra_rung *rung = ra_ladder_find(program);
    if (!rung) {
        fprintf(stderr, "%s: no kernel has this name\n", program);
        return 2;
    }

    struct stage stage;
    stage_open_kernel(&stage, argc, argv, rung->program,
                      "Attention on one GPU, by one kernel of the ladder.",
                      rung->tensor_cores ? RA_BFLOAT16 : RA_FLOAT32);
    check_device(&stage);

    int64_t B = stage.B, N = stage.N, M = stage.M, H = stage.H, G = stage.G, D = stage.D;
    struct ra_span queries = {M - N, 1, N}, keys = {0, 1, M};
    struct ra_kernel kernel = {
        .batch = B,
        .queries = N,
        .keys = M,
        .heads = H,
        .key_heads = G,
        .dim = D,
        .dim_value = D,
        .head_map = stage.config.head_map,
        .score = stage_score(&stage),
        .band = stage.config.causal ? ra_band_causal(queries, keys, stage.config.lookback)
                                    : RA_ALL_KEYS,
        .deterministic = stage.config.deterministic,
        .q = input(&stage, STAGE_Q, N, H),
        .k = input(&stage, STAGE_K, M, G),
        .v = input(&stage, STAGE_V, M, G),
        .mask = mask(&stage),
        .o = output(&stage, N, H, D),
        .lse = output(&stage, N, H, 1),
    };

    /* The files have lse as (B, H, N). A single piece needs no carry. */
    kernel.lse = ra_tensor_bhn(kernel.lse.data, N, H);
    if (pieces_of(&stage) > 1) {
        kernel.carry_o = output(&stage, N, H, D);
        kernel.carry_max = output(&stage, N, H, 1);
        kernel.carry_sum = output(&stage, N, H, 1);
    }
    stage_lap(&stage, STAGE_READ);

    run(&stage, &kernel, rung->forward, "forward");
    stage_lap(&stage, STAGE_FORWARD);
    int64_t pairs = pairs_seen(&stage, kernel.band);
    stage_count(&stage, "multiply-adds forward", 0, 2 * pairs * D);
    if (!stage.config.forward_only) {
        backward(&stage, rung, &kernel);
        stage_count(&stage, "multiply-adds backward", 0, 5 * pairs * D);
    }
    write_results(&stage, &kernel);
    return stage_close(&stage);
}
