/* figure: the pictures of the chapters of the ring that show a rule: who holds which keys, and who
 * sees whom. The rules are the project's own modules: a fault in them changes the pictures.
 */
#include "figure.h"
#include <stdio.h>
#include <string.h>

#include "ra_layout.h"
#include "ra_schedule.h"

enum { RANKS = 4 }; /* in all pictures, and so the number of hops */

/* Whose keys does a rank hold at this hop? */
static int origin_of(int rank, int hop)
{
    return (rank - hop + RANKS) % RANKS;
}

/* ---- 03-ring */

static const char *const rank_fills[RANKS] = {FILL(BLUE), FILL(ORANGE), FILL(GREEN), FILL(PURPLE)};

/* The ranks in a circle, each with its queries and, at hop 0, its own keys. */
static void ring_of_ranks(double x, double y)
{
    static const int side[RANKS][2] = {
        {0, -1}, {1, 0}, {0, 1}, {-1, 0}}; /* clockwise from the top */
    double width = 94, height = 58, reach = 98;
    for (int r = 0; r < RANKS; r++) {
        double node_x = x + reach * side[r][0] - width / 2;
        double node_y = y + reach * side[r][1] - height / 2;
        rect(node_x, node_y, width, height, STROKE(GREY, "1"));
        text(node_x + width / 2, node_y + 17, MIDDLE BOLD, "rank %d", r);
        text(node_x + 10, node_y + 43, "", "q");
        box(node_x + 21, node_y + 28, 20, 22, FILL(LIGHT), r);
        text(node_x + 50, node_y + 43, "", "kv");
        box(node_x + 67, node_y + 28, 20, 22, rank_fills[r], r);

        /* To the right neighbour: from a side of this box to a side of that one. */
        const int *a = side[r], *b = side[(r + 1) % RANKS];
        double from_x = x + reach * a[0] + b[0] * (width / 2 + 4);
        double from_y = y + reach * a[1] + b[1] * (height / 2 + 4);
        double to_x = x + reach * b[0] + a[0] * (width / 2 + 4);
        double to_y = y + reach * b[1] + a[1] * (height / 2 + 4);
        arrow(from_x, from_y, to_x, to_y, INK_LINE);
    }
    text(x, y - 3, MIDDLE, "k and v travel,");
    text(x, y + 13, MIDDLE, "q and o stay");
}

/* Whose keys each rank holds, hop by hop. */
static void table_of_keys(double x, double y)
{
    double left = x + 82, pitch_x = 60, top = y + 82, pitch_y = 54, width = 32, height = 28;
    heading(x, y, "Whose keys each rank holds",
            "at hop t rank r holds those of rank (r − t) mod 4");
    for (int hop = 0; hop < RANKS; hop++)
        text(left + hop * pitch_x, top - 34, MIDDLE BOLD, "hop %d", hop);
    for (int r = 0; r < RANKS; r++) {
        double row = top + r * pitch_y;
        text(x, row + height / 2 + 4, BOLD, "rank %d", r);
        for (int hop = 0; hop < RANKS; hop++) {
            double cell = left + hop * pitch_x - width / 2;
            int origin = origin_of(r, hop);
            box(cell, row, width, height, rank_fills[origin], origin);

            /* Where it came from: the rank before, one hop ago. What leaves the last rank comes to
             * rank 0: half an arrow at either end. */
            double from_x = cell - pitch_x + width + 3, from_y = row - pitch_y + height + 2;
            double half_x = (from_x + cell - 3) / 2, half_y = (from_y + row - 2) / 2;
            if (hop > 0 && r > 0)
                arrow(from_x, from_y, cell - 3, row - 2, INK_LINE);
            if (hop > 0 && r == 0)
                arrow(half_x, half_y, cell - 3, row - 2, INK_LINE);
            if (hop > 0 && r == RANKS - 1)
                line(from_x, from_y + pitch_y, half_x, half_y + pitch_y, INK_LINE);
        }
    }
    text(x, top + RANKS * pitch_y + 20, "", "4 hops of work need 3 exchanges of k and v.");
}

/* The backward as the keys of rank 0 see it: a lane for each rank against time. Keys leave when a hop
 * begins, their gradients when it ends. */
static void lanes_of_gradients(double x, double y)
{
    static const char *const sums[RANKS] = {"y₀", "y₀ + y₁", "y₀ + y₁ + y₂", "y₀ + y₁ + y₂ + y₃"};
    static const char *const shares[RANKS] = {"y₀", "y₁", "y₂", "y₃"};
    double left = x + 62, hop_width = 118, top = y + 58, pitch = 54, height = 22;
    heading(x, y, "Backward: the keys of rank 0, and their gradients, one hop behind",
            "rank r adds its share y of dk and dv to the sum of the shares before");
    for (int t = 0; t <= RANKS; t++)
        text(left + (t + 0.5) * hop_width, top - 10, MIDDLE BOLD, t < RANKS ? "hop %d" : "home", t);
    for (int r = 0; r < RANKS; r++) {
        double lane = top + r * pitch, start = left + r * hop_width, end = start + hop_width;
        text(x, lane + 16, BOLD, "rank %d", r);
        for (int t = 0; t < RANKS; t++)
            rect(left + t * hop_width + 1, lane, hop_width - 2, height,
                 t == r ? FILL(BLUE) : FILL(LIGHT));
        text(start + hop_width / 2, lane + 15, MIDDLE FILL("#FFFFFF"), "keys of rank 0: %s",
             shares[r]);

        /* On to the next rank; from the last one home, where the sum is whole. */
        if (r < RANKS - 1) {
            arrow(start + 3, lane + height + 2, end - 2, lane + pitch - 2, INK_LINE);
            arrow(end + 2, lane + height + 2, end + hop_width - 3, lane + pitch - 2,
                  STROKE(PURPLE, "1.5"));
            text(end + hop_width / 2 + 14, lane + height + 12, FILL(PURPLE), "%s", sums[r]);
        } else {
            arrow(end + 4, lane + height / 2, end + hop_width - 8, top + height / 2 + 6,
                  STROKE(PURPLE, "1.5"));
            text(700, lane + height + 4, END FILL(PURPLE), "%s", sums[r]);
        }
    }
    double below = top + RANKS * pitch + 4;
    line(x, below - 4, x + 14, below - 4, INK_LINE);
    text(x + 22, below, "", "keys, sent when their hop begins");
    line(x + 260, below - 4, x + 274, below - 4, STROKE(PURPLE, "1.5"));
    text(x + 282, below, "", "gradients, sent when it ends, while the next share is computed");
    text(x + 282, below + 17, "", "the last message, home, has no work beside it");
}

void draw_ring(const char *source)
{
    (void)source; /* nothing is read */
    svg_open(704, "A ring of four ranks",
             "Left: four ranks in a circle; keys and values travel to the right neighbour, queries "
             "stay. Right: a table of whose keys each rank holds at hops 0 to 3; at hop t rank r "
             "holds those of rank r - t. Below: the backward in time. The keys of rank 0 are on "
             "rank t at hop t; the sum of their gradients leaves rank t when hop t ends, reaches "
             "rank t + 1 when hop t + 1 ends, and goes home after the last hop.");
    heading(20, 30, "A ring of 4 ranks", "here at hop 0: every rank holds its own keys");
    ring_of_ranks(167, 217);
    table_of_keys(370, 30);
    lanes_of_gradients(20, 400);
}

/* ---- 04-masks, 05-masks-..., 06-masks-... */

enum { LENGTH = 32, ROWS = LENGTH / RANKS };

struct masks {
    const char *name, *title, *words;
    enum ra_layout_kind kind;
    int64_t lookback;
};

static const struct masks masks[] = {
    {"04-masks", "Contiguous shards, causal",
     "P = 4 ranks, N = 32: rank 0 has nothing to do after hop 0, rank 3 works at every hop",
     RA_CONTIGUOUS, RA_BAND_FAR},
    {"05-masks-striped", "Striped shards, causal",
     "P = 4 ranks, N = 32, every 4th token: each rank sees about half of each block", RA_STRIPED,
     RA_BAND_FAR},
    {"05-masks-zigzag", "Zigzag shards, causal",
     "P = 4 ranks, N = 32, an early and a late chunk of 4 tokens: the same work on every rank",
     RA_ZIGZAG, RA_BAND_FAR},
    {"06-masks-contiguous", "Contiguous shards, causal, lookback 6",
     "P = 4 ranks, N = 32: a window that ends in the shard before needs 2 hops", RA_CONTIGUOUS, 6},
    {"06-masks-striped", "Striped shards, causal, lookback 6",
     "P = 4 ranks, N = 32: the 7 tokens of a window lie on all ranks, so no hop can be left out",
     RA_STRIPED, 6},
    {"06-masks-zigzag", "Zigzag shards, causal, lookback 6",
     "P = 4 ranks, N = 32: the window is longer than a chunk of 4, so every hop is needed",
     RA_ZIGZAG, 6},
};

static const struct masks *find_masks(const char *name)
{
    for (size_t k = 0; k < sizeof masks / sizeof *masks; k++)
        if (strcmp(masks[k].name, name) == 0)
            return &masks[k];
    return NULL;
}

static struct ra_layout layout_of(const struct masks *m)
{
    return (struct ra_layout){m->kind, RANKS, LENGTH, 1};
}

/* The keys that visit a rank at a hop, and what the rank sees of them. */
struct visit {
    bool arrives; /* else they are not sent this far, for nobody would see anything */
    bool sends;   /* the rank passes them on, to where they are worked on next */
    int pairs;    /* visible ones */
    bool see[ROWS][ROWS];
};

/* Each pair of spans has a band of its own. */
static struct visit visit_of(const struct masks *m, int rank, int hop)
{
    struct visit visit = {.arrives = false};
    struct ra_layout layout = layout_of(m);
    int origin = origin_of(rank, hop);
    int64_t spans = ra_layout_spans(layout), rows = ROWS / spans; /* of one span */
    for (int64_t s = 0; s < spans; s++)
        for (int64_t t = 0; t < spans; t++) {
            struct ra_band band = ra_layout_band(layout, rank, s, layout, origin, t, m->lookback);
            for (int64_t a = 0; a < rows; a++)
                for (int64_t b = 0; b < rows; b++) {
                    bool see = band.lo <= b - a && b - a <= band.hi;
                    visit.see[s * rows + a][t * rows + b] = see;
                    visit.pairs += see;
                }
        }

    /* The chapters before 06 send all keys all the way round. */
    int storage[2 * RANKS];
    struct ra_schedule schedule = m->lookback == RA_BAND_FAR
                                      ? ra_schedule_round(RANKS, RANKS, storage)
                                      : ra_schedule_causal(layout, layout, m->lookback, storage);
    for (int k = 0; k < schedule.count; k++)
        if (schedule.hop[k] == hop) {
            visit.arrives = hop <= schedule.last[origin];
            visit.sends = k + 1 < schedule.count && schedule.hop[k + 1] <= schedule.last[origin];
        }
    if (visit.pairs > 0 && !visit.arrives)
        fail("%s: rank %d sees keys at hop %d that the schedule does not send", m->name, rank, hop);
    return visit;
}

bool write_masks(const char *name)
{
    const struct masks *m = find_masks(name);
    if (!m)
        return false;
    puts("rank,hop,keys_of,arrives,sends,visible_pairs,pairs");
    for (int r = 0; r < RANKS; r++)
        for (int hop = 0; hop < RANKS; hop++) {
            struct visit visit = visit_of(m, r, hop);
            printf("%d,%d,%d,%d,%d,%d,%d\n", r, hop, origin_of(r, hop), visit.arrives, visit.sends,
                   visit.pairs, ROWS * ROWS);
        }
    return true;
}

/* What the ranks see and send at each hop, and in column [RANKS] at all hops. */
struct table {
    struct visit visits[RANKS][RANKS];
    int pairs[RANKS][RANKS + 1], busiest[RANKS + 1], messages[RANKS + 1];
};

static struct table table_of(const struct masks *m)
{
    struct table t = {0};
    for (int r = 0; r < RANKS; r++)
        for (int hop = 0; hop <= RANKS; hop++) {
            if (hop < RANKS) {
                t.visits[r][hop] = visit_of(m, r, hop);
                t.pairs[r][hop] = t.visits[r][hop].pairs;
                t.pairs[r][RANKS] += t.pairs[r][hop];
                t.messages[hop] += t.visits[r][hop].sends;
                t.messages[RANKS] += t.visits[r][hop].sends;
            }
            if (t.pairs[r][hop] > t.busiest[hop])
                t.busiest[hop] = t.pairs[r][hop];
        }
    return t;
}

/* The positions of a span: "0 … 7", or with a stride "0, 4 … 28". */
static void span_label(double x, double y, struct ra_span span)
{
    int first = (int)span.first, stride = (int)span.stride, count = (int)span.count; /* <= LENGTH */
    int last = first + (count - 1) * stride;
    if (stride == 1)
        text(x, y, "", "%d … %d", first, last);
    else
        text(x, y, "", "%d, %d … %d", first, first + stride, last);
}

/* One visit as a grid of cells; a gap parts the spans. */
static void mask_grid(double x, double y, double size, const struct masks *m,
                      const struct visit *visit)
{
    int span = ROWS / (int)ra_layout_spans(layout_of(m)); /* rows of one: at most ROWS */
    double side = ROWS * size + (ROWS / span - 1) * 3;
    if (!visit->arrives) {
        rect(x + 0.5, y + 0.5, side - 1, side - 1, STROKE(GREY, "1") DASHES);
        text(x + side / 2, y + side / 2 + 4, MIDDLE, "not sent");
        return;
    }
    for (int a = 0; a < ROWS; a++)
        for (int b = 0; b < ROWS; b++)
            rect(x + b * size + b / span * 3 + 0.5, y + a * size + a / span * 3 + 0.5, size - 1,
                 size - 1, visit->see[a][b] ? FILL(BLUE) : FILL(LIGHT));
}

void draw_masks(const char *source)
{
    const struct masks *m = find_masks(source);
    struct ra_layout layout = layout_of(m);
    double size = 10, left = 116, pitch_x = 130, top = 110, pitch_y = 132;
    double side = ROWS * size + (m->kind == RA_ZIGZAG ? 3 : 0), right = 700;
    double bottom = top + RANKS * pitch_y;
    svg_open((int)bottom + 76, m->title,
             "Four rows of ranks, four columns of hops. Each cell is a grid of the rank's own "
             "queries, downwards, against the visiting keys, to the right: a filled square for "
             "each pair that is visible.");
    heading(20, 30, m->title, m->words);
    for (int hop = 0; hop < RANKS; hop++)
        text(left + hop * pitch_x + side / 2, top - 30, MIDDLE BOLD, "hop %d", hop);
    text(right, top - 30, END BOLD, "all hops");

    /* A row for each rank. */
    struct table table = table_of(m);
    for (int r = 0; r < RANKS; r++) {
        double y = top + r * pitch_y;
        text(20, y + 26, BOLD, "rank %d", r);
        text(20, y + 44, "", "queries");
        for (int s = 0; s < ra_layout_spans(layout); s++)
            span_label(20, y + 60 + 16 * s, ra_layout_span(layout, r, s));
        for (int hop = 0; hop < RANKS; hop++) {
            const struct visit *visit = &table.visits[r][hop];
            double x = left + hop * pitch_x;
            bool most = visit->pairs == table.busiest[hop];
            text(x + side / 2, y - 6, MIDDLE, "keys of rank %d", origin_of(r, hop));
            mask_grid(x, y, size, m, visit);
            if (visit->arrives)
                text(x + side / 2, y + side + 15, most ? MIDDLE BOLD : MIDDLE, "%d of %d pairs",
                     visit->pairs, ROWS * ROWS);
        }
        bool most = table.pairs[r][RANKS] == table.busiest[RANKS];
        text(right, y + side / 2 + 4, most ? END BOLD : END, "%d pairs", table.pairs[r][RANKS]);
    }

    /* What decides how long the ring takes, and what it sends. The busiest rank of one column need
     * not be that of another. */
    line(20, bottom - 14, right, bottom - 14, STROKE(GREY, "1"));
    text(20, bottom + 6, BOLD, "busiest rank");
    text(20, bottom + 26, "", "messages sent");
    for (int hop = 0; hop < RANKS; hop++) {
        double x = left + hop * pitch_x + side / 2;
        text(x, bottom + 6, MIDDLE BOLD, "%d", table.busiest[hop]);
        text(x, bottom + 26, MIDDLE, "%d", table.messages[hop]);
    }
    text(right, bottom + 6, END BOLD, "%d pairs", table.busiest[RANKS]);
    text(right, bottom + 26, END, "%d", table.messages[RANKS]);

    legend(116, bottom + 60, FILL(BLUE), "the query (row) sees the key (column)");
    legend(392, bottom + 60, FILL(LIGHT), "it does not: nothing to compute");
}
