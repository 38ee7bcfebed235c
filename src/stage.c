/* stage: what every stage program does besides attention. See stage.h. */
#include "stage.h"

#include <errno.h>
#include <float.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* The flags of the whole ladder. A stage knows those of its own number and below; 01-naive knows the
 * ones that say who sees whom, too, because it judges the stages that learn them. */
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
    FLAG_CAUSAL,
    FLAG_LAYOUT,
    FLAG_BUCKET,
    FLAG_LOOKBACK,
    FLAG_HEAD_MAP,
    FLAG_SOFTCAP,
    FLAGS
};

static const struct {
    const char *name, *value;
    int arrives;
    bool visibility; /* 01-naive knows it */
    const char *help;
} flags[FLAGS] = {
    [FLAG_HELP] = {"help", NULL, 1, true, "show this text"},
    [FLAG_FORWARD_ONLY] = {"forward-only", NULL, 1, true, "o and lse only; do.npy is not needed"},
    [FLAG_SCALE] = {"scale", "S", 1, true, "factor of every score (default 1/sqrt(D))"},
    [FLAG_TIME] = {"time", NULL, 1, true, "print seconds on stderr"},
    [FLAG_TILE_QUERIES] = {"tile-queries", "ROWS", 2, false, "query rows of a tile (default 64)"},
    [FLAG_TILE_KEYS] = {"tile-keys", "ROWS", 2, false, "key rows of a tile (default 64)"},
    [FLAG_RING_SIZE] = {"ring-size", "P", 3, false, "ranks of one ring"},
    [FLAG_LOCAL_KEYS] = {"local-keys", NULL, 3, false, "no ring: each rank sees its own keys"},
    [FLAG_TIMEOUT] = {"timeout", "S", 3, false, "seconds until a silent peer is an error"},
    [FLAG_TRACE] = {"trace", "FILE", 3, false, "write a timeline as Chrome trace JSON"},
    [FLAG_CAUSAL] = {"causal", NULL, 4, true, "nobody sees the future"},
    [FLAG_LAYOUT] = {"layout", "NAME", 5, false, "contiguous, striped or zigzag"},
    [FLAG_BUCKET] = {"bucket", "ROWS", 5, false, "rows of a stripe"},
    [FLAG_LOOKBACK] = {"lookback", "L", 6, true, "with --causal: at most L tokens back"},
    [FLAG_HEAD_MAP] = {"head-map", "MAP", 7, true, "grouped (default) or interleaved"},
    [FLAG_SOFTCAP] = {"softcap", "C", 8, true, "scores become C * tanh(score / C)"},
};

static const char *const input_names[STAGE_INPUTS] = {"q", "k", "v", "do", "mask"};
static const char *const result_names[STAGE_RESULTS] = {"o", "lse", "dq", "dk", "dv"};
static const char *const lap_names[STAGE_LAPS] = {"read", "forward", "backward", "write"};

/* Files and the folder that must go if the program ends before stage_close. Static, because a signal
 * handler has no other way to know them. */
static char unfinished[STAGE_RESULTS][PATH_MAX];
static char unfinished_folder[PATH_MAX];

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

static void on_signal(int signal_number)
{
    remove_unfinished();
    _exit(128 + signal_number);
}

/* Prints "program: message" as one line on stderr and exits. */
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
    fprintf(stderr, "%s%s: %s\n", progress_shown ? "\n" : "", stage->program, message);
    exit(exit_code);
}

static bool knows(const struct stage *stage, enum flag flag)
{
    return flags[flag].arrives <= stage->number || (stage->number == 1 && flags[flag].visibility);
}

static void print_help(const struct stage *stage, const char *about)
{
    printf("Usage: %s [FLAGS] PROBLEM RESULT\n\n%s\n\n", stage->program, about);
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
        if (!knows(stage, flag))
            fail(stage, 2, "--%s arrives in stage %02d", flags[flag].name, flags[flag].arrives);
        switch (flag) {
        case FLAG_HELP:
            print_help(stage, about);
            flush_stdout(stage);
            exit(0);
        case FLAG_FORWARD_ONLY:
            stage->forward_only = true;
            break;
        case FLAG_SCALE:
            stage->scale = real_number(stage, flag, optarg);
            if (stage->number > 1 && fabs(stage->scale) > FLT_MAX)
                fail(stage, 2, "--scale %s: more than a float32 can hold", optarg);
            break;
        case FLAG_TIME:
            stage->time = true;
            break;
        case FLAG_TILE_QUERIES:
            stage->tile_queries = whole_number(stage, flag, optarg, 1);
            break;
        case FLAG_TILE_KEYS:
            stage->tile_keys = whole_number(stage, flag, optarg, 1);
            break;
        case FLAG_CAUSAL:
            stage->causal = true;
            break;
        case FLAG_LOOKBACK:
            stage->lookback = whole_number(stage, flag, optarg, 0);
            break;
        case FLAG_HEAD_MAP:
            stage->interleaved_heads = strcmp(optarg, "interleaved") == 0;
            if (!stage->interleaved_heads && strcmp(optarg, "grouped") != 0)
                fail(stage, 2, "--head-map %s: give grouped or interleaved", optarg);
            break;
        case FLAG_SOFTCAP:
            stage->softcap = real_number(stage, flag, optarg);
            if (!(stage->softcap > 0))
                fail(stage, 2, "--softcap %s: give a number above 0", optarg);
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
    if (stage->lookback >= 0 && !stage->causal)
        fail(stage, 2, "--lookback needs --causal: it counts tokens back from each query");
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
    if (!stage->forward_only)
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
        if (!stage->forward_only)
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
                          result_names[result], (long)getpid())
               : snprintf(path, PATH_MAX, "%s/%s.npy", stage->result_folder, result_names[result]);
    if (length >= PATH_MAX)
        fail(stage, 1, "%.60s...: the path is too long", stage->result_folder);
}

/* Reserves the results as hidden files, so that a full disk or a folder that cannot be written is
 * found before the work and not after it. */
static void create_results(struct stage *stage)
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

    for (int r = 0; r < (stage->forward_only ? STAGE_DQ : STAGE_RESULTS); r++) {
        bool of_keys = r == STAGE_DK || r == STAGE_DV;
        int64_t rows[] = {stage->B, stage->N, stage->H, stage->D};
        int64_t keys[] = {stage->B, stage->M, stage->G, stage->D};
        int64_t lse[] = {stage->B, stage->H, stage->N};
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

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void stage_open(struct stage *stage, int argc, char **argv, int number, const char *program,
                const char *about, enum npy_type result_type)
{
    *stage = (struct stage){.program = program,
                            .number = number,
                            .lookback = -1,
                            .scale = NAN,
                            .tile_queries = 64,
                            .tile_keys = 64,
                            .result_type = result_type};
    for (int f = 0; f < STAGE_INPUTS; f++)
        stage->inputs[f].fd = -1;
    const char *problem;
    read_command_line(stage, argc, argv, about, &problem);
    open_problem(stage, problem);
    if (isnan(stage->scale))
        stage->scale = 1 / sqrt((double)stage->D);

    /* A tile is no larger than what there is. */
    if (stage->tile_queries > stage->N)
        stage->tile_queries = stage->N;
    if (stage->tile_keys > stage->M)
        stage->tile_keys = stage->M;

    /* From here on there is something to clean up. */
    atexit(remove_unfinished);
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
    create_results(stage);
    stage->lap_start = last_progress = seconds_now();
}

struct stage_memory {
    struct stage_memory *next;
    _Alignas(max_align_t) char bytes[];
};

void *stage_allocate(struct stage *stage, int64_t count, int64_t size)
{
    /* Refuse what this machine cannot hold: Linux would promise it, and kill the program later. */
    int64_t machine = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    struct stage_memory *memory = NULL;
    if (count <= (machine - stage->peak_bytes) / size)
        memory = malloc(sizeof *memory + (size_t)(count * size));
    if (!memory)
        fail(stage, 1,
             "out of memory: %" PRId64 " elements of %" PRId64 " bytes on top of %" PRId64
             " bytes; this machine has %" PRId64,
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

/* Reads rows of every batch of an input, one batch after the other. */
static void read_rows(struct stage *stage, enum stage_input input, int64_t first, int64_t stride,
                      int64_t count, enum npy_type type, char *out, int64_t bytes_per_row)
{
    struct npy *file = &stage->inputs[input];
    for (int64_t b = 0; b < stage->B; b++) {
        struct npy_slice rows = {1, b, first, stride, count};
        if (!npy_read(file, rows, type, out + b * count * bytes_per_row))
            fail(stage, 1, "%s", file->error);
    }
}

float *stage_input(struct stage *stage, enum stage_input input, int64_t first, int64_t stride,
                   int64_t count)
{
    struct npy *file = &stage->inputs[input];
    int64_t width = npy_row_elements(file, 1);
    float *rows = stage_allocate(stage, stage->B * count * width, sizeof(float));
    read_rows(stage, input, first, stride, count, NPY_FLOAT32, (char *)rows,
              width * (int64_t)sizeof(float));

    /* One NaN or Inf would spread to every result without a word. */
    for (int64_t e = 0; e < stage->B * count * width; e++)
        if (!isfinite(rows[e])) {
            int64_t b = e / (count * width), a = e / width % count;
            int64_t position = b * file->shape[1] + first + a * stride;
            char index[200];
            npy_index_text(file, position * width + e % width, index, sizeof index);
            fail(stage, 1, "%s: %g at %s; every number must be finite", file->path, rows[e], index);
        }
    return rows;
}

bool *stage_mask(struct stage *stage, int64_t first, int64_t stride, int64_t count)
{
    if (!stage->has_mask)
        return NULL;
    bool *mask = stage_allocate(stage, stage->B * count, sizeof(bool));
    read_rows(stage, STAGE_MASK, first, stride, count, NPY_BOOL, (char *)mask, sizeof(bool));
    return mask;
}

void stage_write(struct stage *stage, enum stage_result result, int64_t first, int64_t stride,
                 int64_t count, const void *rows)
{
    /* lse has its positions on the last axis: one run of rows for every batch and head. */
    struct npy *file = &stage->results[result];
    int axis = result == STAGE_LSE ? 2 : 1;
    int64_t outer = result == STAGE_LSE ? stage->B * stage->H : stage->B;
    int64_t size = stage->result_type == NPY_FLOAT64 ? sizeof(double) : sizeof(float);
    int64_t elements = count * npy_row_elements(file, axis), run = elements * size;

    /* The terminal's line of progress ends here. */
    if (progress_shown)
        fputc('\n', stderr);
    progress_shown = false;

    /* The inputs were finite, so anything else here has overflowed, or was never written. */
    for (int64_t e = 0; e < outer * elements; e++) {
        double number =
            size == sizeof(double) ? ((const double *)rows)[e] : ((const float *)rows)[e];
        if (!isfinite(number) && !(result == STAGE_LSE && number == -INFINITY))
            fail(stage, 1, "%s: %g among the results: scores too large for %s, or never written",
                 result_names[result], number, npy_type_name(stage->result_type));
    }

    for (int64_t b = 0; b < outer; b++) {
        struct npy_slice slice = {axis, b, first, stride, count};
        if (!npy_write(file, slice, stage->result_type, (const char *)rows + b * run))
            fail(stage, 1, "%s", file->error);
    }
}

void stage_count(const char *name, int64_t value)
{
    printf("%s %" PRId64 "\n", name, value);
}

void stage_progress(const struct stage *stage, const char *phase, int64_t done, int64_t total)
{
    /* Once a second, and only where somebody may be looking. */
    double now = seconds_now();
    if (now - last_progress < 1 || !isatty(STDERR_FILENO))
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

int stage_close(struct stage *stage)
{
    for (int r = 0; r < STAGE_RESULTS; r++)
        if (unfinished[r][0] && !npy_close(&stage->results[r]))
            fail(stage, 1, "%s", stage->results[r].error);

    /* The counts go first: a run that could not print them has failed, and leaves nothing. */
    stage_count("peak bytes", stage->peak_bytes);
    flush_stdout(stage);

    /* All results get their names or none, so no signal may end the program among the renames. */
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);

    /* Everything is written: now the names. An earlier run's gradients must not stand beside a later
     * run's o, so a forward-only run removes them. */
    for (int r = 0; r < STAGE_RESULTS; r++) {
        char path[PATH_MAX];
        result_path(stage, r, false, path);
        if (!unfinished[r][0])
            unlink(path);
        else if (rename(unfinished[r], path) != 0)
            fail(stage, 1, "%s: cannot rename the finished result: %s", path, strerror(errno));
        unfinished[r][0] = '\0';
        unfinished_folder[0] = '\0';
    }
    for (int i = 0; i < STAGE_INPUTS; i++)
        npy_close(&stage->inputs[i]);
    while (stage->memory) {
        struct stage_memory *next = stage->memory->next;
        free(stage->memory);
        stage->memory = next;
    }

    stage_lap(stage, STAGE_WRITE);
    if (stage->time) {
        fputs("seconds", stderr);
        for (int l = 0; l < STAGE_LAPS; l++)
            fprintf(stderr, " %s %.6f", lap_names[l], stage->seconds[l]);
        fputc('\n', stderr);
    }
    return 0;
}
