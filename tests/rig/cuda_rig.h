/* cuda_rig: what programs that measure GPUs share: a rank for each, errors that end all of them,
 * and medians.
 *
 * Scaffolding, like stage: no chapter teaches it.
 */
#ifndef CUDA_RIG_H
#define CUDA_RIG_H

#include <cuda_runtime_api.h>

#include "median.h"
#include "ring_attention.h"

/* This rank of MPI_COMM_WORLD, and the stream on which it works. */
extern struct rig {
    const char *program;
    int rank, ranks;
    cudaStream_t stream;
} rig;

/* Starts MPI. */
void rig_begin(const char *program, int *argc, char ***argv);

/* Chooses a device for this rank: one for each, as far as there are as many; and makes the stream.
 * If some rank has no device, ends all of them, and those without say so. Warns, once on each
 * machine, where ranks share: `shared` says what that means. All ranks call this together. */
void rig_choose_device(const char *shared);

/* The plan of all ranks on their GPUs. */
struct ra_plan *rig_plan(const struct ra_config *config);

/* Ends the program. */
void rig_end(void);

/* Ends it on all ranks, with an error; and does so if this is one. */
_Noreturn void stop(const char *what, const char *why);
void must(cudaError_t status, const char *what);
void must_ra(enum ra_status status, const struct ra_plan *plan);

/* The clock of this rank's multiprocessors in GHz and its GPU's power in watts, as the driver reads
 * them now; 0 where it does not say. */
struct rig_state {
    double clock, power;
};
struct rig_state rig_read_state(void);

/* Memory, all 0. */
void *on_host(int64_t count, size_t size);

#endif
