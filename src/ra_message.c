/* ra_message: what travels between the ranks of a ring. See ra_message.h.
 *
 * Chapter 03. New here: keys, values and mask as one message, their gradients as another.
 */
#include "ra_message.h"
#include <stdarg.h>
#include <stdio.h>

const char *ra_message_name(enum ra_message message)
{
    static const char *const names[RA_MESSAGES] = {"keys",
                                                   "gradients",
                                                   "gradients coming home",
                                                   "the number of a call",
                                                   "rows",
                                                   "a failure",
                                                   "keys between hosts",
                                                   "gradients between hosts",
                                                   "gradients coming home from another host",
                                                   "the number of a call to another host"};
    return names[message];
}

const char *ra_message_error(const struct ra_link *link)
{
    const char *text = link->error ? link->error(link->self) : NULL; /* one of one rank has none */
    return text && *text ? text : "the link has failed and does not say why";
}

void ra_message_place(char error[RA_ERROR_SIZE], int rank, int hop, const char *format, ...)
{
    int used = snprintf(error, RA_ERROR_SIZE,
                        hop < 0 ? "ring rank %d: " : "ring rank %d, hop %d: ", rank, hop);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error + used, RA_ERROR_SIZE - (size_t)used, format, arguments);
    va_end(arguments);
}

void ra_message_cancelled(char error[RA_ERROR_SIZE], int rank)
{
    ra_message_place(error, rank, -1, "cancelled by ra_plan_cancel");
}

void ra_message_timeout_text(char error[RA_ERROR_SIZE], int rank, int hop, double seconds, int peer,
                             bool incoming, enum ra_message message, enum ra_peer_state absence)
{
    const char *verb = incoming ? "send" : "take", *name = ra_message_name(message);
    const char *doubt = "has it died? If it is only slow, wait longer";
    if (message == RA_CALL)
        doubt = "has it left out a call, or died? If it is only slow, wait longer";
    if (absence == RA_IS_WAITING)
        doubt = "it waits as well, and no rank computes: do all make the same calls?";
    if (absence == RA_IS_GONE)
        ra_message_place(error, rank, hop, "rank %d has closed its link and did not %s %s", peer,
                         verb, name);
    else
        ra_message_place(error, rank, hop, "waited %g s for rank %d to %s %s; %s", seconds, peer,
                         verb, name, doubt);
}

int64_t ra_message_key_bytes(int64_t B, int64_t heads, struct ra_dims dims, int64_t number_bytes,
                             bool has_mask)
{
    return B * (heads * (dims.key + dims.value) * number_bytes + has_mask);
}

int64_t ra_message_gradient_bytes(int64_t B, int64_t heads, struct ra_dims dims)
{
    return B * heads * (dims.key + dims.value) * (int64_t)sizeof(float);
}

struct ra_keys ra_message_keys(int64_t B, int64_t heads, struct ra_dims dims, bool has_mask,
                               int64_t rows, float *message, float *gradients, float *comp)
{
    int64_t k_row = heads * dims.key, v_row = heads * dims.value, numbers = B * rows * k_row;
    struct ra_keys keys = {.rows = rows,
                           .stride = {k_row, v_row, k_row, v_row, k_row, v_row},
                           .k = message,
                           .v = message + numbers};
    if (has_mask)
        keys.mask = (const bool *)(keys.v + B * rows * v_row);
    if (gradients) {
        keys.dk = gradients;
        keys.dv = gradients + numbers;
        keys.dk_comp = comp;
        keys.dv_comp = comp + numbers;
    }
    return keys;
}
