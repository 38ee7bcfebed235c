/* ra_cuda_wait: waits for what was enqueued, and ends a plan that has failed. See ra_cuda_wait.h.
 *
 * Chapter 11. New here: a host that hears of errors while the device works.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "ra_clock.h"
#include "ra_config_check.h"
#include "ra_cuda_wait.h"
#include "ra_cuda_observe.h"
#include "ra_message.h"

/* ---- The end of a plan by an error, and waiting. */

enum ra_status ra_cuda_fail(struct ra_plan *plan, enum ra_status status, const char *text)
{
    const struct ra_cuda *cuda = ra_cuda_speaker(plan);
    snprintf(plan->error, sizeof plan->error, "%s", text);
    plan->status = status;
    if (ra_plan_is_cancelled(plan))
        status = ra_plan_fail(plan);
    if (cuda->device_error)
        __atomic_store_n(&cuda->device_error->stop, 1, __ATOMIC_RELEASE);
    if (plan->link.fail)
        plan->link.fail(plan->link.self, plan->error);
    return status;
}

enum ra_status ra_cuda_fail_by_cuda(struct ra_plan *plan)
{
    char text[RA_ERROR_SIZE], named[RA_ERROR_SIZE];
    bool alone = plan->link.size == 1 && !ra_cuda_of(plan)->outer;
    ra_cuda_error(plan, text);
    ra_message_place(named, ra_ring_name(&plan->ring, plan->link.rank),
                     ra_cuda_of(plan)->failed_hop, "%s", text);
    return ra_cuda_fail(plan, RA_DEVICE, alone ? text : named);
}

/* The link whose failure ends the plan. That of an inner plan may have a single rank. */
static const struct ra_link *link_heard(const struct ra_plan *plan)
{
    const struct ra_cuda *cuda = plan->own;
    return cuda->outer ? cuda->outer_link : &plan->link;
}

/* Lets go of the processor for a moment, which others need to send what is waited for. */
static void backoff(void)
{
    nanosleep(&(struct timespec){0, 20000}, NULL);
}

enum ra_status ra_cuda_poll_errors(struct ra_plan *plan)
{
    const struct ra_link *link = link_heard(plan);
    struct ra_device_error *error = ra_cuda_speaker(plan)->device_error;
    int rank = ra_ring_name(&plan->ring, plan->link.rank);
    if (plan->status == RA_OK && ra_plan_is_cancelled(plan))
        return ra_cuda_fail(plan, RA_CANCELLED, "");
    if (link->size == 1)
        return plan->status;

    /* A refused call has ended the plan, too: what earlier ones wait for may never come. */
    if (plan->status != RA_OK) {
        if (error)
            __atomic_store_n(&error->stop, 1, __ATOMIC_RELEASE);
        return plan->status;
    }
    int failure = error ? __atomic_load_n(&error->failure, __ATOMIC_ACQUIRE) : 0;

    /* The rank that failed first knows why, and is about to say so. */
    bool sound = !link->poll || link->poll(link->self);
    double began = ra_seconds();
    while (sound && failure == RA_SIGNAL_PEER_LOST && ra_seconds() - began < 1) {
        backoff();
        sound = !link->poll || link->poll(link->self);
    }
    if (!sound)
        return ra_cuda_fail(plan, RA_LOST, ra_message_error(link));
    if (failure == RA_SIGNAL_NONE)
        return RA_OK;
    char text[RA_ERROR_SIZE];
    if (failure == RA_SIGNAL_PEER_LOST)
        ra_message_place(text, rank, error->hop, "rank %d has failed", error->peer);
    else
        ra_message_timeout_text(text, rank, error->hop, plan->config.timeout, error->peer,
                                !error->is_credit, (enum ra_message)error->message, RA_IS_SILENT);
    return ra_cuda_fail(plan, RA_LOST, text);
}

/* Is this done? An error counts as done, and is noted. */
static bool is_done(struct ra_plan *plan, cudaError_t code, const char *call)
{
    return code != cudaErrorNotReady && (ra_cuda_note(plan, code, call), true);
}

/* Hears of errors while something is awaited. What cannot be helped shows in plan->status, and what
 * waits on the device is let go. */
static void listen(struct ra_plan *plan)
{
    (void)ra_cuda_poll_errors(plan);
    if (link_heard(plan)->size > 1)
        backoff();
}

bool ra_cuda_settle(struct ra_plan *plan, cudaStream_t stream)
{
    const struct ra_cuda *cuda = plan->own;
    const struct ra_cuda *other = cuda->outer ? cuda->outer : plan->inner ? plan->inner->own : NULL;
    if (!other || other->transport != RA_PEER_COPIES)
        return RA_DO(plan, cudaStreamSynchronize(stream));
    while (ra_cuda_ok(plan) && !is_done(plan, cudaStreamQuery(stream), "cudaStreamQuery"))
        listen(plan);
    return ra_cuda_ok(plan) && ra_cuda_poll_errors(plan) == RA_OK;
}

enum ra_status ra_cuda_finish(struct ra_plan *plan, cudaEvent_t event)
{
    while (!is_done(plan, cudaEventQuery(event), "cudaEventQuery"))
        listen(plan);
    return plan->status;
}

void ra_cuda_finish_all(struct ra_plan *plan)
{
    struct ra_cuda *cuda = plan->own;
    while (!is_done(plan, cudaEventQuery(cuda->ended), "cudaEventQuery") ||
           !is_done(plan, cudaStreamQuery(cuda->keys_stream), "cudaStreamQuery") ||
           !is_done(plan, cudaStreamQuery(cuda->gradients_stream), "cudaStreamQuery"))
        listen(plan);
}

/* How did it go? */
static enum ra_status outcome(struct ra_plan *plan)
{
    enum ra_status status = ra_cuda_poll_errors(plan);
    return status == RA_OK && ra_cuda_of(plan)->code != cudaSuccess ? ra_cuda_fail_by_cuda(plan)
                                                                    : status;
}

enum ra_status ra_cuda_wait(struct ra_plan *plan)
{
    struct ra_plan *inner = plan->inner;
    if (plan->dry_run)
        return RA_OK;
    int before = ra_cuda_enter(plan);
    ra_cuda_finish_all(plan);
    if (inner)
        ra_cuda_finish_all(inner);
    if (ra_cuda_poll_errors(plan) == RA_OK)
        ra_cuda_tell_observer(inner ? inner : plan);
    enum ra_status status = outcome(plan);
    if (status == RA_OK && inner && outcome(inner) != RA_OK)
        status = ra_cuda_fail(plan, inner->status, inner->error);
    cudaSetDevice(before);
    return status;
}
