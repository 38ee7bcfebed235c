/* numbers: random numbers, and the three types of numbers by their definition: a second route to
 * what src/library/ra_number.c does with bits. For tests.
 */
#ifndef NUMBERS_H
#define NUMBERS_H

#include <float.h>
#include <math.h>
#include <string.h>

#include "ra_config.h"

/* ---- Types. */

/* 2^exponent. */
static inline double number_power(int exponent)
{
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The number of this type that is nearest; ties go to the even one. A number has 24, 11 or 8
 * digits, and the last one is not below the type's least. */
static inline double number_rounded(enum ra_type type, double x)
{
    static const int digits[] = {24, 11, 8}, least[] = {-149, -24, -133};
    static const double largest[] = {(double)FLT_MAX, 65504, 0x1.FEp127};
    if (!isfinite(x) || fabs(x) >= 2 * largest[type])
        return isnan(x) ? x : copysign((double)INFINITY, x);
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52 & 2047) - 1022 - digits[type];
    double step = number_power(exponent > least[type] ? exponent : least[type]);

    /* Numbers of 2^52 have no digits behind the point: what is added to them is rounded to a whole
     * number, ties to even. */
    double nearest = (fabs(x) / step + 0x1p52) - 0x1p52;
    return copysign(nearest * step > largest[type] ? (double)INFINITY : nearest * step, x);
}

/* Half a step of the type near x: how far rounding moves it at most. */
static inline double number_half_step(enum ra_type type, double x)
{
    static const double unit[] = {0x1p-24, 0x1p-11, 0x1p-8};
    static const double least[] = {0x1p-150, 0x1p-25, 0x1p-134};
    return fmax(unit[type] * fabs(x), least[type]);
}

static inline uint32_t number_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float number_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A number of 16 bits by its bits, and back; x is one of the type. */
static inline double number_widened(enum ra_type type, uint16_t bits)
{
    if (type == RA_BFLOAT16)
        return (double)number_of_bits((uint32_t)bits << 16);
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size = exponent == 31 ? (double)(fraction ? NAN : INFINITY)
                  : exponent > 0 ? ldexp(1024 + fraction, exponent - 25)
                                 : ldexp(fraction, -24);
    return bits & 0x8000 ? -size : size;
}

static inline uint16_t number_narrowed(enum ra_type type, double x)
{
    if (type == RA_BFLOAT16)
        return (uint16_t)(number_bits((float)x) >> 16);
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    int exponent = 0;
    if (!isfinite(x))
        return isnan(x) ? 0x7E00 : sign | 0x7C00;
    frexp(x, &exponent);
    if (x == 0 || exponent < -13)
        return (uint16_t)(sign | (int)ldexp(fabs(x), 24));
    return (uint16_t)(sign | (exponent + 14) << 10 | ((int)ldexp(fabs(x), 11 - exponent) - 1024));
}

/* Number `at` of an array of this type; a bool is 0 or whatever byte stands for true. */
static inline double number_get(enum ra_type type, const void *data, int64_t at)
{
    switch (type) {
    case RA_FLOAT32:
        return (double)((const float *)data)[at];
    case RA_BOOL:
        return ((const unsigned char *)data)[at];
    default:
        return number_widened(type, ((const uint16_t *)data)[at]);
    }
}

/* Writes x, which is one of the type. */
static inline void number_put(enum ra_type type, void *data, int64_t at, double x)
{
    switch (type) {
    case RA_FLOAT32:
        ((float *)data)[at] = (float)x;
        break;
    case RA_BOOL:
        ((unsigned char *)data)[at] = (unsigned char)x;
        break;
    default:
        ((uint16_t *)data)[at] = number_narrowed(type, x);
    }
}

/* ---- Random numbers: splitmix64 (Steele, Lea, Flood 2014). */

static inline uint64_t random_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

static inline uint64_t random_bits(uint64_t *state)
{
    return random_mix(*state += 0x9E3779B97F4A7C15);
}

static inline int64_t random_below(uint64_t *state, int64_t end)
{
    return (int64_t)(random_bits(state) % (uint64_t)end);
}

/* Between -0.9 and 1.1: a mean that is not 0 shows lost terms. */
static inline double random_number(uint64_t *state)
{
    return (double)(random_bits(state) >> 40) / (1 << 23) - 0.9;
}

/* Near enough to a normal distribution of variance 1: the sum of 12 uniform numbers. */
static inline double random_normal(uint64_t *state)
{
    int64_t sum = 0;
    for (int i = 0; i < 3; i++) {
        uint64_t bits = random_bits(state);
        for (int part = 0; part < 4; part++)
            sum += (int64_t)(bits >> 16 * part & 0xFFFF);
    }
    return (double)sum / 65536 - 6;
}

#endif
