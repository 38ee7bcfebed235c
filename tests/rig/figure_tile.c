/* figure: the pictures of chapters 01, 02 and 09: what a tile takes, and what each trick is worth
 * on vectors.
 */
#include "figure.h"
#include <math.h>
#include <string.h>

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
            fail("%s:%d: want N and peak_bytes above 0, score_bytes <= peak_bytes", source,
                 line_of_row(k));
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
                 line_of_row(k), programs[p], p == 0 ? ">" : "=", p == 0 ? before : data->N[at]);
        data->N[at] = N;
        data->value[BYTES][p][at] = numbers[1];
        data->value[WORK][p][at] = numbers[2];
    }
    data->lengths = count / PROGRAMS;
    if (count % PROGRAMS != 0 || data->lengths < 2)
        fail("%s:%d: ends too early: want two lengths N or more, each with both programs", path,
             line_of_row(count));
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
            fail("%s:%d: want GFLOP/s, 0.1 or more", source, line_of_row(k));
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
                fail("%s:%d: want peak, forward or backward", source, line_of_row(k));
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
        text(place(x, rate) + 6, y + 13, " font-size=\"11\"", "%.0f", rate);
        if (compared && !whole)
            text(700, y + 13, END " font-size=\"11\"", "%.0f %%",
                 100 * rate / rows[first].numbers[0]);
        y += 22;
    }
}
