/* ra_scale: the time of attention on many ranks, by formula. See ring_attention_scale.h.
 *
 * Chapter 12. New here: a hop takes as long as the slowest of all ranks' work and messages.
 */
#include <math.h>
#include <stdlib.h>
#include "ra_config_check.h"
#include "ra_error.h"
#include "ra_exchange_parts.h"
#include "ra_gather.h"
#include "ra_scale_cost.h"

/* What is summed up of a rank, forward and backward. */
struct rank {
    double work[2], inside[2], host[2];
};

/* A prediction on its way. */
struct prediction {
    struct ra_cost cost;
    struct ra_scale *scale;
    struct ra_scale_hop *hops; /* (2, ranks), or NULL */
    struct rank *ranks;
    int passes; /* 1: forward only */
};

static struct ra_scale_pass *pass_of(struct prediction *p, int pass)
{
    return pass == 0 ? &p->scale->forward : &p->scale->backward;
}

/* Adds a hop to a pass. */
static void add_hop(struct prediction *p, int pass, int number, struct ra_scale_hop hop)
{
    hop.seconds = fmax(hop.work, hop.messages);
    pass_of(p, pass)->seconds += hop.seconds;
    pass_of(p, pass)->work += hop.mean_work;
    if (p->hops)
        p->hops[pass * p->cost.ranks + number] = hop;
}

/* Adds what no work hides. */
static void add_tail(struct prediction *p, int pass, double seconds)
{
    pass_of(p, pass)->tail += seconds;
    pass_of(p, pass)->seconds += seconds;
}

/* The work of all ranks of a group at one hop, on the keys of the group `origin`. */
static void work_of_hop(struct prediction *p, int group, int origin, struct ra_scale_hop hops[2])
{
    struct ra_cost_pairs pairs = ra_cost_count(&p->cost, group, origin);
    int U = p->cost.group;
    for (int rank = group * U; rank < (group + 1) * U; rank++)
        for (int pass = 0; pass < p->passes; pass++) {
            double work = ra_cost_work(&p->cost, rank, origin, pairs.computed, pass == 1);
            pass_of(p, pass)->multiply_adds +=
                ra_cost_multiply_adds(&p->cost, rank, pairs.visible, pass == 1);
            hops[pass].work = fmax(hops[pass].work, work);
            hops[pass].mean_work += work / p->cost.ranks;
            p->ranks[rank].work[pass] += work;
        }
}

/* Books a message of a rank, and returns its seconds. */
static double message(struct prediction *p, int pass, int from, int to, double bytes)
{
    struct rank *rank = &p->ranks[from];
    *(ra_cost_leaves_host(&p->cost, from, to) ? &rank->host[pass] : &rank->inside[pass]) += bytes;
    return ra_cost_message(&p->cost, from, to, bytes);
}

/* ---- The ring, of ranks or of groups. */

/* Books a message from a rank to the one of its place in the group `to`. */
static double message_to(struct prediction *p, int pass, int rank, int to, int64_t bytes)
{
    int U = p->cost.group;
    return message(p, pass, rank, to * U + rank % U, (double)bytes);
}

/* Seconds of what a rank sends while it works at this step: its keys, if they go on; backward,
 * before them, the gradients of the step before, if those went on or home. */
static double messages_at(struct prediction *p, int pass, int rank, int step)
{
    const struct ra_ring *ring = &p->cost.attends->ring;
    const struct ra_cost_member *member = ra_cost_member(&p->cost, rank);
    int group = rank / p->cost.group;
    double seconds = 0;
    if (step < ring->schedule.count && ra_ring_sends(ring, group, step))
        seconds +=
            message_to(p, pass, rank, ra_ring_rank_at(ring, group, ra_ring_stride(ring, step)),
                       ra_ring_rows(ring, group, step) * member->key_bytes);
    bool stay = step == 1 && p->cost.attends->backend->own_gradients_stay;
    if (pass == 0 || step == 0 || stay)
        return seconds;
    int before = step - 1, hop = ring->schedule.hop[before];
    int64_t bytes = ra_ring_rows(ring, group, before) * member->gradient_bytes;
    if (ra_ring_sends(ring, group, before))
        seconds += message_to(p, pass, rank,
                              ra_ring_rank_at(ring, group, ra_ring_stride(ring, before)), bytes);
    else if (ra_ring_sends_home(ring, group, before))
        seconds += message_to(p, pass, rank, ra_ring_rank_at(ring, group, -hop), bytes);
    return seconds;
}

static void predict_ring(struct prediction *p)
{
    const struct ra_ring *ring = &p->cost.attends->ring;
    int count = p->scale->hops = ring->schedule.count, U = p->cost.group;
    for (int step = 0; step <= count; step++) {
        struct ra_scale_hop hops[2] = {{0}};
        for (int group = 0; group < p->cost.ranks / U && step < count; group++)
            work_of_hop(p, group, ra_ring_origin(ring, group, step), hops);
        for (int rank = 0; rank < p->cost.ranks; rank++)
            for (int pass = 0; pass < p->passes; pass++)
                hops[pass].messages = fmax(hops[pass].messages, messages_at(p, pass, rank, step));

        /* After the last step there is only the way home. */
        for (int pass = 0; pass < p->passes; pass++)
            if (step < count) {
                hops[pass].distance = ring->schedule.hop[step] * U;
                add_hop(p, pass, step, hops[pass]);
            } else {
                add_tail(p, pass, hops[pass].messages);
            }
    }
}

/* ---- Heads exchanged, before the ring of the groups and after it. */

/* Seconds of an exchange: of rounds, one after the other. In round s each member of a group sends
 * to the one s places on, and in round 0 to itself. A backend with messages also copies all of it
 * into them and out again, reading and writing; one that writes rows where they are used copies
 * only what a rank keeps. */
static double exchange_at(struct prediction *p, int pass, bool outwards)
{
    const struct ra_plan *plan = p->cost.plan;
    int U = ra_exchange_group(plan);
    double memory_bandwidth = p->cost.machine.memory_bandwidth, seconds = 0;
    for (int s = 0; s < U; s++) {
        double sent = 0, copied = 0;
        for (int rank = 0; rank < p->cost.ranks; rank++) {
            int first = rank / U * U, to = first + (rank + s) % U,
                from = first + (rank + U - s) % U;
            double out = (double)ra_exchange_bytes(plan, rank, to, pass == 1, outwards);
            double in = (double)ra_exchange_bytes(plan, from, rank, pass == 1, outwards);
            if (!plan->backend->exchanges_in_place)
                copied = fmax(copied, 2 * (out + in));
            else if (s == 0)
                copied = fmax(copied, 2 * out);
            if (s > 0)
                sent = fmax(sent, message(p, pass, rank, to, out));
        }
        seconds += sent + (memory_bandwidth > 0 ? copied / memory_bandwidth : 0);
    }
    return seconds;
}

static void predict_exchange(struct prediction *p)
{
    predict_ring(p);
    for (int pass = 0; pass < p->passes && p->cost.group > 1; pass++)
        add_tail(p, pass, exchange_at(p, pass, false) + exchange_at(p, pass, true));
}

/* ---- The double ring: in each host a ring of its own, and rings between ranks of the same
 * place. */

/* Books what every rank sends to its neighbour in its host, or to the next host; returns the
 * seconds of the rank that takes longest. */
static double messages_of_all(struct prediction *p, int pass, bool between, double bytes)
{
    int P = p->cost.ranks, here = p->cost.machine.ranks_per_host;
    double most = 0;
    for (int rank = 0; rank < P && bytes > 0; rank++) {
        int host = rank / here, place = rank % here;
        int to = between ? (rank + here) % P : host * here + (place + 1) % here;
        if (to != rank)
            most = fmax(most, message(p, pass, rank, to, bytes));
    }
    return most;
}

/* A round in which the keys of one host go round in each host. While it lasts, the keys that all
 * ranks began with go on to the next host, and the gradients of the round before, complete but for
 * the hosts to come, follow them. */
static void predict_round(struct prediction *p, int round, int rounds, double key_bytes,
                          double gradient_bytes)
{
    int P = p->cost.ranks, here = p->cost.machine.ranks_per_host;
    double before[2] = {p->scale->forward.seconds, p->scale->backward.seconds};
    for (int inner = 0; inner < here; inner++) {
        struct ra_scale_hop hops[2] = {{.distance = round * here + inner},
                                       {.distance = round * here + inner}};
        for (int rank = 0; rank < P; rank++) {
            int host = (rank / here - round + rounds) % rounds;
            work_of_hop(p, rank, host * here + (rank % here - inner + here) % here, hops);
        }
        for (int pass = 0; pass < p->passes; pass++) {
            /* Gradients trail by one hop: with the first of a round go those of the last round, to
             * the rank of the host that its keys began at. */
            bool sends = inner + 1 < here, trails = pass == 1 && (inner > 0 || round > 0);
            double messages = messages_of_all(p, pass, false, sends ? key_bytes : 0);
            messages += messages_of_all(p, pass, false, trails ? gradient_bytes : 0);
            hops[pass].messages = messages;
            add_hop(p, pass, round * here + inner, hops[pass]);
        }
    }
    for (int pass = 0; pass < p->passes; pass++) {
        double seconds = messages_of_all(p, pass, true, round + 1 < rounds ? key_bytes : 0);
        if (pass == 1 && round > 0)
            seconds += messages_of_all(p, pass, true, gradient_bytes);
        /* What the round has not hidden, its last hop waits for. */
        double more = fmax(seconds - (pass_of(p, pass)->seconds - before[pass]), 0);
        pass_of(p, pass)->seconds += more;
        if (p->hops)
            p->hops[pass * P + (round + 1) * here - 1].seconds += more;
    }
}

static void predict_double_ring(struct prediction *p)
{
    int P = p->cost.ranks, here = p->cost.machine.ranks_per_host;
    const struct ra_plan *plan = p->cost.plan;
    double rows = (double)ra_layout_most_rows(plan->layouts[RA_KEY_SIDE]);
    double gradients = rows * (double)plan->ring.gradient_bytes;
    p->scale->hops = P;
    for (int round = 0; round < P / here; round++)
        predict_round(p, round, P / here, rows * (double)plan->ring.key_bytes, gradients);
    if (p->passes == 2) {
        double home = messages_of_all(p, 1, false, gradients);
        if (P > here)
            home += messages_of_all(p, 1, true, gradients);
        add_tail(p, 1, home);
    }
}

/* ---- Gathered keys: all keys, and then all work; backward, gradients after it. */

/* Seconds of a step, in which each rank sends its keys to the one so many hops on; or, on the way
 * home, the gradients of keys to the rank that they are from. */
static double gather_at(struct prediction *p, int pass, int step, bool home)
{
    const struct ra_ring *ring = &p->cost.plan->ring;
    int hop = ring->schedule.hop[step];
    double most = 0;
    for (int rank = 0; rank < p->cost.ranks; rank++) {
        int to = ra_ring_rank_at(ring, rank, home ? -hop : hop);
        int64_t bytes = 0;
        if (home)
            bytes = ra_ring_rows(ring, rank, step) * ring->gradient_bytes;
        else if (ra_gather_sends(ring, rank, step))
            bytes = ring->rows[rank] * ring->key_bytes;
        most = fmax(most, message(p, pass, rank, to, (double)bytes));
    }
    return most;
}

/* One hop, as nobody waits for anybody between two folds. On GPUs it is an exchange. */
static void predict_gather(struct prediction *p)
{
    const struct ra_ring *ring = &p->cost.plan->ring;
    struct ra_scale_hop hops[2] = {{0}};
    p->scale->hops = 1;
    for (int rank = 0; rank < p->cost.ranks; rank++)
        for (int step = 0; step < ring->schedule.count; step++)
            work_of_hop(p, rank, ra_ring_origin(ring, rank, step), hops);
    for (int pass = 0; pass < p->passes; pass++) {
        hops[pass].work = 0;
        for (int rank = 0; rank < p->cost.ranks; rank++)
            hops[pass].work = fmax(hops[pass].work, p->ranks[rank].work[pass]);
        add_hop(p, pass, 0, hops[pass]);
        if (p->cost.plan->inner) {
            add_tail(p, pass, exchange_at(p, pass, false) + exchange_at(p, pass, true));
            continue;
        }
        for (int step = 1; step < ring->schedule.count; step++)
            add_tail(p, pass,
                     gather_at(p, pass, step, false) +
                         (pass == 1 ? gather_at(p, pass, step, true) : 0));
    }
}

/* ---- Memory, and all of it. */

/* The arrays of a call of the rank that has most rows. */
static int64_t array_bytes(const struct ra_plan *plan)
{
    const struct ra_config *c = &plan->config;
    int64_t number = ra_type_bytes(c->type), directions = c->forward_only ? 1 : 2;
    int64_t rows = ra_layout_most_rows(plan->layouts[RA_QUERY_SIDE]);
    int64_t keys = ra_layout_most_rows(plan->layouts[RA_KEY_SIDE]);
    int64_t query = rows * c->heads, key = keys * c->key_heads;
    return c->batch * (directions * (query + key) * (c->dim + c->dim_value) * number +
                       query * (int64_t)sizeof(float));
}

/* What the plan of this method holds, which must not be more than int64_t counts. */
static int64_t plan_bytes(const struct ra_cost *cost, enum ra_scale_method method)
{
    const struct ra_plan *plan = cost->plan;
    const struct ra_ring *ring = &plan->ring;
    int64_t most = 0, rows = ra_layout_most_rows(plan->layouts[RA_KEY_SIDE]);
    for (int rank = 0; rank < cost->ranks; rank++) {
        int64_t bytes = ra_plan_bytes_of(plan, rank);
        most = bytes > most ? bytes : most;
    }

    /* Slots for what goes between hosts: keys that arrive and leave, gradients that do. */
    if (method == RA_SCALE_DOUBLE_RING && cost->ranks > cost->machine.ranks_per_host)
        return most + 2 * rows * (ring->key_bytes + ring->gradient_bytes);
    return most;
}

/* What is summed up over ranks. */
static void finish(struct prediction *p)
{
    for (int pass = 0; pass < p->passes; pass++) {
        struct ra_scale_pass *sum = pass_of(p, pass);
        for (int rank = 0; rank < p->cost.ranks; rank++) {
            const struct rank *one = &p->ranks[rank];
            sum->busiest = fmax(sum->busiest, one->work[pass]);
            sum->inside_bytes = fmax(sum->inside_bytes, one->inside[pass]);
            sum->host_bytes = fmax(sum->host_bytes, one->host[pass]);
        }
        sum->waiting = fmax(sum->seconds - sum->work, 0); /* rounding may say less */
    }
}

/* What a method is to a plan; of a double ring the hops of the plan are those of a ring. */
static enum ra_method planned(enum ra_scale_method method)
{
    switch (method) {
    case RA_SCALE_GATHERED_KEYS:
        return RA_GATHERED_KEYS;
    case RA_SCALE_EXCHANGED_HEADS:
        return RA_EXCHANGED_HEADS;
    case RA_SCALE_HYBRID:
        return RA_HYBRID;
    default:
        return RA_RING;
    }
}

/* Makes the cost of this method, whatever config.method says. */
static enum ra_status open_method(struct ra_cost *cost, const struct ra_config *config,
                                  const struct ra_scale_mask *mask,
                                  const struct ra_scale_machine *machine,
                                  enum ra_scale_method method, char *error)
{
    struct ra_config own;
    enum ra_status status = ra_config_copy(&own, config, error);
    if (status != RA_OK)
        return status;
    own.method = planned(method);
    own.group = method == RA_SCALE_HYBRID ? own.group : 0;
    own.inner = 0;
    return ra_cost_open(cost, &own, mask, machine, error);
}

enum ra_status ra_scale_predict(struct ra_scale *scale, const struct ra_config *config,
                                const struct ra_scale_mask *mask,
                                const struct ra_scale_machine *machine, enum ra_scale_method method,
                                struct ra_scale_hop *hops, char error[RA_ERROR_SIZE])
{
    char unused[RA_ERROR_SIZE];
    struct prediction p = {.scale = scale, .hops = hops};
    error = error ? error : unused;
    if (!scale || (int)method < RA_SCALE_RING || method > RA_SCALE_HYBRID)
        return ra_error_set(error, scale ? "method: give RA_SCALE_RING, RA_SCALE_DOUBLE_RING, "
                                           "RA_SCALE_GATHERED_KEYS, RA_SCALE_EXCHANGED_HEADS or "
                                           "RA_SCALE_HYBRID"
                                         : "scale is NULL");
    enum ra_status status = open_method(&p.cost, config, mask, machine, method, error);
    if (status != RA_OK)
        return status;
    *scale = (struct ra_scale){0};
    p.passes = p.cost.plan->config.forward_only ? 1 : 2;
    p.ranks = calloc((size_t)p.cost.ranks, sizeof *p.ranks);
    if (!p.ranks) {
        ra_error_set(error, "no memory for %d ranks", p.cost.ranks);
        status = RA_OUT_OF_MEMORY;
    } else if (method == RA_SCALE_DOUBLE_RING &&
               p.cost.ranks % p.cost.machine.ranks_per_host != 0) {
        status = ra_error_set(error, "machine.ranks_per_host = %d does not divide the %d ranks",
                              p.cost.machine.ranks_per_host, p.cost.ranks);
    } else {
        (method == RA_SCALE_DOUBLE_RING     ? predict_double_ring
         : method == RA_SCALE_GATHERED_KEYS ? predict_gather
                                            : predict_exchange)(&p);
    }
    if (status == RA_OK) {
        finish(&p);
        scale->plan_bytes = plan_bytes(&p.cost, method);
        scale->array_bytes = array_bytes(p.cost.plan);
    }
    free(p.ranks);
    ra_cost_close(&p.cost);
    return status;
}
