/* bench_kernels: every kernel on one GPU, and what the GPU could do at best. See bench_cuda.h. */
#include "bench_cuda.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int64_t cache_bytes;

/* ---- What the GPU can do at best. */

static struct {
    double products;       /* floating-point operations a second of 16-bit matrix products */
    double float_products; /* the same in float32, without tensor cores */
    double exponentials;   /* a second */
    double copies;         /* bytes a second, measured; bytes read and bytes written both count */
    double clock;          /* in GHz, at its highest */
} ceiling;

/* From the first half of the set's memory to the second. */
static void copy(struct set *set)
{
    size_t half = (size_t)set->bytes / 2;
    must(cudaMemcpyAsync(set->memory + half, set->memory, half, cudaMemcpyDeviceToDevice,
                         rig.stream),
         "a copy");
}

static int attribute(enum cudaDeviceAttr which)
{
    int device, value;
    must(cudaGetDevice(&device), "cudaGetDevice");
    must(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
    return value;
}

/* From the clock at its highest and what a multiprocessor does in a clock; 0 where that is not
 * known to this program. */
void find_ceiling(void)
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
    ceiling.clock = 1e-9 * clock;
    ceiling.products = clocks * in_a_clock;
    ceiling.float_products = clocks * 2 * (device.major == 8 && device.minor == 0 ? 64 : 128);
    ceiling.exponentials = clocks * 16;

    /* Copies, of twice 512 MiB: far more than the cache. */
    struct set set = {.bytes = INT64_C(1) << 30};
    must(cudaMalloc((void **)&set.memory, (size_t)set.bytes), "memory for a copy");
    must(cudaMemsetAsync(set.memory, 0, (size_t)set.bytes, rig.stream), "cudaMemsetAsync");
    ceiling.copies = (double)set.bytes / (1e-3 * measure(copy, &set, 1, bench.repeats));
    must(cudaFree(set.memory), "cudaFree");

    if (rig.rank > 0)
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
        "rates: forward 2 B H n m (D + D_v) operations, backward 2 B H n m (3 D + 2 D_v), causal "
        "half; medians of %d\nfloor: the least time that its (p)roducts, (e)xponentials or (b)ytes "
        "could take\n",
        bench.repeats);
}

/* ---- The table of one GPU. */

struct work work_of(struct shape shape, enum ra_type type, bool causal, const struct pass *pass)
{
    double rows = (double)shape.batch * (double)shape.rows;
    double D = (double)shape.dim, D_v = (double)shape.dim_value;
    double heads = rows * (double)shape.heads, key_heads = rows * (double)shape.key_heads;
    double pairs = heads * (double)shape.rows * (causal ? 0.5 : 1);
    double size = (double)ra_type_bytes(type), row_floats = 4 * heads;

    /* Every input is read once and every result written once. Forward: q, k, v; o and lse, or the
     * carry twice. Backward: q, k, v, o, d_out, lse; dq, dk, dv. */
    struct work work = {2 * pairs * (D + D_v), pairs, size * (heads * D + key_heads * (D + D_v))};
    if (pass->is_backward) {
        work.operations = 2 * pairs * (3 * D + 2 * D_v);
        work.bytes += size * (heads * (D + 2 * D_v) + key_heads * (D + D_v)) + row_floats;
    } else if (pass->carries) {
        work.bytes += 2 * (4 * heads * D_v + 2 * row_floats);
    } else {
        work.bytes += size * heads * D_v + row_floats;
    }
    return work;
}

static const char *type_name(enum ra_type type)
{
    return type == RA_FLOAT32 ? "fp32" : type == RA_FLOAT16 ? "fp16" : "bf16";
}

void shape_name(struct shape shape, char *name, size_t size)
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

void width_name(struct shape shape, char *name, size_t size)
{
    if (shape.dim_value == shape.dim)
        snprintf(name, size, "d%" PRId64, shape.dim);
    else
        snprintf(name, size, "d%" PRId64 "/%" PRId64, shape.dim, shape.dim_value);
}

/* What a line is about. */
struct line {
    const struct ra_rung *rung;
    struct shape shape;
    enum ra_type type;
    bool causal;
    const struct pass *pass;
};

/* Is this the text of --only, or part of the line's name, its columns with one space between? */
static bool wanted(const struct line *line)
{
    char shape[128], width[48], name[256];
    shape_name(line->shape, shape, sizeof shape);
    width_name(line->shape, width, sizeof width);
    snprintf(name, sizeof name, "%s %s %s %s %s %s", line->rung->name, line->pass->name, shape,
             width, line->causal ? "causal" : "full", type_name(line->type));
    return !bench.only || strstr(name, bench.only);
}

/* The title of the lines that follow, until it is printed: if there are any. */
static const char *title;

static void print_title(void)
{
    if (!title)
        return;
    printf("\n%s\n%-6s %-25s %-11s %-8s %-6s %-4s %9s %7s %9s %6s %5s %4s %5s\n", title, "kernel",
           "pass", "shape", "dim", "mask", "type", "ms", "TFLOP/s", "floor ms", "of it", "GHz", "W",
           "busy");
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

    char shape[128], width[48];
    shape_name(line->shape, shape, sizeof shape);
    width_name(line->shape, width, sizeof width);
    const char *mask = line->causal ? "causal" : "full", *type = type_name(line->type);
    double rate = 1e-9 * work.operations / ms;
    /* Busy: of the products that the clock at which the GPU ran allows. */
    double busy = state.clock > 0 ? 100 * floors[0] / ms * ceiling.clock / state.clock : 0;
    printf("%-6s %-25s %-11s %-8s %-6s %-4s %9.3f %7.1f %7.3f %c %4.0f %% %5.2f %4.0f "
           "%3.0f %%\n",
           line->rung->name, line->pass->name, shape, width, mask, type, ms, rate, floors[highest],
           "peb"[highest], 100 * floors[highest] / ms, state.clock, state.power, busy);
    fflush(stdout);
    if (bench.csv)
        fprintf(bench.csv,
                "%s,\"%s\",%s,%s,%s,%s,%.6f,%.3f,%.6g,%.6g,%.6g,%.6f,%.6f,%.6f,%.3f,"
                "%.0f\n",
                line->rung->name, line->pass->name, shape, width + 1, mask, type, ms, rate,
                work.operations, work.exponentials, work.bytes, floors[0], floors[1], floors[2],
                state.clock, state.power);
}

/* Makes NaN of what a pass is to write; not of a carry, which it also reads. */
static void poison(struct set *set, const struct pass *pass)
{
    int64_t rows = set->kernel.batch * set->kernel.queries, dim = set->kernel.dim;
    int64_t heads = set->kernel.heads, key_heads = set->kernel.key_heads,
            dim_value = set->kernel.dim_value;
    if (pass->is_backward) {
        set_bytes(set->dq, 0xff, rows * heads * dim);
        set_bytes(set->dk, 0xff, rows * key_heads * dim);
        set_bytes(set->dv, 0xff, rows * key_heads * dim_value);
    } else if (!pass->carries) {
        set_bytes(set->kernel.o, 0xff, rows * heads * dim_value);
        set_bytes(set->kernel.lse, 0xff, rows * heads);
    }
}

/* All lines of one problem. The arrays are made when the first one is wanted. */
static void lines(const struct ra_rung *rung, struct shape shape, enum ra_type type)
{
    struct set sets[MOST_SETS];
    int count = 0;
    for (int causal = 0; causal < 2; causal++) {
        bool prepared = false;
        for (int p = 0; p < PASSES; p++) {
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
                must(rung->forward(&begin, rig.stream), "a first forward launch");
                forward(&sets[i]);
            }
            prepared = true;

            for (int i = 0; i < count; i++)
                poison(&sets[i], pass);
            double ms = measure(pass->run, sets, count, bench.repeats);
            const struct set *set = &sets[count - 1];
            int64_t rows = shape.batch * shape.rows;
            check(set->kernel.lse, rows * shape.heads, "lse");
            check(set->kernel.o, rows * shape.heads * shape.dim_value, "o");
            check(set->kernel.carry_o, rows * shape.heads * shape.dim_value, "carry_o");
            if (pass->is_backward) {
                check(set->dq, rows * shape.heads * shape.dim, "dq");
                check(set->dk, rows * shape.key_heads * shape.dim, "dk");
                check(set->dv, rows * shape.key_heads * shape.dim_value, "dv");
            }
            print_line(&line, ms);
        }
    }
    sets_free(sets, count);
}

void bench_kernels(void)
{
    /* The ladder, on a problem that its first rung can do in a moment. */
    title = "the ladder";
    for (int i = 0; i < RA_RUNGS; i++)
        lines(&ra_ladder[i], (struct shape){1, 2048, 16, 16, 128, 128},
              ra_ladder[i].tensor_cores ? RA_BFLOAT16 : RA_FLOAT32);

    /* Those of tensor cores, on one that fills the GPU. */
    for (int i = RA_K03; i < RA_K06 && !bench.quick && !bench.turns; i++)
        lines(&ra_ladder[i], (struct shape){1, 16384, 16, 16, 128, 128}, RA_BFLOAT16);

    /* And k03 with D = 256, against which the backward of k06 is held. */
    if (!bench.quick && !bench.turns)
        lines(&ra_ladder[RA_K03], (struct shape){1, 16384, 8, 8, 256, 256}, RA_BFLOAT16);

    /* What the library launches on compute capability 9.0, on problems that fill the GPU: k07; and
     * backward k06, which is deterministic and takes D = 256. Who takes turns may ask for k03 to
     * k05, too. */
    static const struct shape shapes[] = {
        {4, 4096, 16, 16, 128, 128},  {4, 4096, 32, 32, 64, 64},    {16, 1024, 16, 16, 128, 128},
        {1, 16384, 16, 16, 128, 128}, {1, 65536, 4, 4, 128, 128},   {1, 16384, 32, 8, 128, 128},
        {16, 1024, 32, 32, 64, 64},   {1, 16384, 32, 32, 64, 64},   {1, 16384, 8, 8, 256, 256},
        {4, 4096, 16, 16, 192, 128},  {1, 16384, 16, 16, 192, 128},
    };
    int all = sizeof shapes / sizeof *shapes;
    title = "on problems that fill the GPU";
    for (int rung = bench.turns ? RA_K03 : RA_K06; rung <= RA_K07; rung++) {
        for (int i = 0; i < (bench.quick ? 2 : all); i++)
            lines(&ra_ladder[rung], shapes[i], RA_BFLOAT16);
        if (!bench.quick)
            lines(&ra_ladder[rung], shapes[0], RA_FLOAT16);
    }

    /* What 12-scale predicts with (chapters/img/12-rates.csv): the kernels that the library
     * launches for each type, on one sequence of 32 heads, from the rows of a rank of a long ring
     * to those of a short one. */
    title = "the rates that 12-scale reads";
    for (int64_t dim = 64; dim <= 256 && !bench.quick; dim *= 2)
        for (int64_t rows = 1024; rows <= 65536; rows *= 4) {
            struct shape shape = {1, rows, 32, 32, dim, dim};
            lines(&ra_ladder[RA_K07], shape, RA_BFLOAT16);
            lines(&ra_ladder[RA_K07], shape, RA_FLOAT16);
            if (rows < 65536)
                lines(&ra_ladder[RA_K02], shape, RA_FLOAT32);
        }
}
