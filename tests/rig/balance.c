/* balance: what a step of each Hopper kernel asks of the units of an SM, in clocks.
 *
 * Chapters 11d and 11e. All units can work at the same time, so a step takes at least the clocks of
 * the busiest one. Beside them stands how busy the tensor cores were on an H200. The rates were
 * measured there, too, but for that of shared memory: 32 banks of 4 bytes.
 */
#include <stdio.h>

/* In a clock an SM multiplies and adds 2,048 pairs of bfloat16, reads or writes 128 bytes of shared
 * memory, computes 16 exponentials, gets 65 bytes from L2 by TMA, if all SMs want the same, and
 * has 14.7 bytes of float32 numbers added in L2. */
static const double PAIRS = 2048, SHARED = 128, EXPONENTIALS = 16, RECEIVED = 65, ADDED = 14.7;

enum unit { PRODUCTS, SHARED_MEMORY, EXPONENTIAL, TMA, SUMS, UNITS };

struct bill {
    double clocks[UNITS];
};

enum first { IN_REGISTERS, IN_SHARED };

/* (rows, k) times (k, n), by warpgroups of 64 rows. Each reads the second operand, n k numbers, for
 * itself; the first, if it is in shared memory, only once. */
static void multiply(struct bill *bill, enum first first, int rows, int n, int k)
{
    double read = rows / 64 * n * k + (first == IN_SHARED ? rows * k : 0);
    bill->clocks[PRODUCTS] += (double)rows * n * k / PAIRS;
    bill->clocks[SHARED_MEMORY] += 2 * read / SHARED;
}

static void weigh(struct bill *bill, int rows, int columns)
{
    bill->clocks[EXPONENTIAL] += rows * columns / EXPONENTIALS;
}

static void receive(struct bill *bill, int rows, int D)
{
    bill->clocks[TMA] += 2 * rows * D / RECEIVED;
}

/* Queries stay, `keys` keys and values come. */
static struct bill forward(int queries, int keys, int D)
{
    struct bill bill = {{0}};
    receive(&bill, 2 * keys, D);
    multiply(&bill, IN_SHARED, queries, keys, D); /* S = Q K^T */
    weigh(&bill, queries, keys);
    multiply(&bill, IN_REGISTERS, queries, D, keys); /* O += P V */
    return bill;
}

/* The same, with dO. */
static struct bill backward_queries(int queries, int keys, int D)
{
    struct bill bill = {{0}};
    receive(&bill, 2 * keys, D);
    multiply(&bill, IN_SHARED, queries, keys, D); /* S = Q K^T */
    multiply(&bill, IN_SHARED, queries, keys, D); /* dP = dO V^T */
    weigh(&bill, queries, keys);
    multiply(&bill, IN_REGISTERS, queries, D, keys); /* dQ += dS K */
    return bill;
}

/* Keys and values stay, `queries` queries and rows of dO come. */
static struct bill backward_keys(int keys, int queries, int D)
{
    struct bill bill = {{0}};
    receive(&bill, 2 * queries, D);
    multiply(&bill, IN_SHARED, keys, queries, D); /* S^T = K Q^T */
    multiply(&bill, IN_SHARED, keys, queries, D); /* dP^T = V dO^T */
    weigh(&bill, keys, queries);
    multiply(&bill, IN_REGISTERS, keys, D, queries); /* dV += P^T dO */
    multiply(&bill, IN_REGISTERS, keys, D, queries); /* dK += dS^T Q */
    return bill;
}

/* And dQ: dS goes through shared memory, to one of the warpgroups, and so does its part of the sum,
 * in float32, on its way to L2. */
static struct bill backward_fused(int keys, int queries, int D)
{
    struct bill bill = backward_keys(keys, queries, D);
    bill.clocks[SHARED_MEMORY] += (2 * keys * queries + 2 * 4 * queries * D) / SHARED;
    multiply(&bill, IN_SHARED, queries, D, keys); /* dQ = dS K */
    bill.clocks[SUMS] += 4 * queries * D / ADDED;
    return bill;
}

/* `measured`: how busy the tensor cores are, in percent; 0: not known. */
static void show(const char *name, int D, struct bill bill, int measured)
{
    printf("%3d  %-20s", D, name);
    for (int i = 0; i < UNITS; i++)
        printf(" %8.0f", bill.clocks[i]);
    printf(measured ? " %6d %%\n" : "\n", measured);
}

int main(void)
{
    printf("  D  %-20s %8s %8s %8s %8s %8s %8s\n", "a step of", "products", "shared", "exp", "TMA",
           "sums", "busy");
    show("forward, 64 x 128", 128, forward(64, 128, 128), 63);
    show("forward, 128 x 128", 128, forward(128, 128, 128), 62);
    show("forward, 192 x 128", 128, forward(192, 128, 128), 79);
    show("dq, 128 x 128", 128, backward_queries(128, 128, 128), 83);
    show("dk and dv, 128 x 64", 128, backward_keys(128, 64, 128), 77);
    show("fused, 128 x 64", 128, backward_fused(128, 64, 128), 71);
    show("forward, 192 x 128", 64, forward(192, 128, 64), 0);
    show("dq, 128 x 128", 64, backward_queries(128, 128, 64), 60);
    show("dk and dv, 128 x 128", 64, backward_keys(128, 128, 64), 61);
    show("fused, 192 x 64", 64, backward_fused(192, 64, 64), 58);
    return 0;
}
