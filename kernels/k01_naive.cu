/* k01: attention with one thread per row, in float32.
 *
 * Chapter 11. The plainest that a GPU can do: a thread per query row reads every key that its row
 * sees, one after the other, and keeps its carry to itself; in the backward a thread per query row
 * sums up dq, then a thread per key row dk and dv. Sums are double, as one number after the other
 * is added to them: in float32 a million keys would cost five of seven digits. No two threads add
 * to the same number, so equal inputs give equal bits. Every number is read from memory as often as
 * it is used: k02 cures that.
 */
#include "ra_device.h"

enum { THREADS = 128 };

/* Which row of (batch, heads, rows) this thread has, neighbours in a block being neighbours in the
 * array: they read the same keys at the same time. Threads beyond the last row get b = batch. */
struct row {
    int64_t b, row;
    int head;
};

RA_DEVICE struct row this_row(int64_t rows, int64_t heads)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    struct row row = {i / rows / heads, i % rows, (int)(i / rows % heads)};
    return row;
}

RA_DEVICE float dot(const float *x, const float *y, int D)
{
    float sum = 0;
    for (int c = 0; c < D; c++)
        sum += x[c] * y[c];
    return sum;
}

/* The score that belongs to a product q . k, and its derivative by scale * q . k. */
RA_DEVICE float score_value(struct ra_score rule, float product)
{
    float score = rule.scale * product;
    return rule.softcap > 0 ? rule.softcap * tanhf(score / rule.softcap) : score;
}

RA_DEVICE float score_slope(struct ra_score rule, float score)
{
    float bent = rule.softcap > 0 ? score / rule.softcap : 0;
    return 1 - bent * bent;
}

/* Number c of a sum in memory, with what rounding lost of it; writes both; and adds to them. */
RA_DEVICE double kept(struct ra_tensor sum, struct ra_tensor comp, int64_t b, int64_t a, int h,
                      int c)
{
    double number = ra_floats(sum, b, a, h)[c];
    return comp.data ? number + ra_floats(comp, b, a, h)[c] : number;
}

RA_DEVICE void keep(struct ra_tensor sum, struct ra_tensor comp, int64_t b, int64_t a, int h, int c,
                    double number)
{
    float rounded = (float)number;
    ra_floats(sum, b, a, h)[c] = rounded;
    if (comp.data)
        ra_floats(comp, b, a, h)[c] = isfinite(rounded) ? (float)(number - rounded) : 0;
}

RA_DEVICE void add(struct ra_tensor sum, struct ra_tensor comp, int64_t b, int64_t a, int h, int c,
                   double more)
{
    keep(sum, comp, b, a, h, c, kept(sum, comp, b, a, h, c) + more);
}

static __global__ void forward(const __grid_constant__ struct ra_kernel kernel)
{
    struct row own = this_row(kernel.queries, kernel.heads);
    if (own.b >= kernel.batch)
        return;
    int64_t b = own.b, a = own.row;
    int D = (int)kernel.dim, D_v = (int)kernel.dim_value, h = own.head;
    int g = ra_key_head(kernel.head_map, (int)kernel.heads, (int)kernel.key_heads, h);
    const float *q = ra_floats(kernel.q, b, a, h);

    /* The carry of the keys before these. */
    double o[RA_MOST_DIM], sum = 0;
    float max = -CUDART_INF_F;
    for (int c = 0; c < D_v; c++)
        o[c] = kernel.first ? 0 : kept(kernel.carry_o, kernel.o_comp, b, a, h, c);
    if (!kernel.first) {
        max = *ra_floats(kernel.carry_max, b, a, h);
        sum = kept(kernel.carry_sum, kernel.sum_comp, b, a, h, 0);
    }

    /* Fold one key after the other. */
    struct ra_range seen = ra_keys_seen(kernel.band, kernel.band_step, a, 1, kernel.keys);
    for (int64_t key = seen.first; key < seen.end; key++) {
        if (!ra_allowed(kernel.mask, b, key))
            continue;
        /* A new largest score: rescale the carry to it. An empty carry is 0 and stays so. A NaN
         * is not larger than anything: it comes in by its weight. */
        float score = score_value(kernel.score, dot(q, ra_floats(kernel.k, b, key, g), D));
        max = fmaxf(max, RA_LOWEST_SCORE);
        if (score > max) {
            float rescale = expf(max - score);
            for (int c = 0; c < D_v; c++)
                o[c] *= rescale;
            sum *= rescale;
            max = score;
        }
        const float *v = ra_floats(kernel.v, b, key, g);
        float weight = expf(score - max);
        for (int c = 0; c < D_v; c++)
            o[c] += weight * v[c];
        sum += weight;
    }

    /* All scores were -inf: there is no answer. */
    if (max == RA_LOWEST_SCORE)
        sum = CUDART_NAN_F;

    /* Pass the carry on; or finish: a row that has seen nothing has sum = 0, and 0 / 0 would be
     * NaN, where log 0 is the -inf we want. */
    if (kernel.last) {
        for (int c = 0; c < D_v; c++)
            ra_floats(kernel.o, b, a, h)[c] = sum == 0 ? 0 : (float)(o[c] / sum);
        *ra_floats(kernel.lse, b, a, h) = (float)(max + log(sum));
    } else {
        for (int c = 0; c < D_v; c++)
            keep(kernel.carry_o, kernel.o_comp, b, a, h, c, o[c]);
        *ra_floats(kernel.carry_max, b, a, h) = max;
        keep(kernel.carry_sum, kernel.sum_comp, b, a, h, 0, sum);
    }
}

/* What query row a of head h and a key have to do with each other, in the backward: p = exp(score -
 * lse), and ds, the gradient of scale * q . k. */
struct pair {
    float p, ds;
};

RA_DEVICE struct pair backward_pair(const struct ra_kernel &kernel, int64_t b, int64_t a, int h,
                                    int64_t key, int g)
{
    int D = (int)kernel.dim, D_v = (int)kernel.dim_value;
    float product = dot(ra_floats(kernel.q, b, a, h), ra_floats(kernel.k, b, key, g), D);
    float dp = dot(ra_floats(kernel.d_out, b, a, h), ra_floats(kernel.v, b, key, g), D_v);
    float score = score_value(kernel.score, product);
    float p = expf(score - *ra_floats(kernel.lse, b, a, h));
    float ds = p * (dp - *ra_floats(kernel.delta, b, a, h)) * score_slope(kernel.score, score);
    struct pair pair = {p, ds};
    return pair;
}

static __global__ void backward_queries(const __grid_constant__ struct ra_kernel kernel)
{
    struct row own = this_row(kernel.queries, kernel.heads);
    if (own.b >= kernel.batch)
        return;
    int64_t b = own.b, a = own.row;
    int D = (int)kernel.dim, h = own.head;
    int g = ra_key_head(kernel.head_map, (int)kernel.heads, (int)kernel.key_heads, h);

    /* A row that saw nothing contributes nothing: -inf - -inf would be NaN. */
    if (*ra_floats(kernel.lse, b, a, h) == -CUDART_INF_F)
        return;

    double dq[RA_MOST_DIM];
    for (int c = 0; c < D; c++)
        dq[c] = 0;
    struct ra_range seen = ra_keys_seen(kernel.band, kernel.band_step, a, 1, kernel.keys);
    for (int64_t key = seen.first; key < seen.end; key++) {
        if (!ra_allowed(kernel.mask, b, key))
            continue;
        struct pair pair = backward_pair(kernel, b, a, h, key, g);
        const float *k = ra_floats(kernel.k, b, key, g);
        for (int c = 0; c < D; c++)
            dq[c] += pair.ds * k[c];
    }
    for (int c = 0; c < D; c++)
        add(kernel.dq, kernel.dq_comp, b, a, h, c, kernel.score.scale * dq[c]);
}

static __global__ void backward_keys(const __grid_constant__ struct ra_kernel kernel)
{
    struct row own = this_row(kernel.keys, kernel.key_heads);
    if (own.b >= kernel.batch || !ra_allowed(kernel.mask, own.b, own.row))
        return;
    int64_t b = own.b, key = own.row;
    int D = (int)kernel.dim, D_v = (int)kernel.dim_value;
    int H = (int)kernel.heads, G = (int)kernel.key_heads, g = own.head;

    double dk[RA_MOST_DIM] = {}, dv[RA_MOST_DIM] = {};
    struct ra_range seeing =
        ra_queries_seeing(kernel.band, kernel.band_step, key, 1, kernel.queries);
    for (int i = 0; i < H / G; i++) {
        int h = ra_query_head(kernel.head_map, H, G, g, i);
        for (int64_t a = seeing.first; a < seeing.end; a++) {
            if (*ra_floats(kernel.lse, b, a, h) == -CUDART_INF_F)
                continue;
            struct pair pair = backward_pair(kernel, b, a, h, key, g);
            const float *q = ra_floats(kernel.q, b, a, h);
            const float *d_out = ra_floats(kernel.d_out, b, a, h);
            for (int c = 0; c < D; c++)
                dk[c] += pair.ds * q[c];
            for (int c = 0; c < D_v; c++)
                dv[c] += pair.p * d_out[c];
        }
    }
    for (int c = 0; c < D; c++)
        add(kernel.dk, kernel.dk_comp, b, key, g, c, kernel.score.scale * dk[c]);
    for (int c = 0; c < D_v; c++)
        add(kernel.dv, kernel.dv_comp, b, key, g, c, dv[c]);
}

/* How many blocks have a thread for each of this many rows. */
static unsigned blocks(int64_t rows)
{
    return (unsigned)((rows + THREADS - 1) / THREADS);
}

extern "C" cudaError_t ra_k01_forward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    if (kernel->q.type != RA_FLOAT32 || ra_kernel_widest(kernel) > RA_MOST_DIM ||
        ra_has_extras(kernel))
        return cudaErrorNotSupported;
    int64_t rows = kernel->batch * kernel->heads * kernel->queries;
    if (rows == 0)
        return cudaSuccess;
    forward<<<blocks(rows), THREADS, 0, stream>>>(*kernel);
    return cudaGetLastError();
}

extern "C" cudaError_t ra_k01_backward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    if (kernel->q.type != RA_FLOAT32 || ra_kernel_widest(kernel) > RA_MOST_DIM ||
        ra_has_extras(kernel))
        return cudaErrorNotSupported;
    int64_t rows = kernel->batch * kernel->heads * kernel->queries;
    int64_t key_rows = kernel->batch * kernel->key_heads * kernel->keys;
    if (rows == 0 || key_rows == 0)
        return cudaSuccess;
    backward_queries<<<blocks(rows), THREADS, 0, stream>>>(*kernel);
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess)
        return error;
    backward_keys<<<blocks(key_rows), THREADS, 0, stream>>>(*kernel);
    return cudaGetLastError();
}
