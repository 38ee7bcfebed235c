/* ra_plan: layout, schedule and memory of a plan, and the questions that it answers. See
 * ring_attention.h and ra_plan.h.
 *
 * Chapter 08. New here: all memory is taken at once, when the plan is made, and its size is known
 * before.
 */
#include "ra_plan.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_config_check.h"
#include "ra_error.h"
#include "ra_math.h"
#include "ra_message.h"
#include "ra_vector.h"

/* The plan begins at a cache line. */
enum { LINE = 64 };

struct ra_fold ra_plan_fold(const struct ra_plan *plan, const struct ra_vector *vector,
                            bool backward)
{
    struct ra_fold fold = {.dims = ra_config_dims(&plan->config),
                           .score = plan->score,
                           .tile = backward ? ra_tile_backward : ra_tile_forward,
                           .tile_queries = plan->config.tile_queries,
                           .tile_keys = plan->config.tile_keys};
    if (vector)
        fold.tile = backward ? vector->backward : vector->forward;
    return fold;
}

bool ra_plan_adds_in_place(const struct ra_plan *plan)
{
    return plan->backend->adds_in_place && plan->ring.schedule.count == 1 &&
           plan->config.type == RA_FLOAT32;
}

int64_t ra_plan_most_bound(const struct ra_plan *plan, enum ra_side side)
{
    const struct ra_config *c = &plan->config;
    struct ra_layout layout = plan->planned[side];
    int64_t most = ra_layout_most_rows(layout);
    return c->max_slices > 0 ? ra_max(most, ra_min(c->max_rows, layout.length)) : most;
}

int64_t ra_plan_bound(const struct ra_plan *plan, enum ra_side side, int rank)
{
    return plan->config.max_slices > 0 ? ra_plan_most_bound(plan, side)
                                       : ra_layout_rows(plan->layouts[side], rank);
}

bool ra_plan_may_travel(const struct ra_plan *plan)
{
    bool varies = plan->config.max_slices > 0 && !plan->config.local_keys;
    return varies ? plan->link.size > 1 : plan->ring.schedule.count > 1;
}

void ra_plan_place_messages(const struct ra_plan *plan, int rank, struct ra_arena *arena,
                            void *keys[3], float *gradients[4])
{
    const struct ra_ring *ring = &plan->ring;
    bool varies = plan->config.max_slices > 0 && ra_plan_may_travel(plan);
    int steps = varies ? plan->link.size : ring->schedule.count;
    int64_t most = ra_plan_most_bound(plan, RA_KEY_SIDE);
    int64_t own = ra_plan_bound(plan, RA_KEY_SIDE, rank);
    for (int i = 0; i < 3; i++) {
        int64_t rows = i == 0 ? own : most;
        bool needed = i == 0 ? varies || ring->schedule.last[rank] > 0 : i < steps;
        keys[i] = ra_arena_take(arena, needed ? rows * ring->key_bytes : 0);
    }
    for (int i = 0; i < 4; i++) {
        int64_t rows = i == 0 ? own : most;
        bool needed = !plan->config.forward_only && (i < 3 ? i < steps : steps > 1) &&
                      (varies || !ra_plan_adds_in_place(plan));
        gradients[i] = ra_arena_take(arena, needed ? rows * ring->gradient_bytes : 0);
    }
}

/* Takes these layouts and this schedule. */
static void use(struct ra_plan *plan, const struct ra_layout layouts[2], int64_t *key_rows,
                struct ra_schedule schedule)
{
    for (int side = 0; side < 2; side++) {
        plan->layouts[side] = layouts[side];
        plan->rows[side] = ra_layout_rows(layouts[side], plan->link.rank);
    }
    for (int r = 0; r < plan->link.size; r++)
        key_rows[r] = ra_layout_rows(layouts[RA_KEY_SIDE], r);
    plan->ring.rows = key_rows;
    plan->ring.schedule = plan->needed = schedule;

    /* A double ring passes by ranks that do not need the keys. */
    int P = plan->link.size;
    if (ra_plan_doubles(plan))
        plan->ring.schedule = ra_schedule_round(P, P, schedule.hop + ra_schedule_storage(P));
}

/* Ints of storage for the schedules of a plan: see `use`. */
static int64_t schedule_storage(const struct ra_config *config, int ranks)
{
    return (config->method == RA_DOUBLE_RING ? 2 : 1) * ra_schedule_storage(ranks);
}

/* Are all hops steps, whatever the mask? */
static bool keeps_hops(const struct ra_plan *plan)
{
    return plan->config.max_slices > 0 && plan->backend->keeps_hops;
}

/* The schedule of the config's mask. */
static struct ra_schedule schedule_of(const struct ra_plan *plan, int *storage)
{
    const struct ra_config *c = &plan->config;
    const struct ra_layout *layouts = plan->planned;
    int P = plan->link.size;
    if (!c->causal || c->local_keys || keeps_hops(plan))
        return ra_schedule_round(P, c->local_keys ? 1 : P, storage);
    if (layouts[RA_QUERY_SIDE].kind == RA_DEALT)
        return ra_slices_schedule(&plan->slices, layouts[RA_QUERY_SIDE], layouts[RA_KEY_SIDE],
                                  storage);
    return ra_schedule_causal(layouts[RA_QUERY_SIDE], layouts[RA_KEY_SIDE], c->lookback, storage);
}

/* The mask and the ring with its schedule. */
static void arrange(struct ra_plan *plan, int *storage, int64_t *key_rows)
{
    const struct ra_config *c = &plan->config;
    struct ra_dims dims = ra_config_dims(c);
    plan->ring =
        (struct ra_ring){.link = &plan->link,
                         .key_bytes = ra_message_key_bytes(c->batch, c->key_heads, dims,
                                                           ra_type_bytes(c->type), c->has_mask),
                         .gradient_bytes = ra_message_gradient_bytes(c->batch, c->key_heads, dims),
                         .context = plan,
                         .observe = c->observe,
                         .observer = c->observer,
                         .schedule_varies = c->max_slices > 0};

    /* The config's mask, as a list. */
    int64_t ahead = c->causal ? 0 : RA_NO_LOOKBACK;
    ra_slices_window(c->queries, c->keys, c->lookback, ahead, &plan->own_slice);
    plan->own_reach = c->queries;
    plan->slices = (struct ra_slices){!ra_slice_is_empty(&plan->own_slice), &plan->own_slice,
                                      &plan->own_reach};
    use(plan, plan->planned, key_rows, schedule_of(plan, storage));
}

/* Gives what a list of slices needs its place. */
static void place_mask(struct ra_arena *arena, const struct ra_config *config, int ranks,
                       struct ra_mask **mask)
{
    struct ra_mask *made = ra_arena_take(arena, sizeof *made);
    struct ra_mask places = {
        .slice_storage = ra_arena_take(arena, ra_slices_storage(config->max_slices)),
        .deal_storage = ra_arena_take(
            arena, ra_deal_storage(ranks, config->queries, config->keys, config->max_slices)),
        .key_rows = ra_arena_take(arena, ranks * (int64_t)sizeof *places.key_rows),
        .schedule_storage =
            ra_arena_take(arena, schedule_storage(config, ranks) * (int64_t)sizeof(int))};
    if (arena->start)
        *made = places;
    *mask = made;
}

enum ra_status ra_plan_check_method(const struct ra_config *config,
                                    const struct ra_backend *backend, char *error)
{
    char names[RA_ERROR_SIZE] = "RA_RING";
    if (config->method == RA_RING || (backend->methods >> config->method & 1))
        return backend->check_method ? backend->check_method(config, error) : RA_OK;
    for (int m = RA_RING + 1; m < RA_AUTO_METHOD; m++)
        if (backend->methods >> m & 1)
            snprintf(names + strlen(names), sizeof names - strlen(names), " or %s",
                     ra_option_methods[m].constant);
    return ra_error_set(error, "config.method = %s: give %s to a plan on %s",
                        ra_option_methods[config->method].constant, names, backend->place);
}

enum ra_status ra_plan_build(struct ra_plan **plan, const struct ra_config *config,
                             const struct ra_layout layouts[2], const struct ra_link *link,
                             const struct ra_backend *backend, bool dry_run, char *error)
{
    enum ra_status known = ra_plan_check_method(config, backend, error);
    if (known != RA_OK)
        return known;

    if (config->caller_workspace && !backend->use_workspace)
        return ra_error_set(error,
                            "config.caller_workspace = true: a plan on %s takes its own memory",
                            backend->place);

    if (config->max_slices > 0 && !backend->use_slices)
        return ra_error_set(
            error, "config.max_slices = %" PRId64 ": give 0, as a plan on %s takes no slices",
            config->max_slices, backend->place);

    /* First counted, then given out: the plan itself, its schedule and the rows of every rank. */
    struct ra_arena arena = {NULL, LINE, 0};
    struct ra_plan *made = NULL;
    int *storage = NULL;
    int64_t *key_rows = NULL;
    struct ra_mask *masks[2] = {NULL, NULL};
    for (int round = 0; round < 2; round++) {
        if (round == 1 && !(arena.start = aligned_alloc(LINE, (size_t)arena.used))) {
            ra_error_set(error, "no memory: the plan needs %" PRId64 " bytes", arena.used);
            return RA_OUT_OF_MEMORY;
        }
        arena.used = 0;
        made = ra_arena_take(&arena, sizeof *made);
        storage =
            ra_arena_take(&arena, schedule_storage(config, link->size) * (int64_t)sizeof *storage);
        key_rows = ra_arena_take(&arena, link->size * (int64_t)sizeof *key_rows);
        for (int i = 0; i < 2 && config->max_slices > 0; i++)
            place_mask(&arena, config, link->size, &masks[i]);
    }
    *made =
        (struct ra_plan){.config = *config,
                         .link = *link,
                         .planned = {layouts ? layouts[0] : ra_layout_of(config, config->queries),
                                     layouts ? layouts[1] : ra_layout_of(config, config->keys)},
                         .dry_run = dry_run,
                         .backend = backend,
                         .busy = ATOMIC_FLAG_INIT,
                         .masks = {masks[0], masks[1]},
                         .fixed_bytes = arena.used + (link->close ? link->bytes : 0)};
    made->score =
        (struct ra_score){.scale = (float)config->scale, .softcap = (float)config->softcap};
    arrange(made, storage, key_rows);

    /* The schedule tells how much the rest needs. */
    enum ra_status status = backend->create(made, error);
    if (status == RA_OK)
        *plan = made;
    else
        free(made);
    return status;
}

void ra_plan_release(struct ra_plan *plan)
{
    plan->backend->free(plan, true);
    free(plan);
}

bool ra_link_enter(const struct ra_link *link)
{
    return !link->in_call || !__atomic_exchange_n(link->in_call, 1, __ATOMIC_ACQ_REL);
}

void ra_link_leave(const struct ra_link *link)
{
    if (link->in_call)
        __atomic_store_n(link->in_call, 0, __ATOMIC_RELEASE);
}

bool ra_plan_enter(struct ra_plan *plan)
{
    if (!plan)
        return false;
    bool free = !atomic_flag_test_and_set(&plan->busy);
    if (free && !ra_link_enter(&plan->link)) {
        atomic_flag_clear(&plan->busy);
        free = false;
    }
    atomic_store(&plan->reentered, !free);

    /* Another plan may have used the link since the last call. */
    if (free && plan->link.set_timeout)
        plan->link.set_timeout(plan->link.self, plan->config.timeout);
    return free;
}

void ra_plan_leave(struct ra_plan *plan)
{
    ra_link_leave(&plan->link);
    atomic_flag_clear(&plan->busy);
}

enum ra_status ra_plan_abort(struct ra_plan *plan, enum ra_status status, const char *text)
{
    if (plan->link.size == 1) {
        snprintf(plan->error, sizeof plan->error, "%s", text);
        return status;
    }

    /* The others must not wait for this rank. That ends the plan, on all. */
    ra_message_place(plan->error, ra_ring_name(&plan->ring, plan->link.rank), -1, "%s", text);
    if (plan->link.fail)
        plan->link.fail(plan->link.self, plan->error);
    plan->status = RA_LOST;
    return status;
}

void ra_plan_cancel(struct ra_plan *plan)
{
    /* A signal handler may do no more than this. */
    if (!plan)
        return;
    atomic_store(&plan->cancelled, true);
    if (plan->inner)
        atomic_store(&plan->inner->cancelled, true);
    if (plan->link.cancel)
        plan->link.cancel(plan->link.self);
}

bool ra_plan_is_cancelled(const struct ra_plan *plan)
{
    return atomic_load(&plan->cancelled);
}

enum ra_status ra_plan_state(struct ra_plan *plan)
{
    bool ends_now = plan->status == RA_OK && ra_plan_is_cancelled(plan);
    return ends_now ? ra_plan_fail(plan) : plan->status;
}

enum ra_status ra_plan_fail(struct ra_plan *plan)
{
    bool cancelled = ra_plan_is_cancelled(plan);
    if (!cancelled)
        snprintf(plan->error, sizeof plan->error, "%s", ra_message_error(&plan->link));
    else
        ra_message_cancelled(plan->error, ra_ring_name(&plan->ring, plan->link.rank));

    /* A link without `cancel` has not heard of it, and nor have the other ranks. */
    if (cancelled && plan->link.fail)
        plan->link.fail(plan->link.self, plan->error);
    plan->status = cancelled ? RA_CANCELLED : RA_LOST;
    return plan->status;
}

const char *ra_plan_error(const struct ra_plan *plan)
{
    if (!plan)
        return "plan is NULL";
    if (!atomic_load(&plan->reentered))
        return plan->error;
    return plan->link.in_call && !plan->link.close
               ? "another call of this plan, or of one that shares its link, is not over"
               : "another call of this plan is not over";
}

int ra_plan_rank(const struct ra_plan *plan)
{
    return plan ? plan->link.rank : -1;
}

int ra_plan_ranks(const struct ra_plan *plan)
{
    return plan ? plan->link.size : 0;
}

struct ra_layout ra_plan_layout(const struct ra_plan *plan, enum ra_side side)
{
    static const struct ra_layout none = {RA_CONTIGUOUS, 1, 0, 1, NULL};
    return plan ? plan->layouts[side == RA_KEY_SIDE] : none;
}

int64_t ra_plan_rows(const struct ra_plan *plan, enum ra_side side)
{
    return plan ? plan->rows[side == RA_KEY_SIDE] : 0;
}

int64_t ra_plan_position(const struct ra_plan *plan, enum ra_side side, int64_t row)
{
    if (row < 0 || row >= ra_plan_rows(plan, side))
        return -1;
    return ra_layout_position(ra_plan_layout(plan, side), plan->link.rank, row);
}

void ra_plan_positions(const struct ra_plan *plan, enum ra_side side, int64_t *positions)
{
    struct ra_layout layout = ra_plan_layout(plan, side);
    for (int64_t s = 0; plan && s < ra_layout_spans(layout); s++) {
        struct ra_span span = ra_layout_span(layout, plan->link.rank, s);
        for (int64_t a = 0; a < span.count; a++)
            *positions++ = span.first + a * span.stride;
    }
}

int64_t ra_plan_bytes_of(const struct ra_plan *plan, int rank)
{
    return plan->fixed_bytes + plan->backend->bytes(plan, rank);
}

int64_t ra_plan_bytes(const struct ra_plan *plan)
{
    return plan ? ra_plan_bytes_of(plan, plan->link.rank) : 0;
}

int64_t ra_plan_workspace_bytes(const struct ra_plan *plan)
{
    bool has_one = plan && plan->backend->workspace_bytes;
    return has_one ? plan->backend->workspace_bytes(plan, plan->link.rank) : 0;
}

/* Can this plan have a workspace, and this one? */
static enum ra_status check_workspace(struct ra_plan *plan, const void *workspace, int64_t bytes)
{
    const struct ra_backend *backend = plan->backend;
    int64_t needed = ra_plan_workspace_bytes(plan);
    if (plan->dry_run)
        return ra_error_set(plan->error, "this plan is one to look at: it needs no workspace");
    if (!plan->config.caller_workspace)
        return ra_error_set(plan->error, "the plan has a workspace of its own: set "
                                         "config.caller_workspace = true before ra_plan_create");
    if (!workspace)
        return RA_OK;
    if ((uintptr_t)workspace % (uintptr_t)backend->line != 0)
        return ra_error_set(plan->error, "workspace: give an address that %" PRId64 " divides",
                            backend->line);
    if (bytes < needed)
        return ra_error_set(plan->error,
                            "bytes = %" PRId64 ": this plan needs a workspace of %" PRId64, bytes,
                            needed);
    if (!backend->check_address)
        return RA_OK;
    return backend->check_address(plan, "workspace", workspace, plan->error);
}

enum ra_status ra_plan_set_workspace(struct ra_plan *plan, void *workspace, int64_t bytes)
{
    if (!ra_plan_enter(plan))
        return RA_INVALID;
    enum ra_status status = check_workspace(plan, workspace, bytes);
    if (status == RA_OK) {
        plan->workspace = workspace;
        plan->workspace_bytes = workspace ? bytes : 0;
        plan->backend->use_workspace(plan, workspace);
    }
    ra_plan_leave(plan);
    return status;
}

/* What is written to the beginning of the caller's workspace while a call uses it. Whatever else is
 * there is not that, as it depends on the address, and a call takes it away at its end. */
static uint64_t mark_of(const struct ra_plan *plan)
{
    return (uint64_t)(uintptr_t)plan->workspace ^ UINT64_C(0x9E3779B97F4A7C15);
}

enum ra_status ra_plan_enter_workspace(struct ra_plan *plan)
{
    _Atomic uint64_t *in_use = (void *)plan->workspace;
    if (!in_use || atomic_exchange(in_use, mark_of(plan)) != mark_of(plan))
        return RA_OK;
    return ra_plan_abort(plan, RA_INVALID,
                         "the workspace is in use by a call of another plan: give this one a "
                         "block of its own, or call them one after the other");
}

void ra_plan_leave_workspace(const struct ra_plan *plan)
{
    _Atomic uint64_t *in_use = (void *)plan->workspace;
    if (in_use)
        atomic_store(in_use, 0);
}

/* ---- Slices. */

/* A number that two different lists, or deals, hardly have in common; `seed` is that of the list by
 * which another plan has dealt. */
static int64_t hash_of(const struct ra_slice *slices, int64_t count, enum ra_deal deal,
                       int64_t seed)
{
    uint64_t hash = (uint64_t)count * 2 + deal + 1 + (uint64_t)seed;
    for (int64_t i = 0; i < count; i++) {
        const int64_t numbers[] = {slices[i].q0, slices[i].q1, slices[i].k0,
                                   slices[i].k1, slices[i].lo, slices[i].hi};
        for (int n = 0; n < 6; n++) {
            hash = (hash ^ (uint64_t)numbers[n]) * UINT64_C(0x9E3779B97F4A7C15);
            hash ^= hash >> 32;
        }
    }
    return (int64_t)hash;
}

/* Checks what can be told of the arguments without reading the list. */
static enum ra_status check_list(struct ra_plan *plan, const struct ra_slice *slices, int64_t count,
                                 enum ra_deal deal)
{
    int64_t most = plan->config.max_slices;
    if (most == 0)
        return ra_error_set(plan->error,
                            "config.max_slices = 0: plan with as many slices as there will be");
    if (count < 0 || count > most)
        return ra_error_set(
            plan->error, "count = %" PRId64 ": give 0 to %" PRId64 ", which is config.max_slices",
            count, most);
    if (!slices && count > 0)
        return ra_error_set(plan->error, "slices is NULL: give an array of %" PRId64, count);
    if (deal != RA_DEAL_LAYOUT && deal != RA_DEAL_DOCUMENTS)
        return ra_error_set(plan->error, "deal = %d: give RA_DEAL_LAYOUT or RA_DEAL_DOCUMENTS",
                            (int)deal);
    return RA_OK;
}

/* Are all ranks' rows within their room? */
static enum ra_status check_room(struct ra_plan *plan, const struct ra_layout layouts[2])
{
    for (int side = 0; side < 2; side++)
        for (int rank = 0; rank < plan->link.size; rank++) {
            int64_t rows = ra_layout_rows(layouts[side], rank);
            if (rows > ra_plan_most_bound(plan, (enum ra_side)side))
                return ra_error_set(
                    plan->error,
                    "config.max_rows = %" PRId64 ": this deal gives rank %d %" PRId64
                    " rows of %s; plan with at least %" PRId64,
                    plan->config.max_rows, rank, rows, side == RA_QUERY_SIDE ? "queries" : "keys",
                    ra_layout_most_rows(layouts[side]));
        }
    return RA_OK;
}

/* Can this plan have its rows dealt as the other one? */
static enum ra_status check_other(struct ra_plan *plan, const struct ra_plan *other)
{
    const struct ra_config *c = &plan->config;
    if (!other)
        return ra_error_set(plan->error, "other is NULL: give a plan");
    const struct ra_config *o = &other->config;
    if (o->queries != c->queries || o->keys != c->keys || o->layout != c->layout ||
        o->bucket != c->bucket || other->link.size != plan->link.size)
        return ra_error_set(plan->error,
                            "other: give a plan whose config.queries, keys, layout and "
                            "bucket are those of this plan, and its ring as large");
    if (other->config.max_slices > c->max_slices)
        return ra_error_set(plan->error,
                            "config.max_slices = %" PRId64 ": `other` has %" PRId64
                            "; plan with at least as many",
                            c->max_slices, o->max_slices);
    return RA_OK;
}

/* Finds the schedule of a mask whose slices and layouts are known. */
static void plan_hops(const struct ra_plan *plan, struct ra_mask *mask)
{
    int P = plan->link.size;
    if (plan->config.local_keys) {
        mask->schedule = ra_schedule_round(P, 1, mask->schedule_storage);
        return;
    }
    mask->schedule = ra_slices_schedule(&mask->slices, mask->layouts[RA_QUERY_SIDE],
                                        mask->layouts[RA_KEY_SIDE], mask->schedule_storage);
    mask->schedule.count = keeps_hops(plan) ? P : mask->schedule.count;
    for (int hop = 0; hop < P && keeps_hops(plan); hop++)
        mask->schedule.hop[hop] = hop;
}

/* Reads a list and all that follows from it. Rows are dealt as they are in `other`, if that is not
 * NULL. */
static enum ra_status read_mask(struct ra_plan *plan, struct ra_mask *mask,
                                const struct ra_slice *slices, int64_t count, enum ra_deal deal,
                                const struct ra_plan *other)
{
    const struct ra_config *c = &plan->config;
    int P = plan->link.size;
    enum ra_status status = ra_slices_read(&mask->slices, slices, count, c->queries, c->keys,
                                           mask->slice_storage, plan->error);
    if (status != RA_OK)
        return status;
    memcpy(mask->layouts, plan->planned, sizeof mask->layouts);
    if (deal == RA_DEAL_DOCUMENTS && other)
        ra_deal_copy(other->layouts, mask->deal_storage, mask->lists, mask->layouts);
    else if (deal == RA_DEAL_DOCUMENTS)
        ra_deal_documents(&mask->slices, P, c->queries, c->keys, mask->deal_storage, mask->lists,
                          mask->layouts);
    status = check_room(plan, mask->layouts);
    if (status != RA_OK)
        return status;
    plan_hops(plan, mask);
    return RA_OK;
}

void ra_plan_use_slices(struct ra_plan *plan, const struct ra_slices *slices,
                        const struct ra_layout layouts[2])
{
    struct ra_mask *mask = plan->masks[0];
    mask->slices = *slices;
    memcpy(mask->layouts, layouts, sizeof mask->layouts);
    plan_hops(plan, mask);
    plan->slices = mask->slices;
    plan->listed = true;
    use(plan, mask->layouts, mask->key_rows, mask->schedule);
}

/* Makes a list the mask of a plan: reads it beside the mask in use, which stays if the list is
 * wrong, and then exchanges the two. `like`: for ra_plan_set_slices_like, with rows as `other` has
 * them. A plan that has failed keeps its reason. */
static enum ra_status take_list(struct ra_plan *plan, const struct ra_slice *slices, int64_t count,
                                enum ra_deal deal, bool like, const struct ra_plan *other)
{
    struct ra_mask *next = plan->masks[1];
    enum ra_status status = ra_plan_state(plan);
    if (status == RA_OK && like)
        status = check_other(plan, other);
    if (status == RA_OK)
        status = check_list(plan, slices, count, deal);
    if (status == RA_OK)
        status = read_mask(plan, next, slices, count, deal, other);
    if (status == RA_OK) {
        plan->masks[1] = plan->masks[0];
        plan->masks[0] = next;
        plan->slices = next->slices;
        plan->listed = true;
        plan->deal = deal;
        plan->ring.call.slices = hash_of(slices, count, deal, other ? other->ring.call.slices : 0);
        use(plan, next->layouts, next->key_rows, next->schedule);
        status = plan->backend->use_slices(plan, plan->error);
    }
    return status;
}

enum ra_status ra_plan_set_slices(struct ra_plan *plan, const struct ra_slice *slices,
                                  int64_t count, enum ra_deal deal)
{
    if (!ra_plan_enter(plan))
        return RA_INVALID;
    enum ra_status status = take_list(plan, slices, count, deal, false, NULL);
    ra_plan_leave(plan);
    return status;
}

enum ra_status ra_plan_set_slices_like(struct ra_plan *plan, const struct ra_slice *slices,
                                       int64_t count, const struct ra_plan *other)
{
    if (!ra_plan_enter(plan))
        return RA_INVALID;
    enum ra_deal deal = other ? other->deal : RA_DEAL_LAYOUT;
    enum ra_status status = take_list(plan, slices, count, deal, true, other);
    ra_plan_leave(plan);
    return status;
}

int64_t ra_plan_work(const struct ra_plan *plan, int rank)
{
    int64_t pairs = 0;
    if (!plan || rank < 0 || rank >= plan->link.size)
        return -1;
    struct ra_layout queries = plan->layouts[RA_QUERY_SIDE];
    for (int64_t i = 0, end; i < queries.length; i = end)
        if (ra_layout_run(queries, i, &end) == rank)
            pairs += ra_slices_seen(&plan->slices, i, end);
    return pairs;
}

int ra_plan_hops(const struct ra_plan *plan)
{
    if (!plan)
        return 0;
    return plan->inner ? plan->inner->ring.schedule.count : plan->ring.schedule.count;
}

enum ra_status ra_plan_check_rows(const struct ra_plan *plan, enum ra_side side, int64_t outer,
                                  int64_t row_bytes, const void *whole, bool needs_whole,
                                  const void *local, char *error)
{
    if (side != RA_QUERY_SIDE && side != RA_KEY_SIDE)
        return ra_error_set(error, "side = %d: give RA_QUERY_SIDE or RA_KEY_SIDE", (int)side);
    if (outer < 0)
        return ra_error_set(error, "outer = %" PRId64 ": give at least 0", outer);
    if (row_bytes < 1)
        return ra_error_set(error, "row_bytes = %" PRId64 ": give at least 1", row_bytes);
    struct ra_layout layout = ra_plan_layout(plan, side);
    double bytes = (double)outer * (double)layout.length * (double)row_bytes;
    if (bytes > 0x1p60)
        return ra_error_set(error,
                            "outer = %" PRId64 ", row_bytes = %" PRId64
                            ": %g bytes in all; give at most 2^60",
                            outer, row_bytes, bytes);
    if (!whole && needs_whole && bytes > 0)
        return ra_error_set(error, "whole is NULL: give %g bytes, as of outer, rows and row_bytes",
                            bytes);
    if (!local && bytes > 0 && plan->rows[side == RA_KEY_SIDE] > 0)
        return ra_error_set(error, "local is NULL: give room for this rank's %" PRId64 " rows",
                            plan->rows[side == RA_KEY_SIDE]);

    /* Rows would be copied over others that are still to be copied. */
    uintptr_t a = (uintptr_t)whole, b = (uintptr_t)local;
    double between = a < b ? (double)(b - a) : (double)(a - b);
    double own = (double)outer * (double)plan->rows[side] * (double)row_bytes;
    if (needs_whole && own > 0 && between < (a < b ? bytes : own))
        return ra_error_set(error, "whole and local overlap: give local an array of its own");
    return RA_OK;
}

/* Checks the arguments of both. */
static enum ra_status check_shard(struct ra_plan *plan, enum ra_side side, int64_t outer,
                                  int64_t row_bytes, const void *whole, const void *local)
{
    if (!plan)
        return RA_INVALID;
    return ra_plan_check_rows(plan, side, outer, row_bytes, whole, true, local, plan->error);
}

enum ra_status ra_shard(struct ra_plan *plan, enum ra_side side, int64_t outer, int64_t row_bytes,
                        const void *whole, void *local)
{
    enum ra_status status = check_shard(plan, side, outer, row_bytes, whole, local);
    if (status != RA_OK)
        return status;
    struct ra_layout layout = ra_plan_layout(plan, side);
    int64_t rows = ra_plan_rows(plan, side);
    for (int64_t i = 0; i < outer && rows > 0; i++) /* nothing, 2^60 times, would take centuries */
        ra_layout_shard(layout, plan->link.rank, row_bytes,
                        (const char *)whole + i * layout.length * row_bytes,
                        (char *)local + i * rows * row_bytes);
    return RA_OK;
}

enum ra_status ra_unshard(struct ra_plan *plan, enum ra_side side, int64_t outer, int64_t row_bytes,
                          const void *local, void *whole)
{
    enum ra_status status = check_shard(plan, side, outer, row_bytes, whole, local);
    if (status != RA_OK)
        return status;
    struct ra_layout layout = ra_plan_layout(plan, side);
    int64_t rows = ra_plan_rows(plan, side);
    for (int64_t i = 0; i < outer && rows > 0; i++)
        ra_layout_unshard(layout, plan->link.rank, row_bytes,
                          (const char *)local + i * rows * row_bytes,
                          (char *)whole + i * layout.length * row_bytes);
    return RA_OK;
}
