/* ra_part_link: some ranks of a link, as a link of their own. Internal.
 *
 * Chapter 12. The ring of groups is one; so is what is measured inside hosts, or between them.
 */
#ifndef RA_PART_LINK_H
#define RA_PART_LINK_H

#include "ra_link.h"

/* Which ranks: blocks of `block` neighbours each have a link of their own; or, with `across`, all
 * ranks of the same place in their blocks. The link of all lives as long as this one. */
struct ra_part {
    const struct ra_link *all;
    int block; /* divides the ranks */
    bool across;
};

/* Returns the link of this rank's part. It is not to be closed. Nothing of another part, or of the
 * link itself, may be under way at the same time. */
struct ra_link ra_part_link(struct ra_part *part);

#endif
