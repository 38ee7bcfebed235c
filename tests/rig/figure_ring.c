/* figure: the pictures of the chapters of the ring that show a rule: who holds which keys, what a
 * band makes of tiles, and which heads share. figure_masks.c has those of ranks and hops. The rules
 * are the project's own modules: a fault in them changes the pictures.
 */
#include "figure.h"
#include <stdio.h>

#include "ra_band.h"
#include "ra_heads.h"

enum { RANKS = 4 }; /* of 03-ring, and so the number of its hops */

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

/* The backward as the keys of rank 0 see it: a lane for each rank against time. Keys leave when a
 * hop begins, their gradients when it ends. */
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

/* ---- 04-tiles */

enum { SIDE = 16, TILE = 4 }; /* rows of each shard, and of a tile */

/* The plane of local rows, with its band, in tiles. */
static void band_grid(double x, double y, const char *title, const char *words, struct ra_band band)
{
    double size = 15, gap = 4, left = x + 28, top = y + 62;
    int counts[3] = {0}; /* tiles that are empty, cut, full */
    heading(x, y, title, words);
    text(left - 8, top - 8, END, "a");
    text(left + SIDE * size + SIDE / TILE * gap, top - 8, END, "b");
    for (int n = 0; n < SIDE; n++) {
        double along = n * size + n / TILE * gap;
        text(left + along + size / 2, top - 8, n < SIDE - 1 ? MIDDLE : END, n % TILE ? "" : "%d",
             n);
        text(left - 8, top + along + 12, END, n % TILE ? "" : "%d", n);
    }
    for (int a = 0; a < SIDE; a += TILE)
        for (int b = 0; b < SIDE; b += TILE) {
            double tile_x = left + b * size + b / TILE * gap;
            double tile_y = top + a * size + a / TILE * gap;
            struct ra_band tile = ra_band_from(band, a, b);
            if (ra_band_is_empty(tile, TILE, TILE)) {
                rect(tile_x + 0.5, tile_y + 0.5, TILE * size - 1, TILE * size - 1,
                     STROKE(GREY, "1") DASHES);
                counts[0]++;
                continue;
            }
            int seen = 0;
            for (int i = 0; i < TILE; i++)
                for (int j = 0; j < TILE; j++) {
                    bool see = tile.lo <= j - i && j - i <= tile.hi;
                    rect(tile_x + j * size + 0.5, tile_y + i * size + 0.5, size - 1, size - 1,
                         see ? FILL(BLUE) : FILL(PALE_ORANGE));
                    seen += see;
                }
            counts[seen == TILE * TILE ? 2 : 1]++;
        }
    text(left, top + SIDE * size + SIDE / TILE * gap + 16, "", "%d tiles empty, %d cut, %d full",
         counts[0], counts[1], counts[2]);
}

void draw_band(const char *source)
{
    (void)source; /* nothing is read */
    svg_open(430, "A band over tiles",
             "Two planes of 16 queries, downwards, against 16 keys, to the right, in tiles of 4 by "
             "4. Left, a causal mask: 6 tiles above the diagonal are empty. Right, a band with two "
             "ends: tiles on both sides of it are empty.");
    struct ra_span here = {0, 1, SIDE}, later = {7, 1, SIDE};
    struct ra_band open = ra_band_causal(here, here, RA_BAND_FAR);
    struct ra_band closed = ra_band_causal(later, here, 10);
    char words[80];
    snprintf(words, sizeof words, "both from position 0 on: hi = %d, no lower end", (int)open.hi);
    band_grid(20, 30, "Queries and their own keys", words, open);
    snprintf(words, sizeof words, "queries from 7 on, L = 10: lo = −%d, hi = %d", -(int)closed.lo,
             (int)closed.hi);
    band_grid(376, 30, "A window of chapter 06", words, closed);
    legend(48, 408, FILL(BLUE), "a visible pair");
    legend(190, 408, FILL(PALE_ORANGE), "computed and thrown away");
    legend(400, 408, STROKE(GREY, "1") DASHES, "an empty tile: skipped");
}

/* ---- 07-heads */

enum { QUERY_HEADS = 6, KEY_HEADS = 2 };

/* Which key/value head each query head reads. */
static void head_map(double x, double y, const char *title, const char *words, enum ra_head_map map)
{
    double pitch = 50, width = 34, height = 26, top = y + 56, bottom = y + 136;
    static const char *const fills[KEY_HEADS] = {FILL(BLUE), FILL(ORANGE)};
    static const char *const strokes[KEY_HEADS] = {STROKE(BLUE, "1.5"), STROKE(ORANGE, "1.5")};
    heading(x, y, title, words);
    text(x, top - 12, "", "query heads h");
    for (int h = 0; h < QUERY_HEADS; h++) {
        int g = (int)ra_heads_key(map, QUERY_HEADS, KEY_HEADS, h);
        double from = x + h * pitch + width / 2, to = x + (3 * g + 1) * pitch + width / 2;
        box(x + h * pitch, top, width, height, fills[g], h);
        line(from, top + height, to, bottom, strokes[g]);
    }
    for (int g = 0; g < KEY_HEADS; g++)
        box(x + (3 * g + 1) * pitch - 8, bottom, width + 16, height, fills[g], g);
    text(x, bottom + height + 17, "", "key/value heads g");
}

void draw_heads(const char *source)
{
    (void)source; /* nothing is read */
    svg_open(228, "Two head maps",
             "Six query heads, each with a line to one of two key/value heads. Grouped: heads 0, 1 "
             "and 2 read head 0, heads 3, 4 and 5 head 1. Interleaved: heads 0, 2 and 4 read head "
             "0, heads 1, 3 and 5 head 1.");
    head_map(20, 30, "Grouped", "neighbours share: g = h / (H/G)", RA_GROUPED);
    head_map(376, 30, "Interleaved", "every G-th shares: g = h mod G", RA_INTERLEAVED);
}
