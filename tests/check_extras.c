/* check_extras: slopes, sinks, the gradient of lse and the largest score in the library, against
 * the definition in float64: alone, and on the ranks of a ring that are threads.
 */
#include <stdlib.h>
#include <string.h>

#include "runs.h"
#include "suite.h"

/* Runs a problem that has been solved, and judges it. Outputs stay in `got`. */
static void run_dealt(struct extras *extras, enum order order, enum ra_deal deal,
                      double *got[ARRAYS])
{
    struct run run = {
        .p = extras->p, .order = order, .delivery = THREAD_LATE, .extras = extras, .deal = deal};
    run_all(&run);
    run_judge(extras->p, &run);
    memcpy(got, run.got, sizeof run.got);
}

static void run_solved(struct extras *extras, enum order order, double *got[ARRAYS])
{
    run_dealt(extras, order, RA_DEAL_LAYOUT, got);
}

/* Makes, solves, runs, judges, clears. */
static void check_problem(struct problem p, int which, enum sinks sinks, enum order order)
{
    struct extras x;
    double *got[ARRAYS];
    problem_make(&p);
    extras_solve(&x, &p, which, sinks);
    run_solved(&x, order, got);
    outputs_clear(got);
    extras_clear(&x);
    problem_clear(&p);
}

static struct ra_config shape(int64_t B, int64_t N, int64_t M, int64_t H, int64_t G, int64_t D)
{
    struct ra_config config = problem_shape(B, N, M, H, G, D);
    config.threads = 1;
    return config;
}

static const int rings[] = {0, 1, 2, 3, 5, 8};

/* Any problem, in any ring, with any of them. */
TESTS(random_problems, 0, 6)
{
    static const int64_t lengths[] = {0, 1, 2, 7, 19, 40, 65};
    uint64_t state = (uint64_t)_i;
    for (int i = 0; i < 60; i++) {
        int64_t N = ONE_OF(&state, lengths),
                M = random_below(&state, 2) ? N : ONE_OF(&state, lengths);
        struct problem p = problem_random(&state, N, M);
        enum order order = problem_random_order(&state, &p);
        p.ranks = rings[_i];
        p.masking = random_below(&state, 8) ? p.masking : RANK_HIDDEN;
        p.nan_hidden = random_below(&state, 2) == 0;
        check_problem(p, i % 4 ? ALL_EXTRAS : (int)random_below(&state, 16),
                      (enum sinks)random_below(&state, SINK_KINDS), order);
    }
}

/* Under slices: documents, and a prefix, by layout and dealt by document. */
TESTS(slices, 0, 6)
{
    static const int64_t bounds[] = {0, 3, 4, 20, 21, 40}, whole[] = {0, 40}, lengths[] = {13};
    struct ra_slice documents[5], prefix[2];
    int64_t counts[] = {ra_slices_documents(bounds, 5, RA_BAND_FAR, 0, documents),
                        ra_slices_prefix(whole, 1, lengths, prefix)};
    for (int i = 0; i < 24; i++) {
        struct problem p = {.config = shape(2, 40, 40, 4, 2, 8),
                            .ranks = rings[_i],
                            .masking = i % 2 ? RANDOM_MASK : NO_MASK,
                            .seed = (unsigned)i};
        struct extras x;
        double *got[ARRAYS];
        p.config.layout = (enum ra_layout_kind)(i % 3);
        p.config.bucket = i % 3 == RA_STRIPED ? i % 5 : 0;
        p.config.tile = i / 12 ? RA_PLAIN_TILE : RA_VECTOR_TILE;
        p.config.max_slices = 5;
        p.config.max_rows = 40;
        problem_make(&p);
        p.truth.slices = i % 4 < 2 ? documents : prefix;
        p.truth.slice_count = counts[i % 4 / 2];
        extras_solve(&x, &p, ALL_EXTRAS, MIXED_SINKS);
        run_dealt(&x, ROWS_FIRST, i % 4 == 0 ? RA_DEAL_DOCUMENTS : RA_DEAL_LAYOUT, got);
        outputs_clear(got);
        extras_clear(&x);
        problem_clear(&p);
    }
}

/* Scores from 0.1 to 30 and around +-10^4, keys with a large common component. */
TESTS(sizes_of_scores, 0, 4)
{
    static const double sizes[] = {0.1, 1, 10, 30}, shifts[] = {0, 1e4, -1e4}, offsets[] = {0, 5};
    for (int s = 0; s < 4; s++)
        for (int f = 0; f < 3; f++)
            for (int o = 0; o < 2; o++) {
                struct problem p = {.config = shape(1, 40, 40, 3, 1, 16),
                                    .ranks = _i % 2 ? 3 : 0,
                                    .size = sizes[s],
                                    .shift = shifts[f],
                                    .offset = offsets[o],
                                    .seed = 5};
                p.config.tile = _i / 2 ? RA_PLAIN_TILE : RA_VECTOR_TILE;
                p.config.causal = o == 0;
                p.config.layout = RA_ZIGZAG;
                check_problem(p, ALL_EXTRAS, MIXED_SINKS, ROWS_FIRST);
            }
}

/* Rows that see no key end with o = 0 exactly and lse = sink. */
TESTS(rows_without_keys, 0, 2)
{
    for (int ranks = 0; ranks < 4; ranks++) {
        struct problem p = {.config = shape(2, 12, 12, 6, 2, 4),
                            .ranks = ranks,
                            .masking = BATCH_HIDDEN,
                            .nan_hidden = true,
                            .seed = 9};
        struct extras x;
        double *got[ARRAYS];
        p.config.causal = true;
        p.config.tile = _i ? RA_PLAIN_TILE : RA_VECTOR_TILE;
        problem_make(&p);
        extras_solve(&x, &p, ALL_EXTRAS, MIXED_SINKS);
        run_solved(&x, ROWS_FIRST, got);
        for (int64_t e = 0; e < 12 * 6; e++) {
            ck_assert_double_eq(got[LSE][e], x.sink[e % 6]);
            for (int c = 0; c < 4; c++)
                ck_assert(got[O][e * 4 + c] == 0 && got[DQ][e * 4 + c] == 0);
        }
        outputs_clear(got);
        extras_clear(&x);
        problem_clear(&p);
    }
}

/* A sink of -inf and a slope of 0 are none: the same bits. And any number of threads has the same
 * bits, in the numbers of heads too. */
TESTS(same_bits, 0, 2)
{
    struct problem p = {.config = shape(2, 300, 300, 4, 2, 4), .masking = RANDOM_MASK, .seed = 4};
    p.config.causal = true;
    p.config.tile = _i ? RA_PLAIN_TILE : RA_VECTOR_TILE;
    p.config.tile_queries = 16; /* a head has more rows than a thread takes at a time */
    struct extras x;
    double *got[3][ARRAYS], d_sink[4], largest[4];
    problem_make(&p);
    for (int way = 0; way < 2; way++) {
        extras_solve(&x, &p, way ? SLOPES | SINKS : 0, NO_SINKS);
        memset(x.slopes, 0, 4 * sizeof *x.slopes);
        truth_forward(&p.truth);
        truth_backward(&p.truth, NULL);
        run_solved(&x, ROWS_FIRST, got[way]);
        for (int h = 0; h < 4 && way == 1; h++)
            ck_assert(x.d_sink[h] == 0);
        extras_clear(&x);
    }
    for (int a = 0; a < ARRAYS; a++)
        if (truth_is_output(a))
            ck_assert_mem_eq(got[0][a], got[1][a], (size_t)truth_count(&p.truth, a) * 8);
    outputs_clear(got[1]);
    for (int threads = 1; threads < 4; threads++) {
        p.config.threads = threads;
        extras_solve(&x, &p, ALL_EXTRAS, USUAL_SINKS);
        run_solved(&x, ROWS_FIRST, got[threads == 1 ? 1 : 2]);
        if (threads == 1) {
            memcpy(d_sink, x.d_sink, sizeof d_sink);
            memcpy(largest, x.largest, sizeof largest);
        } else {
            ck_assert_mem_eq(d_sink, x.d_sink, sizeof d_sink);
            ck_assert_mem_eq(largest, x.largest, sizeof largest);
            for (int a = 0; a < ARRAYS; a++)
                if (truth_is_output(a))
                    ck_assert_mem_eq(got[1][a], got[2][a], (size_t)truth_count(&p.truth, a) * 8);
            outputs_clear(got[2]);
        }
        extras_clear(&x);
    }
    outputs_clear(got[0]);
    outputs_clear(got[1]);
    problem_clear(&p);
}

/* The sum of o * d_out and lse * d_lse. */
static double loss(struct truth *t)
{
    double sum = 0;
    truth_forward(t);
    for (int64_t e = 0; e < truth_count(t, O); e++)
        sum += t->x[O][e] * t->x[D_OUT][e];
    for (int64_t e = 0; e < truth_count(t, LSE); e++)
        sum += t->x[LSE][e] == -(double)INFINITY ? 0 : t->x[LSE][e] * t->d_lse[e];
    return sum;
}

/* How that changes with a number, from both sides. */
static double difference(struct truth *t, double *number)
{
    double kept = *number, up;
    *number = kept + 0x1p-12;
    up = loss(t);
    *number = kept - 0x1p-12;
    up = (up - loss(t)) / 0x1p-11;
    *number = kept;
    return up;
}

/* No derivation of a gradient enters here: gradients are what the loss does when a number moves. */
TESTS(differences, 0, 6)
{
    struct problem p = {.config = shape(2, 5, 6, 3, 1, 4),
                        .ranks = rings[_i],
                        .masking = RANDOM_MASK,
                        .seed = (unsigned)_i};
    struct extras x;
    double *got[ARRAYS];
    static const enum truth_array inputs[] = {Q, K, V}, outputs[] = {DQ, DK, DV};
    p.config.causal = _i % 2 == 0;
    p.config.softcap = _i % 3 ? 0 : 3;
    problem_make(&p);
    extras_solve(&x, &p, ALL_EXTRAS, USUAL_SINKS);
    run_solved(&x, ROWS_FIRST, got);
    for (int h = 0; h < 3; h++)
        ck_assert_double_eq_tol(x.d_sink[h], difference(&p.truth, &x.sink[h]), 2e-5);
    for (int a = 0; a < 3; a++)
        for (int64_t e = 0; e < truth_count(&p.truth, inputs[a]); e++)
            ck_assert_double_eq_tol(got[outputs[a]][e],
                                    difference(&p.truth, &p.truth.x[inputs[a]][e]), 2e-5);
    outputs_clear(got);
    extras_clear(&x);
    problem_clear(&p);
}

/* ---- What is refused, and what is no number. */

/* A plan of one process, its arrays and all extras. */
struct setting {
    struct problem p;
    struct extras x;
    struct ra_plan *plan;
    struct shard shard;
    struct extras_part part;
};

static void set_up(struct setting *s, struct ra_config config, enum sinks sinks)
{
    char error[RA_ERROR_SIZE];
    s->p = (struct problem){.config = config, .seed = 3};
    problem_make(&s->p);
    extras_solve(&s->x, &s->p, ALL_EXTRAS, sinks);
    ck_assert_msg(ra_plan_create(&s->plan, &s->p.config, NULL, error) == RA_OK, "%s", error);
    shard_make(&s->p, &s->shard, ROWS_FIRST, s->plan);
    extras_give(&s->x, &s->shard, &s->part);
}

static void tear_down(struct setting *s)
{
    extras_collect(&s->x, &s->part);
    shard_clear(&s->shard);
    ra_plan_destroy(s->plan);
    extras_clear(&s->x);
    problem_clear(&s->p);
}

/* Other types, addresses and strides than the reference allows, by name; outputs that are another
 * array; a gradient of a sink that is not given. Nothing is written. */
TEST(wrong_arrays)
{
    struct setting s;
    set_up(&s, shape(2, 5, 5, 4, 2, 3), USUAL_SINKS);
    struct ra_arrays *arrays = &s.shard.arrays;
    static const struct {
        const char *name;
        size_t offset;
        bool in_forward, is_output;
    } all[] = {{"d_lse", offsetof(struct ra_arrays, d_lse), false, false},
               {"sink", offsetof(struct ra_arrays, sink), true, false},
               {"d_sink", offsetof(struct ra_arrays, d_sink), false, true},
               {"slopes", offsetof(struct ra_arrays, slopes), true, false},
               {"largest", offsetof(struct ra_arrays, largest), true, true}};
    for (int i = 0; i < 5; i++)
        for (int fault = 0; fault < 6; fault++)
            for (int backward = 0; backward < 2; backward++) {
                struct ra_arrays wrong = *arrays;
                struct ra_tensor *t = (struct ra_tensor *)(void *)((char *)&wrong + all[i].offset);
                char name[32], text[TEXT];
                bool written = all[i].is_output && backward == !all[i].in_forward;
                if (fault < 3)
                    t->type = fault == 0 ? RA_FLOAT16 : fault == 1 ? RA_BOOL : (enum ra_type)77;
                else if (fault == 3)
                    t->data = (char *)t->data + 2;
                else if (fault == 4)
                    t->head = 0;
                else
                    t->data = backward ? wrong.dq.data : wrong.o.data;
                if ((!backward && !all[i].in_forward) || (fault == 4 && !written))
                    continue;
                snprintf(name, sizeof name, "arrays.%s", all[i].name);
                ck_assert_int_eq((backward ? ra_backward : ra_forward)(s.plan, &wrong), RA_INVALID);
                ck_assert_msg(strstr(ra_plan_error(s.plan), name) != NULL, "%s, fault %d: %s", name,
                              fault, ra_plan_error(s.plan));
                ck_assert_msg(shard_is_kept(&s.shard, false, text), "%s", text);
                ck_assert(isnan(s.part.largest[0]) && isnan(s.part.d_sink[0]));
            }
    struct ra_arrays without = *arrays;
    without.sink.data = NULL;
    ck_assert_int_eq(ra_backward(s.plan, &without), RA_INVALID);
    ck_assert_ptr_nonnull(strstr(ra_plan_error(s.plan), "arrays.d_sink is given without"));

    /* Of the older struct, which ends with dv, nothing is read behind its end. */
    struct ra_arrays older = *arrays;
    older.size = offsetof(struct ra_arrays, d_lse);
    ck_assert_int_eq(ra_forward(s.plan, &older), RA_OK);
    ck_assert_int_eq(ra_backward(s.plan, &older), RA_OK);
    ck_assert(isnan(s.part.largest[0]) && isnan(s.part.d_sink[0]));
    ck_assert_int_eq(ra_forward(s.plan, arrays), RA_OK);
    ck_assert_int_eq(ra_backward(s.plan, arrays), RA_OK);
    tear_down(&s);
}

/* Sinks and scores that are NaN or infinite concern the rows that have them. */
TESTS(no_numbers, 0, 2)
{
    struct setting s;
    struct ra_config config = shape(1, 6, 6, 5, 1, 3);
    config.causal = true;
    config.tile = _i ? RA_PLAIN_TILE : RA_VECTOR_TILE;
    set_up(&s, config, USUAL_SINKS);
    struct ra_arrays *arrays = &s.shard.arrays;
    s.part.sink[0] = NAN;
    s.part.sink[2] = INFINITY;
    s.part.sink[4] = -INFINITY;
    s.part.slopes[6] = NAN;

    /* Row 3 of head 4 overflows. */
    float *q = arrays->q.data;
    for (int c = 0; c < 3; c++)
        q[3 * arrays->q.row + 4 * arrays->q.head + c] = 3e38f;
    ck_assert_int_eq(ra_forward(s.plan, arrays), RA_OK);
    ck_assert_int_eq(ra_backward(s.plan, arrays), RA_OK);
    const float *lse = arrays->lse.data, *o = arrays->o.data;
    for (int i = 0; i < 6; i++)
        for (int h = 0; h < 5; h++) {
            bool bad = h < 2 || h == 3 || (h == 4 && i == 3);
            ck_assert(isnan(lse[i * arrays->lse.row + h * arrays->lse.head]) == bad);
            ck_assert(isnan(o[i * arrays->o.row + h * arrays->o.head]) == bad);
        }
    for (int h = 0; h < 5; h++) {
        ck_assert(isnan(s.part.largest[2 * h]) == (h >= 3));
        ck_assert(h == 2 ? s.part.d_sink[4] == 0 : isnan(s.part.d_sink[2 * h]));
    }
    tear_down(&s);
}

/* Without rows, batches or keys there are numbers of heads all the same. */
TESTS(no_rows, 0, 3)
{
    struct setting s;
    set_up(&s, shape(_i != 1, _i == 0 ? 0 : 4, _i == 2 ? 0 : 4, 3, 1, 2), USUAL_SINKS);
    ck_assert_int_eq(ra_forward(s.plan, &s.shard.arrays), RA_OK);
    ck_assert_int_eq(ra_backward(s.plan, &s.shard.arrays), RA_OK);
    for (int h = 0; h < 3; h++)
        ck_assert(s.part.largest[2 * h] == -INFINITY && (s.part.d_sink[2 * h] == 0) == (_i < 2));
    tear_down(&s);
}

/* ---- Ranks that differ. */

struct differing {
    struct thread_ring *ring;
    int how;
    enum ra_status status[3];
    char text[3][RA_ERROR_SIZE];
};

/* Rank 1 has another slope, none, another sink, or a sink of 0 more than the others. */
static void run_differing(void *context, int rank)
{
    struct differing *differing = context;
    struct ra_config config = shape(1, 12, 12, 2, 1, 2);
    struct ra_link link = thread_ring_link(differing->ring, rank);
    struct ra_plan *plan;
    float in[4 * 2 * 2] = {0}, out[2][4 * 2 * 2], slopes[2] = {0.5f, 0.25f}, sink[2] = {0, 1};
    if (ra_plan_create(&plan, &config, &link, differing->text[rank]) != RA_OK)
        return;
    struct ra_arrays arrays = RA_ARRAYS_INIT;
    arrays.q = ra_tensor_bnhd(in, RA_FLOAT32, 4, 2, 2);
    arrays.k = arrays.v = ra_tensor_bnhd(in, RA_FLOAT32, 4, 1, 2);
    arrays.o = ra_tensor_bnhd(out[0], RA_FLOAT32, 4, 2, 2);
    arrays.lse = ra_tensor_bhn(out[1], 4, 2);
    arrays.slopes = ra_tensor_h(slopes);
    arrays.sink = ra_tensor_h(sink);
    sink[1] = differing->how == 3 ? 0 : 1;
    if (rank == 1 && differing->how == 0)
        slopes[1] = 0.5f;
    if (rank == 1 && differing->how == 1)
        arrays.slopes.data = NULL;
    if (rank == 1 && differing->how == 2)
        sink[0] = -1;
    if (rank == 1 && differing->how == 3)
        arrays.sink.data = NULL;
    differing->status[rank] = ra_forward(plan, &arrays);
    snprintf(differing->text[rank], RA_ERROR_SIZE, "%s", ra_plan_error(plan));
    ra_plan_destroy(plan);
}

TESTS(ranks_differ, 0, 5)
{
    struct differing x = {.ring = thread_ring_open(3, 10, THREAD_LATE), .how = _i};
    thread_ring_run(3, run_differing, &x);
    thread_ring_close(x.ring);
    for (int rank = 0; rank < 3; rank++) {
        ck_assert_int_eq(x.status[rank], _i == 4 ? RA_OK : RA_LOST);
        ck_assert(_i == 4 || strstr(x.text[rank], "arrays.sink and arrays.slopes"));
    }
}

/* ---- Far away. */

/* Queries at the end of 10^7 keys score by distance alone: exactly the sums of the same few keys
 * at the end of a short sequence. */
TESTS(far_positions, 0, 2)
{
    static const int64_t lengths[] = {10000000, 40};
    float slopes[1] = {0.3f}, q[3] = {0}, o[2][3], lse[2][3], largest[2][1];
    for (int way = 0; way < 2; way++) {
        int64_t M = lengths[way];
        float *k = calloc((size_t)M, sizeof *k), *v = calloc((size_t)M, sizeof *v);
        struct ra_config config = shape(1, 3, M, 1, 1, 1);
        struct ra_plan *plan;
        char error[RA_ERROR_SIZE];
        config.causal = true;
        config.lookback = 20;
        config.tile = _i ? RA_PLAIN_TILE : RA_VECTOR_TILE;
        for (int64_t j = M - 40; j < M; j++)
            v[j] = (float)(M - j);
        ck_assert_msg(ra_plan_create(&plan, &config, NULL, error) == RA_OK, "%s", error);
        struct ra_arrays x = RA_ARRAYS_INIT;
        x.q = ra_tensor_bnhd(q, RA_FLOAT32, 3, 1, 1);
        x.k = ra_tensor_bnhd(k, RA_FLOAT32, M, 1, 1);
        x.v = ra_tensor_bnhd(v, RA_FLOAT32, M, 1, 1);
        x.o = ra_tensor_bnhd(o[way], RA_FLOAT32, 3, 1, 1);
        x.lse = ra_tensor_bhn(lse[way], 3, 1);
        x.slopes = ra_tensor_h(slopes);
        x.largest = ra_tensor_h(largest[way]);
        ck_assert_int_eq(ra_forward(plan, &x), RA_OK);
        ra_plan_destroy(plan);
        free(k);
        free(v);
    }
    for (int i = 0; i < 3; i++) {
        /* Sums may be added up in another order. */
        double total = 0, mean = 0;
        for (int back = 0; back <= 20; back++) {
            double weight = exp(-(double)0.3f * back);
            total += weight;
            mean += weight * (3 - i + back);
        }
        for (int way = 0; way < 2; way++) {
            ck_assert_double_eq_tol((double)lse[way][i], log(total), 3e-7);
            ck_assert_double_eq_tol((double)o[way][i], mean / total, 2e-6);
            ck_assert(largest[way][0] == 0);
        }
    }
}

int main(void)
{
    return suite_main("extras", 120);
}
