/* 02_fold: chapter 02 as a toy: one query row whose q, keys and values have one number each (D = 1,
 * scale = 1), folded two keys at a time; then its gradients, from weights that are computed again.
 */
#include <math.h>
#include <stdio.h>

enum { M = 8, BLOCK = 2 };

static const double k[M] = {1, 3, 2, 5, 4, 5.5, 0, 2}, v[M] = {1, 2, 4, 3, 2, 5, 1, 4};
static const double q = 1, dO = 1;
static double o, lse;

static void forward(void)
{
    double mu = -INFINITY, l = 0, u = 0;
    for (int j = 0; j < M; j += BLOCK) {
        double s[BLOCK], old_mu = mu;
        for (int b = 0; b < BLOCK; b++) {
            s[b] = q * k[j + b];
            mu = fmax(mu, s[b]);
        }
        double rho = exp(old_mu - mu);
        l = rho * l;
        u = rho * u;
        for (int b = 0; b < BLOCK; b++) {
            l += exp(s[b] - mu);
            u += exp(s[b] - mu) * v[j + b];
        }
        printf("keys %d, %d   mu %3.1f  rho %.4f  l %.4f  u %.4f  u/l %.4f\n", j, j + 1, mu, rho, l,
               u, u / l);
    }
    o = u / l;
    lse = mu + log(l);
}

static void backward(void)
{
    double delta = dO * o, dq = 0, dk[M] = {0}, dv[M] = {0};
    for (int j = 0; j < M; j++) {
        double s = q * k[j], p = exp(s - lse), dp = dO * v[j], ds = p * (dp - delta);
        dv[j] += p * dO;
        dq += ds * k[j];
        dk[j] += ds * q;
        printf("key %d   p %.4f  ds %7.4f  dv %.4f  dk %7.4f\n", j, p, ds, dv[j], dk[j]);
    }
    printf("dq %.4f\n", dq);
}

int main(void)
{
    forward();
    printf("o %.4f  lse %.4f\n", o, lse);
    backward();
    return 0;
}
