/* runs: see runs.h. */
#include "runs.h"

#include <string.h>

#include "suite.h"

void run_all(struct run *run)
{
    const struct problem *p = run->p;
    outputs_make(p, run->got);
    if (p->ranks == 0) {
        run_rank(run, 0);
    } else {
        run->ring = thread_ring_open(p->ranks, 20, run->delivery);
        thread_ring_run(p->ranks, run_rank, run);
        ck_assert_int_eq(thread_ring_closed(run->ring), p->ranks);
        thread_ring_close(run->ring);
    }
    for (int rank = 0; rank < problem_ranks(p); rank++) {
        ck_assert_msg(run->trouble[rank][0] == 0,
                      "rank %d of %d: %s (layout %d, N %d, M %d, seed %d)", rank, p->ranks,
                      run->trouble[rank], p->config.layout, (int)p->truth.N, (int)p->truth.M,
                      (int)p->seed);
        ck_assert_msg(!run->extras || extras_collect(run->extras, &run->part[rank]),
                      "rank %d has written beside", rank);
    }
}

void run_judge(struct problem *p, const struct run *run)
{
    char text[TEXT];
    ck_assert_msg(problem_is_right(p, run->got, text) &&
                      (!run->extras || extras_are_right(run->extras, text)),
                  "%s (extras %d, %d slices, tile %d, threads %d)", text,
                  run->extras ? run->extras->which : 0, (int)p->truth.slice_count, p->config.tile,
                  p->config.threads);
}

void run_same_bits(const struct run *a, const struct run *b)
{
    for (enum truth_array t = O; t < ARRAYS; t++)
        if (problem_writes(a->p, t))
            ck_assert_msg(memcmp(a->got[t], b->got[t],
                                 (size_t)truth_count(&a->p->truth, t) * sizeof *a->got[t]) == 0,
                          "%s: other bits (order %d and %d, seed %d)", truth_names[t], a->order,
                          b->order, (int)a->p->seed);
}
