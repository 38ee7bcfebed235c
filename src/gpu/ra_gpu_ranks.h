/* ra_gpu_ranks: arrays that the GPUs of several ranks add up and gather, piece by piece, beside
 * what else they compute. Internal.
 *
 * Chapter 14. New here: all-reduce as its two halves. A piece of an array is cut into a part for
 * each rank. Reduce-scatter: every rank sends each other rank its numbers of that one's part, which
 * adds them up in the order of ranks. All-gather: every rank sends its part to all others. So sums
 * have one order, the same bits on all ranks, by whichever transport; and an optimizer in shards
 * needs nothing but to do something else between the halves.
 */
#ifndef RA_GPU_RANKS_H
#define RA_GPU_RANKS_H

#include <cuda_runtime_api.h>
#include <mpi.h>

#include "ra_config.h"
#include "ra_status.h"

/* The most numbers of a piece, and numbers in a line, which is never cut. */
enum { RA_PIECE = 1 << 23, RA_PIECE_LINE = 16 };

struct ra_gpu_ranks;

/* Numbers first, ..., end - 1 of an array. */
struct ra_gpu_piece {
    int64_t first, end;
};

/* Returns the part of one of `ranks` ranks of a piece, which has whole lines. */
struct ra_gpu_piece ra_gpu_part(struct ra_gpu_piece piece, int rank, int ranks);

/* Takes memory, of the current device and pinned, for pieces of up to `most` numbers that the ranks
 * of `comm` have; timeout: seconds, 0: none. `stream` is where arrays are computed. Nothing is
 * sent. NULL: there is no memory. */
struct ra_gpu_ranks *ra_gpu_ranks_create(MPI_Comm comm, int64_t most, double timeout,
                                         cudaStream_t stream);

/* Finds out how messages pass: by copies from GPU to GPU, or by the host and MPI. All ranks call
 * this together, each with a `ranks` and with the same `most`, transport and timeout. If it fails
 * on one it fails on all, and `ranks` can only be destroyed. */
RA_CHECKED enum ra_status ra_gpu_ranks_connect(struct ra_gpu_ranks *ranks,
                                               enum ra_transport transport,
                                               char error[RA_ERROR_SIZE]);

/* Destroys it, on all ranks together. False: one did not come, and what others may still write to
 * stays. */
bool ra_gpu_ranks_destroy(struct ra_gpu_ranks *ranks);

/* Counts the bytes of the device that it holds. */
int64_t ra_gpu_ranks_bytes(const struct ra_gpu_ranks *ranks);

/* Says how numbers travel: "peer copies", or "the host, as ...". */
const char *ra_gpu_ranks_transport(const struct ra_gpu_ranks *ranks);

/* Begins with a piece of an array, behind what the stream has been given so far: adds up this
 * rank's part (reduce), gathers all parts (gather), or both, in place. Ranks do the same in the
 * same order. By peer copies nobody waits; by the host, ra_gpu_ranks_advance does what can be done
 * now, and returns at once. */
void ra_gpu_ranks_begin(struct ra_gpu_ranks *ranks, float *array, struct ra_gpu_piece piece,
                        bool reduce, bool gather);
void ra_gpu_ranks_advance(struct ra_gpu_ranks *ranks);

/* Holds the stream until all that was begun is done; by the host, which then waits. */
void ra_gpu_ranks_join(struct ra_gpu_ranks *ranks);

/* Returns the stream of peer copies, on which all of it is enqueued; NULL by the host. */
cudaStream_t ra_gpu_ranks_stream(const struct ra_gpu_ranks *ranks);

/* Ends what was begun, as something else has failed: nobody may come. */
void ra_gpu_ranks_stop(struct ra_gpu_ranks *ranks);

/* Waits until all that was begun is done. RA_LOST: a rank did not come; RA_DEVICE. `stop`: has
 * something else failed, so that nobody may come? Then waits end at once. */
RA_CHECKED enum ra_status ra_gpu_ranks_end(struct ra_gpu_ranks *ranks, bool stop,
                                           char error[RA_ERROR_SIZE]);

/* Gives all ranks the `count` doubles of each, from the host: (ranks, count). */
RA_CHECKED enum ra_status ra_gpu_ranks_share(struct ra_gpu_ranks *ranks, int count, double *all,
                                             char error[RA_ERROR_SIZE]);

#endif
