/* figure: the pictures of the chapters of the ring that show what was measured. */
#include "figure.h"
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "ring_attention.h"

/* ---- 03-memory */

/* Both axes logarithmic: megabytes against ranks, and beside them what exactly 1/P would be. */
void draw_ranks(const char *source)
{
    enum { MOST = 10 };
    struct row rows[MOST];
    int count = read_csv(source, RANKS_HEADER, "nn", MOST, rows), last = count - 1;
    double P[MOST], bytes[MOST], high = 0;
    for (int k = 0; k < count; k++) {
        P[k] = rows[k].numbers[0];
        bytes[k] = rows[k].numbers[1] / 1e6;
        high = fmax(high, bytes[k]);
        if (bytes[k] == 0 || (k == 0 ? P[k] != 1 : P[k] <= P[k - 1]) || P[k] > 1 << MOST)
            fail("%s:%d: want P from 1 upwards and bytes above 0", source, line_of_row(k));
    }
    if (last < 1)
        fail("%s: want two rows or more", source);
    svg_open(372, "Peak memory of a rank of 03-ring",
             "Bytes against the number of ranks, both axes logarithmic: measured, and 1/P of what "
             "one rank alone needs.");
    heading(20, 30, "Peak memory of a rank of 03-ring",
            "one head, D = 64, N = M = 4096, cut into P shards");

    /* The grid. The casts lose nothing: these are floors and ceilings, below 2^60. */
    struct axis x = {0, log2(P[last]), 92, 480};
    struct axis y = {floor(log2(bytes[0] / P[last])), ceil(log2(high)), 310, 82};
    for (int k = (int)y.low; k <= (int)y.high; k++) {
        line(x.start, place(y, k), x.end, place(y, k), STROKE(LIGHT, "1"));
        text(x.start - 10, place(y, k) + 4, END, "%g MB", exp2(k));
    }
    for (int k = 0; k < count; k++) {
        double at = place(x, log2(P[k]));
        line(at, y.start, at, y.end, STROKE(LIGHT, "1"));
        text(at, y.start + 19, MIDDLE, "%.0f", P[k]);
    }
    text((x.start + x.end) / 2, y.start + 40, MIDDLE, "P, ranks");

    /* The line of 1/P, and the measured one above it. */
    struct point path[MOST];
    double share = bytes[last] / bytes[0];
    line(x.start, place(y, log2(bytes[0])), x.end, place(y, log2(bytes[0] / P[last])),
         STROKE(GREY, "1.5") DASHES);
    for (int k = 0; k < count; k++) {
        path[k] = (struct point){place(x, log2(P[k])), place(y, log2(bytes[k]))};
        rect(path[k].x - 3, path[k].y - 3, 6, 6, FILL(BLUE));
        text(path[k].x + 9, path[k].y - 8, "", "%.1f MB", bytes[k]);
    }
    polyline(count, path, STROKE(BLUE, "2.5"));
    text(x.end + 64, path[last].y - 8, BOLD, "measured");
    text(x.end + 64, path[last].y + 9, "", "%.0f %% of one rank's", 100 * share);
    text(x.end + 64, place(y, log2(bytes[0] / P[last])) + 4, BOLD, "1/P");
    text(x.end + 92, place(y, log2(bytes[0] / P[last])) + 4, "", "would be %.3g %%", 100 / P[last]);
}

/* ---- 04-work, 05-work */

enum { MOST_WORK = 512, SHADES = 4 };
static const char *const shades[SHADES] = {FILL(BLUE), FILL("#5BA3D0"), FILL("#94C3E2"),
                                           FILL("#C6DFF0")};

/* Do two rows tell of the same layout? */
static bool same_layout(const struct row *a, const struct row *b)
{
    return strcmp(a->words[0], b->words[0]) == 0;
}

/* The heading of a layout: its name with a capital, and what is to be seen. */
static void layout_heading(double y, const struct row *row, const char *words)
{
    char name[sizeof row->words[0]];
    memcpy(name, row->words[0], sizeof name);
    name[0] = (char)toupper((unsigned char)name[0]); /* toupper takes no negative char */
    heading(20, y, name, words);
}

/* Adds up the rows of each rank of the layout that begins at rows[0], into totals (MOST_WORK). Rows
 * stand rank by rank, and of each rank hop by hop. Returns how many ranks there are. */
static int add_up(const char *path, const struct row *rows, const struct row *end, double *totals)
{
    int ranks = 0;
    for (const struct row *row = rows; row < end && same_layout(row, rows); row++) {
        bool first = row->numbers[1] == 0;
        ranks += first;
        if (ranks == 0 || row->numbers[0] != ranks - 1 ||
            (!first && row->numbers[1] != row[-1].numbers[1] + 1))
            fail("%s: %s: want ranks 0, 1, ... and of each the hops 0, 1, ...", path,
                 rows->words[0]);
        totals[ranks - 1] = (first ? 0 : totals[ranks - 1]) + row->numbers[2];
    }
    return ranks;
}

/* One layout: a bar for each rank, a segment for each hop. Returns the row after its last. */
static const struct row *work_panel(double y, const char *path, const struct row *row,
                                    const struct row *end, struct axis x)
{
    double totals[MOST_WORK], busiest = 0, sum = 0, pitch = 34, height = 24;
    int ranks = add_up(path, row, end, totals);
    for (int r = 0; r < ranks; r++) {
        busiest = fmax(busiest, totals[r]);
        sum += totals[r];
    }
    if (busiest == 0)
        fail("%s: %s: want multiply-adds above 0", path, row->words[0]);
    char words[96];
    snprintf(words, sizeof words, "the busiest rank does %.3f times the mean of %.1f million",
             busiest * ranks / sum, sum / ranks / 1e6);
    layout_heading(y, row, words);

    /* The bars. From its end on, a rank has nothing to do until the busiest is done. */
    for (int r = 0; r < ranks; r++) {
        double bar_y = y + 38 + r * pitch, done = 0, till = place(x, totals[r]);
        text(20, bar_y + 17, BOLD, "rank %d", r);
        for (int hop = 0; row < end && row->numbers[0] == r && row->numbers[1] == hop;
             hop++, row++) {
            double from = place(x, done), width = place(x, done + row->numbers[2]) - from;
            done += row->numbers[2];
            if (width < 1)
                continue; /* nothing to see */
            rect(from, bar_y, width - 1, height, shades[hop % SHADES]);
            if (width > 44)
                text(from + width / 2, bar_y + 16, hop == 0 ? MIDDLE FILL("#FFFFFF") : MIDDLE,
                     "hop %d", hop);
        }
        double idle = place(x, busiest) - till;
        if (idle > 6)
            rect(till + 2, bar_y + 0.5, idle - 4, height - 1, STROKE(GREY, "1") DASHES);
        if (idle > 60)
            text(till + idle / 2, bar_y + 16, MIDDLE, "idle");
        text(700, bar_y + 17, totals[r] == busiest ? END BOLD : END, "%.1f million",
             totals[r] / 1e6);
    }
    line(place(x, busiest), y + 32, place(x, busiest), y + 38 + ranks * pitch - 4,
         STROKE(ORANGE, "2.5"));
    return row;
}

void draw_work(const char *source)
{
    struct row rows[MOST_WORK];
    int count = read_csv(source, WORK_HEADER, "wnnn", MOST_WORK, rows), panels = 0, bars = 0;
    const struct row *end = rows + count;
    double most = 0, totals[MOST_WORK];
    for (int k = 0; k < count; k++)
        if (k == 0 || !same_layout(&rows[k], &rows[k - 1])) {
            int ranks = add_up(source, rows + k, end, totals);
            for (int r = 0; r < ranks; r++)
                most = fmax(most, totals[r]);
            panels++;
            bars += ranks;
        }

    /* One scale for all layouts. */
    struct axis x = {0, most, 84, 590};
    svg_open(64 + 70 * panels + 34 * bars, "Multiply-adds of each rank",
             "For each layout a bar for every rank, with a segment for every hop; a line marks the "
             "busiest rank, for which all others wait.");
    text(700, 30, END, "multiply-adds, forward");
    double y = 30;
    for (const struct row *row = rows; row < end;) {
        const struct row *next = work_panel(y, source, row, end, x);
        y += 70 + 34 * (next[-1].numbers[0] + 1);
        row = next;
    }
    line(84, y - 4, 98, y - 4, STROKE(ORANGE, "2.5"));
    text(106, y, "", "the busiest rank: the ring is not done before it is");
    text(700, y, END, "a tile that the mask cuts counts as a whole one");
}

/* ---- 13-waiting */

/* What the ranks of a layout have to do in each hop, when they begin it, and when all are done. */
struct timeline {
    const struct row *rows;
    int ranks, hops;
    double work[SHADES][SHADES], begin[SHADES][SHADES], end;
};

static struct timeline timeline_of(const char *path, const char *layout, const struct row *rows,
                                   const struct row *end)
{
    struct timeline time = {.rows = rows};
    double totals[MOST_WORK];
    while (time.rows < end && strcmp(time.rows->words[0], layout) != 0)
        time.rows++;
    time.ranks = add_up(path, time.rows, end, totals);
    for (const struct row *row = time.rows; row < end && same_layout(row, time.rows); row++) {
        int rank = (int)row->numbers[0], hop = (int)row->numbers[1];
        if (rank >= SHADES || hop >= SHADES)
            fail("%s: %s: want up to %d ranks and hops", path, layout, SHADES);
        time.work[rank][hop] = row->numbers[2];
        time.hops = hop < time.hops ? time.hops : hop + 1;
    }
    if (time.ranks == 0)
        fail("%s: has no layout %s", path, layout);

    /* Messages take no time here. A rank begins a hop when its work of the hop before is done, its
     * keys have come, and the keys that it sends have been taken: so not before both neighbours
     * have begun the hop before. */
    for (int hop = 0; hop < time.hops; hop++)
        for (int rank = 0; rank < time.ranks; rank++) {
            int left = (rank + time.ranks - 1) % time.ranks, right = (rank + 1) % time.ranks;
            double *begin = time.begin[rank];
            if (hop > 0)
                begin[hop] = fmax(begin[hop - 1] + time.work[rank][hop - 1],
                                  fmax(time.begin[left][hop - 1], time.begin[right][hop - 1]));
            time.end = fmax(time.end, begin[hop] + time.work[rank][hop]);
        }
    return time;
}

#define WAITING FILL(PALE_ORANGE) " stroke=\"" ORANGE "\"" DASHES

/* A part of a lane, with a word in it if there is room. */
static void draw_part(double from, double till, double y, const char *look, const char *ink,
                      const char *word)
{
    if (till - from > 2)
        rect(from, y, till - from - 1, 24, look);
    if (till - from > 44)
        text((from + till) / 2, y + 16, ink, "%s", word);
}

/* One layout: a lane for each rank, in which it works, waits or is done. */
static void waiting_panel(double y, const struct timeline *time, struct axis x)
{
    static const char *const words[SHADES] = {"hop 0", "hop 1", "hop 2", "hop 3"};
    double all = 0;
    for (int rank = 0; rank < time->ranks; rank++) {
        double lane = y + 38 + rank * 34, free = x.start;
        text(20, lane + 17, BOLD, "rank %d", rank);
        for (int hop = 0; hop < time->hops; hop++) {
            double begin = time->begin[rank][hop], work = time->work[rank][hop];
            double from = place(x, begin), till = place(x, begin + work);
            all += work;
            if (till - from < 1 && hop < time->hops - 1)
                continue; /* nothing to see but that it waits */
            draw_part(free, from, lane, WAITING, MIDDLE, "waits");
            draw_part(from, till, lane, shades[hop], hop == 0 ? MIDDLE FILL("#FFFFFF") : MIDDLE,
                      words[hop]);
            free = till;
        }
        draw_part(free, place(x, time->end), lane, FILL(LIGHT), MIDDLE, "done");
    }
    char share[64];
    snprintf(share, sizeof share, "ranks work %.1f %% of the time",
             100 * all / (time->end * time->ranks));
    layout_heading(y, time->rows, share);
}

void draw_waiting(const char *source)
{
    enum { PANELS = 2 };
    static const char *const layouts[PANELS] = {"zigzag", "dealt"};
    struct row rows[MOST_WORK];
    int count = read_csv(source, WORK_HEADER, "wnnn", MOST_WORK, rows);
    struct timeline times[PANELS];
    struct axis x = {0, 0, 84, 700};
    for (int p = 0; p < PANELS; p++) {
        times[p] = timeline_of(source, layouts[p], rows, rows + count);
        x.high = fmax(x.high, times[p].end);
    }
    svg_open(452, "Who works and who waits",
             "Two panels of four ranks against time. Zigzag, rank 2 works from beginning to end. "
             "The other three have little to do after hop 0: they wait for their neighbours, and "
             "are done early. Dealt by document, all four work without a break, and are done in "
             "little more than half the time.");
    text(700, 30, END, "time, in multiply-adds");
    for (int p = 0; p < PANELS; p++)
        waiting_panel(30 + 206 * p, &times[p], x);
    legend(84, 442, WAITING, "waits until both neighbours have begun the hop that it is in");
}

/* ---- 04-trace, 05-trace */

enum { MOST_EVENTS = 4096 };

/* How an event is drawn, and how far below the top of its rank. */
struct mark {
    const char *look; /* NULL: there is no such lane */
    double y, height;
};

static struct mark mark_of(const struct row *event)
{
    const char *lane = event->words[1], *name = event->words[2];
    if (strcmp(lane, lanes[1]) == 0)
        return (struct mark){FILL(GREEN), 25, 8};
    if (strcmp(lane, lanes[2]) == 0)
        return (struct mark){FILL(PURPLE), 38, 8};
    if (strcmp(lane, lanes[0]) != 0)
        return (struct mark){NULL, 0, 0};
    if (strcmp(name, "wait") == 0)
        return (struct mark){FILL(PALE_ORANGE) " stroke=\"" ORANGE "\"", 0, 22};
    return (struct mark){strcmp(name, "forward") == 0 ? FILL(SKY) : FILL(BLUE), 0, 22};
}

/* One event, at least half a pixel wide; work with the number of its hop if there is room. */
static void draw_event(double y, const struct row *event, struct axis x)
{
    struct mark mark = mark_of(event);
    double from = place(x, event->numbers[2] / 1000);
    double width = place(x, event->numbers[3] / 1000) - from;
    double top = y + 54 + event->numbers[0] * LANE_ROW + mark.y;
    rect(from, top, fmax(width - 0.5, 0.5), mark.height, mark.look);
    bool pale = strcmp(mark.look, FILL(SKY)) == 0, dark = strcmp(mark.look, FILL(BLUE)) == 0;
    if (width > 12 && (pale || dark))
        text(from + width / 2, top + 15, pale ? MIDDLE : MIDDLE FILL("#FFFFFF"), "%.0f",
             event->numbers[1]);
}

void draw_trace(const char *source)
{
    static struct row rows[MOST_EVENTS]; /* too many for some stacks */
    int count = read_csv(source, TRACE_HEADER, "wnwwnnn", MOST_EVENTS, rows), panels = 1;
    double last = 10;
    int ranks = 0;
    for (int k = 0; k < count; k++) {
        const double *numbers = rows[k].numbers;
        if (!mark_of(&rows[k]).look || numbers[3] < numbers[2] || numbers[0] > 63)
            fail("%s:%d: want row work, keys or gradients, start_us <= end_us, rank < 64", source,
                 line_of_row(k));
        last = fmax(last, numbers[3]);
        ranks = (int)fmax(ranks, numbers[0] + 1); /* at most 64 */
        panels += k > 0 && !same_layout(&rows[k], &rows[k - 1]);
    }

    /* One scale for all layouts. */
    struct axis x = {0, last / 1000, 128, 700};
    double panel = 70 + ranks * LANE_ROW, y = 30 - panel;
    svg_open((int)(panels * panel) + 62, "What every rank did when",
             "For each layout and rank three lanes against time: work and waiting, keys under way, "
             "gradients under way.");
    for (int k = 0; k < count; k++) {
        if (k == 0 || !same_layout(&rows[k], &rows[k - 1])) {
            char words[120];
            snprintf(words, sizeof words,
                     "%d ranks, N = 4,096, D = 64, one head, causal; milliseconds from the first "
                     "event on",
                     ranks);
            layout_heading(y += panel, &rows[k], words);
            lane_frame(y, "rank", ranks, 3, x);
        }
        draw_event(y, &rows[k], x);
    }

    /* What the looks mean. */
    y += panel;
    legend(20, y, FILL(SKY), "forward, hop 0, 1 …");
    legend(172, y, FILL(BLUE), "backward");
    legend(272, y, FILL(PALE_ORANGE) " stroke=\"" ORANGE "\"", "waits for a message");
    legend(428, y, FILL(GREEN), "keys under way");
    legend(558, y, FILL(PURPLE), "gradients under way");
}

/* ---- 07-bytes */

void draw_groups(const char *source)
{
    enum { MOST = 8 };
    static const char *const fills[] = {FILL(BLUE), FILL(ORANGE)};
    struct row rows[MOST];
    int count = read_csv(source, GROUPS_HEADER, "nnn", MOST, rows);
    double most = 1;
    for (int k = 0; k < count; k++) {
        most = fmax(most, fmax(rows[k].numbers[1], rows[k].numbers[2]));
        if (rows[k].numbers[0] == 0)
            fail("%s:%d: want G above 0", source, line_of_row(k));
    }
    struct axis x = {0, most, 160, 620};
    svg_open(100 + 58 * count, "Bytes sent by 07-gqa",
             "For each number of key/value heads, two bars: bytes sent in the forward and in the "
             "backward.");
    heading(20, 30, "Bytes sent by 07-gqa",
            "P = 4 ranks, N = M = 1024, D = 64, H = 8 query heads share G key/value heads");

    for (int k = 0; k < count; k++) {
        double y = 72 + 58 * k, G = rows[k].numbers[0];
        text(20, y + 17, BOLD, "G = %.0f", G);
        text(20, y + 34, "",
             k == 0   ? "a head for each"
             : G == 1 ? "one for all"
                      : "%g heads share",
             rows[0].numbers[0] / G);
        for (int way = 0; way < 2; way++) {
            double end = place(x, rows[k].numbers[1 + way]), top = y + 21 * way;
            rect(x.start, top, end - x.start, 19, fills[way]);
            text(end + 8, top + 14, "", "%.2f MB", rows[k].numbers[1 + way] / 1e6);
        }
    }
    legend(160, 88 + 58 * count, FILL(BLUE), "forward: k and v");
    legend(330, 88 + 58 * count, FILL(ORANGE), "backward: k and v, dk and dv");
}

/* ---- 08-plan */

/* A plan to look at: a million tokens, one layer, striped over P ranks. */
static struct ra_plan *plan_of(enum ra_type type, int P)
{
    struct ra_config config = RA_CONFIG_INIT;
    config.queries = 1 << 20;
    config.heads = 32;
    config.key_heads = 8;
    config.dim = 128;
    config.type = type;
    config.causal = true;
    config.layout = RA_STRIPED;
    config.ring_size = P;
    config.threads = 1; /* else as many as this machine has */
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    if (ra_plan_create(&plan, &config, NULL, error) != RA_OK)
        fail("08-plan: %s", error);
    return plan;
}

bool write_plans(const char *name)
{
    if (strcmp(name, "08-plan") != 0)
        return false;
    puts(PLANS_HEADER);
    for (int t = 0; t < 2; t++)
        for (int P = 4; P <= 64; P *= 2) {
            struct ra_plan *plan = plan_of(t == 0 ? RA_FLOAT32 : RA_BFLOAT16, P);
            int64_t bytes = 0;
            for (int step = 0; step < 2 * P; step++) {
                struct ra_hop hop;
                if (ra_plan_hop(plan, 0, step / 2, step % 2, &hop) != RA_OK)
                    fail("08-plan: %s", ra_plan_error(plan));
                bytes += hop.bytes;
            }
            printf("%s,%d,%" PRId64 ",%" PRId64 "\n", t == 0 ? "float32" : "bfloat16", P,
                   ra_plan_bytes(plan), bytes);
            ra_plan_destroy(plan);
        }
    return true;
}

/* Both axes logarithmic: gigabytes, what a plan holds and what its rank sends, against ranks. */
void draw_plans(const char *source)
{
    enum { MOST = 20 };
    static const char *const looks[2][2] = {
        {STROKE(BLUE, "2.5"), STROKE(ORANGE, "2.5")},
        {STROKE(BLUE, "2.5") DASHES, STROKE(ORANGE, "2.5") DASHES}};
    static const char *const names[] = {"plan", "sent"};
    struct row rows[MOST];
    int count = read_csv(source, PLANS_HEADER, "wnnn", MOST, rows), half = count / 2;
    double low = INFINITY, high = 0;
    for (int k = 0; k < count; k++)
        for (int i = 1; i <= 2; i++) {
            rows[k].numbers[i] /= 1e9;
            low = fmin(low, rows[k].numbers[i]);
            high = fmax(high, rows[k].numbers[i]);
        }
    if (half < 2 || count % 2 != 0 || low == 0 || !same_layout(&rows[0], &rows[half - 1]) ||
        rows[0].numbers[0] < 1 || rows[half - 1].numbers[0] <= rows[0].numbers[0])
        fail("%s: want two types, of each the same P, rising, and bytes above 0", source);
    svg_open(
        404, "Memory and traffic of a rank",
        "Bytes against the number of ranks, both axes logarithmic: what a plan holds, and what "
        "its rank sends in forward and backward, for float32 and for 16 bits.");
    heading(20, 30, "What a rank holds in its plan, and what it sends",
            "2²⁰ tokens, H = 32, G = 8, D = 128, causal, striped; one layer, forward and "
            "backward");

    /* The grid. The casts lose nothing: these are floors and ceilings, below 2^60. */
    struct axis x = {log2(rows[0].numbers[0]), log2(rows[half - 1].numbers[0]), 92, 510};
    struct axis y = {floor(log2(low)), ceil(log2(high)), 330, 82};
    for (int k = (int)y.low; k <= (int)y.high; k++) {
        line(x.start, place(y, k), x.end, place(y, k), STROKE(LIGHT, "1"));
        text(x.start - 10, place(y, k) + 4, END, "%g GB", exp2(k));
    }
    for (int k = 0; k < half; k++) {
        double at = place(x, log2(rows[k].numbers[0]));
        line(at, y.start, at, y.end, STROKE(LIGHT, "1"));
        text(at, y.start + 19, MIDDLE, "%.0f", rows[k].numbers[0]);
    }
    text((x.start + x.end) / 2, y.start + 40, MIDDLE, "P, ranks");

    /* Two lines for each type. Labels stand 15 apart, or more. */
    double last[2] = {0};
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < 2; i++) {
            struct point path[MOST];
            for (int k = 0; k < half; k++)
                path[k] = (struct point){place(x, log2(rows[t * half + k].numbers[0])),
                                         place(y, log2(rows[t * half + k].numbers[1 + i]))};
            polyline(half, path, looks[t][i]);
            double end = fmax(path[half - 1].y + 4, last[i] + 15);
            last[i] = end;
            text(x.end + 12, end, BOLD, "%s, %s", names[i], rows[t * half].words[0]);
            text(700, end, END, "%.1f GB", rows[t * half + half - 1].numbers[1 + i]);
        }
}
