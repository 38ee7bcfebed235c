/* ring_attention: exact attention over a sequence that is cut into shards, forward and backward.
 *
 * Chapter 08; chapters/08-reference.md lists every function. This header needs neither MPI nor
 * CUDA: with it alone, one process computes a whole sequence. Several ranks share one through a
 * link: over MPI (ring_attention_mpi.h), over threads (ring_attention_threads.h) or your own
 * (ra_link.h).
 *
 *     struct ra_config config = RA_CONFIG_INIT;       say what is to be computed,
 *     ra_plan_create(&plan, &config, NULL, error);    plan it: checks, layout, schedule, memory,
 *     ra_forward(plan, &arrays);                      compute, as often as you like,
 *     ra_plan_destroy(plan);
 *
 * Letters: B batches, N query rows, M key rows, H query heads, G key/value heads, D numbers per
 * head (D_v those of a value), P ranks of a ring. This rank has n of the N rows and m of the M: its
 * shard.
 *
 * Manners. Nothing is printed, no signal or exit is used, and there is no state outside a plan.
 * Memory is allocated when a plan is created and at no other time. Every function that can fail
 * returns a status, and the text of the error names the argument, what it was and what would be
 * right. A plan is used by one thread at a time, except that any thread may call ra_plan_cancel;
 * different plans may be used by different threads at once. NULL is no plan: functions that return
 * a status say RA_INVALID, others 0, -1 or nothing.
 *
 * Devices. A plan computes on the host, or where config.device says: ring_attention_cuda.h has
 * GPUs. Arrays lie in the memory in which their plan computes. All functions here are the same for
 * both; ra_shard copies in the host's memory.
 */
#ifndef RING_ATTENTION_H
#define RING_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Promised to stay within a minor version: what this header declares, what configs, arrays and
 * links are made of (ra_config, ra_status, ra_tensor, ra_link, ra_layout, ra_span, ra_slices,
 * ra_heads, struct ra_event, struct ra_scale_mask), ring_attention_mpi.h, ring_attention_threads.h
 * and ring_attention_cuda.h.
 *
 * There for the book, without a promise: the carry, the fold and the ring of the earlier chapters,
 * for a loop of your own (ra_queries, ra_keys, ra_tile_*, ra_carry_*, ra_band_*, ra_layout_pair,
 * ra_layout_fold, ra_layout_place, ra_slice_cut, ra_slices_walk, ra_slices_fold,
 * ra_slices_schedule, ra_walk_next, ra_schedule_*, ra_ring_*), which trust their arguments; and the
 * rest of the cost model (ra_scale_*). */

#include "ra_band.h"
#include "ra_carry.h"
#include "ra_config.h"
#include "ra_heads.h"
#include "ra_layout.h"
#include "ra_link.h"
#include "ra_ring.h"
#include "ra_schedule.h"
#include "ra_slices.h"
#include "ra_span.h"
#include "ra_status.h"
#include "ra_tensor.h"
#include "ra_tile.h"
#include "ra_version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the version of the library that is linked, as text: "0.9.0". */
const char *ra_version(void);

/* Returns a few words for a status, never NULL. */
const char *ra_status_text(enum ra_status status);

/* Writes RA_CONFIG_INIT, for other languages, which know the size of their struct ra_config and
 * give it. One that has no such struct gives 512 bytes, at an address that 8 divides, and sets
 * fields by name. */
void ra_config_init(struct ra_config *config, size_t size);

/* Sets config->field = value, with the field's name as text, for all fields but size, initialised,
 * observe, observer, device and expected. An enum is its number, a bool 0 or 1; a lookback of
 * infinity is no limit. RA_INVALID, with nothing set, if there is no such field or it cannot hold
 * this value. ra_plan_create checks whether the value is good. */
RA_CHECKED enum ra_status ra_config_set(struct ra_config *config, const char *field, double value,
                                        char error[RA_ERROR_SIZE]);

/* Reads *value = config->field, with the field's name as text, for the fields of ra_config_set. A
 * lookback without limit is infinity. */
RA_CHECKED enum ra_status ra_config_get(const struct ra_config *config, const char *field,
                                        double *value, char error[RA_ERROR_SIZE]);

/* A plan: layout, schedule and memory for calls of one shape. */
struct ra_plan;

/* Checks the config and makes a plan. If this fails, *plan is NULL and error, unless it is NULL,
 * has the reason.
 *
 * Without a link (NULL) the plan is for one process that has all rows. With a ring_size P above 1
 * it is then a plan to look at, as rank 0 of P ranks would have it: nothing can be computed with it
 * and no memory for that is allocated, but every question about shards, hops, bytes and work is
 * answered, for every rank.
 *
 * With a link this is the rank's part of a plan of all ranks of the link, which all call it
 * together. The link belongs to the plan from then on, also if this fails. Or the caller keeps it,
 * and gives each plan a copy whose `close` is NULL: then several plans can share the link, and the
 * caller closes it when all of them have been destroyed. All ranks create these plans, and make all
 * their calls, in the same order. While a call of one plan is not over, a call of another is
 * refused, like a second call of the same plan, and so is ra_plan_create. An error that ends one of
 * these plans ends all.
 *
 * The ranks compare what they were given: if one has a config that is wrong, or one that differs,
 * or no memory, all fail and get the same text, which names that rank and the field. A rank that
 * does not come is RA_LOST after config.timeout. What is no link (its rank is not in its ring, or a
 * function is missing), or is in use by a call, is RA_INVALID; nothing of it is called, and it
 * stays the caller's. */
RA_CHECKED enum ra_status ra_plan_create(struct ra_plan **plan, const struct ra_config *config,
                                         const struct ra_link *link, char error[RA_ERROR_SIZE]);

/* Ends the call of this plan that is under way, from another thread or from a signal handler: it is
 * async-signal-safe, and returns at once. The call notices it when it next looks, every hundredth
 * of a second while it waits and after every tile while it computes, and returns RA_CANCELLED. The
 * other ranks of the ring get RA_LOST and a text that names this rank, as if it had failed. The
 * plan is at its end: if no call was under way, the next one returns RA_CANCELLED. With NULL
 * nothing happens.
 *
 * May be called from when ra_plan_create has returned the plan until ra_plan_destroy is called. A
 * link of the caller's own without `cancel` completes its wait first (ra_link.h). On a GPU, kernels
 * that have begun are completed, and the call returns after them. */
void ra_plan_cancel(struct ra_plan *plan);

/* Frees a plan and its link; NULL is none. A plan of several ranks is destroyed by all of them
 * together, with a link over MPI before MPI_Finalize; over MPI each waits for the others, ten
 * seconds at most. After RA_LOST or RA_CANCELLED it does not free memory to which the link may
 * still write. If the caller has kept the link, that is all the memory of the plan whose call
 * failed. */
void ra_plan_destroy(struct ra_plan *plan);

/* Returns the text of the last error of a call with this plan; "" if there was none. It belongs to
 * the plan and is changed by its next error. */
const char *ra_plan_error(const struct ra_plan *plan);

/* Writes the config of the plan, with all defaults filled in: keys, key_heads, dim_value, scale,
 * ring_size, and the tiles that are used. With it a binding can check the shapes of its arrays
 * before a call. `size` is the size of the caller's struct, or 512 as in ra_config_init. NULL is no
 * plan: all defaults. */
void ra_plan_config(const struct ra_plan *plan, struct ra_config *config, size_t size);

/* Returns the number of this rank in its ring, 0..P-1; and P. */
int ra_plan_rank(const struct ra_plan *plan);
int ra_plan_ranks(const struct ra_plan *plan);

/* Queries (and o, lse and their gradients) are sharded one way, keys and values another. */
enum ra_side { RA_QUERY_SIDE, RA_KEY_SIDE };

/* Counts the rows of each batch that this rank has, n or m. */
int64_t ra_plan_rows(const struct ra_plan *plan, enum ra_side side);

/* Returns which row of the whole, 0..N-1 or 0..M-1, is local row `row` of this rank; -1 if it has
 * no such row. Or writes all of them at once: positions has room for ra_plan_rows numbers. */
int64_t ra_plan_position(const struct ra_plan *plan, enum ra_side side, int64_t row);
void ra_plan_positions(const struct ra_plan *plan, enum ra_side side, int64_t *positions);

/* Returns the layout of a side, by which ra_layout.h says for every rank what ra_plan_rows and
 * ra_plan_position say for this one. */
struct ra_layout ra_plan_layout(const struct ra_plan *plan, enum ra_side side);

/* Counts all the bytes that the plan holds on this rank, or would hold if it is one to look at.
 * With config.caller_workspace this does not include the workspace. */
int64_t ra_plan_bytes(const struct ra_plan *plan);

/* Counts the bytes that this rank needs as workspace, the memory in which the plan's calls compute.
 * Nothing in it is kept from one call to the next. */
int64_t ra_plan_workspace_bytes(const struct ra_plan *plan);

/* Gives a plan with config.caller_workspace the block of memory in which its calls compute from now
 * on. It has at least ra_plan_workspace_bytes, with any contents, where the plan computes, and its
 * address is a multiple of 64, or of 256 on a GPU. NULL takes the block back.
 *
 * The block stays the caller's, who may use it for anything between two calls, and for other plans.
 * Two calls must not use it at the same time: on the host the later one returns RA_INVALID if both
 * plans were given the same address. The caller may free it after the last call, or once it has
 * been taken back with NULL. After RA_LOST or RA_CANCELLED a link may still write to it: then the
 * caller must not use or free it, over ra_thread_links until the link is closed (by
 * ra_plan_destroy, unless the caller keeps the link), over MPI ever again.
 *
 * RA_INVALID: nothing has changed. */
RA_CHECKED enum ra_status ra_plan_set_workspace(struct ra_plan *plan, void *workspace,
                                                int64_t bytes);

/* Who gets which rows under a mask of slices: as config.layout says, or document by document, so
 * that all ranks have as much to do (ra_deal.h). */
enum ra_deal { RA_DEAL_LAYOUT, RA_DEAL_DOCUMENTS };

/* Gives a plan with config.max_slices > 0 the mask of its calls from now on, in the place of causal
 * and lookback: `count` slices, 0 to max_slices, that do not overlap. They are copied. With
 * RA_DEAL_DOCUMENTS rows are dealt anew, so rows, positions, layouts, hops, shard and unshard speak
 * of this list from now on; ra_plan_layout's answer holds until the next call. Cheap: for another
 * mask with every batch. A backward is given the mask of its forward.
 *
 * All ranks give the same list. Nothing is sent here; if ranks differ, the next call is RA_LOST on
 * those that would use numbers of the other list, before they do, and on all others by the time
 * that they need anything of these. RA_INVALID: slices lie beyond the sequences or overlap,
 * or there is no room for so many or for so many rows; nothing has changed. */
RA_CHECKED enum ra_status ra_plan_set_slices(struct ra_plan *plan, const struct ra_slice *slices,
                                             int64_t count, enum ra_deal deal);

/* Sets the mask as ra_plan_set_slices does, with rows dealt as they are in another plan now, which
 * has the same queries, keys, layout and ring, at least its slices of room here, and no call under
 * way: so that plans whose masks differ, of layers with a window and without one, compute on the
 * same rows. `other` is not needed afterwards. RA_INVALID: as for ra_plan_set_slices, or the plans
 * do not go together. */
RA_CHECKED enum ra_status ra_plan_set_slices_like(struct ra_plan *plan,
                                                  const struct ra_slice *slices, int64_t count,
                                                  const struct ra_plan *other);

/* Counts the pairs of a query of this rank of the ring and a key that it sees, of all ranks' keys,
 * key masks not looked at: its share of the work, by which a mask is balanced or not. -1: no such
 * rank. */
int64_t ra_plan_work(const struct ra_plan *plan, int rank);

/* Counts the hops of this ring, 1..P, the one at home included. */
int ra_plan_hops(const struct ra_plan *plan);

/* What a rank does in one hop of the forward or of the backward. */
struct ra_hop {
    int distance;          /* the keys are those of the rank so far to the left */
    int origin;            /* which rank that is */
    int64_t multiply_adds; /* of matrix products, in the tiles that are computed */
    int64_t tiles_skipped; /* because nobody in them sees anything */
    int64_t messages;      /* that the rank sends */
    int64_t bytes;         /* in them; what heads are exchanged in counts in hop 0 */
};

/* Describes hop number `step`, 0..ra_plan_hops-1, of a rank of this ring, 0..P-1, before it runs.
 * Masks are not looked at. RA_INVALID: there is no such rank or hop; or a count is above INT64_MAX,
 * and then the two that can be, multiply_adds and tiles_skipped, are 0. ra_plan_describe writes any
 * count. */
RA_CHECKED enum ra_status ra_plan_hop(struct ra_plan *plan, int rank, int step, bool backward,
                                      struct ra_hop *hop);

/* Writes what the plan is going to do on this rank of the ring, as lines of text: shapes, rows,
 * what each hop computes, skips and sends, memory. Writes at most size - 1 characters and a final
 * 0, and returns how many the whole text has, like snprintf; -1 if there is no such rank. */
int64_t ra_plan_describe(struct ra_plan *plan, int rank, char *text, size_t size);

/* This rank's part of all arrays of a call. Begin with RA_ARRAYS_INIT. What a call does not use
 * may stay empty. Outputs overlap no other array; inputs may. */
struct ra_arrays {
    size_t size;
    struct ra_tensor q;      /* (B, n, H, D) */
    struct ra_tensor k, v;   /* (B, m, G, D) and (B, m, G, D_v) */
    struct ra_tensor mask;   /* (B, m) of RA_BOOL, true: this key may be seen; if has_mask */
    struct ra_tensor o, lse; /* (B, n, H, D_v), and float32 (B, n, H): out of the forward, into the
                                 * backward */
    struct ra_tensor d_out;  /* (B, n, H, D_v): the gradient of o */
    struct ra_tensor dq;     /* (B, n, H, D): out of the backward, overwritten, not added to */
    struct ra_tensor dk, dv; /* (B, m, G, D) and (B, m, G, D_v): the same */

    /* Each of these may stay empty, and then it is not part of the attention. Numbers of each head
     * are float32 (H), as of ra_tensor_h; the ranks of a ring give the same. */
    struct ra_tensor d_lse;  /* float32 (B, n, H): the gradient of lse, into the backward */
    struct ra_tensor sink;   /* (H): joins the softmax of each query as one more score, without a
                               * value */
    struct ra_tensor d_sink; /* (H): out of the backward, of this rank's queries alone; if heads are
                               * exchanged, of its heads for all rows of its group, of others 0 */
    struct ra_tensor slopes; /* (H), ALiBi: slope * (j - i) is added to the score of query i and
                               * key j, after the soft cap */
    struct ra_tensor largest; /* (H): out of the forward, the largest score that this rank's queries
                               * see; -inf: they see no key; NaN: one of them has a NaN in lse; if
                               * heads are exchanged, of its heads as d_sink, of others -inf */
};

#define RA_ARRAYS_INIT                                                                          \
    {                                                                                           \
        sizeof(struct ra_arrays), RA_NO_TENSOR, RA_NO_TENSOR, RA_NO_TENSOR, RA_NO_TENSOR,       \
            RA_NO_TENSOR, RA_NO_TENSOR, RA_NO_TENSOR, RA_NO_TENSOR, RA_NO_TENSOR, RA_NO_TENSOR, \
            RA_NO_TENSOR, RA_NO_TENSOR, RA_NO_TENSOR, RA_NO_TENSOR, RA_NO_TENSOR                \
    }

/* Computes o = softmax over the keys that each query sees, of their scores, times v; lse = log of
 * the sum of exp(score). A query that sees nothing gets o = 0 and lse = -inf; one that sees a key
 * with a score that is NaN, or above 3.4e38 in magnitude, gets NaN. Nothing of a key reaches a
 * query that does not see it. (GPUs differ in details: see Limits in the reference.) All ranks of a
 * ring call it together. Reads q, k, v and mask, writes o and lse.
 *
 * With slopes, the distance j - i is that of the whole sequences; if M is not N, query i counts as
 * row i + M - N, as under a causal mask, whatever the mask is. It is an integer, rounded to float32
 * once. With sinks, lse is that of the sum which has exp(sink) in it; a query that sees no key gets
 * o = 0 and lse = sink. A sink of -inf is none; one that is NaN or inf makes o and lse of its head
 * NaN. Of plans whose results are merged by lse, one has the sink. The largest scores do not count
 * sinks.
 *
 * RA_INVALID: an array is wrong, and nothing was written. If the plan has other ranks, they get
 * RA_LOST and the same text, at the latest in their next call, and the plan is at its end on all of
 * them. Or another call of this plan is not over, in another thread or because this one comes from
 * its observer: that call goes on, and this one has done nothing. RA_LOST: outputs may be half
 * written. All ranks make the same calls in the same order: they count them, and if two that pass
 * each other messages are in different calls, that is RA_LOST on all, before a number of another
 * call is used. What no rank can see are two calls of one kind with the same number: see Limits in
 * the reference. */
RA_CHECKED enum ra_status ra_forward(struct ra_plan *plan, const struct ra_arrays *arrays);

/* Computes the gradients of q, k and v, given that of o, for the o and lse that ra_forward wrote
 * for the same q, k, v and mask. Reads all of these and d_out, writes dq, dk and dv. Otherwise as
 * ra_forward. A query that saw nothing has dq = 0 and adds nothing to dk and dv. lse is the natural
 * logarithm, of scores after scale and soft cap; delta = sum of d_out * o, the D of other texts, is
 * computed inside, from the o that is given.
 *
 * Slopes must be those of the forward, too. With d_lse, the gradient of lse, delta is less by
 * d_lse, of queries that have an lse other than -inf. With d_sink, for the sink of the forward,
 * d_sink = -sum of exp(sink - lse) * delta over all batches and this rank's queries, added up in
 * double and in order: it must be added up over the ranks, as gradients of weights are, and over
 * plans of different queries, but not over plans whose results were merged by lse.
 *
 * o and lse may also be of more keys than this plan has, merged from the results of several plans.
 * Then dq is only the part that comes from this plan's keys, and the sum over plans that together
 * have all the keys is dq. dk and dv of a key are complete if this plan has all queries that see
 * it, and partial otherwise. So plans can be the hops of a ring of your own.
 *
 * lse is float32, so off by up to e = |lse| * 2^-24, and that multiplies the query's share of all
 * gradients by up to exp(e): 1.06 if lse is 10^6. From 10^8 on nothing is left of them. */
RA_CHECKED enum ra_status ra_backward(struct ra_plan *plan, const struct ra_arrays *arrays);

/* Returns when all calls of this plan are done, and says how they went. ra_forward and ra_backward
 * return when they are done; this is for calls that only enqueue (ring_attention_cuda.h). */
RA_CHECKED enum ra_status ra_wait(struct ra_plan *plan);

/* Copies this rank's rows out of a whole array, and back to their places in it. Arrays are (outer,
 * rows, row_bytes) without gaps, and do not overlap: for (B, N, H, D) outer is B and a row H * D
 * numbers; for (B, H, N) outer is B * H and a row one number. whole has N or M rows, local n or m.
 * Anything that has a row per token can be sharded: labels, too. No other rank is involved. */
RA_CHECKED enum ra_status ra_shard(struct ra_plan *plan, enum ra_side side, int64_t outer,
                                   int64_t row_bytes, const void *whole, void *local);
RA_CHECKED enum ra_status ra_unshard(struct ra_plan *plan, enum ra_side side, int64_t outer,
                                     int64_t row_bytes, const void *local, void *whole);

#ifdef __cplusplus
}
#endif

#endif
