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
#include "ra_host.h"
#include "ra_math.h"
#include "ra_message.h"

/* Heads of the plan that is timed, at most; bytes of the longest message, at least and at most. */
enum { HEADS = 4, LEAST = 1 << 16, MOST = 1 << 24 };

/* Seconds after which a rate is known well enough. All ranks know how long it took, and stop
 * alike. */
static const double LONG = 0.2;

struct measurement {
    const struct ra_link *link;
    int64_t rows;    /* of the plan that is timed, at most */
    int times, here; /* ranks of a host */
    double *all;     /* (P): what ranks tell each other */
    char *from, *to; /* (longest) */
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

/* ---- The rate of a rank. */

/* A plan of one rank, with shapes like those of a rank of this config. */
static enum ra_status make_plan(const struct measurement *m, const struct ra_config *config,
                                struct ra_plan **plan, char *error)
{
    const struct ra_link *link = m->link;
    struct ra_config c = *config;
    /* Its poll is the link's: while a rank computes it is not silent. */
    struct ra_link alone = {
        .size = 1, .self = link->self, .poll = link->poll, .sharing = link->sharing};
    c.batch = c.ring_size = 1;
    c.queries = ra_max(1, ra_min(m->rows, (c.queries + link->size - 1) / link->size));
    c.keys = ra_max(1, ra_min(m->rows, (c.keys + link->size - 1) / link->size));
    c.heads = c.key_heads = ra_min(HEADS, c.heads);
    c.causal = c.has_mask = c.caller_workspace = false;
    c.lookback = RA_NO_LOOKBACK;
    c.layout = RA_CONTIGUOUS;
    c.bucket = c.max_slices = c.max_rows = 0;
    c.observe = NULL;
    c.method = RA_RING;
    c.group = c.inner = 0;
    return ra_plan_build(plan, &c, NULL, &alone, &ra_host, false, error);
}

/* The arrays of its calls, in one block of memory. NULL: there is none. */
static void *make_arrays(const struct ra_config *c, struct ra_arrays *x)
{
    struct ra_tensor *all[] = {&x->q, &x->o, &x->d_out, &x->dq, &x->k, &x->v, &x->dk, &x->dv};
    int64_t rows = ra_max(c->queries, c->keys);
    int64_t numbers = rows * c->heads * ra_dims_most(ra_config_dims(c)), count = 0;
    int64_t bytes = ra_type_bytes(c->type) * numbers;
    char *memory = malloc((size_t)(8 * bytes + rows * c->heads * (int64_t)sizeof(float)));
    for (; count < 8 && memory; count++) {
        char *data = memory + count * bytes;
        int64_t width =
            count == 0 || count == 3 || count == 4 || count == 6 ? c->dim : c->dim_value;
        *all[count] =
            ra_tensor_bnhd(data, c->type, count < 4 ? c->queries : c->keys, c->heads, width);

        /* Not all alike; of 16 bits they are small ones of either type. */
        for (int64_t e = 0; e < numbers; e++)
            if (c->type == RA_FLOAT32)
                ((float *)data)[e] = (float)(e * 7919 % 2048) / 2048 - 0.5f;
            else
                ((uint16_t *)data)[e] = (uint16_t)(0x3800 + e * 7919 % 1024);
    }
    if (memory)
        x->lse = ra_tensor_bhn(memory + 8 * bytes, c->queries, c->heads);
    return memory;
}

/* Multiply-adds a second of the slowest rank, each rank with attention of its own and all of them
 * at it together. A mean, as a run that is predicted also meets whatever else the machine does. */
static void measure_rate(struct measurement *m, struct ra_plan *plan, const struct ra_arrays *x,
                         bool backward, double *rate)
{
    const struct ra_config *c = &plan->config;
    double seconds = 0, products = (double)ra_dims_products(ra_config_dims(c), backward);
    int counted = 0;
    for (int time = 0; time <= m->times && !m->lost && seconds < LONG; time++) {
        most(m, 0);
        double began = ra_seconds();
        (void)(backward ? ra_host.backward : ra_host.forward)(plan, x, NULL);
        double took = most(m, ra_seconds() - began);
        if (time > 0 || took >= LONG) { /* the first time memory is touched, too */
            seconds += took;
            counted++;
        }
    }
    products *= (double)(c->heads * c->queries) * (double)c->keys;
    *rate = products * counted / fmax(seconds, 1e-9);
}

static enum ra_status measure_rates(struct measurement *m, const struct ra_config *config,
                                    struct ra_scale_machine *machine, char *error)
{
    struct ra_plan *plan = NULL;
    struct ra_arrays x = RA_ARRAYS_INIT;
    void *memory = NULL;
    enum ra_status status = make_plan(m, config, &plan, error);
    if (status == RA_OK && !(memory = make_arrays(&plan->config, &x))) {
        ra_error_set(error, "no memory to measure this rank");
        status = RA_OUT_OF_MEMORY;
    }
    status = ra_agree(m->link, status, error);
    if (status == RA_OK)
        measure_rate(m, plan, &x, false, &machine->forward_rate);
    if (status == RA_OK && !config->forward_only)
        measure_rate(m, plan, &x, true, &machine->backward_rate);
    free(memory);
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

/* Bytes read and written a second, while all ranks copy. */
static void measure_memory(struct measurement *m, double *bandwidth)
{
    double least = INFINITY;
    for (int time = 0; time < m->times && !m->lost; time++) {
        most(m, 0);
        double began = ra_seconds();
        memcpy(m->to, m->from, (size_t)m->longest);
        least = fmin(least, most(m, ra_seconds() - began));
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

static enum ra_status measure(struct measurement *m, const struct ra_config *config,
                              struct ra_scale_machine *machine, char *error)
{
    enum ra_status status = measure_rates(m, config, machine, error);
    if (status != RA_OK)
        return status;
    find_hosts(m);
    measure_memory(m, &machine->memory_bandwidth);
    if (m->link->size > 1)
        measure_line(m, false, &machine->bandwidth, &machine->latency);
    if (m->here < m->link->size) {
        machine->ranks_per_host = m->here;
        measure_line(m, true, &machine->host_bandwidth, &machine->host_latency);
    }
    if (!m->lost)
        return RA_OK;
    snprintf(error, RA_ERROR_SIZE, "%s", ra_message_error(m->link));
    return RA_LOST;
}

enum ra_status ra_scale_measure(struct ra_scale_machine *machine, const struct ra_config *config,
                                const struct ra_link *link, int64_t rows, int times, char *error)
{
    /* As long as what a ring sends at a hop. */
    double most_keys = (double)(config->keys + link->size - 1) / link->size;
    double keys = (double)config->batch * most_keys * (double)config->key_heads *
                  (double)(config->dim + config->dim_value) * (double)ra_type_bytes(config->type);
    struct measurement m = {.link = link, .rows = rows, .times = times, .longest = LEAST};
    m.longest = (int64_t)fmax(LEAST, fmin(keys, MOST)) / 64 * 64;
    m.all = malloc((size_t)link->size * sizeof *m.all);
    m.from = malloc(2 * (size_t)m.longest);
    m.to = m.from + m.longest;
    enum ra_status status = RA_OK;
    if (!m.all || !m.from) {
        ra_error_set(error, "no memory for messages of %lld bytes", (long long)m.longest);
        status = RA_OUT_OF_MEMORY;
    } else {
        memset(m.from, 1, 2 * (size_t)m.longest);
    }
    status = ra_agree(link, status, error);
    if (status == RA_OK)
        status = measure(&m, config, machine, error);

    /* After a failure the link may still write there. */
    if (status != RA_LOST) {
        free(m.all);
        free(m.from);
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
