/* check.h: as much of libcheck as the suites of a single module use, in one header and one process:
 * for processors that are only emulated here, for which nobody has installed libcheck. The first
 * test that fails ends the suite. With CK_RUN_CASE only that case is run.
 */
#ifndef BARE_CHECK_H
#define BARE_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bare_test {
    void (*function)(int _i);
    const char *name, *group;
    int first, last;
} TTest;
typedef struct {
    const char *name;
    int count;
    TTest tests[100];
} Suite;
typedef struct {
    const char *name;
    Suite *suite;
} TCase;
typedef struct {
    Suite *suite;
    int run;
} SRunner;
enum { CK_NORMAL };

static Suite bare_suite;
static TCase bare_cases[20];
static int bare_case_count;

#define START_TEST(name)     \
    static void name(int _i) \
    {                        \
        (void)_i;
#define END_TEST }

static inline Suite *suite_create(const char *name)
{
    bare_suite.name = name;
    return &bare_suite;
}

static inline TCase *tcase_create(const char *name)
{
    TCase *made = &bare_cases[bare_case_count++];
    *made = (TCase){name, &bare_suite};
    return made;
}

static inline void bare_add(TCase *to, void (*function)(int _i), const char *name, int first,
                            int last)
{
    to->suite->tests[to->suite->count++] = (TTest){function, name, to->name, first, last};
}

#define tcase_add_loop_test(to, name, first, last) bare_add(to, name, #name, first, last)
#define tcase_add_test(to, name) bare_add(to, name, #name, 0, 1)
#define tcase_set_timeout(to, seconds) ((void)(to))
#define suite_add_tcase(suite, added) ((void)(added))
#define srunner_create(suite) (&(SRunner){suite, 0})

static inline void srunner_run_all(SRunner *runner, int mode)
{
    (void)mode;
    const char *only = getenv("CK_RUN_CASE");
    for (int t = 0; t < runner->suite->count; t++) {
        const TTest *test = &runner->suite->tests[t];
        for (int i = test->first; i < test->last && (!only || !strcmp(only, test->group)); i++) {
            test->function(i);
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
