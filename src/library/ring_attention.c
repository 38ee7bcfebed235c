/* ring_attention: forward and backward of a plan. See ring_attention.h.
 *
 * Chapter 08. New here: the ring of 07-gqa on the caller's own arrays, of any type and order, over
 * any link; and errors that are returned.
 */
#include "ring_attention.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "ra_number.h"
#include "ra_plan.h"

const char *ra_version(void)
{
    return RA_VERSION;
}

const char *ra_status_text(enum ra_status status)
{
    switch (status) {
    case RA_OK:
        return "well";
    case RA_INVALID:
        return "an argument is wrong";
    case RA_OUT_OF_MEMORY:
        return "out of memory";
    case RA_DISAGREEMENT:
        return "the ranks disagree";
    case RA_LOST:
        return "a rank or a message is lost";
    case RA_DEVICE:
        return "the device has failed";
    }
    return "no status of this library";
}

int64_t ra_type_bytes(enum ra_type type)
{
    switch (type) {
    case RA_FLOAT32:
        return 4;
    case RA_FLOAT16:
    case RA_BFLOAT16:
        return 2;
    case RA_BOOL:
        return 1;
    }
    return 0;
}

struct ra_tensor ra_tensor_bnhd(void *data, enum ra_type type, int64_t rows, int64_t heads,
                                int64_t dim)
{
    return (struct ra_tensor){data, type, rows * heads * dim, heads * dim, dim};
}

struct ra_tensor ra_tensor_bhnd(void *data, enum ra_type type, int64_t rows, int64_t heads,
                                int64_t dim)
{
    return (struct ra_tensor){data, type, heads * rows * dim, dim, rows * dim};
}

struct ra_tensor ra_tensor_bhn(void *data, int64_t rows, int64_t heads)
{
    return (struct ra_tensor){data, RA_FLOAT32, heads * rows, 1, rows};
}

struct ra_tensor ra_tensor_bn(void *data, int64_t rows)
{
    return (struct ra_tensor){data, RA_BOOL, rows, 1, 0};
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Tells the caller's observer what happened at this step. */
static void observe(const struct ra_plan *plan, enum ra_event_kind kind, bool backward, int hop,
                    double start, double end)
{
    if (plan->config.observe)
        plan->config.observe(plan->config.observer,
                             &(struct ra_event){kind, backward, hop, start, end});
}

/* The rows of batch b and head h, as float32. */
static float *rows_of(struct ra_tensor tensor, int64_t b, int64_t h)
{
    float *data = tensor.data;
    return data ? data + b * tensor.batch + h * tensor.head : NULL;
}

/* Copies numbers between an array of the caller's and one of float32 without gaps, (B, rows, heads,
 * width): in, or out. */
static void convert(bool in, struct ra_tensor theirs, int64_t B, int64_t rows, int64_t heads,
                    int64_t width, float *ours)
{
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < rows; a++)
            for (int64_t h = 0; h < heads; h++, ours += width) {
                int64_t element = b * theirs.batch + a * theirs.row + h * theirs.head;
                char *at = (char *)theirs.data + element * ra_type_bytes(theirs.type);
                if (in)
                    ra_number_load(theirs.type, width, at, ours);
                else
                    ra_number_store(theirs.type, width, ours, at);
            }
}

/* The queries' arrays of a call, as float32: the caller's own, or copies. */
struct views {
    struct ra_tensor q, o, d_out, dq;
};

/* An array of queries that can be computed with: the caller's own if it is float32, else the copy,
 * which is filled with it if it is an input. */
static struct ra_tensor view(const struct ra_plan *plan, struct ra_tensor theirs, float *copy,
                             bool input)
{
    const struct ra_config *c = &plan->config;
    int64_t n = plan->rows[RA_QUERY_SIDE];
    if (theirs.type == RA_FLOAT32)
        return theirs;
    if (input)
        convert(true, theirs, c->batch, n, c->heads, c->dim, copy);
    return ra_tensor_bnhd(copy, RA_FLOAT32, n, c->heads, c->dim);
}

/* Where an output was computed in a copy, writes it to the caller's array. */
static void write_back(const struct ra_plan *plan, struct ra_tensor theirs, struct ra_tensor ours)
{
    const struct ra_config *c = &plan->config;
    if (theirs.data != ours.data)
        convert(false, theirs, c->batch, plan->rows[RA_QUERY_SIDE], c->heads, c->dim, ours.data);
}

/* The queries of one batch and head. */
static struct ra_queries queries_of(const struct ra_plan *plan, const struct views *x, int64_t b,
                                    int64_t h)
{
    int64_t n = plan->rows[RA_QUERY_SIDE], row = (b * plan->config.heads + h) * n;
    return (struct ra_queries){.rows = n,
                               .stride = {x->q.row, x->o.row, x->d_out.row, x->dq.row},
                               .q = rows_of(x->q, b, h),
                               .o = rows_of(x->o, b, h),
                               .d_out = rows_of(x->d_out, b, h),
                               .dq = rows_of(x->dq, b, h),
                               .max = plan->max + row,
                               .sum = plan->sum + row,
                               .lse = plan->lse + row,
                               .delta = plan->delta ? plan->delta + row : NULL};
}

/* Calls a function of ra_tile for the queries of every batch and head. */
static void each_head(const struct ra_plan *plan, const struct views *x,
                      void (*function)(int64_t D, const struct ra_queries *queries))
{
    for (int64_t b = 0; b < plan->config.batch; b++)
        for (int64_t h = 0; h < plan->config.heads; h++) {
            struct ra_queries queries = queries_of(plan, x, b, h);
            function(plan->config.dim, &queries);
        }
}

/* Which buffer the keys of this step are in, and their gradients. */
static int slot(int step)
{
    return step == 0 ? 0 : 2 - step % 2;
}

/* Copies the mask of the own keys, in which whatever is not 0 counts as true, and puts keys and mask
 * into the message that will carry them, if they travel. */
static void pack_keys(struct ra_plan *plan, const struct ra_arrays *arrays)
{
    const struct ra_config *c = &plan->config;
    int64_t m = plan->rows[RA_KEY_SIDE], size = ra_type_bytes(c->type);
    const struct ra_tensor *mask = &arrays->mask, *both[] = {&arrays->k, &arrays->v};
    for (int64_t b = 0; b < c->batch && c->has_mask; b++)
        for (int64_t a = 0; a < m; a++)
            plan->mask[b * m + a] =
                ((const unsigned char *)mask->data)[b * mask->batch + a * mask->row] != 0;
    if (!ra_plan_travel_on(plan, plan->link.rank, 0))
        return;

    /* Rows as they are: what travels has the caller's type. */
    char *to = plan->keys[0];
    for (int i = 0; i < 2; i++)
        for (int64_t b = 0; b < c->batch; b++)
            for (int64_t a = 0; a < m; a++)
                for (int64_t g = 0; g < c->key_heads; g++, to += c->dim * size) {
                    int64_t element = b * both[i]->batch + a * both[i]->row + g * both[i]->head;
                    memcpy(to, (const char *)both[i]->data + element * size,
                           (size_t)(c->dim * size));
                }
    if (c->has_mask)
        memcpy(to, plan->mask, (size_t)(c->batch * m));
}

/* Makes the keys of this step ready to compute with: float32 ones where they are, others as a
 * copy. */
static void open_keys(struct ra_plan *plan, const struct ra_arrays *arrays, int step)
{
    const struct ra_config *c = &plan->config;
    int64_t rows = ra_plan_visitors(plan, plan->link.rank, step), G = c->key_heads, D = c->dim;
    plan->visiting = rows;
    int64_t numbers = c->batch * rows * G * D;
    plan->k = arrays->k;
    plan->v = arrays->v;
    if (step > 0) {
        char *message = plan->keys[slot(step)];
        plan->k = ra_tensor_bnhd(message, c->type, rows, G, D);
        plan->v = ra_tensor_bnhd(message + numbers * ra_type_bytes(c->type), c->type, rows, G, D);
    }
    if (c->type == RA_FLOAT32)
        return;
    convert(true, plan->k, c->batch, rows, G, D, plan->visitors);
    convert(true, plan->v, c->batch, rows, G, D, plan->visitors + numbers);
    plan->k = ra_tensor_bnhd(plan->visitors, RA_FLOAT32, rows, G, D);
    plan->v = ra_tensor_bnhd(plan->visitors + numbers, RA_FLOAT32, rows, G, D);
}

/* Of these keys, batch b and head g. */
static struct ra_keys keys_of(const struct ra_plan *plan, int step, bool backward, int64_t b,
                              int64_t g)
{
    const struct ra_config *c = &plan->config;
    int64_t rows = plan->visiting, stride = c->key_heads * c->dim;
    int64_t numbers = c->batch * rows * stride;
    struct ra_keys keys = {.rows = rows,
                           .stride = {plan->k.row, plan->v.row, stride, stride},
                           .k = rows_of(plan->k, b, g),
                           .v = rows_of(plan->v, b, g)};

    /* The mask lies behind the numbers of a message. */
    if (c->has_mask && step == 0)
        keys.mask = plan->mask + b * rows;
    else if (c->has_mask)
        keys.mask =
            (const bool *)plan->keys[slot(step)] + 2 * numbers * ra_type_bytes(c->type) + b * rows;
    if (backward) {
        keys.dk = plan->gradients[slot(step)] + b * rows * stride + g * c->dim;
        keys.dv = keys.dk + numbers;
    }
    return keys;
}

/* Lets messages make progress between two tiles. */
static void poll_link(void *plan)
{
    const struct ra_link *link = &((struct ra_plan *)plan)->link;
    if (link->poll)
        link->poll(link->self);
}

/* Folds the keys of this step into the carries of all queries; backward, adds to dq and to the
 * gradients of these keys. */
static void fold_hop(struct ra_plan *plan, const struct ra_arrays *arrays, const struct views *x,
                     int step, bool backward)
{
    const struct ra_config *c = &plan->config;
    int rank = plan->link.rank, origin = ra_plan_origin(plan, rank, step);
    struct ra_fold fold = ra_plan_fold(plan, backward);
    fold.between = poll_link;
    fold.context = plan;
    double start = seconds();
    open_keys(plan, arrays, step);
    for (int64_t b = 0; b < c->batch && plan->visiting > 0; b++)
        for (int64_t h = 0; h < c->heads; h++) {
            struct ra_queries queries = queries_of(plan, x, b, h);
            int64_t g = ra_heads_key(c->head_map, c->heads, c->key_heads, h);
            struct ra_keys keys = keys_of(plan, step, backward, b, g);
            ra_layout_fold(&fold, plan->layouts[RA_QUERY_SIDE], rank, plan->layouts[RA_KEY_SIDE],
                           origin, c->causal, c->lookback, &queries, &keys);
        }
    observe(plan, RA_EVENT_WORK, backward, plan->schedule.hop[step], start, seconds());
}

static int64_t gradient_bytes(const struct ra_plan *plan, int64_t rows)
{
    return ra_message_gradient_bytes(plan->config.batch, plan->config.key_heads * plan->config.dim,
                                     rows);
}

/* Begins to send the keys of this step to where they are needed next, and to receive the next
 * ones. */
static void pass_keys(struct ra_plan *plan, int step)
{
    const struct ra_link *link = &plan->link;
    if (step + 1 == plan->schedule.count)
        return;
    int rank = link->rank, hop = plan->schedule.hop[step];
    int jump = plan->schedule.hop[step + 1] - hop;
    link->receive(link->self, RA_KEYS, hop, -jump, plan->keys[slot(step + 1)],
                  ra_plan_key_bytes(plan, ra_plan_visitors(plan, rank, step + 1)));
    if (ra_plan_travel_on(plan, rank, step))
        link->send(link->self, RA_KEYS, hop, jump, plan->keys[slot(step)],
                   ra_plan_key_bytes(plan, ra_plan_visitors(plan, rank, step)));
}

/* The same with the gradients of these keys. Where a journey ends they go straight home. */
static void pass_gradients(struct ra_plan *plan, int step)
{
    const struct ra_link *link = &plan->link;
    int rank = link->rank, hop = plan->schedule.hop[step], jump = 0;
    if (step + 1 < plan->schedule.count) {
        jump = plan->schedule.hop[step + 1] - hop;
        link->receive(link->self, RA_GRADIENTS, hop, -jump, plan->gradients[3],
                      gradient_bytes(plan, ra_plan_visitors(plan, rank, step + 1)));
    }
    int64_t bytes = gradient_bytes(plan, ra_plan_visitors(plan, rank, step));
    if (ra_plan_travel_on(plan, rank, step))
        link->send(link->self, RA_GRADIENTS, hop, jump, plan->gradients[slot(step)], bytes);
    else if (hop > 0)
        link->send(link->self, RA_HOME, hop, -hop, plan->gradients[slot(step)], bytes);
}

/* Waits for the messages of a kind. RA_LOST: they will not come, and the plan is at its end. */
static enum ra_status wait_for(struct ra_plan *plan, enum ra_message message, bool backward,
                               int hop)
{
    const struct ra_link *link = &plan->link;
    if (!link->wait)
        return RA_OK;
    double start = seconds(), arrived;
    if (!link->wait(link->self, message)) {
        plan->lost = RA_LOST;
        snprintf(plan->error, sizeof plan->error, "%s", link->error(link->self));
        return RA_LOST;
    }
    observe(plan, RA_EVENT_WAIT, backward, hop, start, seconds());
    if (link->arrival && link->arrival(link->self, message, &hop, &start, &arrived))
        observe(plan, message == RA_KEYS ? RA_EVENT_KEYS : RA_EVENT_GRADIENTS, backward, hop, start,
                arrived);
    return RA_OK;
}

/* Copies lse between the plan, (B, H, n), and the caller's array: out, or in. */
static void copy_lse(const struct ra_plan *plan, struct ra_tensor theirs, bool out)
{
    int64_t n = plan->rows[RA_QUERY_SIDE], H = plan->config.heads;
    for (int64_t b = 0; b < plan->config.batch; b++)
        for (int64_t h = 0; h < H; h++)
            for (int64_t a = 0; a < n; a++) {
                float *ours = &plan->lse[(b * H + h) * n + a];
                float *at = &rows_of(theirs, b, h)[a * theirs.row];
                *(out ? at : ours) = *(out ? ours : at);
            }
}

enum ra_status ra_forward(struct ra_plan *plan, const struct ra_arrays *given)
{
    struct ra_arrays arrays;
    enum ra_status status = ra_arrays_read(plan, &arrays, given, NULL, false);
    if (status != RA_OK)
        return status;
    struct views x = {.q = view(plan, arrays.q, plan->q, true),
                      .o = view(plan, arrays.o, plan->o, false)};
    pack_keys(plan, &arrays);

    /* The ring: folds the keys of one step while those of the next are on their way. */
    each_head(plan, &x, ra_tile_begin);
    for (int step = 0; step < plan->schedule.count; step++) {
        pass_keys(plan, step);
        fold_hop(plan, &arrays, &x, step, false);
        status = wait_for(plan, RA_KEYS, false, plan->schedule.hop[step]);
        if (status != RA_OK)
            return status;
    }
    each_head(plan, &x, ra_tile_finish);

    write_back(plan, arrays.o, x.o);
    copy_lse(plan, arrays.lse, true);
    return RA_OK;
}

/* Sets dq of these rows to 0. */
static void clear_dq(int64_t D, const struct ra_queries *queries)
{
    for (int64_t a = 0; a < queries->rows; a++)
        memset(queries->dq + a * queries->stride.dq, 0, (size_t)D * sizeof(float));
}

/* Writes dk and dv, complete and at home, to the caller's arrays. */
static void write_key_gradients(const struct ra_plan *plan, const struct ra_arrays *arrays)
{
    const struct ra_config *c = &plan->config;
    int64_t m = plan->rows[RA_KEY_SIDE], numbers = c->batch * m * c->key_heads * c->dim;
    convert(false, arrays->dk, c->batch, m, c->key_heads, c->dim, plan->gradients[0]);
    convert(false, arrays->dv, c->batch, m, c->key_heads, c->dim, plan->gradients[0] + numbers);
}

enum ra_status ra_backward(struct ra_plan *plan, const struct ra_arrays *given)
{
    struct ra_arrays arrays;
    enum ra_status status = ra_arrays_read(plan, &arrays, given, NULL, true);
    if (status != RA_OK)
        return status;
    struct views x = {.q = view(plan, arrays.q, plan->q, true),
                      .o = view(plan, arrays.o, plan->o, true),
                      .d_out = view(plan, arrays.d_out, plan->d_out, true)};
    copy_lse(plan, arrays.lse, false);
    pack_keys(plan, &arrays);

    /* o is needed for delta alone; then dq, a sum, may take the place of its copy. */
    each_head(plan, &x, ra_tile_delta);
    x.dq = view(plan, arrays.dq, plan->o, false);
    each_head(plan, &x, clear_dq);

    /* The ring: the keys come by once more, their gradients one step behind them. */
    for (int step = 0; step < plan->schedule.count; step++) {
        int hop = plan->schedule.hop[step];
        pass_keys(plan, step);
        float *share = plan->gradients[slot(step)], *arrived = plan->gradients[3];
        int64_t bytes = gradient_bytes(plan, ra_plan_visitors(plan, plan->link.rank, step));
        memset(share, 0, (size_t)bytes);
        fold_hop(plan, &arrays, &x, step, true);

        /* While this rank computed its share, the sum of the ranks before arrived; step 0 has none
         * before it. The two together go on. */
        status = wait_for(plan, RA_GRADIENTS, true, hop);
        if (status != RA_OK)
            return status;
        for (int64_t e = 0; step > 0 && e < bytes / (int64_t)sizeof(float); e++)
            share[e] += arrived[e];

        /* The own gradients left at step 0 and are waited for from now on, not at the end: who
         * sends them home may not go on before somebody takes them. */
        int last = plan->schedule.last[plan->link.rank];
        if (step == 1 && last > 0)
            plan->link.receive(plan->link.self, RA_HOME, last, last, plan->gradients[0],
                               gradient_bytes(plan, plan->rows[RA_KEY_SIDE]));
        pass_gradients(plan, step);
        status = wait_for(plan, RA_KEYS, true, hop);
        if (status != RA_OK)
            return status;
    }
    int last_hop = plan->schedule.hop[plan->schedule.count - 1];
    status = wait_for(plan, RA_GRADIENTS, true, last_hop);
    if (status == RA_OK)
        status = wait_for(plan, RA_HOME, true, last_hop);
    if (status != RA_OK)
        return status;

    write_back(plan, arrays.dq, x.dq);
    write_key_gradients(plan, &arrays);
    return RA_OK;
}
