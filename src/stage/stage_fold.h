/* stage_fold: how a stage program folds the tiles of a hop, from stage 04 on: head by head.
 *
 * Common ground, which chapter 04 shows where it is first needed.
 */
#ifndef STAGE_FOLD_H
#define STAGE_FOLD_H

#include "ra_band.h"
#include "stage_ring.h"

/* stage_ring_open, of a program that folds one head at a time: fold_head folds the keys of rank
 * `origin`, of one batch and head, into this rank's queries, and counts in `fold`. */
void stage_fold_open(struct stage_ring *x, int argc, char **argv, int number, const char *program,
                     const char *about,
                     void (*fold_head)(struct stage_ring *x, struct ra_fold *fold, int origin,
                                       const struct ra_queries *queries,
                                       const struct ra_keys *keys));

#endif
