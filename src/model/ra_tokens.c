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
                      "%s; tokens are integers: save array.astype('int32') (uint8, uint16 and "
                      "int64 are read, too)",
                      npy_type_name(file.type));
    if (file.dims != 1 && file.dims != 2)
        return refuse(tokens, error,
                      "%d axes; a text has one: save array.reshape(-1); samples with padding have "
                      "two, (samples, columns)",
                      file.dims);
    tokens->columns = file.dims == 2 ? file.shape[1] : 0;
    return RA_OK;
}

/* Opens a file of bytes. The same. */
static enum ra_status open_bytes(struct ra_tokens *tokens, const char *path, int *fd, char *error)
{
    /* O_NONBLOCK, as opening a pipe would wait for its writer before it can be refused. */
    struct stat status;
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0 || fstat(*fd, &status) != 0)
        return refuse(tokens, error, "cannot be opened: %s", strerror(errno));
    if (!S_ISREG(status.st_mode))
        return refuse(tokens, error, "is not a regular file; name a text or an .npy file");
    tokens->type = NPY_UINT8;
    tokens->count = status.st_size;
    return RA_OK;
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
    tokens->width = tokens->type == NPY_UINT8    ? 1
                    : tokens->type == NPY_UINT16 ? 2
                    : tokens->type == NPY_INT32  ? 4
                                                 : 8;
    tokens->vocabulary = tokens->type == NPY_UINT8    ? 256
                         : tokens->type == NPY_UINT16 ? 65536
                                                      : INT64_C(1) << 31;
    return RA_OK;
}

enum ra_status ra_tokens_open(struct ra_tokens *tokens, const char *path, char *error)
{
    *tokens = (struct ra_tokens){0};
    size_t length = strlen(path), room = sizeof tokens->path - 1;
    strcpy(tokens->path, path + (length > room ? length - room : 0));
    bool is_npy = length >= 4 && strcmp(path + length - 4, ".npy") == 0;
    int fd = -1;
    int64_t start = 0;
    enum ra_status status =
        is_npy ? open_npy(tokens, path, &fd, &start, error) : open_bytes(tokens, path, &fd, error);
    if (status == RA_OK)
        status = prepare(tokens, fd, start, error);
    if (status != RA_OK && fd >= 0)
        close(fd);
    return status;
}

/* Writes where a token stands, as NumPy has it: [index], or [row, column]. */
enum { PLACE = 50 };
static const char *place_of(const struct ra_tokens *tokens, int64_t index, char *place)
{
    if (tokens->columns > 0)
        snprintf(place, PLACE, "[%" PRId64 ", %" PRId64 "]", index / tokens->columns,
                 index % tokens->columns);
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
    tokens->block = NULL;
    tokens->count = 0;
}
