/* ra_model_config: config.json. See ra_model_config.h.
 *
 * Chapter 10.
 */
#include "ra_model_config.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_error.h"
#include "ra_family.h"
#include "ra_json.h"
#include "ra_model_struct.h"
#include "ra_text.h"

/* ---- Keys. */

/* A window for each layer, RA_NO_LOOKBACK: none. count 0: one for all layers. */
struct windows {
    int64_t of[RA_MOST_LAYERS], count;
};

/* Whose config has this key: anyone's, only one of ring-attention-pytorch ("the original"), or only
 * one of this program. */
enum owner { ANYONE, ORIGINAL, OURS };

/* A key of config.json, and where its value goes. */
struct key {
    const char *name;
    enum owner owner;
    int64_t *whole;
    double *real;
    bool *flag;
    bool optional; /* a flag that may be null: then it stays as it is */
    struct windows *windows;
    const char *const *names; /* the value is one of these; its number goes to `which` */
    int *which;
    bool given;
};

/* The names of what is chosen, in the order of their enums. */
static const char *const head_maps[] = {"grouped", "interleaved", NULL};
static const char *const norms[] = {"unit", "rms", "layer", "rms_plus_one", NULL};
static const char *const feeds[] = {"gelu", "swiglu", "geglu", NULL};
static const char *const positions[] = {"rotary", "learned", NULL};
static const char *const scalings[] = {"plain", "llama3", "yarn", "yarn_untruncated", NULL};

/* What keys say that struct ra_model_config has in another form, or not at all. */
struct values {
    int64_t sharing, ignored, bucket, ring_rows, batch, length;
    double multiple, theta, clamp;
    bool clamped, ring, striped, sharded, plain, kernel;
    int head_map, norm, feed, position, scaling, family;
    struct windows lookback, reach;
};

static struct key *find_key(struct key *keys, const char *name)
{
    while (keys->name && strcmp(keys->name, name) != 0)
        keys++;
    return keys;
}

static bool is_given(struct key *keys, const char *name)
{
    return find_key(keys, name)->given;
}

/* How many characters must be added, taken away or changed to make `a` of `b` (Levenshtein). */
static int edits(const char *a, const char *b)
{
    int row[64], length = (int)strlen(b);
    for (int j = 0; j <= length; j++)
        row[j] = j;
    for (int i = 0; a[i]; i++) {
        int before = row[0]++;
        for (int j = 0; j < length; j++) {
            int changed = before + (a[i] != b[j]);
            before = row[j + 1];
            int least = before < row[j] ? before : row[j];
            row[j + 1] = changed < least + 1 ? changed : least + 1;
        }
    }
    return row[length];
}

/* Names the key, and the known one that it resembles, if there is one. */
static enum ra_status refuse_key(const struct ra_json_text *json, const struct ra_json *value,
                                 const struct key *keys, char error[RA_ERROR_SIZE])
{
    const char *nearest = NULL;
    char word[60];
    snprintf(word, sizeof word, "%s", value->name);
    int least = (int)strlen(word) * 2 / 5 + 1;
    for (; keys->name; keys++) {
        int distance = edits(word, keys->name);
        if (distance < least) {
            least = distance;
            nearest = keys->name;
        }
    }
    return ra_json_refuse(json, value, error, "\"%s\" is no key of a model's config%s%s%s", word,
                          nearest ? "; did you mean \"" : "", nearest ? nearest : "",
                          nearest ? "\"?" : "");
}

/* ---- Values. */

/* A window of one layer: a number, or null. */
static bool read_window(const struct ra_json *value, int64_t *window)
{
    *window = RA_NO_LOOKBACK;
    return value->kind == RA_JSON_NULL || (ra_json_whole(value, window) && *window >= 0);
}

/* One window, or a list of them. */
static bool read_windows(const struct ra_json *value, struct windows *windows)
{
    if (value->kind != RA_JSON_LIST) {
        bool good = read_window(value, windows->of);
        for (int l = 1; l < RA_MOST_LAYERS; l++)
            windows->of[l] = windows->of[0];
        return good;
    }
    const struct ra_json *item = value->first;
    for (windows->count = 0; item; windows->count++, item = item->next)
        if (windows->count == RA_MOST_LAYERS || !read_window(item, &windows->of[windows->count]))
            return false;
    return windows->count > 0;
}

/* Reads a value. False: it is none of the key's kind. */
static bool read_value(const struct ra_json *value, const struct key *key)
{
    if (key->windows)
        return read_windows(value, key->windows);
    for (int i = 0; key->names && key->names[i]; i++)
        if (ra_json_is(value, key->names[i]))
            return *key->which = i, true;
    if (key->whole)
        return ra_json_whole(value, key->whole);
    if (key->real)
        return ra_json_real(value, key->real);
    if (key->optional && value->kind == RA_JSON_NULL)
        return true;
    if (!key->flag)
        return false;
    *key->flag = value->kind == RA_JSON_TRUE;
    return *key->flag || value->kind == RA_JSON_FALSE;
}

static enum ra_status refuse_value(const struct ra_json_text *json, const struct ra_json *value,
                                   const struct key *key, char error[RA_ERROR_SIZE])
{
    char names[200] = "";
    for (int i = 0; key->names && key->names[i]; i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s\"%s\"",
                 i == 0              ? ""
                 : key->names[i + 1] ? ", "
                                     : " or ",
                 key->names[i]);
    const char *right = key->whole      ? "a whole number"
                        : key->real     ? "a number"
                        : key->optional ? "true, false or null"
                        : key->flag     ? "true or false"
                        : key->names    ? names
                                     : "a whole number of 0 or more, null, or a list of these with "
                                       "one for each layer";
    return ra_json_refuse(json, value, error, "the value of \"%s\" is wrong: give %s", key->name,
                          right);
}

/* Reads the whole object. */
static enum ra_status read_keys(const struct ra_json_text *json, struct key *keys,
                                char error[RA_ERROR_SIZE])
{
    for (const struct ra_json *value = json->root->first; value; value = value->next) {
        struct key *key = find_key(keys, value->name);
        if (!key->name)
            return refuse_key(json, value, keys, error);
        if (!read_value(value, key))
            return refuse_value(json, value, key, error);
        key->given = true;
    }
    return RA_OK;
}

/* ---- What the keys mean together. */

/* Two keys that mean the same thing must not contradict each other. */
static bool contradict(struct key *keys, const char *ours, const char *original, double value,
                       double other, const char *name, char error[RA_ERROR_SIZE])
{
    if (!is_given(keys, ours) || !is_given(keys, original) || value == other)
        return false;
    ra_error_set(error, "%.120s: \"%s\" is %.17g, but \"%s\" means %.17g: give one of them", name,
                 ours, value, original, other);
    return true;
}

/* The frequencies' base and the soft cap, by either of their names. */
static enum ra_status merge_numbers(const char *name, struct key *keys, const struct values *values,
                                    struct ra_model_config *config, char error[RA_ERROR_SIZE])
{
    double cap = values->clamped ? values->clamp : 0;
    if (is_given(keys, "softclamp_value") && !is_given(keys, "softclamp_qk_sim"))
        return ra_error_set(error,
                            "%.120s: softclamp_value has no effect without softclamp_qk_sim: give "
                            "that, true or false",
                            name);
    if (values->clamped && !(values->clamp > 0))
        return ra_error_set(error, "%.120s: softclamp_value must be above 0", name);
    if (contradict(keys, "rotary_theta", "rotary_embed_theta", config->rotary_theta, values->theta,
                   name, error) ||
        contradict(keys, "softcap", "softclamp_qk_sim", config->softcap, cap, name, error))
        return RA_INVALID;
    if (is_given(keys, "rotary_embed_theta"))
        config->rotary_theta = values->theta;
    if (is_given(keys, "softclamp_qk_sim"))
        config->softcap = cap;
    return RA_OK;
}

static enum ra_status check_count(const char *name, const char *key, const struct windows *windows,
                                  int64_t depth, char error[RA_ERROR_SIZE])
{
    if (windows->count == 0 || windows->count == depth)
        return RA_OK;
    return ra_error_set(error,
                        "%.120s: %s has %" PRId64 " entries; give one for each of %" PRId64
                        " layers, or one for all without brackets",
                        name, key, windows->count, depth);
}

/* The windows, by either of their names. In the original a query sees its own bucket and the
 * max_lookback_seq_len / bucket_size buckets before it, which is a window of tokens if a bucket is
 * one token. Its CUDA kernel and its plain attention know no window, and its ring makes too few
 * hops for one. */
static enum ra_status merge_windows(const char *name, struct key *keys, const struct values *values,
                                    struct ra_model_config *config, char error[RA_ERROR_SIZE])
{
    bool exact = values->bucket == 1 && !values->kernel && !values->ring && !values->plain;
    if (check_count(name, "lookback", &values->lookback, config->depth, error) != RA_OK ||
        check_count(name, "max_lookback_seq_len", &values->reach, config->depth, error) != RA_OK)
        return RA_INVALID;
    const struct windows *windows =
        is_given(keys, "max_lookback_seq_len") ? &values->reach : &values->lookback;
    for (int64_t l = 0; l < config->depth && l < RA_MOST_LAYERS; l++) {
        if (windows == &values->reach && windows->of[l] != RA_NO_LOOKBACK && !exact)
            return ra_error_set(
                error,
                "%.120s: max_lookback_seq_len counts whole buckets unless bucket_size "
                "is 1, use_cuda_kernel false, ring_attn and force_regular_attn off: "
                "give lookback (tokens back) instead",
                name);
        if (is_given(keys, "lookback") && windows->of[l] != values->lookback.of[l])
            return ra_error_set(error,
                                "%.120s: \"lookback\" and \"max_lookback_seq_len\" differ in layer "
                                "%" PRId64 ": give one of them",
                                name, l);
        config->lookback[l] = windows->of[l];
    }
    return RA_OK;
}

/* Options of the original's ring change nothing here, except where they change what its attention
 * computes. */
static enum ra_status check_ring(const char *name, const struct values *values, bool causal,
                                 char error[RA_ERROR_SIZE])
{
    const char *wrong = NULL;
    if (values->ring && values->plain)
        wrong = "ring_attn with force_regular_attn: the original then attends to each process's "
                "own tokens alone; take one of them away";
    else if ((values->striped || values->sharded) && !values->ring)
        wrong = values->striped ? "striped_ring_attn needs ring_attn"
                                : "auto_shard_seq needs ring_attn";
    else if (values->striped && !causal)
        wrong = "striped_ring_attn needs causal";
    else if (values->bucket < 1 || values->ring_rows < 1)
        wrong = "bucket_size and ring_seq_size must be 1 or above";
    return wrong ? ra_error_set(error, "%.120s: %s", name, wrong) : RA_OK;
}

/* Adds to the note on what was not said. */
static void add_note(char note[RA_ERROR_SIZE], const char *name, const char *text)
{
    size_t used = strlen(note);
    if (used == 0)
        snprintf(note, RA_ERROR_SIZE, "%.120s: read as ring-attention-pytorch's: %s", name, text);
    else
        snprintf(note + used, RA_ERROR_SIZE - used, ", %s", text);
}

/* Gives what is left out the original's default if this is a config of the original, which has keys
 * that only the original knows and none that it does not know. Otherwise it must be given. */
static enum ra_status add_defaults(const char *name, struct key *keys, const struct values *values,
                                   struct ra_model_config *config, char note[RA_ERROR_SIZE],
                                   char error[RA_ERROR_SIZE])
{
    bool original = false, ours = false;
    for (const struct key *key = keys; key->name; key++) {
        original = original || (key->given && key->owner == ORIGINAL);
        ours = ours || (key->given && key->owner == OURS);
    }
    original = original && !ours;
    static const char *const needed[] = {"num_tokens", "dim", "depth", "heads", "dim_head"};
    for (int k = 0; k < 5; k++)
        if (!is_given(keys, needed[k]) && (k < 3 || !original))
            return ra_error_set(error, "%.120s: has no \"%s\"", name, needed[k]);
    if (!is_given(keys, "heads")) {
        config->heads = 8;
        add_note(note, name, "heads 8");
    }
    if (!is_given(keys, "dim_head")) {
        config->head_dim = 64;
        add_note(note, name, "dim_head 64");
    }
    if (values->sharing < 1 || config->heads % values->sharing != 0)
        return ra_error_set(
            error, "%.120s: num_grouped_query_heads, %" PRId64 ", must divide heads, %" PRId64,
            name, values->sharing, config->heads);
    config->key_heads = config->heads / values->sharing;

    if (!is_given(keys, "causal") && !original)
        return ra_error_set(
            error,
            "%.120s: has no \"causal\": give true (a token sees those before it) or "
            "false (it sees all; ring-attention-pytorch's default)",
            name);
    if (!is_given(keys, "causal")) {
        config->causal = false;
        add_note(note, name, "causal false");
    }
    config->head_map = (enum ra_head_map)values->head_map;
    if (is_given(keys, "head_map") || values->sharing == 1 || config->key_heads == 1)
        return RA_OK;
    if (!original)
        return ra_error_set(error,
                            "%.120s: has no \"head_map\": give \"grouped\" (query head h reads key "
                            "head h / %" PRId64 ", as in Llama) or \"interleaved\" (h mod %" PRId64
                            ", as in ring-attention-pytorch)",
                            name, values->sharing, config->key_heads);
    config->head_map = RA_INTERLEAVED;
    add_note(note, name, "head_map interleaved");
    return RA_OK;
}

/* A key without effect is refused, as somebody means something by it; but not one with its default
 * value. */
static enum ra_status check_idle(const char *name, const struct ra_model_config *config,
                                 char error[RA_ERROR_SIZE])
{
    struct ra_model_config usual;
    ra_model_config_init(&usual, sizeof usual);
    const struct ra_rotary_scaling *given = &config->rotary_scaling, *none = &usual.rotary_scaling;
    bool rotary = config->position == RA_POSITIONS_ROTARY, scaled = given->kind != RA_ROTARY_PLAIN;
    bool has_eps = config->norm != RA_NORM_UNIT || config->head_norm;
    static const char scaling[] = "a rotary_scaling other than \"plain\"";
    static const char angles[] = "positions \"rotary\"";
    const struct {
        const char *key;
        bool works, same;
        const char *needs;
    } keys[] = {
        {"rotary_factor", scaled, given->factor == none->factor, scaling},
        {"rotary_low", scaled, given->low == none->low, scaling},
        {"rotary_high", scaled, given->high == none->high, scaling},
        {"rotary_original", scaled, given->original == none->original, scaling},
        {"rotary_scaling", rotary, !scaled, angles},
        {"rotary_theta", rotary, config->rotary_theta == usual.rotary_theta, angles},
        {"rotary_scale", rotary, config->rotary_scale == usual.rotary_scale, angles},
        {"position_scale", !rotary, config->position_scale == usual.position_scale,
         "positions \"learned\""},
        {"longest", !rotary || config->family != RA_FAMILY_ORIGINAL,
         config->longest == usual.longest, "positions \"learned\""},
        {"norm_eps", has_eps, config->norm_eps == usual.norm_eps,
         "a norm other than \"unit\", or head_norm"},
    };
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        if (!keys[k].works && !keys[k].same)
            return ra_error_set(error, "%.120s: %s has no effect without %s", name, keys[k].key,
                                keys[k].needs);
    return RA_OK;
}

/* Reads a config of ring-attention-pytorch, or one that this program has written. */
static enum ra_status read_own(const struct ra_json_text *json, struct ra_model_config *config,
                               char note[RA_ERROR_SIZE], char error[RA_ERROR_SIZE])
{
    const char *name = json->name;
    struct values x = {.sharing = 1,
                       .ignored = -1,
                       .bucket = 512,
                       .ring_rows = 512,
                       .multiple = 4,
                       .clamp = 50,
                       .kernel = true}; /* as CUDA may have been there */
    for (int l = 0; l < RA_MOST_LAYERS; l++)
        x.lookback.of[l] = x.reach.of[l] = RA_NO_LOOKBACK;
    struct key keys[] = {
        {"num_tokens", ANYONE, .whole = &config->vocabulary},
        {"dim", ANYONE, .whole = &config->dim},
        {"depth", ANYONE, .whole = &config->depth},
        {"heads", ANYONE, .whole = &config->heads},
        {"dim_head", ANYONE, .whole = &config->head_dim},
        {"causal", ANYONE, .flag = &config->causal},
        {"ff_mult", ANYONE, .real = &x.multiple},
        {"batch", OURS, .whole = &x.batch},
        {"length", OURS, .whole = &x.length},
        {"head_map", OURS, .names = head_maps, .which = &x.head_map},
        {"lookback", OURS, .windows = &x.lookback},
        {"softcap", OURS, .real = &config->softcap},
        {"rotary_theta", OURS, .real = &config->rotary_theta},
        {"rotary_scale", OURS, .real = &config->rotary_scale},
        {"tied", OURS, .flag = &config->tied},
        {"norm", OURS, .names = norms, .which = &x.norm},
        {"norm_eps", OURS, .real = &config->norm_eps},
        {"head_norm", OURS, .flag = &config->head_norm},
        {"feed", OURS, .names = feeds, .which = &x.feed},
        {"qkv_bias", OURS, .flag = &config->qkv_bias},
        {"out_bias", OURS, .flag = &config->out_bias},
        {"feed_bias", OURS, .flag = &config->feed_bias},
        {"logits_bias", OURS, .flag = &config->logits_bias},
        {"positions", OURS, .names = positions, .which = &x.position},
        {"longest", OURS, .whole = &config->longest},
        {"position_scale", OURS, .real = &config->position_scale},
        {"rotary_scaling", OURS, .names = scalings, .which = &x.scaling},
        {"rotary_factor", OURS, .real = &config->rotary_scaling.factor},
        {"rotary_low", OURS, .real = &config->rotary_scaling.low},
        {"rotary_high", OURS, .real = &config->rotary_scaling.high},
        {"rotary_original", OURS, .whole = &config->rotary_scaling.original},
        {"attention_scale", OURS, .real = &config->attention_scale},
        {"logits_softcap", OURS, .real = &config->logits_softcap},
        {"embedding_scale", OURS, .real = &config->embedding_scale},
        {"post_norm", OURS, .flag = &config->post_norm},
        {"sinks", OURS, .flag = &config->sinks},
        {"family", OURS, .names = ra_family_names, .which = &x.family},
        {"num_grouped_query_heads", ORIGINAL, .whole = &x.sharing},
        {"rotary_embed_theta", ORIGINAL, .real = &x.theta},
        {"max_lookback_seq_len", ORIGINAL, .windows = &x.reach},
        {"softclamp_qk_sim", ORIGINAL, .flag = &x.clamped},
        {"softclamp_value", ORIGINAL, .real = &x.clamp},
        {"ignore_index", ORIGINAL, .whole = &x.ignored},
        {"bucket_size", ORIGINAL, .whole = &x.bucket},
        {"ring_attn", ORIGINAL, .flag = &x.ring},
        {"striped_ring_attn", ORIGINAL, .flag = &x.striped},
        {"ring_seq_size", ORIGINAL, .whole = &x.ring_rows},
        {"auto_shard_seq", ORIGINAL, .flag = &x.sharded, .optional = true},
        {"force_regular_attn", ORIGINAL, .flag = &x.plain},
        {"use_cuda_kernel", ORIGINAL, .flag = &x.kernel, .optional = true},
        {0},
    };
    char reason[RA_ERROR_SIZE];
    ra_model_config_init(config, sizeof *config);
    *note = '\0';
    if (read_keys(json, keys, error) != RA_OK ||
        add_defaults(name, keys, &x, config, note, error) != RA_OK ||
        merge_numbers(name, keys, &x, config, error) != RA_OK ||
        merge_windows(name, keys, &x, config, error) != RA_OK ||
        check_ring(name, &x, config->causal, error) != RA_OK)
        return RA_INVALID;
    if (x.ignored >= 0)
        return ra_error_set(error,
                            "%.120s: ignore_index is %" PRId64
                            ": labels that do not count are negative here",
                            name, x.ignored);
    config->norm = (enum ra_norm_kind)x.norm;
    config->feed = (enum ra_feed_kind)x.feed;
    config->position = (enum ra_position_kind)x.position;
    config->rotary_scaling.kind = (enum ra_rotary_kind)x.scaling;
    config->family = (enum ra_family)x.family;
    config->hidden = llround(x.multiple * (double)config->dim);
    if (check_idle(name, config, error) != RA_OK)
        return RA_INVALID;
    if (ra_model_check(config, reason) != RA_OK)
        return ra_error_set(error, "%.120s: %.180s", name, reason);
    if (x.ring)
        add_note(note, name, "ring_attn true: attention over the whole sequence");
    if (x.striped)
        add_note(note, name, "as striped_ring_attn has it on several processes, but not on one");
    return RA_OK;
}

enum ra_status ra_model_config_read(const char *name, const char *text,
                                    struct ra_model_config *config, size_t size,
                                    char note[RA_ERROR_SIZE], char error[RA_ERROR_SIZE])
{
    struct ra_json_text json;
    struct ra_model_config own;
    if (ra_json_read(&json, name, text, strlen(text), error) != RA_OK)
        return RA_INVALID;
    enum ra_status status =
        json.root->kind != RA_JSON_OBJECT
            ? ra_json_refuse(&json, json.root, error, "must be an object of keys and values")
        : ra_family_knows(json.root) ? ra_family_read(&json, &own, note, error)
                                     : read_own(&json, &own, note, error);
    ra_json_free(&json);
    if (status != RA_OK)
        return status;
    char reason[RA_ERROR_SIZE];
    if (ra_model_config_give(config, size, &own, reason) != RA_OK)
        return ra_error_set(error, "%.120s: %.180s", name, reason);
    return RA_OK;
}

/* The parts that are not those of ring-attention-pytorch. */
static void add_parts(const struct ra_model_config *c, struct ra_text *text)
{
    const struct ra_rotary_scaling *scaling = &c->rotary_scaling;
    if (c->norm != RA_NORM_UNIT)
        ra_text_add(text, ",\n \"norm\": \"%s\"", norms[c->norm]);
    if (c->norm != RA_NORM_UNIT || c->head_norm)
        ra_text_add(text, ",\n \"norm_eps\": %.17g, \"head_norm\": %s", c->norm_eps,
                    ra_json_bool(c->head_norm));
    if (c->feed != RA_FEED_GELU)
        ra_text_add(text, ",\n \"feed\": \"%s\"", feeds[c->feed]);
    if (c->qkv_bias || c->out_bias || !c->feed_bias || c->logits_bias)
        ra_text_add(text,
                    ",\n \"qkv_bias\": %s, \"out_bias\": %s, \"feed_bias\": %s, "
                    "\"logits_bias\": %s",
                    ra_json_bool(c->qkv_bias), ra_json_bool(c->out_bias),
                    ra_json_bool(c->feed_bias), ra_json_bool(c->logits_bias));
    if (c->position != RA_POSITIONS_ROTARY)
        ra_text_add(text, ",\n \"positions\": \"%s\", \"position_scale\": %.17g",
                    positions[c->position], c->position_scale);
    if (c->longest > 0 && (c->position != RA_POSITIONS_ROTARY || c->family != RA_FAMILY_ORIGINAL))
        ra_text_add(text, ",\n \"longest\": %" PRId64, c->longest);
    if (c->position == RA_POSITIONS_ROTARY && scaling->kind != RA_ROTARY_PLAIN)
        ra_text_add(text,
                    ",\n \"rotary_scaling\": \"%s\", \"rotary_factor\": %.17g, "
                    "\"rotary_low\": %.17g, \"rotary_high\": %.17g, \"rotary_original\": %" PRId64,
                    scalings[scaling->kind], scaling->factor, scaling->low, scaling->high,
                    scaling->original);
    if (c->attention_scale != 0 || c->logits_softcap != 0 || c->embedding_scale != 1 ||
        c->post_norm)
        ra_text_add(text,
                    ",\n \"attention_scale\": %.17g, \"logits_softcap\": %.17g, "
                    "\"embedding_scale\": %.17g, \"post_norm\": %s",
                    c->attention_scale, c->logits_softcap, c->embedding_scale,
                    ra_json_bool(c->post_norm));
    if (c->sinks)
        ra_text_add(text, ",\n \"sinks\": true");
    if (c->family != RA_FAMILY_ORIGINAL)
        ra_text_add(text, ",\n \"family\": \"%s\"", ra_family_names[c->family]);
}

int ra_model_config_write(const struct ra_model_config *given, char *text, size_t size)
{
    struct ra_model_config room;
    const struct ra_model_config *c = ra_model_config_view(given, &room, NULL);
    if (!c)
        return -1;
    struct ra_text out = {text, size, 0};
    ra_text_add(
        &out,
        "{\"num_tokens\": %" PRId64 ", \"dim\": %" PRId64 ", \"depth\": %" PRId64
        ", \"heads\": %" PRId64 ", \"num_grouped_query_heads\": %" PRId64 ", \"dim_head\": %" PRId64
        ",\n \"ff_mult\": %.17g, \"causal\": %s, \"tied\": %s, \"head_map\": \"%s\", \"softcap\": "
        "%.17g,\n ",
        c->vocabulary, c->dim, c->depth, c->heads, c->heads / c->key_heads, c->head_dim,
        (double)c->hidden / (double)c->dim, ra_json_bool(c->causal), ra_json_bool(c->tied),
        head_maps[c->head_map], c->softcap);
    if (c->position == RA_POSITIONS_ROTARY)
        ra_text_add(&out, "\"rotary_theta\": %.17g, \"rotary_scale\": %.17g, ", c->rotary_theta,
                    c->rotary_scale);
    ra_text_add(&out, "\"lookback\": [");
    for (int64_t l = 0; l < c->depth; l++) {
        ra_text_add(&out, "%s", l > 0 ? ", " : "");
        if (c->lookback[l] == RA_NO_LOOKBACK)
            ra_text_add(&out, "null");
        else
            ra_text_add(&out, "%" PRId64, c->lookback[l]);
    }
    ra_text_add(&out, "]");
    add_parts(c, &out);
    ra_text_add(&out, "}\n");
    return (int)out.length;
}
