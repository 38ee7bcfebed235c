/* ra_scale_cost: seconds of a rank's work at a hop, and of a message between two ranks. Internal.
 *
 * Chapter 12.
 */
#ifndef RA_SCALE_COST_H
#define RA_SCALE_COST_H

#include "ra_plan.h"
#include "ring_attention_scale.h"

/* Ranks of a ring, as in ra_plan_create. */
enum { RA_COST_MOST_RANKS = 1 << 16 };

/* What a member of a group computes with, and what its keys add to messages: all heads, if groups
 * are single ranks. */
struct ra_cost_member {
    int64_t heads, key_bytes, gradient_bytes; /* bytes of a row */
};

/* A plan to look at, and the machine that it is to run on. Heads are exchanged in groups, and what
 * attends is the ring of the groups: rank r is member r % group of number r / group of it. In other
 * methods each rank is a group. */
struct ra_cost {
    struct ra_plan *plan;
    const struct ra_plan *attends;   /* the plan of the ring of groups */
    bool carries;                    /* from hop to hop: several, and keys are not all there */
    struct ra_scale_machine machine; /* with ranks_per_host filled in */
    int ranks, group;
    struct ra_cost_member *members; /* (group) */
};

/* Checks config, mask (NULL: the config's) and machine, and makes the plan. If it fails there is
 * nothing to close. */
enum ra_status ra_cost_open(struct ra_cost *cost, const struct ra_config *config,
                            const struct ra_scale_mask *mask,
                            const struct ra_scale_machine *machine, char *error);
void ra_cost_close(struct ra_cost *cost);

/* Refuses a number of the machine that is not above 0. */
enum ra_status ra_cost_missing(const char *name, double value, const char *meaning, char *error);

/* Counts pairs of the queries of a group and the keys of the group `origin`: those that see each
 * other, and those that are computed. For one head of one batch. */
struct ra_cost_pairs {
    double visible, computed;
};
struct ra_cost_pairs ra_cost_count(const struct ra_cost *cost, int group, int origin);

/* Returns the seconds of a rank's work on pairs of its group and the group `origin`: multiply-adds
 * at the machine's rate; what of carries and sums goes through memory, if there are several hops;
 * and the overhead. */
double ra_cost_work(const struct ra_cost *cost, int rank, int origin, double computed,
                    bool backward);

/* Returns the multiply-adds of these pairs, over all batches and the heads of a rank. */
double ra_cost_multiply_adds(const struct ra_cost *cost, int rank, double pairs, bool backward);

/* Returns which heads a rank computes. */
static inline const struct ra_cost_member *ra_cost_member(const struct ra_cost *cost, int rank)
{
    return &cost->members[rank % cost->group];
}

/* Tells whether two ranks are on different hosts; returns the seconds of a message from one to the
 * other. */
bool ra_cost_leaves_host(const struct ra_cost *cost, int from, int to);
double ra_cost_message(const struct ra_cost *cost, int from, int to, double bytes);

/* When one rank began a hop of a simulated pass, had done its work, and began the next: seconds
 * since the pass began. */
struct ra_simulated_hop {
    double begin, worked, end;
};

/* Simulates a pass as ra_scale_simulate does, with a cost that is open. `hops`, unless it is NULL,
 * has room for (hops of the ring, ranks) of them. */
enum ra_status ra_simulate(double *seconds, const struct ra_cost *cost, bool backward,
                           struct ra_scale_rank *ranks, struct ra_simulated_hop *hops, char *error);

#endif
