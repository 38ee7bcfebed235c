/* check_checkpoint: the files that a model is kept in: checkpoints, folders of arrays, and configs
 * as JSON; whole, damaged, and on a disk that is full.
 */
#define _GNU_SOURCE /* nftw */
#include <inttypes.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "files.h"
#include "model_rig.h"
#include "ra_checkpoint.h"
#include "ra_checksum.h"
#include "ra_folder.h"
#include "ra_model_config.h"

static char note[RA_ERROR_SIZE];

static bool same_config(const struct ra_model_config *a, const struct ra_model_config *b)
{
    return a->vocabulary == b->vocabulary && a->dim == b->dim && a->depth == b->depth &&
           a->heads == b->heads && a->key_heads == b->key_heads && a->head_dim == b->head_dim &&
           a->hidden == b->hidden && a->causal == b->causal && a->tied == b->tied &&
           a->head_map == b->head_map && a->softcap == b->softcap &&
           a->rotary_theta == b->rotary_theta && a->rotary_scale == b->rotary_scale &&
           a->norm == b->norm && a->norm_eps == b->norm_eps && a->head_norm == b->head_norm &&
           a->feed == b->feed && a->qkv_bias == b->qkv_bias && a->out_bias == b->out_bias &&
           a->feed_bias == b->feed_bias && a->logits_bias == b->logits_bias &&
           a->position == b->position && a->longest == b->longest &&
           a->position_scale == b->position_scale && a->attention_scale == b->attention_scale &&
           a->logits_softcap == b->logits_softcap && a->embedding_scale == b->embedding_scale &&
           a->post_norm == b->post_norm && a->sinks == b->sinks && a->family == b->family &&
           a->rotary_scaling.kind == b->rotary_scaling.kind &&
           a->rotary_scaling.factor == b->rotary_scaling.factor &&
           a->rotary_scaling.low == b->rotary_scaling.low &&
           a->rotary_scaling.high == b->rotary_scaling.high &&
           a->rotary_scaling.original == b->rotary_scaling.original &&
           memcmp(a->lookback, b->lookback, (size_t)a->depth * sizeof *a->lookback) == 0;
}

/* ---- Checkpoints. */

struct bytes {
    unsigned char *data;
    size_t size;
};

static struct bytes slurp(const char *path)
{
    struct bytes x = {malloc(1 << 20), 0};
    x.size = read_bytes(path, x.data, 1 << 20);
    return x;
}

/* Writes a model as a program does, which leaves nothing hidden, whatever comes of it. */
static enum ra_status write_model(const char *path, const struct ra_model_config *config,
                                  const struct ra_training *training, const float *weights,
                                  const float *means, const float *squares)
{
    struct ra_whole file;
    enum ra_status status = ra_whole_begin(&file, path, 0, NULL, error);
    if (status == RA_OK)
        status = ra_checkpoint_write(&file, config, training, weights, means, squares, error);
    ra_whole_end(&file);
    expect(scratch_hidden(folder) == 0, "something hidden is left");
    return status;
}

static bool unchanged(const char *path, struct bytes before)
{
    struct bytes now = slurp(path);
    bool same = now.size == before.size && memcmp(now.data, before.data, now.size) == 0;
    free(now.data);
    return same;
}

static const struct ra_training trained = {.step = 3,
                                           .steps = 1000,
                                           .warmup = 7,
                                           .batch = 2,
                                           .length = 64,
                                           .accumulate = 3,
                                           .seed = 5,
                                           .tokens = INT64_C(1) << 40,
                                           .rate = 0.1,
                                           .decay = -0.0,
                                           .clip = 1,
                                           .validation = 0.5,
                                           .data = UINT64_MAX};

CASE(checkpoint, 600);

/* Every bit pattern of a finite number comes back: numbers of all kinds, in arrays longer than what
 * is read at a time. */
TEST(round_trips)
{
    static const uint32_t specials[] = {0x7F7FFFFF, 0xFF7FFFFF, 0x807FFFFF, 0x80000000, 1};
    for (int i = 0; i < 4; i++) {
        struct ra_model_config config = small(i % 2), back;
        struct ra_training training = trained, seen;
        config.vocabulary = i < 2 ? 7 : 1500;
        config.lookback[1] = 12;
        int64_t n = ra_parameter_numbers(&config);
        float *x = randoms(3 * n), *y = poisoned(3 * n), *alone = poisoned(n);
        for (int s = 0; s < 5; s++)
            x[random_below(&state, n)] = number_of_bits(specials[s]);
        const char *path = path_of("model");
        bool learns = i != 1;
        accepted(write_model(path, &config, learns ? &training : NULL, x, learns ? x + n : NULL,
                             learns ? x + 2 * n : NULL));
        accepted(ra_checkpoint_look(path, &back, sizeof back, &seen, error));
        if (!learns)
            memset(&training, 0, sizeof training);
        expect(same_config(&config, &back) && memcmp(&training, &seen, sizeof seen) == 0, "look");
        accepted(ra_checkpoint_read(path, y, y + n, y + 2 * n, error));
        accepted(ra_checkpoint_read(path, alone, NULL, NULL, error));
        expect(same_bits(x, y, learns ? 3 * n : n) && same_bits(x, alone, n), "numbers");
        for (int64_t e = n; e < 3 * n && !learns; e++)
            expect(y[e] == 0, "number %" PRId64 " is %g", e, (double)y[e]);
        release();
    }
}

/* A file from before a model had parts to choose is one of today: that of this fixture had these
 * bytes then. */
TEST(file_of_before)
{
    const char *fixture = "tests/fixtures/causal-gqa", *path = path_of("before");
    struct ra_model_config config, back;
    struct ra_training training;
    accepted(ra_folder_config(fixture, &config, sizeof config, note, error));
    float *x = poisoned(ra_parameter_numbers(&config));
    accepted(ra_folder_weights(fixture, &config, x, error));
    accepted(write_model(path, &config, NULL, x, NULL, NULL));
    struct bytes file = slurp(path);
    expect(file.size == 108823 &&
               ra_checksum(0, file.data, file.size) == UINT64_C(0x602E3B8964751FC0),
           "other bytes: an old file cannot be read, or the format has another number");
    accepted(ra_checkpoint_look(path, &back, sizeof back, &training, error));
    free(file.data);
    release();
}

/* Writes the small model that the next tests spoil. */
static struct bytes write_small(const char *path, int64_t *numbers)
{
    struct ra_model_config config = small(true);
    config.depth = 1;
    *numbers = ra_parameter_numbers(&config);
    float *x = randoms(3 * *numbers);
    accepted(write_model(path, &config, &trained, x, x + *numbers, x + 2 * *numbers));
    release();
    return slurp(path);
}

/* Is refused to be read, with the file's name. */
static void damaged(const char *path, int64_t n)
{
    float *y = poisoned(3 * n);
    refused(ra_checkpoint_read(path, y, y + n, y + 2 * n, error), path);
    release();
}

/* Each byte, with one bit, the highest, or all of them changed. */
TEST(flipped_bytes)
{
    static const unsigned char masks[] = {1, 0x80, 0xFF};
    int64_t n;
    const char *path = path_of("flipped");
    struct bytes whole = write_small(path, &n);
    for (size_t i = 0; i < whole.size; i++)
        for (int m = 0; m < 3; m++) {
            struct ra_model_config config;
            struct ra_training training;
            whole.data[i] ^= masks[m];
            write_bytes(path, whole.data, whole.size);
            damaged(path, n);
            enum ra_status status =
                ra_checkpoint_look(path, &config, sizeof config, &training, error);
            expect(status == RA_INVALID || ra_parameter_numbers(&config) == n, "byte %zu", i);
            whole.data[i] ^= masks[m];
        }
    printf("each of %zu bytes, flipped, was found\n", whole.size);
    free(whole.data);
}

TEST(other_lengths)
{
    int64_t n;
    const char *path = path_of("short");
    struct bytes whole = write_small(path, &n);
    for (size_t size = 0; size < whole.size; size++) {
        write_bytes(path, whole.data, size);
        damaged(path, n);
    }
    for (size_t more = 1; more <= 20; more++) {
        whole.data = realloc(whole.data, whole.size + more);
        expect(whole.data, "no memory");
        memset(whole.data + whole.size, more % 2 ? 0 : 7, more);
        write_bytes(path, whole.data, whole.size + more);
        damaged(path, n);
    }
    unlink(path);
    damaged(path, n);
    free(whole.data);
}

/* Gives the file of a model that has been trained the checksum of its bytes: of its head, of its
 * config, and of numbers as they are read, 1,024 at a time. */
static void seal(struct bytes file, int64_t n)
{
    enum { HEAD = 40 + sizeof(struct ra_training), CHUNK = 1024 };
    int64_t text;
    memcpy(&text, file.data + 16, sizeof text);
    uint64_t sum = ra_checksum(0, file.data, HEAD);
    sum = ra_checksum(sum, file.data + HEAD, (size_t)text);
    const unsigned char *at = file.data + HEAD + text;
    for (int i = 0; i < 3; i++)
        for (int64_t e = 0, count; e < n; e += count, at += 4 * count) {
            count = n - e < CHUNK ? n - e : CHUNK;
            sum = ra_checksum(sum, at, 4 * (size_t)count);
        }
    memcpy(file.data + file.size - sizeof sum, &sum, sizeof sum);
}

/* A training that cannot be, and numbers that are none: in files whose checksum is right, and to be
 * written over a good one. */
TEST(crafted)
{
    struct ra_model_config config = small(true), back;
    config.depth = 1;
    int64_t n = ra_parameter_numbers(&config);
    float *x = randoms(3 * n), *y = poisoned(3 * n);
    const char *path = path_of("crafted");
    struct ra_training seen, wrong[] = {trained, trained, trained, trained, trained, trained};
    wrong[0].step = -1;
    wrong[1].step = 1001;
    wrong[2].batch = -2;
    wrong[3].tokens = INT64_MIN;
    wrong[4].rate = NAN;
    wrong[5].clip = -1;
    for (int i = 0; i < 6; i++) {
        accepted(write_model(path, &config, &wrong[i], x, x + n, x + 2 * n));
        refused(ra_checkpoint_look(path, &back, sizeof back, &seen, error),
                i == 1 ? "step 1001 of 1000" : "cannot be");
    }
    accepted(write_model(path, &config, &trained, x, NULL, NULL));
    refused(ra_checkpoint_look(path, &back, sizeof back, &seen, error), "cannot be");

    accepted(write_model(path, &config, &trained, x, x + n, x + 2 * n));
    struct bytes whole = slurp(path);
    size_t first = whole.size - 8 - 12 * (size_t)n;
    static const char *const where[] = {
        "crafted: ", "crafted, mean of a gradient: ", "crafted, mean square of a gradient: "};
    for (int i = 0; i < 3; i++)
        for (int p = 0; p < ra_parameter_count(&config); p++) {
            struct ra_parameter parameter = ra_parameter(&config, p);
            int64_t last = parameter.count - 1, columns = parameter.columns;
            float *at = &x[i * n + parameter.first + last], before = *at;
            char words[200], place[60];
            snprintf(place, sizeof place, columns > 0 ? "%" PRId64 ", %" PRId64 : "%" PRId64,
                     parameter.rows - 1, columns - 1);
            snprintf(words, sizeof words, "%s%s[%s] is %s: every number must be finite", where[i],
                     parameter.name, place, p % 2 ? "inf" : "nan");
            *at = p % 2 ? INFINITY : NAN;
            refused(write_model(path, &config, &trained, x, x + n, x + 2 * n), words);
            expect(unchanged(path, whole), "the good model has gone");
            memcpy(whole.data + first + 4 * (at - x), at, sizeof *at);
            seal(whole, n);
            write_bytes(path, whole.data, whole.size);
            refused(ra_checkpoint_read(path, y, y + n, y + 2 * n, error), words);
            *at = before;
            memcpy(whole.data + first + 4 * (at - x), at, sizeof *at);
            seal(whole, n);
            write_bytes(path, whole.data, whole.size);
        }
    free(whole.data);
    release();
}

/* A disk that is full after any number of bytes: the earlier file stays, and no part of the new
 * one. */
TEST(full_disk)
{
    int64_t n;
    char path[2048];
    snprintf(path, sizeof path, "%s", path_of("kept"));
    struct bytes whole = write_small(path, &n);
    struct ra_model_config config = small(true);
    config.depth = 1;
    float *x = randoms(3 * n);
    struct rlimit before, limit;
    char cause[RA_ERROR_SIZE];
    expect(getrlimit(RLIMIT_FSIZE, &before) == 0, "getrlimit");
    signal(SIGXFSZ, SIG_IGN);
    for (size_t size = 0; size < whole.size; size += size + 100 < whole.size ? 61 : 1) {
        limit = (struct rlimit){size, before.rlim_max};
        expect(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
        enum ra_status status = write_model(path, &config, &trained, x, x + n, x + 2 * n);
        struct ra_whole file;
        accepted(ra_whole_begin(&file, path, 0, NULL, cause));
        enum ra_status tried = ra_checkpoint_try(&file, &config, true, cause);
        ra_whole_end(&file);
        expect(setrlimit(RLIMIT_FSIZE, &before) == 0, "setrlimit");
        refused(status, path);
        expect(strstr(error, "File too large"), "%s", error);
        expect(tried == RA_INVALID && strstr(cause, path) && strstr(cause, "File too large"), "%s",
               cause);
        expect(unchanged(path, whole) && scratch_hidden(folder) == 0, "%zu bytes", size);
    }

    /* What there is room for is only tried, not kept. */
    struct ra_whole file;
    accepted(ra_whole_begin(&file, path, 0, NULL, error));
    accepted(ra_checkpoint_try(&file, &config, true, error));
    accepted(ra_checkpoint_write(&file, &config, &trained, x, x + n, x + 2 * n, error));
    ra_whole_end(&file);
    expect(!unchanged(path, whole), "not written");

    /* Neither where the new file cannot begin, nor where it cannot have its name. */
    refused(write_model(path_of("none/model"), &config, NULL, x, NULL, NULL), "none");
    expect(mkdir(path_of("occupied"), 0700) == 0, "mkdir");
    refused(write_model(path_of("occupied"), &config, NULL, x, NULL, NULL), "occupied");
    char far[5000];
    memset(far, 'x', sizeof far);
    far[4999] = '\0';
    refused(write_model(far, &config, NULL, x, NULL, NULL), "xxx");
    release();
    free(whole.data);
}

/* ---- Folders. */

/* Writes an array of zeros. */
static void write_zeros(const char *path, enum npy_type type, int dims, int64_t rows,
                        int64_t columns)
{
    write_array(path, type, dims, (int64_t[]){rows, columns}, NPY_FLOAT32, NULL);
}

CASE(folder, 600);

/* An array whose path is too long is refused: under a name that is cut it would be another one. */
TEST(long_paths)
{
    struct ra_model_config config = small(false);
    float *x = randoms(ra_parameter_numbers(&config));
    char path[4096];
    size_t length = (size_t)snprintf(path, sizeof path, "%s", path_of("long"));
    expect(mkdir(path, 0700) == 0, "mkdir");
    for (; length < 4070; length += 2)
        strcpy(path + length, "/.");
    refused(ra_folder_write(path, &config, x, error), "the path is longer than 4095 bytes");
}

TEST(folders)
{
    for (int tied = 0; tied < 2; tied++) {
        struct ra_model_config config = small(tied);
        int64_t n = ra_parameter_numbers(&config);
        float *x = randoms(n), *y = poisoned(n);
        char path[2048], file[2200];
        snprintf(path, sizeof path, "%s", path_of("%stied", tied ? "" : "un"));
        expect(mkdir(path, 0700) == 0, "mkdir");
        x[0] = FLT_MAX, x[1] = -0.0f, x[2] = 0x1p-149f;
        snprintf(file, sizeof file, "%s/mine.txt", path);
        write_bytes(file, "mine", 4);
        accepted(ra_folder_write(path, &config, x, error));
        refused(ra_folder_write(path, &config, y, error),
                "token_emb.weight.npy: cannot be created");
        accepted(ra_folder_read(path, &config, y, error));
        struct bytes mine = slurp(file);
        expect(mine.size == 4 && memcmp(mine.data, "mine", 4) == 0, "a file of others");
        free(mine.data);
        for (int i = 0; i < ra_parameter_count(&config); i++) {
            struct ra_parameter p = ra_parameter(&config, i);
            int64_t columns = p.columns ? p.columns : 1;
            expect(same_bits(x + p.first, y + p.first, p.count), "%s", p.name);
            for (int64_t e = p.first + p.count; e % 16; e++)
                expect(y[e] == 0, "behind %s", p.name);
            snprintf(file, sizeof file, "%s/%s.npy", path, p.name);
            unlink(file);
            refused(ra_folder_read(path, &config, y, error), p.name);
            write_bytes(file, "no array", 8);
            refused(ra_folder_read(path, &config, y, error), p.name);
            write_zeros(file, NPY_FLOAT32, p.columns ? 2 : 1, p.rows + 1, columns);
            refused(ra_folder_read(path, &config, y, error), p.name);
            write_zeros(file, NPY_FLOAT32, 2, p.rows, columns + 1);
            refused(ra_folder_read(path, &config, y, error), p.name);
            write_zeros(file, NPY_FLOAT32, p.columns ? 1 : 2, p.rows, 1);
            refused(ra_folder_read(path, &config, y, error), p.name);
            write_zeros(file, NPY_INT64, p.columns ? 2 : 1, p.rows, columns);
            refused(ra_folder_read(path, &config, y, error), p.name);
            write_zeros(file, NPY_FLOAT16, p.columns ? 2 : 1, p.rows, columns);
            accepted(ra_folder_read(path, &config, y, error));
        }
        refused(ra_folder_write(path_of("nowhere"), &config, x, error), "nowhere");
        refused(ra_folder_read(path_of("nowhere"), &config, x, error), "nowhere");
        refused(ra_folder_config(path_of("nowhere"), &config, sizeof config, note, error),
                "nowhere");
        release();
    }
}

/* Arrays of another model beside those of this one are refused by name; what is no array is not
 * looked at. */
TEST(leftovers)
{
    static const char *const others[] = {"layers.3.0.to_out.weight", "module.token_emb.weight",
                                         "to_logits.1.weight", "rotary_emb"};
    struct ra_model_config config = small(true);
    float *x = randoms(ra_parameter_numbers(&config));
    char path[2048], file[2200];
    snprintf(path, sizeof path, "%s", path_of("leftovers"));
    expect(mkdir(path, 0700) == 0, "mkdir");
    accepted(ra_folder_write(path, &config, x, error));
    for (int i = 0; i < 4; i++) {
        snprintf(file, sizeof file, "%s/%s.txt", path, others[i]);
        write_bytes(file, "mine", 4);
        accepted(ra_folder_read(path, &config, x, error));
        snprintf(file, sizeof file, "%s/%s.npy", path, others[i]);
        write_zeros(file, NPY_FLOAT32, 1, 3, 0);
        refused(ra_folder_read(path, &config, x, error), others[i]);
        unlink(file);
    }
    accepted(ra_folder_read(path, &config, x, error));
    release();
}

/* float32 with so many bits of significand, as bfloat16 (8) and float16 (11) have; float16 is never
 * finer than 2^-24. */
static float rounded(double x, int bits)
{
    int exponent;
    frexp(x, &exponent);
    double unit = ldexp(1, bits == 11 && exponent < -13 ? -24 : exponent - bits);
    return (float)(unit * nearbyint(x / unit));
}

/* Frequencies beside the weights must be those of theta, scale and D, to the last digits of their
 * type: as they are they pass, and with another theta, another D or a NaN they do not. */
TEST(frequencies)
{
    static const struct {
        double theta, scale, other; /* another theta that must be seen */
        int bits;
        enum npy_type type;
    } cases[] = {
        {10000, 1, 10000.2, 24, NPY_FLOAT32}, {10000, 1, 10000.2, 24, NPY_FLOAT64},
        {500000, 1, 500020, 24, NPY_FLOAT32}, {1e9, 1, 1.0001e9, 24, NPY_FLOAT32},
        {7, 1, 7.0001, 24, NPY_FLOAT32},      {10000, 4, 10000.2, 24, NPY_FLOAT32},
        {10000, 1, 10100, 8, NPY_FLOAT32},    {500000, 1, 510000, 8, NPY_FLOAT32},
        {10000, 1, 10020, 11, NPY_FLOAT16},   {500000, 1, 501000, 11, NPY_FLOAT16},
        {500000, 1, 501000, 11, NPY_FLOAT32}, /* float16 once */
    };
    struct ra_model_config config = small(false);
    config.head_dim = 16;
    float *x = randoms(ra_parameter_numbers(&config)), numbers[9] = {0};
    char path[2048], file[2200];
    snprintf(path, sizeof path, "%s", path_of("frequencies"));
    snprintf(file, sizeof file, "%s/rotary_emb.inv_freq.npy", path);
    expect(mkdir(path, 0700) == 0, "mkdir");
    accepted(ra_folder_write(path, &config, x, error));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        config.rotary_theta = cases[i].theta;
        config.rotary_scale = cases[i].scale;
        for (int wrong = 0; wrong < 6; wrong++) {
            int64_t count = wrong == 2 ? 7 : wrong == 3 ? 9 : 8;
            double theta = wrong == 1 ? cases[i].other : cases[i].theta;
            for (int t = 0; t < 8; t++) /* in float32, as the original */
                numbers[t] = rounded(
                    (double)(powf((float)theta, -(float)(2 * t) / 16) / (float)cases[i].scale),
                    cases[i].bits);
            if (wrong == 4)
                numbers[5] = NAN;
            if (wrong == 5)
                numbers[0] *= 2;
            write_array(file, cases[i].type, 1, &count, NPY_FLOAT32, numbers);
            if (wrong == 0)
                accepted(ra_folder_read(path, &config, x, error));
            else
                refused(ra_folder_read(path, &config, x, error), "/rotary_emb.inv_freq.npy: ");
            const char *fits = strstr(error, "; theta ");
            expect(wrong != 1 || cases[i].scale != 1 ||
                       fabs(atof(fits + 8) / cases[i].other - 1) < 0.01,
                   "%s", error);
        }
    }
    write_bytes(file, "no array", 8);
    refused(ra_folder_read(path, &config, x, error), "inv_freq");
    release();
}

/* ---- Configs as JSON. */

/* A model of random sizes. */
static struct ra_model_config random_config(void)
{
    struct ra_model_config config;
    ra_model_config_init(&config, sizeof config);
    int64_t sharing = 1 + random_below(&state, 4);
    config.vocabulary = 1 + random_below(&state, INT32_MAX);
    config.dim = 1 + random_below(&state, 1 << 20);
    config.depth = 1 + random_below(&state, random_below(&state, 2) ? 4 : RA_MOST_LAYERS);
    config.key_heads = 1 + random_below(&state, 20);
    config.heads = config.key_heads * sharing;
    config.head_dim = 2 + 2 * random_below(&state, 200);
    config.hidden = 1 + random_below(&state, 1 << 24);
    config.causal = random_below(&state, 2);
    config.tied = random_below(&state, 2);
    config.head_map = random_below(&state, 2) ? RA_GROUPED : RA_INTERLEAVED;
    config.softcap = fabs(random_number(&state));
    config.rotary_theta = 1e6 * (1 + random_number(&state));
    config.rotary_scale = 1 + random_number(&state);
    double *const scales[] = {&config.attention_scale, &config.logits_softcap,
                              &config.embedding_scale};
    for (int i = 0; i < 3; i++)
        if (random_below(&state, 2))
            *scales[i] = 0.01 + fabs(random_number(&state));
    config.post_norm = random_below(&state, 4) == 0;
    config.sinks = random_below(&state, 4) == 0;
    for (int64_t l = 0; l < config.depth && config.causal; l++)
        if (random_below(&state, 2))
            config.lookback[l] = (int64_t)(random_bits(&state) >> random_below(&state, 63) >> 1);
    return config;
}

TEST(configs_come_back)
{
    for (int i = 0; i < 2000; i++) {
        struct ra_model_config config = random_config(), back;
        char text[1 << 15], again[1 << 15];
        int length = ra_model_config_write(&config, text, sizeof text);
        ck_assert_int_eq(length, strlen(text));
        accepted(ra_model_config_read("it", text, &back, sizeof back, note, error));
        expect(same_config(&config, &back), "%s", text);
        for (int size = 0; size <= length + 1; size += i < 3 ? 1 : 997) {
            memset(again, 7, sizeof again);
            ck_assert_int_eq(ra_model_config_write(&config, again, (size_t)size), length);
            expect(size == 0 || (strncmp(text, again, (size_t)size - 1) == 0 && !again[size - 1]),
                   "%d characters", size);
            expect(again[size] == 7, "written behind");
        }
    }
}

#define FIRST "{\"num_tokens\": 64, \"dim\": 32, \"depth\": 2, \"heads\": 4, \"dim_head\": 8"
#define CAUSAL FIRST ", \"causal\": true"

static enum ra_status read_config(const char *text, struct ra_model_config *config)
{
    return ra_model_config_read("it", text, config, sizeof *config, note, error);
}

/* The model of CAUSAL. */
static struct ra_model_config first_config(void)
{
    struct ra_model_config config;
    ra_model_config_init(&config, sizeof config);
    config.vocabulary = 64;
    config.dim = 32;
    config.depth = 2;
    config.heads = config.key_heads = 4;
    config.head_dim = 8;
    config.hidden = 128;
    return config;
}

/* What is left out has its default, wherever blanks are. The last is what a checkpoint of before
 * has. */
TEST(configs_of_ours)
{
    static const char *const texts[] = {
        CAUSAL "}",
        CAUSAL ", \"batch\": 3, \"length\": 48}",
        "\n{ \"causal\"\t:true ,\"dim_head\":8,\"heads\" : 4\n,\"depth\":2,\"dim\":32,"
        "\"num_tokens\":64 }\n",
        CAUSAL ", \"lookback\": null, \"softcap\": 0.0, \"ff_mult\": 4.0, \"tied\": false}",
        "{\"num_tokens\": 64, \"dim\": 32, \"depth\": 2, \"heads\": 4, "
        "\"num_grouped_query_heads\": 1, \"dim_head\": 8,\n \"ff_mult\": 4, \"causal\": true, "
        "\"tied\": false, \"head_map\": \"grouped\", \"softcap\": 0,\n \"rotary_theta\": 10000, "
        "\"rotary_scale\": 1, \"lookback\": [null, null]}\n",
    };
    struct ra_model_config want = first_config(), config;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        expect(read_config(texts[i], &config) == RA_OK, "%s: %s", texts[i], error);
        expect(same_config(&want, &config) && !*note, "%s: %s", texts[i], note);
    }
    accepted(read_config(CAUSAL ", \"lookback\": [null, 7]}", &config));
    expect(config.lookback[0] == RA_NO_LOOKBACK && config.lookback[1] == 7, "lookback");
    accepted(read_config(CAUSAL ", \"lookback\": 9, \"ff_mult\": 2.5}", &config));
    expect(config.lookback[0] == 9 && config.lookback[1] == 9 && config.hidden == 80,
           "one for all");
    accepted(read_config(CAUSAL ", \"num_grouped_query_heads\": 4}", &config));
    expect(config.key_heads == 1 && !*note, "of one key head all maps are the same");
}

/* Keyword arguments of ring-attention-pytorch: their defaults hold, and the note names those. */
TEST(configs_of_the_original)
{
    static const struct {
        const char *more, *note;
        int64_t sharing, windows[2];
        double theta, softcap;
        bool causal;
    } cases[] = {
        {", \"causal\": true, \"num_grouped_query_heads\": 2}",
         "it: read as ring-attention-pytorch's: head_map interleaved", .sharing = 2,
         .causal = true},
        {", \"num_grouped_query_heads\": 2}",
         "it: read as ring-attention-pytorch's: causal false, head_map interleaved", .sharing = 2},
        {", \"num_grouped_query_heads\": 4}", "it: read as ring-attention-pytorch's: causal false",
         .sharing = 4},
        {", \"bucket_size\": 16}", "it: read as ring-attention-pytorch's: causal false",
         .sharing = 1},
        {", \"causal\": true, \"rotary_embed_theta\": 500000}", "", .theta = 500000,
         .causal = true},
        {", \"causal\": true, \"rotary_embed_theta\": 500, \"rotary_theta\": 500}", "",
         .theta = 500, .causal = true},
        {", \"causal\": true, \"softclamp_qk_sim\": true}", "", .softcap = 50, .causal = true},
        {", \"causal\": true, \"softclamp_value\": 30.5, \"softclamp_qk_sim\": true}", "",
         .softcap = 30.5, .causal = true},
        {", \"causal\": true, \"softclamp_value\": 30, \"softclamp_qk_sim\": false}", "",
         .causal = true},
        {", \"causal\": true, \"max_lookback_seq_len\": [null, null], \"bucket_size\": 16}", "",
         .causal = true},
        {", \"causal\": true, \"max_lookback_seq_len\": 5, \"bucket_size\": 1, "
         "\"use_cuda_kernel\": false}",
         "", .windows = {5, 5}, .causal = true},
        {", \"causal\": true, \"bucket_size\": 1, \"lookback\": [0, 9], \"use_cuda_kernel\": "
         "false, \"max_lookback_seq_len\": [0, 9], \"ring_attn\": false}",
         "", .windows = {0, 9}, .causal = true},
        {", \"causal\": true, \"ring_attn\": true, \"striped_ring_attn\": true, "
         "\"ring_seq_size\": 48, \"auto_shard_seq\": true, \"use_cuda_kernel\": null}",
         "it: read as ring-attention-pytorch's: ring_attn true: attention over the whole sequence, "
         "as striped_ring_attn has it on several processes, but not on one",
         .causal = true},
        {", \"causal\": false, \"force_regular_attn\": true, \"ignore_index\": -100, "
         "\"auto_shard_seq\": null}",
         "", .sharing = 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[1000];
        struct ra_model_config want = first_config(), config;
        want.causal = cases[i].causal;
        want.key_heads /= cases[i].sharing > 0 ? cases[i].sharing : 1;
        want.head_map = want.key_heads == 2 ? RA_INTERLEAVED : RA_GROUPED;
        want.rotary_theta = cases[i].theta > 0 ? cases[i].theta : 10000;
        want.softcap = cases[i].softcap;
        for (int l = 0; l < 2 && strstr(cases[i].more, "lookback") && cases[i].windows[1] > 0; l++)
            want.lookback[l] = cases[i].windows[l];
        snprintf(text, sizeof text, "%s%s", FIRST, cases[i].more);
        expect(read_config(text, &config) == RA_OK, "%s: %s", text, error);
        expect(same_config(&want, &config), "%s", text);
        ck_assert_str_eq(note, cases[i].note);
    }
    struct ra_model_config config;
    accepted(read_config("{\"num_tokens\": 9, \"dim\": 5, \"depth\": 1, \"ring_seq_size\": 4}",
                         &config));
    expect(config.heads == 8 && config.key_heads == 8 && config.head_dim == 64 && !config.causal,
           "defaults");
    expect(strstr(note, "heads 8, dim_head 64, causal false"), "%s", note);
}

/* Each is refused, by its name and what is wrong. */
TEST(configs_refused)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "line 1, column 1: a value must stand here"},
        {"[]", "must be an object"},
        {"{", "line 1, column 2: "},
        {FIRST ",}", "a name in quotation marks"},
        {CAUSAL "} {}", "nothing may follow"},
        {FIRST " \"causal\": true}", "a comma or } must stand here"},
        {FIRST ", \"causal\"}", "a colon"},
        {FIRST ", \"causal\": }", "a value must stand here"},
        {FIRST ", \"causal\": \"true\"}", "\"causal\" is wrong: give true or false"},
        {CAUSAL ", \"softcap\": \"1\"}", "\"softcap\" is wrong: give a number"},
        {"{\"dim\": 3.5}", "\"dim\" is wrong: give a whole number"},
        {"{\"dim\": [3]}", "\"dim\""},
        {"{\"dim\": null}", "\"dim\""},
        {"{\"dim\": 99999999999999999999}", "\"dim\""},
        {FIRST ", \"causal\": 1}", "\"causal\""},
        {FIRST ", \"causal\": null}", "\"causal\""},
        {CAUSAL ", \"softcap\": 1e999}", "\"softcap\" is wrong"},
        {CAUSAL ", \"head_map\": \"other\"}", "\"head_map\""},
        {CAUSAL ", \"head_map\": 0}", "\"head_map\""},
        {CAUSAL ", \"lookback\": [1, 2.5]}", "\"lookback\""},
        {CAUSAL ", \"lookback\": [1, -2]}", "\"lookback\""},
        {CAUSAL ", \"lookback\": []}", "\"lookback\""},
        {CAUSAL ", \"lookback\": [1]}", "lookback has 1 entries"},
        {CAUSAL ", \"num_grouped_query_heads\": 3}", "num_grouped_query_heads"},
        {CAUSAL ", \"num_grouped_query_heads\": 0}", "num_grouped_query_heads"},
        {CAUSAL ", \"ff_mult\": 1e300}", "hidden"},
        {CAUSAL ", \"rotary_theta\": 0}", "rotary_theta"},
        {CAUSAL ", \"softcap\": nan}", "a value must stand here"},
        {FIRST ", \"causal\": false, \"lookback\": 4}", "lookback"},
        {"{\"num_tokens\": 64, \"dim\": 32, \"depth\": 2, \"heads\": 4}", "has no \"dim_head\""},
        {"{\"dim\": 32, \"depth\": 2, \"heads\": 4, \"dim_head\": 8}", "has no \"num_tokens\""},
        {"{\"num_tokens\": 64, \"dim\": 32, \"ring_attn\": false}", "has no \"depth\""},

        /* Unknown keys, and what may be meant. */
        {CAUSAL ", \"lookbak\": 2}", "\"lookbak\" is no key .*did you mean \"lookback\"?"},
        {CAUSAL ", \"rope_theta\": 2}", "\"rope_theta\".*\"rotary_theta\"?"},
        {CAUSAL ", \"Causal\": true}", "\"Causal\".*\"causal\"?"},
        {CAUSAL ", \"attn_logit_softcapping\": 30.0}", "\"attn_logit_softcapping\" is no key"},
        {CAUSAL ", \"x\": [1, [2]]}", "\"x\" is no key"},
        {CAUSAL ", \"a key that is longer than any key that means something, by far, whatever it "
                "may be\": 1}",
         "\"a key that is longer"},

        /* What is said twice, or left open. */
        {CAUSAL ", \"causal\": true}", "\"causal\" is given twice"},
        {CAUSAL ", \"lookback\": null, \"lookback\": null}", "\"lookback\" is given twice"},
        {FIRST "}", "has no \"causal\": give true .*false"},
        {FIRST ", \"softcap\": 2, \"num_grouped_query_heads\": 1}", "has no \"causal\""},
        {CAUSAL ", \"softcap\": 2, \"num_grouped_query_heads\": 2}",
         "has no \"head_map\": give \"grouped\" .*h / 2.*\"interleaved\" (h mod 2"},
        {"{\"num_tokens\": 64, \"dim\": 32, \"depth\": 2, \"tied\": true, \"bucket_size\": 4}",
         "has no \"heads\""},
        {CAUSAL ", \"rotary_theta\": 500, \"rotary_embed_theta\": 501}",
         "\"rotary_theta\" is 500, but \"rotary_embed_theta\" means 501"},
        {CAUSAL ", \"softcap\": 50, \"softclamp_qk_sim\": false}",
         "\"softcap\" is 50, but \"softclamp_qk_sim\" means 0"},
        {CAUSAL ", \"softclamp_value\": 50}", "softclamp_qk_sim"},
        {CAUSAL ", \"softclamp_value\": 0, \"softclamp_qk_sim\": true}", "softclamp_value"},
        {CAUSAL ", \"lookback\": 5, \"max_lookback_seq_len\": null}", "differ in layer 0"},

        /* What the original computes otherwise. */
        {CAUSAL ", \"max_lookback_seq_len\": 5}", "whole buckets.*give lookback"},
        {CAUSAL ", \"max_lookback_seq_len\": [null, 5], \"bucket_size\": 16, "
                "\"use_cuda_kernel\": false}",
         "max_lookback_seq_len"},
        {CAUSAL ", \"max_lookback_seq_len\": 5, \"bucket_size\": 1}", "use_cuda_kernel"},
        {CAUSAL ", \"max_lookback_seq_len\": 5, \"bucket_size\": 1, \"use_cuda_kernel\": null}",
         "use_cuda_kernel"},
        {CAUSAL ", \"max_lookback_seq_len\": 5, \"bucket_size\": 1, \"use_cuda_kernel\": true}",
         "use_cuda_kernel"},
        {CAUSAL ", \"max_lookback_seq_len\": 5, \"bucket_size\": 1, \"use_cuda_kernel\": false, "
                "\"ring_attn\": true}",
         "ring_attn"},
        {CAUSAL ", \"max_lookback_seq_len\": 5, \"bucket_size\": 1, \"use_cuda_kernel\": false, "
                "\"force_regular_attn\": true}",
         "force_regular_attn"},
        {CAUSAL ", \"max_lookback_seq_len\": [1, 2, 3]}", "max_lookback_seq_len has 3 entries"},
        {FIRST ", \"max_lookback_seq_len\": 5, \"bucket_size\": 1, \"use_cuda_kernel\": false}",
         "causal"},
        {CAUSAL ", \"ring_attn\": true, \"force_regular_attn\": true}", "force_regular_attn"},
        {CAUSAL ", \"striped_ring_attn\": true}", "striped_ring_attn needs ring_attn"},
        {CAUSAL ", \"auto_shard_seq\": true}", "auto_shard_seq needs ring_attn"},
        {FIRST ", \"striped_ring_attn\": true, \"ring_attn\": true}", "striped.*needs causal"},
        {CAUSAL ", \"bucket_size\": 0}", "bucket_size"},
        {CAUSAL ", \"ignore_index\": 0}", "ignore_index"},
    };
    struct ra_model_config config;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char words[100], *rest;
        snprintf(words, sizeof words, "%s", cases[i].words);
        expect(ra_model_config_read("some/file.json", cases[i].text, &config, sizeof config, note,
                                    error) == RA_INVALID,
               "%s", cases[i].text);
        expect(strstr(error, "some/file.json"), "%s", error);
        const char *at = error; /* the parts between .* follow each other */
        for (char *part = words; part; part = rest) {
            if ((rest = strstr(part, ".*"))) {
                *rest = '\0';
                rest += 2;
            }
            at = strstr(at, part);
            expect(at, "%s: %s", cases[i].text, error);
        }
    }
    refused(read_config("{\"num_tokens\": 64, \"dim\": 32, \"depth\": 2, \"heads\": 4, "
                        "\"dim_head\": 7, \"causal\": true}",
                        &config),
            "head_dim");
    expect(mkdir(path_of("bad"), 0700) == 0, "mkdir");
    write_bytes(path_of("bad/config.json"), "{]", 2);
    refused(ra_folder_config(path_of("bad"), &config, sizeof config, note, error),
            "bad/config.json");
}

/* A key as the reader and the page list it: its name, who knows it, and what holds if it is left
 * out. */
struct listed {
    char name[40], owner[40], value[200];
};

/* Lines of a file between two, those that fit the format, taken apart by it. */
static int list_keys(const char *path, const char *from, const char *to, const char *format,
                     struct listed keys[64])
{
    char line[1000];
    int count = 0;
    bool begun = false;
    FILE *file = fopen(path, "r");
    expect(file, "no %s", path);
    while (fgets(line, sizeof line, file) && count < 64 && !(begun && strstr(line, to))) {
        struct listed *key = &keys[count];
        count += begun && sscanf(line, format, key->name, key->owner, key->value) >= 2;
        begun = begun || strstr(line, from);
    }
    fclose(file);
    return count;
}

/* The tables of page 10e have the keys that the reader knows and no others, with their owners; and
 * a default that it tells is as good as no key. */
TEST(keys_of_the_page)
{
    static const char *const owners[][2] = {
        {"ANYONE", "both"}, {"ORIGINAL", "original"}, {"OURS", "here"}};
    struct listed known[64], page[64];
    int keys = list_keys("src/model/ra_model_config.c", "struct key keys[] =", "};",
                         " {\"%39[^\"]\", %39[A-Z]", known);
    int rows = list_keys("chapters/10e-reference.md", "## Keys of a config", "## Rings",
                         "| `%39[^`]` | %39[a-z] |%*[^|]| %199[^|]", page);
    expect(keys > 20 && keys == rows, "%d keys, %d on the page", keys, rows);
    for (int i = 0; i < keys; i++) {
        int k = 0, o = 0;
        while (k < keys && strcmp(known[k].name, page[i].name) != 0)
            k++;
        expect(k < keys, "%s is no key", page[i].name);
        while (strcmp(owners[o][0], known[k].owner) != 0)
            o++;
        ck_assert_str_eq(page[i].owner, owners[o][1]);
        known[k].name[0] = '\0'; /* once */

        const char *value = page[i].value, *minus = "\xe2\x88\x92";
        bool negative = strncmp(value, minus, strlen(minus)) == 0;
        if (strncmp(value, "an error", 8) == 0 || strncmp(value, "see", 3) == 0)
            continue;
        char text[1000];
        struct ra_model_config want = first_config(), config;
        snprintf(text, sizeof text, CAUSAL ", \"%.40s\": %s%.200s}", page[i].name,
                 negative ? "-" : "", negative ? value + strlen(minus) : value);
        expect(read_config(text, &config) == RA_OK, "%s: %s", text, error);
        expect(same_config(&want, &config), "%s is not the default", text);
    }
}

/* Damaged text is a model or is refused by name, and never read beyond its end. */
TEST(configs_damaged)
{
    static const char signs[] = "{}[]\",:\\ 0-9.eE+ntf\n\x80";
    int fine = 0;
    for (int i = 0; i < 20000; i++) {
        struct ra_model_config config = random_config();
        config.depth = 1 + config.depth % 5;
        char text[4096], *exact;
        size_t length = (size_t)ra_model_config_write(&config, text, sizeof text);
        for (int64_t times = 1 + random_below(&state, 3); times > 0; times--) {
            size_t at = (size_t)random_below(&state, (int64_t)length);
            switch (random_below(&state, 4)) {
            case 0: /* one is another */
                text[at] = signs[random_below(&state, sizeof signs)];
                break;
            case 1: /* one is missing */
                memmove(text + at, text + at + 1, length - at);
                break;
            case 2: /* one is twice there */
                memmove(text + at + 1, text + at, length + 1 - at);
                break;
            default: /* the rest is missing, now and then */
                text[random_below(&state, 4) ? length : at] = '\0';
            }
            length = strlen(text);
            if (length == 0)
                break;
        }
        exact = strdup(text);
        if (ra_model_config_read("damaged.json", exact, &config, sizeof config, note, error) !=
            RA_OK)
            expect(strstr(error, "damaged.json"), "%s: %s", text, error);
        else {
            fine++;
            accepted(ra_model_check(&config, error));
            expect(ra_parameter_numbers(&config) > 0, "%s", text);
        }
        free(exact);
    }
    printf("of 20000 damaged configs %d are good\n", fine);
    expect(fine > 500 && fine < 19500, "%d", fine);
}

int main(void)
{
    return suite_main_in_folder("checkpoint", 600);
}
