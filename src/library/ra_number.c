/* ra_number: float16 and bfloat16, to float32 and back. See ra_number.h.
 *
 * Chapter 08. New here: the two 16-bit types, by their bits, since C11 has neither.
 */
#include "ra_number.h"
#include <string.h>

static float float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* A float16 has 1 bit of sign, 5 of exponent, 10 of fraction; a float32 1, 8 and 23. Moved to their
 * places, the exponents differ by 127 - 15 = 112. */
static float float_of_half(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = (uint32_t)(half & 0x7FFF) << 13;
    if (magnitude >= 0x0F800000) /* infinite or NaN: the largest exponent stays the largest */
        return float_of_bits(sign | 0x7F800000 | magnitude);

    /* A product, not a sum of exponents, is right for numbers below 2^-14, too. */
    return float_of_bits(sign | bits_of_float(float_of_bits(magnitude) * 0x1p112f));
}

static uint16_t half_of_float(float value)
{
    uint32_t bits = bits_of_float(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) /* NaN */
        return (uint16_t)(sign | 0x7E00);
    if (magnitude >= 0x477FF000) /* from 65520 on nearer to 65536, which it does not have */
        return (uint16_t)(sign | 0x7C00);

    /* Below 2^-14 a float16 counts in steps of 2^-24, as a float32 does between 0.5 and 1. */
    if (magnitude < 0x38800000)
        return (uint16_t)(sign | (bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3F000000));

    /* Round away the last 13 bits: up if they are more than half, or half and the rest is odd. */
    uint32_t rounded = magnitude + 0xFFF + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (rounded - (112u << 23)) >> 13);
}

/* A bfloat16 is the upper half of a float32. */
static float float_of_bfloat(uint16_t bfloat)
{
    return float_of_bits((uint32_t)bfloat << 16);
}

static uint16_t bfloat_of_float(float value)
{
    uint32_t bits = bits_of_float(value);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) /* NaN, whose set bits may all be in the lower half */
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

void ra_number_load(enum ra_type type, int64_t count, const void *from, float *to)
{
    const uint16_t *numbers = from;
    if (type == RA_FLOAT32)
        memcpy(to, from, (size_t)count * sizeof *to);
    else if (type == RA_FLOAT16)
        for (int64_t e = 0; e < count; e++)
            to[e] = float_of_half(numbers[e]);
    else
        for (int64_t e = 0; e < count; e++)
            to[e] = float_of_bfloat(numbers[e]);
}

void ra_number_store(enum ra_type type, int64_t count, const float *from, void *to)
{
    uint16_t *numbers = to;
    if (type == RA_FLOAT32)
        memcpy(to, from, (size_t)count * sizeof *from);
    else if (type == RA_FLOAT16)
        for (int64_t e = 0; e < count; e++)
            numbers[e] = half_of_float(from[e]);
    else
        for (int64_t e = 0; e < count; e++)
            numbers[e] = bfloat_of_float(from[e]);
}

/* Where the numbers of row a, head h of batch b begin. */
static void *place(struct ra_tensor tensor, int64_t b, int64_t a, int64_t h)
{
    int64_t element = b * tensor.batch + a * tensor.row + h * tensor.head;
    return (char *)tensor.data + element * ra_type_bytes(tensor.type);
}

void ra_number_pack(struct ra_tensor from, int64_t B, int64_t rows, int64_t heads, int64_t width,
                    void *to)
{
    int64_t bytes = width * ra_type_bytes(from.type);
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < rows; a++)
            for (int64_t h = 0; h < heads; h++)
                memcpy((char *)to + ((b * rows + a) * heads + h) * bytes, place(from, b, a, h),
                       (size_t)bytes);
}

void ra_number_load_all(struct ra_tensor from, int64_t B, int64_t rows, int64_t heads,
                        int64_t width, float *to)
{
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < rows; a++)
            for (int64_t h = 0; h < heads; h++, to += width)
                ra_number_load(from.type, width, place(from, b, a, h), to);
}

void ra_number_store_all(struct ra_tensor to, int64_t B, int64_t rows, int64_t heads, int64_t width,
                         const float *from)
{
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < rows; a++)
            for (int64_t h = 0; h < heads; h++, from += width)
                ra_number_store(to.type, width, from, place(to, b, a, h));
}
