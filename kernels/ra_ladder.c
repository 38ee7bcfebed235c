/* ra_ladder: all kernels in one table. See ra_ladder.h. */
#include "ra_ladder.h"
#include <string.h>

const struct ra_rung ra_ladder[RA_RUNGS] = {
    {"k01", "k01-naive", false, ra_k01_forward, ra_k01_backward, NULL, NULL},
    {"k02", "k02-tiles", false, ra_k02_forward, ra_k02_backward, NULL, NULL},
    {"k03", "k03-mma", true, ra_k03_forward, ra_k03_backward, ra_kernel_semaphores, NULL},
    {"k04", "k04-wgmma", true, ra_k04_forward, ra_k03_backward, ra_kernel_semaphores, NULL},
    {"k05", "k05-tma", true, ra_k05_forward, ra_k03_backward, ra_kernel_semaphores, NULL},
    {"k06", "k06-roles", true, ra_k06_forward, ra_k06_backward, ra_kernel_semaphores,
     ra_k06_writes},
    {"k07", "k07-persistent", true, ra_k07_forward, ra_k07_backward, ra_kernel_semaphores,
     ra_k07_writes},
};

const struct ra_rung *ra_ladder_find(const char *program)
{
    for (int i = 0; i < RA_RUNGS; i++)
        if (strcmp(ra_ladder[i].program, program) == 0)
            return &ra_ladder[i];
    return NULL;
}
