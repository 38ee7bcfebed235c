/* files: the folder of a suite's run, files that its tests write and read, and programs that they
 * run. Who includes it defines _XOPEN_SOURCE 700 or _GNU_SOURCE first.
 */
#ifndef FILES_H
#define FILES_H

#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "npy.h"
#include "scratch.h"
#include "suite.h"

static char folder[1024]; /* of this run */

/* Runs a suite that has a folder, which is removed at last. Returns the exit code. */
static inline int suite_main_in_folder(const char *name, double seconds)
{
    char of_suite[60];
    snprintf(of_suite, sizeof of_suite, "check-%s", name);
    scratch_make(folder, sizeof folder, NULL, of_suite);
    int code = suite_main(name, seconds);
    scratch_remove(folder);
    return code;
}

/* Prints a path into the folder. Eight are kept at a time. */
__attribute__((format(printf, 1, 2))) static inline const char *path_of(const char *format, ...)
{
    static char paths[8][2048];
    static int next;
    char *path = paths[next++ % 8];
    int start = snprintf(path, sizeof *paths, "%s/", folder);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path + start, sizeof *paths - (size_t)start, format, arguments);
    va_end(arguments);
    return path;
}

/* Makes a file of these bytes, in the place of any other; returns its path. */
static inline const char *write_bytes(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    ck_assert_msg(file && fwrite(bytes, 1, size, file) == size && fclose(file) == 0,
                  "%s cannot be written: %s", path, strerror(errno));
    return path;
}

static inline const char *write_text(const char *path, const char *text)
{
    return write_bytes(path, text, strlen(text));
}

/* Reads a file of fewer than `size` bytes, and puts a 0 behind them; returns how many. */
static inline size_t read_bytes(const char *path, void *bytes, size_t size)
{
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s cannot be read: %s", path, strerror(errno));
    size_t got = fread(bytes, 1, size, file);
    fclose(file);
    ck_assert_msg(got < size, "%s has %zu bytes or more", path, size);
    ((char *)bytes)[got] = '\0';
    return got;
}

/* Makes an .npy file, in the place of any other, of numbers of type `as`; NULL: 0. Returns its
 * path. */
static inline const char *write_array(const char *path, enum npy_type type, int dims,
                                      const int64_t *shape, enum npy_type as, const void *numbers)
{
    struct npy file;
    unlink(path);
    ck_assert_msg(npy_create(&file, path, type, dims, shape), "%s", file.error);
    struct npy_slice all = {.stride = 1, .count = file.shape[0]};
    ck_assert_msg(!numbers || npy_write(&file, all, as, numbers), "%s", file.error);
    ck_assert_msg(npy_close(&file), "%s", file.error);
    return path;
}

/* ---- Programs. */

/* Finds the path, from the root, of a program of the build that BUILD names. Without it the suite
 * ends. */
static inline void find_program(char path[PATH_MAX], const char *name)
{
    const char *build = getenv("BUILD") ? getenv("BUILD") : "build";
    char here[PATH_MAX / 2] = "";
    if (build[0] != '/' && !getcwd(here, sizeof here))
        exit(1);
    snprintf(path, PATH_MAX, "%s%s%s/%s", here, here[0] ? "/" : "", build, name);
    if (access(path, X_OK) != 0) {
        fprintf(stderr, "%s is missing: run ninja first\n", path);
        exit(1);
    }
}

/* What a run has come to: its exit code, or minus the signal that ended it, and what it said. */
struct outcome {
    int code;
    char out[1 << 16], err[1 << 14];
};

/* A program that runs. Its output goes to files, which no amount of it can block. */
struct running {
    pid_t id;
    FILE *files[2];
};

enum { MOST_WORDS = 20, MOST_SECONDS = 100 };

/* Starts a program with these words, up to a NULL. `prepare`, if not NULL, runs in the new process
 * first. What takes too long is killed by its own alarm. */
static inline struct running start_program(void (*prepare)(void), const char *path,
                                           const char *const *words)
{
    struct running running = {0, {tmpfile(), tmpfile()}};
    char *arguments[MOST_WORDS + 2] = {(char *)(uintptr_t)path}; /* execv does not change them */
    for (int w = 0; words[w]; w++) {
        ck_assert_int_lt(w, MOST_WORDS);
        arguments[w + 1] = (char *)(uintptr_t)words[w];
    }
    fflush(NULL);
    running.id = fork();
    ck_assert(running.files[0] && running.files[1] && running.id >= 0);
    if (running.id == 0) {
        dup2(fileno(running.files[0]), STDOUT_FILENO);
        dup2(fileno(running.files[1]), STDERR_FILENO);

        /* A shell lets what it starts in the background ignore these. */
        signal(SIGINT, SIG_DFL);
        signal(SIGQUIT, SIG_DFL);
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        alarm(MOST_SECONDS);
        if (prepare)
            prepare();
        execv(path, arguments);
        perror(path);
        _exit(127);
    }
    return running;
}

/* Waits for its end. */
static inline struct outcome end_program(struct running running)
{
    static struct outcome outcome;
    int status;
    ck_assert_int_eq(waitpid(running.id, &status, 0), running.id);
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    for (int f = 0; f < 2; f++) {
        char *text = f == 0 ? outcome.out : outcome.err;
        rewind(running.files[f]);
        size_t most = f == 0 ? sizeof outcome.out : sizeof outcome.err;
        text[fread(text, 1, most - 1, running.files[f])] = '\0';
        fclose(running.files[f]);
    }
    return outcome;
}

static inline struct outcome run_program(const char *path, const char *const *words)
{
    return end_program(start_program(NULL, path, words));
}

#endif
