/* check_sums: what every kernel makes of numbers that are not finite, and of sums over millions of
 * rows.
 *
 * Chapter 11. NaN and infinity must reach every query that sees them and no other. A sum over 2 *
 * 10^7 keys must be as good as one over ten: 10^-5 in float32, one rounding of the type in 16 bits.
 *
 * Usage: check-sums [--quick]     (up to 10^6 rows)
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels_tested.h"
#include "numbers.h"
#include "verdict.h"

static void check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "check-sums: %s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

/* ---- A problem: one batch, one head, in memory that host and device reach. */

struct trial {
    const struct kernel *kernel;
    int64_t n, m, dim;
    struct ra_band band;
    struct ra_kernel x;
    void *memory[20];
    int count;
};

/* An array (1, rows, 1, width) whose bytes are all `byte`: 0xff is NaN in every type. */
static struct ra_tensor array(struct trial *p, enum ra_type type, int64_t rows, int64_t width,
                              int byte)
{
    void **memory = &p->memory[p->count++];
    size_t bytes = (size_t)(rows * width * ra_type_bytes(type));
    check(cudaMallocManaged(memory, bytes, cudaMemAttachGlobal), "memory");
    memset(*memory, byte, bytes);
    return ra_tensor_bnhd(*memory, type, rows, 1, width);
}

static struct trial make(const struct kernel *kernel, int64_t n, int64_t m, int64_t dim,
                         struct ra_band band)
{
    struct trial p = {.kernel = kernel, .n = n, .m = m, .dim = dim, .band = band};
    enum ra_type type = kernel->type;
    p.x = (struct ra_kernel){.batch = 1,
                             .queries = n,
                             .keys = m,
                             .heads = 1,
                             .key_heads = 1,
                             .dim = dim,
                             .dim_value = dim,
                             .score = {.scale = 1 / sqrtf((float)dim)},
                             .band = band,
                             .deterministic = true,
                             .q = array(&p, type, n, dim, 0),
                             .k = array(&p, type, m, dim, 0),
                             .v = array(&p, type, m, dim, 0),
                             .d_out = array(&p, type, n, dim, 0),
                             .o = array(&p, RA_FLOAT32, n, dim, 0xff),
                             .lse = array(&p, RA_FLOAT32, n, 1, 0xff),
                             .carry_o = array(&p, RA_FLOAT32, n, dim, 0xff),
                             .carry_max = array(&p, RA_FLOAT32, n, 1, 0xff),
                             .carry_sum = array(&p, RA_FLOAT32, n, 1, 0xff),
                             .delta = array(&p, RA_FLOAT32, n, 1, 0xff),
                             .dq = array(&p, RA_FLOAT32, n, dim, 0),
                             .dk = array(&p, RA_FLOAT32, m, dim, 0),
                             .dv = array(&p, RA_FLOAT32, m, dim, 0)};
    p.x.o_comp = array(&p, RA_FLOAT32, n, dim, 0);
    p.x.sum_comp = array(&p, RA_FLOAT32, n, 1, 0);
    p.x.dq_comp = array(&p, RA_FLOAT32, n, dim, 0);
    p.x.dk_comp = array(&p, RA_FLOAT32, m, dim, 0);
    p.x.dv_comp = array(&p, RA_FLOAT32, m, dim, 0);
    int64_t semaphores = ra_kernel_semaphores(&p.x);
    p.x.semaphores = array(&p, RA_FLOAT32, semaphores, 1, 0).data;
    return p;
}

static void clear(struct trial *p)
{
    for (int i = 0; i < p->count; i++)
        check(cudaFree(p->memory[i]), "free");
}

static void put(struct ra_tensor x, int64_t i, double number)
{
    number_put(x.type, x.data, i, number);
}

static double get(struct ra_tensor x, int64_t i)
{
    return number_get(x.type, x.data, i);
}

/* Forward, in as few launches as add up well. */
static void run_forward(const struct trial *p)
{
    int64_t most = ra_kernel_most_keys(p->kernel->type);
    for (int64_t b = 0; b < p->m; b += most) {
        struct ra_kernel piece = ra_kernel_keys(p->x, b, most);
        piece.first = b == 0;
        piece.last = b + most >= p->m;
        check(p->kernel->rung->forward(&piece, 0), "forward");
    }
    check(cudaDeviceSynchronize(), "forward");
}

static void run_backward(const struct trial *p)
{
    check(ra_kernel_delta(&p->x, 0), "delta");
    check(p->kernel->rung->backward(&p->x, 0), "backward");
    check(cudaDeviceSynchronize(), "backward");
}

/* ---- Numbers that are not finite. */

static bool row_sees(const struct trial *p, int64_t a, int64_t b)
{
    return p->band.lo <= b - a && b - a <= p->band.hi;
}

static bool is_finite(struct ra_tensor x, int64_t row, int64_t width)
{
    for (int64_t c = 0; c < width; c++)
        if (!isfinite(get(x, row * width + c)))
            return false;
    return true;
}

static void fill_randomly(const struct trial *p)
{
    uint64_t state = 3;
    const struct ra_tensor *inputs[] = {&p->x.q, &p->x.k, &p->x.v, &p->x.d_out};
    for (int i = 0; i < 4; i++)
        for (int64_t e = 0; e < (i == 1 || i == 2 ? p->m : p->n) * p->dim; e++)
            put(*inputs[i], e, number_rounded(p->kernel->type, random_normal(&state)));
}

/* Holds what a run with one number that is not finite left against a run without it: only queries
 * that see its key, and the key itself, may tell. */
static bool spoils_what_sees(const struct trial *p, const struct trial *clean, int64_t key)
{
    bool good = true;
    for (int64_t a = 0; a < p->n && good; a++) {
        bool sees = row_sees(p, a, key);
        good = HOLDS(is_finite(p->x.o, a, p->dim) == !sees, "%s: o of query %" PRId64,
                     p->kernel->name, a) &&
               HOLDS(is_finite(p->x.dq, a, p->dim) == !sees, "%s: dq of query %" PRId64,
                     p->kernel->name, a) &&
               HOLDS(sees || get(p->x.lse, a) == get(clean->x.lse, a), "%s: lse of query %" PRId64,
                     p->kernel->name, a);
        for (int64_t e = a * p->dim; e < (a + 1) * p->dim && good && !sees; e++)
            good = HOLDS(get(p->x.o, e) == get(clean->x.o, e), "%s: o of query %" PRId64,
                         p->kernel->name, a) &&
                   HOLDS(fabs(get(p->x.dq, e) - get(clean->x.dq, e)) < 1e-4,
                         "%s: dq of query %" PRId64, p->kernel->name, a);
    }
    for (int64_t b = 0; b < p->m && good; b++)
        for (int64_t e = b * p->dim; e < (b + 1) * p->dim && good && b != key; e++)
            good = HOLDS(fabs(get(p->x.dk, e) - get(clean->x.dk, e)) < 1e-4 &&
                             fabs(get(p->x.dv, e) - get(clean->x.dv, e)) < 1e-4,
                         "%s: dk and dv of key %" PRId64, p->kernel->name, b);
    return good;
}

/* NaN in k or v, or infinity in v, at a key that the band hides from some queries. (Infinity in k
 * may be a score of -inf, which rightly weighs nothing beside others.) */
static void test_nonfinite_keys(const struct kernel *kernel, int64_t dim, struct ra_band band)
{
    struct trial clean = make(kernel, 150, 140, dim, band);
    fill_randomly(&clean);
    run_forward(&clean);
    run_backward(&clean);
    static const int64_t keys[] = {0, 31, 64, 100, 139};
    for (int i = 0; i < 20; i++) {
        struct trial p = make(kernel, 150, 140, dim, band);
        struct ra_tensor array = i % 2 ? p.x.k : p.x.v;
        int64_t key = keys[i / 4];
        fill_randomly(&p);
        put(array, key * dim + (7 * i) % dim, i % 4 == 2 ? INFINITY : (double)NAN);
        run_forward(&p);

        /* The backward of the right forward: its lse and o must not do the work. */
        memcpy(p.x.lse.data, clean.x.lse.data, (size_t)p.n * sizeof(float));
        struct ra_tensor o = p.x.o;
        p.x.o = clean.x.o;
        run_backward(&p);
        p.x.o = o;
        verdict_count(spoils_what_sees(&p, &clean, key));
        clear(&p);
    }
    clear(&clean);
}

/* All scores are -inf, or all +inf: such queries have no answer, those that see nothing have
 * one. */
static void test_overflow(const struct kernel *kernel, double sign)
{
    struct trial p = make(kernel, 150, 140, 64, (struct ra_band){-RA_BAND_FAR, -10});
    fill_randomly(&p);
    for (int64_t e = 0; e < p.n * p.dim; e++)
        put(p.x.q, e, sign);
    for (int64_t e = 0; e < p.m * p.dim; e++)
        put(p.x.k, e, kernel->type == RA_FLOAT16 ? INFINITY : 1e38);
    run_forward(&p);
    bool good = true;
    for (int64_t a = 0; a < p.n && good; a++) {
        double lse = get(p.x.lse, a), o = get(p.x.o, a * p.dim);
        good = a < 10 ? HOLDS(lse == -INFINITY && o == 0, "%s: query %" PRId64 ": lse %g, o %g",
                              kernel->name, a, lse, o)
                      : HOLDS(isnan(lse) && isnan(o), "%s: query %" PRId64 ": lse %g, o %g",
                              kernel->name, a, lse, o);
    }
    verdict_count(good);
    clear(&p);
}

/* ---- Sums over many rows. */

/* The worst error of an array, relative to the largest number: of `rows` rows, whose numbers are
 * low and high, one row after the other. */
static double error_of(struct ra_tensor x, int64_t rows, int64_t width, const double right[2])
{
    double most = fmax(fabs(right[0]), fabs(right[1])), worst = 0;
    for (int64_t e = 0; e < rows * width; e++) {
        double error = fabs(get(x, e) - right[e / width % 2]) / most;
        if (!(error <= worst))
            worst = error;
    }
    return worst;
}

/* k and v of two kinds, one after the other; q is 0, so all keys weigh the same. */
static void test_many_keys(const struct kernel *kernel, int64_t m, double most)
{
    enum { N = 20, D = 8 };
    struct trial p = make(kernel, N, m, D, RA_ALL_KEYS);
    double k[] = {0.5, -0.25}, v[2], d_out = number_rounded(kernel->type, 0.7e-4 * (double)m);
    for (int i = 0; i < 2; i++)
        v[i] = number_rounded(kernel->type, i ? 0.3 : 0.1);
    for (int64_t e = 0; e < m * D; e++) {
        put(p.x.k, e, k[e / D % 2]);
        put(p.x.v, e, v[e / D % 2]);
    }
    for (int64_t e = 0; e < N * D; e++)
        put(p.x.d_out, e, d_out);
    run_forward(&p);
    run_backward(&p);
    check(ra_kernel_sum(p.x.dq, p.x.dq, p.x.dq_comp, 1, N, 1, D, 0), "add");
    check(cudaDeviceSynchronize(), "add");

    /* dp - delta is +-D d_out times half the difference of both v; d_out is so large that ds, 1 / m
     * of that, which tensor cores round, is within the range of float16. */
    double o = (v[0] + v[1]) / 2, lse = log((double)m), ds = D * d_out * (v[0] - v[1]) / 2;
    double dq = p.x.score.scale * (k[0] - k[1]) / 2;
    dq *= (double)m * number_rounded(kernel->type, ds / (double)m);
    double errors[] = {error_of(p.x.o, N, D, (double[]){o, o}),
                       error_of(p.x.lse, N, 1, (double[]){lse, lse}),
                       error_of(p.x.dq, N, D, (double[]){dq, dq})};
    static const char *const names[] = {"o", "lse", "dq"};
    printf("%-12s %9" PRId64 " keys:    o %.1e  lse %.1e  dq %.1e\n", kernel->name, m, errors[0],
           errors[1], errors[2]);
    bool good = true;
    for (int i = 0; i < 3; i++)
        good = HOLDS(errors[i] <= most, "%s: %s of %" PRId64 " keys is off by %.2e, allowed %.1e",
                     kernel->name, names[i], m, errors[i], most) &&
               good;
    verdict_count(good);
    clear(&p);
}

/* Many queries for few keys, whose scores are all 0, as k is. */
static void test_many_queries(const struct kernel *kernel, int64_t n, double most)
{
    enum { M = 20, D = 8 };
    struct trial p = make(kernel, n, M, D, RA_ALL_KEYS);
    double q = 0.5, v[2], d_out = number_rounded(kernel->type, 0.7);
    for (int i = 0; i < 2; i++)
        v[i] = number_rounded(kernel->type, i ? 0.3 : 0.1);
    for (int64_t e = 0; e < M * D; e++)
        put(p.x.v, e, v[e / D % 2]);
    for (int64_t e = 0; e < n * D; e++) {
        put(p.x.q, e, q);
        put(p.x.d_out, e, d_out);
    }
    run_forward(&p);
    run_backward(&p);
    check(ra_kernel_sum(p.x.dk, p.x.dk, p.x.dk_comp, 1, M, 1, D, 0), "add");
    check(ra_kernel_sum(p.x.dv, p.x.dv, p.x.dv_comp, 1, M, 1, D, 0), "add");
    check(cudaDeviceSynchronize(), "add");

    /* The weights are 1 / M, which tensor cores round. */
    double p_one = number_rounded(kernel->type, 1.0 / M), dv = (double)n * p_one * d_out;
    double ds = number_rounded(kernel->type, D * d_out * (v[0] - v[1]) / 2 / M);
    double dk = p.x.score.scale * (double)n * ds * q;
    double errors[] = {error_of(p.x.dk, M, D, (double[]){dk, -dk}),
                       error_of(p.x.dv, M, D, (double[]){dv, dv})};
    static const char *const names[] = {"dk", "dv"};
    printf("%-12s %9" PRId64 " queries: dk %.1e  dv %.1e\n", kernel->name, n, errors[0], errors[1]);
    bool good = true;
    for (int i = 0; i < 2; i++)
        good =
            HOLDS(errors[i] <= most, "%s: %s of %" PRId64 " queries is off by %.2e, allowed %.1e",
                  kernel->name, names[i], n, errors[i], most) &&
            good;
    verdict_count(good);
    clear(&p);
}

int main(int argc, char **argv)
{
    bool quick = argc > 1 && strcmp(argv[1], "--quick") == 0;
    if (argc > 1 + quick) {
        fprintf(stderr, "usage: check-sums [--quick]\n");
        return 2;
    }
    int devices = 0;
    check(cudaGetDeviceCount(&devices), "no CUDA device");
    setvbuf(stdout, NULL, _IOLBF, 0);

    static const struct ra_band bands[] = {{-RA_BAND_FAR, 0}, {-30, 5}, {-RA_BAND_FAR, 100}};
    static const int64_t dims[] = {20, 64, 128, 256},
                         lengths[] = {100000, 1000000, 4000000, 20000000};
    for (int k = 0; k < KERNELS; k++) {
        verdict_state.test = "nonfinite keys";
        for (int i = 0; i < 12; i++)
            test_nonfinite_keys(&kernels[k], dims[i % 4], bands[i / 4]);
        verdict_state.test = "overflow";
        test_overflow(&kernels[k], -1);
        test_overflow(&kernels[k], 1);

        /* k01 reads one number after the other: it takes its time. */
        verdict_state.test = "long sums";
        double most = kernels[k].type == RA_FLOAT32 ? 1e-5 : number_half_step(kernels[k].type, 1);
        for (int i = 0; i < (quick || k == 0 ? 2 : 4); i++) {
            test_many_keys(&kernels[k], lengths[i], most);
            test_many_queries(&kernels[k], lengths[i], most);
        }
    }
    return verdict_end();
}
