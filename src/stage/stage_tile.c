/* stage_tile: what a stage program gives to the functions of ra_tile. See stage_tile.h. */
#include "stage_tile.h"

struct ra_score stage_score(const struct stage *stage)
{
    return (struct ra_score){.scale = (float)stage->config.scale,
                             .softcap = (float)stage->config.softcap};
}

struct ra_queries stage_queries(struct stage *stage)
{
    int64_t numbers = stage->B * stage->n * stage->H * stage->D;
    int64_t rows = stage->B * stage->H * stage->n, width = stage->H * stage->D;
    struct ra_queries queries = {.rows = stage->n,
                                 .stride = {width, width, width, width, width},
                                 .q = stage_input(stage, STAGE_Q),
                                 .o = stage_allocate(stage, numbers, sizeof(float)),
                                 .max = stage_allocate(stage, rows, sizeof(float)),
                                 .sum = stage_allocate(stage, rows, sizeof(double)),
                                 .comp = stage_allocate(stage, numbers, sizeof(float)),
                                 .lse = stage_allocate(stage, rows, sizeof(float))};
    if (!stage->config.forward_only) {
        queries.d_out = stage_input(stage, STAGE_D_OUT);
        queries.delta = stage_allocate(stage, rows, sizeof(float));
        queries.dq = stage_allocate(stage, numbers, sizeof(float));
    }
    return queries;
}

void stage_write_queries(struct stage *stage, const struct ra_queries *queries)
{
    stage_write(stage, STAGE_O, queries->o);
    stage_write(stage, STAGE_LSE, queries->lse);
    if (!stage->config.forward_only)
        stage_write(stage, STAGE_DQ, queries->dq);
}
