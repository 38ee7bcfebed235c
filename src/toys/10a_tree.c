/* 10a_tree: page 10a as a toy: the query and the eight keys of 02_fold.c, of one number each (D =
 * 1, scale = 1). Each rank folds every P-th key, then carries are combined as a tree.
 *
 * Usage: mpirun -n P 10a-tree [KEYS]       with only the first KEYS of the eight keys
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

struct carry {
    double mu, l, u;
};

/* The carry of the keys of both. */
static struct carry combine(struct carry s, struct carry t)
{
    double mu = fmax(s.mu, t.mu), a = exp(s.mu - mu), b = exp(t.mu - mu);
    return (struct carry){mu, a * s.l + b * t.l, a * s.u + b * t.u};
}

int main(int argc, char **argv)
{
    static const double k[] = {1, 3, 2, 5, 4, 5.5, 0, 2}, v[] = {1, 2, 4, 3, 2, 5, 1, 4}, q = 1;
    int r, P, keys = argc > 1 ? atoi(argv[1]) : 8;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &r);
    MPI_Comm_size(MPI_COMM_WORLD, &P);

    /* Folding a key is combining, too: a key alone is a carry with l = 1 and u = v. */
    struct carry own = {-INFINITY, 0, 0};
    for (int j = r; j < keys; j += P)
        own = combine(own, (struct carry){q * k[j], 1, v[j]});
    printf("rank %d, alone:      mu %3.1f  l %.4f  u %.4f\n", r, own.mu, own.l, own.u);

    for (int distance = 1; distance < P; distance *= 2) {
        struct carry other = {-INFINITY, 0, 0};
        int partner = r ^ distance;
        if (partner < P)
            MPI_Sendrecv(&own, 3, MPI_DOUBLE, partner, 0, &other, 3, MPI_DOUBLE, partner, 0,
                         MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        own = combine(own, other);
        printf("rank %d, distance %d: mu %3.1f  l %.4f  u %.4f\n", r, distance, own.mu, own.l,
               own.u);
    }
    printf("rank %d, result:     o %.16f\n", r, own.u / own.l);
    MPI_Finalize();
    return 0;
}
