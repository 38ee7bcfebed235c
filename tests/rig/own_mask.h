/* own_mask: what a reader writes for the last exercise of chapter 13. */
#pragma once

#include <stdbool.h>
#include "ra_slice.h"

/* May query i of n see key j? Plainly, from the idea of the mask. */
bool sees(int64_t n, int64_t i, int64_t j);

/* Writes the same mask as slices, no pair in two of them, and returns how many. There is room for
 * n / 2 + 4. */
int64_t write_slices(int64_t n, struct ra_slice *slices);
