/* problem: makes attention problems.
 *
 * Writes the folder of .npy files that every stage, kernel and the oracle reads: q and do
 * (B, N, H, D), k and v (B, M, G, D) and, if one is asked for, mask (B, M); rows of v and do may
 * have another length. Scaffolding for the chapters and the tests; no chapter teaches it.
 *
 * The numbers come from integers alone, so a seed gives the same bits on every machine (--text
 * excepted: its sinusoids are as good as the machine's libm). They are lopsided on purpose: every
 * array has a mean of its own, and the scale differs by head and by batch, so that a swapped axis
 * or array shows in the result.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "npy.h"
#include "numbers.h"
#include "patterns.h"
#include "ra_path.h"
#include "usage.h"

static const char *const help =
    "Usage: problem [flags] PROBLEM\n"
    "\n"
    "Makes the folder PROBLEM with q.npy, do.npy (B,N,H,D), k.npy, v.npy (B,M,G,D) and, with\n"
    "--mask, mask.npy (B,M); with --slices, slices.npy (slices,6). Files of an earlier problem in "
    "the folder are replaced.\n"
    "\n"
    "  --batch B           sequences (1)\n"
    "  --queries N         query positions (64)\n"
    "  --keys M            key positions (N)\n"
    "  --heads H           query heads (1)\n"
    "  --key-heads G       key/value heads (H); must divide H\n"
    "  --dim-head D        numbers per head (16)\n"
    "  --dim-value DV      numbers per head of v and do (D)\n"
    "  --seed S            another seed, another problem (1)\n"
    "  --score-scale X     multiply q by X (1)\n"
    "  --type TYPE         float32 (default) or float16\n"
    "  --scores KIND       the scores of a query along the keys:\n"
    "                        random     no pattern (default)\n"
    "                        equal      all keys are equal\n"
    "                        dominant   one key per head towers over the others\n"
    "                        growing    every key is the new maximum\n"
    "                        shrinking  the first key is the maximum, then always less\n"
    "  --visible           q = k = 0 and v = identity (needs M = D): row i of o then shows\n"
    "                      1/count at every key that query i sees, and 0 elsewhere\n"
    "  --group-values      v is constant: key/value head g holds g + 1\n"
    "  --mask KIND         which keys may be seen:\n"
    "                        none             no mask file (default)\n"
    "                        random           about half of them\n"
    "                        all-but-batch-0  none in batch 0, all elsewhere\n"
    "                        none-visible     none at all\n"
    "                        last-only        the last one\n"
    "                        first-hidden     all but the first half (at least one is hidden)\n"
    "                        tail             right padding, of another length in every batch\n"
    "  --slices KIND       writes slices.npy, the mask as slices: documents, causal-documents,\n"
    "                      windowed-documents, prefixes, chunks, window, first-tokens, answers,\n"
    "                      pairs (of documents), random, no-slices (nobody sees anything).\n"
    "                      But for the last three they need M = N\n"
    "  --extras            writes sink.npy, slopes.npy (H) and d_lse.npy (B,H,N), too\n"
    "  --gradient KIND     do: random (default), or one-hot: a single 1 per batch and head\n"
    "  --repeat-heads MAP  write k and v of the same problem with each head repeated out to H\n"
    "                      heads: grouped (0,0,1,1) or interleaved (0,1,0,1)\n"
    "  --text FILE         embed and project a text instead of random q, k, v: batch b is its\n"
    "                      b-th run of N bytes (M = N); scores spread by about 1 to 3\n"
    "  -h, --help          this text\n"
    "  --version           the version\n";

enum scores { RANDOM, EQUAL, DOMINANT, GROWING, SHRINKING };
enum mask { NONE, RANDOM_MASK, ALL_BUT_BATCH_0, NONE_VISIBLE, LAST_ONLY, FIRST_HIDDEN, TAIL };
enum repeat { NOT_REPEATED, GROUPED, INTERLEAVED };

/* The words of each flag, in the order of its enum. */
static const char *const scores_words[] = {"random",  "equal",     "dominant",
                                           "growing", "shrinking", NULL};
static const char *const mask_words[] = {
    "none", "random", "all-but-batch-0", "none-visible", "last-only", "first-hidden", "tail", NULL};
static const char *const type_words[] = {"float32", "float16", NULL};
static const char *const gradient_words[] = {"random", "one-hot", NULL};
static const char *const repeat_words[] = {"grouped", "interleaved", NULL};

/* One independent stream of numbers per purpose: asking for a mask, or for more keys, leaves q as
 * it was. */
enum stream {
    Q_STREAM,
    K_STREAM,
    V_STREAM,
    DO_STREAM,
    MASK_STREAM,
    DOMINANT_STREAM,
    EMBEDDING_STREAM,
    Q_PROJECTION_STREAM,
    K_PROJECTION_STREAM,
    V_PROJECTION_STREAM,
    SLICES_STREAM,
    EXTRAS_STREAM
};

/* The text's bytes are embedded in vectors of this many numbers. */
#define WIDTH 64

struct request {
    int64_t batch, queries, keys, heads, key_heads, dim, dim_value; /* B, N, M, H, G, D, D_v */
    uint64_t seed;
    double score_scale;
    enum npy_type type;
    enum scores scores;
    bool visible, group_values, one_hot, extras;
    enum mask mask;
    enum pattern slices; /* PATTERNS: none */
    enum repeat repeat;
    const char *text_path, *folder;
    /* Only with --text, else NULL: B*N bytes, 256 vectors, and WIDTH rows of heads*dim numbers. */
    unsigned char *text;
    double *embedding, *q_projection, *k_projection, *v_projection;
    /* Room for a row before its heads are repeated, after it, and for a row of the mask. */
    double *made, *repeated;
    bool *visible_keys;
};

/* Ends the program with one line on stderr: status 2 for misuse, 1 for a failure. */
static _Noreturn void stop(int status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("problem: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(status);
}

/* Memory for count elements of this size; the program ends if there is none. */
static void *allocate(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count, size);
    if (!memory)
        stop(1, "no memory for %" PRId64 " elements of %zu bytes", count, size);
    return memory;
}

/* ---- Random numbers ---- */

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

/* The index-th number of a stream. splitmix64 only counts and mixes, so any one is had at once. */
static uint64_t draw(const struct request *problem, enum stream stream, int64_t index)
{
    uint64_t start = random_mix(random_mix(problem->seed + GOLDEN) + GOLDEN * (uint64_t)stream);
    return random_mix(start + GOLDEN * ((uint64_t)index + 1));
}

/* The index-th normal-like number of a stream: mean 0, variance 1, within 6 of 0. It is the sum of
 * twelve uniform 16-bit integers less its mean, over 2^16: 20 bits, so exact in float32. */
static double normal(const struct request *problem, enum stream stream, int64_t index)
{
    int32_t sum = 0;
    for (int64_t i = 3 * index; i < 3 * index + 3; i++) {
        uint64_t bits = draw(problem, stream, i);
        for (int shift = 0; shift < 64; shift += 16)
            sum += (int32_t)(bits >> shift & 0xffff);
    }
    return (sum - 12 * 65535 / 2) / 65536.0;
}

/* ---- The arrays, a row at a time ---- */

/* The scale of a batch and head: one of five steps from 0.75 to 1.25, exact in binary. */
static double head_scale(int64_t batch, int64_t head)
{
    return 0.75 + 0.125 * (double)((3 * batch + head) % 5);
}

/* mean + scale * normal, for an element of a (batches, rows, heads, dim) array. Exact in double. */
static double lopsided(const struct request *problem, enum stream stream, int64_t rows,
                       int64_t heads, int64_t dim, int64_t batch, int64_t row, int64_t head,
                       int64_t c, double mean)
{
    int64_t index = ((batch * rows + row) * heads + head) * dim + c;
    return mean + head_scale(batch, head) * normal(problem, stream, index);
}

/* The smallest integer that is no less than the square root of D: what a score of 1/sqrt(D) scale
 * must be multiplied by to come out no smaller than asked for. */
static double dim_root(const struct request *problem)
{
    int64_t root = 1;
    while (root * root < problem->dim)
        root++;
    return (double)root;
}

/* An element of random q. The patterns of --scores need one number of q that is always positive,
 * so that a key can raise the scores of all queries: number 0. */
static double q_element(const struct request *problem, int64_t batch, int64_t row, int64_t head,
                        int64_t c)
{
    const double mean = 0.25;
    double value = lopsided(problem, Q_STREAM, problem->queries, problem->heads, problem->dim,
                            batch, row, head, c, mean);
    bool patterned = problem->scores >= DOMINANT;
    if (patterned && c == 0)
        value = head_scale(batch, head) + fabs(value - mean) / 4;
    return value;
}

/* An element of random k, of key/value head g, bent to the pattern of --scores. */
static double k_element(const struct request *problem, int64_t batch, int64_t row, int64_t g,
                        int64_t c)
{
    const double mean = -0.125;
    int64_t keys = problem->keys, heads = problem->key_heads;
    double own = lopsided(problem, K_STREAM, keys, heads, problem->dim, batch, row, g, c, mean);
    if (problem->scores == RANDOM)
        return own;
    if (problem->scores == DOMINANT) {
        uint64_t which = draw(problem, DOMINANT_STREAM, batch * heads + g) % (uint64_t)keys;
        return c == 0 && (uint64_t)row == which ? 24 * dim_root(problem) : own;
    }
    double first = lopsided(problem, K_STREAM, keys, heads, problem->dim, batch, 0, g, c, mean);
    if (problem->scores == EQUAL)
        return first;

    /* Growing, shrinking: number 0 climbs; the others are nearly those of one key, so that they
     * hardly disturb the order. */
    int64_t step = problem->scores == GROWING ? row : keys - 1 - row;
    return c == 0 ? 48 * dim_root(problem) * (double)step / (double)keys
                  : first + (own - mean) / 64;
}

/* The vector of a byte of the text: its embedding plus sinusoids of its position. */
static void text_vector(const struct request *problem, int64_t batch, int64_t row, double *out)
{
    const double *embedding =
        problem->embedding + WIDTH * problem->text[batch * problem->queries + row];
    for (int i = 0; i < WIDTH; i += 2) {
        double angle = (double)row * pow(10000, -(double)i / WIDTH);
        out[i] = embedding[i] + sin(angle);
        out[i + 1] = embedding[i + 1] + cos(angle);
    }
}

/* A row of q, k or v of a text: its vector times this projection (WIDTH, count). */
static void text_row(const struct request *problem, const double *projection, int64_t batch,
                     int64_t row, int64_t count, double *out)
{
    double vector[WIDTH];
    text_vector(problem, batch, row, vector);
    for (int64_t c = 0; c < count; c++)
        out[c] = 0;
    for (int i = 0; i < WIDTH; i++)
        for (int64_t c = 0; c < count; c++)
            out[c] += vector[i] * projection[i * count + c];
}

/* Fills one row (heads*D numbers) of an array. The heads of k and v are the G heads of the problem;
 * write_array repeats them. */
typedef void row_maker(const struct request *problem, int64_t batch, int64_t row, double *out);

static void q_row(const struct request *problem, int64_t batch, int64_t row, double *out)
{
    int64_t count = problem->heads * problem->dim;
    if (problem->text)
        text_row(problem, problem->q_projection, batch, row, count, out);
    else
        for (int64_t i = 0; i < count; i++)
            out[i] = q_element(problem, batch, row, i / problem->dim, i % problem->dim);
    for (int64_t i = 0; i < count; i++)
        out[i] *= problem->visible ? 0 : problem->score_scale;
}

static void k_row(const struct request *problem, int64_t batch, int64_t row, double *out)
{
    int64_t count = problem->key_heads * problem->dim;
    if (problem->text)
        text_row(problem, problem->k_projection, batch, row, count, out);
    else
        for (int64_t i = 0; i < count; i++)
            out[i] = problem->visible
                         ? 0
                         : k_element(problem, batch, row, i / problem->dim, i % problem->dim);
}

static void v_row(const struct request *problem, int64_t batch, int64_t row, double *out)
{
    int64_t count = problem->key_heads * problem->dim_value;
    if (problem->text) {
        text_row(problem, problem->v_projection, batch, row, count, out);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t g = i / problem->dim_value, c = i % problem->dim_value;
        if (problem->visible)
            out[i] = c == row;
        else if (problem->group_values)
            out[i] = (double)(g + 1);
        else
            out[i] = lopsided(problem, V_STREAM, problem->keys, problem->key_heads,
                              problem->dim_value, batch, row, g, c, 0.5);
    }
}

static void do_row(const struct request *problem, int64_t batch, int64_t row, double *out)
{
    for (int64_t h = 0; h < problem->heads; h++) {
        /* Where the 1 of a one-hot gradient stands in this batch and head. */
        int64_t place = 2 * (batch * problem->heads + h);
        uint64_t hot_row = draw(problem, DO_STREAM, place) % (uint64_t)problem->queries;
        uint64_t hot_c = draw(problem, DO_STREAM, place + 1) % (uint64_t)problem->dim_value;
        for (int64_t c = 0; c < problem->dim_value; c++)
            *out++ = problem->one_hot
                         ? (uint64_t)row == hot_row && (uint64_t)c == hot_c
                         : lopsided(problem, DO_STREAM, problem->queries, problem->heads,
                                    problem->dim_value, batch, row, h, c, 0.375);
    }
}

static bool key_visible(const struct request *problem, int64_t batch, int64_t key)
{
    int64_t keys = problem->keys;
    switch (problem->mask) {
    case NONE:
        return true;
    case RANDOM_MASK:
        return draw(problem, MASK_STREAM, batch * keys + key) >> 63;
    case ALL_BUT_BATCH_0:
        return batch != 0;
    case NONE_VISIBLE:
        return false;
    case LAST_ONLY:
        return key == keys - 1;
    case FIRST_HIDDEN:
        return key >= (keys > 1 ? keys / 2 : 1);
    case TAIL:
        return key < keys - keys * (batch + 1) / (problem->batch + 1);
    }
    return true;
}

/* ---- Writing ---- */

static void path_of(const struct request *problem, const char *name, char path[4096])
{
    if (snprintf(path, 4096, "%s/%s.npy", problem->folder, name) >= 4096)
        stop(2, "the name of the folder is too long");
}

static const char *const names[] = {"q",      "k",    "v",      "do",   "mask",
                                    "slices", "sink", "slopes", "d_lse"};
enum { FILES = sizeof names / sizeof *names };

/* Removes every file of a problem, so that a failure leaves none that is half new and half old, and
 * an old mask does not outlive its problem. */
static void remove_files(const struct request *problem)
{
    for (int i = 0; i < FILES; i++) {
        char path[4096];
        path_of(problem, names[i], path);
        if (unlink(path) != 0 && errno != ENOENT)
            stop(1, "%s: cannot remove the file of an earlier problem: %s", path, strerror(errno));
    }
}

/* Refuses a text that would have to make room for the problem. */
static void spare_text(const struct request *problem)
{
    for (int i = 0; i < FILES; i++) {
        char path[4096];
        path_of(problem, names[i], path);
        if (ra_path_same(problem->text_path, path))
            stop(2, "--text %s: is %s, which this problem replaces", problem->text_path, path);
    }
}

/* Ends the program after a failure of this file. */
static _Noreturn void give_up(const struct request *problem, struct npy *file, const char *reason)
{
    char text[sizeof file->error];
    snprintf(text, sizeof text, "%s", reason);
    npy_close(file);
    remove_files(problem);
    stop(1, "%s", text);
}

/* Writes the array NAME.npy (B, rows, heads, dim), where made_heads heads come from the row maker
 * and are repeated out to `heads`. Every number must be finite in the type of the file. */
static void write_array(const struct request *problem, const char *name, int64_t rows,
                        int64_t made_heads, int64_t heads, int64_t dim, row_maker *make_row)
{
    double *made = problem->made, *repeated = problem->repeated;
    /* From this magnitude on, rounding to nearest gives infinity. */
    double limit = problem->type == NPY_FLOAT16 ? 65520.0 : 0x1.ffffffp127;
    struct npy file;
    char path[4096];
    path_of(problem, name, path);
    if (!npy_create(&file, path, problem->type, 4, (int64_t[]){problem->batch, rows, heads, dim}))
        give_up(problem, &file, file.error);

    /* Each row is made in double, repeated, checked, and rounded once, by npy. */
    for (int64_t batch = 0; batch < problem->batch; batch++)
        for (int64_t row = 0; row < rows; row++) {
            make_row(problem, batch, row, made);
            for (int64_t h = 0; h < heads; h++) {
                int64_t from =
                    problem->repeat == INTERLEAVED ? h % made_heads : h / (heads / made_heads);
                memcpy(repeated + h * dim, made + from * dim, (size_t)dim * sizeof *made);
            }
            for (int64_t i = 0; i < heads * dim; i++)
                if (!(fabs(repeated[i]) < limit)) {
                    char reason[256];
                    snprintf(reason, sizeof reason,
                             "%s[%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
                             "] would be %g, which is too large for %s%s",
                             name, batch, row, i / dim, i % dim, repeated[i],
                             npy_type_name(problem->type),
                             make_row == q_row ? "; lower --score-scale" : "");
                    give_up(problem, &file, reason);
                }
            struct npy_slice slice = {
                .axis = 1, .outer = batch, .first = row, .stride = 1, .count = 1};
            if (!npy_write(&file, slice, NPY_FLOAT64, repeated))
                give_up(problem, &file, file.error);
        }
    if (!npy_close(&file))
        give_up(problem, &file, file.error);
}

static void write_mask(const struct request *problem)
{
    struct npy file;
    char path[4096];
    path_of(problem, "mask", path);
    if (!npy_create(&file, path, NPY_BOOL, 2, (int64_t[]){problem->batch, problem->keys}))
        give_up(problem, &file, file.error);
    for (int64_t batch = 0; batch < problem->batch; batch++) {
        for (int64_t key = 0; key < problem->keys; key++)
            problem->visible_keys[key] = key_visible(problem, batch, key);
        struct npy_slice slice = {.axis = 0, .first = batch, .stride = 1, .count = 1};
        if (!npy_write(&file, slice, NPY_BOOL, problem->visible_keys))
            give_up(problem, &file, file.error);
    }
    if (!npy_close(&file))
        give_up(problem, &file, file.error);
}

static void write_slices(const struct request *problem)
{
    struct npy file;
    char path[4096];
    struct ra_slice slices[PATTERN_SLICES];
    uint64_t state = draw(problem, SLICES_STREAM, problem->slices);
    int64_t count = pattern_make(problem->slices, problem->queries, problem->keys, &state, slices);
    path_of(problem, "slices", path);
    if (!npy_create(&file, path, NPY_INT64, 2, (int64_t[]){count, 6}) ||
        !npy_write(&file, (struct npy_slice){.stride = 1, .count = count}, NPY_INT64, slices) ||
        !npy_close(&file))
        give_up(problem, &file, file.error);
}

/* Writes NAME.npy, random numbers around a mean in this shape. */
static void write_numbers(const struct request *problem, const char *name, int dims,
                          const int64_t *shape, double mean, double spread)
{
    struct npy file;
    char path[4096];
    path_of(problem, name, path);
    if (!npy_create(&file, path, problem->type, dims, shape))
        give_up(problem, &file, file.error);
    double *numbers = allocate(npy_elements(&file), sizeof *numbers);
    for (int64_t e = 0; e < npy_elements(&file); e++)
        numbers[e] = mean + spread * normal(problem, EXTRAS_STREAM, e + 1000 * name[1]);
    struct npy_slice all = {.stride = 1, .count = shape[0]};
    if (!npy_write(&file, all, NPY_FLOAT64, numbers) || !npy_close(&file))
        give_up(problem, &file, file.error);
    free(numbers);
}

/* What takes part beside the keys. A slope is small, since distances are not. */
static void write_extras(const struct request *problem)
{
    int64_t B = problem->batch, N = problem->queries, H = problem->heads;
    write_numbers(problem, "sink", 1, &H, 0.5, 1);
    write_numbers(problem, "slopes", 1, &H, 0.05, 0.05);
    write_numbers(problem, "d_lse", 3, (int64_t[]){B, H, N}, 0.25, 1);
}

/* ---- Text ---- */

/* A seeded matrix (rows, columns) of mean 0 and this scale. */
static double *random_matrix(const struct request *problem, enum stream stream, int64_t rows,
                             int64_t columns, double scale)
{
    double *matrix = allocate(rows * columns, sizeof *matrix);
    for (int64_t i = 0; i < rows * columns; i++)
        matrix[i] = scale * normal(problem, stream, i);
    return matrix;
}

/* Reads the first B*N bytes of the text and makes the table and the projections. */
static void load_text(struct request *problem)
{
    size_t wanted = (size_t)(problem->batch * problem->queries);
    problem->text = allocate(problem->batch * problem->queries, 1);
    FILE *file = fopen(problem->text_path, "rb");
    if (!file)
        stop(1, "%s: cannot open the text: %s", problem->text_path, strerror(errno));
    size_t got = fread(problem->text, 1, wanted, file);
    if (ferror(file))
        stop(1, "%s: cannot read the text: %s", problem->text_path, strerror(errno));
    fclose(file);
    if (got < wanted)
        stop(1, "%s: has %zu bytes, but %zu are needed (batch times queries)", problem->text_path,
             got, wanted);

    /* 1/sqrt(WIDTH) keeps the variance of a vector through its projection; the vectors have a
     * variance of about 1.5, so scores spread by about that, times the gain of q. */
    const double unit = 1.0 / 8, gain = 1.25;
    int64_t columns = problem->heads * problem->dim,
            key_columns = problem->key_heads * problem->dim,
            value_columns = problem->key_heads * problem->dim_value;
    problem->embedding = random_matrix(problem, EMBEDDING_STREAM, 256, WIDTH, 1);
    problem->q_projection =
        random_matrix(problem, Q_PROJECTION_STREAM, WIDTH, columns, gain * unit);
    problem->k_projection = random_matrix(problem, K_PROJECTION_STREAM, WIDTH, key_columns, unit);
    problem->v_projection = random_matrix(problem, V_PROJECTION_STREAM, WIDTH, value_columns, unit);
}

/* ---- The command line ---- */

/* A whole number of at least `least`; ends the program on anything else. */
static int64_t parse_whole(const char *flag, const char *text, int64_t least)
{
    char *end;
    long long value = strtoll(text, &end, 10); /* beyond 64 bits: the most, which is too large */
    if (end == text || *end || value < least)
        stop(2, "--%s %s: must be a whole number of at least %" PRId64, flag, text, least);
    return value;
}

static double parse_number(const char *flag, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value))
        stop(2, "--%s %s: must be a finite number", flag, text);
    return value;
}

/* The place of a word in the list; ends the program, naming all words, if it is not there. */
static int parse_word(const char *flag, const char *text, const char *const *words)
{
    char list[256] = "";
    for (int i = 0; words[i]; i++) {
        if (strcmp(text, words[i]) == 0)
            return i;
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", words[i]);
    }
    stop(2, "--%s %s: must be one of %s", flag, text, list);
}

static struct request parse(int argc, char **argv)
{
    struct request problem = {.batch = 1,
                              .queries = 64,
                              .heads = 1,
                              .dim = 16,
                              .seed = 1,
                              .score_scale = 1,
                              .slices = PATTERNS,
                              .type = NPY_FLOAT32};
    static const struct option flags[] = {{"batch", required_argument, NULL, 'B'},
                                          {"queries", required_argument, NULL, 'N'},
                                          {"keys", required_argument, NULL, 'M'},
                                          {"heads", required_argument, NULL, 'H'},
                                          {"key-heads", required_argument, NULL, 'G'},
                                          {"dim-head", required_argument, NULL, 'D'},
                                          {"dim-value", required_argument, NULL, 'V'},
                                          {"seed", required_argument, NULL, 'S'},
                                          {"score-scale", required_argument, NULL, 'X'},
                                          {"type", required_argument, NULL, 't'},
                                          {"scores", required_argument, NULL, 's'},
                                          {"visible", no_argument, NULL, 'v'},
                                          {"group-values", no_argument, NULL, 'g'},
                                          {"mask", required_argument, NULL, 'm'},
                                          {"slices", required_argument, NULL, 'l'},
                                          {"extras", no_argument, NULL, 'e'},
                                          {"gradient", required_argument, NULL, 'd'},
                                          {"repeat-heads", required_argument, NULL, 'r'},
                                          {"text", required_argument, NULL, 'f'},
                                          {"dim", required_argument, NULL, 'o'},
                                          {"dtype", required_argument, NULL, 'o'},
                                          {NULL, 0, NULL, 0}};

    answer_usage(argc, argv, "problem", help);

    /* The leading colon: getopt keeps quiet, and the one line of each misuse is ours. */
    int flag, index = 0;
    while ((flag = getopt_long(argc, argv, ":", flags, &index)) != -1) {
        const char *name = flags[index].name;
        switch (flag) {
        case 'B':
            problem.batch = parse_whole(name, optarg, 1);
            break;
        case 'N':
            problem.queries = parse_whole(name, optarg, 1);
            break;
        case 'M':
            problem.keys = parse_whole(name, optarg, 1);
            break;
        case 'H':
            problem.heads = parse_whole(name, optarg, 1);
            break;
        case 'G':
            problem.key_heads = parse_whole(name, optarg, 1);
            break;
        case 'D':
            problem.dim = parse_whole(name, optarg, 1);
            break;
        case 'V':
            problem.dim_value = parse_whole(name, optarg, 1);
            break;
        case 'S':
            problem.seed = (uint64_t)parse_whole(name, optarg, 0);
            break;
        case 'X':
            problem.score_scale = parse_number(name, optarg);
            break;
        case 't':
            problem.type = parse_word(name, optarg, type_words) ? NPY_FLOAT16 : NPY_FLOAT32;
            break;
        case 's':
            problem.scores = (enum scores)parse_word(name, optarg, scores_words);
            break;
        case 'v':
            problem.visible = true;
            break;
        case 'g':
            problem.group_values = true;
            break;
        case 'm':
            problem.mask = (enum mask)parse_word(name, optarg, mask_words);
            break;
        case 'l':
            problem.slices = (enum pattern)parse_word(name, optarg, pattern_words);
            break;
        case 'e':
            problem.extras = true;
            break;
        case 'd':
            problem.one_hot = parse_word(name, optarg, gradient_words) == 1;
            break;
        case 'r':
            problem.repeat = (enum repeat)(1 + parse_word(name, optarg, repeat_words));
            break;
        case 'f':
            problem.text_path = optarg;
            break;
        case 'o': /* earlier names; without this getopt would take --dim for --dim-head */
            stop(2, "--%s: this flag is called --%s; see --help", name,
                 strcmp(name, "dim") == 0 ? "dim-head" : "type");
        case ':':
            stop(2, "%s: needs a value; see --help", argv[optind - 1]);
        default:
            stop(2, "%s: no such flag; see --help", argv[optind - 1]);
        }
    }
    if (optind != argc - 1)
        stop(2, "needs exactly one folder to write, got %d; see --help", argc - optind);
    problem.folder = argv[optind];
    return problem;
}

/* Numbers of a head in the arrays that have most of them. */
static int64_t longest_row(const struct request *problem)
{
    return problem->dim > problem->dim_value ? problem->dim : problem->dim_value;
}

/* Fills in the lengths that follow from others, and refuses flags that contradict each other. */
static void settle(struct request *problem)
{
    if (problem->keys == 0)
        problem->keys = problem->queries;
    if (problem->key_heads == 0)
        problem->key_heads = problem->heads;
    if (problem->dim_value == 0)
        problem->dim_value = problem->dim;
    if (problem->heads % problem->key_heads)
        stop(2, "--key-heads %" PRId64 ": must divide --heads %" PRId64, problem->key_heads,
             problem->heads);

    if (problem->slices != PATTERNS &&
        !pattern_fits(problem->slices, problem->queries, problem->keys))
        stop(2, "--slices %s: needs --keys equal to --queries", pattern_words[problem->slices]);

    /* Every kind of q, k and v stands alone. */
    bool patterned = problem->scores != RANDOM;
    if (problem->visible && (problem->group_values || patterned))
        stop(2, "--visible: sets q, k and v; it takes neither --scores nor --group-values");
    if (problem->visible && problem->keys != problem->dim_value)
        stop(2, "--visible: needs --keys (%" PRId64 ") equal to --dim-%s (%" PRId64 ")",
             problem->keys, problem->dim_value == problem->dim ? "head" : "value",
             problem->dim_value);
    if (problem->text_path && (problem->visible || problem->group_values || patterned ||
                               problem->one_hot || problem->keys != problem->queries))
        stop(2, "--text: takes none of --visible, --group-values, --scores, --gradient, and "
                "--keys must equal --queries");

    /* Far below what int64_t holds, so that no index can overflow. */
    double most = (double)problem->batch * (double)problem->heads * (double)longest_row(problem) *
                  (double)(problem->keys > problem->queries ? problem->keys : problem->queries);
    if (most > 1e15)
        stop(2, "the problem is too large: an array would have %g elements", most);
}

/* Creates the folder, or empties it of an earlier problem. */
static void prepare_folder(const struct request *problem)
{
    struct stat status;
    if (mkdir(problem->folder, 0777) != 0 && errno != EEXIST)
        stop(1, "%s: cannot create the folder: %s", problem->folder, strerror(errno));
    if (stat(problem->folder, &status) != 0 || !S_ISDIR(status.st_mode))
        stop(1, "%s: is not a folder; a problem is a folder of .npy files", problem->folder);
    remove_files(problem);
}

int main(int argc, char **argv)
{
    struct request problem = parse(argc, argv);
    settle(&problem);
    if (problem.text_path) {
        spare_text(&problem);
        load_text(&problem);
    }
    int64_t row = problem.heads * longest_row(&problem);
    problem.made = allocate(row, sizeof *problem.made);
    problem.repeated = allocate(row, sizeof *problem.repeated);
    problem.visible_keys = allocate(problem.keys, sizeof *problem.visible_keys);
    prepare_folder(&problem);

    /* The heads of k and v as they are written: G, or H copies of them. */
    int64_t N = problem.queries, M = problem.keys, H = problem.heads, G = problem.key_heads;
    int64_t written = problem.repeat == NOT_REPEATED ? G : H;
    write_array(&problem, "q", N, H, H, problem.dim, q_row);
    write_array(&problem, "k", M, G, written, problem.dim, k_row);
    write_array(&problem, "v", M, G, written, problem.dim_value, v_row);
    write_array(&problem, "do", N, H, H, problem.dim_value, do_row);
    if (problem.mask != NONE)
        write_mask(&problem);
    if (problem.slices != PATTERNS)
        write_slices(&problem);
    if (problem.extras)
        write_extras(&problem);

    free(problem.text);
    free(problem.embedding);
    free(problem.q_projection);
    free(problem.k_projection);
    free(problem.v_projection);
    free(problem.made);
    free(problem.repeated);
    free(problem.visible_keys);
    return 0;
}
