/* check_families: the tests of src/model/ra_family.c and of folders with .safetensors: configs of
 * every family, with one field exchanged, and folders that are not what their config says.
 */
#define _GNU_SOURCE /* nftw */
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"
#include "model_rig.h"
#include "ra_checkpoint.h"
#include "ra_family.h"
#include "ra_folder.h"
#include "ra_model_config.h"
#include "ra_optimizer.h"
#include "ra_safetensors.h"

static char note[RA_ERROR_SIZE];

#define SIZES                                                                                     \
    "\"vocab_size\": 7, \"hidden_size\": 8, \"intermediate_size\": 5, \"num_hidden_layers\": 2, " \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2"
#define OF(type, more) "{\"model_type\": \"" type "\", " SIZES more "}"
#define OF_MGQA(more)                                                                  \
    "{\"num_tokens\": 7, \"max_seq_len\": 9, \"dim\": 8, \"depth\": 2, \"heads\": 4, " \
    "\"attn_kv_heads\": 2, \"attn_dim_head\": 2" more "}"
#define LOG_4 1.3862943611198906 /* which clang does not take for a constant as log(4) */
#define YARN "\"type\": \"yarn\", \"factor\": 4.0"
#define LLAMA3                                                               \
    "\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, " \
    "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 32"

static enum ra_status read_config(const char *text, struct ra_model_config *config)
{
    return ra_model_config_read("it", text, config, sizeof *config, note, error);
}

/* The parts that each family has. */
TEST(parts)
{
    static const char *const texts[] = {OF_MGQA(""), OF("llama", ""), OF("mistral", ""),
                                        OF("qwen2", ""), OF("qwen3", "")};
    for (int f = 0; f < 5; f++) {
        struct ra_model_config c;
        enum ra_family family = (enum ra_family)(RA_FAMILY_MGQA + f);
        bool mgqa = f == 0;
        accepted(read_config(texts[f], &c));
        expect(c.family == family && c.vocabulary == 7 && c.dim == 8 && c.depth == 2 &&
                   c.heads == 4 && c.key_heads == 2 && c.causal && !c.tied,
               "family %d", f);
        expect(c.hidden == (mgqa ? 32 : 5) && c.head_dim == (family == RA_FAMILY_QWEN3 ? 128 : 2),
               "%d", (int)c.hidden);
        expect(c.norm == (mgqa ? RA_NORM_LAYER : RA_NORM_RMS) &&
                   c.norm_eps == (mgqa ? 1e-5 : 1e-6) &&
                   c.feed == (mgqa ? RA_FEED_GELU : RA_FEED_SWIGLU) && c.feed_bias == mgqa &&
                   c.logits_bias == mgqa && c.head_norm == (family == RA_FAMILY_QWEN3) &&
                   c.qkv_bias == (family == RA_FAMILY_QWEN2) && !c.out_bias &&
                   c.head_map == (mgqa ? RA_INTERLEAVED : RA_GROUPED),
               "parts of %d", f);
        expect(c.lookback[1] == (family == RA_FAMILY_MISTRAL ? 4095 : RA_NO_LOOKBACK), "window");
        expect(mgqa == (*note != '\0'), "%s", note);
        expect(!mgqa || (c.longest == 9 && c.position == RA_POSITIONS_LEARNED &&
                         c.position_scale == 1 / sqrt(8)),
               "positions");
    }
}

/* Read into the struct of an older header, a model must have no part that this has no field for: it
 * would be another model. */
TEST(older_headers)
{
    struct ra_model_config c;
    size_t shorter = offsetof(struct ra_model_config, post_norm);
    memset(&c, 0xFF, sizeof c);
    accepted(ra_model_config_read("it", OF("llama", ""), &c, shorter, note, error));
    expect(c.size == shorter && c.dim == 8 && *(unsigned char *)&c.post_norm == 0xFF,
           "written behind a short one");
    refused(ra_model_config_read("it", OF("gemma2", ""), &c, shorter, note, error),
            "it: the model has post_norm, for which the caller's struct ra_model_config, of ");
    refused(ra_model_config_read("it", OF("llama", ", \"rope_scaling\": {" YARN "}"), &c,
                                 offsetof(struct ra_model_config, attention_scale), note, error),
            "it: the model has attention_scale");
    refused(ra_model_config_read("it", OF("llama", ""), &c, 8, note, error),
            "it: size = 8: give sizeof *config");
}

/* A caller with an older header: its struct ends before sinks, and what lies behind is something
 * else. No function reads that; and none takes a struct without a size. */
TEST(older_callers)
{
    struct ra_model_config whole = small(false), older;
    memset(&older, 0xFF, sizeof older);
    whole.post_norm = true;
    memcpy(&older, &whole, offsetof(struct ra_model_config, sinks));
    older.size = offsetof(struct ra_model_config, sinks);
    expect(*(unsigned char *)&older.sinks == 0xFF, "what lies behind is not set");
    int count = ra_parameter_count(&whole);
    int64_t numbers = ra_parameter_numbers(&whole);
    expect(ra_parameter_count(&older) == count && ra_parameter_numbers(&older) == numbers, "sizes");
    for (int i = -1; i <= count; i++) {
        struct ra_parameter a = ra_parameter(&whole, i), b = ra_parameter(&older, i);
        expect(memcmp(&a, &b, sizeof a) == 0, "%s", a.name);
        expect((a.count == 0) == (i < 0 || i == count), "number %d has %" PRId64, i, a.count);
    }
    expect(ra_qkv_width(&older) == ra_qkv_width(&whole), "qkv");
    expect(ra_feed_width(&older) == ra_feed_width(&whole), "feed");
    expect(ra_share(&older, 1, 3).end == ra_share(&whole, 1, 3).end, "share");

    float *x = poisoned(numbers), *y = poisoned(numbers), *means = calloc((size_t)numbers, 4);
    float *squares = calloc((size_t)numbers, 4);
    ra_parameters_begin(&older, 1, x);
    accepted(ra_parameters_finite(&older, x, "x", error));
    struct ra_layer_weights w = RA_LAYER_WEIGHTS_INIT, v = RA_LAYER_WEIGHTS_INIT;
    accepted(ra_model_layer_weights(&whole, x, 1, &w, error));
    accepted(ra_model_layer_weights(&older, x, 1, &v, error));
    expect(memcmp(&w, &v, sizeof w) == 0 && w.attention.qkv && w.fed_gamma, "weights of a layer");
    struct ra_end_weights ends = RA_END_WEIGHTS_INIT;
    accepted(ra_model_end_weights(&older, x, &ends, error));
    expect(ends.embedding == x && ends.gamma, "weights of the ends");
    struct ra_optimizer how = RA_OPTIMIZER_INIT;
    expect(ra_optimizer_step(&how, &older, ra_share(&older, 0, 1), 1, 1, x, y, means, squares) > 0,
           "no step");

    char text[4096], other[4096], path[1100], at[1200];
    expect(ra_model_config_write(&older, text, sizeof text) > 0 &&
               ra_model_config_write(&whole, other, sizeof other) > 0 && strcmp(text, other) == 0,
           "%s", text);
    accepted(ra_folder_describe(&older, false, other, sizeof other, error));
    expect(strcmp(text, other) == 0, "%s", other);
    accepted(ra_folder_store(folder, &older, x, false, 0, error));
    accepted(ra_folder_weights(folder, &older, y, error));
    expect(same_bits(x, y, numbers), "other weights");
    snprintf(at, sizeof at, "%s/model.safetensors", folder);
    expect(remove(at) == 0, "%s", at);
    snprintf(path, sizeof path, "%s/older", folder);
    expect(mkdir(path, 0777) == 0, "%s", path);
    accepted(ra_folder_write(path, &older, x, error));
    accepted(ra_folder_read(path, &older, y, error));
    expect(same_bits(x, y, numbers), "other weights");
    struct ra_whole file;
    snprintf(at, sizeof at, "%s/model", path);
    accepted(ra_whole_begin(&file, at, 0, NULL, error));
    accepted(ra_checkpoint_try(&file, &older, false, error));
    accepted(ra_checkpoint_write(&file, &older, NULL, x, NULL, NULL, error));
    ra_whole_end(&file);
    accepted(ra_checkpoint_read(at, y, NULL, NULL, error));
    expect(same_bits(x, y, numbers), "other weights");

    static const char begin[] = "begin with ra_model_config_init";
    older.size = 0;
    expect(ra_parameter_count(&older) == 0 && ra_parameter_numbers(&older) == 0 &&
               ra_parameter(&older, 0).count == 0 && ra_qkv_width(&older) == 0 &&
               ra_feed_width(&older) == 0 && ra_share(&older, 0, 1).end == 0 &&
               ra_model_config_write(&older, text, sizeof text) == -1,
           "a config of no size");
    expect(
        isnan(ra_optimizer_step(&how, &older, ra_share(&whole, 0, 1), 1, 1, x, y, means, squares)),
        "a step");
    memcpy(y, x, (size_t)numbers * sizeof *x);
    ra_parameters_begin(&older, 2, y);
    expect(same_bits(x, y, numbers), "written");
    refused(ra_model_check(&older, error), begin);
    refused(ra_parameters_finite(&older, x, "x", error), begin);
    refused(ra_model_layer_weights(&older, x, 0, &w, error), begin);
    refused(ra_model_end_weights(&older, x, &ends, error), begin);
    refused(ra_folder_describe(&older, false, other, sizeof other, error), begin);
    refused(ra_folder_store(folder, &older, x, false, 0, error), begin);
    refused(ra_folder_weights(folder, &older, y, error), begin);
    refused(ra_folder_write(path, &older, x, error), begin);
    refused(ra_folder_read(path, &older, y, error), begin);
    refused(ra_checkpoint_try(&file, &older, false, error), begin);
    refused(ra_checkpoint_write(&file, &older, NULL, x, NULL, NULL, error), begin);
    refused(ra_model_check(NULL, error), "config is NULL");

    /* Weights of a layer, in structs of other headers: of each, what that has a field for. */
    refused(ra_model_layer_weights(&whole, x, 2, &w, error), "layer = 2: give 0 to 1");
    refused(ra_model_layer_weights(&whole, x, -1, &w, error), "layer = -1: give 0 to 1");
    struct {
        struct ra_layer_weights w;
        float *more[4];
    } newer;
    const size_t attention = sizeof w.attention;
    memset(&newer, 0xFF, sizeof newer);
    newer.w.size = sizeof w + 2 * sizeof(float *); /* both structs have one more */
    newer.w.attention.size = attention + sizeof(float *);
    for (int again = 0; again < 2; again++) {
        accepted(ra_model_layer_weights(&whole, x, 1, &newer.w, error));
        float **places = (float **)((char *)&newer.w.attention + attention);
        expect(newer.w.attention.qkv == w.attention.qkv && newer.w.attention.out == w.attention.out,
               "attention of a newer header");
        expect(!places[0] && memcmp(places + 1, &w.attended_gamma, 10 * sizeof *places) == 0 &&
                   !places[11] && (uintptr_t)places[12] == UINTPTR_MAX,
               "what lies behind the attention of a newer header");
    }
    newer.w.size = newer.w.attention.size;
    refused(ra_model_layer_weights(&whole, x, 1, &newer.w, error),
            "begin with RA_LAYER_WEIGHTS_INIT");
    w.size = 0;
    refused(ra_model_layer_weights(&whole, x, 1, &w, error),
            "weights.size = 0: begin with RA_LAYER_");
    ends.size = 8;
    refused(ra_model_end_weights(&whole, x, &ends, error), "weights.size = 8: begin with RA_END_");
    free(means), free(squares);
    release();
}

/* A key of ours that changes nothing beside the others is refused by name, unless it has its
 * default; what is read from a text that was written is the same model. */
#define OURS(more)                                                                              \
    "{\"num_tokens\": 7, \"dim\": 8, \"depth\": 1, \"heads\": 2, \"dim_head\": 4, \"causal\": " \
    "true" more "}"
#define LEARNED ", \"positions\": \"learned\", \"longest\": 9"
#define SCALED                                                                                   \
    ", \"rotary_scaling\": \"yarn\", \"rotary_factor\": 8, \"rotary_low\": 1, \"rotary_high\": " \
    "32, \"rotary_original\": 64"
TEST(idle_keys)
{
    static const struct {
        const char *text, *words; /* NULL: it is read */
    } cases[] = {
        {OURS(", \"rotary_factor\": 8"), "it: rotary_factor has no effect without"},
        {OURS(", \"rotary_low\": 1"), "it: rotary_low has no effect"},
        {OURS(", \"rotary_high\": 4, \"rotary_scaling\": \"plain\""), "it: rotary_high has no"},
        {OURS(", \"rotary_original\": 8192"), "it: rotary_original has no effect"},
        {OURS(SCALED), NULL},
        {OURS(LEARNED SCALED), "it: rotary_scaling has no effect"},
        {OURS(LEARNED ", \"rotary_theta\": 500"), "it: rotary_theta has no effect without"},
        {OURS(LEARNED ", \"rotary_scale\": 2"), "it: rotary_scale has no effect without"},
        {OURS(LEARNED ", \"rotary_theta\": 10000, \"rotary_scale\": 1"), NULL},
        {OURS(LEARNED ", \"position_scale\": 2"), NULL},
        {OURS(", \"position_scale\": 2"), "it: position_scale has no effect without positions"},
        {OURS(", \"position_scale\": 1"), NULL},
        {OURS(", \"longest\": 9"), "it: longest has no effect without positions"},
        {OURS(", \"longest\": 9, \"family\": \"llama\", \"norm\": \"rms\""), NULL},
        {OURS(", \"norm_eps\": 0.1"), "it: norm_eps has no effect without a norm other than"},
        {OURS(", \"norm_eps\": 0.1, \"head_norm\": true"), NULL},
        {OURS(", \"softclamp_value\": 50"), "it: softclamp_value has no effect without"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ra_model_config c, again;
        char text[4096];
        if (cases[i].words) {
            refused(read_config(cases[i].text, &c), cases[i].words);
            continue;
        }
        accepted(read_config(cases[i].text, &c));
        ra_model_config_write(&c, text, sizeof text);
        accepted(read_config(text, &again));
        expect(memcmp(&c, &again, sizeof c) == 0, "%s", text);
    }

    /* What a caller's struct has beside its positions is no part of the text. */
    struct ra_model_config c = small(false), again;
    char text[4096];
    c.position = RA_POSITIONS_LEARNED;
    c.longest = 9;
    c.rotary_theta = 500;
    c.rotary_scaling = (struct ra_rotary_scaling){RA_ROTARY_YARN, 8, 1, 32, 64};
    ra_model_config_write(&c, text, sizeof text);
    expect(!strstr(text, "rotary_"), "%s", text);
    accepted(read_config(text, &again));
}

/* Windows, rotation and options, as transformers 4 and 5 write them. */
TEST(fields_used)
{
    static const struct {
        const char *text;
        int64_t windows[2];
        double theta, scale, factor;
        bool qkv_bias, out_bias, feed_bias, tied;
    } cases[] = {
        {OF("llama", ", \"rope_theta\": 500.0, \"rope_scaling\": null"),
         {-1, -1},
         500,
         1,
         .factor = 0},
        {OF("llama", ", \"rope_theta\": 500, \"rope_scaling\": {" LLAMA3 "}"),
         {-1, -1},
         500,
         1,
         .factor = 8},
        {OF("llama", ", \"rope_parameters\": {\"rope_theta\": 500.0, " LLAMA3 "}"),
         {-1, -1},
         500,
         1,
         .factor = 8},
        {OF("llama", ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}"),
         {-1, -1},
         10000,
         2,
         .factor = 0},
        {OF("llama", ", \"attention_bias\": true, \"mlp_bias\": true"),
         {-1, -1},
         10000,
         1,
         .factor = 0,
         .qkv_bias = true,
         .out_bias = true,
         .feed_bias = true},
        {OF("llama", ", \"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\", "
                     "\"architectures\": [\"LlamaForCausalLM\"], \"attention_dropout\": 0.0"),
         {-1, -1},
         10000,
         1,
         .factor = 0,
         .tied = true},
        {OF("mistral", ", \"sliding_window\": 3"), {2, 2}, 10000, 1, .factor = 0},
        {OF("mistral", ", \"sliding_window\": null"), {-1, -1}, 10000, 1, .factor = 0},
        {OF("qwen2", ", \"sliding_window\": 3"), {-1, -1}, 10000, 1, .factor = 0, .qkv_bias = true},
        {OF("qwen2", ", \"sliding_window\": 3, \"use_sliding_window\": true, "
                     "\"max_window_layers\": 1"),
         {-1, 2},
         10000,
         1,
         .factor = 0,
         .qkv_bias = true},
        {OF("qwen2", ", \"sliding_window\": 3, \"use_sliding_window\": true, \"layer_types\": "
                     "[\"sliding_attention\", \"full_attention\"]"),
         {2, -1},
         10000,
         1,
         .factor = 0,
         .qkv_bias = true},
        {OF("gemma2", ", \"sliding_window\": 3, \"sliding_window_size\": 9"),
         {2, -1},
         10000,
         1,
         .factor = 0,
         .tied = true},
        {OF("gemma2", ", \"sliding_window\": 3, \"tie_word_embeddings\": false, "
                      "\"attention_bias\": true, \"final_logit_softcapping\": null, "
                      "\"attn_logit_softcapping\": null, \"query_pre_attn_scalar\": 144, "
                      "\"layer_types\": [\"full_attention\", \"sliding_attention\"]"),
         {-1, 2},
         10000,
         1,
         .factor = 0,
         .qkv_bias = true,
         .out_bias = true},
        {OF("gemma2", ", \"query_pre_attn_scalar\": 144, \"sliding_window\": null"),
         {-1, -1},
         10000,
         1,
         .factor = 0,
         .tied = true},
        {OF("qwen3", ", \"attention_bias\": true"),
         {-1, -1},
         10000,
         1,
         .factor = 0,
         .qkv_bias = true,
         .out_bias = true},
        {OF_MGQA(", \"attn_max_attend_past\": 3, \"ff_no_bias\": true"),
         {3, 3},
         10000,
         1,
         .factor = 0},
        {OF_MGQA(", \"tie_embedding\": true, \"causal\": true"),
         {-1, -1},
         10000,
         1,
         .factor = 0,
         .feed_bias = true,
         .tied = true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ra_model_config c, back;
        char text[4096], ours[4096];
        expect(read_config(cases[i].text, &c) == RA_OK, "%s: %s", cases[i].text, error);
        for (int l = 0; l < 2; l++)
            expect(c.lookback[l] ==
                       (cases[i].windows[l] < 0 ? RA_NO_LOOKBACK : cases[i].windows[l]),
                   "%s: window", cases[i].text);
        expect(c.rotary_theta == cases[i].theta && c.rotary_scale == cases[i].scale &&
                   c.rotary_scaling.factor == cases[i].factor,
               "%s: rotation", cases[i].text);
        expect(c.qkv_bias == cases[i].qkv_bias && c.out_bias == cases[i].out_bias &&
                   c.feed_bias == cases[i].feed_bias && c.tied == cases[i].tied,
               "%s: biases", cases[i].text);

        /* It comes back from its family's config, and from that of a checkpoint. */
        expect(ra_family_write(&c, "float32", text, sizeof text, error) > 0, "%s", error);
        expect(read_config(text, &back) == RA_OK, "%s: %s", text, error);
        ra_model_config_write(&back, ours, sizeof ours);
        ra_model_config_write(&c, text, sizeof text);
        ck_assert_str_eq(text, ours);
        expect(read_config(text, &back) == RA_OK, "%s: %s", text, error);
        ra_model_config_write(&back, ours, sizeof ours);
        ck_assert_str_eq(text, ours);
    }
}

TEST(fields_refused)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {OF("gemma3_text", ""), "models of model_type gemma3_text are not read: give llama"},
        {OF("mixtral", ""), "mixtral are not read: they are mixtures of experts"},
        {"{\"model_type\": true}", "of no text"},
        {OF("llama", ", \"attn_logit_softcapping\": 50.0"),
         "\"attn_logit_softcapping\" is no field of LlamaConfig"},
        {OF("gemma2", ", \"hidden_activation\": \"silu\""), "must be \"gelu_pytorch_tanh\""},
        {OF("gemma2", ", \"use_bidirectional_attention\": true"), "a query sees no later key"},
        {OF("gemma2", ", \"use_bidirectional_attention\": 0"), "must be false"},
        {OF("gemma2", ", \"final_logit_softcapping\": 0"), "a number above 0, or null"},
        {OF("gemma2", ", \"query_pre_attn_scalar\": 6.5"), "a whole number of 1 or more"},
        {OF("gemma2", ", \"sliding_window\": null, \"layer_types\": [\"full_attention\", "
                      "\"sliding_attention\"]"),
         "sliding_attention needs a sliding_window"},
        {OF("gpt_oss", ", \"num_local_experts\": 32"),
         "models of model_type gpt_oss are not read: they are mixtures of experts"},
        {OF("qwen3", ", \"num_experts\": 8"), "\"num_experts\" is no field of Qwen3Config"},
        {OF("mistral", ", \"attention_bias\": false"), "no field of MistralConfig"},
        {OF("llama", ", \"sliding_window\": 4"), "no field of LlamaConfig"},
        {OF("llama", ", \"hidden_act\": \"gelu\""), "\"hidden_act\" must be \"silu\""},
        {OF("llama", ", \"attention_dropout\": 0.1"), "\"attention_dropout\" must be 0: there is"},
        {OF("llama", ", \"partial_rotary_factor\": 0.5"), "\"partial_rotary_factor\" must be 1"},
        {OF("llama", ", \"quantization_config\": {\"bits\": 4}"),
         "\"quantization_config\" must be"},
        {OF("llama", ", \"auto_map\": {\"a\": \"b\"}"), "\"auto_map\" must be null"},
        {OF("llama", ", \"architectures\": [\"LlamaForSequenceClassification\"]"),
         "architectures must be [\"LlamaForCausalLM\"]"},
        {OF("llama", ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}"),
         "the rope_type dynamic is not there"},
        {OF("llama", ", \"rope_scaling\": {\"type\": \"longrope\"}"), "longrope is not there"},
        {OF("llama", ", \"rope_scaling\": {\"rope_type\": \"yarn\"}"),
         "rope_scaling has no factor"},
        {OF("llama", ", \"rope_scaling\": {" YARN ", \"low_freq_factor\": 1}"),
         "\"low_freq_factor\" of rope_scaling has no meaning"},
        {OF("llama", ", \"rope_scaling\": {" YARN ", \"truncate\": 1}"),
         "\"truncate\" of rope_scaling must be true or false"},
        {OF("llama", ", \"rope_scaling\": {" YARN ", \"attention_factor\": 0}"),
         "\"attention_factor\" of rope_scaling must be a number above 0"},
        {OF("llama", ", \"rope_scaling\": {" YARN ", \"original_max_position_embeddings\": 0.5}"),
         "must be a whole number above 0"},
        {OF("llama", ", \"rope_theta\": 1, \"rope_scaling\": {" YARN "}"), "rotary_theta above 1"},
        {OF("llama", ", \"rope_scaling\": {" YARN ", \"beta_fast\": 0.5}"), "high above low"},
        {OF("llama", ", \"rope_scaling\": {\"factor\": 2.0}"), "has no rope_type"},
        {OF("llama", ", \"rope_scaling\": {\"type\": \"linear\"}"), "\"factor\" of rope_scaling"},
        {OF("llama", ", \"rope_scaling\": {\"type\": \"linear\", \"rope_type\": \"llama3\"}"),
         "differ"},
        {OF("llama", ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2, \"beta_fast\": 1}"),
         "\"beta_fast\" of rope_scaling has no meaning"},
        {OF("llama", ", \"rope_scaling\": {" LLAMA3 "}, \"rope_parameters\": {" LLAMA3 "}"),
         "give one of them"},
        {OF("llama", ", \"rope_theta\": 5, \"rope_parameters\": {\"rope_theta\": 6}"),
         "rope_theta is 6 here, and 5 outside"},
        {OF("llama", ", \"rope_parameters\": {\"full_attention\": {}}"), "the same for all layers"},
        {OF("qwen2", ", \"layer_types\": [\"full_attention\"]"), "one for each of 2 layers"},
        {OF("qwen2", ", \"layer_types\": [\"full_attention\", \"chunked_attention\"]"),
         "must be full_attention or sliding_attention"},
        {OF("qwen2", ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]"),
         "needs use_sliding_window"},
        {OF("mistral", ", \"sliding_window\": 0"), "\"sliding_window\" is wrong"},
        {"{\"model_type\": \"llama\", \"vocab_size\": null}", "\"vocab_size\" is wrong"},
        {"{\"model_type\": \"llama\", \"num_key_value_heads\": 5}", "key_heads must divide heads"},
        {"{\"max_seq_len\": 5}", "has no \"num_tokens\""},
        {OF_MGQA(", \"alibi_pos_bias\": true"), "\"alibi_pos_bias\" must be false: models have no"},
        {OF_MGQA(", \"rotary_xpos\": true"), "there is no xpos"},
        {OF_MGQA(", \"attn_dropout\": 0.1"), "\"attn_dropout\" must be 0"},
        {OF_MGQA(", \"attn_one_kv_head\": true"), "give one of them"},
        {OF_MGQA(", \"rotary\": true"), "\"rotary\" is no field of MGQATransformer"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ra_model_config config;
        expect(read_config(cases[i].text, &config) == RA_INVALID, "%s", cases[i].text);
        expect(strstr(error, cases[i].words) && strncmp(error, "it: line ", 9) == 0, "%s: %s",
               cases[i].text, error);
    }
}

/* What Gemma 2 has of its own, as it is left out and as it is given. */
TEST(gemma)
{
    struct ra_model_config c;
    char text[4096];
    accepted(read_config(OF("gemma2", ""), &c));
    expect(c.family == RA_FAMILY_GEMMA2 && c.norm == RA_NORM_RMS_PLUS_ONE &&
               c.feed == RA_FEED_GEGLU && c.post_norm && c.tied && c.head_dim == 256 &&
               c.attention_scale == 0.0625 && c.softcap == 50 && c.logits_softcap == 30 &&
               c.embedding_scale == sqrt(8) && !c.qkv_bias && !c.feed_bias &&
               c.head_map == RA_GROUPED && c.lookback[0] == 4095 && c.lookback[1] == RA_NO_LOOKBACK,
           "parts");
    accepted(read_config(OF("gemma2", ", \"attn_logit_softcapping\": 2.5, "
                                      "\"final_logit_softcapping\": null, "
                                      "\"query_pre_attn_scalar\": 4"),
                         &c));
    expect(c.softcap == 2.5 && c.logits_softcap == 0 && c.attention_scale == 0.5, "given");
    accepted(read_config(OF("gemma2", ", \"use_bidirectional_attention\": null"), &c));
    accepted(read_config(OF("gemma2", ", \"use_bidirectional_attention\": false"), &c));
    static const char *const words[] = {"embedding_scale", "post_norm", "norm", "feed",
                                        "attention_scale"};
    for (int i = 0; i < 5; i++) {
        struct ra_model_config other = c;
        other.embedding_scale += i == 0;
        other.post_norm = i != 1;
        other.attention_scale = i == 4 ? 0.3 : other.attention_scale;
        other.norm = i == 2 ? RA_NORM_RMS : other.norm;
        other.feed = i == 3 ? RA_FEED_SWIGLU : other.feed;
        expect(ra_family_write(&other, "float32", text, sizeof text, error) == -1, "%s", words[i]);
        expect(strncmp(error, words[i], strlen(words[i])) == 0 && strstr(error, "family gemma2"),
               "%s", error);
    }
}

/* YaRN as configs have it, and its factor of cosines and sines, which is one of scores here. */
TEST(yarn)
{
    static const struct {
        const char *text;
        double low, high, attention; /* 0: 0.1 log(4) + 1 */
        int64_t original;
        bool whole;
    } cases[] = {
        {OF("llama", ", \"rope_scaling\": {" YARN "}"), 1, 32, 0, 2048, true},
        {OF("mistral", ", \"rope_scaling\": {" YARN ", \"original_max_position_embeddings\": 40, "
                       "\"attention_factor\": null, \"beta_fast\": null}"),
         1, 32, 0, 40, true},
        {OF("qwen3", ", \"max_position_embeddings\": 160, \"rope_parameters\": {\"rope_type\": "
                     "\"yarn\", \"factor\": null, \"original_max_position_embeddings\": 40, "
                     "\"rope_theta\": 500, \"truncate\": false, \"beta_slow\": 0.5, "
                     "\"beta_fast\": 8}"),
         0.5, 8, 0, 40, false},
        {OF("qwen2", ", \"rope_scaling\": {" YARN ", \"attention_factor\": 1}"), 1, 32, 1, 32768,
         true},
        {OF("llama", ", \"rope_scaling\": {" YARN ", \"attention_factor\": 1.2345}"), 1, 32, 1.2345,
         2048, true},
        {OF("llama", ", \"rope_scaling\": {" YARN ", \"mscale\": 0.707, \"mscale_all_dim\": 2}"), 1,
         32, (0.0707 * LOG_4 + 1) / (0.2 * LOG_4 + 1), 2048, true},
        {OF("gemma2", ", \"query_pre_attn_scalar\": 144, \"rope_scaling\": {" YARN "}"), 1, 32, 0,
         8192, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ra_model_config c, back;
        char text[4096], ours[4096];
        accepted(read_config(cases[i].text, &c));
        bool differs = cases[i].original != c.longest && c.longest != 4 * cases[i].original;
        expect(differs == (strstr(note, "transformers 5") != NULL), "%zu: %s", i, note);
        double factor = cases[i].attention > 0 ? cases[i].attention : 0.1 * LOG_4 + 1;
        double plain = c.family == RA_FAMILY_GEMMA2 ? 12 : sqrt((double)c.head_dim);
        expect(fabs(c.attention_scale * plain - factor * factor) < 1e-14, "%zu: scale %.17g", i,
               c.attention_scale);
        expect(c.rotary_scaling.kind ==
                       (cases[i].whole ? RA_ROTARY_YARN : RA_ROTARY_YARN_UNTRUNCATED) &&
                   c.rotary_scaling.factor == 4 && c.rotary_scaling.low == cases[i].low &&
                   c.rotary_scaling.high == cases[i].high &&
                   c.rotary_scaling.original == cases[i].original && c.rotary_scale == 1,
               "%zu", i);
        expect(ra_family_write(&c, "float32", text, sizeof text, error) > 0, "%s", error);
        expect(!strstr(text, "attention_factor") == (cases[i].attention == 0), "%s", text);
        accepted(read_config(text, &back));
        ra_model_config_write(&back, ours, sizeof ours);
        ra_model_config_write(&c, text, sizeof text);
        ck_assert_str_eq(text, ours);
        accepted(read_config(text, &back));
        ra_model_config_write(&back, ours, sizeof ours);
        ck_assert_str_eq(text, ours);
    }

    /* Any factor is found again: its square is the same number. */
    for (int i = 0; i < 10000; i++) {
        struct ra_model_config c, back;
        char text[4096];
        accepted(read_config(cases[0].text, &c));
        c.head_dim = 2 + 2 * (int64_t)random_below(&state, 100);
        double factor = exp(random_number(&state));
        c.attention_scale = 1 / sqrt((double)c.head_dim) * factor * factor;
        expect(ra_family_write(&c, "float32", text, sizeof text, error) > 0, "%s", error);
        accepted(read_config(text, &back));
        expect(back.attention_scale == c.attention_scale, "%.17g, not %.17g", back.attention_scale,
               c.attention_scale);
    }

    /* Gemma 2 has a scale of its own, so YaRN's factor must be the usual one. */
    struct ra_model_config c;
    char text[4096];
    accepted(
        read_config(OF("gemma2", ", \"rope_scaling\": {" YARN ", \"attention_factor\": 3}"), &c));
    expect(ra_family_write(&c, "float32", text, sizeof text, error) == -1 &&
               strstr(error, "attention_scale"),
           "%s", error);
}

/* A part that a family has not is named before anything is written. */
TEST(not_written)
{
    struct ra_model_config good, c;
    char text[4096];
    accepted(read_config(OF("llama", ""), &good));
    static const char *const words[] = {
        "softcap",         "head_map",        "norm",        "causal",         "lookback",
        "head_norm",       "positions",       "logits_bias", "logits_softcap", "post_norm",
        "embedding_scale", "attention_scale", "sinks"};
    for (int i = 0; i < 13; i++) {

        c = good;
        c.logits_softcap = i == 8 ? 5 : 0;
        c.post_norm = i == 9;
        c.embedding_scale = i == 10 ? 2 : 1;
        c.attention_scale = i == 11 ? 2 : 0;
        c.sinks = i == 12;
        c.softcap = i == 0 ? 5 : 0;
        c.head_map = i == 1 ? RA_INTERLEAVED : RA_GROUPED;
        c.norm = i == 2 ? RA_NORM_UNIT : RA_NORM_RMS;
        c.causal = i != 3;
        c.lookback[0] = i == 4 ? 3 : RA_NO_LOOKBACK;
        c.head_norm = i == 5;
        c.position = i == 6 ? RA_POSITIONS_LEARNED : RA_POSITIONS_ROTARY;
        c.logits_bias = i == 7;
        expect(ra_family_write(&c, "float32", text, sizeof text, error) == -1, "%s", words[i]);
        expect(strncmp(error, words[i], strlen(words[i])) == 0 && strstr(error, "family llama"),
               "%s", error);
    }
}

/* ---- Folders. */

/* Stores these arrays anew, one of them as another, or one more. */
static void store(struct ra_to_store *list, int count)
{
    char path[2048];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
    accepted(ra_safetensors_write(folder, list, count, RA_STORED_F32, 0, true, error));
}

TEST(folders)
{
    for (int tied = 0; tied < 2; tied++) {
        struct ra_model_config c;
        accepted(read_config(
            tied ? OF("qwen2", ", \"tie_word_embeddings\": true") : OF("qwen2", ""), &c));
        int64_t n = ra_parameter_numbers(&c);
        float *x = randoms(n), *y = poisoned(n), *other = randoms(200);
        int count = ra_family_arrays(&c, NULL, error);
        struct ra_family_array names[60];
        struct ra_to_store list[60], more[60];
        expect(count == (tied ? 26 : 27) && ra_family_arrays(&c, names, error) == count, "%d",
               count);
        for (int i = 0; i < ra_parameter_count(&c); i++) /* between arrays all is 0 */
            for (int64_t e = ra_parameter(&c, i).first + ra_parameter(&c, i).count;
                 e < (i + 1 < ra_parameter_count(&c) ? ra_parameter(&c, i + 1).first : n); e++)
                x[e] = 0;
        for (int i = 0; i < count; i++) {
            list[i] = (struct ra_to_store){.axes = names[i].columns > 0 ? 2 : 1,
                                           .shape = {names[i].rows, names[i].columns},
                                           .numbers = x + names[i].first};
            memcpy(list[i].name, names[i].name, sizeof list[i].name);
        }
        store(memcpy(more, list, sizeof list), count);
        accepted(ra_folder_weights(folder, &c, y, error));
        expect(same_bits(x, y, n), "weights");
        for (int i = 0; i < count; i++) { /* missing, of another shape, and called otherwise */
            memcpy(more, list, sizeof list);
            more[i] = more[count - 1];
            store(more, count - 1);
            refused(ra_folder_weights(folder, &c, y, error), list[i].name);
            memcpy(more, list, sizeof list);
            more[i].shape[0]--;
            store(more, count);
            refused(ra_folder_weights(folder, &c, y, error), list[i].name);
        }
        memcpy(more, list, sizeof list);
        more[count] = (struct ra_to_store){.name = "model.layers.2.mlp.up_proj.weight",
                                           .axes = 2,
                                           .shape = {5, 8},
                                           .numbers = other};
        store(more, count + 1);
        refused(ra_folder_weights(folder, &c, y, error), "model.layers.2.mlp.up_proj.weight");
        memcpy(more, list, sizeof list);
        for (int same = 0; same < 2 && tied; same++) { /* lm_head beside tied weights */
            memcpy(more, list, sizeof list);
            more[count] = (struct ra_to_store){
                .name = "lm_head.weight", .axes = 2, .shape = {7, 8}, .numbers = same ? x : other};
            store(more, count + 1);
            enum ra_status status = ra_folder_weights(folder, &c, y, error);
            if (same)
                accepted(status);
            else
                refused(status, "\"lm_head.weight\" is not the embedding's table");
        }
        for (int right = 0; right < 2; right++) { /* frequencies */
            float frequency = right ? 1.0f : 2.0f;
            memcpy(more, list, sizeof list);
            more[count] =
                (struct ra_to_store){.name = "model.layers.0.self_attn.rotary_emb.inv_freq",
                                     .axes = 1,
                                     .shape = {1},
                                     .numbers = &frequency};
            store(more, count + 1);
            enum ra_status status = ra_folder_weights(folder, &c, y, error);
            if (right)
                accepted(status);
            else
                refused(status, "inv_freq");
        }
        release();
    }
}

/* The disk fails at paths that end in this; NULL: it does not. A program may stand in for a
 * function of libc. */
static const char *failing;
int lstat(const char *path, struct stat *status)
{
    size_t length = strlen(path), end = failing ? strlen(failing) : 0;
    if (end == 0 || length < end || strcmp(path + length - end, failing) != 0)
        return fstatat(AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
    errno = EIO;
    return -1;
}

/* A pipe in the place of a file is refused: nobody may ever write to it. */
TEST(pipes)
{
    static const char *const names[] = {"config.json", "model.safetensors",
                                        "model.safetensors.index.json", "model.bin"};
    struct ra_model_config c, other;
    struct ra_training training;
    char path[1100], at[1200];
    accepted(read_config(OF("llama", ""), &c));
    float *x = poisoned(ra_parameter_numbers(&c));
    snprintf(path, sizeof path, "%s/pipes", folder);
    expect(mkdir(path, 0777) == 0, "%s", path);
    for (int i = 0; i < 4; i++) {
        snprintf(at, sizeof at, "%s/%s", path, names[i]);
        expect(mkfifo(at, 0666) == 0, "%s", at);
        refused(i == 0   ? ra_folder_config(path, &other, sizeof other, note, error)
                : i == 3 ? ra_checkpoint_look(at, &other, sizeof other, &training, error)
                         : ra_folder_weights(path, &c, x, error),
                names[i]);
        expect(remove(at) == 0, "%s", at);
    }

    /* A number that is none has the name that it has there. */
    ra_parameters_begin(&c, 1, x);
    struct ra_layer_weights w = RA_LAYER_WEIGHTS_INIT;
    accepted(ra_model_layer_weights(&c, x, 1, &w, error));
    w.up[c.hidden * c.dim + c.dim + 2] = NAN;
    accepted(ra_folder_store(path, &c, x, false, 0, error));
    refused(ra_folder_weights(path, &c, x, error), "layers.1.mlp.up_proj.weight[1, 2] is nan");
    release();
}

/* A name that cannot be looked up is not taken for one that is not there: the folder may then have
 * two models, and which of them was meant nobody knows. */
TEST(disk_fails)
{
    static const char *const names[] = {"/model.safetensors", "/model.safetensors.index.json",
                                        "/weights"};
    struct ra_model_config c;
    accepted(read_config(OF("llama", ""), &c));
    float *x = poisoned(ra_parameter_numbers(&c)), number = 1;
    struct ra_to_store one = {.name = "a", .axes = 1, .shape = {1}, .numbers = &number};
    store(&one, 1);
    for (int i = 0; i < 3; i++) {
        failing = names[i];
        refused(ra_folder_weights(folder, &c, x, error), names[i]);
        refused(ra_folder_weights(folder, &c, x, error), ": Input/output error");
        struct ra_safetensors file;
        if (i < 2)
            refused(ra_safetensors_open(&file, folder, error), ": Input/output error");
    }
    failing = NULL;
    char path[2048];
    snprintf(path, sizeof path, "%s/weights", folder);
    expect(symlink("nowhere", path) == 0, "%s", path);
    refused(ra_folder_weights(folder, &c, x, error), "has .safetensors files and a folder weights");
    expect(unlink(path) == 0, "%s", path);
    release();
}

int main(void)
{
    return suite_main_in_folder("families", 60);
}
