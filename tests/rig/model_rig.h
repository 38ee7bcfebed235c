/* model_rig: what the tests of src/model share: arrays with guards, random numbers, a small model,
 * and calls that are refused.
 */
#ifndef MODEL_RIG_H
#define MODEL_RIG_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"
#include "ra_parameters.h"
#include "suite.h"

/* How many threads the same bits are asked of. */
static const int threads[] = {1, 2, 3, 5};
enum { COUNTS = sizeof threads / sizeof threads[0], GUARD = 16 };

static const double u = 0x1p-24; /* what one rounding to float32 changes at most, as a share */
static const uint32_t poison = 0x7FC0BEEF; /* a NaN */
static uint64_t state = 10;                /* of random numbers */

#define expect(holds, ...)             \
    do {                               \
        if (!(holds))                  \
            ck_abort_msg(__VA_ARGS__); \
    } while (0)

/* ---- Arrays of a test, with a guard on both sides. */

static struct {
    float *memory;
    int64_t count;
} arrays[64];
static int array_count;

/* So many numbers, all poison. */
static inline float *poisoned(int64_t count)
{
    float *memory = malloc((size_t)(count + 2 * GUARD) * sizeof *memory);
    expect(memory && array_count < 64, "no memory");
    for (int64_t e = 0; e < count + 2 * GUARD; e++)
        memory[e] = number_of_bits(poison);
    arrays[array_count].count = count;
    arrays[array_count++].memory = memory;
    return memory + GUARD;
}

/* The same with random numbers, of as many digits as float32 has. */
static inline float *randoms(int64_t count)
{
    float *x = poisoned(count);
    for (int64_t e = 0; e < count; e++)
        x[e] = (float)(random_normal(&state) * sqrt(0.5));
    return x;
}

static inline float *copy_of(const float *x, int64_t count)
{
    return memcpy(poisoned(count), x, (size_t)count * sizeof *x);
}

static inline double *zeros(int64_t count)
{
    return memset(poisoned(2 * count), 0, (size_t)count * sizeof(double));
}

static inline bool is_poison(const float *x, int64_t count)
{
    for (int64_t e = 0; e < count; e++)
        if (number_bits(x[e]) != poison)
            return false;
    return true;
}

/* Frees all arrays. Nothing was written beside them. */
static inline void release(void)
{
    for (int i = 0; i < array_count; i++) {
        int64_t behind = GUARD + arrays[i].count;
        expect(is_poison(arrays[i].memory, GUARD), "written before array %d", i);
        expect(is_poison(arrays[i].memory + behind, GUARD), "written behind array %d", i);
        free(arrays[i].memory);
    }
    array_count = 0;
}

static inline bool same_bits(const float *a, const float *b, int64_t count)
{
    return memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

/* A model of a few hundred numbers, none of whose sizes is that of another. */
static inline struct ra_model_config small(bool tied)
{
    struct ra_model_config config;
    ra_model_config_init(&config, sizeof config);
    config.vocabulary = 7;
    config.dim = 3;
    config.depth = 2;
    config.heads = 4;
    config.key_heads = 2;
    config.head_dim = 2;
    config.hidden = 5;
    config.tied = tied;
    return config;
}

/* ---- Errors. */

static char error[RA_ERROR_SIZE];

static inline void refused(enum ra_status status, const char *words)
{
    expect(status == RA_INVALID, "status %d, not refused for \"%s\"", status, words);
    expect(memchr(error, 0, sizeof error) && strstr(error, words), "\"%.300s\" has no \"%s\"",
           error, words);
}

static inline void accepted(enum ra_status status)
{
    expect(status == RA_OK, "%s", error);
}

#endif
