/* check_hiding: what the forwards for Hopper hide, without a GPU: compiled as C++ for the
 * processor, where the few words of CUDA that this code needs are defined below, one thread after
 * the other.
 *
 * hopper_task_of says which tiles of keys a warpgroup sees, and which of these whole; is_unmasked
 * and hide set the other scores to -inf; zero_nonfinite_16_keys takes out of the values what is not
 * finite. Both are compared with the definition, number by number.
 *
 *   sh tests/hiding
 */
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include <cuda.h>
#include <cuda_runtime_api.h>

/* ---- CUDA, of one thread. All threads of a warp have the same to say, but for the votes of
 * zero_nonfinite_16_keys: these are collected in a first pass over the threads, and told in a
 * second one. */

static uint3 threadIdx, blockIdx;
static uint32_t votes;
static bool are_collected;

static uint32_t __ballot_sync(unsigned, bool x)
{
    votes |= are_collected ? 0 : (uint32_t)x << threadIdx.x % 32;
    return are_collected ? votes : 0;
}

static float __int_as_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static int __float_as_int(float x)
{
    int bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void atomicMax(int *at, int x)
{
    *at = x > *at ? x : *at;
}

#define __uint_as_float(x) __int_as_float(x)
#define __shfl_sync(all, x, lane) (x)
#define __shfl_xor_sync(all, x, lanes) (x)
#define __all_sync(all, x) (x)
#define __any_sync(all, x) (x)
#define __syncthreads_or(x) (x)
#define __syncthreads()
#define __syncwarp()
#define __fmul_rn(x, y) ((x) * (y))
#define __fmaf_rn(x, y, z) fmaf(x, y, z)
#define __fadd_rn(x, y) ((x) + (y))
#define __fsub_rn(x, y) ((x) - (y))
#define __fdividef(x, y) ((x) / (y))
#define __cvta_generic_to_shared(x) (size_t)(x)
#undef __cluster_dims__
#undef __launch_bounds__
#define __cluster_dims__(blocks)
#define __launch_bounds__(threads, blocks)
using std::isnan;
using std::max;
using std::min;

#include "hopper_roles.h"

/* bfloat16, of which the sum of nothing is not an instruction of the GPU. */
struct bfloat16 : ra_bfloat16 {
    static uint32_t detect_nonfinite(uint32_t sum, uint32_t x)
    {
        for (int shift = 0; shift < 32; shift += 16)
            if ((x >> shift & 0x7f80) == 0x7f80)
                sum |= 0x7fffu << shift;
        return sum;
    }
};

/* ---- Judging. */

static int passed, failed;
static long wrong;

template <class... Words> static void is_wrong(const char *format, Words... words)
{
    if (wrong++ < 3)
        printf(format, words...);
}

static void verdict(const char *name, int dim)
{
    printf("%s  %s, D = %d: %ld wrong\n", wrong ? "FAIL" : "ok  ", name, dim, wrong);
    (wrong ? failed : passed)++;
    wrong = 0;
}

/* ---- Scores. */

/* The first row of the step that row i is on. */
static int64_t step_of(int64_t i, int rows)
{
    return rows > 0 ? i - i % rows : i;
}

/* One thread, with its two rows of its warpgroup, and one tile of keys, the first of which is
 * number b0. */
template <class Shape>
static void check_thread(const struct hopper_forward &f, const struct hopper_task &task, int number,
                         int64_t b0, const uint32_t allowed[Shape::Words], int thread)
{
    threadIdx.x = 128 + thread;
    int group = thread / 128, row = row_of(), column = 2 * (thread % 4);
    struct tiles own = task.of[group];
    bool is_own = number >= own.first && number < own.end;
    typename Shape::Scores s = {};
    struct carry<Shape> carry;
    begin(carry);
    if (is_own)
        hide<Shape>(s, carry, f, task, number,
                    is_unmasked<Shape>(f, unmasked_for_all(task), number, allowed), row, allowed,
                    NULL);
    for (int r = 0; r < 2; r++) {
        int64_t i = task.rows[group] + row % 64 + 8 * r;
        bool any = false;
        for (int c = 0; c < Shape::Keys && i < f.kernel.queries; c++) {
            int64_t j = b0 + c;
            bool is_there = j < f.kernel.keys && allowed[c / 32] >> c % 32 & 1;
            bool sees = is_there && j - step_of(i, f.kernel.band_step.lo) >= f.kernel.band.lo &&
                        j - step_of(i, f.kernel.band_step.hi) <= f.kernel.band.hi;
            any = any || sees;
            if (c % 8 / 2 * 2 == column && sees != (is_own && s[0][c / 8][2 * r + c % 2] == 0))
                is_wrong("row %ld, key %ld: %s, band from %ld to %ld, steps of %d and %d\n",
                         (long)i, (long)j, sees ? "hidden" : "seen", (long)f.kernel.band.lo,
                         (long)f.kernel.band.hi, f.kernel.band_step.lo, f.kernel.band_step.hi);
        }

        /* A row is noted if it sees a key of this tile, and of no other. */
        bool noted = carry.most[0][r] >= RA_LOWEST_SCORE;
        if (i < f.kernel.queries && noted != any)
            is_wrong("row %ld: sees %s keys from %ld on\n", (long)i, noted ? "" : "no", (long)b0);
    }
}

/* A whole launch, of n queries and m keys, of which a mask, if there is one, hides a few. */
template <class Shape>
static void check_band(int n, int m, int64_t lo, int64_t hi, bool has_mask,
                       struct ra_band_step step = {})
{
    static bool mask[1024];
    struct hopper_forward f = {};
    f.kernel.batch = f.kernel.heads = f.kernel.key_heads = 1;
    f.kernel.queries = n;
    f.kernel.keys = m;
    f.kernel.band = {lo, hi};
    f.kernel.band_step = step;
    f.kernel.mask.data = has_mask ? mask : NULL;
    f.group = f.sets = 1;
    f.tiles = (n + Shape::Rows - 1) / Shape::Rows;
    for (int j = 0; j < m; j++)
        mask[j] = !has_mask || rand() % 64 != 0;
    int owners[1024] = {};
    for (int block = 0; block < f.tiles * Shape::Cluster; block++) {
        struct hopper_task task =
            hopper_task_of<Shape>(f, block / Shape::Cluster, block % Shape::Cluster, 7, 3);
        for (int i = 0; i < 64 * Shape::Groups; i++)
            if (task.rows[i / 64] + i % 64 < n) {
                int64_t row = task.rows[i / 64] + i % 64,
                        end = task.first + task.count * Shape::Keys;
                int64_t first = std::max<int64_t>(0, step_of(row, step.lo) + lo);
                int64_t last = std::min<int64_t>(m - 1, step_of(row, step.hi) + hi);
                owners[row]++;
                if (first <= last && (first < task.first || last >= end))
                    is_wrong("row %ld sees keys %ld to %ld, the block has %ld to %ld\n", (long)row,
                             (long)first, (long)last, (long)task.first, (long)end - 1);
            }
        for (int number = task.number; number < task.number + task.count; number++) {
            int64_t b0 = task.first + (int64_t)(number - task.number) * Shape::Keys;
            /* The last word has bits of the next tile's keys, too. */
            uint32_t allowed[Shape::Words] = {};
            for (int c = 0; c < 32 * Shape::Words && b0 + c < m; c++)
                allowed[c / 32] |= (uint32_t)mask[b0 + c] << c % 32;
            for (int thread = 0; thread < Shape::Threads; thread++)
                check_thread<Shape>(f, task, number, b0, allowed, thread);
        }
    }
    for (int i = 0; i < n; i++)
        if (owners[i] != 1)
            is_wrong("row %d of %d is computed %d times\n", i, n, owners[i]);
}

/* Bands of all kinds, also without end, and with steps. */
template <class Shape> static void check_bands(void)
{
    const int64_t far = (int64_t)1 << 40;
    for (int64_t lo = -450; lo <= 450; lo += 7) {
        check_band<Shape>(260, 400, -far, lo, false);
        check_band<Shape>(260, 400, lo, far, false);
        check_band<Shape>(260, 400, lo, lo + 130, false);
    }
    for (int problem = 0; problem < 200; problem++) {
        int n = 1 + rand() % 700, m = 1 + rand() % 900, step = problem < 100 ? 0 : 2 + rand() % 100;
        int64_t lo = rand() % 3 ? -far : rand() % 900 - 600,
                hi = rand() % 2 ? 0 : rand() % 900 - 300;
        check_band<Shape>(n, m, lo < hi ? lo : hi, lo < hi ? hi : lo, problem % 2,
                          {problem % 3 == 0 ? 0 : step, problem % 3 == 1 ? 0 : step});
    }
    verdict(Shape::Cluster > 1 ? "hidden scores of a pair" : "hidden scores", Shape::Dim);
}

/* ---- Values. */

/* Random numbers, some keys of which have a number that is not finite, somewhere. */
template <class Shape> static void check_cleaning(void)
{
    static const uint16_t odd[] = {0x7f80, 0xff80, 0x7fc0, 0xffff, 0x7f81};
    static struct roles_memory<Shape> shared;
    static uint16_t value[Shape::Keys][Shape::Dim_value];
    auto at = [](int key, int c) -> uint16_t & {
        return *(uint16_t *)&shared.v[1][ra_panel_offset(key, c, Shape::Keys)];
    };
    for (int round = 0; round < 100; round++) {
        bool is_odd[Shape::Keys] = {};
        for (int key = 0; key < Shape::Keys; key++) {
            for (int c = 0; c < Shape::Dim_value; c++)
                value[key][c] = (uint16_t)(rand() % 0x7f80 | rand() % 2 << 15);
            if (round > 0 && rand() % 8 == 0) {
                value[key][rand() % Shape::Dim_value] = odd[rand() % 5];
                is_odd[key] = true;
            }
            for (int c = 0; c < Shape::Dim_value; c++)
                at(key, c) = value[key][c];
        }
        memset(shared.nonfinite, 0xa5, sizeof shared.nonfinite);
        for (int part = 0; part < Shape::Keys / 16; part++) {
            votes = 0;
            for (int pass = 0; pass < 2; pass++)
                for (int lane = 0; lane < 32; lane++) {
                    are_collected = pass == 1;
                    threadIdx.x = 32 + lane;
                    zero_nonfinite_16_keys<Shape>(shared, 1, part);
                }
        }
        for (int key = 0; key < Shape::Keys; key++) {
            if ((shared.nonfinite[1][key / 16] >> key % 16 & 1) != is_odd[key])
                is_wrong("key %d has %s bit\n", key, is_odd[key] ? "no" : "a");
            for (int c = 0; c < Shape::Dim_value; c++)
                if (at(key, c) != value[key][c] && !(is_odd[key] && at(key, c) == 0))
                    is_wrong("key %d, number %d: %04x became %04x\n", key, c, value[key][c],
                             at(key, c));
                else if ((at(key, c) & 0x7f80) == 0x7f80)
                    is_wrong("key %d, number %d is still %04x\n", key, c, at(key, c));
        }
    }
    verdict("nonfinite values", Shape::Dim);
}

template <class Widths> static void check(void)
{
    typedef struct shape_of<bfloat16, Widths> Shape;
    check_bands<Shape>();
    check_bands<struct hopper_tile<bfloat16, Widths, Shape::Keys, Shape::Groups, 2>>();
    check_cleaning<Shape>();
}

int main(void)
{
    srand(1);
    check<widths<64>>();
    check<widths<128>>();
    check<widths<192, 128>>();
    check<widths<256>>();

    /* Where tiles overlap: k07. */
    check_bands<struct hopper_tile<bfloat16, widths<64>, 128, 3, 1, false, false, true>>();
    check_bands<struct hopper_tile<bfloat16, widths<192, 128>, 128, 2, 1, false, false, true>>();
    check_bands<struct hopper_tile<bfloat16, widths<256>, 80, 2, 1, false, false, true>>();
    check_bands<struct hopper_tile<bfloat16, widths<256>, 80, 2, 2, false, false, true>>();
    check_cleaning<struct hopper_tile<bfloat16, widths<256>, 80, 2>>();
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}
