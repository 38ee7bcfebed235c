/* ra_cuda_connect: how the ranks of a plan on GPUs find each other's memory, and agree how messages
 * pass. See ra_cuda.h.
 *
 * Chapter 11. New here: a handshake, after which a rank can write to another's memory without that
 * rank's help.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_agree.h"
#include "ra_error.h"
#include "ra_cuda_connect.h"
#include "ra_cuda_link.h"
#include "ra_cuda_peers.h"
#include "ra_cuda_reach.h"
#include "ra_cuda_wait.h"
#include "ra_message.h"

/* What a rank says of itself: where its memory is. */
struct address {
    struct ra_cuda_address at;
    bool device_memory;  /* the link takes device pointers */
    struct ra_peer peer; /* offsets into that memory, and no pointer */
};

/* And then: does it reach all ranks that it writes to? If not, why. */
struct reach {
    bool all;
    char why[160];
};

/* Does this rank write to the memory of rank `other`: a message, or a credit? */
static bool writes_to(const struct ra_plan *plan, int other)
{
    const struct ra_ring *ring = &plan->ring;
    int rank = plan->link.rank;

    /* Of the members of its group it writes the arrays, or reads them. */
    if (plan->inner)
        return other != rank && ra_exchange_first(plan, other) == ra_exchange_first(plan, rank);

    /* With slices to both neighbours; and gradients go home from any rank. */
    if (plan->config.max_slices > 0)
        return other != rank &&
               (!plan->config.forward_only || other == ra_ring_rank_at(ring, rank, 1) ||
                other == ra_ring_rank_at(ring, rank, -1));
    for (int step = 0; step < ring->schedule.count; step++) {
        bool sends = ra_ring_sends(ring, rank, step);
        bool home = !plan->config.forward_only && ra_ring_sends_home(ring, rank, step);
        if ((sends && ra_ring_rank_at(ring, rank, ra_ring_stride(ring, step)) == other) ||
            (ra_ring_receives(ring, rank, step) && ra_cuda_sender_of(plan, rank, step) == other) ||
            (home && ra_ring_origin(ring, rank, step) == other))
            return true;
    }
    return false;
}

/* How far into this rank's memory something lies. */
static int64_t offset(const struct ra_cuda *cuda, const void *place)
{
    return (const char *)place - cuda->memory;
}

/* Writes what this rank says of itself: where its memory is, and how far into it those places lie
 * that others write to. Without messages nobody writes there. */
static void write_address(const struct ra_plan *plan, struct address *address)
{
    const struct ra_cuda *cuda = plan->own;
    const struct ra_ring *ring = &plan->ring;
    struct ra_peer *places = &address->peer;
    bool messages = ra_cuda_has_messages(plan);
    address->device_memory = plan->link.device_memory;
    ra_cuda_address_write(&address->at, cuda->device, messages ? cuda->memory : NULL);
    if (!messages)
        return;
    places->flags = offset(cuda, cuda->flags);
    if (plan->inner) { /* heads are exchanged, through arrays of the plan's own */
        for (int i = 0; i < RA_EXCHANGE_PARTS; i++)
            places->parts[i] = offset(cuda, cuda->parts[i]);
        return;
    }
    places->keys[1] = offset(cuda, ring->keys[1]); /* keys[0] are this rank's own */
    places->keys[2] = offset(cuda, ring->keys[2]);
    places->sum = offset(cuda, ring->gradients[3]);
    places->home = offset(cuda, cuda->home);
}

/* Makes the memory of rank `other` one that this rank can write to. */
static bool reach(struct ra_plan *plan, const struct address *addresses, int other, char why[160])
{
    const struct ra_cuda_address *mine = &addresses[plan->link.rank].at;
    struct ra_peer *peer = &ra_cuda_of(plan)->peers[other];
    const struct ra_ring *ring = &plan->ring;
    int sharing = ra_cuda_speaker(plan)->sharing;
    *peer = addresses[other].peer;
    peer->memory = NULL;

    /* Their streams may lie in one queue, even if they do not write to each other. */
    if (sharing > 1)
        snprintf(why, 160, "%d ranks of a process share device %d", sharing, mine->device);
    else
        peer->memory =
            ra_cuda_reach(mine, ra_ring_name(ring, plan->link.rank), &addresses[other].at,
                          ra_ring_name(ring, other), &peer->opened, why);
    return peer->memory != NULL;
}

/* How many ranks of this process have the device of this one? */
static int count_sharing(const struct ra_plan *plan, const struct address *addresses)
{
    const struct ra_cuda_address *mine = &addresses[plan->link.rank].at;
    int sharing = 0;
    for (int r = 0; r < plan->link.size; r++)
        sharing += ra_cuda_address_same_process(mine, &addresses[r].at) &&
                   mine->device == addresses[r].at.device;
    return sharing;
}

static void close_peers(struct ra_plan *plan)
{
    for (int r = 0; r < plan->link.size; r++) {
        struct ra_peer *peer = &ra_cuda_of(plan)->peers[r];
        if (peer->opened)
            cudaIpcCloseMemHandle(peer->memory);
        peer->opened = false;
        peer->memory = NULL;
    }
}

/* The transport of all ranks, from what all of them say. */
static enum ra_status choose(const struct ra_plan *plan, const struct address *addresses,
                             const struct reach *reach, enum ra_transport *transport, char *why,
                             char *error)
{
    const struct ra_config *c = &plan->config;
    bool device_link = true;
    const char *reason = "";
    for (int r = plan->link.size - 1; r >= 0; r--) {
        device_link = device_link && addresses[r].device_memory;
        reason = reach[r].all ? reason : reach[r].why;
    }
    *transport = c->transport;
    if (c->transport == RA_ANY_TRANSPORT)
        *transport = !reason[0] ? RA_PEER_COPIES : device_link ? RA_DEVICE_LINK : RA_HOST_LINK;
    if (c->transport == RA_PEER_COPIES && reason[0])
        return ra_error_set(error, "config.transport = RA_PEER_COPIES: %s", reason);
    if (c->transport == RA_DEVICE_LINK && !device_link)
        return ra_error_set(error,
                            "config.transport = RA_DEVICE_LINK: the link takes no device pointers");
    why[0] = '\0';
    if (c->transport != RA_ANY_TRANSPORT)
        snprintf(why, 200, "config.transport says so");
    else if (reason[0])
        snprintf(why, 200, "%s%s", reason,
                 device_link ? "" : "; the link takes no device pointers");
    return RA_OK;
}

/* The handshake, with memory for what every rank says. */
static enum ra_status shake_hands(struct ra_plan *plan, struct address *addresses,
                                  struct reach *reached, char *error)
{
    static const struct ra_cuda_transport *const transports[] = {
        [RA_PEER_COPIES] = &ra_cuda_peer_copies,
        [RA_DEVICE_LINK] = &ra_cuda_device_link,
        [RA_HOST_LINK] = &ra_cuda_host_link};
    const struct ra_link *link = &plan->link;
    struct ra_cuda *cuda = plan->own;
    int P = link->size, rank = link->rank;

    /* First every rank says where its memory is. */
    write_address(plan, &addresses[rank]);
    bool heard = ra_agree_allgather(link, addresses, sizeof *addresses);
    cuda->sharing = heard ? count_sharing(plan, addresses) : 0;

    /* Then each tries to reach those it writes to. From here on close_peers is needed. */
    struct reach *mine = &reached[rank];
    mine->all = plan->config.transport <= RA_PEER_COPIES;
    for (int r = 0; r < P && heard && mine->all; r++)
        if (r != rank && writes_to(plan, r))
            mine->all = reach(plan, addresses, r, mine->why);
    heard = heard && ra_agree_allgather(link, reached, sizeof *reached);
    if (!heard) {
        snprintf(error, RA_ERROR_SIZE, "%s", ra_message_error(link));
        close_peers(plan);
        return RA_LOST;
    }

    /* From what all said, all come to the same choice. */
    enum ra_status chosen = choose(plan, addresses, reached, &cuda->transport, cuda->why, error);
    if (chosen != RA_OK || cuda->transport != RA_PEER_COPIES)
        close_peers(plan);
    if (chosen == RA_OK)
        cuda->pass = transports[cuda->transport];

    /* Memory may still be missing on one of them. And nobody may free what another has open, so all
     * end this together. */
    char text[RA_ERROR_SIZE] = "";
    enum ra_status status = chosen == RA_OK ? ra_cuda_take_staging(plan, text) : RA_OK;
    status = ra_agree(link, status, text);
    if (status != RA_OK)
        snprintf(error, RA_ERROR_SIZE, "%s", text);

    /* If this rank is lost here, others may take it for one that is connected. */
    cuda->connected = (status == RA_OK || status == RA_LOST) && chosen == RA_OK;
    return status != RA_OK ? status : chosen;
}

enum ra_status ra_cuda_connect(struct ra_plan *plan, char *error)
{
    const struct ra_link *link = &plan->link;
    size_t P = (size_t)link->size;
    if (P == 1)
        return RA_OK;
    struct address *addresses = calloc(P, sizeof *addresses);
    struct reach *reached = calloc(P, sizeof *reached);
    enum ra_status status = RA_OUT_OF_MEMORY;
    if (addresses && reached) {
        status = shake_hands(plan, addresses, reached, error);
    } else {
        ra_message_place(error, ra_ring_name(&plan->ring, link->rank), -1,
                         "no memory to connect %d ranks", link->size);
        link->fail(link->self, error);
    }

    /* If the link has failed, it may still write them, so they stay. */
    if (status != RA_LOST) {
        free(addresses);
        free(reached);
    }
    return status;
}

bool ra_cuda_disconnect(struct ra_plan *plan)
{
    struct ra_cuda *cuda = plan->own;
    if (!cuda->connected || !ra_cuda_has_messages(plan) || cuda->transport != RA_PEER_COPIES)
        return true;

    /* Once all have come here, nobody writes to another's memory any more. */
    close_peers(plan);
    return plan->status == RA_OK && ra_agree_allgather(&plan->link, cuda->arrived_at_end, 1);
}
