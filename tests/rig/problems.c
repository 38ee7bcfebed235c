/* problems: see problems.h. */
#include "problems.h"

#include <stdio.h>
#include <stdlib.h>

#include "ra_host.h"

/* ---- Problems. */

int problem_ranks(const struct problem *p)
{
    return p->ranks > 0 ? p->ranks : 1;
}

int64_t problem_length(const struct problem *p, enum ra_side side)
{
    return side == RA_KEY_SIDE ? p->truth.M : p->truth.N;
}

enum ra_type problem_type(const struct problem *p, enum truth_array a)
{
    return a == MASK ? RA_BOOL : a == LSE || p->wide[a] ? RA_FLOAT32 : p->config.type;
}

double *problem_row(const struct problem *p, enum truth_array a, int64_t b, int64_t row, int64_t h)
{
    return truth_row(&p->truth, p->truth.x, a, b, row, h);
}

bool problem_writes(const struct problem *p, enum truth_array a)
{
    return truth_is_output(a) && (a < DQ || !p->config.forward_only);
}

int problem_spans(const struct problem *p, enum ra_side side, int rank, struct ra_span *spans)
{
    int64_t length = problem_length(p, side), P = problem_ranks(p), J = P * p->stripes;
    if (p->config.layout == RA_STRIPED) {
        for (int s = 0; s < p->stripes; s++) {
            int64_t first = rank * p->stripes + s;
            spans[s] = (struct ra_span){first, J, 0};
            for (int64_t i = first; i < length; i += J)
                spans[s].count++;
        }
        return (int)p->stripes;
    }
    int count = p->config.layout == RA_ZIGZAG ? 2 : 1;
    int64_t rows = (length + count * P - 1) / (count * P);
    for (int s = 0; s < count; s++) {
        int64_t first = rows * (s == 0 ? rank : 2 * P - 1 - rank);
        spans[s] = (struct ra_span){first, 1, 0};
        while (spans[s].count < rows && first + spans[s].count < length)
            spans[s].count++;
    }
    return count;
}

/* Which rank has which row. */
static void find_homes(struct problem *p)
{
    /* As few stripes as keep each of the queries within the bucket. */
    p->stripes = 1;
    while (p->config.bucket > 0 && p->truth.N > p->config.bucket * problem_ranks(p) * p->stripes)
        p->stripes++;
    if (p->stripes > MOST_SPANS) {
        fprintf(stderr, "problems: %lld stripes\n", (long long)p->stripes);
        exit(1);
    }
    for (int side = 0; side < 2; side++) {
        p->home[side] = calloc((size_t)problem_length(p, side) + 1, sizeof *p->home[side]);
        for (int rank = 0; rank < problem_ranks(p); rank++) {
            struct ra_span spans[MOST_SPANS];
            int count = problem_spans(p, side, rank, spans);
            for (int s = 0; s < count; s++)
                for (int64_t a = 0; a < spans[s].count; a++)
                    p->home[side][spans[s].first + a * spans[s].stride] = rank;
        }
        p->truth.home[side] = p->config.local_keys ? p->home[side] : NULL;
    }
}

static bool is_hidden(const struct problem *p, int64_t b, int64_t j, uint64_t *state)
{
    switch (p->masking) {
    case RANDOM_MASK:
        return random_number(state) > 0;
    case BATCH_HIDDEN:
        return b == 0;
    case FIRST_HIDDEN:
        return j < (p->truth.M + 1) / 2;
    case LAST_SEEN:
        return j < p->truth.M - 1;
    case RANK_HIDDEN:
        return p->home[RA_KEY_SIDE][j] == 0;
    default:
        return false;
    }
}

static void move_scores(struct problem *p)
{
    int64_t D = p->truth.D;
    double common = number_rounded(p->config.type, sqrt(fabs(p->shift) * sqrt((double)D)));
    for (int64_t e = 0; e < truth_count(&p->truth, Q) && p->shift != 0; e += D)
        p->truth.x[Q][e] = common;
    for (int64_t e = 0; e < truth_count(&p->truth, K) && (p->shift != 0 || p->offset != 0); e++)
        p->truth.x[K][e] = p->shift != 0 && e % D == 0
                               ? -common
                               : number_rounded(p->config.type, p->truth.x[K][e] + p->offset);
}

struct problem problem_random(uint64_t *state, int64_t N, int64_t M)
{
    static const int64_t dims[] = {1, 8, 33, 64}, batches[] = {1, 1, 1, 2, 3, 3, 0};
    static const int64_t heads[][2] = {{1, 1}, {2, 2}, {4, 2}, {3, 1}, {6, 2}};
    static const double sizes[] = {0.1, 1, 1, 10, 30}, scales[] = {0.3, -0.2, 0};
    int64_t shared[2];
    memcpy(shared, ONE_OF(state, heads), sizeof shared);
    int64_t B = ONE_OF(state, batches), D = ONE_OF(state, dims);
    if (B * N * M * D * shared[0] > 400000)
        B = shared[0] = shared[1] = 1;
    if (N * M * D > 200000)
        D = 8;
    struct problem p = {.config = problem_shape(B, N, M, shared[0], shared[1], D),
                        .size = ONE_OF(state, sizes),
                        .masking =
                            random_below(state, 2) ? NO_MASK : (enum masking)random_below(state, 6),
                        .seed = (unsigned)random_below(state, 1 << 30)};
    struct ra_config *c = &p.config;

    /* Who sees whom, and how much that counts. */
    const int64_t lookbacks[] = {0, 1, 5, 15, 16, 63, 64, 65, N / 2, N, 10 * N, INT64_MAX};
    c->causal = random_below(state, 3) > 0;
    if (c->causal && random_below(state, 2))
        c->lookback = ONE_OF(state, lookbacks);
    c->head_map = (enum ra_head_map)random_below(state, 2);
    c->softcap = random_below(state, 4) ? 0 : 2.5;
    if (random_below(state, 4) == 0)
        c->scale = ONE_OF(state, scales);

    /* How: types, tiles, layouts. */
    static const int64_t tiles[] = {0, 0, 1, 3, 7, 16, 1000};
    c->type = (enum ra_type)random_below(state, 3);
    c->forward_only = random_below(state, 8) == 0;
    c->tile_queries = ONE_OF(state, tiles);
    c->tile_keys = ONE_OF(state, tiles);
    c->tile = random_below(state, 4) ? RA_VECTOR_TILE : RA_PLAIN_TILE;
    c->threads = (int)random_below(state, 4);
    c->caller_workspace = p.seed % 3 == 0;
    static const int64_t values[] = {0, 0, 0, 1, 7, 24, 65};
    c->dim_value = values[p.seed / 3 % (sizeof values / sizeof *values)];
    c->layout = (enum ra_layout_kind)random_below(state, 3);
    if (c->layout == RA_STRIPED && random_below(state, 2))
        c->bucket = 1 + random_below(state, 9) + N / 20;
    return p;
}

enum order problem_random_order(uint64_t *state, struct problem *p)
{
    enum order order = (enum order)random_below(state, ORDERS);
    p->same = order == BROADCAST;
    for (int t = 0; order != PACKED && t < ARRAYS; t++)
        p->wide[t] = t != K && t != V && random_below(state, 4) == 0;
    return order;
}

void problem_make(struct problem *p)
{
    uint64_t state = p->seed;
    p->config.has_mask = p->masking != NO_MASK;
    p->truth = truth_of(&p->config);
    for (enum truth_array a = Q; a < ARRAYS; a++)
        p->truth.type[a] = problem_type(p, a);
    if (!p->wide[Q] && ra_host_narrow(&p->config, ra_vector_find(getenv("RA_VECTOR"))))
        p->truth.weights = RA_BFLOAT16;
    find_homes(p);
    truth_make_inputs(&p->truth, random_number, p->size > 0 ? p->size : 1, &state);
    move_scores(p);
    double **x = p->truth.x;
    int64_t M = p->truth.M;
    x[MASK] = truth_numbers(p->truth.B * M);
    for (int64_t e = 0; e < p->truth.B * M; e++) {
        bool hidden = is_hidden(p, e / M, e % M, &state);
        x[MASK][e] = !hidden;
        for (int64_t g = 0; g < p->truth.G && hidden && p->nan_hidden; g++)
            *problem_row(p, K, e / M, e % M, g) = *problem_row(p, V, e / M, e % M, g) = (double)NAN;
    }

    /* Batch 0 for all batches; of d_out, row 0 for all rows. */
    for (enum truth_array a = Q; p->same && a < ARRAYS; a++)
        for (int64_t e = 0; x[a] && a != Q && e < truth_count(&p->truth, a); e++) {
            int64_t row = truth_heads(&p->truth, a) * truth_width(&p->truth, a);
            int64_t batch = row * truth_rows(&p->truth, a);
            x[a][e] = x[a][a == D_OUT ? e / batch * batch + e % row : e % batch];
        }
}

void problem_clear(struct problem *p)
{
    truth_clear(&p->truth);
    free(p->home[0]);
    free(p->home[1]);
}

/* ---- What is right. */

void problem_solve(struct problem *p)
{
    truth_forward(&p->truth);
    if (!p->config.forward_only && problem_type(p, O) == RA_FLOAT32)
        truth_backward(&p->truth, NULL);
}

void outputs_make(const struct problem *p, double *got[ARRAYS])
{
    for (enum truth_array a = Q; a < ARRAYS; a++)
        got[a] = truth_is_output(a) ? truth_numbers(truth_count(&p->truth, a)) : NULL;
}

void outputs_clear(double *got[ARRAYS])
{
    for (enum truth_array a = Q; a < ARRAYS; a++)
        free(got[a]);
}

bool problem_is_right(struct problem *p, double *const got[ARRAYS], char text[TEXT])
{
    const struct ra_config *c = &p->config;
    const struct truth *t = &p->truth;
    char what[TRUTH_TEXT];
    if (!c->forward_only && problem_type(p, O) != RA_FLOAT32)
        truth_backward(&p->truth, got[O]);
    for (enum truth_array a = O; a < ARRAYS; a++)
        if (problem_writes(p, a) && !(truth_judge(t, a, got[a], what) <= 1)) {
            snprintf(
                text, TEXT,
                "%s (B %d N %d M %d H %d G %d D %d %d type %d causal %d lookback %d masking %d "
                "layout %d bucket %d ranks %d local_keys %d seed %d)",
                what, (int)t->B, (int)t->N, (int)t->M, (int)t->H, (int)t->G, (int)t->D, (int)t->D_v,
                c->type, c->causal, (int)c->lookback, p->masking, c->layout, (int)c->bucket,
                p->ranks, c->local_keys, (int)p->seed);
            return false;
        }
    return true;
}

void problem_add_squares(const struct problem *p, enum truth_array a, const double *got,
                         double squares[2])
{
    for (int64_t e = 0; e < truth_count(&p->truth, a); e++) {
        squares[0] += pow(p->truth.plain[a][e] - p->truth.x[a][e], 2);
        squares[1] += pow(got[e] - p->truth.x[a][e], 2);
    }
}

/* ---- A rank's arrays. */

/* Behind each block lies a guard that nobody may write to; but the address sanitizer is to see the
 * end itself. */
#ifdef __SANITIZE_ADDRESS__
enum { GUARD = 0 };
#else
enum { GUARD = 64 };
#endif

/* Memory for this many numbers, all NaN in every type. */
static void *new_block(struct block *block, int64_t numbers, int64_t size)
{
    block->bytes = numbers * size + GUARD;
    block->data = malloc((size_t)block->bytes + 1);
    block->before = malloc((size_t)block->bytes + 1);
    block->owner = malloc((size_t)block->bytes + 1);
    if (!block->data || !block->before || !block->owner) {
        perror("problems");
        exit(1);
    }
    memset(block->data, 0xFF, (size_t)block->bytes);
    memset(block->owner, -1, (size_t)block->bytes);
    return block->data;
}

static struct ra_tensor tensor_from(void *data, int64_t first, enum ra_type type, int64_t batch,
                                    int64_t row, int64_t head)
{
    return (struct ra_tensor){(char *)data + first * ra_type_bytes(type), type, batch, row, head};
}

/* Where a tensor lies. */
static struct ra_tensor place(const struct problem *p, struct shard *shard, enum truth_array a,
                              enum order order)
{
    int64_t rows = shard->rows[side_of(a)], heads = truth_heads(&p->truth, a),
            width = truth_width(&p->truth, a);
    int64_t row = heads * width, numbers = p->truth.B * rows * row;
    enum ra_type type = problem_type(p, a);
    int64_t size = ra_type_bytes(type);
    struct block *block = &shard->blocks[a];
    shard->block_of[a] = block;
    bool together = shard->rows[0] == shard->rows[1], is_query = a == Q || a == DQ;
    if (order == PACKED && (a <= V || a >= DQ) && (together || !is_query)) {
        /* One row has H heads of q, if there are as many of them, G of k and G of v. */
        enum truth_array first = a >= DQ ? DQ : Q, owner = together ? first : first + 1;
        int64_t ahead = together ? p->truth.H * p->truth.D : 0, keys = p->truth.G * p->truth.D;
        int64_t all = ahead + keys + p->truth.G * truth_width(&p->truth, V);
        int64_t before = is_query ? 0 : ahead + (a == K || a == DK ? 0 : keys);
        shard->block_of[a] = &shard->blocks[owner];
        if (a == owner)
            new_block(block, p->truth.B * rows * all, size);
        return tensor_from(shard->blocks[owner].data, before, type, rows * all, all, width);
    }
    if (order == GAPS) {
        int64_t head = width + 1, gap_row = heads * head + 3, batch = rows * gap_row + 5;
        new_block(block, p->truth.B * batch + 4, size);
        return tensor_from(block->data, 2, type, batch, gap_row, head);
    }
    if (order == BROADCAST && (a == K || a == V || a == MASK)) {
        new_block(block, rows * row, size);
        return tensor_from(block->data, 0, type, 0, row, width);
    }
    if (order == BROADCAST && a == D_OUT) {
        new_block(block, p->truth.B * row, size);
        return tensor_from(block->data, 0, type, row, 0, width);
    }
    new_block(block, numbers, size);
    if (order == BACKWARDS && rows > 0)
        return tensor_from(block->data, (rows - 1) * row + (heads - 1) * width, type, rows * row,
                           -row, -width);
    if (a == MASK)
        return ra_tensor_bn(block->data, rows);
    if (a == LSE)
        return ra_tensor_bhn(block->data, rows, heads);
    return (order == HEADS_FIRST ? ra_tensor_bhnd : ra_tensor_bnhd)(block->data, type, rows, heads,
                                                                    width);
}

/* Notes which bytes are numbers of this array. */
static void own(const struct problem *p, struct shard *shard, enum truth_array a,
                const struct ra_tensor *tensor)
{
    struct block *block = shard->block_of[a];
    int64_t rows = shard->rows[side_of(a)], heads = truth_heads(&p->truth, a);
    int64_t size = ra_type_bytes(tensor->type), width = truth_width(&p->truth, a);
    for (int64_t e = 0; e < p->truth.B * rows * heads; e++) {
        int64_t at = e / heads / rows * tensor->batch + e / heads % rows * tensor->row +
                     e % heads * tensor->head;
        memset(block->owner + ((unsigned char *)tensor->data - block->data) + at * size, (int)a,
               (size_t)(width * size));
    }
}

void shard_make(const struct problem *p, struct shard *shard, enum order order,
                const struct ra_plan *plan)
{
    *shard = (struct shard){.arrays = RA_ARRAYS_INIT};
    for (int side = 0; side < 2; side++) {
        shard->rows[side] = plan ? ra_plan_rows(plan, side) : problem_length(p, side);
        shard->positions[side] =
            calloc((size_t)shard->rows[side] + 1, sizeof *shard->positions[side]);
        for (int64_t row = 0; row < shard->rows[side] && !plan; row++)
            shard->positions[side][row] = row;
        if (plan)
            ra_plan_positions(plan, side, shard->positions[side]);
    }
    for (enum truth_array a = Q; a < ARRAYS; a++) {
        struct ra_tensor *tensor = tensor_in(&shard->arrays, a);
        *tensor = place(p, shard, a, order);
        if (!truth_is_output(a))
            arrays_put(&p->truth, a, *tensor, shard->rows[side_of(a)], shard->positions[side_of(a)],
                       p->truth.x[a]);
        own(p, shard, a, tensor);
    }
    if (!p->config.has_mask)
        shard->arrays.mask = (struct ra_tensor)RA_NO_TENSOR;
    for (enum truth_array a = Q; a < ARRAYS; a++)
        if (shard->blocks[a].data)
            memcpy(shard->blocks[a].before, shard->blocks[a].data, (size_t)shard->blocks[a].bytes);
}

void shard_clear(struct shard *shard)
{
    for (enum truth_array a = Q; a < ARRAYS; a++) {
        free(shard->blocks[a].data);
        free(shard->blocks[a].before);
        free(shard->blocks[a].owner);
    }
    free(shard->positions[0]);
    free(shard->positions[1]);
}

void shard_poison(struct shard *shard, enum truth_array first, enum truth_array last)
{
    for (enum truth_array a = Q; a < ARRAYS; a++)
        for (int64_t i = 0; i < shard->blocks[a].bytes; i++)
            if (shard->blocks[a].owner[i] >= (int)first && shard->blocks[a].owner[i] <= (int)last)
                shard->blocks[a].data[i] = shard->blocks[a].before[i] = 0xFF;
}

bool shard_is_kept(struct shard *shard, bool backward, char text[TEXT])
{
    for (enum truth_array a = Q; a < ARRAYS; a++) {
        struct block *block = &shard->blocks[a];
        for (int64_t i = 0; i < block->bytes; i++) {
            int owner = block->owner[i];
            bool may = backward ? owner >= DQ : owner == O || owner == LSE;
            if (!may && block->data[i] != block->before[i]) {
                snprintf(text, TEXT, "%s has written to %s, byte %d of its memory",
                         backward ? "backward" : "forward",
                         owner < 0 ? "a gap" : truth_names[owner], (int)i);
                return false;
            }
            block->before[i] = block->data[i];
        }
    }
    return true;
}

enum truth_array shard_difference(const struct shard *a, const struct shard *b)
{
    for (enum truth_array t = Q; t < ARRAYS; t++)
        if (memcmp(a->block_of[t]->data, b->block_of[t]->data, (size_t)a->block_of[t]->bytes) != 0)
            return t;
    return ARRAYS;
}

void shard_collect(const struct problem *p, struct shard *shard, double *const got[ARRAYS])
{
    for (enum truth_array a = O; a < ARRAYS; a++)
        if (truth_is_output(a))
            arrays_get(&p->truth, a, *tensor_in(&shard->arrays, a), shard->rows[side_of(a)],
                       shard->positions[side_of(a)], got[a]);
}

struct ra_config problem_shape(int64_t B, int64_t N, int64_t M, int64_t H, int64_t G, int64_t D)
{
    struct ra_config config = RA_CONFIG_INIT;
    config.batch = B;
    config.queries = N;
    config.keys = M;
    config.heads = H;
    config.key_heads = G;
    config.dim = D;
    return config;
}
