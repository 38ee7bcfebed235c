/* plans: what a ring and a plan that gathers keys hold and send, by their own counts, on rank 0.
 * See chapter 12.
 */
#include <inttypes.h>
#include <stdio.h>
#include "ra_gathered.h"

static void check(enum ra_status status, const char *error)
{
    if (status == RA_OK)
        return;
    fprintf(stderr, "plans: %s\n", error);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static int64_t ring_sent(struct ra_plan *plan, bool backward)
{
    int64_t bytes = 0;
    for (int step = 0; step < ra_plan_hops(plan); step++) {
        struct ra_hop hop;
        check(ra_plan_hop(plan, 0, step, backward, &hop), ra_plan_error(plan));
        bytes += hop.bytes;
    }
    return bytes;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    struct ra_config config = RA_CONFIG_INIT;
    config.queries = 16384, config.heads = 8, config.key_heads = 2, config.dim = 64;
    config.causal = true, config.layout = RA_STRIPED, config.threads = 1;
    char error[RA_ERROR_SIZE];
    struct ra_link link;
    struct ra_plan *ring, *gathered;
    check(ra_mpi_link(&link, MPI_COMM_WORLD, 0, config.timeout, error), error);
    check(ra_plan_create(&ring, &config, &link, error), error);
    check(ra_gathered_create(&gathered, &config, MPI_COMM_WORLD, error), error);
    if (ra_plan_rank(ring) == 0)
        printf("P = %d\n  ring      %8" PRId64 " bytes, sends %8" PRId64 " and %8" PRId64
               "\n  gathered  %8" PRId64 " bytes, sends %8" PRId64 " and %8" PRId64 "\n",
               ra_plan_ranks(ring), ra_plan_bytes(ring), ring_sent(ring, false),
               ring_sent(ring, true), ra_plan_bytes(gathered), ra_gathered_sent(gathered, false),
               ra_gathered_sent(gathered, true));
    ra_plan_destroy(gathered);
    ra_plan_destroy(ring);
    MPI_Finalize();
}
