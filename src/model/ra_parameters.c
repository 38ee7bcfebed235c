/* ra_parameters: what a model is made of. See ra_parameters.h.
 *
 * Chapter 10.
 */
#include "ra_parameters.h"
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "ra_math.h"
#include "ra_model_struct.h"
#include "ra_random.h"
#include "ra_struct.h"

/* What is wrong with the scaling of frequencies, or NULL. */
static const char *wrong_scaling(const struct ra_rotary_scaling *scaling, double theta)
{
    if (scaling->kind < RA_ROTARY_PLAIN || scaling->kind > RA_ROTARY_YARN_UNTRUNCATED)
        return "rotary_scaling: its kind is none";
    if (scaling->kind == RA_ROTARY_PLAIN)
        return NULL;
    if (scaling->kind != RA_ROTARY_LLAMA3 && !(theta > 1))
        return "rotary_scaling: YaRN needs a rotary_theta above 1";
    if (!(scaling->factor > 0) || !isfinite(scaling->factor))
        return "rotary_scaling: factor must be above 0";
    if (!(scaling->low > 0) || !(scaling->high > scaling->low) || !isfinite(scaling->high))
        return "rotary_scaling: low must be above 0, and high above low";
    return scaling->original < 1 ? "rotary_scaling: original must be 1 or more positions" : NULL;
}

static bool is_normal(double x)
{
    return x >= (double)FLT_MIN && x <= (double)FLT_MAX;
}

/* What is wrong with a config whose sizes and choices are in range, or NULL. */
static const char *wrong_config(const struct ra_model_config *config)
{
    const char *wrong = NULL;
    if (config->heads % config->key_heads != 0)
        wrong = "key_heads must divide heads";
    else if (config->heads * config->head_dim > 1 << 24)
        wrong = "heads times head_dim must be at most 16777216";
    else if (config->head_dim % 2 != 0 && config->position == RA_POSITIONS_ROTARY)
        wrong = "head_dim must be even: rotary embedding rotates pairs of numbers";
    else if (!(config->rotary_theta > 0) || !isfinite(config->rotary_theta))
        wrong = "rotary_theta must be above 0";
    else if (!(config->rotary_scale > 0) || !isfinite(config->rotary_scale))
        wrong = "rotary_scale must be above 0";
    else if (config->softcap != 0 && !is_normal(config->softcap))
        wrong = "softcap must be 0 (none) or a normal number of float32 above 0";
    else if (config->logits_softcap != 0 && !is_normal(config->logits_softcap))
        wrong = "logits_softcap must be 0 (none) or a normal number of float32 above 0";
    else if (config->attention_scale != 0 && !is_normal(config->attention_scale))
        wrong = "attention_scale must be 0 (1 / sqrt(head_dim)) or a normal number of float32 "
                "above 0";
    else if (!(fabs(config->embedding_scale) <= (double)FLT_MAX))
        wrong = "embedding_scale must be a number of float32";
    else if (config->position == RA_POSITIONS_LEARNED &&
             !(fabs(config->position_scale) <= (double)FLT_MAX))
        wrong = "position_scale must be a number of float32";
    else if ((config->norm != RA_NORM_UNIT || config->head_norm) &&
             (!(config->norm_eps > 0) || !isfinite(config->norm_eps)))
        wrong = "norm_eps must be above 0";
    else
        wrong = wrong_scaling(&config->rotary_scaling, config->rotary_theta);
    for (int64_t l = 0; l < config->depth && !wrong; l++)
        if (config->lookback[l] < 0)
            wrong = "a lookback must be 0 or above, or RA_NO_LOOKBACK";
        else if (config->lookback[l] != RA_NO_LOOKBACK && !config->causal)
            wrong = "lookback needs a causal model: it counts tokens back from each query";
    return wrong;
}

enum ra_status ra_model_check(const struct ra_model_config *given, char error[RA_ERROR_SIZE])
{
    struct ra_model_config own, *config = &own;
    if (ra_model_config_take(config, given, error) != RA_OK)
        return RA_INVALID;
    bool table = config->position == RA_POSITIONS_LEARNED;
    const struct {
        const char *name;
        int64_t value, most;
    } sizes[] = {{"vocabulary", config->vocabulary, INT32_MAX},
                 {"dim", config->dim, 1 << 20},
                 {"depth", config->depth, RA_MOST_LAYERS},
                 {"heads", config->heads, 1 << 20},
                 {"key_heads", config->key_heads, 1 << 20},
                 {"head_dim", config->head_dim, 1 << 20},
                 {"hidden", config->hidden, 1 << 24},
                 {"longest", table ? config->longest : 1, INT32_MAX}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].most)
            return snprintf(error, RA_ERROR_SIZE, "%s is %" PRId64 ": give 1 to %" PRId64,
                            sizes[i].name, sizes[i].value, sizes[i].most),
                   RA_INVALID;
    const struct {
        const char *name;
        int value, most;
    } choices[] = {{"head_map", (int)config->head_map, RA_INTERLEAVED},
                   {"norm", (int)config->norm, RA_NORM_RMS_PLUS_ONE},
                   {"feed", (int)config->feed, RA_FEED_GEGLU},
                   {"position", (int)config->position, RA_POSITIONS_LEARNED},
                   {"family", (int)config->family, RA_FAMILY_GEMMA2}};
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        if (choices[i].value < 0 || choices[i].value > choices[i].most)
            return ra_error_set(error, "%s is %d: give a value of its enum", choices[i].name,
                                choices[i].value);
    const char *wrong = wrong_config(config);
    if (wrong)
        snprintf(error, RA_ERROR_SIZE, "%s", wrong);
    return wrong ? RA_INVALID : RA_OK;
}

/* ---- Names and shapes. */

int64_t ra_qkv_width(const struct ra_model_config *given)
{
    struct ra_model_config room;
    const struct ra_model_config *config = ra_model_config_view(given, &room, NULL);
    return config ? (config->heads + 2 * config->key_heads) * config->head_dim : 0;
}

int64_t ra_feed_width(const struct ra_model_config *given)
{
    struct ra_model_config room;
    const struct ra_model_config *config = ra_model_config_view(given, &room, NULL);
    return !config ? 0 : config->feed == RA_FEED_GELU ? config->hidden : 2 * config->hidden;
}

/* An array that a model has if `exists`. */
struct array {
    const char *name;
    bool exists;
    int64_t rows, columns;
};

enum { OF_A_LAYER = 19, AT_AN_END = 4 };

/* The arrays of a layer, in order. */
static void arrays_of_layer(const struct ra_model_config *c, struct array list[OF_A_LAYER])
{
    int64_t dim = c->dim, query = c->heads * c->head_dim;
    int64_t qkv = ra_qkv_width(c), up = ra_feed_width(c);
    bool layer_norm = c->norm == RA_NORM_LAYER;
    const struct array arrays[OF_A_LAYER] = {
        {"0.to_qkv.0.gamma", true, dim, 0},
        {"0.to_qkv.0.bias", layer_norm, dim, 0},
        {"0.to_qkv.1.weight", true, qkv, dim},
        {"0.to_qkv.1.bias", c->qkv_bias, qkv, 0},
        {"0.q_norm.gamma", c->head_norm, c->head_dim, 0},
        {"0.k_norm.gamma", c->head_norm, c->head_dim, 0},
        {"0.sinks", c->sinks, c->heads, 0},
        {"0.to_out.weight", true, dim, query},
        {"0.to_out.bias", c->out_bias, dim, 0},
        {"0.post_norm.gamma", c->post_norm, dim, 0},
        {"0.post_norm.bias", c->post_norm && layer_norm, dim, 0},
        {"1.0.gamma", true, dim, 0},
        {"1.0.bias", layer_norm, dim, 0},
        {"1.1.weight", true, up, dim},
        {"1.1.bias", c->feed_bias, up, 0},
        {"1.3.weight", true, dim, c->hidden},
        {"1.3.bias", c->feed_bias, dim, 0},
        {"1.post_norm.gamma", c->post_norm, dim, 0},
        {"1.post_norm.bias", c->post_norm && layer_norm, dim, 0},
    };
    memcpy(list, arrays, sizeof arrays);
}

/* Those before all layers, and those behind them. */
static void arrays_of_end(const struct ra_model_config *c, bool last, struct array list[AT_AN_END])
{
    const struct array first_arrays[AT_AN_END] = {
        {"token_emb.weight", true, c->vocabulary, c->dim},
        {"pos_emb.weight", c->position == RA_POSITIONS_LEARNED, c->longest, c->dim},
    };
    const struct array last_arrays[AT_AN_END] = {
        {"to_logits.0.gamma", true, c->dim, 0},
        {"to_logits.0.bias", c->norm == RA_NORM_LAYER, c->dim, 0},
        {"to_logits.1.weight", !c->tied, c->vocabulary, c->dim},
        {"to_logits.1.bias", c->logits_bias, c->vocabulary, 0},
    };
    memcpy(list, last ? last_arrays : first_arrays, sizeof first_arrays);
}

/* How many numbers it has, and how many up to where the next one begins. */
static int64_t numbers_of(const struct array *array)
{
    return array->rows * (array->columns > 0 ? array->columns : 1);
}

static int64_t lines_of(const struct array *array)
{
    return array->exists ? ra_round_up(numbers_of(array), RA_SHARE_LINE) : 0;
}

/* How many of them there are, and how many numbers that is. */
static int count_arrays(const struct array *list, int most, int64_t *numbers)
{
    int count = 0;
    *numbers = 0;
    for (int i = 0; i < most; i++) {
        count += list[i].exists;
        *numbers += lines_of(&list[i]);
    }
    return count;
}

/* The arrays of a whole model: those of one layer come `depth` times. */
struct arrays {
    struct array first[AT_AN_END], layer[OF_A_LAYER], last[AT_AN_END];
    int first_count, layer_count, last_count;
    int64_t first_numbers, layer_numbers, last_numbers;
};

/* None, if the caller's config has not begun as it must; `*depth` is that of the model. */
static struct arrays arrays_of(const struct ra_model_config *given, int64_t *depth)
{
    struct arrays arrays = {.first_count = 0};
    struct ra_model_config room;
    const struct ra_model_config *config = ra_model_config_view(given, &room, NULL);
    *depth = config ? config->depth : 0;
    if (!config)
        return arrays;
    arrays_of_end(config, false, arrays.first);
    arrays_of_layer(config, arrays.layer);
    arrays_of_end(config, true, arrays.last);
    arrays.first_count = count_arrays(arrays.first, AT_AN_END, &arrays.first_numbers);
    arrays.layer_count = count_arrays(arrays.layer, OF_A_LAYER, &arrays.layer_numbers);
    arrays.last_count = count_arrays(arrays.last, AT_AN_END, &arrays.last_numbers);
    return arrays;
}

int ra_parameter_count(const struct ra_model_config *config)
{
    int64_t depth;
    struct arrays arrays = arrays_of(config, &depth);
    return arrays.first_count + arrays.layer_count * (int)depth + arrays.last_count;
}

int64_t ra_parameter_numbers(const struct ra_model_config *config)
{
    int64_t depth;
    struct arrays arrays = arrays_of(config, &depth);
    return arrays.first_numbers + arrays.layer_numbers * depth + arrays.last_numbers;
}

struct ra_parameter ra_parameter(const struct ra_model_config *config, int index)
{
    int64_t depth;
    struct arrays all = arrays_of(config, &depth);
    struct ra_parameter parameter = {.first = 0};
    const struct array *list = all.first;
    int in_layers = all.layer_count * (int)depth, layer = 0;
    if (index < 0 || index >= all.first_count + in_layers + all.last_count)
        return parameter;
    bool in_layer = index >= all.first_count && index < all.first_count + in_layers;
    if (in_layer) {
        list = all.layer;
        layer = (index - all.first_count) / all.layer_count;
        index = (index - all.first_count) % all.layer_count;
        parameter.first = all.first_numbers + all.layer_numbers * layer;
    } else if (index >= all.first_count) {
        list = all.last;
        index -= all.first_count + in_layers;
        parameter.first = all.first_numbers + all.layer_numbers * depth;
    }
    for (; index > 0 || !list->exists; list++) {
        index -= list->exists;
        parameter.first += lines_of(list);
    }
    if (in_layer)
        snprintf(parameter.name, sizeof parameter.name, "layers.%d.%s", layer, list->name);
    else
        snprintf(parameter.name, sizeof parameter.name, "%s", list->name);
    parameter.rows = list->rows;
    parameter.columns = list->columns;
    parameter.count = numbers_of(list);
    return parameter;
}

struct ra_share ra_share(const struct ra_model_config *config, int rank, int ranks)
{
    int64_t lines = ra_parameter_numbers(config) / RA_SHARE_LINE;
    return (struct ra_share){lines * rank / ranks * RA_SHARE_LINE,
                             lines * (rank + 1) / ranks * RA_SHARE_LINE};
}

/* Where each array begins; NULL: the model has none. */
static void places_of(const struct array *list, int count, float *start, float **places)
{
    for (int i = 0; i < count; i++) {
        places[i] = list[i].exists ? start : NULL;
        start += lines_of(&list[i]);
    }
}

struct ra_layer_weights ra_places_of_layer(const struct ra_model_config *config, const float *all,
                                           int64_t layer)
{
    int64_t depth;
    struct arrays arrays = arrays_of(config, &depth);
    float *at[OF_A_LAYER];
    places_of(arrays.layer, OF_A_LAYER,
              (float *)all + arrays.first_numbers + arrays.layer_numbers * layer, at);
    return (struct ra_layer_weights){.size = sizeof(struct ra_layer_weights),
                                     .attention = {.size = sizeof(struct ra_attention_weights),
                                                   .gamma = at[0],
                                                   .bias = at[1],
                                                   .qkv = at[2],
                                                   .qkv_bias = at[3],
                                                   .q_gamma = at[4],
                                                   .k_gamma = at[5],
                                                   .out = at[7],
                                                   .out_bias = at[8],
                                                   .sinks = at[6]},
                                     .attended_gamma = at[9],
                                     .attended_bias = at[10],
                                     .feed_gamma = at[11],
                                     .feed_bias = at[12],
                                     .up = at[13],
                                     .up_bias = at[14],
                                     .down = at[15],
                                     .down_bias = at[16],
                                     .fed_gamma = at[17],
                                     .fed_bias = at[18]};
}

struct ra_end_weights ra_places_of_ends(const struct ra_model_config *config, const float *all)
{
    int64_t depth;
    struct arrays arrays = arrays_of(config, &depth);
    float *first[AT_AN_END], *last[AT_AN_END], *start = (float *)all;
    places_of(arrays.first, AT_AN_END, start, first);
    places_of(arrays.last, AT_AN_END, start + arrays.first_numbers + arrays.layer_numbers * depth,
              last);
    return (struct ra_end_weights){
        .size = sizeof(struct ra_end_weights),
        .embedding = first[0],
        .positions = first[1],
        .gamma = last[0],
        .bias = last[1],
        .logits = last[2] ? last[2] : first[0],
        .logits_bias = last[3],
    };
}

RA_STRUCT_ENDS(struct ra_layer_weights, fed_bias);
RA_STRUCT_ENDS(struct ra_end_weights, logits_bias);

enum ra_status ra_model_layer_weights(const struct ra_model_config *given, const float *all,
                                      int64_t layer, struct ra_layer_weights *weights,
                                      char error[RA_ERROR_SIZE])
{
    static const char init[] = "RA_LAYER_WEIGHTS_INIT";
    struct ra_model_config room;
    struct ra_layer_weights own;
    const size_t at = offsetof(struct ra_layer_weights, attention), size = sizeof own.attention;
    const struct ra_model_config *config = ra_model_config_view(given, &room, error);
    if (!config)
        return RA_INVALID;
    if (layer < 0 || layer >= config->depth)
        return ra_error_set(error, "layer = %" PRId64 ": give 0 to %" PRId64, layer,
                            config->depth - 1);
    size_t least = offsetof(struct ra_attention_weights, sinks);
    if (ra_struct_check("weights", init, sizeof own, at + least, weights, error) != RA_OK ||
        ra_struct_check("weights.attention", init, size, least, &weights->attention, error) !=
            RA_OK)
        return RA_INVALID;

    /* Behind attention, wherever that ends in the caller's header, are the others. */
    own = ra_places_of_layer(config, all, layer);
    size_t theirs = weights->attention.size, left = weights->size - at;
    if (left < theirs)
        return ra_error_set(error, "weights.size = %zu: begin with %s", weights->size, init);
    char *place = (char *)weights + at, *from = (char *)&own + at;
    left -= theirs;
    ra_struct_give(place, theirs, from, size);
    memset(place + theirs, 0, left);
    memcpy(place + theirs, from + size,
           (size_t)ra_min((int64_t)left, (int64_t)(sizeof own - at - size)));
    return RA_OK;
}

enum ra_status ra_model_end_weights(const struct ra_model_config *given, const float *all,
                                    struct ra_end_weights *weights, char error[RA_ERROR_SIZE])
{
    struct ra_model_config room;
    struct ra_end_weights own;
    const struct ra_model_config *config = ra_model_config_view(given, &room, error);
    size_t least = offsetof(struct ra_end_weights, logits_bias) + sizeof own.logits_bias;
    if (!config || ra_struct_check("weights", "RA_END_WEIGHTS_INIT", sizeof own, least, weights,
                                   error) != RA_OK)
        return RA_INVALID;
    own = ra_places_of_ends(config, all);
    ra_struct_give(weights, weights->size, &own, sizeof own);
    return RA_OK;
}

enum ra_status ra_numbers_finite(const char *where, const char *name, int64_t columns,
                                 int64_t count, const float *numbers, char *error)
{
    char place[60];
    int64_t e = 0;
    while (e < count && isfinite(numbers[e]))
        e++;
    if (e == count)
        return RA_OK;
    if (columns > 0)
        snprintf(place, sizeof place, "%" PRId64 ", %" PRId64, e / columns, e % columns);
    else
        snprintf(place, sizeof place, "%" PRId64, e);
    return ra_error_set(error, "%.150s: %s[%s] is %g: every number must be finite", where, name,
                        place, (double)numbers[e]);
}

enum ra_status ra_parameters_finite(const struct ra_model_config *given, const float *all,
                                    const char *where, char error[RA_ERROR_SIZE])
{
    struct ra_model_config room;
    const struct ra_model_config *config = ra_model_config_view(given, &room, error);
    enum ra_status status = config ? RA_OK : RA_INVALID;
    for (int i = 0; status == RA_OK && i < ra_parameter_count(config); i++) {
        struct ra_parameter parameter = ra_parameter(config, i);
        status = ra_numbers_finite(where, parameter.name, parameter.columns, parameter.count,
                                   all + parameter.first, error);
    }
    return status;
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

void ra_parameters_begin(const struct ra_model_config *given, uint64_t seed, float *weights)
{
    struct ra_model_config room;
    const struct ra_model_config *config = ra_model_config_view(given, &room, NULL);
    if (!config)
        return;
    memset(weights, 0, (size_t)ra_parameter_numbers(config) * sizeof *weights);
    for (int i = 0; i < ra_parameter_count(config); i++) {
        struct ra_parameter parameter = ra_parameter(config, i);
        bool gamma = strstr(parameter.name, "gamma") != NULL,
             bias = strstr(parameter.name, "bias") != NULL;
        float one = config->norm == RA_NORM_RMS_PLUS_ONE && !strstr(parameter.name, "0.q_norm") &&
                            !strstr(parameter.name, "0.k_norm")
                        ? 0
                        : 1;
        bool adds =
            strstr(parameter.name, "to_out") != NULL || strstr(parameter.name, ".1.3.") != NULL;
        double deviation = adds ? 0.02 / sqrt(2 * (double)config->depth) : 0.02;
        if (bias)
            continue;
#pragma omp parallel for if (parameter.count > 1 << 20)
        for (int64_t e = 0; e < parameter.count; e++)
            weights[parameter.first + e] =
                gamma ? one : (float)(deviation * normal(seed, (uint64_t)(parameter.first + e)));
    }
}
