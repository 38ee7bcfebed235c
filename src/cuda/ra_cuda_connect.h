/* ra_cuda_connect: the ranks of a plan find each other. Internal. */
#ifndef RA_CUDA_CONNECT_H
#define RA_CUDA_CONNECT_H

#include "ra_cuda.h"

/* What the ranks do together once they all have a plan. All get the same status and text. */
enum ra_status ra_cuda_connect(struct ra_plan *plan, char *error);

/* At the end of a plan, when nothing is under way here: lets go of the others' memory and waits
 * until all ranks have come here. False: they have not, and may still write to this one's. */
bool ra_cuda_disconnect(struct ra_plan *plan);

#endif
