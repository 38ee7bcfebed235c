/* ra_agree: what the ranks of a link tell each other outside of the ring's loop. Internal.
 *
 * Chapter 08.
 */
#ifndef RA_AGREE_H
#define RA_AGREE_H

#include "ra_link.h"
#include "ring_attention.h"

/* Gives every rank the records of all, of `bytes` bytes each; its own is in its place. False: the
 * link has failed. */
bool ra_agree_allgather(const struct ra_link *link, void *all, int64_t bytes);

/* Returns RA_OK if every rank comes with it. If not, all get the status and the text of the first
 * rank that does not, which the text names. */
enum ra_status ra_agree(const struct ra_link *link, enum ra_status status, char *error);

/* Agrees on a status as ra_agree does; and if all come with RA_OK, compares their configs, and
 * where they compute: RA_DISAGREEMENT if these differ. With another status than RA_OK config may be
 * anything. *number becomes the number that rank 0 gives. */
enum ra_status ra_agree_config(const struct ra_link *link, const struct ra_config *config,
                               const char *place, enum ra_status status, int64_t *number,
                               char *error);

#endif
