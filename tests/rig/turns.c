/* turns: how the warpgroups of k07 hand ds and dq on, as tasks that are played in random orders.
 *
 * Chapter 11e. In every step each warpgroup stores its part of ds, and one of them, another in each
 * step, reads the parts of all, multiplies dq and stores it for the thread that has it added. What
 * is stored is here the number of the step. Without a GPU it shows what goes wrong if a slot, a
 * wait or a parity is not right.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 20, GROUPS = 2, DS_SLOTS = GROUPS, DQ_SLOTS = 1 };
enum { RUNS = 200, MOST_TASKS = 200 };

/* A phase is over when all arrivals have come. Then the next begins. */
struct barrier {
    int arrivals, pending, phase;
};

enum kind { WAIT, ARRIVE, STORE, READ };

struct task {
    enum kind kind;
    struct barrier *barrier;
    int number, *at; /* a parity; or a step, and where it is stored or ought to be read */
};

/* What a warpgroup does, in order; the last one is the thread that has dq added. */
struct tasks {
    struct task tasks[MOST_TASKS];
    int count, done;
};

static struct tasks threads[GROUPS + 1];
static struct barrier ds_full[DS_SLOTS], dq_full[DQ_SLOTS], dq_empty[DQ_SLOTS];
static int ds[DS_SLOTS][GROUPS], dq[DQ_SLOTS];

/* ---- The kernel. */

static void wait_for(struct tasks *me, struct barrier *barrier, int parity)
{
    me->tasks[me->count++] = (struct task){WAIT, barrier, parity, NULL};
}

static void arrive_at(struct tasks *me, struct barrier *barrier)
{
    me->tasks[me->count++] = (struct task){ARRIVE, barrier, 0, NULL};
}

static void store_in(struct tasks *me, int *at, int j)
{
    me->tasks[me->count++] = (struct task){STORE, NULL, j, at};
}

static void read_from(struct tasks *me, int *at, int j)
{
    me->tasks[me->count++] = (struct task){READ, NULL, j, at};
}

/* dq of step j: from ds of all warpgroups into a slot that has been emptied. Nobody has to empty it
 * before it is first filled: of a new barrier the phase of parity 1 counts as over. */
static void multiply_dq(struct tasks *me, int j)
{
    int from = j % DS_SLOTS, to = j % DQ_SLOTS;
    wait_for(me, &ds_full[from], j / DS_SLOTS % 2);
    for (int group = 0; group < GROUPS; group++)
        read_from(me, &ds[from][group], j);
    wait_for(me, &dq_empty[to], (j / DQ_SLOTS + 1) % 2);
    store_in(me, &dq[to], j);
    arrive_at(me, &dq_full[to]);
}

/* Step j of a warpgroup. */
static void multiply(struct tasks *me, int group, int j)
{
    int to = j % DS_SLOTS;
    store_in(me, &ds[to][group], j);
    arrive_at(me, &ds_full[to]);
    if (j % GROUPS == group)
        multiply_dq(me, j);
}

/* Step j of the thread that has dq added. */
static void add_dq(struct tasks *me, int j)
{
    int from = j % DQ_SLOTS;
    wait_for(me, &dq_full[from], j / DQ_SLOTS % 2);
    read_from(me, &dq[from], j);
    arrive_at(me, &dq_empty[from]);
}

static void barriers_begin(struct barrier *barriers, int count, int arrivals)
{
    for (int i = 0; i < count; i++)
        barriers[i] = (struct barrier){arrivals, arrivals, 0};
}

static void begin(void)
{
    memset(threads, 0, sizeof threads);
    barriers_begin(ds_full, DS_SLOTS, GROUPS);
    barriers_begin(dq_full, DQ_SLOTS, 1);
    barriers_begin(dq_empty, DQ_SLOTS, 1);
    for (int j = 0; j < STEPS; j++) {
        for (int group = 0; group < GROUPS; group++)
            multiply(&threads[group], group, j);
        add_dq(&threads[GROUPS], j);
    }
}

/* ---- The player. */

static char trouble[100]; /* the first of this run */

static void complain(const struct tasks *thread, const struct task *task)
{
    if (!trouble[0])
        snprintf(trouble, sizeof trouble, "%s wants step %d and reads %d",
                 thread == &threads[GROUPS] ? "the thread that adds" : "a warpgroup", task->number,
                 *task->at);
}

/* Does the next task of a thread. False: it has none, or one that still has to wait. All that a
 * barrier knows is the parity of its phase. */
static bool advance(struct tasks *thread)
{
    struct task *task = &thread->tasks[thread->done];
    if (thread->done == thread->count ||
        (task->kind == WAIT && task->barrier->phase % 2 == task->number))
        return false;
    if (task->kind == ARRIVE && --task->barrier->pending == 0) {
        task->barrier->pending = task->barrier->arrivals;
        task->barrier->phase++;
    }
    if (task->kind == STORE)
        *task->at = task->number;
    if (task->kind == READ && *task->at != task->number)
        complain(thread, task);
    thread->done++;
    return true;
}

/* How many steps the fastest warpgroup has stored ds of, and the slowest has not. */
static int lead(void)
{
    int first = 0, last = STEPS;
    for (int group = 0; group < GROUPS; group++) {
        int stored = 0;
        for (int i = 0; i < threads[group].done; i++)
            stored += threads[group].tasks[i].kind == ARRIVE &&
                      threads[group].tasks[i].barrier >= ds_full &&
                      threads[group].tasks[i].barrier < ds_full + DS_SLOTS;
        first = stored > first ? stored : first;
        last = stored < last ? stored : last;
    }
    return first - last;
}

int main(void)
{
    int stuck = 0, wrong = 0, most = 0;
    unsigned long long dice = 1;
    for (int run = 0; run < RUNS; run++) {
        begin();
        trouble[0] = 0;
        for (int idle = 0; idle < 500;) {
            dice = dice * 6364136223846793005 + 1442695040888963407;
            int many = 1 + (int)(dice >> 50) % 8;
            idle++;
            while (many-- > 0 && advance(&threads[(dice >> 33) % (GROUPS + 1)]))
                idle = 0;
            most = lead() > most ? lead() : most;
        }
        int left = 0;
        for (int i = 0; i <= GROUPS; i++)
            left += threads[i].count - threads[i].done;
        if (trouble[0] && wrong++ == 0)
            printf("run %d: %s\n", run, trouble);
        stuck += left > 0;
    }
    printf("%d runs: %d got stuck, %d went wrong; at most %d steps ahead\n", RUNS, stuck, wrong,
           most);
    return stuck + wrong > 0;
}
