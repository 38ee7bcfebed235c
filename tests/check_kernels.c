/* check_kernels: every kernel on a GPU, held against tests/rig/truth.h.
 *
 * Chapter 11. Inputs are random numbers, rounded to the kernel's type first; so what is judged is
 * the kernel and not the rounding of its inputs. Every array stands in a larger one full of NaN,
 * which must be neither read into a result nor written.
 *
 * Usage: check-kernels [--quick] [PART OF A NAME]     (of "k03-bfloat16 bands", say)
 */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels_tested.h"
#include "numbers.h"
#include "patterns.h"
#include "truth.h"
#include "verdict.h"
#include "work_rig.h"

/* ---- The kernels, and what is asked of them. */

enum masks { NO_MASK, RANDOM, FIRST_HIDDEN, ALL_HIDDEN, BATCH_HIDDEN, MASKS };

/* How arrays lie, here with D numbers: (B, rows, heads, D); (B, heads, rows, D); as one of three in
 * a common row; rows with 8 numbers between them, or 3; all of it one number later than 16 bytes
 * want it. */
enum order { PLAIN, HEADS_FIRST, PACKED, PADDED, UNEVEN, SHIFTED, ORDERS };

struct trial {
    const char *name;
    int64_t batch, n, m, heads, key_heads, dim;
    int64_t dim_value; /* D_v; 0: D */
    enum ra_head_map map;
    struct ra_band band;
    struct ra_band_step band_step;
    double scale_times, softcap; /* scale is 1 / sqrt(D), times this */
    enum masks mask;
    enum order order;
    bool wide_o;    /* o is float32, whatever the type */
    bool odd_carry; /* lies where TMA cannot take it */
    bool deterministic;
    int pieces;       /* of the keys */
    bool shuffled;    /* the pieces come in another order */
    bool given_carry; /* the first piece is folded by the host */
    bool check_carry; /* after every piece */
    bool extras;      /* there are sinks and slopes, and the largest scores are asked for */
    int64_t gap;      /* of extras: half of the rows lie so much later, and no others; 0: random */
    int repeats;      /* more runs, which must give the same bits */
    uint64_t seed;

    /* Who sees whom, instead of the band: a launch for each piece, with a list. */
    const struct ra_slice *slices;
    int64_t slice_count;
    const char *pattern;
};

/* One batch, one head, 64 numbers, all keys seen, everything else plain. */
static struct trial ordinary(const char *name, int64_t n, int64_t m)
{
    return (struct trial){.name = name,
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

static int64_t value_width(const struct trial *p)
{
    return p->dim_value > 0 ? p->dim_value : p->dim;
}

static double worst[KERNELS]; /* error, as a share of what is allowed */
static int written_count; /* how often gradients were written, in the inputs' type or in float32 */
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

/* ---- What is right. */

/* A problem in the numbers of a type. */
struct sample {
    const struct trial *p;
    struct truth truth;
    double *sink, *slopes, *d_lse; /* of extras, else NULL */
    int64_t *places[2];
};

/* What is asked of a kernel of this type: 16-bit ones round the weights for the tensor cores, and
 * gradients are float32 and added to what is there. */
static struct truth shape_of(const struct trial *p, enum ra_type type)
{
    struct truth t = {.B = p->batch,
                      .N = p->n,
                      .M = p->m,
                      .H = p->heads,
                      .G = p->key_heads,
                      .D = p->dim,
                      .D_v = p->dim_value,
                      .head_map = p->map,
                      .scale = (float)(p->scale_times / sqrt((double)p->dim)),
                      .softcap = p->softcap,
                      .band = p->band,
                      .slices = p->slices,
                      .slice_count = p->slice_count,
                      .lo_step = p->band_step.lo,
                      .hi_step = p->band_step.hi,
                      .type = {[Q] = type, [K] = type, [V] = type, [D_OUT] = type},
                      .weights = type,
                      .tanh_of_exp = true};
    t.type[MASK] = RA_BOOL;
    t.type[O] = p->wide_o ? RA_FLOAT32 : type;
    return t;
}

static double *random_rows(uint64_t *state, enum ra_type type, int64_t count)
{
    double *rows = truth_numbers(count);
    for (int64_t i = 0; i < count; i++)
        rows[i] = number_rounded(type, random_normal(state));
    return rows;
}

static double *random_mask(uint64_t *state, const struct trial *p)
{
    double *mask = truth_numbers(p->batch * p->m);
    for (int64_t i = 0; i < p->batch * p->m; i++)
        switch (p->mask) {
        case RANDOM:
            mask[i] = (double)random_below(state, 2);
            break;
        case FIRST_HIDDEN: /* more than a tile, or a half */
            mask[i] = i % p->m >= (p->m > 260 ? 130 : p->m / 2);
            break;
        case BATCH_HIDDEN:
            mask[i] = i / p->m != p->batch - 1;
            break;
        default:
            mask[i] = 0;
        }
    return mask;
}

/* Draws what there is beside the keys. Rows lie far out: one behind the other, with some gaps, or
 * anywhere. */
static void make_extras(struct sample *s, uint64_t *state)
{
    struct truth *t = &s->truth;
    const int64_t rows[2] = {t->N, t->M};
    s->sink = truth_numbers(t->H);
    s->slopes = truth_numbers(t->H);
    s->d_lse = truth_numbers(t->B * t->N * t->H);
    for (int64_t h = 0; h < t->H; h++) {
        s->sink[h] = h % 4 == 3 ? -(double)INFINITY : (double)(float)(5 * random_normal(state));
        s->slopes[h] = h % 3 == 2 ? 0 : (double)(float)(0.02 * random_normal(state));
    }
    for (int64_t e = 0; e < t->B * t->N * t->H; e++)
        s->d_lse[e] = (double)(float)random_normal(state);
    for (int side = 0; side < 2; side++) {
        s->places[side] = zeros(rows[side], sizeof *s->places[side]);
        int64_t next = 100000000;
        for (int64_t i = 0; i < rows[side]; i++) {
            next += random_below(state, 100) == 0 ? 2 + random_below(state, 50) : 1;
            s->places[side][i] = next;
            if (s->p->gap > 0)
                s->places[side][i] = i < rows[side] / 2 ? i : i + s->p->gap;
            else if (s->p->seed % 3 == 0)
                s->places[side][i] = 100000000 + random_below(state, 300);
        }
        t->places[side] = s->places[side];
    }
    t->sink = s->sink;
    t->slopes = s->slopes;
    t->d_lse = s->d_lse;
}

/* A sample of the problem in this type, with its solution. The kernels are given the right
 * delta. */
static struct sample sample_of(const struct trial *p, enum ra_type type)
{
    uint64_t state = p->seed;
    struct sample s = {.p = p, .truth = shape_of(p, type)};
    truth_make_inputs(&s.truth, random_normal, 1, &state);
    if (p->mask != NO_MASK)
        s.truth.x[MASK] = random_mask(&state, p);
    for (enum truth_array a = DQ; a <= DV; a++)
        s.truth.before[a] = random_rows(&state, RA_FLOAT32, truth_count(&s.truth, a));
    if (p->extras)
        make_extras(&s, &state);
    truth_forward(&s.truth);
    truth_backward(&s.truth, s.truth.x[O]);
    if (p->extras)
        truth_largest(&s.truth);
    return s;
}

static void forget_sample(struct sample *s)
{
    truth_clear(&s->truth);
    for (enum truth_array a = DQ; a <= DV; a++)
        free(s->truth.before[a]);
    free(s->sink);
    free(s->slopes);
    free(s->d_lse);
    free(s->places[0]);
    free(s->places[1]);
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

static void free_array(struct array *array)
{
    free(array->image);
    check(cudaFree(array->device), "free");
}

static void send(const struct array *array)
{
    check(cudaMemcpy(array->device, array->image, (size_t)array->bytes, cudaMemcpyHostToDevice),
          "send");
}

static unsigned char *fetch(const struct array *array)
{
    unsigned char *image = zeros(array->bytes, 1);
    check(cudaMemcpy(image, array->device, (size_t)array->bytes, cudaMemcpyDeviceToHost), "fetch");
    return image;
}

/* The array from this row on, as a kernel gets it. */
static struct ra_tensor from_row(const struct array *array, int64_t row)
{
    struct ra_tensor tensor = array->at;
    tensor.data = array->device + array->first * ra_type_bytes(array->at.type);
    return ra_tensor_from_row(tensor, row);
}

/* The byte of the image where row (b, a, h) begins. */
static int64_t place(const struct array *array, int64_t b, int64_t a, int64_t h)
{
    return (array->first + b * array->at.batch + a * array->at.row + h * array->at.head) *
           ra_type_bytes(array->at.type);
}

/* What stands instead of a number in a row that nobody may see: one row in five is all NaN, the
 * others have a single NaN or infinity, in a column that differs from row to row. */
static double nonfinite(double number, int64_t row, int64_t d, int64_t dim)
{
    static const double instead[] = {NAN, NAN, INFINITY, -INFINITY, INFINITY};
    return row % 5 == 0 || d == row * 37 % dim ? instead[row % 5] : number;
}

/* Numbers (batch, rows, heads, dim) into the image. A row whose entry in `shown` (batch, rows),
 * which may be NULL, is 0 is nonfinite. */
static void put(struct array *array, const double *numbers, const double *shown)
{
    for (int64_t i = 0; i < array->batch * array->rows * array->heads; i++) {
        int64_t h = i % array->heads, a = i / array->heads % array->rows,
                b = i / array->heads / array->rows;
        bool hidden = shown && shown[b * array->rows + a] == 0;
        for (int64_t d = 0; d < array->dim; d++) {
            double number = numbers[i * array->dim + d];
            number_put(array->at.type, array->image + place(array, b, a, h), d,
                       hidden ? nonfinite(number, i, d, array->dim) : number);
        }
    }
    send(array);
}

/* The numbers of an image, (batch, rows, heads, dim). */
static double *numbers_of(const struct array *array, const unsigned char *image)
{
    double *numbers = truth_numbers(array->batch * array->rows * array->heads * array->dim);
    for (int64_t i = 0; i < array->batch * array->rows * array->heads; i++) {
        int64_t h = i % array->heads, a = i / array->heads % array->rows,
                b = i / array->heads / array->rows;
        for (int64_t d = 0; d < array->dim; d++)
            numbers[i * array->dim + d] =
                number_get(array->at.type, image + place(array, b, a, h), d);
    }
    return numbers;
}

/* ---- Verdicts. */

/* Says what was wrong with a case, once. */
__attribute__((format(printf, 3, 4))) static bool wrong(const struct kernel *kernel,
                                                        const struct trial *p, const char *format,
                                                        ...)
{
    char text[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    static const char *const masks[] = {"none", "random", "first hidden", "all hidden",
                                        "batch hidden"};
    static const char *const orders[] = {"plain",  "heads first", "packed",
                                         "padded", "uneven",      "shifted"};
    verdict_state.test = p->name;
    WRONG("%s: %s\n    B %" PRId64 " n %" PRId64 " m %" PRId64 " H %" PRId64 " G %" PRId64
          " D %" PRId64 " D_v %" PRId64 " %s lo %" PRId64 " hi %" PRId64 " steps %d %d"
          " scale x %g softcap %g mask %s order %s%s%s pieces %d"
          "%s%s%s seed %" PRIu64 "%s%s",
          kernel ? kernel->name : "rows", text, p->batch, p->n, p->m, p->heads, p->key_heads,
          p->dim, value_width(p), p->map == RA_GROUPED ? "grouped" : "interleaved", p->band.lo,
          p->band.hi, p->band_step.lo, p->band_step.hi, p->scale_times, p->softcap, masks[p->mask],
          orders[p->order], p->wide_o ? " float32 o" : "", p->deterministic ? " deterministic" : "",
          p->pieces, p->shuffled ? " shuffled" : "", p->given_carry ? " carry given" : "",
          p->extras ? " extras" : "", p->seed, p->pattern ? " slices " : "",
          p->pattern ? p->pattern : "");
    return false;
}

/* Is what the image has beside the array as it was sent? */
static bool nothing_beside(const struct kernel *kernel, const struct trial *p, const char *name,
                           const struct array *array, const unsigned char *image)
{
    unsigned char *hoped = zeros(array->bytes, 1);
    memcpy(hoped, array->image, (size_t)array->bytes);
    int64_t row = array->dim * ra_type_bytes(array->at.type);
    for (int64_t i = 0; i < array->batch * array->rows * array->heads; i++) {
        int64_t at = place(array, i / array->heads / array->rows, i / array->heads % array->rows,
                           i % array->heads);
        memcpy(hoped + at, image + at, (size_t)row);
    }
    int64_t at = 0;
    while (at < array->bytes && hoped[at] == image[at])
        at++;
    free(hoped);
    return at == array->bytes ||
           wrong(kernel, p, "%s: byte %" PRId64 " of %" PRId64 ", beside the array, was written",
                 name, at, array->bytes);
}

/* Are these numbers right? */
static bool judged(const struct kernel *kernel, const struct trial *p, const struct truth *truth,
                   enum truth_array a, const double *got)
{
    char text[TRUTH_TEXT];
    double share = truth_judge(truth, a, got, text);
    if (!(share <= 1))
        return wrong(kernel, p, "%s", text);
    if (kernel)
        worst[kernel - kernels] = fmax(worst[kernel - kernels], share);
    return true;
}

/* Is this result of a kernel, on the device, right, and nothing beside it written? */
static bool is_right(const struct kernel *kernel, const struct trial *p, const struct truth *truth,
                     enum truth_array a, const struct array *array)
{
    unsigned char *image = fetch(array);
    double *got = numbers_of(array, image);
    bool right =
        judged(kernel, p, truth, a, got) && nothing_beside(kernel, p, truth_names[a], array, image);
    free(image);
    free(got);
    return right;
}

/* The pieces of the keys: piece number `step` is first .. end - 1. Cuts are random: some pieces
 * have no keys. */
enum { MOST_PIECES = 8 };
struct pieces {
    int64_t first[MOST_PIECES], end[MOST_PIECES];
};

/* ---- One problem on one kernel. */

/* All arrays of a problem, on the device. */
struct arrays {
    struct array q, k, v, d_out, mask, o, lse, carry_o, carry_max, carry_sum, delta, dq, dk, dv;
    int *semaphores;
    int64_t semaphore_count;
    struct ra_kernel kernel;       /* of the whole problem */
    struct array heads, places[2]; /* of extras: sinks, slopes, largest (3, H), and of both sides */

    /* With slices: lists of each use, and of each piece, in this memory. */
    struct ra_work work[RA_WORK_USES][MOST_PIECES];
    struct ra_span keys[MOST_PIECES];
    void *lists[RA_WORK_USES][MOST_PIECES];
};
enum { DEVICE_ARRAYS = 14 };

static struct array *array_number(struct arrays *arrays, int i)
{
    struct array *all[DEVICE_ARRAYS] = {
        &arrays->q,     &arrays->k,   &arrays->v,       &arrays->d_out,     &arrays->mask,
        &arrays->o,     &arrays->lse, &arrays->carry_o, &arrays->carry_max, &arrays->carry_sum,
        &arrays->delta, &arrays->dq,  &arrays->dk,      &arrays->dv};
    return all[i];
}

/* What a kernel is told of the whole problem. */
static void describe_arrays(struct arrays *arrays, const struct sample *s)
{
    const struct trial *p = s->p;
    arrays->kernel =
        (struct ra_kernel){.batch = p->batch,
                           .queries = p->n,
                           .keys = p->m,
                           .heads = p->heads,
                           .key_heads = p->key_heads,
                           .dim = p->dim,
                           .dim_value = value_width(p),
                           .head_map = p->map,
                           .score = {.scale = (float)s->truth.scale, .softcap = (float)p->softcap},
                           .band = p->band,
                           .band_step = p->band_step,
                           .q = from_row(&arrays->q, 0),
                           .k = from_row(&arrays->k, 0),
                           .v = from_row(&arrays->v, 0),
                           .d_out = from_row(&arrays->d_out, 0),
                           .o = from_row(&arrays->o, 0),
                           .lse = from_row(&arrays->lse, 0),
                           .carry_o = from_row(&arrays->carry_o, 0),
                           .carry_max = from_row(&arrays->carry_max, 0),
                           .carry_sum = from_row(&arrays->carry_sum, 0),
                           .delta = from_row(&arrays->delta, 0),
                           .dq = from_row(&arrays->dq, 0),
                           .dk = from_row(&arrays->dk, 0),
                           .dv = from_row(&arrays->dv, 0),
                           .deterministic = p->deterministic};
    if (s->truth.x[MASK])
        arrays->kernel.mask = from_row(&arrays->mask, 0);

    /* Who folds all keys at once may give no carry at all. */
    if (p->pieces == 1 && p->seed % 2 == 0)
        arrays->kernel.carry_o = arrays->kernel.carry_max = arrays->kernel.carry_sum =
            (struct ra_tensor)RA_NO_TENSOR;
}

/* Puts on the device what there is beside the keys: numbers of heads, and places, with others
 * between them. */
static void open_extras(struct arrays *arrays, const struct sample *s)
{
    const struct truth *t = &s->truth;
    const int64_t rows[2] = {t->N, t->M};
    double *heads = truth_numbers(3 * t->H);
    arrays->heads = make_array(PACKED, RA_FLOAT32, 1, 3 * t->H, 1, 1, false);
    memcpy(heads, s->sink, (size_t)t->H * sizeof *heads);
    memcpy(heads + t->H, s->slopes, (size_t)t->H * sizeof *heads);
    put(&arrays->heads, heads, NULL);
    free(heads);
    struct ra_tensor *const of_heads[] = {&arrays->kernel.sink, &arrays->kernel.slopes,
                                          &arrays->kernel.largest};
    for (int i = 0; i < 3; i++) {
        *of_heads[i] = from_row(&arrays->heads, i * t->H);
        of_heads[i]->head = of_heads[i]->row;
    }
    for (int side = 0; side < 2; side++) {
        struct array *places = &arrays->places[side];
        *places = make_array(PACKED, RA_FLOAT32, 1, rows[side], 1, 1, true);
        for (int64_t i = 0; i < rows[side]; i++) {
            int32_t at = (int32_t)s->places[side][i];
            memcpy(places->image + place(places, 0, i, 0), &at, sizeof at);
        }
        send(places);
    }
    arrays->kernel.places_ascend = s->p->seed % 3 > 0;
    arrays->kernel.query_place = from_row(&arrays->places[0], 0);
    arrays->kernel.key_place = from_row(&arrays->places[1], 0);
}

static void close_extras(struct arrays *arrays)
{
    free_array(&arrays->heads);
    free_array(&arrays->places[0]);
    free_array(&arrays->places[1]);
}

/* Is the largest score of each head right? */
static bool largest_is_right(const struct kernel *kernel, const struct sample *s,
                             const struct arrays *arrays)
{
    const struct truth *t = &s->truth;
    unsigned char *image = fetch(&arrays->heads);
    double *got = numbers_of(&arrays->heads, image);
    bool right = nothing_beside(kernel, s->p, "numbers of heads", &arrays->heads, image);
    for (int64_t h = 0; h < t->H && right; h++) {
        double most = got[2 * t->H + h], allowed = 2 * t->largest_error[h] + 0x1p-126;
        right = most == t->largest[h] || fabs(most - t->largest[h]) <= allowed ||
                wrong(kernel, s->p, "largest score of head %" PRId64 ": %.9g, not %.9g", h, most,
                      t->largest[h]);
    }
    free(got);
    free(image);
    return right;
}

/* Puts the sample on the device. Outputs are NaN, gradients what they are added to. */
static void open_arrays(struct arrays *arrays, const struct sample *s)
{
    const struct trial *p = s->p;
    int64_t B = p->batch, n = p->n, m = p->m, H = p->heads, G = p->key_heads, D = p->dim,
            D_v = value_width(p);
    enum order order = p->order, carry_order = p->odd_carry ? SHIFTED : order;
    const struct truth *t = &s->truth;
    enum ra_type type = t->type[Q];
    *arrays = (struct arrays){
        .q = make_array(order, type, B, n, H, D, true),
        .k = make_array(order, type, B, m, G, D, true),
        .v = make_array(order, type, B, m, G, D_v, true),
        .d_out = make_array(order, type, B, n, H, D_v, true),
        .mask = make_array(order == HEADS_FIRST ? PLAIN : order, RA_BOOL, B, m, 1, 1, true),
        .o = make_array(order, t->type[O], B, n, H, D_v, false),
        .lse = make_array(order, RA_FLOAT32, B, n, H, 1, false),
        .carry_o = make_array(carry_order, RA_FLOAT32, B, n, H, D_v, false),
        .carry_max = make_array(carry_order, RA_FLOAT32, B, n, H, 1, false),
        .carry_sum = make_array(carry_order, RA_FLOAT32, B, n, H, 1, false),
        .delta = make_array(order, RA_FLOAT32, B, n, H, 1, true),
        .dq = make_array(order, RA_FLOAT32, B, n, H, D, false),
        .dk = make_array(order, RA_FLOAT32, B, m, G, D, false),
        .dv = make_array(order, RA_FLOAT32, B, m, G, D_v, false),
    };
    put(&arrays->q, t->x[Q], NULL);
    put(&arrays->k, t->x[K], t->x[MASK]);
    put(&arrays->v, t->x[V], t->x[MASK]);
    put(&arrays->d_out, t->x[D_OUT], NULL);
    put(&arrays->delta, t->x[DELTA], NULL);
    put(&arrays->dq, t->before[DQ], NULL);
    put(&arrays->dk, t->before[DK], NULL);
    put(&arrays->dv, t->before[DV], NULL);
    if (t->x[MASK])
        put(&arrays->mask, t->x[MASK], NULL);
    struct array *const as_made[] = {&arrays->mask,    &arrays->o,         &arrays->lse,
                                     &arrays->carry_o, &arrays->carry_max, &arrays->carry_sum};
    for (int i = 0; i < 6; i++)
        send(as_made[i]);

    describe_arrays(arrays, s);
    arrays->semaphore_count = ra_kernel_semaphores(&arrays->kernel);
    size_t bytes = (size_t)arrays->semaphore_count * sizeof(int) + 1;
    check(cudaMalloc((void **)&arrays->semaphores, bytes), "memory on the device");
    check(cudaMemset(arrays->semaphores, 0, bytes), "memory on the device");
    arrays->kernel.semaphores = arrays->semaphores;
    if (p->extras)
        open_extras(arrays, s);
}

static void close_arrays(struct arrays *arrays)
{
    if (arrays->kernel.sink.data)
        close_extras(arrays);
    for (int i = 0; i < DEVICE_ARRAYS; i++)
        free_array(array_number(arrays, i));
    check(cudaFree(arrays->semaphores), "free");
    for (int i = 0; i < RA_WORK_USES * MOST_PIECES; i++)
        check(cudaFree(arrays->lists[i / MOST_PIECES][i % MOST_PIECES]), "free");
}

static struct pieces cut(const struct trial *p)
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

/* Makes the lists of one use. With keys that stay, those of each piece are counted from its first
 * one. */
static void make_lists(struct arrays *arrays, const struct trial *p, const struct pieces *pieces,
                       enum ra_type type, enum ra_work_use use)
{
    int64_t widest = ra_max(p->dim, p->dim_value);
    int rows = ra_work_rows(type, widest, p->deterministic, use);
    for (int i = 0; i < p->pieces; i++)
        arrays->keys[i] = (struct ra_span){pieces->first[i], 1, pieces->end[i] - pieces->first[i]};
    for (int i = 0; i < p->pieces && use == RA_WORK_BACKWARD; i++)
        arrays->lists[use][i] = work_make(p->slices, p->slice_count, p->n, &arrays->keys[i], 1, use,
                                          rows, &arrays->work[use][i]);
    if (use != RA_WORK_BACKWARD)
        arrays->lists[use][0] = work_make(p->slices, p->slice_count, p->n, arrays->keys, p->pieces,
                                          use, rows, arrays->work[use]);
}

/* What a kernel is told of one piece. */
static struct ra_kernel piece_of(const struct arrays *arrays, const struct pieces *pieces, int step,
                                 int count)
{
    struct ra_kernel kernel = arrays->kernel;
    int64_t first = pieces->first[step];
    kernel.keys = pieces->end[step] - first;
    kernel.band = ra_band_from(kernel.band, 0, first);
    kernel.k = from_row(&arrays->k, first);
    kernel.v = from_row(&arrays->v, first);
    kernel.dk = from_row(&arrays->dk, first);
    kernel.dv = from_row(&arrays->dv, first);
    if (kernel.mask.data)
        kernel.mask = from_row(&arrays->mask, first);
    if (kernel.key_place.data)
        kernel.key_place = from_row(&arrays->places[1], first);
    kernel.first = step == 0;
    kernel.last = step == count - 1;
    return kernel;
}

/* The sample with only the keys of the first `count` pieces: what a carry, in float32, knows
 * then. */
static struct truth part_of(const struct sample *s, const struct pieces *pieces, int count)
{
    struct truth part = s->truth;
    int64_t m = part.M;
    for (int a = 0; a < TRUTHS; a++) {
        bool input = !truth_is_output(a);
        part.x[a] = input ? part.x[a] : NULL;
        part.plain[a] = part.magnitude[a] = part.rounding[a] = part.allowed[a] = NULL;
    }
    part.type[O] = RA_FLOAT32;
    part.sink = NULL; /* it joins at the end */
    part.largest = part.largest_error = part.d_sink = part.d_sink_error = NULL;
    part.x[MASK] = truth_numbers(part.B * m);
    for (int i = 0; i < count; i++)
        for (int64_t b = 0; b < part.B; b++)
            for (int64_t c = pieces->first[i]; c < pieces->end[i]; c++)
                part.x[MASK][b * m + c] = !s->truth.x[MASK] || s->truth.x[MASK][b * m + c] != 0;
    truth_forward(&part);
    return part;
}

static void forget_part(struct truth *part)
{
    part->x[Q] = part->x[K] = part->x[V] = part->x[D_OUT] = NULL; /* the sample's */
    truth_clear(part);
}

/* Gives the kernel the carry of the first piece. Its maximum may be any number near the scores':
 * here it is such that the sum of each row is e. */
static void put_carry(struct arrays *arrays, const struct sample *s, const struct pieces *pieces)
{
    struct truth part = part_of(s, pieces, 1);
    int64_t rows = truth_count(&part, LSE), D = truth_width(&part, O);
    double *sum = truth_numbers(rows);
    for (int64_t i = 0; i < rows; i++) {
        sum[i] = part.x[LSE][i] > -INFINITY ? exp(1) : 0;
        part.x[LSE][i] -= 1;
        for (int64_t d = 0; d < D; d++)
            part.x[O][i * D + d] *= sum[i];
    }
    put(&arrays->carry_o, part.x[O], NULL);
    put(&arrays->carry_max, part.x[LSE], NULL);
    put(&arrays->carry_sum, sum, NULL);
    free(sum);
    forget_part(&part);
}

/* Is the carry on the device that of the first `count` pieces? Its maximum may be an older one. */
static bool carry_is_right(const struct kernel *kernel, struct arrays *arrays,
                           const struct sample *s, const struct pieces *pieces, int count)
{
    struct truth part = part_of(s, pieces, count);
    struct array *const carry[] = {&arrays->carry_o, &arrays->carry_max, &arrays->carry_sum};
    static const char *const names[] = {"carry_o", "carry_max", "carry_sum"};
    double *got[3];
    bool right = true;
    for (int i = 0; i < 3; i++) {
        unsigned char *image = fetch(carry[i]);
        got[i] = numbers_of(carry[i], image);
        right = right && nothing_beside(kernel, s->p, names[i], carry[i], image);
        free(image);
    }

    /* As o and lse: what a row would be if nothing came after. */
    int64_t rows = truth_count(&part, LSE), D = truth_width(&part, O);
    for (int64_t i = 0; i < rows; i++) {
        bool seen = got[2][i] != 0;
        for (int64_t d = 0; d < D; d++)
            got[0][i * D + d] = got[0][i * D + d] / (seen ? got[2][i] : 1);
        got[1][i] += log(got[2][i]);
    }
    right =
        right && judged(kernel, s->p, &part, O, got[0]) && judged(kernel, s->p, &part, LSE, got[1]);
    for (int i = 0; i < 3; i++)
        free(got[i]);
    forget_part(&part);
    return right;
}

static bool launched(const struct kernel *kernel, const struct trial *p, const char *what,
                     cudaError_t error)
{
    if (error == cudaSuccess)
        error = cudaDeviceSynchronize();
    return error == cudaSuccess || wrong(kernel, p, "%s: %s", what, cudaGetErrorString(error));
}

/* The semaphores must be ready for the next launch. */
static bool semaphores_ready(const struct kernel *kernel, const struct arrays *arrays,
                             const struct sample *s)
{
    int *semaphores = zeros(arrays->semaphore_count, sizeof *semaphores);
    check(cudaMemcpy(semaphores, arrays->semaphores,
                     (size_t)arrays->semaphore_count * sizeof *semaphores, cudaMemcpyDeviceToHost),
          "fetch");
    int64_t t = 0;
    while (t < arrays->semaphore_count && semaphores[t] == 0)
        t++;
    bool zero = t == arrays->semaphore_count;
    if (!zero)
        wrong(kernel, s->p, "semaphores[%" PRId64 "] is %d after the launch", t, semaphores[t]);
    free(semaphores);
    return zero;
}

static bool run_forward(const struct kernel *kernel, struct arrays *arrays, const struct sample *s)
{
    const struct trial *p = s->p;
    struct pieces pieces = cut(p);
    if (p->given_carry)
        put_carry(arrays, s, &pieces);
    if (p->extras &&
        !launched(kernel, p, "the beginning", ra_kernel_begin_largest(&arrays->kernel, 0)))
        return false;
    for (int step = p->given_carry; step < p->pieces; step++) {
        struct ra_kernel piece = piece_of(arrays, &pieces, step, p->pieces);
        piece.work = arrays->work[RA_WORK_FORWARD][step];
        if (p->slices && piece.work.count == 0)
            continue;
        bool takes = true;
        if (p->slices && kernel->rung == &ra_ladder[RA_K07])
            check(ra_k07_takes_forward(&piece, &takes), "what is taken");
        if (!takes && piece.keys > 0)
            return wrong(kernel, p, "the forward does not take this list");
        if (!takes) {
            /* Rows that see nothing at any step: the others come later. */
            piece.work.count = 0;
            piece.band = (struct ra_band){1, 0};
            piece.first = piece.last = true;
        }
        if (p->seed % 4 == 1 && !p->slices)
            piece.semaphores = NULL; /* without, k07 draws no tiles */
        if (!launched(kernel, p, "forward", kernel->rung->forward(&piece, 0)))
            return false;
        if (p->check_carry && !piece.last && !carry_is_right(kernel, arrays, s, &pieces, step + 1))
            return false;
    }
    if (p->extras && !launched(kernel, p, "the end", ra_kernel_end_largest(&arrays->kernel, 0)))
        return false;
    return semaphores_ready(kernel, arrays, s);
}

static bool run_backward(const struct kernel *kernel, struct arrays *arrays, const struct sample *s)
{
    struct pieces pieces = cut(s->p);
    for (int step = 0; step < s->p->pieces; step++) {
        struct ra_kernel piece = piece_of(arrays, &pieces, step, s->p->pieces);
        piece.work = arrays->work[RA_WORK_BACKWARD][step];
        piece.dq_work = arrays->work[RA_WORK_DQ][step];
        if (s->p->slices && piece.work.count == 0)
            continue;
        if (!launched(kernel, s->p, "backward", kernel->rung->backward(&piece, 0)))
            return false;
    }
    return semaphores_ready(kernel, arrays, s);
}

/* Runs again and again, which must give the same bits in these outputs. */
static bool same_again(const struct kernel *kernel, struct arrays *arrays, const struct sample *s,
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
        same = run(kernel, arrays, s);
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

/* Gradients that a kernel writes, in the inputs' type or in float32, must be those that it adds to
 * 0, rounded; what it says that it cannot write, it must refuse. */
static bool writes_what_it_adds(const struct kernel *kernel, enum ra_type type,
                                struct arrays *arrays, const struct sample *s)
{
    const struct trial *p = s->p;
    struct array *const sums[] = {&arrays->dq, &arrays->dk, &arrays->dv};
    struct ra_kernel writing = arrays->kernel;
    struct ra_tensor *const tensors[] = {&writing.dq, &writing.dk, &writing.dv};
    struct array written[3];
    writing.writes_keys = type == RA_FLOAT32;
    for (int i = 0; i < 3; i++) {
        struct array *sum = sums[i];
        double *none = truth_numbers(sum->batch * sum->rows * sum->heads * sum->dim);
        put(sum, none, NULL);
        free(none);
        written[i] = make_array(p->order, type, sum->batch, sum->rows, sum->heads, sum->dim, false);
        send(&written[i]);
        *tensors[i] = from_row(&written[i], 0);
    }
    bool keys, queries;
    check(kernel->rung->writes(&writing, &keys, &queries), "what is written");
    bool all = type == RA_FLOAT32 ? keys && !queries : queries;
    bool good = all || kernel->rung->backward(&writing, 0) == cudaErrorNotSupported ||
                wrong(kernel, p, "gradients that it does not write are not refused");
    if (!queries) { /* dq is added, as ever: judged after the first launch */
        put(&arrays->dq, s->truth.before[DQ], NULL);
        writing.dq = from_row(&arrays->dq, 0);
    }
    if (good && keys)
        good = launched(kernel, p, "backward", kernel->rung->backward(&writing, 0)) &&
               (queries || is_right(kernel, p, &s->truth, DQ, &arrays->dq));
    if (good && keys)
        good = launched(kernel, p, "backward", kernel->rung->backward(&arrays->kernel, 0));
    for (int i = queries ? 0 : 1; i < 3 && good && keys; i++) {
        unsigned char *images[] = {fetch(&written[i]), fetch(sums[i])};
        double *got = numbers_of(&written[i], images[0]);
        double *hoped = numbers_of(sums[i], images[1]);
        int64_t count = written[i].batch * written[i].rows * written[i].heads * written[i].dim;
        good = nothing_beside(kernel, p, truth_names[DQ + i], &written[i], images[0]);
        for (int64_t e = 0; e < count && good; e++) {
            double rounded = number_rounded(type, hoped[e]);

            /* What is added to 0 in memory is 0 if it is below the smallest normal number, to which
             * what is written may be rounded. */
            bool flushed = hoped[e] == 0 && fabs(got[e]) <= (double)FLT_MIN;
            good = got[e] == rounded || (isnan(got[e]) && isnan(rounded)) || flushed ||
                   wrong(kernel, p, "%s[%" PRId64 "]: writes %g, adds %g", truth_names[DQ + i], e,
                         got[e], hoped[e]);
        }
        for (int j = 0; j < 2; j++)
            free(images[j]);
        free(got);
        free(hoped);
    }
    for (int i = 0; i < 3; i++)
        free_array(&written[i]);
    written_count += good && keys;
    return good;
}

/* The whole of a problem on one kernel: forward, then backward from what is right. */
static bool solves(const struct kernel *kernel, const struct sample *s)
{
    const struct trial *p = s->p;
    struct arrays x;
    open_arrays(&x, s);
    struct pieces pieces = cut(p);
    for (int use = 0; use < RA_WORK_USES && p->slices; use++)
        make_lists(&x, p, &pieces, kernel->type, (enum ra_work_use)use);
    struct array *const forward[] = {&x.o, &x.lse}, *const backward[] = {&x.dq, &x.dk, &x.dv};
    bool good = run_forward(kernel, &x, s) && is_right(kernel, p, &s->truth, O, &x.o) &&
                is_right(kernel, p, &s->truth, LSE, &x.lse) &&
                (!p->extras || largest_is_right(kernel, s, &x)) &&
                same_again(kernel, &x, s, run_forward, forward, &truth_names[O], 2);

    /* A single piece has no carry: what was there must still be. */
    struct array *const carry[] = {&x.carry_o, &x.carry_max, &x.carry_sum};
    for (int i = 0; i < 3 && good && p->pieces == 1; i++) {
        unsigned char *image = fetch(carry[i]);
        good = memcmp(image, carry[i]->image, (size_t)carry[i]->bytes) == 0 ||
               wrong(kernel, p, "the carry was written, though first and last");
        free(image);
    }

    x.kernel.work = x.work[RA_WORK_BACKWARD][0];
    x.kernel.dq_work = x.work[RA_WORK_DQ][0];
    put(&x.lse, s->truth.x[LSE], NULL);
    good = good && run_backward(kernel, &x, s) && is_right(kernel, p, &s->truth, DQ, &x.dq) &&
           is_right(kernel, p, &s->truth, DK, &x.dk) && is_right(kernel, p, &s->truth, DV, &x.dv);
    if (good && p->deterministic)
        good = same_again(kernel, &x, s, run_backward, backward, &truth_names[DQ], 3);
    if (good && p->pieces == 1 && kernel->rung->writes)
        good = writes_what_it_adds(kernel, kernel->type, &x, s) &&
               writes_what_it_adds(kernel, RA_FLOAT32, &x, s);

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

/* A problem on every kernel that is asked for; what is right is computed once per type. */
static void try(const struct trial *p)
{
    static const enum ra_type types[] = {RA_FLOAT32, RA_BFLOAT16, RA_FLOAT16};
    for (int t = 0; t < 3; t++) {
        struct sample s;
        bool solved = false;
        for (int k = 0; k < KERNELS; k++) {
            bool takes =
                p->slices
                    ? kernels[k].rung == &ra_ladder[RA_K07] || kernels[k].rung == &ra_ladder[RA_K02]
                    : !ra_has_steps(p->band_step) || kernels[k].rung->backward != ra_k03_backward;
            takes = takes && !(p->extras && kernels[k].rung == &ra_ladder[RA_K01]);
            if (!takes || kernels[k].type != types[t] || !chosen(kernels[k].name, p->name))
                continue;
            if (!solved)
                s = sample_of(p, types[t]);
            solved = true;
            verdict_count(solves(&kernels[k], &s));
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
static struct trial random_problem(uint64_t seed, int64_t n, int64_t m)
{
    static const double scales[] = {1, 1, 1, 30, -1, 0, 0.1}, caps[] = {0, 0, 0, 5, 0.5, 50};
    struct trial p = {.name = "random", .n = n, .m = m, .seed = seed};
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
    if (random_below(&state, 4) == 0)
        p.dim_value = dims[random_below(&state, DIMS)];

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
        struct trial p =
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
    struct trial p = ordinary("many keys", 70, 100000);
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
        struct trial plain = ordinary("dims", 65, 130);
        plain.dim = dim;
        plain.seed = (uint64_t)dim;
        struct trial mixed = random_problem((uint64_t)(2000 + dim), 129, 200);
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
        struct trial p = ordinary("bands hi", 150, 140);
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
        struct trial p = ordinary("bands none", 150, 140);
        p.band = none[i];
        try(&p);
        p.pieces = 3;
        try(&p);
    }
}

/* Edges with steps that divide tiles, that do not, and that are larger. */
static void try_steps(void)
{
    static const int steps[] = {2, 3, 7, 16, 50, 64, 100, 128, 200, 1000};
    static const int64_t widths[] = {64, 128, 40, 256};
    for (int i = 0; i < 10 * 3 * 4; i++) {
        uint64_t state = (uint64_t)(9400 + i);
        int step = steps[i / 12];
        struct trial p = ordinary("steps", 200 + random_below(&state, 300), 0);
        if (quick && i % 4 != i / 12 % 4)
            continue;
        p.m = 200 + random_below(&state, 300);
        p.seed = (uint64_t)(9400 + i);
        p.dim = widths[i % 4];
        p.heads = i % 5 == 0 ? 4 : 2;
        p.key_heads = 2;
        p.deterministic = i / 4 % 2;
        p.mask = i % 7 == 3 ? RANDOM : NO_MASK;
        p.pieces = i % 6 == 5 ? 2 : 1;
        p.band_step = (struct ra_band_step){i / 4 % 3 != 0 ? step : 0, i / 4 % 3 != 1 ? step : 0};
        p.band.hi = p.m - p.n + random_below(&state, 150) - 50;
        p.band.lo =
            p.band_step.lo > 0 || i % 3 == 0 ? p.band.hi - random_below(&state, 400) : -RA_BAND_FAR;
        try(&p);
    }
}

/* Where k07's blocks go in pairs: backward in the first four, where there are many queries, or keys
 * that all see; then forward, where no or few rows are missing from the last pair, and there are
 * many keys or a carry. A band cuts tiles. The last block of keys of a head has none; of rows, the
 * second block of the first pair has all, two of three warpgroups, or none. */
static void try_pairs(void)
{
    static const struct {
        int64_t rows, keys, dim;
        int pieces;
        bool causal, masked;
    } shapes[] = {{4500, 129, 128, 1, true, false},  {4500, 256, 72, 1, true, false},
                  {4500, 200, 72, 1, false, true},   {70, 4100, 72, 1, false, true},
                  {384, 4300, 128, 1, false, false}, {380, 7000, 72, 1, true, false},
                  {380, 7000, 128, 1, true, true},   {768, 900, 128, 3, false, true},
                  {384, 500, 64, 2, false, true},    {250, 4200, 200, 1, true, false},
                  {2240, 300, 128, 2, false, false}, {12300, 100, 72, 2, false, true}};
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++) {
        struct trial p = ordinary("pairs", shapes[i].rows, shapes[i].keys);
        p.seed = (uint64_t)(9600 + i);
        p.dim = shapes[i].dim;
        p.pieces = shapes[i].pieces;
        p.mask = shapes[i].masked ? RANDOM : NO_MASK;
        p.softcap = i == 2 ? 5 : 0;
        p.band.hi = !shapes[i].causal ? RA_BAND_FAR : i < 2 ? 90 : p.m - p.n;
        p.band.lo = i == 2 ? -4300 : -RA_BAND_FAR;
        try(&p);
    }
}

/* Where an edge of the band meets one of a tile: the first query and the last key of a tile that is
 * whole, or no longer is, of every kernel's sizes of tiles. */
static void try_edges(void)
{
    enum { EDGES = 5 };
    static const int64_t rows[] = {64, 128, 192}, keys[EDGES] = {64, 80, 128, 176, 192};
    for (int i = 0; i < EDGES * 3 * 3 * 3; i++) {
        int64_t slip = i / EDGES / 3 % 3 - 1, edge = keys[i % EDGES];
        struct trial p = ordinary("edges", 192, 400);
        p.seed = (uint64_t)(9000 + i);
        p.dim = 64 << i / EDGES / 9;
        p.band.lo = edge - rows[i / EDGES % 3] + 1 + slip;
        try(&p);
        p.band = (struct ra_band){-RA_BAND_FAR, edge - 1 + slip};
        if (i / EDGES % 3 == 0)
            try(&p);
    }
}

/* Where k07's tiles of keys overlap, forward: with many keys, or a carry, or more than 128 numbers.
 * One tile, one key more, two, several; with cut tiles in front, in the middle, and at the end; and
 * with scores that are more than a product. */
static void try_overlaps(void)
{
    static const struct {
        int64_t rows, keys, dim;
        int pieces;
        int64_t lo, hi;
        bool masked;
        float softcap, scale_times;
    } shapes[] = {{200, 4500, 64, 1, -RA_BAND_FAR, RA_BAND_FAR, false, 0, 1},
                  {200, 4500, 64, 1, -RA_BAND_FAR, 4300, false, 0, 1},
                  {200, 4500, 40, 1, 1000, 3000, false, 0, 1},
                  {130, 4400, 56, 1, -RA_BAND_FAR, RA_BAND_FAR, true, 0, 1},
                  {130, 4400, 64, 1, 3, RA_BAND_FAR, false, 5, 1},
                  {130, 4400, 64, 1, -RA_BAND_FAR, RA_BAND_FAR, false, 0, -1},
                  {192, 128, 64, 2, -RA_BAND_FAR, RA_BAND_FAR, false, 0, 1},
                  {300, 700, 64, 2, -RA_BAND_FAR, 400, true, 0, 1},
                  {128, 80, 256, 1, -RA_BAND_FAR, RA_BAND_FAR, false, 0, 1},
                  {128, 81, 256, 1, -RA_BAND_FAR, RA_BAND_FAR, false, 0, 1},
                  {60, 160, 200, 1, -RA_BAND_FAR, 100, false, 0, 1},
                  {300, 700, 256, 1, -RA_BAND_FAR, 400, false, 0, 1},
                  {300, 700, 256, 1, 100, 300, false, 0, 1},
                  {300, 700, 136, 2, -RA_BAND_FAR, RA_BAND_FAR, true, 0, 1},
                  {300, 700, 256, 1, -RA_BAND_FAR, RA_BAND_FAR, false, 5, 1},
                  {256, 900, 256, 3, -RA_BAND_FAR, RA_BAND_FAR, false, 0, 1},
                  {300, 300, 256, 1, -100, 0, false, 0, 16},
                  {300, 500, 256, 1, 84, 90, true, 0, 16},
                  {128, 2176, 192, 1, -RA_BAND_FAR, RA_BAND_FAR, false, 0, 1},
                  {128, 2177, 192, 1, -RA_BAND_FAR, RA_BAND_FAR, false, 0, 1},
                  {300, 2700, 192, 1, -RA_BAND_FAR, 2400, false, 0, 1},
                  {300, 2700, 192, 1, 100, 300, true, 5, 1},
                  {256, 900, 192, 3, -RA_BAND_FAR, RA_BAND_FAR, false, 0, -1},
                  {300, 2500, 192, 1, 2084, 2090, true, 0, 16}};
    for (int i = 0; i < (int)(sizeof shapes / sizeof *shapes); i++) {
        struct trial p = ordinary("overlaps", shapes[i].rows, shapes[i].keys);
        p.seed = (uint64_t)(9700 + i);
        p.dim = shapes[i].dim;
        p.dim_value = p.dim == 192 ? 128 : 0;
        p.pieces = shapes[i].pieces;
        p.band = (struct ra_band){shapes[i].lo, shapes[i].hi};
        p.mask = shapes[i].masked ? RANDOM : NO_MASK;
        p.softcap = shapes[i].softcap;
        p.scale_times = shapes[i].scale_times;
        try(&p);
    }
}

/* Values of another width than keys: of k07 in tiles made for that, with everything in them, and in
 * tiles as wide as the wider of the two. */
static void try_values(void)
{
    static const int64_t of_both[][2] = {{192, 128}, {192, 64}, {136, 128}, {192, 136}, {64, 128},
                                         {128, 64},  {40, 72},  {256, 8},   {8, 256},   {33, 20}};
    for (int i = 0; i < (quick ? 40 : 120); i++) {
        uint64_t state = (uint64_t)(9900 + i);
        bool many_keys = i % 8 == 7; /* more than persistent blocks take */
        int64_t n = 1 + random_below(&state, many_keys ? 130 : 300),
                m = many_keys ? 2200 : 1 + random_below(&state, 400);
        struct trial p = random_problem(state, n, m);
        if (many_keys)
            p.batch = p.heads = p.key_heads = 1;
        p.name = "values";
        p.seed = (uint64_t)(9900 + i);
        p.dim = of_both[i % 3 ? 0 : i / 3 % 10][0];
        p.dim_value = of_both[i % 3 ? 0 : i / 3 % 10][1];
        p.check_carry = p.pieces > 1;
        p.extras = i % 5 == 4;
        if (i % 2)
            p.order = (enum order)(i / 2 % UNEVEN);
        if (i % 4 == 1) {
            p.batch = 1;
            p.mask = NO_MASK;
            p.softcap = 0;
            p.scale_times = 1;
        }
        try(&p);
    }
}

/* More tiles of queries than a GPU has multiprocessors, each with several tiles of keys: a block of
 * threads that takes one after the other has to keep them apart. */
static void try_turns(void)
{
    for (int i = 0; i < 4; i++) {
        struct trial p = ordinary("turns", 8, 400);
        p.seed = (uint64_t)(9200 + i);
        p.batch = 20;
        p.heads = 16;
        p.key_heads = 4;
        p.dim = i % 2 ? 128 : 64;
        p.mask = i / 2 ? RANDOM : NO_MASK;
        if (i / 2)
            p.band.hi = 300;
        try(&p);
    }

    /* Each with so many keys that it draws the next one when most of them are done. */
    for (int i = 0; i < 5; i++) {
        struct trial p = ordinary("turns", 8, 1500);
        p.seed = (uint64_t)(9210 + 2 * i);
        p.batch = 10;
        p.heads = 16;
        p.dim = i == 3 ? 256 : i == 4 ? 192 : i % 2 ? 128 : 64;
        p.dim_value = i == 4 ? 128 : 0;
        p.key_heads = 2;
        if (i / 2)
            p.band.hi = 1000;
        try(&p);
    }
}

/* Every mask, order of arrays, head map, type of o, scale and soft cap, on tiles that are whole and
 * on such that are not. */
static void try_features(void)
{
    for (int whole = 0; whole < 2; whole++) {
        struct trial plain = ordinary("features", 129, 333);
        plain.seed = 7;
        if (whole) {
            plain.n = 128;
            plain.m = 384;
            plain.dim = 128;
        }
        plain.batch = 2;
        plain.heads = 4;
        plain.key_heads = 2;
        struct trial p;
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
    static const int64_t rows[] = {130, 380, 250};
    for (int i = 0; i < (quick ? 8 : 60); i++) {
        bool in_boxes = i % ORDERS < UNEVEN && i % 8 != 6;
        int64_t keys = i % 10 == 7 ? 3 : 333; /* 3 keys in 5 pieces: some are empty */
        struct trial p = ordinary(in_boxes ? "carry ahead" : "carry", rows[i % 7 % 3], keys);
        p.seed = (uint64_t)(5000 + i);
        p.dim = i % 10 == 9 ? 200 : i % 3 == 0 ? 128 : i % 3 == 1 ? 64 : 80;
        if (i % 5 == 3) {
            p.dim = 192;
            p.dim_value = 128;
        }
        p.batch = 1 + i % 2;
        p.heads = 2;
        p.key_heads = 1 + i / 2 % 2;
        p.pieces = i % 2 ? 5 : 2;
        p.shuffled = i / 2 % 2;
        p.given_carry = i / 4 % 2;
        p.check_carry = true;
        p.mask = i % 5 ? (enum masks)(i % MASKS) : NO_MASK;
        p.order = (enum order)(i % ORDERS);
        p.odd_carry = i % 8 == 6;
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
        struct trial p = ordinary("repeats", 700, 650);
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
    struct trial p = ordinary("many batches", 2, 1);
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
static void move_rows(const struct array *array, unsigned char *far, int64_t stride, bool back)
{
    int64_t size = ra_type_bytes(array->at.type);
    for (int64_t a = 0; a < array->rows; a++) {
        unsigned char *here = array->device + place(array, 0, a, 0),
                      *there = far + a * stride * size;
        check(cudaMemcpy(back ? here : there, back ? there : here, (size_t)(array->dim * size),
                         cudaMemcpyDeviceToDevice),
              "move rows");
    }
}

/* Rows so far apart that an offset passes 2^31 numbers: first the keys' arrays, then the
 * queries'. */
static void try_far_rows(void)
{
    enum { FAR_ARRAYS = 4 };
    const int64_t stride = (INT64_C(1) << 29) + 8;
    struct trial p = ordinary("far rows", 6, 6);
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
            put(&x.lse, s.truth.x[LSE], NULL);
            bool good = launched(kernel, &p, "forward", kernel->rung->forward(of, 0)) &&
                        launched(kernel, &p, "backward", kernel->rung->backward(of, 0));
            for (int a = 0; a < FAR_ARRAYS; a++)
                move_rows(arrays[a], far[a], stride, true);
            verdict_count(good && is_right(kernel, &p, &s.truth, O, &x.o) &&
                          is_right(kernel, &p, &s.truth, DQ, &x.dq) &&
                          is_right(kernel, &p, &s.truth, DK, &x.dk) &&
                          is_right(kernel, &p, &s.truth, DV, &x.dv));
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
        struct trial p = ordinary("refusals", 3, 3);
        p.dim = RA_MOST_DIM + 1;
        struct sample s = sample_of(&p, kernels[k].type);
        struct arrays x;
        open_arrays(&x, &s);
        x.kernel.first = x.kernel.last = true;
        verdict_count(kernels[k].rung->forward(&x.kernel, 0) == cudaErrorNotSupported ||
                      wrong(&kernels[k], &p, "forward of dim 257 is not refused"));
        verdict_count(kernels[k].rung->backward(&x.kernel, 0) == cudaErrorNotSupported ||
                      wrong(&kernels[k], &p, "backward of dim 257 is not refused"));
        x.kernel.dim = 8;
        verdict_count(kernels[k].rung->forward(&x.kernel, 0) == cudaErrorNotSupported ||
                      wrong(&kernels[k], &p, "forward of values of 257 is not refused"));
        verdict_count(kernels[k].rung->backward(&x.kernel, 0) == cudaErrorNotSupported ||
                      wrong(&kernels[k], &p, "backward of values of 257 is not refused"));
        x.kernel.dim_value = 8;
        x.kernel.q.type = x.kernel.k.type = x.kernel.v.type = x.kernel.d_out.type =
            is_k03 ? RA_FLOAT32 : RA_FLOAT16;
        verdict_count(kernels[k].rung->forward(&x.kernel, 0) == cudaErrorNotSupported ||
                      wrong(&kernels[k], &p, "forward of a type it has not is not refused"));
        verdict_count(kernels[k].rung->backward(&x.kernel, 0) == cudaErrorNotSupported ||
                      wrong(&kernels[k], &p, "backward of a type it has not is not refused"));
        close_arrays(&x);
        forget_sample(&s);
    }
}

/* A problem whose gradients, at least dk and dv, are written, or not, by kernels that can. */
static void try_written(const struct trial *p, bool of_bfloat16, bool of_float16)
{
    int before = written_count, hoped = 0;
    try(p);
    for (int k = 0; k < KERNELS; k++)
        hoped += 2 * (kernels[k].rung->writes && chosen(kernels[k].name, p->name) &&
                      (kernels[k].type == RA_BFLOAT16 ? of_bfloat16 : of_float16));
    verdict_count(
        written_count - before == hoped ||
        wrong(NULL, p, "gradients were written %d times, not %d", written_count - before, hoped));
}

/* On a GPU of compute capability 9.0 gradients of ordinary arrays can be written; not those that
 * are sums over more rows than one launch adds up well. */
static void try_writes(void)
{
    int capability, device;
    check(cudaGetDevice(&device), "the device");
    check(cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, device),
          "the device");
    for (int i = 0; i < 8; i++) {
        struct trial p = ordinary("writes", 300, 300);
        p.seed = (uint64_t)(9000 + i);
        p.dim = i % 4 == 0 ? 64 : i % 4 == 1 ? 128 : i % 4 == 2 ? 256 : 192;
        p.dim_value = p.dim == 192 ? 128 : 0;
        p.deterministic = i >= 4;
        p.band = (struct ra_band){-400, -150}; /* tiles of keys, and of queries, see nothing */
        try_written(&p, capability == 9, capability == 9);
    }
    for (int i = 0; i < 2; i++) {
        struct trial p = i == 0 ? ordinary("writes", 17000, 9) : ordinary("writes", 9, 132000);
        p.heads = i == 0 ? 8 : 1; /* of one key head */
        p.dim = 8;
        p.deterministic = true;
        try_written(&p, capability == 9 && i == 1, capability == 9 && i == 1);
    }

    /* A launch may add up 32,768 queries in float16; of steps of three that are whole 32,766. */
    for (int i = 0; i < 2; i++) {
        struct trial p = ordinary("writes", 32767, 9);
        p.dim = 8;
        p.deterministic = i;
        p.band_step.hi = 3;
        try_written(&p, capability == 9, false);
    }
}

/* What depends on the sizes of tiles, on such a GPU. */
static void try_small_tiles(const char *name)
{
    struct trial p;

    /* Offsets of a window around the sizes of tiles. */
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
}

/* k03 on a GPU that has no such tensor cores. */
static void refuse_old_device(const char *name)
{
    const struct trial p = ordinary(name, 1, 1);
    for (int k = 0; k < KERNELS; k++) {
        if (kernels[k].type == RA_FLOAT32 || !chosen(kernels[k].name, name))
            continue;
        struct ra_kernel none = {.batch = 1,
                                 .queries = 1,
                                 .keys = 1,
                                 .heads = 1,
                                 .key_heads = 1,
                                 .dim = 8,
                                 .dim_value = 8,
                                 .q.type = kernels[k].type};
        verdict_count((kernels[k].rung->forward(&none, 0) == cudaErrorNotSupported &&
                       kernels[k].rung->backward(&none, 0) == cudaErrorNotSupported) ||
                      wrong(&kernels[k], &p, "compute capability 7.5 is not refused"));
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
    struct trial p;
    pretended.capability = 8;

    /* Anything, of every dim, with semaphores and without; two of three on 8.6. */
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

    pretended.shared_memory = 99 << 10;
    try_small_tiles(name);
    pretended.shared_memory = 64 << 10;
    pretended.capability = 7;
    refuse_old_device(name);
    pretended.shared_memory = pretended.capability = 0;
}

/* ---- delta, copy and add. */

static const enum ra_type float_types[] = {RA_FLOAT32, RA_FLOAT16, RA_BFLOAT16};

static void try_delta(void)
{
    for (int i = 0; i < 9 * ORDERS && chosen("rows", "delta"); i++) {
        enum ra_type o_type = float_types[i % 3], d_out_type = float_types[i / 3 % 3];
        struct trial p = random_problem((uint64_t)(6000 + i), i == 17 ? 70000 : 65, 1);
        p.name = "delta";
        p.order = (enum order)(i / 9);
        if (i == 17)
            p.batch = p.heads = p.key_heads = p.dim = p.dim_value = 1;
        uint64_t state = p.seed;
        int64_t D = value_width(&p);
        struct truth truth = shape_of(&p, RA_FLOAT32);
        truth.type[D_OUT] = d_out_type;
        truth_make_inputs(&truth, random_normal, 1, &state);
        double *o = random_rows(&state, o_type, truth_count(&truth, O));
        truth_forward(&truth);
        truth_backward(&truth, o);

        struct array x[3] = {
            make_array(p.order, o_type, p.batch, p.n, p.heads, D, true),
            make_array(p.order, d_out_type, p.batch, p.n, p.heads, D, true),
            make_array(p.order, RA_FLOAT32, p.batch, p.n, p.heads, 1, false),
        };
        put(&x[0], o, NULL);
        put(&x[1], truth.x[D_OUT], NULL);
        send(&x[2]);
        struct ra_kernel kernel = {.batch = p.batch,
                                   .queries = p.n,
                                   .keys = 1,
                                   .heads = p.heads,
                                   .key_heads = p.key_heads,
                                   .dim = p.dim,
                                   .dim_value = D,
                                   .o = from_row(&x[0], 0),
                                   .d_out = from_row(&x[1], 0),
                                   .delta = from_row(&x[2], 0)};
        verdict_count(launched(NULL, &p, "delta", ra_kernel_delta(&kernel, 0)) &&
                      is_right(NULL, &p, &truth, DELTA, &x[2]));
        truth_clear(&truth);
        free(o);
        for (int a = 0; a < 3; a++)
            free_array(&x[a]);
    }
}

/* to = from, to = to + from, or to = from + plus, for every pair of types and of orders. */
static void try_copies(const char *name)
{
    bool adds = strcmp(name, "add") == 0, sums = strcmp(name, "sum") == 0;
    for (int i = 0; i < 9 * ORDERS * ORDERS && chosen("rows", name); i += quick ? 7 : 1) {
        enum ra_type to_type = float_types[i % 3], from_type = float_types[i / 3 % 3];
        struct trial p = random_problem((uint64_t)(7000 + i), i % 5 == 0 ? 200 : 33, 1);
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
        int64_t numbers = p.batch * p.n * p.heads * p.dim, same = 0;
        enum ra_type plus_type = adds ? to_type : float_types[i / 2 % 3];
        double *from = random_rows(&state, from_type, numbers);
        double *plus = random_rows(&state, plus_type, numbers);

        struct array x = make_array(p.order, to_type, p.batch, p.n, p.heads, p.dim, false);
        struct array y =
            make_array((enum order)(i / 9 / ORDERS), from_type, p.batch, p.n, p.heads, p.dim, true);
        struct array z = make_array((enum order)((i + i / 9) % ORDERS), plus_type, p.batch, p.n,
                                    p.heads, p.dim, true);
        put(&y, from, NULL);
        put(&z, plus, NULL);
        if (adds)
            put(&x, plus, NULL);
        else
            send(&x);
        struct ra_tensor to = from_row(&x, 0), one = from_row(&y, 0), other = from_row(&z, 0);
        cudaError_t error = adds || sums ? ra_kernel_sum(to, one, adds ? to : other, p.batch, p.n,
                                                         p.heads, p.dim, 0)
                                         : ra_kernel_copy(to, one, p.batch, p.n, p.heads, p.dim, 0);
        bool good = launched(NULL, &p, name, error);
        unsigned char *image = fetch(&x);
        double *got = numbers_of(&x, image);
        while (same < numbers &&
               got[same] == number_rounded(to_type, adds || sums
                                                        ? (float)from[same] + (float)plus[same]
                                                        : from[same]))
            same++;
        good = good && (same == numbers || wrong(NULL, &p, "%s of number %" PRId64, name, same));
        verdict_count(good && nothing_beside(NULL, &p, name, &x, image));
        free(image);
        free(got);
        free(from);
        free(plus);
        free_array(&x);
        free_array(&y);
        free_array(&z);
    }
}

/* ---- One rounded score. */

/* A sample whose scores are all moved by about `shift`, by the first number of q and k, and whose
 * keys are all moved by `offset`. Its gradients are added to 0, and its plain twin has an o of its
 * own. */
static struct sample shifted_sample(const struct trial *p, enum ra_type type, double shift,
                                    double offset)
{
    uint64_t state = p->seed;
    struct sample s = {.p = p, .truth = shape_of(p, type)};
    struct truth *t = &s.truth;
    truth_make_inputs(t, random_normal, 1, &state);
    double common = number_rounded(type, sqrt(-shift / fabs(t->scale)));
    double of_keys = t->scale > 0 ? -common : common;
    for (int64_t e = 0; e < truth_count(t, Q) && shift != 0; e += t->D)
        t->x[Q][e] = common;
    for (int64_t e = 0; e < truth_count(t, K); e++)
        t->x[K][e] =
            shift != 0 && e % t->D == 0 ? of_keys : number_rounded(type, t->x[K][e] + offset);
    for (enum truth_array a = DQ; a <= DV; a++)
        t->before[a] = truth_numbers(truth_count(t, a));
    truth_forward(t);
    truth_backward(t, NULL);
    return s;
}

/* What is added up of a gradient. */
enum { TWIN, KERNEL, EXACT, SQUARES };

/* The backward from the kernel's own o and lse. Adds up the squares of the errors of the plain twin
 * and of the kernel, and of what is right. */
static bool add_squares(const struct kernel *kernel, const struct sample *s,
                        double squares[DV + 1][SQUARES])
{
    struct arrays x;
    open_arrays(&x, s);
    struct array *const outputs[] = {&x.dq, &x.dk, &x.dv};
    bool good = run_forward(kernel, &x, s) &&
                launched(kernel, s->p, "delta", ra_kernel_delta(&x.kernel, 0)) &&
                run_backward(kernel, &x, s);
    for (int i = 0; i < 3 && good; i++) {
        enum truth_array a = DQ + (enum truth_array)i;
        unsigned char *image = fetch(outputs[i]);
        double *got = numbers_of(outputs[i], image);
        for (int64_t e = 0; e < truth_count(&s->truth, a); e++) {
            squares[a][TWIN] += pow(s->truth.plain[a][e] - s->truth.x[a][e], 2);
            squares[a][KERNEL] += pow(got[e] - s->truth.x[a][e], 2);
            squares[a][EXACT] += pow(s->truth.x[a][e], 2);
        }
        free(image);
        free(got);
    }
    close_arrays(&x);
    return good;
}

/* What else there is to scores: nothing, a soft cap, or a negative scale. */
enum { ALONE, CAPPED, NEGATIVE, KINDS };

/* Keys with a common component: forward and backward must start from the same rounded scores, or
 * the sum of ds over the keys is not 0. Gradients err by at most twice what the plain twin errs by,
 * root mean square. A kernel's tanh is off by up to 2e-7, and so the scores of a soft cap by that
 * times the cap: alike in both passes, which moves weights, and with them gradients, but not the
 * sum of ds. */
static void try_shift(enum ra_type type, double shift, double offset, int kind)
{
    static double squares[KERNELS][DV + 1][SQUARES];
    bool good[KERNELS];
    struct trial p = ordinary("shifted", 90, 300);
    p.wide_o = true;
    p.softcap = kind == CAPPED ? 3 - 2 * shift + 10 * offset : 0;
    p.scale_times = kind == NEGATIVE ? -1 : 1;
    memset(squares, 0, sizeof squares);
    memset(good, true, sizeof good);
    for (p.seed = 9700; p.seed < 9704; p.seed++) {
        p.pieces = p.seed % 2 ? 3 : 1;
        p.deterministic = p.seed / 2 % 2;
        struct sample s = shifted_sample(&p, type, shift, offset);
        for (int k = 0; k < KERNELS; k++)
            if (kernels[k].type == type && chosen(kernels[k].name, p.name))
                good[k] = good[k] && add_squares(&kernels[k], &s, squares[k]);
        forget_sample(&s);
    }
    for (int k = 0; k < KERNELS; k++) {
        if (kernels[k].type != type || !chosen(kernels[k].name, p.name))
            continue;
        for (enum truth_array a = DQ; a <= DV && good[k]; a++) {
            const double *sums = squares[k][a];
            double moved = 2e-7 * p.softcap, twin = sqrt(sums[TWIN]), error = sqrt(sums[KERNEL]);
            good[k] = error <= 2 * twin + 2 * moved * sqrt(sums[EXACT]) ||
                      wrong(&kernels[k], &p,
                            "scores moved by %g, keys by %g: %s errs by %.3g times what the plain "
                            "twin does, which is %.3g of its size",
                            shift, offset, truth_names[a], error / twin, twin / sqrt(sums[EXACT]));
        }
        verdict_count(good[k]);
    }
}

static void try_shifted(void)
{
    static const double shifts[] = {0, -10, -100, -1000, -10000, -60000}, offsets[] = {100, 1000};
    for (int t = 0; t < 3; t++) {
        bool asked = false;
        for (int k = 0; k < KERNELS; k++)
            asked =
                asked || (kernels[k].type == float_types[t] && chosen(kernels[k].name, "shifted"));
        for (int i = 0; i < 6 * KINDS && asked; i++)
            try_shift(float_types[t], shifts[i / KINDS], 0, i % KINDS);

        /* 16 bits cannot hold a small number beside a large one. */
        for (int i = 0; i < 2 * KINDS && asked && float_types[t] == RA_FLOAT32; i++)
            try_shift(RA_FLOAT32, 0, offsets[i / KINDS], i % KINDS);
    }
}

/* Sinks, slopes and largest scores, with everything else by chance. */
static void try_extras(void)
{
    for (int i = 0; i < (quick ? 20 : 150); i++) {
        uint64_t state = (uint64_t)(30000 + i);
        int64_t n = 1 + random_below(&state, 400), m = 1 + random_below(&state, 400);
        struct trial p = random_problem(state, n, m);
        p.name = "extras";
        p.extras = true;
        p.check_carry = p.pieces > 1 && i % 2;
        try(&p);
    }

    /* A tile of keys that is not full, and has a gap as large as what it lacks. */
    for (int tile = 16; tile <= 256; tile += quick ? 48 : 16)
        for (int dim = 64; dim <= 256; dim *= 2) {
            struct trial p = ordinary("extras", 70, tile - tile / 3);
            p.seed = 3 * (uint64_t)tile + 1; /* no multiple of 3: places ascend */
            p.heads = 2;
            p.key_heads = 2;
            p.dim = dim;
            p.extras = true;
            p.gap = tile / 3;
            try(&p);
        }
}

/* Masks of slices, as lists, with everything that a list may meet: of k02 and, for compute
 * capability 9.0, of k07. */
static void try_slices(void)
{
    int capability, device;
    check(cudaGetDevice(&device), "the device");
    check(cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, device),
          "the device");
    for (int i = 0; i < (quick ? 60 : 600) && capability == 9; i++) {
        uint64_t state = (uint64_t)(20000 + i);
        struct ra_slice slices[PATTERN_SLICES];
        enum pattern pattern = (enum pattern)(i % PATTERNS);
        int64_t n = 1 + random_below(&state, i % 5 ? 400 : 1500), m = n;
        if (pattern >= PAIRS_OF_DOCUMENTS)
            m = 1 + random_below(&state, i % 5 ? 400 : 1500);
        struct trial p = random_problem(state, n, m);
        p.name = "slices";
        p.pattern = pattern_words[pattern];
        p.slices = slices;
        p.slice_count = pattern_make(pattern, n, m, &state, slices);
        p.band = RA_ALL_KEYS;
        p.dim = 8 * (1 + random_below(&state, i % 4 ? 16 : 32));
        if (p.dim_value > 0)
            p.dim_value = i % 2 ? 128 : 8 * (1 + random_below(&state, 32));
        p.order = i % 2 ? PLAIN : HEADS_FIRST;
        p.deterministic = i % 7 % 3 == 0;
        p.repeats = 1 + p.deterministic;
        p.extras = i % 3 == 1;
        try(&p);
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

    verdict_start(0, 0, "%s", "");
    int devices = 0;
    cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0)
        die("no CUDA device: %s", error ? cudaGetErrorString(error) : "none found");
    setvbuf(stdout, NULL, _IOLBF, 0);

    try_delta();
    try_copies("copy");
    try_copies("add");
    try_copies("sum");
    try_refusals();
    try_writes();
    try_extremes();
    try_far_rows();
    try_features();
    try_bands();
    try_steps();
    try_pairs();
    try_overlaps();
    try_edges();
    try_values();
    try_turns();
    try_lengths();
    try_many_keys();
    try_dims();
    try_carries();
    try_repeats();
    try_shifted();
    try_small_shared_memory();
    try_extras();
    try_slices();
    for (int k = 0; k < KERNELS; k++)
        if (worst[k] > 0)
            printf("%s: errors up to %.2f of what is allowed\n", kernels[k].name, worst[k]);
    return verdict_end();
}
