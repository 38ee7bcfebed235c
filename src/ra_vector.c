/* ra_vector: which instruction set this processor has. See ra_vector.h.
 *
 * Chapter 09.
 */
#include "ra_vector.h"
#include <stddef.h>
#include <string.h>

/* One file each. */
extern const struct ra_vector ra_vector_avx512, ra_vector_avx2, ra_vector_sse2, ra_vector_neon;

enum { QUERIES = RA_VECTOR_QUERIES, GROUP = RA_VECTOR_GROUP, KEYS = RA_VECTOR_KEYS };

const struct ra_vector *ra_vector_find(const char *name)
{
    const struct ra_vector *all[4] = {NULL};
    int count = 0;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
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
    int64_t row = ra_vector_row(dims.key), both = row + ra_vector_row(dims.value);
    int64_t forward = QUERIES * (dims.key + KEYS + both);
    int64_t backward = key_rows * both + GROUP * (dims.key + dims.value + 2 * KEYS + row + both);
    return key_rows * both + (forward > backward ? forward : backward);
}
