/* ra_tensor: sizes of numbers, and arrays without gaps. See ra_tensor.h.
 *
 * Chapter 08.
 */
#include "ra_tensor.h"

int64_t ra_type_bytes(enum ra_type type)
{
    switch (type) {
    case RA_FLOAT32:
        return 4;
    case RA_FLOAT16:
    case RA_BFLOAT16:
        return 2;
    case RA_BOOL:
        return 1;
    }
    return 0;
}

/* A product of sizes. What is more than any memory is so here, too, and will be refused. */
static int64_t product(int64_t a, int64_t b)
{
    double exact = (double)a * (double)b;
    return exact > -0x1p62 && exact < 0x1p62 ? a * b : exact > 0 ? INT64_MAX / 2 : -INT64_MAX / 2;
}

struct ra_tensor ra_tensor_bnhd(void *data, enum ra_type type, int64_t rows, int64_t heads,
                                int64_t dim)
{
    return (struct ra_tensor){data, type, product(product(rows, heads), dim), product(heads, dim),
                              dim};
}

struct ra_tensor ra_tensor_bhnd(void *data, enum ra_type type, int64_t rows, int64_t heads,
                                int64_t dim)
{
    return (struct ra_tensor){data, type, product(product(heads, rows), dim), dim,
                              product(rows, dim)};
}

struct ra_tensor ra_tensor_bhn(void *data, int64_t rows, int64_t heads)
{
    return (struct ra_tensor){data, RA_FLOAT32, product(heads, rows), 1, rows};
}

struct ra_tensor ra_tensor_bn(void *data, int64_t rows)
{
    return (struct ra_tensor){data, RA_BOOL, rows, 1, 0};
}

struct ra_tensor ra_tensor_h(void *data)
{
    return (struct ra_tensor){data, RA_FLOAT32, 0, 0, 1};
}
