/* lent: every other plan of a batch computes in memory that it does not own.
 *
 * A batch is linked with --wrap for these three functions, so that a stage calls those here. All
 * plans share one block, which is full of NaN when a call begins: whatever a call leaves there is
 * gone.
 */
#include <stdlib.h>
#include <string.h>
#include "ring_attention.h"

enum ra_status __real_ra_plan_create(struct ra_plan **plan, const struct ra_config *config,
                                     const struct ra_link *link, char *error);
enum ra_status __wrap_ra_plan_create(struct ra_plan **plan, const struct ra_config *config,
                                     const struct ra_link *link, char *error);
enum ra_status __real_ra_forward(struct ra_plan *plan, const struct ra_arrays *arrays);
enum ra_status __wrap_ra_forward(struct ra_plan *plan, const struct ra_arrays *arrays);
enum ra_status __real_ra_backward(struct ra_plan *plan, const struct ra_arrays *arrays);
enum ra_status __wrap_ra_backward(struct ra_plan *plan, const struct ra_arrays *arrays);

enum ra_status __wrap_ra_plan_create(struct ra_plan **plan, const struct ra_config *config,
                                     const struct ra_link *link, char *error)
{
    static int plans;
    struct ra_config lent = *config;
    lent.caller_workspace = plans++ % 2 == 0 && !config->device;
    return __real_ra_plan_create(plan, &lent, link, error);
}

/* Lends a plan the block; one that has memory of its own refuses it. */
static void lend(struct ra_plan *plan)
{
    static void *block;
    static int64_t size;
    int64_t bytes = ra_plan_workspace_bytes(plan);
    if (bytes > size) {
        free(block);
        block = aligned_alloc(64, (size_t)(size = bytes));
        if (!block)
            abort();
    }
    memset(block, 0xFF, (size_t)size);
    enum ra_status status = ra_plan_set_workspace(plan, block, size);
    (void)status;
}

enum ra_status __wrap_ra_forward(struct ra_plan *plan, const struct ra_arrays *arrays)
{
    lend(plan);
    return __real_ra_forward(plan, arrays);
}

enum ra_status __wrap_ra_backward(struct ra_plan *plan, const struct ra_arrays *arrays)
{
    lend(plan);
    return __real_ra_backward(plan, arrays);
}
