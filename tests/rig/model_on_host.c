/* model_on_host: a stand-in for the kernels and the products of a model on a GPU, on which
 * check_model_gpu runs without one. See cuda_on_host.c, whose streams it uses.
 *
 * Each is its definition, in double, one number after the other: so what is tested is who calls
 * what, in which order, with which memory.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "numbers.h"
#include "ra_model_kernels.h"
#include "ra_math.h"
#include "ra_number.h"
#include "ra_products.h"

/* ---- Numbers of a type. */

static double get(const void *array, enum ra_type type, int64_t i)
{
    if (type == RA_FLOAT32)
        return (double)((const float *)array)[i];
    return (double)number_of_bits((uint32_t)((const uint16_t *)array)[i] << 16);
}

static void put(void *array, enum ra_type type, int64_t i, double x)
{
    if (type == RA_FLOAT32)
        ((float *)array)[i] = (float)x;
    else
        ((uint16_t *)array)[i] =
            (uint16_t)(number_bits((float)number_rounded(RA_BFLOAT16, x)) >> 16);
}

/* A launch: its arguments are kept until the stream comes to it. */
#define LAUNCH(name, stream, ...)                            \
    do {                                                     \
        struct name *kept = malloc(sizeof *kept);            \
        if (!kept)                                           \
            return cudaErrorMemoryAllocation;                \
        *kept = (struct name){__VA_ARGS__};                  \
        return cudaLaunchHostFunc(stream, run_##name, kept); \
    } while (0)

/* ---- Norms. */

int64_t ra_kernel_sum_scratch(int64_t width)
{
    return width;
}

struct norm {
    struct ra_norm norm;
    int64_t rows, dim;
    const float *x, *gamma, *bias;
    enum ra_type type;
    void *out;
    const void *d_out;
    bool add;
    float *gradient;
    void *copy;
    float *d_gamma, *d_bias;
};

/* mean, factor and 1 / square of a row. */
static void scale_of(struct ra_norm norm, int64_t dim, const float *x, double *mean, double *factor,
                     double *inverse)
{
    double square = 0;
    *mean = 0;
    for (int64_t c = 0; c < dim && norm.kind == RA_NORM_LAYER; c++)
        *mean += (double)x[c] / (double)dim;
    for (int64_t c = 0; c < dim; c++)
        square += ((double)x[c] - *mean) * ((double)x[c] - *mean);
    square += norm.kind == RA_NORM_UNIT ? 0 : norm.eps * (double)dim;
    bool is_short = norm.kind == RA_NORM_UNIT && sqrt(square) < 1e-12;
    *factor = sqrt((double)dim) / (is_short ? 1e-12 : sqrt(square));
    *inverse = is_short ? 0 : 1 / square;
}

static void run_norm(void *context)
{
    struct norm *k = context;
    double mean, factor, inverse;
    for (int64_t a = 0; a < k->rows; a++) {
        const float *x = k->x + a * k->dim;
        double along = 0, sum = 0;
        scale_of(k->norm, k->dim, x, &mean, &factor, &inverse);
        for (int64_t c = 0; c < k->dim; c++) {
            double z = (double)x[c] - mean, gamma = (double)k->gamma[c];
            if (k->out) {
                put(k->out, k->type, a * k->dim + c,
                    z * factor * gamma + (k->bias ? (double)k->bias[c] : 0));
                continue;
            }
            double d = get(k->d_out, k->type, a * k->dim + c);
            along += d * gamma * z;
            sum += d * gamma;
            k->d_gamma[c] += (float)(d * z * factor);
            if (k->d_bias)
                k->d_bias[c] += (float)d;
        }
        sum = k->norm.kind == RA_NORM_LAYER ? sum / (double)k->dim : 0;
        for (int64_t c = 0; c < k->dim && !k->out; c++) {
            int64_t i = a * k->dim + c;
            double g = get(k->d_out, k->type, i) * (double)k->gamma[c];
            double dx = factor * (g - sum - ((double)x[c] - mean) * along * inverse);
            k->gradient[i] = (float)((k->add ? (double)k->gradient[i] : 0) + dx);
            if (k->copy)
                put(k->copy, k->type, i, (double)k->gradient[i]);
        }
    }
    free(k);
}

cudaError_t ra_kernel_norm_forward(struct ra_norm norm, int64_t rows, int64_t dim, const float *x,
                                   const float *gamma, const float *bias, enum ra_type type,
                                   void *out, cudaStream_t stream)
{
    LAUNCH(norm, stream, norm, rows, dim, x, gamma, bias, type, .out = out);
}

cudaError_t ra_kernel_norm_backward(struct ra_norm norm, int64_t rows, int64_t dim, const float *x,
                                    const float *gamma, enum ra_type type, const void *d_out,
                                    bool add, float *gradient, void *copy, float *d_gamma,
                                    float *d_bias, float *scratch, cudaStream_t stream)
{
    (void)scratch;
    LAUNCH(norm, stream, norm, rows, dim, x, gamma, NULL, type, NULL, d_out, add, gradient, copy,
           d_gamma, d_bias);
}

/* ---- Heads. */

struct heads {
    struct ra_heads h;
    enum ra_type type;
    void *x, *raw;
    float *d_gamma;
    int sign;
};

static void rotate(const struct ra_heads *h, int64_t row, int sign, double *x)
{
    int64_t half = h->D / 2;
    for (int64_t t = 0; t < half && h->cosines; t++) {
        double cosine = (double)h->cosines[row % h->n * half + t];
        double sine = sign * (double)h->sines[row % h->n * half + t];
        double p = x[t], q = x[t + half];
        x[t] = p * cosine - q * sine;
        x[t + half] = q * cosine + p * sine;
    }
}

static void run_heads(void *context)
{
    struct heads *k = context;
    const struct ra_heads *h = &k->h;
    for (int64_t i = 0; i < h->rows * h->heads; i++) {
        double x[RA_MOST_HEAD_DIM];
        float before[RA_MOST_HEAD_DIM];
        int64_t row = i / h->heads, at = row * h->stride + i % h->heads * h->D;
        double mean, factor, inverse, along = 0;
        for (int64_t c = 0; c < h->D; c++)
            x[c] = get(k->x, k->type, at + c);
        if (k->sign < 0)
            rotate(h, row, -1, x);
        for (int64_t c = 0; c < h->D && h->gamma; c++) {
            if (k->sign > 0)
                put(k->raw, k->type, i * h->D + c, x[c]);
            before[c] = (float)get(k->raw, k->type, i * h->D + c);
        }
        if (h->gamma) {
            scale_of((struct ra_norm){RA_NORM_RMS, h->eps}, h->D, before, &mean, &factor, &inverse);
            for (int64_t c = 0; c < h->D; c++)
                along += x[c] * (double)h->gamma[c] * (double)before[c];
            for (int64_t c = 0; c < h->D; c++) {
                double z = (double)before[c], gamma = (double)h->gamma[c];
                if (k->sign < 0)
                    k->d_gamma[c] += (float)(x[c] * z * factor);
                x[c] = factor * (k->sign > 0 ? z * gamma : x[c] * gamma - z * along * inverse);
            }
        }
        if (k->sign > 0)
            rotate(h, row, 1, x);
        for (int64_t c = 0; c < h->D; c++)
            put(k->x, k->type, at + c, x[c]);
    }
    free(k);
}

cudaError_t ra_kernel_heads_forward(const struct ra_heads *heads, enum ra_type type, void *x,
                                    void *raw, cudaStream_t stream)
{
    LAUNCH(heads, stream, *heads, type, x, raw, NULL, 1);
}

cudaError_t ra_kernel_heads_backward(const struct ra_heads *heads, enum ra_type type, void *d,
                                     const void *raw, float *d_gamma, float *scratch,
                                     cudaStream_t stream)
{
    (void)scratch;
    LAUNCH(heads, stream, *heads, type, d, (void *)raw, d_gamma, -1);
}

/* ---- Feed-forward. */

struct bend {
    enum ra_feed_kind kind;
    int64_t rows, hidden;
    enum ra_type type;
    const void *x, *d_bent;
    void *bent, *d_x;
};

static void run_bend(void *context)
{
    struct bend *k = context;
    for (int64_t i = 0; i < k->rows * k->hidden; i++) {
        bool gelu = k->kind == RA_FEED_GELU;
        int64_t at = gelu ? i : i / k->hidden * 2 * k->hidden + i % k->hidden;
        double x = get(k->x, k->type, at), d = k->d_x ? get(k->d_bent, k->type, i) : 0;
        double up = gelu ? 1 : get(k->x, k->type, at + k->hidden);
        double share = gelu ? 0.5 * erfc(-x / sqrt(2)) : 1 / (1 + exp(-x));
        double slope =
            gelu ? share + x * exp(-x * x / 2) / 2.5066282746310002 : share * (1 + x * (1 - share));
        put(k->bent, k->type, i, x * share * up);
        if (!k->d_x)
            continue;
        put(k->d_x, k->type, at, d * up * slope);
        if (!gelu)
            put(k->d_x, k->type, at + k->hidden, d * x * share);
    }
    free(k);
}

cudaError_t ra_kernel_bend_forward(enum ra_feed_kind kind, int64_t rows, int64_t hidden,
                                   enum ra_type type, const void *x, void *bent,
                                   cudaStream_t stream)
{
    LAUNCH(bend, stream, kind, rows, hidden, type, x, NULL, bent, NULL);
}

cudaError_t ra_kernel_bend_backward(enum ra_feed_kind kind, int64_t rows, int64_t hidden,
                                    enum ra_type type, const void *x, const void *d_bent,
                                    void *bent, void *d_x, cudaStream_t stream)
{
    LAUNCH(bend, stream, kind, rows, hidden, type, x, d_bent, bent, d_x);
}

/* ---- Sums. */

struct add_rows {
    int64_t rows, width;
    enum ra_type type;
    const void *d;
    int64_t stride;
    float *sums;
};

static void run_add_rows(void *context)
{
    struct add_rows *k = context;
    for (int64_t c = 0; c < k->width; c++) {
        double sum = 0;
        for (int64_t a = 0; a < k->rows; a++)
            sum += get(k->d, k->type, a * k->stride + c);
        k->sums[c] += (float)sum;
    }
    free(k);
}

cudaError_t ra_kernel_add_rows(int64_t rows, int64_t width, enum ra_type type, const void *d,
                               int64_t stride, float *sums, float *scratch, cudaStream_t stream)
{
    (void)scratch;
    LAUNCH(add_rows, stream, rows, width, type, d, stride, sums);
}

struct sum {
    int64_t count;
    const float *x;
    double factor;
    double *sum;
    bool squares;
};

static void run_sum(void *context)
{
    struct sum *k = context;
    double sum = 0;
    for (int64_t i = 0; i < k->count; i++)
        sum += (double)k->x[i] * (k->squares ? (double)k->x[i] : k->factor);
    *k->sum = k->squares ? sqrt(sum) : *k->sum + sum;
    free(k);
}

cudaError_t ra_kernel_add_up(int64_t count, const float *x, double factor, double *sum,
                             cudaStream_t stream)
{
    LAUNCH(sum, stream, count, x, factor, sum, false);
}

cudaError_t ra_kernel_length(int64_t count, const float *x, double *length, double *scratch,
                             cudaStream_t stream)
{
    (void)scratch;
    LAUNCH(sum, stream, count, x, 1, length, true);
}

/* ---- Ends. */

struct embed {
    int64_t rows, n, dim;
    enum ra_type type;
    const int32_t *tokens;
    const void *table;
    const int32_t *places;
    const void *positions;
    double scale;
    float *out;
};

static void run_embed(void *context)
{
    struct embed *k = context;
    for (int64_t i = 0; i < k->rows * k->dim; i++) {
        int64_t a = i / k->dim, c = i % k->dim;
        double x = get(k->table, k->type, k->tokens[a] * k->dim + c);
        if (k->positions)
            x += k->scale * get(k->positions, k->type, k->places[a % k->n] * k->dim + c);
        k->out[i] = (float)x;
    }
    free(k);
}

cudaError_t ra_kernel_embed(int64_t rows, int64_t n, int64_t dim, enum ra_type type,
                            const int32_t *tokens, const void *table, const int32_t *places,
                            const void *positions, double scale, float *out, cudaStream_t stream)
{
    LAUNCH(embed, stream, rows, n, dim, type, tokens, table, places, positions, scale, out);
}

struct scatter {
    struct ra_groups groups;
    int64_t dim;
    double scale;
    const float *d;
    float *d_table;
};

static void run_scatter(void *context)
{
    struct scatter *k = context;
    for (int64_t g = 0; g < k->groups.count; g++)
        for (int32_t i = k->groups.first[g]; i < k->groups.first[g + 1]; i++)
            for (int64_t c = 0; c < k->dim; c++)
                k->d_table[k->groups.key[g] * k->dim + c] +=
                    (float)(k->scale * (double)k->d[k->groups.order[i] * k->dim + c]);
    free(k);
}

cudaError_t ra_kernel_scatter(const struct ra_groups *groups, int64_t dim, double scale,
                              const float *d, float *d_table, cudaStream_t stream)
{
    LAUNCH(scatter, stream, *groups, dim, scale, d, d_table);
}

struct loss {
    int64_t rows, vocabulary;
    float *logits;
    const int32_t *labels;
    double factor;
    enum ra_type type;
    float *losses;
};

static void run_loss(void *context)
{
    struct loss *k = context;
    for (int64_t a = 0; a < k->rows; a++) {
        float *row = k->logits + a * k->vocabulary;
        double max = -(double)INFINITY, sum = 0;
        int32_t label = k->labels[a];
        for (int64_t c = 0; c < k->vocabulary; c++)
            max = fmax(max, (double)row[c]);
        for (int64_t c = 0; c < k->vocabulary; c++)
            sum += exp((double)row[c] - max);
        k->losses[a] = label < 0 ? 0 : (float)(log(sum) + max - (double)row[label]);
        for (int64_t c = 0; c < k->vocabulary; c++)
            put(row, k->type, c,
                label < 0 ? 0
                          : k->factor * (exp((double)row[c] - max) / sum - (c == label ? 1 : 0)));
    }
    free(k);
}

cudaError_t ra_kernel_loss(int64_t rows, int64_t vocabulary, float *logits, const int32_t *labels,
                           double factor, enum ra_type type, float *losses, cudaStream_t stream)
{
    LAUNCH(loss, stream, rows, vocabulary, logits, labels, factor, type, losses);
}

/* ---- Learning. */

struct round {
    int64_t count;
    const float *from;
    void *to;
};

static void run_round(void *context)
{
    struct round *k = context;
    for (int64_t i = 0; i < k->count; i++)
        put(k->to, RA_BFLOAT16, i, (double)k->from[i]);
    free(k);
}

cudaError_t ra_kernel_round(int64_t count, const float *from, void *to, cudaStream_t stream)
{
    LAUNCH(round, stream, count, from, to);
}

struct add_parts {
    int64_t count;
    int ranks, own;
    float *x;
    const float *others;
    int64_t stride;
};

static void run_add_parts(void *context)
{
    struct add_parts *k = context;
    for (int64_t i = 0; i < k->count; i++) {
        float sum = 0;
        for (int r = 0; r < k->ranks; r++) {
            float part = r == k->own ? k->x[i] : k->others[r * k->stride + i];
            sum = r == 0 ? part : sum + part;
        }
        k->x[i] = sum;
    }
    free(k);
}

cudaError_t ra_kernel_add_parts(int64_t count, int ranks, int own, float *x, const float *others,
                                int64_t stride, cudaStream_t stream)
{
    LAUNCH(add_parts, stream, count, ranks, own, x, others, stride);
}

struct learn {
    struct ra_adamw a;
    const float *gradients;
    float *weights, *means, *squares;
    void *rounded;
};

static void run_learn(void *context)
{
    struct learn *k = context;
    const struct ra_adamw *a = &k->a;
    double length = *a->length, clip = (double)a->clip;
    float cut = clip > 0 && length > clip ? (float)(clip / length) : 1;
    for (int64_t i = 0, p = 0; i < a->count && isfinite(length); i++) {
        while (p + 1 < a->arrays && a->first[p + 1] <= a->begin + i)
            p++;
        float gradient = k->gradients[i] * cut;
        k->means[i] = a->beta1 * k->means[i] + a->share1 * gradient;
        k->squares[i] = a->beta2 * k->squares[i] + a->share2 * gradient * gradient;
        float root = sqrtf(k->squares[i] * a->square_factor) + a->epsilon;
        k->weights[i] = (a->decays[p] ? a->kept : 1) * k->weights[i] -
                        a->rate * k->means[i] * a->mean_factor / root;
        if (k->rounded)
            put(k->rounded, RA_BFLOAT16, i, (double)k->weights[i]);
    }
    free(k);
}

cudaError_t ra_kernel_adamw(const struct ra_adamw *adamw, const float *gradients, float *weights,
                            float *means, float *squares, void *rounded, cudaStream_t stream)
{
    LAUNCH(learn, stream, *adamw, gradients, weights, means, squares, rounded);
}

/* ---- Decoding. */

/* As the real one, a split has so many rows at least: fewer, so that small tests have some. */
int64_t ra_kernel_decode_splits(int64_t rows, int64_t tokens, int64_t key_heads)
{
    (void)key_heads;
    return ra_max(1, ra_min(rows / 8, 5 / ra_max(1, tokens)));
}

int64_t ra_kernel_decode_carries(int64_t rows, int64_t tokens, int64_t key_heads)
{
    return ra_min(tokens * ra_kernel_decode_splits(rows, 1, key_heads), ra_max(tokens, 5));
}

static double get_any(const void *array, enum ra_type type, int64_t i)
{
    float x;
    ra_number_load(type, 1, (const char *)array + i * ra_type_bytes(type), &x);
    return (double)x;
}

struct decode {
    struct ra_decode a;
    float *carries;
};

static int64_t rows_before(const struct ra_decode *a, int64_t position)
{
    return position <= a->rank ? 0 : (position - a->rank + a->ranks - 1) / a->ranks;
}

/* The carry of one head of a token, over rows from, ..., to - 1. */
static void decode_part(const struct ra_decode *a, int64_t token, int64_t h, int64_t from,
                        int64_t to, float *carry)
{
    int64_t g = a->interleaved ? h % a->key_heads : h / (a->heads / a->key_heads);
    double max = -(double)INFINITY, sum = 0, o[RA_MOST_HEAD_DIM] = {0};
    for (int64_t i = from; i < to; i++) {
        int64_t row = (g * a->rows + i) * a->D;
        double score = 0, before = max;
        for (int64_t c = 0; c < a->D; c++)
            score += get(a->q, a->type, token * a->stride + h * a->D + c) *
                     get_any(a->k, a->cache, row + c);
        score *= (double)a->scale;
        if (a->softcap > 0)
            score = (double)a->softcap * tanh(score / (double)a->softcap);
        max = fmax(max, score);
        double old = exp(before - max), now = exp(score - max);
        sum = old * sum + now;
        for (int64_t c = 0; c < a->D; c++)
            o[c] = old * o[c] + now * get_any(a->v, a->cache, row + c);
    }
    for (int64_t c = 0; c < a->D; c++)
        carry[c] = (float)o[c];
    carry[a->D] = (float)max;
    carry[a->D + 1] = (float)sum;
}

static void run_decode(void *context)
{
    struct decode *k = context;
    const struct ra_decode *a = &k->a;
    int64_t splits =
        ra_kernel_decode_splits(rows_before(a, a->first + a->tokens), a->tokens, a->key_heads);
    for (int64_t i = 0; i < splits * a->tokens * a->heads; i++) {
        int64_t h = i % a->heads, token = i / a->heads % a->tokens,
                split = i / a->heads / a->tokens;
        int64_t position = a->first + token;
        int64_t from = rows_before(a, position - a->lookback), to = rows_before(a, position + 1);
        decode_part(a, token, h, from + (to - from) * split / splits,
                    from + (to - from) * (split + 1) / splits, k->carries + i * (a->D + 2));
    }
    free(k);
}

cudaError_t ra_kernel_decode(const struct ra_decode *decode, float *carries, cudaStream_t stream)
{
    LAUNCH(decode, stream, *decode, carries);
}

struct combine {
    int64_t rows, D, parts, stride;
    const float *carries;
    enum ra_type type;
    void *out;
    float *carry;
};

static void run_combine(void *context)
{
    struct combine *k = context;
    for (int64_t row = 0; row < k->rows; row++) {
        const float *mine = k->carries + row * (k->D + 2);
        double max = -(double)INFINITY;
        for (int64_t p = 0; p < k->parts; p++)
            max = fmax(max, (double)mine[p * k->stride + k->D]);
        double all[RA_MOST_HEAD_DIM + 1] = {0}; /* o, sum */
        for (int64_t p = 0; p < k->parts; p++) {
            const float *part = mine + p * k->stride;
            double share = part[k->D] == -INFINITY ? 0 : exp((double)part[k->D] - max);
            for (int64_t c = 0; c <= k->D; c++)
                all[c] += share * (double)part[c < k->D ? c : k->D + 1];
        }
        for (int64_t c = 0; c < k->D; c++)
            if (k->carry)
                k->carry[row * (k->D + 2) + c] = (float)all[c];
            else
                put(k->out, k->type, row * k->D + c, all[c] / all[k->D]);
        if (k->carry) {
            k->carry[row * (k->D + 2) + k->D] = (float)max;
            k->carry[row * (k->D + 2) + k->D + 1] = (float)all[k->D];
        }
    }
    free(k);
}

cudaError_t ra_kernel_combine(int64_t rows, int64_t D, int64_t parts, int64_t stride,
                              const float *carries, enum ra_type type, void *out, float *carry,
                              cudaStream_t stream)
{
    LAUNCH(combine, stream, rows, D, parts, stride, carries, type, out, carry);
}

/* ---- Products. */

struct ra_products {
    enum ra_type type;
    cudaStream_t stream;
};

enum ra_status ra_products_create(struct ra_products **products, enum ra_type type,
                                  cudaStream_t stream, char error[RA_ERROR_SIZE])
{
    *products = malloc(sizeof **products);
    if (!*products) {
        snprintf(error, RA_ERROR_SIZE, "no memory for products");
        return RA_OUT_OF_MEMORY;
    }
    **products = (struct ra_products){type, stream};
    return RA_OK;
}

void ra_products_destroy(struct ra_products *products)
{
    free(products);
}

int64_t ra_products_bytes(void)
{
    return 0;
}

const char *ra_products_error(const struct ra_products *products)
{
    (void)products;
    return "";
}

/* out (rows, columns) = the sum over `inner` of left, which has these distances, times right. */
struct product {
    enum ra_type type, out_type;
    int64_t rows, columns, inner, left_row, left_inner, right_inner, right_column;
    const void *left, *right, *bias;
    const float *base;
    void *out;
};

static void run_product(void *context)
{
    struct product *k = context;
    double *right = malloc((size_t)(k->inner * k->columns + k->columns) * sizeof *right);
    if (!right)
        abort();
    double *sums = right + k->inner * k->columns;
    for (int64_t i = 0; i < k->inner; i++)
        for (int64_t c = 0; c < k->columns; c++)
            right[i * k->columns + c] =
                get(k->right, k->type, i * k->right_inner + c * k->right_column);
    for (int64_t r = 0; r < k->rows; r++) {
        for (int64_t c = 0; c < k->columns; c++)
            sums[c] = (k->bias ? get(k->bias, k->out_type, c) : 0) +
                      (k->base ? (double)k->base[r * k->columns + c] : 0);
        for (int64_t i = 0; i < k->inner; i++) {
            double left = get(k->left, k->type, r * k->left_row + i * k->left_inner);
            for (int64_t c = 0; c < k->columns; c++)
                sums[c] += left * right[i * k->columns + c];
        }
        for (int64_t c = 0; c < k->columns; c++)
            put(k->out, k->out_type, r * k->columns + c, sums[c]);
    }
    free(right);
    free(k);
}

static cudaError_t launch_product(cudaStream_t stream, struct product product)
{
    LAUNCH(product, stream, product.type, product.out_type, product.rows, product.columns,
           product.inner, product.left_row, product.left_inner, product.right_inner,
           product.right_column, product.left, product.right, product.bias, product.base,
           product.out);
}

bool ra_products_forward(struct ra_products *p, int64_t rows, int64_t in, int64_t out,
                         const void *x, const void *weight, const void *bias, const float *base,
                         bool wide, void *y)
{
    return launch_product(p->stream,
                          (struct product){p->type, wide ? RA_FLOAT32 : p->type, rows, out, in, in,
                                           1, 1, in, x, weight, bias, base, y}) == cudaSuccess;
}

bool ra_products_d_weight(struct ra_products *p, int64_t rows, int64_t in, int64_t out,
                          const void *x, const void *dy, int64_t stride, bool add, float *d_weight)
{
    return launch_product(p->stream, (struct product){p->type, RA_FLOAT32, out, in, rows, 1, stride,
                                                      in, 1, dy, x, NULL, add ? d_weight : NULL,
                                                      d_weight}) == cudaSuccess;
}

bool ra_products_d_x(struct ra_products *p, int64_t rows, int64_t in, int64_t out,
                     const void *weight, const void *dy, int64_t stride, void *dx)
{
    return launch_product(p->stream, (struct product){p->type, p->type, rows, in, out, stride, 1,
                                                      in, 1, dy, weight, NULL, NULL, dx}) ==
           cudaSuccess;
}
