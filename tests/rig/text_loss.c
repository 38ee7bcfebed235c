/* text_loss: the loss of a text, by a step of a model and by a decoder. For the exercise of page
 * 10b. Usage: text-loss FOLDER
 */
#include <math.h>
#include <ring_attention_model.h>
#include <stdio.h>
#include <stdlib.h>

static const int32_t text[] = {1, 2, 3, 18, 61, 7, 46, 48, 61, 7, 46};
enum { N = sizeof text / sizeof *text };

static void check(enum ra_status status, const char *error)
{
    if (status == RA_OK)
        return;
    fprintf(stderr, "%s\n", error);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* -log p of a token, where p is the softmax of V logits. */
static double surprise(int64_t V, const float *logits, int32_t token)
{
    double highest = logits[0], sum = 0;
    for (int64_t t = 1; t < V; t++)
        highest = fmax(highest, logits[t]);
    for (int64_t t = 0; t < V; t++)
        sum += exp(logits[t] - highest);
    return highest + log(sum) - logits[token];
}

/* The mean surprise of all tokens of the text but the first. logits has room for V. */
static double loss_of(struct ra_decoder *decoder, const float *weights, int64_t V, float *logits)
{
    double sum = 0;
    check(ra_decoder_prompt(decoder, weights, 1, text, logits), ra_decoder_error(decoder));
    for (int i = 1; i < N; i++) {
        sum += surprise(V, logits, text[i]);
        check(ra_decoder_add(decoder, weights, 1, &text[i], logits), ra_decoder_error(decoder));
    }
    return sum / (N - 1);
}

/* The same by a step, without gradients. */
static double loss_of_step(const struct ra_model_config *config, struct ra_model_run run,
                           const float *weights)
{
    char error[RA_ERROR_SIZE];
    struct ra_model *model;
    check(ra_model_create(&model, config, &run, MPI_COMM_WORLD, error), error);
    int64_t n = ra_model_rows(model), positions[N];
    int32_t tokens[N], labels[N];
    ra_model_positions(model, positions);
    for (int64_t a = 0; a < n; a++) {
        tokens[a] = text[positions[a]];
        labels[a] = positions[a] + 1 < N ? text[positions[a] + 1] : -1;
    }
    struct ra_model_batch batch = RA_MODEL_BATCH_INIT;
    struct ra_model_loss loss;
    batch.tokens = tokens, batch.labels = labels;
    check(ra_model_step(model, weights, 1, &batch, NULL, &loss), ra_model_error(model));
    ra_model_destroy(model);
    return loss.mean;
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char *folder = argc > 1 ? argv[1] : ".";
    char note[RA_ERROR_SIZE], error[RA_ERROR_SIZE];
    struct ra_model_config config;
    check(ra_folder_config(folder, &config, sizeof config, note, error), error);
    float *weights = malloc(ra_parameter_numbers(&config) * sizeof *weights);
    float *logits = malloc(config.vocabulary * sizeof *logits);
    check(ra_folder_weights(folder, &config, weights, error), error);

    struct ra_model_run run = RA_MODEL_RUN_INIT;
    run.batch = 1, run.length = N, run.timeout = 60;
    struct ra_decoder *decoder;
    check(ra_decoder_create(&decoder, &config, &run, 1, MPI_COMM_WORLD, error), error);
    double loss = loss_of(decoder, weights, config.vocabulary, logits);
    double want = loss_of_step(&config, run, weights);
    bool right = fabs(loss - want) < 1e-5;
    if (rank == 0)
        printf("%s loss %.4f by the decoder, %.4f by a step\n", right ? "right" : " WRONG ", loss,
               want);
    ra_decoder_destroy(decoder);
    free(logits);
    free(weights);
    MPI_Finalize();
    return right ? 0 : 1;
}
