/* ra_signal: how the GPUs of a ring tell each other that a message has come. See ra_signal.h.
 *
 * Chapter 11. New here: a kernel that only waits, with a timeout.
 */
#include "ra_signal.h"

/* How often a wait looks at its word before it looks at the host's memory, which is far away. */
enum { LOOKS = 32 };

/* The word, and with it all that its writer wrote before. */
static __device__ __forceinline__ int acquire(const int *word)
{
    int value;
    asm volatile("ld.acquire.sys.global.s32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
    return value;
}

static __device__ __forceinline__ int64_t nanoseconds(void)
{
    int64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

/* This rank has failed: the first to find that writes down why; all make sure that the others hear
 * of it before anything that follows is sent to them. */
static __device__ void fail(const struct ra_signal *signal, int failure)
{
    for (int i = 0; i < RA_SIGNALS; i++)
        ((volatile int *)signal->table)[i] = RA_SIGNAL_LOST;
    __threadfence_system();
    if (atomicExch(&signal->table[RA_SIGNALS], 1) != 0)
        return;
    volatile struct ra_device_error *error = signal->error;
    error->message = signal->message;
    error->is_credit = signal->is_credit;
    error->hop = signal->hop;
    error->peer = signal->peer;
    __threadfence_system();
    error->failure = failure;
    __threadfence_system();
}

__global__ static void __launch_bounds__(1) wait_kernel(const struct ra_signal signal)
{
    const int64_t began = nanoseconds();
    for (int looks = 0;; looks++) {
        int value = acquire(signal.word);
        if (value == RA_SIGNAL_LOST)
            return fail(&signal, RA_SIGNAL_PEER_LOST);

        /* Is it this number or one after it, modulo RA_SIGNALS? */
        if (((unsigned)(value - signal.number) & (RA_SIGNALS - 1)) < RA_SIGNALS / 2)
            return;
        if (*(volatile int *)&signal.table[RA_SIGNALS] != 0)
            return fail(&signal, RA_SIGNAL_LATE);
        if (looks % LOOKS == 0 && *(volatile int *)&signal.error->stop != 0)
            return fail(&signal, RA_SIGNAL_STOPPED);
        if (signal.nanoseconds > 0 && nanoseconds() - began > signal.nanoseconds)
            return fail(&signal, RA_SIGNAL_LATE);
        __nanosleep(100);
    }
}

cudaError_t ra_signal_wait(const struct ra_signal *signal, cudaStream_t stream)
{
    wait_kernel<<<1, 1, 0, stream>>>(*signal);
    return cudaGetLastError();
}

enum { THREADS = 256 };
static const int64_t most_blocks = 1024;

__global__ static void __launch_bounds__(THREADS)
    mask_kernel(const struct ra_tensor to, const struct ra_tensor from, int64_t batch, int64_t rows)
{
    /* A bool that holds neither 0 nor 1 may not be read as one. */
    const unsigned char *data = (const unsigned char *)from.data;
    bool *mask = (bool *)to.data;
    int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    for (; i < batch * rows; i += gridDim.x * (int64_t)THREADS)
        mask[i / rows * to.batch + i % rows * to.row] =
            data[i / rows * from.batch + i % rows * from.row] != 0;
}

cudaError_t ra_signal_mask(struct ra_tensor to, struct ra_tensor from, int64_t batch, int64_t rows,
                           cudaStream_t stream)
{
    int64_t blocks = (batch * rows + THREADS - 1) / THREADS;
    if (blocks == 0)
        return cudaSuccess;
    unsigned grid = (unsigned)(blocks < most_blocks ? blocks : most_blocks);
    mask_kernel<<<grid, THREADS, 0, stream>>>(to, from, batch, rows);
    return cudaGetLastError();
}
