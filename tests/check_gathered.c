/* check_gathered: attention with gathered keys, on the ranks of a communicator, against the
 * definition.
 *
 *   mpirun -n RANKS build/check-gathered [RING_SIZE]
 *
 * Runs every test on every rank. A test that finds something wrong says so and goes on, so that its
 * ranks stay in step.
 */
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "extras.h"
#include "ra_gathered.h"
#include "verdict.h"

static const double patience = 60;

static int world_rank, ranks, ring_size;
static MPI_Comm ring_comm; /* the ranks of this one's ring */

/* ---- What is asked of MPI. */

static int gathers, reductions, sends;

int MPI_Iallgatherv(const void *from, int count, MPI_Datatype type, void *into, const int counts[],
                    const int places[], MPI_Datatype received, MPI_Comm comm, MPI_Request *request)
{
    gathers++;
    return PMPI_Iallgatherv(from, count, type, into, counts, places, received, comm, request);
}

int MPI_Ireduce_scatter(const void *from, void *into, const int counts[], MPI_Datatype type,
                        MPI_Op operation, MPI_Comm comm, MPI_Request *request)
{
    reductions++;
    return PMPI_Ireduce_scatter(from, into, counts, type, operation, comm, request);
}

int MPI_Isend(const void *from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    sends++;
    return PMPI_Isend(from, count, type, to, tag, comm, request);
}

/* ---- One problem. */

/* Every ring has a problem of its own: batch is that of ring 0; every further ring has one more. */
static struct problem usual(int64_t queries, int64_t keys)
{
    int ring = world_rank / ring_size;
    struct problem problem = {
        .config = RA_CONFIG_INIT, .ranks = ring_size, .nan_hidden = true, .seed = (unsigned)ring};
    struct ra_config *c = &problem.config;
    c->batch = 2 + ring;
    c->queries = queries;
    c->keys = keys;
    c->heads = 4;
    c->key_heads = 2;
    c->dim = 8;
    c->causal = true;
    c->ring_size = ring_size;
    c->tile_queries = c->tile_keys = 8;
    c->timeout = patience;
    c->threads = 1;
    return problem;
}

/* The slices of the plans that are begun from now on; NULL: none. */
static struct {
    const struct ra_slice *list;
    int64_t count;
    enum ra_deal deal;
} mask;

/* A ring's part of a problem on this rank. */
struct work {
    struct problem problem;
    struct ra_plan *plan;
    struct shard x;
};

/* Plans are those of a ring, over MPI, of the same config. */
static bool over_a_ring;

static enum ra_status create(struct ra_plan **plan, const struct ra_config *config, char *error)
{
    struct ra_link link;
    *plan = NULL;
    if (!over_a_ring)
        return ra_gathered_create(plan, config, MPI_COMM_WORLD, error);
    enum ra_status status = ra_mpi_link(&link, MPI_COMM_WORLD, ring_size, patience, error);
    return status == RA_OK ? ra_plan_create(plan, config, &link, error) : status;
}

/* Makes the plan and this rank's arrays. False: there is no plan. */
static bool begin(struct work *work, struct problem problem, enum order order)
{
    char error[RA_ERROR_SIZE] = "";
    problem.same = order == BROADCAST;
    problem_make(&problem);
    *work = (struct work){.problem = problem};
    enum ra_status status = create(&work->plan, &problem.config, error);
    if (!HOLDS(status == RA_OK, "%s: %s", ra_status_text(status), error))
        return false;
    if (mask.list) {
        work->problem.truth.slices = mask.list;
        work->problem.truth.slice_count = mask.count;
        work->problem.truth.causal = false;
        EXPECT(ra_plan_set_slices(work->plan, mask.list, mask.count, mask.deal) == RA_OK, "%s",
               ra_plan_error(work->plan));
    }
    EXPECT(ra_plan_bytes(work->plan) > 0, "%lld bytes", (long long)ra_plan_bytes(work->plan));
    shard_make(&work->problem, &work->x, order, work->plan);
    return true;
}

static void end(struct work *work)
{
    shard_clear(&work->x);
    problem_clear(&work->problem);
    ra_plan_destroy(work->plan);
}

static void compute(struct work *work)
{
    char text[TEXT];
    shard_poison(&work->x, O, LSE);
    shard_poison(&work->x, DQ, DV);
    for (int backward = 0; backward < (work->problem.config.forward_only ? 1 : 2); backward++) {
        enum ra_status status = (backward ? ra_backward : ra_forward)(work->plan, &work->x.arrays);
        if (!HOLDS(status == RA_OK, "%s: %s", ra_status_text(status), ra_plan_error(work->plan)))
            return;
        EXPECT(shard_is_kept(&work->x, backward, text), "%s", text);
    }
}

/* Are the outputs right? The rows of all ranks of the ring are put together. */
static void judge(struct work *work)
{
    struct problem *p = &work->problem;
    double *got[ARRAYS];
    char text[TEXT];
    outputs_make(p, got);
    shard_collect(p, &work->x, got);
    for (enum truth_array a = O; a < ARRAYS; a++)
        if (problem_writes(p, a))
            PMPI_Allreduce(MPI_IN_PLACE, got[a], (int)truth_count(&p->truth, a), MPI_DOUBLE,
                           MPI_SUM, ring_comm);
    EXPECT(problem_is_right(p, got, text), "%s", text);

    /* A query that sees itself alone has no gradient of scores. */
    const struct truth *t = &p->truth;
    bool alone = t->causal && t->lookback == 0 && t->N == t->M; /* not of slices */
    for (enum truth_array a = DQ; a <= DK && alone; a++)
        for (int64_t e = 0; e < truth_count(t, a); e++)
            EXPECT(got[a][e] == 0, "one key, but %s is %g", truth_names[a], got[a][e]);

    /* What all keys have in common moves no gradient: see the test of this name in check_tile. */
    for (enum truth_array a = DQ; a < ARRAYS && p->shift != 0; a++) {
        double squares[2] = {0};
        problem_add_squares(p, a, got[a], squares);
        EXPECT(squares[1] <= 4 * squares[0], "%s errs by %g times what a plain program does",
               truth_names[a], sqrt(squares[1] / squares[0]));
    }
    outputs_clear(got);
}

static void solve(struct problem problem, enum order order)
{
    struct work work;
    if (!begin(&work, problem, order))
        return;
    compute(&work);
    problem_solve(&work.problem);
    judge(&work);
    end(&work);
}

/* ---- Tests of what is right. */

/* Calls `solve` for every layout, with both head maps and all orders of arrays. */
static void solve_layouts(struct problem problem)
{
    static const struct {
        enum ra_layout_kind kind;
        int64_t bucket;
    } layouts[] = {
        {RA_CONTIGUOUS, 0}, {RA_STRIPED, 0}, {RA_STRIPED, 3}, {RA_STRIPED, 8}, {RA_ZIGZAG, 0}};
    for (int i = 0; i < 5; i++) {
        problem.config.layout = layouts[i].kind;
        problem.config.bucket = layouts[i].bucket;
        problem.config.head_map = i % 2 == 0 ? RA_INTERLEAVED : RA_GROUPED;
        solve(problem, (enum order)i);
    }
}

static void test_causal(void)
{
    solve_layouts(usual(37, 37));
    solve_layouts(usual(5, 23));
    solve_layouts(usual(19, 7));
}

static void test_all_see_all(void)
{
    struct problem problem = usual(13, 29);
    problem.config.causal = false;
    solve_layouts(problem);
}

static void test_lookback(void)
{
    static const int64_t lookbacks[] = {0, 1, 7, 9, 36};
    for (int i = 0; i < 5; i++) {
        struct problem problem = usual(37, 37);
        problem.config.lookback = lookbacks[i];
        solve_layouts(problem);
    }
}

static void test_masks(void)
{
    for (int masking = ALL_SEEN; masking < MASKINGS; masking++)
        for (int causal = 0; causal < 2; causal++) {
            struct problem problem = usual(21, 21);
            problem.config.causal = causal;
            problem.masking = (enum masking)masking;
            solve_layouts(problem);
        }
}

/* Fewer rows than ranks, or none, or no batch. */
static void test_few_rows(void)
{
    for (int64_t n = 0; n < 3; n++)
        for (int64_t m = 0; m < 3; m++)
            solve_layouts(usual(n, m));
    solve_layouts(usual(3, 3));
    struct problem problem = usual(3, 3);
    problem.config.batch = 0;
    solve(problem, ROWS_FIRST);
}

static void test_scores(void)
{
    struct problem problem = usual(24, 24);
    problem.config.scale = 20;
    solve_layouts(problem);
    problem.config.softcap = 3;
    solve_layouts(problem);
}

static void test_common_component(void)
{
    struct problem problem = usual(40, 40);
    problem.shift = -1000;
    solve_layouts(problem);
    problem.config.softcap = 2000;
    solve_layouts(problem);
    problem.config.lookback = 0;
    solve_layouts(problem);
}

static void test_heads(void)
{
    for (int64_t G = 1; G <= 6; G++)
        for (int map = RA_GROUPED; map <= RA_INTERLEAVED && 6 % G == 0; map++) {
            struct problem problem = usual(17, 17);
            problem.config.heads = 6;
            problem.config.key_heads = G;
            problem.config.head_map = map;
            solve(problem, ROWS_FIRST);
        }
}

/* Larger than a tile of the usual size; plain tiles; no backward; several threads. */
static void test_ways(void)
{
    struct problem problem = usual(150, 150);
    problem.config.layout = RA_STRIPED;
    problem.config.tile_queries = problem.config.tile_keys = 0;
    problem.config.dim = 24;
    solve(problem, ROWS_FIRST);
    problem.config.threads = 3;
    solve(problem, ROWS_FIRST);
    problem.config.tile = RA_PLAIN_TILE;
    solve(problem, ROWS_FIRST);
    problem.config.forward_only = true;
    solve(problem, ROWS_FIRST);
}

/* Values wider or narrower than keys. */
static void test_widths(void)
{
    static const int64_t widths[][2] = {{192, 128}, {64, 128}, {5, 3}, {1, 7}};
    for (int i = 0; i < 8; i++) {
        struct problem problem = usual(19, 23);
        problem.config.dim = widths[i / 2][0];
        problem.config.dim_value = widths[i / 2][1];
        problem.config.tile = i % 2 ? RA_PLAIN_TILE : RA_VECTOR_TILE;
        problem.masking = RANDOM_MASK;
        solve_layouts(problem);
    }
}

/* Inventions. */
static void test_random(void)
{
    uint64_t state = 7;
    for (int i = 0; i < 30; i++) {
        struct problem problem = usual(random_below(&state, 40), random_below(&state, 40));
        struct ra_config *c = &problem.config;
        c->batch += random_below(&state, 2) - 1;
        c->key_heads = 1 + random_below(&state, 3);
        c->heads = c->key_heads * (1 + random_below(&state, 3));
        c->dim = 1 + random_below(&state, 20);
        c->dim_value = i % 3 ? 0 : 1 + random_below(&state, 25);
        c->causal = random_below(&state, 3) > 0;
        c->lookback =
            c->causal && random_below(&state, 2) ? random_below(&state, 45) : RA_NO_LOOKBACK;
        c->layout = (enum ra_layout_kind)random_below(&state, 3);
        c->bucket = c->layout == RA_STRIPED ? random_below(&state, 12) : 0;
        c->head_map = (enum ra_head_map)random_below(&state, 2);
        c->softcap = random_below(&state, 4) == 0 ? 2 : 0;
        c->threads = i % 10 == 0 ? 2 : 1;
        problem.masking = random_below(&state, 2) ? RANDOM_MASK : NO_MASK;
        solve(problem, (enum order)random_below(&state, ORDERS));
    }
}

/* Slopes, sinks, a gradient of lse and the largest score, with gathered keys or over a ring. */
static void solve_extras(struct problem problem, enum sinks sinks, enum order order)
{
    struct work work;
    struct extras extras;
    struct extras_part part;
    char text[TEXT];
    if (!begin(&work, problem, order))
        return;
    extras_solve(&extras, &work.problem, ALL_EXTRAS, sinks);
    extras_give(&extras, &work.x, &part);
    compute(&work);
    EXPECT(extras_collect(&extras, &part), "written beside numbers of heads");
    int H = (int)work.problem.truth.H;
    PMPI_Allreduce(MPI_IN_PLACE, extras.largest, H, MPI_DOUBLE, MPI_MAX, ring_comm);
    PMPI_Allreduce(MPI_IN_PLACE, extras.d_sink, H, MPI_DOUBLE, MPI_SUM, ring_comm);
    judge(&work);
    EXPECT(extras_are_right(&extras, text), "%s", text);
    extras_clear(&extras);
    end(&work);
}

static void test_extras(void)
{
    uint64_t state = 11;
    for (int i = 0; i < 40; i++) {
        struct problem problem = usual(random_below(&state, 40), random_below(&state, 40));
        struct ra_config *c = &problem.config;
        c->heads = c->key_heads * (1 + random_below(&state, 3));
        c->causal = random_below(&state, 3) > 0;
        c->lookback = c->causal && i % 4 == 0 ? random_below(&state, 45) : RA_NO_LOOKBACK;
        c->layout = (enum ra_layout_kind)random_below(&state, 3);
        c->bucket = c->layout == RA_STRIPED ? random_below(&state, 12) : 0;
        c->softcap = i % 4 == 1 ? 2 : 0;
        c->threads = i % 10 == 0 ? 2 : 1;
        c->tile = i % 3 ? RA_VECTOR_TILE : RA_PLAIN_TILE;
        problem.masking = random_below(&state, 2) ? RANDOM_MASK : NO_MASK;
        over_a_ring = i % 2 == 0;
        solve_extras(problem, (enum sinks)(i % SINK_KINDS),
                     (enum order)random_below(&state, BROADCAST));
    }
    over_a_ring = false;
}

/* Documents and pairs of them, in every layout and dealt; with slopes, sinks and the rest, too.
 * Rows in no slice, and keys that nobody sees. A deal has pieces of 32 rows or more. */
static void test_slices(void)
{
    enum { N = 211, M = 147, DOCUMENTS = 5 };
    static const int64_t bounds[] = {0, 1, 2, 70, 133, N - 9};
    static const int64_t bounds_of_keys[] = {0, 39, 39, 90, 91, M - 5};
    struct ra_slice list[DOCUMENTS];
    for (int trial = 0; trial < 20; trial++) {
        bool pairs = trial >= 14;
        struct problem p = usual(N, pairs ? M : N);
        struct ra_config *c = &p.config;
        c->layout = (enum ra_layout_kind)(trial % 3);
        c->bucket = trial % 6 == 1 ? 5 : 0;
        c->max_slices = DOCUMENTS;
        c->max_rows = N;
        c->causal = trial % 2; /* the mask until slices come */
        c->tile = trial % 4 == 3 ? RA_PLAIN_TILE : RA_VECTOR_TILE;
        c->dim_value = trial % 5 == 2 ? 11 : 0;
        c->softcap = trial % 5 == 1 ? 3 : 0;
        c->threads = 1 + trial % 2;
        p.masking = trial % 3 ? RANDOM_MASK : NO_MASK;
        mask.count = pairs
                         ? ra_slices_pairs(bounds, bounds_of_keys, DOCUMENTS, list)
                         : ra_slices_documents(bounds, DOCUMENTS, trial == 4 ? 20 : RA_NO_LOOKBACK,
                                               trial == 5 ? RA_NO_LOOKBACK : 0, list);
        mask.list = list;
        mask.deal = trial % 4 < 2 ? RA_DEAL_DOCUMENTS : RA_DEAL_LAYOUT;
        if (trial % 2)
            solve_extras(p, (enum sinks)(trial % SINK_KINDS), (enum order)(trial % BROADCAST));
        else
            solve(p, (enum order)(trial % BROADCAST));
    }
    mask.list = NULL;
}

/* A rank has other slices: all lose the plan, and none waits. */
static void test_other_slices(void)
{
    struct problem p = usual(40, 40);
    struct work work;
    struct ra_slice list[1];
    p.config.max_slices = 1;
    if (ring_size < 2 || !begin(&work, p, ROWS_FIRST))
        return;
    ra_slices_window(40, 40, world_rank % ring_size == 1 ? 1 : RA_NO_LOOKBACK, 0, list);
    double began = ra_seconds();
    enum ra_status status = ra_plan_set_slices(work.plan, list, 1, RA_DEAL_LAYOUT);
    if (status == RA_OK)
        status = ra_forward(work.plan, &work.x.arrays);
    EXPECT(status == RA_LOST && strstr(ra_plan_error(work.plan), "given different slices"),
           "%s: %s", ra_status_text(status), ra_plan_error(work.plan));
    EXPECT(ra_seconds() - began < patience / 2, "%g s", ra_seconds() - began);
    end(&work);
}

/* The same plan, again, and another with more threads: the same bits. */
static void test_bits(void)
{
    struct problem problem = usual(37, 37);
    struct work one, other;
    bool made = begin(&one, problem, ROWS_FIRST);
    problem.config.threads = 3;
    if (!made || !begin(&other, problem, ROWS_FIRST))
        return;
    compute(&one);
    compute(&other);
    for (int round = 0; round < 2; round++, compute(&one)) {
        enum truth_array a = shard_difference(&one.x, &other.x);
        EXPECT(a == ARRAYS, "%s", truth_names[a]);
    }
    end(&one);
    end(&other);
}

/* One gather of keys, another of masks, one reduction; no message of this rank's own; and their
 * bytes. */
static void test_messages(void)
{
    struct problem problem = usual(37, 37);
    problem.masking = RANDOM_MASK;
    struct work work;
    if (!begin(&work, problem, ROWS_FIRST))
        return;
    int P = ring_size;
    int64_t B = work.problem.truth.B, m = work.x.rows[RA_KEY_SIDE], keys = B * 2 * 8 * 2 * 4;
    gathers = reductions = sends = 0;
    EXPECT(ra_forward(work.plan, &work.x.arrays) == RA_OK, "%s", ra_plan_error(work.plan));
    EXPECT(gathers == 2 && reductions == 0 && sends == 0, "%d, %d, %d", gathers, reductions, sends);
    EXPECT(ra_backward(work.plan, &work.x.arrays) == RA_OK, "%s", ra_plan_error(work.plan));
    EXPECT(gathers == 4 && reductions == 1 && sends == 0, "%d, %d, %d", gathers, reductions, sends);
    EXPECT(ra_gathered_sent(work.plan, false) == (P - 1) * m * (keys + B), "%lld bytes",
           (long long)ra_gathered_sent(work.plan, false));
    EXPECT(ra_gathered_sent(work.plan, true) == (P - 1) * m * (keys + B) + (37 - m) * keys,
           "%lld bytes", (long long)ra_gathered_sent(work.plan, true));
    end(&work);
}

/* The observer hears of work and waits. */
static void count_event(void *observer, const struct ra_event *event)
{
    ((int *)observer)[event->kind] += event->hop == 0 && event->end >= event->start;
}

static void test_observer(void)
{
    int events[4] = {0};
    struct problem problem = usual(9, 9);
    problem.config.observe = count_event;
    problem.config.observer = events;
    solve(problem, ROWS_FIRST);
    EXPECT(events[RA_EVENT_WORK] == 2 && events[RA_EVENT_WAIT] == 3, "%d and %d",
           events[RA_EVENT_WORK], events[RA_EVENT_WAIT]);
}

/* ---- Tests of what is wrong. */

static void refused(const struct ra_config *config, enum ra_status expected, const char *word)
{
    char error[RA_ERROR_SIZE] = "";
    struct ra_plan *plan = NULL;
    enum ra_status status = ra_gathered_create(&plan, config, MPI_COMM_WORLD, error);
    EXPECT(status == expected && !plan && strstr(error, word), "%s: %s", ra_status_text(status),
           error);
    ra_plan_destroy(plan);
}

static void test_refusals(void)
{
    struct ra_config good = usual(20, 20).config, config = good;
    refused(NULL, RA_INVALID, "config is NULL");
    config.size = 8;
    refused(&config, RA_INVALID, "config.size");
    config = good;
    config.type = RA_BFLOAT16;
    refused(&config, RA_INVALID, "config.type");
    config = good;
    config.local_keys = true;
    refused(&config, RA_INVALID, "config.local_keys");
    config = good;
    config.keys = config.queries = 1 << 28;
    refused(&config, RA_INVALID, "config.keys");
    config = good;
    config.heads = 5;
    refused(&config, RA_INVALID, "config.key_heads");
    config = good;
    config.dim = 8 + world_rank % ring_size;
    if (ring_size > 1)
        refused(&config, RA_DISAGREEMENT, "config.dim");
}

/* One rank gives no q: all are told so, and nobody waits. Or it does not come: the others wait for
 * the timeout. */
static void trouble(bool comes)
{
    struct problem problem = usual(20, 20);
    problem.config.timeout = comes ? 10 : 0.5;
    struct work work;
    if (!begin(&work, problem, ROWS_FIRST))
        return;

    /* All have the plan: a rank's trouble may overtake the end of an agreement. */
    PMPI_Barrier(MPI_COMM_WORLD);
    bool odd = world_rank % ring_size == ring_size - 1;
    double began = ra_seconds();
    struct ra_arrays arrays = work.x.arrays;
    enum ra_status status = RA_OK;
    if (odd)
        arrays.q.data = NULL;
    if (comes || !odd) {
        status = ra_forward(work.plan, &arrays);
        EXPECT(status == (odd ? RA_INVALID : RA_LOST), "%s", ra_status_text(status));
        char last[40];
        snprintf(last, sizeof last, " %d ha", ring_size - 1);
        const char *error = ra_plan_error(work.plan);
        EXPECT(comes ? strstr(error, "arrays.q") != NULL
                     : strstr(error, "waited 0.5 s for keys of all ranks: rank") &&
                           strstr(error, last),
               "%s", error);
    }
    EXPECT(ra_seconds() - began < 20, "%g s", ra_seconds() - began);

    /* The late rank hears why nobody waits for it. */
    PMPI_Barrier(MPI_COMM_WORLD);
    status = ra_forward(work.plan, &work.x.arrays);
    EXPECT(status == (ring_size > 1 ? RA_LOST : RA_OK), "%s", ra_status_text(status));
    end(&work);
}

static void test_wrong_arrays(void)
{
    trouble(true);
}

static void test_lost_rank(void)
{
    trouble(false);
}

int main(int argc, char **argv)
{
    static const struct verdict_test tests[] = {{"causal", test_causal},
                                                {"all see all", test_all_see_all},
                                                {"lookback", test_lookback},
                                                {"masks", test_masks},
                                                {"few rows", test_few_rows},
                                                {"scores", test_scores},
                                                {"heads", test_heads},
                                                {"ways", test_ways},
                                                {"widths", test_widths},
                                                {"random", test_random},
                                                {"extras", test_extras},
                                                {"slices", test_slices},
                                                {"other slices", test_other_slices},
                                                {"bits", test_bits},
                                                {"common component", test_common_component},
                                                {"messages", test_messages},
                                                {"observer", test_observer},
                                                {"refusals", test_refusals},
                                                {"wrong arrays", test_wrong_arrays},
                                                {"lost rank", test_lost_rank}};
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    ring_size = argc > 1 ? atoi(argv[1]) : ranks;
    if (ring_size < 1 || ranks % ring_size != 0)
        MPI_Abort(MPI_COMM_WORLD, 2);
    PMPI_Comm_split(MPI_COMM_WORLD, world_rank / ring_size, 0, &ring_comm);
    verdict_start(world_rank, patience, "rank %d of %d, rings of %d: ", world_rank, ranks,
                  ring_size);
    verdict_run(tests, sizeof tests / sizeof *tests);
    int code = verdict_end();
    PMPI_Comm_free(&ring_comm);
    MPI_Finalize();
    return code;
}
