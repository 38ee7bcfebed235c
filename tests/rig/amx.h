/* amx: AMX and the few instructions of AVX512 that src/ra_vector_amx.c names, in plain C, for
 * processors without them. -DRA_AMX_STAND_IN takes it.
 *
 * Tiles do what Intel's manual says: 32 terms are two sums, of the even and of the odd ones, which
 * are added to each other and then to the sum. Numbers below 2^-126 count as 0. A tile that is used
 * before tiles are configured ends the program.
 */
#ifndef AMX_H
#define AMX_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef float __attribute__((vector_size(64))) amx_lanes;
typedef int32_t __attribute__((vector_size(64))) amx_bits;
typedef uint32_t __attribute__((vector_size(64))) amx_unsigned;
typedef uint16_t __attribute__((vector_size(64))) amx_halves;

static _Thread_local struct {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config;
    amx_bits tiles[8][16];
} amx;

static inline void amx_configured(int tile)
{
    if (amx.config.palette == 1 && amx.config.rows[tile] == 16 && amx.config.bytes[tile] == 64)
        return;
    fprintf(stderr, "tile %d is used, and is not 16 rows of 64 bytes\n", tile);
    abort();
}

static inline void _tile_loadconfig(const void *config)
{
    memcpy(&amx.config, config, sizeof amx.config);
    memset(amx.tiles, 0, sizeof amx.tiles);
}

/* Its numbers become NaN: nothing may need them. */
static inline void _tile_release(void)
{
    memset(&amx, 0xFF, sizeof amx);
}

static inline void _tile_zero(int tile)
{
    amx_configured(tile);
    memset(amx.tiles[tile], 0, sizeof amx.tiles[tile]);
}

static inline void _tile_loadd(int tile, const void *from, int64_t stride)
{
    amx_configured(tile);
    for (int row = 0; row < 16; row++)
        memcpy(&amx.tiles[tile][row], (const char *)from + row * stride, 64);
}

static inline void _tile_stored(int tile, void *to, int64_t stride)
{
    amx_configured(tile);
    for (int row = 0; row < 16; row++)
        memcpy((char *)to + row * stride, &amx.tiles[tile][row], 64);
}

/* Numbers of float32 of these bits, or these; 0 where they are below 2^-126. */
#define amx_flushed(x) ((amx_lanes)((amx_bits)(x) & (((amx_bits)(x)&0x7F800000) != 0)))

static inline void _tile_dpbf16ps(int sums, int left, int right)
{
    amx_configured(sums);
    amx_configured(left);
    amx_configured(right);
    for (int row = 0; row < 16; row++) {
        amx_lanes even = {0}, odd = {0};
        for (int k = 0; k < 16; k++) {
            amx_bits a = amx.tiles[left][row][k] + (amx_bits){0}, b = amx.tiles[right][k];
            even = amx_flushed(even + amx_flushed(a << 16) * amx_flushed(b << 16));
            odd = amx_flushed(odd + amx_flushed(a & -65536) * amx_flushed(b & -65536));
        }
        amx_lanes sum = amx_flushed(amx.tiles[sums][row]) + amx_flushed(even + odd);
        amx.tiles[sums][row] = (amx_bits)amx_flushed(sum);
    }
}

/* ---- AVX512, with the compiler's own vectors. */

typedef amx_lanes __m512;
typedef char __m256i;

#define _mm512_set1_ps(x) ((float)(x) - (amx_lanes){0})
#define _mm512_fmadd_ps(a, b, c) ((a) * (b) + (c))
#define _mm512_max_ps(x, y) amx_chosen((x) > (y), (x), (y))
#define _mm512_min_ps(x, y) amx_chosen((x) < (y), (x), (y))
#define _mm256_loadu_si256(from) (from)
#define _mm512_cvtph_ps(from) amx_widened(from)
#define _mm512_cvtne2ps_pbh(upper, lower) amx_rounded(lower, upper)
#define _MM_FROUND_TO_NEG_INF 1
#define _MM_FROUND_NO_EXC 8
#define _mm512_reduce_ps(x, mode) amx_fraction(x)
#define _mm512_scalef_ps(x, power) amx_scaled(x, power)

static inline __attribute__((always_inline)) amx_lanes amx_chosen(amx_bits condition, amx_lanes x,
                                                                  amx_lanes y)
{
    return (amx_lanes)((condition & (amx_bits)x) | (~condition & (amx_bits)y));
}

static inline __attribute__((always_inline)) amx_lanes amx_widened(const void *from)
{
    uint16_t numbers[16];
    amx_lanes x = {0};
    memcpy(numbers, from, sizeof numbers);
    for (int i = 0; i < 16; i++) {
        int exponent = numbers[i] >> 10 & 31, fraction = numbers[i] & 1023;
        float size = exponent == 31  ? (fraction ? NAN : INFINITY)
                     : exponent == 0 ? ldexpf((float)fraction, -24)
                                     : ldexpf((float)(fraction + 1024), exponent - 25);
        x[i] = numbers[i] >> 15 ? -size : size;
    }
    return x;
}

/* What numbers are above a whole one. */
static inline __attribute__((always_inline)) amx_lanes amx_fraction(amx_lanes x)
{
    for (int i = 0; i < 16; i++)
        x[i] = isinf(x[i]) ? 0 : x[i] - floorf(x[i]);
    return x;
}

/* x times 2 to the whole part of the power. */
static inline __attribute__((always_inline)) amx_lanes amx_scaled(amx_lanes x, amx_lanes power)
{
    for (int i = 0; i < 16; i++)
        x[i] *= exp2f(floorf(power[i]));
    return x;
}

/* To the nearest bfloat16, and of two to the even one. */
static inline __attribute__((always_inline)) amx_halves amx_rounded(amx_lanes lower,
                                                                    amx_lanes upper)
{
    amx_halves halves;
    amx_bits x[2] = {(amx_bits)amx_flushed(lower), (amx_bits)amx_flushed(upper)};
    for (int i = 0; i < 2; i++) {
        amx_bits none = (x[i] & INT32_MAX) > 0x7F800000, step = 0x7FFF + (x[i] >> 16 & 1);
        x[i] = (none & (x[i] | 0x400000)) |
               (~none & ((amx_bits)((amx_unsigned)x[i] + (amx_unsigned)step)));
    }
    for (int i = 0; i < 32; i++)
        halves[i] = (uint16_t)(x[i / 16][i % 16] >> 16);
    return halves;
}

#endif
