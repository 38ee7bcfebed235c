/* 12_methods: page 12b as a toy: a ring, gathered keys and exchanged heads, forward. How many
 * bytes a rank sends, how long it waits for those that no work hides, and how many bytes of keys it
 * holds.
 */
#include <stdio.h>

/* A machine: multiply-adds and bytes a second. Numbers of 2 bytes, heads of 128. */
static const double F = 325e12, W = 393e9;
enum { BYTES = 2, D = 128 };

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static void line(const char *name, double sent, double waited, double held, double work)
{
    printf("  %-16s%9.1f%9.2f%12.1f%11.2f\n", name, sent / 1e6, 1e3 * waited, held / 1e6,
           1e3 * (work + waited));
}

static void compare(double N, double P, double H, double G)
{
    double n = N / P, keys = 2 * n * G * D * BYTES, queries = n * H * D * BYTES;

    /* Causal, and the same for every rank. */
    double work = 2 * n * N * H * D / 2 / F;
    printf("%.0f tokens, %.0f ranks, %.0f heads on %.0f: %.2f ms of work\n", N, P, H, G,
           1e3 * work);

    /* A hop's keys travel during a hop's work. */
    double hop = keys / W;
    line("ring", (P - 1) * keys, (P - 1) * larger(0, hop - work / P), 3 * keys, work);

    /* All keys come before the work begins. */
    line("gathered keys", (P - 1) * keys, (P - 1) * hop, P * keys, work);

    /* q, k, v go out and o comes back, all but the share of one's own heads. Keys of fewer heads
     * than ranks are needed several times. */
    double held = keys * larger(1, P / G), all = (2 * queries + held) * (P - 1) / P;
    line("exchanged heads", all, all / W, held, work);
}

int main(void)
{
    puts("                    MB sent  ms wait  MB of keys  ms in all");
    compare(8192, 4, 32, 32);
    compare(8192, 4, 32, 8);
    compare(131072, 4, 32, 8);
    compare(131072, 16, 32, 8);
    return 0;
}
