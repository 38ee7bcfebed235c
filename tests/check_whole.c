/* check_whole: the tests of src/ra_whole.c and src/ra_path.c. What has a name is what one writer
 * made, whole, whatever happens while another one writes. The system calls that create, name and
 * remove files are defined below as well: a writer can be killed at each of them, or be told of an
 * error.
 */

/* For renameat2. */
#define _GNU_SOURCE

#include "ra_path.h"
#include "ra_whole.h"
#include "scratch.h"
#include "suite.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- The system calls. */

static bool running;                         /* this process is a writer */
static enum { NOTHING, KILL, FAIL } trouble; /* of this process */
static int trouble_at;                       /* the call, counted from 1 */
static int reason;                           /* of an error */
static bool flags_work = true;               /* whether renameat2 knows its flags */
static bool locks = true;                    /* whether the file system has locks */
static bool lists = true;                    /* whether folders can be listed to their end */
static int *calls;                           /* so far; the parent sees it, too */

/* Whether this call must fail. */
static bool call(void)
{
    if (!running || ++*calls != trouble_at || trouble == NOTHING)
        return false;
    if (trouble == KILL)
        raise(SIGKILL);
    errno = reason;
    return true;
}

int renameat2(int from_at, const char *from, int to_at, const char *to, unsigned flags)
{
    if (flags && !flags_work) {
        errno = EINVAL;
        return -1;
    }
    return call() ? -1 : (int)syscall(SYS_renameat2, from_at, from, to_at, to, flags);
}

int renameat(int from_at, const char *from, int to_at, const char *to)
{
    return renameat2(from_at, from, to_at, to, 0);
}

int rename(const char *from, const char *to)
{
    return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0);
}

int mkdir(const char *path, mode_t mode)
{
    return call() ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int unlinkat(int at, const char *path, int flags)
{
    return call() ? -1 : (int)syscall(SYS_unlinkat, at, path, flags);
}

int rmdir(const char *path)
{
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

int chmod(const char *path, mode_t mode)
{
    return call() ? -1 : (int)syscall(SYS_fchmodat, AT_FDCWD, path, mode);
}

/* Nothing here sees whether it waits for the disk, which takes most of the time. */
int fsync(int file)
{
    (void)file;
    return call() ? -1 : 0;
}

int flock(int file, int how)
{
    if (!locks) {
        errno = ENOLCK;
        return -1;
    }
    return call() ? -1 : (int)syscall(SYS_flock, file, how);
}

/* Without the end of a list, nobody knows what else is there. */
struct dirent *readdir(DIR *entries)
{
    static struct dirent *(*own)(DIR *);
    if (!own)
        *(void **)&own = dlsym(RTLD_NEXT, "readdir");
    struct dirent *entry = own(entries);
    if (!entry && !lists)
        errno = EIO;
    return entry;
}

/* ---- Files and folders of a test, which runs in a folder of its own. */

static char folder[1000], error[RA_ERROR_SIZE];
static const char *const replaces[] = {"a", "in", "in/?*.b", NULL};

static void make_folder(void)
{
    scratch_make(folder, sizeof folder, NULL, "check-whole");
    ck_assert_int_eq(chdir(folder), 0);
    calls = mmap(NULL, sizeof *calls, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(calls, MAP_FAILED);
}

static void remove_folder(void)
{
    ck_assert_int_eq(chdir("/"), 0);
    scratch_remove(folder);
}

/* Writes a file of 3,000 times this letter. */
static bool write_letters(const char *path, char letter)
{
    FILE *file = fopen(path, "wx");
    for (int i = 0; file && i < 3000; i++)
        putc(letter, file);
    return file && fclose(file) == 0;
}

/* The letter of which a file is full; 0: there is none; '?': it is not whole. */
static char letter_of(const char *path)
{
    char text[4000];
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    size_t length = fread(text, 1, sizeof text, file);
    fclose(file);
    bool whole = length == 3000;
    for (size_t i = 1; i < length; i++)
        whole = whole && text[i] == text[0];
    return whole ? text[0] : '?';
}

/* The same of what `write_it` wrote. */
static char letter_at(const char *path, bool is_folder)
{
    char a[1100], b[1100];
    struct stat status;
    if (!is_folder || lstat(path, &status) != 0)
        return letter_of(path);
    snprintf(a, sizeof a, "%s/a", path);
    snprintf(b, sizeof b, "%s/in/b.b", path);
    return letter_of(a) && letter_of(a) == letter_of(b) ? letter_of(a) : '?';
}

/* Writes a file, or a folder with a file in it and in a folder in it. */
static bool write_it(const struct ra_whole *whole, char letter)
{
    char path[RA_WHOLE_PATH + 10];
    if (!(whole->how & RA_WHOLE_FOLDER))
        return write_letters(whole->path, letter);
    snprintf(path, sizeof path, "%s/in", whole->path);
    if (mkdir(whole->path, 0777) != 0 || mkdir(path, 0777) != 0)
        return false;
    snprintf(path, sizeof path, "%s/a", whole->path);
    bool written = write_letters(path, letter);
    snprintf(path, sizeof path, "%s/in/b.b", whole->path);
    return written && write_letters(path, letter);
}

/* A writer from its beginning to its end. Returns its exit code, or minus the signal. */
static int run(const char *path, unsigned how, char letter, int times)
{
    *calls = 0;
    fflush(NULL);
    pid_t id = fork();
    if (id == 0) {
        struct ra_whole whole;
        running = true;
        bool good = ra_whole_begin(&whole, path, how, replaces, error) == RA_OK;
        bool begun = good;
        for (int t = 0; t < times && good; t++)
            good = write_it(&whole, letter) && ra_whole_publish(&whole, error) == RA_OK;
        if (begun)
            ra_whole_end(&whole);
        _exit(!good);
    }
    int status;
    ck_assert_int_eq(waitpid(id, &status, 0), id);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* ---- Whole or not at all. */

/* Nothing, a file or a folder is there before; flags of renameat2 work or not. */
TESTS(trouble_at_each_call, 0, 8)
{
    unsigned how = _i & 1 ? RA_WHOLE_FOLDER : 0;
    bool earlier = _i & 2;
    flags_work = !(_i & 4);
    static const int reasons[] = {EIO, ENOSPC, EINTR};
    for (int kind = 0; kind < 4; kind++)
        for (int at = 1, code = 1; code != 0 || at <= *calls; at++) {
            ck_assert_int_lt(at, 300);
            scratch_remove("it");
            trouble = NOTHING;
            if (earlier)
                ck_assert_int_eq(run("it", how, 'e', 1), 0);
            trouble = kind < 3 ? FAIL : KILL;
            trouble_at = at;
            reason = reasons[kind % 3];
            code = run("it", how, 'n', 2);
            int made = *calls;
            char letter = letter_at("it", how);
            char before = earlier ? 'e' : 0;
            /* Without exchange there is a moment without the earlier folder. */
            bool stepped_aside = kind == 3 && earlier && how && !flags_work && letter == 0;
            ck_assert_msg(letter == 'n' || (code != 0 && letter == before) || stepped_aside,
                          "trouble %d at call %d, exit code %d: %c", kind, at, code, letter);

            /* The next writer brings an earlier one back, and leaves nothing hidden. */
            trouble = NOTHING;
            char after = letter;
            ck_assert_int_eq(run("it", how, 'x', 0), 0);
            letter = letter_at("it", how);
            ck_assert_msg(letter == 'n' || (after != 'n' && letter == before),
                          "trouble %d at call %d: %c became %c", kind, at, after, letter);
            ck_assert_int_eq(scratch_hidden("."), 0);
            *calls = made;
        }
}

TESTS(a_reader_finds_one_of_both, 0, 2)
{
    unsigned how = _i ? RA_WHOLE_FOLDER : 0;
    ck_assert_int_eq(run("it", how, 'a', 1), 0);
    pid_t id = fork();
    if (id == 0) {
        for (int i = 0; i < 100; i++) {
            struct ra_whole whole;
            if (ra_whole_begin(&whole, "it", how, replaces, error) != RA_OK ||
                !write_it(&whole, "ab"[i % 2]) || ra_whole_publish(&whole, error) != RA_OK)
                _exit(1);
            ra_whole_end(&whole);
        }
        _exit(0);
    }
    int seen[128] = {0}, status;
    while (waitpid(id, &status, WNOHANG) == 0) {
        /* A folder is opened once: what is opened by its name may be of the next writer. */
        int at = how ? open("it", O_RDONLY | O_DIRECTORY) : AT_FDCWD;
        int file = openat(at, how ? "a" : "it", O_RDONLY);
        char text[4000] = "";
        ssize_t length = read(file, text, sizeof text);
        close(file);
        if (how)
            close(at);
        if (how && length < 0)
            continue; /* it has been removed since it was opened */
        ck_assert_int_eq(length, 3000);
        ck_assert_int_eq(text[0], text[2999]);
        seen[(int)text[0]]++;
    }
    ck_assert_int_eq(status, 0);
    ck_assert(seen['a'] > 0 && seen['b'] > 0);
}

TEST(owners_and_links)
{
    /* Permissions stay, and a name that is a link goes on being one. */
    struct stat status;
    ck_assert_int_eq(mkdir("other", 0777), 0);
    ck_assert_int_eq(run("other/it", 0, 'a', 1), 0);
    ck_assert_int_eq(chmod("other/it", 0640), 0);
    ck_assert_int_eq(symlink("other/it", "link"), 0);
    ck_assert_int_eq(run("link", 0, 'b', 1), 0);
    ck_assert_int_eq(letter_of("other/it"), 'b');
    ck_assert(lstat("link", &status) == 0 && S_ISLNK(status.st_mode));
    ck_assert(stat("link", &status) == 0 && (status.st_mode & 0777) == 0640);

    /* Another name of the same file keeps what it had. */
    ck_assert_int_eq(linkat(AT_FDCWD, "other/it", AT_FDCWD, "hard", 0), 0);
    ck_assert_int_eq(run("other/it", 0, 'c', 1), 0);
    ck_assert(letter_of("hard") == 'b' && letter_of("other/it") == 'c');

    /* What somebody has put where a dead writer's folder would be: no link is followed. */
    ck_assert_int_eq(mkdir("precious", 0777), 0);
    ck_assert(write_letters("precious/new", 'p') && write_letters("precious/lock", 'p'));
    ck_assert_int_eq(symlink("precious", ".it.0123456789abcdef"), 0);
    ck_assert_int_eq(mkdir(".it.123456789abcdef0", 0777), 0);
    ck_assert_int_eq(symlink("../precious/lock", ".it.123456789abcdef0/lock"), 0);
    ck_assert_int_eq(mkdir(".it.23456789abcdef01", 0777), 0);
    ck_assert(write_letters(".it.23456789abcdef01/lock", 'l'));
    ck_assert_int_eq(symlink("../precious", ".it.23456789abcdef01/new"), 0);
    ck_assert_int_eq(run("it", 0, 'd', 1), 0);
    ck_assert(letter_of("precious/new") == 'p' && letter_of("precious/lock") == 'p');
    ck_assert_int_ne(access(".it.23456789abcdef01", F_OK), 0);
}

TEST(same_and_within)
{
    ck_assert_int_eq(mkdir("f", 0777) | mkdir("f/g", 0777), 0);
    ck_assert(write_letters("f/x", 'x'));
    ck_assert_int_eq(symlink("f", "link"), 0);
    ck_assert_int_eq(symlink("x", "f/y"), 0);
    ck_assert_int_eq(linkat(AT_FDCWD, "f/x", AT_FDCWD, "hard", 0), 0);
    char whole_path[1100];
    snprintf(whole_path, sizeof whole_path, "%s/f/new", folder);
    static const struct {
        const char *one, *other;
        bool same, within;
    } cases[] = {
        {"f/x", "f/x", true, true},       {"f/x", "f/../f//x", true, true},
        {"link/x", "f/x", true, true},    {"f/y", "f/x", true, true},
        {"hard", "f/x", true, false},     {"f/x", "f", false, true},
        {"link/x", "f", false, true},     {"f/new", "link/new", true, true},
        {"f/new", "f", false, true},      {"f/g/new", "link", false, true},
        {"f", "f/g", false, false},       {"f2", "f", false, false},
        {"no/x", "no/x", false, false},   {"f/x", "f/g", false, false},
        {"f/g/", "link/g/.", true, true},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        ck_assert_msg(ra_path_same(cases[c].one, cases[c].other) == cases[c].same, "%s, %s",
                      cases[c].one, cases[c].other);
        ck_assert_msg(ra_path_within(cases[c].one, cases[c].other) == cases[c].within, "%s, %s",
                      cases[c].one, cases[c].other);
    }
    ck_assert(ra_path_same(whole_path, "f/new"));
}

/* ---- What is refused. */

static void refused(const char *path, unsigned how, const char *words)
{
    struct ra_whole whole;
    memset(error, 'x', sizeof error);
    ck_assert_int_eq(ra_whole_begin(&whole, path, how, replaces, error), RA_INVALID);
    ck_assert_msg(strstr(error, words), "lacks \"%s\": %s", words, error);
    ck_assert_int_eq(scratch_hidden("."), 0);
    ra_whole_end(&whole);
}

TEST(names_that_are_taken)
{
    char longer[300];
    memset(longer, 'n', sizeof longer);
    longer[299] = '\0';
    ck_assert(write_letters("file", 'f'));
    ck_assert_int_eq(mkdir("notes", 0777) | mkdir("notes/in", 0777), 0);
    ck_assert(write_letters("notes/in/c", 'c'));
    refused("file", RA_WHOLE_NEW, "file: is there already");
    refused("file", RA_WHOLE_FOLDER, "not a folder");
    refused("notes", 0, "a folder, not a file");
    refused("/dev/null", 0, "not a regular file");
    refused("notes", RA_WHOLE_FOLDER, "holds in/c");
    refused(".", RA_WHOLE_FOLDER, "current folder");
    refused("/proc", RA_WHOLE_FOLDER, "mounted");
    refused("nowhere/file", 0, "No such file");
    refused("file/x", 0, "Not a directory");
    refused(longer, 0, "too long");
    ck_assert_int_eq(scratch_remove_one("notes/in/c", NULL, 0, NULL), 0);
    ck_assert(write_letters("notes/.b", 'c'));
    refused("notes", RA_WHOLE_FOLDER, "holds .b");
    ck_assert(letter_of("file") == 'f' && letter_of("notes/.b") == 'c');

    /* A disk that fails while it lists a folder hides nobody's files, and no other writer. */
    ck_assert_int_eq(mkdir("listed", 0777), 0);
    lists = false;
    refused("listed", RA_WHOLE_FOLDER, "holds files that cannot be listed");
    refused("alone", RA_WHOLE_ALONE, "its folder cannot be listed");
    ck_assert_ptr_nonnull(strstr(error, "Input/output error"));
    lists = true;

    /* What comes there while it is being written is the user's. */
    struct ra_whole whole;
    ck_assert_int_eq(ra_whole_begin(&whole, "late", RA_WHOLE_NEW, NULL, error), RA_OK);
    ck_assert(write_it(&whole, 'l') && write_letters("late", 'u'));
    ck_assert_int_eq(ra_whole_publish(&whole, error), RA_INVALID);
    ra_whole_end(&whole);
    ck_assert(letter_of("late") == 'u' && scratch_hidden(".") == 0);

    /* An empty folder holds nothing that could be lost. */
    ck_assert_int_eq(mkdir("empty", 0777), 0);
    ck_assert_int_eq(run("empty", RA_WHOLE_FOLDER, 'a', 1), 0);
    ck_assert_int_eq(letter_at("empty", true), 'a');
}

/* Starts a writer that has written and waits to be killed. */
static pid_t start(const char *path, unsigned how)
{
    int ready[2];
    char byte;
    ck_assert_int_eq(pipe(ready), 0);
    pid_t id = fork();
    if (id == 0) {
        struct ra_whole whole;
        if (ra_whole_begin(&whole, path, how, replaces, error) != RA_OK || !write_it(&whole, 'k'))
            _exit(1);
        ck_assert_int_eq(write(ready[1], "", 1), 1);
        pause();
        _exit(0);
    }
    close(ready[1]);
    ck_assert_int_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return id;
}

static void stop(pid_t id)
{
    kill(id, SIGKILL);
    ck_assert_int_eq(waitpid(id, NULL, 0), id);
}

TEST(a_writer_alone)
{
    pid_t first = start("it", RA_WHOLE_ALONE);
    ck_assert_int_eq(scratch_hidden("."), 1);
    ck_assert_int_eq(run("it", RA_WHOLE_ALONE, 'b', 1), 1);
    ck_assert_int_eq(symlink("it", "other-name"), 0);
    ck_assert_int_eq(run("other-name", RA_WHOLE_ALONE, 'b', 1), 1);
    ck_assert_int_eq(scratch_hidden("."), 1);
    ck_assert_int_eq(letter_of("it"), 0);

    /* Another name is none of its business; and it waits for nobody who does not ask to be
     * alone. */
    ck_assert_int_eq(run("it2", RA_WHOLE_ALONE, 'b', 1), 0);
    ck_assert_int_eq(run("it", 0, 'c', 1), 0);
    ck_assert_int_eq(scratch_hidden("."), 1);
    stop(first);
    ck_assert_int_eq(run("it", RA_WHOLE_ALONE, 'b', 1), 0);
    ck_assert_int_eq(letter_of("it"), 'b');
    ck_assert_int_eq(scratch_hidden("."), 0);
}

/* Without locks nobody knows who is dead: who must be alone is refused, by the name of what is in
 * the way. */
TEST(without_locks)
{
    locks = false;
    ck_assert_int_eq(run("it", 0, 'a', 1), 0);
    ck_assert_int_eq(run("it", RA_WHOLE_ALONE, 'b', 1), 0);
    ck_assert_int_eq(letter_of("it"), 'b');
    stop(start("it", 0));
    ck_assert_int_eq(run("it", 0, 'c', 1), 0);
    ck_assert_int_eq(scratch_hidden("."), 1);
    struct ra_whole whole;
    ck_assert_int_eq(ra_whole_begin(&whole, "it", RA_WHOLE_ALONE, NULL, error), RA_INVALID);
    ck_assert_msg(strstr(error, "another run") && strstr(error, "remove .it."), "%s", error);
}

/* ---- Ranks and signals. */

static struct ra_whole unfinished;

static void on_signal(int number)
{
    ra_whole_end(&unfinished);
    _exit(number);
}

TEST(ends_in_a_signal_handler)
{
    pid_t id = fork();
    if (id == 0) {
        signal(SIGTERM, on_signal);
        bool good = ra_whole_begin(&unfinished, "it", RA_WHOLE_FOLDER, NULL, error) == RA_OK &&
                    write_it(&unfinished, 'a') && scratch_hidden(".") == 1;
        raise(good ? SIGTERM : SIGKILL);
    }
    int status;
    ck_assert_int_eq(waitpid(id, &status, 0), id);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == SIGTERM);
    ck_assert_int_eq(scratch_hidden("."), 0);
}

/* Whenever a signal comes, the hidden folder is known by its whole path, or not at all. */
static volatile sig_atomic_t looks, halves;

static void look(int number)
{
    (void)number;
    const char *digits = strrchr(unfinished.hidden, '.');
    looks++;
    if (unfinished.hidden[0] != '\0')
        halves += !strstr(unfinished.hidden, "/.it.") || strlen(digits) != 17;
}

TEST(a_path_is_never_half)
{
    struct sigaction action = {.sa_handler = look, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 20}, {0, 20}}, never = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    while (looks < 2000)
        ck_assert_int_eq(ra_whole_join(&unfinished, "it", 0, looks, error), RA_OK);
    setitimer(ITIMER_REAL, &never, NULL);
    ck_assert_int_eq(halves, 0);
}

TEST(several_ranks)
{
    struct ra_whole first, other;
    ck_assert_int_eq(ra_whole_begin(&first, "it", 0, NULL, error), RA_OK);
    ck_assert_int_eq(ra_whole_join(&other, "./it", 0, first.number, error), RA_OK);
    ck_assert_str_eq(first.path, other.path);
    ck_assert(write_letters(other.path, 'o'));
    ra_whole_forget(&other);
    ra_whole_end(&other);
    ck_assert_int_eq(ra_whole_publish(&first, error), RA_OK);
    ra_whole_end(&first);
    ck_assert_int_eq(letter_of("it"), 'o');

    /* The first one in trouble removes it for all. */
    ck_assert_int_eq(ra_whole_begin(&first, "it", 0, NULL, error), RA_OK);
    ck_assert_int_eq(ra_whole_join(&other, "it", 0, first.number, error), RA_OK);
    ck_assert(write_letters(first.path, 'f'));
    ra_whole_end(&other);
    ck_assert_int_eq(scratch_hidden("."), 0);
    ck_assert_int_eq(ra_whole_publish(&first, error), RA_INVALID);
    ck_assert_msg(strstr(error, "removed"), "%s", error);
    ra_whole_end(&first);
    ck_assert_int_eq(letter_of("it"), 'o');
}

int main(void)
{
    suite_around(make_folder, remove_folder);
    return suite_main("whole", 60);
}
