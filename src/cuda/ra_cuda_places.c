/* ra_cuda_places: where rows lie in the whole sequences. See ra_cuda_places.h.
 *
 * Chapter 13. New here: a slope asks how far a key is from a query. Rows of a launch may be of
 * several spans, so the device has a number for each row: of this rank's queries, and behind these
 * of the keys of each step.
 */
#include "ra_cuda_places.h"
#include "ra_cuda_spans.h"

int64_t ra_cuda_places_bytes(const struct ra_plan *plan, int rank)
{
    int64_t keys = plan->ring.schedule.count * ra_plan_most_bound(plan, RA_KEY_SIDE);
    return (ra_plan_bound(plan, RA_QUERY_SIDE, rank) + keys) * (int64_t)sizeof(int32_t);
}

void ra_cuda_places_begin(struct ra_plan *plan)
{
    struct ra_cuda *cuda = plan->own;
    size_t bytes = (size_t)ra_max(1, ra_cuda_places_bytes(plan, plan->link.rank));
    RA_DO(plan, cudaEventCreateWithFlags(&cuda->places_copied, cudaEventDisableTiming));
    RA_DO(plan, cudaHostAlloc((void **)&cuda->host_places, bytes, cudaHostAllocPortable));
}

void ra_cuda_places_end(struct ra_plan *plan)
{
    struct ra_cuda *cuda = plan->own;
    if (cuda->places_copied)
        cudaEventDestroy(cuda->places_copied);
    if (cuda->host_places)
        cudaFreeHost(cuda->host_places);
}

/* Where the places of a step begin. */
static int64_t start_of(const struct ra_plan *plan, enum ra_side side, int step)
{
    return side == RA_QUERY_SIDE ? 0
                                 : ra_plan_bound(plan, RA_QUERY_SIDE, plan->link.rank) +
                                       step * ra_plan_most_bound(plan, RA_KEY_SIDE);
}

/* Where row a of a rank lies, as the plan keeps its rows while a call runs. */
static int64_t place_of(const struct ra_plan *plan, struct ra_layout layout, int rank, int64_t a)
{
    int64_t f = ra_cuda_stripes(plan);
    return f > 1 ? a / f * f * layout.ranks + rank * f + a % f
                 : ra_layout_position(layout, rank, a);
}

static bool ascend(const int32_t *places, int64_t count)
{
    for (int64_t i = 1; i < count; i++)
        if (places[i] <= places[i - 1])
            return false;
    return true;
}

bool ra_cuda_places_are_due(const struct ra_cuda_call *call)
{
    return (call->arrays.slopes.data || call->plan->inner) && !ra_cuda_of(call->plan)->places_sent;
}

void ra_cuda_places_send(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->own;
    int rank = plan->link.rank;
    if (!ra_cuda_places_are_due(call))
        return;
    cuda->places_ascend = true;
    for (int step = 0; step < plan->ring.schedule.count; step++) {
        int origin = ra_ring_origin(&plan->ring, rank, step);
        struct ra_shard_pair shards = ra_plan_shards(plan, rank, origin);
        int64_t longer = shards.keys.length - shards.queries.length;
        int32_t *queries = cuda->host_places,
                *keys = cuda->host_places + start_of(plan, RA_KEY_SIDE, step);
        int64_t n = step == 0 ? plan->rows[RA_QUERY_SIDE] : 0;
        int64_t m = ra_ring_rows(&plan->ring, rank, step);
        for (int64_t a = 0; a < n; a++)
            queries[a] = (int32_t)(place_of(plan, shards.queries, shards.rank, a) + longer);
        for (int64_t b = 0; b < m; b++)
            keys[b] = (int32_t)place_of(plan, shards.keys, shards.origin, b);
        cuda->places_ascend = cuda->places_ascend && ascend(queries, n) && ascend(keys, m);
    }
    RA_DO(plan,
          cudaMemcpyAsync(cuda->places, cuda->host_places, (size_t)ra_cuda_places_bytes(plan, rank),
                          cudaMemcpyHostToDevice, call->stream));
    RA_DO(plan, cudaEventRecord(cuda->places_copied, call->stream));
    cuda->places_sent = true;
}

struct ra_tensor ra_cuda_places_of(const struct ra_plan *plan, enum ra_side side, int step)
{
    return (struct ra_tensor){.data = ra_cuda_of(plan)->places + start_of(plan, side, step),
                              .row = 1};
}
