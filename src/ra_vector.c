/* ra_vector: which instruction set this processor has. See ra_vector.h.
 *
 * Chapter 09.
 */
#include "ra_vector.h"
#include <stddef.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#include "ra_system.h"
#endif

/* One file each. */
extern const struct ra_vector ra_vector_amx, ra_vector_avx512, ra_vector_avx2, ra_vector_sse2,
    ra_vector_neon;

enum { QUERIES = RA_VECTOR_QUERIES, GROUP = RA_VECTOR_GROUP, KEYS = RA_VECTOR_KEYS };

#ifdef __x86_64__
static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
}
#endif

/* What keeps this process from tiles of bfloat16, or NULL. */
static const char *lacks_amx(void)
{
#ifdef RA_AMX_STAND_IN
    return NULL;
#elif defined __x86_64__
    enum { AVX512_BF16 = 1 << 5, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & AMX_BF16) || !(d & AMX_TILE))
        return "this processor has no AMX for bfloat16";
    if (!has_avx512() || !__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & AVX512_BF16))
        return "this processor has no AVX512_BF16";
    return ra_system_allow_tiles() == 0
               ? NULL
               : "the system does not let this process use the tiles of AMX";
#else
    return "this processor has no AMX";
#endif
}

const char *ra_vector_lacks(const char *name)
{
    return strcmp(name, "amx") == 0 ? lacks_amx() : "this processor has no such vectors";
}

const struct ra_vector *ra_vector_find(const char *name)
{
    const struct ra_vector *all[5] = {NULL};
    int count = 0;
#if defined __x86_64__ || defined RA_AMX_STAND_IN
    if (!lacks_amx())
        all[count++] = &ra_vector_amx;
#endif
#ifdef __x86_64__
    if (has_avx512())
        all[count++] = &ra_vector_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        all[count++] = &ra_vector_avx2;
    all[count++] = &ra_vector_sse2;
#elif defined __aarch64__
    all[count++] = &ra_vector_neon;
#endif
    for (int i = 0; i < count; i++)
        if (!name || strcmp(all[i]->name, name) == 0)
            return all[i];
    return NULL;
}

int64_t ra_vector_queries(struct ra_dims dims)
{
    (void)dims;
    return 6 * GROUP;
}

int64_t ra_vector_keys(struct ra_dims dims)
{
    /* k and v of a tile fill three quarters of a second-level cache of 1 MiB, or are 1,024 keys: a
     * shard of a power of two is then whole tiles. */
    int64_t keys = 196608 / (dims.key + dims.value) / KEYS * KEYS;
    return keys < KEYS ? KEYS : keys > 1024 ? 1024 : keys;
}

int64_t ra_vector_workspace(int64_t query_rows, int64_t key_rows, struct ra_dims dims)
{
    (void)query_rows;
    /* Rows in panels: of dims.key numbers; and of these and of dims.value numbers, as k and v. */
    int64_t row = ra_vector_row(dims.key), both = row + ra_vector_row(dims.value);

    /* For QUERIES queries: q, as rows and transposed, weights, and o. */
    int64_t forward = QUERIES * (dims.key + KEYS + both);

    /* dk and dv; and for a group of queries q and d_out transposed, p and ds, dq, and q and d_out
     * as rows. */
    int64_t backward = key_rows * both + GROUP * (dims.key + dims.value + 2 * KEYS + row + both);

    /* k and v, and what the larger one needs beside them. */
    return key_rows * both + (forward > backward ? forward : backward);
}

int64_t ra_vector_narrow_workspace(int64_t query_rows, int64_t key_rows, struct ra_dims dims)
{
    (void)query_rows;
    enum { SPAN = RA_VECTOR_SPAN };
    int64_t D = ra_round_up(dims.key, 32), D_v = ra_round_up(dims.value, 32);
    int64_t keys = ra_round_up(key_rows, 32), row = ra_vector_row(dims.key);
    int64_t both = row + ra_vector_row(dims.value), tiles = (D + D_v) / 2;
    int64_t forward = keys * tiles + QUERIES * (both + SPAN + 2 * D_v + D / 2) + 512;
    int64_t backward = keys * (both + tiles + D / 2) + 64 * QUERIES +
                       GROUP * (row + both + 2 * tiles + 4 * SPAN + D);
    return key_rows * both + (forward > backward ? forward : backward);
}
