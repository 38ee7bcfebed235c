/* figure: the pictures of chapter 10: how training goes, the memory of a rank, and one new token
 * by the ring and by a tree; and of chapter 14, what two GPUs did in a step.
 */
#include "figure.h"
#include <math.h>
#include <stdio.h>
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

/* ---- 14a-step */

enum { MOST_PARTS = 1024, GPU_ROW = 78 };

/* How a row is drawn, and how far below the top of its GPU. */
struct band {
    const char *look, *ink;
    double y, height;
};

static struct band band_of(const struct row *row)
{
    const char *lane = row->words[0], *name = row->words[1];
    const char *white = MIDDLE FILL("#FFFFFF"), *small = MIDDLE FILL("#FFFFFF") " font-size=\"9\"";
    bool forward = strcmp(name, "forward") == 0;
    if (strcmp(lane, "sums") == 0)
        return (struct band){FILL(PURPLE), small, 56, 10};
    if (strcmp(lane, "keys") == 0)
        return (struct band){FILL(GREEN), small, 41, 10};
    if (strcmp(lane, "gradients") == 0)
        return (struct band){FILL(PURPLE), small, 41, 10};
    if (strcmp(lane, "work") == 0)
        return (struct band){forward ? FILL(SKY) : FILL(BLUE),
                             forward ? MIDDLE " font-size=\"9\"" : small, 26, 10};
    if (strcmp(name, "wait") == 0)
        return (struct band){FILL(PALE_ORANGE) " stroke=\"" ORANGE "\"", MIDDLE, 0, 22};
    if (strcmp(name, "attention") == 0)
        return (struct band){FILL(SKY), MIDDLE, 0, 22};
    if (strcmp(name, "attention backward") == 0)
        return (struct band){FILL(BLUE), white, 0, 22};
    bool alike =
        strcmp(name, "AdamW") == 0 || strcmp(name, "length") == 0 || strcmp(name, "clear") == 0;
    return (struct band){alike ? FILL(GREY) : FILL(LIGHT), alike ? white : MIDDLE, 0, 22};
}

/* A part, a launch or a message, with a word if there is room: what it is without "backward", or
 * the number of the hop, or the layer of sums. */
static void draw_band(double y, const struct row *row, struct axis x)
{
    struct band band = band_of(row);
    const char *lane = row->words[0], *name = row->words[1], *number = row->words[2];
    double from = place(x, fmax(row->numbers[1], x.low));
    double width = place(x, fmin(row->numbers[2], x.high)) - from;
    double top = y + 52 + row->numbers[0] * GPU_ROW + band.y;
    char word[48];
    int length = (int)(strstr(name, " backward") ? strstr(name, " backward") - name : 47);
    bool is_sum = strcmp(lane, "sums") == 0;
    if (width <= 0)
        return;
    if (strcmp(lane, "parts") == 0)
        snprintf(word, sizeof word, "%.*s", length, name);
    else if (is_sum)
        snprintf(word, sizeof word, strcmp(number, "-") == 0 ? "tokens" : "layer %.9s", number);
    else
        snprintf(word, sizeof word, "%s", strcmp(lane, "work") == 0 ? number : "");
    rect(from, top, fmax(width - 0.5, 0.5), band.height, band.look);
    if (width > (band.height > 20 ? 8 : 5) * (double)strlen(word) + 4)
        text(from + width / 2, top + (band.height > 20 ? 15 : 8.5), band.ink, "%s", word);
}

/* What both GPUs did from x.low to x.high. */
static void step_panel(double y, const char *title, const char *words, int count,
                       const struct row *rows, struct axis x)
{
    static const char *const names[] = {"step", "launches", "messages", "sums"};
    double step = pow(10, floor(log10(x.high - x.low)));
    if ((x.high - x.low) / step < 5)
        step /= (x.high - x.low) / step < 2 ? 5 : 2;
    heading(20, y, title, words);
    for (double at = ceil(x.low / step) * step; at <= x.high; at += step) {
        line(place(x, at), y + 46, place(x, at), y + 44 + 2 * GPU_ROW, STROKE(LIGHT, "1"));
        text(place(x, at), y + 40, MIDDLE, "%g", round(at / step) * step);
    }
    for (int gpu = 0; gpu < 2; gpu++) {
        double top = y + 52 + gpu * GPU_ROW;
        text(20, top + 15, BOLD, "GPU %d", gpu);
        for (int lane = 0; lane < 4; lane++)
            text(122, top + (lane == 0 ? 15 : 20 + 15 * lane), END " font-size=\"11\"", "%s",
                 names[lane]);
    }
    for (int k = 0; k < count; k++)
        draw_band(y, &rows[k], x);
}

/* Rows of 14a-step, and where the stream of compute has nothing to do. */
static int with_waits(const char *source, struct row *rows)
{
    int count = read_csv(source, STEP_HEADER, "nwtwdd", MOST_PARTS / 2, rows), all = count;
    for (int k = 0; k < count; k++) {
        double gpu = rows[k].numbers[0], from = rows[k].numbers[2], till = INFINITY;
        if (gpu > 1 || from < rows[k].numbers[1])
            fail("%s:%d: want rank 0 or 1, start ms <= end ms", source, line_of_row(k));
        for (int i = 0; i < count && strcmp(rows[k].words[0], "parts") == 0; i++)
            if (rows[i].numbers[0] == gpu && strcmp(rows[i].words[0], "parts") == 0 &&
                rows[i].numbers[1] > rows[k].numbers[1])
                till = fmin(till, rows[i].numbers[1]);
        if (isfinite(till) && till - from > 0.02) {
            rows[all] = (struct row){{"parts", "wait", "-"}, {gpu, from, till}};
            all++;
        }
    }
    return all;
}

/* When this part of a layer begins, or ends, on the GPU that is first, or last. */
static double time_of(const char *source, int count, const struct row *rows, const char *name,
                      const char *layer, bool end)
{
    double time = end ? 0 : INFINITY;
    for (int k = 0; k < count; k++)
        if (strcmp(rows[k].words[1], name) == 0 && strcmp(rows[k].words[2], layer) == 0)
            time = end ? fmax(time, rows[k].numbers[2]) : fmin(time, rows[k].numbers[1]);
    if (!isfinite(time) || time == 0)
        fail("%s: has no %s of layer %s", source, name, layer);
    return time;
}

void draw_step(const char *source)
{
    static struct row rows[MOST_PARTS];
    enum { PANEL = 236 };
    int count = with_waits(source, rows);
    double last = time_of(source, count, rows, "AdamW", "-", true);
    struct axis all = {0, last, 128, 700}, one = all, end = all;
    one.low = time_of(source, count, rows, "norm", "7", false);
    one.high = time_of(source, count, rows, "feed", "7", true);
    end.low = time_of(source, count, rows, "feed backward", "0", false);
    svg_open(30 + 3 * PANEL + 12, "What two GPUs did in a step",
             "Three panels of two GPUs against time, in milliseconds: a whole step, the forward of "
             "its last layer, and its end. For each GPU the parts of the step, the launches of "
             "attention, the messages of the ring, and the sums of gradients.");
    step_panel(30, "A step of 8,192 tokens on two GPUs",
               "dim 1,024, eight layers; launches and messages of two calls alone; milliseconds",
               count, rows, all);
    step_panel(30 + PANEL, "The forward of the last layer", "keys leave beside the launch of hop 0",
               count, rows, one);
    step_panel(30 + 2 * PANEL, "The end of the step",
               "the backward of the first layer, then what is left", count, rows, end);
    double y = 30 + 3 * PANEL - 4;
    legend(20, y, FILL(SKY), "attention");
    legend(112, y, FILL(BLUE), "its backward");
    legend(222, y, FILL(GREY), "the same work on each");
    legend(390, y, FILL(PALE_ORANGE) " stroke=\"" ORANGE "\"", "waits for sums");
    legend(510, y, FILL(GREEN), "keys");
    legend(570, y, FILL(PURPLE), "gradients");
}
