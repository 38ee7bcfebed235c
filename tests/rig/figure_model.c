/* figure: the pictures of chapter 10: how training goes, the memory of a rank, and one new token
 * by the ring and by a tree.
 */
#include "figure.h"
#include <math.h>
#include <string.h>

/* ---- 10-curves */

enum { MOST_LOSSES = 1024 };

void draw_losses(const char *source)
{
    static const char *const looks[] = {STROKE(LIGHT, "9"), STROKE(SKY, "6"), STROKE(ORANGE, "3.5"),
                                        STROKE(INK, "1")};
    static const char *const thin[] = {"", STROKE(SKY, "1.5"), STROKE(ORANGE, "1.5"),
                                       STROKE(INK, "1.5")};
    static struct row rows[MOST_LOSSES];
    static struct point above[MOST_LOSSES], below[MOST_LOSSES];
    int count = read_csv(source, LOSSES_HEADER, "tnd", MOST_LOSSES, rows), runs = 0, each = 0;
    while (each < count && strcmp(rows[each].words[0], rows[0].words[0]) == 0)
        each++;
    if (count % each || count / each > (int)(sizeof looks / sizeof *looks) || each < 2)
        fail("%s: want up to 4 runs of as many steps", source);
    struct axis x = {0, rows[each - 1].numbers[0], 76, 690};
    struct axis y = {1.5, 6, 320, 100}, z = {-6, -2, 508, 384};
    double entry = x.start; /* of the legend */
    svg_open(
        556, "The loss of one rank and of four",
        "Above, the loss against the step for one rank and for four ranks in three layouts: the "
        "curves lie on each other. Below, how far the loss of four ranks is from that of one, on "
        "a logarithmic axis.");
    heading(20, 30, "Loss in training", "every fourth step; the widest line was drawn first");
    for (int k = 2; k <= 6; k++) {
        line(x.start, place(y, k), x.end, place(y, k), STROKE(LIGHT, "1"));
        text(x.start - 10, place(y, k) + 4, END, "%d", k);
    }
    static const char *const powers[] = {"10⁻⁶", "10⁻⁵", "10⁻⁴", "10⁻³", "10⁻²"};
    for (int k = 0; k <= 4; k++) {
        line(x.start, place(z, k - 6), x.end, place(z, k - 6), STROKE(LIGHT, "1"));
        text(x.start - 10, place(z, k - 6) + 4, END, "%s", powers[k]);
    }
    for (int k = 0; k <= 4; k++) {
        double step = k * x.high / 4;
        text(place(x, step), z.start + 20, MIDDLE, "%.0f", step);
    }
    text((x.start + x.end) / 2, z.start + 38, MIDDLE, "step");
    text(20, 364, BOLD, "Difference from one rank");
    for (int first = 0; first < count; first += each, runs++) {
        for (int k = 0; k < each; k++) {
            const struct row *row = &rows[first + k], *one = &rows[k];
            if (row->numbers[0] != one->numbers[0] || row->numbers[1] > y.high)
                fail("%s:%d: want the steps of the first run, and losses up to 6", source,
                     first + line_of_row(k));
            double off = fabs(row->numbers[1] - one->numbers[1]);
            above[k] = (struct point){place(x, row->numbers[0]), place(y, row->numbers[1])};
            below[k] = (struct point){above[k].x, place(z, log10(fmax(off, 1e-6)))};
        }
        polyline(each, above, looks[runs]);
        if (runs > 0)
            polyline(each, below, thin[runs]);
        line(entry, 74, entry + 24, 74, looks[runs]);
        text(entry + 32, 78, "", "%s", rows[first].words[0]);
        entry += 66 + 7 * (double)strlen(rows[first].words[0]);
    }
}

/* ---- 10-memory */

void draw_model_memory(const char *source)
{
    enum { MOST = 8, PITCH = 30 };
    static const char *const titles[] = {"All of the forward is kept",
                                         "With --recompute: of each layer its input alone"};
    struct row rows[MOST];
    int count = read_csv(source, MODEL_MEMORY_HEADER, "wnnn", MOST, rows);
    struct axis x = {0, 0, 110, 600};
    for (int k = 0; k < count; k++)
        x.high = fmax(x.high, rows[k].numbers[1]);
    svg_open(
        110 + PITCH * count + 2 * 34, "Memory of a rank that trains",
        "Bars: bytes of a rank for 1, 2, 4 and 8 ranks, with and without recomputation. A grey "
        "part, weights and what belongs to them, stays; the rest falls with P.");
    heading(20, 30, "Memory of a rank that trains",
            "dim 128, depth 4, 4,096 tokens: weights stay whole, the rest is shared by the ranks");
    double y = 66;
    for (int k = 0; k < count; k++) {
        const struct row *row = &rows[k];
        double bytes = row->numbers[1], fixed = row->numbers[2];
        if (bytes < fixed || fixed <= 0)
            fail("%s:%d: want more bytes than weights have", source, line_of_row(k));
        if (k == 0 || strcmp(row->words[0], row[-1].words[0]) != 0) {
            text(20, y + 12, BOLD, "%s", titles[k > 0]);
            y += 24;
        }
        text(20, y + 16, "", "%.0f rank%s", row->numbers[0], row->numbers[0] > 1 ? "s" : "");
        rect(x.start, y, place(x, fixed) - x.start, 22, FILL(GREY));
        rect(place(x, fixed), y, place(x, bytes) - place(x, fixed), 22, FILL(SKY));
        text(place(x, bytes) + 8, y + 16, "", "%.1f MB", bytes / 1e6);
        y += PITCH;
    }
    legend(20, y + 24, FILL(GREY), "weights, gradients, AdamW's two means");
    legend(300, y + 24, FILL(SKY), "what the forward keeps, and room to work");
}

/* ---- 10-decode */

static void amount(double x, double y, double bytes)
{
    if (bytes >= 1e6)
        text(x, y, "", "%.1f MB", bytes / 1e6);
    else
        text(x, y, "", bytes == 0 ? "%.0f" : "%.1f kB", bytes / 1e3);
}

void draw_decode(const char *source)
{
    enum { MOST = 16 };
    struct row rows[MOST];
    int count = read_csv(source, DECODE_HEADER, "wnnn", MOST, rows);
    double most[2] = {1, 1};
    for (int k = 0; k < count; k++) {
        if (strcmp(rows[k].words[0], k % 2 == 0 ? "ring" : "tree") != 0 ||
            (k % 2 == 1 && rows[k].numbers[0] != rows[k - 1].numbers[0]) || count % 2 == 1)
            fail("%s:%d: want lines of ring and tree in turn, for the same P", source,
                 line_of_row(k));
        for (int i = 0; i < 2; i++)
            most[i] = rows[k].numbers[1 + i] > most[i] ? rows[k].numbers[1 + i] : most[i];
    }
    double bottom = 82 + 29 * count;
    svg_open((int)bottom + 26, "One new token over a cache of 65,536: bytes and time",
             "For each number of ranks two pairs of bars: bytes that the busiest rank sends, and "
             "milliseconds, of the ring and of the tree.");
    heading(20, 30, "One new token over a cache of 65,536",
            "one layer, H = 8, G = 2, D = 64, float32: a cache of 67.1 MB on P ranks");
    struct axis sent = {0, most[0], 90, 300}, time = {0, most[1], 420, 630};
    text(sent.start, 70, BOLD, "bytes that the busiest rank sends");
    text(time.start, 70, BOLD, "time until all ranks have o");
    for (int k = 0; k < count; k++) {
        bool tree = k % 2 == 1;
        double y = 82 + 29 * k - 8 * tree;
        const char *look = tree ? FILL(ORANGE) : FILL(BLUE);
        if (!tree)
            text(20, y + 24, BOLD, "P = %.0f", rows[k].numbers[0]);
        double end = place(sent, rows[k].numbers[1]);
        rect(sent.start, y, end - sent.start + 1, 19, look);
        amount(end + 8, y + 14, rows[k].numbers[1]);
        end = place(time, rows[k].numbers[2]);
        rect(time.start, y, end - time.start + 1, 19, look);
        text(end + 8, y + 14, "", "%.1f ms", rows[k].numbers[2] / 1e3);
    }
    legend(90, bottom + 10, FILL(BLUE), "ring: keys and values");
    legend(260, bottom + 10, FILL(ORANGE), "tree: carries");
}
