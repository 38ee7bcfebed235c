/* ra_ladder: all kernels in one table, for programs that run whichever they are told to.
 *
 * Chapter 11.
 */
#ifndef RA_LADDER_H
#define RA_LADDER_H

#include "ra_kernel.h"

/* One kernel. */
struct ra_rung {
    const char *name, *program; /* "k03", and the program that runs it alone, "k03-mma" */
    bool tensor_cores;          /* takes float16 and bfloat16; other kernels take float32 */
    ra_kernel_launch *forward, *backward;
    int64_t (*semaphores)(const struct ra_kernel *kernel); /* how many ints; NULL: none */
    ra_kernel_writes *writes;                              /* NULL: it adds to float32 */
};

/* From the plainest to the fastest. */
enum ra_rung_number { RA_K01, RA_K02, RA_K03, RA_K04, RA_K05, RA_K06, RA_K07, RA_RUNGS };
extern const struct ra_rung ra_ladder[RA_RUNGS];

/* Returns the kernel that this program runs; NULL if there is none. */
const struct ra_rung *ra_ladder_find(const char *program);

#endif
