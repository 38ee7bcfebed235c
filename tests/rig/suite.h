/* suite: the main of every check_*.c. Runs one libcheck suite, each test in a process of its own,
 * and ends with the line that tests/all adds up. With RUN_TEST=NAME in the environment only the
 * test of this name runs.
 */
#ifndef SUITE_H
#define SUITE_H

#include <check.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "noted.h"

/* An assertion that holds tells libcheck's main process where the test is, in case it crashes: a
 * message that is written and read. In a loop of thousands that costs more than what is tested, so
 * each line tells it once. */
static inline void suite_mark_once(const char *file, int line)
{
    static atomic_bool told[1 << 13];
    if (!atomic_exchange_explicit(&told[line % (1 << 13)], true, memory_order_relaxed))
        _mark_point(file, line);
}
#define _mark_point suite_mark_once

static struct {
    const char *name;
    double seconds;
    void (*start)(void), (*end)(void); /* or NULL: before and after each test, in its process */
    Suite *suite;
    TCase *cases; /* which the next test joins */
} suite_state;

static inline void suite_begin_case(const char *name, double seconds)
{
    suite_state.cases = tcase_create(name);
    tcase_set_timeout(suite_state.cases, seconds);
    tcase_add_checked_fixture(suite_state.cases, suite_state.start, suite_state.end);
    suite_add_tcase(suite_state.suite, suite_state.cases);
}

static inline void suite_add(const TTest *test, int signal, int first, int end)
{
    const char *only = getenv("RUN_TEST");
    if (!suite_state.cases)
        suite_begin_case(suite_state.name, suite_state.seconds);
    if (!only || strcmp(only, test->name) == 0)
        _tcase_add_test(suite_state.cases, test, signal, 0, first, end);
}

#define SUITE_TEST(name, signal, first, end)                         \
    static void name(int _i);                                        \
    static void suite_add_##name(void)                               \
    {                                                                \
        static const TTest test = {#name, name, __FILE__, __LINE__}; \
        suite_add(&test, signal, first, end);                        \
    }                                                                \
    NOTE(#name, suite_add_##name)                                    \
    static void name(__attribute__((unused)) int _i)

/* TEST(name) { ... } is a test; TESTS(name, first, end) { ... } is one for each _i from first to
 * end - 1, which main may still set; and those of TESTS_RAISING end in a signal. */
#define TEST(name) SUITE_TEST(name, 0, 0, 1)
#define TESTS(name, first, end) SUITE_TEST(name, 0, first, end)
#define TESTS_RAISING(signal, name, first, end) SUITE_TEST(name, signal, first, end)

/* Of a table: one test a row, _i. */
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))
#define TESTS_OF(name, table) TESTS(name, 0, COUNT(table))

#define SUITE_CASE(line, name, seconds)     \
    static void suite_add_case_##line(void) \
    {                                       \
        suite_begin_case(name, seconds);    \
    }                                       \
    NOTE(name, suite_add_case_##line)       \
    static void suite_add_case_##line(void)
#define SUITE_CASE_AT(line, name, seconds) SUITE_CASE(line, name, seconds)

/* CASE(name, seconds); puts the tests below it into a case of libcheck's: each of them may take so
 * many seconds, and CK_RUN_CASE=NAME runs them alone. */
#define CASE(name, seconds) SUITE_CASE_AT(__LINE__, #name, seconds)

/* Has libcheck call these before and after each test, in its process; NULL: nothing. */
static inline void suite_around(void (*start)(void), void (*end)(void))
{
    suite_state.start = start;
    suite_state.end = end;
}

/* Runs the suite, whose tests without a CASE may take so many seconds each. Returns the exit code:
 * a suite that ran nothing has shown nothing. */
static inline int suite_main(const char *name, double seconds)
{
    suite_state.suite = suite_create(suite_state.name = name);
    suite_state.seconds = seconds;
    for (int n = 0; n < noted.count; n++)
        noted.list[n].run();
    SRunner *runner = srunner_create(suite_state.suite);
    srunner_run_all(runner, CK_NORMAL);
    int run = srunner_ntests_run(runner), failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    printf("%d passed, %d failed\n", run - failed, failed);
    return run > 0 && failed == 0 ? 0 : 1;
}

#endif
