/* stage_options: the command line of the programs, from the table of ra_options.h. */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_version.h"
#include "stage.h"
#include "stage_options.h"

/* Does this program have the flag? A stage has those that chapters up to its own have taught;
 * 01-naive, which judges the stages, also those of visibility. */
static bool has_flag(const struct stage *stage, const struct ra_option *option)
{
    if (!option->flag)
        return false;
    if (stage->number == STAGE_KERNEL)
        return option->programs & RA_KERNELS;
    return (option->programs & RA_STAGES && option->chapter <= stage->number) ||
           (option->programs & RA_JUDGE && stage->number == 1);
}

void stage_print_flag(const struct ra_option *option)
{
    char choices[RA_OPTION_TEXT];
    printf("  --%-16s %-5s %s", option->flag, option->value ? option->value : "", option->help);
    if (option->choices)
        printf(": %s", ra_option_advice(option, 0, false, choices));
    putchar('\n');
}

static void print_help(const struct stage *stage)
{
    bool knows = stage_knows_slices(stage);
    printf("Usage: %s%s [FLAGS] PROBLEM RESULT\n\n%s\n\n",
           stage->number > 2 ? "mpirun -n RANKS " : "", stage->program, stage->about);
    printf(
        "PROBLEM is a folder of arrays saved by NumPy, float32 or float16:\n"
        "  q.npy, do.npy (B, N, H, D); k.npy, v.npy (B, M, G, D); maybe mask.npy (B, M) of bool\n"
        "%s"
        "RESULT is a folder, created if missing, that gets\n"
        "  o.npy, dq.npy (B, N, H, D); lse.npy (B, H, N); dk.npy, dv.npy (B, M, G, D)\n"
        "%s\n"
        "Counts go to stdout, errors to stderr. Exit code: 0 written, 1 failed, 2 misuse.\n\n"
        "Make a problem with build/problem, grade a result with build/compare. For example, on a\n"
        "problem that `ninja` has made:\n\n"
        "  %sbuild/%s%s%s \\\n      build/lesson/problem build/own-result\n\n"
        "Flags:\n",
        knows ? "  maybe slices.npy (slices, 6) of int64: q0, q1, k0, k1, lo, hi\n"
                "  maybe sink.npy, slopes.npy (H), d_lse.npy (B, H, N)\n"
              : "",
        knows ? "  with a sink d_sink.npy, with --largest largest.npy (H)\n" : "",
        stage->number > 2 ? "mpirun --oversubscribe -n 4 " : "", stage->program,
        stage->number >= 4 ? " --causal" : "", stage->number >= 5 ? " --layout striped" : "");
    for (int o = 0; o < RA_OPTIONS; o++)
        if (has_flag(stage, &ra_options[o]))
            stage_print_flag(&ra_options[o]);
}

static void print_version(const struct stage *stage)
{
    printf("%s (ringattn) " RA_VERSION "\n", stage->program);
}

/* Prints what was asked for, on one rank, and ends the program. */
static _Noreturn void answer(const struct stage *stage, void (*print)(const struct stage *))
{
    if (stage->world.rank == 0)
        print(stage);
    stage_flush(stage);
    stage_check_all(stage);
    stage->world.leave(stage->config.timeout);
    exit(0);
}

int64_t stage_parse(const struct stage *stage, const struct ra_option *option, const char *text)
{
    char *end = NULL, advice[RA_OPTION_TEXT];
    const char *also = "";
    int64_t value = INT64_MIN;
    bool good = true;
    switch (option->kind) {
    case RA_OPTION_FLAG:
        return true;
    case RA_OPTION_PATH:
        return 0;
    case RA_OPTION_CHOICE:
        for (value = 0; option->choices[value].word; value++)
            if (strcmp(text, option->choices[value].word) == 0)
                return value;
        break;
    case RA_OPTION_REAL:
        value = ra_option_bits(strtod(text, &end));
        good = end != text && !*end && isfinite(ra_option_real(value));

        /* 01-naive computes in double: only the sign of such a number can be wrong. */
        if (good && stage->number == 1 && (option->least < 0 || ra_option_real(value) > 0))
            return value;
        break;
    default:
        /* Beyond what 64 bits hold this is the number at that end, and counts as that. */
        value = strtoll(text, &end, 10);
        good = end != text && !*end;
        value = good ? value : INT64_MIN;
        also = "a whole number, ";

        /* More rows than any array has are as good as the most; more layers than a model has are
         * not. */
        if (option->kind == RA_OPTION_WHOLE && option->most >= 0x1p50 &&
            (double)value > option->most)
            value = (int64_t)option->most;
    }
    if (!good || !ra_option_in_range(option, value))
        stage_end(stage, 2, "--%s %s: give %s%s%s", option->flag, text, also,
                  ra_option_advice(option, value, false, advice),
                  strcmp(text, "none") == 0 ? "; for none, leave the flag out" : "");
    return value;
}

/* Ends the program unless it has this flag. */
static void check_flag(const struct stage *stage, const struct ra_option *option)
{
    if (has_flag(stage, option))
        return;
    if (stage->number == STAGE_KERNEL)
        stage_end(stage, 2, "--%s is a flag of stages, not of a kernel; see --help", option->flag);
    if (!(option->programs & RA_STAGES))
        stage_end(stage, 2, "--%s is a flag of the kernels' programs", option->flag);
    stage_end(stage, 2, "--%s arrives in stage %02d", option->flag, option->chapter);
}

/* What the command line says once, for one flag. */
static void take(struct stage *stage, const struct ra_option *option, const char *text)
{
    check_flag(stage, option);
    int64_t value = stage_parse(stage, option, text);
    if (option->field)
        ra_option_store(option, &stage->config, value);
    else if (strcmp(option->flag, "time") == 0)
        stage->time = true;
    else if (strcmp(option->flag, "trace") == 0)
        stage->trace_path = text;
    else if (strcmp(option->flag, "per-hop") == 0)
        stage->per_hop = true;
    else if (strcmp(option->flag, "pieces") == 0)
        stage->pieces = value;
    else if (strcmp(option->flag, "documents") == 0)
        stage->documents = text;
    else if (strcmp(option->flag, "key-documents") == 0)
        stage->key_documents = text;
    else if (strcmp(option->flag, "window") == 0)
        stage->window = text;
    else if (strcmp(option->flag, "prefix") == 0)
        stage->prefix = value;
    else if (strcmp(option->flag, "first") == 0)
        stage->first = value;
    else if (strcmp(option->flag, "chunk") == 0)
        stage->chunk = value;
    else if (strcmp(option->flag, "answers") == 0)
        stage->answers = true;
    else if (strcmp(option->flag, "largest") == 0)
        stage->largest = true;
    else if (strcmp(option->flag, "deal") == 0)
        stage->deal = value;
}

void stage_check_needs(const struct stage *stage, const struct ra_option *table, int count,
                       const void *fields, const void *defaults)
{
    char needs[RA_OPTION_TEXT];
    const struct ra_option *option = ra_option_unmet(table, count, fields, defaults, false, needs);
    if (option)
        stage_end(stage, 2, "--%s needs %s: %s", option->flag, needs, option->because);
}

void stage_check_config(const struct stage *stage, const struct ra_config *config)
{
    static const struct ra_config defaults = RA_CONFIG_INIT;
    stage_check_needs(stage, ra_options, RA_OPTIONS, config, &defaults);
}

/* Ends the program if a flag that makes a mask is given and does not fit to the others. */
static void check_mask(const struct stage *stage)
{
    bool causal = stage->config.causal, windowed = stage->config.lookback != RA_NO_LOOKBACK;
    bool documents = stage->documents != NULL;
    const struct {
        const char *flag;
        bool given, fits;
        const char *advice;
    } makers[] = {
        {"key-documents", stage->key_documents != NULL, documents && !causal,
         "needs --documents, and no --causal: each of these sees all of its keys"},
        {"window", stage->window != NULL, !causal,
         "takes no --causal; --causal --lookback L is a window back"},
        {"prefix", stage->prefix > 0, causal && !windowed, "needs --causal, and no --lookback"},
        {"first", stage->first > 0, windowed, "needs --causal --lookback L, the window beside it"},
        {"chunk", stage->chunk > 0, causal && !windowed && !documents,
         "needs --causal, and neither --lookback nor --documents"},
        {"answers", stage->answers, causal && !windowed && documents,
         "needs --causal --documents ENDS, and no --lookback"},
    };
    const char *before = NULL;
    for (size_t m = 0; m < sizeof makers / sizeof *makers; m++) {
        if (!makers[m].given)
            continue;
        if (!makers[m].fits)
            stage_end(stage, 2, "--%s: %s", makers[m].flag, makers[m].advice);
        if (before)
            stage_end(stage, 2, "--%s and --%s: give one of them, or any mask as slices.npy",
                      before, makers[m].flag);
        before = makers[m].flag;
    }
}

/* What no flag says alone. */
static void check_together(const struct stage *stage)
{
    const struct ra_config *c = &stage->config;
    if (c->ring_size > 0 && stage->world.ranks % c->ring_size != 0)
        stage_end(stage, 2, "--ring-size %d: does not divide the %d ranks", c->ring_size,
                  stage->world.ranks);
    stage_check_config(stage, c);
    check_mask(stage);
}

/* Ends the program, which has no such flag; one that had another name once has it in the text. */
static _Noreturn void unknown(const struct stage *stage, const char *word)
{
    static const char *const names[][2] = {
        {"--by-hop", "--per-hop"}, {"--dtype", "--type"}, {"--length", "--tokens"}};
    size_t length = strcspn(word, "=");
    for (size_t n = 0; n < sizeof names / sizeof *names; n++)
        if (strlen(names[n][0]) == length && strncmp(word, names[n][0], length) == 0)
            stage_end(stage, 2, "%s: this flag is called %s; see --help", names[n][0], names[n][1]);
    stage_end(stage, 2, "%s is not a flag of any stage; see --help", word);
}

void stage_read_flags(struct stage *stage, int argc, char **argv, const struct ra_option *options,
                      int count, stage_flag *each, void (*help)(const struct stage *))
{
    /* getopt_long returns FIRST + the row of the table: other numbers are those of letters, ':' and
     * '?' among them, and it keeps 0 for a name that it does not know. */
    enum { FIRST = 256 };
    struct option flags[STAGE_FLAGS + 1] = {{0}};
    for (int o = 0, used = 0; o < count; o++)
        if (options[o].flag)
            flags[used++] =
                (struct option){options[o].flag, options[o].value ? required_argument : no_argument,
                                NULL, o + FIRST};

    /* getopt's own messages start with argv[0]; ours start with the stage's name. */
    opterr = 0;
    for (int found; (found = getopt_long(argc, argv, ":h", flags, NULL)) != -1;) {
        /* optopt tells a flag of ours that is used wrongly from a letter, and 0 from a name. The
         * flag has just been passed, wherever it stood among the folders. */
        if (found == ':')
            stage_end(stage, 2, "--%s needs a value; see --help", options[optopt - FIRST].flag);
        if (found == '?' && optopt >= FIRST)
            stage_end(stage, 2, "--%s takes no value; see --help", options[optopt - FIRST].flag);
        if (found == '?' && optopt)
            stage_end(stage, 2, "-%c is not a flag of any stage; see --help", optopt);
        if (found == '?')
            unknown(stage, argv[optind - 1]);
        const char *flag = found == 'h' ? "help" : options[found - FIRST].flag;
        if (strcmp(flag, "help") == 0)
            answer(stage, help);
        if (strcmp(flag, "version") == 0)
            answer(stage, print_version);
        each(stage, &options[found - FIRST], optarg);
    }
}

const char *stage_read_options(struct stage *stage, int argc, char **argv)
{
    stage_read_flags(stage, argc, argv, ra_options, RA_OPTIONS, take, print_help);
    if (argc - optind != 2)
        stage_end(stage, 2, "give two folders, PROBLEM and RESULT (got %d); see --help",
                  argc - optind);
    check_together(stage);
    stage->result_folder = argv[optind + 1];
    return argv[optind];
}
