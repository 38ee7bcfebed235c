/* check.h: as much of libcheck as the suites of a single module use, in one header and one process:
 * for processors that are only emulated here, for which nobody has installed libcheck. The first
 * test that fails ends the suite. With CK_RUN_CASE only that case is run.
 */
#ifndef BARE_CHECK_H
#define BARE_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    void (*function)(int _i);
    const char *file;
    int line;
} TTest;
typedef struct {
    const char *name;
} TCase;
typedef struct {
    int count;
    struct {
        const TTest *test;
        const TCase *in;
        int first, end;
    } tests[100];
} Suite;
typedef struct {
    Suite *suite;
    int run;
} SRunner;
enum { CK_NORMAL };

static Suite bare_suite;
static TCase bare_cases[20];
static int bare_case_count;

static inline TCase *tcase_create(const char *name)
{
    TCase *made = &bare_cases[bare_case_count++];
    made->name = name;
    return made;
}

static inline void _tcase_add_test(TCase *to, const TTest *test, int signal, int code, int first,
                                   int end)
{
    (void)signal, (void)code; /* every test here is one that returns */
    int at = bare_suite.count++;
    bare_suite.tests[at].test = test;
    bare_suite.tests[at].in = to;
    bare_suite.tests[at].first = first;
    bare_suite.tests[at].end = end;
}

static inline void _mark_point(const char *file, int line)
{
    (void)file, (void)line; /* where a test crashed shows the debugger */
}

#define suite_create(name) ((void)(name), &bare_suite)
#define tcase_set_timeout(to, seconds) ((void)(to), (void)(seconds))
#define tcase_add_checked_fixture(to, start, end) ((void)(to), (void)(start), (void)(end))
#define suite_add_tcase(suite, added) ((void)(suite), (void)(added))
#define srunner_create(suite) (&(SRunner){suite, 0})

static inline void srunner_run_all(SRunner *runner, int mode)
{
    (void)mode;
    const char *only = getenv("CK_RUN_CASE");
    for (int t = 0; t < runner->suite->count; t++) {
        if (only && strcmp(only, runner->suite->tests[t].in->name) != 0)
            continue;
        for (int i = runner->suite->tests[t].first; i < runner->suite->tests[t].end; i++) {
            runner->suite->tests[t].test->function(i);
            runner->run++;
        }
    }
}

#define srunner_ntests_run(runner) ((runner)->run)
#define srunner_ntests_failed(runner) 0
#define srunner_free(runner) ((void)(runner))

#define ck_abort_msg(...)                               \
    do {                                                \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
        fprintf(stderr, __VA_ARGS__);                   \
        fprintf(stderr, "\n");                          \
        exit(1);                                        \
    } while (0)
#define ck_assert_msg(condition, ...)  \
    do {                               \
        if (!(condition))              \
            ck_abort_msg(__VA_ARGS__); \
    } while (0)
#define ck_assert(condition) ck_assert_msg(condition, "%s", #condition)
#define ck_assert_ptr_nonnull(pointer) ck_assert((pointer) != NULL)
#define ck_assert_ptr_null(pointer) ck_assert((pointer) == NULL)
#define ck_assert_int_eq(a, b) ck_assert((a) == (b))
#define ck_assert_str_eq(a, b) ck_assert(strcmp(a, b) == 0)
#define ck_assert_mem_eq(a, b, bytes) ck_assert(memcmp(a, b, bytes) == 0)
#define ck_assert_double_le(a, b) ck_assert((a) <= (b))
#define ck_assert_float_le(a, b) ck_assert((a) <= (b))

#endif
