/* ra_config_check: what a caller asks for, checked. See ra_config_check.h.
 *
 * Chapter 08. New here: each field is checked, named in errors, and compared between ranks by its
 * row in the table of options.
 */
#include "ra_config_check.h"
#include "ra_error.h"
#include "ra_math.h"
#include "ra_struct.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "ra_vector.h"

/* More numbers than any array has, so that no product of sizes overflows. */
#define MOST ((int64_t)1 << 50)

/* A layout with more stripes is a mistake: work grows with the square of a rank's stripes. */
#define MOST_STRIPES 16384

RA_STRUCT_ENDS(struct ra_config, expected);

enum ra_status ra_config_copy(struct ra_config *config, const struct ra_config *given, char *error)
{
    size_t least = offsetof(struct ra_config, batch) + sizeof config->batch;
    *config = (struct ra_config)RA_CONFIG_INIT;
    if (ra_struct_take("config", "RA_CONFIG_INIT", config, sizeof *config, least, given, error) !=
        RA_OK)
        return RA_INVALID;
    if (config->initialised != 1)
        return ra_error_set(
            error,
            "config.initialised = %d: begin with RA_CONFIG_INIT or ra_config_init; a zeroed "
            "field is not its default",
            config->initialised);
    return RA_OK;
}

/* Is the product of these at most MOST? All are at least 0. */
static bool fits(int64_t a, int64_t b, int64_t c, int64_t d)
{
    double product = (double)a * (double)b * (double)c * (double)d;
    return product <= (double)MOST;
}

/* The value of a field as a caller would write it, a real number with this many digits; what is no
 * value of its type, as a number. */
static const char *value_text(const struct ra_option *option, int64_t value, int digits,
                              char text[40])
{
    static const struct ra_config defaults = RA_CONFIG_INIT;
    bool good = ra_option_in_range(option, value);
    if (option->unset && value == ra_option_load(option, &defaults))
        return option->unset;
    if (option->kind == RA_OPTION_FLAG && good)
        return value ? "true" : "false";
    if (option->kind == RA_OPTION_CHOICE && good)
        return option->choices[value].constant;
    if (option->kind == RA_OPTION_REAL)
        snprintf(text, 40, "%.*g", digits, ra_option_real(value));
    else
        snprintf(text, 40, "%" PRId64, value);
    return text;
}

/* What no field says alone. */
static enum ra_status check_together(const struct ra_config *c, char *error)
{
    if (c->key_heads < 1 || c->heads % c->key_heads != 0)
        return ra_error_set(
            error, "config.key_heads = %" PRId64 ": give a number that divides heads = %" PRId64,
            c->key_heads, c->heads);
    if (!fits(ra_max(c->batch, 1), ra_max(ra_max(c->queries, c->keys), 1), c->heads,
              ra_dims_most(ra_config_dims(c))))
        return ra_error_set(error,
                            "config: batch %" PRId64 ", queries %" PRId64 ", keys %" PRId64
                            ", heads %" PRId64 ", dim %" PRId64 ", dim_value %" PRId64
                            ": give arrays of at most 2^50 numbers",
                            c->batch, c->queries, c->keys, c->heads, c->dim, c->dim_value);
    char needs[RA_OPTION_TEXT], value[40];
    static const struct ra_config defaults = RA_CONFIG_INIT;
    const struct ra_option *option =
        ra_option_unmet(ra_options, RA_OPTIONS, c, &defaults, true, needs);
    if (option)
        return ra_error_set(error, "config.%s = %s: needs %s, as %s", option->field,
                            value_text(option, ra_option_load(option, c), 6, value), needs,
                            option->because);
    if (c->bucket != 0 && c->queries / c->bucket > MOST_STRIPES)
        return ra_error_set(error,
                            "config.bucket = %" PRId64 ": cuts %" PRId64 " rows into more than %d "
                            "stripes; give at least %" PRId64,
                            c->bucket, c->queries, MOST_STRIPES, c->queries / MOST_STRIPES + 1);
    return RA_OK;
}

/* Every field by itself: its value is in range, or left to the default. */
static enum ra_status check_fields(const struct ra_config *config, char *error)
{
    static const struct ra_config defaults = RA_CONFIG_INIT;
    for (const struct ra_option *option = ra_options; option < ra_options + RA_OPTIONS; option++) {
        char text[40], advice[RA_OPTION_TEXT];
        if (!option->field)
            continue;
        int64_t value = ra_option_load(option, config);
        if (ra_option_in_range(option, value) ||
            (option->unset && value == ra_option_load(option, &defaults)))
            continue;
        return ra_error_set(error, "config.%s = %s: give %s%s%s", option->field,
                            value_text(option, value, 6, text),
                            ra_option_advice(option, value, true, advice),
                            option->unset ? ", or " : "", option->unset ? option->unset : "");
    }
    return RA_OK;
}

enum ra_status ra_config_read(struct ra_config *config, const struct ra_config *given, char *error)
{
    enum ra_status status = ra_config_copy(config, given, error);
    if (status != RA_OK)
        return status;
    status = check_fields(config, error);
    if (status != RA_OK)
        return status;

    /* What was left open. Tiles are never larger than the whole, or memory would be. */
    if (config->keys == RA_SAME)
        config->keys = config->queries;
    if (config->key_heads == RA_SAME)
        config->key_heads = config->heads;
    config->dim_value = ra_config_dims(config).value;
    status = check_together(config, error);
    if (status != RA_OK)
        return status;
    if (config->scale == RA_DEFAULT_SCALE)
        config->scale = 1 / sqrt((double)config->dim);
    if (config->lookback >= RA_BAND_FAR) /* further than anything: the same as no limit */
        config->lookback = RA_NO_LOOKBACK;

    /* Blocks of so few rows have little for lanes to do. */
    if (config->bucket > 0 && config->bucket < 8)
        config->tile = RA_PLAIN_TILE;
    int64_t usual[] = {64, 64};
    if (config->tile == RA_VECTOR_TILE && !config->device) {
        usual[0] = ra_vector_queries(ra_config_dims(config));
        usual[1] = ra_vector_keys(ra_config_dims(config));
    }
    int64_t *tiles[] = {&config->tile_queries, &config->tile_keys};
    for (int side = 0; side < 2; side++) {
        int64_t whole = ra_max(side == 0 ? config->queries : config->keys, 1);
        *tiles[side] = ra_min(*tiles[side] > 0 ? *tiles[side] : usual[side], whole);
    }
    if (!fits(config->tile_queries, config->tile_keys, 1, 1))
        return ra_error_set(error,
                            "config.tile_queries = %" PRId64 " and tile_keys = %" PRId64
                            ": give a tile of at most 2^50 scores",
                            config->tile_queries, config->tile_keys);
    return RA_OK;
}

enum ra_status ra_config_read_method(struct ra_config *config, int sharing, char *error)
{
    int P = config->ring_size;
    const char *name = ra_option_methods[config->method].constant;
    if (config->method != RA_RING && config->method != RA_AUTO_METHOD && config->local_keys)
        return ra_error_set(error,
                            "config.method = %s: give RA_RING, as config.local_keys = true leaves "
                            "each rank with its own keys",
                            name);

    /* The most ranks that need no key head on two of them. */
    if (config->method == RA_HYBRID && config->group == 0)
        for (config->group = (int)ra_min(P, config->key_heads); P % config->group != 0;)
            config->group--;
    if (config->method == RA_HYBRID && P % config->group != 0)
        return ra_error_set(error, "config.group = %d: give a number that divides the %d ranks",
                            config->group, P);
    if (config->method == RA_HYBRID && config->heads < config->group)
        return ra_error_set(error,
                            "config.group = %d: give at most config.heads = %" PRId64
                            ", and a number that divides the %d ranks",
                            config->group, config->heads, P);
    if (config->method == RA_DOUBLE_RING && config->inner == 0)
        for (config->inner = (int)ra_min(P, ra_max(sharing, 1)); P % config->inner != 0;)
            config->inner--;
    if (config->method == RA_DOUBLE_RING && P % config->inner != 0)
        return ra_error_set(error, "config.inner = %d: give a number that divides the %d ranks",
                            config->inner, P);
    if (config->heads < ra_config_group(config))
        return ra_error_set(error,
                            "config.method = %s: %d ranks cannot share config.heads = %" PRId64
                            ": give RA_HYBRID with a group of at most as many",
                            name, ra_config_group(config), config->heads);
    return RA_OK;
}

void ra_config_values(const struct ra_config *config, int64_t values[RA_OPTIONS])
{
    for (int o = 0; o < RA_OPTIONS; o++)
        values[o] = ra_options[o].field ? ra_option_load(&ra_options[o], config) : 0;
}

enum ra_status ra_config_compare(const int64_t first[RA_OPTIONS], const int64_t other[RA_OPTIONS],
                                 int rank, char *error)
{
    char a[40], b[40];
    for (int o = 0; o < RA_OPTIONS; o++)
        if (first[o] != other[o]) {
            ra_error_set(error, "ranks disagree about config.%s: rank 0 has %s, rank %d has %s",
                         ra_options[o].field, value_text(&ra_options[o], first[o], 17, a), rank,
                         value_text(&ra_options[o], other[o], 17, b));
            return RA_DISAGREEMENT;
        }
    return RA_OK;
}
