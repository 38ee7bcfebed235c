/* 03_ring: chapter 03 as a toy: each rank has one query and two keys, of one number each (D = 1,
 * scale = 1). Keys and values go round the ring; what a row has seen so far stays. They go round
 * once more with their gradients. On four ranks the eight keys are those of 02_fold.c, and rank 0
 * has its query.
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>

enum { ROWS = 2 };
static int r, P;                  /* this rank, of so many */
static double q, o, lse, dq;      /* what stays: its query */
static double k[ROWS], v[ROWS];   /* what travels: the keys that are here */
static double dk[ROWS], dv[ROWS]; /* and, with them, their gradients */

/* Sends these numbers to the rank on the right, and puts those of the rank on the left in their
 * place. */
static void pass(double numbers[ROWS])
{
    MPI_Sendrecv_replace(numbers, ROWS, MPI_DOUBLE, (r + 1) % P, 0, (r + P - 1) % P, 0,
                         MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void forward(void)
{
    double mu = -INFINITY, l = 0, u = 0;
    for (int t = 0; t < P; t++) {
        for (int b = 0; b < ROWS; b++) {
            double s = q * k[b], old_mu = mu;
            mu = fmax(mu, s);
            l = l * exp(old_mu - mu) + exp(s - mu);
            u = u * exp(old_mu - mu) + exp(s - mu) * v[b];
        }
        pass(k);
        pass(v);
    }
    o = u / l;
    lse = mu + log(l);
}

/* The loss is the sum of all o: dO = 1, so dp is v, and delta is o. */
static void backward(void)
{
    for (int t = 0; t < P; t++) {
        for (int b = 0; b < ROWS; b++) {
            double p = exp(q * k[b] - lse), ds = p * (v[b] - o);
            dq += ds * k[b];
            dk[b] += ds * q;
            dv[b] += p;
        }
        pass(k);
        pass(v);
        pass(dk);
        pass(dv);
    }
}

int main(int argc, char **argv)
{
    static const double all_k[] = {1, 3, 2, 5, 4, 5.5, 0, 2}, all_v[] = {1, 2, 4, 3, 2, 5, 1, 4};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &r);
    MPI_Comm_size(MPI_COMM_WORLD, &P);

    /* This rank's own rows; a fifth rank has the keys of the first once more. */
    q = 1 - 0.5 * r;
    for (int b = 0; b < ROWS; b++) {
        k[b] = all_k[r % 4 * ROWS + b];
        v[b] = all_v[r % 4 * ROWS + b];
    }
    forward();
    backward();
    printf("rank %d: q %4.1f  o %.4f  lse %.4f  dq %7.4f  dk %7.4f %7.4f  dv %.4f %.4f\n", r, q, o,
           lse, dq, dk[0], dk[1], dv[0], dv[1]);
    MPI_Finalize();
    return 0;
}
