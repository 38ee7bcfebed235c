/* bench: how fast the kernels of the ladder are on this machine's GPU, and how far that is from what
 * the GPU could do. Under mpirun, one rank per GPU, the ring between them as well.
 *
 * Chapter 11. `ninja bench-cuda` builds and runs it; --help says what can be asked.
 *
 * All rates count multiplications and additions of the products by one convention: forward 4 B H n m
 * D, backward 2.5 times that, causal half. Times are medians of CUDA events around whatever a caller
 * pays: in the backward delta, emptying dq, dk and dv, and rounding them at the end.
 */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"
#include "ra_clock.h"
#include "ra_number.h"
#include "rank_device.h"
#include "ring_attention_cuda_mpi.h"

static const char usage[] =
    "usage: bench-cuda [flags]\n"
    "       mpirun -n P bench-cuda [flags]      one rank per GPU\n"
    "\n"
    "Measures every kernel on one GPU, then the ring of all ranks.\n"
    "\n"
    "  --only TEXT    only lines whose name has this text, such as 'k03 forward', 'd64 causal',\n"
    "                 'ring backward' or 'striped'\n"
    "  --quick        fewer shapes, three repeats\n"
    "  --repeat N     repeats of which the median counts (10)\n"
    "  --csv FILE     the numbers of one GPU, and more, separated by commas\n"
    "  --timeline FILE\n"
    "                 when each rank of the ring computed and copied, hop by hop, in the last of\n"
    "                 N calls\n"
    "  --help         this text\n";

static struct {
    const char *only;
    bool quick;
    int repeats;
    FILE *csv, *timeline; /* rank 0's */
    bool has_timeline;
} options = {NULL, false, 10, NULL, NULL, false};

static int rank, ranks;

static cudaStream_t stream;
static int64_t cache_bytes; /* of the L2 cache */

/* Ends the program, on all ranks. */
static _Noreturn void stop(const char *what, const char *why)
{
    fprintf(stderr, "bench-cuda: %s: %s\n", what, why);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static void must(cudaError_t status, const char *what)
{
    if (status != cudaSuccess)
        stop(what, cudaGetErrorString(status));
}

/* ---- One problem, as often as it takes to keep the L2 cache from helping. */

struct shape {
    int64_t batch, rows, heads, key_heads, dim; /* B, n = m, H, G, D */
};

struct rung {
    const char *name;
    ra_kernel_launch *forward, *backward;
    bool tensor_cores; /* 16-bit types; if not, float32 */
};

/* All arrays of a problem, in one piece of device memory. */
struct set {
    const struct rung *rung;
    struct ra_kernel kernel;
    struct ra_tensor dq, dk, dv; /* what a caller gets, of the inputs' type */
    char *memory;
    int64_t bytes;
};

enum { MOST_SETS = 16 };

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
    int64_t H = kernel->heads, G = kernel->key_heads, D = kernel->dim;
    set->bytes = 0;
    kernel->q = take_rows(set, type, H, D);
    kernel->k = take_rows(set, type, G, D);
    kernel->v = take_rows(set, type, G, D);
    kernel->d_out = take_rows(set, type, H, D);
    kernel->o = take_rows(set, type, H, D);
    kernel->lse = take_rows(set, RA_FLOAT32, H, 1);
    kernel->carry_o = take_rows(set, RA_FLOAT32, H, D);
    kernel->carry_max = take_rows(set, RA_FLOAT32, H, 1);
    kernel->carry_sum = take_rows(set, RA_FLOAT32, H, 1);
    kernel->delta = take_rows(set, RA_FLOAT32, H, 1);
    kernel->dq = take_rows(set, RA_FLOAT32, H, D);
    kernel->dk = take_rows(set, RA_FLOAT32, G, D);
    kernel->dv = take_rows(set, RA_FLOAT32, G, D);
    kernel->turns = take(set, ra_kernel_turns(kernel) * (int64_t)sizeof *kernel->turns);

    /* Gradients of float32 inputs are finished where they are added up. */
    bool rounded = type != RA_FLOAT32;
    set->dq = rounded ? take_rows(set, type, H, D) : kernel->dq;
    set->dk = rounded ? take_rows(set, type, G, D) : kernel->dk;
    set->dv = rounded ? take_rows(set, type, G, D) : kernel->dv;
}

/* All of an array, 1 of batch, as the generator wants it: the batches follow each other. */
static void fill(const struct ra_kernel *kernel, struct ra_tensor to, int64_t heads, int copy,
                 enum oracle_stream numbers)
{
    int64_t rows = kernel->batch * kernel->queries;
    struct ra_span span = {copy * rows, 1, rows};
    must(oracle_fill(to, 0, span, heads, kernel->dim, numbers, stream), "filling an array");
}

/* Makes sets, as many as it takes to be four times the cache; returns how many. Outputs are NaN. */
static int sets_make(struct set sets[MOST_SETS], const struct rung *rung, struct shape shape,
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
        kernel->score.scale = (float)(1 / sqrt((double)shape.dim));
        kernel->band = RA_ALL_KEYS;
        kernel->first = kernel->last = true;
        place(set, type);
        must(cudaMalloc((void **)&set->memory, (size_t)set->bytes), "memory for a problem");
        must(cudaMemsetAsync(set->memory, 0xff, (size_t)set->bytes, stream), "cudaMemsetAsync");
        place(set, type);

        fill(kernel, kernel->q, shape.heads, i, ORACLE_Q);
        fill(kernel, kernel->k, shape.key_heads, i, ORACLE_K);
        fill(kernel, kernel->v, shape.key_heads, i, ORACLE_V);
        fill(kernel, kernel->d_out, shape.heads, i, ORACLE_D_OUT);
        size_t turns = (size_t)ra_kernel_turns(kernel) * sizeof *kernel->turns;
        must(cudaMemsetAsync(kernel->turns, 0, turns, stream), "cudaMemsetAsync");
        while (count < MOST_SETS && count * set->bytes < 4 * cache_bytes)
            count++;
    }
    return count;
}

static void sets_free(struct set *sets, int count)
{
    for (int i = 0; i < count; i++)
        must(cudaFree(sets[i].memory), "cudaFree");
}

/* ---- What is timed. */

typedef void pass_run(struct set *set);

static void forward(struct set *set)
{
    must(set->rung->forward(&set->kernel, stream), "a forward launch");
}

/* A hop in the middle of a ring: the carry comes from memory and goes back there. */
static void forward_carry(struct set *set)
{
    struct ra_kernel kernel = set->kernel;
    kernel.first = kernel.last = false;
    must(set->rung->forward(&kernel, stream), "a forward launch with carry");
}

static void set_bytes(struct ra_tensor x, int byte, int64_t numbers)
{
    must(cudaMemsetAsync(x.data, byte, (size_t)(numbers * ra_type_bytes(x.type)), stream),
         "cudaMemsetAsync");
}

static void round_to(struct ra_tensor to, struct ra_tensor from, const struct ra_kernel *kernel,
                     int64_t heads)
{
    if (to.data != from.data)
        must(ra_kernel_copy(to, from, kernel->batch, kernel->queries, heads, kernel->dim, stream),
             "rounding gradients");
}

static void backward(struct set *set)
{
    const struct ra_kernel *kernel = &set->kernel;
    int64_t rows = kernel->batch * kernel->queries * kernel->dim;
    set_bytes(kernel->dq, 0, rows * kernel->heads);
    set_bytes(kernel->dk, 0, rows * kernel->key_heads);
    set_bytes(kernel->dv, 0, rows * kernel->key_heads);
    must(ra_kernel_delta(kernel, stream), "delta");
    must(set->rung->backward(kernel, stream), "a backward launch");
    round_to(set->dq, kernel->dq, kernel, kernel->heads);
    round_to(set->dk, kernel->dk, kernel, kernel->key_heads);
    round_to(set->dv, kernel->dv, kernel, kernel->key_heads);
}

static void backward_deterministic(struct set *set)
{
    set->kernel.deterministic = true;
    backward(set);
    set->kernel.deterministic = false;
}

/* From the first half of the set's memory to the second. */
static void copy(struct set *set)
{
    size_t half = (size_t)set->bytes / 2;
    must(cudaMemcpyAsync(set->memory + half, set->memory, half, cudaMemcpyDeviceToDevice, stream),
         "a copy");
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The middle one of these, which get sorted. */
static double median(float *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return 0.5 * ((double)values[(count - 1) / 2] + (double)values[count / 2]);
}

/* Milliseconds of a run: the median, after a warm-up that sees every set. Runs take turns on the
 * sets, and are enqueued all at once, so that the GPU does not wait for the host. */
static double measure(pass_run *run, struct set *sets, int count, int repeats)
{
    float *times = calloc((size_t)repeats, sizeof *times);
    cudaEvent_t *events = calloc(2 * (size_t)repeats, sizeof *events);
    if (!times || !events)
        stop("a measurement", "out of memory");
    for (int e = 0; e < 2 * repeats; e++)
        must(cudaEventCreate(&events[e]), "cudaEventCreate");

    /* A GPU that was idle takes a while to reach its clock. What is enqueued last keeps it busy while
     * the host enqueues what is timed. */
    for (double start = ra_seconds(); ra_seconds() - start < 0.05;) {
        run(sets);
        must(cudaStreamSynchronize(stream), "the GPU");
    }
    for (int i = 0; i < count + 2; i++)
        run(&sets[i % count]);
    for (int i = 0; i < repeats; i++) {
        must(cudaEventRecord(events[2 * i], stream), "cudaEventRecord");
        run(&sets[i % count]);
        must(cudaEventRecord(events[2 * i + 1], stream), "cudaEventRecord");
    }
    must(cudaStreamSynchronize(stream), "the GPU");

    for (int i = 0; i < repeats; i++)
        must(cudaEventElapsedTime(&times[i], events[2 * i], events[2 * i + 1]), "an event");
    for (int e = 0; e < 2 * repeats; e++)
        must(cudaEventDestroy(events[e]), "cudaEventDestroy");
    double ms = median(times, repeats);
    free(times);
    free(events);
    return ms;
}

/* Results are NaN until a kernel writes them. Looks at the end of an array, where kernels that stop
 * too early leave that. */
static void check(struct ra_tensor x, int64_t numbers, const char *name)
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

/* ---- What the GPU can do at best. */

static struct {
    double products;       /* floating-point operations a second of 16-bit matrix products */
    double float_products; /* the same in float32, without tensor cores */
    double exponentials;   /* a second */
    double copies;         /* bytes a second, measured; bytes read and bytes written both count */
} ceiling;

static int attribute(enum cudaDeviceAttr which)
{
    int device, value;
    must(cudaGetDevice(&device), "cudaGetDevice");
    must(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
    return value;
}

/* From the clock at its highest and what a multiprocessor does in a clock; 0 where that is not
 * known to this program. */
static void find_ceiling(void)
{
    struct cudaDeviceProp device;
    int id, driver, runtime;
    must(cudaGetDevice(&id), "cudaGetDevice");
    must(cudaGetDeviceProperties(&device, id), "cudaGetDeviceProperties");
    must(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    must(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    cache_bytes = device.l2CacheSize;

    double clock = 1e3 * attribute(cudaDevAttrClockRate);
    double clocks = clock * device.multiProcessorCount;
    double in_a_clock = device.major == 9                        ? 4096
                        : device.major == 8 && device.minor == 0 ? 2048
                                                                 : 0;
    ceiling.products = clocks * in_a_clock;
    ceiling.float_products = clocks * 2 * (device.major == 8 && device.minor == 0 ? 64 : 128);
    ceiling.exponentials = clocks * 16;

    /* Copies, of twice 512 MiB: far more than the cache. */
    struct set set = {.bytes = INT64_C(1) << 30};
    must(cudaMalloc((void **)&set.memory, (size_t)set.bytes), "memory for a copy");
    must(cudaMemsetAsync(set.memory, 0, (size_t)set.bytes, stream), "cudaMemsetAsync");
    ceiling.copies = (double)set.bytes / (1e-3 * measure(copy, &set, 1, options.repeats));
    must(cudaFree(set.memory), "cudaFree");

    if (rank > 0)
        return;
    printf("%s, %d multiprocessors at up to %.0f MHz, L2 cache %.0f MiB, compute capability %d.%d, "
           "CUDA %d.%d, driver for %d.%d\n",
           device.name, device.multiProcessorCount, 1e-6 * clock, (double)cache_bytes / (1 << 20),
           device.major, device.minor, runtime / 1000, runtime % 1000 / 10, driver / 1000,
           driver % 1000 / 10);
    printf(
        "ceilings: 16-bit products %.0f TFLOP/s, float32 %.0f TFLOP/s, exponentials %.2f T/s (at "
        "that clock);\n          copies %.0f GB/s (measured, read and written bytes counted)\n",
        1e-12 * ceiling.products, 1e-12 * ceiling.float_products, 1e-12 * ceiling.exponentials,
        1e-9 * ceiling.copies);
    printf(
        "rates: forward 4 B H n m D operations, backward 2.5 times that, causal half; medians of "
        "%d\nfloor: the least time that its (p)roducts, (e)xponentials or (b)ytes could take\n",
        options.repeats);
}

/* ---- The table of one GPU. */

struct pass {
    const char *name;
    pass_run *run;
    bool is_backward, carries;
};

static const struct pass passes[] = {
    {"forward", forward, false, false},
    {"forward, carry in and out", forward_carry, false, true},
    {"backward", backward, true, false},
    {"backward, deterministic", backward_deterministic, true, false},
};

/* What has to be done, whoever does it. */
struct work {
    double operations, exponentials, bytes;
};

static struct work work_of(struct shape shape, enum ra_type type, bool causal,
                           const struct pass *pass)
{
    double rows = (double)shape.batch * (double)shape.rows, dim = (double)shape.dim;
    double pairs = rows * (double)shape.heads * (double)shape.rows * (causal ? 0.5 : 1);
    double numbers = rows * (double)shape.heads * dim;
    double key_numbers = rows * (double)shape.key_heads * dim;
    double size = (double)ra_type_bytes(type), row_floats = 4 * rows * (double)shape.heads;

    /* Every input is read once and every result written once. Forward: q, k, v; o and lse, or the
     * carry twice. Backward: q, k, v, o, d_out, lse; dq, dk, dv. */
    struct work work = {4 * pairs * dim, pairs, size * (numbers + 2 * key_numbers)};
    if (pass->is_backward) {
        work.operations *= 2.5;
        work.bytes += size * (3 * numbers + 2 * key_numbers) + row_floats;
    } else if (pass->carries) {
        work.bytes += 2 * (4 * numbers + 2 * row_floats);
    } else {
        work.bytes += size * numbers + row_floats;
    }
    return work;
}

static const char *type_name(enum ra_type type)
{
    return type == RA_FLOAT32 ? "fp32" : type == RA_FLOAT16 ? "fp16" : "bf16";
}

/* "1x32/8x16k": batches, heads/key heads, tokens. */
static void shape_name(struct shape shape, char *name, size_t size)
{
    char heads[48], rows[24];
    if (shape.heads == shape.key_heads)
        snprintf(heads, sizeof heads, "%" PRId64, shape.heads);
    else
        snprintf(heads, sizeof heads, "%" PRId64 "/%" PRId64, shape.heads, shape.key_heads);
    if (shape.rows % 1024 == 0)
        snprintf(rows, sizeof rows, "%" PRId64 "k", shape.rows / 1024);
    else
        snprintf(rows, sizeof rows, "%" PRId64, shape.rows);
    snprintf(name, size, "%" PRId64 "x%sx%s", shape.batch, heads, rows);
}

/* What a line is about. */
struct line {
    const struct rung *rung;
    struct shape shape;
    enum ra_type type;
    bool causal;
    const struct pass *pass;
};

/* Is this the text of --only, or part of the line's name, its columns with one space between? */
static bool wanted(const struct line *line)
{
    char shape[128], name[256];
    shape_name(line->shape, shape, sizeof shape);
    snprintf(name, sizeof name, "%s %s %s d%" PRId64 " %s %s", line->rung->name, line->pass->name,
             shape, line->shape.dim, line->causal ? "causal" : "full", type_name(line->type));
    return !options.only || strstr(name, options.only);
}

/* The title of the lines that follow, until it is printed: if there are any. */
static const char *title;

static void print_title(void)
{
    if (!title)
        return;
    printf("\n%s\n%-6s %-25s %-11s %-4s %-6s %-4s %9s %7s %9s %6s\n", title, "kernel", "pass",
           "shape", "dim", "mask", "type", "ms", "TFLOP/s", "floor ms", "of it");
    title = NULL;
}

static void print_line(const struct line *line, double ms)
{
    print_title();
    /* The floor, and which of the three it is. */
    struct work work = work_of(line->shape, line->type, line->causal, line->pass);
    double products = line->rung->tensor_cores ? ceiling.products : ceiling.float_products;
    double floors[] = {products > 0 ? 1e3 * work.operations / products : 0,
                       1e3 * work.exponentials / ceiling.exponentials,
                       1e3 * work.bytes / ceiling.copies};
    int highest = 0;
    for (int i = 1; i < 3; i++)
        if (floors[i] > floors[highest])
            highest = i;

    char shape[128];
    shape_name(line->shape, shape, sizeof shape);
    const char *mask = line->causal ? "causal" : "full", *type = type_name(line->type);
    double rate = 1e-9 * work.operations / ms;
    printf("%-6s %-25s %-11s d%-4" PRId64 "%-6s %-4s %9.3f %7.1f %7.3f %c %4.0f %%\n",
           line->rung->name, line->pass->name, shape, line->shape.dim, mask, type, ms, rate,
           floors[highest], "peb"[highest], 100 * floors[highest] / ms);
    fflush(stdout);
    if (options.csv)
        fprintf(options.csv,
                "%s,\"%s\",%s,%" PRId64 ",%s,%s,%.6f,%.3f,%.6g,%.6g,%.6g,%.6f,%.6f,%.6f\n",
                line->rung->name, line->pass->name, shape, line->shape.dim, mask, type, ms, rate,
                work.operations, work.exponentials, work.bytes, floors[0], floors[1], floors[2]);
}

/* Makes NaN of what a pass is to write; not of a carry, which it also reads. */
static void poison(struct set *set, const struct pass *pass)
{
    int64_t rows = set->kernel.batch * set->kernel.queries, dim = set->kernel.dim;
    int64_t heads = set->kernel.heads, key_heads = set->kernel.key_heads;
    if (pass->is_backward) {
        set_bytes(set->dq, 0xff, rows * heads * dim);
        set_bytes(set->dk, 0xff, rows * key_heads * dim);
        set_bytes(set->dv, 0xff, rows * key_heads * dim);
    } else if (!pass->carries) {
        set_bytes(set->kernel.o, 0xff, rows * heads * dim);
        set_bytes(set->kernel.lse, 0xff, rows * heads);
    }
}

/* All lines of one problem. The arrays are made when the first one is wanted. */
static void lines(const struct rung *rung, struct shape shape, enum ra_type type)
{
    struct set sets[MOST_SETS];
    int count = 0;
    for (int causal = 0; causal < 2; causal++) {
        bool prepared = false;
        for (size_t p = 0; p < sizeof passes / sizeof *passes; p++) {
            const struct pass *pass = &passes[p];
            struct line line = {rung, shape, type, causal, pass};
            if (!wanted(&line) || (!rung->tensor_cores && strchr(pass->name, ',')))
                continue;
            if (count == 0)
                count = sets_make(sets, rung, shape, type);

            /* A carry for the forward, o and lse for the backward. */
            for (int i = 0; i < count && !prepared; i++) {
                sets[i].kernel.band = causal ? (struct ra_band){-RA_BAND_FAR, 0} : RA_ALL_KEYS;
                struct ra_kernel begin = sets[i].kernel;
                begin.last = false;
                must(rung->forward(&begin, stream), "a first forward launch");
                forward(&sets[i]);
            }
            prepared = true;

            for (int i = 0; i < count; i++)
                poison(&sets[i], pass);
            double ms = measure(pass->run, sets, count, options.repeats);
            const struct set *set = &sets[count - 1];
            int64_t rows = shape.batch * shape.rows;
            check(set->kernel.lse, rows * shape.heads, "lse");
            check(set->kernel.o, rows * shape.heads * shape.dim, "o");
            check(set->kernel.carry_o, rows * shape.heads * shape.dim, "carry_o");
            if (pass->is_backward) {
                check(set->dq, rows * shape.heads * shape.dim, "dq");
                check(set->dk, rows * shape.key_heads * shape.dim, "dk");
                check(set->dv, rows * shape.key_heads * shape.dim, "dv");
            }
            print_line(&line, ms);
        }
    }
    sets_free(sets, count);
}

static void one_gpu(void)
{
    /* The ladder, on a problem that its first rung can do in a moment. */
    static const struct rung ladder[] = {
        {"k01", ra_k01_forward, ra_k01_backward, false},
        {"k02", ra_k02_forward, ra_k02_backward, false},
        {"k03", ra_k03_forward, ra_k03_backward, true},
    };
    const struct rung *last = &ladder[2];
    title = "the ladder";
    for (int i = 0; i < 3; i++)
        lines(&ladder[i], (struct shape){1, 2048, 16, 16, 128},
              ladder[i].tensor_cores ? RA_BFLOAT16 : RA_FLOAT32);

    /* Its last rung, on problems that fill the GPU. */
    static const struct shape shapes[] = {
        {4, 4096, 16, 16, 128},  {4, 4096, 32, 32, 64},  {16, 1024, 16, 16, 128},
        {1, 16384, 16, 16, 128}, {1, 65536, 4, 4, 128},  {1, 16384, 32, 8, 128},
        {16, 1024, 32, 32, 64},  {1, 16384, 32, 32, 64},
    };
    int all = sizeof shapes / sizeof *shapes;
    title = "the last rung";
    for (int i = 0; i < (options.quick ? 2 : all); i++)
        lines(last, shapes[i], RA_BFLOAT16);
    if (!options.quick)
        lines(last, shapes[0], RA_FLOAT16);
}

/* ---- The ring. */

static void must_ra(enum ra_status status, const struct ra_plan *plan)
{
    if (status != RA_OK)
        stop(ra_status_text(status), ra_plan_error(plan));
}

/* The mean, the least and the largest of all ranks' numbers. */
struct spread {
    double mean, least, largest;
};

static struct spread spread_of(double mine)
{
    struct spread spread;
    MPI_Allreduce(&mine, &spread.mean, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&mine, &spread.least, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&mine, &spread.largest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    spread.mean /= ranks;
    return spread;
}

/* What each GPU does alone, all of them at once: one causal launch over so many tokens, forward and
 * backward, in TFLOP/s. A call of the ring is a launch for each rank; here there are as many, so
 * that both work equally long: a GPU that has done so for a second is slower than a rested one. */
static void rates_alone(struct shape shape, struct spread rates[2])
{
    static const struct rung rung = {"k03", ra_k03_forward, ra_k03_backward, true};
    struct set sets[MOST_SETS];
    int count = sets_make(sets, &rung, shape, RA_BFLOAT16);
    for (int i = 0; i < count; i++) {
        sets[i].kernel.band = (struct ra_band){-RA_BAND_FAR, 0};
        forward(&sets[i]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (int p = 0; p < 2; p++) {
        const struct pass *pass = &passes[2 * p];
        double ms = measure(pass->run, sets, count, options.repeats * ranks);
        struct work work = work_of(shape, RA_BFLOAT16, true, pass);
        rates[p] = spread_of(1e-9 * work.operations / ms);
    }
    sets_free(sets, count);
}

/* GB/s of one message from every rank to its right neighbour at once, with nothing else to do: from
 * each rank's memory into the other's, by copy engine. 0 if that is not possible. */
static double transfer_rate(int64_t bytes)
{
    /* The first half is sent from, the second is where the left neighbour writes. */
    char *memory;
    must(cudaMalloc((void **)&memory, 2 * (size_t)bytes), "memory for messages");
    cudaIpcMemHandle_t mine, right;
    cudaError_t status = cudaIpcGetMemHandle(&mine, memory);
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    MPI_Sendrecv(&mine, sizeof mine, MPI_BYTE, from, 0, &right, sizeof right, MPI_BYTE, to, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    void *there = NULL;
    if (status == cudaSuccess)
        status = cudaIpcOpenMemHandle(&there, right, cudaIpcMemLazyEnablePeerAccess);
    int possible = status == cudaSuccess;
    MPI_Allreduce(MPI_IN_PLACE, &possible, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    /* The error has been dealt with; later calls are not to find it. */
    (void)cudaGetLastError();

    double rate = 0;
    if (possible) {
        float *times = calloc((size_t)options.repeats, sizeof *times);
        cudaEvent_t start, end;
        if (!times)
            stop("a measurement", "out of memory");
        must(cudaEventCreate(&start), "cudaEventCreate");
        must(cudaEventCreate(&end), "cudaEventCreate");
        for (int i = -2; i < options.repeats; i++) {
            MPI_Barrier(MPI_COMM_WORLD);
            must(cudaEventRecord(start, stream), "cudaEventRecord");
            must(cudaMemcpyAsync((char *)there + bytes, memory, (size_t)bytes, cudaMemcpyDefault,
                                 stream),
                 "a message");
            must(cudaEventRecord(end, stream), "cudaEventRecord");
            must(cudaStreamSynchronize(stream), "a message");
            if (i >= 0)
                must(cudaEventElapsedTime(&times[i], start, end), "an event");
        }
        rate = spread_of(1e-6 * (double)bytes / median(times, options.repeats)).mean;
        must(cudaEventDestroy(start), "cudaEventDestroy");
        must(cudaEventDestroy(end), "cudaEventDestroy");
        free(times);
    }
    if (there)
        must(cudaIpcCloseMemHandle(there), "cudaIpcCloseMemHandle");
    /* Nobody's memory goes while another still has it open. */
    MPI_Barrier(MPI_COMM_WORLD);
    must(cudaFree(memory), "cudaFree");
    return rate;
}

static void call(struct ra_plan *plan, const struct ra_arrays *arrays, bool is_backward)
{
    must_ra(is_backward ? ra_cuda_backward(plan, arrays, stream)
                        : ra_cuda_forward(plan, arrays, stream),
            plan);
}

/* Milliseconds of a call in a row of calls: the median of each rank, of which the largest. */
static double measure_ring(struct ra_plan *plan, const struct ra_arrays *arrays, bool is_backward)
{
    size_t repeats = (size_t)options.repeats;
    float *times = calloc(repeats, sizeof *times);
    cudaEvent_t *events = calloc(repeats + 1, sizeof *events);
    if (!times || !events)
        stop("a measurement", "out of memory");
    for (size_t i = 0; i <= repeats; i++)
        must(cudaEventCreate(&events[i]), "cudaEventCreate");
    call(plan, arrays, is_backward);
    call(plan, arrays, is_backward);
    must_ra(ra_cuda_wait(plan), plan);
    MPI_Barrier(MPI_COMM_WORLD);

    must(cudaEventRecord(events[0], stream), "cudaEventRecord");
    for (size_t i = 0; i < repeats; i++) {
        call(plan, arrays, is_backward);
        must(cudaEventRecord(events[i + 1], stream), "cudaEventRecord");
    }
    must_ra(ra_cuda_wait(plan), plan);
    must(cudaStreamSynchronize(stream), "the GPU");

    for (size_t i = 0; i < repeats; i++)
        must(cudaEventElapsedTime(&times[i], events[i], events[i + 1]), "an event");
    for (size_t i = 0; i <= repeats; i++)
        must(cudaEventDestroy(events[i]), "cudaEventDestroy");
    double ms = spread_of(median(times, options.repeats)).largest;
    free(times);
    free(events);
    return ms;
}

/* What the library tells of the last call. */
static struct {
    int count;
    struct ra_event events[256];
} seen;

static void observe(void *observer, const struct ra_event *event)
{
    (void)observer;
    if (seen.count < (int)(sizeof seen.events / sizeof *seen.events))
        seen.events[seen.count++] = *event;
}

static struct ra_plan *make_plan(const struct ra_config *config)
{
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    enum ra_status status = ra_cuda_mpi_plan_create(&plan, config, MPI_COMM_WORLD, error);
    if (status != RA_OK)
        stop(ra_status_text(status), error);
    return plan;
}

/* Another row of calls, of which the last is observed, into the file of --timeline. */
static void write_timeline(const char *name, struct ra_config config,
                           const struct ra_arrays *arrays, bool is_backward)
{
    config.observe = observe;
    struct ra_plan *plan = make_plan(&config);
    seen.count = 0;
    for (int i = 0; i < options.repeats; i++)
        call(plan, arrays, is_backward);
    must_ra(ra_cuda_wait(plan), plan);
    ra_plan_destroy(plan);

    /* All ranks' lines in one file, by the clock of the host, from the first start of all. */
    double first = INFINITY;
    for (int i = 0; i < seen.count; i++)
        first = fmin(first, seen.events[i].start);
    MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
    static const char *const words[] = {"work", "wait", "keys", "gradients"};
    for (int r = 0; r < ranks; r++) {
        if (r > 0 && rank == r)
            MPI_Send(&seen, sizeof seen, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        if (rank > 0)
            continue;
        if (r > 0)
            MPI_Recv(&seen, sizeof seen, MPI_BYTE, r, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < seen.count; i++) {
            struct ra_event x = seen.events[i];
            fprintf(options.timeline, "%s,%d,%s,%d,%.4f,%.4f\n", name, r, words[x.kind], x.hop,
                    1e3 * (x.start - first), 1e3 * (x.end - first));
        }
    }
}

static const char *const layout_names[] = {"contiguous", "striped", "zigzag"};

/* The arrays of a rank, filled; all in one piece of memory, which is returned. */
static void *ring_arrays(struct ra_plan *plan, const struct ra_config *config,
                         struct ra_arrays *arrays)
{
    int64_t n = ra_plan_rows(plan, RA_QUERY_SIDE), H = config->heads, G = config->key_heads;
    int64_t D = config->dim, numbers = n * D * (4 * H + 4 * G), lse = n * H;
    char *memory;
    must(cudaMalloc((void **)&memory, (size_t)(2 * numbers + 4 * lse)), "memory for a ring");
    must(cudaMemsetAsync(memory, 0xff, (size_t)(2 * numbers + 4 * lse), stream), "memset");

    struct place {
        struct ra_tensor *tensor;
        int64_t heads;
    } places[] = {{&arrays->q, H}, {&arrays->k, G},  {&arrays->v, G},  {&arrays->d_out, H},
                  {&arrays->o, H}, {&arrays->dq, H}, {&arrays->dk, G}, {&arrays->dv, G}};
    char *next = memory + 4 * lse;
    *arrays = (struct ra_arrays)RA_ARRAYS_INIT;
    arrays->lse = ra_tensor_bhn(memory, n, H);
    for (int i = 0; i < 8; i++) {
        *places[i].tensor = ra_tensor_bnhd(next, RA_BFLOAT16, n, places[i].heads, D);
        next += 2 * n * places[i].heads * D;
        if (i >= 4)
            continue;
        /* Which tokens these are matters to nobody here, as long as ranks have different ones. */
        struct ra_span span = {rank * n, 1, n};
        must(oracle_fill(*places[i].tensor, 0, span, places[i].heads, D, (enum oracle_stream)i,
                         stream),
             "the inputs of a ring");
    }
    return memory;
}

/* Before the lines of a shape: how messages pass, and what they are compared with. */
static void print_alone(struct ra_plan *plan, struct shape shape, struct shape larger,
                        const struct spread alone[2], const struct spread same_work[2],
                        int64_t message, double link)
{
    static char text[16384];
    char rows[128], more_rows[128];
    shape_name(shape, rows, sizeof rows);
    shape_name(larger, more_rows, sizeof more_rows);
    printf("\nring of %d, %s per GPU, d%" PRId64 ", causal, bf16\n", ranks, rows, shape.dim);

    /* The plan says how messages pass. */
    ra_plan_describe(plan, 0, text, sizeof text);
    const char *transport = strstr(text, "transport: ");
    if (transport)
        printf("%.*s\n", (int)strcspn(transport, "\n"), transport);
    if (link > 0)
        printf("a message of keys, %.1f MB, alone: %.0f GB/s, %.3f ms\n", 1e-6 * (double)message,
               link, 1e-6 * (double)message / link);
    else if (ranks > 1)
        puts("the GPUs do not reach each other's memory");

    /* A hop of a striped ring is a launch over n x n, causal or causal but for the diagonal. */
    printf(
        "own rate: what each GPU does alone, all at once, in one causal launch over the tokens of "
        "its share,\n          %s: forward %.1f TFLOP/s (%.1f to %.1f), backward %.1f (%.1f to "
        "%.1f)\n",
        rows, alone[0].mean, alone[0].least, alone[0].largest, alone[1].mean, alone[1].least,
        alone[1].largest);
    printf("          over as many tokens as make the multiply-adds of its part of the ring, %s:\n"
           "          forward %.1f, backward %.1f\n",
           more_rows, same_work[0].mean, same_work[1].mean);
    printf("%-8s %-11s %-4s %-10s %10s %8s %10s %10s\n", "pass", "shape/GPU", "dim", "layout", "ms",
           "TFLOP/s", "own rate", "efficiency");
}

/* No result is left out. */
static void check_ring(struct ra_plan *plan, const struct ra_arrays *arrays,
                       const struct ra_config *config, bool is_backward)
{
    int64_t n = ra_plan_rows(plan, RA_QUERY_SIDE);
    int64_t queries = n * config->heads * config->dim, keys = n * config->key_heads * config->dim;
    check(arrays->lse, n * config->heads, "lse of a ring");
    check(arrays->o, queries, "o of a ring");
    if (is_backward) {
        check(arrays->dq, queries, "dq of a ring");
        check(arrays->dk, keys, "dk of a ring");
        check(arrays->dv, keys, "dv of a ring");
    }
}

/* All lines of one shape, of so many rows per rank. */
static void ring_lines(struct shape shape)
{
    static const enum ra_layout_kind layouts[] = {RA_STRIPED, RA_ZIGZAG, RA_CONTIGUOUS};
    struct spread alone[2], same_work[2];
    bool begun = false;
    char shapes[128];
    shape_name(shape, shapes, sizeof shapes);
    for (int l = 0; l < (options.quick ? 1 : 3); l++) {
        /* The names of both passes decide; the backward needs the forward anyway. */
        char names[2][256];
        bool asked[2];
        for (int p = 0; p < 2; p++) {
            snprintf(names[p], sizeof names[p], "ring %s %s d%" PRId64 " %s", passes[2 * p].name,
                     shapes, shape.dim, layout_names[layouts[l]]);
            asked[p] = !options.only || strstr(names[p], options.only);
        }
        if (!asked[0] && !asked[1])
            continue;

        struct ra_config config = RA_CONFIG_INIT;
        config.queries = shape.rows * ranks;
        config.heads = shape.heads;
        config.key_heads = shape.key_heads;
        config.dim = shape.dim;
        config.type = RA_BFLOAT16;
        config.causal = true;
        config.layout = layouts[l];
        struct ra_plan *plan = make_plan(&config);

        /* What a GPU does alone, and what the links do alone, once for each shape. */
        if (!begun) {
            struct shape larger = shape;
            larger.rows = (int64_t)((double)shape.rows * sqrt(ranks) / 128 + 0.5) * 128;
            rates_alone(shape, alone);
            rates_alone(larger, same_work);
            int64_t message = 4 * shape.rows * shape.key_heads * shape.dim;
            double link = ranks > 1 ? transfer_rate(message) : 0;
            if (rank == 0)
                print_alone(plan, shape, larger, alone, same_work, message, link);
            begun = true;
        }

        struct ra_arrays arrays;
        void *memory = ring_arrays(plan, &config, &arrays);
        call(plan, &arrays, false);
        for (int p = 0; p < 2; p++) {
            if (!asked[p])
                continue;
            double ms = measure_ring(plan, &arrays, p == 1);
            check_ring(plan, &arrays, &config, p == 1);
            double N = (double)config.queries;
            double operations = 2 * N * N * (double)(shape.heads * shape.dim) / ranks;
            double rate = 1e-9 * operations * (p ? 2.5 : 1) / ms;
            if (rank == 0)
                printf("%-8s %-11s d%-4" PRId64 "%-10s %10.3f %8.1f %10.1f %8.1f %%\n",
                       passes[2 * p].name, shapes, shape.dim, layout_names[layouts[l]], ms, rate,
                       alone[p].mean, 100 * rate / alone[p].mean);
            if (options.csv)
                fprintf(options.csv,
                        "ring of %d %s,%s,%s,%" PRId64 ",causal,bf16,%.6f,%.3f,%.6g,,,,,\n", ranks,
                        layout_names[layouts[l]], passes[2 * p].name, shapes, shape.dim, ms, rate,
                        operations * (p ? 2.5 : 1));
            fflush(stdout);
            if (options.has_timeline)
                write_timeline(names[p], config, &arrays, p == 1);
        }
        ra_plan_destroy(plan);
        must(cudaFree(memory), "cudaFree");
    }
}

static void rings(void)
{
    ring_lines((struct shape){1, 32768, 16, 16, 128});
    ring_lines((struct shape){1, 8192, 32, 8, 128});
}

/* ---- The program. */

/* A file of rank 0; NULL on other ranks, and if there is no name. */
static FILE *create(const char *name)
{
    FILE *file = name && rank == 0 ? fopen(name, "w") : NULL;
    if (name && rank == 0 && !file)
        stop(name, "cannot be created");
    return file;
}

/* Ends the program on all ranks, with one rank's words. */
static _Noreturn void explain(FILE *where, int status)
{
    if (rank == 0)
        fputs(usage, where);
    MPI_Finalize();
    exit(status);
}

static void read_options(int argc, char **argv)
{
    static const struct option words[] = {
        {"only", required_argument, NULL, 'o'},
        {"quick", no_argument, NULL, 'q'},
        {"repeat", required_argument, NULL, 'r'},
        {"csv", required_argument, NULL, 'c'},
        {"timeline", required_argument, NULL, 't'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    const char *csv = NULL, *timeline = NULL;
    bool repeat_given = false;
    for (int word; (word = getopt_long(argc, argv, "", words, NULL)) != -1;) {
        switch (word) {
        case 'o':
            options.only = optarg;
            break;
        case 'q':
            options.quick = true;
            break;
        case 'r':
            options.repeats = atoi(optarg);
            repeat_given = true;
            break;
        case 'c':
            csv = optarg;
            break;
        case 't':
            timeline = optarg;
            break;
        case 'h':
            explain(stdout, 0);
        default:
            explain(stderr, 2);
        }
    }
    if (optind < argc || options.repeats < 1 || options.repeats > 100000)
        explain(stderr, 2);
    if (options.quick && !repeat_given)
        options.repeats = 3;
    options.csv = create(csv);
    options.timeline = create(timeline);
    options.has_timeline = timeline != NULL;
    if (options.csv)
        fprintf(options.csv, "kernel,pass,shape,dim,mask,type,ms,TFLOP/s,operations,exponentials,"
                             "bytes,floor of products ms,floor of exponentials ms,floor of bytes "
                             "ms\n");
    if (options.timeline)
        fprintf(options.timeline, "ring,rank,what,number,start ms,end ms\n");
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    read_options(argc, argv);
    rank_device_choose("bench-cuda", "rings mean nothing");
    must(cudaStreamCreate(&stream), "cudaStreamCreate");
    find_ceiling();
    if (rank == 0)
        one_gpu();
    MPI_Barrier(MPI_COMM_WORLD);
    rings();
    must(cudaStreamDestroy(stream), "cudaStreamDestroy");
    if (options.csv && fclose(options.csv))
        stop("--csv", "cannot be written");
    if (options.timeline && fclose(options.timeline))
        stop("--timeline", "cannot be written");
    MPI_Finalize();
    return 0;
}
