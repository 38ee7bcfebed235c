/* check_problem: build/problem makes what its flags say.
 *
 * All other tests believe their problems: a flag that did nothing would leave them tame data, and
 * all of them would pass. So every flag is seen here in the files, read back with npy. The program
 * is found in the folder that the environment variable BUILD names. The tests run one after the
 * other in a new folder, their current directory.
 */
#define _XOPEN_SOURCE 700 /* nftw */

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "files.h"
#include "patterns.h"

static char program[PATH_MAX];

/* An array that was read back; a mask as the numbers 0 and 1. */
struct array {
    enum npy_type type;
    int dims;
    int64_t shape[NPY_MAX_DIMS], count;
    double *numbers;
};

/* A problem that was read back; mask.numbers is NULL if there is none. */
struct made {
    struct array q, k, v, d_out, mask;
};

/* Runs problem with these flags on `name`; returns its exit code, 128 if it was killed. */
static int run(const char *flags, const char *name)
{
    char command[PATH_MAX + 1000];
    ck_assert_int_lt(
        snprintf(command, sizeof command, "'%s' %s %s >said 2>&1 </dev/null", program, flags, name),
        (int)sizeof command);
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

/* Reads an array into the store, whose contents end with the test's process. */
static struct array load(const char *path)
{
    static double store[1 << 20];
    static bool bools[1 << 16];
    static int64_t used;
    struct npy file;
    if (access(path, F_OK) != 0)
        return (struct array){0};
    ck_assert_msg(npy_open(&file, path), "%s", file.error);
    struct array x = {file.type, file.dims, {0}, npy_elements(&file), store + used};
    memcpy(x.shape, file.shape, sizeof x.shape);
    used += x.count;
    bool is_mask = file.type == NPY_BOOL;
    ck_assert(used <= 1 << 20 && (!is_mask || x.count <= 1 << 16));

    /* Bools can be read as bools alone. */
    struct npy_slice all = {0, 0, 0, 1, file.shape[0]};
    void *out = is_mask ? (void *)bools : x.numbers;
    ck_assert_msg(npy_read(&file, all, is_mask ? NPY_BOOL : NPY_FLOAT64, out), "%s", file.error);
    for (int64_t e = 0; e < x.count && is_mask; e++)
        x.numbers[e] = bools[e];
    npy_close(&file);
    return x;
}

/* Makes a problem with these flags, which must succeed without a word, and reads it back. */
static struct made make(const char *flags)
{
    ck_assert_msg(run(flags, "p") == 0 && system("test ! -s said") == 0, "problem %s", flags);
    return (struct made){load("p/q.npy"), load("p/k.npy"), load("p/v.npy"), load("p/do.npy"),
                         load("p/mask.npy")};
}

/* Element [b, i, h, c] of an array (B, rows, heads, D). */
static double at(struct array x, int64_t b, int64_t i, int64_t h, int64_t c)
{
    return x.numbers[((b * x.shape[1] + i) * x.shape[2] + h) * x.shape[3] + c];
}

/* The share of the elements that two arrays of one shape have in common, place by place. */
static double common(struct array x, struct array y)
{
    double same = 0;
    ck_assert_mem_eq(x.shape, y.shape, sizeof x.shape);
    for (int64_t e = 0; e < x.count; e++)
        same += x.numbers[e] == y.numbers[e];
    return same / (double)x.count;
}

/* The score of query i and key j, for as many heads of k as of q. */
static double score(struct made p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    double sum = 0;
    for (int64_t c = 0; c < p.q.shape[3]; c++)
        sum += at(p.q, b, i, h, c) * at(p.k, b, j, h, c);
    return sum / sqrt((double)p.q.shape[3]);
}

static void check_shape(struct array x, enum npy_type type, int64_t B, int64_t rows, int64_t heads,
                        int64_t D)
{
    ck_assert(x.type == type && x.dims == 4 && x.shape[0] == B && x.shape[1] == rows);
    ck_assert(x.shape[2] == heads && x.shape[3] == D);
}

TEST(shapes_and_types)
{
    struct made p = make("");
    check_shape(p.q, NPY_FLOAT32, 1, 64, 1, 16);
    p = make("--batch 2 --queries 3 --keys 5 --heads 6 --key-heads 2 --dim-head 7 --type float16");
    check_shape(p.q, NPY_FLOAT16, 2, 3, 6, 7);
    check_shape(p.d_out, NPY_FLOAT16, 2, 3, 6, 7);
    check_shape(p.k, NPY_FLOAT16, 2, 5, 2, 7);
    check_shape(p.v, NPY_FLOAT16, 2, 5, 2, 7);

    /* Rows of v and do of another length; q and k do not change, and no number comes twice. */
    struct made other = make("--batch 2 --queries 3 --keys 5 --heads 6 --key-heads 2 "
                             "--dim-head 7 --dim-value 9 --type float16");
    ck_assert(common(p.q, other.q) == 1 && common(p.k, other.k) == 1);
    check_shape(other.d_out, NPY_FLOAT16, 2, 3, 6, 9);
    check_shape(other.v, NPY_FLOAT16, 2, 5, 2, 9);
    for (int64_t e = 9; e < other.v.count; e++)
        ck_assert(other.v.numbers[e] != other.v.numbers[e - 9]);
    ck_assert_int_eq(run("--dim-value 0", "q"), 2);
    ck_assert_int_eq(run("--visible --keys 64 --dim-head 64 --dim-value 5", "q"), 2);
    p = make("--visible --keys 64 --dim-head 5 --dim-value 64");
    ck_assert(at(p.v, 0, 63, 0, 63) == 1 && at(p.v, 0, 63, 0, 62) == 0 &&
              at(p.k, 0, 63, 0, 4) == 0);
}

/* Every array, batch and head has a mean and a scale of its own, and no number follows another. */
TEST(numbers_are_lopsided)
{
    struct made p = make("--batch 2 --queries 1000 --heads 3 --dim-head 10");
    const struct array arrays[] = {p.q, p.k, p.v, p.d_out};
    const double means[] = {0.25, -0.125, 0.5, 0.375};
    for (int n = 0; n < 4 * 6; n++) {
        int64_t a = n / 6, b = n / 3 % 2, h = n % 3;
        double sums[5] = {0}, scale = 0.75 + 0.125 * (double)((3 * b + h) % 5), last = 0;
        for (int64_t e = 0; e < 10000; e++) {
            double x = (at(arrays[a], b, e / 10, h, e % 10) - means[a]) / scale;
            double other = at(arrays[(a + 1) % 4], b, e / 10, h, e % 10) - means[(a + 1) % 4];
            double batch = at(arrays[a], 1 - b, e / 10, h, e % 10) - means[a];
            const double terms[] = {x, x * x - 1, x * x * x * x - 2.9, x * (last + batch),
                                    x * other};
            for (int s = 0; s < 5; s++)
                sums[s] += terms[s];
            last = x;
        }
        /* Where the numbers are as they should be, these sums spread by this much. */
        const double spreads[] = {100, 140, 900, 160, 125};
        for (int s = 0; s < 5; s++)
            ck_assert_msg(fabs(sums[s]) < 5 * spreads[s], "array %d batch %d head %d: sum %d: %g",
                          (int)a, (int)b, (int)h, s, sums[s]);
    }
}

TEST(seeds)
{
    struct made one = make(""), same = make("--seed 1"), other = make("--seed 2");
    ck_assert(common(one.q, same.q) == 1 && common(one.k, same.k) == 1);
    ck_assert(common(one.v, same.v) == 1 && common(one.d_out, same.d_out) == 1);
    ck_assert(common(one.q, other.q) < 0.01 && common(one.k, other.k) < 0.01);
    ck_assert(common(one.v, other.v) < 0.01 && common(one.d_out, other.d_out) < 0.01);

    /* The same bits on every machine. More keys and a mask leave q as it was. */
    ck_assert(one.q.numbers[0] == 0x1.7db8p-2 && one.k.numbers[0] == -0x1.64b3p-1);
    ck_assert(one.v.numbers[0] == 0x1.6e19p-1 && one.d_out.numbers[0] == -0x1.184b8p+0);
    struct made more = make("--keys 100 --mask random");
    ck_assert(common(one.q, more.q) == 1);
    ck_assert(common(more.mask, make("--keys 100 --mask random --seed 2").mask) < 0.9);
}

TEST(score_scale_and_float16)
{
    struct made one = make(""), eight = make("--score-scale 8"), half = make("--type float16");
    struct made less = make("--score-scale -0.25");
    for (int64_t e = 0; e < one.q.count; e++) {
        double x = one.q.numbers[e];
        ck_assert(eight.q.numbers[e] == 8 * x && less.q.numbers[e] == -0.25 * x);
        /* Rounded to 11 bits; below 2^-14 the step stays 2^-24. */
        ck_assert(fabs(half.q.numbers[e] - x) <= fmax(fabs(x) * 0x1p-11, 0x1p-25));
    }
    ck_assert(common(one.k, eight.k) == 1 && common(one.v, eight.v) == 1);
    ck_assert(common(one.d_out, eight.d_out) == 1 && common(one.q, half.q) < 0.5);
}

TEST(scores)
{
    struct made plain = make("--batch 2 --heads 2");
    struct made p = make("--batch 2 --heads 2 --scores equal");
    for (int64_t e = 0; e < p.k.count; e++)
        ck_assert(p.k.numbers[e] == at(plain.k, e / 2048, 0, e / 16 % 2, e % 16));
    ck_assert(common(p.q, plain.q) == 1 && common(p.v, plain.v) == 1);

    /* The dominant key is one for all queries of a head, and another for another head. */
    p = make("--batch 2 --heads 2 --scores dominant");
    int64_t top[4] = {0};
    for (int64_t n = 0; n < 4; n++) {
        for (int64_t j = 1; j < 64; j++)
            if (score(p, n / 2, n % 2, 0, j) > score(p, n / 2, n % 2, 0, top[n]))
                top[n] = j;
        for (int64_t i = 0; i < 64; i++)
            for (int64_t j = 0; j < 64; j++)
                ck_assert(j == top[n] ||
                          score(p, n / 2, n % 2, i, j) + 10 < score(p, n / 2, n % 2, i, top[n]));
    }
    ck_assert(top[0] != top[1] && top[0] != top[2] && top[1] != top[2] && top[1] != top[3]);

    /* Every key is more, or less, than the one before it, by enough to count. */
    struct made up = make("--scores growing"), down = make("--scores shrinking");
    for (int64_t i = 0; i < 64; i++)
        for (int64_t j = 1; j < 64; j++) {
            ck_assert(score(up, 0, 0, i, j) > score(up, 0, 0, i, j - 1) + 0.25);
            ck_assert(score(down, 0, 0, i, j) < score(down, 0, 0, i, j - 1) - 0.25);
        }
}

TEST(visible_and_group_values)
{
    struct made p = make("--visible --queries 5 --keys 8 --dim-head 8 --heads 2 --batch 2");
    for (int64_t e = 0; e < p.q.count; e++)
        ck_assert(p.q.numbers[e] == 0);
    for (int64_t e = 0; e < p.k.count; e++)
        ck_assert(p.k.numbers[e] == 0 && p.v.numbers[e] == (e % 8 == e / 16 % 8));
    p = make("--group-values --heads 6 --key-heads 3");
    for (int64_t e = 0; e < p.v.count; e++)
        ck_assert(p.v.numbers[e] == (double)(1 + e / 16 % 3));
}

/* 3 batches of 8 keys. */
static const char *const masks[][4] = {{"all-but-batch-0", "00000000", "11111111", "11111111"},
                                       {"none-visible", "00000000", "00000000", "00000000"},
                                       {"last-only", "00000001", "00000001", "00000001"},
                                       {"first-hidden", "00001111", "00001111", "00001111"},
                                       {"tail", "11111100", "11110000", "11000000"}};

TEST(mask_kinds)
{
    char flags[100];
    for (int m = 0; m < 5; m++) {
        snprintf(flags, sizeof flags, "--batch 3 --keys 8 --mask %s", masks[m][0]);
        struct array mask = make(flags).mask;
        ck_assert(mask.type == NPY_BOOL && mask.dims == 2);
        ck_assert(mask.shape[0] == 3 && mask.shape[1] == 8);
        for (int e = 0; e < 24; e++)
            ck_assert_msg(mask.numbers[e] == masks[m][1 + e / 8][e % 8] - '0', "%s: %d", flags, e);
    }
    ck_assert(make("--keys 1 --mask first-hidden").mask.numbers[0] == 0);

    /* Random: about half, in either batch, and not twice the same. */
    struct array mask = make("--batch 2 --keys 1000 --mask random").mask;
    double seen[2] = {0}, same = 0;
    for (int e = 0; e < 2000; e++) {
        seen[e / 1000] += mask.numbers[e];
        same += mask.numbers[e] == mask.numbers[(e + 1000) % 2000] ? 0.5 : 0;
    }
    ck_assert(fabs(seen[0] - 500) < 80 && fabs(seen[1] - 500) < 80 && fabs(same - 500) < 80);

    /* A mask does not outlive its problem. */
    ck_assert_ptr_null(make("--mask none").mask.numbers);
}

TEST(one_hot)
{
    /* One 1 in each batch and head, and not everywhere in the same place. */
    struct array d_out = make("--gradient one-hot --batch 4 --heads 3").d_out;
    int64_t ones[12] = {0}, places[12] = {0}, others = 0;
    for (int64_t e = 0; e < d_out.count; e++)
        if (d_out.numbers[e] != 0) {
            int64_t head = e / 3072 * 3 + e / 16 % 3;
            ck_assert(d_out.numbers[e] == 1 && ++ones[head] == 1);
            places[head] = e / 48 % 64 * 16 + e % 16;
        }
    for (int head = 0; head < 12; head++)
        others += ones[head] == 1 && places[head] != places[0];
    ck_assert_int_gt(others, 8);
}

TEST(repeated_heads)
{
    struct made few = make("--batch 2 --heads 6 --key-heads 2");
    for (int map = 0; map < 2; map++) {
        struct made all = make(map ? "--batch 2 --heads 6 --key-heads 2 --repeat-heads interleaved"
                                   : "--batch 2 --heads 6 --key-heads 2 --repeat-heads grouped");
        check_shape(all.k, NPY_FLOAT32, 2, 64, 6, 16);
        ck_assert(common(few.q, all.q) == 1 && common(few.d_out, all.d_out) == 1);
        for (int64_t e = 0; e < all.k.count; e++) {
            int64_t b = e / (64 * 96), j = e / 96 % 64, h = e / 16 % 6, c = e % 16;
            ck_assert(all.k.numbers[e] == at(few.k, b, j, map ? h % 2 : h / 3, c));
            ck_assert(all.v.numbers[e] == at(few.v, b, j, map ? h % 2 : h / 3, c));
        }
    }
}

TEST(text)
{
    /* Two texts that differ at byte 25 alone. Batches are runs of 20 bytes. */
    struct made p[2];
    for (int t = 0; t < 2; t++) {
        write_text("text", t == 0 ? "aaaabbbbccccddddeeeeffffgggghhhhiiiijjjj"
                                  : "aaaabbbbccccddddeeeeffffg?gghhhhiiiijjjj");
        p[t] = make("--text text --batch 2 --queries 20 --heads 2");
    }
    check_shape(p[0].k, NPY_FLOAT32, 2, 20, 2, 16);
    for (int64_t e = 0; e < p[0].q.count; e++) {
        bool equal = e / 32 != 25;
        ck_assert((p[0].q.numbers[e] == p[1].q.numbers[e]) == equal);
        ck_assert((p[0].k.numbers[e] == p[1].k.numbers[e]) == equal);
        ck_assert((p[0].v.numbers[e] == p[1].v.numbers[e]) == equal);
    }

    /* Positions are mixed in; q, k and v are projected each in its own way; do is the usual one. */
    ck_assert(at(p[0].q, 0, 0, 0, 0) != at(p[0].q, 0, 1, 0, 0));
    ck_assert(common(p[0].q, p[0].k) < 0.01 && common(p[0].k, p[0].v) < 0.01);
    ck_assert(common(p[0].d_out, make("--batch 2 --queries 20 --heads 2").d_out) == 1);
    double squares = 0;
    for (int64_t e = 0; e < 1600; e++)
        squares += pow(score(p[0], e / 800, e / 400 % 2, e / 20 % 20, e % 20), 2) / 1600;
    ck_assert_msg(squares > 0.5 && squares < 9, "scores spread by %g", sqrt(squares));
    ck_assert_int_eq(run("--text text --queries 100", "none"), 1);
    ck_assert_int_eq(run("--text no-such-text", "none"), 1);
}

/* How many of these slices let query i see key j. */
static int seen(const struct ra_slice *slices, int64_t count, int64_t i, int64_t j)
{
    int times = 0;
    for (const struct ra_slice *s = slices; s < slices + count; s++)
        times +=
            s->q0 <= i && i < s->q1 && s->k0 <= j && j < s->k1 && s->lo <= j - i && j - i <= s->hi;
    return times;
}

/* Reads slices.npy, and returns how many there are. */
static int64_t load_slices(struct ra_slice slices[PATTERN_SLICES])
{
    struct npy file;
    ck_assert_msg(npy_open(&file, "p/slices.npy"), "%s", file.error);
    ck_assert(file.type == NPY_INT64 && file.dims == 2 && file.shape[1] == 6);
    int64_t count = file.shape[0];
    ck_assert_int_le(count, PATTERN_SLICES);
    ck_assert(npy_read(&file, (struct npy_slice){0, 0, 0, 1, count}, NPY_INT64, slices));
    npy_close(&file);
    return count;
}

/* Slices lie within the sequences, and no pair is in two. Seeds differ; and some pairs are seen and
 * some are not, as the pattern has it. */
TEST(slices)
{
    for (int pattern = 0; pattern < PATTERNS; pattern++) {
        struct ra_slice all[2][PATTERN_SLICES];
        int64_t count[2], pairs = 0, below = 0, above = 0;
        int64_t keys = pattern < PAIRS_OF_DOCUMENTS ? 40 : 29;
        for (int seed = 0; seed < 2; seed++) {
            char flags[200];
            snprintf(flags, sizeof flags, "--queries 40 --keys %d --seed %d --slices %s", (int)keys,
                     seed + 1, pattern_words[pattern]);
            make(flags);
            count[seed] = load_slices(all[seed]);
            for (int64_t i = 0; i < 40; i++)
                for (int64_t j = 0; j < keys; j++) {
                    int times = seen(all[seed], count[seed], i, j);
                    ck_assert_int_le(times, 1);
                    pairs += times;
                    below += times && j < i;
                    above += times && j > i;
                }
            for (int64_t s = 0; s < count[seed]; s++)
                ck_assert(all[seed][s].q0 >= 0 && all[seed][s].q1 <= 40 && all[seed][s].k0 >= 0 &&
                          all[seed][s].k1 <= keys);
        }
        bool both_sides = pattern == DOCUMENTS || pattern == PREFIXES ||
                          pattern == TWO_SIDED_WINDOW || pattern == RANDOM_SLICES ||
                          pattern == PAIRS_OF_DOCUMENTS;
        ck_assert_int_eq(pairs > 0, pattern != NO_SLICES);
        ck_assert_int_eq(below > 0, pattern != NO_SLICES);
        ck_assert_msg((above > 0) == both_sides, "%s", pattern_words[pattern]);
        ck_assert(pairs < 2 * 40 * keys);
        ck_assert(pattern == NO_SLICES || count[0] != count[1] ||
                  memcmp(all[0], all[1], (size_t)count[0] * sizeof **all) != 0);
    }

    /* What takes part beside the keys. An old mask and an old sink do not outlive their problem. */
    make("--heads 3 --batch 2 --extras --slices random");
    struct array sink = load("p/sink.npy"), slopes = load("p/slopes.npy"),
                 d_lse = load("p/d_lse.npy");
    ck_assert(sink.dims == 1 && sink.count == 3 && slopes.dims == 1 && slopes.count == 3);
    ck_assert(d_lse.dims == 3 && d_lse.count == 2 * 3 * 64 && d_lse.shape[1] == 3);
    ck_assert(sink.numbers[0] != sink.numbers[1] && slopes.numbers[0] != slopes.numbers[2]);
    make("");
    ck_assert_int_ne(access("p/slices.npy", F_OK), 0);
    ck_assert_int_ne(access("p/sink.npy", F_OK), 0);
}

TEST(misuse)
{
    char wrong[] = "--batch 0|--queries 0|--keys -1|--heads 1.5|--dim-head x|--seed -1|--mask some|"
                   "--score-scale nan|--score-scale ''|--type float64|--scores wild|"
                   "--gradient none|--slices some|--slices chunks --keys 3|--repeat-heads "
                   "all|--heads 6 --key-heads 4|--key-heads 2|"
                   "--visible|--visible --dim-head 64 --scores equal|--text x --keys 3|"
                   "--text x --visible --dim-head 64|--text x --scores equal|--no-such-flag|"
                   "--dim 4|--dtype float16|--dim-head 9999999999999999|--batch|too many";
    for (char *flags = strtok(wrong, "|"); flags; flags = strtok(NULL, "|"))
        ck_assert_msg(run(flags, "none") == 2, "not refused: %s", flags);
    ck_assert_int_eq(run("--help", "none"), 0);
    ck_assert_int_ne(access("none", F_OK), 0);

    /* Numbers too large for their type: nothing is left of the problem, or of the one before. */
    make("--mask random");
    ck_assert_int_eq(run("--type float16 --score-scale 1e6", "p"), 1);
    ck_assert_int_eq(system("rmdir p"), 0);
}

static void enter_folder(void)
{
    ck_assert_int_eq(chdir(folder), 0);
}

int main(void)
{
    find_program(program, "problem");
    suite_around(enter_folder, NULL);
    return suite_main_in_folder("problem", 60);
}
