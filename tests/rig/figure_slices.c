/* figure: the picture of chapter 13 that shows masks as slices, which the module itself makes. */
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
