/* ra_message: what travels between the ranks of a ring. See ra_message.h.
 *
 * Chapter 03. New here: keys, values and mask as one message, their gradients as another.
 */
#include "ra_message.h"

const char *ra_message_name(enum ra_message message)
{
    static const char *const names[RA_MESSAGES] = {"keys", "gradients", "gradients coming home",
                                                   "rows", "a failure"};
    return names[message];
}

int64_t ra_message_key_bytes(int64_t B, int64_t stride, int64_t number_bytes, bool has_mask)
{
    return B * (2 * stride * number_bytes + has_mask);
}

int64_t ra_message_gradient_bytes(int64_t B, int64_t stride)
{
    return B * 2 * stride * (int64_t)sizeof(float);
}

struct ra_keys ra_message_keys(int64_t B, int64_t stride, bool has_mask, int64_t rows,
                               float *message, float *gradients, float *lost)
{
    int64_t numbers = B * rows * stride;
    struct ra_keys keys = {.rows = rows,
                           .stride = {stride, stride, stride, stride},
                           .k = message,
                           .v = message + numbers};
    if (has_mask)
        keys.mask = (const bool *)(message + 2 * numbers);
    if (gradients) {
        keys.dk = gradients;
        keys.dv = gradients + numbers;
        keys.dk_lost = lost;
        keys.dv_lost = lost + numbers;
    }
    return keys;
}
