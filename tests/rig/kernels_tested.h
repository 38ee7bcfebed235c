/* kernels_tested: every kernel with every type that it takes, for the suites that try all of them.
 *
 * Chapter 11.
 */
#ifndef KERNELS_TESTED_H
#define KERNELS_TESTED_H

#include "ra_ladder.h"

static const struct kernel {
    const char *name;
    enum ra_type type;
    const struct ra_rung *rung;
} kernels[] = {
    {"k01", RA_FLOAT32, &ra_ladder[RA_K01]},
    {"k02", RA_FLOAT32, &ra_ladder[RA_K02]},
    {"k03-bfloat16", RA_BFLOAT16, &ra_ladder[RA_K03]},
    {"k03-float16", RA_FLOAT16, &ra_ladder[RA_K03]},
    {"k04-bfloat16", RA_BFLOAT16, &ra_ladder[RA_K04]},
    {"k04-float16", RA_FLOAT16, &ra_ladder[RA_K04]},
    {"k05-bfloat16", RA_BFLOAT16, &ra_ladder[RA_K05]},
    {"k05-float16", RA_FLOAT16, &ra_ladder[RA_K05]},
    {"k06-bfloat16", RA_BFLOAT16, &ra_ladder[RA_K06]},
    {"k06-float16", RA_FLOAT16, &ra_ladder[RA_K06]},
    {"k07-bfloat16", RA_BFLOAT16, &ra_ladder[RA_K07]},
    {"k07-float16", RA_FLOAT16, &ra_ladder[RA_K07]},
};
enum { KERNELS = sizeof kernels / sizeof kernels[0] };

#endif
