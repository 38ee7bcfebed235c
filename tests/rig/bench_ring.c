/* bench_ring: the ring of all ranks, a GPU for each. See bench_cuda.h. */
#include <inttypes.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_cuda.h"
#include "oracle.h"
#include "ra_options.h"
#include "ra_clock.h"
#include "ra_slices.h"
#include "ring_attention_cuda.h"
#include "ring_attention_mpi.h"

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
    spread.mean /= rig.ranks;
    return spread;
}

/* What each GPU does alone, all of them at once, in one pass: one causal launch over so many
 * tokens, in TFLOP/s, by the kernel that the library launches. A call of the ring is a launch for
 * each rank; here there are as many, so that both work equally long: a GPU that has done so for a
 * second is slower than a rested one. */
static struct spread rate_alone(struct shape shape, int p)
{
    struct set sets[MOST_SETS];
    const struct pass *pass = &passes[2 * p];
    int count = sets_make(sets, &ra_ladder[RA_K07], shape, RA_BFLOAT16);
    for (int i = 0; i < count; i++) {
        sets[i].kernel.band = (struct ra_band){-RA_BAND_FAR, 0};
        forward(&sets[i]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    double ms = measure(pass->run, sets, count, bench.repeats * rig.ranks);
    struct work work = work_of(shape, RA_BFLOAT16, true, pass);
    sets_free(sets, count);
    return spread_of(1e-9 * work.operations / ms);
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
    int to = (rig.rank + 1) % rig.ranks, from = (rig.rank + rig.ranks - 1) % rig.ranks;
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
        double *times = on_host(bench.repeats, sizeof *times);
        cudaEvent_t start, end;
        must(cudaEventCreate(&start), "cudaEventCreate");
        must(cudaEventCreate(&end), "cudaEventCreate");
        for (int i = -2; i < bench.repeats; i++) {
            MPI_Barrier(MPI_COMM_WORLD);
            must(cudaEventRecord(start, rig.stream), "cudaEventRecord");
            must(cudaMemcpyAsync((char *)there + bytes, memory, (size_t)bytes, cudaMemcpyDefault,
                                 rig.stream),
                 "a message");
            must(cudaEventRecord(end, rig.stream), "cudaEventRecord");
            must(cudaStreamSynchronize(rig.stream), "a message");
            if (i >= 0)
                times[i] = milliseconds(start, end);
        }
        rate = spread_of(1e-6 * (double)bytes / median(times, bench.repeats)).mean;
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

/* What is called: one pass, or one after the other. */
enum calls { FORWARD = 1, BACKWARD = 2, BOTH = FORWARD | BACKWARD };

static void call(struct ra_plan *plan, const struct ra_arrays *arrays, enum calls calls)
{
    if (calls & FORWARD)
        must_ra(ra_cuda_forward(plan, arrays, rig.stream), plan);
    if (calls & BACKWARD)
        must_ra(ra_cuda_backward(plan, arrays, rig.stream), plan);
}

/* Milliseconds of calls in a row of them: the median of each rank, of which the largest. */
static double measure_ring(struct ra_plan *plan, const struct ra_arrays *arrays, enum calls calls)
{
    int repeats = bench.repeats;
    double *times = on_host(repeats, sizeof *times);
    cudaEvent_t *events = on_host(repeats + 1, sizeof *events);
    for (int i = 0; i <= repeats; i++)
        must(cudaEventCreate(&events[i]), "cudaEventCreate");
    call(plan, arrays, calls);
    must_ra(ra_wait(plan), plan);

    /* A GPU that was idle takes a while to reach its clock. All ranks must call equally often. */
    double start = ra_seconds();
    call(plan, arrays, calls);
    must_ra(ra_wait(plan), plan);
    double seconds = spread_of(ra_seconds() - start).largest;
    for (int i = 0; i < (int)(0.05 / seconds); i++)
        call(plan, arrays, calls);
    must_ra(ra_wait(plan), plan);
    MPI_Barrier(MPI_COMM_WORLD);

    must(cudaEventRecord(events[0], rig.stream), "cudaEventRecord");
    for (int i = 0; i < repeats; i++) {
        call(plan, arrays, calls);
        must(cudaEventRecord(events[i + 1], rig.stream), "cudaEventRecord");
    }
    must(cudaEventSynchronize(events[(repeats + 1) / 2]), "the GPU");
    state = rig_read_state();
    must_ra(ra_wait(plan), plan);
    must(cudaStreamSynchronize(rig.stream), "the GPU");

    for (int i = 0; i < repeats; i++)
        times[i] = milliseconds(events[i], events[i + 1]);
    for (int i = 0; i <= repeats; i++)
        must(cudaEventDestroy(events[i]), "cudaEventDestroy");
    double ms = spread_of(median(times, bench.repeats)).largest;
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

/* Another row of calls, of which the last is observed, into the file of --timeline. */
static void write_timeline(const char *name, struct ra_config config,
                           const struct ra_arrays *arrays, enum calls calls)
{
    config.observe = observe;
    struct ra_plan *plan = rig_plan(&config);
    seen.count = 0;
    for (int i = 0; i < bench.repeats; i++)
        call(plan, arrays, calls);
    must_ra(ra_wait(plan), plan);
    ra_plan_destroy(plan);

    /* All ranks' lines in one file, by the clock of the host, from the first start of all. */
    double first = INFINITY;
    for (int i = 0; i < seen.count; i++)
        first = fmin(first, seen.events[i].start);
    MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
    static const char *const words[] = {"work", "wait", "keys", "gradients"};
    for (int r = 0; r < rig.ranks; r++) {
        if (r > 0 && rig.rank == r)
            MPI_Send(&seen, sizeof seen, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        if (rig.rank > 0)
            continue;
        if (r > 0)
            MPI_Recv(&seen, sizeof seen, MPI_BYTE, r, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        for (int i = 0; i < seen.count; i++) {
            struct ra_event x = seen.events[i];
            fprintf(bench.timeline, "%s,%d,%s,%d,%.4f,%.4f\n", name, r, words[x.kind], x.hop,
                    1e3 * (x.start - first), 1e3 * (x.end - first));
        }
    }
}

static const struct ring_layout {
    const char *name;
    enum ra_layout_kind kind;
    int64_t bucket;
    enum ra_method method;
} layouts[] = {{"striped", RA_STRIPED, 0, RA_RING},
               {"zigzag", RA_ZIGZAG, 0, RA_RING},
               {"buckets", RA_STRIPED, 1024, RA_RING},
               {"contiguous", RA_CONTIGUOUS, 0, RA_RING},
               {"exchanged", RA_CONTIGUOUS, 0, RA_EXCHANGED_HEADS}};
enum { LAYOUTS = sizeof layouts / sizeof *layouts };

/* The arrays of a rank, filled; all in one piece of memory, which is returned. */
static void *ring_arrays(struct ra_plan *plan, const struct ra_config *config,
                         struct ra_arrays *arrays)
{
    int64_t n = ra_plan_rows(plan, RA_QUERY_SIDE), H = config->heads, G = config->key_heads;
    int64_t D = config->dim, numbers = n * D * (4 * H + 4 * G), lse = n * H;
    char *memory;
    must(cudaMalloc((void **)&memory, (size_t)(2 * numbers + 4 * lse)), "memory for a ring");
    must(cudaMemsetAsync(memory, 0xff, (size_t)(2 * numbers + 4 * lse), rig.stream), "memset");

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
        struct ra_span span = {rig.rank * n, 1, n};
        must(oracle_fill(*places[i].tensor, 0, span, places[i].heads, D, (enum oracle_stream)i,
                         rig.stream),
             "the inputs of a ring");
    }
    return memory;
}

/* Before the lines of a shape: how messages pass, and what the links do alone. */
static void print_shape(struct ra_plan *plan, struct shape shape)
{
    static char text[16384];
    char rows[128];
    int64_t message = 4 * shape.rows * shape.key_heads * shape.dim;
    double link = rig.ranks > 1 ? transfer_rate(message) : 0;
    if (rig.rank > 0)
        return;
    shape_name(shape, rows, sizeof rows);
    printf("\nring of %d, %s per GPU, d%" PRId64 ", causal, bf16\n", rig.ranks, rows, shape.dim);

    /* The plan says how messages pass. */
    ra_plan_describe(plan, 0, text, sizeof text);
    const char *transport = strstr(text, "transport: ");
    if (transport)
        printf("%.*s\n", (int)strcspn(transport, "\n"), transport);
    if (link > 0)
        printf("a message of keys, %.1f MB, alone: %.0f GB/s, %.3f ms\n", 1e-6 * (double)message,
               link, 1e-6 * (double)message / link);
    else if (rig.ranks > 1)
        puts("the GPUs do not reach each other's memory");

    /* A hop of a striped ring is a launch over n x n, causal or causal but for the diagonal. */
    puts("own rate: what each GPU does alone, all at once, in one causal launch over the tokens\n"
         "          of its share, right before and right after the ring");
    printf("%-8s %-11s %-4s %-10s %10s %8s %17s %10s\n", "pass", "shape/GPU", "dim", "layout", "ms",
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

/* One line, of a pass that took so many milliseconds. */
static void print_ring(struct shape shape, const char *layout, int pass, double ms,
                       const struct spread alone[2])
{
    char shapes[128];
    shape_name(shape, shapes, sizeof shapes);
    double N = (double)shape.rows * rig.ranks;
    double operations = 2 * N * N * (double)(shape.heads * shape.dim) / rig.ranks;
    operations *= pass ? 2.5 : 1;
    double rate = 1e-9 * operations / ms;
    const char *name = passes[2 * pass].name;
    if (rig.rank == 0)
        printf("%-8s %-11s d%-4" PRId64 "%-10s %10.3f %8.1f %8.1f %8.1f %8.1f %%\n", name, shapes,
               shape.dim, layout, ms, rate, alone[0].mean, alone[1].mean,
               200 * rate / (alone[0].mean + alone[1].mean));
    if (bench.csv)
        fprintf(bench.csv, "ring of %d %s,%s,%s,%" PRId64 ",causal,bf16,%.6f,%.3f,%.6g,,,,,\n",
                rig.ranks, layout, name, shapes, shape.dim, ms, rate, operations);
    fflush(stdout);
}

/* Of a causal ring with so many rows per rank. */
static struct ra_config ring_config(struct shape shape, struct ring_layout layout)
{
    struct ra_config config = RA_CONFIG_INIT;
    config.queries = shape.rows * rig.ranks;
    config.heads = shape.heads;
    config.key_heads = shape.key_heads;
    config.dim = shape.dim;
    config.type = RA_BFLOAT16;
    config.causal = true;
    config.layout = layout.kind;
    config.bucket = layout.bucket;
    config.method = layout.method;
    return config;
}

/* All lines of one shape, of so many rows per rank. */
static void ring_lines(struct shape shape)
{
    bool begun = false;
    char shapes[128];
    shape_name(shape, shapes, sizeof shapes);
    for (int l = 0; l < (bench.quick ? 1 : LAYOUTS); l++) {
        /* The names of both passes decide; the backward needs the forward anyway. */
        const char *layout = layouts[l].name;
        char names[2][256];
        bool asked[2];
        for (int p = 0; p < 2; p++) {
            snprintf(names[p], sizeof names[p], "ring %s %s d%" PRId64 " %s", passes[2 * p].name,
                     shapes, shape.dim, layout);
            asked[p] = !bench.only || strstr(names[p], bench.only);
        }
        if (!asked[0] && !asked[1])
            continue;

        struct ra_config config = ring_config(shape, layouts[l]);
        struct ra_plan *plan = rig_plan(&config);
        if (!begun)
            print_shape(plan, shape);
        begun = true;

        struct ra_arrays arrays;
        void *memory = ring_arrays(plan, &config, &arrays);
        call(plan, &arrays, FORWARD);
        for (int p = 0; p < 2; p++) {
            if (!asked[p])
                continue;
            enum calls calls = p == 0 ? FORWARD : BACKWARD;
            struct spread alone[2] = {rate_alone(shape, p)};
            double ms = measure_ring(plan, &arrays, calls);
            alone[1] = rate_alone(shape, p);
            check_ring(plan, &arrays, &config, p == 1);
            print_ring(shape, layout, p, ms, alone);
            if (bench.has_timeline)
                write_timeline(names[p], config, &arrays, calls);
        }
        ra_plan_destroy(plan);
        must(cudaFree(memory), "cudaFree");
    }
}

/* Two ways to deal documents. */
static const struct deal {
    const char *name;
    enum ra_layout_kind layout;
    enum ra_deal deal;
} deals[] = {{"contiguous", RA_CONTIGUOUS, RA_DEAL_LAYOUT},
             {"dealt", RA_CONTIGUOUS, RA_DEAL_DOCUMENTS}};

/* Milliseconds of the forward and of `calls`, over documents whose lengths are multiples of `unit`.
 * Returns how many pairs are seen. */
static double measure_documents(struct shape shape, int64_t length, int64_t unit,
                                const struct deal *deal, enum calls calls, double ms[2])
{
    int64_t rows = shape.rows * rig.ranks;
    int64_t *bounds = on_host(rows + 1, sizeof *bounds);
    int64_t count = bench_bounds(length, unit, rows, bounds);
    struct ra_slice *slices = on_host(count, sizeof *slices);
    ra_slices_documents(bounds, count, RA_NO_LOOKBACK, 0, slices);
    double pairs = 0;
    for (int64_t i = 0; i < count; i++)
        pairs += (double)ra_slice_pairs(&slices[i]);
    struct ra_config config =
        ring_config(shape, (struct ring_layout){"", deal->layout, 0, RA_RING});
    config.causal = false;
    config.max_slices = count;
    config.max_rows = shape.rows + shape.rows / 8;
    struct ra_plan *plan = rig_plan(&config);
    must_ra(ra_plan_set_slices(plan, slices, count, deal->deal), plan);
    struct ra_arrays arrays;
    void *memory = ring_arrays(plan, &config, &arrays);
    for (int p = 0; p < 2; p++)
        ms[p] = measure_ring(plan, &arrays, p == 0 ? FORWARD : calls);
    check_ring(plan, &arrays, &config, true);
    ra_plan_destroy(plan);
    must(cudaFree(memory), "cudaFree");
    free(bounds);
    free(slices);
    return pairs;
}

/* One line: milliseconds of both passes, and the rate of the pairs that are seen. */
static void document_line(struct shape shape, int64_t length, const struct deal *deal)
{
    double ms[2], pairs = measure_documents(shape, length, 1, deal, BACKWARD, ms);
    double operations = 4 * pairs * (double)(shape.heads * shape.dim) / rig.ranks;
    char name[32] = "log-normal";
    if (length > 0)
        snprintf(name, sizeof name, "%" PRId64, length);
    if (rig.rank == 0)
        printf("documents %-10s %-10s %10.3f ms %7.1f TFLOP/s %10.3f ms %7.1f TFLOP/s\n", name,
               deal->name, ms[0], 1e-9 * operations / ms[0], ms[1], 2.5e-9 * operations / ms[1]);
    fflush(stdout);
}

void bench_document_rings(void)
{
    static const int64_t lengths[] = {512, 2048, 8192, 0};
    const struct shape shape = {1, 32768, 16, 16, 128, 128};
    if (bench.only && strcmp(bench.only, "documents") != 0)
        return;
    if (rig.rank == 0)
        printf(
            "\nring of %d, 1x16x32k per GPU, d128, documents, bf16: forward and backward, TFLOP/s "
            "of visible pairs per GPU\n",
            rig.ranks);
    for (int i = 0; i < 8; i++)
        document_line(shape, lengths[i / 2], &deals[i % 2]);
}

void bench_rings(void)
{
    ring_lines((struct shape){1, 32768, 16, 16, 128, 128});
    ring_lines((struct shape){1, 8192, 32, 8, 128, 128});
}

/* Reads heads, 'H' or 'H/G'. */
static bool read_heads(const char *text, struct shape *shape)
{
    int count = sscanf(text, "%" SCNd64 "/%" SCNd64, &shape->heads, &shape->key_heads);
    shape->key_heads = count == 1 ? shape->heads : shape->key_heads;
    return count >= 1;
}

/* Finds the method of this name; RA_RING if none is given. */
static bool find_method(const char *name, enum ra_method *method)
{
    *method = RA_RING;
    for (int m = RA_RING; m < RA_AUTO_METHOD && name[0]; m++)
        if (strcmp(name, ra_option_methods[m].word) == 0)
            *method = (enum ra_method)m;
    return !name[0] || strcmp(name, ra_option_methods[*method].word) == 0;
}

/* The answer to a line of --turns. */
static void print_turn(const double ms[2])
{
    double clock = spread_of(state.clock).mean, power = spread_of(state.power).mean;
    if (rig.rank == 0)
        printf("ring %.6f %.6f %.3f %.0f\n", ms[0], ms[1], clock, power);
}

void bench_ring_turn(const char *line)
{
    struct shape shape = {.batch = 1};
    int64_t tokens, bucket = 0;
    char layout[16], heads[24], name[24] = "";
    int end = 0;
    enum ra_method method;
    if (sscanf(line, "ring %" SCNd64 " %23s %" SCNd64 " %15s%n", &tokens, heads, &shape.dim, layout,
               &end) < 4 ||
        tokens % rig.ranks != 0 || !read_heads(heads, &shape))
        return;
    (void)sscanf(line + end, " method %23s", name);
    (void)sscanf(line + end, "%" SCNd64 " method %23s", &bucket, name);
    if (!find_method(name, &method))
        return;
    shape.rows = tokens / rig.ranks;
    shape.dim_value = shape.dim;
    for (int l = 0; l < LAYOUTS; l++) {
        if (strcmp(layout, layouts[l].name) != 0)
            continue;
        struct ra_config config = ring_config(shape, layouts[l]);
        config.bucket = bucket > 0 ? bucket : config.bucket;
        config.method = name[0] ? method : config.method;
        struct ra_plan *plan = rig_plan(&config);
        struct ra_arrays arrays;
        void *memory = ring_arrays(plan, &config, &arrays);
        double ms[2];
        for (int p = 0; p < 2; p++)
            ms[p] = measure_ring(plan, &arrays, p == 0 ? FORWARD : BOTH);
        check_ring(plan, &arrays, &config, true);
        print_turn(ms);
        ra_plan_destroy(plan);
        must(cudaFree(memory), "cudaFree");
    }
}

/* The lengths that a turn with these documents has. */
static void print_lengths(int64_t tokens, int64_t length)
{
    int64_t *bounds = on_host(tokens + 1, sizeof *bounds);
    int64_t count = bench_bounds(length, 2 * rig.ranks, tokens, bounds);
    if (rig.rank == 0)
        bench_print_lengths("lengths", count, bounds);
    free(bounds);
}

void bench_document_turn(const char *line)
{
    struct shape shape = {.batch = 1};
    int64_t tokens, length;
    char heads[24], deal[16];
    if (sscanf(line, "lengths %" SCNd64 " %" SCNd64, &tokens, &length) == 2)
        print_lengths(tokens, length);
    if (sscanf(line, "documents %" SCNd64 " %" SCNd64 " %23s %" SCNd64 " %15s", &tokens, &length,
               heads, &shape.dim, deal) < 5 ||
        tokens % rig.ranks != 0 || !read_heads(heads, &shape))
        return;
    shape.rows = tokens / rig.ranks;
    shape.dim_value = shape.dim;
    for (int i = 0; i < 2; i++) {
        double ms[2];
        if (strcmp(deal, deals[i].name) != 0)
            continue;
        measure_documents(shape, length, 2 * rig.ranks, &deals[i], BOTH, ms);
        print_turn(ms);
    }
}
