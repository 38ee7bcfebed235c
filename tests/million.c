/* million: attention over a million tokens on the GPUs of one machine, through the library, and
 * then some of its rows against float64.
 *
 *   mpirun -n P build/million [flags]         one rank per GPU
 *
 * Causal, striped, bfloat16, forward and backward. Every number of the inputs is a hash of its
 * place, so any rank makes any row again. Judged are query rows (o, lse, dq) and keys (dk, dv), by
 * tests/rig/oracle.cu, which is itself judged by tests/rig/truth.c first. A key's gradients need
 * lse and delta of all queries that see it; those are the run's own, whose rows were judged before.
 * Up to 4,096 tokens everything is judged, every row and every key, and by the oracle's own lse and
 * delta.
 *
 * Exit status: 0 all is well, 1 it is not, 2 misuse.
 */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "cuda_rig.h"
#include "numbers.h"
#include "oracle.h"
#include "ra_clock.h"
#include "ring_attention_cuda.h"
#include "ring_attention_mpi.h"
#include "truth.h"
#include "usage.h"
#include "verdict.h"

static const char usage[] =
    "usage: mpirun -n P million [flags]      one rank per GPU\n"
    "\n"
    "  --tokens N     of the whole sequence (1048576); up to 4096 every row is judged\n"
    "  --heads H      (8)\n"
    "  --dim-head D   numbers per head, at most 128 (128)\n"
    "  --rows COUNT   query rows, and keys, that are judged (1000)\n"
    "  --repeat N     timed runs, of which the median counts (3)\n"
    "  -h, --help     this text; --version: the version\n";

static struct {
    int64_t tokens, heads, dim, rows;
    int repeats;
} options = {1 << 20, 8, 128, 1000, 3};

static void *on_device(int64_t bytes)
{
    void *memory;
    must(cudaMalloc(&memory, (size_t)(bytes > 0 ? bytes : 1)), "memory on the GPU");
    return memory;
}

static void *to_device(const void *from, int64_t bytes)
{
    void *memory = on_device(bytes);
    must(cudaMemcpy(memory, from, (size_t)bytes, cudaMemcpyHostToDevice), "a copy to the GPU");
    return memory;
}

static void to_host(void *to, const void *from, int64_t bytes)
{
    must(cudaMemcpy(to, from, (size_t)bytes, cudaMemcpyDeviceToHost), "a copy from the GPU");
}

/* ---- Comparison. */

/* The worst of many numbers. */
struct grade {
    double error;   /* the largest */
    double share;   /* of what is allowed, the largest */
    double squares; /* of errors in units, summed up, over this many numbers: */
    double count;
    int64_t token, head, number; /* where the largest share is */
};

/* Holds a number against what it should be. What is not a number has an infinite error. */
static void hold(struct grade *grade, double got, double want, double unit, double allowed,
                 int64_t token, int64_t head, int64_t number)
{
    double error = fabs(got - want), share = error <= 0 ? 0 : error / allowed;
    if (!(error < INFINITY) || !(share < INFINITY))
        error = share = INFINITY;
    if (error > grade->error)
        grade->error = error;
    if (share > grade->share) {
        grade->share = share;
        grade->token = token;
        grade->head = head;
        grade->number = number;
    }
    grade->squares += unit > 0 ? (error / unit) * (error / unit) : 0;
    grade->count++;
}

/* The grades of all ranks in one, on rank 0. */
static struct grade grade_all(const struct grade *mine)
{
    struct grade *all = on_host(rig.ranks, sizeof *all), sum;
    MPI_Gather(mine, sizeof *mine, MPI_BYTE, all, sizeof *mine, MPI_BYTE, 0, MPI_COMM_WORLD);
    sum = all[0];
    for (int r = 1; r < rig.ranks; r++) {
        double error = fmax(sum.error, all[r].error);
        double squares = sum.squares + all[r].squares, count = sum.count + all[r].count;
        if (all[r].share > sum.share)
            sum = all[r];
        sum.error = error;
        sum.squares = squares;
        sum.count = count;
    }
    free(all);
    return sum;
}

/* ---- The oracle. */

static double cpu_number(enum oracle_stream numbers, int64_t index)
{
    return number_rounded(RA_BFLOAT16, (double)oracle_number(numbers, index));
}

/* A whole sequence on the GPU. */
static struct oracle whole_sequence(int64_t tokens, int64_t heads, int64_t dim)
{
    struct oracle oracle = {tokens, heads, dim, 1 / sqrt((double)dim), NULL, NULL, NULL, NULL};
    const void **arrays[] = {&oracle.q, &oracle.k, &oracle.v, &oracle.d_out};
    for (int i = 0; i < 4; i++) {
        void *data = on_device(2 * tokens * heads * dim);
        struct ra_tensor array = ra_tensor_bnhd(data, RA_BFLOAT16, tokens, heads, dim);
        struct ra_span all = {0, 1, tokens};
        must(oracle_fill(array, 0, all, heads, dim, (enum oracle_stream)i, rig.stream),
             "the inputs");
        *arrays[i] = data;
    }
    return oracle;
}

static void forget_sequence(struct oracle oracle)
{
    const void *arrays[] = {oracle.q, oracle.k, oracle.v, oracle.d_out};
    for (int i = 0; i < 4; i++)
        must(cudaFree((void *)arrays[i]), "cudaFree");
}

/* Room on the GPU for answers, and their names, so that they can be gone through in turn. */
enum {
    OF_O,
    O_UNIT,
    OF_DQ,
    DQ_UNIT,
    OF_LSE,
    OF_DELTA,
    DELTA_UNIT,
    OF_DK,
    DK_UNIT,
    OF_DV,
    DV_UNIT,
    ANSWERS
};

struct answers {
    double *device[ANSWERS], *host[ANSWERS];
    int64_t width[ANSWERS]; /* numbers of a row */
};

static struct answers answers_make(int64_t rows, int64_t heads, int64_t dim)
{
    struct answers answers;
    for (int i = 0; i < ANSWERS; i++) {
        answers.width[i] = i == OF_LSE || i == OF_DELTA || i == DELTA_UNIT ? heads : heads * dim;
        answers.host[i] = on_host(rows * answers.width[i], sizeof(double));
        answers.device[i] = on_device(rows * answers.width[i] * 8);
        /* NaN, so that nothing that was not written passes. */
        must(cudaMemset(answers.device[i], 0xff, (size_t)(rows * answers.width[i] * 8)), "memset");
    }
    return answers;
}

static void answers_free(struct answers *answers)
{
    for (int i = 0; i < ANSWERS; i++) {
        free(answers->host[i]);
        must(cudaFree(answers->device[i]), "cudaFree");
    }
}

static void answers_fetch(struct answers *answers, int first, int end, int64_t rows)
{
    must(cudaStreamSynchronize(rig.stream), "the oracle");
    for (int i = first; i < end; i++)
        to_host(answers->host[i], answers->device[i], rows * answers->width[i] * 8);
}

/* The oracle's answers for some rows; then, with lse, delta and its unit of all queries, keys. */
static void ask_rows(const struct oracle *oracle, struct answers *answers, const int64_t *rows,
                     int64_t count)
{
    double **d = answers->device;
    struct oracle_rows places = {d[OF_O],   d[O_UNIT],   d[OF_DQ],     d[DQ_UNIT],
                                 d[OF_LSE], d[OF_DELTA], d[DELTA_UNIT]};
    int64_t *there = to_device(rows, count * (int64_t)sizeof *rows);
    must(oracle_rows(oracle, there, count, &places, rig.stream), "the oracle");
    answers_fetch(answers, OF_O, OF_DK, count);
    must(cudaFree(there), "cudaFree");
}

static void ask_keys(const struct oracle *oracle, struct answers *answers, const int64_t *rows,
                     int64_t count, const double *const of_queries[3])
{
    double **d = answers->device;
    struct oracle_keys places = {d[OF_DK], d[DK_UNIT], d[OF_DV], d[DV_UNIT]};
    int64_t *there = to_device(rows, count * (int64_t)sizeof *rows);
    double *sums[3];
    for (int i = 0; i < 3; i++)
        sums[i] = to_device(of_queries[i], oracle->tokens * oracle->heads * 8);
    must(oracle_keys(oracle, there, count, sums[0], sums[1], sums[2], &places, rig.stream),
         "the oracle");
    answers_fetch(answers, OF_DK, ANSWERS, count);
    for (int i = 0; i < 3; i++)
        must(cudaFree(sums[i]), "cudaFree");
    must(cudaFree(there), "cudaFree");
}

/* The root of the sum of the squares of a result's own rounding and of what those of the weights
 * make of it, relative to the largest rounding of a bfloat16. */
static void units_of(const struct truth *t, enum truth_array a, double *units)
{
    for (int64_t e = 0; e < truth_count(t, a); e++)
        units[e] = sqrt(t->x[a][e] * t->x[a][e] + t->rounding[a][e] / pow(2, -16));
}

/* All answers of the definition for the first N tokens. */
static void define(int64_t N, int64_t H, int64_t D, double *want[ANSWERS])
{
    static const enum truth_array inputs[] = {[ORACLE_Q] = Q, K, V, D_OUT};
    struct ra_config config = RA_CONFIG_INIT;
    config.queries = N;
    config.heads = H;
    config.dim = D;
    config.type = RA_BFLOAT16;
    config.causal = true;
    struct truth t = truth_of(&config);
    t.weights = RA_BFLOAT16;
    for (int s = 0; s < 4; s++) {
        t.x[inputs[s]] = truth_numbers(N * H * D);
        for (int64_t e = 0; e < N * H * D; e++)
            t.x[inputs[s]][e] = cpu_number((enum oracle_stream)s, e);
    }
    truth_forward(&t);
    truth_backward(&t, NULL);
    static const struct {
        enum truth_array array;
        int answer, unit;
    } all[] = {{O, OF_O, O_UNIT},    {DQ, OF_DQ, DQ_UNIT}, {LSE, OF_LSE, -1},
               {DK, OF_DK, DK_UNIT}, {DV, OF_DV, DV_UNIT}, {DELTA, OF_DELTA, DELTA_UNIT}};
    for (int i = 0; i < 6; i++) {
        enum truth_array a = all[i].array;
        memcpy(want[all[i].answer], t.x[a], (size_t)truth_count(&t, a) * sizeof(double));
        if (all[i].unit >= 0)
            units_of(&t, a, want[all[i].unit]);
    }
    /* No program rounds delta: its unit is that of o alone. */
    for (int64_t e = 0; e < N * H; e++)
        want[DELTA_UNIT][e] = sqrt(t.rounding[DELTA][e]) * 256;
    truth_clear(&t);
}

/* Judges the oracle: all that it says of 300 tokens, and the inputs that it makes. Returns the
 * largest difference from the CPU, relative to 1 + the size of the number. */
static double judge_oracle(void)
{
    int64_t N = 300, H = 2, D = options.dim, numbers = N * H * D;
    double *want[ANSWERS];
    struct answers answers = answers_make(N, H, D);
    for (int i = 0; i < ANSWERS; i++)
        want[i] = on_host(N * answers.width[i], sizeof(double));
    define(N, H, D, want);

    struct oracle oracle = whole_sequence(N, H, D);
    int64_t *rows = on_host(N, sizeof *rows);
    for (int64_t i = 0; i < N; i++)
        rows[i] = i;
    ask_rows(&oracle, &answers, rows, N);
    const double *of_queries[] = {want[OF_LSE], want[OF_DELTA], want[DELTA_UNIT]};
    ask_keys(&oracle, &answers, rows, N, of_queries);
    struct grade grade = {0};
    for (int i = 0; i < ANSWERS; i++)
        for (int64_t e = 0; e < N * answers.width[i]; e++)
            hold(&grade, answers.host[i][e], want[i][e], 1, 1 + fabs(want[i][e]), e, i, 0);

    /* The inputs, bit for bit; and oracle_delta, with v in the place of o. */
    const void *inputs[] = {oracle.q, oracle.k, oracle.v, oracle.d_out};
    uint16_t *bits = on_host(numbers, sizeof *bits);
    for (int s = 0; s < 4; s++) {
        to_host(bits, inputs[s], 2 * numbers);
        for (int64_t e = 0; e < numbers; e++) {
            double x = number_get(RA_BFLOAT16, bits, e);
            hold(&grade, x, cpu_number((enum oracle_stream)s, e), 1, 0, e, ANSWERS + s, 0);
        }
    }
    must(oracle_delta(oracle.v, oracle.d_out, N, H, D, answers.device[OF_DELTA],
                      answers.device[DELTA_UNIT], rig.stream),
         "the oracle");
    answers_fetch(&answers, OF_DELTA, DELTA_UNIT + 1, N);
    for (int64_t row = 0; row < N * H; row++) {
        double delta = 0, square = 0;
        for (int64_t c = 0; c < D; c++) {
            double o = cpu_number(ORACLE_V, row * D + c), g = cpu_number(ORACLE_D_OUT, row * D + c);
            delta += o * g;
            square += 2 * o * o * g * g;
        }
        hold(&grade, answers.host[OF_DELTA][row], delta, 1, 1 + fabs(delta), row, OF_DELTA, 0);
        hold(&grade, answers.host[DELTA_UNIT][row], sqrt(square), 1, 1 + sqrt(square), row,
             DELTA_UNIT, 0);
    }

    free(bits);
    free(rows);
    for (int i = 0; i < ANSWERS; i++)
        free(want[i]);
    answers_free(&answers);
    forget_sequence(oracle);
    return grade.share;
}

/* ---- The run. */

/* Seconds of one pass, from when all ranks are ready until the last one is done; the median. One
 * run more goes before, to warm up. Results are NaN before each. */
static double run(struct ra_plan *plan, const struct ra_arrays *arrays, bool backward)
{
    int64_t n = ra_plan_rows(plan, RA_QUERY_SIDE), heads = options.heads;
    size_t bytes = (size_t)(2 * n * heads * options.dim);
    double *times = on_host(options.repeats + 1, sizeof *times);
    for (int i = 0; i <= options.repeats; i++) {
        if (backward) {
            must(cudaMemsetAsync(arrays->dq.data, 0xff, bytes, rig.stream), "memset");
            must(cudaMemsetAsync(arrays->dk.data, 0xff, bytes, rig.stream), "memset");
            must(cudaMemsetAsync(arrays->dv.data, 0xff, bytes, rig.stream), "memset");
        } else {
            must(cudaMemsetAsync(arrays->o.data, 0xff, bytes, rig.stream), "memset");
            must(cudaMemsetAsync(arrays->lse.data, 0xff, (size_t)(4 * n * heads), rig.stream),
                 "memset");
        }
        must(cudaStreamSynchronize(rig.stream), "the GPU");
        MPI_Barrier(MPI_COMM_WORLD);

        double start = ra_seconds();
        must_ra(backward ? ra_cuda_backward(plan, arrays, rig.stream)
                         : ra_cuda_forward(plan, arrays, rig.stream),
                plan);
        must_ra(ra_wait(plan), plan);
        times[i] = ra_seconds() - start;
        MPI_Allreduce(MPI_IN_PLACE, &times[i], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    }
    double middle = median(times + 1, options.repeats);
    free(times);
    return middle;
}

/* ---- The judgement. */

/* What a result may err by, in units (see oracle.h) of 2^-9, half the distance of two bfloat16
 * numbers at the larger end: 8. The largest of a million normal errors of a root mean square of
 * 1 / sqrt(3), a rounding's, is 3; float32 sums over a million terms, which tensor cores cut off
 * instead of rounding, may add 2; that, and half as much again. */
#define ROUNDING (1.0 / 512)
#define ALLOWED (8 * ROUNDING)

/* Their root mean square is to be about 1 / sqrt(3) of these; errors that all have the same cause
 * show here, though each may be small. */
#define MOST_RMS 2.0

/* And lse, a float32: half of what 128 keys of a million make, so that a tile that was left out
 * shows. */
#define LSE_ALLOWED 6e-5

/* Row number s of the sample, of a sequence of `tokens`: the first, the last, and then at random:
 * every other one from the whole, the rest from the first half, the first quarter, ... in turn,
 * since a row that sees few keys shows a wrong one best. */
static int64_t sample(int64_t s, int64_t tokens)
{
    if (s < 2)
        return s == 0 ? 0 : tokens - 1;
    int64_t part = s % 2 ? tokens >> (s / 2 % 16) : tokens;
    return (int64_t)(oracle_mix((uint64_t)s) % (uint64_t)(part > 0 ? part : 1));
}

/* The rows that this rank has of the sample, as positions and as local rows. Keys are taken from
 * the end, where few queries see them. */
static int64_t my_sample(struct ra_layout layout, bool keys, bool everything, int64_t *positions,
                         int64_t *local)
{
    int64_t N = options.tokens, count = 0;
    for (int64_t s = 0; s < (everything ? N : options.rows); s++) {
        int64_t position = everything ? s : sample(s, N), row;
        if (keys)
            position = N - 1 - position;
        if (ra_layout_find(layout, position, &row) == rig.rank) {
            positions[count] = position;
            local[count++] = row;
        }
    }
    return count;
}

/* Holds rows of a bfloat16 array (n, heads, dim) against answers. */
static struct grade judge(struct ra_tensor array, const double *want, const double *units,
                          const int64_t *positions, const int64_t *local, int64_t count)
{
    struct grade grade = {0};
    int64_t width = options.heads * options.dim;
    uint16_t *bits = on_host(width, sizeof *bits);
    for (int64_t s = 0; s < count; s++) {
        to_host(bits, (const uint16_t *)array.data + local[s] * width, 2 * width);
        for (int64_t e = 0; e < width; e++) {
            double unit = units[s * width + e];
            hold(&grade, number_get(RA_BFLOAT16, bits, e), want[s * width + e], ROUNDING * unit,
                 ALLOWED * unit, positions[s], e / options.dim, e % options.dim);
        }
    }
    free(bits);
    return grade;
}

/* lse of the same rows. */
static struct grade judge_lse(const float *lse, const double *want, const int64_t *positions,
                              const int64_t *local, int64_t count)
{
    struct grade grade = {0};
    int64_t H = options.heads;
    for (int64_t s = 0; s < count; s++)
        for (int64_t h = 0; h < H; h++)
            hold(&grade, (double)lse[local[s] * H + h], want[s * H + h], 0, LSE_ALLOWED,
                 positions[s], h, 0);
    return grade;
}

/* Puts everybody's numbers (n, heads) in their places in the whole sequence, (tokens, heads), on
 * all ranks. */
static double *gather(struct ra_layout layout, const double *mine)
{
    int64_t H = options.heads, rows = ra_layout_rows(layout, rig.rank);
    int *counts = on_host(rig.ranks, sizeof *counts), *starts = on_host(rig.ranks, sizeof *starts);
    for (int r = 0; r < rig.ranks; r++) {
        counts[r] = (int)(ra_layout_rows(layout, r) * H);
        starts[r] = r ? starts[r - 1] + counts[r - 1] : 0;
    }
    double *together = on_host(options.tokens * H, sizeof *together);
    double *whole = on_host(options.tokens * H, sizeof *whole);
    MPI_Allgatherv(mine, (int)(rows * H), MPI_DOUBLE, together, counts, starts, MPI_DOUBLE,
                   MPI_COMM_WORLD);
    for (int r = 0; r < rig.ranks; r++)
        for (int64_t a = 0; a < counts[r] / H; a++)
            memcpy(whole + ra_layout_position(layout, r, a) * H, together + starts[r] + a * H,
                   (size_t)H * sizeof *whole);
    free(counts);
    free(starts);
    free(together);
    return whole;
}

/* Prints a grade, on rank 0, and counts it. */
static void report(const char *name, const struct grade *mine)
{
    struct grade grade = grade_all(mine);
    double rms = sqrt(grade.squares / grade.count);
    bool good = grade.count > 0 && grade.share <= 1 && rms <= MOST_RMS;
    char typical[32] = "";
    if (rms > 0)
        snprintf(typical, sizeof typical, "%.2f", rms);
    if (rig.rank == 0)
        printf("%-5s %11.0f %14.3e %11.1f %% %9s   token %" PRId64 ", head %" PRId64
               ", number %" PRId64 "%s\n",
               name, grade.count, grade.error, 100 * grade.share, typical, grade.token, grade.head,
               grade.number, good ? "" : "   FAILED");
    verdict_state.complaints += rig.rank == 0 && !good;
    verdict("%s", name);
}

/* lse, delta and its unit of all queries: the oracle's, if it has judged all, or the run's. */
static void gather_sums(const struct ra_arrays *arrays, struct ra_layout layout, const float *lse,
                        double *const *judged, double *whole[3])
{
    int64_t H = options.heads, D = options.dim, n = ra_layout_rows(layout, rig.rank);
    double *mine[3];
    for (int i = 0; i < 3; i++) {
        mine[i] = on_host(n * H, sizeof *mine[i]);
        if (judged)
            memcpy(mine[i], judged[i], (size_t)(n * H) * sizeof *mine[i]);
    }
    if (!judged) {
        double *delta = on_device(n * H * 8), *unit = on_device(n * H * 8);
        must(oracle_delta(arrays->o.data, arrays->d_out.data, n, H, D, delta, unit, rig.stream),
             "delta");
        must(cudaStreamSynchronize(rig.stream), "delta");
        to_host(mine[1], delta, n * H * 8);
        to_host(mine[2], unit, n * H * 8);
        must(cudaFree(delta), "cudaFree");
        must(cudaFree(unit), "cudaFree");
        for (int64_t e = 0; e < n * H; e++)
            mine[0][e] = (double)lse[e];
    }
    for (int i = 0; i < 3; i++) {
        whole[i] = gather(layout, mine[i]);
        free(mine[i]);
    }
}

static void judge_all(const struct ra_arrays *arrays, struct ra_layout layout)
{
    int64_t N = options.tokens, H = options.heads, D = options.dim;
    int64_t n = ra_layout_rows(layout, rig.rank);
    bool everything = N <= 4096;
    double start = ra_seconds();
    struct oracle oracle = whole_sequence(N, H, D);
    int64_t most = everything ? n : options.rows;
    int64_t *positions = on_host(most, sizeof *positions), *local = on_host(most, sizeof *local);
    struct answers answers = answers_make(most, H, D);
    if (rig.rank == 0)
        printf("\n%-5s %11s %14s %13s %9s   %s\n", "", "numbers", "largest error", "of allowed",
               "rms/2^-9", "worst at");

    /* Query rows. */
    int64_t count = my_sample(layout, false, everything, positions, local);
    float *lse = on_host(n * H, sizeof *lse);
    to_host(lse, arrays->lse.data, n * H * 4);
    ask_rows(&oracle, &answers, positions, count);
    struct grade grade =
        judge(arrays->o, answers.host[OF_O], answers.host[O_UNIT], positions, local, count);
    report("o", &grade);
    grade = judge_lse(lse, answers.host[OF_LSE], positions, local, count);
    report("lse", &grade);
    grade = judge(arrays->dq, answers.host[OF_DQ], answers.host[DQ_UNIT], positions, local, count);
    report("dq", &grade);

    double *whole[3];
    gather_sums(arrays, layout, lse, everything ? &answers.host[OF_LSE] : NULL, whole);

    /* Keys. */
    count = my_sample(layout, true, everything, positions, local);
    ask_keys(&oracle, &answers, positions, count, (const double *const *)whole);
    grade = judge(arrays->dk, answers.host[OF_DK], answers.host[DK_UNIT], positions, local, count);
    report("dk", &grade);
    grade = judge(arrays->dv, answers.host[OF_DV], answers.host[DV_UNIT], positions, local, count);
    report("dv", &grade);
    if (rig.rank == 0)
        printf("allowed: %.0f units of 2^-9 (see tests/rig/oracle.h), rms %.0f; lse %.0e\n%s; %.1f "
               "s\n",
               ALLOWED / ROUNDING, MOST_RMS, LSE_ALLOWED,
               everything ? "every row and key" : "dk and dv by the lse and delta of the run",
               ra_seconds() - start);

    for (int i = 0; i < 3; i++)
        free(whole[i]);
    free(lse);
    free(positions);
    free(local);
    answers_free(&answers);
    forget_sequence(oracle);
}

/* ---- The program. */

static int64_t number_of(const char *text, int64_t most)
{
    char *end;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || value < 1 || value > most) {
        fprintf(stderr, "million: %s must be a number from 1 to %" PRId64 "\n", text, most);
        exit(2);
    }
    return value;
}

static void read_options(int argc, char **argv)
{
    static const struct option words[] = {
        {"tokens", required_argument, NULL, 't'},
        {"heads", required_argument, NULL, 'H'},
        {"dim-head", required_argument, NULL, 'd'},
        {"dim", required_argument, NULL, '?'}, /* the name of earlier versions */
        {"rows", required_argument, NULL, 'r'},
        {"repeat", required_argument, NULL, 'n'},
        {NULL, 0, NULL, 0},
    };
    for (int word; (word = getopt_long(argc, argv, "", words, NULL)) != -1;) {
        switch (word) {
        case 't':
            options.tokens = number_of(optarg, 1 << 26);
            break;
        case 'H':
            options.heads = number_of(optarg, 1024);
            break;
        case 'd':
            options.dim = number_of(optarg, ORACLE_MOST_DIM);
            break;
        case 'r':
            options.rows = number_of(optarg, 1 << 20);
            break;
        case 'n':
            options.repeats = (int)number_of(optarg, 1000);
            break;
        default:
            fputs(usage, stderr);
            exit(2);
        }
    }
    if (optind < argc) {
        fputs(usage, stderr);
        exit(2);
    }
}

/* Forward and backward, and what they took. */
static void measure(struct ra_plan *plan, const struct ra_arrays *arrays)
{
    int64_t N = options.tokens, H = options.heads, D = options.dim;
    int64_t n = ra_plan_rows(plan, RA_QUERY_SIDE);
    double forward = run(plan, arrays, false), backward = run(plan, arrays, true);
    size_t free_bytes, all_bytes;
    must(cudaMemGetInfo(&free_bytes, &all_bytes), "cudaMemGetInfo");
    double operations = 2 * (double)N * (double)N * (double)(H * D);
    if (rig.rank == 0) {
        printf("%" PRId64 " tokens, %" PRId64 " heads x %" PRId64
               ", causal, bfloat16, striped over %d ranks\n",
               N, H, D, rig.ranks);
        printf("forward  %10.4f s %8.1f TFLOP/s per rank\n", forward,
               1e-12 * operations / forward / rig.ranks);
        printf("backward %10.4f s %8.1f TFLOP/s per rank\n", backward,
               2.5e-12 * operations / backward / rig.ranks);
        printf("memory per rank: arrays %.2f GB, library %.2f GB; in use on the GPU %.2f GB\n",
               1e-9 * (double)(16 * n * H * D + 4 * n * H), 1e-9 * (double)ra_plan_bytes(plan),
               1e-9 * (double)(all_bytes - free_bytes));
    }
}

int main(int argc, char **argv)
{
    answer_usage(argc, argv, "million", usage);
    read_options(argc, argv);
    rig_begin("million", &argc, &argv);
    rig_choose_device("times mean nothing");

    double difference = judge_oracle();
    if (!(difference < 1e-11))
        stop("the oracle", "differs from the CPU");
    if (rig.rank == 0)
        printf("oracle on the GPU and on the CPU, 300 tokens: differ by %.1e at most\n",
               difference);

    int64_t N = options.tokens, H = options.heads, D = options.dim;
    struct ra_config config = RA_CONFIG_INIT;
    config.queries = N;
    config.heads = H;
    config.dim = D;
    config.type = RA_BFLOAT16;
    config.causal = true;
    config.layout = RA_STRIPED;
    struct ra_plan *plan = rig_plan(&config);

    /* This rank's rows of all arrays. lse is (n, heads), as delta is in the oracle. */
    struct ra_layout layout = ra_plan_layout(plan, RA_QUERY_SIDE);
    int64_t n = ra_plan_rows(plan, RA_QUERY_SIDE);
    struct ra_arrays arrays = RA_ARRAYS_INIT;
    struct ra_tensor *tensors[] = {&arrays.q, &arrays.k,  &arrays.v,  &arrays.d_out,
                                   &arrays.o, &arrays.dq, &arrays.dk, &arrays.dv};
    for (int i = 0; i < 8; i++)
        *tensors[i] = ra_tensor_bnhd(on_device(2 * n * H * D), RA_BFLOAT16, n, H, D);
    arrays.lse = ra_tensor_bnhd(on_device(4 * n * H), RA_FLOAT32, n, H, 1);
    for (int i = 0; i < 4; i++)
        must(oracle_fill(*tensors[i], 0, ra_layout_span(layout, rig.rank, 0), H, D,
                         (enum oracle_stream)i, rig.stream),
             "the inputs");

    measure(plan, &arrays);
    ra_plan_destroy(plan);

    verdict_state.rank = rig.rank;
    judge_all(&arrays, layout);
    int code = verdict_end();
    for (int i = 0; i < 8; i++)
        must(cudaFree(tensors[i]->data), "cudaFree");
    must(cudaFree(arrays.lse.data), "cudaFree");
    rig_end();
    return code;
}
