/* mixed: judges exercise 5 of page 11f-transports: a ring of four ranks, two on each of two hosts,
 * whose messages might each go their own way.
 */
#include <stdbool.h>
#include <stdio.h>

enum { RANKS = 4 };

/* The fastest first. */
enum transport { PEER_COPIES, DEVICE_LINK, HOST_LINK };

/* The reader's. */
#include "mixed.h"

/* What both ends of a message can use. */
static enum transport fastest(const bool device[RANKS], int from, int to)
{
    if (from / 2 == to / 2)
        return PEER_COPIES;
    return device[from] && device[to] ? DEVICE_LINK : HOST_LINK;
}

/* Says which answer is wrong, and in which case. Returns 1. */
static int complain(const char *name, const bool device[RANKS])
{
    printf("%s is wrong if MPI on ranks 0 to 3 takes device pointers:", name);
    for (int r = 0; r < RANKS; r++)
        printf(device[r] ? " yes" : " no");
    printf("\n");
    return 1;
}

int main(void)
{
    int wrong = 0;
    for (int bits = 0; bits < 1 << RANKS && !wrong; bits++) {
        bool device[RANKS];
        for (int r = 0; r < RANKS; r++)
            device[r] = bits >> r & 1;

        /* One way for all messages is the slowest of theirs; and peer copies alone need no host. */
        enum transport all = PEER_COPIES;
        for (int from = 0; from < RANKS; from++)
            for (int to = 0; to < RANKS; to++) {
                if (from == to)
                    continue;
                enum transport one = fastest(device, from, to);
                all = one > all ? one : all;
                if (!wrong && message(device, from, to) != one)
                    wrong = complain("message", device);
            }
        if (plan(device) != all)
            wrong = complain("plan", device);
        if (enqueued(device) != (all == PEER_COPIES))
            wrong = complain("enqueued", device);
    }
    return wrong;
}
