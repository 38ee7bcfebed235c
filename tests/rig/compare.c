/* compare: grades folders of results against a folder that is taken as right.
 *
 * It is the only judge of every stage program and kernel, so it is written to fail when in doubt:
 * NaN, Inf, a short file, another shape and an empty array are all wrong, and every test has the
 * form !(error <= allowed). tests/check_compare.c shows that each of these is caught.
 */
#include "npy.h"
#include "usage.h"

#include <float.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { LSE = 1, DK = 3, DV = 4, COMMON = 5, D_SINK = COMMON, LARGEST, ARRAYS };
enum { EXIT_RIGHT = 0, EXIT_WRONG = 1, EXIT_MISUSE = 2 };
static char *const names[] = {"o",  "lse",    "dq",      "dk",
                              "dv", "d_sink", "largest", NULL}; /* as getsubopt wants it */
/* How many elements to read at a time, or one row if that is more. */
static const int64_t chunk_elements = 1 << 16;

/* How much error is allowed: `share` of the largest number of the head or, if there is a folder,
 * what its files say; either of them `times` over. */
struct rule {
    const char *folder;
    double share, times;
};

/* One array of GOT held against one of WANT. Both shapes are seen as outers x rows x heads x width:
 * (B, N, H, D) as it stands; lse (B, H, N) as B*H outers of N rows with one head of one number;
 * what is found out about heads (H) as one row. */
struct grading {
    struct npy want_file, got_file, allowed_file;
    bool is_lse, is_of_heads;
    bool may_be_empty; /* -inf: nothing is seen */
    int64_t outers, rows, heads, width;
    int64_t chunk;            /* rows read at a time: an array may be far larger than memory */
    double *want, *got;       /* a chunk of each */
    double *allowed;          /* outers x heads, that is batch x head for every array */
    char problem[5000];       /* why the array could not be graded, or empty */
    int64_t wrong, worst;     /* how many elements are wrong; the flat index of the worst */
    double share, error;      /* of the worst: the part of what is allowed, and by how much */
    double its_want, its_got; /* of the worst */
};

static const char help[] =
    "usage: compare [--only NAME,NAME...] [--times X] TOL WANT GOT...\n"
    "\n"
    "Grades the result folders GOT against the folder WANT. Each holds o.npy (B,N,H,D),\n"
    "lse.npy (B,H,N), dq.npy (B,N,H,D), dk.npy and dv.npy (B,M,G,D) of any float type, and\n"
    "perhaps d_sink.npy and largest.npy (H). If one of WANT and GOT has these, the other must.\n"
    "\n"
    "TOL  a number >= 0: an element may be off by TOL times the largest finite |want| of its\n"
    "     array in the same batch and head (for lse: of that or of 1, whichever is larger;\n"
    "     for d_sink and largest: of the largest of all heads or of 1);\n"
    "     0 asks for equal numbers\n"
    "     a folder of the oracle's: an element may be off by what its NAME_allowed.npy (batch, "
    "head)\n"
    "     or (head) says: twice the error of a plain float32 implementation plus rounding\n"
    "\n"
    "  --times X    allow X times as much, such as 1e-6 for a program in double\n"
    "  --only LIST  grade these arrays alone, such as --only o,lse for a forward without backward\n"
    "  -h, --help   print this and exit; --version prints the version\n"
    "\n"
    "NaN is always wrong. Inf is too, but for -inf in lse (a row that sees nothing) and in "
    "largest\n"
    "(a head that does), which must be met exactly. The worst element of each array is named, also "
    "when all is well.\n"
    "Exit status: 0 all right, 1 something is wrong or unreadable, 2 misuse.\n";

/* Records why the array cannot be graded; always false. */
static bool fail(struct grading *g, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(g->problem, sizeof g->problem, format, arguments);
    va_end(arguments);
    return false;
}

/* Opens FOLDER/NAMEsuffix.npy. */
static bool open_array(struct grading *g, struct npy *file, const char *folder, const char *name,
                       const char *suffix)
{
    char path[sizeof file->path + 1]; /* a path cut to this is still too long for npy_open */
    snprintf(path, sizeof path, "%s/%s%s.npy", folder, name, suffix);
    return npy_open(file, path) || fail(g, "%s", file->error);
}

struct text {
    char text[256];
};

static struct text shape_text(const struct npy *file)
{
    struct text out = {"("};
    for (int axis = 0; axis < file->dims; axis++) {
        size_t used = strlen(out.text);
        snprintf(out.text + used, sizeof out.text - used, "%s%" PRId64, axis ? ", " : "",
                 file->shape[axis]);
    }
    strcat(out.text, ")"); /* 8 axes of at most 21 characters leave room */
    return out;
}

/* Sets the view and the memory for it, or says why the two open files cannot be held together. */
static bool prepare(struct grading *g)
{
    /* Shapes that differ, that are not the array's, or that hold nothing cannot be graded. */
    const struct npy *want = &g->want_file, *got = &g->got_file;
    size_t shape_bytes = (size_t)want->dims * sizeof want->shape[0];
    if (want->dims != got->dims || memcmp(want->shape, got->shape, shape_bytes) != 0)
        return fail(g, "shape %s in %s where %s in %s is wanted", shape_text(got).text, got->path,
                    shape_text(want).text, want->path);
    if (want->dims != (g->is_of_heads ? 1 : g->is_lse ? 3 : 4))
        return fail(g, "shape %s in both files where %s is needed", shape_text(want).text,
                    g->is_of_heads ? "(head)"
                    : g->is_lse    ? "(batch, head, position)"
                                   : "(batch, position, head, dim)");
    if (npy_elements(want) == 0)
        return fail(g, "shape %s has no elements: comparing nothing proves nothing",
                    shape_text(want).text);

    /* Heads are an outer axis of lse and an inner one elsewhere. */
    const int64_t *shape = want->shape;
    g->outers = g->rows = g->heads = g->width = 1;
    if (g->is_of_heads) {
        g->heads = shape[0];
    } else if (g->is_lse) {
        g->outers = shape[0] * shape[1];
        g->rows = shape[2];
    } else {
        g->outers = shape[0];
        g->rows = shape[1];
        g->heads = shape[2];
        g->width = shape[3];
    }

    /* calloc checks its product, which a shape may make too large. */
    int64_t row = g->heads * g->width;
    g->chunk = row < chunk_elements ? chunk_elements / row : 1;
    if (g->chunk > g->rows)
        g->chunk = g->rows;
    g->want = calloc((size_t)(g->chunk * row), sizeof *g->want);
    g->got = calloc((size_t)(g->chunk * row), sizeof *g->got);
    g->allowed = calloc((size_t)(g->outers * g->heads), sizeof *g->allowed);
    return (g->want && g->got && g->allowed) || fail(g, "out of memory for one row");
}

/* Reads the chunk of one file that begins at row `first`; -1, or its number of elements. */
static int64_t read_chunk(struct grading *g, struct npy *file, int64_t outer, int64_t first,
                          double *out)
{
    int64_t count = g->rows - first < g->chunk ? g->rows - first : g->chunk;
    struct npy_slice slice = {g->is_lse ? 2 : 1, outer, first, 1, count};
    if (g->is_of_heads)
        slice = (struct npy_slice){0, 0, 0, 1, g->heads};
    if (!npy_read(file, slice, NPY_FLOAT64, out))
        return fail(g, "%s", file->error), -1;
    return count * g->heads * g->width;
}

/* The entry of the table of allowed errors for element i of a chunk. */
static double *allowed_at(const struct grading *g, int64_t outer, int64_t i)
{
    return &g->allowed[outer * g->heads + i / g->width % g->heads];
}

/* Fills the table of allowed errors with a share of the largest finite |want| of each head. */
static bool allow_share(struct grading *g, struct rule rule)
{
    for (int64_t outer = 0; outer < g->outers; outer++)
        for (int64_t first = 0; first < g->rows; first += g->chunk) {
            int64_t count = read_chunk(g, &g->want_file, outer, first, g->want);
            if (count < 0)
                return false;
            for (int64_t i = 0; i < count; i++)
                if (isfinite(g->want[i]))
                    *allowed_at(g, outer, i) = fmax(*allowed_at(g, outer, i), fabs(g->want[i]));
        }

    /* lse is a logarithm, near 0 by chance: its errors are those of numbers near 1. So is the one
     * number of a head. The product stays finite because an allowance of inf would let every
     * overflow pass. */
    double share = fmin(rule.times * rule.share, DBL_MAX), most = 0;
    for (int64_t i = 0; g->is_of_heads && i < g->heads; i++)
        most = fmax(most, g->allowed[i]);
    double least = g->is_lse || g->is_of_heads ? fmax(most, 1) : 0;
    for (int64_t i = 0; i < g->outers * g->heads; i++)
        g->allowed[i] = fmin(share * fmax(g->allowed[i], least), DBL_MAX);
    return true;
}

/* Fills the table of allowed errors from the open file of them. */
static bool allow_from_file(struct grading *g, double times)
{
    struct npy *file = &g->allowed_file;
    int64_t batches = g->want_file.shape[0], entries = g->outers * g->heads;
    if (g->is_of_heads && (file->dims != 1 || file->shape[0] != entries))
        return fail(g, "%s: shape %s where (%" PRId64 "), one a head, is needed", file->path,
                    shape_text(file).text, entries);
    if (!g->is_of_heads &&
        (file->dims != 2 || file->shape[0] != batches || file->shape[1] != entries / batches))
        return fail(g, "%s: shape %s where (%" PRId64 ", %" PRId64 "), batch and head, is needed",
                    file->path, shape_text(file).text, batches, entries / batches);
    if (!npy_read(file, (struct npy_slice){0, 0, 0, 1, file->shape[0]}, NPY_FLOAT64, g->allowed))
        return fail(g, "%s", file->error);

    /* An allowance of nan or inf would judge nothing. */
    for (int64_t i = 0; i < entries; i++) {
        if (!(g->allowed[i] >= 0 && isfinite(g->allowed[i]))) {
            struct text index;
            npy_index_text(file, i, index.text, sizeof index.text);
            return fail(g, "%s: %g at %s where a finite number >= 0 is needed", file->path,
                        g->allowed[i], index.text);
        }
        g->allowed[i] = fmin(times * g->allowed[i], DBL_MAX);
    }
    return true;
}

/* Judges one element and remembers it if it is the worst so far. */
static void judge(struct grading *g, int64_t index, double want, double got, double allowed)
{
    /* Only -inf may be wanted, where nothing is seen, and only -inf meets it; their difference
     * would be nan. */
    bool met = g->may_be_empty && want == -INFINITY && got == want;
    bool sound = met || (isfinite(want) && isfinite(got));
    double error = met ? 0 : sound ? fabs(got - want) : INFINITY;
    bool wrong = !(error <= allowed);
    g->wrong += wrong;

    /* A wrong element must outrank all right ones, also when its quotient rounds to 1. */
    double share = error == 0 ? 0 : error / allowed;
    if (wrong)
        share = fmax(share, 1 + DBL_EPSILON);
    if (share > g->share || (share == g->share && error > g->error)) {
        g->share = share;
        g->error = error;
        g->worst = index;
        g->its_want = want;
        g->its_got = got;
    }
}

/* Judges every element, in a second pass. */
static bool judge_all(struct grading *g)
{
    for (int64_t outer = 0; outer < g->outers; outer++)
        for (int64_t first = 0; first < g->rows; first += g->chunk) {
            int64_t count = read_chunk(g, &g->want_file, outer, first, g->want);
            if (count < 0 || read_chunk(g, &g->got_file, outer, first, g->got) != count)
                return false;
            int64_t start = (outer * g->rows + first) * g->heads * g->width;
            for (int64_t i = 0; i < count; i++)
                judge(g, start + i, g->want[i], g->got[i], *allowed_at(g, outer, i));
        }
    return true;
}

/* Grades GOT's array against WANT's (the names differ for the hint alone). True when every element
 * is right. g keeps the verdict, and of its files, closed, the path and shape. */
static bool grade(struct grading *g, struct rule rule, const char *want_folder, const char *want,
                  const char *got_folder, const char *got)
{
    *g = (struct grading){.want_file.fd = -1, .got_file.fd = -1, .allowed_file.fd = -1};
    g->is_lse = strcmp(want, names[LSE]) == 0;
    g->is_of_heads = strcmp(want, names[D_SINK]) == 0 || strcmp(want, names[LARGEST]) == 0;
    g->may_be_empty = g->is_lse || strcmp(want, names[LARGEST]) == 0;
    g->share = -1; /* below every share, so that the first element is remembered */
    bool graded =
        open_array(g, &g->want_file, want_folder, want, "") &&
        open_array(g, &g->got_file, got_folder, got, "") && prepare(g) &&
        (!rule.folder || open_array(g, &g->allowed_file, rule.folder, want, "_allowed")) &&
        (rule.folder ? allow_from_file(g, rule.times) : allow_share(g, rule)) && judge_all(g);
    free(g->want);
    free(g->got);
    free(g->allowed);
    npy_close(&g->want_file);
    npy_close(&g->got_file);
    npy_close(&g->allowed_file);
    return graded && g->wrong == 0;
}

/* Prints one line about a graded array. */
static void report(const struct grading *g, const char *name, int width)
{
    bool graded = g->problem[0] == '\0';
    printf("  %-*s  %s  ", width, name, graded && g->wrong == 0 ? "right" : "WRONG");
    if (!graded) {
        printf("%s\n", g->problem);
        return;
    }
    int64_t elements = npy_elements(&g->want_file);
    if (g->error == 0) {
        printf("equal in every element (%" PRId64 ")\n", elements);
        return;
    }

    /* How bad the worst element is. The culprit of one that is no number may be WANT itself. */
    bool want_is_sound = isfinite(g->its_want) || (g->may_be_empty && g->its_want == -INFINITY);
    const struct npy *culprit = want_is_sound ? &g->got_file : &g->want_file;
    struct text index;
    npy_index_text(culprit, g->worst, index.text, sizeof index.text);
    if (isfinite(g->its_want) && isfinite(g->its_got))
        printf("%8.3g of allowed  off by %.2g", g->share, g->error);
    else
        printf("%g in %s %s", want_is_sound ? g->its_got : g->its_want, culprit->path, index.text);

    /* Where it is, in words; 9 digits tell all float32 apart, 17 all float64. */
    int64_t row = g->worst / (g->heads * g->width), position = row % g->rows;
    int64_t outer = row / g->rows, outers_of_batch = g->outers / g->want_file.shape[0];
    if (g->is_of_heads)
        printf(" at head %" PRId64, g->worst);
    else if (g->is_lse)
        printf(" at batch %" PRId64 " head %" PRId64 " position %" PRId64, outer / outers_of_batch,
               outer % outers_of_batch, position);
    else
        printf(" at batch %" PRId64 " position %" PRId64 " head %" PRId64 " dim %" PRId64, outer,
               position, g->worst / g->width % g->heads, g->worst % g->width);
    int digits = g->got_file.type == NPY_FLOAT64 ? 17 : 9;
    printf(": want %.*g got %.*g", digits, g->its_want, digits, g->its_got);
    if (g->wrong)
        printf("; %" PRId64 " of %" PRId64 " elements wrong", g->wrong, elements);
    printf("\n");
}

/* Is there an array of this name? One that cannot be read is there, too. */
static bool has(const char *folder, const char *name)
{
    char path[sizeof((struct npy *)0)->path + 1]; /* cut to this it is no name, too */
    struct stat status;
    snprintf(path, sizeof path, "%s/%s.npy", folder, name);
    return lstat(path, &status) == 0;
}

/* Grades one folder and prints its block. Arrays after a wrong one are graded too. */
static bool compare_folder(struct rule rule, const char *want, const char *got,
                           const bool chosen[ARRAYS], bool all)
{
    static struct grading g; /* static for its size: three paths and three error texts */
    printf("%s against %s, allowed ", got, want);
    if (rule.times != 1)
        printf("%g times ", rule.times);
    if (rule.folder)
        printf("what %s says of each head\n", rule.folder);
    else
        printf("%g of the largest in each head\n", rule.share);

    int graded = 0, right = 0, width = 3;
    bool graded_now[ARRAYS], is_right[ARRAYS] = {false};
    for (int i = 0; i < ARRAYS; i++) {
        graded_now[i] = chosen[i] || (all && (has(want, names[i]) || has(got, names[i])));
        if (graded_now[i] && i >= COMMON)
            width = (int)strlen(names[LARGEST]);
    }
    for (int i = 0; i < ARRAYS; i++)
        if (graded_now[i]) {
            graded++;
            is_right[i] = grade(&g, rule, want, names[i], got, names[i]);
            right += is_right[i];
            report(&g, names[i], width);
        }

    /* The commonest slip of a backward pass has a name of its own. */
    if (chosen[DK] && chosen[DV] && !(is_right[DK] && is_right[DV]) &&
        grade(&g, rule, want, names[DV], got, names[DK]) &&
        grade(&g, rule, want, names[DK], got, names[DV]))
        printf("  hint: dk and dv look swapped\n");
    printf("right: %d of %d arrays\n", right, graded);
    return right == graded;
}

/* Marks the arrays of a list such as "o,lse"; false for a name that is none, and for no name. */
static bool choose(char *list, bool chosen[ARRAYS])
{
    memset(chosen, false, ARRAYS * sizeof *chosen);
    bool good = *list != '\0';
    while (good && *list != '\0') {
        char *value; /* of NAME=VALUE, which has no meaning here */
        int i = getsubopt(&list, names, &value);
        good = i >= 0 && value == NULL;
        if (good)
            chosen[i] = true;
    }
    return good;
}

/* Reads a finite decimal number >= 0; false for anything else. */
static bool parse_number(const char *text, double *number)
{
    /* strtod alone would take inf, nan, hexadecimal and leading space. */
    char *end;
    if (text[strspn(text, "0123456789.eE+-")] != '\0')
        return false;
    *number = strtod(text, &end);
    return *end == '\0' && end != text && *number >= 0 && isfinite(*number);
}

/* The exit code, unless what was printed is lost. */
static int leave(int exit_code)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return exit_code;
    fprintf(stderr, "compare: cannot write to stdout: %s\n", strerror(errno));
    return EXIT_WRONG;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"only", required_argument, NULL, 'o'}, {"times", required_argument, NULL, 't'}, {0}};
    answer_usage(argc, argv, "compare", help);
    struct rule rule = {.times = 1};
    bool chosen[ARRAYS] = {true, true, true, true, true}, all = true;
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option == 't' && !parse_number(optarg, &rule.times)) {
            fprintf(stderr, "compare: --times %s: a finite number >= 0 is needed\n", optarg);
            return EXIT_MISUSE;
        }
        if (option == 't')
            continue;
        if (option != 'o') {
            fputs("compare: see compare --help\n", stderr);
            return EXIT_MISUSE;
        }
        if (!choose(optarg, chosen)) {
            fprintf(stderr,
                    "compare: --only %s: a list of o, lse, dq, dk, dv, d_sink, largest is needed\n",
                    optarg);
            return EXIT_MISUSE;
        }
        all = false;
    }

    /* Three words at least, and a tolerance that can judge. */
    if (argc - optind < 3) {
        fputs("compare: TOL, WANT and at least one GOT are needed; see compare --help\n", stderr);
        return EXIT_MISUSE;
    }
    struct stat tolerance;
    if (stat(argv[optind], &tolerance) == 0 && S_ISDIR(tolerance.st_mode))
        rule.folder = argv[optind];
    else if (!parse_number(argv[optind], &rule.share)) {
        fprintf(stderr,
                "compare: TOL %s: a finite number >= 0, or a folder of the oracle's, is needed\n",
                argv[optind]);
        return EXIT_MISUSE;
    }

    /* Refuse before grading anything. A folder that is not there fails later, by its files. */
    const char *want = argv[optind + 1];
    struct stat want_stat, got_stat;
    for (int i = optind + 2; i < argc; i++)
        if (stat(want, &want_stat) == 0 && stat(argv[i], &got_stat) == 0 &&
            want_stat.st_dev == got_stat.st_dev && want_stat.st_ino == got_stat.st_ino) {
            fprintf(stderr, "compare: %s is %s: comparing a folder with itself proves nothing\n",
                    argv[i], want);
            return EXIT_MISUSE;
        }

    bool right = true;
    for (int i = optind + 2; i < argc; i++)
        right &= compare_folder(rule, want, argv[i], chosen, all);
    return leave(right ? EXIT_RIGHT : EXIT_WRONG);
}
