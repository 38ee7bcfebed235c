/* stage_ring: a stage program on a ring: its link, its memory, its counts and its timeline.
 *
 * Scaffolding, like stage: no chapter teaches it. A program says which rows each rank has and how a
 * hop is folded; the rest, which is the same in all of them, is here.
 */
#ifndef STAGE_RING_H
#define STAGE_RING_H

#include "ra_message.h"
#include "ra_ring.h"
#include "ra_span.h"
#include "stage_mpi.h"
#include "stage_tile.h"

struct ra_fold; /* ra_band.h */

/* What one rank has: n query rows and m key rows of its own, and room for visiting keys. */
struct stage_ring {
    struct stage stage;
    struct ra_link link;
    struct ra_ring ring;
    struct ra_span chunks[2];  /* this rank's rows in stages 03 and 04: of queries, of keys */
    int64_t *rows;             /* (ranks) of keys of each rank: the program's to fill in */
    struct ra_queries queries; /* q, o, d_out, dq (B, n, H, D); max, sum, lse, delta (B, H, n) */
    float *workspace;          /* ra_tile_workspace */
};

/* Opens a program as stage_open_mpi does, and a ring as the command line asks for, of `fold`, whose
 * context is run. Its keys go all the way round, unless they stay at home: a program may set
 * another schedule. An error ends all ranks. */
void stage_ring_open(struct stage_ring *run, int argc, char **argv, int number, const char *program,
                     const char *about, void (*fold)(void *context, int step, bool backward));

/* Cuts the sequence into one run of rows for each rank, as equal as can be. */
void stage_ring_chunks(struct stage_ring *run);

/* Returns the keys of this step, of all batches and heads. */
struct ra_keys stage_ring_keys(const struct stage_ring *run, int step);

/* Returns what the tiles of a hop have in common, from stage 04 on. The ring is polled between
 * them. */
struct ra_fold stage_ring_fold(struct stage_ring *run, bool backward);

/* Counts the work of a step: the pairs of all tiles, and the tiles that were skipped (from stage 04
 * on). */
void stage_ring_work(struct stage_ring *run, int step, bool backward, int64_t pairs,
                     int64_t skipped);

/* Takes memory, reads, goes round the ring, forward and backward, and writes. run->rows and the
 * rows of stage_shard are set before. Returns the exit code. */
int stage_ring_run(struct stage_ring *run);

#endif
