/* ra_arena: one block of memory that is given out piece by piece; or, without memory, counted.
 *
 * Chapter 08. The function that gives every array its place also says how much memory that takes.
 */
#ifndef RA_ARENA_H
#define RA_ARENA_H

#include <stddef.h>
#include <stdint.h>
#include "ra_math.h"

struct ra_arena {
    char *start;        /* NULL: only count */
    int64_t line, used; /* pieces begin at multiples of `line` bytes */
};

/* The next `bytes` bytes. */
static inline void *ra_arena_take(struct ra_arena *arena, int64_t bytes)
{
    void *piece = arena->start ? arena->start + arena->used : NULL;
    arena->used += ra_round_up(bytes, arena->line);
    return piece;
}

#endif
