/* Chapter 10d, exercise 5: a Feistel network, walked until it stays among the windows. */
#include <stdint.h>

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
}

int64_t window_of(uint64_t seed, int64_t count, int64_t sample)
{
    uint64_t epoch = (uint64_t)(sample / count), x = (uint64_t)(sample % count);
    uint64_t key = mix(mix(seed) + epoch), half = 1;
    while (count > INT64_C(1) << 2 * half)
        half++;
    uint64_t mask = (UINT64_C(1) << half) - 1;
    do {
        for (uint64_t round = 0; round < 8; round++) {
            uint64_t left = x >> half, right = x & mask;
            x = right << half | (left ^ (mix(key + 8 * right + round) & mask));
        }
    } while (x >= (uint64_t)count);
    return (int64_t)x;
}
