/* quarters: three products of k03's backward without a GPU, for exercise 4 of chapter 11c.
 *
 * `multiply.h` has the kernel's `load_quarters` and `multiply`, and `corner.h` the exercise's
 * `corner`. They are written for one lane, but an instruction takes what all lanes of a warp bring.
 * So every lane runs three times: the first run notes the addresses that go to ldmatrix, the second
 * the numbers that come from it and go to mma.sync, and the third multiplies. Numbers are small
 * integers, so sums are exact.
 */
#include <cstdint>
#include <cstdio>
#include <cstring>
#include "ra_range.h"

#define RA_DEVICE static inline

enum { QUERIES = 64, KEYS = 128, WIDTH = 128, NUMBERS = (QUERIES + KEYS) * WIDTH, MOST = 256 };
static uint16_t memory[NUMBERS]; /* shared memory: 64 rows of a, then 128 of b */
static int lane, loads, products;

/* Matrix i of four has its row r where lane 8 i + r says. Each lane gets two numbers of every
 * matrix. */
static void load(uint32_t x[4], uint32_t address, bool transposed)
{
    static uint32_t addresses[MOST][32];
    uint32_t *call = addresses[loads++];
    call[lane] = address;
    for (int i = 0; i < 4; i++) {
        x[i] = 0;
        for (int e = 0; e < 2; e++) {
            int row = lane / 4, column = lane % 4 * 2 + e;
            uint32_t from = call[8 * i + (transposed ? column : row)] / 2;
            x[i] |= (uint32_t)memory[(from + (transposed ? row : column)) % NUMBERS] << 16 * e;
        }
    }
}

RA_DEVICE void ra_load_matrices(uint32_t x[4], uint32_t shared)
{
    load(x, shared, false);
}

RA_DEVICE void ra_load_transposed(uint32_t x[4], uint32_t shared)
{
    load(x, shared, true);
}

/* mma.sync: c (16 x 8) += a (16 x 16) b (16 x 8), each lane with its own numbers of all three. */
struct integers {
    static void multiply(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
    {
        static uint32_t brought[MOST][32][6];
        auto call = brought[products++];
        for (int i = 0; i < 6; i++)
            call[lane][i] = i < 4 ? a[i] : i == 4 ? b0 : b1;
        for (int e = 0; e < 4; e++)
            for (int k = 0; k < 16; k++) {
                int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
                uint32_t x = call[row % 8 * 4 + k % 8 / 2][k / 8 * 2 + row / 8];
                uint32_t y = call[column * 4 + k % 8 / 2][4 + k / 8];
                c[e] += (float)(x >> k % 2 * 16 & 0xffff) * (float)(y >> k % 2 * 16 & 0xffff);
            }
    }
};

#include "corner.h"
#include "multiply.h"

static int number(bool of_b, int row, int column)
{
    return ((of_b ? 5 : 7) * row + (of_b ? 11 : 3) * column + row * column) % 13;
}

/* One warp's part of a product, from (row, column) on: a, or its transpose, by b or its
 * transpose. */
template <int Rows, int Columns, int Inner, bool A_transposed, bool B_transposed>
static int check(const char *name, int row, int column)
{
    static float c[32][Rows][Columns][4];
    for (int run = 0; run < 3; run++)
        for (lane = 0; lane < 32; lane++) {
            loads = products = 0;
            memset(c[lane], 0, sizeof c[lane]);
            multiply<integers, Rows, Columns, Inner, A_transposed, WIDTH, B_transposed, WIDTH>(
                c[lane],
                A_transposed ? corner<WIDTH>(lane, 0, row, true)
                             : corner<WIDTH>(lane, row, 0, false),
                2 * QUERIES * WIDTH + (B_transposed ? corner<WIDTH>(lane, 0, column, false)
                                                    : corner<WIDTH>(lane, column, 0, true)));
        }
    int wrong = 0;
    for (int i = 0; i < 16 * Rows; i++)
        for (int j = 0; j < 8 * Columns; j++) {
            float sum = 0;
            for (int k = 0; k < Inner; k++)
                sum +=
                    (float)(A_transposed ? number(false, k, row + i) : number(false, row + i, k)) *
                    (float)(B_transposed ? number(true, k, column + j)
                                         : number(true, column + j, k));
            wrong += c[i % 8 * 4 + j % 8 / 2][i / 16][j / 8][i / 8 % 2 * 2 + j % 2] != sum;
        }
    printf("%-12s %d of %d numbers are wrong\n", name, wrong, 128 * Rows * Columns);
    return wrong;
}

int main()
{
    for (int row = 0; row < QUERIES + KEYS; row++)
        for (int column = 0; column < WIDTH; column++) {
            bool of_b = row >= QUERIES;
            memory[WIDTH * row + 8 * ra_swizzle(row, column / 8) + column % 8] =
                (uint16_t)number(of_b, of_b ? row - QUERIES : row, column);
        }
    int wrong = check<2, 4, WIDTH, false, false>("s = q k^T", 32, 96);
    wrong += check<2, 8, QUERIES, true, true>("dv = p^T dO", 96, 64);
    wrong += check<2, 4, KEYS, false, true>("dq = ds k", 32, 32);
    printf("%-12s %d of 4096 numbers are wrong\n", "all", wrong);
    return wrong > 0;
}
