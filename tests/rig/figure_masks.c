/* figure: the pictures that show what each rank sees and sends at each hop, chapters 04 to 06. The
 * rules are the project's own modules: a fault in them changes the pictures.
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

/* ---- 04-masks, 05-masks-..., 06-masks-..., and what 06-jump knows */

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
    {"06-jump", "Zigzag shards, causal, lookback 3: keys jump over hop 2",
     "P = 4 ranks, N = 32, chunks of 4 tokens; pairs and messages are those of the forward",
     RA_ZIGZAG, 3},
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
    return (struct ra_layout){m->kind, RANKS, LENGTH, 1, NULL};
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
    struct ra_shard_pair shards = {layout, layout, rank, origin_of(rank, hop), true, m->lookback};
    int64_t spans = ra_layout_spans(layout), rows = ROWS / spans; /* of one span */
    for (int64_t s = 0; s < spans; s++)
        for (int64_t t = 0; t < spans; t++) {
            struct ra_band band = ra_layout_pair(&shards, s, t).band;
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
            visit.arrives = hop <= schedule.last[shards.origin];
            visit.sends =
                k + 1 < schedule.count && schedule.hop[k + 1] <= schedule.last[shards.origin];
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

/* What decides how long the ring takes, and what it sends, below the columns. The busiest rank of
 * one need not be that of another. */
static void totals(const struct table *table, double first, double pitch, double bottom)
{
    double right = 700;
    line(20, bottom - 14, right, bottom - 14, STROKE(GREY, "1"));
    text(20, bottom + 6, BOLD, "busiest rank");
    text(20, bottom + 26, "", "messages sent");
    for (int hop = 0; hop < RANKS; hop++) {
        double x = first + hop * pitch;
        text(x, bottom + 6, MIDDLE BOLD, "%d", table->busiest[hop]);
        text(x, bottom + 26, MIDDLE, "%d", table->messages[hop]);
    }
    text(right, bottom + 6, END BOLD, "%d pairs", table->busiest[RANKS]);
    text(right, bottom + 26, END, "%d", table->messages[RANKS]);
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

    totals(&table, left + side / 2, pitch_x, bottom);
    legend(116, bottom + 60, FILL(BLUE), "the query (row) sees the key (column)");
    legend(392, bottom + 60, FILL(LIGHT), "it does not: nothing to compute");
}

/* ---- 06-jump */

/* The journey of one rank's keys: a box for each hop at which they stop, with the rank that they
 * are on; they go from box to box, and their gradients from the last one home. */
static void journey(double left, double pitch, double y, const struct table *table, int origin)
{
    double width = 70, height = 30, from = 0;
    text(20, y + 13, BOLD, "keys of rank %d", origin);
    for (int hop = 0; hop < RANKS; hop++) {
        int rank = (origin + hop) % RANKS;
        const struct visit *visit = &table->visits[rank][hop];
        double x = left + hop * pitch;
        if (!visit->arrives)
            continue;
        rect(x - width / 2, y, width, height, visit->pairs > 0 ? FILL(PALE_BLUE) : FILL(LIGHT));
        text(x, y + 13, MIDDLE, "on rank %d", rank);
        text(x, y + 26, MIDDLE BOLD, "%d pairs", visit->pairs);
        if (hop > 0)
            arrow(from + 2, y + height / 2, x - width / 2 - 2, y + height / 2, INK_LINE);
        from = x + width / 2;
        if (hop > 0 && !visit->sends) {
            line(x, y + height + 2, x, y + height + 13, STROKE(PURPLE, "1.5"));
            line(x, y + height + 13, left, y + height + 13, STROKE(PURPLE, "1.5"));
            arrow(left, y + height + 13, left, y + height + 2, STROKE(PURPLE, "1.5"));
        }
    }
}

void draw_jump(const char *source)
{
    const struct masks *m = find_masks(source);
    struct table table = table_of(m);
    double left = 190, pitch_x = 130, top = 92, pitch_y = 66, bottom = top + RANKS * pitch_y + 12;
    svg_open((int)bottom + 76, m->title,
             "Four lanes, one for the keys of each rank, with a column for each hop. No box stands "
             "at hop 2: from hop 1 the keys of ranks 1, 2 and 3 go on to hop 3, two ranks at once. "
             "Those of rank 0 end at hop 1. From the last box of a lane the gradients go home.");
    heading(20, 30, m->title, m->words);
    for (int hop = 0; hop < RANKS; hop++) {
        text(left + hop * pitch_x, top - 16, MIDDLE BOLD, "hop %d", hop);
        if (table.busiest[hop] == 0)
            text(left + hop * pitch_x, top + 4, MIDDLE, "left out");
    }
    text(700, top - 16, END BOLD, "all hops");
    for (int origin = 0; origin < RANKS; origin++)
        journey(left, pitch_x, top + origin * pitch_y, &table, origin);
    totals(&table, left, pitch_x, bottom);

    /* Counted are messages of the forward. */
    line(20, bottom + 55, 40, bottom + 55, INK_LINE);
    text(48, bottom + 59, "", "keys; in the backward their gradients follow them");
    line(370, bottom + 55, 390, bottom + 55, STROKE(PURPLE, "1.5"));
    text(398, bottom + 59, "", "backward: gradients go home in one message");
}
