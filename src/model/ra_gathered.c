/* ra_gathered: a plan whose keys are gathered, over MPI. See ra_gathered.h.
 *
 * Chapter 10.
 */
#include "ra_gathered.h"
#include "ra_config_check.h"

enum ra_status ra_gathered_create(struct ra_plan **plan, const struct ra_config *config,
                                  MPI_Comm comm, char error[RA_ERROR_SIZE])
{
    /* A config that is wrong is refused below, together with all ranks. */
    struct ra_config own = RA_CONFIG_INIT;
    struct ra_link link;
    if (ra_config_copy(&own, config, NULL) == RA_OK) {
        own.method = RA_GATHERED_KEYS;
        own.group = own.inner = 0;
        config = &own;
    }
    enum ra_status status = ra_mpi_link(&link, comm, own.ring_size, own.timeout, error);
    if (plan)
        *plan = NULL;
    return status == RA_OK ? ra_plan_create(plan, config, &link, error) : status;
}

int64_t ra_gathered_sent(const struct ra_plan *plan, bool backward)
{
    int64_t bytes = 0;
    for (int step = 0; step < ra_plan_hops(plan); step++) {
        /* Only the text of its last error is changed, if there is none for so much work. */
        struct ra_plan *asked = (struct ra_plan *)(uintptr_t)plan;
        struct ra_hop hop = {0};
        (void)!ra_plan_hop(asked, ra_plan_rank(plan), step, backward, &hop);
        bytes += hop.bytes;
    }
    return bytes;
}
