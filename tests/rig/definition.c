/* definition: attention, pair by pair, as the maths has it. See definition.h. */
#include "definition.h"

#include <math.h>
#include <stdlib.h>

#include "numbers.h"

/* ---- Who sees whom. */

/* Is there a slice that has both? */
static bool is_in_slices(const struct truth *t, int64_t i, int64_t j)
{
    for (const struct ra_slice *s = t->slices; s < t->slices + t->slice_count; s++)
        if (i >= s->q0 && i < s->q1 && j >= s->k0 && j < s->k1 && j - i >= s->lo && j - i <= s->hi)
            return true;
    return !t->slices;
}

bool truth_sees(const struct truth *t, int64_t i, int64_t j)
{
    int64_t back = i + t->M - t->N - j;
    if (t->home[0] && t->home[0][i] != t->home[1][j])
        return false;
    int64_t lowest = t->lo_step > 0 ? i - i % t->lo_step : i;
    int64_t highest = t->hi_step > 0 ? i - i % t->hi_step : i;
    if (j - lowest < t->band.lo || j - highest > t->band.hi)
        return false;
    return (!t->causal || (back >= 0 && back <= t->lookback)) && is_in_slices(t, i, j);
}

static bool is_visible(const struct truth *t, int64_t b, int64_t i, int64_t j)
{
    return truth_sees(t, i, j) && (!t->x[MASK] || t->x[MASK][b * t->M + j] != 0);
}

static int64_t key_head(const struct truth *t, int64_t h)
{
    return t->head_map == RA_GROUPED ? h / (t->H / t->G) : h % t->G;
}

/* Query row number `at` of (B, N, H): its batch, row, head, and the head whose keys it reads. */
struct place {
    int64_t at, b, i, h, g;
};

static struct place place_of(const struct truth *t, int64_t at)
{
    int64_t h = at % t->H;
    return (struct place){at, at / t->H / t->N, at / t->H % t->N, h, key_head(t, h)};
}

/* ---- The definition. */

/* x as this pass has it. */
static double as(const struct definition *d, double x)
{
    return d->single ? (double)(float)x : x;
}

/* x as a factor of a product on tensor cores. */
static double narrow(const struct definition *d, double x)
{
    return d->single ? number_rounded(d->t->weights, x) : x;
}

/* What rounding to 16 bits may move a weight by; 0 if none is rounded. */
static double half_step_of_weight(const struct truth *t, double x)
{
    return t->weights == RA_FLOAT32 ? 0 : number_half_step(t->weights, x);
}

/* a . b and, in double, the sum of the absolute terms. Four sums of each, which a processor takes
 * side by side; in float32 the plain order counts. */
static double dot(const struct definition *d, int64_t D, const double *a, const double *b,
                  double *absolute)
{
    enum { LANES = 4 };
    int64_t c = 0;
    double sums[LANES] = {0}, sizes[LANES] = {0};
    float plain = 0;
    for (; c < D && d->single; c++)
        plain += (float)a[c] * (float)b[c];
    for (; c + LANES <= D; c += LANES)
        for (int lane = 0; lane < LANES; lane++) {
            sums[lane] += a[c + lane] * b[c + lane];
            sizes[lane] += fabs(a[c + lane] * b[c + lane]);
        }
    for (; c < D; c++) {
        sums[0] += a[c] * b[c];
        sizes[0] += fabs(a[c] * b[c]);
    }
    *absolute = sizes[0] + sizes[1] + sizes[2] + sizes[3];
    return d->single ? (double)plain : sums[0] + sums[1] + sums[2] + sums[3];
}

/* Adds factor * row to row number `at` of an output; of that, `error` (in u) and `rounding` are
 * what the factor may err by. */
static void add_row(const struct definition *d, enum truth_array a, int64_t at, double factor,
                    const double *row, double error, double rounding)
{
    int64_t D = truth_width(d->t, a);
    double *out = d->out[a] + at * D;
    if (d->single) {
        for (int64_t c = 0; c < D; c++)
            out[c] = (double)((float)out[c] + (float)factor * (float)row[c]);
        return;
    }
    double *magnitude = d->t->magnitude[a] + at * D, *square = d->t->rounding[a] + at * D;
    for (int64_t c = 0; c < D; c++) {
        out[c] += factor * row[c];
        magnitude[c] += error * fabs(row[c]);
    }
    for (int64_t c = 0; c < D && rounding != 0; c++)
        square[c] += rounding * rounding * row[c] * row[c];
}

/* The score of a visible pair without its slope, and by how many u it errs. */
static double capped_score(const struct definition *d, const double *q, const double *k,
                           double *error)
{
    const struct truth *t = d->t;
    double scale = as(d, t->scale), cap = as(d, t->softcap);
    double score = as(d, scale * dot(d, t->D, q, k, error));
    *error = 1 + fabs(scale) * *error;
    if (cap > 0) {
        double ratio = as(d, tanh(as(d, score / cap)));
        score = as(d, cap * ratio);
        *error = 1 + (1 - ratio * ratio) * *error + (t->tanh_of_exp ? cap : fabs(score));
    }
    return score;
}

/* The same with the slope of head h, of query i and key j. */
static double with_slope(const struct definition *d, int64_t h, int64_t i, int64_t j, double score,
                         double *error)
{
    const struct truth *t = d->t;
    int64_t query = t->places[0] ? t->places[0][i] : i + t->M - t->N;
    int64_t key = t->places[1] ? t->places[1][j] : j;
    if (!t->slopes)
        return score;
    double slope = as(d, as(d, t->slopes[h]) * as(d, (double)(key - query)));
    *error += 2 * fabs(slope) + fabs(score + slope);
    return as(d, score + slope);
}

/* The scores of a query row and all keys, -inf where it may not see one. Returns the largest. */
static double scores_of(const struct definition *d, struct place q, double *score, double *error)
{
    const struct truth *t = d->t;
    double top = -INFINITY;
    for (int64_t j = 0; j < t->M; j++) {
        score[j] = -INFINITY;
        if (!is_visible(t, q.b, q.i, j))
            continue;
        const double *k = truth_row(t, t->x, K, q.b, j, q.g);
        score[j] = capped_score(d, t->x[Q] + q.at * t->D, k, &error[j]);
        score[j] = with_slope(d, q.h, q.i, j, score[j], &error[j]);
        top = fmax(top, score[j]);
    }
    return top;
}

/* The sink of a row's head. */
static double sink_of(const struct definition *d, int64_t at)
{
    return d->t->sink ? as(d, d->t->sink[at % d->t->H]) : -INFINITY;
}

/* o = (sum of e^(s - top) v) / total, and lse, of a query row that sees something, or has a sink.
 */
static void weigh(const struct definition *d, int64_t at, const double *score, const double *error,
                  double top)
{
    struct truth *t = d->t;
    int64_t M = t->M, D = truth_width(t, O), row = t->G * D;
    const double *v = truth_row(t, t->x, V, at / t->H / t->N, 0, key_head(t, at % t->H));
    double *o = d->out[O] + at * D, *magnitude = t->magnitude[O] + at * D, mean = 0;
    double total = as(d, exp(as(d, sink_of(d, at) - top)));
    for (int64_t j = 0; j < M; j++) {
        double weight = as(d, exp(as(d, score[j] - top)));
        total = as(d, total + weight);
        if (weight > 0)
            add_row(d, O, at, narrow(d, weight), v + j * row, weight,
                    half_step_of_weight(t, weight));
    }
    for (int64_t c = 0; c < D; c++)
        o[c] = as(d, o[c] / total);
    d->out[LSE][at] = as(d, top + as(d, log(total)));
    if (d->single)
        return;

    /* If all weights err alike, o stays as it is: the error of one counts by how far its value lies
     * from the mean. */
    for (int64_t j = 0; j < M; j++) {
        double weight = exp(score[j] - top);
        mean += weight > 0 ? weight * error[j] / total : 0;
        for (int64_t c = 0; c < D && weight > 0; c++)
            magnitude[c] += weight * error[j] * fabs(v[j * row + c] - o[c]);
    }
    t->magnitude[LSE][at] = 1 + fabs(d->out[LSE][at]) + mean;
    for (int64_t c = 0; c < D; c++) {
        magnitude[c] /= total;
        t->rounding[O][at * D + c] /= total * total;
    }
}

void definition_forward(const struct definition *d, int64_t at)
{
    double *score = truth_numbers(2 * d->t->M);
    double top = fmax(scores_of(d, place_of(d->t, at), score, score + d->t->M), sink_of(d, at));
    d->out[LSE][at] = top;
    if (top > -INFINITY)
        weigh(d, at, score, score + d->t->M, top);
    free(score);
}

void definition_delta(const struct definition *d, int64_t at)
{
    struct truth *t = d->t;
    int64_t D = truth_width(t, O);
    const double *o = d->given_o ? d->given_o : d->out[O], *d_out = t->x[D_OUT] + at * D;
    double *kept = truth_numbers(D);
    for (int64_t c = 0; c < D; c++) {
        bool rounds = d->single && !d->given_o;
        kept[c] = rounds ? number_rounded(t->type[O], o[at * D + c]) : o[at * D + c];
    }
    double absolute;
    d->out[DELTA][at] = dot(d, D, d_out, kept, &absolute);
    t->magnitude[DELTA][at] += absolute;
    if (t->d_lse) {
        d->out[DELTA][at] = as(d, d->out[DELTA][at] - t->d_lse[at]);
        t->magnitude[DELTA][at] += fabs(d->out[DELTA][at]);
    }
    for (int64_t c = 0; c < D && !d->single; c++) {
        double error = d->given_o ? 0 : t->magnitude[O][at * D + c], square = 0;
        if (!d->given_o)
            square = t->rounding[O][at * D + c];
        if (!d->given_o && t->type[O] != RA_FLOAT32)
            square += pow(number_half_step(t->type[O], kept[c]), 2);
        t->magnitude[DELTA][at] += fabs(d_out[c]) * error;
        t->rounding[DELTA][at] += d_out[c] * d_out[c] * square;
    }
    free(kept);
}

/* The weight of a pair and the gradient of its score; what these may err by. */
struct pair {
    double weight, ds, weight_error, ds_error;
};

/* Of a query row and a key. If it may not see it all is 0. */
static struct pair pair_of(const struct definition *d, struct place q, int64_t j)
{
    const struct truth *t = d->t;
    struct pair pair = {0, 0, 0, 0};
    if (!is_visible(t, q.b, q.i, j))
        return pair;
    const double *k = truth_row(t, t->x, K, q.b, j, q.g), *v = truth_row(t, t->x, V, q.b, j, q.g);
    const double *d_out = t->x[D_OUT] + q.at * truth_width(t, D_OUT);
    double error, score = capped_score(d, t->x[Q] + q.at * t->D, k, &error), of_cap = error;
    double ratio = t->softcap > 0 ? as(d, score / as(d, t->softcap)) : 0;
    score = with_slope(d, q.h, q.i, j, score, &error);
    double slope = as(d, 1 - as(d, ratio * ratio));
    double of_dp,
        difference = as(d, dot(d, truth_width(t, V), d_out, v, &of_dp) - d->out[DELTA][q.at]);
    pair.weight = as(d, exp(as(d, score - d->out[LSE][q.at])));
    pair.ds = as(d, as(d, pair.weight * difference) * slope);
    if (d->single)
        return pair;

    /* The difference is exact here; the sums of absolute terms are what rounding sees of it. */
    error += t->magnitude[LSE][q.at];
    of_dp += t->magnitude[DELTA][q.at];
    pair.weight_error = pair.weight * error;
    pair.ds_error = pair.weight * (error * fabs(difference) + of_dp) * slope;
    if (t->softcap > 0)
        pair.ds_error += pair.weight * fabs(difference) *
                         (1 + ratio * ratio + 2 * fabs(ratio) * of_cap / t->softcap);
    return pair;
}

/* dq of query row number `at`, and what its pairs add to dk and dv. */
static void add_pairs(const struct definition *d, int64_t at)
{
    struct truth *t = d->t;
    struct place place = place_of(t, at);
    int64_t D = t->D;
    double scale = as(d, t->scale), *mean = truth_numbers(D), of_delta = t->rounding[DELTA][at];
    const double *q = t->x[Q] + at * D, *d_out = t->x[D_OUT] + at * truth_width(t, D_OUT);
    bool shared = !d->single && of_delta != 0;
    for (int64_t j = 0; j < t->M; j++) {
        int64_t key = (place.b * t->M + j) * t->G + place.g;
        const double *k = t->x[K] + key * D;
        struct pair pair = pair_of(d, place, j);
        if (pair.weight == 0)
            continue;
        double ds = as(d, scale * narrow(d, pair.ds)), ds_error = fabs(scale) * pair.ds_error;
        double step = half_step_of_weight(t, pair.ds);
        add_row(d, DV, key, narrow(d, pair.weight), d_out, pair.weight_error,
                half_step_of_weight(t, pair.weight));
        add_row(d, DQ, at, ds, k, ds_error, scale * step);
        add_row(d, DK, key, ds, q, ds_error,
                scale * sqrt(step * step + of_delta * pair.weight * pair.weight));
        for (int64_t c = 0; c < D && shared; c++)
            mean[c] += scale * pair.weight * k[c];
    }

    /* What is wrong with delta is wrong in all pairs alike. */
    for (int64_t c = 0; c < D && shared; c++)
        t->rounding[DQ][at * D + c] += of_delta * mean[c] * mean[c];
    free(mean);
}

void definition_backward(const struct definition *d, int64_t at)
{
    const struct truth *t = d->t;
    for (int64_t h = 0; h < t->H; h++)
        for (int64_t i = 0; i < t->N && key_head(t, h) == at % t->G; i++)
            add_pairs(d, (at / t->G * t->N + i) * t->H + h);
}

void definition_largest(struct truth *t, int64_t h)
{
    const struct definition d = {t, false, t->x, NULL};
    double *score = truth_numbers(2 * t->M), *error = score + t->M;
    t->largest[h] = -INFINITY;
    for (int64_t at = h; at < t->B * t->N * t->H; at += t->H) {
        scores_of(&d, place_of(t, at), score, error);
        for (int64_t j = 0; j < t->M; j++) {
            if (score[j] == -INFINITY)
                continue;
            t->largest[h] = fmax(t->largest[h], score[j]);
            t->largest_error[h] = fmax(t->largest_error[h], 4 * 0x1p-24 * error[j]);
        }
    }
    free(score);
}

void definition_d_sink(struct truth *t, int64_t h)
{
    double error = 0, square = 0;
    for (int64_t at = h; at < t->B * t->N * t->H; at += t->H) {
        double delta = t->x[DELTA][at], p = exp(t->sink[h] - t->x[LSE][at]);
        if (t->sink[h] == -INFINITY)
            continue;
        t->d_sink[h] -= p * delta;
        error += p * (t->magnitude[LSE][at] * fabs(delta) + t->magnitude[DELTA][at]);
        square += p * p * t->rounding[DELTA][at];
    }
    t->d_sink_error[h] = 4 * 0x1p-24 * error + 2 * sqrt(square);
}
