/* ra_vector_set: all that one instruction set offers, for its table.
 *
 * Chapter 09. Internal: included once for each instruction set.
 */
#include "ra_vector_backward.h"
#include "ra_vector_forward.h"

static void exp_all(bool two, int64_t count, const float *from, float *to)
{
    for (int64_t e = 0; e < count; e += LANES) {
        float in[LANES] = {0};
        memcpy(in, from + e, (size_t)least(LANES, count - e) * sizeof *in);
        store(in, two ? exp2_lanes(load(in)) : exp_lanes(load(in)));
        memcpy(to + e, in, (size_t)least(LANES, count - e) * sizeof *in);
    }
}

static void load_all(enum ra_type type, int64_t count, const void *from, float *to)
{
    const uint16_t *numbers = from;
    for (int64_t e = 0; e < count; e += LANES) {
        uint16_t in[LANES] = {0};
        float out[LANES];
        int64_t these = least(LANES, count - e);
        const uint16_t *next = numbers + e;
        if (these < LANES)
            next = memcpy(in, next, (size_t)these * sizeof *in);
        lanes x = type == RA_FLOAT16 ? load_float16(next) : load_bfloat16(next);
        if (these == LANES)
            store(to + e, x);
        else {
            store(out, x);
            memcpy(to + e, out, (size_t)these * sizeof *out);
        }
    }
}
