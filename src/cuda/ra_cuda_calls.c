/* ra_cuda_calls: forward and backward of a plan on GPUs, as they are called. See
 * ring_attention_cuda.h.
 *
 * Chapter 11. New here: calls that return before they are done, on a stream that is the caller's.
 */
#include <inttypes.h>
#include "ra_arrays.h"
#include "ra_error.h"
#include "ra_cuda_calls.h"
#include "ra_cuda_places.h"
#include "ra_cuda_ring.h"
#include "ra_cuda_wait.h"
#include "ra_message.h"
#include "ring_attention_cuda.h"

/* Can calls be enqueued on this stream? */
static enum ra_status check_stream(const struct ra_plan *plan, cudaStream_t stream, char *error)
{
    int device = ra_cuda_of(plan)->device;
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &capture) == cudaSuccess &&
        capture != cudaStreamCaptureStatusNone)
        return ra_error_set(error, "stream is being captured into a graph, which calls cannot be: "
                                   "give one that is not");
    if (cudaStreamGetDevice(stream, &device) == cudaSuccess && device != ra_cuda_of(plan)->device)
        return ra_error_set(error, "stream is one of device %d: give one of device %d", device,
                            ra_cuda_of(plan)->device);
    return RA_OK;
}

/* Can the device tell the places of all rows apart, if slopes ask for them? */
static enum ra_status check_places(const struct ra_plan *plan, const struct ra_arrays *arrays,
                                   char *error)
{
    int64_t length = ra_max(plan->layouts[RA_QUERY_SIDE].length, plan->layouts[RA_KEY_SIDE].length);
    if (!arrays->slopes.data || length <= RA_CUDA_MOST_PLACES)
        return RA_OK;
    return ra_error_set(error,
                        "arrays.slopes is given, and a sequence has %" PRId64
                        " rows: on a GPU it can have at most %" PRId64 " then",
                        length, RA_CUDA_MOST_PLACES);
}

/* Are all ranks from which messages come in the same call? In a group that exchanges heads, all
 * members are. */
static bool agree(struct ra_plan *plan, enum ra_call_kind kind)
{
    struct ra_ring *ring = &plan->ring;
    if (!plan->inner)
        return ra_ring_agree(ring, kind);
    int U = ra_exchange_group(plan), own = plan->link.rank % U;
    bool agreed = ra_ring_begin(ring, kind);
    for (int s = 1; s < U && agreed; s++) {
        struct ra_exchange nothing = {
            .message = RA_ROWS, .to = (own + s) % U - own, .from = (own - s + U) % U - own};
        agreed = ra_ring_exchange(ring, &nothing, true);
    }
    return agreed;
}

/* Checks what was given, and numbers the call. */
static enum ra_status begin(struct ra_cuda_call *call, struct ra_plan *plan,
                            const struct ra_arrays *given, bool backward, cudaStream_t stream)
{
    *call = (struct ra_cuda_call){.plan = plan, .stream = stream, .backward = backward};
    if (!plan->dry_run)
        (void)ra_cuda_poll_errors(plan);
    enum ra_status status = ra_arrays_read(plan, &call->arrays, given, backward);
    if (status != RA_OK)
        return status;
    char text[RA_ERROR_SIZE];
    if (check_stream(plan, stream, text) != RA_OK ||
        check_places(plan, &call->arrays, text) != RA_OK)
        return ra_plan_abort(plan, RA_INVALID, text);

    /* Are all ranks in the same call? What their devices do is enqueued for that one. */
    if (!agree(plan, backward ? RA_CALL_BACKWARD : RA_CALL_FORWARD))
        return ra_cuda_fail(plan, RA_LOST, ra_message_error(&plan->link));
    struct ra_cuda *cuda = plan->own;
    call->number = cuda->calls = (cuda->calls + 1) % RA_SIGNALS;
    if (backward)
        cuda->backwards = (cuda->backwards + 1) % RA_SIGNALS;
    call->backward_number = cuda->backwards;

    /* The memory of the plan is that of the call before until it has ended. */
    RA_DO(plan, cudaStreamWaitEvent(stream, cuda->ended, 0));

    /* The device may still copy the places before these. */
    return ra_cuda_places_are_due(call) ? ra_cuda_finish(plan, cuda->places_copied) : RA_OK;
}

/* What came of it. */
static enum ra_status end(struct ra_cuda_call *call)
{
    struct ra_plan *plan = call->plan;
    struct ra_cuda *cuda = plan->own;
    cuda->hop = -1;
    if (call->keys_in_place)
        RA_DO(plan, cudaStreamWaitEvent(call->stream, cuda->keys_left, 0));
    RA_DO(plan, cudaEventRecord(cuda->ended, call->stream));

    /* If the link passes messages, nothing is left to be waited for. */
    if (ra_cuda_has_messages(plan) && cuda->transport != RA_PEER_COPIES)
        ra_cuda_settle(plan, call->stream);
    if (plan->status == RA_OK && cuda->code != cudaSuccess)
        ra_cuda_fail_by_cuda(plan);

    /* Nor are the arrays of a call that has failed used any longer: keys may leave from there. */
    if (plan->status != RA_OK) {
        cudaStreamSynchronize(call->stream);
        cudaStreamSynchronize(cuda->keys_stream);
    }
    return plan->status;
}

enum ra_status ra_cuda_enqueue(struct ra_plan *plan, const struct ra_arrays *given, bool backward,
                               void *stream, void (*work)(struct ra_cuda_call *call))
{
    struct ra_cuda_call call;
    int before = 0;
    if (!plan->dry_run) {
        before = ra_cuda_enter(plan);

        /* Launches report the last error of this thread: what failed before is none of this
         * call. */
        cudaGetLastError();
    }
    enum ra_status status = begin(&call, plan, given, backward, stream);
    if (status == RA_OK) {
        work(&call);
        status = end(&call);
    }
    if (!plan->dry_run)
        cudaSetDevice(before);
    return status;
}

enum ra_status ra_cuda_forward_on(struct ra_plan *plan, const struct ra_arrays *arrays,
                                  void *stream)
{
    return ra_cuda_enqueue(plan, arrays, false, stream, ra_cuda_enqueue_forward);
}

enum ra_status ra_cuda_backward_on(struct ra_plan *plan, const struct ra_arrays *arrays,
                                   void *stream)
{
    return ra_cuda_enqueue(plan, arrays, true, stream, ra_cuda_enqueue_backward);
}

/* Either call, if this is a plan for a GPU. */
static enum ra_status call(struct ra_plan *plan, const struct ra_arrays *arrays, bool is_backward,
                           void *stream)
{
    if (!ra_plan_enter(plan))
        return RA_INVALID;
    enum ra_status status;
    if (plan->backend->wait == ra_cuda_wait)
        status =
            (is_backward ? plan->backend->backward : plan->backend->forward)(plan, arrays, stream);
    else
        status =
            ra_error_set(plan->error, "this plan computes on %s: call ra_forward and ra_backward",
                         plan->backend->place);
    ra_plan_leave(plan);
    return status;
}

enum ra_status ra_cuda_forward(struct ra_plan *plan, const struct ra_arrays *arrays,
                               cudaStream_t stream)
{
    return call(plan, arrays, false, stream);
}

enum ra_status ra_cuda_backward(struct ra_plan *plan, const struct ra_arrays *arrays,
                                cudaStream_t stream)
{
    return call(plan, arrays, true, stream);
}
