/* 07-gqa: several query heads read one key/value head, and what travels shrinks.
 * Chapter 07. New here: the head map. Keys, values and their gradients have G heads, queries H;
 * nothing is repeated in memory or on the wire.
 */
#include "ra_heads.h"
#include "stage_layout.h"
#include "stage_schedule.h"

/* The key/value head that query head h reads. */
static int64_t key_head(const struct stage *stage, int64_t h)
{
    return ra_heads_key(stage->config.head_map, stage->H, stage->G, h);
}

int main(int argc, char **argv)
{
    struct stage_ring x;
    stage_layout_open(&x, argc, argv, 7, "07-gqa",
                      "Attention in which query heads share key/value heads, on a ring of ranks.");
    stage_layout_deal(&x);
    x.key_head = key_head;
    stage_schedule(&x);
    return stage_ring_run(&x);
}
