/* figure: the pictures of chapter 10's page on decoding: one new token by the ring and by a tree.
 */
#include "figure.h"
#include <string.h>

enum { RANKS = 4 };

static const char *const rank_fills[RANKS] = {FILL(BLUE), FILL(ORANGE), FILL(GREEN), FILL(PURPLE)};

/* ---- 10-tree */

enum { PITCH = 54, TOP = 126, BOX = 26 };

static double row_of(int rank)
{
    return TOP + PITCH * rank;
}

/* Whose keys each rank holds, when all of them travel to the query on rank 0. */
static void ring_of_keys(double x)
{
    heading(x, 30, "The ring: keys travel to the query",
            "which is on rank 0; the others only pass");
    text(x, 66, "", "keys on");
    for (int hop = 0; hop < RANKS; hop++)
        text(x + 76 + 62 * hop, TOP - 18, MIDDLE BOLD, "hop %d", hop);
    for (int r = 0; r < RANKS; r++) {
        text(x, row_of(r) + 17, BOLD, "rank %d", r);
        for (int hop = 0; hop < RANKS; hop++) {
            double cell = x + 76 + 62 * hop - BOX / 2;
            int origin = (r - hop + RANKS) % RANKS;
            bool travels = r == 0 || r - hop > 0; /* not past rank 0 */
            if (!travels)
                continue;
            if (r == 0) /* the fold */
                rect(cell - 5, row_of(r) - 5, BOX + 10, BOX + 10, STROKE(INK, "2"));
            box(cell, row_of(r), BOX, BOX, rank_fills[origin], origin);

            /* To the right neighbour; from the last rank up to rank 0. */
            bool leaves = r > 0 && hop < RANKS - 1;
            if (leaves && r < RANKS - 1)
                arrow(cell + BOX + 3, row_of(r) + BOX + 2, cell + 62 - 4, row_of(r + 1) - 3,
                      INK_LINE);
            else if (leaves)
                arrow(cell + BOX + 3, row_of(r) - 2, cell + 62 - 5, row_of(0) + BOX + 9, INK_LINE);
        }
    }
    rect(x, row_of(RANKS) + 2, 16, 16, STROKE(INK, "2"));
    text(x + 24, row_of(RANKS) + 15, "", "these keys are folded at this hop");
    text(x, row_of(RANKS) + 40, "", "Each message is a quarter of the cache;");
    text(x, row_of(RANKS) + 57, "", "6 messages, 3 of them one after the other.");
}

/* Whose keys are in the carry of each rank after a step. */
static void tree_of_carries(double x)
{
    static const char *const steps[] = {"fold", "step 1", "step 2"};
    heading(x, 30, "The tree: carries are combined",
            "every rank has the query, and folds its own keys");
    text(x, 66, "", "whose keys are in the carry");
    for (int step = 0; step < 3; step++)
        text(x + 84 + 110 * step, TOP - 18, MIDDLE BOLD, "%s", steps[step]);
    for (int r = 0; r < RANKS; r++) {
        text(x, row_of(r) + 17, BOLD, "rank %d", r);
        for (int step = 0; step < 3; step++) {
            int count = 1 << step, first = r / count * count;
            double width = 18, start = x + 84 + 110 * step - width * count / 2;
            for (int i = 0; i < count; i++)
                box(start + width * i, row_of(r) + 2, width, 22, rank_fills[first + i], first + i);
            if (step == 2)
                continue;

            /* Own carry, and that of the partner. */
            double from = start + width * count + 3,
                   to = x + 84 + 110 * (step + 1) - width * count - 4;
            int partner = r ^ count;
            line(from, row_of(r) + 13, to, row_of(r) + 13, STROKE(GREY, "1") DASHES);
            arrow(from, row_of(r) + 13, to, row_of(partner) + (partner > r ? 8 : 18), INK_LINE);
        }
    }
    text(x, row_of(RANKS) + 15, "", "At a step each rank sends its carry to a partner.");
    text(x, row_of(RANKS) + 40, "", "Each message is one carry, whatever the cache;");
    text(x, row_of(RANKS) + 57, "", "8 messages, 2 of them one after the other.");
}

void draw_reduction(const char *source)
{
    (void)source; /* nothing is read */
    svg_open(
        TOP + PITCH * RANKS + 76, "One new token: a ring of keys, and a tree of carries",
        "Left: the query is on rank 0. At hops 0 to 3 it folds the keys of ranks 0, 3, 2 and 1, "
        "which travel from rank to rank. Right: every rank folds its own keys; in step 1 ranks "
        "0 and 1, and 2 and 3, exchange their carries, in step 2 ranks 0 and 2, and 1 and 3. "
        "Then every carry has the keys of all ranks.");
    ring_of_keys(20);
    tree_of_carries(370);
}

/* ---- 10-decode */

static void amount(double x, double y, double bytes)
{
    if (bytes >= 1e6)
        text(x, y, "", "%.1f MB", bytes / 1e6);
    else
        text(x, y, "", bytes == 0 ? "%.0f" : "%.1f kB", bytes / 1e3);
}

void draw_decode(const char *source)
{
    enum { MOST = 16 };
    struct row rows[MOST];
    int count = read_csv(source, DECODE_HEADER, "wnnn", MOST, rows);
    double most[2] = {1, 1};
    for (int k = 0; k < count; k++) {
        if (strcmp(rows[k].words[0], k % 2 == 0 ? "ring" : "tree") != 0 ||
            (k % 2 == 1 && rows[k].numbers[0] != rows[k - 1].numbers[0]) || count % 2 == 1)
            fail("%s:%d: want lines of ring and tree in turn, for the same P", source, k + 2);
        for (int i = 0; i < 2; i++)
            most[i] = rows[k].numbers[1 + i] > most[i] ? rows[k].numbers[1 + i] : most[i];
    }
    double bottom = 82 + 29 * count;
    svg_open((int)bottom + 26, "One new token over a cache of 65,536: bytes and time",
             "For each number of ranks two pairs of bars: bytes that the busiest rank sends, and "
             "milliseconds, of the ring and of the tree.");
    heading(20, 30, "One new token over a cache of 65,536",
            "one layer, H = 8, G = 2, D = 64, float32: a cache of 67.1 MB on P ranks");
    struct axis sent = {0, most[0], 90, 300}, time = {0, most[1], 420, 630};
    text(sent.start, 70, BOLD, "bytes that the busiest rank sends");
    text(time.start, 70, BOLD, "time until all ranks have o");
    for (int k = 0; k < count; k++) {
        bool tree = k % 2 == 1;
        double y = 82 + 29 * k - 8 * tree;
        const char *look = tree ? FILL(ORANGE) : FILL(BLUE);
        if (!tree)
            text(20, y + 24, BOLD, "P = %.0f", rows[k].numbers[0]);
        double end = place(sent, rows[k].numbers[1]);
        rect(sent.start, y, end - sent.start + 1, 19, look);
        amount(end + 8, y + 14, rows[k].numbers[1]);
        end = place(time, rows[k].numbers[2]);
        rect(time.start, y, end - time.start + 1, 19, look);
        text(end + 8, y + 14, "", "%.1f ms", rows[k].numbers[2] / 1e3);
    }
    legend(90, bottom + 10, FILL(BLUE), "ring: keys and values");
    legend(260, bottom + 10, FILL(ORANGE), "tree: carries");
}
