/* truth: see truth.h. */
#include "truth.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "numbers.h"

const char *const truth_names[TRUTHS] = {"q",     "k",  "v",  "mask", "o",    "lse",
                                         "d_out", "dq", "dk", "dv",   "delta"};

/* ---- Shapes. */

struct truth truth_of(const struct ra_config *c)
{
    struct truth t = {.B = c->batch,
                      .N = c->queries,
                      .M = c->keys == RA_SAME ? c->queries : c->keys,
                      .H = c->heads,
                      .G = c->key_heads == RA_SAME ? c->heads : c->key_heads,
                      .D = c->dim,
                      .head_map = c->head_map,
                      .scale = c->scale,
                      .softcap = c->softcap,
                      .causal = c->causal,
                      .lookback = c->lookback,
                      .band = RA_ALL_KEYS};
    if (c->scale == RA_DEFAULT_SCALE)
        t.scale = 1 / sqrt((double)c->dim);
    for (int a = 0; a < ARRAYS; a++)
        t.type[a] = a == MASK ? RA_BOOL : a == LSE ? RA_FLOAT32 : c->type;
    return t;
}

bool truth_is_output(enum truth_array a)
{
    return a == O || a == LSE || a >= DQ;
}

bool truth_is_of_keys(enum truth_array a)
{
    return a == K || a == V || a == MASK || a == DK || a == DV;
}

int64_t truth_rows(const struct truth *t, enum truth_array a)
{
    return truth_is_of_keys(a) ? t->M : t->N;
}

int64_t truth_heads(const struct truth *t, enum truth_array a)
{
    return a == MASK ? 1 : truth_is_of_keys(a) ? t->G : t->H;
}

int64_t truth_width(const struct truth *t, enum truth_array a)
{
    return a == MASK || a == LSE || a == DELTA ? 1 : t->D;
}

int64_t truth_count(const struct truth *t, enum truth_array a)
{
    return t->B * truth_rows(t, a) * truth_heads(t, a) * truth_width(t, a);
}

double *truth_row(const struct truth *t, double *const *arrays, enum truth_array a, int64_t b,
                  int64_t i, int64_t h)
{
    return arrays[a] + ((b * truth_rows(t, a) + i) * truth_heads(t, a) + h) * truth_width(t, a);
}

double *truth_numbers(int64_t count)
{
    double *numbers = calloc((size_t)count + 1, sizeof *numbers);
    if (numbers)
        return numbers;
    perror("truth");
    exit(1);
}

void truth_make_inputs(struct truth *t, double (*draw)(uint64_t *state), double q_size,
                       uint64_t *state)
{
    static const enum truth_array inputs[] = {Q, K, V, D_OUT};
    for (int i = 0; i < 4; i++) {
        enum truth_array a = inputs[i];
        t->x[a] = truth_numbers(truth_count(t, a));
        for (int64_t e = 0; e < truth_count(t, a); e++)
            t->x[a][e] = number_rounded(t->type[a], (a == Q ? q_size : 1) * draw(state));
    }
}

void truth_clear(struct truth *t)
{
    for (int a = 0; a < TRUTHS; a++) {
        free(t->x[a]);
        free(t->allowed[a]);
        free(t->plain[a]);
        free(t->magnitude[a]);
        free(t->rounding[a]);
        t->x[a] = t->allowed[a] = t->plain[a] = t->magnitude[a] = t->rounding[a] = NULL;
    }
}

/* ---- Who sees whom. */

bool truth_sees(const struct truth *t, int64_t i, int64_t j)
{
    int64_t back = i + t->M - t->N - j;
    if (t->home[0] && t->home[0][i] != t->home[1][j])
        return false;
    if (j - i < t->band.lo || j - i > t->band.hi)
        return false;
    return !t->causal || (back >= 0 && back <= t->lookback);
}

static int64_t key_head(const struct truth *t, int64_t h)
{
    return t->head_map == RA_GROUPED ? h / (t->H / t->G) : h % t->G;
}

/* ---- The definition. */

/* One of the two computations: `single`, every step in float32, into plain; or in double into x,
 * and what is allowed with it. */
struct pass {
    struct truth *t;
    bool single;
    double **out;
    const double *given_o;
};

/* x as this pass has it. */
static double as(const struct pass *pass, double x)
{
    return pass->single ? (double)(float)x : x;
}

/* x as a factor of a product on tensor cores. */
static double narrow(const struct pass *pass, double x)
{
    return pass->single ? number_rounded(pass->t->weights, x) : x;
}

/* What rounding to 16 bits may move a weight by; 0 if none is rounded. */
static double half_step_of_weight(const struct truth *t, double x)
{
    return t->weights == RA_FLOAT32 ? 0 : number_half_step(t->weights, x);
}

static double dot(const struct pass *pass, const double *a, const double *b)
{
    int64_t D = pass->t->D;
    float plain = 0;
    double exact = 0;
    if (pass->single)
        for (int64_t c = 0; c < D; c++)
            plain += (float)a[c] * (float)b[c];
    else
        for (int64_t c = 0; c < D; c++)
            exact += a[c] * b[c];
    return pass->single ? (double)plain : exact;
}

static double absolute_dot(const struct truth *t, const double *a, const double *b)
{
    double sum = 0;
    for (int64_t c = 0; c < t->D; c++)
        sum += fabs(a[c] * b[c]);
    return sum;
}

/* Adds factor * row to row number `at` of an output; of that, `error` (in u) and `rounding` are what
 * the factor may err by. */
static void add_row(const struct pass *pass, enum truth_array a, int64_t at, double factor,
                    const double *row, double error, double rounding)
{
    int64_t D = pass->t->D;
    double *out = pass->out[a] + at * D;
    if (pass->single) {
        for (int64_t c = 0; c < D; c++)
            out[c] = (double)((float)out[c] + (float)factor * (float)row[c]);
        return;
    }
    double *magnitude = pass->t->magnitude[a] + at * D, *square = pass->t->rounding[a] + at * D;
    for (int64_t c = 0; c < D; c++) {
        out[c] += factor * row[c];
        magnitude[c] += error * fabs(row[c]);
        square[c] += rounding * rounding * row[c] * row[c];
    }
}

/* The score of a visible pair, and by how many u it errs. */
static double score_of(const struct pass *pass, const double *q, const double *k, double *error)
{
    const struct truth *t = pass->t;
    double scale = as(pass, t->scale), cap = as(pass, t->softcap);
    double score = as(pass, scale * dot(pass, q, k));
    *error = pass->single ? 0 : 1 + fabs(scale) * absolute_dot(t, q, k);
    if (cap > 0) {
        double ratio = as(pass, tanh(as(pass, score / cap)));
        score = as(pass, cap * ratio);
        *error = 1 + (1 - ratio * ratio) * *error + (t->tanh_of_exp ? cap : fabs(score));
    }
    return score;
}

/* o and lse of one query row: number `at` of (B, N, H). */
static void forward_row(const struct pass *pass, int64_t at)
{
    struct truth *t = pass->t;
    int64_t M = t->M, D = t->D, h = at % t->H, i = at / t->H % t->N, b = at / t->H / t->N;
    double *score = truth_numbers(2 * M), *error = score + M, top = -INFINITY, total = 0, mean = 0;
    const double *v = truth_row(t, t->x, V, b, 0, key_head(t, h));
    for (int64_t j = 0; j < M; j++) {
        const double *k = truth_row(t, t->x, K, b, j, key_head(t, h));
        bool seen = truth_sees(t, i, j) && (!t->x[MASK] || t->x[MASK][b * M + j] != 0);
        score[j] = seen ? score_of(pass, t->x[Q] + at * D, k, &error[j]) : -INFINITY;
        top = fmax(top, score[j]);
    }
    pass->out[LSE][at] = top;
    for (int64_t j = 0; j < M && top > -INFINITY; j++)
        total = as(pass, total + as(pass, exp(as(pass, score[j] - top))));

    /* o = (sum of e^(s - top) v) / total. Weights that all err alike leave it as it is: the error of
     * one counts by how far its value lies from the mean. */
    double *o = pass->out[O] + at * D;
    for (int64_t j = 0; j < M && top > -INFINITY; j++) {
        double weight = as(pass, exp(as(pass, score[j] - top)));
        if (weight > 0)
            add_row(pass, O, at, narrow(pass, weight), v + j * t->G * D, weight,
                    half_step_of_weight(t, weight));
        mean += weight * error[j] / total;
    }
    for (int64_t c = 0; c < D && top > -INFINITY; c++)
        o[c] = as(pass, o[c] / total);
    for (int64_t j = 0; j < M && top > -INFINITY && !pass->single; j++)
        for (int64_t c = 0; c < D && score[j] > -INFINITY; c++)
            t->magnitude[O][at * D + c] +=
                exp(score[j] - top) * error[j] * fabs(v[j * t->G * D + c] - o[c]);
    if (top > -INFINITY)
        pass->out[LSE][at] = as(pass, top + as(pass, log(total)));
    if (top > -INFINITY && !pass->single) {
        t->magnitude[LSE][at] = 1 + fabs(pass->out[LSE][at]) + mean;
        for (int64_t c = 0; c < D; c++) {
            t->magnitude[O][at * D + c] /= total;
            t->rounding[O][at * D + c] /= total * total;
        }
    }
    free(score);
}

/* delta of one query row. */
static void delta_row(const struct pass *pass, int64_t at)
{
    struct truth *t = pass->t;
    const double *o = pass->given_o ? pass->given_o : pass->out[O],
                 *d_out = t->x[D_OUT] + at * t->D;
    double *kept = truth_numbers(t->D);
    for (int64_t c = 0; c < t->D; c++) {
        bool rounds = pass->single && !pass->given_o;
        kept[c] = rounds ? number_rounded(t->type[O], o[at * t->D + c]) : o[at * t->D + c];
    }
    pass->out[DELTA][at] = dot(pass, d_out, kept);
    for (int64_t c = 0; c < t->D && !pass->single; c++) {
        double error = pass->given_o ? 0 : t->magnitude[O][at * t->D + c], square = 0;
        if (!pass->given_o && t->type[O] != RA_FLOAT32)
            square = pow(number_half_step(t->type[O], kept[c]), 2) + t->rounding[O][at * t->D + c];
        t->magnitude[DELTA][at] += fabs(d_out[c]) * (fabs(kept[c]) + error);
        t->rounding[DELTA][at] += d_out[c] * d_out[c] * square;
    }
    free(kept);
}

/* The weight of a pair and the gradient of its score; what these may err by. */
struct pair {
    double weight, ds, weight_error, ds_error;
};

/* Of query row number `at` and a key that it may not see: then all is 0. */
static struct pair pair_of(const struct pass *pass, int64_t at, int64_t j)
{
    const struct truth *t = pass->t;
    int64_t h = at % t->H, i = at / t->H % t->N, b = at / t->H / t->N;
    struct pair pair = {0, 0, 0, 0};
    if (!truth_sees(t, i, j) || (t->x[MASK] && t->x[MASK][b * t->M + j] == 0))
        return pair;
    const double *k = truth_row(t, t->x, K, b, j, key_head(t, h));
    const double *v = truth_row(t, t->x, V, b, j, key_head(t, h)), *d_out = t->x[D_OUT] + at * t->D;
    double error, score = score_of(pass, t->x[Q] + at * t->D, k, &error);
    double ratio = t->softcap > 0 ? as(pass, score / as(pass, t->softcap)) : 0;
    double slope = as(pass, 1 - as(pass, ratio * ratio));
    double difference = as(pass, dot(pass, d_out, v) - pass->out[DELTA][at]);
    pair.weight = as(pass, exp(as(pass, score - pass->out[LSE][at])));
    pair.ds = as(pass, as(pass, pair.weight * difference) * slope);
    if (pass->single)
        return pair;

    /* The difference is exact here; the sums of absolute terms are what rounding sees of it. */
    error += t->magnitude[LSE][at];
    double of_dp = absolute_dot(t, d_out, v) + t->magnitude[DELTA][at];
    pair.weight_error = pair.weight * error;
    pair.ds_error = pair.weight * (error * fabs(difference) + of_dp) * slope;
    if (t->softcap > 0)
        pair.ds_error +=
            pair.weight * fabs(difference) *
            (1 + ratio * ratio + 2 * fabs(ratio) * (error - t->magnitude[LSE][at]) / t->softcap);
    return pair;
}

/* dq of one query row. What is wrong with delta is wrong in all pairs alike. */
static void query_row(const struct pass *pass, int64_t at)
{
    struct truth *t = pass->t;
    int64_t D = t->D, h = at % t->H, b = at / t->H / t->N;
    double scale = as(pass, t->scale), *mean = truth_numbers(D);
    for (int64_t j = 0; j < t->M; j++) {
        const double *k = truth_row(t, t->x, K, b, j, key_head(t, h));
        struct pair pair = pair_of(pass, at, j);
        if (pair.weight == 0)
            continue;
        add_row(pass, DQ, at, as(pass, scale * narrow(pass, pair.ds)), k,
                fabs(scale) * pair.ds_error, scale * half_step_of_weight(t, pair.ds));
        for (int64_t c = 0; c < D; c++)
            mean[c] += scale * pair.weight * k[c];
    }
    for (int64_t c = 0; c < D && !pass->single; c++)
        t->rounding[DQ][at * D + c] += t->rounding[DELTA][at] * mean[c] * mean[c];
    free(mean);
}

/* dk and dv of one key row: number `at` of (B, M, G). */
static void key_row(const struct pass *pass, int64_t at)
{
    struct truth *t = pass->t;
    int64_t g = at % t->G, j = at / t->G % t->M, b = at / t->G / t->M;
    double scale = as(pass, t->scale);
    for (int64_t h = 0; h < t->H; h++)
        for (int64_t i = 0; i < t->N && key_head(t, h) == g; i++) {
            int64_t query = (b * t->N + i) * t->H + h;
            struct pair pair = pair_of(pass, query, j);
            if (pair.weight == 0)
                continue;
            add_row(pass, DV, at, narrow(pass, pair.weight), t->x[D_OUT] + query * t->D,
                    pair.weight_error, half_step_of_weight(t, pair.weight));
            double step = half_step_of_weight(t, pair.ds), of_delta = t->rounding[DELTA][query];
            add_row(pass, DK, at, as(pass, scale * narrow(pass, pair.ds)), t->x[Q] + query * t->D,
                    fabs(scale) * pair.ds_error,
                    scale * sqrt(step * step + of_delta * pair.weight * pair.weight));
        }
}

/* ---- Work on all processors. */

struct team {
    void (*work)(const struct pass *pass, int64_t at);
    const struct pass *pass;
    int64_t count;
    atomic_llong next;
};

static void *take_part(void *context)
{
    struct team *team = context;
    for (int64_t at; (at = atomic_fetch_add(&team->next, 1)) < team->count;)
        team->work(team->pass, at);
    return NULL;
}

/* work(pass, at) for every `at` below count, both passes. */
static void on_all(struct truth *t, void (*work)(const struct pass *, int64_t), int64_t count,
                   const double *given_o)
{
    enum { MOST = 64 };
    for (int single = 1; single >= 0; single--) {
        struct pass pass = {t, single, single ? t->plain : t->x, given_o};
        struct team team = {work, &pass, count, 0};
        pthread_t threads[MOST];
        long processors = sysconf(_SC_NPROCESSORS_ONLN);
        int helpers = (int)(processors < MOST ? processors : MOST) - 1, started = 0;

        /* Less work than it costs to start threads. */
        if ((double)(t->B * t->H * t->D) * (double)t->N * (double)t->M < 1e6)
            helpers = 0;
        while (started < helpers && pthread_create(&threads[started], NULL, take_part, &team) == 0)
            started++;
        take_part(&team);
        for (int i = 0; i < started; i++)
            pthread_join(threads[i], NULL);
    }
}

/* ---- What is allowed. */

/* The head of batch and head that element e of an array is of. */
static int64_t head_of(const struct truth *t, enum truth_array a, int64_t e)
{
    int64_t heads = truth_heads(t, a), width = truth_width(t, a);
    return e / (truth_rows(t, a) * heads * width) * heads + e / width % heads;
}

/* New arrays for an output. */
static void begin(struct truth *t, enum truth_array a)
{
    double **arrays[] = {&t->x[a], &t->plain[a], &t->magnitude[a], &t->rounding[a], &t->allowed[a]};
    for (int i = 0; i < 5; i++) {
        free(*arrays[i]);
        *arrays[i] = truth_numbers(i < 4 ? truth_count(t, a) : t->B * truth_heads(t, a));
    }
    for (int64_t e = 0; a >= DQ && a <= DV && t->before[a] && e < truth_count(t, a); e++) {
        t->x[a][e] = t->plain[a][e] = t->before[a][e];
        t->magnitude[a][e] = fabs(t->before[a][e]);
    }
}

/* The three terms of truth.h. */
static void allow(struct truth *t, enum truth_array a)
{
    int64_t heads = t->B * truth_heads(t, a);
    double *largest = truth_numbers(3 * heads), ulps = t->weights == RA_FLOAT32 ? 4 : 8;
    for (int64_t e = 0; e < truth_count(t, a); e++) {
        double *most = largest + 3 * head_of(t, a, e), plain = t->plain[a][e];
        if (t->x[a][e] == plain && !isfinite(plain))
            continue;
        most[0] = isfinite(plain) ? fmax(most[0], fabs(plain - t->x[a][e])) : INFINITY;
        most[1] = fmax(most[1], t->magnitude[a][e]);
        most[2] = fmax(most[2], sqrt(t->rounding[a][e]));
    }
    for (int64_t head = 0; head < heads; head++) {
        double *most = largest + 3 * head;
        double allowed = 2 * most[0] + ulps * 0x1p-24 * most[1] + 2 * most[2];
        t->allowed[a][head] = isfinite(allowed) ? allowed : NAN;
    }
    free(largest);
}

void truth_forward(struct truth *t)
{
    begin(t, O);
    begin(t, LSE);
    on_all(t, forward_row, t->B * t->N * t->H, NULL);
    allow(t, O);
    allow(t, LSE);
}

void truth_backward(struct truth *t, const double *o)
{
    for (enum truth_array a = DQ; a <= DELTA; a++)
        begin(t, a);
    on_all(t, delta_row, t->B * t->N * t->H, o);
    on_all(t, query_row, t->B * t->N * t->H, o);
    on_all(t, key_row, t->B * t->M * t->G, o);
    for (enum truth_array a = DQ; a <= DELTA; a++)
        allow(t, a);
}

double truth_judge(const struct truth *t, enum truth_array a, const double *got, char *text)
{
    int64_t heads = truth_heads(t, a), width = truth_width(t, a), rows = truth_rows(t, a), at = 0;
    double worst = 0;
    for (int64_t e = 0; e < truth_count(t, a); e++) {
        double want = t->x[a][e], allowed = t->allowed[a][head_of(t, a, e)];
        if (a < ARRAYS && t->type[a] != RA_FLOAT32)
            allowed += number_half_step(t->type[a], fabs(want) + allowed);

        /* -inf must be met by -inf. NaN, also in what is allowed, is worse than anything. */
        double share = want == got[e] ? 0 : fabs(want - got[e]) / allowed;
        share = isnan(share) ? INFINITY : share;
        at = share > worst ? e : at;
        worst = fmax(worst, share);
    }
    if (worst > 1)
        snprintf(
            text, TRUTH_TEXT,
            "%s of batch %lld row %lld head %lld number %lld: want %.9g got %.9g, %.3g of what "
            "is allowed",
            truth_names[a], (long long)(at / width / heads / rows),
            (long long)(at / width / heads % rows), (long long)(at / width % heads),
            (long long)(at % width), t->x[a][at], got[at], worst);
    return worst;
}
