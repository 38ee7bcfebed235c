/* ra_message: what travels between the ranks of a ring.
 * Chapter 03. Needs no MPI: how messages are sent is ra_ring's business.
 */
#ifndef RA_MESSAGE_H
#define RA_MESSAGE_H

#include "ra_tile.h"

/* The kinds of message. Of each kind one may be on its way in, and one on its way out; but
 * gradients go either on or home, so these two kinds share the way out, that of RA_GRADIENTS. The
 * last two serve the library of chapter 08: rows that are handed out or collected, and the word of
 * a rank that cannot go on. */
enum ra_message { RA_KEYS, RA_GRADIENTS, RA_HOME, RA_ROWS, RA_TROUBLE, RA_MESSAGES };

/* Keys travel as one message: k (B, rows, heads, D), behind it v, behind it the mask (B, rows) if
 * there is one. Their gradients do, too: dk, behind it dv. stride = heads * D. How many bytes
 * these are: */
int64_t ra_message_key_bytes(int64_t B, int64_t stride, bool has_mask, int64_t rows);
int64_t ra_message_gradient_bytes(int64_t B, int64_t stride, int64_t rows);

/* The arrays in a message of keys and in one of gradients (NULL: forward only). */
struct ra_keys ra_message_keys(int64_t B, int64_t stride, bool has_mask, int64_t rows,
                               float *message, float *gradients);

#endif
