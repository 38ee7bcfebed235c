/* bench_vector: how fast the library's tiles are, beside what this processor's multiply-adds allow.
 *
 *   bench-vector [--heads H] [--threads T] [--tile QUERIES KEYS] [--repeat R] ISA N D [causal]
 *   bench-vector --peak ISA
 *
 * ISA is avx512, avx2, sse2 or neon, plain (the tile of chapter 02), or best. The first prints the
 * forward's and the backward's GFLOP/s, 4 N N D and 10 N N D for each head, half of that if causal: the
 * best of R calls of ra_forward and ra_backward (5), after one that warms the caches. One thread is timed
 * by the processor that it uses, several by the clock on the wall.
 *
 * --peak prints three rates of one thread: of multiply-adds whose operands stay in registers; of those
 * that read one operand each from the first-level cache; and of those that read two.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#elif defined __aarch64__
#include <arm_neon.h>
#endif
#include "ra_clock.h"
#include "ra_vector.h"
#include "ring_attention.h"

/* ---- Peak: twelve chains of multiply-adds, as in tests/rig/peak.c. */

enum { STEPS = 200000, RUNS = 9 };

static float table[2 * 12 * 16];

/* The empty instruction may change the sum, as far as the compiler knows, and all memory. */
#define CHAIN(i, FMA, LOAD, LOADS)                                  \
    s##i = FMA(LOADS > 0 ? LOAD(table + i * (sizeof s0 / 4)) : factor,          \
               LOADS > 1 ? LOAD(table + (12 + i) * (sizeof s0 / 4)) : term, s##i); \
    __asm__ volatile("" : "+" REGISTER(s##i), "+m"(table));
#define PEAK(name, target_of_it, TYPE, FMA, LOAD, ALL)                                       \
    target_of_it static double name(int loads)                                               \
    {                                                                                        \
        double best = 0;                                                                     \
        for (int run = 0; run < RUNS; run++) {                                               \
            TYPE factor = ALL(0.999f), term = ALL(1e-3f), s0 = ALL(0);                       \
            TYPE s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0, s8 = s0,     \
                 s9 = s0, s10 = s0, s11 = s0;                                                \
            double start = ra_seconds();                                                     \
            for (int step = 0; step < STEPS && loads == 0; step++) {                         \
                EACH(FMA, LOAD, 0)                                                           \
            }                                                                                \
            for (int step = 0; step < STEPS && loads == 1; step++) {                         \
                EACH(FMA, LOAD, 1)                                                           \
            }                                                                                \
            for (int step = 0; step < STEPS && loads == 2; step++) {                         \
                EACH(FMA, LOAD, 2)                                                           \
            }                                                                                \
            best = fmax(best, 24e-9 * (sizeof s0 / 4) * STEPS / (ra_seconds() - start));     \
        }                                                                                    \
        return best;                                                                         \
    }
#define EACH(F, L, N)                                                                            \
    CHAIN(0, F, L, N) CHAIN(1, F, L, N) CHAIN(2, F, L, N) CHAIN(3, F, L, N) CHAIN(4, F, L, N)    \
    CHAIN(5, F, L, N) CHAIN(6, F, L, N) CHAIN(7, F, L, N) CHAIN(8, F, L, N) CHAIN(9, F, L, N)    \
    CHAIN(10, F, L, N) CHAIN(11, F, L, N)
#ifdef __x86_64__
#define REGISTER(s) "v"(s)
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
PEAK(peak_avx512, __attribute__((target("avx512f"))), __m512, _mm512_fmadd_ps, _mm512_loadu_ps,
     _mm512_set1_ps)
PEAK(peak_avx2, __attribute__((target("avx2,fma"))), __m256, _mm256_fmadd_ps, _mm256_loadu_ps,
     _mm256_set1_ps)
PEAK(peak_sse2, , __m128, MULTIPLY_ADD, _mm_loadu_ps, _mm_set1_ps)
static const struct {
    const char *name;
    double (*peak)(int loads);
} peaks[] = {{"avx512", peak_avx512}, {"avx2", peak_avx2}, {"sse2", peak_sse2}};
#else
#define REGISTER(s) "w"(s)
#define FUSED(a, b, c) vfmaq_f32(c, a, b)
PEAK(peak_neon, , float32x4_t, FUSED, vld1q_f32, vdupq_n_f32)
static const struct {
    const char *name;
    double (*peak)(int loads);
} peaks[] = {{"neon", peak_neon}};
#endif

static int print_peak(const char *name)
{
    for (size_t k = 0; k < sizeof peaks / sizeof *peaks; k++)
        if (strcmp(peaks[k].name, name) == 0)
            printf("%.1f %.1f %.1f\n", peaks[k].peak(0), peaks[k].peak(1), peaks[k].peak(2));
    return 0;
}

/* ---- Tiles. */

/* Numbers between -size and size. */
static float *numbers(int64_t count, double size)
{
    float *x = aligned_alloc(64, (size_t)(count * 4 + 63) / 64 * 64);
    uint32_t state = 1;
    for (int64_t e = 0; e < count; e++) {
        state = state * 1664525 + 1013904223;
        x[e] = (float)(size * ((double)state / 0x1p31 - 1));
    }
    return x;
}

/* Seconds of this process's processors. What else runs on this machine does not count, but it does
 * fill caches. */
static double seconds_of_work(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double least_time(struct ra_plan *plan, struct ra_arrays *x, int repeat, double (*seconds)(void),
                         enum ra_status (*call)(struct ra_plan *, const struct ra_arrays *))
{
    double best = 1e30;
    for (int run = 0; run <= repeat; run++) {
        double start = seconds();
        if (call(plan, x) != RA_OK)
            exit(fprintf(stderr, "bench-vector: %s\n", ra_plan_error(plan)));
        if (run > 0)
            best = fmin(best, seconds() - start);
    }
    return best;
}

int main(int argc, char **argv)
{
    struct ra_config config = RA_CONFIG_INIT;
    config.heads = 1;
    config.threads = 1;
    int repeat = 5, a = 1;
    bool peak = false;
    for (; a < argc && strncmp(argv[a], "--", 2) == 0; a++) {
        if (strcmp(argv[a], "--peak") == 0)
            peak = true;
        else if (strcmp(argv[a], "--heads") == 0 && a + 1 < argc)
            config.heads = atoi(argv[++a]);
        else if (strcmp(argv[a], "--threads") == 0 && a + 1 < argc)
            config.threads = atoi(argv[++a]);
        else if (strcmp(argv[a], "--repeat") == 0 && a + 1 < argc)
            repeat = atoi(argv[++a]);
        else if (strcmp(argv[a], "--tile") == 0 && a + 2 < argc) {
            config.tile_queries = atoi(argv[++a]);
            config.tile_keys = atoi(argv[++a]);
        }
    }
    if (a == argc || (!peak && argc < a + 3))
        return fprintf(stderr, "bench-vector: see the top of tests/rig/bench_vector.c\n"), 2;
    bool plain = strcmp(argv[a], "plain") == 0;
    const struct ra_vector *vector = ra_vector_find(strcmp(argv[a], "best") && !plain ? argv[a] : NULL);
    if (!vector)
        return fprintf(stderr, "bench-vector: no %s here\n", argv[a]), 3;
    if (peak)
        return print_peak(vector->name);

    setenv("RA_VECTOR", vector->name, 1);
    config.queries = atoi(argv[a + 1]);
    config.dim = atoi(argv[a + 2]);
    config.causal = argc > a + 3;
    config.tile = plain ? RA_PLAIN_TILE : RA_VECTOR_TILE;
    char error[RA_ERROR_SIZE];
    struct ra_plan *plan;
    if (ra_plan_create(&plan, &config, NULL, error) != RA_OK)
        return fprintf(stderr, "bench-vector: %s\n", error), 1;
    int64_t N = config.queries, H = config.heads, D = config.dim, n = N * H * D;
    struct ra_arrays x = RA_ARRAYS_INIT;
    struct ra_tensor *all[] = {&x.q, &x.k, &x.v, &x.o, &x.d_out, &x.dq, &x.dk, &x.dv};
    for (int k = 0; k < 8; k++)
        *all[k] = ra_tensor_bnhd(numbers(n, k < 2 ? 3 : 1), RA_FLOAT32, N, H, D);
    x.lse = ra_tensor_bhn(numbers(N * H, 0), N, H);
    double work = 4e-9 * (double)N * (double)n * (config.causal ? 0.5 : 1);
    double (*seconds)(void) = config.threads == 1 ? seconds_of_work : ra_seconds;
    double forward = work / least_time(plan, &x, repeat, seconds, ra_forward);
    printf("%.1f %.1f\n", forward, 2.5 * work / least_time(plan, &x, repeat, seconds, ra_backward));
    ra_plan_destroy(plan);
    return 0;
}
