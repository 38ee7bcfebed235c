/* check_checkpoint: the files that a model is kept in: checkpoints, folders of arrays, and configs as JSON;
 * whole, damaged, and on a disk that is full.
 */
#define _GNU_SOURCE /* nftw */
#include <inttypes.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "model_rig.h"
#include "npy.h"
#include "ra_checkpoint.h"
#include "ra_folder.h"
#include "ra_model_config.h"
#include "scratch.h"

static char folder[1024]; /* of this run; main makes and removes it */

/* The path of a file of this run. */
static const char *path_of(const char *name)
{
    static char path[2048];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static bool same_config(const struct ra_model_config *a, const struct ra_model_config *b)
{
    return a->vocabulary == b->vocabulary && a->dim == b->dim && a->depth == b->depth &&
           a->heads == b->heads && a->key_heads == b->key_heads && a->head_dim == b->head_dim &&
           a->hidden == b->hidden && a->causal == b->causal && a->tied == b->tied &&
           a->head_map == b->head_map && a->softcap == b->softcap &&
           a->rotary_theta == b->rotary_theta && a->rotary_scale == b->rotary_scale &&
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
    FILE *file = fopen(path, "rb");
    expect(x.data && file, "%s cannot be read", path);
    x.size = fread(x.data, 1, 1 << 20, file);
    fclose(file);
    return x;
}

static void dump(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    expect(file && fwrite(data, 1, size, file) == size && fclose(file) == 0, "%s", path);
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
                                           .seed = -5,
                                           .tokens = INT64_C(1) << 40,
                                           .rate = 0.1,
                                           .decay = -0.0,
                                           .clip = 1,
                                           .validation = 5.5};

/* Every bit pattern comes back: numbers of all kinds, in arrays longer than what is read at a time. */
START_TEST(round_trips)
{
    static const uint32_t specials[] = {0x7FC12345, 0x7F812345, 0xFF800000, 0x80000000, 1};
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
        accepted(ra_checkpoint_write(path, &config, learns ? &training : NULL, x,
                                     learns ? x + n : NULL, learns ? x + 2 * n : NULL, error));
        accepted(ra_checkpoint_look(path, &back, &seen, error));
        if (!learns)
            memset(&training, 0, sizeof training);
        expect(same_config(&config, &back) && memcmp(&training, &seen, sizeof seen) == 0, "look");
        accepted(ra_checkpoint_read(path, y, y + n, y + 2 * n, error));
        accepted(ra_checkpoint_read(path, alone, NULL, NULL, error));
        expect(same_bits(x, y, learns ? 3 * n : n) && same_bits(x, alone, n), "numbers");
        for (int64_t e = n; e < 3 * n && !learns; e++)
            expect(y[e] == 0, "number %" PRId64 " is %g", e, (double)y[e]);
        expect(access(path_of("model.part"), F_OK) != 0, "model.part is left");
        release();
    }
}
END_TEST

/* Writes the small model that the next tests spoil. */
static struct bytes write_small(const char *path, int64_t *numbers)
{
    struct ra_model_config config = small(true);
    config.depth = 1;
    *numbers = ra_parameter_numbers(&config);
    float *x = randoms(3 * *numbers);
    accepted(
        ra_checkpoint_write(path, &config, &trained, x, x + *numbers, x + 2 * *numbers, error));
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
START_TEST(flipped_bytes)
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
            dump(path, whole.data, whole.size);
            damaged(path, n);
            enum ra_status status = ra_checkpoint_look(path, &config, &training, error);
            expect(status == RA_INVALID || ra_parameter_numbers(&config) == n, "byte %zu", i);
            whole.data[i] ^= masks[m];
        }
    printf("each of %zu bytes, flipped, was found\n", whole.size);
    free(whole.data);
}
END_TEST

START_TEST(other_lengths)
{
    int64_t n;
    const char *path = path_of("short");
    struct bytes whole = write_small(path, &n);
    for (size_t size = 0; size < whole.size; size++) {
        dump(path, whole.data, size);
        damaged(path, n);
    }
    for (size_t more = 1; more <= 20; more++) {
        whole.data = realloc(whole.data, whole.size + more);
        expect(whole.data, "no memory");
        memset(whole.data + whole.size, more % 2 ? 0 : 7, more);
        dump(path, whole.data, whole.size + more);
        damaged(path, n);
    }
    unlink(path);
    damaged(path, n);
    free(whole.data);
}
END_TEST

/* A disk that is full after any number of bytes: the earlier file stays, and no part of the new one. */
START_TEST(full_disk)
{
    int64_t n;
    char path[2048], part[2100];
    snprintf(path, sizeof path, "%s", path_of("kept"));
    snprintf(part, sizeof part, "%s.part", path);
    struct bytes whole = write_small(path, &n);
    struct ra_model_config config = small(true);
    config.depth = 1;
    float *x = randoms(3 * n);
    struct rlimit before, limit;
    expect(getrlimit(RLIMIT_FSIZE, &before) == 0, "getrlimit");
    signal(SIGXFSZ, SIG_IGN);
    for (size_t size = 0; size < whole.size; size += size + 100 < whole.size ? 61 : 1) {
        limit = (struct rlimit){size, before.rlim_max};
        expect(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
        enum ra_status status =
            ra_checkpoint_write(path, &config, &trained, x, x + n, x + 2 * n, error);
        expect(setrlimit(RLIMIT_FSIZE, &before) == 0, "setrlimit");
        refused(status, path);
        expect(strstr(error, "File too large"), "%s", error);
        expect(unchanged(path, whole) && access(part, F_OK) != 0, "%zu bytes", size);
    }
    if (access("/dev/full", W_OK) == 0) {
        expect(symlink("/dev/full", part) == 0, "symlink");
        refused(ra_checkpoint_write(path, &config, &trained, x, x + n, x + 2 * n, error),
                "No space left");
        expect(unchanged(path, whole) && access(part, F_OK) != 0, "/dev/full");
    }

    /* Neither where the new file cannot begin, nor where it cannot have its name. */
    refused(ra_checkpoint_write(path_of("none/model"), &config, NULL, x, NULL, NULL, error),
            "none");
    expect(mkdir(path_of("occupied"), 0700) == 0, "mkdir");
    refused(ra_checkpoint_write(path_of("occupied"), &config, NULL, x, NULL, NULL, error),
            "occupied");
    expect(access(path_of("occupied.part"), F_OK) != 0, "occupied.part is left");
    char far[5000];
    memset(far, 'x', sizeof far);
    far[4999] = '\0';
    refused(ra_checkpoint_write(far, &config, NULL, x, NULL, NULL, error), "path");
    release();
    free(whole.data);
}
END_TEST

/* ---- Folders. */

/* Writes an array of zeros. */
static void write_zeros(const char *path, enum npy_type type, int dims, int64_t rows,
                        int64_t columns)
{
    struct npy file;
    unlink(path);
    expect(npy_create(&file, path, type, dims, (int64_t[]){rows, columns}), "%s", file.error);
    expect(npy_close(&file), "%s", file.error);
}

START_TEST(folders)
{
    for (int tied = 0; tied < 2; tied++) {
        struct ra_model_config config = small(tied);
        int64_t n = ra_parameter_numbers(&config);
        float *x = randoms(n), *y = poisoned(n);
        char path[2048], file[2200];
        snprintf(path, sizeof path, "%s", path_of(tied ? "tied" : "untied"));
        expect(mkdir(path, 0700) == 0, "mkdir");
        x[0] = INFINITY, x[1] = -0.0f, x[2] = 0x1p-149f, x[3] = NAN;
        snprintf(file, sizeof file, "%s/mine.npy", path);
        dump(file, "mine", 4);
        for (int time = 0; time < 2; time++) /* the second time files are there */
            accepted(ra_folder_write(path, &config, x, error));
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
            dump(file, "no array", 8);
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
        refused(ra_folder_config(path_of("nowhere"), &config, error), "nowhere");
        release();
    }
}
END_TEST

/* ---- Configs as JSON. */

/* A model of random sizes. */
static struct ra_model_config random_config(void)
{
    struct ra_model_config config;
    ra_model_config_init(&config);
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
    for (int64_t l = 0; l < config.depth && config.causal; l++)
        if (random_below(&state, 2))
            config.lookback[l] = (int64_t)(random_bits(&state) >> random_below(&state, 63) >> 1);
    return config;
}

START_TEST(configs_come_back)
{
    for (int i = 0; i < 2000; i++) {
        struct ra_model_config config = random_config(), back;
        char text[1 << 15], again[1 << 15];
        int length = ra_model_config_write(&config, text, sizeof text);
        ck_assert_int_eq(length, strlen(text));
        accepted(ra_model_config_read("it", text, &back, error));
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
END_TEST

#define FIRST "{\"num_tokens\": 64, \"dim\": 32, \"depth\": 2, \"heads\": 4, \"dim_head\": 8"

/* What means nothing here is left alone, whatever it is; what is left out has its default. */
START_TEST(configs_of_others)
{
    static const char *const more[] = {
        "}",
        ", \"causal\": true}",
        "\n}\n",
        " , \"name\" : \"a, b: {c\" , \"list\" : [1, [2, {}], null], "
        "\"deep\":{\"a\":{\"b\":[]}},\"x\":null}",
        ", \"strings\": [\"]\", \"}\", \"[\"], \"more\": {\"{\": \"}}\"}}",
        ", \"quoted\": \"a \\\"word\\\" \\\\\", \"list\": [\"\\\"]\"]}",
        ", \"a key that is longer than what a key that means something can be, by far, is left "
        "alone\": 1}",
    };
    struct ra_model_config want, config;
    ra_model_config_init(&want);
    want.vocabulary = 64;
    want.dim = 32;
    want.depth = 2;
    want.heads = want.key_heads = 4;
    want.head_dim = 8;
    want.hidden = 128;
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) {
        char text[1000];
        snprintf(text, sizeof text, "%s%s", FIRST, more[i]);
        expect(ra_model_config_read("it", text, &config, error) == RA_OK, "%s: %s", text, error);
        expect(same_config(&want, &config), "%s", text);
    }
    accepted(ra_model_config_read("it", FIRST ", \"lookback\": [null, 7]}", &config, error));
    expect(config.lookback[0] == RA_NO_LOOKBACK && config.lookback[1] == 7, "lookback");
    accepted(
        ra_model_config_read("it", FIRST ", \"lookback\": 9, \"ff_mult\": 2.5}", &config, error));
    expect(config.lookback[0] == 9 && config.lookback[1] == 9 && config.hidden == 80,
           "one for all");
}
END_TEST

/* Each is refused, by its name and what is wrong. */
START_TEST(configs_refused)
{
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "JSON"},
        {"[]", "JSON"},
        {"{", "value"},
        {FIRST, "JSON"},
        {FIRST ",", "value"},
        {FIRST " \"x\": 1}", "JSON"},
        {FIRST ", \"x\"}", "\"x\""},
        {FIRST ", \"x\": }", "\"x\""},
        {FIRST ", \"x\": [1, [2]}", "JSON"},
        {FIRST ", \"x\": \"1}", "\"x\""},
        {FIRST ", \"dim\": 3.5}", "\"dim\""},
        {FIRST ", \"dim\": [3]}", "\"dim\""},
        {FIRST ", \"dim\": null}", "\"dim\""},
        {FIRST ", \"causal\": 1}", "\"causal\""},
        {FIRST ", \"softcap\": one}", "\"softcap\""},
        {FIRST ", \"head_map\": \"other\"}", "\"head_map\""},
        {FIRST ", \"lookback\": [1, x]}", "\"lookback\""},
        {FIRST ", \"lookback\": [1, 2}", "\"lookback\""},
        {FIRST ", \"num_grouped_query_heads\": 3}", "num_grouped_query_heads"},
        {FIRST ", \"num_grouped_query_heads\": 0}", "num_grouped_query_heads"},
        {FIRST ", \"ff_mult\": nan}", "hidden"},
        {FIRST ", \"ff_mult\": 1e300}", "hidden"},
        {FIRST ", \"rotary_theta\": 0}", "rotary_theta"},
        {FIRST ", \"softcap\": nan}", "softcap"},
        {FIRST ", \"dim_head\": 7}", "head_dim"},
        {FIRST ", \"dim\": 99999999999999999999}", "dim"},
        {FIRST ", \"causal\": false, \"lookback\": 4}", "lookback"},
        {"{\"num_tokens\": 64, \"dim\": 32, \"depth\": 2, \"heads\": 4}", "dim_head"},
        {"{\"dim\": 32, \"depth\": 2, \"heads\": 4, \"dim_head\": 8}", "num_tokens"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ra_model_config config;
        refused(ra_model_config_read("some/file.json", cases[i].text, &config, error),
                cases[i].words);
        expect(strstr(error, "some/file.json"), "%s", error);
    }
    expect(mkdir(path_of("bad"), 0700) == 0, "mkdir");
    dump(path_of("bad/config.json"), "{]", 2);
    struct ra_model_config config;
    refused(ra_folder_config(path_of("bad"), &config, error), "bad/config.json");
}
END_TEST

/* Damaged text is a model or is refused by name, and never read beyond its end. */
START_TEST(configs_damaged)
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
        if (ra_model_config_read("damaged.json", exact, &config, error) != RA_OK)
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
END_TEST

int main(void)
{
    scratch_make(folder, sizeof folder, NULL, "check-checkpoint");
    Suite *suite = suite_create("checkpoint");
    TCase *checkpoint = tcase_create("checkpoint"), *folder_case = tcase_create("folder");
    TCase *const cases[] = {checkpoint, folder_case};
    for (int c = 0; c < 2; c++) {
        tcase_set_timeout(cases[c], 600);
        suite_add_tcase(suite, cases[c]);
    }
    tcase_add_test(checkpoint, round_trips);
    tcase_add_test(checkpoint, flipped_bytes);
    tcase_add_test(checkpoint, other_lengths);
    tcase_add_test(checkpoint, full_disk);
    tcase_add_test(folder_case, folders);
    tcase_add_test(folder_case, configs_come_back);
    tcase_add_test(folder_case, configs_of_others);
    tcase_add_test(folder_case, configs_refused);
    tcase_add_test(folder_case, configs_damaged);
    int result = suite_run(suite);
    scratch_remove(folder);
    return result;
}
