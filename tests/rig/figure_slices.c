/* figure: the pictures of chapter 13: masks as slices, which the module itself makes, and how fast
 * kernels compute documents.
 */
#include <stdlib.h>
#include <string.h>
#include "figure.h"
#include "ra_slices.h"

enum { MOST = 16 }; /* slices of a list */

enum { LENGTH = 12, CELL = 14, COLUMNS = 3, PANELS = 9, SHADES = 5 };

static const char *const shades[SHADES] = {FILL(BLUE), FILL(ORANGE), FILL(GREEN), FILL(SKY),
                                           FILL(PURPLE)};
static const int64_t bounds[] = {0, 5, 8, 12}, key_bounds[] = {0, 3, 8, 12};
static const int64_t answers[] = {0, 4, 7, 12}, whole[] = {0, 12}, prefixes[] = {4};

static int64_t make(int panel, struct ra_slice *list)
{
    switch (panel) {
    case 0:
        return ra_slices_documents(bounds, 3, RA_NO_LOOKBACK, 0, list);
    case 1:
        return ra_slices_documents(bounds, 3, RA_NO_LOOKBACK, RA_NO_LOOKBACK, list);
    case 2:
        return ra_slices_documents(bounds, 3, 2, 0, list);
    case 3:
        return ra_slices_prefix(whole, 1, prefixes, list);
    case 4:
        return ra_slices_chunks(LENGTH, 4, list);
    case 5:
        return ra_slices_window(LENGTH, LENGTH, 2, 1, list);
    case 6:
        return ra_slices_first(whole, 1, 2, 3, list);
    case 7:
        return ra_slices_answers(answers, 3, list);
    default:
        return ra_slices_pairs(bounds, key_bounds, 3, list);
    }
}

static const char *const names[PANELS] = {"documents, causal",
                                          "documents, not causal",
                                          "window in documents",
                                          "prefix LM",
                                          "chunks",
                                          "window to both sides",
                                          "first tokens and a window",
                                          "question and 2 answers",
                                          "packed pairs"};
static const char *const words[PANELS] = {
    "5, 3 and 4 tokens",     "5, 3 and 4 tokens",     "2 tokens back",
    "4 tokens that all see", "of 4 tokens",           "2 back, 1 ahead",
    "2 tokens, and 3 back",  "4, and 3 and 5 tokens", "queries 5, 3, 4; keys 3, 5, 4"};

static void draw_mask(double x, double y, int panel)
{
    struct ra_slice list[MOST];
    int64_t count = make(panel, list);
    text(x, y, BOLD, "%s", names[panel]);
    text(x, y + 16, "", "%s", words[panel]);
    for (int i = 0; i < LENGTH; i++)
        for (int j = 0; j < LENGTH; j++) {
            const char *look = FILL(LIGHT);
            for (int64_t s = 0; s < count; s++) {
                struct ra_slice one = list[s];
                if (i >= one.q0 && i < one.q1 && j >= one.k0 && j < one.k1 && j - i >= one.lo &&
                    j - i <= one.hi)
                    look = shades[s % SHADES];
            }
            rect(x + CELL * j, y + 26 + CELL * i, CELL - 1, CELL - 1, look);
        }
}

void draw_slices(const char *source)
{
    (void)source;
    svg_open(770, "Nine masks as slices",
             "Nine grids of twelve queries, downwards, against twelve keys, to the right. Each has "
             "one to three slices, each in a colour of its own: blocks along the diagonal for "
             "documents and chunks, a column and a band for first tokens and a window, a wide and "
             "a triangular slice for a prefix.");
    heading(20, 30, "Nine masks, each a list of one to three slices",
            "a row is a query, a column a key; each colour is a slice, grey is not visible");
    for (int panel = 0; panel < PANELS; panel++)
        draw_mask(40 + 232 * (panel % COLUMNS), 88 + 232 * (panel / COLUMNS), panel);
}

/* ---- Bars of two panels, below each other for each mask. */

enum { PITCH = 11, MOST_BARS = 5 };

static const struct axis bar_panels[] = {{0, 700, 124, 376}, {0, 700, 440, 692}};

/* The titles of the panels above `top`, and lines of a grid down to `bottom`. */
static void bar_frame(double top, double bottom, const char *const titles[2])
{
    for (int panel = 0; panel < 2; panel++) {
        struct axis x = bar_panels[panel];
        text(x.start, top - 8, BOLD, "%s", titles[panel]);
        for (int rate = 0; rate <= 600; rate += 200)
            line(place(x, rate), top, place(x, rate), bottom, STROKE(LIGHT, "1"));
    }
}

/* A bar from y on, and its rate behind it. */
static void bar(double y, double rate, struct axis x, const char *fill)
{
    rect(x.start, y, place(x, rate) - x.start, 10, fill);
    text(place(x, rate) + 4, y + 9, " font-size=\"10\"", "%.0f", rate);
}

/* ---- 13a-varlen */

enum { DOCUMENTS = 7, PROGRAMS = 4 };

static const struct {
    const char *mask, *label, *more;
} documents[DOCUMENTS] = {{"documents-512", "documents", "of 512"},
                          {"documents-2k", "documents", "of 2,048"},
                          {"documents-8k", "documents", "of 8,192"},
                          {"log-normal", "log-normal", "lengths"},
                          {"causal", "one document", ""},
                          {"prefix", "one, a quarter", "of it its prefix"},
                          {"window", "log-normal,", "window of 1,024"}};

static const char *const programs[PROGRAMS] = {"ours", "flash-attn-4", "flex_attention",
                                               "varlen_attn"};
static const char *const fills[PROGRAMS] = {FILL(BLUE), FILL(ORANGE), FILL(GREY), FILL("#C4C4C4")};

/* The bars of a mask: ours, the mean of two times, and the others that have such a mask. */
static void varlen_bars(double y, const struct row *row, struct axis x)
{
    double ours = (row->numbers[0] + row->numbers[1]) / 2;
    bar(y, ours, x, fills[0]);
    text(place(x, ours) + 28, y + 9, BOLD " font-size=\"10\"", "%.2f", row->numbers[2]);
    for (int p = 1; p < PROGRAMS; p++)
        if (strcmp(row->words[1 + p], "-") != 0)
            bar(y + PITCH * p, strtod(row->words[1 + p], NULL), x, fills[p]);
}

void draw_varlen(const char *source)
{
    struct row rows[2 * DOCUMENTS];
    read_rows(source, VARLEN_HEADER, "wwddtttd", 2 * DOCUMENTS, rows);
    const double top = 78, height = 57, bottom = top + height * DOCUMENTS;
    svg_open((int)bottom + 58, "Documents on one H200, beside other programs",
             "Bars of rates, forward and backward, for seven masks: ours, flash-attn-4, PyTorch's "
             "flex_attention and varlen_attn. In the forward ours is about as fast as the best of "
             "the others, in the backward mostly slower than flash-attn-4.");
    heading(20, 30, "Documents on one H200, beside other programs",
            "10¹² operations a second of visible pairs; bold: ours to the best of the others");
    bar_frame(top, bottom, (const char *const[]){"forward", "backward"});
    for (int k = 0; k < 2 * DOCUMENTS; k++) {
        int pass = k / DOCUMENTS, mask = k % DOCUMENTS;
        double y = top + 6 + height * mask;
        if (strcmp(rows[k].words[1], documents[mask].mask) != 0)
            fail("%s:%d: want %s", source, line_of_row(k), documents[mask].mask);
        if (pass == 0) {
            text(20, y + 18, "", "%s", documents[mask].label);
            text(20, y + 33, "", "%s", documents[mask].more);
        }
        varlen_bars(y, &rows[k], bar_panels[pass]);
    }
    for (int p = 0; p < PROGRAMS; p++)
        legend(124 + 140 * p, bottom + 34, fills[p], programs[p]);
}

/* ---- 13a-documents-beside */

/* The first of the documents above, as they are called there. */
enum { RINGS = 4 };

static const char *const lengths[RINGS] = {"512", "2048", "8192", "log-normal"};

/* What is drawn of the numbers of a row, and where its legend is. The third number, the best of
 * PyTorch's, is one of the others. */
static const struct {
    const char *name, *fill;
    int number, x, y;
} shards[MOST_BARS] = {{"ours, contiguous", FILL(BLUE), 0, 124, 32},
                       {"ours, dealt", FILL("#94C3E2"), 1, 310, 32},
                       {"PyTorch, contiguous", FILL("#707070"), 3, 124, 56},
                       {"PyTorch, for each document", FILL("#9C9C9C"), 4, 310, 56},
                       {"PyTorch, PTRR", FILL("#C4C4C4"), 5, 540, 56}};

void draw_rings(const char *source)
{
    struct row rows[2 * RINGS];
    read_rows(source, RINGS_HEADER, "wwdddddd", 2 * RINGS, rows);
    const double top = 78, height = 70, bottom = top + height * RINGS;
    svg_open(
        (int)bottom + 80, "Documents on two H200s, beside PyTorch",
        "Bars of rates, the forward and both passes, for documents of four lengths: ours with "
        "contiguous and with dealt rows, and three kinds of shards of PyTorch. Contiguous rows "
        "of ours lead, up to 7.8 times the best of PyTorch's; dealt ones come next.");
    heading(20, 30, "Documents on two H200s, beside PyTorch",
            "10¹² operations a second of visible pairs, on each GPU");
    bar_frame(top, bottom, (const char *const[]){"forward", "both passes"});
    for (int k = 0; k < 2 * RINGS; k++) {
        double y = top + 8 + height * (k / 2);
        if (strcmp(rows[k].words[0], lengths[k / 2]) != 0 ||
            strcmp(rows[k].words[1], k % 2 == 0 ? "forward" : "both") != 0)
            fail("%s:%d: want %s, forward and then both", source, line_of_row(k), lengths[k / 2]);
        if (k % 2 == 0) {
            text(20, y + 24, "", "%s", documents[k / 2].label);
            text(20, y + 39, "", "%s", documents[k / 2].more);
        }
        for (int p = 0; p < MOST_BARS; p++)
            bar(y + PITCH * p, rows[k].numbers[shards[p].number], bar_panels[k % 2],
                shards[p].fill);
    }
    for (int p = 0; p < MOST_BARS; p++)
        legend(shards[p].x, bottom + shards[p].y, shards[p].fill, shards[p].name);
}
