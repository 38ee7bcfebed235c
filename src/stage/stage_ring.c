/* stage_ring: a stage program on a ring. See stage_ring.h. */
#include "stage_ring.h"
#include "ra_band.h"
#include "ra_mpi_link.h"
#include "ra_span.h"
#include "stage_observe.h"

/* The loop says what it does; counts, progress, --time and --trace are made of that. */
static void observe(void *observer, const struct ra_event *event)
{
    struct stage_ring *run = observer;
    struct ra_ring *ring = &run->ring;
    stage_observe(&run->stage, event);
    if (event->kind != RA_EVENT_WAIT)
        return;
    stage_count(&run->stage, event->backward ? "messages sent backward" : "messages sent forward",
                event->hop, ring->messages_sent);
    stage_count(&run->stage, event->backward ? "bytes sent backward" : "bytes sent forward",
                event->hop, ring->bytes_sent);
    ring->messages_sent = ring->bytes_sent = 0;
}

void stage_ring_open(struct stage_ring *run, int argc, char **argv, int number, const char *program,
                     const char *about, void (*fold)(void *context, int step, bool backward))
{
    char error[RA_ERROR_SIZE];
    *run = (struct stage_ring){.rows = NULL};
    struct stage *stage = &run->stage;
    stage_open_mpi(stage, argc, argv, number, program, about);
    if (ra_mpi_link_open(&run->link, MPI_COMM_WORLD, stage->config.ring_size, stage->config.timeout,
                         error) != RA_OK)
        stage_fail(stage, "%s", error);
    stage_show_progress(stage, &run->link);

    int P = run->link.size, hops = stage->config.local_keys ? 1 : P;
    int *storage = stage_allocate(stage, ra_schedule_storage(P), sizeof *storage);
    run->rows = stage_allocate(stage, P, sizeof *run->rows);
    run->ring = (struct ra_ring){.link = &run->link,
                                 .schedule = ra_schedule_round(P, hops, storage),
                                 .rows = run->rows,
                                 .fold = fold,
                                 .context = run,
                                 .observe = observe,
                                 .observer = run};
}

void stage_ring_chunks(struct stage_ring *run)
{
    struct stage *stage = &run->stage;
    int P = run->link.size, rank = run->link.rank;
    run->chunks[0] = ra_span_chunk(stage->N, P, rank);
    run->chunks[1] = ra_span_chunk(stage->M, P, rank);
    stage_shard(stage, &run->chunks[0], 1, &run->chunks[1], 1);
    for (int r = 0; r < P; r++)
        run->rows[r] = ra_span_chunk(stage->M, P, r).count;
}

struct ra_keys stage_ring_keys(const struct stage_ring *run, int step)
{
    const struct stage *stage = &run->stage;
    int slot = ra_ring_slot(step);
    return ra_message_keys(stage->B, stage->G, RA_DIMS(stage->D), stage->config.has_mask,
                           ra_ring_rows(&run->ring, run->link.rank, step), run->ring.keys[slot],
                           run->ring.gradients[slot], run->ring.comp);
}

struct ra_fold stage_ring_fold(struct stage_ring *run, bool backward)
{
    const struct stage *stage = &run->stage;
    return (struct ra_fold){.dims = RA_DIMS(stage->D),
                            .score = stage_score(stage),
                            .tile = backward ? ra_tile_backward : ra_tile_forward,
                            .tile_queries = stage->config.tile_queries,
                            .tile_keys = stage->config.tile_keys,
                            .workspace = run->workspace,
                            .between = ra_ring_poll,
                            .context = &run->ring};
}

void stage_ring_work(struct stage_ring *run, int step, bool backward, int64_t pairs,
                     int64_t skipped)
{
    /* Products of matrices only: s and o forward; s again, dp, dv, dq and dk backward. */
    int hop = run->ring.schedule.hop[step];
    stage_count(&run->stage, backward ? "multiply-adds backward" : "multiply-adds forward", hop,
                (backward ? 5 : 2) * pairs * run->stage.D);
    if (run->stage.number >= 4)
        stage_count(&run->stage, backward ? "tiles skipped backward" : "tiles skipped forward", hop,
                    skipped);
}

/* Memory for the messages. Visitors may have more rows than this rank. */
static void take_memory(struct stage_ring *run)
{
    struct stage *stage = &run->stage;
    struct ra_ring *ring = &run->ring;
    int hops = ring->schedule.count;
    bool backward = !stage->config.forward_only;
    struct ra_dims dims = RA_DIMS(stage->D);
    int64_t most = 0;
    ring->key_bytes = ra_message_key_bytes(stage->B, stage->G, dims, (int64_t)sizeof(float),
                                           stage->config.has_mask);
    ring->gradient_bytes = ra_message_gradient_bytes(stage->B, stage->G, dims);
    for (int r = 0; r < run->link.size; r++)
        most = ring->rows[r] > most ? ring->rows[r] : most;
    for (int i = 0; i < 3 && i < hops; i++) {
        int64_t rows = i == 0 ? stage->m : most;
        ring->keys[i] = stage_allocate(stage, rows * ring->key_bytes, 1);
        if (backward)
            ring->gradients[i] = stage_allocate(stage, rows * ring->gradient_bytes, 1);
    }
    if (backward)
        ring->comp = stage_allocate(stage, (hops > 1 ? most : stage->m) * ring->gradient_bytes, 1);
    if (hops > 1 && backward)
        ring->gradients[3] = stage_allocate(stage, most * ring->gradient_bytes, 1);
}

/* Calls a function of ra_tile for the queries of every batch and head. */
static void each_head(const struct stage_ring *run,
                      void (*function)(struct ra_dims dims, const struct ra_queries *queries))
{
    for (int64_t b = 0; b < run->stage.B; b++)
        for (int64_t h = 0; h < run->stage.H; h++) {
            struct ra_queries queries = ra_queries_head(&run->queries, run->stage.D, b, h);
            function(RA_DIMS(run->stage.D), &queries);
        }
}

int stage_ring_run(struct stage_ring *run)
{
    struct stage *stage = &run->stage;
    struct ra_ring *ring = &run->ring;
    bool backward = !stage->config.forward_only;
    int64_t tile =
        ra_tile_workspace(stage->config.tile_queries, stage->config.tile_keys, RA_DIMS(stage->D));
    run->workspace = stage_allocate(stage, tile, sizeof(float));
    run->queries = stage_queries(stage);
    take_memory(run);
    stage_read_keys(stage, ring->keys[0]);
    stage_lap(stage, STAGE_READ);

    /* o and lse. Then dq, dk and dv. */
    each_head(run, ra_tile_begin);
    if (!ra_ring_forward(ring))
        stage_fail(stage, "%s", run->link.error(run->link.self));
    each_head(run, ra_tile_finish);
    if (backward) {
        each_head(run, ra_tile_begin_backward);
        if (!ra_ring_backward(ring))
            stage_fail(stage, "%s", run->link.error(run->link.self));
    }

    stage_write_queries(stage, &run->queries);
    if (backward)
        stage_write_gradients(stage, ring->gradients[0]);
    run->link.close(run->link.self);
    return stage_close(stage);
}
