/* ra_cuda_link: messages between GPUs that the link passes. See ra_cuda.h.
 *
 * Chapter 11. New here: the link knows nothing of streams, so the host waits for the device before
 * it gives a message to the link, and for the link before the device goes on. A link that does not
 * reach the memory of GPUs is given copies in the host's memory.
 */
#include "ra_cuda_link.h"
#include "ra_cuda_wait.h"
#include <inttypes.h>
#include "ra_error.h"
#include "ra_message.h"

/* Blocks of host memory begin where any access is aligned. */
enum { LINE = 256 };

/* ---- Memory. */

/* Gives the messages that pass through the host their places; returns how much memory that
 * takes. */
static int64_t lay_out_staging(const struct ra_plan *plan, int rank, struct ra_cuda *cuda,
                               char *start)
{
    struct ra_arena arena = {start, LINE, 0};
    const struct ra_ring *ring = &plan->ring;
    int64_t own = ra_plan_bound(plan, RA_KEY_SIDE, rank);
    int64_t most = ra_plan_most_bound(plan, RA_KEY_SIDE);
    int steps = ring->schedule.count;
    if (plan->inner) {
        cuda->host_out = ra_arena_take(&arena, ra_exchange_most_bytes(plan));
        cuda->host_in = ra_arena_take(&arena, ra_exchange_most_bytes(plan));
        return arena.used;
    }
    for (int i = 0; i < 3; i++)
        cuda->host_keys[i] = ra_arena_take(
            &arena, steps > 1 && i < steps ? (i == 0 ? own : most) * ring->key_bytes : 0);
    bool backward = !plan->config.forward_only && steps > 1;
    bool travel = plan->config.max_slices > 0 || ring->schedule.last[rank] > 0;
    cuda->host_home = ra_arena_take(&arena, backward && travel ? own * ring->gradient_bytes : 0);
    cuda->host_out = ra_arena_take(&arena, backward ? most * ring->gradient_bytes : 0);
    cuda->host_in = ra_arena_take(&arena, backward && steps > 2 ? most * ring->gradient_bytes : 0);
    return arena.used;
}

int64_t ra_cuda_staging_bytes(const struct ra_plan *plan, enum ra_transport transport, int rank)
{
    struct ra_cuda other;
    bool needed = transport == RA_HOST_LINK || (transport == RA_DEVICE_LINK && plan->inner);
    return needed ? lay_out_staging(plan, rank, &other, NULL) : 0;
}

enum ra_status ra_cuda_take_staging(struct ra_plan *plan, char *error)
{
    struct ra_cuda *cuda = plan->own;
    int64_t bytes = ra_cuda_staging_bytes(plan, cuda->transport, plan->link.rank);
    bool by_host = cuda->transport == RA_HOST_LINK;
    if (bytes == 0)
        return RA_OK;
    if ((by_host ? cudaHostAlloc((void **)&cuda->staging, (size_t)bytes, cudaHostAllocPortable)
                 : cudaMalloc((void **)&cuda->staging, (size_t)bytes)) != cudaSuccess) {
        cudaGetLastError();
        cuda->staging = NULL;
        ra_error_set(error, "no memory: messages need %" PRId64 " bytes of the %s's", bytes,
                     by_host ? "host" : "device");
        return RA_OUT_OF_MEMORY;
    }
    lay_out_staging(plan, plan->link.rank, cuda, cuda->staging);
    return RA_OK;
}

/* ---- Messages. */

/* A message as the link has it: whose step decides how long it is, and where it lies. */
struct passed {
    int hop, distance; /* to or from the other rank */
    int64_t bytes;
    void *device, *host; /* its place in either memory */
};

/* The message that comes into this rank for a step. */
static struct passed incoming(const struct ra_plan *plan, enum ra_message message, int step)
{
    const struct ra_ring *ring = &plan->ring;
    const struct ra_cuda *cuda = plan->own;
    int rank = plan->link.rank, last = ring->schedule.last[rank], slot = ra_ring_slot(step);
    if (message == RA_GRADIENTS_RETURN)
        return (struct passed){last, last, ring->rows[rank] * ring->gradient_bytes, cuda->home,
                               cuda->host_home};
    struct passed passed = {.hop = ring->schedule.hop[step - 1],
                            .distance = -ra_ring_stride(ring, step - 1)};
    int64_t rows = ra_ring_rows(ring, rank, step);
    bool keys = message == RA_KEYS;
    passed.bytes = rows * (keys ? ring->key_bytes : ring->gradient_bytes);
    passed.device = keys ? ring->keys[slot] : (void *)ring->gradients[3];
    passed.host = keys ? cuda->host_keys[slot] : cuda->host_in;
    return passed;
}

/* The message that leaves this rank for a step; gradients that go home, at it. */
static struct passed outgoing(const struct ra_plan *plan, enum ra_message message, int step)
{
    const struct ra_ring *ring = &plan->ring;
    const struct ra_cuda *cuda = plan->own;
    bool keys = message == RA_KEYS, home = message == RA_GRADIENTS_RETURN;
    int sent_at = home ? step : step - 1, slot = ra_ring_slot(sent_at);
    int64_t rows = ra_ring_rows(ring, plan->link.rank, sent_at);
    int hop = ring->schedule.hop[sent_at];
    return (struct passed){.hop = hop,
                           .distance = home ? -hop : ra_ring_stride(ring, sent_at),
                           .bytes = rows * (keys ? ring->key_bytes : ring->gradient_bytes),
                           .device = keys ? ring->keys[slot] : (void *)ring->gradients[slot],
                           .host = keys ? cuda->host_keys[slot] : cuda->host_out};
}

/* Is this rank's place for the message free, or the message there? The streams know. */
static bool settle(struct ra_plan *plan, enum ra_message message)
{
    return ra_cuda_settle(plan, ra_cuda_stream(plan, message));
}

static void expect(struct ra_cuda_call *call, enum ra_message message, int step)
{
    struct ra_plan *plan = call->plan;
    const struct ra_link *link = &plan->link;
    bool by_host = ra_cuda_of(plan)->transport == RA_HOST_LINK;
    struct passed in = incoming(plan, message, step);
    if (settle(plan, message))
        link->receive(link->self, message, in.hop, in.distance, by_host ? in.host : in.device,
                      in.bytes);
}

static void push_from_device(struct ra_cuda_call *call, enum ra_message message, int step,
                             struct ra_cuda_timer *timer)
{
    struct ra_plan *plan = call->plan;
    const struct ra_link *link = &plan->link;
    struct passed out = outgoing(plan, message, step);
    (void)timer;
    if (settle(plan, message))
        link->send(link->self, message, out.hop, out.distance, out.device, out.bytes);
}

static void push_from_host(struct ra_cuda_call *call, enum ra_message message, int step,
                           struct ra_cuda_timer *timer)
{
    struct ra_plan *plan = call->plan;
    const struct ra_link *link = &plan->link;
    struct passed out = outgoing(plan, message, step);
    (void)timer;

    /* Keys that came by the link are in the host's memory already. */
    if (message != RA_KEYS || step == 1)
        RA_DO(plan, cudaMemcpyAsync(out.host, out.device, (size_t)out.bytes, cudaMemcpyDeviceToHost,
                                    ra_cuda_stream(plan, message)));
    if (settle(plan, message))
        link->send(link->self, message, out.hop, out.distance, out.host, out.bytes);
}

/* Waits for the link's messages of a kind, out and in; if they fail, the plan is lost. */
static void wait_for_link(struct ra_plan *plan, enum ra_message message)
{
    const struct ra_link *link = &plan->link;
    if (ra_cuda_ok(plan) && !link->wait(link->self, message))
        ra_cuda_fail(plan, RA_LOST, ra_message_error(link));
}

static void await_on_device(struct ra_cuda_call *call, enum ra_message message, int step)
{
    /* Gradients that left share the way out with those that went home. */
    (void)step;
    if (message == RA_GRADIENTS_RETURN)
        wait_for_link(call->plan, RA_GRADIENTS);
    wait_for_link(call->plan, message);
}

static void await_on_host(struct ra_cuda_call *call, enum ra_message message, int step)
{
    struct ra_plan *plan = call->plan;
    await_on_device(call, message, step);
    if (!ra_cuda_expects_message(plan, plan->link.rank, message, step))
        return;
    struct passed in = incoming(plan, message, step);
    RA_DO(plan, cudaMemcpyAsync(in.device, in.host, (size_t)in.bytes, cudaMemcpyHostToDevice,
                                ra_cuda_stream(plan, message)));
}

static void skip(struct ra_cuda_call *call, enum ra_message message, int step)
{
    /* Nobody waits for a message that is none. */
    (void)call;
    (void)message;
    (void)step;
}

static void credit(struct ra_cuda_call *call, enum ra_message message, int step)
{
    /* The sender waits until the link has taken its message, and needs no more. */
    (void)call;
    (void)message;
    (void)step;
}

const struct ra_cuda_transport ra_cuda_device_link = {.name = "device link",
                                                      .expect = expect,
                                                      .push = push_from_device,
                                                      .skip = skip,
                                                      .await = await_on_device,
                                                      .credit = credit};
const struct ra_cuda_transport ra_cuda_host_link = {.name = "host link",
                                                    .expect = expect,
                                                    .push = push_from_host,
                                                    .skip = skip,
                                                    .await = await_on_host,
                                                    .credit = credit};
