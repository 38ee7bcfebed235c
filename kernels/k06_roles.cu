/* k06: the forward with roles: one warpgroup only loads, the others only compute. For compute
 * capability 9.0; elsewhere k03 runs.
 *
 * Chapter 11d. New here: a warp that has nothing to do but to keep TMA busy, two tiles ahead of the
 * others; mbarriers in both directions, full and empty; registers that the loading warpgroup gives
 * to those that compute. Three of these, each with 64 rows of queries and a pace of its own: while
 * one is at its exponentials, the others' products keep the tensor cores busy.
 */
#include "hopper_roles.h"

extern "C" cudaError_t ra_k06_forward(const struct ra_kernel *x, cudaStream_t stream)
{
    return launch_or_k03(x, stream, [=](auto type, auto dim) {
        return launch_tiles<shape_of<decltype(type), decltype(dim)::value>>(x, stream);
    });
}
