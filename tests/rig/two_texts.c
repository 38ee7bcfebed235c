/* two_texts: loss and gradients of two texts, by a model with room for both at once, and by one
 * with room for a single text. For the exercise of page 10b.
 */
#include <math.h>
#include <ring_attention_model.h>
#include <stdio.h>
#include <stdlib.h>

enum { N = 48, SHORT = 20 }; /* tokens of text 0, and of text 1, which padding fills up */

static void check(enum ra_status status, const char *error)
{
    if (status == RA_OK)
        return;
    fprintf(stderr, "%s\n", error);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Makes a model that computes this many texts at once. */
static struct ra_model *make(const struct ra_model_config *config, int64_t texts)
{
    char error[RA_ERROR_SIZE];
    struct ra_model *model;
    struct ra_model_run run = RA_MODEL_RUN_INIT;
    run.batch = texts;
    run.length = N;
    run.layout = RA_STRIPED;
    run.timeout = 60;
    check(ra_model_create(&model, config, &run, MPI_COMM_WORLD, error), error);
    return model;
}

/* Loss and gradients of both texts, by a model with room for one. Tokens and labels: (2, n). */
static void step(struct ra_model *model, const float *weights, const int32_t *tokens,
                 const int32_t *labels, float *gradients, struct ra_model_loss *loss)
{
    int64_t n = ra_model_rows(model);
    struct ra_model_batch batches[2] = {RA_MODEL_BATCH_INIT, RA_MODEL_BATCH_INIT};
    for (int t = 0; t < 2; t++) {
        batches[t].tokens = tokens + t * n;
        batches[t].labels = labels + t * n;
    }
    check(ra_model_step(model, weights, 2, batches, gradients, loss), ra_model_error(model));
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
    struct ra_model *both = make(&config, 2), *single = make(&config, 1);
    int64_t count = ra_parameter_numbers(&config), n = ra_model_rows(both);
    float *weights = calloc(3 * count, sizeof *weights), *due = weights + count;
    float *gradients = due + count;
    ra_parameters_begin(&config, 1, weights);

    int64_t *positions = calloc(n + 1, sizeof *positions);
    int32_t *tokens = calloc(4 * n + 1, sizeof *tokens), *labels = tokens + 2 * n;
    ra_model_positions(both, positions);
    for (int64_t a = 0; a < 2 * n; a++) {
        int64_t i = positions[a % n], text = a / n;
        tokens[a] = (int32_t)(text == 0 ? i % 7 : i * i % 10);
        labels[a] = (int32_t)(text == 0 ? (i + 1) % 7 : (i + 1) * (i + 1) % 10);
        if (i + 1 >= (text == 0 ? N : SHORT))
            labels[a] = -1;
    }

    struct ra_model_batch batch = RA_MODEL_BATCH_INIT;
    batch.tokens = tokens;
    batch.labels = labels;
    struct ra_model_loss want, loss = {0, 0};
    check(ra_model_step(both, weights, 1, &batch, due, &want), ra_model_error(both));
    step(single, weights, tokens, labels, gradients, &loss);
    double length = ra_length(1, count, due);
    for (int64_t e = 0; e < count; e++)
        gradients[e] -= due[e];
    double off = ra_length(1, count, gradients) / length;
    bool right = loss.labels == want.labels && fabs(loss.mean - want.mean) < 1e-5 && off < 1e-5;
    if (rank == 0)
        printf("%s loss %.5f of %d labels, gradients off by %.1e: both at once %.5f of %d\n",
               right ? "right" : " WRONG ", loss.mean, (int)loss.labels, off, want.mean,
               (int)want.labels);
    ra_model_destroy(single);
    ra_model_destroy(both);
    free(tokens);
    free(positions);
    free(weights);
    MPI_Finalize();
    return right ? 0 : 1;
}
