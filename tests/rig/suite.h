/* suite: the main of every check_*.c. Runs one libcheck suite, each test in a process of its own,
 * and ends with the line that tests/all adds up.
 */
#ifndef SUITE_H
#define SUITE_H

#include <check.h>
#include <stdio.h>

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
