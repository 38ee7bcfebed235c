/* stage_plan: a stage program whose attention is the library's. See stage_plan.h. */
#include "stage_plan.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "stage_deal.h"

/* With --method auto, says on stderr what was chosen, and from what: the lines of the description
 * that begin with the method, of the first ring. */
static void say_method(const struct stage *stage, struct ra_plan *plan)
{
    int64_t size = ra_plan_describe(plan, ra_plan_rank(plan), NULL, 0) + 1;
    char *text = stage->config.method == RA_AUTO_METHOD && stage->world.rank == 0
                     ? malloc((size_t)size)
                     : NULL;
    if (!text)
        return;
    ra_plan_describe(plan, ra_plan_rank(plan), text, (size_t)size);
    for (char *line = strstr(text, "method: "); line && (*line == 'm' || *line == ' ');) {
        size_t length = strcspn(line, "\n");
        fprintf(stderr, "%.*s\n", (int)length, line);
        line += length + 1;
    }
    free(text);
}

void stage_use_plan(struct stage *stage, struct ra_plan *plan)
{
    say_method(stage, plan);
    stage->peak_bytes += ra_plan_bytes(plan);
    stage_deal(stage, ra_plan_layout(plan, RA_QUERY_SIDE), ra_plan_layout(plan, RA_KEY_SIDE),
               ra_plan_rank(plan));
}

void stage_count_hops(struct stage *stage, struct ra_plan *plan, bool backward)
{
    for (int step = 0; step < ra_plan_hops(plan); step++) {
        struct ra_hop hop;
        stage_check(stage, ra_plan_hop(plan, ra_plan_rank(plan), step, backward, &hop),
                    ra_plan_error(plan));
        stage_count(stage, backward ? "multiply-adds backward" : "multiply-adds forward",
                    hop.distance, hop.multiply_adds);
        stage_count(stage, backward ? "tiles skipped backward" : "tiles skipped forward",
                    hop.distance, hop.tiles_skipped);
        stage_count(stage, backward ? "messages sent backward" : "messages sent forward",
                    hop.distance, hop.messages);
        stage_count(stage, backward ? "bytes sent backward" : "bytes sent forward", hop.distance,
                    hop.bytes);
    }
}

void stage_write_pass(struct stage *stage, struct ra_plan *plan, const struct ra_arrays *arrays,
                      bool backward)
{
    stage_count_hops(stage, plan, backward);
    if (!backward) {
        stage_write(stage, STAGE_O, arrays->o.data);
        stage_write(stage, STAGE_LSE, arrays->lse.data);
        return;
    }
    stage_write(stage, STAGE_DQ, arrays->dq.data);
    stage_write(stage, STAGE_DK, arrays->dk.data);
    stage_write(stage, STAGE_DV, arrays->dv.data);
}

struct ra_tensor stage_output(struct stage *stage, int64_t rows, int64_t heads, int64_t dim)
{
    float *data = stage_allocate(stage, stage->B * rows * heads * dim, sizeof(float));
    return ra_tensor_bnhd(data, RA_FLOAT32, rows, heads, dim);
}
