/* ra_folder: a model as a folder. See ra_folder.h.
 *
 * Chapter 10.
 */
#include "ra_folder.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "ra_config_check.h"
#include "ra_model_config.h"

enum ra_status ra_folder_config(const char *folder, struct ra_model_config *config,
                                char note[RA_ERROR_SIZE], char error[RA_ERROR_SIZE])
{
    char path[4096], text[1 << 15];
    snprintf(path, sizeof path, "%s/config.json", folder);
    FILE *file = fopen(path, "r");
    if (!file)
        return ra_refuse(error, "%.200s: %s", path, strerror(errno));
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    return ra_model_config_read(path, text, config, note, error);
}

/* ---- Weights. */

/* NAME.npy of a parameter. */
static void path_of(const char *folder, const struct ra_parameter *x, char path[4096])
{
    snprintf(path, 4096, "%s/%s.npy", folder, x->name);
}

static enum ra_status read_one(const char *path, const struct ra_parameter *x, float *weights,
                               char error[RA_ERROR_SIZE])
{
    struct npy file;
    if (!npy_open(&file, path))
        return ra_refuse(error, "%.300s", file.error);
    enum ra_status status = RA_OK;
    double *numbers = NULL;
    if (file.dims != (x->columns > 0 ? 2 : 1) || file.shape[0] != x->rows ||
        (x->columns > 0 && file.shape[1] != x->columns))
        status = ra_refuse(error, "%.200s: must be (%" PRId64 ", %" PRId64 ")", path, x->rows,
                           x->columns);
    else if (!(numbers = malloc((size_t)x->count * sizeof *numbers)))
        status = ra_refuse(error, "no memory to read %.200s", path);
    else if (!npy_read(&file, (struct npy_slice){0, 0, 0, 1, x->rows}, NPY_FLOAT64, numbers))
        status = ra_refuse(error, "%.300s", file.error);
    for (int64_t e = 0; e < x->count && status == RA_OK; e++)
        weights[x->first + e] = (float)numbers[e];
    free(numbers);
    npy_close(&file);
    return status;
}

enum ra_status ra_folder_read(const char *folder, const struct ra_model_config *config,
                              float *weights, char error[RA_ERROR_SIZE])
{
    memset(weights, 0, (size_t)ra_parameter_numbers(config) * sizeof *weights);
    enum ra_status status = RA_OK;
    for (int i = 0; i < ra_parameter_count(config) && status == RA_OK; i++) {
        struct ra_parameter x = ra_parameter(config, i);
        char path[4096];
        path_of(folder, &x, path);
        status = read_one(path, &x, weights, error);
    }
    return status;
}

enum ra_status ra_folder_write(const char *folder, const struct ra_model_config *config,
                               const float *weights, char error[RA_ERROR_SIZE])
{
    for (int i = 0; i < ra_parameter_count(config); i++) {
        struct ra_parameter x = ra_parameter(config, i);
        struct npy file;
        char path[4096];
        path_of(folder, &x, path);
        if (unlink(path) != 0 && errno != ENOENT)
            return ra_refuse(error, "%.200s: %s", path, strerror(errno));
        bool good = npy_create(&file, path, NPY_FLOAT32, x.columns > 0 ? 2 : 1,
                               (int64_t[]){x.rows, x.columns});
        good = good && npy_write(&file, (struct npy_slice){0, 0, 0, 1, x.rows}, NPY_FLOAT32,
                                 weights + x.first);
        good = npy_close(&file) && good;
        if (!good)
            return ra_refuse(error, "%.300s", file.error);
    }
    return RA_OK;
}
