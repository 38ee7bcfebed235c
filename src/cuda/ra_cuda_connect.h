/* ra_cuda_connect: the ranks of a plan find each other. Internal. */
#ifndef RA_CUDA_CONNECT_H
#define RA_CUDA_CONNECT_H

#include "ra_cuda.h"

/* Connects the ranks, which all call it once they have a plan: each gets what it needs to reach the
 * others. All return the same status and text. */
enum ra_status ra_cuda_connect(struct ra_plan *plan, char *error);

/* Lets go of the other ranks' memory at the end of a plan, when nothing is under way here, and
 * waits until all ranks have come here. False: they have not, and may still write to this one's. */
bool ra_cuda_disconnect(struct ra_plan *plan);

#endif
