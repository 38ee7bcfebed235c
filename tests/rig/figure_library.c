/* figure: the pictures of chapter 08, the library: which module calls which, and how ranks fail
 * together.
 */
#include "figure.h"

#define SMALL " font-size=\"11\""

/* ---- 08-modules */

enum { WIDTH = 126, HEIGHT = 44 };

static double column(int number)
{
    return 20 + 138.5 * number;
}

static double level(int number)
{
    return 64 + 80 * number;
}

/* A module, or several, in these columns. */
static void module(int from, int to, int row, const char *look, const char *name, const char *words)
{
    double x = column(from), y = level(row), width = column(to) + WIDTH - x;
    rect(x, y, width, HEIGHT, look);
    text(x + width / 2, y + 18, MIDDLE BOLD, "%s", name);
    text(x + width / 2, y + 35, MIDDLE SMALL, "%s", words);
}

/* A call from one row to the next: from the middle of a column to the middle of another, each moved
 * by some pixels. */
static void call(int from, double from_by, int row, int to, double to_by, const char *stroke)
{
    double x = column(from) + WIDTH / 2 + from_by, there = column(to) + WIDTH / 2 + to_by;
    arrow(x, level(row) + HEIGHT + 1, there, level(row + 1) - 2, stroke);
}

void draw_modules(const char *source)
{
    (void)source; /* nothing is read */
    const char *table = STROKE(PURPLE, "1.5") DASHES;
    svg_open(
        474, "Which module calls which",
        "From top to bottom: your program calls ra_describe, ring_attention and "
        "ring_attention_mpi. ring_attention calls ra_config_check, ra_plan, ra_agree and, "
        "through a table of functions, ra_host. ra_host calls ra_ring, which calls the fold of "
        "ra_host and the link through tables, and ra_layout, which calls ra_band and ra_tile.");
    heading(20, 30, "Which module calls which",
            "an arrow points from the module that calls to the one that is called; the most "
            "important calls");
    module(1, 3, 0, STROKE(INK, "1"), "your program", "a config, a link, arrays");
    module(0, 0, 1, FILL(PALE_BLUE), "ra_describe", "what will it cost?");
    module(1, 3, 1, FILL(PALE_BLUE), "ring_attention", "create, forward, backward, destroy");
    module(4, 4, 1, FILL(PALE_BLUE), "ring_attention_mpi", "link, scatter, gather");
    module(0, 0, 2, FILL(PALE_BLUE), "ra_count", "tiles, by formula");
    module(1, 1, 2, FILL(PALE_BLUE), "ra_config_check", "one field at a time");
    module(2, 2, 2, FILL(PALE_BLUE), "ra_plan", "memory, questions");
    module(3, 3, 2, FILL(PALE_BLUE), "ra_host", "ra_arrays, ra_number");
    module(4, 4, 2, FILL(PALE_BLUE), "ra_agree", "ranks compare");
    module(1, 1, 3, FILL(PALE_BLUE), "ra_options", "the table of options");
    module(2, 2, 3, FILL(LIGHT), "ra_layout", "ra_schedule: 05, 06");
    module(3, 3, 3, FILL(LIGHT), "ra_ring", "the loop: 03");
    module(4, 4, 3, FILL(LIGHT), "ra_link.h", "the table: 03");
    module(2, 2, 4, FILL(LIGHT), "ra_band, ra_tile", "the fold: 02, 04");
    module(3, 3, 4, FILL(PALE_BLUE), "ra_threads", "a link, or yours");
    module(4, 4, 4, FILL(LIGHT), "ra_mpi_link", "a link: 03");

    call(1, 0, 0, 0, 0, INK_LINE);
    call(2, 0, 0, 2, 0, INK_LINE);
    call(3, 0, 0, 4, 0, INK_LINE);
    call(0, 0, 1, 0, 0, INK_LINE);
    call(1, 0, 1, 1, 0, INK_LINE);
    call(2, 0, 1, 2, 0, INK_LINE);
    call(3, 0, 1, 3, 0, table);
    call(3, 40, 1, 4, -30, INK_LINE);
    call(1, 0, 2, 1, 0, INK_LINE);
    call(0, 0, 2, 2, -40, INK_LINE);
    call(2, 0, 2, 2, 0, INK_LINE);
    call(3, -40, 2, 2, 40, INK_LINE);
    call(3, -10, 2, 3, -10, INK_LINE);
    call(4, 0, 2, 4, 0, table);
    call(2, 0, 3, 2, 0, INK_LINE);
    call(4, -30, 3, 3, 30, table);
    call(4, 0, 3, 4, 0, table);

    /* The ring calls what it was given: the fold, and the link. */
    arrow(column(3) + WIDTH / 2 + 20, level(3) - 1, column(3) + WIDTH / 2 + 20,
          level(2) + HEIGHT + 2, table);
    arrow(column(3) + WIDTH + 1, level(3) + HEIGHT / 2, column(4) - 2, level(3) + HEIGHT / 2,
          table);
    legend(20, 454, FILL(PALE_BLUE), "this chapter");
    legend(150, 454, FILL(LIGHT), "an earlier chapter");
    line(310, 449, 334, 449, INK_LINE);
    text(342, 454, "", "a call");
    line(420, 449, 444, 449, table);
    text(452, 454, "", "a call through a table of functions");
}

/* ---- 08-failure */

/* The lanes of four ranks against time. */
struct lanes {
    double top, left, unit; /* of time, in pixels */
};

static double lane(const struct lanes *lanes, int rank)
{
    return lanes->top + 40 * rank;
}

static double moment(const struct lanes *lanes, double time)
{
    return lanes->left + time * lanes->unit;
}

/* What a rank does for some time. */
static void span(const struct lanes *lanes, int rank, double from, double to, const char *look,
                 const char *ink, const char *words)
{
    double x = moment(lanes, from), width = moment(lanes, to) - x;
    rect(x, lane(lanes, rank), width, 22, look);
    text(x + width / 2, lane(lanes, rank) + 15, ink, "%s", words);
}

static void fold(const struct lanes *lanes, int rank, double from, double to, const char *words)
{
    span(lanes, rank, from, to, FILL(BLUE), MIDDLE SMALL FILL("#FFFFFF"), words);
}

static void waits(const struct lanes *lanes, int rank, double from, double to, const char *words)
{
    span(lanes, rank, from, to, FILL(LIGHT), MIDDLE SMALL, words);
}

/* The text of one rank leaves for the others. */
static void tells(const struct lanes *lanes, int rank, double time)
{
    double x = moment(lanes, time);
    for (int r = 0; r < 4; r++)
        if (r != rank)
            arrow(x, lane(lanes, rank) + (r > rank ? 23 : -1), x + 16,
                  lane(lanes, r) + (r > rank ? -2 : 24), STROKE(PURPLE, "1.5"));
}

static void returns(const struct lanes *lanes, int rank, double time, const char *status)
{
    double x = moment(lanes, time);
    line(x, lane(lanes, rank) - 3, x, lane(lanes, rank) + 25, STROKE(ORANGE, "3"));
    text(x + 6, lane(lanes, rank) + 15, SMALL BOLD FILL(ORANGE), "%s", status);
}

static void names(const struct lanes *lanes)
{
    for (int r = 0; r < 4; r++)
        text(20, lane(lanes, r) + 15, BOLD, "rank %d", r);
}

static void refuses(const struct lanes *lanes)
{
    names(lanes);
    returns(lanes, 2, 0.1, "RA_INVALID, and why");
    static const double ends[] = {0.85, 1.0, 0, 0.92};
    for (int r = 0; r < 4; r++) {
        if (r == 2)
            continue;
        fold(lanes, r, 0, ends[r], "folds hop 0, polls between tiles");
        returns(lanes, r, ends[r] + 0.03, "RA_LOST, and rank 2's text");
    }
    tells(lanes, 2, 0.1);
}

static void falls_silent(const struct lanes *lanes)
{
    names(lanes);
    for (int quarter = 0; quarter <= 6; quarter++)
        text(moment(lanes, quarter / 4.), lanes->top - 10, MIDDLE SMALL,
             quarter % 2 == 0 ? "%d s" : "%d.%d s", quarter / 2, quarter % 2 * 5);
    fold(lanes, 0, 0, 0.5, "hop 0");
    waits(lanes, 0, 0.5, 1.5, "waits for the keys of rank 3");
    fold(lanes, 1, 0, 0.55, "hop 0");
    fold(lanes, 1, 0.56, 1.2, "hop 1");
    waits(lanes, 1, 1.2, 1.54, "waits for rank 0");
    fold(lanes, 2, 0, 0.75, "hop 0");
    waits(lanes, 2, 0.75, 1.54, "waits until rank 3 takes its keys");
    fold(lanes, 3, 0, 0.35, "hop 0");
    text(moment(lanes, 0.35) + 8, lane(lanes, 3) + 15, SMALL, "stopped: no sign of life");

    /* Signs of life, four in a timeout. */
    for (int r = 0; r < 4; r++)
        for (int quarter = 1; quarter <= (r == 3 ? 1 : 5); quarter++)
            rect(moment(lanes, quarter / 4.) - 2, lane(lanes, r) + 24, 4, 7, FILL(GREEN));
    tells(lanes, 0, 1.5);
    returns(lanes, 0, 1.5, "RA_LOST");
    returns(lanes, 1, 1.57, "RA_LOST");
    returns(lanes, 2, 1.57, "RA_LOST");
}

void draw_failure(const char *source)
{
    (void)source; /* nothing is read */
    struct lanes above = {64, 76, 330}, below = {306, 76, 330};
    svg_open(
        512, "How ranks fail together",
        "Two timelines of four ranks. Above: rank 2 refuses its arrays and tells all others at "
        "once; they fold their hop to its end and return RA_LOST with the text of rank 2. "
        "Below, with a timeout of two seconds: rank 3 stops. Rank 0 waits for it, hears no "
        "sign for two seconds, and tells the others, which return RA_LOST with it.");
    heading(20, 30, "A rank refuses",
            "rank 2 is given o = NULL: it tells the others before it returns");
    refuses(&above);
    heading(
        20, 256, "A rank falls silent",
        "timeout = 2 s: rank 0 is the first to wait for rank 3, for 2 s without a sign from it");
    falls_silent(&below);
    legend(20, 488, FILL(BLUE), "computes");
    legend(130, 488, FILL(LIGHT), "waits");
    rect(218, 479, 4, 7, FILL(GREEN));
    text(230, 488, "", "a sign of life, to all ranks");
    arrow(410, 483, 434, 483, STROKE(PURPLE, "1.5"));
    text(442, 488, "", "the text of the error");
    line(590, 474, 590, 492, STROKE(ORANGE, "3"));
    text(598, 488, "", "the call returns");
}
