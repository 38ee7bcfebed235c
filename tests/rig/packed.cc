/* packed: a result of wgmma as the left operand of the next product, without a GPU.
 *
 * Chapter 11e, and its exercise 2. `pack.h` has the kernels' `pack`. 128 threads have 64 x 64
 * weights as wgmma leaves them in registers, pack them, and bring them to dv = p^T d_out. Done
 * twice: a row is a query, as in k03, and a row is a key. Numbers are small integers, so sums are
 * exact.
 */
#include <cstdint>
#include <cstdio>

#define RA_DEVICE static inline

enum { THREADS = 128, ROWS = 64, COLUMNS = 64, DIM = 128 };

struct integers {
    static uint32_t pair(float first, float second)
    {
        return (uint32_t)first | (uint32_t)second << 16;
    }
};

#include "pack.h"

static int weight(int query, int key)
{
    return (7 * query + 3 * key + query * key) % 13;
}

static int d_out(int query, int column)
{
    return (5 * query + 11 * column + query * column) % 17;
}

/* What the hardware takes for (row, k) of a left operand in registers. */
static int brought(const uint32_t operands[THREADS][COLUMNS / 16][4], int row, int k)
{
    int thread = row / 16 * 32 + row % 8 * 4 + k % 8 / 2;
    return (int)(operands[thread][k / 16][k % 16 / 8 * 2 + row % 16 / 8] >> k % 2 * 16 & 0xffff);
}

static int check(const char *name, bool keys_are_rows)
{
    static uint32_t operands[THREADS][COLUMNS / 16][4];
    for (int thread = 0; thread < THREADS; thread++) {
        float p[COLUMNS / 8][4];
        for (int j = 0; j < COLUMNS / 8; j++)
            for (int e = 0; e < 4; e++) {
                int row = thread / 32 * 16 + thread % 32 / 4 + e / 2 * 8;
                int column = 8 * j + thread % 4 * 2 + e % 2;
                p[j][e] = (float)(keys_are_rows ? weight(column, row) : weight(row, column));
            }
        pack<integers, COLUMNS>(operands[thread], p);
    }
    int wrong = 0;
    for (int key = 0; key < ROWS; key++)
        for (int column = 0; column < DIM; column++) {
            int sum = 0, right = 0;
            for (int query = 0; query < COLUMNS; query++) {
                sum += brought(operands, key, query) * d_out(query, column);
                right += weight(query, key) * d_out(query, column);
            }
            wrong += sum != right;
        }
    printf("%s  %d of %d numbers of dv are wrong\n", name, wrong, ROWS * DIM);
    return wrong;
}

int main()
{
    check("a row is a query:", false);
    return check("a row is a key:  ", true) > 0;
}
