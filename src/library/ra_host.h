/* ra_host: the backend that computes on the host. Internal.
 *
 * Chapter 08.
 */
#ifndef RA_HOST_H
#define RA_HOST_H

#include "ra_plan.h"

extern const struct ra_backend ra_host;

#endif
