/* ra_message: what a message between the ranks of a ring holds.
 * Chapter 03. How messages are sent is the link's business.
 */
#ifndef RA_MESSAGE_H
#define RA_MESSAGE_H

#include "ra_link.h"
#include "ra_status.h"
#include "ra_tile.h"

/* Returns what a kind of message is called in error texts: "gradients coming home". */
const char *ra_message_name(enum ra_message message);

/* Which kind's way out does a message take? Gradients that go on and gradients that go home share
 * one. */
static inline enum ra_message ra_message_way_out(enum ra_message message)
{
    bool returns = message == RA_GRADIENTS_RETURN || message == RA_OUTER_GRADIENTS_RETURN;
    return returns ? (enum ra_message)(message - 1) : message;
}

/* Writes an error's text behind its place: "ring rank 2, hop 3: ", or without the hop if it is
 * negative. `error` may not be an argument. */
__attribute__((format(printf, 4, 5))) void ra_message_place(char error[RA_ERROR_SIZE], int rank,
                                                            int hop, const char *format, ...);

/* Writes the error of a link whose `cancel` has been called on this rank. */
void ra_message_cancelled(char error[RA_ERROR_SIZE], int rank);

/* Returns the error of a link that has failed; of one that gives no text, a text that says so. */
const char *ra_message_error(const struct ra_link *link);

/* What a link says when this rank has waited too long, at this hop, for another to send a message
 * or to take one: that rank is silent, or waits itself and nobody computes, or has closed its
 * link. */
enum ra_peer_state { RA_IS_SILENT, RA_IS_WAITING, RA_IS_GONE };
void ra_message_timeout_text(char error[RA_ERROR_SIZE], int rank, int hop, double seconds, int peer,
                             bool incoming, enum ra_message message, enum ra_peer_state absence);

/* Counts the bytes that a row adds to a message of keys, whose numbers have number_bytes each: k
 * (B, rows, heads, D), behind it v (B, rows, heads, D_v), behind it the mask (B, rows) if there is
 * one. */
int64_t ra_message_key_bytes(int64_t B, int64_t heads, struct ra_dims dims, int64_t number_bytes,
                             bool has_mask);

/* Counts the bytes that a row adds to a message of gradients: dk, behind it dv, in the shapes of k
 * and v, always float32. */
int64_t ra_message_gradient_bytes(int64_t B, int64_t heads, struct ra_dims dims);

/* Returns the arrays in a message of float32 keys and in one of gradients, and in an array like
 * that of what rounding loses of them (both NULL: forward only). */
struct ra_keys ra_message_keys(int64_t B, int64_t heads, struct ra_dims dims, bool has_mask,
                               int64_t rows, float *message, float *gradients, float *comp);

#endif
