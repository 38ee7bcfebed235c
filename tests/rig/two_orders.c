/* two_orders: the eight warps of k03's backward between their barriers, played in random orders.
 *
 * Chapter 11c. A step of queries is copied into a stage. Weighing reads that stage and stores a
 * part of p and ds; accumulating reads the stage again, and the parts of all warps. Half of the
 * warps do the two in the other order. What is stored is here the number of the step. Without a GPU
 * it shows whether there are enough stages and places.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 12, WARPS = 8, STAGES = 3, PLACES = 2 };
enum { RUNS = 200, MOST_TASKS = 500, UNDER_WAY = -1 };

enum kind { ARRIVE, WAIT, STORE, READ };

struct task {
    enum kind kind;
    int *at, number; /* where a step is stored, or ought to be read */
};

static struct warp {
    struct task tasks[MOST_TASKS];
    int count, done, arrivals;
    int accumulates_first; /* after so many barriers */
    bool met;              /* and has done nothing since */
} warps[WARPS];

/* Each warp has its part of what is copied and of what is stored. */
static int queries[STAGES][WARPS], weights[PLACES][WARPS];

/* ---- The kernel. */

static void add(struct warp *me, enum kind kind, int *at, int number)
{
    me->tasks[me->count++] = (struct task){kind, at, number};
}

static void meet(struct warp *me)
{
    add(me, ARRIVE, NULL, 0);
    add(me, WAIT, NULL, 0);
    me->met = true;
}

/* While a copy is under way, the stage has neither the old queries nor the new ones. */
static void begin_copy(struct warp *me, int j)
{
    if (j < STEPS)
        add(me, STORE, &queries[j % STAGES][me - warps], UNDER_WAY);
}

static void end_copy(struct warp *me, int j)
{
    if (j < STEPS)
        add(me, STORE, &queries[j % STAGES][me - warps], j);
}

static void read_all(struct warp *me, int parts[WARPS], int j)
{
    for (int i = 0; i < WARPS; i++)
        add(me, READ, &parts[i], j);
}

static void weigh(struct warp *me, int j)
{
    me->met = false;
    read_all(me, queries[j % STAGES], j);
    add(me, STORE, &weights[j % PLACES][me - warps], j);
}

static void accumulate(struct warp *me, int j)
{
    me->accumulates_first += me->met;
    me->met = false;
    read_all(me, weights[j % PLACES], j);
    read_all(me, queries[j % STAGES], j);
}

/* What a warp does after barrier j, and before the next: it accumulates step j, if there is one,
 * and weighs the next. */
static void go_round(struct warp *me, bool late, int j)
{
    if (!late && j >= 0)
        accumulate(me, j);
    begin_copy(me, j + 2);
    if (j + 1 < STEPS)
        weigh(me, j + 1);
    if (late && j >= 0)
        accumulate(me, j);
    end_copy(me, j + 2);
}

static void begin(void)
{
    memset(warps, 0, sizeof warps);
    memset(queries, 0, sizeof queries); /* those of step 0 are there */
    memset(weights, UNDER_WAY, sizeof weights);
    for (struct warp *me = warps; me < warps + WARPS; me++)
        for (int j = -1; j < STEPS; j++) {
            meet(me);
            go_round(me, me < warps + WARPS / 2, j);
        }
}

/* ---- The player. */

/* Does the next task of a warp. False: it has none, or has to wait for others. */
static bool play(struct warp *me, bool *wrong)
{
    struct task task = me->tasks[me->done];
    if (me->done == me->count)
        return false;
    for (int i = 0; task.kind == WAIT && i < WARPS; i++)
        if (warps[i].arrivals < me->arrivals)
            return false;
    me->done++;
    me->arrivals += task.kind == ARRIVE;
    if (task.kind == STORE)
        *task.at = task.number;
    *wrong = *wrong || (task.kind == READ && *task.at != task.number);
    return true;
}

int main(void)
{
    int wrong = 0, first = 0;
    unsigned long long dice = 1;
    for (int run = 0; run < RUNS; run++) {
        bool is_wrong = false;
        begin();
        for (int idle = 0; idle < 500; idle++) {
            dice = dice * 6364136223846793005 + 1442695040888963407;
            int many = 1 + (int)(dice >> 50) % 64;
            while (many-- > 0 && play(&warps[(dice >> 33) % WARPS], &is_wrong))
                idle = 0;
        }
        wrong += is_wrong;
    }
    for (int i = 0; i < WARPS; i++)
        first += 2 * warps[i].accumulates_first > STEPS;
    printf("%d runs: %d went wrong; %d of %d warps accumulate first\n", RUNS, wrong, first, WARPS);
    return wrong > 0 || first != WARPS / 2;
}
