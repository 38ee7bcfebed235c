/* figure: the pictures of chapter 12: what many ranks cost, and what one that is slow costs the
 * others. The numbers are the model's own.
 */
#include <math.h>
#include <stdio.h>
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
    int count = read_csv(source, SCALE_HEADER, "tnd", WAYS * SIZES, rows);
    if (count != WAYS * SIZES)
        fail("%s: want %d rows", source, WAYS * SIZES);
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
    int count = read_csv(source, SLOW_HEADER, "wnnn", CASES * RANKS, rows);
    double most = 0;
    if (count != CASES * RANKS)
        fail("%s: want %d rows", source, CASES * RANKS);
    for (int k = 0; k < count; k++)
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

bool write_scale(const char *name)
{
    bool ranks = strcmp(name, "12-ranks") == 0, slow = strcmp(name, "12-slow") == 0;
    if (ranks)
        write_ranks();
    if (slow)
        write_slow();
    return ranks || slow;
}
