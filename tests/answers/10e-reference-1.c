int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    char note[RA_ERROR_SIZE], error[RA_ERROR_SIZE];

    /* The folder holds a config, which says what the model is, and the weights. Every rank reads
     * all of them, into one array. (The note says which defaults of another package were used.) */
    const char *folder = argc > 1 ? argv[1] : ".";
    struct ra_model_config config;
    check(ra_folder_config(folder, &config, sizeof config, note, error), error);
    float *weights = malloc(ra_parameter_numbers(&config) * sizeof *weights);
    check(ra_folder_weights(folder, &config, weights, error), error);

    /* The model runs on all ranks. It tells each of them which of the N positions are its own. */
    struct ra_model_run run = RA_MODEL_RUN_INIT;
    run.batch = 1, run.length = N, run.layout = RA_ZIGZAG, run.timeout = 60;
    struct ra_model *model;
    check(ra_model_create(&model, &config, &run, MPI_COMM_WORLD, error), error);
    int64_t n = ra_model_rows(model), positions[N];
    int32_t tokens[N], labels[N];
    ra_model_positions(model, positions);
    for (int64_t a = 0; a < n; a++) {
        tokens[a] = text[positions[a]];
        labels[a] = positions[a] + 1 < N ? text[positions[a] + 1] : -1;
    }

    /* One micro-batch. All ranks get the same loss and the same gradients. */
    struct ra_model_batch batch = RA_MODEL_BATCH_INIT;
    batch.tokens = tokens, batch.labels = labels;
    struct ra_model_loss loss;
    int64_t count = ra_parameter_numbers(&config);
    float *gradients = malloc(count * sizeof *gradients);
    check(ra_model_step(model, weights, 1, &batch, gradients, &loss), ra_model_error(model));
    if (rank == 0)
        printf("loss %.4f of %d labels\ngradient %.4f\n", loss.mean, (int)loss.labels,
               ra_length(1, count, gradients));
    free(gradients);
    ra_model_destroy(model);
    free(weights);
    MPI_Finalize();
}
