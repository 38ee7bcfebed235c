/* ra_cuda_meter: what ranks measure with on a GPU. See ra_meter.h and ra_cuda_plan.h.
 *
 * Chapter 12. New here: a device that is held until all that is to be timed has been enqueued.
 */
#include <math.h>
#include "ra_clock.h"
#include "ra_cuda_plan.h"
#include "ra_meter.h"
#include "ra_work.h"

static void *take(const void *from, int64_t bytes)
{
    void *memory = NULL;
    if (cudaMalloc(&memory, (size_t)bytes) == cudaSuccess &&
        (!from || cudaMemcpy(memory, from, (size_t)bytes, cudaMemcpyHostToDevice) == cudaSuccess))
        return memory;
    cudaGetLastError();
    cudaFree(memory);
    return NULL;
}

static void give_back(void *memory)
{
    cudaFree(memory);
}

static void copy(void *to, const void *from, int64_t bytes)
{
    cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToDevice, NULL);
}

/* As long as the host takes to enqueue a call, and to ask the other ranks whether they make it. All
 * ranks begin together, and should end together: a thread that sleeps may be late by a tenth of
 * this. */
static void hold(void *watch)
{
    const double *end = &((struct ra_stopwatch *)watch)->seconds;
    while (ra_seconds() < *end)
        ;
}

/* The device does not begin before the host has enqueued everything: a program that makes its calls
 * one behind the other does not see that time either. */
static void start(struct ra_stopwatch *watch)
{
    cudaEvent_t began = NULL, ended = NULL;
    bool made = cudaEventCreate(&began) == cudaSuccess && cudaEventCreate(&ended) == cudaSuccess;
    *watch = (struct ra_stopwatch){ra_seconds() + 5e-4, began, ended};
    if (made && cudaLaunchHostFunc(NULL, hold, watch) == cudaSuccess)
        cudaEventRecord(began, NULL);
}

static void stop(struct ra_stopwatch *watch)
{
    cudaEventRecord(watch->ended, NULL);
}

static double seconds(struct ra_stopwatch *watch)
{
    float milliseconds = 0;
    bool told = cudaEventSynchronize(watch->ended) == cudaSuccess &&
                cudaEventElapsedTime(&milliseconds, watch->began, watch->ended) == cudaSuccess;
    cudaEventDestroy(watch->began);
    cudaEventDestroy(watch->ended);
    cudaGetLastError();
    return told ? 1e-3 * milliseconds : INFINITY;
}

static int64_t tile(const struct ra_config *c, enum ra_side side)
{
    if (side == RA_QUERY_SIDE)
        return ra_work_rows(c->type, ra_cuda_widest(c), c->deterministic, RA_WORK_FORWARD);
    return c->type == RA_FLOAT32 ? 64 : 128;
}

/* So many rows that they fill a GPU, and messages so long that their time is seen. */
const struct ra_meter ra_cuda_meter = {.take = take,
                                       .give_back = give_back,
                                       .copy = copy,
                                       .start = start,
                                       .stop = stop,
                                       .seconds = seconds,
                                       .tile = tile,
                                       .rows = 4096,
                                       .heads = 32,
                                       .least = 1 << 18,
                                       .most = 1 << 26};
