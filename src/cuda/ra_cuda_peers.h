/* ra_cuda_peers: messages by peer copies, and their signals. Internal. */
#ifndef RA_CUDA_PEERS_H
#define RA_CUDA_PEERS_H

#include "ra_cuda.h"

/* Returns the rank that sent the message of this step, which is not the first. */
int ra_cuda_sender_of(const struct ra_plan *plan, int rank, int step);

/* Counts the signals that a rank waits for. */
int64_t ra_cuda_flag_count(const struct ra_plan *plan);

/* Writes all signals of this rank to the device as they are before the first call, when the first
 * message into each slot has a credit. `flags` is host memory for as many as ra_cuda_flag_count
 * says. */
void ra_cuda_begin_signals(struct ra_plan *plan, int *flags);

/* Writes the table of signals to the device: the numbers of calls. */
void ra_cuda_begin_table(struct ra_plan *plan);

/* Sends another rank a signal, into its flag of this number: the number of the call, behind what
 * was sent on this stream before. And holds the stream until one has come from another rank, into
 * this rank's flag; `signal` has what an error is to say, with the peer as the plan's link counts
 * ranks. */
void ra_cuda_send_signal(struct ra_plan *plan, int to, int64_t flag, int number,
                         cudaStream_t stream);
void ra_cuda_wait_for_signal(struct ra_plan *plan, int64_t flag, int number,
                             struct ra_signal signal, cudaStream_t stream);

extern const struct ra_cuda_transport ra_cuda_peer_copies;

#endif
