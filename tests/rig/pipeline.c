/* pipeline: the warps of a Hopper block that hand tiles of keys and values to each other through
 * mbarriers, as tasks that are played in random orders.
 *
 * Chapter 11d. The loops of a kernel with roles, small enough to be broken: without a GPU it shows
 * what goes wrong if a wait, a parity or a number of arrivals is not right.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Four warps are a warpgroup. Here they do not wait for each other; on the GPU their products make
 * them. A tile is two boxes of 128 rows, 64 columns each; BOX: in bytes. */
enum { STEPS = 20, STAGES = 2, GROUPS = 3, WARPS = 4 * GROUPS, BOXES = 2, BOX = 128 * 128 };
enum { RUNS = 200, MOST_TASKS = 400 };

/* ---- The hardware. */

/* A phase is over when all arrivals have come, and all bytes that were announced. Then the next
 * begins, for which the arrivals are counted anew. */
struct barrier {
    int arrivals, pending, bytes, phase;
};

struct stage {
    const char *name;
    struct barrier full, empty;
    int tile[BOXES]; /* whose bytes lie here */
};

enum kind { WAIT, ARRIVE, EXPECT, COPY, READ };

/* What a thread does, in order. TMA has its copies in any order. */
struct tasks {
    struct task {
        enum kind kind;
        struct barrier *barrier;
        struct stage *stage;
        int number, box; /* a parity, bytes, or a tile */
    } tasks[MOST_TASKS];
    int count, done;
};

static struct tasks producer, tma, warps[WARPS];
static struct stage keys[STAGES], values[STAGES];

static void barrier_begin(struct barrier *barrier, int arrivals)
{
    *barrier = (struct barrier){.arrivals = arrivals, .pending = arrivals};
}

static void barrier_look(struct barrier *barrier)
{
    if (barrier->pending == 0 && barrier->bytes == 0) {
        barrier->pending = barrier->arrivals;
        barrier->phase++;
    }
}

/* False: all of this phase had arrived already. What the hardware does then is not defined. */
static bool barrier_arrive(struct barrier *barrier, int bytes)
{
    if (barrier->pending == 0)
        return false;
    barrier->bytes += bytes;
    barrier->pending--;
    barrier_look(barrier);
    return true;
}

/* Is the phase of this parity over? All that the hardware knows is the parity of the present
 * one. */
static bool barrier_over(const struct barrier *barrier, int parity)
{
    return barrier->phase % 2 != parity;
}

/* ---- The kernel. */

static void put(struct tasks *thread, struct task task)
{
    thread->tasks[thread->count++] = task;
}

static void stage_begin(struct stage *stage, const char *name)
{
    stage->name = name;
    barrier_begin(&stage->full, 1);
    barrier_begin(&stage->empty, WARPS);
    for (int box = 0; box < BOXES; box++)
        stage->tile[box] = -1;
}

/* No stage has been emptied before it is first filled. So the first wait is for the phase before
 * phase 0, whose parity is 1: of a new barrier it counts as over. */
static void load(struct stage *stage, int tile)
{
    int round = tile / STAGES;
    put(&producer, (struct task){WAIT, &stage->empty, .number = (round + 1) % 2});
    put(&producer, (struct task){EXPECT, &stage->full, .number = BOXES * BOX});
    for (int box = 0; box < BOXES; box++)
        put(&producer, (struct task){COPY, &stage->full, stage, tile, box});
}

/* Keys of a step, then values of the one before: the order in which they are used. */
static void produce(void)
{
    for (int t = 0; t <= STEPS; t++) {
        if (t < STEPS)
            load(&keys[t % STAGES], t);
        if (t > 0)
            load(&values[(t - 1) % STAGES], t - 1);
    }
}

/* A product reads the stage, and only when it has ended the stage is given back. */
static void multiply(struct tasks *warp, struct stage *stage, int tile)
{
    int round = tile / STAGES;
    put(warp, (struct task){WAIT, &stage->full, .number = round % 2});
    for (int box = 0; box < BOXES; box++)
        put(warp, (struct task){READ, .stage = stage, .number = tile, .box = box});
    put(warp, (struct task){ARRIVE, .barrier = &stage->empty});
}

static void consume(struct tasks *warp)
{
    for (int t = 0; t < STEPS; t++) {
        multiply(warp, &keys[t % STAGES], t);
        multiply(warp, &values[t % STAGES], t);
    }
}

/* ---- The player. */

/* What went wrong, first of all in this run. */
static char trouble[100];

static void complain(const struct tasks *thread, const struct task *task)
{
    if (trouble[0])
        return;
    if (task->kind == READ)
        snprintf(trouble, sizeof trouble, "warp %d wants %s %d and reads %d", (int)(thread - warps),
                 task->stage->name, task->number, task->stage->tile[task->box]);
    else
        snprintf(trouble, sizeof trouble, "more arrivals than a phase has");
}

/* Does the next task of a thread. False: it has none, or one that still has to wait. */
static bool advance(struct tasks *thread)
{
    struct task *task = &thread->tasks[thread->done];
    if (thread->done == thread->count ||
        (task->kind == WAIT && !barrier_over(task->barrier, task->number)))
        return false;
    if (task->kind == COPY)
        put(&tma, *task);
    if (task->kind == READ && task->stage->tile[task->box] != task->number)
        complain(thread, task);
    if ((task->kind == ARRIVE || task->kind == EXPECT) &&
        !barrier_arrive(task->barrier, task->number))
        complain(thread, task);
    thread->done++;
    return true;
}

/* Any copy that TMA has been asked for comes. */
static bool copy(unsigned dice)
{
    if (tma.done == tma.count)
        return false;
    struct task *next = &tma.tasks[tma.done++];
    struct task *drawn = next + dice % (unsigned)(tma.count - tma.done + 1), task = *drawn;
    *drawn = *next;
    task.stage->tile[task.box] = task.number;
    task.barrier->bytes -= BOX;
    barrier_look(task.barrier);
    return true;
}

/* Plays one run: the thread that is drawn does up to eight tasks; TMA, a copy. Returns how many
 * tasks of the warps are left when nobody can go on. */
static int play(unsigned long long *dice)
{
    int left = 0, idle = 0;
    while (idle < 5000) {
        *dice = *dice * 6364136223846793005 + 1442695040888963407;
        int who = (int)((*dice >> 33) % (WARPS + 2)), most = 1 + (int)(*dice >> 50) % 8, done = 0;
        if (who == WARPS + 1)
            done = copy((unsigned)(*dice >> 40));
        else
            while (done < most && advance(who == WARPS ? &producer : &warps[who]))
                done++;
        idle = done > 0 ? 0 : idle + 1;
    }
    for (int i = 0; i < WARPS; i++)
        left += warps[i].count - warps[i].done;
    return left;
}

/* Nothing has been done, and all that there is to do is on the lists. */
static void begin(void)
{
    memset(warps, 0, sizeof warps);
    producer.count = producer.done = tma.count = tma.done = 0;
    trouble[0] = 0;
    for (int i = 0; i < STAGES; i++) {
        stage_begin(&keys[i], "keys");
        stage_begin(&values[i], "values");
    }
    produce();
    for (int i = 0; i < WARPS; i++)
        consume(&warps[i]);
}

int main(void)
{
    int stuck = 0, wrong = 0;
    unsigned long long dice = 1;
    for (int run = 0; run < RUNS; run++) {
        begin();
        int left = play(&dice);
        if (trouble[0] && wrong++ == 0)
            printf("run %d: %s\n", run, trouble);
        if (left > 0 && stuck++ == 0)
            printf("run %d: stuck, after %d of %d tasks of the producer\n", run, producer.done,
                   producer.count);
    }
    printf("%d runs: %d got stuck, %d went wrong\n", RUNS, stuck, wrong);
    return stuck + wrong > 0;
}
