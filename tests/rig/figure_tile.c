/* figure: the pictures of chapters 01 and 02. */
#include "figure.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

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
    heading(x, y, rule->name, rule->words);

    /* The numbers of the keys and of the queries. */
    for (int j = 0; j < rule->M; j++)
        text(left + (j + 0.5) * size, top - 5, MIDDLE, "%d", j);
    text(left + rule->M * size + 6, top - 5, "", "key j");
    for (int i = 0; i < rule->N; i++)
        text(left - 7, top + (absent + i + 0.75) * size, END, "%d", i);
    text(left - 19, top + rule->M * size + 15, "", "query i");

    /* The cells. */
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
        text(left + rule->M * size / 2, top + absent * size / 2 - 4, MIDDLE, "%d positions",
             absent);
        text(left + rule->M * size / 2, top + absent * size / 2 + 12, MIDDLE, "without a query");
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
             g % 2 ? STROKE(ORANGE, "1.5") : STROKE(GREEN, "1.5"));
        box(head_x, y + 8, size, size, g % 2 ? FILL(ORANGE) : FILL(GREEN), h);
        box(key_x, below, size, size, g % 2 ? FILL(ORANGE) : FILL(GREEN), g);
    }
}

void draw_visible(const char *source)
{
    (void)source; /* nothing is read */
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

    /* The heads, which are no grid. */
    heading(492, 278, "Heads: H = 6, G = 2", "a query head reads one key head");
    head_map(492, 326, 6, 2, false, "grouped: h / (H / G)");
    head_map(492, 420, 6, 2, true, "interleaved: h mod G");

    legend(48, 519, FILL(BLUE), "query i sees key j");
    legend(208, 519, FILL(LIGHT), "it does not: the pair has no weight");
}

/* ---- 02-tiles */

/* A square of count x count cells, each drawn one pixel smaller than it is. */
static void cells(double x, double y, int count, double size, const char *look)
{
    for (int i = 0; i < count; i++)
        for (int j = 0; j < count; j++)
            rect(x + j * size + 0.5, y + i * size + 0.5, size - 1, size - 1, look);
}

/* A block of keys or queries with its number. */
static void block(double x, double y, double width, double height, bool now, int number)
{
    if (now) {
        box(x, y, width, height, FILL(GREEN), number);
        return;
    }
    rect(x, y, width, height, STROKE(GREY, "1"));
    text(x + width / 2, y + height / 2 + 4, MIDDLE, "%d", number);
}

void draw_tiles(const char *source)
{
    (void)source; /* nothing is read */
    const int ROWS = 16, TILE = 4, TILES = ROWS / TILE, NOW_I = 1, NOW_J = 3;
    double size = 12, side = ROWS * size, tile = TILE * size, top = 134;
    svg_open(460, "The whole score matrix, and the same matrix tile by tile",
             "Left: 01-naive holds all scores of 16 queries and 16 keys. Right: 02-flash cuts them "
             "into 4 x 4 tiles and holds one tile; key blocks pass along a row of tiles and are "
             "folded into the carry of the query tile: max, sum and o.");

    /* Left: all cells stand in memory. */
    double left = 56;
    heading(20, 30, "01-naive: all scores of a head", "a row of softmax needs its whole row");
    text(left + side / 2, top - 10, MIDDLE, "M = %d keys", ROWS);
    printf("<g transform=\"translate(%g %g) rotate(-90)\">\n", left - 12, top + side / 2);
    text(0, 0, MIDDLE, "N = %d queries", ROWS);
    puts("</g>");
    cells(left, top, ROWS, size, FILL(ORANGE));
    text(left + side / 2, top + side + 24, MIDDLE BOLD, "%d × %d = %d scores in memory", ROWS, ROWS,
         ROWS * ROWS);

    /* Right: the tiles that were, the one that is, those that will be. */
    left = 372;
    heading(300, 30, "02-flash: one tile at a time",
            "a tile of scores is made, folded into the carry, and overwritten");
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
    text(left + side / 2, top + side + 42, MIDDLE, "(two such tiles in the backward)");

    /* The blocks of keys and queries that meet now are green, the others white. */
    for (int k = 0; k < TILES; k++) {
        double key_x = left + k * tile + 1.5, query_y = top + k * tile + 1.5;
        block(key_x, top - 28, tile - 3, 20, k == NOW_J, k);
        block(left - 28, query_y, 20, tile - 3, k == NOW_I, k);
    }
    text(left + 1.5, top - 50, "", "key blocks (k, v) stream by");
    arrow(left + 1.5, top - 39, left + side - 1.5, top - 39, INK_LINE);
    text(left - 38, top + tile / 2 + 4, END, "query blocks");
    text(left - 38, top + tile / 2 + 20, END, "(q)");

    /* The carry of each tile of queries, a line per query row. */
    double carry = left + side + 40, y = top + NOW_I * tile;
    text(carry, top - 30, BOLD, "carry");
    text(carry + 15, top - 8, MIDDLE, "max");
    text(carry + 47, top - 8, MIDDLE, "sum");
    text(carry + 81, top - 8, MIDDLE, "o");
    for (int k = 0; k < (NOW_I + 1) * TILE; k++)
        for (int part = 0; part < 3; part++)
            rect(carry + 32 * part, top + k * size + 0.5, part == 2 ? 34 : 30, size - 1,
                 k / TILE < NOW_I ? FILL(PALE_BLUE) : FILL(BLUE));
    arrow(left + (NOW_J + 1) * tile + 4, y + tile / 2, carry - 4, y + tile / 2, INK_LINE);
    text(left + side + 6, y + tile / 2 - 7, "", "fold");
    static const char *const parts[] = {"one row per query:", "largest score,", "sum of weights,",
                                        "sum of weight · v"};
    for (int k = 0; k < 4; k++)
        text(carry, y + tile + 20 + 16 * k, "", "%s", parts[k]);

    /* What the looks mean. */
    legend(300, 391, FILL(BLUE), "in memory now");
    legend(300, 415, STROKE(GREY, "1") DASHES, "tile still to come");
    legend(450, 391, FILL(LIGHT), "tile folded; its scores are gone");
    legend(450, 415, FILL(PALE_BLUE), "finished: o / sum, and lse");
    legend(300, 439, FILL(GREEN), "the blocks of queries and keys that meet now");
}

/* ---- 02-carry */

void draw_carry(const char *source)
{
    (void)source;                   /* nothing is read */
    const int STEPS = 4, BLOCK = 2; /* 8 scores */
    static const double scores[] = {1, 3, 2, 5, 4, 5.5, 0, 2};
    static const char *const labels[] = {"max", "rescale: exp(old max − max)", "old sum × rescale",
                                         "+ new weights: Σ exp(s − max)", "= sum"};
    double left = 224, width = 119, bottom = 250, table = bottom + 48;
    struct axis y = {0, 6, bottom, bottom - 168};
    svg_open(510, "Softmax folded two keys at a time",
             "Eight scores in four steps. The running maximum grows in steps 2 and 3, and there "
             "alone the old sum is scaled down. The final max + log(sum) equals the log-sum-exp of "
             "all eight scores at once.");
    heading(20, 30, "One query row", "eight keys, folded two at a time");
    legend(20, 88, FILL(BLUE), "score s of a key");
    line(20, 107, 34, 107, STROKE(ORANGE, "3"));
    text(42, 111, "", "largest score so far");
    for (int s = 0; s <= 6; s += 2) {
        line(left, place(y, s), left + STEPS * width, place(y, s), STROKE(LIGHT, "1"));
        text(left - 8, place(y, s) + 4, END, "%d", s);
    }
    for (int k = 0; k < 5; k++)
        text(20, table + k * 24 + 4, k == 4 ? BOLD : "", "%s", labels[k]);
    line(20, table + 82, left + STEPS * width, table + 82, STROKE(GREY, "1"));

    /* Fold, as ra_tile_forward does, and draw each step in its own column. */
    double max = -INFINITY, sum = 0, all = 0;
    struct point path[8]; /* two for each step */
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
        text(middle, table + 28, MIDDLE, rescale > 0 ? "%.4f" : "%g (nothing yet)", rescale);
        text(middle, table + 52, MIDDLE, "%.4f", kept);
        text(middle, table + 76, MIDDLE, "%.4f", fresh);
        text(middle, table + 100, MIDDLE BOLD, "%.4f", sum);
    }
    polyline(2 * STEPS, path, STROKE(ORANGE, "3"));

    /* What to see, and the proof that nothing was lost. */
    legend(
        20, table + 130, FILL(PALE_ORANGE),
        "Only when the maximum grows is the old sum scaled down; o is scaled by the same factor.");
    text(20, table + 164, "", "Folded step by step:");
    text(160, table + 164, "", "max + log(sum) = %g + log(%.4f)", max, sum);
    text(430, table + 164, BOLD, "lse = %.6f", max + log(sum));
    text(20, table + 186, "", "All keys at once:");
    text(160, table + 186, "", "log Σ exp(s) = log(%.4f)", all);
    text(430, table + 186, BOLD, "lse = %.6f", log(all));
}

/* ---- 01-memory */

/* A bar for every row of the CSV file: the peak, and in it the matrix of scores. */
void draw_share(const char *source)
{
    struct row rows[6];
    int count = read_csv(source, SHARE_HEADER, "nnn", 6, rows);
    double most = 0;
    for (int k = 0; k < count; k++) {
        const double *numbers = rows[k].numbers;
        if (numbers[0] == 0 || numbers[1] == 0 || numbers[2] > numbers[1])
            fail("%s:%d: want N and peak_bytes above 0, score_bytes <= peak_bytes", source, k + 2);
        most = fmax(most, numbers[1]);
    }
    svg_open(336, "Peak memory of 01-naive",
             "For each N a bar, as long as the peak is large; most of the long ones is scores.");
    heading(20, 30, "Peak memory of 01-naive", "one head, D = 64, N queries and N keys");
    text(590, 84, END, "peak");
    text(700, 84, END, "of it scores");

    for (int k = 0; k < count; k++) {
        double N = rows[k].numbers[0], peak = rows[k].numbers[1], scores = rows[k].numbers[2];
        double y = 98 + 32 * k, width = 410 / most;
        text(20, y + 17, "", "N = %.0f", N);
        rect(100, y, width * scores, 24, FILL(ORANGE));
        rect(100 + width * scores, y, width * (peak - scores), 24, FILL(GREY));
        text(590, y + 17, END, "%.1f MB", peak / 1e6);
        text(700, y + 17, END, "%.0f %%", 100 * scores / peak);
    }
    const double *first = rows[0].numbers, *last = rows[count - 1].numbers;
    legend(100, 98 + 32 * count + 14, FILL(ORANGE), "the matrix of scores");
    legend(250, 98 + 32 * count + 14, FILL(GREY), "inputs and results");
    text(700, 98 + 32 * count + 14, END BOLD, "N grows %.0f times, the peak %.0f times",
         last[0] / first[0], last[1] / first[1]);
}

/* ---- 02-memory */

enum { BYTES, WORK, MEASURES, NAIVE = 0, FLASH, PROGRAMS, MOST_LENGTHS = 32 };
static const char *const programs[] = {"01-naive", "02-flash"};

/* What was measured at each N, which grows. */
struct measured {
    int lengths;
    double N[MOST_LENGTHS], value[MEASURES][PROGRAMS][MOST_LENGTHS];
};

/* Reads the CSV file: for every N a row of each program. Ends the program if a row is not as it
 * should be. */
static void read_measured(const char *path, struct measured *data)
{
    struct row rows[PROGRAMS * MOST_LENGTHS];
    int count = read_csv(path, MEMORY_HEADER, "nwnn", PROGRAMS * MOST_LENGTHS, rows);

    /* Row k is of program k % 2; the second of two has the N of the first. */
    for (int k = 0; k < count; k++) {
        int p = k % PROGRAMS, at = k / PROGRAMS;
        const double *numbers = rows[k].numbers;
        double N = numbers[0], before = at > 0 ? data->N[at - 1] : 0;
        if (strcmp(rows[k].words[0], programs[p]) != 0 || numbers[1] < 1 || numbers[2] < 1 ||
            (p == 0 ? N <= before : N != data->N[at]))
            fail("%s:%d: want N,%s,peak_bytes,multiply_adds with N %s %.0f, numbers from 1", path,
                 k + 2, programs[p], p == 0 ? ">" : "=", p == 0 ? before : data->N[at]);
        data->N[at] = N;
        data->value[BYTES][p][at] = numbers[1];
        data->value[WORK][p][at] = numbers[2];
    }
    data->lengths = count / PROGRAMS;
    if (count % PROGRAMS != 0 || data->lengths < 2)
        fail("%s:%d: ends too early: want two lengths N or more, each with both programs", path,
             count + 2);
}

/* The label of a power of 10, of bytes (100 kB) or of multiply-adds (10⁸). */
static void power_label(double x, double y, int measure, int power)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    static const char *const digits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
    if (measure == BYTES)
        text(x, y, END, "%s %s", (const char *[]){"1", "10", "100"}[power % 3], units[power / 3]);
    else
        text(x, y, END, "10%s%s", power >= 10 ? digits[1] : "", digits[power % 10]);
}

/* One panel, both axes logarithmic: bytes or work against N. */
static void panel(double left, const struct measured *data, int measure)
{
    static const char *const looks[] = {STROKE(ORANGE, "2.5"), STROKE(BLUE, "2.5")};
    static const char *const fills[] = {FILL(ORANGE), FILL(BLUE)};
    struct point paths[PROGRAMS][MOST_LENGTHS], *ends[PROGRAMS];
    int last = data->lengths - 1;
    double low = INFINITY, high = 0;
    struct axis x = {log2(data->N[0]), log2(data->N[last]), left, left + 204};
    for (int p = 0; p < PROGRAMS; p++)
        for (int k = 0; k <= last; k++) {
            double value = data->value[measure][p][k];
            paths[p][k].x = place(x, log2(data->N[k]));
            paths[p][k].y = log10(value);
            low = fmin(low, floor(paths[p][k].y));
            high = fmax(high, ceil(paths[p][k].y));
        }

    /* The grid. Equal values everywhere would leave an axis without length. The casts lose nothing:
     * low is a floor. */
    struct axis y = {low, fmax(high, low + 1), 320, 76};
    for (int k = (int)y.low; k <= y.high; k++) {
        line(x.start, place(y, k), x.end, place(y, k), STROKE(LIGHT, "1"));
        power_label(x.start - 8, place(y, k) + 4, measure, k);
    }
    for (int k = (int)ceil(x.low); k <= x.high; k += x.high - x.low > 5 ? 2 : 1) {
        line(place(x, k), y.start, place(x, k), y.end, STROKE(LIGHT, "1"));
        text(place(x, k), y.start + 19, MIDDLE, "%lld", 1LL << k);
    }
    text((x.start + x.end) / 2, y.start + 39, MIDDLE, "N = M, queries and keys");

    /* The lines, and at their ends their names, moved apart if the lines end close together. */
    for (int p = 0; p < PROGRAMS; p++) {
        for (int k = 0; k <= last; k++) {
            paths[p][k].y = place(y, paths[p][k].y);
            rect(paths[p][k].x - 3, paths[p][k].y - 3, 6, 6, fills[p]);
        }
        polyline(data->lengths, paths[p], looks[p]);
        ends[p] = &paths[p][last];
    }
    double gap = ends[FLASH]->y - ends[NAIVE]->y, push = copysign(fmax(0, 8 - fabs(gap) / 2), gap);
    text(x.end + 8, ends[NAIVE]->y + 4 - push, BOLD, "%s", programs[NAIVE]);
    text(x.end + 8, ends[FLASH]->y + 4 + push, BOLD, "%s", programs[FLASH]);
}

void draw_memory(const char *source)
{
    struct measured data;
    read_measured(source, &data);
    int last = data.lengths - 1;
    double memory = data.value[BYTES][NAIVE][last] / data.value[BYTES][FLASH][last];
    double work = data.value[WORK][FLASH][last] / data.value[WORK][NAIVE][last];
    svg_open(418, "Memory and work of 01-naive and 02-flash",
             "Two panels with logarithmic axes against N: peak bytes, and multiply-adds.");

    /* The panels; below each the ratio of the two lines where they end. */
    heading(20, 30, "Peak memory", "naive grows with N × M, flash with N + M");
    panel(76, &data, BYTES);
    text(20, 384, "", "At N = %.0f, 01-naive holds", data.N[last]);
    text(20, 402, BOLD, "%.*f times the bytes of 02-flash.", memory < 10 ? 2 : 1, memory);

    heading(384, 30, "Multiply-adds, forward and backward", "both grow with N × M");
    panel(428, &data, WORK);
    text(384, 384, "", "At N = %.0f, 02-flash does", data.N[last]);
    text(384, 402, BOLD, "%.*f times the multiply-adds of 01-naive.", work < 10 ? 2 : 1, work);
}
