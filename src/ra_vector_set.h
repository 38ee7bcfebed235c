/* ra_vector_set: all that one instruction set offers, for its table.
 *
 * Chapter 09. Internal: included once for each instruction set.
 */
#include "ra_vector_backward.h"
#include "ra_vector_forward.h"

static void exp_all(int64_t count, const float *from, float *to)
{
    for (int64_t e = 0; e < count; e += LANES) {
        float in[LANES] = {0};
        memcpy(in, from + e, (size_t)ra_min(LANES, count - e) * sizeof *in);
        store(in, exp_lanes(load(in)));
        memcpy(to + e, in, (size_t)ra_min(LANES, count - e) * sizeof *in);
    }
}

static void load_all(enum ra_type type, int64_t count, const void *from, float *to)
{
    const uint16_t *numbers = from;
    int64_t e = 0;
    for (; e + LANES <= count; e += LANES)
        store(to + e, type == RA_FLOAT16 ? load_float16(numbers + e) : load_bfloat16(numbers + e));
    if (e < count) {
        uint16_t in[LANES] = {0};
        float out[LANES];
        memcpy(in, numbers + e, (size_t)(count - e) * sizeof *in);
        load_all(type, LANES, in, out);
        memcpy(to + e, out, (size_t)(count - e) * sizeof *out);
    }
}

/* LANES numbers of the normal distribution: how much of it lies below x, and its bell, exp(-x^2/2)
 * / sqrt(2 pi). The share below -|x| is a polynomial in 1 / (1 + p |x|) times the bell: Abramowitz
 * and Stegun, Handbook of Mathematical Functions, 7.1.26, whose error is below 7.5e-8. */
INLINE lanes normal_lanes(lanes x, lanes *bell)
{
    lanes size = (lanes)((lane_bits)x & INT32_MAX), e = exp_lanes(x * x * -0.5f);
    lanes t = 1 / multiply_add(size, all_lanes(0.3275911f * 0.70710678f), all_lanes(1));
    lanes tail = multiply_add(t, all_lanes(1.061405429f), all_lanes(-1.453152027f));
    tail = multiply_add(tail, t, all_lanes(1.421413741f));
    tail = multiply_add(tail, t, all_lanes(-0.284496736f));
    tail = multiply_add(tail, t, all_lanes(0.254829592f)) * t * e * 0.5f;
    *bell = e * 0.39894228f;
    return choose(x < all_lanes(0), tail, 1 - tail);
}

static void normal_all(int64_t count, const float *x, float *below, float *bell)
{
    for (int64_t i = 0; i < count; i += LANES) {
        float in[LANES] = {0}, out[2][LANES];
        size_t bytes = (size_t)ra_min(LANES, count - i) * sizeof *in;
        memcpy(in, x + i, bytes);
        lanes height;
        store(out[0], normal_lanes(load(in), &height));
        store(out[1], height);
        memcpy(below + i, out[0], bytes);
        memcpy(bell + i, out[1], bytes);
    }
}

static void multiply_all(const struct ra_vector_product *product)
{
    multiply((struct product){product->rows, product->inner, product->width, product->left,
                              product->left_row, product->left_step, product->right,
                              product->right_row, product->out, product->out_row,
                              product->add ? ADD : WRITE, NULL});
}
