/* ra_heads: which key/value head each query head reads. See ra_heads.h.
 *
 * Chapter 07. New here: the two head maps.
 */
#include "ra_heads.h"

int64_t ra_heads_key(enum ra_head_map map, int64_t H, int64_t G, int64_t h)
{
    return map == RA_INTERLEAVED ? h % G : h / (H / G);
}
