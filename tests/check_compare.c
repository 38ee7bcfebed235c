/* check_compare: build/compare, the judge of everything else, judged itself.
 *
 * Every test makes a folder `want`, a folder `got` that differs from it in one known way, runs the
 * program, and asserts its exit status and what it says. NaN comes first: checkers of this kind are
 * known to pass outputs that are nan throughout.
 */
#define _XOPEN_SOURCE 700 /* nftw */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"

enum { O, LSE, DQ, DK, DV, ARRAYS };
static const char *const names[ARRAYS] = {"o", "lse", "dq", "dk", "dv"};

/* One array as the tests see it: numbers to tamper with, then to save. */
struct array {
    enum npy_type type;
    int dims;
    int64_t shape[4];
    double *values;
};

static char program[PATH_MAX];
static struct outcome ran;       /* of the last run */
static struct array got[ARRAYS]; /* equal to want at the start of each test */

static int64_t count_of(const struct array *array)
{
    int64_t count = 1;
    for (int axis = 0; axis < array->dims; axis++)
        count *= array->shape[axis];
    return count;
}

/* Makes an array of asymmetric numbers, none 0, that differ between arrays and elements. The
 * odd multiples of 1/512 are exact in float16 too. */
static struct array make(int seed, enum npy_type type, int dims, const int64_t *shape)
{
    struct array array = {.type = type, .dims = dims};
    memcpy(array.shape, shape, (size_t)dims * sizeof *shape);
    int64_t count = count_of(&array);
    array.values = malloc((size_t)(count + 1) * sizeof(double)); /* + 1: malloc(0) may be NULL */
    ck_assert_ptr_nonnull(array.values);
    for (int64_t i = 0; i < count; i++) {
        int64_t mixed = (i * 7919 + seed * 104729 + i / 5 * 31) % 509;
        array.values[i] = (double)(mixed - 254) / 256 + 1.0 / 512;
    }
    return array;
}

static void save(const struct array *array, const char *in, const char *name)
{
    write_array(path_of("%s/%s.npy", in, name), array->type, array->dims, array->shape, NPY_FLOAT64,
                array->values);
}

/* Saves one of `got` into a folder. */
static void put(int which, const char *in)
{
    save(&got[which], in, names[which]);
}

/* Saves all of `got` into a folder. */
static void save_all(const char *in)
{
    for (int i = 0; i < ARRAYS; i++)
        put(i, in);
}

/* Replaces `got` and the files of want by arrays of these sizes. */
static void resize(int64_t B, int64_t N, int64_t M, int64_t H, int64_t G, int64_t D)
{
    const int64_t queries[] = {B, N, H, D}, keys[] = {B, M, G, D}, rows[] = {B, H, N};
    for (int i = 0; i < ARRAYS; i++) {
        free(got[i].values);
        got[i] = make(i, NPY_FLOAT64, i == LSE ? 3 : 4, i == LSE ? rows : i >= DK ? keys : queries);
    }
    save_all("want");
}

/* Runs before each test, in its own process: want as the tests expect it, got equal to it. */
static void start(void)
{
    const char *const folders[] = {"want", "got", "other"};
    for (int i = 0; i < 3; i++) {
        scratch_remove(path_of("%s", folders[i]));
        ck_assert_int_eq(mkdir(path_of("%s", folders[i]), 0700), 0);
    }
    resize(2, 7, 5, 4, 2, 3);
    save_all("got");
}

/* Runs compare with these words, of which one that begins with @ names something in the folder, and
 * expects this exit code. */
static void run(int line, int code, const char *const *words)
{
    const char *real[MOST_WORDS + 1] = {NULL};
    static char paths[MOST_WORDS + 1][8192];
    for (int w = 0; words[w]; w++) {
        snprintf(paths[w], sizeof paths[w], "%s/%s", folder, words[w] + (*words[w] == '@'));
        real[w] = *words[w] == '@' ? paths[w] : words[w];
    }
    ran = run_program(program, real);
    ck_assert_msg(ran.code == code, "line %d: exit code %d, not %d:\n%s%s", line, ran.code, code,
                  ran.out, ran.err);
}

/* It says all of these, of which those that begin with ! are what it does not say. */
static void said_all(int line, const char *const *words)
{
    for (int w = 0; words[w]; w++)
        ck_assert_msg((strstr(ran.out, words[w] + (*words[w] == '!')) != NULL) ==
                          (*words[w] != '!'),
                      "line %d: \"%s\" of:\n%s%s", line, words[w], ran.out, ran.err);
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})
#define runs(code, ...) run(__LINE__, code, LIST(__VA_ARGS__))
#define said(...) said_all(__LINE__, LIST(__VA_ARGS__))

/* With this tolerance `got` is so near to `want`, and these words say so. */
#define graded(code, tolerance, ...) \
    (runs(code, tolerance, "@want", "@got"), said("", ##__VA_ARGS__))

/* Prints a text. Eight are kept at a time. */
__attribute__((format(printf, 1, 2))) static const char *text(const char *format, ...)
{
    static char texts[8][2048];
    static int next;
    char *made = texts[next++ % 8];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(made, sizeof *texts, format, arguments);
    va_end(arguments);
    return made;
}

/* Where compare should say that a flat element of a `got` array is. */
static const char *place(int which, int64_t element)
{
    const int64_t *shape = got[which].shape;
    if (which == LSE)
        return text("at batch %" PRId64 " head %" PRId64 " position %" PRId64 ":",
                    element / (shape[1] * shape[2]), element / shape[2] % shape[1],
                    element % shape[2]);
    return text("at batch %" PRId64 " position %" PRId64 " head %" PRId64 " dim %" PRId64 ":",
                element / (shape[1] * shape[2] * shape[3]),
                element / (shape[2] * shape[3]) % shape[1], element / shape[3] % shape[2],
                element % shape[3]);
}

/* The largest |value| in the batch and head of an element: what a tolerance is relative to. */
static double largest_beside(int which, int64_t element)
{
    const struct array *array = &got[which];
    const int64_t *shape = array->shape;
    int64_t heads = which == LSE ? shape[1] : shape[2], width = which == LSE ? shape[2] : shape[3];
    int64_t batch_size = count_of(array) / shape[0];
    double largest = 0;
    for (int64_t i = 0; i < count_of(array); i++)
        if (i / batch_size == element / batch_size &&
            i / width % heads == element / width % heads && isfinite(array->values[i]))
            largest = fmax(largest, fabs(array->values[i]));
    return which == LSE ? fmax(largest, 1) : largest;
}

/* Element 0 or the last one along each axis, by the bits of `corner`. */
static int64_t corner_of(const struct array *array, int corner)
{
    int64_t element = 0;
    for (int axis = 0; axis < array->dims; axis++)
        element = element * array->shape[axis] + (corner >> axis & 1) * (array->shape[axis] - 1);
    return element;
}

/* One value at every corner of every array, in the folder named: each alone must be seen. */
static void plant_everywhere(const char *in, double value, const char *word)
{
    for (int which = 0; which < ARRAYS; which++)
        for (int corner = 0; corner < 1 << got[which].dims; corner++) {
            int64_t element = corner_of(&got[which], corner);
            double kept = got[which].values[element];
            got[which].values[element] = value;
            put(which, in);
            graded(1, "1e300", text("  %-3s  WRONG  ", names[which]),
                   text("%s in %s [", word, path_of("%s/%s.npy", in, names[which])),
                   place(which, element),
                   text("; 1 of %" PRId64 " elements wrong", count_of(&got[which])),
                   "right: 4 of 5 arrays");
            got[which].values[element] = kept;
            put(which, in);
        }
}

TEST(nan_in_got)
{
    plant_everywhere("got", NAN, "nan");
}

TEST(nan_throughout_got)
{
    for (int which = 0; which < ARRAYS; which++)
        for (int64_t i = 0; i < count_of(&got[which]); i++)
            got[which].values[i] = NAN;
    save_all("got");
    graded(1, "1e300", "right: 0 of 5 arrays", "168 of 168 elements wrong");

    /* Nor may nan on both sides be called equal. */
    save_all("want");
    graded(1, "1e300", "right: 0 of 5 arrays");
    graded(1, "0", "right: 0 of 5 arrays");
}

TEST(nan_in_want)
{
    plant_everywhere("want", NAN, "nan");
}

TEST(nan_in_both_at_the_same_place)
{
    for (int which = 0; which < ARRAYS; which++) {
        int64_t element = count_of(&got[which]) / 2;
        got[which].values[element] = NAN;
        put(which, "got");
        put(which, "want");
        graded(1, "1e300",
               text("  %-3s  WRONG  nan in %s", names[which], path_of("want/%s.npy", names[which])),
               place(which, element));
    }
    said("right: 0 of 5 arrays");
}

TEST(float16_and_float32_nan)
{
    for (int type = NPY_FLOAT16; type <= NPY_FLOAT64; type++) {
        got[DQ].type = (enum npy_type)type;
        got[DQ].values[100] = NAN;
        put(DQ, "got");
        graded(1, "1e300",
               text("nan in %s [1, 1, 1, 1] %s", path_of("got/dq.npy"), place(DQ, 100)));
    }
}

TEST(inf_in_got)
{
    plant_everywhere("got", INFINITY, "inf");
    plant_everywhere("got", -INFINITY, "-inf");
}

TEST(inf_in_want)
{
    plant_everywhere("want", INFINITY, "inf");
    /* Equal infinities are wrong as well, everywhere but for -inf in lse. */
    for (int which = 0; which < ARRAYS; which++)
        for (int sign = -1; sign <= 1; sign += 2) {
            double kept = got[which].values[3];
            got[which].values[3] = sign * (double)INFINITY;
            put(which, "want");
            put(which, "got");
            graded(which == LSE && sign < 0 ? 0 : 1, "1e300");
            got[which].values[3] = kept;
            put(which, "want");
            put(which, "got");
        }
}

TEST(empty_rows_of_lse)
{
    /* Wanted and met, in one row and in a whole head: right, even when nothing else is allowed. */
    for (int64_t i = 0; i < 8; i++)
        got[LSE].values[i] = -INFINITY;
    put(LSE, "want");
    put(LSE, "got");
    graded(0, "0", "lse  right  equal in every element (56)");

    /* Wanted and missed, however small the number. */
    got[LSE].values[7] = -1.7e308;
    put(LSE, "got");
    graded(1, "1e300", text("-1.7e+308 in %s", path_of("got/lse.npy")),
           text("%s want -inf got ", place(LSE, 7)));

    /* +inf is not -inf. */
    got[LSE].values[7] = INFINITY;
    put(LSE, "got");
    graded(1, "1e300", text("inf in %s", path_of("got/lse.npy")));

    /* Beside empty rows, numbers are still held to what is allowed. */
    got[LSE].values[7] = -INFINITY;
    got[LSE].values[9] += 2e-5;
    put(LSE, "got");
    graded(1, "1e-5", place(LSE, 9), "1 of 56 elements wrong");
}

TEST(identical)
{
    graded(0, "0", "right: 5 of 5 arrays", "o    right  equal in every element (168)",
           "dv   right  equal in every element (60)", "!WRONG", "!hint");
    graded(0, "1e-5", "allowed 1e-05 of the largest in each head");
}

TEST(damaged_files)
{
    for (int which = 0; which < ARRAYS; which++) {
        /* One byte too few, one too many, nothing but a header, nothing at all. */
        char path[2048];
        snprintf(path, sizeof path, "%s", path_of("got/%s.npy", names[which]));
        struct stat status;
        ck_assert_int_eq(stat(path, &status), 0);
        int64_t data = count_of(&got[which]) * 8;
        const int64_t sizes[] = {status.st_size - 1, status.st_size + 1, status.st_size - data, 0};
        for (int i = 0; i < 4; i++) {
            ck_assert_int_eq(truncate(path, sizes[i]), 0);
            graded(1, "1e300", text("  %-3s  WRONG  %s: ", names[which], path),
                   "right: 4 of 5 arrays");
        }

        /* No file, in either folder. */
        ck_assert_int_eq(unlink(path), 0);
        graded(1, "1e300", text("  %-3s  WRONG  %s: ", names[which], path), "right: 4 of 5 arrays");
        runs(1, "1e300", "@got", "@want");
        said(text("  %-3s  WRONG  %s: ", names[which], path), "right: 4 of 5 arrays");
        put(which, "got");
    }

    /* No folder. */
    runs(1, "1", "@want", "@nowhere");
    said("right: 0 of 5 arrays");
    runs(1, "1", "@nowhere", "@got");
    said("right: 0 of 5 arrays");
}

TEST(path_too_long)
{
    /* Cut to what npy holds, "@got//...//o.npy" would name the folder, or another file. */
    char far[5000] = "@got";
    memset(far + 4, '/', sizeof far - 5);
    far[sizeof far - 1] = '\0';
    runs(1, "1", "@want", far);
    said("longer than", "right: 0 of 5 arrays");
}

TEST(not_floats)
{
    write_array(path_of("got/dk.npy"), NPY_BOOL, 4, got[DK].shape, NPY_BOOL, NULL);
    graded(1, "1e300", "dk   WRONG  ", "right: 4 of 5 arrays");
}

TEST(other_shapes)
{
    for (int which = 0; which < ARRAYS; which++)
        for (int axis = 0; axis < got[which].dims; axis++)
            for (int longer = -1; longer <= 1; longer += 2) {
                /* The numbers of a longer array beyond the end of this one do not matter. */
                struct array array = got[which];
                array.shape[axis] += longer;
                struct array other = make(which, NPY_FLOAT64, array.dims, array.shape);
                save(&other, "got", names[which]);
                free(other.values);
                graded(1, "1e300", text("  %-3s  WRONG  shape (", names[which]),
                       which == LSE  ? "(2, 4, 7)"
                       : which >= DK ? "(2, 5, 2, 3)"
                                     : "(2, 7, 4, 3)",
                       "right: 4 of 5 arrays");
                put(which, "got");
            }

    /* The same numbers in the order of lse, or flat, are another array. */
    struct array transposed = got[LSE];
    transposed.shape[1] = 7;
    transposed.shape[2] = 4;
    save(&transposed, "got", "lse");
    graded(1, "1e300", "shape (2, 7, 4) in ", " where (2, 4, 7) in ");
}

TEST(wrong_axes_on_both_sides)
{
    for (int which = 0; which < ARRAYS; which++) {
        struct array flat = got[which];
        flat.dims = 2;
        flat.shape[1] = count_of(&got[which]) / flat.shape[0];
        save(&flat, "got", names[which]);
        save(&flat, "want", names[which]);
        graded(1, "1", text("  %-3s  WRONG  shape (2, ", names[which]));
    }
    said("right: 0 of 5 arrays");
}

TEST(empty_arrays)
{
    for (int axis = 0; axis < 4; axis++) {
        int64_t sizes[] = {2, 7, 4, 3};
        sizes[axis] = 0;
        resize(sizes[0], sizes[1], sizes[1], sizes[2], sizes[2], sizes[3]);
        save_all("got");
        graded(1, "1", "o    WRONG  shape ", "has no elements: comparing nothing proves nothing");
        /* Without a dim, lse has elements all the same. */
        said(text("right: %d of 5 arrays", axis == 3 ? 1 : 0));
    }
}

TEST(swapped_dk_and_dv)
{
    save(&got[DK], "got", "dv");
    save(&got[DV], "got", "dk");
    graded(1, "1e-5", "dk   WRONG", "dv   WRONG", "hint: dk and dv look swapped",
           "right: 3 of 5 arrays");

    /* Nearly equal is close enough for the hint; far from it is not; nor is half a swap. */
    got[DV].values[20] += 1e-9;
    save(&got[DV], "got", "dk");
    graded(1, "1e-5", "hint: dk and dv look swapped");
    got[DV].values[20] += 1e-3;
    save(&got[DV], "got", "dk");
    graded(1, "1e-5", "!hint");
    put(DK, "got");
    graded(1, "1e-5", "!hint");
    start();
    save(&got[DV], "got", "dk");
    graded(1, "1e-5", "!hint");
}

TEST(swapped_dk_and_dv_with_allowances)
{
    const int64_t shape[] = {2, 2};
    struct array allowed = make(0, NPY_FLOAT64, 2, shape);
    for (int i = 0; i < 4; i++)
        allowed.values[i] = 1e-6;
    save(&allowed, "want", "dk_allowed");
    save(&allowed, "want", "dv_allowed");
    free(allowed.values);
    save(&got[DK], "got", "dv");
    save(&got[DV], "got", "dk");
    runs(1, "--only", "dk,dv", "@want", "@want", "@got");
    said("hint: dk and dv look swapped", "right: 0 of 2 arrays");
}

TEST(swapped_o_and_dq)
{
    save(&got[O], "got", "dq");
    save(&got[DQ], "got", "o");
    graded(1, "1e-5", "o    WRONG", "dq   WRONG", "right: 3 of 5 arrays", "!hint");
}

TEST(just_over_and_just_under)
{
    for (int which = 0; which < ARRAYS; which++) {
        const int64_t last = count_of(&got[which]) - 1, places[] = {0, last / 2, last};
        for (int i = 0; i < 3; i++) {
            double *value = &got[which].values[places[i]], kept = *value;
            double allowed = 1e-5 * largest_beside(which, places[i]);
            for (int sign = -1; sign <= 1; sign += 2) {
                /* Towards 0, so that the changed number is not the largest itself. */
                *value = kept + sign * allowed * 0.999;
                put(which, "got");
                graded(0, "1e-5", text("  %-3s  right     0.999 of allowed  off by ", names[which]),
                       place(which, places[i]));

                *value = kept + sign * allowed * 1.001;
                put(which, "got");
                graded(1, "1e-5", text("  %-3s  WRONG         1 of allowed  off by ", names[which]),
                       place(which, places[i]), text("; 1 of %" PRId64 " elements wrong", last + 1),
                       "right: 4 of 5 arrays");
            }
            *value = kept;
            put(which, "got");
        }
    }
}

TEST(any_error_is_wrong_when_none_is_allowed)
{
    got[DQ].values[77] = nextafter(got[DQ].values[77], 2);
    put(DQ, "got");
    graded(1, "0", "dq   WRONG       inf of allowed", place(DQ, 77));

    /* Every share is inf then: the largest error is the worst, wherever it stands. */
    got[DQ].values[30] += 1e-3;
    got[DQ].values[110] += 1e-4;
    put(DQ, "got");
    graded(1, "0", place(DQ, 30), "3 of 168 elements wrong");
    got[DQ].values[110] += 1e-2;
    put(DQ, "got");
    graded(1, "0", place(DQ, 110));

    /* One step of float64 is less than 1e-15 of the largest. */
    start();
    got[DQ].values[77] = nextafter(got[DQ].values[77], 2);
    put(DQ, "got");
    graded(0, "1e-15");

    /* In a head that is 0 throughout, any tolerance allows 0. */
    start();
    for (int i = 0; i < 60; i++)
        if (i / 3 % 2 == 1)
            got[DV].values[i] = 0;
    put(DV, "want");
    put(DV, "got");
    graded(0, "1e-5");
    got[DV].values[4] = 1e-300;
    put(DV, "got");
    graded(1, "1e-5", text("dv   WRONG       inf of allowed  off by 1e-300 %s", place(DV, 4)));
}

TEST(zero_and_minus_zero_are_equal)
{
    got[O].values[5] = 0;
    put(O, "want");
    got[O].values[5] = -0.0;
    put(O, "got");
    graded(0, "0");
}

TEST(sign_flipped)
{
    for (int which = 0; which < ARRAYS; which++) {
        int64_t element = count_of(&got[which]) - 2;
        got[which].values[element] *= -1;
        put(which, "got");
        graded(1, "1e-3", place(which, element));
    }
    said("right: 0 of 5 arrays");
}

TEST(zeros_throughout)
{
    for (int which = 0; which < ARRAYS; which++)
        for (int64_t i = 0; i < count_of(&got[which]); i++)
            got[which].values[i] = 0;
    save_all("got");
    graded(1, "0.5", "o    WRONG", "dq   WRONG", "dk   WRONG", "dv   WRONG");
    graded(1, "1e-3", "right: 0 of 5 arrays");
}

TEST(types_may_differ)
{
    /* Numbers that float16 cannot hold, on the side that is float64. */
    for (int which = 0; which < ARRAYS; which++)
        for (int64_t i = 0; i < count_of(&got[which]); i++)
            got[which].values[i] += 1e-4 / (double)(i + 3);
    save_all("want");
    const char *const right_at[] = {"2e-3", "1e-7"}, *const wrong_at[] = {"1e-5", "1e-10"};
    for (int type = NPY_FLOAT16; type <= NPY_FLOAT32; type++) {
        for (int which = 0; which < ARRAYS; which++)
            got[which].type = (enum npy_type)type;
        save_all("got");
        graded(0, right_at[type - NPY_FLOAT16]);
        graded(1, wrong_at[type - NPY_FLOAT16], "right: 0 of 5 arrays");
        /* And the other way round. */
        runs(0, right_at[type - NPY_FLOAT16], "@got", "@want");
    }
}

TEST(each_head_has_its_own_allowance)
{
    for (int which = 0; which < ARRAYS; which++) {
        /* Batch 1, head 1 is a million times smaller than the rest; one number there is off. */
        struct array *array = &got[which];
        const int64_t *shape = array->shape;
        int64_t heads = which == LSE ? shape[1] : shape[2],
                width = which == LSE ? shape[2] : shape[3];
        int64_t count = count_of(array), element = -1;
        for (int64_t i = count / 2; i < count; i++)
            if (i / width % heads == 1) {
                array->values[i] *= 1e-6;
                element = element < 0 && i > count / 2 + count / 8 ? i : element;
            }
        save(array, "want", names[which]);
        array->values[element] += 1e-7;
        save(array, "got", names[which]);
    }
    graded(1, "1e-4", "o    WRONG", "dq   WRONG", "dk   WRONG", "dv   WRONG");
    /* A log-sum-exp near 0 is 0 by chance, so its allowance is never below that of 1. */
    said("lse  right     0.001 of allowed  off by 1e-07", "right: 1 of 5 arrays");
}

TEST(lse_above_one)
{
    for (int64_t i = 0; i < 56; i++)
        got[LSE].values[i] += i / 7 == 3 ? 100 : 0;
    put(LSE, "want");
    got[LSE].values[23] += 1e-3;
    put(LSE, "got");
    graded(0, "2e-5", place(LSE, 23));
    got[LSE].values[28] += 1e-3;
    put(LSE, "got");
    graded(1, "2e-5", place(LSE, 28), "1 of 56 elements wrong");
}

TEST(worst_by_share_not_by_error)
{
    /* The larger error sits in a head where it is allowed; the smaller one is the worse. */
    for (int64_t i = 0; i < 168; i++)
        got[O].values[i] *= i / 3 % 4 == 2 ? 1000 : 1;
    put(O, "want");
    got[O].values[6] += 5e-4;   /* batch 0 position 0 head 2 */
    got[O].values[100] += 3e-4; /* batch 1 position 1 head 1 */
    got[O].values[147] += 4e-4; /* batch 1 position 5 head 1 */
    got[O].values[167] += 2e-4; /* batch 1 position 6 head 3 */
    put(O, "got");
    graded(1, "1e-5", "at batch 1 position 5 head 1 dim 0:", "3 of 168 elements wrong");
    graded(0, "1e-3", "o    right", "at batch 1 position 5 head 1 dim 0:", "!elements wrong");

    /* Nan is worse than any number. */
    got[O].values[14] = NAN;
    put(O, "got");
    graded(1, "1e-5", text("nan in %s [0, 1, 0, 2] %s", path_of("got/o.npy"), place(O, 14)),
           "4 of 168 elements wrong");

    /* Of several, the first is named: later ones may follow from it. */
    got[O].values[15] = NAN;
    got[O].values[20] = INFINITY;
    put(O, "got");
    graded(1, "1e-5", text("nan in %s [0, 1, 0, 2] %s", path_of("got/o.npy"), place(O, 14)),
           "6 of 168 elements wrong");
}

TEST(values_are_named)
{
    got[DK].values[31] = 0.25;
    put(DK, "want");
    got[DK].values[31] = 0.75;
    got[DK].type = NPY_FLOAT32;
    put(DK, "got");
    graded(1, "1e-3",
           "off by 0.5 at batch 1 position 0 head 0 dim 1: want 0.25 got 0.75; 1 of 60 elements "
           "wrong");
}

TEST(huge_numbers)
{
    /* Their difference overflows to inf, and so does what a careless product allows. */
    got[O].values[50] = 1.5e308;
    put(O, "want");
    got[O].values[50] = -1.5e308;
    put(O, "got");
    graded(1, "1e300", "o    WRONG", place(O, 50));
}

/* One wrong number at chosen places of arrays that take several chunks to read. */
static void check_large(void)
{
    for (int which = 0; which < ARRAYS; which++) {
        int64_t count = count_of(&got[which]);
        const int64_t places[] = {count - 1, 65536, 65535, 131072, count / 2};
        for (int i = 0; i < 5; i++) {
            if (places[i] >= count)
                continue;
            double *value = &got[which].values[places[i]], kept = *value;
            *value += 0.01;
            put(which, "got");
            runs(1, "--only", names[which], "1e-3", "@want", "@got");
            said(place(which, places[i]), text("1 of %" PRId64 " elements wrong", count));
            *value = kept;
            put(which, "got");
        }
    }
    graded(0, "0", "right: 5 of 5 arrays");
}

TEST(many_chunks)
{
    resize(2, 701, 803, 4, 2, 33);
    save_all("got");
    check_large();
}

TEST(long_lse)
{
    resize(2, 70001, 3, 2, 1, 1);
    save_all("got");
    check_large();
}

TEST(rows_larger_than_a_chunk)
{
    resize(1, 2, 3, 4, 2, 33001);
    save_all("got");
    check_large();
}

TEST(late_chunks_count_for_the_largest)
{
    /* The largest number of a head comes in the last row, after the chunk that it must judge. */
    resize(1, 70000, 2, 1, 1, 1);
    got[O].values[69999] = 500;
    put(O, "want");
    got[O].values[3] += 4e-3;
    put(O, "got");
    runs(0, "--only", "o", "1e-5", "@want", "@got");
    said("0.8 of allowed", place(O, 3));
}

/* Writes the allowed errors of all arrays: 1e-6, but `other` at batch 1 head 1 of one array. */
static void save_allowed(int which_other, double other)
{
    for (int which = 0; which < ARRAYS; which++) {
        const int64_t shape[] = {2, which >= DK ? 2 : 4};
        struct array allowed = make(0, NPY_FLOAT64, 2, shape);
        char name[20];
        snprintf(name, sizeof name, "%s_allowed", names[which]);
        for (int64_t i = 0; i < count_of(&allowed); i++)
            allowed.values[i] = which == which_other && i == shape[1] + 1 ? other : 1e-6;
        save(&allowed, "want", name);
        free(allowed.values);
    }
}

TEST(allowed_by_a_folder)
{
    for (int which = 0; which < ARRAYS; which++) {
        /* An element of batch 1 head 1, off by 5e-5: too much for 1e-6, fine for 1e-4. */
        int64_t element = count_of(&got[which]) / 2 + (which == LSE ? 9 : 4);
        double kept = got[which].values[element];
        save_allowed(which, 1e-4);
        graded(0, "@want");
        got[which].values[element] += 5e-5;
        put(which, "got");
        graded(0, "@want",
               text("  %-3s  right       0.5 of allowed  off by 5e-05 %s", names[which],
                    place(which, element)));

        save_allowed(-1, 0);
        graded(1, "@want",
               text("  %-3s  WRONG        50 of allowed  off by 5e-05 %s", names[which],
                    place(which, element)),
               "right: 4 of 5 arrays");
        got[which].values[element] = kept;

        /* The same error in any other head is not covered by the large allowance. */
        save_allowed(which, 1e-4);
        int64_t width = which == LSE ? 7 : 3;
        for (int64_t away = -width; away <= width; away += 2 * width) {
            kept = got[which].values[element + away];
            got[which].values[element + away] += 5e-5;
            put(which, "got");
            graded(1, "@want", place(which, element + away));
            got[which].values[element + away] = kept;
        }
        put(which, "got");
    }
}

TEST(allowed_by_a_folder_nothing)
{
    save_allowed(DQ, 0);
    graded(0, "@want", "right: 5 of 5 arrays");
    got[DQ].values[88] += 1e-300 + 1e-15;
    put(DQ, "got");
    graded(1, "@want", "dq   WRONG       inf of allowed", place(DQ, 88));
}

TEST(allowed_by_a_folder_of_bad_files)
{
    /* Nothing to go by: each array fails. */
    graded(1, "@want", "right: 0 of 5 arrays",
           text("o    WRONG  %s: ", path_of("want/o_allowed.npy")));

    /* Numbers that would judge nothing. */
    const double bad[] = {NAN, INFINITY, -INFINITY, -1e-6};
    for (int which = 0; which < ARRAYS; which++)
        for (int i = 0; i < 4; i++) {
            save_allowed(which, bad[i]);
            graded(1, "@want",
                   text("  %-3s  WRONG  %s: ", names[which],
                        path_of("want/%s_allowed.npy", names[which])),
                   text("%g at [1, 1] where a finite number >= 0 is needed", bad[i]),
                   "right: 4 of 5 arrays");
        }

    /* Shapes of other arrays, and (heads, batch). */
    const int64_t shapes[][2] = {{2, 3}, {2, 5}, {1, 4}, {3, 4}, {4, 2}, {8, 1}, {1, 8}};
    for (int i = 0; i < 7; i++) {
        save_allowed(-1, 0);
        struct array allowed = make(0, NPY_FLOAT64, 2, shapes[i]);
        save(&allowed, "want", "lse_allowed");
        free(allowed.values);
        graded(1, "@want", "lse  WRONG  ", "where (2, 4), batch and head, is needed",
               "right: 4 of 5 arrays");
    }

    /* A file cut short. */
    save_allowed(-1, 0);
    ck_assert_int_eq(truncate(path_of("want/o_allowed.npy"), 130), 0);
    graded(1, "@want", text("o    WRONG  %s: ", path_of("want/o_allowed.npy")));
}

TEST(allowed_by_a_folder_nan_is_not)
{
    save_allowed(-1, 0);
    got[O].values[0] = NAN;
    put(O, "got");
    graded(1, "@want", text("nan in %s [0, 0, 0, 0] %s", path_of("got/o.npy"), place(O, 0)));
    put(O, "want");
    graded(1, "@want", text("nan in %s [0, 0, 0, 0] %s", path_of("want/o.npy"), place(O, 0)));
}

/* The allowances may lie beside other results than the wanted ones. */
TEST(allowed_by_another_folder)
{
    save_allowed(-1, 1e-4);
    for (int i = 0; i < ARRAYS; i++) {
        ck_assert_int_eq(rename(path_of("want/%s_allowed.npy", names[i]),
                                path_of("other/%s_allowed.npy", names[i])),
                         0);
    }
    graded(1, "@want");
    graded(0, "@other");
    got[DV].values[0] += 2e-4;
    put(DV, "got");
    graded(1, "@other", "right: 4 of 5 arrays");
}

TEST(allowed_times)
{
    /* An error of 5e-5 where 1e-4 is allowed, and of 5e-5 where the largest number is near 1. */
    save_allowed(O, 1e-4);
    got[O].values[count_of(&got[O]) / 2 + 4] += 5e-5;
    put(O, "got");
    runs(0, "--times", "0.6", "@want", "@want", "@got");
    runs(1, "--times", "0.4", "@want", "@want", "@got");
    runs(1, "--times", "0", "@want", "@want", "@got");
    graded(1, "1e-5");
    runs(0, "--times", "10", "1e-5", "@want", "@got");
    runs(1, "--times", "10", "0", "@want", "@got");

    const char *const junk[] = {"", "-1", "nan", "inf", "x", "1x"};
    for (int i = 0; i < 6; i++)
        runs(2, "--times", junk[i], "1", "@want", "@got");
}

TEST(several_folders)
{
    save_all("other");
    got[DQ].values[7] += 1;
    put(DQ, "got");
    runs(0, "1e-5", "@want", "@other", "@other");
    runs(1, "1e-5", "@want", "@other", "@got", "@other");
    said("other against ",
         text("right: 4 of 5 arrays\n%s against %s", path_of("other"), path_of("want")));
    const char *first = strstr(ran.out, "right: 5 of 5 arrays");
    ck_assert_ptr_nonnull(first);
    ck_assert_ptr_nonnull(strstr(first + 1, "right: 5 of 5 arrays"));

    /* After a folder that is not there, the next is graded all the same. */
    runs(1, "1e-5", "@want", "@nowhere", "@other");
    said("right: 0 of 5 arrays", "right: 5 of 5 arrays");
}

TEST(only)
{
    unlink(path_of("got/dq.npy"));
    unlink(path_of("got/dk.npy"));
    unlink(path_of("got/dv.npy"));
    graded(1, "1e-5", "right: 2 of 5 arrays");
    runs(0, "--only", "o,lse", "1e-5", "@want", "@got");
    said("right: 2 of 2 arrays");
    runs(0, "--only=lse", "1e-5", "@want", "@got");
    said("right: 1 of 1 arrays");
    runs(1, "--only", "o,dk", "1e-5", "@want", "@got");
    said("right: 1 of 2 arrays");

    /* What is chosen is graded, what is not is left alone. */
    got[O].values[0] += 1;
    put(O, "got");
    runs(1, "--only", "o,lse", "1e-5", "@want", "@got");
    runs(0, "--only", "lse", "1e-5", "@want", "@got");
    const char *const junk[] = {"", ",", "o=1", ",o", "o,,lse", "q", "os", "ls", "o lse", "O"};
    for (int i = 0; i < 10; i++)
        runs(2, "--only", junk[i], "1e-5", "@want", "@got");
}

/* d_sink and largest, one number a head: graded if one of the folders has them. */
TEST(numbers_of_heads)
{
    static const char *const of_heads[] = {"d_sink", "largest"};
    struct array array = make(7, NPY_FLOAT64, 1, (int64_t[]){4});
    for (int i = 0; i < 2; i++) {
        save(&array, "want", of_heads[i]);
        graded(1, "1e300",
               text("  %-7s  WRONG  %s: ", of_heads[i], path_of("got/%s.npy", of_heads[i])),
               text("right: %d of %d arrays", 5 + i, 6 + i));
        runs(1, "1e300", "@got", "@want");
        said(text("  %-7s  WRONG  ", of_heads[i]));
        runs(0, "--only", "o,lse", "1e300", "@want", "@got");
        save(&array, "got", of_heads[i]);
        graded(0, "0", text("  %-7s  right  equal in every element (4)", of_heads[i]),
               text("right: %d of %d arrays", 6 + i, 6 + i));

        /* NaN and Inf are wrong, and of -inf all that is not what largest wants. */
        const double bad[] = {NAN, INFINITY, -INFINITY};
        for (int b = 0; b < 3; b++)
            for (int head = 0; head < 4; head++) {
                double kept = array.values[head];
                array.values[head] = bad[b];
                save(&array, "got", of_heads[i]);
                graded(1, "1e300", text("  %-7s  WRONG  ", of_heads[i]),
                       text("[%d] at head %d: want ", head, head));
                runs(1, "1e300", "@got", "@want");
                runs(1, "--only", of_heads[i], "1e300", "@want", "@got");
                save(&array, "want", of_heads[i]);
                graded(i == 1 && b == 2 ? 0 : 1, "0");
                array.values[head] = kept;
                save(&array, "want", of_heads[i]);
            }

        /* They are held to a share of the largest of all heads, or of 1. */
        array.values[1] += 0.9e-5;
        save(&array, "got", of_heads[i]);
        graded(0, "1e-5");
        array.values[1] += 0.2e-5;
        save(&array, "got", of_heads[i]);
        graded(1, "1e-5", "at head 1: ", "; 1 of 4 elements wrong");
        array.values[1] -= 1.1e-5;
        array.values[2] += 300;
        save(&array, "want", of_heads[i]);
        array.values[1] += 2e-3;
        save(&array, "got", of_heads[i]);
        graded(0, "1e-5");
        array.values[1] -= 2e-3;
        array.values[2] -= 300;

        /* A folder of allowed errors has one for each head. */
        double allowed[4] = {0, 2e-5, 0, 0};
        struct array table = {NPY_FLOAT64, 1, {4}, allowed};
        char name[20];
        snprintf(name, sizeof name, "%s_allowed", of_heads[i]);
        save(&array, "want", of_heads[i]);
        save(&table, "want", name);
        array.values[1] += 1e-5;
        save(&array, "got", of_heads[i]);
        runs(0, "--only", of_heads[i], "@want", "@want", "@got");
        said(text("%8.3g of allowed", 0.5));
        array.values[0] += 1e-9;
        save(&array, "got", of_heads[i]);
        runs(1, "--only", of_heads[i], "@want", "@want", "@got");
        said("at head 0: ");
        table.shape[0] = 3;
        save(&table, "want", name);
        runs(1, "--only", of_heads[i], "@want", "@want", "@got");
        said("shape (3) where (4), one a head, is needed");
        array.values[0] -= 1e-9;
        array.values[1] -= 1e-5;

        /* Another shape. */
        struct array other = make(7, NPY_FLOAT64, 1, (int64_t[]){5});
        save(&other, "got", of_heads[i]);
        graded(1, "1e300", text("  %-7s  WRONG  shape (5) in ", of_heads[i]));
        other.dims = 2, other.shape[0] = 1, other.shape[1] = 4;
        save(&other, "want", of_heads[i]);
        save(&other, "got", of_heads[i]);
        graded(1, "1e300", "where (head) is needed");
        free(other.values);
        save(&array, "want", of_heads[i]);
        save(&array, "got", of_heads[i]);
    }
    free(array.values);
}

TEST(junk_for_a_tolerance)
{
    const char *const junk[] = {"",      " ",      "inf",  "-inf",     "nan",      "-1",
                                "-1e-9", "1e999",  "junk", "1x",       "1e-5junk", "1e",
                                "Plain", "plains", "0x10", " 1",       "1 ",       "1,5",
                                "e",     "--5",    "+-1",  "INFINITY", "nosuch",   "+"};
    for (size_t i = 0; i < sizeof junk / sizeof *junk; i++) {
        runs(2, "--", junk[i], "@want", "@got");
        ck_assert_msg(strstr(ran.err, "TOL") != NULL, "%s", ran.err);
        ck_assert_str_eq(ran.out, "");
    }
    graded(2, "-1");
    graded(2, "-inf");
    const char *const good[] = {"0", "0.0", "1", "1e-5", ".5", "5.", "1E-3", "1e300", "1e-400"};
    for (int i = 0; i < 9; i++)
        graded(0, good[i]);
}

TEST(misuse)
{
    const char *const itself = "comparing a folder with itself proves nothing";
    runs(2, "1", "@want", "@want");
    ck_assert_ptr_nonnull(strstr(ran.err, itself));
    runs(2, "1", "@want", "@got/../want/.");
    ck_assert_ptr_nonnull(strstr(ran.err, itself));
    ck_assert_int_eq(symlink("want", path_of("link")), 0);
    runs(2, "1", "@want", "@link");
    ck_assert_ptr_nonnull(strstr(ran.err, itself));
    runs(2, "1", "@want", "@got", "@want");
    ck_assert_str_eq(ran.out, "");
    unlink(path_of("link"));

    /* Words that are missing or unknown. */
    runs(2, "--only", "o");
    runs(2, "1");
    runs(2, "1", "@want");
    runs(2, "--tolerance", "1", "@want", "@got");
    runs(2, "-x", "1", "@want", "@got");
    runs(2, "1", "@want", "@got", "--only");
    runs(0, "--help");
    said("usage: compare", "--only");
    ck_assert_str_eq(ran.err, "");
}

int main(void)
{
    find_program(program, "compare");
    suite_around(start, NULL);
    return suite_main_in_folder("compare", 60);
}
