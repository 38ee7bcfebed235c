/* Your mask, twice: see own_mask.h. This one is causal. */
#include "own_mask.h"

bool sees(int64_t n, int64_t i, int64_t j)
{
    (void)n;
    return j <= i;
}

int64_t write_slices(int64_t n, struct ra_slice *slices)
{
    slices[0] = (struct ra_slice){0, n, 0, n, -RA_BAND_FAR, 0};
    return 1;
}
