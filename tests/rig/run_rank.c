/* run_rank: one rank of runs.h. No assertions here: libcheck's are for one thread, and tests/fuzz.c
 * is without libcheck.
 */
#include "runs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ra_plan *run_plan(const struct ra_config *config, struct thread_ring *ring, int rank,
                         char *trouble)
{
    struct ra_plan *plan;
    struct ra_link link;
    char error[RA_ERROR_SIZE] = "";
    if (ring)
        link = thread_ring_link(ring, rank);
    enum ra_status status = ra_plan_create(&plan, config, ring ? &link : NULL, error);
    if (status != RA_OK)
        snprintf(trouble, TEXT, "plan: %s: %s", ra_status_text(status), error);

    /* What was sent to compare configs belongs to no call. */
    for (int hop = 0; ring && hop < link.size; hop++)
        thread_ring_sent(ring, rank, hop);
    return status == RA_OK ? plan : NULL;
}

void *run_workspace(struct ra_plan *plan, const struct ra_config *config, char *trouble)
{
    int64_t bytes = ra_plan_workspace_bytes(plan);
    void *block = aligned_alloc(64, (size_t)bytes);
    memset(block, 0xFF, (size_t)bytes);
    enum ra_status status = ra_plan_set_workspace(plan, block, bytes);
    if (status != (config->caller_workspace ? RA_OK : RA_INVALID))
        snprintf(trouble, TEXT, "workspace of %" PRId64 " bytes: %s: %s", bytes,
                 ra_status_text(status), ra_plan_error(plan));
    return block;
}

/* Gives the plan the slices of the problem, if there are any. */
static bool give_slices(struct run *run, struct ra_plan *plan, char *trouble)
{
    const struct truth *t = &run->p->truth;
    if (t->slices && ra_plan_set_slices(plan, t->slices, t->slice_count, run->deal) != RA_OK)
        snprintf(trouble, TEXT, "slices: %s", ra_plan_error(plan));
    return !trouble[0];
}

void run_rank(void *context, int rank)
{
    struct run *run = context;
    const struct problem *p = run->p;
    char *trouble = run->trouble[rank];
    struct ra_plan *plan = run_plan(&p->config, run->ring, rank, trouble);
    if (!plan)
        return;
    bool right = (run->begin ? run->begin : give_slices)(run, plan, trouble);
    struct shard x;
    shard_make(p, &x, run->order, plan);
    if (run->extras)
        extras_give(run->extras, &x, &run->part[rank]);
    void *workspace = run_workspace(plan, &p->config, trouble);
    right = right && !trouble[0];
    for (int backward = 0; right && backward < (p->config.forward_only ? 1 : 2); backward++) {
        /* Between calls the workspace is anybody's: first it is NaN, then huge. */
        memset(workspace, backward ? 0x7F : 0xFF, (size_t)ra_plan_workspace_bytes(plan));
        enum ra_status status = (backward ? ra_backward : ra_forward)(plan, &x.arrays);
        right = status == RA_OK;
        if (!right)
            snprintf(trouble, TEXT, "%s: %s", ra_status_text(status), ra_plan_error(plan));
        right = right && shard_is_kept(&x, backward, trouble) &&
                (!run->check || run->check(run, plan, backward, trouble));
    }
    if (right)
        shard_collect(p, &x, run->got);
    shard_clear(&x);
    ra_plan_destroy(plan);
    free(workspace);
}
