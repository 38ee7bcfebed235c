/* ra_plan: what a plan is made of. Internal: callers see `struct ra_plan` from outside.
 *
 * Chapter 08. A plan knows who has which rows and what happens at each step. Where it computes is a
 * backend's business: ra_host.c on the host, ra_cuda_plan.c on a GPU.
 */
#ifndef RA_PLAN_H
#define RA_PLAN_H

#include <stdatomic.h>
#include "ra_arena.h"
#include "ra_deal.h"
#include "ring_attention.h"

/* A mask that ra_plan_set_slices has read, and what follows from it. The lists are in memory of
 * their own. */
struct ra_mask {
    struct ra_slices slices;
    struct ra_layout_list lists[2];
    struct ra_layout layouts[2];
    struct ra_schedule schedule;
    int64_t *key_rows;
    void *slice_storage, *deal_storage;
    int *schedule_storage;
};

struct ra_plan {
    struct ra_config config; /* with all defaults filled in */
    struct ra_score score;
    struct ra_link link;         /* send is NULL: one rank */
    struct ra_layout planned[2]; /* by side: whose rows are whose, as the config says */
    struct ra_layout layouts[2]; /* and as the slices in use say */
    int64_t rows[2];             /* of this rank, by side: n and m */
    struct ra_ring ring;         /* its messages are the backend's */
    struct ra_schedule needed;   /* who needs whose keys; the ring's is the same, or all hops */
    struct ra_slices slices;     /* the mask, always; the config's is a list of one */
    bool listed;                 /* it is one of ra_plan_set_slices */
    enum ra_deal deal;
    bool dry_run;    /* no memory to compute with */
    char *workspace; /* the caller's, and how large it is; NULL: there is none */
    int64_t workspace_bytes;
    const struct ra_backend *backend;
    void *own;             /* the backend's part of the plan */
    bool elsewhere;        /* another rank's, of ra_groups_part: `own` is still this rank's */
    int64_t fixed_bytes;   /* of the plan itself, its schedule and its link */
    enum ra_status status; /* not RA_OK: the plan is at its end */
    atomic_bool cancelled; /* by ra_plan_cancel: the plan ends when its call next looks */
    atomic_flag busy;      /* in a call */
    atomic_bool reentered; /* another call came meanwhile */
    char error[RA_ERROR_SIZE];
    struct ra_slice own_slice;
    int64_t own_reach;
    struct ra_mask *masks[2]; /* of lists: the one in use, and the next; NULL: max_slices is 0 */

    /* What this rank computes once heads have been exchanged, some heads of all rows of its group,
     * as a rank of the ring of groups; or once keys have been gathered on a GPU, all heads of its
     * queries. NULL: the plan itself computes. */
    struct ra_plan *inner;

    /* How the method was chosen, for ra_plan_describe; NULL: the config names it. */
    char *choice;
};

struct ra_meter; /* ra_meter.h */

/* Where a plan computes. */
struct ra_backend {
    const char *place; /* "the host": for texts, and compared between ranks */

    /* Which arrays are allowed: inputs of float32 in a plan of another type; negative strides; and
     * whether the array of this name, or the workspace, may be at this address. NULL: anywhere. */
    bool converts_inputs, negative_strides;
    enum ra_status (*check_address)(const struct ra_plan *plan, const char *name,
                                    const void *address, char *error);

    /* Which methods it has, besides RA_RING: bit m of enum ra_method; and whether it has config's,
     * if that depends on more. NULL: it does not. */
    unsigned methods;
    enum ra_status (*check_method)(const struct ra_config *config, char *error);

    /* Ranks exchange heads here, or gather keys by the same means, by the methods whose bits are
     * set in `exchanges`. A plan of another method, or of groups of one rank, is of the backend
     * keys_move, in the same place; NULL: it is of this one. */
    unsigned exchanges;
    const struct ra_backend *keys_move;

    /* Takes the arrays that may be empty: d_lse, sink, d_sink, slopes, largest. */
    bool takes_optional;

    /* dk and dv of float32 are added up in the caller's arrays if no keys travel: see
     * ra_plan_adds_in_place. */
    bool adds_in_place;

    /* In the backward a rank's share of the gradients of its own keys is not sent. */
    bool own_gradients_stay;

    /* What ranks measure with to choose a method; NULL: here they do not choose. */
    const struct ra_meter *meter;

    /* What ranks exchange is written where it is used, and not packed into messages. */
    bool exchanges_in_place;

    /* Takes what the plan needs to compute, and sets `own`. A plan to look at needs no memory for
     * arrays. If it fails, there is nothing to free. */
    enum ra_status (*create)(struct ra_plan *plan, char *error);

    /* What the ranks do together once they all have a plan; NULL: nothing. If it fails, it fails on
     * all of them. */
    enum ra_status (*connect)(struct ra_plan *plan, char *error);

    /* All the memory of the plan on a rank of the ring, without the plan itself and its link, and
     * without its workspace if that is the caller's. And how large the workspace is. */
    int64_t (*bytes)(const struct ra_plan *plan, int rank);
    int64_t (*workspace_bytes)(const struct ra_plan *plan, int rank);

    /* Computes in this workspace from now on, which begins at a multiple of `line` bytes. */
    void (*use_workspace)(struct ra_plan *plan, char *workspace);
    int64_t line;

    /* The plan has another mask, and so other rows and another schedule; within the rooms below.
     * NULL: the backend computes no slices. */
    enum ra_status (*use_slices)(struct ra_plan *plan, char *error);

    /* With slices the ring has all hops as its steps, whatever the mask: who waits for whom must
     * not depend on it. How far keys travel does. */
    bool keeps_hops;

    /* Lines for ra_plan_describe; returns like snprintf. NULL: none. */
    int (*describe)(const struct ra_plan *plan, int rank, char *text, size_t size);

    /* The calls. With a stream, which is the backend's to understand, they may return before the
     * work is done; then wait waits for it. NULL: there is nothing to wait for. */
    enum ra_status (*forward)(struct ra_plan *plan, const struct ra_arrays *arrays, void *stream);
    enum ra_status (*backward)(struct ra_plan *plan, const struct ra_arrays *arrays, void *stream);
    enum ra_status (*wait)(struct ra_plan *plan);

    /* At the end: before the link is closed (NULL: nothing), and after. False, and then unused =
     * false: the other ranks, or the link, may still use the memory of the plan, which must
     * stay. */
    bool (*leave)(struct ra_plan *plan);
    void (*free)(struct ra_plan *plan, bool unused);
};

/* Makes a plan of a config that has been read. If it fails, the link is still the caller's. Rows
 * are dealt as these layouts say, which must live as long as the plan; NULL: as the config does. */
enum ra_status ra_plan_build(struct ra_plan **plan, const struct ra_config *config,
                             const struct ra_layout layouts[2], const struct ra_link *link,
                             const struct ra_backend *backend, bool dry_run, char *error);

/* Checks that a plan with this config can be of its method, if it is made for this backend. */
enum ra_status ra_plan_check_method(const struct ra_config *config,
                                    const struct ra_backend *backend, char *error);

/* Frees a plan that nobody else can use: one to look at, or one whose link is another plan's. */
void ra_plan_release(struct ra_plan *plan);

/* Gives a plan these slices, which are good, and these layouts, which must live until the next
 * ones. */
void ra_plan_use_slices(struct ra_plan *plan, const struct ra_slices *slices,
                        const struct ra_layout layouts[2]);

/* The queries of a rank of the ring and the keys of another, under the plan's mask. */
static inline struct ra_shard_pair ra_plan_shards(const struct ra_plan *plan, int rank, int origin)
{
    return (struct ra_shard_pair){.queries = plan->layouts[RA_QUERY_SIDE],
                                  .keys = plan->layouts[RA_KEY_SIDE],
                                  .rank = rank,
                                  .origin = origin,
                                  .causal = plan->config.causal,
                                  .lookback = plan->config.lookback};
}

/* Counts the rows of a side that a rank of the ring needs room for: those that it has, or, if
 * slices may change them, the most that it may have. */
int64_t ra_plan_bound(const struct ra_plan *plan, enum ra_side side, int rank);

/* Returns the largest ra_plan_bound of any rank. */
int64_t ra_plan_most_bound(const struct ra_plan *plan, enum ra_side side);

/* Tells whether keys may ever travel under this plan. */
bool ra_plan_may_travel(const struct ra_plan *plan);

/* Are all keys gathered before they are folded? If keys never travel, nothing is to be gathered. */
static inline bool ra_plan_gathers(const struct ra_plan *plan)
{
    return plan->config.method == RA_GATHERED_KEYS && ra_plan_may_travel(plan);
}

/* Has the plan the backend's part of this rank, and not of another one? */
static inline bool ra_plan_has_own(const struct ra_plan *plan, int rank)
{
    return plan->own && !plan->elsewhere && rank == plan->link.rank;
}

/* Do keys go round in two rings? With one host, or one rank on each, there is one ring. */
static inline bool ra_plan_doubles(const struct ra_plan *plan)
{
    int I = plan->config.method == RA_DOUBLE_RING ? plan->config.inner : 1;
    return I > 1 && I < plan->link.size && ra_plan_may_travel(plan);
}

/* How this plan folds, with plain tiles if `vector` is NULL; the workspace is left to the
 * caller. */
struct ra_vector;
struct ra_fold ra_plan_fold(const struct ra_plan *plan, const struct ra_vector *vector,
                            bool backward);

/* Tells whether dk and dv are added up in the caller's arrays, as they are if they are float32 and
 * do not travel. Then the ring has no memory for them, and the backend sets them to 0. */
bool ra_plan_adds_in_place(const struct ra_plan *plan);

/* Gives the messages of a rank's ring their places: keys[0] only if this rank's keys travel, places
 * for visitors only if there are any, gradients unless the plan is forward only or adds in
 * place. */
void ra_plan_place_messages(const struct ra_plan *plan, int rank, struct ra_arena *arena,
                            void *keys[3], float *gradients[4]);

/* Counts all the memory of the plan on a rank of the ring. */
int64_t ra_plan_bytes_of(const struct ra_plan *plan, int rank);

/* Begins to use the caller's workspace, if there is one, and ends that: the plan keeps its first
 * line for a mark. RA_INVALID, or what ra_plan_abort returns: a call of another plan uses it. */
enum ra_status ra_plan_enter_workspace(struct ra_plan *plan);
void ra_plan_leave_workspace(const struct ra_plan *plan);

/* Begins to use a link, and ends that. False, and nothing of it may be called: a call of another
 * plan, or ra_plan_create, uses it. */
bool ra_link_enter(const struct ra_link *link);
void ra_link_leave(const struct ra_link *link);

/* Begins a call and ends it. False, and the call must not go on: there is no plan, or it is in a
 * call already. */
bool ra_plan_enter(struct ra_plan *plan);
void ra_plan_leave(struct ra_plan *plan);

/* Ends a call on all ranks of the ring, as this rank cannot take part in it, for this reason.
 * Returns the status. */
enum ra_status ra_plan_abort(struct ra_plan *plan, enum ra_status status, const char *text);

/* Tells whether ra_plan_cancel has been called. Any thread may ask. */
bool ra_plan_is_cancelled(const struct ra_plan *plan);

/* Returns RA_OK unless the plan is at its end. If the plan has been cancelled this tells its ring,
 * so only the thread that makes the call may ask. */
enum ra_status ra_plan_state(struct ra_plan *plan);

/* Ends the plan because the link has failed, for the reason that the link gives, or because the
 * plan has been cancelled. */
enum ra_status ra_plan_fail(struct ra_plan *plan);

/* Checks what ra_shard and its like were given. */
enum ra_status ra_plan_check_rows(const struct ra_plan *plan, enum ra_side side, int64_t outer,
                                  int64_t row_bytes, const void *whole, bool needs_whole,
                                  const void *local, char *error);

#endif
