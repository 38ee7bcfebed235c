/* ra_scale_cost: seconds of a rank's work at a hop, and of a message between two ranks. Internal.
 *
 * Chapter 12.
 */
#ifndef RA_SCALE_COST_H
#define RA_SCALE_COST_H

#include "ra_plan.h"
#include "ring_attention_scale.h"

/* A plan to look at, and the machine that it is to run on. */
struct ra_cost {
    struct ra_plan *plan;
    struct ra_scale_machine machine; /* with ranks_per_host filled in */
    int ranks;
};

/* Checks config, mask (NULL: the config's) and machine, and makes the plan. If it fails there is
 * nothing to close. */
enum ra_status ra_cost_open(struct ra_cost *cost, const struct ra_config *config,
                            const struct ra_scale_mask *mask,
                            const struct ra_scale_machine *machine, char *error);
void ra_cost_close(struct ra_cost *cost);

/* Refuses a number of the machine that is not above 0. */
enum ra_status ra_cost_missing(const char *name, double value, const char *meaning, char *error);

/* Pairs of the queries of `rank` and the keys of `origin`: those that see each other, and those
 * that are computed. For one head of one batch. */
struct ra_cost_pairs {
    double visible, computed;
};
struct ra_cost_pairs ra_cost_count(const struct ra_cost *cost, int rank, int origin);

/* Seconds of work on them: multiply-adds at the machine's rate; what of carries and sums goes
 * through memory, if there are several hops; and the overhead. */
double ra_cost_work(const struct ra_cost *cost, int rank, int origin, double computed,
                    bool backward);

/* Multiply-adds of these pairs, over all heads and batches. */
double ra_cost_multiply_adds(const struct ra_cost *cost, double pairs, bool backward);

/* Are two ranks on different hosts? And seconds of a message from one to the other. */
bool ra_cost_leaves_host(const struct ra_cost *cost, int from, int to);
double ra_cost_message(const struct ra_cost *cost, int from, int to, double bytes);

#endif
