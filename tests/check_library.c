/* check_library: the library's API in one process: alone, and in rings whose ranks are threads.
 *
 * What is right, and how far a result may be off, is what tests/rig/truth.h says; layouts, hops,
 * bytes and multiply-adds are counted pair by pair. Outputs begin as NaN, as does all memory around
 * and between rows, which must stay as it was.
 *
 * Linked with --wrap of malloc, calloc, realloc, aligned_alloc, posix_memalign and free, so that
 * memory can be counted, and refused.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "ra_clock.h"
#include "ra_host.h"
#include "ra_processors.h"
#include "ring_attention_scale.h"
#include "ring_attention_threads.h"
#include "runs.h"
#include "suite.h"

/* ---- Memory that is watched. ---- */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_posix_memalign(void **block, size_t alignment, size_t size);
void __real_free(void *block);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *block, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_posix_memalign(void **block, size_t alignment, size_t size);
void __wrap_free(void *block);

/* What this thread has asked for since watch_memory. libcheck may ask, too: assertions come after
 * stop_watching. */
static _Thread_local struct {
    bool watching;
    int64_t calls, bytes;
    int64_t refuse;     /* this call from now on gets nothing; 0: none */
    size_t most;        /* larger ones get nothing; 0: no limit */
    int held;           /* blocks that were given and not freed */
    int64_t held_bytes; /* in them */
    struct {
        void *block;
        int64_t bytes;
    } live[64]; /* these */
} memory;

static void watch_memory(void)
{
    memset(&memory, 0, sizeof memory);
    memory.watching = true;
}

static void stop_watching(void)
{
    memory.watching = false;
}

/* Frees what a plan that is lost has left to its link, which is closed by now. */
static void free_what_is_left(void)
{
    for (int i = 0; i < COUNT(memory.live); i++)
        __real_free(memory.live[i].block);
}

/* Notes a request; false: refuse it. */
static bool asked(size_t size)
{
    if (!memory.watching)
        return true;
    memory.calls++;
    memory.bytes += (int64_t)size;
    bool refused = (memory.most > 0 && size > memory.most) || memory.refuse == 1;
    memory.refuse -= memory.refuse > 0;
    errno = refused ? ENOMEM : errno;
    return !refused;
}

/* Takes note of a new block of this size in the place of an old one; NULL is none. */
static void *replace(void *old, void *new, size_t size)
{
    if (!memory.watching && (!old || memory.held == 0))
        return new;
    for (int i = 0; i < COUNT(memory.live); i++)
        if (memory.live[i].block == old) {
            memory.held += (new != NULL) - (old != NULL);
            memory.held_bytes += (int64_t)size - memory.live[i].bytes;
            memory.live[i].block = new;
            memory.live[i].bytes = (int64_t)size;
            break;
        }
    return new;
}

void *__wrap_malloc(size_t size)
{
    return asked(size) ? replace(NULL, __real_malloc(size), size) : NULL;
}

void *__wrap_calloc(size_t count, size_t size)
{
    return asked(count * size) ? replace(NULL, __real_calloc(count, size), count * size) : NULL;
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return asked(size) ? replace(NULL, __real_aligned_alloc(alignment, size), size) : NULL;
}

int __wrap_posix_memalign(void **block, size_t alignment, size_t size)
{
    int error = asked(size) ? __real_posix_memalign(block, alignment, size) : ENOMEM;
    if (error == 0)
        replace(NULL, *block, size);
    return error;
}

void *__wrap_realloc(void *block, size_t size)
{
    return asked(size) ? replace(block, __real_realloc(block, size), size) : NULL;
}

void __wrap_free(void *block)
{
    if (block)
        replace(block, NULL, 0);
    __real_free(block);
}

/* ---- Runs of problems. ---- */

/* Makes inputs, and finds what is right. */
static void prepare(struct problem *p)
{
    problem_make(p);
    problem_solve(p);
}

/* How one rank of a ring makes its plan, and what comes of it. */
struct making {
    struct ra_config config;
    bool no_config, no_plan, no_text; /* gives NULL in the place of these */
    bool absent;                      /* does not come */
    int64_t refuse;     /* gets nothing for this block of memory; 0: for all something */
    int64_t more_bytes; /* says that the link holds so many */

    struct ra_plan *plan;
    enum ra_status status;
    char text[RA_ERROR_SIZE];
    double seconds;
    int64_t calls, held, held_bytes; /* for memory, and of memory */
};

/* All ranks of a ring make their plans at the same time. */
struct makers {
    int ranks;
    bool plain; /* over ra_thread_links alone, whose timeout plans may change */
    struct thread_ring *ring;
    struct ra_link links[MOST_RANKS];
    struct making rank[MOST_RANKS];
};

static void make(void *context, int rank)
{
    struct makers *makers = context;
    struct making *mine = &makers->rank[rank];
    if (mine->absent)
        return;
    struct ra_link link =
        makers->plain ? makers->links[rank] : thread_ring_link(makers->ring, rank);
    link.bytes = mine->more_bytes;
    mine->plan = (struct ra_plan *)(void *)mine; /* what must be overwritten */
    double start = ra_seconds();
    watch_memory();
    memory.refuse = mine->refuse;
    mine->status =
        ra_plan_create(mine->no_plan ? NULL : &mine->plan, mine->no_config ? NULL : &mine->config,
                       &link, mine->no_text ? NULL : mine->text);
    mine->calls = memory.calls;
    mine->held = memory.held;
    mine->held_bytes = memory.held_bytes;
    stop_watching();
    mine->seconds = ra_seconds() - start;

    if (mine->status != RA_OK)
        free_what_is_left();
}

/* Ranks that all have this config. */
static struct makers makers_of(const struct ra_config *config, int ranks)
{
    struct makers makers = {.ranks = ranks};
    for (int rank = 0; rank < ranks; rank++)
        makers.rank[rank].config = *config;
    return makers;
}

/* All of them make their plans, on a new ring. */
static void make_all(struct makers *makers, double timeout)
{
    if (makers->plain)
        ck_assert_int_eq(ra_thread_links(makers->links, makers->ranks, NULL), RA_OK);
    else
        makers->ring = thread_ring_open(makers->ranks, timeout, THREAD_LATE);
    for (int rank = 0; makers->plain && rank < makers->ranks; rank++)
        makers->links[rank].set_timeout(makers->links[rank].self, timeout);
    thread_ring_run(makers->ranks, make, makers);
}

/* Frees the plans, if there are any, and the ring. */
static void unmake_all(struct makers *makers)
{
    for (int rank = 0; rank < makers->ranks; rank++) {
        struct ra_link *link = &makers->links[rank];
        if (makers->rank[rank].absent && makers->plain)
            link->close(link->self);
        else if (makers->rank[rank].status == RA_OK)
            ra_plan_destroy(makers->rank[rank].plan);
    }
    if (!makers->plain)
        thread_ring_close(makers->ring);
}

/* Plans of all ranks, which must come to be. */
static struct makers plans_of_ring(const struct ra_config *config, int ranks)
{
    struct makers makers = makers_of(config, ranks);
    make_all(&makers, 60);
    for (int rank = 0; rank < ranks; rank++)
        ck_assert_msg(makers.rank[rank].status == RA_OK, "rank %d of %d: %s", rank, ranks,
                      makers.rank[rank].text);
    return makers;
}

/* Are these, which the plan gave, the positions that the layout gives its rank? */
static bool check_positions(const struct problem *p, const struct ra_plan *plan, enum ra_side side,
                            const int64_t *positions, char *trouble)
{
    struct ra_span spans[MOST_SPANS];
    int count = problem_spans(p, side, ra_plan_rank(plan), spans);
    int64_t row = 0, rows = ra_plan_rows(plan, side);
    bool right = ra_plan_position(plan, side, -1) == -1 && ra_plan_position(plan, side, rows) == -1;
    for (int s = 0; s < count; s++)
        for (int64_t a = 0; a < spans[s].count; a++, row++) {
            int64_t at = spans[s].first + a * spans[s].stride;
            right = right && row < rows && positions[row] == at &&
                    ra_plan_position(plan, side, row) == at;
        }
    right = right && row == rows;
    if (!right)
        snprintf(trouble, TEXT, "rows of side %d", side);
    return right;
}

/* What the plan says of this rank's hops, and what the link has seen it send at them. */
static bool check_traffic(struct ra_plan *plan, struct thread_ring *ring, bool backward,
                          char *trouble)
{
    int rank = ra_plan_rank(plan);
    struct thread_traffic sent[MOST_RANKS], all = {0, 0};
    for (int hop = 0; hop < ra_plan_ranks(plan); hop++) {
        sent[hop] = thread_ring_sent(ring, rank, hop);
        all.messages += sent[hop].messages;
        all.bytes += sent[hop].bytes;
    }

    /* The hops of a ring of groups, or of hosts, have numbers of their own on the link. */
    struct ra_config config;
    ra_plan_config(plan, &config, sizeof config);
    if (config.group > 0 || config.inner > 0) {
        for (int step = 0; step < ra_plan_hops(plan); step++) {
            struct ra_hop hop = {0};
            if (ra_plan_hop(plan, rank, step, backward, &hop) != RA_OK)
                return false;
            all.messages -= hop.messages;
            all.bytes -= hop.bytes;
        }
        if (all.messages != 0 || all.bytes != 0)
            snprintf(trouble, TEXT, "sends %d messages and %d bytes more than it says",
                     (int)all.messages, (int)all.bytes);
        return !trouble[0];
    }
    for (int step = 0; step < ra_plan_hops(plan); step++) {
        struct ra_hop hop;
        enum ra_status status = ra_plan_hop(plan, rank, step, backward, &hop);
        struct thread_traffic *seen = &sent[status == RA_OK ? hop.distance : 0];
        if (status != RA_OK || hop.messages != seen->messages || hop.bytes != seen->bytes) {
            snprintf(trouble, TEXT,
                     "hop %d, backward %d: says %d messages, %d bytes, sends %d messages, %d bytes",
                     hop.distance, backward, (int)hop.messages, (int)hop.bytes, (int)seen->messages,
                     (int)seen->bytes);
            return false;
        }
        *seen = (struct thread_traffic){0, 0};
    }
    for (int hop = 0; hop < ra_plan_ranks(plan); hop++)
        if (sent[hop].messages > 0) {
            snprintf(trouble, TEXT, "sends at hop %d, which is none of the plan's", hop);
            return false;
        }
    return true;
}

/* What a plan says of its rows and of each call is so. */
static bool check_call(struct run *run, struct ra_plan *plan, bool backward, char *trouble)
{
    bool right = !run->ring || check_traffic(plan, run->ring, backward, trouble);
    for (int side = 0; side < 2; side++) {
        int64_t *positions = calloc((size_t)ra_plan_rows(plan, side) + 1, sizeof *positions);
        ra_plan_positions(plan, side, positions);
        right = right && check_positions(run->p, plan, side, positions, trouble);
        free(positions);
    }
    return right;
}

static struct run new_run(const struct problem *p, enum order order)
{
    struct run run = {.p = p, .order = order, .check = check_call};
    outputs_make(p, run.got);
    return run;
}

/* What a single rank's arrays hold, as a run. */
static struct run run_of(const struct problem *p, struct shard *shard)
{
    struct run run = new_run(p, ROWS_FIRST);
    shard_collect(p, shard, run.got);
    return run;
}

/* Runs the problem. */
static struct run run_as(const struct problem *p, enum order order, enum thread_delivery delivery)
{
    struct run run = {.p = p, .order = order, .delivery = delivery, .check = check_call};
    run_all(&run);
    return run;
}

static void clear_run(struct run *run)
{
    outputs_clear(run->got);
}

/* Prepares, runs, judges, clears. */
static void check_problem(struct problem p, enum order order)
{
    prepare(&p);
    struct run run = run_as(&p, order, THREAD_LATE);
    run_judge(&p, &run);
    clear_run(&run);
    problem_clear(&p);
}

/* ---- Types and texts. ---- */

CASE(numbers, 120);

TEST(small_functions)
{
    ck_assert_str_eq(ra_version(), RA_VERSION);
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", RA_VERSION_MAJOR, RA_VERSION_MINOR,
             RA_VERSION_PATCH);
    ck_assert_str_eq(ra_version(), version);

    /* Every status has words of its own, and what is none has some, too. */
    ck_assert_str_eq(ra_status_text(RA_OK), "success");
    for (int a = RA_OK; a <= RA_DEVICE; a++) {
        ck_assert(ra_status_text(a) && ra_status_text(a)[0]);
        for (int b = RA_OK; b < a; b++)
            ck_assert_str_ne(ra_status_text(a), ra_status_text(b));
    }
    for (int none = -1; none < 99; none += 99 - RA_DEVICE)
        ck_assert(ra_status_text(none) && ra_status_text(none)[0]);
    ck_assert(ra_status_text(INT_MAX) && ra_status_text(INT_MIN));

    ck_assert_int_eq(ra_type_bytes(RA_FLOAT32), 4);
    ck_assert_int_eq(ra_type_bytes(RA_FLOAT16), 2);
    ck_assert_int_eq(ra_type_bytes(RA_BFLOAT16), 2);
    ck_assert_int_eq(ra_type_bytes(RA_BOOL), 1);
    ck_assert_int_eq(ra_type_bytes(RA_BOOL + 1), 0);
    ck_assert_int_eq(ra_type_bytes(-1), 0);
}

TEST(orders_of_tensors)
{
    float x;
    struct ra_tensor t = ra_tensor_bnhd(&x, RA_FLOAT16, 5, 3, 7);
    ck_assert(t.data == &x && t.type == RA_FLOAT16 && t.batch == 105 && t.row == 21 && t.head == 7);
    t = ra_tensor_bhnd(&x, RA_BFLOAT16, 5, 3, 7);
    ck_assert(t.data == &x && t.type == RA_BFLOAT16 && t.batch == 105 && t.row == 7 &&
              t.head == 35);
    t = ra_tensor_bhn(&x, 5, 3);
    ck_assert(t.data == &x && t.type == RA_FLOAT32 && t.batch == 15 && t.row == 1 && t.head == 5);
    t = ra_tensor_bn(&x, 5);
    ck_assert(t.data == &x && t.type == RA_BOOL && t.batch == 5 && t.row == 1);
    t = ra_tensor_h(&x);
    ck_assert(t.data == &x && t.type == RA_FLOAT32 && t.head == 1);
}

/* A plan; the test fails if there is none. */
static struct ra_plan *plan_for(const struct ra_config *config)
{
    char trouble[TEXT] = "";
    struct ra_plan *plan = run_plan(config, NULL, 0, trouble);
    ck_assert_msg(plan != NULL, "%s", trouble);
    return plan;
}

/* With one key and one query the weight is 1: o = v, dv = d_out, dq = dk = 0. So every number of 16
 * bits can be seen to come in, through v, and every rounding on the way out, through d_out. */
TESTS(numbers_of_16_bits, 0, 2)
{
    enum ra_type type = _i ? RA_BFLOAT16 : RA_FLOAT16;
    enum { WIDTH = 1 << 16 };
    struct ra_config config = problem_shape(3, 1, 1, 1, 1, WIDTH);
    config.type = type;
    struct ra_plan *plan = plan_for(&config);
    int64_t numbers = 3 * WIDTH;
    uint16_t *zeros = calloc((size_t)numbers, 2), *v = calloc((size_t)numbers, 2);
    uint16_t *gradients[3];
    for (int i = 0; i < 3; i++)
        gradients[i] = calloc((size_t)numbers, 2);
    float *o = calloc((size_t)numbers, 4), *d_out = calloc((size_t)numbers, 4), lse[3];
    for (int64_t e = 0; e < numbers; e++)
        v[e] = (uint16_t)e;

    /* d_out: every number of the type, and the ties between it and the next, and what lies just
     * beside the ties. */
    for (int64_t e = 0; e < WIDTH; e++) {
        uint16_t bits = (uint16_t)e;
        double low = number_widened(type, bits), high = number_widened(type, (uint16_t)(bits + 1));
        bool pair = isfinite(low) && isfinite(high) && (bits & 0x7FFF) != 0x7FFF;
        float tie = pair ? (float)((low + high) / 2) : (float)low;
        d_out[e] = (float)low;
        d_out[WIDTH + e] = pair ? tie : 65519.996f;
        d_out[2 * WIDTH + e] = pair ? number_of_bits(number_bits(tie) + (e % 2 ? 1 : -1)) : 65520;
    }
    struct ra_arrays arrays = RA_ARRAYS_INIT;
    arrays.q = ra_tensor_bnhd(zeros, type, 1, 1, WIDTH);
    arrays.k = ra_tensor_bnhd(zeros, type, 1, 1, WIDTH);
    arrays.v = ra_tensor_bnhd(v, type, 1, 1, WIDTH);
    arrays.o = ra_tensor_bnhd(o, RA_FLOAT32, 1, 1, WIDTH);
    arrays.lse = ra_tensor_bhn(lse, 1, 1);
    arrays.d_out = ra_tensor_bnhd(d_out, RA_FLOAT32, 1, 1, WIDTH);
    arrays.dq = ra_tensor_bnhd(gradients[0], type, 1, 1, WIDTH);
    arrays.dk = ra_tensor_bnhd(gradients[1], type, 1, 1, WIDTH);
    arrays.dv = ra_tensor_bnhd(gradients[2], type, 1, 1, WIDTH);
    ck_assert_int_eq(ra_forward(plan, &arrays), RA_OK);
    ck_assert_int_eq(ra_backward(plan, &arrays), RA_OK);

    for (int64_t e = 0; e < numbers; e++) {
        double in = number_widened(type, v[e]), out = number_widened(type, gradients[2][e]);
        double want = number_rounded(type, (double)d_out[e]);
        if (!(in == (double)o[e] || (isnan(in) && isnan(o[e]))))
            ck_abort_msg("bits %04x: are %g, came in as %g", v[e], in, (double)o[e]);
        if (!(out == want || (isnan(out) && isnan(d_out[e]))))
            ck_abort_msg("%.9g: goes out as %g, not %g", (double)d_out[e], out, want);
    }
    ra_plan_destroy(plan);
    for (int i = 0; i < 3; i++)
        free(gradients[i]);
    free(zeros);
    free(v);
    free(o);
    free(d_out);
}

/* ---- One process. ---- */

static const int64_t lengths[] = {0, 1, 2, 7, 37, 65, 130};

CASE(alone, 120);

TESTS_OF(random_problems, lengths)
{
    uint64_t state = (uint64_t)_i + 100;
    for (int m = 0; m < COUNT(lengths); m++)
        for (int i = 0; i < 5; i++) {
            struct problem p = problem_random(&state, lengths[_i], lengths[m]);
            enum order order = problem_random_order(&state, &p);
            prepare(&p);

            /* Whatever the order in memory, the numbers are the same. */
            struct run run = run_as(&p, order, THREAD_LATE),
                       plain = run_as(&p, ROWS_FIRST, THREAD_LATE);
            run_same_bits(&run, &plain);
            run_judge(&p, &run);
            clear_run(&run);
            clear_run(&plain);
            problem_clear(&p);
        }
}

/* Values wider or narrower than keys, as in multi-head latent attention: every gradient, on every
 * rank, in every layout, on both tiles. */
static const int64_t widths[][2] = {{192, 128}, {576, 512}, {64, 128}, {5, 3}, {1, 7}};

CASE(values, 120);

TESTS(values_of_other_width, 0, 5 * COUNT(widths))
{
    static const enum masking maskings[] = {NO_MASK, RANDOM_MASK, FIRST_HIDDEN, RANK_HIDDEN};
    const int64_t *width = widths[_i % COUNT(widths)];
    for (int i = 0; i < 6; i++) {
        struct problem p = {.config =
                                problem_shape(2, 37, i % 2 ? 45 : 37, 4, i % 3 ? 2 : 1, width[0]),
                            .masking = maskings[(_i + i) % 4],
                            .nan_hidden = i == 2,
                            .size = i == 5 ? 30 : 1,
                            .ranks = _i / COUNT(widths),
                            .seed = (unsigned)(10 * _i + i)};
        struct ra_config *c = &p.config;
        c->dim_value = width[1];
        c->layout = (enum ra_layout_kind)(i % 3);
        c->bucket = i == 4 ? 5 : 0;
        c->tile = i < 3 ? RA_VECTOR_TILE : RA_PLAIN_TILE;
        c->type = (enum ra_type)((_i + i) % 3);
        c->causal = i != 2;
        c->lookback = i == 3 ? 11 : RA_NO_LOOKBACK;
        c->softcap = i == 1 ? 2.5 : 0;
        c->head_map = i == 5 ? RA_INTERLEAVED : RA_GROUPED;
        c->tile_queries = i % 2 ? 16 : 0;
        c->tile_keys = i % 2 ? 7 : 0;
        c->threads = 1 + i % 3;
        p.wide[D_OUT] = p.wide[O] = i == 4;
        p.wide[DQ] = p.wide[DV] = i == 5;
        check_problem(p, (enum order)(i % BROADCAST));
    }
}

/* 0 is as wide as keys, and the plan says so; what other widths are called. */
TEST(width_of_values)
{
    struct ra_config config = problem_shape(2, 5, 6, 4, 2, 3), got;
    char text[4096];
    for (int i = 0; i < 2; i++) {
        config.dim_value = i ? 7 : 0;
        struct ra_plan *plan = plan_for(&config);
        ra_plan_config(plan, &got, sizeof got);
        ck_assert_int_eq(got.dim_value, i ? 7 : 3);
        ck_assert(ra_plan_describe(plan, 0, text, sizeof text) < (int64_t)sizeof text);
        ck_assert(!!strstr(text, "dim 3, dim_value 7, float32") == i);
        ck_assert(!!strstr(text, "dim 3, float32") == !i);
        ra_plan_destroy(plan);
    }

    /* A pair of one head costs D and D_v forward, and three times D and twice D_v backward; a row
     * of keys has two heads of both. */
    struct ra_hop hop;
    config.ring_size = 2;
    struct ra_plan *ring = plan_for(&config);
    for (int backward = 0; backward < 2; backward++) {
        ck_assert_int_eq(ra_plan_hop(ring, 1, 0, backward, &hop), RA_OK);
        ck_assert_int_eq(hop.multiply_adds, 2 * 4 * (2 * 3) * (backward ? 3 * 3 + 2 * 7 : 3 + 7));
        ck_assert_int_eq(hop.bytes, (1 + backward) * 3 * 2 * 2 * (3 + 7) * 4);
    }
    ra_plan_destroy(ring);
    config.ring_size = 0;

    /* v, o, d_out and dv, when they are missing or too narrow for their strides. */
    struct problem p = {.config = config};
    prepare(&p);
    struct ra_plan *plan = plan_for(&config);
    struct shard x;
    shard_make(&p, &x, ROWS_FIRST, plan);
    ck_assert_int_eq(ra_forward(plan, &x.arrays), RA_OK);
    for (int a = 0; a < ARRAYS; a++) {
        struct ra_arrays spoilt = x.arrays;
        bool of_keys = truth_is_of_keys(a);
        if (a == MASK || a == LSE)
            continue;
        tensor_in(&spoilt, a)->data = NULL;
        ck_assert_int_eq(ra_backward(plan, &spoilt), RA_INVALID);
        snprintf(text, sizeof text, "arrays.%s.data is NULL: give an array of (2, %d, %d, %d)",
                 truth_names[a], of_keys ? 6 : 5, of_keys ? 2 : 4,
                 a == V || a == O || a == D_OUT || a == DV ? 7 : 3);
        ck_assert_str_eq(ra_plan_error(plan), text);
    }
    struct ra_arrays spoilt = x.arrays;
    spoilt.dv.head = 6;
    ck_assert_int_eq(ra_backward(plan, &spoilt), RA_INVALID);
    ck_assert_ptr_nonnull(strstr(ra_plan_error(plan), "arrays.dv: strides"));
    ck_assert_ptr_nonnull(strstr(ra_plan_error(plan), "heads 2, dim 7"));
    ra_plan_destroy(plan);
    shard_clear(&x);
    problem_clear(&p);
}

CASE(threads, 120);

/* Tiles of AMX are for plans of bfloat16 with more than a few queries. In them, a call with another
 * type beside has the bits of AVX512: neither pass rounds weights then. */
TEST(tiles_of_bfloat16)
{
    const struct ra_vector *amx = ra_vector_find("amx");
    struct problem p = {.config = problem_shape(1, 32, 40, 2, 1, 33), .seed = 4};
    char text[4096];
    for (int i = 0; amx && i < 4; i++) {
        p.config.type = i == 3 ? RA_FLOAT16 : RA_BFLOAT16;
        p.config.queries = i == 2 ? 31 : 32;
        struct ra_plan *plan;
        ck_assert_int_eq(ra_plan_create(&plan, &p.config, NULL, text), RA_OK);
        ra_plan_describe(plan, 0, text, sizeof text);
        ck_assert_ptr_nonnull(strstr(text, i < 2 ? "amx vector tiles" : "avx512 vector tiles"));
        ra_plan_destroy(plan);
    }
    for (int wide = 0; amx && wide < 2; wide++) {
        p.config.type = RA_BFLOAT16;
        p.config.queries = 32;
        p.wide[Q] = p.wide[O] = wide;
        prepare(&p);
        ck_assert(p.truth.weights == (wide ? RA_FLOAT32 : RA_BFLOAT16));
        struct run run = run_as(&p, ROWS_FIRST, THREAD_LATE);
        run_judge(&p, &run);
        clear_run(&run);
        problem_clear(&p);
    }
}

/* As many queries as several threads share: any number of them gives the same bits, alone and in a
 * ring, also where the caller is a thread of OpenMP already. */
TESTS(threads_of_a_rank, 0, 12)
{
    static const int64_t dims[] = {3, 16, 33}, tiles[] = {0, 40, 130};
    static const int threads[] = {2, 5};
    uint64_t state = (uint64_t)_i + 4000;
    bool large =
        _i < 2; /* enough rows for one thread to fold a whole tile, and several to share it */
    int64_t N = large ? 1300 : 260 + (int64_t)random_below(&state, 180);
    int64_t M = large || random_below(&state, 2) ? 300 : N;
    struct problem p = {.config = problem_shape(1, N, M, 4, 2, large ? 3 : ONE_OF(&state, dims)),
                        .masking = large || _i % 3 ? NO_MASK : RANDOM_MASK,
                        .seed = (unsigned)_i};
    struct ra_config *c = &p.config;
    c->causal = _i % 2;
    c->lookback = _i % 4 == 3 ? 333 : RA_NO_LOOKBACK;
    c->head_map = _i % 5 ? RA_GROUPED : RA_INTERLEAVED;
    c->type = _i % 3;
    c->tile_queries = large ? 0 : ONE_OF(&state, tiles);
    c->tile_keys = ONE_OF(&state, tiles);
    c->tile = _i % 6 == 4 ? RA_PLAIN_TILE : RA_VECTOR_TILE;
    c->layout = _i % 3;
    p.ranks = _i % 4 == 2 ? 2 : 0;
    c->threads = 1;
    prepare(&p);
    struct run one = run_as(&p, ROWS_FIRST, THREAD_LATE);
    run_judge(&p, &one);
    for (int t = 0; t < COUNT(threads); t++) {
        c->threads = threads[t];
        struct run run = run_as(&p, ROWS_FIRST, THREAD_LATE);
        run_same_bits(&one, &run);
        clear_run(&run);
    }
    if (p.ranks == 0)
#pragma omp parallel for num_threads(3)
        for (int caller = 0; caller < 3; caller++) {
            struct problem own = p;
            struct run run = run_as(&own, ROWS_FIRST, THREAD_LATE);
            run_same_bits(&one, &run);
            clear_run(&run);
        }
    clear_run(&one);
    problem_clear(&p);
}

/* Without a number of its own a plan gets a thread for each processor that the process may use,
 * shared by the ranks of a link, and for no more than there is to fold. Its memory tells how many
 * it has. */
TEST(processors)
{
    struct ra_config config = problem_shape(1, 4000, RA_SAME, 2, 2, 64);
    int usual = omp_get_num_procs(); /* OpenMP may count processors when it is first asked */
    unsetenv("OMP_NUM_THREADS");     /* whatever the test's own environment says of threads */
    omp_set_num_threads(usual);
    int64_t bytes[5] = {0};
    for (config.threads = 1; config.threads < 5; config.threads++) {
        struct ra_plan *plan = plan_for(&config);
        bytes[config.threads] = ra_plan_bytes(plan);
        ra_plan_destroy(plan);
        ck_assert_int_gt(bytes[config.threads], bytes[config.threads - 1]);
    }
    cpu_set_t all, some;
    ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&some);
    config.threads = 0;
    for (int cpu = 0, wanted = 0; cpu < CPU_SETSIZE && wanted < 4; cpu++) {
        if (!CPU_ISSET(cpu, &all))
            continue;
        CPU_SET(cpu, &some);
        wanted++;
        ck_assert_int_eq(sched_setaffinity(0, sizeof some, &some), 0);
        /* Fewer, if a control group has the time of fewer. */
        int expected = ra_processors();
        ck_assert_int_le(expected, wanted);
        struct ra_plan *plan = plan_for(&config);
        ck_assert_int_eq(ra_plan_bytes(plan), bytes[expected]);
        ra_plan_destroy(plan);
    }

    /* A program may ask OpenMP for fewer threads, as torch.set_num_threads does. Whoever sets
     * OMP_NUM_THREADS, which OpenMP reads when a program starts, means it. */
    omp_set_num_threads(1);
    struct ra_plan *single = plan_for(&config);
    ck_assert_int_eq(ra_plan_bytes(single), bytes[1]);
    setenv("OMP_NUM_THREADS", "3", 1);
    omp_set_num_threads(3);
    struct ra_plan *three = plan_for(&config);
    ck_assert_int_eq(ra_plan_bytes(three), bytes[3]);
    ra_plan_destroy(single);
    ra_plan_destroy(three);
    unsetenv("OMP_NUM_THREADS");
    omp_set_num_threads(usual);

    /* One tile for each of two heads: nothing for a third thread to do. */
    config.queries = 100;
    struct ra_plan *plan = plan_for(&config);
    config.threads = 7;
    struct ra_plan *seven = plan_for(&config);
    ck_assert_int_ge(ra_plan_bytes(seven), ra_plan_bytes(plan));
    ra_plan_destroy(plan);
    config.threads = 4;
    plan = plan_for(&config);
    ck_assert_int_eq(ra_plan_bytes(seven), ra_plan_bytes(plan));
    ra_plan_destroy(plan);
    ra_plan_destroy(seven);
}

/* A child made by fork computes with a plan of its parent, whose threads it does not have, the same
 * bits; and the parent goes on. */
TEST(forked)
{
    struct problem p = {.config = problem_shape(1, 3000, 3000, 1, 1, 16), .seed = 4};
    p.config.threads = 3;
    problem_make(&p);
    struct ra_plan *plan = plan_for(&p.config);
    struct shard x;
    shard_make(&p, &x, ROWS_FIRST, plan);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(ra_forward(plan, &x.arrays), RA_OK);
        ck_assert_int_eq(ra_backward(plan, &x.arrays), RA_OK);
        struct shard mine = {0};
        int status;
        pid_t child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) {
            alarm(60);
            shard_make(&p, &mine, ROWS_FIRST, plan);
            bool good =
                ra_forward(plan, &mine.arrays) == RA_OK && ra_backward(plan, &mine.arrays) == RA_OK;
            for (int t = O; t <= DV && good; t++)
                good = memcmp(x.block_of[t]->data, mine.block_of[t]->data,
                              (size_t)x.block_of[t]->bytes) == 0;
            _exit(good ? 0 : 1);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_msg(status == 0, "wait says %d of the child", status);
    }
    shard_clear(&x);
    ra_plan_destroy(plan);
    problem_clear(&p);
}

/* RA_VECTOR in the environment chooses the instruction set, of which each gives other bits; one
 * that the processor does not have is refused. */
TEST(instruction_sets)
{
    struct problem p = {.config = problem_shape(1, 100, 100, 1, 1, 64), .seed = 3};
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    prepare(&p);
    struct run best = run_as(&p, ROWS_FIRST, THREAD_LATE);
    setenv("RA_VECTOR", ra_vector_find(NULL)->name, 1);
    struct run named = run_as(&p, ROWS_FIRST, THREAD_LATE);
    run_same_bits(&best, &named);
    if (ra_vector_find("sse2") && ra_vector_find("avx2")) {
        setenv("RA_VECTOR", "avx2", 1);
        struct run one = run_as(&p, ROWS_FIRST, THREAD_LATE);
        setenv("RA_VECTOR", "sse2", 1);
        struct run other = run_as(&p, ROWS_FIRST, THREAD_LATE);
        run_judge(&p, &other);
        ck_assert(memcmp(one.got[O], other.got[O], 100 * 64 * sizeof *one.got[O]) != 0);
        clear_run(&one);
        clear_run(&other);
    }
    setenv("RA_VECTOR", "mmx", 1);
    ck_assert_int_eq(ra_plan_create(&plan, &p.config, NULL, error), RA_INVALID);
    ck_assert_str_eq(error, "RA_VECTOR=mmx in the environment: this processor has no such vectors");
    setenv("RA_VECTOR", "amx", 1);
    if (!ra_vector_find("amx")) {
        ck_assert_int_eq(ra_plan_create(&plan, &p.config, NULL, error), RA_INVALID);
        ck_assert_msg(strstr(error, "RA_VECTOR=amx in the environment: ") == error &&
                          (strstr(error + 10, "AMX") || strstr(error, "AVX512_BF16")),
                      "%s", error);
    }
    p.config.tile = RA_PLAIN_TILE;
    ck_assert_int_eq(ra_plan_create(&plan, &p.config, NULL, error), RA_OK);
    ra_plan_destroy(plan);
    unsetenv("RA_VECTOR");
    clear_run(&best);
    clear_run(&named);
    problem_clear(&p);
}

CASE(alone, 120);

/* Every rule with every mask, on one shape whose queries and keys differ, in few tiles. */
TESTS(rules_and_masks, 0, 2)
{
    static const int64_t lookbacks[] = {RA_NO_LOOKBACK, 0, 1, 8, 9, 30, 1000};
    for (int masking = NO_MASK; masking <= LAST_SEEN; masking++)
        for (int i = 0; i < 1 + COUNT(lookbacks); i++)
            for (int interleaved = 0; interleaved < 2; interleaved++) {
                struct problem p = {.config = _i ? problem_shape(2, 30, 19, 4, 2, 3)
                                                 : problem_shape(2, 19, 30, 4, 2, 3),
                                    .masking = masking,
                                    .seed = (unsigned)(10 * masking + i)};
                p.config.tile_queries = p.config.tile_keys = 8;
                p.config.causal = i > 0;
                p.config.lookback = i > 0 ? lookbacks[i - 1] : RA_NO_LOOKBACK;
                p.config.head_map = interleaved ? RA_INTERLEAVED : RA_GROUPED;
                p.config.softcap = interleaved ? 1.5 : 0;
                check_problem(p, ROWS_FIRST);
            }
}

/* Scores of all sizes, in all types. */
TESTS(sizes_of_scores, 0, 2)
{
    static const double sizes[] = {0.1, 1, 10, 30, 300};
    for (int i = 0; i < COUNT(sizes); i++)
        for (int type = RA_FLOAT32; type <= RA_BFLOAT16; type++) {
            struct problem p = {.config = problem_shape(1, 40, 50, 2, 1, 16),
                                .size = sizes[i],
                                .seed = (unsigned)i};
            p.config.causal = _i;
            p.config.type = type;
            p.config.tile_keys = 16;
            check_problem(p, ROWS_FIRST);
        }
}

/* lse is float32: what it is rounded by multiplies a query's share of every gradient, and nothing
 * else goes wrong. Scores are whole numbers here, so that they are exact, and the truth is
 * double. */
TESTS(large_lse, 0, 2)
{
    static const double levels[] = {0, 1e3, 1e5, 1e6, 1e7, 1e8, 1e9};
    enum { N = 3, M = 40 };
    for (int l = 0; l < COUNT(levels); l++) {
        struct problem p = {.config = problem_shape(1, N, M, 1, 1, 2)};
        p.config.scale = 1;
        p.config.tile_keys = 16;
        prepare(&p);
        double sign = _i ? -1 : 1, half = 0; /* a step of float32 there, halved */
        for (int64_t i = 0; i < N; i++)
            p.truth.x[Q][2 * i] = sign, p.truth.x[Q][2 * i + 1] = (double)i / 64;
        for (int64_t j = 0; j < M; j++)
            p.truth.x[K][2 * j] = levels[l], p.truth.x[K][2 * j + 1] = 0;
        problem_solve(&p);
        struct run run = run_as(&p, ROWS_FIRST, THREAD_LATE);
        double off[N], share[2 * M] = {0}, size[2 * M] = {0};
        for (int64_t i = 0; i < N; i++) {
            double lse = p.truth.x[LSE][i], got = run.got[LSE][i];
            half = ((double)nextafterf((float)fabs(lse), INFINITY) - fabs((double)(float)lse)) / 2;
            off[i] = exp(lse - got);
            ck_assert_msg(fabs(got - lse) <= half * 1.001 && half <= fabs(lse) * 0x1p-24 * 1.001,
                          "lse %.17g, got %.17g", lse, got);
            for (int64_t c = 0; c < 2; c++) {
                double o = p.truth.x[O][2 * i + c], dq = p.truth.x[DQ][2 * i + c] * off[i];
                ck_assert_double_le(fabs(run.got[O][2 * i + c] - o), 1e-6);
                ck_assert_msg(fabs(run.got[DQ][2 * i + c] - dq) <= 1e-6 * off[i] * (1 + levels[l]),
                              "dq %g, not %g", run.got[DQ][2 * i + c], dq);
            }
        }
        for (int64_t i = 0; i < N; i++)
            for (int64_t e = 0; e < 2 * M; e++) {
                double term = off[i] / M * p.truth.x[D_OUT][2 * i + e % 2];
                share[e] += term, size[e] += fabs(term);
            }
        for (int64_t e = 0; e < 2 * M; e++)
            ck_assert_msg(fabs(run.got[DV][e] - share[e]) <= 1e-5 * size[e],
                          "level %g: dv %g, not %g", levels[l], run.got[DV][e], share[e]);
        clear_run(&run);
        problem_clear(&p);
    }
}

static const char *const sets[] = {"amx", "avx512", "avx2", "sse2", "neon"};

CASE(rings, 120);

/* What all keys have in common moves all scores of a row alike, and no gradient: on each
 * instruction set and on any number of ranks they err by at most twice what those of a plain
 * program err by, root mean square. See the test of this name in check_tile. */
TESTS(common_component, 0, 5)
{
    static const double cases[][2] = {{-1000, 0}, {-60000, 0}, {0, 1000}};
    for (int i = 0; i < 2 * COUNT(cases); i++) {
        const double *moved = cases[i / 2];
        double squares[COUNT(sets)][ARRAYS][2] = {{{0}}};
        for (unsigned seed = 0; seed < 3; seed++) {
            /* A scale that is a power of 2 would round nothing: not D = 64. */
            struct problem p = {
                .config = problem_shape(1, 30, 300, 2, 1, 48), .ranks = _i, .seed = seed};
            p.config.softcap = i % 2 ? 3 - 2 * moved[0] + 10 * moved[1] : 0;
            p.config.layout = seed % 2 ? RA_STRIPED : RA_CONTIGUOUS;
            p.config.tile_keys = seed == 2 ? 64 : 0;
            p.shift = moved[0];
            p.offset = moved[1];
            prepare(&p);
            for (int set = 0; set < COUNT(sets); set++) {
                if (!ra_vector_find(sets[set]))
                    continue;
                setenv("RA_VECTOR", sets[set], 1);
                struct run run = run_as(&p, ROWS_FIRST, THREAD_LATE);
                for (int t = DQ; t < ARRAYS; t++)
                    problem_add_squares(&p, t, run.got[t], squares[set][t]);
                clear_run(&run);
                unsetenv("RA_VECTOR");
            }
            problem_clear(&p);
        }
        for (int set = 0; set < COUNT(sets); set++)
            for (int t = DQ; t < ARRAYS; t++)
                ck_assert_msg(squares[set][t][1] <= 4 * squares[set][t][0],
                              "%s, scores moved by %g, keys by %g, %s: %s errs by %.3g times what "
                              "a plain program does",
                              sets[set], moved[0], moved[1], i % 2 ? "soft cap" : "no cap",
                              truth_names[t], sqrt(squares[set][t][1] / squares[set][t][0]));
    }
}

/* A query that sees one key of many, by a window or a mask: o is that key's v, whatever the score,
 * and dq and dk are exactly 0. */
TESTS(one_key, 0, 5)
{
    for (int i = 0; i < 12 * COUNT(sets); i++) {
        const char *set = sets[i / 12];
        if (!ra_vector_find(set))
            continue;
        setenv("RA_VECTOR", set, 1);
        struct problem p = {.config = problem_shape(2, 70, 70, 2, 1, i % 2 ? 33 : 64),
                            .ranks = _i,
                            .size = 20,
                            .masking = i / 2 % 2 ? LAST_SEEN : NO_MASK,
                            .seed = (unsigned)i};
        p.config.type = (enum ra_type)(RA_FLOAT32 + i / 4 % 3);
        p.config.layout = i % 2 ? RA_ZIGZAG : RA_STRIPED;
        p.config.causal = p.masking == NO_MASK;
        p.config.lookback = p.config.causal ? 0 : RA_NO_LOOKBACK;
        p.config.softcap = i % 3 ? 0 : 5;
        prepare(&p);
        struct run run = run_as(&p, ROWS_FIRST, THREAD_LATE);
        run_judge(&p, &run);
        unsetenv("RA_VECTOR");
        for (int t = DQ; t <= DK; t++)
            for (int64_t e = 0; e < truth_count(&p.truth, t); e++)
                if (!(run.got[t][e] == 0))
                    ck_abort_msg("%s, type %d: %s is %g", set, p.config.type, truth_names[t],
                                 run.got[t][e]);
        clear_run(&run);
        problem_clear(&p);
    }
}

/* Numbers of a truth as an array of a plan, float32 or bfloat16, whose numbers they already are. */
static void *array_of(const double *x, int64_t count, enum ra_type type)
{
    float *numbers = malloc((size_t)count * sizeof *numbers);
    uint16_t *halves = malloc((size_t)count * sizeof *halves);
    for (int64_t e = 0; e < count; e++) {
        numbers[e] = (float)x[e];
        memcpy(&halves[e], (const char *)&numbers[e] + 2, 2);
    }
    free(type == RA_FLOAT32 ? (void *)halves : (void *)numbers);
    return type == RA_FLOAT32 ? (void *)numbers : (void *)halves;
}

/* Rows from `first` on of an array of so many rows, heads and numbers. */
static struct ra_tensor rows_of(void *array, enum ra_type type, int64_t first, int64_t rows,
                                int64_t heads, int64_t width)
{
    return ra_tensor_bnhd((char *)array + first * heads * width * ra_type_bytes(type), type, rows,
                          heads, width);
}

/* Some of the queries with some of the keys. */
struct part {
    int64_t query, queries, key, keys;
    bool causal;
};

/* Adds the gradients of one part, by a plan of its own, to what there is of the whole; o and lse
 * are those of the whole. */
static void add_part(const struct problem *p, const struct part *part, void *const x[ARRAYS],
                     double *const got[ARRAYS])
{
    const struct truth *t = &p->truth;
    struct ra_config config = p->config;
    config.queries = part->queries;
    config.keys = part->keys;
    config.causal = part->causal;
    struct ra_plan *plan = plan_for(&config);
    struct ra_arrays arrays = RA_ARRAYS_INIT;
    float *gradients[ARRAYS] = {NULL};
    for (int a = Q; a < ARRAYS; a++) {
        bool of_keys = truth_is_of_keys(a);
        int64_t rows = of_keys ? part->keys : part->queries;
        struct ra_tensor *tensor = tensor_in(&arrays, a);
        if (a < DQ && x[a])
            *tensor = rows_of(x[a], problem_type(p, a), of_keys ? part->key : part->query,
                              truth_rows(t, a), truth_heads(t, a), truth_width(t, a));
        if (a >= DQ) {
            gradients[a] = calloc((size_t)(t->B * rows * truth_heads(t, a) * t->D), sizeof(float));
            *tensor = ra_tensor_bnhd(gradients[a], RA_FLOAT32, rows, truth_heads(t, a), t->D);
        }
    }
    arrays.lse.head = 1; /* (B, N, H), as all others */
    ck_assert_msg(ra_backward(plan, &arrays) == RA_OK, "%s", ra_plan_error(plan));
    for (int a = DQ; a < ARRAYS; a++) {
        int64_t rows = truth_is_of_keys(a) ? part->keys : part->queries;
        int64_t first = truth_is_of_keys(a) ? part->key : part->query;
        int64_t row = truth_heads(t, a) * t->D;
        for (int64_t e = 0; e < t->B * rows * row; e++)
            got[a][(e / (rows * row) * truth_rows(t, a) + first) * row + e % (rows * row)] +=
                gradients[a][e];
        free(gradients[a]);
    }
    ra_plan_destroy(plan);
}

CASE(alone, 120);

/* The backward of a plan for a part of the keys, given o and lse of all of them, gives this part's
 * share of the gradients. So rings of one's own can be made of plans. Even of a single key, where
 * that of a plan which has no other would be 0. */
TESTS(part_of_the_keys, 0, 2)
{
    static const struct part all_keys[] = {
        {0, 120, 0, 1, false}, {0, 120, 1, 70, false}, {0, 120, 71, 49, false}};
    static const struct part causal[] = {
        {0, 60, 0, 60, true}, {60, 60, 0, 60, false}, {60, 60, 60, 60, true}};
    for (int i = 0; i < 4; i++) {
        struct problem p = {.config = problem_shape(2, 120, 120, 4, 2, 16), .size = 3, .seed = 5};
        p.config.type = i % 2 ? RA_BFLOAT16 : RA_FLOAT32;
        p.config.tile = i / 2 ? RA_PLAIN_TILE : RA_VECTOR_TILE;
        p.config.causal = _i;
        p.config.softcap = i == 1 ? 5 : 0;
        p.masking = _i ? NO_MASK : RANDOM_MASK;
        p.wide[O] = p.wide[DQ] = p.wide[DK] = p.wide[DV] = true;
        prepare(&p);
        struct run whole = run_as(&p, ROWS_FIRST, THREAD_LATE), run = new_run(&p, ROWS_FIRST);
        void *x[ARRAYS] = {NULL};
        for (int a = Q; a < DQ; a++) {
            int64_t count = truth_count(&p.truth, a);
            const double *numbers = truth_is_output(a) ? whole.got[a] : p.truth.x[a];
            if (a != MASK)
                x[a] = array_of(numbers, count, problem_type(&p, a));
            else if (p.config.has_mask)
                x[a] = calloc((size_t)count, 1);
            for (int64_t e = 0; e < count && a == MASK && x[a]; e++)
                ((bool *)x[a])[e] = numbers[e] != 0;
        }
        for (int part = 0; part < 3; part++)
            add_part(&p, _i ? &causal[part] : &all_keys[part], x, run.got);
        memcpy(run.got[O], whole.got[O], (size_t)truth_count(&p.truth, O) * sizeof *run.got[O]);
        memcpy(run.got[LSE], whole.got[LSE], (size_t)truth_count(&p.truth, LSE) * sizeof(double));
        run_judge(&p, &run);
        for (int a = Q; a < DQ; a++)
            free(x[a]);
        clear_run(&whole);
        clear_run(&run);
        problem_clear(&p);
    }
}

/* Beside arrays of 16 bits o may be float32, as the reference recommends: delta is made of o. dq is
 * then as good as a plain program's in float32, and some hundred times as good as that of a rounded
 * o: only twice where weights are rounded, too. */
TESTS(o_in_float32, 0, 2)
{
    double squares[2][2] = {{0}}, factor = 100;
    for (int narrow = 0; narrow < 2; narrow++) {
        struct problem p = {.config = problem_shape(1, 64, 512, 1, 1, 64), .seed = 5};
        p.config.type = _i ? RA_BFLOAT16 : RA_FLOAT16;
        p.wide[O] = p.wide[DQ] = p.wide[DK] = p.wide[DV] = true;
        p.shift = -10;
        prepare(&p);
        p.wide[O] = !narrow;
        if (p.truth.weights == RA_BFLOAT16)
            factor = 2;
        struct run run = run_as(&p, ROWS_FIRST, THREAD_LATE);
        problem_add_squares(&p, DQ, run.got[DQ], squares[narrow]);
        clear_run(&run);
        problem_clear(&p);
    }
    ck_assert_msg(squares[0][1] <= 4 * squares[0][0],
                  "dq errs by %g times what a plain program does",
                  sqrt(squares[0][1] / squares[0][0]));
    ck_assert_msg(squares[1][1] >= factor * factor * squares[0][1],
                  "a rounded o costs a factor of %g only", sqrt(squares[1][1] / squares[0][1]));
}

/* Rounding happens once, at the end: the 16-bit outputs are those of float32, rounded. */
TESTS(rounded_once, 0, 2)
{
    static const enum truth_array outputs[] = {O, DQ, DK, DV};
    struct problem narrow = {.config = problem_shape(2, 70, 90, 4, 2, 16), .masking = RANDOM_MASK},
                   wide;
    narrow.config.type = _i ? RA_BFLOAT16 : RA_FLOAT16;
    narrow.config.tile_keys = 16;
    prepare(&narrow);
    wide = narrow;
    for (int i = 0; i < COUNT(outputs); i++)
        wide.wide[outputs[i]] = true;
    struct run a = run_as(&narrow, ROWS_FIRST, THREAD_LATE),
               b = run_as(&wide, ROWS_FIRST, THREAD_LATE);
    for (int i = 0; i < COUNT(outputs); i++) {
        enum truth_array t = outputs[i];
        for (int64_t e = 0; e < truth_count(&narrow.truth, t); e++)
            if (a.got[t][e] != number_rounded(narrow.config.type, b.got[t][e]))
                ck_abort_msg("%s: %g became %g", truth_names[t], b.got[t][e], a.got[t][e]);

        /* The backwards begin with the same o. */
        if (t == O) {
            clear_run(&a);
            narrow.wide[O] = true;
            a = run_as(&narrow, ROWS_FIRST, THREAD_LATE);
        }
    }
    clear_run(&a);
    clear_run(&b);
    problem_clear(&narrow);
}

/* q, k, v and d_out may be one array. */
TEST(inputs_may_be_one)
{
    struct problem p = {.config = problem_shape(2, 20, 20, 2, 2, 8)};
    p.config.causal = true;
    prepare(&p);
    for (int t = K; t <= D_OUT; t++)
        if (t == K || t == V || t == D_OUT)
            memcpy(p.truth.x[t], p.truth.x[Q], (size_t)truth_count(&p.truth, Q) * sizeof(double));
    problem_solve(&p);
    struct run apart = run_as(&p, ROWS_FIRST, THREAD_LATE);
    run_judge(&p, &apart);

    struct ra_plan *plan = plan_for(&p.config);
    struct shard x;
    shard_make(&p, &x, ROWS_FIRST, plan);
    x.arrays.k.data = x.arrays.v.data = x.arrays.d_out.data = x.arrays.q.data;
    ck_assert_int_eq(ra_forward(plan, &x.arrays), RA_OK);
    ck_assert_int_eq(ra_backward(plan, &x.arrays), RA_OK);
    struct run one = run_of(&p, &x);
    run_same_bits(&apart, &one);
    clear_run(&apart);
    clear_run(&one);
    shard_clear(&x);
    problem_clear(&p);
    ra_plan_destroy(plan);
}

/* One row of D numbers with strides of 0 is all of d_out, as the gradient of a sum is: the bits are
 * those of a d_out in which each row has these numbers. */
TEST(one_row_of_d_out)
{
    for (int i = 0; i < 6; i++) {
        struct problem p = {.config = problem_shape(2, 70, 50, 4, 2, 24)};
        p.config.type = (enum ra_type)(i % 3);
        p.config.tile = i < 3 ? RA_VECTOR_TILE : RA_PLAIN_TILE;
        p.config.causal = true;
        prepare(&p);
        struct ra_plan *plan = plan_for(&p.config);
        struct shard x;
        shard_make(&p, &x, ROWS_FIRST, plan);
        ck_assert_int_eq(ra_forward(plan, &x.arrays), RA_OK);
        struct ra_tensor *d_out = &x.arrays.d_out;
        size_t bytes = (size_t)(24 * ra_type_bytes(d_out->type));
        char row[24 * sizeof(float)];
        memcpy(row, d_out->data, bytes);
        for (int r = 0; r < 2 * 70 * 4; r++)
            memcpy((char *)d_out->data + (size_t)r * bytes, row, bytes);
        ck_assert_int_eq(ra_backward(plan, &x.arrays), RA_OK);
        struct run whole = run_of(&p, &x);
        *d_out = (struct ra_tensor){row, d_out->type, 0, 0, 0};
        ck_assert_int_eq(ra_backward(plan, &x.arrays), RA_OK);
        struct run one = run_of(&p, &x);
        run_same_bits(&whole, &one);
        clear_run(&whole);
        clear_run(&one);
        ra_plan_destroy(plan);
        shard_clear(&x);
        problem_clear(&p);
    }
}

/* A plan keeps nothing of a call for the next one: a backward is that of the arrays it is given,
 * whatever was computed since their forward. */
TESTS(calls_in_any_order, 0, 2)
{
    struct problem p[2];
    struct shard x[2];
    struct run apart[2];
    struct ra_plan *plan = NULL;
    for (int i = 0; i < 2; i++) {
        p[i] = (struct problem){.config = problem_shape(2, 20, 24, 2, 1, 8),
                                .masking = RANDOM_MASK,
                                .seed = (unsigned)i};
        p[i].config.type = _i ? RA_BFLOAT16 : RA_FLOAT32;
        prepare(&p[i]);
        apart[i] = run_as(&p[i], ROWS_FIRST, THREAD_LATE);
        plan = plan ? plan : plan_for(&p[i].config);
        shard_make(&p[i], &x[i], ROWS_FIRST, plan);
        ck_assert_int_eq(ra_forward(plan, &x[i].arrays), RA_OK);
    }
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(ra_backward(plan, &x[i].arrays), RA_OK);
        struct run together = run_of(&p[i], &x[i]);
        run_same_bits(&apart[i], &together);
        clear_run(&together);
        clear_run(&apart[i]);
        shard_clear(&x[i]);
        problem_clear(&p[i]);
    }
    ra_plan_destroy(plan);
}

/* Arrays without numbers need not be there, nor be apart. */
TEST(empty_arrays)
{
    static const int64_t shapes[][3] = {{0, 5, 5}, {1, 0, 5}, {1, 5, 0}, {1, 0, 0}, {0, 0, 0}};
    for (int i = 0; i < COUNT(shapes); i++)
        for (int type = RA_FLOAT32; type <= RA_BFLOAT16; type++)
            for (int shared = 0; shared < 3; shared++) {
                float q[5 * 4], o[5 * 4], lse[5], d_out[5 * 4], dq[5 * 4], k[5 * 4], dk[5 * 4],
                    dv[5 * 4], nothing;
                bool has_queries = shapes[i][0] * shapes[i][1] > 0;
                bool has_keys = shapes[i][0] * shapes[i][2] > 0;
                struct ra_config config =
                    problem_shape(shapes[i][0], shapes[i][1], shapes[i][2], 1, 1, 4);
                config.type = type;
                config.causal = shared > 0;
                struct ra_plan *plan = plan_for(&config);
                void *some = has_keys ? dk : has_queries ? dq : &nothing;
                void *none = shared == 0 ? NULL : shared == 1 ? &nothing : some;
                memset(q, 0, sizeof q);
                memset(k, 0, sizeof k);
                memset(d_out, 0, sizeof d_out);
                struct ra_arrays arrays = RA_ARRAYS_INIT;
                arrays.q = ra_tensor_bnhd(has_queries ? q : none, RA_FLOAT32, 5, 1, 4);
                arrays.o = ra_tensor_bnhd(has_queries ? o : none, RA_FLOAT32, 5, 1, 4);
                arrays.lse = ra_tensor_bhn(has_queries ? lse : none, 5, 1);
                arrays.d_out = ra_tensor_bnhd(has_queries ? d_out : none, RA_FLOAT32, 5, 1, 4);
                arrays.dq = ra_tensor_bnhd(has_queries ? dq : none, RA_FLOAT32, 5, 1, 4);
                arrays.k = arrays.v = ra_tensor_bnhd(has_keys ? k : none, type, 5, 1, 4);
                arrays.dk = ra_tensor_bnhd(has_keys ? dk : none, RA_FLOAT32, 5, 1, 4);
                arrays.dv = ra_tensor_bnhd(has_keys ? dv : none, RA_FLOAT32, 5, 1, 4);
                memset(o, 0xFF, sizeof o);
                memset(dq, 0xFF, sizeof dq);
                memset(dk, 0xFF, sizeof dk);
                memset(dv, 0xFF, sizeof dv);
                ck_assert_msg(ra_forward(plan, &arrays) == RA_OK, "%s", ra_plan_error(plan));
                ck_assert_msg(ra_backward(plan, &arrays) == RA_OK, "%s", ra_plan_error(plan));
                for (int e = 0; e < 5 * 4; e++) {
                    ck_assert(!has_queries || (o[e] == 0 && dq[e] == 0 && lse[e / 4] == -INFINITY));
                    ck_assert(!has_keys || (dk[e] == 0 && dv[e] == 0));
                }
                ra_plan_destroy(plan);
            }
}

/* The strides of an array without numbers are not looked at. Such arrays get wild ones here: the
 * sanitizers would see a product of those, which no int64_t holds. _i: float32, or bfloat16. */
TESTS(strides_of_empty_arrays, 0, 2)
{
    /* Batches, queries, keys. */
    static const int64_t shapes[][3] = {{0, 5, 5}, {3, 0, 0}, {3, 0, 5}, {3, 5, 0}};
    float some[3 * 5 * 2 * 4] = {0}, outputs[5][3 * 5 * 2 * 4];
    for (int i = 0; i < COUNT(shapes); i++) {
        struct ra_config config = problem_shape(shapes[i][0], shapes[i][1], shapes[i][2], 2, 2, 4);
        config.type = _i ? RA_BFLOAT16 : RA_FLOAT32;
        struct ra_plan *plan = plan_for(&config);
        struct ra_arrays arrays = RA_ARRAYS_INIT;
        for (int t = 0, output = 0; t < ARRAYS; t++) {
            enum ra_side side = side_of(t);
            struct ra_tensor wild = {some, RA_FLOAT32, INT64_MAX, INT64_MIN, INT64_MAX / 2};
            struct ra_tensor good =
                ra_tensor_bnhd(some, t == K || t == V ? config.type : 0, 5, 2, 4);
            if (t == O || t >= DQ)
                good.data = outputs[output++];
            if (t == LSE)
                good = ra_tensor_bhn(outputs[output++], 5, 2);
            if (t != MASK)
                *tensor_in(&arrays, t) = shapes[i][0] * shapes[i][1 + side] > 0 ? good : wild;
        }
        ck_assert_msg(ra_forward(plan, &arrays) == RA_OK, "%s", ra_plan_error(plan));
        ck_assert_msg(ra_backward(plan, &arrays) == RA_OK, "%s", ra_plan_error(plan));
        ra_plan_destroy(plan);
    }
}

/* A mask holds whatever bytes the caller has: 0 is false, all others are true. */
TEST(any_byte_is_true)
{
    struct ra_config config = problem_shape(1, 1, 4, 1, 1, 1);
    config.has_mask = true;
    struct ra_plan *plan = plan_for(&config);
    float zero[4] = {0}, v[] = {1, 2, 4, 8}, o = NAN, lse = NAN;
    unsigned char mask[] = {0, 1, 2, 255};
    struct ra_arrays arrays = RA_ARRAYS_INIT;
    arrays.q = ra_tensor_bnhd(zero, RA_FLOAT32, 1, 1, 1);
    arrays.k = ra_tensor_bnhd(zero, RA_FLOAT32, 4, 1, 1);
    arrays.v = ra_tensor_bnhd(v, RA_FLOAT32, 4, 1, 1);
    arrays.mask = ra_tensor_bn(mask, 4);
    arrays.o = ra_tensor_bnhd(&o, RA_FLOAT32, 1, 1, 1);
    arrays.lse = ra_tensor_bhn(&lse, 1, 1);
    ck_assert_int_eq(ra_forward(plan, &arrays), RA_OK);
    ck_assert(fabsf(o - 14.0f / 3) < 1e-6f && fabsf(lse - logf(3)) < 1e-6f);
    ra_plan_destroy(plan);
}

/* ---- Rings. ---- */

static const int ring_sizes[] = {1, 2, 3, 5, 8};

CASE(rings, 120);

TESTS(rings, 0, 3 * COUNT(ring_sizes))
{
    static const int64_t some[] = {1, 2, 7, 16, 37, 40, 65};
    uint64_t state = (uint64_t)_i + 1000;
    for (int i = 0; i < 14; i++) {
        int64_t N = ONE_OF(&state, some), M = random_below(&state, 2) ? N : ONE_OF(&state, some);
        struct problem p = problem_random(&state, N, M);
        enum order order = problem_random_order(&state, &p);
        p.ranks = ring_sizes[_i % COUNT(ring_sizes)];
        p.config.layout = _i / COUNT(ring_sizes);
        p.config.bucket = p.config.layout == RA_STRIPED && i % 2 ? 1 + i / 2 : 0;
        p.config.local_keys = random_below(&state, 6) == 0;
        p.config.ring_size = random_below(&state, 2) ? p.ranks : 0;
        prepare(&p);

        /* Twice, in two orders, with messages that come early and late: the same bits. */
        struct run run = run_as(&p, order, THREAD_LATE);
        struct run again = run_as(&p, ROWS_FIRST, THREAD_EARLY);
        run_same_bits(&run, &again);
        run_judge(&p, &run);

        /* One rank computes what one process does, to the bit. */
        if (p.ranks == 1) {
            struct problem alone = p;
            alone.ranks = 0;
            struct run without = run_as(&alone, order, THREAD_LATE);
            run_same_bits(&run, &without);
            clear_run(&without);
        }
        clear_run(&run);
        clear_run(&again);
        problem_clear(&p);
    }
}

/* Random problems by every method, also on rings of two and three groups or hosts of three and two
 * ranks: right, the same bits twice, and messages as the plan says. */
TESTS(methods_of_threads, 0, 4)
{
    static const struct {
        enum ra_method method;
        int ranks, part; /* part: group or inner */
    } ways[] = {{RA_GATHERED_KEYS, 5, 0}, {RA_EXCHANGED_HEADS, 4, 0}, {RA_EXCHANGED_HEADS, 3, 0},
                {RA_HYBRID, 4, 2},        {RA_HYBRID, 6, 2},          {RA_HYBRID, 6, 3},
                {RA_DOUBLE_RING, 4, 2},   {RA_DOUBLE_RING, 6, 2},     {RA_DOUBLE_RING, 6, 3}};
    uint64_t state = (uint64_t)_i + 2000;
    for (int i = 0; i < COUNT(ways); i++) {
        int64_t N = 1 + random_below(&state, 60);
        struct problem p =
            problem_random(&state, N, random_below(&state, 2) ? N : 1 + random_below(&state, 60));
        p.config.method = ways[i].method;
        p.ranks = ways[i].ranks;
        p.config.group = ways[i].method == RA_HYBRID ? ways[i].part : 0;
        p.config.inner = ways[i].method == RA_DOUBLE_RING ? ways[i].part : 0;
        int64_t needed = ways[i].method == RA_EXCHANGED_HEADS ? p.ranks : p.config.group;
        int64_t shared = p.config.key_heads;
        while (p.config.heads < needed)
            p.config.heads += shared;
        prepare(&p);
        struct run run = run_as(&p, ROWS_FIRST, THREAD_LATE);
        struct run again = run_as(&p, HEADS_FIRST, THREAD_EARLY);
        run_same_bits(&run, &again);
        run_judge(&p, &run);
        clear_run(&run);
        clear_run(&again);
        problem_clear(&p);
    }
}

/* Windows that end at every place that matters, on every layout, with a rank that has no rows. */
TESTS(lookbacks, 0, 6)
{
    static const int64_t windows[] = {0, 1, 3, 4, 5, 8, 9, 12, 13, 21, 130, RA_NO_LOOKBACK};
    for (int i = 0; i < COUNT(windows); i++)
        for (int longer = 0; longer < 3; longer++) {
            struct problem p = {.config = problem_shape(1, 13, 13 + 4 * (longer - 1), 1, 1, 3),
                                .ranks = 4,
                                .seed = (unsigned)i};
            p.config.causal = true;
            p.config.lookback = windows[i];
            p.config.layout = _i % 3;
            p.config.bucket = _i == 3 + RA_STRIPED ? 2 : 0;
            p.config.tile_queries = p.config.tile_keys = 2;
            if (p.config.bucket == 0 && _i >= 3)
                p.config.tile_keys = 64;
            check_problem(p, ROWS_FIRST);
        }
}

/* Vectors, and several stripes on each rank: all rows of a visiting stripe begin before those of
 * each own one, or after. (Buckets below 8 have plain tiles, and rings above have no larger
 * ones.) */
TESTS(stripes_of_vectors, 0, 2)
{
    for (int64_t bucket = 8; bucket < 24; bucket += 5)
        for (int ranks = 2; ranks < 5; ranks++) {
            struct problem p = {.config = problem_shape(1, 130, 130, 2, 1, 5), .ranks = ranks};
            p.config.causal = true;
            p.config.lookback = _i ? 40 : RA_NO_LOOKBACK;
            p.config.layout = RA_STRIPED;
            p.config.bucket = bucket;
            check_problem(p, ROWS_FIRST);
        }
}

/* Keys that nobody may see, by rank: those of one rank, and those of all but one. */
TESTS(masked_ranks, 0, 12)
{
    for (int rank = 0; rank < 3; rank++) {
        struct problem p = {.config = problem_shape(2, 24, 24, 2, 1, 4),
                            .ranks = 3,
                            .masking = ALL_SEEN,
                            .seed = 5};
        p.config.causal = _i % 2;
        p.config.layout = _i / 2 % 3;
        p.config.type = rank;
        prepare(&p);
        for (int64_t j = 0; j < 24; j++)
            *problem_row(&p, MASK, 1, j, 0) = (p.home[RA_KEY_SIDE][j] == rank) != (_i < 6);
        problem_solve(&p);
        struct run run = run_as(&p, GAPS, THREAD_LATE);
        run_judge(&p, &run);
        clear_run(&run);
        problem_clear(&p);
    }
}

/* While the tiles of a hop are folded, the keys of the next one are on their way, and are looked
 * after: here a hop takes longer than the time between two polls. */
TEST(messages_move_meanwhile)
{
    struct problem p = {.config = problem_shape(1, 600, 600, 1, 1, 64), .ranks = 3};
    prepare(&p);
    struct run run = new_run(&p, ROWS_FIRST);
    run.ring = thread_ring_open(3, 30, THREAD_LATE);
    thread_ring_run(3, run_rank, &run);
    for (int rank = 0; rank < 3; rank++) {
        ck_assert_str_eq(run.trouble[rank], "");
        ck_assert_int_ge(thread_ring_polls(run.ring, rank), 2 * 2);
    }
    thread_ring_close(run.ring);
    clear_run(&run);
    problem_clear(&p);
}

/* ---- Hops, before they run. ---- */

/* Does this rank see any key of that one? Without a causal mask all keys go to everybody. */
static bool rank_needs(const struct problem *p, int rank, int origin)
{
    if (!p->config.causal || p->config.local_keys)
        return !p->config.local_keys;
    for (int64_t i = 0; i < p->truth.N; i++)
        for (int64_t j = 0; j < p->truth.M; j++)
            if (p->home[RA_QUERY_SIDE][i] == rank && p->home[RA_KEY_SIDE][j] == origin &&
                truth_sees(&p->truth, i, j))
                return true;
    return false;
}

/* The distances of the hops; returns how many. And how far the keys of each rank go. */
static int want_schedule(const struct problem *p, int *distances, int *last)
{
    int P = problem_ranks(p), count = 0;
    memset(last, 0, (size_t)P * sizeof *last);
    for (int distance = 0; distance < P; distance++) {
        bool needed = distance == 0;
        for (int origin = 0; origin < P; origin++)
            if (rank_needs(p, (origin + distance) % P, origin)) {
                last[origin] = distance;
                needed = true;
            }
        if (needed)
            distances[count++] = distance;
    }
    return count;
}

/* Counts the pairs of the tiles of two spans in which somebody sees somebody, and tiles in which
 * nobody does. */
static void count_tiles(const struct problem *p, struct ra_span queries, struct ra_span keys,
                        int64_t *pairs, int64_t *skipped)
{
    int64_t rows = p->config.tile_queries > 0 ? p->config.tile_queries : 64;
    int64_t columns = p->config.tile_keys > 0 ? p->config.tile_keys : 64;
    for (int64_t a = 0; a < queries.count; a += rows)
        for (int64_t c = 0; c < keys.count; c += columns) {
            int64_t a_end = a + rows < queries.count ? a + rows : queries.count;
            int64_t c_end = c + columns < keys.count ? c + columns : keys.count;
            bool seen = false;
            for (int64_t i = a; i < a_end && !seen; i++)
                for (int64_t j = c; j < c_end && !seen; j++)
                    seen = truth_sees(&p->truth, queries.first + i * queries.stride,
                                      keys.first + j * keys.stride);
            *pairs += seen ? (a_end - a) * (c_end - c) : 0;
            *skipped += !seen;
        }
}

static struct ra_hop want_hop(const struct problem *p, int rank, int step, bool backward)
{
    int distances[MOST_RANKS], last[MOST_RANKS], P = problem_ranks(p);
    want_schedule(p, distances, last);
    struct ra_hop hop = {.distance = distances[step], .origin = (rank - distances[step] + P) % P};
    int goes = last[hop.origin];
    if (goes < hop.distance)
        return hop;

    /* The work: 2 products forward, 5 backward. */
    struct ra_span mine[MOST_SPANS], theirs[MOST_SPANS];
    int my_spans = problem_spans(p, RA_QUERY_SIDE, rank, mine);
    int their_spans = problem_spans(p, RA_KEY_SIDE, hop.origin, theirs);
    int64_t pairs = 0, skipped = 0, rows = 0;
    for (int s = 0; s < my_spans; s++)
        for (int t = 0; t < their_spans; t++)
            count_tiles(p, mine[s], theirs[t], &pairs, &skipped);
    int64_t D = p->truth.D, D_v = truth_width(&p->truth, V);
    hop.multiply_adds = p->truth.B * p->truth.H * pairs * (backward ? 3 * D + 2 * D_v : D + D_v);
    hop.tiles_skipped = p->truth.B * p->truth.H * skipped;

    /* The messages: keys and gradients go on, or gradients home. */
    for (int t = 0; t < their_spans; t++)
        rows += theirs[t].count;
    int64_t numbers = p->truth.B * rows * p->truth.G * (D + D_v);
    int64_t keys = numbers * (p->config.type == RA_FLOAT32 ? 4 : 2) +
                   (p->config.has_mask ? p->truth.B * rows : 0);
    if (goes > hop.distance && keys > 0) {
        hop.messages++;
        hop.bytes += keys;
    }
    if (backward && goes > 0 && numbers > 0) {
        hop.messages++;
        hop.bytes += 4 * numbers;
    }
    return hop;
}

/* Every hop of every rank, as a plan says, against what is counted pair by pair. */
static void check_hops(const struct problem *p, struct ra_plan *plan)
{
    int distances[MOST_RANKS], last[MOST_RANKS], P = problem_ranks(p);
    ck_assert_int_eq(ra_plan_ranks(plan), P);
    ck_assert_int_eq(ra_plan_hops(plan), want_schedule(p, distances, last));
    for (int rank = 0; rank < P; rank++)
        for (int step = 0; step < ra_plan_hops(plan); step++)
            for (int backward = 0; backward < 2; backward++) {
                struct ra_hop got, want = want_hop(p, rank, step, backward);
                ck_assert_int_eq(ra_plan_hop(plan, rank, step, backward, &got), RA_OK);
                if (got.distance != want.distance || got.origin != want.origin ||
                    got.multiply_adds != want.multiply_adds ||
                    got.tiles_skipped != want.tiles_skipped || got.messages != want.messages ||
                    got.bytes != want.bytes)
                    ck_abort_msg("layout %d bucket %d lookback %d N %d M %d, rank %d of %d, step "
                                 "%d, backward %d: distance %d %d origin %d %d multiply_adds %d %d "
                                 "skipped %d %d messages %d %d bytes %d %d",
                                 p->config.layout, (int)p->config.bucket, (int)p->config.lookback,
                                 (int)p->truth.N, (int)p->truth.M, rank, P, step, backward,
                                 got.distance, want.distance, got.origin, want.origin,
                                 (int)got.multiply_adds, (int)want.multiply_adds,
                                 (int)got.tiles_skipped, (int)want.tiles_skipped, (int)got.messages,
                                 (int)want.messages, (int)got.bytes, (int)want.bytes);
            }
}

/* Every row of this rank has one place there, and the layout knows it. Counts the rows of the
 * whole. */
static void check_rows(const struct problem *p, const struct ra_plan *plan, enum ra_side side,
                       int *times)
{
    char trouble[TEXT] = "";
    struct ra_layout layout = ra_plan_layout(plan, side);
    int64_t *at = calloc((size_t)ra_plan_rows(plan, side) + 1, sizeof *at);
    ra_plan_positions(plan, side, at);
    ck_assert_msg(check_positions(p, plan, side, at, trouble), "%s", trouble);
    for (int64_t a = 0; a < ra_plan_rows(plan, side); a++) {
        int64_t row;
        times[at[a]]++;
        ck_assert_int_eq(ra_layout_find(layout, at[a], &row), ra_plan_rank(plan));
        ck_assert_int_eq(row, a);
    }
    free(at);
}

/* Does a rank's plan say of all ranks what the one to look at says? */
static void compare_plans(struct ra_plan *plan, struct ra_plan *look)
{
    char mine[4096], theirs[4096];
    for (int about = 0; about < ra_plan_ranks(plan); about++) {
        int64_t size = ra_plan_describe(plan, about, mine, sizeof mine);
        ck_assert_int_eq(size, ra_plan_describe(look, about, theirs, sizeof theirs));
        ck_assert_str_eq(mine, theirs);
        ck_assert_int_eq(size, (int64_t)strlen(mine));
    }
    if (ra_plan_rank(plan) == 0)
        ck_assert_int_eq(ra_plan_bytes(plan), ra_plan_bytes(look));
}

/* It computes nothing. */
static void expect_no_call(struct ra_plan *look)
{
    struct ra_arrays arrays = RA_ARRAYS_INIT;
    ck_assert_int_eq(ra_forward(look, &arrays), RA_INVALID);
    ck_assert_ptr_nonnull(strstr(ra_plan_error(look), "ring_size"));
    ck_assert_int_eq(ra_backward(look, &arrays), RA_INVALID);
}

CASE(plans, 120);

/* A plan to look at answers for every rank as the real ones do, and both are right. */
TESTS_OF(plans_to_look_at, ring_sizes)
{
    static const int64_t some[] = {0, 1, 5, 16, 37, 64};
    uint64_t state = (uint64_t)_i + 77;
    for (int i = 0; i < 30; i++) {
        int64_t N = ONE_OF(&state, some), M = random_below(&state, 2) ? N : ONE_OF(&state, some);
        struct problem p = problem_random(&state, N, M);
        p.config.layout = i % 3;
        p.config.bucket = p.config.layout == RA_STRIPED && i % 2 ? 1 + i / 4 : 0;
        p.config.local_keys = random_below(&state, 6) == 0;
        p.ranks = p.config.ring_size = ring_sizes[_i];
        prepare(&p);
        struct ra_plan *look = plan_for(&p.config);
        ck_assert_int_eq(ra_plan_rank(look), 0);
        check_hops(&p, look);

        struct makers makers = plans_of_ring(&p.config, p.ranks);
        int *times[] = {calloc((size_t)N + 1, sizeof(int)), calloc((size_t)M + 1, sizeof(int))};
        for (int rank = 0; rank < p.ranks; rank++) {
            struct ra_plan *plan = makers.rank[rank].plan;
            ck_assert_int_eq(ra_plan_rank(plan), rank);
            if (rank == p.ranks - 1)
                check_hops(&p, plan);
            compare_plans(plan, look);
            for (int side = 0; side < 2; side++)
                check_rows(&p, plan, side, times[side]);
        }
        for (int side = 0; side < 2; side++) {
            for (int64_t row = 0; row < problem_length(&p, side); row++)
                ck_assert_int_eq(times[side][row], 1);
            free(times[side]);
        }
        unmake_all(&makers);
        if (p.ranks > 1)
            expect_no_call(look);
        ck_assert_int_eq(ra_wait(look), RA_OK);
        ra_plan_destroy(look);
        problem_clear(&p);
    }
}

/* The tiles of one hop and head, asked one by one: is a tile of their spans empty? */
static struct ra_hop tiles_of(const struct ra_config *c, struct ra_layout queries, int rank,
                              struct ra_layout keys, int origin)
{
    struct ra_hop hop = {0};
    struct ra_shard_pair shards = {queries, keys, rank, origin, c->causal, c->lookback};
    for (int64_t s = 0; s < ra_layout_spans(queries); s++)
        for (int64_t t = 0; t < ra_layout_spans(keys); t++) {
            struct ra_span_pair pair = ra_layout_pair(&shards, s, t);
            int64_t N = pair.rows, M = pair.visitors;
            for (int64_t a = 0; a < N; a += c->tile_queries)
                for (int64_t b = 0; b < M; b += c->tile_keys) {
                    int64_t rows = N - a < c->tile_queries ? N - a : c->tile_queries;
                    int64_t seen = M - b < c->tile_keys ? M - b : c->tile_keys;
                    bool empty = ra_band_is_empty(ra_band_from(pair.band, a, b), rows, seen);
                    hop.multiply_adds += empty ? 0 : 2 * rows * seen;
                    hop.tiles_skipped += empty;
                }
        }
    return hop;
}

/* The formula against a walk over all tiles. */
TEST(work_by_formula)
{
    uint64_t state = 5;
    for (int i = 0; i < 3000; i++) {
        int64_t N = random_below(&state, 100),
                M = random_below(&state, 3) ? N : random_below(&state, 100);
        struct ra_config config = problem_shape(1, N, M, 1, 1, 1);
        config.ring_size = 1 + (int)random_below(&state, 4);
        config.tile_queries = 1 + random_below(&state, 11);
        config.tile_keys = 1 + random_below(&state, 11);
        config.layout = (enum ra_layout_kind)random_below(&state, 3);
        if (config.layout == RA_STRIPED)
            config.bucket = random_below(&state, 8);
        config.causal = random_below(&state, 8) > 0;
        if (config.causal && random_below(&state, 2))
            config.lookback = random_below(&state, 60);
        struct ra_plan *plan = plan_for(&config);
        struct ra_layout queries = ra_plan_layout(plan, RA_QUERY_SIDE);
        struct ra_layout keys = ra_plan_layout(plan, RA_KEY_SIDE);
        for (int rank = 0; rank < config.ring_size; rank++)
            for (int step = 0; step < ra_plan_hops(plan); step++) {
                struct ra_hop got;
                ck_assert_int_eq(ra_plan_hop(plan, rank, step, false, &got), RA_OK);
                struct ra_hop want = tiles_of(&config, queries, rank, keys, got.origin);

                /* Keys that do not come so far are seen by nobody. */
                bool none = got.multiply_adds + got.tiles_skipped == 0 && want.multiply_adds == 0;
                if (!none && (got.multiply_adds != want.multiply_adds ||
                              got.tiles_skipped != want.tiles_skipped))
                    ck_abort_msg("case %d, rank %d, step %d: %d pairs, not %d; %d skipped, not %d",
                                 i, rank, step, (int)got.multiply_adds / 2,
                                 (int)want.multiply_adds / 2, (int)got.tiles_skipped,
                                 (int)want.tiles_skipped);
            }
        ra_plan_destroy(plan);
    }
}

/* With tiles of one pair, all ranks and hops together do what is seen, which is known: N (N + 1) /
 * 2, less what is too far back. */
TESTS(work_of_many_tokens, 0, 4)
{
    const int64_t N = ((int64_t)1 << 30) + 12345, L = N / 3;
    for (int window = 0; window < 2; window++)
        for (int P = 2; P <= 50; P *= 5) {
            struct ra_config config = problem_shape(1, N, N, 1, 1, 1);
            config.causal = true;
            config.lookback = window ? L : RA_NO_LOOKBACK;
            config.layout = (enum ra_layout_kind)(_i < 3 ? _i : RA_STRIPED);
            config.bucket = _i < 3 ? 0 : N / 7000;
            config.ring_size = P;
            config.tile_queries = config.tile_keys = 1;
            struct ra_plan *plan = plan_for(&config);
            int64_t all = 0;
            for (int rank = 0; rank < P; rank++)
                for (int step = 0; step < ra_plan_hops(plan); step++) {
                    struct ra_hop hop;
                    ck_assert_int_eq(ra_plan_hop(plan, rank, step, false, &hop), RA_OK);
                    all += hop.multiply_adds / 2;
                }
            ck_assert_int_eq(all, window ? N * (L + 1) - L * (L + 1) / 2 : N * (N + 1) / 2);
            ra_plan_destroy(plan);
        }
}

/* Any question about 4,096 ranks and 2^36 tokens is answered at once. What no int64_t holds is
 * refused, and described in full. */
TESTS(plans_of_any_length, 0, 4)
{
    struct ra_config config = problem_shape(1, (int64_t)1 << 36, RA_SAME, 1, 1, 128);
    config.ring_size = 4096;
    config.tile = RA_PLAIN_TILE;
    config.causal = true;
    config.layout = (enum ra_layout_kind)(_i < 3 ? _i : RA_STRIPED);
    config.bucket = _i < 3 ? 0 : config.queries / 16384;
    struct ra_plan *plan = plan_for(&config);
    struct ra_hop hop;
    char text[2000];
    clock_t start = clock();
    ck_assert_int_gt(ra_plan_describe(plan, 4095, text, sizeof text), 4096 * 40);
    ck_assert_int_gt(ra_plan_bytes(plan), (int64_t)1 << 36);
    for (int rank = 0; rank < 4096; rank++)
        ck_assert_int_eq(ra_plan_hop(plan, rank, rank, true, &hop), RA_OK);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    ck_assert_msg(seconds < 5, "%g s", seconds);

    /* Contiguous, a rank's own keys are a triangle of 2^18 rows of tiles. */
    const int64_t tiles = (int64_t)1 << 18;
    ck_assert_int_eq(ra_plan_hop(plan, 7, 0, false, &hop), RA_OK);
    if (_i == RA_CONTIGUOUS) {
        ck_assert_int_eq(hop.multiply_adds, tiles * (tiles + 1) / 2 * 64 * 64 * 2 * 128);
        ck_assert_int_eq(hop.tiles_skipped, tiles * (tiles - 1) / 2);
    }
    ra_plan_destroy(plan);

    /* 2^70 pairs, for each of which there are 2 * 128 multiply-adds. */
    config.ring_size = 2;
    config.bucket = 0;
    config.causal = false;
    plan = plan_for(&config);
    ck_assert_int_eq(ra_plan_hop(plan, 1, 1, false, &hop), RA_INVALID);
    ck_assert_ptr_nonnull(strstr(ra_plan_error(plan), "3e+23 multiply-adds"));
    ck_assert_int_gt(ra_plan_describe(plan, 1, text, sizeof text), 0);
    ck_assert_ptr_nonnull(strstr(text, " 302231454903657293676544 "));
    ra_plan_destroy(plan);
}

/* No such rank, no such hop. */
TEST(hops_out_of_range)
{
    struct ra_config config = problem_shape(1, 8, 8, 1, 1, 4);
    config.ring_size = 4;
    struct ra_plan *plan = plan_for(&config);
    static const int wrong[][2] = {{-1, 0}, {4, 0}, {INT_MAX, 0}, {INT_MIN, 0},
                                   {0, -1}, {0, 4}, {0, INT_MAX}, {0, INT_MIN}};
    struct ra_hop hop;
    char text[64];
    for (int i = 0; i < COUNT(wrong); i++)
        for (int backward = 0; backward < 2; backward++) {
            ck_assert_int_eq(ra_plan_hop(plan, wrong[i][0], wrong[i][1], backward, &hop),
                             RA_INVALID);
            snprintf(text, sizeof text, "%s = %d", wrong[i][0] ? "rank" : "step",
                     wrong[i][0] ? wrong[i][0] : wrong[i][1]);
            ck_assert_ptr_nonnull(strstr(ra_plan_error(plan), text));
            ck_assert_ptr_nonnull(strstr(ra_plan_error(plan), "0 to 3"));
        }
    ck_assert_int_eq(ra_plan_hop(plan, 0, 0, false, NULL), RA_INVALID);
    ck_assert_int_eq(ra_plan_hop(NULL, 0, 0, false, &hop), RA_INVALID);
    ck_assert_int_eq(ra_plan_describe(plan, -1, text, sizeof text), -1);
    ck_assert_int_eq(ra_plan_describe(plan, 4, text, sizeof text), -1);
    ra_plan_destroy(plan);
}

/* Like snprintf: never more than there is room for, and always how much there would be. */
TEST(descriptions)
{
    struct ra_config config = problem_shape(2, 100, 100, 4, 2, 16);
    config.ring_size = 3;
    config.causal = true;
    config.layout = RA_STRIPED;
    struct ra_plan *plan = plan_for(&config);
    char whole[4096], part[4096];
    int64_t length = ra_plan_describe(plan, 1, whole, sizeof whole);
    ck_assert_int_eq(length, (int64_t)strlen(whole));
    ck_assert_int_gt(length, 100);
    ck_assert_int_eq(ra_plan_describe(plan, 1, NULL, 0), length);
    ck_assert_int_eq(ra_plan_describe(plan, 1, NULL, 100), length);
    for (int64_t size = 0; size <= length + 2; size++) {
        memset(part, 'x', sizeof part);
        ck_assert_int_eq(ra_plan_describe(plan, 1, part, (size_t)size), length);
        int64_t written = size < length + 1 ? size : length + 1;
        ck_assert(size == 0 || part[written - 1] == 0);
        ck_assert(size == 0 || strncmp(part, whole, (size_t)written - 1) == 0);
        for (int64_t i = written; i < length + 3; i++)
            ck_assert(part[i] == 'x');
    }

    /* What it says of the hops is what the hops say. */
    for (int backward = 0; backward < 2; backward++)
        for (int step = 0; step < ra_plan_hops(plan); step++) {
            struct ra_hop hop;
            ck_assert_int_eq(ra_plan_hop(plan, 1, step, backward, &hop), RA_OK);
            char line[128];
            snprintf(line, sizeof line, "%5d %8d %14d %14d %9d %11d\n", hop.distance, hop.origin,
                     (int)hop.multiply_adds, (int)hop.tiles_skipped, (int)hop.messages,
                     (int)hop.bytes);
            ck_assert_ptr_nonnull(strstr(whole, line));
        }
    /* Stripes that are shorter than tiles. */
    ck_assert_ptr_null(strstr(whole, "slower"));
    config.bucket = 9;
    ra_plan_destroy(plan);
    plan = plan_for(&config);
    ra_plan_describe(plan, 1, whole, sizeof whole);
    ck_assert_ptr_nonnull(strstr(whole,
                                 "striped in 4 stripes a rank of 9 rows at most: tiles are no "
                                 "larger, and slower\n"));
    config.bucket = 0;
    char bytes[64];
    struct ra_config alone = config;
    alone.ring_size = 1;
    ra_plan_destroy(plan);
    plan = plan_for(&alone);
    ra_plan_describe(plan, 0, whole, sizeof whole);
    snprintf(bytes, sizeof bytes, "%d bytes", (int)ra_plan_bytes(plan));
    ck_assert_ptr_nonnull(strstr(whole, bytes));
    ra_plan_destroy(plan);

    /* On what it computes, if it computes, and if it is only looked at. */
    const char *last = sets[0];
    for (int i = 0; i < COUNT(sets); i++)
        last = ra_vector_find(sets[i]) ? sets[i] : last;
    for (int i = 0; i < 4; i++) {
        struct ra_config how = i / 2 ? config : alone;
        how.tile = i % 2 ? RA_PLAIN_TILE : RA_VECTOR_TILE;
        how.threads = 2 - i % 2;
        setenv("RA_VECTOR", last, 1);
        plan = plan_for(&how);
        ra_plan_describe(plan, i / 2, whole, sizeof whole);
        unsetenv("RA_VECTOR");
        char wanted[80];
        snprintf(wanted, sizeof wanted,
                 i % 2 ? "%.0sin the plan\nplain tiles, 1 thread\nforward\n"
                       : "in the plan\n%s vector tiles, 2 threads\nforward\n",
                 last);
        ck_assert_msg(strstr(whole, wanted), "%s", whole);
        ra_plan_destroy(plan);
    }
}

/* Sharding, by row, and back. */
TESTS_OF(shard_and_unshard, ring_sizes)
{
    enum { OUTER = 3, BYTES = 5 };
    uint64_t state = (uint64_t)_i;
    for (int i = 0; i < 12; i++) {
        struct problem p = {.config = problem_shape(1, i * 3, 20 - i, 1, 1, 1),
                            .ranks = ring_sizes[_i]};
        p.config.layout = i % 3;
        p.config.bucket = p.config.layout == RA_STRIPED ? i / 3 : 0;
        prepare(&p);
        for (int side = 0; side < 2; side++) {
            struct makers makers = plans_of_ring(&p.config, p.ranks);
            int64_t rows = problem_length(&p, side);
            size_t size = (size_t)(OUTER * rows * BYTES);
            unsigned char *whole = malloc(size + 1), *back = malloc(size + 1);
            for (size_t byte = 0; byte < size; byte++)
                whole[byte] = (unsigned char)random_below(&state, 256);
            memset(back, 0, size);
            for (int rank = 0; rank < p.ranks; rank++) {
                struct ra_plan *plan = makers.rank[rank].plan;
                int64_t local_rows = ra_plan_rows(plan, side);
                unsigned char *local = malloc((size_t)(OUTER * local_rows * BYTES));
                ck_assert_int_eq(ra_shard(plan, side, OUTER, BYTES, whole, local), RA_OK);
                for (int64_t o = 0; o < OUTER; o++)
                    for (int64_t a = 0; a < local_rows; a++)
                        if (memcmp(local + (o * local_rows + a) * BYTES,
                                   whole + (o * rows + ra_plan_position(plan, side, a)) * BYTES,
                                   BYTES) != 0)
                            ck_abort_msg("rank %d of %d, row %d", rank, p.ranks, (int)a);
                ck_assert_int_eq(ra_unshard(plan, side, OUTER, BYTES, local, back), RA_OK);
                free(local);
            }
            ck_assert_mem_eq(back, whole, size);
            free(whole);
            free(back);
            unmake_all(&makers);
        }
        problem_clear(&p);
    }
}

/* ---- Errors. ---- */

/* Configs that are wrong in one field, or in one together with what `shape` gave. */
enum kind { WHOLE, INT, BYTE, REAL };

#define FIELD(name) #name, offsetof(struct ra_config, name)

static const struct wrong_field {
    const char *name;
    size_t offset;
    enum kind kind;
    double value;
    const char *got, *right; /* what the text must have */
} wrong_fields[] = {
    {FIELD(batch), WHOLE, -1, "-1", "at least 0"},
    {FIELD(batch), WHOLE, -0x1p63, "-9223372036854775808", "at least 0"},
    {FIELD(batch), WHOLE, 0x1p62, "4611686018427387904", "at most"},
    {FIELD(batch), WHOLE, 0x1p50, "1125899906842624", "at most"},
    {FIELD(queries), WHOLE, -1, "-1", "at least 0"},
    {FIELD(queries), WHOLE, 0x1p62, "4611686018427387904", "at most"},
    {FIELD(queries), WHOLE, 0x1p49, "562949953421312", "at most"},
    {FIELD(keys), WHOLE, -2, "-2", "at least 0, or RA_SAME"},
    {FIELD(keys), WHOLE, 0x1p62, "4611686018427387904", "at most"},
    {FIELD(keys), WHOLE, 0x1p49, "562949953421312", "at most"},
    {FIELD(heads), WHOLE, 0, "0", "at least 1"},
    {FIELD(heads), WHOLE, -4, "-4", "at least 1"},
    {FIELD(heads), WHOLE, 3, "3", "divides"},
    {FIELD(heads), WHOLE, 0x1p62, "4611686018427387904", "at most"},
    {FIELD(heads), WHOLE, 0x1p49, "562949953421312", "at most"},
    {FIELD(key_heads), WHOLE, 0, "0", "at least 1, or RA_SAME"},
    {FIELD(key_heads), WHOLE, -2, "-2", "at least 1, or RA_SAME"},
    {FIELD(key_heads), WHOLE, 3, "3", "divides heads = 4"},
    {FIELD(key_heads), WHOLE, 8, "8", "divides heads = 4"},
    {FIELD(dim), WHOLE, 0, "0", "at least 1"},
    {FIELD(dim_value), WHOLE, -8, "-8", "at least 1"},
    {FIELD(dim_value), WHOLE, 0x1p62, "4611686018427387904", "at most"},
    {FIELD(dim_value), WHOLE, 0x1p49, "562949953421312", "at most"},
    {FIELD(dim), WHOLE, -8, "-8", "at least 1"},
    {FIELD(dim), WHOLE, 0x1p62, "4611686018427387904", "at most"},
    {FIELD(dim), WHOLE, 0x1p49, "562949953421312", "at most"},
    {FIELD(type), INT, RA_BOOL, "3", "RA_BFLOAT16"},
    {FIELD(type), INT, -1, "-1", "RA_BFLOAT16"},
    {FIELD(type), INT, 99, "99", "RA_BFLOAT16"},
    {FIELD(has_mask), BYTE, 2, "2", "true or false"},
    {FIELD(forward_only), BYTE, 255, "255", "true or false"},
    {FIELD(causal), BYTE, 2, "2", "true or false"},
    {FIELD(local_keys), BYTE, 3, "3", "true or false"},
    {FIELD(lookback), WHOLE, -1, "-1", "at least 0, or RA_NO_LOOKBACK"},
    {FIELD(lookback), WHOLE, -2, "-2", "at least 0, or RA_NO_LOOKBACK"},
    {FIELD(lookback), WHOLE, 0, "0", "causal = true"},
    {FIELD(lookback), WHOLE, 100, "100", "causal = true"},
    {FIELD(head_map), INT, 2, "2", "RA_INTERLEAVED"},
    {FIELD(head_map), INT, -1, "-1", "RA_INTERLEAVED"},
    {FIELD(scale), REAL, NAN, "nan", "finite"},
    {FIELD(scale), REAL, INFINITY, "inf", "finite"},
    {FIELD(scale), REAL, 1e39, "1e+39", "float32"},
    {FIELD(scale), REAL, -1e39, "-1e+39", "float32"},
    {FIELD(softcap), REAL, -1, "-1", "above 0"},
    {FIELD(softcap), REAL, NAN, "nan", "above 0"},
    {FIELD(softcap), REAL, INFINITY, "inf", "float32"},
    {FIELD(softcap), REAL, 1e39, "1e+39", "float32"},
    {FIELD(softcap), REAL, 1e-46, "1e-46", "float32"},
    {FIELD(layout), INT, 3, "3", "RA_ZIGZAG"},
    {FIELD(layout), INT, -1, "-1", "RA_ZIGZAG"},
    {FIELD(bucket), WHOLE, -1, "-1", "at least 1, or 0"},
    {FIELD(bucket), WHOLE, 4, "4", "RA_STRIPED"},
    {FIELD(ring_size), INT, -1, "-1", "at least 1, or 0"},
    {FIELD(ring_size), INT, INT_MIN, "-2147483648", "at least 1, or 0"},
    {FIELD(ring_size), INT, INT_MAX, "2147483647", "at most"},
    {FIELD(tile_queries), WHOLE, -1, "-1", "at least 1, or 0"},
    {FIELD(tile_queries), WHOLE, 0x1p62, "4611686018427387904", "at most"},
    {FIELD(tile_keys), WHOLE, -7, "-7", "at least 1, or 0"},
    {FIELD(tile_keys), WHOLE, 0x1p62, "4611686018427387904", "at most"},
    {FIELD(transport), INT, 4, "4",
     "RA_ANY_TRANSPORT, RA_PEER_COPIES, RA_DEVICE_LINK or RA_HOST_LINK"},
    {FIELD(transport), INT, -1, "-1", "RA_HOST_LINK"},
    {FIELD(deterministic), BYTE, 2, "2", "true or false"},
    {FIELD(caller_workspace), BYTE, 2, "2", "true or false"},
    {FIELD(timeout), REAL, -1, "-1", "seconds"},
    {FIELD(timeout), REAL, NAN, "nan", "seconds"},
};

static void set_field(struct ra_config *config, size_t offset, enum kind kind, double value)
{
    char *at = (char *)config + offset;
    int64_t whole = kind == REAL ? 0 : (int64_t)value;
    int narrow = (int)whole;
    switch (kind) {
    case WHOLE:
        memcpy(at, &whole, sizeof whole);
        break;
    case INT:
        memcpy(at, &narrow, sizeof narrow);
        break;
    case BYTE:
        *(unsigned char *)at = (unsigned char)whole;
        break;
    case REAL:
        memcpy(at, &value, sizeof value);
    }
}

/* Is this config refused, with a text that has all of these words? */
static void refused(const struct ra_config *config, const char *name, const char *got,
                    const char *right)
{
    struct ra_plan *plan = (struct ra_plan *)(void *)&plan;
    char error[RA_ERROR_SIZE];
    memset(error, 'x', sizeof error);
    ck_assert_msg(ra_plan_create(&plan, config, NULL, error) == RA_INVALID, "%s %s", name, got);
    ck_assert_ptr_null(plan);
    ck_assert_ptr_nonnull(memchr(error, 0, sizeof error));
    ck_assert_msg(strstr(error, name) && strstr(error, got) && strstr(error, right),
                  "\"%s\" has no \"%s\", \"%s\" or \"%s\"", error, name, got, right);
    plan = (struct ra_plan *)(void *)&plan;
    ck_assert_int_eq(ra_plan_create(&plan, config, NULL, NULL), RA_INVALID);
    ck_assert_ptr_null(plan);
}

CASE(errors, 120);

TEST(wrong_configs)
{
    for (int i = 0; i < COUNT(wrong_fields); i++) {
        const struct wrong_field *wrong = &wrong_fields[i];
        struct ra_config config = problem_shape(2, 8, 8, 4, 2, 8);
        set_field(&config, wrong->offset, wrong->kind, wrong->value);
        refused(&config, wrong->name, wrong->got, wrong->right);
    }

    /* Too many stripes. */
    struct ra_config striped = problem_shape(1, (int64_t)1 << 40, 8, 1, 1, 1);
    striped.layout = RA_STRIPED;
    striped.bucket = 1;
    refused(&striped, "bucket", "= 1", "give at least");

    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    ck_assert_int_eq(ra_plan_create(NULL, &striped, NULL, error), RA_INVALID);
    ck_assert_ptr_nonnull(strstr(error, "plan is NULL"));
    ck_assert_int_eq(ra_plan_create(&plan, NULL, NULL, error), RA_INVALID);
    ck_assert_ptr_nonnull(strstr(error, "config is NULL"));
    ck_assert_ptr_null(plan);
    ra_plan_destroy(NULL);

    /* A plan begins without an error. */
    struct ra_config config = problem_shape(2, 8, 8, 4, 2, 8);
    plan = plan_for(&config);
    ck_assert_str_eq(ra_plan_error(plan), "");
    ra_plan_destroy(plan);
}

/* Headers of other versions: an older one has fewer fields, a newer one more. */
TEST(config_sizes)
{
    struct {
        struct ra_config config;
        int64_t more[sizeof(struct ra_config) / 8];
    } newer = {problem_shape(2, 8, 8, 4, 2, 8), {0}};
    newer.config.size = sizeof newer;
    ra_plan_destroy(plan_for(&newer.config));
    newer.more[1] = 1;
    refused(&newer.config, "config", "field", "newer");

    /* Of all other sizes, those that end between two fields are taken. */
    newer.more[1] = 0;
    for (size_t size = 0; size <= sizeof newer; size++) {
        char got[32];
        newer.config.size = size;
        snprintf(got, sizeof got, "%zu", size);
        if (size > offsetof(struct ra_config, dim) && size % 8 == 0)
            ra_plan_destroy(plan_for(&newer.config));
        else if (size >= 16 && size % 8 == 0)
            refused(&newer.config, "dim", "0", "at least 1");
        else
            refused(&newer.config, "size", got, "RA_CONFIG_INIT");
    }
    static const size_t sizes[] = {(size_t)1 << 20, SIZE_MAX};
    for (int i = 0; i < COUNT(sizes); i++) {
        newer.config.size = sizes[i];
        refused(&newer.config, "size", "config", "RA_CONFIG_INIT");
    }

    /* What lies behind an older header's last field is not looked at. */
    struct ra_config older = problem_shape(2, 8, 8, 4, 2, 8);
    older.size = offsetof(struct ra_config, scale);
    older.scale = NAN;
    older.layout = 77;
    older.tile_keys = -5;
    ra_plan_destroy(plan_for(&older));
}

/* A config of zeros is none, whatever was set in it; ra_config_init sets what RA_CONFIG_INIT does,
 * in a struct of any version's size. */
TEST(config_beginnings)
{
    struct ra_config zeros = {
        .size = sizeof zeros, .batch = 1, .queries = 4, .heads = 1, .key_heads = 1, .dim = 2};
    refused(&zeros, "initialised", "0", "RA_CONFIG_INIT");

    struct ra_config macro;
    memset(&macro, 0, sizeof macro);
    macro = (struct ra_config)RA_CONFIG_INIT;
    struct {
        struct ra_config config;
        int64_t more[sizeof(struct ra_config) / 8];
    } made;
    for (size_t size = 0; size <= sizeof made; size++) {
        memset(&made, 0x77, sizeof made);
        ra_config_init(&made.config, size);
        size_t known = size < sizeof macro ? size : sizeof macro;
        if (size >= sizeof made.config.size) {
            ck_assert_uint_eq(made.config.size, size);
            made.config.size = macro.size;
            ck_assert_int_eq(made.config.batch, size < 16 ? made.config.batch : 1);
        }
        for (size_t byte = known; byte < sizeof made; byte++)
            ck_assert_int_eq(((unsigned char *)&made)[byte], byte < size ? 0 : 0x77);
    }
    ra_config_init(&made.config, sizeof made.config);
    ck_assert(made.config.scale == macro.scale && made.config.keys == macro.keys);
    ck_assert(made.config.lookback == macro.lookback && made.config.timeout == macro.timeout);
    made.config.dim = 2;
    ra_plan_destroy(plan_for(&made.config));
    ra_config_init(NULL, 8);
}

/* ra_config_set writes the field of that name, whole, and no other byte; what the field cannot
 * hold, nowhere. In a struct of 512 bytes, for those who have no struct ra_config. */
TEST(config_by_name)
{
#define SETS(name, value)                                                          \
    do {                                                                           \
        ck_assert_int_eq(ra_config_set(&made.config, #name, value, error), RA_OK); \
        want.config.name = value;                                                  \
        ck_assert_mem_eq(&made, &want, sizeof made);                               \
        ck_assert_int_eq(ra_config_get(&made.config, #name, &got, error), RA_OK);  \
        ck_assert_double_eq(got, (double)want.config.name);                        \
    } while (0)
#define REFUSES(config, name, value, words)                                      \
    do {                                                                         \
        ck_assert_int_eq(ra_config_set(config, name, value, error), RA_INVALID); \
        ck_assert_msg(strstr(error, words), "%s", error);                        \
        ck_assert_mem_eq(&made, &want, sizeof made);                             \
    } while (0)
    union {
        struct ra_config config;
        char bytes[512];
    } made, want;
    char error[RA_ERROR_SIZE];
    double got;
    ra_config_init(&made.config, sizeof made);
    ra_config_init(&want.config, sizeof want);
    ck_assert_int_eq(ra_config_get(&made.config, "lookback", &got, error), RA_OK);
    ck_assert(isinf(got) && got > 0);
    ck_assert_int_eq(ra_config_get(&made.config, "initialised", &got, error), RA_INVALID);
    ck_assert_ptr_nonnull(strstr(error, "config.initialised: no such field; one of batch "));
    ck_assert_int_lt(strlen(error), sizeof error - 1); /* all of the names are in it */
    ck_assert_int_eq(ra_config_get(NULL, "heads", &got, error), RA_INVALID);
    ck_assert_int_eq(ra_config_get(&made.config, "heads", NULL, error), RA_INVALID);
    ck_assert_ptr_nonnull(strstr(error, "value is NULL"));
    SETS(batch, 3);
    SETS(queries, 0x1p50);
    SETS(keys, RA_SAME);
    SETS(heads, 6);
    SETS(key_heads, 2);
    SETS(dim, 5);
    SETS(dim_value, 7);
    SETS(type, RA_BFLOAT16);
    SETS(has_mask, true);
    SETS(forward_only, true);
    SETS(causal, true);
    SETS(local_keys, true);
    SETS(lookback, 0);
    ck_assert_int_eq(ra_config_set(&made.config, "lookback", INFINITY, error), RA_OK);
    want.config.lookback = RA_NO_LOOKBACK;
    ck_assert_mem_eq(&made, &want, sizeof made);
    SETS(lookback, 7);
    ck_assert_int_eq(ra_config_set(&made.config, "lookback", (double)RA_NO_LOOKBACK, error), RA_OK);
    want.config.lookback = RA_NO_LOOKBACK;
    ck_assert_mem_eq(&made, &want, sizeof made);
    SETS(head_map, RA_INTERLEAVED);
    SETS(scale, 0.3);
    SETS(softcap, 30);
    SETS(layout, RA_ZIGZAG);
    SETS(bucket, 7);
    SETS(ring_size, 4);
    SETS(tile_queries, 8);
    SETS(tile_keys, 9);
    SETS(timeout, 0.25);
    SETS(transport, RA_HOST_LINK);
    SETS(deterministic, true);
    SETS(tile, RA_PLAIN_TILE);
    SETS(threads, 2);
    SETS(caller_workspace, true);
    SETS(causal, false);

    REFUSES(&made.config, "quries", 3, "config.quries");
    REFUSES(&made.config, "initialised", 1, "config.initialised");
    REFUSES(&made.config, "heads", 2.5, "config.heads = 2.5");
    REFUSES(&made.config, "heads", 0x1p60, "config.heads");
    REFUSES(&made.config, "heads", NAN, "config.heads");
    REFUSES(&made.config, "heads", INFINITY, "config.heads = inf: give a whole number from -9");
    REFUSES(&made.config, "lookback", -INFINITY, "or infinity for no limit");
    REFUSES(&made.config, "lookback", NAN, "or infinity for no limit");
    REFUSES(&made.config, "lookback", 0x1p60, "9007199254740992, or infinity for no limit");
    REFUSES(&made.config, "threads", 0x1p32 + 1, "config.threads = 4294967297: give a whole");
    REFUSES(&made.config, "layout", -0x1p40, "config.layout");
    REFUSES(&made.config, "causal", 256, "config.causal = 256: give a whole number from 0 to 1");
    REFUSES(&made.config, NULL, 1, "field is NULL");
    REFUSES(NULL, "heads", 1, "config is NULL");
    ck_assert_int_eq(ra_config_set(&made.config, "heads", 0.5, NULL), RA_INVALID);

    /* A smaller struct, of an older version, has no room for the last field. */
    want.config.size = made.config.size = offsetof(struct ra_config, initialised);
    REFUSES(&made.config, "threads", 1, "too small for threads");
    SETS(heads, 12);
#undef SETS
#undef REFUSES
}

/* A plan's config has everything filled in, in a struct of any size. */
TEST(config_of_a_plan)
{
    struct ra_config config = problem_shape(2, 10, 10, 4, 4, 16);
    config.keys = config.key_heads = RA_SAME;
    config.causal = true;
    config.ring_size = 3;
    config.tile = RA_PLAIN_TILE;
    struct ra_plan *plan = plan_for(&config);
    union {
        struct ra_config config;
        char bytes[512];
    } got;
    for (int i = 0; i < 2; i++) {
        size_t size = i ? sizeof got : offsetof(struct ra_config, initialised);
        memset(&got, 0xAB, sizeof got);
        ra_plan_config(plan, &got.config, size);
        ck_assert_uint_eq(got.config.size, size);
        ck_assert(size == sizeof got || got.bytes[size] == (char)0xAB);
        ck_assert(got.config.batch == 2 && got.config.queries == 10 && got.config.keys == 10);
        ck_assert(got.config.heads == 4 && got.config.key_heads == 4 && got.config.dim == 16);
        ck_assert(got.config.causal && got.config.lookback == RA_NO_LOOKBACK);
        ck_assert(got.config.scale == 0.25 && got.config.ring_size == 3);
        ck_assert(got.config.tile_queries == 10 && got.config.tile_keys == 10);
    }
    ck_assert(got.config.initialised == 1 && got.config.tile == RA_PLAIN_TILE);
    ra_plan_config(NULL, &got.config, sizeof got.config);
    ck_assert(got.config.batch == 1 && got.config.keys == RA_SAME);
    ra_plan_config(plan, NULL, 512);
    ra_plan_destroy(plan);
}

/* No plan is no error of memory anywhere. */
TEST(no_plan)
{
    struct ra_hop hop;
    char text[4];
    int64_t positions[1] = {7};
    ck_assert(ra_plan_rank(NULL) == -1 && ra_plan_ranks(NULL) == 0 && ra_plan_bytes(NULL) == 0);
    ck_assert(ra_plan_rows(NULL, RA_KEY_SIDE) == 0 && ra_plan_hops(NULL) == 0);
    ck_assert(ra_plan_position(NULL, RA_KEY_SIDE, 0) == -1);
    struct ra_layout none = ra_plan_layout(NULL, RA_QUERY_SIDE);
    ck_assert(ra_layout_rows(none, 0) == 0 && ra_layout_find(none, 0, positions) == -1);
    positions[0] = 7;
    ra_plan_positions(NULL, RA_KEY_SIDE, positions);
    ck_assert_int_eq(positions[0], 7);
    ck_assert_int_eq(ra_plan_describe(NULL, 0, text, sizeof text), -1);
    ck_assert_int_eq(ra_plan_hop(NULL, 0, 0, false, &hop), RA_INVALID);
    ck_assert_int_eq(ra_plan_hop(NULL, 0, 0, true, NULL), RA_INVALID);
    ck_assert_int_eq(ra_forward(NULL, NULL), RA_INVALID);
    ck_assert_int_eq(ra_backward(NULL, NULL), RA_INVALID);
    ck_assert_int_eq(ra_wait(NULL), RA_INVALID);
    ra_plan_destroy(NULL);
    ck_assert_int_eq(ra_shard(NULL, RA_KEY_SIDE, 1, 1, text, text + 1), RA_INVALID);
    ck_assert_int_eq(ra_unshard(NULL, RA_KEY_SIDE, 1, 1, text, text + 1), RA_INVALID);
    ck_assert_ptr_nonnull(strstr(ra_plan_error(NULL), "NULL"));
}

/* What can be wrong with an array. */
enum fault { NO_DATA, ODD_DATA, TYPE, BATCH, ROW, HEAD, SAME_AS };

static const struct wrong_array {
    enum truth_array tensor;
    enum fault fault;
    int64_t value;
} wrong_arrays[] = {
    {Q, NO_DATA, 0},
    {K, NO_DATA, 0},
    {V, NO_DATA, 0},
    {MASK, NO_DATA, 0},
    {O, NO_DATA, 0},
    {LSE, NO_DATA, 0},
    {D_OUT, NO_DATA, 0},
    {DQ, NO_DATA, 0},
    {DK, NO_DATA, 0},
    {DV, NO_DATA, 0},
    {Q, ODD_DATA, 1},
    {V, ODD_DATA, 1},
    {O, ODD_DATA, 1},
    {LSE, ODD_DATA, 2},
    {DV, ODD_DATA, 1},
    {Q, TYPE, RA_BOOL},
    {Q, TYPE, 77},
    {Q, TYPE, -1},
    {K, TYPE, RA_BOOL},
    {V, TYPE, RA_BFLOAT16},
    {MASK, TYPE, RA_FLOAT32},
    {O, TYPE, RA_BFLOAT16},
    {LSE, TYPE, RA_FLOAT16},
    {LSE, TYPE, RA_BFLOAT16},
    {D_OUT, TYPE, RA_BOOL},
    {DQ, TYPE, RA_BFLOAT16},
    {DK, TYPE, 77},
    {DV, TYPE, RA_BOOL},
    {O, BATCH, 0},
    {O, ROW, 0},
    {O, HEAD, 0},
    {O, HEAD, 2},
    {O, ROW, 11},
    {O, BATCH, 59},
    {O, ROW, -11},
    {LSE, ROW, 0},
    {LSE, HEAD, 1},
    {DQ, ROW, 0},
    {DQ, BATCH, -59},
    {DK, HEAD, 2},
    {DK, BATCH, 0},
    {DV, ROW, 5},
    {Q, ROW, INT64_MAX},
    {Q, BATCH, INT64_MIN},
    {K, HEAD, INT64_MIN},
    {O, ROW, INT64_MIN},
    {DV, BATCH, INT64_MAX},
    {MASK, ROW, INT64_MIN},
    {O, SAME_AS, Q},
    {O, SAME_AS, V},
    {O, SAME_AS, LSE},
    {LSE, SAME_AS, MASK},
    {DQ, SAME_AS, Q},
    {DQ, SAME_AS, D_OUT},
    {DQ, SAME_AS, O},
    {DK, SAME_AS, K},
    {DK, SAME_AS, DV},
    {DV, SAME_AS, V},
    {DV, SAME_AS, DQ},
};

/* Is the fault one that this direction can see? It uses the array; and collisions and sharing
 * matter for what it writes. */
static bool can_see(const struct wrong_array *wrong, bool backward)
{
    bool written = backward ? wrong->tensor >= DQ : wrong->tensor == O || wrong->tensor == LSE;
    bool used = backward || wrong->tensor <= LSE, far = wrong->value < -1000 || wrong->value > 1000;
    bool of_output = wrong->fault == SAME_AS || (wrong->fault >= BATCH && !far);
    return used && (written || !of_output);
}

static void spoil(struct ra_arrays *arrays, const struct wrong_array *wrong)
{
    struct ra_tensor *tensor = tensor_in(arrays, wrong->tensor);
    switch (wrong->fault) {
    case NO_DATA:
        tensor->data = NULL;
        break;
    case ODD_DATA:
        tensor->data = (char *)tensor->data + wrong->value;
        break;
    case TYPE:
        tensor->type = (enum ra_type)wrong->value;
        break;
    case BATCH:
        tensor->batch = wrong->value;
        break;
    case ROW:
        tensor->row = wrong->value;
        break;
    case HEAD:
        tensor->head = wrong->value;
        break;
    case SAME_AS:
        tensor->data = tensor_in(arrays, (enum truth_array)wrong->value)->data;
    }
}

TESTS(wrong_calls, 0, 2)
{
    struct problem p = {.config = problem_shape(2, 5, 5, 4, 2, 3), .masking = RANDOM_MASK};
    p.config.type = _i ? RA_FLOAT16 : RA_FLOAT32;
    prepare(&p);
    struct ra_plan *plan = plan_for(&p.config);
    struct shard x;
    char trouble[TEXT], name[32];
    shard_make(&p, &x, ROWS_FIRST, plan);
    for (int backward = 0; backward < 2; backward++) {
        for (int i = 0; i < COUNT(wrong_arrays); i++) {
            struct ra_arrays spoilt = x.arrays;
            spoil(&spoilt, &wrong_arrays[i]);
            if (!can_see(&wrong_arrays[i], backward))
                continue;
            enum ra_status status = (backward ? ra_backward : ra_forward)(plan, &spoilt);
            const char *text = ra_plan_error(plan);
            snprintf(name, sizeof name, "arrays.%s", truth_names[wrong_arrays[i].tensor]);
            ck_assert_msg(status == RA_INVALID && strstr(text, name), "%s, fault %d %d: \"%s\"",
                          name, wrong_arrays[i].fault, (int)wrong_arrays[i].value, text);

            /* Nothing was done. */
            for (int t = 0; t < ARRAYS; t++)
                ck_assert_mem_eq(x.blocks[t].data, x.blocks[t].before, x.blocks[t].bytes);
        }

        /* The plan works as before, and its last error stays. */
        ck_assert_int_eq((backward ? ra_backward : ra_forward)(plan, &x.arrays), RA_OK);
        ck_assert_str_ne(ra_plan_error(plan), "");
        ck_assert_msg(shard_is_kept(&x, backward, trouble), "%s", trouble);
    }
    struct run run = run_as(&p, ROWS_FIRST, THREAD_LATE), after = run_of(&p, &x);
    run_same_bits(&run, &after);
    ra_plan_destroy(plan);
    clear_run(&run);
    clear_run(&after);
    shard_clear(&x);
    problem_clear(&p);
}

/* No arrays, arrays of other sizes, and a plan without a backward. */
TEST(sizes_of_arrays)
{
    struct problem p = {.config = problem_shape(2, 5, 5, 4, 2, 3)};
    prepare(&p);
    struct ra_plan *plan = plan_for(&p.config);
    struct shard x;
    shard_make(&p, &x, ROWS_FIRST, plan);
    struct {
        struct ra_arrays arrays;
        int64_t more[sizeof(struct ra_arrays) / 8];
    } newer = {x.arrays, {0}};
    ck_assert_int_eq(ra_forward(plan, NULL), RA_INVALID);
    ck_assert_ptr_nonnull(strstr(ra_plan_error(plan), "arrays is NULL"));
    ck_assert_int_eq(ra_forward(NULL, &x.arrays), RA_INVALID);
    ck_assert_int_eq(ra_backward(NULL, &x.arrays), RA_INVALID);
    ck_assert_ptr_nonnull(ra_plan_error(NULL));
    for (size_t size = 0; size <= sizeof newer; size++) {
        newer.arrays.size = size;
        bool whole = size >= sizeof newer.arrays
                         ? size % 8 == 0
                         : size % sizeof(struct ra_tensor) == sizeof(size_t);
        bool enough = size >= offsetof(struct ra_arrays, d_out);
        ck_assert_int_eq(ra_forward(plan, &newer.arrays), whole && enough ? RA_OK : RA_INVALID);
        if (!whole || !enough)
            ck_assert_ptr_nonnull(strstr(ra_plan_error(plan), "RA_ARRAYS_INIT"));
    }
    newer.arrays.size = SIZE_MAX;
    ck_assert_int_eq(ra_forward(plan, &newer.arrays), RA_INVALID);
    newer.arrays.size = sizeof newer;
    ck_assert_int_eq(ra_forward(plan, &newer.arrays), RA_OK);
    newer.more[sizeof newer.more / 8 - 1] = 1;
    ck_assert_int_eq(ra_forward(plan, &newer.arrays), RA_INVALID);
    ck_assert_ptr_nonnull(strstr(ra_plan_error(plan), "newer"));
    newer.arrays.size = offsetof(struct ra_arrays, d_out);
    ck_assert_int_eq(ra_forward(plan, &newer.arrays), RA_OK);
    ck_assert_int_eq(ra_backward(plan, &newer.arrays), RA_INVALID);
    ra_plan_destroy(plan);

    /* A mask that was not planned for would be left out. */
    plan = plan_for(&p.config);
    bool mask[10] = {false};
    x.arrays.mask = ra_tensor_bn(mask, 5);
    ck_assert_int_eq(ra_forward(plan, &x.arrays), RA_INVALID);
    ck_assert_ptr_nonnull(strstr(ra_plan_error(plan), "has_mask = false"));
    x.arrays.mask.data = NULL;
    ck_assert_int_eq(ra_forward(plan, &x.arrays), RA_OK);
    ra_plan_destroy(plan);

    /* What is missing is named with the shape that the table of the reference has. */
    struct ra_config masked = p.config;
    masked.has_mask = true;
    plan = plan_for(&masked);
    char want[RA_ERROR_SIZE];
    long long B = masked.batch, n = ra_plan_rows(plan, RA_QUERY_SIDE);
    ck_assert_int_eq(ra_forward(plan, &x.arrays), RA_INVALID);
    snprintf(want, sizeof want,
             "arrays.mask.data is NULL, and config.has_mask is true: give an array of (%lld, %lld)",
             B, (long long)ra_plan_rows(plan, RA_KEY_SIDE));
    ck_assert_str_eq(ra_plan_error(plan), want);
    ra_plan_destroy(plan);
    plan = plan_for(&p.config);
    struct ra_arrays without = x.arrays;
    without.lse.data = NULL;
    ck_assert_int_eq(ra_forward(plan, &without), RA_INVALID);
    snprintf(want, sizeof want, "arrays.lse.data is NULL: give an array of (%lld, %lld, %lld)", B,
             n, (long long)p.config.heads);
    ck_assert_str_eq(ra_plan_error(plan), want);
    without.q.data = NULL;
    ck_assert_int_eq(ra_forward(plan, &without), RA_INVALID);
    snprintf(want, sizeof want, "arrays.q.data is NULL: give an array of (%lld, %lld, %lld, %lld)",
             B, n, (long long)p.config.heads, (long long)p.config.dim);
    ck_assert_str_eq(ra_plan_error(plan), want);
    ra_plan_destroy(plan);

    p.config.forward_only = true;
    plan = plan_for(&p.config);
    ck_assert_int_eq(ra_forward(plan, &x.arrays), RA_OK);
    ck_assert_int_eq(ra_backward(plan, &x.arrays), RA_INVALID);
    ck_assert_ptr_nonnull(strstr(ra_plan_error(plan), "forward_only"));
    ra_plan_destroy(plan);
    shard_clear(&x);
    problem_clear(&p);
}

/* Sizes whose product no int64_t holds give strides that are refused. */
TEST(huge_tensors)
{
    const int64_t huge = (int64_t)1 << 40;
    struct problem p = {.config = problem_shape(2, 5, 5, 4, 2, 3)};
    prepare(&p);
    struct ra_plan *plan = plan_for(&p.config);
    struct shard x;
    shard_make(&p, &x, ROWS_FIRST, plan);
    void *data = x.arrays.q.data;
    const struct ra_tensor wrong[] = {ra_tensor_bnhd(data, RA_FLOAT32, huge, huge, 3),
                                      ra_tensor_bhnd(data, RA_FLOAT32, huge, 4, huge),
                                      ra_tensor_bnhd(data, RA_FLOAT32, -huge, huge, huge)};
    for (int i = 0; i < COUNT(wrong); i++) {
        x.arrays.q = wrong[i];
        ck_assert_int_eq(ra_forward(plan, &x.arrays), RA_INVALID);
        ck_assert_ptr_nonnull(strstr(ra_plan_error(plan), "more than 2^56 numbers"));
    }
    ck_assert_int_gt(ra_tensor_bhn(data, huge, huge).batch, (int64_t)1 << 56);
    ra_plan_destroy(plan);
    shard_clear(&x);
    problem_clear(&p);
}

/* Do two numbers of this output share a place? */
static bool share_a_place(struct ra_tensor t, const struct ra_config *c, const char *first)
{
    char taken[2000] = {0};
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t a = 0; a < c->queries; a++)
            for (int64_t h = 0; h < c->heads; h++)
                for (int64_t i = 0; i < c->dim; i++) {
                    int64_t at = ((char *)t.data - first) / (int64_t)sizeof(float) + b * t.batch +
                                 a * t.row + h * t.head + i;
                    if (taken[at]++)
                        return true;
                }
    return false;
}

/* Of all strides, those that make an output collide with itself are refused, and no others; but for
 * some that would take too long. */
TEST(strides_of_outputs)
{
    uint64_t state = 11;
    float q[600] = {0}, room[2000], lse[200];
    int taken = 0;
    for (int i = 0; i < 4000; i++) {
        struct ra_config config =
            problem_shape(1 + random_below(&state, 4), 1 + random_below(&state, 5), 1,
                          1 + random_below(&state, 4), 1, 1 + random_below(&state, 3));
        config.forward_only = true;
        config.threads = 1;
        struct ra_plan *plan = plan_for(&config);
        struct ra_arrays arrays = RA_ARRAYS_INIT;
        arrays.q = ra_tensor_bnhd(q, RA_FLOAT32, config.queries, config.heads, config.dim);
        arrays.k = arrays.v = ra_tensor_bnhd(q, RA_FLOAT32, 1, 1, config.dim);
        arrays.lse = ra_tensor_bhn(lse, config.queries, config.heads);
        for (int s = 0; s < 20; s++) {
            int64_t most = s % 2 ? 12 : 60,
                    *strides[] = {&arrays.o.batch, &arrays.o.row, &arrays.o.head};
            arrays.o.data = room + 1000;
            for (int n = 0; n < 3; n++)
                *strides[n] = random_below(&state, (int)most) * (random_below(&state, 3) ? 1 : -1);
            bool collides = share_a_place(arrays.o, &config, (const char *)room);
            enum ra_status status = ra_forward(plan, &arrays);
            if (status != (collides ? RA_INVALID : RA_OK))
                ck_abort_msg("%s: %d %d %d of %d %d %d %d",
                             collides ? "taken" : ra_plan_error(plan), (int)*strides[0],
                             (int)*strides[1], (int)*strides[2], (int)config.batch,
                             (int)config.queries, (int)config.heads, (int)config.dim);
            taken += !collides;
        }
        ra_plan_destroy(plan);
    }
    ck_assert_int_gt(taken, 20000);
}

/* Rows are not copied between arrays that overlap, nor of a side that is none. */
TEST(shards_that_overlap)
{
    enum { N = 8, BYTES = 4 };
    char room[4 * N * BYTES];
    struct ra_config config = problem_shape(1, N, N, 1, 1, 1);
    config.ring_size = 2;
    struct ra_plan *plan = plan_for(&config);
    char *whole = room + N * BYTES;
    for (int64_t at = 0; at + N / 2 * BYTES <= (int64_t)sizeof room; at++) {
        char *local = room + at;
        bool apart = local + N / 2 * BYTES <= whole || local >= whole + N * BYTES;
        ck_assert_int_eq(ra_shard(plan, RA_KEY_SIDE, 1, BYTES, whole, local),
                         apart ? RA_OK : RA_INVALID);
        ck_assert_int_eq(ra_unshard(plan, RA_KEY_SIDE, 1, BYTES, local, whole),
                         apart ? RA_OK : RA_INVALID);
        if (!apart)
            ck_assert_ptr_nonnull(strstr(ra_plan_error(plan), "overlap"));
    }
    ck_assert_int_eq(ra_shard(plan, (enum ra_side)2, 1, BYTES, whole, room), RA_INVALID);
    ck_assert_ptr_nonnull(strstr(ra_plan_error(plan), "side = 2"));
    ra_plan_destroy(plan);
}

/* In a plan of 16 bits everything may be float32 but k and v. */
TEST(types_of_arrays)
{
    struct problem p = {.config = problem_shape(1, 3, 3, 1, 1, 2)};
    prepare(&p);
    for (int type = RA_FLOAT16; type <= RA_BFLOAT16; type++)
        for (int t = 0; t < ARRAYS; t++)
            for (int given = RA_FLOAT32; given <= RA_BFLOAT16; given++) {
                p.config.type = type;
                struct ra_plan *plan = plan_for(&p.config);
                struct shard x;
                for (int other = 0; other < ARRAYS; other++)
                    p.wide[other] = false;
                shard_make(&p, &x, ROWS_FIRST, plan);
                float room[6] = {0}; /* for any type */
                if (t != MASK && t != LSE) {
                    tensor_in(&x.arrays, t)->type = given;
                    tensor_in(&x.arrays, t)->data = room;
                    bool right = given == type || (given == RA_FLOAT32 && t != K && t != V);
                    enum ra_status status = ra_forward(plan, &x.arrays);
                    ck_assert_int_eq(status, right || t >= D_OUT ? RA_OK : RA_INVALID);
                    ck_assert_int_eq(ra_backward(plan, &x.arrays), right ? RA_OK : RA_INVALID);
                }
                shard_clear(&x);
                ra_plan_destroy(plan);
            }
    problem_clear(&p);
}

TEST(wrong_shards)
{
    struct ra_config config = problem_shape(1, 3, 3, 1, 1, 1);
    struct makers makers = plans_of_ring(&config, 5);
    char whole[8], local[8];
    struct ra_plan *plans[] = {makers.rank[0].plan, makers.rank[4].plan};
    config.queries = config.keys = 0;
    struct ra_plan *empty = plan_for(&config);
    enum ra_status (*const calls[])(struct ra_plan *, enum ra_side, int64_t, int64_t, const void *,
                                    void *) = {ra_shard, ra_unshard};
    for (int i = 0; i < 2; i++) {
        static const int64_t sizes[][2] = {{-1, 1},        {1, 0},         {1, -1},
                                           {INT64_MAX, 8}, {8, INT64_MAX}, {INT64_MIN, 1}};
        for (int s = 0; s < COUNT(sizes); s++) {
            ck_assert_int_eq(calls[i](plans[0], 0, sizes[s][0], sizes[s][1], whole, local),
                             RA_INVALID);
            bool outer = sizes[s][0] < 0 || sizes[s][0] > 8;
            ck_assert_ptr_nonnull(strstr(ra_plan_error(plans[0]), outer ? "outer" : "row_bytes"));
        }
        ck_assert_int_eq(calls[i](plans[0], 0, 1, 1, NULL, local), RA_INVALID);
        ck_assert_int_eq(calls[i](plans[0], 0, 1, 1, whole, NULL), RA_INVALID);
        ck_assert_int_eq(calls[i](NULL, 0, 1, 1, whole, local), RA_INVALID);

        /* Rank 4 has no row, and nothing is copied of no batches. */
        ck_assert_int_eq(calls[i](plans[1], 0, 1, 1, i ? NULL : whole, i ? whole : NULL), RA_OK);
        ck_assert_int_eq(calls[i](plans[0], 0, 0, 1, NULL, NULL), RA_OK);

        /* Nor of no rows, however many batches there are: this would take years. */
        ck_assert_int_eq(calls[i](plans[1], 0, INT64_C(1) << 58, 1, whole, whole), RA_OK);
        ck_assert_int_eq(calls[i](empty, 0, INT64_C(1) << 60, 1, NULL, NULL), RA_OK);
    }
    ra_plan_destroy(empty);
    unmake_all(&makers);
}

/* ---- What the ranks of a ring were given. ---- */

/* Does every rank that came have this status and the same text, with all of these words in it? None
 * has a plan, and all links are closed. */
static void all_refused(struct makers *makers, enum ra_status status, const char *const *words)
{
    const struct making *first = NULL;
    make_all(makers, 60);
    ck_assert_int_eq(thread_ring_closed(makers->ring), makers->ranks);
    for (int rank = 0; rank < makers->ranks; rank++) {
        const struct making *mine = &makers->rank[rank];
        ck_assert_msg(mine->status == status, "rank %d: %s: %s", rank, ra_status_text(mine->status),
                      mine->text);
        ck_assert(mine->no_plan || !mine->plan);
        ck_assert_int_eq(mine->held, 0);
        first = first || mine->no_text ? first : mine;
        ck_assert(mine->no_text || strcmp(mine->text, first->text) == 0);
    }
    for (int w = 0; first && words[w]; w++)
        ck_assert_msg(strstr(first->text, words[w]), "no \"%s\" in: %s", words[w], first->text);
    unmake_all(makers);
}

CASE(links, 120);

/* A link belongs to the plan also if there is none. */
TEST(links_of_no_plan)
{
    struct ra_config config = problem_shape(1, 8, 8, 1, 1, 4);
    struct makers makers = makers_of(&config, 3);
    makers.rank[0].config.ring_size = 2;
    makers.rank[1].config.dim = 0;
    makers.rank[1].no_text = true;
    makers.rank[2].no_plan = true;
    const char *const words[] = {"rank 0: config.ring_size = 2: give 0, or the 3 of the link",
                                 NULL};
    all_refused(&makers, RA_INVALID, words);
}

/* Functions of a link that must not be called. */
static bool never_send(void *self, enum ra_message message, int hop, int distance, const void *from,
                       int64_t bytes)
{
    (void)message, (void)hop, (void)distance, (void)from, (void)bytes;
    abort();
    return self != NULL;
}

static bool never_receive(void *self, enum ra_message message, int hop, int distance, void *into,
                          int64_t bytes)
{
    return never_send(self, message, hop, distance, into, bytes);
}

static bool never(void *self)
{
    abort();
    return self != NULL;
}

static bool never_wait(void *self, enum ra_message message)
{
    (void)message;
    return never(self);
}

static void never_fail(void *self, const char *reason)
{
    (void)reason;
    never(self);
}

static const char *never_error(void *self)
{
    never(self);
    return "";
}

static void never_set_timeout(void *self, double seconds)
{
    (void)seconds;
    never(self);
}

/* What is no link is refused before anything of it is called, its end included. */
TEST(invalid_links)
{
    const struct ra_link whole = {.size = 2,
                                  .send = never_send,
                                  .receive = never_receive,
                                  .poll = never,
                                  .wait = never_wait,
                                  .fail = never_fail,
                                  .error = never_error,
                                  .set_timeout = never_set_timeout,
                                  .close = never};
    struct {
        struct ra_link link;
        const char *text;
    } wrong[] = {{whole, "link.size = 0: give 1 to 65536 ranks"},
                 {whole, "link.size = -3: give 1 to 65536 ranks"},
                 {whole, "link.size = 1000000: give 1 to 65536 ranks"},
                 {whole, "link.rank = 5: give 0 to 1, as link.size is 2"},
                 {whole, "link.rank = -1: give 0 to 1, as link.size is 2"},
                 {whole, "link.bytes = -1: give at least 0"},
                 {whole, "link.send is NULL"},
                 {whole, "link.receive is NULL"},
                 {whole, "link.poll is NULL"},
                 {whole, "link.wait is NULL"},
                 {whole, "link.fail is NULL"},
                 {whole, "link.error is NULL"},
                 {whole, "link.close is NULL: give it, or link.in_call"}};
    struct ra_config config = problem_shape(1, 8, 8, 1, 1, 4);
    wrong[0].link.size = 0;
    wrong[1].link.size = -3;
    wrong[2].link.size = 1000000;
    wrong[3].link.rank = 5;
    wrong[4].link.rank = -1;
    wrong[5].link.bytes = -1;
    wrong[6].link.send = NULL;
    wrong[7].link.receive = NULL;
    wrong[8].link.poll = NULL;
    wrong[9].link.wait = NULL;
    wrong[10].link.fail = NULL;
    wrong[11].link.error = NULL;
    wrong[12].link.close = NULL;
    for (int i = 0; i < COUNT(wrong); i++) {
        struct ra_plan *plan = (struct ra_plan *)(void *)&config;
        char error[RA_ERROR_SIZE] = "";
        ck_assert_int_eq(ra_plan_create(&plan, &config, &wrong[i].link, error), RA_INVALID);
        ck_assert_ptr_null(plan);
        ck_assert_msg(strncmp(error, wrong[i].text, strlen(wrong[i].text)) == 0,
                      "\"%s\", not \"%s\"", error, wrong[i].text);
        ck_assert_int_eq(ra_plan_create(NULL, NULL, &wrong[i].link, NULL), RA_INVALID);
    }
}

/* A link of one's own that fails at its first message, and says so, or nothing, or has no text at
 * all. */
static bool fails_to_send(void *self, enum ra_message message, int hop, int distance,
                          const void *from, int64_t bytes)
{
    (void)self, (void)message, (void)hop, (void)distance, (void)from, (void)bytes;
    return false;
}

/* What it was given to write to stays, so that a message that is late finds it, and is no leak. */
static void *written_late[3];

static bool fails_to_receive(void *self, enum ra_message message, int hop, int distance, void *into,
                             int64_t bytes)
{
    static int count;
    written_late[count++ % COUNT(written_late)] = into;
    return fails_to_send(self, message, hop, distance, into, bytes);
}

static bool fails_to_wait(void *self, enum ra_message message)
{
    (void)self, (void)message;
    return false;
}

static void has_failed(void *self, const char *reason)
{
    (void)self, (void)reason;
}

static const char *text_of(void *self)
{
    return self;
}

static bool closes(void *self)
{
    (void)self;
    return true;
}

TEST(links_that_fail)
{
    char cable[] = "the cable is cut", nothing[] = "";
    char *texts[] = {cable, nothing, NULL};
    struct ra_config config = problem_shape(1, 8, 8, 1, 1, 4);
    for (int i = 0; i < COUNT(texts); i++) {
        const struct ra_link link = {.size = 2,
                                     .self = texts[i],
                                     .send = fails_to_send,
                                     .receive = fails_to_receive,
                                     .poll = closes,
                                     .wait = fails_to_wait,
                                     .fail = has_failed,
                                     .error = text_of,
                                     .close = closes};
        struct ra_plan *plan;
        char error[RA_ERROR_SIZE] = "";
        ck_assert_int_eq(ra_plan_create(&plan, &config, &link, error), RA_LOST);
        ck_assert_str_eq(error, i == 0 ? cable : "the link has failed and does not say why");
    }
}

/* Two problems on one ring of three, whose plans share each rank's link: they alternate, one ends,
 * and another begins where it was. */
struct sharing {
    struct problem p[2];
    struct run run[2];
    struct thread_ring *ring; /* NULL: the links are */
    struct ra_link links[3];
    char trouble[3][TEXT];
};

static void share_a_link(void *context, int rank)
{
    struct sharing *s = context;
    char *trouble = s->trouble[rank];
    struct ra_link link = s->ring ? thread_ring_link(s->ring, rank) : s->links[rank];
    struct ra_link kept = link;
    struct ra_plan *plan[2];
    struct shard x[2];
    kept.close = NULL;
    for (int i = 0; i < 2; i++) {
        if (ra_plan_create(&plan[i], &s->p[i].config, &kept, trouble) != RA_OK)
            return;
        shard_make(&s->p[i], &x[i], ROWS_FIRST, plan[i]);
    }
    for (int round = 0; round < 2 && !trouble[0]; round++) {
        for (int call = 0; call < 4 && !trouble[0]; call++)
            if ((call < 2 ? ra_forward : ra_backward)(plan[call % 2], &x[call % 2].arrays) != RA_OK)
                snprintf(trouble, TEXT, "%s", ra_plan_error(plan[call % 2]));
        ra_plan_destroy(plan[0]);
        if (ra_plan_create(&plan[0], &s->p[0].config, &kept, trouble) != RA_OK)
            return;
    }
    for (int i = 0; i < 2; i++) {
        shard_collect(&s->p[i], &x[i], s->run[i].got);
        shard_clear(&x[i]);
        ra_plan_destroy(plan[i]);
    }
    if (!trouble[0] && !link.close(link.self))
        snprintf(trouble, TEXT, "the link says that something is under way");
}

TESTS(shared_links, 0, 2)
{
    struct sharing s = {.p = {{.config = problem_shape(1, 24, 24, 2, 1, 8), .ranks = 3},
                              {.config = problem_shape(2, 20, 31, 1, 1, 4), .ranks = 3}}};
    s.p[0].config.causal = true;
    s.p[0].config.layout = RA_ZIGZAG;
    s.p[1].config.type = RA_BFLOAT16;
    if (_i)
        s.ring = thread_ring_open(3, 10, THREAD_EARLY);
    else
        ck_assert_int_eq(ra_thread_links(s.links, 3, NULL), RA_OK);
    for (int i = 0; i < 2; i++) {
        prepare(&s.p[i]);
        s.run[i] = new_run(&s.p[i], ROWS_FIRST);
    }
    thread_ring_run(3, share_a_link, &s);
    for (int rank = 0; rank < 3; rank++)
        ck_assert_msg(!s.trouble[rank][0], "rank %d: %s", rank, s.trouble[rank]);
    for (int i = 0; i < 2; i++) {
        run_judge(&s.p[i], &s.run[i]);
        clear_run(&s.run[i]);
        problem_clear(&s.p[i]);
    }
    if (s.ring)
        thread_ring_close(s.ring);
}

/* Rank 0 makes its calls of two equal plans in another order than the others, so that all are lost;
 * or one of them from an observer of the other, which is refused. No number of one plan may end in
 * the other's results. */
struct mixing {
    bool nested;
    struct ra_link links[3];
    struct ra_plan *second;
    const struct ra_arrays *arrays; /* rank 0's of the second plan */
    enum ra_status status[3][2], within, third;
    char text[3][2][RA_ERROR_SIZE];
};

static void call_the_other(void *context, const struct ra_event *event)
{
    struct mixing *m = context;
    if (m->arrays && event->kind == RA_EVENT_WORK)
        m->within = ra_forward(m->second, m->arrays);
    if (m->arrays && !strstr(ra_plan_error(m->second), "shares its link"))
        m->within = RA_OK;
    if (!m->arrays || m->third != RA_OK)
        return;
    struct ra_config config = problem_shape(1, 24, 24, 1, 1, 4);
    struct ra_link kept = m->links[0];
    struct ra_plan *third;
    char text[RA_ERROR_SIZE];
    kept.close = NULL;
    config.timeout = 2;
    m->third = ra_plan_create(&third, &config, &kept, text);
    if (third || !strstr(text, "a call of another plan that shares it is not over"))
        m->third = RA_DEVICE;
}

static void mix_calls(void *context, int rank)
{
    struct mixing *m = context;
    float numbers[4][8 * 4] = {{0}}, lse[8];
    struct ra_config config = problem_shape(1, 24, 24, 1, 1, 4);
    struct ra_link kept = m->links[rank];
    /* Of a plan that is lost while its link stays open the memory stays: here, so that it is no
     * leak. */
    static struct ra_plan *plans[2][3][2];
    struct ra_plan **plan = plans[m->nested][rank];
    kept.close = NULL;
    if (m->nested && rank == 0) {
        config.observe = call_the_other;
        config.observer = m;
    }
    struct ra_arrays x = RA_ARRAYS_INIT;
    struct ra_tensor *tensors[] = {&x.q, &x.k, &x.v, &x.o};
    for (int t = 0; t < 4; t++)
        *tensors[t] = ra_tensor_bnhd(numbers[t], RA_FLOAT32, 8, 1, 4);
    x.lse = ra_tensor_bhn(lse, 8, 1);
    for (int i = 0; i < 2; i++)
        m->status[rank][i] = ra_plan_create(&plan[i], &config, &kept, m->text[rank][i]);
    if (m->nested && rank == 0) {
        m->second = plan[1];
        m->arrays = &x;
    }
    for (int i = 0; i < 2 && plan[1]; i++) {
        int which = !m->nested && rank == 0 ? 1 - i : i;
        m->status[rank][which] = ra_forward(plan[which], &x);
        snprintf(m->text[rank][which], RA_ERROR_SIZE, "%s", ra_plan_error(plan[which]));
        if (rank == 0)
            m->arrays = NULL;
    }
    kept.fail = NULL;
    m->links[rank].close(m->links[rank].self);
    for (int i = 0; i < 2; i++)
        ra_plan_destroy(plan[i]);
}

TESTS(mixed_calls_of_shared_links, 0, 2)
{
    struct mixing m = {.nested = _i};
    ck_assert_int_eq(ra_thread_links(m.links, 3, NULL), RA_OK);
    thread_ring_run(3, mix_calls, &m);
    for (int rank = 0; rank < 3; rank++)
        for (int i = 0; i < 2; i++) {
            ck_assert_int_eq(m.status[rank][i], m.nested ? RA_OK : RA_LOST);
            ck_assert_msg(m.nested || strstr(m.text[rank][i], "a forward of another plan"), "%s",
                          m.text[rank][i]);
        }
    ck_assert_int_eq(m.within, m.nested ? RA_INVALID : RA_OK);
    ck_assert_int_eq(m.third, m.nested ? RA_INVALID : RA_OK);
}

/* Every field that ranks compare, two good values of it, and their names, if they have names. */
static const struct {
    const char *name;
    size_t offset;
    enum kind kind;
    double values[2];
    const char *names[2];
} compared[] = {
    {FIELD(batch), WHOLE, {2, 7}, {0}},
    {FIELD(queries), WHOLE, {24, 25}, {0}},
    {FIELD(keys), WHOLE, {24, 27}, {0}},
    {FIELD(heads), WHOLE, {4, 6}, {0}},
    {FIELD(key_heads), WHOLE, {2, 1}, {0}},
    {FIELD(dim), WHOLE, {8, 9}, {0}},
    {FIELD(dim_value), WHOLE, {8, 9}, {0}},
    {FIELD(type), INT, {RA_FLOAT32, RA_BFLOAT16}, {"RA_FLOAT32", "RA_BFLOAT16"}},
    {FIELD(has_mask), BYTE, {0, 1}, {"false", "true"}},
    {FIELD(forward_only), BYTE, {0, 1}, {"false", "true"}},
    {FIELD(causal), BYTE, {1, 0}, {"true", "false"}},
    {FIELD(local_keys), BYTE, {0, 1}, {"false", "true"}},
    {FIELD(lookback), WHOLE, {10, 11}, {0}},
    {FIELD(lookback), WHOLE, {10, 0x1p62}, {"10", "RA_NO_LOOKBACK"}},
    {FIELD(head_map), INT, {RA_GROUPED, RA_INTERLEAVED}, {"RA_GROUPED", "RA_INTERLEAVED"}},
    {FIELD(scale), REAL, {0.5, 0.25}, {0}},
    {FIELD(softcap), REAL, {20, 30}, {0}},
    {FIELD(layout), INT, {RA_STRIPED, RA_ZIGZAG}, {"RA_STRIPED", "RA_ZIGZAG"}},
    {FIELD(bucket), WHOLE, {3, 4}, {0}},
    {FIELD(tile_queries), WHOLE, {16, 17}, {0}},
    {FIELD(tile_keys), WHOLE, {16, 18}, {0}},
    {FIELD(timeout), REAL, {60, 61}, {0}},
    {FIELD(transport), INT, {RA_ANY_TRANSPORT, RA_HOST_LINK}, {"RA_ANY_TRANSPORT", "RA_HOST_LINK"}},
    {FIELD(deterministic), BYTE, {0, 1}, {"false", "true"}},
    {FIELD(caller_workspace), BYTE, {0, 1}, {"false", "true"}},
};

/* One rank has another value of one field: all are told which field, and which ranks have what. */
TEST(ranks_disagree)
{
    struct ra_config config = problem_shape(2, 24, 24, 4, 2, 8);
    config.causal = true;
    config.layout = RA_STRIPED;
    for (int f = 0; f < COUNT(compared); f++)
        for (int odd = 0; odd < 3; odd++) {
            struct makers makers = makers_of(&config, 3);
            for (int rank = 0; rank < 3; rank++)
                set_field(&makers.rank[rank].config, compared[f].offset, compared[f].kind,
                          compared[f].values[rank == odd]);

            /* Each is compared with rank 0. */
            char text[TEXT], numbers[2][40];
            const char *names[2];
            for (int n = 0; n < 2; n++) {
                snprintf(numbers[n], sizeof numbers[n], "%.17g", compared[f].values[n]);
                names[n] = compared[f].names[n] ? compared[f].names[n] : numbers[n];
            }
            snprintf(text, sizeof text,
                     "ranks disagree about config.%s: rank 0 has %s, rank %d has %s",
                     compared[f].name, names[odd == 0], odd == 0 ? 1 : odd, names[odd != 0]);
            const char *const words[] = {text, NULL};
            all_refused(&makers, RA_DISAGREEMENT, words);
        }
}

/* Two backends that differ in nothing but where they say that they compute. */
static struct ra_backend elsewhere_with(void)
{
    struct ra_backend elsewhere = ra_host;
    elsewhere.place = "another device";
    return elsewhere;
}

TEST(ranks_compute_elsewhere)
{
    struct ra_config config = problem_shape(1, 24, 24, 1, 1, 8);
    const struct ra_backend elsewhere = elsewhere_with(), same = elsewhere;
    for (int odd = 0; odd < 3; odd++) {
        struct makers makers = makers_of(&config, 3);
        makers.rank[odd].config.device = &elsewhere;
        char text[TEXT];
        snprintf(text, sizeof text,
                 "ranks disagree about config.device: rank 0 computes on %s, rank %d on %s",
                 odd == 0 ? "another device" : "the host", odd == 0 ? 1 : odd,
                 odd == 0 ? "the host" : "another device");
        const char *const words[] = {text, NULL};
        all_refused(&makers, RA_DISAGREEMENT, words);
    }

    /* The same place, whatever the table's address. */
    config.device = &elsewhere;
    struct makers makers = makers_of(&config, 2);
    makers.rank[1].config.device = &same;
    make_all(&makers, 60);
    for (int rank = 0; rank < 2; rank++)
        ck_assert_msg(makers.rank[rank].status == RA_OK, "%s", makers.rank[rank].text);
    unmake_all(&makers);
}

/* A device on which keys go round the ring refuses other methods, by name. */
TEST(methods_elsewhere)
{
    struct ra_config config = problem_shape(1, 24, 24, 4, 4, 8);
    struct ra_backend elsewhere = elsewhere_with();
    elsewhere.methods = 0;
    static const char *const names[] = {"RA_RING", "RA_GATHERED_KEYS", "RA_EXCHANGED_HEADS",
                                        "RA_HYBRID", "RA_DOUBLE_RING"};
    config.device = &elsewhere;
    config.ring_size = 4;
    for (int m = 0; m < COUNT(names); m++) {
        char error[RA_ERROR_SIZE] = "", text[TEXT];
        struct ra_plan *plan;
        config.method = (enum ra_method)m;
        enum ra_status status = ra_plan_create(&plan, &config, NULL, error);
        snprintf(text, sizeof text, "config.method = %s: give RA_RING to a plan on another device",
                 names[m]);
        ck_assert_int_eq(status, m == RA_RING ? RA_OK : RA_INVALID);
        ck_assert_str_eq(error, m == RA_RING ? "" : text);
        ra_plan_destroy(plan);
    }
}

/* A plan to look at says what the ranks' own plans say, whatever the method: descriptions with
 * memory, work and messages; and takes as much memory. */
TESTS(methods_to_look_at, 0, 4)
{
    uint64_t state = (uint64_t)_i + 4711;
    for (int i = 0; i < 12; i++) {
        struct problem p =
            problem_random(&state, random_below(&state, 70), random_below(&state, 70));
        struct ra_config *c = &p.config;
        c->method = (enum ra_method)(1 + _i);
        c->layout = i % 3;
        c->bucket = 0;
        c->heads = 6;
        c->key_heads = 1 + i % 3;
        p.ranks = c->ring_size = i % 2 ? 4 : 6;
        if (c->method == RA_HYBRID)
            c->group = i % 4 < 2 ? 2 : 0;
        if (c->method == RA_DOUBLE_RING)
            c->inner = i % 4 < 2 || p.ranks == 4 ? 2 : 3;
        if (i % 4 == 3)
            c->max_slices = 3;
        prepare(&p);
        struct ra_plan *look = plan_for(c);
        struct makers makers = plans_of_ring(c, p.ranks);
        for (int rank = 0; rank < p.ranks; rank++) {
            struct ra_plan *plan = makers.rank[rank].plan;
            compare_plans(plan, look);
            int times[70] = {0};
            for (int side = 0; side < 2; side++)
                check_rows(&p, plan, side, times);
        }
        unmake_all(&makers);
        expect_no_call(look);
        ra_plan_destroy(look);
        problem_clear(&p);
    }
}

/* Of the description of a plan whose method was chosen: the seconds of the chosen one, and the
 * fewest of all; returns how many methods it lists. `said` gets the lines about it. */
static int read_choice(struct ra_plan *plan, double *chosen, double *fewest, char said[4096])
{
    char text[8192], *line, *end;
    int lines = 0;
    ra_plan_describe(plan, 0, text, sizeof text);
    *chosen = *fewest = (double)INFINITY;
    ck_assert_msg((line = strstr(text, "\nmethod: ")), "%s", text);
    snprintf(said, 4096, "%s", line);
    ck_assert_ptr_nonnull(line = strstr(line, "  ring "));
    for (; strncmp(line, "  ", 2) == 0; line = end + 1, lines++) {
        double seconds;
        *(end = strchr(line, '\n')) = 0;
        if (sscanf(line + 25, "%lf", &seconds) != 1)
            continue; /* too few heads */
        *chosen = strstr(line, " s, chosen") ? seconds : *chosen;
        *fewest = fmin(*fewest, seconds);
    }
    said[line - strstr(text, "\nmethod: ")] = 0;
    return lines;
}

/* A method that the ranks choose: all of them the same, the one that is predicted to be fastest;
 * described, counted and computed like one that the config names. */
TESTS(method_chosen, 0, 3)
{
    uint64_t state = (uint64_t)_i + 6000;
    static const int ranks[] = {2, 4, 6};
    for (int i = 0; i < COUNT(ranks); i++) {
        struct problem p = problem_random(&state, 40, 40);
        p.config.batch = 1;
        p.ranks = ranks[i];
        p.config.method = RA_AUTO_METHOD;
        prepare(&p);
        struct makers makers = plans_of_ring(&p.config, p.ranks);
        struct ra_config first, other;
        ra_plan_config(makers.rank[0].plan, &first, sizeof first);
        ck_assert_int_ne(first.method, RA_AUTO_METHOD);
        char said[2][4096] = {""};
        for (int rank = 0; rank < p.ranks; rank++) {
            struct ra_plan *plan = makers.rank[rank].plan;
            double chosen, fewest;
            ra_plan_config(plan, &other, sizeof other);
            ck_assert_int_eq(other.method, first.method);
            ck_assert_int_eq(other.group, first.group);
            ck_assert_int_eq(other.inner, first.inner);
            char *own = said[rank > 0];
            ck_assert_int_ge(read_choice(plan, &chosen, &fewest, own), 3);
            ck_assert_str_eq(own, said[0]);
            ck_assert_double_eq(chosen, fewest);
            ck_assert_int_eq(makers.rank[rank].held_bytes, ra_plan_bytes(plan));
        }
        unmake_all(&makers);
        struct run run = run_as(&p, ROWS_FIRST, THREAD_LATE);
        run_judge(&p, &run);
        clear_run(&run);
        problem_clear(&p);
    }
}

/* The same on a device: what it has not is no choice, and its messages are those of its own ring,
 * which the ranks measure as well. */
TESTS(method_chosen_elsewhere, 0, 2)
{
    struct ra_backend elsewhere = elsewhere_with();
    struct ra_config config = problem_shape(1, 96, 96, 4, 4, 8), made;
    elsewhere.methods = 1u << RA_GATHERED_KEYS;
    config.method = RA_AUTO_METHOD;
    config.device = &elsewhere;
    config.causal = true;
    struct makers makers = plans_of_ring(&config, 2 + 2 * _i);
    for (int rank = 0; rank < makers.ranks; rank++) {
        struct ra_plan *plan = makers.rank[rank].plan;
        double chosen, fewest;
        char said[4096] = "";
        ra_plan_config(plan, &made, sizeof made);
        ck_assert_int_eq(read_choice(plan, &chosen, &fewest, said), 2);
        ck_assert_double_eq(chosen, fewest);
        ck_assert_msg(strstr(said, made.method == RA_RING ? "method: ring, of 2 by prediction"
                                                          : "method: gathered-keys, of 2 by"),
                      "%s", said);
        ck_assert_int_eq(makers.rank[rank].held_bytes, ra_plan_bytes(plan));
    }
    unmake_all(&makers);
}

/* The slices that are expected count. Of documents as long as a rank's rows nothing travels on a
 * ring, and no method is faster. If the queries of one rank alone see anything, that rank has all
 * the work on a ring, and a part of it where heads are exchanged. */
TEST(method_for_slices)
{
    static const struct ra_slice documents[] = {{0, 128, 0, 128, -RA_BAND_FAR, 0},
                                                {128, 256, 128, 256, -RA_BAND_FAR, 0},
                                                {256, 384, 256, 384, -RA_BAND_FAR, 0},
                                                {384, 512, 384, 512, -RA_BAND_FAR, 0}};
    static const struct ra_slice first[] = {{0, 128, 0, 512, -RA_BAND_FAR, RA_BAND_FAR}};
    const struct ra_scale_mask masks[] = {{documents, 4, RA_DEAL_LAYOUT},
                                          {documents, 4, RA_DEAL_DOCUMENTS},
                                          {first, 1, RA_DEAL_LAYOUT}};
    for (int i = 0; i < COUNT(masks); i++) {
        struct ra_config config = problem_shape(1, 512, 512, 4, 4, 64), made;
        config.method = RA_AUTO_METHOD;
        config.max_slices = masks[i].count;
        config.max_rows = 512;
        config.expected = &masks[i];
        struct makers makers = plans_of_ring(&config, 4);
        for (int rank = 0; rank < makers.ranks; rank++) {
            char text[8192], *end, of[40];
            ra_plan_config(makers.rank[rank].plan, &made, sizeof made);
            ra_plan_describe(makers.rank[rank].plan, rank, text, sizeof text);
            snprintf(of, sizeof of, " by prediction, of %d slices\n", (int)masks[i].count);
            ck_assert_msg(strstr(text, of), "%s", text);
            ck_assert_ptr_nonnull(end = strstr(text, "\nforward"));
            *end = 0;
            ck_assert_msg((made.method == RA_RING) == (i < 2) && made.method != RA_GATHERED_KEYS,
                          "%s", text);
            ck_assert_ptr_null(made.expected);
        }
        unmake_all(&makers);
    }
}

/* What cannot be expected. */
TEST(slices_not_expected)
{
    static const struct ra_slice good = {0, 24, 0, 24, -RA_BAND_FAR, 0};
    static const struct ra_slice wrong = {0, 25, 0, 24, -RA_BAND_FAR, 0};
    const struct ra_scale_mask mask = {&good, 1, RA_DEAL_LAYOUT}, bad = {&wrong, 1, RA_DEAL_LAYOUT};
    const struct {
        const struct ra_scale_mask *mask;
        int64_t most;
        const char *word;
    } cases[] = {
        {&mask, 0, "config.expected: has 1 slices; plan with config.max_slices of at least "},
        {&bad, 1, "config.expected.slices[0]"}};
    for (int i = 0; i < COUNT(cases); i++) {
        struct ra_config config = problem_shape(1, 24, 24, 4, 4, 8);
        config.method = RA_AUTO_METHOD;
        config.max_slices = cases[i].most;
        config.expected = cases[i].mask;
        struct makers makers = makers_of(&config, 3);
        const char *const words[] = {cases[i].word, NULL};
        all_refused(&makers, RA_INVALID, words);
    }
    struct ra_config config = problem_shape(1, 24, 24, 4, 4, 8);
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    config.max_slices = 1;
    config.expected = &mask;
    ck_assert_int_eq(ra_plan_create(&plan, &config, NULL, error), RA_INVALID);
    ck_assert_str_eq(error,
                     "config.expected: needs method = RA_AUTO_METHOD, as it is what a method "
                     "is chosen for");
}

/* Where there is nothing to choose, the plan says why; and a plan to look at cannot choose. */
TEST(method_of_no_choice)
{
    struct ra_backend elsewhere = elsewhere_with();
    elsewhere.meter = NULL;
    static const char *const reasons[] = {
        "ring, as there is one rank\n", "ring, as this device is not measured\n",
        "ring, as no keys travel\n", "ring, as there is no work\n"};
    for (int i = 0; i < COUNT(reasons); i++) {
        struct ra_config config = problem_shape(1, 24, 24, 4, 4, 8);
        char text[8192];
        config.method = RA_AUTO_METHOD;
        config.device = i == 1 ? &elsewhere : NULL;
        config.local_keys = i == 2;
        config.queries = i == 3 ? 0 : 24;
        struct makers makers = plans_of_ring(&config, i == 0 ? 1 : 3);
        for (int rank = 0; rank < makers.ranks; rank++) {
            ra_plan_describe(makers.rank[rank].plan, rank, text, sizeof text);
            ck_assert_msg(strstr(text, reasons[i]), "%s", text);
        }
        unmake_all(&makers);
    }
    char error[RA_ERROR_SIZE];
    struct ra_plan *plan;
    struct ra_config config = problem_shape(1, 24, 24, 4, 4, 8);
    config.method = RA_AUTO_METHOD;
    config.ring_size = 4;
    ck_assert_int_eq(ra_plan_create(&plan, &config, NULL, error), RA_INVALID);
    ck_assert_str_eq(error, "config.method = RA_AUTO_METHOD: ranks of a plan to look at cannot be "
                            "measured; give a method, or ask ra_scale_choose");
}

/* A rank that does not choose, or cannot: none waits for it. */
TEST(one_rank_does_not_choose)
{
    struct ra_config config = problem_shape(1, 24, 24, 2, 2, 4);
    config.method = RA_AUTO_METHOD;

    /* Those between which the ranks tell each other how they are. */
    static const int blocks[] = {2, 3, 5, 6, 7, 9, 10, 11, 12, 19, 20};
    for (int odd = 0; odd < 3; odd++) {
        struct makers makers = makers_of(&config, 3);
        makers.rank[odd].config.method = RA_RING;
        const char *const words[] = {"ranks disagree about config.method: rank 0 has ",
                                     "RA_AUTO_METHOD", NULL};
        all_refused(&makers, RA_DISAGREEMENT, words);
        makers = makers_of(&config, 3);
        makers.rank[odd].config.heads = 0;
        const char *const heads[] = {"config.heads = 0", NULL};
        all_refused(&makers, RA_INVALID, heads);
        for (int block = 0; block < COUNT(blocks); block++) {
            makers = makers_of(&config, 3);
            makers.rank[odd].refuse = blocks[block];
            const char *const none[] = {"no memory", NULL};
            all_refused(&makers, RA_OUT_OF_MEMORY, none);
        }
    }
}

/* What ranks may say in different words, or have to themselves. */
TEST(ranks_agree)
{
    struct ra_config config = problem_shape(1, 24, 24, 2, 2, 4);
    config.scale = 0.5;
    config.tile_queries = config.tile_keys = 24;
    struct makers makers = makers_of(&config, 3);
    makers.rank[1].config.scale = RA_DEFAULT_SCALE;
    makers.rank[1].config.keys = makers.rank[1].config.key_heads = RA_SAME;
    makers.rank[1].config.tile_queries = 0;
    makers.rank[2].config.ring_size = 3;
    makers.rank[2].config.tile_keys = 1000;
    makers.rank[2].config.observer = &makers;
    makers.rank[2].config.size = offsetof(struct ra_config, device);
    make_all(&makers, 60);
    for (int rank = 0; rank < 3; rank++)
        ck_assert_msg(makers.rank[rank].status == RA_OK, "%s", makers.rank[rank].text);
    unmake_all(&makers);
}

/* One rank cannot have a plan: none has, for the same reason. */
TEST(one_rank_cannot)
{
    static const struct {
        const char *text;
        enum ra_status status;
    } ways[] = {{"config is NULL", RA_INVALID},
                {"plan is NULL", RA_INVALID},
                {"config.size = 3", RA_INVALID},
                {"config.heads = 0", RA_INVALID},
                {"config.ring_size = 2: give 0, or the 3 of the link", RA_INVALID},
                {"no memory: the plan needs", RA_OUT_OF_MEMORY},
                {"no memory: the plan needs", RA_OUT_OF_MEMORY}};
    struct ra_config config = problem_shape(1, 24, 24, 2, 2, 4);
    char rank_text[32];
    for (int way = 0; way < COUNT(ways); way++)
        for (int odd = 0; odd < 3; odd++) {
            struct makers makers = makers_of(&config, 3);
            struct making *mine = &makers.rank[odd];
            mine->no_config = way == 0;
            mine->no_plan = way == 1;
            mine->config.size = way == 2 ? 3 : mine->config.size;
            mine->config.heads = way == 3 ? 0 : mine->config.heads;
            mine->config.ring_size = way == 4 ? 2 : 0;
            mine->refuse = way >= 5 ? way - 4 : 0;

            /* What is wrong comes before what differs. */
            makers.rank[(odd + 1) % 3].config.queries = 25;
            snprintf(rank_text, sizeof rank_text, "rank %d: ", odd);
            const char *const words[] = {rank_text, ways[way].text, NULL};
            all_refused(&makers, ways[way].status, words);
        }

    /* Of two, the first speaks. */
    struct makers makers = makers_of(&config, 3);
    makers.rank[1].no_config = true;
    makers.rank[2].config.dim = 0;
    const char *const words[] = {"rank 1: config is NULL", NULL};
    all_refused(&makers, RA_INVALID, words);
}

/* A rank without memory for what the others say of themselves cannot hear them: it ends the
 * ring. */
TEST(one_rank_cannot_listen)
{
    struct ra_config config = problem_shape(1, 24, 24, 2, 2, 4);
    for (int odd = 0; odd < 3; odd++) {
        struct makers makers = makers_of(&config, 3);
        makers.rank[odd].refuse = 3;
        make_all(&makers, 60);
        for (int rank = 0; rank < 3; rank++) {
            const struct making *mine = &makers.rank[rank];
            ck_assert_int_eq(mine->status, rank == odd ? RA_OUT_OF_MEMORY : RA_LOST);
            ck_assert_ptr_null(mine->plan);
            ck_assert_str_eq(mine->text, makers.rank[odd].text);

            /* What the link may still write to stays; the plan does not. */
            ck_assert_int_eq(mine->held, rank == odd ? 0 : 1);
        }
        char text[TEXT];
        snprintf(text, sizeof text, "rank %d: no memory to compare", odd);
        ck_assert_msg(strstr(makers.rank[odd].text, text), "%s", makers.rank[odd].text);
        unmake_all(&makers);
    }
}

/* A rank that does not come is waited for as long as the config says. */
TESTS(one_rank_makes_no_plan, 0, 3)
{
    struct ra_config config = problem_shape(1, 24, 24, 2, 2, 4);
    config.timeout = 0.3;
    struct makers makers = makers_of(&config, 3);
    makers.rank[_i].absent = true;
    makers.plain = true;
    make_all(&makers, 3);
    for (int rank = 0; rank < 3; rank++) {
        const struct making *mine = &makers.rank[rank];
        if (mine->absent)
            continue;
        ck_assert_int_eq(mine->status, RA_LOST);
        ck_assert_ptr_null(mine->plan);
        ck_assert(mine->seconds < 20);
        ck_assert_msg(strstr(mine->text, "waited 0.3 s for rank") && strstr(mine->text, "rows"),
                      "%s", mine->text);
    }
    unmake_all(&makers);
}

/* ---- One link, and one backend. ---- */

/* What was done with a link of one rank. */
struct told {
    double timeout; /* NAN: none was set */
    int closed;
};

static void note_timeout(void *self, double seconds)
{
    ((struct told *)self)->timeout = seconds;
}

static bool note_close(void *self)
{
    ((struct told *)self)->closed++;
    return true;
}

/* The link is told the config's timeout, and nothing if the config is wrong. */
TEST(timeouts_of_links)
{
    static const double timeouts[] = {0, 0.25, 600};
    struct told told;
    struct ra_link link = {
        .size = 1, .self = &told, .set_timeout = note_timeout, .close = note_close};
    struct ra_config config = problem_shape(1, 8, 8, 1, 1, 4);
    struct ra_plan *plan;
    for (int i = 0; i < COUNT(timeouts); i++) {
        told = (struct told){NAN, 0};
        config.timeout = timeouts[i];
        ck_assert_int_eq(ra_plan_create(&plan, &config, &link, NULL), RA_OK);
        ck_assert_double_eq(told.timeout, timeouts[i]);
        ck_assert_int_eq(told.closed, 0);
        ra_plan_destroy(plan);
        ck_assert_int_eq(told.closed, 1);
    }
    told = (struct told){NAN, 0};
    config.timeout = -1;
    ck_assert_int_eq(ra_plan_create(&plan, &config, &link, NULL), RA_INVALID);
    ck_assert(isnan(told.timeout) && told.closed == 1);
}

/* A ring of one rank over a link without functions, over one of threads, and without a link: the
 * same bits, and the same answers. */
TEST(links_of_one)
{
    struct problem p = {.config = problem_shape(2, 20, 24, 2, 1, 8), .masking = RANDOM_MASK};
    p.config.causal = true;
    prepare(&p);
    struct run alone = run_as(&p, ROWS_FIRST, THREAD_LATE);
    run_judge(&p, &alone);
    for (int with = 0; with < 2; with++) {
        struct ra_link link = {.size = 1};
        struct ra_plan *plan;
        char error[RA_ERROR_SIZE] = "";
        if (with)
            ck_assert_int_eq(ra_thread_links(&link, 1, NULL), RA_OK);
        ck_assert_msg(ra_plan_create(&plan, &p.config, &link, error) == RA_OK, "%s", error);
        ck_assert(ra_plan_rank(plan) == 0 && ra_plan_ranks(plan) == 1 && ra_plan_hops(plan) == 1);
        struct shard x;
        shard_make(&p, &x, ROWS_FIRST, plan);
        ck_assert_int_eq(ra_forward(plan, NULL), RA_INVALID);
        ck_assert_ptr_nonnull(strstr(ra_plan_error(plan), "arrays is NULL"));
        ck_assert_int_eq(ra_forward(plan, &x.arrays), RA_OK);
        ck_assert_int_eq(ra_backward(plan, &x.arrays), RA_OK);
        ck_assert_int_eq(ra_wait(plan), RA_OK);
        struct run run = run_of(&p, &x);
        run_same_bits(&alone, &run);
        clear_run(&run);
        shard_clear(&x);
        ra_plan_destroy(plan);
    }
    clear_run(&alone);
    problem_clear(&p);

    /* Their errors are those of a plan without a link. */
    struct ra_link link = {.size = 1};
    struct ra_config wrong = problem_shape(1, 8, 8, 1, 1, 0);
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE] = "";
    ck_assert_int_eq(ra_plan_create(&plan, &wrong, &link, error), RA_INVALID);
    ck_assert_str_eq(error, "config.dim = 0: give at least 1");
    wrong.dim = 4;
    wrong.ring_size = 2;
    ck_assert_int_eq(ra_plan_create(&plan, &wrong, &link, error), RA_INVALID);
    ck_assert_str_eq(error, "config.ring_size = 2: give 0, or the 1 of the link");
}

/* A device whose calls only enqueue, and what came of them. */
static enum ra_status enqueued, waited;
static int waits;

static enum ra_status enqueue(struct ra_plan *plan, const struct ra_arrays *arrays, void *stream)
{
    (void)plan, (void)arrays, (void)stream;
    return enqueued;
}

static enum ra_status wait_on_device(struct ra_plan *plan)
{
    (void)plan;
    waits++;
    return waited;
}

/* On the host there is nothing to wait for; what a device says is said by the call and by
 * ra_wait. */
TEST(waits_of_plans)
{
    static const enum ra_status all[] = {RA_OK, RA_INVALID, RA_LOST, RA_DEVICE};
    ck_assert_int_eq(ra_wait(NULL), RA_INVALID);
    struct ra_config config = problem_shape(1, 8, 8, 1, 1, 4);
    struct ra_plan *plan = plan_for(&config);
    struct ra_arrays arrays = RA_ARRAYS_INIT;
    ck_assert_int_eq(ra_wait(plan), RA_OK);
    ck_assert_int_eq(ra_forward(plan, &arrays), RA_INVALID);
    ck_assert_int_eq(ra_wait(plan), RA_OK);
    ra_plan_destroy(plan);

    struct ra_backend device = elsewhere_with();
    device.forward = device.backward = enqueue;
    device.wait = wait_on_device;
    config.device = &device;
    plan = plan_for(&config);
    for (int e = 0; e < COUNT(all); e++)
        for (int w = 0; w < COUNT(all); w++)
            for (int backward = 0; backward < 2; backward++) {
                enqueued = all[e];
                waited = all[w];
                waits = 0;
                ck_assert_int_eq((backward ? ra_backward : ra_forward)(plan, &arrays),
                                 enqueued == RA_OK ? waited : enqueued);
                ck_assert_int_eq(waits, enqueued == RA_OK);
                ck_assert_int_eq(ra_wait(plan), waited);
            }
    ra_plan_destroy(plan);
}

/* The arrays that may be empty, by name; some are read by the backward alone. */
static const struct optional {
    const char *name;
    size_t offset;
    bool in_forward, of_rows, is_output;
} optional[] = {
    {"d_lse", offsetof(struct ra_arrays, d_lse), false, true, false},
    {"sink", offsetof(struct ra_arrays, sink), true, false, false},
    {"d_sink", offsetof(struct ra_arrays, d_sink), false, false, true},
    {"slopes", offsetof(struct ra_arrays, slopes), true, false, false},
    {"largest", offsetof(struct ra_arrays, largest), true, false, true},
};

static struct ra_tensor *optional_in(struct ra_arrays *arrays, int i)
{
    return (struct ra_tensor *)(void *)((char *)arrays + optional[i].offset);
}

CASE(errors, 120);

/* A device that does not take them says so, of each. */
TEST(optional_arrays_elsewhere)
{
    struct problem p = {.config = problem_shape(1, 4, 4, 2, 1, 3)};
    prepare(&p);
    struct ra_backend device = elsewhere_with();
    device.takes_optional = false;
    p.config.device = &device;
    struct ra_plan *plan = plan_for(&p.config);
    struct shard x;
    shard_make(&p, &x, ROWS_FIRST, plan);
    float numbers[8] = {0};
    for (int i = 0; i < COUNT(optional); i++)
        for (int backward = 0; backward < 2; backward++) {
            struct ra_arrays given = x.arrays;
            char text[TEXT];
            given.size = sizeof given;
            *optional_in(&given, i) =
                optional[i].of_rows ? ra_tensor_bhn(numbers, 4, 2) : ra_tensor_h(numbers);
            snprintf(text, sizeof text, "arrays.%s is given: a plan on another device cannot",
                     optional[i].name);
            enum ra_status status = (backward ? ra_backward : ra_forward)(plan, &given);
            bool used = backward || optional[i].in_forward;
            ck_assert_int_eq(status, used ? RA_INVALID : RA_OK);
            if (used)
                ck_assert_ptr_nonnull(strstr(ra_plan_error(plan), text));
        }
    ra_plan_destroy(plan);
    shard_clear(&x);
    problem_clear(&p);
}

static enum ra_status connect_in_vain(struct ra_plan *plan, char *error)
{
    (void)plan;
    snprintf(error, RA_ERROR_SIZE, "no way to the other devices");
    return RA_DEVICE;
}

static bool leave_behind(struct ra_plan *plan)
{
    (void)plan;
    return false;
}

CASE(links, 120);

/* A device that does not reach those of the other ranks, and one whose memory others still use. */
TEST(ends_of_plans)
{
    struct ra_config config = problem_shape(1, 8, 8, 1, 1, 4);
    struct ra_backend device = elsewhere_with();
    device.connect = connect_in_vain;
    config.device = &device;
    struct makers makers = makers_of(&config, 2);
    const char *const words[] = {"no way to the other devices", NULL};
    all_refused(&makers, RA_DEVICE, words);

    /* Alone there is nobody to reach. */
    ra_plan_destroy(plan_for(&config));

    device.connect = NULL;
    device.leave = leave_behind;
    watch_memory();
    struct ra_plan *plan = plan_for(&config);
    stop_watching();
    ck_assert_int_eq(memory.held, 2);
    ra_plan_destroy(plan);
    ck_assert_int_eq(memory.held, 2);
    for (int i = 0; i < COUNT(memory.live); i++)
        __real_free(memory.live[i].block);
}

/* ---- Trouble in a ring. ---- */

/* Calls of several ranks, one of which is in trouble. */
struct scene {
    const struct problem *p;
    struct thread_ring *ring;
    int culprit;
    bool absent; /* the culprit does not call; else it calls without q, or without its workspace */
    bool backward; /* it does so in the backward */
    pthread_barrier_t barrier;
    struct {
        enum ra_status status[3]; /* forward, backward, and one more forward */
        char text[3][RA_ERROR_SIZE];
        double began[3], ended[3];
        bool wrote_on; /* in the last call */
    } rank[MOST_RANKS];
};

static void play(void *context, int rank)
{
    struct scene *scene = context;
    const struct problem *p = scene->p;
    char trouble[TEXT];
    struct ra_plan *plan = run_plan(&p->config, scene->ring, rank, trouble);
    struct shard x;
    shard_make(p, &x, ROWS_FIRST, plan);
    struct block *o = &x.blocks[O];
    void *workspace = run_workspace(plan, &p->config, trouble);

    /* A rank that refuses before the others have their plans leaves them without. */
    pthread_barrier_wait(&scene->barrier);
    for (int call = 0; call < 3; call++) {
        struct ra_arrays arrays = x.arrays;
        bool wrong = rank == scene->culprit && call == scene->backward;
        if (call == 2)
            memset(o->data, 0xAB, (size_t)o->bytes);
        /* All are here: only now may a timeout be short. */
        if (scene->absent && call == scene->backward)
            thread_ring_set_timeout(scene->ring, rank, 0.5);
        scene->rank[rank].began[call] = ra_seconds();
        if (wrong && (!p->config.caller_workspace || ra_plan_set_workspace(plan, NULL, 0) != RA_OK))
            arrays.q.data = NULL;
        if (!(scene->absent && wrong))
            scene->rank[rank].status[call] = (call == 1 ? ra_backward : ra_forward)(plan, &arrays);
        snprintf(scene->rank[rank].text[call], RA_ERROR_SIZE, "%s", ra_plan_error(plan));
        scene->rank[rank].ended[call] = ra_seconds();

        /* A rank that is ahead would be taken for one that computes the same. */
        pthread_barrier_wait(&scene->barrier);
    }
    for (int64_t i = 0; i < o->bytes; i++)
        scene->rank[rank].wrote_on = scene->rank[rank].wrote_on || o->data[i] != 0xAB;
    shard_clear(&x);
    ra_plan_destroy(plan);
    free(workspace);
}

static void play_scene(struct scene *scene, enum thread_delivery delivery)
{
    int ranks = scene->p->ranks;
    scene->ring = thread_ring_open(ranks, 60, delivery);
    pthread_barrier_init(&scene->barrier, NULL, (unsigned)ranks);
    thread_ring_run(ranks, play, scene);
    pthread_barrier_destroy(&scene->barrier);
    ck_assert_int_eq(thread_ring_closed(scene->ring), ranks);
    thread_ring_close(scene->ring);
}

CASE(trouble, 120);

/* A ring that ends at any call of a link, while ranks are measured, make plans, take slices and
 * compute, by any method: who does not get through hears why. */
static const struct lost {
    enum ra_method method;
    int group, inner;
    bool slices;
} lost[] = {{RA_RING, 0, 0, false},           {RA_RING, 0, 0, true},
            {RA_DOUBLE_RING, 0, 2, true},     {RA_GATHERED_KEYS, 0, 0, false},
            {RA_EXCHANGED_HEADS, 0, 0, true}, {RA_HYBRID, 2, 0, false},
            {RA_AUTO_METHOD, 0, 0, false}};

static void run_to_the_end(void *run, int rank)
{
    watch_memory();
    run_rank(run, rank);
    stop_watching();
    free_what_is_left();
}

TESTS_OF(lost_at_any_call, lost)
{
    static const struct ra_slice slices[] = {{0, 9, 0, 9, -RA_BAND_FAR, 0},
                                             {9, 24, 2, 24, -RA_BAND_FAR, RA_BAND_FAR}};
    struct problem p = {.config = problem_shape(1, 24, 24, 4, 4, 4), .ranks = 4};
    p.config.method = lost[_i].method;
    p.config.group = lost[_i].group;
    p.config.inner = lost[_i].inner;
    p.config.layout = RA_ZIGZAG;
    p.config.threads = 1;
    p.config.max_slices = lost[_i].slices ? COUNT(slices) : 0;
    problem_make(&p);
    p.truth.slices = lost[_i].slices ? slices : NULL;
    p.truth.slice_count = p.config.max_slices;
    for (int call = 0; call < CHECKED_CALLS; call++) {
        bool failed = true;
        int lost_rings = 0;
        for (int64_t number = 1; failed; number += 1 + number / 4) {
            int odd = (int)(number % p.ranks);
            struct run run = new_run(&p, ROWS_FIRST);
            run.ring = thread_ring_open(p.ranks, 60, THREAD_LATE);
            thread_ring_fail(run.ring, odd, (enum checked_call)call, number);
            thread_ring_run(p.ranks, run_to_the_end, &run);
            failed = thread_ring_failed(run.ring, odd);
            lost_rings += failed;

            /* After the last poll of a fold nobody may ask. */
            ck_assert(!failed || call == CHECKED_POLL || run.trouble[odd][0]);
            for (int rank = 0; rank < p.ranks; rank++)
                ck_assert_msg(!run.trouble[rank][0] ||
                                  (strstr(run.trouble[rank], ra_status_text(RA_LOST)) &&
                                   strstr(run.trouble[rank], "a call that fails")),
                              "call %d, number %d, of rank %d: rank %d: %s", call, (int)number, odd,
                              rank, run.trouble[rank]);
            ck_assert_int_eq(thread_ring_closed(run.ring), p.ranks);
            thread_ring_close(run.ring);
            clear_run(&run);
        }
        ck_assert_int_gt(lost_rings, 1);
    }
    problem_clear(&p);
}

/* One rank's array is wrong, or it has no workspace: every rank that needs another one gets its
 * words, at once; one that needs nobody, at the latest in its next call. */
TEST(one_rank_refuses)
{
    enum { ALL_KEYS, CAUSAL, LOCAL_KEYS, RULES };
    for (int i = 0; i < 4 * 2 * RULES * 2; i++) {
        int culprit = i % 4, backward = i / 4 % 2, rule = i / 8 % RULES;
        struct problem p = {.config = problem_shape(1, 16, 16, 1, 1, 4), .ranks = 4};
        p.config.causal = rule == CAUSAL;
        p.config.layout = rule == CAUSAL ? RA_STRIPED : RA_CONTIGUOUS;
        p.config.local_keys = rule == LOCAL_KEYS;
        p.config.caller_workspace = i % 5 == 0;
        prepare(&p);
        struct scene scene = {.p = &p, .culprit = culprit, .backward = backward};
        play_scene(&scene, i / (8 * RULES) ? THREAD_LATE : THREAD_EARLY);
        const char *text = scene.rank[culprit].text[backward];
        char rank_text[32];
        snprintf(rank_text, sizeof rank_text, "rank %d", culprit);
        ck_assert_msg(strstr(text, rank_text) &&
                          strstr(text, p.config.caller_workspace ? "no workspace" : "arrays.q"),
                      "%s", text);
        ck_assert_int_eq(scene.rank[culprit].status[backward], RA_INVALID);
        ck_assert(!scene.rank[culprit].wrote_on);
        for (int rank = 0; rank < 4; rank++) {
            ck_assert(!backward || scene.rank[rank].status[0] == RA_OK);
            for (int call = backward; call < 3; call++) {
                enum ra_status status = scene.rank[rank].status[call];
                ck_assert(scene.rank[rank].ended[call] - scene.rank[rank].began[call] < 20);
                if (rule == LOCAL_KEYS && status == RA_OK && call == backward)
                    continue;
                ck_assert(status == RA_LOST || (rank == culprit && call == backward));
                ck_assert_str_eq(scene.rank[rank].text[call], text);
            }
            ck_assert(rule == LOCAL_KEYS || !scene.rank[rank].wrote_on);
        }
        problem_clear(&p);
    }
}

/* Does the text say that a rank other than this one waited at a hop for a neighbour? */
static bool waited_for_neighbour(const char *text, int ranks, int absent)
{
    int who, hop, peer;
    char verb[8];
    if (sscanf(text, "ring rank %d, hop %d: waited 0.5 s for rank %d to %7s", &who, &hop, &peer,
               verb) != 4)
        return false;
    int from = strcmp(verb, "send") == 0 ? who - 1 : who + 1;
    return who != absent && hop >= 0 && hop < ranks && peer == (from + ranks) % ranks;
}

/* One rank does not come: all others give up in time, with the text of the first that has waited
 * too long. That waited for the absent rank, or for one that waited for it. */
TESTS(one_rank_is_absent, 0, 3)
{
    struct problem p = {.config = problem_shape(1, 12, 12, 1, 1, 4), .ranks = 3};
    prepare(&p);
    bool backward = _i % 2;
    struct scene scene = {.p = &p, .culprit = _i, .absent = true, .backward = backward};
    play_scene(&scene, THREAD_LATE);
    double first =
        fmin(scene.rank[_i == 0].began[backward], scene.rank[_i == 2 ? 1 : 2].began[backward]);
    for (int rank = 0; rank < 3; rank++) {
        ck_assert_int_eq(scene.rank[rank].status[2], RA_LOST);
        if (rank == _i)
            continue;
        const char *text = scene.rank[rank].text[backward];
        ck_assert_int_eq(scene.rank[rank].status[backward], RA_LOST);
        ck_assert_msg(waited_for_neighbour(text, 3, _i), "%s", text);
        ck_assert_str_eq(text, scene.rank[_i == 0].text[backward]);
        /* The others hear of it from the first, sooner after their own beginning. */
        double took = scene.rank[rank].ended[backward] - first;
        ck_assert_msg(took > 0.4 && took < 20, "%g s", took);

        /* The next call does not even begin. */
        ck_assert_str_eq(scene.rank[rank].text[2], text);
        ck_assert(!scene.rank[rank].wrote_on);
    }
    problem_clear(&p);
}

/* ---- Plans that are cancelled. ---- */

/* By whom: another thread, or a handler in the thread that makes the call. */
enum canceller { BY_THREAD, BY_HANDLER };

/* A call that another thread cancels after a while. */
struct cancelling {
    enum canceller by;
    struct ra_plan *plan;
    pthread_t caller;
    double after; /* the process has computed for so many seconds; a call that waits does not */
    double at, computed; /* when it happened, and what had been computed by then */
};

static struct ra_plan *to_cancel; /* by the handler */

static void cancel_in_handler(int signal)
{
    (void)signal;
    ra_plan_cancel(to_cancel);
}

static double seconds_computed(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void *cancel_after_a_while(void *context)
{
    struct cancelling *c = context;
    do
        nanosleep(&(struct timespec){0, 20000000}, NULL);
    while (seconds_computed() < c->after);
    c->at = ra_seconds();
    c->computed = seconds_computed();
    if (c->by == BY_THREAD)
        ra_plan_cancel(c->plan);
    else
        pthread_kill(c->caller, SIGUSR1);
    return NULL;
}

/* Makes a call of this plan while another thread cancels it, at once or after 0.1 s of computing.
 * Returns the seconds from then to the end of the call, and in `computed` those of the
 * processors. */
static double call_cancelled(struct ra_plan *plan, const struct ra_arrays *arrays, bool backward,
                             enum canceller by, bool computes, double *computed,
                             enum ra_status *status)
{
    struct cancelling c = {.by = by, plan, pthread_self(), computes ? seconds_computed() + 0.1 : 0};
    pthread_t thread;
    if (by == BY_HANDLER) {
        to_cancel = plan;
        sigaction(SIGUSR1, &(struct sigaction){.sa_handler = cancel_in_handler}, NULL);
    }
    pthread_create(&thread, NULL, cancel_after_a_while, &c);
    *status = (backward ? ra_backward : ra_forward)(plan, arrays);
    double ended = ra_seconds(), computed_until = seconds_computed();
    pthread_join(thread, NULL);
    *computed = computed_until - c.computed;
    return ended - c.at;
}

/* A plan of N rows, whose arrays are all in `numbers`, and zero. */
static struct ra_plan *plan_of_zeros(struct ra_config config, int64_t N, float **numbers,
                                     struct ra_arrays *arrays)
{
    config.queries = config.keys = N;
    struct ra_tensor *tensors[] = {&arrays->q,     &arrays->k,  &arrays->v,  &arrays->o,
                                   &arrays->d_out, &arrays->dq, &arrays->dk, &arrays->dv};
    enum { TENSORS = sizeof tensors / sizeof *tensors };
    int64_t each = N * config.dim;
    *numbers = calloc((size_t)(TENSORS * each + N), sizeof **numbers);
    *arrays = (struct ra_arrays)RA_ARRAYS_INIT;
    for (int t = 0; t < TENSORS; t++)
        *tensors[t] = ra_tensor_bnhd(*numbers + t * each, config.type, N, 1, config.dim);
    arrays->lse = ra_tensor_bhn(*numbers + TENSORS * each, N, 1);
    return plan_for(&config);
}

/* It computes, on vectors or not, in one thread or three: a call that takes two seconds of the
 * processors, and ends after a third of these at most: each thread goes on to the end of its block
 * of rows, which takes a tenth of a second under a sanitizer. The processors' time is counted, and
 * not that of a clock, since the machine may be busy. */
TESTS(cancelled_while_computing, 0, 32)
{
    bool handled = _i / 16, backward = _i % 2, plain = _i / 2 % 2;
    struct ra_config config = problem_shape(1, 1, 1, 1, 1, 8);
    config.tile = plain ? RA_PLAIN_TILE : RA_VECTOR_TILE;
    config.type = _i / 4 % 2 ? RA_BFLOAT16 : RA_FLOAT32;
    config.threads = _i / 8 % 2 ? 3 : 1;

    /* How many rows take two seconds? Twice as many take four times as long. */
    struct ra_arrays x;
    float *numbers;
    int64_t N = 256;
    double took = 0;
    while (took < 0.02) {
        N *= 2;
        struct ra_plan *plan = plan_of_zeros(config, N, &numbers, &x);
        double began = seconds_computed();
        ck_assert_int_eq((backward ? ra_backward : ra_forward)(plan, &x), RA_OK);
        took = seconds_computed() - began;
        ra_plan_destroy(plan);
        free(numbers);
    }
    N = (int64_t)((double)N * sqrt(2 / took));
    struct ra_plan *plan = plan_of_zeros(config, N, &numbers, &x);
    enum ra_status status;
    double computed;
    call_cancelled(plan, &x, backward, handled ? BY_HANDLER : BY_THREAD, true, &computed, &status);
    ck_assert_int_eq(status, RA_CANCELLED);
    ck_assert_msg(computed < 0.6, "computes for another %g s", computed);
    ck_assert_str_eq(ra_plan_error(plan), "ring rank 0: cancelled by ra_plan_cancel");

    /* It is at its end, but answers. */
    ck_assert_int_eq(ra_backward(plan, &x), RA_CANCELLED);
    ck_assert_int_eq(ra_wait(plan), RA_CANCELLED);
    ck_assert_int_eq(ra_plan_rows(plan, RA_QUERY_SIDE), N);
    ra_plan_destroy(plan);
    free(numbers);
}

/* Nothing is under way: the next call does nothing. */
TEST(cancelled_before)
{
    struct problem p = {.config = problem_shape(1, 12, 12, 1, 1, 4)};
    prepare(&p);
    struct ra_plan *plan = plan_for(&p.config);
    struct shard x;
    shard_make(&p, &x, ROWS_FIRST, plan);
    ra_plan_cancel(NULL);
    ck_assert_int_eq(ra_forward(plan, &x.arrays), RA_OK);
    ck_assert_int_eq(ra_wait(plan), RA_OK);
    memset(x.blocks[O].data, 0xAB, (size_t)x.blocks[O].bytes);
    ra_plan_cancel(plan);
    ck_assert_int_eq(ra_forward(plan, &x.arrays), RA_CANCELLED);
    for (int64_t i = 0; i < x.blocks[O].bytes; i++)
        ck_assert_int_eq(x.blocks[O].data[i], 0xAB);
    shard_clear(&x);
    ra_plan_destroy(plan);
    problem_clear(&p);
}

/* A ring of three in which rank 2 does not come and rank 1, which waits, is cancelled. */
struct waiting {
    const struct problem *p;
    struct thread_ring *ring;
    bool backward;
    enum canceller by;
    pthread_barrier_t barrier;
    struct {
        enum ra_status status, later;
        char text[RA_ERROR_SIZE];
        double seconds; /* rank 1: since it was cancelled. Others: of the call */
    } rank[3];
};

static void wait_and_be_cancelled(void *context, int rank)
{
    struct waiting *w = context;
    char trouble[TEXT];
    struct ra_plan *plan = run_plan(&w->p->config, w->ring, rank, trouble);
    struct shard x;
    shard_make(w->p, &x, ROWS_FIRST, plan);
    if (w->backward)
        w->rank[rank].status = ra_forward(plan, &x.arrays);
    pthread_barrier_wait(&w->barrier);
    double began = ra_seconds(), computed;
    if (rank == 1)
        w->rank[1].seconds = call_cancelled(plan, &x.arrays, w->backward, w->by, false, &computed,
                                            &w->rank[1].status);
    else if (rank == 0)
        w->rank[0].status = (w->backward ? ra_backward : ra_forward)(plan, &x.arrays);
    if (rank != 1)
        w->rank[rank].seconds = ra_seconds() - began;
    pthread_barrier_wait(&w->barrier);
    w->rank[rank].later = ra_forward(plan, &x.arrays);
    snprintf(w->rank[rank].text, RA_ERROR_SIZE, "%s", ra_plan_error(plan));
    pthread_barrier_wait(&w->barrier);
    shard_clear(&x);
    ra_plan_destroy(plan);
}

/* All of them hear of it at once, and not after the timeout of 600 seconds. */
TESTS(cancelled_while_waiting, 0, 4)
{
    struct problem p = {.config = problem_shape(1, 12, 12, 1, 1, 4), .ranks = 3};
    prepare(&p);
    struct waiting w = {.p = &p, .backward = _i % 2, .by = _i / 2 ? BY_HANDLER : BY_THREAD};
    w.ring = thread_ring_open(3, 600, THREAD_LATE);
    pthread_barrier_init(&w.barrier, NULL, 3);
    thread_ring_run(3, wait_and_be_cancelled, &w);
    pthread_barrier_destroy(&w.barrier);
    ck_assert_int_eq(thread_ring_closed(w.ring), 3);
    thread_ring_close(w.ring);
    ck_assert_int_eq(w.rank[1].status, RA_CANCELLED);
    ck_assert_msg(w.rank[1].seconds < 60, "%g s", w.rank[1].seconds);
    ck_assert_int_eq(w.rank[0].status, RA_LOST);
    ck_assert_msg(w.rank[0].seconds < 60, "%g s", w.rank[0].seconds);
    for (int rank = 0; rank < 3; rank++) {
        ck_assert_int_eq(w.rank[rank].later, rank == 1 ? RA_CANCELLED : RA_LOST);
        ck_assert_str_eq(w.rank[rank].text, "ring rank 1: cancelled by ra_plan_cancel");
    }
    problem_clear(&p);
}

/* Rank 0 cancels its plan after hop 0, over a link that has no `cancel`: its shares of the
 * gradients of later keys are not computed: it sends none of them on, and nobody may take them for
 * complete. */
struct cut_short {
    const struct problem *p;
    struct ra_link links[3];
    struct ra_plan *plan; /* rank 0's */
    bool backward, sent_on;
    enum ra_status status[3];
    char text[3][RA_ERROR_SIZE];
};
static struct cut_short *cut_short;

/* Whether the others hear of the end before they are done is a matter of time; what rank 0 sends is
 * not. */
static bool send_and_note(void *link, enum ra_message message, int hop, int distance,
                          const void *from, int64_t bytes)
{
    if (hop > 0 && (message == RA_GRADIENTS || message == RA_GRADIENTS_RETURN))
        cut_short->sent_on = true;
    return cut_short->links[0].send(link, message, hop, distance, from, bytes);
}

static void cancel_after_hop_0(void *context, const struct ra_event *event)
{
    struct cut_short *c = context;
    if (event->kind == RA_EVENT_WORK && event->backward == c->backward)
        ra_plan_cancel(c->plan);
}

static void be_cut_short(void *context, int rank)
{
    struct cut_short *c = context;
    struct ra_config config = c->p->config;
    struct ra_link link = c->links[rank];
    struct ra_plan *plan;
    link.cancel = NULL;
    if (rank == 0) {
        config.observe = cancel_after_hop_0;
        config.observer = c;
        link.send = send_and_note;
    }
    c->status[rank] = ra_plan_create(&plan, &config, &link, c->text[rank]);
    if (c->status[rank] != RA_OK)
        return;
    if (rank == 0)
        c->plan = plan;
    struct shard x;
    shard_make(c->p, &x, ROWS_FIRST, plan);
    c->status[rank] = ra_forward(plan, &x.arrays);
    if (c->status[rank] == RA_OK && c->backward)
        c->status[rank] = ra_backward(plan, &x.arrays);
    snprintf(c->text[rank], RA_ERROR_SIZE, "%s", ra_plan_error(plan));
    shard_clear(&x);
    ra_plan_destroy(plan);
}

TESTS(cancelled_without_the_link, 0, 2)
{
    struct problem p = {.config = problem_shape(1, 12, 12, 1, 1, 4), .ranks = 3};
    prepare(&p);
    struct cut_short c = {.p = &p, .backward = _i};
    cut_short = &c;
    ck_assert_int_eq(ra_thread_links(c.links, 3, NULL), RA_OK);
    thread_ring_run(3, be_cut_short, &c);
    ck_assert(!c.sent_on);
    for (int rank = 0; rank < 3; rank++) {
        /* A forward may have got all keys of rank 0 before it heard of it. */
        if (rank > 0 && !c.backward && c.status[rank] == RA_OK)
            continue;
        ck_assert_int_eq(c.status[rank], rank == 0 ? RA_CANCELLED : RA_LOST);
        ck_assert_str_eq(c.text[rank], "ring rank 0: cancelled by ra_plan_cancel");
    }
    problem_clear(&p);
}

/* ---- Memory. ---- */

/* It counts what it takes, and keeps nothing. Without any one of its blocks there is no plan. */
static void memory_alone(const struct ra_config *config)
{
    struct ra_plan *plan;
    watch_memory();
    enum ra_status status = ra_plan_create(&plan, config, NULL, NULL);
    int64_t calls = memory.calls, bytes = ra_plan_bytes(plan);
    int64_t held = memory.held, held_bytes = memory.held_bytes;
    ra_plan_destroy(plan);
    stop_watching();
    ck_assert_int_eq(status, RA_OK);
    ck_assert_int_eq(calls, 2);
    ck_assert_int_eq(held, calls);
    ck_assert_int_eq(held_bytes, bytes);
    ck_assert_int_eq(memory.calls, calls);
    ck_assert_int_eq(memory.held, 0);
    for (int64_t refuse = 1; refuse <= calls; refuse++) {
        char error[RA_ERROR_SIZE], wanted[32];
        watch_memory();
        memory.refuse = refuse;
        plan = (struct ra_plan *)(void *)&plan;
        status = ra_plan_create(&plan, config, NULL, error);
        stop_watching();
        ck_assert_int_eq(status, RA_OUT_OF_MEMORY);
        ck_assert_ptr_null(plan);
        ck_assert_int_eq(memory.held, 0);
        snprintf(wanted, sizeof wanted, "%" PRId64 " bytes", bytes);
        ck_assert_msg(refuse == 1 || strstr(error, wanted), "%s; not %s", error, wanted);
        ck_assert_ptr_nonnull(strstr(error, "memory"));
    }
}

/* The same over a link, whose memory counts, too. While the ranks compare their configs they need a
 * third block. */
static void memory_of_ring(const struct ra_config *config, int ranks)
{
    enum { LINK = 1000 };
    struct makers makers = makers_of(config, ranks);
    for (int rank = 0; rank < ranks; rank++)
        makers.rank[rank].more_bytes = LINK;
    make_all(&makers, 60);
    for (int rank = 0; rank < ranks; rank++) {
        const struct making *mine = &makers.rank[rank];
        ck_assert_msg(mine->status == RA_OK, "%s", mine->text);
        ck_assert_int_eq(mine->calls, ranks > 1 ? 3 : 2);
        ck_assert_int_eq(mine->held, 2);
        ck_assert_int_eq(mine->held_bytes + LINK, ra_plan_bytes(mine->plan));
    }
    unmake_all(&makers);
}

CASE(memory, 120);

TEST(memory_of_a_plan)
{
    uint64_t state = 9;
    for (int i = 0; i < 60; i++) {
        struct problem p =
            problem_random(&state, random_below(&state, 40), random_below(&state, 40));
        p.config.has_mask = p.masking != NO_MASK;
        p.config.local_keys = i % 7 == 0;
        if (i % 4 == 0)
            memory_alone(&p.config);
        else
            memory_of_ring(&p.config, i % 4);
    }
}

TEST(memory_of_large_plans)
{
    /* A plan to look at takes little, whatever it says of the real one's. */
    struct ra_config large = problem_shape(8, 1 << 20, RA_SAME, 64, 8, 128);
    large.ring_size = 64;
    watch_memory();
    struct ra_plan *plan = plan_for(&large);
    stop_watching();
    ck_assert_int_lt(memory.bytes, 1 << 16);
    ck_assert_int_gt(ra_plan_bytes(plan), (int64_t)1 << 30);
    ra_plan_destroy(plan);

    /* Nor does one whose tiles might be larger than the whole. */
    struct ra_config tiles = problem_shape(1, 8, 8, 1, 1, 8);
    tiles.tile_queries = tiles.tile_keys = (int64_t)1 << 24;
    plan = plan_for(&tiles);
    ck_assert_int_lt(ra_plan_bytes(plan), 1 << 18);
    ra_plan_destroy(plan);

    /* Too large for any machine. */
    char error[RA_ERROR_SIZE];
    large = problem_shape(1, 1, (int64_t)1 << 44, 1, 1, 16);
    large.type = RA_FLOAT16;
    watch_memory();
    memory.most = 1 << 30;
    enum ra_status status = ra_plan_create(&plan, &large, NULL, error);
    stop_watching();
    ck_assert_int_eq(status, RA_OUT_OF_MEMORY);
    ck_assert_int_eq(memory.held, 0);
}

/* dk and dv of float32 that do not travel are added up in the caller's arrays, whatever their
 * strides: the bits are those of a plan that has them, too, and is larger by just that. */
TESTS(gradients_in_place, 0, 3)
{
    struct ra_backend apart = ra_host;
    apart.adds_in_place = false;
    uint64_t state = 23 + (uint64_t)_i;
    for (int i = 0; i < 20; i++) {
        struct problem p =
            problem_random(&state, random_below(&state, 90), random_below(&state, 90));
        enum order order = problem_random_order(&state, &p);
        p.config.type = i % 8 == 7 ? RA_BFLOAT16 : RA_FLOAT32;
        p.config.forward_only = false;
        p.config.threads = 1 + i % 3;
        p.config.tile_queries = p.config.tile_keys = 1 + random_below(&state, 40);
        p.config.tile = i % 4 ? RA_VECTOR_TILE : RA_PLAIN_TILE;
        p.config.local_keys = _i > 1;
        p.ranks = _i;
        prepare(&p);
        struct run own = run_as(&p, order, THREAD_LATE);
        run_judge(&p, &own);
        p.config.ring_size = _i;
        struct ra_plan *in_place = plan_for(&p.config);
        p.config.device = &apart;
        struct ra_plan *larger = plan_for(&p.config);
        struct run copied = run_as(&p, order, THREAD_LATE);
        run_same_bits(&own, &copied);
        clear_run(&own);
        clear_run(&copied);

        int64_t width = p.truth.D + truth_width(&p.truth, V);
        int64_t saved = p.truth.B * ra_plan_rows(larger, RA_KEY_SIDE) * p.truth.G * width;
        saved = p.config.type == RA_FLOAT32 ? (4 * saved + 63) / 64 * 64 : 0;
        saved = ra_plan_workspace_bytes(larger) - ra_plan_workspace_bytes(in_place) - saved;
        ck_assert_int_eq(saved, 0);
        ra_plan_destroy(in_place);
        ra_plan_destroy(larger);
        problem_clear(&p);
    }
}

/* Plans that take turns with one block, and with a caller who writes to all of it, compute what
 * plans with memory of their own do; and hold little themselves. */
TESTS(workspace_of_two, 0, 2)
{
    struct problem p[] = {{.config = problem_shape(2, 130, 97, 4, 2, 33), .seed = 1},
                          {.config = problem_shape(1, 70, 150, 2, 2, 8), .masking = RANDOM_MASK}};
    struct ra_plan *plans[2];
    struct shard x[2];
    int64_t bytes[2], most;
    p[0].config.causal = true;
    p[1].config.type = RA_FLOAT16;
    for (int i = 0; i < 2; i++) {
        p[i].config.threads = 1 + _i;
        p[i].config.caller_workspace = true;
        prepare(&p[i]);
        plans[i] = plan_for(&p[i].config);
        shard_make(&p[i], &x[i], GAPS, plans[i]);
        bytes[i] = ra_plan_workspace_bytes(plans[i]);
        ck_assert_int_lt(ra_plan_bytes(plans[i]), 4096);
        char text[4096], words[64];
        snprintf(words, sizeof words, "%" PRId64 " of the caller's workspace\n", bytes[i]);
        ra_plan_describe(plans[i], 0, text, sizeof text);
        ck_assert_ptr_nonnull(strstr(text, words));
    }
    most = bytes[0] > bytes[1] ? bytes[0] : bytes[1];
    void *block = __real_aligned_alloc(64, (size_t)most);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(ra_plan_set_workspace(plans[i], block, most), RA_OK);
    for (int call = 0; call < 4; call++) {
        int i = call % 3 > 0; /* forward of 0 and 1, backward of 1 and 0 */
        if (call % 2 == 0)
            memset(block, 0xFF, (size_t)most);
        ck_assert_int_eq((call < 2 ? ra_forward : ra_backward)(plans[i], &x[i].arrays), RA_OK);
    }
    for (int i = 0; i < 2; i++) {
        struct run lent = run_of(&p[i], &x[i]);
        p[i].config.caller_workspace = false;
        struct run own = run_as(&p[i], GAPS, THREAD_LATE);
        run_same_bits(&lent, &own);
        run_judge(&p[i], &lent);
        clear_run(&lent);
        clear_run(&own);
        shard_clear(&x[i]);
        problem_clear(&p[i]);
        ra_plan_destroy(plans[i]);
    }
    free(block);
}

/* Two plans that would compute in one block at the same time. */
struct lending {
    struct ra_plan *second;
    const struct ra_arrays *arrays;
    int refused, seen;
};

static void call_second(void *context, const struct ra_event *event)
{
    struct lending *lending = context;
    (void)event;
    lending->seen++;
    lending->refused += ra_forward(lending->second, lending->arrays) == RA_INVALID &&
                        strstr(ra_plan_error(lending->second), "in use") != NULL;
}

/* While a call computes in a block, that of another plan is refused and writes nothing; afterwards
 * it is not. */
TEST(workspace_in_use)
{
    struct problem p = {.config = problem_shape(1, 20, 20, 2, 1, 4)};
    prepare(&p);
    p.config.caller_workspace = true;
    struct lending lending = {.second = plan_for(&p.config)};
    p.config.observe = call_second;
    p.config.observer = &lending;
    struct ra_plan *first = plan_for(&p.config);
    struct shard x, y;
    shard_make(&p, &x, ROWS_FIRST, first);
    shard_make(&p, &y, ROWS_FIRST, lending.second);
    lending.arrays = &y.arrays;
    int64_t bytes = ra_plan_workspace_bytes(first);
    void *block = __real_aligned_alloc(64, (size_t)bytes);
    ck_assert_int_eq(ra_plan_set_workspace(first, block, bytes), RA_OK);
    ck_assert_int_eq(ra_plan_set_workspace(lending.second, block, bytes), RA_OK);
    ck_assert_int_eq(ra_forward(first, &x.arrays), RA_OK);
    ck_assert_int_eq(ra_backward(first, &x.arrays), RA_OK);
    ck_assert(lending.seen > 0 && lending.refused == lending.seen);
    ck_assert(memcmp(y.blocks[O].data, y.blocks[O].before, (size_t)y.blocks[O].bytes) == 0);
    ck_assert_int_eq(ra_forward(lending.second, &y.arrays), RA_OK);
    ck_assert_int_eq(ra_backward(lending.second, &y.arrays), RA_OK);
    struct run one = run_of(&p, &x), two = run_of(&p, &y);
    run_judge(&p, &one);
    run_same_bits(&one, &two);
    clear_run(&one);
    clear_run(&two);
    ra_plan_destroy(first);
    ra_plan_destroy(lending.second);
    shard_clear(&x);
    shard_clear(&y);
    problem_clear(&p);
    free(block);
}

/* What is no workspace for a plan changes nothing. */
TEST(wrong_workspaces)
{
    struct problem p = {.config = problem_shape(1, 9, 9, 2, 1, 4)};
    prepare(&p);
    struct ra_plan *own = plan_for(&p.config);
    p.config.caller_workspace = true;
    struct ra_plan *plan = plan_for(&p.config);
    int64_t bytes = ra_plan_workspace_bytes(plan);
    char *block = __real_aligned_alloc(64, (size_t)bytes + 64), words[64];
    struct shard x;
    shard_make(&p, &x, ROWS_FIRST, plan);
#define REFUSES(plan, call, words)                                                    \
    do {                                                                              \
        ck_assert_int_eq(call, RA_INVALID);                                           \
        ck_assert_msg(strstr(ra_plan_error(plan), words), "%s", ra_plan_error(plan)); \
    } while (0)
    snprintf(words, sizeof words, "%" PRId64 " bytes", bytes);
    REFUSES(plan, ra_forward(plan, &x.arrays), words);
    REFUSES(plan, ra_forward(plan, &x.arrays), "no workspace");
    snprintf(words, sizeof words, "a workspace of %" PRId64, bytes);
    REFUSES(plan, ra_plan_set_workspace(plan, block, bytes - 1), words);
    REFUSES(plan, ra_plan_set_workspace(plan, block + 32, bytes), "64 divides");
    REFUSES(plan, ra_forward(plan, &x.arrays), "no workspace");
    REFUSES(own, ra_plan_set_workspace(own, block, bytes), "config.caller_workspace = true");
    ck_assert_int_eq(ra_forward(own, &x.arrays), RA_OK);
    ck_assert_int_eq(ra_plan_set_workspace(NULL, block, bytes), RA_INVALID);
    ck_assert_int_eq(ra_plan_workspace_bytes(NULL), 0);

    /* What is good stays when something else is refused, until it is taken back. */
    ck_assert_int_eq(ra_plan_set_workspace(plan, block, bytes), RA_OK);
    REFUSES(plan, ra_plan_set_workspace(plan, block, 0), "bytes = 0");
    ck_assert_int_eq(ra_forward(plan, &x.arrays), RA_OK);
    struct ra_arrays inside = x.arrays;
    inside.q.data = block + bytes - 4;
    REFUSES(plan, ra_forward(plan, &inside), "arrays.q.data is in the workspace");
    ck_assert_int_eq(ra_plan_set_workspace(plan, NULL, 0), RA_OK);
    REFUSES(plan, ra_forward(plan, &x.arrays), "no workspace");

    p.config.ring_size = 2;
    struct ra_plan *look = plan_for(&p.config);
    ck_assert_int_gt(ra_plan_workspace_bytes(look), 0);
    REFUSES(look, ra_plan_set_workspace(look, block, 1 << 20), "look at");
    struct ra_backend elsewhere = ra_host;
    elsewhere.use_workspace = NULL;
    p.config.device = &elsewhere;
    refused(&p.config, "config.caller_workspace", "true", "its own memory");
#undef REFUSES
    ra_plan_destroy(look);
    ra_plan_destroy(plan);
    ra_plan_destroy(own);
    shard_clear(&x);
    problem_clear(&p);
    free(block);
}

/* Calls allocate nothing, however many there are. */
static void call_often(void *context, int rank)
{
    struct run *run = context;
    const struct problem *p = run->p;
    struct ra_plan *plan = run_plan(&p->config, run->ring, rank, run->trouble[rank]);
    struct shard x;
    shard_make(p, &x, ROWS_FIRST, plan);
    struct ra_arrays wrong = x.arrays;
    wrong.o.data = NULL;
    watch_memory();
    bool right = true;
    char text[256];
    struct rusage before, after;
    for (int i = 0; i < 1000 && right; i++) {
        right = ra_forward(plan, &x.arrays) == RA_OK && ra_backward(plan, &x.arrays) == RA_OK;
        if (i == 10)
            getrusage(RUSAGE_SELF, &before);
        if (i % 100 > 0)
            continue;
        struct ra_hop hop;
        right = right && ra_plan_hop(plan, 0, 0, true, &hop) == RA_OK &&
                ra_plan_describe(plan, 0, text, sizeof text) > 0 &&
                ra_shard(plan, RA_QUERY_SIDE, 0, 1, text, text) == RA_OK &&
                (run->ring || ra_forward(plan, &wrong) == RA_INVALID);
    }
    getrusage(RUSAGE_SELF, &after);
    stop_watching();
    if (!right || memory.calls > 0 || after.ru_maxrss - before.ru_maxrss > 4096)
        snprintf(run->trouble[rank], TEXT, "right %d, %d allocations, memory %d to %d KiB: %.200s",
                 right, (int)memory.calls, (int)before.ru_maxrss, (int)after.ru_maxrss,
                 ra_plan_error(plan));
    shard_clear(&x);
    ra_plan_destroy(plan);
}

TESTS(memory_of_calls, 0, 4)
{
    struct problem p = {
        .config = problem_shape(1, 9, 9, 2, 1, 4), .masking = RANDOM_MASK, .ranks = _i};
    p.config.type = _i ? RA_BFLOAT16 : RA_FLOAT32;
    prepare(&p);
    struct run run = {.p = &p, .ring = _i ? thread_ring_open(_i, 30, THREAD_LATE) : NULL};
    if (_i)
        thread_ring_run(_i, call_often, &run);
    else
        call_often(&run, 0);
    for (int rank = 0; rank < problem_ranks(&p); rank++)
        ck_assert_msg(run.trouble[rank][0] == 0, "rank %d: %s", rank, run.trouble[rank]);
    if (_i)
        thread_ring_close(run.ring);
    problem_clear(&p);
}

static bool stay_open(void *self)
{
    return self == NULL;
}

/* A link that may still write to the plan, or to its memory, keeps them. */
TEST(memory_in_use)
{
    struct ra_config config = problem_shape(1, 9, 9, 2, 1, 4);
    struct ra_link link = {.rank = 0, .size = 1, .self = &config, .close = stay_open};
    struct ra_plan *plan;
    watch_memory();
    enum ra_status status = ra_plan_create(&plan, &config, &link, NULL);
    stop_watching();
    ck_assert_int_eq(status, RA_OK);
    ck_assert_int_eq(memory.held, 2);
    ra_plan_destroy(plan);
    ck_assert_int_eq(memory.held, 2);
    for (int i = 0; i < COUNT(memory.live); i++)
        __real_free(memory.live[i].block);
}

/* ---- A loop of one's own. ---- */

/* All keys, forward or backward, in blocks that come from the last to the first, each with its own
 * band. */
static void fold_blocks(struct ra_fold *fold, const struct ra_queries *queries,
                        const struct ra_keys *keys, int64_t lookback)
{
    enum { BLOCK = 11 };
    struct ra_span query_span = {keys->rows - queries->rows, 1, queries->rows};
    (fold->tile == ra_tile_backward ? ra_tile_begin_backward : ra_tile_begin)(fold->dims, queries);
    for (int64_t first = (keys->rows - 1) / BLOCK * BLOCK; first >= 0; first -= BLOCK) {
        struct ra_keys block = ra_keys_block(keys, first, BLOCK);
        struct ra_span key_span = {first, 1, block.rows};
        ra_band_fold(fold, queries, &block, ra_band_causal(query_span, key_span, lookback));
    }
    if (fold->tile == ra_tile_forward)
        ra_tile_finish(fold->dims, queries);
}

CASE(others, 120);

/* The modules below the plan, as a caller would use them. */
TESTS(own_loop, 0, 2)
{
    struct problem p = {.config = problem_shape(2, 60, 70, 2, 1, 16)};
    p.config.causal = true;
    p.config.lookback = _i ? 25 : RA_NO_LOOKBACK;
    prepare(&p);
    enum { N = 60, M = 70, D = 16 };
    struct ra_plan *plan = plan_for(&p.config);
    struct shard x;
    shard_make(&p, &x, HEADS_FIRST, plan);
    struct ra_arrays *arrays = &x.arrays;
    float max[2 * 2 * N], delta[2 * 2 * N], comp[N * D];
    float *keys_comp = calloc(2 * 2 * M * D, sizeof *keys_comp);
    double sum[2 * 2 * N];
    float *workspace = calloc((size_t)ra_tile_workspace(16, 8, RA_DIMS(D)), sizeof *workspace);
    struct ra_fold fold = {.dims = RA_DIMS(D),
                           .tile = ra_tile_forward,
                           .score = {.scale = (float)p.truth.scale},
                           .tile_queries = 16,
                           .tile_keys = 8,
                           .workspace = workspace};
    memset(arrays->dk.data, 0, sizeof(float[2 * M * D]));
    memset(arrays->dv.data, 0, sizeof(float[2 * M * D]));
    for (int64_t head = 0; head < 2 * 2; head++) {
        int64_t mine = head * N, theirs = head / 2 * M * D;
        struct ra_queries queries = {.rows = N,
                                     .stride = {D, D, D, D, D},
                                     .q = (float *)arrays->q.data + mine * D,
                                     .o = (float *)arrays->o.data + mine * D,
                                     .max = max + mine,
                                     .sum = sum + mine,
                                     .comp = comp,
                                     .lse = (float *)arrays->lse.data + mine,
                                     .d_out = (float *)arrays->d_out.data + mine * D,
                                     .delta = delta + mine,
                                     .dq = (float *)arrays->dq.data + mine * D};
        struct ra_keys keys = {.rows = M,
                               .stride = {D, D, D, D, D, D},
                               .k = (float *)arrays->k.data + theirs,
                               .v = (float *)arrays->v.data + theirs,
                               .dk = (float *)arrays->dk.data + theirs,
                               .dv = (float *)arrays->dv.data + theirs,
                               .dk_comp = keys_comp + theirs,
                               .dv_comp = keys_comp + 2 * M * D + theirs};
        for (int backward = 0; backward < 2; backward++) {
            fold.tile = backward ? ra_tile_backward : ra_tile_forward;
            fold_blocks(&fold, &queries, &keys, _i ? p.config.lookback : RA_BAND_FAR);
        }
    }
    struct run own = run_of(&p, &x), planned = run_as(&p, ROWS_FIRST, THREAD_LATE);
    run_judge(&p, &own);
    run_judge(&p, &planned);
    ra_plan_destroy(plan);
    clear_run(&own);
    clear_run(&planned);
    shard_clear(&x);
    problem_clear(&p);
    free(keys_comp);
    free(workspace);
}

/* ---- The observer. ---- */

enum { MOST_EVENTS = 256 };

/* What the observer of one rank has seen. */
struct log {
    const struct problem *p;
    struct thread_ring *ring;
    int count[MOST_RANKS];
    struct ra_event events[MOST_RANKS][MOST_EVENTS];
    double calls[MOST_RANKS][3]; /* before the forward, between, after the backward */
};

struct observer {
    struct log *log;
    int rank;
};

static void observe(void *context, const struct ra_event *event)
{
    struct observer *observer = context;
    int *count = &observer->log->count[observer->rank];
    if (*count < MOST_EVENTS)
        observer->log->events[observer->rank][(*count)++] = *event;
}

static void observe_rank(void *context, int rank)
{
    struct log *log = context;
    struct observer observer = {log, rank};
    struct ra_config config = log->p->config;
    config.observe = observe;
    config.observer = &observer;
    char trouble[TEXT];
    struct ra_plan *plan = run_plan(&config, log->ring, rank, trouble);
    struct shard x;
    shard_make(log->p, &x, ROWS_FIRST, plan);
    log->calls[rank][0] = ra_seconds();
    if (ra_forward(plan, &x.arrays) != RA_OK)
        log->count[rank] = -1;
    log->calls[rank][1] = ra_seconds();
    if (ra_backward(plan, &x.arrays) != RA_OK)
        log->count[rank] = -1;
    log->calls[rank][2] = ra_seconds();
    shard_clear(&x);
    ra_plan_destroy(plan);
}

/* What one rank computes and what it waits for follow one another within the call, in the order of
 * the hops; messages arrive when they should. */
TESTS(observers, 0, 3)
{
    struct problem p = {.config = problem_shape(1, 40, 40, 1, 1, 8), .ranks = 4};
    p.config.causal = _i > 0;
    p.config.lookback = _i == 0 ? RA_NO_LOOKBACK : _i == 1 ? 12 : 2;
    p.config.layout = _i == 2 ? RA_ZIGZAG : RA_CONTIGUOUS; /* has a hop from 1 to 3 */
    prepare(&p);
    static struct log log;
    log = (struct log){.p = &p, .ring = thread_ring_open(4, 30, THREAD_LATE)};
    thread_ring_run(4, observe_rank, &log);
    thread_ring_close(log.ring);
    int distances[MOST_RANKS], last[MOST_RANKS], hops = want_schedule(&p, distances, last);
    for (int rank = 0; rank < 4; rank++)
        for (int backward = 0; backward < 2; backward++) {
            double now = log.calls[rank][backward], end = log.calls[rank][backward + 1];
            int steps = 0, keys = 0, gradients = 0, want_keys = 0, came_home = last[rank] > 0;
            for (int e = 0; e < log.count[rank]; e++) {
                struct ra_event event = log.events[rank][e];
                if (event.backward != backward)
                    continue;
                ck_assert(log.calls[rank][backward] <= event.start && event.start <= event.end &&
                          event.end <= end);
                bool is_message = event.kind >= RA_EVENT_KEYS;
                keys += event.kind == RA_EVENT_KEYS;
                gradients += event.kind == RA_EVENT_GRADIENTS;
                if (is_message)
                    continue;
                ck_assert(event.start >= now);
                now = event.end;
                if (event.kind == RA_EVENT_WORK) {
                    ck_assert_int_lt(steps, hops);
                    ck_assert_int_eq(event.hop, distances[steps++]);
                }
            }
            for (int step = 1; step < hops; step++)
                want_keys += distances[step] <= last[(rank - distances[step] + 4) % 4];
            ck_assert_int_eq(steps, hops);
            ck_assert_int_eq(keys, want_keys);
            ck_assert_int_eq(gradients, backward ? want_keys + came_home : 0);
        }
    problem_clear(&p);
}

/* A call within a call. */
struct nested {
    struct ra_plan *plan;
    const struct ra_arrays *arrays;
    int refused, seen;
};

static void *call_again(void *context)
{
    struct nested *nested = context;
    nested->seen++;
    nested->refused += ra_forward(nested->plan, nested->arrays) == RA_INVALID &&
                       ra_backward(nested->plan, nested->arrays) == RA_INVALID &&
                       strstr(ra_plan_error(nested->plan), "not over") != NULL;
    return NULL;
}

/* The same from this thread and from another. */
static void call_again_twice(void *context, const struct ra_event *event)
{
    pthread_t thread;
    (void)event;
    call_again(context);
    ck_assert_int_eq(pthread_create(&thread, NULL, call_again, context), 0);
    pthread_join(thread, NULL);
}

/* While a call is under way neither begins, from whichever thread, and that one goes on to its
 * right end. */
TEST(calls_within_calls)
{
    struct problem p = {.config = problem_shape(1, 20, 20, 2, 1, 4)};
    prepare(&p);
    struct nested nested = {0};
    p.config.observe = call_again_twice;
    p.config.observer = &nested;
    struct ra_plan *plan = nested.plan = plan_for(&p.config);
    struct shard x;
    shard_make(&p, &x, ROWS_FIRST, plan);
    nested.arrays = &x.arrays;
    ck_assert_int_eq(ra_forward(plan, &x.arrays), RA_OK);
    ck_assert_int_eq(ra_backward(plan, &x.arrays), RA_OK);
    ck_assert(nested.seen > 0 && nested.refused == nested.seen);
    struct run run = run_of(&p, &x);
    run_judge(&p, &run);
    clear_run(&run);
    ra_plan_destroy(plan);
    shard_clear(&x);
    problem_clear(&p);
}

/* ---- Numbers that are none. ---- */

/* What one number of an input that is none, or too large, does to an output. What does not depend
 * on it by a pair of rows that see each other keeps its bits. What does is not finite if the number
 * is not; if that is only large, it is not finite or right. */
static void judge_value(const struct problem *p, enum truth_array input, int64_t row, float value,
                        const struct run *clean, const struct run *run)
{
    bool of_keys = truth_is_of_keys(input), scores = input == Q || input == K;
    bool hit[18] = {false}, seen[18] = {false};
    for (int i = 0; i < 18; i++)
        for (int j = 0; j < 18; j++)
            hit[i] = hit[i] || ((of_keys ? j : i) == row && truth_sees(&p->truth, i, j));
    for (int i = 0; i < 18; i++)
        for (int j = 0; j < 18; j++)
            seen[j] = seen[j] || (hit[i] && truth_sees(&p->truth, i, j));
    for (int t = O; t < ARRAYS; t++) {
        bool depends = t == O ? input != D_OUT : t == LSE ? scores : t != DV || input != V;
        bool by_column = !scores && (t == O || t == DV);
        for (int64_t e = 0; truth_is_output(t) && e < truth_count(&p->truth, t); e++) {
            int64_t width = truth_width(&p->truth, t), of = e / width / truth_heads(&p->truth, t);
            double got = run->got[t][e], before = clean->got[t][e], want = p->truth.x[t][e];
            double allowed = p->truth.allowed[t][e / width % truth_heads(&p->truth, t)];
            bool touched =
                depends && (truth_is_of_keys(t) ? seen : hit)[of] && (!by_column || e % width == 2);

            /* The number is of head 0: of queries it reaches those of that head only. */
            touched = touched && (of_keys || truth_is_of_keys(t) || e / width % 2 == 0);
            allowed = isfinite(allowed) ? allowed : t <= LSE ? 1e-3 * (1 + fabs(want)) : INFINITY;
            bool good = !touched          ? got == before
                        : isfinite(value) ? !isfinite(got) || fabs(got - want) <= allowed
                                          : !isfinite(got);
            ck_assert_msg(good, "%s row %d is %g, %s number %d: %g, before %g, right %g",
                          truth_names[input], (int)row, (double)value, truth_names[t], (int)e, got,
                          before, want);
        }
    }
}

CASE(values, 120);

/* NaN, infinity and numbers at the end of float32, in every input, in the first row and the last,
 * which are in other tiles and on other ranks. */
TESTS(not_a_number, 0, 4)
{
    static const enum truth_array inputs[] = {Q, K, V, D_OUT};
    static const float values[] = {NAN, INFINITY, -INFINITY, 3e38f, -3e38f, 1e20f};
    for (int n = 0; n < 3 * COUNT(inputs) * COUNT(values); n++) {
        struct problem p = {.config = problem_shape(1, 18, 18, 2, 1, 4), .ranks = _i};
        p.config.causal = true;
        p.config.lookback = 11;
        p.config.scale = 1;
        p.config.layout = n % 3;
        p.config.tile_queries = 3, p.config.tile_keys = 2;
        prepare(&p);
        struct run clean = run_as(&p, ROWS_FIRST, THREAD_LATE);
        enum truth_array input = inputs[n / 3 % COUNT(inputs)];
        float value = values[n / 3 / COUNT(inputs)];
        for (int64_t row = 0; row < 18; row += 17) {
            double *number = &problem_row(&p, input, 0, row, 0)[2], was = *number;
            *number = value;
            problem_solve(&p);
            struct run run = run_as(&p, ROWS_FIRST, THREAD_LATE);
            judge_value(&p, input, row, value, &clean, &run);
            clear_run(&run);
            *number = was;
        }
        clear_run(&clean);
        problem_clear(&p);
    }
}

int main(void)
{
    return suite_main("library", 120);
}
