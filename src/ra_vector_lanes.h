/* ra_vector_lanes: a vector of float32 as the compiler knows it, and what every processor calls
 * otherwise.
 *
 * Chapter 09. Internal: included once for each instruction set. The file that includes it defines
 * one of RA_AVX512, RA_AVX2, RA_SSE2 and RA_NEON. Sums, products and comparisons of vectors are the
 * compilers' own (gcc and clang), one element, a lane, at a time.
 */
#ifndef RA_VECTOR_LANES_H
#define RA_VECTOR_LANES_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* LANES numbers; ACCUMULATORS of them fit into registers beside what they are made of. */
#if defined RA_AVX512
enum { LANES = 16, ACCUMULATORS = 24 };
#elif defined RA_AVX2
enum { LANES = 8, ACCUMULATORS = 12 };
#elif defined RA_SSE2
enum { LANES = 4, ACCUMULATORS = 12 };
#else
enum { LANES = 4, ACCUMULATORS = 24 };
#endif

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t lane_bits __attribute__((vector_size(4 * LANES)));
typedef double lane_doubles __attribute__((vector_size(8 * LANES)));
typedef uint16_t lane_halves __attribute__((vector_size(2 * LANES)));

/* Functions of the smallest kind: they are always part of their callers, whose instruction set they
 * share. Vectors do not go through calls. */
#define INLINE static inline __attribute__((always_inline))

/* Loops of a few turns that must not be loops, as what they count must stay in registers; and one
 * that must stay a loop. */
#ifdef __clang__
#define UNROLLED _Pragma("clang loop unroll(full)")
#define ROLLED _Pragma("clang loop unroll(disable)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#define ROLLED _Pragma("GCC unroll 1")
#endif

/* From any address, and to any. */
INLINE lanes load(const float *from)
{
    lanes x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE void store(float *to, lanes x)
{
    memcpy(to, &x, sizeof x);
}

/* x in all lanes; a * b + c, rounded once where the processor can; the larger and the smaller of
 * two. If x is NaN these two are y. */
#if defined RA_AVX512
#define all_lanes(x) ((lanes)_mm512_set1_ps(x))
#define multiply_add(a, b, c) ((lanes)_mm512_fmadd_ps(a, b, c))
#define larger(x, y) ((lanes)_mm512_max_ps(x, y))
#define smaller(x, y) ((lanes)_mm512_min_ps(x, y))
#elif defined RA_AVX2
#define all_lanes(x) ((lanes)_mm256_set1_ps(x))
#define multiply_add(a, b, c) ((lanes)_mm256_fmadd_ps(a, b, c))
#define larger(x, y) ((lanes)_mm256_max_ps(x, y))
#define smaller(x, y) ((lanes)_mm256_min_ps(x, y))
#elif defined RA_SSE2
#define all_lanes(x) ((lanes)_mm_set1_ps(x))
#define multiply_add(a, b, c) ((a) * (b) + (c))
#define larger(x, y) ((lanes)_mm_max_ps(x, y))
#define smaller(x, y) ((lanes)_mm_min_ps(x, y))
#else
#define all_lanes(x) ((lanes)vdupq_n_f32(x))
#define multiply_add(a, b, c) ((lanes)vfmaq_f32(c, a, b))
#define larger(x, y) ((lanes)vbslq_f32(vcgtq_f32(x, y), x, y))
#define smaller(x, y) ((lanes)vbslq_f32(vcltq_f32(x, y), x, y))
#endif

/* Lanes of x and of y by turns: those of the lower halves, and those of the upper halves. */
#if defined RA_AVX512
#define lower(x, y) \
    __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define upper(x, y) \
    __builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif defined RA_AVX2
#define lower(x, y) __builtin_shufflevector(x, y, 0, 8, 1, 9, 2, 10, 3, 11)
#define upper(x, y) __builtin_shufflevector(x, y, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define lower(x, y) __builtin_shufflevector(x, y, 0, 4, 1, 5)
#define upper(x, y) __builtin_shufflevector(x, y, 2, 6, 3, 7)
#endif

/* x where the condition, a comparison of vectors, is true, and elsewhere y. */
INLINE lanes choose(lane_bits condition, lanes x, lanes y)
{
    return (lanes)((condition & (lane_bits)x) | (~condition & (lane_bits)y));
}

/* Is a comparison true in any lane? */
INLINE bool any(lane_bits condition)
{
    int32_t found = 0;
    for (int i = 0; i < LANES; i++)
        found |= condition[i];
    return found != 0;
}

/* ---- exp and tanh. */

/* exp(x) for x up to 88.3, which weights are: exp(x) = 2^n exp(r), where n is the integer nearest
 * to x / ln 2, and r = x - n ln 2 lies within half of ln 2 around 0. Added to 1.5 * 2^23 + 127, n
 * stands in the last bits of the sum, as the exponent of 2^n. ln 2 has two parts: the first has so
 * few bits that n times it is exact. exp(r) is a polynomial, exactly 1 at 0. Times 2^n: a NaN stays
 * one. The relative error is below 1.2e-7 where the result is a normal number; smaller results are
 * 0. */
INLINE lanes weight_lanes(lanes x)
{
    const lanes magic = all_lanes(0x1.8p23f + 127);
    lanes z = multiply_add(x, all_lanes(0x1.715476p0f), magic), n = magic - z;
    lanes r = multiply_add(n, all_lanes(0x1.63p-1f), x);
    r = multiply_add(n, all_lanes(-0x1.bd0106p-13f), r);
    lanes p = all_lanes(0x1.6a23bep-10f);
    p = multiply_add(p, r, all_lanes(0x1.123a1ep-7f));
    p = multiply_add(p, r, all_lanes(0x1.5558f4p-5f));
    p = multiply_add(p, r, all_lanes(0x1.555492p-3f));
    p = multiply_add(p, r, all_lanes(0x1.fffffcp-2f));
    p = multiply_add(p, r, all_lanes(1));
    p = multiply_add(p, r, all_lanes(1));
    p *= (lanes)((lane_bits)z << 23);
    return (lanes)((lane_bits)p & ~(x < all_lanes(-0x1.5d589ep6f)));
}

/* exp(x) for any x; results of 2^127.5 and more are infinite. See weight_lanes. */
INLINE lanes exp_lanes(lanes x)
{
    return weight_lanes(smaller(all_lanes(89), x));
}

/* tanh(x) = 1 - 2 / (exp(2x) + 1) for x > 0; near 0 that would lose digits, and the first terms of
 * an odd polynomial have them. */
INLINE lanes tanh_lanes(lanes x)
{
    lane_bits sign = (lane_bits)x & INT32_MIN;
    lanes size = (lanes)((lane_bits)x ^ sign), square = x * x;
    lanes far = 1 - 2 / (exp_lanes(size + size) + 1);
    lanes near = all_lanes(-0x1.736418p-8f);
    near = multiply_add(near, square, all_lanes(0x1.519c94p-6f));
    near = multiply_add(near, square, all_lanes(-0x1.b827fep-5f));
    near = multiply_add(near, square, all_lanes(0x1.110692p-3f));
    near = multiply_add(near, square, all_lanes(-0x1.555530p-2f));
    near = multiply_add(near * square, size, size);
    return (lanes)((lane_bits)choose(size < all_lanes(0.625f), near, far) | sign);
}

/* ---- Numbers of 16 bits. */

/* LANES numbers of 16 bits as float32. A bfloat16 is the upper half of a float32. */
INLINE lanes load_bfloat16(const uint16_t *from)
{
    lane_halves halves;
    memcpy(&halves, from, sizeof halves);
    return (lanes)(__builtin_convertvector(halves, lane_bits) << 16);
}

INLINE lanes load_float16(const uint16_t *from)
{
#if defined RA_AVX512
    return (lanes)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#elif defined RA_AVX2
    return (lanes)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#elif defined RA_NEON
    return (lanes)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
    /* Exponents and fractions move to their places. As a product the exponent is right for the
     * smallest numbers, too; infinite and NaN keep the largest one. */
    lane_halves halves;
    memcpy(&halves, from, sizeof halves);
    lane_bits bits = __builtin_convertvector(halves, lane_bits), magnitude = (bits & 0x7FFF) << 13;
    lanes number = (lanes)magnitude * 0x1p112f;
    lane_bits special = (magnitude >= 0x0F800000) & (magnitude | 0x7F800000);
    return (lanes)((bits & 0x8000) << 16 | (special | ((lane_bits)number & (special == 0))));
#endif
}

#endif
