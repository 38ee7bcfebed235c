/* ra_arrays: the arrays of a call, checked before anything is computed. See ring_attention.h.
 *
 * Chapter 08. New here: one table of all arrays; and a rank that refuses tells the others.
 */
#include "ra_arrays.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "ra_checksum.h"
#include "ra_error.h"
#include "ra_struct.h"

/* What an array must be like, and who uses it. Forms: WIDE has D numbers to a head, or D_v if it is
 * of values; KEYS, too, and travels; HEADS has one number to a head, whatever the rows. One that is
 * optional may be empty. */
static const struct wanted {
    const char *name;
    size_t offset;
    enum ra_side side;
    enum { WIDE, LSE, MASK, KEYS, HEADS } form;
    bool is_value, optional, in_forward, out_of_forward, out_of_backward;
} table[] = {
#define AT(name) #name, offsetof(struct ra_arrays, name)
    {AT(q), RA_QUERY_SIDE, WIDE, false, false, true, false, false},
    {AT(k), RA_KEY_SIDE, KEYS, false, false, true, false, false},
    {AT(v), RA_KEY_SIDE, KEYS, true, false, true, false, false},
    {AT(mask), RA_KEY_SIDE, MASK, false, false, true, false, false},
    {AT(o), RA_QUERY_SIDE, WIDE, true, false, true, true, false},
    {AT(lse), RA_QUERY_SIDE, LSE, false, false, true, true, false},
    {AT(d_out), RA_QUERY_SIDE, WIDE, true, false, false, false, false},
    {AT(dq), RA_QUERY_SIDE, WIDE, false, false, false, false, true},
    {AT(dk), RA_KEY_SIDE, WIDE, false, false, false, false, true},
    {AT(dv), RA_KEY_SIDE, WIDE, true, false, false, false, true},
    {AT(d_lse), RA_QUERY_SIDE, LSE, false, true, false, false, false},
    {AT(sink), RA_QUERY_SIDE, HEADS, false, true, true, false, false},
    {AT(d_sink), RA_QUERY_SIDE, HEADS, false, true, false, false, true},
    {AT(slopes), RA_QUERY_SIDE, HEADS, false, true, true, false, false},
    {AT(largest), RA_QUERY_SIDE, HEADS, false, true, true, true, false},
#undef AT
};

enum { ARRAYS = sizeof table / sizeof *table };

static const char *const type_names[] = {"RA_FLOAT32", "RA_FLOAT16", "RA_BFLOAT16", "RA_BOOL"};

/* A type's name; of what is no type, the number, written into `room`. */
static const char *type_name(enum ra_type type, char room[16])
{
    snprintf(room, 16, "%d", (int)type);
    return ra_type_bytes(type) > 0 ? type_names[type] : room;
}

static const struct ra_tensor *tensor_of(const struct ra_arrays *arrays, const struct wanted *want)
{
    return (const struct ra_tensor *)(const void *)((const char *)arrays + want->offset);
}

/* Tries to tell whether two numbers of an array share a place. Every call asks that, of its
 * outputs, and has milliseconds for it, not hours. */
enum { MOST_TRIES = 100000 };

static int64_t absolute(int64_t stride)
{
    return stride < 0 ? -stride : stride;
}

/* An axis of an array: up to `steps` steps of `stride` numbers lead from one number to others. */
struct axis {
    int64_t stride, steps;
};

/* How far numbers on these axes can be from each other. */
static int64_t reach_of(const struct axis *axis, int axes, int64_t width)
{
    int64_t reach = width - 1;
    for (int i = 0; i < axes; i++)
        reach += axis[i].stride * axis[i].steps;
    return reach;
}

/* Do some steps along these axes, forward or back, lead from `at` >= 0 to less than width from 0?
 * When no tries are left, the answer is yes. */
static bool leads_back(const struct axis *axis, int axes, int64_t at, int64_t width, int *tries)
{
    if (axes == 0 || --*tries < 0)
        return *tries < 0 || at < width;

    /* Only a few steps of the largest stride lead to where the smaller ones can reach 0 from: the
     * first is the quotient, rounded up. */
    const struct axis *largest = &axis[axes - 1];
    int64_t reach = reach_of(axis, axes - 1, width), way = at - reach;
    int64_t steps = way / largest->stride + (way % largest->stride > 0);
    if (steps < -largest->steps)
        steps = -largest->steps;
    for (; steps <= largest->steps && at - steps * largest->stride >= -reach; steps++)
        if (leads_back(axis, axes - 1, absolute(at - steps * largest->stride), width, tries))
            return true;
    return false;
}

/* Do two numbers of an output share a place? Then there are steps along the axes, not all 0, that
 * add up to less than width. Let i be the axis of the largest stride among them: the smaller
 * strides lead back what it steps. If every stride steps over all that smaller ones reach, none of
 * its steps need be tried. Otherwise they are, and when no tries are left, the answer is yes. */
static bool collides(const struct ra_tensor *t, const int64_t counts[3], int64_t width, int *tries)
{
    const int64_t strides[3] = {absolute(t->batch), absolute(t->row), absolute(t->head)};
    struct axis axis[3]; /* of more than one number, by stride */
    int axes = 0;
    for (int i = 0; i < 3; i++) {
        int at = axes;
        if (counts[i] < 2)
            continue;
        for (; at > 0 && axis[at - 1].stride > strides[i]; at--)
            axis[at] = axis[at - 1];
        axis[at] = (struct axis){strides[i], counts[i] - 1};
        axes++;
    }
    for (int i = 0; i < axes; i++) {
        int64_t reach = reach_of(axis, i, width), steps = 1;
        for (; steps <= axis[i].steps && steps * axis[i].stride <= reach; steps++)
            if (leads_back(axis, i, steps * axis[i].stride, width, tries))
                return true;
    }
    return false;
}

/* The shape of an array: batches, rows, heads and, in each head, `width` numbers. */
struct shape {
    int64_t counts[3], width;
};

static struct shape shape_of(const struct ra_plan *plan, const struct wanted *want)
{
    const struct ra_config *c = &plan->config;
    bool is_wide = want->form == WIDE || want->form == KEYS;
    int64_t heads = want->side == RA_QUERY_SIDE ? c->heads : c->key_heads;
    struct shape shape = {{c->batch, plan->rows[want->side], want->form == MASK ? 1 : heads}, 1};
    if (want->form == HEADS)
        shape.counts[0] = shape.counts[1] = 1;
    if (is_wide)
        shape.width = want->is_value ? c->dim_value : c->dim;
    return shape;
}

/* Says which array is missing, and of which shape to give one. */
static enum ra_status refuse_missing(const struct wanted *want, const struct shape *shape,
                                     char *error)
{
    char text[100];
    bool is_wide = want->form == WIDE || want->form == KEYS;
    int dims = want->form == MASK ? 0 : is_wide ? 2 : 1; /* behind batches and rows */
    snprintf(text, sizeof text, "(%" PRId64 ", %" PRId64, shape->counts[0], shape->counts[1]);
    for (int i = 0; i < dims; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), ", %" PRId64,
                 i == 0 ? shape->counts[2] : shape->width);
    return ra_error_set(error, "arrays.%s.data is NULL%s: give an array of %s)", want->name,
                        want->form == MASK ? ", and config.has_mask is true" : "", text);
}

/* Checks that the backend can take an array with this address. */
static enum ra_status check_address(const struct ra_plan *plan, const struct wanted *want,
                                    const struct ra_tensor *t, char *error)
{
    const struct ra_backend *backend = plan->backend;
    if (want->optional && !backend->takes_optional)
        return ra_error_set(error,
                            "arrays.%s is given: a plan on %s cannot take it: leave it empty",
                            want->name, backend->place);
    char name[32];
    snprintf(name, sizeof name, "arrays.%s.data", want->name);
    if (backend->check_address && backend->check_address(plan, name, t->data, error) != RA_OK)
        return RA_INVALID;
    const char *first = t->data, *workspace = plan->workspace;
    if (workspace && first >= workspace && first < workspace + plan->workspace_bytes)
        return ra_error_set(error, "%s is in the workspace of the plan: give it memory of its own",
                            name);
    return RA_OK;
}

/* Checks the type, which is the one that was planned for; float32 is always at hand, but not what
 * travels, and on a device not what is multiplied, either. And the address, by that type. */
static enum ra_status check_type(const struct ra_plan *plan, const struct wanted *want,
                                 const struct ra_tensor *t, bool is_output, char *error)
{
    const struct ra_config *c = &plan->config;
    bool is_wide = want->form == WIDE || want->form == KEYS;
    enum ra_type type = want->form == MASK ? RA_BOOL : is_wide ? c->type : RA_FLOAT32;
    char room[16], other[16];
    bool is_result = is_output || want->out_of_forward;
    bool stays = !want->out_of_forward || !plan->inner || c->method == RA_GATHERED_KEYS;
    bool may_be_wider =
        want->form == WIDE && (plan->backend->converts_inputs || (is_result && stays));
    if (t->type != type && !(may_be_wider && t->type == RA_FLOAT32))
        return ra_error_set(error, "arrays.%s.type = %s: give %s%s", want->name,
                            type_name(t->type, room), type_name(type, other),
                            may_be_wider && type != RA_FLOAT32 ? " or RA_FLOAT32" : "");
    if ((uintptr_t)t->data % (uintptr_t)ra_type_bytes(t->type) != 0)
        return ra_error_set(error,
                            "arrays.%s.data = %p: give an address that %" PRId64
                            " divides, as its type is %s",
                            want->name, t->data, ra_type_bytes(t->type), type_name(t->type, room));
    return RA_OK;
}

/* Checks that every number is within reach, and every number of an output in its own place. */
static enum ra_status check_strides(const struct ra_plan *plan, const struct wanted *want,
                                    const struct ra_tensor *t, const struct shape *shape,
                                    bool is_output, char *error)
{
    double reach = 0, strides[3] = {(double)t->batch, (double)t->row, (double)t->head};
    for (int i = 0; i < 3; i++)
        reach += (double)shape->counts[i] * (strides[i] < 0 ? -strides[i] : strides[i]);
    if (reach > 0x1p56)
        return ra_error_set(error,
                            "arrays.%s: strides batch %" PRId64 ", row %" PRId64 ", head %" PRId64
                            " reach over more than 2^56 numbers; strides are in numbers, not bytes",
                            want->name, t->batch, t->row, t->head);
    if (!plan->backend->negative_strides && (t->batch < 0 || t->row < 0 || t->head < 0))
        return ra_error_set(error,
                            "arrays.%s: strides batch %" PRId64 ", row %" PRId64 ", head %" PRId64
                            ": give none below 0 to a plan on %s",
                            want->name, t->batch, t->row, t->head, plan->backend->place);
    int tries = MOST_TRIES;
    if (is_output && collides(t, shape->counts, shape->width, &tries))
        return ra_error_set(
            error,
            "arrays.%s: strides batch %" PRId64 ", row %" PRId64 ", head %" PRId64
            ": %s; give ones that each step over all that smaller ones reach; it is "
            "(batch %" PRId64 ", rows %" PRId64 ", heads %" PRId64 ", dim %" PRId64 ")",
            want->name, t->batch, t->row, t->head,
            tries < 0 ? "too entangled to tell if numbers share a place"
                      : "two of its numbers share a place",
            shape->counts[0], shape->counts[1], shape->counts[2], shape->width);
    return RA_OK;
}

/* Checks one array, in one of the two directions. */
static enum ra_status check(const struct ra_plan *plan, const struct ra_arrays *arrays,
                            const struct wanted *want, bool is_output, char *error)
{
    const struct ra_tensor *t = tensor_of(arrays, want);
    struct shape shape = shape_of(plan, want);
    if (!t->data)
        return refuse_missing(want, &shape, error);
    if (check_address(plan, want, t, error) != RA_OK ||
        check_type(plan, want, t, is_output, error) != RA_OK ||
        check_strides(plan, want, t, &shape, is_output, error) != RA_OK)
        return RA_INVALID;
    return RA_OK;
}

/* Is this array an output that begins where another one does? Numbers of both would be mixed. */
static enum ra_status check_overlap(const struct ra_arrays *arrays, const bool used[ARRAYS],
                                    const bool is_output[ARRAYS], char *error)
{
    for (int i = 0; i < ARRAYS; i++)
        for (int j = 0; j < ARRAYS; j++) {
            if (i != j && used[j] && is_output[i] &&
                tensor_of(arrays, &table[i])->data == tensor_of(arrays, &table[j])->data)
                return ra_error_set(error,
                                    "arrays.%s and arrays.%s are one array: outputs need their own",
                                    table[i].name, table[j].name);
        }
    return RA_OK;
}

RA_STRUCT_ENDS(struct ra_arrays, largest);

/* Copies the arrays whatever size the caller's struct has. No header's ends inside a tensor. */
static enum ra_status copy(struct ra_arrays *arrays, const struct ra_arrays *given, char *error)
{
    size_t least = offsetof(struct ra_arrays, d_out), size = given ? given->size : 0;
    if (size > least && (size - least) % sizeof arrays->q != 0)
        least = sizeof *arrays;
    *arrays = (struct ra_arrays)RA_ARRAYS_INIT;
    return ra_struct_take("arrays", "RA_ARRAYS_INIT", arrays, sizeof *arrays, least, given, error);
}

enum ra_status ra_arrays_read(struct ra_plan *plan, struct ra_arrays *arrays,
                              const struct ra_arrays *given, bool backward)
{
    char text[RA_ERROR_SIZE];
    if (!plan)
        return RA_INVALID;
    if (ra_plan_state(plan) != RA_OK)
        return plan->status;
    if (plan->dry_run)
        return ra_error_set(
            plan->error,
            "this plan is one to look at, of %d ranks: it cannot compute; for one that "
            "can leave ring_size at 0, or give ra_plan_create a link",
            plan->link.size);
    enum ra_status status = copy(arrays, given, text);
    if (status == RA_OK && plan->config.caller_workspace && !plan->workspace)
        status = ra_error_set(text,
                              "the plan has no workspace: config.caller_workspace is true, so give "
                              "ra_plan_set_workspace %" PRId64 " bytes",
                              ra_plan_workspace_bytes(plan));
    if (status == RA_OK && backward && plan->config.forward_only)
        status = ra_error_set(
            text, "ra_backward: the plan has config.forward_only = true: plan with false");

    bool used[ARRAYS], is_output[ARRAYS];
    for (int i = 0; i < ARRAYS && status == RA_OK; i++) {
        /* An array without numbers may be anything: NULL, or the same as another. */
        bool has_numbers =
            table[i].form == HEADS || (plan->config.batch > 0 && plan->rows[table[i].side] > 0);
        used[i] = (backward || table[i].in_forward) && has_numbers &&
                  (table[i].form != MASK || plan->config.has_mask) &&
                  (!table[i].optional || tensor_of(arrays, &table[i])->data);
        is_output[i] = used[i] && (backward ? table[i].out_of_backward : table[i].out_of_forward);
        if (used[i])
            status = check(plan, arrays, &table[i], is_output[i], text);
    }
    if (status == RA_OK && arrays->mask.data && !plan->config.has_mask)
        status =
            ra_error_set(text, "arrays.mask is given, but the plan has config.has_mask = false: "
                               "plan with true, or leave the mask empty");
    if (status == RA_OK && backward && arrays->d_sink.data && !arrays->sink.data)
        status = ra_error_set(text, "arrays.d_sink is given without arrays.sink: give the sink of "
                                    "the forward, or leave both empty");

    /* So its strides, too, which have not been checked and lead anywhere. */
    static const struct ra_tensor none = RA_NO_TENSOR;
    for (int i = 0; i < ARRAYS && status == RA_OK; i++)
        if (!used[i])
            *(struct ra_tensor *)(void *)((char *)arrays + table[i].offset) = none;
    if (status == RA_OK)
        status = check_overlap(arrays, used, is_output, text);
    if (status == RA_OK)
        return RA_OK;

    return ra_plan_abort(plan, status, text);
}

int64_t ra_arrays_of_heads(const struct ra_plan *plan, const struct ra_arrays *arrays)
{
    const struct ra_tensor *given[] = {&arrays->sink, &arrays->slopes};
    uint64_t sum = 0;
    for (int i = 0; i < 2; i++)
        for (int64_t h = 0; h < plan->config.heads && given[i]->data; h++) {
            /* Zeros must count, too, and as what they are. */
            const struct {
                int64_t number;
                float value, unused;
            } word = {2 * h + i + 1, ((const float *)given[i]->data)[h * given[i]->head], 0};
            sum = ra_checksum(sum, &word, sizeof word);
        }
    return (int64_t)sum;
}

void ra_arrays_begin_heads(const struct ra_plan *plan, bool backward, double *of_heads)
{
    for (int64_t i = 0; i < plan->config.batch * plan->config.heads; i++)
        of_heads[i] = backward ? 0 : -(double)INFINITY;
}

void ra_arrays_end_heads(const struct ra_plan *plan, bool backward, const double *of_heads,
                         const struct ra_arrays *arrays)
{
    const struct ra_config *c = &plan->config;
    struct ra_tensor to = backward ? arrays->d_sink : arrays->largest;
    for (int64_t h = 0; h < c->heads && to.data; h++) {
        double all = backward ? 0 : -(double)INFINITY;
        for (int64_t b = 0; b < c->batch; b++) {
            double here = of_heads[b * c->heads + h];
            if (backward)
                all += here;
            else if (isnan(here) || here > all)
                all = here;
        }
        ((float *)to.data)[h * to.head] = (float)all;
    }
}
