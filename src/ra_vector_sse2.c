/* ra_vector_sse2: ra_vector for processors with SSE2. Chapter 09. */
#ifdef __x86_64__
#include <emmintrin.h>
#include "ra_vector.h"

#define RA_SSE2
#include "ra_vector_set.h"

const struct ra_vector ra_vector_sse2 = {"sse2",     forward,      begin_backward,
                                         backward,   exp_all,      load_all,
                                         normal_all, multiply_all, 16 * ((QUERIES + 15) / 16),
                                         NULL};
#endif
