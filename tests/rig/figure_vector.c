/* figure: the pictures of chapter 09: the block of sums, the products of a tile, and what each
 * trick is worth.
 */
#include "figure.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define SMALL " font-size=\"11\""
#define WHITE FILL("#FFFFFF")
#define EDGE " stroke=\"" INK "\" stroke-width=\"1\""

/* ---- 09-block */

/* A vector, as lanes side by side. */
static void vector(double x, double y, const char *look)
{
    for (int lane = 0; lane < 16; lane++)
        rect(x + 8 * lane, y, 8, 22, look);
}

void draw_block(const char *source)
{
    (void)source; /* nothing is read */
    enum { M = 6, V = 4, TOP = 122, PITCH = 30, LEFT = 150, STEP = 138 };
    svg_open(
        TOP + M * PITCH + 88, "A block of sums in registers",
        "Six rows of four vectors of sixteen sums each. In each step four vectors of the right "
        "operand are loaded, and six numbers of the left one, each spread over a vector: ten "
        "loads for twenty-four multiply-adds of vectors.");
    heading(20, 30, "A block of 6 × 4 vectors of sums, AVX-512",
            "step k: sum i, j += left(i, k) in all lanes × vector j of row k of the right operand");
    text(20, 83, BOLD, "right, row k");
    for (int j = 0; j < V; j++) {
        vector(LEFT + STEP * j, 66, FILL(PALE_BLUE) " stroke=\"" BLUE "\" stroke-width=\"0.5\"");
        text(LEFT + STEP * j + 64, 104, MIDDLE SMALL, "vector %d", j);
    }
    for (int i = 0; i < M; i++) {
        double y = TOP + PITCH * i;
        text(20, y + 15, SMALL, "left(%d, k)", i);
        rect(90, y, 22, 22, FILL(ORANGE));
        arrow(116, y + 11, 142, y + 11, INK_LINE);
        for (int j = 0; j < V; j++)
            vector(LEFT + STEP * j, y, FILL(LIGHT) " stroke=\"" GREY "\" stroke-width=\"0.5\"");
    }
    double y = TOP + PITCH * M + 24;
    legend(20, y, FILL(ORANGE), "6 numbers, each spread over a vector");
    legend(270, y, FILL(PALE_BLUE), "4 vectors loaded");
    legend(410, y, FILL(LIGHT), "24 vectors of sums, in registers to the end");
    text(20, y + 28, "",
         "Each step: 6 + 4 = 10 loads for 24 multiply-adds of vectors. "
         "24 + 4 + 1 = 29 registers are in use, of 32.");
}

/* ---- 09-products */

static void operand(double x, double y, const char *look, const char *name, const char *shape)
{
    rect(x, y, 116, 44, look);
    text(x + 58, y + 19, BOLD MIDDLE, "%s", name);
    text(x + 58, y + 35, MIDDLE SMALL, "%s", shape);
}

void draw_turned(const char *source)
{
    (void)source; /* nothing is read */
    static const struct {
        const char *pass, *left, *left_shape, *right, *right_shape, *out, *out_shape, *lanes;
    } all[] = {
        {"both", "K", "keys × D", "Qᵀ, turned", "D × queries", "Sᵀ", "keys × queries", "queries"},
        {"forward", "P", "queries × keys", "V", "keys × D", "O", "queries × D", "D"},
        {"backward", "V", "keys × D", "dOᵀ, turned", "D × queries", "dPᵀ", "keys × queries",
         "queries"},
        {"backward", "Pᵀ", "keys × queries", "dO", "queries × D", "dV", "keys × D", "D"},
        {"backward", "dSᵀ", "keys × queries", "Q", "queries × D", "dK", "keys × D", "D"},
        {"backward", "dS", "queries × keys", "K", "keys × D", "dQ", "queries × D", "D"},
    };
    enum { COUNT = sizeof all / sizeof *all, TOP = 66, PITCH = 60 };
    svg_open(
        TOP + COUNT * PITCH + 42, "The products of a tile, and how each operand is read",
        "Of each product the left operand is read one number at a time and spread over a vector; "
        "the right one is read in vectors. Only q and d_out are turned on their side.");
    heading(20, 30, "The products of a tile",
            "P and dS are the transposes of what is stored: read by columns, which costs nothing");
    for (int k = 0; k < COUNT; k++) {
        double y = TOP + PITCH * k;
        text(20, y + 27, BOLD, "%s", all[k].pass);
        operand(100, y, FILL(PALE_ORANGE), all[k].left, all[k].left_shape);
        text(224, y + 27, BOLD, "·");
        operand(238, y, FILL(PALE_BLUE), all[k].right, all[k].right_shape);
        text(363, y + 27, BOLD, "=");
        operand(384, y, FILL(LIGHT), all[k].out, all[k].out_shape);
        text(516, y + 27, "", "lanes are %s", all[k].lanes);
    }
    double y = TOP + PITCH * COUNT + 22;
    legend(100, y, FILL(PALE_ORANGE), "number by number");
    legend(238, y, FILL(PALE_BLUE), "in vectors");
    legend(384, y, FILL(LIGHT), "sums in registers, then stored");
}

/* ---- 09-tricks */

enum { MOST_SPEEDS = 64 };

void draw_speeds(const char *source)
{
    static const struct {
        const char *pass, *title, *words;
    } panels[] = {
        {"peak", "Multiply-adds alone", "one thread; GFLOP/s"},
        {"forward", "Forward, with one trick undone",
         "one thread; GFLOP/s, and the share of the tile as it is"},
        {"backward", "Backward, with one trick undone",
         "one thread; GFLOP/s, and the share of the tile as it is"},
    };
    struct row rows[MOST_SPEEDS];
    int count = read_csv(source, SPEEDS_HEADER, "twd", MOST_SPEEDS, rows), passes = 0;
    double most = 0;
    for (int k = 0; k < count; k++) {
        if (rows[k].numbers[0] < 0.1)
            fail("%s:%d: want GFLOP/s, 0.1 or more", source, k + 2);
        most = fmax(most, rows[k].numbers[0]);
        passes += k == 0 || strcmp(rows[k].words[1], rows[k - 1].words[1]) != 0;
    }
    struct axis x = {0, most, 250, 620};
    svg_open(14 + 74 * passes + 22 * count, "What each trick of the vector tile is worth",
             "Bars: GFLOP/s of multiply-adds alone, of the forward and of the backward as they are "
             "and with one trick undone at a time.");
    double y = -16;
    int first = 0;
    for (int k = 0; k < count; k++) {
        const char *pass = rows[k].words[1];
        if (k == 0 || strcmp(pass, rows[k - 1].words[1]) != 0) {
            size_t p = 0;
            while (p < sizeof panels / sizeof *panels && strcmp(panels[p].pass, pass) != 0)
                p++;
            if (p == sizeof panels / sizeof *panels)
                fail("%s:%d: want peak, forward or backward", source, k + 2);
            y += 46;
            heading(20, y, panels[p].title, panels[p].words);
            y += 28;
            first = k;
        }
        bool whole = strcmp(rows[k].words[0], "none") == 0;
        bool compared = strcmp(rows[first].words[0], "none") == 0;
        double rate = rows[k].numbers[0];
        text(20, y + 13, whole ? BOLD : "", "%s", whole ? "the tile as it is" : rows[k].words[0]);
        rect(x.start, y, place(x, rate) - x.start, 18, compared && !whole ? FILL(SKY) : FILL(BLUE));
        text(place(x, rate) + 6, y + 13, SMALL, "%.0f", rate);
        if (compared && !whole)
            text(700, y + 13, END SMALL, "%.0f %%", 100 * rate / rows[first].numbers[0]);
        y += 22;
    }
}
