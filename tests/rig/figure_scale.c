/* figure: the pictures of chapter 12. What many ranks cost, and what one that is slow costs the
 * others: the numbers are the model's own. Rings of GPUs, predicted and measured, and the rates
 * with which predictions begin: the numbers are in CSV files.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "figure.h"
#include "ring_attention_scale.h"
#include "scale_machine.h"

/* Eight H100s a host and 400 Gb/s for each of them, as build/12-scale has them, with the rates of
 * this ring. */
static struct ra_scale_machine machine_for(const struct ra_config *config)
{
    struct ra_scale_machine machine = {.size = sizeof machine,
                                       .slow_rank = -1,
                                       .slow_link = -1,
                                       .slow_rank_factor = 1,
                                       .slow_link_factor = 1};
    const struct scale_preset *h100 = &scale_machine_presets[1];
    double told[2];
    scale_take(&machine, h100);
    scale_take(&machine, &scale_network_presets[1]);
    if (!scale_take_rates(&machine, told, h100, config))
        fail("12: no rate of the %s", scale_machines[1].word);
    return machine;
}

static struct ra_config config_of(int64_t tokens, int64_t key_heads, int P)
{
    struct ra_config config = RA_CONFIG_INIT;
    config.queries = tokens;
    config.heads = 32;
    config.key_heads = key_heads;
    config.dim = 128;
    config.type = RA_BFLOAT16;
    config.causal = true;
    config.layout = RA_STRIPED;
    config.ring_size = P;
    config.threads = 1;
    return config;
}

/* ---- 12-ranks */

enum { WAYS = 4, FIRST = 8, LAST = 4096, SIZES = 10 };

static const struct {
    const char *name;
    int64_t key_heads;
    enum ra_scale_method method;
    const char *look;
} ways[WAYS] = {{"double ring (G 8)", 8, RA_SCALE_DOUBLE_RING, STROKE(GREEN, "2.5") DASHES},
                {"double ring", 32, RA_SCALE_DOUBLE_RING, STROKE(GREEN, "2.5")},
                {"ring (G 8)", 8, RA_SCALE_RING, STROKE(BLUE, "2.5") DASHES},
                {"ring", 32, RA_SCALE_RING, STROKE(BLUE, "2.5")}};

static void write_ranks(void)
{
    puts(SCALE_HEADER);
    for (int w = 0; w < WAYS; w++)
        for (int P = FIRST; P <= LAST; P *= 2) {
            struct ra_config config = config_of(1 << 20, ways[w].key_heads, P);
            struct ra_scale_machine h100 = machine_for(&config);
            struct ra_scale scale;
            char error[RA_ERROR_SIZE];
            if (ra_scale_predict(&scale, &config, NULL, &h100, ways[w].method, NULL, error) !=
                RA_OK)
                fail("12-ranks: %s", error);
            printf("%s,%d,%.1f\n", ways[w].name, P,
                   100 * (scale.forward.work + scale.backward.work) /
                       (scale.forward.seconds + scale.backward.seconds));
        }
}

void draw_scale(const char *source)
{
    struct row rows[WAYS * SIZES];
    read_rows(source, SCALE_HEADER, "tnd", WAYS * SIZES, rows);
    svg_open(
        400, "Share of the time in which ranks work",
        "Per cent against ranks, 8 to 4,096: the ring falls from 64 ranks on, with a quarter of "
        "the key heads from 256 on; the double ring falls later.");
    heading(
        20, 30, "How much of the time a rank works",
        "2²⁰ tokens, H = 32, D = 128, 16 bits, causal, striped; hosts of 8 H100s, 400 Gb/s a rank");
    struct axis x = {log2(FIRST), log2(LAST), 70, 520}, y = {0, 100, 322, 82};
    for (int k = 0; k <= 100; k += 20) {
        line(x.start, place(y, k), x.end, place(y, k), STROKE(LIGHT, "1"));
        text(x.start - 10, place(y, k) + 4, END, "%d %%", k);
    }
    for (int P = FIRST; P <= LAST; P *= 2) {
        double at = place(x, log2(P));
        line(at, y.start, at, y.end, STROKE(LIGHT, "1"));
        text(at, y.start + 19, MIDDLE, "%d", P);
        text(at, y.start + 35, MIDDLE " font-size=\"11\"", "%d", (1 << 20) / P);
    }
    text((x.start + x.end) / 2, y.start + 58, MIDDLE, "ranks, and tokens of each");
    for (int w = 0; w < WAYS; w++) {
        struct point path[SIZES];
        for (int k = 0; k < SIZES; k++)
            path[k] = (struct point){place(x, log2(rows[w * SIZES + k].numbers[0])),
                                     place(y, rows[w * SIZES + k].numbers[1])};
        polyline(SIZES, path, ways[w].look);
        line(545, 112 + 26 * w, 577, 112 + 26 * w, ways[w].look);
        text(585, 116 + 26 * w, "", "%s", ways[w].name);
    }
}

/* ---- 12-slow */

enum { RANKS = 8, SLOW = 3, CASES = 3 };

static const char *const cases[CASES] = {"all alike", "rank 3 works at half the rate",
                                         "the link of rank 3 has a tenth of the rate"};
static const char *const words[CASES] = {"alike", "slow-rank", "slow-link"};

static void write_slow(void)
{
    puts(SLOW_HEADER);
    for (int c = 0; c < CASES; c++) {
        struct ra_config config = config_of(1 << 16, 32, RANKS);
        struct ra_scale_machine machine = machine_for(&config);
        struct ra_scale_rank ranks[RANKS];
        char error[RA_ERROR_SIZE];
        double seconds;
        machine.slow_rank = c == 1 ? SLOW : -1;
        machine.slow_rank_factor = 2;
        machine.slow_link = c == 2 ? SLOW : -1;
        machine.slow_link_factor = 10;
        if (ra_scale_simulate(&seconds, &config, NULL, &machine, false, ranks, error) != RA_OK)
            fail("12-slow: %s", error);
        for (int rank = 0; rank < RANKS; rank++)
            printf("%s,%d,%.0f,%.0f\n", words[c], rank, 1e6 * ranks[rank].work,
                   1e6 * ranks[rank].waiting);
    }
}

void draw_slow(const char *source)
{
    struct row rows[CASES * RANKS];
    read_rows(source, SLOW_HEADER, "wnnn", CASES * RANKS, rows);
    double most = 0;
    for (int k = 0; k < CASES * RANKS; k++)
        most = fmax(most, rows[k].numbers[1] + rows[k].numbers[2]);
    svg_open(
        560, "A slow rank and a slow link",
        "For each of eight ranks a bar: how long it works and how long it waits, if all are alike, "
        "if rank 3 is slow, and if its link is.");
    heading(
        20, 30, "One forward of eight ranks: work, and waiting",
        "simulated: 65,536 tokens, H = 32, D = 128, 16 bits, causal, striped, one host of 8 H100s");
    struct axis x = {0, most, 70, 620};
    for (int c = 0; c < CASES; c++) {
        double top = 84 + 152 * c;
        text(x.start, top - 8, BOLD, "%s", cases[c]);
        for (int rank = 0; rank < RANKS; rank++) {
            const double *numbers = rows[c * RANKS + rank].numbers;
            double y = top + 15 * rank, end = place(x, numbers[1]),
                   done = place(x, numbers[1] + numbers[2]);
            text(x.start - 10, y + 11, END " font-size=\"11\"", "%d", rank);
            rect(x.start, y, end - x.start, 12, FILL(BLUE));
            rect(end, y, done - end, 12, FILL(PALE_ORANGE));
            if (rank == SLOW)
                text(done + 8, y + 11, " font-size=\"11\"", "%.1f ms",
                     (numbers[1] + numbers[2]) / 1e3);
        }
    }
    legend(70, 544, FILL(BLUE), "works");
    legend(160, 544, FILL(PALE_ORANGE), "waits");
}

/* ---- 12-predicted */

enum { MOST_RINGS = 64 };

static const char *const both_passes[] = {"forward", "backward"};

/* A number of rows, from 1,000 on, with its comma. */
static const char *thousands(double rows)
{
    static char letters[32];
    snprintf(letters, sizeof letters, "%d,%03d", (int)rows / 1000, (int)rows % 1000);
    return letters;
}

/* The name of a machine, as readers write it. */
static void name_of(const char *machine, double count, char letters[32])
{
    snprintf(letters, 32, "%g %c%ss", count, machine[0] - 'a' + 'A', machine + 1);
}

/* Are these rings of the same GPUs and heads? */
static bool one_group(const struct row *a, const struct row *b)
{
    for (int k = 0; k < 4; k++)
        if (a->numbers[k] != b->numbers[k])
            return false;
    return strcmp(a->words[0], b->words[0]) == 0;
}

/* What was measured, as a bar, with a line where the prediction is, and by how much that is off. */
static void predicted_bar(double y, const struct row *row, struct axis x)
{
    double predicted = place(x, row->numbers[4]), measured = place(x, row->numbers[5]);
    double off = strtod(row->words[3], NULL);
    rect(x.start, y, measured - x.start, 11, FILL("#94C3E2"));
    line(predicted, y - 2, predicted, y + 13, STROKE(ORANGE, "2.5"));
    text(x.end + 46, y + 10, END " font-size=\"11\"", "%s%.1f %%", off < 0 ? "\u2212" : "+",
         fabs(off));
}

void draw_predicted(const char *source)
{
    struct row rows[MOST_RINGS];
    int count = read_csv(source, PREDICTED_HEADER, "wnnnnwwddt", MOST_RINGS, rows), groups = 0;
    for (int k = 0; k < count; k++) {
        if (strcmp(rows[k].words[2], both_passes[k % 2]) != 0)
            fail("%s:%d: want %s", source, line_of_row(k), both_passes[k % 2]);
        groups += k == 0 || !one_group(&rows[k - 1], &rows[k]);
    }
    int bottom = 92 + 8 * count + 24 * groups;
    svg_open(bottom + 40, "Rings of GPUs, predicted and measured",
             "For each ring of two or four GPUs a bar, the rate that was measured, and a line at "
             "the predicted one: they are never further apart than 6 per cent.");
    heading(20, 30, "Rings of GPUs: predicted and measured",
            "10¹² operations a second for each GPU; bfloat16, D = 128, causal");
    struct axis panels[] = {{0, 700, 110, 348}, {0, 700, 420, 658}};
    for (int pass = 0; pass < 2; pass++) {
        text(panels[pass].start, 70, BOLD, "%s", both_passes[pass]);
        for (int rate = 100; rate <= 700; rate += 100) {
            double at = place(panels[pass], rate);
            line(at, 92, at, bottom, STROKE(LIGHT, "1"));
            if (rate % 200 == 0)
                text(at, 86, MIDDLE " font-size=\"11\"", "%d", rate);
        }
    }
    double y = 92;
    for (int k = 0; k < count; k++) {
        if (k == 0 || !one_group(&rows[k - 1], &rows[k])) {
            char machine[32];
            name_of(rows[k].words[0], rows[k].numbers[0], machine);
            text(20, y + 18, BOLD, "%s, %g query and %g key heads, %s rows on each", machine,
                 rows[k].numbers[1], rows[k].numbers[2], thousands(rows[k].numbers[3]));
            y += 24;
        }
        if (k % 2 == 0)
            text(20, y + 10, "", "%s", rows[k].words[1]);
        predicted_bar(y, &rows[k], panels[k % 2]);
        y += k % 2 == 1 ? 16 : 0;
    }
    legend(20, bottom + 26, FILL("#94C3E2"), "measured");
    line(120, bottom + 13, 120, bottom + 29, STROKE(ORANGE, "2.5"));
    text(130, bottom + 26, "", "predicted; beside it, by how much that is too high (+) or too low");
}

/* ---- 12-rates */

enum { MOST_RATES = 256, FEWEST_ROWS = 1024, MOST_ROWS = 65536 };

static const struct {
    double dim;
    const char *solid, *dashed;
} dims[] = {{64, STROKE(GREEN, "2.5"), STROKE(GREEN, "2.5") DASHES},
            {128, STROKE(BLUE, "2.5"), STROKE(BLUE, "2.5") DASHES},
            {256, STROKE(PURPLE, "2.5"), STROKE(PURPLE, "2.5") DASHES}};

/* The lines of a pass: each D, without a mask and with a causal one. */
static void rate_lines(const struct row *rows, int count, int pass, struct axis x, struct axis y)
{
    for (int d = 0; d < 3; d++)
        for (int causal = 0; causal < 2; causal++) {
            struct point path[MOST_RATES];
            int points = 0;
            for (int k = 0; k < count; k++)
                if (strcmp(rows[k].words[0], "h100") == 0 &&
                    strcmp(rows[k].words[2], "bfloat16") == 0 &&
                    (strcmp(rows[k].words[3], "causal") == 0) == causal &&
                    rows[k].numbers[0] == dims[d].dim)
                    path[points++] = (struct point){place(x, log2(rows[k].numbers[1])),
                                                    place(y, rows[k].numbers[2 + pass])};
            polyline(points, path, causal ? dims[d].dashed : dims[d].solid);
        }
}

void draw_rows(const char *source)
{
    struct row rows[MOST_RATES];
    int count = read_csv(source, ROWS_HEADER, "wwtnwndd", MOST_RATES, rows);
    svg_open(372, "Rates of an H100, few rows to many",
             "Rates in bfloat16 against rows, forward and backward, for D = 64, 128 and 256: from "
             "1,024 to 65,536 rows they rise to 1.4 to 3.3 times as much, and a causal mask "
             "costs most where rows are few.");
    heading(20, 30, "Rates of one H100, bfloat16, 32 heads",
            "10¹² operations a second of visible pairs, against rows");
    struct axis panels[] = {{log2(FEWEST_ROWS), log2(MOST_ROWS), 60, 330},
                            {log2(FEWEST_ROWS), log2(MOST_ROWS), 420, 690}};
    struct axis y = {0, 700, 300, 90};
    for (int pass = 0; pass < 2; pass++) {
        struct axis x = panels[pass];
        text(x.start, 80, BOLD, "%s", both_passes[pass]);
        for (int rate = 0; rate <= 700; rate += 100) {
            line(x.start, place(y, rate), x.end, place(y, rate), STROKE(LIGHT, "1"));
            text(x.start - 8, place(y, rate) + 4, END " font-size=\"11\"", "%d", rate);
        }
        for (int n = FEWEST_ROWS; n <= MOST_ROWS; n *= 4) {
            double at = place(x, log2(n));
            line(at, y.start, at, y.end, STROKE(LIGHT, "1"));
            text(at, y.start + 18, MIDDLE " font-size=\"11\"", "%s", thousands(n));
        }
        rate_lines(rows, count, pass, x, y);
    }
    for (int d = 0; d < 3; d++) {
        line(60 + 100 * d, 346, 90 + 100 * d, 346, dims[d].solid);
        text(96 + 100 * d, 350, "", "D = %g", dims[d].dim);
    }
    line(420, 346, 450, 346, STROKE(GREY, "2.5"));
    text(456, 350, "", "no mask");
    line(540, 346, 570, 346, STROKE(GREY, "2.5") DASHES);
    text(576, 350, "", "causal");
}

bool write_scale(const char *name)
{
    bool ranks = strcmp(name, "12-ranks") == 0, slow = strcmp(name, "12-slow") == 0;
    if (ranks)
        write_ranks();
    if (slow)
        write_slow();
    return ranks || slow;
}
