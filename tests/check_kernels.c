/* check_kernels: every kernel on a GPU, held against the definition in float64 on the host.
 *
 * Chapter 11. Inputs are random numbers, rounded to the kernel's type first; so what is judged is
 * the kernel and not the rounding of its inputs. How much error is allowed follows from each
 * problem: with 16-bit types twice that of a plain implementation which rounds where it must
 * (the weights, the gradients of the scores, o), with a floor of what one rounding may do. Every
 * array stands in a larger one full of NaN, which must be neither read into a result nor written.
 *
 * Usage: check-kernels [--quick] [PART OF A NAME]     (of "k03-bfloat16 bands", say)
 */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ra_ladder.h"
#include "ra_number.h"

/* ---- The kernels, and what is asked of them. */

static const struct kernel {
    const char *name;
    enum ra_type type;
    const struct ra_rung *rung;
} kernels[] = {
    {"k01", RA_FLOAT32, &ra_ladder[RA_K01]},
    {"k02", RA_FLOAT32, &ra_ladder[RA_K02]},
    {"k03-bfloat16", RA_BFLOAT16, &ra_ladder[RA_K03]},
    {"k03-float16", RA_FLOAT16, &ra_ladder[RA_K03]},
};
enum { KERNELS = sizeof kernels / sizeof kernels[0] };

enum masks { NO_MASK, RANDOM, FIRST_HIDDEN, ALL_HIDDEN, BATCH_HIDDEN, MASKS };

/* How arrays lie: (B, rows, heads, D); (B, heads, rows, D); as one of three in a common row;
 * rows with 8 numbers between them, or 3; all of it one number later than 16 bytes want it. */
enum order { PLAIN, HEADS_FIRST, PACKED, PADDED, UNEVEN, SHIFTED, ORDERS };

struct problem {
    const char *name;
    int64_t batch, n, m, heads, key_heads, dim;
    enum ra_head_map map;
    struct ra_band band;
    double scale_times, softcap; /* scale is 1 / sqrt(D), times this */
    enum masks mask;
    enum order order;
    bool wide_o; /* o is float32, whatever the type */
    bool deterministic;
    int pieces;       /* of the keys */
    bool shuffled;    /* the pieces come in another order */
    bool given_carry; /* the first piece is folded by the host */
    bool check_carry; /* after every piece */
    int repeats;      /* more runs, which must give the same bits */
    uint64_t seed;
};

/* One batch, one head, 64 numbers, all keys seen, everything else plain. */
static struct problem ordinary(const char *name, int64_t n, int64_t m)
{
    return (struct problem){.name = name,
                            .batch = 1,
                            .n = n,
                            .m = m,
                            .heads = 1,
                            .key_heads = 1,
                            .dim = 64,
                            .band = RA_ALL_KEYS,
                            .scale_times = 1,
                            .pieces = 1};
}

static int passed, failed;
static double worst[KERNELS];   /* error, as a share of what is allowed */
static const char *wanted = ""; /* part of the names of the cases to run */
static bool quick;

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("check-kernels: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static void check(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        die("%s: %s", what, cudaGetErrorString(error));
}

/* Memory, every byte 0. */
static void *zeros(int64_t count, int64_t size)
{
    void *memory = calloc((size_t)(count > 0 ? count : 1), (size_t)size);
    if (!memory)
        die("out of memory: %" PRId64 " elements of %" PRId64 " bytes", count, size);
    return memory;
}

/* ---- Another GPU than this one: the linker sends launchers' calls through here. */

/* What that has, where it is not 0. */
static struct {
    int shared_memory; /* for a block of threads, in bytes */
    int capability;    /* the major number */
} pretended;

cudaError_t __real_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int device);
cudaError_t __real_cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute which,
                                        int value);
cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int device);
cudaError_t __wrap_cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute which,
                                        int value);

cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int device)
{
    cudaError_t code = __real_cudaDeviceGetAttribute(value, which, device);
    if (which == cudaDevAttrMaxSharedMemoryPerBlockOptin && pretended.shared_memory > 0)
        *value = pretended.shared_memory;
    if (which == cudaDevAttrComputeCapabilityMajor && pretended.capability > 0)
        *value = pretended.capability;
    return code;
}

/* It must refuse to give more shared memory than it has. */
cudaError_t __wrap_cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute which, int value)
{
    if (which == cudaFuncAttributeMaxDynamicSharedMemorySize && pretended.shared_memory > 0 &&
        value > pretended.shared_memory)
        return cudaErrorInvalidValue;
    return __real_cudaFuncSetAttribute(kernel, which, value);
}

/* ---- Random numbers: splitmix64. */

static uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
}

static int64_t random_below(uint64_t *state, int64_t end)
{
    return (int64_t)(random_bits(state) % (uint64_t)end);
}

/* Near enough to a normal distribution of variance 1: the sum of 12 uniform numbers. */
static double random_normal(uint64_t *state)
{
    int64_t sum = 0;
    for (int i = 0; i < 3; i++) {
        uint64_t bits = random_bits(state);
        for (int part = 0; part < 4; part++)
            sum += (int64_t)(bits >> 16 * part & 0xFFFF);
    }
    return (double)sum / 65536 - 6;
}

/* ---- Work on all processors. */

struct team {
    void (*work)(void *context, int64_t i);
    void *context;
    int64_t count;
    atomic_llong next;
};

static void *take_part(void *of)
{
    struct team *team = of;
    for (int64_t i; (i = atomic_fetch_add(&team->next, 1)) < team->count;)
        team->work(team->context, i);
    return NULL;
}

/* Calls work(context, i) for every i below count. `cost` is about how many operations that is. */
static void on_all(int64_t count, double cost, void (*work)(void *, int64_t), void *context)
{
    enum { MOST = 64 };
    pthread_t threads[MOST];
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int helpers = (int)(processors < MOST ? processors : MOST) - 1, started = 0;
    struct team team = {work, context, count, 0};
    if (cost < 1e6) /* less than it costs to start threads */
        helpers = 0;
    while (started < helpers && pthread_create(&threads[started], NULL, take_part, &team) == 0)
        started++;
    take_part(&team);
    for (int t = 0; t < started; t++)
        pthread_join(threads[t], NULL);
}

/* ---- The definition. */

enum result { O, LSE, DQ, DK, DV, RESULTS };
static const char *const result_names[] = {"o", "lse", "dq", "dk", "dv"};

/* A problem with its numbers: q, d_out (B, n, H, D), k, v (B, m, G, D), all exact in `type`, and
 * what should come out: o, dq like q, dk, dv like k, lse (B, n, H). Hidden rows of k and v are 0
 * here. */
struct sample {
    const struct problem *p;
    enum ra_type type, o_type;
    double scale;
    double *q, *k, *v, *d_out;
    bool *mask; /* (B, m), or NULL */
    double *want[RESULTS], *delta, *max;
    double *before[RESULTS]; /* what dq, dk and dv are added to */

    /* Of every element: the error of a plain implementation, and the scale of its rounding: the
     * root of the sum of the squares of what is summed up. */
    double *plain[RESULTS], *spread[RESULTS];
    double *weights, *d_scores, *rough; /* (B, H, n, m), 0 where nothing is seen */
    double largest_score;
    bool with_backward;
};

static int64_t rows_of(const struct problem *p, enum result r)
{
    return r == DK || r == DV ? p->m : p->n;
}

static int64_t heads_of(const struct problem *p, enum result r)
{
    return r == DK || r == DV ? p->key_heads : p->heads;
}

static int64_t dim_of(const struct problem *p, enum result r)
{
    return r == LSE ? 1 : p->dim;
}

static int64_t size_of(const struct problem *p, enum result r)
{
    return p->batch * rows_of(p, r) * heads_of(p, r) * dim_of(p, r);
}

static double rounded(enum ra_type type, double x)
{
    float number = (float)x, back;
    uint32_t bits;
    ra_number_store(type, 1, &number, &bits);
    ra_number_load(type, 1, &bits, &back);
    return back;
}

/* Half a step of the type near 1; and near 0, where float16 has subnormal numbers. */
static double half_step(enum ra_type type)
{
    return type == RA_BFLOAT16 ? 0x1p-9 : type == RA_FLOAT16 ? 0x1p-12 : 0x1p-25;
}

static double least_step(enum ra_type type)
{
    return type == RA_FLOAT16 ? 0x1p-25 : 0;
}

/* Eight sums at a time, which a compiler may compute side by side. */
static double dot(const double *x, const double *y, int64_t count)
{
    double sums[8] = {0};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8)
        for (int lane = 0; lane < 8; lane++)
            sums[lane] += x[i + lane] * y[i + lane];
    for (; i < count; i++)
        sums[0] += x[i] * y[i];
    return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

static int64_t key_head_of(const struct problem *p, int64_t h)
{
    return p->map == RA_GROUPED ? h / (p->heads / p->key_heads) : h % p->key_heads;
}

/* Adds x * row to want, the same with x rounded to plain, and to spread the squares of what the
 * rounding, or a relative error of 1, may do. */
static void add_row(const struct sample *s, double x, double size, const double *row, double *want,
                    double *plain, double *spread)
{
    double x_rounded = s->type == RA_FLOAT32 ? x : rounded(s->type, x);
    double square = size * size;
    for (int64_t d = 0; d < s->p->dim; d++) {
        want[d] += x * row[d];
        plain[d] += x_rounded * row[d];
        spread[d] += square * row[d] * row[d];
    }
}

/* o, lse, dq of one row: number i of (B, n, H). */
static void sample_row(void *context, int64_t i)
{
    const struct sample *s = context;
    const struct problem *p = s->p;
    int64_t D = p->dim, h = i % p->heads, a = i / p->heads % p->n, b = i / p->heads / p->n;
    int64_t width = p->key_heads * D, first_key = (b * p->m * p->key_heads + key_head_of(p, h)) * D;
    int64_t weights_at = ((b * p->heads + h) * p->n + a) * p->m;
    double *weights = s->weights + weights_at, *o = s->want[O] + i * D;
    const double *k = s->k + first_key, *v = s->v + first_key, *q = s->q + i * D;
    int64_t first = a + p->band.lo > 0 ? a + p->band.lo : 0;
    int64_t end = a + p->band.hi + 1 < p->m ? a + p->band.hi + 1 : p->m;

    /* Scores, kept where the weights will be. */
    double max = -INFINITY, sum = 0;
    for (int64_t c = first; c < end; c++) {
        double score = s->scale * dot(q, k + c * width, D);
        if (p->softcap > 0)
            score = p->softcap * tanh(score / p->softcap);
        weights[c] = score;
        if (!s->mask || s->mask[b * p->m + c])
            max = fmax(max, score);
    }
    s->max[i] = max;
    s->want[LSE][i] = -INFINITY;
    if (max == -INFINITY) {
        for (int64_t c = first; c < end; c++)
            weights[c] = 0;
        return;
    }

    for (int64_t c = first; c < end; c++)
        sum += !s->mask || s->mask[b * p->m + c] ? exp(weights[c] - max) : 0;
    s->want[LSE][i] = max + log(sum);

    /* A plain implementation rounds e^(score - max) and divides at the end. */
    double *plain = s->plain[O] + i * D, *spread = s->spread[O] + i * D;
    double *scores = zeros(end - first, sizeof *scores);
    for (int64_t c = first; c < end; c++) {
        bool seen = !s->mask || s->mask[b * p->m + c];
        double weight = seen ? exp(weights[c] - max) : 0;
        scores[c - first] = weights[c];
        weights[c] = weight / sum;
        add_row(s, weight, weight, v + c * width, o, plain, spread);
    }
    for (int64_t d = 0; d < D; d++) {
        o[d] /= sum;
        plain[d] /= sum;
        spread[d] /= sum * sum;
    }

    if (!s->with_backward) {
        free(scores);
        return;
    }
    const double *d_out = s->d_out + i * D;
    double delta = s->delta[i] = dot(o, d_out, D);
    for (int64_t c = first; c < end; c++) {
        double slope = p->softcap > 0 ? 1 - pow(scores[c - first] / p->softcap, 2) : 1;
        double d_weight = dot(d_out, v + c * width, D);
        double x = weights[c] * (d_weight - delta) * slope;
        s->d_scores[weights_at + c] = x;
        s->rough[weights_at + c] = weights[c] * (fabs(d_weight) + fabs(delta));
        add_row(s, x, s->rough[weights_at + c], k + c * width, s->want[DQ] + i * D,
                s->plain[DQ] + i * D, s->spread[DQ] + i * D);
    }
    free(scores);
}

/* dk and dv of one key row: number i of (B, m, G). */
static void sample_key(void *context, int64_t i)
{
    const struct sample *s = context;
    const struct problem *p = s->p;
    int64_t D = p->dim, g = i % p->key_heads, c = i / p->key_heads % p->m;
    int64_t b = i / p->key_heads / p->m;
    int64_t share = p->heads / p->key_heads;
    for (int64_t reader = 0; reader < share; reader++)
        for (int64_t a = 0; a < p->n; a++) {
            int64_t h = p->map == RA_GROUPED ? g * share + reader : reader * p->key_heads + g;
            int64_t at = ((b * p->heads + h) * p->n + a) * p->m + c;
            int64_t row = ((b * p->n + a) * p->heads + h) * D;
            if (s->weights[at] == 0)
                continue;
            add_row(s, s->weights[at], s->weights[at], s->d_out + row, s->want[DV] + i * D,
                    s->plain[DV] + i * D, s->spread[DV] + i * D);
            add_row(s, s->d_scores[at], s->rough[at], s->q + row, s->want[DK] + i * D,
                    s->plain[DK] + i * D, s->spread[DK] + i * D);
        }
}

/* The largest of the lengths of rows of D numbers. */
static double longest(const double *rows, int64_t count, int64_t D)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, dot(rows + i * D, rows + i * D, D));
    return sqrt(most);
}

/* Computes what is wanted, for the mask of the sample. */
static void solve(struct sample *s)
{
    const struct problem *p = s->p;
    int64_t pairs = p->batch * p->heads * p->n * p->m;
    for (int r = 0; r < RESULTS; r++) {
        s->want[r] = zeros(size_of(p, r), sizeof(double));
        s->plain[r] = zeros(size_of(p, r), sizeof(double));
        s->spread[r] = zeros(size_of(p, r), sizeof(double));
    }
    s->delta = zeros(size_of(p, LSE), sizeof(double));
    s->max = zeros(size_of(p, LSE), sizeof(double));
    s->weights = zeros(pairs, sizeof(double));
    s->d_scores = zeros(pairs, sizeof(double));
    s->rough = zeros(pairs, sizeof(double));
    s->largest_score = fabs(s->scale) * longest(s->q, p->batch * p->n * p->heads, p->dim) *
                       longest(s->k, p->batch * p->m * p->key_heads, p->dim);

    double cost = (double)pairs * (double)p->dim * 8;
    on_all(p->batch * p->n * p->heads, cost, sample_row, s);
    if (s->with_backward)
        on_all(p->batch * p->m * p->key_heads, cost, sample_key, s);

    /* The scale is common to all terms; a plain implementation has it outside of the sums. */
    for (int r = DQ; r <= DK; r++)
        for (int64_t i = 0; i < size_of(p, r); i++) {
            s->want[r][i] *= s->scale;
            s->plain[r][i] *= s->scale;
            s->spread[r][i] *= s->scale * s->scale;
        }
    if (s->o_type != RA_FLOAT32)
        for (int64_t i = 0; i < size_of(p, O); i++)
            s->plain[O][i] = rounded(s->o_type, s->plain[O][i]);
    free(s->weights);
    free(s->d_scores);
    free(s->rough);
}

static void forget_solution(struct sample *s)
{
    for (int r = 0; r < RESULTS; r++) {
        free(s->want[r]);
        free(s->plain[r]);
        free(s->spread[r]);
    }
    free(s->delta);
    free(s->max);
}

static double *random_rows(uint64_t *state, enum ra_type type, int64_t count)
{
    double *rows = zeros(count, sizeof *rows);
    for (int64_t i = 0; i < count; i++)
        rows[i] = rounded(type, random_normal(state));
    return rows;
}

static bool *random_mask(uint64_t *state, const struct problem *p)
{
    bool *mask = zeros(p->batch * p->m, sizeof *mask);
    for (int64_t i = 0; i < p->batch * p->m; i++)
        switch (p->mask) {
        case RANDOM:
            mask[i] = random_below(state, 2);
            break;
        case FIRST_HIDDEN: /* more than a tile, or a half */
            mask[i] = i % p->m >= (p->m > 260 ? 130 : p->m / 2);
            break;
        case BATCH_HIDDEN:
            mask[i] = i / p->m != p->batch - 1;
            break;
        default:
            mask[i] = false;
        }
    return mask;
}

/* A sample of the problem in this type, with its solution. */
static struct sample sample_of(const struct problem *p, enum ra_type type)
{
    uint64_t state = p->seed;
    int64_t queries = size_of(p, O), keys = size_of(p, DK);
    struct sample s = {.p = p,
                       .type = type,
                       .o_type = p->wide_o ? RA_FLOAT32 : type,
                       .scale = (float)(p->scale_times / sqrt((double)p->dim)),
                       .q = random_rows(&state, type, queries),
                       .k = random_rows(&state, type, keys),
                       .v = random_rows(&state, type, keys),
                       .d_out = random_rows(&state, type, queries),
                       .mask = p->mask == NO_MASK ? NULL : random_mask(&state, p),
                       .with_backward = true};
    int64_t width = p->key_heads * p->dim;
    for (int64_t i = 0; i < keys && s.mask; i++)
        if (!s.mask[i / width])
            s.k[i] = s.v[i] = 0;
    for (int r = DQ; r < RESULTS; r++)
        s.before[r] = random_rows(&state, RA_FLOAT32, size_of(p, r));
    solve(&s);
    return s;
}

static void forget_sample(struct sample *s)
{
    forget_solution(s);
    free(s->q);
    free(s->k);
    free(s->v);
    free(s->d_out);
    free(s->mask);
    for (int r = DQ; r < RESULTS; r++)
        free(s->before[r]);
}

/* ---- Arrays on the device. */

/* An array (batch, rows, heads, dim) inside a larger one: `image` is that, on the host, as it was
 * sent; numbers of it that are not of the array are NaN. */
struct array {
    int64_t batch, rows, heads, dim;
    struct ra_tensor at; /* data NULL: where the numbers are, from the first of the array on */
    int64_t first, bytes;
    unsigned char *image, *device;
};

static struct array make_array(enum order order, enum ra_type type, int64_t batch, int64_t rows,
                               int64_t heads, int64_t dim, bool input)
{
    enum { GUARD = 64 }; /* numbers, before and behind */
    struct array x = {batch, rows, heads, dim, {.type = type}, GUARD, 0, NULL, NULL};
    int64_t size = ra_type_bytes(type), behind = GUARD;
    x.at.head = dim;
    x.at.row = heads * dim + (order == PADDED ? 8 : order == UNEVEN ? 3 : 0);
    x.at.row *= order == PACKED ? 3 : 1;
    x.at.batch = rows * x.at.row;
    if (order == HEADS_FIRST) {
        x.at.row = dim;
        x.at.head = rows * dim;
        x.at.batch = heads * rows * dim;
    }
    x.first += order == SHIFTED;

    /* A sanitizer sees who reads behind an array that ends where the memory does. */
    if (input && quick)
        behind = 0;
    int64_t last = (batch - 1) * x.at.batch + (rows - 1) * x.at.row + (heads - 1) * x.at.head + dim;
    bool empty = batch * rows * heads * dim == 0;
    x.bytes = (x.first + (empty ? 0 : last) + behind) * size;
    x.image = zeros(x.bytes, 1);
    memset(x.image, 0xFF, (size_t)x.bytes);
    check(cudaMalloc((void **)&x.device, (size_t)x.bytes), "memory on the device");
    return x;
}

static void free_array(struct array *x)
{
    free(x->image);
    check(cudaFree(x->device), "free");
}

static void send(const struct array *x)
{
    check(cudaMemcpy(x->device, x->image, (size_t)x->bytes, cudaMemcpyHostToDevice), "send");
}

static unsigned char *fetch(const struct array *x)
{
    unsigned char *image = zeros(x->bytes, 1);
    check(cudaMemcpy(image, x->device, (size_t)x->bytes, cudaMemcpyDeviceToHost), "fetch");
    return image;
}

/* The array from this row on, as a kernel gets it. */
static struct ra_tensor from_row(const struct array *x, int64_t row)
{
    struct ra_tensor tensor = x->at;
    tensor.data = x->device + x->first * ra_type_bytes(x->at.type);
    return ra_tensor_from_row(tensor, row);
}

/* The byte of the image where row (b, a, h) begins. */
static int64_t place(const struct array *x, int64_t b, int64_t a, int64_t h)
{
    return (x->first + b * x->at.batch + a * x->at.row + h * x->at.head) *
           ra_type_bytes(x->at.type);
}

/* Numbers (batch, rows, heads, dim) into the image. A row whose entry in `hidden` (batch, rows) is
 * false becomes NaN. */
static void put(struct array *x, const double *numbers, const bool *shown)
{
    float *row = zeros(x->dim, sizeof *row);
    for (int64_t i = 0; i < x->batch * x->rows * x->heads; i++) {
        int64_t h = i % x->heads, a = i / x->heads % x->rows, b = i / x->heads / x->rows;
        for (int64_t d = 0; d < x->dim; d++)
            row[d] = shown && !shown[b * x->rows + a] ? NAN : (float)numbers[i * x->dim + d];
        ra_number_store(x->at.type, x->dim, row, x->image + place(x, b, a, h));
    }
    free(row);
    send(x);
}

/* The numbers of an image, (batch, rows, heads, dim). */
static double *numbers_of(const struct array *x, const unsigned char *image)
{
    double *numbers = zeros(x->batch * x->rows * x->heads * x->dim, sizeof *numbers);
    float *row = zeros(x->dim, sizeof *row);
    for (int64_t i = 0; i < x->batch * x->rows * x->heads; i++) {
        int64_t h = i % x->heads, a = i / x->heads % x->rows, b = i / x->heads / x->rows;
        ra_number_load(x->at.type, x->dim, image + place(x, b, a, h), row);
        for (int64_t d = 0; d < x->dim; d++)
            numbers[i * x->dim + d] = row[d];
    }
    free(row);
    return numbers;
}

/* ---- Verdicts. */

/* Says what was wrong with a case, once. */
__attribute__((format(printf, 3, 4))) static bool wrong(const struct kernel *kernel,
                                                        const struct problem *p, const char *format,
                                                        ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("FAILED %s %s: ", kernel ? kernel->name : "rows", p->name);
    vprintf(format, arguments);
    va_end(arguments);
    static const char *const masks[] = {"none", "random", "first hidden", "all hidden",
                                        "batch hidden"};
    static const char *const orders[] = {"plain",  "heads first", "packed",
                                         "padded", "uneven",      "shifted"};
    printf("\n    B %" PRId64 " n %" PRId64 " m %" PRId64 " H %" PRId64 " G %" PRId64 " D %" PRId64
           " %s lo %" PRId64 " hi %" PRId64 " scale x %g softcap %g mask %s order %s%s%s pieces %d"
           "%s%s seed %" PRIu64 "\n",
           p->batch, p->n, p->m, p->heads, p->key_heads, p->dim,
           p->map == RA_GROUPED ? "grouped" : "interleaved", p->band.lo, p->band.hi, p->scale_times,
           p->softcap, masks[p->mask], orders[p->order], p->wide_o ? " float32 o" : "",
           p->deterministic ? " deterministic" : "", p->pieces, p->shuffled ? " shuffled" : "",
           p->given_carry ? " carry given" : "", p->seed);
    return false;
}

/* Is what the image has beside the array as it was sent? */
static bool nothing_beside(const struct kernel *kernel, const struct problem *p, const char *name,
                           const struct array *x, const unsigned char *image)
{
    unsigned char *hoped = zeros(x->bytes, 1);
    memcpy(hoped, x->image, (size_t)x->bytes);
    int64_t row = x->dim * ra_type_bytes(x->at.type);
    for (int64_t i = 0; i < x->batch * x->rows * x->heads; i++) {
        int64_t at = place(x, i / x->heads / x->rows, i / x->heads % x->rows, i % x->heads);
        memcpy(hoped + at, image + at, (size_t)row);
    }
    int64_t at = 0;
    while (at < x->bytes && hoped[at] == image[at])
        at++;
    free(hoped);
    return at == x->bytes ||
           wrong(kernel, p, "%s: byte %" PRId64 " of %" PRId64 ", beside the array, was written",
                 name, at, x->bytes);
}

/* Are these the wanted numbers, each within what its head is allowed? Both (outers, heads, dim);
 * a NaN is never. */
static bool near(const struct kernel *kernel, const struct problem *p, const char *name,
                 const struct array *x, const double *got, const double *want,
                 const double *allowed)
{
    for (int64_t i = 0; i < x->batch * x->rows * x->heads * x->dim; i++) {
        int64_t d = i % x->dim, h = i / x->dim % x->heads, a = i / x->dim / x->heads % x->rows;
        int64_t b = i / x->dim / x->heads / x->rows;
        double limit = allowed[b * x->heads + h], error = fabs(got[i] - want[i]);
        if (kernel && error <= limit && error > limit * worst[kernel - kernels])
            worst[kernel - kernels] = error / limit;
        if (!(error <= limit) && !(want[i] == -INFINITY && got[i] == want[i]))
            return wrong(kernel, p,
                         "%s[%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
                         "]: want %.9g got %.9g, off by %.3g, allowed %.3g",
                         name, b, a, h, d, want[i], got[i], error, limit);
    }
    return true;
}

/* How much error each batch and head of a result may have: (B, heads). */
static double *allowed_of(const struct sample *s, enum result r)
{
    const struct problem *p = s->p;
    int64_t heads = heads_of(p, r), dim = dim_of(p, r);
    double *allowed = zeros(p->batch * heads, sizeof *allowed);
    double *spread = zeros(p->batch * heads, sizeof *spread);
    double *largest = zeros(p->batch * heads, sizeof *largest);
    for (int64_t i = 0; i < size_of(p, r); i++) {
        int64_t head = i / (rows_of(p, r) * heads * dim) * heads + i / dim % heads;
        double want = s->want[r][i];
        if (isfinite(want))
            largest[head] = fmax(largest[head], fabs(want));
        allowed[head] = fmax(allowed[head], fabs(s->plain[r][i] - want));
        spread[head] = fmax(spread[head], sqrt(s->spread[r][i]));
    }

    /* A score of float32 is off by some steps of its size, and its e^score relatively by as much;
     * tanh within 2e-7. Everything else is a few steps, too. */
    double single = 4e-7 * (4 + fmin(s->largest_score, p->softcap > 0 ? 8 * p->softcap : INFINITY));
    bool narrow = s->type != RA_FLOAT32;
    for (int64_t head = 0; head < p->batch * heads; head++) {
        double value = fmax(largest[head], r == LSE ? 1 : 0);
        if (r == LSE)
            allowed[head] = single * 2 + 1e-6 * value;
        else {
            double floor = 2 * half_step(s->type) * spread[head];
            allowed[head] = narrow ? fmax(2 * allowed[head], floor) : 0;
            allowed[head] += single * (spread[head] * 4 + value) + 2e-6;
        }
        if (narrow && (r == O && s->o_type != RA_FLOAT32))
            allowed[head] += 2 * half_step(s->o_type) * value;
        if (s->type == RA_FLOAT16 && r != LSE)
            allowed[head] +=
                8 * sqrt((double)(p->n + p->m)) * least_step(s->type) * fmax(1, fabs(s->scale));
    }
    free(spread);
    free(largest);
    return allowed;
}

/* Is this result of a kernel, on the device, what the sample wants? */
static bool is_right(const struct kernel *kernel, const struct sample *s, enum result r,
                     const struct array *x)
{
    const struct problem *p = s->p;
    unsigned char *image = fetch(x);
    double *got = numbers_of(x, image), *allowed = allowed_of(s, r);
    double *want = zeros(size_of(p, r), sizeof *want);
    for (int64_t i = 0; i < size_of(p, r); i++)
        want[i] = s->want[r][i] + (r >= DQ ? s->before[r][i] : 0);
    bool right = near(kernel, p, result_names[r], x, got, want, allowed) &&
                 nothing_beside(kernel, p, result_names[r], x, image);
    free(image);
    free(got);
    free(allowed);
    free(want);
    return right;
}

/* ---- One problem on one kernel. */

/* All arrays of a problem, on the device. */
struct arrays {
    struct array q, k, v, d_out, mask, o, lse, carry_o, carry_max, carry_sum, delta, dq, dk, dv;
    int *turns;
    int64_t turn_count;
    struct ra_kernel kernel; /* of the whole problem */
};
enum { ARRAYS = 14 };

static struct array *array_number(struct arrays *x, int i)
{
    struct array *all[ARRAYS] = {&x->q,     &x->k,   &x->v,       &x->d_out,     &x->mask,
                                 &x->o,     &x->lse, &x->carry_o, &x->carry_max, &x->carry_sum,
                                 &x->delta, &x->dq,  &x->dk,      &x->dv};
    return all[i];
}

/* Puts the sample on the device. Outputs are NaN, gradients what they are added to. */
static void open_arrays(struct arrays *x, const struct sample *s)
{
    const struct problem *p = s->p;
    int64_t B = p->batch, n = p->n, m = p->m, H = p->heads, G = p->key_heads, D = p->dim;
    enum order order = p->order;
    *x = (struct arrays){
        .q = make_array(order, s->type, B, n, H, D, true),
        .k = make_array(order, s->type, B, m, G, D, true),
        .v = make_array(order, s->type, B, m, G, D, true),
        .d_out = make_array(order, s->type, B, n, H, D, true),
        .mask = make_array(order == HEADS_FIRST ? PLAIN : order, RA_BOOL, B, m, 1, 1, true),
        .o = make_array(order, s->o_type, B, n, H, D, false),
        .lse = make_array(order, RA_FLOAT32, B, n, H, 1, false),
        .carry_o = make_array(order, RA_FLOAT32, B, n, H, D, false),
        .carry_max = make_array(order, RA_FLOAT32, B, n, H, 1, false),
        .carry_sum = make_array(order, RA_FLOAT32, B, n, H, 1, false),
        .delta = make_array(order, RA_FLOAT32, B, n, H, 1, true),
        .dq = make_array(order, RA_FLOAT32, B, n, H, D, false),
        .dk = make_array(order, RA_FLOAT32, B, m, G, D, false),
        .dv = make_array(order, RA_FLOAT32, B, m, G, D, false),
    };
    put(&x->q, s->q, NULL);
    put(&x->k, s->k, s->mask);
    put(&x->v, s->v, s->mask);
    put(&x->d_out, s->d_out, NULL);
    put(&x->delta, s->delta, NULL);
    put(&x->dq, s->before[DQ], NULL);
    put(&x->dk, s->before[DK], NULL);
    put(&x->dv, s->before[DV], NULL);
    for (int64_t i = 0; s->mask && i < B * m; i++)
        x->mask.image[place(&x->mask, i / m, i % m, 0)] = s->mask[i];
    send(&x->mask);
    struct array *const outputs[] = {&x->o, &x->lse, &x->carry_o, &x->carry_max, &x->carry_sum};
    for (int i = 0; i < 5; i++)
        send(outputs[i]);

    x->kernel = (struct ra_kernel){.batch = B,
                                   .queries = n,
                                   .keys = m,
                                   .heads = H,
                                   .key_heads = G,
                                   .dim = D,
                                   .head_map = p->map,
                                   .score = {(float)s->scale, (float)p->softcap},
                                   .band = p->band,
                                   .q = from_row(&x->q, 0),
                                   .k = from_row(&x->k, 0),
                                   .v = from_row(&x->v, 0),
                                   .d_out = from_row(&x->d_out, 0),
                                   .o = from_row(&x->o, 0),
                                   .lse = from_row(&x->lse, 0),
                                   .carry_o = from_row(&x->carry_o, 0),
                                   .carry_max = from_row(&x->carry_max, 0),
                                   .carry_sum = from_row(&x->carry_sum, 0),
                                   .delta = from_row(&x->delta, 0),
                                   .dq = from_row(&x->dq, 0),
                                   .dk = from_row(&x->dk, 0),
                                   .dv = from_row(&x->dv, 0),
                                   .deterministic = p->deterministic};
    if (s->mask)
        x->kernel.mask = from_row(&x->mask, 0);

    /* Who folds all keys at once may give no carry at all. */
    if (p->pieces == 1 && p->seed % 2 == 0)
        x->kernel.carry_o = x->kernel.carry_max = x->kernel.carry_sum =
            (struct ra_tensor)RA_NO_TENSOR;
    x->turn_count = ra_kernel_turns(&x->kernel);
    size_t bytes = (size_t)x->turn_count * sizeof(int) + 1;
    check(cudaMalloc((void **)&x->turns, bytes), "memory on the device");
    check(cudaMemset(x->turns, 0, bytes), "memory on the device");
    x->kernel.turns = x->turns;
}

static void close_arrays(struct arrays *x)
{
    for (int i = 0; i < ARRAYS; i++)
        free_array(array_number(x, i));
    check(cudaFree(x->turns), "free");
}

/* The pieces of the keys: piece number `step` is first .. end - 1. Cuts are random: some pieces
 * have no keys. */
enum { MOST_PIECES = 8 };
struct pieces {
    int64_t first[MOST_PIECES], end[MOST_PIECES];
};

static struct pieces cut(const struct problem *p)
{
    uint64_t state = p->seed + 1;
    int64_t cuts[MOST_PIECES + 1] = {0};
    int order[MOST_PIECES];
    struct pieces pieces;
    for (int i = 1; i <= p->pieces; i++) {
        cuts[i] = i == p->pieces ? p->m : random_below(&state, p->m + 1);
        order[i - 1] = i - 1;
        for (int j = i; j > 1 && cuts[j] < cuts[j - 1]; j--) {
            int64_t smaller = cuts[j];
            cuts[j] = cuts[j - 1];
            cuts[j - 1] = smaller;
        }
    }
    for (int i = p->pieces - 1; p->shuffled && i > 0; i--) {
        int64_t other = random_below(&state, i + 1);
        int kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    for (int i = 0; i < p->pieces; i++) {
        pieces.first[i] = cuts[order[i]];
        pieces.end[i] = cuts[order[i] + 1];
    }
    return pieces;
}

/* What a kernel is told of one piece. */
static struct ra_kernel piece_of(const struct arrays *x, const struct pieces *pieces, int step,
                                 int count)
{
    struct ra_kernel kernel = x->kernel;
    int64_t first = pieces->first[step];
    kernel.keys = pieces->end[step] - first;
    kernel.band = ra_band_from(kernel.band, 0, first);
    kernel.k = from_row(&x->k, first);
    kernel.v = from_row(&x->v, first);
    kernel.dk = from_row(&x->dk, first);
    kernel.dv = from_row(&x->dv, first);
    if (kernel.mask.data)
        kernel.mask = from_row(&x->mask, first);
    kernel.first = step == 0;
    kernel.last = step == count - 1;
    return kernel;
}

/* The sample with only the keys of the first `count` pieces, solved: what a carry knows then. */
static struct sample part_of(const struct sample *s, const struct pieces *pieces, int count)
{
    const struct problem *p = s->p;
    struct sample part = *s;
    part.with_backward = false;
    part.o_type = RA_FLOAT32;
    part.mask = zeros(p->batch * p->m, sizeof *part.mask);
    for (int i = 0; i < count; i++)
        for (int64_t b = 0; b < p->batch; b++)
            for (int64_t c = pieces->first[i]; c < pieces->end[i]; c++)
                part.mask[b * p->m + c] = !s->mask || s->mask[b * p->m + c];
    solve(&part);
    return part;
}

/* Gives the kernel the carry of the first piece. */
static void put_carry(struct arrays *x, const struct sample *s, const struct pieces *pieces)
{
    struct sample part = part_of(s, pieces, 1);
    int64_t rows = size_of(s->p, LSE), D = s->p->dim;
    double *sum = zeros(rows, sizeof *sum);
    for (int64_t i = 0; i < rows; i++) {
        if (part.max[i] > -INFINITY)
            sum[i] = exp(part.want[LSE][i] - part.max[i]);
        for (int64_t d = 0; d < D; d++)
            part.want[O][i * D + d] *= sum[i];
    }
    put(&x->carry_o, part.want[O], NULL);
    put(&x->carry_max, part.max, NULL);
    put(&x->carry_sum, sum, NULL);
    free(sum);
    free(part.mask);
    forget_solution(&part);
}

/* Is the carry on the device that of the first `count` pieces? Its maximum may be an older one. */
static bool carry_is_right(const struct kernel *kernel, struct arrays *x, const struct sample *s,
                           const struct pieces *pieces, int count)
{
    struct sample part = part_of(s, pieces, count);
    struct array *const arrays[] = {&x->carry_o, &x->carry_max, &x->carry_sum};
    static const char *const names[] = {"carry_o", "carry_max", "carry_sum"};
    double *got[3];
    bool right = true;
    for (int i = 0; i < 3; i++) {
        unsigned char *image = fetch(arrays[i]);
        got[i] = numbers_of(arrays[i], image);
        right = right && nothing_beside(kernel, s->p, names[i], arrays[i], image);
        free(image);
    }

    /* As o and lse: what a row would be if nothing came after. */
    int64_t rows = size_of(s->p, LSE), D = s->p->dim;
    for (int64_t i = 0; i < rows; i++) {
        bool seen = got[2][i] != 0;
        for (int64_t d = 0; d < D; d++)
            got[0][i * D + d] = got[0][i * D + d] / (seen ? got[2][i] : 1);
        got[1][i] += log(got[2][i]);
    }
    double *allowed_o = allowed_of(&part, O), *allowed_lse = allowed_of(&part, LSE);
    right = right &&
            near(kernel, s->p, "carry_o / carry_sum", &x->carry_o, got[0], part.want[O], allowed_o);
    right = right && near(kernel, s->p, "carry_max + log carry_sum", &x->carry_max, got[1],
                          part.want[LSE], allowed_lse);
    for (int i = 0; i < 3; i++)
        free(got[i]);
    free(allowed_o);
    free(allowed_lse);
    free(part.mask);
    forget_solution(&part);
    return right;
}

static bool launched(const struct kernel *kernel, const struct problem *p, const char *what,
                     cudaError_t error)
{
    if (error == cudaSuccess)
        error = cudaDeviceSynchronize();
    return error == cudaSuccess || wrong(kernel, p, "%s: %s", what, cudaGetErrorString(error));
}

static bool run_forward(const struct kernel *kernel, struct arrays *x, const struct sample *s)
{
    const struct problem *p = s->p;
    struct pieces pieces = cut(p);
    if (p->given_carry)
        put_carry(x, s, &pieces);
    for (int step = p->given_carry; step < p->pieces; step++) {
        struct ra_kernel piece = piece_of(x, &pieces, step, p->pieces);
        if (!launched(kernel, p, "forward", kernel->rung->forward(&piece, 0)))
            return false;
        if (p->check_carry && !piece.last && !carry_is_right(kernel, x, s, &pieces, step + 1))
            return false;
    }
    return true;
}

static bool run_backward(const struct kernel *kernel, struct arrays *x, const struct sample *s)
{
    struct pieces pieces = cut(s->p);
    for (int step = 0; step < s->p->pieces; step++) {
        struct ra_kernel piece = piece_of(x, &pieces, step, s->p->pieces);
        if (!launched(kernel, s->p, "backward", kernel->rung->backward(&piece, 0)))
            return false;
    }

    /* The turns are for the next launch again. */
    int *turns = zeros(x->turn_count, sizeof *turns);
    check(
        cudaMemcpy(turns, x->turns, (size_t)x->turn_count * sizeof *turns, cudaMemcpyDeviceToHost),
        "fetch");
    int64_t t = 0;
    while (t < x->turn_count && turns[t] == 0)
        t++;
    bool zero = t == x->turn_count;
    if (!zero)
        wrong(kernel, s->p, "turns[%" PRId64 "] is %d after the launch", t, turns[t]);
    free(turns);
    return zero;
}

/* Runs again and again, which must give the same bits in these outputs. */
static bool same_again(const struct kernel *kernel, struct arrays *x, const struct sample *s,
                       bool (*run)(const struct kernel *, struct arrays *, const struct sample *),
                       struct array *const *outputs, const char *const *names, int count)
{
    unsigned char *first[3] = {NULL};
    for (int i = 0; i < count; i++)
        first[i] = fetch(outputs[i]);
    bool same = true;
    for (int r = 1; r < s->p->repeats && same; r++) {
        for (int i = 0; i < count; i++)
            send(outputs[i]);
        same = run(kernel, x, s);
        for (int i = 0; i < count && same; i++) {
            unsigned char *again = fetch(outputs[i]);
            same = memcmp(again, first[i], (size_t)outputs[i]->bytes) == 0 ||
                   wrong(kernel, s->p, "%s: run %d of %d gave other bits", names[i], r + 1,
                         s->p->repeats);
            free(again);
        }
    }
    for (int i = 0; i < count; i++)
        free(first[i]);
    return same;
}

/* The whole of a problem on one kernel: forward, then backward from what is right. */
static bool solves(const struct kernel *kernel, const struct sample *s)
{
    const struct problem *p = s->p;
    struct arrays x;
    open_arrays(&x, s);
    struct array *const forward[] = {&x.o, &x.lse}, *const backward[] = {&x.dq, &x.dk, &x.dv};
    bool good = run_forward(kernel, &x, s) && is_right(kernel, s, O, &x.o) &&
                is_right(kernel, s, LSE, &x.lse) &&
                same_again(kernel, &x, s, run_forward, forward, result_names, 2);

    /* A single piece has no carry: what was there must still be. */
    struct array *const carry[] = {&x.carry_o, &x.carry_max, &x.carry_sum};
    for (int i = 0; i < 3 && good && p->pieces == 1; i++) {
        unsigned char *image = fetch(carry[i]);
        good = memcmp(image, carry[i]->image, (size_t)carry[i]->bytes) == 0 ||
               wrong(kernel, p, "the carry was written, though first and last");
        free(image);
    }

    put(&x.lse, s->want[LSE], NULL);
    good = good && run_backward(kernel, &x, s) && is_right(kernel, s, DQ, &x.dq) &&
           is_right(kernel, s, DK, &x.dk) && is_right(kernel, s, DV, &x.dv);
    if (good && p->deterministic)
        good = same_again(kernel, &x, s, run_backward, backward, result_names + DQ, 3);

    /* Inputs stay as they are. */
    struct array *const inputs[] = {&x.q, &x.k, &x.v, &x.d_out, &x.mask, &x.lse, &x.delta};
    for (int i = 0; i < 7 && good; i++) {
        unsigned char *image = fetch(inputs[i]);
        good = memcmp(image, inputs[i]->image, (size_t)inputs[i]->bytes) == 0 ||
               wrong(kernel, p, "input number %d was written", i);
        free(image);
    }
    close_arrays(&x);
    return good;
}

/* Is this case asked for? */
static bool chosen(const char *kernel, const char *name)
{
    char both[200];
    snprintf(both, sizeof both, "%s %s", kernel, name);
    return strstr(both, wanted) != NULL;
}

static void count(bool good)
{
    passed += good;
    failed += !good;
}

/* A problem on every kernel that is asked for; what is right is computed once per type. */
static void try(const struct problem *p)
{
    static const enum ra_type types[] = {RA_FLOAT32, RA_BFLOAT16, RA_FLOAT16};
    for (int t = 0; t < 3; t++) {
        struct sample s;
        bool solved = false;
        for (int k = 0; k < KERNELS; k++) {
            if (kernels[k].type != types[t] || !chosen(kernels[k].name, p->name))
                continue;
            if (!solved)
                s = sample_of(p, types[t]);
            solved = true;
            count(solves(&kernels[k], &s));
        }
        if (solved)
            forget_sample(&s);
    }
}

/* ---- The problems. */

static const int64_t lengths[] = {1, 7, 63, 64, 65, 127, 128, 129, 200, 333, 1000};
static const int64_t dims[] = {1, 3, 8, 33, 64, 72, 80, 96, 128, 130, 200, 256};
static const struct {
    int64_t heads, key_heads;
    enum ra_head_map map;
} groups[] = {{1, 1, RA_GROUPED},     {4, 4, RA_GROUPED},     {4, 2, RA_GROUPED},
              {4, 2, RA_INTERLEAVED}, {8, 1, RA_INTERLEAVED}, {8, 1, RA_GROUPED},
              {6, 3, RA_GROUPED},     {6, 3, RA_INTERLEAVED}};
enum {
    LENGTHS = sizeof lengths / sizeof lengths[0],
    DIMS = sizeof dims / sizeof dims[0],
    GROUPS = sizeof groups / sizeof groups[0],
};

/* A problem with everything in it left to chance but its lengths. */
static struct problem random_problem(uint64_t seed, int64_t n, int64_t m)
{
    static const double scales[] = {1, 1, 1, 30, -1, 0, 0.1}, caps[] = {0, 0, 0, 5, 0.5, 50};
    struct problem p = {.name = "random", .n = n, .m = m, .seed = seed};
    uint64_t state = seed;
    int64_t group = random_below(&state, GROUPS);
    p.dim = dims[random_below(&state, DIMS)];
    p.batch = 1 + random_below(&state, 3);
    p.heads = groups[group].heads;
    p.key_heads = groups[group].key_heads;
    p.map = groups[group].map;
    p.scale_times = scales[random_below(&state, 7)];
    p.softcap = caps[random_below(&state, 6)];
    p.mask = random_below(&state, 2) ? NO_MASK : (enum masks)random_below(&state, MASKS);
    p.order = (enum order)random_below(&state, ORDERS);
    p.wide_o = random_below(&state, 2);
    p.deterministic = random_below(&state, 2);
    p.pieces = random_below(&state, 3) ? 1 : (int)(2 + random_below(&state, 4));
    p.shuffled = random_below(&state, 2);
    p.repeats = 2;

    /* All, causal as of the last rows, a window, or anything. */
    p.band = RA_ALL_KEYS;
    int64_t kind = random_below(&state, 4);
    if (kind > 0)
        p.band.hi = m - n;
    if (kind > 1)
        p.band.lo = p.band.hi - random_below(&state, m + 1);
    if (kind > 2) {
        p.band.hi = random_below(&state, n + m + 1) - n;
        p.band.lo = p.band.hi - random_below(&state, n + m) + 1;
    }

    /* The large ones are long enough with one batch, and a few heads. */
    if (p.n * p.m * p.heads * p.batch > 1000000)
        p.batch = 1;
    if (p.n * p.m * p.heads * p.dim > 300000000) {
        p.heads /= p.key_heads;
        p.key_heads = 1;
    }
    if (p.n * p.m * p.heads * p.dim > 300000000)
        p.heads = 1;
    return p;
}

/* Every length against every other. */
static void try_lengths(void)
{
    for (int i = 0; i < LENGTHS * LENGTHS; i++) {
        struct problem p =
            random_problem((uint64_t)(1000 + i), lengths[i / LENGTHS], lengths[i % LENGTHS]);
        if (quick && (p.n > 200 || p.m > 200 || i % 5 != 0))
            continue;
        p.name = "lengths";
        try(&p);
    }
}

/* Many tiles: what is lost at each, however little, adds up. */
static void try_many_keys(void)
{
    struct problem p = ordinary("many keys", 70, 100000);
    try(&p);
    p.dim = 128;
    try(&p);
}

/* Every number of dims, with everything else plain; and with everything else by chance. */
static void try_dims(void)
{
    for (int64_t dim = 1; dim <= 256; dim++) {
        bool listed = false;
        for (int i = 0; i < DIMS; i++)
            listed = listed || dims[i] == dim;
        struct problem plain = ordinary("dims", 65, 130);
        plain.dim = dim;
        plain.seed = (uint64_t)dim;
        struct problem mixed = random_problem((uint64_t)(2000 + dim), 129, 200);
        mixed.name = "dims mixed";
        mixed.dim = dim;
        mixed.batch = 1;
        if (quick ? listed && dim % 3 != 0 : listed || dim % 8 == 0 || dim % 16 == 1) {
            try(&plain);
            try(&mixed);
        }
    }
}

/* Every offset of the band around the sizes of tiles: its upper bound, its lower bound, windows. */
static void try_bands(void)
{
    static const int64_t windows[] = {0, 1, 5, 63, 64, 65, 127, 128, 130};
    for (int64_t offset = -130; offset <= 130; offset++) {
        struct problem p = ordinary("bands hi", 150, 140);
        if (quick && offset % 32 > 1 && offset % 32 != 31)
            continue;
        p.dim = offset % 2 ? 64 : 128;
        p.seed = (uint64_t)(3000 + offset);
        p.deterministic = offset % 2;
        p.band = (struct ra_band){-RA_BAND_FAR, offset};
        try(&p);

        p.name = "bands lo";
        p.band = (struct ra_band){offset, RA_BAND_FAR};
        try(&p);

        p.name = "bands window";
        p.band = (struct ra_band){offset - windows[(offset + 130) % 9], offset};
        p.n = 300;
        p.m = 290;
        p.dim = offset % 3 ? 64 : 32;
        try(&p);
    }

    /* Far beyond both ends, and bounds in the wrong order: nobody sees anything. */
    static const struct ra_band none[] = {
        {-RA_BAND_FAR, -150}, {140, RA_BAND_FAR}, {5, 4}, {100000, 200000}, {-200000, -100000}};
    for (int i = 0; i < 5; i++) {
        struct problem p = ordinary("bands none", 150, 140);
        p.band = none[i];
        try(&p);
        p.pieces = 3;
        try(&p);
    }
}

/* Every mask, order of arrays, head map, type of o, scale and soft cap, on tiles that are whole and
 * on such that are not. */
static void try_features(void)
{
    for (int whole = 0; whole < 2; whole++) {
        struct problem plain = ordinary("features", 129, 333);
        plain.seed = 7;
        if (whole) {
            plain.n = 128;
            plain.m = 384;
            plain.dim = 128;
        }
        plain.batch = 2;
        plain.heads = 4;
        plain.key_heads = 2;
        struct problem p;
        for (int mask = 0; mask < MASKS; mask++)
            for (int causal = 0; causal < 2; causal++) {
                p = plain;
                p.name = "masks";
                p.mask = (enum masks)mask;
                if (causal)
                    p.band.hi = p.m - p.n;
                try(&p);
            }
        for (int order = 0; order < ORDERS; order++)
            for (int wide_o = 0; wide_o < 2; wide_o++) {
                p = plain;
                p.name = "orders";
                p.order = (enum order)order;
                p.wide_o = wide_o;
                p.mask = RANDOM;
                try(&p);
            }
        for (int group = 0; group < GROUPS; group++) {
            p = plain;
            p.name = "heads";
            p.heads = groups[group].heads;
            p.key_heads = groups[group].key_heads;
            p.map = groups[group].map;
            try(&p);
        }
        static const double scales[] = {30, -30, -1, 0, 0.1}, caps[] = {0, 0.5, 5, 50};
        for (int i = 0; i < 20; i++) {
            p = plain;
            p.name = "scores";
            p.scale_times = scales[i / 4];
            p.softcap = caps[i % 4];
            p.mask = i % 2 ? RANDOM : NO_MASK;
            try(&p);
        }
    }
}

/* The carry: in any number of pieces, in any order, through empty ones. */
static void try_carries(void)
{
    for (int i = 0; i < (quick ? 8 : 60); i++) {
        struct problem p = ordinary("carry", 130, 333);
        p.seed = (uint64_t)(5000 + i);
        p.dim = i % 3 == 0 ? 128 : i % 3 == 1 ? 64 : 80;
        p.batch = 1 + i % 2;
        p.heads = 2;
        p.key_heads = 1 + i / 2 % 2;
        p.pieces = i % 2 ? 5 : 2;
        p.shuffled = i / 2 % 2;
        p.given_carry = i / 4 % 2;
        p.check_carry = true;
        p.mask = i % 5 ? (enum masks)(i % MASKS) : NO_MASK;
        p.order = (enum order)(i % ORDERS);
        p.repeats = 3;
        p.deterministic = i % 2;
        if (i % 4 == 1)
            p.band.hi = 203;
        if (i % 4 == 2)
            p.band = (struct ra_band){20, 90};
        if (i % 4 == 3)
            p.scale_times = 30;
        try(&p);
    }
}

/* The same bits, run after run. */
static void try_repeats(void)
{
    for (int i = 0; i < 4; i++) {
        struct problem p = ordinary("repeats", 700, 650);
        p.seed = 11;
        p.heads = 4;
        p.key_heads = 2;
        p.dim = i % 2 ? 128 : 64;
        p.repeats = quick ? 3 : 100;
        p.deterministic = true;
        p.band.hi = i < 2 ? RA_BAND_FAR : 0;
        p.pieces = i == 3 ? 2 : 1;
        try(&p);
    }
}

/* More of one thing than the smaller axes of a grid have blocks; and nothing at all. */
static void try_extremes(void)
{
    struct problem p = ordinary("many batches", 2, 1);
    p.dim = 8;
    p.batch = 70000;
    if (!quick)
        try(&p);
    p = ordinary("many heads", 1, 2);
    p.dim = 8;
    p.heads = p.key_heads = 70000;
    if (!quick)
        try(&p);
    p = ordinary("many queries", 70000, 3);
    p.dim = 8;
    if (!quick)
        try(&p);
    p = ordinary("many keys", 3, 70000);
    p.dim = 8;
    if (!quick)
        try(&p);

    p = ordinary("no batch", 5, 5);
    p.batch = 0;
    try(&p);
    p = ordinary("no query", 0, 5);
    try(&p);
    p = ordinary("no key", 5, 0);
    try(&p);
    p.pieces = 3;
    try(&p);
}

/* Copies the rows of an array of one batch and head to where they are far apart, or back. */
static void move_rows(const struct array *x, unsigned char *far, int64_t stride, bool back)
{
    int64_t size = ra_type_bytes(x->at.type);
    for (int64_t a = 0; a < x->rows; a++) {
        unsigned char *here = x->device + place(x, 0, a, 0), *there = far + a * stride * size;
        check(cudaMemcpy(back ? here : there, back ? there : here, (size_t)(x->dim * size),
                         cudaMemcpyDeviceToDevice),
              "move rows");
    }
}

/* Rows so far apart that an offset passes 2^31 numbers: first the keys' arrays, then the queries'. */
static void try_far_rows(void)
{
    enum { FAR_ARRAYS = 4 };
    const int64_t stride = (INT64_C(1) << 29) + 8;
    struct problem p = ordinary("far rows", 6, 6);
    for (int i = 0; i < 2 * KERNELS && !quick; i++) {
        const struct kernel *kernel = &kernels[i / 2];
        if (!chosen(kernel->name, p.name))
            continue;
        struct sample s = sample_of(&p, kernel->type);
        struct arrays x;
        open_arrays(&x, &s);
        struct ra_kernel *of = &x.kernel;
        struct array *const keys[] = {&x.k, &x.v, &x.dk, &x.dv};
        struct array *const queries[] = {&x.q, &x.d_out, &x.o, &x.dq};
        struct ra_tensor *const key_tensors[] = {&of->k, &of->v, &of->dk, &of->dv};
        struct ra_tensor *const query_tensors[] = {&of->q, &of->d_out, &of->o, &of->dq};
        struct array *const *arrays = i % 2 ? queries : keys;
        struct ra_tensor *const *tensors = i % 2 ? query_tensors : key_tensors;
        unsigned char *far[FAR_ARRAYS] = {NULL};
        bool room = true;
        for (int a = 0; a < FAR_ARRAYS && room; a++) {
            int64_t bytes = (5 * stride + p.dim) * ra_type_bytes(arrays[a]->at.type);
            room = cudaMalloc((void **)&far[a], (size_t)bytes) == cudaSuccess;
            if (!room)
                break;
            move_rows(arrays[a], far[a], stride, false);
            tensors[a]->data = far[a];
            tensors[a]->row = stride;
            tensors[a]->batch = 6 * stride;
        }

        of->first = of->last = true;
        if (room) {
            put(&x.lse, s.want[LSE], NULL);
            bool good = launched(kernel, &p, "forward", kernel->rung->forward(of, 0)) &&
                        launched(kernel, &p, "backward", kernel->rung->backward(of, 0));
            for (int a = 0; a < FAR_ARRAYS; a++)
                move_rows(arrays[a], far[a], stride, true);
            count(good && is_right(kernel, &s, O, &x.o) && is_right(kernel, &s, DQ, &x.dq) &&
                  is_right(kernel, &s, DK, &x.dk) && is_right(kernel, &s, DV, &x.dv));
        } else {
            cudaGetLastError(); /* forgets that there was no memory */
            printf("skipped %s far rows: the device has not the memory\n", kernel->name);
        }
        for (int a = 0; a < FAR_ARRAYS; a++)
            check(cudaFree(far[a]), "free");
        close_arrays(&x);
        forget_sample(&s);
    }
}

/* What a kernel has not, it must refuse. */
static void try_refusals(void)
{
    for (int k = 0; k < KERNELS; k++) {
        if (!chosen(kernels[k].name, "refusals"))
            continue;
        bool is_k03 = kernels[k].type != RA_FLOAT32;
        struct problem p = ordinary("refusals", 3, 3);
        p.dim = RA_MOST_DIM + 1;
        struct sample s = sample_of(&p, kernels[k].type);
        struct arrays x;
        open_arrays(&x, &s);
        x.kernel.first = x.kernel.last = true;
        count(kernels[k].rung->forward(&x.kernel, 0) == cudaErrorNotSupported ||
              wrong(&kernels[k], &p, "forward of dim 257 is not refused"));
        count(kernels[k].rung->backward(&x.kernel, 0) == cudaErrorNotSupported ||
              wrong(&kernels[k], &p, "backward of dim 257 is not refused"));
        x.kernel.dim = 8;
        x.kernel.q.type = x.kernel.k.type = x.kernel.v.type = x.kernel.d_out.type =
            is_k03 ? RA_FLOAT32 : RA_FLOAT16;
        count(kernels[k].rung->forward(&x.kernel, 0) == cudaErrorNotSupported ||
              wrong(&kernels[k], &p, "forward of a type it has not is not refused"));
        count(kernels[k].rung->backward(&x.kernel, 0) == cudaErrorNotSupported ||
              wrong(&kernels[k], &p, "backward of a type it has not is not refused"));
        close_arrays(&x);
        forget_sample(&s);
    }
}

/* A GPU of compute capability 8.6, or 8.0: k03 has smaller tiles, or fewer stages. And one of 7.5,
 * which it must refuse. */
static void try_small_shared_memory(void)
{
    static const int64_t small_lengths[] = {1, 15, 16, 17, 31, 32, 33, 64, 65, 129, 200};
    static const int64_t small_dims[] = {1, 8, 40, 64, 65, 80, 96, 128, 129, 200, 256};
    enum { SMALL = sizeof small_dims / sizeof small_dims[0] };
    const char *name = "small shared memory";
    struct problem p;
    pretended.capability = 8;

    /* Anything, of every dim, with turns and without; two of three on 8.6. */
    for (int i = 0; i < 12 * SMALL; i++) {
        if (quick && i % 4 != 0)
            continue;
        p = random_problem((uint64_t)(8000 + i), small_lengths[3 * i % SMALL],
                           small_lengths[(i + i / SMALL) % SMALL]);
        p.name = name;
        p.dim = small_dims[i % SMALL];
        p.deterministic = i / SMALL % 2;
        p.repeats = 3;
        pretended.shared_memory = (i / SMALL / 2 % 3 < 2 ? 99 : 163) << 10;
        try(&p);
    }

    /* Offsets of a window around the sizes of tiles. */
    pretended.shared_memory = 99 << 10;
    for (int offset = -40; offset <= 40; offset += quick ? 12 : 4) {
        p = ordinary(name, 70, 100);
        p.seed = (uint64_t)(8500 + offset);
        p.dim = offset % 8 ? 128 : 256;
        p.deterministic = offset % 3 == 0;
        p.band = (struct ra_band){offset - 20, offset};
        p.mask = offset % 5 ? NO_MASK : RANDOM;
        try(&p);
    }

    /* Carries, as from hop to hop. */
    for (int i = 0; i < 12; i++) {
        p = ordinary(name, 70, 150);
        p.seed = (uint64_t)(8600 + i);
        p.dim = i % 3 == 0 ? 64 : i % 3 == 1 ? 128 : 256;
        p.heads = 2;
        p.pieces = 2 + i % 4;
        p.shuffled = i % 2;
        p.given_carry = i / 2 % 2;
        p.check_carry = true;
        p.order = (enum order)(i % ORDERS);
        p.band.hi = i / 4 == 1 ? 80 : RA_BAND_FAR;
        try(&p);
    }

    /* Many blocks of threads that wait for each other: the same bits, run after run. */
    for (int i = 0; i < 6; i++) {
        p = ordinary(name, 500, 450);
        p.seed = 12;
        p.heads = 4;
        p.key_heads = 2;
        p.dim = i % 3 == 0 ? 64 : i % 3 == 1 ? 128 : 256;
        p.repeats = quick ? 3 : 50;
        p.deterministic = true;
        p.band.hi = i < 3 ? RA_BAND_FAR : 0;
        try(&p);
    }

    pretended.shared_memory = 64 << 10;
    pretended.capability = 7;
    for (int k = 0; k < KERNELS; k++) {
        if (kernels[k].type == RA_FLOAT32 || !chosen(kernels[k].name, name))
            continue;
        struct ra_kernel none = {.batch = 1,
                                 .queries = 1,
                                 .keys = 1,
                                 .heads = 1,
                                 .key_heads = 1,
                                 .dim = 8,
                                 .q.type = kernels[k].type};
        count((kernels[k].rung->forward(&none, 0) == cudaErrorNotSupported &&
               kernels[k].rung->backward(&none, 0) == cudaErrorNotSupported) ||
              wrong(&kernels[k], &p, "compute capability 7.5 is not refused"));
    }
    pretended.shared_memory = pretended.capability = 0;
}

/* ---- delta, copy and add. */

static const enum ra_type float_types[] = {RA_FLOAT32, RA_FLOAT16, RA_BFLOAT16};

static void try_delta(void)
{
    for (int i = 0; i < 9 * ORDERS && chosen("rows", "delta"); i++) {
        enum ra_type o_type = float_types[i % 3], d_out_type = float_types[i / 3 % 3];
        struct problem p = random_problem((uint64_t)(6000 + i), i == 17 ? 70000 : 65, 1);
        p.name = "delta";
        p.order = (enum order)(i / 9);
        if (i == 17)
            p.batch = p.heads = p.key_heads = p.dim = 1;
        uint64_t state = p.seed;
        int64_t rows = size_of(&p, LSE), D = p.dim;
        double *o = random_rows(&state, o_type, rows * D);
        double *d_out = random_rows(&state, d_out_type, rows * D);
        double *want = zeros(rows, sizeof *want);
        double *allowed = zeros(p.batch * p.heads, sizeof *allowed);
        for (int64_t row = 0; row < rows; row++)
            want[row] = dot(o + row * D, d_out + row * D, D);
        for (int64_t head = 0; head < p.batch * p.heads; head++)
            allowed[head] = 2e-6 * (1 + sqrt((double)D) * 4);

        struct array x[3] = {
            make_array(p.order, o_type, p.batch, p.n, p.heads, D, true),
            make_array(p.order, d_out_type, p.batch, p.n, p.heads, D, true),
            make_array(p.order, RA_FLOAT32, p.batch, p.n, p.heads, 1, false),
        };
        put(&x[0], o, NULL);
        put(&x[1], d_out, NULL);
        send(&x[2]);
        struct ra_kernel kernel = {.batch = p.batch,
                                   .queries = p.n,
                                   .keys = 1,
                                   .heads = p.heads,
                                   .key_heads = p.key_heads,
                                   .dim = D,
                                   .o = from_row(&x[0], 0),
                                   .d_out = from_row(&x[1], 0),
                                   .delta = from_row(&x[2], 0)};
        bool good = launched(NULL, &p, "delta", ra_kernel_delta(&kernel, 0));
        unsigned char *image = fetch(&x[2]);
        double *got = numbers_of(&x[2], image);
        count(good && near(NULL, &p, "delta", &x[2], got, want, allowed) &&
              nothing_beside(NULL, &p, "delta", &x[2], image));
        free(image);
        free(got);
        free(o);
        free(d_out);
        free(want);
        free(allowed);
        for (int a = 0; a < 3; a++)
            free_array(&x[a]);
    }
}

/* to = from or to += from, for every pair of types and of orders. */
static void try_copies(bool adds)
{
    const char *name = adds ? "add" : "copy";
    for (int i = 0; i < 9 * ORDERS * ORDERS && chosen("rows", name); i += quick ? 7 : 1) {
        enum ra_type to_type = float_types[i % 3], from_type = float_types[i / 3 % 3];
        struct problem p = random_problem((uint64_t)(7000 + i), i % 5 == 0 ? 200 : 33, 1);
        p.name = name;
        p.order = (enum order)(i / 9 % ORDERS);
        if (i % 4 == 0)
            p.dim = 1;
        if (i % 100 == 99) {
            p.n = 70000;
            p.batch = p.heads = p.key_heads = 1;
            p.dim = 3;
        }
        if (i % 100 == 98) {
            p.batch = 70000;
            p.n = p.heads = p.key_heads = p.dim = 1;
        }
        uint64_t state = p.seed;
        int64_t numbers = size_of(&p, O);
        double *from = random_rows(&state, from_type, numbers);
        double *to = random_rows(&state, to_type, numbers);
        double *want = zeros(numbers, sizeof *want);
        double *allowed = zeros(p.batch * p.heads, sizeof *allowed); /* nothing */
        for (int64_t e = 0; e < numbers; e++)
            want[e] = rounded(to_type, adds ? (float)to[e] + (float)from[e] : from[e]);

        struct array x = make_array(p.order, to_type, p.batch, p.n, p.heads, p.dim, false);
        struct array y =
            make_array((enum order)(i / 9 / ORDERS), from_type, p.batch, p.n, p.heads, p.dim, true);
        put(&y, from, NULL);
        if (adds)
            put(&x, to, NULL);
        else
            send(&x);
        cudaError_t error = (adds ? ra_kernel_add : ra_kernel_copy)(
            from_row(&x, 0), from_row(&y, 0), p.batch, p.n, p.heads, p.dim, 0);
        bool good = launched(NULL, &p, name, error);
        unsigned char *image = fetch(&x);
        double *got = numbers_of(&x, image);
        count(good && near(NULL, &p, name, &x, got, want, allowed) &&
              nothing_beside(NULL, &p, name, &x, image));
        free(image);
        free(got);
        free(from);
        free(to);
        free(want);
        free(allowed);
        free_array(&x);
        free_array(&y);
    }
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--quick") == 0)
            quick = true;
        else if (argv[i][0] == '-') {
            fprintf(stderr, "usage: check-kernels [--quick] [PART OF A NAME]\n");
            return 2;
        } else
            wanted = argv[i];

    int devices = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0)
        die("no CUDA device: %s", error ? cudaGetErrorString(error) : "none found");
    setvbuf(stdout, NULL, _IOLBF, 0);

    try_delta();
    try_copies(false);
    try_copies(true);
    try_refusals();
    try_extremes();
    try_far_rows();
    try_features();
    try_bands();
    try_lengths();
    try_many_keys();
    try_dims();
    try_carries();
    try_repeats();
    try_small_shared_memory();
    for (int k = 0; k < KERNELS; k++)
        if (worst[k] > 0)
            printf("%s: errors up to %.2f of what is allowed\n", kernels[k].name, worst[k]);
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0 || passed == 0;
}
