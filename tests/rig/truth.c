/* truth: see truth.h. */
#include "truth.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "definition.h"
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
                      .D_v = c->dim_value,
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
    if (a == MASK || a == LSE || a == DELTA)
        return 1;
    bool is_value = a == V || a == O || a == D_OUT || a == DV;
    return is_value && t->D_v > 0 ? t->D_v : t->D;
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
    free(t->largest);
    free(t->largest_error);
    free(t->d_sink);
    free(t->d_sink_error);
    t->largest = t->largest_error = t->d_sink = t->d_sink_error = NULL;
}

/* ---- Work on all processors. */

struct team {
    void (*work)(const struct definition *d, int64_t at);
    const struct definition *d;
    int64_t count;
    atomic_llong next;
};

static void *take_part(void *context)
{
    struct team *team = context;
    for (int64_t at; (at = atomic_fetch_add(&team->next, 1)) < team->count;)
        team->work(team->d, at);
    return NULL;
}

/* work(d, at) for every `at` below count, in float32 and in double. */
static void on_all(struct truth *t, void (*work)(const struct definition *, int64_t), int64_t count,
                   const double *given_o)
{
    enum { MOST = 64 };
    for (int single = 1; single >= 0; single--) {
        struct definition d = {t, single, single ? t->plain : t->x, given_o};
        struct team team = {work, &d, count, 0};
        pthread_t threads[MOST];
        int helpers = 0, started = 0;

        /* Less work than it costs to start threads, or to count processors, is done here. */
        if ((double)(t->B * t->H * t->D) * (double)t->N * (double)t->M >= 1e6) {
            long processors = sysconf(_SC_NPROCESSORS_ONLN);
            helpers = (int)(processors < MOST ? processors : MOST) - 1;
        }
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

/* New arrays for a number of each head. */
static void begin_heads(const struct truth *t, double **numbers, double **error)
{
    free(*numbers);
    free(*error);
    *numbers = truth_numbers(t->H);
    *error = truth_numbers(t->H);
}

void truth_forward(struct truth *t)
{
    begin(t, O);
    begin(t, LSE);
    on_all(t, definition_forward, t->B * t->N * t->H, NULL);
    allow(t, O);
    allow(t, LSE);
}

void truth_largest(struct truth *t)
{
    begin_heads(t, &t->largest, &t->largest_error);
    for (int64_t h = 0; h < t->H; h++)
        definition_largest(t, h);
}

void truth_backward(struct truth *t, const double *o)
{
    for (enum truth_array a = DQ; a <= DELTA; a++)
        begin(t, a);
    on_all(t, definition_delta, t->B * t->N * t->H, o);
    on_all(t, definition_backward, t->B * t->G, o);
    for (enum truth_array a = DQ; a <= DELTA; a++)
        allow(t, a);
    begin_heads(t, &t->d_sink, &t->d_sink_error);
    for (int64_t h = 0; h < t->H && t->sink; h++)
        definition_d_sink(t, h);
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
