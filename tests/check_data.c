/* check_data: the tests of src/model/ra_tokens.c and src/model/ra_dataset.c: tokens of a file, and
 * windows, labels and order of what is trained on.
 */
#define _GNU_SOURCE /* nftw */
#include "files.h"
#include "ra_dataset.h"
#include "ra_layout.h"
#include "ra_tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static char error[RA_ERROR_SIZE + 1];
static int64_t bytes_read;
static bool disk_fails;

ssize_t pread(int fd, void *bytes, size_t count, off_t offset)
{
    if (disk_fails) {
        errno = EIO;
        return -1;
    }
    ssize_t moved = syscall(SYS_pread64, fd, bytes, count, offset);
    bytes_read += moved > 0 ? moved : 0;
    return moved;
}

/* An array of these numbers, or of zeros. */
static const char *write_npy(const char *name, enum npy_type type, int dims, const int64_t *shape,
                             const int64_t *numbers)
{
    return write_array(path_of("%s", name), type, dims, shape, NPY_INT64, numbers);
}

/* Complains with the error, of which this must be one line of at most the size that it may have. */
#define must(call) ck_assert_msg((call) == RA_OK, "%s", error)
#define expect(condition) ((condition) ? (void)0 : ck_abort_msg("not so: %s", #condition))

/* An error has these words, and the end of the path that it is about. */
static void assert_refused(enum ra_status status, const char *path, const char *words)
{
    ck_assert_int_eq(status, RA_INVALID);
    size_t length = strlen(path);
    ck_assert_msg(strstr(error, path + (length > 100 ? length - 100 : 0)), "no path: %s", error);
    ck_assert_msg(strstr(error, words), "lacks \"%s\": %s", words, error);
    ck_assert_int_lt(strlen(error), RA_ERROR_SIZE);
    ck_assert_ptr_null(strchr(error, '\n'));
}

static void assert_not_opened(const char *path, const char *words)
{
    struct ra_tokens tokens;
    memset(&tokens, 0x5a, sizeof tokens);
    assert_refused(ra_tokens_open(&tokens, path, RA_TOKEN_UINT8, error), path, words);
    ra_tokens_close(&tokens);
}

/* ---- Tokens. */

CASE(tokens, 60);

TEST(bytes)
{
    unsigned char all[300];
    for (int i = 0; i < 300; i++)
        all[i] = (unsigned char)(7 * i);
    struct ra_tokens tokens;
    must(ra_tokens_open(&tokens, write_bytes(path_of("text"), all, sizeof all), RA_TOKEN_UINT8,
                        error));
    ck_assert_int_eq(tokens.count, 300);
    ck_assert_int_eq(tokens.vocabulary, 256);
    for (int i = 0; i < 300; i++) {
        int32_t token = -1;
        must(ra_tokens_get(&tokens, i, &token, error));
        ck_assert_int_eq(token, 7 * i % 256);
    }
    int32_t token = 77;
    assert_refused(ra_tokens_get(&tokens, -1, &token, error), path_of("text"),
                   "[-1]; there are 300");
    assert_refused(ra_tokens_get(&tokens, 300, &token, error), path_of("text"), "no token [300]");
    assert_refused(ra_tokens_get(&tokens, INT64_MAX, &token, error), path_of("text"), "no token");
    ck_assert_int_eq(token, 77);
    ra_tokens_close(&tokens);
    ra_tokens_close(&tokens);
    ck_assert_int_ne(ra_tokens_get(&tokens, 0, &token, error), RA_OK);
}

TESTS(arrays, 0, 5)
{
    static const int64_t vocabularies[] = {256, 65536, INT64_C(1) << 31, INT64_C(1) << 31,
                                           INT64_C(1) << 31};
    int64_t count = 5, vocabulary = vocabularies[_i];
    int64_t numbers[] = {0, vocabulary - 1, 3, vocabulary / 2, 255};
    struct ra_tokens tokens;
    const char *path = write_npy("t.npy", (enum npy_type)(NPY_UINT8 + _i), 1, &count, numbers);
    must(ra_tokens_open(&tokens, path, RA_TOKEN_UINT8, error));
    ck_assert_int_eq(tokens.count, 5);
    ck_assert_int_eq(tokens.vocabulary, vocabulary);
    int32_t token;
    for (int i = 0; i < 5; i++) {
        must(ra_tokens_get(&tokens, i, &token, error));
        ck_assert_int_eq(token, numbers[i]);
    }

    /* That of a model may be smaller. */
    tokens.vocabulary = vocabulary - 1;
    must(ra_tokens_get(&tokens, 0, &token, error));
    char words[100];
    snprintf(words, sizeof words, "token [1] is %" PRId64 "; tokens are 0 to %" PRId64,
             vocabulary - 1, vocabulary - 2);
    assert_refused(ra_tokens_get(&tokens, 1, &token, error), path, words);
    ra_tokens_close(&tokens);
}

/* All tokens are read once: one that is none is found, wherever it is; and the checksum is of the
 * values alone, whatever their type is and in whatever parts they are read. */
TEST(scans)
{
    enum { COUNT = 3 * RA_TOKENS_PART + 5 };
    static int64_t numbers[COUNT];
    int64_t count = COUNT;
    uint64_t sums[NPY_INT64 + 1], other = 0;
    struct ra_tokens tokens;
    for (int i = 0; i < COUNT; i++)
        numbers[i] = i * 37 % 251;
    for (int type = NPY_UINT8; type <= NPY_INT64; type++) {
        must(ra_tokens_open(&tokens, write_npy("t.npy", (enum npy_type)type, 1, &count, numbers),
                            RA_TOKEN_UINT8, error));
        sums[type] = 0;
        for (int64_t first = 0; first < count; first += type * RA_TOKENS_PART)
            must(ra_tokens_scan(
                &tokens, first,
                first + type * RA_TOKENS_PART < count ? first + type * RA_TOKENS_PART : count,
                &sums[type], error));
        ck_assert_uint_eq(sums[type], sums[NPY_UINT8]);
        ra_tokens_close(&tokens);
    }
    for (int at = 0; at < COUNT; at += at + 700 < COUNT || at == COUNT - 1 ? 700 : COUNT - 1 - at) {
        int64_t before = numbers[at];
        char words[60];
        numbers[at] = 251;
        must(ra_tokens_open(&tokens, write_npy("t.npy", NPY_INT32, 1, &count, numbers),
                            RA_TOKEN_UINT8, error));
        tokens.vocabulary = 252;
        must(ra_tokens_scan(&tokens, 0, count, (other = 0, &other), error));
        ck_assert_uint_ne(other, sums[NPY_UINT8]);
        tokens.vocabulary = 251;
        snprintf(words, sizeof words, "token [%d] is 251; tokens are 0 to 250", at);
        assert_refused(ra_tokens_scan(&tokens, 0, count, &other, error), path_of("t.npy"), words);
        ra_tokens_close(&tokens);
        numbers[at] = before;
    }
}

TEST(no_tokens)
{
    /* Numbers that are no tokens: an error where they are, and nowhere else. */
    int64_t wide[] = {1, INT64_C(1) << 31, -1, INT64_MIN, INT64_MAX, 2}, narrow[] = {1, INT32_MIN};
    struct ra_tokens tokens;
    int32_t token;
    const char *path = write_npy("wide.npy", NPY_INT64, 1, (const int64_t[]){6}, wide);
    must(ra_tokens_open(&tokens, path, RA_TOKEN_UINT8, error));
    must(ra_tokens_get(&tokens, 0, &token, error));
    assert_refused(ra_tokens_get(&tokens, 1, &token, error), path, "token [1] is 2147483648");
    assert_refused(ra_tokens_get(&tokens, 2, &token, error), path,
                   "token [2] is -1; tokens are 0 to");
    assert_refused(ra_tokens_get(&tokens, 3, &token, error), path, "[3] is -9223372036854775808");
    assert_refused(ra_tokens_get(&tokens, 4, &token, error), path, "[4] is 9223372036854775807");
    ck_assert_int_eq(token, 1);
    must(ra_tokens_get(&tokens, 5, &token, error));
    ra_tokens_close(&tokens);
    path = write_npy("narrow.npy", NPY_INT32, 1, (const int64_t[]){2}, narrow);
    must(ra_tokens_open(&tokens, path, RA_TOKEN_UINT8, error));
    assert_refused(ra_tokens_get(&tokens, 1, &token, error), path, "token [1] is -2147483648");
    ra_tokens_close(&tokens);
}

/* Tokens one after the other, little-endian, without a header: as training sets are kept. */
static const char *write_raw(const char *name, enum ra_token_type type, int count,
                             const uint32_t *numbers)
{
    unsigned char all[64];
    int width = type == RA_TOKEN_UINT8 ? 1 : type == RA_TOKEN_UINT16 ? 2 : 4;
    for (int i = 0; i < count; i++)
        for (int byte = 0; byte < width; byte++)
            all[i * width + byte] = (unsigned char)(numbers[i] >> 8 * byte);
    return write_bytes(path_of("%s", name), all, (size_t)(count * width));
}

TEST(raw_files)
{
    static const uint32_t numbers[][5] = {
        {0, 255, 3, 128, 10}, {0, 65535, 3, 258, 32768}, {0, INT32_MAX, 3, 66051, 65536}};
    for (int type = RA_TOKEN_UINT8; type <= RA_TOKEN_UINT32; type++) {
        struct ra_tokens tokens;
        int32_t token;
        const char *path = write_raw("train.bin", (enum ra_token_type)type, 5, numbers[type]);
        must(ra_tokens_open(&tokens, path, (enum ra_token_type)type, error));
        ck_assert_int_eq(tokens.count, 5);
        ck_assert_int_eq(tokens.columns, 0);
        ck_assert_int_eq(tokens.vocabulary, INT64_C(1)
                                                << (type == RA_TOKEN_UINT32 ? 31 : 8 << type));
        for (int i = 0; i < 5; i++) {
            must(ra_tokens_get(&tokens, i, &token, error));
            ck_assert_int_eq(token, numbers[type][i]);
        }
        ra_tokens_close(&tokens);
    }

    /* A .npy says its own type. */
    struct ra_tokens tokens;
    const char *path = write_npy("t.npy", NPY_UINT8, 1, (const int64_t[]){4}, NULL);
    must(ra_tokens_open(&tokens, path, RA_TOKEN_UINT32, error));
    ck_assert_int_eq(tokens.count, 4);
    ra_tokens_close(&tokens);
}

/* A type that is not the file's shows by its size, or by tokens outside of the vocabulary. */
TEST(raw_refused)
{
    static const uint32_t numbers[] = {7, 9, 50257, INT32_MAX + 1u};
    struct ra_tokens tokens;
    uint64_t sum = 0;
    const char *path = write_bytes(path_of("odd.bin"), "1234567", 7);
    assert_refused(ra_tokens_open(&tokens, path, RA_TOKEN_UINT16, error), path,
                   "has 7 bytes, which are no whole number of tokens of uint16");
    assert_refused(ra_tokens_open(&tokens, path, RA_TOKEN_UINT32, error), path, "tokens of uint32");
    assert_refused(ra_tokens_open(&tokens, path, (enum ra_token_type)5, error), path, "type = 5");
    path = write_bytes(path_of("empty.bin"), "", 0);
    assert_refused(ra_tokens_open(&tokens, path, RA_TOKEN_UINT16, error), path, "is empty");
    path = write_raw("wide.bin", RA_TOKEN_UINT32, 4, numbers);
    must(ra_tokens_open(&tokens, path, RA_TOKEN_UINT32, error));
    assert_refused(ra_tokens_scan(&tokens, 0, 4, &sum, error), path,
                   "token [3], at byte 12, is 2147483648; tokens are 0 to 2147483647");
    tokens.vocabulary = 50257;
    assert_refused(ra_tokens_scan(&tokens, 0, 4, &sum, error), path,
                   "token [2], at byte 8, is 50257; tokens are 0 to 50256");
    ra_tokens_close(&tokens);
}

/* llm.c's header: 256 numbers, of which three are not 0. */
static const char *write_llm_c(int word, int version, int count, size_t size)
{
    static uint32_t file[260];
    file[0] = (uint32_t)word;
    file[1] = (uint32_t)version;
    file[2] = (uint32_t)count;
    file[256] = 5 << 16 | 6;
    file[257] = 7 << 16 | 8;
    return write_bytes(path_of("llm.bin"), file, 1024 + size);
}

TEST(llm_c)
{
    static const struct {
        int word, version, count, tokens[4];
    } files[] = {{20240520, 1, 4, {6, 5, 8, 7}}, {20240801, 7, 2, {5 << 16 | 6, 7 << 16 | 8}}};
    struct ra_tokens tokens;
    int32_t token;
    for (int f = 0; f < 2; f++) {
        const char *path = write_llm_c(files[f].word, files[f].version, files[f].count, 8);
        must(ra_tokens_open(&tokens, path, RA_TOKEN_LLMC, error));
        ck_assert_int_eq(tokens.count, files[f].count);
        for (int i = 0; i < files[f].count; i++) {
            must(ra_tokens_get(&tokens, i, &token, error));
            ck_assert_int_eq(token, files[f].tokens[i]);
        }
        tokens.vocabulary = 6;
        assert_refused(ra_tokens_get(&tokens, 0, &token, error), path,
                       "token [0], at byte 1024, is");
        ra_tokens_close(&tokens);
        assert_refused(
            ra_tokens_open(&tokens,
                           write_llm_c(files[f].word, files[f].version, files[f].count + 1, 8),
                           RA_TOKEN_LLMC, error),
            path, "has 1032 bytes, but its header says");
        write_llm_c(files[f].word, files[f].version + 1, files[f].count, 8);
        assert_refused(ra_tokens_open(&tokens, path, RA_TOKEN_LLMC, error), path,
                       "has no header of llm.c: 20240520 and version 1 for uint16");
    }
    const char *path = write_bytes(path_of("short.bin"), "short", 5);
    assert_refused(ra_tokens_open(&tokens, path, RA_TOKEN_LLMC, error), path, "no header of llm.c");
    path = write_llm_c(20240520, 1, -4, 0);
    assert_refused(ra_tokens_open(&tokens, path, RA_TOKEN_LLMC, error), path, "says -4 tokens");
}

/* NAME.idx of Megatron-LM: documents of 2 sequences, of none, and of 1, with 2 + 1 and 3 tokens. */
static void write_index(int version, int type, int width, size_t size)
{
    unsigned char file[256] = "MMIDIDX\0";
    static const int32_t lengths[] = {2, 1, 3};
    static const int64_t firsts[] = {0, 2, 2, 3};
    int64_t numbers[] = {version, 3, 4};
    memcpy(file + 9, numbers, 8);
    file[17] = (unsigned char)type;
    memcpy(file + 18, numbers + 1, 16);
    memcpy(file + 34, lengths, sizeof lengths);
    for (int s = 0; s < 3; s++)
        memcpy(file + 46 + 8 * s, &(int64_t){(s == 0 ? 0 : s == 1 ? 2 : 3) * width}, 8);
    memcpy(file + 70, firsts, sizeof firsts);
    write_bytes(path_of("m.idx"), file, size);
}

TEST(megatron)
{
    static const struct {
        int code, width;
    } types[] = {{1, 1}, {4, 4}, {5, 8}, {8, 2}};
    struct ra_tokens tokens;
    struct ra_dataset dataset;
    unsigned char file[64];
    for (int f = 0; f < 4; f++) {
        memset(file, 0, sizeof file);
        for (int i = 0; i < 6; i++)
            file[i * types[f].width] = (unsigned char)(10 + i);
        write_index(1, types[f].code, types[f].width, 102);
        const char *path = write_bytes(path_of("m.bin"), file, (size_t)(6 * types[f].width));
        must(ra_tokens_open(&tokens, path, RA_TOKEN_MEGATRON, error));
        ck_assert_int_eq(tokens.count, 6);
        ck_assert_int_eq(tokens.documents, 2);
        must(ra_dataset_open(&dataset, &tokens, 5, 0, 0, -1, error));
        ck_assert_int_eq(dataset.most_documents, 2);
        int64_t bounds[3], count, positions[] = {0, 1, 2, 3, 4};
        int32_t got[5], labels[5];
        static const int32_t right[] = {11, 12, -1, 14, 15};
        must(ra_dataset_documents(&dataset, 0, bounds, &count, error));
        ck_assert(count == 2 && bounds[0] == 0 && bounds[1] == 3 && bounds[2] == 5);
        must(ra_dataset_read(&dataset, 0, 5, positions, got, labels, error));
        for (int i = 0; i < 5; i++)
            ck_assert(got[i] == 10 + i && labels[i] == right[i]);
        ra_tokens_close(&tokens);
    }
    char path[200];
    strcpy(path, write_bytes(path_of("m.bin"), file, 12));
    static const struct {
        int version, type, width;
        size_t size;
        const char *words;
    } wrong[] = {{2, 8, 2, 102, "version 2"},       {1, 3, 2, 102, "type 3"},
                 {1, 7, 2, 102, "type 7"},          {1, 8, 2, 101, "101 bytes"},
                 {1, 8, 2, 105, "modes of"},        {1, 8, 2, 20, "MMIDIDX"},
                 {1, 8, 4, 102, "sequence 1 else"}, {1, 4, 4, 102, "has 12 bytes, but its .idx"}};
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
        write_index(wrong[w].version, wrong[w].type, wrong[w].width, wrong[w].size);
        assert_refused(ra_tokens_open(&tokens, path, RA_TOKEN_MEGATRON, error), path,
                       wrong[w].words);
    }
    unlink(path_of("m.idx"));
    assert_refused(ra_tokens_open(&tokens, path, RA_TOKEN_MEGATRON, error), path,
                   "its .idx cannot be read: No such file");
    strcpy(path, write_bytes(path_of("m.tokens"), file, 12));
    assert_refused(ra_tokens_open(&tokens, path, RA_TOKEN_MEGATRON, error), path, "is NAME.bin");
}

TEST(unaligned)
{
    /* A header of 68 bytes and one blank: the numbers lie across every border. */
    unsigned char file[200] = "\x93NUMPY\1\0";
    const char *header = "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), } \n";
    int32_t numbers[] = {1, 1 << 30, 99}, token;
    size_t start = 10 + strlen(header);
    ck_assert_int_ne(start % 4, 0);
    file[8] = (unsigned char)strlen(header);
    memcpy(file + 10, header, strlen(header));
    memcpy(file + start, numbers, sizeof numbers);
    struct ra_tokens tokens;
    must(ra_tokens_open(&tokens, write_bytes(path_of("odd.npy"), file, start + sizeof numbers),
                        RA_TOKEN_UINT8, error));
    for (int i = 0; i < 3; i++) {
        must(ra_tokens_get(&tokens, i, &token, error));
        ck_assert_int_eq(token, numbers[i]);
    }
    ra_tokens_close(&tokens);
}

TEST(refused)
{
    int before = dup(0);
    close(before);
    assert_not_opened(path_of("missing"), "cannot be opened: No such file");
    assert_not_opened(path_of("missing.npy"), "cannot be opened: No such file");
    assert_not_opened(folder, "not a regular file");
    ck_assert_int_eq(mkfifo(path_of("pipe"), 0600), 0);
    assert_not_opened(path_of("pipe"), "not a regular file");
    assert_not_opened(write_bytes(path_of("empty"), "", 0), "is empty; at least one token");
    assert_not_opened(write_bytes(path_of("empty.npy"), "", 0), "is empty");
    assert_not_opened(write_npy("none.npy", NPY_INT32, 1, (const int64_t[]){0}, NULL),
                      "is empty; at least one token");
    assert_not_opened(write_npy("three.npy", NPY_INT32, 3, (const int64_t[]){2, 3, 4}, NULL),
                      "3 axes; a text has one: save array.reshape(-1); samples");
    assert_not_opened(write_npy("flat.npy", NPY_INT32, 2, (const int64_t[]){2, 0}, NULL),
                      "is empty; at least one token");
    assert_not_opened(write_npy("scalar.npy", NPY_INT32, 0, (const int64_t[]){1}, NULL), "0 axes");
    assert_not_opened(write_npy("f4.npy", NPY_FLOAT32, 1, (const int64_t[]){2}, NULL),
                      "float32; tokens are integers: save array.astype('int32')");
    assert_not_opened(write_npy("b1.npy", NPY_BOOL, 1, (const int64_t[]){2}, NULL), "bool; tokens");
    assert_not_opened(write_bytes(path_of("text.npy"), "text", 4), "not an .npy file");
    char header[] = "\x93NUMPY\1\0\x3a\0{'descr': '<u8', 'fortran_order': False, 'shape': (1,), }\n"
                    "12345678";
    assert_not_opened(write_bytes(path_of("u8.npy"), header, sizeof header - 1), "uint64 ('<u8')");
    assert_not_opened(path_of("u8.npy"), "(tokens as array.astype('int32'))");
    int after = dup(0);
    ck_assert_int_eq(before, after);
}

TEST(long_path)
{
    /* The end of the path stands in the error, and its reason has room. */
    char name[260] = "";
    memset(name, 'n', 250);
    memcpy(name + 240, "/last.npy", 10);
    name[120] = '/';
    char part[260];
    for (int slash = 120; slash <= 240; slash += 120) {
        snprintf(part, sizeof part, "%.*s", slash, name);
        ck_assert_int_eq(mkdir(path_of("%s", part), 0700), 0);
    }
    write_npy(name, NPY_FLOAT64, 1, (const int64_t[]){2}, NULL);
    assert_not_opened(path_of("%s", name), "float64; tokens are integers");
}

TEST(larger_than_memory)
{
    /* 64 GiB, of which nearly all is a hole: next to nothing is read, or becomes memory. */
    int64_t count = INT64_C(1) << 36;
    int fd = open(path_of("large"), O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, count) != 0) {
        fprintf(stderr, "check_data: larger_than_memory skipped: no file of 64 GiB can be made\n");
        return;
    }
    ck_assert_int_eq(pwrite(fd, "z", 1, count - 1), 1);
    close(fd);
    struct ra_tokens tokens;
    struct ra_dataset data;
    int32_t token, label;
    must(ra_tokens_open(&tokens, path_of("large"), RA_TOKEN_UINT8, error));
    ck_assert_int_eq(tokens.count, count);
    must(ra_tokens_get(&tokens, count - 1, &token, error));
    ck_assert_int_eq(token, 'z');
    must(ra_dataset_open(&data, &tokens, 3, 0.5, 1, -1, error));
    for (int i = 0; i < 20; i++) {
        int64_t window = ra_dataset_window(&data, i);
        must(ra_dataset_read(&data, window, 1, (const int64_t[]){2}, &token, &label, error));
    }
    struct rusage usage;
    ck_assert_int_eq(getrusage(RUSAGE_SELF, &usage), 0);
    ck_assert_int_lt(usage.ru_maxrss, 1 << 20); /* KiB */
    ck_assert_int_lt(bytes_read, 1 << 20);
    ra_tokens_close(&tokens);
    unlink(path_of("large"));
}

static const char *at_byte(int64_t index)
{
    static char text[60];
    snprintf(text, sizeof text, ", at byte %" PRId64 ",", 4 * index);
    return text;
}

/* Another program cuts the file short, or the disk fails: what is there can be read, the rest is an
 * error. */
TESTS(cut_short_while_open, 0, 3)
{
    int64_t count = 50000, *numbers = calloc((size_t)count, sizeof *numbers);
    for (int64_t i = 0; i < count; i++)
        numbers[i] = i % 200;
    char text[200];
    struct ra_tokens tokens;
    int32_t token = -1;
    bool raw = _i == 2; /* two numbers of 4 bytes for each of 8 */
    const char *path = raw ? write_bytes(path_of("cut.bin"), numbers, (size_t)count * 8)
                           : write_npy("cut.npy", _i ? NPY_INT64 : NPY_UINT8, 1, &count, numbers);
    must(ra_tokens_open(&tokens, path, RA_TOKEN_UINT32, error));
    disk_fails = true;
    assert_refused(ra_tokens_get(&tokens, 0, &token, error), path, "cannot be read: Input/output");
    disk_fails = false;
    must(ra_tokens_get(&tokens, 0, &token, error));
    ck_assert_int_eq(truncate(path, tokens.start + 40000 * tokens.width + tokens.width / 2), 0);
    for (int64_t i = 0; i < 40000; i += 13) {
        must(ra_tokens_get(&tokens, i, &token, error));
        ck_assert_int_eq(token, !raw ? i % 200 : i % 2 ? 0 : i / 2 % 200);
    }
    token = 77;
    for (int64_t i = 40000; i < count; i += 999) {
        snprintf(text, sizeof text, "token [%" PRId64 "]%s is missing; the file has been cut", i,
                 raw ? at_byte(i) : "");
        assert_refused(ra_tokens_get(&tokens, i, &token, error), path, text);
    }
    ck_assert_int_eq(token, 77);
    must(ra_tokens_get(&tokens, 39999, &token, error));
    ck_assert_int_eq(token, raw ? 0 : 39999 % 200);
    ra_tokens_close(&tokens);
    free(numbers);
}

/* ---- Windows and labels. */

/* A file of `count` tokens, each of which says where it is: token i is 3 * i + 1. */
static struct ra_tokens numbered(int64_t count)
{
    struct ra_tokens tokens;
    int64_t *numbers = malloc((size_t)count * sizeof *numbers);
    ck_assert_ptr_nonnull(numbers);
    for (int64_t i = 0; i < count; i++)
        numbers[i] = 3 * i + 1;
    must(ra_tokens_open(&tokens, write_npy("numbered.npy", NPY_INT32, 1, &count, numbers),
                        RA_TOKEN_UINT8, error));
    free(numbers);
    return tokens;
}

CASE(windows, 60);

TEST(windows)
{
    /* Every window of every length is there, one after the other, with all its labels; a window
     * more would not fit. */
    for (int64_t count = 2; count <= 40; count++) {
        struct ra_tokens tokens = numbered(count);
        for (int64_t N = 1; N < count; N++) {
            struct ra_dataset data;
            must(ra_dataset_open(&data, &tokens, N, 0, 0, -1, error));
            expect(data.windows >= 1 && data.training == data.windows);
            expect(data.windows * N + 1 <= count && (data.windows + 1) * N + 1 > count);
            expect(ra_dataset_left_out(&data) == count - (data.windows * N + 1));
            for (int64_t w = 0; w < data.windows; w++)
                for (int64_t i = 0; i < N; i++) {
                    int32_t token = -1, label = -1;
                    must(ra_dataset_read(&data, w, 1, &i, &token, &label, error));
                    expect(token == 3 * (w * N + i) + 1);
                    expect(label == 3 * (w * N + i + 1) + 1);
                }
        }
        ra_tokens_close(&tokens);
    }
}

/* Rows with padding wherever it may be: each is a window, and padding has no label and is none. */
TESTS(rows, 0, 5)
{
    enum { ROWS = 5, COLUMNS = 7 };
    static const int64_t numbers[ROWS][COLUMNS] = {{1, 2, 3, 4, 5, 6, 7},
                                                   {8, 9, -1, -100, INT32_MIN, -1, -1},
                                                   {-1, -1, -1, -1, -1, 10, 11},
                                                   {12, -1, 13, 14, -1, 15, -1},
                                                   {-1, 16, 17, 18, -1, 19, 20}};
    static const int labels_of_rows[] = {6, 1, 1, 1, 3};
    enum npy_type type = (enum npy_type)(NPY_UINT8 + _i);
    bool padded = type == NPY_INT32 || type == NPY_INT64;
    int64_t shape[] = {padded ? ROWS : 1, COLUMNS}, all[] = {0, 1, 2, 3, 4, 5};
    struct ra_tokens tokens;
    struct ra_dataset data;
    must(ra_tokens_open(&tokens, write_npy("rows.npy", type, 2, shape, numbers[0]), RA_TOKEN_UINT8,
                        error));
    ck_assert_int_eq(tokens.count, shape[0] * COLUMNS);
    ck_assert_int_eq(tokens.columns, COLUMNS);
    must(ra_dataset_open(&data, &tokens, COLUMNS - 1, 0, 0, -1, error));
    ck_assert_int_eq(data.windows, shape[0]);
    ck_assert_int_eq(ra_dataset_left_out(&data), 0);
    for (int64_t w = 0; w < data.windows; w++) {
        int32_t read[COLUMNS], labels[COLUMNS], count = 0;
        must(ra_dataset_read(&data, w, COLUMNS - 1, all, read, labels, error));
        for (int i = 0; i < COLUMNS - 1; i++) {
            int64_t token = numbers[w][i], next = numbers[w][i + 1];
            ck_assert_int_eq(read[i], token < 0 ? -1 : token);
            ck_assert_int_eq(labels[i], token < 0 || next < 0 ? -1 : next);
            count += labels[i] >= 0;
        }
        ck_assert_int_eq(count, labels_of_rows[w]);
    }
    ra_tokens_close(&tokens);
}

TEST(rows_refused)
{
    static const int64_t numbers[4][3] = {{1, 2, -1}, {-1, 3, 40}, {4, -1, 5}, {-1, -1, -1}};
    const char *path = write_npy("bad.npy", NPY_INT32, 2, (const int64_t[]){4, 3}, numbers[0]);
    struct ra_tokens tokens;
    struct ra_dataset data;
    must(ra_tokens_open(&tokens, path, RA_TOKEN_UINT8, error));
    static const int64_t lengths[] = {0, 1, 3, -1, INT64_MAX};
    for (int c = 0; c < 5; c++)
        assert_refused(ra_dataset_open(&data, &tokens, lengths[c], 0, 0, -1, error), path,
                       "rows of 3 tokens, which are not cut");
    assert_refused(ra_dataset_open(&data, &tokens, 2, 0, 0, -1, error), path, "row 2 has no two");
    tokens.count = 6;
    must(ra_dataset_open(&data, &tokens, 2, 0, 0, -1, error));
    tokens.vocabulary = 40;
    assert_refused(ra_dataset_open(&data, &tokens, 2, 0, 0, -1, error), path,
                   "token [1, 2] is 40; tokens are 0 to 39");
    ra_tokens_close(&tokens);
    path = write_npy("one.npy", NPY_INT32, 2, (const int64_t[]){3, 1}, numbers[0]);
    must(ra_tokens_open(&tokens, path, RA_TOKEN_UINT8, error));
    assert_refused(ra_dataset_open(&data, &tokens, 0, 0, 0, -1, error), path, "at least 1");
    ra_tokens_close(&tokens);
}

/* Documents of each window, and labels that stay within them. */
TEST(documents)
{
    enum { N = 5, END = 9 };
    static const int64_t text[] = {1, 2, END, 3, 4, END, END, END, 5, END, 6, 1, 2, 3, 4, END};
    static const struct {
        int64_t count, bounds[N + 1];
        int32_t labels[N];
    } due[] = {{2, {0, 3, 5}, {2, END, -1, 4, END}},
               {4, {0, 1, 2, 3, 5}, {-1, -1, -1, END, -1}},
               {1, {0, 5}, {1, 2, 3, 4, END}}};
    int64_t count, bounds[5], all[] = {0, 1, 2, 3, 4};
    int32_t tokens_read[N], labels[N];
    struct ra_tokens tokens;
    struct ra_dataset data;
    const char *path = write_npy("packed.npy", NPY_INT32, 1, (const int64_t[]){16}, text);
    must(ra_tokens_open(&tokens, path, RA_TOKEN_UINT8, error));
    must(ra_dataset_open(&data, &tokens, N, 0, 0, END, error));
    ck_assert_int_eq(data.windows, 3);
    ck_assert_int_eq(data.most_documents, 4);
    for (int w = 0; w < 3; w++) {
        must(ra_dataset_documents(&data, w, bounds, &count, error));
        ck_assert_int_eq(count, due[w].count);
        ck_assert_mem_eq(bounds, due[w].bounds, (size_t)(count + 1) * sizeof *bounds);
        must(ra_dataset_read(&data, w, N, all, tokens_read, labels, error));
        ck_assert_mem_eq(labels, due[w].labels, sizeof labels);
    }
    assert_refused(ra_dataset_documents(&data, 3, bounds, &count, error), "window = 3",
                   "give 0 to 2");
    assert_refused(ra_dataset_open(&data, &tokens, N, 0, 0, 7, error), path, "document_end = 7: ");
    ck_assert_ptr_nonnull(strstr(error, "has no such token"));

    /* A window of ends alone has no label. Two tokens that each end a document are one of two. */
    assert_refused(ra_dataset_open(&data, &tokens, 1, 0, 0, END, error), path,
                   "each of the tokens [2] to [2] ends a document");
    assert_refused(ra_dataset_open(&data, &tokens, 2, 0, 0, END, error), path,
                   "each of the tokens [6] to [7] ends a document, so their window has no label");
    must(ra_dataset_open(&data, &tokens, 3, 0, 0, END, error));
    must(ra_dataset_open(&data, &tokens, 1, 0, 0, -1, error));

    /* Without ends, a window is one. */
    must(ra_dataset_open(&data, &tokens, N, 0, 0, -1, error));
    must(ra_dataset_documents(&data, 1, bounds, &count, error));
    expect(count == 1 && bounds[0] == 0 && bounds[1] == N && data.most_documents == 1);
    must(ra_dataset_read(&data, 0, N, all, tokens_read, labels, error));
    ck_assert_int_eq(labels[2], 3);
    ra_tokens_close(&tokens);

    /* A row whose labels would all begin documents has none. Padding ends nothing. */
    static const int64_t ends[3][4] = {{-1, END, 2, 3}, {1, -1, -1, -1}, {-1, 4, END, 5}};
    path = write_npy("ends.npy", NPY_INT32, 2, (const int64_t[]){3, 4}, ends[0]);
    must(ra_tokens_open(&tokens, path, RA_TOKEN_UINT8, error));
    assert_refused(ra_dataset_open(&data, &tokens, 3, 0, 0, END, error), path,
                   "row 1 has no two tokens side by side in a document");
    tokens.count = 4;
    must(ra_dataset_open(&data, &tokens, 3, 0, 0, END, error));
    must(ra_dataset_documents(&data, 0, bounds, &count, error));
    expect(count == 2 && bounds[1] == 2 && bounds[2] == 3);
    ra_tokens_close(&tokens);
}

TEST(labels_of_shards)
{
    /* A window of 31 tokens, in the shards of every layout and number of ranks, more than tokens
     * too: together they have every token once, and every one has the label that it has in the
     * file. Also the last one of a shard has its own. */
    enum { N = 31 };
    struct ra_tokens tokens = numbered(100);
    struct ra_dataset data;
    must(ra_dataset_open(&data, &tokens, N, 0, 0, -1, error));
    ck_assert_int_eq(data.windows, 3);
    for (int P = 1; P <= 40; P++)
        for (int kind = RA_CONTIGUOUS; kind <= RA_ZIGZAG; kind++)
            for (int64_t bucket = 0; bucket <= (kind == RA_STRIPED ? 2 : 0); bucket++) {
                int64_t stripes = ra_layout_stripes(P, N, bucket), window = P % 3;
                struct ra_layout layout = {(enum ra_layout_kind)kind, P, N, stripes, NULL};
                int seen[N] = {0};
                for (int rank = 0; rank < P; rank++) {
                    int64_t positions[N], count = ra_layout_rows(layout, rank);
                    int32_t shard[N + 1], labels[N + 1];
                    for (int64_t a = 0; a < count; a++)
                        positions[a] = ra_layout_position(layout, rank, a);
                    shard[count] = labels[count] = -77;
                    must(ra_dataset_read(&data, window, count, positions, shard, labels, error));
                    for (int64_t a = 0; a < count; a++) {
                        expect(shard[a] == 3 * (window * N + positions[a]) + 1);
                        expect(labels[a] == 3 * (window * N + positions[a] + 1) + 1);
                        seen[positions[a]]++;
                    }
                    expect(shard[count] == -77 && labels[count] == -77);
                }
                for (int i = 0; i < N; i++)
                    expect(seen[i] == 1);
            }
    ra_tokens_close(&tokens);
}

TEST(held_out)
{
    static const struct {
        int64_t windows;
        double share;
        int64_t held_out;
    } cases[] = {{1, 0, 0},     {10, 0, 0},    {10, 0.1, 1},  {10, 1e-9, 1}, {10, 0.14, 1},
                 {10, 0.16, 2}, {10, 0.94, 9}, {30, 0.1, 3},  {2, 0.5, 1},   {2, 0.1, 1},
                 {99, 0.5, 50}, {97, 0.1, 10}, {97, 0.01, 1}, {3, 0.7, 2}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct ra_tokens tokens = numbered(4 * cases[c].windows + 3);
        struct ra_dataset data;
        must(ra_dataset_open(&data, &tokens, 4, cases[c].share, 5, -1, error));
        ck_assert_int_eq(data.windows, cases[c].windows);
        ck_assert_int_eq(data.training, cases[c].windows - cases[c].held_out);
        for (int64_t sample = 0; sample < 5 * data.windows; sample++) {
            int64_t window = ra_dataset_window(&data, sample);
            expect(window >= 0 && window < data.training);
        }

        /* Those that are held out can be read. */
        int32_t token, label;
        must(ra_dataset_read(&data, data.windows - 1, 1, (const int64_t[]){3}, &token, &label,
                             error));
        ck_assert_int_eq(label, 3 * 4 * data.windows + 1);
        ra_tokens_close(&tokens);
    }
}

TEST(misuse)
{
    struct ra_tokens tokens = numbered(101);
    const char *path = path_of("numbered.npy");
    struct ra_dataset data;
    static const int64_t lengths[] = {0, -1, 101, 102, INT64_MIN, INT64_MAX};
    for (int c = 0; c < 6; c++)
        assert_refused(ra_dataset_open(&data, &tokens, lengths[c], 0, 0, -1, error), path,
                       "give 1 to 100");
    must(ra_dataset_open(&data, &tokens, 100, 0, 0, -1, error));
    static const double shares[] = {-0.1, 1, 2, NAN, INFINITY};
    for (int c = 0; c < 5; c++)
        assert_refused(ra_dataset_open(&data, &tokens, 10, shares[c], 0, -1, error), "validation",
                       "at least 0 and below 1");
    assert_refused(ra_dataset_open(&data, &tokens, 10, 0, 0, -2, error), "document_end = -2",
                   "or -1 for none");
    assert_refused(ra_dataset_open(&data, &tokens, 100, 0.1, 0, -1, error), path,
                   "nothing to train on of the 1 windows");
    assert_refused(ra_dataset_open(&data, &tokens, 10, 0.96, 0, -1, error), path,
                   "nothing to train on");

    must(ra_dataset_open(&data, &tokens, 10, 0.2, 0, -1, error));
    int32_t token[2], label[2];
    int64_t positions[] = {0, 10};
    assert_refused(ra_dataset_read(&data, 10, 1, positions, token, label, error), "window = 10",
                   "give 0 to 9");
    assert_refused(ra_dataset_read(&data, -1, 1, positions, token, label, error), "window = -1",
                   "give 0 to 9");
    assert_refused(ra_dataset_read(&data, 9, 2, positions, token, label, error),
                   "positions[1] = 10", "give 0 to 9");
    positions[1] = -1;
    assert_refused(ra_dataset_read(&data, 9, 2, positions, token, label, error),
                   "positions[1] = -1", "give 0 to 9");
    must(ra_dataset_read(&data, 9, 0, NULL, NULL, NULL, error));

    /* What is no token, as a token and as the label of the one before. */
    tokens.vocabulary = 3 * 34 + 1;
    positions[1] = 4;
    assert_refused(ra_dataset_read(&data, 3, 2, positions, token, label, error), path,
                   "token [34] is 103");
    positions[1] = 3;
    assert_refused(ra_dataset_read(&data, 3, 2, positions, token, label, error), path,
                   "token [34] is 103");
    positions[1] = 2;
    must(ra_dataset_read(&data, 3, 2, positions, token, label, error));
    ra_tokens_close(&tokens);
}

/* ---- The order. It needs no file: only how many windows there are. */

static struct ra_dataset order(int64_t training, uint64_t seed)
{
    return (struct ra_dataset){.training = training, .windows = training, .seed = seed};
}

CASE(order, 60);

TEST(epochs_are_permutations)
{
    for (int64_t training = 1; training <= 300; training += training < 70 ? 1 : 57) {
        static const uint64_t seeds[] = {0, 1, 2, UINT64_MAX};
        for (int s = 0; s < 4; s++) {
            struct ra_dataset data = order(training, seeds[s]);
            for (int64_t epoch = 0; epoch < 5; epoch++) {
                bool seen[400] = {false};
                for (int64_t i = 0; i < training; i++) {
                    int64_t window = ra_dataset_window(&data, epoch * training + i);
                    expect(window >= 0 && window < training && !seen[window]);
                    seen[window] = true;
                }
            }
        }
    }

    /* Large ones, as far as one can look: no window comes twice. */
    static unsigned char seen[(1 << 20) + 1];
    struct ra_dataset data = order((1 << 20) + 1, 9);
    for (int64_t i = 0; i <= 1 << 20; i++)
        expect(seen[ra_dataset_window(&data, i)]++ == 0);
    data = order(INT64_C(1) << 61, 9);
    for (int64_t i = 0; i < 1000; i++) {
        int64_t window = ra_dataset_window(&data, INT64_MAX - i);
        expect(window >= 0 && window < INT64_C(1) << 61);
    }
}

TEST(same_order_everywhere)
{
    /* As a Python program computes it that was written from the description of the algorithm. A run
     * that was begun by one version can so be resumed by another. */
    static const int64_t small[] = {9, 6, 3, 1, 7, 4, 2, 8, 0, 5, 5, 8};
    static const int64_t large[] = {976, 391, 609, 921, 444, 133, 561, 631, 904, 199, 299, 681};
    struct ra_dataset one = order(10, 1), other = order(1000, UINT64_MAX);
    for (int i = 0; i < 12; i++) {
        ck_assert_int_eq(ra_dataset_window(&one, i), small[i]);
        ck_assert_int_eq(ra_dataset_window(&other, i), large[i]);
    }
    struct ra_dataset huge = order(INT64_C(1000000000000), 7);
    ck_assert_int_eq(ra_dataset_window(&huge, 12345678901234), 179964911541);
}

/* Of how many samples do two orders have the same window? */
static int equal(uint64_t seed, int64_t epoch, uint64_t other_seed, int64_t other_epoch)
{
    struct ra_dataset one = order(1000, seed), other = order(1000, other_seed);
    int count = 0;
    for (int64_t i = 0; i < 1000; i++)
        count += ra_dataset_window(&one, 1000 * epoch + i) ==
                 ra_dataset_window(&other, 1000 * other_epoch + i);
    return count;
}

TEST(orders_differ)
{
    /* Of two orders without relation one sample is equal, on average. */
    ck_assert_int_eq(equal(3, 4, 3, 4), 1000);
    for (uint64_t seed = 0; seed < 10; seed++)
        for (int64_t epoch = 0; epoch < 10; epoch++) {
            ck_assert_int_lt(equal(seed, epoch, seed, epoch + 1), 10);
            ck_assert_int_lt(equal(seed, epoch, seed + 1, epoch), 10);
            ck_assert_int_lt(equal(seed, epoch + 1, seed + 1, epoch), 10);
            ck_assert_int_lt(equal(seed, epoch, (uint64_t)epoch, (int64_t)seed),
                             seed == (uint64_t)epoch ? 1001 : 10);
        }

    /* Nor does an order go through the file forwards or backwards. */
    struct ra_dataset data = order(1000, 1);
    int next = 0;
    for (int64_t i = 0; i + 1 < 10000; i++) {
        int64_t step = ra_dataset_window(&data, i + 1) - ra_dataset_window(&data, i);
        next += step == 1 || step == -1;
    }
    ck_assert_int_lt(next, 50);
}

TEST(every_window_everywhere)
{
    /* Of few windows each is at each place of an epoch, and after each other one, about equally
     * often: within six standard deviations. */
    enum { EPOCHS = 20000 };
    for (int training = 2; training <= 9; training++) {
        struct ra_dataset data = order(training, (uint64_t)training);
        static int places[9][9], pairs[9][9];
        memset(places, 0, sizeof places);
        memset(pairs, 0, sizeof pairs);
        for (int64_t e = 0; e < EPOCHS; e++) {
            int64_t before = 0;
            for (int i = 0; i < training; i++) {
                int64_t window = ra_dataset_window(&data, e * training + i);
                places[i][window]++;
                if (i > 0)
                    pairs[before][window]++;
                before = window;
            }
        }
        double mean = (double)EPOCHS / training, allowed = 6 * sqrt(mean);
        for (int i = 0; i < training; i++)
            for (int w = 0; w < training; w++) {
                expect(fabs(places[i][w] - mean) < allowed);
                expect(i == w || fabs(pairs[i][w] - mean) < allowed);
            }
    }
}

int main(void)
{
    return suite_main_in_folder("data", 60);
}
