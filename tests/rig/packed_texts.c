/* packed_texts: loss and gradients of three texts that are packed into one sequence, and of the
 * same texts as rows of a batch that padding fills up. For the exercise of page 10, Transformer.
 */
#include <math.h>
#include <ring_attention_model.h>
#include <stdio.h>
#include <stdlib.h>

enum { TEXTS = 3, LONGEST = 30, N = 57 };

static const int64_t bounds[TEXTS + 1] = {0, 11, 41, N}; /* where each text begins, and the end */

static void check(enum ra_status status, const char *error)
{
    if (status == RA_OK)
        return;
    fprintf(stderr, "%s\n", error);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Token i of a text. */
static int32_t token_of(int64_t text, int64_t i)
{
    return (int32_t)((i * i + text * 3 + i) % 10);
}

/* Rows of this rank of the packed texts: tokens, labels and places, each (n). What places has to
 * begin with are positions in the sequence. */
static void pack(int64_t n, int64_t *places, int32_t *tokens, int32_t *labels)
{
    for (int64_t a = 0; a < n; a++) {
        int64_t text = 0, p = places[a];
        while (p >= bounds[text + 1])
            text++;
        int64_t i = p - bounds[text];
        places[a] = i;
        tokens[a] = token_of(text, i);
        labels[a] = p + 1 < bounds[text + 1] ? token_of(text, i + 1) : -1;
    }
}

/* Makes a model for rows of this length; its positions are rows of a table, as in MGQA. */
static struct ra_model *make(const struct ra_model_config *config, int64_t batch, int64_t length)
{
    char error[RA_ERROR_SIZE];
    struct ra_model *model;
    struct ra_model_run run = RA_MODEL_RUN_INIT;
    run.batch = batch;
    run.length = length;
    run.layout = RA_STRIPED;
    run.max_slices = TEXTS;
    run.timeout = 60;
    check(ra_model_create(&model, config, &run, MPI_COMM_WORLD, error), error);
    return model;
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    struct ra_model_config config;
    ra_model_config_init(&config, sizeof config);
    config.vocabulary = 10, config.dim = 32, config.depth = 2, config.hidden = 64;
    config.heads = config.key_heads = 4, config.head_dim = 8;
    config.position = RA_POSITIONS_LEARNED, config.longest = LONGEST;
    int64_t count = ra_parameter_numbers(&config);
    float *weights = calloc(3 * count, sizeof *weights), *due = weights + count;
    float *gradients = due + count;
    ra_parameters_begin(&config, 1, weights);

    /* One text a row. */
    struct ra_model *padded = make(&config, TEXTS, LONGEST);
    int64_t n = ra_model_rows(padded), *places = calloc(N, sizeof *places);
    int32_t *tokens = calloc(2 * TEXTS * LONGEST, sizeof *tokens);
    int32_t *labels = tokens + (size_t)TEXTS * LONGEST;
    ra_model_positions(padded, places);
    for (int64_t a = 0; a < TEXTS * n; a++) {
        int64_t text = a / n, i = places[a % n], length = bounds[text + 1] - bounds[text];
        tokens[a] = i < length ? token_of(text, i) : 0;
        labels[a] = i + 1 < length ? token_of(text, i + 1) : -1;
    }
    struct ra_model_batch batch = RA_MODEL_BATCH_INIT;
    batch.tokens = tokens;
    batch.labels = labels;
    struct ra_model_loss want, loss;
    check(ra_model_step(padded, weights, 1, &batch, due, &want), ra_model_error(padded));

    /* All texts in one. */
    struct ra_model *packed = make(&config, 1, N);
    struct ra_slice slices[TEXTS];
    batch.slices = slices;
    batch.slice_count = ra_slices_documents(bounds, TEXTS, RA_NO_LOOKBACK, 0, slices);
    check(ra_model_set_slices(packed, &batch), ra_model_error(packed));
    ra_model_positions(packed, places);
    pack(ra_model_rows(packed), places, tokens, labels);
    batch.positions = places;
    check(ra_model_step(packed, weights, 1, &batch, gradients, &loss), ra_model_error(packed));

    double length = ra_length(1, count, due);
    for (int64_t e = 0; e < count; e++)
        gradients[e] -= due[e];
    double off = ra_length(1, count, gradients) / length;
    bool right = loss.labels == want.labels && fabs(loss.mean - want.mean) < 1e-5 && off < 1e-5;
    if (rank == 0)
        printf("%s loss %.5f of %d labels, gradients off by %.1e: one text a row %.5f of %d\n",
               right ? "right" : " WRONG ", loss.mean, (int)loss.labels, off, want.mean,
               (int)want.labels);
    ra_model_destroy(packed);
    ra_model_destroy(padded);
    free(tokens);
    free(places);
    free(weights);
    MPI_Finalize();
    return right ? 0 : 1;
}
