/* check_model_lost: models and decoders of which one rank comes too late, on the ranks of a
 * communicator.
 *
 *   mpirun -n RANKS build/check-model-lost      (3 ranks or more)
 *
 * The others give up, and destroy what they have of it. Then the late rank comes, and MPI goes on
 * with what they had begun: on communicators, and in memory, that must still be there.
 */
#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "ra_decoder.h"
#include "ra_model.h"
#include "verdict.h"

/* The late rank comes when the others have given up, but before they would have given up twice. */
static const double timeout = 0.4, delay = 0.7;

static int rank, ranks;
static int duplicates,
    late_at; /* how often this rank has duplicated a communicator; at which it is late */

int MPI_Comm_idup(MPI_Comm old, MPI_Comm *comm, MPI_Request *request)
{
    if (++duplicates == late_at && rank == ranks - 1)
        verdict_pause(delay);
    return PMPI_Comm_idup(old, comm, request);
}

/* All ranks make a model, or a decoder; the last is late at this duplication of a communicator, or
 * (0) with all of it. Rank 0 does not look after MPI for a while when it has given up, so that all
 * is still under way. */
static void lose(int at, bool decodes)
{
    struct ra_model_config config;
    struct ra_model_run run = {.batch = 1, .length = 64, .threads = 1, .timeout = timeout};
    struct ra_model *model = NULL;
    struct ra_decoder *decoder = NULL;
    char error[RA_ERROR_SIZE] = "";
    MPI_Comm comm;
    PMPI_Comm_dup(MPI_COMM_WORLD, &comm);
    ra_model_config_init(&config);
    config.dim = config.hidden = 16;
    config.heads = config.key_heads = 1;
    config.head_dim = 16;
    duplicates = 0;
    late_at = at;
    PMPI_Barrier(MPI_COMM_WORLD);
    if (late_at == 0 && rank == ranks - 1)
        verdict_pause(delay);
    enum ra_status status = decodes ? ra_decoder_create(&decoder, &config, &run, 4, comm, error)
                                    : ra_model_create(&model, &config, &run, comm, error);
    (void)HOLDS(status == RA_LOST && !model && !decoder, "%s: %s", ra_status_text(status), error);
    if (rank == 0)
        verdict_pause(delay);

    /* Meanwhile the numbers of communicators that were freed would be given to others. */
    for (int i = 0; i < 20; i++) {
        MPI_Comm other;
        PMPI_Comm_dup(MPI_COMM_WORLD, &other);
        PMPI_Barrier(other);
        PMPI_Comm_free(&other);
    }
}

static void test_begin(void)
{
    lose(0, false);
}

/* The first duplicate is that by which a model finds out who shares its processors. */
static void test_first(void)
{
    lose(1, false);
}

/* The second is that of a layer's plan. */
static void test_layer(void)
{
    lose(2, false);
}

static void test_decoder(void)
{
    lose(2, true);
}

/* Rings of one rank each, which only add up together: the last does not come, and the others say
 * so. */
static void test_sum(void)
{
    struct ra_model_config config;
    struct ra_model_run run = {.batch = 1, .length = 4, .ring_size = 1, .threads = 1, .timeout = 2};
    struct ra_model *model;
    char error[RA_ERROR_SIZE] = "", due[100];
    static float weights[1 << 16]; /* they stay */
    ra_model_config_init(&config);
    config.dim = config.hidden = config.vocabulary = config.head_dim = 16;
    config.depth = config.heads = config.key_heads = 1;
    if (!HOLDS(ra_parameter_numbers(&config) <= 1 << 16 &&
                   ra_model_create(&model, &config, &run, MPI_COMM_WORLD, error) == RA_OK,
               "%s", error))
        return;
    snprintf(due, sizeof due, "waited 2 s for weights of all ranks: rank %d has not come",
             ranks - 1);
    PMPI_Barrier(MPI_COMM_WORLD);
    if (rank < ranks - 1) {
        enum ra_status status = ra_model_gather(model, weights);
        const char *said = ra_model_error(model);
        (void)HOLDS(status == RA_LOST && strstr(said, due), "%s: %s", ra_status_text(status), said);
    }
    PMPI_Barrier(MPI_COMM_WORLD);
    if (rank == ranks - 1)
        (void)HOLDS(ra_model_gather(model, weights) == RA_OK, "%s", ra_model_error(model));
}

/* A token that is none is said to be where it is in the whole batch, whichever rank has it. */
static void test_places(void)
{
    enum { BATCH = 2, ROWS = 3, ODD = ROWS + 1 }; /* of the second row the second token */
    struct ra_model_config config;
    struct ra_model_run run = {
        .batch = BATCH, .length = ROWS * ranks, .layout = RA_STRIPED, .threads = 1, .timeout = 30};
    struct ra_model *model;
    char error[RA_ERROR_SIZE] = "", due[100];
    static float weights[1 << 16];
    int32_t tokens[BATCH * ROWS] = {0}, labels[BATCH * ROWS] = {0};
    struct ra_model_loss loss;
    ra_model_config_init(&config);
    config.dim = config.hidden = config.vocabulary = config.head_dim = 16;
    config.depth = config.heads = config.key_heads = 1;
    if (!HOLDS(ra_model_create(&model, &config, &run, MPI_COMM_WORLD, error) == RA_OK, "%s", error))
        return;
    tokens[ODD] = labels[ODD] = 16;
    struct ra_model_batch batch = {.tokens = tokens, .labels = labels};
    snprintf(due, sizeof due, "tokens: row 1, position %d is 16: give 0 to 15", ranks + rank);
    (void)HOLDS(ra_model_forward(model, weights, &batch) == RA_INVALID &&
                    strcmp(ra_model_error(model), due) == 0,
                "%s", ra_model_error(model));
    snprintf(due, sizeof due, "labels: row 1, position %d is 16: give at most 15", ranks + rank);
    (void)HOLDS(ra_model_step(model, weights, 1, &batch, NULL, &loss) == RA_INVALID &&
                    strcmp(ra_model_error(model), due) == 0,
                "%s", ra_model_error(model));
    ra_model_destroy(model);
}

int main(int argc, char **argv)
{
    static const struct verdict_test tests[] = {{"begin", test_begin}, {"first", test_first},
                                                {"layer", test_layer}, {"decoder", test_decoder},
                                                {"sum", test_sum},     {"places", test_places}};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    verdict_start(rank, 60, "rank %d of %d: ", rank, ranks);
    verdict_run(tests, sizeof tests / sizeof *tests);
    int code = verdict_end();
    MPI_Finalize();
    return code;
}
