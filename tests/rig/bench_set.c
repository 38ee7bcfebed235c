/* bench_set: the problems of bench-cuda, and how a pass over one is timed. See bench_cuda.h. */
#include "bench_cuda.h"
#include <math.h>
#include <stdlib.h>
#include "oracle.h"
#include "ra_clock.h"
#include "ra_number.h"

/* Takes a piece of the set's memory; before there is any, only counts. */
static void *take(struct set *set, int64_t bytes)
{
    void *piece = set->memory ? set->memory + set->bytes : NULL;
    set->bytes += (bytes + 255) / 256 * 256;
    return piece;
}

static struct ra_tensor take_rows(struct set *set, enum ra_type type, int64_t heads, int64_t dim)
{
    const struct ra_kernel *kernel = &set->kernel;
    int64_t numbers = kernel->batch * kernel->queries * heads * dim;
    return ra_tensor_bnhd(take(set, numbers * ra_type_bytes(type)), type, kernel->queries, heads,
                          dim);
}

/* Places all arrays of a set one after the other; called once to count and once to place. */
static void place(struct set *set, enum ra_type type)
{
    struct ra_kernel *kernel = &set->kernel;
    int64_t H = kernel->heads, G = kernel->key_heads, D = kernel->dim, D_v = kernel->dim_value;
    set->bytes = 0;
    kernel->q = take_rows(set, type, H, D);
    kernel->k = take_rows(set, type, G, D);
    kernel->v = take_rows(set, type, G, D_v);
    kernel->d_out = take_rows(set, type, H, D_v);
    kernel->o = take_rows(set, type, H, D_v);
    kernel->lse = take_rows(set, RA_FLOAT32, H, 1);
    kernel->carry_o = take_rows(set, RA_FLOAT32, H, D_v);
    kernel->carry_max = take_rows(set, RA_FLOAT32, H, 1);
    kernel->carry_sum = take_rows(set, RA_FLOAT32, H, 1);
    kernel->delta = take_rows(set, RA_FLOAT32, H, 1);
    kernel->dq = take_rows(set, RA_FLOAT32, H, D);
    kernel->dk = take_rows(set, RA_FLOAT32, G, D);
    kernel->dv = take_rows(set, RA_FLOAT32, G, D_v);
    kernel->semaphores =
        take(set, ra_kernel_semaphores(kernel) * (int64_t)sizeof *kernel->semaphores);

    /* Gradients of float32 inputs are finished where they are added up. */
    bool rounded = type != RA_FLOAT32;
    set->dq = rounded ? take_rows(set, type, H, D) : kernel->dq;
    set->dk = rounded ? take_rows(set, type, G, D) : kernel->dk;
    set->dv = rounded ? take_rows(set, type, G, D_v) : kernel->dv;
}

/* All of an array, 1 of batch, as the generator wants it: the batches follow each other. */
static void fill(const struct ra_kernel *kernel, struct ra_tensor to, int64_t heads, int64_t dim,
                 int copy, enum oracle_stream numbers)
{
    int64_t rows = kernel->batch * kernel->queries;
    struct ra_span span = {copy * rows, 1, rows};
    must(oracle_fill(to, 0, span, heads, dim, numbers, rig.stream), "filling an array");
}

int sets_make(struct set sets[MOST_SETS], const struct ra_rung *rung, struct shape shape,
              enum ra_type type)
{
    int count = 1;
    for (int i = 0; i < count; i++) {
        struct set *set = &sets[i];
        *set = (struct set){.rung = rung};
        struct ra_kernel *kernel = &set->kernel;
        kernel->batch = shape.batch;
        kernel->queries = kernel->keys = shape.rows;
        kernel->heads = shape.heads;
        kernel->key_heads = shape.key_heads;
        kernel->dim = shape.dim;
        kernel->dim_value = shape.dim_value;
        kernel->score.scale = (float)(1 / sqrt((double)shape.dim));
        kernel->band = RA_ALL_KEYS;
        kernel->first = kernel->last = true;
        place(set, type);
        must(cudaMalloc((void **)&set->memory, (size_t)set->bytes), "memory for a problem");
        must(cudaMemsetAsync(set->memory, 0xff, (size_t)set->bytes, rig.stream), "cudaMemsetAsync");
        place(set, type);

        fill(kernel, kernel->q, shape.heads, kernel->dim, i, ORACLE_Q);
        fill(kernel, kernel->k, shape.key_heads, kernel->dim, i, ORACLE_K);
        fill(kernel, kernel->v, shape.key_heads, kernel->dim_value, i, ORACLE_V);
        fill(kernel, kernel->d_out, shape.heads, kernel->dim_value, i, ORACLE_D_OUT);
        size_t semaphores = (size_t)ra_kernel_semaphores(kernel) * sizeof *kernel->semaphores;
        must(cudaMemsetAsync(kernel->semaphores, 0, semaphores, rig.stream), "cudaMemsetAsync");
        while (count < MOST_SETS && count * set->bytes < 4 * cache_bytes)
            count++;
    }
    return count;
}

void sets_free(struct set *sets, int count)
{
    for (int i = 0; i < count; i++)
        must(cudaFree(sets[i].memory), "cudaFree");
}

/* ---- What is timed. */

void forward(struct set *set)
{
    must(set->rung->forward(&set->kernel, rig.stream), "a forward launch");
}

/* A hop in the middle of a ring: the carry comes from memory and goes back there. */
static void forward_carry(struct set *set)
{
    struct ra_kernel kernel = set->kernel;
    kernel.first = kernel.last = false;
    must(set->rung->forward(&kernel, rig.stream), "a forward launch with carry");
}

void set_bytes(struct ra_tensor x, int byte, int64_t numbers)
{
    must(cudaMemsetAsync(x.data, byte, (size_t)(numbers * ra_type_bytes(x.type)), rig.stream),
         "cudaMemsetAsync");
}

static void round_to(struct ra_tensor to, struct ra_tensor from, const struct ra_kernel *kernel,
                     int64_t heads, int64_t dim)
{
    if (to.data != from.data)
        must(ra_kernel_copy(to, from, kernel->batch, kernel->queries, heads, dim, rig.stream),
             "rounding gradients");
}

/* What the kernel cannot write it adds to 0. */
void backward(struct set *set)
{
    struct ra_kernel kernel = set->kernel;
    int64_t rows = kernel.batch * kernel.queries, D = kernel.dim, D_v = kernel.dim_value;
    bool keys = false, queries = false;
    kernel.dq = set->dq;
    kernel.dk = set->dk;
    kernel.dv = set->dv;
    if (set->rung->writes)
        must(set->rung->writes(&kernel, &keys, &queries), "what is written");
    if (!queries) {
        kernel.dq = set->kernel.dq;
        set_bytes(kernel.dq, 0, rows * kernel.heads * D);
    }
    if (!keys) {
        kernel.dk = set->kernel.dk;
        kernel.dv = set->kernel.dv;
        set_bytes(kernel.dk, 0, rows * kernel.key_heads * D);
        set_bytes(kernel.dv, 0, rows * kernel.key_heads * D_v);
    }
    must(ra_kernel_delta(&kernel, rig.stream), "delta");
    must(set->rung->backward(&kernel, rig.stream), "a backward launch");
    round_to(set->dq, kernel.dq, &kernel, kernel.heads, D);
    round_to(set->dk, kernel.dk, &kernel, kernel.key_heads, D);
    round_to(set->dv, kernel.dv, &kernel, kernel.key_heads, D_v);
}

static void backward_deterministic(struct set *set)
{
    set->kernel.deterministic = true;
    backward(set);
    set->kernel.deterministic = false;
}

const struct pass passes[PASSES] = {
    {"forward", forward, false, false},
    {"forward, carry in and out", forward_carry, false, true},
    {"backward", backward, true, false},
    {"backward, deterministic", backward_deterministic, true, false},
};

double milliseconds(cudaEvent_t start, cudaEvent_t end)
{
    float ms;
    must(cudaEventElapsedTime(&ms, start, end), "an event");
    return (double)ms;
}

struct rig_state state;

double measure(pass_run *run, struct set *sets, int count, int repeats)
{
    double *times = on_host(repeats, sizeof *times);
    cudaEvent_t *events = on_host(2 * repeats, sizeof *events);
    for (int e = 0; e < 2 * repeats; e++)
        must(cudaEventCreate(&events[e]), "cudaEventCreate");

    /* A GPU that was idle takes a while to reach its clock. What is enqueued last keeps it busy
     * while the host enqueues what is timed. */
    for (double start = ra_seconds(); ra_seconds() - start < 0.05;) {
        run(sets);
        must(cudaStreamSynchronize(rig.stream), "the GPU");
    }
    for (int i = 0; i < count + 2; i++)
        run(&sets[i % count]);
    for (int i = 0; i < repeats; i++) {
        must(cudaEventRecord(events[2 * i], rig.stream), "cudaEventRecord");
        run(&sets[i % count]);
        must(cudaEventRecord(events[2 * i + 1], rig.stream), "cudaEventRecord");
    }
    must(cudaEventSynchronize(events[repeats]), "the GPU");
    state = rig_read_state();
    must(cudaStreamSynchronize(rig.stream), "the GPU");

    for (int i = 0; i < repeats; i++)
        times[i] = milliseconds(events[2 * i], events[2 * i + 1]);
    for (int e = 0; e < 2 * repeats; e++)
        must(cudaEventDestroy(events[e]), "cudaEventDestroy");
    double ms = median(times, repeats);
    free(times);
    free(events);
    return ms;
}

void check(struct ra_tensor x, int64_t numbers, const char *name)
{
    enum { MOST = 1 << 16 };
    static unsigned char bytes[4 * MOST];
    static float values[MOST];
    int64_t size = ra_type_bytes(x.type), count = numbers < MOST ? numbers : MOST;
    must(cudaMemcpy(bytes, (const char *)x.data + (numbers - count) * size, (size_t)(count * size),
                    cudaMemcpyDeviceToHost),
         "reading a result");
    ra_number_load(x.type, count, bytes, values);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            stop(name, "the result is not finite, so its time means nothing");
}
