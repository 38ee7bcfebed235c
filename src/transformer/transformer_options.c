/* transformer_options: the command line of 10-transformer. See transformer_options.h. */
#include "transformer_options.h"

#include <float.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_model_config.h"
#include "stage_options.h"
#define OPTIONS_OF struct transformer
#include "ra_option_table.h"

/* What each command is given besides flags. */
static const struct command {
    const char *name;
    int count;
    const char *arguments, *help;
} commands[TRANSFORMER_COMMANDS] = {
    [TRANSFORMER_TRAIN] = {"train", 2, "DATA MODEL", "train a model on a file of tokens"},
    [TRANSFORMER_GENERATE] = {"generate", 1, "MODEL", "go on with a text"},
    [TRANSFORMER_STEP] = {"step", 2, "PROBLEM RESULT",
                          "logits of one batch; its loss and gradients, if it has labels"},
    [TRANSFORMER_EXPORT] = {"export", 2, "MODEL FOLDER", "write a model as a folder of its family"},
    [TRANSFORMER_IMPORT] = {"import", 2, "FOLDER MODEL", "write such a folder as a MODEL"},
    [TRANSFORMER_BENCH] = {"bench", 0, "", "time training steps on random tokens"},
};

/* The commands that know a flag, as bits. */
enum {
    TRAIN = 1 << TRANSFORMER_TRAIN,
    GENERATE = 1 << TRANSFORMER_GENERATE,
    EXPORT = 1 << TRANSFORMER_EXPORT,
    STEP = 1 << TRANSFORMER_STEP,
    BENCH = 1 << TRANSFORMER_BENCH,
    ALL = (1 << TRANSFORMER_COMMANDS) - 1,
};

#define NEW (TRAIN | BENCH)
#define CUTS (TRAIN | BENCH | STEP) /* the sequence as they are told; a cache is always striped */
#define RUNS (CUTS | GENERATE)

/* Parts of a model, by the names that config.json has for them. */
#define CHOICE(constant, word) [constant] = {word, #constant}
static const struct ra_choice norms[] = {CHOICE(RA_NORM_UNIT, "unit"),
                                         CHOICE(RA_NORM_RMS, "rms"),
                                         CHOICE(RA_NORM_LAYER, "layer"),
                                         CHOICE(RA_NORM_RMS_PLUS_ONE, "rms_plus_one"),
                                         {0}};
static const struct ra_choice feeds[] = {CHOICE(RA_FEED_GELU, "gelu"),
                                         CHOICE(RA_FEED_SWIGLU, "swiglu"),
                                         CHOICE(RA_FEED_GEGLU, "geglu"),
                                         {0}};
static const struct ra_choice scalings[] = {CHOICE(RA_ROTARY_PLAIN, "plain"),
                                            CHOICE(RA_ROTARY_LLAMA3, "llama3"),
                                            CHOICE(RA_ROTARY_YARN, "yarn"),
                                            CHOICE(RA_ROTARY_YARN_UNTRUNCATED, "yarn_untruncated"),
                                            {0}};
#define SCALING "plain angles have none"
#define ANGLES "learned positions have no angles"
static const struct ra_choice positions[] = {
    CHOICE(RA_POSITIONS_ROTARY, "rotary"), CHOICE(RA_POSITIONS_LEARNED, "learned"), {0}};

static const struct ra_choice token_types[] = {
    CHOICE(RA_TOKEN_UINT8, "uint8"),       CHOICE(RA_TOKEN_UINT16, "uint16"),
    CHOICE(RA_TOKEN_UINT32, "uint32"),     CHOICE(RA_TOKEN_LLMC, "llm.c"),
    CHOICE(RA_TOKEN_MEGATRON, "megatron"), {0}};

static const struct ra_option options[] = {
    {FLAG("help"), FOR(ALL), .help = "show this text; -h does, too"},
    {FLAG("version"), FOR(ALL), .help = "show the version"},
    {FIELD(model.vocabulary), TAKES("vocabulary", WHOLE), FOR(NEW), RANGE(1, INT32_MAX),
     .value = "V", .help = "size of the vocabulary (default 256, for bytes)"},
    {FIELD(model.dim), TAKES("dim", WHOLE), FOR(NEW), RANGE(1, MOST), .value = "N",
     .help = "numbers of a token (default 256)"},
    {FIELD(model.depth), TAKES("depth", WHOLE), FOR(NEW), RANGE(1, RA_MOST_LAYERS), .value = "L",
     .help = "layers (default 4)"},
    {FIELD(model.heads), TAKES("heads", WHOLE), FOR(NEW), RANGE(1, MOST), .value = "H",
     .help = "query heads (default 4)"},
    {FIELD(model.key_heads), TAKES("key-heads", WHOLE), FOR(NEW), RANGE(1, MOST), .value = "G",
     .help = "key/value heads (default as heads)"},
    {FIELD(model.head_dim), TAKES("dim-head", WHOLE), FOR(NEW), RANGE(2, MOST), .value = "D",
     .help = "numbers of a head (default 64)"},
    {FIELD(feed_multiple), TAKES("ff-mult", WHOLE), FOR(NEW), RANGE(1, 1024), .value = "F",
     .help = "hidden numbers of a feed-forward layer, in dims (default 4)"},
    {FIELD(model.head_map), TAKES("head-map", CHOICE), FOR(NEW), .choices = ra_option_head_maps,
     .value = "MAP", .help = "query heads that share keys (default grouped)"},
    {FIELD(model.softcap), TAKES("softcap", REAL), FOR(NEW), RANGE(FLT_MIN, FLT_MAX),
     .good = "a normal number of float32 above 0", .value = "C",
     .help = "scores become C * tanh(score / C)"},
    {FIELD(model.attention_scale), TAKES("attention-scale", REAL), FOR(NEW),
     RANGE(FLT_MIN, FLT_MAX), .good = "a normal number of float32 above 0", .value = "S",
     .help = "factor of scores (default 1 / the square root of --dim-head)"},
    {FIELD(model.logits_softcap), TAKES("logits-softcap", REAL), FOR(NEW), RANGE(FLT_MIN, FLT_MAX),
     .good = "a normal number of float32 above 0", .value = "C",
     .help = "logits become C * tanh(logit / C)"},
    {FIELD(model.embedding_scale), TAKES("embedding-scale", REAL), FOR(NEW),
     RANGE(-FLT_MAX, FLT_MAX), .value = "S", .help = "factor of the embedding's rows (default 1)"},
    {FIELD(model.rotary_theta), TAKES("rotary-theta", REAL), FOR(NEW), RANGE(DBL_TRUE_MIN, DBL_MAX),
     NEEDS(model.position, RA_POSITIONS_ROTARY, ANGLES), .value = "T",
     .help = "base of the angles (default 10000)"},
    {FIELD(model.rotary_scale), TAKES("rotary-scale", REAL), FOR(NEW), RANGE(DBL_TRUE_MIN, DBL_MAX),
     NEEDS(model.position, RA_POSITIONS_ROTARY, ANGLES), .value = "S",
     .help = "positions are divided by S (default 1)"},
    {FIELD(model.rotary_scaling.kind), TAKES("rotary-scaling", CHOICE), FOR(NEW),
     .choices = scalings, NEEDS(model.position, RA_POSITIONS_ROTARY, ANGLES), .value = "KIND",
     .help = "how angles change for longer texts (default plain)"},
    {FIELD(model.rotary_scaling.factor), TAKES("rotary-factor", REAL), FOR(NEW),
     NEEDS_OTHER(model.rotary_scaling.kind, RA_ROTARY_PLAIN, SCALING), RANGE(DBL_TRUE_MIN, DBL_MAX),
     .value = "F", .help = "long waves get F times as long (default 8)"},
    {FIELD(model.rotary_scaling.low), TAKES("rotary-low", REAL), FOR(NEW),
     NEEDS_OTHER(model.rotary_scaling.kind, RA_ROTARY_PLAIN, SCALING), RANGE(DBL_TRUE_MIN, DBL_MAX),
     .value = "L", .help = "those that come L times or less (default 1)"},
    {FIELD(model.rotary_scaling.high), TAKES("rotary-high", REAL), FOR(NEW),
     NEEDS_OTHER(model.rotary_scaling.kind, RA_ROTARY_PLAIN, SCALING), RANGE(DBL_TRUE_MIN, DBL_MAX),
     .value = "H", .help = "those that come H times or more stay (default 4; YaRN: 32)"},
    {FIELD(model.rotary_scaling.original), TAKES("rotary-original", WHOLE), FOR(NEW),
     NEEDS_OTHER(model.rotary_scaling.kind, RA_ROTARY_PLAIN, SCALING), RANGE(1, MOST), .value = "N",
     .help = "in so many tokens (default 8192)"},
    {FIELD(model.tied), FLAG("tied"), FOR(NEW), .help = "logits have the embedding's table"},
    {FIELD(lookback), TAKES("lookback", PATH), FOR(NEW), .value = "L,..",
     .help = "tokens back: a number or none, or one for each layer"},
    {FIELD(model.norm), TAKES("norm", CHOICE), FOR(NEW), .choices = norms, .value = "NORM",
     .help = "how rows get their length (default unit)"},
    {FIELD(model.norm_eps), TAKES("norm-eps", REAL), FOR(NEW), RANGE(DBL_TRUE_MIN, DBL_MAX),
     .value = "E", .help = "is added to a mean of squares (default 0.000001)"},
    {FIELD(model.head_norm), FLAG("head-norm"), FOR(NEW),
     .help = "q and k of each head get the norm rms"},
    {FIELD(model.post_norm), FLAG("post-norm"), FOR(NEW),
     .help = "attention and feed-forward get a norm behind them, too"},
    {FIELD(model.sinks), FLAG("sinks"), FOR(NEW),
     .help = "each head learns a sink, one score more without a value"},
    {FIELD(model.feed), TAKES("feed", CHOICE), FOR(NEW), .choices = feeds, .value = "FEED",
     .help = "between a feed-forward's matrices (default gelu)"},
    {FIELD(biases), TAKES("biases", PATH), FOR(NEW), .value = "B,..",
     .help = "none, or some of qkv, out, feed and logits (default feed)"},
    {FIELD(model.position), TAKES("positions", CHOICE), FOR(NEW), .choices = positions,
     .value = "KIND", .help = "how positions are known (default rotary)"},
    {FIELD(model.longest), TAKES("longest", WHOLE), FOR(NEW), RANGE(1, INT32_MAX),
     NEEDS(model.position, RA_POSITIONS_LEARNED, "rotary positions have no table"), .value = "N",
     .help = "with --positions learned: rows of their table"},
    {FIELD(model.position_scale), TAKES("position-scale", REAL), FOR(NEW), RANGE(-DBL_MAX, DBL_MAX),
     NEEDS(model.position, RA_POSITIONS_LEARNED, "rotary positions have no table"), .value = "S",
     .help = "with --positions learned: the factor of its rows (default 1)"},

    {FIELD(run.ring_size), TAKES("ring-size", INT), FOR(CUTS), RANGE(1, INT_MAX), .value = "P",
     .help = "ranks that share a sequence (default: all)"},
    {FIELD(run.layout), TAKES("layout", CHOICE), FOR(CUTS), .choices = ra_option_layouts,
     .value = "NAME", .help = "rows of each rank (default contiguous)"},
    {FIELD(run.bucket), TAKES("bucket", WHOLE), FOR(CUTS), RANGE(1, MOST), .value = "ROWS",
     NEEDS(run.layout, RA_STRIPED, "it is the length of a stripe"),
     .help = "with --layout striped: rows of a stripe at most"},
    {FIELD(run.threads), TAKES("threads", INT), FOR(RUNS), RANGE(1, 4096), .value = "T",
     .help = "threads of a rank (default: its share of the processors)"},
    {FIELD(run.recompute), FLAG("recompute"), FOR(CUTS),
     .help = "keep less of the forward, and compute it again"},
    {FIELD(run.gather), FLAG("gather"), FOR(CUTS),
     .help = "gather all keys on every rank; nothing goes round a ring"},
    {FIELD(run.type), TAKES("type", CHOICE), FOR(RUNS), .choices = ra_option_types, .value = "TYPE",
     .help = "numbers that products read (default float32)"},
    {FIELD(run.deterministic), FLAG("deterministic"), FOR(CUTS),
     .help = "of a GPU: the same bits at each run"},
    {FIELD(run.transport), TAKES("transport", CHOICE), FOR(RUNS), .choices = ra_option_transports,
     .value = "WAY", .help = "how messages pass between GPUs (default any)"},
    {FIELD(run.shard_optimizer), FLAG("shard-optimizer"), FOR(NEW),
     .help = "of GPUs: each keeps the means of AdamW of its share of the weights alone"},
    {FIELD(run.timeout), TAKES("timeout", REAL), FOR(RUNS), RANGE(0, INFINITY),
     .good = "seconds, or 0 for no limit", .value = "S",
     .help = "seconds until a silent rank is an error (default 60; 0: never)"},

    {FIELD(token_type), TAKES("token-type", CHOICE), FOR(TRAIN | GENERATE), .choices = token_types,
     .value = "TYPE", .help = "tokens of DATA, or of --prompt-file (default uint8)"},
    {FIELD(document_end), TAKES("document-end", WHOLE), FOR(TRAIN | STEP | GENERATE),
     RANGE(0, INT32_MAX), .value = "TOKEN",
     .help = "documents end with TOKEN, and do not see each other; generate stops there, or with "
             "eos where FOLDER's configs say"},
    {FIELD(batch), TAKES("batch", WHOLE), FOR(NEW), RANGE(1, 1 << 20), .value = "B",
     .help = "sequences at a time, over all rings (default 1)"},
    {FIELD(accumulate), TAKES("accumulate", WHOLE), FOR(TRAIN), RANGE(1, 1 << 20), .value = "K",
     .help = "batches in a step; their gradients are added up (default 1)"},
    {FIELD(length), TAKES("tokens", WHOLE), FOR(NEW), RANGE(1, MOST), .value = "N",
     .help = "tokens of a sequence (default 1024, or what the rows of DATA have)"},
    {FIELD(steps), TAKES("steps", WHOLE), FOR(TRAIN), RANGE(0, MOST), .value = "N",
     .help = "steps in all (default 200)"},
    {FIELD(rate), TAKES("rate", REAL), FOR(TRAIN), RANGE(0, 1e6), .value = "R",
     .help = "the highest learning rate (default 0.001)"},
    {FIELD(warmup), TAKES("warmup", WHOLE), FOR(TRAIN), RANGE(0, MOST), .value = "N",
     .help = "steps until it is reached; then it falls to a tenth (default 20)"},
    {FIELD(decay), TAKES("decay", REAL), FOR(TRAIN), RANGE(0, 1e6), .value = "W",
     .help = "weight decay (default 0.1)"},
    {FIELD(clip), TAKES("clip", REAL), FOR(TRAIN), RANGE(0, INFINITY), .value = "C",
     .help = "shorten gradients longer than C (default 1; 0: never)"},
    {FIELD(validation), TAKES("validation", REAL), FOR(TRAIN), RANGE(0, 0.9), .value = "X",
     .help = "share of DATA kept for validation (default 0.1)"},
    {FIELD(save_every), TAKES("save-every", WHOLE), FOR(TRAIN), RANGE(1, MOST), .value = "N",
     .help = "steps from one checkpoint to the next (default 100)"},
    {FIELD(resume), FLAG("resume"), FOR(TRAIN), .help = "go on with MODEL if it is there"},
    {TAKES("trace", PATH), FOR(TRAIN | BENCH), .value = "FILE",
     .help = "write a timeline as Chrome trace JSON; bench: of one step more"},

    {FIELD(prompt), TAKES("prompt", PATH), FOR(GENERATE), .value = "TEXT",
     .help = "what the text begins with"},
    {FIELD(prompt_file), TAKES("prompt-file", PATH), FOR(GENERATE), .value = "FILE",
     .help = "the same from a file, or with - from the standard input; or tokens from a .npy"},
    {FIELD(count), TAKES("count", WHOLE), FOR(GENERATE), RANGE(0, MOST), .value = "N",
     .help = "tokens to add (default 100)"},
    {FIELD(run.cache_type), TAKES("cache-type", CHOICE), FOR(GENERATE), .choices = ra_option_types,
     .value = "TYPE", .help = "of keys and values that are kept: in long texts 16 bits halve them"},
    {FIELD(temperature), TAKES("temperature", REAL), FOR(GENERATE), RANGE(0, 1e6), .value = "T",
     .help = "0: always the likeliest token (default 0)"},
    {FIELD(top_k), TAKES("top-k", WHOLE), FOR(GENERATE), RANGE(1, MOST), .value = "K",
     .help = "only the K likeliest tokens"},
    {FIELD(top_p), TAKES("top-p", REAL), FOR(GENERATE), RANGE(DBL_TRUE_MIN, 1), .value = "P",
     .help = "only the likeliest tokens that together have probability P"},
    {FIELD(seed), TAKES("seed", WHOLE), FOR(NEW | GENERATE), RANGE(0, MOST), .value = "S",
     .help = "seed of all random numbers (default 0)"},
    {FIELD(stage.time), FLAG("time"), FOR(GENERATE),
     .help = "print times and memory on stderr, before the text"},
    {FIELD(safetensors), FLAG("safetensors"), FOR(EXPORT),
     .help = "write weights as model.safetensors (families always do), not as .npy"},
    {FIELD(bfloat16), FLAG("bfloat16"), FOR(EXPORT),
     .help = "write .safetensors of bfloat16 (default float32)"},
    {FIELD(shard), TAKES("shard", WHOLE), FOR(EXPORT), RANGE(1, MOST), .value = "BYTES",
     .help = "write .safetensors of at most so many bytes each, and an index"},
    {FIELD(repeat), TAKES("repeat", WHOLE), FOR(BENCH), RANGE(1, MOST), .value = "N",
     .help = "steps to time (default 5)"},
};
enum { OPTIONS = sizeof options / sizeof *options };

/* The command that is read, and where its flags go: getopt's loop has no argument for that. */
static const struct command *command;
static struct transformer *into;
_Static_assert(OPTIONS <= (int)sizeof into->given && OPTIONS <= (int)STAGE_FLAGS, "room in both");

static unsigned bit_of(const struct command *one)
{
    return 1u << (one - commands);
}

static void print_help(const struct stage *stage)
{
    const char *folder = strncmp(stage->program, "ringattn-", 9) == 0 ? "" : "build/";
    printf("Usage: mpirun -n RANKS %s COMMAND [FLAGS] ARGUMENTS\n\n%s\n\nCommands:\n",
           stage->program, stage->about);
    for (int c = 0; c < TRANSFORMER_COMMANDS; c++)
        printf("  %-8s %-14s %s\n", commands[c].name, commands[c].arguments, commands[c].help);
    printf(
        "\nDATA is a file in which each byte is a token, or each number of --token-type; or a "
        ".npy\n"
        "  of integers. With one axis it is a text; with two, (samples, columns), each row is a\n"
        "  sample, and negative numbers are padding.\n"
        "MODEL is a file, which train and import write. generate also reads a FOLDER.\n"
        "FOLDER has a model as config.json and model.safetensors (or shards with an index), of\n"
        "  Llama, Mistral, Qwen2, Qwen3, Gemma 2, MGQA or ring-attention-pytorch; or config.json\n"
        "  and weights/NAME.npy, one for each array.\n"
        "PROBLEM is such a folder that also holds a batch: tokens.npy, and if you like labels.npy\n"
        "  and mask.npy.\n"
        "RESULT is a folder that gets logits.npy and, if there are labels, loss.npy and\n"
        "  gradients/NAME.npy.\n\n"
        "Losses, texts and times go to stdout, errors to stderr. Exit code: 0 done, 1 failed,\n"
        "2 misuse. For example:\n\n"
        "  %s%s train --steps 50 README.md %sown-model\n"
        "  mpirun --oversubscribe -n 4 %s%s generate --prompt \"The \" \\\n"
        "      %sown-model\n\n"
        "Flags%s%s:\n",
        folder, stage->program, folder, folder, stage->program, folder, command ? " of " : "",
        command ? command->name : "");
    for (int o = 0; o < OPTIONS; o++)
        if (!command || options[o].programs & bit_of(command))
            stage_print_flag(&options[o]);
}

static void take(struct stage *stage, const struct ra_option *option, const char *text)
{
    if (!(option->programs & bit_of(command)))
        stage_end(stage, 2, "--%s is no flag of %s; see --help", option->flag, command->name);
    if (strcmp(option->flag, "document-end") == 0) {
        into->eos = command == &commands[TRANSFORMER_GENERATE] && strcmp(text, "eos") == 0;
        if (into->eos)
            return;
    }
    int64_t value = stage_parse(stage, option, text);
    into->given[option - options] = true;
    if (strcmp(option->flag, "layout") == 0)
        into->deal = false;
    if (strcmp(option->flag, "trace") == 0)
        stage->trace_path = text;
    else if (option->kind == RA_OPTION_PATH)
        memcpy((char *)into + option->offset, &text, sizeof text);
    else
        ra_option_store(option, into, value);
}

/* --lookback: "128", "none", or "128,none,64,none". */
static void read_lookback(struct transformer *t)
{
    const char *at = t->lookback;
    for (int64_t l = 0; l < t->model.depth; l++) {
        char *end;
        int64_t limit = strtoll(at, &end, 10);
        if (strncmp(at, "none", 4) == 0) {
            limit = RA_NO_LOOKBACK;
            end = (char *)at + 4;
        }
        bool last = l == t->model.depth - 1, only = l == 0 && *end == '\0';
        if (end == at || limit < 0 || (last ? *end != '\0' : *end != ',' && !only))
            stage_end(&t->stage, 2,
                      "--lookback %s: give tokens or none, or one for each of the %d layers, "
                      "with commas",
                      t->lookback, (int)t->model.depth);
        for (int64_t e = l; e < (only ? t->model.depth : l + 1); e++)
            t->model.lookback[e] = limit;
        if (only)
            return;
        at = end + 1;
    }
}

/* --biases, "none" or "qkv,logits", as flags of a model. */
static void read_biases(struct transformer *t, struct ra_model_config *model)
{
    const struct {
        const char *name;
        bool *flag;
    } all[] = {{"qkv", &model->qkv_bias},
               {"out", &model->out_bias},
               {"feed", &model->feed_bias},
               {"logits", &model->logits_bias}};
    for (int b = 0; b < 4; b++)
        *all[b].flag = false;
    if (strcmp(t->biases, "none") == 0)
        return;
    for (const char *at = t->biases, *end;; at = end + 1) {
        end = at + strcspn(at, ",");
        int b = 0;
        while (b < 4 && (strlen(all[b].name) != (size_t)(end - at) ||
                         strncmp(all[b].name, at, (size_t)(end - at)) != 0))
            b++;
        if (b == 4 || *all[b].flag)
            stage_end(&t->stage, 2,
                      "--biases %s: give none, or some of qkv, out, feed and logits, with commas",
                      t->biases);
        *all[b].flag = true;
        if (!*end)
            return;
    }
}

void transformer_complete_model(struct transformer *t)
{
    char error[RA_ERROR_SIZE];
    struct ra_model_config defaults;
    ra_model_config_init(&defaults, sizeof defaults);
    t->model.hidden = t->feed_multiple * t->model.dim;
    if (t->model.key_heads == 0)
        t->model.key_heads = t->model.heads;
    if (t->lookback)
        read_lookback(t);
    if (t->biases)
        read_biases(t, &t->model);
    if (t->model.norm == RA_NORM_UNIT && !t->model.head_norm &&
        t->model.norm_eps != defaults.norm_eps)
        stage_end(&t->stage, 2,
                  "--norm-eps: has no effect with --norm unit and without --head-norm");
    if (t->model.head_map != defaults.head_map &&
        (t->model.key_heads == t->model.heads || t->model.key_heads == 1))
        stage_end(&t->stage, 2,
                  "--head-map: has no effect unless --key-heads is between 1 and "
                  "--heads");
    struct ra_rotary_scaling *scaling = &t->model.rotary_scaling;
    if (scaling->high == 0)
        scaling->high = scaling->kind >= RA_ROTARY_YARN ? 32 : 4;
    if (ra_model_check(&t->model, error) != RA_OK)
        stage_end(&t->stage, 2, "%s", error);
}

const char *transformer_other_flag(const struct transformer *t, const struct ra_model_config *there)
{
    struct transformer other = *t;
    other.model = *there;
    if (t->lookback)
        read_lookback(&other);
    if (t->biases)
        read_biases(&other, &other.model);
    for (int o = 0; o < OPTIONS; o++) {
        const struct ra_option *option = &options[o];
        bool of_model = option->field && strncmp(option->field, "model.", 6) == 0;
        if (of_model && t->given[o] && ra_option_load(option, t) != ra_option_load(option, &other))
            return option->flag;
    }
    for (int64_t l = 0; l < there->depth; l++)
        if (other.model.lookback[l] != there->lookback[l])
            return "lookback";
    if (other.model.qkv_bias != there->qkv_bias || other.model.out_bias != there->out_bias ||
        other.model.feed_bias != there->feed_bias || other.model.logits_bias != there->logits_bias)
        return "biases";
    for (int o = 0; o < OPTIONS; o++)
        if (strcmp(options[o].flag, "ff-mult") == 0 && t->given[o] &&
            t->feed_multiple * there->dim != there->hidden)
            return "ff-mult";
    return NULL;
}

/* Flags of a draw, which is made only if there is a temperature. */
static void check_draw(const struct transformer *t)
{
    static const char *const flags[] = {"top-k", "top-p", "seed"};
    for (int o = 0; o < OPTIONS; o++)
        for (int f = 0; f < 3; f++)
            if (t->given[o] && strcmp(options[o].flag, flags[f]) == 0)
                stage_end(&t->stage, 2,
                          "--%s needs --temperature above 0: without it the likeliest token is "
                          "always taken",
                          flags[f]);
}

/* What no flag says alone. */
static void check_together(struct transformer *t, const struct transformer *defaults)
{
    if (t->run.ring_size > 0 && t->stage.world.ranks % t->run.ring_size != 0)
        stage_end(&t->stage, 2, "--ring-size %d: does not divide the %d ranks", t->run.ring_size,
                  t->stage.world.ranks);
    const struct {
        bool given;
        const char *flag, *why;
    } of_gpus[] = {
        {t->run.deterministic, "deterministic", "without a GPU bits are always the same"},
        {t->run.transport != RA_ANY_TRANSPORT, "transport", "without GPUs MPI passes all messages"},
        {t->run.shard_optimizer, "shard-optimizer",
         "without GPUs only the work of AdamW is shared"},
    };
    for (size_t i = 0; i < sizeof of_gpus / sizeof *of_gpus; i++)
        if (of_gpus[i].given && !t->run.device)
            stage_end(&t->stage, 2, "--%s is a flag of 14-gpu-transformer; %s", of_gpus[i].flag,
                      of_gpus[i].why);
    if (command == &commands[TRANSFORMER_GENERATE] && t->run.type != RA_FLOAT32 && !t->run.device)
        stage_end(&t->stage, 2,
                  "generate --type bfloat16 is for 14-gpu-transformer; without a GPU a text is "
                  "made in float32");
    if (t->run.type == RA_FLOAT16)
        stage_end(&t->stage, 2, "--type float16: a model computes in float32 or bfloat16");
    if (command == &commands[TRANSFORMER_GENERATE] && t->temperature == 0)
        check_draw(t);
    if (t->prompt && t->prompt_file)
        stage_end(&t->stage, 2, "--prompt and --prompt-file: give one of them");
    const char *file = command == &commands[TRANSFORMER_TRAIN] ? t->arguments[0] : t->prompt_file;
    const char *end = file ? strrchr(file, '.') : NULL;
    if (t->token_type != RA_TOKEN_UINT8 && (!file || (end && strcmp(end, ".npy") == 0)))
        stage_end(&t->stage, 2, "--token-type: %s; leave it out",
                  file ? "a .npy says what it has" : "has no effect without --prompt-file");
    /* A flag that is given counts, even if its value is the default. */
    struct transformer others = *defaults;
    for (int o = 0; o < OPTIONS; o++)
        if (t->given[o] && options[o].needs)
            ra_option_store(&options[o], &others, ra_option_load(&options[o], t) ^ 1);
    stage_check_needs(&t->stage, options, OPTIONS, t, &others);
    if (bit_of(command) & NEW && !t->resume)
        transformer_complete_model(t);
}

enum transformer_command transformer_options(struct transformer *t, int argc, char **argv)
{
    struct stage *stage = &t->stage;
    ra_model_config_init(&t->model, sizeof t->model);
    const struct ra_model_device *device = t->run.device;
    t->model.rotary_scaling = (struct ra_rotary_scaling){.factor = 8, .low = 1, .original = 8192};
    t->run = (struct ra_model_run)RA_MODEL_RUN_INIT;
    t->run.device = device;
    t->model.key_heads = 0;
    t->feed_multiple = 4;
    t->document_end = -1;
    t->run.timeout = 60;
    t->deal = true;
    t->batch = t->accumulate = 1;
    t->steps = 200;
    t->rate = 1e-3;
    t->warmup = 20;
    t->decay = 0.1;
    t->clip = 1;
    t->validation = 0.1;
    t->save_every = t->count = 100;
    t->top_p = 1;
    t->repeat = 5;
    into = t;
    const struct transformer defaults = *t;
    for (int c = 0; c < TRANSFORMER_COMMANDS && argc > 1; c++)
        if (strcmp(argv[1], commands[c].name) == 0)
            command = &commands[c];
    bool asks = argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
                             strcmp(argv[1], "--version") == 0);
    if (!command && !asks)
        stage_end(stage, 2,
                  "give a command: train, generate, step, export, import or bench%s%s; "
                  "see --help",
                  argc > 1 ? ", not " : "", argc > 1 ? argv[1] : "");
    int skipped = command ? 1 : 0;
    stage_read_flags(stage, argc - skipped, argv + skipped, options, OPTIONS, take, print_help);
    if (argc - skipped - optind != command->count)
        stage_end(stage, 2, "%s: give %s (got %d); see --help", command->name,
                  command->count > 0 ? command->arguments : "flags alone", argc - skipped - optind);
    for (int i = 0; i < command->count; i++)
        t->arguments[i] = argv[skipped + optind + i];
    check_together(t, &defaults);
    if (t->run.ring_size == 0)
        t->run.ring_size = stage->world.ranks;
    stage->config.timeout = t->run.timeout;
    stage_check_all(stage);
    return (enum transformer_command)(command - commands);
}
