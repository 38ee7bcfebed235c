/* ra_vector_avx2: ra_vector for processors with AVX2. Chapter 09. */
#ifdef __x86_64__
#include <immintrin.h>
#include "ra_vector.h"

#define RA_AVX2
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#include "ra_vector_set.h"

const struct ra_vector ra_vector_avx2 = {"avx2",     forward,      begin_backward,
                                         backward,   exp_all,      load_all,
                                         normal_all, multiply_all, 16 * ((QUERIES + 15) / 16),
                                         NULL};
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
