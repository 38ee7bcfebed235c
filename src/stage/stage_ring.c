/* stage_ring: a stage program and its ring. See stage_ring.h. */
#include "stage_ring.h"

void stage_ring_open(struct stage *stage, struct ra_ring *ring)
{
    if (!ra_ring_open(ring, MPI_COMM_WORLD, stage->config.ring_size, stage->config.timeout))
        stage_fail(stage, "%s", ring->error);
}

void stage_ring_wait(struct stage *stage, struct ra_ring *ring, enum ra_message message)
{
    struct ra_passage *in = &ring->in[message], *out = &ring->out[message];
    double start = ra_ring_seconds();
    if (!ra_ring_wait(ring, message))
        stage_fail(stage, "%s", ring->error);

    /* What has been waited for and traced before is not traced again. One of the two may be
     * missing, with a hop of long ago. */
    if (in->finished > 0 || out->finished > 0)
        stage_trace(stage, STAGE_LANE_WORK, "wait", in->finished > 0 ? in->hop : out->hop, start,
                    ra_ring_seconds());
    if (in->finished > 0)
        stage_trace(stage, message == RA_KEYS ? STAGE_LANE_KEYS : STAGE_LANE_GRADIENTS, "receive",
                    in->hop, in->started, in->finished);
    in->finished = out->finished = 0;
    stage_lap(stage, STAGE_WAIT);
}

void stage_ring_memory(struct stage *stage, int64_t most, int hops, float *keys[3],
                       float *gradients[4])
{
    int64_t stride = stage->G * stage->D;
    for (int i = 0; i < 3 && i < hops; i++) {
        int64_t rows = i == 0 ? stage->m : most;
        keys[i] = stage_allocate(
            stage, ra_message_key_bytes(stage->B, stride, stage->config.has_mask, rows), 1);
        if (!stage->config.forward_only)
            gradients[i] =
                stage_allocate(stage, ra_message_gradient_bytes(stage->B, stride, rows), 1);
    }
    if (hops > 1 && !stage->config.forward_only)
        gradients[3] = stage_allocate(stage, ra_message_gradient_bytes(stage->B, stride, most), 1);
    stage_read_keys(stage, keys[0]);
}

float *stage_workspace(struct stage *stage)
{
    int64_t numbers =
        ra_tile_workspace(stage->config.tile_queries, stage->config.tile_keys, stage->D);
    return stage_allocate(stage, numbers, sizeof(float));
}

void stage_ring_count(struct stage *stage, struct ra_ring *ring, int hop, bool backward)
{
    stage_count(stage, backward ? "messages sent backward" : "messages sent forward", hop,
                ring->messages_sent);
    stage_count(stage, backward ? "bytes sent backward" : "bytes sent forward", hop,
                ring->bytes_sent);
    ring->messages_sent = ring->bytes_sent = 0;
    stage_progress(stage, backward ? "backward" : "forward", hop + 1, ring->size);
}

void stage_ring_work(struct stage *stage, int hop, bool backward, double start, int64_t pairs,
                     int64_t skipped)
{
    /* Products of matrices only: s and o forward; s again, dp, dv, dq and dk backward. */
    stage_count(stage, backward ? "multiply-adds backward" : "multiply-adds forward", hop,
                (backward ? 5 : 2) * pairs * stage->D);
    if (stage->number >= 4)
        stage_count(stage, backward ? "tiles skipped backward" : "tiles skipped forward", hop,
                    skipped);
    stage_trace(stage, STAGE_LANE_WORK, backward ? "backward" : "forward", hop, start,
                ra_ring_seconds());
    stage_lap(stage, backward ? STAGE_BACKWARD : STAGE_FORWARD);
}

static void poll_ring(void *ring)
{
    ra_ring_poll(ring);
}

struct ra_fold stage_fold(struct stage *stage, struct ra_ring *ring, bool backward,
                          float *workspace)
{
    return (struct ra_fold){.D = stage->D,
                            .score = stage_score(stage),
                            .backward = backward,
                            .tile_queries = stage->config.tile_queries,
                            .tile_keys = stage->config.tile_keys,
                            .workspace = workspace,
                            .between = poll_ring,
                            .context = ring};
}
