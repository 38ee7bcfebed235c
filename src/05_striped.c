/* 05-striped: the same work for every rank, by dealing the rows out differently.
 * Chapter 05. New here: layouts. A rank's rows are a list of spans; every pair of spans has its
 * band.
 */
#include "stage_layout.h"

int main(int argc, char **argv)
{
    struct stage_ring x;
    stage_layout_open(&x, argc, argv, 5, "05-striped",
                      "Causal attention on a ring of ranks that all have the same to do.");
    stage_layout_deal(&x);
    return stage_ring_run(&x);
}
