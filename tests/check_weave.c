/* check_weave: weave renews what chapters quote, and notices what drifted or is not named.
 *
 * Each test runs the program in a folder of its own, on small sources and chapters made there.
 */
#define _XOPEN_SOURCE 700 /* nftw */

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files.h"

static char program[PATH_MAX];
static struct outcome ran; /* of the last run */

static void enter_folder(void)
{
    char own[PATH_MAX];
    scratch_make(own, sizeof own, folder, "test");
    ck_assert_int_eq(chdir(own), 0);
    ck_assert_int_eq(mkdir("build", 0777), 0);
}

/* The content of a file, in one of a few buffers that are used in turn. */
static const char *get(const char *path)
{
    static char buffers[4][32768];
    static int used;
    char *text = buffers[used++ % 4];
    read_bytes(path, text, sizeof *buffers);
    return text;
}

/* Runs weave with these words; returns its exit code. */
#define weave(...) (ran = run_program(program, (const char *const[]){__VA_ARGS__, NULL}), ran.code)

static void expect(const char *text, const char *words)
{
    ck_assert_msg(strstr(text, words) != NULL, "no \"%s\" in:\n%s", words, text);
}

/* A fence with this info string, when renewed, holds this text; nothing around it changes, a second
 * run changes nothing, and --check is content. */
static void quotes(const char *info, const char *wanted)
{
    static char chapter[8192], right[8192];
    snprintf(chapter, sizeof chapter, "Bef\xc3\xb6re  \n```%s\nstale\n```\n\n\tAfter", info);
    snprintf(right, sizeof right, "Bef\xc3\xb6re  \n```%s\n%s```\n\n\tAfter", info, wanted);
    write_text("a.md", chapter);
    int status = weave("a.md");
    ck_assert_msg(status == 0, "%s: %s", info, ran.err);
    ck_assert_str_eq(get("a.md"), right);
    ck_assert_str_eq(ran.out, "a.md\n");
    ck_assert_int_eq(weave("a.md"), 0);
    ck_assert_str_eq(ran.out, "");
    ck_assert_str_eq(get("a.md"), right);
    ck_assert_int_eq(weave("--check", "a.md"), 0);
    ck_assert_str_eq(ran.out, "weave: 1 chapters, 1 quotes\n");
    ck_assert_str_eq(ran.err, "");
}

/* This chapter fails with this message, with and without --check, and is not changed. Nor is a
 * chapter beside it that could be renewed. */
static void refuses(const char *chapter, const char *message)
{
    write_text("good.c", "int good;\n");
    write_text("good.md", "```c good.c\nstale\n```\n");
    write_text("a.md", chapter);
    ck_assert_int_eq(weave("--check", "a.md"), 1);
    ck_assert_str_eq(ran.out, "");
    expect(ran.err, message);
    ck_assert_int_eq(weave("good.md", "a.md"), 1);
    expect(ran.err, message);
    ck_assert_str_eq(get("a.md"), chapter);
    ck_assert_str_eq(get("good.md"), "```c good.c\nstale\n```\n");
}

static const char fold_c[] = "/* fold: what this file is. */\n" /* 1 */
                             "#include <math.h>\n"
                             "\n"
                             "/* The sizes of a tile. */\n"
                             "#define ROWS 4 /* not a guide */\n" /* 5 */
                             "#define COLUMNS 8\n"
                             "\n"
                             "/* Not above: a blank line follows. */\n"
                             "\n"
                             "// Folds one block\n" /* 10 */
                             "// into the carry.\n"
                             "static int fold(int a,\n"
                             "                int b)\n"
                             "{\n"
                             "    /* First * part:\n" /* 15 */
                             "     * of two. */\n"
                             "    int x = '{' + '\"' + \"}{\\\"}\"[0]; // } don't\n"
                             "\n"
                             "\t// Send WHILE   folding.\n"
                             "    return x + a + b;\n" /* 20 */
                             "}\n"
                             "\n"
                             "int last;"; /* without a line break */

/* The last line of a --check that failed. */
#define MEND(count) "weave: " count " to mend; where the source is right, ninja weave quotes it\n"

TEST(renews_a_whole_file)
{
    write_text("a.c", "int x;\n\n  int y;");
    write_text("build/said", "caf\xc3\xa9\n");
    write_text("empty", "");
    quotes("c a.c", "int x;\n\n  int y;\n");
    quotes(" c  a.c ", "int x;\n\n  int y;\n");
    quotes("text build/said", "caf\xc3\xa9\n");
    quotes("text empty", "");
}

TEST(renews_a_definition)
{
    write_text("a.c", fold_c);
    quotes("c a.c fold", "// Folds one block\n// into the carry.\nstatic int fold(int a,\n         "
                         "       int b)\n{\n"
                         "    /* First * part:\n     * of two. */\n"
                         "    int x = '{' + '\"' + \"}{\\\"}\"[0]; // } don't\n\n"
                         "\t// Send WHILE   folding.\n    return x + a + b;\n}\n");
    quotes("c a.c ROWS", "/* The sizes of a tile. */\n#define ROWS 4 /* not a guide */\n");
    quotes("c a.c COLUMNS", "#define COLUMNS 8\n");
    quotes("c a.c last", "int last;\n");
}

TEST(renews_a_paragraph)
{
    write_text("a.c", fold_c);
    quotes("c a.c fold / send while folding",
           "\t// Send WHILE   folding.\n    return x + a + b;\n}\n");
    quotes("c a.c fold / FIRST part: of two.",
           "    /* First * part:\n     * of two. */\n"
           "    int x = '{' + '\"' + \"}{\\\"}\"[0]; // } don't\n");
    quotes("c a.c fold / one block into the carry",
           "// Folds one block\n// into the carry.\nstatic int fold(int a,\n                int "
           "b)\n{\n");
    quotes("c a.c / what this file", "/* fold: what this file is. */\n#include <math.h>\n");
    quotes("c a.c / sizes",
           "/* The sizes of a tile. */\n#define ROWS 4 /* not a guide */\n#define COLUMNS 8\n");
    quotes("c a.c / Not above", "/* Not above: a blank line follows. */\n");

    /* At file level a definition is quoted whole, blank lines and all. */
    char whole[1024];
    snprintf(whole, sizeof whole, "%.*s", (int)(strstr(fold_c, "\nint last") - fold_c), fold_c);
    quotes("c a.c / folds one block", strstr(whole, "// Folds"));
}

TEST(finds_every_kind_of_definition)
{
    /* One definition a row; the second column is the whole text. */
    static const char *const rows[][2] = {
        {"table",
         "static const struct pair table[] = {\n    {\"}\", f},\n\n    {\"/*\", g},\n};\n"},
        {"LONG", "#define LONG(x) \\\n    do { \\\n    } while (x)\n"},
        {"ra_plan", "struct ra_plan;\n"},
        {"pair", "struct pair {\n    const char *name;\n\n    int (*call)(int);\n};\n"},
        {"npy_type", "enum npy_type { NPY_BOOL, NPY_HALF = (1 << 2) };\n"},
        {"TILE", "enum { TILE = 64 };\n"},
        {"number", "union number {\n    int i;\n};\n"},
        {"packed", "struct __attribute__((packed)) packed {\n    int i;\n};\n"},
        {"point", "typedef struct {\n    float x;\n} point;\n"},
        {"handler", "typedef void (*handler)(int, void (*)(int));\n"},
        {"alias", "typedef struct tagged {\n    float x;\n} alias;\n"},
        {"less", "static const int less = 1 < 2;\n"},
        {"chosen", "static int (*const chosen[2])(int) = {0,\n    0}\n;\n"},
        {"handlers", "static int (*const handlers[2])(int) = {0, 0};\n"},
        {"state", "static struct {\n    int a;\n} state;\n"},
        {"aligned", "alignas(64) static float aligned[4] __attribute__((unused)) = {1 < 2};\n"},
        {"later", "float later __attribute__((aligned(8)));\n"},
        {"apply", "int apply(int (*f)(int), int x)\n{\n    return f(x);\n}\n"},
        {"pointer", "const char *pointer(void)\n{\n    return \"{\";\n}\n"},
        {"make", "static struct pair *\nmake(int a,\n     int b)\n{\n    return 0;\n}\n"},
        {"pick", "int (*pick(int a))(int)\n{\n    return 0;\n}\n"},
        {"fail", "__attribute__((noreturn)) void fail(const char *format, ...)\n"
                 "    __attribute__((format(printf, 1, 2)));\n"},
        {"kernel", "template <int D, typename T = float>\n__global__ void "
                   "__launch_bounds__(128, 2)\nkernel(T *x)\n{\n}\n"},
        {"kernel_2", "__global__ __launch_bounds__(128) void kernel_2(const float *x)\n{\n}\n"},
        {"traits", "template <> struct traits<float> {\n    int x;\n};\n"},
        {"sum", "__device__ __forceinline__ float sum(__half x)\n{\n    return x;\n}\n"},
        {"inner", "void inner(void)\n{\n#define NOT_TOP 1\n    if (1) {\n    }\n}\n"},
        {"a_test", "TEST(a_test)\n{\n    int x;\n\n    x = 1;\n}\n"},
        {"many_tests", "TESTS(many_tests, 0, 3)\n{\n}\n"},
        {"ends", "int ends(void);\n"},
    };
    /* Each between blank lines, and all of them in an extern "C" block in a header's guard. */
    char text[8192] =
        "#ifndef GUARD_H\n#define GUARD_H\n#ifdef __cplusplus\nextern \"C\" {\n#endif\n";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        strcat(strcat(text, "\n// \"quoted } {\n/* don't */\n"), rows[i][1]);
    strcat(text, "#ifdef __cplusplus\n}\n#endif\n#endif\n");
    write_text("a.h", text);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char info[64], wanted[1024];
        snprintf(info, sizeof info, "c a.h %s", rows[i][0]);
        snprintf(wanted, sizeof wanted, "// \"quoted } {\n/* don't */\n%s", rows[i][1]);
        quotes(info, wanted);
    }
    write_text("a.md", "```c a.h NOT_TOP\n```\n");
    ck_assert_int_eq(weave("--check", "a.md"), 1);
    expect(ran.err, "a.md:1: a.h has no definition \"NOT_TOP\"");
}

TEST(renews_python)
{
    write_text("a.py", "import b\n\n\ndef one(x):\n    y = x\n\n    return y\n\n\nclass One:\n    "
                       "\"\"\"It's.\"\"\"\n"
                       "    def two(self):\n        pass\nz = 1\n");
    quotes("python a.py one", "def one(x):\n    y = x\n\n    return y\n");
    quotes("python a.py One",
           "class One:\n    \"\"\"It's.\"\"\"\n    def two(self):\n        pass\n");
    quotes("python a.py", get("a.py"));
    refuses("```python a.py two\n```\n", "a.py has no definition \"two\"\n");
    write_text("a.py", "def x():\n    pass\ndef x():\n    pass\n");
    refuses("```python a.py x\n```\n", "the definition \"x\" is ambiguous in a.py: lines 1, 3\n");
}

TEST(prefers_the_definition_to_its_prototype)
{
    write_text(
        "a.c",
        "struct s;\nint f(int);\nextern int v;\nint f(int);\n\nint f(int a)\n{\n    return a;\n}\n"
        "struct s {\n    int a;\n};\nint v = 1;\nint g(int);\n");
    quotes("c a.c f", "int f(int a)\n{\n    return a;\n}\n");
    quotes("c a.c s", "struct s {\n    int a;\n};\n");
    quotes("c a.c v", "int v = 1;\n");
    quotes("c a.c g", "int g(int);\n");
}

TEST(renews_a_difference)
{
    write_text("a.c", "one\ntwo\nthree\n");
    write_text("b.c", "one\n2\nthree\n");
    quotes("diff a.c b.c", "--- a.c\n+++ b.c\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n");
    quotes("diff a.c a.c", "");
}

TEST(finds_every_drift)
{
    write_text("a.c", "int x;\n\nint y;\n");
    static const char *const drifted[] = {"int x;\n\nint z;\n",  "int x;\nint y;\n",
                                          "int x;\n\n",          "int x;\n\nint y;\n\n",
                                          "int x;\n\nint y; \n", ""};
    for (size_t i = 0; i < sizeof drifted / sizeof *drifted; i++) {
        char chapter[256];
        snprintf(chapter, sizeof chapter, "# Title\n\n```c a.c\n%s```\n", drifted[i]);
        write_text("a.md", chapter);
        ck_assert_int_eq(weave("--check", "a.md"), 1);
        expect(ran.err, "a.md:3: this text has drifted from: c a.c\n--- a.md\n+++ source\n@@ ");
        ck_assert_str_eq(ran.out, "");
        ck_assert_str_eq(get("a.md"), chapter);
    }
    expect(ran.err, "@@ -0,0 +1,3 @@\n+int x;\n+\n+int y;\n");
}

TEST(reports_all_problems_of_a_run)
{
    write_text("a.c", "int x;\n");
    write_text("a.md", "```c a.c y\n```\n```c a.c\nint z;\n```\n");
    write_text("b.md", "\n```c\n```\n");
    ck_assert_int_eq(weave("--check", "a.md", "b.md", "none.md"), 1);
    expect(ran.err, "a.md:1: a.c has no definition \"y\"\n");
    expect(ran.err, "a.md:3: this text has drifted from: c a.c\n");
    expect(ran.err, "b.md:2: a C block without a source\n");
    expect(ran.err, "none.md:1: none.md: No such file");
}

TEST(refuses_files_that_are_no_source)
{
    refuses("\n```c none.c\n```\n", "a.md:2: none.c: No such file or directory\n");
    refuses("```text build/none\n```\n", "a.md:1: build/none is missing: run ninja first\n");
    refuses("```text build\n```\n", "a.md:1: build: Is a directory\n");
    refuses("```diff good.c none.c\n```\n", "a.md:1: none.c: No such file or directory\n");
    refuses("x\r\n", "a.md:1: a.md has carriage returns");
    write_text("a.c", "int x;\r\n");
    refuses("```c a.c\n```\n", "a.md:1: a.c has carriage returns");
    write_bytes("a.c", "a\0b", 3);
    refuses("```c a.c\n```\n", "a.md:1: a.c is no text");
    write_text("a.c", "int f(void)\n{\n    if (1) {\n}\n");
    refuses("```c a.c f\n```\n", "a.md:1: a.c:2: this bracket is never closed");
}

TEST(refuses_names_that_are_missing_or_ambiguous)
{
    write_text(
        "a.c",
        "#if A\nint f(void)\n{\n    return 1;\n}\n#else\n/* Other. */\nint f(void)\n{\n"
        "    return 2;\n}\n#endif\n\nvoid g(void)\n{\n    // Send one.\n    f();\n\n"
        "    // Send two.\n    f();\n\n    f(); // Send three.\n}\n\n/* Send at file level. */\n");
    refuses("```c a.c h\n```\n", "a.md:1: a.c has no definition \"h\"\n");
    refuses("```c a.c F\n```\n", "a.md:1: a.c has no definition \"F\"\n");
    refuses("```c a.c f\n```\n", "a.md:1: the definition \"f\" is ambiguous in a.c: lines 2, 8\n");
    refuses("```c a.c f / other\n```\n",
            "a.md:1: the definition \"f\" is ambiguous in a.c: lines 2, 8\n");
    refuses("```c a.c g / receive\n```\n", "a.md:1: a.c has no paragraph \"receive\"\n");
    refuses("```c a.c g / Send three\n```\n", "a.md:1: a.c has no paragraph \"Send three\"\n");
    refuses("```c a.c g / file level\n```\n", "a.md:1: a.c has no paragraph \"file level\"\n");
    refuses("```c a.c g / send\n```\n",
            "a.md:1: the paragraph \"send\" is ambiguous in a.c: lines 16, 19\n");
    refuses("```c a.c / **\n```\n", "a.md:1: a.c has no paragraph \"**\"\n");
}

TEST(refuses_wrong_fences)
{
    refuses("x\n\n```c\nint x;\n```\n", "a.md:3: a C block without a source\n");
    refuses("```c / words\n```\n", "a.md:1: a C block without a source\n");
    refuses("```diff\n```\n", "a.md:1: a diff block without a source\n");
    refuses("```text\n```\n", "a.md:1: a text block without a source\n");
    refuses("```cuda\n```\n", "a.md:1: a CUDA block without a source\n");
    refuses("```diff good.c\n```\n", "a.md:1: a diff block takes OLD NEW\n");
    refuses("```text good.c good\n```\n", "a.md:1: a text block takes FILE\n");
    refuses("```text good.c / good\n```\n", "a.md:1: a text block takes FILE\n");
    refuses("```c good.c good more\n```\n", "a.md:1: a C block takes FILE [NAME] [/ words]\n");
    refuses("- x\n    ```c good.c\n    ```\n", "a.md:2: a C block starts in the first column\n");
    refuses("```sh\n```\n```c good.c\nint good;\n``\n", "a.md:3: this fence is never closed\n");
    refuses("````c good.c\nint good;\n```\n", "a.md:1: this fence is never closed\n");
}

TEST(fits_the_fence_to_the_text)
{
    write_text("a.c", "/*\n```\n*/\n");
    refuses("```c a.c\n````\n", "a.md:1: the quoted text has a fence in it: this one needs more "
                                "than 3 backticks\n");
    write_text("a.md", "````c a.c\n```\n````\n");
    ck_assert_int_eq(weave("a.md"), 0);
    ck_assert_str_eq(get("a.md"), "````c a.c\n/*\n```\n*/\n````\n");
}

TEST(leaves_other_fences_alone)
{
    const char *chapter = "```\n\nint x;\n```\n```sh\nls\n```\n```console\n$ ls\n```\n"
                          "````markdown\n```c\n```\n````\n"
                          "``` c `x` in text, and ```c``` too\n``c``\n\n```cpp\n``` no\n```";
    write_text("a.md", chapter);
    ck_assert_int_eq(weave("--check", "a.md"), 0);
    ck_assert_str_eq(ran.out, "weave: 1 chapters, 0 quotes\n");
    ck_assert_int_eq(weave("a.md"), 0);
    ck_assert_str_eq(get("a.md"), chapter);
}

TEST(finds_names_that_no_chapter_names)
{
    /* Prototypes, definitions and tags count; what is static, has no tag or no body does not. */
    write_text(
        "a.h",
        "/* f is named here. */\n#define MACRO(x) (x)\nint f(int a);\nenum answer { YES, NO };\n"
        "struct pair {\n    int (*call)(void);\n};\nunion both {\n    int a;\n};\n"
        "__attribute__((noreturn)) struct pair *\ng(void);\nint h(void)\n{\n    return 0;\n}\n"
        "static int own(void);\nstatic inline int small(void)\n{\n    return 0;\n}\n"
        "struct later;\nextern int variable, table[2];\ntypedef struct {\n    int a;\n} alias;\n"
        "typedef int (*callback)(int);\nenum { LOOSE = 1 };\n");
    write_text("a.md", "ff, f2, _f, xanswer and answ are other words.\n");
    write_text("b.md", "Nothing.\n");
    ck_assert_int_eq(weave("--check", "--cover", "a.h", "a.md", "b.md"), 1);
    ck_assert_str_eq(ran.err, "a.h:3: no chapter names f\n"
                              "a.h:4: no chapter names answer\n"
                              "a.h:5: no chapter names pair\n"
                              "a.h:8: no chapter names both\n"
                              "a.h:11: no chapter names g\n"
                              "a.h:13: no chapter names h\n" MEND("6"));
    ck_assert_str_eq(ran.out, "");

    /* A name may stand in the text of any chapter, or in a quote of any file. */
    write_text("a.c", "int main(void)\n{\n    return f(YES) + g()->call();\n}\n");
    write_text("a.md", "The `struct pair`, an answer.\n\n```c a.c main\n```\n");
    write_text("b.md", "h (of both).");
    ck_assert_int_eq(weave("--cover", "a.h", "a.md", "b.md"), 0);
    ck_assert_int_eq(weave("--check", "--cover", "a.h", "a.md", "b.md"), 0);
    ck_assert_str_eq(ran.out, "weave: 2 chapters, 1 quotes, 6 names covered\n");
    ck_assert_int_eq(weave("--check", "--cover", "a.h", "a.md"), 1);
    ck_assert_str_eq(ran.err, "a.h:8: no chapter names both\n"
                              "a.h:13: no chapter names h\n" MEND("2"));
}

TEST(does_not_ask_for_every_line)
{
    write_text("a.c",
               "/* Head. */\n#include <a.h>\n\nstatic int a;\n\nint f(void)\n{\n    /* One. */\n"
               "    a();\n\n    /* Two. */\n    b();\n}\n");
    write_text("a.md", "```c a.c / head\n```\n");
    ck_assert_int_eq(weave("a.md"), 0);
    ck_assert_int_eq(weave("--check", "--cover", "a.c", "a.md"), 1);
    ck_assert_str_eq(ran.err, "a.c:6: no chapter names f\n" MEND("1"));
    write_text("b.md", "f\n");
    ck_assert_int_eq(weave("--check", "--cover", "a.c", "a.md", "b.md"), 0);
}

TEST(refuses_to_cover_what_it_cannot_read)
{
    write_text("a.md", "f\n");
    ck_assert_int_eq(weave("--check", "--cover", "none.h", "a.md"), 1);
    expect(ran.err, "none.h:1: none.h: No such file");
    write_text("a.h", "int f(int a);\nstruct s {\n    int a;\n");
    ck_assert_int_eq(weave("--check", "--cover", "a.h", "a.md"), 1);
    expect(ran.err, "a.h:2: this bracket is never closed\n");
}

/* A source of two functions, with loops whose paragraphs can be quoted. */
static const char loops_c[] = "void f(int n)\n" /* 1 */
                              "{\n"
                              "    /* Before. */\n"
                              "    int x = 0;\n"
                              "\n" /* 5 */
                              "    /* Outer for. */\n"
                              "    for (int i = 0; i < n; i++) {\n"
                              "        x += i;\n"
                              "\n"
                              "        /* Inner. */\n" /* 10 */
                              "        while (x > 2)\n"
                              "            x--;\n"
                              "    }\n"
                              "\n"
                              "    /* Whole loops. */\n" /* 15 */
                              "    for (int i = 0; i < n; i++)\n"
                              "        if (i > 3) {\n"
                              "            x++;\n"
                              "        } else {\n"
                              "            x--;\n" /* 20 */
                              "        }\n"
                              "    do {\n"
                              "        x = g(\"for (\", x); /* while */\n"
                              "    } while (x > 0);\n"
                              "\n" /* 25 */
                              "    /* After do. */\n"
                              "    for (;;)\n"
                              "        if (x) {\n"
                              "            x++;\n"
                              "        } else {\n" /* 30 */
                              "            do {\n"
                              "                x--;\n"
                              "\n"
                              "                /* Deep. */\n"
                              "                x--;\n" /* 35 */
                              "            } while (x);\n"
                              "\n"
                              "            /* In else. */\n"
                              "            x = 1;\n"
                              "        }\n" /* 40 */
                              "\n"
                              "    /* Last; for_each is no loop. */\n"
                              "    for_each(x);\n"
                              "}\n"
                              "\n" /* 45 */
                              "int g(const char *y, int x)\n"
                              "{\n"
                              "    do {\n"
                              "        x--;\n"
                              "\n" /* 50 */
                              "        /* In do. */\n"
                              "        x--;\n"
                              "    } while (x > 0);\n"
                              "    return x;\n"
                              "}\n";

/* With these quotes, one after another with a sentence before each, --check says this alone; "" if
 * all is well. */
static void checks(const char *const *infos, int count, const char *wanted)
{
    char chapter[4096] = "";
    for (int i = 0; i < count; i++)
        snprintf(chapter + strlen(chapter), sizeof chapter - strlen(chapter),
                 "Look.\n\n```%s\n```\n\n", infos[i]);
    write_text("a.md", chapter);
    ck_assert_msg(weave("a.md") == 0, "%s", ran.err);
    ck_assert_int_eq(weave("--check", "a.md"), wanted[0] != 0);
    ck_assert_str_eq(ran.err, wanted);
}

TEST(refuses_long_quotes)
{
    /* Functions of 40 and of 41 lines, and diffs of 60 and of 61: three for names and places. */
    char text[2048], wanted[256];
    for (int more = 0; more < 2; more++) {
        strcpy(text, "void f(void)\n{\n");
        for (int i = 0; i < 37 + more; i++)
            strcat(text, "    g();\n");
        write_text("a.c", strcat(text, "}\n"));
        snprintf(wanted, sizeof wanted, "a.md:3: a quote of 41 lines: the most are 40\n%s",
                 MEND("1"));
        checks((const char *[]){"c a.c f"}, 1, more ? wanted : "");
        checks((const char *[]){"c a.c"}, 1, more ? wanted : "");
        checks((const char *[]){"text a.c"}, 1, more ? wanted : "");

        text[0] = 0;
        for (int i = 0; i < 57 + more; i++)
            strcat(text, "x\n");
        write_text("old", "");
        write_text("new", text);
        snprintf(wanted, sizeof wanted, "a.md:3: a quote of 61 lines: the most are 60\n%s",
                 MEND("1"));
        checks((const char *[]){"diff old new"}, 1, more ? wanted : "");
    }
}

TEST(refuses_quotes_that_cut_a_loop)
{
    write_text("a.c", loops_c);
    static const struct {
        const char *words;
        int loop; /* the line of that which is cut; 0: none is */
    } rows[] = {{"f / Before", 0},      {"f / Outer for", 7}, {"f / Inner", 7},
                {"f / Whole loops", 0}, {"f / After do", 27}, {"f / Deep", 27},
                {"f / In else", 27},    {"f / Last", 0},      {"g / In do", 48}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char info[64], wanted[256] = "";
        snprintf(info, sizeof info, "c a.c %s", rows[i].words);
        if (rows[i].loop > 0)
            snprintf(wanted, sizeof wanted,
                     "a.md:3: the loop of a.c:%d is open where this quote begins or ends\n%s",
                     rows[i].loop, MEND("1"));
        checks((const char *[]){info}, 1, wanted);
    }
    checks((const char *[]){"c a.c f", "c a.c g", "c a.c", "text a.c", "diff a.c a.c"}, 5,
           "a.md:3: a quote of 44 lines: the most are 40\n"
           "a.md:67: a quote of 55 lines: the most are 40\n"
           "a.md:127: a quote of 55 lines: the most are 40\n" MEND("3"));
}

TEST(refuses_quotes_side_by_side)
{
    write_text("a.c", "int x;\n");
    static const char side[] = "no sentence stands between this quote and the one before\n";
    /* What stands between two quotes, and whether that will do. */
    static const struct {
        const char *between;
        bool said;
    } rows[] = {{"", false},
                {"\n", false},
                {"\n### What. Is: this?\n\n", false},
                {"![A picture.](img/a.svg)\n", false},
                {"| a. | b. |\n", false},
                {"<!-- A comment. -->\n", false},
                {"And then\n", false},
                {"---\n...\n", false},
                {"```sh\nls. Well.\n```\n", false},
                {"```\nSaid. So:\n```\n", false},
                {"The other one:\n", true},
                {"It is long and its\nfirst line has no end, the second has.\n", true},
                {"```sh\nls\n```\n\nIt prints this:\n", true},
                {"One.\n\n```sh\nls\n```\n", true}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char chapter[512];
        snprintf(chapter, sizeof chapter, "```c a.c\nint x;\n```\n%s```text a.c\nint x;\n```\n",
                 rows[i].between);
        write_text("a.md", chapter);
        ck_assert_msg(weave("--check", "a.md") == !rows[i].said, "%s", rows[i].between);
        if (!rows[i].said)
            expect(ran.err, side);
        /* It is no reason not to renew quotes. */
        ck_assert_int_eq(weave("a.md"), 0);
    }
    /* Each page begins anew; so does what follows another fence alone. */
    write_text("a.md", "```c a.c\nint x;\n```\n");
    write_text("b.md", "```c a.c\nint x;\n```\n");
    ck_assert_int_eq(weave("--check", "a.md", "b.md"), 0);
    write_text("a.md", "```\n```\n```sh\n```\n```c a.c\nint x;\n```\n```sh\n```\n");
    ck_assert_int_eq(weave("--check", "a.md"), 0);
}

TEST(writes_listings)
{
    ck_assert_int_eq(mkdir("src", 0777) | mkdir("pages", 0777), 0);
    write_text("src/a.h",
               "/* a: what it is,\n * in two lines. And more.\n */\n#ifndef A_H\n#define A_H\n"
               "/* Adds. */\nint add(int x);\nint sub(int x);\n\n#endif\n");
    write_text(
        "src/a.c",
        "/* a: how. */\n#include \"a.h\"\n\nint add(int x);\n\n/* Adds one. */\nint add(int x)\n{\n"
        "    return x + 1;\n}\n\nint sub(int x)\n{\n    return x - ONE;\n}\n\n"
        "static int own;\n\n/* The end. */\n");
    write_text("k.cu", "// k: a kernel.\nstatic int own;\n");
    write_text(
        "pages/b.md",
        "# B\n\n## First `one`\n\n`sub()`, `struct sub`, `sub`, [see `sub`](c.md), `own`,\n"
        "``sub``, `sub + 1`, `unknown`, sub,\n[a](../src/a.c), [h](../src/a.h#x), "
        "[b](../src/a.cc).\n\nIt adds:\n\n```c src/a.c add\n```\n\n"
        "```sh\n# no heading, `sub`\n```\n\n## Second\n\nAgain:\n\n```c src/a.c add\n```\n\n"
        "All:\n\n```text k.cu\n```\n\nAnd:\n\n```c src/a.c / the end\n```\n\n"
        "Again:\n\n```c src/a.c / the end\n```\n\nSo:\n\n```c src/a.c add\n```\n\nAnd:\n\n```c "
        "src/a.c add\n```\n");
    write_text("c.md", "`own` and `add`.\n\n## Last\n\n`sub`");
    ck_assert_int_eq(weave("pages/b.md", "c.md"), 0);
    ck_assert_int_eq(weave("--check", "--list", "src/a.c", "--list", "src/a.h", "--list", "k.cu",
                           "--book", "build/book", "pages/b.md", "c.md"),
                     0);
    ck_assert_str_eq(get("build/book/listings.md"),
                     "# Listings\n\nEvery module and program, whole.\n\n"
                     "| file | what it is |\n|---|---|\n"
                     "| [src/a.c](src/a.c.md) | a: how. |\n"
                     "| [src/a.h](src/a.h.md) | a: what it is, in two lines. |\n"
                     "| [k.cu](k.cu.md) | k: a kernel. |\n");
    ck_assert_str_eq(get("build/book/src/a.c.md"),
                     "# src/a.c\n\n[All listings](../listings.md)\n\n~~~c\n/* a: how. */\n#include "
                     "\"a.h\"\n~~~\n\n"
                     "\n## add\n\n~~~c\nint add(int x);\n~~~\n\n"
                     "<a id=\"def-add\"></a>\n\n## add\n\n"
                     "Explained in [b: First `one`](../pages/b.md#quote-1)\n\n"
                     "Explained in [b: Second](../pages/b.md#quote-3)\n\n"
                     "~~~c\n/* Adds one. */\nint add(int x)\n{\n    return x + 1;\n}\n~~~\n\n"
                     "<a id=\"def-sub\"></a>\n\n## sub\n\n"
                     "Explained in [b: First `one`](../pages/b.md#name-sub)\n\n"
                     "~~~c\nint sub(int x)\n{\n    return x - ONE;\n}\n~~~\n\n"
                     "<a id=\"def-own\"></a>\n\n## own\n\n~~~c\nstatic int own;\n~~~\n\n"
                     "~~~c\n/* The end. */\n~~~\n");
    ck_assert_str_eq(
        get("build/book/src/a.h.md"),
        "# src/a.h\n\n[All listings](../listings.md)\n\n"
        "~~~c\n/* a: what it is,\n * in two lines. And more.\n */\n#ifndef A_H\n"
        "#define A_H\n~~~\n\n<a id=\"def-add\"></a>\n<a id=\"def-sub\"></a>\n\n"
        "## add, sub\n\nSee [src/a.c](../src/a.c.md#def-add)\n\n"
        "See [src/a.c](../src/a.c.md#def-sub)\n\n"
        "~~~c\n/* Adds. */\nint add(int x);\nint sub(int x);\n~~~\n\n~~~c\n#endif\n~~~\n");
    ck_assert_str_eq(get("build/book/k.cu.md"),
                     "# k.cu\n\n[All listings](listings.md)\n\n<a id=\"def-own\"></a>\n\n## own\n\n"
                     "Explained in [b: Second](pages/b.md#quote-4)\n\n"
                     "~~~cpp\n// k: a kernel.\nstatic int own;\n~~~\n");

    /* The name is a link wherever it is code, by itself, and not in a link already. */
    expect(get("build/book/pages/b.md"),
           "# B\n\n## First `one`\n\n<a id=\"name-sub\"></a>[`sub()`](../src/a.c.md#def-sub), "
           "[`struct sub`](../src/a.c.md#def-sub), [`sub`](../src/a.c.md#def-sub), "
           "[see `sub`](c.md), `own`,\n``sub``, `sub + 1`, `unknown`, sub,\n[a](../src/a.c.md), "
           "[h](../src/a.h.md#x), [b](../src/a.cc).\n\nIt adds:\n\n"
           "<a id=\"quote-1\"></a>\n\n```c src/a.c add\n/* Adds one. */\n");
    expect(get("build/book/pages/b.md"), "}\n```\n\n[src/a.c](../src/a.c.md#def-add)\n\n"
                                         "```sh\n# no heading, `sub`\n```\n\n## Second\n");
    expect(get("build/book/pages/b.md"), "static int own;\n```\n\n[k.cu](../k.cu.md#def-own)\n");
    ck_assert_str_eq(get("build/book/c.md"),
                     "`own` and <a id=\"name-add\"></a>[`add`](src/a.c.md#def-add).\n\n## Last\n\n"
                     "[`sub`](src/a.c.md#def-sub)");
}

TEST(writes_no_book_if_something_is_wrong)
{
    write_text("a.c", "int x;\n");
    write_text("a.md", "```c a.c\nint y;\n```\n");
    ck_assert_int_eq(weave("--check", "--list", "a.c", "--book", "book", "a.md"), 1);
    ck_assert_int_eq(access("book", F_OK), -1);
    ck_assert_int_eq(weave("a.md"), 0);
    write_text("book", "a file where the folder should be");
    ck_assert_int_eq(weave("--check", "--list", "a.c", "--book", "book", "a.md"), 1);
    expect(ran.err, "cannot write book/a.md: Not a directory\n");
    ck_assert_int_eq(weave("--check", "--list", "none.c", "--book", "b", "a.md"), 1);
    expect(ran.err, "none.c:1: none.c: No such file");
}

TEST(prints_the_commands)
{
    write_text(
        "a.md",
        "```sh\nninja\n```\n\n```c none.c\n```\n\n```sh\n# two\n\nls\n```\n```shell\nno\n```\n");
    write_text("b.md", "````markdown\n```sh\nno\n```\n````\n``` sh slow\nyes\n```\n");
    ck_assert_int_eq(weave("--commands", "a.md", "b.md"), 0);
    ck_assert_str_eq(ran.out, "# a.md:1\nninja\n# a.md:8\n# two\n\nls\n# b.md:6\nyes\n");
    ck_assert_str_eq(ran.err, "");

    /* As a reader of the list copies them: a here-document ends where it should. */
    write_text("b.md", "1. One\n\n   ```sh\n   cat <<END\n     x\n\n y\n   END\n   ```\n");
    ck_assert_int_eq(weave("--commands", "b.md"), 0);
    ck_assert_str_eq(ran.out, "# b.md:3\ncat <<END\n  x\n\ny\nEND\n");
    write_text("b.md", "```sh\nls\n");
    ck_assert_int_eq(weave("--commands", "b.md"), 1);
    expect(ran.err, "b.md:1: this fence is never closed\n");
}

TEST(explains_itself)
{
    ck_assert_int_eq(weave("--help"), 0);
    expect(ran.out, "usage: weave");
    write_text("a.md", "");
    static const char *const misuses[][3] = {{NULL},
                                             {"--check"},
                                             {"--wrong", "a.md"},
                                             {"a.md", "--cover"},
                                             {"a.md", "--book", "b"},
                                             {"--commands", "--check", "a.md"}};
    for (size_t i = 0; i < sizeof misuses / sizeof *misuses; i++) {
        ck_assert_int_eq(weave(misuses[i][0], misuses[i][1], misuses[i][2]), 2);
        expect(ran.err, "usage: weave");
        ck_assert_str_eq(ran.out, "");
    }
}

TEST(leaves_no_file_behind)
{
    write_text("a.c", "int x;\n");
    quotes("c a.c", "int x;\n");
    ck_assert_int_eq(access("a.md.new", F_OK), -1);

    /* A chapter that needs no change is not written, not even with the same bytes. */
    struct stat before, after;
    ck_assert_int_eq(stat("a.md", &before), 0);
    ck_assert_int_eq(weave("a.md"), 0);
    ck_assert_int_eq(stat("a.md", &after), 0);
    ck_assert_int_eq(before.st_ino, after.st_ino);

    /* Where the new text cannot be written, the old one stays. */
    write_text("a.c", "int y;\n");
    ck_assert_int_eq(mkdir("a.md.new", 0777), 0);
    ck_assert_int_eq(weave("a.md"), 1);
    expect(ran.err, "a.md:1: cannot write");
    expect(get("a.md"), "int x;\n");
}

int main(void)
{
    find_program(program, "weave");
    suite_around(enter_folder, NULL);
    return suite_main_in_folder("weave", 60);
}
