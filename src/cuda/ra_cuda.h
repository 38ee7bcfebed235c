/* ra_cuda: what a plan for a GPU is made of, besides struct ra_plan. Internal.
 *
 * Chapter 11. From the top down: ra_cuda_plan.c has the memory and the life of a plan,
 * ra_cuda_calls.c checks the calls, and ra_cuda_ring.c enqueues the ring. ra_cuda_reorder.c brings
 * rows into the order that kernels need, ra_cuda_launch.c launches them: what ra_cuda_steps.c has
 * listed when the plan was made, of the rectangles of ra_cuda_spans.c; or by lists of work, which
 * ra_cuda_lists.c makes of slices; ra_cuda_places.c says where rows lie. ra_cuda_connect.c brings
 * the ranks together; ra_cuda_peers.c and ra_cuda_link.c pass messages. ra_cuda_wait.c waits, and
 * ends what has failed; ra_cuda_observe.c tells the observer. Above all of them ra_cuda_exchange.c
 * exchanges heads: its plans have another one inside, of the ring.
 */
#ifndef RA_CUDA_H
#define RA_CUDA_H

#include "ra_exchange_parts.h"
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

    /* Of the arrays of its heads, if these are exchanged. */
    int64_t parts[RA_EXCHANGE_PARTS];
};

/* Events around a part of a step on its stream, for the observer. */
struct ra_cuda_timer {
    cudaEvent_t began, ended;
    bool recorded; /* and the observer does not know it yet */
};

/* One forward or backward: what its parts need. */
struct ra_cuda_call {
    struct ra_plan *plan;
    struct ra_arrays arrays; /* what kernels work on */
    struct ra_arrays caller; /* the caller's; the same, unless rows are kept in another order */
    cudaStream_t stream;     /* the caller's */
    bool backward;
    bool keys_in_place; /* this rank's keys leave from the caller's arrays */

    /* The only launch of a call writes dk and dv in the caller's arrays; and dq, too. */
    bool in_callers_keys, in_callers_queries;
    bool listed;                 /* with slices: every step is one launch, with a list of work */
    int number, backward_number; /* of this call, and of this backward */
};

/* A table for each transport. A message is named by its kind and by the step in which it is used by
 * its receiver; of gradients that come home, by the step in which they are sent. All functions
 * enqueue on the stream of this kind of message (ra_cuda_stream), or wait for it. */
struct ra_cuda_transport {
    const char *name;

    /* This rank's place for the message is free: it may come from now on. */
    void (*expect)(struct ra_cuda_call *call, enum ra_message message, int step);

    /* Sends the message. `timer` is that of the copy; may be NULL. */
    void (*push)(struct ra_cuda_call *call, enum ra_message message, int step,
                 struct ra_cuda_timer *timer);

    /* Instead of push, where there is nothing to send. */
    void (*skip)(struct ra_cuda_call *call, enum ra_message message, int step);

    /* Holds the stream until the message of this step, if there is one, has come. */
    void (*await)(struct ra_cuda_call *call, enum ra_message message, int step);

    /* Tells the sender of the next message into the same slot that it is free; at every step. */
    void (*credit)(struct ra_cuda_call *call, enum ra_message message, int step);
};

/* ---- The plan's own part. */

/* What the launches of a rank need of memory: a carry, as some queries have several launches; and
 * this many semaphores. */
struct ra_cuda_needs {
    bool carry;
    int64_t semaphores;
};

struct ra_cuda {
    int device, processors;
    char device_name[64];
    int capability;              /* compute capability, times ten */
    enum ra_transport transport; /* RA_ANY_TRANSPORT: not agreed upon yet, or no messages */
    const struct ra_cuda_transport *pass;
    char why[200]; /* not a better transport */
    bool connected;
    int sharing; /* how many ranks of this process the device has */

    /* Memory of the device, one allocation: first what is kept from call to call and what other
     * ranks write to, then the workspace, unless that is the caller's. The messages are those of
     * plan->ring; but this rank's share of the gradients of its own keys stays in gradients[0], and
     * what the others add comes `home` to a place of its own: in a ring of two steps to
     * gradients[3], which nothing else needs there. */
    char *memory;
    float *home;
    int64_t device_bytes;

    /* In the workspace. */
    float *wide;              /* (B, n, H, D_v): the carry's o; in the backward (B, n, H, D): dq */
    float *max, *sum, *delta; /* (B, H, n) */

    /* What rounding loses of sums over very many rows: of `wide`, of `sum`, and of this rank's
     * share of dk and dv at one hop; else NULL. */
    float *wide_comp, *sum_comp, *share_comp;
    void *q, *k, *v, *rows, *lse; /* of ra_cuda_reorder.c, else NULL; rows: o or d_out */
    bool *mask;

    /* Kept from call to call. */
    int *semaphores;
    int *table; /* RA_SIGNALS and one more */
    int *flags; /* signals that this rank waits for: by kind of message, message or credit, step */

    /* Host memory that the device reaches: what host and device tell each other, and messages that
     * pass through the host: keys as in the ring; gradients that come home, leave and arrive. */
    struct ra_device_error *device_error, *mapped_error;
    char *staging;
    void *
        parts[RA_EXCHANGE_PARTS]; /* of exchanged heads, on the device: the arrays of this rank's */
    void *host_keys[3];
    void *host_home, *host_out, *host_in;

    /* The plan that this one is a part of, if heads are exchanged: what fails in either fails in
     * both, so errors and what signals say are those of that plan. Else NULL. */
    struct ra_cuda *outer;
    const struct ra_link *outer_link;

    cudaStream_t keys_stream, gradients_stream;
    cudaEvent_t packed, keys_left, keys_arrived, computed, credit_sent, summed, gradients_arrived,
        ended;
    cudaEvent_t left[2]; /* gradients that were in place 1, or 2, are on their way */

    int calls, backwards; /* how many so far, modulo RA_SIGNALS */
    struct ra_cuda_needs needs;
    struct ra_cuda_step *steps;  /* and what is launched at each */
    struct ra_cuda_lists *lists; /* of slices, of ra_cuda_lists.c; NULL: the plan takes none */
    char *list_memory;           /* on the device */

    /* Where rows lie, for slopes: on the device, and on the host, from which they are copied. */
    int32_t *places, *host_places;
    cudaEvent_t places_copied;
    bool places_sent;   /* the device has those of the mask of today */
    bool places_ascend; /* from row to row */
    int64_t deferred;   /* of this rank's own keys are left for the end of a backward */
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

/* What has the errors and the table of signals of a plan. */
static inline struct ra_cuda *ra_cuda_speaker(const struct ra_plan *plan)
{
    struct ra_cuda *cuda = plan->own;
    return cuda->outer ? cuda->outer : cuda;
}

/* Returns the larger one of D and D_v. */
static inline int64_t ra_cuda_widest(const struct ra_config *c)
{
    return ra_max(c->dim, c->dim_value);
}

/* Are D and D_v multiples of 8, as TMA wants them? */
static inline bool ra_cuda_in_eights(const struct ra_config *c)
{
    return c->dim % 8 == 0 && c->dim_value % 8 == 0;
}

/* Counts the bytes of so many rows of k (dim: D) or of v (D_v), as they travel. A message has k,
 * then v, then the mask. */
static inline int64_t ra_cuda_key_bytes(const struct ra_config *c, int64_t rows, int64_t dim)
{
    return c->batch * rows * c->key_heads * dim * ra_type_bytes(c->type);
}

/* Do messages pass between the ranks of a plan? */
static inline bool ra_cuda_has_messages(const struct ra_plan *plan)
{
    return plan->inner || plan->ring.schedule.count > 1;
}

/* Does a message of this kind come to a rank for this step? Sums of gradients begin at step 1, as
 * the shares of step 0 stay at home, so they come from step 2 on. What comes home does so once, at
 * whatever step it is sent. */
static inline bool ra_cuda_expects_message(const struct ra_plan *plan, int rank,
                                           enum ra_message message, int step)
{
    if (message == RA_GRADIENTS_RETURN)
        return ra_ring_sends(&plan->ring, rank, 0);
    return (message == RA_KEYS || step > 1) && ra_ring_receives(&plan->ring, rank, step);
}

/* The stream of a kind of message. */
static inline cudaStream_t ra_cuda_stream(const struct ra_plan *plan, enum ra_message message)
{
    const struct ra_cuda *cuda = plan->own;
    return message == RA_KEYS ? cuda->keys_stream : cuda->gradients_stream;
}

/* ---- ra_cuda.c */

/* Returns the part of a kernel that all launches of a plan have in common. */
struct ra_kernel ra_cuda_kernel(const struct ra_plan *plan);

/* Makes the plan's device the current one; returns which was. */
int ra_cuda_enter(const struct ra_plan *plan);

/* CUDA calls go through RA_DO: after the first that fails, or once the plan is lost, nothing more
 * is done. It is true as long as nothing has failed. */
#define RA_DO(plan, call) ra_cuda_note(plan, ra_cuda_ok(plan) ? (call) : cudaSuccess, #call)

bool ra_cuda_ok(const struct ra_plan *plan);

/* Notes the error of a call, whose name is the text up to its arguments. Returns
 * ra_cuda_ok. */
bool ra_cuda_note(struct ra_plan *plan, cudaError_t code, const char *call);

/* Writes the text of the error that was noted. Returns RA_DEVICE. */
enum ra_status ra_cuda_error(const struct ra_plan *plan, char *error);

#endif
