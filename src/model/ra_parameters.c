/* ra_parameters: what a model is made of. See ra_parameters.h.
 *
 * Chapter 10.
 */
#include "ra_parameters.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "ra_random.h"

/* Weights begin at whole lines of the cache, of this many numbers. */
enum { LINE = 16 };

void ra_model_config_init(struct ra_model_config *config)
{
    *config = (struct ra_model_config){.vocabulary = 256,
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
                                       .feed_bias = true};
    for (int l = 0; l < RA_MOST_LAYERS; l++)
        config->lookback[l] = RA_NO_LOOKBACK;
}

enum ra_status ra_model_check(const struct ra_model_config *config, char error[RA_ERROR_SIZE])
{
    const struct {
        const char *name;
        int64_t value, most;
    } sizes[] = {{"vocabulary", config->vocabulary, INT32_MAX},
                 {"dim", config->dim, 1 << 20},
                 {"depth", config->depth, RA_MOST_LAYERS},
                 {"heads", config->heads, 1 << 20},
                 {"key_heads", config->key_heads, 1 << 20},
                 {"head_dim", config->head_dim, 1 << 20},
                 {"hidden", config->hidden, 1 << 24}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].most)
            return snprintf(error, RA_ERROR_SIZE, "%s is %" PRId64 ": give 1 to %" PRId64,
                            sizes[i].name, sizes[i].value, sizes[i].most),
                   RA_INVALID;
    const char *wrong = NULL;
    if (config->heads % config->key_heads != 0)
        wrong = "key_heads must divide heads";
    else if (config->heads * config->head_dim > 1 << 24)
        wrong = "heads times head_dim must be at most 16777216";
    else if (config->head_dim % 2 != 0)
        wrong = "head_dim must be even: rotary embedding rotates pairs of numbers";
    else if (!(config->rotary_theta > 0) || !isfinite(config->rotary_theta))
        wrong = "rotary_theta must be above 0";
    else if (!(config->rotary_scale > 0) || !isfinite(config->rotary_scale))
        wrong = "rotary_scale must be above 0";
    else if (!(config->softcap >= 0) || !isfinite(config->softcap))
        wrong = "softcap must be 0 (none) or above";
    else if (config->norm != RA_NORM_UNIT)
        wrong = "norm RMS and LAYER are not built yet";
    else if (config->feed != RA_FEED_GELU || !config->feed_bias)
        wrong = "feed SWIGLU, and GELU without biases, are not built yet";
    else if (config->position != RA_POSITIONS_ROTARY)
        wrong = "position LEARNED is not built yet";
    else if (config->rotary_scaling.kind != RA_ROTARY_PLAIN)
        wrong = "rotary_scaling LLAMA3 is not built yet";
    else if (config->qkv_bias || config->out_bias || config->logits_bias)
        wrong = "qkv_bias, out_bias and logits_bias are not built yet";
    else if (config->head_norm)
        wrong = "head_norm is not built yet";
    for (int64_t l = 0; l < config->depth && !wrong; l++)
        if (config->lookback[l] < 0)
            wrong = "a lookback must be 0 or above, or RA_NO_LOOKBACK";
        else if (config->lookback[l] != RA_NO_LOOKBACK && !config->causal)
            wrong = "lookback needs a causal model: it counts tokens back from each query";
    if (wrong)
        snprintf(error, RA_ERROR_SIZE, "%s", wrong);
    return wrong ? RA_INVALID : RA_OK;
}

/* ---- Names and shapes. */

enum { OF_A_LAYER = 8 };

int ra_parameter_count(const struct ra_model_config *config)
{
    return 1 + OF_A_LAYER * (int)config->depth + (config->tied ? 1 : 2);
}

/* The arrays of a layer, in order. */
static const char *const names[OF_A_LAYER] = {
    "0.to_qkv.0.gamma", "0.to_qkv.1.weight", "0.to_out.weight", "1.0.gamma",
    "1.1.weight",       "1.1.bias",          "1.3.weight",      "1.3.bias"};

/* The shape of number `index`, without name and place. */
static struct ra_parameter shape_of(const struct ra_model_config *c, int index)
{
    int64_t wide = (c->heads + 2 * c->key_heads) * c->head_dim, query = c->heads * c->head_dim;
    const int64_t of_layer[OF_A_LAYER][2] = {
        {c->dim, 0},         {wide, c->dim}, {c->dim, query},     {c->dim, 0},
        {c->hidden, c->dim}, {c->hidden, 0}, {c->dim, c->hidden}, {c->dim, 0}};
    int layer = (index - 1) / OF_A_LAYER, which = (index - 1) % OF_A_LAYER;
    struct ra_parameter x = {.rows = c->vocabulary, .columns = c->dim};
    if (index > 0 && layer < c->depth) {
        x.rows = of_layer[which][0];
        x.columns = of_layer[which][1];
    } else if (index > 0 && which == 0) {
        x.rows = c->dim;
        x.columns = 0;
    }
    x.count = x.rows * (x.columns > 0 ? x.columns : 1);
    return x;
}

/* The numbers up to where the next one begins. */
static int64_t lines_of(const struct ra_model_config *config, int index)
{
    return (shape_of(config, index).count + LINE - 1) / LINE * LINE;
}

/* Where number `index` begins. All layers are of one size. */
static int64_t first_of(const struct ra_model_config *config, int index)
{
    int64_t layer = index > 0 ? (index - 1) / OF_A_LAYER : 0, first = 0, size = 0;
    layer = layer < config->depth ? layer : config->depth;
    for (int i = 1; i <= OF_A_LAYER; i++)
        size += lines_of(config, i);
    for (int i = 0; i < index - OF_A_LAYER * (int)layer; i++)
        first += lines_of(config, i == 0 ? 0 : OF_A_LAYER * (int)layer + i);
    return first + layer * size;
}

struct ra_parameter ra_parameter(const struct ra_model_config *config, int index)
{
    struct ra_parameter x = shape_of(config, index);
    int layer = (index - 1) / OF_A_LAYER, which = (index - 1) % OF_A_LAYER;
    const char *outside = index == 0   ? "token_emb.weight"
                          : which == 0 ? "to_logits.0.gamma"
                                       : "to_logits.1.weight";
    if (index > 0 && layer < config->depth)
        snprintf(x.name, sizeof x.name, "layers.%d.%s", layer, names[which]);
    else
        snprintf(x.name, sizeof x.name, "%s", outside);
    x.first = first_of(config, index);
    return x;
}

int64_t ra_parameter_numbers(const struct ra_model_config *config)
{
    return first_of(config, ra_parameter_count(config));
}

struct ra_share ra_share(const struct ra_model_config *config, int rank, int ranks)
{
    int64_t lines = ra_parameter_numbers(config) / LINE;
    return (struct ra_share){lines * rank / ranks * LINE, lines * (rank + 1) / ranks * LINE};
}

struct ra_layer_weights ra_layer_weights(const struct ra_model_config *config, const float *all,
                                         int64_t layer)
{
    float *at[OF_A_LAYER];
    for (int i = 0; i < OF_A_LAYER; i++)
        at[i] = (float *)all + first_of(config, 1 + OF_A_LAYER * (int)layer + i);
    return (struct ra_layer_weights){at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7]};
}

struct ra_end_weights ra_end_weights(const struct ra_model_config *config, const float *all)
{
    float *start = (float *)all;
    int last = 1 + OF_A_LAYER * (int)config->depth;
    return (struct ra_end_weights){start, start + first_of(config, last),
                                   config->tied ? start : start + first_of(config, last + 1)};
}

enum ra_status ra_parameters_finite(const struct ra_model_config *config, const float *all,
                                    const char *where, char error[RA_ERROR_SIZE])
{
    for (int i = 0; i < ra_parameter_count(config); i++) {
        struct ra_parameter x = ra_parameter(config, i);
        for (int64_t e = 0; e < x.count; e++) {
            if (isfinite(all[x.first + e]))
                continue;
            char place[60];
            if (x.columns > 0)
                snprintf(place, sizeof place, "%" PRId64 ", %" PRId64, e / x.columns,
                         e % x.columns);
            else
                snprintf(place, sizeof place, "%" PRId64, e);
            snprintf(error, RA_ERROR_SIZE, "%.150s: %s[%s] is %g: every number must be finite",
                     where, x.name, place, all[x.first + e]);
            return RA_INVALID;
        }
    }
    return RA_OK;
}

/* ---- Where learning begins. */

/* Random bits that depend on two numbers alone. */
static uint64_t random_bits(uint64_t seed, uint64_t number)
{
    return ra_random_mix(seed + number * RA_RANDOM_STEP);
}

/* A normal number of deviation 1, from two numbers between 0 and 1 (Box and Muller). */
static double normal(uint64_t seed, uint64_t number)
{
    double a = ((double)(random_bits(seed, 2 * number) >> 11) + 1) * 0x1p-53;
    double b = (double)(random_bits(seed, 2 * number + 1) >> 11) * 0x1p-53;
    return sqrt(-2 * log(a)) * cos(6.283185307179586 * b);
}

void ra_parameters_begin(const struct ra_model_config *config, uint64_t seed, float *weights)
{
    memset(weights, 0, (size_t)ra_parameter_numbers(config) * sizeof *weights);
    for (int i = 0; i < ra_parameter_count(config); i++) {
        struct ra_parameter x = ra_parameter(config, i);
        int which = (i - 1) % OF_A_LAYER;
        bool gamma = strstr(x.name, "gamma") != NULL, bias = strstr(x.name, "bias") != NULL;
        bool adds = i > 0 && x.columns > 0 && (which == 2 || which == 6);
        double deviation = adds ? 0.02 / sqrt(2 * (double)config->depth) : 0.02;
        for (int64_t e = 0; e < x.count && !bias; e++)
            weights[x.first + e] =
                gamma ? 1 : (float)(deviation * normal(seed, (uint64_t)(x.first + e)));
    }
}
