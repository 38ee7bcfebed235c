/* 11f_ring: page 11f as a toy: when the GPUs of a ring compute, wait and copy. A stream is known by
 * the time at which it is done with all that it has been given; an event is such a time.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Milliseconds: a hop's work; its keys from GPU to GPU, and through two hosts; and how long a host
 * takes from the end of a hop until the GPU begins the next. */
static const double WORK = 6.6, COPY = 0.69, BY_HOST = 45, HOST = 0.05;
enum { GPUS = 5 };

static struct gpu {
    double work, copies; /* two streams */
    double computed;     /* an event */
    double hop;          /* what a hop takes this GPU */

    /* By step: since when keys lie in their slot, and that slot has been free for them. */
    double ready[GPUS + 2], credit[GPUS + 2];
} gpus[GPUS];

static void hold(double *stream, double event)
{
    if (*stream < event)
        *stream = event;
}

/* As on processors: begin to send, work, and wait until both are done, at every hop. */
static void host_waits(double copy)
{
    for (int step = 0; step < GPUS; step++) {
        for (int r = 0; r < GPUS; r++) {
            struct gpu *me = &gpus[r], *right = &gpus[(r + 1) % GPUS];
            double begin = me->work > right->work ? me->work : right->work;
            me->copies = right->ready[step + 1] = begin + copy;
        }
        for (int r = 0; r < GPUS; r++) {
            gpus[r].work += gpus[r].hop;
            if (step + 1 == GPUS)
                continue;
            hold(&gpus[r].work, gpus[r].copies);
            hold(&gpus[r].work, gpus[r].ready[step + 1]);
            gpus[r].work += HOST;
        }
    }
}

/* Enqueued: streams wait, the host does not. Returns how often a GPU read keys that had not come
 * yet, or others were written over them. */
static int enqueued(bool wait_for_ready, bool wait_for_credit)
{
    int wrong = 0;
    for (int step = 0; step < GPUS; step++) {
        for (int r = 0; r < GPUS && step + 1 < GPUS; r++) { /* pass_keys */
            struct gpu *me = &gpus[r], *right = &gpus[(r + 1) % GPUS];
            if (wait_for_credit)
                hold(&me->copies, me->credit[step + 1]);
            wrong += me->copies < me->ready[step] || me->copies < me->credit[step + 1];
            right->ready[step + 1] = me->copies += COPY;
        }
        for (int r = 0; r < GPUS; r++) {
            struct gpu *me = &gpus[r], *left = &gpus[(r + GPUS - 1) % GPUS];
            wrong += me->work < me->ready[step]; /* fold */
            me->computed = me->work += me->hop;
            hold(&me->copies, me->computed); /* leave_keys */
            if (step > 0)
                left->credit[step + 2] = me->copies;
            if (wait_for_ready && step + 1 < GPUS) { /* take_keys */
                hold(&me->copies, me->ready[step + 1]);
                hold(&me->work, me->ready[step + 1]);
            }
        }
    }
    return wrong;
}

/* All GPUs alike, or one that takes half as long again. */
static void begin(bool one_is_slow)
{
    memset(gpus, 0, sizeof gpus);
    for (int r = 0; r < GPUS; r++)
        gpus[r].hop = one_is_slow && r == 1 ? 1.5 * WORK : WORK;
}

static double last_done(void)
{
    double last = 0;
    for (int r = 0; r < GPUS; r++)
        hold(&last, gpus[r].work);
    return last;
}

int main(void)
{
    for (int slow = 0; slow < 2; slow++) {
        printf("%s, %g ms of work\n", slow ? "GPU 1 is slow" : "five GPUs alike",
               GPUS * WORK * (slow ? 1.5 : 1));
        begin(slow);
        host_waits(BY_HOST);
        printf("    the host waits, hosts copy      %6.2f ms\n", last_done());
        begin(slow);
        host_waits(COPY);
        printf("    the host waits, GPUs copy       %6.2f ms\n", last_done());
        for (int i = 0; i < 3; i++) {
            static const char *const names[] = {"", ", no ready", ", no credit"};
            begin(slow);
            int wrong = enqueued(i != 1, i != 2);
            printf("    enqueued%-12s            %6.2f ms, %d times wrong\n", names[i], last_done(),
                   wrong);
        }
    }
    return 0;
}
