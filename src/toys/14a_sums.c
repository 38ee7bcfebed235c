/* 14a_sums: page 14a as a toy: ranks add up an array piece by piece. What a rank enqueues is done
 * in order; dice say whose turn is next.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#ifndef RANKS
#define RANKS 3
#endif
enum { PIECES = 4, RUNS = 200, MOST_TASKS = 12 * PIECES * RANKS };
enum signal { SENT, SUMMED };

struct rank {
    float array[PIECES][RANKS];       /* a piece has a part of one number for each rank */
    float sent[RANKS], summed[RANKS]; /* from each rank: a number to add, and a sum */
    int flags[2][RANKS];              /* from each rank: the number of its last signal */
    struct task {
        enum { COPY, TELL, HEAR, ADD } kind;
        float *to;
        const float *from;
        int *flag, number;
    } tasks[MOST_TASKS];
    int count, done, numbers_sent;
};

static struct rank all[RANKS];

static void put(int me, struct task task)
{
    all[me].tasks[all[me].count++] = task;
}

static void copy(int me, int to_rank, float *to, const float *from)
{
    put(me, (struct task){COPY, .to = to, .from = from});
    all[me].numbers_sent += to_rank != me;
}

/* Sends all others a signal, behind what was sent to them, and waits for theirs. */
static void meet(int me, enum signal signal, int number)
{
    for (int r = 0; r < RANKS; r++)
        if (r != me)
            put(me, (struct task){TELL, .flag = &all[r].flags[signal][me], .number = number});
    for (int r = 0; r < RANKS; r++)
        if (r != me)
            put(me, (struct task){HEAR, .flag = &all[me].flags[signal][r], .number = number});
}

/* Adds up this rank's part of a piece, in the order of ranks. */
static void add(int me, float *own, const float sent[])
{
    float sum = 0;
    for (int r = 0; r < RANKS; r++) {
        float number = r == me ? *own : sent[r];
        sum = r == 0 ? number : sum + number;
    }
    *own = sum;
}

/* `number` grows by 1 from piece to piece. */
static void enqueue(int me, int number, float piece[], bool reduce, bool gather)
{
    for (int r = 0; r < RANKS && reduce; r++)
        if (r != me)
            copy(me, r, &all[r].sent[me], &piece[r]);
    meet(me, SENT, number);
    if (reduce)
        put(me, (struct task){ADD, .to = &piece[me]});
    for (int r = 0; r < RANKS && gather; r++)
        if (r != me)
            copy(me, r, &all[r].summed[me], &piece[me]);
    meet(me, SUMMED, number);
    for (int r = 0; r < RANKS && gather; r++)
        if (r != me)
            copy(me, me, &piece[r], &all[me].summed[r]);
}

/* The numbers before the sum, and what they add up to in the order of ranks. */
static float number_of(int rank, int piece, int part)
{
    unsigned any = (unsigned)((rank * PIECES + piece) * RANKS + part + 1) * 2654435761u;
    return (float)(any >> 8) / 3;
}

static float sum_of(int piece, int part)
{
    float sum = number_of(0, piece, part);
    for (int r = 1; r < RANKS; r++)
        sum += number_of(r, piece, part);
    return sum;
}

/* Does the next task of a rank. False: it has none, or one that still has to wait. */
static bool advance(int me)
{
    struct rank *rank = &all[me];
    struct task *task = &rank->tasks[rank->done];
    if (rank->done == rank->count || (task->kind == HEAR && *task->flag < task->number))
        return false;
    if (task->kind == COPY)
        *task->to = *task->from;
    if (task->kind == TELL)
        *task->flag = task->number;
    if (task->kind == ADD)
        add(me, task->to, rank->sent);
    rank->done++;
    return true;
}

/* All pieces: added up and gathered at once, or gathered only when all of them have been added
 * up. */
static void begin(bool halves)
{
    memset(all, 0, sizeof all);
    for (int me = 0; me < RANKS; me++) {
        for (int i = 0; i < PIECES * RANKS; i++)
            all[me].array[i / RANKS][i % RANKS] = number_of(me, i / RANKS, i % RANKS);
        for (int p = 0; p < PIECES; p++)
            enqueue(me, p + 1, all[me].array[p], true, !halves);
        for (int p = 0; p < PIECES && halves; p++)
            enqueue(me, PIECES + p + 1, all[me].array[p], false, true);
    }
}

/* Lets ranks drawn by dice do up to 16 tasks each, until none of a thousand in a row could do any:
 * all have ended, or wait for each other. */
static void play(unsigned long long *dice)
{
    for (int idle = 0; idle < 1000; idle++) {
        *dice = *dice * 6364136223846793005 + 1442695040888963407;
        int rank = (*dice >> 33) % RANKS, most = 1 + (int)(*dice >> 60);
        for (; most > 0 && advance(rank); most--)
            idle = 0;
    }
}

int main(void)
{
    int stuck = 0, wrong = 0;
    unsigned long long dice = 1;
    for (int run = 0; run < RUNS; run++) {
        begin(run % 2);
        play(&dice);
        bool ended = true, right = true;
        for (int me = 0; me < RANKS; me++) {
            ended = ended && all[me].done == all[me].count;
            for (int i = 0; i < PIECES * RANKS; i++)
                right =
                    right && all[me].array[i / RANKS][i % RANKS] == sum_of(i / RANKS, i % RANKS);
        }
        stuck += !ended;
        wrong += ended && !right;
    }
    printf("%d ranks: of %d runs %d got stuck, %d have wrong sums\n", RANKS, RUNS, stuck, wrong);
    printf("%d numbers, of which a rank sends %d\n", PIECES * RANKS, all[0].numbers_sent);
    return stuck + wrong > 0;
}
