/* ra_folder: a model as a folder. See ra_folder.h.
 *
 * Chapter 10.
 */
#include "ra_folder.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "npy.h"
#include "ra_error.h"
#include "ra_model_config.h"

/* A path that is too long for the system must stay so: cut, it would be another name. */
enum { PATH_ROOM = 8192 };

enum ra_status ra_folder_config(const char *folder, struct ra_model_config *config,
                                char note[RA_ERROR_SIZE], char error[RA_ERROR_SIZE])
{
    char path[PATH_ROOM], text[1 << 15];
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *file = fopen(path, "r");
    if (!file)
        return ra_error_set(error, "%.200s: %s", path, strerror(errno));
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    return ra_model_config_read(path, text, config, note, error);
}

/* ---- Weights. */

/* NAME.npy of a parameter. */
static void path_of(const char *folder, const struct ra_parameter *x, char path[PATH_ROOM])
{
    snprintf(path, PATH_ROOM, "%s/%s.npy", folder, x->name);
}

/* Says what has failed; of a long path only the end, in which the array is named. */
static enum ra_status refuse_file(const struct npy *file, char error[RA_ERROR_SIZE])
{
    size_t length = strlen(file->path), room = 150;
    return ra_error_set(error, "%s%s", file->path + (length > room ? length - room : 0),
                        file->error + length);
}

static enum ra_status read_one(const char *path, const struct ra_parameter *x, float *weights,
                               char error[RA_ERROR_SIZE])
{
    struct npy file;
    if (!npy_open(&file, path))
        return refuse_file(&file, error);
    enum ra_status status = RA_OK;
    double *numbers = NULL;
    if (file.dims != (x->columns > 0 ? 2 : 1) || file.shape[0] != x->rows ||
        (x->columns > 0 && file.shape[1] != x->columns))
        status = ra_error_set(error, "%.200s: must be (%" PRId64 ", %" PRId64 ")", path, x->rows,
                              x->columns);
    else if (!(numbers = malloc((size_t)x->count * sizeof *numbers)))
        status = ra_error_set(error, "no memory to read %.200s", path);
    else if (!npy_read(&file, (struct npy_slice){0, 0, 0, 1, x->rows}, NPY_FLOAT64, numbers))
        status = refuse_file(&file, error);
    for (int64_t e = 0; e < x->count && status == RA_OK; e++)
        weights[x->first + e] = (float)numbers[e];
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

static bool is_weight(const struct ra_model_config *config, const char *file)
{
    char name[64];
    for (int i = 0; i < ra_parameter_count(config); i++) {
        snprintf(name, sizeof name, "%s.npy", ra_parameter(config, i).name);
        if (strcmp(name, file) == 0)
            return true;
    }
    return false;
}

/* All .npy files must be arrays of this model: one more would be of a model with another function.
 * All of its own are there. Frequencies are compared. */
static enum ra_status check_others(const char *folder, const struct ra_model_config *config,
                                   char error[RA_ERROR_SIZE])
{
    DIR *listing = opendir(folder);
    if (!listing)
        return ra_error_set(error, "%.200s: %s", folder, strerror(errno));
    enum ra_status status = RA_OK;
    for (struct dirent *entry; status == RA_OK && (entry = readdir(listing));) {
        const char *end = strrchr(entry->d_name, '.');
        if (!end || strcmp(end, ".npy") != 0)
            continue;
        if (strcmp(entry->d_name, frequencies_name) == 0)
            status = check_frequencies(folder, config, error);
        else if (!is_weight(config, entry->d_name))
            status = ra_error_set(error, "%.180s/%.100s: the config's model has no such array",
                                  folder, entry->d_name);
    }
    closedir(listing);
    return status;
}

enum ra_status ra_folder_read(const char *folder, const struct ra_model_config *config,
                              float *weights, char error[RA_ERROR_SIZE])
{
    memset(weights, 0, (size_t)ra_parameter_numbers(config) * sizeof *weights);
    enum ra_status status = RA_OK;
    for (int i = 0; i < ra_parameter_count(config) && status == RA_OK; i++) {
        struct ra_parameter x = ra_parameter(config, i);
        char path[PATH_ROOM];
        path_of(folder, &x, path);
        status = read_one(path, &x, weights, error);
    }
    if (status == RA_OK)
        status = ra_parameters_finite(config, weights, folder, error);
    return status == RA_OK ? check_others(folder, config, error) : status;
}

enum ra_status ra_folder_write(const char *folder, const struct ra_model_config *config,
                               const float *weights, char error[RA_ERROR_SIZE])
{
    for (int i = 0; i < ra_parameter_count(config); i++) {
        struct ra_parameter x = ra_parameter(config, i);
        struct npy file;
        char path[PATH_ROOM];
        path_of(folder, &x, path);
        bool good = npy_create(&file, path, NPY_FLOAT32, x.columns > 0 ? 2 : 1,
                               (int64_t[]){x.rows, x.columns});
        good = good && npy_write(&file, (struct npy_slice){0, 0, 0, 1, x.rows}, NPY_FLOAT32,
                                 weights + x.first);
        good = npy_close(&file) && good;
        if (!good)
            return refuse_file(&file, error);
    }
    return RA_OK;
}
