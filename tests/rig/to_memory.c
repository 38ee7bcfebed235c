/* to_memory: judges exercises 1 and 2 of page 11c: what the blocks of one head add to device memory
 * in a backward, D = 128. A block keeps a tile of one side in registers. All rows of the other side
 * pass, and its share of their sums is added to memory. QUERIES_STAY: keys and values pass.
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { D = 128, TILES = 8 };
enum array { DQ, DK, DV, ARRAYS };

/* The reader's. */
double bytes_added(int queries, int keys, int tile);

#ifdef QUERIES_STAY
extern const bool same_bits[ARRAYS]; /* the reader's, too */
static const bool stays[ARRAYS] = {[DQ] = true};
#else
static const bool same_bits[ARRAYS] = {[DK] = true, [DV] = true};
static const bool stays[ARRAYS] = {[DK] = true, [DV] = true};
#endif

/* Block by block, row by row. */
static double count(int queries, int keys, int tile)
{
    int stay = stays[DQ] ? queries : keys, pass = stays[DQ] ? keys : queries;
    double bytes = 0;
    for (int first = 0; first < stay; first += tile)
        for (int row = 0; row < pass; row++)
            for (int array = 0; array < ARRAYS; array++)
                if (!stays[array])
                    bytes += sizeof(float) * D;
    return bytes;
}

/* The sums in the registers of each block, and those in memory, to which blocks come in one order
 * or the other. */
static void add_up(bool backwards, float registers[TILES], float memory[TILES])
{
    memset(registers, 0, TILES * sizeof *registers);
    memset(memory, 0, TILES * sizeof *memory);
    for (int n = 0; n < TILES; n++)
        for (int other = 0; other < TILES; other++) {
            int block = backwards ? TILES - 1 - n : n;
            float share = 1 / (float)(1 + block + 31 * other);
            registers[block] += share;
            memory[other] += share;
        }
}

/* How many arrays have other bits, or the same, than the reader says. */
static int judge_bits(void)
{
    static const char *const names[] = {"dq", "dk", "dv"};
    float registers[2][TILES], memory[2][TILES];
    int wrong = 0;
    add_up(false, registers[0], memory[0]);
    add_up(true, registers[1], memory[1]);
    for (int array = 0; array < ARRAYS; array++) {
        float(*sums)[TILES] = stays[array] ? registers : memory;
        bool same = memcmp(sums[0], sums[1], sizeof sums[0]) == 0;
        if (same != same_bits[array]) {
            printf("%s: the bits are %s if blocks come in another order\n", names[array],
                   same ? "the same" : "others");
            wrong++;
        }
    }
    return wrong;
}

int main(void)
{
    static const int cases[][3] = {{16384, 16384, 128}, {16384, 16384, 64}, {8192, 16384, 128},
                                   {16384, 8192, 128},  {16384, 1000, 128}, {1000, 16384, 128}};
    int wrong = judge_bits();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int *c = cases[i];
        double yours = bytes_added(c[0], c[1], c[2]), wanted = count(c[0], c[1], c[2]);
        if (yours != wanted) {
            printf("%d queries, %d keys, tiles of %d: %.0f bytes are too %s\n", c[0], c[1], c[2],
                   yours, yours < wanted ? "few" : "many");
            wrong++;
        }
    }
    return wrong > 0;
}
