/* scale_options: the command line of 12-scale. See scale.h. */
#include <float.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "scale.h"
#include "stage_options.h"
#include "stage_slices.h"
#define OPTIONS_OF struct scale
#include "ra_option_table.h"

static const struct ra_choice methods[] = {[RA_SCALE_RING] = {"ring", NULL},
                                           [RA_SCALE_DOUBLE_RING] = {"double-ring", NULL},
                                           [RA_SCALE_GATHERED_KEYS] = {"gathered-keys", NULL},
                                           [RA_SCALE_EXCHANGED_HEADS] = {"exchanged-heads", NULL},
                                           [RA_SCALE_HYBRID] = {"hybrid", NULL},
                                           [SCALE_ALL_METHODS] = {"all", NULL},
                                           {0}};

#define ABOVE_0 RANGE(DBL_TRUE_MIN, DBL_MAX)
#define FROM_0 RANGE(0, DBL_MAX)

/* The answers for which a flag can make a difference. */
#define TIME (SCALE_RANKS | SCALE_STEP | SCALE_HOPS | SCALE_SIMULATE)
#define MODEL (SCALE_STEP | SCALE_FITS)
#define PRICED (TIME | SCALE_DECODE)
#define SHAPE (PRICED | SCALE_FITS)
#define ANY (SHAPE | SCALE_MEASURE)

static const struct ra_option flags[] = {
    {FLAG("help"), FOR(ANY), .help = "show this text; -h does, too"},
    {FLAG("version"), FOR(ANY), .help = "show the version"},
    {FIELD(config.queries), TAKES("tokens", WHOLE), FOR(PRICED), RANGE(1, MOST), .value = "N",
     .help = "tokens of a sequence; with --decode, of the cache"},
    {FIELD(config.batch), TAKES("batch", WHOLE), FOR(SHAPE), RANGE(1, MOST), .value = "B",
     .help = "sequences (default 1)"},
    {FIELD(config.heads), TAKES("heads", WHOLE), FOR(SHAPE), RANGE(1, MOST), .value = "H",
     .help = "query heads (default 32)"},
    {FIELD(config.key_heads), TAKES("key-heads", WHOLE), FOR(SHAPE), RANGE(1, MOST), .value = "G",
     .help = "key/value heads (default: as many as query heads)"},
    {FIELD(config.dim), TAKES("dim-head", WHOLE), FOR(ANY), RANGE(1, MOST), .value = "D",
     .help = "numbers of a head (default 128)"},
    {FIELD(config.type), TAKES("type", CHOICE), FOR(SHAPE), .choices = ra_option_types,
     .value = "TYPE", .help = "type of the arrays (default bfloat16)"},
    {FIELD(config.causal), FLAG("causal"), FOR(TIME),
     .help = "no query sees keys after its position"},
    {FIELD(config.lookback), TAKES("lookback", WHOLE), FOR(TIME), RANGE(0, MOST), .value = "L",
     .help = "with --causal: a query sees at most this many tokens before its own"},
    {FIELD(config.layout), TAKES("layout", CHOICE), FOR(TIME), .choices = ra_option_layouts,
     .value = "NAME", .help = "with a mask: rows of each rank (default contiguous)"},
    {FIELD(stage.documents), TAKES("documents", PATH), FOR(TIME), .value = "ENDS",
     .help = "documents do not see each other: their ends, 5,22,90, or a file of these"},
    {FIELD(slices), TAKES("slices", PATH), FOR(TIME), .value = "FILE",
     .help = "any mask: slices (n, 6) of int64 as an .npy, as in PROBLEM (stage 13)"},
    {FIELD(list.deal), TAKES("deal", CHOICE), FOR(TIME), .choices = ra_option_deals, .value = "HOW",
     .help = "rows of each rank by --layout, or by document (default layout)"},
    {FIELD(config.forward_only), FLAG("forward-only"),
     FOR(SCALE_RANKS | SCALE_HOPS | SCALE_SIMULATE), .help = "no backward"},
    {FIELD(ranks), TAKES("ranks", PATH), FOR(SHAPE), .value = "P,..",
     .help = "how many ranks (default 8)"},
    {FIELD(method), TAKES("method", CHOICE), FOR(SCALE_RANKS | SCALE_STEP | SCALE_HOPS),
     .choices = methods, .value = "NAME",
     .help = "how queries meet keys (default ring); all: a line for each method"},
    {FIELD(config.group), TAKES("group", INT), FOR(SCALE_RANKS | SCALE_STEP | SCALE_HOPS),
     RANGE(1, INT_MAX), .value = "U",
     .help = "with --method hybrid: ranks that exchange heads (default: by key heads)"},

    {FIELD(machine_preset), TAKES("machine", CHOICE), FOR(SHAPE), .choices = scale_machines,
     .value = "NAME", .help = "take what no flag gives from this machine"},
    {FIELD(network_preset), TAKES("network", CHOICE), FOR(PRICED), .choices = scale_networks,
     .value = "NAME", .help = "take what no flag gives between hosts from it"},
    {FIELD(machine.ranks_per_host), TAKES("ranks-per-host", INT), FOR(PRICED), RANGE(1, INT_MAX),
     .value = "P", .help = "ranks on each host (default: all)"},
    {FIELD(machine.forward_rate), TAKES("forward-rate", REAL), FOR(PRICED), .unit = 'F', ABOVE_0,
     .value = "F", .help = "multiply-adds a second of a rank, forward; or 660TFLOP/s"},
    {FIELD(machine.backward_rate), TAKES("backward-rate", REAL), FOR(TIME), .unit = 'F', ABOVE_0,
     .value = "F", .help = "the same, backward"},
    {FIELD(dense_rate), TAKES("dense-rate", REAL), FOR(SCALE_STEP), .unit = 'F', ABOVE_0,
     .value = "F", .help = "with --depth: the same, of products with weights"},
    {FIELD(machine.bandwidth), TAKES("bandwidth", REAL), FOR(PRICED), .unit = 'W', ABOVE_0,
     .value = "W", .help = "bytes a second from a rank to another on its host"},
    {FIELD(machine.latency), TAKES("latency", REAL), FOR(PRICED), .unit = 's', FROM_0, .value = "S",
     .help = "seconds that such a message takes besides its bytes (default 0)"},
    {FIELD(machine.host_bandwidth), TAKES("host-bandwidth", REAL), FOR(PRICED), .unit = 'W',
     ABOVE_0, .value = "W",
     .help = "bytes a second from a rank to a rank on another host; or 400Gb/s"},
    {FIELD(machine.host_latency), TAKES("host-latency", REAL), FOR(PRICED), .unit = 's', FROM_0,
     .value = "S", .help = "seconds that such a message takes besides its bytes (default 0)"},
    {FIELD(machine.memory), TAKES("memory", REAL), FOR(SCALE_RANKS | MODEL | SCALE_DECODE),
     .unit = 'B', ABOVE_0, .value = "BYTES", .help = "bytes of memory of a rank; or 141GB"},
    {FIELD(machine.memory_bandwidth), TAKES("memory-bandwidth", REAL), FOR(PRICED), .unit = 'W',
     ABOVE_0, .value = "W", .help = "bytes a second of a rank's memory"},
    {FIELD(machine.overhead), TAKES("overhead", REAL), FOR(PRICED), .unit = 's', FROM_0,
     .value = "S", .help = "seconds that each hop takes besides its work (default 0)"},
    {FIELD(machine.tile_queries), TAKES("tile-queries", WHOLE), FOR(TIME), RANGE(1, MOST),
     .value = "ROWS", .help = "with a mask: query rows of the kernel's tiles (default 1)"},
    {FIELD(machine.tile_keys), TAKES("tile-keys", WHOLE), FOR(TIME), RANGE(1, MOST),
     .value = "ROWS", .help = "with a mask: key rows of the kernel's tiles (default 1)"},

    {FIELD(by_hop), FLAG("per-hop"), FOR(SCALE_HOPS), .help = "a line for each hop"},
    {FIELD(simulate), FLAG("simulate"), FOR(SCALE_SIMULATE),
     .help = "follow each rank of the ring, hop by hop"},
    {FIELD(machine.slow_rank), TAKES("slow-rank", INT), FOR(SCALE_SIMULATE), RANGE(0, INT_MAX),
     .value = "R", .help = "with --simulate: this rank works slowly"},
    {FIELD(machine.slow_link), TAKES("slow-link", INT), FOR(SCALE_SIMULATE), RANGE(0, INT_MAX),
     .value = "R", .help = "with --simulate: messages from this rank are slow"},
    {FIELD(factor), TAKES("factor", REAL), FOR(SCALE_SIMULATE), ABOVE_0, .value = "X",
     .help = "the slow rank or link takes X times as long (default 2)"},
    {FIELD(decode), FLAG("decode"), FOR(SCALE_DECODE),
     .help = "one new token with a cache, by tree decoding"},
    {FIELD(fits), FLAG("fits"), FOR(SCALE_FITS),
     .help = "the longest sequence with which a model can be trained"},
    {FIELD(model.depth), TAKES("depth", WHOLE), FOR(MODEL), RANGE(1, 1 << 20), .value = "L",
     .help = "a training step of a model of L layers; with --fits: its layers (default 32)"},
    {FIELD(model.dim), TAKES("dim", WHOLE), FOR(MODEL), RANGE(1, 1 << 30), .value = "N",
     .help = "width of that model (default heads * dim-head)"},
    {FIELD(feed_multiple), TAKES("ff-mult", REAL), FOR(MODEL), RANGE(0, 1024), .value = "F",
     .help = "hidden width of its feed-forward layers / its width (default 4)"},
    {FIELD(model.vocabulary), TAKES("vocabulary", WHOLE), FOR(MODEL), RANGE(0, 1 << 30),
     .value = "V", .help = "size of its vocabulary (default 128000)"},
    {FIELD(model.recompute), FLAG("recompute"), FOR(MODEL),
     .help = "layers keep only their input, and compute the rest again"},
    {FIELD(model.replicated), FLAG("replicated"), FOR(MODEL),
     .help = "every rank has all weights, instead of a share"},
    {FIELD(csv), FLAG("csv"), FOR(SHAPE), .help = "comma-separated values below their names"},
    {FIELD(measure), FLAG("measure"), FOR(SCALE_MEASURE),
     .help = "measure this machine, on two ranks or more also its link; print flags"},
};
enum { FLAGS = sizeof flags / sizeof *flags };
_Static_assert((int)FLAGS <= (int)SCALE_MOST_FLAGS, "a flag more than scale.given has room for");

/* What take() fills: getopt's loop has no argument for it. */
static struct scale *into;

static void print_sources(const struct ra_choice *choices, const struct scale_preset *presets)
{
    for (int c = 1; choices[c].word; c++)
        printf("  %-15s %s\n", choices[c].word, presets[c].source);
}

static void print_help(const struct stage *stage)
{
    printf(
        "Usage: %s [FLAGS]\n       mpirun -n RANKS %s --measure\n\n%s\n\n"
        "  %s --machine h100 --network infiniband400 --tokens 1Mi --causal \\\n"
        "      --layout striped --ranks 8,64,512\n"
        "  %s --machine h100 --fits --recompute --ranks 8,64\n\n"
        "Numbers may be written as 1e9, 2^20, 1M (10^6) or 1Mi (2^20), and with their unit: "
        "400Gb/s,\n"
        "50GB/s, 80GB, 5us, 660TFLOP/s. Times are seconds unless the table says otherwise; GB are\n"
        "10^9 bytes. Exit code: 0 done, 1 failed, 2 misuse.\n\n"
        "Flags:\n",
        stage->program, stage->program, stage->about, stage->program, stage->program);
    for (int f = 0; f < FLAGS; f++)
        stage_print_flag(&flags[f]);
    puts("\nMachines and networks, and where their numbers come from:");
    print_sources(scale_machines, scale_machine_presets);
    print_sources(scale_networks, scale_network_presets);
}

/* Refuses a number that nobody can mean in this unit. */
static void check_unit(const struct stage *stage, const char *flag, const char *text, char unit,
                       double value)
{
    static const struct {
        char unit;
        double least, most;
        const char *what, *hint;
    } sane[] = {{'W', 1e4, 1e17, "bytes a second",
                 "write 400Gb/s for gigabits a second, 50GB/s for gigabytes"},
                {'B', 1e6, 1e18, "bytes", "write 80GB for 80 * 10^9 bytes"},
                {'s', 0, 10, "seconds", "write 5us for microseconds, 5ms for milliseconds"},
                {'F', 1e6, 1e20, "multiply-adds a second",
                 "write 660TFLOP/s for 330e12 multiply-adds, of two operations each"}};
    for (size_t s = 0; s < sizeof sane / sizeof *sane; s++)
        if (sane[s].unit == unit && value >= 0 && (value < sane[s].least || value > sane[s].most))
            stage_end(stage, 2, "--%s %s: these are %g %s; give %g to %g (%s)", flag, text, value,
                      sane[s].what, sane[s].least, sane[s].most, sane[s].hint);
}

static void take(struct stage *stage, const struct ra_option *option, const char *text)
{
    into->given[option - flags] = true;
    if (option->kind == RA_OPTION_PATH) {
        memcpy((char *)into + option->offset, &text, sizeof text);
        return;
    }

    /* stage_parse reads the same number without its unit, and refuses a text that is no number. */
    char plain[64];
    double number;
    bool counts = option->kind == RA_OPTION_WHOLE || option->kind == RA_OPTION_INT;
    if ((counts || option->kind == RA_OPTION_REAL) && scale_number(text, option->unit, &number)) {
        check_unit(stage, option->flag, text, option->unit, number);
        if (!counts || number == floor(number)) {
            /* Counts are read as 64 bits, and 2^63 is beyond all. */
            snprintf(plain, sizeof plain, counts ? "%.0f" : "%.17g",
                     counts ? fmax(-0x1p63, fmin(number, 0x1p63)) : number);
            text = plain;
        }
    }
    ra_option_store(option, into, stage_parse(stage, option, text));
}

/* --ranks: "8", or "8,64,512". */
static void read_counts(struct scale *scale)
{
    const struct stage *stage = &scale->stage;
    const char *at = scale->ranks;
    for (scale->count = 0; at; scale->count++) {
        char one[32];
        double count;
        size_t length = strcspn(at, ",");
        snprintf(one, sizeof one, "%.*s", (int)(length < sizeof one ? length : sizeof one - 1), at);
        if (!scale_number(one, 0, &count) || count != floor(count) || count < 1 ||
            count > INT_MAX || scale->count == SCALE_MOST_COUNTS)
            stage_end(
                stage, 2,
                "--ranks %s: give a number of 1 or more, or up to %d of them with commas between",
                scale->ranks, SCALE_MOST_COUNTS);
        scale->counts[scale->count] = (int)count;
        at = at[length] ? at + length + 1 : NULL;
    }
    if (scale->count > 1 && scale->mode & (SCALE_HOPS | SCALE_SIMULATE))
        stage_end(stage, 2, "--ranks %s: give one number with --per-hop or --simulate",
                  scale->ranks);
}

/* ---- Flags that have no effect are refused, because a user who gives one expects a difference. */

static bool is_given(const struct scale *scale, const char *flag)
{
    for (int f = 0; f < FLAGS; f++)
        if (strcmp(flags[f].flag, flag) == 0)
            return scale->given[f];
    return false;
}

static int most_ranks(const struct scale *scale)
{
    int most = 0;
    for (int i = 0; i < scale->count; i++)
        most = scale->counts[i] > most ? scale->counts[i] : most;
    return most;
}

/* Refuses flags that make no difference to this question, and says to which they would. */
static void check_modes(const struct scale *scale)
{
    static const struct {
        unsigned mode;
        const char *flag;
    } names[] = {{SCALE_STEP, "depth"},    {SCALE_HOPS, "per-hop"}, {SCALE_SIMULATE, "simulate"},
                 {SCALE_DECODE, "decode"}, {SCALE_FITS, "fits"},    {SCALE_MEASURE, "measure"}};
    enum { NAMES = sizeof names / sizeof *names };
    for (int f = 0; f < FLAGS; f++) {
        unsigned modes = flags[f].programs;
        if (!scale->given[f] || modes & scale->mode)
            continue;
        for (int n = 0; n < NAMES; n++)
            if (names[n].mode == scale->mode)
                stage_end(&scale->stage, 2, "--%s has no effect with --%s", flags[f].flag,
                          names[n].flag);
        char needs[100] = "";
        for (int n = 0; n < NAMES; n++)
            if (modes & names[n].mode)
                snprintf(needs + strlen(needs), sizeof needs - strlen(needs), "%s--%s",
                         *needs ? " or " : "", names[n].flag);
        stage_end(&scale->stage, 2, "--%s has no effect without %s", flags[f].flag, needs);
    }
}

/* Has the mask a diagonal, and so tiles that are needed in part? */
static bool has_edges(const struct scale *scale)
{
    bool edges = !scale->mask && scale->config.causal;
    for (int64_t s = 0; s < scale->list.count; s++)
        edges |= scale->list.slices[s].lo > -RA_BAND_FAR || scale->list.slices[s].hi < RA_BAND_FAR;
    return edges;
}

/* Refuses flags that make no difference because of other flags. */
static void check_idle(const struct scale *scale)
{
    const struct ra_config *c = &scale->config;
    const struct ra_scale_machine *m = &scale->machine;
    int here = m->ranks_per_host, most = most_ranks(scale);
    bool alone = most == 1, one_host = here == 0 || here >= most;
    bool slow = m->slow_rank >= 0 || m->slow_link >= 0, edges = has_edges(scale);
    const char *all_here = "all ranks are on one host; give more --ranks or fewer --ranks-per-host";
    const struct {
        const char *flag;
        bool idle;
        const char *why;
    } rules[] = {
        {"causal", scale->slices != NULL, "--slices is the whole mask"},
        {"deal", !scale->mask, "give --documents or --slices"},
        {"layout", scale->mask && scale->list.deal == RA_DEAL_DOCUMENTS,
         "--deal documents gives ranks their rows"},
        {"layout", !c->causal && !scale->mask, "without --causal all layouts have the same work"},
        {"tile-queries", !edges, "without --causal every tile is needed in full"},
        {"tile-keys", !edges, "without --causal every tile is needed in full"},
        {"backward-rate", c->forward_only, "there is no backward"},
        {"group", alone, "there is one rank"},
        {"factor", !slow, "give --slow-rank or --slow-link"},
        {"slow-link", alone, "there is one rank"},
        {"key-heads", alone && scale->mode & (SCALE_HOPS | SCALE_SIMULATE),
         "a single rank sends nothing"},
        {"replicated", alone, "there is one rank"},
        {"memory-bandwidth", alone && !(scale->mode & (SCALE_DECODE | SCALE_STEP)),
         "a single rank moves no carry between hops"},
        {"bandwidth", alone || here == 1, "no two ranks are on one host"},
        {"latency", alone || here == 1, "no two ranks are on one host"},
        {"network", one_host, all_here},
        {"host-bandwidth", one_host, all_here},
        {"host-latency", one_host, all_here},
        {"network", is_given(scale, "host-bandwidth") && is_given(scale, "host-latency"),
         "--host-bandwidth and --host-latency give all that it would"},
        {"machine", scale->mode == SCALE_FITS && is_given(scale, "memory"),
         "--memory gives all that it would"},
    };
    for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
        if (rules[r].idle && is_given(scale, rules[r].flag))
            stage_end(&scale->stage, 2, "--%s has no effect: %s", rules[r].flag, rules[r].why);
}

/* Checks flags that only make sense together, and finds which question is asked. */
static void check_together(struct scale *scale)
{
    const struct stage *stage = &scale->stage;
    const struct ra_config *c = &scale->config;
    if (scale->by_hop + scale->simulate + scale->decode + scale->fits + scale->measure > 1)
        stage_end(stage, 2, "give one of --per-hop, --simulate, --decode, --fits and --measure");
    scale->mode = scale->by_hop              ? SCALE_HOPS
                  : scale->simulate          ? SCALE_SIMULATE
                  : scale->decode            ? SCALE_DECODE
                  : scale->fits              ? SCALE_FITS
                  : scale->measure           ? SCALE_MEASURE
                  : is_given(scale, "depth") ? SCALE_STEP
                                             : SCALE_RANKS;
    check_modes(scale);
    if (scale->method == SCALE_ALL_METHODS && scale->mode != SCALE_RANKS)
        stage_end(stage, 2, "--method all: give one method with --depth or --per-hop");
    if (c->queries == 0 && !scale->fits && !scale->measure)
        stage_end(stage, 2, "--tokens is missing: give how long the sequence is; see --help");
    stage_check_config(stage, c);
}

/* Reads the mask of --documents or --slices, as the stages do. */
static void read_mask(struct scale *scale)
{
    struct stage *stage = &scale->stage;
    if (!stage->documents && !scale->slices)
        return;
    if (stage->documents && scale->slices)
        stage_end(stage, 2, "give one of --documents and --slices");
    stage->config = scale->config;
    stage->N = stage->M = scale->config.queries;
    if (scale->slices)
        stage_open_slices(stage, scale->slices);
    scale->list.slices = stage_slices(stage, &scale->list.count);
    scale->config.max_slices = scale->list.count;
    scale->mask = &scale->list;
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

/* What holds where no flag says otherwise. */
static void set_defaults(struct scale *scale)
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
}

/* Fills in what no flag has given: rates and tiles from the presets; then, as there a machine may
 * have no tiles, those of one row, which cost no pair more than is visible. And what follows from
 * several flags together. */
static void fill_in(struct scale *scale)
{
    const struct scale_preset *preset = &scale_machine_presets[scale->machine_preset];
    static const struct scale_preset plain = {.machine = {.tile_queries = 1, .tile_keys = 1}};
    scale_take(&scale->machine, preset);
    scale_take(&scale->machine, &scale_network_presets[scale->network_preset]);
    scale_take(&scale->machine, &plain);
    if (scale->machine.slow_rank >= 0)
        scale->machine.slow_rank_factor = scale->factor;
    if (scale->machine.slow_link >= 0)
        scale->machine.slow_link_factor = scale->factor;
    if (scale->dense_rate == 0 && scale->config.type != RA_FLOAT32)
        scale->dense_rate = preset->dense_rate;
    if (scale->model.dim == 0)
        scale->model.dim = scale->config.heads * scale->config.dim;
    scale->model.hidden = llround(scale->feed_multiple * (double)scale->model.dim);
}

void scale_options(struct scale *scale, int argc, char **argv)
{
    set_defaults(scale);
    into = scale;
    stage_read_flags(&scale->stage, argc, argv, flags, FLAGS, take, print_help);
    if (optind < argc)
        stage_end(&scale->stage, 2, "%s: give only flags; see --help", argv[optind]);

    /* The method of plans that are made to count from. A double ring has the hops of a ring; a
     * comparison of all methods makes plans of its own. */
    static const enum ra_method planned[] = {[RA_SCALE_RING] = RA_RING,
                                             [RA_SCALE_DOUBLE_RING] = RA_RING,
                                             [RA_SCALE_GATHERED_KEYS] = RA_GATHERED_KEYS,
                                             [RA_SCALE_EXCHANGED_HEADS] = RA_EXCHANGED_HEADS,
                                             [RA_SCALE_HYBRID] = RA_HYBRID,
                                             [SCALE_ALL_METHODS] = RA_RING};
    scale->config.method = planned[scale->method];
    check_together(scale);
    read_counts(scale);
    read_mask(scale);
    fill_in(scale);
    check_idle(scale);
    stage_check_all(&scale->stage);
}

const char *scale_method(int method)
{
    return methods[method].word;
}

struct ra_scale_machine scale_on(struct scale *scale, int ranks, double told[2])
{
    const struct scale_preset *preset = &scale_machine_presets[scale->machine_preset];
    struct ra_scale_machine machine = scale->machine;
    scale->config.ring_size = ranks;
    if (!scale_take_rates(&machine, told, preset, &scale->config) && preset->rates &&
        (machine.forward_rate == 0 || machine.backward_rate == 0))
        stage_end(
            &scale->stage, 2,
            "--dim-head %lld: no rate of %s was measured on the %s with heads of that size; give "
            "--forward-rate and --backward-rate",
            (long long)scale->config.dim, ra_option_types[scale->config.type].word,
            scale_machines[scale->machine_preset].word);
    return machine;
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
