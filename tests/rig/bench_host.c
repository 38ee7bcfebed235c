/* bench-host: how fast whole calls of the library are on the host: ra_forward and ra_backward of
 * one plan.
 *
 * Chapter 09. --help says what can be asked. Rates count multiplications and additions of the
 * products by one convention: forward 2 N N (D + D_v) H, backward 2 N N (3 D + 2 D_v) H, causal
 * half. Inputs are normal random numbers, (N, H, D) and (N, H, D_v). A first call of each, which
 * touches all memory for the first time, is not counted. What other programs do disturbs the
 * seconds that processors spent less than those on the clock.
 *
 * With --turns a peer can take turns with it: for each line that it reads it makes one forward and
 * one backward, and prints the seconds of each, on the clock and of the processors, as four
 * numbers.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "median.h"
#include "numbers.h"
#include "ra_clock.h"
#include "ra_math.h"
#include "ra_options.h"
#include "ring_attention.h"
#include "usage.h"

static const struct ra_choice passes[] = {{"forward", ""}, {"backward", ""}, {0}};
enum calls { TOGETHER, OWN, SAME };
static const struct ra_choice calls_words[] = {{"together", ""}, {"own", ""}, {"same", ""}, {0}};
static const char usage[] =
    "usage: bench-host [flags]\n"
    "\n"
    "  --queries N    rows of queries and of keys (4096)\n"
    "  --dim-head D   (64)\n"
    "  --dim-value D  numbers of a head in v and o (D)\n"
    "  --heads H      (2)\n"
    "  --key-heads G  (H)\n"
    "  --causal\n"
    "  --documents C  the rows are C packed documents: one call of slices\n"
    "  --calls K      with --documents: one call of all (together), or a call "
    "for each, on\n"
    "                 its own rows (own) or all on those of the first "
    "(same)\n"
    "  --type T       float32, float16 or bfloat16 (float32)\n"
    "  --tile T       vector or plain (vector)\n"
    "  --set S        instruction set, as in RA_VECTOR (the best)\n"
    "  --tile-queries N, --tile-keys N\n"
    "                 rows of a tile (as the library chooses)\n"
    "  --threads T    (all processors)\n"
    "  --pass P       forward or backward (both)\n"
    "  --repeat R     calls, of whose seconds the best and the median are "
    "printed, and the best of\n"
    "                 those that processors spent (5)\n"
    "  --turns        a call for each line of the input, instead\n"
    "  -h, --help     this text; --version: the version\n";

enum { MOST_REPEATS = 1000 };

static struct ra_config config = RA_CONFIG_INIT;
static int64_t rows; /* of all arrays */
static enum calls calls;
static bool turns, wanted[2] = {true, true}; /* the forward, the backward */

static _Noreturn void stop(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("bench-host: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs("\n", stderr);
    va_end(arguments);
    exit(2);
}

/* ---- What is asked. */

static int choice(const struct ra_choice *choices, const char *word)
{
    for (int i = 0; choices[i].word; i++)
        if (strcmp(choices[i].word, word) == 0)
            return i;
    stop("%s is none of the choices; see --help", word);
}

/* What flags with a number set. */
static int64_t threads, repeats = 5, documents;
static const struct {
    const char *flag;
    int64_t *number;
} numbers[] = {{"--queries", &config.queries},
               {"--dim-head", &config.dim},
               {"--dim-value", &config.dim_value},
               {"--heads", &config.heads},
               {"--key-heads", &config.key_heads},
               {"--tile-queries", &config.tile_queries},
               {"--tile-keys", &config.tile_keys},
               {"--documents", &documents},
               {"--threads", &threads},
               {"--repeat", &repeats}};

/* Takes a flag and its value. */
static void take(const char *flag, const char *value)
{
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(flag, numbers[i].flag) == 0) {
            *numbers[i].number = atoll(value);
            return;
        }
    if (strcmp(flag, "--dim") == 0)
        stop("%s: this flag is called --dim-head; see --help", flag);
    if (strcmp(flag, "--type") == 0)
        config.type = (enum ra_type)choice(ra_option_types, value);
    else if (strcmp(flag, "--tile") == 0)
        config.tile = (enum ra_tile_kind)choice(ra_option_tiles, value);
    else if (strcmp(flag, "--set") == 0)
        setenv("RA_VECTOR", value, 1);
    else if (strcmp(flag, "--calls") == 0)
        calls = (enum calls)choice(calls_words, value);
    else if (strcmp(flag, "--pass") == 0)
        wanted[choice(passes, value) == 0] = false;
    else
        stop("%s is no flag; see --help", flag);
}

static void read_options(int argc, char **argv)
{
    config.queries = 4096;
    config.dim = 64;
    config.heads = 2;
    answer_usage(argc, argv, "bench-host", usage);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--causal") == 0) {
            config.causal = true;
        } else if (strcmp(argv[i], "--turns") == 0) {
            turns = true;
        } else {
            take(argv[i], i + 1 < argc ? argv[i + 1] : "");
            i++;
        }
    }
    config.threads = (int)threads;
    if (config.key_heads == RA_SAME)
        config.key_heads = config.heads;
    if (config.dim_value == 0)
        config.dim_value = config.dim;
    rows = config.queries;
    if (repeats < 1 || repeats > MOST_REPEATS || rows < 1 || documents < 0)
        stop("a number is out of range; see --help");
    if (calls != TOGETHER && (documents == 0 || rows % documents != 0))
        stop("--calls: give --documents that divide --queries; see --help");
    if (calls == TOGETHER)
        config.max_slices = documents;
    else
        config.queries = rows / documents;
}

/* ---- Arrays. */

static struct ra_tensor array(int64_t heads, int64_t dim, uint64_t *state)
{
    int64_t count = rows * heads * dim;
    void *data = calloc((size_t)count, (size_t)ra_type_bytes(config.type));
    if (!data)
        stop("no memory");
    for (int64_t e = 0; e < count && state; e++)
        number_put(config.type, data, e, number_rounded(config.type, random_normal(state)));
    return ra_tensor_bnhd(data, config.type, rows, heads, dim);
}

static struct ra_arrays all_arrays(void)
{
    uint64_t state = 1;
    int64_t H = config.heads, G = config.key_heads, D = config.dim, D_v = config.dim_value;
    struct ra_arrays x = RA_ARRAYS_INIT;
    x.q = array(H, D, &state);
    x.k = array(G, D, &state);
    x.v = array(G, D_v, &state);
    x.d_out = array(H, D_v, &state);
    x.o = array(H, D_v, NULL);
    x.dq = array(H, D, NULL);
    x.dk = array(G, D, NULL);
    x.dv = array(G, D_v, NULL);
    float *lse = calloc((size_t)(rows * H), sizeof *lse);
    if (!lse)
        stop("no memory");
    x.lse = ra_tensor_bhn(lse, rows, H);
    return x;
}

/* Gives the plan its documents, if there are any. */
static void set_documents(struct ra_plan *plan)
{
    int64_t *bounds = calloc((size_t)documents + 1, sizeof *bounds);
    struct ra_slice *slices = calloc((size_t)documents + 1, sizeof *slices);
    if (!bounds || !slices)
        stop("no memory");
    for (int64_t d = 1; d <= documents; d++)
        bounds[d] = config.queries / documents * d + ra_min(config.queries % documents, d);
    ra_slices_documents(bounds, documents, RA_NO_LOOKBACK, config.causal ? 0 : RA_NO_LOOKBACK,
                        slices);
    if (config.max_slices > 0 &&
        ra_plan_set_slices(plan, slices, documents, RA_DEAL_LAYOUT) != RA_OK)
        stop("%s", ra_plan_error(plan));
    free(bounds);
    free(slices);
}

/* ---- Time. */

static double processor_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* The arrays from this row on. */
static struct ra_arrays arrays_from(struct ra_arrays x, int64_t row)
{
    struct ra_tensor *const tensors[] = {&x.q, &x.k, &x.v, &x.d_out, &x.o, &x.dq, &x.dk, &x.dv};
    for (size_t t = 0; t < sizeof tensors / sizeof *tensors; t++)
        tensors[t]->data =
            (char *)tensors[t]->data + row * tensors[t]->row * ra_type_bytes(config.type);
    x.lse.data = (float *)x.lse.data + row * x.lse.row;
    return x;
}

/* One pass over all rows: its seconds on the clock, and of all processors. */
static void call(struct ra_plan *plan, const struct ra_arrays *arrays, bool backward,
                 double seconds[2])
{
    double start = ra_seconds(), processors = processor_seconds();
    for (int64_t row = 0; row < rows; row += config.queries) {
        struct ra_arrays own = arrays_from(*arrays, calls == OWN ? row : 0);
        if ((backward ? ra_backward : ra_forward)(plan, &own) != RA_OK)
            stop("%s", ra_plan_error(plan));
    }
    seconds[0] = ra_seconds() - start;
    seconds[1] = processor_seconds() - processors;
}

static void print_rates(bool backward, double seconds[2][MOST_REPEATS])
{
    double N = (double)rows, H = (double)config.heads;
    const struct ra_dims dims = {config.dim, config.dim_value};
    double work = 2e-9 * N * N * (double)ra_dims_products(dims, backward) * H;
    work /= documents > 0 ? (double)documents : 1;
    work *= config.causal ? 0.5 : 1;
    sort_numbers(seconds[1], repeats);
    double usual = median(seconds[0], repeats), best = seconds[0][0], busy = seconds[1][0];
    printf("%-8s best %9.4f s %8.2f GFLOP/s   median %9.4f s %8.2f GFLOP/s   "
           "processors %9.4f s %8.2f GFLOP/s\n",
           passes[backward].word, best, work / best, usual, work / usual, busy, work / busy);
}

int main(int argc, char **argv)
{
    static double all[2][2][MOST_REPEATS]; /* by pass and clock */
    char line[100], error[RA_ERROR_SIZE];
    struct ra_plan *plan;
    read_options(argc, argv);
    struct ra_arrays arrays = all_arrays();
    if (ra_plan_create(&plan, &config, NULL, error) != RA_OK)
        stop("%s", error);
    set_documents(plan);
    double seconds[2][2];
    for (int step = 0; step < 2; step++)
        call(plan, &arrays, step == 1, seconds[step]);

    while (turns && fgets(line, sizeof line, stdin)) {
        for (int step = 0; step < 2; step++)
            call(plan, &arrays, step == 1, seconds[step]);
        printf("%.6f %.6f %.6f %.6f\n", seconds[0][0], seconds[0][1], seconds[1][0], seconds[1][1]);
        fflush(stdout);
    }
    for (int run = 0; run < repeats && !turns; run++)
        for (int step = 0; step < 2; step++)
            if (wanted[step]) {
                call(plan, &arrays, step == 1, seconds[step]);
                all[step][0][run] = seconds[step][0];
                all[step][1][run] = seconds[step][1];
            }
    for (int step = 0; step < 2 && !turns; step++)
        if (wanted[step])
            print_rates(step == 1, all[step]);
    ra_plan_destroy(plan);
    return 0;
}
