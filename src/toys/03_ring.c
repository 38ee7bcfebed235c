/* 03_ring: chapter 03 as a toy: each rank has one query and two keys, of one number each (D = 1,
 * scale = 1). Keys and values go round the ring; what a row has seen so far stays. On four ranks
 * the eight keys are those of 02_fold.c, and rank 0 has its query.
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>

enum { ROWS = 2 };

int main(int argc, char **argv)
{
    static const double all_k[] = {1, 3, 2, 5, 4, 5.5, 0, 2}, all_v[] = {1, 2, 4, 3, 2, 5, 1, 4};
    int r, P;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &r);
    MPI_Comm_size(MPI_COMM_WORLD, &P);

    /* This rank's own rows; a fifth rank has the keys of the first once more. */
    double q = 1 - 0.5 * r, kv[2][ROWS];
    for (int b = 0; b < ROWS; b++) {
        kv[0][b] = all_k[r % 4 * ROWS + b];
        kv[1][b] = all_v[r % 4 * ROWS + b];
    }

    double mu = -INFINITY, l = 0, u = 0;
    for (int t = 0; t < P; t++) {
        for (int b = 0; b < ROWS; b++) {
            double s = q * kv[0][b], old_mu = mu;
            mu = fmax(mu, s);
            l = l * exp(old_mu - mu) + exp(s - mu);
            u = u * exp(old_mu - mu) + exp(s - mu) * kv[1][b];
        }
        MPI_Sendrecv_replace(kv, 2 * ROWS, MPI_DOUBLE, (r + 1) % P, 0, (r + P - 1) % P, 0,
                             MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    printf("rank %d: q %4.1f  o %.4f  lse %.4f\n", r, q, u / l, mu + log(l));
    MPI_Finalize();
    return 0;
}
