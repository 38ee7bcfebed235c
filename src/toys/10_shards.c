/* 10_shards: chapter 10 as a toy: a transformer of one layer, in which a token is one number
 * (dim = 1), on a text of eight letters. Its loss and all gradients, first on a rank that has the
 * whole text, then on ranks that have a shard each.
 */
#include <math.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>

/* All weights are one array: three factors, a number for each letter that comes in, and one for
 * each letter that may come next. Their gradients are another, with the loss at its end. */
enum { N = 8, LETTERS = 4, Q = 0, K, V, IN, OUT = IN + LETTERS, LOSS = OUT + LETTERS, NUMBERS };
static const char text[N + 1] = "abacabad";

/* A rank's own rows are first to end - 1. Of k and v it will see all rows. */
struct shard {
    MPI_Comm comm;
    int ranks, first, end;
    double x[N], q[N], k[N], v[N], p[N][N], o[N];
};

/* Where a row is in the text. Rows count rank after rank, and shards are striped. */
static int position(const struct shard *s, int row)
{
    int n = N / s->ranks;
    return row % n * s->ranks + row / n;
}

static void sum_up(const struct shard *s, double *numbers, int count)
{
    MPI_Allreduce(MPI_IN_PLACE, numbers, count, MPI_DOUBLE, MPI_SUM, s->comm);
}

static void attention(struct shard *s)
{
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DOUBLE, s->k, N / s->ranks, MPI_DOUBLE, s->comm);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DOUBLE, s->v, N / s->ranks, MPI_DOUBLE, s->comm);
    for (int i = s->first; i < s->end; i++) {
        double l = 0, u = 0;
        for (int j = 0; j < N; j++) {
            s->p[i][j] = position(s, j) <= position(s, i) ? exp(s->q[i] * s->k[j]) : 0;
            l += s->p[i][j];
            u += s->p[i][j] * s->v[j];
        }
        for (int j = 0; j < N; j++)
            s->p[i][j] /= l;
        s->o[i] = u / l;
    }
}

static void attention_backward(struct shard *s, const double *d_o, double *dq, double *dk,
                               double *dv)
{
    for (int i = s->first; i < s->end; i++)
        for (int j = 0; j < N; j++) {
            double ds = s->p[i][j] * d_o[i] * (s->v[j] - s->o[i]);
            dq[i] += ds * s->k[j];
            dk[j] += ds * s->q[i];
            dv[j] += s->p[i][j] * d_o[i];
        }
    sum_up(s, dk, N);
    sum_up(s, dv, N);
}

/* The loss of one row is added to d. Returns the gradient of mid. */
static double letter_loss(const double *w, double mid, int label, double labels, double *d)
{
    double sum = 0, d_mid = 0;
    for (int c = 0; c < LETTERS; c++)
        sum += exp(mid * w[OUT + c]);
    for (int c = 0; c < LETTERS; c++) {
        double p = exp(mid * w[OUT + c]) / sum, dz = (p - (c == label)) / labels;
        d[LOSS] -= c == label ? log(p) / labels : 0;
        d[OUT + c] += dz * mid;
        d_mid += dz * w[OUT + c];
    }
    return d_mid;
}

/* Forward and backward. What d has afterwards is the same on all ranks of comm. */
static void step(MPI_Comm comm, const double *w, double d[NUMBERS])
{
    double labels = 0, d_mid[N] = {0}, dq[N] = {0}, dk[N] = {0}, dv[N] = {0};
    struct shard s = {.comm = comm};
    MPI_Comm_size(comm, &s.ranks);
    MPI_Comm_rank(comm, &s.first);
    s.first *= N / s.ranks;
    s.end = s.first + N / s.ranks;

    for (int i = s.first; i < s.end; i++) {
        s.x[i] = w[IN + text[position(&s, i)] - 'a'];
        s.q[i] = s.x[i] * w[Q];
        s.k[i] = s.x[i] * w[K];
        s.v[i] = s.x[i] * w[V];
        labels += position(&s, i) + 1 < N;
    }
    sum_up(&s, &labels, 1); /* of all ranks */
    attention(&s);          /* over the keys of all ranks */
    for (int e = 0; e < NUMBERS; e++)
        d[e] = 0;
    for (int i = s.first; i < s.end; i++)
        if (position(&s, i) + 1 < N)
            d_mid[i] = letter_loss(w, s.x[i] + s.o[i], text[position(&s, i) + 1] - 'a', labels, d);
    attention_backward(&s, d_mid, dq, dk, dv); /* for the keys of all ranks */
    for (int i = s.first; i < s.end; i++) {
        d[Q] += dq[i] * s.x[i];
        d[K] += dk[i] * s.x[i];
        d[V] += dv[i] * s.x[i];
        d[IN + text[position(&s, i)] - 'a'] +=
            d_mid[i] + dq[i] * w[Q] + dk[i] * w[K] + dv[i] * w[V];
    }
    sum_up(&s, d, NUMBERS); /* of all ranks */
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"q",    "k",     "v",     "in a",  "in b", "in c",
                                        "in d", "out a", "out b", "out c", "out d"};
    double w[LOSS], whole[NUMBERS], shards[NUMBERS], above[NUMBERS], below[NUMBERS], h = 1e-5;
    int r, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &r);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (N % ranks != 0)
        MPI_Abort(MPI_COMM_WORLD, 2);

    for (int e = 0; e < LOSS; e++)
        w[e] = 2 * sin(e + 1);
    step(MPI_COMM_SELF, w, whole);
    step(MPI_COMM_WORLD, w, shards);
    bool equal = fabs(whole[LOSS] - shards[LOSS]) < 1e-12;
    if (r == 0)
        puts("           slope     whole    shards");
    for (int e = 0; e < LOSS; e++) {
        w[e] += h;
        step(MPI_COMM_SELF, w, above);
        w[e] -= 2 * h;
        step(MPI_COMM_SELF, w, below);
        w[e] += h;
        if (r == 0)
            printf("%-6s%10.6f%10.6f%10.6f\n", names[e], (above[LOSS] - below[LOSS]) / (2 * h),
                   whole[e], shards[e]);
        equal = equal && fabs(whole[e] - shards[e]) < 1e-12;
    }
    if (r == 0)
        printf("loss%22.6f%10.6f\n%s\n", whole[LOSS], shards[LOSS], equal ? "equal" : "different");
    MPI_Finalize();
    return equal ? 0 : 1;
}
