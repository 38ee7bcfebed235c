/* ranks: a ring whose rank 2 has other ideas than the rest; rank 0 compares o with what it computes
 * alone. A small program for page 08-manners: ranks [scale | digit | causal | heads | absent].
 */
#include <math.h>
#include <ring_attention_mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N = 1024, D = 16, ROW = D * sizeof(float) };
static float whole[3][N * D], part[3][N * D], part_o[N * D], o[N * D], alone[N * D], lse[N];

static void check(enum ra_status status, const char *text)
{
    if (status == RA_OK)
        return;
    fprintf(stderr, "%s: %s\n", ra_status_text(status), text);
    sleep(3); /* mpirun ends all ranks with the first: let the others speak */
    exit(1);
}

static void forward(struct ra_plan *plan, float x[3][N * D], float *o)
{
    int64_t n = ra_plan_rows(plan, RA_QUERY_SIDE);
    struct ra_arrays arrays = RA_ARRAYS_INIT;
    arrays.q = ra_tensor_bnhd(x[0], RA_FLOAT32, n, 1, D);
    arrays.k = ra_tensor_bnhd(x[1], RA_FLOAT32, n, 1, D);
    arrays.v = ra_tensor_bnhd(x[2], RA_FLOAT32, n, 1, D);
    arrays.o = ra_tensor_bnhd(o, RA_FLOAT32, n, 1, D);
    arrays.lse = ra_tensor_bhn(lse, n, 1);
    check(ra_forward(plan, &arrays), ra_plan_error(plan));
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, wrong = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    struct ra_config config = RA_CONFIG_INIT;
    config.queries = N, config.dim = D, config.timeout = argc > 1 ? 2 : 60;
    const struct ra_config right = config;

    /* Rank 2 has other ideas, or does not come. */
    const char *idea = rank == 2 && argc > 1 ? argv[1] : "";
    if (strcmp(idea, "scale") == 0)
        config.scale = 1;
    if (strcmp(idea, "digit") == 0)
        config.scale = 0.25 + 0x1p-54;
    if (strcmp(idea, "causal") == 0)
        config.causal = true;
    if (strcmp(idea, "heads") == 0)
        config.heads = 0;
    if (strcmp(idea, "absent") == 0)
        pause();

    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    struct ra_link link;
    check(ra_mpi_link(&link, MPI_COMM_WORLD, 0, config.timeout, error), error);
    check(ra_plan_create(&plan, &config, &link, error), error);
    for (int i = 0; i < 3; i++) {
        for (int e = 0; e < N * D; e++)
            whole[i][e] = (float)((i * N * D + e) * 7919 % 1009) / 500 - 1;
        check(ra_mpi_scatter(plan, RA_QUERY_SIDE, 1, ROW, 0, whole[i], part[i]),
              ra_plan_error(plan));
    }
    forward(plan, part, part_o);
    check(ra_mpi_gather(plan, RA_QUERY_SIDE, 1, ROW, 0, part_o, o), ra_plan_error(plan));
    ra_plan_destroy(plan);
    if (rank == 0) {
        check(ra_plan_create(&plan, &right, NULL, error), error);
        forward(plan, whole, alone);
        ra_plan_destroy(plan);
        for (int e = 0; e < N * D; e++)
            wrong += !(fabsf(o[e] - alone[e]) <= 1e-5f);
        printf("%d of %d numbers are wrong\n", wrong, N * D);
    }
    MPI_Finalize();
}
