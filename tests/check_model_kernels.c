/* check_model_kernels: every kernel of ra_model_kernels.h on a GPU, held against its definition in
 * float64; and with --bench how fast it is beside a copy.
 *
 * Chapter 14. Inputs are random numbers, rounded to the type first. Outputs begin as NaN, or as
 * numbers that must be added to, and are followed by numbers that nothing may change. Every launch
 * is made twice, and must give the same bits.
 *
 * Usage: check-model-kernels [--bench]
 */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "median.h"
#include "numbers.h"
#include "patterns.h"
#include "ra_model_kernels.h"
#include "ra_number.h"
#include "verdict.h"

enum { GUARD = 64, MOST_ARRAYS = 24 };

static uint64_t state = 7;

__attribute__((noreturn)) static void die(const char *what, const char *why)
{
    fprintf(stderr, "check-model-kernels: %s: %s\n", what, why);
    exit(1);
}

static void check(cudaError_t code, const char *what)
{
    if (code != cudaSuccess)
        die(what, cudaGetErrorString(code));
}

static double *doubles(int64_t count)
{
    double *memory = calloc((size_t)count + 1, sizeof *memory);
    if (!memory)
        die("the host", "out of memory");
    return memory;
}

/* ---- Arrays: on the device, what they begin with, and what they should become. */

struct array {
    enum ra_type type;
    int64_t count;
    void *device;
    unsigned char *begins; /* bytes, with the guard */
    double *x;             /* inputs: the rounded numbers; outputs: what is right */
};

static struct array arrays[MOST_ARRAYS];
static int array_count;

/* A new array; `kind` 'n': random numbers times `scale`; '0': zeros; else NaN. */
static struct array *make(enum ra_type type, int64_t count, char kind, double scale)
{
    struct array *a = &arrays[array_count++];
    int64_t bytes = ra_type_bytes(type);
    if (array_count > MOST_ARRAYS)
        die("make", "too many arrays");
    *a = (struct array){.type = type, .count = count, .x = doubles(count)};
    a->begins = malloc((size_t)((count + GUARD) * bytes));
    if (!a->begins)
        die("the host", "out of memory");
    memset(a->begins, 0xFF, (size_t)((count + GUARD) * bytes));
    for (int64_t i = 0; i < count && (kind == 'n' || kind == '0'); i++) {
        double x = kind == '0' ? 0 : number_rounded(type, scale * random_normal(&state));
        float single = (float)x;
        a->x[i] = x;
        ra_number_store(type, 1, &single, a->begins + i * bytes);
    }
    check(cudaMalloc(&a->device, (size_t)((count + GUARD) * bytes)), "cudaMalloc");
    return a;
}

/* Memory for other things than floats. */
static void *upload(const void *from, size_t bytes)
{
    struct array *a = make(RA_FLOAT32, (int64_t)(bytes + 3) / 4, 'n', 0);
    memcpy(a->begins, from, bytes);
    check(cudaMemcpy(a->device, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    return a->device;
}

static void begin(void)
{
    for (int i = 0; i < array_count; i++)
        check(cudaMemcpy(arrays[i].device, arrays[i].begins,
                         (size_t)((arrays[i].count + GUARD) * ra_type_bytes(arrays[i].type)),
                         cudaMemcpyHostToDevice),
              "cudaMemcpy");
}

static unsigned char *fetch(const struct array *a)
{
    size_t bytes = (size_t)((a->count + GUARD) * ra_type_bytes(a->type));
    unsigned char *now = malloc(bytes);
    if (!now)
        die("the host", "out of memory");
    check(cudaMemcpy(now, a->device, bytes, cudaMemcpyDeviceToHost), "a kernel");
    return now;
}

static double number_at(const unsigned char *bytes, enum ra_type type, int64_t i)
{
    uint32_t bits = 0;
    if (type == RA_FLOAT32)
        memcpy(&bits, bytes + 4 * i, 4);
    else
        memcpy((char *)&bits + 2, bytes + 2 * i, 2);
    return (double)number_of_bits(bits);
}

/* Expects an array to be what is in x: within `times` roundings of sums in float32, relative to
 * the number itself and to the root of the mean square of all, and one rounding to the type. */
static void judge(const struct array *a, const char *what, double times)
{
    unsigned char *now = fetch(a);
    int64_t bytes = ra_type_bytes(a->type);
    double square = 0, worst = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < a->count; i++)
        square += isfinite(a->x[i]) ? a->x[i] * a->x[i] / (double)a->count : 0;
    for (int64_t i = 0; i < a->count; i++) {
        double got = number_at(now, a->type, i), right = a->x[i];
        double allowed = times * 1e-6 * (fabs(right) + sqrt(square)) + DBL_MIN;
        allowed += a->type == RA_FLOAT32 ? 0 : 1.01 * number_half_step(a->type, right);
        double error = isnan(right) && isnan(got) ? 0 : fabs(got - right) / allowed;
        if (!(error <= worst))
            worst = error, at = i;
    }
    EXPECT(worst <= 1,
           "%s: number %" PRId64 " of %" PRId64 " is %.9g, not %.9g: %.3g times allowed", what, at,
           a->count, number_at(now, a->type, at), a->x[at], worst);
    EXPECT(memcmp(now + a->count * bytes, a->begins + a->count * bytes, (size_t)(GUARD * bytes)) ==
               0,
           "%s: what follows was written to", what);
    free(now);
}

/* Runs a launch twice from the same beginning; all arrays must be the same to the bit. */
static void launch(cudaError_t (*run)(void *), void *context)
{
    unsigned char *first[MOST_ARRAYS];
    begin();
    check(run(context), "a launch");
    for (int i = 0; i < array_count; i++)
        first[i] = fetch(&arrays[i]);
    begin();
    check(run(context), "a launch");
    for (int i = 0; i < array_count; i++) {
        unsigned char *now = fetch(&arrays[i]);
        EXPECT(memcmp(first[i], now,
                      (size_t)((arrays[i].count + GUARD) * ra_type_bytes(arrays[i].type))) == 0,
               "array %d has other bits in a second run", i);
        free(now);
        free(first[i]);
    }
}

/* Frees all arrays, and ends the test. */
__attribute__((format(printf, 1, 2))) static void end(const char *format, ...)
{
    char name[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    for (int i = 0; i < array_count; i++) {
        cudaFree(arrays[i].device);
        free(arrays[i].begins);
        free(arrays[i].x);
    }
    array_count = 0;
    verdict("%s", name);
}

static const enum ra_type types[] = {RA_FLOAT32, RA_BFLOAT16};
static const char *const type_names[] = {"float32", "bfloat16"};

/* ---- Norms. */

struct norm_call {
    struct ra_norm norm;
    int64_t rows, dim;
    enum ra_type type;
    bool add;
    struct array *x, *gamma, *bias, *out, *d_out, *gradient, *copy, *d_gamma, *d_bias, *scratch;
};

static cudaError_t run_norm(void *context)
{
    const struct norm_call *c = context;
    cudaError_t code =
        ra_kernel_norm_forward(c->norm, c->rows, c->dim, c->x->device, c->gamma->device,
                               c->bias ? c->bias->device : NULL, c->type, c->out->device, NULL);
    if (code != cudaSuccess)
        return code;
    return ra_kernel_norm_backward(c->norm, c->rows, c->dim, c->x->device, c->gamma->device,
                                   c->type, c->d_out->device, c->add, c->gradient->device,
                                   c->copy->device, c->d_gamma->device,
                                   c->d_bias ? c->d_bias->device : NULL, c->scratch->device, NULL);
}

/* A row of n numbers, forward and backward, by the definition; dx is added to. */
static void norm_row(struct ra_norm norm, int64_t n, const double *x, const double *gamma,
                     const double *d, double *z, double *factor, double *dx)
{
    double mean = 0, square = 0, along = 0, sum = 0, root;
    for (int64_t c = 0; c < n && norm.kind == RA_NORM_LAYER; c++)
        mean += x[c] / (double)n;
    for (int64_t c = 0; c < n; c++)
        z[c] = x[c] - mean, square += z[c] * z[c];
    root =
        norm.kind == RA_NORM_UNIT ? fmax(sqrt(square), 1e-12) : sqrt(square + norm.eps * (double)n);
    *factor = sqrt((double)n) / root;
    for (int64_t c = 0; c < n; c++)
        along += d[c] * gamma[c] * z[c], sum += d[c] * gamma[c];
    if (norm.kind == RA_NORM_UNIT && sqrt(square) < 1e-12)
        along = 0;
    for (int64_t c = 0; c < n; c++)
        dx[c] += *factor * (d[c] * gamma[c] - z[c] * along / (root * root) -
                            (norm.kind == RA_NORM_LAYER ? sum / (double)n : 0));
}

static void try_norm(struct ra_norm norm, int64_t rows, int64_t dim, enum ra_type type, bool add)
{
    struct norm_call c = {.norm = norm, .rows = rows, .dim = dim, .type = type, .add = add};
    bool has_bias = norm.kind == RA_NORM_LAYER;
    c.x = make(RA_FLOAT32, rows * dim, 'n', 3);
    c.gamma = make(RA_FLOAT32, dim, 'n', 1);
    c.bias = has_bias ? make(RA_FLOAT32, dim, 'n', 1) : NULL;
    c.out = make(type, rows * dim, 'x', 0);
    c.d_out = make(type, rows * dim, 'n', 1);
    c.gradient = make(RA_FLOAT32, rows * dim, add ? 'n' : 'x', 1);
    c.copy = make(type, rows * dim, 'x', 0);
    c.d_gamma = make(RA_FLOAT32, dim, 'n', 1);
    c.d_bias = has_bias ? make(RA_FLOAT32, dim, 'n', 1) : NULL;
    c.scratch = make(RA_FLOAT32, ra_kernel_sum_scratch(dim), 'x', 0);
    if (norm.kind != RA_NORM_LAYER && rows > 2) { /* a row of zeros */
        memset(c.x->begins + dim * 4, 0, (size_t)dim * 4);
        memset(c.x->x + dim, 0, (size_t)dim * sizeof(double));
        memset(c.d_out->begins + dim * ra_type_bytes(type), 0, (size_t)(dim * ra_type_bytes(type)));
        memset(c.d_out->x + dim, 0, (size_t)dim * sizeof(double));
    }
    launch(run_norm, &c);
    double *z = doubles(dim), factor;
    for (int64_t a = 0; a < rows; a++) {
        norm_row(norm, dim, c.x->x + a * dim, c.gamma->x, c.d_out->x + a * dim, z, &factor,
                 c.gradient->x + a * dim);
        for (int64_t e = 0; e < dim; e++) {
            double d = c.d_out->x[a * dim + e];
            c.out->x[a * dim + e] = z[e] * factor * c.gamma->x[e] + (has_bias ? c.bias->x[e] : 0);
            c.copy->x[a * dim + e] = c.gradient->x[a * dim + e];
            c.d_gamma->x[e] += d * z[e] * factor;
            if (has_bias)
                c.d_bias->x[e] += d;
        }
    }
    free(z);
    judge(c.out, "out", 3);
    judge(c.gradient, "gradient", 5);
    /* float32 is off before it is rounded, too: then another bfloat16 may be the next. */
    judge(c.copy, "copy", type == RA_FLOAT32 ? 5 : 20);
    judge(c.d_gamma, "d_gamma", 5);
    if (has_bias)
        judge(c.d_bias, "d_bias", 5);
    end("norm %d, %" PRId64 " x %" PRId64 ", %s, add %d", norm.kind, rows, dim,
        type_names[type == RA_BFLOAT16], add);
}

static void try_norms(void)
{
    const int64_t dims[] = {2,    6,    8,    33,   64,   257,  512, 516,
                            1023, 1024, 1028, 2048, 3000, 4096, 8192};
    for (int kind = RA_NORM_UNIT; kind <= RA_NORM_LAYER; kind++)
        for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
            for (int t = 0; t < 2; t++)
                try_norm((struct ra_norm){kind, 1e-5},
                         d % 3 == 0   ? 300
                         : d % 3 == 1 ? 7
                                      : 1,
                         dims[d], types[t], (d + (size_t)t) % 2);
    /* More rows than partial sums, with a warp to a row, with two, and with eight. */
    try_norm((struct ra_norm){RA_NORM_RMS, 1e-6}, 5000, 64, RA_BFLOAT16, true);
    try_norm((struct ra_norm){RA_NORM_UNIT, 1e-6}, 3000, 1024, RA_BFLOAT16, true);
    try_norm((struct ra_norm){RA_NORM_LAYER, 1e-6}, 1000, 4096, RA_FLOAT32, true);
}

/* ---- Heads. */

struct heads_call {
    struct ra_heads heads;
    enum ra_type type;
    struct array *x, *raw, *d, *d_gamma, *scratch, *cosines, *sines, *gamma;
};

static cudaError_t run_heads(void *context)
{
    struct heads_call *c = context;
    bool turns = c->cosines != NULL;
    c->heads.cosines = turns ? c->cosines->device : NULL;
    c->heads.sines = turns ? c->sines->device : NULL;
    c->heads.gamma = c->gamma ? c->gamma->device : NULL;
    void *raw = c->raw ? c->raw->device : NULL;
    cudaError_t code = ra_kernel_heads_forward(&c->heads, c->type, c->x->device, raw, NULL);
    if (code != cudaSuccess)
        return code;
    return ra_kernel_heads_backward(&c->heads, c->type, c->d->device, raw,
                                    c->gamma ? c->d_gamma->device : NULL, c->scratch->device, NULL);
}

static void try_heads(int64_t D, bool turns, bool has_norm, enum ra_type type, int64_t rows)
{
    int64_t H = 3, n = rows > 4 ? rows / 2 : rows, stride = (H + 2) * D, half = D / 2;
    struct heads_call c = {.heads = {rows, n, H, D, stride, NULL, NULL, NULL, 1e-5}, .type = type};
    double *rotated = doubles(D), *z = doubles(D), *dx = doubles(D);
    c.x = make(type, rows * stride, 'n', 2);
    c.d = make(type, rows * stride, 'n', 1);
    c.raw = has_norm ? make(type, rows * H * D, 'x', 0) : NULL;
    c.gamma = has_norm ? make(RA_FLOAT32, D, 'n', 1) : NULL;
    c.d_gamma = has_norm ? make(RA_FLOAT32, D, 'n', 1) : NULL;
    c.scratch = make(RA_FLOAT32, ra_kernel_sum_scratch(D), 'x', 0);
    c.cosines = turns ? make(RA_FLOAT32, n * half, 'n', 1) : NULL;
    c.sines = turns ? make(RA_FLOAT32, n * half, 'n', 1) : NULL;
    launch(run_heads, &c);
    for (int64_t a = 0; a < rows; a++)
        for (int64_t h = 0; h < H; h++) {
            double *x = c.x->x + a * stride + h * D, *d = c.d->x + a * stride + h * D, factor = 1;
            for (int64_t t = 0; t < D; t++) {
                int64_t i = a % n * half + t % half;
                double cosine = turns ? c.cosines->x[i] : 1, sine = turns ? c.sines->x[i] : 0;
                rotated[t] = d[t] * cosine + (t < half ? d[t + half] : -d[t - half]) * sine;
                if (has_norm)
                    c.raw->x[(a * H + h) * D + t] = x[t];
            }
            for (int64_t t = 0; t < D; t++)
                dx[t] = has_norm ? 0 : rotated[t], z[t] = x[t];
            if (has_norm)
                norm_row((struct ra_norm){RA_NORM_RMS, 1e-5}, D, x, c.gamma->x, rotated, z, &factor,
                         dx);
            for (int64_t t = 0; t < D; t++) {
                if (has_norm)
                    c.d_gamma->x[t] += rotated[t] * z[t] * factor;
                z[t] *= factor * (has_norm ? c.gamma->x[t] : 1);
            }
            for (int64_t t = 0; t < D; t++) {
                int64_t i = a % n * half + t % half;
                double cosine = turns ? c.cosines->x[i] : 1, sine = turns ? c.sines->x[i] : 0;
                x[t] = z[t] * cosine - (t < half ? z[t + half] : -z[t - half]) * sine;
                d[t] = dx[t];
            }
        }
    judge(c.x, "x", 5);
    judge(c.d, "d", 5);
    if (has_norm) {
        judge(c.raw, "raw", 0.1);
        judge(c.d_gamma, "d_gamma", 5);
    }
    free(rotated);
    free(z);
    free(dx);
    end("heads of %" PRId64 ", rotation %d, norm %d, %s, %" PRId64 " rows", D, turns, has_norm,
        type_names[type == RA_BFLOAT16], rows);
}

static void try_all_heads(void)
{
    const int64_t dims[] = {2, 6, 8, 16, 64, 72, 80, 128, 130, 136, 256};
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (int i = 0; i < 8; i++)
            if ((i & 3) != 0)
                try_heads(dims[d], i & 1, i & 2, types[i >> 2], d % 2 ? 74 : 3);
    try_heads(64, true, true, RA_BFLOAT16, 6000);
}

/* ---- Feed-forward. */

struct feed_call {
    enum ra_feed_kind kind;
    int64_t rows, hidden;
    enum ra_type type;
    struct array *x, *d_bent, *bent, *again, *d_x;
};

static cudaError_t run_feed(void *context)
{
    const struct feed_call *c = context;
    cudaError_t code = ra_kernel_bend_forward(c->kind, c->rows, c->hidden, c->type, c->x->device,
                                              c->bent->device, NULL);
    if (code != cudaSuccess)
        return code;
    return ra_kernel_bend_backward(c->kind, c->rows, c->hidden, c->type, c->x->device,
                                   c->d_bent->device, c->again->device, c->d_x->device, NULL);
}

static void try_feed(enum ra_feed_kind kind, int64_t rows, int64_t hidden, enum ra_type type)
{
    struct feed_call c = {.kind = kind, .rows = rows, .hidden = hidden, .type = type};
    int64_t width = kind == RA_FEED_GELU ? hidden : 2 * hidden;
    c.x = make(type, rows * width, 'n', 3);
    c.d_bent = make(type, rows * hidden, 'n', 1);
    c.bent = make(type, rows * hidden, 'x', 0);
    c.again = make(type, rows * hidden, 'x', 0);
    c.d_x = kind == RA_FEED_GELU ? c.d_bent : make(type, rows * width, 'x', 0);
    double *d_x = doubles(rows * width);
    for (int64_t i = 0; i < rows * hidden; i++) {
        int64_t a = i / hidden, e = i % hidden, gate = a * width + e;
        double x = c.x->x[gate], d = c.d_bent->x[i];
        if (kind == RA_FEED_GELU) {
            double below = 0.5 * erfc(-x / sqrt(2)), bell = exp(-x * x / 2) / 2.5066282746310002;
            c.bent->x[i] = x * below;
            d_x[gate] = d * (below + x * bell);
        } else {
            double up = c.x->x[gate + hidden], s = 1 / (1 + exp(-x));
            c.bent->x[i] = x * s * up;
            d_x[gate] = d * up * s * (1 + x * (1 - s));
            d_x[gate + hidden] = d * x * s;
        }
        c.again->x[i] = c.bent->x[i];
    }
    launch(run_feed, &c);
    memcpy(c.d_x->x, d_x, (size_t)(rows * width) * sizeof *d_x);
    free(d_x);
    judge(c.bent, "bent", 2);
    judge(c.again, "bent, again", 2);
    judge(c.d_x, "d_x", 2);
    end("feed %d, %" PRId64 " x %" PRId64 ", %s", kind, rows, hidden,
        type_names[type == RA_BFLOAT16]);
}

static void try_feeds(void)
{
    const int64_t widths[] = {1, 4, 8, 33, 72, 1000};
    for (int kind = RA_FEED_GELU; kind <= RA_FEED_SWIGLU; kind++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            for (int t = 0; t < 2; t++)
                try_feed(kind, w % 2 ? 5 : 130, widths[w], types[t]);
}

/* ---- Sums. */

struct sum_call {
    int64_t rows, width, stride;
    enum ra_type type;
    struct array *d, *sums, *scratch;
};

static cudaError_t run_sum(void *context)
{
    const struct sum_call *c = context;
    return ra_kernel_add_rows(c->rows, c->width, c->type, c->d->device, c->stride, c->sums->device,
                              c->scratch->device, NULL);
}

static void try_sum(int64_t rows, int64_t width, int64_t stride, enum ra_type type)
{
    struct sum_call c = {.rows = rows, .width = width, .stride = stride, .type = type};
    c.d = make(type, rows * stride, 'n', 1);
    c.sums = make(RA_FLOAT32, width, 'n', 1);
    c.scratch = make(RA_FLOAT32, ra_kernel_sum_scratch(width), 'x', 0);
    launch(run_sum, &c);
    for (int64_t a = 0; a < rows; a++)
        for (int64_t e = 0; e < width; e++)
            c.sums->x[e] += c.d->x[a * stride + e];
    judge(c.sums, "sums", 5);
    end("sum of %" PRId64 " rows of %" PRId64 ", %s", rows, width, type_names[type == RA_BFLOAT16]);
}

/* In double, to the last digits: a loss and a length. */
static void try_lengths(void)
{
    const int64_t counts[] = {1, 3, 4, 1000, 262143, 1 << 20};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct array *numbers = make(RA_FLOAT32, counts[i], 'n', 1);
        struct array *scratch = make(RA_FLOAT32, 2 * RA_SQUARES_SCRATCH, 'x', 0);
        double begins[2] = {0.5, (double)NAN}, got[2], sum = 0, square = 0;
        double *place = upload(begins, sizeof begins);
        begin();
        check(ra_kernel_add_up(counts[i], numbers->device, 3, place, NULL), "add_up");
        check(ra_kernel_length(counts[i], numbers->device, place + 1, scratch->device, NULL),
              "length");
        check(cudaMemcpy(got, place, sizeof got, cudaMemcpyDeviceToHost), "add_up, length");
        for (int64_t e = 0; e < counts[i]; e++)
            sum += numbers->x[e], square += numbers->x[e] * numbers->x[e];
        EXPECT(fabs(got[0] - 0.5 - 3 * sum) <= 1e-11 * sqrt((double)counts[i]),
               "sum %.17g, not %.17g", got[0], 0.5 + 3 * sum);
        EXPECT(fabs(got[1] - sqrt(square)) <= 1e-12 * sqrt(square), "length %.17g, not %.17g",
               got[1], sqrt(square));
        end("sum and length of %" PRId64, counts[i]);
    }
}

static void try_sums(void)
{
    for (int t = 0; t < 2; t++) {
        try_sum(1, 1, 1, types[t]);
        try_sum(63, 5, 7, types[t]);
        try_sum(64, 32, 32, types[t]);
        try_sum(1000, 132, 136, types[t]);
        try_sum(5000, 1000, 1000, types[t]);
    }
    try_lengths();
}

/* ---- Ends. */

struct ends_call {
    int64_t rows, n, dim;
    enum ra_type type;
    int32_t *tokens, *places;
    struct ra_groups groups;
    struct array *table, *positions, *out, *d, *d_table;
};

static cudaError_t run_ends(void *context)
{
    const struct ends_call *c = context;
    cudaError_t code =
        ra_kernel_embed(c->rows, c->n, c->dim, c->type, c->tokens, c->table->device, c->places,
                        c->positions ? c->positions->device : NULL, 0.25, c->out->device, NULL);
    if (code != cudaSuccess)
        return code;
    return ra_kernel_scatter(&c->groups, c->dim, 0.5, c->d->device, c->d_table->device, NULL);
}

static void try_embedding(int64_t dim, bool has_positions, enum ra_type type)
{
    enum { ROWS = 60, VOCABULARY = 11 };
    int32_t tokens[ROWS], places[ROWS / 2], first[VOCABULARY + 1], key[VOCABULARY], order[ROWS];
    struct ends_call c = {.rows = ROWS, .n = ROWS / 2, .dim = dim, .type = type};
    int32_t groups = 0, at = 0;
    for (int a = 0; a < ROWS; a++)
        tokens[a] = a * a % VOCABULARY, places[a % (ROWS / 2)] = (a * 7) % VOCABULARY;
    for (int32_t v = 0; v < VOCABULARY; v++) {
        first[groups] = at, key[groups] = v;
        for (int32_t a = 0; a < ROWS; a++)
            if (tokens[a] == v)
                order[at++] = a;
        groups += at > first[groups];
    }
    first[groups] = at;
    c.tokens = upload(tokens, sizeof tokens);
    c.places = upload(places, sizeof places);
    c.groups = (struct ra_groups){groups, upload(first, sizeof first), upload(key, sizeof key),
                                  upload(order, sizeof order)};
    c.table = make(type, VOCABULARY * dim, 'n', 1);
    c.positions = has_positions ? make(type, VOCABULARY * dim, 'n', 1) : NULL;
    c.out = make(RA_FLOAT32, ROWS * dim, 'x', 0);
    c.d = make(RA_FLOAT32, ROWS * dim, 'n', 1);
    c.d_table = make(RA_FLOAT32, VOCABULARY * dim, 'n', 1);
    launch(run_ends, &c);
    for (int64_t a = 0; a < ROWS; a++)
        for (int64_t e = 0; e < dim; e++) {
            double place = has_positions ? c.positions->x[places[a % (ROWS / 2)] * dim + e] : 0;
            c.out->x[a * dim + e] = c.table->x[tokens[a] * dim + e] + 0.25 * place;
            c.d_table->x[tokens[a] * dim + e] += 0.5 * c.d->x[a * dim + e];
        }
    judge(c.out, "out", 0.5);
    judge(c.d_table, "d_table", 2);
    end("embedding of %" PRId64 ", positions %d, %s", dim, has_positions,
        type_names[type == RA_BFLOAT16]);
}

struct loss_call {
    int64_t rows, vocabulary;
    enum ra_type type;
    int32_t *labels;
    struct array *logits, *losses;
};

static cudaError_t run_loss(void *context)
{
    const struct loss_call *c = context;
    return ra_kernel_loss(c->rows, c->vocabulary, c->logits->device, c->labels, 0.125, c->type,
                          c->losses->device, NULL);
}

static void try_loss(int64_t V, enum ra_type type, double scale)
{
    enum { ROWS = 9 };
    int32_t labels[ROWS];
    struct loss_call c = {.rows = ROWS, .vocabulary = V, .type = type};
    for (int a = 0; a < ROWS; a++)
        labels[a] = a % 4 == 2 ? -1 : (int32_t)(a * 12345 % V);
    c.labels = upload(labels, sizeof labels);
    c.logits = make(RA_FLOAT32, ROWS * V, 'n', scale);
    c.losses = make(RA_FLOAT32, ROWS, 'x', 0);
    launch(run_loss, &c);

    /* Gradients of 16 bits lie in the first half of their rows. */
    unsigned char *now = fetch(c.logits);
    double allowed = type == RA_FLOAT32 ? 1e-6 : 0x1p-8;
    for (int64_t a = 0; a < ROWS; a++) {
        const double *x = c.logits->x + a * V;
        double max = -(double)INFINITY, sum = 0;
        for (int64_t e = 0; e < V; e++)
            max = fmax(max, x[e]);
        for (int64_t e = 0; e < V; e++)
            sum += exp(x[e] - max);
        c.losses->x[a] = labels[a] < 0 ? 0 : log(sum) - (x[labels[a]] - max);
        for (int64_t e = 0; e < V; e++) {
            double share = exp(x[e] - max) / sum - (e == labels[a]);
            double right = labels[a] < 0 ? 0 : 0.125 * share;
            double got = number_at(now + a * V * 4, type, e);
            if (!HOLDS(fabs(got - right) <= allowed * (fabs(right) + 0.01),
                       "gradient of row %d, number %d: %.9g, not %.9g", (int)a, (int)e, got, right))
                break;
        }
    }
    free(now);
    judge(c.losses, "losses", 5);
    end("loss of %" PRId64 ", %s, logits of %g", V, type_names[type == RA_BFLOAT16], scale);
}

static void try_ends(void)
{
    for (int t = 0; t < 2; t++) {
        const int64_t dims[] = {1, 12, 600, 1023}, sizes[] = {1, 2, 100, 257, 2048, 2050, 32000};
        for (int d = 0; d < 4; d++)
            try_embedding(dims[d], d % 2, types[t]);
        for (int v = 0; v < 7; v++)
            try_loss(sizes[v], types[t], v % 2 ? 30 : 1);
    }
    /* A logit that is NaN makes its loss NaN. */
    struct loss_call c = {.rows = 1, .vocabulary = 5000, .type = RA_BFLOAT16};
    c.labels = upload(&(int32_t){17}, sizeof(int32_t));
    c.logits = make(RA_FLOAT32, 5000, 'n', 1);
    c.losses = make(RA_FLOAT32, 1, '0', 0);
    memset(c.logits->begins + 4000 * 4, 0xFF, 4);
    launch(run_loss, &c);
    c.losses->x[0] = (double)NAN;
    judge(c.losses, "losses", 1);
    end("loss of a NaN");
}

/* ---- Learning. */

struct learn_call {
    struct ra_adamw adamw;
    struct array *gradients, *weights, *means, *squares, *rounded;
};

static cudaError_t run_learn(void *context)
{
    const struct learn_call *c = context;
    const int64_t half = 2048; /* in the middle of an array */
    cudaError_t code = cudaSuccess;
    for (int64_t begin = 0; begin < 2 * half && code == cudaSuccess; begin += half) {
        struct ra_adamw part = c->adamw;
        part.begin = begin;
        part.count = begin == 0 ? half : c->adamw.count - half;
        code = ra_kernel_adamw(
            &part, (float *)c->gradients->device + begin, (float *)c->weights->device + begin,
            (float *)c->means->device + begin, (float *)c->squares->device + begin,
            (uint16_t *)c->rounded->device + begin, NULL);
    }
    return code;
}

static void try_learning(double length, float clip)
{
    enum { COUNT = 5000 };
    const int64_t first[] = {0, 16, 1024, 4992};
    const bool decays[] = {true, false, true, false};
    struct learn_call c = {.adamw = {0.01f, 0.999f, clip, 1e-8f, 0.9f, 0.1f, 0.95f, 0.05f, 1.3f,
                                     1.7f, 0, COUNT, 4, upload(first, sizeof first),
                                     upload(decays, sizeof decays),
                                     upload(&length, sizeof length)}};
    bool changes = isfinite(length);
    double cut = clip > 0 && length > (double)clip ? (double)clip / length : 1;
    c.gradients = make(RA_FLOAT32, COUNT, 'n', 1);
    c.weights = make(RA_FLOAT32, COUNT, 'n', 1);
    c.means = make(RA_FLOAT32, COUNT, 'n', 0.1);
    c.squares = make(RA_FLOAT32, COUNT, 'n', 0);
    c.rounded = make(RA_BFLOAT16, COUNT, 'x', 0);
    launch(run_learn, &c);
    for (int i = 0, p = 0; i < COUNT; i++) {
        double g = c.gradients->x[i] * cut, *w = &c.weights->x[i], *m = &c.means->x[i];
        p += p < 3 && first[p + 1] == i;
        c.rounded->x[i] = (double)NAN;
        if (!changes)
            continue;
        *m = (double)0.9f * *m + (double)0.1f * g;
        c.squares->x[i] = (double)0.05f * g * g;
        double root = sqrt(c.squares->x[i] * (double)1.7f) + (double)1e-8f;
        *w = (decays[p] ? (double)0.999f : 1) * *w - (double)0.01f * *m * (double)1.3f / root;
        c.rounded->x[i] = *w;
    }
    judge(c.weights, "weights", 1);
    judge(c.means, "means", 1);
    judge(c.squares, "squares", 1);
    judge(c.rounded, "rounded", 20);
    end("AdamW, length %g, clip %g", length, (double)clip);
}

/* Parts of a gradient of several ranks, added up in their order. */

struct parts_call {
    int64_t count, stride;
    int ranks, own;
    struct array *x, *others;
};

static cudaError_t run_parts(void *context)
{
    const struct parts_call *c = context;
    return ra_kernel_add_parts(c->count, c->ranks, c->own, c->x->device, c->others->device,
                               c->stride, NULL);
}

static void try_parts(int64_t count, int ranks, int own)
{
    struct parts_call c = {count, count + 8, ranks, own, NULL, NULL};
    c.x = make(RA_FLOAT32, count, 'n', 1);
    c.others = make(RA_FLOAT32, c.stride * ranks, 'n', 1);
    launch(run_parts, &c);
    for (int64_t i = 0; i < count; i++) {
        float sum = 0;
        for (int r = 0; r < ranks; r++) {
            float part = (float)(r == own ? c.x->x[i] : c.others->x[r * c.stride + i]);
            sum = r == 0 ? part : sum + part;
        }
        c.x->x[i] = (double)sum;
    }
    judge(c.x, "sums", 0); /* in one order: the same bits */
    end("%d parts of %" PRId64 " numbers", ranks, count);
}

/* ---- Decoding. */

struct decode_call {
    struct ra_decode decode;
    int64_t splits;
    struct array *q, *k, *v, *carries, *carry, *out;
};

static cudaError_t run_decode(void *context)
{
    const struct decode_call *c = context;
    const struct ra_decode *a = &c->decode;
    int64_t rows = a->tokens * a->heads, stride = rows * (a->D + 2);
    cudaError_t code = ra_kernel_decode(a, c->carries->device, NULL);
    if (code == cudaSuccess)
        code = ra_kernel_combine(rows, a->D, c->splits, stride, c->carries->device, a->type, NULL,
                                 c->carry->device, NULL);
    return code == cudaSuccess ? ra_kernel_combine(rows, a->D, 1, stride, c->carry->device, a->type,
                                                   c->out->device, NULL, NULL)
                               : code;
}

/* One head of one token, over this rank's rows. */
static void decode_head(struct decode_call *c, int64_t token, int64_t h)
{
    const struct ra_decode *a = &c->decode;
    int64_t g = a->interleaved ? h % a->key_heads : h / (a->heads / a->key_heads), D = a->D;
    int64_t at = token * a->heads + h, width = D + 2;
    double max = -(double)INFINITY, sum = 0, *o = c->carry->x + at * width;
    double *scores = doubles(a->rows);
    for (int64_t i = 0; i < a->rows; i++) {
        int64_t position = a->rank + i * a->ranks, back = a->first + token - position;
        scores[i] = -(double)INFINITY;
        if (back < 0 || back > a->lookback)
            continue;
        double score = 0;
        for (int64_t e = 0; e < D; e++)
            score += c->q->x[token * a->stride + h * D + e] * c->k->x[(g * a->rows + i) * D + e];
        score *= (double)a->scale;
        scores[i] = a->softcap > 0 ? (double)a->softcap * tanh(score / (double)a->softcap) : score;
        max = fmax(max, scores[i]);
    }
    for (int64_t i = 0; i < a->rows; i++) {
        double weight = scores[i] == -(double)INFINITY ? 0 : exp(scores[i] - max);
        sum += weight;
        for (int64_t e = 0; e < D && weight > 0; e++)
            o[e] += weight * c->v->x[(g * a->rows + i) * D + e];
    }
    o[D] = max;
    o[D + 1] = sum;
    for (int64_t e = 0; e < D; e++)
        c->out->x[at * D + e] = o[e] / sum;
    free(scores);
}

static void try_decode(struct ra_decode a)
{
    struct decode_call c = {.decode = a};
    int64_t heads = a.tokens * a.heads, width = a.D + 2, last = a.first + a.tokens;
    c.decode.scale = (float)(1 / sqrt((double)a.D));
    c.decode.stride = (a.heads + 1) * a.D;
    c.splits =
        ra_kernel_decode_splits((last - a.rank + a.ranks - 1) / a.ranks, a.tokens, a.key_heads);
    c.q = make(a.type, a.tokens * c.decode.stride, 'n', 1);
    c.k = make(a.cache, a.key_heads * a.rows * a.D, 'n', 1);
    c.v = make(a.cache, a.key_heads * a.rows * a.D, 'n', 1);
    c.carries = make(RA_FLOAT32, c.splits * heads * width, 'x', 0);
    c.carry = make(RA_FLOAT32, heads * width, 'x', 0);
    c.out = make(a.type, heads * a.D, 'x', 0);
    c.decode.q = c.q->device;
    c.decode.k = c.k->device;
    c.decode.v = c.v->device;
    launch(run_decode, &c);
    for (int64_t i = 0; i < heads; i++)
        decode_head(&c, i / a.heads, i % a.heads);
    judge(c.carry, "carry", 20);
    judge(c.out, "out", 20);
    end("decode, %" PRId64 " of %" PRId64 " rows of %" PRId64, last, a.rows, a.D);
}

static void try_decodes(void)
{
    const int64_t widths[] = {6, 8, 33, 64, 96, 128, 200, 256};
    for (size_t d = 0; d < sizeof widths / sizeof *widths; d++)
        for (int type = 0; type < 2; type++) {
            struct ra_decode a = {.tokens = 1,
                                  .heads = 4,
                                  .key_heads = 2,
                                  .D = widths[d],
                                  .type = type ? RA_BFLOAT16 : RA_FLOAT32,
                                  .cache = type ? RA_BFLOAT16 : RA_FLOAT32,
                                  .rows = 700,
                                  .first = 690,
                                  .lookback = 10000,
                                  .ranks = 1};
            try_decode(a);
            a.tokens = 3;
            a.heads = 10; /* more that share keys than a visit has */
            a.interleaved = true;
            a.softcap = 3;
            a.lookback = 100;
            a.first = 400;
            try_decode(a);
            a.heads = a.key_heads = 3;
            a.rows = 2000;
            a.ranks = 3;
            a.rank = 2;
            a.first = 5000;
            a.lookback = 4000;
            try_decode(a);
            a.rows = 70000; /* as many splits as there can be */
            a.first = 209000;
            a.lookback = 1 << 30;
            a.tokens = a.heads = a.key_heads = 1;
            if (a.D <= 64)
                try_decode(a);
            a = (struct ra_decode){.tokens = 2, /* more heads to a key than a product has rows */
                                   .heads = 40,
                                   .key_heads = 2,
                                   .D = widths[d],
                                   .type = a.type,
                                   .cache = a.cache,
                                   .rows = 3000,
                                   .first = 2990,
                                   .lookback = 1 << 30,
                                   .ranks = 1};
            try_decode(a);
            a.cache = RA_FLOAT16;
            a.tokens = 1;
            a.heads = 6;
            try_decode(a);
        }
}

static void try_rounding(void)
{
    const int64_t counts[] = {1, 7, 8, 4099};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct array *from = make(RA_FLOAT32, counts[i], 'n', 1);
        struct array *to = make(RA_BFLOAT16, counts[i], 'x', 0);
        begin();
        check(ra_kernel_round(counts[i], from->device, to->device, NULL), "round");
        for (int64_t e = 0; e < counts[i]; e++)
            to->x[e] = number_rounded(RA_BFLOAT16, from->x[e]);
        judge(to, "rounded", 0);
        end("round %" PRId64, counts[i]);
    }
}

/* ---- Speed: bytes that must be read and written, beside a copy of as many. */

/* Milliseconds of one of many launches, the median. */
static double time_of(cudaError_t (*run)(void *), void *context)
{
    enum { TURNS = 11, EACH = 5 };
    double times[TURNS];
    cudaEvent_t start, stop;
    check(cudaEventCreate(&start), "an event");
    check(cudaEventCreate(&stop), "an event");
    for (int t = 0; t < TURNS; t++) {
        check(cudaEventRecord(start, NULL), "an event");
        for (int i = 0; i < EACH; i++)
            check(run(context), "a launch");
        check(cudaEventRecord(stop, NULL), "an event");
        check(cudaEventSynchronize(stop), "a kernel");
        float time;
        check(cudaEventElapsedTime(&time, start, stop), "an event");
        times[t] = time;
    }
    return median(times, TURNS) / EACH;
}

struct copy_call {
    void *to, *from;
    size_t bytes;
};

static cudaError_t run_copy(void *context)
{
    const struct copy_call *c = context;
    return cudaMemcpyAsync(c->to, c->from, c->bytes, cudaMemcpyDeviceToDevice, NULL);
}

static void *memory; /* of the device, all 0, 4 GiB, of which parts are given out */
static size_t given;

static void *part(int64_t bytes)
{
    void *place = (char *)memory + given;
    given += ((size_t)bytes + 255) / 256 * 256;
    if (given > (size_t)1 << 32)
        die("bench", "more memory is needed");
    return place;
}

/* What is timed. T rows of dim, heads, hidden, V. */
enum { T = 8192, DIM = 1024, HEADS = 16, D = 64, HIDDEN = 4096, V = 32000, WEIGHTS = 1 << 27 };

struct bench {
    void *a, *b, *c, *d, *e, *scratch;
    float *f, *g;
    struct ra_heads heads;
    struct ra_groups groups;
    struct ra_adamw adamw;
    struct ra_decode decode[4];
};

#define RUN(name, call)                            \
    static cudaError_t bench_##name(void *context) \
    {                                              \
        const struct bench *bench = context;       \
        return call;                               \
    }
static const struct ra_norm unit = {RA_NORM_UNIT, 1e-6}, layer = {RA_NORM_LAYER, 1e-6};
RUN(norm,
    ra_kernel_norm_forward(unit, T, DIM, bench->f, bench->g, NULL, RA_BFLOAT16, bench->a, NULL))
RUN(norm_back,
    ra_kernel_norm_backward(unit, T, DIM, bench->f, bench->g, RA_BFLOAT16, bench->a, true, bench->b,
                            bench->c, bench->d, NULL, bench->scratch, NULL))
RUN(layer_norm_back,
    ra_kernel_norm_backward(layer, T, DIM, bench->f, bench->g, RA_BFLOAT16, bench->a, true,
                            bench->b, bench->c, bench->d, bench->e, bench->scratch, NULL))
RUN(heads, ra_kernel_heads_forward(&bench->heads, RA_BFLOAT16, bench->a, NULL, NULL))
RUN(heads_back,
    ra_kernel_heads_backward(&bench->heads, RA_BFLOAT16, bench->a, NULL, NULL, NULL, NULL))
RUN(gelu, ra_kernel_bend_forward(RA_FEED_GELU, T, HIDDEN, RA_BFLOAT16, bench->a, bench->b, NULL))
RUN(gelu_back, ra_kernel_bend_backward(RA_FEED_GELU, T, HIDDEN, RA_BFLOAT16, bench->a, bench->b,
                                       bench->c, bench->b, NULL))
RUN(swiglu,
    ra_kernel_bend_forward(RA_FEED_SWIGLU, T, HIDDEN, RA_BFLOAT16, bench->a, bench->b, NULL))
RUN(swiglu_back, ra_kernel_bend_backward(RA_FEED_SWIGLU, T, HIDDEN, RA_BFLOAT16, bench->a, bench->b,
                                         bench->c, bench->d, NULL))
RUN(add_rows,
    ra_kernel_add_rows(T, HIDDEN, RA_BFLOAT16, bench->a, HIDDEN, bench->f, bench->scratch, NULL))
RUN(embed, ra_kernel_embed(T, T, DIM, RA_BFLOAT16, bench->groups.order, bench->a, NULL, NULL, 0,
                           bench->f, NULL))
RUN(scatter, ra_kernel_scatter(&bench->groups, DIM, 1, bench->f, bench->b, NULL))
RUN(loss, ra_kernel_loss(2048, V, bench->a, bench->c, 1, RA_BFLOAT16, bench->f, NULL))
RUN(length, ra_kernel_length(WEIGHTS, bench->a, bench->d, bench->scratch, NULL))
RUN(round, ra_kernel_round(WEIGHTS, bench->a, bench->b, NULL))
RUN(adamw, ra_kernel_adamw(&bench->adamw, bench->a, bench->b, bench->c, bench->d, bench->e, NULL))

/* One token over a cache, and the carries of all splits. */
static cudaError_t decode_one(const struct bench *bench, int i)
{
    const struct ra_decode *a = &bench->decode[i];
    int64_t splits = ra_kernel_decode_splits(a->rows, 1, a->key_heads);
    cudaError_t code = ra_kernel_decode(a, bench->c, NULL);
    return code != cudaSuccess ? code
                               : ra_kernel_combine(a->heads, a->D, splits, a->heads * (a->D + 2),
                                                   bench->c, a->type, bench->d, NULL, NULL);
}
RUN(decode_short, decode_one(bench, 0))
RUN(decode_long, decode_one(bench, 1))
RUN(decode_short_shared, decode_one(bench, 2))
RUN(decode_long_shared, decode_one(bench, 3))

/* The arrays of all kernels that are timed, in 4 GiB of the device. All numbers are 0, but those of
 * the groups. */
static struct bench bench_arrays(void)
{
    check(cudaMalloc(&memory, (size_t)1 << 32), "4 GiB");
    check(cudaMemset(memory, 0, (size_t)1 << 32), "4 GiB");
    struct bench x = {0};
    int64_t block = (int64_t)T * HIDDEN * 4;
    x.a = part(WEIGHTS * 4L), x.b = part(WEIGHTS * 4L), x.c = part(WEIGHTS * 4L);
    x.d = part(WEIGHTS * 4L), x.e = part(WEIGHTS * 2L), x.f = part(block);
    x.g = part(DIM * 4), x.scratch = part(ra_kernel_sum_scratch(HIDDEN) * 4);
    float *angles = part(T * D * 4);
    x.heads = (struct ra_heads){T, T, 2 * HEADS, D, 3 * HEADS * D, angles, angles, NULL, 0};

    /* Each row of T is a group of its own. */
    int32_t *numbers = malloc((T + 1) * sizeof *numbers);
    if (!numbers)
        die("the host", "out of memory");
    for (int32_t a = 0; a <= T; a++)
        numbers[a] = a;
    int32_t *order = part((T + 1) * 4);
    check(cudaMemcpy(order, numbers, (T + 1) * 4, cudaMemcpyHostToDevice), "cudaMemcpy");
    free(numbers);
    x.groups = (struct ra_groups){T, order, order, order};
    const int64_t zero = 0;
    int64_t *first = part(8);
    check(cudaMemcpy(first, &zero, 8, cudaMemcpyHostToDevice), "cudaMemcpy");
    x.adamw = (struct ra_adamw){0.01f, 1, 1, 1e-8f,   0.9f, 0.1f,  0.95f,   0.05f,
                                1,     1, 0, WEIGHTS, 1,    first, part(1), part(8)};

    for (int i = 0; i < 4; i++) {
        int64_t rows = i % 2 ? 1 << 18 : 1 << 16;
        x.decode[i] = (struct ra_decode){.tokens = 1,
                                         .heads = i < 2 ? 8 : 32,
                                         .key_heads = 8,
                                         .D = 128,
                                         .stride = 32 * 128,
                                         .q = x.f,
                                         .type = RA_BFLOAT16,
                                         .k = x.a,
                                         .v = x.b,
                                         .cache = RA_BFLOAT16,
                                         .rows = rows,
                                         .first = rows - 1,
                                         .lookback = rows,
                                         .ranks = 1,
                                         .scale = 0.1f};
    }
    return x;
}

/* Times each kernel of a model beside copies of as many bytes as it reads and writes: what is not
 * slower than a copy has nothing to gain. */
static void bench(void)
{
    struct bench x = bench_arrays();
    const double cache = 2 * 8 * 128 * 2.0;
    const double row = (double)T * DIM, wide = (double)T * HIDDEN, w = WEIGHTS;
    const struct {
        const char *name;
        cudaError_t (*run)(void *);
        double bytes;
    } runs[] = {
        {"norm", bench_norm, row * 6},
        {"norm, backward", bench_norm_back, row * (4 + 2 + 8 + 2)},
        {"layer norm, backward", bench_layer_norm_back, row * (4 + 2 + 8 + 2)},
        {"rotation", bench_heads, 2 * row * 4},
        {"rotation, backward", bench_heads_back, 2 * row * 4},
        {"gelu", bench_gelu, wide * 4},
        {"gelu, backward", bench_gelu_back, wide * 8},
        {"swiglu", bench_swiglu, wide * 6},
        {"swiglu, backward", bench_swiglu_back, wide * 12},
        {"sum of rows", bench_add_rows, wide * 2},
        {"embedding", bench_embed, row * 6},
        {"embedding, backward", bench_scatter, row * 12},
        {"loss", bench_loss, 2048.0 * V * 6},
        {"length", bench_length, w * 4},
        {"round", bench_round, w * 6},
        {"AdamW", bench_adamw, w * 30},
        {"decode 64k, 8 heads", bench_decode_short, cache * (1 << 16)},
        {"decode 256k, 8 heads", bench_decode_long, cache * (1 << 18)},
        {"decode 64k, 32/8", bench_decode_short_shared, cache * (1 << 16)},
        {"decode 256k, 32/8", bench_decode_long_shared, cache * (1 << 18)},
    };
    struct copy_call copy = {x.a, x.b, (size_t)1 << 28};
    double best = 2.0 * (double)copy.bytes / time_of(run_copy, &copy) / 1e9;
    printf("%-22s %8.4f ms %7.3f TB/s\n", "copy of 256 MiB", 2.0 * (double)copy.bytes / best / 1e9,
           best);
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        double ms = time_of(runs[i].run, &x), rate = runs[i].bytes / ms / 1e9;
        copy.bytes = (size_t)(runs[i].bytes / 2) / 256 * 256;
        copy.bytes = copy.bytes > (size_t)1 << 28 ? (size_t)1 << 28 : copy.bytes;
        double like = 2.0 * (double)copy.bytes / time_of(run_copy, &copy) / 1e9;
        printf("%-22s %8.4f ms %7.3f TB/s, %3.0f %% of that copy, %3.0f %% of a copy of as many\n",
               runs[i].name, ms, rate, 100 * rate / best, 100 * rate / like);
    }
    cudaFree(memory);
}

int main(int argc, char **argv)
{
    verdict_start(0, 0, "%s", "");
    int devices = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0)
        die("no CUDA device", error ? cudaGetErrorString(error) : "none found");
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        bench();
        return 0;
    }
    try_norms();
    try_all_heads();
    try_feeds();
    try_sums();
    try_ends();
    try_learning(0.5, 1);
    try_learning(40, 1);
    try_learning(40, 0);
    try_learning((double)NAN, 1);
    try_learning((double)INFINITY, 1);
    try_rounding();
    try_parts(4, 2, 0);
    try_parts(5000, 3, 1);
    try_parts(16, 8, 7);
    try_decodes();
    return verdict_end();
}
