/* peak: how many multiply-adds a second one thread of this machine does when memory does not
 * matter.
 *
 * Chapter 09. Prints a line for plain C, that is vectors of four, as the stages have them, and one
 * for each instruction set of chapter 09 that this processor has: its name, and three numbers in
 * thousand millions a second. The first is of multiply-adds whose operands stay in registers: with
 * the same flags as the stages, no loop over arrays in memory can do better. The second is of those
 * that read one operand each from the first-level cache, the third of those that read two. Each is
 * the best of many runs, so short that some are not interrupted.
 */
#include <stdio.h>
#include "ra_clock.h"
#include "usage.h"
#ifdef __x86_64__
#include <immintrin.h>
#define REGISTER "+v"
#elif defined __aarch64__
#include <arm_neon.h>
#define REGISTER "+w"
#endif

enum { STEPS = 200000, RUNS = 100 };

/* Twelve sums stay in registers, each a chain of multiply-adds that depends on nothing else. They
 * are separate variables of the compiler's own vector type because compilers find ways to do worse
 * with an array of sums: gcc 13 takes one sum after the other. MADE(x, y, z) is x * y + z. The
 * empty instruction may change operands and sum, as far as the compiler knows, so that no product
 * is left out. */
#define CHAIN(MADE, LOADS, s, i)                                              \
    s = MADE(LOADS > 0 ? from[i] : one, LOADS > 1 ? from[12 + i] : other, s); \
    __asm__ volatile("" : REGISTER(s), REGISTER(one), "+m"(from))
#define STEP(M, N)      \
    CHAIN(M, N, a, 0);  \
    CHAIN(M, N, b, 1);  \
    CHAIN(M, N, c, 2);  \
    CHAIN(M, N, d, 3);  \
    CHAIN(M, N, e, 4);  \
    CHAIN(M, N, f, 5);  \
    CHAIN(M, N, g, 6);  \
    CHAIN(M, N, h, 7);  \
    CHAIN(M, N, i, 8);  \
    CHAIN(M, N, j, 9);  \
    CHAIN(M, N, k, 10); \
    CHAIN(M, N, l, 11)

/* A function that runs STEPS steps on vectors of LANES numbers, in which so many operands of each
 * multiply-add are loaded. */
#define PEAK(name, TARGET, LANES, MADE)                                          \
    typedef float name##_lanes __attribute__((vector_size(4 * LANES)));          \
    TARGET static void name(int loads)                                           \
    {                                                                            \
        static name##_lanes from[24];                                            \
        name##_lanes none = {0}, one = none + 0.999f, other = none + 1e-3f;      \
        name##_lanes a = none, b = none, c = none, d = none, e = none, f = none; \
        name##_lanes g = none, h = none, i = none, j = none, k = none, l = none; \
        for (int step = 0; step < STEPS && loads == 0; step++) {                 \
            STEP(MADE, 0);                                                       \
        }                                                                        \
        for (int step = 0; step < STEPS && loads == 1; step++) {                 \
            STEP(MADE, 1);                                                       \
        }                                                                        \
        for (int step = 0; step < STEPS && loads == 2; step++) {                 \
            STEP(MADE, 2);                                                       \
        }                                                                        \
    }

/* Rounded twice, as the stages do it; and once, by the instruction that is made for it. */
#define TWICE(x, y, z) ((x) * (y) + (z))
PEAK(plain, , 4, TWICE)

#ifdef __x86_64__
#define AVX2(x, y, z) _mm256_fmadd_ps(x, y, z)
#define AVX512(x, y, z) _mm512_fmadd_ps(x, y, z)
PEAK(avx2, __attribute__((target("avx2,fma"))), 8, AVX2)
PEAK(avx512, __attribute__((target("avx512f"))), 16, AVX512)
#elif defined __aarch64__
#define NEON(x, y, z) ((neon_lanes)vfmaq_f32(z, x, y))
PEAK(neon, , 4, NEON)
#endif

static void measure(const char *name, int lanes, void (*steps)(int loads))
{
    printf("%-6s", name);
    for (int loads = 0; loads <= 2; loads++) {
        double best = 0;
        for (int run = 0; run < RUNS; run++) {
            double start = ra_seconds();
            steps(loads);
            double rate = 1e-9 * 12 * lanes * STEPS / (ra_seconds() - start);
            best = rate > best ? rate : best;
        }
        printf(" %.2f", best);
    }
    printf("\n");
}

int main(int argc, char **argv)
{
    answer_usage(argc, argv, "peak",
                 "usage: peak\nMeasures the peak rate of a core, by kind of vector.\n");
    measure("plain", 4, plain);
#ifdef __x86_64__
    measure("sse2", 4, plain);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        measure("avx2", 8, avx2);
    if (__builtin_cpu_supports("avx512f"))
        measure("avx512", 16, avx512);
#elif defined __aarch64__
    measure("neon", 4, neon);
#endif
    return 0;
}
