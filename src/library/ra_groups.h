/* ra_groups: the groups of a plan that exchanges heads, and the plan of what a rank computes in
 * between: some heads of all rows of its group, as a rank of the ring of groups. Internal.
 *
 * Chapter 12. A group is U neighbouring ranks. The ring of groups has every U-th rank of the real
 * one; with one group there is no ring. On the host and on GPUs. On GPUs also where keys are
 * gathered: then a rank has its own queries and all keys, and passes nothing on.
 */
#ifndef RA_GROUPS_H
#define RA_GROUPS_H

#include "ra_part_link.h"
#include "ra_plan.h"

/* What the inner plan of a rank needs as long as it lives: its link, whose self is the first of
 * these; and the rows of the groups, planned and then dealt, where these are lists. */
struct ra_groups {
    struct ra_part part;
    struct ra_layout_list lists[2][2];
    void *storage[2][2];
};

/* Counts the bytes of storage behind struct ra_groups. */
int64_t ra_groups_storage(const struct ra_config *config);

/* Makes plan->inner, on this backend; it computes in a workspace that is a part of the plan's. */
enum ra_status ra_groups_build(struct ra_plan *plan, struct ra_groups *groups, char *storage,
                               const struct ra_backend *backend, char *error);

/* Gives the inner plan the mask of the plan, and its rows. */
enum ra_status ra_groups_use_slices(struct ra_plan *plan, struct ra_groups *groups, char *error);

/* Gives the inner plan its workspace, which is a part of the plan's; NULL: there is none. */
void ra_groups_use_workspace(const struct ra_plan *plan, char *workspace);

/* Returns the number of a rank in its part: rank / U, in groups of U. If keys are gathered the part
 * is one of all ranks, and a rank keeps its number. */
int ra_groups_rank(const struct ra_plan *plan, int rank);

/* Describes what a rank of the ring computes once heads have been exchanged, or keys gathered: a
 * plan to ask, until another rank's part is. */
struct ra_plan ra_groups_part(const struct ra_plan *plan, int rank);

/* Writes the lines of a description of a rank, and those of its part; returns like snprintf. */
int ra_groups_describe(const struct ra_plan *plan, const struct ra_plan *part, int rank, char *text,
                       size_t size);

#endif
