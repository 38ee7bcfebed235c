/* ra_collective: waits of all ranks for each other, with an end. See ra_collective.h.
 *
 * Chapter 10.
 */
#include "ra_collective.h"
#include <sched.h>
#include "ra_clock.h"

bool ra_collective_wait(MPI_Request *request, double timeout)
{
    double began = ra_seconds();
    for (int done = 0;;) {
        if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            return false;
        if (done)
            return true;
        if (timeout > 0 && ra_seconds() - began > timeout)
            return false;
        sched_yield();
    }
}
