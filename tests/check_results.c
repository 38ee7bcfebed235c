/* check_results: RESULT is what one run made, whole, whatever happens while results get names.
 *
 * The programs run here without attention: stage_open, rows that are all the run's own number, and
 * stage_close, in a process of their own. The system calls that create, name and remove files are
 * defined below as well: a run can be killed at each of them, be told of an error, or stop there
 * while another one goes on. Every one has the same process id, as runs in two containers may.
 */

/* For renameat2. */
#define _GNU_SOURCE

#include "files.h"
#include "stage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 2, M = 3, D = 2 };
/* Those of a run without sinks. */
static const char *const files[] = {"o", "lse", "dq", "dk", "dv"};
enum { RESULTS = sizeof files / sizeof *files };
static char problem[2048], result[2048], notes[2048];

/* ---- The system calls. */

static bool running;                               /* this process is a program */
static enum { NOTHING, KILL, FAIL, STOP } trouble; /* of this process */
static int trouble_at;                             /* the call, counted from 1 */
static int *calls;                                 /* so far; the parent sees it, too */

/* Whether this call must fail. */
static bool call(void)
{
    if (!running || ++*calls != trouble_at || trouble == NOTHING)
        return false;
    if (trouble == KILL)
        raise(SIGKILL);
    if (trouble == STOP)
        raise(SIGSTOP);
    errno = EIO;
    return trouble == FAIL;
}

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags)
{
    if (call())
        return -1;
    return (int)syscall(SYS_renameat2, from_at, from, to_at, to, flags);
}

int renameat(int from_at, const char *from, int to_at, const char *to)
{
    return call() ? -1 : (int)syscall(SYS_renameat2, from_at, from, to_at, to, 0);
}

int rename(const char *from, const char *to)
{
    return renameat(AT_FDCWD, from, AT_FDCWD, to);
}

int mkdirat(int at, const char *path, mode_t mode)
{
    return call() ? -1 : (int)syscall(SYS_mkdirat, at, path, mode);
}

int mkdir(const char *path, mode_t mode)
{
    return mkdirat(AT_FDCWD, path, mode);
}

int unlinkat(int at, const char *path, int flags)
{
    return call() ? -1 : (int)syscall(SYS_unlinkat, at, path, flags);
}

int unlink(const char *path)
{
    return unlinkat(AT_FDCWD, path, 0);
}

int rmdir(const char *path)
{
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

int flock(int file, int how)
{
    return call() ? -1 : (int)syscall(SYS_flock, file, how);
}

pid_t getpid(void)
{
    return running ? 42 : (pid_t)syscall(SYS_getpid);
}

/* ---- Runs. */

/* What a run finds at RESULT, and how it is. */
enum {
    NEW,          /* nothing */
    EARLIER,      /* results of run 1 */
    FORWARD_ONLY, /* results of run 1, but the runs have no gradients */
    PLACES
};

struct run {
    char number; /* all its results are this */
    bool forward_only;
    const char *trace;
    bool waits; /* stops between stage_open and stage_close, until SIGCONT */
    int (*gather)(int64_t mine, int64_t *all, double timeout); /* NULL: it is one process alone */
};

/* Runs the program in this process, and ends it. */
__attribute__((noreturn)) static void compute(struct run run, FILE *err)
{
    char *words[7] = {"stage", problem, result};
    int count = 3;
    if (run.forward_only)
        words[count++] = "--forward-only";
    if (run.trace) {
        words[count++] = "--trace";
        words[count++] = (char *)(uintptr_t)run.trace; /* getopt does not change it */
    }
    dup2(open("/dev/null", O_WRONLY), STDOUT_FILENO);
    dup2(fileno(err), STDERR_FILENO);
    running = true;
    *calls = 0;

    static struct stage stage;
    stage = (struct stage){.program = "stage",
                           .number = 3,
                           .about = "",
                           .world = stage_alone,
                           .config = RA_CONFIG_INIT,
                           .result_type = NPY_FLOAT32};
    if (run.gather) {
        stage.world.ranks = 2;
        stage.world.gather = run.gather;
    }
    stage_open_in(&stage, count, words);
    stage.config.timeout = 0.05;
    if (run.waits)
        raise(SIGSTOP);
    float rows[M * D];
    for (int e = 0; e < M * D; e++)
        rows[e] = run.number;
    for (int r = 0; r < (run.forward_only ? STAGE_DQ : RESULTS); r++)
        stage_write(&stage, (enum stage_result)r, rows);
    exit(stage_close(&stage));
}

struct process {
    pid_t id;
    FILE *err;
};

static struct process start(struct run run)
{
    struct process process = {.err = tmpfile()};
    ck_assert_ptr_nonnull(process.err);
    process.id = fork();
    ck_assert_int_ge(process.id, 0);
    if (process.id == 0)
        compute(run, process.err);
    return process;
}

/* The exit code, or minus the signal that ended it. What fails says so in one line. */
static int finish(struct process process)
{
    int status;
    char text[2000] = "";
    ck_assert_int_eq(waitpid(process.id, &status, 0), process.id);
    rewind(process.err);
    text[fread(text, 1, sizeof text - 1, process.err)] = '\0';
    fclose(process.err);
    if (WIFSIGNALED(status))
        return -WTERMSIG(status);
    int code = WEXITSTATUS(status);
    if (code == 0)
        ck_assert_msg(text[0] == '\0', "exit code 0, but: %s", text);
    else
        ck_assert_msg(strncmp(text, "stage: ", 7) == 0 && strcspn(text, "\n") == strlen(text) - 1,
                      "exit code %d, not one line: \"%s\"", code, text);
    return code;
}

/* Waits until the process has stopped. False if it has ended instead. */
static bool stopped(struct process process)
{
    siginfo_t info;
    ck_assert_int_eq(waitid(P_PID, (id_t)process.id, &info, WSTOPPED | WEXITED | WNOWAIT), 0);
    return info.si_code == CLD_STOPPED;
}

static int run(struct run what)
{
    return finish(start(what));
}

/* ---- What stands there. */

/* Which run each of the files in RESULT is of, as "11111"; '-' is none, '?' neither. */
struct found {
    char text[RESULTS + 1];
};

static struct found look(void)
{
    struct found found = {"-----"};
    for (int r = 0; r < RESULTS; r++) {
        struct npy file;
        char path[2200];
        snprintf(path, sizeof path, "%s/%s.npy", result, files[r]);
        if (access(path, F_OK) != 0)
            continue;
        float rows[M * D] = {0};
        bool good = npy_open(&file, path) &&
                    npy_read(&file, (struct npy_slice){0, 0, 0, 1, 1}, NPY_FLOAT32, rows);
        for (int64_t e = 0; good && e < npy_elements(&file); e++)
            good = rows[e] == rows[0];
        npy_close(&file);
        found.text[r] = good && rows[0] > 0 && rows[0] < 10 ? (char)('0' + (int)rows[0]) : '?';
    }
    return found;
}

/* Whether all five are of this run, or without gradients o and lse; run 0 leaves nothing. */
static bool is_of(struct found found, char number, bool forward_only)
{
    const char *want[] = {"-----", "11111", "22222", "33333"};
    const char *forward[] = {"-----", "11---", "22---", "33---"};
    return strcmp(found.text, (forward_only ? forward : want)[(int)number]) == 0;
}

/* How many hidden names there are, in RESULT and beside it. */
static int hidden(void)
{
    return scratch_hidden(folder) + scratch_hidden(result);
}

/* ---- Where runs begin. */

/* Makes the file PLACE/NAME.npy (1, rows, 1, D), or lse (1, 1, rows), of this number. */
static void save(const char *place, const char *name, int64_t rows, char number)
{
    char path[2100];
    snprintf(path, sizeof path, "%s/%s.npy", place, name);
    bool is_lse = strcmp(name, "lse") == 0;
    int64_t shape[] = {1, is_lse ? 1 : rows, is_lse ? rows : 1, D};
    float numbers[M * D];
    for (int e = 0; e < M * D; e++)
        numbers[e] = number;
    write_array(path, NPY_FLOAT32, is_lse ? 3 : 4, shape, NPY_FLOAT32, numbers);
}

static void make_folders(void)
{
    scratch_make(folder, sizeof folder, NULL, "check-results");
    calls = mmap(NULL, sizeof *calls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    strcpy(problem, path_of("problem"));
    strcpy(result, path_of("result"));
    strcpy(notes, path_of("result/notes.txt"));
    ck_assert_int_eq(mkdir(problem, 0777), 0);
    const char *const inputs[] = {"q", "do", "k", "v"};
    for (int f = 0; f < 4; f++)
        save(problem, inputs[f], f < 2 ? N : M, 0);
}

static void remove_folders(void)
{
    scratch_remove(folder);
}

/* Puts into RESULT what the place has, in the place of anything else. */
static void prepare(int place)
{
    trouble = NOTHING;
    scratch_remove(result);
    if (place != NEW)
        ck_assert_int_eq(mkdir(result, 0777), 0);
    for (int r = 0; r < RESULTS && place != NEW; r++)
        save(result, files[r], r < STAGE_DK ? N : M, 1);
}

/* After a run 3 that goes well, all is of run 3, and nothing is left of the others. */
static void check_next(int place, int at)
{
    bool forward_only = place == FORWARD_ONLY;
    trouble = NOTHING;
    ck_assert_int_eq(run((struct run){.number = 3, .forward_only = forward_only}), 0);
    ck_assert_msg(is_of(look(), 3, forward_only), "call %d, then run 3: %s", at, look().text);
    ck_assert_msg(hidden() == 0, "call %d, then run 3: %d hidden names", at, hidden());
}

/* ---- The tests, one for every place. */

TESTS(killed_at_each_call, 0, PLACES)
{
    bool forward_only = _i == FORWARD_ONLY, ended = false;
    int times = 0, at = 1;
    for (; !ended; at++) {
        prepare(_i);
        trouble = KILL;
        trouble_at = at;
        int code = run((struct run){.number = 2, .forward_only = forward_only});
        struct found found = look();
        ended = code == 0;
        ck_assert_int_eq(code, ended ? 0 : -SIGKILL);
        bool old = is_of(found, _i == NEW ? 0 : 1, false), new = is_of(found, 2, forward_only);
        ck_assert_msg(ended ? new : old || new, "killed at call %d: %s", at, found.text);
        times += new;
        check_next(_i, at);
    }

    /* Some kills came before the names, some after. */
    ck_assert_int_ge(times, 1);
    ck_assert_int_ge(at, times + 3);
}

TESTS(errors_at_each_call, 0, PLACES)
{
    bool forward_only = _i == FORWARD_ONLY;
    for (int at = 1, count = 1; at <= count; at++) {
        prepare(_i);
        trouble = FAIL;
        trouble_at = at;
        int code = run((struct run){.number = 2, .forward_only = forward_only});
        count = *calls;
        struct found found = look();
        ck_assert_msg(code == 0   ? is_of(found, 2, forward_only)
                      : code == 1 ? is_of(found, _i == NEW ? 0 : 1, false)
                                  : false,
                      "an error at call %d: exit code %d, %s", at, code, found.text);
    }
}

/* One run stops at each of its calls, and another one comes and goes meanwhile. */
TESTS(two_runs, 0, PLACES)
{
    bool forward_only = _i == FORWARD_ONLY, ended = false;
    for (int at = 1; !ended; at++) {
        prepare(_i);
        trouble = STOP;
        trouble_at = at;
        struct process one = start((struct run){.number = 2});
        ended = !stopped(one);
        trouble = NOTHING;
        int code = run((struct run){.number = 3, .forward_only = forward_only});
        struct found found = look();
        ck_assert_msg(code == 0 && is_of(found, 3, forward_only),
                      "stopped at call %d: the other: exit code %d, %s", at, code, found.text);
        kill(one.id, SIGCONT);
        ck_assert_int_eq(finish(one), 0);
        ck_assert_msg(is_of(look(), 2, false) || is_of(look(), 3, forward_only),
                      "stopped at call %d: %s", at, look().text);
    }
}

TESTS(running_job_is_not_cleaned, 0, PLACES)
{
    prepare(_i);
    char trace[1200];
    snprintf(trace, sizeof trace, "%s/trace.json", folder);
    struct process one = start((struct run){.number = 2, .trace = trace, .waits = true});
    ck_assert(stopped(one));
    int before = hidden();
    ck_assert_int_eq(before, 2);
    ck_assert_int_eq(run((struct run){.number = 3, .trace = trace}), 0);
    ck_assert_int_eq(hidden(), before);
    kill(one.id, SIGCONT);
    ck_assert_int_eq(finish(one), 0);
    ck_assert_msg(is_of(look(), 2, false), "%s", look().text);
    ck_assert_int_eq(hidden(), 0);

    /* Killed, it leaves what the next run clears away. */
    one = start((struct run){.number = 2, .trace = trace, .waits = true});
    ck_assert(stopped(one));
    kill(one.id, SIGKILL);
    ck_assert_int_eq(finish(one), -SIGKILL);
    ck_assert_int_eq(hidden(), before);
    ck_assert_int_eq(run((struct run){.number = 3, .trace = trace}), 0);
    ck_assert_int_eq(hidden(), 0);
}

/* ---- Ranks. */

static int gather_fails_at; /* counted from 1 */

/* Two ranks, of which the other one gives the same. */
static int gather(int64_t mine, int64_t *all, double timeout)
{
    (void)timeout;
    all[0] = all[1] = mine;
    return --gather_fails_at != 0 ? 2 : 1;
}

/* A rank that does not come, whenever that is, either fails the run or comes too late to matter. */
TESTS(a_rank_that_does_not_come, 0, EARLIER + 1)
{
    int code = 1;
    for (int at = 1; code != 0; at++) {
        prepare(_i);
        gather_fails_at = at;
        code = run((struct run){.number = 2, .gather = gather});
        ck_assert_msg(code == 0   ? at > 5 && is_of(look(), 2, false)
                      : code == 1 ? is_of(look(), _i == NEW ? 0 : 1, false)
                                  : false,
                      "gather %d fails: exit code %d, %s", at, code, look().text);
        ck_assert_int_eq(hidden(), 0);
    }
}

/* ---- What is the user's. */

/* Notes in RESULT are refused before the work. If they come during it, neither they nor anybody's
 * results are lost. */
TEST(notes_in_the_way)
{
    prepare(EARLIER);
    write_text(notes, "keep me");
    ck_assert_int_eq(run((struct run){.number = 2}), 1);
    ck_assert_msg(is_of(look(), 1, false), "%s", look().text);
    ck_assert_int_eq(access(notes, F_OK), 0);

    prepare(EARLIER);
    struct process one = start((struct run){.number = 2, .waits = true});
    ck_assert(stopped(one));
    write_text(notes, "just in time");
    kill(one.id, SIGCONT);
    ck_assert_int_eq(finish(one), 1);
    ck_assert_msg(is_of(look(), 1, false), "%s", look().text);
    ck_assert_int_eq(access(notes, F_OK), 0);
    ck_assert_int_eq(hidden(), 0);

    /* Those of run 2 are beside it. */
    char kept[1100] = "", now[1100];
    DIR *entries = opendir(folder);
    for (struct dirent *entry; (entry = readdir(entries));)
        if (strncmp(entry->d_name, "result.", 7) == 0)
            snprintf(kept, sizeof kept, "%s/%.60s", folder, entry->d_name);
    closedir(entries);
    strcpy(now, result);
    strcpy(result, kept);
    ck_assert_msg(is_of(look(), 2, false), "%s: %s", kept, look().text);
    strcpy(result, now);
}

TEST(links_and_permissions)
{
    /* RESULT as a link to a folder stays one; and the folder keeps its mode. */
    prepare(EARLIER);
    char other[2048], planted[2048], victim[2200];
    struct stat status;
    snprintf(other, sizeof other, "%s/other", folder);
    ck_assert_int_eq(chmod(result, 0710), 0);
    ck_assert_int_eq(rename(result, other), 0);
    ck_assert_int_eq(symlink("other", result), 0);
    ck_assert_int_eq(run((struct run){.number = 2}), 0);
    ck_assert(is_of(look(), 2, false));
    ck_assert(lstat(result, &status) == 0 && S_ISLNK(status.st_mode));
    ck_assert(stat(result, &status) == 0 && (status.st_mode & 0777) == 0710);
    ck_assert_int_eq(unlink(result), 0);

    /* A link that looks like what a killed run has left leads to somebody's results. */
    snprintf(planted, sizeof planted, "%s/.result.0123456789abcdef", folder);
    snprintf(victim, sizeof victim, "%s/o.npy", other);
    ck_assert_int_eq(symlink("other", planted), 0);
    ck_assert_int_eq(run((struct run){.number = 3}), 0);
    ck_assert(is_of(look(), 3, false));
    ck_assert_int_eq(access(victim, F_OK), 0);
}

/* ---- The trace. */

TEST(traces_that_are_refused)
{
    char link[2048], hard[2048], input[2200], file[2200];
    snprintf(link, sizeof link, "%s/link", folder);
    snprintf(hard, sizeof hard, "%s/hard", folder);
    snprintf(input, sizeof input, "%s/do.npy", problem);
    prepare(EARLIER);
    ck_assert_int_eq(symlink("problem/do.npy", link), 0);
    int hard_links = linkat(AT_FDCWD, input, AT_FDCWD, hard, 0);
    ck_assert_int_eq(hard_links, 0);
    snprintf(file, sizeof file, "%s/o.npy", result);
    const char *const traces[] = {input, link, hard, file, notes, result, problem, "/dev/null"};
    struct stat before, after;
    ck_assert_int_eq(stat(input, &before), 0);
    for (size_t t = 0; t < sizeof traces / sizeof *traces; t++)
        for (int forward_only = 0; forward_only < 2; forward_only++)
            ck_assert_int_eq(
                run((struct run){.number = 2, .trace = traces[t], .forward_only = forward_only}),
                2);
    ck_assert_int_eq(stat(input, &after), 0);
    ck_assert(before.st_size == after.st_size && before.st_mtime == after.st_mtime);
    ck_assert_msg(is_of(look(), 1, false), "%s", look().text);
    ck_assert_int_eq(hidden(), 0);

    /* The name that RESULT will have. */
    prepare(NEW);
    ck_assert_int_eq(run((struct run){.number = 2, .trace = result}), 2);
    ck_assert_int_ne(access(result, F_OK), 0);
}

/* A trace is the earlier one, or whole. */
TEST(trace_whole_or_not_at_all)
{
    char trace[1200];
    snprintf(trace, sizeof trace, "%s/trace.json", folder);
    for (int at = 1, code = -1, times = 0; code != 0 || times == 0; at++) {
        prepare(NEW);
        write_text(trace, "earlier");
        trouble = KILL;
        trouble_at = at;
        code = run((struct run){.number = 2, .trace = trace});
        char text[3000];
        size_t length = read_bytes(trace, text, sizeof text);
        bool whole = strncmp(text, "[\n{", 3) == 0 && strcmp(text + length - 3, "\n]\n") == 0;
        ck_assert_msg(whole || (code != 0 && strcmp(text, "earlier") == 0),
                      "killed at call %d, exit code %d: %s", at, code, text);
        times += whole;
        trouble = NOTHING;
        ck_assert_int_eq(run((struct run){.number = 3, .trace = trace}), 0);
        ck_assert_int_eq(hidden(), 0);
    }
}

int main(void)
{
    suite_around(make_folders, remove_folders);
    return suite_main("results", 60);
}
