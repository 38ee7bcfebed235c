/* 02_tile: chapter 02 as a toy of many rows: a tile of the forward, a tile of the backward, and
 * nothing else. Gradients are compared with the slope of the loss, the sum of dO o.
 */
#include <math.h>
#include <stdio.h>

#ifndef R
#define R 3 /* queries of a tile */
#endif
#ifndef C
#define C 4 /* keys of a tile */
#endif
enum { N = 6, M = 8, D = 2 };

static double q[N][D], k[M][D], v[M][D], dO[N][D]; /* inputs */
static double mu[N], l[N], u[N][D];                /* the carries */
static double o[N][D], lse[N], delta[N];           /* of finished rows */
static double dq[N][D], dk[M][D], dv[M][D];        /* sums of all tiles */

static double dot(const double x[D], const double y[D])
{
    double sum = 0;
    for (int c = 0; c < D; c++)
        sum += x[c] * y[c];
    return sum;
}

/* Folds keys j .. j + C - 1 into the carries of rows i .. i + R - 1. */
static void forward_tile(int i, int j)
{
    for (int a = i; a < i + R; a++) {
        double s[C], old_mu = mu[a];
        for (int b = 0; b < C; b++) {
            s[b] = dot(q[a], k[j + b]);
            mu[a] = fmax(mu[a], s[b]);
        }
        double rho = exp(old_mu - mu[a]);
        l[a] *= rho;
        for (int c = 0; c < D; c++)
            u[a][c] *= rho;
        for (int b = 0; b < C; b++) {
            double p = exp(s[b] - mu[a]);
            l[a] += p;
            for (int c = 0; c < D; c++)
                u[a][c] += p * v[j + b][c];
        }
    }
}

/* Adds what these rows and these keys contribute to each other's gradients. */
static void backward_tile(int i, int j)
{
    for (int a = i; a < i + R; a++)
        for (int b = j; b < j + C; b++) {
            double p = exp(dot(q[a], k[b]) - lse[a]);
            double ds = p * (dot(dO[a], v[b]) - delta[a]);
            for (int c = 0; c < D; c++) {
                dv[b][c] += p * dO[a][c];
                dq[a][c] += ds * k[b][c];
                dk[b][c] += ds * q[a][c];
            }
        }
}

static void attend(void)
{
    for (int i = 0; i < N; i += R) {
        for (int a = i; a < i + R; a++)
            mu[a] = -INFINITY;
        for (int j = 0; j < M; j += C)
            forward_tile(i, j);
        for (int a = i; a < i + R; a++) {
            for (int c = 0; c < D; c++)
                o[a][c] = u[a][c] / l[a];
            lse[a] = mu[a] + log(l[a]);
            delta[a] = dot(dO[a], o[a]);
        }
        for (int j = 0; j < M; j += C)
            backward_tile(i, j);
    }
}

/* The loss by the definition, from all scores. */
static double loss(void)
{
    double all = 0;
    for (int a = 0; a < N; a++) {
        double sum = 0, weighed = 0;
        for (int b = 0; b < M; b++) {
            sum += exp(dot(q[a], k[b]));
            weighed += exp(dot(q[a], k[b])) * dot(dO[a], v[b]);
        }
        all += weighed / sum;
    }
    return all;
}

/* How far the gradients are from the slopes of the loss, at most. */
static double off_by(double *x, const double *dx, int count)
{
    double most = 0, step = 1e-5;
    for (int e = 0; e < count; e++) {
        double kept = x[e], slope;
        x[e] = kept + step;
        slope = loss();
        x[e] = kept - step;
        slope = (slope - loss()) / (2 * step);
        x[e] = kept;
        most = fmax(most, fabs(slope - dx[e]));
    }
    return most;
}

int main(void)
{
    for (int i = 0; i < M; i++)
        for (int c = 0; c < D; c++) {
            k[i][c] = 2 * sin(3 * i + c);
            v[i][c] = cos(5 * i + 2 * c);
            if (i < N) {
                q[i][c] = 2 * cos(2 * i + c);
                dO[i][c] = sin(i + 4 * c);
            }
        }
    attend();
    double sum = 0;
    for (int a = 0; a < N; a++)
        sum += delta[a];
    printf("tiles of %d x %d: the loss is %s\n", R, C,
           fabs(sum - loss()) < 1e-12 ? "right" : "wrong");
    printf("dq %s, dk %s, dv %s\n", off_by(q[0], dq[0], N * D) < 1e-8 ? "right" : "wrong",
           off_by(k[0], dk[0], M * D) < 1e-8 ? "right" : "wrong",
           off_by(v[0], dv[0], M * D) < 1e-8 ? "right" : "wrong");
    return 0;
}
