/* ra_tensor: where the numbers of an array lie.
 *
 * Chapter 08.
 */
#ifndef RA_TENSOR_H
#define RA_TENSOR_H

#include <stddef.h>
#include <stdint.h>
#include "ra_config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the bytes of one number of this type; 0 for what is no type. */
int64_t ra_type_bytes(enum ra_type type);

/* An array of the caller's, or part of one: (B, rows, heads, D), in any order. Number (b, a, h, c)
 * is at data[b * batch + a * row + h * head + c]; so the D numbers of a head lie side by side, and
 * have no stride. Strides are in numbers, not bytes; those of an input may be 0. The memory is that
 * in which the plan computes. */
struct ra_tensor {
    void *data;
    enum ra_type type;
    int64_t batch, row, head;
};

/* Describes arrays of the common orders, without gaps: (B, rows, heads, D), (B, heads, rows, D),
 * lse as (B, heads, rows) of float32, a mask (B, rows) of bool, and (heads) of float32. */
struct ra_tensor ra_tensor_bnhd(void *data, enum ra_type type, int64_t rows, int64_t heads,
                                int64_t dim);
struct ra_tensor ra_tensor_bhnd(void *data, enum ra_type type, int64_t rows, int64_t heads,
                                int64_t dim);
struct ra_tensor ra_tensor_bhn(void *data, int64_t rows, int64_t heads);
struct ra_tensor ra_tensor_bn(void *data, int64_t rows);
struct ra_tensor ra_tensor_h(void *data);

#define RA_NO_TENSOR              \
    {                             \
        NULL, RA_FLOAT32, 0, 0, 0 \
    }

#ifdef __cplusplus
}
#endif

#endif
