/* sm: how busy the tensor cores of one SM are, clock by clock, for each design of the forward.
 *
 * Chapter 11d. A model, not a measurement. It knows what waits for what, and a few clocks that were
 * measured on an H200, for D = 128 and tiles of 64 rows and 128 keys. It can be given another
 * design:
 *
 *     sm [LETTERS WARPGROUPS]
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 300, MOST_GROUPS = 4, COLUMN = 64, COLUMNS = 88 };

/* ---- The designs. What a warpgroup does in a step, in letters:
 *
 *     b   loop and barriers                       x   the softmax of 64 rows
 *     S   asks for S = Q K^T; goes on at once     r   packs the weights, rescales o
 *     s   waits until S is there                  c   copies the next keys, or values, by itself
 *     P   asks for O += P V; goes on at once      (   waits for its turn
 *     w   waits until all that it asked for       )   passes the turn to the next warpgroup
 *
 * To ask takes no time here. A real warp stands while it asks, until the tensor cores have done
 * most of it, and only then passes the turn: hence ) behind s. */
struct design {
    const char *name, *letters;
    int groups, measured; /* warpgroups that compute; how busy the real kernel is, in percent */
};

static const struct design designs[] = {
    {"k04: two blocks, cp.async", "bSscxrPwc", 2, 45},
    {"k05: two blocks, TMA", "bSsxrPw", 2, 63},
    {"k06: roles, two consumers", "bSsxrPw", 2, 62},
    {"k06: three consumers", "bSsxrPw", 3, 79},
    {"two, overlap", "bSPsxwr", 2, 74},
    {"two, overlap, ping-pong", "b(SPs)xwr", 2, 73},
};

/* ---- The units. Each serves one warpgroup after the other, 64 clocks at a time: a wgmma of m64
 * n128 k16, as an SM multiplies and adds 2,048 pairs of bfloat16 in a clock; 1,024 exponentials, 16
 * in a clock; a ninth of 128 keys that threads copy, if that is 57 bytes in a clock (by TMA it was
 * 39 to 72). */
enum { SCORES, OUTPUTS, EXPONENTIALS, COPIES, KINDS };
enum { PART = 64 };

struct unit {
    int first, last; /* the kinds of work it does */
    int owner, left; /* whom it serves, and clocks until it is done with that */
};

struct group {
    char doing;       /* a letter */
    int next, wait;   /* its next letter; clocks until then */
    int parts[KINDS]; /* what it has asked the units for, and not got yet */
};

static struct group groups[MOST_GROUPS];
static struct unit tensor, exponentials, copies;
static unsigned long long dice;
static int turn;

/* Which kind of work a warpgroup wants of a unit now: the first one first. -1: none. */
static int wanted(const struct unit *unit, const struct group *group)
{
    for (int kind = unit->first; kind <= unit->last; kind++)
        if (group->parts[kind] > 0)
            return kind;
    return -1;
}

/* A clock of a unit. True: it works. */
static bool serve(struct unit *unit, int count)
{
    for (int i = 1; i <= count && unit->left == 0; i++) {
        int next = (unit->owner + i) % count;
        if (wanted(unit, &groups[next]) >= 0) {
            unit->owner = next;
            unit->left = PART;
        }
    }
    if (unit->left == 0)
        return false;
    struct group *owner = &groups[unit->owner];
    if (--unit->left == 0)
        owner->parts[wanted(unit, owner)]--;
    return true;
}

/* ---- A warpgroup. */

static int between(int least, int most)
{
    dice = dice * 6364136223846793005 + 1442695040888963407;
    return least + (int)((dice >> 33) % (unsigned)(most - least + 1));
}

/* Begins the next letter. False: it has to wait. */
static bool begin(const struct design *design, int number)
{
    struct group *group = &groups[number];
    int *parts = group->parts;
    if (group->wait > 0 || parts[EXPONENTIALS] > 0 || parts[COPIES] > 0)
        return false;
    char letter = group->doing = design->letters[group->next];
    if ((letter == 's' && parts[SCORES] > 0) || (letter == '(' && turn != number) ||
        (letter == 'w' && parts[SCORES] + parts[OUTPUTS] > 0))
        return false;
    if (letter == 'b')
        group->wait = between(250, 350);
    if (letter == 'S')
        parts[SCORES] = 8;
    if (letter == 's')
        group->wait = 115; /* from the end of the product until its numbers can be used */
    if (letter == 'x') {
        group->wait = between(1200, 1750);
        parts[EXPONENTIALS] = 8;
    }
    if (letter == 'r')
        group->wait = between(170, 330);
    if (letter == 'P')
        parts[OUTPUTS] = 8;
    if (letter == 'w')
        group->wait = between(50, 80);
    if (letter == 'c')
        parts[COPIES] = 9;
    if (letter == ')')
        turn = (number + 1) % design->groups;
    group->next++;
    return true;
}

/* ---- What is shown. */

/* A line for each warpgroup, and one for the tensor cores: whom they serve. */
static char timeline[MOST_GROUPS + 1][COLUMNS + 1];

static void draw(int count, int column)
{
    for (int i = 0; i < count; i++) {
        struct group *group = &groups[i];
        bool served = tensor.left > 0 && tensor.owner == i;
        bool waits = group->wait == 0 && strchr("sw(", group->doing);
        timeline[i][column] = !waits ? group->doing : served ? "SP"[wanted(&tensor, group)] : '.';
    }
    timeline[count][column] = (char)(tensor.left > 0 ? '1' + tensor.owner : '-');
}

/* Returns the clocks of a step, and in how much of them the tensor cores are busy. 0: it gets
 * stuck. */
static int simulate(const struct design *design, double *busy)
{
    int steps = 0, worked = 0, clock = 0, count = design->groups;
    dice = 1;
    memset(groups, 0, sizeof groups);
    tensor = (struct unit){SCORES, OUTPUTS, 0, 0};
    exponentials = (struct unit){EXPONENTIALS, EXPONENTIALS, 0, 0};
    copies = (struct unit){COPIES, COPIES, 0, 0};
    for (turn = 0; steps < STEPS * count; clock++) {
        if (clock == STEPS * 10000)
            return 0;
        worked += serve(&tensor, count);
        serve(&exponentials, count);
        serve(&copies, count);
        for (int i = 0; i < count; i++) {
            while (begin(design, i))
                if (!design->letters[groups[i].next]) {
                    groups[i].next = 0;
                    steps++;
                }
            groups[i].wait -= groups[i].wait > 0;
        }
        /* Some steps after the beginning, when all were at the same letter. */
        int column = clock / COLUMN - 500;
        if (clock % COLUMN == 0 && column >= 0 && column < COLUMNS)
            draw(count, column);
    }
    *busy = 100.0 * worked / clock;
    return clock / STEPS;
}

/* A line of the table. At most: if no warpgroup ever had to wait for another. True: the model is
 * off by less than 5 of a hundred. */
static bool show(const struct design *design)
{
    struct design alone = *design;
    alone.groups = 1;
    double busy = 0, most = 0;
    int chain = simulate(&alone, &most), step = simulate(design, &busy);
    most = most * design->groups < 100 ? most * design->groups : 100;
    printf("%-26s %6d %6.0f %% %6d %4.0f %%", design->name, chain, most, step, busy);
    printf(design->measured ? " %6d %%\n" : "\n", design->measured);
    return busy > design->measured - 5 && busy < design->measured + 5;
}

int main(int argc, char **argv)
{
    bool own = argc == 3;
    struct design given = {"this one", own ? argv[1] : "bw", own ? atoi(argv[2]) : 1, 0};
    if ((argc != 1 && !own) || given.letters[strspn(given.letters, "bSsPwxrc()")] ||
        !strchr(given.letters, 'w') || given.groups < 1 || given.groups > MOST_GROUPS) {
        fprintf(stderr, "usage: sm [LETTERS WARPGROUPS]\n"
                        "letters of bSsPwxrc(), with a w; 1 to 4 warpgroups\n");
        return 2;
    }
    printf("%-26s %6s %8s %6s %6s %8s\n", "", "alone", "at most", "step", "busy", "measured");
    if (!own) {
        bool right = true;
        for (size_t i = 0; i < sizeof designs / sizeof designs[0]; i++)
            right = show(&designs[i]) && right;
        return !right;
    }
    show(&given);
    for (int i = 0; i <= given.groups; i++)
        printf("%c %s\n", i < given.groups ? '1' + i : ' ', timeline[i]);
    return 0;
}
