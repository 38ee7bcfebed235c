/* ra_choose: the method of a plan whose config leaves it open. Internal.
 *
 * Chapter 12.
 */
#ifndef RA_CHOOSE_H
#define RA_CHOOSE_H

#include "ra_link.h"
#include "ring_attention.h"

/* Gives a config, which has been read and has RA_AUTO_METHOD on all ranks, a method, its group and
 * its inner. All ranks of the link call it and choose alike, by what the slowest of them measures.
 * NULL: there is no link. *text becomes lines for ra_plan_describe that say what was chosen from,
 * to be freed. */
RA_CHECKED enum ra_status ra_choose_method(struct ra_config *config, const struct ra_link *link,
                                           char **text, char *error);

#endif
