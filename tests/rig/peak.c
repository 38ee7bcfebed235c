/* peak: how many multiply-adds a second one thread of this machine does when memory does not matter.
 *
 * Twelve vectors of sums stay in registers, each a chain of multiply-adds that depends on nothing
 * else: with the same flags as the stages, no loop over arrays in memory can do better. They are
 * separate variables of the compiler's own vector type because compilers find ways to do worse with
 * an array of sums: gcc 13 takes one sum after the other. Prints a line for plain C, that is vectors of
 * four, as the stages have them, and one for each instruction set of chapter 09 that this processor has:
 * its name and a number, in thousand millions a second, the best of 200 runs, so short that some are not
 * interrupted.
 */
#include <stdio.h>
#include "ra_clock.h"
#ifdef __x86_64__
#include <immintrin.h>
#elif defined __aarch64__
#include <arm_neon.h>
#endif

#define STEPS 200000

/* A function that runs STEPS steps on vectors of LANES numbers and returns the sum of its sums. Each
 * step multiplies and adds once in every sum. MADE(x, y, z) is x * y + z. */
#define STEP(MADE)                                                                             \
    a = MADE(a, factor, term), b = MADE(b, factor, term), c = MADE(c, factor, term);           \
    d = MADE(d, factor, term), e = MADE(e, factor, term), f = MADE(f, factor, term);           \
    g = MADE(g, factor, term), h = MADE(h, factor, term), i = MADE(i, factor, term);           \
    j = MADE(j, factor, term), k = MADE(k, factor, term), l = MADE(l, factor, term)
#define PEAK(name, TARGET, LANES, MADE)                                                        \
    typedef float name##_lanes __attribute__((vector_size(4 * LANES)));                        \
    TARGET static float name(void)                                                             \
    {                                                                                          \
        name##_lanes none = {0}, factor = none + 0.999f, term = none + 1e-3f;                  \
        name##_lanes a = none, b = none + 1, c = none + 2, d = none + 3, e = none + 4;         \
        name##_lanes f = none + 5, g = none + 6, h = none + 7, i = none + 8, j = none + 9;     \
        name##_lanes k = none + 10, l = none + 11;                                             \
        for (int step = 0; step < STEPS; step++) {                                             \
            STEP(MADE);                                                                        \
        }                                                                                      \
        a = a + b + c + d + e + f + g + h + i + j + k + l;                                     \
        float sum = 0;                                                                         \
        for (int lane = 0; lane < LANES; lane++)                                               \
            sum += a[lane];                                                                    \
        return sum;                                                                            \
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

static void measure(const char *name, int lanes, float (*steps)(void))
{
    /* The sums are used, so that no compiler leaves the work out. */
    float total = 0;
    double best = 0;
    for (int run = 0; run < 200; run++) {
        double start = ra_seconds();
        total += steps();
        double rate = 1e-9 * 12 * lanes * STEPS / (ra_seconds() - start);
        best = rate > best ? rate : best;
    }
    fprintf(stderr, "(sum of the sums: %g)\n", total);
    printf("%-6s %.2f\n", name, best);
}

int main(void)
{
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
