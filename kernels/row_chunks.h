/* row_chunks: numbers of a row, 8 at a time or one, as float32.
 *
 * Chapter 11. For kernels that are as fast as memory is: 8 numbers of 16 bits are 16 bytes, read
 * at once, and twice 16 of float32. Included by copy_sum_delta.cu and move_heads.cu.
 */
#ifndef ROW_CHUNKS_H
#define ROW_CHUNKS_H

#include "ra_device.h"

enum { CHUNK = 8 };

/* Count numbers from number i on, as float32; and back, from their type. */
template <int Count> RA_DEVICE void load(float x[Count], const struct ra_tensor &from, int64_t i)
{
    if (Count == 1) {
        x[0] = ra_load(from.data, from.type, i);
    } else if (from.type == RA_FLOAT32) {
        const float4 *chunks = (const float4 *)((const float *)from.data + i);
        *(float4 *)&x[0] = chunks[0];
        *(float4 *)&x[4] = chunks[1];
    } else {
        uint4 chunk = *(const uint4 *)((const uint16_t *)from.data + i);
#pragma unroll
        for (int c = 0; c < Count; c++)
            x[c] = ra_load(&chunk, from.type, c);
    }
}

template <int Count>
RA_DEVICE void store(const struct ra_tensor &to, int64_t i, const float x[Count])
{
    if (Count == 1) {
        ra_store(to.data, to.type, i, x[0]);
    } else if (to.type == RA_FLOAT32) {
        float4 *chunks = (float4 *)((float *)to.data + i);
        chunks[0] = *(const float4 *)&x[0];
        chunks[1] = *(const float4 *)&x[4];
    } else {
        uint4 chunk;
#pragma unroll
        for (int c = 0; c < Count; c++)
            ra_store(&chunk, to.type, c, x[c]);
        *(uint4 *)((uint16_t *)to.data + i) = chunk;
    }
}

#endif
