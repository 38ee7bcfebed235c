/* runs: a problem, computed by the library on all of its ranks, which are threads: forward, and
 * backward if the problem has one.
 */
#ifndef RUNS_H
#define RUNS_H

#include "extras.h"
#include "thread_link.h"

enum { MOST_RANKS = 8 };

struct run {
    const struct problem *p;
    enum order order;
    enum thread_delivery delivery;
    struct extras *extras; /* slopes, sinks and so on; NULL: none */
    enum ra_deal deal;     /* of the problem's slices */

    /* NULL, or what a suite has each rank do with its plan: before there are arrays, in the place
     * of giving it the slices; and after each call. False: says in `trouble` what is wrong. */
    bool (*begin)(struct run *run, struct ra_plan *plan, char *trouble);
    bool (*check)(struct run *run, struct ra_plan *plan, bool backward, char *trouble);

    /* What comes of it. */
    double *got[ARRAYS];
    struct thread_ring *ring; /* NULL: one process */
    struct extras_part part[MOST_RANKS];
    char trouble[MOST_RANKS][TEXT]; /* by rank; "": none */
};

/* Makes a rank's plan, together with all other ranks of the ring; NULL: one process. NULL: says in
 * `trouble` why there is none. */
struct ra_plan *run_plan(const struct ra_config *config, struct thread_ring *ring, int rank,
                         char *trouble);

/* Lends a plan that takes no workspace of its own a block for it, as large as it must be, and full
 * of NaN. Any other plan refuses it. The caller frees it. */
void *run_workspace(struct ra_plan *plan, const struct ra_config *config, char *trouble);

/* Computes one rank's part of a run, whose outputs have been made. */
void run_rank(void *run, int rank);

/* Computes a run, which must be well on all ranks, as libcheck asserts. outputs_clear frees
 * run->got. */
void run_all(struct run *run);

/* Asserts that what came out of a problem that has been solved, and of its extras, is right. */
void run_judge(struct problem *p, const struct run *run);

/* Asserts that two runs gave the same bits. */
void run_same_bits(const struct run *a, const struct run *b);

#endif
