/* npy: NumPy's array files (.npy), read and written by slices.
 *
 * Interface and limits: npy.h. The file is a magic word, a version, the length of a header, the
 * header (a Python dictionary as text, padded with blanks), then the numbers, last axis fastest.
 */
#include "npy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ra_system.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "numbers go to and from the file as they are: the host must be little-endian");
_Static_assert(sizeof(size_t) == 8 && sizeof(off_t) == 8, "int64_t lengths must fit both");

#define HEADER_LIMIT (INT64_C(1) << 20) /* bytes; NumPy's own headers have some hundred */
#define DATA_LIMIT (INT64_C(1) << 62)   /* bytes; leaves room to add the header's length */
#define BUFFER_NUMBERS 4096             /* converted at a time */

static const char magic[6] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};

/* These three go by enum npy_type. */
static const char *const names[] = {"bool",   "float16", "float32", "float64", "uint8",
                                    "uint16", "uint32",  "int32",   "int64"};
static const char *const codes[] = {"|b1", "<f2", "<f4", "<f8", "|u1", "<u2", "<u4", "<i4", "<i8"};
static const int64_t widths[] = {1, 2, 4, 8, 1, 2, 4, 4, 8};

/* Sets the error to the path and this text, on one line. Returns false, as its caller will. */
__attribute__((format(printf, 2, 3))) static bool fail(struct npy *file, const char *format, ...)
{
    int used = snprintf(file->error, sizeof file->error, "%s: ", file->path);
    va_list values;
    va_start(values, format);
    vsnprintf(file->error + used, sizeof file->error - used, format, values);
    va_end(values);

    /* A damaged header and a path may hold line ends: the error must stay one line. */
    for (char *at = file->error; *at != '\0'; at++)
        if ((unsigned char)*at < ' ' || *at == '\x7f')
            *at = '?';
    return false;
}

/* Puts the struct into the state of a closed file of no axes. False if the path is too long. */
static bool begin(struct npy *file, const char *path)
{
    *file = (struct npy){.fd = -1};
    for (int axis = 0; axis < NPY_MAX_DIMS; axis++)
        file->shape[axis] = 1;
    int length = snprintf(file->path, sizeof file->path, "%s", path);
    if (length < 0 || length >= (int)sizeof file->path)
        return fail(file, "the path is longer than %zu bytes", sizeof file->path - 1);
    return true;
}

/* Closes after a failure; the error of that failure stands. Returns false. */
static bool abandon(struct npy *file)
{
    close(file->fd);
    file->fd = -1;
    return false;
}

/* Moves exactly count bytes between the file and memory: into `into`, or from `from` if that is
 * set. A call may move less than it was asked to, or be interrupted; the next goes on there. */
static bool transfer(struct npy *file, unsigned char *into, const unsigned char *from,
                     int64_t count, int64_t offset)
{
    for (int64_t done = 0; done < count;) {
        ssize_t moved = from ? pwrite(file->fd, from + done, count - done, offset + done)
                             : pread(file->fd, into + done, count - done, offset + done);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved < 0)
            return fail(file, "cannot be %s at byte %" PRId64 ": %s", from ? "written" : "read",
                        offset + done, strerror(errno));
        /* A file that another program cuts meanwhile must not keep the loop going. */
        if (moved == 0)
            return fail(file, "ends at byte %" PRId64 "; it changed since it was opened",
                        offset + done);
        done += moved;
    }
    return true;
}

/* Numbers as text, such as "(3, 4)". */
struct list {
    char text[210]; /* 8 numbers of at most 20 characters, 7 separators, and the ends */
};

static struct list list_text(const char *start, const int64_t *values, int count, const char *end)
{
    struct list list;
    int used = snprintf(list.text, sizeof list.text, "%s", start);
    for (int i = 0; i < count; i++)
        used += snprintf(list.text + used, sizeof list.text - used, "%s%" PRId64, i > 0 ? ", " : "",
                         values[i]);
    snprintf(list.text + used, sizeof list.text - used, "%s", end);
    return list;
}

/* The shape as a Python tuple, which has a comma after a lone number. */
static struct list shape_text(const struct npy *file)
{
    return list_text("(", file->shape, file->dims, file->dims == 1 ? ",)" : ")");
}

/* Checks the shape and finds how many bytes its numbers need. An axis of length 0 counts as 1 in
 * the overflow check, so that the product of any of the axes is safe ever after. */
static bool count_bytes(struct npy *file, int64_t *bytes)
{
    int64_t product = widths[file->type];
    for (int axis = 0; axis < file->dims; axis++) {
        int64_t length = file->shape[axis];
        if (length < 0)
            return fail(file, "axis %d has the negative length %" PRId64, axis, length);
        if (length > 0 && product > DATA_LIMIT / length)
            return fail(file, "the shape %s of %s overflows: it is more than 2^62 bytes",
                        shape_text(file).text, names[file->type]);
        product *= length > 0 ? length : 1;
    }
    *bytes = npy_elements(file) * widths[file->type];
    return true;
}

/* Steps over blanks, then over the word if it comes next. */
static bool token(const char **at, const char *word)
{
    *at += strspn(*at, " \t\r\n\f\v");
    if (strncmp(*at, word, strlen(word)) != 0)
        return false;
    *at += strlen(word);
    return true;
}

/* Takes a quoted text of fewer than size characters, without escapes. */
static bool quoted(const char **at, char *text, size_t size)
{
    const char *end = token(at, "'") ? "'\\" : token(at, "\"") ? "\"\\" : NULL;
    size_t length = end ? strcspn(*at, end) : 0;
    if (!end || (*at)[length] != end[0] || length >= size)
        return false;
    memcpy(text, *at, length);
    text[length] = '\0';
    *at += length + 1;
    return true;
}

/* Takes a tuple of lengths; Python 2 wrote them as "3L". A length too long for int64_t saturates
 * in strtoll and is refused by count_bytes. May set the error itself. */
static bool parse_shape(struct npy *file, const char **at)
{
    bool comma = true;
    if (!token(at, "("))
        return false;
    for (file->dims = 0; !token(at, ")"); file->dims++) {
        if (file->dims == NPY_MAX_DIMS)
            return fail(file, "has more than %d axes; save array.reshape(...)", NPY_MAX_DIMS);
        char *end;
        file->shape[file->dims] = strtoll(*at, &end, 10);
        if (!comma || end == *at)
            return false;
        *at = end + (*end == 'L');
        comma = token(at, ",");
    }
    /* In Python (3) is a number, not a tuple. */
    return file->dims != 1 || comma;
}

/* Finds the type of a code such as '<f4', or says what it is and what to save instead. */
static bool parse_type(struct npy *file, const char *code)
{
    for (int type = NPY_BOOL; type <= NPY_INT64; type++) {
        file->type = (enum npy_type)type;
        if (strcmp(code, codes[type]) == 0)
            return true;
        if (widths[type] > 1 && code[0] == '>' && strcmp(code + 1, codes[type] + 1) == 0)
            return fail(file, "'%s' is big-endian; save array.astype('%s')", code, codes[type]);
    }

    /* The letter after the byte order is the kind. Numbers are named by their bits, as in int64. */
    static const char *const kinds[] = {
        "iint",  "uuint",  "ffloat", "ccomplex",          "bbool", "Sstrings", "OPython objects",
        "Utext", "Mdates", "mtimes", "Vbytes (bfloat16?)"};
    char words[64] = "an unknown dtype";
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && code[0] != '\0'; i++)
        if (code[1] == kinds[i][0] && i < 5)
            snprintf(words, sizeof words, "%s%lu", kinds[i] + 1, strtoul(code + 2, NULL, 10) * 8);
        else if (code[1] == kinds[i][0])
            snprintf(words, sizeof words, "%s", kinds[i] + 1);
    return fail(file,
                "holds %s ('%s'); save array.astype('float32') (bool, float16, float32, float64, "
                "uint8, uint16, uint32, int32 and int64 are accepted)",
                words, code);
}

/* Parses the header's text, of this length and ended by a NUL: each of its three keys once, in any
 * order, then nothing but blanks. */
static bool parse_header(struct npy *file, const char *text, int64_t length)
{
    const char *at = text;
    char key[16], code[32];
    bool has_code = false, has_order = false, has_shape = false, fortran = false;
    bool good = token(&at, "{");
    while (good && !token(&at, "}")) {
        good = quoted(&at, key, sizeof key) && token(&at, ":");
        if (good && !has_code && strcmp(key, "descr") == 0) {
            if (token(&at, "["))
                return fail(file, "holds a structured dtype; save each field as an array");
            good = has_code = quoted(&at, code, sizeof code);
        } else if (good && !has_order && strcmp(key, "fortran_order") == 0) {
            fortran = token(&at, "True");
            good = has_order = fortran || token(&at, "False");
        } else if (good && !has_shape && strcmp(key, "shape") == 0) {
            good = has_shape = parse_shape(file, &at);
        } else {
            good = false;
        }
        good = good && (token(&at, ",") || *at == '}');
    }
    if (file->error[0] != '\0')
        return false;

    /* The header must be understood to its last byte. A NUL stops the search for its end too. */
    good = good && has_code && has_order && has_shape && !token(&at, "}");
    if (!good || at - text != length)
        return fail(file,
                    "the header cannot be parsed at its byte %td (\"%.20s\"); save the array "
                    "again with numpy.save",
                    at - text, at);
    if (!parse_type(file, code))
        return false;
    if (fortran)
        return fail(file, "is in Fortran order; save numpy.ascontiguousarray(array)");
    return true;
}

/* Reads and checks what comes before the numbers, and the size of the file. */
static bool read_header(struct npy *file)
{
    struct stat status;
    if (fstat(file->fd, &status) != 0)
        return fail(file, "cannot be opened: %s", strerror(errno));
    if (S_ISDIR(status.st_mode))
        return fail(file, "is a folder; name an .npy file");
    if (!S_ISREG(status.st_mode))
        return fail(file, "is not a regular file; slices can be read from nothing else");
    if (status.st_size == 0)
        return fail(file, "is empty; an .npy file was expected");

    /* The prefix: magic, version, and the length of the header in two bytes (1.0) or four. */
    unsigned char prefix[12] = {0};
    int64_t size = status.st_size, known = size < 12 ? size : 12;
    if (!transfer(file, prefix, NULL, known, 0))
        return false;
    if (memcmp(prefix, magic, known < 6 ? known : 6) != 0)
        return fail(file, "is not an .npy file; save one array with numpy.save (not savez)");
    if (known >= 8 && (prefix[6] < 1 || prefix[6] > 3 || prefix[7] != 0))
        return fail(file, "has the unknown format version %d.%d; 1.0, 2.0 and 3.0 are read",
                    prefix[6], prefix[7]);
    int64_t length = prefix[8] + 256 * prefix[9];
    if (prefix[6] > 1)
        length += INT64_C(65536) * (prefix[10] + 256 * prefix[11]);
    file->data_offset = (prefix[6] > 1 ? 12 : 10) + length;
    if (size >= 12 && length > HEADER_LIMIT)
        return fail(file, "has a header of %" PRId64 " bytes; more than 1 MiB is refused", length);
    if (size < file->data_offset)
        return fail(file, "ends inside the header, after %" PRId64 " bytes; copy it again", size);

    /* The NUL after the text stops the parser. */
    char *text = calloc(1, length + 1);
    if (!text)
        return fail(file, "there is no memory for its header of %" PRId64 " bytes", length);
    bool good = transfer(file, (unsigned char *)text, NULL, length, file->data_offset - length) &&
                parse_header(file, text, length);
    free(text);
    int64_t bytes;
    if (!good || !count_bytes(file, &bytes))
        return false;
    if (size - file->data_offset == bytes)
        return true;

    return fail(file,
                "%s: %" PRId64 " bytes follow the header, but the shape %s of %s needs %" PRId64
                "; copy or save it again",
                size - file->data_offset < bytes ? "is cut short" : "has bytes after its data",
                size - file->data_offset, shape_text(file).text, names[file->type], bytes);
}

/* Opens an existing file, for reading alone or for writing, too. */
static bool open_existing(struct npy *file, const char *path, int access)
{
    if (!begin(file, path))
        return false;
    /* O_NONBLOCK, as opening a pipe would wait for its writer before it can be refused. */
    file->fd = open(path, access | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0)
        return fail(file, "cannot be opened: %s", strerror(errno));
    return read_header(file) || abandon(file);
}

bool npy_open(struct npy *file, const char *path)
{
    return open_existing(file, path, O_RDONLY);
}

bool npy_edit(struct npy *file, const char *path)
{
    return open_existing(file, path, O_RDWR | O_NOFOLLOW);
}

/* Reserves the disk space of a new file and writes its header. */
static bool write_header(struct npy *file, int64_t bytes)
{
    char text[384];
    int length =
        snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                 codes[file->type], shape_text(file).text);

    /* The numbers start at a multiple of 64 bytes, as the format asks: blanks fill the gap. */
    int end = (10 + length + 1 + 63) / 64 * 64;
    uint16_t field = (uint16_t)(end - 10); /* at most 374, in the byte order of the host */
    unsigned char header[384];
    memset(header, ' ', sizeof header);
    memcpy(header, magic, sizeof magic);
    memcpy(header + 6, "\1", 2); /* version 1, 0 */
    memcpy(header + 8, &field, sizeof field);
    memcpy(header + 10, text, length);
    header[end - 1] = '\n';
    file->data_offset = end;

    /* A file system that cannot reserve sets the length. */
    int error = ra_system_reserve(file->fd, end + bytes);
    if (error == EINVAL || error == EOPNOTSUPP)
        error = ftruncate(file->fd, end + bytes) == 0 ? 0 : errno;
    if (error != 0)
        return fail(file, "cannot reserve %" PRId64 " bytes: %s", end + bytes, strerror(error));
    return transfer(file, NULL, header, end, 0);
}

bool npy_create(struct npy *file, const char *path, enum npy_type type, int dims,
                const int64_t *shape)
{
    if (!begin(file, path))
        return false;
    if (dims < 0 || dims > NPY_MAX_DIMS)
        return fail(file, "%d axes were asked for; 0 to %d are possible", dims, NPY_MAX_DIMS);
    file->type = type;
    file->dims = dims;
    for (int axis = 0; axis < dims; axis++)
        file->shape[axis] = shape[axis];
    int64_t bytes;
    if (!count_bytes(file, &bytes))
        return false;

    file->fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file->fd < 0)
        return fail(file, "cannot be created: %s", strerror(errno));
    if (write_header(file, bytes))
        return true;
    unlink(path);
    return abandon(file);
}

/* The value of a float16. Every one is a double exactly. */
static double half_value(uint16_t half)
{
    uint64_t exponent = half >> 10 & 31, fraction = half & 1023, sign = half >> 15;
    /* Subnormal: a multiple of 2^-24, and the sign of zero kept. */
    if (exponent == 0)
        return (sign ? -1.0 : 1.0) * (double)fraction * 0x1p-24;
    uint64_t bits =
        sign << 63 | (exponent == 31 ? 2047 : exponent + 1023 - 15) << 52 | fraction << 42;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The float16 nearest to the value, ties to even, rounded once. From 65520 on that is Inf. */
static uint16_t nearest_half(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint64_t sign = bits >> 48 & 0x8000, fraction = bits & ((UINT64_C(1) << 52) - 1);
    int exponent = (int)(bits >> 52 & 2047) - 1023;
    /* NaN keeps its leading bits; the first is set, so that it cannot turn into Inf. */
    if (exponent == 1024 && fraction != 0)
        return (uint16_t)(sign | 0x7e00 | fraction >> 42);
    if (exponent > 15)
        return (uint16_t)(sign | 0x7c00);
    if (exponent < -25)
        return (uint16_t)sign;

    /* Below 2^-14 the step stays 2^-24, so more bits are dropped. The leading one of a normal
     * number adds 1 to the exponent field, hence 14 and not 15; so may a carry. */
    int dropped = exponent >= -14 ? 42 : 42 - 14 - exponent;
    uint64_t significand = fraction | UINT64_C(1) << 52, kept = significand >> dropped;
    uint64_t rest = significand - (kept << dropped), middle = UINT64_C(1) << (dropped - 1);
    kept += rest > middle || (rest == middle && kept % 2 == 1);
    return (uint16_t)(sign | (kept + ((uint64_t)(exponent >= -14 ? exponent + 14 : 0) << 10)));
}

int64_t npy_integer(enum npy_type type, const void *integers, int64_t index)
{
    int64_t value = 0;
    memcpy(&value, (const char *)integers + index * widths[type], widths[type]);
    return type == NPY_INT32 ? (int32_t)value : value;
}

/* Converts count numbers. Floats through double: exact on the way in, one rounding on the way out.
 * Integers lose the bytes that have no room. */
static void convert(enum npy_type from_type, const unsigned char *from, enum npy_type to_type,
                    unsigned char *to, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        float single;
        double value;
        const unsigned char *source = from + i * widths[from_type];
        if (to_type >= NPY_UINT8) {
            int64_t integer = npy_integer(from_type, source, 0);
            memcpy(to + i * widths[to_type], &integer, widths[to_type]);
            continue;
        }
        if (from_type == NPY_FLOAT16) {
            memcpy(&half, source, sizeof half);
            value = half_value(half);
        } else if (from_type == NPY_FLOAT32) {
            memcpy(&single, source, sizeof single);
            value = single;
        } else {
            memcpy(&value, source, sizeof value);
        }

        /* The cast to float rounds to nearest even and overflows to Inf on IEEE hardware. */
        half = to_type == NPY_FLOAT16 ? nearest_half(value) : 0;
        single = (float)value;
        const void *result = to_type == NPY_FLOAT16   ? (const void *)&half
                             : to_type == NPY_FLOAT32 ? (const void *)&single
                                                      : (const void *)&value;
        memcpy(to + i * widths[to_type], result, widths[to_type]);
    }
}

/* Checks that the slice lies inside the file, and what it is read or written as. */
static bool check_slice(struct npy *file, struct npy_slice slice, enum npy_type as, bool reading)
{
    enum npy_type kind = file->type >= NPY_UINT8     ? NPY_INT64
                         : file->type >= NPY_FLOAT16 ? NPY_FLOAT64
                                                     : NPY_BOOL;
    bool narrower = as < file->type; /* on reading that would lose digits unasked */
    if ((as != kind && (kind != NPY_FLOAT64 || as != NPY_FLOAT32)) || (reading && narrower))
        return fail(file, "holds %s and cannot be %s as %s%s", names[file->type],
                    reading ? "read" : "written", names[as],
                    reading ? "; save it in that type" : "");
    int64_t before = 1, length = 0;
    if (slice.axis >= 0 && slice.axis < (file->dims > 0 ? file->dims : 1))
        length = file->shape[slice.axis];
    for (int axis = 0; axis < slice.axis && axis < file->dims; axis++)
        before *= file->shape[axis];

    /* The last row is found by division: its product with the stride could overflow. */
    if (slice.outer < 0 || slice.outer >= before || slice.first < 0 || slice.first >= length ||
        slice.stride < 1 || slice.count < 0 ||
        slice.count - 1 > (length - 1 - slice.first) / slice.stride)
        return fail(file,
                    "%" PRId64 " rows from %" PRId64 " by %" PRId64 " of axis %d, outer %" PRId64
                    ", are not inside the shape %s",
                    slice.count, slice.first, slice.stride, slice.axis, slice.outer,
                    shape_text(file).text);
    return true;
}

/* Moves a slice into memory, or out of it if `from` is set: run by run, where a run is what lies
 * together in the file, a row or with stride 1 all rows. What is converted goes in parts. */
static bool move(struct npy *file, struct npy_slice slice, enum npy_type as, unsigned char *into,
                 const unsigned char *from)
{
    if (slice.count == 0)
        return true;
    if (!check_slice(file, slice, as, from == NULL))
        return false;

    int64_t row = npy_row_elements(file, slice.axis), width = widths[file->type];
    int64_t run = slice.stride == 1 ? row * slice.count : row, total = row * slice.count;
    int64_t start = (slice.outer * file->shape[slice.axis] + slice.first) * row;
    bool direct = as == file->type;
    unsigned char buffer[BUFFER_NUMBERS * sizeof(double)];
    for (int64_t done = 0, part; done < total; done += part) {
        /* `done` counts numbers in memory; the file skips the rows that the stride leaves out. */
        part = run - done % run;
        if (!direct && part > BUFFER_NUMBERS)
            part = BUFFER_NUMBERS;
        int64_t element = start + done / run * row * slice.stride + done % run;
        int64_t offset = file->data_offset + element * width;
        const unsigned char *source = from ? from + done * widths[as] : NULL;
        unsigned char *target = from ? NULL : into + done * widths[as];
        if (from && !direct)
            convert(as, source, file->type, buffer, part);
        for (int64_t i = 0; from && !direct && as == NPY_INT64 && i < part; i++) {
            int64_t value = npy_integer(as, source, i);
            if (npy_integer(file->type, buffer, i) != value)
                return fail(file, "%" PRId64 " does not fit into %s", value, names[file->type]);
        }
        if (!transfer(file, direct ? target : buffer, from && !direct ? buffer : source,
                      part * width, offset))
            return false;
        if (!from && !direct)
            convert(file->type, buffer, as, target, part);

        /* C's bool has two values: a third would be undefined behaviour in the reader. */
        for (int64_t i = 0; as == NPY_BOOL && !from && i < part; i++) {
            if (target[i] > 1) {
                char index[210];
                npy_index_text(file, element + i, index, sizeof index);
                return fail(file, "element %s is the byte %d; a bool is 0 or 1", index, target[i]);
            }
        }
    }
    return true;
}

bool npy_read(struct npy *file, struct npy_slice slice, enum npy_type as, void *out)
{
    return move(file, slice, as, out, NULL);
}

bool npy_write(struct npy *file, struct npy_slice slice, enum npy_type as, const void *rows)
{
    return move(file, slice, as, NULL, rows);
}

bool npy_close(struct npy *file)
{
    int fd = file->fd;
    file->fd = -1;
    if (fd >= 0 && close(fd) != 0)
        return fail(file, "cannot be closed: %s", strerror(errno));
    return true;
}

int64_t npy_row_elements(const struct npy *file, int axis)
{
    int64_t elements = 1;
    for (int later = axis + 1; later < file->dims; later++)
        elements *= file->shape[later];
    return elements;
}

int64_t npy_elements(const struct npy *file)
{
    return npy_row_elements(file, -1);
}

void npy_index_text(const struct npy *file, int64_t element, char *text, int64_t size)
{
    int64_t index[NPY_MAX_DIMS];
    for (int axis = 0; axis < file->dims; axis++)
        index[axis] = element / npy_row_elements(file, axis) % file->shape[axis];
    snprintf(text, size, "%s", list_text("[", index, file->dims, "]").text);
}

const char *npy_type_name(enum npy_type type)
{
    return names[type];
}
