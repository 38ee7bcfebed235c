/* oracle: numbers for large tests, made where they are needed, and the exact answer for a few rows
 * of attention over them, in float64 on the GPU.
 *
 * Chapter 11. For tests/million.c and the parts of bench-cuda. Shares nothing with the kernels that
 * it judges but the types of ra_kernel.h.
 */
#ifndef ORACLE_H
#define ORACLE_H

#include "ra_kernel.h"
#include "ra_range.h"
#include "ra_span.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One stream of numbers for each array. */
enum oracle_stream { ORACLE_Q, ORACLE_K, ORACLE_V, ORACLE_D_OUT };

/* The output function of splitmix64 (Steele, Lea, Flood 2014). */
RA_BOTH uint64_t oracle_mix(uint64_t bits)
{
    bits = (bits ^ (bits >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    bits = (bits ^ (bits >> 27)) * UINT64_C(0x94d049bb133111eb);
    return bits ^ (bits >> 31);
}

/* Number `index` of a stream, normal-like: mean 0, variance 1, within 6 of 0. It is the sum of
 * twelve uniform 16-bit integers less its mean, over 2^16, so exact in float32 and the same on host
 * and device. A number is a hash of its place alone: anybody can make any row again. */
RA_BOTH float oracle_number(enum oracle_stream stream, int64_t index)
{
    const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t start = oracle_mix(golden * ((uint64_t)stream + 1));
    int32_t sum = 0;
    for (int i = 1; i <= 3; i++) {
        uint64_t bits = oracle_mix(start + golden * (3 * (uint64_t)index + (uint64_t)i));
        for (int shift = 0; shift < 64; shift += 16)
            sum += (int32_t)(bits >> shift & 0xffff);
    }
    return (float)(sum - 12 * 65535 / 2) / 65536;
}

/* Fills rows from..from + span.count - 1 of an array (1, rows, heads, dim) with the numbers of
 * these tokens, rounded to its type: local row from + a is token span.first + a * span.stride, and
 * its number c of head h has the index (token * heads + h) * dim + c. */
cudaError_t oracle_fill(struct ra_tensor to, int64_t from, struct ra_span span, int64_t heads,
                        int64_t dim, enum oracle_stream stream, cudaStream_t cuda);

/* The whole sequence, bfloat16 arrays (tokens, heads, dim) without gaps, as oracle_fill makes them.
 * dim <= ORACLE_MOST_DIM. Query i sees the keys 0..i. */
struct oracle {
    int64_t tokens, heads, dim;
    double scale;
    const void *q, *k, *v, *d_out;
};

#define ORACLE_MOST_DIM 128

/* The answer for `count` rows, all arrays of double on the device: (count, heads, dim), and of lse,
 * delta and delta_unit (count, heads). Rows are query positions or key positions.
 *
 * A unit is what one rounding to 16 bits, relative to the numbers that are rounded, would make of
 * the result if all roundings were independent: the root of the sum of the squares. A weight p, a
 * dp - delta times p, and the results are rounded, so
 *     o      o^2 + sum p^2 v^2
 *     delta  sum over c of d_out^2 times o's
 *     dq     dq^2 + scale^2 (sum ds^2 k^2 + delta's times (sum p k)^2)
 *     dv     dv^2 + sum p^2 d_out^2
 *     dk     dk^2 + scale^2 (sum ds^2 q^2 + sum of delta's times p^2 q^2)
 * are the squares of the units. */
struct oracle_rows {
    double *o, *o_unit, *dq, *dq_unit, *lse, *delta, *delta_unit;
};

struct oracle_keys {
    double *dk, *dk_unit, *dv, *dv_unit;
};

/* Needs nothing but the inputs. */
cudaError_t oracle_rows(const struct oracle *oracle, const int64_t *rows, int64_t count,
                        const struct oracle_rows *answer, cudaStream_t cuda);

/* A key's gradients need lse, delta and delta's unit of every query after it, (tokens, heads). They
 * are given: all of them again would be all of the attention again. */
cudaError_t oracle_keys(const struct oracle *oracle, const int64_t *rows, int64_t count,
                        const double *lse, const double *delta, const double *delta_unit,
                        const struct oracle_keys *answer, cudaStream_t cuda);

/* delta and its unit of all rows of a shard, (rows, heads), from bfloat16 arrays o and d_out (rows,
 * heads, dim) without gaps: o is somebody's result, and half of its unit's square is taken to be
 * o^2, the other half the rounding of the weights. */
cudaError_t oracle_delta(const void *o, const void *d_out, int64_t rows, int64_t heads, int64_t dim,
                         double *delta, double *delta_unit, cudaStream_t cuda);

#ifdef __cplusplus
}
#endif

#endif
