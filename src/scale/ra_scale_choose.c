/* ra_scale_choose: which method is fastest. See ring_attention_scale.h.
 *
 * Chapter 12. New here: a prediction that a program acts on.
 */
#include "ra_config_check.h"
#include "ra_error.h"
#include "ra_scale_cost.h"
#include "ring_attention_scale.h"

/* Adds a choice, without a prediction, if a plan can have it where it is to compute. */
static void add(struct ra_scale_choices *choices, const struct ra_config *config,
                enum ra_scale_method method, enum ra_method config_method, int group, int inner)
{
    struct ra_config own = *config;
    char unused[RA_ERROR_SIZE];
    own.method = config_method;
    if (config->device && ra_plan_check_method(&own, config->device, unused) != RA_OK)
        return;
    choices->list[choices->count++] = (struct ra_scale_choice){
        .method = method, .config_method = config_method, .group = group, .inner = inner};
}

/* Lists the methods that so many ranks have. */
static void list(struct ra_scale_choices *choices, const struct ra_config *config, int ranks,
                 int here)
{
    *choices = (struct ra_scale_choices){.count = 0, .best = -1};
    add(choices, config, RA_SCALE_RING, RA_RING, 0, 0);
    if (here > 1 && here < ranks && ranks % here == 0)
        add(choices, config, RA_SCALE_DOUBLE_RING, RA_DOUBLE_RING, 0, here);
    add(choices, config, RA_SCALE_GATHERED_KEYS, RA_GATHERED_KEYS, 0, 0);
    add(choices, config, RA_SCALE_EXCHANGED_HEADS, RA_EXCHANGED_HEADS, 0, 0);
    for (int group = 2; group < ranks && group <= config->heads; group++)
        if (ranks % group == 0)
            add(choices, config, RA_SCALE_HYBRID, RA_HYBRID, group, 0);
}

static double seconds_of(const struct ra_scale_choice *choice)
{
    return choice->scale.forward.seconds + choice->scale.backward.seconds;
}

/* The place of the best choice. */
static int best_of(const struct ra_scale_choices *choices)
{
    int best = -1;
    for (int i = 0; i < choices->count; i++) {
        const struct ra_scale_choice *choice = &choices->list[i];
        if (choice->possible && choice->fits &&
            (best < 0 || seconds_of(choice) < seconds_of(&choices->list[best])))
            best = i;
    }
    return best;
}

enum ra_status ra_scale_choose(struct ra_scale_choices *choices, struct ra_config *config,
                               const struct ra_scale_mask *mask,
                               const struct ra_scale_machine *machine, struct ra_scale_hop *hops,
                               char error[RA_ERROR_SIZE])
{
    struct ra_config own;
    if (!choices || !machine)
        return ra_error_set(error, "%s is NULL", choices ? "machine" : "choices");
    enum ra_status status = ra_config_copy(&own, config, error);
    if (status != RA_OK)
        return status;
    int ranks = own.ring_size > 0 ? own.ring_size : 1;
    if (ranks > RA_COST_MOST_RANKS)
        return ra_error_set(error, "config.ring_size = %d: give at most %d", ranks,
                            RA_COST_MOST_RANKS);
    list(choices, &own, ranks, machine->ranks_per_host);
    for (int i = 0; i < choices->count; i++) {
        struct ra_scale_choice *choice = &choices->list[i];
        own.group = choice->group;
        choice->possible = choice->method != RA_SCALE_EXCHANGED_HEADS || ranks <= own.heads;
        if (choice->possible)
            status = ra_scale_predict(&choice->scale, &own, mask, machine, choice->method,
                                      hops ? hops + 2 * (int64_t)ranks * i : NULL, error);
        if (status != RA_OK)
            return status;
        double bytes = (double)choice->scale.plan_bytes + (double)choice->scale.array_bytes;
        choice->fits = machine->memory == 0 || bytes <= machine->memory;
    }
    choices->best = best_of(choices);
    if (choices->best < 0)
        return RA_OK;
    config->method = choices->list[choices->best].config_method;
    config->group = choices->list[choices->best].group;
    config->inner = choices->list[choices->best].inner;
    return RA_OK;
}
