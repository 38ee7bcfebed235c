/* ra_signal: how the GPUs of a ring tell each other that a message has come, or that there is room
 * for it, without their hosts.
 *
 * Chapter 11. A signal is an int in the memory of the GPU that waits for it. The copy engine of
 * another GPU writes it, behind the message that it speaks of; a kernel of one thread looks at it.
 * It holds the number of the call, modulo RA_SIGNALS: every signal is written once in a call at
 * most, and while a rank waits for call n it holds n - 1 or n. So nothing is ever reset.
 */
#ifndef RA_SIGNAL_H
#define RA_SIGNAL_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "ra_tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A copy engine copies: the numbers that it is to write must lie somewhere. table[i] = i, and a
 * rank that has failed has RA_SIGNAL_LOST everywhere: whatever it tells the others from then on is
 * that. An int behind the table is 0, and 1 as soon as the rank has failed. */
#define RA_SIGNALS 64
#define RA_SIGNAL_LOST (-1)

enum ra_failure { RA_SIGNAL_NONE, RA_SIGNAL_LATE, RA_SIGNAL_PEER_LOST, RA_SIGNAL_STOPPED };

/* What host and device say to each other, in host memory that both reach. */
struct ra_device_error {
    int stop;    /* the host: wait for nothing any more */
    int failure; /* the device: enum ra_failure of the wait that failed first, and which that was */
    int message, is_credit, hop, peer;
};

/* A wait for `word` to hold `number`. The rest is for the failure. */
struct ra_signal {
    const int *word;
    int number;
    int *table; /* the rank's own */
    struct ra_device_error *error;
    int64_t nanoseconds; /* 0: no limit */
    int message, is_credit, hop, peer;
};

/* Holds the stream until the signal has come. What was written before it can then be read by what
 * follows on the stream. If it does not come in time, or says that its sender has failed, or the
 * host says stop: this rank has failed, and this wait and all later ones end. */
cudaError_t ra_signal_wait(const struct ra_signal *signal, cudaStream_t stream);

/* Copies a mask (batch, rows), in which whatever is not 0 counts as true. */
cudaError_t ra_signal_mask(struct ra_tensor to, struct ra_tensor from, int64_t batch, int64_t rows,
                           cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
