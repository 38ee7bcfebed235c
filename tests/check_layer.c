/* check_layer: ra_layer against its definition in double, on the ranks of a communicator.
 *
 *   mpirun -n RANKS build/check-layer [RING_SIZE]
 *
 * The definition is one function of complex numbers, the forward. Its gradients are those of
 * complex steps: the imaginary part of f(x + i h) / h with an h of 1e-30 is f'(x) to the last
 * digits, as nothing is subtracted. So no backward is written twice.
 *
 * Runs every test on every rank. A test that finds something wrong says so and goes on, so that its
 * ranks stay in step.
 */
#include <complex.h>
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"
#include "ra_batch.h"
#include "ra_gathered.h"
#include "ra_layer.h"
#include "ring_attention_mpi.h"
#include "verdict.h"

static const double patience = 60;
static int rank, ranks, ring_size, set, sets;
static MPI_Comm ring; /* the ranks of this one's ring */

enum { MOST_N = 24, MOST_ROWS = 64, DIM = 6, MOST_X = MOST_ROWS * MOST_N * DIM, DOCUMENTS = 6 };
enum { MOST_WEIGHTS = 2048, MOST_WIDE = 64 };
typedef double complex number;

/* ---- A trial. */

struct trial {
    const char *name;
    struct ra_layer_config layer;
    struct ra_config attention;
    double size;    /* of the weights of q, k and v */
    bool documents; /* packed: slices, and positions that restart */
    enum ra_deal deal;
    bool gather;     /* keys are gathered */
    bool sends_rows; /* ra_batch: each rank brings whole rows */
    bool in_place;   /* dx is dy */
};

static struct trial usual(const char *name)
{
    struct trial trial = {
        .name = name, .layer = RA_LAYER_INIT, .attention = RA_CONFIG_INIT, .size = 1};
    struct ra_config *c = &trial.attention;
    trial.layer.dim = DIM;
    trial.layer.rotary = true;
    c->batch = 2;
    c->queries = 13;
    c->heads = 4;
    c->key_heads = 2;
    c->dim = 4;
    c->causal = true;
    c->ring_size = ring_size;
    c->threads = 1;
    c->timeout = patience;
    return trial;
}

/* What all rings get: rows of a whole batch, of which row b S + s is row b of ring s. */
static struct {
    float x[MOST_X], dy[MOST_X], weights[MOST_WEIGHTS];
    bool mask[MOST_ROWS * MOST_N];
    int64_t bounds[DOCUMENTS + 1], positions[MOST_N];
    struct ra_slice slices[DOCUMENTS];
    int64_t rows, count; /* of the whole batch; of the weights */
} given;

/* Weights by their places in one array, which are those of ra_layer_weights_in. */
enum { GAMMA, BIAS, QKV, QKV_BIAS, Q_GAMMA, K_GAMMA, OUT, OUT_BIAS, SINKS, ALL };
static const char *const names[] = {"gamma",   "bias", "qkv",      "qkv_bias", "q_gamma",
                                    "k_gamma", "out",  "out_bias", "sinks"};

static int64_t value_width(const struct trial *t)
{
    return t->attention.dim_value ? t->attention.dim_value : t->attention.dim;
}

static void find_places(const struct trial *t, int64_t place[ALL + 1])
{
    const struct ra_config *c = &t->attention;
    const struct ra_layer_config *l = &t->layer;
    int64_t H = c->heads, G = c->key_heads, D = c->dim, D_v = value_width(t);
    int64_t all = H * D + G * D + G * D_v;
    const int64_t counts[ALL] = {l->prenorm ? DIM : 0,
                                 l->prenorm && l->norm == RA_NORM_LAYER ? DIM : 0,
                                 all * DIM,
                                 l->qkv_bias ? all : 0,
                                 l->head_norm ? D : 0,
                                 l->head_norm ? D : 0,
                                 DIM * H * D_v,
                                 l->out_bias ? DIM : 0,
                                 l->sinks ? H : 0};
    place[0] = 0;
    for (int i = 0; i < ALL; i++)
        place[i + 1] = place[i] + counts[i];
}

static void make_inputs(const struct trial *t, int64_t rows)
{
    uint64_t state = 5;
    int64_t N = t->attention.queries, place[ALL + 1];
    find_places(t, place);
    given.rows = rows;
    given.count = place[ALL];
    for (int64_t e = 0; e < rows * N * DIM; e++) {
        given.x[e] = (float)random_normal(&state);
        given.dy[e] = (float)random_normal(&state);
    }
    for (int i = 0; i < ALL; i++)
        for (int64_t e = place[i]; e < place[i + 1]; e++) {
            bool is_gamma = i == GAMMA || i == Q_GAMMA || i == K_GAMMA;
            double size = i == QKV ? t->size * 0.5 : 0.5;
            given.weights[e] = (float)(is_gamma + size * random_normal(&state));
        }
    /* The first keys of a row are hidden: its first queries see none. */
    for (int64_t e = 0; e < rows * N; e++)
        given.mask[e] = e % N > 2 && random_below(&state, 4) > 0;
    given.bounds[0] = 0;
    for (int d = 0; d < DOCUMENTS; d++) {
        int64_t left = N - given.bounds[d], some = random_below(&state, 5);
        given.bounds[d + 1] = given.bounds[d] + (d == DOCUMENTS - 1 || some > left ? left : some);
        for (int64_t i = given.bounds[d]; i < given.bounds[d + 1]; i++)
            given.positions[i] = i - given.bounds[d];
    }
    ra_slices_documents(given.bounds, DOCUMENTS, RA_NO_LOOKBACK, 0, given.slices);
}

/* ---- What is right. */

static bool sees(const struct trial *t, const bool *mask, int64_t i, int64_t j)
{
    const struct ra_config *c = &t->attention;
    if (c->has_mask && !mask[j])
        return false;
    if (t->documents) {
        int d = 0;
        while (given.bounds[d + 1] <= i)
            d++;
        return j >= given.bounds[d] && j <= i;
    }
    return !c->causal || (j <= i && i - j <= c->lookback);
}

static void norm(enum ra_norm_kind kind, double eps, int64_t count, const number *x,
                 const number *gamma, const number *bias, number *out)
{
    number mean = 0, square = 0;
    for (int64_t e = 0; e < count && kind == RA_NORM_LAYER; e++)
        mean += x[e] / (double)count;
    for (int64_t e = 0; e < count; e++)
        square += (x[e] - mean) * (x[e] - mean);
    number length = csqrt(square / (double)count + (kind == RA_NORM_UNIT ? 0 : eps));
    for (int64_t e = 0; e < count; e++)
        out[e] = (x[e] - mean) / length * gamma[e] + (bias ? bias[e] : 0);
}

static double angle(const struct trial *t, int64_t pair, double position)
{
    const struct ra_rotary_scaling *s = &t->layer.rotary_scaling;
    double D = (double)t->attention.dim, pi = acos(-1);
    double f = pow(t->layer.rotary_theta, -2 * (double)pair / D);
    if (s->kind == RA_ROTARY_LLAMA3) {
        double waves = (double)s->original * f / (2 * pi);
        double keep = fmin(1, fmax(0, (waves - s->low) / (s->high - s->low)));
        f = (1 - keep) * f / s->factor + keep * f;
    } else if (s->kind == RA_ROTARY_YARN_UNTRUNCATED) {
        /* With both limits among the pairs, linear in the pair is linear in log(waves). */
        double waves = (double)s->original * f / (2 * pi);
        double keep = fmin(1, fmax(0, log(waves / s->low) / log(s->high / s->low)));
        f = (1 - keep) * f / s->factor + keep * f;
    }
    return position * f / t->layer.rotary_scale;
}

/* y (N, dim) of one row x of a batch. */
static void define(const struct trial *t, const number *weights, const number *x, const bool *mask,
                   number *y)
{
    static number qkv[MOST_N][MOST_WIDE];
    const struct ra_config *c = &t->attention;
    const struct ra_layer_config *l = &t->layer;
    int64_t N = c->queries, H = c->heads, G = c->key_heads, D = c->dim, D_v = value_width(t);
    int64_t all = H * D + G * D + G * D_v, place[ALL + 1];
    const number *w[ALL];
    find_places(t, place);
    for (int i = 0; i < ALL; i++)
        w[i] = place[i + 1] > place[i] ? weights + place[i] : NULL;
    for (int64_t i = 0; i < N; i++) {
        number z[DIM];
        memcpy(z, x + i * DIM, sizeof z);
        if (l->prenorm)
            norm(l->norm, l->norm_eps, DIM, x + i * DIM, w[GAMMA], w[BIAS], z);
        for (int64_t r = 0; r < all; r++) {
            qkv[i][r] = w[QKV_BIAS] ? w[QKV_BIAS][r] : 0;
            for (int64_t e = 0; e < DIM; e++)
                qkv[i][r] += w[QKV][r * DIM + e] * z[e];
        }
        for (int64_t h = 0; h < H + G; h++) {
            number *head = qkv[i] + h * D;
            if (l->head_norm)
                norm(RA_NORM_RMS, l->norm_eps, D, head, w[h < H ? Q_GAMMA : K_GAMMA], NULL, head);
            for (int64_t p = 0; p < D / 2 && l->rotary; p++) {
                double turn = angle(t, p, (double)(t->documents ? given.positions[i] : i));
                number a = head[p], b = head[p + D / 2];
                head[p] = a * cos(turn) - b * sin(turn);
                head[p + D / 2] = b * cos(turn) + a * sin(turn);
            }
        }
    }
    for (int64_t i = 0; i < N; i++) {
        for (int64_t e = 0; e < DIM; e++)
            y[i * DIM + e] =
                (l->residual ? x[i * DIM + e] : 0) + (w[OUT_BIAS] ? w[OUT_BIAS][e] : 0);
        for (int64_t h = 0; h < H; h++) {
            int64_t g = c->head_map == RA_GROUPED ? h / (H / G) : h % G;
            number score[MOST_N], sum = 0, o[MOST_WIDE] = {0};
            double largest = w[SINKS] ? creal(w[SINKS][h]) : -(double)INFINITY;
            for (int64_t j = 0; j < N; j++) {
                score[j] = 0;
                for (int64_t e = 0; e < D; e++)
                    score[j] += qkv[i][h * D + e] * qkv[j][H * D + g * D + e] / sqrt((double)D);
                if (c->softcap > 0)
                    score[j] = c->softcap * ctanh(score[j] / c->softcap);
                if (sees(t, mask, i, j))
                    largest = fmax(largest, creal(score[j]));
            }
            if (w[SINKS])
                sum = cexp(w[SINKS][h] - largest);
            for (int64_t j = 0; j < N; j++) {
                if (!sees(t, mask, i, j))
                    continue;
                number p = cexp(score[j] - largest);
                sum += p;
                for (int64_t e = 0; e < D_v; e++)
                    o[e] += p * qkv[j][H * D + G * D + g * D_v + e];
            }
            for (int64_t r = 0; r < DIM && creal(sum) > 0; r++)
                for (int64_t e = 0; e < D_v; e++)
                    y[i * DIM + r] += w[OUT][r * H * D_v + h * D_v + e] * o[e] / sum;
        }
    }
}

/* The sum of dy times y of row b of this ring, after a complex step of weight `at` or, if row `of`
 * is b, number `at` of its x; and y, unless that is NULL. */
static number define_row(const struct trial *t, int64_t b, bool is_weight, int64_t at, double h,
                         number *y)
{
    static number weights[MOST_WEIGHTS], x[MOST_N * DIM], own[MOST_N * DIM];
    int64_t N = t->attention.queries, row = b * sets + set;
    number sum = 0;
    for (int64_t e = 0; e < given.count; e++)
        weights[e] = (double)given.weights[e];
    for (int64_t e = 0; e < N * DIM; e++)
        x[e] = (double)given.x[row * N * DIM + e];
    *(is_weight ? &weights[at] : &x[at]) += h * I;
    define(t, weights, x, given.mask + row * N, y ? y : own);
    for (int64_t e = 0; e < N * DIM; e++)
        sum += (double)given.dy[row * N * DIM + e] * (y ? y : own)[e];
    return sum;
}

/* All of it, of `rows` rows of this ring: y and dx (rows, N, dim), and the gradients of weights.
 * The ranks of the ring share the steps. */
static void find_right(const struct trial *t, int64_t rows, double *y, double *dx, double *dw)
{
    static number these[MOST_N * DIM];
    const double h = 1e-30;
    int64_t each = t->attention.queries * DIM;
    int mine = rank % ring_size;
    memset(dx, 0, (size_t)(rows * each) * sizeof *dx);
    memset(dw, 0, (size_t)given.count * sizeof *dw);
    for (int64_t b = 0; b < rows; b++) {
        define_row(t, b, true, 0, 0, these);
        for (int64_t e = 0; e < each; e++)
            y[b * each + e] = creal(these[e]);
        for (int64_t e = mine; e < each; e += ring_size)
            dx[b * each + e] = cimag(define_row(t, b, false, e, h, NULL)) / h;
        for (int64_t e = mine; e < given.count; e += ring_size)
            dw[e] += cimag(define_row(t, b, true, e, h, NULL)) / h;
    }
    MPI_Allreduce(MPI_IN_PLACE, dx, (int)(rows * each), MPI_DOUBLE, MPI_SUM, ring);
    MPI_Allreduce(MPI_IN_PLACE, dw, (int)given.count, MPI_DOUBLE, MPI_SUM, ring);
}

/* Is `got` near `want`, as float32 may be? A number is a sum of terms that may be as large as the
 * largest of the array, and each is off by some roundings, for which 100 are allowed. In a weight
 * exp(score) all roundings of the score count, whose terms are as large as it is: `size` times. */
static void compare(const struct trial *t, const char *what, int64_t count, const double *got,
                    const double *want)
{
    double largest = 0, error = 0;
    for (int64_t e = 0; e < count; e++) {
        largest = fmax(largest, fabs(want[e]));
        error = isnan(got[e]) || isnan(want[e]) ? (double)INFINITY
                                                : fmax(error, fabs(got[e] - want[e]));
    }
    double allowed = 100 * 0x1p-24 * fmax(1, t->size * t->size) * largest;
    EXPECT(error <= allowed, "%s: %s errs by %g of its largest number, %g", t->name, what,
           error / fmax(largest, 1e-30), largest);
    if (getenv("CHECK_LAYER_TELLS") && rank == 0)
        fprintf(stderr, "%-24s %-10s %.1f roundings of %g\n", t->name, what,
                error / largest * 0x1p24, largest);
}

/* ---- The layer. */

/* Memory of so many bytes, and a guard behind them that nothing may write to. */
enum { GUARD = 1 << 14 };
static void *poisoned(int64_t bytes)
{
    size_t all = ((size_t)bytes + GUARD + 63) / 64 * 64;
    void *memory = aligned_alloc(64, all);
    memset(memory, 0xFF, all);
    return memory;
}

static void expect_guard(const struct trial *t, const void *memory, int64_t bytes, const char *what)
{
    const unsigned char *guard = (const unsigned char *)memory + bytes;
    int64_t written = 0;
    for (int64_t e = 0; e < GUARD; e++)
        written += guard[e] != 0xFF;
    EXPECT(written == 0, "%s: %d bytes behind %s are written", t->name, (int)written, what);
}

/* Everything of a layer of a trial on this rank. */
struct made {
    struct ra_batch *batch;
    struct ra_plan *plan;
    struct ra_layer *layer;
    struct ra_layer_arrays arrays;
    float *x, *y, *dy, *dx, gradients[MOST_WEIGHTS];
    bool *mask;
    int64_t positions[MOST_N], outer, n, first; /* of the arrays: (outer, n); a batch's first row */
    struct ra_attention_weights w, d;
};

/* Number of the whole batch's row of row b of the arrays, and the place of their row a. */
static int64_t row_of(const struct trial *t, const struct made *made, int64_t b)
{
    return t->sends_rows ? made->first + b : b * sets + set;
}

static int64_t place_of(const struct trial *t, const struct made *made, int64_t a)
{
    return t->sends_rows ? a : ra_plan_position(made->plan, RA_QUERY_SIDE, a);
}

static bool make_plan(const struct trial *t, struct made *made)
{
    struct ra_config c = t->attention;
    struct ra_link link;
    char error[RA_ERROR_SIZE];
    if (t->documents) {
        c.causal = false;
        c.max_slices = DOCUMENTS;
        c.max_rows = c.queries;
    }
    if (t->gather)
        return HOLDS(ra_gathered_create(&made->plan, &c, MPI_COMM_WORLD, error) == RA_OK, "%s: %s",
                     t->name, error);
    return HOLDS(ra_mpi_link(&link, MPI_COMM_WORLD, ring_size, patience, error) == RA_OK, "%s",
                 error) &&
           HOLDS(ra_plan_create(&made->plan, &c, &link, error) == RA_OK, "%s: %s", t->name, error);
}

/* Weights of a config that has them all, of which a layer without must read and write none. */
static void fill_absent(struct ra_attention_weights *w)
{
    static float not_there[MOST_WEIGHTS];
    float **places[] = {&w->gamma,   &w->bias, &w->qkv,      &w->qkv_bias, &w->q_gamma,
                        &w->k_gamma, &w->out,  &w->out_bias, &w->sinks};
    memset(not_there, 0xFF, sizeof not_there);
    for (int i = 0; i < ALL; i++)
        if (!*places[i])
            *places[i] = not_there;
}

static void fill(const struct trial *t, struct made *made)
{
    int64_t N = t->attention.queries, numbers = made->outer * made->n * DIM;
    made->x = poisoned(numbers * 4), made->y = poisoned(numbers * 4);
    made->dy = poisoned(numbers * 4);
    made->dx = t->in_place ? made->dy : poisoned(numbers * 4);
    made->mask = poisoned(made->outer * made->n);
    for (int64_t b = 0; b < made->outer; b++)
        for (int64_t a = 0; a < made->n; a++) {
            int64_t to = b * made->n + a, from = row_of(t, made, b) * N + place_of(t, made, a);
            memcpy(made->x + to * DIM, given.x + from * DIM, DIM * sizeof(float));
            memcpy(made->dy + to * DIM, given.dy + from * DIM, DIM * sizeof(float));
            made->mask[to] = given.mask[from];
        }
    for (int64_t a = 0; a < made->n && t->documents; a++)
        made->positions[a] = given.positions[place_of(t, made, a)];
}

static bool make(const struct trial *t, struct made *made)
{
    struct ra_layer_config config = t->layer;
    char error[RA_ERROR_SIZE];
    *made = (struct made){.arrays = RA_LAYER_ARRAYS_INIT, .outer = t->attention.batch};
    struct trial own = *t;
    if (t->sends_rows) {
        struct ra_layout layout = ra_layout_of(&t->attention, t->attention.queries);
        if (!HOLDS(ra_batch_create(&made->batch, MPI_COMM_WORLD, layout, DIM * sizeof(float),
                                   rank % 3, patience, error) == RA_OK,
                   "%s", error))
            return false;
        config.batch = made->batch;
        own.attention.batch = made->batch->set_rows;
        made->outer = made->batch->rows;
        made->first = made->batch->first;
    }
    if (!make_plan(&own, made) ||
        !HOLDS(ra_layer_create(&made->layer, &config, made->plan, error) == RA_OK, "%s: %s",
               t->name, error))
        return false;

    /* Memory is asked for before it is known which rows a deal gives this rank. */
    made->arrays.kept = poisoned(ra_layer_kept_bytes(made->layer));
    made->arrays.scratch = poisoned(ra_layer_scratch_bytes(made->layer));
    if (t->documents &&
        !HOLDS(ra_plan_set_slices(made->plan, given.slices, DOCUMENTS, t->deal) == RA_OK, "%s: %s",
               t->name, ra_plan_error(made->plan)))
        return false;
    made->n = t->sends_rows ? t->attention.queries : ra_plan_rows(made->plan, RA_QUERY_SIDE);
    fill(t, made);
    EXPECT(ra_layer_weight_count(made->layer) == given.count, "%s: %d weights, not %d", t->name,
           (int)ra_layer_weight_count(made->layer), (int)given.count);
    ra_layer_weights_in(made->layer, given.weights, &made->w, sizeof made->w);
    ra_layer_weights_in(made->layer, made->gradients, &made->d, sizeof made->d);
    fill_absent(&made->w);
    fill_absent(&made->d);
    for (int64_t e = 0; e < given.count; e++)
        made->gradients[e] = (float)(e % 3); /* to be added to */
    made->arrays.x = made->x;
    made->arrays.y = made->y;
    made->arrays.dy = made->dy;
    made->arrays.dx = made->dx;
    made->arrays.mask = t->attention.has_mask ? made->mask : NULL;
    made->arrays.positions = t->documents ? made->positions : NULL;
    return true;
}

static void destroy(const struct trial *t, struct made *made)
{
    if (made->arrays.scratch) {
        expect_guard(t, made->arrays.kept, ra_layer_kept_bytes(made->layer), "kept");
        expect_guard(t, made->arrays.scratch, ra_layer_scratch_bytes(made->layer), "scratch");
    }
    ra_layer_destroy(made->layer);
    ra_plan_destroy(made->plan);
    ra_batch_destroy(made->batch);
    free(made->x);
    free(made->y);
    free(made->dy);
    if (!t->in_place)
        free(made->dx);
    free(made->mask);
    free(made->arrays.kept);
    free(made->arrays.scratch);
}

static void forward(const struct trial *t, struct made *made)
{
    EXPECT(ra_layer_forward(made->layer, &made->w, &made->arrays) == RA_OK, "%s: %s", t->name,
           ra_layer_error(made->layer));
}

static void backward(const struct trial *t, struct made *made)
{
    memset(made->arrays.scratch, 0xFF, (size_t)ra_layer_scratch_bytes(made->layer));
    EXPECT(ra_layer_backward(made->layer, &made->w, &made->arrays, &made->d) == RA_OK, "%s: %s",
           t->name, ra_layer_error(made->layer));
}

/* Compares what a rank has with what is right. Rows of a batch that is sent may be another ring's:
 * all rings give theirs to all. */
static void judge(const struct trial *t, const struct made *made)
{
    static double y[MOST_X], dx[MOST_X], dw[MOST_WEIGHTS], got[MOST_X], want[MOST_X];
    static double whole[2][MOST_X];
    int64_t each = t->attention.queries * DIM, numbers = made->outer * made->n * DIM,
            place[ALL + 1];
    int64_t rows = made->batch ? made->batch->set_rows : t->attention.batch;
    find_right(t, rows, y, dx, dw);
    memset(whole, 0, sizeof whole);
    for (int64_t b = 0; b < rows && rank % ring_size == 0; b++) {
        memcpy(whole[0] + (b * sets + set) * each, y + b * each, (size_t)each * sizeof *y);
        memcpy(whole[1] + (b * sets + set) * each, dx + b * each, (size_t)each * sizeof *y);
    }
    MPI_Allreduce(MPI_IN_PLACE, whole, 2 * MOST_X, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int k = 0; k < 2; k++) {
        for (int64_t e = 0; e < numbers; e++) {
            int64_t b = e / DIM / made->n, a = e / DIM % made->n;
            got[e] = (double)(k ? made->dx : made->y)[e];
            want[e] = whole[k][row_of(t, made, b) * each + place_of(t, made, a) * DIM + e % DIM];
        }
        compare(t, k ? "dx" : "y", numbers, got, want);
    }
    for (int64_t e = 0; e < given.count; e++)
        got[e] = (double)made->gradients[e] - (double)(e % 3);
    MPI_Allreduce(MPI_IN_PLACE, got, (int)given.count, MPI_DOUBLE, MPI_SUM, ring);
    find_places(t, place);
    for (int i = 0; i < ALL; i++)
        compare(t, names[i], place[i + 1] - place[i], got + place[i], dw + place[i]);
}

static int64_t all_rows(const struct trial *t)
{
    int64_t rows = 0;
    for (int r = 0; r < ranks; r++)
        rows += r % 3;
    return t->sends_rows ? rows : t->attention.batch * sets;
}

static void solve(struct trial t)
{
    static struct made made;
    make_inputs(&t, all_rows(&t));
    if (make(&t, &made)) {
        forward(&t, &made);
        backward(&t, &made);
        judge(&t, &made);
    }
    destroy(&t, &made);
}

/* ---- Tests. */

static void solve_layouts(struct trial t)
{
    static const struct {
        enum ra_layout_kind kind;
        int64_t bucket;
    } layouts[] = {{RA_CONTIGUOUS, 0}, {RA_STRIPED, 0}, {RA_STRIPED, 2}, {RA_ZIGZAG, 0}};
    for (int i = 0; i < 4; i++) {
        t.attention.layout = layouts[i].kind;
        t.attention.bucket = layouts[i].bucket;
        solve(t);
    }
}

TEST(original)
{
    struct trial t = usual("original");
    t.attention.head_map = RA_INTERLEAVED;
    solve_layouts(t);
}

TEST(no_norm_no_rotary)
{
    struct trial t = usual("no norm, no rotary");
    t.layer.prenorm = t.layer.rotary = false;
    t.attention.causal = false;
    solve_layouts(t);
    t.layer.residual = true;
    solve(t);
}

TEST(all_parts)
{
    struct trial t = usual("all parts");
    t.layer.norm = RA_NORM_LAYER;
    t.layer.qkv_bias = t.layer.out_bias = t.layer.head_norm = t.layer.residual = true;
    t.layer.rotary_scaling = (struct ra_rotary_scaling){RA_ROTARY_LLAMA3, 8, 1, 4, 20};
    t.layer.rotary_theta = 300;
    t.layer.rotary_scale = 2;
    t.in_place = true;
    solve_layouts(t);
    t.name = "RMS";
    t.layer.norm = RA_NORM_RMS;
    t.layer.norm_eps = 0.1;
    t.attention.threads = 3;
    solve(t);
}

TEST(sinks)
{
    struct trial t = usual("sinks, YaRN");
    t.layer.sinks = true;
    t.layer.rotary_theta = 300;
    t.layer.rotary_scaling = (struct ra_rotary_scaling){RA_ROTARY_YARN_UNTRUNCATED, 8, 1, 4, 200};
    t.attention.has_mask = true;
    solve_layouts(t);
    t.attention.queries = 3; /* some ranks have no row */
    t.layer.head_norm = true;
    solve_layouts(t);
}

TEST(attention)
{
    struct trial t = usual("window, cap, D_v, mask");
    t.attention.lookback = 4;
    t.attention.softcap = 3;
    t.attention.dim_value = 6;
    t.attention.has_mask = true;
    solve_layouts(t);
    t.attention.queries = 3; /* some ranks have no row */
    solve_layouts(t);
}

TEST(large_scores)
{
    struct trial t = usual("scores of 30");
    t.size = 4;
    solve_layouts(t);
}

TEST(documents)
{
    struct trial t = usual("documents");
    t.documents = true;
    solve_layouts(t);
    t.deal = RA_DEAL_DOCUMENTS;
    solve(t);
}

TEST(gathered_keys)
{
    struct trial t = usual("gathered keys");
    t.gather = true;
    t.attention.has_mask = true;
    solve_layouts(t);
}

TEST(rows_that_are_sent)
{
    struct trial t = usual("rows that are sent");
    t.sends_rows = true;
    t.layer.residual = true;
    solve_layouts(t);
    t.attention.has_mask = true;
    t.name = "rows and masks that are sent";
    solve_layouts(t);
}

/* Two forwards, then their backwards, with one layer: what is kept is the caller's. */
TEST(two_at_once)
{
    static struct made made, other;
    struct trial t = usual("two at once");
    make_inputs(&t, all_rows(&t));
    if (!make(&t, &made))
        return;
    other = made;
    fill(&t, &other);
    for (int64_t e = 0; e < other.outer * other.n * DIM; e++)
        other.x[e] *= -2;
    other.arrays.x = other.x, other.arrays.y = other.y;
    other.arrays.dy = other.dy, other.arrays.dx = other.dx;
    other.arrays.kept = poisoned(ra_layer_kept_bytes(made.layer));
    ra_layer_weights_in(made.layer, other.gradients, &other.d, sizeof other.d);
    forward(&t, &made);
    forward(&t, &other);
    backward(&t, &made);
    backward(&t, &other);
    judge(&t, &made);
    for (int64_t e = 0; e < t.attention.batch * sets * t.attention.queries * DIM; e++)
        given.x[e] *= -2;
    judge(&t, &other);
    free(other.x), free(other.y), free(other.dy), free(other.dx), free(other.mask);
    free(other.arrays.kept);
    destroy(&t, &made);
}

/* The bits do not depend on the threads. */
TEST(threads)
{
    static struct made one, three;
    struct trial t = usual("threads");
    make_inputs(&t, all_rows(&t));
    bool well = make(&t, &one);
    t.attention.threads = 3;
    if (make(&t, &three) && well) {
        forward(&t, &one), backward(&t, &one);
        forward(&t, &three), backward(&t, &three);
        size_t bytes = (size_t)(one.outer * one.n * DIM) * sizeof(float);
        EXPECT(memcmp(one.y, three.y, bytes) == 0 && memcmp(one.dx, three.dx, bytes) == 0 &&
                   memcmp(one.gradients, three.gradients, (size_t)given.count * 4) == 0,
               "other bits");
    }
    destroy(&t, &one);
    destroy(&t, &three);
}

static void expect_refusal(enum ra_status status, const char *got, const char *want)
{
    EXPECT(status == RA_INVALID && strstr(got, want), "'%s', not '%s'", got, want);
}

TEST(refused_configs)
{
    struct ra_plan *plan, *wrong;
    struct ra_layer *layer;
    char error[RA_ERROR_SIZE];
    struct ra_config c = usual("").attention, other;
    c.ring_size = 0;
    if (!HOLDS(ra_plan_create(&plan, &c, NULL, error) == RA_OK, "%s", error))
        return;
#define REFUSED(change, text)                                                  \
    do {                                                                       \
        struct ra_layer_config l = RA_LAYER_INIT;                              \
        l.dim = DIM, l.rotary = true;                                          \
        change;                                                                \
        expect_refusal(ra_layer_create(&layer, &l, plan, error), error, text); \
        EXPECT(!layer, "a layer is there");                                    \
    } while (0)
    REFUSED(l.size = 8, "config.size = 8: begin with RA_LAYER_INIT, which sets it to ");
    REFUSED(l.size = SIZE_MAX / 8 * 8, "config.size");
    REFUSED(l.dim = 0, "config.dim = 0: give at least 1");
    REFUSED(l.dim = INT64_MAX, "config.dim = 9223372036854775807: give arrays of at most 2^50");
    REFUSED(l.dim = (int64_t)1 << 46, "at most 2^50");
    REFUSED(l.norm = (enum ra_norm_kind)4, "config.norm = 4");
    REFUSED(l.rotary_theta = (double)NAN, "config.rotary_theta");
    REFUSED(l.rotary_scale = 0, "config.rotary_scale = 0");
    REFUSED(l.rotary_scaling.kind = (enum ra_rotary_kind)9, "config.rotary_scaling.kind = 9");
    REFUSED((l.rotary_scaling.kind = RA_ROTARY_YARN, l.rotary_theta = 1),
            "config.rotary_theta = 1: YaRN needs one above 1");
    REFUSED((l.rotary_scaling.kind = RA_ROTARY_YARN, l.rotary_scaling.factor = 0),
            "config.rotary_scaling has factor 0,");
    REFUSED((l.head_norm = true, l.norm_eps = 0), "config.norm_eps = 0");
    REFUSED((l.norm = RA_NORM_RMS, l.norm_eps = (double)NAN), "config.norm_eps");
    struct ra_layer_config l = RA_LAYER_INIT;
    l.dim = DIM;
    expect_refusal(ra_layer_create(&layer, &l, NULL, error), error, "plan is NULL");
    expect_refusal(ra_layer_create(&layer, NULL, plan, NULL), "", "");

    other = c;
    other.type = RA_BFLOAT16;
    EXPECT(ra_plan_create(&wrong, &other, NULL, error) == RA_OK, "%s", error);
    expect_refusal(ra_layer_create(&layer, &l, wrong, error), error, "type is not RA_FLOAT32");
    ra_plan_destroy(wrong);
    other = c;
    other.keys = 20;
    EXPECT(ra_plan_create(&wrong, &other, NULL, error) == RA_OK, "%s", error);
    expect_refusal(ra_layer_create(&layer, &l, wrong, error), error, "20 keys for 13 queries");
    ra_plan_destroy(wrong);
    l.rotary = true;
    other = c;
    other.dim = 5;
    EXPECT(ra_plan_create(&wrong, &other, NULL, error) == RA_OK, "%s", error);
    expect_refusal(ra_layer_create(&layer, &l, wrong, error), error, "dim is 5");
    ra_plan_destroy(wrong);
    ra_plan_destroy(plan);
}

/* Every array that is missing is named. One process alone can go on. */
TEST(refused_arrays)
{
    struct trial t = usual("refused arrays");
    struct ra_plan *plan;
    struct ra_layer *layer;
    char error[RA_ERROR_SIZE];
    static float numbers[MOST_X], weights[MOST_WEIGHTS];
    t.attention.ring_size = 0;
    t.layer.qkv_bias = true;
    if (!HOLDS(ra_plan_create(&plan, &t.attention, NULL, error) == RA_OK, "%s", error) ||
        !HOLDS(ra_layer_create(&layer, &t.layer, plan, error) == RA_OK, "%s", error))
        return;
    struct ra_layer_arrays good = RA_LAYER_ARRAYS_INIT;
    good.x = good.dy = given.x;
    good.y = good.dx = numbers;
    good.kept = poisoned(ra_layer_kept_bytes(layer));
    good.scratch = poisoned(ra_layer_scratch_bytes(layer));
    struct ra_attention_weights w, bad;
    ra_layer_weights_in(layer, weights, &w, sizeof w);
#define MISSING(field, value, call, text)                  \
    do {                                                   \
        struct ra_layer_arrays a = good;                   \
        a.field = value;                                   \
        expect_refusal(call, ra_layer_error(layer), text); \
    } while (0)
    MISSING(x, NULL, ra_layer_forward(layer, &w, &a), "arrays.x is NULL");
    MISSING(y, NULL, ra_layer_forward(layer, &w, &a), "arrays.y is NULL");
    MISSING(dy, NULL, ra_layer_backward(layer, &w, &a, &w), "arrays.dy is NULL");
    MISSING(dx, NULL, ra_layer_backward(layer, &w, &a, &w), "arrays.dx is NULL");
    MISSING(kept, NULL, ra_layer_forward(layer, &w, &a), "arrays.kept is NULL");
    MISSING(scratch, NULL, ra_layer_backward(layer, &w, &a, &w), "arrays.scratch is NULL");
    MISSING(scratch, (char *)good.scratch + 4, ra_layer_forward(layer, &w, &a),
            "arrays.scratch is");
    MISSING(mask, given.mask, ra_layer_forward(layer, &w, &a), "arrays.mask is given");
    MISSING(size, 3, ra_layer_forward(layer, &w, &a),
            "arrays.size = 3: begin with RA_LAYER_ARRAYS");
    bad = w;
    bad.qkv_bias = NULL;
    expect_refusal(ra_layer_forward(layer, &bad, &good), ra_layer_error(layer),
                   "weights.qkv_bias is NULL: give 32 numbers");
    expect_refusal(ra_layer_backward(layer, &w, &good, &bad), ra_layer_error(layer),
                   "gradients.qkv_bias is NULL");
    expect_refusal(ra_layer_backward(layer, &w, &good, NULL), ra_layer_error(layer),
                   "gradients.size = 0");
    expect_refusal(ra_layer_forward(NULL, &w, &good), ra_layer_error(NULL), "layer is NULL");
    EXPECT(ra_layer_forward(layer, &w, &good) == RA_OK, "%s", ra_layer_error(layer));
    ra_layer_destroy(layer);
    ra_layer_destroy(NULL);
    ra_plan_destroy(plan);
    free(good.kept);
    free(good.scratch);
}

/* One rank refuses: no rank of its ring waits. */
TEST(one_refuses)
{
    static struct made made;
    struct trial t = usual("one refuses");
    make_inputs(&t, all_rows(&t));
    if (ring_size == 1 || !make(&t, &made))
        return;
    bool refuses = rank % ring_size == 1;
    if (refuses)
        made.arrays.y = NULL;

    /* Who refuses before another has its plan would end the making of that. */
    MPI_Barrier(MPI_COMM_WORLD);
    double began = ra_seconds();
    enum ra_status status = ra_layer_forward(made.layer, &made.w, &made.arrays);
    EXPECT(status == (refuses ? RA_INVALID : RA_LOST) &&
               strstr(ra_layer_error(made.layer), "ring rank 1: arrays.y is NULL"),
           "status %d, '%s'", (int)status, ra_layer_error(made.layer));
    EXPECT(ra_seconds() - began < patience / 2, "it waited");
    ra_layer_destroy(made.layer);
    ra_plan_destroy(made.plan);
}

/* Rows are sent, and one rank refuses, or one ring cannot attend: nobody waits, all say the same,
 * and after a refusal all can go on. */
TEST(one_refuses_a_batch)
{
    static struct made made;
    struct trial t = usual("one refuses a batch");
    t.sends_rows = true;
    make_inputs(&t, all_rows(&t));
    if (ranks == 1 || !make(&t, &made))
        return;
    float *y = made.arrays.y;
    double began = ra_seconds();
    made.arrays.y = rank == 1 ? NULL : y;
    enum ra_status status = ra_layer_forward(made.layer, &made.w, &made.arrays);
    EXPECT(status == RA_INVALID &&
               strcmp(ra_layer_error(made.layer), "rank 1: arrays.y is NULL") == 0,
           "status %d, '%s'", (int)status, ra_layer_error(made.layer));
    made.arrays.y = y;
    forward(&t, &made);
    backward(&t, &made);
    judge(&t, &made);
    destroy(&t, &made);

    /* The ranks of the first ring disagree about their slices. */
    t.documents = true;
    if (ring_size == 1 || !make(&t, &made))
        return;
    struct ra_slice all = {0, t.attention.queries, 0, t.attention.queries, -99, rank == 1 ? 0 : 99};
    if (set == 0)
        EXPECT(ra_plan_set_slices(made.plan, &all, 1, RA_DEAL_LAYOUT) == RA_OK, "%s",
               ra_plan_error(made.plan));
    made.arrays.positions = NULL;
    status = ra_layer_forward(made.layer, &made.w, &made.arrays);
    char first[RA_ERROR_SIZE];
    snprintf(first, sizeof first, "%s", ra_layer_error(made.layer));
    MPI_Bcast(first, sizeof first, MPI_CHAR, 0, MPI_COMM_WORLD);
    EXPECT(status != RA_OK && strstr(first, "rank 0: ") == first && strstr(first, "slices") &&
               strcmp(first, ra_layer_error(made.layer)) == 0,
           "status %d, '%s', on rank 0 '%s'", (int)status, ra_layer_error(made.layer), first);
    EXPECT(ra_seconds() - began < patience / 2, "it waited");
    destroy(&t, &made);
}

/* A config that one rank cannot use, where all make the way of a mask together. */
TEST(one_refuses_a_config)
{
    struct trial t = usual("one refuses a config");
    struct made made = {0};
    t.sends_rows = t.attention.has_mask = true;
    t.layer.head_norm = true;
    t.layer.norm_eps = rank == 1 ? 0 : t.layer.norm_eps;
    struct ra_layout layout = ra_layout_of(&t.attention, t.attention.queries);
    char error[RA_ERROR_SIZE] = "";
    if (ranks == 1 || !HOLDS(ra_batch_create(&made.batch, MPI_COMM_WORLD, layout,
                                             DIM * sizeof(float), 1, patience, error) == RA_OK,
                             "%s", error))
        return;
    t.layer.batch = made.batch;
    t.attention.batch = made.batch->set_rows;
    if (!make_plan(&t, &made))
        return;
    enum ra_status status = ra_layer_create(&made.layer, &t.layer, made.plan, error);
    EXPECT(status == RA_INVALID && strstr(error, "rank 1: config.norm_eps = 0: give") == error,
           "status %d, '%s'", (int)status, error);
    ra_plan_destroy(made.plan);
    ra_batch_destroy(made.batch);
}

int main(int argc, char **argv)
{
    verdict_begin_ranks(argc, argv, patience, &rank, &ranks, &ring_size);
    set = rank / ring_size;
    sets = ranks / ring_size;
    MPI_Comm_split(MPI_COMM_WORLD, set, rank, &ring);
    verdict_run_noted();
    int code = verdict_end();
    MPI_Comm_free(&ring);
    MPI_Finalize();
    return code;
}
