/* streams: forward calls of a ring of GPUs, as tasks in streams that are played in random orders.
 *
 * Chapter 11. The loop of src/cuda/ra_cuda_ring.c with its signals, small enough to be broken:
 * without a GPU it shows what goes wrong if one of its waits is left out.
 */
#include <stdio.h>
#include <string.h>

enum { GPUS = 5, CALLS = 20, RUNS = 200, MOST_TASKS = 4000 };

/* To wait until a place holds a number, or more; to write it there; to copy a number to the place;
 * to compute with what lies there, which should be this number. */
enum kind { WAIT, WRITE, COPY, USE };

struct stream {
    struct task {
        enum kind kind;
        int *place, number;
        const int *from;
    } tasks[MOST_TASKS];
    int count, done;
};

/* A message of keys is two numbers, which arrive one after the other. */
struct gpu {
    struct stream work, copies;
    int keys[3][2];                    /* this GPU's own, and two slots for visitors */
    int credit[GPUS + 1], ready[GPUS]; /* flags, by step: the number of the call */
    int packed, arrived, computed;     /* events: how many so far */
};

static struct gpu gpus[GPUS];

static void put(struct stream *stream, enum kind kind, int *place, int number, const int *from)
{
    stream->tasks[stream->count++] = (struct task){kind, place, number, from};
}

/* ---- Keys on their way. */

/* The slot in which the keys of this step are. */
static int slot(int step)
{
    return step == 0 ? 0 : 2 - step % 2;
}

/* The step of the message that comes into the same slot after this one; perhaps in the next
 * call. */
static int next_in_slot(int step, int *call)
{
    if (step + 2 < GPUS)
        return step + 2;
    ++*call;
    return step % 2 == 0 ? 2 : 1;
}

/* Before the first call, the slots are empty: there is a credit for the first message in each. */
static void begin(int credit[])
{
    credit[1] = credit[2] = 1;
}

/* Puts the keys of this GPU, with the number that they have in this call, into slot 0. */
static void pack_keys(struct gpu *me, int rank, int call)
{
    for (int half = 0; half < 2; half++)
        put(&me->work, WRITE, &me->keys[0][half], call * GPUS + rank, NULL);
    put(&me->work, WRITE, &me->packed, call, NULL);
    put(&me->copies, WAIT, &me->packed, call, NULL);
}

static void pass_keys(struct gpu *me, struct gpu *right, int call, int step)
{
    int next = step + 1;
    if (next == GPUS)
        return;
    put(&me->copies, WAIT, &me->credit[next], call, NULL);
    for (int half = 0; half < 2; half++)
        put(&me->copies, COPY, &right->keys[slot(next)][half], 0, &me->keys[slot(step)][half]);
    put(&me->copies, WRITE, &right->ready[next], call, NULL);
}

static void fold(struct gpu *me, int rank, int call, int step)
{
    int whose = (rank - step + GPUS) % GPUS;
    for (int half = 0; half < 2; half++)
        put(&me->work, USE, &me->keys[slot(step)][half], call * GPUS + whose, NULL);
}

static void leave_keys(struct gpu *me, struct gpu *left, int call, int step)
{
    int later_call = call, later, folded = call * GPUS + step;
    put(&me->work, WRITE, &me->computed, folded, NULL);
    put(&me->copies, WAIT, &me->computed, folded, NULL);
    if (step == 0)
        return;
    later = next_in_slot(step, &later_call);
    put(&me->copies, WRITE, &left->credit[later], later_call, NULL);
}

static void take_keys(struct gpu *me, int call, int step)
{
    int next = step + 1;
    if (next == GPUS)
        return;
    put(&me->copies, WAIT, &me->ready[next], call, NULL);
    put(&me->copies, WRITE, &me->arrived, call * GPUS + next, NULL);
    put(&me->work, WAIT, &me->arrived, call * GPUS + next, NULL);
}

static void enqueue_forward(int rank, int call)
{
    struct gpu *me = &gpus[rank], *right = &gpus[(rank + 1) % GPUS];
    struct gpu *left = &gpus[(rank + GPUS - 1) % GPUS];
    pack_keys(me, rank, call);
    for (int step = 0; step < GPUS; step++) {
        pass_keys(me, right, call, step);
        fold(me, rank, call, step);
        leave_keys(me, left, call, step);
        take_keys(me, call, step);
    }
}

/* ---- The player. */

/* Does the next task of a stream. False: it has none, or one that still has to wait. */
static int advance(struct stream *stream, int *wrong)
{
    struct task *task = &stream->tasks[stream->done];
    if (stream->done == stream->count || (task->kind == WAIT && *task->place < task->number))
        return 0;
    if (task->kind == WRITE)
        *task->place = task->number;
    if (task->kind == COPY)
        *task->place = *task->from;
    if (task->kind == USE)
        *wrong += *task->place != task->number;
    stream->done++;
    return 1;
}

int main(void)
{
    int stuck = 0, mixed = 0;
    unsigned long long dice = 1;
    for (int run = 0; run < RUNS; run++) {
        memset(gpus, 0, sizeof gpus);
        int left = 0, wrong = 0, idle = 0;
        for (int rank = 0; rank < GPUS; rank++) {
            begin(gpus[rank].credit);
            for (int call = 1; call <= CALLS; call++)
                enqueue_forward(rank, call);
            left += gpus[rank].work.count + gpus[rank].copies.count;
        }

        /* The stream that is drawn does up to eight tasks. */
        while (left > 0 && idle < 10000) {
            dice = dice * 6364136223846793005 + 1442695040888963407;
            struct gpu *gpu = &gpus[(dice >> 33) % GPUS];
            struct stream *stream = (dice >> 60) % 2 ? &gpu->work : &gpu->copies;
            int most = 1 + (int)(dice >> 50) % 8, done = 0;
            while (done < most && advance(stream, &wrong))
                done++;
            idle = done > 0 ? 0 : idle + 1;
            left -= done;
        }
        stuck += left > 0;
        mixed += wrong > 0;
    }
    printf("%d runs: %d got stuck, %d used wrong keys\n", RUNS, stuck, mixed);
    return stuck + mixed > 0;
}
