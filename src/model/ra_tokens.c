/* ra_tokens: a file of tokens, read piece by piece. See ra_tokens.h.
 *
 * Chapter 10.
 */
#include "ra_tokens.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "npy.h"
#include "ra_checksum.h"

/* Sets the error to the path and this text. Returns RA_INVALID, as its caller will. */
__attribute__((format(printf, 3, 4))) static enum ra_status refuse(const struct ra_tokens *tokens,
                                                                   char *error, const char *format,
                                                                   ...)
{
    int used = snprintf(error, RA_ERROR_SIZE, "%s: ", tokens->path);
    va_list values;
    va_start(values, format);
    vsnprintf(error + used, (size_t)(RA_ERROR_SIZE - used), format, values);
    va_end(values);
    return RA_INVALID;
}

/* Opens an array and checks that it is one of tokens. The file descriptor is the caller's. */
static enum ra_status open_npy(struct ra_tokens *tokens, const char *path, int *fd, int64_t *start,
                               char *error)
{
    struct npy file;
    if (!npy_open(&file, path))
        return refuse(tokens, error, "%s (tokens as array.astype('int32'))",
                      file.error + strlen(file.path) + 2);
    *fd = file.fd;
    *start = file.data_offset;
    tokens->type = file.type;
    tokens->count = npy_elements(&file);
    if (file.type < NPY_UINT8)
        return refuse(tokens, error,
                      "%s; tokens are integers: save array.astype('int32') (uint8, uint16, uint32 "
                      "and int64 are read, too)",
                      npy_type_name(file.type));
    if (file.dims != 1 && file.dims != 2)
        return refuse(tokens, error,
                      "%d axes; a text has one: save array.reshape(-1); samples with padding have "
                      "two, (samples, columns)",
                      file.dims);
    tokens->columns = file.dims == 2 ? file.shape[1] : 0;
    return RA_OK;
}

static int width_of(int type)
{
    return type == NPY_UINT8 ? 1 : type == NPY_UINT16 ? 2 : type == NPY_INT64 ? 8 : 4;
}

/* Reads the header of llm.c: 256 numbers, of which the first three say what it is, its version and
 * how many tokens follow. uint16 and uint32 have a word of their own. */
static enum ra_status read_header(struct ra_tokens *tokens, int fd, int64_t size, char *error)
{
    enum { NUMBERS = 256, WORD_UINT16 = 20240520, WORD_UINT32 = 20240801 };
    int32_t header[NUMBERS];
    ssize_t got = pread(fd, header, sizeof header, 0);
    bool narrow = header[0] == WORD_UINT16 && header[1] == 1;
    bool wide = header[0] == WORD_UINT32 && header[1] == 7;
    if (got != sizeof header || (!narrow && !wide))
        return refuse(tokens, error,
                      "has no header of llm.c: %d and version 1 for uint16, %d and version 7 for "
                      "uint32; without a header, name the type uint16 or uint32",
                      WORD_UINT16, WORD_UINT32);
    tokens->type = narrow ? NPY_UINT16 : NPY_UINT32;
    tokens->count = header[2];
    int64_t bytes = (int64_t)sizeof header + tokens->count * width_of(tokens->type);
    if (size == bytes)
        return RA_OK;
    return refuse(tokens, error,
                  "has %" PRId64 " bytes, but its header says %" PRId64
                  " tokens, which take %" PRId64 "; copy it again",
                  size, tokens->count, bytes);
}

/* Reads a whole file, which must be freed. NULL: it cannot be read, and errno says why. */
static char *read_all(const char *path, int64_t *size)
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* it may be a pipe */
    FILE *file = descriptor >= 0 ? fdopen(descriptor, "rb") : NULL;
    char *bytes = NULL;
    struct stat status;
    if (file && fstat(fileno(file), &status) == 0 && (bytes = malloc((size_t)status.st_size + 1)))
        *size = (int64_t)fread(bytes, 1, (size_t)status.st_size, file);
    if (file)
        fclose(file);
    return bytes;
}

/* What NAME.idx of Megatron-LM has: 9 bytes that say what it is, its version (8 bytes), a code for
 * the type (1), how many sequences there are and how many documents and one (8 each). Then come the
 * lengths of sequences in tokens (4 each), where they begin in NAME.bin in bytes (8), and the first
 * sequence of each document, and of one behind the last (8). */
enum { HEADER = 34 };
struct megatron {
    const char *bytes;
    int64_t size, sequences, bounds;
};

static int64_t index_number(const struct megatron *index, int64_t at, int width)
{
    int64_t number = 0;
    int32_t narrow;
    memcpy(width == 4 ? (void *)&narrow : &number, index->bytes + at, (size_t)width);
    return width == 4 ? narrow : number;
}

/* Finds the type of the tokens, and checks that all else of the index is there. */
static enum ra_status read_index_header(struct ra_tokens *tokens, struct megatron *index,
                                        char *error)
{
    static const char magic[9] = "MMIDIDX\0";
    static const struct {
        int code, type;
    } types[] = {{1, NPY_UINT8}, {4, NPY_INT32}, {5, NPY_INT64}, {8, NPY_UINT16}};
    if (index->size < HEADER || memcmp(index->bytes, magic, sizeof magic) != 0)
        return refuse(tokens, error, "its .idx does not begin as one of Megatron-LM: MMIDIDX");
    int64_t version = index_number(index, 9, 8);
    if (version != 1)
        return refuse(tokens, error, "its .idx has version %" PRId64 ": only 1 is known", version);
    tokens->type = -1;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (index->bytes[17] == types[i].code)
            tokens->type = types[i].type;
    if (tokens->type < 0)
        return refuse(tokens, error,
                      "its .idx has type %d: known are 1 (uint8), 4 (int32), 5 (int64) and 8 "
                      "(uint16)",
                      index->bytes[17]);
    index->sequences = index_number(index, 18, 8);
    index->bounds = index_number(index, 26, 8);
    bool fits = index->sequences >= 0 && index->bounds >= 1 &&
                index->sequences <= index->size / 12 && index->bounds <= index->size / 8;
    if (fits && index->size == HEADER + 13 * index->sequences + 8 * index->bounds &&
        index->sequences > 0)
        return refuse(tokens, error, "its .idx has modes of sequences: only text is read");
    if (!fits || index->size != HEADER + 12 * index->sequences + 8 * index->bounds)
        return refuse(tokens, error,
                      "its .idx has %" PRId64 " bytes, which are not those of %" PRId64
                      " sequences and %" PRId64 " ends of documents; copy it again",
                      index->size, index->sequences, index->bounds);
    return RA_OK;
}

/* Finds where documents end. Sequences must lie one after the other. A document without tokens is
 * none. */
static enum ra_status read_index(struct ra_tokens *tokens, struct megatron *index, char *error)
{
    enum ra_status status = read_index_header(tokens, index, error);
    if (status != RA_OK)
        return status;
    tokens->ends = malloc((size_t)index->bounds * sizeof *tokens->ends);
    if (!tokens->ends)
        return refuse(tokens, error, "no memory for %" PRId64 " documents", index->bounds);
    int64_t lengths = HEADER, starts = lengths + 4 * index->sequences,
            bounds = starts + 8 * index->sequences;
    int64_t sequence = 0;
    for (int64_t d = 0; d < index->bounds; d++) {
        int64_t until = index_number(index, bounds + 8 * d, 8), before = tokens->count;
        if (until < sequence || until > index->sequences || (d == 0 && until != 0) ||
            (d == index->bounds - 1 && until != index->sequences))
            return refuse(tokens, error,
                          "its .idx lets document %" PRId64 " begin with sequence %" PRId64
                          " of %" PRId64 ": documents are not in order",
                          d, until, index->sequences);
        for (; sequence < until; sequence++) {
            int64_t length = index_number(index, lengths + 4 * sequence, 4);
            if (length < 0 || index_number(index, starts + 8 * sequence, 8) !=
                                  tokens->count * width_of(tokens->type))
                return refuse(tokens, error,
                              "its .idx has sequence %" PRId64
                              " elsewhere than behind the one before",
                              sequence);
            tokens->count += length;
        }
        if (tokens->count > before)
            tokens->ends[tokens->documents++] = tokens->count;
    }
    return RA_OK;
}

/* Reads NAME.idx of NAME.bin, which has `size` bytes. */
static enum ra_status open_index(struct ra_tokens *tokens, const char *path, int64_t size,
                                 char *error)
{
    size_t length = strlen(path);
    char *name = strdup(path);
    if (!name)
        return refuse(tokens, error, "out of memory");
    struct megatron index = {0};
    bool is_bin = length > 4 && strcmp(path + length - 4, ".bin") == 0;
    if (is_bin)
        memcpy(name + length - 4, ".idx", 4);
    char *bytes = is_bin ? read_all(name, &index.size) : NULL;
    int reason = errno;
    free(name);
    if (!bytes)
        return refuse(tokens, error, "%s%s",
                      is_bin ? "its .idx cannot be read: "
                             : "a dataset of Megatron-LM is NAME.bin, with NAME.idx beside it",
                      is_bin ? strerror(reason) : "");
    index.bytes = bytes;
    enum ra_status status = read_index(tokens, &index, error);
    free(bytes);
    if (status == RA_OK && size != tokens->count * width_of(tokens->type))
        status = refuse(tokens, error,
                        "has %" PRId64 " bytes, but its .idx says %" PRId64
                        " tokens of %d bytes; copy both again",
                        size, tokens->count, width_of(tokens->type));
    return status;
}

/* Opens a file that does not say its type, or only as llm.c and Megatron-LM do. The same. */
static enum ra_status open_raw(struct ra_tokens *tokens, const char *path, enum ra_token_type type,
                               int *fd, int64_t *start, char *error)
{
    /* O_NONBLOCK, as opening a pipe would wait for its writer before it can be refused. */
    struct stat status;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0 || fstat(*fd, &status) != 0)
        return refuse(tokens, error, "cannot be opened: %s", strerror(errno));
    if (!S_ISREG(status.st_mode))
        return refuse(tokens, error, "is not a regular file; name a text or an .npy file");
    if (type == RA_TOKEN_LLMC) {
        *start = 1024;
        return read_header(tokens, *fd, status.st_size, error);
    }
    if (type == RA_TOKEN_MEGATRON)
        return open_index(tokens, path, status.st_size, error);
    if (type > RA_TOKEN_MEGATRON)
        return refuse(tokens, error, "type = %d: give a type of enum ra_token_type", (int)type);
    static const enum npy_type types[] = {NPY_UINT8, NPY_UINT16, NPY_UINT32};
    int width = width_of(types[type]);
    tokens->type = types[type];
    tokens->count = status.st_size / width;
    if (status.st_size % width == 0)
        return RA_OK;
    return refuse(tokens, error, "has %" PRId64 " bytes, which are no whole number of tokens of %s",
                  (int64_t)status.st_size, npy_type_name(types[type]));
}

/* What has been read last. */
enum { BLOCK = 1 << 14 };
struct ra_tokens_block {
    int64_t first, count; /* tokens */
    char bytes[BLOCK];
};

/* Gets ready to read; the integers begin `start` bytes after the beginning of the file. */
static enum ra_status prepare(struct ra_tokens *tokens, int fd, int64_t start, char *error)
{
    if (tokens->count == 0)
        return refuse(tokens, error, "is empty; at least one token is needed");
    tokens->block = malloc(sizeof *tokens->block);
    if (!tokens->block)
        return refuse(tokens, error, "cannot be read: out of memory");
    tokens->block->first = tokens->block->count = 0;
    tokens->file = fd;
    tokens->start = start;
    tokens->width = width_of(tokens->type);
    tokens->vocabulary = tokens->type == NPY_UINT8    ? 256
                         : tokens->type == NPY_UINT16 ? 65536
                                                      : INT64_C(1) << 31;
    return RA_OK;
}

enum ra_status ra_tokens_open(struct ra_tokens *tokens, const char *path, enum ra_token_type type,
                              char *error)
{
    *tokens = (struct ra_tokens){0};
    size_t length = strlen(path), room = sizeof tokens->path - 1;
    strcpy(tokens->path, path + (length > room ? length - room : 0));
    bool is_npy = length >= 4 && strcmp(path + length - 4, ".npy") == 0;
    int fd = -1;
    int64_t start = 0;
    tokens->raw = !is_npy && type != RA_TOKEN_UINT8;
    enum ra_status status = is_npy ? open_npy(tokens, path, &fd, &start, error)
                                   : open_raw(tokens, path, type, &fd, &start, error);
    if (status == RA_OK)
        status = prepare(tokens, fd, start, error);
    if (status != RA_OK && fd >= 0)
        close(fd);
    if (status != RA_OK) {
        free(tokens->ends);
        tokens->ends = NULL;
    }
    return status;
}

/* Writes where a token stands, as NumPy has it: [index], or [row, column]. If the type may have
 * been named wrong, a hexdump finds it by its byte. */
enum { PLACE = 60 };
static const char *place_of(const struct ra_tokens *tokens, int64_t index, char *place)
{
    if (tokens->columns > 0)
        snprintf(place, PLACE, "[%" PRId64 ", %" PRId64 "]", index / tokens->columns,
                 index % tokens->columns);
    else if (tokens->raw)
        snprintf(place, PLACE, "[%" PRId64 "], at byte %" PRId64 ",", index,
                 tokens->start + index * tokens->width);
    else
        snprintf(place, PLACE, "[%" PRId64 "]", index);
    return place;
}

/* Reads the block that a token is in. The file was not mapped, as one that is cut short would end
 * the program by SIGBUS. */
static enum ra_status read_block(const struct ra_tokens *tokens, int64_t index, char *error)
{
    struct ra_tokens_block *block = tokens->block;
    int64_t most = BLOCK / tokens->width, first = index / most * most, got = 0;
    int64_t count = tokens->count - first < most ? tokens->count - first : most;
    ssize_t step = 1;
    while (got < count * tokens->width && step != 0) {
        step = pread(tokens->file, block->bytes + got, (size_t)(count * tokens->width - got),
                     (off_t)(tokens->start + first * tokens->width + got));
        if (step < 0 && errno != EINTR) {
            block->count = 0;
            return refuse(tokens, error, "token %s cannot be read: %s",
                          place_of(tokens, index, (char[PLACE]){0}), strerror(errno));
        }
        got += step > 0 ? step : 0;
    }
    block->first = first;
    block->count = got / tokens->width;
    if (index >= first + block->count)
        return refuse(tokens, error,
                      "token %s is missing; the file has been cut short since it was opened",
                      place_of(tokens, index, (char[PLACE]){0}));
    return RA_OK;
}

enum ra_status ra_tokens_get(const struct ra_tokens *tokens, int64_t index, int32_t *token,
                             char *error)
{
    if (index < 0 || index >= tokens->count)
        return refuse(tokens, error, "there is no token [%" PRId64 "]; there are %" PRId64, index,
                      tokens->count);
    const struct ra_tokens_block *block = tokens->block;
    if ((index < block->first || index >= block->first + block->count) &&
        read_block(tokens, index, error) != RA_OK)
        return RA_INVALID;
    int64_t value = npy_integer(tokens->type, block->bytes, index - block->first);
    bool padding = tokens->columns > 0 && value < 0;
    if (!padding && (value < 0 || value >= tokens->vocabulary))
        return refuse(tokens, error, "token %s is %" PRId64 "; tokens are 0 to %" PRId64,
                      place_of(tokens, index, (char[PLACE]){0}), value, tokens->vocabulary - 1);
    *token = padding ? -1 : (int32_t)value;
    return RA_OK;
}

enum ra_status ra_tokens_scan(const struct ra_tokens *tokens, int64_t first, int64_t end,
                              uint64_t *sum, char *error)
{
    int32_t part[RA_TOKENS_PART];
    for (int64_t at = first, count; at < end; at += count) {
        count = end - at < RA_TOKENS_PART ? end - at : RA_TOKENS_PART;
        for (int64_t i = 0; i < count; i++)
            if (ra_tokens_get(tokens, at + i, &part[i], error) != RA_OK)
                return RA_INVALID;
        *sum = ra_checksum(*sum, part, (size_t)count * sizeof *part);
    }
    return RA_OK;
}

void ra_tokens_close(struct ra_tokens *tokens)
{
    if (tokens->block)
        close(tokens->file);
    free(tokens->block);
    free(tokens->ends);
    tokens->block = NULL;
    tokens->ends = NULL;
    tokens->count = 0;
}
