/* check_library_mpi: the library of ring_attention_mpi.h on the ranks of a communicator. An MPI
 * program, and therefore without libcheck, which runs each test in a process of its own.
 *
 *   mpirun -n RANKS build/check-library-mpi [RING_SIZE]
 *   mpirun ... build/check-library-mpi RING_SIZE SIGNAL VICTIM CALL HOP FOLDER
 *
 * The first runs every test on every rank. A test that finds something wrong says so and goes on,
 * so that its ranks stay in step.
 *
 * The second is for tests/library-failures: rank VICTIM sends itself SIGNAL (0: it gets one from
 * somewhere else) in a CALL, create, forward or backward, after its work of a HOP. Every rank that
 * comes back and finds all as it should be leaves a file FOLDER/well.RANK.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>
#include "verdict.h"

#include "problems.h"
#include "ring_attention_mpi.h"

/* What no error is worth waiting for; the timeout of the tests in which somebody is lost; and what
 * a busy machine may add to that. */
static const double patience = 60, soon = 1, grace = 20;

/* The address sanitizer keeps freed memory for a while, has far more address space than memory, and
 * takes its time. */
#ifdef __SANITIZE_ADDRESS__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static int world_rank, ranks, ring_size;
static MPI_Comm ring_comm; /* the ranks of this one's ring in MPI_COMM_WORLD */

/* ---- What the library asks of MPI. MPI lets a program stand in for its functions, under whose
 * second names, PMPI_..., the work is still done. The tests themselves use the second names for
 * what is counted here. */

static atomic_int types, communicators, requests;
static _Atomic int64_t messages_sent, bytes_sent; /* of keys and gradients, by their tags */

/* Where large messages were to go, since `landings` was set to 0. */
enum { LARGE = 1 << 16, LANDINGS = 16 };
static atomic_int landings;
static struct {
    const float *into;
    int64_t bytes;
} landing[LANDINGS];

int MPI_Type_contiguous(int count, MPI_Datatype old, MPI_Datatype *type)
{
    types++;
    return PMPI_Type_contiguous(count, old, type);
}

int MPI_Type_create_struct(int count, const int lengths[], const MPI_Aint places[],
                           const MPI_Datatype old[], MPI_Datatype *type)
{
    types++;
    return PMPI_Type_create_struct(count, lengths, places, old, type);
}

int MPI_Type_create_hvector(int count, int length, MPI_Aint stride, MPI_Datatype old,
                            MPI_Datatype *type)
{
    types++;
    return PMPI_Type_create_hvector(count, length, stride, old, type);
}

int MPI_Type_free(MPI_Datatype *type)
{
    types--;
    return PMPI_Type_free(type);
}

int MPI_Comm_idup(MPI_Comm old, MPI_Comm *comm, MPI_Request *request)
{
    communicators++;
    requests++;
    return PMPI_Comm_idup(old, comm, request);
}

int MPI_Comm_free(MPI_Comm *comm)
{
    communicators--;
    return PMPI_Comm_free(comm);
}

int MPI_Isend(const void *from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    MPI_Count size;
    PMPI_Type_size_x(type, &size);
    messages_sent += tag < RA_CALL;
    bytes_sent += tag < RA_CALL ? count * (int64_t)size : 0;
    requests++;
    return PMPI_Isend(from, count, type, to, tag, comm, request);
}

int MPI_Irecv(void *into, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    MPI_Count size;
    PMPI_Type_size_x(type, &size);
    requests++;
    if (count * (int64_t)size >= LARGE && landings < LANDINGS) {
        landing[landings].into = into;
        landing[landings++].bytes = count * (int64_t)size;
    }
    return PMPI_Irecv(into, count, type, from, tag, comm, request);
}

int MPI_Iallgather(const void *from, int count, MPI_Datatype type, void *into, int each,
                   MPI_Datatype received, MPI_Comm comm, MPI_Request *request)
{
    requests++;
    return PMPI_Iallgather(from, count, type, into, each, received, comm, request);
}

int MPI_Iallreduce(const void *from, void *into, int count, MPI_Datatype type, MPI_Op operation,
                   MPI_Comm comm, MPI_Request *request)
{
    requests++;
    return PMPI_Iallreduce(from, into, count, type, operation, comm, request);
}

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status)
{
    bool was_under_way = *request != MPI_REQUEST_NULL;
    int code = PMPI_Test(request, done, status);
    requests -= was_under_way && *done;
    return code;
}

int MPI_Request_free(MPI_Request *request)
{
    requests--;
    return PMPI_Request_free(request);
}

/* ---- Problems. */

/* Memory that starts as POISON, with a guard behind. */
enum { BEHIND = 64, POISON = 0xFF };

static void *room(int64_t bytes)
{
    void *data = malloc((size_t)bytes + BEHIND);
    if (!data)
        MPI_Abort(MPI_COMM_WORLD, 1);
    return memset(data, POISON, (size_t)bytes + BEHIND);
}

static bool is_poison(const void *data, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++)
        if (((const unsigned char *)data)[i] != POISON)
            return false;
    return true;
}

static bool guard_holds(const void *data, int64_t bytes)
{
    return is_poison((const char *)data + bytes, BEHIND);
}

/* The problem from which the others are made: batch is that of ring 0; every further ring has one
 * more. Outputs are float32. */
static struct problem usual(int64_t queries, int64_t keys)
{
    struct problem problem = {.config = RA_CONFIG_INIT};
    struct ra_config *config = &problem.config;
    config->queries = queries;
    config->keys = keys;
    config->heads = config->key_heads = 2;
    config->dim = 8;
    config->ring_size = ring_size;
    config->tile_queries = config->tile_keys = 8;
    config->timeout = patience;
    for (enum truth_array a = O; a < ARRAYS; a++)
        problem.wide[a] = truth_is_output(a);
    return problem;
}

/* A ring's own part of a problem, its first outputs, and a plan. */
struct work {
    struct problem problem; /* with this ring's batch and inputs */
    enum order order;
    struct ra_plan *plan;
    int ring, rank; /* this rank is that one of this ring */
    struct shard x;
    double *kept[ARRAYS]; /* NULL: there were none */
};

/* The slices of the plans that are begun from now on; NULL: none. */
static struct {
    const struct ra_slice *list;
    int64_t count;
    enum ra_deal deal;
} mask;

/* The link that plans share; NULL: each has its own. */
static const struct ra_link *shared_link;

/* The timeout of calls from now on, where ranks are lost; 0: that of their plans. A plan has a long
 * one, and only calls that nobody may survive a short one: a busy machine may keep a rank that
 * nobody is to lose from its processor. */
static double call_timeout;
static void (*set_timeout_of_link)(void *self, double seconds);

static void set_timeout(void *self, double seconds)
{
    set_timeout_of_link(self, call_timeout > 0 ? call_timeout : seconds);
}

/* Makes a link over rings of so many ranks of `comm`, by its number, and a plan on it. */
static enum ra_status create(struct ra_plan **plan, const struct ra_config *config, MPI_Comm comm,
                             int size, double timeout, char *error)
{
    struct ra_link link;
    if (shared_link)
        return ra_plan_create(plan, config, shared_link, error);
    enum ra_status status = ra_mpi_link_f(&link, MPI_Comm_c2f(comm), size, timeout, error);
    if (status == RA_OK) {
        set_timeout_of_link = link.set_timeout;
        link.set_timeout = set_timeout;
        return ra_plan_create(plan, config, &link, error);
    }
    *plan = NULL;
    return status;
}

/* Makes a plan on `comm`, and the arrays of this rank. False: there is no plan. */
static bool begin(struct work *work, const struct problem *problem, enum order order, MPI_Comm comm)
{
    *work = (struct work){.problem = *problem, .order = order};
    struct problem *p = &work->problem;
    int rank, size;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    p->ranks = p->config.ring_size > 0 ? p->config.ring_size : size;
    work->ring = rank / p->ranks;
    work->rank = rank % p->ranks;
    p->config.batch += work->ring;
    p->seed = (unsigned)work->ring;
    problem_make(p);
    call_timeout = 0;
    char error[RA_ERROR_SIZE] = "";
    enum ra_status status =
        create(&work->plan, &p->config, comm, p->config.ring_size, patience, error);
    if (!HOLDS(status == RA_OK, "%s: %s", ra_status_text(status), error)) {
        problem_clear(p);
        return false;
    }
    EXPECT(ra_plan_rank(work->plan) == work->rank && ra_plan_ranks(work->plan) == p->ranks,
           "rank %d of %d", ra_plan_rank(work->plan), ra_plan_ranks(work->plan));
    p->truth.slices = mask.list;
    p->truth.slice_count = mask.count;
    if (mask.list)
        EXPECT(ra_plan_set_slices(work->plan, mask.list, mask.count, mask.deal) == RA_OK, "%s",
               ra_plan_error(work->plan));
    shard_make(p, &work->x, order, work->plan);
    return true;
}

/* Nothing but outputs was written to; these become NaN. */
static void expect_kept(struct shard *shard)
{
    char text[TEXT];
    shard_poison(shard, O, LSE);
    shard_poison(shard, DQ, DV);
    EXPECT(shard_is_kept(shard, false, text), "%s", text);
}

static void end(struct work *work)
{
    expect_kept(&work->x);
    outputs_clear(work->kept);
    shard_clear(&work->x);
    problem_clear(&work->problem);
    ra_plan_destroy(work->plan);
}

/* Forward and backward. The first time, keeps the outputs; later, they must be the same. */
static void compute(struct work *work)
{
    const struct problem *p = &work->problem;
    char text[TEXT];
    shard_poison(&work->x, O, LSE);
    shard_poison(&work->x, DQ, DV);
    for (int backward = 0; backward < (p->config.forward_only ? 1 : 2); backward++) {
        enum ra_status status = (backward ? ra_backward : ra_forward)(work->plan, &work->x.arrays);
        if (!HOLDS(status == RA_OK, "%s: %s: %s", backward ? "backward" : "forward",
                   ra_status_text(status), ra_plan_error(work->plan)))
            return;
        EXPECT(shard_is_kept(&work->x, backward, text), "%s", text);
    }
    double *got[ARRAYS];
    outputs_make(p, got);
    shard_collect(p, &work->x, got);
    for (enum truth_array a = O; a < ARRAYS; a++)
        EXPECT(!problem_writes(p, a) || !work->kept[a] ||
                   memcmp(work->kept[a], got[a],
                          (size_t)truth_count(&p->truth, a) * sizeof *got[a]) == 0,
               "%s: other bits than before", truth_names[a]);
    outputs_clear(work->kept);
    memcpy(work->kept, got, sizeof got);
}

/* Do these outputs have the bits of one process that computes with the same rows, those of a plan
 * or all of them, alone? */
static void expect_bits_of_one(const struct work *work, struct shard *shard,
                               const struct ra_plan *rows)
{
    const struct problem *p = &work->problem;
    struct ra_config config = p->config;
    config.ring_size = 1;
    config.local_keys = false;
    config.queries = shard->rows[RA_QUERY_SIDE];
    config.keys = shard->rows[RA_KEY_SIDE];
    struct shard alone;
    shard_make(p, &alone, work->order, rows);
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE] = "";
    enum ra_status status = ra_plan_create(&plan, &config, NULL, error);
    if (HOLDS(status == RA_OK, "%s", error)) {
        status = ra_forward(plan, &alone.arrays);
        if (status == RA_OK && !config.forward_only)
            status = ra_backward(plan, &alone.arrays);
        EXPECT(status == RA_OK, "%s", ra_plan_error(plan));
        ra_plan_destroy(plan);
        enum truth_array a = shard_difference(&alone, shard);
        EXPECT(a == ARRAYS, "%s: other bits than one process", truth_names[a % ARRAYS]);
    }
    shard_clear(&alone);
}

/* How an array lies in memory, so that it can be sharded: (outer, rows, row_bytes). */
static int64_t outer_of(const struct work *work, enum truth_array a)
{
    const struct truth *t = &work->problem.truth;
    return t->B * (work->order == HEADS_FIRST || a == LSE ? truth_heads(t, a) : 1);
}

static int64_t row_bytes_of(const struct work *work, enum truth_array a)
{
    const struct truth *t = &work->problem.truth;
    int64_t bytes = truth_width(t, a) * ra_type_bytes(problem_type(&work->problem, a));
    return bytes * (work->order == HEADS_FIRST || a == LSE ? 1 : truth_heads(t, a));
}

/* Scatters the inputs of a problem, computes, gathers and judges. */
static void solve(const struct problem *problem, enum order order, MPI_Comm comm, int rounds)
{
    struct work work;
    if (!begin(&work, problem, order, comm))
        return;
    struct problem *p = &work.problem;
    int root = ra_plan_ranks(work.plan) - 1;
    struct shard whole;
    void *data[ARRAYS] = {NULL}; /* of the whole, where the root is */
    shard_make(p, &whole, order, NULL);
    for (enum truth_array a = Q; a < ARRAYS && work.rank == root; a++)
        data[a] = whole.blocks[a].data;

    /* What comes is what the layout says, which the arrays were made of. */
    struct shard own;
    shard_make(p, &own, order, work.plan);
    shard_poison(&work.x, Q, D_OUT);
    for (enum truth_array a = Q; a <= D_OUT; a++) {
        if (truth_is_output(a))
            continue;
        enum ra_status status =
            ra_mpi_scatter(work.plan, side_of(a), outer_of(&work, a), row_bytes_of(&work, a), root,
                           data[a], work.x.blocks[a].data);
        EXPECT(status == RA_OK, "%s: %s", truth_names[a], ra_plan_error(work.plan));
    }
    enum truth_array wrong = shard_difference(&own, &work.x);
    EXPECT(wrong == ARRAYS, "%s: other rows", truth_names[wrong % ARRAYS]);
    shard_clear(&own);
    for (enum truth_array a = Q; a < ARRAYS; a++)
        memcpy(work.x.blocks[a].before, work.x.blocks[a].data, (size_t)work.x.blocks[a].bytes);
    for (int round = 0; round < rounds; round++)
        compute(&work);

    for (enum truth_array a = O; a < ARRAYS; a++) {
        if (!problem_writes(p, a))
            continue;
        enum ra_status status =
            ra_mpi_gather(work.plan, side_of(a), outer_of(&work, a), row_bytes_of(&work, a), root,
                          work.x.blocks[a].data, data[a]);
        EXPECT(status == RA_OK, "%s: %s", truth_names[a], ra_plan_error(work.plan));
    }
    if (work.rank == root) {
        double *got[ARRAYS];
        char text[TEXT];
        outputs_make(p, got);
        shard_collect(p, &whole, got);
        problem_solve(p);
        EXPECT(problem_is_right(p, got, text), "%s", text);
        outputs_clear(got);
        if (root == 0 && p->config.layout == RA_CONTIGUOUS && !mask.list)
            expect_bits_of_one(&work, &whole, NULL);
        expect_kept(&whole);
    }
    shard_clear(&whole);
    end(&work);
}

/* ---- Ranks that were told different things. */

/* Do all ranks of `comm` have this status and text? */
static void expect_same(MPI_Comm comm, enum ra_status status, const char *text)
{
    struct {
        int status;
        char text[RA_ERROR_SIZE];
    } first = {.status = (int)status};
    snprintf(first.text, sizeof first.text, "%s", text);
    PMPI_Bcast(&first, sizeof first, MPI_BYTE, 0, comm);
    EXPECT(first.status == (int)status, "%s, but %s on the first rank: %s", ra_status_text(status),
           ra_status_text((enum ra_status)first.status), text);
    EXPECT(strcmp(first.text, text) == 0, "'%s', but on the first rank '%s'", text, first.text);
}

/* Are all of these words in the text, in this order? */
static void expect_words(const char *text, const char *const *words)
{
    const char *rest = text;
    for (int w = 0; words[w] && rest; w++) {
        rest = strstr(rest, words[w]);
        EXPECT(rest, "no '%s', or not there, in: %s", words[w], text);
        if (rest)
            rest += strlen(words[w]);
    }
}

/* What texts say before the reason of a rank of the ring; alone a rank need not say which it is. */
static const char *speaker(int rank, char text[20])
{
    text[0] = '\0';
    if (ring_size > 1)
        snprintf(text, 20, "ring rank %d: ", rank);
    return text;
}

/* Makes a plan that must come to nothing: on all ranks of the ring with this status and the same
 * text, in which all of these words are found, in this order. */
static void refused(const struct ra_config *config, enum ra_status expected,
                    const char *const *words)
{
    char error[RA_ERROR_SIZE] = "";
    struct ra_plan *plan = (struct ra_plan *)error; /* what must be overwritten */
    double began = ra_seconds();
    enum ra_status status = create(&plan, config, MPI_COMM_WORLD, ring_size, patience, error);
    EXPECT(status == expected, "%s instead of %s: %s", ra_status_text(status),
           ra_status_text(expected), error);
    EXPECT(status == RA_OK || !plan, "a plan in spite of: %s", error);
    EXPECT(ra_seconds() - began < grace, "after %g s: %s", ra_seconds() - began, error);
    expect_same(ring_comm, status, error);
    expect_words(error, words);
    if (status == RA_OK)
        ra_plan_destroy(plan);
}

/* Every field that ranks must agree about, and two good values of it. */
static const struct field {
    const char *name;
    size_t offset;
    enum { WHOLE, INT, FLAG, REAL } kind;
    double values[2];
    const char *names[2]; /* of INT */
} fields[] = {
#define AT(name) #name, offsetof(struct ra_config, name)
    {AT(batch), WHOLE, {2, 7}, {0}},
    {AT(queries), WHOLE, {24, 25}, {0}},
    {AT(keys), WHOLE, {24, 27}, {0}},
    {AT(heads), WHOLE, {4, 6}, {0}},
    {AT(key_heads), WHOLE, {2, 1}, {0}},
    {AT(dim), WHOLE, {8, 9}, {0}},
    {AT(dim_value), WHOLE, {8, 9}, {0}},
    {AT(type), INT, {0, 2}, {"RA_FLOAT32", "RA_BFLOAT16"}},
    {AT(has_mask), FLAG, {0, 1}, {0}},
    {AT(forward_only), FLAG, {0, 1}, {0}},
    {AT(causal), FLAG, {1, 0}, {0}},
    {AT(local_keys), FLAG, {0, 1}, {0}},
    {AT(lookback), WHOLE, {10, 11}, {0}},
    {AT(head_map), INT, {0, 1}, {"RA_GROUPED", "RA_INTERLEAVED"}},
    {AT(scale), REAL, {0.5, 0.25}, {0}},
    {AT(softcap), REAL, {20, 30}, {0}},
    {AT(layout), INT, {1, 2}, {"RA_STRIPED", "RA_ZIGZAG"}},
    {AT(bucket), WHOLE, {3, 4}, {0}},
    {AT(tile_queries), WHOLE, {16, 17}, {0}},
    {AT(tile_keys), WHOLE, {16, 18}, {0}},
    {AT(timeout), REAL, {60, 61}, {0}},
    {AT(transport), INT, {0, 3}, {"RA_ANY_TRANSPORT", "RA_HOST_LINK"}},
    {AT(deterministic), FLAG, {0, 1}, {0}},
#undef AT
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

/* What ranks are told: with one value of this field, or the other. */
static struct ra_config told(const struct field *field, bool other)
{
    struct ra_config config = RA_CONFIG_INIT;
    config.batch = 2;
    config.queries = config.keys = 24;
    config.heads = 4;
    config.key_heads = 2;
    config.dim = 8;
    config.causal = true;
    config.layout = RA_STRIPED;
    config.ring_size = ring_size;
    config.timeout = patience;
    double value = field->values[other];
    char *at = (char *)&config + field->offset;
    if (field->kind == WHOLE)
        *(int64_t *)(void *)at = (int64_t)value;
    else if (field->kind == INT)
        *(int *)(void *)at = (int)value;
    else if (field->kind == FLAG)
        *(bool *)at = value != 0;
    else
        *(double *)(void *)at = value;
    return config;
}

/* One of the two values of a field, as a caller would write it. */
static const char *written(const struct field *field, bool other, char text[40])
{
    double value = field->values[other];
    snprintf(text, 40, "%.17g", value);
    if (field->kind == FLAG)
        return value != 0 ? "true" : "false";
    return field->kind == INT ? field->names[other] : text;
}

/* One rank of one ring has another value: its ring has no plan, all others have. */
static void test_disagreement(void)
{
    for (const struct field *field = fields; field < fields + FIELDS; field++)
        for (int odd = 0; odd < ranks; odd++) {
            struct ra_config config = told(field, world_rank == odd);
            if (ring_size == 1 || odd / ring_size != world_rank / ring_size) {
                refused(&config, RA_OK, (const char *[]){NULL});
                continue;
            }

            /* Every rank is compared with the first one: if that is the odd one, the second is
             * named. */
            int place = odd % ring_size;
            char text[160], first[40], other[40];
            snprintf(text, sizeof text, "config.%s: rank 0 has %s, rank %d has %s", field->name,
                     written(field, place == 0, first), place == 0 ? 1 : place,
                     written(field, place != 0, other));
            refused(&config, RA_DISAGREEMENT,
                    (const char *[]){"ranks disagree about ", text, NULL});
        }
}

/* Makes a link that must come to nothing, on all ranks with this status and these words. */
static void no_link(int size, double timeout, enum ra_status expected, bool same_text,
                    const char *const *words)
{
    struct ra_link link;
    char error[RA_ERROR_SIZE] = "";
    double began = ra_seconds();
    enum ra_status status = ra_mpi_link(&link, MPI_COMM_WORLD, size, timeout, error);
    EXPECT(status == expected, "%s instead of %s: %s", ra_status_text(status),
           ra_status_text(expected), error);
    EXPECT(ra_seconds() - began < grace, "after %g s: %s", ra_seconds() - began, error);
    expect_same(MPI_COMM_WORLD, status, same_text ? error : "");
    expect_words(error, words);
    EXPECT(status != RA_OK || link.close(link.self), "a link that does not close");
}

/* What ranks must agree about before there are rings. */
static void test_ring_sizes(void)
{
    char text[120];
    for (int odd = 0; odd < ranks && ranks > 1; odd++) {
        /* Of two sizes, each of which would do. */
        snprintf(text, sizeof text, "ring_size: one gives 1, another %d", ranks);
        no_link(world_rank == odd ? 1 : ranks, patience, RA_DISAGREEMENT, true,
                (const char *[]){"ranks disagree about ", text, NULL});
        no_link(1, world_rank == odd ? -1 : patience, RA_INVALID, false,
                (const char *[]){"timeout", NULL});
    }

    /* Of sizes that all give, and that do not divide the ranks. */
    const int wrong[] = {-1, -ranks, ranks + 1, 2 * ranks};
    for (int w = 0; w < 4; w++) {
        snprintf(text, sizeof text, "ring_size = %d: give a number that divides the %d ranks",
                 wrong[w], ranks);
        no_link(wrong[w], patience, RA_INVALID, true, (const char *[]){text, NULL});
    }
    no_link(1, (double)NAN, RA_INVALID, true,
            (const char *[]){"timeout, on one of the ranks", "0 for no limit", NULL});
    EXPECT(ra_mpi_link(NULL, MPI_COMM_WORLD, 1, patience, NULL) == RA_INVALID, "NULL");

    /* Links that are closed unused. */
    for (int size = 0; size <= 1; size++)
        no_link(size, patience, RA_OK, true, (const char *[]){NULL});
}

/* Ranks of all rings share processors with those that may use the same ones: as the job began, and
 * with every other rank on one processor only. */
static void test_sharing(void)
{
    cpu_set_t whole, set, *sets = malloc((size_t)ranks * sizeof *sets);
    CPU_ZERO(&whole);
    EXPECT(sched_getaffinity(0, sizeof whole, &whole) == 0, "no set of processors");
    set = whole;
    for (int round = 0; round < 2; round++) {
        PMPI_Allgather(&set, sizeof set, MPI_BYTE, sets, sizeof set, MPI_BYTE, MPI_COMM_WORLD);
        int expected = 0;
        for (int r = 0; r < ranks; r++)
            expected += CPU_EQUAL(&sets[r], &set);
        struct ra_link link;
        char text[RA_ERROR_SIZE] = "";
        enum ra_status status = ra_mpi_link(&link, MPI_COMM_WORLD, 1, patience, text);
        if (HOLDS(status == RA_OK, "%s", text)) {
            EXPECT(link.sharing == expected, "%d ranks, not %d", link.sharing, expected);
            link.close(link.self);
        }
        for (int cpu = CPU_SETSIZE - 1; cpu >= 0 && world_rank % 2 && CPU_COUNT(&set) > 1; cpu--)
            CPU_CLR(cpu, &set);
        EXPECT(sched_setaffinity(0, sizeof set, &set) == 0, "cannot be on one processor");
    }
    sched_setaffinity(0, sizeof whole, &whole);
    free(sets);
}

/* A config that is wrong by itself, on one rank: all of its ring get its reason. */
static void test_wrong_config(void)
{
    static const char *const words[] = {"config is NULL", "config.size",     "config.heads = 0",
                                        "config.dim = 0", "config.lookback", "config.scale",
                                        "config.timeout", "config.ring_size"};
    enum { WORDS = sizeof words / sizeof words[0] };
    struct ra_config config = usual(24, 24).config, bad[WORDS];
    for (int w = 0; w < WORDS; w++)
        bad[w] = config;
    bad[1].size = 3;
    bad[2].heads = 0;
    bad[3].dim = 0;
    bad[4].lookback = 5;
    bad[5].scale = (double)NAN;
    bad[6].timeout = -1;
    bad[7].ring_size = ranks + 1;
    char who[20];
    for (int w = 0; w < WORDS; w++)
        for (int odd = 0; odd < ranks; odd++) {
            const struct ra_config *mine = world_rank != odd ? &config : w == 0 ? NULL : &bad[w];
            if (odd / ring_size == world_rank / ring_size)
                refused(mine, RA_INVALID,
                        (const char *[]){speaker(odd % ring_size, who), words[w], NULL});
            else
                refused(mine, RA_OK, (const char *[]){NULL});
        }

    /* On all ranks, the first one's; and the last two ranks of a ring have two reasons. Wrong comes
     * before different. */
    config.heads = 0;
    refused(&config, RA_INVALID, (const char *[]){speaker(0, who), "config.heads = 0", NULL});
    if (ring_size > 1) {
        int rank = world_rank % ring_size;
        config = usual(24, 24).config;
        config.queries += rank == 0;
        config.heads -= rank == ring_size - 2 ? 2 : 0;
        config.dim -= rank == ring_size - 1 ? 8 : 0;
        refused(&config, RA_INVALID,
                (const char *[]){speaker(ring_size - 2, who), "config.heads = 0", NULL});
    }

    /* Whoever does not want the text may give none. */
    struct ra_plan *plan;
    enum ra_status status = create(&plan, &config, MPI_COMM_WORLD, ring_size, patience, NULL);
    EXPECT(status == RA_INVALID && !plan, "%s", ra_status_text(status));
}

/* What one rank may say in another way, or has to itself, is no disagreement. */
static void count_event(void *observer, const struct ra_event *event)
{
    (void)event;
    (*(int *)observer)++;
}

static void test_agreement(void)
{
    int events = 0;
    struct problem problem = usual(24, 24);
    struct ra_config config = problem.config;
    config.scale = 1 / sqrt(8.0);
    if (world_rank == ranks - 1) {
        config.scale = RA_DEFAULT_SCALE;
        config.keys = config.key_heads = RA_SAME;
        problem.config.observe = count_event;
        problem.config.observer = &events;
    }
    refused(&config, RA_OK, (const char *[]){NULL});
    solve(&problem, ROWS_FIRST, MPI_COMM_WORLD, 1);
    EXPECT(world_rank != ranks - 1 || events >= 2 * ring_size, "%d events", events);
}

/* A rank without memory: first for what no machine has, on all ranks; then one rank that may use
 * only little more than it does now. */
static void test_memory(void)
{
    char who[20];
    struct problem problem = usual(1 << 20, 1 << 20);
    problem.config.batch = 1 << 12;
    problem.config.dim = 1 << 15;
    refused(&problem.config, RA_OUT_OF_MEMORY,
            (const char *[]){speaker(0, who), "no memory", NULL});

    for (int odd = 0; odd < ranks && !SANITIZED; odd++) {
        struct rlimit before, now;
        getrlimit(RLIMIT_AS, &before);
        now = before;
        long pages = 0;
        FILE *file = fopen("/proc/self/statm", "r");
        EXPECT(file && fscanf(file, "%ld", &pages) == 1, "no /proc/self/statm");
        if (file)
            fclose(file);
        now.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (64 << 20);
        if (world_rank == odd)
            setrlimit(RLIMIT_AS, &now);

        /* Rows for 200 MB and more on each rank. */
        problem = usual(ring_size << 15, ring_size << 15);
        problem.config.dim = 128;
        if (odd / ring_size == world_rank / ring_size)
            refused(&problem.config, RA_OUT_OF_MEMORY,
                    (const char *[]){speaker(odd % ring_size, who), "no memory", NULL});
        else
            refused(&problem.config, RA_OK, (const char *[]){NULL});
        setrlimit(RLIMIT_AS, &before);
    }
    problem = usual(9, 9);
    solve(&problem, ROWS_FIRST, MPI_COMM_WORLD, 1);
}

/* ---- Results. */

static void test_results(void)
{
    struct problem p = usual(37, 37);
    solve(&p, ROWS_FIRST, MPI_COMM_WORLD, 2);

    /* Every layout, under a causal mask: each with another length of queries and keys. */
    static const enum ra_layout_kind layouts[] = {RA_CONTIGUOUS, RA_STRIPED, RA_STRIPED, RA_ZIGZAG};
    for (int l = 0; l < 4; l++) {
        p = usual(23 + l, 50 - 9 * l);
        enum order order = l % 2 == 0 ? HEADS_FIRST : ROWS_FIRST;
        p.config.causal = true;
        p.config.layout = layouts[l];
        p.config.bucket = l == 2 ? 3 : 0;
        solve(&p, order, MPI_COMM_WORLD, 2);
        p.config.lookback = 9;
        solve(&p, order, MPI_COMM_WORLD, 1);
    }

    /* Every type, with groups of heads and a mask; outputs in float32, and in the type itself. */
    static const enum ra_type types_of[] = {RA_FLOAT32, RA_FLOAT16, RA_BFLOAT16};
    for (int t = 0; t < 3; t++)
        for (int same = 0; same < 2; same++) {
            p = usual(29, 31);
            if (same)
                memset(p.wide, 0, sizeof p.wide);
            p.config.type = types_of[t];
            p.config.heads = 4;
            p.config.key_heads = t == 0 ? 1 : 2;
            p.config.head_map = same ? RA_GROUPED : RA_INTERLEAVED;
            p.masking = RANDOM_MASK;
            p.config.causal = t == 2;
            p.config.layout = t == 1 ? RA_CONTIGUOUS : RA_STRIPED;
            solve(&p, t == 1 ? HEADS_FIRST : ROWS_FIRST, MPI_COMM_WORLD, 1);
        }

    p = usual(40, 40);
    p.config.softcap = 3;
    p.config.scale = 1;
    solve(&p, ROWS_FIRST, MPI_COMM_WORLD, 1);
    p.config.forward_only = true;
    p.config.causal = true;
    p.config.lookback = 0;
    solve(&p, ROWS_FIRST, MPI_COMM_WORLD, 1);

    /* Fewer rows than ranks, on one side or both; no rows; no batches but in later rings. */
    static const int64_t lengths[][2] = {{1, 1}, {3, 2}, {1, 40}, {40, 1}, {0, 5}, {5, 0}, {0, 0}};
    for (int i = 0; i < 7; i++) {
        p = usual(lengths[i][0], lengths[i][1]);
        p.config.causal = i % 2 == 0;
        p.masking = i == 3 ? RANDOM_MASK : NO_MASK;
        p.config.layout = i % 3 == 0 ? RA_STRIPED : RA_ZIGZAG;
        solve(&p, ROWS_FIRST, MPI_COMM_WORLD, 1);
    }
    p = usual(7, 7);
    p.config.batch = 0;
    solve(&p, ROWS_FIRST, MPI_COMM_WORLD, 1);

    /* Messages that no longer travel with the sender's first word, of several tiles each. */
    p = usual(300, 300);
    p.config.type = RA_BFLOAT16;
    p.config.dim = 64;
    p.config.causal = true;
    p.config.layout = RA_ZIGZAG;
    p.config.tile_queries = 24;
    p.config.tile_keys = 0;
    solve(&p, ROWS_FIRST, MPI_COMM_WORLD, 1);
}

/* Documents over MPI, in every layout and dealt one by one: scatter, both passes, gather. A deal
 * has pieces of 32 rows or more. */
static void test_slices(void)
{
    enum { N = 211, M = 147, DOCUMENTS = 5 };
    static const int64_t bounds[] = {0, 1, 2, 70, 133, N};
    static const int64_t bounds_of_keys[] = {0, 39, 39, 90, 91, M};
    struct ra_slice list[DOCUMENTS];
    for (int trial = 0; trial < 8; trial++) {
        bool pairs = trial >= 6;
        struct problem p = usual(N, pairs ? M : N);
        p.config.layout = (enum ra_layout_kind)(trial % 3);
        p.config.max_slices = DOCUMENTS;
        p.config.max_rows = N;
        p.config.type = trial == 5 ? RA_BFLOAT16 : RA_FLOAT32;
        p.masking = trial % 2 ? RANDOM_MASK : NO_MASK;
        if (pairs)
            ra_slices_pairs(bounds, bounds_of_keys, DOCUMENTS, list);
        else
            ra_slices_documents(bounds, DOCUMENTS, RA_NO_LOOKBACK, 0, list);
        mask.list = list;
        mask.count = DOCUMENTS;
        mask.deal = trial % 2 ? RA_DEAL_DOCUMENTS : RA_DEAL_LAYOUT;
        solve(&p, ROWS_FIRST, MPI_COMM_WORLD, 2);
    }
    mask.list = NULL;
    mask.count = 0;
}

/* Ranks with other slices over MPI: all lose their plans, with the reason, and none waits. */
static void test_other_slices(void)
{
    struct problem p = usual(40, 40);
    struct work work;
    p.config.max_slices = 1;
    p.config.max_rows = 40;
    if (ring_size < 2 || !begin(&work, &p, ROWS_FIRST, MPI_COMM_WORLD))
        return;
    struct ra_slice list[1];
    PMPI_Barrier(MPI_COMM_WORLD); /* all have their plan */
    ra_slices_window(40, 40, work.rank == 1 ? 1 : RA_NO_LOOKBACK, 0, list);
    double began = ra_seconds();
    enum ra_status status = ra_plan_set_slices(work.plan, list, 1, RA_DEAL_LAYOUT);
    for (int calls = 0; calls < 2 * ring_size && status == RA_OK; calls++)
        status = ra_forward(work.plan, &work.x.arrays);
    EXPECT(status == RA_LOST, "%s", ra_status_text(status));
    if (work.rank == 1 || work.rank == 2 % ring_size)
        EXPECT(strstr(ra_plan_error(work.plan), "slices"), "%s", ra_plan_error(work.plan));

    /* The plan keeps its reason, whatever list it is given. */
    char reason[RA_ERROR_SIZE];
    snprintf(reason, sizeof reason, "%s", ra_plan_error(work.plan));
    EXPECT(ra_plan_set_slices(work.plan, list, 1, RA_DEAL_LAYOUT) == RA_LOST, "a list was taken");
    EXPECT(ra_plan_set_slices(work.plan, NULL, 1, RA_DEAL_LAYOUT) == RA_LOST, "a list was read");
    EXPECT(ra_plan_set_slices_like(work.plan, list, 1, NULL) == RA_LOST, "a plan was read");
    EXPECT(strcmp(reason, ra_plan_error(work.plan)) == 0, "%s", ra_plan_error(work.plan));
    EXPECT(ra_seconds() - began < patience / 2, "%g s", ra_seconds() - began);
    end(&work);
}

/* Without a ring each rank is one process with its own rows. */
static void test_local_keys(void)
{
    struct problem problem = usual(21, 33);
    problem.config.local_keys = true;
    struct work work;
    if (!begin(&work, &problem, ROWS_FIRST, MPI_COMM_WORLD))
        return;
    int64_t before = messages_sent;
    compute(&work);
    EXPECT(messages_sent == before, "%lld messages", (long long)(messages_sent - before));
    expect_bits_of_one(&work, &work.x, work.plan);
    end(&work);
}

/* ---- Rows that are handed out and collected. */

/* Byte i of row `position` of part `outer` of the ring's whole. */
static unsigned char byte_of(int ring, int64_t outer, int64_t position, int64_t i)
{
    uint64_t state = (uint64_t)((((ring * 7 + outer) << 20) + position * 4096) * 4096 + i);
    return (unsigned char)random_bits(&state);
}

/* One round trip. The whole is only where the root is. */
static void round_trip(struct work *work, enum ra_side side, int64_t outer, int64_t row_bytes,
                       int root)
{
    int64_t length = problem_length(&work->problem, side), rows = work->x.rows[side];
    int64_t whole_bytes = outer * length * row_bytes, bytes = outer * rows * row_bytes;
    unsigned char *whole = NULL, *local = room(bytes);
    if (work->rank == root) {
        whole = room(whole_bytes);
        for (int64_t at = 0; at < whole_bytes; at++)
            whole[at] = byte_of(work->ring, at / row_bytes / length, at / row_bytes % length,
                                at % row_bytes);
    }
    enum ra_status status = ra_mpi_scatter(work->plan, side, outer, row_bytes, root, whole, local);
    EXPECT(status == RA_OK, "%s", ra_plan_error(work->plan));
    int64_t found = 0;
    for (int64_t at = 0; at < bytes; at++) {
        int64_t row = ra_plan_position(work->plan, side, at / row_bytes % rows);
        found += local[at] == byte_of(work->ring, at / row_bytes / rows, row, at % row_bytes);
    }
    EXPECT(found == bytes && guard_holds(local, bytes),
           "outer %lld, %lld rows of %lld bytes, root %d: %lld of %lld bytes", (long long)outer,
           (long long)length, (long long)row_bytes, root, (long long)found, (long long)bytes);

    /* Back. What was there before must be overwritten, all of it and nothing else. */
    if (whole)
        memset(whole, POISON, (size_t)whole_bytes);
    status = ra_mpi_gather(work->plan, side, outer, row_bytes, root, local, whole);
    EXPECT(status == RA_OK, "%s", ra_plan_error(work->plan));
    if (whole) {
        found = 0;
        for (int64_t at = 0; at < whole_bytes; at++)
            found += whole[at] == byte_of(work->ring, at / row_bytes / length,
                                          at / row_bytes % length, at % row_bytes);
        EXPECT(found == whole_bytes && guard_holds(whole, whole_bytes), "%lld of %lld bytes",
               (long long)found, (long long)whole_bytes);
    }
    free(whole);
    free(local);
}

static void test_round_trips(void)
{
    static const enum ra_layout_kind layouts[] = {RA_CONTIGUOUS, RA_STRIPED, RA_ZIGZAG};
    for (int l = 0; l < 3; l++) {
        struct problem problem = usual(37, 2);
        problem.config.layout = layouts[l];
        problem.config.bucket = l == 1 ? 3 : 0;
        struct work work;
        if (!begin(&work, &problem, ROWS_FIRST, MPI_COMM_WORLD))
            return;
        for (int root = 0; root<ring_size; root += ring_size> 1 ? ring_size - 1 : 1)
            for (int side = 0; side < 2; side++)
                for (int64_t outer = 0; outer <= 3; outer += 1 + outer) {
                    round_trip(&work, (enum ra_side)side, outer, 1, root);
                    round_trip(&work, (enum ra_side)side, outer, 3, root);
                    round_trip(&work, (enum ra_side)side, outer, 4096, root);
                }
        if (l == 0)
            round_trip(&work, RA_KEY_SIDE, 1, 2 << 20, 0);

        /* Rings do not wait for each other. */
        if (work.ring == 0)
            round_trip(&work, RA_QUERY_SIDE, 2, 5, ring_size - 1);
        end(&work);
    }
}

/* Wrong arguments, on all ranks of a ring, or on one: then the others may find out only by waiting
 * in vain. */
static void test_wrong_rows(void)
{
    static const struct {
        int64_t outer, row_bytes;
        int root;
        bool no_local;
        const char *words;
    } cases[] = {{-1, 4, 0, false, "outer = -1"},     {1, 0, 0, false, "row_bytes = 0"},
                 {1, -4, 0, false, "row_bytes = -4"}, {1, 4, -1, false, "root = -1"},
                 {1, 4, 8, false, "root = 8"},        {INT64_MAX / 2, 64, 0, false, "outer = "},
                 {1, 4, 0, true, "local is NULL"}};
    enum { CASES = sizeof cases / sizeof cases[0] };
    for (int c = 0; c < 2 * CASES; c++)
        for (int who = -1; who < ring_size; who++) {
            struct problem problem = usual(12, 12);
            struct work work;
            if (!begin(&work, &problem, ROWS_FIRST, MPI_COMM_WORLD))
                return;

            /* A rank that gives up before the others have their plans leaves them without. */
            PMPI_Barrier(MPI_COMM_WORLD);
            static char rows[2][12 * 4];
            bool odd = who < 0 || work.rank == who, scatters = c < CASES;
            int64_t outer = odd ? cases[c % CASES].outer : 1;
            int64_t row_bytes = odd ? cases[c % CASES].row_bytes : 4;
            int root = odd ? cases[c % CASES].root : 0;
            void *local = odd && cases[c % CASES].no_local ? NULL : rows[0];
            double began = ra_seconds();
            enum ra_status status =
                scatters
                    ? ra_mpi_scatter(work.plan, RA_KEY_SIDE, outer, row_bytes, root, rows[1], local)
                    : ra_mpi_gather(work.plan, RA_KEY_SIDE, outer, row_bytes, root, local, rows[1]);
            EXPECT(ra_seconds() - began < grace, "case %d: %g s", c, ra_seconds() - began);
            EXPECT(status == (odd ? RA_INVALID : RA_LOST) || (!odd && status == RA_OK),
                   "case %d: %s", c, ra_status_text(status));
            EXPECT(status == RA_OK || strstr(ra_plan_error(work.plan), cases[c % CASES].words),
                   "case %d: %s", c, ra_plan_error(work.plan));
            PMPI_Barrier(MPI_COMM_WORLD);
            end(&work);
        }
}

/* Arguments that are each right, but not the same on the root and on another rank. Whoever differs
 * from the root says so. */
static void test_different_rows(void)
{
    for (int way = 0; way < 8 && ring_size > 1; way++)
        for (int who = 0; who < ring_size; who++) {
            struct problem problem = usual(12, 12);
            struct work work;
            if (!begin(&work, &problem, ROWS_FIRST, MPI_COMM_WORLD))
                return;
            PMPI_Barrier(MPI_COMM_WORLD);
            static char rows[2][2 * 12 * 8];
            bool odd = work.rank == who, scatters = (way < 4) != (odd && way % 4 == 3);
            enum ra_side side = odd && way % 4 == 0 ? RA_KEY_SIDE : RA_QUERY_SIDE;
            int64_t outer = odd && way % 4 == 1 ? 2 : 1, row_bytes = odd && way % 4 == 2 ? 8 : 4;
            enum ra_status status =
                scatters ? ra_mpi_scatter(work.plan, side, outer, row_bytes, 0, rows[0], rows[1])
                         : ra_mpi_gather(work.plan, side, outer, row_bytes, 0, rows[1], rows[0]);
            bool differs = odd ? work.rank > 0 : who == 0;
            EXPECT(status == RA_LOST || (!differs && status == RA_OK), "way %d, odd %d: %s", way,
                   who, ra_status_text(status));
            EXPECT(status == RA_OK || strstr(ra_plan_error(work.plan),
                                             way % 4 == 3 ? ", a gather" : "give the same"),
                   "way %d, odd %d: %s", way, who, ra_plan_error(work.plan));
            PMPI_Barrier(MPI_COMM_WORLD);
            end(&work);
        }
}

/* ---- Calls with wrong arrays. */

/* Makes one array of a call wrong; returns what must be said about it. */
static const char *spoil(struct ra_arrays *arrays, int how)
{
    switch (how) {
    case 0:
        arrays->size = 7;
        return "arrays.size = 7";
    case 1:
        arrays->q.data = NULL;
        return "arrays.q";
    case 2:
        arrays->v.type = RA_BFLOAT16;
        return "arrays.v";
    default:
        arrays->lse.data = NULL;
        return "arrays.lse";
    }
}

/* On one rank of ring 0, in the forward or in the backward. All ranks of that ring must hear of it
 * at once, in the same words, and the other rings nothing. Whoever waits for no message in this
 * call may hear of it in the next one. */
static void refuse_arrays(const struct problem *problem, int how, int odd, bool backward,
                          bool all_wait)
{
    struct work work;
    if (!begin(&work, problem, ROWS_FIRST, MPI_COMM_WORLD))
        return;
    compute(&work);
    const char *word = "arrays is NULL";
    struct ra_arrays arrays = work.x.arrays, *given = world_rank == odd && how < 0 ? NULL : &arrays;
    if (how >= 0) {
        struct ra_arrays spoilt = arrays;
        word = spoil(&spoilt, how);
        if (world_rank == odd)
            arrays = spoilt;
    }
    if (world_rank == odd)
        expect_kept(&work.x);
    PMPI_Barrier(MPI_COMM_WORLD);
    double began = ra_seconds();
    enum ra_status status = backward ? ra_backward(work.plan, given) : ra_forward(work.plan, given);
    EXPECT(ra_seconds() - began < grace, "%g s", ra_seconds() - began);
    if (world_rank == odd)
        EXPECT(status == RA_INVALID, "%s", ra_status_text(status));
    else if (work.ring == 0)
        EXPECT(status == RA_LOST || (!all_wait && status == RA_OK), "%s", ra_status_text(status));

    /* The outputs of the rank that refused are still as they were. */
    for (enum truth_array a = O; a < ARRAYS && world_rank == odd; a++)
        EXPECT(!truth_is_output(a) || is_poison(work.x.blocks[a].data, work.x.blocks[a].bytes),
               "%s was written", truth_names[a]);

    /* That ends the plan; but not on a ring of one rank, where nothing was done and nothing is
     * lost. */
    PMPI_Barrier(MPI_COMM_WORLD);
    if (work.ring > 0 || ring_size == 1) {
        compute(&work);
    } else {
        status = ra_forward(work.plan, &work.x.arrays);
        const char *error = ra_plan_error(work.plan);
        char rank[20];
        snprintf(rank, sizeof rank, "ring rank %d:", odd);
        expect_same(ring_comm, status, error);
        EXPECT(status == RA_LOST && strstr(error, rank) == error && strstr(error, word),
               "%s: no %s %s: %s", ra_status_text(status), rank, word, error);
    }
    end(&work);
}

static void test_wrong_arrays(void)
{
    for (int odd = 0; odd < ring_size; odd++)
        for (int how = -1; how < 4; how++)
            for (int backward = 0; backward < 2; backward++) {
                struct problem problem = usual(24, 24);
                refuse_arrays(&problem, how, odd, backward, true);
            }

    /* Also where keys go only a part of the way round, or nowhere at all. */
    for (int odd = 0; odd < ring_size; odd++)
        for (int which = 0; which < 2; which++) {
            struct problem problem = usual(24, 24);
            problem.config.local_keys = which == 0;
            problem.config.causal = which == 1;
            problem.config.lookback = which == 1 ? 2 : RA_NO_LOOKBACK;
            refuse_arrays(&problem, 1, odd, false, false);
        }
}

/* ---- Ranks that do not come. */

/* A problem whose messages are too large to leave on their own. */
static struct problem large(void)
{
    struct problem problem = usual(ring_size, 96 * ring_size);
    problem.config.dim = 256;
    return problem;
}

/* All ranks have their plans, and have ended the calls before: from now on the ring that is to lose
 * a rank has a short timeout. */
static void begin_losing(bool loses, double timeout)
{
    PMPI_Barrier(MPI_COMM_WORLD);
    call_timeout = loses ? timeout : 0;
}

/* Is this the text of a ring rank that waited for its neighbour at some hop until its time was up?
 * Whoever it was may have told the others. */
static void expect_lost(const struct work *work, double timeout, int missing)
{
    int who, hop, peer;
    double waited;
    const char *error = ra_plan_error(work->plan);
    int found = sscanf(error, "ring rank %d, hop %d: waited %lf s for rank %d to", &who, &hop,
                       &waited, &peer);
    int P = ra_plan_ranks(work->plan);
    EXPECT(found == 4, "%s", error);
    if (found == 4)
        EXPECT(who >= 0 && who < P && who != missing && hop >= 0 && hop < P &&
                   waited >= timeout * 0.99 && (peer == (who + 1) % P || who == (peer + 1) % P) &&
                   (P > 2 || peer == missing),
               "%s", error);

    /* From now on everything fails at once, and for the same reason. */
    char first[RA_ERROR_SIZE];
    snprintf(first, sizeof first, "%s", error);
    static char rows[1 << 20];
    double began = ra_seconds();
    enum ra_status statuses[] = {ra_forward(work->plan, &work->x.arrays),
                                 ra_backward(work->plan, &work->x.arrays),
                                 ra_mpi_scatter(work->plan, RA_KEY_SIDE, 1, 1, 0, rows, rows),
                                 ra_mpi_gather(work->plan, RA_KEY_SIDE, 1, 1, 0, rows, rows)};
    EXPECT(ra_seconds() - began < timeout, "%g s", ra_seconds() - began);
    for (int c = 0; c < 4; c++)
        EXPECT(statuses[c] == RA_LOST, "call %d: %s", c, ra_status_text(statuses[c]));
    EXPECT(strcmp(ra_plan_error(work->plan), first) == 0, "%s: %s", first,
           ra_plan_error(work->plan));
}

/* Holds all ranks until the last has come; the time that is returned is before any of them goes
 * on. */
static double common_start(void)
{
    PMPI_Barrier(MPI_COMM_WORLD);
    double began = ra_seconds();
    PMPI_Barrier(MPI_COMM_WORLD);
    return began;
}

/* Makes a plan that one rank does not make at the same time: for the others it is lost after the
 * config's timeout, for that one, which comes too late, at the latest then. They all count from
 * their common start, as the first to give up tells the others. */
static void expect_no_plan(bool late, double began, MPI_Comm comm, const struct ra_link *link,
                           const char *const *words)
{
    char error[RA_ERROR_SIZE] = "";
    struct ra_plan *plan = (struct ra_plan *)error;
    struct ra_config config = usual(24, 24).config;
    config.timeout = soon / 3;
    enum ra_status status = link ? ra_plan_create(&plan, &config, link, error)
                                 : create(&plan, &config, comm, ring_size, soon / 3, error);
    double took = ra_seconds() - began;
    EXPECT(status == RA_LOST && !plan, "%s: %s", ra_status_text(status), error);
    EXPECT((link && late) || took >= soon / 3, "after %g s: %s", took, error);
    EXPECT(took < soon + grace, "after %g s: %s", took, error);
    expect_words(error, words);
}

/* A rank that makes no link, or a link but no plan on it: the others wait for it until their time
 * is up. When it comes at last, it waits for them, in vain; one of them does not even look after
 * MPI meanwhile. So the communicator is still being duplicated, and must not be freed. */
static void test_nobody_plans(void)
{
    static const char *const no_link_words[] = {"all ranks", NULL};
    static const char *const no_plan_words[] = {"ring rank ", ", hop 0: waited ", " s for rank ",
                                                "rows", NULL};
    for (int odd = 0; odd<ranks; odd += ranks> 1 ? ranks - 1 : 1) {
        if (ranks == 1)
            break;
        MPI_Comm comm;
        PMPI_Comm_dup(MPI_COMM_WORLD, &comm);
        for (int turn = 0; turn < 2; turn++) {
            double began = common_start();
            if ((world_rank == odd) == (turn == 1))
                expect_no_plan(turn == 1, began, comm, NULL, no_link_words);
            else if (turn == 1 && world_rank == (odd + 1) % ranks)
                verdict_pause(soon / 2);
            PMPI_Barrier(MPI_COMM_WORLD);
        }
    }

    /* The other rings have their plans. */
    for (int odd = 0; odd < ring_size && ring_size > 1; odd += ring_size - 1) {
        struct ra_link link;
        enum ra_status status = ra_mpi_link(&link, MPI_COMM_WORLD, ring_size, patience, NULL);
        EXPECT(status == RA_OK, "%s", ra_status_text(status));
        for (int turn = 0; turn < 2 && status == RA_OK; turn++) {
            double began = common_start();
            struct ra_config config = usual(24, 24).config;
            struct ra_plan *plan;
            if (world_rank >= ring_size && turn == 0) {
                status = ra_plan_create(&plan, &config, &link, NULL);
                EXPECT(status == RA_OK, "%s", ra_status_text(status));
                ra_plan_destroy(plan);
            } else if (world_rank < ring_size && (world_rank == odd) == (turn == 1)) {
                expect_no_plan(turn == 1, began, MPI_COMM_WORLD, &link, no_plan_words);
            }
            PMPI_Barrier(MPI_COMM_WORLD);
        }
    }
    struct problem problem = usual(24, 24);
    solve(&problem, ROWS_FIRST, MPI_COMM_WORLD, 1);
}

/* All ranks have sent what they send; every call lets MPI move what has come. */
static void let_messages_land(void)
{
    PMPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < 100; i++) {
        int any;
        PMPI_Iprobe(MPI_ANY_SOURCE, 99, MPI_COMM_WORLD, &any, MPI_STATUS_IGNORE);
    }
}

/* The ranks of a ring meet after calls that lasted from `began` to `ended` (INFINITY: this rank did
 * not call). Nobody may have given up before the first of them had waited for so long: the others
 * then hear of it, a little sooner after their own beginning. */
static void expect_patience(double began, double ended, double timeout)
{
    double first;
    PMPI_Allreduce(&began, &first, 1, MPI_DOUBLE, MPI_MIN, ring_comm);
    EXPECT(isinf(began) || ended - first >= timeout, "after %g s", ended - first);
    EXPECT(isinf(began) || ended - began < timeout + grace, "after %g s", ended - began);
}

/* A rank of ring 0 that does not call, forward or backward, until the others have given up, freed
 * what they can, and given that memory to somebody else. Then it does: what it sends them may not
 * land there, and what it gets from them may not come from there. */
static void test_nobody_calls(void)
{
    for (int backward = 0; backward < 2 && ring_size > 1; backward++) {
        int odd = backward ? 0 : ring_size - 1;
        struct problem problem = large();
        struct work work;
        if (!begin(&work, &problem, ROWS_FIRST, MPI_COMM_WORLD))
            return;
        compute(&work);
        begin_losing(work.ring == 0, soon);
        enum { BLOCKS = 16 };
        unsigned char *blocks[BLOCKS];
        int64_t bytes = 2 * ra_plan_bytes(work.plan) / BLOCKS;
        for (int turn = 0; turn < 2; turn++) {
            double began = (double)INFINITY, ended = 0;
            if ((world_rank == odd) == (turn == 1)) {
                landings = 0;
                began = ra_seconds();
                enum ra_status status = backward ? ra_backward(work.plan, &work.x.arrays)
                                                 : ra_forward(work.plan, &work.x.arrays);
                ended = ra_seconds();
                EXPECT(status == (work.ring == 0 ? RA_LOST : RA_OK), "%s: %s",
                       ra_status_text(status), ra_plan_error(work.plan));
                if (work.ring > 0)
                    compute(&work);
                for (int l = 0; l < landings; l++)
                    for (int64_t i = 0; i < landing[l].bytes / 4; i++)
                        if (isnan(landing[l].into[i])) {
                            EXPECT(false, "a message out of freed memory");
                            break;
                        }
                if (work.ring == 0 && turn == 0)
                    expect_lost(&work, soon, odd);
                end(&work);
            }
            if (turn == 0 && world_rank != odd)
                for (int i = 0; i < BLOCKS; i++)
                    blocks[i] = room(bytes);
            expect_patience(began, ended, turn == 0 && work.ring == 0 ? soon : 0);
            PMPI_Barrier(MPI_COMM_WORLD);
        }

        let_messages_land();
        for (int i = 0; i < BLOCKS && world_rank != odd; i++) {
            EXPECT(is_poison(blocks[i], bytes), "freed memory was written to");
            free(blocks[i]);
        }
    }
    struct problem problem = usual(24, 24);
    solve(&problem, ROWS_FIRST, MPI_COMM_WORLD, 1);
}

static struct ra_plan *to_cancel;

static void cancel_in_handler(int signal)
{
    (void)signal;
    ra_plan_cancel(to_cancel);
}

/* The last rank of ring 0 does not call, and rank 0 is cancelled by a signal's handler. All of the
 * ring hear of it long before the timeout, and once more when the last rank calls at last. */
static void test_cancelled(void)
{
    for (int backward = 0; backward < 2 && ring_size > 1; backward++) {
        struct problem problem = large();
        struct work work;
        problem.config.timeout = 30;
        if (!begin(&work, &problem, ROWS_FIRST, MPI_COMM_WORLD))
            return;
        compute(&work);
        PMPI_Barrier(MPI_COMM_WORLD); /* nobody is in that call when this one is cancelled */
        if (world_rank == 0) {
            to_cancel = work.plan;
            sigaction(SIGALRM, &(struct sigaction){.sa_handler = cancel_in_handler}, NULL);
            setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 100000}}, NULL);
        }
        for (int turn = 0; turn < 2; turn++) {
            if ((world_rank == ring_size - 1) == (turn == 1)) {
                double began = ra_seconds();
                enum ra_status status = backward ? ra_backward(work.plan, &work.x.arrays)
                                                 : ra_forward(work.plan, &work.x.arrays);
                enum ra_status wanted = world_rank == 0 ? RA_CANCELLED : RA_LOST;
                const char *error = ra_plan_error(work.plan);
                EXPECT(status == (work.ring == 0 ? wanted : RA_OK), "%s: %s",
                       ra_status_text(status), error);
                EXPECT(work.ring > 0 ||
                           strcmp(error, "ring rank 0: cancelled by ra_plan_cancel") == 0,
                       "%s", error);
                end(&work);
                EXPECT(ra_seconds() - began < grace, "after %g s", ra_seconds() - began);
            }
            PMPI_Barrier(MPI_COMM_WORLD);
        }
    }
    struct problem problem = usual(24, 24);
    solve(&problem, ROWS_FIRST, MPI_COMM_WORLD, 1);
}

/* A root that hands out nothing until the others have given up. What it hands out then must not
 * land in arrays which by now may be somebody else's. */
static void test_nobody_scatters(void)
{
    struct problem problem = usual(24, 24);
    struct work work;
    if (ring_size == 1 || !begin(&work, &problem, ROWS_FIRST, MPI_COMM_WORLD))
        return;
    enum { ROW_BYTES = 32 };
    int root = ring_size - 1;
    bool odd = world_rank == root;
    int64_t whole_bytes = 24 * ROW_BYTES, bytes = work.x.rows[RA_KEY_SIDE] * ROW_BYTES;
    void *whole = room(whole_bytes), *local = room(bytes);
    memset(whole, 1, (size_t)whole_bytes);
    begin_losing(work.ring == 0, soon);
    for (int turn = 0; turn < 2; turn++) {
        double began = (double)INFINITY, ended = 0;
        if (odd == (turn == 1)) {
            began = ra_seconds();
            enum ra_status status =
                ra_mpi_scatter(work.plan, RA_KEY_SIDE, 1, ROW_BYTES, root, whole, local);
            ended = ra_seconds();
            const char *error = ra_plan_error(work.plan);
            EXPECT(work.ring == 0 || status == RA_OK, "%s", error);
            if (work.ring == 0 && !odd) {
                EXPECT(status == RA_LOST && strstr(error, "for rank") && strstr(error, " to send "),
                       "%s: %s", ra_status_text(status), error);
                memset(local, POISON, (size_t)bytes);
            }
        }
        expect_patience(began, ended, turn == 0 && work.ring == 0 ? soon : 0);
        PMPI_Barrier(MPI_COMM_WORLD);
    }
    let_messages_land();
    EXPECT(work.ring > 0 || odd || is_poison(local, bytes), "rows came after all");
    free(whole);
    free(local);
    end(&work);
}

/* One rank goes backward while the others go forward. Somebody must notice, and nobody hang. */
static void test_another_call(void)
{
    struct problem problem = large();
    struct work work;
    if (ring_size == 1 || !begin(&work, &problem, ROWS_FIRST, MPI_COMM_WORLD))
        return;
    compute(&work);
    begin_losing(work.ring == 0, soon);
    bool odd = world_rank == ring_size - 1;
    double began = ra_seconds();
    enum ra_status status =
        odd ? ra_backward(work.plan, &work.x.arrays) : ra_forward(work.plan, &work.x.arrays);
    double took = ra_seconds() - began;
    EXPECT(took < soon + grace, "%g s: %s", took, ra_plan_error(work.plan));
    EXPECT(!odd || status == RA_LOST, "%s", ra_status_text(status));
    EXPECT(work.ring == 0 || status == RA_OK, "%s", ra_plan_error(work.plan));
    PMPI_Barrier(MPI_COMM_WORLD);
    end(&work);
    problem = usual(24, 24);
    solve(&problem, ROWS_FIRST, MPI_COMM_WORLD, 1);
}

/* A rank that is only late is waited for: within the timeout, and for ever if that is 0. */
static void test_late(void)
{
    for (int forever = 0; forever < 2; forever++) {
        struct problem problem = usual(24, 24);
        if (forever)
            problem.config.timeout = 0;
        if (world_rank == ranks - 1)
            verdict_pause(0.1);
        struct work work;
        if (!begin(&work, &problem, ROWS_FIRST, MPI_COMM_WORLD))
            return;
        if (world_rank == 0)
            verdict_pause(0.1);
        compute(&work);
        end(&work);
    }
}

/* ---- Long use. */

/* A line of /proc/self/status, in KiB. */
static long kibibytes(const char *name)
{
    char line[200];
    long value = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0)
            value = atol(line + strlen(name));
    if (file)
        fclose(file);
    return value;
}

/* How many descriptors are open. */
static int descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count;
}

/* Memory has grown since then by no more than this, and MPI's objects are as many as then.
 * `allocated` is what malloc has given and not got back: of what was freed, the system may have
 * more or less back, and MPI touches memory late that it has had from the beginning. */
struct footprint {
    long allocated, data;
    int types, communicators, requests, descriptors;
};

static struct footprint footprint(void)
{
    struct mallinfo2 malloced = mallinfo2();
    long allocated = (long)((malloced.uordblks + malloced.hblkhd) / 1024);
    return (struct footprint){allocated, kibibytes("VmData:"), types, communicators,
                              requests,  descriptors()};
}

static void expect_no_growth(struct footprint before, long most)
{
    struct footprint now = footprint();
    EXPECT(now.types == before.types && now.communicators == before.communicators &&
               now.requests == before.requests,
           "%d types, %d communicators, %d requests more", now.types - before.types,
           now.communicators - before.communicators, now.requests - before.requests);
    EXPECT(before.data > 0, "no /proc/self/status");
    EXPECT(now.descriptors == before.descriptors, "%d descriptors more",
           now.descriptors - before.descriptors);
    EXPECT(SANITIZED || (before.allocated > 0 && now.allocated - before.allocated <= most &&
                         now.data - before.data <= most),
           "%ld KiB more allocated, %ld KiB more of data", now.allocated - before.allocated,
           now.data - before.data);
}

/* With SOAK=20 in the environment all goes on 20 times as long, and may cost no more. */
static int times(int rounds)
{
    const char *soak = getenv("SOAK");
    return soak ? rounds * atoi(soak) : rounds;
}

/* 900 rounds may not cost 300 bytes a round. */
static void test_reuse(void)
{
    struct problem problem = usual(13, 13);
    problem.config.type = RA_BFLOAT16;
    problem.config.key_heads = 1;
    problem.config.dim = 4;
    problem.masking = RANDOM_MASK;
    problem.config.causal = true;
    problem.config.layout = RA_STRIPED;
    struct work work;
    if (!begin(&work, &problem, ROWS_FIRST, MPI_COMM_WORLD))
        return;
    struct footprint before = {0};
    for (int round = 0; round < times(SANITIZED ? 200 : 1000); round++) {
        compute(&work);
        if (round == 99)
            before = footprint();
    }
    expect_no_growth(before, 256);
    end(&work);
}

/* Plans of other shapes over the same link, while one of them waits for its next call. */
static void test_shared_link(void)
{
    struct ra_link link, kept;
    char error[RA_ERROR_SIZE] = "";
    enum ra_status status = ra_mpi_link(&link, MPI_COMM_WORLD, ring_size, patience, error);
    if (!HOLDS(status == RA_OK, "%s", error))
        return;
    kept = link;
    kept.close = NULL;
    shared_link = &kept;
    struct problem longer = usual(40, 40), causal = usual(26, 26);
    causal.config.causal = true;
    causal.config.layout = RA_ZIGZAG;
    struct work work;
    if (begin(&work, &longer, ROWS_FIRST, MPI_COMM_WORLD)) {
        for (int round = 0; round < 3; round++) {
            compute(&work);
            solve(&causal, ROWS_FIRST, MPI_COMM_WORLD, 1);
            solve(&longer, ROWS_FIRST, MPI_COMM_WORLD, 1);
        }
        end(&work);
    }
    shared_link = NULL;
    EXPECT(link.close(link.self), "something is under way");
}

/* Nor may a plan that is gone leave 5 KiB, but once: what was freed may stay with the process, as
 * much as a plan. */
static void test_many_plans(void)
{
    struct problem problem = usual(300, 300);
    struct footprint before = {0};
    for (int i = 0; i < times(SANITIZED ? 40 : 120); i++) {
        if (i == 20)
            before = footprint();
        struct work work;
        if (!begin(&work, &problem, ROWS_FIRST, MPI_COMM_WORLD))
            return;
        EXPECT(i < 20 || communicators == before.communicators + 1, "%d communicators",
               communicators - before.communicators);
        if (i % 10 == 0) {
            compute(&work);
        }
        end(&work);
    }
    expect_no_growth(before, 1500);

    /* Nor one that never came to be. */
    struct ra_config config = problem.config;
    config.queries += world_rank;
    config.heads = ring_size == 1 ? 0 : config.heads;
    for (int i = 0; i < times(SANITIZED ? 40 : 120); i++) {
        if (i == 20)
            before = footprint();
        struct ra_plan *plan;
        enum ra_status status = create(&plan, &config, MPI_COMM_WORLD, ring_size, patience, NULL);
        EXPECT(status != RA_OK, "a plan");
    }
    expect_no_growth(before, 1500);
}

/* ---- What is sent. */

/* What leaves a rank is what every rank's plan says of it, forward and backward. */
static void test_bytes(void)
{
    for (int c = 0; c < 6; c++) {
        struct problem problem = usual(c == 5 ? 2 : 41, c == 5 ? 3 : 38);
        problem.config.type = c == 1 ? RA_FLOAT16 : RA_FLOAT32;
        problem.masking = c == 1 || c == 3 ? RANDOM_MASK : NO_MASK;
        problem.config.key_heads = c == 2 ? 1 : 2;
        problem.config.dim_value = c == 0 ? 5 : c == 3 ? 11 : 0;
        problem.config.causal = c >= 3;
        problem.config.lookback = c == 3 ? 7 : c == 4 ? 30 : RA_NO_LOOKBACK;
        problem.config.layout = c == 4 ? RA_STRIPED : RA_CONTIGUOUS;
        struct work work;
        if (!begin(&work, &problem, ROWS_FIRST, MPI_COMM_WORLD))
            return;
        compute(&work);
        for (int backward = 0; backward < 2; backward++) {
            int64_t messages = messages_sent, bytes = bytes_sent;
            enum ra_status status = backward ? ra_backward(work.plan, &work.x.arrays)
                                             : ra_forward(work.plan, &work.x.arrays);
            EXPECT(status == RA_OK, "%s", ra_plan_error(work.plan));
            int64_t sent[2] = {messages_sent - messages, bytes_sent - bytes}, of_all[8][2];
            PMPI_Allgather(sent, 2, MPI_INT64_T, of_all, 2, MPI_INT64_T, ring_comm);
            for (int rank = 0; rank < ring_size; rank++) {
                messages = bytes = 0;
                for (int step = 0; step < ra_plan_hops(work.plan); step++) {
                    struct ra_hop hop;
                    status = ra_plan_hop(work.plan, rank, step, backward, &hop);
                    EXPECT(status == RA_OK, "%s", ra_plan_error(work.plan));
                    messages += hop.messages;
                    bytes += hop.bytes;
                }
                EXPECT(of_all[rank][0] == messages && of_all[rank][1] == bytes,
                       "case %d, rank %d, backward %d: %lld messages of %lld bytes, not %lld of "
                       "%lld",
                       c, rank, backward, (long long)of_all[rank][0], (long long)of_all[rank][1],
                       (long long)messages, (long long)bytes);
            }

            /* Plain rings by hand: the keys of P - 1 ranks, their gradients, and at the end those
             * of one more rank, home. */
            if (c < 3) {
                struct ra_layout layout = ra_plan_layout(work.plan, RA_KEY_SIDE);
                const struct ra_config *config = &work.problem.config;
                int64_t both = config->dim + (config->dim_value ? config->dim_value : config->dim);
                int64_t numbers = config->batch * config->key_heads * both, rows = 0;
                int64_t key = numbers * ra_type_bytes(config->type);
                key += config->has_mask ? config->batch : 0;
                for (int t = 0; t < ring_size - 1; t++)
                    rows += ra_layout_rows(layout, (work.rank - t + ring_size) % ring_size);
                bytes = rows * key;
                if (backward && ring_size > 1) {
                    rows += ra_layout_rows(layout, (work.rank + 1) % ring_size);
                    bytes += rows * numbers * 4;
                }
                EXPECT(sent[1] == bytes, "case %d: %lld bytes, not %lld", c, (long long)sent[1],
                       (long long)bytes);
            }
        }
        end(&work);
    }
}

/* ---- Communicators. */

/* Nothing of the library's comes to the caller's communicator, nor the other way round; its error
 * handler stays; and once the plan is made it is no longer needed. */
static void test_apart(void)
{
    MPI_Comm comm;
    PMPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Errhandler handler, after;
    MPI_Comm_create_errhandler((MPI_Comm_errhandler_function *)(void (*)(void))abort, &handler);
    MPI_Comm_set_errhandler(comm, handler);

    /* A message for every tag that the library may use, which nobody has asked for yet; and an
     * open ear for everything. */
    enum { TAGS = 8 };
    int said = world_rank, heard[TAGS + 1], next = (world_rank + 1) % ranks;
    MPI_Request strays[TAGS], ear;
    for (int tag = 0; tag < TAGS; tag++)
        PMPI_Isend(&said, 1, MPI_INT, next, tag, comm, &strays[tag]);
    PMPI_Barrier(comm);

    struct problem problem = usual(24, 24);
    struct work work;
    if (!begin(&work, &problem, ROWS_FIRST, comm))
        return;
    MPI_Comm_get_errhandler(comm, &after);
    EXPECT(after == handler, "another error handler");
    compute(&work);
    for (int tag = 0; tag < TAGS; tag++) {
        int left = (world_rank + ranks - 1) % ranks;
        PMPI_Recv(&heard[tag], 1, MPI_INT, left, tag, comm, MPI_STATUS_IGNORE);
        EXPECT(heard[tag] == left, "%d", heard[tag]);
    }
    MPI_Waitall(TAGS, strays, MPI_STATUSES_IGNORE);
    PMPI_Irecv(&heard[TAGS], 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &ear);
    compute(&work);
    round_trip(&work, RA_QUERY_SIDE, 2, 3, 0);
    int done;
    PMPI_Test(&ear, &done, MPI_STATUS_IGNORE);
    EXPECT(!done, "a message of the library's");
    if (!done) {
        MPI_Cancel(&ear);
        MPI_Wait(&ear, MPI_STATUS_IGNORE);
    }
    PMPI_Comm_free(&comm);
    compute(&work);
    end(&work);
    MPI_Errhandler_free(&handler);
    MPI_Errhandler_free(&after);
}

/* A communicator with its own order of ranks; one of some ranks only; and two plans on one, in use
 * by turns. */
static void test_communicators(void)
{
    MPI_Comm comm;
    struct problem problem = usual(26, 26), other = usual(17, 30);
    problem.config.causal = true;
    PMPI_Comm_split(MPI_COMM_WORLD, 0, -world_rank, &comm);
    solve(&problem, ROWS_FIRST, comm, 1);
    PMPI_Comm_free(&comm);

    PMPI_Comm_split(MPI_COMM_WORLD, world_rank == 0, 0, &comm);
    problem.config.ring_size = 0;
    solve(&problem, ROWS_FIRST, comm, 1);
    PMPI_Comm_free(&comm);

    struct work first, second;
    if (!begin(&first, &problem, ROWS_FIRST, MPI_COMM_WORLD) ||
        !begin(&second, &other, ROWS_FIRST, MPI_COMM_WORLD))
        return;
    for (int round = 0; round < 3; round++) {
        compute(&first);
        compute(&second);
    }
    end(&first);
    end(&second);
}

/* Makes a link where none can be made; whoever is asked can tell at once. */
static void impossible(MPI_Comm comm, const char *when)
{
    char error[RA_ERROR_SIZE] = "";
    struct ra_link link;
    enum ra_status status = ra_mpi_link(&link, comm, 0, patience, error);
    EXPECT(status == RA_INVALID && error[0], "%s: %s: %s", when, ra_status_text(status), error);

    /* By number: one that no communicator has; where MPI does not run, all are that. */
    status = ra_mpi_link_f(&link, 123456, 0, patience, error);
    EXPECT(status == RA_INVALID && error[0], "%s: %s: %s", when, ra_status_text(status), error);
}

static void test_no_communicator(void)
{
    impossible(MPI_COMM_NULL, "MPI_COMM_NULL");
    if (ranks > 1) {
        MPI_Comm half, between;
        int upper = world_rank >= ranks / 2;
        PMPI_Comm_split(MPI_COMM_WORLD, upper, 0, &half);
        MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, upper ? 0 : ranks / 2, 0, &between);
        impossible(between, "an intercommunicator");
        PMPI_Comm_free(&between);
        PMPI_Comm_free(&half);
    }
}

/* ---- Threads. */

struct thread {
    struct problem problem;
    MPI_Comm comm;
    pthread_t id;
};

static void *work_alone(void *data)
{
    struct thread *thread = data;
    solve(&thread->problem, ROWS_FIRST, thread->comm, 20);
    return NULL;
}

/* Two threads, each with a plan of its own on a communicator of its own. */
static void test_threads(void)
{
    int provided;
    MPI_Query_thread(&provided);
    EXPECT(provided == MPI_THREAD_MULTIPLE, "MPI does not provide MPI_THREAD_MULTIPLE: not tested");
    if (provided != MPI_THREAD_MULTIPLE)
        return;
    struct thread threads[2];
    for (int t = 0; t < 2; t++) {
        threads[t].problem = usual(90 - 7 * t, 90);
        threads[t].problem.config.causal = true;
        threads[t].problem.config.layout = t ? RA_ZIGZAG : RA_STRIPED;
        threads[t].problem.config.dim = 32;
        PMPI_Comm_split(MPI_COMM_WORLD, 0, t ? -world_rank : world_rank, &threads[t].comm);
    }
    for (int t = 0; t < 2; t++)
        if (pthread_create(&threads[t].id, NULL, work_alone, &threads[t]) != 0)
            MPI_Abort(MPI_COMM_WORLD, 1);
    for (int t = 0; t < 2; t++) {
        pthread_join(threads[t].id, NULL);
        PMPI_Comm_free(&threads[t].comm);
    }
}

/* The last test: the others have left nothing behind but what was lost with a rank. */
static void test_all_freed(void)
{
    EXPECT(types == 0, "%d types", types);
}

static const struct verdict_test tests[] = {
    {"no communicator", test_no_communicator},
    {"agreement", test_agreement},
    {"disagreement", test_disagreement},
    {"ring sizes", test_ring_sizes},
    {"sharing", test_sharing},
    {"wrong config", test_wrong_config},
    {"memory", test_memory},
    {"results", test_results},
    {"slices", test_slices},
    {"local keys", test_local_keys},
    {"round trips", test_round_trips},
    {"wrong rows", test_wrong_rows},
    {"different rows", test_different_rows},
    {"wrong arrays", test_wrong_arrays},
    {"bytes", test_bytes},
    {"apart", test_apart},
    {"communicators", test_communicators},
    {"late", test_late},
    {"reuse", test_reuse},
    {"shared link", test_shared_link},
    {"many plans", test_many_plans},
    {"threads", test_threads},
    {"another call", test_another_call},
    {"other slices", test_other_slices},
    {"nobody calls", test_nobody_calls},
    {"cancelled", test_cancelled},
    {"nobody scatters", test_nobody_scatters},
    {"nobody plans", test_nobody_plans},
    {"all freed", test_all_freed},
};
enum { TESTS = sizeof tests / sizeof tests[0] };

/* ---- Ranks that stop or die, for tests/library-failures. */

struct death {
    int signal, hop;
    bool backward;
    char file[400]; /* when it was */
};

/* Sends this process its signal after its work of the hop. Before, notes the time. */
static void die_at(void *observer, const struct ra_event *event)
{
    struct death *death = observer;
    if (event->kind != RA_EVENT_WORK || event->backward != death->backward ||
        event->hop != death->hop || death->signal == 0)
        return;
    FILE *file = fopen(death->file, "w");
    if (file) {
        fprintf(file, "%.9f\n", ra_seconds());
        fclose(file);
    }
    int signal = death->signal;
    death->signal = 0; /* whoever was only stopped goes on */
    raise(signal);
}

/* Leaves a file with this name in a folder; false: cannot. */
static bool leave(const char *folder, const char *name)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    return file && fclose(file) == 0;
}

/* All ranks compute until something is wrong; rings without the victim, for a while. */
static int die(char **argv)
{
    int victim = atoi(argv[3]);
    const char *call = argv[4], *folder = argv[6];
    struct death death = {.signal = atoi(argv[2]), .hop = atoi(argv[5])};
    death.backward = strcmp(call, "backward") == 0;
    snprintf(death.file, sizeof death.file, "%s/death", folder);
    bool in_ring = world_rank / ring_size == victim / ring_size;
    const double timeout = 2;

    struct problem problem = usual(96 * ring_size, 96 * ring_size);
    problem.config.dim = 64;
    if (world_rank == victim && death.signal != 0) {
        problem.config.observe = die_at;
        problem.config.observer = &death;
    }
    PMPI_Barrier(MPI_COMM_WORLD);
    if (strcmp(call, "create") == 0) {
        if (world_rank == victim)
            raise(death.signal);
        char error[RA_ERROR_SIZE] = "";
        struct ra_plan *plan;
        enum ra_status status =
            create(&plan, &problem.config, MPI_COMM_WORLD, ring_size, timeout, error);
        EXPECT(status == RA_LOST && !plan, "%s: %s", ra_status_text(status), error);
        EXPECT(strstr(error, "all ranks"), "%s", error);
    } else {
        struct work work;
        enum ra_status status = RA_OK;
        if (!begin(&work, &problem, ROWS_FIRST, MPI_COMM_WORLD))
            return 1;
        begin_losing(in_ring, timeout);
        for (int round = 0; status == RA_OK && (in_ring || round < 20); round++) {
            status = ra_forward(work.plan, &work.x.arrays);
            if (status == RA_OK)
                status = ra_backward(work.plan, &work.x.arrays);

            /* Now may somebody send signals. */
            if (round == 2 && world_rank == victim)
                EXPECT(leave(folder, "ready"), "cannot write to %s", folder);
        }
        EXPECT(status == (in_ring ? RA_LOST : RA_OK), "%s: %s", ra_status_text(status),
               ra_plan_error(work.plan));
        if (in_ring && world_rank != victim)
            expect_lost(&work, timeout, victim % ring_size);
        end(&work);
    }

    /* Nobody gives up long before its time, nor long after it. Who waited for the victim did so
     * already while it computed. */
    double ended = ra_seconds(), died = 0;
    FILE *file = fopen(death.file, "r");
    if (file && fscanf(file, "%lf", &died) == 1 && in_ring && world_rank != victim)
        EXPECT(ended - died >= timeout / 2 && ended - died < timeout + grace,
               "%g s after the death", ended - died);
    if (file)
        fclose(file);
    char well[20];
    snprintf(well, sizeof well, "well.%d", world_rank);
    return verdict_state.complaints == 0 && leave(folder, well) ? 0 : 1;
}

int main(int argc, char **argv)
{
    impossible(MPI_COMM_WORLD, "before MPI_Init");
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    ring_size = argc > 1 ? atoi(argv[1]) : ranks;
    if (ring_size < 1 || ranks % ring_size != 0 || (argc != 7 && argc > 2)) {
        fprintf(stderr, "usage: see the head of tests/check_library_mpi.c\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }

    verdict_start(world_rank, 0, "rank %d of %d, rings of %d: ", world_rank, ranks, ring_size);

    /* MPI_Finalize would wait for the dead. */
    if (argc == 7)
        _exit(die(argv));

    PMPI_Comm_split(MPI_COMM_WORLD, world_rank / ring_size, 0, &ring_comm);
    verdict_run(tests, TESTS);
    int code = verdict_end();
    PMPI_Comm_free(&ring_comm);
    MPI_Finalize();

    /* What is wrong now shows in the exit code alone: MPI ends a job with the first that fails. */
    impossible(MPI_COMM_WORLD, "after MPI_Finalize");
    return verdict_state.complaints == 0 ? code : 1;
}
