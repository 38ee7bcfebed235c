/* bench-methods: one problem by every method that its ranks can have: what the cost model predicts,
 * and what calls of a plan take.
 *
 *   mpirun -n RANKS build/bench-methods [flags]
 *
 * Chapter 12. --help says what can be asked. The ranks measure what they are, as RA_AUTO_METHOD
 * does; cables that are known stand in for measured ones. In each turn every method has one call of
 * each pass, which begins when all ranks are there and ends when the last is done; times are
 * medians of all turns but the first. Fails if a method's results differ from those of the ring by
 * more than rounding.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "median.h"
#include "ra_clock.h"
#include "ra_config_check.h"
#include "ra_math.h"
#include "ra_options.h"
#include "ra_scale_measure.h"
#include "ring_attention_mpi.h"
#include "usage.h"

static const char usage[] =
    "usage: mpirun -n RANKS bench-methods [flags]\n"
    "\n"
    "  --tokens N     (4096)\n"
    "  --heads H      (8)\n"
    "  --key-heads G  (H)\n"
    "  --dim-head D   (64)\n"
    "  --causal       in the striped layout\n"
    "  --turns T      (5), besides the first\n"
    "  --ranks-per-host R, --bandwidth B, --host-bandwidth B\n"
    "                 the cables, in the place of measured ones: bytes a second that a rank\n"
    "                 sends inside its host, and to others\n"
    "  -h, --help     this text; --version: the version\n";

enum { MOST_TURNS = 101, TIMES = 9, RESULTS = 5 };

static int rank, ranks;
static struct ra_config config = RA_CONFIG_INIT;
static struct ra_scale_machine machine = RA_SCALE_MACHINE_INIT, cables = RA_SCALE_MACHINE_INIT;

static _Noreturn void stop(const char *text, const char *more)
{
    fprintf(stderr, "bench-methods: %s%s\n", text, more);
    MPI_Abort(MPI_COMM_WORLD, 2);
    exit(2);
}

static void check(enum ra_status status, const char *error)
{
    if (status != RA_OK)
        stop(error, "");
}

/* ---- What is asked. */

static int read_options(int argc, char **argv)
{
    int64_t tokens = 4096, turns = 5, heads = 8, per_host = 0;
    const struct {
        const char *flag;
        int64_t *number;
        double *real;
    } flags[] = {{"--tokens", &tokens, NULL},
                 {"--heads", &heads, NULL},
                 {"--key-heads", &config.key_heads, NULL},
                 {"--dim-head", &config.dim, NULL},
                 {"--turns", &turns, NULL},
                 {"--ranks-per-host", &per_host, NULL},
                 {"--bandwidth", NULL, &cables.bandwidth},
                 {"--host-bandwidth", NULL, &cables.host_bandwidth}};
    config.dim = 64;
    for (int i = 1; i < argc; i++) {
        size_t f = 0;
        if (strcmp(argv[i], "--causal") == 0) {
            config.causal = true;
            config.layout = RA_STRIPED;
            continue;
        }
        while (f < sizeof flags / sizeof *flags && strcmp(argv[i], flags[f].flag) != 0)
            f++;
        if (f == sizeof flags / sizeof *flags || i + 1 == argc)
            stop(argv[i], " is no flag, or has no value; see --help");
        double value = atof(argv[++i]);
        if (!(value > 0 && value < 1e15) || (flags[f].number && value != floor(value)))
            stop(flags[f].flag, flags[f].number ? ": give a whole number above 0"
                                                : ": give bytes a second, above 0");
        if (flags[f].number)
            *flags[f].number = (int64_t)value;
        else
            *flags[f].real = value;
    }
    if (turns >= MOST_TURNS)
        stop("--turns: give at most 100", "");
    if ((per_host > 0) != (cables.bandwidth > 0) || (per_host > 0) != (cables.host_bandwidth > 0))
        stop("--ranks-per-host, --bandwidth and --host-bandwidth go together", "; see --help");
    config.queries = tokens;
    config.heads = heads;
    config.ring_size = ranks;
    config.threads = 1;
    cables.ranks_per_host = (int)per_host;
    return (int)turns + 1;
}

/* ---- The machine, and its methods. */

static struct ra_scale_choices all_methods(void)
{
    struct ra_config read, any = config;
    struct ra_link link;
    struct ra_scale_choices choices;
    char error[RA_ERROR_SIZE];
    check(ra_config_read(&read, &config, error), error);
    check(ra_mpi_link(&link, MPI_COMM_WORLD, ranks, config.timeout, error), error);
    check(ra_scale_measure(&machine, &read, &link, 0, TIMES, error), error);
    if (link.close)
        link.close(link.self);
    if (cables.ranks_per_host > 0) {
        machine.ranks_per_host = cables.ranks_per_host;
        machine.bandwidth = cables.bandwidth;
        machine.host_bandwidth = cables.host_bandwidth;
        machine.latency = machine.host_latency = 0;
    }
    check(ra_scale_choose(&choices, &any, NULL, &machine, NULL, error), error);
    return choices;
}

/* ---- Calls. */

static struct ra_tensor array(int64_t rows, int64_t heads, int64_t seed)
{
    int64_t count = rows * heads * config.dim;
    float *data = malloc((size_t)ra_max(count, 1) * sizeof *data);
    if (!data)
        stop("no memory", "");
    for (int64_t e = 0; e < count; e++) {
        uint64_t z = (uint64_t)(seed + (e + 1) * ranks * 8) * 0x9E3779B97F4A7C15;
        data[e] = seed < 0 ? NAN : (float)((z ^ z >> 30) * 0xBF58476D1CE4E5B9 >> 40) * 0x1p-23f - 1;
    }
    return ra_tensor_bnhd(data, RA_FLOAT32, rows, heads, config.dim);
}

struct method {
    const struct ra_scale_choice *choice;
    struct ra_plan *plan;
    struct ra_arrays x;
    int64_t numbers[RESULTS]; /* of o, lse, dq, dk, dv */
    double seconds[2][MOST_TURNS];
};

static const void *result(const struct method *m, int i)
{
    const struct ra_tensor all[RESULTS] = {m->x.o, m->x.lse, m->x.dq, m->x.dk, m->x.dv};
    return all[i].data;
}

/* Makes the plan of a method. Inputs are those of the first. */
static void make(struct method *m, const struct method *first)
{
    struct ra_config c = config;
    struct ra_link link;
    char error[RA_ERROR_SIZE];
    c.method = m->choice->config_method;
    c.group = m->choice->group;
    c.inner = m->choice->inner;
    check(ra_mpi_link(&link, MPI_COMM_WORLD, ranks, c.timeout, error), error);
    check(ra_plan_create(&m->plan, &c, &link, error), error);
    int64_t n = ra_plan_rows(m->plan, RA_QUERY_SIDE), H = c.heads;
    int64_t G = c.key_heads == RA_SAME ? H : c.key_heads;
    m->x = (struct ra_arrays)RA_ARRAYS_INIT;
    if (m == first) {
        m->x.q = array(n, H, rank);
        m->x.k = array(n, G, rank + ranks);
        m->x.v = array(n, G, rank + 2 * ranks);
        m->x.d_out = array(n, H, rank + 3 * ranks);
    } else {
        m->x.q = first->x.q;
        m->x.k = first->x.k;
        m->x.v = first->x.v;
        m->x.d_out = first->x.d_out;
    }
    m->x.o = array(n, H, -1);
    m->x.dq = array(n, H, -1);
    m->x.dk = array(n, G, -1);
    m->x.dv = array(n, G, -1);
    m->x.lse = ra_tensor_bhn(array(n, H, -1).data, n, H);
    const int64_t numbers[RESULTS] = {n * H * c.dim, n * H, n * H * c.dim, n * G * c.dim,
                                      n * G * c.dim};
    memcpy(m->numbers, numbers, sizeof numbers);
}

/* Seconds of one pass, of the slowest rank. */
static double call(struct method *m, bool backward)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double seconds = ra_seconds(), most;
    check((backward ? ra_backward : ra_forward)(m->plan, &m->x), ra_plan_error(m->plan));
    seconds = ra_seconds() - seconds;
    MPI_Allreduce(&seconds, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

/* The largest difference between two methods' results; NaN counts as infinity. */
static double difference(const struct method *a, const struct method *b)
{
    double most = 0;
    for (int i = 0; i < RESULTS; i++) {
        const float *x = result(a, i), *y = result(b, i);
        for (int64_t e = 0; e < a->numbers[i]; e++) {
            double off = fabs((double)x[e] - (double)y[e]);
            most = off <= most ? most : isnan(off) ? INFINITY : off;
        }
    }
    MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

static void print(struct method *m, int turns, double off)
{
    const struct ra_scale *scale = &m->choice->scale;
    double predicted[2] = {scale->forward.seconds, scale->backward.seconds}, measured[2];
    for (int pass = 0; pass < 2; pass++)
        measured[pass] = median(m->seconds[pass] + 1, turns - 1);
    printf("%-15s %3d %10.4f %10.4f %10.4f %10.4f %12.0f %12.0f %9.1e\n",
           ra_option_methods[m->choice->config_method].word, m->choice->group + m->choice->inner,
           predicted[0], measured[0], predicted[0] + predicted[1], measured[0] + measured[1],
           scale->forward.inside_bytes + scale->backward.inside_bytes,
           scale->forward.host_bytes + scale->backward.host_bytes, off);
}

int main(int argc, char **argv)
{
    static struct method methods[RA_SCALE_CHOICES];
    answer_usage(argc, argv, "bench-methods", usage);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int turns = read_options(argc, argv), count = 0;
    struct ra_scale_choices choices = all_methods();
    for (int i = 0; i < choices.count; i++)
        if (choices.list[i].possible)
            methods[count++].choice = &choices.list[i];
    for (int i = 0; i < count; i++)
        make(&methods[i], methods);
    for (int turn = 0; turn < turns; turn++)
        for (int i = 0; i < count; i++)
            for (int pass = 0; pass < 2; pass++)
                methods[i].seconds[pass][turn] = call(&methods[i], pass == 1);

    if (rank == 0)
        printf(
            "# a rank: %.3g multiply-adds a second forward, %.3g backward; memory %.3g B/s; sends "
            "%.3g B/s inside, %.3g to others\n"
            "# method, ranks of a group, seconds forward as predicted and measured, and of both "
            "passes; "
            "bytes inside and to others\n",
            machine.forward_rate, machine.backward_rate, machine.memory_bandwidth,
            machine.bandwidth, machine.host_bandwidth);
    bool right = true;
    for (int i = 0; i < count; i++) {
        double off = difference(&methods[i], methods);
        right = right && off < 1e-3;
        if (rank == 0)
            print(&methods[i], turns, off);
    }
    for (int i = count; i-- > 0;)
        ra_plan_destroy(methods[i].plan);
    MPI_Finalize();
    if (!right && rank == 0)
        fprintf(stderr, "bench-methods: results differ by more than rounding\n");
    return right ? 0 : 1;
}
