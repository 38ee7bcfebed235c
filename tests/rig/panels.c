/* panels: what TMA writes into shared memory and what wgmma reads there, followed byte by byte.
 *
 * Chapter 11d. The operands of three products of attention, as the kernels lay them out and
 * describe them, held against the plain product. Without a GPU it shows what comes out if a
 * descriptor, a stride or the swizzle is wrong. Small whole numbers stand for bfloat16, so that
 * every sum is exact. What wgmma does here was held against an H200: 96 instructions with right and
 * wrong descriptors, and every number was the same.
 */
#include "swizzled_panels.h"
#include <stdio.h>
#include <string.h>

/* A block has three warpgroups of 64 query rows, and tiles of 128 keys. */
enum { QUERIES = 192, KEYS = 128, DIM = 128, GROUP = 64 };

/* ---- The hardware. */

/* 18 bits of an address are a place in shared memory. The second block of a cluster finds its own
 * number above them. */
enum { SHARED = 1 << 18, BLOCK = 1 << 24 };

static unsigned char shared[SHARED];

/* The 128-byte swizzle: bits 4 to 6, the chunk, are XORed with bits 7 to 9, the row. */
static uint32_t swizzled(uint32_t address)
{
    return address ^ (address >> 7 & 7) << 4;
}

static int number_at(uint32_t address)
{
    int16_t number;
    memcpy(&number, &shared[address % SHARED], sizeof number);
    return number;
}

/* One box: 64 columns, from this one on, of so many rows of a matrix of so many columns. */
static void tma_load(uint32_t to, const int16_t *from, int columns, int first, int rows)
{
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < 64; column++) {
            uint32_t address = to + (uint32_t)(128 * row + 2 * column);
            memcpy(&shared[swizzled(address) % SHARED], &from[row * columns + first + column], 2);
        }
}

/* Number k, 0 to 15, of row i of an operand. As it lies, row i is a row of the panel. Transposed,
 * it is a column, perhaps of a later panel, and k is the row. */
static int operand(uint64_t descriptor, bool transposed, int i, int k)
{
    if (descriptor >> 62 != 1)
        return 0; /* operands that are swizzled otherwise, or not at all, are not followed here */
    uint32_t address = (uint32_t)(descriptor & 0x3fff) << 4;
    uint32_t next_panel = (uint32_t)(descriptor >> 16 & 0x3fff) << 4;
    uint32_t next_8_rows = (uint32_t)(descriptor >> 32 & 0x3fff) << 4;
    int row = transposed ? k : i, column = transposed ? i : k;
    address += (uint32_t)(row / 8) * next_8_rows + (uint32_t)(row % 8 * 128 + column % 64 * 2);
    if (transposed)
        address += (uint32_t)(column / 64) * next_panel;
    return number_at(swizzled(address));
}

/* d (64, n) += a (64, 16) b (n, 16)^T; `a_transposed`: a lies as (16, 64), and so for b. */
static void wgmma(int n, int *d, uint64_t a, bool a_transposed, uint64_t b, bool b_transposed)
{
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < n; j++)
            for (int k = 0; k < 16; k++)
                d[i * n + j] += operand(a, a_transposed, i, k) * operand(b, b_transposed, j, k);
}

/* ---- The kernels. */

/* A tile is loaded in a box for each panel. */
static void load(uint32_t to, const int16_t *from, int columns, int rows)
{
    for (int column = 0; column < columns; column += RA_PANEL_COLUMNS)
        tma_load(to + (uint32_t)ra_panel_offset(0, column, rows), from, columns, column, rows);
}

/* s (64, KEYS) = the rows of q from `row` on, times k^T. */
static void scores(int *s, uint32_t q, int row, uint32_t k)
{
    uint64_t a = ra_descriptor(q + (uint32_t)ra_panel_offset(row, 0, QUERIES), 0);
    uint64_t b = ra_descriptor(k, 0);
    for (int c = 0; c < DIM; c += 16)
        wgmma(KEYS, s, ra_descriptor_beyond(a, ra_panel_offset(0, c, QUERIES)), false,
              ra_descriptor_beyond(b, ra_panel_offset(0, c, KEYS)), false);
}

/* o (64, DIM) = p v. p lies as (64, KEYS); in the kernel it is in registers. v lies as (KEYS,
 * DIM). */
static void output(int *o, uint32_t p, uint32_t v)
{
    uint64_t a = ra_descriptor(p, 0), b = ra_descriptor(v, ra_panel_stride(KEYS));
    for (int key = 0; key < KEYS; key += 16)
        wgmma(DIM, o, ra_descriptor_beyond(a, ra_panel_offset(0, key, GROUP)), false,
              ra_descriptor_beyond(b, ra_panel_offset(key, 0, KEYS)), true);
}

/* dq (64, DIM) = ds k, of which ds lies as (KEYS, 64) and k as (KEYS, DIM): both are turned. */
static void gradient(int *dq, uint32_t ds, uint32_t k)
{
    uint64_t a = ra_descriptor(ds, 0), b = ra_descriptor(k, ra_panel_stride(KEYS));
    for (int key = 0; key < KEYS; key += 16)
        wgmma(DIM, dq, ra_descriptor_beyond(a, ra_panel_offset(key, 0, KEYS)), true,
              ra_descriptor_beyond(b, ra_panel_offset(key, 0, KEYS)), true);
}

/* ---- The judge. */

/* Whole numbers of 8 bits, as bfloat16 has them, from dice: so no wrong sum is right by
 * accident. */
static void fill(int16_t *x, int numbers)
{
    static uint64_t dice = 1;
    for (int i = 0; i < numbers; i++) {
        dice = dice * 6364136223846793005 + 1442695040888963407;
        x[i] = (int16_t)((int)(dice >> 56) - 128);
    }
}

/* Holds d (64, n) against a b^T. The steps from one row to the next, and from one k to the next,
 * say how a and b lie. If a number is wrong, draws a sign for each 8 x 8: all right, some wrong,
 * all wrong. */
static int judge(const char *name, int n, const int *d, const int16_t *a, int a_row, int a_k,
                 const int16_t *b, int b_row, int b_k, int length)
{
    int wrong = 0, blocks[8][16] = {{0}};
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < n; j++) {
            int sum = 0;
            for (int k = 0; k < length; k++)
                sum += a[i * a_row + k * a_k] * b[j * b_row + k * b_k];
            blocks[i / 8][j / 8] += d[i * n + j] != sum;
            wrong += d[i * n + j] != sum;
        }
    printf("%-24s %d of %d numbers are wrong\n", name, wrong, 64 * n);
    for (int i = 0; i < 8 && wrong > 0; i++) {
        for (int j = 0; j < n / 8; j++)
            printf(" %c", blocks[i][j] == 0 ? '.' : blocks[i][j] < 64 ? '+' : '#');
        printf("\n");
    }
    return wrong;
}

/* Is every number of a tile where ra_panel_offset says, and found along its row by
 * ra_panel_along? */
static int misplaced(uint32_t tile, const int16_t *x, int columns, int rows)
{
    int wrong = 0;
    for (int row = 0; row < rows; row++)
        for (int column = 0; column < columns; column++) {
            uint32_t place = tile + (uint32_t)ra_panel_offset(row, column, rows);
            uint32_t from = tile + (uint32_t)ra_panel_offset(row, column % 16, rows);
            wrong += number_at(place) != x[row * columns + column] ||
                     ra_panel_along(from, column / 16 * 16, rows) != place;
        }
    return wrong;
}

int main(void)
{
    static int16_t q[QUERIES * DIM], k[KEYS * DIM], v[KEYS * DIM], p[GROUP * KEYS],
        ds[KEYS * GROUP];
    static int s[GROUP * KEYS], o[GROUP * DIM], dq[GROUP * DIM];
    fill(q, QUERIES * DIM);
    fill(k, KEYS * DIM);
    fill(v, KEYS * DIM);
    fill(p, GROUP * KEYS);
    fill(ds, KEYS * GROUP);

    /* One behind the other, each at a multiple of 1,024 bytes. What nobody writes is 0x5555. */
    memset(shared, 0x55, sizeof shared);
    uint32_t at_q = BLOCK, at_k = at_q + sizeof q, at_v = at_k + sizeof k;
    uint32_t at_p = at_v + sizeof v, at_ds = at_p + sizeof p;
    load(at_q, q, DIM, QUERIES);
    load(at_k, k, DIM, KEYS);
    load(at_v, v, DIM, KEYS);
    load(at_p, p, KEYS, GROUP);
    load(at_ds, ds, GROUP, KEYS);
    int wrong = misplaced(at_q, q, DIM, QUERIES) + misplaced(at_ds, ds, GROUP, KEYS);
    printf("%-24s %d of %d numbers are misplaced\n", "q, ds", wrong, QUERIES * DIM + KEYS * GROUP);

    for (int row = 0; row < QUERIES; row += GROUP) {
        char name[40];
        snprintf(name, sizeof name, "s = q k^T, rows %d on", row);
        memset(s, 0, sizeof s);
        scores(s, at_q, row, at_k);
        wrong += judge(name, KEYS, s, q + row * DIM, DIM, 1, k, DIM, 1, DIM);
    }
    output(o, at_p, at_v);
    wrong += judge("o = p v", DIM, o, p, KEYS, 1, v, 1, DIM, KEYS);
    gradient(dq, at_ds, at_k);
    wrong += judge("dq = ds k", DIM, dq, ds, 1, GROUP, k, 1, DIM, KEYS);
    return wrong > 0;
}
