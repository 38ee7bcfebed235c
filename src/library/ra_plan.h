/* ra_plan: what a plan is made of. Internal: callers see `struct ra_plan` from outside.
 *
 * Chapter 08.
 */
#ifndef RA_PLAN_H
#define RA_PLAN_H

#include "ra_config_check.h"
#include "ra_link.h"
#include "ra_schedule.h"

/* Ranks of a plan to look at: every rank must be asked about every other. */
enum { RA_PLAN_MOST_RANKS = 4096 };

/* What a plan has that does not compute on the host. */
struct ra_device {
    const char *calls; /* which functions compute with it */

    /* All the memory of the plan on a rank of the ring, but for the plan itself and its link. */
    int64_t (*bytes)(const struct ra_plan *plan, int rank);

    /* Lines for ra_plan_describe; returns like snprintf. */
    int (*describe)(const struct ra_plan *plan, int rank, char *text, size_t size);

    /* Does the device reach what lies at the address of an array? If not, `error` says so. */
    enum ra_status (*check_address)(const struct ra_plan *plan, const char *array,
                                    const void *address, char *error);

    /* At the end: before the link is closed, and after. False, and then unused = false: the other
     * ranks, or the link, may still use the memory of the plan, which must stay. */
    bool (*leave)(struct ra_plan *plan);
    void (*free)(struct ra_plan *plan, bool unused);
};

struct ra_plan {
    struct ra_config config; /* with all defaults filled in */
    struct ra_score score;
    struct ra_link link;         /* send is NULL: one rank */
    struct ra_layout layouts[2]; /* by side */
    int64_t rows[2];             /* of this rank, by side: n and m */
    struct ra_schedule schedule;
    bool look_only;                 /* no memory to compute with */
    const struct ra_device *device; /* NULL: the plan computes on the host */
    struct ra_cuda *cuda;           /* the device's own part of the plan (ra_cuda.h) */
    void *memory;                   /* all of what follows */
    int64_t fixed_bytes;            /* of the plan itself, its schedule and its link */
    enum ra_status lost;            /* RA_LOST: the link has failed */
    char error[RA_ERROR_SIZE];

    /* Float32 copies of arrays that are not float32: (B, n, H, D). In the backward dq takes o's
     * place once delta is known. */
    float *q, *o, *d_out;

    /* What the tiles keep of each query row, (B, H, n). */
    float *max, *sum, *lse, *delta;

    /* Messages. keys: own ones, and two for visitors, in config.type. gradients: this rank's share
     * for the keys of the same number; [3]: the share of the ranks before. */
    void *keys[3];
    float *gradients[4];
    bool *mask;      /* own keys', (B, m) */
    float *visitors; /* k and v of one hop as float32, if they are not float32: 2 (B, m, G, D) */
    float *tile;     /* ra_tile_workspace */

    /* k and v of the hop that is under way, as float32, and how many rows they have. */
    struct ra_tensor k, v;
    int64_t visiting;
};

/* Makes a plan over a link, of a config that has been read. If it fails, the link is still the
 * caller's. ra_plan_build makes one for the host; other kinds of plan have others like it. */
typedef enum ra_status ra_plan_builder(struct ra_plan **plan, const struct ra_config *config,
                                       struct ra_link link, bool look_only, char *error);
ra_plan_builder ra_plan_build;

/* ra_plan_create, by one of these. */
enum ra_status ra_plan_make(struct ra_plan **plan, const struct ra_config *config, char *error,
                            ra_plan_builder *build);

/* Reads a config for a plan over this link, and empties *plan. RA_INVALID: `text` says why. */
enum ra_status ra_plan_read(struct ra_plan **plan, struct ra_config *checked,
                            const struct ra_config *given, const struct ra_link *link, char *text);

/* Copies the text of an error to the caller, who may not want it; returns the status. */
enum ra_status ra_plan_report(enum ra_status status, const char *text, char *error);

/* How many bytes a message of keys of so many rows has. */
int64_t ra_plan_key_bytes(const struct ra_plan *plan, int64_t rows);

/* Whose keys are due at this step, in rank `rank`; how many rows of them come, 0 if their journey
 * ends before; and does it go on from here? */
int ra_plan_origin(const struct ra_plan *plan, int rank, int step);
int64_t ra_plan_visitors(const struct ra_plan *plan, int rank, int step);
bool ra_plan_travel_on(const struct ra_plan *plan, int rank, int step);

/* All the memory of the plan on a rank of the ring. */
int64_t ra_plan_bytes_of(const struct ra_plan *plan, int rank);

/* Copies a call's arrays and checks those that it uses, for a call that computes on this device
 * (NULL: on the host). RA_INVALID, and all other ranks get the same text. Another status: the plan
 * was at its end before. */
enum ra_status ra_arrays_read(struct ra_plan *plan, struct ra_arrays *arrays,
                              const struct ra_arrays *given, const struct ra_device *device,
                              bool backward);

/* Ends a collective call on all ranks of the ring: this one has this error. Returns the status. */
enum ra_status ra_plan_give_up(struct ra_plan *plan, enum ra_status status, const char *text);

/* Checks what ra_shard and its like were given. */
enum ra_status ra_plan_check_rows(const struct ra_plan *plan, enum ra_side side, int64_t outer,
                                  int64_t row_bytes, const void *whole, bool needs_whole,
                                  const void *local, char *error);

/* How tiles are folded, but for the memory that takes. */
struct ra_fold ra_plan_fold(const struct ra_plan *plan, bool backward);

#endif
