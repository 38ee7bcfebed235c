/* banks: where store_dq of k07 writes, and how often shared memory has to take it up, without a
 * GPU: for exercise 2 of page 11e-one-kernel.
 *
 * `store_dq.h` has the exercise's function. It is written for one thread: here the 128 of a
 * warpgroup run it one after the other, and each notes where it writes. Of numbers of 8 bytes 16
 * threads write at a time, in one round if no two of their words are in the same bank.
 */
#include <cstdint>
#include <cstdio>
#include <vector>
#include "swizzled_panels.h"

#define RA_DEVICE static inline

enum { THREADS = 128, ROWS = 64, BANKS = 32 };

static int thread;
static std::vector<const char *> written[THREADS];

/* Two numbers, which note where they are written. */
struct float2 {
    float x, y;
    float2(float first, float second) : x(first), y(second)
    {
    }
    float2(const float2 &) = default;
    float2 &operator=(const float2 &other)
    {
        x = other.x, y = other.y;
        written[thread].push_back((const char *)this);
        return *this;
    }
};

static float2 make_float2(float first, float second)
{
    return {first, second};
}

static int my_row()
{
    return thread / 32 * 16 + thread % 32 / 4;
}

static int my_column()
{
    return thread % 4 * 2;
}

#include "store_dq.h"

static float number(int row, int column)
{
    return (float)(1000 * row + column);
}

/* The rounds of the i-th numbers of 16 threads from this one on. */
static int rounds_of(int from, size_t i)
{
    int words[BANKS] = {0}, rounds = 0;
    for (int t = from; t < from + 16 && i < written[t].size(); t++)
        for (int word = 0; word < 2; word++) {
            int &in_bank = words[((uintptr_t)written[t][i] / 4 + (uintptr_t)word) % BANKS];
            in_bank++;
            rounds = in_bank > rounds ? in_bank : rounds;
        }
    return rounds;
}

template <int Dim> static int check()
{
    alignas(RA_PANEL_ALIGNMENT) static char slot[4 * ROWS * Dim];
    for (thread = 0; thread < THREADS; thread++) {
        float dq[Dim / 8][4];
        for (int j = 0; j < Dim / 8; j++)
            for (int e = 0; e < 4; e++)
                dq[j][e] = number(my_row() + e / 2 * 8, 8 * j + my_column() + e % 2);
        written[thread].clear();
        store_dq<Dim>(slot, 2, dq);
    }
    int misplaced = 0, rounds = 0, stores = 0;
    for (int row = 0; row < ROWS; row++)
        for (int column = 0; column < Dim; column++)
            misplaced += *(float *)(slot + ra_panel_offset(row, 2 * column, ROWS)) !=
                         2 * number(row, column);
    for (int from = 0; from < THREADS; from += 16)
        for (size_t i = 0; i < written[from].size(); i++, stores++)
            rounds += rounds_of(from, i);
    printf("D = %3d: %d of %d numbers are misplaced; %d stores of 16 threads take %d rounds\n", Dim,
           misplaced, ROWS * Dim, stores, rounds);
    return misplaced + (rounds > stores);
}

int main()
{
    return check<64>() + check<128>() > 0;
}
