/* ring_attention: the life of a plan and its calls. See ring_attention.h.
 *
 * Chapter 08. New here: one way to make a plan, over any link and on any backend; and errors that
 * are returned.
 */
#include "ring_attention.h"
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_agree.h"
#include "ra_choose.h"
#include "ra_config_check.h"
#include "ra_error.h"
#include "ra_exchange.h"
#include "ra_host.h"
#include "ra_plan.h"
#include "ra_struct.h"

/* Ranks of a ring: more is a mistake, as a plan has two lines of memory and of text for each. */
enum { MOST_RANKS = 1 << 16 };

const char *ra_version(void)
{
    return RA_VERSION;
}

const char *ra_status_text(enum ra_status status)
{
    switch (status) {
    case RA_OK:
        return "success";
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
    case RA_CANCELLED:
        return "the plan was cancelled";
    }
    return "no status of this library";
}

void ra_config_init(struct ra_config *config, size_t size)
{
    struct ra_config defaults = RA_CONFIG_INIT;
    ra_struct_give(config, size, &defaults, sizeof defaults);
}

/* The option of a field that this config has. NULL: there is none, and the error says so. */
static const struct ra_option *find_field(const struct ra_config *config, const char *field,
                                          char *error)
{
    if (!config || !field) {
        ra_error_set(error, "%s is NULL", config ? "field" : "config");
        return NULL;
    }
    for (const struct ra_option *option = ra_options; option < ra_options + RA_OPTIONS; option++) {
        if (!option->field || strcmp(option->field, field) != 0)
            continue;
        if (config->size > option->offset)
            return option;
        ra_error_set(error, "config.size = %zu: too small for %s; begin with ra_config_init",
                     config->size, field);
        return NULL;
    }
    char names[RA_ERROR_SIZE] = "";
    for (const struct ra_option *option = ra_options; option < ra_options + RA_OPTIONS; option++)
        if (option->field)
            snprintf(names + strlen(names), sizeof names - strlen(names), " %s", option->field);
    ra_error_set(error, "config.%.20s: no such field; one of%s", field, names);
    return NULL;
}

static bool is_lookback(const struct ra_option *option)
{
    return option->offset == offsetof(struct ra_config, lookback);
}

enum ra_status ra_config_set(struct ra_config *config, const char *field, double value,
                             char error[RA_ERROR_SIZE])
{
    const struct ra_option *option = find_field(config, field, error);
    if (!option)
        return RA_INVALID;
    if (option->kind == RA_OPTION_REAL) {
        ra_option_store(option, config, ra_option_bits(value));
        return RA_OK;
    }

    /* No limit, as a double: INT64_MAX is rounded to 2^63, and infinity says the same. */
    bool no_limit = is_lookback(option) && value >= 0x1p63;

    /* A value that is cut to fit would be another one, and perhaps a good one. */
    bool is_flag = option->kind == RA_OPTION_FLAG;
    double most = is_flag ? 1 : option->kind == RA_OPTION_WHOLE ? 0x1p53 : INT_MAX;
    double least = is_flag ? 0 : -most;
    if (!no_limit && !(value >= least && value <= most && value == floor(value)))
        return ra_error_set(error, "config.%s = %.17g: give a whole number from %.0f to %.0f%s",
                            field, value, least, most,
                            is_lookback(option) ? ", or infinity for no limit" : "");
    ra_option_store(option, config, no_limit ? RA_NO_LOOKBACK : (int64_t)value);
    return RA_OK;
}

enum ra_status ra_config_get(const struct ra_config *config, const char *field, double *value,
                             char error[RA_ERROR_SIZE])
{
    const struct ra_option *option = find_field(config, field, error);
    if (!option)
        return RA_INVALID;
    if (!value)
        return ra_error_set(error, "value is NULL: give the address of a double");
    int64_t stored = ra_option_load(option, config);
    *value = option->kind == RA_OPTION_REAL ? ra_option_real(stored) : (double)stored;
    if (is_lookback(option) && stored == RA_NO_LOOKBACK)
        *value = (double)INFINITY;
    return RA_OK;
}

void ra_plan_config(const struct ra_plan *plan, struct ra_config *config, size_t size)
{
    struct ra_config defaults = RA_CONFIG_INIT;
    ra_struct_give(config, size, plan ? &plan->config : &defaults, sizeof defaults);
}

/* Is this a link? If not, nothing of it is called. */
static enum ra_status check_link(const struct ra_link *link, char *error)
{
    const struct {
        const char *name;
        bool is_there;
    } functions[] = {{"send", link->send}, {"receive", link->receive}, {"poll", link->poll},
                     {"wait", link->wait}, {"fail", link->fail},       {"error", link->error}};
    if (link->size < 1 || link->size > MOST_RANKS)
        return ra_error_set(error, "link.size = %d: give 1 to %d ranks", link->size, MOST_RANKS);
    if (link->rank < 0 || link->rank >= link->size)
        return ra_error_set(error, "link.rank = %d: give 0 to %d, as link.size is %d", link->rank,
                            link->size - 1, link->size);
    if (link->bytes < 0)
        return ra_error_set(error, "link.bytes = %" PRId64 ": give at least 0", link->bytes);
    for (size_t f = 0; f < sizeof functions / sizeof *functions && link->size > 1; f++)
        if (!functions[f].is_there)
            return ra_error_set(error, "link.%s is NULL: a link of %d ranks needs this function",
                                functions[f].name, link->size);
    if (link->size > 1 && !link->close && !link->in_call)
        return ra_error_set(
            error, "link.close is NULL: give it, or link.in_call as well, by which plans that "
                   "share a link see each other's calls");
    return RA_OK;
}

/* Reads the config of a plan over this link (NULL: none). */
static enum ra_status read_config(struct ra_config *config, const struct ra_config *given,
                                  const struct ra_link *link, char *error)
{
    enum ra_status status = ra_config_read(config, given, error);
    if (status != RA_OK)
        return status;
    if (config->expected && config->method != RA_AUTO_METHOD)
        return ra_error_set(error, "config.expected: needs method = RA_AUTO_METHOD, as it is what "
                                   "a method is chosen for");
    if (!link && config->ring_size > MOST_RANKS)
        return ra_error_set(error, "config.ring_size = %d: give at most %d", config->ring_size,
                            MOST_RANKS);
    if (link && config->ring_size > 0 && config->ring_size != link->size)
        return ra_error_set(error, "config.ring_size = %d: give 0, or the %d of the link",
                            config->ring_size, link->size);
    if (config->ring_size == 0)
        config->ring_size = link ? link->size : 1;
    return ra_config_read_method(config, link ? link->sharing : 1, error);
}

/* Frees a plan whose link has been told of its end. */
static void destroy(struct ra_plan *plan)
{
    /* A message that never ended may overwrite the plan at any time, or its memory, and so whatever
     * would come to lie there. Without that memory a plan is small. */
    const struct ra_backend *backend = plan->backend;
    bool unused = !backend->leave || backend->leave(plan);
    if (plan->link.close && !plan->link.close(plan->link.self))
        unused = false;

    /* A link that stays open knows of what never ended, but cannot be asked. */
    if (!plan->link.close && plan->link.size > 1 && plan->status != RA_OK)
        unused = false;
    backend->free(plan, unused);
    free(plan->choice);
    plan->choice = NULL;
    if (unused)
        free(plan);
}

/* Chooses the method of a config, with all other ranks. They have to know first that all of them
 * do, as it takes messages. If it fails, it fails on all of them. */
static enum ra_status choose(struct ra_config *config, const struct ra_link *link,
                             enum ra_status status, char **choice, char *text)
{
    int64_t unused = 0;
    const struct ra_backend *backend = config->device ? config->device : &ra_host;
    if (link)
        status = ra_agree_config(link, config, backend->place, status, &unused, text);
    return status == RA_OK ? ra_choose_method(config, link, choice, text) : status;
}

/* Makes the plan on this rank, and then, with all others, a plan of all ranks. */
static enum ra_status create(struct ra_plan **plan, bool has_place, const struct ra_config *given,
                             const struct ra_link *link, char *text)
{
    struct ra_config config = RA_CONFIG_INIT;
    enum ra_status status = read_config(&config, given, link, text);
    if (!has_place)
        status = ra_error_set(text, "plan is NULL: give the address of a pointer");
    if (status == RA_OK && link && link->set_timeout)
        link->set_timeout(link->self, config.timeout);
    char *choice = NULL;
    bool is_open = config.method == RA_AUTO_METHOD;
    if (is_open && (status = choose(&config, link, status, &choice, text)) != RA_OK)
        return status;
    config.expected = NULL; /* the caller's, and no more needed */
    const struct ra_backend *backend = status == RA_OK ? ra_exchange_backend(&config) : &ra_host;
    struct ra_link alone = {.rank = 0, .size = config.ring_size};
    if (status == RA_OK)
        status = ra_plan_build(plan, &config, NULL, link ? link : &alone, backend,
                               !link && config.ring_size > 1, text);
    if (choice && *plan) {
        (*plan)->choice = choice;
        (*plan)->fixed_bytes += (int64_t)strlen(choice) + 1;
    } else {
        free(choice);
    }

    /* A rank that has failed is expected by the others, too. Plans that share a link are told apart
     * by where rank 0 has them. */
    int64_t number = (int64_t)(uintptr_t)*plan;
    if (link)
        status = ra_agree_config(link, &config, backend->place, status, &number, text);
    if (status == RA_OK)
        (*plan)->ring.call.ring = number;
    if (status == RA_OK && link && backend->connect)
        status = backend->connect(*plan, text);
    if (status == RA_LOST && *plan)
        (*plan)->status = RA_LOST;
    return status;
}

enum ra_status ra_plan_create(struct ra_plan **plan, const struct ra_config *config,
                              const struct ra_link *link, char error[RA_ERROR_SIZE])
{
    char text[RA_ERROR_SIZE];
    struct ra_plan *made = NULL;
    enum ra_status status = link ? check_link(link, text) : RA_OK;
    if (status == RA_OK && link && !ra_link_enter(link))
        status = ra_error_set(text, "link: a call of another plan that shares it is not over");
    else if (status == RA_OK) {
        status = create(&made, plan != NULL, config, link, text);
        if (link)
            ra_link_leave(link);
        if (status != RA_OK && made)
            destroy(made);
        else if (status != RA_OK && link && link->close)
            link->close(link->self);
    }
    if (plan)
        *plan = status == RA_OK ? made : NULL;
    if (error && status != RA_OK)
        snprintf(error, RA_ERROR_SIZE, "%s", text);
    return status;
}

void ra_plan_destroy(struct ra_plan *plan)
{
    if (plan)
        destroy(plan);
}

enum ra_status ra_wait(struct ra_plan *plan)
{
    if (!plan)
        return RA_INVALID;
    return plan->backend->wait ? plan->backend->wait(plan) : ra_plan_state(plan);
}

/* Either call, and its end. */
static enum ra_status call(struct ra_plan *plan, const struct ra_arrays *arrays, bool backward)
{
    if (!ra_plan_enter(plan))
        return RA_INVALID;
    enum ra_status status =
        (backward ? plan->backend->backward : plan->backend->forward)(plan, arrays, NULL);
    if (status == RA_OK)
        status = ra_wait(plan);
    ra_plan_leave(plan);
    return status;
}

enum ra_status ra_forward(struct ra_plan *plan, const struct ra_arrays *arrays)
{
    return call(plan, arrays, false);
}

enum ra_status ra_backward(struct ra_plan *plan, const struct ra_arrays *arrays)
{
    return call(plan, arrays, true);
}
