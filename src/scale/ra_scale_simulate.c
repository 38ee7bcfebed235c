/* ra_scale_simulate: a pass of the ring, event by event. See ring_attention_scale.h.
 *
 * Chapter 12. New here: when each rank begins each hop, from when others do.
 */
#include <math.h>
#include <stdlib.h>
#include "ra_error.h"
#include "ra_options.h"
#include "ra_scale_cost.h"

/* A message that a rank sends and one that it receives: when they have arrived. -inf: there is
 * none. */
struct mail {
    double sent, received;
};

/* A rank on its way round: when it began this hop and was done with its work, when its link is
 * free, and the messages of each kind that it waits for. */
struct traveller {
    double begin, ready, link, work, waiting;
    struct mail keys, gradients, home;
};

static const struct mail no_mail = {-INFINITY, -INFINITY};

/* When a rank that is done at `time` and waits for this mail goes on. */
static double after(double time, struct mail mail)
{
    return fmax(time, fmax(mail.sent, mail.received));
}

/* One rank sends to another; neither before `from` nor before `to`, when they have come to the
 * message, nor before the sender's link is free. */
static double post(const struct ra_cost *cost, struct traveller *all, int rank, int other,
                   double from, double to, int64_t bytes)
{
    double begin = fmax(fmax(from, to), all[rank].link);
    return all[rank].link = begin + ra_cost_message(cost, rank, other, (double)bytes);
}

/* Keys of this step leave for the next. */
static void pass_keys(const struct ra_cost *cost, struct traveller *all, int step)
{
    const struct ra_ring *ring = &cost->plan->ring;
    for (int rank = 0; rank < cost->ranks; rank++) {
        if (!ra_ring_sends(ring, rank, step))
            continue;
        int to = ra_ring_rank_at(ring, rank, ra_ring_stride(ring, step));
        int64_t bytes = ra_ring_rows(ring, rank, step) * ring->key_bytes;
        all[rank].keys.sent = all[to].keys.received =
            post(cost, all, rank, to, all[rank].begin, all[to].begin, bytes);
    }
}

/* Gradients of this step follow them, or go home. */
static void pass_gradients(const struct ra_cost *cost, struct traveller *all, int step)
{
    const struct ra_ring *ring = &cost->plan->ring;
    for (int rank = 0; rank < cost->ranks; rank++)
        all[rank].gradients = no_mail;
    for (int rank = 0; rank < cost->ranks; rank++) {
        int64_t bytes = ra_ring_rows(ring, rank, step) * ring->gradient_bytes;
        if (ra_ring_sends(ring, rank, step)) {
            int to = ra_ring_rank_at(ring, rank, ra_ring_stride(ring, step));
            all[rank].gradients.sent = all[to].gradients.received =
                post(cost, all, rank, to, all[rank].ready, all[to].ready, bytes);
        } else if (ra_ring_sends_home(ring, rank, step)) {
            int to = ra_ring_rank_at(ring, rank, -ring->schedule.hop[step]);
            all[rank].home.sent =
                fmax(all[rank].home.sent,
                     all[to].home.received =
                         post(cost, all, rank, to, all[rank].ready, all[to].ready, bytes));
        }
    }
}

/* The loop of chapter 03, of all ranks side by side. */
static void travel(const struct ra_cost *cost, struct traveller *all, bool backward,
                   struct ra_simulated_hop *hops)
{
    const struct ra_ring *ring = &cost->plan->ring;
    for (int step = 0; step < ring->schedule.count; step++) {
        for (int rank = 0; rank < cost->ranks; rank++)
            all[rank].keys = no_mail;
        pass_keys(cost, all, step);
        for (int rank = 0; rank < cost->ranks; rank++) {
            struct traveller *one = &all[rank];
            int origin = ra_ring_origin(ring, rank, step);
            double work = ra_cost_work(cost, rank, origin,
                                       ra_cost_count(cost, rank, origin).computed, backward);
            one->work += work;
            if (hops)
                hops[step * cost->ranks + rank] =
                    (struct ra_simulated_hop){.begin = one->begin, .worked = one->begin + work};
            one->ready = after(one->begin + work, one->gradients);
            one->waiting += one->ready - (one->begin + work);
        }
        if (backward)
            pass_gradients(cost, all, step);
        for (int rank = 0; rank < cost->ranks; rank++) {
            struct traveller *one = &all[rank];
            one->begin = after(one->ready, one->keys);
            one->waiting += one->begin - one->ready;
            if (hops)
                hops[step * cost->ranks + rank].end = one->begin;
        }
    }
}

enum ra_status ra_simulate(double *seconds, const struct ra_cost *cost, bool backward,
                           struct ra_scale_rank *ranks, struct ra_simulated_hop *hops, char *error)
{
    struct traveller *all = calloc((size_t)cost->ranks, sizeof *all);
    if (!all) {
        ra_error_set(error, "no memory for %d ranks", cost->ranks);
        return RA_OUT_OF_MEMORY;
    }
    for (int rank = 0; rank < cost->ranks; rank++)
        all[rank].keys = all[rank].gradients = all[rank].home = no_mail;
    travel(cost, all, backward, hops);

    *seconds = 0;
    for (int rank = 0; rank < cost->ranks; rank++) {
        struct traveller *one = &all[rank];
        double end = after(after(one->begin, one->gradients), one->home);
        *seconds = fmax(*seconds, end);
        if (ranks)
            ranks[rank] = (struct ra_scale_rank){one->work, one->waiting + end - one->begin, end};
    }
    free(all);
    return RA_OK;
}

enum ra_status ra_scale_simulate(double *seconds, const struct ra_config *config,
                                 const struct ra_scale_mask *mask,
                                 const struct ra_scale_machine *machine, bool backward,
                                 struct ra_scale_rank *ranks, char error[RA_ERROR_SIZE])
{
    char unused[RA_ERROR_SIZE];
    struct ra_cost cost;
    error = error ? error : unused;
    if (!seconds)
        return ra_error_set(error, "seconds is NULL");
    if (backward && config && config->forward_only)
        return ra_error_set(error, "config.forward_only: there is no backward");
    enum ra_status status = ra_cost_open(&cost, config, mask, machine, error);
    if (status != RA_OK)
        return status;
    if (cost.plan->config.method != RA_RING)
        status = ra_error_set(error, "config.method = %s: give RA_RING, which is simulated",
                              ra_option_methods[cost.plan->config.method].constant);
    else
        status = ra_simulate(seconds, &cost, backward, ranks, NULL, error);
    ra_cost_close(&cost);
    return status;
}
