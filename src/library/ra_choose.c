/* ra_choose: the method of a plan whose config leaves it open. See ra_choose.h.
 *
 * Chapter 12. New here: ranks that measure, predict, and choose alike.
 */
#include "ra_choose.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_agree.h"
#include "ra_config_check.h"
#include "ra_error.h"
#include "ra_plan.h"
#include "ra_scale_measure.h"

/* How often everything is measured: a plan is not to take seconds to make. */
enum { TIMES = 3 };

/* Characters of a line of the text, at most. */
enum { WIDTH = 120 };

/* Why there is nothing to choose; NULL: there is. */
static const char *only_reason(const struct ra_config *config, const struct ra_link *link)
{
    if (config->device && !config->device->meter)
        return "as this device is not measured";
    if (config->local_keys)
        return "as no keys travel";
    if (config->batch == 0 || config->queries == 0 || config->keys == 0)
        return "as there is no work";
    return link && link->size > 1 ? NULL : "as there is one rank";
}

/* Writes the machine and a line for each choice. */
static void say_choices(const struct ra_scale_choices *choices, const struct ra_scale_machine *m,
                        const struct ra_scale_mask *mask, char *text, size_t size)
{
    char of[40] = "";
    if (mask)
        snprintf(of, sizeof of, ", of %" PRId64 " slices", mask->count);
    int used = snprintf(
        text, size,
        "method: %s, of %d by prediction%s\n"
        "  measured: %.3g multiply-adds a second forward, %.3g backward; %.3g bytes "
        "a second copied,\n"
        "  %.3g sent, after %.3g s",
        ra_option_methods[choices->list[choices->best].config_method].word, choices->count, of,
        m->forward_rate, m->backward_rate, m->memory_bandwidth, m->bandwidth, m->latency);
    if (m->ranks_per_host > 0)
        used +=
            snprintf(text + used, size - (size_t)used, "; between hosts of %d %.3g, after %.3g s",
                     m->ranks_per_host, m->host_bandwidth, m->host_latency);
    for (int i = 0; i < choices->count; i++) {
        const struct ra_scale_choice *choice = &choices->list[i];
        char name[40];
        snprintf(name, sizeof name, choice->group > 0 ? "%s, groups of %d" : "%s",
                 ra_option_methods[choice->config_method].word, choice->group);
        used += snprintf(text + used, size - (size_t)used, "\n  %-23s", name);
        if (choice->possible)
            used += snprintf(text + used, size - (size_t)used, "%.4g s%s",
                             choice->scale.forward.seconds + choice->scale.backward.seconds,
                             i == choices->best ? ", chosen" : "");
        else
            used += snprintf(text + used, size - (size_t)used, "too few heads");
    }
    snprintf(text + used, size - (size_t)used, "\n");
}

/* Can the mask that is expected be given to the plan? What is in it ra_scale_choose checks. */
static enum ra_status check_expected(const struct ra_config *config, char *error)
{
    const struct ra_scale_mask *mask = config->expected;
    if (!mask || mask->count <= config->max_slices)
        return RA_OK;
    return ra_error_set(error,
                        "config.expected: has %" PRId64 " slices; plan with config.max_slices of "
                        "at least as many, which is %" PRId64,
                        mask->count, config->max_slices);
}

/* Measures, and chooses by that. */
static enum ra_status choose(struct ra_config *config, const struct ra_link *link,
                             struct ra_scale_choices *choices, char *text, size_t size, char *error)
{
    struct ra_scale_machine machine = RA_SCALE_MACHINE_INIT;
    enum ra_status status = ra_scale_measure(&machine, config, link, 0, TIMES, error);
    if (status != RA_OK)
        return status;

    /* A rank with several stripes is predicted with one: it has about as many pairs. */
    struct ra_config asked = *config;
    asked.bucket = 0;
    status = ra_scale_choose(choices, &asked, NULL, &machine, NULL, error);
    if (status != RA_OK)
        return status;
    config->method = asked.method;
    config->group = asked.group;
    config->inner = asked.inner;
    say_choices(choices, &machine, config->expected, text, size);
    return RA_OK;
}

enum ra_status ra_choose_method(struct ra_config *config, const struct ra_link *link, char **text,
                                char *error)
{
    if (!link && config->ring_size > 1)
        return ra_error_set(error, "config.method = RA_AUTO_METHOD: ranks of a plan to look at "
                                   "cannot be measured; give a method, or ask ra_scale_choose");
    const char *only = only_reason(config, link);
    const size_t size = only ? WIDTH : (RA_SCALE_CHOICES + 4) * WIDTH;
    struct ra_scale_choices *choices = malloc(sizeof *choices);
    enum ra_status status = check_expected(config, error);
    *text = malloc(size);
    if (!choices || !*text) {
        ra_error_set(error, "no memory to choose a method");
        status = RA_OUT_OF_MEMORY;
    }
    if (link)
        status = ra_agree(link, status, error); /* before any rank waits for another */
    if (only && status == RA_OK) {
        config->method = RA_RING;
        snprintf(*text, size, "method: %s, %s\n", ra_option_methods[RA_RING].word, only);
    } else if (status == RA_OK) {
        status = choose(config, link, choices, *text, size, error);
        status = ra_agree(link, status, error);
    }
    free(choices);
    char *shorter = status == RA_OK ? realloc(*text, strlen(*text) + 1) : NULL;
    if (status != RA_OK)
        free(*text);
    if (status != RA_OK || shorter)
        *text = shorter;
    return status;
}
