/* 06-lookback: an exact window of tokens, and no message that nobody needs.
 * Chapter 06. New here: the window, and the schedule: which hops are taken, and how far the keys
 * of each rank travel. Gradients go straight home from where their keys are seen last.
 */
#include "stage_layout.h"
#include "stage_schedule.h"

int main(int argc, char **argv)
{
    struct stage_ring x;
    stage_layout_open(&x, argc, argv, 6, "06-lookback",
                      "Causal attention with a window of tokens, and no message that nobody needs.");
    stage_layout_deal(&x);
    stage_schedule(&x);
    return stage_ring_run(&x);
}
