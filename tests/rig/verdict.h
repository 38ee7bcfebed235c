/* verdict: counts the tests of suites that libcheck cannot run, as it runs each test in a process
 * of its own: suites on ranks of MPI and on a GPU. A test has passed if no rank complained since
 * the test before, and the last line is "N passed, N failed".
 *
 * A suite of ranks includes mpi.h before this. It may count its calls of MPI, so MPI is called here
 * by its second names, PMPI_....
 */
#ifndef VERDICT_H
#define VERDICT_H

#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "noted.h"
#include "ra_clock.h"

static struct {
    const char *test;   /* the one that runs, for complaints */
    char process[60];   /* so that one knows whose they are */
    bool until_failure; /* end with the first test that fails */
    bool tells;         /* name tests that pass, too */
    double patience;    /* seconds for which a rank waits for the others; 0: for ever */
    int rank, passed, failed;
    atomic_int complaints; /* of all threads of this process, since the last test */
} verdict_state = {.test = "the start"};

/* A suite that hangs is ended from outside: then each process says what it was at. */
static inline void verdict_cut_off(int number)
{
    char text[400] = "FAILED ";
    strncat(text, verdict_state.test, 200);
    strcat(strcat(strcat(text, ": "), verdict_state.process), "ended by a signal\n");
    ssize_t written = write(STDERR_FILENO, text, strlen(text));
    _exit(written > 0 ? 128 + number : 1);
}

/* Says which rank this is, and how complaints name it. With UNTIL_FAILURE in the environment the
 * suite ends with the first test that fails. */
__attribute__((format(printf, 3, 4))) static inline void verdict_start(int rank, double patience,
                                                                       const char *format, ...)
{
    va_list arguments;
    verdict_state.rank = rank;
    verdict_state.patience = patience;
    verdict_state.until_failure = getenv("UNTIL_FAILURE") != NULL;
    va_start(arguments, format);
    vsnprintf(verdict_state.process, sizeof verdict_state.process, format, arguments);
    va_end(arguments);
    signal(SIGTERM, verdict_cut_off);
}

/* Complains in one line, which names what was expected, if that is not NULL; false, so that a test
 * can return it. More than three complaints about one test say nothing new: they are only
 * counted. With UNTIL_FAILURE this process has two seconds left: ranks that now wait for each other
 * would wait for minutes. */
__attribute__((format(printf, 4, 5))) static inline bool verdict_complain(const char *file,
                                                                          int line,
                                                                          const char *expected,
                                                                          const char *format, ...)
{
    char text[1000];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    int before = atomic_fetch_add(&verdict_state.complaints, 1);
    if (before < 3)
        fprintf(stderr, "FAILED %s (%s:%d): %s%s%s%s\n", verdict_state.test, file, line,
                verdict_state.process, expected ? expected : "", expected ? ": " : "", text);
    if (before == 0 && verdict_state.until_failure)
        alarm(2);
    return false;
}

#define WRONG(...) verdict_complain(__FILE__, __LINE__, NULL, __VA_ARGS__)

/* Does this condition hold? Complains if it does not. */
#define HOLDS(condition, ...) \
    ((condition) || verdict_complain(__FILE__, __LINE__, #condition, __VA_ARGS__))

/* Complains if it does not hold, and goes on, so that the ranks of a test stay in step. */
#define EXPECT(...) (void)HOLDS(__VA_ARGS__)

static inline void verdict_pause(double seconds)
{
    time_t whole = (time_t)seconds;
    nanosleep(&(struct timespec){whole, (long)(1e9 * (seconds - (double)whole))}, NULL);
}

#ifdef MPI_VERSION
/* Waits, but not for ever, as a rank may hang in its test; and gives the processor to ranks that
 * still work, which MPI itself would not. */
static inline void verdict_await(MPI_Request request)
{
    double start = ra_seconds();
    int done = 0;
    while (PMPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) {
        if (verdict_state.patience > 0 && ra_seconds() - start > verdict_state.patience)
            PMPI_Abort(MPI_COMM_WORLD, 1);
        verdict_pause(1e-4);
    }
}
#endif

/* The complaints of all ranks since the last test. */
static inline int verdict_complaints(void)
{
    int mine = verdict_state.complaints, all = mine;
#ifdef MPI_VERSION
    MPI_Request request;
    PMPI_Iallreduce(&mine, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &request);
    verdict_await(request);
#endif
    return all;
}

/* Prints the last line. Returns the exit code: a suite that has run nothing has shown nothing. */
static inline int verdict_end(void)
{
    verdict_state.test = "the end";
    if (verdict_state.rank == 0)
        printf("%d passed, %d failed\n", verdict_state.passed, verdict_state.failed);
    fflush(stdout);
    return verdict_state.passed > 0 && verdict_state.failed == 0 ? 0 : 1;
}

/* Counts a test. */
static inline void verdict_count(bool good)
{
    verdict_state.passed += good;
    verdict_state.failed += !good;
    verdict_state.complaints = 0;
}

/* Ends a test, on all ranks, with its name; whether it has passed. */
__attribute__((format(printf, 1, 2))) static inline bool verdict(const char *format, ...)
{
    bool good = verdict_complaints() == 0;
    verdict_count(good);
    if (verdict_state.rank == 0 && (!good || verdict_state.tells)) {
        va_list arguments;
        va_start(arguments, format);
        fputs(good ? "ok     " : "FAILED ", stdout);
        vprintf(format, arguments);
        putchar('\n');
        fflush(stdout);
        va_end(arguments);
    }
    if (!good && verdict_state.until_failure) {
        int code = verdict_end();
#ifdef MPI_VERSION
        PMPI_Finalize();
#endif
        exit(code);
    }
    return good;
}

/* A test, and `count` of them, one after the other. */
struct verdict_test {
    const char *name;
    void (*run)(void);
};

/* With RUN_TEST=NAME in the environment only the test of this name, with _ for its blanks, is
 * wanted. */
__attribute__((format(printf, 1, 2))) static inline bool verdict_wants(const char *format, ...)
{
    const char *only = getenv("RUN_TEST");
    char name[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    for (char *c = name; *c; c++)
        *c = *c == ' ' ? '_' : *c;
    return !only || strcmp(only, name) == 0;
}

static inline void verdict_run(const struct verdict_test *tests, size_t count)
{
    for (size_t t = 0; t < count; t++) {
        if (!verdict_wants("%s", tests[t].name))
            continue;
        verdict_state.test = tests[t].name;
        tests[t].run();
        verdict("%s", tests[t].name);
    }
}

/* TEST(name) { ... } is a test of verdict_run_noted, which runs them in the order of their lines;
 * people read its name with blanks for each _. */
#define TEST(name)                 \
    static void test_##name(void); \
    NOTE(#name, test_##name)       \
    static void test_##name(void)

static inline void verdict_run_noted(void)
{
    static char names[200][60];
    for (int n = 0; n < noted.count; n++) {
        snprintf(names[n], sizeof *names, "%s", noted.list[n].name);
        for (char *c = names[n]; *c; c++)
            *c = *c == '_' ? ' ' : *c;
        verdict_run(&(struct verdict_test){names[n], noted.list[n].run}, 1);
    }
}

#ifdef MPI_VERSION
/* Begins a suite on ranks: which this is, of how many, and of how many a ring is, which is the
 * first word of the command line (NULL: there are no rings). */
static inline void verdict_begin_ranks(int argc, char **argv, double patience, int *rank,
                                       int *ranks, int *ring_size)
{
    int provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, ranks);
    int size = ring_size && argc > 1 ? atoi(argv[1]) : *ranks;
    if (size < 1 || *ranks % size != 0)
        MPI_Abort(MPI_COMM_WORLD, 2);
    if (ring_size)
        *ring_size = size;
    verdict_start(*rank, patience, "rank %d of %d, rings of %d: ", *rank, *ranks, size);
}
#endif

#endif
