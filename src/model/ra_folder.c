/* ra_folder: a model as a folder. See ra_folder.h.
 *
 * Chapter 10.
 */
#include "ra_folder.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "npy.h"
#include "ra_error.h"
#include "ra_family.h"
#include "ra_json.h"
#include "ra_model_config.h"
#include "ra_model_struct.h"
#include "ra_safetensors.h"

/* A path that is too long for the system must stay so: cut, it would be another name. */
enum { PATH_ROOM = 8192 };

/* More than a config of any model has. */
enum { LONGEST = 1 << 20 };

/* Reads a file as a text that must be freed, NULL unless this is RA_OK. */
static enum ra_status read_text(const char *path, char **text, char *error)
{
    *text = NULL;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* it may be a pipe */
    FILE *file = descriptor >= 0 ? fdopen(descriptor, "r") : NULL;
    if (!file)
        return ra_error_set(error, "%.200s: %s", path, strerror(errno));
    char *read = malloc(LONGEST + 1);
    size_t length = read ? fread(read, 1, LONGEST, file) : 0;
    bool good = read && !ferror(file), whole = good && length < LONGEST;
    int reason = good ? 0 : errno;
    fclose(file);
    if (whole)
        read[length] = '\0';
    enum ra_status status =
        !good ? ra_error_set(error, "%.200s: cannot be read: %s", path, strerror(reason))
        : !whole
            ? ra_error_set(error, "%.200s: has %d bytes or more: is it a config?", path, LONGEST)
        : strlen(read) != length
            ? ra_error_set(error, "%.200s: holds the character 0: it is no JSON", path)
            : RA_OK;
    if (status == RA_OK)
        *text = read;
    else
        free(read);
    return status;
}

enum ra_status ra_folder_config(const char *folder, struct ra_model_config *config, size_t size,
                                char note[RA_ERROR_SIZE], char error[RA_ERROR_SIZE])
{
    char path[PATH_ROOM], *text;
    snprintf(path, sizeof path, "%s/config.json", folder);
    enum ra_status status = read_text(path, &text, error);
    if (status == RA_OK)
        status = ra_model_config_read(path, text, config, size, note, error);
    free(text);
    return status;
}

/* Reads eos_token_id of one file, a number or a list of numbers. */
static enum ra_status read_ends(const struct ra_json_text *json, int64_t vocabulary, int most,
                                int32_t *tokens, int *count, char *error)
{
    const struct ra_json *value = ra_json_member(json->root, "eos_token_id");
    bool is_list = value && value->kind == RA_JSON_LIST;
    *count = 0;
    for (const struct ra_json *one = is_list ? value->first : value; one;
         one = is_list ? one->next : NULL) {
        int64_t token;
        if (!is_list && one->kind == RA_JSON_NULL)
            break;
        if (!ra_json_whole(one, &token) || token < 0 || token >= vocabulary)
            return ra_json_refuse(json, one, error,
                                  "eos_token_id is no token of this model: 0 to %" PRId64,
                                  vocabulary - 1);
        if (*count == most)
            return ra_json_refuse(json, one, error, "eos_token_id has more than %d tokens", most);
        tokens[(*count)++] = (int32_t)token;
    }
    return RA_OK;
}

enum ra_status ra_folder_ends(const char *folder, int64_t vocabulary, int most, int32_t *tokens,
                              int *count, char error[RA_ERROR_SIZE])
{
    static const char *const files[] = {"generation_config.json", "config.json"};
    *count = 0;
    for (int f = 0; f < 2 && *count == 0; f++) {
        char path[PATH_ROOM], *text;
        struct ra_json_text json;
        snprintf(path, sizeof path, "%s/%s", folder, files[f]);
        if (f == 0 && access(path, F_OK) != 0 && errno == ENOENT)
            continue;
        enum ra_status status = read_text(path, &text, error);
        if (status == RA_OK)
            status = ra_json_read(&json, path, text, strlen(text), error);
        if (status == RA_OK) {
            status = read_ends(&json, vocabulary, most, tokens, count, error);
            ra_json_free(&json);
        }
        free(text);
        if (status != RA_OK)
            return status;
    }
    if (*count == 0)
        return ra_error_set(error,
                            "%.200s: neither generation_config.json nor config.json has an "
                            "eos_token_id: no token is known to end a text",
                            folder);
    return RA_OK;
}

/* ---- Weights. */

/* The arrays of a model as its family has them, which must be freed. NULL: an error. */
static struct ra_family_array *list_arrays(const struct ra_model_config *config, int *count,
                                           char *error)
{
    struct ra_family_array *list = NULL;
    *count = ra_family_arrays(config, NULL, error);
    if (*count >= 0 && !(list = malloc((size_t)*count * sizeof *list)))
        ra_error_set(error, "no memory for the names of %d arrays", *count);
    if (list)
        ra_family_arrays(config, list, error);
    return list;
}

static bool is_listed(const struct ra_family_array *list, int count, const char *name)
{
    for (int i = 0; i < count; i++)
        if (strcmp(list[i].name, name) == 0)
            return true;
    return false;
}

/* Refuses a NaN or an Inf, by the name that the array has in the folder. */
static enum ra_status check_finite(const char *folder, const struct ra_family_array *list,
                                   int count, const float *weights, char *error)
{
    enum ra_status status = RA_OK;
    for (int i = 0; i < count && status == RA_OK; i++)
        status = ra_numbers_finite(folder, list[i].name, list[i].columns, list[i].count,
                                   weights + list[i].first, error);
    return status;
}

/* Writes a shape as Python does, and returns it. */
static const char *shape_of(const struct ra_family_array *array, char text[60])
{
    if (array->columns > 0)
        snprintf(text, 60, "(%" PRId64 ", %" PRId64 ")", array->rows, array->columns);
    else
        snprintf(text, 60, "(%" PRId64 ")", array->rows);
    return text;
}

/* NAME.npy of an array. */
static void path_of(const char *folder, const struct ra_family_array *array, char path[PATH_ROOM])
{
    snprintf(path, PATH_ROOM, "%s/%s.npy", folder, array->name);
}

/* Says what has failed; of a long path only the end, in which the array is named. */
static enum ra_status refuse_file(const struct npy *file, char error[RA_ERROR_SIZE])
{
    size_t length = strlen(file->path), room = 150;
    return ra_error_set(error, "%s%s", file->path + (length > room ? length - room : 0),
                        file->error + length);
}

static enum ra_status read_one(const char *path, const struct ra_family_array *array,
                               float *weights, char error[RA_ERROR_SIZE])
{
    struct npy file;
    char shape[60];
    if (!npy_open(&file, path))
        return refuse_file(&file, error);
    enum ra_status status = RA_OK;
    double *numbers = NULL;
    if (file.dims != (array->columns > 0 ? 2 : 1) || file.shape[0] != array->rows ||
        (array->columns > 0 && file.shape[1] != array->columns))
        status = ra_error_set(error, "%.200s: must be %s", path, shape_of(array, shape));
    else if (!(numbers = malloc((size_t)array->count * sizeof *numbers)))
        status = ra_error_set(error, "no memory to read %.200s", path);
    else if (!npy_read(&file, (struct npy_slice){0, 0, 0, 1, array->rows}, NPY_FLOAT64, numbers))
        status = refuse_file(&file, error);
    for (int64_t e = 0; e < array->count && status == RA_OK; e++)
        weights[array->first + e] = (float)numbers[e];
    free(numbers);
    npy_close(&file);
    return status;
}

/* ---- What lies beside them. */

static const char frequencies_name[] = "rotary_emb.inv_freq.npy";

/* To how many bits numbers are rounded: 8 as bfloat16, 11 as float16, otherwise 24 as float32. A
 * file of float32 may hold what was bfloat16. */
static int bits_of(int64_t count, const double *numbers)
{
    int most = 8;
    for (int64_t e = 0; e < count; e++) {
        int exponent, bits = 0;
        for (double rest = fabs(frexp(numbers[e], &exponent)); rest > 0 && bits < 24; bits++)
            rest = 2 * rest - (rest >= 0.5);
        most = bits > most ? bits : most;
    }
    return most == 8 ? 8 : most <= 11 ? 11 : 24;
}

/* The original keeps the frequencies of its rotations, theta^(-2t / D), beside its weights: here
 * they must be those of the config. They were computed in float32, where a rounded exponent costs
 * log(theta) units, and were rounded once more if the weights have 16 bits. (Float16's smallest
 * numbers are 2^-24 apart.) */
static enum ra_status compare_frequencies(const char *path, const struct ra_model_config *config,
                                          const double *numbers, char error[RA_ERROR_SIZE])
{
    int64_t half = config->head_dim / 2;
    int bits = bits_of(half, numbers);
    double part = ldexp(1, -bits) + ldexp(8 + fabs(log(config->rotary_theta)), -24);
    for (int64_t t = 0; t < half; t++) {
        double right = pow(config->rotary_theta, -(double)t / (double)half) / config->rotary_scale;
        if (fabs(numbers[t] - right) <= part * right + (bits == 11 ? ldexp(1, -25) : 0))
            continue;
        return ra_error_set(
            error,
            "%.120s: number %" PRId64 " is %.7g, but theta %.7g and scale %.7g of the "
            "config make it %.7g, or up to %.2g %% off in %s; theta %.6g would fit",
            path, t, numbers[t], config->rotary_theta, config->rotary_scale, right, 100 * part,
            bits == 8    ? "bfloat16"
            : bits == 11 ? "float16"
                         : "float32",
            pow(numbers[half - 1], (double)half / (1 - (double)half)));
    }
    return RA_OK;
}

static enum ra_status check_frequencies(const char *folder, const struct ra_model_config *config,
                                        char error[RA_ERROR_SIZE])
{
    struct npy file;
    char path[PATH_ROOM];
    int64_t half = config->head_dim / 2;
    double *numbers = NULL;
    enum ra_status status = RA_OK;
    snprintf(path, sizeof path, "%s/%s", folder, frequencies_name);
    if (!npy_open(&file, path))
        return refuse_file(&file, error);
    if (file.dims != 1 || file.shape[0] != half)
        status = ra_error_set(error, "%.200s: must be (%" PRId64 "): half of dim_head", path, half);
    else if (!(numbers = malloc((size_t)half * sizeof *numbers)))
        status = ra_error_set(error, "no memory to read %.200s", path);
    else if (!npy_read(&file, (struct npy_slice){0, 0, 0, 1, half}, NPY_FLOAT64, numbers))
        status = refuse_file(&file, error);
    else
        status = compare_frequencies(path, config, numbers, error);
    free(numbers);
    npy_close(&file);
    return status;
}

/* All .npy files must be arrays of this model: one more would be of a model with another function.
 * All of its own are there. Frequencies are compared. */
static enum ra_status check_others(const char *folder, const struct ra_model_config *config,
                                   const struct ra_family_array *list, int count,
                                   char error[RA_ERROR_SIZE])
{
    DIR *listing = opendir(folder);
    if (!listing)
        return ra_error_set(error, "%.200s: %s", folder, strerror(errno));
    enum ra_status status = RA_OK;
    struct dirent *entry = NULL;
    while (status == RA_OK && (errno = 0, entry = readdir(listing))) {
        char name[sizeof entry->d_name];
        snprintf(name, sizeof name, "%s", entry->d_name);
        char *end = strrchr(name, '.');
        if (!end || strcmp(end, ".npy") != 0)
            continue;
        *end = '\0';
        if (strcmp(entry->d_name, frequencies_name) == 0)
            status = check_frequencies(folder, config, error);
        else if (!is_listed(list, count, name))
            status = ra_error_set(error, "%.180s/%.100s: the config's model has no such array",
                                  folder, entry->d_name);
    }
    if (status == RA_OK && errno != 0)
        status = ra_error_set(error, "%.200s: cannot be listed: %s", folder, strerror(errno));
    closedir(listing);
    return status;
}

enum ra_status ra_folder_read(const char *folder, const struct ra_model_config *given,
                              float *weights, char error[RA_ERROR_SIZE])
{
    struct ra_model_config room;
    const struct ra_model_config *config = ra_model_config_view(given, &room, error);
    if (!config)
        return RA_INVALID;
    int count;
    struct ra_family_array *list = list_arrays(config, &count, error);
    enum ra_status status = list ? RA_OK : RA_INVALID;
    memset(weights, 0, (size_t)ra_parameter_numbers(config) * sizeof *weights);
    for (int i = 0; i < count && status == RA_OK; i++) {
        char path[PATH_ROOM];
        path_of(folder, &list[i], path);
        status = read_one(path, &list[i], weights, error);
    }
    if (status == RA_OK)
        status = check_finite(folder, list, count, weights, error);
    if (status == RA_OK)
        status = check_others(folder, config, list, count, error);
    free(list);
    return status;
}

enum ra_status ra_folder_write(const char *folder, const struct ra_model_config *given,
                               const float *weights, char error[RA_ERROR_SIZE])
{
    struct ra_model_config room;
    const struct ra_model_config *config = ra_model_config_view(given, &room, error);
    if (!config)
        return RA_INVALID;
    int count;
    struct ra_family_array *list = list_arrays(config, &count, error);
    enum ra_status status = list ? RA_OK : RA_INVALID;
    for (int i = 0; i < count && status == RA_OK; i++) {
        const struct ra_family_array *array = &list[i];
        struct npy file;
        char path[PATH_ROOM];
        path_of(folder, array, path);
        bool good = npy_create(&file, path, NPY_FLOAT32, array->columns > 0 ? 2 : 1,
                               (int64_t[]){array->rows, array->columns});
        good = good && npy_write(&file, (struct npy_slice){0, 0, 0, 1, array->rows}, NPY_FLOAT32,
                                 weights + array->first);
        good = npy_close(&file) && good;
        if (!good)
            status = refuse_file(&file, error);
    }
    free(list);
    return status;
}

/* ---- .safetensors. */

/* Reads one array; `array` says what it must be. */
static enum ra_status read_stored(const struct ra_safetensors *files, const char *folder,
                                  const struct ra_family_array *array, float *weights, char *error)
{
    const struct ra_stored *stored = ra_safetensors_find(files, array->name);
    if (!stored && strcmp(array->name, "lm_head.weight") == 0)
        return ra_error_set(error,
                            "%.120s: has no \"lm_head.weight\": if the logits have the "
                            "embedding's table, config.json must say \"tie_word_embeddings\": true",
                            folder);
    if (!stored)
        return ra_error_set(error, "%.200s: has no \"%.80s\"", folder, array->name);
    int axes = array->columns > 0 ? 2 : 1;
    char shape[60];
    if (stored->axes != axes || stored->shape[0] != array->rows ||
        (axes == 2 && stored->shape[1] != array->columns))
        return ra_error_set(error,
                            "%.120s: \"%.80s\" must be %s by config.json, and has %d axes, the "
                            "first of %" PRId64,
                            ra_safetensors_path(files, stored), array->name, shape_of(array, shape),
                            stored->axes, stored->axes > 0 ? stored->shape[0] : 0);
    return ra_safetensors_read(files, stored, weights + array->first, error);
}

/* Reads an array that the model does not have, which must be freed. NULL: an error. */
static float *read_other(const struct ra_safetensors *files, const struct ra_stored *stored,
                         char *error)
{
    float *numbers = malloc((size_t)stored->count * sizeof *numbers + 1);
    if (!numbers)
        ra_error_set(error, "no memory to read %.200s", ra_safetensors_path(files, stored));
    else if (ra_safetensors_read(files, stored, numbers, error) != RA_OK) {
        free(numbers);
        numbers = NULL;
    }
    return numbers;
}

/* The table of tied logits, stored once more: it must be that of the embedding. */
static enum ra_status check_tied(const struct ra_safetensors *files, const struct ra_stored *stored,
                                 const struct ra_model_config *config, const float *weights,
                                 char *error)
{
    float *numbers = read_other(files, stored, error);
    if (!numbers)
        return RA_INVALID;
    bool same = stored->count == config->vocabulary * config->dim &&
                memcmp(numbers, ra_places_of_ends(config, weights).embedding,
                       (size_t)stored->count * sizeof *numbers) == 0;
    free(numbers);
    return same ? RA_OK
                : ra_error_set(error,
                               "%.150s: \"%.60s\" is not the embedding's table, but by config.json "
                               "they are tied",
                               ra_safetensors_path(files, stored), stored->name);
}

/* Frequencies, which other programs keep beside weights. */
static enum ra_status check_stored_frequencies(const struct ra_safetensors *files,
                                               const struct ra_stored *stored,
                                               const struct ra_model_config *config, char *error)
{
    char where[RA_ERROR_SIZE];
    int64_t half = config->head_dim / 2;
    snprintf(where, sizeof where, "%.60s: %.60s", ra_safetensors_path(files, stored), stored->name);
    if (stored->axes != 1 || stored->shape[0] != half)
        return ra_error_set(error, "%.200s: must be (%" PRId64 "): half of dim_head", where, half);
    float *numbers = read_other(files, stored, error);
    double *doubles = malloc((size_t)half * sizeof *doubles);
    enum ra_status status = numbers && doubles ? RA_OK : RA_INVALID;
    if (numbers && !doubles)
        ra_error_set(error, "no memory to read %.200s", where);
    for (int64_t t = 0; t < half && status == RA_OK; t++)
        doubles[t] = (double)numbers[t];
    if (status == RA_OK)
        status = compare_frequencies(where, config, doubles, error);
    free(numbers);
    free(doubles);
    return status;
}

/* Every array belongs to the model, or says what the config says. */
static enum ra_status check_stored(const struct ra_safetensors *files,
                                   const struct ra_model_config *config,
                                   const struct ra_family_array *list, int count,
                                   const float *weights, char *error)
{
    struct ra_model_config untied = *config;
    int more = 0;
    untied.tied = false;
    struct ra_family_array *all = list_arrays(&untied, &more, error);
    enum ra_status status = all ? RA_OK : RA_INVALID;
    for (int64_t i = 0; i < files->count && status == RA_OK; i++) {
        const struct ra_stored *stored = &files->stored[i];
        const char *frequencies = strstr(stored->name, "rotary_emb.inv_freq");
        if (is_listed(list, count, stored->name))
            continue;
        if (is_listed(all, more, stored->name))
            status = check_tied(files, stored, config, weights, error);
        else if (frequencies && strcmp(frequencies, "rotary_emb.inv_freq") == 0)
            status = check_stored_frequencies(files, stored, config, error);
        else
            status = ra_error_set(error, "%.150s: \"%.100s\": the config's model has no such array",
                                  ra_safetensors_path(files, stored), stored->name);
    }
    free(all);
    return status;
}

static enum ra_status read_safetensors(const char *folder, const struct ra_model_config *config,
                                       float *weights, char *error)
{
    struct ra_safetensors files;
    if (ra_safetensors_open(&files, folder, error) != RA_OK)
        return RA_INVALID;
    int count;
    struct ra_family_array *list = list_arrays(config, &count, error);
    enum ra_status status = list ? RA_OK : RA_INVALID;
    memset(weights, 0, (size_t)ra_parameter_numbers(config) * sizeof *weights);
    for (int i = 0; i < count && status == RA_OK; i++)
        status = read_stored(&files, folder, &list[i], weights, error);
    if (status == RA_OK)
        status = check_finite(folder, list, count, weights, error);
    if (status == RA_OK)
        status = check_stored(&files, config, list, count, weights, error);
    free(list);
    ra_safetensors_close(&files);
    return status;
}

enum ra_status ra_folder_weights(const char *folder, const struct ra_model_config *given,
                                 float *weights, char error[RA_ERROR_SIZE])
{
    struct ra_model_config room;
    const struct ra_model_config *config = ra_model_config_view(given, &room, error);
    if (!config)
        return RA_INVALID;
    static const char *const stored[] = {"model.safetensors", "model.safetensors.index.json",
                                         "weights"};
    char path[PATH_ROOM];
    bool found[3];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, stored[i]);
        if (ra_safetensors_look(path, &found[i], error) != RA_OK)
            return RA_INVALID;
    }
    bool files = found[0] || found[1], arrays = found[2];
    if (files && arrays)
        return ra_error_set(error,
                            "%.150s: has .safetensors files and a folder weights: take away what "
                            "is not the model",
                            folder);
    if (!files && !arrays)
        return ra_error_set(error,
                            "%.150s: has no weights: give model.safetensors, or "
                            "model.safetensors.index.json and its files, or a folder weights of "
                            ".npy files",
                            folder);
    return arrays ? ra_folder_read(path, config, weights, error)
                  : read_safetensors(folder, config, weights, error);
}

enum ra_status ra_folder_describe(const struct ra_model_config *given, bool bfloat16, char *text,
                                  size_t size, char error[RA_ERROR_SIZE])
{
    struct ra_model_config room;
    const struct ra_model_config *config = ra_model_config_view(given, &room, error);
    if (!config)
        return RA_INVALID;
    int length =
        config->family == RA_FAMILY_ORIGINAL
            ? ra_model_config_write(config, text, size)
            : ra_family_write(config, bfloat16 ? "bfloat16" : "float32", text, size, error);
    if (length >= 0 && (size_t)length >= size)
        return ra_error_set(error, "config.json has %d characters, and there is room for %zu",
                            length, size);
    return length < 0 ? RA_INVALID : RA_OK;
}

enum ra_status ra_folder_store(const char *folder, const struct ra_model_config *given,
                               const float *weights, bool bfloat16, int64_t most,
                               char error[RA_ERROR_SIZE])
{
    struct ra_model_config room;
    const struct ra_model_config *config = ra_model_config_view(given, &room, error);
    if (!config)
        return RA_INVALID;
    int count;
    struct ra_family_array *list = list_arrays(config, &count, error);
    if (!list)
        return RA_INVALID;
    struct ra_to_store *arrays = malloc((size_t)count * sizeof *arrays);
    enum ra_status status = RA_OK;
    if (!arrays)
        status = ra_error_set(error, "no memory for the names of %d arrays", count);
    for (int i = 0; i < count && arrays; i++) {
        arrays[i] = (struct ra_to_store){.axes = list[i].columns > 0 ? 2 : 1,
                                         .shape = {list[i].rows, list[i].columns},
                                         .numbers = weights + list[i].first};
        snprintf(arrays[i].name, sizeof arrays[i].name, "%s", list[i].name);
    }
    if (status == RA_OK)
        status =
            ra_safetensors_write(folder, arrays, count, bfloat16 ? RA_STORED_BF16 : RA_STORED_F32,
                                 most, config->family >= RA_FAMILY_LLAMA, error);
    free(arrays);
    free(list);
    return status;
}
