/* 14_balance: chapter 14 as a toy: what a training step on one GPU has to compute and to move, and
 * how long that takes at the rates of an H200. Usage: 14-balance [TOKENS DIM HEADS HEAD_DIM]
 */
#include <stdio.h>
#include <stdlib.h>

static const double PRODUCT = 700e12, ATTENTION = 500e12, COPY = 4.14e12; /* a second */
static double total;

/* Prints a line of the sheet: work that is done `times` times, its operations at a rate, and then
 * its bytes at the rate of a copy. */
static void line(const char *name, double times, double operations, double rate, double bytes)
{
    double ms = 1e3 * times * (operations / rate + bytes / COPY);
    printf("%-28s %8.0f %8.3f %7.2f\n", name, 1e-9 * times * operations, 1e-9 * times * bytes, ms);
    total += ms;
}

int main(int argc, char **argv)
{
    double T = argc > 4 ? atof(argv[1]) : 8192, dim = argc > 4 ? atof(argv[2]) : 1024;
    double H = argc > 4 ? atof(argv[3]) : 16, D = argc > 4 ? atof(argv[4]) : 64;
    double L = 8, V = 32000, hidden = 4 * dim, Q = H * D;
    double matrices = dim * 4 * Q + 2 * dim * hidden, weights = L * matrices + 2 * V * dim;
    printf("%-28s %8s %8s %7s\n", "", "GFLOP", "GB", "ms");
    line("products of layers", 3 * L, 2 * T * matrices, PRODUCT, 0);
    line("product of the logits", 3, 2 * T * dim * V, PRODUCT, 0);
    line("attention, forward", L, 2 * T * T * Q, ATTENTION, 0);
    line("attention, backward", L, 5 * T * T * Q, ATTENTION, 0);
    line("norms, forward and again", 4 * L, 0, 1, 6 * T * dim);
    line("norms, backward", 2 * L, 0, 1, 16 * T * dim);
    line("rotation, there and back", 2 * L, 0, 1, 8 * T * Q);
    line("GELU", L, 0, 1, 4 * T * hidden);
    line("GELU, backward", L, 0, 1, 8 * T * hidden);
    line("gradients of biases", L, 0, 1, 2 * T * (hidden + dim));
    line("loss", 1, 0, 1, 6 * T * V);
    line("length of the gradient", 1, 0, 1, 4 * weights);
    line("AdamW", 1, 0, 1, 30 * weights);
    printf("%-28s %25.2f\n", "all", total);
    return 0;
}
