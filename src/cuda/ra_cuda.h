/* ra_cuda: what a plan for a GPU is made of, besides struct ra_plan. Internal.
 *
 * Chapter 11. ra_cuda.c enqueues the calls, ra_cuda_plan.c has the life of a plan and its errors,
 * ra_cuda_peers.c what passes between ranks. Here is what they need of each other.
 */
#ifndef RA_CUDA_H
#define RA_CUDA_H

#include "ra_plan.h"
#include "ra_signal.h"

/* Another rank's memory, as this one writes to it. */
struct ra_peer {
    char *memory;         /* NULL: not reached, or not needed */
    bool opened;          /* by cudaIpcOpenMemHandle */
    int64_t keys[3];      /* offsets: of the places for visitors, 1 and 2 */
    int64_t gradients[4]; /* of 0, where gradients come home, and 3, where they arrive */
    int64_t words;        /* of the signals */
};

/* When a part of a step began and ended on its stream. */
struct ra_moment {
    cudaEvent_t began, ended;
    bool happened; /* and the observer does not know it yet */
};

struct ra_cuda {
    int device;
    char device_name[64];
    int capability;              /* compute capability, times ten */
    enum ra_transport transport; /* RA_ANY_TRANSPORT: not agreed upon yet, or no messages */
    char why[200];               /* not a better one */
    bool connected;

    /* Memory of the device, one allocation. */
    char *memory;
    int64_t device_bytes;
    float *wide;              /* (B, n, H, D): the carry's o, and in the backward dq */
    float *max, *sum, *delta; /* (B, H, n) */
    void *keys[3];            /* messages, as in struct ra_plan */
    float *gradients[4];
    bool *mask;
    int *turns;
    int *table; /* RA_SIGNALS and one more */
    int *words; /* signals that this rank waits for: by kind of message, message or room, step */

    /* Host memory that the device reaches: one allocation, but for the messages that pass through
     * the host. */
    struct ra_trouble *trouble, *device_trouble;
    char *staging;
    void *host_keys[3];
    void *host_home, *host_out, *host_in; /* gradients */

    cudaStream_t keys_stream, gradients_stream;
    cudaEvent_t packed, keys_left, keys_arrived, computed, summed, gradients_arrived, ended;
    cudaEvent_t left[3]; /* gradients that were in this place are on their way */

    int calls, backwards; /* how many so far, modulo RA_SIGNALS */
    int64_t *launches;    /* of the forward, by span of queries; and how many of them so far */
    int64_t *launched;
    struct ra_peer *peers;
    char *met; /* one byte per rank: all have come to the end */

    /* For config.observe, else NULL: of the last forward and the last backward, by step and
     * ra_event_kind. The event `now` is there to be compared with. */
    struct ra_moment *moments;
    cudaEvent_t now;

    cudaError_t code; /* of the first CUDA call that failed, which one that was, and at which hop */
    char call[48];
    int failed_hop;

    int hop;                 /* that is being enqueued; -1: none */
    bool reaches_all_memory; /* also that of the host which CUDA does not know */
};

/* ---- ra_cuda_plan.c */

/* What makes a plan one for a GPU: plan->device is its address. */
extern const struct ra_device ra_cuda_device;

/* Makes a plan on the current device out of a config that has been read, up to the point where the
 * other ranks are needed. */
ra_plan_builder ra_cuda_plan_build;

/* Host memory for messages, if the host passes them. */
enum ra_status ra_cuda_take_staging(struct ra_plan *plan, char *error);

/* CUDA calls go through RA_DO: after the first that fails, or once the plan is lost, nothing more
 * is done. It is true as long as all is well. */
#define RA_DO(plan, call) ra_cuda_note(plan, ra_cuda_goes_on(plan) ? (call) : cudaSuccess, #call)

bool ra_cuda_goes_on(const struct ra_plan *plan);

/* Notes the error of a call, whose name is the text up to its arguments. Returns
 * ra_cuda_goes_on. */
bool ra_cuda_note(struct ra_plan *plan, cudaError_t code, const char *call);

/* The moment of a part of a step; NULL if nobody observes. And what marks it on a stream, in front
 * of the work and behind it; without a moment they do nothing. */
struct ra_moment *ra_cuda_moment(const struct ra_plan *plan, bool backward, int step,
                                 enum ra_event_kind kind);
void ra_cuda_begins(struct ra_plan *plan, struct ra_moment *moment, cudaStream_t stream);
void ra_cuda_ends(struct ra_plan *plan, struct ra_moment *moment, cudaStream_t stream);

/* The plan is at its end, for this reason or for the error that was noted: nothing on the device
 * waits any more, and the other ranks hear of it. Both return its status. */
enum ra_status ra_cuda_end_plan(struct ra_plan *plan, enum ra_status status, const char *text);
enum ra_status ra_cuda_end_by_cuda(struct ra_plan *plan);

/* Has the link failed, or a wait on the device? Then the plan is at its end. Does not wait for what
 * was enqueued. */
enum ra_status ra_cuda_listen(struct ra_plan *plan);

/* ---- ra_cuda.c */

/* Counts the launches of a rank by span of queries (launches may be NULL); says whether one span
 * has several, between which there is a carry, and how many turns the backward needs. */
void ra_cuda_survey(const struct ra_plan *plan, int rank, int64_t *launches, bool *carries,
                    int64_t *turns);

/* ---- ra_cuda_peers.c */

/* The rest, together with all other ranks of the link. A rank that has no plan, for this status and
 * error, takes part with plan = NULL. All ranks get the same status and text. */
enum ra_status ra_cuda_plan_connect(struct ra_plan *plan, const struct ra_link *link,
                                    enum ra_status status, char *error);

/* At the end of a plan, when nothing is under way here: lets go of the others' memory and waits
 * until all ranks have come here. False: they have not, and may still write to this one's. */
bool ra_cuda_part(struct ra_plan *plan);

/* The rank that is `distance` places further on round the ring. */
int ra_cuda_rank_at(const struct ra_plan *plan, int rank, int distance);

/* What the schedule says of a rank at a step. Are there keys? Did they come by a message, and do
 * they go on? Or do their gradients go home from here? */
bool ra_cuda_has_keys(const struct ra_plan *plan, int rank, int step);
bool ra_cuda_receives(const struct ra_plan *plan, int rank, int step);
bool ra_cuda_sends(const struct ra_plan *plan, int rank, int step);
bool ra_cuda_sends_home(const struct ra_plan *plan, int rank, int step);

/* How far messages go at this step, which is not the last; and who sent those of this one, which is
 * not the first. */
int ra_cuda_jump(const struct ra_plan *plan, int step);
int ra_cuda_sender_of(const struct ra_plan *plan, int rank, int step);

/* How many signals a rank waits for; and writes them to the device as they are before the first
 * call, when what is first in its place has room. `words` is host memory for that many. */
int64_t ra_cuda_word_count(const struct ra_plan *plan);
void ra_cuda_begin_signals(struct ra_plan *plan, int *words);

/* The rest is enqueued, with `number` that of the call, or for gradients that of the backward.
 *
 * await holds the stream until another rank's message of this step has come or, with is_room, until
 * that rank has room for one. */
void ra_cuda_await(struct ra_plan *plan, int from, enum ra_message message, bool is_room, int step,
                   int number, cudaStream_t stream);

/* Tells whoever sends the next message into the place of this one that there is room. */
void ra_cuda_tell_of_room(struct ra_plan *plan, enum ra_message message, int step, int number,
                          cudaStream_t stream);

/* Sends a message to a place in another rank's memory, `offset` bytes from its beginning, once
 * there is room, and says so. Gradients that come home always have room. `moment` is that of the
 * copy. */
void ra_cuda_push(struct ra_plan *plan, int to, enum ra_message message, int step, int number,
                  int64_t offset, const void *from, int64_t bytes, struct ra_moment *moment,
                  cudaStream_t stream);

#endif
