/* ra_scale_measure: the machine that the ranks of a link are. See ra_scale_measure.h.
 *
 * Chapter 12. New here: numbers of a machine that all ranks agree on.
 */
#include "ra_scale_measure.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_agree.h"
#include "ra_clock.h"
#include "ra_config_check.h"
#include "ra_error.h"
#include "ra_exchange.h"
#include "ra_math.h"
#include "ra_message.h"
#include "ra_meter.h"
#include "ra_part_link.h"

/* Seconds after which a rate is known well enough, and a message is long. All ranks know how long
 * it took, and stop alike. */
static const double LONG = 0.2, LONG_MESSAGE = 1e-4;

struct measurement {
    const struct ra_config *config;
    const struct ra_link *link;
    const struct ra_meter *meter;
    int64_t rows;    /* of the plan that is timed, at most */
    int times, here; /* ranks of a host */
    double *all;     /* (P): what ranks tell each other */
    char *from, *to; /* (longest): memory of the meter */
    int64_t longest;
    bool lost;
};

/* The most of what all ranks give, which they get when all have given it. */
static double most(struct measurement *m, double value)
{
    m->all[m->link->rank] = value;
    m->lost = m->lost || !ra_agree_allgather(m->link, m->all, sizeof *m->all);
    for (int r = 0; r < m->link->size && !m->lost; r++)
        value = fmax(value, m->all[r]);
    return value;
}

/* Waits for a call of this plan that has been begun with this status. If it has failed, all ranks
 * are lost. */
static void finish_call(struct measurement *m, struct ra_plan *plan, enum ra_status status)
{
    const struct ra_link *link = m->link;
    if (status == RA_OK && plan->backend->wait)
        status = plan->backend->wait(plan);
    if (status != RA_OK && link->fail) {
        char text[RA_ERROR_SIZE];
        ra_message_place(text, link->rank, -1, "%s", plan->error);
        link->fail(link->self, text);
    }
    m->lost = m->lost || status != RA_OK;
}

/* ---- The rate of a rank. */

/* The config of a plan that is made to be timed, with heads, types and kernels of the given one. */
static struct ra_config plain_config(const struct measurement *m)
{
    struct ra_config c = *m->config;
    c.batch = c.ring_size = 1;
    c.causal = c.local_keys = c.has_mask = c.caller_workspace = false;
    c.lookback = RA_NO_LOOKBACK;
    c.layout = RA_CONTIGUOUS;
    c.bucket = c.max_slices = c.max_rows = 0;
    c.observe = NULL;
    c.method = RA_RING;
    c.group = c.inner = 0;
    return c;
}

/* A plan of one rank, with shapes like those of a rank of this config. */
static enum ra_status make_plan(const struct measurement *m, struct ra_plan **plan, char *error)
{
    const struct ra_link *link = m->link;
    struct ra_config c = plain_config(m);
    /* Its poll is the link's: while a rank computes it is not silent. */
    struct ra_link alone = {
        .size = 1, .self = link->self, .poll = link->poll, .sharing = link->sharing};
    c.queries = ra_max(1, ra_min(m->rows, ra_ceiling_division(c.queries, link->size)));
    c.keys = ra_max(1, ra_min(m->rows, ra_ceiling_division(c.keys, link->size)));
    c.heads = c.key_heads = ra_min(m->meter->heads, c.heads);
    if (c.device)
        c.batch = ra_max(1, ra_min(m->config->batch, m->meter->heads / c.heads));
    return ra_plan_build(plan, &c, NULL, &alone, ra_exchange_backend(&c), false, error);
}

enum { ARRAYS = 9 }; /* of a call, and lse */

/* The arrays of its calls, each in memory of its own. False: there is none. */
static bool make_arrays(const struct ra_meter *meter, const struct ra_config *c,
                        struct ra_arrays *arrays, void *memory[ARRAYS])
{
    struct ra_tensor *all[] = {&arrays->q, &arrays->o, &arrays->d_out, &arrays->dq,
                               &arrays->k, &arrays->v, &arrays->dk,    &arrays->dv};
    const bool is_input[] = {true, false, true, false, true, true, false, false};
    int64_t rows = ra_max(c->queries, c->keys);
    int64_t numbers = c->batch * rows * c->heads * ra_dims_most(ra_config_dims(c));
    int64_t bytes = ra_type_bytes(c->type) * numbers;
    void *pattern = malloc((size_t)bytes);
    bool there = pattern != NULL;

    /* Not all alike; of 16 bits they are small ones of either type. */
    for (int64_t e = 0; e < numbers && there; e++)
        if (c->type == RA_FLOAT32)
            ((float *)pattern)[e] = (float)(e * 7919 % 2048) / 2048 - 0.5f;
        else
            ((uint16_t *)pattern)[e] = (uint16_t)(0x3800 + e * 7919 % 1024);
    for (int i = 0; i < ARRAYS - 1 && there; i++) {
        int64_t width = i == 0 || i == 3 || i == 4 || i == 6 ? c->dim : c->dim_value;
        memory[i] = meter->take(is_input[i] ? pattern : NULL, bytes);
        there = memory[i] != NULL;
        *all[i] = ra_tensor_bnhd(memory[i], c->type, i < 4 ? c->queries : c->keys, c->heads, width);
    }
    free(pattern);
    if (there)
        memory[ARRAYS - 1] =
            meter->take(NULL, c->batch * c->queries * c->heads * (int64_t)sizeof(float));
    arrays->lse = ra_tensor_bhn(memory[ARRAYS - 1], c->queries, c->heads);
    return memory[ARRAYS - 1] != NULL;
}

/* Multiply-adds a second of the slowest rank, each rank with attention of its own and all of them
 * at it together. A mean, as a run that is predicted also meets whatever else the machine does. */
static void measure_rate(struct measurement *m, struct ra_plan *plan,
                         const struct ra_arrays *arrays, bool backward, double *rate)
{
    const struct ra_config *c = &plan->config;
    const struct ra_backend *backend = plan->backend;
    double seconds = 0, products = (double)ra_dims_products(ra_config_dims(c), backward);
    int counted = 0;
    for (int time = 0; time <= m->times && !m->lost && seconds < LONG; time++) {
        struct ra_stopwatch watch;
        most(m, 0);
        m->meter->start(&watch);
        enum ra_status status =
            (backward ? backend->backward : backend->forward)(plan, arrays, NULL);
        m->meter->stop(&watch);
        finish_call(m, plan, status);
        double took = most(m, m->meter->seconds(&watch));
        if (time > 0 || took >= LONG) { /* the first time memory is touched, too */
            seconds += took;
            counted++;
        }
    }
    products *= (double)(c->batch * c->heads * c->queries) * (double)c->keys;
    *rate = products * counted / fmax(seconds, 1e-9);
}

static enum ra_status measure_rates(struct measurement *m, struct ra_scale_machine *machine,
                                    char *error)
{
    struct ra_plan *plan = NULL;
    struct ra_arrays arrays = RA_ARRAYS_INIT;
    void *memory[ARRAYS] = {NULL};
    enum ra_status status = make_plan(m, &plan, error);
    if (status == RA_OK && !make_arrays(m->meter, &plan->config, &arrays, memory)) {
        ra_error_set(error, "no memory to measure this rank");
        status = RA_OUT_OF_MEMORY;
    }
    status = ra_agree(m->link, status, error);
    if (status == RA_OK)
        measure_rate(m, plan, &arrays, false, &machine->forward_rate);
    if (status == RA_OK && !m->config->forward_only)
        measure_rate(m, plan, &arrays, true, &machine->backward_rate);
    if (m->meter->tile) {
        machine->tile_queries = m->meter->tile(m->config, RA_QUERY_SIDE);
        machine->tile_keys = m->meter->tile(m->config, RA_KEY_SIDE);
    }
    for (int i = 0; i < ARRAYS; i++)
        m->meter->give_back(memory[i]);
    if (plan)
        ra_plan_release(plan);
    return status;
}

/* ---- Messages. */

/* Seconds until a message of this many bytes has come, while all send so far to the right, inside
 * their hosts (`between`: to the next host): the shortest, in which nobody had to wait for a
 * processor. */
static double time_message(struct measurement *m, bool between, int64_t bytes, int times)
{
    const struct ra_link *link = m->link;
    int here = m->here, place = link->rank % here;
    int to = between ? here : (place + 1) % here - place;
    int from = between ? -here : (place + here - 1) % here - place;
    double least = INFINITY;
    for (int time = 0; time < times && !m->lost; time++) {
        most(m, 0);
        double began = ra_seconds();
        link->receive(link->self, RA_ROWS, 0, from, m->to, bytes);
        link->send(link->self, RA_ROWS, 0, to, m->from, bytes);
        m->lost = !link->wait(link->self, RA_ROWS);
        least = fmin(least, most(m, ra_seconds() - began));
    }
    return least;
}

static void measure_line(struct measurement *m, bool between, double *bandwidth, double *latency)
{
    const double bytes[] = {(double)(m->longest / 4), (double)m->longest};
    double shortest = time_message(m, between, sizeof(double), 10 * m->times), seconds[2];
    seconds[0] = time_message(m, between, m->longest / 4, 2 * m->times);
    seconds[1] = time_message(m, between, m->longest, m->times);
    if (!m->lost)
        ra_scale_line(bytes, seconds, shortest, bandwidth, latency);
}

/* ---- Messages between devices: those of a ring that has keys and no queries, so that nothing is
 * computed. */

struct passing {
    struct ra_part part; /* inside hosts, or between them */
    struct ra_link link;
    struct ra_plan *plan;
};

/* Makes the plan of a ring that passes messages of about so many bytes; of 0: none. */
static enum ra_status make_passing(const struct measurement *m, struct passing *passing,
                                   int64_t bytes, char *error)
{
    struct ra_config c = plain_config(m);
    int64_t row_bytes = 2 * c.dim * ra_type_bytes(c.type);
    c.queries = 0;
    c.keys = passing->link.size * ra_max(1, bytes / row_bytes);
    c.heads = c.key_heads = 1;
    c.ring_size = passing->link.size;
    c.local_keys = bytes == 0;
    c.forward_only = true;
    passing->plan = NULL;
    enum ra_status status = ra_plan_build(&passing->plan, &c, NULL, &passing->link,
                                          ra_exchange_backend(&c), false, error);
    status = ra_agree(m->link, status, error);
    if (status == RA_OK && passing->plan->backend->connect)
        status = passing->plan->backend->connect(passing->plan, error);

    /* The ranks of a part fail together, but not those of all parts. */
    return status == RA_LOST ? status : ra_agree(m->link, status, error);
}

/* Ends it, together with all other ranks, if there is one. */
static void end_passing(struct measurement *m, struct ra_plan *plan)
{
    if (!plan)
        return;
    bool unused = !plan->backend->leave || plan->backend->leave(plan);
    unused = unused && !m->lost;
    plan->backend->free(plan, unused);
    if (unused)
        free(plan);
}

/* Seconds of a ring's messages, each of about so many bytes: the shortest time. */
static enum ra_status time_passing(struct measurement *m, struct passing *passing, int64_t bytes,
                                   double *seconds, char *error)
{
    enum ra_status status = make_passing(m, passing, bytes, error);
    m->lost = m->lost || status == RA_LOST;
    *seconds = INFINITY;
    for (int time = 0; time < 4 * m->times && status == RA_OK && !m->lost; time++) {
        const struct ra_backend *backend = passing->plan->backend;
        const struct ra_config *c = &passing->plan->config;
        struct ra_arrays arrays = RA_ARRAYS_INIT;
        struct ra_stopwatch watch;
        int64_t rows = passing->plan->rows[RA_KEY_SIDE];
        arrays.q = arrays.o = ra_tensor_bnhd(m->from, c->type, 0, 1, c->dim);
        arrays.lse = ra_tensor_bhn(m->from, 0, 1);
        arrays.k = ra_tensor_bnhd(m->from, c->type, rows, 1, c->dim);
        arrays.v = ra_tensor_bnhd(m->from + rows * c->dim * ra_type_bytes(c->type), c->type, rows,
                                  1, c->dim);
        most(m, 0);
        m->meter->start(&watch);
        enum ra_status called = backend->forward(passing->plan, &arrays, NULL);
        m->meter->stop(&watch);
        finish_call(m, passing->plan, called);
        *seconds = fmin(*seconds, most(m, m->meter->seconds(&watch)));
    }
    end_passing(m, passing->plan);
    return status;
}

/* Measures a line by messages that become longer until they are long; what a call takes without any
 * is not theirs. */
static enum ra_status measure_passing(struct measurement *m, bool between, double *bandwidth,
                                      double *latency, char *error)
{
    struct passing passing = {.part = {m->link, m->here, between}};
    double none = 0, shortest = 0, seconds[2] = {0, 0}, bytes[2] = {0, 0};
    passing.link = ra_part_link(&passing.part);
    enum ra_status status = time_passing(m, &passing, 0, &none, error);
    if (status == RA_OK && !m->lost)
        status = time_passing(m, &passing, 1, &shortest, error);
    for (int64_t next = m->meter->least; status == RA_OK && !m->lost; next *= 4) {
        seconds[0] = seconds[1];
        bytes[0] = bytes[1];
        bytes[1] = (double)next;
        status = time_passing(m, &passing, next, &seconds[1], error);
        if (bytes[0] > 0 && (next >= m->meter->most || seconds[1] - none > LONG_MESSAGE))
            break;
    }
    if (status != RA_OK || m->lost)
        return status;

    /* A ring's messages come one after the other. */
    int messages = passing.link.size - 1;
    for (int i = 0; i < 2; i++)
        seconds[i] = fmax(seconds[i] - none, 1e-9) / messages;
    ra_scale_line(bytes, seconds, fmax(shortest - none, 0) / messages, bandwidth, latency);
    return RA_OK;
}

/* ---- All of it. */

/* Bytes read and written a second, while all ranks copy. */
static void measure_memory(struct measurement *m, double *bandwidth)
{
    double least = INFINITY;
    for (int time = 0; time < m->times && !m->lost; time++) {
        struct ra_stopwatch watch;
        most(m, 0);
        m->meter->start(&watch);
        m->meter->copy(m->to, m->from, m->longest);
        m->meter->stop(&watch);
        least = fmin(least, most(m, m->meter->seconds(&watch)));
    }
    *bandwidth = 2 * (double)m->longest / fmax(least, 1e-9);
}

/* Finds how many ranks each host has: 0, and all links count as alike, if hosts differ. */
static void find_hosts(struct measurement *m)
{
    int P = m->link->size, own = (int)ra_max(1, ra_min(P, m->link->sharing));
    int most_ranks = (int)most(m, own), fewest = -(int)most(m, -own);
    m->here = most_ranks == fewest && own > 1 && P % own == 0 ? own : P;
}

/* Messages inside a host, or from host to host. */
static enum ra_status measure_messages(struct measurement *m, bool between, double *bandwidth,
                                       double *latency, char *error)
{
    if (m->config->device)
        return measure_passing(m, between, bandwidth, latency, error);
    measure_line(m, between, bandwidth, latency);
    return RA_OK;
}

static enum ra_status measure(struct measurement *m, struct ra_scale_machine *machine, char *error)
{
    enum ra_status status = measure_rates(m, machine, error);
    if (status != RA_OK)
        return status;
    find_hosts(m);
    measure_memory(m, &machine->memory_bandwidth);
    if (m->link->size > 1 && !m->lost)
        status = measure_messages(m, false, &machine->bandwidth, &machine->latency, error);
    if (m->here < m->link->size && status == RA_OK && !m->lost) {
        machine->ranks_per_host = m->here;
        status = measure_messages(m, true, &machine->host_bandwidth, &machine->host_latency, error);
    }
    if (!m->lost)
        return status;
    snprintf(error, RA_ERROR_SIZE, "%s", ra_message_error(m->link));
    return RA_LOST;
}

/* Bytes of the longest message on the host: as long as what a ring sends at a hop. */
static int64_t longest_of(const struct measurement *m)
{
    const struct ra_config *c = m->config;
    double most_keys = (double)(c->keys + m->link->size - 1) / m->link->size;
    double keys = (double)c->batch * most_keys * (double)c->key_heads *
                  (double)(c->dim + c->dim_value) * (double)ra_type_bytes(c->type);
    double least = (double)m->meter->least, longest = (double)m->meter->most;
    return (int64_t)fmax(least, fmin(keys, longest)) / 64 * 64;
}

enum ra_status ra_scale_measure(struct ra_scale_machine *machine, const struct ra_config *config,
                                const struct ra_link *link, int64_t rows, int times, char *error)
{
    const struct ra_meter *meter = config->device ? config->device->meter : &ra_host_meter;
    struct measurement m = {.config = config,
                            .link = link,
                            .meter = meter,
                            .rows = rows > 0 ? rows : meter->rows,
                            .times = times};
    m.longest = config->device ? meter->most : longest_of(&m);
    m.all = malloc((size_t)link->size * sizeof *m.all);
    m.from = meter->take(NULL, m.longest);
    m.to = meter->take(NULL, m.longest);
    enum ra_status status = RA_OK;
    if (!m.all || !m.from || !m.to) {
        ra_error_set(error, "no memory for messages of %lld bytes", (long long)m.longest);
        status = RA_OUT_OF_MEMORY;
    }
    status = ra_agree(link, status, error);
    if (status == RA_OK)
        status = measure(&m, machine, error);

    /* After a failure the link may still write there. */
    if (status != RA_LOST) {
        free(m.all);
        meter->give_back(m.from);
        meter->give_back(m.to);
    }
    return status;
}

void ra_scale_line(const double bytes[2], const double seconds[2], double shortest,
                   double *bandwidth, double *latency)
{
    /* On a link so quick that times scatter more, the latency is that of a short message. */
    bool apart = seconds[1] > seconds[0];
    *bandwidth = apart ? (bytes[1] - bytes[0]) / (seconds[1] - seconds[0]) : bytes[1] / seconds[1];
    *latency = fmax(seconds[0] - bytes[0] / *bandwidth, shortest);
}
