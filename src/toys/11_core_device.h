/* 11_core_device: what k01, k02 and copy_sum_delta want of ra_device.h, on a GPU of one core and in
 * float32. 11_core_make copies further definitions from the real one below these.
 */
#ifndef CORE_DEVICE_H
#define CORE_DEVICE_H

#include "ra_kernel.h"
#include "ra_range.h"

#define RA_DEVICE static inline
#define RA_LOG2E 1.4426950408889634f
#define RA_LOWEST_SCORE (-FLT_MAX)
#define ra_exp2 exp2f
#define ra_tanh tanhf

/* Copies are done at once, so nothing has to wait for them. */
RA_DEVICE uint32_t ra_shared(const void *pointer)
{
    return (uint32_t)((const char *)pointer - (const char *)memory);
}

RA_DEVICE void copy(uint32_t shared, const void *global, bool there, size_t bytes)
{
    if (there)
        memcpy((char *)memory + shared, global, bytes);
    else
        memset((char *)memory + shared, 0, bytes);
}
#define ra_copy16(shared, global, there) copy(shared, global, there, 16)
#define ra_copy4(shared, global, there) copy(shared, global, there, 4)
#define ra_copies_end()
template <int> RA_DEVICE void ra_copies_wait()
{
}

RA_DEVICE float ra_load(const void *data, enum ra_type, int64_t i)
{
    return ((const float *)data)[i];
}

RA_DEVICE void ra_store(void *data, enum ra_type, int64_t i, float x)
{
    ((float *)data)[i] = x;
}

/* Where a row lies, for slopes. */
RA_DEVICE int ra_place_of_row(const struct ra_tensor &places, int64_t row, int64_t rows)
{
    return ((const int *)places.data)[(row < rows ? row : rows - 1) * places.row];
}

#endif
