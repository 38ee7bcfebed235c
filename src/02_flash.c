/* 02-flash: the same attention from tiles, forward and backward, in float32.
 *
 * Chapter 02. New here: no score matrix. Blocks of keys are folded, one after the other, into a
 * carry per query row; the backward computes the scores anew, tile by tile. Memory grows with N and
 * M, not with their product.
 */
#include <stddef.h>
#include "ra_tile.h"
#include "stage.h"

/* The problem and the results, whole. */
struct arrays {
    const float *q, *d_out; /* (B, N, H, D) */
    const float *k, *v;     /* (B, M, H, D) */
    const bool *mask;       /* (B, M), or NULL: every key may be seen */
    float *o, *dq;          /* (B, N, H, D) */
    float *max, *sum;       /* (B, H, N): the carry, beside o */
    float *lse, *delta;     /* (B, H, N) */
    float *dk, *dv;         /* (B, M, H, D) */
    float *workspace;       /* ra_tile_workspace */
    int64_t pairs;          /* query-key pairs of all tiles, forward */
};

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* The block of query rows that begins at row i of head h of batch b. */
static struct ra_queries query_block(const struct stage *stage, const struct arrays *x, int64_t b,
                                     int64_t h, int64_t i)
{
    int64_t at = ((b * stage->N + i) * stage->H + h) * stage->D;
    int64_t row = (b * stage->H + h) * stage->N + i;
    struct ra_queries block = {.rows = smaller(stage->tile_queries, stage->N - i),
                               .stride = stage->H * stage->D,
                               .q = x->q + at,
                               .o = x->o + at,
                               .max = x->max + row,
                               .sum = x->sum + row};
    if (!stage->forward_only) {
        block.d_out = x->d_out + at;
        block.lse = x->lse + row;
        block.delta = x->delta + row;
        block.dq = x->dq + at;
    }
    return block;
}

/* The block of key rows that begins at row j of head h of batch b. */
static struct ra_keys key_block(const struct stage *stage, const struct arrays *x, int64_t b,
                                int64_t h, int64_t j)
{
    int64_t at = ((b * stage->M + j) * stage->H + h) * stage->D;
    struct ra_keys block = {.rows = smaller(stage->tile_keys, stage->M - j),
                            .stride = stage->H * stage->D,
                            .k = x->k + at,
                            .v = x->v + at,
                            .mask = x->mask ? x->mask + b * stage->M + j : NULL};
    if (!stage->forward_only) {
        block.dk = x->dk + at;
        block.dv = x->dv + at;
    }
    return block;
}

/* o and lse of head h of batch b: every block of queries meets every block of keys. */
static void forward(const struct stage *stage, struct arrays *x, int64_t b, int64_t h)
{
    for (int64_t i = 0; i < stage->N; i += stage->tile_queries) {
        int64_t row = (b * stage->H + h) * stage->N + i;
        stage_progress(stage, "forward", row, stage->B * stage->H * stage->N);
        struct ra_queries queries = query_block(stage, x, b, h, i);
        ra_tile_begin(stage->D, &queries);

        for (int64_t j = 0; j < stage->M; j += stage->tile_keys) {
            struct ra_keys keys = key_block(stage, x, b, h, j);
            ra_tile_forward(stage->D, (float)stage->scale, &queries, &keys, RA_ALL_KEYS,
                            x->workspace);
            x->pairs += queries.rows * keys.rows;
        }
        ra_tile_finish(stage->D, &queries, x->lse + row);
    }
}

/* dq, dk and dv of head h of batch b, which must be zero before. */
static void backward(const struct stage *stage, struct arrays *x, int64_t b, int64_t h)
{
    for (int64_t i = 0; i < stage->N; i += stage->tile_queries) {
        int64_t row = (b * stage->H + h) * stage->N + i;
        stage_progress(stage, "backward", row, stage->B * stage->H * stage->N);
        struct ra_queries queries = query_block(stage, x, b, h, i);
        ra_tile_delta(stage->D, &queries, x->delta + row);

        for (int64_t j = 0; j < stage->M; j += stage->tile_keys) {
            struct ra_keys keys = key_block(stage, x, b, h, j);
            ra_tile_backward(stage->D, (float)stage->scale, &queries, &keys, RA_ALL_KEYS,
                             x->workspace);
        }
    }
}

int main(int argc, char **argv)
{
    struct stage stage;
    stage_open(&stage, argc, argv, 2, "02-flash",
               "Attention from tiles: online softmax, and a backward that recomputes.",
               NPY_FLOAT32);
    int64_t query_numbers = stage.B * stage.N * stage.H * stage.D;
    int64_t key_numbers = stage.B * stage.M * stage.H * stage.D;
    int64_t rows = stage.B * stage.H * stage.N;

    int64_t workspace = ra_tile_workspace(stage.tile_queries, stage.tile_keys, stage.D);

    struct arrays x = {
        .q = stage_input(&stage, STAGE_Q, 0, 1, stage.N),
        .k = stage_input(&stage, STAGE_K, 0, 1, stage.M),
        .v = stage_input(&stage, STAGE_V, 0, 1, stage.M),
        .mask = stage_mask(&stage, 0, 1, stage.M),
        .o = stage_allocate(&stage, query_numbers, sizeof(float)),
        .max = stage_allocate(&stage, rows, sizeof(float)),
        .sum = stage_allocate(&stage, rows, sizeof(float)),
        .lse = stage_allocate(&stage, rows, sizeof(float)),
        .workspace = stage_allocate(&stage, workspace, sizeof(float)),
    };

    /* The gradients are sums, so they start at zero. */
    if (!stage.forward_only) {
        x.d_out = stage_input(&stage, STAGE_D_OUT, 0, 1, stage.N);
        x.delta = stage_allocate(&stage, rows, sizeof(float));
        x.dq = stage_zeros(&stage, query_numbers, sizeof(float));
        x.dk = stage_zeros(&stage, key_numbers, sizeof(float));
        x.dv = stage_zeros(&stage, key_numbers, sizeof(float));
    }
    stage_lap(&stage, STAGE_READ);

    for (int64_t b = 0; b < stage.B; b++)
        for (int64_t h = 0; h < stage.H; h++) {
            forward(&stage, &x, b, h);
            stage_lap(&stage, STAGE_FORWARD);
            if (!stage.forward_only)
                backward(&stage, &x, b, h);
            stage_lap(&stage, STAGE_BACKWARD);
        }

    stage_write(&stage, STAGE_O, 0, 1, stage.N, x.o);
    stage_write(&stage, STAGE_LSE, 0, 1, stage.N, x.lse);
    if (!stage.forward_only) {
        stage_write(&stage, STAGE_DQ, 0, 1, stage.N, x.dq);
        stage_write(&stage, STAGE_DK, 0, 1, stage.M, x.dk);
        stage_write(&stage, STAGE_DV, 0, 1, stage.M, x.dv);
    }

    /* Products of matrices only: s and o forward; s again, dp, dv, dq and dk backward. */
    stage_count("multiply-adds forward", 2 * x.pairs * stage.D);
    if (!stage.forward_only)
        stage_count("multiply-adds backward", 5 * x.pairs * stage.D);
    return stage_close(&stage);
}
