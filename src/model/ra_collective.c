/* ra_collective: waits of all ranks for each other, with an end. See ra_collective.h.
 *
 * Chapter 10.
 */
#include "ra_collective.h"
#include <sched.h>
#include <stdio.h>
#include "ra_clock.h"
#include "ra_status.h"

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

bool ra_collective_wait_link(const struct ra_link *link, int code, MPI_Request *request,
                             double timeout, const char *what)
{
    const double moment = 1e-3;
    char text[RA_ERROR_SIZE];
    double began = ra_seconds();
    if (code != MPI_SUCCESS) {
        snprintf(text, sizeof text, "ring rank %d: MPI cannot begin with %s", link->rank, what);
        link->fail(link->self, text);
    }
    while (link->poll(link->self)) {
        if (ra_collective_wait(request, moment))
            return true;
        if (timeout > 0 && ra_seconds() - began > timeout) {
            snprintf(text, sizeof text,
                     "ring rank %d: waited %g s for %s; has a rank died? If one is only slow, wait "
                     "longer",
                     link->rank, timeout, what);
            link->fail(link->self, text);
        }
    }
    return false;
}
