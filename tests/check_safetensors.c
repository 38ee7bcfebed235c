/* check_safetensors: the tests of src/model/ra_json.c and src/model/ra_safetensors.c: JSON texts,
 * and weights in .safetensors files, whole, damaged and contradicting each other.
 */
#define _GNU_SOURCE /* nftw */
#include <inttypes.h>
#include <unistd.h>

#include "files.h"
#include "model_rig.h"
#include "ra_json.h"
#include "ra_safetensors.h"

/* ---- JSON. */

/* Reads a text from memory that ends with it, so that a sanitizer sees what is read behind. */
static enum ra_status read_text(struct ra_json_text *json, const char *text, char **exact)
{
    size_t length = strlen(text);
    *exact = malloc(length + !length);
    memcpy(*exact, text, length);
    return ra_json_read(json, "a.json", *exact, length, error);
}

/* Each text is refused where it says, with these words. */
TEST(json_refused)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "line 1, column 1: a value must stand here"},
        {" \n ", "line 2, column 2: a value"},
        {"{", "line 1, column 2: a name"},
        {"{]", "column 2: a name"},
        {"{\"a\"}", "column 5: a colon"},
        {"{\"a\":}", "column 6: a value"},
        {"{\"a\":1,}", "column 8: a name"},
        {"{\"a\":1 \"b\":2}", "column 8: a comma or }"},
        {"{a:1}", "column 2: a name"},
        {"{'a':1}", "column 2: a name"},
        {"[1,]", "column 4: a value"},
        {"[1 2]", "column 4: a comma or ]"},
        {"[1", "column 3: a comma or ]"},
        {"1 2", "column 3: nothing may follow"},
        {"{} x", "column 4: nothing may follow"},
        {"{}\n}", "line 2, column 1: nothing may follow"},
        {"// no\n1", "column 1: a value"},
        {"NaN", "column 1: a value"},
        {"[Infinity]", "column 2: a value"},
        {"-", "column 2: a digit"},
        {"+1", "column 1: a value"},
        {".5", "column 1: a value"},
        {"1.", "column 3: a digit"},
        {"1e", "column 3: a digit"},
        {"01", "column 2: nothing may follow"},
        {"[-012]", "column 4: a comma or ]"},
        {"0x1", "column 2: nothing"},
        {"tru", "column 1: a value"},
        {"True", "column 1: a value"},
        {"nulll", "column 5: nothing"},
        {"\"a", "column 3: the text ends"},
        {"\"a\\", "column 4: a backslash"},
        {"\"\\x\"", "column 3: a backslash"},
        {"\"a\tb\"", "column 3: in a text, a control"},
        {"\"\\u12\"", "column 6: \\u needs"},
        {"\"\\u0000\"", "the character 0"},
        {"\"\\ud800\"", "half a character"},
        {"\"\\ud800\\u0041\"", "half a character"},
        {"\"\\udc00\\ud800\"", "half a character"},
        {"\"\x80\"", "no UTF-8"},
        {"\"\xc0\xaf\"", "no UTF-8"},
        {"\"\xed\xa0\x80\"", "no UTF-8"},
        {"\"\xf4\x90\x80\x80\"", "no UTF-8"},
        {"\"\xe2\x82\"", "no UTF-8"},
        {"\xef\xbb\xbf{}", "line 1, column 1: a value"},
        {"{\"a\": 1,\n  \"b\": 2,\n  \"a\": 3}", "line 3, column 8: \"a\" is given twice"},
        {"{\"a\": 1, \"\\u0061\": 3}", "\"a\" is given twice"},
        {"[{\"x\": {\"b\": 1, \"c\": 2, \"b\": 1}}]", "\"b\" is given twice"},
        {"\"\xc3\xa4\xc3\xa4\" 1", "column 6: nothing may follow"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ra_json_text json;
        char *exact;
        refused(read_text(&json, cases[i].text, &exact), cases[i].words);
        expect(strncmp(error, "a.json: line ", 13) == 0, "%s", error);
        free(exact);
    }
    for (int depth = 64; depth <= 65; depth++) { /* deeper is refused */
        struct ra_json_text json;
        char text[200] = "", *exact;
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        enum ra_status status = read_text(&json, text, &exact);
        if (depth == 64) {
            accepted(status);
            ra_json_free(&json);
        } else {
            refused(status, "more than 64");
        }
        free(exact);
    }
}

TEST(json_read)
{
    struct ra_json_text json;
    char *exact;
    accepted(
        read_text(&json,
                  " {\"whole\": -9223372036854775808, \"real\": -0.5e+1, \"zero\": 0,\n"
                  "\"big\": 9223372036854775808, \"huge\": 1e999, \"exact\": 0.1,\r\n"
                  "\t\"text\": \"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e4\\ud83d\\ude00\xe2\x82\xac\","
                  " \"list\": [true, false, null, [], {}], \"none\": {\"a\": {\"b\": [7]}},"
                  " \"\": 3} ",
                  &exact));
    const struct ra_json *root = json.root;
    int64_t whole;
    double real;
    expect(root->kind == RA_JSON_OBJECT && root->count == 10 && !root->next && !root->name, "root");
    expect(ra_json_whole(ra_json_member(root, "whole"), &whole) && whole == INT64_MIN, "whole");
    expect(!ra_json_whole(ra_json_member(root, "big"), &whole), "too big");
    expect(!ra_json_whole(ra_json_member(root, "real"), &whole), "real");
    expect(!ra_json_whole(ra_json_member(root, "text"), &whole), "text");
    expect(ra_json_real(ra_json_member(root, "real"), &real) && real == -5, "real");
    expect(ra_json_real(ra_json_member(root, "exact"), &real) && real == 0.1, "exact");
    expect(ra_json_real(ra_json_member(root, "big"), &real) && real == 0x1p63, "big");
    expect(!ra_json_real(ra_json_member(root, "huge"), &real), "huge");
    expect(!ra_json_real(ra_json_member(root, "list"), &real), "list");
    expect(ra_json_is(ra_json_member(root, "text"),
                      "\"\\/\b\f\n\r\t\xc3\xa4\xf0\x9f\x98\x80\xe2\x82\xac"),
           "text");
    expect(!ra_json_is(ra_json_member(root, "zero"), "0"), "no text");
    const struct ra_json *list = ra_json_member(root, "list"), *item = list->first;
    static const enum ra_json_kind kinds[] = {RA_JSON_TRUE, RA_JSON_FALSE, RA_JSON_NULL,
                                              RA_JSON_LIST, RA_JSON_OBJECT};
    for (int i = 0; i < 5; i++, item = item->next)
        expect(item && item->kind == kinds[i] && item->count == 0 && !item->name, "item %d", i);
    expect(!item && list->count == 5, "items");
    const struct ra_json *deep = ra_json_member(ra_json_member(root, "none"), "a");
    expect(ra_json_whole(ra_json_member(deep, "b")->first, &whole) && whole == 7, "deep");
    expect(ra_json_member(root, "") && !ra_json_member(root, "a") && !ra_json_member(list, "a"),
           "member");
    ra_json_refuse(&json, ra_json_member(root, "exact"), error, "is %d", 5);
    ck_assert_str_eq(error, "a.json: line 2, column 53: is 5");
    ra_json_free(&json);
    free(exact);
}

/* ---- Files. */

/* Writes a file: the length of the header unless it is said, the header, and so many bytes. */
static void write_file(const char *name, const char *header, int64_t length, size_t bytes)
{
    static char file[1 << 16];
    uint64_t said = length < 0 ? strlen(header) : (uint64_t)length;
    size_t size = 8 + strlen(header);
    memcpy(file, &said, 8);
    memcpy(file + 8, header, size - 8);
    for (size_t i = 0; i < bytes; i++)
        file[size++] = (char)(i & 31);
    write_bytes(path_of("%s", name), file, size);
}

#define ENTRY(name, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

TEST(files_refused)
{
    static const struct {
        const char *header;
        int64_t length;
        size_t bytes;
        const char *words;
    } cases[] = {
        {"{" ENTRY("a", "[2]", 0, 8) "}", -1, 7, "is cut short: \"a\" ends at byte 8"},
        {"{" ENTRY("a", "[2]", 0, 8) "}", -1, 9, "has 1 bytes behind its last array"},
        {"{" ENTRY("a", "[2]", 0, 8) "}", 100, 8, "its header has 100 bytes"},
        {"{" ENTRY("a", "[2]", 0, 8) "}", INT64_MAX, 8, "its header has"},
        {"{" ENTRY("a", "[2]", 0, 8) "}", 20, 8, "line 1, column 21"},
        {"", -1, 0, "a value must stand here"},
        {"[]", -1, 0, "must be an object"},
        {"{\"a\": 3}", -1, 0, "\"a\" must have dtype, shape and data_offsets"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": []}}", -1, 0, "\"a\" must have"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [], \"data_offsets\": [0, 4], \"x\": 1}}", -1, 4,
         "\"a\" must have"},
        {"{\"a\": {\"dtype\": \"I64\", \"shape\": [], \"data_offsets\": [0, 8]}}", -1, 8,
         "\"a\" has the dtype I64: give F64, F32, F16 or BF16"},
        {"{\"a\": {\"dtype\": \"F8_E4M3\", \"shape\": [], \"data_offsets\": [0, 1]}}", -1, 1,
         "F8_E4M3"},
        {"{\"a\": {\"dtype\": 32, \"shape\": [], \"data_offsets\": [0, 4]}}", -1, 4, "dtype"},
        {"{" ENTRY("a", "2", 0, 8) "}", -1, 8, "\"a\" has no shape"},
        {"{" ENTRY("a", "[-2]", 0, 8) "}", -1, 8, "\"a\" has no shape"},
        {"{" ENTRY("a", "[2.0]", 0, 8) "}", -1, 8, "\"a\" has no shape"},
        {"{" ENTRY("a", "[1,1,1,1,1,1,1,1,2]", 0, 8) "}", -1, 8, "\"a\" has no shape"},
        {"{" ENTRY("a", "[4294967296, 4294967296]", 0, 0) "}", -1, 0, "\"a\" has no shape"},
        {"{" ENTRY("a", "[0, 4294967296, 4294967296]", 0, 0) "}", -1, 0, "\"a\" has no shape"},
        {"{" ENTRY("a", "[2]", 0, 12) "}", -1, 12, "has 12 bytes, but its shape and dtype need 8"},
        {"{" ENTRY("a", "[2]", 8, 0) "}", -1, 8, "no data_offsets"},
        {"{" ENTRY("a", "[2]", -8, 0) "}", -1, 8, "no data_offsets"},
        {"{" ENTRY("a", "[2]", 0.0, 8) "}", -1, 8, "no data_offsets"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0]}}", -1, 8,
         "no data_offsets"},
        {"{" ENTRY("a", "[2]", 4, 12) "}", -1, 12, "\"a\" begins at byte 4, after a hole"},
        {"{" ENTRY("a", "[2]", 0, 8) "," ENTRY("b", "[1]", 12, 16) "}", -1, 16,
         "\"b\" begins at byte 12, after a hole: it must be 8"},
        {"{" ENTRY("a", "[2]", 0, 8) "," ENTRY("b", "[1]", 4, 8) "}", -1, 8,
         "\"b\" begins at byte 4, inside another array"},
        {"{" ENTRY("a", "[2]", 0, 8) "," ENTRY("a", "[2]", 8, 16) "}", -1, 16,
         "\"a\" is given twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ra_safetensors x;
        write_file("bad.safetensors", cases[i].header, cases[i].length, cases[i].bytes);
        refused(ra_safetensors_open_file(&x, path_of("bad.safetensors"), error), cases[i].words);
        expect(strstr(error, "bad.safetensors"), "%s", error);
        expect(x.count == 0 && !x.files, "something is open");
    }
    struct ra_safetensors x;
    write_text(path_of("tiny"), "1234567");
    refused(ra_safetensors_open_file(&x, path_of("tiny"), error), "it has 7 bytes");
    refused(ra_safetensors_open_file(&x, path_of("nothing"), error), "No such file");
    refused(ra_safetensors_open_file(&x, folder, error), "is no .safetensors");
}

/* Every array of every type, in any order; numbers to the bit. */
TEST(files_read)
{
    struct ra_safetensors x;
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"z\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[12,28]},"
        "\"b\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[4,8]},"
        "\"c\":{\"dtype\":\"F16\",\"shape\":[2,1],\"data_offsets\":[8,12]},"
        "\"none\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[4,4]},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}   ";
    static const double doubles[2] = {1 + 0x1p-40, -3};
    static const uint16_t halves[4] = {0x3F80, 0x8001, 0x3C00, 0x8001};
    float got[2];
    write_file("good.safetensors", header, -1, 0);
    FILE *file = fopen(path_of("good.safetensors"), "ab");
    expect(file && fwrite(&(float){0.1f}, 4, 1, file) == 1 && fwrite(halves, 2, 4, file) == 4 &&
               fwrite(doubles, 8, 2, file) == 2 && fclose(file) == 0,
           "good");
    accepted(ra_safetensors_open_file(&x, path_of("good.safetensors"), error));
    expect(x.count == 5, "%d", (int)x.count);
    static const struct {
        const char *name;
        int axes;
        float numbers[2];
    } truth[] = {{"a", 0, {0.1f}},
                 {"b", 2, {1, -0x1p-133f}},
                 {"c", 2, {1, -0x1p-24f}},
                 {"none", 2, {0}},
                 {"z", 1, {1, -3}}};
    for (int i = 0; i < 5; i++) {
        const struct ra_stored *stored = ra_safetensors_find(&x, truth[i].name);
        expect(stored && stored == &x.stored[i] && stored->axes == truth[i].axes, "%s",
               truth[i].name);
        expect(strstr(ra_safetensors_path(&x, stored), "good.safetensors"), "path");
        accepted(ra_safetensors_read(&x, stored, got, error));
        expect(memcmp(got, truth[i].numbers, (size_t)stored->count * 4) == 0, "%s", stored->name);
    }
    expect(!ra_safetensors_find(&x, "aa") && !ra_safetensors_find(&x, ""), "find");

    /* A file that becomes shorter while it is open. */
    expect(truncate(path_of("good.safetensors"), (off_t)strlen(header) + 8 + 20) == 0, "truncate");
    refused(ra_safetensors_read(&x, ra_safetensors_find(&x, "z"), got, error),
            "good.safetensors: \"z\" cannot be read");
    ra_safetensors_close(&x);
}

/* ---- Shards. */

TEST(shards_refused)
{
    static const struct {
        const char *index, *words;
    } cases[] = {
        {"{\"weight_map\": {\"a\": \"1.safetensors\", \"b\": \"2.safetensors\"}}", NULL},
        {"{\"weight_map\": {\"a\": \"1.safetensors\"}}", NULL},
        {"{\"weight_map\": {\"a\": \"1.safetensors\", \"b\": \"1.safetensors\"}}",
         "\"b\" is not in 1.safetensors"},
        {"{\"weight_map\": {\"a\": \"1.safetensors\", \"b\": \"2.safetensors\", \"c\": "
         "\"2.safetensors\"}}",
         "\"c\" is not in 2.safetensors"},
        {"{\"weight_map\": {\"b\": \"3.safetensors\"}}", "has \"d\", which the index does not"},
        {"{\"weight_map\": {\"b\": \"3.safetensors\", \"d\": \"3.safetensors\", \"a\": "
         "\"1.safetensors\", \"b2\": \"2.safetensors\"}}",
         "\"b\" is also in"},
        {"{\"weight_map\": {\"a\": \"4.safetensors\"}}", "4.safetensors: No such file"},
        {"{\"weight_map\": {\"a\": \"../1.safetensors\"}}", "must be in a file of this folder"},
        {"{\"weight_map\": {\"a\": 1}}", "must be in a file of this folder"},
        {"{\"weight_map\": [\"a\"]}", "must have \"weight_map\""},
        {"{\"metadata\": {}}", "must have \"weight_map\""},
        {"{\"weight_map\": {\"a\": \"1.safetensors\", \"a\": \"2.safetensors\"}}",
         "\"a\" is given twice"},
        {"{\"weight_map\": {", "line 1, column"},
    };
    expect(mkdir(path_of("shards"), 0700) == 0, "mkdir");
    write_file("shards/1.safetensors", "{" ENTRY("a", "[2]", 0, 8) "}", -1, 8);
    write_file("shards/2.safetensors", "{" ENTRY("b", "[2]", 0, 8) "}", -1, 8);
    write_file("shards/3.safetensors", "{" ENTRY("b", "[2]", 0, 8) "," ENTRY("d", "[1]", 8, 12) "}",
               -1, 12);
    char path[2048];
    snprintf(path, sizeof path, "%s", path_of("shards"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ra_safetensors x;
        write_text(path_of("shards/model.safetensors.index.json"), cases[i].index);
        enum ra_status status = ra_safetensors_open(&x, path, error);
        if (cases[i].words)
            refused(status, cases[i].words);
        else {
            accepted(status);
            expect(x.count == (i == 0 ? 2 : 1), "%d", (int)x.count);
            ra_safetensors_close(&x);
        }
    }
    struct ra_safetensors x;
    write_file("shards/model.safetensors", "{}", -1, 0);
    refused(ra_safetensors_open(&x, path, error), "take away what is not the model");
    expect(unlink(path_of("shards/model.safetensors.index.json")) == 0, "unlink");
    accepted(ra_safetensors_open(&x, path, error));
    expect(x.count == 0, "empty");
    ra_safetensors_close(&x);
    expect(unlink(path_of("shards/model.safetensors")) == 0, "unlink");
    refused(ra_safetensors_open(&x, path, error), "model.safetensors: No such file");
}

/* ---- Writing. */

/* What is written is read again, to the bit, from one file and from shards of any size. */
TEST(files_written)
{
    enum { ARRAYS = 5 };
    static const int64_t shapes[ARRAYS][2] = {{3, 5}, {70000, 0}, {1, 1}, {2, 7}, {0, 0}};
    for (int turn = 0; turn < 8; turn++) {
        enum ra_stored_type type = turn % 2 ? RA_STORED_BF16 : RA_STORED_F32;
        int64_t most = (int64_t[]){0, 1, 60, 1 << 30}[turn / 2];
        struct ra_to_store list[ARRAYS];
        struct ra_safetensors x;
        char path[2048], index[2200];
        snprintf(path, sizeof path, "%s/written-%d", folder, turn);
        snprintf(index, sizeof index, "%s/model.safetensors.index.json", path);
        expect(mkdir(path, 0700) == 0, "mkdir");
        for (int i = 0; i < ARRAYS; i++) {
            int axes = i == 4 ? 0 : shapes[i][1] > 0 ? 2 : 1;
            list[i] = (struct ra_to_store){.axes = axes, .shape = {shapes[i][0], shapes[i][1]}};
            snprintf(list[i].name, sizeof list[i].name, "%d.weight", 9 - i);
            int64_t count = (axes > 0 ? shapes[i][0] : 1) * (axes > 1 ? shapes[i][1] : 1);
            list[i].numbers = randoms(count);
        }
        accepted(ra_safetensors_write(path, list, ARRAYS, type, most, turn % 3, error));
        expect((access(index, F_OK) == 0) == (most == 1 || most == 60), "index");
        accepted(ra_safetensors_open(&x, path, error));
        int files = most == 1 ? 5 : most == 60 ? (type == RA_STORED_F32 ? 4 : 3) : 1;
        expect(x.count == ARRAYS && x.file_count == files, "%d files", x.file_count);
        for (int i = 0; i < ARRAYS; i++) {
            const struct ra_stored *stored = ra_safetensors_find(&x, list[i].name);
            expect(stored && stored->type == type && stored->axes == list[i].axes, "stored");
            float *got = poisoned(stored->count);
            accepted(ra_safetensors_read(&x, stored, got, error));
            for (int64_t e = 0; e < stored->count; e++)
                if (type == RA_STORED_F32)
                    expect(got[e] == list[i].numbers[e], "number %d", (int)e);
                else
                    expect(fabs((double)got[e] - list[i].numbers[e]) <=
                                   0x1p-8 * fabs((double)list[i].numbers[e]) &&
                               (number_bits(got[e]) & 0xFFFF) == 0,
                           "number %d", (int)e);
        }
        ra_safetensors_close(&x);
        release();
        if (turn > 1 && turn < 6)
            continue;
        refused(ra_safetensors_write(path, list, 0, type, 0, false, error), "File exists");
    }
}

/* To bfloat16, ties go to the even number, and what would be infinite is refused. */
TEST(rounded)
{
    float numbers[] = {1 + 0x1p-8f, 1 + 0x3p-8f, -0x1.FEp127f, 0};
    struct ra_to_store one = {.name = "x", .axes = 1, .shape = {4}, .numbers = numbers};
    struct ra_safetensors x;
    float got[4];
    char path[2048];
    snprintf(path, sizeof path, "%s", path_of("rounded"));
    expect(mkdir(path, 0700) == 0, "mkdir");
    accepted(ra_safetensors_write(path, &one, 1, RA_STORED_BF16, 0, true, error));
    accepted(ra_safetensors_open(&x, path, error));
    accepted(ra_safetensors_read(&x, x.stored, got, error));
    expect(got[0] == 1 && got[1] == 1 + 0x4p-8f && got[2] == numbers[2] && got[3] == 0, "%g %g",
           (double)got[0], (double)got[1]);
    ra_safetensors_close(&x);
    unlink(path_of("rounded/model.safetensors"));
    numbers[3] = FLT_MAX;
    refused(ra_safetensors_write(path, &one, 1, RA_STORED_BF16, 0, true, error),
            "\"x\"[3] is 3.40282e+38, too large for bfloat16");
    refused(ra_safetensors_write(path_of("no/where"), &one, 1, RA_STORED_F32, 0, true, error),
            "no/where/model.safetensors: No such file");
}

int main(void)
{
    return suite_main_in_folder("safetensors", 600);
}
