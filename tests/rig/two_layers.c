/* two_layers: one struct ra_layer stands for two layers, and the second's forward takes the memory
 * in which the first has left what its backward needs. For the exercise of chapter 10b.
 */
#include <ring_attention_model.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 60, DIM = 16 };

/* Rows of this rank: x, y and their gradients, and what is between the layers. */
struct two {
    struct ra_layer *layer;
    struct ra_attention_weights w[2], d[2];
    void *kept, *scratch;
    float *x, *mid, *y, *dy, *d_mid, *dx;
};

static void check(enum ra_status status, const char *error)
{
    if (status == RA_OK)
        return;
    fprintf(stderr, "%s\n", error);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void forward(const struct two *t, const struct ra_attention_weights *w,
                    const struct ra_layer_arrays *arrays)
{
    check(ra_layer_forward(t->layer, w, arrays), ra_layer_error(t->layer));
}

static void backward(const struct two *t, const struct ra_attention_weights *w,
                     const struct ra_layer_arrays *arrays, const struct ra_attention_weights *d)
{
    check(ra_layer_backward(t->layer, w, arrays, d), ra_layer_error(t->layer));
}

/* y of x by way of mid, then dx and d of dy. Both layers have the same t->kept. */
static void step(const struct two *t)
{
    struct ra_layer_arrays first = RA_LAYER_ARRAYS_INIT, second = first;
    first.x = t->x, first.y = t->mid, first.dy = t->d_mid, first.dx = t->dx;
    second.x = t->mid, second.y = t->y, second.dy = t->dy, second.dx = t->d_mid;
    first.kept = second.kept = t->kept;
    first.scratch = second.scratch = t->scratch;
    forward(t, &t->w[0], &first);
    forward(t, &t->w[1], &second);
    backward(t, &t->w[1], &second, &t->d[1]);
    forward(t, &t->w[0], &first); /* again */
    backward(t, &t->w[0], &first, &t->d[0]);
}

/* The same, with memory for each layer. */
static void plain_step(const struct two *t, void *kept)
{
    struct ra_layer_arrays first = RA_LAYER_ARRAYS_INIT, second = first;
    first.x = t->x, first.y = t->mid, first.dy = t->d_mid, first.dx = t->dx;
    second.x = t->mid, second.y = t->y, second.dy = t->dy, second.dx = t->d_mid;
    first.kept = t->kept, second.kept = kept;
    first.scratch = second.scratch = t->scratch;
    forward(t, &t->w[0], &first);
    forward(t, &t->w[1], &second);
    backward(t, &t->w[1], &second, &t->d[1]);
    backward(t, &t->w[0], &first, &t->d[0]);
}

/* Number e of a kind: the same on whichever rank it is needed. */
static float number(int64_t kind, int64_t e)
{
    uint64_t x = (uint64_t)(kind * 1000003 + e + 1) * 0x9E3779B97F4A7C15;
    x = (x ^ x >> 31) * 0xBF58476D1CE4E5B9;
    return (float)(x >> 40) / 0x1p23f - 1;
}

static void *take(int64_t bytes)
{
    void *memory = aligned_alloc(64, (size_t)(bytes + 127) / 64 * 64);
    if (!memory)
        MPI_Abort(MPI_COMM_WORLD, 1);
    return memset(memory, 0, (size_t)(bytes + 127) / 64 * 64);
}

/* Says which of `names` differs on some rank, and returns whether any does. */
static int differ(const char *name, const float *a, const float *b, int64_t count)
{
    int other = memcmp(a, b, (size_t)count * sizeof *a) != 0, rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Allreduce(MPI_IN_PLACE, &other, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (other && rank == 0)
        printf("%s differs from that of layers with memory of their own: WRONG\n", name);
    return other;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    struct ra_config attention = RA_CONFIG_INIT;
    attention.queries = N;
    attention.heads = 2;
    attention.dim = 8;
    attention.causal = true;
    attention.layout = RA_STRIPED;
    struct ra_layer_config config = RA_LAYER_INIT;
    config.dim = DIM;
    config.rotary = true;
    config.residual = true;
    struct ra_link link;
    struct ra_plan *plan;
    struct two t, plain;
    char error[RA_ERROR_SIZE];
    check(ra_mpi_link(&link, MPI_COMM_WORLD, 0, attention.timeout, error), error);
    check(ra_plan_create(&plan, &attention, &link, error), error);
    check(ra_layer_create(&t.layer, &config, plan, error), error);

    int64_t count = ra_layer_weight_count(t.layer), n = ra_plan_rows(plan, RA_QUERY_SIDE);
    int64_t numbers = n * DIM, kept = ra_layer_kept_bytes(t.layer);
    float *weights = take(6 * count * (int64_t)sizeof *weights);
    float *rows = take(10 * numbers * (int64_t)sizeof *rows);
    for (int64_t e = 0; e < 2 * count; e++)
        weights[e] = number(1, e);
    t.kept = take(kept), t.scratch = take(ra_layer_scratch_bytes(t.layer));
    t.x = rows, t.dy = rows + numbers;
    for (int64_t e = 0; e < numbers; e++) {
        int64_t i = ra_plan_position(plan, RA_QUERY_SIDE, e / DIM);
        t.x[e] = number(2, i * DIM + e % DIM);
        t.dy[e] = number(3, i * DIM + e % DIM);
    }
    plain = t;
    for (int l = 0; l < 2; l++) {
        ra_layer_weights_in(t.layer, weights + l * count, &t.w[l], sizeof t.w[l]);
        ra_layer_weights_in(t.layer, weights + (2 + l) * count, &t.d[l], sizeof t.d[l]);
        ra_layer_weights_in(t.layer, weights + (4 + l) * count, &plain.d[l], sizeof plain.d[l]);
        plain.w[l] = t.w[l];
    }
    t.mid = rows + 2 * numbers, t.y = rows + 3 * numbers;
    t.d_mid = rows + 4 * numbers, t.dx = rows + 5 * numbers;
    plain.mid = rows + 6 * numbers, plain.y = rows + 7 * numbers;
    plain.d_mid = rows + 8 * numbers, plain.dx = rows + 9 * numbers;
    void *more = take(kept);
    plain_step(&plain, more);
    memset(t.kept, 0, (size_t)kept);
    step(&t);

    int wrong = differ("y", t.y, plain.y, numbers) + differ("dx", t.dx, plain.dx, numbers) +
                differ("the gradient of the second layer's weights", weights + 3 * count,
                       weights + 5 * count, count) +
                differ("the gradient of the first layer's weights", weights + 2 * count,
                       weights + 4 * count, count);
    free(more);
    free(t.kept);
    free(t.scratch);
    free(rows);
    free(weights);
    ra_layer_destroy(t.layer);
    ra_plan_destroy(plan);
    MPI_Finalize();
    return wrong > 0;
}
