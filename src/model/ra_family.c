/* ra_family: families of models. See ra_family.h.
 *
 * Chapter 10c.
 */
#include "ra_family.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_error.h"
#include "ra_text.h"

/* ---- Fields of configs. */

enum {
    MGQA = 1 << RA_FAMILY_MGQA,
    LLAMA = 1 << RA_FAMILY_LLAMA,
    MISTRAL = 1 << RA_FAMILY_MISTRAL,
    QWEN2 = 1 << RA_FAMILY_QWEN2,
    QWEN3 = 1 << RA_FAMILY_QWEN3,
    GEMMA2 = 1 << RA_FAMILY_GEMMA2,
    QWENS = QWEN2 | QWEN3,
    SWIGLUS = LLAMA | MISTRAL | QWENS, /* those whose feed-forwards are SwiGLU */
    HUGGING = SWIGLUS | GEMMA2         /* those of the package transformers */
};

/* USED: the model is made from it. FREE: any value, as it changes no result. ONLY: with another
 * value the model would be another one, which is not there. */
enum use { USED, FREE, ONLY };

struct field {
    const char *name;
    int families;
    enum use use;
    const char *value; /* what holds if it is left out, as JSON; of FREE, NULL */
    const char *why;   /* of ONLY: what is not there */
};

static const struct field fields[] = {
    /* Sizes. */
    {"vocab_size", LLAMA | MISTRAL, USED, "32000", NULL},
    {"vocab_size", QWENS, USED, "151936", NULL},
    {"vocab_size", GEMMA2, USED, "256000", NULL},
    {"hidden_size", SWIGLUS, USED, "4096", NULL},
    {"hidden_size", GEMMA2, USED, "2304", NULL},
    {"intermediate_size", LLAMA, USED, "11008", NULL},
    {"intermediate_size", MISTRAL, USED, "14336", NULL},
    {"intermediate_size", QWENS, USED, "22016", NULL},
    {"intermediate_size", GEMMA2, USED, "9216", NULL},
    {"num_hidden_layers", SWIGLUS, USED, "32", NULL},
    {"num_hidden_layers", GEMMA2, USED, "26", NULL},
    {"num_attention_heads", SWIGLUS, USED, "32", NULL},
    {"num_attention_heads", GEMMA2, USED, "8", NULL},
    {"num_key_value_heads", LLAMA, USED, "null", NULL},
    {"num_key_value_heads", MISTRAL, USED, "8", NULL},
    {"num_key_value_heads", QWENS, USED, "32", NULL},
    {"num_key_value_heads", GEMMA2, USED, "4", NULL},
    {"head_dim", LLAMA | MISTRAL | QWEN2, USED, "null", NULL},
    {"head_dim", QWEN3, USED, "128", NULL},
    {"head_dim", GEMMA2, USED, "256", NULL},
    {"max_position_embeddings", LLAMA, USED, "2048", NULL},
    {"max_position_embeddings", MISTRAL, USED, "131072", NULL},
    {"max_position_embeddings", QWENS, USED, "32768", NULL},
    {"max_position_embeddings", GEMMA2, USED, "8192", NULL},

    /* Parts. */
    {"model_type", HUGGING, USED, "null", NULL},
    {"hidden_act", SWIGLUS, ONLY, "\"silu\"", "the gate of this family is silu alone"},
    {"hidden_act", GEMMA2, FREE, NULL, NULL},          /* the package does not read it, */
    {"sliding_window_size", GEMMA2, FREE, NULL, NULL}, /* nor this, which models have */
    {"hidden_activation", GEMMA2, ONLY, "\"gelu_pytorch_tanh\"",
     "the gate of this family is the approximation of GELU alone"},
    {"rms_norm_eps", HUGGING, USED, "0.000001", NULL},
    {"tie_word_embeddings", SWIGLUS, USED, "false", NULL},
    {"tie_word_embeddings", GEMMA2, USED, "true", NULL},
    {"query_pre_attn_scalar", GEMMA2, USED, "256", NULL},
    {"attn_logit_softcapping", GEMMA2, USED, "50", NULL},
    {"final_logit_softcapping", GEMMA2, USED, "30", NULL},
    {"use_bidirectional_attention", GEMMA2, ONLY, "false", "a query sees no later key"},
    {"attention_bias", LLAMA | QWEN3 | GEMMA2, USED, "false", NULL},
    {"mlp_bias", LLAMA, USED, "false", NULL},
    {"rope_parameters", HUGGING, USED, "null", NULL},
    {"rope_scaling", HUGGING, USED, "null", NULL},
    {"rope_theta", HUGGING, USED, "10000", NULL},
    {"partial_rotary_factor", HUGGING, ONLY, "1", "all numbers of a head are rotated"},
    {"sliding_window", MISTRAL | QWENS | GEMMA2, USED, "4096", NULL},
    {"use_sliding_window", QWENS, USED, "false", NULL},
    {"max_window_layers", QWENS, USED, "28", NULL},
    {"layer_types", QWENS | GEMMA2, USED, "null", NULL},
    {"attention_dropout", HUGGING, ONLY, "0", "there is no dropout"},

    /* What was meant for other models, or for training and generation. */
    {"architectures", HUGGING, USED, "null", NULL},
    {"quantization_config", HUGGING, ONLY, "null", "weights must be floating-point numbers"},
    {"auto_map", HUGGING, ONLY, "null", "a model with code of its own may compute anything"},
    {"is_encoder_decoder", HUGGING, ONLY, "false", "there is no encoder"},
    {"add_cross_attention", HUGGING, ONLY, "false", "there is no other sequence to attend to"},
    {"pruned_heads", HUGGING, ONLY, "{}", "all layers have all heads"},
    {"chunk_size_feed_forward", HUGGING, FREE, NULL, NULL},
    {"pretraining_tp", LLAMA, FREE, NULL, NULL},
    {"initializer_range", HUGGING, FREE, NULL, NULL},
    {"use_cache", HUGGING, FREE, NULL, NULL},
    {"cache_implementation", HUGGING, FREE, NULL, NULL},
    {"dtype", HUGGING, FREE, NULL, NULL},
    {"torch_dtype", HUGGING, FREE, NULL, NULL},
    {"transformers_version", HUGGING, FREE, NULL, NULL},
    {"_name_or_path", HUGGING, FREE, NULL, NULL},
    {"_attn_implementation", HUGGING, FREE, NULL, NULL},
    {"attn_implementation", HUGGING, FREE, NULL, NULL},
    {"bos_token_id", HUGGING, FREE, NULL, NULL},
    {"eos_token_id", HUGGING, FREE, NULL, NULL},
    {"pad_token_id", HUGGING, FREE, NULL, NULL},
    {"sep_token_id", HUGGING, FREE, NULL, NULL},
    {"id2label", HUGGING, FREE, NULL, NULL},
    {"label2id", HUGGING, FREE, NULL, NULL},
    {"problem_type", HUGGING, FREE, NULL, NULL},
    {"finetuning_task", HUGGING, FREE, NULL, NULL},
    {"task_specific_params", HUGGING, FREE, NULL, NULL},
    {"tokenizer_class", HUGGING, FREE, NULL, NULL},
    {"output_attentions", HUGGING, FREE, NULL, NULL},
    {"output_hidden_states", HUGGING, FREE, NULL, NULL},
    {"return_dict", HUGGING, FREE, NULL, NULL},
    {"return_dict_in_generate", HUGGING, FREE, NULL, NULL},
    {"output_scores", HUGGING, FREE, NULL, NULL},
    {"torchscript", HUGGING, FREE, NULL, NULL},
    {"use_bfloat16", HUGGING, FREE, NULL, NULL},
    {"tf_legacy_loss", HUGGING, FREE, NULL, NULL},
    {"is_decoder", HUGGING, FREE, NULL, NULL},
    {"decoder_start_token_id", HUGGING, FREE, NULL, NULL},
    {"cross_attention_hidden_size", HUGGING, FREE, NULL, NULL},
    {"tie_encoder_decoder", HUGGING, FREE, NULL, NULL},
    {"prefix", HUGGING, FREE, NULL, NULL},
    {"max_length", HUGGING, FREE, NULL, NULL},
    {"min_length", HUGGING, FREE, NULL, NULL},
    {"do_sample", HUGGING, FREE, NULL, NULL},
    {"early_stopping", HUGGING, FREE, NULL, NULL},
    {"num_beams", HUGGING, FREE, NULL, NULL},
    {"num_beam_groups", HUGGING, FREE, NULL, NULL},
    {"diversity_penalty", HUGGING, FREE, NULL, NULL},
    {"temperature", HUGGING, FREE, NULL, NULL},
    {"top_k", HUGGING, FREE, NULL, NULL},
    {"top_p", HUGGING, FREE, NULL, NULL},
    {"typical_p", HUGGING, FREE, NULL, NULL},
    {"repetition_penalty", HUGGING, FREE, NULL, NULL},
    {"length_penalty", HUGGING, FREE, NULL, NULL},
    {"no_repeat_ngram_size", HUGGING, FREE, NULL, NULL},
    {"encoder_no_repeat_ngram_size", HUGGING, FREE, NULL, NULL},
    {"bad_words_ids", HUGGING, FREE, NULL, NULL},
    {"num_return_sequences", HUGGING, FREE, NULL, NULL},
    {"forced_bos_token_id", HUGGING, FREE, NULL, NULL},
    {"forced_eos_token_id", HUGGING, FREE, NULL, NULL},
    {"remove_invalid_values", HUGGING, FREE, NULL, NULL},
    {"exponential_decay_length_penalty", HUGGING, FREE, NULL, NULL},
    {"suppress_tokens", HUGGING, FREE, NULL, NULL},
    {"begin_suppress_tokens", HUGGING, FREE, NULL, NULL},

    /* Tokens, embedding and logits: MGQATransformer. */
    {"num_tokens", MGQA, USED, NULL, NULL},
    {"max_seq_len", MGQA, USED, NULL, NULL},
    {"tie_embedding", MGQA, USED, "false", NULL},
    {"emb_dim", MGQA, ONLY, "null", "tokens have dim numbers"},
    {"logits_dim", MGQA, ONLY, "null", "there is one logit for each token"},
    {"max_mem_len", MGQA, FREE, NULL, NULL}, /* a caller's memories alone */
    {"shift_mem_down", MGQA, FREE, NULL, NULL},
    {"attn_z_loss_weight", MGQA, FREE, NULL, NULL}, /* if asked for in a call */
    {"emb_dropout", MGQA, ONLY, "0", "there is no dropout"},
    {"post_emb_norm", MGQA, ONLY, "false", "no norm follows the embedding"},
    {"num_memory_tokens", MGQA, ONLY, "null", "no tokens are put before a text"},
    {"use_abs_pos_emb", MGQA, ONLY, "true", "positions are learned, or rotated in other families"},
    {"scaled_sinu_pos_emb", MGQA, ONLY, "false", "positions are learned, not sines"},
    {"l2norm_embed", MGQA, ONLY, "false", "the embedding is used as it is"},
    {"emb_frac_gradient", MGQA, ONLY, "1", "gradients of the embedding are whole"},

    /* Sizes, and what is attended to: its Decoder, from here on. */
    {"dim", MGQA, USED, NULL, NULL},
    {"depth", MGQA, USED, NULL, NULL},
    {"heads", MGQA, USED, "8", NULL},
    {"causal", MGQA, USED, "true", NULL},
    {"cross_attend", MGQA, ONLY, "false", "there is no other sequence to attend to"},
    {"only_cross", MGQA, ONLY, "false", "there is no other sequence to attend to"},

    /* Norms. */
    {"use_scalenorm", MGQA, ONLY, "false", "norms are LayerNorm"},
    {"use_rmsnorm", MGQA, ONLY, "false", "norms are LayerNorm"},
    {"use_simple_rmsnorm", MGQA, ONLY, "false", "norms are LayerNorm"},

    /* Positions. */
    {"alibi_pos_bias", MGQA, ONLY, "false", "models have no ALiBi (attention has: slopes)"},
    {"alibi_num_heads", MGQA, ONLY, "null", "models have no ALiBi"},
    {"rel_pos_bias", MGQA, ONLY, "false", "scores have no bias by distance"},
    {"rel_pos_num_buckets", MGQA, FREE, NULL, NULL}, /* of rel_pos_bias */
    {"rel_pos_max_distance", MGQA, FREE, NULL, NULL},
    {"dynamic_pos_bias", MGQA, ONLY, "false", "scores have no bias by distance"},
    {"dynamic_pos_bias_log_distance", MGQA, FREE, NULL, NULL}, /* of dynamic_pos_bias */
    {"dynamic_pos_bias_mlp_depth", MGQA, FREE, NULL, NULL},
    {"dynamic_pos_bias_norm", MGQA, FREE, NULL, NULL},
    {"rotary_pos_emb", MGQA, ONLY, "false", "it rotates a part of a head, which is not there"},
    {"rotary_emb_dim", MGQA, FREE, NULL, NULL}, /* of rotary_pos_emb */
    {"rotary_xpos", MGQA, ONLY, "false", "there is no xpos"},
    {"rotary_interpolation_factor", MGQA, FREE, NULL, NULL},
    {"rotary_xpos_scale_base", MGQA, FREE, NULL, NULL},
    {"rotary_base_rescale_factor", MGQA, FREE, NULL, NULL},

    /* Layers, and what they add. */
    {"custom_layers", MGQA, ONLY, "null", "attention and feed-forward take turns"},
    {"sandwich_coef", MGQA, ONLY, "null", "attention and feed-forward take turns"},
    {"par_ratio", MGQA, ONLY, "null", "attention and feed-forward take turns"},
    {"weight_tie_layers", MGQA, ONLY, "false", "each layer has weights of its own"},
    {"layers_execute_order", MGQA, ONLY, "null", "each layer is computed once"},
    {"residual_attn", MGQA, ONLY, "false", "scores are not passed on"},
    {"cross_residual_attn", MGQA, ONLY, "false", "scores are not passed on"},
    {"macaron", MGQA, ONLY, "false", "attention and feed-forward take turns"},
    {"pre_norm", MGQA, ONLY, "true", "norms are before layers"},
    {"pre_norm_has_final_norm", MGQA, FREE, NULL, NULL}, /* the package does not read it */
    {"gate_residual", MGQA, ONLY, "false", "what a layer gives is added"},
    {"scale_residual", MGQA, ONLY, "false", "what a layer gives is added"},
    {"scale_residual_constant", MGQA, ONLY, "1", "what a layer gives is added"},
    {"shift_tokens", MGQA, ONLY, "0", "tokens are not shifted"},
    {"sandwich_norm", MGQA, ONLY, "false", "norms are before layers"},
    {"resi_dual", MGQA, ONLY, "false", "norms are before layers"},
    {"resi_dual_scale", MGQA, FREE, NULL, NULL}, /* of resi_dual */
    {"zero_init_branch_output", MGQA, FREE, NULL, NULL},
    {"layer_dropout", MGQA, ONLY, "0", "there is no dropout"},
    {"cross_attn_tokens_dropout", MGQA, ONLY, "0", "there is no dropout"},

    /* Attention: its MGQA. */
    {"attn_dim_head", MGQA, USED, "64", NULL},
    {"attn_kv_heads", MGQA, USED, "null", NULL},
    {"attn_one_kv_head", MGQA, USED, "false", NULL},
    {"attn_max_attend_past", MGQA, USED, "null", NULL},
    {"attn_flash", MGQA, ONLY, "false", "the package has no such function either"},
    {"attn_talking_heads", MGQA, ONLY, "false", "heads do not mix their scores"},
    {"attn_head_scale", MGQA, ONLY, "false", "heads have no scale of their own"},
    {"attn_sparse_topk", MGQA, ONLY, "null", "a query sees all that its window has"},
    {"attn_num_mem_kv", MGQA, ONLY, "0", "there are no keys without tokens"},
    {"attn_dropout", MGQA, ONLY, "0", "there is no dropout"},
    {"attn_on_attn", MGQA, ONLY, "false", "attention ends in one matrix"},
    {"attn_gate_values", MGQA, ONLY, "false", "attention has no gate"},
    {"attn_zero_init_output", MGQA, FREE, NULL, NULL},
    {"attn_qk_norm", MGQA, ONLY, "false", "q and k have a norm only as in Qwen3"},
    {"attn_qk_norm_groups", MGQA, FREE, NULL, NULL}, /* of attn_qk_norm */
    {"attn_qk_norm_scale", MGQA, FREE, NULL, NULL},
    {"attn_qk_norm_dim_scale", MGQA, FREE, NULL, NULL},
    {"attn_shared_kv", MGQA, ONLY, "false", "values are not the keys"},
    {"attn_value_dim_head", MGQA, ONLY, "null", "values are as long as keys"},
    {"attn_tensor_product", MGQA, ONLY, "false", "what attention gives is not multiplied"},
    {"attn_add_zero_kv", MGQA, ONLY, "false", "there are no keys without tokens"},
    {"attn_rotary_embed_values", MGQA, FREE, NULL, NULL}, /* of rotary_pos_emb */
    {"attn_onnxable", MGQA, FREE, NULL, NULL},

    /* Feed-forward: its FeedForward. */
    {"ff_mult", MGQA, USED, "4", NULL},
    {"ff_no_bias", MGQA, USED, "false", NULL},
    {"ff_dim_out", MGQA, ONLY, "null", "a feed-forward gives dim numbers"},
    {"ff_glu", MGQA, ONLY, "false", "the gate is there only as in Llama"},
    {"ff_glu_mult_bias", MGQA, FREE, NULL, NULL}, /* of ff_glu */
    {"ff_swish", MGQA, ONLY, "false", "without a gate there is GELU alone"},
    {"ff_relu_squared", MGQA, ONLY, "false", "without a gate there is GELU alone"},
    {"ff_post_act_ln", MGQA, ONLY, "false", "a feed-forward has no norm inside"},
    {"ff_dropout", MGQA, ONLY, "0", "there is no dropout"},
    {"ff_zero_init_output", MGQA, FREE, NULL, NULL},
};
enum { FIELDS = sizeof fields / sizeof *fields };

const char *const ra_family_names[] = {
    "ring-attention-pytorch", "mgqa", "llama", "mistral", "qwen2", "qwen3", "gemma2", NULL};

/* What the names of a family's classes begin with, in transformers. */
static const char *const stems[] = {"", "", "Llama", "Mistral", "Qwen2", "Qwen3", "Gemma2"};
enum { FAMILIES = sizeof stems / sizeof *stems };

/* Known ones whose feed-forwards are many, of which a token takes some. */
static const char *const experts[] = {"deepseek_v2", "deepseek_v3", "dbrx",       "gpt_oss",
                                      "mixtral",     "olmoe",       "phimoe",     "qwen2_moe",
                                      "qwen3_moe",   "granitemoe",  "qwen3_next", NULL};

/* ---- Reading. */

/* What is read, and whether something was refused: the first error is the one that is told. */
struct reader {
    const struct ra_json_text *json;
    int family; /* as a bit */
    char *note, *error;
    bool failed;
};

static const struct field *find_field(const struct reader *r, const char *name)
{
    for (int f = 0; f < FIELDS; f++)
        if (fields[f].families & r->family && strcmp(fields[f].name, name) == 0)
            return &fields[f];
    return NULL;
}

static const struct ra_json *given(const struct reader *r, const char *name)
{
    return ra_json_member(r->json->root, name);
}

__attribute__((format(printf, 3, 4))) static void refuse(struct reader *r,
                                                         const struct ra_json *value,
                                                         const char *format, ...)
{
    char reason[RA_ERROR_SIZE];
    va_list values;
    if (r->failed)
        return;
    r->failed = true;
    va_start(values, format);
    vsnprintf(reason, sizeof reason, format, values);
    va_end(values);
    ra_json_refuse(r->json, value ? value : r->json->root, r->error, "%s", reason);
}

/* The field's value, or NULL if it is left out; `text` is its default then. A field that has none
 * must be given. */
static const struct ra_json *value_of(struct reader *r, const char *name, const char **text)
{
    const struct ra_json *value = given(r, name);
    const struct field *field = find_field(r, name);
    *text = field ? field->value : NULL;
    if (!value && !*text)
        refuse(r, NULL, "has no \"%s\"", name);
    return value;
}

/* A whole number from `least` on; -1 for null, if the field may be that. */
static int64_t whole(struct reader *r, const char *name, int64_t least, bool optional)
{
    const char *text;
    const struct ra_json *value = value_of(r, name, &text);
    int64_t number = -1;
    if (!value)
        return text && strcmp(text, "null") != 0 ? strtoll(text, NULL, 10) : -1;
    if (optional && value->kind == RA_JSON_NULL)
        return -1;
    if (!ra_json_whole(value, &number) || number < least)
        refuse(r, value, "\"%s\" is wrong: give a whole number of %" PRId64 " or more%s", name,
               least, optional ? ", or null" : "");
    return number;
}

static double real(struct reader *r, const char *name)
{
    const char *text;
    const struct ra_json *value = value_of(r, name, &text);
    double number = 0;
    if (!value)
        return text ? strtod(text, NULL) : 0;
    if (!ra_json_real(value, &number))
        refuse(r, value, "\"%s\" is wrong: give a number", name);
    return number;
}

static bool flag(struct reader *r, const char *name)
{
    const char *text;
    const struct ra_json *value = value_of(r, name, &text);
    if (!value)
        return text && strcmp(text, "true") == 0;
    if (value->kind != RA_JSON_TRUE && value->kind != RA_JSON_FALSE)
        refuse(r, value, "\"%s\" is wrong: give true or false", name);
    return value->kind == RA_JSON_TRUE;
}

/* Whether a value is what this text of JSON says: numbers by their value; an empty object too. No
 * value is as good as false. */
static bool is_value(const struct ra_json *value, const char *text)
{
    double number;
    char quoted[40];
    switch (value->kind) {
    case RA_JSON_NULL:
        return strcmp(text, "null") == 0 || strcmp(text, "false") == 0;
    case RA_JSON_FALSE:
        return strcmp(text, "false") == 0;
    case RA_JSON_TRUE:
        return strcmp(text, "true") == 0;
    case RA_JSON_NUMBER:
        return strspn(text, "0123456789.") == strlen(text) && ra_json_real(value, &number) &&
               number == strtod(text, NULL);
    case RA_JSON_TEXT:
        snprintf(quoted, sizeof quoted, "\"%s\"", value->text);
        return strcmp(text, quoted) == 0;
    default:
        return value->count == 0 && strcmp(text, value->kind == RA_JSON_LIST ? "[]" : "{}") == 0;
    }
}

/* Every field is known, and has its value if that is the only one. */
static void check_fields(struct reader *r, const char *class)
{
    for (const struct ra_json *value = r->json->root->first; value; value = value->next) {
        const struct field *field = find_field(r, value->name);
        if (!field)
            refuse(r, value, "\"%.80s\" is no field of %s that is known here", value->name, class);
        else if (field->use == ONLY && !is_value(value, field->value))
            refuse(r, value, "\"%s\" must be %s: %s", value->name, field->value, field->why);
    }
}

/* ---- Of transformers. */

/* A number of rope_parameters or rope_scaling. */
static double rope_number(struct reader *r, const struct ra_json *rope, const char *name)
{
    const struct ra_json *value = ra_json_member(rope, name);
    double number = 0;
    if (!value || !ra_json_real(value, &number) || !(number > 0))
        refuse(r, value ? value : rope, "\"%s\" of %s must be a number above 0", name, rope->name);
    return number;
}

/* The types of rotation that are known, and what a config may say of each. */
enum rope { DEFAULT = 1, LINEAR = 2, LLAMA3 = 4, YARN = 8, ANY_ROPE = 15 };
static const struct {
    const char *name;
    enum rope type;
} rope_types[] = {{"default", DEFAULT}, {"linear", LINEAR}, {"llama3", LLAMA3}, {"yarn", YARN}};

static const struct {
    const char *name;
    int types;
} rope_members[] = {{"rope_type", ANY_ROPE},
                    {"type", ANY_ROPE},
                    {"rope_theta", ANY_ROPE},
                    {"partial_rotary_factor", ANY_ROPE},
                    {"factor", LINEAR | LLAMA3 | YARN},
                    {"original_max_position_embeddings", LLAMA3 | YARN},
                    {"low_freq_factor", LLAMA3},
                    {"high_freq_factor", LLAMA3},
                    {"beta_slow", YARN},
                    {"beta_fast", YARN},
                    {"attention_factor", YARN},
                    {"mscale", YARN},
                    {"mscale_all_dim", YARN},
                    {"truncate", YARN}};

/* Every member is one that this type of rotation has. */
static void check_rope(struct reader *r, const struct ra_json *rope, enum rope type)
{
    int count = sizeof rope_members / sizeof *rope_members;
    for (const struct ra_json *value = rope->first; value; value = value->next) {
        int k = 0;
        while (k < count && strcmp(rope_members[k].name, value->name) != 0)
            k++;
        if (k == count || !(rope_members[k].types & type))
            refuse(r, value, "\"%.60s\" of %s has no meaning with this rope_type", value->name,
                   rope->name);
        if (strcmp(value->name, "partial_rotary_factor") == 0 && !is_value(value, "1"))
            refuse(r, value, "partial_rotary_factor must be 1: all numbers of a head are rotated");
    }
}

/* A member that may be left out, or null. */
static double rope_optional(struct reader *r, const struct ra_json *rope, const char *name,
                            double otherwise)
{
    const struct ra_json *value = ra_json_member(rope, name);
    return value && value->kind != RA_JSON_NULL ? rope_number(r, rope, name) : otherwise;
}

/* The positions that the model learnt from at first: without such a member, all that it has. */
static int64_t rope_original(struct reader *r, const struct ra_json *rope, int64_t longest)
{
    static const char name[] = "original_max_position_embeddings";
    const struct ra_json *value = ra_json_member(rope, name);
    int64_t original = longest;
    if (value && (!ra_json_whole(value, &original) || original < 1))
        refuse(r, value, "\"%s\" of %s must be a whole number above 0", name, rope->name);
    return original;
}

/* What YaRN multiplies cosines and sines by, unless a config says otherwise. */
static double yarn_factor(double factor, double share)
{
    return factor <= 1 ? 1 : 0.1 * share * log(factor) + 1;
}

/* The factor of cosines and sines becomes one of scores, of q and of k alike. */
static void read_yarn(struct reader *r, const struct ra_json *rope, struct ra_model_config *config)
{
    int64_t original = rope_original(r, rope, config->longest);
    double ratio = (double)config->longest / (double)original;
    double factor = rope_optional(r, rope, "factor", ratio);
    if (!ra_json_member(rope, "factor"))
        refuse(r, rope, "%s has no factor", rope->name);
    if (original != config->longest && factor != ratio)
        snprintf(r->note, RA_ERROR_SIZE,
                 "%.40s: the factor %g is YaRN's, as in transformers 5; some versions of 4 take "
                 "max_position_embeddings / original_max_position_embeddings, %g",
                 rope->name, factor, ratio);
    double all = rope_optional(r, rope, "mscale_all_dim", 0);
    double some = rope_optional(r, rope, "mscale", 0), own = yarn_factor(factor, 1);
    const struct ra_json *truncate = ra_json_member(rope, "truncate");
    if (truncate && truncate->kind != RA_JSON_TRUE && truncate->kind != RA_JSON_FALSE)
        refuse(r, truncate, "\"truncate\" of %s must be true or false", rope->name);
    if (some > 0 && all > 0)
        own = yarn_factor(factor, some) / yarn_factor(factor, all);
    own = rope_optional(r, rope, "attention_factor", own);
    config->rotary_scaling = (struct ra_rotary_scaling){
        .kind = truncate && truncate->kind == RA_JSON_FALSE ? RA_ROTARY_YARN_UNTRUNCATED
                                                            : RA_ROTARY_YARN,
        .factor = factor,
        .low = rope_optional(r, rope, "beta_slow", 1),
        .high = rope_optional(r, rope, "beta_fast", 32),
        .original = original};
    double scale = config->attention_scale;
    config->attention_scale = (scale > 0 ? scale : 1 / sqrt((double)config->head_dim)) * own * own;
}

/* What rope_parameters (transformers 5) or rope_scaling (4) say beside theta. */
static void read_rope(struct reader *r, const struct ra_json *rope, struct ra_model_config *config)
{
    const struct ra_json *type = ra_json_member(rope, "rope_type");
    const struct ra_json *older = ra_json_member(rope, "type");
    if (rope->kind != RA_JSON_OBJECT)
        return refuse(r, rope, "%s must be an object or null", rope->name);
    if (type && older && (!type->text || !ra_json_is(older, type->text)))
        return refuse(r, older, "type and rope_type of %s differ: give one of them", rope->name);
    type = type ? type : older;
    if (!type && rope->first && rope->first->kind == RA_JSON_OBJECT)
        return refuse(r, rope, "%s must be the same for all layers", rope->name);
    enum rope kind = type ? 0 : DEFAULT;
    for (size_t t = 0; type && t < sizeof rope_types / sizeof *rope_types; t++)
        if (ra_json_is(type, rope_types[t].name))
            kind = rope_types[t].type;
    if (kind == 0)
        return refuse(
            r, type,
            "the rope_type %.40s is not there: give default, linear, llama3 or yarn (what "
            "dynamic and longrope compute depends on the length of a text)",
            type->text ? type->text : "of no text");
    if (!type && rope->first && strcmp(rope->name, "rope_scaling") == 0)
        return refuse(r, rope, "rope_scaling has no rope_type");
    check_rope(r, rope, kind);
    if (kind == LINEAR)
        config->rotary_scale = rope_number(r, rope, "factor");
    if (kind == YARN)
        read_yarn(r, rope, config);
    if (kind == LLAMA3)
        config->rotary_scaling = (struct ra_rotary_scaling){
            .kind = RA_ROTARY_LLAMA3,
            .factor = rope_number(r, rope, "factor"),
            .low = rope_number(r, rope, "low_freq_factor"),
            .high = rope_number(r, rope, "high_freq_factor"),
            .original = rope_original(r, rope, config->longest),
        };
}

static const struct ra_json *object_or_null(const struct reader *r, const char *name)
{
    const struct ra_json *value = given(r, name);
    return value && value->kind != RA_JSON_NULL ? value : NULL;
}

static void read_rotation(struct reader *r, struct ra_model_config *config)
{
    const struct ra_json *five = object_or_null(r, "rope_parameters");
    const struct ra_json *four = object_or_null(r, "rope_scaling");
    const struct ra_json *rope = five ? five : four;
    if (five && four)
        refuse(r, four, "rope_scaling and rope_parameters say the same: give one of them");
    if (rope)
        read_rope(r, rope, config);
    const struct ra_json *inside = rope ? ra_json_member(rope, "rope_theta") : NULL;
    config->rotary_theta = real(r, "rope_theta");
    if (inside) {
        double theta = rope_number(r, rope, "rope_theta");
        if (given(r, "rope_theta") && theta != config->rotary_theta)
            refuse(r, inside, "rope_theta is %.17g here, and %.17g outside of %s: give one of them",
                   theta, config->rotary_theta, rope->name);
        config->rotary_theta = theta;
    }
}

/* Windows: sliding_window w is the token itself and w - 1 before it. Without a list every layer of
 * Mistral has one, of the Qwens those from max_window_layers on, and of Gemma 2 the first, third
 * and so on. */
static void read_windows(struct reader *r, struct ra_model_config *config)
{
    bool qwen = r->family & QWENS;
    if (r->family & LLAMA)
        return;
    int64_t window = whole(r, "sliding_window", 1, true);
    bool uses = (!qwen || flag(r, "use_sliding_window")) && window > 0;
    int64_t first = qwen ? whole(r, "max_window_layers", 0, false) : 0;
    int64_t every = r->family & GEMMA2 ? 2 : 1;
    const struct ra_json *types = object_or_null(r, "layer_types");
    if (types && (types->kind != RA_JSON_LIST || types->count != config->depth))
        return refuse(r, types,
                      "layer_types must be a list with one for each of %" PRId64 " layers",
                      config->depth);
    const struct ra_json *type = types ? types->first : NULL;
    for (int64_t l = 0; l < config->depth && l < RA_MOST_LAYERS; l++) {
        bool slides = uses && l >= first && l % every == 0;
        if (type) {
            slides = ra_json_is(type, "sliding_attention");
            if (!slides && !ra_json_is(type, "full_attention"))
                return refuse(r, type,
                              "a layer's type must be full_attention or sliding_attention");
            if (slides && !uses)
                return refuse(r, type, "sliding_attention needs %sa sliding_window",
                              qwen ? "use_sliding_window true and " : "");
            type = type->next;
        }
        config->lookback[l] = slides ? window - 1 : RA_NO_LOOKBACK;
    }
}

/* ["LlamaForCausalLM"] and so on, or none: heads for other tasks have other arrays. */
static void check_architecture(struct reader *r, const char *stem)
{
    const struct ra_json *list = object_or_null(r, "architectures");
    char right[40];
    snprintf(right, sizeof right, "%sForCausalLM", stem);
    if (list && (list->kind != RA_JSON_LIST || list->count != 1 || !ra_json_is(list->first, right)))
        refuse(r, list, "architectures must be [\"%s\"]: other models have other arrays", right);
}

/* A soft cap, or 0 for null. */
static double softcap(struct reader *r, const char *name)
{
    const struct ra_json *value = given(r, name);
    double cap = value && value->kind == RA_JSON_NULL ? 0 : real(r, name);
    if (cap < 0 || (cap == 0 && value && value->kind != RA_JSON_NULL))
        refuse(r, value, "\"%s\" is wrong: give a number above 0, or null", name);
    return cap;
}

static void read_gemma(struct reader *r, struct ra_model_config *config)
{
    config->attention_scale = 1 / sqrt((double)whole(r, "query_pre_attn_scalar", 1, false));
    config->softcap = softcap(r, "attn_logit_softcapping");
    config->logits_softcap = softcap(r, "final_logit_softcapping");
    config->embedding_scale = sqrt((double)config->dim);
    config->post_norm = true;
}

static void read_hugging(struct reader *r, struct ra_model_config *config)
{
    char class[40];
    const struct ra_json *type = given(r, "model_type");
    for (int f = RA_FAMILY_LLAMA; f < FAMILIES; f++)
        if (ra_json_is(type, ra_family_names[f])) {
            config->family = (enum ra_family)f;
            r->family = 1 << f;
        }
    for (int e = 0; experts[e]; e++)
        if (ra_json_is(type, experts[e]))
            return refuse(r, type,
                          "models of model_type %s are not read: they are mixtures of experts, and "
                          "no layer here has any",
                          experts[e]);
    if (r->family == 0)
        return refuse(
            r, type,
            "models of model_type %.40s are not read: give llama, mistral, qwen2, qwen3 or "
            "gemma2",
            type->text ? type->text : "of no text");
    snprintf(class, sizeof class, "%sConfig", stems[config->family]);
    check_fields(r, class);
    check_architecture(r, stems[config->family]);
    config->vocabulary = whole(r, "vocab_size", 1, false);
    config->dim = whole(r, "hidden_size", 1, false);
    config->hidden = whole(r, "intermediate_size", 1, false);
    config->depth = whole(r, "num_hidden_layers", 1, false);
    config->heads = whole(r, "num_attention_heads", 1, false);
    config->key_heads = whole(r, "num_key_value_heads", 1, true);
    config->head_dim = whole(r, "head_dim", 1, true);
    config->longest = whole(r, "max_position_embeddings", 1, false);
    if (config->key_heads < 0)
        config->key_heads = config->heads;
    if (config->head_dim < 0)
        config->head_dim = config->heads > 0 ? config->dim / config->heads : 0;
    config->head_map = RA_GROUPED;
    config->causal = true;
    config->norm = r->family == GEMMA2 ? RA_NORM_RMS_PLUS_ONE : RA_NORM_RMS;
    config->norm_eps = real(r, "rms_norm_eps");
    config->feed = r->family == GEMMA2 ? RA_FEED_GEGLU : RA_FEED_SWIGLU;
    config->head_norm = r->family == QWEN3;
    config->tied = flag(r, "tie_word_embeddings");
    config->out_bias = r->family & (LLAMA | QWEN3 | GEMMA2) && flag(r, "attention_bias");
    config->qkv_bias = config->out_bias || r->family == QWEN2;
    config->feed_bias = r->family == LLAMA && flag(r, "mlp_bias");
    if (r->family == GEMMA2)
        read_gemma(r, config);
    read_rotation(r, config);
    read_windows(r, config);
}

/* ---- Of MGQA. */

static void read_mgqa(struct reader *r, struct ra_model_config *config, char note[RA_ERROR_SIZE])
{
    r->family = MGQA;
    config->family = RA_FAMILY_MGQA;
    check_fields(r, "MGQATransformer or its Decoder");
    config->vocabulary = whole(r, "num_tokens", 1, false);
    config->longest = whole(r, "max_seq_len", 1, false);
    config->dim = whole(r, "dim", 1, false);
    config->depth = whole(r, "depth", 1, false);
    config->heads = whole(r, "heads", 1, false);
    config->head_dim = whole(r, "attn_dim_head", 1, false);
    config->key_heads = whole(r, "attn_kv_heads", 1, true);
    if (flag(r, "attn_one_kv_head")) {
        if (config->key_heads > 0)
            refuse(r, given(r, "attn_kv_heads"),
                   "attn_kv_heads and attn_one_kv_head: give one of them");
        config->key_heads = 1;
    }
    if (config->key_heads < 0)
        config->key_heads = config->heads;
    config->head_map = RA_INTERLEAVED;
    config->causal = flag(r, "causal");
    if (!given(r, "causal"))
        snprintf(note, RA_ERROR_SIZE, "%.120s: read as MGQA's: causal true, as its Decoder is",
                 r->json->name);
    int64_t window = whole(r, "attn_max_attend_past", 0, true);
    for (int64_t l = 0; l < config->depth && l < RA_MOST_LAYERS && window >= 0; l++)
        config->lookback[l] = window;
    config->norm = RA_NORM_LAYER;
    config->norm_eps = 1e-5;
    config->feed = RA_FEED_GELU;
    config->hidden = (int64_t)fmin(real(r, "ff_mult") * (double)config->dim, INT32_MAX);
    config->feed_bias = !flag(r, "ff_no_bias");
    config->tied = flag(r, "tie_embedding");
    config->logits_bias = !config->tied;
    config->position = RA_POSITIONS_LEARNED;
    config->position_scale = 1 / sqrt((double)config->dim);
}

bool ra_family_knows(const struct ra_json *root)
{
    return ra_json_member(root, "model_type") || ra_json_member(root, "max_seq_len");
}

enum ra_status ra_family_read(const struct ra_json_text *json, struct ra_model_config *config,
                              char note[RA_ERROR_SIZE], char error[RA_ERROR_SIZE])
{
    struct reader r = {.json = json, .note = note, .error = error};
    char reason[RA_ERROR_SIZE];
    ra_model_config_init(config, sizeof *config);
    *note = '\0';
    if (given(&r, "model_type"))
        read_hugging(&r, config);
    else
        read_mgqa(&r, config, note);
    if (!r.failed && ra_model_check(config, reason) != RA_OK)
        refuse(&r, NULL, "%.180s", reason);
    return r.failed ? RA_INVALID : RA_OK;
}

/* ---- Writing. */

/* The one window that some layers have, or RA_NO_LOOKBACK; false: there are two. */
static bool one_window(const struct ra_model_config *c, int64_t *window, bool *all)
{
    *window = RA_NO_LOOKBACK;
    *all = true;
    for (int64_t l = 0; l < c->depth; l++) {
        if (c->lookback[l] != RA_NO_LOOKBACK && *window != RA_NO_LOOKBACK &&
            c->lookback[l] != *window)
            return false;
        if (c->lookback[l] != RA_NO_LOOKBACK)
            *window = c->lookback[l];
        *all = *all && c->lookback[l] != RA_NO_LOOKBACK;
    }
    *all = *all && *window != RA_NO_LOOKBACK;
    return true;
}

static bool has_yarn(const struct ra_model_config *c)
{
    return c->rotary_scaling.kind >= RA_ROTARY_YARN;
}

/* The whole number S of which the factor of scores is 1 / sqrt(S), with YaRN times its factor
 * squared; 0: there is none. */
static int64_t scalar_of(const struct ra_model_config *c)
{
    double own = has_yarn(c) ? yarn_factor(c->rotary_scaling.factor, 1) : 1;
    double scale = c->attention_scale, root = scale / own / own;
    bool whole = root > 1e-6; /* none is so large */
    int64_t scalar = whole ? llrint(1 / (root * root)) : c->head_dim;
    bool none = scale == 0 && !has_yarn(c);
    return none || 1 / sqrt((double)scalar) * own * own == scale ? scalar : 0;
}

/* The factor of cosines and sines, other than its default, that makes a model's scale of scores;
 * 0: it has the default. */
static double own_yarn_factor(const struct ra_model_config *c)
{
    double plain = 1 / sqrt((double)c->head_dim), usual = yarn_factor(c->rotary_scaling.factor, 1);
    double scale = c->attention_scale > 0 ? c->attention_scale : plain;
    if (!has_yarn(c) || plain * usual * usual == scale)
        return 0;
    double factor = sqrt(scale / plain);
    /* Of numbers that are as near, the one that is read as the same scale. */
    for (int i = 0; i < 4 && plain * factor * factor > scale; i++)
        factor = nextafter(factor, 0);
    for (int i = 0; i < 8 && plain * factor * factor < scale; i++)
        factor = nextafter(factor, INFINITY);
    return factor;
}

/* A part that the family has not, or NULL. */
static const char *wrong_part(const struct ra_model_config *c)
{
    int family = 1 << c->family;
    bool mgqa = family == MGQA, all;
    int64_t window;
    bool shares = c->key_heads > 1 && c->key_heads < c->heads;
    bool scaled = c->rotary_scaling.kind != RA_ROTARY_PLAIN;
    if (shares && c->head_map != (mgqa ? RA_INTERLEAVED : RA_GROUPED))
        return "head_map";
    bool gemma = family == GEMMA2;
    if (!gemma && (c->softcap != 0 || c->logits_softcap != 0))
        return c->softcap != 0 ? "softcap" : "logits_softcap";
    if (gemma ? scalar_of(c) == 0 : (mgqa || !has_yarn(c)) && scalar_of(c) != c->head_dim)
        return "attention_scale";
    if (c->sinks)
        return "sinks";
    if (c->embedding_scale != (gemma ? sqrt((double)c->dim) : 1))
        return "embedding_scale";
    if (c->post_norm != gemma)
        return "post_norm";
    if (c->norm != (mgqa ? RA_NORM_LAYER : gemma ? RA_NORM_RMS_PLUS_ONE : RA_NORM_RMS))
        return "norm";
    if (c->feed != (mgqa ? RA_FEED_GELU : gemma ? RA_FEED_GEGLU : RA_FEED_SWIGLU))
        return "feed";
    if (c->position != (mgqa ? RA_POSITIONS_LEARNED : RA_POSITIONS_ROTARY))
        return "positions";
    if (c->head_norm != (family == QWEN3))
        return "head_norm";
    if (mgqa                                ? c->out_bias || c->qkv_bias
        : family & (LLAMA | QWEN3 | GEMMA2) ? c->qkv_bias != c->out_bias
                                            : c->out_bias || c->qkv_bias != (family == QWEN2))
        return "qkv_bias and out_bias";
    if (c->feed_bias && !(family & (LLAMA | MGQA)))
        return "feed_bias";
    if (c->logits_bias != (mgqa && !c->tied))
        return "logits_bias";
    if (mgqa && (c->norm_eps != 1e-5 || c->position_scale != 1 / sqrt((double)c->dim)))
        return c->norm_eps != 1e-5 ? "norm_eps" : "position_scale";
    if (!mgqa && !c->causal)
        return "causal";
    if (!mgqa && scaled && c->rotary_scale != 1)
        return "rotary_scale beside rotary_scaling";
    if (!one_window(c, &window, &all) ||
        (window != RA_NO_LOOKBACK && (family == LLAMA || (!all && family & (MGQA | MISTRAL)))))
        return "lookback";
    return NULL;
}

static void write_mgqa(const struct ra_model_config *c, struct ra_text *text)
{
    int64_t window;
    bool all;
    ra_text_add(text,
                "{\n \"num_tokens\": %" PRId64 ",\n \"max_seq_len\": %" PRId64
                ",\n \"dim\": %" PRId64 ",\n \"depth\": %" PRId64 ",\n \"heads\": %" PRId64
                ",\n \"attn_kv_heads\": %" PRId64 ",\n \"attn_dim_head\": %" PRId64
                ",\n \"causal\": %s,\n \"tie_embedding\": %s,\n "
                "\"ff_mult\": %.17g,\n \"ff_no_bias\": %s",
                c->vocabulary, c->longest, c->dim, c->depth, c->heads, c->key_heads, c->head_dim,
                ra_json_bool(c->causal), ra_json_bool(c->tied), (double)c->hidden / (double)c->dim,
                ra_json_bool(!c->feed_bias));
    if (one_window(c, &window, &all) && window != RA_NO_LOOKBACK)
        ra_text_add(text, ",\n \"attn_max_attend_past\": %" PRId64, window);
    ra_text_add(text, "\n}\n");
}

static void write_rope(const struct ra_model_config *c, struct ra_text *text)
{
    const struct ra_rotary_scaling *scaling = &c->rotary_scaling;
    bool llama3 = scaling->kind == RA_ROTARY_LLAMA3, linear = c->rotary_scale != 1;
    double own = c->family == RA_FAMILY_GEMMA2 ? 0 : own_yarn_factor(c);
    ra_text_add(text, ",\n  \"rope_parameters\": {\n    \"rope_theta\": %.17g,\n    ",
                c->rotary_theta);
    if (llama3)
        ra_text_add(
            text,
            "\"factor\": %.17g,\n    \"low_freq_factor\": %.17g,\n    \"high_freq_factor\": "
            "%.17g,\n    \"original_max_position_embeddings\": %" PRId64 ",\n    ",
            scaling->factor, scaling->low, scaling->high, scaling->original);
    else if (has_yarn(c))
        ra_text_add(text,
                    "\"factor\": %.17g,\n    \"beta_slow\": %.17g,\n    \"beta_fast\": %.17g,\n    "
                    "\"original_max_position_embeddings\": %" PRId64
                    ",\n    \"truncate\": %s,\n    ",
                    scaling->factor, scaling->low, scaling->high, scaling->original,
                    ra_json_bool(scaling->kind == RA_ROTARY_YARN));
    else if (linear)
        ra_text_add(text, "\"factor\": %.17g,\n    ", c->rotary_scale);
    if (own > 0)
        ra_text_add(text, "\"attention_factor\": %.17g%s,\n    ", own,
                    own == rint(own) ? ".0" : "");
    ra_text_add(text, "\"rope_type\": \"%s\"\n  }",
                llama3        ? "llama3"
                : has_yarn(c) ? "yarn"
                : linear      ? "linear"
                              : "default");
}

static void write_windows(const struct ra_model_config *c, struct ra_text *text)
{
    int64_t window;
    bool all, some = one_window(c, &window, &all) && window != RA_NO_LOOKBACK;
    if (c->family == RA_FAMILY_LLAMA)
        return;
    if (some)
        ra_text_add(text, ",\n  \"sliding_window\": %" PRId64, window + 1);
    else
        ra_text_add(text, ",\n  \"sliding_window\": null");
    if (c->family == RA_FAMILY_MISTRAL)
        return;
    if (c->family != RA_FAMILY_GEMMA2)
        ra_text_add(text, ",\n  \"use_sliding_window\": %s", ra_json_bool(some));
    ra_text_add(text, ",\n  \"layer_types\": [");
    for (int64_t l = 0; l < c->depth; l++)
        ra_text_add(text, "%s\n    \"%s_attention\"", l > 0 ? "," : "",
                    c->lookback[l] == RA_NO_LOOKBACK ? "full" : "sliding");
    ra_text_add(text, "\n  ]");
}

static void write_softcap(double cap, const char *name, struct ra_text *text)
{
    if (cap > 0)
        ra_text_add(text, ",\n  \"%s\": %.17g%s", name, cap, cap == rint(cap) ? ".0" : "");
    else
        ra_text_add(text, ",\n  \"%s\": null", name);
}

static void write_gemma(const struct ra_model_config *c, struct ra_text *text)
{
    ra_text_add(text, ",\n  \"query_pre_attn_scalar\": %" PRId64, scalar_of(c));
    write_softcap(c->softcap, "attn_logit_softcapping", text);
    write_softcap(c->logits_softcap, "final_logit_softcapping", text);
}

static void write_hugging(const struct ra_model_config *c, const char *dtype, struct ra_text *text)
{
    bool gemma = c->family == RA_FAMILY_GEMMA2;
    ra_text_add(
        text,
        "{\n  \"architectures\": [\n    \"%sForCausalLM\"\n  ],\n  \"model_type\": \"%s\",\n  "
        "\"dtype\": \"%s\",\n  \"vocab_size\": %" PRId64 ",\n  \"hidden_size\": %" PRId64
        ",\n  \"intermediate_size\": %" PRId64 ",\n  \"num_hidden_layers\": %" PRId64
        ",\n  \"num_attention_heads\": %" PRId64 ",\n  \"num_key_value_heads\": %" PRId64
        ",\n  \"head_dim\": %" PRId64 ",\n  \"max_position_embeddings\": %" PRId64
        ",\n  \"%s\": \"%s\",\n  \"rms_norm_eps\": %.17g,\n  \"tie_word_embeddings\": "
        "%s,\n  \"bos_token_id\": null,\n  \"eos_token_id\": null,\n  \"pad_token_id\": null",
        stems[c->family], ra_family_names[c->family], dtype, c->vocabulary, c->dim, c->hidden,
        c->depth, c->heads, c->key_heads, c->head_dim, c->longest,
        gemma ? "hidden_activation" : "hidden_act", gemma ? "gelu_pytorch_tanh" : "silu",
        c->norm_eps, ra_json_bool(c->tied));
    if (c->family == RA_FAMILY_LLAMA || c->family == RA_FAMILY_QWEN3 || gemma)
        ra_text_add(text, ",\n  \"attention_bias\": %s", ra_json_bool(c->qkv_bias));
    if (c->family == RA_FAMILY_LLAMA)
        ra_text_add(text, ",\n  \"mlp_bias\": %s", ra_json_bool(c->feed_bias));
    if (gemma)
        write_gemma(c, text);
    write_rope(c, text);
    write_windows(c, text);
    ra_text_add(text, "\n}\n");
}

int ra_family_write(const struct ra_model_config *config, const char *dtype, char *text,
                    size_t size, char error[RA_ERROR_SIZE])
{
    struct ra_text out = {text, size, 0};
    const char *wrong = wrong_part(config);
    if (wrong) {
        ra_error_set(error, "%s: no model of the family %s has this", wrong,
                     ra_family_names[config->family]);
        return -1;
    }
    if (config->family == RA_FAMILY_MGQA)
        write_mgqa(config, &out);
    else
        write_hugging(config, dtype, &out);
    return (int)out.length;
}

/* ---- Arrays. */

/* Which rows of ours: all, of qkv those of q, of k or of v, or of up those of the gate or the
 * rest. */
enum rows { ALL, Q, K, V, GATE, UP };

/* An array of ours, without "layers.L.", and the same or a part of it as a family calls it; %d is
 * layer L times `times`, plus `plus`. */
struct name {
    int families;
    const char *ours;
    enum rows rows;
    const char *theirs;
    int times, plus;
};

#define HF "model.layers.%d."
#define MG "attn_layers.layers.%d."
static const struct name array_names[] = {
    {HUGGING, "token_emb.weight", ALL, "model.embed_tokens.weight", 0, 0},
    {HUGGING, "0.to_qkv.0.gamma", ALL, HF "input_layernorm.weight", 1, 0},
    {HUGGING, "0.to_qkv.1.weight", Q, HF "self_attn.q_proj.weight", 1, 0},
    {HUGGING, "0.to_qkv.1.weight", K, HF "self_attn.k_proj.weight", 1, 0},
    {HUGGING, "0.to_qkv.1.weight", V, HF "self_attn.v_proj.weight", 1, 0},
    {HUGGING, "0.to_qkv.1.bias", Q, HF "self_attn.q_proj.bias", 1, 0},
    {HUGGING, "0.to_qkv.1.bias", K, HF "self_attn.k_proj.bias", 1, 0},
    {HUGGING, "0.to_qkv.1.bias", V, HF "self_attn.v_proj.bias", 1, 0},
    {QWEN3, "0.q_norm.gamma", ALL, HF "self_attn.q_norm.weight", 1, 0},
    {QWEN3, "0.k_norm.gamma", ALL, HF "self_attn.k_norm.weight", 1, 0},
    {HUGGING, "0.to_out.weight", ALL, HF "self_attn.o_proj.weight", 1, 0},
    {HUGGING, "0.to_out.bias", ALL, HF "self_attn.o_proj.bias", 1, 0},
    {SWIGLUS, "1.0.gamma", ALL, HF "post_attention_layernorm.weight", 1, 0},
    {GEMMA2, "0.post_norm.gamma", ALL, HF "post_attention_layernorm.weight", 1, 0},
    {GEMMA2, "1.0.gamma", ALL, HF "pre_feedforward_layernorm.weight", 1, 0},
    {HUGGING, "1.1.weight", GATE, HF "mlp.gate_proj.weight", 1, 0},
    {HUGGING, "1.1.weight", UP, HF "mlp.up_proj.weight", 1, 0},
    {HUGGING, "1.1.bias", GATE, HF "mlp.gate_proj.bias", 1, 0},
    {HUGGING, "1.1.bias", UP, HF "mlp.up_proj.bias", 1, 0},
    {HUGGING, "1.3.weight", ALL, HF "mlp.down_proj.weight", 1, 0},
    {HUGGING, "1.3.bias", ALL, HF "mlp.down_proj.bias", 1, 0},
    {GEMMA2, "1.post_norm.gamma", ALL, HF "post_feedforward_layernorm.weight", 1, 0},
    {HUGGING, "to_logits.0.gamma", ALL, "model.norm.weight", 0, 0},
    {HUGGING, "to_logits.1.weight", ALL, "lm_head.weight", 0, 0},
    {MGQA, "token_emb.weight", ALL, "token_emb.emb.weight", 0, 0},
    {MGQA, "pos_emb.weight", ALL, "pos_emb.emb.weight", 0, 0},
    {MGQA, "0.to_qkv.0.gamma", ALL, MG "0.0.weight", 2, 0},
    {MGQA, "0.to_qkv.0.bias", ALL, MG "0.0.bias", 2, 0},
    {MGQA, "0.to_qkv.1.weight", Q, MG "1.to_q.weight", 2, 0},
    {MGQA, "0.to_qkv.1.weight", K, MG "1.to_k.weight", 2, 0},
    {MGQA, "0.to_qkv.1.weight", V, MG "1.to_v.weight", 2, 0},
    {MGQA, "0.to_out.weight", ALL, MG "1.to_out.weight", 2, 0},
    {MGQA, "1.0.gamma", ALL, MG "0.0.weight", 2, 1},
    {MGQA, "1.0.bias", ALL, MG "0.0.bias", 2, 1},
    {MGQA, "1.1.weight", ALL, MG "1.ff.0.0.weight", 2, 1},
    {MGQA, "1.1.bias", ALL, MG "1.ff.0.0.bias", 2, 1},
    {MGQA, "1.3.weight", ALL, MG "1.ff.2.weight", 2, 1},
    {MGQA, "1.3.bias", ALL, MG "1.ff.2.bias", 2, 1},
    {MGQA, "to_logits.0.gamma", ALL, "attn_layers.final_norm.weight", 0, 0},
    {MGQA, "to_logits.0.bias", ALL, "attn_layers.final_norm.bias", 0, 0},
    {MGQA, "to_logits.1.weight", ALL, "to_logits.weight", 0, 0},
    {MGQA, "to_logits.1.bias", ALL, "to_logits.bias", 0, 0},
};
enum { NAMES = sizeof array_names / sizeof *array_names };

/* Writes the name in this layer. */
static void write_name(const struct name *name, int layer, char *text, size_t size)
{
    const char *number = strchr(name->theirs, '%');
    if (!number)
        snprintf(text, size, "%s", name->theirs);
    else
        snprintf(text, size, "%.*s%d%s", (int)(number - name->theirs), name->theirs,
                 layer * name->times + name->plus, number + 2);
}

/* The first row, and how many. */
static void find_rows(const struct ra_model_config *c, enum rows which, int64_t all, int64_t *first,
                      int64_t *count)
{
    int64_t queries = c->heads * c->head_dim, keys = c->key_heads * c->head_dim;
    *first = which == K ? queries : which == V ? queries + keys : which == UP ? c->hidden : 0;
    *count = which == ALL               ? all
             : which == Q               ? queries
             : which == K || which == V ? keys
                                        : c->hidden;
}

/* Adds what the family has of one array of ours. Returns how many; 0: it has no name for it. */
static int add_arrays(const struct ra_model_config *config, const struct ra_parameter *parameter,
                      struct ra_family_array *list)
{
    int layer = 0, skipped = 0, count = 0;
    struct ra_family_array one;
    if (config->family == RA_FAMILY_ORIGINAL) {
        one = (struct ra_family_array){.rows = parameter->rows,
                                       .columns = parameter->columns,
                                       .first = parameter->first,
                                       .count = parameter->count};
        snprintf(one.name, sizeof one.name, "%s", parameter->name);
        if (list)
            *list = one;
        return 1;
    }
    if (sscanf(parameter->name, "layers.%d.%n", &layer, &skipped) != 1)
        skipped = 0;
    for (int n = 0; n < NAMES; n++) {
        const struct name *name = &array_names[n];
        int64_t first;
        if (!(name->families & 1 << config->family) ||
            strcmp(name->ours, parameter->name + skipped) != 0)
            continue;
        int64_t columns = parameter->columns > 0 ? parameter->columns : 1;
        find_rows(config, name->rows, parameter->rows, &first, &one.rows);
        one.columns = parameter->columns;
        one.first = parameter->first + first * columns;
        one.count = one.rows * columns;
        write_name(name, layer, one.name, sizeof one.name);
        if (list)
            list[count] = one;
        count++;
    }
    return count;
}

int ra_family_arrays(const struct ra_model_config *config, struct ra_family_array *list,
                     char error[RA_ERROR_SIZE])
{
    int count = 0;
    for (int i = 0; i < ra_parameter_count(config); i++) {
        struct ra_parameter parameter = ra_parameter(config, i);
        int more = add_arrays(config, &parameter, list ? list + count : NULL);
        if (more == 0) {
            ra_error_set(error, "%s: no model of the family %s has this array", parameter.name,
                         ra_family_names[config->family]);
            return -1;
        }
        count += more;
    }
    return count;
}
