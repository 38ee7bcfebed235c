/* ra_gpu_trace: when each part of a step was, for an observer. See ra_gpu.h.
 *
 * Chapter 14. New here: marks on streams. A part ends where the next one begins, so each of them
 * costs an event, and nobody waits for any before the step is done.
 */
#include <stdlib.h>
#include "ra_clock.h"
#include "ra_gpu.h"

static void mark(struct ra_gpu *gpu, cudaStream_t stream, int64_t layer, const char *name)
{
    if (gpu->mark_count == gpu->mark_room) {
        int room = 2 * gpu->mark_room + 64;
        struct ra_gpu_mark *more = realloc(gpu->marks, (size_t)room * sizeof *more);
        RA_GPU(gpu, more ? cudaSuccess : cudaErrorMemoryAllocation);
        if (!more)
            return;
        gpu->marks = more;
        for (int m = gpu->mark_room; m < room; m++)
            gpu->marks[m].event = NULL;
        gpu->mark_room = room;
    }
    struct ra_gpu_mark *next = &gpu->marks[gpu->mark_count++];
    if (!next->event)
        RA_GPU(gpu, cudaEventCreate(&next->event));
    *next = (struct ra_gpu_mark){name, (int)layer, stream, next->event};
    RA_GPU(gpu, cudaEventRecord(next->event, stream));
}

void ra_gpu_mark(struct ra_gpu *gpu, int64_t layer, const char *name)
{
    if (gpu->observe)
        mark(gpu, gpu->stream, layer, name);
}

void ra_gpu_mark_sums(struct ra_gpu *gpu, int64_t layer, const char *name)
{
    cudaStream_t stream = ra_gpu_ranks_stream(gpu->ranks);
    if (!gpu->observe || !stream)
        return;
    if (name) { /* sums wait for what they add up, and so must their beginning */
        mark(gpu, gpu->stream, layer, NULL);
        RA_GPU(gpu, cudaStreamWaitEvent(stream, gpu->marks[gpu->mark_count - 1].event, 0));
    }
    mark(gpu, stream, layer, name);
}

/* Events have no clock, but know how long ago they were. A part ends at the next mark: the two of
 * sums stand side by side, between parts of the stream of compute. */
void ra_gpu_tell(struct ra_gpu *gpu)
{
    if (!gpu->observe)
        return;
    mark(gpu, gpu->stream, -1, NULL);
    const struct ra_gpu_mark *end = gpu->marks + gpu->mark_count;
    RA_GPU(gpu, cudaEventSynchronize(end[-1].event));
    double now = ra_seconds();
    for (const struct ra_gpu_mark *part = gpu->marks; part < end; part++) {
        float began = 0, ended = 0; /* milliseconds ago */
        if (!part->name)
            continue;
        RA_GPU(gpu, cudaEventElapsedTime(&began, part->event, end[-1].event));
        RA_GPU(gpu, cudaEventElapsedTime(&ended, part[1].event, end[-1].event));
        if (gpu->code != cudaSuccess)
            return;
        gpu->observe(gpu->observer, &(struct ra_model_part){
                                        part->name, part->layer, part->stream != gpu->stream,
                                        now - 1e-3 * (double)began, now - 1e-3 * (double)ended});
    }
    gpu->mark_count = 0;
}

void ra_gpu_trace(struct ra_model *model,
                  void (*observe)(void *observer, const struct ra_model_part *part), void *observer)
{
    struct ra_gpu *gpu = model->own;
    gpu->observe = observe;
    gpu->observer = observer;
}

void ra_gpu_end_trace(struct ra_gpu *gpu)
{
    for (int m = 0; m < gpu->mark_room && gpu->marks[m].event; m++)
        cudaEventDestroy(gpu->marks[m].event);
    free(gpu->marks);
}
