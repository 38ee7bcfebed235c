/* figure: the pictures of chapter 11: how fast kernels are, and when a ring of GPUs does what. */
#include "figure.h"
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- 11-rates */

/* The most that products reach, in TFLOP/s on an H200: float32 by the number of its units,
 * bfloat16 on tensor cores as much as the power limit leaves. */
static const double float32_ceiling = 67, bfloat16_ceiling = 790;

static const struct contender {
    const char *name, *fills[2]; /* full, causal */
    bool float32;
} contenders[] = {
    {"k01", {FILL(BLUE), FILL("#94C3E2")}, true},
    {"k02", {FILL(BLUE), FILL("#94C3E2")}, true},
    {"k03", {FILL(BLUE), FILL("#94C3E2")}, false},
    {"FA-2", {FILL("#707070"), FILL("#C4C4C4")}, false},
    {"cuDNN", {FILL("#707070"), FILL("#C4C4C4")}, false},
};
enum { CONTENDERS = sizeof contenders / sizeof *contenders };

static const char *const passes[] = {"forward", "backward"}, *const dims[] = {"128", "64"},
                         *const masks[] = {"full", "causal"};

/* Which of these words is it? -1: none. */
static int find(const char *word, int count, const char *const *words)
{
    for (int k = 0; k < count; k++)
        if (strcmp(word, words[k]) == 0)
            return k;
    return -1;
}

/* Rates by pass, dim, contender and mask; 0 where there is none. */
struct rates {
    double of[2][2][CONTENDERS][2];
};

static void read_rates(const char *path, struct rates *rates)
{
    enum { MOST = 2 * 2 * CONTENDERS * 2 };
    struct row rows[MOST];
    int count = read_csv(path, RATES_HEADER, "twnwd", MOST, rows);
    *rates = (struct rates){0};
    for (int k = 0; k < count; k++) {
        char number[24];
        snprintf(number, sizeof number, "%.0f", rows[k].numbers[0]);
        int pass = find(rows[k].words[1], 2, passes), dim = find(number, 2, dims), kernel = 0;
        int mask = find(rows[k].words[2], 2, masks);
        double rate = rows[k].numbers[1];
        while (kernel < CONTENDERS && strcmp(rows[k].words[0], contenders[kernel].name) != 0)
            kernel++;
        if (kernel == CONTENDERS || pass < 0 || dim < 0 || mask < 0)
            fail(
                "%s:%d: want k01, k02, k03, FA-2 or cuDNN; forward or backward; 128 or 64; full or "
                "causal",
                path, line_of_row(k));
        double *place_of_it = &rates->of[pass][dim][kernel][mask];
        if (*place_of_it > 0 || rate < 0.001 || rate > 1000)
            fail("%s:%d: want a rate from 0.001 to 1000, once", path, line_of_row(k));
        *place_of_it = rate;
    }
}

/* A rate as three digits. */
static void rate_label(double x, double y, const char *look, double rate)
{
    text(x, y, look, rate < 9.95 ? "%.2f" : rate < 99.5 ? "%.1f" : "%.0f", rate);
}

/* The bars of one contender: full, and below it causal. */
static void rate_bars(double y, const struct contender *who, const double rates[2], struct axis x)
{
    text(x.start - 8, y + 15, END, "%s", who->name);
    for (int mask = 0; mask < 2; mask++) {
        if (rates[mask] == 0)
            continue;
        double end = place(x, rates[mask]), top = y + 11 * mask;
        rect(x.start, top, end - x.start, 10.5, who->fills[mask]);
        if (end - x.start < 36)
            rate_label(end + 1, top + 9, " font-size=\"10\"", rates[mask]);
        else
            rate_label(end - 4, top + 9,
                       mask == 0 ? END FILL("#FFFFFF") " font-size=\"10\""
                                 : END " font-size=\"10\"",
                       rates[mask]);
    }
}

/* How many contenders have a rate? */
static int count_rates(double rates[CONTENDERS][2])
{
    int count = 0;
    for (int k = 0; k < CONTENDERS; k++)
        count += rates[k][0] > 0 || rates[k][1] > 0;
    return count;
}

void draw_rates(const char *source)
{
    struct rates rates;
    read_rates(source, &rates);
    double bottom = 86, y = 86;
    const double pitch = 27, gap = 32;
    for (int g = 0; g < 4; g++) {
        int count = count_rates(rates.of[g / 2][g % 2]);
        bottom += count > 0 ? gap + pitch * count : 0;
    }
    svg_open((int)bottom + 66, "Rates of the kernels on one H200",
             "Bars: TFLOP/s of k01, k02 and k03, of FlashAttention-2 and of cuDNN, forward and "
             "backward, for D = 128 and 64, full and causal, and lines where the arithmetic has "
             "its ceiling.");
    heading(20, 30, "Rates on one H200, TFLOP/s",
            "forward 4 B H n m D operations, backward 2.5 times as many, causal half");

    /* The grid, and the ceiling of all but k01 and k02. */
    struct axis x = {0, 800, 84, 680};
    for (int rate = 0; rate < bfloat16_ceiling - 50; rate += 100) {
        if (rate > 0)
            line(place(x, rate), 80, place(x, rate), bottom, STROKE(LIGHT, "1"));
        text(place(x, rate), 74, MIDDLE, "%d", rate);
    }
    line(place(x, bfloat16_ceiling), 80, place(x, bfloat16_ceiling), bottom, STROKE(ORANGE, "2"));
    text(place(x, bfloat16_ceiling), 74, MIDDLE FILL(ORANGE), "%.0f", bfloat16_ceiling);

    for (int g = 0; g < 4; g++) {
        double(*group)[2] = rates.of[g / 2][g % 2];
        if (count_rates(group) == 0)
            continue;
        text(20, y + 18, BOLD, "%s, D = %s", passes[g / 2], dims[g % 2]);
        y += gap - 6;
        for (int k = 0; k < CONTENDERS; k++) {
            if (group[k][0] == 0 && group[k][1] == 0)
                continue;
            double at = place(x, float32_ceiling);
            rate_bars(y, &contenders[k], group[k], x);
            if (contenders[k].float32) {
                line(at, y - 2, at, y + pitch - 4, STROKE(ORANGE, "2"));
                text(at + 5, y + 15, FILL(ORANGE) " font-size=\"10\"", "%.0f", float32_ceiling);
            }
            y += pitch;
        }
        y += 6;
    }

    legend(20, bottom + 28, FILL(BLUE), "k01 to k03, full");
    legend(150, bottom + 28, FILL("#94C3E2"), "causal");
    legend(270, bottom + 28, FILL("#707070"), "for comparison, full");
    legend(424, bottom + 28, FILL("#C4C4C4"), "causal");
    line(20, bottom + 46, 34, bottom + 46, STROKE(ORANGE, "2"));
    text(42, bottom + 50, "",
         "ceiling: float32 without tensor cores (k01, k02), bfloat16 on them (all "
         "others)");
}

/* ---- 11-roofline and 11c-roofline, from the data of 11-rates */

/* What limits a kernel that does so many operations for each byte: the bytes, a slope, or the
 * operations, a roof. Axes in operations a byte and in TFLOP/s; the slope in TB/s. */
struct roofline {
    const char *title, *words, *below, *notes[2];
    double slope;
    struct axis x, y;
    double steps[2]; /* from one line of the grid to the next */
    struct roof {
        double rate;
        const char *words;
    } roofs[2]; /* the lowest first, which is that of the points; the second may be missing */
    struct point_of {
        int pass, contender; /* which of those above */
        double operations;   /* for each byte */
        struct point words;  /* where they begin, from the point */
    } points[2];
};

static void draw_roof(const struct roofline *plot, const struct roof *roof)
{
    struct point corners[] = {
        {place(plot->x, 0), place(plot->y, 0)},
        {place(plot->x, roof->rate / plot->slope), place(plot->y, roof->rate)},
        {plot->x.end, place(plot->y, roof->rate)}};
    polyline(3, corners, STROKE(ORANGE, "2"));
    text(plot->x.end, corners[2].y - 6, END FILL(ORANGE), "%s", roof->words);
}

/* A kernel: what it reaches, and a dashed line up to what its bytes and operations allow. */
static void draw_point(const struct roofline *plot, const struct point_of *point, double rate)
{
    double most = fmin(point->operations * plot->slope, plot->roofs[0].rate);
    double x = place(plot->x, point->operations), y = place(plot->y, rate);
    line(x, y, x, place(plot->y, most), STROKE(BLUE, "1.5") DASHES);
    rect(x - 4, y - 4, 8, 8, FILL(BLUE));
    text(x + point->words.x, y + point->words.y, BOLD, "%s %s", contenders[point->contender].name,
         passes[point->pass]);
    text(x + point->words.x, y + point->words.y + 15, "", "%.3g of %.3g", rate, most);
}

static void draw_roofline(const char *source, const struct roofline *plot)
{
    struct rates rates;
    read_rates(source, &rates);
    svg_open(440, plot->title, plot->words);
    heading(20, 30, plot->title, plot->words);
    text(20, plot->y.end - 14, "", "10¹² operations a second");
    for (double at = 0; at <= plot->x.high; at += plot->steps[0]) {
        line(place(plot->x, at), plot->y.start, place(plot->x, at), plot->y.end,
             STROKE(LIGHT, "1"));
        text(place(plot->x, at), plot->y.start + 18, MIDDLE, "%.0f", at);
    }
    for (double at = 0; at <= plot->y.high; at += plot->steps[1]) {
        line(plot->x.start, place(plot->y, at), plot->x.end, place(plot->y, at),
             STROKE(LIGHT, "1"));
        text(plot->x.start - 8, place(plot->y, at) + 4, END, "%.0f", at);
    }
    text((plot->x.start + plot->x.end) / 2, plot->y.start + 38, MIDDLE, "%s", plot->below);
    for (int k = 0; k < 2 && plot->roofs[k].rate > 0; k++)
        draw_roof(plot, &plot->roofs[k]);
    for (int k = 0; k < 2; k++) {
        const struct point_of *point = &plot->points[k];
        draw_point(plot, point, rates.of[point->pass][0][point->contender][0]);
        text(20, plot->y.start + 64 + 16 * k, "", "%s", plot->notes[k]);
    }
}

/* Of k01 a warp does 128 operations with 648 bytes, of k02 a block 32,768 with 1,024. */
void draw_float32_roofline(const char *source)
{
    static const struct roofline roofline = {
        .title = "What bytes allow, and what operations allow",
        .words = "float32 on one H200, forward, D = 128, if every byte came from device memory",
        .below = "operations for each byte",
        .notes = {"The slope is 4.2 TB a second. It meets the roof at 16 operations for each byte.",
                  "With each number read once it would be 4,088, far to the right."},
        .slope = 4.2,
        .x = {0, 40, 70, 690},
        .y = {0, 80, 340, 84},
        .steps = {8, 20},
        .roofs = {{67, "67: the float32 units"}},
        .points = {{0, 0, 128 / 648.0, {46, -24}}, {0, 1, 32, {10, 4}}}};
    draw_roofline(source, &roofline);
}

/* Of k03: a block's 4.2 million operations for 192 KiB in the forward, in the backward 10.5 million
 * for 640 KiB. */
void draw_tensor_roofline(const char *source)
{
    static const struct roofline roofline = {
        .title = "A roofline of k03, for shared memory",
        .words = "bfloat16 on one H200, 16 heads of 16,384 tokens, D = 128, no mask",
        .below = "operations for each byte of shared memory, read or written",
        .notes = {"The slope is 132 SMs · 128 bytes · 1.83 GHz = 30.9 TB a second.",
                  "Under it the backward's bytes allow 495, however well everything overlaps."},
        .slope = 132 * 128 * 1.83e-3,
        .x = {0, 32, 70, 690},
        .y = {0, 900, 340, 84},
        .steps = {4, 200},
        .roofs = {{645, "645: mma.sync alone"}, {790, "790: a product of large matrices"}},
        .points = {{1, 2, 16, {10, 4}}, {0, 2, 64 / 3.0, {10, 4}}}};
    draw_roofline(source, &roofline);
}

/* ---- 11-tricks */

enum { MOST_TRICKS = 64 };

/* One pass: a pair of bars for each trick that was undone. Returns how many rows that were. */
static int trick_panel(double y, const char *path, const struct row *rows, int count, struct axis x)
{
    static const char *const fills[] = {FILL(BLUE), FILL("#94C3E2")};
    const double *all = rows[0].numbers;
    if (find(rows[0].words[1], 2, passes) < 0 || strcmp(rows[0].words[0], "none") != 0)
        fail("%s: want for each pass, forward or backward, the trick none first", path);
    text(20, y, BOLD " font-size=\"14\"", "k03 %s, with one trick undone", rows[0].words[1]);
    text(20, y + 18, "", "TFLOP/s, and how far that is from k03 as it is");

    int tricks = 1;
    while (tricks < count && strcmp(rows[tricks].words[1], rows[0].words[1]) == 0)
        tricks++;
    for (int mask = 0; mask < 2; mask++)
        line(place(x, all[mask]), y + 30, place(x, all[mask]), y + 30 + 36 * tricks,
             mask == 0 ? STROKE(BLUE, "1") DASHES : STROKE("#5BA3D0", "1") DASHES);
    for (int k = 0; k < tricks; k++) {
        double top = y + 34 + 36 * k;
        text(20, top + 19, k == 0 ? BOLD : "", "%s", k == 0 ? "k03 as it is" : rows[k].words[0]);
        for (int mask = 0; mask < 2; mask++) {
            double rate = rows[k].numbers[mask], end = place(x, rate), down = top + 14 * mask;
            rect(x.start, down, end - x.start, 13, fills[mask]);
            rate_label(end - 5, down + 10.5,
                       mask == 0 ? END FILL("#FFFFFF") " font-size=\"11\""
                                 : END " font-size=\"11\"",
                       rate);
            double percent = 100 * rate / all[mask] - 100;
            if (k > 0)
                text(x.end + 14, down + 10.5, " font-size=\"11\"", "%s%.0f %%",
                     percent < -0.5  ? "−"
                     : percent > 0.5 ? "+"
                                     : "",
                     fabs(percent));
        }
    }
    return tricks;
}

void draw_tricks(const char *source)
{
    struct row rows[MOST_TRICKS];
    int count = read_csv(source, TRICKS_HEADER, "twdd", MOST_TRICKS, rows), panels = 0;
    double most = 0;
    for (int k = 0; k < count; k++) {
        const double *numbers = rows[k].numbers;
        if (numbers[0] < 0.001 || numbers[1] < 0.001 || numbers[0] > 1000 || numbers[1] > 1000)
            fail("%s:%d: want rates from 0.001 to 1000", source, line_of_row(k));
        most = fmax(most, fmax(numbers[0], numbers[1]));
        panels += k == 0 || strcmp(rows[k].words[1], rows[k - 1].words[1]) != 0;
    }
    struct axis x = {0, most, 270, 640};
    svg_open(
        50 + 64 * panels + 36 * count, "What each trick of k03 is worth",
        "For each pass two bars of k03 as it is, and two for each trick that is undone while all "
        "others are in: TFLOP/s, full and causal. Dashed lines mark k03 as it is.");
    double y = 30;
    for (int k = 0; k < count;) {
        int drawn = trick_panel(y, source, rows + k, count - k, x);
        y += 64 + 36 * drawn;
        k += drawn;
    }
    legend(270, y, FILL(BLUE), "full");
    legend(350, y, FILL("#94C3E2"), "causal");
}

/* ---- 11-ring */

enum { MOST_INTERVALS = 4096, MOST_GPUS = 16 };

/* The rows of one ring, and what they have in all, in milliseconds. */
struct ring {
    const struct row *rows;
    int count, gpus;
    double last;
    struct {
        double first, last, work;
    } of[MOST_GPUS];
};

/* The ring that begins at rows[0], of `count` rows at most. */
static struct ring ring_of(const char *path, const struct row *rows, int count)
{
    struct ring ring = {.rows = rows};
    for (const struct row *row = rows;
         ring.count < count && strcmp(row->words[0], rows->words[0]) == 0; row++, ring.count++) {
        double gpu = row->numbers[0], start = row->numbers[2], end = row->numbers[3];
        if (find(row->words[1], 3, lanes) < 0 || gpu >= MOST_GPUS || end < start)
            fail("%s: %s: want work, keys or gradients, rank below %d, start ms <= end ms", path,
                 rows->words[0], MOST_GPUS);
        for (; ring.gpus <= gpu; ring.gpus++)
            ring.of[ring.gpus].first = INFINITY;
        int g = (int)gpu; /* below MOST_GPUS */
        ring.of[g].first = fmin(ring.of[g].first, start);
        ring.of[g].last = fmax(ring.of[g].last, end);
        ring.of[g].work += strcmp(row->words[1], lanes[0]) == 0 ? end - start : 0;
        ring.last = fmax(ring.last, end);
    }
    for (int g = 0; g < ring.gpus; g++)
        if (!(ring.of[g].last > ring.of[g].first))
            fail("%s: %s: want a time above 0 of rank %d", path, rows->words[0], g);
    return ring;
}

/* The heading, the lines of time and the names of the lanes. Returns: is it a backward? */
static bool ring_frame(double y, const char *path, const struct ring *ring, struct axis x)
{
    /* bench-cuda names a ring by its pass and by batches x heads x tokens per GPU, D and layout. */
    char pass[16], heads[16], tokens[16], layout[16];
    int dim, read = 0;
    if (sscanf(ring->rows->words[0], "ring %15s 1x%15[0-9/]x%15s d%d %15s%n", pass, heads, tokens,
               &dim, layout, &read) != 5 ||
        ring->rows->words[0][read] != '\0' || find(pass, 2, passes) < 0)
        fail("%s: want rings like: ring forward 1x16x32k d128 striped", path);
    pass[0] = (char)toupper((unsigned char)pass[0]); /* toupper takes no negative char */
    text(20, y, BOLD " font-size=\"14\"", "%s, %s", pass, layout);
    text(20, y + 18, "", "%d GPUs, %s tokens each, %s heads, D = %d, causal; milliseconds",
         ring->gpus, tokens, heads, dim);

    /* The time of a GPU is from its first event to its last. */
    double share = 0;
    for (int gpu = 0; gpu < ring->gpus; gpu++)
        share += ring->of[gpu].work / (ring->of[gpu].last - ring->of[gpu].first) / ring->gpus;
    text(700, y + 18, END, "launches: %.1f %% of the time", 100 * share);

    bool is_backward = pass[0] == 'B';
    lane_frame(y, "GPU", ring->gpus, is_backward ? 3 : 2, x);
    return is_backward;
}

/* The next message in the lane of this one (step 1), or the one before (step -1), if it is so close
 * that there is no room for a number between them; otherwise NULL. */
static const struct row *close_by(const struct ring *ring, const struct row *row, int step,
                                  struct axis x)
{
    for (int i = (int)(row - ring->rows) + step; i >= 0 && i < ring->count; i += step) {
        const struct row *other = &ring->rows[i];
        if (other->numbers[0] != row->numbers[0] || strcmp(other->words[1], row->words[1]) != 0)
            continue;
        double start = (step > 0 ? other : row)->numbers[2];
        double end = (step > 0 ? row : other)->numbers[3];
        return place(x, start) - place(x, end) < 10 ? other : NULL;
    }
    return NULL;
}

/* A launch or a message, with its number in it; behind it where a message has no room, and numbers
 * of messages that are close together behind the last of them. */
static void draw_interval(double y, const struct ring *ring, const struct row *row,
                          bool is_backward, struct axis x)
{
    static const char *const fills[] = {FILL(SKY), FILL(GREEN), FILL(PURPLE)};
    int lane = find(row->words[1], 3, lanes);
    double from = place(x, row->numbers[2]), width = place(x, row->numbers[3]) - from;
    double top = y + 54 + row->numbers[0] * LANE_ROW;
    if (lane == 0) {
        rect(from, top, fmax(width - 0.5, 0.5), 22, is_backward ? FILL(BLUE) : fills[0]);
        if (width > 14)
            text(from + width / 2, top + 15, is_backward ? MIDDLE FILL("#FFFFFF") : MIDDLE, "%.0f",
                 row->numbers[1]);
        return;
    }
    top += 12 + 13 * lane;
    rect(from, top, fmax(width - 0.5, 0.5), 8, fills[lane]);
    const struct row *first = row;
    for (const struct row *r = row; r; r = close_by(ring, r, -1, x))
        first = r;
    if (width > 14)
        text(from + width / 2, top + 7.5, MIDDLE FILL("#FFFFFF") " font-size=\"10\"", "%.0f",
             row->numbers[1]);
    else if (close_by(ring, row, 1, x))
        return;
    else if (first == row)
        text(from + width + 2, top + 7.5, " font-size=\"10\"", "%.0f", row->numbers[1]);
    else
        text(from + width + 2, top + 7.5, " font-size=\"10\"", "%.0f–%.0f", first->numbers[1],
             row->numbers[1]);
}

/* From a message to the launch of the right neighbour that wants it: keys when it begins, gradients
 * when it ends. What the last GPU sends to GPU 0 is a piece of an arrow at either end. */
static void draw_way(double y, const struct ring *ring, const struct row *row, struct axis x)
{
    int lane = find(row->words[1], 3, lanes), from = (int)row->numbers[0]; /* below MOST_GPUS */
    const char *stroke = lane == 1 ? STROKE(GREEN, "1") : STROKE(PURPLE, "1");
    for (int i = 0; lane > 0 && i < ring->count; i++) {
        const struct row *launch = &ring->rows[i];
        int to = (int)launch->numbers[0];
        if (find(launch->words[1], 3, lanes) != 0 || launch->numbers[1] != row->numbers[1] + 1 ||
            to != (from + 1) % ring->gpus)
            continue;
        double x1 = place(x, row->numbers[3]) + 1, y1 = y + 74 + 13 * lane + from * LANE_ROW;
        double x2 = place(x, launch->numbers[lane == 1 ? 2 : 3]) - 1;
        double y2 = y + 53 + to * LANE_ROW, down = LANE_ROW - 21 - 13 * lane;
        if (to == from + 1) {
            arrow(x1, y1, x2, y2, stroke);
        } else {
            line(x1, y1, x1 + (x2 - x1) / 4, y1 + down / 4, stroke);
            arrow(x2 - (x2 - x1) / 4, y2 - down / 4, x2, y2, stroke);
        }
    }
}

void draw_gpus(const char *source)
{
    static struct row rows[MOST_INTERVALS]; /* too many for some stacks */
    int count = read_csv(source, GPUS_HEADER, "tnwndd", MOST_INTERVALS, rows), height = 90;
    for (int k = 0; k < count;) {
        struct ring ring = ring_of(source, rows + k, count - k);
        height += 70 + ring.gpus * LANE_ROW;
        k += ring.count;
    }
    svg_open(height, "What every GPU of a ring did when",
             "For each GPU three lanes against time: launches of the kernel, keys and gradients on "
             "their way to the right neighbour by copy engine; each with its number; and arrows to "
             "the launches that want them.");

    /* A scale of its own for each ring, up to its last event. */
    double y = 30;
    for (int k = 0; k < count;) {
        struct ring ring = ring_of(source, rows + k, count - k);
        struct axis x = {0, ring.last, 128, 690};
        bool is_backward = ring_frame(y, source, &ring, x);
        for (int i = 0; i < ring.count; i++)
            draw_way(y, &ring, &ring.rows[i], x);
        for (int i = 0; i < ring.count; i++)
            draw_interval(y, &ring, &ring.rows[i], is_backward, x);
        y += 70 + ring.gpus * LANE_ROW;
        k += ring.count;
    }

    legend(20, y, FILL(SKY), "launch, forward");
    legend(150, y, FILL(BLUE), "launch, backward");
    legend(290, y, FILL(GREEN), "keys");
    legend(370, y, FILL(PURPLE), "gradients");
    text(20, y + 20, "",
         "Each with its number. An arrow leads from a message to the launch of the next GPU that "
         "wants it: keys when");
    text(20, y + 36, "",
         "it begins, gradients when it ends. The last GPU sends to GPU 0, the last gradients go "
         "home.");
}
