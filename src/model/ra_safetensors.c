/* ra_safetensors: weights in .safetensors files. See ra_safetensors.h.
 *
 * Chapter 10.
 */
#include "ra_safetensors.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ra_error.h"
#include "ra_json.h"
#include "ra_number.h"

/* Bytes that a header may have, which is the format's own limit; bytes that are converted at a
 * time; and characters of a path, more than the system takes: cut, it would be another one. */
enum { LONGEST = 100000000, PIECE = 1 << 16, PATH_ROOM = 8192 };

static const char *const type_names[] = {"F64", "F32", "F16", "BF16"};
static const int widths[] = {8, 4, 2, 2};

struct ra_safetensors_file {
    char *path;
    int descriptor;
    struct ra_json_text header; /* names of arrays are its texts */
    char *text;
    int64_t size, data; /* bytes of the file, and where its numbers begin */
};

/* ---- Bytes. */

/* Reads all of these bytes. */
static bool read_bytes(int descriptor, int64_t offset, void *bytes, int64_t count)
{
    while (count > 0) {
        ssize_t moved = pread(descriptor, bytes, (size_t)count, offset);
        if (moved == 0)
            errno = EIO; /* the file has become shorter */
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return false;
        bytes = (char *)bytes + moved;
        offset += moved;
        count -= moved;
    }
    return true;
}

static enum ra_status refuse_system(const char *path, char *error)
{
    return ra_error_set(error, "%.200s: %s", path, strerror(errno));
}

/* Reads a whole file, which must be freed. NULL: an error. */
static char *read_file(const char *path, int64_t *size, char *error)
{
    struct stat status;
    char *text = NULL;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0 || fstat(descriptor, &status) != 0)
        refuse_system(path, error);
    else if (status.st_size > LONGEST)
        ra_error_set(error, "%.200s: has %" PRId64 " bytes: an index has %d at most", path,
                     (int64_t)status.st_size, LONGEST);
    else if (!(text = malloc((size_t)status.st_size + 1)))
        ra_error_set(error, "no memory to read %.200s", path);
    else if (!read_bytes(descriptor, 0, text, *size = status.st_size)) {
        refuse_system(path, error);
        free(text);
        text = NULL;
    }
    if (descriptor >= 0)
        close(descriptor);
    return text;
}

/* ---- A header. */

/* The product of a shape; -1: it is none, or would not fit. */
static int64_t count_of(struct ra_stored *stored, const struct ra_json *shape)
{
    stored->axes = 0;
    int64_t count = 1;
    bool none = false;
    for (const struct ra_json *axis = shape->first; axis; axis = axis->next) {
        int64_t length;
        if (stored->axes == 8 || !ra_json_whole(axis, &length) || length < 0)
            return -1;
        stored->shape[stored->axes++] = length;
        none = none || length == 0;
        if (length > 0 && count > INT64_MAX / 16 / length)
            return -1;
        count *= length > 0 ? length : 1;
    }
    return none ? 0 : count;
}

/* Reads what a header says of an array. `end` is where its numbers end. */
static enum ra_status read_entry(const struct ra_safetensors_file *file,
                                 const struct ra_json *entry, struct ra_stored *stored,
                                 int64_t *end, char *error)
{
    const struct ra_json_text *json = &file->header;
    const struct ra_json *type = ra_json_member(entry, "dtype");
    const struct ra_json *shape = ra_json_member(entry, "shape");
    const struct ra_json *offsets = ra_json_member(entry, "data_offsets");
    int t = 0;
    stored->name = entry->name;
    if (!type || !shape || !offsets || entry->count != 3)
        return ra_json_refuse(
            json, entry, error,
            "\"%.100s\" must have dtype, shape and data_offsets, and nothing else", entry->name);
    while (t < 4 && !ra_json_is(type, type_names[t]))
        t++;
    if (t == 4)
        return ra_json_refuse(json, type, error,
                              "\"%.100s\" has the dtype %.20s: give F64, F32, F16 or BF16",
                              entry->name, type->text ? type->text : "of no text");
    stored->type = (enum ra_stored_type)t;
    stored->count = shape->kind == RA_JSON_LIST ? count_of(stored, shape) : -1;
    if (stored->count < 0)
        return ra_json_refuse(json, shape, error,
                              "\"%.100s\" has no shape: give a list of at most 8 lengths",
                              entry->name);
    if (offsets->kind != RA_JSON_LIST || offsets->count != 2 ||
        !ra_json_whole(offsets->first, &stored->offset) ||
        !ra_json_whole(offsets->first->next, end) || stored->offset < 0 || *end < stored->offset)
        return ra_json_refuse(json, offsets, error,
                              "\"%.100s\" has no data_offsets: give [begin, end]", entry->name);
    if (*end - stored->offset != stored->count * widths[t])
        return ra_json_refuse(json, offsets, error,
                              "\"%.100s\" has %" PRId64 " bytes, but its shape and dtype need "
                              "%" PRId64,
                              entry->name, *end - stored->offset, stored->count * widths[t]);
    return RA_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct ra_stored *one = a, *other = b;
    return one->file != other->file       ? (one->file < other->file ? -1 : 1)
           : one->offset != other->offset ? (one->offset < other->offset ? -1 : 1)
           : one->count == 0 || other->count == 0
               ? (one->count != 0) -
                     (other->count != 0) /* an empty one is before what it touches */
               : strcmp(one->name, other->name);
}

static int by_name(const void *a, const void *b)
{
    const struct ra_stored *one = a, *other = b;
    int order = strcmp(one->name, other->name);
    return order != 0 ? order : one->file - other->file;
}

/* The arrays of a file must fill it, one behind the other. */
static enum ra_status check_places(const struct ra_safetensors_file *file, struct ra_stored *stored,
                                   int64_t count, char *error)
{
    int64_t end = 0, bytes = file->size - file->data;
    qsort(stored, (size_t)count, sizeof *stored, by_place);
    for (int64_t i = 0; i < count; i++) {
        if (stored[i].offset != end)
            return ra_error_set(error,
                                "%.120s: \"%.80s\" begins at byte %" PRId64 ", %s: it must be "
                                "%" PRId64,
                                file->path, stored[i].name, stored[i].offset,
                                stored[i].offset < end ? "inside another array" : "after a hole",
                                end);
        end += stored[i].count * widths[stored[i].type];
    }
    if (end > bytes)
        return ra_error_set(error,
                            "%.120s: is cut short: \"%.80s\" ends at byte %" PRId64
                            " of the numbers, of which there are %" PRId64,
                            file->path, stored[count - 1].name, end, bytes);
    if (end < bytes)
        return ra_error_set(error, "%.120s: has %" PRId64 " bytes behind its last array",
                            file->path, bytes - end);
    for (int64_t i = 0; i < count; i++)
        stored[i].offset += file->data;
    return RA_OK;
}

/* Reads the length and the text of a header. */
static enum ra_status read_header(struct ra_safetensors_file *file, char *error)
{
    struct stat status;
    unsigned char bytes[8];
    uint64_t length = 0;
    file->descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->descriptor < 0 || fstat(file->descriptor, &status) != 0)
        return refuse_system(file->path, error);
    file->size = status.st_size;
    if (!S_ISREG(status.st_mode))
        return ra_error_set(error, "%.200s: is no .safetensors file: it is no regular file",
                            file->path);
    if (file->size < 8)
        return ra_error_set(error, "%.200s: is no .safetensors file: it has %" PRId64 " bytes",
                            file->path, file->size);
    if (!read_bytes(file->descriptor, 0, bytes, 8))
        return refuse_system(file->path, error);
    for (int i = 7; i >= 0; i--)
        length = length << 8 | bytes[i];
    if (length > LONGEST || (int64_t)length > file->size - 8)
        return ra_error_set(error,
                            "%.150s: is no .safetensors file, or is cut short: its header has "
                            "%" PRIu64 " bytes, and the file %" PRId64,
                            file->path, length, file->size);
    file->data = 8 + (int64_t)length;
    file->text = malloc((size_t)length + 1);
    if (!file->text)
        return ra_error_set(error, "no memory to read %.200s", file->path);
    if (!read_bytes(file->descriptor, 8, file->text, (int64_t)length))
        return refuse_system(file->path, error);
    if (ra_json_read(&file->header, file->path, file->text, (size_t)length, error) != RA_OK)
        return RA_INVALID;
    if (file->header.root->kind != RA_JSON_OBJECT)
        return ra_json_refuse(&file->header, file->header.root, error,
                              "must be an object of arrays by name");
    return RA_OK;
}

/* Adds the arrays of a file to the list. */
static enum ra_status add_file(struct ra_safetensors *tensors, const char *path, char *error)
{
    struct ra_safetensors_file *file = &tensors->files[tensors->file_count];
    *file = (struct ra_safetensors_file){.path = strdup(path), .descriptor = -1};
    if (!file->path)
        return ra_error_set(error, "no memory to read %.200s", path);
    tensors->file_count++;
    if (read_header(file, error) != RA_OK)
        return RA_INVALID;
    const struct ra_json *root = file->header.root;
    struct ra_stored *more = realloc(tensors->stored, (size_t)(tensors->count + root->count + 1) *
                                                          sizeof *tensors->stored);
    if (!more)
        return ra_error_set(error, "no memory to read %.200s", path);
    tensors->stored = more;
    int64_t before = tensors->count;
    for (const struct ra_json *entry = root->first; entry; entry = entry->next) {
        struct ra_stored *stored = &tensors->stored[tensors->count];
        int64_t end;
        if (strcmp(entry->name, "__metadata__") == 0)
            continue;
        *stored = (struct ra_stored){.file = tensors->file_count - 1};
        if (read_entry(file, entry, stored, &end, error) != RA_OK)
            return RA_INVALID;
        tensors->count++;
    }
    return check_places(file, tensors->stored + before, tensors->count - before, error);
}

static enum ra_status check_twice(const struct ra_safetensors *tensors, char *error)
{
    for (int64_t i = 1; i < tensors->count; i++)
        if (strcmp(tensors->stored[i - 1].name, tensors->stored[i].name) == 0)
            return ra_error_set(error, "%.120s: \"%.60s\" is also in %.120s",
                                ra_safetensors_path(tensors, &tensors->stored[i]),
                                tensors->stored[i].name,
                                ra_safetensors_path(tensors, &tensors->stored[i - 1]));
    return RA_OK;
}

/* ---- Opening. */

static enum ra_status finish(struct ra_safetensors *tensors, enum ra_status status, char *error)
{
    if (status == RA_OK) {
        qsort(tensors->stored, (size_t)tensors->count, sizeof *tensors->stored, by_name);
        status = check_twice(tensors, error);
    }
    if (status != RA_OK)
        ra_safetensors_close(tensors);
    return status;
}

/* Makes room for this many files. */
static enum ra_status begin(struct ra_safetensors *tensors, const char *path, int64_t files,
                            char *error)
{
    *tensors = (struct ra_safetensors){.files = calloc((size_t)files + 1, sizeof *tensors->files)};
    return tensors->files ? RA_OK : ra_error_set(error, "no memory to read %.200s", path);
}

enum ra_status ra_safetensors_open_file(struct ra_safetensors *tensors, const char *path,
                                        char error[RA_ERROR_SIZE])
{
    enum ra_status status = begin(tensors, path, 1, error);
    return finish(tensors, status == RA_OK ? add_file(tensors, path, error) : status, error);
}

/* Opens each file that the index names, once. */
static enum ra_status add_shards(struct ra_safetensors *tensors, const struct ra_json_text *index,
                                 const struct ra_json *map, const char *folder, char *error)
{
    char path[PATH_ROOM];
    for (const struct ra_json *entry = map->first; entry; entry = entry->next) {
        if (entry->kind != RA_JSON_TEXT || strchr(entry->text, '/') || !*entry->text)
            return ra_json_refuse(index, entry, error,
                                  "\"%.100s\" must be in a file of this folder", entry->name);
        snprintf(path, sizeof path, "%s/%s", folder, entry->text);
        int f = 0;
        while (f < tensors->file_count && strcmp(tensors->files[f].path, path) != 0)
            f++;
        if (f == tensors->file_count && add_file(tensors, path, error) != RA_OK)
            return RA_INVALID;
    }
    return RA_OK;
}

/* Index and files must say the same. The arrays are sorted by name. */
static enum ra_status compare_index(const struct ra_safetensors *tensors,
                                    const struct ra_json_text *index, const struct ra_json *map,
                                    const char *folder, char *error)
{
    size_t skipped = strlen(folder) + 1;
    for (const struct ra_json *entry = map->first; entry; entry = entry->next) {
        const struct ra_stored *stored = ra_safetensors_find(tensors, entry->name);
        if (!stored || strcmp(ra_safetensors_path(tensors, stored) + skipped, entry->text) != 0)
            return ra_json_refuse(index, entry, error, "\"%.100s\" is not in %.60s", entry->name,
                                  entry->text);
    }
    for (int64_t i = 0; i < tensors->count && tensors->count > map->count; i++)
        if (!ra_json_member(map, tensors->stored[i].name))
            return ra_error_set(error, "%.150s: has \"%.80s\", which the index does not name",
                                ra_safetensors_path(tensors, &tensors->stored[i]),
                                tensors->stored[i].name);
    return RA_OK;
}

static enum ra_status open_shards(struct ra_safetensors *tensors, const char *folder,
                                  const char *path, char *error)
{
    struct ra_json_text index;
    int64_t size = 0;
    char *text = read_file(path, &size, error);
    if (!text || ra_json_read(&index, path, text, (size_t)size, error) != RA_OK) {
        free(text);
        return RA_INVALID;
    }
    const struct ra_json *map = ra_json_member(index.root, "weight_map");
    enum ra_status status = RA_OK;
    if (!map || map->kind != RA_JSON_OBJECT)
        status = ra_json_refuse(&index, index.root, error,
                                "must have \"weight_map\", the file of each array");
    else if ((status = begin(tensors, path, map->count, error)) == RA_OK) {
        status = finish(tensors, add_shards(tensors, &index, map, folder, error), error);
        if (status == RA_OK && compare_index(tensors, &index, map, folder, error) != RA_OK) {
            ra_safetensors_close(tensors);
            status = RA_INVALID;
        }
    }
    ra_json_free(&index);
    free(text);
    return status;
}

enum ra_status ra_safetensors_look(const char *path, bool *there, char error[RA_ERROR_SIZE])
{
    struct stat status;
    *there = lstat(path, &status) == 0;
    return *there || errno == ENOENT ? RA_OK
                                     : ra_error_set(error, "%.200s: %s", path, strerror(errno));
}

enum ra_status ra_safetensors_open(struct ra_safetensors *tensors, const char *folder,
                                   char error[RA_ERROR_SIZE])
{
    char single[PATH_ROOM], index[PATH_ROOM];
    bool one, many;
    snprintf(single, sizeof single, "%s/model.safetensors", folder);
    snprintf(index, sizeof index, "%s/model.safetensors.index.json", folder);
    if (ra_safetensors_look(single, &one, error) != RA_OK ||
        ra_safetensors_look(index, &many, error) != RA_OK)
        return RA_INVALID;
    if (one && many)
        return ra_error_set(error,
                            "%.200s: has model.safetensors and model.safetensors.index.json: "
                            "take away what is not the model",
                            folder);
    return many ? open_shards(tensors, folder, index, error)
                : ra_safetensors_open_file(tensors, single, error);
}

void ra_safetensors_close(struct ra_safetensors *tensors)
{
    for (int f = 0; f < tensors->file_count; f++) {
        if (tensors->files[f].descriptor >= 0)
            close(tensors->files[f].descriptor);
        ra_json_free(&tensors->files[f].header);
        free(tensors->files[f].text);
        free(tensors->files[f].path);
    }
    free(tensors->files);
    free(tensors->stored);
    *tensors = (struct ra_safetensors){.count = 0};
}

const struct ra_stored *ra_safetensors_find(const struct ra_safetensors *tensors, const char *name)
{
    int64_t first = 0, end = tensors->count;
    while (first < end) {
        int64_t middle = (first + end) / 2;
        int order = strcmp(name, tensors->stored[middle].name);
        if (order == 0)
            return &tensors->stored[middle];
        if (order < 0)
            end = middle;
        else
            first = middle + 1;
    }
    return NULL;
}

const char *ra_safetensors_path(const struct ra_safetensors *tensors,
                                const struct ra_stored *stored)
{
    return tensors->files[stored->file].path;
}

/* ---- Numbers. */

/* From this type to float32. As everywhere here, the machine is little-endian. */
static void convert(enum ra_stored_type type, int64_t count, const void *from, float *to)
{
    const double *doubles = from;
    if (type != RA_STORED_F64)
        ra_number_load(type == RA_STORED_F16    ? RA_FLOAT16
                       : type == RA_STORED_BF16 ? RA_BFLOAT16
                                                : RA_FLOAT32,
                       count, from, to);
    for (int64_t i = 0; i < count && type == RA_STORED_F64; i++)
        to[i] = (float)doubles[i];
}

enum ra_status ra_safetensors_read(const struct ra_safetensors *tensors,
                                   const struct ra_stored *stored, float *numbers,
                                   char error[RA_ERROR_SIZE])
{
    double piece[PIECE / sizeof(double)]; /* of any type: aligned for all */
    const struct ra_safetensors_file *file = &tensors->files[stored->file];
    int width = widths[stored->type];
    for (int64_t e = 0, part; e < stored->count; e += part) {
        part = stored->count - e < PIECE / width ? stored->count - e : PIECE / width;
        if (!read_bytes(file->descriptor, stored->offset + e * width, piece, part * width))
            return ra_error_set(error, "%.150s: \"%.80s\" cannot be read: %s", file->path,
                                stored->name, strerror(errno));
        convert(stored->type, part, piece, numbers + e);
    }
    return RA_OK;
}

/* ---- Writing. */

static int by_their_name(const void *a, const void *b)
{
    return strcmp(((const struct ra_to_store *)a)->name, ((const struct ra_to_store *)b)->name);
}

static int64_t numbers_in(const struct ra_to_store *array)
{
    return (array->axes > 0 ? array->shape[0] : 1) * (array->axes > 1 ? array->shape[1] : 1);
}

/* Writes the numbers of an array. False: a file error, or `bad` is which of them is too large. */
static bool write_numbers(FILE *file, const struct ra_to_store *array, enum ra_stored_type type,
                          int64_t *bad)
{
    uint16_t piece[PIECE];
    int64_t count = numbers_in(array);
    if (type == RA_STORED_F32)
        return fwrite(array->numbers, sizeof *array->numbers, (size_t)count, file) == (size_t)count;
    for (int64_t e = 0, part; e < count; e += part) {
        part = count - e < PIECE ? count - e : PIECE;
        ra_number_store(RA_BFLOAT16, part, array->numbers + e, piece);
        for (int64_t i = 0; i < part; i++)
            if ((piece[i] & 0x7F80) == 0x7F80) {
                *bad = e + i;
                return false;
            }
        if (fwrite(piece, sizeof *piece, (size_t)part, file) != (size_t)part)
            return false;
    }
    return true;
}

/* The header of these arrays, which must be freed; its length is a multiple of 8. */
static char *make_header(const struct ra_to_store *list, int64_t count, enum ra_stored_type type,
                         bool metadata, size_t *length)
{
    char *text = NULL;
    FILE *file = open_memstream(&text, length);
    if (!file)
        return NULL;
    int64_t offset = 0;
    fprintf(file, "{%s%s", metadata ? "\"__metadata__\":{\"format\":\"pt\"}" : "",
            metadata && count > 0 ? "," : "");
    for (int64_t i = 0; i < count; i++) {
        int64_t bytes = numbers_in(&list[i]) * widths[type];
        fprintf(file, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i > 0 ? "," : "", list[i].name,
                type_names[type]);
        for (int a = 0; a < list[i].axes; a++)
            fprintf(file, "%s%" PRId64, a > 0 ? "," : "", list[i].shape[a]);
        fprintf(file, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", offset, offset + bytes);
        offset += bytes;
    }
    fputc('}', file);
    for (long at = ftell(file); at % 8 != 0; at++)
        fputc(' ', file);
    if (fclose(file) != 0) {
        free(text);
        text = NULL;
    }
    return text;
}

static enum ra_status write_file(const char *path, const struct ra_to_store *list, int64_t count,
                                 enum ra_stored_type type, bool metadata, char *error)
{
    size_t length = 0;
    unsigned char bytes[8];
    int64_t bad = -1, i = 0;
    char *header = make_header(list, count, type, metadata, &length);
    FILE *file = header ? fopen(path, "wbx") : NULL;
    if (!file) {
        free(header);
        return refuse_system(path, error);
    }
    for (int b = 0; b < 8; b++)
        bytes[b] = (unsigned char)((uint64_t)length >> 8 * b);
    bool good = fwrite(bytes, 1, 8, file) == 8 && fwrite(header, 1, length, file) == length;
    while (good && i < count && (good = write_numbers(file, &list[i], type, &bad)))
        i++;
    free(header);
    int reason = errno;
    if (fclose(file) != 0 && good) {
        good = false;
        reason = errno;
    }
    if (bad >= 0)
        return ra_error_set(error,
                            "%.120s: \"%.80s\"[%" PRId64 "] is %g, too large for bfloat16: write "
                            "float32",
                            path, list[i].name, bad, (double)list[i].numbers[bad]);
    errno = reason;
    return good ? RA_OK : refuse_system(path, error);
}

/* Where the shard ends that begins with this array. */
static int64_t end_of_shard(const struct ra_to_store *list, int64_t count, int64_t first, int width,
                            int64_t most)
{
    int64_t bytes = 0, end = first;
    while (end < count &&
           (most == 0 || end == first || bytes + numbers_in(&list[end]) * width <= most))
        bytes += numbers_in(&list[end++]) * width;
    return end;
}

static enum ra_status write_index(const char *folder, const struct ra_to_store *list, int64_t count,
                                  int width, int64_t most, int shards, char *error)
{
    char path[PATH_ROOM];
    int64_t numbers = 0;
    for (int64_t i = 0; i < count; i++)
        numbers += numbers_in(&list[i]);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    FILE *file = fopen(path, "wbx");
    if (!file)
        return refuse_system(path, error);
    fprintf(file,
            "{\n  \"metadata\": {\n    \"total_parameters\": %" PRId64
            ",\n    \"total_size\": %" PRId64 "\n  },\n  \"weight_map\": {",
            numbers, numbers * width);
    int64_t end = 0;
    for (int64_t i = 0, shard = 0; i < count; i++) {
        if (i == end) {
            end = end_of_shard(list, count, i, width, most);
            shard++;
        }
        fprintf(file, "%s\n    \"%s\": \"model-%05d-of-%05d.safetensors\"", i > 0 ? "," : "",
                list[i].name, (int)shard, shards);
    }
    bool good = fputs("\n  }\n}\n", file) != EOF && !ferror(file);
    if (fclose(file) != 0 || !good)
        return refuse_system(path, error);
    return RA_OK;
}

enum ra_status ra_safetensors_write(const char *folder, struct ra_to_store *list, int64_t count,
                                    enum ra_stored_type type, int64_t most, bool metadata,
                                    char error[RA_ERROR_SIZE])
{
    char path[PATH_ROOM];
    int shards = 0, width = widths[type];
    enum ra_status status = RA_OK;
    qsort(list, (size_t)count, sizeof *list, by_their_name);

    /* The name of each shard says how many there are. */
    for (int64_t i = 0; i < count; shards++)
        i = end_of_shard(list, count, i, width, most);
    if (shards <= 1) {
        snprintf(path, sizeof path, "%s/model.safetensors", folder);
        return write_file(path, list, count, type, metadata, error);
    }

    for (int64_t i = 0, end, shard = 1; i < count && status == RA_OK; i = end, shard++) {
        end = end_of_shard(list, count, i, width, most);
        snprintf(path, sizeof path, "%s/model-%05d-of-%05d.safetensors", folder, (int)shard,
                 shards);
        status = write_file(path, list + i, end - i, type, metadata, error);
    }
    return status == RA_OK ? write_index(folder, list, count, width, most, shards, error) : status;
}
