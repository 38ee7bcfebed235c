/* ra_cuda_link: messages that the link passes. Internal. */
#ifndef RA_CUDA_LINK_H
#define RA_CUDA_LINK_H

#include "ra_cuda.h"

/* Takes memory for messages: the host's, if the host passes them; if heads are exchanged and the
 * link takes device pointers, the device's. And counts how much a rank needs with a transport. */
enum ra_status ra_cuda_take_staging(struct ra_plan *plan, char *error);
int64_t ra_cuda_staging_bytes(const struct ra_plan *plan, enum ra_transport transport, int rank);

extern const struct ra_cuda_transport ra_cuda_device_link, ra_cuda_host_link;

#endif
