/* ra_attention: what stands before and behind attention. See ra_attention.h.
 *
 * Chapter 10.
 */
#include "ra_attention.h"
#include "ra_rotary.h"
#include "ra_rounding.h"

/* Numbers of a row of q, of k, of o, and of q, k and v side by side. */
static int64_t query_width(const struct ra_attention *a)
{
    return a->heads * a->D;
}

static int64_t key_width(const struct ra_attention *a)
{
    return a->key_heads * a->D;
}

static int64_t out_width(const struct ra_attention *a)
{
    return a->heads * a->D_v;
}

static int64_t row_width(const struct ra_attention *a)
{
    return query_width(a) + key_width(a) + a->key_heads * a->D_v;
}

static int64_t all_rows(const struct ra_attention *a)
{
    return a->batch * a->rows;
}

/* The part of rows of q, k and v that begins at `first`, of heads of D numbers: strides save three
 * copies. */
static struct ra_tensor part_of(const struct ra_attention *a, float *qkv, int64_t first, int64_t D)
{
    int64_t row = row_width(a);
    return (struct ra_tensor){qkv + first, RA_FLOAT32, a->rows * row, row, D};
}

struct ra_arrays ra_attention_arrays(const struct ra_attention *a,
                                     const struct ra_attention_weights *w,
                                     const struct ra_attention_rows *rows, float *d_o, float *d_qkv,
                                     float *scales)
{
    int64_t k = query_width(a), v = k + key_width(a), n = a->rows;
    struct ra_arrays arrays = RA_ARRAYS_INIT;
    arrays.q = part_of(a, rows->qkv, 0, a->D);
    arrays.k = part_of(a, rows->qkv, k, a->D);
    arrays.v = part_of(a, rows->qkv, v, a->D_v);
    arrays.mask = ra_tensor_bn((void *)a->mask, n);
    arrays.o = ra_tensor_bnhd(rows->o, RA_FLOAT32, n, a->heads, a->D_v);
    arrays.lse = ra_tensor_bhn(rows->lse, n, a->heads);
    if (w->sinks)
        arrays.sink = ra_tensor_h(w->sinks);
    if (d_qkv) {
        arrays.d_out = ra_tensor_bnhd(d_o, RA_FLOAT32, n, a->heads, a->D_v);
        arrays.dq = part_of(a, d_qkv, 0, a->D);
        arrays.dk = part_of(a, d_qkv, k, a->D);
        arrays.dv = part_of(a, d_qkv, v, a->D_v);
        if (w->sinks)
            arrays.d_sink = ra_tensor_h(scales);
    }
    return arrays;
}

/* Gives the norm of x, or x itself where there is none. */
static const float *norm_forward(const struct ra_attention *a, const struct ra_attention_weights *w,
                                 const struct ra_attention_rows *rows, float *normal)
{
    if (!w->gamma)
        return rows->x;
    ra_norm_forward(a->work.threads, a->norm, all_rows(a), a->dim, rows->x, w->gamma, w->bias,
                    normal);
    ra_round(&a->work, all_rows(a) * a->dim, normal);
    return normal;
}

/* The norm of each head's q and k. What they were is kept: of q, then of k. */
static void head_norm_forward(const struct ra_attention *a, const struct ra_attention_weights *w,
                              const struct ra_attention_rows *rows)
{
    struct ra_norm norm = {RA_NORM_RMS, a->norm.eps};
    int64_t T = all_rows(a), row = row_width(a), query = query_width(a);
    if (!w->q_gamma)
        return;
    ra_head_norm_forward(a->work.threads, norm, T, a->heads, a->D, w->q_gamma, rows->qkv, row,
                         rows->raw);
    ra_head_norm_forward(a->work.threads, norm, T, a->key_heads, a->D, w->k_gamma,
                         rows->qkv + query, row, rows->raw + T * query);
}

static void head_norm_backward(const struct ra_attention *a, const struct ra_attention_weights *w,
                               const struct ra_attention_rows *rows, float *d_qkv,
                               const struct ra_attention_weights *d, float *scales)
{
    struct ra_norm norm = {RA_NORM_RMS, a->norm.eps};
    int64_t T = all_rows(a), row = row_width(a), query = query_width(a);
    if (!w->q_gamma)
        return;
    ra_head_norm_backward(a->work.threads, norm, T, a->heads, a->D, rows->raw, w->q_gamma, d_qkv,
                          row, d->q_gamma, scales);
    ra_head_norm_backward(a->work.threads, norm, T, a->key_heads, a->D, rows->raw + T * query,
                          w->k_gamma, d_qkv + query, row, d->k_gamma, scales);
}

/* Rotates q and k, which stand side by side, by the angles of their positions. */
static void rotate(const struct ra_attention *a, float *qkv, int direction)
{
    if (a->cosines)
        ra_rotary_rotate(a->work.threads, a->batch, a->rows, a->heads + a->key_heads, a->D,
                         a->cosines, a->sines, direction, qkv, row_width(a));
}

void ra_attention_before(const struct ra_attention *a, const struct ra_attention_weights *w,
                         const struct ra_attention_rows *rows, float *normal)
{
    const float *x = norm_forward(a, w, rows, normal);
    int64_t numbers = all_rows(a) * row_width(a);
    ra_linear_forward(&a->work, all_rows(a), a->dim, row_width(a), x, w->qkv, w->qkv_bias, NULL,
                      rows->qkv);
    ra_round(&a->work, numbers, rows->qkv);
    head_norm_forward(a, w, rows);
    rotate(a, rows->qkv, 1);
    ra_round(&a->work, numbers, rows->qkv);
}

void ra_attention_behind(const struct ra_attention *a, const struct ra_attention_weights *w,
                         const struct ra_attention_rows *rows, const float *base, float *y)
{
    ra_linear_forward(&a->work, all_rows(a), out_width(a), a->dim, rows->o, w->out, w->out_bias,
                      base, y);
}

void ra_attention_behind_backward(const struct ra_attention *a,
                                  const struct ra_attention_weights *w,
                                  const struct ra_attention_rows *rows, const float *dy, float *d_o,
                                  const struct ra_attention_weights *d)
{
    ra_linear_backward(&a->work, all_rows(a), out_width(a), a->dim, rows->o, w->out, dy, d_o,
                       d->out, d->out_bias);
}

void ra_attention_before_backward(const struct ra_attention *a,
                                  const struct ra_attention_weights *w,
                                  const struct ra_attention_rows *rows, float *d_qkv, float *dx,
                                  const struct ra_attention_weights *d, float *normal,
                                  float *scales)
{
    int64_t T = all_rows(a);
    for (int64_t h = 0; h < a->heads && w->sinks; h++)
        d->sinks[h] += scales[h];
    ra_round(&a->work, T * row_width(a), d_qkv);
    rotate(a, d_qkv, -1);
    head_norm_backward(a, w, rows, d_qkv, d, scales);
    ra_round(&a->work, T * row_width(a), d_qkv);
    const float *x = norm_forward(a, w, rows, normal);
    ra_linear_backward(&a->work, T, a->dim, row_width(a), x, w->qkv, d_qkv, normal, d->qkv,
                       d->qkv_bias);
    if (w->gamma)
        ra_norm_backward(a->work.threads, a->norm, T, a->dim, rows->x, w->gamma, normal, dx,
                         d->gamma, d->bias, scales);
    else
        for (int64_t e = 0; e < T * a->dim; e++)
            dx[e] += normal[e];
}
