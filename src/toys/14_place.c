/* 14_place: chapter 14's loss as a toy: gradients of 2 bytes take the place of logits of 4 bytes.
 * Four threads share a row; dice decide which of them goes on.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, COUNT = 4, BATCHES = 3, V = THREADS * COUNT * BATCHES };

/* What a thread does with each batch of the row, of which COUNT neighbours are its own. */
static const enum move { READ, ARRIVE, WAIT, WRITE } moves[] = {READ, ARRIVE, WAIT, WRITE};
enum { MOVES = sizeof moves / sizeof *moves };

static char row[V * sizeof(float)]; /* logits, and more and more gradients */
static int arrived[BATCHES];
static struct thread {
    int moved; /* how often it has gone on */
    float mine[COUNT];
} threads[THREADS];

/* The gradient of a logit, which a real loss computes: here it is 1 more. */
static uint16_t gradient(float logit)
{
    uint32_t bits;
    logit += 1;
    memcpy(&bits, &logit, sizeof bits);
    return (uint16_t)(bits >> 16); /* a bfloat16 */
}

/* Makes the next move of a thread, if it need not wait. */
static void go_on(int me)
{
    struct thread *t = &threads[me];
    int batch = t->moved / MOVES, first = (batch * THREADS + me) * COUNT;
    if (batch == BATCHES)
        return;
    enum move move = moves[t->moved % MOVES];
    if (move == WAIT && arrived[batch] < THREADS)
        return;
    t->moved++;
    if (move == READ)
        memcpy(t->mine, row + first * sizeof(float), sizeof t->mine);
    if (move == ARRIVE)
        arrived[batch]++;
    for (int e = 0; e < COUNT && move == WRITE; e++) {
        uint16_t d = gradient(t->mine[e]);
        memcpy(row + (first + e) * sizeof d, &d, sizeof d);
    }
}

int main(void)
{
    int wrong = 0;

    /* In each run the threads go on in another order, and all of them come to their end. */
    for (int run = 0; run < 200; run++) {
        srand(run);
        memset(arrived, 0, sizeof arrived);
        memset(threads, 0, sizeof threads);
        for (int c = 0; c < V; c++)
            memcpy(row + c * sizeof(float), &(float){(float)c}, sizeof(float));
        for (int left = THREADS * BATCHES * MOVES * 100; left > 0; left--)
            go_on(rand() / 7 % THREADS);
        int off = 0;
        for (int c = 0; c < V; c++)
            off += memcmp(row + c * sizeof(uint16_t), &(uint16_t){gradient((float)c)}, 2) != 0;
        wrong += off > 0;
    }
    printf("of 200 runs %d have wrong gradients\n", wrong);
    return wrong > 0;
}
