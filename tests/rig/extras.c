/* extras: see extras.h. */
#include "extras.h"

#include <stdio.h>
#include <stdlib.h>

static double sink_of(enum sinks sinks, int64_t h, double drawn)
{
    if (sinks == MIXED_SINKS)
        sinks = (enum sinks)(h % MIXED_SINKS);
    switch (sinks) {
    case HIGH_SINKS:
        return 300 + drawn;
    case LOW_SINKS:
        return -300 + drawn;
    case NO_SINKS:
        return -(double)INFINITY;
    case ZERO_SINKS:
        return 0;
    default:
        return drawn;
    }
}

void extras_solve(struct extras *extras, struct problem *p, int which, enum sinks sinks)
{
    struct truth *t = &p->truth;
    uint64_t state = p->seed + 77;
    int64_t rows = t->B * t->N * t->H;
    *extras = (struct extras){.p = p,
                              .which = which,
                              .slopes = truth_numbers(t->H),
                              .sink = truth_numbers(t->H),
                              .d_lse = truth_numbers(rows),
                              .largest = truth_numbers(t->H),
                              .d_sink = truth_numbers(t->H)};
    for (int64_t h = 0; h < t->H; h++) {
        /* Of both signs, and one that is none. */
        extras->slopes[h] = h % 3 == 2 ? 0 : (double)(float)(0.3 * random_number(&state));
        extras->sink[h] = (double)(float)sink_of(sinks, h, random_number(&state));
        extras->largest[h] = -(double)INFINITY;
    }
    for (int64_t e = 0; e < rows; e++)
        extras->d_lse[e] = (double)(float)(3 * random_number(&state));
    t->slopes = which & SLOPES ? extras->slopes : NULL;
    t->sink = which & SINKS ? extras->sink : NULL;
    t->d_lse = which & LSE_GRADIENT ? extras->d_lse : NULL;
    truth_forward(t);
    truth_largest(t);
    for (int64_t e = 0; e < rows; e++)
        if (t->x[LSE][e] == -(double)INFINITY)
            extras->d_lse[e] = (double)NAN;
    if (!p->config.forward_only && problem_type(p, O) == RA_FLOAT32)
        truth_backward(t, NULL);
}

void extras_clear(struct extras *extras)
{
    free(extras->slopes);
    free(extras->sink);
    free(extras->d_lse);
    free(extras->largest);
    free(extras->d_sink);
}

/* Numbers of heads, two apart; NULL: none, all NaN. */
static float *of_heads(int64_t heads, const double *numbers)
{
    float *all = malloc((size_t)(2 * heads) * sizeof *all);
    for (int64_t i = 0; i < 2 * heads; i++)
        all[i] = numbers && i % 2 == 0 ? (float)numbers[i / 2] : NAN;
    return all;
}

void extras_give(const struct extras *extras, struct shard *shard, struct extras_part *part)
{
    const struct truth *t = &extras->p->truth;
    int64_t n = shard->rows[RA_QUERY_SIDE], H = t->H;
    *part = (struct extras_part){.d_lse = malloc((size_t)(t->B * n * H + 1) * sizeof(float)),
                                 .slopes = of_heads(H, extras->slopes),
                                 .sink = of_heads(H, extras->sink),
                                 .d_sink = of_heads(H, NULL),
                                 .largest = of_heads(H, NULL)};
    for (int64_t e = 0; e < t->B * n * H; e++) {
        int64_t b = e / (H * n), h = e / n % H, row = shard->positions[RA_QUERY_SIDE][e % n];
        part->d_lse[e] = (float)extras->d_lse[(b * t->N + row) * H + h];
    }
    struct ra_tensor apart = {NULL, RA_FLOAT32, 0, 0, 2};
    struct {
        int which;
        struct ra_tensor *tensor;
        float *data;
    } all[] = {{SLOPES, &shard->arrays.slopes, part->slopes},
               {SINKS, &shard->arrays.sink, part->sink},
               {SINKS, &shard->arrays.d_sink, part->d_sink},
               {LARGEST, &shard->arrays.largest, part->largest}};
    for (int i = 0; i < 4; i++) {
        *all[i].tensor = apart;
        all[i].tensor->data = extras->which & all[i].which ? all[i].data : NULL;
    }
    shard->arrays.d_lse = ra_tensor_bhn(extras->which & LSE_GRADIENT ? part->d_lse : NULL, n, H);
}

bool extras_collect(struct extras *extras, struct extras_part *part)
{
    bool kept = true;
    for (int64_t i = 0; i < 2 * extras->p->truth.H; i++) {
        float largest = part->largest[i], d_sink = part->d_sink[i];
        if (i % 2 == 1) {
            kept = kept && isnan(largest) && isnan(d_sink);
            continue;
        }
        if (isnan(largest) || (double)largest > extras->largest[i / 2])
            extras->largest[i / 2] = (double)largest;
        extras->d_sink[i / 2] += (double)d_sink;
    }
    free(part->d_lse);
    free(part->slopes);
    free(part->sink);
    free(part->d_sink);
    free(part->largest);
    return kept;
}

bool extras_are_right(const struct extras *extras, char text[TEXT])
{
    const struct truth *t = &extras->p->truth;
    for (int64_t h = 0; h < t->H; h++) {
        const struct {
            const char *name;
            bool asked;
            double want, got, allowed;
        } all[] = {{"largest", (extras->which & LARGEST) != 0, t->largest[h], extras->largest[h],
                    t->largest_error[h]},
                   {"d_sink", (extras->which & SINKS) && !extras->p->config.forward_only,
                    t->d_sink ? t->d_sink[h] : 0, extras->d_sink[h],
                    t->d_sink ? t->d_sink_error[h] + 0x1p-23 * fabs(t->d_sink[h]) + 0x1p-126 : 0}};
        for (int i = 0; i < 2; i++)
            if (all[i].asked && all[i].want != all[i].got &&
                !(fabs(all[i].want - all[i].got) <= all[i].allowed)) {
                snprintf(text, TEXT, "%s of head %d: want %.9g got %.9g, allowed %.3g", all[i].name,
                         (int)h, all[i].want, all[i].got, all[i].allowed);
                return false;
            }
    }
    return true;
}
