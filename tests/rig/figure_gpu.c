/* figure: more pictures of chapter 11: what a multiprocessor has, and what the backward of k03
 * keeps where.
 */
#include "figure.h"
#include <stdio.h>

#define SMALL " font-size=\"12\""
#define WHITE FILL("#FFFFFF")
#define STROKE_BOX " stroke=\"" INK "\" stroke-width=\"1\""

/* ---- 11-sm */

/* A box with a name, and below it lines of what it holds and delivers. */
static void unit(double x, double y, double width, double height, const char *look,
                 const char *name, int count, const char *const *words)
{
    rect(x, y, width, height, look);
    text(x + 12, y + 22, BOLD, "%s", name);
    for (int k = 0; k < count; k++)
        text(x + 12, y + 42 + 17 * k, SMALL, "%s", words[k]);
}

void draw_sm(const char *source)
{
    (void)source; /* nothing is read */
    enum { LEFT = 20, WIDTH = 680, QUARTER = 150 };
    svg_open(
        600, "A multiprocessor of an H200, with its numbers",
        "One multiprocessor: four quarters, each with a scheduler, 32 float32 units, a tensor core "
        "and 16,384 registers; under them shared memory and L1. Below it the L2 cache and the "
        "device memory that 132 multiprocessors share. Each with what it holds and what it "
        "delivers.");
    heading(LEFT, 30, "One multiprocessor (SM) of 132", "per clock, at up to 1.98 GHz");
    rect(LEFT, 64, WIDTH, 330, FILL("#F7F7F7") STROKE_BOX);
    for (int k = 0; k < 4; k++) {
        double x = LEFT + 14 + (QUARTER + 17) * k;
        rect(x, 78, QUARTER, 196, FILL("#FFFFFF") STROKE_BOX);
        text(x + 10, 98, BOLD, "Scheduler %d", k + 1);
        text(x + 10, 115, SMALL, "one warp a clock,");
        text(x + 10, 131, SMALL, "of up to 16");
        rect(x + 8, 140, QUARTER - 16, 26, FILL(PALE_BLUE));
        text(x + 14, 158, SMALL, "32 float32 units");
        rect(x + 8, 170, QUARTER - 16, 26, FILL(PALE_BLUE));
        text(x + 14, 188, SMALL, "4 exponentials");
        rect(x + 8, 200, QUARTER - 16, 26, FILL(BLUE));
        text(x + 14, 218, SMALL WHITE, "1 tensor core");
        rect(x + 8, 230, QUARTER - 16, 36, FILL(PALE_ORANGE));
        text(x + 14, 246, SMALL, "16,384 registers");
        text(x + 14, 261, SMALL, "of 4 bytes");
    }
    static const char *const shared[] = {"holds 256 KiB, of which blocks may ask for 227",
                                         "delivers 128 bytes: 4 from each of 32 banks"};
    unit(LEFT + 14, 288, 317, 92, FILL(PALE_ORANGE) STROKE_BOX, "Shared memory and L1", 2, shared);
    static const char *const rates[] = {"128 multiply-adds of float32: 256 operations",
                                        "4,096 operations of 16 bits on tensor cores",
                                        "16 exponentials"};
    unit(LEFT + 348, 288, 317, 92, WHITE STROKE_BOX, "All four quarters, each clock", 3, rates);

    arrow(LEFT + 180, 430, LEFT + 180, 398, INK_LINE);
    text(LEFT + 194, 420, SMALL,
         "lines of 128 bytes; cp.async takes them straight to shared memory");
    static const char *const cache[] = {"holds 63 MB, for all 132 SMs"};
    unit(LEFT, 432, WIDTH, 56, FILL(LIGHT) STROKE_BOX, "L2", 1, cache);
    arrow(LEFT + 180, 524, LEFT + 180, 492, INK_LINE);
    text(LEFT + 194, 514, SMALL, "4.2 TB a second, measured by copying: 16 bytes an SM and clock");
    static const char *const device[] = {"holds 141 GB"};
    unit(LEFT, 526, WIDTH, 56, FILL(LIGHT) STROKE_BOX, "Device memory", 1, device);
}

/* ---- 11-backward */

/* An array in its place, rows by columns, with its name. */
static void array(double x, double y, double width, double height, const char *look,
                  const char *name, const char *shape)
{
    rect(x, y, width, height, look);
    text(x + width / 2, y + height / 2 - 2, BOLD MIDDLE, "%s", name);
    text(x + width / 2, y + height / 2 + 14, MIDDLE " font-size=\"11\"", "%s", shape);
}

/* One product: two operands, the result, and where that goes. */
struct product {
    const char *left, *left_shape, *right, *right_shape, *result, *result_shape, *where, *who;
    const char *left_look, *right_look, *look;
};

static void draw_product(const struct product *p, double y)
{
    enum { HEIGHT = 64 };
    array(96, y, 84, HEIGHT, p->left_look, p->left, p->left_shape);
    text(190, y + 38, BOLD, "·");
    array(204, y, 84, HEIGHT, p->right_look, p->right, p->right_shape);
    text(298, y + 38, BOLD, "=");
    array(316, y, 84, HEIGHT, p->look, p->result, p->result_shape);
    text(414, y + 28, SMALL, "%s", p->where);
    text(414, y + 46, SMALL FILL("#555555"), "%s", p->who);
}

#define PLAIN FILL("#FFFFFF") STROKE_BOX

void draw_products(const char *source)
{
    (void)source; /* nothing is read */
    static const struct product products[] = {
        {"Q", "64 × 128", "Kᵀ", "128 × 128", "S", "64 × 128", "becomes P: 16 bits, shared memory",
         "a warp: 32 queries × 32 keys", PLAIN, PLAIN, FILL(PALE_ORANGE)},
        {"dO", "64 × 128", "Vᵀ", "128 × 128", "dP", "64 × 128",
         "becomes dS = P ∘ (dP − δ): 16 bits, shared memory", "a warp: 32 queries × 32 keys", PLAIN,
         PLAIN, FILL(PALE_ORANGE)},
        {"Pᵀ", "128 × 64", "dO", "64 × 128", "dV", "128 × 128", "stays in registers to the end",
         "a warp: 32 keys × 64 columns", PLAIN, PLAIN, FILL(PALE_BLUE)},
        {"dSᵀ", "128 × 64", "Q", "64 × 128", "dK", "128 × 128", "stays in registers to the end",
         "a warp: 32 keys × 64 columns", PLAIN, PLAIN, FILL(PALE_BLUE)},
        {"dS", "64 × 128", "K", "128 × 128", "dQ", "64 × 128",
         "is added to device memory at every step", "a warp: 32 queries × 32 columns", PLAIN, PLAIN,
         FILL(LIGHT)},
    };
    enum { COUNT = sizeof products / sizeof *products, STEP = 82, TOP = 72 };
    svg_open(
        TOP + COUNT * STEP + 58, "The five products of the backward, and where each result stays",
        "A block of k03 keeps 128 keys; 64 queries pass in a step. Weigh computes S and dP, whose "
        "results P and dS go to shared memory. Gather computes dV and dK, which stay in "
        "registers, and dQ, which is added to device memory.");
    heading(20, 30, "One step of k03's backward",
            "128 keys stay, 64 queries pass; D = 128, 8 warps; all operands lie in shared memory");
    for (int k = 0; k < COUNT; k++)
        draw_product(&products[k], TOP + STEP * k + (k > 1) * 14);
    text(20, TOP + 76, BOLD, "Weigh");
    text(20, TOP + STEP * 3 + 46, BOLD, "Gather");
    line(20, TOP + STEP * 2 - 4, 700, TOP + STEP * 2 - 4, STROKE(INK, "1.5") DASHES);
    text(700, TOP + STEP * 2 - 10, END SMALL, "a barrier: all of P and dS is there");
    double y = TOP + STEP * COUNT + 30;
    legend(20, y, FILL(PALE_BLUE), "registers");
    legend(160, y, FILL(PALE_ORANGE), "shared memory");
    legend(330, y, FILL(LIGHT), "device memory");
}

/* ---- 11-backward-hopper */

void draw_hopper_products(const char *source)
{
    (void)source; /* nothing is read */
#define LIES FILL(PALE_ORANGE)
#define TURNED FILL(PALE_ORANGE) " stroke=\"" INK "\" stroke-width=\"1.5\"" DASHES
#define KEPT FILL(PALE_BLUE)
    static const struct product products[] = {
        {"K", "64 × 128", "Qᵀ", "128 × 64", "Sᵀ", "64 × 64", "becomes Pᵀ: 16 bits, registers",
         "a row is a key, a column a query", LIES, LIES, KEPT},
        {"V", "64 × 128", "dOᵀ", "128 × 64", "dPᵀ", "64 × 64",
         "becomes dSᵀ = Pᵀ ∘ (dPᵀ − δ): 16 bits, registers", "and, for dQ, shared memory", LIES,
         LIES, KEPT},
        {"Pᵀ", "64 × 64", "dO", "64 × 128", "dV", "64 × 128", "stays in registers to the end",
         "of the 64 keys of the warpgroup", KEPT, TURNED, KEPT},
        {"dSᵀ", "64 × 64", "Q", "64 × 128", "dK", "64 × 128", "stays in registers to the end",
         "of the 64 keys of the warpgroup", KEPT, TURNED, KEPT},
        {"dS", "64 × 128", "K", "128 × 128", "dQ", "64 × 128",
         "is added to device memory at every step", "over all 128 keys, by the warpgroups in turn",
         TURNED, TURNED, FILL(LIGHT)},
    };
    enum { COUNT = sizeof products / sizeof *products, STEP = 82, TOP = 72 };
    svg_open(
        TOP + COUNT * STEP + 58, "The five products of a warpgroup of k07",
        "A warpgroup has 64 of the 128 keys of its block, and 64 queries pass in a step. S and "
        "dP are computed with a row for each key; P and dS stay in registers as left operands "
        "of dV and dK. dS also goes to shared memory, for dQ, in which both operands are turned.");
    heading(20, 30, "One step of a warpgroup of k07",
            "the block: 128 keys stay, 64 queries pass, D = 128; a warpgroup: 64 of the keys");
    for (int k = 0; k < COUNT; k++)
        draw_product(&products[k], TOP + STEP * k + (k > 3) * 14);
    line(20, TOP + STEP * 4 - 4, 700, TOP + STEP * 4 - 4, STROKE(INK, "1.5") DASHES);
    text(700, TOP + STEP * 4 - 10, END SMALL, "when dS of both warpgroups is there");
    double y = TOP + STEP * COUNT + 30;
    legend(20, y, KEPT, "registers");
    legend(130, y, LIES, "shared memory, as it lies");
    legend(330, y, TURNED, "shared memory, turned");
    legend(520, y, FILL(LIGHT), "device memory");
}
