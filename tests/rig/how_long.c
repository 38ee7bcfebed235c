/* how_long: judges exercise 3 of page 11c. Follows the warps of two_orders, and notes in which
 * rounds they use the queries and weights of a step. Round j lies between barriers j and j + 1.
 */
#define main play_all
#include "two_orders.c"
#undef main
#include <limits.h>

/* The reader's: rounds, counted from the step, and how many stages and places are needed. */
#include "how_long.h"

/* The first and the last round in which something of a step is used, counted from the step. */
struct span {
    int first, last;
};

static void note(struct span *span, int round)
{
    span->first = round < span->first ? round : span->first;
    span->last = round > span->last ? round : span->last;
}

/* The stage in which a part of the queries is; -1: it is something else. */
static int stage_of(const int *part)
{
    for (int stage = 0; stage < STAGES; stage++)
        for (int i = 0; i < WARPS; i++)
            if (part == &queries[stage][i])
                return stage;
    return -1;
}

/* Goes through what this warp does. */
static void follow(const struct warp *me, struct span *of_queries, struct span *of_weights)
{
    int round = -2, copy_began[STAGES] = {0};
    for (const struct task *task = me->tasks; task < me->tasks + me->count; task++) {
        int stage = stage_of(task->at);
        if (task->kind == WAIT)
            round++;
        else if (task->kind == STORE && task->number == UNDER_WAY)
            copy_began[stage] = round;
        else if (task->kind == STORE && stage >= 0)
            note(of_queries, copy_began[stage] - task->number);
        else if (task->kind != ARRIVE)
            note(stage >= 0 ? of_queries : of_weights, round - task->number);
    }
}

int main(void)
{
    struct span of_queries = {INT_MAX, INT_MIN}, of_weights = of_queries;
    begin();
    for (int i = 0; i < WARPS; i++)
        follow(&warps[i], &of_queries, &of_weights);
    const struct {
        const char *name;
        int yours, wanted;
    } answers[] = {
        {"COPY_BEGINS", COPY_BEGINS, of_queries.first},
        {"QUERIES_READ", QUERIES_READ, of_queries.last},
        {"WEIGHTS_STORED", WEIGHTS_STORED, of_weights.first},
        {"WEIGHTS_READ", WEIGHTS_READ, of_weights.last},
        {"STAGES_NEEDED", STAGES_NEEDED, of_queries.last - of_queries.first + 1},
        {"PLACES_NEEDED", PLACES_NEEDED, of_weights.last - of_weights.first + 1},
    };
    int wrong = 0;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (answers[i].yours != answers[i].wanted) {
            printf("%s is too %s\n", answers[i].name,
                   answers[i].yours < answers[i].wanted ? "small" : "large");
            wrong++;
        }
    return wrong > 0;
}
