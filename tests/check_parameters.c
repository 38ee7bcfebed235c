/* check_parameters: what a model is made of, where learning begins, and AdamW against the same in
 * double. Runs in the root of the repository, where the fixtures are.
 */
#include <dirent.h>
#include <inttypes.h>

#include "model_rig.h"
#include "npy.h"
#include "ra_folder.h"
#include "ra_model_struct.h"
#include "ra_optimizer.h"

/* ---- Parameters. */

CASE(parameters, 600);

/* The files of a fixture are the parameters, by name and shape, and each is there. */
TESTS(names_and_shapes, 0, 2)
{
    static const char *const fixtures[] = {"tests/fixtures/causal-gqa", "tests/fixtures/masked"};
    struct ra_model_config config;
    char note[RA_ERROR_SIZE];
    accepted(ra_folder_config(fixtures[_i], &config, sizeof config, note, error));
    ck_assert_str_eq(note, "");
    char path[1024], full[2048];
    snprintf(path, sizeof path, "%s/weights", fixtures[_i]);
    DIR *listing = opendir(path);
    expect(listing, "no %s", path);
    int found = 0, count = ra_parameter_count(&config);
    for (struct dirent *entry; (entry = readdir(listing));) {
        char *end = strstr(entry->d_name, ".npy");
        if (!end || strstr(entry->d_name, "inv_freq")) /* frequencies are no parameter */
            continue;
        struct npy file;
        snprintf(full, sizeof full, "%s/%s", path, entry->d_name);
        expect(npy_open(&file, full), "%s", file.error);
        npy_close(&file);
        *end = '\0';
        int i = 0;
        while (i < count && strcmp(ra_parameter(&config, i).name, entry->d_name) != 0)
            i++;
        expect(i < count, "no parameter %s", entry->d_name);
        struct ra_parameter x = ra_parameter(&config, i);
        expect(file.dims == (x.columns ? 2 : 1) && x.rows == file.shape[0] &&
                   x.count == npy_elements(&file),
               "%s is (%" PRId64 ", %" PRId64 ")", x.name, x.rows, x.columns);
        found++;
    }
    closedir(listing);
    ck_assert_int_eq(found, count);
}

/* They lie behind each other, at lines of the cache, and layers point at them; a tied model has one
 * less. */
TEST(places)
{
    for (int tied = 0; tied < 2; tied++) {
        struct ra_model_config config = small(tied);
        int64_t end = 0, numbers = ra_parameter_numbers(&config);
        float *all = poisoned(numbers);
        int count = ra_parameter_count(&config);
        ck_assert_int_eq(count, 19 - tied);
        for (int i = 0; i < count; i++) {
            struct ra_parameter x = ra_parameter(&config, i);
            expect(x.first >= end && x.first < end + 16 && x.first % 16 == 0, "%s at %" PRId64,
                   x.name, x.first);
            ck_assert_int_eq(x.count, x.rows * (x.columns ? x.columns : 1));
            end = x.first + x.count;
            for (int other = 0; other < i; other++)
                ck_assert_str_ne(x.name, ra_parameter(&config, other).name);
        }
        expect(numbers >= end && numbers < end + 16, "%" PRId64, numbers);
        for (int64_t l = 0; l < config.depth; l++) {
            static const char *const parts[] = {
                "0.to_qkv.0.gamma", "0.to_qkv.1.weight", "0.to_out.weight", "1.0.gamma",
                "1.1.weight",       "1.1.bias",          "1.3.weight",      "1.3.bias"};
            static const int64_t shapes[][2] = {{3, 0}, {16, 3}, {3, 8}, {3, 0},
                                                {5, 3}, {5, 0},  {3, 5}, {3, 0}};
            struct ra_layer_weights x = ra_places_of_layer(&config, all, l);
            float *const at[] = {
                x.attention.gamma, x.attention.qkv, x.attention.out, x.feed_gamma, x.up,
                x.up_bias,         x.down,          x.down_bias};
            for (int part = 0; part < 8; part++) {
                char name[64];
                struct ra_parameter y = ra_parameter(&config, 1 + 8 * (int)l + part);
                snprintf(name, sizeof name, "layers.%d.%s", (int)l, parts[part]);
                ck_assert_str_eq(y.name, name);
                expect(at[part] == all + y.first && y.rows == shapes[part][0] &&
                           y.columns == shapes[part][1],
                       "%s", name);
            }
        }
        struct ra_end_weights ends = ra_places_of_ends(&config, all);
        struct ra_parameter gamma = ra_parameter(&config, 17);
        struct ra_parameter logits = ra_parameter(&config, tied ? 0 : 18);
        ck_assert_str_eq(gamma.name, "to_logits.0.gamma");
        ck_assert_str_eq(logits.name, tied ? "token_emb.weight" : "to_logits.1.weight");
        expect(ends.embedding == all && ends.gamma == all + gamma.first &&
                   ends.logits == all + logits.first && logits.rows == 7 && logits.columns == 3,
               "ends");
        release();
    }
}

/* A part that a model has is there under its name, and in no other model; what layers and ends
 * point at is that, or NULL. */
TEST(places_of_parts)
{
    static const struct {
        const char *name; /* of layer 1, or outside of layers */
        int64_t rows, columns;
    } rows[] = {{"layers.1.0.to_qkv.0.bias", 3, 0},
                {"layers.1.1.0.bias", 3, 0},
                {"to_logits.0.bias", 3, 0},
                {"layers.1.0.to_qkv.1.bias", 16, 0},
                {"layers.1.0.to_out.bias", 3, 0},
                {"layers.1.0.q_norm.gamma", 2, 0},
                {"layers.1.0.k_norm.gamma", 2, 0},
                {"layers.1.1.1.bias", 5, 0},
                {"layers.1.1.3.bias", 3, 0},
                {"to_logits.1.bias", 7, 0},
                {"pos_emb.weight", 11, 3},
                {"layers.1.1.1.weight", 10, 3},
                {"layers.1.1.1.bias", 10, 0},
                {"layers.1.0.post_norm.gamma", 3, 0},
                {"layers.1.1.post_norm.gamma", 3, 0},
                {"layers.1.0.post_norm.bias", 3, 0},
                {"layers.1.1.post_norm.bias", 3, 0},
                {"layers.1.0.sinks", 4, 0}};
    for (int part = 0; part < 512; part++) {
        struct ra_model_config config = small(part % 3 == 0);
        bool has[] = {part & 1,  part & 2,  part & 4,   part & 8,  part & 16,
                      part & 32, part & 64, part & 128, part & 256};
        config.norm = has[0] ? RA_NORM_LAYER : RA_NORM_RMS;
        config.qkv_bias = has[1];
        config.out_bias = has[2];
        config.head_norm = has[3];
        config.feed_bias = has[4];
        config.logits_bias = has[5];
        config.position = has[6] ? RA_POSITIONS_LEARNED : RA_POSITIONS_ROTARY;
        config.longest = 11;
        config.post_norm = has[7];
        config.sinks = has[8];
        config.feed = part % 5 == 0 ? RA_FEED_SWIGLU : RA_FEED_GELU;
        bool gate = config.feed == RA_FEED_SWIGLU;
        accepted(ra_model_check(&config, error));
        const bool wanted[] = {
            has[0],         has[0],          has[0], has[1],           has[2],           has[3],
            has[3],         has[4] && !gate, has[4], has[5],           has[6],           gate,
            has[4] && gate, has[7],          has[7], has[7] && has[0], has[7] && has[0], has[8]};
        int64_t numbers = ra_parameter_numbers(&config), end = 0;
        int count = ra_parameter_count(&config);
        float *all = poisoned(numbers);
        struct ra_layer_weights w = ra_places_of_layer(&config, all, 1);
        struct ra_end_weights ends = ra_places_of_ends(&config, all);
        float *const at[] = {w.attention.bias,
                             w.feed_bias,
                             ends.bias,
                             w.attention.qkv_bias,
                             w.attention.out_bias,
                             w.attention.q_gamma,
                             w.attention.k_gamma,
                             w.up_bias,
                             w.down_bias,
                             ends.logits_bias,
                             ends.positions,
                             w.up,
                             w.up_bias,
                             w.attended_gamma,
                             w.fed_gamma,
                             w.attended_bias,
                             w.fed_bias,
                             w.attention.sinks};
        for (int i = 0; i < count; i++) {
            struct ra_parameter x = ra_parameter(&config, i);
            expect(x.first >= end && x.first < end + 16 && x.first % 16 == 0, "%s at %" PRId64,
                   x.name, x.first);
            end = x.first + x.count;
        }
        expect(numbers >= end && numbers < end + 16, "%" PRId64, numbers);
        for (int r = 0; r < 18; r++) {
            int i = 0;
            struct ra_parameter x = {.first = -1};
            while (i < count && (x = ra_parameter(&config, i), strcmp(x.name, rows[r].name) != 0))
                i++;
            bool there = i < count && x.rows == rows[r].rows && x.columns == rows[r].columns;
            ck_assert_int_eq(there, wanted[r]);
            if (there)
                ck_assert_ptr_eq(at[r], all + x.first);
            else if (i == count)
                ck_assert_ptr_null(at[r]);
        }
        release();
    }
}

TEST(models_refused)
{
    struct ra_model_config good = small(false), bad;
    int64_t *const sizes[] = {&bad.vocabulary, &bad.dim,      &bad.depth, &bad.heads,
                              &bad.key_heads,  &bad.head_dim, &bad.hidden};
    static const char *const names[] = {"vocabulary", "dim",      "depth", "heads",
                                        "key_heads",  "head_dim", "hidden"};
    static const int64_t values[] = {0, -1, INT64_MIN, INT64_MAX, INT64_C(1) << 40};
    accepted(ra_model_check(&good, error));
    for (int i = 0; i < 7 * 5; i++) {
        bad = good;
        *sizes[i / 5] = values[i % 5];
        refused(ra_model_check(&bad, error), names[i / 5]);
    }
    double *const reals[] = {&bad.rotary_theta,    &bad.rotary_scale,   &bad.softcap,
                             &bad.attention_scale, &bad.logits_softcap, &bad.embedding_scale};
    static const char *const of_reals[] = {"rotary_theta",    "rotary_scale",   "softcap",
                                           "attention_scale", "logits_softcap", "embedding_scale"};
    const double numbers[] = {(double)NAN, (double)INFINITY, -1, 0, 1e39, 1e-40};
    for (int i = 0; i < 6 * 6; i++) {
        int real = i / 6, number = i % 6;
        if (real == 5  ? number == 2 || number == 3 || number == 5 /* may be below 0, and small */
            : real > 1 ? number == 3                               /* 0: none */
                       : number > 3)
            continue;
        bad = good;
        *reals[real] = numbers[number];
        refused(ra_model_check(&bad, error), of_reals[real]);
    }
    static const struct ra_rotary_scaling scalings[] = {
        {RA_ROTARY_LLAMA3, 0, 1, 4, 32},
        {RA_ROTARY_LLAMA3, (double)NAN, 1, 4, 32},
        {RA_ROTARY_LLAMA3, 8, 0, 4, 32},
        {RA_ROTARY_LLAMA3, 8, 4, 4, 32},
        {RA_ROTARY_LLAMA3, 8, 1, (double)INFINITY, 32},
        {RA_ROTARY_LLAMA3, 8, (double)NAN, 4, 32},
        {RA_ROTARY_LLAMA3, 8, 1, 4, 0},
        {RA_ROTARY_YARN, 8, 4, 4, 32},
        {RA_ROTARY_YARN_UNTRUNCATED, 0, 1, 4, 32},
        {(enum ra_rotary_kind)4, 8, 1, 4, 32}};
    for (int i = 0; i < 10; i++) {
        bad = good;
        bad.rotary_scaling = scalings[i];
        refused(ra_model_check(&bad, error), "rotary_scaling");
        bad.rotary_scaling.kind = RA_ROTARY_PLAIN;
        accepted(ra_model_check(&bad, error));
    }
    bad = good;
    bad.rotary_theta = 1;
    accepted(ra_model_check(&bad, error));
    bad.rotary_scaling = (struct ra_rotary_scaling){RA_ROTARY_YARN, 8, 1, 4, 32};
    refused(ra_model_check(&bad, error), "rotary_theta above 1");
    for (int i = 0; i < 4; i++) {
        bad = good;
        bad.norm = i % 2 ? RA_NORM_RMS : RA_NORM_LAYER;
        bad.norm_eps = numbers[i];
        refused(ra_model_check(&bad, error), "norm_eps");
        bad.norm = RA_NORM_UNIT;
        accepted(ra_model_check(&bad, error));
        bad.head_norm = true;
        refused(ra_model_check(&bad, error), "norm_eps");
    }
    bad = good;
    bad.position = RA_POSITIONS_LEARNED;
    refused(ra_model_check(&bad, error), "longest");
    bad.longest = 5;
    bad.head_dim = 3;
    accepted(ra_model_check(&bad, error));
    bad.position_scale = (double)NAN;
    refused(ra_model_check(&bad, error), "position_scale");
    bad = good;
    bad.key_heads = 3;
    refused(ra_model_check(&bad, error), "key_heads");
    bad = good;
    bad.head_dim = 3;
    refused(ra_model_check(&bad, error), "head_dim");
    bad = good;
    bad.lookback[1] = -1;
    refused(ra_model_check(&bad, error), "lookback");
    bad.lookback[1] = 4;
    accepted(ra_model_check(&bad, error));
    bad.causal = false;
    refused(ra_model_check(&bad, error), "lookback");
    bad.lookback[1] = RA_NO_LOOKBACK;
    bad.lookback[2] = -1; /* of no layer */
    accepted(ra_model_check(&bad, error));

    /* A choice that is none, below and above. */
    for (int i = 0; i < 10; i++) {
        static const char *const choices[] = {"head_map", "norm", "feed", "position", "family"};
        int value = i % 2 ? 99 : -1;
        bad = good;
        switch (i / 2) {
        case 0:
            bad.head_map = (enum ra_head_map)value;
            break;
        case 1:
            bad.norm = (enum ra_norm_kind)value;
            break;
        case 2:
            bad.feed = (enum ra_feed_kind)value;
            break;
        case 3:
            bad.position = (enum ra_position_kind)value;
            break;
        default:
            bad.family = (enum ra_family)value;
        }
        refused(ra_model_check(&bad, error), choices[i / 2]);
    }

    /* Whatever is accepted can be counted. */
    bad = good;
    bad.vocabulary = INT32_MAX;
    bad.dim = 1 << 20;
    bad.depth = RA_MOST_LAYERS;
    bad.hidden = 1 << 24;
    bad.heads = bad.key_heads = 1 << 12;
    bad.head_dim = 1 << 12;
    accepted(ra_model_check(&bad, error));
    expect(ra_parameter_numbers(&bad) > INT64_C(1) << 50, "%" PRId64, ra_parameter_numbers(&bad));
    bad.heads = bad.key_heads = bad.head_dim = 1 << 20;
    refused(ra_model_check(&bad, error), "heads");
}

/* Gammas are 1, biases 0, as is what lies between; matrices have the deviation that they should
 * have, and are normal: means of n numbers, of their squares, and of neighbours' products, within
 * five deviations each. */
TESTS(where_learning_begins, 0, 2)
{
    struct ra_model_config config;
    ra_model_config_init(&config, sizeof config);
    config.vocabulary = 300;
    config.dim = 96;
    config.hidden = 200;
    if (_i == 1) { /* all parts */
        config.norm = RA_NORM_LAYER;
        config.feed = RA_FEED_SWIGLU;
        config.position = RA_POSITIONS_LEARNED;
        config.longest = 77;
        config.head_norm = config.qkv_bias = config.out_bias = config.logits_bias = true;
    }
    int64_t numbers = ra_parameter_numbers(&config);
    float *one = poisoned(numbers), *other = poisoned(numbers), *left = calloc((size_t)numbers, 4);
    ra_parameters_begin(&config, 7, one);
    ra_parameters_begin(&config, 7, other);
    expect(same_bits(one, other, numbers), "the same seed");
    ra_parameters_begin(&config, 8, other);
    for (int i = 0; i < ra_parameter_count(&config); i++) {
        struct ra_parameter x = ra_parameter(&config, i);
        bool adds = strstr(x.name, "to_out") || strstr(x.name, "1.3.weight");
        double deviation = 0.02 / (adds ? sqrt(2 * 4) : 1), n = (double)x.count;
        double sum = 0, squares = 0, neighbours = 0, same = 0, far = 0, likeness = 0;
        memcpy(left + x.first, one + x.first, (size_t)x.count * sizeof *one);
        for (int64_t e = 0; e < x.count; e++) {
            double z = (double)one[x.first + e] / deviation;
            sum += z;
            squares += z * z;
            neighbours += e > 0 ? z * (double)one[x.first + e - 1] / deviation : 0;
            likeness += z * (double)other[x.first + e] / deviation;
            far += fabs(z) > 2;
            same += one[x.first + e] == other[x.first + e];
        }
        if (x.columns == 0) {
            float all = strstr(x.name, "gamma") ? 1 : 0;
            for (int64_t e = 0; e < x.count; e++)
                expect(one[x.first + e] == all, "%s is %g", x.name, (double)one[x.first + e]);
            continue;
        }
        expect(fabs(sum) < 5 * sqrt(n), "%s: mean %g", x.name, sum / n);
        expect(fabs(squares - n) < 5 * sqrt(2 * n), "%s: square %g", x.name, squares / n);
        expect(fabs(neighbours) < 5 * sqrt(n), "%s: neighbours %g", x.name, neighbours / n);
        expect(fabs(likeness) < 5 * sqrt(n) && same < 10, "%s: seeds %g", x.name, likeness / n);
        expect(fabs(far - 0.0455 * n) < 5 * sqrt(0.0455 * n), "%s: far %g", x.name, far / n);
    }
    expect(same_bits(one, left, numbers), "not 0 between two arrays");
    free(left);
    release();
}

/* ---- Structs of other headers. */

/* A config of a header that has more fields, or fewer bytes, than the library's. */
TEST(sizes)
{
    struct {
        struct ra_model_config config;
        int64_t later[2];
    } newer;
    memset(&newer, 0xFF, sizeof newer);
    ra_model_config_init(&newer.config, sizeof newer);
    expect(newer.config.size == sizeof newer && newer.later[0] == 0 && newer.later[1] == 0,
           "what is not known is not 0");
    expect(ra_model_check(&newer.config, error) == RA_OK, "%s", error);
    newer.later[1] = 1;
    expect(ra_model_check(&newer.config, error) == RA_INVALID &&
               strstr(error, "config has a field that this version, "),
           "%s", error);
    newer.later[0] = newer.later[1] = -1;
    ra_model_config_init(&newer.config, sizeof newer.config);
    expect(newer.later[0] == -1 && newer.config.size == sizeof newer.config, "written behind it");

    /* One that is shorter than the library's: it ends where post_norm would begin. */
    size_t shorter = offsetof(struct ra_model_config, post_norm);
    newer.config.post_norm = true;
    ra_model_config_init(&newer.config, shorter);
    expect(newer.config.post_norm, "written behind a short one");
    newer.config.size = 8;
    expect(ra_model_check(&newer.config, error) == RA_INVALID &&
               strstr(error, "config.size = 8: begin with ra_model_config_init, which sets it to"),
           "%s", error);
    struct ra_optimizer optimizer = RA_OPTIMIZER_INIT;
    expect(ra_optimizer_rate(&optimizer, 1) > 0, "no rate");
    optimizer.size = 0;
    expect(isnan(ra_optimizer_rate(&optimizer, 1)), "a rate");
}

/* ---- AdamW. */

static const struct ra_optimizer how = {.size = sizeof how,
                                        .rate = 0.01,
                                        .warmup = 10,
                                        .steps = 50,
                                        .beta1 = 0.9,
                                        .beta2 = 0.999,
                                        .epsilon = 1e-8,
                                        .decay = 0.1,
                                        .clip = 5};

CASE(optimizer, 600);

TEST(rates)
{
    for (int64_t step = 1; step <= 60; step++) {
        double share = fmin(1, (double)(step - 10) / 40);
        double want = step <= 10 ? 0.001 * (double)step
                                 : 0.01 * (0.1 + 0.45 * (1 + cos(3.14159265358979 * share)));
        expect(fabs(ra_optimizer_rate(&how, step) - want) < 1e-14, "step %" PRId64, step);
    }
    struct ra_optimizer other = how;
    other.warmup = 0;
    expect(ra_optimizer_rate(&other, 50) == 0.001, "%g", ra_optimizer_rate(&other, 50));
    other.warmup = 50;
    expect(ra_optimizer_rate(&other, 50) == 0.01, "%g", ra_optimizer_rate(&other, 50));
    other = (struct ra_optimizer)RA_OPTIMIZER_INIT;
    expect(ra_optimizer_rate(&other, 1) == 0.001, "%g", ra_optimizer_rate(&other, 1));
    other.warmup = 2;
    expect(ra_optimizer_rate(&other, 1) == 0.0005, "%g", ra_optimizer_rate(&other, 1));
    expect(ra_optimizer_rate(&other, 99) == 0.001, "%g", ra_optimizer_rate(&other, 99));
}

TEST(lengths)
{
    static const int64_t counts[] = {0, 1, 255, 256, 257, 1000, 100000};
    for (int i = 0; i < 7; i++) {
        float *x = randoms(counts[i]);
        double sum = 0, first = ra_length(1, counts[i], x);
        for (int64_t e = 0; e < counts[i]; e++)
            sum += (double)x[e] * (double)x[e];
        expect(fabs(first - sqrt(sum)) <= 1e-13 * first, "%g, not %g", first, sqrt(sum));
        for (int t = 1; t < 4; t++)
            expect(ra_length(threads[t], counts[i], x) == first, "%d threads", threads[t]);
        release();
    }
    const float x[] = {3e38f, -3e38f, 1e-30f};
    expect(fabs(ra_length(1, 3, x) / 4.2426407e38 - 1) < 1e-6, "%g", ra_length(1, 3, x));
    expect(ra_length(1, 1, x + 2) == (double)x[2], "%g", ra_length(1, 1, x + 2));
}

/* A model in training, in float32 and in double. */
struct training {
    int64_t numbers;
    float *weights, *means, *squares, *gradients;
    double *true_weights, *true_means, *true_squares;
};

/* Weights may be anything between arrays, where gradients are 0: they stay so. */
static struct training training_of(const struct ra_model_config *config)
{
    struct training x = {.numbers = ra_parameter_numbers(config)};
    size_t n = (size_t)x.numbers;
    x.weights = poisoned(x.numbers);
    x.means = poisoned(x.numbers);
    x.squares = poisoned(x.numbers);
    x.gradients = calloc(n, sizeof *x.gradients);
    x.true_weights = calloc(3 * n, sizeof *x.true_weights);
    x.true_means = x.true_weights + n;
    x.true_squares = x.true_means + n;
    for (int i = 0; i < ra_parameter_count(config); i++) {
        struct ra_parameter y = ra_parameter(config, i);
        for (int64_t e = y.first; e < y.first + y.count; e++) {
            x.true_weights[e] = (double)(x.weights[e] = (float)random_number(&state));
            x.means[e] = x.squares[e] = 0;
        }
    }
    return x;
}

static void training_free(struct training *training)
{
    free(training->gradients), free(training->true_weights);
    release();
}

/* Gradients of either sign that are not near 0, so that no share is of a small number; long ones in
 * every other step. */
static void new_gradients(const struct ra_model_config *config, struct training *training,
                          int64_t step)
{
    for (int i = 0; i < ra_parameter_count(config); i++) {
        struct ra_parameter y = ra_parameter(config, i);
        for (int64_t e = y.first; e < y.first + y.count; e++) {
            double sign = random_below(&state, 2) ? 1 : -1;
            training->gradients[e] =
                (float)(sign * (1.5 + 0.5 * random_number(&state)) * (step % 2 ? 1 : 0.01));
        }
    }
}

/* The same step as in the paper: algorithm 2, with the schedule inside the rate. */
static double true_step(const struct ra_optimizer *o, const struct ra_model_config *config,
                        struct training *training, int64_t step)
{
    double square = 0, rate = ra_optimizer_rate(o, step);
    for (int64_t e = 0; e < training->numbers; e++)
        square += (double)training->gradients[e] * (double)training->gradients[e];
    double cut = o->clip > 0 && sqrt(square) > o->clip ? o->clip / sqrt(square) : 1;
    for (int i = 0; i < ra_parameter_count(config); i++) {
        struct ra_parameter y = ra_parameter(config, i);
        for (int64_t e = y.first; e < y.first + y.count; e++) {
            double g = cut * (double)training->gradients[e];
            double m = training->true_means[e] =
                o->beta1 * training->true_means[e] + (1 - o->beta1) * g;
            double v = training->true_squares[e] =
                o->beta2 * training->true_squares[e] + (1 - o->beta2) * g * g;
            m /= 1 - pow(o->beta1, (double)step);
            v /= 1 - pow(o->beta2, (double)step);
            if (y.columns > 0)
                training->true_weights[e] *= 1 - rate * o->decay;
            training->true_weights[e] -= rate * m / (sqrt(v) + o->epsilon);
        }
    }
    return sqrt(square);
}

/* Fifty steps. Each rounds squares, which are positive, by 4 u, so that roots are off by 2 u a
 * step; means by 4 u of a gradient, of which those of ten steps are left; the quotient by 8 u, and
 * weights by 3 u. A gradient, and so a mean, is 3 times a root at most. */
TEST(fifty_steps)
{
    double worst = 0;
    for (int i = 0; i < 4; i++) {
        struct ra_model_config config = small(i % 2);
        struct ra_optimizer o = how;
        o.clip = i < 2 ? 5 : 0;
        o.beta2 = i < 2 ? 0.999 : 0.95;
        struct training x = training_of(&config);
        double changes = 0;
        for (int64_t step = 1; step <= 50; step++) {
            new_gradients(&config, &x, i < 2 ? step : 1);
            double length = ra_optimizer_step(&o, &config, ra_share(&config, 0, 1), 1, step,
                                              x.gradients, x.weights, x.means, x.squares);
            double want = true_step(&o, &config, &x, step);
            expect(fabs(length - want) < 1e-12 * want, "length %g, not %g", length, want);
            changes += 3 * (2 * (double)step + 4 * 10 + 8) * ra_optimizer_rate(&o, step);
            for (int p = 0; p < ra_parameter_count(&config); p++) {
                struct ra_parameter y = ra_parameter(&config, p);
                for (int64_t e = y.first; e < y.first + y.count; e++) {
                    double error_of = fabs((double)x.weights[e] - x.true_weights[e]);
                    double allowed = u * (changes + 3 * (double)step * 1.7);
                    expect(error_of <= allowed, "%s, step %" PRId64 ": %.9g, not %.9g", y.name,
                           step, (double)x.weights[e], x.true_weights[e]);
                    worst = fmax(worst, error_of / allowed);
                }
                for (int64_t e = y.first + y.count; e % 16; e++)
                    expect(isnan(x.weights[e]) && isnan(x.means[e]) && isnan(x.squares[e]),
                           "written behind %s", y.name);
            }
        }
        training_free(&x);
    }
    printf("AdamW: %.2g of what is allowed at most\n", worst);
}

/* The first step is the rate, against the gradient, whatever the gradient is: to a few
 * roundings. */
TEST(first_step)
{
    struct ra_model_config config = small(false);
    struct ra_optimizer o = how;
    o.warmup = 0;
    o.decay = o.clip = 0;
    struct training x = training_of(&config);
    new_gradients(&config, &x, 1);
    memset(x.weights, 0, (size_t)x.numbers * sizeof *x.weights);
    double length = ra_optimizer_step(&o, &config, ra_share(&config, 0, 1), 1, 1, x.gradients,
                                      x.weights, x.means, x.squares);
    expect(length > 1, "%g", length);
    for (int64_t e = 0; e < ra_parameter(&config, 0).count; e++) {
        double want = copysign(ra_optimizer_rate(&o, 1), -(double)x.gradients[e]);
        want /= 1 + 1e-8 / fabs((double)x.gradients[e]);
        expect(fabs((double)x.weights[e] - want) < 10 * u * 0.01, "%.9g, not %.9g",
               (double)x.weights[e], want);
    }
    training_free(&x);
}

TEST(threads_of_a_step)
{
    struct ra_model_config config = small(true);
    struct training x = training_of(&config);
    int64_t n = x.numbers;
    size_t bytes = (size_t)n * sizeof(float);
    float *before = poisoned(3 * n), *first = poisoned(3 * n);
    for (int64_t step = 1; step <= 3; step++) {
        new_gradients(&config, &x, step);
        memcpy(before, x.weights, bytes);
        memcpy(before + n, x.means, bytes);
        memcpy(before + 2 * n, x.squares, bytes);
        for (int t = 0; t < 4; t++) {
            memcpy(x.weights, before, bytes);
            memcpy(x.means, before + n, bytes);
            memcpy(x.squares, before + 2 * n, bytes);
            ra_optimizer_step(&how, &config, ra_share(&config, 0, 1), threads[t], step, x.gradients,
                              x.weights, x.means, x.squares);
            if (t == 0) {
                memcpy(first, x.weights, bytes);
                memcpy(first + n, x.means, bytes);
                memcpy(first + 2 * n, x.squares, bytes);
            }
            expect(same_bits(first, x.weights, n) && same_bits(first + n, x.means, n) &&
                       same_bits(first + 2 * n, x.squares, n),
                   "other bits for %d threads", threads[t]);
        }
    }
    training_free(&x);
}

/* A gradient that is not finite changes nothing, wherever it is. */
TEST(gradients_of_nan)
{
    static const float specials[] = {NAN, INFINITY, -INFINITY};
    struct ra_model_config config = small(false);
    struct training x = training_of(&config);
    size_t bytes = (size_t)x.numbers * sizeof(float);
    float *weights = poisoned(x.numbers), *means = poisoned(x.numbers),
          *squares = poisoned(x.numbers);
    memcpy(weights, x.weights, bytes);
    memcpy(means, x.means, bytes);
    memcpy(squares, x.squares, bytes);
    for (int64_t e = 0; e < x.numbers; e++) {
        new_gradients(&config, &x, 1);
        x.gradients[e] = specials[e % 3];
        expect(!isfinite(ra_optimizer_step(&how, &config, ra_share(&config, 0, 1), 1, 1,
                                           x.gradients, x.weights, x.means, x.squares)),
               "a length at %" PRId64, e);
        x.gradients[e] = 0;
        expect(same_bits(weights, x.weights, x.numbers) && same_bits(means, x.means, x.numbers) &&
                   same_bits(squares, x.squares, x.numbers),
               "changed by number %" PRId64, e);
    }
    training_free(&x);
}

int main(void)
{
    return suite_main("parameters", 600);
}
