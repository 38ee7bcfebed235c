/* ra_config_check: what a caller asks for, checked. See ra_config_check.h.
 *
 * Chapter 08. New here: one table of all fields, by which each is checked, named in errors, and
 * compared between ranks.
 */
#include "ra_config_check.h"
#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* More numbers than any array has, so that no product of sizes overflows. */
#define MOST ((int64_t)1 << 50)

/* A layout with more stripes is a mistake: work grows with the square of a rank's stripes. */
#define MOST_STRIPES 16384

enum kind { WHOLE, INT, FLAG, REAL };

static const struct field {
    const char *name;
    size_t offset;
    enum kind kind;
    int64_t least, most;
    const char *choices; /* of an enum, for error texts */
} table[RA_CONFIG_FIELDS] = {
#define AT(name) #name, offsetof(struct ra_config, name)
    {AT(queries), WHOLE, 0, MOST, NULL},
    {AT(keys), WHOLE, RA_SAME, MOST, NULL},
    {AT(heads), WHOLE, 1, MOST, NULL},
    {AT(key_heads), WHOLE, RA_SAME, MOST, NULL},
    {AT(dim), WHOLE, 1, MOST, NULL},
    {AT(type), INT, RA_FLOAT32, RA_BFLOAT16, "RA_FLOAT32, RA_FLOAT16 or RA_BFLOAT16"},
    {AT(has_mask), FLAG, 0, 1, NULL},
    {AT(forward_only), FLAG, 0, 1, NULL},
    {AT(causal), FLAG, 0, 1, NULL},
    {AT(local_keys), FLAG, 0, 1, NULL},
    {AT(lookback), WHOLE, 0, INT64_MAX, NULL},
    {AT(head_map), INT, RA_GROUPED, RA_INTERLEAVED, "RA_GROUPED or RA_INTERLEAVED"},
    {AT(scale), REAL, 0, 0, NULL},
    {AT(softcap), REAL, 0, 0, NULL},
    {AT(layout), INT, RA_CONTIGUOUS, RA_ZIGZAG, "RA_CONTIGUOUS, RA_STRIPED or RA_ZIGZAG"},
    {AT(bucket), WHOLE, 0, MOST, NULL},
    {AT(ring_size), INT, 0, INT_MAX, NULL},
    {AT(tile_queries), WHOLE, 0, MOST, NULL},
    {AT(tile_keys), WHOLE, 0, MOST, NULL},
    {AT(timeout), REAL, 0, 0, NULL},
    {AT(transport), INT, RA_ANY_TRANSPORT, RA_HOST_LINK,
     "RA_ANY_TRANSPORT, RA_PEER_COPIES, RA_DEVICE_LINK or RA_HOST_LINK"},
    {AT(deterministic), FLAG, 0, 1, NULL},
    {AT(batch), WHOLE, 0, MOST, NULL},
#undef AT
};

enum ra_status ra_refuse(char *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, RA_ERROR_SIZE, format, arguments);
    va_end(arguments);
    return RA_INVALID;
}

/* The value of a field; of a real one its bits. A flag is read as a byte, since a bool that holds
 * neither 0 nor 1 may not be read at all. */
static int64_t value_of(const struct ra_config *config, const struct field *field)
{
    const char *at = (const char *)config + field->offset;
    int64_t whole;
    int narrow;
    switch (field->kind) {
    case INT:
        memcpy(&narrow, at, sizeof narrow);
        return narrow;
    case FLAG:
        return *(const unsigned char *)at;
    default:
        memcpy(&whole, at, sizeof whole);
        return whole;
    }
}

/* Copies the config whatever size it has: an older header's lacks fields, which get their defaults;
 * of a newer one's those that this library does not know must be 0. */
static enum ra_status copy(struct ra_config *config, const struct ra_config *given, char *error)
{
    *config = (struct ra_config)RA_CONFIG_INIT;
    size_t first = offsetof(struct ra_config, batch) + sizeof config->batch, size = given->size;
    if (size < first || size > 16 * sizeof *config)
        return ra_refuse(error,
                         "config.size = %zu: begin with RA_CONFIG_INIT, which sets it to %zu", size,
                         sizeof *config);
    for (size_t byte = sizeof *config; byte < size; byte++)
        if (((const char *)given)[byte] != 0)
            return ra_refuse(error, "config has a field that this version, " RA_VERSION
                                    ", does not know: link a newer library");
    memcpy(config, given, size < sizeof *config ? size : sizeof *config);
    config->size = sizeof *config;
    return RA_OK;
}

/* Is the product of these at most MOST? All are at least 0. */
static bool fits(int64_t a, int64_t b, int64_t c, int64_t d)
{
    double product = (double)a * (double)b * (double)c * (double)d;
    return product <= (double)MOST;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* What no field says alone. */
static enum ra_status check_together(const struct ra_config *c, char *error)
{
    if (c->key_heads < 1 || c->heads % c->key_heads != 0)
        return ra_refuse(
            error, "config.key_heads = %" PRId64 ": give a number that divides heads = %" PRId64,
            c->key_heads, c->heads);
    if (!fits(larger(c->batch, 1), larger(larger(c->queries, c->keys), 1), c->heads, c->dim))
        return ra_refuse(error,
                         "config: batch %" PRId64 ", queries %" PRId64 ", keys %" PRId64
                         ", heads %" PRId64 ", dim %" PRId64
                         ": give arrays of at most 2^50 numbers",
                         c->batch, c->queries, c->keys, c->heads, c->dim);
    if (c->lookback != RA_NO_LOOKBACK && !c->causal)
        return ra_refuse(error,
                         "config.lookback = %" PRId64 ": needs causal = true, as it counts tokens "
                         "back from each query",
                         c->lookback);
    if (c->bucket != 0 && c->layout != RA_STRIPED)
        return ra_refuse(error,
                         "config.bucket = %" PRId64 ": needs layout = RA_STRIPED, as it is the "
                         "length of a stripe",
                         c->bucket);
    if (c->bucket != 0 && c->queries / c->bucket > MOST_STRIPES)
        return ra_refuse(error,
                         "config.bucket = %" PRId64 ": cuts %" PRId64 " rows into more than %d "
                         "stripes; give at least %" PRId64,
                         c->bucket, c->queries, MOST_STRIPES, c->queries / MOST_STRIPES + 1);
    return RA_OK;
}

/* The real numbers. Inside, scores are float32. */
static enum ra_status check_reals(const struct ra_config *c, char *error)
{
    if (c->scale != RA_DEFAULT_SCALE && !(fabs(c->scale) <= FLT_MAX))
        return ra_refuse(error, "config.scale = %g: give a finite float32, or RA_DEFAULT_SCALE",
                         c->scale);
    if (!(c->softcap >= 0 && c->softcap <= FLT_MAX) ||
        (c->softcap > 0 && c->softcap < (double)FLT_MIN))
        return ra_refuse(error, "config.softcap = %g: give a float32 above 0, or 0 for none",
                         c->softcap);
    if (!(c->timeout >= 0))
        return ra_refuse(error, "config.timeout = %g: give seconds, or 0 to wait for ever",
                         c->timeout);
    return RA_OK;
}

enum ra_status ra_config_read(struct ra_config *config, const struct ra_config *given, char *error)
{
    if (!given)
        return ra_refuse(error, "config is NULL");
    enum ra_status status = copy(config, given, error);
    if (status != RA_OK)
        return status;
    for (const struct field *field = table; field < table + RA_CONFIG_FIELDS; field++) {
        int64_t value = value_of(config, field);
        if (field->kind == REAL || (value >= field->least && value <= field->most))
            continue;
        if (field->choices)
            return ra_refuse(error, "config.%s = %" PRId64 ": give %s", field->name, value,
                             field->choices);
        if (field->most < INT_MAX)
            return ra_refuse(error, "config.%s = %" PRId64 ": give %" PRId64 " to %" PRId64,
                             field->name, value, field->least, field->most);
        return ra_refuse(error, "config.%s = %" PRId64 ": give at %s %" PRId64, field->name, value,
                         value < field->least ? "least" : "most",
                         value < field->least ? field->least : field->most);
    }

    /* What was left open. Tiles are never larger than the whole, or memory would be. */
    if (config->keys == RA_SAME)
        config->keys = config->queries;
    if (config->key_heads == RA_SAME)
        config->key_heads = config->heads;
    status = check_together(config, error);
    if (status == RA_OK)
        status = check_reals(config, error);
    if (status != RA_OK)
        return status;
    if (config->scale == RA_DEFAULT_SCALE)
        config->scale = 1 / sqrt((double)config->dim);
    if (config->lookback > RA_BAND_FAR)
        config->lookback = RA_BAND_FAR;
    int64_t *tiles[] = {&config->tile_queries, &config->tile_keys};
    for (int side = 0; side < 2; side++) {
        int64_t whole = larger(side == 0 ? config->queries : config->keys, 1);
        *tiles[side] = smaller(*tiles[side] > 0 ? *tiles[side] : 64, whole);
    }
    if (!fits(config->tile_queries, config->tile_keys, 1, 1))
        return ra_refuse(error,
                         "config.tile_queries = %" PRId64 " and tile_keys = %" PRId64
                         ": give a tile of at most 2^50 scores",
                         config->tile_queries, config->tile_keys);
    return RA_OK;
}

void ra_config_values(const struct ra_config *config, int64_t values[RA_CONFIG_FIELDS])
{
    for (int f = 0; f < RA_CONFIG_FIELDS; f++)
        values[f] = value_of(config, &table[f]);
}

/* The value of a field as text. */
static const char *value_text(const struct field *field, int64_t value, char text[40])
{
    double real;
    memcpy(&real, &value, sizeof real);
    if (field->kind == REAL)
        snprintf(text, 40, "%.17g", real);
    else
        snprintf(text, 40, "%" PRId64, value);
    return text;
}

enum ra_status ra_config_compare(const int64_t first[RA_CONFIG_FIELDS],
                                 const int64_t other[RA_CONFIG_FIELDS], int rank, char *error)
{
    char a[40], b[40];
    for (int f = 0; f < RA_CONFIG_FIELDS; f++)
        if (first[f] != other[f]) {
            ra_refuse(error, "ranks disagree about config.%s: rank 0 has %s, rank %d has %s",
                      table[f].name, value_text(&table[f], first[f], a), rank,
                      value_text(&table[f], other[f], b));
            return RA_DISAGREEMENT;
        }
    return RA_OK;
}
