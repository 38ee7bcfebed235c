/* grid: every stage on every problem of tests/shapes.txt, held against the float64 oracle, against
 * 01-naive and against itself.
 *
 * A problem that a stage has not learnt must be refused, with exit code 2 and the stage that teaches
 * it. All others must come out right in every variant (tile sizes, rank counts) and twice the same
 * to the bit. Each run has a time limit, because the likeliest bug of a ring is to hang. Everything
 * is left in BUILD/shapes/SHAPE/, and each failure prints the command that shows it again.
 */
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* What grid knows of a stage: the flags that change how it computes but not what, and the rank counts
 * it runs on. One rank needs no mpirun. */
static const struct stage {
    int number;
    const char *program;
    const char *variants[8];
    int ranks[8];
} stages[] = {
    {1, "01-naive", {""}, {1}},
    {2,
     "02-flash",
     {"", "--tile-queries 1 --tile-keys 1", "--tile-queries 3 --tile-keys 5",
      "--tile-queries 16 --tile-keys 32", "--tile-queries 100000 --tile-keys 100000"},
     {1}},
};
#define STAGES ((int)(sizeof stages / sizeof stages[0]))

/* A line of shapes.txt: name | first stage that knows it | flags of build/problem | of the stage. */
struct shape {
    char *name, *problem_flags, *stage_flags;
    int from;
};

struct settings {
    const char *build, *python, *only;
    int jobs, seconds;
    bool until_failure;
};

struct tally {
    int shapes, passed, failed;
};

__attribute__((noreturn)) static void die(const char *what, const char *which)
{
    fprintf(stderr, "grid: %s: %s\n", which, what);
    exit(1);
}

/* printf into memory that lives until the program ends; a grid is short-lived. */
__attribute__((format(printf, 1, 2))) static char *text(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    char *result = malloc((size_t)length + 1);
    if (!result)
        die("out of memory", "text");
    va_start(arguments, format);
    vsnprintf(result, (size_t)length + 1, format, arguments);
    va_end(arguments);
    return result;
}

/* Strips blanks at both ends, in place. */
static char *stripped(char *word)
{
    word += strspn(word, " \t");
    size_t length = strlen(word);
    while (length > 0 && strchr(" \t\n", word[length - 1]))
        word[--length] = '\0';
    return word;
}

/* A whole number above 0; `which` is where it stands. */
static int number(const char *word, const char *which)
{
    char *end;
    long value = strtol(word, &end, 10);
    if (end == word || *end || value < 1 || value > 1000000)
        die(text("\"%s\" is not a whole number above 0", word), which);
    return (int)value;
}

static int read_shapes(const char *path, struct shape *shapes, int most)
{
    FILE *file = fopen(path, "r");
    if (!file)
        die("cannot be opened", path);

    char line[1024];
    int count = 0;
    while (fgets(line, sizeof line, file)) {
        char *field[4] = {line};
        for (int f = 1; f < 4 && field[f - 1]; f++)
            if ((field[f] = strchr(field[f - 1], '|')))
                *field[f]++ = '\0';
        if (*stripped(line) == '#' || (*stripped(line) == '\0' && !field[1]))
            continue;
        if (!field[3] || count == most)
            die(field[3] ? "too many shapes" : "a line needs four fields, split by |", path);
        shapes[count].name = text("%s", stripped(field[0]));
        shapes[count].from = number(stripped(field[1]), path);
        shapes[count].problem_flags = text("%s", stripped(field[2]));
        shapes[count].stage_flags = text("%s", stripped(field[3]));
        count++;
    }
    fclose(file);
    if (count == 0)
        die("holds no shapes", path);
    return count;
}

/* Runs a shell command with its output in `log`; returns its exit code, 128 + signal if it was
 * killed. The alarm outlives exec and kills the command when its time is over. */
static int run(const char *command, const char *log, int seconds)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm((unsigned)seconds);
        /* mpirun reads stdin, and would take what is meant for whoever started us. */
        if (!freopen("/dev/null", "r", stdin) || !freopen(log, "w", stdout) ||
            dup2(STDOUT_FILENO, STDERR_FILENO) < 0)
            _exit(127);
        execl("/bin/sh", "sh", "-c", text("exec %s", command), (char *)NULL);
        _exit(127);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child)
        die("cannot run", command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Does the file hold this text? */
static bool holds(const char *path, const char *wanted)
{
    char line[4096];
    bool found = false;
    FILE *file = fopen(path, "r");
    while (file && !found && fgets(line, sizeof line, file))
        found = strstr(line, wanted) != NULL;
    if (file)
        fclose(file);
    return found;
}

/* Counts one check: the command must end with this exit code, and say `words` if given. */
static bool check(const struct settings *settings, struct tally *tally, const char *shape,
                  const char *command, int wanted, const char *words, const char *log)
{
    int code = run(command, log, settings->seconds);
    bool right = code == wanted && (!words || holds(log, words));
    tally->passed += right;
    tally->failed += !right;
    if (right)
        return true;

    printf("FAILED %s: exit code %d%s, not %d%s%s%s\n  %s\n", shape, code,
           code == 128 + SIGALRM ? " (out of time)" : "", wanted, words ? " with \"" : "",
           words ? words : "", words ? "\"" : "", command);
    char line[4096];
    FILE *file = fopen(log, "r");
    while (file && fgets(line, sizeof line, file))
        printf("  > %s", line);
    if (file)
        fclose(file);
    return false;
}

/* One stage in one variant on one problem. */
static void check_stage(const struct settings *settings, struct tally *tally,
                        const struct shape *shape, const struct stage *stage, int variant,
                        int ranks)
{
    const char *build = settings->build, *home = text("%s/shapes/%s", build, shape->name);
    const char *result = text("%s/%s.%d.%d", home, stage->program, variant, ranks);
    const char *log = text("%s.log", result);
    const char *launch = ranks > 1 ? text("mpirun --oversubscribe -n %d ", ranks) : "";
    const char *command = text("%s%s/%s %s %s %s/problem", launch, build, stage->program,
                               stage->variants[variant], shape->stage_flags, home);

    /* What it has not learnt it must refuse. */
    if (stage->number > 1 && stage->number < shape->from) {
        if (variant == 0)
            check(settings, tally, shape->name, text("%s %s", command, result), 2, " in stage ",
                  log);
        return;
    }
    if (!check(settings, tally, shape->name, text("%s %s", command, result), 0, NULL, log))
        return;

    /* Against the oracle: 01-naive is in double, so a millionth of what float32 may be off by. */
    check(settings, tally, shape->name,
          text("%s/compare %s %s/oracle %s/oracle %s", build,
               stage->number == 1 ? "--times 1e-6" : "", home, home, result),
          0, NULL, log);
    if (stage->number > 1)
        check(settings, tally, shape->name,
              text("%s/compare %s/oracle %s/01-naive.0.1 %s", build, home, home, result), 0, NULL,
              log);

    /* Again: the same bits. */
    const char *again = text("%s.again", result);
    if (variant == 0 &&
        check(settings, tally, shape->name, text("%s %s", command, again), 0, NULL, log))
        check(settings, tally, shape->name, text("diff -r %s %s", result, again), 0, NULL, log);
}

/* Every stage on one problem. */
static void check_shape(const struct settings *settings, struct tally *tally,
                        const struct shape *shape)
{
    for (const struct stage *stage = stages; stage < stages + STAGES; stage++)
        for (int v = 0; v < 8 && stage->variants[v]; v++)
            for (int r = 0; r < 8 && stage->ranks[r]; r++) {
                /* Later stages are held against 01-naive, so that one always runs. */
                bool wanted = !settings->only || strcmp(settings->only, stage->program) == 0;
                if ((wanted || stage->number == 1) &&
                    !(settings->until_failure && tally->failed > 0))
                    check_stage(settings, tally, shape, stage, v, stage->ranks[r]);
            }
}

/* Makes every problem, and lets one run of the oracle solve them all. */
static void make_problems(const struct settings *settings, const struct shape *shapes, int count)
{
    const char *grid = text("%s/shapes", settings->build), *list = text("%s/oracle.list", grid);
    if (run(text("rm -rf %s", grid), "/dev/null", 60) != 0 || mkdir(grid, 0777) != 0)
        die("cannot be made anew", grid);
    FILE *file = fopen(list, "w");
    if (!file)
        die("cannot be written", list);

    for (int s = 0; s < count; s++) {
        const char *home = text("%s/%s", grid, shapes[s].name), *log = text("%s.log", home);
        if (mkdir(home, 0777) != 0)
            die("cannot be made (is its name in shapes.txt twice?)", home);
        const char *command =
            text("%s/problem %s %s/problem", settings->build, shapes[s].problem_flags, home);
        if (run(command, log, settings->seconds) != 0)
            die(text("failed, see %s", log), command);
        fprintf(file, "%s %s/problem %s/oracle\n", shapes[s].stage_flags, home, home);
    }
    if (fclose(file) != 0)
        die("cannot be written", list);
    const char *oracle = text("%s tests/oracle.py --list %s", settings->python, list);
    if (run(oracle, text("%s/oracle.log", grid), 600) != 0)
        die(text("failed, see %s/oracle.log", grid), oracle);
}

static void read_command_line(int argc, char **argv, struct settings *settings)
{
    static const struct option options[] = {{"help", no_argument, NULL, 'h'},
                                            {"jobs", required_argument, NULL, 'j'},
                                            {"only", required_argument, NULL, 'o'},
                                            {"python", required_argument, NULL, 'p'},
                                            {"seconds", required_argument, NULL, 's'},
                                            {"until-failure", no_argument, NULL, 'u'},
                                            {0}};
    for (int flag; (flag = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (flag == 'j')
            settings->jobs = number(optarg, "--jobs");
        else if (flag == 'o')
            settings->only = optarg;
        else if (flag == 'p')
            settings->python = optarg;
        else if (flag == 's')
            settings->seconds = number(optarg, "--seconds");
        else if (flag == 'u')
            settings->until_failure = true;
        else {
            fprintf(flag == 'h' ? stdout : stderr,
                    "Usage: build/grid [FLAGS] BUILD SHAPES\n\n"
                    "Runs every stage in the folder BUILD on every problem of the file SHAPES.\n\n"
                    "  --jobs N         problems at once (default: one for each core)\n"
                    "  --only PROGRAM   this stage only, and 01-naive, which judges it\n"
                    "  --python PATH    a Python with NumPy (default /usr/bin/python3)\n"
                    "  --seconds S      time limit of each run (default 60)\n"
                    "  --until-failure  stop at the first failure\n");
            exit(flag == 'h' ? 0 : 2);
        }
    }
    if (argc - optind != 2) {
        fprintf(stderr, "grid: give BUILD and SHAPES; see --help\n");
        exit(2);
    }

    /* A name that is no stage would leave nothing to run. */
    bool known = !settings->only;
    for (int s = 0; s < STAGES && !known; s++)
        known = strcmp(settings->only, stages[s].program) == 0;
    if (!known)
        die("is no stage", settings->only);
}

int main(int argc, char **argv)
{
    struct settings settings = {
        .python = "/usr/bin/python3", .jobs = (int)sysconf(_SC_NPROCESSORS_ONLN), .seconds = 60};
    read_command_line(argc, argv, &settings);
    settings.build = argv[optind];

    static struct shape shapes[1000];
    int count = read_shapes(argv[optind + 1], shapes, 1000);
    make_problems(&settings, shapes, count);

    /* Each worker takes every jobs-th problem and reports its tally through the pipe. */
    int ends[2];
    if (pipe(ends) != 0)
        die("cannot be opened", "pipe");
    for (int worker = 0; worker < settings.jobs; worker++) {
        fflush(stdout);
        pid_t child = fork();
        if (child < 0)
            die("cannot fork", "worker");
        if (child > 0)
            continue;
        struct tally tally = {0};
        for (int s = worker; s < count; s += settings.jobs)
            if (!(settings.until_failure && tally.failed > 0)) {
                check_shape(&settings, &tally, &shapes[s]);
                tally.shapes++;
            }
        fflush(stdout);
        _exit(write(ends[1], &tally, sizeof tally) == sizeof tally ? 0 : 1);
    }

    /* A worker that died has not reported: its read finds the end, and that is a failure, too. */
    close(ends[1]);
    struct tally total = {0};
    for (int worker = 0; worker < settings.jobs; worker++) {
        struct tally tally;
        if (read(ends[0], &tally, sizeof tally) != sizeof tally)
            tally = (struct tally){.failed = 1};
        total.shapes += tally.shapes;
        total.passed += tally.passed;
        total.failed += tally.failed;
    }
    while (wait(NULL) > 0)
        continue;
    if (total.failed == 0 && total.shapes != count)
        die("not all problems were run", argv[optind + 1]);
    printf("grid: %d problems, %d stages in %s\n%d passed, %d failed\n", total.shapes, STAGES,
           settings.build, total.passed, total.failed);
    return total.failed > 0 || total.passed == 0;
}
