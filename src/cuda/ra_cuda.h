/* ra_cuda: what a plan for a GPU is made of, besides struct ra_plan. Internal.
 *
 * Chapter 11. ra_cuda_calls.c checks the calls, ra_cuda.c enqueues the ring and ra_cuda_fold.c its
 * work, block by block (ra_cuda_block.c); ra_cuda_plan.c has the memory and the life of a plan,
 * ra_cuda_errors.c what goes wrong and the waiting; ra_cuda_connect.c brings the ranks together,
 * ra_cuda_peers.c and ra_cuda_link.c pass messages. Here is what they need of each other.
 */
#ifndef RA_CUDA_H
#define RA_CUDA_H

#include "ra_kernel.h"
#include "ra_plan.h"
#include "ra_range.h"
#include "ra_signal.h"

/* ---- How messages pass. */

/* Another rank's memory, as this one writes to it. */
struct ra_peer {
    char *memory;      /* NULL: not reached, or not needed */
    bool opened;       /* by cudaIpcOpenMemHandle */
    int64_t keys[3];   /* offsets: of the places for visitors, 1 and 2 */
    int64_t sum, home; /* of the places where gradients arrive: those that go on, and its own */
    int64_t flags;     /* of the signals */
};

/* Events around a part of a step on its stream, for the observer. */
struct ra_cuda_timer {
    cudaEvent_t began, ended;
    bool recorded; /* and the observer does not know it yet */
};

/* One forward or backward: what its parts need. */
struct ra_cuda_call {
    struct ra_plan *plan;
    struct ra_arrays x;      /* what kernels work on */
    struct ra_arrays caller; /* the caller's; the same, unless rows are kept in another order */
    cudaStream_t stream;     /* the caller's */
    bool backward;
    bool keys_in_place; /* this rank's keys leave from the caller's arrays */

    /* The launches of this step write dk and dv, instead of adding to them; and a call's only launch does so
     * in the caller's arrays, and writes dq, too. */
    bool writes_keys, in_callers_keys, in_callers_queries;
    int number, backward_number; /* of this call, and of this backward */
};

/* A table for each transport. A message is named by its kind and by the step in which it is used by
 * its receiver; of gradients that come home, by the step in which they are sent. All functions enqueue
 * on the stream of this kind of message (ra_cuda_stream), or wait for it. */
struct ra_cuda_transport {
    const char *name;

    /* This rank's place for the message is free: it may come from now on. */
    void (*expect)(struct ra_cuda_call *call, enum ra_message message, int step);

    /* Sends the message. `timer` is that of the copy; may be NULL. */
    void (*push)(struct ra_cuda_call *call, enum ra_message message, int step,
                 struct ra_cuda_timer *timer);

    /* Holds the stream until the message of this step, if there is one, has come. */
    void (*await)(struct ra_cuda_call *call, enum ra_message message, int step);

    /* Tells the sender of the next message into the same place that there is room. */
    void (*room)(struct ra_cuda_call *call, enum ra_message message, int step);
};

extern const struct ra_cuda_transport ra_cuda_peer_copies, ra_cuda_device_link, ra_cuda_host_link;

/* ---- The plan's own part. */

struct ra_cuda {
    int device, processors;
    char device_name[64];
    int capability;              /* compute capability, times ten */
    enum ra_transport transport; /* RA_ANY_TRANSPORT: not agreed upon yet, or no messages */
    const struct ra_cuda_transport *pass;
    char why[200]; /* not a better transport */
    bool connected;

    /* Memory of the device, one allocation: first what is kept from call to call and what other ranks write to,
     * then the workspace, unless that is the caller's. The messages are those of plan->ring; but this rank's share of the
     * gradients of its own keys stays in gradients[0], and what the others add comes `home` to a place of its own: in a
     * ring of two steps to gradients[3], which nothing else needs there. */
    char *memory;
    float *home;
    int64_t device_bytes;

    /* In the workspace. */
    float *wide;              /* (B, n, H, D): the carry's o, and in the backward dq */
    float *max, *sum, *delta; /* (B, H, n) */

    /* What rounding loses of sums over very many rows: of `wide`, of `sum`, and of this rank's share of
     * dk and dv at one hop; else NULL. */
    float *wide_lost, *sum_lost, *share_lost;
    void *q, *k, *v, *rows, *lse; /* of ra_cuda_order.c, else NULL; rows: o or d_out */
    bool *mask;

    /* Kept from call to call. */
    int *semaphores;
    int *table; /* RA_SIGNALS and one more */
    int *flags; /* signals that this rank waits for: by kind of message, message or room, step */

    /* Host memory that the device reaches: what host and device tell each other, and messages that
     * pass through the host: keys as in the ring; gradients that come home, leave and arrive. */
    struct ra_trouble *trouble, *device_trouble;
    char *staging;
    void *host_keys[3];
    void *host_home, *host_out, *host_in;

    cudaStream_t keys_stream, gradients_stream;
    cudaEvent_t packed, keys_left, keys_arrived, computed, room_told, summed, gradients_arrived,
        ended;
    cudaEvent_t left[2]; /* gradients that were in place 1, or 2, are on their way */

    int calls, backwards; /* how many so far, modulo RA_SIGNALS */
    int64_t *steps; /* at which queries see keys, by their span; and how many of them are done */
    int64_t *steps_done;
    struct ra_peer *peers;
    char *arrived_at_end; /* one byte per rank, for the last exchange */

    /* For config.observe, else NULL: of the last forward and the last backward, by step and
     * ra_event_kind. The event `now` is there to be compared with. */
    struct ra_cuda_timer *timers;
    cudaEvent_t now;

    cudaError_t code; /* of the first CUDA call that failed, which one that was, and at which hop */
    char call[48];
    int failed_hop;

    int hop;                 /* that is being enqueued; -1: none */
    bool reaches_all_memory; /* also that of the host which CUDA does not know */
};

static inline struct ra_cuda *ra_cuda_of(const struct ra_plan *plan)
{
    return plan->own;
}

/* Does a message of this kind come to a rank for this step? Sums of gradients begin at step 1, as the shares of step 0
 * stay at home, so they come from step 2 on. What comes home does so once, at whatever step it is sent. */
static inline bool ra_cuda_comes(const struct ra_plan *plan, int rank, enum ra_message message,
                                 int step)
{
    if (message == RA_HOME)
        return ra_ring_sends(&plan->ring, rank, 0);
    return (message == RA_KEYS || step > 1) && ra_ring_receives(&plan->ring, rank, step);
}

/* The stream of a kind of message. */
static inline cudaStream_t ra_cuda_stream(const struct ra_plan *plan, enum ra_message message)
{
    const struct ra_cuda *cuda = plan->own;
    return message == RA_KEYS ? cuda->keys_stream : cuda->gradients_stream;
}

/* ---- ra_cuda_plan.c */

/* How many timers there are, if anybody observes. */
int64_t ra_cuda_timer_count(const struct ra_plan *plan);

/* Makes the plan's device the current one; returns which was. */
int ra_cuda_enter(const struct ra_plan *plan);

/* ---- ra_cuda_errors.c */

/* CUDA calls go through RA_DO: after the first that fails, or once the plan is lost, nothing more
 * is done. It is true as long as nothing has failed. */
#define RA_DO(plan, call) ra_cuda_note(plan, ra_cuda_goes_on(plan) ? (call) : cudaSuccess, #call)

bool ra_cuda_goes_on(const struct ra_plan *plan);

/* Notes the error of a call, whose name is the text up to its arguments. Returns
 * ra_cuda_goes_on. */
bool ra_cuda_note(struct ra_plan *plan, cudaError_t code, const char *call);

/* The text of the error that was noted. Returns RA_DEVICE. */
enum ra_status ra_cuda_error(const struct ra_plan *plan, char *error);

/* The timer of a part of a step, where the step behind the last stands for what step 0 has left; NULL if nobody
 * observes. And what marks it on a stream, in front of the work and behind it; without a timer they do
 * nothing. */
struct ra_cuda_timer *ra_cuda_timer(const struct ra_plan *plan, bool backward, int step,
                                    enum ra_event_kind kind);
void ra_cuda_begins(struct ra_plan *plan, struct ra_cuda_timer *timer, cudaStream_t stream);
void ra_cuda_ends(struct ra_plan *plan, struct ra_cuda_timer *timer, cudaStream_t stream);

/* The plan is at its end, for this reason or for the error that was noted: nothing on the device
 * waits any more, and the other ranks hear of it. Both return its status. */
enum ra_status ra_cuda_end_plan(struct ra_plan *plan, enum ra_status status, const char *text);
enum ra_status ra_cuda_end_by_cuda(struct ra_plan *plan);

/* Has the link failed, or a wait on the device? Then the plan is at its end. Does not wait for what
 * was enqueued. */
enum ra_status ra_cuda_listen(struct ra_plan *plan);

/* Waits until all is done that was enqueued. The second also says how it went. */
void ra_cuda_finish_all(struct ra_plan *plan);
enum ra_status ra_cuda_wait(struct ra_plan *plan);

/* ---- ra_cuda_calls.c and ra_cuda.c */

/* The calls of the backend; and the loop, whose arrays are checked. */
enum ra_status ra_cuda_forward_on(struct ra_plan *plan, const struct ra_arrays *arrays,
                                  void *stream);
enum ra_status ra_cuda_backward_on(struct ra_plan *plan, const struct ra_arrays *arrays,
                                   void *stream);
void ra_cuda_enqueue_forward(struct ra_cuda_call *call);
void ra_cuda_enqueue_backward(struct ra_cuda_call *call);

/* ---- ra_cuda_fold.c */

/* The part of a kernel that all launches of a plan have in common. */
struct ra_kernel ra_cuda_kernel(const struct ra_plan *plan);

/* A part of the work of a step: with these rows of the keys; and in the backward their gradients, or what they add to
 * those of the queries, or both. */
struct ra_cuda_part {
    struct ra_range rows;
    bool keys, queries;
};

/* All of it. */
struct ra_cuda_part ra_cuda_whole(const struct ra_plan *plan, int step);

/* Do the kernels of this step have the gradients of keys before they compute those of queries? */
bool ra_cuda_separates(struct ra_cuda_call *call, int step);

/* How many of this rank's own keys, the first, the backward leaves for the end: so many that the gradients of all of
 * them come home while it works on these. 0: it has no reason to. */
int64_t ra_cuda_rest_of_keys(const struct ra_plan *plan);

/* Folds a part of the keys of this step into the queries, but for spans of which nobody sees anything. */
void ra_cuda_fold(struct ra_cuda_call *call, int step, struct ra_cuda_part part);

/* Finds out which gradients the launches of this step can write: those that need no sum in memory. */
void ra_cuda_find_writes(struct ra_cuda_call *call, int step);

/* Counts the steps of a rank by span of queries (steps may be NULL); says whether one span has several
 * launches, between which there is a carry, and how many semaphores the backward needs. */
void ra_cuda_count_steps(const struct ra_plan *plan, int rank, int64_t *steps, bool *carries,
                         int64_t *semaphores);

/* ---- ra_cuda_order.c */

/* If a rank has several stripes, and the mask is causal, its rows are kept in the order of the sequence while a call
 * runs. This brings the caller's q, k, v, lse and d_out into it; kernels read these, and write o and lse, in call->x.
 * Then the mask, in any case copied, and delta, of the caller's o and d_out. */
void ra_cuda_begin_order(struct ra_cuda_call *call);
void ra_cuda_begin_mask(struct ra_cuda_call *call);
void ra_cuda_begin_delta(struct ra_cuda_call *call);

/* The way back: rows of float32 to one of the caller's arrays, plus others if these have data; and o and lse, at
 * the end of a forward. */
void ra_cuda_give_rows(struct ra_cuda_call *call, enum ra_side side, struct ra_tensor to,
                       struct ra_tensor from, struct ra_tensor plus, int64_t heads, int64_t dim);
void ra_cuda_end_order(struct ra_cuda_call *call);

/* ---- ra_cuda_block.c */

/* A rectangle in the plane of queries and keys: neighbouring spans of both, and their rows in the memory of the ranks
 * that have them, every row or every `stride`-th. It is the smallest that has all pairs of spans, of those asked for,
 * of which some query sees some key as far as the causal band goes. Does one band, from the first rows on and perhaps
 * with stairs, say who sees whom among all of them? */
struct ra_cuda_block {
    struct ra_range query_spans, key_spans, queries, keys;
    int64_t stride;
    struct ra_band band;
    struct ra_stairs stairs;
    bool one_band;

    /* How many pairs of spans it has, or if rows are in the order of the sequence, any number; 0: it is empty. */
    int64_t pairs;
};

/* Of these spans of the queries of a rank, and of the keys of a step. */
struct ra_cuda_block ra_cuda_block_of(const struct ra_plan *plan, int rank, int step,
                                      struct ra_range query_spans, struct ra_range key_spans);

/* How many stripes a rank has whose rows are kept in the order of the sequence; 1: rows stay as they are. Then row i
 * of stripe s is row i f + s, of f stripes. */
int64_t ra_cuda_stripes(const struct ra_plan *plan);

/* The rows of a span in memory, from the first to behind the last, with those of other stripes between. `before` are
 * those of the span before it. */
struct ra_range ra_cuda_next_rows(const struct ra_plan *plan, enum ra_side side, int rank,
                                  int64_t span, struct ra_range before);

/* ---- ra_cuda_connect.c */

/* What the ranks do together once they all have a plan. All get the same status and text. */
enum ra_status ra_cuda_connect(struct ra_plan *plan, char *error);

/* At the end of a plan, when nothing is under way here: lets go of the others' memory and waits
 * until all ranks have come here. False: they have not, and may still write to this one's. */
bool ra_cuda_disconnect(struct ra_plan *plan);

/* ---- ra_cuda_peers.c */

/* The rank that sent the message of this step, which is not the first. */
int ra_cuda_sender_of(const struct ra_plan *plan, int rank, int step);

/* How many signals a rank waits for; and writes them to the device as they are before the first
 * call, when what is first in its place has room. `flags` is host memory for that many. */
int64_t ra_cuda_flag_count(const struct ra_plan *plan);
void ra_cuda_begin_signals(struct ra_plan *plan, int *flags);

/* ---- ra_cuda_link.c */

/* Host memory for messages, if the host passes them; and how much a rank needs. */
enum ra_status ra_cuda_take_staging(struct ra_plan *plan, char *error);
int64_t ra_cuda_staging_bytes(const struct ra_plan *plan, int rank);

#endif
