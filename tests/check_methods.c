/* check_methods: attention by every method, on the ranks of a communicator, against the definition.
 *
 *   mpirun -n RANKS build/check-methods [RING_SIZE]
 *
 * Runs every test on every rank, with every method. A test that finds something wrong says so and
 * goes on, so that its ranks stay in step.
 */
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "extras.h"
#include "ring_attention_mpi.h"
#include "verdict.h"

static const double patience = 60;

static int world_rank, ranks, ring_size;
static MPI_Comm ring_comm; /* the ranks of this one's ring */

/* ---- What this rank sends: messages of keys, gradients and rows, and bytes in them. */

static int64_t messages_sent, bytes_sent, outer_bytes_sent;

/* Before how many folds of its call each message of keys left for another host. */
static int folds, outer_keys_sent, folds_before[64];

int MPI_Isend(const void *from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    int bytes;
    PMPI_Type_size(type, &bytes);
    bool outer =
        tag == RA_OUTER_KEYS || tag == RA_OUTER_GRADIENTS || tag == RA_OUTER_GRADIENTS_RETURN;
    if (outer || tag == RA_KEYS || tag == RA_GRADIENTS || tag == RA_GRADIENTS_RETURN ||
        tag == RA_ROWS) {
        messages_sent++;
        bytes_sent += count * (int64_t)bytes;
        outer_bytes_sent += outer ? count * (int64_t)bytes : 0;
    }
    if (tag == RA_OUTER_KEYS)
        folds_before[outer_keys_sent++ % 64] = folds;
    return PMPI_Isend(from, count, type, to, tag, comm, request);
}

/* How ranks meet, from now on. */
static enum ra_method method;
static int group, inner;

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

/* Gives a config the method under test, and enough heads for it. */
static void use_method(struct ra_config *config)
{
    config->method = method;
    config->group = method == RA_HYBRID ? group : 0;
    config->inner = method == RA_DOUBLE_RING ? inner : 0;
    int64_t needed = method == RA_EXCHANGED_HEADS ? ring_size : config->group;
    int64_t shared = config->key_heads > 0 ? config->key_heads : 1;
    while (method != RA_GATHERED_KEYS && config->heads < needed)
        config->heads += shared;
}

/* The timeout of calls from now on, where a rank is lost; 0: that of their plans, which is long, as
 * a busy machine may keep a rank that nobody is to lose from its processor. */
static double call_timeout;
static void (*set_timeout_of_link)(void *self, double seconds);

static void set_timeout(void *self, double seconds)
{
    set_timeout_of_link(self, call_timeout > 0 ? call_timeout : seconds);
}

static enum ra_status create(struct ra_plan **plan, const struct ra_config *config, char *error)
{
    struct ra_link link;
    *plan = NULL;
    enum ra_status status = ra_mpi_link(&link, MPI_COMM_WORLD, ring_size, patience, error);
    if (status != RA_OK)
        return status;
    set_timeout_of_link = link.set_timeout;
    link.set_timeout = set_timeout;
    return ra_plan_create(plan, config, &link, error);
}

/* Makes the plan and this rank's arrays. False: there is no plan. */
static bool begin(struct work *work, struct problem problem, enum order order)
{
    char error[RA_ERROR_SIZE] = "";
    problem.same = order == BROADCAST;
    use_method(&problem.config);
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

static void end_work(struct work *work)
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

/* Does this rank say what is right, for all of its ring? All have the same numbers to judge. */
static bool judges(void)
{
    return world_rank % ring_size == 0;
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
    if (judges())
        EXPECT(problem_is_right(p, got, text), "%s", text);

    /* A query that sees itself alone has no gradient of scores. */
    const struct truth *t = &p->truth;
    bool alone = t->causal && t->lookback == 0 && t->N == t->M; /* not of slices */
    for (enum truth_array a = DQ; a <= DK && alone; a++)
        for (int64_t e = 0; e < truth_count(t, a); e++)
            EXPECT(got[a][e] == 0, "one key, but %s is %g", truth_names[a], got[a][e]);

    /* What all keys have in common moves no gradient: see the test of this name in check_tile. */
    for (enum truth_array a = DQ; a < ARRAYS && p->shift != 0 && judges(); a++) {
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
    if (judges())
        problem_solve(&work.problem);
    judge(&work);
    end_work(&work);
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

TEST(causal)
{
    solve_layouts(usual(37, 37));
    solve_layouts(usual(5, 23));
    solve_layouts(usual(19, 7));
}

TEST(all_see_all)
{
    struct problem problem = usual(13, 29);
    problem.config.causal = false;
    solve_layouts(problem);
}

TEST(lookback)
{
    static const int64_t lookbacks[] = {0, 1, 7, 9, 36};
    for (int i = 0; i < 5; i++) {
        struct problem problem = usual(37, 37);
        problem.config.lookback = lookbacks[i];
        solve_layouts(problem);
    }
}

TEST(masks)
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
TEST(few_rows)
{
    for (int64_t n = 0; n < 3; n++)
        for (int64_t m = 0; m < 3; m++)
            solve_layouts(usual(n, m));
    solve_layouts(usual(3, 3));
    struct problem problem = usual(3, 3);
    problem.config.batch = 0;
    solve(problem, ROWS_FIRST);
}

TEST(scores)
{
    struct problem problem = usual(24, 24);
    problem.config.scale = 20;
    solve_layouts(problem);
    problem.config.softcap = 3;
    solve_layouts(problem);
}

TEST(common_component)
{
    struct problem problem = usual(40, 40);
    problem.shift = -1000;
    solve_layouts(problem);
    problem.config.softcap = 2000;
    solve_layouts(problem);
    problem.config.lookback = 0;
    solve_layouts(problem);
}

TEST(heads)
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
TEST(ways)
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
TEST(widths)
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
TEST(random)
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

/* Slopes, sinks, a gradient of lse and the largest score. */
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
    end_work(&work);
}

TEST(extras)
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
        solve_extras(problem, (enum sinks)(i % SINK_KINDS),
                     (enum order)random_below(&state, BROADCAST));
    }
}

/* Documents and pairs of them, in every layout and dealt; with slopes, sinks and the rest, too.
 * Rows in no slice, and keys that nobody sees. A deal has pieces of 32 rows or more. */
TEST(slices)
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

/* Whatever is dealt later, a plan keeps to the memory that it took: also where a deal gives a rank,
 * or a group of them, many pieces in the place of one. */
TEST(room_of_slices)
{
    enum { DOCUMENTS = 64, ROWS = 64 * DOCUMENTS };
    for (int layout = 0; layout < 3; layout++) {
        struct problem p = usual(ROWS, ROWS);
        struct work work;
        struct ra_slice list[DOCUMENTS];
        int64_t bounds[DOCUMENTS + 1];
        p.config.layout = (enum ra_layout_kind)layout;
        p.config.max_slices = DOCUMENTS;
        p.config.max_rows = ROWS;
        if (!begin(&work, p, ROWS_FIRST))
            return;
        int64_t bytes = ra_plan_bytes(work.plan), workspace = ra_plan_workspace_bytes(work.plan);
        for (int b = 0; b <= DOCUMENTS; b++)
            bounds[b] = 64 * b;
        ra_slices_documents(bounds, DOCUMENTS, RA_NO_LOOKBACK, 0, list);
        EXPECT(ra_plan_set_slices(work.plan, list, DOCUMENTS, RA_DEAL_DOCUMENTS) == RA_OK, "%s",
               ra_plan_error(work.plan));
        EXPECT(ra_plan_bytes(work.plan) == bytes && ra_plan_workspace_bytes(work.plan) == workspace,
               "%lld bytes are now %lld", (long long)bytes, (long long)ra_plan_bytes(work.plan));
        end_work(&work);
    }
}

/* Multiply-adds of all ranks of a plan to look at: few queries beside many keys, with which a
 * group's rows have fewer spans on one side than on the other. */
static int64_t work_of_all(enum ra_method how)
{
    struct ra_config c = RA_CONFIG_INIT;
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE] = "";
    int64_t sum = 0;
    c.queries = 3;
    c.keys = 40;
    c.heads = c.key_heads = 4;
    c.dim = 8;
    c.ring_size = 4;
    c.causal = true;
    c.layout = RA_ZIGZAG;
    c.tile_queries = c.tile_keys = 1;
    c.method = how;
    c.group = how == RA_HYBRID ? 2 : 0;
    c.inner = how == RA_DOUBLE_RING ? 2 : 0;
    if (!HOLDS(ra_plan_create(&plan, &c, NULL, error) == RA_OK, "%s", error))
        return -1;
    for (int r = 0; r < 4; r++)
        for (int step = 0; step < ra_plan_hops(plan); step++) {
            struct ra_hop hop;
            EXPECT(ra_plan_hop(plan, r, step, false, &hop) == RA_OK, "%s", ra_plan_error(plan));
            sum += hop.multiply_adds;
        }
    ra_plan_destroy(plan);
    return sum;
}

/* Whatever the method, all ranks together do the same work. */
TEST(work_of_all)
{
    int64_t ring = work_of_all(RA_RING);
    for (int how = RA_GATHERED_KEYS; how <= RA_DOUBLE_RING; how++) {
        int64_t sum = work_of_all((enum ra_method)how);
        EXPECT(sum == ring, "method %d: %lld multiply-adds, of the ring %lld", how, (long long)sum,
               (long long)ring);
    }
}

/* A rank has other slices: all lose the plan, and none waits. */
TEST(other_slices)
{
    struct problem p = usual(40, 40);
    struct work work;
    struct ra_slice list[1];
    p.config.max_slices = 1;
    if (ring_size < 2 || !begin(&work, p, ROWS_FIRST))
        return;
    PMPI_Barrier(MPI_COMM_WORLD); /* as in `trouble` */
    ra_slices_window(40, 40, world_rank % ring_size == 1 ? 1 : RA_NO_LOOKBACK, 0, list);
    double began = ra_seconds();
    enum ra_status status = ra_plan_set_slices(work.plan, list, 1, RA_DEAL_LAYOUT);
    if (status == RA_OK)
        status = ra_forward(work.plan, &work.x.arrays);
    EXPECT(status == RA_LOST && strstr(ra_plan_error(work.plan), "was given other slices"),
           "%s: %s", ra_status_text(status), ra_plan_error(work.plan));
    EXPECT(ra_seconds() - began < patience / 2, "%g s", ra_seconds() - began);
    end_work(&work);
}

/* A rank calls the backward where the others call the forward: all are told so, before any uses
 * numbers of another call. */
TEST(other_calls)
{
    struct problem problem = usual(24, 24);
    problem.config.causal = false;
    struct work work;
    if (!begin(&work, problem, ROWS_FIRST))
        return;
    compute(&work);
    PMPI_Barrier(MPI_COMM_WORLD);
    bool odd = world_rank % ring_size == ring_size - 1;
    enum ra_status status = (odd ? ra_backward : ra_forward)(work.plan, &work.x.arrays);
    if (ring_size > 1)
        EXPECT(status == RA_LOST && strstr(ra_plan_error(work.plan), "is in its call 3, "),
               "%s: %s", ra_status_text(status), ra_plan_error(work.plan));
    PMPI_Barrier(MPI_COMM_WORLD);
    end_work(&work);
}

/* The same plan, again, and another with more threads: the same bits. */
TEST(bits)
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
    end_work(&one);
    end_work(&other);
}

/* Puts the rows of all ranks of the ring together. */
static void collect(struct work *work, double *got[ARRAYS])
{
    struct problem *p = &work->problem;
    outputs_make(p, got);
    shard_collect(p, &work->x, got);
    for (enum truth_array a = O; a < ARRAYS; a++)
        if (problem_writes(p, a))
            PMPI_Allreduce(MPI_IN_PLACE, got[a], (int)truth_count(&p->truth, a), MPI_DOUBLE,
                           MPI_SUM, ring_comm);
}

/* Solves a problem by the method under test and on one rank. From array `first` to `end` - 1 all
 * bits are the same. */
static void same_as_one(struct problem problem, enum truth_array first, enum truth_array end)
{
    struct work work, alone = {.problem = problem};
    double *got[ARRAYS], *want[ARRAYS];
    char error[RA_ERROR_SIZE] = "";
    if (!begin(&work, problem, ROWS_FIRST))
        return;
    compute(&work);
    alone.problem.config.heads = work.problem.config.heads;
    alone.problem.config.ring_size = alone.problem.ranks = 1;
    alone.problem.config.layout = RA_CONTIGUOUS;
    problem_make(&alone.problem);
    EXPECT(ra_plan_create(&alone.plan, &alone.problem.config, NULL, error) == RA_OK, "%s", error);
    shard_make(&alone.problem, &alone.x, ROWS_FIRST, alone.plan);
    compute(&alone);
    collect(&work, got);
    outputs_make(&alone.problem, want);
    shard_collect(&alone.problem, &alone.x, want);
    for (enum truth_array a = first; a < end; a++)
        for (int64_t e = 0; got[a] && e < truth_count(&work.problem.truth, a); e++)
            if (!HOLDS(got[a][e] == want[a][e], "%s, %lld: %.9g, of one rank %.9g", truth_names[a],
                       (long long)e, got[a][e], want[a][e]))
                break;
    outputs_clear(got);
    outputs_clear(want);
    end_work(&alone);
    end_work(&work);
}

/* Heads that are exchanged among all ranks are attended to as one rank does: the same bits, as long
 * as no key head is on two ranks, which would add its gradients up. Keys that are gathered are
 * folded in the order of one rank, in the same tiles if every shard is whole tiles of contiguous
 * rows. */
TEST(bits_of_one_rank)
{
    struct problem problem = usual(32 * ring_size, 32 * ring_size);
    for (int trial = 0; trial < 6; trial++) {
        struct ra_config *c = &problem.config;
        c->tile = trial % 2 ? RA_PLAIN_TILE : RA_VECTOR_TILE;
        c->tile_queries = c->tile_keys = 32;
        c->causal = trial % 3 > 0;
        c->layout = method == RA_GATHERED_KEYS || ring_size == 1 /* nothing is exchanged then */
                        ? RA_CONTIGUOUS
                        : (enum ra_layout_kind)(trial % 3);
        c->type = trial == 4 ? RA_BFLOAT16 : RA_FLOAT32;
        c->heads = 2 * ring_size;
        c->key_heads = ring_size * (1 + trial % 2);
        if (method == RA_EXCHANGED_HEADS)
            same_as_one(problem, O, c->type == RA_FLOAT32 ? ARRAYS : DQ);
        else if (method == RA_GATHERED_KEYS)
            same_as_one(problem, O, c->type == RA_FLOAT32 ? DQ + 1 : DQ);
    }
}

/* o is linear in v, and dv is what the adjoint of that map makes of d_out: over all ranks
 * <o, d_out> = <v, dv>. A gather whose adjoint takes a slice where it should add, or an exchange
 * that brings rows back to other places than they came from, breaks this. */
TEST(adjoint)
{
    for (int64_t G = 1; G <= 6; G++) {
        struct problem problem = usual(53, 47);
        problem.config.heads = 12;
        problem.config.key_heads = 12 % G ? 4 : G;
        problem.config.layout = (enum ra_layout_kind)(G % 3);
        problem.config.causal = G % 2;
        problem.nan_hidden = false;
        struct work work;
        if (!begin(&work, problem, ROWS_FIRST))
            return;
        compute(&work);
        double *got[ARRAYS], left = 0, right = 0, size = 0;
        collect(&work, got);
        const struct truth *t = &work.problem.truth;
        for (int64_t e = 0; e < truth_count(t, O); e++) {
            left += got[O][e] * t->x[D_OUT][e];
            size += fabs(got[O][e] * t->x[D_OUT][e]);
        }
        for (int64_t e = 0; e < truth_count(t, V); e++)
            right += got[DV][e] * t->x[V][e];
        EXPECT(fabs(left - right) <= 1e-6 * size, "G = %d: %.9g and %.9g", (int)G, left, right);
        outputs_clear(got);
        end_work(&work);
    }
}

/* Calls a direction, and compares what this rank has sent with what the plan has said, and with a
 * formula, if it is not negative. */
static void count_call(struct work *work, bool backward, int64_t messages, int64_t bytes)
{
    int64_t said[2] = {0, 0};
    for (int step = 0; step < ra_plan_hops(work->plan); step++) {
        struct ra_hop hop;
        EXPECT(ra_plan_hop(work->plan, ra_plan_rank(work->plan), step, backward, &hop) == RA_OK,
               "%s", ra_plan_error(work->plan));
        said[0] += hop.messages;
        said[1] += hop.bytes;
    }
    messages_sent = bytes_sent = 0;
    enum ra_status status = (backward ? ra_backward : ra_forward)(work->plan, &work->x.arrays);
    EXPECT(status == RA_OK, "%s", ra_plan_error(work->plan));
    EXPECT(messages_sent == said[0] && bytes_sent == said[1],
           "%lld messages, %lld bytes; the plan said %lld, %lld", (long long)messages_sent,
           (long long)bytes_sent, (long long)said[0], (long long)said[1]);
    EXPECT(messages < 0 || (messages_sent == messages && bytes_sent == bytes),
           "%lld messages, %lld bytes; expected %lld, %lld", (long long)messages_sent,
           (long long)bytes_sent, (long long)messages, (long long)bytes);
}

/* Messages and bytes of both passes, by the formulas of chapter 12, where all shares are equal: N
 * rows on a rank, H and G heads, all of D numbers. Keys and rows have the type of the config,
 * gradients and lse are float32. */
static void count_by_formula(int64_t N, int64_t H, int64_t G, int64_t D, enum ra_type type)
{
    struct problem problem = usual(N * ring_size, N * ring_size);
    problem.config.heads = H;
    problem.config.key_heads = G;
    problem.config.dim = D;
    problem.config.causal = false;
    problem.config.type = type;
    problem.masking = RANDOM_MASK;
    struct work work;
    if (!begin(&work, problem, ROWS_FIRST))
        return;

    /* Heads are exchanged in groups of U: by default of all, as there are enough key heads. Then P
     * members of a ring pass keys, I of them inside a host; each has the rows of a group, and a
     * share of its heads. */
    bool exchanges = method == RA_EXCHANGED_HEADS || method == RA_HYBRID;
    int64_t B = work.problem.truth.B, e = ra_type_bytes(type);
    int64_t U = group > 0 ? group : exchanges ? ring_size : 1;
    int64_t P = ring_size / U, I = method == RA_DOUBLE_RING ? inner : P, hosts = P / I;
    int64_t keys = e * B * N * G * 2 * D + B * N * U, gradients = 4 * B * N * G * 2 * D;
    int64_t sent[2], messages[2] = {P - 1, P - 1};
    if (method == RA_GATHERED_KEYS) {
        messages[1] += P - 1;
        sent[0] = (P - 1) * keys;
        sent[1] = (P - 1) * (keys + gradients);
    } else if (I < P) {
        /* Keys: on in the host in each turn, of which there is one for each host, and on to the
         * other hosts. Gradients: the same, and back to where they came in, and home. */
        messages[0] = messages[1] = hosts * (I - 1) + hosts - 1;
        sent[0] = sent[1] = messages[0] * keys;
        messages[1] += hosts * I + hosts;
        sent[1] += (hosts * I + hosts) * gradients;
    } else {
        messages[1] += P > 1 ? P : 0;
        sent[0] = (P - 1) * keys;
        sent[1] = sent[0] + (P > 1 ? P : 0) * gradients;
    }
    if (U > 1) {
        /* To each other member 1 / U of the heads: q, k, v, the mask, and back o and lse; then q,
         * k, v, o, d_out, the mask, lse and d_lse, and back dq, dk and dv. */
        int64_t q = B * N * H / U * D, k = B * N * G / U * 2 * D, lse = 4 * B * N * H / U;
        messages[0] += 2 * (U - 1);
        messages[1] += 2 * (U - 1);
        sent[0] += (U - 1) * (2 * q * e + k * e + B * N + lse);
        sent[1] += (U - 1) * (3 * q * e + k * e + B * N + 2 * lse + 4 * q + 4 * k);
    }
    outer_bytes_sent = 0;
    count_call(&work, false, messages[0], sent[0]);
    EXPECT(I == P || outer_bytes_sent == (hosts - 1) * keys, "%lld bytes between hosts",
           (long long)outer_bytes_sent);
    outer_bytes_sent = 0;
    count_call(&work, true, messages[1], sent[1]);
    EXPECT(I == P || outer_bytes_sent == (hosts - 1) * keys + hosts * gradients,
           "%lld bytes between hosts", (long long)outer_bytes_sent);
    end_work(&work);
}

/* Messages and bytes: as the plan says, whatever the shape; and by formula. */
TEST(messages)
{
    struct problem problem;
    struct work work;
    for (int type = RA_FLOAT32; type <= RA_BFLOAT16; type++)
        count_by_formula(24, 2 * ring_size, ring_size, 8, (enum ra_type)type);

    for (int trial = 0; trial < 12; trial++) {
        problem = usual(37 - trial, trial % 2 ? 37 - trial : 29);
        problem.config.heads = 6;
        problem.config.key_heads = trial % 3 + 1;
        problem.config.layout = (enum ra_layout_kind)(trial % 3);
        problem.config.causal = trial % 4 > 0;
        problem.config.lookback = trial % 4 > 1 ? 9 : RA_NO_LOOKBACK;
        problem.masking = trial % 5 ? NO_MASK : RANDOM_MASK;
        if (!begin(&work, problem, ROWS_FIRST))
            return;
        count_call(&work, false, -1, -1);
        count_call(&work, true, -1, -1);
        end_work(&work);
    }
}

/* The observer hears of work and waits. */
static void count_event(void *observer, const struct ra_event *event)
{
    ((int *)observer)[event->kind] += event->hop < ring_size && event->end >= event->start;
}

TEST(observer)
{
    int events[4] = {0};
    struct problem problem = usual(9, 9);
    problem.config.observe = count_event;
    problem.config.observer = events;
    problem.config.causal = false;
    solve(problem, ROWS_FIRST);
    EXPECT(events[RA_EVENT_WORK] >= 2 && (ring_size == 1 || events[RA_EVENT_WAIT] >= 3),
           "%d and %d", events[RA_EVENT_WORK], events[RA_EVENT_WAIT]);
}

/* A message to another host leaves before the first hop of its turn is folded, and nothing waits
 * for it before the last one is: it has the whole turn to arrive in. */
static void count_turn(void *observer, const struct ra_event *event)
{
    int *early = observer;
    bool outer = event->kind == RA_EVENT_WAIT && !event->backward && event->hop % inner == 0;
    folds += event->kind == RA_EVENT_WORK;
    *early += outer && event->hop > 0 && folds < event->hop;
}

TEST(turns)
{
    int early = 0;
    struct problem problem = usual(48, 48);
    problem.config.observe = count_turn;
    problem.config.observer = &early;
    problem.config.causal = false;
    struct work work;
    if (method != RA_DOUBLE_RING || inner == ring_size || !begin(&work, problem, ROWS_FIRST))
        return;
    for (int backward = 0; backward < 2; backward++) {
        folds = outer_keys_sent = 0;
        enum ra_status status = (backward ? ra_backward : ra_forward)(work.plan, &work.x.arrays);
        EXPECT(status == RA_OK, "%s", ra_plan_error(work.plan));
        EXPECT(outer_keys_sent == ring_size / inner - 1 && folds == ring_size,
               "%d messages, %d folds", outer_keys_sent, folds);
        for (int turn = 0; turn < outer_keys_sent; turn++)
            EXPECT(folds_before[turn] == turn * inner, "turn %d: its message left behind %d folds",
                   turn, folds_before[turn]);
    }
    EXPECT(early == 0, "%d waits were too early", early);
    end_work(&work);
}

/* With one host, or one rank on each, a double ring is a ring: the same bits, messages, memory. */
TEST(one_ring)
{
    for (int hosts = 0; hosts < 2 && method == RA_DOUBLE_RING; hosts++) {
        struct problem problem = usual(37, 41);
        struct work one, other;
        int was = inner;
        inner = hosts ? 1 : ring_size;
        bool made = begin(&one, problem, ROWS_FIRST);
        method = RA_RING;
        made = begin(&other, problem, ROWS_FIRST) && made;
        method = RA_DOUBLE_RING;
        inner = was;
        if (!made)
            return;
        compute(&one);
        compute(&other);
        enum truth_array a = shard_difference(&one.x, &other.x);
        EXPECT(a == ARRAYS, "%s", truth_names[a]);
        EXPECT(ra_plan_workspace_bytes(one.plan) == ra_plan_workspace_bytes(other.plan),
               "%lld bytes", (long long)ra_plan_workspace_bytes(one.plan));
        end_work(&one);
        end_work(&other);
    }
}

/* ---- Tests of what is wrong. */

static void refused(struct ra_config config, enum ra_status expected, const char *words)
{
    char error[RA_ERROR_SIZE] = "";
    struct ra_plan *plan = NULL;
    enum ra_status status = create(&plan, &config, error);
    EXPECT(status == expected && !plan && strstr(error, words), "%s: %s", ra_status_text(status),
           error);
    ra_plan_destroy(plan);
}

TEST(refusals)
{
    struct ra_config good = usual(5 * ring_size, 5 * ring_size).config, config = good;
    use_method(&good);
    config = good;
    config.local_keys = true;
    refused(config, RA_INVALID, "config.local_keys = true leaves each rank with its own keys");
    config = good;
    config.heads = 5;
    refused(config, RA_INVALID, "config.key_heads");
    config = good;
    config.method = (enum ra_method)7;
    refused(config, RA_INVALID, "config.method = 7: give RA_RING, RA_GATHERED_KEYS, ");
    if (ring_size == 1)
        return;
    config = good;
    config.dim = 8 + world_rank % ring_size;
    refused(config, RA_DISAGREEMENT, "config.dim");
    config = good;
    if (world_rank % ring_size == 1)
        config.method = RA_RING, config.group = config.inner = 0;
    refused(config, RA_DISAGREEMENT, "ranks disagree about config.method: rank 0 has RA_");
    config = good;
    config.method = RA_EXCHANGED_HEADS;
    config.group = config.inner = 0;
    config.heads = config.key_heads = 1;
    refused(config, RA_INVALID, "ranks cannot share config.heads = 1");
    config.method = RA_HYBRID;
    config.heads = config.key_heads = 8;
    config.group = ring_size + 1;
    refused(config, RA_INVALID, "give a number that divides the");
    config.method = RA_RING;
    refused(config, RA_INVALID, "config.group = ");
    config.group = 0;
    config.inner = 2;
    refused(config, RA_INVALID, "config.inner = 2: needs method = RA_DOUBLE_RING");
    config.method = RA_DOUBLE_RING;
    config.inner = ring_size + 1;
    refused(config, RA_INVALID, "give a number that divides the");
    config = good;
    config.inner = 0;
    config.method = RA_HYBRID;
    config.group = 1 + (world_rank % ring_size == 1 ? ring_size - 1 : 0);
    config.heads = config.key_heads = 8;
    refused(config, RA_DISAGREEMENT, "ranks disagree about config.group");
}

/* The method that the ranks of a ring choose: the same on all of them, and right. Once is enough:
 * what is chosen is tested like any other. */
TEST(chosen)
{
    if (method != RA_GATHERED_KEYS)
        return;
    method = RA_AUTO_METHOD;
    for (int layout = 0; layout < 3; layout++) {
        struct problem problem = usual(41 + 40 * layout, 37);
        problem.config.layout = (enum ra_layout_kind)layout;
        problem.config.heads = layout == 1 ? 2 : 4;
        struct work work;
        if (!begin(&work, problem, ROWS_FIRST))
            break;
        struct ra_config made;
        ra_plan_config(work.plan, &made, sizeof made);
        int mine[3] = {(int)made.method, made.group, made.inner}, most[3], least[3];
        PMPI_Allreduce(mine, most, 3, MPI_INT, MPI_MAX, ring_comm);
        PMPI_Allreduce(mine, least, 3, MPI_INT, MPI_MIN, ring_comm);
        EXPECT(mine[0] != RA_AUTO_METHOD && memcmp(most, least, sizeof most) == 0,
               "method %d to %d, group %d to %d, inner %d to %d", least[0], most[0], least[1],
               most[1], least[2], most[2]);
        compute(&work);
        if (judges())
            problem_solve(&work.problem);
        judge(&work);
        end_work(&work);
    }
    struct ra_config config = usual(5 * ring_size, 5 * ring_size).config;
    config.method = world_rank % ring_size == 1 ? RA_RING : RA_AUTO_METHOD;
    if (ring_size > 1)
        refused(config, RA_DISAGREEMENT, "ranks disagree about config.method: rank 0 has RA_AUTO_");
    method = RA_GATHERED_KEYS;
}

/* What a plan of 16 bits sends has its type: no float32 for what goes to other ranks. */
TEST(types)
{
    for (int type = RA_FLOAT16; type <= RA_BFLOAT16; type++)
        for (int layout = 0; layout < 3; layout++) {
            struct problem problem = usual(45, 39);
            problem.config.type = (enum ra_type)type;
            problem.config.layout = (enum ra_layout_kind)layout;
            problem.config.softcap = layout == 1 ? 2 : 0;
            problem.masking = layout == 2 ? RANDOM_MASK : NO_MASK;
            solve(problem, (enum order)(layout + 1));
        }
    struct problem problem = usual(5 * ring_size, 5 * ring_size);
    problem.config.type = RA_BFLOAT16;
    problem.wide[O] = true;
    struct work work;
    if (!begin(&work, problem, ROWS_FIRST))
        return;
    PMPI_Barrier(MPI_COMM_WORLD); /* as in `trouble` */
    enum ra_status status = ra_forward(work.plan, &work.x.arrays);
    struct ra_config made;
    ra_plan_config(work.plan, &made, sizeof made);
    bool exchanges = ring_size > 1 && (method == RA_EXCHANGED_HEADS || made.group > 1);
    const char *text = "arrays.o.type = RA_FLOAT32: give RA_BFLOAT16";
    EXPECT((status == RA_OK) == !exchanges &&
               (!exchanges || strstr(ra_plan_error(work.plan), text)),
           "%s", ra_plan_error(work.plan));
    end_work(&work);
}

/* The plan that is cancelled while it computes. */
static struct ra_plan *to_cancel;

static void cancel_in_work(void *observer, const struct ra_event *event)
{
    (void)observer;
    if (event->kind == RA_EVENT_WORK && to_cancel)
        ra_plan_cancel(to_cancel);
}

/* Another thread, or a signal, ends the plan, before a call or within its work: this rank says so,
 * the others that they have lost it, and whom. Who has all that it needs by then, hears of it in
 * its next call. */
TEST(cancel)
{
    bool odd = world_rank % ring_size == ring_size - 1;
    for (int within = 0; within < 2; within++) {
        struct problem problem = usual(5 * ring_size, 5 * ring_size);
        problem.config.causal = false;
        problem.config.observe = cancel_in_work;
        struct work work;
        if (!begin(&work, problem, ROWS_FIRST))
            return;
        PMPI_Barrier(MPI_COMM_WORLD);
        to_cancel = odd && within ? work.plan : NULL;
        if (odd && !within)
            ra_plan_cancel(work.plan);
        enum ra_status status = ra_forward(work.plan, &work.x.arrays);
        if (status == RA_OK && !odd)
            status = ra_forward(work.plan, &work.x.arrays);
        char text[80];
        snprintf(text, sizeof text, "ring rank %d: cancelled by ra_plan_cancel", ring_size - 1);
        EXPECT(status == (odd ? RA_CANCELLED : RA_LOST) &&
                   strcmp(ra_plan_error(work.plan), text) == 0,
               "%s: %s", ra_status_text(status), ra_plan_error(work.plan));
        PMPI_Barrier(MPI_COMM_WORLD);
        end_work(&work);
    }
    to_cancel = NULL;
}

/* One rank gives no q: all are told so, and nobody waits. Or it does not come: the others wait for
 * the timeout. */
static void lose_ranks(bool comes)
{
    struct problem problem = usual(5 * ring_size, 5 * ring_size);
    problem.config.causal = false; /* each needs all others */
    struct work work;
    if (!begin(&work, problem, ROWS_FIRST))
        return;

    /* All have the plan: a rank's trouble may overtake the end of an agreement. */
    PMPI_Barrier(MPI_COMM_WORLD);
    call_timeout = comes ? 0 : 0.5;
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
        snprintf(last, sizeof last, "for rank %d to", ring_size - 1);
        const char *error = ra_plan_error(work.plan);
        /* Where others keep processors busy, a rank may be the first to have waited although its
         * neighbour, which waits for the last, is not late itself. It says so. */
        bool named = strstr(error, last) || strstr(error, "it waits as well, and no rank computes");
        EXPECT(comes ? strstr(error, "arrays.q") != NULL
                     : strstr(error, "waited 0.5 s for rank") && named,
               "%s", error);
    }
    EXPECT(ra_seconds() - began < 20, "%g s", ra_seconds() - began);

    /* The late rank hears why nobody waits for it. */
    PMPI_Barrier(MPI_COMM_WORLD);
    status = ra_forward(work.plan, &work.x.arrays);
    EXPECT(status == (ring_size > 1 ? RA_LOST : RA_OK), "%s", ra_status_text(status));
    end_work(&work);
    call_timeout = 0;
}

TEST(wrong_arrays)
{
    lose_ranks(true);
}

TEST(lost_rank)
{
    lose_ranks(false);
}

int main(int argc, char **argv)
{
    verdict_begin_ranks(argc, argv, patience, &world_rank, &ranks, &ring_size);
    PMPI_Comm_split(MPI_COMM_WORLD, world_rank / ring_size, 0, &ring_comm);
    static const struct {
        enum ra_method method;
        int group, inner;
    } ways[] = {{RA_GATHERED_KEYS, 0, 0}, {RA_EXCHANGED_HEADS, 0, 0}, {RA_HYBRID, 0, 0},
                {RA_HYBRID, 2, 0},        {RA_DOUBLE_RING, 0, 2},     {RA_DOUBLE_RING, 0, 3}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        method = ways[i].method;
        group = ways[i].group;
        inner = ways[i].inner;
        int part = group > 0 ? group : inner > 0 ? inner : 1;
        if (ring_size % part == 0)
            verdict_run_noted();
    }
    int code = verdict_end();
    PMPI_Comm_free(&ring_comm);
    MPI_Finalize();
    return code;
}
