/* figure: the pictures of chapter 10: a layer on two ranks, a product by blocks, how training goes,
 * and the memory of a rank.
 */
#include "figure.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

#define SMALL " font-size=\"11\""
#define OWN FILL(PALE_BLUE)
#define TALKS FILL(PALE_ORANGE)

/* ---- 10-layer */

void draw_layer(const char *source)
{
    (void)source; /* nothing is read */
    static const struct {
        const char *name, *words, *between, *what;
    } rows[] = {
        {"embedding", "rows of a table", NULL, NULL},
        {"RMSNorm, to q, k and v", "rotary: by position", NULL, NULL},
        {"attention", "own queries, all keys", "the ring", "k, v; back: k, v, dk, dv"},
        {"output product, + x", "", NULL, NULL},
        {"RMSNorm, feed-forward, + mid", "", NULL, NULL},
        {"RMSNorm, logits, loss", "by blocks of rows", "all ranks", "a sum and a count"},
        {"gradients of weights", "sums over own rows", "all ranks", "a sum for each weight"},
    };
    enum { COUNT = sizeof rows / sizeof *rows, TOP = 90, PITCH = 54, WIDTH = 216 };
    static const double columns[] = {58, 446};
    svg_open(TOP + COUNT * PITCH + 16, "A model on two ranks",
             "Two columns of the same boxes, one for each rank: embedding, norm and projections, "
             "attention, output product, feed-forward, loss, gradients of weights. Arrows join the "
             "ranks at attention, at the loss and at the gradients of weights only.");
    heading(20, 30, "Where ranks talk", "all else works on the rows that a rank has");
    for (int r = 0; r < 2; r++) {
        text(columns[r] + WIDTH / 2, TOP - 14, BOLD MIDDLE, "rank %d", r);
        for (int k = 0; k < COUNT; k++) {
            double y = TOP + PITCH * k, x = columns[r] + WIDTH / 2;
            bool words = *rows[k].words;
            rect(columns[r], y, WIDTH, 40, rows[k].between ? TALKS : OWN);
            text(x, y + (words ? 17 : 25), BOLD MIDDLE, "%s", rows[k].name);
            text(x, y + 33, MIDDLE SMALL, "%s", rows[k].words);
            if (k + 2 < COUNT)
                arrow(x, y + 41, x, y + PITCH - 2, INK_LINE);
        }
    }
    double left = columns[0] + WIDTH + 8, right = columns[1] - 8;
    for (int k = 0; k < COUNT; k++) {
        double y = TOP + PITCH * k;
        if (!rows[k].between)
            continue;
        arrow(left, y + 20, right, y + 20, STROKE(ORANGE, "2"));
        arrow(right, y + 20, left, y + 20, STROKE(ORANGE, "2"));
        text((left + right) / 2, y + 12, BOLD MIDDLE, "%s", rows[k].between);
        text((left + right) / 2, y + 36, MIDDLE SMALL, "%s", rows[k].what);
    }

    /* The rows of a layer, which are there `depth` times. */
    double from = TOP + PITCH, to = TOP + PITCH * 4 + 40;
    for (int r = 0; r < 2; r++) {
        double x = r ? columns[1] + WIDTH + 10 : columns[0] - 10, in = r ? -6 : 6;
        polyline(4, (struct point[]){{x + in, from}, {x, from}, {x, to}, {x + in, to}}, INK_LINE);
    }
    text(6, (from + to) / 2 - 4, SMALL, "depth");
    text(6, (from + to) / 2 + 10, SMALL, "times");
}

/* ---- 10-matrix */

void draw_matrix(const char *source)
{
    (void)source; /* nothing is read */
    enum { X = 280, Y = 232, INNER = 190, ROWS = 150, STRIP = 28, STRIPS = 8, DEPTH = 108 };
    svg_open(Y + ROWS + 84, "A product of matrices by blocks",
             "The left operand is below on the left, the right one above, the result in the "
             "corner. Eight strips of the right operand, 384 terms deep, are packed; a block of 96 "
             "rows of the left one is multiplied with each of them.");
    heading(20, 30, "A product by blocks", "the numbers are those of AVX-512");
    double top = Y - INNER + 10, wide = STRIPS * STRIP + 150;
    double begin = X - INNER - 10, width = INNER;
    rect(X, top, wide, INNER - 20, STROKE(GREY, "1"));
    rect(begin, Y, width, ROWS, STROKE(GREY, "1"));
    rect(X, Y, wide, ROWS, STROKE(GREY, "1"));
    for (int s = 0; s < STRIPS; s++) {
        rect(X + STRIP * s + 1, top, STRIP - 2, DEPTH, s == 3 ? FILL(BLUE) : OWN);
        rect(X + STRIP * s + 1, Y + 40, STRIP - 2, 44, s == 3 ? FILL(GREY) : FILL(LIGHT));
    }
    rect(begin, Y + 40, DEPTH, 44, FILL(ORANGE));
    rect(X + STRIP * 3 + 1, Y + 54, STRIP - 2, 6, FILL(INK));
    text(X + wide / 2 + 110, top + DEPTH / 2 - 4, MIDDLE SMALL, "eight strips, packed");
    text(X + wide / 2 + 110, top + DEPTH / 2 + 11, MIDDLE SMALL, "of 64 columns");
    text(X - 8, top + DEPTH / 2 + 4, END SMALL, "384 terms");
    text(begin + DEPTH / 2, Y + 32, MIDDLE SMALL, "384 terms");
    text(begin - 8, Y + 66, END SMALL, "96 rows");
    text(X + wide / 2, top - 8, BOLD MIDDLE, "right, inner × width");
    text(begin + width / 2, Y + ROWS + 18, BOLD MIDDLE, "left, rows × inner");
    text(X + wide / 2, Y + ROWS + 18, BOLD MIDDLE, "out, rows × width");
    double y = Y + ROWS + 52;
    legend(20, y, FILL(ORANGE), "a packed block of rows");
    legend(190, y, FILL(BLUE), "the strip that it meets now");
    legend(384, y, FILL(GREY), "is added to these sums,");
    legend(550, y, FILL(INK), "6 × 64 at a time");
}

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
    struct axis x = {0, rows[each - 1].numbers[0], 76, 560};
    struct axis y = {1.5, 6, 292, 72}, z = {-6, -2, 480, 356};
    svg_open(
        528, "The loss of one rank and of four",
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
    text(20, 336, BOLD, "Difference from one rank");
    for (int first = 0; first < count; first += each, runs++) {
        for (int k = 0; k < each; k++) {
            const struct row *row = &rows[first + k], *one = &rows[k];
            if (row->numbers[0] != one->numbers[0] || row->numbers[1] > y.high)
                fail("%s:%d: want the steps of the first run, and losses up to 6", source,
                     first + k + 2);
            double off = fabs(row->numbers[1] - one->numbers[1]);
            above[k] = (struct point){place(x, row->numbers[0]), place(y, row->numbers[1])};
            below[k] = (struct point){above[k].x, place(z, log10(fmax(off, 1e-6)))};
        }
        polyline(each, above, looks[runs]);
        if (runs > 0)
            polyline(each, below, thin[runs]);
        line(x.end + 16, 92 + 22 * runs, x.end + 40, 92 + 22 * runs, looks[runs]);
        text(x.end + 48, 96 + 22 * runs, "", "%s", rows[first].words[0]);
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
            fail("%s:%d: want more bytes than weights have", source, k + 2);
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
