/* lost: what the ranks of a ring of GPUs fold when one of them begins too late, and who hears of
 * it.
 *
 * Chapter 11f. What a rank does in a call has been enqueued: nothing can be taken back. A rank that
 * has waited too long goes on without keys; all that it can do is to change the numbers that it
 * sends. Without a GPU it shows who then has wrong results and does not know.
 */
#include <stdbool.h>
#include <stdio.h>

enum { RANKS = 4, LATE_RANK = 1, BEGINS = 100, TIMEOUT = 20, LOST = -1, NOTHING = -1 };

static struct rank {
    int flag;           /* the last number that has come from the left */
    int slot[RANKS];    /* whose keys lie in the slot of each hop */
    int folded[RANKS];  /* whose keys were folded at each hop */
    int table[RANKS];   /* the number that goes with the keys of each hop, or LOST */
    const char *failed; /* why, or NULL */
    int hop, waited;
} ranks[RANKS];

/* This rank has failed. All that is still enqueued runs. */
static void fail(struct rank *me, const char *why)
{
    for (int hop = 0; hop < RANKS; hop++)
        me->table[hop] = LOST;
    if (!me->failed)
        me->failed = why;
}

/* Is the wait for the keys of this hop over, for better or worse? */
static bool ends_wait(struct rank *me)
{
    if (me->flag == LOST)
        fail(me, "its left neighbour says that it is lost");
    else if (me->flag < me->hop && !me->failed && me->waited++ < TIMEOUT)
        return false;
    else if (me->flag < me->hop)
        fail(me, "no keys have come from its left neighbour");
    return true;
}

/* Waits for the keys of a hop, passes them on, folds them. */
static void go_on(struct rank *me, struct rank *right)
{
    int hop = me->hop;
    if (hop == RANKS || (hop > 0 && !ends_wait(me)))
        return;
    if (hop + 1 < RANKS) {
        right->slot[hop + 1] = me->slot[hop];
        right->flag = me->table[hop + 1];
    }
    me->folded[hop] = me->slot[hop];
    me->hop++;
    me->waited = 0;
}

/* Prints what a rank has done. True: it is wrong, and does not know. */
static bool tell(int r)
{
    bool wrong = false;
    printf("rank %d folds keys of", r);
    for (int hop = 0; hop < RANKS; hop++) {
        int keys = ranks[r].folded[hop];
        wrong = wrong || keys != (r - hop + RANKS) % RANKS;
        printf(" %c", keys == NOTHING ? '-' : '0' + keys);
    }
    const char *failed = ranks[r].failed;
    printf("%s%s\n", failed ? "; fails: " : "", failed ? failed : "");
    return wrong && !failed;
}

int main(void)
{
    for (int r = 0; r < RANKS; r++)
        for (int hop = 0; hop < RANKS; hop++) {
            ranks[r].slot[hop] = hop == 0 ? r : NOTHING;
            ranks[r].table[hop] = hop;
        }
    for (int now = 0; now < BEGINS + RANKS * TIMEOUT; now++)
        for (int r = 0; r < RANKS; r++)
            if (r != LATE_RANK || now >= BEGINS)
                go_on(&ranks[r], &ranks[(r + 1) % RANKS]);
    int wrong = 0;
    for (int r = 0; r < RANKS; r++)
        wrong += tell(r);
    printf("%d ranks have wrong results and do not know\n", wrong);
    return wrong > 0;
}
