/* stage_device: the GPU of a rank, for the programs of stages 11 and 14. */
#ifndef STAGE_DEVICE_H
#define STAGE_DEVICE_H

#include "stage.h"

/* Makes a GPU the current device: ranks of one machine take its GPUs in turn. Ends the run, with a
 * word, if there is none. All ranks call this together. */
void stage_take_device(const struct stage *stage);

#endif
