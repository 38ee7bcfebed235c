/* ra_cuda_lists: the lists of work of a plan with slices. See ra_cuda_lists.h.
 *
 * Chapter 13. New here: a mask changes from batch to batch, but memory does not. Lists are made in
 * memory of the host that the device copies from, and the copy is part of the next call: so it
 * comes behind all that still reads the lists before.
 */
#include "ra_cuda_lists.h"
#include <stdlib.h>
#include <string.h>
#include "ra_cuda_steps.h"
#include "ra_cuda_wait.h"

enum { LINE = 256 };

/* Lists of one use, for all steps. */
struct lists_of {
    struct ra_work_lists made;
    int64_t *first, *count;    /* (ranks): of each step, its tiles */
    char *tile, *part, *sight; /* on the device */
    bool hold;
};

struct ra_cuda_lists {
    bool sliced;
    struct lists_of of[RA_WORK_USES];
    struct ra_span_pair *cuts; /* (most_cuts), of one step */
    int64_t most_cuts;
    bool *edge;
    char *pinned;
    cudaEvent_t copied;
    bool made; /* since the last call */
};

bool ra_cuda_is_sliced(const struct ra_plan *plan)
{
    const struct ra_cuda_lists *lists = ra_cuda_of(plan)->lists;
    return lists && lists->sliced;
}

static int tile_rows(const struct ra_plan *plan, enum ra_work_use use)
{
    const struct ra_config *c = &plan->config;
    return ra_work_rows(c->type, ra_cuda_widest(c), c->deterministic, use);
}

/* Does this plan make lists of this use? Those of the forward do for dq, too, if their tiles are as
 * large as dq wants them. */
static bool makes(const struct ra_plan *plan, enum ra_work_use use)
{
    const struct ra_config *c = &plan->config;
    bool apart = ra_work_separates(c->type, ra_cuda_widest(c), c->deterministic) &&
                 tile_rows(plan, RA_WORK_DQ) != tile_rows(plan, RA_WORK_FORWARD);
    return use == RA_WORK_FORWARD || (!c->forward_only && (use == RA_WORK_BACKWARD || apart));
}

static enum ra_side side_of(enum ra_work_use use)
{
    return use == RA_WORK_BACKWARD ? RA_KEY_SIDE : RA_QUERY_SIDE;
}

/* How many stripes a side has; 1 in other layouts: there, neighbours are in order. */
static int64_t stripes_of(const struct ra_plan *plan, enum ra_side side)
{
    struct ra_layout layout = plan->planned[side];
    return layout.kind == RA_STRIPED ? layout.stripes : 1;
}

/* How many parts there is room for: for each step, and each stripe that a tile sees, twice as many
 * as whole tiles, and some for each slice. */
static int64_t most_parts(const struct ra_plan *plan, enum ra_work_use use, int64_t rows)
{
    enum ra_side seen = side_of(use) == RA_KEY_SIDE ? RA_QUERY_SIDE : RA_KEY_SIDE;
    int64_t steps = plan->config.local_keys ? 1 : plan->link.size;
    return steps * stripes_of(plan, seen) * (2 * rows / tile_rows(plan, use) + 4) +
           4 * plan->config.max_slices;
}

/* Gives what is copied its places, the same on the host and on the device. */
static int64_t lay_out_copied(const struct ra_plan *plan, struct ra_cuda_lists *lists, char *start,
                              bool device)
{
    struct ra_arena arena = {start, LINE, 0};
    for (enum ra_work_use use = RA_WORK_FORWARD; use < RA_WORK_USES; use++) {
        if (!makes(plan, use))
            continue;
        int64_t rows = ra_plan_most_bound(plan, side_of(use));
        int of_tile = tile_rows(plan, use);
        int64_t tiles = plan->link.size * ra_work_most_tiles(rows, of_tile);
        int64_t parts = most_parts(plan, use, rows);
        void *tile = ra_arena_take(&arena, tiles * (int64_t)sizeof(struct ra_work_tile));
        void *part = ra_arena_take(&arena, parts * (int64_t)sizeof(struct ra_work_part));
        void *sight = ra_arena_take(&arena, parts * of_tile * (int64_t)sizeof(struct ra_sight));
        if (!lists)
            continue;
        struct lists_of *of = &lists->of[use];
        if (device) {
            of->tile = tile;
            of->part = part;
            of->sight = sight;
        } else {
            of->made.tile = tile;
            of->made.part = part;
            of->made.sight = sight;
            of->made.most_parts = parts;
            of->made.tile_rows = of_tile;
        }
    }
    return arena.used;
}

int64_t ra_cuda_lists_device_bytes(const struct ra_plan *plan)
{
    return plan->config.max_slices > 0 ? lay_out_copied(plan, NULL, NULL, true) : 0;
}

/* The host's own: the struct, and what lists are made with. */
static int64_t lay_out(const struct ra_plan *plan, struct ra_cuda_lists *lists)
{
    struct ra_arena arena = {(char *)lists, LINE, 0};
    struct ra_cuda_lists places = {.most_cuts = 64 + 8 * plan->config.max_slices +
                                                stripes_of(plan, RA_QUERY_SIDE) *
                                                    stripes_of(plan, RA_KEY_SIDE)};
    ra_arena_take(&arena, sizeof places);
    int64_t most = 0;
    for (enum ra_work_use use = RA_WORK_FORWARD; use < RA_WORK_USES; use++) {
        if (!makes(plan, use))
            continue;
        struct lists_of *of = &places.of[use];
        int64_t rows = ra_plan_most_bound(plan, side_of(use)), ranks = plan->link.size;
        int64_t tiles = ra_work_most_tiles(rows, tile_rows(plan, use));
        of->made.start = ra_arena_take(&arena, (tiles + 1) * (int64_t)sizeof *of->made.start);
        of->made.newest = ra_arena_take(&arena, tiles * (int64_t)sizeof *of->made.newest);
        of->first = ra_arena_take(&arena, ranks * (int64_t)sizeof *of->first);
        of->count = ra_arena_take(&arena, ranks * (int64_t)sizeof *of->count);
        most = ra_max(most, rows);
    }
    places.edge = ra_arena_take(&arena, (most + 1) * (int64_t)sizeof *places.edge);
    places.cuts = ra_arena_take(&arena, places.most_cuts * (int64_t)sizeof *places.cuts);
    if (lists)
        *lists = places;
    return arena.used;
}

int64_t ra_cuda_lists_bytes(const struct ra_plan *plan)
{
    return plan->config.max_slices > 0
               ? lay_out(plan, NULL) + lay_out_copied(plan, NULL, NULL, false)
               : 0;
}

void ra_cuda_lists_begin(struct ra_plan *plan)
{
    struct ra_cuda *cuda = plan->own;
    if (plan->config.max_slices == 0)
        return;
    struct ra_cuda_lists *lists = calloc(1, (size_t)lay_out(plan, NULL));
    cuda->lists = lists;
    if (!lists) {
        ra_cuda_note(plan, cudaErrorMemoryAllocation, "calloc");
        return;
    }
    lay_out(plan, lists);
    int64_t bytes = lay_out_copied(plan, NULL, NULL, false);
    RA_DO(plan, cudaEventCreateWithFlags(&lists->copied, cudaEventDisableTiming));
    RA_DO(plan, cudaHostAlloc((void **)&lists->pinned, (size_t)bytes, cudaHostAllocPortable));
    if (!ra_cuda_ok(plan))
        return;
    lay_out_copied(plan, lists, lists->pinned, false);
    lay_out_copied(plan, lists, cuda->list_memory, true);
}

void ra_cuda_lists_end(struct ra_plan *plan)
{
    struct ra_cuda_lists *lists = ra_cuda_of(plan)->lists;
    if (!lists)
        return;
    if (lists->copied)
        cudaEventDestroy(lists->copied);
    if (lists->pinned)
        cudaFreeHost(lists->pinned);
    free(lists);
}

/* ---- Lists of a mask. */

struct ra_walk ra_cuda_lists_walk(const struct ra_plan *plan, int step,
                                  struct ra_shard_pair *shards)
{
    int rank = plan->link.rank;
    *shards = ra_plan_shards(plan, rank, ra_ring_origin(&plan->ring, rank, step));
    return ra_slices_walk(&plan->slices, shards, 0, plan->rows[RA_QUERY_SIDE], 0,
                          ra_ring_rows(&plan->ring, rank, step));
}

/* What slices have of a step, cut by cut; -1: there is no room for so many. */
static int64_t cuts_of(const struct ra_plan *plan, int step)
{
    struct ra_cuda_lists *lists = ra_cuda_of(plan)->lists;
    struct ra_shard_pair shards;
    struct ra_walk walk = ra_cuda_lists_walk(plan, step, &shards);
    int64_t count = 0;
    while (count < lists->most_cuts && ra_walk_next(&walk, &lists->cuts[count]))
        count++;
    return count < lists->most_cuts ? count : -1;
}

/* Tiles of queries are the same at all steps. */
static bool cut_queries(const struct ra_plan *plan, struct ra_work_lists *made)
{
    struct ra_cuda_lists *lists = ra_cuda_of(plan)->lists;
    made->rows = plan->rows[RA_QUERY_SIDE];
    memset(lists->edge, 0, (size_t)made->rows + 1);
    for (int step = 0; step < plan->ring.schedule.count; step++) {
        int64_t count = cuts_of(plan, step);
        if (count < 0)
            return false;
        for (int64_t i = 0; i < count; i++) {
            const struct ra_span_pair *cut = &lists->cuts[i];
            lists->edge[cut->a] = lists->edge[cut->a + cut->rows] = true;
        }
    }
    ra_work_cut(made, lists->edge);
    return true;
}

/* Lists of one use, from the last step to the first. */
static bool make_lists(const struct ra_plan *plan, enum ra_work_use use)
{
    struct ra_cuda_lists *lists = ra_cuda_of(plan)->lists;
    struct lists_of *of = &lists->of[use];
    const struct ra_config *c = &plan->config;
    bool of_keys = use == RA_WORK_BACKWARD;
    of->made.tile_count = of->made.part_count = of->made.most_seen = 0;
    if (!of_keys && !cut_queries(plan, &of->made))
        return false;
    for (int step = plan->ring.schedule.count - 1; step >= 0; step--) {
        if (of_keys) {
            of->made.rows = ra_ring_rows(&plan->ring, plan->link.rank, step);
            ra_work_cut(&of->made, NULL);
        }
        int64_t cuts = cuts_of(plan, step);
        of->first[step] = of->made.tile_count;
        of->count[step] =
            cuts < 0 ? -1 : ra_work_add(&of->made, step, lists->cuts, cuts, of_keys, of_keys);
        if (of->count[step] < 0)
            return false;
    }
    for (int step = 0; step < plan->ring.schedule.count; step++)
        ra_work_sort(of->made.tile + of->first[step], of->count[step]);

    /* A sum over queries is one over all heads that read a key. */
    return of->made.most_seen * (of_keys ? c->heads / c->key_heads : 1) <=
           ra_kernel_most_keys(c->type);
}

/* Is the mask one band of all rows, as a config's is? Then it is launched as if the config had it;
 * but not against gathered stripes, which are those of all ranks. */
static bool is_band(const struct ra_plan *plan)
{
    const struct ra_slices *slices = &plan->slices;
    const struct ra_slice *s = slices->slice;
    bool alike = ra_layout_spans(plan->layouts[RA_QUERY_SIDE]) ==
                 ra_layout_spans(plan->layouts[RA_KEY_SIDE]);
    return slices->count == 1 && plan->layouts[RA_QUERY_SIDE].kind != RA_DEALT && alike &&
           s->q0 == 0 && s->k0 == 0 && s->q1 == plan->config.queries && s->k1 == plan->config.keys;
}

void ra_cuda_lists_make(struct ra_plan *plan)
{
    struct ra_cuda_lists *lists = ra_cuda_of(plan)->lists;
    lists->sliced = plan->listed && !is_band(plan);
    if (!lists->sliced) {
        ra_cuda_steps_find(plan, ra_cuda_of(plan)->steps);
        return;
    }

    /* The device may still copy the lists before. */
    if (ra_cuda_finish(plan, lists->copied) != RA_OK)
        return;
    for (enum ra_work_use use = RA_WORK_FORWARD; use < RA_WORK_USES; use++)
        lists->of[use].hold = makes(plan, use) && make_lists(plan, use);
    lists->made = true;
}

void ra_cuda_lists_send(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda_lists *lists = ra_cuda_of(plan)->lists;
    if (!lists || !lists->made)
        return;
    for (int use = 0; use < RA_WORK_USES; use++) {
        const struct lists_of *of = &lists->of[use];
        const struct ra_work_lists *made = &of->made;
        const struct {
            void *to;
            const void *from;
            int64_t bytes;
        } copies[] = {{of->tile, made->tile, made->tile_count * (int64_t)sizeof *made->tile},
                      {of->part, made->part, made->part_count * (int64_t)sizeof *made->part},
                      {of->sight, made->sight,
                       made->part_count * made->tile_rows * (int64_t)sizeof *made->sight}};
        for (int i = 0; i < 3 && of->hold; i++)
            if (copies[i].bytes > 0)
                RA_DO(plan, cudaMemcpyAsync(copies[i].to, copies[i].from, (size_t)copies[i].bytes,
                                            cudaMemcpyHostToDevice, call->stream));
    }
    RA_DO(plan, cudaEventRecord(lists->copied, call->stream));
    lists->made = false;
}

/* The lists that serve a use. */
static const struct lists_of *lists_for(const struct ra_plan *plan, enum ra_work_use use)
{
    return &ra_cuda_of(plan)->lists->of[makes(plan, use) ? use : RA_WORK_FORWARD];
}

struct ra_work ra_cuda_lists_of(const struct ra_plan *plan, int step, enum ra_work_use use)
{
    const struct lists_of *of = lists_for(plan, use);
    return (struct ra_work){.count = (int)of->count[step],
                            .tile = (const struct ra_work_tile *)(void *)of->tile + of->first[step],
                            .part = (const struct ra_work_part *)(void *)of->part,
                            .sight = (const struct ra_sight *)(void *)of->sight};
}

bool ra_cuda_lists_hold(const struct ra_plan *plan, bool backward)
{
    return backward ? lists_for(plan, RA_WORK_BACKWARD)->hold && lists_for(plan, RA_WORK_DQ)->hold
                    : lists_for(plan, RA_WORK_FORWARD)->hold;
}
