/* check_npy: the tests of src/npy.c.
 *
 * Files go three ways: written and read here, written byte by byte, and exchanged with NumPy. Then
 * everything that must be refused, with the key words of each message. The system calls that npy.c
 * makes are defined below as well, so that a test can count, shorten, interrupt and fail them.
 */
#undef _FORTIFY_SOURCE /* its inline pread would clash with the one below */
#define _GNU_SOURCE    /* unshare, for a disk that is really full */
#include "files.h"
#include "small_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What the system calls below do; each test is a process of its own, so it may set them freely. */
static int64_t longest_transfer = INT64_MAX; /* bytes that one call moves at most */
static bool interrupted;                     /* every other call fails with EINTR */
static int write_error, close_error, reserve_error;
static int64_t bytes_read, read_calls, bytes_reserved;

static bool interrupt_now(void)
{
    static bool odd;
    odd = !odd;
    errno = EINTR;
    return interrupted && odd;
}

ssize_t pread(int fd, void *bytes, size_t count, off_t offset)
{
    if (interrupt_now())
        return -1;
    int64_t part = (int64_t)count < longest_transfer ? (int64_t)count : longest_transfer;
    ssize_t moved = syscall(SYS_pread64, fd, bytes, part, offset);
    bytes_read += moved > 0 ? moved : 0;
    read_calls++;
    return moved;
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset)
{
    if (interrupt_now())
        return -1;
    errno = write_error;
    int64_t part = (int64_t)count < longest_transfer ? (int64_t)count : longest_transfer;
    return write_error ? -1 : syscall(SYS_pwrite64, fd, bytes, part, offset);
}

int posix_fallocate(int fd, off_t offset, off_t length)
{
    if (interrupt_now())
        return EINTR;
    if (reserve_error)
        return reserve_error;
    bytes_reserved = offset == 0 ? length : -1;
    return syscall(SYS_fallocate, fd, 0, offset, length) == 0 ? 0 : errno;
}

int close(int fd)
{
    int result = (int)syscall(SYS_close, fd);
    errno = close_error ? close_error : errno;
    return close_error ? -1 : result;
}

/* Writes a file of this version with this header, as it stands, and this many data bytes 0. */
static void write_npy(const char *name, int version, const char *header, int64_t data_bytes)
{
    unsigned char bytes[4096] = "\x93NUMPY";
    int64_t length = (int64_t)strlen(header), start = version > 1 ? 12 : 10;
    ck_assert_int_lt(start + length + data_bytes, (int64_t)sizeof bytes);
    bytes[6] = (unsigned char)version;
    bytes[8] = (unsigned char)(length % 256);
    bytes[9] = (unsigned char)(length / 256);
    memcpy(bytes + start, header, length);
    write_bytes(path_of("%s", name), bytes, start + length + data_bytes);
}

/* For calls that must succeed: shows the error if one does not. And ck_assert for the loops of many
 * thousand rounds, where Check's own would write to disk each time. */
#define must(call, file) ((call) ? (void)0 : ck_abort_msg("%s", (file).error))
#define expect(condition) ((condition) ? (void)0 : ck_abort_msg("not so: %s", #condition))

/* A refusal is one line that begins with the path and has these words. */
static void assert_error(const struct npy *file, const char *path, const char *words)
{
    size_t length = strlen(path);
    const char *fault = NULL;
    if (strncmp(file->error, path, length) != 0 || file->error[length] != ':')
        fault = "does not begin with the path";
    else if (!strstr(file->error + length, words))
        fault = "lacks its key words";
    else if (strpbrk(file->error, "\n\r"))
        fault = "is more than one line";
    if (fault)
        ck_abort_msg("the error %s (\"%s\"): %s", fault, words, file->error);
}

static void assert_refused(const char *name, const char *words)
{
    struct npy file;
    const char *path = name[0] == '/' ? name : path_of("%s", name);
    ck_assert_msg(!npy_open(&file, path), "%s was opened; expected: %s", path, words);
    assert_error(&file, path, words);
    ck_assert_int_eq(file.fd, -1);
    ck_assert(npy_close(&file));
}

/* npy_create, in the place of what an earlier test has left. */
static bool create(struct npy *file, const char *path, enum npy_type type, int dims,
                   const int64_t *shape)
{
    unlink(path);
    return npy_create(file, path, type, dims, shape);
}

/* All rows of axis 0. */
static struct npy_slice whole(const struct npy *file)
{
    return (struct npy_slice){.stride = 1, .count = file->shape[0]};
}

/* Reads all numbers of a file. */
static struct npy load(const char *path, enum npy_type as, void *numbers)
{
    struct npy file;
    must(npy_open(&file, path), file);
    must(npy_read(&file, whole(&file), as, numbers), file);
    must(npy_close(&file), file);
    return file;
}

static const int64_t cube[] = {2, 3, 4, 5};
static const int64_t widths[] = {1, 2, 4, 8, 1, 2, 4, 4, 8};

TESTS(round_trip, 0, 4 * 5)
{
    enum npy_type type = (enum npy_type)(_i % 4);
    int dims = _i / 4;
    float single[120], single_back[121];
    double wide[120], wide_back[121];
    bool flags[120], flags_back[120];
    for (int i = 0; i < 120; i++) {
        single[i] = (float)(wide[i] = i % 2 ? -i : i + 0.5);
        flags[i] = i % 3 == 0;
    }

    /* Write in the widest type, and look at the file before anything of npy.c reads it. */
    struct npy file;
    must(create(&file, path_of("round.npy"), type, dims, cube), file);
    int64_t elements = npy_elements(&file);
    static const int64_t products[] = {1, 2, 6, 24, 120};
    ck_assert_int_eq(elements, products[dims]);
    if (type == NPY_BOOL)
        must(npy_write(&file, whole(&file), NPY_BOOL, flags), file);
    else
        must(npy_write(&file, whole(&file), NPY_FLOAT64, wide), file);
    must(npy_close(&file), file);
    char bytes[2048];
    int64_t size = read_bytes(path_of("round.npy"), bytes, sizeof bytes);
    ck_assert_int_eq(file.data_offset % 64, 0);
    ck_assert_int_eq(size, file.data_offset + elements * widths[type]);
    ck_assert_int_eq(bytes[file.data_offset - 1], '\n');

    /* Read in every type that holds the numbers, from the reopened file. */
    must(npy_open(&file, path_of("round.npy")), file);
    ck_assert_int_eq(file.type, type);
    ck_assert_int_eq(file.dims, dims);
    for (int axis = 0; axis < NPY_MAX_DIMS; axis++)
        ck_assert_int_eq(file.shape[axis], axis < dims ? cube[axis] : 1);
    single_back[elements] = 77;
    wide_back[elements] = 77;
    if (type == NPY_BOOL) {
        must(npy_read(&file, whole(&file), NPY_BOOL, flags_back), file);
        ck_assert_mem_eq(flags, flags_back, elements * sizeof *flags);
    } else {
        must(npy_read(&file, whole(&file), NPY_FLOAT64, wide_back), file);
        ck_assert_mem_eq(wide, wide_back, elements * sizeof *wide);
        ck_assert(wide_back[elements] == 77);
    }
    if (type == NPY_FLOAT16 || type == NPY_FLOAT32) {
        must(npy_read(&file, whole(&file), NPY_FLOAT32, single_back), file);
        ck_assert_mem_eq(single, single_back, elements * sizeof *single);
        ck_assert(single_back[elements] == 77);
    }
    must(npy_close(&file), file);

    /* Write from float32 what float64 wrote: the same file. */
    if (type != NPY_BOOL) {
        char again[2048];
        must(create(&file, path_of("round.npy"), type, dims, cube), file);
        must(npy_write(&file, whole(&file), NPY_FLOAT32, single), file);
        must(npy_close(&file), file);
        ck_assert_int_eq(read_bytes(path_of("round.npy"), again, sizeof again), size);
        ck_assert_mem_eq(bytes, again, size);
    }
}

/* Every slice of a (2, 3, 4, 5) array along one axis, read and written, in one pair of types. Only
 * the bytes of the rows that were asked for may be read, and those that lie together at once. */
static void check_slices(enum npy_type type, int axis)
{
    struct npy file;
    double all[120], rows[121], want[120];
    for (int i = 0; i < 120; i++)
        all[i] = i + 1;
    must(create(&file, path_of("slices.npy"), type, 4, cube), file);
    int64_t length = cube[axis], row = npy_row_elements(&file, axis);
    static const int64_t rows_of_axes[] = {60, 20, 5, 1};
    ck_assert_int_eq(row, rows_of_axes[axis]);
    int seen = 0;
    for (struct npy_slice s = {.axis = axis}; s.outer < 120 / length / row; s.outer++)
        for (s.first = 0; s.first < length; s.first++)
            for (s.stride = 1; s.stride <= length + 1; s.stride++)
                for (s.count = 0; s.first + (s.count - 1) * s.stride < length; s.count++, seen++) {
                    must(npy_write(&file, whole(&file), NPY_FLOAT64, all), file);
                    for (int i = 0; i < 121; i++)
                        rows[i] = -7;
                    bytes_read = read_calls = 0;
                    must(npy_read(&file, s, NPY_FLOAT64, rows), file);
                    expect(bytes_read == s.count * row * widths[type]);
                    expect(rows[s.count * row] == -7);
                    if (type == NPY_FLOAT64 && !interrupted)
                        expect(read_calls == (s.stride == 1 ? s.count > 0 : s.count));

                    /* Compare, and write back what no other row has. */
                    memcpy(want, all, sizeof all);
                    for (int64_t i = 0; i < s.count * row; i++) {
                        int64_t at = s.outer * length + s.first + i / row * s.stride;
                        expect(rows[i] == all[at * row + i % row]);
                        want[at * row + i % row] = rows[i] = (double)(-1 - i);
                    }
                    must(npy_write(&file, s, NPY_FLOAT64, rows), file);
                    must(npy_read(&file, whole(&file), NPY_FLOAT64, rows), file);
                    ck_assert_mem_eq(rows, want, sizeof want);
                }
    ck_assert_int_gt(seen, 10);
    must(npy_close(&file), file);
}

TESTS(slices_converted, 0, 4)
{
    check_slices(NPY_FLOAT16, _i);
    check_slices(NPY_FLOAT32, _i);
}

TESTS(slices_direct, 0, 4)
{
    check_slices(NPY_FLOAT64, _i);
}

TEST(slices_in_pieces)
{
    /* System calls that move little and are interrupted change nothing but the time. */
    longest_transfer = 7;
    interrupted = true;
    check_slices(NPY_FLOAT16, 1);
    check_slices(NPY_FLOAT64, 2);
}

TEST(long_rows)
{
    /* Rows longer than the buffer of the conversion, and not a multiple of it. */
    enum { ROW = 9001 };
    static float values[4 * ROW], back[2 * ROW];
    for (int i = 0; i < 4 * ROW; i++)
        values[i] = (float)(i % 2039);
    struct npy file;
    must(create(&file, path_of("long.npy"), NPY_FLOAT16, 2, (const int64_t[]){4, ROW}), file);
    must(npy_write(&file, whole(&file), NPY_FLOAT32, values), file);
    must(
        npy_read(&file, (struct npy_slice){.first = 1, .stride = 2, .count = 2}, NPY_FLOAT32, back),
        file);
    ck_assert_mem_eq(back, values + ROW, ROW * sizeof *back);
    ck_assert_mem_eq(back + ROW, values + 3 * ROW, ROW * sizeof *back);
    must(
        npy_read(&file, (struct npy_slice){.first = 1, .stride = 1, .count = 2}, NPY_FLOAT32, back),
        file);
    ck_assert_mem_eq(back, values + ROW, sizeof back);
    must(npy_close(&file), file);
}

TEST(nothing_is_touched)
{
    struct npy file;
    must(create(&file, path_of("none.npy"), NPY_FLOAT16, 2, (const int64_t[]){3, 4}), file);
    struct npy_slice none = {.axis = 1, .outer = 99, .first = 99, .stride = 1};
    must(npy_read(&file, none, NPY_FLOAT32, NULL), file);
    must(npy_write(&file, none, NPY_FLOAT32, NULL), file);
    must(npy_close(&file), file);

    /* Axes of length 0, before and after the one that is read. */
    must(create(&file, path_of("none.npy"), NPY_FLOAT32, 3, (const int64_t[]){2, 3, 0}), file);
    must(npy_read(&file, (struct npy_slice){.axis = 1, .stride = 2, .count = 2}, NPY_FLOAT64, NULL),
         file);
    must(npy_close(&file), file);
    must(npy_open(&file, path_of("none.npy")), file);
    ck_assert_int_eq(npy_elements(&file), 0);
    must(npy_close(&file), file);
}

static const struct {
    struct npy_slice slice;
} outside[] = {
    {{.axis = -1, .stride = 1, .count = 1}},
    {{.axis = 3, .stride = 1, .count = 1}},
    {{.axis = INT32_MAX, .stride = 1, .count = 1}},
    {{.axis = 0, .outer = 1, .stride = 1, .count = 1}},
    {{.axis = 1, .outer = -1, .stride = 1, .count = 1}},
    {{.axis = 1, .outer = 2, .stride = 1, .count = 1}},
    {{.axis = 1, .first = -1, .stride = 1, .count = 1}},
    {{.axis = 1, .first = 3, .stride = 1, .count = 1}},
    {{.axis = 1, .first = 3, .stride = 2, .count = 1}},
    {{.axis = 1, .first = 1, .stride = 1, .count = 3}},
    {{.axis = 1, .first = 1, .stride = 2, .count = 2}},
    {{.axis = 1, .stride = 0, .count = 1}},
    {{.axis = 1, .stride = -1, .count = 1}},
    {{.axis = 1, .first = 2, .stride = -1, .count = 1}},
    {{.axis = 1, .stride = 1, .count = -1}},
    {{.axis = 1, .stride = 1, .count = INT64_MIN}},
    {{.axis = 1, .stride = INT64_MAX, .count = INT64_MAX}},
    {{.axis = 2, .outer = INT64_MAX, .first = INT64_MAX, .stride = 2, .count = INT64_MAX / 2}},
};

TESTS_OF(slice_outside, outside)
{
    struct npy file;
    float rows[24] = {0};
    const char *path = path_of("outside.npy");
    must(create(&file, path, NPY_FLOAT32, 3, cube), file);
    ck_assert(!npy_read(&file, outside[_i].slice, NPY_FLOAT32, rows));
    assert_error(&file, path, "(2, 3, 4)");
    ck_assert(!npy_write(&file, outside[_i].slice, NPY_FLOAT64, rows));
    assert_error(&file, path, "(2, 3, 4)");
    must(npy_close(&file), file);
}

TEST(types_that_do_not_fit)
{
    /* Row: the file's type. Column: the type in memory. r is read, w is written, else refused. */
    static const char *const allowed[9][9] = {
        {"rw", "", "", "", "", "", "", "", ""},   {"", "", "rw", "rw", "", "", "", "", ""},
        {"", "", "rw", "rw", "", "", "", "", ""}, {"", "", "w", "rw", "", "", "", "", ""},
        {"", "", "", "", "", "", "", "", "rw"},   {"", "", "", "", "", "", "", "", "rw"},
        {"", "", "", "", "", "", "", "", "rw"},   {"", "", "", "", "", "", "", "", "rw"},
        {"", "", "", "", "", "", "", "", "rw"},
    };
    const char *path = path_of("types.npy");
    for (int type = 0; type < 9; type++)
        for (int as = 0; as < 9; as++) {
            struct npy file;
            double rows[2] = {0};
            must(create(&file, path, (enum npy_type)type, 1, cube), file);
            ck_assert_int_eq(npy_read(&file, whole(&file), (enum npy_type)as, rows),
                             strchr(allowed[type][as], 'r') != NULL);
            if (file.error[0] != '\0')
                assert_error(&file, path, npy_type_name((enum npy_type)type));
            ck_assert_int_eq(npy_write(&file, whole(&file), (enum npy_type)as, rows),
                             strchr(allowed[type][as], 'w') != NULL);
            must(npy_close(&file), file);
        }
    ck_assert_str_eq(npy_type_name(NPY_BOOL), "bool");
    ck_assert_str_eq(npy_type_name(NPY_FLOAT64), "float64");
    ck_assert_str_eq(npy_type_name(NPY_INT64), "int64");
}

/* The limits of the integer types, by type from NPY_UINT8 on. */
static const int64_t limits[5][2] = {
    {0, 255}, {0, 65535}, {0, UINT32_MAX}, {INT32_MIN, INT32_MAX}, {INT64_MIN, INT64_MAX}};

TESTS(integers_round_trip, 0, 5)
{
    /* Every type keeps its limits and what lies between, by a stride and in small pieces, too. */
    enum npy_type type = (enum npy_type)(NPY_UINT8 + _i);
    int64_t low = limits[_i][0], high = limits[_i][1];
    int64_t values[9000], back[9001], count = 9000;
    for (int i = 0; i < 9000; i++)
        values[i] = i % 3 == 0 ? low : i % 3 == 1 ? high : low / 3 + i % 100;
    longest_transfer = _i % 2 ? 7 : INT64_MAX;
    struct npy file;
    write_array(path_of("integers.npy"), type, 1, &count, NPY_INT64, values);
    must(npy_open(&file, path_of("integers.npy")), file);
    ck_assert(file.type == type);
    back[9000] = 77;
    must(npy_read(&file, whole(&file), NPY_INT64, back), file);
    ck_assert_mem_eq(back, values, sizeof values);
    ck_assert(back[9000] == 77);
    struct npy_slice some = {.first = 1, .stride = 3, .count = 5};
    must(npy_read(&file, some, NPY_INT64, back), file);
    for (int i = 0; i < 5; i++)
        ck_assert(back[i] == high);
    must(npy_close(&file), file);
}

TEST(integers_that_do_not_fit)
{
    for (int t = 0; t < 4; t++)
        for (int side = 0; side < 2; side++) {
            struct npy file;
            const char *path = path_of("narrow.npy");
            char words[64];
            int64_t rows[] = {1, limits[t][side] + (side ? 1 : -1)};
            enum npy_type type = (enum npy_type)(NPY_UINT8 + t);
            must(create(&file, path, type, 1, cube), file);
            ck_assert(!npy_write(&file, whole(&file), NPY_INT64, rows));
            snprintf(words, sizeof words, "%" PRId64 " does not fit into %s", rows[1],
                     npy_type_name(type));
            assert_error(&file, path, words);
            must(npy_close(&file), file);
        }
}

TEST(bool_has_two_values)
{
    /* (2, 3) of bool, and a byte 2 at [1, 2]: only a slice that has it fails. */
    const char *path = path_of("bool.npy");
    char bytes[512];
    write_npy("bool.npy", 1, "{'descr': '|b1', 'fortran_order': False, 'shape': (2, 3)}", 6);
    int64_t size = read_bytes(path_of("bool.npy"), bytes, sizeof bytes);
    bytes[size - 1] = 2;
    write_bytes(path_of("bool.npy"), bytes, size);
    path = path_of("bool.npy");
    struct npy file;
    bool flags[6];
    must(npy_open(&file, path), file);
    must(npy_read(&file, (struct npy_slice){.stride = 1, .count = 1}, NPY_BOOL, flags), file);
    struct npy_slice columns = {.axis = 1, .outer = 1, .stride = 2, .count = 2};
    ck_assert(!npy_read(&file, columns, NPY_BOOL, flags));
    assert_error(&file, path, "[1, 2]");
    assert_error(&file, path, "byte 2");
    ck_assert(!npy_read(&file, whole(&file), NPY_BOOL, flags));
    assert_error(&file, path, "[1, 2]");
    must(npy_close(&file), file);
}

/* The value of a float16 by the definition, and not by bits. NaN not asked for. */
static double half_by_definition(int half)
{
    int exponent = half >> 10 & 31, fraction = half & 1023;
    double size = exponent == 31  ? INFINITY
                  : exponent == 0 ? ldexp(fraction, -24)
                                  : ldexp(1024 + fraction, exponent - 25);
    return half >> 15 ? -size : size;
}

static bool is_nan_half(int half)
{
    return (half & 0x7fff) > 0x7c00;
}

/* Writes values as float16 and returns the bits. Count is at most 65536. */
static const uint16_t *written_halves(enum npy_type as, const void *values, int64_t count)
{
    struct npy file;
    static unsigned char bytes[65536 * 2 + 256];
    static uint16_t halves[65536];
    must(create(&file, path_of("half.npy"), NPY_FLOAT16, 1, &count), file);
    must(npy_write(&file, whole(&file), as, values), file);
    must(npy_close(&file), file);
    read_bytes(path_of("half.npy"), bytes, sizeof bytes);
    memcpy(halves, bytes + file.data_offset, count * sizeof *halves);
    return halves;
}

TEST(half_every_pattern)
{
    /* The file is written by hand: the bit patterns must not come from the code under test. */
    static unsigned char bytes[10 + 118 + 65536 * 2];
    memset(bytes, ' ', 128);
    memcpy(bytes, "\x93NUMPY\1\0\x76", 10);
    const char *header = "{'descr': '<f2', 'fortran_order': False, 'shape': (65536,), }";
    memcpy(bytes + 10, header, strlen(header));
    for (int half = 0; half < 65536; half++) {
        bytes[128 + 2 * half] = (unsigned char)(half & 255);
        bytes[129 + 2 * half] = (unsigned char)(half >> 8);
    }
    write_bytes(path_of("patterns.npy"), bytes, sizeof bytes);

    /* Read: the value of every pattern, and the sign of zeros and NaNs too. */
    static float single[65536];
    static double wide[65536];
    struct npy file;
    must(npy_open(&file, path_of("patterns.npy")), file);
    must(npy_read(&file, whole(&file), NPY_FLOAT32, single), file);
    must(npy_read(&file, whole(&file), NPY_FLOAT64, wide), file);
    must(npy_close(&file), file);
    for (int half = 0; half < 65536; half++) {
        expect(is_nan_half(half) ? isnan(wide[half]) : wide[half] == half_by_definition(half));
        expect(is_nan_half(half) ? isnan(single[half]) : single[half] == (float)wide[half]);
        expect((signbit(wide[half]) != 0) == half >> 15);
        expect((signbit(single[half]) != 0) == half >> 15);
    }

    /* Write: the same patterns come back; a signalling NaN may have become quiet (bit 9). */
    for (int as = NPY_FLOAT32; as <= NPY_FLOAT64; as++) {
        const void *values = as == NPY_FLOAT32 ? (const void *)single : (const void *)wide;
        const uint16_t *halves = written_halves((enum npy_type)as, values, 65536);
        for (int half = 0; half < 65536; half++)
            expect(halves[half] == (is_nan_half(half) ? half | 0x200 : half));
    }
}

TEST(half_rounding)
{
    /* Between every two neighbours: the middle goes to the even one, and the nearest double (or
     * float) on either side of the middle to its own side. 65536 stands for the one after 65504. */
    enum { PAIRS = 0x7c00 };
    static double wide[6 * PAIRS];
    static float single[6 * PAIRS];
    for (int sign = 0; sign < 2; sign++) {
        for (int low = 0; low < PAIRS; low++) {
            double upper = low + 1 == PAIRS ? 65536 : half_by_definition(low + 1);
            double middle = (half_by_definition(low) + upper) / 2;
            for (int side = -1; side <= 1; side++) {
                double toward = side < 0 ? 0 : INFINITY;
                double near = side == 0 ? middle : nextafter(middle, toward);
                float near_single =
                    side == 0 ? (float)middle : nextafterf((float)middle, (float)toward);
                wide[3 * low + side + 1] = sign ? -near : near;
                single[3 * low + side + 1] = sign ? -near_single : near_single;
            }
        }
        for (int as = NPY_FLOAT32; as <= NPY_FLOAT64; as++)
            for (int64_t from = 0; from < 3 * PAIRS; from += 60000) {
                const void *values =
                    as == NPY_FLOAT32 ? (const void *)(single + from) : (const void *)(wide + from);
                int64_t count = 3 * PAIRS - from < 60000 ? 3 * PAIRS - from : 60000;
                const uint16_t *halves = written_halves((enum npy_type)as, values, count);
                for (int64_t i = 0; i < count; i++) {
                    int64_t low = (from + i) / 3, side = (from + i) % 3 - 1;
                    int64_t want = side < 0 ? low : side > 0 ? low + 1 : low + low % 2;
                    expect(halves[i] == want + sign * 0x8000);
                }
            }
    }
}

TEST(half_extremes)
{
    static const struct {
        double value;
        int half;
    } cases[] = {
        {65504, 0x7bff},
        {65519.999, 0x7bff},
        {65520, 0x7c00},
        {-65520, 0xfc00},
        {1e5, 0x7c00},
        {1e30, 0x7c00},
        {DBL_MAX, 0x7c00},
        {-DBL_MAX, 0xfc00},
        {INFINITY, 0x7c00},
        {-INFINITY, 0xfc00},
        {0.0, 0},
        {-0.0, 0x8000},
        {DBL_TRUE_MIN, 0},
        {-DBL_MIN, 0x8000},
        {0x1p-25, 0},
        {0x1.8p-25, 1},
        {0x1.fffffffp-26, 0},
        {0x1p-24, 1},
        {0x1.8p-24, 2},
        {0x1p-14, 0x400},
        {1 + 0x1p-11, 0x3c00},
        {1.0, 0x3c00},
        {-1 / 3.0, 0xb555},
        {M_PI, 0x4248},
        /* Through float the last bit would be lost, and the tie would go the other way. */
        {1 + 0x1p-11 + 0x1p-40, 0x3c01},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int half = written_halves(NPY_FLOAT64, &cases[i].value, 1)[0];
        ck_assert_msg(half == cases[i].half, "%a became 0x%04x, not 0x%04x", cases[i].value,
                      (unsigned)half, (unsigned)cases[i].half);
    }
    double nan_value = NAN;
    ck_assert(is_nan_half(written_halves(NPY_FLOAT64, &nan_value, 1)[0]));
}

TEST(single_rounding)
{
    static const double wide[] = {1 + 0x1p-24,
                                  1 + 0x1p-24 + 0x1p-52,
                                  1 + 0x1.8p-23,
                                  1e300,
                                  -1e300,
                                  0x1p-150,
                                  0x1.8p-149,
                                  -0.0,
                                  NAN};
    static const float want[] = {1, 1 + 0x1p-23f, 1 + 0x1p-22f, INFINITY, -INFINITY,
                                 0, 0x1p-148f,    -0.0f,        NAN};
    float back[9];
    struct npy file;
    must(create(&file, path_of("single.npy"), NPY_FLOAT32, 1, (const int64_t[]){9}), file);
    must(npy_write(&file, whole(&file), NPY_FLOAT64, wide), file);
    must(npy_read(&file, whole(&file), NPY_FLOAT32, back), file);
    must(npy_close(&file), file);
    ck_assert_mem_eq(back, want, 8 * sizeof *back);
    ck_assert(isnan(back[8]));
}

TEST(bytes_by_hand)
{
    /* 1.0 and [1, -2] of float32; 2.0 and [[0.5]] of float64; 3.0 and [true, false] of bool. The
     * lengths 58, 60 and 56 of the headers are those of the texts. */
    static const char one[] = "\x93NUMPY\1\0\x3a\0"
                              "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n"
                              "\0\0\x80\x3f\0\0\0\xc0";
    static const char two[] = "\x93NUMPY\2\0\x3c\0\0\0"
                              "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 1), }\n"
                              "\0\0\0\0\0\0\xe0\x3f";
    static const char three[] = "\x93NUMPY\3\0\x38\0\0\0"
                                "{\"shape\": (2,), \"fortran_order\": False, \"descr\": \"|b1\"}\n"
                                "\1\0";
    float single[2];
    double wide;
    bool flags[2];
    struct npy file =
        load(write_bytes(path_of("hand.npy"), one, sizeof one - 1), NPY_FLOAT32, single);
    ck_assert(file.data_offset == 68 && single[0] == 1 && single[1] == -2);
    file = load(write_bytes(path_of("hand.npy"), two, sizeof two - 1), NPY_FLOAT64, &wide);
    ck_assert(file.dims == 2 && wide == 0.5);
    load(write_bytes(path_of("hand.npy"), three, sizeof three - 1), NPY_BOOL, flags);
    ck_assert(flags[0] && !flags[1]);
}

/* Headers of six float32 numbers in shape (2, 3), in every spelling that is a Python dictionary. */
static const char *const spellings[] = {
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }          \n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)}",
    "{'shape':(2,3),'descr':'<f4','fortran_order':False}",
    "{\"fortran_order\": False, 'shape': (2, 3), \"descr\": '<f4'}",
    "  { 'descr' : \"<f4\" ,\t'fortran_order'\n:\r\nFalse , 'shape' : ( 2 , 3 , ) , }  \t\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L), }\n",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 3L,), }\n",
};

TESTS_OF(header_spelling, spellings)
{
    for (int version = 1; version <= 3; version++) {
        struct npy file;
        write_npy("spelling.npy", version, spellings[_i], 24);
        must(npy_open(&file, path_of("spelling.npy")), file);
        ck_assert(file.type == NPY_FLOAT32 && file.dims == 2);
        ck_assert(file.shape[0] == 2 && file.shape[1] == 3);
        must(npy_close(&file), file);
    }
}

#define SHAPED(shape) "{'descr': '<f4', 'fortran_order': False, 'shape': " shape ", }\n"
#define TYPED(descr) "{'descr': " descr ", 'fortran_order': False, 'shape': (2,), }\n"

static const struct {
    const char *header;
    int64_t data_bytes;
    const char *words[3];
} headers[] = {
    /* Not a dictionary of the three keys. */
    {"", 8, {"cannot be parsed", "numpy.save"}},
    {"\n", 8, {"cannot be parsed"}},
    {"descr", 8, {"cannot be parsed", "byte 0"}},
    {"{", 8, {"cannot be parsed"}},
    {"{}", 8, {"cannot be parsed"}},
    {"{,}", 8, {"cannot be parsed"}},
    {"{'descr': '<f4', 'fortran_order': False, }", 8, {"cannot be parsed"}},
    {"{'descr': '<f4', 'shape': (2,), }", 8, {"cannot be parsed"}},
    {"{'fortran_order': False, 'shape': (2,), }", 8, {"cannot be parsed"}},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}", 8, {"cannot be parsed"}},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'shape': (2,)}", 8, {"cannot be"}},
    {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", 8, {"cannot be"}},
    {"{'fortran_order': False, 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}",
     8,
     {"cannot be"}},
    {"{'descr\\: '<f4', 'fortran_order': False, 'shape': (2,)}", 8, {"cannot be parsed"}},
    {TYPED("'<f4 and then more than any dtype has'"), 8, {"cannot be parsed"}},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,),,}", 8, {"cannot be parsed"}},
    {"{'descr': '<f4' 'fortran_order': False, 'shape': (2,)}", 8, {"cannot be parsed", "byte 16"}},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)", 8, {"cannot be parsed"}},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x", 8, {"cannot be parsed"}},
    {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}}", 8, {"cannot be parsed"}},
    {"{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}", 8, {"cannot be parsed"}},
    {"{'descr\": '<f4', 'fortran_order': False, 'shape': (2,)}", 8, {"cannot be parsed"}},
    {"{'descr': '<f4\", 'fortran_order': False, 'shape': (2,)}", 8, {"cannot be parsed"}},
    {"{'de\\x73cr': '<f4', 'fortran_order': False, 'shape': (2,)}", 8, {"cannot be parsed"}},
    {"{'a key that is far too long to be one': 1}", 8, {"cannot be parsed"}},

    /* Shapes. */
    {SHAPED("(2)"), 8, {"cannot be parsed"}},
    {SHAPED("2"), 8, {"cannot be parsed"}},
    {SHAPED("[2]"), 8, {"cannot be parsed"}},
    {SHAPED("(2,,)"), 8, {"cannot be parsed"}},
    {SHAPED("(,)"), 8, {"cannot be parsed"}},
    {SHAPED("(2 3)"), 24, {"cannot be parsed"}},
    {SHAPED("(2.0,)"), 8, {"cannot be parsed"}},
    {SHAPED("(0x2,)"), 8, {"cannot be parsed"}},
    {SHAPED("(x,)"), 8, {"cannot be parsed"}},
    {SHAPED("(2LL,)"), 8, {"cannot be parsed"}},
    {SHAPED("(3, -2)"), 8, {"axis 1", "negative", "-2"}},
    {SHAPED("(0, -2)"), 0, {"axis 1", "negative"}},
    {SHAPED("(1, 1, 1, 1, 1, 1, 1, 1, 2)"), 8, {"more than 8 axes", "reshape"}},
    {SHAPED("(4294967296, 4294967296)"), 8, {"overflows", "(4294967296, 4294967296)", "float32"}},
    {SHAPED("(4611686018427387904, 4)"), 0, {"overflows"}},
    {SHAPED("(9223372036854775807,)"), 8, {"overflows"}},
    {SHAPED("(99999999999999999999999999,)"), 8, {"overflows"}},
    {SHAPED("(0, 4294967296, 4294967296)"), 0, {"overflows"}},
    {SHAPED("(-99999999999999999999999999,)"), 8, {"negative"}},

    /* Sizes. The largest shape that does not overflow is only too long for the file. */
    {SHAPED("(3, 4)"), 47, {"cut short", "47 bytes", "needs 48"}},
    {SHAPED("(3, 4)"), 49, {"after its data", "49 bytes", "needs 48"}},
    {SHAPED("(2,)"), 0, {"cut short", "0 bytes", "(2,) of float32 needs 8"}},
    {SHAPED("()"), 3, {"cut short", "needs 4"}},
    {SHAPED("(5, 0)"), 1, {"after its data", "needs 0"}},
    {SHAPED("(1152921504606846976,)"), 8, {"cut short", "needs 4611686018427387904"}},

    /* Types, and the order of the axes. */
    {TYPED("'>f4'"), 8, {"'>f4' is big-endian", "astype('<f4')"}},
    {TYPED("'>f2'"), 8, {"'>f2' is big-endian", "astype('<f2')"}},
    {TYPED("'>f8'"), 8, {"'>f8' is big-endian", "astype('<f8')"}},
    {TYPED("'<u8'"), 16, {"uint64 ('<u8')", "astype('float32')", "int32 and int64 are accepted"}},
    {TYPED("'>i8'"), 16, {"'>i8' is big-endian", "astype('<i8')"}},
    {TYPED("'<i2'"), 4, {"int16 ('<i2')", "astype('float32')"}},
    {TYPED("'|i1'"), 2, {"int8 ('|i1')"}},
    {TYPED("'>u1'"), 2, {"uint8 ('>u1')"}},
    {TYPED("'<c8'"), 8, {"complex64 ('<c8')"}},
    {TYPED("'<f16'"), 8, {"float128 ('<f16')"}},
    {TYPED("'<i99999999999999999999'"), 8, {"astype('float32')"}},
    {TYPED("'<U5'"), 8, {"text ('<U5')"}},
    {TYPED("'|S5'"), 8, {"strings ('|S5')"}},
    {TYPED("'|O'"), 8, {"Python objects ('|O')"}},
    {TYPED("'|V2'"), 8, {"bfloat16", "('|V2')"}},
    {TYPED("'<M8[ns]'"), 8, {"dates ('<M8[ns]')"}},
    {TYPED("'<m8[ns]'"), 8, {"('<m8[ns]')"}},
    {TYPED("'f4'"), 8, {"'f4'", "float32"}},
    {TYPED("'=f4'"), 8, {"('=f4')"}},
    {TYPED("'?'"), 8, {"('?')"}},
    {TYPED("'>b1'"), 8, {"('>b1')"}},
    {TYPED("''"), 8, {"('')"}},
    {TYPED("'<'"), 8, {"('<')"}},
    {TYPED("'\n<f4'"), 8, {"astype"}},
    {TYPED("[('x', '<f4'), ('y', '<f4')]"), 16, {"structured", "each field"}},
    {TYPED("('<f4', (2,))"), 16, {"cannot be parsed"}},
    {TYPED("<f4"), 8, {"cannot be parsed"}},
    {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }",
     24,
     {"Fortran", "numpy.ascontiguousarray(array)"}},
};

TESTS_OF(header_refused, headers)
{
    for (int version = 1; version <= 3; version++) {
        write_npy("header.npy", version, headers[_i].header, headers[_i].data_bytes);
        for (int word = 0; word < 3 && headers[_i].words[word]; word++)
            assert_refused("header.npy", headers[_i].words[word]);
    }
}

TEST(not_a_file)
{
    assert_refused("missing.npy", "No such file");
    assert_refused("/", "is a folder");
    assert_refused(path_of("%s", ""), "is a folder");
    assert_refused("/dev/null", "not a regular file");
    ck_assert_int_eq(mkfifo(path_of("pipe.npy"), 0600), 0);
    assert_refused("pipe.npy", "not a regular file");

    /* A line end in a path must not break the line. */
    struct npy file;
    ck_assert(!npy_open(&file, "/no\nfile"));
    ck_assert_ptr_null(strchr(file.error, '\n'));
    static char path[4097];
    memset(path, 'x', 4096);
    ck_assert(!npy_open(&file, path));
    ck_assert_ptr_nonnull(strstr(file.error, ": the path is longer than 4095 bytes"));
    ck_assert(!npy_create(&file, path, NPY_BOOL, 0, NULL));
    ck_assert_ptr_nonnull(strstr(file.error, ": the path is longer than 4095 bytes"));
    path[4095] = '\0';
    ck_assert(!npy_open(&file, path));
    assert_error(&file, path, "File name too long");
}

TEST(not_an_npy)
{
    static const struct {
        const char *bytes;
        int64_t size;
        const char *words;
    } files[] = {
        {"", 0, "is empty"},
        {"1.0 2.0 3.0\n", 12, "not an .npy file"},
        {"x", 1, "not an .npy file"},
        {"PK\3\4 an archive of arrays", 25, "numpy.save (not savez)"},
        {"\x93NUMPy\1\0\0\0\0\0", 12, "not an .npy file"},
        {"\x93", 1, "ends inside the header"},
        {"\x93NUMPY", 6, "ends inside the header"},
        {"\x93NUMPY\1\0\0", 9, "ends inside the header"},
        {"\x93NUMPY\2\0\0\0\0", 11, "ends inside the header"},
        {"\x93NUMPY\1\0\x76\0{'descr': ", 20, "ends inside the header"},
        {"\x93NUMPY\2\0\x76\0\0\0{'descr': ", 22, "ends inside the header"},
        {"\x93NUMPY\4\0\x76\0{'descr': ", 20, "version 4.0"},
        {"\x93NUMPY\0\0\x76\0{'descr': ", 20, "version 0.0"},
        {"\x93NUMPY\0\1\x76\0{'descr': ", 20, "version 0.1"},
        {"\x93NUMPY\1\1\x76\0{'descr': ", 20, "version 1.1"},
        {"\x93NUMPY\2\0\1\0\x10\0{'descr': ", 22, "more than 1 MiB"},
        {"\x93NUMPY\3\0\xff\xff\xff\xff{'descr': ", 22, "4294967295 bytes"},
        {"\x93NUMPY\1\0\2\0{\0", 12, "cannot be parsed"},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        write_bytes(path_of("other.npy"), files[i].bytes, files[i].size);
        assert_refused("other.npy", files[i].words);
    }
}

TEST(header_with_nul)
{
    /* What stands behind a NUL must not be lost from sight. */
    char bytes[256];
    write_npy("nul.npy", 1, SHAPED("(2,)") "   ", 8);
    int64_t size = read_bytes(path_of("nul.npy"), bytes, sizeof bytes);
    struct npy file;
    must(npy_open(&file, path_of("nul.npy")), file);
    must(npy_close(&file), file);
    bytes[size - 8 - 2] = '\0';
    write_bytes(path_of("nul.npy"), bytes, size);
    assert_refused("nul.npy", "cannot be parsed");
}

TEST(longest_header)
{
    /* 1 MiB is accepted (the blanks that pad it may be that many), one more byte is not. */
    static char bytes[12 + (1 << 20) + 1 + 8];
    memset(bytes, ' ', sizeof bytes);
    memcpy(bytes, "\x93NUMPY\2\0\0\0\x10", 12);
    memcpy(bytes + 12, SHAPED("(2,)"), strlen(SHAPED("(2,)")));
    write_bytes(path_of("padded.npy"), bytes, sizeof bytes - 1);
    struct npy file;
    must(npy_open(&file, path_of("padded.npy")), file);
    ck_assert_int_eq(file.data_offset, 12 + (1 << 20));
    must(npy_close(&file), file);
    bytes[8] = 1;
    write_bytes(path_of("padded.npy"), bytes, sizeof bytes);
    assert_refused("padded.npy", "more than 1 MiB");
}

TESTS(every_truncation, 1, 4)
{
    char bytes[512];
    write_npy("whole.npy", _i, SHAPED("(3, 4)"), 48);
    int64_t size = read_bytes(path_of("whole.npy"), bytes, sizeof bytes);
    struct npy file;
    must(npy_open(&file, path_of("whole.npy")), file);
    must(npy_close(&file), file);
    for (int64_t length = 0; length < size; length++) {
        write_bytes(path_of("part.npy"), bytes, length);
        assert_refused("part.npy", length == 0                 ? "is empty"
                                   : length < file.data_offset ? "ends inside the header"
                                                               : "is cut short");
    }
    for (int byte = 0; byte < 256; byte++) {
        bytes[size] = (char)byte;
        write_bytes(path_of("more.npy"), bytes, size + 1);
        assert_refused("more.npy", "after its data");
    }
}

TESTS(every_corruption, 0, 2)
{
    /* Any header byte replaced by any other: refused, or opened with a shape that fits the file. */
    static const char *const texts[] = {
        SHAPED("(3, 4)"), "{'shape': (3L, 4L), \"descr\": '<f4', 'fortran_order': False}"};
    char bytes[512];
    for (int version = 1; version <= 3; version++) {
        write_npy("bad.npy", version, texts[_i], 48);
        int64_t size = read_bytes(path_of("bad.npy"), bytes, sizeof bytes), opened = 0;
        int fd = open(path_of("bad.npy"), O_WRONLY);
        for (int64_t at = 0; at < size - 48; at++) {
            for (int byte = 0; byte < 256; byte++) {
                struct npy file;
                const char *path = path_of("bad.npy");
                double values[48];
                expect(pwrite(fd, &(unsigned char){(unsigned char)byte}, 1, at) == 1);
                if (!npy_open(&file, path)) {
                    assert_error(&file, path, "");
                    continue;
                }
                opened++;
                expect(file.data_offset + npy_elements(&file) * widths[file.type] == size);
                if (file.type >= NPY_UINT8)
                    must(npy_read(&file, whole(&file), NPY_INT64, values), file);
                else if (file.type != NPY_BOOL)
                    must(npy_read(&file, whole(&file), NPY_FLOAT64, values), file);
                must(npy_close(&file), file);
            }
            expect(pwrite(fd, bytes + at, 1, at) == 1);
        }
        close(fd);
        /* At least the replacements by itself opened. */
        ck_assert_int_ge(opened, size - 48);
    }
}

TEST(cut_while_open)
{
    struct npy file;
    float values[2];
    const char *path = path_of("cut.npy");
    must(create(&file, path, NPY_FLOAT32, 1, (const int64_t[]){2}), file);
    ck_assert_int_eq(truncate(path, file.data_offset + 5), 0);
    ck_assert(!npy_read(&file, whole(&file), NPY_FLOAT32, values));
    assert_error(&file, path, "ends at byte 133");
    must(npy_close(&file), file);
}

/* Runs a Python program with NumPy as np, in the folder of this run. */
static void python(const char *program)
{
    setenv("FOLDER", folder, 1);
    FILE *stream = popen("/usr/bin/python3 -", "w");
    ck_assert_ptr_nonnull(stream);
    fprintf(stream, "import os, numpy as np\nos.chdir(os.environ['FOLDER'])\n%s", program);
    ck_assert_msg(pclose(stream) == 0, "Python failed; it needs the package python3-numpy");
}

TEST(numpy_writes)
{
    python("for name in ['f2', 'f4', 'f8']:\n"
           "    a = np.arange(120, dtype=name).reshape(2, 3, 4, 5) - 60.5\n"
           "    for version in [(1, 0), (2, 0), (3, 0)]:\n"
           "        with open('np_%s_%d.npy' % (name, version[0]), 'wb') as stream:\n"
           "            np.lib.format.write_array(stream, a.astype(name), version=version)\n"
           "np.save('np_bool.npy', np.arange(6).reshape(2, 3) % 2 == 1)\n"
           "np.save('np_scalar.npy', np.float32(2.5))\n"
           "np.save('np_none.npy', np.zeros((4, 0, 2), 'f2'))\n"
           "np.save('np_big.npy', np.ones((2, 3), '>f4'))\n"
           "np.save('np_fortran.npy', np.asfortranarray(np.ones((2, 3))))\n"
           "np.save('np_int.npy', np.arange(3, dtype='i2'))\n"
           "for name, low, high in [('u1', 0, 255), ('u2', 0, 65535), ('u4', 0, 2**32 - 1),\n"
           "                        ('i4', -2**31, 2**31 - 1), ('i8', -2**63, 2**63 - 1)]:\n"
           "    np.save('np_%s.npy' % name, np.array([low, 7, high], name))\n"
           "np.save('np_text.npy', np.array(['a']))\n"
           "np.save('np_fields.npy', np.zeros(3, [('x', 'f4'), ('y', 'f8')]))\n"
           "np.save('np_objects.npy', np.array([None]), allow_pickle=True)\n"
           "np.save('np_axes.npy', np.zeros((1,) * 9))\n"
           "np.savez('np_zip.npz', a=np.ones(3))\n");
    struct npy file;
    double values[120];
    for (int version = 1; version <= 3; version++)
        for (int type = NPY_FLOAT16; type <= NPY_FLOAT64; type++) {
            file = load(path_of("np_f%d_%d.npy", 1 << type, version), NPY_FLOAT64, values);
            ck_assert(file.type == (enum npy_type)type && file.dims == 4);
            ck_assert_mem_eq(file.shape, cube, sizeof cube);
            for (int i = 0; i < 120; i++)
                ck_assert(values[i] == i - 60.5);
        }
    static const char *const integers[] = {"u1", "u2", "u4", "i4", "i8"};
    for (int t = 0; t < 5; t++) {
        int64_t back[3];
        load(path_of("np_%s.npy", integers[t]), NPY_INT64, back);
        ck_assert(back[0] == limits[t][0] && back[1] == 7 && back[2] == limits[t][1]);
    }

    /* The small ones. */
    bool flags[6];
    float single;
    load(path_of("np_bool.npy"), NPY_BOOL, flags);
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(flags[i], i % 2);
    ck_assert_int_eq(load(path_of("np_scalar.npy"), NPY_FLOAT32, &single).dims, 0);
    ck_assert(single == 2.5f);
    must(npy_open(&file, path_of("np_none.npy")), file);
    ck_assert_int_eq(npy_elements(&file), 0);
    must(npy_close(&file), file);

    assert_refused("np_big.npy", "'>f4' is big-endian");
    assert_refused("np_fortran.npy", "numpy.ascontiguousarray(array)");
    assert_refused("np_int.npy", "int16 ('<i2')");
    assert_refused("np_text.npy", "text ('<U1')");
    assert_refused("np_fields.npy", "structured");
    assert_refused("np_objects.npy", "Python objects");
    assert_refused("np_axes.npy", "more than 8 axes");
    assert_refused("np_zip.npz", "not an .npy file");
}

TEST(numpy_reads)
{
    double values[120];
    bool flags[6] = {true, false, false, true, true, false};
    for (int i = 0; i < 120; i++)
        values[i] = i - 60.5;
    for (int type = NPY_FLOAT16; type <= NPY_FLOAT64; type++)
        for (int dims = 0; dims <= 4; dims++)
            write_array(path_of("c_f%d_%d.npy", 1 << type, dims), (enum npy_type)type, dims, cube,
                        NPY_FLOAT64, values);
    write_array(path_of("c_bool.npy"), NPY_BOOL, 2, (const int64_t[]){2, 3}, NPY_BOOL, flags);
    write_array(path_of("c_zero.npy"), NPY_FLOAT32, 2, (const int64_t[]){1000, 7}, NPY_BOOL, NULL);
    for (int t = 0; t < 5; t++)
        write_array(path_of("c_integer_%d.npy", t), (enum npy_type)(NPY_UINT8 + t), 1, cube,
                    NPY_INT64, limits[t]);

    /* Memory mapping needs the data where the header says, in C order. */
    python("for name in ['f2', 'f4', 'f8']:\n"
           "    for dims in range(5):\n"
           "        a = np.load('c_%s_%d.npy' % (name, dims), mmap_mode='r' if dims else None)\n"
           "        shape = (2, 3, 4, 5)[:dims]\n"
           "        want = np.arange(np.prod(shape, dtype=int)).reshape(shape) - 60.5\n"
           "        assert a.dtype == name and a.shape == shape, (a.dtype, a.shape)\n"
           "        assert (a == want).all() and a.flags.c_contiguous\n"
           "for t, name in enumerate(['u1', 'u2', 'u4', 'i4', 'i8']):\n"
           "    a, limits = np.load('c_integer_%d.npy' % t), np.iinfo(name)\n"
           "    assert a.dtype == name and a.tolist() == [limits.min, limits.max], a\n"
           "a = np.load('c_bool.npy')\n"
           "assert a.dtype == bool and a.tolist() == [[True, False, False], [True, True, False]]\n"
           "a = np.load('c_zero.npy')\n"
           "assert a.dtype == 'f4' and a.shape == (1000, 7) and not a.any()\n");
}

/* A create that fails leaves no file. */
static void assert_not_created(const char *name, int64_t length, const char *words)
{
    struct npy file;
    const char *path = path_of("%s", name);
    ck_assert(!npy_create(&file, path, NPY_FLOAT32, 1, &length));
    assert_error(&file, path, words);
    ck_assert_int_eq(file.fd, -1);
    ck_assert(npy_close(&file));
    ck_assert_int_ne(access(path, F_OK), 0);
}

TEST(file_too_large)
{
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {.rlim_cur = 65536, .rlim_max = 65536};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_not_created("large.npy", 1 << 18, "cannot reserve 1048704 bytes: File too large");
}

TEST(write_fails)
{
    write_error = ENOSPC;
    assert_not_created("late.npy", 4, "cannot be written at byte 0: No space left");
    write_error = 0;
    struct npy file;
    const char *path = path_of("late.npy");
    must(create(&file, path, NPY_FLOAT32, 1, cube), file);
    write_error = EIO;
    ck_assert(!npy_write(&file, whole(&file), NPY_FLOAT32, (const float[]){1, 2}));
    assert_error(&file, path, "cannot be written at byte 128: Input/output error");
    close_error = ENOSPC;
    ck_assert(!npy_close(&file));
    assert_error(&file, path, "cannot be closed: No space left");
    ck_assert(npy_close(&file));
}

TEST(no_reservation)
{
    /* A file system that cannot reserve gets the length set; a full one is an error. */
    static const int errors[] = {EINVAL, EOPNOTSUPP};
    struct npy file;
    for (int i = 0; i < 2; i++) {
        reserve_error = errors[i];
        must(create(&file, path_of("sparse.npy"), NPY_FLOAT64, 4, cube), file);
        must(npy_close(&file), file);
        must(npy_open(&file, path_of("sparse.npy")), file);
        must(npy_close(&file), file);
        ck_assert_int_eq(remove(path_of("sparse.npy")), 0);
    }
    reserve_error = ENOSPC;
    assert_not_created("sparse.npy", 1 << 18, "1048704 bytes: No space left");
}

TEST(space_is_reserved)
{
    /* Not by the blocks that stat counts: some file systems compress, or reserve elsewhere. */
    struct npy file;
    must(create(&file, path_of("space.npy"), NPY_FLOAT32, 1, (const int64_t[]){1 << 18}), file);
    ck_assert_int_eq(bytes_reserved, file.data_offset + (1 << 20));
    must(npy_close(&file), file);
}

TEST(disk_full)
{
    const char *disk = path_of("disk");
    ck_assert_int_eq(mkdir(disk, 0700), 0);
    if (!small_disk_mount(disk)) {
        fprintf(stderr, "check_npy: disk_full skipped: no file system can be mounted here\n");
        return;
    }
    assert_not_created("disk/full.npy", 1 << 18, "No space left");
    struct npy file;
    must(create(&file, path_of("disk/fits.npy"), NPY_FLOAT32, 1, (const int64_t[]){1 << 10}), file);
    must(npy_close(&file), file);
}

TEST(cannot_create)
{
    struct npy file;
    assert_not_created("no/such/folder.npy", 4, "cannot be created: No such file");
    assert_not_created("negative.npy", -4, "negative");
    assert_not_created("overflow.npy", INT64_MAX / 2, "overflows");
    ck_assert(!npy_create(&file, path_of("axes.npy"), NPY_BOOL, NPY_MAX_DIMS + 1, NULL));
    assert_error(&file, path_of("axes.npy"), "9 axes");
    ck_assert(!npy_create(&file, path_of("axes.npy"), NPY_BOOL, -1, NULL));
    assert_error(&file, path_of("axes.npy"), "-1 axes");

    /* What is not a file must survive. */
    ck_assert(!npy_create(&file, folder, NPY_BOOL, 0, NULL));
    assert_error(&file, folder, "File exists");
    ck_assert_int_eq(mknod(path_of("pipe"), S_IFIFO | 0600, 0), 0);
    ck_assert(!npy_create(&file, path_of("pipe"), NPY_BOOL, 0, NULL));
    assert_error(&file, path_of("pipe"), "File exists");
    ck_assert_int_eq(access(path_of("pipe"), F_OK), 0);
}

TEST(neither_replaces_nor_follows)
{
    /* A file of that name keeps its bytes, and so does one that a link of that name leads to. */
    struct npy file;
    struct stat status;
    write_bytes(path_of("old.npy"), "precious", 8);
    ck_assert_int_eq(symlink("old.npy", path_of("link.npy")), 0);
    ck_assert_int_eq(symlink("nowhere.npy", path_of("dangling.npy")), 0);
    const char *const names[] = {"old.npy", "link.npy", "dangling.npy"};
    for (int n = 0; n < 3; n++) {
        ck_assert(!npy_create(&file, path_of("%s", names[n]), NPY_FLOAT32, 1, cube));
        assert_error(&file, path_of("%s", names[n]), "cannot be created: File exists");
    }
    ck_assert_int_eq(stat(path_of("old.npy"), &status), 0);
    ck_assert_int_eq(status.st_size, 8);
    ck_assert_int_ne(access(path_of("nowhere.npy"), F_OK), 0);

    /* Who edits follows no link either; who reads may. */
    unlink(path_of("old.npy"));
    float values[2];
    must(create(&file, path_of("old.npy"), NPY_FLOAT32, 1, cube), file);
    must(npy_read(&file, whole(&file), NPY_FLOAT32, values), file);
    ck_assert(values[0] == 0 && values[1] == 0);
    must(npy_close(&file), file);
    ck_assert(!npy_edit(&file, path_of("link.npy")));
    assert_error(&file, path_of("link.npy"), "symbolic links");
    must(npy_open(&file, path_of("link.npy")), file);
    ck_assert(!npy_write(&file, whole(&file), NPY_FLOAT32, values));
    assert_error(&file, path_of("link.npy"), "cannot be written");
    must(npy_close(&file), file);
}

TEST(largest_shape_text)
{
    /* Eight axes of the longest numbers: the header and the messages must have room for them. */
    int64_t shape[8] = {0, 1000000000000000000, 1, 1, 1, 1, 1, 1};
    struct npy file;
    must(create(&file, path_of("wide.npy"), NPY_BOOL, 8, shape), file);
    must(npy_close(&file), file);
    must(npy_open(&file, path_of("wide.npy")), file);
    ck_assert_mem_eq(file.shape, shape, sizeof shape);
    must(npy_close(&file), file);
    for (int axis = 0; axis < 8; axis++)
        shape[axis] = INT64_MAX;
    ck_assert(!npy_create(&file, path_of("wide.npy"), NPY_BOOL, 8, shape));
    assert_error(&file, path_of("wide.npy"), "9223372036854775807) of bool overflows");
}

TEST(index_text)
{
    struct npy file;
    char text[64];
    must(create(&file, path_of("index.npy"), NPY_BOOL, 4, cube), file);
    npy_index_text(&file, 0, text, sizeof text);
    ck_assert_str_eq(text, "[0, 0, 0, 0]");
    npy_index_text(&file, 119, text, sizeof text);
    ck_assert_str_eq(text, "[1, 2, 3, 4]");
    npy_index_text(&file, 60 + 2 * 5 + 3, text, sizeof text);
    ck_assert_str_eq(text, "[1, 0, 2, 3]");
    npy_index_text(&file, 119, text, 6);
    ck_assert_str_eq(text, "[1, 2");
    must(npy_close(&file), file);
    must(create(&file, path_of("index.npy"), NPY_BOOL, 0, NULL), file);
    npy_index_text(&file, 0, text, sizeof text);
    ck_assert_str_eq(text, "[]");
    must(npy_close(&file), file);
}

TEST(close_twice)
{
    static struct npy zeroed;
    zeroed.fd = -1;
    ck_assert(npy_close(&zeroed));
    struct npy file;
    must(create(&file, path_of("close.npy"), NPY_BOOL, 0, NULL), file);
    int fd = file.fd;
    ck_assert(npy_close(&file));
    ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
    ck_assert(npy_close(&file));
}

TEST(refusals_leave_no_descriptor)
{
    int before = dup(0);
    close(before);
    write_npy("leak.npy", 1, TYPED("'<u8'"), 16);
    assert_refused("leak.npy", "uint64");
    assert_not_created("leak/none.npy", 1, "");
    reserve_error = ENOSPC;
    assert_not_created("leaks.npy", 1, "");
    int after = dup(0);
    ck_assert_int_eq(before, after);
}

int main(void)
{
    return suite_main_in_folder("npy", 60);
}
