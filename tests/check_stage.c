/* check_stage: the command line, the files and the exit codes of the stage programs.
 *
 * What the numbers are is for compare to judge; here the programs must behave. Bad input is met
 * with one clear line on stderr, the right exit code, nothing on stdout and not one file touched;
 * good input gives whole results and counts that repeat. Every test in a loop runs once for each
 * program. The programs are found in the folder that the environment variable BUILD names.
 */

/* For unshare: a small and a read-only disk need a namespace for their mount. */
#define _GNU_SOURCE

#include "files.h"
#include "ra_clock.h"
#include "small_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PROGRAMS = 2 };
static const char *const programs[PROGRAMS] = {"01-naive", "02-flash"};
static const char *const result_names[] = {"o", "lse", "dq", "dk", "dv"};

/* A list of words, or of arguments. */
#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Set by begin, for the test that runs: each test has a process of its own. */
static int number;             /* of the stage: 1 for 01-naive */
static const char *program;    /* "01-naive" */
static char binary[PATH_MAX];  /* its file */
static char problem[2048];     /* folder/problem, in the test's own folder */
static char result[2048];      /* folder/result */
static char other[2048];       /* folder/other */
static rlim_t limit = 1 << 20; /* bytes, for limit_files and limit_memory */

/* ---- Files. */

/* From here on the test is about this program. */
static void choose(int which)
{
    number = which + 1;
    program = programs[which];
    find_program(binary, program);
}

/* Starts a test: which program, and a folder that is empty. */
static void begin(int which)
{
    char own[PATH_MAX];
    choose(which);
    scratch_make(own, sizeof own, folder, "test");
    ck_assert_uint_lt(strlen(own), sizeof folder);
    strcpy(folder, own);
    strcpy(problem, path_of("problem"));
    strcpy(result, path_of("result"));
    strcpy(other, path_of("other"));
}

/* The path of PROBLEM/NAME.npy. */
static const char *input_path(const char *name)
{
    return path_of("problem/%s.npy", name);
}

static void make_folder(const char *path)
{
    ck_assert_msg(mkdir(path, 0777) == 0, "%s: %s", path, strerror(errno));
}

static bool exists(const char *path)
{
    struct stat status;
    return lstat(path, &status) == 0;
}

/* Prints what stands at the path, hidden files too: kinds, names, sizes, and a sum of the bytes. */
static void describe(FILE *out, const char *path)
{
    struct stat status;
    if (lstat(path, &status) != 0) {
        fprintf(out, "%s missing\n", path);
    } else if (S_ISREG(status.st_mode)) {
        /* FNV-1a, a sum in which order counts; 64 bits make an accident unlikely. */
        uint64_t sum = UINT64_C(14695981039346656037);
        FILE *file = fopen(path, "rb");
        ck_assert_msg(file != NULL, "%s: %s", path, strerror(errno));
        for (int byte; (byte = getc(file)) != EOF;)
            sum = (sum ^ (uint64_t)byte) * UINT64_C(1099511628211);
        fclose(file);
        fprintf(out, "%s %jd bytes, sum %" PRIx64 "\n", path, (intmax_t)status.st_size, sum);
    } else if (S_ISDIR(status.st_mode)) {
        struct dirent **entries;
        int count = scandir(path, &entries, NULL, alphasort);
        ck_assert_msg(count >= 0, "%s: %s", path, strerror(errno));
        fprintf(out, "%s folder\n", path);
        for (int e = 0; e < count; e++) {
            char inner[2600];
            snprintf(inner, sizeof inner, "%s/%s", path, entries[e]->d_name);
            if (strcmp(entries[e]->d_name, ".") != 0 && strcmp(entries[e]->d_name, "..") != 0)
                describe(out, inner);
            free(entries[e]);
        }
        free(entries);
    } else {
        fprintf(out, "%s is special\n", path);
    }
}

/* All that stands at the path, as a text to compare. The caller frees it. */
static char *tree(const char *path)
{
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    describe(out, path);
    fclose(out);
    return text;
}

/* Fails unless two trees are equal, and frees both. The message is cut to what libcheck takes. */
static void same_tree(char *got, char *want)
{
    ck_assert_msg(strcmp(got, want) == 0, "%.3500s\nis not what it should be:\n%.3500s", got, want);
    free(got);
    free(want);
}

/* Fails unless two files have the same bytes. */
static void same_file(const char *one, const char *two)
{
    char *texts[] = {tree(one), tree(two)};
    ck_assert_str_eq(texts[0] + strlen(one), texts[1] + strlen(two));
    free(texts[0]);
    free(texts[1]);
}

/* ---- Problems. */

/* A number in [-1, 1) that depends on the seed and the index only. */
static double number_at(uint32_t seed, int64_t index)
{
    uint32_t bits = ((uint32_t)index + 1000003 * seed + 1) * UINT32_C(2654435761);
    bits = (bits ^ bits >> 16) * UINT32_C(0x85ebca6b);
    bits ^= bits >> 13;
    return bits * 0x1p-31 - 1;
}

/* Saves PROBLEM/NAME.npy, numbers by number_at; but the element `odd` gets odd_value. */
static void save(const char *name, enum npy_type type, int dims, const int64_t *shape, int64_t odd,
                 double odd_value)
{
    int64_t count = 1;
    for (int axis = 0; axis < dims; axis++)
        count *= shape[axis];
    double *values = calloc((size_t)count + 1, sizeof *values);
    ck_assert_ptr_nonnull(values);
    for (int64_t e = 0; e < count; e++)
        values[e] = e == odd ? odd_value : number_at((uint32_t)name[0], e);
    write_array(input_path(name), type, dims, shape, NPY_FLOAT64, values);
    free(values);
}

/* Makes PROBLEM anew, without a mask. */
static void make_problem(enum npy_type type, int64_t B, int64_t N, int64_t M, int64_t H, int64_t G,
                         int64_t D)
{
    scratch_remove(problem);
    make_folder(problem);
    save("q", type, 4, (int64_t[]){B, N, H, D}, -1, 0);
    save("do", type, 4, (int64_t[]){B, N, H, D}, -1, 0);
    save("k", type, 4, (int64_t[]){B, M, G, D}, -1, 0);
    save("v", type, 4, (int64_t[]){B, M, G, D}, -1, 0);
}

/* The problem that most tests start from. */
static void make_small_problem(void)
{
    make_problem(NPY_FLOAT32, 1, 4, 5, 2, 2, 3);
}

/* Saves PROBLEM/NAME.npy with a header of our own making, and this many bytes of `fill` as data. */
static void save_raw(const char *name, const char *code, const char *fortran, const char *shape,
                     unsigned char fill, size_t bytes)
{
    char header[118 + 1];
    snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }", code,
             fortran, shape);
    unsigned char file[128 + 1024];
    ck_assert_uint_le(bytes, 1024);

    /* 10 bytes of prefix and 118 of header, padded with blanks and a line end. */
    memset(file, ' ', 128);
    memcpy(file, "\x93NUMPY\1\0\x76\0", 10);
    memcpy(file + 10, header, strlen(header));
    file[127] = '\n';
    memset(file + 128, fill, bytes);
    write_bytes(input_path(name), file, 128 + bytes);
}

/* Puts what looks like an earlier run's results into RESULT. */
static void make_earlier_results(void)
{
    make_folder(result);
    for (int r = 0; r < 5; r++) {
        write_text(path_of("result/%s.npy", result_names[r]), result_names[r]);
    }
}

/* ---- Runs. */

static struct outcome run(void (*prepare)(void), const char *const *arguments)
{
    return end_program(start_program(prepare, binary, arguments));
}

/* Runs the program, which must succeed without a word on stderr. */
static struct outcome good(const char *const *arguments)
{
    struct outcome outcome = run(NULL, arguments);
    ck_assert_msg(outcome.code == 0, "%s: exit code %d: %.3000s", program, outcome.code,
                  outcome.err);
    ck_assert_msg(outcome.err[0] == '\0', "%s: on stderr: %.3000s", program, outcome.err);
    return outcome;
}

/* Fails unless this is a refusal: the exit code, nothing on stdout, and on stderr one line that
 * starts with the program's name and holds all of the words. */
static void check_refusal(const struct outcome *outcome, int code, const char *const *words)
{
    char start_of_line[20];
    int length = snprintf(start_of_line, sizeof start_of_line, "%s: ", program);
    const char *err = outcome->err;
    ck_assert_msg(outcome->code == code, "%s: exit code %d, not %d (%s): %.3000s", program,
                  outcome->code, code, words[0], err);
    ck_assert_msg(outcome->out[0] == '\0', "%s: on stdout: %.3000s", program, outcome->out);
    ck_assert_msg(strncmp(err, start_of_line, length) == 0 && strlen(err) > (size_t)length + 10,
                  "%s does not introduce itself, or says nothing: \"%.3000s\"", program, err);
    ck_assert_msg(strcspn(err, "\n") == strlen(err) - 1, "%s: not one line: \"%.3000s\"", program,
                  err);
    for (int w = 0; words[w]; w++)
        ck_assert_msg(strstr(err, words[w]) != NULL, "%s: no \"%s\" in: %.3000s", program, words[w],
                      err);
}

/* Runs the program, which must refuse and leave every file of the test as it was. */
static void refused_here(void (*prepare)(void), int code, const char *const *words,
                         const char *const *arguments)
{
    char *before = tree(folder);
    struct outcome outcome = run(prepare, arguments);
    check_refusal(&outcome, code, words);
    same_tree(tree(folder), before);
}

/* The same, with a RESULT that does not exist and with one that holds an earlier run's results. */
static void refused(void (*prepare)(void), int code, const char *const *words,
                    const char *const *arguments)
{
    scratch_remove(result);
    refused_here(prepare, code, words, arguments);
    make_earlier_results();
    refused_here(prepare, code, words, arguments);
}

/* PROBLEM must be refused as data. */
static void refused_problem(const char *const *words)
{
    refused(NULL, 1, words, LIST(problem, result));
}

/* ---- Problems that are not there, or damaged. */

TESTS(problem_folder, 0, PROGRAMS)
{
    begin(_i);
    refused_problem(LIST("problem: ", "No such file or directory"));
    write_text(problem, "text");
    refused_problem(LIST("problem: ", "not a folder"));

    /* A name that no system takes; and one that would make two lines of the message. */
    static char long_name[6000];
    memset(long_name, 'x', sizeof long_name - 1);
    refused(NULL, 1, LIST("too long"), LIST(long_name, result));

    /* One with room for do.npy, and none for mask.npy: cut, that would not be there. */
    unlink(problem);
    make_small_problem();
    size_t length = strlen(problem);
    strcpy(long_name, problem);
    for (; length + 2 <= 4088; length += 2)
        strcpy(long_name + length, "/.");
    refused(NULL, 1, LIST("the path of mask.npy is too long"), LIST(long_name, result));
    refused(NULL, 1, LIST("No such file or directory"), LIST("two\nlines", result));
}

TESTS(missing_file, 0, PROGRAMS)
{
    begin(_i);
    const char *const inputs[] = {"q", "k", "v", "do"};
    for (int f = 0; f < 4; f++) {
        make_small_problem();
        unlink(input_path(inputs[f]));
        char file[20];
        snprintf(file, sizeof file, "/%s.npy: ", inputs[f]);
        refused_problem(LIST(file, "No such file or directory",
                             f == 3 ? "--forward-only" : "build/problem makes problems"));
    }
}

/* All lines of text that hold the word, in a buffer that the next call reuses. */
static const char *lines_with(const char *text, const char *word)
{
    static char lines[4000];
    lines[0] = '\0';
    for (const char *at = text; *at;) {
        int length = (int)strcspn(at, "\n") + 1;
        char line[1000];
        snprintf(line, sizeof line, "%.*s", length, at);
        if (strstr(line, word))
            strncat(lines, line, sizeof lines - strlen(lines) - 1);
        at += length;
    }
    return lines;
}

TESTS(forward_only, 0, PROGRAMS)
{
    begin(_i);
    make_small_problem();
    make_folder(result);
    good(LIST(problem, result));
    char *full = tree(result);

    /* Gradients of the earlier run must not stand beside o of this one. */
    unlink(input_path("do"));
    struct outcome outcome = good(LIST("--forward-only", problem, result));
    ck_assert_str_eq(lines_with(outcome.out, "backward"), "");
    char kept[4000];
    snprintf(kept, sizeof kept, "%s folder\n", result);
    strcat(kept, lines_with(full, "/lse.npy"));
    strcat(kept, lines_with(full, "/o.npy"));
    same_tree(tree(result), strdup(kept));
    free(full);
}

TESTS(damaged_file, 0, PROGRAMS)
{
    begin(_i);
    const char *const inputs[] = {"q", "k", "v", "do"};
    const struct {
        const char *code, *fortran;
        size_t width;
        const char *says;
    } types[] = {{"<f4", "True", 4, "Fortran order"}, {">f4", "False", 4, "big-endian"},
                 {"<f8", "False", 8, "float64"},      {"<i4", "False", 4, "int32"},
                 {"|b1", "False", 1, "bool"},         {"<c8", "False", 8, "complex64"}};

    for (int f = 0; f < 4; f++) {
        char at[2048];
        strcpy(at, input_path(inputs[f]));
        bool of_keys = f == 1 || f == 2;
        int rows = of_keys ? 5 : 4;
        char file[20], shape[20];
        snprintf(file, sizeof file, "/%s.npy: ", inputs[f]);
        snprintf(shape, sizeof shape, "(1, %d, 2, 3)", rows);

        /* Not an .npy file at all. */
        make_small_problem();
        write_text(at, "Not by NumPy, but long enough to look at.");
        refused_problem(LIST(file, "not an .npy file"));
        write_text(at, "");
        refused_problem(LIST(file, "is empty"));
        unlink(at);
        make_folder(at);
        refused_problem(LIST(file, "is a folder"));

        /* Too short, in the header and in the data; too long. */
        make_small_problem();
        ck_assert_int_eq(truncate(at, 128 + rows * 6 * 4 - 1), 0);
        refused_problem(LIST(file, "is cut short"));
        ck_assert_int_eq(truncate(at, 50), 0);
        refused_problem(LIST(file, "ends inside the header"));
        make_small_problem();
        ck_assert_int_eq(truncate(at, 128 + rows * 6 * 4 + 1), 0);
        refused_problem(LIST(file, "has bytes after its data"));

        /* Whole files that hold something else. */
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            save_raw(inputs[f], types[t].code, types[t].fortran, shape, 0,
                     types[t].width * (size_t)rows * 6);
            refused_problem(LIST(file, types[t].says));
        }
    }
}

TESTS(damaged_mask, 0, PROGRAMS)
{
    begin(_i);
    make_small_problem();
    save_raw("mask", "|u1", "False", "(1, 5)", 1, 5);
    refused_problem(LIST("/mask.npy: ", "uint8", "bool"));
    save_raw("mask", "<f4", "False", "(1, 5)", 0, 20);
    refused_problem(LIST("/mask.npy: ", "float32", "a mask is bool"));
    save_raw("mask", "<f8", "False", "(1, 5)", 0, 40);
    refused_problem(LIST("/mask.npy: ", "float64", "a mask is bool"));
    save_raw("mask", "|b1", "False", "(1, 5)", 1, 4);
    refused_problem(LIST("/mask.npy: ", "is cut short"));

    /* A byte that is no bool: first, in the middle, last. */
    make_problem(NPY_FLOAT32, 2, 4, 5, 2, 2, 3);
    for (int at = 0; at < 10; at += at == 0 ? 7 : 2) {
        char index[20];
        snprintf(index, sizeof index, "[%d, %d]", at / 5, at % 5);
        save_raw("mask", "|b1", "False", "(2, 5)", 1, 10);
        int file = open(input_path("mask"), O_WRONLY);
        ck_assert_int_eq(pwrite(file, "\7", 1, 128 + at), 1);
        close(file);
        refused_problem(LIST("/mask.npy: ", index, "byte 7"));
    }

    /* A link that leads nowhere is not the same as no mask. */
    unlink(input_path("mask"));
    ck_assert_int_eq(symlink("nowhere", input_path("mask")), 0);
    refused_problem(LIST("/mask.npy: ", "No such file or directory"));
}

/* ---- Slices. */

#define FAR (INT64_C(1) << 61)

/* Saves PROBLEM/slices.npy. */
static void save_slices(int64_t (*slices)[6], int64_t count)
{
    write_array(input_path("slices"), NPY_INT64, 2, (int64_t[]){count, 6}, NPY_INT64, slices);
}

/* RESULT and the other results must have the same bits. */
static void same_results(void)
{
    for (int r = 0; r < 5; r++)
        same_file(path_of("result/%s.npy", result_names[r]),
                  path_of("other/%s.npy", result_names[r]));
}

TESTS(slices, 0, PROGRAMS)
{
    begin(_i);
    make_small_problem(); /* of 4 queries and 5 keys */
    save_slices((int64_t[][6]){{0, 4, 0, 5, -FAR, FAR}}, 1);
    if (number != 1) {
        refused(NULL, 2, LIST("/slices.npy: a mask of slices arrives in stage 13"),
                LIST(problem, result));
        return;
    }
    refused(NULL, 2, LIST("--causal: ", "/slices.npy is the whole mask", "hi = 1"),
            LIST("--causal", problem, result));

    /* Files that hold something else. */
    save_raw("slices", "<i4", "False", "(1, 6)", 0, 24);
    refused_problem(LIST("/slices.npy: ", "int32", "astype('int64')"));
    save_raw("slices", "<f8", "False", "(1, 6)", 0, 48);
    refused_problem(LIST("/slices.npy: ", "float64", "astype('int64')"));
    save_raw("slices", "<u8", "False", "(1, 6)", 0, 48);
    refused_problem(LIST("/slices.npy: ", "astype('int64')"));
    save_raw("slices", "<i8", "False", "(6,)", 0, 48);
    refused_problem(LIST("/slices.npy: ", "two axes"));
    save_raw("slices", "<i8", "False", "(2, 5)", 0, 80);
    refused_problem(LIST("/slices.npy: ", "axis 1 must be 6", "q0, q1, k0, k1, lo, hi"));
    save_raw("slices", "<i8", "False", "(2, 6)", 0, 88);
    refused_problem(LIST("/slices.npy: ", "is cut short"));

    /* Each of the four ends beyond its border; ends that are crossed; an overlap in one pair. */
    const struct {
        int64_t slice[6];
        const char *words[3];
    } cases[] = {
        {{-1, 4, 0, 5, 0, 0}, {"slice 2: q0, q1 = -1, 4", "N = 4"}},
        {{0, 5, 0, 5, 0, 0}, {"slice 2: q0, q1 = 0, 5", "N = 4"}},
        {{0, 4, -1, 5, 0, 0}, {"slice 2: k0, k1 = -1, 5", "M = 5"}},
        {{0, 4, 0, 6, 0, 0}, {"slice 2: k0, k1 = 0, 6", "M = 5"}},
        {{3, 2, 0, 5, 0, 0}, {"slice 2: q0, q1 = 3, 2"}},
        {{0, 4, 5, 4, 0, 0}, {"slice 2: k0, k1 = 5, 4"}},
        {{INT64_MIN, INT64_MAX, 0, 5, 0, 0}, {"slice 2: q0, q1 = -9223372036854775808, "}},
        {{0, 4, 0, 5, INT64_MIN, -3}, {"slices 0 and 2 overlap", "query 3 see key 0"}},
        {{0, 4, 0, 5, 4, INT64_MAX}, {"slices 1 and 2 overlap", "query 0 see key 4"}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int64_t list[3][6] = {{3, 4, 0, 2, -3, -2}, {0, 1, 4, 5, -FAR, FAR}};
        memcpy(list[2], cases[c].slice, sizeof list[2]);
        save_slices(list, 3);
        refused_problem(LIST(cases[c].words[0], cases[c].words[1]));
    }

    /* The masks that have flags: the same bits. Slices that see nothing change nothing. */
    for (int back = 0; back < 3; back++) {
        char lookback[] = {'0' + (char)back, 0};
        unlink(input_path("slices"));
        good(LIST("--causal", "--lookback", lookback, problem, result));
        save_slices((int64_t[][6]){{2, 2, 5, 5, -FAR, FAR},
                                   {2, 4, 0, 5, 1 - back, 1},
                                   {0, 4, 0, 5, 2, 1},
                                   {0, 2, 0, 5, 1 - back, 1}},
                    4);
        good(LIST(problem, other));
        same_results();
    }

    /* A list of no slices is a mask in which nobody sees anything. */
    save_slices(NULL, 0);
    ck_assert_ptr_nonnull(strstr(good(LIST(problem, result)).out, "multiply-adds forward 0\n"));
}

/* Runs with these flags, one blank between two, of which "ends" is a file in the folder. */
static struct outcome run_flags(const char *flags)
{
    char words[200];
    const char *arguments[14];
    int count = 0;
    snprintf(words, sizeof words, "%s", flags);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " "))
        arguments[count++] = strcmp(word, "ends") == 0 ? path_of("ends") : word;
    arguments[count++] = problem;
    arguments[count++] = result;
    arguments[count] = NULL;
    return run(NULL, arguments);
}

/* Each flag that makes a mask makes the slices that are written here. */
TEST(flags_of_slices)
{
    begin(0);
    const struct {
        const char *flags;
        int64_t count, slices[3][6];
    } cases[] = {
        {"--documents 2,6", 2, {{0, 2, 0, 2, -FAR, FAR}, {2, 6, 2, 6, -FAR, FAR}}},
        {"--causal --documents 0,2,2,6", 2, {{0, 2, 0, 2, -FAR, 0}, {2, 6, 2, 6, -FAR, 0}}},
        {"--causal --documents ends", 2, {{0, 2, 0, 2, -FAR, 0}, {2, 6, 2, 6, -FAR, 0}}},
        {"--causal --lookback 1 --documents 2,6", 2, {{0, 2, 0, 2, -1, 0}, {2, 6, 2, 6, -1, 0}}},
        {"--window 2,1", 1, {{0, 6, 0, 6, -2, 1}}},
        {"--window 2,1 --documents 2,6", 2, {{0, 2, 0, 2, -2, 1}, {2, 6, 2, 6, -2, 1}}},
        {"--causal --prefix 3", 2, {{0, 6, 0, 3, -FAR, FAR}, {0, 6, 3, 6, -FAR, 0}}},
        {"--causal --prefix 3 --documents 2,6",
         3,
         {{0, 2, 0, 2, -FAR, FAR}, {2, 6, 2, 5, -FAR, FAR}, {2, 6, 5, 6, -FAR, 0}}},
        {"--causal --lookback 1 --first 2", 2, {{0, 6, 0, 2, -FAR, 0}, {0, 6, 2, 6, -1, 0}}},
        {"--causal --chunk 4", 2, {{0, 4, 0, 4, -FAR, 0}, {4, 6, 4, 6, -FAR, 0}}},
        {"--causal --answers --documents 2,4,6",
         3,
         {{0, 6, 0, 2, -FAR, 0}, {2, 4, 2, 4, -FAR, 0}, {4, 6, 4, 6, -FAR, 0}}},
        {"--documents 2,6 --key-documents 3,6",
         2,
         {{0, 2, 0, 3, -FAR, FAR}, {2, 6, 3, 6, -FAR, FAR}}},
    };
    make_problem(NPY_FLOAT32, 1, 6, 6, 2, 2, 3);
    write_text(path_of("ends"), "2\n6 \n");
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        unlink(input_path("slices"));
        struct outcome outcome = run_flags(cases[c].flags);
        ck_assert_msg(outcome.code == 0, "%s: %.1000s", cases[c].flags, outcome.err);
        save_slices((int64_t(*)[6])(uintptr_t)cases[c].slices, cases[c].count);
        good(LIST(problem, other));
        same_results();
    }

    /* A window is as far from the last query's place beside the last key. */
    make_small_problem();
    good(LIST("--window", "2,0", problem, result));
    good(LIST("--causal", "--lookback", "2", problem, other));
    same_file(path_of("result/o.npy"), path_of("other/o.npy"));
}

TEST(misuse_of_slices)
{
    begin(0);
    const char *const cases[][2] = {
        {"--documents 2", "ends at 2, but the sequence at N = 6"},
        {"--documents 2,x", "'x' is no number"},
        {"--documents 2.5,6", "'.' is no number"},
        {"--documents nowhere", "No such file"},
        {"--documents 4,3,6", "end number 1 is 3; give rows in ascending order, up to N = 6"},
        {"--documents 7", "end number 0 is 7"},
        {"--documents 2,6 --key-documents 6", "1 of them; give as many as --documents, 2"},
        {"--key-documents 6", "--key-documents: needs --documents"},
        {"--causal --documents 6 --key-documents 6", "needs --documents, and no --causal"},
        {"--window 7", "--window 7: give how many"},
        {"--window 7,-1", "--window 7,-1: give how many"},
        {"--window 7,1x", "--window 7,1x: give how many"},
        {"--causal --window 7,1", "--window: takes no --causal"},
        {"--prefix 1", "--prefix: needs --causal"},
        {"--prefix 0", "--prefix 0: give a whole number, at least 1"},
        {"--causal --lookback 1 --prefix 1", "--prefix: needs --causal, and no --lookback"},
        {"--causal --first 1", "--first: needs --causal --lookback L"},
        {"--chunk 2", "--chunk: needs --causal"},
        {"--causal --chunk 2 --documents 6", "neither --lookback nor --documents"},
        {"--causal --answers", "--answers: needs --causal --documents ENDS"},
        {"--causal --prefix 1 --chunk 2", "--prefix and --chunk: give one of them"},
        {"--deal documents", "--deal arrives in stage 13"},
    };
    make_problem(NPY_FLOAT32, 1, 6, 6, 2, 2, 3);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct outcome outcome = run_flags(cases[c][0]);
        check_refusal(&outcome, 2, LIST(cases[c][1]));
    }

    /* Fewer queries than keys; and slices of the problem's beside those of a flag. */
    make_small_problem();
    refused(NULL, 2, LIST("as many keys as queries, not M = 5 for N = 4", "--key-documents"),
            LIST("--documents", "4", problem, result));
    save_slices(NULL, 0);
    refused(NULL, 2, LIST("--documents: ", "/slices.npy is the whole mask"),
            LIST("--documents", "4", problem, result));
    refused(NULL, 2, LIST("--window: ", "/slices.npy is the whole mask"),
            LIST("--window", "4,4", problem, result));

    /* Stages that know no slices. */
    choose(1);
    refused(NULL, 2, LIST("--documents arrives in stage 13"),
            LIST("--documents", "4", problem, result));
}

/* What takes part beside the keys: its shape; who does not know it; -inf, which a sink may be. */
TESTS(extras, 0, PROGRAMS)
{
    begin(_i);
    const struct {
        const char *name;
        int dims;
        int64_t shape[3], wrong[3];
        const char *what, *says;
    } cases[] = {{"sink", 1, {2}, {3}, "a sink of each head", "axis 0 must be 2, the H of q"},
                 {"slopes", 1, {2}, {1}, "a slope of each head", "axis 0 must be 2, the H of q"},
                 {"d_lse", 3, {1, 2, 4}, {1, 2, 5}, "a gradient of lse", "axis 2 must be 4"}};
    for (int c = 0; c < 3; c++) {
        char at[20], words[80];
        snprintf(at, sizeof at, "/%s.npy: ", cases[c].name);
        snprintf(words, sizeof words, "%s arrives in stage 13", cases[c].what);
        make_small_problem();
        save(cases[c].name, NPY_FLOAT32, cases[c].dims, cases[c].shape, -1, 0);
        if (number != 1) {
            refused(NULL, 2, LIST(at, words), LIST(problem, result));
            continue;
        }
        good(LIST(problem, result));
        ck_assert(exists(path_of("result/d_sink.npy")) == (c == 0));
        ck_assert(!exists(path_of("result/largest.npy")));
        good(LIST("--largest", "--forward-only", problem, result));
        ck_assert(!exists(path_of("result/d_sink.npy")));
        ck_assert(exists(path_of("result/largest.npy")));
        save(cases[c].name, NPY_FLOAT32, cases[c].dims, cases[c].shape, 1, -INFINITY);
        if (c == 0)
            good(LIST(problem, result));
        else
            refused_problem(LIST(at, "-inf at [", "must be finite"));
        save(cases[c].name, NPY_FLOAT32, cases[c].dims, cases[c].shape, 1, (double)NAN);
        refused_problem(LIST(at, "nan at [", "must be finite"));
        save(cases[c].name, NPY_FLOAT32, cases[c].dims, cases[c].wrong, -1, 0);
        refused_problem(LIST(at, cases[c].says));
        save(cases[c].name, NPY_FLOAT32, 2, (int64_t[]){2, 2}, -1, 0);
        refused_problem(LIST(at, c < 2 ? "one axis, (H)" : "three axes, (B, H, N)"));
    }
}

/* ---- Shapes. */

TESTS(shapes, 0, PROGRAMS)
{
    begin(_i);
    const struct {
        const char *name;
        int dims;
        int64_t shape[5];
        const char *words[3];
    } cases[] = {
        /* Too few axes, and too many. */
        {"q", 3, {4, 2, 3}, {"/q.npy: ", "(4, 2, 3)", "four axes"}},
        {"k", 2, {5, 6}, {"/k.npy: ", "(5, 6)", "four axes"}},
        {"v", 5, {1, 5, 2, 3, 1}, {"/v.npy: ", "(1, 5, 2, 3, 1)", "four axes"}},
        {"do", 1, {24}, {"/do.npy: ", "(24)", "four axes"}},
        {"mask", 1, {5}, {"/mask.npy: ", "(5)", "two axes"}},
        {"mask", 3, {1, 5, 1}, {"/mask.npy: ", "(1, 5, 1)", "two axes"}},

        /* Axes that disagree with q (1, 4, 2, 3) or with k (1, 5, 2, 3). */
        {"k", 4, {2, 5, 2, 3}, {"/k.npy: ", "axis 0 must be 1", "B of q"}},
        {"k", 4, {1, 5, 2, 4}, {"/k.npy: ", "axis 3 must be 3", "D of q"}},
        {"v", 4, {2, 5, 2, 3}, {"/v.npy: ", "axis 0 must be 1", "as in k"}},
        {"v", 4, {1, 4, 2, 3}, {"/v.npy: ", "axis 1 must be 5", "as in k"}},
        {"v", 4, {1, 5, 1, 3}, {"/v.npy: ", "axis 2 must be 2", "as in k"}},
        {"v", 4, {1, 5, 2, 2}, {"/v.npy: ", "axis 3 must be 3", "as in k"}},
        {"do", 4, {2, 4, 2, 3}, {"/do.npy: ", "axis 0 must be 1", "as in q"}},
        {"do", 4, {1, 5, 2, 3}, {"/do.npy: ", "axis 1 must be 4", "as in q"}},
        {"do", 4, {1, 4, 1, 3}, {"/do.npy: ", "axis 2 must be 2", "as in q"}},
        {"do", 4, {1, 4, 2, 4}, {"/do.npy: ", "axis 3 must be 3", "as in q"}},
        {"mask", 2, {2, 5}, {"/mask.npy: ", "axis 0 must be 1", "B of q"}},
        {"mask", 2, {1, 4}, {"/mask.npy: ", "axis 1 must be 5", "M of k"}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        make_small_problem();
        if (strcmp(cases[c].name, "mask") == 0) {
            write_array(input_path("mask"), NPY_BOOL, cases[c].dims, cases[c].shape, NPY_BOOL,
                        NULL);
        } else {
            save(cases[c].name, NPY_FLOAT32, cases[c].dims, cases[c].shape, -1, 0);
        }
        /* To 01-naive values of another width are values: then do is wrong. */
        bool narrow = number == 1 && strcmp(cases[c].words[1], "axis 3 must be 3") == 0;
        if (narrow && cases[c].name[0] == 'v')
            refused_problem(LIST("/do.npy: ", "axis 3 must be 2", "as in v"));
        else
            refused_problem(
                LIST(cases[c].words[0], cases[c].words[1],
                     narrow && cases[c].name[0] == 'd' ? "as in v" : cases[c].words[2]));
    }
}

TESTS(integers, 0, PROGRAMS)
{
    begin(_i);
    for (enum npy_type t = NPY_UINT8; t <= NPY_INT64; t++)
        for (int mask = 0; mask < 2; mask++) {
            make_small_problem();
            write_array(input_path(mask ? "mask" : "v"), t, mask ? 2 : 4, (int64_t[]){1, 5, 2, 3},
                        t, NULL);
            refused_problem(LIST(mask ? "/mask.npy: " : "/v.npy: ", npy_type_name(t),
                                 mask ? "astype('bool')" : "astype('float32')"));
        }
}

TESTS(empty_axes, 0, PROGRAMS)
{
    begin(_i);
    const char *const letters[] = {"B = 0", "N = 0", "M = 0", "H = 0", "G = 0", "D = 0"};
    for (int zero = 0; zero < 6; zero++) {
        int64_t sizes[] = {1, 4, 5, 2, 2, 3};
        sizes[zero] = 0;
        make_problem(NPY_FLOAT32, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]);
        bool of_keys = zero == 2 || zero == 4;
        refused_problem(
            LIST(of_keys ? "/k.npy: " : "/q.npy: ", letters[zero], "every axis needs at least 1"));
    }
}

TESTS(heads, 0, PROGRAMS)
{
    begin(_i);
    make_problem(NPY_FLOAT32, 1, 4, 5, 3, 2, 3);
    refused_problem(LIST("/k.npy: ", "G = 2", "do not divide", "H = 3"));
    make_problem(NPY_FLOAT32, 1, 4, 5, 2, 4, 3);
    refused_problem(LIST("/k.npy: ", "G = 4", "do not divide", "H = 2"));

    /* Grouped heads: only the judge knows them yet. */
    make_problem(NPY_FLOAT32, 1, 4, 5, 4, 2, 3);
    if (number == 1)
        good(LIST(problem, result));
    else
        refused(NULL, 2, LIST("G = 2", "H = 4", "arrive in stage 07"), LIST(problem, result));
}

/* ---- Numbers. */

TESTS(not_finite, 0, PROGRAMS)
{
    begin(_i);
    const struct {
        const char *name;
        int64_t shape[4];
    } inputs[] = {
        {"q", {2, 4, 2, 3}}, {"k", {2, 5, 2, 3}}, {"v", {2, 5, 2, 3}}, {"do", {2, 4, 2, 3}}};
    const double values[] = {NAN, INFINITY, -INFINITY};
    const char *const texts[] = {"nan at ", ": inf at ", ": -inf at "};

    make_problem(NPY_FLOAT32, 2, 4, 5, 2, 2, 3);
    for (int f = 0; f < 4; f++) {
        const int64_t *shape = inputs[f].shape;
        int64_t last = shape[0] * shape[1] * 6 - 1, places[] = {0, 5, last / 2, last - 6, last};
        char file[20], index[100];
        snprintf(file, sizeof file, "/%s.npy: ", inputs[f].name);
        for (int p = 0; p < 5; p++) {
            int64_t e = places[p];
            snprintf(index, sizeof index, " [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "];",
                     e / 6 / shape[1], e / 6 % shape[1], e / 3 % 2, e % 3);
            for (int v = 0; v < 3; v++)
                for (int half = 0; half < 2; half++) {
                    save(inputs[f].name, half ? NPY_FLOAT16 : NPY_FLOAT32, 4, shape, e, values[v]);
                    refused_problem(LIST(file, texts[v], index, "finite"));
                }
        }

        /* The file as it should be, for the next one's turn. */
        save(inputs[f].name, NPY_FLOAT32, 4, shape, -1, 0);
    }
}

/* Finite inputs whose scores are not: too large for float32, or with a factor for double. */
TESTS(results_not_finite, 0, PROGRAMS)
{
    begin(_i);
    make_small_problem();
    save("q", NPY_FLOAT32, 4, (int64_t[]){1, 4, 2, 3}, 0, 3e38);
    save("k", NPY_FLOAT32, 4, (int64_t[]){1, 5, 2, 3}, 0, 3e38);
    const char *factor = number == 1 ? "1e300" : "1", *type = number == 1 ? "float64" : "float32";
    refused(NULL, 1, LIST("o.npy: ", "among the results", type),
            LIST("--scale", factor, problem, result));
    refused(NULL, 1, LIST("o.npy: ", "among the results", type),
            LIST("--forward-only", "--scale", factor, problem, result));

    /* Scores of 0, but 48 values of 2e37 (the bytes 7d), whose sum in float32 is infinite. */
    make_problem(NPY_FLOAT32, 1, 1, 48, 1, 1, 1);
    save_raw("q", "<f4", "False", "(1, 1, 1, 1)", 0, 4);
    save_raw("v", "<f4", "False", "(1, 48, 1, 1)", 0x7d, 48 * 4);
    if (number == 1)
        good(LIST("--forward-only", problem, result));
    else
        refused(NULL, 1, LIST("o.npy: inf among the results", "sums of values"),
                LIST("--forward-only", problem, result));
}

/* ---- Results that cannot be written. */

TESTS(result_folder, 0, PROGRAMS)
{
    begin(_i);
    make_small_problem();
    write_text(path_of("file"), "text");
    refused_here(NULL, 1, LIST("/no/result: ", "No such file or directory"),
                 LIST(problem, path_of("no/result")));
    refused_here(NULL, 1, LIST("/file/result: ", "Not a directory"),
                 LIST(problem, path_of("file/result")));
    refused_here(NULL, 1, LIST("/file: is not a folder"), LIST(problem, path_of("file")));

    static char long_name[6000];
    memset(long_name, 'x', sizeof long_name - 1);
    refused_here(NULL, 1, LIST("too long"), LIST(problem, long_name));

    /* A folder that stands where a result must go: the results before it must not be replaced. */
    for (int r = 0; r < 5; r++) {
        char name[20];
        snprintf(name, sizeof name, "%s.npy", result_names[r]);
        scratch_remove(result);
        make_earlier_results();
        unlink(path_of("result/%s", name));
        make_folder(path_of("result/%s", name));
        strcat(name, "/x");
        write_text(path_of("result/%s", name), "text");
        refused_here(NULL, 1, LIST("holds", name), LIST(problem, result));
    }

    /* Root may write anywhere, so this part says nothing to it. */
    if (geteuid() == 0)
        return;
    scratch_remove(result);
    make_earlier_results();
    chmod(result, 0555);
    struct outcome outcome = run(NULL, LIST(problem, result));
    chmod(result, 0777);
    check_refusal(&outcome, 1, LIST(result, "Permission denied"));
}

static void limit_files(void)
{
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, limit});
}

static void limit_files_as_a_shell_does(void)
{
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){limit, limit});
}

TESTS(file_limit, 0, PROGRAMS)
{
    begin(_i);
    /* The first result is too large; then only the fourth, dk. */
    limit = 1000;
    for (int round = 0; round < 2; round++) {
        make_problem(NPY_FLOAT32, 1, round == 0 ? 100 : 4, 100, 2, 2, 3);
        const char *file = round == 0 ? "/o.npy: " : "/dk.npy: ";
        refused(limit_files, 1, LIST(file, "File too large"), LIST(problem, result));
        refused(limit_files_as_a_shell_does, 1, LIST(file, "File too large"),
                LIST(problem, result));
    }
}

TESTS(small_disk, 0, PROGRAMS)
{
    begin(_i);
    make_small_problem();
    make_folder(result);
    if (!small_disk_mount(result)) {
        printf("check_stage: skipped for %s: full and read-only disks, for want of a mount\n",
               program);
        fflush(stdout);
        return;
    }

    /* A small result fits, also beside itself; a large one is refused, and the small stays. */
    char there[2048];
    strcpy(there, path_of("result/result"));
    good(LIST(problem, there));
    good(LIST(problem, there));
    make_problem(NPY_FLOAT32, 1, 256, 64, 2, 2, 32);
    refused_here(NULL, 1, LIST("/o.npy: ", "No space left on device"), LIST(problem, there));
    make_problem(NPY_FLOAT32, 1, 4, 256, 2, 2, 32);
    refused_here(NULL, 1, LIST("/dk.npy: ", "No space left on device"), LIST(problem, there));

    /* The disk itself cannot be replaced. Read-only: a folder that exists, and one to be
     * created. */
    make_small_problem();
    refused_here(NULL, 1, LIST("/result: is mounted"), LIST(problem, result));
    ck_assert_int_eq(mount("none", result, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
    refused_here(NULL, 1, LIST("/result: ", "Read-only file system"), LIST(problem, there));
    refused_here(NULL, 1, LIST("/new: ", "Read-only file system"),
                 LIST(problem, path_of("result/new")));
}

static void close_stdout(void)
{
    close(STDOUT_FILENO);
}

static void close_all(void)
{
    close(STDIN_FILENO);
    close(STDOUT_FILENO);
    close(STDERR_FILENO);
}

static void full_stdout(void)
{
    dup2(open("/dev/full", O_WRONLY), STDOUT_FILENO);
}

/* A pipe whose reader has gone, as in `program | head -0`. */
static void broken_stdout(void)
{
    int ends[2];
    if (pipe(ends) == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
    }
}

TESTS(stdout_fails, 0, PROGRAMS)
{
    begin(_i);
    make_small_problem();
    refused(close_stdout, 1, LIST("stdout", "Bad file descriptor"), LIST(problem, result));
    refused(full_stdout, 1, LIST("stdout", "No space left on device"), LIST(problem, result));
    refused(broken_stdout, 1, LIST("stdout", "Broken pipe"), LIST(problem, result));
    refused(full_stdout, 1, LIST("stdout", "No space left on device"), LIST("--help"));

    /* With no stream at all a message can reach nobody; files must not be mistaken for streams. */
    char *before = tree(folder);
    ck_assert_int_eq(run(close_all, LIST(problem, result)).code, 1);
    same_tree(tree(folder), before);
}

/* ---- The command line. */

static const struct {
    const char *name, *value;
    int arrives;
    bool naive; /* 01-naive knows it, as the judge of the stage that it arrives in */
} flags[] = {{"--version", NULL, 1, true},       {"--help", NULL, 1, true},
             {"--forward-only", NULL, 1, true},  {"--scale", "0.5", 1, true},
             {"--time", NULL, 1, true},          {"--tile-queries", "8", 2, false},
             {"--tile-keys", "8", 2, false},     {"--ring-size", "2", 3, false},
             {"--local-keys", NULL, 3, false},   {"--timeout", "9", 3, false},
             {"--trace", "file", 3, false},      {"--per-hop", NULL, 3, false},
             {"--causal", NULL, 4, true},        {"--layout", "striped", 5, false},
             {"--bucket", "2", 5, false},        {"--lookback", "3", 6, true},
             {"--head-map", "grouped", 7, true}, {"--softcap", "5", 8, true}};
enum { FLAGS = sizeof flags / sizeof *flags };

static bool known(int flag)
{
    return flags[flag].arrives <= number || (number == 1 && flags[flag].naive);
}

TESTS(flags_that_arrive_later, 0, PROGRAMS)
{
    begin(_i);
    make_small_problem();
    int later = 0;
    for (int f = 0; f < FLAGS; f++) {
        char line[100];
        if (known(f))
            continue;
        snprintf(line, sizeof line, "%s: %s arrives in stage %02d\n", program, flags[f].name,
                 flags[f].arrives);
        const char *const *arguments = flags[f].value
                                           ? LIST(flags[f].name, flags[f].value, problem, result)
                                           : LIST(flags[f].name, problem, result);
        refused(NULL, 2, LIST(line), arguments);
        ck_assert_str_eq(run(NULL, arguments).err, line);
        later++;
    }
    ck_assert_int_eq(later, number == 1 ? 9 : 11);
}

TESTS(help, 0, PROGRAMS)
{
    begin(_i);
    struct outcome outcome = good(LIST("--help"));
    const char *const names[] = {"PROBLEM", "RESULT", "Usage", program};
    for (int n = 0; n < 4; n++)
        ck_assert_msg(strstr(outcome.out, names[n]) != NULL, "no %s in:\n%s", names[n],
                      outcome.out);

    /* The blank keeps --time apart from --timeout. */
    for (int f = 0; f < FLAGS; f++) {
        char word[40];
        snprintf(word, sizeof word, " %s ", flags[f].name);
        ck_assert_msg((strstr(outcome.out, word) != NULL) == known(f), "%s: %s: %s", program,
                      flags[f].name, known(f) ? "missing" : "not known yet");
    }
}

TESTS(misuse, 0, PROGRAMS)
{
    begin(_i);
    make_small_problem();
    refused(NULL, 2, LIST("two folders", "got 0", "--help"), (const char *const[]){NULL});
    refused(NULL, 2, LIST("two folders", "got 1"), LIST(problem));
    refused(NULL, 2, LIST("two folders", "got 3"), LIST(problem, result, result));

    /* The message must name the flag, wherever it stands. */
    refused(NULL, 2, LIST(" --no-such-flag "), LIST("--no-such-flag", problem, result));
    refused(NULL, 2, LIST(" --no-such-flag "), LIST(problem, result, "--no-such-flag"));
    refused(NULL, 2, LIST(" --no-such=3 "), LIST(problem, "--no-such=3", result));
    refused(NULL, 2, LIST(" -x "), LIST(problem, "-x", result));
    refused(NULL, 2, LIST("--two?lines"), LIST("--two\nlines", problem, result));
    refused(NULL, 2, LIST(" --scale needs a value"), LIST("--scale"));
    refused(NULL, 2, LIST(" --scale needs a value"), LIST(problem, result, "--scale"));
    refused(NULL, 2, LIST("--time", "no value"), LIST("--time=3", problem, result));
    refused(NULL, 2, LIST("--forward-only", "no value"), LIST("--forward-only=3", problem, result));
}

TESTS(junk_values, 0, PROGRAMS)
{
    begin(_i);
    make_small_problem();
    const struct {
        int first, last; /* the stages that know the flag */
        const char *flag, *value, *says;
    } cases[] = {
        {1, 2, "--scale", "nan", "finite number"},
        {2, 2, "--scale", "-1e39", "float32"},
        {1, 2, "--scale", "inf", "finite number"},
        {1, 2, "--scale", "1e999", "finite number"},
        {1, 2, "--scale", "abc", "finite number"},
        {1, 2, "--scale", "1.5x", "finite number"},
        {1, 2, "--scale", "", "finite number"},
        {1, 1, "--softcap", "0", "above 0"},
        {1, 1, "--softcap", "-1", "above 0"},
        {1, 1, "--softcap", "nan", "a normal number"},
        {1, 1, "--softcap", "", "a normal number"},
        {1, 1, "--head-map", "x", "grouped or interleaved"},
        {1, 1, "--head-map", "", "grouped or interleaved"},
        {1, 1, "--lookback", "-1", "whole number, at least 0"},
        {1, 1, "--lookback", "1.5", "whole number, at least 0"},
        {1, 1, "--lookback", "abc", "whole number, at least 0"},
        {1, 1, "--lookback", "none", "whole number, at least 0; for none, leave the flag out"},
        {1, 1, "--lookback", "", "whole number, at least 0"},
        {2, 2, "--tile-queries", "0", "whole number, at least 1"},
        {2, 2, "--tile-queries", "-1", "whole number, at least 1"},
        {2, 2, "--tile-queries", "1.5", "whole number, at least 1"},
        {2, 2, "--tile-queries", "1e3", "whole number, at least 1"},
        {2, 2, "--tile-keys", "0", "whole number, at least 1"},
        {2, 2, "--tile-keys", "abc", "whole number, at least 1"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        if (number < cases[c].first || number > cases[c].last)
            continue;
        char both[100];
        snprintf(both, sizeof both, "%s %s: ", cases[c].flag, cases[c].value);
        refused(NULL, 2, LIST(both, cases[c].says),
                strcmp(cases[c].flag, "--lookback") == 0
                    ? LIST("--causal", cases[c].flag, cases[c].value, problem, result)
                    : LIST(cases[c].flag, cases[c].value, problem, result));
    }
    if (number == 1)
        refused(NULL, 2, LIST("--lookback needs --causal"),
                LIST("--lookback", "3", problem, result));
}

/* ---- Good runs. */

/* The numbers of RESULT/NAME.npy, which must have this type and shape and hold no NaN. The caller
 * frees them. */
static double *load(const char *place, int which, int64_t B, int64_t N, int64_t M, int64_t H,
                    int64_t G, int64_t D)
{
    char path[2200];
    snprintf(path, sizeof path, "%s/%s.npy", place, result_names[which]);
    struct npy file;
    ck_assert_msg(npy_open(&file, path), "%s", file.error);
    int64_t lengths[5][4] = {{B, N, H, D}, {B, H, N, 1}, {B, N, H, D}, {B, M, G, D}, {B, M, G, D}};
    ck_assert_int_eq(file.type, number == 1 ? NPY_FLOAT64 : NPY_FLOAT32);
    ck_assert_int_eq(file.dims, which == 1 ? 3 : 4);
    for (int axis = 0; axis < file.dims; axis++)
        ck_assert_int_eq(file.shape[axis], lengths[which][axis]);

    int64_t count = npy_elements(&file);
    double *values = calloc((size_t)count, sizeof *values);
    ck_assert_msg(npy_read(&file, (struct npy_slice){0, 0, 0, 1, B}, NPY_FLOAT64, values), "%s",
                  file.error);
    for (int64_t e = 0; e < count; e++)
        ck_assert_msg(!isnan(values[e]), "%s: NaN at %" PRId64, path, e);
    npy_close(&file);
    return values;
}

/* Fails unless the folder holds the five results and nothing else. */
static void check_only_results(const char *place)
{
    char *all = tree(place);
    int lines = 0;
    for (const char *at = all; *at; at++)
        lines += *at == '\n';
    ck_assert_msg(lines == 1 + 5, "five files were expected: %s", all);
    free(all);
}

/* Fails unless the text is lines of words, a blank, and an integer. */
static void check_counts(const char *text)
{
    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n"), words = strspn(line, "abcdefghijklmnopqrstuvwxyz -");
        size_t digits = strspn(line + words, "0123456789");
        ck_assert_msg(words > 1 && line[words - 1] == ' ' && line[words - 2] != ' ' && digits > 0 &&
                          words + digits == length && line[length] == '\n',
                      "not words and an integer: %.*s", (int)length, line);
        line += length + 1;
    }
}

/* The integer of the line of stdout that has this name. */
static int64_t count_of(const struct outcome *outcome, const char *name)
{
    const char *line = strstr(outcome->out, name);
    ck_assert_msg(line != NULL, "%s does not print %s: %s", program, name, outcome->out);
    return strtoll(line + strlen(name), NULL, 10);
}

TESTS(good_run, 0, PROGRAMS)
{
    begin(_i);
    make_small_problem();
    struct outcome first = good(LIST(problem, result));
    check_counts(first.out);
    check_only_results(result);
    for (int r = 0; r < 5; r++)
        free(load(result, r, 1, 4, 5, 2, 2, 3));

    /* 2 heads of 4 x 5 pairs of 3 numbers: two products forward; four backward, or five where the
     * scores are computed anew. */
    ck_assert_int_eq(count_of(&first, "multiply-adds forward "), 2 * 2 * 4 * 5 * 3);
    ck_assert_int_eq(count_of(&first, "multiply-adds backward "),
                     (number == 1 ? 4 : 5) * 2 * 4 * 5 * 3);

    /* What is held: q, do, o, dq of 24 numbers, k, v, dk, dv of 30, lse of 8. Then the scores of a
     * head, in double; or max, delta and, in double, sum, what is lost of o, dk and dv, two tiles
     * of 4 x 5, keys on their side, 3 x 5, and a row of 3. */
    int64_t in = 2 * 24 + 2 * 30, out = in + 8, lost = 24 + 2 * 30;
    ck_assert_int_eq(count_of(&first, "peak bytes "),
                     number == 1 ? 4 * in + 8 * (out + 4 * 5 + 2 * 2)
                                 : 4 * (in + out + lost + 4 * 8 + 2 * 20 + 18));

    /* A second run gives the same bytes, and --time adds one line to stderr alone. */
    char *before = tree(result);
    struct outcome second = good(LIST(problem, result)),
                   timed = run(NULL, LIST("--time", problem, result));
    same_tree(tree(result), before);
    ck_assert_str_eq(second.out, first.out);
    ck_assert_str_eq(timed.out, first.out);
    ck_assert_int_eq(timed.code, 0);
    ck_assert_msg(strstr(timed.err, "seconds") && strstr(timed.err, "forward") &&
                      strcspn(timed.err, "\n") == strlen(timed.err) - 1,
                  "not one line of seconds: \"%.3000s\"", timed.err);

    /* On a problem that takes a while, every lap but none more than the whole run. */
    double lap[4], whole = ra_seconds();
    make_problem(NPY_FLOAT32, 1, 300, 300, 1, 1, 8);
    timed = run(NULL, LIST("--time", problem, result));
    whole = ra_seconds() - whole;
    ck_assert_int_eq(sscanf(timed.err, "seconds read %lf forward %lf backward %lf write %lf",
                            &lap[0], &lap[1], &lap[2], &lap[3]),
                     4);
    ck_assert_msg(lap[0] > 0 && lap[1] > 1e-5 && lap[2] > 1e-5 && lap[3] > 0 &&
                      lap[0] + lap[1] + lap[2] + lap[3] < whole,
                  "a run of %g seconds: %s", whole, timed.err);
}

/* What is not of a run stays, since RESULT is replaced as a whole: that is said before the work. */
TESTS(other_files_stay, 0, PROGRAMS)
{
    begin(_i);
    make_small_problem();
    const char *const names[] = {"notes.txt", ".hidden", "o.npy~", "sub/o.npy"};
    for (int n = 0; n < 4; n++) {
        scratch_remove(result);
        make_earlier_results();
        if (n == 3)
            make_folder(path_of("result/sub"));
        write_text(path_of("result/%s", names[n]), "keep me");
        refused_here(NULL, 1, LIST("/result: holds ", n == 3 ? "sub" : names[n]),
                     LIST(problem, result));
    }
    refused_here(NULL, 1, LIST("/problem: holds ", ".npy"), LIST(problem, problem));
}

TESTS(masks_and_halves, 0, PROGRAMS)
{
    begin(_i);
    make_problem(NPY_FLOAT16, 2, 4, 5, 2, 2, 3);
    good(LIST(problem, result));
    check_only_results(result);
    for (int r = 0; r < 5; r++)
        free(load(result, r, 2, 4, 5, 2, 2, 3));

    /* A mask of ones changes no byte; one of zeros leaves nothing to see. */
    char *before = tree(result);
    save_raw("mask", "|b1", "False", "(2, 5)", 1, 10);
    good(LIST(problem, result));
    same_tree(tree(result), before);
    save_raw("mask", "|b1", "False", "(2, 5)", 0, 10);
    good(LIST(problem, result));
    for (int r = 0; r < 5; r++) {
        double *values = load(result, r, 2, 4, 5, 2, 2, 3);
        ck_assert(values[0] == (r == 1 ? -INFINITY : 0));
        free(values);
    }
}

/* The results of a run with these arguments, as a text. The caller frees it. */
static char *results_of(const char *const *arguments)
{
    good(arguments);
    return tree(result);
}

/* Fails unless these two lists of arguments give results that are equal, or that differ. */
static void check_equal(bool equal, const char *const *left, const char *const *right)
{
    char *left_results = results_of(left), *right_results = results_of(right);
    ck_assert_msg((strcmp(left_results, right_results) == 0) == equal, "%s: %s %s and %s %s %s",
                  program, left[0], left[1], right[0], right[1],
                  equal ? "differ" : "do not differ");
    free(left_results);
    free(right_results);
}

TESTS(flags_have_effect, 0, PROGRAMS)
{
    begin(_i);
    make_problem(NPY_FLOAT32, 1, 4, 5, 4, number == 1 ? 2 : 4, 4);
    check_equal(true, LIST(problem, result), LIST("--scale", "0.5", problem, result));
    check_equal(false, LIST(problem, result), LIST("--scale", "2", problem, result));
    check_equal(false, LIST(problem, result), LIST("--scale", "-0.5", problem, result));
    if (number != 1)
        return;

    /* The rules that only the judge knows yet. */
    const char *const *plain = LIST(problem, result);
    const char *const *causal = LIST("--causal", problem, result);
    check_equal(false, plain, causal);
    check_equal(true, causal, LIST("--causal", "--lookback", "5", problem, result));
    check_equal(true, causal,
                LIST("--causal", "--lookback", "99999999999999999999", problem, result));
    check_equal(false, causal, LIST("--causal", "--lookback", "1", problem, result));
    check_equal(true, plain, LIST("--head-map", "grouped", problem, result));
    check_equal(false, plain, LIST("--head-map", "interleaved", problem, result));
    check_equal(false, plain, LIST("--softcap", "2", problem, result));
}

TEST(tiles)
{
    begin(1);
    enum { N = 100, M = 70, H = 2, D = 8 };
    make_problem(NPY_FLOAT32, 1, N, M, H, H, D);
    good(LIST(problem, result));
    const char *const sizes[][2] = {{"1", "1"},    {"1", "64"},
                                    {"64", "1"},   {"7", "3"},
                                    {"100", "70"}, {"1000", "1000"},
                                    {"1", "9999"}, {"9223372036854775807", "9223372036854775807"}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        good(LIST("--tile-queries", sizes[s][0], "--tile-keys", sizes[s][1], problem, other));
        for (int r = 0; r < 5; r++) {
            int64_t count = r == 1 ? H * N : (r < 3 ? N : M) * H * D;
            double *want = load(result, r, 1, N, M, H, H, D);
            double *got = load(other, r, 1, N, M, H, H, D);
            for (int64_t e = 0; e < count; e++)
                ck_assert_msg(fabs(got[e] - want[e]) <= 1e-5,
                              "tiles of %s x %s: %s: %g, not %g, at %" PRId64, sizes[s][0],
                              sizes[s][1], result_names[r], got[e], want[e], e);
            free(want);
            free(got);
        }
    }
}

/* ---- Signals. */

/* Has a run into RESULT begun its last result, in a hidden folder beside it? */
static bool has_begun(void)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, NULL);
    bool begun = false;
    ck_assert_int_ge(count, 0);
    for (int e = 0; e < count; e++) {
        begun = begun || (strncmp(entries[e]->d_name, ".result.", 8) == 0 &&
                          exists(path_of("%s/new/dv.npy", entries[e]->d_name)));
        free(entries[e]);
    }
    free(entries);
    return begun;
}

/* Waits until the run has begun its last result, and a little longer: now it computes. */
static void wait_for_work(void)
{
    const struct timespec pause = {0, 2000000};
    bool begun = false;
    for (int turns = 0; turns < 20000 && !begun; turns++) {
        begun = has_begun();
        nanosleep(&pause, NULL);
    }
    ck_assert_msg(begun, "%s never began", program);
    for (int turns = 0; turns < 10; turns++)
        nanosleep(&pause, NULL);
}

TESTS(killed, 0, PROGRAMS)
{
    begin(_i);
    /* Seconds of work, for either. */
    if (number == 1)
        make_problem(NPY_FLOAT32, 1, 3000, 3000, 4, 4, 64);
    else
        make_problem(NPY_FLOAT32, 1, 8000, 8000, 2, 2, 64);
    const int deadly[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGXCPU};
    for (int s = 0; s < 6; s++) {
        scratch_remove(result);
        if (s % 2 == 1)
            make_earlier_results();
        char *before = tree(folder);
        struct running running = start_program(NULL, binary, LIST(problem, result));
        wait_for_work();
        kill(running.id, deadly[s]);
        struct outcome outcome = end_program(running);
        ck_assert_int_eq(outcome.code, 128 + deadly[s]);
        ck_assert_str_eq(outcome.out, "");
        same_tree(tree(folder), before);
    }
}

static void ignore_hangup(void)
{
    signal(SIGHUP, SIG_IGN);
}

TESTS(nohup, 0, PROGRAMS)
{
    begin(_i);
    make_problem(NPY_FLOAT32, 1, 1000, 1000, 1, 1, 64);
    struct running running = start_program(ignore_hangup, binary, LIST(problem, result));
    wait_for_work();
    kill(running.id, SIGHUP);
    struct outcome outcome = end_program(running);
    ck_assert_msg(outcome.code == 0, "%s: exit code %d: %.3000s", program, outcome.code,
                  outcome.err);
    check_only_results(result);
}

/* ---- Memory. */

/* The peak bytes of a problem with N = M. */
static int64_t peak_bytes(int64_t length)
{
    make_problem(NPY_FLOAT32, 1, length, length, 1, 1, 16);
    struct outcome outcome = good(LIST(problem, result));
    return count_of(&outcome, "peak bytes ");
}

TESTS(memory_grows, 0, PROGRAMS)
{
    begin(_i);
    int64_t peaks[] = {peak_bytes(256), peak_bytes(512), peak_bytes(1024)};
    for (int p = 1; p < 3; p++)
        ck_assert_msg(number == 1 ? peaks[p] > 3 * peaks[p - 1] || p == 1
                                  : peaks[p] > peaks[p - 1] && 100 * peaks[p] <= 205 * peaks[p - 1],
                      "%s: peak bytes %" PRId64 ", %" PRId64 ", %" PRId64, program, peaks[0],
                      peaks[1], peaks[2]);
}

static void limit_memory(void)
{
    setrlimit(RLIMIT_AS, &(struct rlimit){limit, limit});
}

/* Is this the build with sanitizers, which reserve terabytes of addresses? */
static bool sanitized(void)
{
    const char *build = getenv("BUILD");
    size_t length = build ? strlen(build) : 0;
    return length >= 4 && strcmp(build + length - 4, "asan") == 0;
}

TEST(memory_is_what_is_printed)
{
    begin(1);
    if (sanitized()) {
        printf("check_stage: skipped: the limit on memory, for a sanitizer exceeds any\n");
        fflush(stdout);
        return;
    }
    make_problem(NPY_FLOAT32, 1, 4096, 4096, 1, 1, 8);
    struct outcome free_run = good(LIST(problem, result));
    char *want = tree(result);

    /* Arrays as printed, and 32 MiB for the program: enough for tiles, not for all scores. */
    limit = (rlim_t)count_of(&free_run, "peak bytes ") + (32 << 20);
    struct outcome outcome = run(limit_memory, LIST(problem, result));
    ck_assert_msg(outcome.code == 0, "exit code %d: %.3000s", outcome.code, outcome.err);
    same_tree(tree(result), want);

    choose(0);
    refused(limit_memory, 1, LIST("out of memory", "4096 elements of 32768 bytes", "ulimit -v"),
            LIST(problem, result));
}

TEST(memory_beyond_the_machine)
{
    /* 8 TB of scores: more than the machine has, so refused before any is touched. */
    begin(0);
    make_problem(NPY_FLOAT32, 1, 1000000, 1000000, 1, 1, 1);
    refused(NULL, 1, LIST("out of memory", "1000000 elements of 8000000 bytes", "for each rank"),
            LIST(problem, result));
}

int main(void)
{
    return suite_main_in_folder("stage", 120);
}
