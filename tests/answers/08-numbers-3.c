/* Chapter 08, Numbers, exercise 3: a float16 out of sign, exponent and fraction. */
static uint16_t half_of_float(float value)
{
    uint32_t bits = bits_of_float(value), fraction = bits & 0x7FFFFF;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    int exponent = (int)(bits >> 23 & 0xFF) - 127, cut = 13;
    if (exponent == 128 && fraction != 0) /* NaN */
        return sign | 0x7E00;
    if (exponent > 15)
        return sign | 0x7C00;
    if (exponent < -25) /* less than half of the smallest step */
        return sign;

    /* With the hidden bit, which adds 1 to the exponent's field. Below 2^-14 that field is 0, and
     * each exponent cuts off one bit more. */
    uint32_t kept = fraction | 0x800000, field = 0;
    if (exponent >= -14)
        field = (uint32_t)(exponent + 14) << 10;
    else
        cut += -14 - exponent;
    uint32_t rest = kept & ((1u << cut) - 1), half = 1u << (cut - 1);
    kept >>= cut;
    kept += rest > half || (rest == half && kept % 2 == 1);
    return (uint16_t)(sign | (field + kept));
}
