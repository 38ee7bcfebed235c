/* grid: every stage on every problem of tests/shapes.txt, on several rank counts, held against
 * the float64 oracle, against 01-naive, against the stage before it and against itself. The library
 * must give the bits of the stage before it.
 *
 * First everything runs. What an MPI stage does on one number of ranks is one job of
 * build/batch-STAGE, because to start a job takes longer than to run a small problem. Then each
 * problem is graded. Problems are made and graded by the programs beside the grid itself, whichever
 * build the stages are of. A problem that a stage has not learnt must be refused, with exit code 2
 * and the stage that teaches it. Every run has a time limit, because the likeliest bug of a ring is
 * to hang. What failed is left in BUILD/shapes/PROBLEM/, and each failure prints the commands that
 * show it again.
 */
#include <dirent.h>
#include <fcntl.h>
#include <getopt.h>
#include <libgen.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>
#include "usage.h"

enum { MOST_SHAPES = 1000, MOST_RANKS = 8, MOST_WORKERS = 64 };

/* The stages, and on how many ranks they run at most. */
static const struct stage {
    const char *program;
    int number, most_ranks;
} stages[] = {
    {"01-naive", 1, 1},   {"02-flash", 2, 1},    {"03-ring", 3, 8}, {"04-causal", 4, 8},
    {"05-striped", 5, 8}, {"06-lookback", 6, 8}, {"07-gqa", 7, 8},  {"08-library", 8, 8},
    {"09-vector", 9, 8},  {"13-slices", 13, 8},
};
enum { STAGES = sizeof stages / sizeof stages[0] };

/* The flags that change how a stage computes but not what: which stages know them, and with how
 * many ranks they are tried. A stage in rings of fewer ranks gives the bits of the plain stage
 * (the first line) on as many ranks as a ring has. */
static const char plain[] = "--tile plain";
static const struct variant {
    int first, last;
    const char *flags;
    int ranks[MOST_RANKS];
    int same_as_ranks;
} variants[] = {
    {1, 13, "", {1, 2, 3, 4, 5, 6, 8}, 0},
    {2, 2, "--tile-queries 1 --tile-keys 1", {1}, 0},
    {2, 2, "--tile-queries 16 --tile-keys 32", {1}, 0},
    {2, 2, "--tile-queries 100000 --tile-keys 100000", {1}, 0},
    {2, 13, "--tile-queries 3 --tile-keys 5", {1, 3}, 0},
    {3, 13, "--ring-size 2", {4, 6}, 2},
    {3, 13, "--ring-size 3", {6}, 3},
    {5, 13, "--layout striped", {1, 2, 3, 5, 8}, 0},
    {5, 13, "--layout striped --bucket 1", {2, 3}, 0},
    {5, 13, "--layout striped --bucket 2", {3, 4}, 0},
    {5, 13, "--layout striped --bucket 7 --tile-queries 3 --tile-keys 5", {2, 5}, 0},
    {5, 13, "--layout striped --bucket 1000", {4, 8}, 0},
    {5, 13, "--layout striped --bucket 2 --ring-size 3", {6}, 0},
    {5, 13, "--layout zigzag", {1, 2, 3, 4, 8}, 0},
    {5, 13, "--layout zigzag --tile-queries 3 --tile-keys 5", {5}, 0},
    {5, 13, "--layout zigzag --ring-size 2", {4}, 0},
    {9, 13, plain, {1, 3}, 0},
    {9, 13, "--threads 2", {1, 2}, 0},
    {9, 13, "--threads 5", {1, 3}, 0},
    {13, 13, "--deal documents", {1, 2, 3, 4, 5, 6, 7, 8}, 0},
    {13, 13, "--deal documents --tile plain --tile-queries 3 --tile-keys 5", {3}, 0},
    {13, 13, "--deal documents --ring-size 2", {4}, 0},
};
enum { VARIANTS = sizeof variants / sizeof variants[0] };

/* A line of shapes.txt: name | first stage that knows it | flags of build/problem | of the
 * stage. */
static struct shape {
    char *name, *problem_flags, *stage_flags;
    int from;
} shapes[MOST_SHAPES];
static int shape_count;

/* One stage in one variant on one problem: for its result, for the same bits again, in a job of its
 * own, or to be refused. */
enum purpose { FIRST, AGAIN, ALONE, REFUSED, PURPOSES };
struct run {
    const struct stage *stage;
    const struct variant *variant;
    const struct shape *shape;
    int ranks;
    enum purpose purpose;
};

static struct settings {
    const char *build; /* of the stages */
    const char *tools; /* where problem and compare are: where the grid itself is */
    const char *results, *python, *only;
    const char *ranks; /* ",1,3,"; NULL: all */
    int workers, seconds;
    bool once, pairs, until_failure;
} settings = {.python = "/usr/bin/python3", .seconds = 120};

/* What the workers have seen so far, all together; and how many jobs of MPI stages there were. */
static atomic_int passed, failed, rings;

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

static void read_shapes(const char *path)
{
    FILE *file = fopen(path, "r");
    if (!file)
        die("cannot be opened", path);

    char line[1024];
    while (fgets(line, sizeof line, file)) {
        char *field[4] = {line};
        for (int f = 1; f < 4 && field[f - 1]; f++)
            if ((field[f] = strchr(field[f - 1], '|')))
                *field[f]++ = '\0';
        if (*stripped(line) == '#' || (*stripped(line) == '\0' && !field[1]))
            continue;
        if (!field[3] || shape_count == MOST_SHAPES)
            die(field[3] ? "too many shapes" : "a line needs four fields, split by |", path);
        shapes[shape_count++] = (struct shape){.name = text("%s", stripped(field[0])),
                                               .from = number(stripped(field[1]), path),
                                               .problem_flags = text("%s", stripped(field[2])),
                                               .stage_flags = text("%s", stripped(field[3]))};
    }
    fclose(file);
    if (shape_count == 0)
        die("holds no shapes", path);
}

/* Runs a command, split at blanks, with its output in `log`; returns its exit code, or 128 and the
 * signal that ended it. Its time is over with an alarm, which outlives exec: to start `timeout`,
 * and a shell, takes as long as to grade a result. Only mpirun has to be asked to end: then it ends
 * its ranks, too, and `timeout` returns 124; in the foreground, so that Ctrl-C reaches them. */
static int run(const char *command, const char *log, int seconds)
{
    bool is_job = strncmp(command, "mpirun ", 7) == 0;
    char *line =
        is_job ? text("timeout --foreground -k 5 %d %s", seconds, command) : text("%s", command);
    char **words = calloc(strlen(line) / 2 + 2, sizeof *words), *rest = line;
    for (int w = 0; words && (words[w] = strtok_r(rest, " ", &rest));)
        w++;

    /* mpirun reads stdin, and would take what is meant for whoever started us. The child of a
     * program with threads may do little but exec. */
    int status, in = open("/dev/null", O_RDONLY | O_CLOEXEC),
                out = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    pid_t child = fork();
    if (child == 0) {
        alarm(is_job ? 0 : (unsigned)seconds);
        if (dup2(in, 0) == 0 && dup2(out, 1) == 1 && dup2(out, 2) == 2)
            execvp(words[0], words);
        _exit(127);
    }
    if (!words || in < 0 || out < 0 || child < 0 || waitpid(child, &status, 0) != child)
        die("cannot run", command);
    close(in);
    close(out);
    free(words);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* How many lines of a file hold this text? */
static int lines_with(const char *path, const char *wanted)
{
    char line[4096];
    int count = 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        count += strstr(line, wanted) != NULL;
    if (file)
        fclose(file);
    return count;
}

/* After a failure there may be nothing more to do. */
static bool done(void)
{
    return settings.until_failure && failed > 0;
}

/* The folder of a problem and of a result, and the words of a command line. */
static const char *home(const struct shape *shape)
{
    return text("%s/%s", settings.results, shape->name);
}

static const char *result(const struct run *r)
{
    static const char *const endings[PURPOSES] = {"", ".again", ".alone", ".refused"};
    return text("%s/%s.%d.%d%s", home(r->shape), r->stage->program, (int)(r->variant - variants),
                r->ranks, endings[r->purpose]);
}

static const char *words(const struct run *r)
{
    return text("%s %s %s/problem %s", r->variant->flags, r->shape->stage_flags, home(r->shape),
                result(r));
}

static const char *mpirun(int ranks)
{
    return text("mpirun --oversubscribe --bind-to none -n %d", ranks);
}

/* The command of the stage itself; the early ones know nothing of MPI. */
static const char *command(const struct run *r)
{
    return text("%s %s/%s %s", r->stage->most_ranks > 1 ? mpirun(r->ranks) : "", settings.build,
                r->stage->program, words(r));
}

/* Whether the run has left a result, which can be graded. */
static bool *made(const struct run *r)
{
    static bool table[MOST_SHAPES][STAGES][VARIANTS][MOST_RANKS + 1][PURPOSES];
    return &table[r->shape - shapes][r->stage - stages][r->variant - variants][r->ranks]
                 [r->purpose];
}

/* Counts one failure. Shows the commands that show it again, that of the stage first (of no
 * stage, if r is NULL), and the beginning of what was printed. */
static void fail(const struct run *r, int exit_code, const char *wanted, const char *last_command,
                 const char *log)
{
    /* timeout's own code, and what an alarm leaves: here, or of a rank, by mpirun. */
    bool late = exit_code == 124 || exit_code == 128 + SIGALRM;
    const char *first = r ? command(r) : last_command;
    char line[4096];
    FILE *file = fopen(log, "r");
    failed++;
    flockfile(stdout);
    printf("FAILED %s: exit code %d%s, not %s\n  %s\n", r ? r->shape->name : "a job", exit_code,
           late ? " (out of time)" : "", wanted, first);
    if (strcmp(first, last_command) != 0)
        printf("  %s\n", last_command);
    for (int l = 0; file && l < 30 && fgets(line, sizeof line, file); l++)
        printf("  > %s", line);
    funlockfile(stdout);
    if (file)
        fclose(file);
}

/* Counts one check of a run: the command must end with this exit code and, if `words` are given,
 * one line of what it prints must hold them. Returns whether it does. */
static bool check(const struct run *r, const char *its_command, int wanted,
                  const char *words_wanted)
{
    const char *log = text("%s.log", result(r));
    int code = run(its_command, log, settings.seconds);
    bool right = code == wanted && (!words_wanted || lines_with(log, words_wanted) == 1);
    if (right)
        passed++;
    else
        fail(r, code,
             words_wanted ? text("%d and one line with \"%s\"", wanted, words_wanted) : "0",
             its_command, log);
    return right;
}

/* Are there two files, with the same bytes? */
static bool same_file(const char *one, const char *other)
{
    char a[4096], b[sizeof a];
    FILE *files[] = {fopen(one, "r"), fopen(other, "r")};
    bool same = files[0] && files[1];
    for (size_t length = 1; same && length > 0;) {
        length = fread(a, 1, sizeof a, files[0]);
        same = fread(b, 1, sizeof b, files[1]) == length && memcmp(a, b, length) == 0 &&
               !ferror(files[0]) && !ferror(files[1]);
    }
    for (int f = 0; f < 2; f++)
        if (files[f])
            fclose(files[f]);
    return same;
}

/* Is every file of one folder, but one of this name, in the other, too, with the same bytes? */
static bool has_files(const char *folder, const char *other, const char *but)
{
    DIR *open = opendir(folder);
    bool has = open != NULL;
    for (struct dirent *entry; has && (entry = readdir(open));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
            strcmp(entry->d_name, but) != 0)
            has = same_file(text("%s/%s", folder, entry->d_name),
                            text("%s/%s", other, entry->d_name));
    if (open)
        closedir(open);
    return has;
}

/* What two results need not have in common: the gradient of a sink is a sum over all ranks, and
 * rings of another size have other parts of it. */
static const char *but_for(struct run one, struct run other)
{
    return one.variant->same_as_ranks == other.variant->same_as_ranks ? "none" : "d_sink.npy";
}

/* Are there two results, the same to the bit? */
static bool same(struct run one, struct run other)
{
    const char *but = but_for(one, other);
    return *made(&one) && *made(&other) && has_files(result(&one), result(&other), but) &&
           has_files(result(&other), result(&one), but);
}

/* Two results must be the same to the bit, if there are two. To start a diff takes longer than to
 * look, so it only says how they differ. */
static void check_same(struct run one, struct run other)
{
    if (same(one, other))
        passed++;
    else if (*made(&one) && *made(&other))
        check(&one, text("diff -r -x %s %s %s", but_for(one, other), result(&one), result(&other)),
              0, NULL);
}

/* To save time, stages take turns: true for one half of these pairs of numbers in 03 and 04, for
 * the other half in 05 and 06, and so on. Two neighbours must have something to compare. */
static bool has_turn(const struct stage *stage, int64_t one, int64_t other)
{
    return (one + other + (stage->number + 1) / 2) % 2 == 0;
}

/* With --pairs: which of the stages of several ranks that know this variant and this problem tries
 * both. So every variant meets every problem, and every stage meets every variant and, plain, every
 * problem. */
static int dealt(const struct variant *variant, const struct shape *shape)
{
    int first = 3;
    first = first < variant->first ? variant->first : first;
    first = first < shape->from ? shape->from : first;
    int last =
        shape->from == 13 || variant->last < 9 ? variant->last : 9; /* there is no 10 to 12 */
    if (first > last)
        return 0;
    return first + (int)((variant - variants + (shape - shapes)) % (last - first + 1));
}

/* Is this variant of this problem tried on this many ranks? The plain stage tries every problem;
 * variants and problems that are new in this stage are tried with all that there is. Without slices
 * 13-slices is the stage before it. */
static bool tries(const struct stage *stage, const struct variant *variant,
                  const struct shape *shape, int ranks)
{
    bool found = false;
    for (int r = 0; r < MOST_RANKS; r++)
        found = found || variant->ranks[r] == ranks;
    if (!found || variant->first > stage->number || stage->number > variant->last ||
        (stage->number > 1 && stage->number < shape->from))
        return false;
    if (settings.pairs && variant != variants && stage->most_ranks > 1)
        return stage->number == dealt(variant, shape);
    if (stage->number == 13 && shape->from < 13)
        return variant == variants && ranks <= 3 && has_turn(stage, ranks, shape - shapes);
    bool is_new = shape->from == stage->number && stage->number < 13; /* of 13, half are enough */
    return variant == variants || variant->first == stage->number || is_new ||
           has_turn(stage, variant - variants, shape - shapes);
}

/* Is this variant of it tried twice? Of the plain stage every other problem, on 01 and 02 all; with
 * --once none. */
static bool repeats(const struct stage *stage, const struct variant *variant,
                    const struct shape *shape, int ranks)
{
    return !settings.once && variant == variants &&
           (stage->most_ranks == 1 || has_turn(stage, shape - shapes, ranks));
}

/* Lists what a stage does on this many ranks, here and in a file. Returns how many lines that
 * are. */
static int list_lines(const struct stage *stage, int ranks, struct run *lines, const char *list)
{
    int count = 0;
    for (const struct shape *shape = shapes; shape < shapes + shape_count; shape++)
        for (const struct variant *v = variants; v < variants + VARIANTS; v++)
            for (enum purpose p = FIRST; p <= (repeats(stage, v, shape, ranks) ? AGAIN : FIRST);
                 p++)
                if (tries(stage, v, shape, ranks))
                    lines[count++] = (struct run){stage, v, shape, ranks, p};

    FILE *file = fopen(list, "w");
    for (int line = 0; file && line < count; line++)
        fprintf(file, "%s\n", words(&lines[line]));
    if (!file || fclose(file) != 0)
        die("cannot be written", list);
    return count;
}

/* Starts a job with line `next` of its list. Returns at which line it ended: `count` if all are
 * done, -1 if there is no telling. */
static int start_job(const struct run *lines, int count, const char *list, int next)
{
    const char *at = text("%s.at", list), *log = text("%s.log", list);
    const char *batch = text("%s %s/batch-%s %s %d %d", mpirun(lines->ranks), settings.build,
                             lines->stage->program, list, next, settings.seconds);
    remove(at);
    int code = run(batch, log, 2 * settings.seconds + count), line;
    FILE *file = fopen(at, "r");
    if (!file || fscanf(file, "%d", &line) != 1 || line < next || line > count)
        line = -1;
    if (file)
        fclose(file);

    if (line >= 0 && line < count)
        fail(&lines[line], code, "0", command(&lines[line]), log);
    else if (line < 0 || code != 0)
        fail(NULL, code, "0", batch, log);
    return line;
}

/* Runs a job. After a line that failed it starts again behind it; but three failures may be three
 * hangs, and then the rest is given up. */
static void run_job(const struct run *lines, int count, const char *list)
{
    int next = 0;
    for (int failures = 0; next < count && failures < 3 && !done(); failures++) {
        int end = start_job(lines, count, list, next);
        if (end < 0)
            break;
        passed += end - next;
        for (; next < end; next++)
            *made(&lines[next]) = true;
        next++;
    }
    if (next < count && !done()) {
        printf("FAILED %s on %d ranks: the last %d of %d runs were not made\n",
               lines->stage->program, lines->ranks, count - next, count);
        failed += count - next;
    }
}

/* Everything that one stage does on one number of ranks. */
static void work_on_stage(int item)
{
    const struct stage *stage = &stages[item / MOST_RANKS];
    int ranks = item % MOST_RANKS + 1;
    bool judge = stage->most_ranks == 1; /* it needs no MPI; --only and --ranks leave it alone */
    if (ranks > stage->most_ranks ||
        (settings.only && !judge && strcmp(settings.only, stage->program) != 0) ||
        (settings.ranks && !judge && !strstr(settings.ranks, text(",%d,", ranks))))
        return;
    const char *list = text("%s/%s.%d", settings.results, stage->program, ranks);
    struct run *lines = calloc((size_t)(shape_count * (VARIANTS + 1)), sizeof *lines);
    int count = lines ? list_lines(stage, ranks, lines, list) : 0;
    if (count == 0)
        return;
    rings += !judge;
    for (int line = 0; judge && line < count && !done(); line++)
        *made(&lines[line]) = check(&lines[line], command(&lines[line]), 0, NULL);
    if (!judge)
        run_job(lines, count, list);

    /* On one number of ranks the last run once more, by the stage itself: what one line of many
     * does, it must do alone. */
    bool by_itself = ranks == 3;
    struct run last = lines[count - 1], alone = last;
    alone.purpose = ALONE;
    if (by_itself && !judge && *made(&last) && !done()) {
        *made(&alone) = check(&alone, command(&alone), 0, NULL);
        check_same(last, alone);
    }
    free(lines);

    /* There, too, what the stage must refuse, all ranks with one voice: the first problem of each
     * stage to come. The problems stand in the order of the stages. */
    for (int s = 0, from = stage->number; s < shape_count && (judge || by_itself); s++)
        if (stage->number > 1 && shapes[s].from > from && !done()) {
            struct run refused = {stage, variants, &shapes[s], ranks, REFUSED};
            check(&refused, command(&refused), 2, " in stage ");
            from = shapes[s].from;
        }
}

/* Holds results against `want`: all at once and, if something is wrong, one by one, to say what. */
static void grade(const char *flags, const char *want, const struct run *got, int count)
{
    const struct shape *shape = got->shape; /* set even if count is 0 */
    const char *compare =
        text("%s/compare %s %s/oracle %s", settings.tools, flags, home(shape), want);
    const char *log = text("%s/compare.log", home(shape)), *all = compare;
    for (int g = 0; g < count; g++)
        all = text("%s %s", all, result(&got[g]));
    int code = count > 0 ? run(all, log, settings.seconds) : 0;
    if (code == 0) {
        passed += count;
        return;
    }

    bool right = true;
    for (int g = 0; g < count && !done(); g++)
        right = check(&got[g], text("%s %s", compare, result(&got[g])), 0, NULL) && right;
    if (right && !done())
        fail(NULL, code, "0, though each alone is right", all, log);
}

/* Grades what one stage has made of one problem. */
static void grade_stage(const struct stage *stage, const struct shape *shape)
{
    struct run all[MOST_RANKS * VARIANTS + 1], got[MOST_RANKS * VARIANTS + 1];
    int all_count = 0, count = 0;
    for (int ranks = 1; ranks <= stage->most_ranks; ranks++)
        for (const struct variant *v = variants; v < variants + VARIANTS; v++) {
            struct run r = {stage, v, shape, ranks, FIRST}, before = r;
            before.stage -= stage->number > 1;
            all[all_count] = got[count] = r;
            all_count += *made(&r);

            /* The library has the bits of the stage before, and so has 13-slices. Who has them has
             * its grades, too. So has 09-vector on plain tiles; and any number of threads gives the
             * same bits. */
            struct run unthreaded = r;
            unthreaded.variant = variants;
            if (stage->number == 9 && v->flags == plain)
                check_same(r, (struct run){stage - 1, variants, shape, ranks, FIRST});
            else if (stage->number >= 9 && v->first == 9 && v->flags != plain)
                check_same(r, unthreaded);
            else if (stage->number == 8 || stage->number == 13)
                check_same(r, before);
            count += *made(&r) && (stage->number == 1 || !same(r, before));
        }

    /* Against the oracle: 01-naive is in double, so a millionth of what float32 may be off by. */
    grade(stage->number == 1 ? "--times 1e-6" : "", text("%s/oracle", home(shape)), got, count);
    struct run naive = {&stages[0], variants, shape, 1, FIRST};
    if (stage->number > 1 && *made(&naive))
        grade("", result(&naive), got, count);

    /* Against the stage before, on as many ranks; 02-flash, before 03-ring, has only one. */
    for (int first = 0, end; first < count; first = end) {
        int ranks = got[first].ranks;
        for (end = first; end < count && got[end].ranks == ranks;)
            end++;
        struct run before = {stage - 1, variants, shape, stage->number == 3 ? 1 : ranks, FIRST};
        if (stage->number > 2 && *made(&before))
            grade("", result(&before), got + first, end - first);
    }

    /* The same bits: again; on one rank as 02-flash; in small rings as in one ring alone. */
    for (struct run *r = all; r < all + all_count && !done(); r++) {
        check_same(*r, (struct run){stage, r->variant, shape, r->ranks, AGAIN});
        if (r->ranks == 1 && stage->number > 2 && stage->number < 9)
            check_same(*r, (struct run){&stages[1], r->variant, shape, 1, FIRST});
        if (r->variant->same_as_ranks > 0)
            check_same(*r, (struct run){stage, variants, shape, r->variant->same_as_ranks, FIRST});
    }
}

/* Grades all that was made of one problem. What is all right goes: it would be many megabytes. */
static void work_on_shape(int item)
{
    for (const struct stage *stage = stages; stage < stages + STAGES && !done(); stage++)
        grade_stage(stage, &shapes[item]);
    if (failed == 0)
        run(text("find %s -mindepth 1 -maxdepth 1 -name [0-9]* -exec rm -r {} +",
                 home(&shapes[item])),
            "/dev/null", settings.seconds);
}

/* Work for all workers: items 0..count-1. Each takes the next one as soon as it is free. */
struct work {
    void (*work_on)(int item);
    int count;
    atomic_int next;
};

static int worker(void *shared)
{
    struct work *work = shared;
    for (int item; (item = work->next++) < work->count && !done();)
        work->work_on(item);
    return 0;
}

static void share_out(void (*work_on)(int item), int count)
{
    thrd_t workers[MOST_WORKERS];
    struct work work = {work_on, count, 0};
    for (int w = 0; w < settings.workers; w++)
        if (thrd_create(&workers[w], worker, &work) != thrd_success)
            die("cannot start", "a worker");
    for (int w = 0; w < settings.workers; w++)
        thrd_join(workers[w], NULL);
}

/* Makes every problem, and lets one run of the oracle solve them all. */
static void make_problems(void)
{
    bool given = settings.results != NULL;
    if (!given)
        settings.results = text("%s/shapes", settings.build);
    if ((!given && run(text("rm -rf %s", settings.results), "/dev/null", 60) != 0) ||
        mkdir(settings.results, 0777) != 0)
        die("cannot be made anew", settings.results);
    const char *list = text("%s/oracle.list", settings.results);
    FILE *file = fopen(list, "w");
    if (!file)
        die("cannot be written", list);

    for (const struct shape *shape = shapes; shape < shapes + shape_count; shape++) {
        const char *log = text("%s.log", home(shape));
        if (mkdir(home(shape), 0777) != 0)
            die("cannot be made (is its name in shapes.txt twice?)", home(shape));
        const char *make =
            text("%s/problem %s %s/problem", settings.tools, shape->problem_flags, home(shape));
        if (run(make, log, settings.seconds) != 0)
            die(text("failed, see %s", log), make);
        fprintf(file, "%s %s/problem %s/oracle\n", shape->stage_flags, home(shape), home(shape));
    }
    if (fclose(file) != 0)
        die("cannot be written", list);
    const char *oracle = text("%s tests/rig/oracle.py --list %s", settings.python, list);
    const char *log = text("%s/oracle.log", settings.results);
    if (run(oracle, log, 600) != 0)
        die(text("failed, see %s", log), oracle);
}

static const char usage[] =
    "Usage: build/grid [FLAGS] BUILD SHAPES\n\n"
    "Runs every stage in the folder BUILD on every problem of the file SHAPES.\n\n"
    "  --jobs N         jobs at once (default: one for each core)\n"
    "  --once           nothing a second time, for the same bits\n"
    "  --only PROGRAM   this stage only, and 01-naive and 02-flash, which judge it\n"
    "  --pairs          each variant of a problem in one of the stages that know both\n"
    "  --python PATH    a Python with NumPy (default /usr/bin/python3)\n"
    "  --ranks P,P,...  MPI stages on these numbers of ranks only\n"
    "  --results FOLDER where problems and results go: a new folder (default BUILD/shapes)\n"
    "  --seconds S      time limit of each run (default 120)\n"
    "  --until-failure  stop at the first failure\n"
    "  -h, --help       this text; --version: the version\n";

static void read_command_line(int argc, char **argv)
{
    static const struct option options[] = {
        {"jobs", required_argument, NULL, 'j'},    {"once", no_argument, NULL, '1'},
        {"only", required_argument, NULL, 'o'},    {"pairs", no_argument, NULL, '2'},
        {"python", required_argument, NULL, 'p'},  {"ranks", required_argument, NULL, 'r'},
        {"results", required_argument, NULL, 'R'}, {"seconds", required_argument, NULL, 's'},
        {"until-failure", no_argument, NULL, 'u'}, {0}};
    answer_usage(argc, argv, "grid", usage);
    settings.workers = (int)sysconf(_SC_NPROCESSORS_ONLN);
    for (int flag; (flag = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (flag == 'j')
            settings.workers = number(optarg, "--jobs");
        else if (flag == '1')
            settings.once = true;
        else if (flag == '2')
            settings.pairs = true;
        else if (flag == 'o')
            settings.only = optarg;
        else if (flag == 'p')
            settings.python = optarg;
        else if (flag == 'r')
            settings.ranks = text(",%s,", optarg);
        else if (flag == 'R')
            settings.results = optarg;
        else if (flag == 's')
            settings.seconds = number(optarg, "--seconds");
        else if (flag == 'u')
            settings.until_failure = true;
        else {
            fputs(usage, stderr);
            exit(2);
        }
    }
    if (argc - optind != 2) {
        fprintf(stderr, "grid: give BUILD and SHAPES; see --help\n");
        exit(2);
    }

    if (settings.workers > MOST_WORKERS)
        settings.workers = MOST_WORKERS;

    /* A name that is no stage would leave nothing to run. */
    bool known = !settings.only;
    for (int s = 0; s < STAGES && !known; s++)
        known = strcmp(settings.only, stages[s].program) == 0;
    if (!known)
        die("is no stage", settings.only);
}

/* Open MPI wants to be told that root may run it, and short paths for its sockets. What it never
 * frees is no leak of ours. */
static void set_environment(void)
{
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("TMPDIR", "/tmp", 1);
    setenv("LSAN_OPTIONS", "suppressions=tests/lsan.supp:print_suppressions=0", 1);
}

int main(int argc, char **argv)
{
    read_command_line(argc, argv);
    settings.build = argv[optind];
    char *self = text("%s", argv[0]);
    settings.tools = dirname(self);
    set_environment();
    read_shapes(argv[optind + 1]);
    make_problems();

    share_out(work_on_stage, STAGES * MOST_RANKS);
    if (!done())
        share_out(work_on_shape, shape_count);
    if (settings.ranks && rings == 0)
        die("nothing is tried on these numbers of ranks", "--ranks");
    printf("grid: %d problems, %d stages in %s\n%d passed, %d failed\n", shape_count, STAGES,
           settings.build, (int)passed, (int)failed);
    return failed > 0 || passed == 0;
}
