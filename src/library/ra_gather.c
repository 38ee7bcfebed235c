/* ra_gather: every rank collects the keys of all. See ra_gather.h.
 *
 * Chapter 12. New here: messages that go straight to where they are needed, and their adjoint.
 */
#include "ra_gather.h"
#include <string.h>
#include "ra_math.h"

/* Pieces begin at cache lines. */
enum { LINE = 64 };

void ra_gather_place_messages(const struct ra_plan *plan, int rank, struct ra_arena *arena,
                              void *keys[3], float *gradients[4])
{
    const struct ra_ring *ring = &plan->ring;
    int64_t own = ra_plan_bound(plan, RA_KEY_SIDE, rank), padding = LINE * plan->link.size;
    int64_t others = plan->config.keys;
    bool backward = !plan->config.forward_only;
    if (plan->config.max_slices == 0)
        others -= own;
    keys[0] = ra_arena_take(arena, own * ring->key_bytes);
    keys[1] = ra_arena_take(arena, others * ring->key_bytes + padding);
    gradients[0] = ra_arena_take(arena, backward * own * ring->gradient_bytes);
    gradients[1] = ra_arena_take(arena, backward * (others * ring->gradient_bytes + padding));
    gradients[3] = ra_arena_take(arena, backward * own * ring->gradient_bytes);
    keys[2] = gradients[2] = NULL;
}

/* Bytes before the piece of this step, of so many for each row. */
static int64_t bytes_before(const struct ra_ring *ring, int step, int64_t row_bytes)
{
    int64_t bytes = 0;
    for (int before = 1; before < step; before++)
        bytes += ra_round_up(ra_ring_rows(ring, ring->link->rank, before) * row_bytes, LINE);
    return bytes;
}

void *ra_gather_keys(const struct ra_ring *ring, int step)
{
    return (char *)ring->keys[1] + bytes_before(ring, step, ring->key_bytes);
}

float *ra_gather_gradients(const struct ra_ring *ring, int step)
{
    int64_t before = bytes_before(ring, step, ring->gradient_bytes);
    return step == 0 ? ring->gradients[0] : ring->gradients[1] + before / (int64_t)sizeof(float);
}

bool ra_gather_sends(const struct ra_ring *ring, int rank, int step)
{
    return step > 0 && ring->key_bytes > 0 && ring->rows[rank] > 0 &&
           ring->schedule.hop[step] <= ring->schedule.last[rank];
}

/* Every rank gets the keys that its queries need. */
static bool gather(struct ra_ring *ring)
{
    int rank = ring->link->rank;
    for (int step = 1; step < ring->schedule.count; step++) {
        int hop = ring->schedule.hop[step];
        struct ra_exchange keys = {.message = RA_KEYS,
                                   .hop = hop,
                                   .to = hop,
                                   .from = -hop,
                                   .out = ring->keys[0],
                                   .in = ra_gather_keys(ring, step)};
        if (ra_gather_sends(ring, rank, step))
            keys.out_bytes = ring->rows[rank] * ring->key_bytes;
        keys.in_bytes = ra_ring_rows(ring, rank, step) * ring->key_bytes;
        if (!ra_ring_exchange(ring, &keys, true))
            return false;
    }
    return true;
}

/* The adjoint: every rank gets the gradients of its keys from those that have the keys, and adds
 * them to its own share. */
static bool reduce(struct ra_ring *ring)
{
    int rank = ring->link->rank;
    int64_t own = ring->rows[rank] * ring->gradient_bytes;
    float *sum = ring->gradients[0];
    const float *share = ring->gradients[3];
    for (int step = 1; step < ring->schedule.count; step++) {
        int hop = ring->schedule.hop[step];
        struct ra_exchange gradients = {.message = RA_GRADIENTS,
                                        .hop = hop,
                                        .to = -hop,
                                        .from = hop,
                                        .out = ra_gather_gradients(ring, step),
                                        .in = ring->gradients[3]};
        gradients.out_bytes = ra_ring_rows(ring, rank, step) * ring->gradient_bytes;
        if (ra_gather_sends(ring, rank, step))
            gradients.in_bytes = own;
        if (!ra_ring_exchange(ring, &gradients, false))
            return false;
        for (int64_t e = 0; e < gradients.in_bytes / (int64_t)sizeof(float); e++)
            sum[e] += share[e];
    }
    return true;
}

/* Folds the keys of all steps, in the order of the ranks: with contiguous shards that of one rank
 * that has them all. */
static void fold(struct ra_ring *ring, bool backward)
{
    for (int origin = 0; origin < ring->link->size; origin++)
        for (int step = 0; step < ring->schedule.count; step++) {
            int64_t rows = ra_ring_rows(ring, ring->link->rank, step);
            if (ra_ring_origin(ring, ring->link->rank, step) != origin || rows == 0)
                continue;
            if (backward) {
                float *share = ra_gather_gradients(ring, step);
                size_t bytes = (size_t)(rows * ring->gradient_bytes);
                if (share) /* else it is added up in the caller's array */
                    memset(share, 0, bytes);
                memset(ring->comp, 0, bytes);
            }
            ra_ring_fold(ring, step, backward);
        }
}

bool ra_gather_forward(struct ra_ring *ring)
{
    if (!ra_ring_begin(ring, RA_CALL_FORWARD) || !gather(ring))
        return false;
    fold(ring, false);
    return true;
}

bool ra_gather_backward(struct ra_ring *ring)
{
    if (!ra_ring_begin(ring, RA_CALL_BACKWARD) || !gather(ring))
        return false;
    fold(ring, true);
    return reduce(ring);
}
