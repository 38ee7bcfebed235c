/* ra_heads: which key/value head each query head reads.
 * Chapter 07. H query heads share G key/value heads, H / G of them each. G = H is ordinary
 * attention, G = 1 multi-query attention.
 */
#ifndef RA_HEADS_H
#define RA_HEADS_H

#include "ra_config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the key/value head, 0..G-1, that query head h of H reads. G divides H. */
int64_t ra_heads_key(enum ra_head_map map, int64_t H, int64_t G, int64_t h);

#ifdef __cplusplus
}
#endif

#endif
