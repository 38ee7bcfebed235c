/* scale_options: the command line of 12-scale. See scale.h. */
#include <float.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "scale.h"
#include "stage_parts.h"

/* ---- Machines that somebody has measured, or a maker's data sheet tells. */

/* A preset fills what no flag gives. Rates are multiply-adds a second: half of what makers call FLOPS. */
struct preset {
    struct ra_scale_machine machine;
    const char *source;
};

#define GPU(forward, backward, memory_is, reads, nvlink) \
    .machine = {.forward_rate = forward,                 \
                .backward_rate = backward,               \
                .memory = memory_is,                     \
                .memory_bandwidth = reads,               \
                .tile_queries = 128,                     \
                .tile_keys = 64,                         \
                .overhead = 5e-6,                        \
                .ranks_per_host = 8,                     \
                .bandwidth = nvlink,                     \
                .latency = 6e-6}

static const struct ra_choice machines[] = {
    {"none", NULL}, {"h100", NULL}, {"h200", NULL}, {"b200", NULL}, {0}};
static const struct preset machine_presets[] = {
    {.source = ""},
    {GPU(183.5e12, 141e12, 80e9, 3.35e12, 393e9),
     "rates and NVLink of the h200, which has the same multiprocessors; memory: NVIDIA's data "
     "sheet"},
    {GPU(183.5e12, 141e12, 141e9, 4.8e12, 393e9),
     "rates and NVLink: measured, chapter 11; memory: NVIDIA's data sheet"},
    {GPU(417e12, 320e12, 180e9, 8e12, 780e9), "NVIDIA's data sheet of the DGX B200; of its rates "
                                              "and NVLink the shares that the h200 reached"}};

static const struct ra_choice networks[] = {
    {"none", NULL}, {"infiniband400", NULL}, {"ethernet400", NULL}, {0}};
static const struct preset network_presets[] = {
    {.source = ""},
    {{.host_bandwidth = 50e9, .host_latency = 5e-6},
     "400 Gb/s for each rank, the rate of the line; latency assumed"},
    {{.host_bandwidth = 50e9, .host_latency = 20e-6},
     "400 Gb/s for each rank, the rate of the line; latency assumed"}};

/* Fills in what is 0. */
static void take_preset(struct ra_scale_machine *to, const struct ra_scale_machine *preset)
{
#define FILL(field) to->field = to->field != 0 ? to->field : preset->field
    FILL(forward_rate);
    FILL(backward_rate);
    FILL(memory);
    FILL(memory_bandwidth);
    FILL(tile_queries);
    FILL(tile_keys);
    FILL(overhead);
    FILL(ranks_per_host);
    FILL(bandwidth);
    FILL(latency);
    FILL(host_bandwidth);
    FILL(host_latency);
#undef FILL
}

/* ---- The flags. */

static const struct ra_choice methods[] = {[RA_SCALE_RING] = {"ring", NULL},
                                           [RA_SCALE_DOUBLE_RING] = {"double-ring", NULL},
                                           [RA_SCALE_GATHER] = {"all-gather", NULL},
                                           {0}};

#define MOST 0x1p50
#define FIELD(name) .field = #name, .offset = offsetof(struct scale, name)
#define TAKES(name, what) .flag = name, .kind = RA_OPTION_##what
#define RANGE(low, high) .least = low, .most = high
#define ABOVE_0 RANGE(DBL_TRUE_MIN, DBL_MAX)
#define FROM_0 RANGE(0, DBL_MAX)

static const struct ra_option options[] = {
    {TAKES("help", FLAG), .help = "show this text; -h does, too"},
    {TAKES("version", FLAG), .help = "show the version"},
    {FIELD(config.queries), TAKES("tokens", WHOLE), RANGE(1, MOST), .value = "N",
     .help = "tokens of a sequence; with --decode, of the cache"},
    {FIELD(config.batch), TAKES("batch", WHOLE), RANGE(1, MOST), .value = "B",
     .help = "sequences (default 1)"},
    {FIELD(config.heads), TAKES("heads", WHOLE), RANGE(1, MOST), .value = "H",
     .help = "query heads (default 32)"},
    {FIELD(config.key_heads), TAKES("key-heads", WHOLE), RANGE(1, MOST), .value = "G",
     .help = "key/value heads (default as heads)"},
    {FIELD(config.dim), TAKES("dim-head", WHOLE), RANGE(1, MOST), .value = "D",
     .help = "numbers of a head (default 128)"},
    {FIELD(config.type), TAKES("type", CHOICE), .choices = ra_option_types, .value = "TYPE",
     .help = "of the arrays (default bfloat16)"},
    {FIELD(config.causal), TAKES("causal", FLAG), .help = "no query sees keys after its position"},
    {FIELD(config.lookback), TAKES("lookback", WHOLE), RANGE(0, MOST), .value = "L",
     .help = "with --causal: at most so many tokens back"},
    {FIELD(config.layout), TAKES("layout", CHOICE), .choices = ra_option_layouts, .value = "NAME",
     .help = "rows of each rank (default contiguous)"},
    {FIELD(config.forward_only), TAKES("forward-only", FLAG), .help = "no backward"},
    {FIELD(ranks), TAKES("ranks", PATH), .value = "P,..", .help = "how many ranks (default 8)"},
    {FIELD(method), TAKES("method", CHOICE), .choices = methods, .value = "NAME",
     .help = "how keys come to queries (default ring)"},

    {FIELD(machine_preset), TAKES("machine", CHOICE), .choices = machines, .value = "NAME",
     .help = "what is not given is that of"},
    {FIELD(network_preset), TAKES("network", CHOICE), .choices = networks, .value = "NAME",
     .help = "between hosts, what is not given is that of"},
    {FIELD(machine.ranks_per_host), TAKES("ranks-per-host", INT), RANGE(1, INT_MAX), .value = "P",
     .help = "ranks of a host (default: all)"},
    {FIELD(machine.forward_rate), TAKES("forward-rate", REAL), ABOVE_0, .value = "F",
     .help = "multiply-adds a second of a rank"},
    {FIELD(machine.backward_rate), TAKES("backward-rate", REAL), ABOVE_0, .value = "F",
     .help = "the same in the backward"},
    {FIELD(machine.bandwidth), TAKES("bandwidth", REAL), ABOVE_0, .value = "W",
     .help = "bytes a second from a rank to another of its host"},
    {FIELD(machine.latency), TAKES("latency", REAL), FROM_0, .value = "S",
     .help = "seconds of such a message besides (default 0)"},
    {FIELD(machine.host_bandwidth), TAKES("host-bandwidth", REAL), ABOVE_0, .value = "W",
     .help = "bytes a second from a rank to another host"},
    {FIELD(machine.host_latency), TAKES("host-latency", REAL), FROM_0, .value = "S",
     .help = "seconds of such a message besides (default 0)"},
    {FIELD(machine.memory), TAKES("memory", REAL), ABOVE_0, .value = "BYTES",
     .help = "of a rank; 141e9 are 141 GB"},
    {FIELD(machine.memory_bandwidth), TAKES("memory-bandwidth", REAL), ABOVE_0, .value = "W",
     .help = "bytes a second of a rank's memory"},
    {FIELD(machine.overhead), TAKES("overhead", REAL), FROM_0, .value = "S",
     .help = "seconds of a hop besides (default 0)"},
    {FIELD(machine.tile_queries), TAKES("tile-queries", WHOLE), RANGE(1, MOST), .value = "ROWS",
     .help = "of a tile that is computed whole (default 1)"},
    {FIELD(machine.tile_keys), TAKES("tile-keys", WHOLE), RANGE(1, MOST), .value = "ROWS",
     .help = "the same of keys (default 1)"},

    {FIELD(by_hop), TAKES("per-hop", FLAG), .help = "a line for each hop"},
    {FIELD(simulate), TAKES("simulate", FLAG), .help = "follow each rank of the ring, hop by hop"},
    {FIELD(machine.slow_rank), TAKES("slow-rank", INT), RANGE(0, INT_MAX), .value = "R",
     .help = "with --simulate: this rank works slowly"},
    {FIELD(machine.slow_link), TAKES("slow-link", INT), RANGE(0, INT_MAX), .value = "R",
     .help = "with --simulate: what this rank sends is slow"},
    {FIELD(factor), TAKES("factor", REAL), ABOVE_0, .value = "X",
     .help = "it takes X times as long (default 2)"},
    {FIELD(decode), TAKES("decode", FLAG), .help = "one new token over a cache, by a tree"},
    {FIELD(fits), TAKES("fits", FLAG), .help = "the longest sequence of a model's training"},
    {FIELD(model.dim), TAKES("dim", WHOLE), RANGE(1, 1 << 30), .value = "N",
     .help = "with --fits: numbers of a token (default heads * dim-head)"},
    {FIELD(model.depth), TAKES("depth", WHOLE), RANGE(1, 1 << 20), .value = "L",
     .help = "layers (default 32)"},
    {FIELD(feed_multiple), TAKES("ff-mult", WHOLE), RANGE(0, 1024), .value = "F",
     .help = "hidden numbers of a feed-forward layer, in dims (default 4)"},
    {FIELD(model.vocabulary), TAKES("vocabulary", WHOLE), RANGE(0, 1 << 30), .value = "V",
     .help = "size of the vocabulary (default 128000)"},
    {FIELD(model.recompute), TAKES("recompute", FLAG),
     .help = "layers keep one row of numbers, and compute the rest again"},
    {FIELD(model.replicated), TAKES("replicated", FLAG), .help = "every rank has all weights"},
    {FIELD(measure), TAKES("measure", FLAG),
     .help = "measure this machine, and print it as flags; on two ranks its link, too"},
};
enum { OPTIONS = sizeof options / sizeof *options };

/* Where the flags go: getopt's loop has no argument for that. */
static struct scale *into;

static void print_sources(const struct ra_choice *choices, const struct preset *presets)
{
    for (int c = 1; choices[c].word; c++)
        printf("  %-15s %s\n", choices[c].word, presets[c].source);
}

static void print_help(const struct stage *stage)
{
    printf("Usage: %s [FLAGS]\n       mpirun -n RANKS %s --measure\n\n%s\n\n"
           "  %s --machine h200 --network infiniband400 --tokens 1048576 --causal \\\n"
           "      --layout striped --ranks 8,64,512\n"
           "  %s --machine h200 --fits --recompute --ranks 8,64\n\n"
           "Numbers may be written as 1e9, where they need not be whole. Times are seconds unless\n"
           "the table says otherwise; GB are 10^9 bytes. Exit code: 0 done, 1 failed, 2 misuse.\n\n"
           "Flags:\n",
           stage->program, stage->program, stage->about, stage->program, stage->program);
    for (int o = 0; o < OPTIONS; o++)
        stage_print_flag(&options[o]);
    puts("\nMachines and networks, and where their numbers come from:");
    print_sources(machines, machine_presets);
    print_sources(networks, network_presets);
}

static void take(struct stage *stage, const struct ra_option *option, const char *text)
{
    int64_t value = stage_parse(stage, option, text);
    if (option->kind == RA_OPTION_PATH)
        memcpy((char *)into + option->offset, &text, sizeof text);
    else
        ra_option_store(option, into, value);
}

/* --ranks: "8", or "8,64,512". */
static void read_counts(struct scale *scale)
{
    const char *at = scale->ranks;
    for (scale->count = 0; *at; scale->count++) {
        char *end;
        long count = strtol(at, &end, 10);
        if (end == at || count < 1 || count > INT_MAX || (*end != ',' && *end != '\0') ||
            scale->count == SCALE_MOST_COUNTS)
            stage_end(&scale->stage, 2,
                      "--ranks %s: give 1 or more, or up to %d such numbers with "
                      "commas",
                      scale->ranks, SCALE_MOST_COUNTS);
        scale->counts[scale->count] = (int)count;
        at = *end ? end + 1 : end;
    }
}

/* What no flag says alone. */
static void check_together(struct scale *scale)
{
    const struct stage *stage = &scale->stage;
    const struct ra_config *c = &scale->config;
    bool slow = scale->machine.slow_rank >= 0 || scale->machine.slow_link >= 0;
    if (c->queries == 0 && !scale->fits && !scale->measure)
        stage_end(stage, 2, "--tokens is missing: give how long the sequence is; see --help");
    if (c->lookback != RA_NO_LOOKBACK && !c->causal)
        stage_end(stage, 2, "--lookback needs --causal: it counts tokens back from each query");
    if (slow && !scale->simulate)
        stage_end(stage, 2, "--slow-rank and --slow-link need --simulate");
    if (scale->simulate && scale->method != RA_SCALE_RING)
        stage_end(stage, 2, "--simulate needs --method ring");
    if (scale->by_hop + scale->simulate + scale->decode + scale->fits + scale->measure > 1)
        stage_end(stage, 2, "give one of --per-hop, --simulate, --decode, --fits and --measure");
}

void scale_begin(struct scale *scale, int argc, char **argv, const char *program, const char *about)
{
    bool measure = false;
    program = stage_called(argv, program);
    for (int i = 1; i < argc; i++)
        measure |= strcmp(argv[i], "--measure") == 0;
    if (measure)
        stage_begin_mpi(&scale->stage, argc, argv, 12, program, about);
    else
        scale->stage = (struct stage){.program = program,
                                      .number = 12,
                                      .about = about,
                                      .world = stage_alone,
                                      .config = RA_CONFIG_INIT};
    stage_begin(&scale->stage, argc, argv);
}

void scale_options(struct scale *scale, int argc, char **argv)
{
    scale->config = (struct ra_config)RA_CONFIG_INIT;
    scale->config.heads = 32;
    scale->config.dim = 128;
    scale->config.type = RA_BFLOAT16;
    scale->config.threads = 1; /* each thread of a plan would need memory of its own */
    scale->model = (struct ra_scale_model)RA_SCALE_MODEL_INIT;
    scale->model.depth = 32;
    scale->model.vocabulary = 128000;
    scale->feed_multiple = 4;
    scale->machine =
        (struct ra_scale_machine){.size = sizeof scale->machine, .slow_rank = -1, .slow_link = -1};
    scale->machine.slow_rank_factor = scale->machine.slow_link_factor = 1;
    scale->factor = 2;
    scale->ranks = "8";
    into = scale;
    stage_read_flags(&scale->stage, argc, argv, options, OPTIONS, take, print_help);
    if (optind < argc)
        stage_end(&scale->stage, 2, "%s: give flags alone; see --help", argv[optind]);
    check_together(scale);
    read_counts(scale);
    take_preset(&scale->machine, &machine_presets[scale->machine_preset].machine);
    take_preset(&scale->machine, &network_presets[scale->network_preset].machine);
    static const struct ra_scale_machine plain = {.tile_queries = 1, .tile_keys = 1};
    take_preset(&scale->machine, &plain);
    if (scale->machine.slow_rank >= 0)
        scale->machine.slow_rank_factor = scale->factor;
    if (scale->machine.slow_link >= 0)
        scale->machine.slow_link_factor = scale->factor;
    if (scale->model.dim == 0)
        scale->model.dim = scale->config.heads * scale->config.dim;
    scale->model.hidden = scale->feed_multiple * scale->model.dim;
    stage_check_all(&scale->stage);
}

void scale_check(const struct scale *scale, enum ra_status status, const char *error)
{
    if (status == RA_OK)
        return;

    /* A field of the machine is a flag of the same name, with dashes. */
    char flag[RA_ERROR_SIZE + 8];
    const char *prefix = "machine.";
    bool is_flag = strncmp(error, prefix, strlen(prefix)) == 0;
    snprintf(flag, sizeof flag, "%s%s", is_flag ? "--" : "",
             error + (is_flag ? strlen(prefix) : 0));
    for (char *at = flag; is_flag && *at && *at != ' '; at++)
        *at = *at == '_' ? '-' : *at;
    bool missing = is_flag && strstr(flag, " is missing") != NULL;
    stage_end(&scale->stage, status == RA_INVALID ? 2 : 1, "%s%s", flag,
              missing ? "; or a --machine or --network that has it" : "");
}
