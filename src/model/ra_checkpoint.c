/* ra_checkpoint: a model in training, as one file. See ra_checkpoint.h.
 *
 * Chapter 10.
 */
#include "ra_checkpoint.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ra_checksum.h"
#include "ra_error.h"
#include "ra_model_config.h"
#include "ra_model_struct.h"
#include "ra_system.h"

static const char word[16] = "ringattn model 2";

struct head {
    char word[16];
    int64_t text, numbers, trained;
    struct ra_training training;
};

/* A file that is read or written, and the checksum so far. `reason` is that of the system, if the
 * file could not be read; 0: it is too short. */
struct stream {
    FILE *file;
    uint64_t sum;
    bool failed;
    int reason;
};

static void put(struct stream *stream, const void *bytes, size_t count)
{
    stream->sum = ra_checksum(stream->sum, bytes, count);
    stream->failed = stream->failed || fwrite(bytes, 1, count, stream->file) != count;
}

static void get(struct stream *stream, void *bytes, size_t count)
{
    if (stream->failed)
        return;
    stream->failed = fread(bytes, 1, count, stream->file) != count;
    if (!stream->failed)
        stream->sum = ra_checksum(stream->sum, bytes, count);
    else if (ferror(stream->file))
        stream->reason = errno;
}

/* Says what is wrong with a file, or why it cannot be read: a disk that fails damages no model. */
static enum ra_status refuse(const struct stream *stream, const char *path, const char *wrong,
                             char *error)
{
    return stream->reason
               ? ra_error_set(error, "%.200s: cannot be read: %s", path, strerror(stream->reason))
               : ra_error_set(error, "%.200s: is %s", path, wrong);
}

/* ---- Reading. */

/* Characters of a config; numbers that are read or written at a time. */
enum { LONGEST = 1 << 15, CHUNK = 1024 };

static int64_t file_bytes(int64_t text, int64_t numbers, bool trained)
{
    return (int64_t)sizeof(struct head) + text + (trained ? 3 : 1) * numbers * 4 + 8;
}

/* Whether a training can be there. Even a file whose checksum is right may hold impossible
 * numbers. */
static bool is_training(const struct head *head)
{
    const struct ra_training *training = &head->training;
    const int64_t wholes[] = {training->step,  training->steps,  training->warmup,
                              training->batch, training->length, training->accumulate,
                              training->seed,  training->tokens};
    const double reals[] = {training->rate, training->decay, training->clip, training->validation};
    bool good = (head->trained == 0 || head->trained == 1) && training->step <= training->steps;
    for (size_t i = 0; i < sizeof wholes / sizeof *wholes; i++)
        good = good && wholes[i] >= 0 && (head->trained || wholes[i] == 0);
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        good = good && reals[i] >= 0 && isfinite(reals[i]);
    return good;
}

/* Refuses a NaN or an Inf, by its name. Arrays may be NULL. */
static enum ra_status check_arrays(const struct ra_model_config *config, const char *path,
                                   const float *weights, const float *means, const float *squares,
                                   char *error)
{
    static const char *const what[] = {"", ", mean of a gradient", ", mean square of a gradient"};
    const float *const arrays[] = {weights, means, squares};
    enum ra_status status = RA_OK;
    for (int i = 0; i < 3 && status == RA_OK; i++) {
        char where[RA_ERROR_SIZE];
        snprintf(where, sizeof where, "%.150s%s", path, what[i]);
        if (arrays[i])
            status = ra_parameters_finite(config, arrays[i], where, error);
    }
    return status;
}

/* Opens a file and reads all but its numbers. */
static enum ra_status open_file(const char *path, struct stream *stream, struct head *head,
                                struct ra_model_config *config, char error[RA_ERROR_SIZE])
{
    char text[LONGEST], note[RA_ERROR_SIZE];
    struct stat status;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* it may be a pipe */
    *stream = (struct stream){.file = descriptor >= 0 ? fdopen(descriptor, "rb") : NULL};
    if (!stream->file || fstat(descriptor, &status) != 0)
        return ra_error_set(error, "%.200s: %s", path, strerror(errno));
    get(stream, head, sizeof *head);
    if (stream->failed || memcmp(head->word, word, sizeof word - 1) != 0 || head->text < 0 ||
        head->text >= LONGEST)
        return refuse(stream, path, "no model of this program", error);
    if (head->word[15] != word[15])
        return ra_error_set(
            error,
            "%.200s: is a model in format %c, and this program reads %c: export it with "
            "the program that wrote it, and import that",
            path, head->word[15], word[15]);
    get(stream, text, (size_t)head->text);
    text[head->text] = '\0';
    if (stream->failed ||
        ra_model_config_read(path, text, config, sizeof *config, note, error) != RA_OK)
        return refuse(stream, path, "damaged: its config cannot be read", error);
    int64_t numbers = ra_parameter_numbers(config);
    int64_t bytes = file_bytes(head->text, numbers, head->trained);
    if (head->numbers != numbers || status.st_size != bytes)
        return ra_error_set(error, "%.200s: is damaged: it must have %" PRId64 " bytes", path,
                            bytes);
    if (!is_training(head))
        return ra_error_set(error,
                            "%.200s: is damaged: a number of its training, at step %" PRId64
                            " of %" PRId64 ", cannot be right",
                            path, head->training.step, head->training.steps);
    return RA_OK;
}

enum ra_status ra_checkpoint_look(const char *path, struct ra_model_config *config, size_t size,
                                  struct ra_training *training, char error[RA_ERROR_SIZE])
{
    struct ra_model_config own;
    struct stream stream;
    struct head head;
    enum ra_status status = open_file(path, &stream, &head, &own, error);
    if (status == RA_OK)
        status = ra_model_config_give(config, size, &own, error);
    if (status == RA_OK)
        *training = head.training;
    if (stream.file)
        fclose(stream.file);
    return status;
}

/* Reads an array; where nobody wants it, chunk by chunk for its checksum. */
static void get_array(struct stream *stream, int64_t numbers, float *array)
{
    float chunk[CHUNK];
    for (int64_t e = 0; e < numbers && !stream->failed; e += CHUNK) {
        size_t bytes = sizeof *array * (size_t)(numbers - e < CHUNK ? numbers - e : CHUNK);
        get(stream, array ? array + e : chunk, bytes);
    }
}

enum ra_status ra_checkpoint_read(const char *path, float *weights, float *means, float *squares,
                                  char error[RA_ERROR_SIZE])
{
    struct ra_model_config config;
    struct stream stream;
    struct head head;
    float *arrays[3] = {weights, means, squares};
    enum ra_status status = open_file(path, &stream, &head, &config, error);
    for (int i = 0; i < 3 && status == RA_OK; i++)
        if (i == 0 || head.trained)
            get_array(&stream, head.numbers, arrays[i]);
        else if (arrays[i])
            memset(arrays[i], 0, (size_t)head.numbers * sizeof *arrays[i]);
    uint64_t sum = stream.sum, written;
    if (status == RA_OK) {
        get(&stream, &written, sizeof written);
        if (stream.failed || sum != written)
            status = refuse(&stream, path, "damaged: its checksum is wrong", error);
    }
    if (status == RA_OK)
        status = check_arrays(&config, path, weights, means, squares, error);
    if (stream.file)
        fclose(stream.file);
    return status;
}

/* ---- Writing. */

/* In the same chunks, by whose ends the checksum can tell. */
static void put_array(struct stream *stream, int64_t numbers, const float *array)
{
    for (int64_t e = 0; e < numbers; e += CHUNK)
        put(stream, array + e, sizeof *array * (size_t)(numbers - e < CHUNK ? numbers - e : CHUNK));
}

enum ra_status ra_checkpoint_try(const struct ra_whole *file, const struct ra_model_config *given,
                                 bool learns, char error[RA_ERROR_SIZE])
{
    struct ra_model_config room;
    const struct ra_model_config *config = ra_model_config_view(given, &room, error);
    if (!config)
        return RA_INVALID;
    char text[LONGEST];
    int length = ra_model_config_write(config, text, sizeof text);
    int64_t bytes = file_bytes(length, ra_parameter_numbers(config), learns);
    int descriptor = open(file->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int reason = descriptor < 0 ? errno : 0;
    if (reason == 0)
        reason = ra_system_reserve(descriptor, bytes);
    if (descriptor >= 0 && close(descriptor) != 0 && reason == 0)
        reason = errno;
    unlink(file->path);
    if (reason == 0 || reason == EINVAL || reason == EOPNOTSUPP)
        return RA_OK;
    return ra_error_set(error, "%.200s: cannot have its %" PRId64 " bytes: %s", file->final, bytes,
                        strerror(reason));
}

enum ra_status ra_checkpoint_write(struct ra_whole *file, const struct ra_model_config *given,
                                   const struct ra_training *training, const float *weights,
                                   const float *means, const float *squares,
                                   char error[RA_ERROR_SIZE])
{
    struct ra_model_config room;
    const struct ra_model_config *config = ra_model_config_view(given, &room, error);
    if (!config)
        return RA_INVALID;
    /* Nobody could read it, and it would have the name of a model that is good. */
    if (check_arrays(config, file->final, weights, means, squares, error) != RA_OK)
        return RA_INVALID;
    char text[LONGEST];
    int64_t numbers = ra_parameter_numbers(config);
    struct head head = {.text = ra_model_config_write(config, text, sizeof text),
                        .numbers = numbers,
                        .trained = means != NULL};
    memcpy(head.word, word, sizeof word);
    if (training)
        head.training = *training;
    struct stream stream = {.file = fopen(file->path, "wbx")};
    if (!stream.file)
        return ra_error_set(error, "%.200s: %s", file->final, strerror(errno));
    put(&stream, &head, sizeof head);
    put(&stream, text, (size_t)head.text);
    const float *arrays[3] = {weights, means, squares};
    for (int i = 0; i < (means ? 3 : 1); i++)
        put_array(&stream, numbers, arrays[i]);
    uint64_t sum = stream.sum;
    put(&stream, &sum, sizeof sum);

    bool good = !stream.failed && fflush(stream.file) == 0;
    int reason = errno;
    if (fclose(stream.file) == 0 && good)
        return ra_whole_publish(file, error);
    ra_error_set(error, "%.200s: cannot be written: %s", file->final,
                 strerror(good ? errno : reason));
    unlink(file->path);
    return RA_INVALID;
}
