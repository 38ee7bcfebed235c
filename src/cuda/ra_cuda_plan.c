/* ra_cuda_plan: the life of a plan for a GPU, and its memory. See ring_attention_cuda.h and
 * ra_cuda.h.
 *
 * Chapter 11. New here: all memory of the device is one allocation, laid out by a function that
 * also only counts.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_error.h"
#include "ra_cuda.h"
#include "ra_cuda_calls.h"
#include "ra_cuda_connect.h"
#include "ra_cuda_link.h"
#include "ra_cuda_lists.h"
#include "ra_cuda_observe.h"
#include "ra_cuda_peers.h"
#include "ra_cuda_plan.h"
#include "ra_cuda_places.h"
#include "ra_cuda_reach.h"
#include "ra_cuda_steps.h"
#include "ra_cuda_wait.h"
#include "ra_range.h"

/* Blocks of device memory begin where any access is aligned. */
enum { LINE = 256 };

/* The largest head that the kernels have, and the least compute capability, times ten. */
enum { MOST_DIM = 256, LEAST_CAPABILITY = 80 };

/* ---- Memory. */

/* How much memory of the device a rank needs for itself, and as workspace. */
struct sizes {
    int64_t own, workspace;
};

/* Gives everything that a rank has on its device a place there: what is kept from call to call, or
 * written by other ranks, behind `start`, all else in the workspace. Returns how much that is. */
static struct sizes lay_out(const struct ra_plan *plan, int rank, struct ra_cuda *cuda, char *start,
                            char *workspace, void *keys[3], float *gradients[4])
{
    const struct ra_config *c = &plan->config;
    struct ra_arena own = {start, LINE, 0}, arena = {workspace, LINE, 0};
    int64_t n = ra_plan_bound(plan, RA_QUERY_SIDE, rank),
            m = ra_plan_bound(plan, RA_KEY_SIDE, rank);
    int64_t row_bytes = c->batch * n * c->heads * (int64_t)sizeof(float);
    bool backward = !c->forward_only, several = plan->ring.schedule.count > 1;
    bool varies = c->max_slices > 0;
    struct ra_cuda_needs needs =
        ra_plan_has_own(plan, rank) ? ra_cuda_of(plan)->needs : ra_cuda_needs_of(plan, rank);
    int64_t width = ra_max(backward ? c->dim : 0, c->dim_value);
    cuda->wide = ra_arena_take(&arena, needs.carry ? row_bytes * width
                                       : backward  ? row_bytes * c->dim
                                                   : 0);
    cuda->max = ra_arena_take(&arena, needs.carry ? row_bytes : 0);
    cuda->sum = ra_arena_take(&arena, needs.carry ? row_bytes : 0);
    cuda->delta = ra_arena_take(&arena, backward ? row_bytes : 0);
    bool many_keys = ra_cuda_loses(plan, c->keys),
         many_queries = ra_cuda_loses(plan, n * (c->heads / c->key_heads));
    cuda->wide_comp = many_keys ? ra_arena_take(&arena, row_bytes * width) : NULL;
    cuda->sum_comp = many_keys ? ra_arena_take(&arena, row_bytes) : NULL;
    int64_t most = varies ? ra_plan_most_bound(plan, RA_KEY_SIDE) : 0;
    for (int step = 0; step < plan->ring.schedule.count; step++)
        most = ra_max(most, ra_ring_rows(&plan->ring, rank, step));
    cuda->share_comp =
        backward && many_queries ? ra_arena_take(&arena, most * plan->ring.gradient_bytes) : NULL;
    bool ordered = ra_cuda_stripes(plan) > 1;
    int64_t bytes = row_bytes / (int64_t)sizeof(float) * c->dim * ra_type_bytes(c->type);
    cuda->q = ordered ? ra_arena_take(&arena, bytes) : NULL;
    cuda->rows = ordered ? ra_arena_take(&arena, row_bytes * c->dim_value) : NULL;
    cuda->k = ordered ? ra_arena_take(&arena, ra_cuda_key_bytes(c, m, c->dim)) : NULL;
    cuda->v = ordered ? ra_arena_take(&arena, ra_cuda_key_bytes(c, m, c->dim_value)) : NULL;
    cuda->lse = ordered ? ra_arena_take(&arena, row_bytes) : NULL;
    cuda->semaphores = ra_arena_take(&own, needs.semaphores * (int64_t)sizeof *cuda->semaphores);
    cuda->mask = ra_arena_take(&arena, c->has_mask ? c->batch * m : 0);
    cuda->list_memory = ra_arena_take(&own, ra_cuda_lists_device_bytes(plan));
    cuda->places = ra_arena_take(&own, ra_cuda_places_bytes(plan, rank));

    /* Other ranks may write to a message before a call begins here. */
    ra_plan_place_messages(plan, rank, several ? &own : &arena, keys, gradients);

    /* In a ring of two steps no sums come that go on: their place is free. */
    bool comes_home =
        backward && (varies ? ra_plan_may_travel(plan) : plan->ring.schedule.last[rank] > 0);
    int64_t home_bytes = comes_home ? m * plan->ring.gradient_bytes : 0;
    cuda->home = plan->ring.schedule.count == 2 ? gradients[3] : ra_arena_take(&own, home_bytes);
    cuda->table = ra_arena_take(&own, several ? (RA_SIGNALS + 1) * sizeof *cuda->table : 0);
    cuda->flags =
        ra_arena_take(&own, several ? ra_cuda_flag_count(plan) * (int64_t)sizeof *cuda->flags : 0);

    /* Memory of 0 bytes would have no address. */
    return (struct sizes){own.used, ra_max(arena.used, LINE)};
}

static struct sizes sizes_of(const struct ra_plan *plan, int rank)
{
    struct ra_cuda other;
    void *keys[3];
    float *gradients[4];
    return lay_out(plan, rank, &other, NULL, NULL, keys, gradients);
}

static int64_t workspace_bytes_of(const struct ra_plan *plan, int rank)
{
    return sizes_of(plan, rank).workspace;
}

/* Memory of the device that is the plan's. */
static int64_t device_bytes_of(const struct ra_plan *plan, int rank)
{
    struct sizes sizes = sizes_of(plan, rank);
    int64_t used = sizes.own + (plan->config.caller_workspace ? 0 : sizes.workspace);
    used = ra_max(used, LINE);
    return plan->ring.schedule.count > 1 ? ra_cuda_reach_bytes(used) : used;
}

static void use_workspace(struct ra_plan *plan, char *workspace)
{
    struct ra_cuda *cuda = plan->own;
    lay_out(plan, plan->link.rank, cuda, cuda->memory, workspace, plan->ring.keys,
            plan->ring.gradients);
}

/* Host memory of the plan: struct ra_cuda and its arrays. */
static int64_t lay_out_host(const struct ra_plan *plan, struct ra_cuda *cuda)
{
    struct ra_arena arena = {(char *)cuda, LINE, 0};
    ra_arena_take(&arena, sizeof *cuda);
    void *steps = ra_arena_take(&arena, ra_cuda_steps_bytes(plan));
    void *peers = ra_arena_take(&arena, plan->link.size * (int64_t)sizeof(struct ra_peer));
    void *arrived_at_end = ra_arena_take(&arena, plan->link.size);
    int64_t timers = ra_cuda_timer_count(plan);
    void *timer = ra_arena_take(&arena, timers * (int64_t)sizeof(struct ra_cuda_timer));
    if (cuda) {
        cuda->steps = steps;
        cuda->peers = peers;
        cuda->arrived_at_end = arrived_at_end;
        cuda->timers = timers > 0 ? timer : NULL;
    }
    return arena.used;
}

static int64_t bytes_of(const struct ra_plan *plan, int rank)
{
    int64_t bytes = device_bytes_of(plan, rank) + lay_out_host(plan, NULL) +
                    ra_cuda_lists_bytes(plan) + ra_cuda_places_bytes(plan, rank);
    bytes += plan->ring.schedule.count > 1 ? (int64_t)sizeof(struct ra_device_error) : 0;
    return bytes + ra_cuda_staging_bytes(plan, ra_cuda_of(plan)->transport, rank);
}

/* Which kernels ra_cuda_launch.c launches: those for compute capability 9.0 call k03's for what
 * they cannot take. */
static const char *kernels_of(const struct ra_plan *plan)
{
    const struct ra_config *c = &plan->config;
    if (c->type == RA_FLOAT32)
        return "k02";
    if (ra_cuda_of(plan)->capability / 10 != 9)
        return "k03";
    if (!ra_cuda_in_eights(c))
        return c->dim % 8 ? "k03, as dim is not a multiple of 8"
                          : "k03, as dim_value is not a multiple of 8";
    return c->deterministic || ra_cuda_widest(c) > 128
               ? "k07 forward, k06 backward; k03 for arrays not at multiples of 16 bytes"
               : "k07 forward, k07 backward; k03 for arrays not at multiples of 16 bytes";
}

static int describe(const struct ra_plan *plan, int rank, char *text, size_t size)
{
    const struct ra_cuda *cuda = plan->own;
    int64_t bytes = device_bytes_of(plan, rank);
    if (plan->elsewhere)
        return snprintf(text, size, "device: that of the other rank; %" PRId64 " bytes on it\n",
                        bytes);
    if (plan->dry_run)
        return snprintf(text, size,
                        "device: none, this is a plan to look at; %" PRId64 " bytes on it\n",
                        bytes);
    bool several = plan->ring.schedule.count > 1, given = several && cuda->why[0];
    const char *transport = !several ? "none needed" : cuda->pass ? cuda->pass->name : "none";
    return snprintf(text, size,
                    "device %d: %s; %" PRId64 " bytes on it\nkernels: %s\ntransport: %s%s%s\n",
                    cuda->device, cuda->device_name, bytes, kernels_of(plan), transport,
                    given ? ", as " : "", given ? cuda->why : "");
}

/* ---- The end of a plan. */

bool ra_cuda_leave(struct ra_plan *plan)
{
    if (plan->dry_run)
        return true;
    int before = ra_cuda_enter(plan);
    ra_cuda_finish_all(plan);
    bool unused = ra_cuda_disconnect(plan);
    cudaSetDevice(before);
    return unused;
}

void ra_cuda_release(struct ra_plan *plan, bool unused)
{
    /* Nothing is under way here any more; of what was not created there is nothing to destroy. */
    struct ra_cuda *cuda = plan->own;
    int before = 0;
    bool has_device = !plan->dry_run && cudaGetDevice(&before) == cudaSuccess;
    if (has_device)
        cudaSetDevice(cuda->device);
    cudaStream_t streams[] = {cuda->keys_stream, cuda->gradients_stream};
    for (int i = 0; i < 2; i++)
        if (streams[i])
            cudaStreamDestroy(streams[i]);
    cudaEvent_t events[] = {
        cuda->packed, cuda->keys_left, cuda->keys_arrived, cuda->computed, cuda->gradients_arrived,
        cuda->summed, cuda->ended,     cuda->left[0],      cuda->left[1],  cuda->credit_sent,
        cuda->now};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            cudaEventDestroy(events[i]);
    for (int64_t i = 0; i < ra_cuda_timer_count(plan); i++) {
        struct ra_cuda_timer *timer = &cuda->timers[i];
        if (timer->began)
            cudaEventDestroy(timer->began);
        if (timer->ended)
            cudaEventDestroy(timer->ended);
    }
    ra_cuda_lists_end(plan);
    ra_cuda_places_end(plan);
    if (cuda->device_error)
        cudaFreeHost(cuda->device_error);
    if (cuda->staging && unused)
        (cuda->transport == RA_HOST_LINK ? cudaFreeHost : cudaFree)(cuda->staging);
    if (cuda->memory && unused)
        cudaFree(cuda->memory);
    if (has_device)
        cudaSetDevice(before);
    if (unused) /* the link, too, may still write there */
        free(cuda);
}

/* Memory that CUDA does not know is the host's. Most devices do not reach that, and an access to it
 * would end all that this process has on the device. */
enum ra_status ra_cuda_check_address(const struct ra_plan *plan, const char *name,
                                     const void *address, char *error)
{
    struct cudaPointerAttributes attributes;
    if (ra_cuda_of(plan)->reaches_all_memory ||
        cudaPointerGetAttributes(&attributes, address) != cudaSuccess ||
        attributes.type != cudaMemoryTypeUnregistered)
        return RA_OK;
    return ra_error_set(error,
                        "%s is memory of the host: give memory of device %d, as cudaMalloc does",
                        name, ra_cuda_of(plan)->device);
}

/* ---- The beginning of a plan. */

/* Streams and events, and what host and device share. */
static void begin_device(struct ra_plan *plan)
{
    struct ra_cuda *cuda = plan->own;
    struct cudaDeviceProp properties;
    int least, greatest;
    if (!RA_DO(plan, cudaGetDevice(&cuda->device)))
        return;
    if (RA_DO(plan, cudaGetDeviceProperties(&properties, cuda->device))) {
        snprintf(cuda->device_name, sizeof cuda->device_name, "%.60s", properties.name);
        cuda->capability = 10 * properties.major + properties.minor;
        cuda->processors = properties.multiProcessorCount;
        cuda->reaches_all_memory = properties.pageableMemoryAccess;
    }

    /* A wait is a kernel of one thread: of high priority, so that it gets the next place
     * that is free. */
    RA_DO(plan, cudaDeviceGetStreamPriorityRange(&least, &greatest));
    RA_DO(plan, cudaStreamCreateWithPriority(&cuda->keys_stream, cudaStreamNonBlocking, greatest));
    RA_DO(plan,
          cudaStreamCreateWithPriority(&cuda->gradients_stream, cudaStreamNonBlocking, greatest));
    cudaEvent_t *events[] = {&cuda->packed,     &cuda->keys_left,         &cuda->keys_arrived,
                             &cuda->computed,   &cuda->gradients_arrived, &cuda->summed,
                             &cuda->ended,      &cuda->left[0],           &cuda->left[1],
                             &cuda->credit_sent};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        RA_DO(plan, cudaEventCreateWithFlags(events[i], cudaEventDisableTiming));

    /* Those of the observer know the time. */
    for (int64_t i = 0; i < ra_cuda_timer_count(plan); i++) {
        RA_DO(plan, cudaEventCreate(&cuda->timers[i].began));
        RA_DO(plan, cudaEventCreate(&cuda->timers[i].ended));
    }
    if (cuda->timers)
        RA_DO(plan, cudaEventCreate(&cuda->now));
    if (ra_cuda_has_messages(plan)) {
        RA_DO(plan, cudaHostAlloc((void **)&cuda->device_error, sizeof *cuda->device_error,
                                  cudaHostAllocMapped | cudaHostAllocPortable));
        if (ra_cuda_ok(plan))
            memset(cuda->device_error, 0, sizeof *cuda->device_error);
        RA_DO(plan, cudaHostGetDevicePointer((void **)&cuda->mapped_error, cuda->device_error, 0));
    }
}

enum ra_status ra_cuda_take_device(struct ra_plan *plan, char *error)
{
    struct ra_cuda *cuda = plan->own;
    begin_device(plan);
    if (!ra_cuda_ok(plan)) {
        cudaGetLastError();
        return ra_cuda_error(plan, error);
    }
    if (cuda->capability < LEAST_CAPABILITY) {
        ra_error_set(error, "device %d, %s, has compute capability %d.%d: %d.%d or newer is needed",
                     cuda->device, cuda->device_name, cuda->capability / 10, cuda->capability % 10,
                     LEAST_CAPABILITY / 10, LEAST_CAPABILITY % 10);
        return RA_DEVICE;
    }
    if (!RA_DO(plan, cudaMalloc((void **)&cuda->memory, (size_t)cuda->device_bytes))) {
        cudaGetLastError();
        ra_error_set(error, "no memory: the plan needs %" PRId64 " bytes on device %d: %s",
                     cuda->device_bytes, cuda->device, cudaGetErrorString(cuda->code));
        return RA_OUT_OF_MEMORY;
    }

    /* Semaphores begin at 0. */
    RA_DO(plan, cudaMemset(cuda->memory, 0, (size_t)cuda->device_bytes));
    return RA_OK;
}

enum ra_status ra_cuda_lacks_host_memory(const struct ra_plan *plan, int64_t bytes, char *error)
{
    const struct ra_cuda *cuda = plan->own;
    cudaGetLastError();
    ra_error_set(error,
                 "no memory: the plan needs %" PRId64
                 " bytes of the host's from which device %d copies: %s",
                 bytes, cuda->device, cudaGetErrorString(cuda->code));
    return RA_OUT_OF_MEMORY;
}

/* All of the plan that is on a device. */
static enum ra_status begin(struct ra_plan *plan, char *error)
{
    struct ra_cuda *cuda = plan->own;
    enum ra_status status = ra_cuda_take_device(plan, error);
    if (status != RA_OK)
        return status;
    ra_cuda_steps_find(plan, cuda->steps);
    cuda->deferred = ra_cuda_deferred_keys(plan);
    bool lent = plan->config.caller_workspace;
    use_workspace(plan, lent ? NULL : cuda->memory + sizes_of(plan, plan->link.rank).own);
    ra_cuda_lists_begin(plan);
    ra_cuda_places_begin(plan);
    if (cuda->code == cudaErrorMemoryAllocation)
        return ra_cuda_lacks_host_memory(
            plan, ra_cuda_lists_bytes(plan) + ra_cuda_places_bytes(plan, plan->link.rank), error);
    int *flags = NULL;
    if (plan->ring.schedule.count > 1) {
        flags = malloc((size_t)ra_cuda_flag_count(plan) * sizeof *flags);
        if (!flags) {
            ra_error_set(error, "no memory for %" PRId64 " signals", ra_cuda_flag_count(plan));
            return RA_OUT_OF_MEMORY;
        }
        ra_cuda_begin_signals(plan, flags);
        free(flags);
    }
    RA_DO(plan, cudaDeviceSynchronize());
    return ra_cuda_ok(plan) ? RA_OK : ra_cuda_error(plan, error);
}

static enum ra_status create(struct ra_plan *plan, char *error)
{
    const struct ra_config *c = &plan->config;
    if (c->dim > MOST_DIM)
        return ra_error_set(error, "config.dim = %" PRId64 ": a plan for a GPU has at most %d",
                            c->dim, MOST_DIM);
    if (c->dim_value > MOST_DIM)
        return ra_error_set(error,
                            "config.dim_value = %" PRId64 ": a plan for a GPU has at most %d",
                            c->dim_value, MOST_DIM);
    int64_t host_bytes = lay_out_host(plan, NULL);
    struct ra_cuda *cuda = plan->own = calloc(1, (size_t)host_bytes);
    if (!cuda) {
        ra_error_set(error, "no memory: the plan needs %" PRId64 " bytes of the host's",
                     host_bytes);
        return RA_OUT_OF_MEMORY;
    }
    lay_out_host(plan, cuda);

    /* A plan to look at asks no other rank: that the host passes messages is known only if the
     * config says so. */
    if (plan->dry_run)
        cuda->transport = c->transport;
    cuda->hop = -1;
    cuda->needs = ra_cuda_needs_of(plan, plan->link.rank);
    cuda->device_bytes = device_bytes_of(plan, plan->link.rank);
    enum ra_status status = plan->dry_run ? RA_OK : begin(plan, error);
    if (status != RA_OK)
        ra_cuda_release(plan, true);
    return status;
}

/* Lists of work, or which launches a band takes. */
static enum ra_status use_slices(struct ra_plan *plan, char *error)
{
    if (plan->dry_run)
        return RA_OK;
    int before = ra_cuda_enter(plan);
    ra_cuda_lists_make(plan);
    ra_cuda_of(plan)->places_sent = false;
    cudaSetDevice(before);
    if (plan->status == RA_OK)
        return ra_cuda_ok(plan) ? RA_OK : ra_cuda_error(plan, error);
    memmove(error, plan->error, sizeof plan->error); /* it may be that very text */
    return plan->status;
}

const struct ra_backend ra_cuda_ring_backend = {.place = "a GPU",
                                                .methods = RA_CUDA_METHODS,
                                                .takes_optional = true,
                                                .check_address = ra_cuda_check_address,
                                                .own_gradients_stay = true,
                                                .create = create,
                                                .connect = ra_cuda_connect,
                                                .bytes = bytes_of,
                                                .workspace_bytes = workspace_bytes_of,
                                                .use_workspace = use_workspace,
                                                .use_slices = use_slices,
                                                .keeps_hops = true,
                                                .line = LINE,
                                                .describe = describe,
                                                .forward = ra_cuda_forward_on,
                                                .backward = ra_cuda_backward_on,
                                                .wait = ra_cuda_wait,
                                                .leave = ra_cuda_leave,
                                                .free = ra_cuda_release};
