/* ra_kernel: attention on one GPU, as one launch: a block of key rows against a block of query
 * rows, for all batches and heads.
 *
 * Chapter 11. Every kernel of the ladder, k01 to k07, is a pair of functions of this signature, so
 * any of them may stand in for any other. They are to a hop on a GPU what ra_tile.h is to a tile on
 * a CPU: the same band, the same carry, the same gradients that are added to.
 *
 * All pointers are to memory that the current device can reach. A launcher checks nothing that the
 * caller is to know (shapes, strides), launches, and returns at once; the stream does the rest.
 */
#ifndef RA_KERNEL_H
#define RA_KERNEL_H

#include <cuda_runtime_api.h>

#include "ra_band.h"
#include "ra_range.h"
#include "ra_tensor.h"
#include "ra_work.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What to compute. Letters: B batches, n query rows, m key rows, H query heads, G key/value heads,
 * D numbers per head, of values D_v. Any of B, n and m may be 0. Arrays are struct ra_tensor: (B,
 * rows, heads, D), (B, rows, heads, D_v) or (B, rows, heads), with strides in numbers, none of them
 * negative, and the numbers of a head side by side. What a launch does not use may stay empty. */
struct ra_kernel {
    int64_t batch, queries, keys, heads, key_heads, dim, dim_value; /* B, n, m, H, G, D, D_v */
    enum ra_head_map head_map;
    struct ra_score score;
    struct ra_band band; /* row a sees key b when lo <= b - a <= hi and the mask allows b */

    /* An edge of the band may have steps, for all kernels but k03: there a is the first row of its
     * step. If both have them, they are of one size. */
    struct ra_band_step band_step;

    /* Who sees whom as a list, instead, for k02, and for k07 if ra_k07_takes_forward or
     * ra_k07_takes_backward says so: tiles of queries in the forward, of keys in the backward; and
     * for dq tiles of queries, if ra_work_separates. Then band, band_step, first and last say
     * nothing, and all is one launch. */
    struct ra_work work, dq_work;

    /* Inputs. q (B, n, H, D), d_out (B, n, H, D_v), k (B, m, G, D) and v (B, m, G, D_v), of one
     * type: float32 for k01 and k02, float16 or bfloat16 for k03 to k07. mask (B, m) of bool, or
     * data NULL: all keys may be seen. Rows of k and v that the mask hides may hold NaN. */
    struct ra_tensor q, k, v, mask, d_out;

    /* Forward. The carry of the keys seen before, as in struct ra_queries, in float32: carry_o (B,
     * n, H, D_v), carry_max and carry_sum (B, n, H), of scores after scale and soft cap. With
     * `first` nothing was seen before and the carry is not read; with `last` nothing comes after:
     * it is not written, but o (B, n, H, D_v), of the inputs' type or float32, and lse (B, n, H),
     * float32. One launch adds up to ra_kernel_most_keys() keys well; more of them want several
     * launches. */
    bool first, last;
    struct ra_tensor carry_o, carry_max, carry_sum, o, lse;

    /* Beside the keys, each of float32 (H), or without data: it is not there. With `last` the sink
     * joins the softmax, and `largest` (see ra_kernel_largest) gets the largest score of a key.
     * slopes: to a score, after the soft cap, slope (j - i) is added, of a query in place i and a
     * key in place j: query_place (n) and key_place (m) are int32, whatever their type says. If
     * both ascend, neighbours are known by that, and are quicker. Only k02, k03, k06 and k07 know
     * extras; k04 and k05 go to k03, and k01 refuses them. */
    struct ra_tensor sink, largest, slopes, query_place, key_place;
    bool places_ascend;
    struct ra_tensor d_lse; /* float32 (B, n, H) or without data: of ra_kernel_delta */

    /* Backward: reads lse and delta (B, n, H) float32, adds to dq (B, n, H, D), dk (B, m, G, D) and
     * dv (B, m, G, D_v), all float32, any number of rows. Or dk and dv, or all three, are of the
     * inputs' type and are written, every row; dk and dv of float32, too, with `writes_keys`: see
     * ra_kernel_writes. With `deterministic` equal inputs give equal bits, run after run. */
    bool deterministic, writes_keys;
    struct ra_tensor delta, dq, dk, dv;

    /* For a deterministic backward ra_kernel_semaphores ints, which k03 needs; for k07's forward
     * one, with which its blocks draw their tiles, or NULL: then each tile has a block of its own.
     * They are 0 before the first launch and after each, and serve one launch at a time. */
    int *semaphores;

    /* What rounding has lost of sums in memory: in the forward of carry_o and carry_sum, in the
     * backward of dq, dk and dv; of their shapes and strides, float32, all 0 before the first
     * launch. Only k01 and k02 use them, and only those that are given: from some hundred launches
     * on float32 wants them. */
    struct ra_tensor o_comp, sum_comp, dq_comp, dk_comp, dv_comp;
};

/* Does anything beside the keys take part in this launch? */
static inline bool ra_has_extras(const struct ra_kernel *kernel)
{
    return kernel->sink.data || kernel->largest.data || kernel->slopes.data;
}

/* The largest D, and D_v, that a kernel takes. */
enum { RA_MOST_DIM = 256 };

/* Returns the larger one of D and D_v. */
static inline int64_t ra_kernel_widest(const struct ra_kernel *kernel)
{
    return ra_max(kernel->dim, kernel->dim_value);
}

/* Returns how many keys one launch of a forward may add up: its error stays below 10^-5 in float32,
 * below one rounding of the output in 16 bits. */
static inline int64_t ra_kernel_most_keys(enum ra_type type)
{
    return type == RA_BFLOAT16 ? 1 << 17 : 1 << 15;
}

/* The launchers. cudaErrorNotSupported: a type that this kernel has not, or D or D_v > RA_MOST_DIM;
 * of k03 also steps, and a GPU older than compute capability 8.0, for which no kernel is compiled:
 * there CUDA itself refuses the other launches. Any newer GPU will do: k03 asks it which shapes of
 * tiles it has room for. */
typedef cudaError_t ra_kernel_launch(const struct ra_kernel *kernel, cudaStream_t stream);
ra_kernel_launch ra_k01_forward, ra_k01_backward;
ra_kernel_launch ra_k02_forward, ra_k02_backward;
ra_kernel_launch ra_k03_forward, ra_k03_backward;

/* For compute capability 9.0; what they cannot take goes to k03. k06's backward is deterministic in
 * any case; k07's is k06's if it is to be. Neither needs semaphores, unless it is k03 that runs. */
ra_kernel_launch ra_k04_forward, ra_k05_forward, ra_k06_forward, ra_k07_forward;
ra_kernel_launch ra_k06_backward, ra_k07_backward;

/* Says which gradients of this launch the backward can write, as all that there is to be added is
 * of this launch: dk and dv (`keys`), in the inputs' type or in float32, and dq too (`queries`), in
 * the inputs' type. The rest it refuses with cudaErrorNotSupported. All other kernels only add. */
typedef cudaError_t ra_kernel_writes(const struct ra_kernel *kernel, bool *keys, bool *queries);
ra_kernel_writes ra_k06_writes, ra_k07_writes;

/* Says whether the backward computes dk and dv in a kernel of its own, before that of dq. Then a
 * launch may have one without the other: dq, or dk and dv, have no data. */
cudaError_t ra_k07_separates(const struct ra_kernel *kernel, bool *separates);

/* Says whether k07 can take this launch with a list. */
typedef cudaError_t ra_kernel_takes(const struct ra_kernel *kernel, bool *takes);
ra_kernel_takes ra_k07_takes_forward, ra_k07_takes_backward;

/* Returns how many ints `semaphores` has for these shapes, on any GPU. */
int64_t ra_kernel_semaphores(const struct ra_kernel *kernel);

/* Writes delta = sum over D_v of d_out * o, from o and d_out of any type; minus d_lse (B, n, H), if
 * it has data, in rows whose lse is not -inf. */
ra_kernel_launch ra_kernel_delta;

/* Around all launches of a forward that is to find the largest scores: begins with none, and ends
 * with numbers: -inf where no query saw a key, NaN where one has no answer. Between them `largest`
 * has ints that are ordered as the numbers are. */
ra_kernel_launch ra_kernel_begin_largest, ra_kernel_end_largest;

/* Writes d_sink (H) = -sum of exp(sink - lse) * delta over all batches and queries, in double and
 * in an order that is always the same. Reads sink, lse and delta. */
cudaError_t ra_kernel_sink_gradient(const struct ra_kernel *kernel, struct ra_tensor d_sink,
                                    cudaStream_t stream);

/* Computes to = from, or to = x + y, number by number, for arrays (batch, rows, heads, dim) of any
 * float types and strides. `to` may be x or y; y may have no data, and counts as 0. */
cudaError_t ra_kernel_copy(struct ra_tensor to, struct ra_tensor from, int64_t batch, int64_t rows,
                           int64_t heads, int64_t dim, cudaStream_t stream);
cudaError_t ra_kernel_sum(struct ra_tensor to, struct ra_tensor x, struct ra_tensor y,
                          int64_t batch, int64_t rows, int64_t heads, int64_t dim,
                          cudaStream_t stream);

/* Returns the part of an array that begins at this row; an array that is not there stays so. */
static inline struct ra_tensor ra_tensor_from_row(struct ra_tensor tensor, int64_t row)
{
    if (tensor.data)
        tensor.data = (char *)tensor.data + row * tensor.row * ra_type_bytes(tensor.type);
    return tensor;
}

/* Returns how many queries one launch of a backward may add up for a key, which H / G heads read:
 * whole steps of the band, at least one. Where there are more, they come in pieces of so many. */
static inline int64_t ra_kernel_most_queries(const struct ra_kernel *kernel)
{
    int64_t step = ra_max(1, ra_max(kernel->band_step.lo, kernel->band_step.hi));
    int64_t most = ra_kernel_most_keys(kernel->q.type) / (kernel->heads / kernel->key_heads);
    return ra_max(step, most - most % step);
}

/* Returns the same launch for up to `most` of its keys, from row b on. */
static inline struct ra_kernel ra_kernel_keys(struct ra_kernel kernel, int64_t b, int64_t most)
{
    kernel.keys = kernel.keys - b < most ? kernel.keys - b : most;
    kernel.band = ra_band_from(kernel.band, 0, b);
    kernel.k = ra_tensor_from_row(kernel.k, b);
    kernel.v = ra_tensor_from_row(kernel.v, b);
    kernel.mask = ra_tensor_from_row(kernel.mask, b);
    kernel.dk = ra_tensor_from_row(kernel.dk, b);
    kernel.dv = ra_tensor_from_row(kernel.dv, b);
    kernel.dk_comp = ra_tensor_from_row(kernel.dk_comp, b);
    kernel.dv_comp = ra_tensor_from_row(kernel.dv_comp, b);
    kernel.key_place = ra_tensor_from_row(kernel.key_place, b);
    return kernel;
}

/* Returns the same launch for up to `most` of its queries, from row a on, with which a step
 * begins. */
static inline struct ra_kernel ra_kernel_queries(struct ra_kernel kernel, int64_t a, int64_t most)
{
    kernel.queries = kernel.queries - a < most ? kernel.queries - a : most;
    kernel.band = ra_band_from(kernel.band, a, 0);
    kernel.q = ra_tensor_from_row(kernel.q, a);
    kernel.d_out = ra_tensor_from_row(kernel.d_out, a);
    kernel.o = ra_tensor_from_row(kernel.o, a);
    kernel.lse = ra_tensor_from_row(kernel.lse, a);
    kernel.delta = ra_tensor_from_row(kernel.delta, a);
    kernel.dq = ra_tensor_from_row(kernel.dq, a);
    kernel.dq_comp = ra_tensor_from_row(kernel.dq_comp, a);
    kernel.query_place = ra_tensor_from_row(kernel.query_place, a);
    return kernel;
}

#ifdef __cplusplus
}
#endif

#endif
