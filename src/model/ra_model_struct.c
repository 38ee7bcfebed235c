/* ra_model_struct: configs of models from and for callers: see ra_model_struct.h; and the defaults
 * of one, which ra_parameters.h declares.
 *
 * Chapter 10.
 */
#include "ra_model_struct.h"
#include <stddef.h>
#include <string.h>
#include "ra_struct.h"

/* Bytes of a config that any header has. */
#define LEAST (offsetof(struct ra_model_config, lookback) + sizeof(int64_t[RA_MOST_LAYERS]))
RA_STRUCT_ENDS(struct ra_model_config, reserved_sinks);

void ra_model_config_init(struct ra_model_config *config, size_t size)
{
    struct ra_model_config own = {.vocabulary = 256,
                                  .dim = 256,
                                  .depth = 4,
                                  .heads = 4,
                                  .key_heads = 4,
                                  .head_dim = 64,
                                  .hidden = 1024,
                                  .causal = true,
                                  .rotary_theta = 10000,
                                  .rotary_scale = 1,
                                  .norm_eps = 1e-6,
                                  .position_scale = 1,
                                  .embedding_scale = 1,
                                  .feed_bias = true};
    for (int l = 0; l < RA_MOST_LAYERS; l++)
        own.lookback[l] = RA_NO_LOOKBACK;
    ra_struct_give(config, size, &own, sizeof own);
}

enum ra_status ra_model_config_take(struct ra_model_config *config,
                                    const struct ra_model_config *given, char *error)
{
    ra_model_config_init(config, sizeof *config);
    return ra_struct_take("config", "ra_model_config_init", config, sizeof *config, LEAST, given,
                          error);
}

const struct ra_model_config *ra_model_config_view(const struct ra_model_config *given,
                                                   struct ra_model_config *room, char *error)
{
    if (given && given->size == sizeof *given)
        return given;
    return ra_model_config_take(room, given, error) == RA_OK ? room : NULL;
}

enum ra_status ra_model_config_give(struct ra_model_config *given, size_t size,
                                    const struct ra_model_config *config, char *error)
{
    struct ra_model_config usual;
    /* Those that the first headers did not have. */
    const struct {
        const char *name;
        size_t first, size;
    } fields[] = {
#define AT(name) offsetof(struct ra_model_config, name), sizeof usual.name
        {"attention_scale", AT(attention_scale)},
        {"logits_softcap", AT(logits_softcap)},
        {"embedding_scale", AT(embedding_scale)},
        {"post_norm", AT(post_norm)},
        {"sinks", AT(sinks)},
#undef AT
    };
    ra_model_config_init(&usual, sizeof usual);
    if (size < LEAST)
        return ra_error_set(error, "size = %zu: give sizeof *config", size);
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++)
        if (fields[f].first + fields[f].size > size &&
            memcmp((const char *)config + fields[f].first, (const char *)&usual + fields[f].first,
                   fields[f].size) != 0)
            return ra_error_set(error,
                                "the model has %s, for which the caller's struct ra_model_config, "
                                "of %zu bytes, has no field: compile with a newer header",
                                fields[f].name, size);
    ra_struct_give(given, size, config, sizeof *config);
    return RA_OK;
}
