/* 01-naive: attention by its definition, forward and backward, in double.
 *
 * Chapter 01. The whole score matrix of a head stands in memory. Every visibility rule is here in
 * its plainest form, because this program is the judge of all later stages: it is written to be
 * obviously right, not to be fast.
 */
#include <inttypes.h>
#include <math.h>
#include "stage_slices.h"

/* The problem and the results, whole. Row i of head h of batch b, D numbers, starts at row(). Dv is
 * D unless v has rows of another length. */
struct arrays {
    const float *q, *d_out; /* (B, N, H, D), (B, N, H, Dv) */
    const float *k, *v;     /* (B, M, G, D), (B, M, G, Dv) */
    const bool *mask;       /* (B, M), or NULL: every key may be seen */
    const float *slopes;    /* (H), or NULL: distances do not count */
    const float *sink;      /* (H), or NULL: the keys share all the weight */
    const float *d_lse;     /* (B, H, N), or NULL: 0 */
    int64_t *slice_of;      /* (N, M): 1 + the slice that a pair is in, 0: none; or NULL */
    double *o, *dq;         /* (B, N, H, Dv), (B, N, H, D) */
    double *lse;            /* (B, H, N) */
    double *dk, *dv;        /* (B, M, G, D), (B, M, G, Dv) */
    double *d_sink;         /* (H) */
    double *largest;        /* (H): the largest score, -inf if there is none */
    double *s;              /* (N, M): the scores of one head, -inf where nothing is to be seen */
    int64_t visible_pairs;
};

/* Where row i of head h of batch b starts in an array (B, rows, heads, D). */
static int64_t row(int64_t b, int64_t rows, int64_t i, int64_t heads, int64_t h, int64_t D)
{
    return ((b * rows + i) * heads + h) * D;
}

/* The key/value head that query head h reads. */
static int64_t key_head(const struct stage *stage, int64_t h)
{
    return stage->config.head_map == RA_INTERLEAVED ? h % stage->G : h / (stage->H / stage->G);
}

/* Draws the slices of the problem, one after the other, into a matrix (N, M); NULL if it has none.
 * Query i sees key j if its slice has both, and j - i is within its band. */
static int64_t *draw_slices(struct stage *stage)
{
    int64_t count;
    const struct ra_slice *slices = stage_slices(stage, &count);
    if (!slices)
        return NULL;
    int64_t *slice_of = stage_zeros(stage, stage->N * stage->M, sizeof *slice_of);
    for (int64_t s = 0; s < count; s++)
        for (int64_t i = slices[s].q0; i < slices[s].q1; i++)
            for (int64_t j = slices[s].k0; j < slices[s].k1; j++) {
                int64_t *pair = slice_of + i * stage->M + j;
                if (j - i < slices[s].lo || j - i > slices[s].hi)
                    continue;
                if (*pair > 0)
                    stage_fail(stage,
                               "slices.npy: slices %" PRId64 " and %" PRId64
                               " overlap: both let query %" PRId64 " see key %" PRId64,
                               *pair - 1, s, i, j);
                *pair = s + 1;
            }
    return slice_of;
}

/* May query i of batch b see key j? */
static bool visible(const struct stage *stage, const struct arrays *all, int64_t b, int64_t i,
                    int64_t j)
{
    if (all->mask && !all->mask[b * stage->M + j])
        return false;
    if (all->slice_of)
        return all->slice_of[i * stage->M + j] > 0;
    if (!stage->config.causal)
        return true;

    /* Causal: the last query stands where the last key stands, and no query sees a later key. */
    int64_t position = i + (stage->M - stage->N);
    if (j > position)
        return false;
    return position - j <= stage->config.lookback;
}

/* The score of one pair of rows: scale * q.k, bent by the soft cap if there is one. */
static double score(const struct stage *stage, const float *q, const float *k)
{
    double s = 0;
    for (int64_t c = 0; c < stage->D; c++)
        s += (double)q[c] * k[c];
    s *= stage->config.scale;
    return stage->config.softcap > 0 ? stage->config.softcap * tanh(s / stage->config.softcap) : s;
}

/* What the distance from query i to key j adds to their score in head h. The last query stands
 * where the last key stands. */
static double distance_score(const struct stage *stage, const struct arrays *all, int64_t h,
                             int64_t i, int64_t j)
{
    int64_t position = i + (stage->M - stage->N);
    return all->slopes ? (double)all->slopes[h] * (double)(j - position) : 0;
}

/* The score that joins the softmax of head h and has no key. */
static double sink(const struct arrays *all, int64_t h)
{
    return all->sink ? all->sink[h] : -INFINITY;
}

/* The weight of a key: exp(s - lse). A key that is not seen has s = -inf and no weight; asking
 * first keeps -inf - -inf, which is NaN, out of the rows that see nothing. */
static double weight(double s, double lse)
{
    return s == -INFINITY ? 0 : exp(s - lse);
}

/* s, lse and o of head h of batch b. */
static void forward(const struct stage *stage, struct arrays *all, int64_t b, int64_t h)
{
    int64_t N = stage->N, M = stage->M, H = stage->H, G = stage->G, D = stage->D;
    int64_t g = key_head(stage, h), Dv = stage->Dv;

    for (int64_t i = 0; i < N; i++) {
        stage_progress(stage, "forward", (b * H + h) * N + i, stage->B * H * N);
        double *s = all->s + i * M;
        double *o = all->o + row(b, N, i, H, h, Dv), *lse = all->lse + (b * H + h) * N + i;

        /* s_ij for every visible pair, and the largest of them and of the sink. */
        double max = sink(all, h);
        for (int64_t j = 0; j < M; j++) {
            s[j] = -INFINITY;
            if (!visible(stage, all, b, i, j))
                continue;
            s[j] = score(stage, all->q + row(b, N, i, H, h, D), all->k + row(b, M, j, G, g, D)) +
                   distance_score(stage, all, h, i, j);
            max = fmax(max, s[j]);
            all->largest[h] = fmax(all->largest[h], s[j]);
            all->visible_pairs++;
        }

        /* lse_i = log (exp sink + sum_j exp s_ij), with max taken out: exp cannot overflow. */
        double sum = weight(sink(all, h), max);
        for (int64_t j = 0; j < M; j++)
            sum += weight(s[j], max);
        *lse = max + log(sum);

        /* o_i = sum_j p_ij v_j. */
        for (int64_t c = 0; c < Dv; c++)
            o[c] = 0;
        for (int64_t j = 0; j < M; j++) {
            double p = weight(s[j], *lse);
            for (int64_t c = 0; c < Dv; c++)
                o[c] += p * all->v[row(b, M, j, G, g, Dv) + c];
        }
    }
}

/* Adds to dq, dk and dv what head h of batch b gives, from its scores, which forward left in s. */
static void backward(const struct stage *stage, struct arrays *all, int64_t b, int64_t h)
{
    int64_t N = stage->N, M = stage->M, H = stage->H, G = stage->G, D = stage->D;
    int64_t g = key_head(stage, h), Dv = stage->Dv;
    for (int64_t i = 0; i < N; i++) {
        stage_progress(stage, "backward", (b * H + h) * N + i, stage->B * H * N);
        int64_t query = row(b, N, i, H, h, D), result = row(b, N, i, H, h, Dv);
        const float *q = all->q + query, *d_out = all->d_out + result;
        const double *s = all->s + i * M, *o = all->o + result;
        double *dq = all->dq + query, lse = all->lse[(b * H + h) * N + i];
        /* delta_i = sum_c dO_ic o_ic - dlse_i. The sink has a weight, and no value. */
        double delta = all->d_lse ? -all->d_lse[(b * H + h) * N + i] : 0;
        for (int64_t c = 0; c < Dv; c++)
            delta += d_out[c] * o[c];
        all->d_sink[h] -= weight(sink(all, h), lse) * delta;

        for (int64_t j = 0; j < M; j++) {
            const float *k = all->k + row(b, M, j, G, g, D), *v = all->v + row(b, M, j, G, g, Dv);
            double *dk = all->dk + row(b, M, j, G, g, D), *dv = all->dv + row(b, M, j, G, g, Dv);
            if (s[j] == -INFINITY)
                continue; /* a key that is not seen has no part in anything */
            /* p_ij, dp_ij = dO_i . v_j, ds_ij = p_ij (dp_ij - delta_i). */
            double p = weight(s[j], lse), dp = 0;
            for (int64_t c = 0; c < Dv; c++)
                dp += (double)d_out[c] * v[c];
            double ds = p * (dp - delta), capped = s[j] - distance_score(stage, all, h, i, j);
            if (stage->config.softcap > 0)
                ds *= 1 - (capped / stage->config.softcap) * (capped / stage->config.softcap);

            /* dv_j += p_ij dO_i; dq_i += scale ds_ij k_j; dk_j += scale ds_ij q_i. */
            for (int64_t c = 0; c < Dv; c++)
                dv[c] += p * d_out[c];
            for (int64_t c = 0; c < D; c++) {
                dq[c] += stage->config.scale * ds * k[c];
                dk[c] += stage->config.scale * ds * q[c];
            }
        }
    }
}

int main(int argc, char **argv)
{
    struct stage stage;
    stage_open(&stage, argc, argv, 1, "01-naive",
               "Attention by its definition, in double: the judge of all later stages.",
               NPY_FLOAT64);
    int64_t query_numbers = stage.B * stage.N * stage.H * stage.D;
    int64_t key_numbers = stage.B * stage.M * stage.G * stage.D;
    int64_t output_numbers = stage.B * stage.N * stage.H * stage.Dv;
    int64_t value_numbers = stage.B * stage.M * stage.G * stage.Dv;

    struct arrays all = {
        .q = stage_input(&stage, STAGE_Q),
        .k = stage_input(&stage, STAGE_K),
        .v = stage_input(&stage, STAGE_V),
        .mask = stage_mask(&stage),
        .slice_of = draw_slices(&stage),
        .slopes = stage_heads(&stage, STAGE_SLOPES),
        .sink = stage_heads(&stage, STAGE_SINK),
        .o = stage_allocate(&stage, output_numbers, sizeof(double)),
        .lse = stage_allocate(&stage, stage.B * stage.H * stage.N, sizeof(double)),
        .s = stage_allocate(&stage, stage.N, stage.M * (int64_t)sizeof(double)),
    };

    all.largest = stage_allocate(&stage, stage.H, sizeof(double));
    for (int64_t h = 0; h < stage.H; h++)
        all.largest[h] = -INFINITY;

    /* The gradients are sums, so they start at zero. */
    if (!stage.config.forward_only) {
        all.d_lse = stage_d_lse(&stage);
        all.d_sink = stage_zeros(&stage, stage.H, sizeof(double));
        all.d_out = stage_input(&stage, STAGE_D_OUT);
        all.dq = stage_zeros(&stage, query_numbers, sizeof(double));
        all.dk = stage_zeros(&stage, key_numbers, sizeof(double));
        all.dv = stage_zeros(&stage, value_numbers, sizeof(double));
    }

    stage_lap(&stage, STAGE_READ);

    /* Head by head, so that one score matrix at a time is enough. */
    for (int64_t b = 0; b < stage.B; b++)
        for (int64_t h = 0; h < stage.H; h++) {
            forward(&stage, &all, b, h);
            stage_lap(&stage, STAGE_FORWARD);
            if (!stage.config.forward_only)
                backward(&stage, &all, b, h);
            stage_lap(&stage, STAGE_BACKWARD);
        }

    stage_write(&stage, STAGE_O, all.o);
    stage_write(&stage, STAGE_LSE, all.lse);
    if (stage_writes(&stage, STAGE_LARGEST))
        stage_write_heads(&stage, STAGE_LARGEST, all.largest);
    if (!stage.config.forward_only) {
        stage_write(&stage, STAGE_DQ, all.dq);
        stage_write(&stage, STAGE_DK, all.dk);
        stage_write(&stage, STAGE_DV, all.dv);
    }
    if (stage_writes(&stage, STAGE_D_SINK))
        stage_write_heads(&stage, STAGE_D_SINK, all.d_sink);

    /* Products of matrices only: s and o forward; dp, dv, dq and dk backward. */
    stage_count(&stage, "multiply-adds forward", 0, all.visible_pairs * (stage.D + stage.Dv));
    if (!stage.config.forward_only)
        stage_count(&stage, "multiply-adds backward", 0,
                    2 * all.visible_pairs * (stage.D + stage.Dv));
    return stage_close(&stage);
}
