/* suite: the main of every check_*.c. Runs one libcheck suite, each test in a process of its own,
 * and ends with the line that tests/all adds up. With RUN_TEST=NAME in the environment
 * only the test of this name runs.
 */
#ifndef SUITE_H
#define SUITE_H

#include <check.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static inline void suite_add(TCase *to, const TTest *test, int signal, int code, int first, int end)
{
    const char *only = getenv("RUN_TEST");
    if (!only || strcmp(only, test->name) == 0)
        _tcase_add_test(to, test, signal, code, first, end);
}
#define _tcase_add_test suite_add

static inline int suite_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int run = srunner_ntests_run(runner), failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    printf("%d passed, %d failed\n", run - failed, failed);
    /* A suite that ran nothing has shown nothing. */
    return run > 0 && failed == 0 ? 0 : 1;
}

#endif
