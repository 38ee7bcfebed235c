/* check_vector: what the tile on vectors is made of, for each instruction set of this processor.
 * The tile itself is check_tile's, `check-tile avx2` and its like.
 */
#define _DEFAULT_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "numbers.h"
#include "ra_vector.h"
#include "suite.h"

static const char *const names[] = {"amx", "avx512", "avx2", "sse2", "neon"};
enum { SETS = sizeof names / sizeof names[0] };

/* The set of this number, or NULL. */
static const struct ra_vector *set_of(int number)
{
    return ra_vector_find(names[number]);
}

/* ---- exp. */

/* 2^24 numbers in even steps, over all whose exp is a normal number below 2^127.5: the relative
 * error is below 1.2e-7, and that of one rounding 0.6e-7. */
TESTS(exp_everywhere, 0, SETS)
{
    enum { MANY = 4096 };
    static float x[MANY], y[MANY];
    const struct ra_vector *set = set_of(_i);
    double worst = 0, first = -87.3, last = 88.3;
    for (int block = 0; set && block < 4096; block++) {
        for (int e = 0; e < MANY; e++)
            x[e] = (float)(first + (last - first) * (block * (double)MANY + e) / (4096.0 * MANY));
        set->exp(MANY, x, y);
        for (int e = 0; e < MANY; e++) {
            double want = exp((double)x[e]), error = fabs(y[e] - want) / want;
            worst = error > worst || isnan(error) ? error : worst;
        }
    }
    if (set)
        printf("%s: exp is off by %.2g at most\n", names[_i], worst);
    ck_assert_msg(worst < 1.2e-7, "%s: off by %g", names[_i], worst);
}

/* 1 at 0, in any lane; 0 from where results are no normal numbers; infinite where they are too
 * large; every NaN stays one. Any count, and nothing behind it is written. */
TESTS(exp_at_the_ends, 0, SETS)
{
    const struct ra_vector *set = set_of(_i);
    float x[40], y[41];
    for (int count = 0; set && count <= 40; count++) {
        static const struct {
            float x, least, most;
        } cases[] = {{0, 1, 1},
                     {-0.0f, 1, 1},
                     {-87.4f, 0, 0},
                     {-103, 0, 0},
                     {-1e30f, 0, 0},
                     {-INFINITY, 0, 0},
                     {88.8f, INFINITY, INFINITY},
                     {1e30f, INFINITY, INFINITY},
                     {INFINITY, INFINITY, INFINITY},
                     {-1e-30f, 1, 1},
                     {88.3f, 2.2e38f, 2.3e38f}};
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            for (int e = 0; e < count; e++)
                x[e] = e % 3 ? 1 : cases[c].x;
            for (int e = 0; e < 41; e++)
                y[e] = -7;
            set->exp(count, x, y);
            for (int e = 0; e < count; e += 3)
                ck_assert_msg(y[e] >= cases[c].least && y[e] <= cases[c].most, "%s: exp(%g) = %g",
                              names[_i], (double)x[e], (double)y[e]);
            for (int e = count; e < 41; e++)
                ck_assert(y[e] == -7);
        }
    }
    static const uint32_t nans[] = {0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7FBFFFFF};
    for (int n = 0; set && n < 5; n++) {
        memcpy(x, &nans[n], sizeof *x);
        set->exp(1, x, y);
        ck_assert_msg(isnan(y[0]), "%s: exp(NaN) = %g", names[_i], (double)y[0]);
    }
}

/* ---- Numbers of 16 bits. */

/* All there are, as the library's own converter has them; any count, and nothing behind it. */
TESTS(numbers_of_16_bits, 0, SETS)
{
    static uint16_t in[65536];
    static float out[65537];
    const struct ra_vector *set = set_of(_i);
    for (int e = 0; e < 65536; e++)
        in[e] = (uint16_t)e;
    for (int type = RA_FLOAT16; set && type <= RA_BFLOAT16; type++) {
        set->load((enum ra_type)type, 65536, in, out);
        for (int e = 0; e < 65536; e++) {
            float want = (float)number_widened((enum ra_type)type, in[e]);
            ck_assert_msg(isnan(want) ? isnan(out[e]) : memcmp(&out[e], &want, sizeof want) == 0,
                          "%s, type %d: %04x is %g", names[_i], type, e, (double)out[e]);
        }
        for (int count = 0; count < 40; count++) {
            for (int e = 0; e < 41; e++)
                out[e] = -7;
            set->load((enum ra_type)type, count, in + 1000, out);
            for (int e = 0; e < 41; e++)
                ck_assert((out[e] == -7) == (e >= count));
        }
    }
}

/* ---- Memory. */

/* `count` floats that end where no memory is. */
static float *at_an_end(int64_t count)
{
    int64_t page = sysconf(_SC_PAGESIZE), bytes = (count * 4 + page - 1) / page * page;
    char *place = mmap(NULL, (size_t)(bytes + page), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(place != MAP_FAILED && mprotect(place + bytes, (size_t)page, PROT_NONE) == 0);
    float *numbers = (float *)(place + bytes) - count;
    for (int64_t e = 0; e < count; e++)
        numbers[e] = 0.01f * (float)(e % 37 - 18);
    return numbers;
}

/* Rows of any length, of keys and of values, on vectors, on plain tiles and on those of AMX, the
 * first set: nothing is read or
 * written past an array's end, nor past the workspace. */
TESTS(ends_of_arrays, 0, SETS + 2)
{
    static const int64_t lengths[] = {1, 2, 3, 8, 15, 16, 17, 33, 64, 65, 128, 257};
    static const int64_t rows[][2] = {{1, 1}, {7, 3}, {48, 96}, {49, 97}, {193, 200}};
    static const struct ra_vector plain = {
        .name = "plain",
        .forward = ra_tile_forward,
        .begin_backward = ra_tile_begin_backward,
        .backward = ra_tile_backward,
    };
    const struct ra_vector *set = _i == SETS ? &plain : set_of(_i % (SETS + 1));
    bool narrow = _i > SETS;
    if (narrow && set)
        set = set->narrow;
    for (int d = 0; set && d < 12; d++)
        for (int r = 0; r < 5; r++) {
            int64_t D = lengths[d], n = rows[r][0], m = rows[r][1];
            int64_t D_v = lengths[(d * 5 + r) % 12];
            struct ra_dims dims = {D, D_v};
            struct ra_queries queries = {.rows = n,
                                         .stride = {D, D_v, D_v, D, ra_dims_most(dims)},
                                         .q = at_an_end(n * D),
                                         .o = at_an_end(n * D_v),
                                         .max = at_an_end(n),
                                         .sum = (double *)at_an_end(2 * n),
                                         .comp = at_an_end(n * ra_dims_most(dims)),
                                         .lse = at_an_end(n),
                                         .d_out = at_an_end(n * D_v),
                                         .delta = at_an_end(n),
                                         .dq = at_an_end(n * D)};
            struct ra_keys keys = {.rows = m,
                                   .stride = {D, D_v, D, D_v, D, D_v},
                                   .k = at_an_end(m * D),
                                   .v = at_an_end(m * D_v),
                                   .dk = at_an_end(m * D),
                                   .dv = at_an_end(m * D_v),
                                   .dk_comp = at_an_end(m * D),
                                   .dv_comp = at_an_end(m * D_v)};
            float *workspace = at_an_end((set == &plain ? ra_tile_workspace
                                          : narrow      ? ra_vector_narrow_workspace
                                                        : ra_vector_workspace)(n, m, dims));
            struct ra_band bands[] = {RA_ALL_KEYS, {-3, 1}, {-RA_BAND_FAR, m - n}};
            for (int band = 0; band < 3; band++) {
                ra_tile_begin(dims, &queries);
                set->forward(dims, (struct ra_score){.scale = 0.5f, .softcap = band == 1 ? 2 : 0},
                             &queries, &keys, bands[band], workspace);
                ra_tile_finish(dims, &queries);
                set->begin_backward(dims, &queries);
                set->backward(dims, (struct ra_score){.scale = 0.5f, .softcap = band == 1 ? 2 : 0},
                              &queries, &keys, bands[band], workspace);
            }
        }
}

/* ---- The choice. */

TEST(the_choice)
{
    const struct ra_vector *best = ra_vector_find(NULL);
    int found = 0;
    for (int s = 0; s < SETS; s++) {
        const struct ra_vector *set = set_of(s);
        if (!set) {
            printf("skipped %s: this processor does not have it\n", names[s]);
            continue;
        }
        ck_assert_str_eq(set->name, names[s]);
        ck_assert(found > 0 || set == best); /* the best one stands first */
        found++;
    }
    ck_assert((found > 0) == (best != NULL));
    ck_assert_ptr_null(ra_vector_find("AVX2"));
    ck_assert_ptr_null(ra_vector_find(""));
}

int main(void)
{
    return suite_main("vector", 60);
}
