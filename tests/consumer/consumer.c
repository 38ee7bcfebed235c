/* consumer: a program of somebody else's, which knows only what is installed. tests/installcheck
 * builds it, as C and as C++; with MPI if WITH_MPI is defined, else with a ring of one thread.
 *
 *     gcc consumer.c $(pkg-config --cflags --libs ringattn) -o consumer
 *     gcc -DWITH_MPI consumer.c $(pkg-config --cflags --libs ringattn_mpi) -o consumer
 *
 * Computes a forward and a backward, holds all of it against the definition, in double, and prints
 * one line if all is well.
 */
#ifdef WITH_MPI
#include <ring_attention_mpi.h>
#else
#include <ring_attention.h>
#include <ring_attention_threads.h>
#endif
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 13, H = 4, G = 2, D = 8, QUERY_ROW = H * D, KEY_ROW = G * D };

/* The whole sequence, and what it must give. */
static float q[N * QUERY_ROW], k[N * KEY_ROW], v[N * KEY_ROW], d_out[N * QUERY_ROW];
static double o[N * QUERY_ROW], lse[H * N], dq[N * QUERY_ROW], dk[N * KEY_ROW], dv[N * KEY_ROW];

/* This rank's part: inputs, then outputs. */
static float my_q[N * QUERY_ROW], my_k[N * KEY_ROW], my_v[N * KEY_ROW], my_d_out[N * QUERY_ROW];
static float my_o[N * QUERY_ROW], my_lse[H * N], my_dq[N * QUERY_ROW], my_dk[N * KEY_ROW],
    my_dv[N * KEY_ROW];

static void succeed(enum ra_status status, const char *what)
{
    if (status != RA_OK) {
        fprintf(stderr, "consumer: %s: %s\n", ra_status_text(status), what);
        exit(1);
    }
}

/* Numbers from -1 to 1 that look random, the same everywhere. */
static void fill(float *numbers, int count, unsigned seed)
{
    for (int i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        numbers[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

static double dot(const float *a, const float *b)
{
    double sum = 0;
    for (int c = 0; c < D; c++)
        sum += (double)a[c] * (double)b[c];
    return sum;
}

/* The definition for query i of head h, causal. */
static void define(int i, int h)
{
    int at = i * QUERY_ROW + h * D, head = h / (H / G) * D;
    double p[N], sum = 0, delta = 0, scale = 1 / sqrt((double)D);
    for (int j = 0; j <= i; j++) {
        p[j] = exp(scale * dot(q + at, k + j * KEY_ROW + head));
        sum += p[j];
    }
    lse[h * N + i] = log(sum);
    for (int j = 0; j <= i; j++) {
        p[j] /= sum;
        delta += p[j] * dot(d_out + at, v + j * KEY_ROW + head);
    }
    for (int j = 0; j <= i; j++) {
        int key = j * KEY_ROW + head;
        double ds = scale * p[j] * (dot(d_out + at, v + key) - delta);
        for (int c = 0; c < D; c++) {
            o[at + c] += p[j] * (double)v[key + c];
            dq[at + c] += ds * (double)k[key + c];
            dk[key + c] += ds * (double)q[at + c];
            dv[key + c] += p[j] * (double)d_out[at + c];
        }
    }
}

/* Each must be near the other; a NaN is near nothing. */
static void compare(const char *name, const float *got, const double *want, int count)
{
    for (int c = 0; c < count; c++)
        if (!(fabs((double)got[c] - want[c]) <= 1e-5)) {
            fprintf(stderr, "consumer: %s: got %g, want %g\n", name, (double)got[c], want[c]);
            exit(1);
        }
}

/* What this rank computed, against the rows of the whole where it belongs. Returns the rows. */
static int64_t compare_all(struct ra_plan *plan)
{
    int64_t n = ra_plan_rows(plan, RA_QUERY_SIDE), m = ra_plan_rows(plan, RA_KEY_SIDE);
    for (int64_t a = 0; a < n; a++) {
        int64_t i = ra_plan_position(plan, RA_QUERY_SIDE, a);
        compare("o", my_o + a * QUERY_ROW, o + i * QUERY_ROW, QUERY_ROW);
        compare("dq", my_dq + a * QUERY_ROW, dq + i * QUERY_ROW, QUERY_ROW);
        for (int h = 0; h < H; h++)
            compare("lse", my_lse + h * n + a, lse + h * N + i, 1);
    }
    for (int64_t b = 0; b < m; b++) {
        int64_t j = ra_plan_position(plan, RA_KEY_SIDE, b);
        compare("dk", my_dk + b * KEY_ROW, dk + j * KEY_ROW, KEY_ROW);
        compare("dv", my_dv + b * KEY_ROW, dv + j * KEY_ROW, KEY_ROW);
    }
    return n + m;
}

/* Forward and backward of this rank's rows. Outputs begin as NaN. */
static void compute(struct ra_plan *plan)
{
    int64_t n = ra_plan_rows(plan, RA_QUERY_SIDE), m = ra_plan_rows(plan, RA_KEY_SIDE);
    int64_t query_bytes = QUERY_ROW * sizeof(float), key_bytes = KEY_ROW * sizeof(float);
    succeed(ra_shard(plan, RA_QUERY_SIDE, 1, query_bytes, q, my_q), "ra_shard q");
    succeed(ra_shard(plan, RA_QUERY_SIDE, 1, query_bytes, d_out, my_d_out), "ra_shard d_out");
    succeed(ra_shard(plan, RA_KEY_SIDE, 1, key_bytes, k, my_k), "ra_shard k");
    succeed(ra_shard(plan, RA_KEY_SIDE, 1, key_bytes, v, my_v), "ra_shard v");

    struct ra_arrays arrays = RA_ARRAYS_INIT;
    arrays.q = ra_tensor_bnhd(my_q, RA_FLOAT32, n, H, D);
    arrays.k = ra_tensor_bnhd(my_k, RA_FLOAT32, m, G, D);
    arrays.v = ra_tensor_bnhd(my_v, RA_FLOAT32, m, G, D);
    arrays.o = ra_tensor_bnhd(my_o, RA_FLOAT32, n, H, D);
    arrays.lse = ra_tensor_bhn(my_lse, n, H);
    arrays.d_out = ra_tensor_bnhd(my_d_out, RA_FLOAT32, n, H, D);
    arrays.dq = ra_tensor_bnhd(my_dq, RA_FLOAT32, n, H, D);
    arrays.dk = ra_tensor_bnhd(my_dk, RA_FLOAT32, m, G, D);
    arrays.dv = ra_tensor_bnhd(my_dv, RA_FLOAT32, m, G, D);
    memset(my_o, 255, sizeof my_o);
    memset(my_lse, 255, sizeof my_lse);
    memset(my_dq, 255, sizeof my_dq);
    memset(my_dk, 255, sizeof my_dk);
    memset(my_dv, 255, sizeof my_dv);
    succeed(ra_forward(plan, &arrays), ra_plan_error(plan));
    succeed(ra_backward(plan, &arrays), ra_plan_error(plan));
}

int main(void)
{
    /* The headers, the library that was found, and the three numbers are of one version. */
    char version[40], error[RA_ERROR_SIZE] = "";
    snprintf(version, sizeof version, "%d.%d.%d", RA_VERSION_MAJOR, RA_VERSION_MINOR,
             RA_VERSION_PATCH);
    if (strcmp(version, RA_VERSION) != 0 || strcmp(ra_version(), RA_VERSION) != 0) {
        fprintf(stderr, "consumer: header %s, %s, library %s\n", version, RA_VERSION, ra_version());
        return 1;
    }

    fill(q, N * QUERY_ROW, 1);
    fill(k, N * KEY_ROW, 2);
    fill(v, N * KEY_ROW, 3);
    fill(d_out, N * QUERY_ROW, 4);
    for (int i = 0; i < N; i++)
        for (int h = 0; h < H; h++)
            define(i, h);

    struct ra_config config = RA_CONFIG_INIT;
    config.queries = N;
    config.heads = H;
    config.key_heads = G;
    config.dim = D;
    config.causal = true;
    config.layout = RA_STRIPED;
    struct ra_plan *plan;
    struct ra_link link;
#ifdef WITH_MPI
    MPI_Init(NULL, NULL);
    succeed(ra_mpi_link(&link, MPI_COMM_WORLD, 0, config.timeout, error), error);
#else
    succeed(ra_thread_links(&link, 1, error), error);
#endif
    succeed(ra_plan_create(&plan, &config, &link, error), error);
    compute(plan);
    int64_t rows = compare_all(plan);
    int rank = ra_plan_rank(plan), ranks = ra_plan_ranks(plan);
    ra_plan_destroy(plan);

#ifdef WITH_MPI
    /* Rank 0 speaks when every rank has found all well. */
    MPI_Allreduce(MPI_IN_PLACE, &rows, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    MPI_Finalize();
#endif
    if (rows != 2 * N) {
        fprintf(stderr, "consumer: rows are missing\n");
        return 1;
    }
    if (rank == 0)
        printf("%s on %d ranks\n", ra_version(), ranks);
    return 0;
}
