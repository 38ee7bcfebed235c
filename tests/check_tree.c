/* check_tree: attention over a sharded cache, on the ranks of a communicator, against the
 * definition.
 *
 *   mpirun -n RANKS build/check-tree
 *
 * Runs every test on every rank. A test that finds something wrong says so and goes on, so that its
 * ranks stay in step.
 */
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "arrays.h"
#include "ra_decoder.h"
#include "ra_number.h"
#include "ra_tree.h"
#include "truth.h"
#include "verdict.h"

/* Behind every array lies a guard that nothing may be written to. All arrays begin as bytes of 255,
 * which are NaN. */
enum { GUARD = 64, POISON = 0xFF };

static const double patience = 60;

static int rank, ranks;

/* ---- What is asked of MPI. */

static int reductions, sends;
static int64_t bytes_reduced;

int MPI_Iallreduce(const void *from, void *into, int count, MPI_Datatype type, MPI_Op operation,
                   MPI_Comm comm, MPI_Request *request)
{
    int size;
    PMPI_Type_size(type, &size);
    reductions++;
    bytes_reduced += (int64_t)count * size;
    return PMPI_Iallreduce(from, into, count, type, operation, comm, request);
}

int MPI_Isend(const void *from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    sends++;
    return PMPI_Isend(from, count, type, to, tag, comm, request);
}

/* ---- One text: a prompt, and tokens that come after it. */

struct text {
    struct ra_config config; /* queries: most tokens at once; keys: most positions */
    int64_t prompt, length;  /* the text has tokens prompt .. length - 1 after its prompt */
    double size;             /* queries are so many times as large */
    int64_t
        nan_at;  /* the key at this position is NaN, and the next with the other sign; -1: none */
    bool extras; /* slopes, sinks and the largest score */
    bool heads_first; /* arrays are (B, heads, rows, D), not (B, rows, heads, D) */
    double shift;     /* of all scores, by the first number of each row of q and of k */

    struct truth truth; /* its queries are the tokens after the prompt */
    struct ra_tree *tree;
    double *o; /* (B, length - prompt, H, D): results so far */
    double slopes[12], sink[12];
    float largest[12];
};

static struct text usual(int64_t prompt, int64_t length)
{
    struct text text = {
        .config = RA_CONFIG_INIT, .prompt = prompt, .length = length, .size = 1, .nan_at = -1};
    struct ra_config *c = &text.config;
    c->batch = 2;
    c->queries = 4;
    c->keys = length + 3;
    c->heads = 4;
    c->key_heads = 2;
    c->dim = 8;
    c->causal = true;
    c->layout = RA_STRIPED;
    c->tile_keys = 8;
    c->timeout = patience;
    c->threads = 1;
    return text;
}

/* Makes the tree, and what is right. False: there is no tree. */
static bool begin(struct text *text)
{
    char error[RA_ERROR_SIZE] = "";
    enum ra_status status = ra_tree_create(&text->tree, &text->config, MPI_COMM_WORLD, error);
    if (!HOLDS(status == RA_OK, "%s: %s", ra_status_text(status), error))
        return false;
    EXPECT(ra_tree_length(text->tree) == 0 && ra_tree_bytes(text->tree) > 0,
           "a tree that is not empty");
    struct ra_config config = text->config;
    config.queries = text->length - text->prompt;
    config.keys = text->length;
    config.type = RA_FLOAT32; /* that of the arrays: they are judged as such */
    struct truth *t = &text->truth;
    *t = truth_of(&config);
    uint64_t state = 5;
    truth_make_inputs(t, random_number, text->size, &state);
    for (int64_t b = 0; b < t->B && text->nan_at >= 0; b++) {
        *truth_row(t, t->x, K, b, text->nan_at, 0) = (double)NAN;
        *truth_row(t, t->x, K, b, text->nan_at + 1, 0) = -(double)NAN;
    }
    float common = (float)sqrt(fabs(text->shift) / t->scale);
    for (int64_t e = 0; e < truth_count(t, K) && text->shift < 0; e += t->D)
        t->x[K][e] = (double)-common;
    for (int64_t e = 0; e < truth_count(t, Q) && text->shift < 0; e += t->D)
        t->x[Q][e] = (double)common;
    text->o = truth_numbers(truth_count(t, O));
    for (int64_t h = 0; h < t->H && text->extras; h++) {
        /* Sinks around the scores, far above and far below them, and none. */
        text->slopes[h] = (double)(float)(0.2 * random_number(&state));
        text->sink[h] = h % 4 == 3
                            ? -(double)INFINITY
                            : (double)(float)(random_number(&state) + 200 * (int)(h % 4 - 1));
        text->largest[h] = -INFINITY;
        t->slopes = text->slopes;
        t->sink = text->sink;
    }
    return true;
}

static void end(struct text *text)
{
    truth_clear(&text->truth);
    free(text->o);
    ra_tree_destroy(text->tree);
}

/* Room for `rows` rows of one of the arrays; free it as data. */
static struct ra_tensor room_of(const struct text *text, enum truth_array a, int64_t rows)
{
    const struct truth *t = &text->truth;
    int64_t heads = truth_heads(t, a), width = truth_width(t, a);
    int64_t bytes = t->B * rows * heads * width * (int64_t)sizeof(float);
    void *data = memset(malloc((size_t)bytes + GUARD), POISON, (size_t)bytes + GUARD);
    return text->heads_first ? ra_tensor_bhnd(data, RA_FLOAT32, rows, heads, width)
                             : ra_tensor_bnhd(data, RA_FLOAT32, rows, heads, width);
}

/* Rows first, first + step, ... of an input. */
static struct ra_tensor input(const struct text *text, enum truth_array a, int64_t first,
                              int64_t step, int64_t rows)
{
    struct ra_tensor tensor = room_of(text, a, rows);
    int64_t positions[1000];
    for (int64_t i = 0; i < rows; i++)
        positions[i] = first + i * step;
    arrays_put(&text->truth, a, tensor, rows, positions, text->truth.x[a]);
    return tensor;
}

/* The prompt's shard of this rank goes into the tree. */
static void fill(struct text *text)
{
    struct ra_layout layout = {RA_STRIPED, ranks, text->prompt, 1, NULL};
    int64_t rows = ra_layout_rows(layout, rank);
    struct ra_tensor k = input(text, K, rank, ranks, rows), v = input(text, V, rank, ranks, rows);
    EXPECT(ra_tree_fill(text->tree, text->prompt, k, v) == RA_OK, "%s", ra_tree_error(text->tree));
    EXPECT(ra_tree_length(text->tree) == text->prompt, "%lld",
           (long long)ra_tree_length(text->tree));
    free(k.data);
    free(v.data);
}

static void keep(struct text *text, int64_t first, int64_t count)
{
    struct ra_tensor k = input(text, K, first, 1, count), v = input(text, V, first, 1, count);
    EXPECT(ra_tree_keep(text->tree, first, count, k, v) == RA_OK, "%s", ra_tree_error(text->tree));
    EXPECT(ra_tree_length(text->tree) == first + count, "%lld",
           (long long)ra_tree_length(text->tree));
    free(k.data);
    free(v.data);
}

/* Attention of the last `count` positions, whose results go into text->o. */
static void attend(struct text *text, int64_t count)
{
    const struct truth *t = &text->truth;
    int64_t first = ra_tree_length(text->tree) - count - text->prompt, positions[1000];
    struct ra_tensor q = input(text, Q, first, 1, count), o = room_of(text, O, count);
    size_t bytes = (size_t)(t->B * count * t->H * truth_width(t, O)) * sizeof(float) + GUARD;
    float slopes[12], sink[12], largest[12];
    struct ra_arrays x = RA_ARRAYS_INIT;
    x.q = q;
    x.o = o;
    for (int64_t h = 0; h < t->H && text->extras; h++) {
        slopes[h] = (float)text->slopes[h];
        sink[h] = (float)text->sink[h];
        x.slopes = ra_tensor_h(slopes);
        x.sink = ra_tensor_h(sink);
        x.largest = ra_tensor_h(largest);
    }
    enum ra_status status = ra_tree_attend(text->tree, count, &x);
    for (int64_t h = 0; h < t->H && text->extras; h++)
        text->largest[h] = fmaxf(text->largest[h], largest[h]);
    EXPECT(status == RA_OK, "%s: %s", ra_status_text(status), ra_tree_error(text->tree));
    for (size_t i = bytes - GUARD; i < bytes; i++)
        EXPECT(((unsigned char *)o.data)[i] == POISON, "behind o");
    for (int64_t i = 0; i < count; i++)
        positions[i] = first + i;
    arrays_get(t, O, o, count, positions, text->o);
    free(q.data);
    free(o.data);
}

/* Tokens come, 1, 2, ..., most at a time, and so on; most 1: one at a time. */
static void grow(struct text *text, int64_t most)
{
    for (int64_t at = text->prompt, count = 1; at < text->length;
         at += count, count = count % most + 1) {
        count = count < text->length - at ? count : text->length - at;
        keep(text, at, count);
        attend(text, count);
    }
}

/* Do all ranks have the same bits? */
static void expect_same_bits(const struct text *text)
{
    size_t bytes = (size_t)truth_count(&text->truth, O) * sizeof(double);
    double *others = memcpy(truth_numbers(truth_count(&text->truth, O)), text->o, bytes);
    PMPI_Bcast(others, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
    EXPECT(memcmp(others, text->o, bytes) == 0, "other bits than on rank 0");
    free(others);
}

/* What the cache does to keys and values. */
static void round_truth(struct text *text)
{
    struct truth *t = &text->truth;
    for (int a = 0; a < 2 && text->config.type != RA_FLOAT32; a++) {
        double *x = t->x[a ? V : K];
        for (int64_t e = 0; e < truth_count(t, a ? V : K); e++) {
            float number = (float)x[e];
            uint16_t rounded;
            ra_number_store(text->config.type, 1, &number, &rounded);
            ra_number_load(text->config.type, 1, &rounded, &number);
            x[e] = (double)number;
        }
    }
}

static void judge(struct text *text)
{
    expect_same_bits(text);
    round_truth(text);
    char words[TRUTH_TEXT] = "";
    if (rank == 0) { /* the others have its bits */
        truth_forward(&text->truth);
        EXPECT(truth_judge(&text->truth, O, text->o, words) <= 1, "%s", words);
    }
    if (!text->extras)
        return;
    truth_largest(&text->truth);
    for (int64_t h = 0; h < text->truth.H && text->truth.B > 0; h++)
        EXPECT(fabs((double)text->largest[h] - text->truth.largest[h]) <=
                   text->truth.largest_error[h],
               "largest of head %d: %g, not %g", (int)h, (double)text->largest[h],
               text->truth.largest[h]);
}

/* The whole text, one token at a time, and several. */
static void solve(struct text text)
{
    for (int64_t most = 1; most <= text.config.queries; most += 3) {
        text.heads_first = most > 1;
        if (!begin(&text))
            return;
        fill(&text);
        grow(&text, most);
        judge(&text);
        end(&text);
    }
}

/* ---- Tests of what is right. */

TEST(growing)
{
    for (int64_t prompt = 0; prompt < 6; prompt++)
        solve(usual(prompt, prompt + 11));
    solve(usual(100, 131));
}

/* Fewer positions than ranks. */
TEST(few_positions)
{
    for (int64_t length = 1; length < 6; length++)
        for (int64_t prompt = 0; prompt < length; prompt++)
            solve(usual(prompt, length));
}

TEST(heads)
{
    for (int64_t G = 1; G <= 6; G++)
        for (int map = RA_GROUPED; map <= RA_INTERLEAVED && 6 % G == 0; map++) {
            struct text text = usual(5, 24);
            text.config.heads = 6;
            text.config.key_heads = G;
            text.config.head_map = (enum ra_head_map)map;
            solve(text);
        }
}

/* A cache of 16 bits: the results are those of its rounded keys, and nothing else is rounded. */
TEST(types)
{
    static const enum ra_type types[] = {RA_BFLOAT16, RA_FLOAT16};
    for (int i = 0; i < 2; i++)
        for (int extras = 0; extras < 2; extras++) {
            struct text text = usual(40, 61), single = usual(40, 61);
            text.config.type = types[i];
            text.config.lookback = extras ? 29 : RA_NO_LOOKBACK;
            text.extras = extras;
            text.config.dim_value = 5;
            solve(text);
            text = usual(400, 410);
            text.config.type = types[i];
            single = usual(400, 410);
            if (!begin(&text) || !begin(&single))
                return;
            int64_t rows = (413 + ranks - 1 - rank) / ranks, saved = rows * 2 * 2 * (8 + 8) * 2;
            int64_t got = ra_tree_bytes(single.tree) - ra_tree_bytes(text.tree);
            EXPECT(got > saved - 2048 && got <= saved, "saved %lld bytes, not %lld", (long long)got,
                   (long long)saved);
            end(&text);
            end(&single);
        }
}

/* The logits of a prompt, and of tokens behind it, are those of the whole prompt at once, whatever
 * the pieces: a row on each rank, a last piece that some ranks have no row of, one that is all. */
TEST(pieces)
{
    enum { PROMPT = 41, NEW = 3, VOCABULARY = 32 };
    static float weights[1 << 16];
    static const int64_t pieces[] = {PROMPT, 1, 2, 3, 5, 10};
    int32_t tokens[PROMPT + NEW];
    float logits[2][(1 + NEW) * VOCABULARY];
    char error[RA_ERROR_SIZE];
    for (int i = 0; i < PROMPT + NEW; i++)
        tokens[i] = i * i % VOCABULARY;
    for (int way = 0; way < 4; way++) {
        struct ra_model_config config;
        ra_model_config_init(&config, sizeof config);
        config.vocabulary = VOCABULARY, config.dim = 32, config.depth = 3, config.hidden = 48;
        config.heads = 4, config.key_heads = 2, config.head_dim = 16;
        config.head_norm = way == 1;
        config.position = way == 2 ? RA_POSITIONS_LEARNED : RA_POSITIONS_ROTARY;
        config.longest = way == 2 ? PROMPT + NEW : 0;
        if (way == 3) /* windows inside a piece, over several, and over none */
            config.lookback[0] = 2, config.lookback[1] = 11;
        if (!HOLDS(ra_parameter_numbers(&config) <= 1 << 16, "too many weights"))
            return;
        ra_parameters_begin(&config, 3, weights);
        for (int64_t e = 0; e < ra_parameter_numbers(&config); e++)
            weights[e] *= 5;
        for (int i = 0; i < 6; i++) {
            struct ra_model_run run = {.size = sizeof run,
                                       .length = PROMPT + NEW,
                                       .threads = 1,
                                       .timeout = patience,
                                       .prompt_rows = pieces[i]};
            struct ra_decoder *decoder;
            float *got = logits[i > 0], most = 0, off = 0;
            if (!HOLDS(ra_decoder_create(&decoder, &config, &run, NEW, MPI_COMM_WORLD, error) ==
                           RA_OK,
                       "%s", error))
                return;

            /* A token that is none leaves the text as it was. */
            tokens[PROMPT - 1] += i == 1 ? VOCABULARY : 0;
            EXPECT((ra_decoder_prompt(decoder, weights, PROMPT, tokens, got) == RA_OK) == (i != 1),
                   "%s", ra_decoder_error(decoder));
            EXPECT(i != 1 || (strcmp(ra_decoder_error(decoder),
                                     "tokens: position 40 is 32: give 0 to 31") == 0 &&
                              ra_decoder_length(decoder) == 0),
                   "%s", ra_decoder_error(decoder));
            tokens[PROMPT - 1] = (PROMPT - 1) * (PROMPT - 1) % VOCABULARY;
            EXPECT(ra_decoder_prompt(decoder, weights, PROMPT, tokens, got) == RA_OK &&
                       ra_decoder_length(decoder) == PROMPT &&
                       ra_decoder_add(decoder, weights, NEW, tokens + PROMPT, got + VOCABULARY) ==
                           RA_OK,
                   "%s", ra_decoder_error(decoder));
            ra_decoder_destroy(decoder);
            for (int e = 0; e < (1 + NEW) * VOCABULARY; e++) {
                most = fmaxf(most, fabsf(logits[0][e]));
                off = fmaxf(off, fabsf(got[e] - logits[0][e]));
            }
            EXPECT(off <= 1e-5F * most && most > 1, "way %d, pieces of %d rows: off by %g of %g",
                   way, (int)pieces[i], (double)off, (double)most);
            if (getenv("CHECK_TREE_TELLS") && rank == 0)
                fprintf(stderr, "way %d, pieces of %d rows: off by %g of %g\n", way, (int)pieces[i],
                        (double)off, (double)most);
        }
    }
    struct ra_model_config config;
    struct ra_model_run run = {.size = sizeof run, .length = 9, .threads = 1, .prompt_rows = -1};
    struct ra_decoder *none;
    ra_model_config_init(&config, sizeof config);
    EXPECT(ra_decoder_create(&none, &config, &run, NEW, MPI_COMM_WORLD, error) == RA_INVALID &&
               strstr(error, "run.prompt_rows = -1: give 0, for 8192, or more"),
           "%s", error);
    run.batch = 3;
    EXPECT(ra_decoder_create(&none, &config, &run, NEW, MPI_COMM_WORLD, error) == RA_INVALID &&
               strstr(error, "run.batch = 3: a decoder has one text; give 1, or 0"),
           "%s", error);
}

/* What a model without gradients holds for a row: what its forward writes, and nothing else. */
TEST(forward_only)
{
    enum { ROWS = 64 };
    struct ra_model_config config;
    int64_t bytes[2];
    char error[RA_ERROR_SIZE];
    ra_model_config_init(&config, sizeof config);
    config.vocabulary = 32, config.dim = 32, config.depth = 3, config.hidden = 48;
    config.heads = 4, config.key_heads = 2, config.head_dim = 16, config.head_norm = true;
    for (int i = 0; i < 2; i++) {
        struct ra_model_run run = {.size = sizeof run,
                                   .batch = 1,
                                   .length = (int64_t)ROWS * (1 + i) * ranks,
                                   .forward_only = true,
                                   .threads = 1,
                                   .timeout = patience};
        struct ra_config attention = RA_CONFIG_INIT;
        struct ra_model *model;
        struct ra_plan *plan;
        struct ra_link link;
        attention.queries = run.length;
        attention.heads = 4, attention.key_heads = 2, attention.dim = 16;
        attention.causal = attention.forward_only = true;
        attention.threads = 1;
        attention.timeout = patience;
        if (!HOLDS(ra_model_create(&model, &config, &run, MPI_COMM_WORLD, error) == RA_OK &&
                       ra_mpi_link(&link, MPI_COMM_WORLD, 0, patience, error) == RA_OK &&
                       ra_plan_create(&plan, &attention, &link, error) == RA_OK,
                   "%s", error))
            return;
        bytes[i] = ra_model_bytes(model) - ra_plan_bytes(plan);
        static float weights[1 << 16], gradients[1 << 16];
        static int32_t none[2 * ROWS];
        struct ra_model_batch batch = {.size = sizeof batch, .tokens = none, .labels = none};
        struct ra_model_loss loss;
        EXPECT(ra_model_step(model, weights, 1, &batch, gradients, &loss) == RA_INVALID &&
                   strstr(ra_model_error(model), "gradients: give NULL, as run.forward_only"),
               "%s", ra_model_error(model));
        ra_model_destroy(model);
        ra_plan_destroy(plan);
    }
    /* x twice, q, k, v, q and k before their norm, o, lse, mid, up, a norm, what bends, the
     * position (of 8 bytes), sines and cosines. */
    int64_t numbers = 2 * 32 + 128 + 96 + 64 + 4 + 32 + 48 + 32 + 48 + 2 + 16;
    EXPECT(bytes[1] - bytes[0] == ROWS * numbers * 4, "%lld bytes a row, not %lld",
           (long long)(bytes[1] - bytes[0]) / ROWS, (long long)numbers * 4);
}

/* A decoder's cache of 16 bits: smaller, and its logits are near those of float32, not the same. */
TEST(decoder)
{
    enum { PROMPT = 40, NEW = 3, VOCABULARY = 32 };
    static float weights[1 << 16];
    static const enum ra_type types[] = {RA_FLOAT32, RA_BFLOAT16, RA_FLOAT16};
    static const double allowed[] = {0, 0.02, 0.003}; /* of the largest logit */
    struct ra_model_config config;
    int32_t tokens[PROMPT + NEW];
    float logits[3][NEW * VOCABULARY], largest = 0;
    int64_t bytes[3];
    char error[RA_ERROR_SIZE];
    ra_model_config_init(&config, sizeof config);
    config.vocabulary = VOCABULARY, config.dim = 32, config.depth = 2, config.hidden = 48;
    config.heads = 4, config.key_heads = 2, config.head_dim = 16;
    EXPECT(ra_parameter_numbers(&config) <= 1 << 16, "too many weights");
    ra_parameters_begin(&config, 3, weights);
    for (int64_t e = 0; e < ra_parameter_numbers(&config); e++)
        weights[e] *= 5;
    for (int i = 0; i < PROMPT + NEW; i++)
        tokens[i] = i * i % VOCABULARY;
    struct ra_model_run run = {
        .size = sizeof run, .length = 5000, .threads = 1, .timeout = patience};
    for (int i = 0; i < 3; i++) {
        struct ra_decoder *decoder;
        run.cache_type = types[i];
        if (!HOLDS(ra_decoder_create(&decoder, &config, &run, NEW, MPI_COMM_WORLD, error) == RA_OK,
                   "%s", error))
            return;
        EXPECT(ra_decoder_prompt(decoder, weights, PROMPT, tokens, logits[i]) == RA_OK &&
                   ra_decoder_add(decoder, weights, NEW, tokens + PROMPT, logits[i]) == RA_OK,
               "%s", ra_decoder_error(decoder));
        bytes[i] = ra_decoder_bytes(decoder);
        ra_decoder_destroy(decoder);
    }
    for (int e = 0; e < NEW * VOCABULARY; e++)
        largest = fmaxf(largest, fabsf(logits[0][e]));
    for (int i = 1; i < 3; i++) {
        double error_most = 0;
        for (int e = 0; e < NEW * VOCABULARY; e++)
            error_most = fmax(error_most, fabs((double)logits[i][e] - (double)logits[0][e]));
        EXPECT(error_most > 0 && error_most <= allowed[i] * (double)largest && largest > 0,
               "type %d: off by %g of %g", (int)types[i], error_most, (double)largest);
        EXPECT(bytes[i] < bytes[0], "%lld bytes, not less than %lld", (long long)bytes[i],
               (long long)bytes[0]);
        if (getenv("CHECK_TREE_TELLS") && rank == 0)
            fprintf(stderr, "type %d: off by %g of %g\n", (int)types[i], error_most,
                    (double)largest);
    }
    struct ra_decoder *none;
    config.causal = false;
    EXPECT(ra_decoder_create(&none, &config, &run, 1, MPI_COMM_WORLD, error) == RA_INVALID &&
               strstr(error, "config.causal = false: a new token would change all those before it"),
           "%s", error);
}

/* Not causal: all new tokens see all of the cache. */
TEST(not_causal)
{
    for (int extras = 0; extras < 2; extras++) {
        struct text text = usual(30, 34);
        text.config.causal = false;
        text.extras = extras;
        if (!begin(&text))
            return;
        fill(&text);
        keep(&text, 30, 4);
        attend(&text, 4);
        judge(&text);
        end(&text);
    }
}

TEST(lookback)
{
    static const int64_t lookbacks[] = {0, 1, 2, 3, 4, 7, 8, 20, 1000};
    for (int i = 0; i < 9; i++) {
        struct text text = usual(6, 27);
        text.config.lookback = lookbacks[i];
        solve(text);
    }
}

/* A component that all keys have, as in real models, far larger than what tells them apart; maxima
 * that differ much between ranks, so that forgotten factors show; and a soft cap. */
TEST(scores)
{
    static const double shifts[] = {-10, -1000, -60000};
    for (int i = 0; i < 3; i++) {
        struct text shifted = usual(9, 40);
        shifted.shift = shifts[i];
        solve(shifted);
    }
    struct text text = usual(9, 40);
    text.size = 10;
    solve(text);
    text.size = 30;
    solve(text);
    text.config.softcap = 3;
    solve(text);
    text.config.scale = -0.4;
    solve(text);
}

/* Tiles of the usual size, on vectors and plain ones, by one thread and by several. */
TEST(ways)
{
    struct text text = usual(200, 230);
    text.config.dim = 24;
    text.config.heads = 8;
    text.config.tile_keys = 0;
    solve(text);
    text.config.threads = 3;
    solve(text);
    text.config.tile = RA_PLAIN_TILE;
    solve(text);
    text.config.batch = 0;
    solve(text);
}

/* Values wider or narrower than keys; a carry has their numbers. */
TEST(widths)
{
    static const int64_t widths[][2] = {{192, 128}, {576, 512}, {64, 128}, {5, 3}, {1, 7}};
    for (int i = 0; i < 10; i++) {
        struct text text = usual(5, 24);
        text.config.dim = widths[i / 2][0];
        text.config.dim_value = widths[i / 2][1];
        text.config.tile = i % 2 ? RA_PLAIN_TILE : RA_VECTOR_TILE;
        solve(text);
        if (!begin(&text))
            return;
        EXPECT(ra_tree_reduced(text.tree, 3) == 4 * 2 * 3 * 4 * (widths[i / 2][1] + 2),
               "%lld bytes", (long long)ra_tree_reduced(text.tree, 3));
        end(&text);
    }
}

/* Inventions. */
TEST(random)
{
    uint64_t state = 3;
    for (int i = 0; i < 20; i++) {
        int64_t prompt = random_below(&state, 20);
        struct text text = usual(prompt, prompt + 1 + random_below(&state, 15));
        struct ra_config *c = &text.config;
        c->batch = 1 + random_below(&state, 3);
        c->key_heads = 1 + random_below(&state, 3);
        c->heads = c->key_heads * (1 + random_below(&state, 4));
        c->dim = 1 + random_below(&state, 33);
        c->dim_value = i % 3 ? 0 : 1 + random_below(&state, 40);
        c->queries = 1 + random_below(&state, 9);
        c->keys += c->queries;
        c->lookback = random_below(&state, 2) ? random_below(&state, 30) : RA_NO_LOOKBACK;
        c->head_map = (enum ra_head_map)random_below(&state, 2);
        c->threads = i % 10 == 0 ? 2 : 1;
        solve(text);
        text.extras = true;
        c->tile = i % 2 ? RA_PLAIN_TILE : RA_VECTOR_TILE;
        solve(text);
    }
}

/* Tokens that were tried are forgotten, and others take their places. */
TEST(again)
{
    struct text text = usual(5, 30);
    if (!begin(&text))
        return;
    for (int round = 0; round < 2; round++) {
        fill(&text);
        for (int64_t at = 5; at < 30; at++) {
            struct ra_tensor nan = room_of(&text, K, 3);
            EXPECT(ra_tree_keep(text.tree, at, 3, nan, nan) == RA_OK, "%s",
                   ra_tree_error(text.tree));
            keep(&text, at, 1);
            attend(&text, 1);
            free(nan.data);
        }
    }
    judge(&text);
    end(&text);
}

/* Keys that are NaN reach those that see one, always with the same bits, and nobody else. */
TEST(nan)
{
    for (int64_t nan_at = 0; nan_at < 19; nan_at += 3) {
        struct text text = usual(3, 20);
        text.nan_at = nan_at;
        text.config.lookback = 6;
        if (!begin(&text))
            return;
        fill(&text);
        grow(&text, 4);
        expect_same_bits(&text);
        const struct truth *t = &text.truth;
        for (int64_t i = 0; i < t->N; i++)
            for (int64_t h = 0; h < t->H; h++)
                for (int64_t c = 0; c < t->D; c++) {
                    double *const arrays[] = {[O] = text.o};
                    bool sees = (truth_sees(t, i, nan_at) || truth_sees(t, i, nan_at + 1)) &&
                                ra_heads_key(t->head_map, t->H, t->G, h) == 0;
                    double x = truth_row(t, arrays, O, 1, i, h)[c];
                    EXPECT(isnan(x) == sees && !(sees && signbit(x)), "token %lld, head %lld: %g",
                           (long long)i, (long long)h, x);
                }
        end(&text);
    }
}

/* One reduction, of so many bytes however long the cache is, and no message of this rank's own. */
TEST(messages)
{
    struct text text = usual(100, 130);
    if (!begin(&text))
        return;
    fill(&text);
    keep(&text, 100, 4);
    for (int64_t count = 1; count <= 4; count++) {
        reductions = sends = 0;
        bytes_reduced = 0;
        attend(&text, count);
        EXPECT(reductions == 1 && sends == 0, "%d reductions, %d messages", reductions, sends);
        EXPECT(bytes_reduced == 4 * 2 * count * 4 * (8 + 2) &&
                   bytes_reduced == ra_tree_reduced(text.tree, count),
               "%lld bytes", (long long)bytes_reduced);
    }
    end(&text);
}

/* ---- Tests of what is wrong. */

static void refused(const struct ra_config *config, enum ra_status expected, const char *word)
{
    char error[RA_ERROR_SIZE] = "";
    struct ra_tree *tree;
    enum ra_status status = ra_tree_create(&tree, config, MPI_COMM_WORLD, error);
    EXPECT(status == expected && !tree && strstr(error, word), "%s: %s", ra_status_text(status),
           error);
}

TEST(refusals)
{
    struct ra_config good = usual(0, 20).config, config = good;
    refused(NULL, RA_INVALID, "config is NULL");
    config.type = RA_BOOL;
    refused(&config, RA_INVALID, "type");
    config = good;
    config.has_mask = true;
    refused(&config, RA_INVALID, "has_mask");
    config = good;
    config.max_slices = 3;
    refused(&config, RA_INVALID, "config.max_slices = 3: give 0, as a cache has one text");
    config = good;
    config.layout = RA_ZIGZAG;
    refused(&config, RA_INVALID, "config.layout");
    config = good;
    config.queries = 24;
    refused(&config, RA_INVALID, "config.queries");
    config.queries = 0;
    refused(&config, RA_INVALID, "config.queries");
    config = good;
    config.ring_size = ranks + 1;
    refused(&config, RA_INVALID, "config.ring_size");
    config = good;
    config.dim += rank == ranks - 1 && ranks > 1;
    config.heads = ranks > 1 ? 4 : 5;
    refused(&config, ranks > 1 ? RA_DISAGREEMENT : RA_INVALID,
            ranks > 1 ? "config.dim" : "key_heads");
}

/* What a cache refuses, it has not done. */
TEST(limits)
{
    struct text text = usual(10, 20);
    if (!begin(&text))
        return;
    struct ra_tensor k = room_of(&text, K, 30), none = RA_NO_TENSOR, half = k;
    half.type = RA_BFLOAT16;
    fill(&text);
    EXPECT(ra_tree_fill(text.tree, 24, k, k) == RA_INVALID, "too long");
    EXPECT(ra_tree_fill(text.tree, -1, k, k) == RA_INVALID, "too short");
    EXPECT(ra_tree_fill(text.tree, 20, half, k) == RA_INVALID, "a type");
    EXPECT(ra_tree_keep(text.tree, 10, 14, k, k) == RA_INVALID, "too long");
    EXPECT(ra_tree_keep(text.tree, 11, 1, k, k) == RA_INVALID, "a hole");
    EXPECT(ra_tree_keep(text.tree, -1, 1, k, k) == RA_INVALID, "before all");
    EXPECT(ra_tree_keep(text.tree, 10, -1, k, k) == RA_INVALID, "backwards");
    EXPECT(ra_tree_keep(text.tree, 10, ranks, none, none) == RA_INVALID, "no arrays");
    EXPECT(ra_tree_length(text.tree) == 10, "%lld", (long long)ra_tree_length(text.tree));
    grow(&text, 4);
    judge(&text);
    free(k.data);
    end(&text);
}

/* One rank asks for too much: all are told so, and nobody waits. Or it does not come: the others
 * wait for the timeout. */
static void lose_ranks(bool comes)
{
    struct text text = usual(10, 20);
    text.config.timeout = comes ? 10 : 1;
    if (!begin(&text))
        return;
    fill(&text);
    keep(&text, 10, 1);

    /* All have the tree: a rank's trouble may overtake the end of an agreement. */
    PMPI_Barrier(MPI_COMM_WORLD);
    bool odd = rank == ranks - 1;
    double began = ra_seconds();
    struct ra_tensor q = input(&text, Q, 0, 1, 5), o = room_of(&text, O, 5);
    struct ra_arrays x = RA_ARRAYS_INIT;
    x.q = q;
    x.o = o;
    if (comes || !odd) {
        enum ra_status status = ra_tree_attend(text.tree, odd ? 5 : 1, &x);
        EXPECT(status == (odd ? RA_INVALID : RA_LOST), "%s", ra_status_text(status));
        EXPECT(strstr(ra_tree_error(text.tree), comes ? "count = 5" : "waited 1 s"), "%s",
               ra_tree_error(text.tree));
    }
    EXPECT(ra_seconds() - began < 20, "%g s", ra_seconds() - began);
    PMPI_Barrier(MPI_COMM_WORLD);
    enum ra_status status = ra_tree_attend(text.tree, 1, &x);
    EXPECT(status == (ranks > 1 ? RA_LOST : RA_OK), "%s", ra_status_text(status));

    /* MPI may still write to what a lost tree keeps. */
    free(q.data);
    free(o.data);
    end(&text);
}

TEST(wrong_count)
{
    lose_ranks(true);
}

TEST(lost_rank)
{
    lose_ranks(false);
}

int main(int argc, char **argv)
{
    verdict_begin_ranks(argc, argv, patience, &rank, &ranks, NULL);
    verdict_run_noted();
    int code = verdict_end();
    MPI_Finalize();
    return code;
}
