/* stage_memory: what a stage program allocates, counted and freed together. */
#ifndef STAGE_MEMORY_H
#define STAGE_MEMORY_H

#include <stdint.h>

struct stage;

/* Allocates count elements of this size, every byte 0xFF: a NaN in float and in double, so that an
 * element that nobody wrote shows in the results. Counted into peak_bytes; stage_close frees it. */
void *stage_allocate(struct stage *stage, int64_t count, int64_t size);

/* Allocates as stage_allocate does, but every byte is 0: for sums, which must start somewhere. */
void *stage_zeros(struct stage *stage, int64_t count, int64_t size);

/* Frees all that stage_allocate and stage_zeros gave. */
void stage_free_all(struct stage *stage);

#endif
