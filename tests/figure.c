/* figure: draws the figures of the chapters, as SVG.
 *
 * A figure that shows a rule computes it here instead of being drawn by hand; a figure that shows a
 * measurement reads it from a CSV file. The same program and data give the same bytes, so that a
 * test can draw every committed figure again and compare.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The palette of Okabe and Ito, which colour-blind readers can tell apart, and greys. */
#define BLUE "#0072B2"
#define PALE_BLUE "#D6E8F3"
#define ORANGE "#D55E00"
#define PALE_ORANGE "#FBE3CF"
#define GREEN "#009E73"
#define INK "#222222"
#define GREY "#8A8A8A"
#define LIGHT "#E6E6E6"

/* Looks, as SVG attributes. Two of them side by side are both. */
#define FILL(colour) " fill=\"" colour "\""
#define STROKE(colour, width) " fill=\"none\" stroke=\"" colour "\" stroke-width=\"" width "\""
#define DASHES " stroke-dasharray=\"3 3\""
#define MIDDLE " text-anchor=\"middle\""
#define END " text-anchor=\"end\""
#define BOLD " font-weight=\"bold\""

/* ---- Drawing: x goes right and y goes down, in pixels; (x, y) of a text is on its baseline. */

struct point {
    double x, y;
};

/* Rounds to the two decimals that are written. Adding 0 turns -0 into 0. */
static double pixel(double x)
{
    return round(x * 100) / 100 + 0.0;
}

/* Opens a picture on stdout. It brings its own white paper: the page around it may be dark. */
static void svg_open(int height, const char *title, const char *description)
{
    printf("<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" width=\"720\" height=\"%d\" "
           "viewBox=\"0 0 720 %d\" font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" "
           "font-size=\"12\">\n<title>%s</title>\n<desc>%s</desc>\n",
           height, height, title, description);
    printf("<rect width=\"720\" height=\"%d\" fill=\"#FFFFFF\"/>\n", height);
}

static void svg_close(void)
{
    puts("</svg>");
}

/* The text of format, as printf has it; <, > and & must come as XML wants them. */
static void text(double x, double y, const char *look, const char *format, ...)
{
    printf("<text x=\"%g\" y=\"%g\"%s%s>", pixel(x), pixel(y),
           strstr(look, "fill=") ? "" : FILL(INK), look);
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    puts("</text>");
}

static void rect(double x, double y, double width, double height, const char *look)
{
    printf("<rect x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\"%s/>\n", pixel(x), pixel(y),
           pixel(width), pixel(height), look);
}

static void polyline(int count, const struct point *points, const char *look)
{
    printf("<polyline points=\"");
    for (int k = 0; k < count; k++)
        printf("%s%g,%g", k > 0 ? " " : "", pixel(points[k].x), pixel(points[k].y));
    printf("\"%s/>\n", look);
}

static void line(double x1, double y1, double x2, double y2, const char *look)
{
    polyline(2, (struct point[]){{x1, y1}, {x2, y2}}, look);
}

/* A line with a head at (x2, y2). */
static void arrow(double x1, double y1, double x2, double y2)
{
    double length = hypot(x2 - x1, y2 - y1), x = 6 * (x2 - x1) / length, y = 6 * (y2 - y1) / length;
    struct point head[] = {
        {x2 - x - y / 2, y2 - y + x / 2}, {x2, y2}, {x2 - x + y / 2, y2 - y - x / 2}};
    line(x1, y1, x2, y2, STROKE(INK, "1.5"));
    polyline(3, head, STROKE(INK, "1.5"));
}

/* A scale: the value `low` is at pixel `start` and the value `high` at pixel `end`. */
struct axis {
    double low, high, start, end;
};

static double place(struct axis axis, double value)
{
    return axis.start + (value - axis.low) / (axis.high - axis.low) * (axis.end - axis.start);
}

/* ---- 01-visible */

struct rule {
    const char *name, *words;
    int N, M, real_keys, lookback; /* keys from real_keys on are padding; lookback -1: none */
    bool causal;
};

/* May query i see key j? */
static bool visible(const struct rule *rule, int i, int j)
{
    int position = i + (rule->M - rule->N);
    if (j >= rule->real_keys)
        return false;
    if (!rule->causal)
        return true;
    return j <= position && (rule->lookback < 0 || position - j <= rule->lookback);
}

/* One rule as a grid. Its rows end at the bottom of a square, so that fewer queries stand low. */
static void rule_grid(double x, double y, const struct rule *rule)
{
    double size = 18, left = x + 28, top = y + 46;
    int absent = rule->M - rule->N, seen = 0;
    text(x, y, BOLD " font-size=\"14\"", "%s", rule->name);
    text(x, y + 18, "", "%s", rule->words);

    /* The numbers of the keys and of the queries. */
    for (int j = 0; j < rule->M; j++)
        text(left + (j + 0.5) * size, top - 5, MIDDLE, "%d", j);
    text(left + rule->M * size + 6, top - 5, "", "key j");
    for (int i = 0; i < rule->N; i++)
        text(left - 7, top + (absent + i + 0.75) * size, END, "%d", i);
    text(left - 19, top + rule->M * size + 15, "", "query i");

    for (int i = 0; i < rule->N; i++)
        for (int j = 0; j < rule->M; j++) {
            bool see = visible(rule, i, j);
            seen += see;
            rect(left + j * size + 1, top + (absent + i) * size + 1, size - 2, size - 2,
                 see ? FILL(BLUE) : FILL(LIGHT));
        }

    /* Where other grids have rows and this one has none. */
    if (absent > 0) {
        rect(left + 1, top + 1, rule->M * size - 2, absent * size - 4, STROKE(GREY, "1") DASHES);
        text(left + rule->M * size / 2, top + absent * size / 2 - 4, MIDDLE, "%d earlier", absent);
        text(left + rule->M * size / 2, top + absent * size / 2 + 12, MIDDLE, "positions");
    }
    text(left + rule->M * size, top + rule->M * size + 15, END, "%d of %d pairs", seen,
         rule->N * rule->M);
}

/* Which key head a query head reads. */
static int key_head(int H, int G, int h, bool interleaved)
{
    return interleaved ? h % G : h / (H / G);
}

/* One map of heads: query heads above, key heads below, and a line from each to what it reads. */
static void head_map(double x, double y, int H, int G, bool interleaved, const char *name)
{
    double size = 18, pitch = 29, left = x + 40, below = y + 52;
    text(x, y, "", "%s", name);
    text(x, y + 21, "", "query");
    text(x, below + 13, "", "key");
    for (int h = 0; h < H; h++) {
        int g = key_head(H, G, h, interleaved);
        double head_x = left + h * pitch, key_x = left + ((g + 0.5) * H / G - 0.5) * pitch;
        line(head_x + size / 2, y + 8 + size, key_x + size / 2, below,
             g % 2 ? STROKE(ORANGE, "1.5") : STROKE(BLUE, "1.5"));
        rect(head_x, y + 8, size, size, g % 2 ? FILL(ORANGE) : FILL(BLUE));
        text(head_x + size / 2, y + 21, MIDDLE BOLD FILL("#FFFFFF"), "%d", h);
        rect(key_x, below, size, size, g % 2 ? FILL(ORANGE) : FILL(BLUE));
        text(key_x + size / 2, below + 13, MIDDLE BOLD FILL("#FFFFFF"), "%d", g);
    }
}

static void draw_visible(void)
{
    static const struct rule rules[] = {
        {"All", "every query sees every key", 8, 8, 8, -1, false},
        {"Causal", "no query sees a later key", 8, 8, 8, -1, true},
        {"Causal, lookback 2", "itself and the 2 keys before", 8, 8, 8, 2, true},
        {"Key mask", "keys 5, 6 and 7 are padding", 8, 8, 5, -1, false},
        {"Causal, 3 queries, 8 keys", "the last query is at the last key", 3, 8, 8, -1, true},
    };
    svg_open(532, "Which query may see which key",
             "Five grids of queries against keys, a filled cell for each pair that is visible; and "
             "the two ways in which six query heads can share two key heads.");
    for (int k = 0; k < 5; k++)
        rule_grid(20 + k % 3 * 236, 30 + k / 3 * 248, &rules[k]);

    text(492, 278, BOLD " font-size=\"14\"", "Heads: H = 6, G = 2");
    text(492, 296, "", "a query head reads one key head");
    head_map(492, 326, 6, 2, false, "grouped: h / (H / G)");
    head_map(492, 420, 6, 2, true, "interleaved: h mod G");

    rect(48, 506, 16, 16, FILL(BLUE));
    text(70, 519, "", "query i sees key j");
    rect(208, 506, 16, 16, FILL(LIGHT));
    text(230, 519, "", "it does not: the pair has no weight");
    svg_close();
}

/* ---- 02-tiles */

/* A square of count x count cells, each drawn one pixel smaller than it is. */
static void cells(double x, double y, int count, double size, const char *look)
{
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++)
            rect(x + j * size + 0.5, y + i * size + 0.5, size - 1, size - 1, look);
}

static void draw_tiles(void)
{
    enum { ROWS = 16, TILE = 4, TILES = ROWS / TILE, NOW_I = 1, NOW_J = 2 };
    double size = 12, side = ROWS * size, tile = TILE * size, top = 134;
    svg_open(436, "The whole score matrix, and the same matrix tile by tile",
             "Left: 01-naive holds all scores of 16 queries and 16 keys. Right: 02-flash cuts them "
             "into 4 x 4 tiles and holds one tile; key tiles pass along a row of tiles and are "
             "folded into the carry of the query tile: max, sum and o.");

    /* Left: all cells stand in memory. */
    double left = 56;
    text(20, 30, BOLD " font-size=\"14\"", "01-naive: all scores at once");
    text(20, 48, "", "softmax wants whole rows, so all are kept");
    text(left + side / 2, top - 10, MIDDLE, "M = %d keys", ROWS);
    printf("<g transform=\"translate(%g %g) rotate(-90)\">\n", left - 12, top + side / 2);
    text(0, 0, MIDDLE, "N = %d queries", ROWS);
    puts("</g>");
    cells(left, top, ROWS, size, FILL(ORANGE));
    text(left + side / 2, top + side + 24, MIDDLE BOLD, "%d × %d = %d scores in memory", ROWS, ROWS,
         ROWS * ROWS);

    /* Right: the tiles that were, the one that is, those that will be. */
    left = 388;
    text(300, 30, BOLD " font-size=\"14\"", "02-flash: one tile at a time");
    text(300, 48, "", "a tile of scores is made, folded into the carry, and overwritten");
    for (int i = 0; i < TILES; i++)
        for (int j = 0; j < TILES; j++) {
            double x = left + j * tile, y = top + i * tile;
            if (i == NOW_I && j == NOW_J)
                cells(x, y, TILE, size, FILL(BLUE));
            else if (i < NOW_I || (i == NOW_I && j < NOW_J))
                rect(x + 1.5, y + 1.5, tile - 3, tile - 3, FILL(LIGHT));
            else
                rect(x + 1.5, y + 1.5, tile - 3, tile - 3, STROKE(GREY, "1") DASHES);
        }
    text(left + side / 2, top + side + 24, MIDDLE BOLD, "%d × %d = %d scores in memory", TILE, TILE,
         TILE * TILE);

    /* The tiles of keys and queries that meet now are green. */
    for (int k = 0; k < TILES; k++) {
        rect(left + k * tile + 1.5, top - 28, tile - 3, 20, k == NOW_J ? FILL(GREEN) : FILL(LIGHT));
        text(left + (k + 0.5) * tile, top - 14, k == NOW_J ? MIDDLE BOLD FILL("#FFFFFF") : MIDDLE,
             "%d", k);
        rect(left - 28, top + k * tile + 1.5, 20, tile - 3, k == NOW_I ? FILL(GREEN) : FILL(LIGHT));
        text(left - 18, top + (k + 0.5) * tile + 4,
             k == NOW_I ? MIDDLE BOLD FILL("#FFFFFF") : MIDDLE, "%d", k);
    }
    text(left + 1.5, top - 50, "", "key tiles (k, v) stream by");
    arrow(left + 1.5, top - 39, left + side - 1.5, top - 39);
    text(left - 38, top + tile / 2 + 4, END, "query tiles");
    text(left - 38, top + tile / 2 + 20, END, "(q)");

    /* The carry of each tile of queries, a line per query row. */
    double carry = left + side + 24, y = top + NOW_I * tile;
    text(carry, top - 30, BOLD, "carry");
    text(carry + 15, top - 8, MIDDLE, "max");
    text(carry + 47, top - 8, MIDDLE, "sum");
    text(carry + 80, top - 8, MIDDLE, "o");
    for (int k = 0; k < ROWS; k++) {
        double row = top + k * size + 0.5;
        if (k / TILE > NOW_I)
            continue;
        const char *look = k / TILE < NOW_I ? FILL(PALE_BLUE) : FILL(BLUE);
        rect(carry, row, 30, size - 1, look);
        rect(carry + 32, row, 30, size - 1, look);
        rect(carry + 64, row, 34, size - 1, look);
    }
    arrow(left + (NOW_J + 1) * tile + 4, y + tile / 2, carry - 4, y + tile / 2);
    text(left + (NOW_J + 1) * tile + 12, y + tile / 2 - 6, "", "fold");
    text(carry, y + tile + 20, "", "a row per query:");
    text(carry, y + tile + 36, "", "largest score,");
    text(carry, y + tile + 52, "", "sum of weights,");
    text(carry, y + tile + 68, "", "weighted sum of v");

    /* What the looks mean. */
    rect(300, 378, 16, 16, FILL(BLUE));
    text(322, 391, "", "in memory now");
    rect(300, 402, 16, 16, STROKE(GREY, "1") DASHES);
    text(322, 415, "", "tile still to come");
    rect(450, 378, 16, 16, FILL(LIGHT));
    text(472, 391, "", "tile folded; its scores are gone");
    rect(450, 402, 16, 16, FILL(PALE_BLUE));
    text(472, 415, "", "finished: o / sum, and lse");
    svg_close();
}

/* ---- 02-carry */

static void draw_carry(void)
{
    enum { STEPS = 4, BLOCK = 2 };
    static const double scores[STEPS * BLOCK] = {1, 3, 2, 5, 4, 5.5, 0, 2};
    static const char *const labels[] = {"max", "rescale: exp(old max − max)", "old sum × rescale",
                                         "+ new weights: Σ exp(s − max)", "= sum"};
    double left = 224, width = 119, bottom = 250, table = bottom + 48;
    struct axis y = {0, 6, bottom, bottom - 168};
    svg_open(510, "Softmax folded two keys at a time",
             "Eight scores in four steps. The running maximum grows in steps 2 and 3, and there "
             "alone the old sum is scaled down. The final max + log(sum) equals the log-sum-exp of "
             "all eight scores at once.");
    text(20, 30, BOLD " font-size=\"14\"", "One query row, eight keys,");
    text(20, 48, BOLD " font-size=\"14\"", "folded two at a time");
    rect(20, 76, 14, 14, FILL(BLUE));
    text(42, 88, "", "score s of a key");
    line(20, 107, 36, 107, STROKE(ORANGE, "3"));
    text(42, 111, "", "largest score so far");
    text(left - 30, y.end - 12, END, "score");
    for (int s = 0; s <= 6; s += 2) {
        line(left, place(y, (double)s), left + STEPS * width, place(y, (double)s),
             STROKE(LIGHT, "1"));
        text(left - 8, place(y, (double)s) + 4, END, "%d", s);
    }
    for (int k = 0; k < 5; k++)
        text(20, table + k * 24 + 4, k == 4 ? BOLD : "", "%s", labels[k]);
    line(20, table + 82, left + STEPS * width, table + 82, STROKE(GREY, "1"));

    /* Fold, as ra_tile_forward does, and draw each step in its own column. */
    double max = -INFINITY, sum = 0, all = 0;
    struct point path[2 * STEPS];
    for (int step = 0; step < STEPS; step++) {
        double x = left + step * width, middle = x + width / 2, old_max = max, fresh = 0;
        const double *s = scores + step * BLOCK;
        for (int k = 0; k < BLOCK; k++)
            max = fmax(max, s[k]);
        double rescale = exp(old_max - max), kept = sum * rescale;
        for (int k = 0; k < BLOCK; k++) {
            fresh += exp(s[k] - max);
            all += exp(s[k]);
        }
        sum = kept + fresh;

        /* The column: its head, a bar per key, and the largest score as a line. */
        bool grew = max > old_max;
        text(middle, 30, MIDDLE BOLD, "step %d", step + 1);
        text(middle, 48, MIDDLE, "%s", step == 0 ? "first keys" : grew ? "max grows" : "max stays");
        for (int k = 0; k < BLOCK; k++) {
            double bar = middle + (k == 0 ? -44 : 8);
            rect(bar, place(y, s[k]), 36, bottom - place(y, s[k]), FILL(BLUE));
            text(bar + 18, place(y, s[k]) + (s[k] >= 1 ? 18 : -5),
                 s[k] >= 1 ? MIDDLE FILL("#FFFFFF") : MIDDLE, "%g", s[k]);
            text(bar + 18, bottom + 17, MIDDLE, "key %d", step * BLOCK + k);
        }
        path[2 * step] = (struct point){x, place(y, max)};
        path[2 * step + 1] = (struct point){x + width, place(y, max)};

        /* The numbers. A rescaling that makes something smaller is marked. */
        if (grew && step > 0)
            rect(x + 8, table + 11, width - 16, 44, FILL(PALE_ORANGE));
        text(middle, table + 4, MIDDLE, "%g", max);
        text(middle, table + 28, MIDDLE, rescale > 0 ? "%.4f" : "%g (nothing old)", rescale);
        text(middle, table + 52, MIDDLE, "%.4f", kept);
        text(middle, table + 76, MIDDLE, "%.4f", fresh);
        text(middle, table + 100, MIDDLE BOLD, "%.4f", sum);
    }
    polyline(2 * STEPS, path, STROKE(ORANGE, "3"));

    rect(20, table + 118, 14, 14, FILL(PALE_ORANGE));
    text(42, table + 130, "",
         "Only when the maximum grows is the old sum scaled down; o is scaled by the same factor.");
    text(20, table + 164, "", "Folded step by step:");
    text(160, table + 164, "", "max + log(sum) = %g + log(%.4f)", max, sum);
    text(430, table + 164, BOLD, "lse = %.6f", max + log(sum));
    text(20, table + 186, "", "All keys at once:");
    text(160, table + 186, "", "log Σ exp(s) = log(%.4f)", all);
    text(430, table + 186, BOLD, "lse = %.6f", log(all));
    svg_close();
}

/* ---- 02-memory */

enum { NAIVE, FLASH, PROGRAMS, MOST_ROWS = 64 };
static const char *const programs[] = {"01-naive", "02-flash"};

/* What was measured of one program, N growing: bytes at its peak, and multiply-adds. */
struct series {
    int count;
    double N[MOST_ROWS], bytes[MOST_ROWS], work[MOST_ROWS];
};

static _Noreturn void fail(const char *path, int line_number, const char *words)
{
    fprintf(stderr, "figure: %s:%d: %s\n", path, line_number, words);
    exit(1);
}

/* Reads a whole number above 0 and the character behind it; moves *at behind both. */
static bool read_count(char **at, char behind, double *value)
{
    /* strtoll would take blanks and a sign. */
    if (!isdigit((unsigned char)**at))
        return false;
    errno = 0;
    long long count = strtoll(*at, at, 10);
    *value = (double)count;
    return errno == 0 && count > 0 && *(*at)++ == behind;
}

/* Reads N,program,peak_bytes,multiply_adds into one series per program, or ends the program. */
static void read_memory(const char *path, struct series *series)
{
    static const char header[] = "N,program,peak_bytes,multiply_adds";
    FILE *file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "figure: %s: %s\n", path, strerror(errno));
        exit(1);
    }
    char row[256];
    int number = 0;
    while (fgets(row, sizeof row, file)) {
        number++;
        row[strcspn(row, "\n")] = '\0';
        if (number == 1 && strcmp(row, header) != 0)
            fail(path, number, "the first line must be N,program,peak_bytes,multiply_adds");
        if (number == 1)
            continue;

        /* N, the program's name, and what was measured. */
        double N, bytes, work;
        char *at = row;
        if (!read_count(&at, ',', &N))
            fail(path, number, "N must be a whole number above 0, then a comma");
        size_t length = strcspn(at, ",");
        int program = 0;
        while (program < PROGRAMS &&
               (strlen(programs[program]) != length || strncmp(at, programs[program], length) != 0))
            program++;
        if (program == PROGRAMS)
            fail(path, number, "the program must be 01-naive or 02-flash");
        at += length;
        if (*at++ != ',' || !read_count(&at, ',', &bytes) || !read_count(&at, '\0', &work))
            fail(path, number, "after the program come two whole numbers above 0 and nothing else");

        /* A line through points that go back and forth would say nothing. */
        struct series *own = &series[program];
        if (own->count == MOST_ROWS)
            fail(path, number, "a program has at most 64 rows");
        if (own->count > 0 && N <= own->N[own->count - 1])
            fail(path, number, "N must grow from row to row of a program");
        own->N[own->count] = N;
        own->bytes[own->count] = bytes;
        own->work[own->count++] = work;
    }
    if (ferror(file))
        fail(path, number + 1, "cannot be read");
    fclose(file);

    /* The verdict is about the last N of both; one point makes no line. */
    const struct series *a = &series[NAIVE], *b = &series[FLASH];
    if (a->count < 2 || b->count < 2 || a->N[a->count - 1] != b->N[b->count - 1])
        fail(path, number, "each program needs two rows or more, and the same last N");
}

/* 65536 as 64 KiB; power is that of 4. */
static void bytes_label(double x, double y, int power)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    text(x, y, END, "%d %s", 1 << 2 * power % 10, units[2 * power / 10]);
}

/* 1e12 as 10¹²; power is that of 10, below 20. */
static void work_label(double x, double y, int power)
{
    static const char *const digits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
    text(x, y, END, "10%s%s", power >= 10 ? digits[1] : "", digits[power % 10]);
}

/* One panel: bytes (powers of 4 on the left) or work (powers of 10), against N in powers of 2. */
static void memory_panel(double left, const struct series *series, bool bytes)
{
    static const char *const looks[] = {STROKE(ORANGE, "2.5"), STROKE(BLUE, "2.5")};
    static const char *const fills[] = {FILL(ORANGE), FILL(BLUE)};
    struct point paths[PROGRAMS][MOST_ROWS];
    double low = INFINITY, high = 0, first = INFINITY, last = 0;
    for (int p = 0; p < PROGRAMS; p++)
        for (int k = 0; k < series[p].count; k++) {
            double value = bytes ? series[p].bytes[k] : series[p].work[k];
            paths[p][k] =
                (struct point){log2(series[p].N[k]), bytes ? log2(value) / 2 : log10(value)};
            low = fmin(low, floor(paths[p][k].y));
            high = fmax(high, ceil(paths[p][k].y));
            first = fmin(first, paths[p][k].x);
            last = fmax(last, paths[p][k].x);
        }

    /* The grid. Equal values everywhere would leave an axis without length. */
    struct axis x = {first, last, left, left + 204}, y = {low, fmax(high, low + 1), 320, 76};
    for (int k = (int)low; k <= y.high; k++) {
        line(x.start, place(y, (double)k), x.end, place(y, (double)k), STROKE(LIGHT, "1"));
        (bytes ? bytes_label : work_label)(x.start - 8, place(y, (double)k) + 4, k);
    }
    int skip = last - first > 5 ? 2 : 1;
    for (int k = (int)ceil(first); k <= last; k += skip) {
        line(place(x, (double)k), y.start, place(x, (double)k), y.end, STROKE(LIGHT, "1"));
        text(place(x, (double)k), y.start + 18, MIDDLE, "%d", 1 << k);
    }
    text((x.start + x.end) / 2, y.start + 38, MIDDLE, "N = M, queries and keys");

    /* The lines, and at their ends their names, moved apart if the lines end close together. */
    double ends[PROGRAMS];
    for (int p = 0; p < PROGRAMS; p++) {
        for (int k = 0; k < series[p].count; k++)
            paths[p][k] = (struct point){place(x, paths[p][k].x), place(y, paths[p][k].y)};
        polyline(series[p].count, paths[p], looks[p]);
        for (int k = 0; k < series[p].count; k++)
            rect(paths[p][k].x - 3, paths[p][k].y - 3, 6, 6, fills[p]);
        ends[p] = paths[p][series[p].count - 1].y;
    }
    double gap = ends[FLASH] - ends[NAIVE], push = fmax(0, 16 - fabs(gap)) / 2;
    for (int p = 0; p < PROGRAMS; p++) {
        double away = (p == FLASH) == (gap > 0) ? push : -push;
        text(x.end + 8, ends[p] + away + 4, BOLD, "%s", programs[p]);
    }
}

static void draw_memory(const char *path)
{
    struct series series[PROGRAMS] = {0};
    read_memory(path, series);
    int a = series[NAIVE].count - 1, b = series[FLASH].count - 1;
    double memory = series[NAIVE].bytes[a] / series[FLASH].bytes[b];
    double work = series[FLASH].work[b] / series[NAIVE].work[a];
    svg_open(418, "Memory and work of 01-naive and 02-flash",
             "Two panels with logarithmic axes against N: peak bytes, and multiply-adds.");

    text(20, 30, BOLD " font-size=\"14\"", "Peak memory");
    text(20, 48, "", "naive grows with N × M, flash with N + M");
    memory_panel(76, series, true);
    text(20, 384, "", "At N = %g, 01-naive holds", series[NAIVE].N[a]);
    text(20, 402, BOLD, "%.*f times the bytes of 02-flash.", memory < 10 ? 2 : 1, memory);

    text(384, 30, BOLD " font-size=\"14\"", "Multiply-adds, forward and backward");
    text(384, 48, "", "both grow with N × M");
    memory_panel(428, series, false);
    text(384, 384, "", "At N = %g, 02-flash does", series[FLASH].N[b]);
    text(384, 402, BOLD, "%.*f times the multiply-adds of 01-naive.", work < 10 ? 2 : 1, work);
    svg_close();
}

/* ---- The program. */

static const struct figure {
    const char *name;
    void (*draw)(void);                      /* needs no data, or */
    void (*draw_data)(const char *csv_path); /* shows a CSV file */
} figures[] = {
    {"01-visible", draw_visible, NULL},
    {"02-tiles", draw_tiles, NULL},
    {"02-carry", draw_carry, NULL},
    {"02-memory", NULL, draw_memory},
};

static void usage(FILE *file)
{
    fputs("usage: figure NAME [DATA.csv]\n\nWrites a figure of the book to stdout, as SVG.\n\n",
          file);
    for (size_t k = 0; k < sizeof figures / sizeof *figures; k++)
        fprintf(file, "  %s%s\n", figures[k].name, figures[k].draw_data ? " DATA.csv" : "");
    fputs("\nDATA.csv starts with the line N,program,peak_bytes,multiply_adds.\n"
          "Exit status: 0 all is well, 1 bad data or no room, 2 misuse.\n",
          file);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        usage(stdout);
        return 0;
    }
    const struct figure *figure = NULL;
    for (size_t k = 0; k < sizeof figures / sizeof *figures; k++)
        if (argc > 1 && strcmp(argv[1], figures[k].name) == 0)
            figure = &figures[k];
    if (!figure || argc != (figure->draw_data ? 3 : 2)) {
        usage(stderr);
        return 2;
    }
    if (figure->draw_data)
        figure->draw_data(argv[2]);
    else
        figure->draw();

    /* A full disk shows up only here. */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fputs("figure: cannot write the output\n", stderr);
        return 1;
    }
    return 0;
}
