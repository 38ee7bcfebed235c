/* check_packed: packed documents in a model, against the same model on each document by itself, on
 * the ranks of a communicator.
 *
 *   mpirun -n RANKS build/check-packed [RING_SIZE]
 *
 * A model of one rank that gets a document alone, without slices, is what the others are judged by.
 * Runs every test on every rank. A test that finds something wrong says so and goes on, so that its
 * ranks stay in step.
 */
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"
#include "ra_model.h"
#include "verdict.h"

static const double patience = 60;
static int rank, ranks, ring_size;

/* A deal has pieces of 32 rows or more: it needs the longer sequence. */
enum {
    SHORT = 45,
    LONG = 260,
    DOCUMENTS = 9,
    VOCABULARY = 11,
    MOST_BATCH = 2,
    MICRO = 2,
    MOST_RINGS = 8
};
enum { TOKENS = MOST_BATCH * LONG, LOGITS = TOKENS * VOCABULARY };

/* ---- A trial: a model, and how it runs on packed documents. */

struct trial {
    const char *name;
    struct ra_model_config config;
    struct ra_model_run run;
    enum ra_deal deal;
    bool in_sequence; /* angles are those of places in the sequence: then documents differ only by
                       * whom they see, as angles tell no more than distances */
    bool whole;       /* micro-batch 0 has no slices: it is one document */
};

static struct trial usual(const char *name)
{
    struct trial trial = {.name = name};
    struct ra_model_config *c = &trial.config;
    ra_model_config_init(c, sizeof *c);
    c->vocabulary = VOCABULARY;
    c->dim = 12;
    c->depth = 3;
    c->heads = 4;
    c->key_heads = 2;
    c->head_dim = 8;
    c->hidden = 20;
    trial.run = (struct ra_model_run){.size = sizeof(struct ra_model_run),
                                      .batch = MOST_BATCH,
                                      .length = SHORT,
                                      .ring_size = ring_size,
                                      .max_slices = DOCUMENTS,
                                      .max_rows = SHORT,
                                      .threads = 1,
                                      .timeout = patience};
    return trial;
}

/* What one ring gets in one micro-batch. Labels are the tokens that come next in their document. */
struct pack {
    int64_t bounds[DOCUMENTS + 1], count;
    int32_t tokens[TOKENS], labels[TOKENS]; /* (B, N) */
    bool mask[TOKENS];
    float logits[LOGITS]; /* (B, N, V): what is right */
};

static void make_pack(const struct trial *trial, bool whole, uint64_t *state, struct pack *pack)
{
    int64_t N = trial->run.length, times = N / SHORT;
    pack->bounds[0] = pack->count = 0;
    while (pack->bounds[pack->count] < N) {
        int64_t left = N - pack->bounds[pack->count], rows = left;
        if (!whole && pack->count < DOCUMENTS - 1)
            rows = random_below(state, 3) ? random_below(state, 14 * times)
                                          : 1 + random_below(state, 30 * times);
        pack->bounds[pack->count + 1] = pack->bounds[pack->count] + (rows < left ? rows : left);
        pack->count++;
    }
    for (int64_t e = 0; e < trial->run.batch * N; e++) {
        pack->tokens[e] = (int32_t)random_below(state, VOCABULARY);
        pack->mask[e] = random_below(state, 4) > 0;
    }
    for (int64_t b = 0; b < trial->run.batch; b++)
        for (int64_t d = 0; d < pack->count; d++)
            for (int64_t i = pack->bounds[d]; i < pack->bounds[d + 1]; i++)
                pack->labels[b * N + i] =
                    i + 1 < pack->bounds[d + 1] ? pack->tokens[b * N + i + 1] : -1;
}

/* ---- What is right. */

static int64_t label_count(int64_t count, const int32_t *labels)
{
    int64_t labelled = 0;
    for (int64_t e = 0; e < count; e++)
        labelled += labels[e] >= 0;
    return labelled;
}

/* Computes a document alone, on this rank. Adds its loss and gradients, times its labels. */
static bool judge_document(const struct trial *trial, const float *weights, struct pack *pack,
                           int64_t d, double *loss, double *gradients, int64_t *labels)
{
    struct ra_model_run run = trial->run;
    int64_t N = run.length, first = pack->bounds[d], n = pack->bounds[d + 1] - first;
    int64_t numbers = ra_parameter_numbers(&trial->config);
    int32_t tokens[TOKENS], next[TOKENS];
    bool mask[TOKENS];
    char error[RA_ERROR_SIZE];
    struct ra_model *model;
    struct ra_model_loss got;
    if (n == 0)
        return true;
    run.length = n;
    run.max_slices = run.max_rows = run.bucket = 0;
    run.ring_size = 1;
    run.layout = RA_CONTIGUOUS;
    run.gather = run.recompute = false;
    if (!HOLDS(ra_model_create(&model, &trial->config, &run, MPI_COMM_SELF, error) == RA_OK, "%s",
               error))
        return false;
    for (int64_t b = 0; b < run.batch; b++)
        for (int64_t i = 0; i < n; i++) {
            tokens[b * n + i] = pack->tokens[b * N + first + i];
            next[b * n + i] = pack->labels[b * N + first + i];
            mask[b * n + i] = pack->mask[b * N + first + i];
        }
    struct ra_model_batch batch = {
        .size = sizeof batch, .tokens = tokens, .labels = next, .mask = run.has_mask ? mask : NULL};
    float *own = malloc((size_t)numbers * sizeof *own);
    bool right = HOLDS(ra_model_step(model, weights, 1, &batch, own, &got) == RA_OK, "%s",
                       ra_model_error(model));
    int64_t count = label_count(run.batch * n, next);
    for (int64_t e = 0; e < numbers && right; e++)
        gradients[e] += (double)count * (double)own[e];
    *loss += (double)count * got.mean;
    *labels += count;
    for (int64_t a = 0; a < run.batch * n && right; a++)
        right =
            HOLDS(ra_model_logits(model, weights, a, 1,
                                  pack->logits + (a / n * N + first + a % n) * VOCABULARY) == RA_OK,
                  "%s", ra_model_error(model));
    free(own);
    ra_model_destroy(model);
    return right;
}

/* Is `got` near `want`, as float32 may be, in the size of the largest of them? */
static bool near(int64_t count, const double *got, const double *want, double *worst)
{
    double size = 0, error = 0;
    for (int64_t e = 0; e < count; e++) {
        size = fmax(size, fabs(want[e]));
        error = got[e] - want[e] == 0 ? error : fmax(error, fabs(got[e] - want[e]));
        if (isnan(got[e]) || isnan(want[e]))
            error = (double)INFINITY;
    }
    *worst = error / fmax(size, 1e-30);
    return error <= 2e-5 * size;
}

/* ---- On all ranks. */

/* This rank's part of a micro-batch, in the order of its rows. */
struct part {
    int32_t tokens[TOKENS], labels[TOKENS];
    bool mask[TOKENS];
    int64_t places[LONG], positions[LONG];
    struct ra_slice slices[DOCUMENTS];
    struct ra_model_batch batch;
};

static bool take_part(const struct trial *trial, struct ra_model *model, const struct pack *pack,
                      bool whole, struct part *part)
{
    int64_t ahead = trial->config.causal ? 0 : RA_NO_LOOKBACK, B = trial->run.batch;
    int64_t N = trial->run.length;
    ra_slices_documents(pack->bounds, pack->count, RA_NO_LOOKBACK, ahead, part->slices);
    part->batch = (struct ra_model_batch){.size = sizeof(struct ra_model_batch),
                                          .tokens = part->tokens,
                                          .labels = part->labels,
                                          .mask = trial->run.has_mask ? part->mask : NULL,
                                          .slices = whole ? NULL : part->slices,
                                          .slice_count = whole ? -7 : pack->count,
                                          .deal = trial->deal,
                                          .positions = trial->in_sequence ? NULL : part->positions};
    if (!HOLDS(ra_model_set_slices(model, &part->batch) == RA_OK, "%s", ra_model_error(model)))
        return false;
    int64_t n = ra_model_rows(model);
    ra_model_positions(model, part->places);
    for (int64_t a = 0; a < n; a++) {
        int64_t d = 0, place = part->places[a];
        while (pack->bounds[d + 1] <= place)
            d++;
        part->positions[a] = place - pack->bounds[d];
        for (int64_t b = 0; b < B; b++) {
            part->tokens[b * n + a] = pack->tokens[b * N + place];
            part->labels[b * n + a] = pack->labels[b * N + place];
            part->mask[b * n + a] = pack->mask[b * N + place];
        }
    }
    return true;
}

static void solve(struct trial trial)
{
    static struct pack packs[MOST_RINGS][MICRO];
    static struct part parts[MICRO];
    static float logits[LOGITS];
    static double got[LOGITS], want[LOGITS];
    int rings = ranks / ring_size, ring = rank / ring_size;
    int64_t numbers = ra_parameter_numbers(&trial.config), labels = 0;
    float *weights = malloc((size_t)numbers * sizeof *weights),
          *gradients = malloc((size_t)numbers * sizeof(float));
    double *right = calloc((size_t)numbers, sizeof *right), loss = 0, worst;
    uint64_t state = 77;
    for (int64_t e = 0; e < numbers; e++) {
        weights[e] = (float)(0.4 * random_normal(&state));
        gradients[e] = (float)NAN;
    }
    bool well = true;
    for (int r = 0; r < rings; r++)
        for (int k = 0; k < MICRO; k++) {
            struct pack *pack = &packs[r][k];
            make_pack(&trial, trial.whole && k == 0, &state, pack);
            for (int64_t d = 0; d < pack->count && well; d++)
                well = judge_document(&trial, weights, pack, d, &loss, right, &labels);
        }
    loss /= (double)labels;
    for (int64_t e = 0; e < numbers; e++)
        right[e] /= (double)labels;

    char error[RA_ERROR_SIZE];
    struct ra_model *model = NULL;
    struct ra_model_loss computed = {0};
    /* As a newer header might have them: each is longer than the library knows. */
    struct {
        struct ra_model_batch batch;
        int64_t later[2];
    } batches[MICRO] = {0};
    well = HOLDS(ra_model_create(&model, &trial.config, &trial.run, MPI_COMM_WORLD, error) == RA_OK,
                 "%s: %s", trial.name, error) &&
           well;
    for (int k = 0; k < MICRO && well; k++) {
        well = take_part(&trial, model, &packs[ring][k], trial.whole && k == 0, &parts[k]);
        batches[k].batch = parts[k].batch;
        batches[k].batch.size = sizeof batches[k];
    }
    well = well && HOLDS(ra_model_step(model, weights, MICRO, &batches[0].batch, gradients,
                                       &computed) == RA_OK,
                         "%s: %s", trial.name, ra_model_error(model));
    if (well) {
        EXPECT(computed.labels == labels && fabs(computed.mean - loss) <= 1e-5 * fabs(loss),
               "%s: loss %.9g of %d labels, not %.9g of %d", trial.name, computed.mean,
               (int)computed.labels, loss, (int)labels);
        for (int p = 0; p < ra_parameter_count(&trial.config); p++) {
            struct ra_parameter parameter = ra_parameter(&trial.config, p);
            double *these = malloc((size_t)parameter.count * sizeof *these);
            for (int64_t e = 0; e < parameter.count; e++)
                these[e] = (double)gradients[parameter.first + e];
            EXPECT(near(parameter.count, these, right + parameter.first, &worst),
                   "%s: gradient of %s errs by %g of its largest number", trial.name,
                   parameter.name, worst);
            free(these);
        }
    }

    /* Logits: the last micro-batch first, so that rows and angles must change back. */
    for (int k = MICRO - 1; k >= 0 && well; k--) {
        if (!HOLDS(ra_model_forward(model, weights, &batches[k].batch) == RA_OK, "%s: %s",
                   trial.name, ra_model_error(model)))
            break;
        int64_t n = ra_model_rows(model), rows = trial.run.batch * n;
        for (int64_t a = 0; a < rows; a++) {
            well = HOLDS(ra_model_logits(model, weights, a, 1, logits) == RA_OK, "%s: %s",
                         trial.name, ra_model_error(model));
            int64_t place = a / n * trial.run.length + parts[k].places[a % n];
            for (int c = 0; c < VOCABULARY; c++) {
                got[a * VOCABULARY + c] = (double)logits[c];
                want[a * VOCABULARY + c] = (double)packs[ring][k].logits[place * VOCABULARY + c];
            }
        }
        EXPECT(near(rows * VOCABULARY, got, want, &worst), "%s: logits err by %g of the largest",
               trial.name, worst);
    }
    ra_model_destroy(model);
    free(weights);
    free(gradients);
    free(right);
}

/* Every layout and both deals. */
static void solve_layouts(struct trial trial)
{
    static const struct {
        enum ra_layout_kind kind;
        int64_t bucket;
        enum ra_deal deal;
    } layouts[] = {{RA_CONTIGUOUS, 0, RA_DEAL_LAYOUT},
                   {RA_STRIPED, 0, RA_DEAL_LAYOUT},
                   {RA_STRIPED, 3, RA_DEAL_LAYOUT},
                   {RA_ZIGZAG, 0, RA_DEAL_LAYOUT},
                   {RA_CONTIGUOUS, 0, RA_DEAL_DOCUMENTS}};
    for (int i = 0; i < 5; i++) {
        trial.run.layout = layouts[i].kind;
        trial.run.bucket = layouts[i].bucket;
        trial.deal = layouts[i].deal;
        trial.run.length = trial.run.max_rows = layouts[i].deal == RA_DEAL_LAYOUT ? SHORT : LONG;
        solve(trial);
    }
}

TEST(causal)
{
    solve_layouts(usual("causal"));
}

TEST(all_see_all)
{
    struct trial trial = usual("all see all");
    trial.config.causal = false;
    solve_layouts(trial);
}

/* Layers that see 3 tokens back, all, and 5: one deal for all of them. */
TEST(windows)
{
    struct trial trial = usual("windows");
    trial.config.lookback[0] = 3;
    trial.config.lookback[2] = 5;
    solve_layouts(trial);
    trial.config.lookback[1] = 0;
    solve_layouts(trial);
}

TEST(recompute)
{
    struct trial trial = usual("recompute");
    trial.run.recompute = true;
    trial.config.lookback[0] = 4;
    solve_layouts(trial);
}

TEST(gather)
{
    struct trial trial = usual("gather");
    trial.run.gather = true;
    trial.config.lookback[2] = 6;
    solve_layouts(trial);
}

TEST(mask)
{
    struct trial trial = usual("mask");
    trial.run.has_mask = true;
    trial.run.batch = 1;
    solve_layouts(trial);
}

/* A batch without slices beside one that has some. */
TEST(whole)
{
    struct trial trial = usual("whole");
    trial.whole = true;
    trial.config.lookback[1] = 7;
    solve_layouts(trial);
}

TEST(angles_in_sequence)
{
    struct trial trial = usual("angles in sequence");
    trial.in_sequence = true;
    trial.run.threads = 2;
    solve_layouts(trial);
}

/* A table of positions, as long as the longest document; and one that is too short. */
TEST(learned)
{
    struct trial trial = usual("learned");
    trial.config.position = RA_POSITIONS_LEARNED;
    trial.config.longest = LONG;
    trial.config.position_scale = 0.7;
    solve_layouts(trial);

    char error[RA_ERROR_SIZE];
    static float weights[1 << 16];
    static int32_t tokens[TOKENS];
    struct ra_model *model;
    trial.config.longest = 5;
    if (!HOLDS(ra_model_create(&model, &trial.config, &trial.run, MPI_COMM_WORLD, error) == RA_OK,
               "%s", error))
        return;
    struct ra_model_batch batch = {.size = sizeof batch, .tokens = tokens};
    EXPECT(ra_model_forward(model, weights, &batch) == RA_INVALID &&
               strstr(ra_model_error(model), ": the model's table has 0 to 4"),
           "%s", ra_model_error(model));
    ra_model_destroy(model);
}

TEST(refusals)
{
    struct trial trial = usual("refusals");
    struct ra_slice list[2] = {{0, 30, 0, 30, -RA_BAND_FAR, RA_BAND_FAR},
                               {29, SHORT, 29, SHORT, -RA_BAND_FAR, RA_BAND_FAR}};
    char error[RA_ERROR_SIZE];
    static float weights[1 << 16];
    struct ra_model *none;
    struct ra_model_run run = {.batch = 1, .length = SHORT};
    EXPECT(ra_model_create(&none, &trial.config, &run, MPI_COMM_WORLD, error) == RA_INVALID &&
               strstr(error, "run.size = 0: begin with RA_MODEL_RUN_INIT") && !none,
           "%s", error);
    run = trial.run;
    run.shard_optimizer = true;
    EXPECT(ra_model_create(&none, &trial.config, &run, MPI_COMM_WORLD, error) == RA_INVALID &&
               strstr(error, "shard_optimizer is true: only a device") && !none,
           "%s", error);
    const struct ra_model_run wrong[] = {{.size = sizeof run, .length = 8, .threads = -1},
                                         {.size = sizeof run, .length = 8, .max_slices = -1}};
    for (int i = 0; i < 2; i++)
        EXPECT(ra_model_create(&none, &trial.config, &wrong[i], MPI_COMM_WORLD, error) ==
                       RA_INVALID &&
                   strstr(error, "run.threads = "),
               "%s", error);
    for (int64_t most = 0; most < 3; most++) {
        struct ra_model *model;
        trial.run.max_slices = most;
        if (!HOLDS(ra_model_create(&model, &trial.config, &trial.run, MPI_COMM_WORLD, error) ==
                       RA_OK,
                   "%s", error))
            return;
        int64_t rows = ra_model_rows(model);
        struct ra_model_batch batch = {.size = sizeof batch, .slices = list, .slice_count = 2};
        struct ra_model_batch sizeless = {.tokens = NULL};
        EXPECT(ra_model_forward(model, weights, &sizeless) == RA_INVALID &&
                   strstr(ra_model_error(model), "batch.size = 0: begin with RA_MODEL_BATCH_INIT"),
               "%s", ra_model_error(model));
        struct ra_model_batch dealt = {.size = sizeof dealt, .deal = (enum ra_deal)9};
        EXPECT(ra_model_set_slices(model, &dealt) == RA_INVALID &&
                   strstr(ra_model_error(model), "deal = 9: give RA_DEAL_LAYOUT or"),
               "%s", ra_model_error(model));
        char due[100];
        snprintf(due, sizeof due, "slice_count = 2: give 0 to %d, which is run.max_slices",
                 (int)most);
        if (most == 2)
            snprintf(due, sizeof due, "layer 0: slices[0] and slices[1] overlap");
        EXPECT(ra_model_set_slices(model, &batch) == RA_INVALID &&
                   strncmp(ra_model_error(model), due, strlen(due)) == 0 &&
                   ra_model_rows(model) == rows,
               "%s, not %s", ra_model_error(model), due);
        EXPECT(ra_model_forward(model, weights, &batch) == RA_INVALID, "forward takes them");
        ra_model_destroy(model);
    }
}

int main(int argc, char **argv)
{
    verdict_begin_ranks(argc, argv, patience, &rank, &ranks, &ring_size);
    if (ranks / ring_size > MOST_RINGS)
        MPI_Abort(MPI_COMM_WORLD, 2);
    verdict_run_noted();
    int code = verdict_end();
    MPI_Finalize();
    return code;
}
