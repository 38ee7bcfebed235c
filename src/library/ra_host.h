/* ra_host: the backend that computes on the host. Internal.
 *
 * Chapters 08 and 09. ra_host.c has the calls and the memory, ra_host_rows.c the rows as the tiles
 * read them, ra_host_fold.c what the threads do.
 */
#ifndef RA_HOST_H
#define RA_HOST_H

#ifdef _OPENMP
#include <omp.h>
#endif
#include "ra_config_check.h"
#include "ra_double.h"
#include "ra_plan.h"
#include "ra_vector.h"

extern const struct ra_backend ra_host;

/* Rows of one side for one thread to fold: a part of a span, or of spans that are as good as one in
 * a hop. */
struct ra_host_block {
    int64_t span, offset; /* begins at this row of this span */
    int64_t row, count;   /* and at this row of the rank */
};

/* The host's part of a plan. */
struct ra_host {
    const struct ra_vector *vector; /* NULL: tiles are plain */
    const struct ra_vector *narrow; /* for calls whose arrays are all bfloat16; or NULL */
    int threads;
    int64_t process;        /* that made the plan */
    struct ra_double *both; /* behind this, if keys go round in two rings */

    /* ---- In the workspace. */

    /* What the tiles keep of each query row, (B, H, n), and what they lose of each number of o,
     * (B, n, H, D_v), or dq, (B, n, H, D), and of the share of a hop. In a plan of 16 bits `wide`
     * has room for o or dq as float32, or, if the caller's are that, for what they lose: so comp,
     * which else is a part of the plan, may be NULL, and is kept only while rows are folded. */
    float *max, *lse, *delta, *wide, *comp, *share_comp;
    double *sum;
    double *of_heads; /* (B, H): see ra_arrays_begin_heads */

    bool *mask; /* of this rank's keys, (B, m) */
    float
        *scratch; /* of each thread: a tile's workspace, and rows that are not float32 as float32 */
    int64_t scratch_floats;          /* floats of one of them */
    struct ra_host_block *blocks[2]; /* by side */

    /* ---- The call that is under way. The caller's arrays; which of them is o or, backward, dq,
     * how many numbers a head has in it, and where it is computed. Of the hop that is folded: k and
     * v, where this rank's share of their gradients is added up, and how many rows they have. */
    struct ra_arrays arrays;
    struct ra_tensor output, computed, k, v, dk, dv;
    int64_t width, visiting;
};

/* Finds the vectors that this processor computes on: its best, or those that RA_VECTOR of the
 * environment names. NULL: it does not have these, and `error` says so. */
const struct ra_vector *ra_host_vector(char *error);

/* Returns what computes the calls of such a plan whose arrays are all bfloat16, if it is not the
 * same as for others; else NULL. Few queries are not worth it that their keys are packed. */
const struct ra_vector *ra_host_narrow(const struct ra_config *config,
                                       const struct ra_vector *vector);

/* Returns what computes this call. */
const struct ra_vector *ra_host_tiles(const struct ra_host *host, bool backward);

/* ---- ra_host_rows.c */

/* Lets all threads of the plan do this work, or the caller alone if it is the only one: then
 * OpenMP, which takes memory for each of its regions, is not asked. */
static inline void ra_host_share(const struct ra_host *host, void (*work)(void *context),
                                 void *context)
{
    if (host->threads == 1) {
        work(context);
        return;
    }
#pragma omp parallel num_threads(host->threads)
    work(context);
}

/* The number of the thread that asks: 0 is that of the caller, which may be a thread of OpenMP with
 * another number in its own team. */
static inline int ra_host_thread(const struct ra_host *host)
{
#ifdef _OPENMP
    return host->threads == 1 ? 0 : omp_get_thread_num();
#else
    return 0 * host->threads;
#endif
}

/* A tile of more query rows may be cut into parts of so many, forward, and the bits stay: these are
 * whole blocks of lanes of every instruction set. */
enum { RA_HOST_PART = 384 };

/* Returns how many rows one thread folds at a time, at most: a whole number of tiles. */
int64_t ra_host_chunk(const struct ra_config *config, enum ra_side side);

/* Returns the most blocks that a rank of this many rows has. */
int64_t ra_host_blocks(struct ra_layout layout, int64_t rows, int64_t chunk);

/* Floats that a row of any array takes in a thread's scratch, in a plan of 16 bits. */
static inline int64_t ra_host_row(const struct ra_config *config)
{
    return ra_vector_row(ra_dims_most(ra_config_dims(config)));
}

/* Counts the floats of a thread's scratch, for chunks of this many rows. */
int64_t ra_host_scratch(const struct ra_config *config, bool narrow, int64_t query_chunk,
                        int64_t key_chunk);

/* Makes the keys of this step ready: where they are, and of which type; backward, their
 * gradients. */
void ra_host_open_keys(struct ra_plan *plan, int step, bool backward);

/* Returns `count` query rows of a batch and head, from row a on; what is not float32 is read into
 * `scratch`. */
struct ra_queries ra_host_take_queries(const struct ra_plan *plan, bool backward, int64_t b,
                                       int64_t h, int64_t a, int64_t count, float *scratch);

/* Returns `count` keys of this step, of a batch and head, from row `first` on; likewise. */
struct ra_keys ra_host_take_keys(const struct ra_plan *plan, int step, bool backward, int64_t b,
                                 int64_t g, int64_t first, int64_t count, float *scratch);

/* Empties the carry of all queries; makes it o and lse; computes delta, and makes dq 0. */
void ra_host_begin(struct ra_plan *plan);
void ra_host_finish(struct ra_plan *plan);
void ra_host_begin_backward(struct ra_plan *plan);

/* Tells whether a block of queries can be begun, folded and finished at once, while a cache has its
 * carry. Then the fold does it: there is one hop, and nothing is found out about whole heads. */
bool ra_host_is_at_once(const struct ra_plan *plan);

/* Empties the carry of these queries of a head, as ra_host_begin does for all. */
void ra_host_begin_block(const struct ra_plan *plan, const struct ra_queries *queries);

/* Makes the carry of these queries of head h their o and lse, as ra_host_finish does for all. */
void ra_host_finish_block(const struct ra_plan *plan, const struct ra_queries *queries, int64_t h);

/* ---- ra_host_fold.c */

/* Folds the keys of this step into the carries of all queries; backward, adds to dq and to the
 * gradients of these keys. The ring's fold: `plan` is its context. */
void ra_host_fold(void *plan, int step, bool backward);

#endif
