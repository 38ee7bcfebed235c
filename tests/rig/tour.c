/* tour: runs every stage in order on one problem and prints one table: how far each is from the
 * stage before it and from 01-naive, and what it cost.
 * Run from the root of the repository. Everything is left in build/lesson/tour/. A stage runs
 * under the rules that it knows, so from 04 on the runs are causal, and are held against a causal
 * 01-naive; 04-causal is held against 03-ring in one more run that is not.
 */
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ARRAYS = 5 };
static const char *const arrays[ARRAYS] = {"o", "lse", "dq", "dk", "dv"};

/* A row of the table: a program, its flags, and the result folder of the run that it is held
 * against besides 01-naive. A row without a name is a run that only serves the next row. */
static const struct stop {
    const char *name, *program, *flags, *before, *result;
} stops[] = {
    {"01-naive", "01-naive", "", NULL, "naive"},
    {"02-flash", "02-flash", "", "naive", "flash"},
    {"03-ring", "03-ring", "", "flash", "ring"},
    {NULL, "04-causal", "", NULL, "causal-off"},
    {NULL, "01-naive", "--causal", NULL, "naive-causal"},
    {"04-causal", "04-causal", "--causal", "ring", "causal"},
    {"05-striped", "05-striped", "--causal --layout striped", "causal", "striped"},
    {"06-lookback", "06-lookback", "--causal --layout striped", "striped", "lookback"},
    {"07-gqa", "07-gqa", "--causal --layout striped", "lookback", "gqa"},
    {"08-library", "08-library", "--causal --layout striped", "gqa", "library"},
};
#define STOPS ((int)(sizeof stops / sizeof stops[0]))

/* Which of them have a result: a stage may not have learnt what a problem asks for. */
static bool written[STOPS];

static bool has_result(const char *result)
{
    for (int s = 0; s < STOPS; s++)
        if (strcmp(stops[s].result, result) == 0)
            return written[s];
    return false;
}

struct settings {
    const char *problem;
    const char *allowed; /* a number for compare; NULL: what the oracle says */
    int ranks;
};

/* The shares of what is allowed, -1 where nothing was compared. */
struct shares {
    double of[ARRAYS];
};

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("tour: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

/* Runs a shell command with its output in `log`. Returns whether its exit code was 0. */
__attribute__((format(printf, 2, 3))) static bool run(const char *log, const char *format, ...)
{
    char command[4096], line[4600];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    if (length >= (int)sizeof command)
        die("the command is too long: %.60s...", command);
    snprintf(line, sizeof line, "%s >%s 2>&1 </dev/null", command, log);
    return system(line) == 0;
}

/* Prints a log and dies. */
__attribute__((noreturn)) static void show_and_die(const char *log)
{
    char line[4096];
    FILE *file = fopen(log, "r");
    while (file && fgets(line, sizeof line, file))
        fprintf(stderr, "  > %s", line);
    die("failed, see %s", log);
}

/* The value of a count in what a stage printed, or 0 if it does not count that. */
static int64_t count_in(const char *log, const char *name)
{
    char line[4096];
    int64_t value = 0;
    size_t length = strlen(name);
    FILE *file = fopen(log, "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, length) == 0 && line[length] == ' ')
            value = strtoll(line + length, NULL, 10);
    if (file)
        fclose(file);
    return value;
}

/* Does the log hold these words? */
static bool holds(const char *log, const char *words)
{
    char line[4096];
    bool found = false;
    FILE *file = fopen(log, "r");
    while (file && !found && fgets(line, sizeof line, file))
        found = strstr(line, words) != NULL;
    if (file)
        fclose(file);
    return found;
}

/* A count of both phases together. */
static int64_t both(const char *log, const char *name, const char *of)
{
    char forward[100], backward[100];
    snprintf(forward, sizeof forward, "%s forward%s", name, of);
    snprintf(backward, sizeof backward, "%s backward%s", name, of);
    return count_in(log, forward) + count_in(log, backward);
}

/* Runs a stage on the problem, with its counts in build/lesson/tour/RESULT.txt. False if it has not
 * learnt what the problem asks for. */
static bool run_stage(const struct settings *settings, const struct stop *stop)
{
    char log[200], launch[100] = "";
    snprintf(log, sizeof log, "build/lesson/tour/%s.txt", stop->result);
    if (strcmp(stop->program, "02-flash") > 0)
        snprintf(launch, sizeof launch, "mpirun --oversubscribe --bind-to none -n %d ",
                 settings->ranks);
    fprintf(stderr, "tour: %s %s\n", stop->program, stop->flags);
    bool right = run(log, "%sbuild/%s%s%s '%s' build/lesson/tour/%s", launch, stop->program,
                     *stop->flags ? " " : "", stop->flags, settings->problem, stop->result);
    if (!right && !holds(log, " arrive in stage "))
        show_and_die(log);
    return right;
}

/* Compares two results; the shares are read off what compare says about each array. */
static struct shares compare(const struct settings *settings, bool causal, const char *want,
                             const char *got)
{
    struct shares shares = {{-1, -1, -1, -1, -1}};
    char line[4096], name[16], verdict[16];
    const char *log = "build/lesson/tour/compare.txt";
    const char *allowed = settings->allowed ? settings->allowed
                          : causal          ? "build/lesson/tour/oracle-causal"
                                            : "build/lesson/tour/oracle";
    run(log, "build/compare %s build/lesson/tour/%s build/lesson/tour/%s", allowed, want, got);

    int found = 0;
    FILE *file = fopen(log, "r");
    while (file && fgets(line, sizeof line, file)) {
        /* "o right 0.2 of allowed ...", or "o right equal in every element ...". */
        double share = 0;
        if (sscanf(line, " %15s %15s %lf of allowed", name, verdict, &share) != 3 &&
            (sscanf(line, " %15s %15s", name, verdict) != 2 || !strstr(line, " equal in every ")))
            continue;
        for (int a = 0; a < ARRAYS; a++)
            if (strcmp(name, arrays[a]) == 0) {
                shares.of[a] = share;
                found++;
            }
    }
    if (file)
        fclose(file);
    if (found != ARRAYS)
        show_and_die(log);
    return shares;
}

/* Prints five shares, and returns whether all are within what is allowed; NaN is not. */
static bool print_shares(struct shares shares)
{
    bool right = true;
    for (int a = 0; a < ARRAYS; a++) {
        if (shares.of[a] == -1)
            printf("     -");
        else
            printf(" %5.2f", shares.of[a]);
        right = right && (shares.of[a] == -1 || shares.of[a] <= 1);
    }
    return right;
}

/* One row of the table. Returns whether all differences are within what is allowed. */
static bool print_row(const struct settings *settings, const struct stop *stop)
{
    struct shares none = {{-1, -1, -1, -1, -1}}, before = none, naive = none;
    bool causal = strstr(stop->flags, "--causal") != NULL, first = !stop->before;
    bool ring = strcmp(stop->program, "02-flash") > 0;
    if (!has_result(stop->result)) {
        printf("%-11s has not learnt what this problem asks for\n", stop->name);
        return true;
    }
    if (!first) {
        /* 03-ring is not causal: 04-causal is held against it without that rule. */
        bool leaves_ring = strcmp(stop->before, "ring") == 0;
        if (has_result(stop->before))
            before = compare(settings, causal && !leaves_ring, stop->before,
                             leaves_ring ? "causal-off" : stop->result);
        naive = compare(settings, causal, causal ? "naive-causal" : "naive", stop->result);
    }

    char log[200];
    snprintf(log, sizeof log, "build/lesson/tour/%s.txt", stop->result);
    int64_t work = both(log, "multiply-adds", "");
    int64_t busiest =
        ring && settings->ranks > 1 ? both(log, "multiply-adds", ", busiest rank") : work;
    printf("%-11s %5d ", stop->name, ring ? settings->ranks : 1);
    bool right = print_shares(before);
    printf(" ");
    right = print_shares(naive) && right;
    printf(" %14" PRId64 " %11" PRId64 " %11" PRId64 "  %5.1f %%\n", work,
           both(log, "bytes sent", ""), count_in(log, ring ? "peak bytes per rank" : "peak bytes"),
           100 * (double)busiest / (double)work);
    fflush(stdout);
    return right;
}

/* The oracle's process group, while it works. */
static volatile pid_t oracle;

static void stop_oracle(void)
{
    if (oracle > 0)
        kill(-oracle, SIGTERM);
}

static void on_interrupt(int signal_number)
{
    stop_oracle();
    _exit(128 + signal_number);
}

/* Lets the oracle say what is allowed, without and with the causal mask, in a process group of its
 * own, which ends with us. */
static void start_oracle(const struct settings *settings)
{
    oracle = fork();
    if (oracle < 0)
        die("cannot fork");
    if (oracle > 0) {
        /* Both sides set the group, as either may be the first to need it. */
        setpgid(oracle, oracle);
        atexit(stop_oracle);
        signal(SIGINT, on_interrupt);
        signal(SIGTERM, on_interrupt);
        return;
    }
    setpgid(0, 0);
    const char *log = "build/lesson/tour/oracle.txt", *python = "/usr/bin/python3 tests/rig/oracle.py";
    bool right =
        run(log, "%s '%s' build/lesson/tour/oracle", python, settings->problem) &&
        run(log, "%s --causal '%s' build/lesson/tour/oracle-causal", python, settings->problem);
    _exit(right ? 0 : 1);
}

/* Makes the default problem: the book's own text. */
static void make_problem(const char *folder)
{
    const char *log = "build/lesson/tour/problem.txt";
    if (!run(log,
             "build/problem --text chapters/00-notation.md --queries 4096 --heads 2 --dim 32 %s",
             folder))
        show_and_die(log);
}

static void read_command_line(int argc, char **argv, struct settings *settings)
{
    static const struct option options[] = {{"allowed", required_argument, NULL, 'a'},
                                            {"help", no_argument, NULL, 'h'},
                                            {"ranks", required_argument, NULL, 'r'},
                                            {0}};
    for (int flag; (flag = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        char *end = optarg;
        if (flag == 'a')
            settings->allowed = optarg;
        if (flag == 'r')
            settings->ranks = (int)strtol(optarg, &end, 10);
        if (flag == 'r' &&
            (end == optarg || *end || settings->ranks < 1 || settings->ranks > 999)) {
            fprintf(stderr, "tour: --ranks %s: give a whole number from 1 to 999\n", optarg);
            exit(2);
        }
        if (flag == 'h' || flag == '?') {
            fprintf(
                flag == 'h' ? stdout : stderr,
                "Usage: build/tour [FLAGS] [PROBLEM]\n\n"
                "Runs every stage in order on a folder of q, k, v and do (default: the book's\n"
                "text, 4,096 tokens) and prints one table. Differences are shares of what is\n"
                "allowed; more than 1 is wrong. Exit code: 0 all right, 1 not, 2 misuse.\n\n"
                "  --ranks P      ranks of the stages that have ranks (default 4)\n"
                "  --allowed TOL  allowed is TOL times the largest number of each batch and head,\n"
                "                 such as 1e-4. Without it tests/rig/oracle.py says what is allowed;\n"
                "                 for long sequences that takes too much time and memory\n");
            exit(flag == 'h' ? 0 : 2);
        }
    }
    if (argc - optind > 1) {
        fprintf(stderr, "tour: give one PROBLEM or none; see --help\n");
        exit(2);
    }
    if (argc - optind == 1)
        settings->problem = argv[optind];
    if (settings->problem && strchr(settings->problem, '\''))
        die("%s: a path with a quote in it cannot be toured", settings->problem);
}

int main(int argc, char **argv)
{
    struct settings settings = {.ranks = 4};
    read_command_line(argc, argv, &settings);
    if (access("build/08-library", X_OK) != 0)
        die("build/08-library: not there; run this from the root of the repository, after ninja");

    /* Open MPI refuses root unless it insists twice. */
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    mkdir("build/lesson", 0777);
    mkdir("build/lesson/tour", 0777);
    if (!settings.problem) {
        settings.problem = "build/lesson/tour/problem";
        make_problem(settings.problem);
    }

    /* The oracle works beside the stages. */
    if (!settings.allowed)
        start_oracle(&settings);
    for (int s = 0; s < STOPS; s++)
        written[s] = run_stage(&settings, &stops[s]);
    int status = 0;
    if (!settings.allowed)
        fputs("tour: waiting for tests/rig/oracle.py, which says what is allowed\n", stderr);
    if (!settings.allowed && (waitpid(oracle, &status, 0) != oracle || status != 0))
        show_and_die("build/lesson/tour/oracle.txt");
    oracle = 0;

    printf("                    to the stage before              to 01-naive\n"
           "stage       ranks     o   lse    dq    dk    dv      o   lse    dq    dk    dv"
           "  multiply-adds  bytes sent   peak/rank busiest\n");
    bool right = true;
    for (int s = 0; s < STOPS; s++)
        if (stops[s].name)
            right = print_row(&settings, &stops[s]) && right;
    printf(
        "\nDifferences are the worst of all elements, as a share of what is allowed: %s%s.\n"
        "From 04 on causal, from 05 on striped. 04 is held against 03 without the causal mask.\n",
        settings.allowed ? settings.allowed : "about\ntwice the error of the plainest float32",
        settings.allowed ? "\nof the largest number of the same batch and head"
                         : " program (tests/rig/oracle.py)");
    if (!right)
        printf("WRONG: a difference is larger than allowed.\n");
    return !right;
}
