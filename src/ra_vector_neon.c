/* ra_vector_neon: ra_vector for processors with NEON. Chapter 09. */
#ifdef __aarch64__
#include <arm_neon.h>
#include "ra_vector.h"

#define RA_NEON
#include "ra_vector_set.h"

const struct ra_vector ra_vector_neon = {"neon",     forward,      begin_backward,
                                         backward,   exp_all,      load_all,
                                         normal_all, multiply_all, 16 * ((QUERIES + 15) / 16),
                                         NULL};
#endif
