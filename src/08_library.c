/* 08-library: the same attention, and not a line of it here: a client of libringattn.
 *
 * Chapter 08. New here: a config, a plan, two calls. What the stages before had in their own
 * drivers is behind ring_attention_mpi.h, and this program sees nothing else of it.
 */
#include <mpi.h>
#include "ring_attention_mpi.h"
#include "stage_mpi.h"

/* What the command line asks for, in the words of the library. */
static struct ra_config config_of(struct stage *stage)
{
    struct ra_config config = RA_CONFIG_INIT;
    config.batch = stage->B;
    config.queries = stage->N;
    config.keys = stage->M;
    config.heads = stage->H;
    config.key_heads = stage->G;
    config.dim = stage->D;
    config.has_mask = stage->has_mask;
    config.forward_only = stage->config.forward_only;
    config.causal = stage->config.causal;
    config.local_keys = stage->config.local_keys;
    config.lookback = stage->config.lookback;
    config.head_map = stage->config.head_map;
    config.scale = stage->config.scale;
    config.softcap = stage->config.softcap;
    config.layout = stage->config.layout;
    config.bucket = stage->config.bucket;
    config.ring_size = stage->config.ring_size;
    config.tile_queries = stage->config.tile_queries;
    config.tile_keys = stage->config.tile_keys;
    config.timeout = stage->config.timeout;
    return config;
}

/* The library says what it does; progress, --time and --trace are made of that. */
static void observe(void *observer, const struct ra_event *event)
{
    static const enum stage_lane lanes[] = {STAGE_LANE_WORK, STAGE_LANE_WORK, STAGE_LANE_KEYS,
                                            STAGE_LANE_GRADIENTS};
    struct stage *stage = observer;
    const char *direction = event->backward ? "backward" : "forward";
    const char *const names[] = {direction, "wait", "receive", "receive"};
    stage_trace(stage, lanes[event->kind], names[event->kind], event->hop, event->start,
                event->end);
    if (event->kind == RA_EVENT_WORK) {
        stage_progress(stage, direction, event->hop + 1, stage->config.ring_size);
        stage_lap(stage, event->backward ? STAGE_BACKWARD : STAGE_FORWARD);
    } else if (event->kind == RA_EVENT_WAIT)
        stage_lap(stage, STAGE_WAIT);
}

/* All spans of this rank, in memory of the stage's. */
static struct ra_span *spans_of(struct stage *stage, const struct ra_plan *plan, enum ra_side side)
{
    struct ra_layout layout = ra_plan_layout(plan, side);
    int64_t count = ra_layout_spans(layout);
    struct ra_span *spans = stage_allocate(stage, count, sizeof *spans);
    for (int64_t s = 0; s < count; s++)
        spans[s] = ra_layout_span(layout, ra_plan_rank(plan), s);
    return spans;
}

/* Memory for an array of float32 (B, rows, heads, dim), filled by the library. */
static struct ra_tensor output(struct stage *stage, int64_t rows, int64_t heads, int64_t dim)
{
    float *data = stage_allocate(stage, stage->B * rows * heads * dim, sizeof(float));
    return ra_tensor_bnhd(data, RA_FLOAT32, rows, heads, dim);
}

/* An error of the library is one of this program. */
static void check(struct stage *stage, enum ra_status status, const char *error)
{
    if (status != RA_OK)
        stage_fail(stage, error);
}

/* What the plan says of every hop, to be printed like the counts of the stages before. */
static void count_hops(struct stage *stage, struct ra_plan *plan, bool backward)
{
    for (int step = 0; step < ra_plan_hops(plan); step++) {
        struct ra_hop hop;
        check(stage, ra_plan_hop(plan, ra_plan_rank(plan), step, backward, &hop),
              ra_plan_error(plan));
        stage_count(stage, backward ? "multiply-adds backward" : "multiply-adds forward",
                    hop.distance, hop.multiply_adds);
        stage_count(stage, backward ? "tiles skipped backward" : "tiles skipped forward",
                    hop.distance, hop.tiles_skipped);
        stage_count(stage, backward ? "messages sent backward" : "messages sent forward",
                    hop.distance, hop.messages);
        stage_count(stage, backward ? "bytes sent backward" : "bytes sent forward", hop.distance,
                    hop.bytes);
    }
}

int main(int argc, char **argv)
{
    struct stage stage;
    stage_open_mpi(&stage, argc, argv, 8, "08-library",
                   "The same attention, computed by the library.");
    struct ra_config config = config_of(&stage);
    config.observe = observe;
    config.observer = &stage;
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    struct ra_link link;
    check(&stage, ra_mpi_link(&link, MPI_COMM_WORLD, config.ring_size, config.timeout, error), error);
    check(&stage, ra_plan_create(&plan, &config, &link, error), error);
    stage.peak_bytes += ra_plan_bytes(plan);

    /* The rows of the files that the plan gives to this rank. */
    stage_shard(&stage, spans_of(&stage, plan, RA_QUERY_SIDE),
                ra_layout_spans(ra_plan_layout(plan, RA_QUERY_SIDE)),
                spans_of(&stage, plan, RA_KEY_SIDE),
                ra_layout_spans(ra_plan_layout(plan, RA_KEY_SIDE)));
    int64_t n = stage.n, m = stage.m, H = stage.H, G = stage.G, D = stage.D;
    struct ra_arrays x = RA_ARRAYS_INIT;
    x.q = ra_tensor_bnhd(stage_input(&stage, STAGE_Q), RA_FLOAT32, n, H, D);
    x.k = ra_tensor_bnhd(stage_input(&stage, STAGE_K), RA_FLOAT32, m, G, D);
    x.v = ra_tensor_bnhd(stage_input(&stage, STAGE_V), RA_FLOAT32, m, G, D);
    x.mask = ra_tensor_bn(stage_mask(&stage), m);
    x.o = output(&stage, n, H, D);
    x.lse = ra_tensor_bhn(output(&stage, n, H, 1).data, n, H);
    stage_lap(&stage, STAGE_READ);

    check(&stage, ra_forward(plan, &x), ra_plan_error(plan));
    count_hops(&stage, plan, false);
    stage_write(&stage, STAGE_O, x.o.data);
    stage_write(&stage, STAGE_LSE, x.lse.data);

    if (!stage.config.forward_only) {
        x.d_out = ra_tensor_bnhd(stage_input(&stage, STAGE_D_OUT), RA_FLOAT32, n, H, D);
        x.dq = output(&stage, n, H, D);
        x.dk = output(&stage, m, G, D);
        x.dv = output(&stage, m, G, D);
        check(&stage, ra_backward(plan, &x), ra_plan_error(plan));
        count_hops(&stage, plan, true);
        stage_write(&stage, STAGE_DQ, x.dq.data);
        stage_write(&stage, STAGE_DK, x.dk.data);
        stage_write(&stage, STAGE_DV, x.dv.data);
    }
    ra_plan_destroy(plan);
    return stage_close(&stage);
}
