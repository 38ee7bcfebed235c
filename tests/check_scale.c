/* check_scale: the cost model of chapter 12. Its counts are held against all pairs of positions and
 * against plans to look at, its formula against its simulation, and its seconds against recorded
 * runs on GPUs.
 */
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "ra_config_check.h"
#include "ra_math.h"
#include "ra_pairs.h"
#include "ra_scale_cost.h"
#include "ra_scale_measure.h"
#include "scale_machine.h"
#include "suite.h"

static char error[RA_ERROR_SIZE];

/* A machine on which a message takes about as long as the work of a hop, if `balance` is 1. */
static struct ra_scale_machine machine_of(double balance)
{
    struct ra_scale_machine m = RA_SCALE_MACHINE_INIT;
    m.forward_rate = 3e9;
    m.backward_rate = 2e9;
    m.bandwidth = 1e8 / balance;
    m.latency = 1e-7;
    m.host_bandwidth = 2e7 / balance;
    m.host_latency = 1e-6;
    return m;
}

static struct ra_config config_of(int64_t N, int64_t M, int P, enum ra_layout_kind layout)
{
    struct ra_config c = RA_CONFIG_INIT;
    c.queries = N;
    c.keys = M;
    c.heads = 4;
    c.key_heads = 2;
    c.dim = 8;
    c.layout = layout;
    c.ring_size = P;
    c.threads = 1;
    return c;
}

/* ---- Counts. */

/* Pairs that see each other, and pairs of tiles in which any do, one by one. */
static void count_pairs(struct ra_band band, int64_t rows, int64_t keys, int64_t tq, int64_t tk,
                        int64_t *visible, int64_t *computed)
{
    *visible = *computed = 0;
    for (int64_t x = 0; x < rows; x += tq)
        for (int64_t y = 0; y < keys; y += tk) {
            int64_t inside = 0, height = rows - x < tq ? rows - x : tq,
                    width = keys - y < tk ? keys - y : tk;
            for (int64_t a = x; a < x + height; a++)
                for (int64_t b = y; b < y + width; b++)
                    inside += b - a >= band.lo && b - a <= band.hi;
            *visible += inside;
            *computed += inside > 0 ? height * width : 0;
        }
}

CASE(counts, 300);

TEST(every_pair)
{
    for (int64_t rows = 0; rows < 8; rows++)
        for (int64_t keys = 0; keys < 8; keys++)
            for (int64_t lo = -10; lo < 10; lo++)
                for (int64_t hi = lo - 1; hi < 10; hi++) {
                    struct ra_band band = {lo == -10 ? -RA_BAND_FAR : lo,
                                           hi == 9 ? RA_BAND_FAR : hi};
                    int64_t visible, computed;
                    count_pairs(band, rows, keys, 1, 1, &visible, &computed);
                    ck_assert_int_eq((int64_t)ra_pairs_visible(band, rows, keys), visible);
                    ck_assert_double_eq(ra_pairs_computed(band, rows, keys, 1, 1), (double)visible);
                }
}

/* Tiles: a row is off by no more than a tile at either edge of the band. Where edges are long, by
 * much less: what rows have too much and too little is about the same. */
TEST(whole_tiles)
{
    static const int64_t tiles[][2] = {{4, 4}, {8, 4}, {4, 8}, {6, 4}, {5, 7}};
    for (size_t t = 0; t < sizeof tiles / sizeof *tiles; t++)
        for (int64_t hi = -40; hi <= 150; hi++)
            for (int window = 0; window < 3; window++) {
                int64_t tq = tiles[t][0], tk = tiles[t][1], rows = 120, keys = 128, visible,
                        computed;
                struct ra_band band = {window == 0 ? -RA_BAND_FAR : hi - 30 * window, hi};
                count_pairs(band, rows, keys, tq, tk, &visible, &computed);
                double got = ra_pairs_computed(band, rows, keys, tq, tk);
                double edges = (double)((tq + tk) * (tq + tk));
                ck_assert_msg(fabs(got - (double)computed) <= 2 * edges,
                              "tiles %dx%d, band %d..%d: %g computed, not %d", (int)tq, (int)tk,
                              (int)band.lo, (int)band.hi, got, (int)computed);
                ck_assert(got >= (double)visible && got <= (double)(rows * keys));
            }
}

static const enum ra_layout_kind layouts[] = {RA_CONTIGUOUS, RA_STRIPED, RA_ZIGZAG};
static const int64_t shapes[][2] = {{64, 64}, {61, 61}, {37, 90}, {90, 37}, {5, 5}, {1, 40}};
static const int64_t windows[] = {-1, 0, 1, 7, 30, RA_NO_LOOKBACK}; /* -1: not causal */
enum { SHAPES = 6, WINDOWS = 6 };

static struct ra_config case_of(int shape, int window, int P, int layout)
{
    struct ra_config c = config_of(shapes[shape][0], shapes[shape][1], P, layouts[layout]);
    c.causal = windows[window] >= 0;
    c.lookback = c.causal ? windows[window] : RA_NO_LOOKBACK;
    c.tile_queries = c.tile_keys = 1;

    /* In 16 bits keys are half as long as gradients. */
    c.type = (shape + window) % 2 ? RA_BFLOAT16 : RA_FLOAT32;
    return c;
}

/* With tiles of one pair a plan counts what is seen: so do counts of every rank and hop, and
 * bytes. */
TESTS(plans, 0, 8)
{
    int P = _i + 1;
    struct ra_scale_machine m = machine_of(1);
    for (int e = 0; e < SHAPES * WINDOWS * 3; e++) {
        struct ra_config c = case_of(e % SHAPES, e / SHAPES % WINDOWS, P, e / SHAPES / WINDOWS);
        struct ra_cost cost;
        struct ra_scale scale;
        ck_assert_int_eq(ra_cost_open(&cost, &c, NULL, &m, error), RA_OK);
        ck_assert_int_eq(ra_scale_predict(&scale, &c, NULL, &m, RA_SCALE_RING, NULL, error), RA_OK);
        ck_assert_int_eq(scale.hops, ra_plan_hops(cost.plan));
        for (int pass = 0; pass < 2; pass++) {
            struct ra_scale_pass sum = pass == 0 ? scale.forward : scale.backward;
            double all = 0, most = 0;
            for (int rank = 0; rank < P; rank++) {
                double bytes = 0;
                for (int step = 0; step < scale.hops; step++) {
                    struct ra_hop hop;
                    ck_assert_int_eq(ra_plan_hop(cost.plan, rank, step, pass == 1, &hop), RA_OK);
                    struct ra_cost_pairs pairs = ra_cost_count(&cost, rank, hop.origin);
                    ck_assert_double_eq(
                        ra_cost_multiply_adds(&cost, rank, pairs.visible, pass == 1),
                        (double)hop.multiply_adds);
                    ck_assert_double_eq(pairs.visible, pairs.computed);
                    all += (double)hop.multiply_adds;
                    bytes += (double)hop.bytes;
                }
                most = fmax(most, bytes);
            }
            ck_assert_double_eq(sum.multiply_adds, all);
            ck_assert_double_eq(sum.inside_bytes, most);
            ck_assert_double_eq(sum.host_bytes, 0);
        }
        ck_assert_int_eq(scale.plan_bytes >= ra_plan_bytes(cost.plan), 1);
        ra_cost_close(&cost);
    }
}

/* A tile of the plan's size: within tiles at the edges of what the plan says, and near it on long
 * shards. */
TEST(tiled_plans)
{
    struct ra_scale_machine m = machine_of(1);
    m.tile_queries = 128;
    m.tile_keys = 64;
    for (int layout = 0; layout < 3; layout++) {
        struct ra_config c = config_of(1 << 16, 1 << 16, 4, layouts[layout]);
        struct ra_cost cost;
        c.causal = true;
        c.tile_queries = 128;
        c.tile_keys = 64;
        ck_assert_int_eq(ra_cost_open(&cost, &c, NULL, &m, error), RA_OK);
        for (int rank = 0; rank < 4; rank++)
            for (int step = 0; step < ra_plan_hops(cost.plan); step++) {
                struct ra_hop hop;
                ck_assert_int_eq(ra_plan_hop(cost.plan, rank, step, false, &hop), RA_OK);
                double got = ra_cost_multiply_adds(
                    &cost, rank, ra_cost_count(&cost, rank, hop.origin).computed, false);
                ck_assert_double_le(fabs(got - (double)hop.multiply_adds),
                                    1e-3 * (double)hop.multiply_adds);
            }
        ra_cost_close(&cost);
    }
}

/* ---- Masks of slices. */

/* One slice that says what causal and lookback do costs what they do, to the last bit; only the
 * plan has room for a list besides. */
TESTS(one_slice, 0, 8)
{
    int P = _i + 1;
    struct ra_scale_machine m = machine_of(1);
    m.tile_queries = 4;
    m.tile_keys = 8;
    for (int e = 0; e < SHAPES * (WINDOWS - 1) * 3; e++) {
        struct ra_config c = case_of(e % SHAPES, 1 + e / SHAPES % (WINDOWS - 1), P,
                                     e / SHAPES / (WINDOWS - 1)),
                         open = c;
        struct ra_slice slice;
        struct ra_scale_mask mask = {&slice, 1, RA_DEAL_LAYOUT};
        struct ra_scale by_flag, by_slice, expected;
        double seconds[2];
        ra_slices_window(c.queries, c.keys, c.lookback, 0, &slice);
        open.causal = false;
        open.lookback = RA_NO_LOOKBACK;
        c.heads = open.heads = 8;
        for (int method = RA_SCALE_RING; method <= RA_SCALE_HYBRID; method++) {
            ck_assert_int_eq(ra_scale_predict(&by_flag, &c, NULL, &m, method, NULL, error), RA_OK);
            ck_assert_int_eq(ra_scale_predict(&by_slice, &open, &mask, &m, method, NULL, error),
                             RA_OK);
            open.expected = &mask;
            ck_assert_int_eq(ra_scale_predict(&expected, &open, NULL, &m, method, NULL, error),
                             RA_OK);
            open.expected = NULL;
            ck_assert_mem_eq(&expected, &by_slice, sizeof expected);
            ck_assert_int_eq(by_flag.hops, by_slice.hops);
            ck_assert_mem_eq(&by_flag.forward, &by_slice.forward, sizeof by_flag.forward);
            ck_assert_mem_eq(&by_flag.backward, &by_slice.backward, sizeof by_flag.backward);
            ck_assert_int_eq(by_flag.array_bytes, by_slice.array_bytes);
            ck_assert_int_ge(by_slice.plan_bytes, by_flag.plan_bytes);
        }
        ck_assert_int_eq(ra_scale_simulate(&seconds[0], &c, NULL, &m, true, NULL, error), RA_OK);
        ck_assert_int_eq(ra_scale_simulate(&seconds[1], &open, &mask, &m, true, NULL, error),
                         RA_OK);
        ck_assert_double_eq(seconds[0], seconds[1]);
    }
}

/* Counts of every rank and hop are those of a plan with these slices. */
TESTS(documents, 0, 8)
{
    static const int64_t bounds[] = {0, 3, 4, 40, 41, 77, 130, 131, 200};
    enum { DOCUMENTS = sizeof bounds / sizeof *bounds - 1 };
    int P = _i + 1;
    struct ra_scale_machine m = machine_of(1);
    for (int e = 0; e < 3 * 2 * 3; e++) {
        struct ra_config c = config_of(200, 200, P, layouts[e / 6]);
        struct ra_slice slices[2 * DOCUMENTS];
        static const int64_t backs[] = {RA_NO_LOOKBACK, 9, 0};
        struct ra_scale_mask mask = {slices, 0, e % 2};
        struct ra_cost cost;
        struct ra_scale scale;
        double all = 0;
        c.tile_queries = c.tile_keys = 1;
        mask.count = ra_slices_documents(bounds, DOCUMENTS, backs[e / 2 % 3], e % 2, slices);
        ck_assert_int_eq(ra_cost_open(&cost, &c, &mask, &m, error), RA_OK);
        ck_assert_int_eq(ra_scale_predict(&scale, &c, &mask, &m, RA_SCALE_RING, NULL, error),
                         RA_OK);
        for (int rank = 0; rank < P; rank++) {
            double seen = 0;
            for (int step = 0; step < scale.hops; step++) {
                struct ra_hop hop;
                ck_assert_int_eq(ra_plan_hop(cost.plan, rank, step, false, &hop), RA_OK);
                struct ra_cost_pairs pairs = ra_cost_count(&cost, rank, hop.origin);
                ck_assert_double_eq(ra_cost_multiply_adds(&cost, rank, pairs.visible, false),
                                    (double)hop.multiply_adds);
                ck_assert_double_eq(pairs.visible, pairs.computed);
                all += (double)hop.multiply_adds;
                seen += pairs.visible;
            }
            ck_assert_double_eq(seen, (double)ra_plan_work(cost.plan, rank));
        }
        ck_assert_double_eq(scale.forward.multiply_adds, all);
        ra_cost_close(&cost);
    }
}

/* Two documents of 1200 and 400 rows on two ranks, and the pairs by hand. Contiguous, rank 0 sees
 * 800 * 801 / 2 of its own keys, rank 1 twice 400 * 401 / 2; then 400 of its rows see all 800 keys
 * of rank 0, which are the only ones to travel. Dealt, each rank has half of all pairs. */
TEST(documents_by_hand)
{
    static const int64_t bounds[] = {0, 1200, 1600}, halves[] = {0, 800, 1600};
    struct ra_scale_machine m = machine_of(1e-6);
    struct ra_config c = config_of(1600, 1600, 2, RA_CONTIGUOUS);
    struct ra_slice slices[2];
    struct ra_scale_mask mask = {slices, 2, RA_DEAL_LAYOUT};
    struct ra_scale_hop hops[4];
    struct ra_scale scale;
    const double pair = 4 * 2 * 8 / m.forward_rate, row = 2 * 2 * 8 * sizeof(float);
    m.latency = 0;
    ra_slices_documents(bounds, 2, RA_NO_LOOKBACK, 0, slices);
    ck_assert_int_eq(ra_scale_predict(&scale, &c, &mask, &m, RA_SCALE_RING, hops, error), RA_OK);
    ck_assert_int_eq(scale.hops, 2);
    ck_assert_double_eq_tol(hops[0].work, 320400 * pair, 1e-12);
    ck_assert_double_eq_tol(hops[1].work, 320000 * pair, 1e-12);
    ck_assert_double_eq_tol(hops[0].mean_work, 240400 * pair, 1e-12);
    ck_assert_double_eq_tol(hops[1].mean_work, 160000 * pair, 1e-12);
    ck_assert_double_eq_tol(scale.forward.busiest, 480400 * pair, 1e-12);
    ck_assert_double_eq_tol(scale.forward.work, 400400 * pair, 1e-12);
    ck_assert_double_eq_tol(scale.forward.waiting, 240000 * pair, 1e-12);
    ck_assert_double_eq(scale.forward.inside_bytes, 800 * row);

    mask.deal = RA_DEAL_DOCUMENTS;
    ck_assert_int_eq(ra_scale_predict(&scale, &c, &mask, &m, RA_SCALE_RING, NULL, error), RA_OK);
    ck_assert_double_eq_tol(scale.forward.busiest, 400400 * pair, 1e-12);
    ck_assert_double_eq_tol(scale.forward.work, 400400 * pair, 1e-12);

    /* Documents that end where shards do: nobody sends anything. */
    mask.deal = RA_DEAL_LAYOUT;
    ra_slices_documents(halves, 2, RA_NO_LOOKBACK, 0, slices);
    ck_assert_int_eq(ra_scale_predict(&scale, &c, &mask, &m, RA_SCALE_RING, NULL, error), RA_OK);
    ck_assert_int_eq(scale.hops, 1);
    ck_assert_double_eq(scale.forward.inside_bytes + scale.backward.inside_bytes, 0);

    /* What is wrong with a list is said. */
    slices[1] = slices[0];
    ck_assert_int_eq(ra_scale_predict(&scale, &c, &mask, &m, RA_SCALE_RING, NULL, error),
                     RA_INVALID);
    ck_assert_msg(strstr(error, "slices") && strstr(error, "1"), "%s", error);
    mask.deal = 7;
    ck_assert_int_eq(ra_scale_simulate(&(double){0}, &c, &mask, &m, false, NULL, error),
                     RA_INVALID);
    ck_assert_msg(strstr(error, "deal = 7"), "%s", error);
}

/* 10^5 documents of three rows, and windows of as many, which touch their neighbours: exact pairs,
 * in time that grows with their number. If each were held against all others, this would take
 * minutes. */
TESTS(many_slices, 0, 4)
{
    enum { COUNT = 100000, LENGTH = 3, P = 4 };
    const int64_t N = (int64_t)COUNT * LENGTH;
    struct ra_slice *slices = malloc(COUNT * sizeof *slices);
    struct ra_scale_machine m = machine_of(1);
    struct ra_config c = config_of(N, N, P, _i == 3 ? RA_CONTIGUOUS : layouts[_i]);
    struct ra_scale_mask mask = {slices, COUNT, _i == 3 ? RA_DEAL_DOCUMENTS : RA_DEAL_LAYOUT};
    struct ra_scale scale;
    c.forward_only = true;
    for (int wide = 0; wide < 2; wide++) {
        double pairs = 0, began = (double)clock() / CLOCKS_PER_SEC;
        for (int64_t d = 0; d < COUNT; d++) {
            int64_t first = d * LENGTH, before = wide && d > 0 ? LENGTH : 0;
            slices[d] =
                (struct ra_slice){first, first + LENGTH, first - before, first + LENGTH, -2, 0};
            pairs +=
                before > 0 ? 9 : 6; /* each row sees itself and two before it, if they are there */
        }
        ck_assert_int_eq(ra_scale_predict(&scale, &c, &mask, &m, RA_SCALE_RING, NULL, error),
                         RA_OK);
        ck_assert_double_eq(scale.forward.multiply_adds, pairs * 4 * 2 * 8);
        double took = (double)clock() / CLOCKS_PER_SEC - began;
        ck_assert_msg(took < 20, "%g s", took);
    }
    free(slices);
}

/* ---- Time. */

static double simulate(const struct ra_config *c, const struct ra_scale_machine *m, bool backward,
                       struct ra_scale_rank *ranks)
{
    double seconds = NAN;
    ck_assert_int_eq(ra_scale_simulate(&seconds, c, NULL, m, backward, ranks, error), RA_OK);
    return seconds;
}

static struct ra_scale predict(const struct ra_config *c, const struct ra_scale_machine *m,
                               enum ra_scale_method method)
{
    struct ra_scale scale;
    ck_assert_msg(ra_scale_predict(&scale, c, NULL, m, method, NULL, error) == RA_OK, "%s", error);
    return scale;
}

static void assert_near(double a, double b, double part)
{
    ck_assert_msg(fabs(a - b) <= part * fabs(b), "%.17g, not %.17g", a, b);
}

CASE(time, 300);

/* Equal ranks: no mask, lengths that divide. Formula and simulation are the same, whether messages
 * are hidden or not, within a host or not. */
TEST(equal_ranks)
{
    for (int P = 1; P <= 9; P++)
        for (int k = 0; k < 12; k++) {
            struct ra_scale_machine m = machine_of(pow(4, k / 2 - 3));
            struct ra_config c = config_of(64 * P, 64 * P, P, layouts[k % 3]);
            m.ranks_per_host = k % 2 == 0 ? 0 : P % 3 == 0 ? 3 : 1;
            m.overhead = 1e-6;
            m.memory_bandwidth = 1e9;
            struct ra_scale scale = predict(&c, &m, RA_SCALE_RING);
            assert_near(simulate(&c, &m, false, NULL), scale.forward.seconds, 1e-12);
            assert_near(simulate(&c, &m, true, NULL), scale.backward.seconds, 1e-12);

            /* The formula, written out. */
            double rows = 64, pairs = rows * rows * 4 * 8, hops = P;
            double keys = rows * 2 * 8 * 2 * 4, traffic = P > 1 ? 2 * rows * 4 * 8 * 4 : 0;
            double work = 2 * pairs / 3e9 + 1e-6 + traffic / 1e9, sent = 0;
            if (P > 1)
                sent = m.ranks_per_host == 0 ? 1e-7 + keys / m.bandwidth
                                             : 1e-6 + keys / m.host_bandwidth;
            if (P == 3 && m.ranks_per_host == 3)
                sent = 1e-7 + keys / m.bandwidth;
            assert_near(scale.forward.seconds, (hops - 1) * fmax(work, sent) + work, 1e-12);
        }
}

/* The formula lets ranks meet after each hop, which they need not: the simulation is never slower,
 * and never quicker than the rank that has most to do. */
TESTS(bounds, 0, 8)
{
    int P = _i + 1;
    for (int e = 0; e < SHAPES * WINDOWS * 3; e++)
        for (int k = 0; k < 4; k++) {
            struct ra_scale_machine m = machine_of(pow(8, k - 2));
            struct ra_config c = case_of(e % SHAPES, e / SHAPES % WINDOWS, P, e / SHAPES / WINDOWS);
            m.slow_rank = k % 2 ? P / 2 : -1;
            m.slow_rank_factor = 3;
            struct ra_scale scale = predict(&c, &m, RA_SCALE_RING);
            struct ra_scale_rank ranks[8];
            for (int pass = 0; pass < 2; pass++) {
                struct ra_scale_pass sum = pass == 0 ? scale.forward : scale.backward;
                double seconds = simulate(&c, &m, pass == 1, ranks);
                ck_assert_double_le(seconds, sum.seconds * (1 + 1e-12));
                ck_assert_double_ge(seconds, sum.busiest * (1 - 1e-12));
                assert_near(sum.work + sum.waiting, sum.seconds, 1e-12);
                for (int rank = 0; rank < P; rank++)
                    assert_near(ranks[rank].work + ranks[rank].waiting, ranks[rank].end, 1e-9);
            }
        }
}

/* One slow rank slows all to its pace, wherever it is; contiguous, a slow first rank costs nothing:
 * it has less to do. One slow link is felt when its messages are no longer hidden. */
TEST(slow_ones)
{
    struct ra_scale_rank ranks[8];
    struct ra_scale_machine m = machine_of(0.01), slow = m;
    struct ra_config c = config_of(4096, 4096, 8, RA_STRIPED);
    double usual = simulate(&c, &m, false, NULL);
    slow.slow_rank = 3;
    slow.slow_rank_factor = 2;
    assert_near(simulate(&c, &slow, false, ranks), 2 * usual, 0.01);
    /* The right neighbour waits for keys, the left one until it can hand on its own. */
    ck_assert_double_gt(ranks[4].waiting, 0.4 * usual);
    ck_assert_double_gt(ranks[2].waiting, 0.4 * usual);
    ck_assert_double_lt(ranks[3].waiting, 0.01 * usual);
    c.layout = RA_CONTIGUOUS;
    c.causal = true;
    usual = simulate(&c, &m, false, NULL);
    slow.slow_rank = 0;
    assert_near(simulate(&c, &slow, false, NULL), usual, 0.1);
    slow.slow_rank = 7;
    ck_assert_double_gt(simulate(&c, &slow, false, NULL), 1.9 * usual);

    m = machine_of(0.5);
    c.causal = false;
    usual = simulate(&c, &m, false, NULL);
    slow = m;
    slow.slow_link = 5;
    slow.slow_link_factor = 1.5;
    assert_near(simulate(&c, &slow, false, NULL), usual, 1e-12);
    slow.slow_link_factor = 1000;
    ck_assert_double_gt(simulate(&c, &slow, false, NULL), 3 * usual);
}

/* More of anything good takes no longer, and more of what is sent no less. */
TEST(monotonic)
{
    for (int method = RA_SCALE_RING; method <= RA_SCALE_HYBRID; method++)
        for (int layout = 0; layout < 3; layout++) {
            struct ra_config c = config_of(4096, 4096, 16, layouts[layout]), other;
            bool exchanges = method >= RA_SCALE_EXCHANGED_HEADS;
            c.heads = exchanges ? 16 : 4;
            other = c;
            struct ra_scale_machine m = machine_of(4), better = m;
            c.causal = other.causal = true;
            m.ranks_per_host = better.ranks_per_host = 4;
            double forward = predict(&c, &m, method).forward.seconds;
            double backward = predict(&c, &m, method).backward.seconds;
            double *good[] = {&better.forward_rate, &better.backward_rate, &better.bandwidth,
                              &better.host_bandwidth};
            for (int g = 0; g < 4; g++) {
                better = m;
                *good[g] *= 2;
                ck_assert_double_le(predict(&c, &better, method).forward.seconds, forward);
                ck_assert_double_le(predict(&c, &better, method).backward.seconds, backward);
            }
            other.key_heads = 1;
            struct ra_scale fewer = predict(&other, &m, method), usual = predict(&c, &m, method);
            ck_assert_double_le(fewer.forward.seconds, forward);
            if (!exchanges) { /* queries travel, too, and groups change with key heads */
                ck_assert_double_eq(2 * fewer.forward.inside_bytes, usual.forward.inside_bytes);
                ck_assert_double_eq(2 * fewer.backward.host_bytes, usual.backward.host_bytes);
            }
            other = c;
            other.type = RA_BFLOAT16;
            double narrow = predict(&other, &m, method).forward.inside_bytes;
            ck_assert(exchanges ? narrow < usual.forward.inside_bytes
                                : 2 * narrow == usual.forward.inside_bytes);
            other.queries = other.keys = 8192;
            ck_assert_double_ge(predict(&other, &m, method).backward.seconds, backward);
        }
}

/* On one host the double ring is the ring; between hosts it hides what the ring cannot, as each
 * rank sends to the next host once a round. The all-gather sends as much, and hides none of it. */
TEST(methods)
{
    struct ra_scale_machine m = machine_of(1);
    struct ra_config c = config_of(1024, 1024, 16, RA_STRIPED);
    struct ra_scale ring = predict(&c, &m, RA_SCALE_RING);
    struct ra_scale twice = predict(&c, &m, RA_SCALE_DOUBLE_RING);
    struct ra_scale gather = predict(&c, &m, RA_SCALE_GATHERED_KEYS);
    assert_near(twice.forward.seconds, ring.forward.seconds, 1e-12);
    assert_near(twice.backward.seconds, ring.backward.seconds, 1e-12);
    assert_near(twice.backward.inside_bytes, ring.backward.inside_bytes, 1e-12);
    assert_near(gather.forward.inside_bytes, ring.forward.inside_bytes, 1e-12);
    assert_near(gather.forward.seconds, ring.forward.work + gather.forward.tail, 1e-12);
    ck_assert_int_eq(twice.plan_bytes, ring.plan_bytes);
    ck_assert_int_gt(gather.plan_bytes, ring.plan_bytes);

    m = machine_of(0.3);
    m.ranks_per_host = 4;
    ring = predict(&c, &m, RA_SCALE_RING);
    twice = predict(&c, &m, RA_SCALE_DOUBLE_RING);
    ck_assert_double_gt(ring.forward.waiting, 0.2 * ring.forward.work);
    ck_assert_double_lt(twice.forward.waiting, 0.01 * twice.forward.work);
    ck_assert_double_eq(ring.forward.host_bytes, 15 * 64 * 2 * 8 * 2 * 4);
    ck_assert_double_eq(twice.forward.host_bytes, 3 * 64 * 2 * 8 * 2 * 4);
    ck_assert_double_eq(twice.forward.inside_bytes, 12 * 64 * 2 * 8 * 2 * 4);
    ck_assert_double_eq(twice.backward.host_bytes, (3 + 4) * 64 * 2 * 8 * 2 * 4);
    ck_assert_double_eq(twice.backward.inside_bytes, (12 + 16) * 64 * 2 * 8 * 2 * 4);
}

/* A config of this method; false: its group does not fit. */
static bool use_method(struct ra_config *c, enum ra_scale_method method, int group)
{
    static const enum ra_method planned[] = {[RA_SCALE_RING] = RA_RING,
                                             [RA_SCALE_GATHERED_KEYS] = RA_GATHERED_KEYS,
                                             [RA_SCALE_EXCHANGED_HEADS] = RA_EXCHANGED_HEADS,
                                             [RA_SCALE_HYBRID] = RA_HYBRID};
    c->method = planned[method];
    c->group = method == RA_SCALE_HYBRID ? group : 0;
    int U = method == RA_SCALE_HYBRID            ? group
            : method == RA_SCALE_EXCHANGED_HEADS ? c->ring_size
                                                 : 1;
    return method != RA_SCALE_DOUBLE_RING && U <= c->heads && c->ring_size % U == 0;
}

/* What is predicted of a method is what its plan says of all its hops and ranks, to the byte:
 * multiply-adds, what the rank that sends most sends, hops, and the memory of the largest rank. */
static void compare_with_plan(const struct ra_config *c, const struct ra_scale_machine *m,
                              const struct ra_scale *scale)
{
    struct ra_plan *plan;
    ck_assert_msg(ra_plan_create(&plan, c, NULL, error) == RA_OK, "%s", error);
    int64_t memory = 0;
    ck_assert_int_eq(scale->hops, c->method == RA_GATHERED_KEYS ? 1 : ra_plan_hops(plan));
    for (int pass = 0; pass < 2; pass++) {
        const struct ra_scale_pass *sum = pass == 0 ? &scale->forward : &scale->backward;
        double all = 0, most = 0;
        for (int rank = 0; rank < c->ring_size; rank++) {
            double bytes = 0;
            for (int step = 0; step < ra_plan_hops(plan); step++) {
                struct ra_hop hop;
                ck_assert_int_eq(ra_plan_hop(plan, rank, step, pass == 1, &hop), RA_OK);
                all += (double)hop.multiply_adds;
                bytes += (double)hop.bytes;
            }
            most = fmax(most, bytes);
            memory = ra_max(memory, ra_plan_bytes_of(plan, rank));
        }
        ck_assert_double_eq(sum->multiply_adds, all);
        if (m->ranks_per_host == 0)
            ck_assert_double_eq(sum->inside_bytes, most);
        else if (m->ranks_per_host == 1)
            ck_assert_double_eq(sum->host_bytes, most);
        else
            ck_assert_double_ge(sum->inside_bytes + sum->host_bytes, most);
    }
    ck_assert_int_eq(scale->plan_bytes, memory);
    ra_plan_destroy(plan);
}

CASE(counts, 300);

/* Rings, windows, few and uneven heads, 16 bits, values of another width, and a mask of keys. */
TESTS(every_method, 0, 8)
{
    static const int64_t heads[][2] = {{8, 2}, {6, 6}, {7, 1}, {12, 4}};
    int P = _i + 1, predicted = 0;
    for (int e = 0; e < SHAPES * WINDOWS * 3; e++)
        for (int method = RA_SCALE_RING; method <= RA_SCALE_HYBRID; method++)
            for (int U = 1; U <= (method == RA_SCALE_HYBRID ? P : 1); U++) {
                struct ra_config c =
                    case_of(e % SHAPES, e / SHAPES % WINDOWS, P, e / SHAPES / WINDOWS);
                struct ra_scale_machine m = machine_of(1);
                struct ra_scale scale;
                c.heads = heads[e % 4][0];
                c.key_heads = heads[e % 4][1];
                c.dim_value = e % 3 ? 0 : 5;
                c.has_mask = e % 5 == 0;
                m.ranks_per_host = e % 7 == 0 ? 1 : e % 7 == 1 && P % 2 == 0 ? 2 : 0;
                m.memory_bandwidth = e % 2 ? 1e9 : 0;
                if (!use_method(&c, method, U))
                    continue;
                struct ra_config other = c;
                other.method = RA_RING; /* the argument is the method */
                scale = predict(&other, &m, method);
                compare_with_plan(&c, &m, &scale);
                predicted++;
            }
    ck_assert_int_ge(predicted, SHAPES * WINDOWS * 3 * 2);
}

CASE(time, 300);

/* The seconds of each method by hand: 4 ranks of 64 rows, no mask, 4 heads on 2. */
TEST(methods_by_hand)
{
    struct ra_scale_machine m = machine_of(1);
    struct ra_config c = config_of(256, 256, 4, RA_CONTIGUOUS);
    double n = 64, keys = n * 2 * 8 * 2 * 4, queries = n * 4 * 8 * 4, lse = n * 4 * 4;
    double work = 2 * 4 * 8 * 256 * n / m.forward_rate;
    double back = 5 * 4 * 8 * 256 * n / m.backward_rate;

    /* Three messages of keys, one after the other, and then all work; back the same, and the
     * gradients after it. */
    struct ra_scale gather = predict(&c, &m, RA_SCALE_GATHERED_KEYS);
    double gathered = 3 * (m.latency + keys / m.bandwidth);
    assert_near(gather.forward.seconds, work + gathered, 1e-12);
    assert_near(gather.forward.tail, gathered, 1e-12);
    assert_near(gather.backward.seconds, back + 2 * gathered, 1e-12);

    /* A quarter of q to each of three, and half of k and v, as two ranks share each key head. Then
     * all rows of one head; then a quarter of o and lse back to each of three. */
    struct ra_scale exchange = predict(&c, &m, RA_SCALE_EXCHANGED_HEADS);
    double in = 3 * (m.latency + (queries / 4 + keys / 2) / m.bandwidth);
    double out = 3 * (m.latency + (queries + lse) / 4 / m.bandwidth);
    assert_near(exchange.forward.seconds, work + in + out, 1e-12);
    assert_near(exchange.forward.tail, in + out, 1e-12);
    in = 3 * (m.latency + (3 * queries / 4 + keys / 2 + 2 * lse / 4) / m.bandwidth);
    out = 3 * (m.latency + (queries / 4 + keys / 2) / m.bandwidth);
    assert_near(exchange.backward.seconds, back + in + out, 1e-12);

    /* Copies in and out of messages, also of what a rank keeps: each is read and written. */
    m.memory_bandwidth = 1e9;
    struct ra_scale copies = predict(&c, &m, RA_SCALE_EXCHANGED_HEADS);
    double copied = 2 * 2 * (2 * queries + 2 * keys + lse) / m.memory_bandwidth;
    assert_near(copies.forward.seconds - exchange.forward.seconds, copied, 1e-9);
    m.memory_bandwidth = 0;

    /* Groups of two, on two hosts: half of the heads of all rows of a group, one key head; two hops
     * of the ring of groups, the first of which sends that head's keys to the other host. */
    m.ranks_per_host = 2;
    c.group = 2;
    struct ra_scale_hop hops[8];
    struct ra_scale hybrid;
    ck_assert_int_eq(ra_scale_predict(&hybrid, &c, NULL, &m, RA_SCALE_HYBRID, hops, error), RA_OK);
    in = m.latency + (queries / 2 + keys / 2) / m.bandwidth;
    out = m.latency + (queries + lse) / 2 / m.bandwidth;
    double sent = m.host_latency + keys / m.host_bandwidth;
    assert_near(hybrid.forward.seconds, fmax(work / 2, sent) + work / 2 + in + out, 1e-12);
    assert_near(hybrid.forward.host_bytes, keys, 1e-12);
    assert_near(hybrid.forward.inside_bytes, queries / 2 + keys / 2 + (queries + lse) / 2, 1e-12);
    ck_assert_int_eq(hybrid.hops, 2);
    ck_assert_int_eq(hops[1].distance, 2);
    assert_near(hops[0].messages, sent, 1e-12);
}

/* The choice is the method whose prediction is fastest of those that fit, and config gets it; all
 * methods are looked at that so many ranks have. */
TEST(choice)
{
    bool chosen[RA_SCALE_HYBRID + 1] = {false};
    for (int e = 0; e < 600; e++) {
        static const int ranks[] = {1, 2, 4, 6, 8, 12};
        static const int64_t heads[][2] = {{8, 2}, {6, 6}, {7, 1}, {16, 4}};
        int P = ranks[e % 6], options = 0;
        struct ra_scale_machine m = machine_of(e % 4 == 0 ? 1e-3 : e % 4 == 1 ? 0.1 : 3);
        struct ra_config c = config_of(64 << e % 5, 64 << e % 5, P, layouts[e % 3]), own;
        c.heads = heads[e % 4][0];
        c.key_heads = heads[e % 4][1];
        c.causal = e % 7 != 0;
        c.lookback = c.causal && e % 5 == 0 ? 3 : RA_NO_LOOKBACK;
        c.method = RA_AUTO_METHOD; /* it does not matter */
        m.ranks_per_host = e / 6 % 3 == 0 && P % 2 == 0 ? 2 : e / 6 % 3 == 1 ? 3 : 0;
        m.memory_bandwidth = e % 2 ? 1e9 : 0;
        m.memory = e % 11 == 0 ? 1 << 18 : 0;
        own = c;
        struct ra_scale_choices all;
        ck_assert_int_eq(ra_scale_choose(&all, &own, NULL, &m, NULL, error), RA_OK);
        double best = (double)INFINITY;
        for (int method = RA_SCALE_RING; method <= RA_SCALE_HYBRID; method++)
            for (int U = method == RA_SCALE_HYBRID ? 2 : P; U <= P; U++) {
                bool doubles =
                    m.ranks_per_host > 1 && m.ranks_per_host < P && P % m.ranks_per_host == 0;
                if (P % U != 0 || (method == RA_SCALE_DOUBLE_RING && !doubles) ||
                    (method == RA_SCALE_HYBRID && (U == P || U > c.heads)))
                    continue;
                const struct ra_scale_choice *one = &all.list[options++];
                ck_assert_int_eq(one->method, method);
                ck_assert_int_eq(one->possible, method != RA_SCALE_EXCHANGED_HEADS || P <= c.heads);
                if (!one->possible)
                    continue;
                struct ra_config asked = c;
                asked.method = RA_HYBRID;
                asked.group = method == RA_SCALE_HYBRID ? U : 0;
                struct ra_scale scale = predict(&asked, &m, method);
                double seconds = scale.forward.seconds + scale.backward.seconds;
                bool fits =
                    m.memory == 0 || (double)(scale.plan_bytes + scale.array_bytes) <= m.memory;
                ck_assert_int_eq(one->fits, fits);
                best = fits ? fmin(best, seconds) : best;
            }
        ck_assert_int_eq(all.count, options);
        ck_assert_int_eq(all.best < 0, isinf(best));
        ck_assert_int_eq(own.method == RA_AUTO_METHOD, isinf(best));
        if (all.best < 0)
            continue;
        const struct ra_scale_choice *one = &all.list[all.best];
        ck_assert(one->scale.forward.seconds + one->scale.backward.seconds == best);
        ck_assert_int_eq(own.method, one->config_method);
        ck_assert_int_eq(own.group, one->method == RA_SCALE_HYBRID ? one->group : 0);
        ck_assert_int_eq(own.inner, one->method == RA_SCALE_DOUBLE_RING ? m.ranks_per_host : 0);
        own.ring_size = P;
        struct ra_plan *plan;
        ck_assert_msg(ra_plan_create(&plan, &own, NULL, error) == RA_OK, "%s", error);
        ra_plan_destroy(plan);
        chosen[one->method] = true;
    }
    for (int method = RA_SCALE_RING; method <= RA_SCALE_HYBRID; method++)
        ck_assert_msg(chosen[method], "method %d is never chosen", method);
    struct ra_config c = config_of(64, 64, 4, RA_STRIPED);
    struct ra_scale_machine m = machine_of(1);
    struct ra_scale_choices all;
    ck_assert_int_eq(ra_scale_choose(NULL, &c, NULL, &m, NULL, error), RA_INVALID);
    ck_assert_str_eq(error, "choices is NULL");
    ck_assert_int_eq(ra_scale_choose(&all, &c, NULL, NULL, NULL, error), RA_INVALID);
    ck_assert_str_eq(error, "machine is NULL");
    ck_assert_int_eq(ra_scale_choose(&all, NULL, NULL, &m, NULL, error), RA_INVALID);

    /* So many ranks have more divisors than the list has room. */
    struct ra_config wide = config_of(720720, 720720, 720720, RA_STRIPED);
    wide.ring_size = 720720;
    all.count = -1;
    ck_assert_int_eq(ra_scale_choose(&all, &wide, NULL, &m, NULL, error), RA_INVALID);
    ck_assert_int_eq(all.count, -1);
    ck_assert_str_eq(error, "config.ring_size = 720720: give at most 65536");
    m.bandwidth = 0;
    ck_assert_int_eq(ra_scale_choose(&all, &c, NULL, &m, NULL, NULL), RA_INVALID);
}

/* Three heads on two ranks: the one with two is the busiest, and it sets the pace. */
TEST(uneven_heads)
{
    struct ra_scale_machine m = machine_of(1e-9);
    struct ra_config c = config_of(64, 64, 2, RA_CONTIGUOUS);
    m.latency = 0;
    c.heads = c.key_heads = 3;
    struct ra_scale scale = predict(&c, &m, RA_SCALE_EXCHANGED_HEADS);
    double head = 2. * 8 * 64 * 64 / m.forward_rate;
    assert_near(scale.forward.busiest, 2 * head, 1e-12);
    assert_near(scale.forward.work, 1.5 * head, 1e-12);
    assert_near(scale.forward.seconds, 2 * head, 1e-6);
}

CASE(counts, 300);

/* Thousands of ranks and a billion tokens: every pair is counted once. */
TEST(thousands)
{
    struct ra_scale_machine m = machine_of(1);
    for (int layout = 0; layout < 3; layout++) {
        struct ra_config c = config_of(1000000007, 1000000007, 1000, layouts[layout]);
        c.causal = true;
        struct ra_scale scale = predict(&c, &m, RA_SCALE_RING);
        double N = 1000000007;
        assert_near(scale.forward.multiply_adds, 2 * 4 * 8 * N * (N + 1) / 2, 1e-9);
        assert_near(scale.backward.multiply_adds, 5 * 4 * 8 * N * (N + 1) / 2, 1e-9);
    }
}

CASE(time, 300);

/* By hop: the sum is the pass. */
TEST(by_hop)
{
    struct ra_scale_machine m = machine_of(2);
    struct ra_config c = config_of(512, 512, 8, RA_ZIGZAG);
    c.causal = true;
    c.lookback = 20;
    c.heads = 8;
    m.ranks_per_host = 4;
    for (int method = RA_SCALE_RING; method <= RA_SCALE_HYBRID; method++) {
        struct ra_scale_hop hop[16];
        struct ra_scale scale;
        ck_assert_int_eq(ra_scale_predict(&scale, &c, NULL, &m, method, hop, error), RA_OK);
        double sum[2] = {scale.forward.tail, scale.backward.tail};
        for (int pass = 0; pass < 2; pass++)
            for (int step = 0; step < scale.hops; step++)
                sum[pass] += hop[8 * pass + step].seconds;
        assert_near(sum[0], scale.forward.seconds, 1e-12);
        assert_near(sum[1], scale.backward.seconds, 1e-12);
    }
}

/* ---- Decoding and memory. */

CASE(rest, 300);

TEST(decoding)
{
    struct ra_scale_machine m = machine_of(1);
    struct ra_config c = config_of(1, 6000, 24, RA_STRIPED);
    struct ra_scale_decoding d;
    c.causal = true;
    ck_assert_int_eq(ra_scale_decode(&d, &c, &m, error), RA_INVALID);
    ck_assert_str_eq(
        error, "machine.memory_bandwidth is missing: give the bytes a second of a rank's memory");
    m.memory_bandwidth = 1e9;
    m.ranks_per_host = 8;
    ck_assert_int_eq(ra_scale_decode(&d, &c, &m, error), RA_OK);
    double cache = 250 * 2 * 8 * 2 * 4, record = 4 * 10 * 4;
    ck_assert_int_eq(d.rounds, 3 + 2);
    ck_assert_double_eq(d.cache_bytes, cache);
    ck_assert_double_eq(d.message_bytes, record);
    assert_near(d.seconds, cache / 1e9 + 3 * (1e-7 + record / 1e8) + 2 * (1e-6 + record / 2e7),
                1e-12);
}

static struct ra_scale_model model_of(void)
{
    struct ra_scale_model model = RA_SCALE_MODEL_INIT;
    model.dim = 32;
    model.depth = 3;
    model.hidden = 128;
    model.vocabulary = 256;
    return model;
}

static double bytes_of(const struct ra_config *c, const struct ra_scale_model *model)
{
    struct ra_scale_memory memory;
    ck_assert_msg(ra_scale_memory_of(&memory, c, NULL, model, error) == RA_OK, "%s", error);
    return memory.weights + memory.activations + memory.attention;
}

/* The longest that fits does, and a longer one does not. */
TEST(longest)
{
    struct ra_scale_machine m = machine_of(1);
    struct ra_scale_model model = model_of(), again = model;
    struct ra_config c = config_of(0, RA_SAME, 8, RA_STRIPED);
    int64_t tokens, more;
    ck_assert_int_eq(ra_scale_fits(&tokens, &c, &model, &m, error), RA_INVALID);
    ck_assert_str_eq(error, "machine.memory is missing: give the bytes of memory of a rank");
    m.memory = 1e9;
    ck_assert_int_eq(ra_scale_fits(&tokens, &c, &model, &m, error), RA_OK);
    ck_assert_int_gt(tokens, 0);
    ck_assert_int_eq(tokens % 16, 0);
    c.queries = tokens;
    ck_assert_double_le(bytes_of(&c, &model), 1e9);
    c.queries = tokens + 16;
    ck_assert_double_gt(bytes_of(&c, &model), 1e9);

    again.recompute = true;
    ck_assert_int_eq(ra_scale_fits(&more, &c, &again, &m, error), RA_OK);
    ck_assert_int_gt(more, tokens);
    c.ring_size = 16;
    ck_assert_int_eq(ra_scale_fits(&more, &c, &model, &m, error), RA_OK);
    ck_assert_int_gt(more, tokens * 19 / 10);
    m.memory = 10;
    ck_assert_int_eq(ra_scale_fits(&more, &c, &model, &m, error), RA_OK);
    ck_assert_int_eq(more, 0);
}

/* Weights and activations as chapter 10 has them, by hand: one layer, one rank. */
TEST(training_memory)
{
    struct ra_scale_model model = model_of();
    struct ra_config c = config_of(100, 100, 1, RA_CONTIGUOUS); /* query 32, key 16 */
    struct ra_scale_memory got;
    model.depth = 1;
    ck_assert_int_eq(ra_scale_memory_of(&got, &c, NULL, &model, error), RA_OK);
    double weights = 32 * (32 + 16 + 16 + 32 + 128 + 128) + 2 * 32 * 256;
    ck_assert_double_eq(got.weights, 16 * weights);

    /* x, q, k, v, o, mid, up, lse; then the last x, normal, gradient, wide. */
    double floats = 32 + 32 + 16 + 16 + 32 + 32 + 128 + 4 + 32 + 32 + 32 + 128;
    ck_assert_double_eq(got.activations, 100 * 4 * floats);
}

/* As 10-transformer itself says, "bytes of a rank", within 2 %: mpirun -n 2 build/10-transformer
 * bench --tokens 4096 --layout striped --threads 1, without --recompute and with it. */
TEST(recorded_memory)
{
    static const double bytes[] = {182366208, 125644800};
    struct ra_scale_model model = RA_SCALE_MODEL_INIT;
    struct ra_config c = config_of(4096, 4096, 2, RA_STRIPED);
    c.key_heads = c.heads;
    c.dim = 64;
    model.dim = model.vocabulary = 256;
    model.depth = 4;
    model.hidden = 1024;
    model.replicated = true;
    for (int recompute = 0; recompute < 2; recompute++) {
        model.recompute = recompute == 1;
        assert_near(bytes_of(&c, &model), bytes[recompute], 0.02);
    }
}

/* ---- Misuse. */

TEST(misuse)
{
    struct ra_config c = config_of(64, 64, 4, RA_STRIPED);
    struct ra_scale scale;
    struct ra_scale_machine m;
    double seconds;
    int64_t tokens;
    static const struct {
        size_t offset;
        double value;
        const char *text;
    } wrong[] = {
#define AT(field) offsetof(struct ra_scale_machine, field)
        {AT(forward_rate), 0,
         "machine.forward_rate is missing: give the multiply-adds a second of a rank"},
        {AT(backward_rate), 0,
         "machine.backward_rate is missing: give the multiply-adds a second of a rank"},
        {AT(bandwidth), 0,
         "machine.bandwidth is missing: give the bytes a second between ranks of a host"},
        {AT(host_bandwidth), 0,
         "machine.host_bandwidth is missing: give the bytes a second of a rank between hosts"},
        {AT(forward_rate), -1,
         "machine.forward_rate = -1: give the multiply-adds a second of a rank, from 1e-30 to "
         "1e+30"},
        {AT(bandwidth), NAN,
         "machine.bandwidth = nan: give the bytes a second between ranks of a host, from 1e-30 to "
         "1e+30"},
        {AT(latency), -1, "machine.latency = -1: give 0, or 1e-30 to 1e+30"},
        {AT(slow_link_factor), 0,
         "machine.slow_link_factor is missing: give 1 for messages that are as fast as others"}};
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
        m = machine_of(1);
        m.ranks_per_host = 2;
        memcpy((char *)&m + wrong[w].offset, &wrong[w].value, sizeof(double));
        ck_assert_int_eq(ra_scale_predict(&scale, &c, NULL, &m, RA_SCALE_RING, NULL, error),
                         RA_INVALID);
        ck_assert_str_eq(error, wrong[w].text);
        ck_assert_int_eq(ra_scale_simulate(&seconds, &c, NULL, &m, false, NULL, error), RA_INVALID);
        ck_assert_str_eq(error, wrong[w].text);
    }
    m = machine_of(1);
    ck_assert_int_eq(ra_scale_predict(NULL, &c, NULL, &m, RA_SCALE_RING, NULL, NULL), RA_INVALID);
    ck_assert_int_eq(ra_scale_predict(&scale, NULL, NULL, &m, RA_SCALE_RING, NULL, NULL),
                     RA_INVALID);
    ck_assert_int_eq(ra_scale_predict(&scale, &c, NULL, NULL, RA_SCALE_RING, NULL, NULL),
                     RA_INVALID);
    ck_assert_int_eq(ra_scale_predict(&scale, &c, NULL, &m, 5, NULL, NULL), RA_INVALID);
    ck_assert_int_eq(ra_scale_simulate(NULL, &c, NULL, &m, false, NULL, NULL), RA_INVALID);
    m.ranks_per_host = 3;
    ck_assert_int_eq(ra_scale_predict(&scale, &c, NULL, &m, RA_SCALE_DOUBLE_RING, NULL, error),
                     RA_INVALID);
    ck_assert_str_eq(error, "machine.ranks_per_host = 3 does not divide the 4 ranks");
    m.size = 8;
    ck_assert_int_eq(ra_scale_predict(&scale, &c, NULL, &m, RA_SCALE_RING, NULL, error),
                     RA_INVALID);
    m = machine_of(1);
    m.slow_rank = 4;
    ck_assert_int_eq(ra_scale_predict(&scale, &c, NULL, &m, RA_SCALE_RING, NULL, error),
                     RA_INVALID);
    c.bucket = 8;
    ck_assert_int_eq(ra_scale_predict(&scale, &c, NULL, &m, RA_SCALE_RING, NULL, error),
                     RA_INVALID);
    c.bucket = 0;
    c.dim = 0;
    ck_assert_int_eq(ra_scale_predict(&scale, &c, NULL, &m, RA_SCALE_RING, NULL, error),
                     RA_INVALID);
    ck_assert_ptr_nonnull(strstr(error, "dim"));
    c.dim = 8;
    m = machine_of(1);
    c.method = RA_GATHERED_KEYS;
    ck_assert_int_eq(ra_scale_simulate(&seconds, &c, NULL, &m, false, NULL, error), RA_INVALID);
    ck_assert_str_eq(error, "config.method = RA_GATHERED_KEYS: give RA_RING, which is simulated");
    c.method = RA_RING;
    c.heads = 2;
    ck_assert_int_eq(ra_scale_predict(&scale, &c, NULL, &m, RA_SCALE_EXCHANGED_HEADS, NULL, error),
                     RA_INVALID);
    ck_assert_str_eq(error, "config.method = RA_EXCHANGED_HEADS: 4 ranks cannot share "
                            "config.heads = 2: give RA_HYBRID with a group of at most as many");
    c.group = 3; /* the argument is the method */
    ck_assert_int_eq(ra_scale_predict(&scale, &c, NULL, &m, RA_SCALE_HYBRID, NULL, error),
                     RA_INVALID);
    ck_assert_str_eq(error, "config.group = 3: give a number that divides the 4 ranks");
    c.group = 0;
    c.heads = 4;
    c.forward_only = true;
    ck_assert_int_eq(ra_scale_simulate(&seconds, &c, NULL, &m, true, NULL, error), RA_INVALID);
    struct ra_scale_model model = RA_SCALE_MODEL_INIT;
    m = machine_of(1);
    m.memory = 1e9;
    ck_assert_int_eq(ra_scale_fits(&tokens, &c, &model, &m, error), RA_INVALID);
    ck_assert_str_eq(error, "model.dim is missing: give at least 1");
}

CASE(counts, 300);

/* Two fields of a call that is right become extreme: it answers in finite numbers of at least 0, or
 * names a field. */
TEST(extreme_numbers)
{
    static const double reals[] = {0,    -1,    -0.0,   5e-324,   1e-310,    1e-30,
                                   1e30, 1e300, 0x1p63, INFINITY, -INFINITY, NAN};
    static const int64_t wholes[] = {
        0, 1, 7, -1, -2, (int64_t)1 << 40, ((int64_t)1 << 50) + 1, INT64_MAX, INT64_MIN, 1 << 20};
    static const int ints[] = {0, 1, 3, 64, -1, -2, INT_MAX, INT_MIN, 65536};
    enum { FIELDS = 29 };
    for (unsigned i = 0; i < 5000; i++) {
        struct ra_config c = config_of(1000, RA_SAME, 4, (enum ra_layout_kind)(i % 3));
        struct ra_scale_machine m = machine_of(1);
        struct ra_scale_model o = RA_SCALE_MODEL_INIT;
        c.causal = i / 3 % 2;
        m.memory = m.memory_bandwidth = 1e9;
        m.ranks_per_host = 2;
        o.dim = o.hidden = o.vocabulary = 64;
        o.depth = 2;
        int64_t *whole[] = {&c.batch, &c.queries,  &c.keys,      &c.heads,        &c.key_heads,
                            &c.dim,   &c.lookback, &c.tile_keys, &m.tile_queries, &m.tile_keys,
                            &o.dim,   &o.depth,    &o.hidden,    &o.vocabulary};
        double *real[] = {&m.forward_rate,     &m.backward_rate,    &m.memory,
                          &m.memory_bandwidth, &m.overhead,         &m.bandwidth,
                          &m.latency,          &m.host_bandwidth,   &m.host_latency,
                          &m.slow_rank_factor, &m.slow_link_factor, &o.weight_bytes};
        int *other[] = {&m.ranks_per_host, &m.slow_rank, &m.slow_link};
        enum { WHOLES = sizeof whole / sizeof *whole, REALS = sizeof real / sizeof *real };
        for (unsigned n = i * 2654435761u, k = 0; k < 2; k++, n = n / FIELDS * 40503u + i) {
            unsigned f = n % FIELDS, value = n / FIELDS;
            if (f < WHOLES)
                *whole[f] = wholes[value % (sizeof wholes / sizeof *wholes)];
            else if (f < WHOLES + REALS)
                *real[f - WHOLES] = reals[value % (sizeof reals / sizeof *reals)];
            else
                *other[f - WHOLES - REALS] = ints[value % (sizeof ints / sizeof *ints)];
        }
        struct ra_scale s;
        struct ra_scale_decoding d;
        struct ra_scale_memory bytes;
        double seconds = 0;
        int64_t tokens = 0;
        for (int f = 0; f < 5; f++) {
            enum ra_status status =
                f == 0   ? ra_scale_predict(&s, &c, NULL, &m, RA_SCALE_RING, NULL, error)
                : f == 1 ? ra_scale_simulate(&seconds, &c, NULL, &m, true, NULL, error)
                : f == 2 ? ra_scale_decode(&d, &c, &m, error)
                : f == 3 ? ra_scale_memory_of(&bytes, &c, NULL, &o, error)
                         : ra_scale_fits(&tokens, &c, &o, &m, error);
            double got[] = {f == 0 ? s.forward.seconds + s.backward.seconds + s.forward.waiting : 0,
                            f == 0 ? s.backward.multiply_adds + s.backward.host_bytes : 0,
                            f == 1 ? seconds : 0,
                            f == 2 ? d.seconds + d.message_bytes : 0,
                            f == 3 ? bytes.weights + bytes.activations + bytes.attention : 0,
                            f == 4 ? (double)tokens : 0};
            for (int g = 0; g < 6 && status == RA_OK; g++)
                ck_assert_msg(got[g] >= 0 && got[g] <= DBL_MAX, "call %u, %d: %g", i, f, got[g]);
            ck_assert_msg(status == RA_OK || strstr(error, "config") || strstr(error, "machine.") ||
                              strstr(error, "model."),
                          "%s", error);
        }
    }
}

/* ---- Presets. */

static const struct scale_preset *preset_of(const char *machine)
{
    for (int k = 1; scale_machines[k].word; k++)
        if (strcmp(scale_machines[k].word, machine) == 0)
            return &scale_machine_presets[k];
    ck_abort_msg("%s is no machine", machine);
    return NULL;
}

CASE(rest, 300);

/* One GPU that does what was measured takes as long as was measured: type, head size, mask and rows
 * are looked at. */
TEST(measured_rates)
{
    int lines = 0;
    for (const struct scale_rate *r = scale_rates; r->machine; r++, lines++) {
        struct ra_config c = config_of(r->rows, r->rows, 1, RA_CONTIGUOUS);
        struct ra_scale_machine m = RA_SCALE_MACHINE_INIT;
        double told[2];
        c.heads = c.key_heads = 32;
        c.dim = r->dim;
        c.causal = strcmp(r->mask, "causal") == 0;
        while (strcmp(ra_option_types[c.type].word, r->type) != 0)
            c.type++;
        m.tile_queries = 192;
        m.tile_keys = 128;
        ck_assert_str_eq(scale_take_rates(&m, told, preset_of(r->machine), &c), r->kernel);
        struct ra_scale scale = predict(&c, &m, RA_SCALE_RING);
        assert_near(told[0], r->forward, 1e-12);
        assert_near(told[1], r->backward, 1e-12);
        assert_near(2e-12 * scale.forward.multiply_adds / scale.forward.seconds, r->forward, 1e-9);
        assert_near(2e-12 * scale.backward.multiply_adds / scale.backward.seconds, r->backward,
                    1e-9);
    }
    ck_assert_int_ge(lines, 50);
}

/* A line that is cut short would be a rate of 0, and one with a comma too many another rate. */
TEST(wrong_lines_of_rates)
{
    static const struct {
        const char *numbers;
        bool good;
    } lines[] = {{"1024,150,177", true}, {"1024,150", false},      {"1024,150,", false},
                 {"1024,150,0", false},  {"1024,150,1,77", false}, {"-1024,150,177", false}};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char command[200];
        snprintf(command, sizeof command,
                 "printf 'names\nh100,k07,bfloat16,64,causal,%s\n' | "
                 "awk -f src/scale/rates.awk >/dev/null 2>&1",
                 lines[i].numbers);
        ck_assert_msg((system(command) == 0) == lines[i].good, "%s", lines[i].numbers);
    }
}

/* Between what was measured there is a line, beyond it the last; a head is padded to the next size;
 * and what nobody has measured is no rate. */
TEST(other_rates)
{
    struct ra_config c = config_of(16384, 16384, 1, RA_CONTIGUOUS);
    struct ra_scale_machine m;
    double at[3][2], told[2];
    c.type = RA_BFLOAT16;
    c.dim = 128;
    for (int k = 0; k < 3; k++) {
        m = machine_of(1);
        m.forward_rate = m.backward_rate = 0;
        c.queries = c.keys = 16384 << k;
        ck_assert_ptr_nonnull(scale_take_rates(&m, at[k], preset_of("h200"), &c));
    }
    assert_near(at[1][0], (at[0][0] + at[2][0]) / 2, 1e-12);
    c.queries = c.keys = 1 << 24;
    m.forward_rate = m.backward_rate = 0;
    ck_assert_ptr_nonnull(scale_take_rates(&m, told, preset_of("h200"), &c));
    assert_near(told[0], at[2][0], 1e-12);
    c.queries = c.keys = 16384;
    c.dim = 96;
    m.forward_rate = 0;
    m.backward_rate = 1e12;
    ck_assert_ptr_nonnull(scale_take_rates(&m, told, preset_of("h200"), &c));
    assert_near(told[0], 0.75 * at[0][0], 1e-12);
    assert_near(told[1], 2, 1e-12);
    ck_assert_double_eq(m.backward_rate, 1e12);
    c.dim = 257;
    ck_assert_ptr_null(scale_take_rates(&m, told, preset_of("h200"), &c));
}

/* Numbers as people write them, and what is none. */
TEST(numbers)
{
    static const struct {
        const char *text;
        char unit;
        double number;
    } good[] = {{"1e6", 0, 1e6},       {"1M", 0, 1e6},
                {"1Mi", 0, 1 << 20},   {"2^20", 0, 1 << 20},
                {"1.5k", 0, 1500},     {"64K", 0, 64000},
                {"80GB", 'B', 80e9},   {"80GiB", 'B', 80 * 0x1p30},
                {"141e9", 'B', 141e9}, {"400Gb/s", 'W', 50e9},
                {"50GB/s", 'W', 50e9}, {"25e9", 'W', 25e9},
                {"5us", 's', 5e-6},    {"5ms", 's', 5e-3},
                {"2s", 's', 2},        {"660TFLOP/s", 'F', 330e12},
                {"330T", 'F', 330e12}, {"0", 's', 0}};
    static const struct {
        const char *text;
        char unit;
    } wrong[] = {{"", 0},      {"M", 0},      {"1MM", 0},    {"1GB", 0},    {"1,000", 0},
                 {"2^", 0},    {"2^9999", 0}, {"1e999", 0},  {"nan", 0},    {"80Gb", 'B'},
                 {"5GB", 'W'}, {"5 us", 's'}, {"5Mus", 's'}, {"1B/s", 'F'}, {"1i", 0}};
    double number;
    for (size_t k = 0; k < sizeof good / sizeof *good; k++) {
        ck_assert_msg(scale_number(good[k].text, good[k].unit, &number), "%s", good[k].text);
        assert_near(number, good[k].number, 1e-12);
    }
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++)
        ck_assert_msg(!scale_number(wrong[k].text, wrong[k].unit, &number), "%s", wrong[k].text);
}

/* A link that asks before it sends a long message has three latencies, and its own bandwidth all
 * the same. */
TEST(asks_first)
{
    const double bytes[] = {4e6, 16e6}, times[] = {4e6 / 125e6 + 0.03, 16e6 / 125e6 + 0.03};
    const double quick[] = {4e6 / 1e10, 16e6 / 1e10}, late[] = {1, 1};
    double bandwidth, latency;
    ra_scale_line(bytes, times, 0.01, &bandwidth, &latency);
    assert_near(bandwidth, 125e6, 1e-9);
    assert_near(latency, 0.03, 1e-9);
    ra_scale_line(bytes, quick, 1e-6, &bandwidth, &latency);
    assert_near(bandwidth, 1e10, 1e-9);
    assert_near(latency, 1e-6, 1e-6);
    ra_scale_line(bytes, late, 1e-6, &bandwidth, &latency);
    ck_assert(bandwidth > 0 && isfinite(bandwidth) && latency > 0);
}

/* ---- What was measured: rings of H100s and H200s with the kernels of today. The presets know of
 * them the rates of one GPU alone (chapters/img/12-rates.csv), and the machine's numbers. */

/* Opens a file at its first row: behind lines with #, which say where and how it was measured, and
 * behind the names of the columns. */
static FILE *rows_of(const char *path, char *line, int size)
{
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    for (int c; (c = getc(file)) == '#';)
        while (c != '\n' && c != EOF)
            c = getc(file);
    ck_assert_ptr_nonnull(fgets(line, size, file));
    return file;
}

/* A line of chapters/img/12-gpus.csv, priced on a machine: 10^12 operations a second and GPU. */
struct recorded {
    char machine[8], layout[20], pass[20];
    int P, heads, key_heads;
    long rows;
    double alone, rate;
};

static struct ra_config config_of_recorded(const struct recorded *r)
{
    struct ra_config c = config_of(r->P * r->rows, RA_SAME, r->P, RA_CONTIGUOUS);
    c.heads = r->heads;
    c.key_heads = r->key_heads;
    c.dim = 128;
    c.type = RA_BFLOAT16;
    c.causal = true;
    c.layout = strcmp(r->layout, "striped") == 0  ? RA_STRIPED
               : strcmp(r->layout, "zigzag") == 0 ? RA_ZIGZAG
                                                  : RA_CONTIGUOUS;
    return c;
}

static void assert_recorded(const struct recorded *r, const struct ra_scale_machine *m, double part)
{
    struct ra_config c = config_of_recorded(r);
    struct ra_scale scale = predict(&c, m, RA_SCALE_RING);
    struct ra_scale_pass sum = strcmp(r->pass, "forward") == 0 ? scale.forward : scale.backward;
    double got = 2e-12 * sum.multiply_adds / r->P / sum.seconds;
    ck_assert_msg(fabs(got / r->rate - 1) <= part, "%s %s of %d, %ld rows, %s: %.1f, not %.1f",
                  r->machine, r->pass, r->P, r->rows, r->layout, got, r->rate);
}

TEST(recorded)
{
    char line[256];
    FILE *file = rows_of("chapters/img/12-gpus.csv", line, sizeof line);
    int lines = 0;
    struct recorded r;
    for (; fgets(line, sizeof line, file); lines++) {
        ck_assert_int_eq(sscanf(line, "%7[^,],%d,%d,%d,%ld,%19[a-z],%19[a-z],%lf,%lf", r.machine,
                                &r.P, &r.heads, &r.key_heads, &r.rows, r.layout, r.pass, &r.alone,
                                &r.rate),
                         9);
        struct ra_config c = config_of_recorded(&r);
        struct ra_scale_machine m = RA_SCALE_MACHINE_INIT;
        double told[2];
        m.tile_queries = m.tile_keys = 0;
        scale_take(&m, preset_of(r.machine));
        ck_assert_ptr_nonnull(scale_take_rates(&m, told, preset_of(r.machine), &c));
        assert_recorded(&r, &m, 0.0605);
    }
    fclose(file);
    ck_assert_int_eq(lines, 40);
}

/* Chapter 05's timeline of two processes. Rates are those of rank 0 at hop 0, contiguous; all else
 * is predicted: the forward, and the whole, which ends with the backward. */
TEST(recorded_ranks)
{
    double own[2] = {0, 0}, forward[2] = {0, 0}, whole[2] = {0, 0}, start, end;
    char line[256], layout[20], row[20], name[20];
    FILE *file = rows_of("chapters/img/05-trace.csv", line, sizeof line);
    int rank, hop;
    while (fgets(line, sizeof line, file)) {
        ck_assert_int_eq(sscanf(line, "%19[a-z],%d,%19[a-z],%19[a-z],%d,%lf,%lf", layout, &rank,
                                row, name, &hop, &start, &end),
                         7);
        int l = strcmp(layout, "striped") == 0, pass = strcmp(name, "backward") == 0;
        bool folds = pass || strcmp(name, "forward") == 0;
        if (folds && l == 0 && rank == 0 && hop == 0)
            own[pass] = (end - start) / 1e6;
        if (folds && pass == 0)
            forward[l] = fmax(forward[l], end / 1e6);
        whole[l] = fmax(whole[l], end / 1e6);
    }
    fclose(file);

    /* At a rate of 1 the time of this is its work. */
    struct ra_config c = config_of(2048, 2048, 1, RA_CONTIGUOUS);
    struct ra_scale_machine m = RA_SCALE_MACHINE_INIT;
    c.heads = c.key_heads = 1;
    c.dim = 64;
    c.causal = true;
    m.forward_rate = m.backward_rate = 1;
    m.tile_queries = m.tile_keys = 64;
    struct ra_scale alone = predict(&c, &m, RA_SCALE_RING);
    m.forward_rate = alone.forward.seconds / own[0];
    m.backward_rate = alone.backward.seconds / own[1];
    m.bandwidth = 2048 * 64 * 2 * 4 / 600e-6;
    c.queries = c.keys = 4096;
    c.ring_size = 2;
    for (int l = 0; l < 2; l++) {
        c.layout = l == 0 ? RA_CONTIGUOUS : RA_STRIPED;
        struct ra_scale scale = predict(&c, &m, RA_SCALE_RING);
        assert_near(scale.forward.seconds, forward[l], 0.05);
        assert_near(scale.forward.seconds + scale.backward.seconds, whole[l], 0.05);
    }
}

int main(void)
{
    return suite_main("scale", 300);
}
