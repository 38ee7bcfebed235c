/* stage: what every stage program does besides attention. See stage.h. */
#include "stage.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The flags of the whole ladder. A stage knows those of its own number and below; 01-naive knows
 * the ones that say who sees whom, too, because it judges the stages that learn them. So do the
 * kernels, which have no ring and no layout, and a few of their own. */
enum flag {
    FLAG_HELP,
    FLAG_FORWARD_ONLY,
    FLAG_SCALE,
    FLAG_TIME,
    FLAG_TILE_QUERIES,
    FLAG_TILE_KEYS,
    FLAG_RING_SIZE,
    FLAG_LOCAL_KEYS,
    FLAG_TIMEOUT,
    FLAG_TRACE,
    FLAG_PER_HOP,
    FLAG_CAUSAL,
    FLAG_LAYOUT,
    FLAG_BUCKET,
    FLAG_LOOKBACK,
    FLAG_HEAD_MAP,
    FLAG_SOFTCAP,
    FLAG_TRANSPORT,
    FLAG_TYPE, /* this and the next are for the kernels, too */
    FLAG_DETERMINISTIC,
    FLAG_PIECES,
    FLAGS
};

enum { KERNELS_ONLY = 100 }; /* arrives in no stage */

static const struct {
    const char *name, *value;
    int arrives;
    bool visibility; /* 01-naive knows it, and the kernels */
    const char *help;
} flags[FLAGS] = {
    [FLAG_HELP] = {"help", NULL, 1, true, "show this text"},
    [FLAG_FORWARD_ONLY] = {"forward-only", NULL, 1, true, "o and lse only; do.npy is not needed"},
    [FLAG_SCALE] = {"scale", "S", 1, true, "factor of every score (default 1/sqrt(D))"},
    [FLAG_TIME] = {"time", NULL, 1, true, "print seconds on stderr"},
    [FLAG_TILE_QUERIES] = {"tile-queries", "ROWS", 2, false, "query rows of a tile (default 64)"},
    [FLAG_TILE_KEYS] = {"tile-keys", "ROWS", 2, false, "key rows of a tile (default 64)"},
    [FLAG_RING_SIZE] = {"ring-size", "P", 3, false, "ranks of one ring (default: all)"},
    [FLAG_LOCAL_KEYS] = {"local-keys", NULL, 3, false, "no ring: each rank sees its own keys only"},
    [FLAG_TIMEOUT] = {"timeout", "S", 3, false,
                      "seconds until a silent rank is an error (default 60; 0: never)"},
    [FLAG_TRACE] = {"trace", "FILE", 3, false, "write a timeline as Chrome trace JSON"},
    [FLAG_PER_HOP] = {"per-hop", NULL, 3, false, "print the counts of every rank and hop, too"},
    [FLAG_CAUSAL] = {"causal", NULL, 4, true, "nobody sees the future"},
    [FLAG_LAYOUT] = {"layout", "NAME", 5, false, "contiguous, striped or zigzag"},
    [FLAG_BUCKET] =
        {"bucket", "ROWS", 5, false,
         "with --layout striped: rows of a stripe at most (default: one stripe a rank)"},
    [FLAG_LOOKBACK] = {"lookback", "L", 6, true, "with --causal: at most L tokens back"},
    [FLAG_HEAD_MAP] = {"head-map", "MAP", 7, true, "grouped (default) or interleaved"},
    [FLAG_SOFTCAP] = {"softcap", "C", 8, true, "scores become C * tanh(score / C)"},
    [FLAG_TRANSPORT] = {"transport", "NAME", 11, false,
                        "any (default), peer-copies, device-link or host-link"},
    [FLAG_TYPE] = {"type", "TYPE", 11, false, "of numbers on the GPU: float32, float16, bfloat16"},
    [FLAG_DETERMINISTIC] = {"deterministic", NULL, 11, false, "the same bits, run after run"},
    [FLAG_PIECES] = {"pieces", "P", KERNELS_ONLY, false,
                     "fold the keys in P pieces, one launch each (default 1)"},
};

static const char *const input_names[STAGE_INPUTS] = {"q", "k", "v", "do", "mask"};
static const char *const result_names[STAGE_RESULTS] = {"o", "lse", "dq", "dk", "dv"};
static const char *const lap_names[STAGE_LAPS] = {"read", "forward", "backward", "wait", "write"};
static const char *const lane_names[STAGE_LANES] = {"work", "keys", "gradients"};
static const char *const layout_names[] = {"contiguous", "striped", "zigzag", NULL};
/* In the order of enum ra_transport. */
static const char *const transport_names[] = {"any", "peer-copies", "device-link", "host-link",
                                              NULL};
static const char *const type_names[] = {"float32", "float16", "bfloat16", NULL}; /* enum ra_type */

/* Files and the folder that must go if the program ends before stage_close. Every rank knows them:
 * the first one in trouble removes them before it ends the others, who are not given the time.
 * Static, because a signal handler has no other way to know them. */
static char unfinished[STAGE_RESULTS][PATH_MAX];
static char unfinished_folder[PATH_MAX];

/* Whether the results are getting their names: all of them or none, so it is too late to stop. */
static atomic_bool renaming;

/* When progress was last shown, and whether its line is still open on the terminal. */
static double last_progress;
static bool progress_shown;

static void remove_unfinished(void)
{
    for (int r = 0; r < STAGE_RESULTS; r++)
        if (unfinished[r][0])
            unlink(unfinished[r]);
    if (unfinished_folder[0])
        rmdir(unfinished_folder);
}

static void forget_unfinished(void)
{
    for (int r = 0; r < STAGE_RESULTS; r++)
        unfinished[r][0] = '\0';
    unfinished_folder[0] = '\0';
}

/* Runs on any thread: MPI has some of its own, so blocking a signal would not keep it away. */
static void on_signal(int signal_number)
{
    if (renaming)
        return;
    remove_unfinished();
    _exit(128 + signal_number);
}

/* A world of one. */
static bool gather_alone(int64_t mine, int64_t *all, double timeout)
{
    (void)timeout;
    all[0] = mine;
    return true;
}

static void leave_alone(void)
{
}

static const struct stage_world alone = {0, 1, 1, gather_alone, exit, leave_alone};

/* All ranks meet: each says one number and hears those of the others, in stage->heard. */
static void meet(const struct stage *stage, int64_t mine)
{
    if (stage->world.gather(mine, stage->heard, stage->config.timeout))
        return;
    fprintf(stderr,
            "%s: rank %d: waited %g s for all ranks to meet; has one died? If one is only slow, "
            "give a longer --timeout\n",
            stage->program, stage->world.rank, stage->config.timeout);
    remove_unfinished();
    stage->world.stop(1);
}

/* Ranks meet to say how they fare: the exit code, 0 for well. Returns whether all do. If not,
 * `first` is the first rank in trouble, which speaks for all; this program ends with its exit
 * code. */
static bool all_well(const struct stage *stage, int exit_code, int *first)
{
    meet(stage, exit_code);
    for (*first = 0; *first < stage->world.ranks; ++*first)
        if (stage->heard[*first] != 0)
            return false;
    return true;
}

/* Ends this rank if another one is in trouble. */
static void carry_on_if_all_well(const struct stage *stage)
{
    int first;
    if (all_well(stage, 0, &first))
        return;
    int exit_code = (int)stage->heard[first];
    stage->world.leave();
    exit(exit_code);
}

/* Prints "program: message" as one line on stderr and exits. What goes wrong before all is open
 * goes wrong on all ranks alike, most of the time: the first of them says it. */
__attribute__((noreturn, format(printf, 3, 4))) static void fail(const struct stage *stage,
                                                                 int exit_code, const char *format,
                                                                 ...)
{
    char message[3 * PATH_MAX];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);

    /* A path or a flag may hold line ends: the message must stay one line. */
    for (char *at = message; *at != '\0'; at++)
        if ((unsigned char)*at < ' ' || *at == '\x7f')
            *at = '?';
    char who[40] = "";
    if (stage->opened && stage->world.ranks > 1)
        snprintf(who, sizeof who, "rank %d: ", stage->world.rank);
    int first = stage->world.rank;
    if (stage->opened || (!all_well(stage, exit_code, &first) && first == stage->world.rank))
        fprintf(stderr, "%s%s: %s%s\n", progress_shown ? "\n" : "", stage->program, who, message);

    remove_unfinished();
    if (stage->opened)
        stage->world.stop(exit_code);
    stage->world.leave();
    exit(exit_code);
}

void stage_fail(struct stage *stage, const char *text)
{
    fail(stage, 1, "%s", text);
}

static bool knows(const struct stage *stage, enum flag flag)
{
    if (stage->number == STAGE_KERNEL)
        return flags[flag].visibility || flag >= FLAG_TYPE;
    return flags[flag].arrives <= stage->number || (stage->number == 1 && flags[flag].visibility);
}

static void print_help(const struct stage *stage, const char *about)
{
    printf("Usage: %s%s [FLAGS] PROBLEM RESULT\n\n%s\n\n",
           stage->number > 2 ? "mpirun -n RANKS " : "", stage->program, about);
    printf(
        "PROBLEM is a folder of arrays saved by NumPy, float32 or float16:\n"
        "  q.npy, do.npy (B, N, H, D); k.npy, v.npy (B, M, G, D); maybe mask.npy (B, M) of bool\n"
        "RESULT is a folder, created if missing, that gets\n"
        "  o.npy, dq.npy (B, N, H, D); lse.npy (B, H, N); dk.npy, dv.npy (B, M, G, D)\n"
        "Counts go to stdout, errors to stderr. Exit code: 0 written, 1 failed, 2 misuse.\n\n"
        "Flags:\n");
    for (int f = 0; f < FLAGS; f++)
        if (knows(stage, f))
            printf("  --%-13s %-5s %s\n", flags[f].name, flags[f].value ? flags[f].value : "",
                   flags[f].help);
    printf("\nMake a problem with build/problem, grade a result with build/compare.\n");
}

/* Sends what was printed on its way. stdout may be closed, or a full disk. */
static void flush_stdout(const struct stage *stage)
{
    if (fflush(stdout) != 0 || ferror(stdout))
        fail(stage, 1, "cannot write to stdout: %s", strerror(errno));
}

/* The value of a flag as a whole number of at least `least`. */
static int64_t whole_number(const struct stage *stage, enum flag flag, const char *text,
                            int64_t least)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < least)
        fail(stage, 2, "--%s %s: give a whole number, at least %" PRId64, flags[flag].name, text,
             least);
    return value;
}

static double real_number(const struct stage *stage, enum flag flag, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value))
        fail(stage, 2, "--%s %s: give a finite number", flags[flag].name, text);
    return value;
}

/* Reads argv into the stage. Sets scale to NaN where the default must wait for D. */
static void read_command_line(struct stage *stage, int argc, char **argv, const char *about,
                              const char **problem)
{
    struct option options[FLAGS + 1] = {{0}};
    int64_t ring_size;
    bool has_lookback = false;
    for (int f = 0; f < FLAGS; f++)
        options[f] = (struct option){
            flags[f].name, flags[f].value ? required_argument : no_argument, NULL,
            f + 1, /* not 0, which optopt keeps for a name that is not in the table */
        };

    /* getopt's own messages start with argv[0]; ours start with the stage's name. */
    opterr = 0;
    for (;;) {
        int found = getopt_long(argc, argv, ":", options, NULL);
        if (found == -1)
            break;

        /* optopt tells a flag of ours that is used wrongly from a letter, and 0 from a name. The
         * flag has just been passed, wherever it stood among the folders. */
        if (found == ':')
            fail(stage, 2, "--%s needs a value; see --help", flags[optopt - 1].name);
        if (found == '?' && optopt >= 1 && optopt <= FLAGS)
            fail(stage, 2, "--%s takes no value; see --help", flags[optopt - 1].name);
        if (found == '?' && optopt)
            fail(stage, 2, "-%c is not a flag of any stage; see --help", optopt);
        if (found == '?')
            fail(stage, 2, "%s is not a flag of any stage; see --help", argv[optind - 1]);

        enum flag flag = (enum flag)(found - 1);
        if (!knows(stage, flag) && stage->number == STAGE_KERNEL)
            fail(stage, 2, "--%s is a flag of stages, not of a kernel; see --help",
                 flags[flag].name);
        if (!knows(stage, flag) && flags[flag].arrives == KERNELS_ONLY)
            fail(stage, 2, "--%s is a flag of the kernels' programs", flags[flag].name);
        if (!knows(stage, flag))
            fail(stage, 2, "--%s arrives in stage %02d", flags[flag].name, flags[flag].arrives);
        switch (flag) {
        case FLAG_HELP:
            if (stage->world.rank == 0)
                print_help(stage, about);
            flush_stdout(stage);
            carry_on_if_all_well(stage);
            stage->world.leave();
            exit(0);
        case FLAG_FORWARD_ONLY:
            stage->config.forward_only = true;
            break;
        case FLAG_SCALE:
            stage->config.scale = real_number(stage, flag, optarg);
            if (stage->number != 1 && fabs(stage->config.scale) > FLT_MAX)
                fail(stage, 2, "--scale %s: more than a float32 can hold", optarg);
            break;
        case FLAG_TIME:
            stage->time = true;
            break;
        case FLAG_TILE_QUERIES:
            stage->config.tile_queries = whole_number(stage, flag, optarg, 1);
            break;
        case FLAG_TILE_KEYS:
            stage->config.tile_keys = whole_number(stage, flag, optarg, 1);
            break;
        case FLAG_RING_SIZE:
            /* Asked before it becomes an int, in which 2^32 + 1 would be 1. */
            ring_size = whole_number(stage, flag, optarg, 1);
            if (stage->world.ranks % ring_size != 0)
                fail(stage, 2, "--ring-size %s: does not divide the %d ranks", optarg,
                     stage->world.ranks);
            stage->config.ring_size = (int)ring_size;
            break;
        case FLAG_LOCAL_KEYS:
            stage->config.local_keys = true;
            break;
        case FLAG_TIMEOUT:
            stage->config.timeout = real_number(stage, flag, optarg);
            if (stage->config.timeout < 0)
                fail(stage, 2, "--timeout %s: give seconds, or 0 to wait for ever", optarg);
            break;
        case FLAG_TRACE:
            stage->trace_path = optarg;
            break;
        case FLAG_PER_HOP:
            stage->per_hop = true;
            break;
        case FLAG_CAUSAL:
            stage->config.causal = true;
            break;
        case FLAG_LAYOUT:
            stage->config.layout = RA_CONTIGUOUS;
            while (layout_names[stage->config.layout] && strcmp(optarg, layout_names[stage->config.layout]) != 0)
                stage->config.layout++;
            if (!layout_names[stage->config.layout])
                fail(stage, 2, "--layout %s: give contiguous, striped or zigzag", optarg);
            break;
        case FLAG_BUCKET:
            stage->config.bucket = whole_number(stage, flag, optarg, 1);
            break;
        case FLAG_LOOKBACK:
            stage->config.lookback = whole_number(stage, flag, optarg, 0);
            has_lookback = true;
            break;
        case FLAG_HEAD_MAP:
            stage->config.head_map = strcmp(optarg, "interleaved") == 0 ? RA_INTERLEAVED : RA_GROUPED;
            if (stage->config.head_map == RA_GROUPED && strcmp(optarg, "grouped") != 0)
                fail(stage, 2, "--head-map %s: give grouped or interleaved", optarg);
            break;
        case FLAG_SOFTCAP:
            stage->config.softcap = real_number(stage, flag, optarg);
            if (!(stage->config.softcap > 0))
                fail(stage, 2, "--softcap %s: give a number above 0", optarg);
            if (stage->number != 1 && (stage->config.softcap < FLT_MIN || stage->config.softcap > FLT_MAX))
                fail(stage, 2, "--softcap %s: more or less than a float32 can hold", optarg);
            break;
        case FLAG_TRANSPORT:
            stage->config.transport = RA_ANY_TRANSPORT;
            while (transport_names[stage->config.transport] &&
                   strcmp(optarg, transport_names[stage->config.transport]) != 0)
                stage->config.transport++;
            if (!transport_names[stage->config.transport])
                fail(stage, 2, "--transport %s: give any, peer-copies, device-link or host-link",
                     optarg);
            break;
        case FLAG_TYPE:
            stage->config.type = RA_FLOAT32;
            while (type_names[stage->config.type] && strcmp(optarg, type_names[stage->config.type]) != 0)
                stage->config.type++;
            if (!type_names[stage->config.type])
                fail(stage, 2, "--type %s: give float32, float16 or bfloat16", optarg);
            break;
        case FLAG_DETERMINISTIC:
            stage->config.deterministic = true;
            break;
        case FLAG_PIECES:
            stage->pieces = whole_number(stage, flag, optarg, 1);
            break;
        default:
            /* Known to no stage yet, so knows() has already refused it. */
            abort();
        }
    }

    if (argc - optind != 2)
        fail(stage, 2, "give two folders, PROBLEM and RESULT (got %d); see --help", argc - optind);
    *problem = argv[optind];
    stage->result_folder = argv[optind + 1];
    if (has_lookback && !stage->config.causal)
        fail(stage, 2, "--lookback needs --causal: it counts tokens back from each query");
    if (stage->config.bucket > 0 && stage->config.layout != RA_STRIPED)
        fail(stage, 2, "--bucket needs --layout striped: it is the length of a stripe");
}

/* The shape of an open file as "(1, 64, 4, 16)". */
static const char *shape_text(const struct npy *file, char text[200])
{
    int used = snprintf(text, 200, "(");
    for (int d = 0; d < file->dims; d++)
        used += snprintf(text + used, (size_t)(200 - used), d ? ", %" PRId64 : "%" PRId64,
                         file->shape[d]);
    snprintf(text + used, (size_t)(200 - used), ")");
    return text;
}

/* Opens PROBLEM/NAME.npy and checks its type and its number of axes. */
static void open_input(struct stage *stage, const char *folder, enum stage_input input)
{
    struct npy *file = &stage->inputs[input];
    char path[PATH_MAX], shape[200];
    if (snprintf(path, sizeof path, "%s/%s.npy", folder, input_names[input]) >= (int)sizeof path)
        fail(stage, 1, "%.60s...: the path is too long", folder);

    bool missing = access(path, F_OK) != 0 && errno == ENOENT;
    if (!npy_open(file, path))
        fail(stage, 1, "%s%s", file->error,
             missing && input == STAGE_D_OUT ? " (without do, run with --forward-only)"
             : missing             ? " (build/problem makes problems; --help says what one holds)"
             : input == STAGE_MASK ? " (and a mask as array.astype('bool'))"
                                   : "");

    bool is_mask = input == STAGE_MASK, is_bool = file->type == NPY_BOOL;
    if (is_mask != is_bool || file->type == NPY_FLOAT64)
        fail(stage, 1, "%s: %s; %s", path, npy_type_name(file->type),
             is_mask ? "a mask is bool: save array.astype('bool')"
                     : "a stage reads float32 or float16: save array.astype('float32')");

    /* Bytes of several such arrays are added up later: their sum must not overflow. */
    if (npy_elements(file) > INT64_C(1) << 56)
        fail(stage, 1, "%s: shape %s; more than 2^56 numbers are refused", path,
             shape_text(file, shape));
    if (file->dims != (is_mask ? 2 : 4))
        fail(stage, 1, "%s: shape %s; %s", path, shape_text(file, shape),
             is_mask ? "a mask has two axes, (B, M)"
                     : "four axes are needed, (batch, position, head, dim)");
}

/* Fails unless the axis of the file has this length, which `where` explains. */
static void check_axis(const struct stage *stage, enum stage_input input, int axis, int64_t length,
                       const char *where)
{
    const struct npy *file = &stage->inputs[input];
    char shape[200];
    if (file->shape[axis] != length)
        fail(stage, 1, "%s: shape %s: axis %d must be %" PRId64 ", %s", file->path,
             shape_text(file, shape), axis, length, where);
}

static void open_problem(struct stage *stage, const char *folder)
{
    char path[PATH_MAX], shape[200];
    struct stat status;
    if (stat(folder, &status) != 0)
        fail(stage, 1, "%s: %s (build/problem makes problems)", folder, strerror(errno));
    if (!S_ISDIR(status.st_mode))
        fail(stage, 1, "%s: not a folder; PROBLEM is the folder that holds q.npy, k.npy, v.npy",
             folder);
    for (int input = STAGE_Q; input <= STAGE_V; input++)
        open_input(stage, folder, input);
    if (!stage->config.forward_only)
        open_input(stage, folder, STAGE_D_OUT);

    /* A mask is there or not; a link that leads nowhere is there, and will be refused. A path too
     * long has been refused above. */
    snprintf(path, sizeof path, "%s/mask.npy", folder);
    stage->has_mask = lstat(path, &status) == 0;
    if (stage->has_mask)
        open_input(stage, folder, STAGE_MASK);

    /* The letters: q gives B, N, H, D; k gives M and G. */
    const struct npy *q = &stage->inputs[STAGE_Q], *k = &stage->inputs[STAGE_K];
    stage->B = q->shape[0];
    stage->N = q->shape[1];
    stage->H = q->shape[2];
    stage->D = q->shape[3];
    stage->M = k->shape[1];
    stage->G = k->shape[2];
    for (int axis = 0; axis < 4; axis++) {
        const struct npy *empty = q->shape[axis] == 0 ? q : k->shape[axis] == 0 ? k : NULL;
        if (empty)
            fail(stage, 1, "%s: shape %s: %s = 0; every axis needs at least 1", empty->path,
                 shape_text(empty, shape),
                 (const char *[]){"B", empty == q ? "N" : "M", empty == q ? "H" : "G", "D"}[axis]);
    }

    /* The other files must agree. */
    check_axis(stage, STAGE_K, 0, stage->B, "the B of q");
    check_axis(stage, STAGE_K, 3, stage->D, "the D of q");
    for (int axis = 0; axis < 4; axis++) {
        check_axis(stage, STAGE_V, axis, k->shape[axis], "as in k");
        if (!stage->config.forward_only)
            check_axis(stage, STAGE_D_OUT, axis, q->shape[axis], "as in q");
    }
    if (stage->has_mask) {
        check_axis(stage, STAGE_MASK, 0, stage->B, "the B of q");
        check_axis(stage, STAGE_MASK, 1, stage->M, "the M of k");
    }
    if (stage->H % stage->G != 0)
        fail(stage, 1,
             "%s: G = %" PRId64 " key/value heads do not divide the H = %" PRId64
             " query heads of q",
             k->path, stage->G, stage->H);
    if (stage->G != stage->H && stage->number > 1 && stage->number < 7)
        fail(stage, 2,
             "G = %" PRId64 " key/value heads for H = %" PRId64
             " query heads: grouped heads arrive in stage 07",
             stage->G, stage->H);
}

/* The final path of a result, or of the hidden file that becomes it. */
static void result_path(const struct stage *stage, enum stage_result result, bool hidden,
                        char path[PATH_MAX])
{
    int length =
        hidden ? snprintf(path, PATH_MAX, "%s/.%s.npy.%ld", stage->result_folder,
                          result_names[result], (long)stage->result_suffix)
               : snprintf(path, PATH_MAX, "%s/%s.npy", stage->result_folder, result_names[result]);
    if (length >= PATH_MAX)
        fail(stage, 1, "%.60s...: the path is too long", stage->result_folder);
}

/* Reserves the results as hidden files, so that a full disk or a folder that cannot be written is
 * found before the work and not after it. `batches` is how many the problem has. */
static void create_results(struct stage *stage, int64_t batches)
{
    struct stat status;
    if (mkdir(stage->result_folder, 0777) == 0)
        snprintf(unfinished_folder, sizeof unfinished_folder, "%s", stage->result_folder);
    else if (errno != EEXIST)
        fail(stage, 1, "%s: cannot create the result folder: %s", stage->result_folder,
             strerror(errno));
    else if (stat(stage->result_folder, &status) != 0 || !S_ISDIR(status.st_mode))
        fail(stage, 1, "%s: not a folder; RESULT is the folder that gets the results",
             stage->result_folder);

    /* A folder in the place of a result would stop stage_close after it has replaced others. */
    for (int r = 0; r < STAGE_RESULTS; r++) {
        char path[PATH_MAX];
        result_path(stage, r, false, path);
        if (lstat(path, &status) == 0 && S_ISDIR(status.st_mode))
            fail(stage, 1, "%s: is a folder; the result needs this name", path);
    }

    for (int r = 0; r < (stage->config.forward_only ? STAGE_DQ : STAGE_RESULTS); r++) {
        bool of_keys = r == STAGE_DK || r == STAGE_DV;
        int64_t rows[] = {batches, stage->N, stage->H, stage->D};
        int64_t keys[] = {batches, stage->M, stage->G, stage->D};
        int64_t lse[] = {batches, stage->H, stage->N};
        char path[PATH_MAX];
        result_path(stage, r, true, path);
        memcpy(unfinished[r], path, sizeof path);
        if (!npy_create(&stage->results[r], path, stage->result_type, r == STAGE_LSE ? 3 : 4,
                        r == STAGE_LSE ? lse
                        : of_keys      ? keys
                                       : rows))
            fail(stage, 1, "%s", stage->results[r].error);
    }
}

/* Creates the trace or empties it, for the same reason. */
static void create_trace(const struct stage *stage)
{
    if (!stage->trace_path)
        return;
    /* O_NONBLOCK, as opening a pipe would wait for its reader. */
    int file = open(stage->trace_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK, 0666);
    if (file < 0 || pwrite(file, "[\n", 2, 0) != 2 || close(file) != 0)
        fail(stage, 1, "--trace %s: %s", stage->trace_path, strerror(errno));
}

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Fails unless all ranks were given the same: the flags, and the shapes that they found, which are
 * 0 before they have looked. */
static void check_agreement(struct stage *stage, int argc, char **argv)
{
    /* Each rank says a hash (FNV-1a) of what it knows. argv[0] may differ, the folders may not. */
    uint64_t hash = 14695981039346656037u;
    for (int a = 1; a < argc; a++)
        for (const char *c = argv[a]; c == argv[a] || c[-1] != '\0'; c++)
            hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    const int64_t shape[] = {stage->B, stage->N, stage->M,       stage->H,
                             stage->G, stage->D, stage->has_mask};
    for (int d = 0; d < 7; d++)
        hash = (hash ^ (uint64_t)shape[d]) * 1099511628211u;

    meet(stage, (int64_t)hash);
    for (int r = 1; r < stage->world.ranks; r++)
        if (stage->heard[r] != stage->heard[0])
            fail(stage, 2, "rank %d disagrees with rank 0 about the flags or the problem", r);
}

/* Opens the hidden files: rank 0 creates them and the trace, then the others join. */
static void open_results(struct stage *stage, int64_t batches)
{
    meet(stage, getpid());
    stage->result_suffix = stage->heard[0];
    if (stage->world.rank == 0) {
        create_results(stage, batches);
        create_trace(stage);
    }
    carry_on_if_all_well(stage);

    /* The folder is new if rank 0 has made it. */
    meet(stage, unfinished_folder[0] != '\0');
    if (stage->heard[0])
        snprintf(unfinished_folder, sizeof unfinished_folder, "%s", stage->result_folder);
    int count = stage->config.forward_only ? STAGE_DQ : STAGE_RESULTS;
    for (int r = 0; r < count && stage->world.rank > 0; r++) {
        char path[PATH_MAX];
        result_path(stage, r, true, path);
        memcpy(unfinished[r], path, sizeof path);
        if (!npy_edit(&stage->results[r], path))
            fail(stage, 1, "%s (do all ranks see the same files?)", stage->results[r].error);
    }
    carry_on_if_all_well(stage);
}

void stage_open(struct stage *stage, int argc, char **argv, int number, const char *program,
                const char *about, enum npy_type result_type)
{
    stage_open_in(stage, &alone, argc, argv, number, program, about, result_type);
}

void stage_open_in(struct stage *stage, const struct stage_world *world, int argc, char **argv,
                   int number, const char *program, const char *about, enum npy_type result_type)
{
    *stage = (struct stage){.program = program,
                            .number = number,
                            .world = *world,
                            .config = RA_CONFIG_INIT,
                            .pieces = 1,
                            .result_type = result_type};
    stage->config.scale = NAN;
    stage->config.tile_queries = stage->config.tile_keys = 64;
    stage->config.ring_size = world->ranks;
    stage->config.timeout = 60;
    stage->config.type = RA_BOOL;
    for (int f = 0; f < STAGE_INPUTS; f++)
        stage->inputs[f].fd = -1;
    for (int r = 0; r < STAGE_RESULTS; r++)
        stage->results[r].fd = -1;
    stage->heard = calloc((size_t)world->ranks, sizeof *stage->heard);
    if (!stage->heard) {
        fprintf(stderr, "%s: out of memory\n", program);
        world->stop(1);
    }

    /* First the flags: a rank that only shows its help would not come to any later meeting. */
    const char *problem;
    check_agreement(stage, argc, argv);
    read_command_line(stage, argc, argv, about, &problem);
    open_problem(stage, problem);
    carry_on_if_all_well(stage);
    check_agreement(stage, argc, argv);
    if (isnan(stage->config.scale))
        stage->config.scale = 1 / sqrt((double)stage->D);

    /* A tile is no larger than what there is, and no larger than 2^30 rows: no machine holds its
     * scores, and the count of their bytes must not overflow. */
    const int64_t most = 1 << 30;
    if (stage->config.tile_queries > (stage->N < most ? stage->N : most))
        stage->config.tile_queries = stage->N < most ? stage->N : most;
    if (stage->config.tile_keys > (stage->M < most ? stage->M : most))
        stage->config.tile_keys = stage->M < most ? stage->M : most;

    /* From here on there is something to clean up. */
    static bool registered;
    if (!registered)
        atexit(remove_unfinished);
    registered = true;
    const int deadly[] = {SIGINT, SIGTERM, SIGHUP};
    for (int s = 0; s < 3; s++) {
        /* What nohup or a shell's & made us ignore must stay ignored. */
        struct sigaction before;
        sigaction(deadly[s], NULL, &before);
        if (before.sa_handler != SIG_IGN)
            sigaction(deadly[s], &(struct sigaction){.sa_handler = on_signal}, NULL);
    }

    /* A reader of stdout that has gone, and `ulimit -f`, kill by default; ignored, they become
     * errors of write, which are reported. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    open_results(stage, stage->B);

    /* The batches are dealt to the rings, and the whole sequence to this rank, until
     * stage_shard. */
    int rings = world->ranks / stage->config.ring_size, ring = world->rank / stage->config.ring_size;
    stage->B = (stage->B - ring + rings - 1) / rings;
    stage->all_queries = (struct ra_span){0, 1, stage->N};
    stage->all_keys = (struct ra_span){0, 1, stage->M};
    stage_shard(stage, &stage->all_queries, 1, &stage->all_keys, 1);
    stage->opened = true;

    /* Traces of ranks on one machine share its clock; else each starts when all have met. */
    stage->lap_start = last_progress = seconds_now();
    meet(stage, (int64_t)(1e9 * stage->lap_start));
    stage->trace_start =
        world->ranks_here == world->ranks ? 1e-9 * (double)stage->heard[0] : seconds_now();
}

/* The rows in all of these spans. */
static int64_t rows_in(const struct ra_span *spans, int64_t count)
{
    int64_t rows = 0;
    for (int64_t s = 0; s < count; s++)
        rows += spans[s].count;
    return rows;
}

void stage_shard(struct stage *stage, const struct ra_span *query_spans, int64_t query_span_count,
                 const struct ra_span *key_spans, int64_t key_span_count)
{
    stage->query_spans = query_spans;
    stage->query_span_count = query_span_count;
    stage->key_spans = key_spans;
    stage->key_span_count = key_span_count;
    stage->n = rows_in(query_spans, query_span_count);
    stage->m = rows_in(key_spans, key_span_count);
}

struct stage_memory {
    struct stage_memory *next;
    _Alignas(max_align_t) char bytes[];
};

void *stage_allocate(struct stage *stage, int64_t count, int64_t size)
{
    /* Refuse what this machine cannot hold: Linux would promise it, and kill the program later. */
    int64_t machine =
        (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) / stage->world.ranks_here;
    struct stage_memory *memory = NULL;
    if (count <= (machine - stage->peak_bytes) / size)
        memory = malloc(sizeof *memory + (size_t)(count * size));
    if (!memory)
        fail(stage, 1,
             "out of memory: %" PRId64 " elements of %" PRId64 " bytes on top of %" PRId64
             " bytes; this machine has %" PRId64 " for each rank",
             count, size, stage->peak_bytes, machine);

    memory->next = stage->memory;
    stage->memory = memory;
    stage->peak_bytes += count * size;
    return memset(memory->bytes, 0xFF, (size_t)(count * size));
}

void *stage_zeros(struct stage *stage, int64_t count, int64_t size)
{
    return memset(stage_allocate(stage, count, size), 0, (size_t)(count * size));
}

/* The batch of the whole problem that is batch b of this ring. */
static int64_t whole_batch(const struct stage *stage, int64_t b)
{
    int rings = stage->world.ranks / stage->config.ring_size;
    return b * rings + stage->world.rank / stage->config.ring_size;
}

/* One NaN or Inf would spread to every result without a word. */
static void check_finite(struct stage *stage, enum stage_input input, int64_t outer,
                         struct ra_span span, const float *rows)
{
    struct npy *file = &stage->inputs[input];
    int64_t width = npy_row_elements(file, 1);
    for (int64_t e = 0; e < span.count * width; e++)
        if (!isfinite(rows[e])) {
            int64_t row = outer * file->shape[1] + span.first + e / width * span.stride;
            char index[200];
            npy_index_text(file, row * width + e % width, index, sizeof index);
            fail(stage, 1, "%s: %g at %s; every number must be finite", file->path, rows[e], index);
        }
}

void stage_read(struct stage *stage, enum stage_input input, void *rows)
{
    struct npy *file = &stage->inputs[input];
    bool of_queries = input == STAGE_Q || input == STAGE_D_OUT, is_mask = input == STAGE_MASK;
    const struct ra_span *spans = of_queries ? stage->query_spans : stage->key_spans;
    int64_t count = of_queries ? stage->query_span_count : stage->key_span_count;
    int64_t row_bytes =
        npy_row_elements(file, 1) * (int64_t)(is_mask ? sizeof(bool) : sizeof(float));

    /* The rows of a batch lie side by side: span after span. */
    char *at = rows;
    for (int64_t b = 0; b < stage->B; b++)
        for (int64_t s = 0; s < count; s++) {
            struct npy_slice slice = {1, whole_batch(stage, b), spans[s].first, spans[s].stride,
                                      spans[s].count};
            if (!npy_read(file, slice, is_mask ? NPY_BOOL : NPY_FLOAT32, at))
                fail(stage, 1, "%s", file->error);
            if (!is_mask)
                check_finite(stage, input, slice.outer, spans[s], (const float *)(void *)at);
            at += spans[s].count * row_bytes;
        }
}

float *stage_input(struct stage *stage, enum stage_input input)
{
    int64_t rows = input == STAGE_Q || input == STAGE_D_OUT ? stage->n : stage->m;
    int64_t width = npy_row_elements(&stage->inputs[input], 1);
    float *memory = stage_allocate(stage, stage->B * rows * width, sizeof(float));
    stage_read(stage, input, memory);
    return memory;
}

bool *stage_mask(struct stage *stage)
{
    if (!stage->has_mask)
        return NULL;
    bool *mask = stage_allocate(stage, stage->B * stage->m, sizeof(bool));
    stage_read(stage, STAGE_MASK, mask);
    return mask;
}

void stage_write(struct stage *stage, enum stage_result result, const void *rows)
{
    /* lse has its positions on the last axis: one run of rows for every batch and head. */
    struct npy *file = &stage->results[result];
    bool is_lse = result == STAGE_LSE, of_keys = result == STAGE_DK || result == STAGE_DV;
    const struct ra_span *spans = of_keys ? stage->key_spans : stage->query_spans;
    int64_t count = of_keys ? stage->key_span_count : stage->query_span_count;
    int64_t axis = is_lse ? 2 : 1, heads = is_lse ? stage->H : 1;
    int64_t size = stage->result_type == NPY_FLOAT64 ? sizeof(double) : sizeof(float);
    int64_t row_elements = npy_row_elements(file, (int)axis);
    int64_t elements = stage->B * heads * (of_keys ? stage->m : stage->n) * row_elements;

    /* The terminal's line of progress ends here. */
    if (progress_shown)
        fputc('\n', stderr);
    progress_shown = false;

    /* The inputs were finite, so anything else here has overflowed, or was never written. */
    for (int64_t e = 0; e < elements; e++) {
        double number =
            size == sizeof(double) ? ((const double *)rows)[e] : ((const float *)rows)[e];
        if (!isfinite(number) && !(is_lse && number == -INFINITY))
            fail(stage, 1, "%s: %g among the results: scores too large for %s, or never written",
                 result_names[result], number, npy_type_name(stage->result_type));
    }

    const char *at = rows;
    for (int64_t outer = 0; outer < stage->B * heads; outer++)
        for (int64_t s = 0; s < count; s++) {
            int64_t whole = whole_batch(stage, outer / heads) * heads + outer % heads;
            struct npy_slice slice = {(int)axis, whole, spans[s].first, spans[s].stride,
                                      spans[s].count};
            if (!npy_write(file, slice, stage->result_type, at))
                fail(stage, 1, "%s", file->error);
            at += spans[s].count * row_elements * size;
        }
}

struct ra_queries stage_queries(struct stage *stage)
{
    int64_t numbers = stage->B * stage->n * stage->H * stage->D;
    int64_t rows = stage->B * stage->H * stage->n, width = stage->H * stage->D;
    struct ra_queries queries = {.rows = stage->n,
                                 .stride = {width, width, width, width},
                                 .q = stage_input(stage, STAGE_Q),
                                 .o = stage_allocate(stage, numbers, sizeof(float)),
                                 .max = stage_allocate(stage, rows, sizeof(float)),
                                 .sum = stage_allocate(stage, rows, sizeof(float)),
                                 .lse = stage_allocate(stage, rows, sizeof(float))};
    if (!stage->config.forward_only) {
        queries.d_out = stage_input(stage, STAGE_D_OUT);
        queries.delta = stage_allocate(stage, rows, sizeof(float));
        queries.dq = stage_zeros(stage, numbers, sizeof(float));
    }
    return queries;
}

struct ra_score stage_score(const struct stage *stage)
{
    return (struct ra_score){(float)stage->config.scale, (float)stage->config.softcap};
}

void stage_write_queries(struct stage *stage, const struct ra_queries *queries)
{
    stage_write(stage, STAGE_O, queries->o);
    stage_write(stage, STAGE_LSE, queries->lse);
    if (!stage->config.forward_only)
        stage_write(stage, STAGE_DQ, queries->dq);
}

void stage_read_keys(struct stage *stage, float *message)
{
    int64_t numbers = stage->B * stage->m * stage->G * stage->D;
    stage_read(stage, STAGE_K, message);
    stage_read(stage, STAGE_V, message + numbers);
    if (stage->has_mask)
        stage_read(stage, STAGE_MASK, message + 2 * numbers);
}

void stage_write_gradients(struct stage *stage, const float *gradients)
{
    stage_write(stage, STAGE_DK, gradients);
    stage_write(stage, STAGE_DV, gradients + stage->B * stage->m * stage->G * stage->D);
}

struct stage_counter {
    const char *name;
    int hop;
    int64_t value;
};

struct stage_event {
    enum stage_lane lane;
    const char *name;
    int hop;
    double start, end;
};

/* Room for one more element in a growing array; the number of elements is doubled at powers of
 * two. */
static void *grow(struct stage *stage, void *array, int64_t count, size_t size)
{
    if ((count & (count - 1)) != 0)
        return array;
    array = realloc(array, (size_t)(count > 0 ? 2 * count : 1) * size);
    if (!array)
        fail(stage, 1, "out of memory");
    return array;
}

void stage_count(struct stage *stage, const char *name, int hop, int64_t value)
{
    for (int64_t c = 0; c < stage->counter_count; c++)
        if (stage->counters[c].hop == hop && strcmp(stage->counters[c].name, name) == 0) {
            stage->counters[c].value += value;
            return;
        }
    stage->counters = grow(stage, stage->counters, stage->counter_count, sizeof *stage->counters);
    stage->counters[stage->counter_count++] = (struct stage_counter){name, hop, value};
}

void stage_trace(struct stage *stage, enum stage_lane lane, const char *name, int hop, double start,
                 double end)
{
    if (!stage->trace_path)
        return;
    stage->events = grow(stage, stage->events, stage->event_count, sizeof *stage->events);
    stage->events[stage->event_count++] = (struct stage_event){lane, name, hop, start, end};
}

void stage_progress(const struct stage *stage, const char *phase, int64_t done, int64_t total)
{
    /* Once a second, and only where somebody may be looking. */
    double now = seconds_now();
    if (now - last_progress < 1 || stage->world.rank > 0 || !isatty(STDERR_FILENO))
        return;
    last_progress = now;
    progress_shown = true;
    fprintf(stderr, "\r%s: %s %3.0f %%", stage->program, phase, 100 * (double)done / (double)total);
}

void stage_lap(struct stage *stage, enum stage_lap lap)
{
    double now = seconds_now();
    stage->seconds[lap] += now - stage->lap_start;
    stage->lap_start = now;
}

/* What this rank counted under this name, over all hops. */
static int64_t sum_of(const struct stage *stage, const char *name)
{
    int64_t sum = 0;
    for (int64_t c = 0; c < stage->counter_count; c++)
        if (strcmp(stage->counters[c].name, name) == 0)
            sum += stage->counters[c].value;
    return sum;
}

/* On rank 0, prints what all ranks counted: with --per-hop every number; of each name the total
 * and, if there are several ranks, the busiest rank's share of it. */
static void print_counts(struct stage *stage)
{
    bool prints = stage->world.rank == 0;
    for (int64_t c = 0; c < stage->counter_count && stage->per_hop; c++) {
        const struct stage_counter *counter = &stage->counters[c];
        meet(stage, counter->value);
        for (int r = 0; r < stage->world.ranks && prints; r++)
            printf("rank %d hop %d %s %" PRId64 "\n", r, counter->hop, counter->name,
                   stage->heard[r]);
    }

    for (int64_t c = 0; c < stage->counter_count; c++) {
        const char *name = stage->counters[c].name;
        bool seen = false;
        for (int64_t earlier = 0; earlier < c; earlier++)
            seen = seen || strcmp(stage->counters[earlier].name, name) == 0;
        if (seen)
            continue;

        int64_t total = 0, most = 0;
        meet(stage, sum_of(stage, name));
        for (int r = 0; r < stage->world.ranks; r++) {
            total += stage->heard[r];
            most = stage->heard[r] > most ? stage->heard[r] : most;
        }
        if (prints)
            printf("%s %" PRId64 "\n", name, total);
        if (prints && stage->world.ranks > 1)
            printf("%s, busiest rank %" PRId64 "\n", name, most);
    }

    meet(stage, stage->peak_bytes);
    int64_t peak = 0;
    for (int r = 0; r < stage->world.ranks; r++)
        peak = stage->heard[r] > peak ? stage->heard[r] : peak;
    if (prints)
        printf("peak bytes%s %" PRId64 "\n", stage->number > 2 ? " per rank" : "", peak);
}

/* The events of this rank as Chrome trace JSON: one object a line, each ended by a comma. The
 * ranks are the processes, their lanes the threads. Returns memory to free. */
static char *trace_text(struct stage *stage, size_t *length)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, length);
    if (!out)
        fail(stage, 1, "%s: %s", stage->trace_path, strerror(errno));
    int rank = stage->world.rank;
    for (int lane = 0; lane < STAGE_LANES; lane++)
        fprintf(out,
                "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
                "\"args\":{\"name\":\"%s\"}},\n",
                rank, lane, lane_names[lane]);
    for (int64_t e = 0; e < stage->event_count; e++) {
        const struct stage_event *event = &stage->events[e];
        fprintf(out,
                "{\"name\":\"%s\",\"ph\":\"X\",\"ts\":%.1f,\"dur\":%.1f,\"pid\":%d,\"tid\":%d,"
                "\"args\":{\"hop\":%d}},\n",
                event->name, 1e6 * (event->start - stage->trace_start),
                1e6 * (event->end - event->start), rank, (int)event->lane, event->hop);
    }
    fprintf(out,
            "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d\"}}%s",
            rank, rank, rank == stage->world.ranks - 1 ? "\n]\n" : ",\n");
    if (fclose(out) != 0)
        fail(stage, 1, "out of memory");
    return text;
}

/* Writes the trace: every rank its own part of one file, behind those of the ranks before it. */
static void write_trace(struct stage *stage)
{
    if (!stage->trace_path)
        return;
    size_t length;
    char *text = trace_text(stage, &length);
    meet(stage, (int64_t)length);
    int64_t at = 2; /* behind the "[\n" of create_trace */
    for (int r = 0; r < stage->world.rank; r++)
        at += stage->heard[r];

    int file = open(stage->trace_path, O_WRONLY | O_CLOEXEC);
    bool written = file >= 0;
    for (size_t done = 0; written && done < length;) {
        ssize_t step = pwrite(file, text + done, length - done, at + (off_t)done);
        written = step > 0 || (step < 0 && errno == EINTR);
        done += step > 0 ? (size_t)step : 0;
    }
    if (!written || close(file) != 0)
        fail(stage, 1, "--trace %s: %s", stage->trace_path, strerror(errno));
    free(text);
}

/* Gives the finished results their names. */
static void rename_results(struct stage *stage)
{
    /* An earlier run's gradients must not stand beside a later run's o, so a forward-only run
     * removes them. */
    renaming = true;
    for (int r = 0; r < STAGE_RESULTS; r++) {
        char path[PATH_MAX];
        result_path(stage, r, false, path);
        if (!unfinished[r][0])
            unlink(path);
        else if (rename(unfinished[r], path) != 0)
            fail(stage, 1, "%s: cannot rename the finished result: %s", path, strerror(errno));
    }
    forget_unfinished();
    renaming = false;
}

/* The seconds of each lap, of the rank that took longest. */
static void print_laps(struct stage *stage)
{
    if (stage->world.rank == 0)
        fputs("seconds", stderr);
    for (int l = 0; l < STAGE_LAPS; l++) {
        if (l == STAGE_WAIT && stage->number < 3)
            continue;
        meet(stage, (int64_t)(1e9 * stage->seconds[l]));
        int64_t longest = 0;
        for (int r = 0; r < stage->world.ranks; r++)
            longest = stage->heard[r] > longest ? stage->heard[r] : longest;
        if (stage->world.rank == 0)
            fprintf(stderr, " %s %.6f", lap_names[l], 1e-9 * (double)longest);
    }
    if (stage->world.rank == 0)
        fputc('\n', stderr);
}

int stage_close(struct stage *stage)
{
    for (int r = 0; r < STAGE_RESULTS; r++)
        if (!npy_close(&stage->results[r]))
            fail(stage, 1, "%s", stage->results[r].error);
    write_trace(stage);

    /* The counts go first: a run that could not print them has failed, and leaves nothing. The
     * ranks meet for them, so when rank 0 goes on to the names, all have written and closed their
     * rows, and the hidden files are its own alone. */
    if (stage->world.rank > 0)
        forget_unfinished();
    print_counts(stage);
    flush_stdout(stage);
    if (stage->world.rank == 0)
        rename_results(stage);
    stage_lap(stage, STAGE_WRITE);
    if (stage->time)
        print_laps(stage);

    /* Nobody leaves before the results have their names. */
    meet(stage, 0);
    for (int i = 0; i < STAGE_INPUTS; i++)
        npy_close(&stage->inputs[i]);
    while (stage->memory) {
        struct stage_memory *next = stage->memory->next;
        free(stage->memory);
        stage->memory = next;
    }
    free(stage->counters);
    free(stage->events);
    free(stage->heard);
    stage->world.leave();
    return 0;
}
