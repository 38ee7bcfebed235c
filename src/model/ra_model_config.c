/* ra_model_config: config.json. See ra_model_config.h.
 *
 * Chapter 10.
 */
#include "ra_model_config.h"
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_config_check.h"

/* ---- config.json, an object of names and values. */

static void skip_blanks(const char **at)
{
    while (isspace((unsigned char)**at))
        ++*at;
}

/* Steps over this character, and blanks before it. */
static bool step(const char **at, char character)
{
    skip_blanks(at);
    if (**at != character)
        return false;
    ++*at;
    return true;
}

/* A value is a word in quotation marks, or runs up to a comma or bracket. Copies as much as fits, with the
 * backslashes that stand before quotation marks. */
static bool read_word(const char **at, char word[64])
{
    bool quoted = step(at, '"');
    const char *ends = quoted ? "\"" : ",]} \t\r\n";
    size_t length = 0;
    while ((*at)[length] && !strchr(ends, (*at)[length]))
        length += quoted && (*at)[length] == '\\' && (*at)[length + 1] ? 2 : 1;
    size_t kept = length < 63 ? length : 63;
    memcpy(word, *at, kept);
    word[kept] = '\0';
    *at += length;
    return quoted ? step(at, '"') : length > 0;
}

/* What a key of config.json is to the model: a number or a flag. */
struct key {
    const char *name;
    int64_t *whole;
    double *real;
    bool *flag;
};

/* Takes a value. False: it is none of its kind. */
static bool take(const struct key *key, const char *word)
{
    char *end = "";
    if (key->whole)
        *key->whole = strtoll(word, &end, 10);
    if (key->real)
        *key->real = strtod(word, &end);
    if (key->flag) {
        *key->flag = strcmp(word, "true") == 0;
        return *key->flag || strcmp(word, "false") == 0;
    }
    return *word && !*end;
}

/* Reads a list of whole numbers, in which null is no limit, or one for all layers. Sets how many stand there,
 * 0 of one for all. */
static bool read_lookback(const char **at, struct ra_model_config *config, int64_t *count)
{
    bool list = step(at, '[');
    for (int64_t l = 0; l < RA_MOST_LAYERS; l++) {
        char word[64], *end = "";
        if (!read_word(at, word))
            return false;
        bool none = strcmp(word, "null") == 0;
        config->lookback[l] = none ? RA_NO_LOOKBACK : strtoll(word, &end, 10);
        if (*end)
            return false;
        if (!list)
            for (int64_t other = 0; other < RA_MOST_LAYERS; other++)
                config->lookback[other] = config->lookback[l];
        *count = list ? l + 1 : 0;
        if (!list || step(at, ']'))
            return true;
        if (!step(at, ','))
            return false;
    }
    return false;
}

/* Steps over a value that means nothing here. */
static bool skip_value(const char **at)
{
    char word[64];
    skip_blanks(at);
    if (**at != '[' && **at != '{')
        return read_word(at, word);
    int depth = 0;
    do {
        bool quoted = **at == '"'; /* brackets in quotation marks are none */
        if (!**at || (quoted && !read_word(at, word)))
            return false;
        if (!quoted) {
            depth += (**at == '[' || **at == '{') - (**at == ']' || **at == '}');
            ++*at;
        }
    } while (depth > 0);
    return true;
}

enum ra_status ra_model_config_read(const char *name, const char *text,
                                    struct ra_model_config *config, char error[RA_ERROR_SIZE])
{
    ra_model_config_init(config);
    int64_t sharing = 1, limits = 0, ignored = -1;
    double multiple = 4;
    config->vocabulary = config->dim = config->depth = config->heads = config->head_dim = -1;
    const struct key keys[] = {{"num_tokens", .whole = &config->vocabulary},
                               {"dim", .whole = &config->dim},
                               {"depth", .whole = &config->depth},
                               {"heads", .whole = &config->heads},
                               {"dim_head", .whole = &config->head_dim},
                               {"num_grouped_query_heads", .whole = &sharing},
                               {"ignore_index", .whole = &ignored},
                               {"causal", .flag = &config->causal},
                               {"tied", .flag = &config->tied},
                               {"softcap", .real = &config->softcap},
                               {"rotary_theta", .real = &config->rotary_theta},
                               {"rotary_scale", .real = &config->rotary_scale},
                               {"ff_mult", .real = &multiple}};
    enum { KEYS = sizeof keys / sizeof *keys };
    const char *at = text;
    char word[64], value[64];
    bool good = step(&at, '{');
    while (good && !step(&at, '}')) {
        const struct key *key = keys;
        good = read_word(&at, word) && step(&at, ':');
        while (key < keys + KEYS && strcmp(key->name, word) != 0)
            key++;
        if (good && strcmp(word, "lookback") == 0)
            good = read_lookback(&at, config, &limits);
        else if (good && strcmp(word, "head_map") == 0) {
            good = read_word(&at, value);
            config->head_map = strcmp(value, "interleaved") == 0 ? RA_INTERLEAVED : RA_GROUPED;
            good = good && (config->head_map == RA_INTERLEAVED || strcmp(value, "grouped") == 0);
        } else if (good)
            good = key < keys + KEYS ? read_word(&at, value) && take(key, value) : skip_value(&at);
        if (!good)
            return ra_refuse(error, "%s: the value of \"%s\" is wrong", name, word);
        skip_blanks(&at);
        good = step(&at, ',') || *at == '}';
    }
    if (!good)
        return ra_refuse(error, "%s: is not a JSON object of names and values", name);
    for (int k = 0; k < 5; k++)
        if (*keys[k].whole == -1)
            return ra_refuse(error, "%s: has no \"%s\"", name, keys[k].name);
    if (ignored >= 0)
        return ra_refuse(
            error, "%s: ignore_index is %" PRId64 ": labels that do not count are negative here",
            name, ignored);
    if (sharing < 1 || config->heads % sharing != 0)
        return ra_refuse(error,
                         "%s: num_grouped_query_heads, %" PRId64 ", must divide heads, %" PRId64,
                         name, sharing, config->heads);
    if (limits > 0 && limits != config->depth)
        return ra_refuse(error,
                         "%s: lookback has %" PRId64 " entries; give one for each of %" PRId64
                         " layers, or one for all without brackets",
                         name, limits, config->depth);
    config->key_heads = config->heads / sharing;
    config->hidden = llround(multiple * (double)config->dim);
    char reason[RA_ERROR_SIZE];
    if (ra_model_check(config, reason) != RA_OK)
        return ra_refuse(error, "%.200s: %.100s", name, reason);
    return RA_OK;
}

int ra_model_config_write(const struct ra_model_config *c, char *text, size_t size)
{
    int used =
        snprintf(text, size,
                 "{\"num_tokens\": %" PRId64 ", \"dim\": %" PRId64 ", \"depth\": %" PRId64
                 ", \"heads\": %" PRId64 ", \"num_grouped_query_heads\": %" PRId64
                 ", \"dim_head\": %" PRId64 ",\n \"ff_mult\": %.17g, \"causal\": %s, \"tied\": %s, "
                 "\"head_map\": \"%s\", \"softcap\": %.17g"
                 ",\n \"rotary_theta\": %.17g, \"rotary_scale\": %.17g, \"lookback\": [",
                 c->vocabulary, c->dim, c->depth, c->heads, c->heads / c->key_heads, c->head_dim,
                 (double)c->hidden / (double)c->dim, c->causal ? "true" : "false",
                 c->tied ? "true" : "false", c->head_map == RA_GROUPED ? "grouped" : "interleaved",
                 c->softcap, c->rotary_theta, c->rotary_scale);
    for (int64_t l = 0; l < c->depth; l++) {
        char number[32];
        snprintf(number, sizeof number, "%" PRId64, c->lookback[l]);
        size_t left = size > (size_t)used ? size - (size_t)used : 0;
        used += snprintf(left ? text + used : NULL, left, "%s%s", l > 0 ? ", " : "",
                         c->lookback[l] == RA_NO_LOOKBACK ? "null" : number);
    }
    size_t left = size > (size_t)used ? size - (size_t)used : 0;
    return used + snprintf(left ? text + used : NULL, left, "]}\n");
}
