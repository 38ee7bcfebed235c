/* check_cuda_ring: rings of GPUs, whose ranks are threads of this process, against the library on
 * the host. A rank has GPU number rank modulo the number of GPUs, so one is enough.
 *
 * A plain program: CUDA and the processes of libcheck do not go together. Ends with "N passed, N
 * failed"; without a GPU it says that nothing was run.
 */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "ra_cuda.h"
#include "ra_kernel.h"
#include "ra_number.h"
#include "ring_attention_cuda.h"
#include "thread_link.h"

enum { MOST_RANKS = 8 };

static int passed, failed;
static int devices;

/* ---- What goes wrong, in any thread. */

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int troubles;

__attribute__((format(printf, 1, 2))) static void trouble(const char *format, ...)
{
    va_list arguments;
    pthread_mutex_lock(&mutex);
    if (troubles++ < 4) {
        printf("    ");
        va_start(arguments, format);
        vprintf(format, arguments);
        va_end(arguments);
        putchar('\n');
    }
    pthread_mutex_unlock(&mutex);
}

static bool cuda(cudaError_t code, const char *what)
{
    if (code != cudaSuccess)
        trouble("%s: %s", what, cudaGetErrorString(code));
    return code == cudaSuccess;
}

#define CUDA(call) cuda(call, #call)

static bool is_well(enum ra_status status, const char *error, int rank)
{
    if (status != RA_OK)
        trouble("rank %d: %s: %s", rank, ra_status_text(status), error);
    return status == RA_OK;
}

/* One test: its name, and whether nothing went wrong since the last one. */
__attribute__((format(printf, 1, 2))) static void verdict(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("%s ", troubles == 0 ? "ok  " : "FAIL");
    vprintf(format, arguments);
    putchar('\n');
    fflush(stdout);
    va_end(arguments);
    passed += troubles == 0;
    failed += troubles != 0;
    troubles = 0;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- Device memory that the library takes: the linker sends its calls through here. */

cudaError_t __real_cudaMalloc(void **pointer, size_t bytes);
cudaError_t __real_cudaFree(void *pointer);
cudaError_t __real_cudaHostAlloc(void **pointer, size_t bytes, unsigned flags);
cudaError_t __real_cudaFreeHost(void *pointer);
cudaError_t __wrap_cudaMalloc(void **pointer, size_t bytes);
cudaError_t __wrap_cudaFree(void *pointer);
cudaError_t __wrap_cudaHostAlloc(void **pointer, size_t bytes, unsigned flags);
cudaError_t __wrap_cudaFreeHost(void *pointer);

static struct block {
    void *pointer;
    int64_t bytes;
    bool host;
} blocks[4096];

static void remember(void *pointer, size_t bytes, bool host)
{
    pthread_mutex_lock(&mutex);
    int i = 0;
    while (blocks[i].pointer)
        i++;
    blocks[i] = (struct block){pointer, (int64_t)bytes, host};
    pthread_mutex_unlock(&mutex);
}

static void forget(void *pointer)
{
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < 4096; i++)
        if (blocks[i].pointer == pointer)
            blocks[i].pointer = NULL;
    pthread_mutex_unlock(&mutex);
}

static int64_t bytes_taken(bool host)
{
    int64_t sum = 0;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < 4096; i++)
        sum += blocks[i].pointer && blocks[i].host == host ? blocks[i].bytes : 0;
    pthread_mutex_unlock(&mutex);
    return sum;
}

cudaError_t __wrap_cudaMalloc(void **pointer, size_t bytes)
{
    cudaError_t code = __real_cudaMalloc(pointer, bytes);
    if (code == cudaSuccess)
        remember(*pointer, bytes, false);
    return code;
}

cudaError_t __wrap_cudaFree(void *pointer)
{
    forget(pointer);
    return __real_cudaFree(pointer);
}

cudaError_t __wrap_cudaHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    cudaError_t code = __real_cudaHostAlloc(pointer, bytes, flags);
    if (code == cudaSuccess)
        remember(*pointer, bytes, true);
    return code;
}

cudaError_t __wrap_cudaFreeHost(void *pointer)
{
    forget(pointer);
    return __real_cudaFreeHost(pointer);
}

/* ---- Links. */

/* A link that takes device pointers: a thread link, with copies to and from the host around it. */
struct device_link {
    struct ra_link inner;
    struct {
        void *sent, *came, *into;
        int64_t bytes;
    } messages[RA_MESSAGES];
};

static bool device_send(void *self, enum ra_message message, int hop, int distance,
                        const void *from, int64_t bytes)
{
    struct device_link *link = self;
    enum ra_message way = message == RA_HOME ? RA_GRADIENTS : message;
    free(link->messages[way].sent);
    link->messages[way].sent = malloc((size_t)bytes + 1);
    CUDA(cudaMemcpy(link->messages[way].sent, from, (size_t)bytes, cudaMemcpyDefault));
    return link->inner.send(link->inner.self, message, hop, distance, link->messages[way].sent,
                            bytes);
}

static bool device_receive(void *self, enum ra_message message, int hop, int distance, void *into,
                           int64_t bytes)
{
    struct device_link *link = self;
    link->messages[message].came = malloc((size_t)bytes + 1);
    link->messages[message].into = into;
    link->messages[message].bytes = bytes;
    return link->inner.receive(link->inner.self, message, hop, distance,
                               link->messages[message].came, bytes);
}

static bool device_poll(void *self)
{
    struct device_link *link = self;
    return link->inner.poll(link->inner.self);
}

static bool device_wait(void *self, enum ra_message message)
{
    struct device_link *link = self;
    bool well = link->inner.wait(link->inner.self, message);
    if (well && link->messages[message].came) {
        CUDA(cudaMemcpy(link->messages[message].into, link->messages[message].came,
                        (size_t)link->messages[message].bytes, cudaMemcpyDefault));
        free(link->messages[message].came);
        link->messages[message].came = NULL;
    }
    return well;
}

static void device_fail(void *self, const char *reason)
{
    struct device_link *link = self;
    link->inner.fail(link->inner.self, reason);
}

static const char *device_error(void *self)
{
    struct device_link *link = self;
    return link->inner.error(link->inner.self);
}

static bool device_close(void *self)
{
    struct device_link *link = self;
    bool closed = link->inner.close(link->inner.self);
    for (int m = 0; m < RA_MESSAGES; m++) {
        free(link->messages[m].sent);
        free(link->messages[m].came);
    }
    free(link);
    return closed;
}

static struct ra_link device_link_over(struct ra_link inner)
{
    struct device_link *link = calloc(1, sizeof *link);
    link->inner = inner;
    return (struct ra_link){.rank = inner.rank,
                            .size = inner.size,
                            .device_memory = true,
                            .self = link,
                            .send = device_send,
                            .receive = device_receive,
                            .poll = device_poll,
                            .wait = device_wait,
                            .fail = device_fail,
                            .error = device_error,
                            .close = device_close};
}

/* ---- Problems. */

enum { Q, K, V, D_OUT, INPUTS };
enum { O, LSE, DQ, DK, DV, RESULTS };
static const char *const result_names[RESULTS] = {"o", "lse", "dq", "dk", "dv"};

/* A whole sequence, inputs and the results of the host, all float32 in (B, rows, heads, D). */
struct problem {
    struct ra_config config;
    int ranks;
    bool strided; /* arrays with gaps, heads before rows, and float32 results */
    int rounds;   /* calls of each kind, two of which are always under way */
    double tolerance;
    float *inputs[INPUTS], *results[RESULTS];
    bool *mask;
    struct thread_ring *ring;
    double late; /* until then, as `seconds` counts, streams have other work before the calls */
};

static uint64_t random_state;

static float random_number(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(random_state >> 33) / 0x1p30 - 1);
}

static int64_t rows_of(const struct ra_config *c, int side)
{
    return side == RA_QUERY_SIDE ? c->queries : c->keys == RA_SAME ? c->queries : c->keys;
}

static int64_t heads_of(const struct ra_config *c, int side)
{
    return side == RA_QUERY_SIDE || c->key_heads == RA_SAME ? c->heads : c->key_heads;
}

static const int input_sides[] = {RA_QUERY_SIDE, RA_KEY_SIDE, RA_KEY_SIDE, RA_QUERY_SIDE};
static const int result_sides[] = {RA_QUERY_SIDE, RA_QUERY_SIDE, RA_QUERY_SIDE, RA_KEY_SIDE,
                                   RA_KEY_SIDE};

static int64_t result_width(const struct problem *p, int result)
{
    return result == LSE ? 1 : p->config.dim;
}

/* Makes the inputs, rounded to the type, and lets the host compute. */
static void begin_problem(struct problem *p)
{
    const struct ra_config *c = &p->config;
    int64_t B = c->batch, N = rows_of(c, 0), M = rows_of(c, 1), H = c->heads, D = c->dim;
    int64_t G = heads_of(c, 1);
    random_state = 1 + (uint64_t)(N * 31 + M * 17 + H * 7 + D);
    for (int i = 0; i < INPUTS; i++) {
        int64_t numbers = B * rows_of(c, input_sides[i]) * heads_of(c, input_sides[i]) * D;
        p->inputs[i] = malloc((size_t)numbers * sizeof(float) + 1);
        for (int64_t e = 0; e < numbers; e++)
            p->inputs[i][e] = random_number();
        void *rounded = malloc((size_t)numbers * sizeof(float) + 1);
        ra_number_store(c->type, numbers, p->inputs[i], rounded);
        ra_number_load(c->type, numbers, rounded, p->inputs[i]);
        free(rounded);
    }
    p->mask = malloc((size_t)(B * M) + 1);
    for (int64_t e = 0; e < B * M; e++)
        p->mask[e] = random_number() < 0.5f;
    for (int r = 0; r < RESULTS; r++)
        p->results[r] = malloc((size_t)(B * rows_of(c, result_sides[r]) *
                                        heads_of(c, result_sides[r]) * result_width(p, r)) *
                                   sizeof(float) +
                               1);

    struct ra_config host = *c;
    host.type = RA_FLOAT32;
    host.layout = RA_CONTIGUOUS;
    host.bucket = host.ring_size = 0;
    host.transport = RA_ANY_TRANSPORT;
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    struct ra_arrays x = RA_ARRAYS_INIT;
    x.q = ra_tensor_bnhd(p->inputs[Q], RA_FLOAT32, N, H, D);
    x.k = ra_tensor_bnhd(p->inputs[K], RA_FLOAT32, M, G, D);
    x.v = ra_tensor_bnhd(p->inputs[V], RA_FLOAT32, M, G, D);
    x.d_out = ra_tensor_bnhd(p->inputs[D_OUT], RA_FLOAT32, N, H, D);
    x.mask = ra_tensor_bn(p->mask, M);
    x.o = ra_tensor_bnhd(p->results[O], RA_FLOAT32, N, H, D);
    x.lse = (struct ra_tensor){p->results[LSE], RA_FLOAT32, N * H, H, 1};
    x.dq = ra_tensor_bnhd(p->results[DQ], RA_FLOAT32, N, H, D);
    x.dk = ra_tensor_bnhd(p->results[DK], RA_FLOAT32, M, G, D);
    x.dv = ra_tensor_bnhd(p->results[DV], RA_FLOAT32, M, G, D);
    if (!is_well(ra_plan_create(&plan, &host, error), error, -1))
        return;
    is_well(ra_forward(plan, &x), ra_plan_error(plan), -1);
    if (!host.forward_only)
        is_well(ra_backward(plan, &x), ra_plan_error(plan), -1);
    ra_plan_destroy(plan);
}

static void end_problem(struct problem *p)
{
    for (int i = 0; i < INPUTS; i++)
        free(p->inputs[i]);
    for (int r = 0; r < RESULTS; r++)
        free(p->results[r]);
    free(p->mask);
}

/* What takes or frees memory waits for all of a GPU, where another rank may wait for this one: so
 * ranks begin together what has no end without the others, and free together. */
static pthread_barrier_t meeting;

/* Runs the ranks of a problem, each in its thread. */
static void run_ranks(struct problem *p, void (*rank)(void *problem, int rank))
{
    p->ring = thread_ring_open(p->ranks, p->config.timeout, THREAD_LATE);
    pthread_barrier_init(&meeting, NULL, (unsigned)p->ranks);
    thread_ring_run(p->ranks, rank, p);
    pthread_barrier_destroy(&meeting);
    thread_ring_close(p->ring);
}

/* ---- One rank. */

/* An array on the device, (B, rows, heads, width), with room for what strides step over. */
struct array {
    struct ra_tensor tensor;
    int64_t rows, heads, width, numbers;
};

static struct array array_of(const struct problem *p, enum ra_type type, int64_t rows,
                             int64_t heads, int64_t width)
{
    struct array a = {.rows = rows, .heads = heads, .width = width};
    int64_t gap = p->strided ? 3 : 0;
    a.tensor = ra_tensor_bnhd(NULL, type, rows, heads, width);
    if (p->strided)
        a.tensor = (struct ra_tensor){NULL, type, heads * (rows + 1) * (width + gap) + gap,
                                      width + gap, (rows + 1) * (width + gap)};
    a.numbers = p->config.batch * (heads * (rows + 1) * (width + gap) + gap) + 1;
    size_t bytes = (size_t)(a.numbers * ra_type_bytes(type));
    if (CUDA(__real_cudaMalloc(&a.tensor.data, bytes)))
        CUDA(cudaMemset(a.tensor.data, 0xFF, bytes));
    return a;
}

/* Copies between an array on the device and the rows of this rank in a whole one on the host. For
 * a result that is `wanted`, compares. */
static void move_array(const struct problem *p, const struct ra_plan *plan, int side,
                       struct array *a, float sign, const float *fill, const bool *fill_mask,
                       const float *wanted, const char *name, double tolerance)
{
    const struct ra_config *c = &p->config;
    struct ra_tensor t = a->tensor;
    int64_t size = ra_type_bytes(t.type), rows = rows_of(c, side), numbers = 0;
    char *host = malloc((size_t)(a->numbers * size));
    if (wanted)
        CUDA(cudaMemcpy(host, t.data, (size_t)(a->numbers * size), cudaMemcpyDeviceToHost));
    else
        memset(host, 0xFF, (size_t)(a->numbers * size));
    double largest = 0;
    for (int64_t i = 0; wanted && i < c->batch * rows * a->heads * a->width; i++)
        if (fabs((double)wanted[i]) > largest && isfinite(wanted[i]))
            largest = fabs((double)wanted[i]);
    for (int64_t b = 0; b < c->batch; b++)
        for (int64_t row = 0; row < a->rows; row++)
            for (int64_t h = 0; h < a->heads; h++)
                for (int64_t e = 0; e < a->width; e++, numbers++) {
                    int64_t from = ra_plan_position(plan, side, row);
                    from = ((b * rows + from) * a->heads + h) * a->width + e;
                    char *at = host + (b * t.batch + row * t.row + h * t.head + e) * size;
                    float x = 0;
                    if (fill_mask) {
                        *at = (char)(fill_mask[from] ? 1 + 2 * (from % 2) : 0);
                        continue;
                    }
                    if (!wanted) {
                        x = sign * fill[from];
                        ra_number_store(t.type, 1, &x, at);
                        continue;
                    }
                    ra_number_load(t.type, 1, at, &x);
                    float right = sign * wanted[from];
                    double off = x == right ? 0 : fabs((double)x - (double)right);
                    if (!(off <= tolerance * (largest + 0.01)))
                        trouble("rank %d: %s (%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
                                ") is %g, not %g",
                                ra_plan_rank(plan), name, b, row, h, e, (double)x, (double)right);
                }
    if (!wanted)
        CUDA(cudaMemcpy(t.data, host, (size_t)(a->numbers * size), cudaMemcpyHostToDevice));
    free(host);
}

/* All arrays of a call on the device. */
struct set {
    struct ra_arrays x;
    struct array inputs[INPUTS], results[RESULTS], mask;
    float sign; /* of v and d_out, and so of o and dv: what is left of another call shows */
    cudaStream_t stream; /* ranks that share a GPU must not share a stream */
};

static void make_set(const struct problem *p, const struct ra_plan *plan, struct set *set,
                     float sign)
{
    const struct ra_config *c = &p->config;
    enum ra_type type = c->type, result_type = p->strided ? RA_FLOAT32 : c->type;
    set->x = (struct ra_arrays)RA_ARRAYS_INIT;
    set->sign = sign;
    struct ra_tensor *inputs[] = {&set->x.q, &set->x.k, &set->x.v, &set->x.d_out};
    struct ra_tensor *results[] = {&set->x.o, &set->x.lse, &set->x.dq, &set->x.dk, &set->x.dv};
    for (int i = 0; i < INPUTS; i++) {
        int side = input_sides[i];
        set->inputs[i] = array_of(p, type, ra_plan_rows(plan, side), heads_of(c, side), c->dim);
        move_array(p, plan, side, &set->inputs[i], i == V || i == D_OUT ? sign : 1, p->inputs[i],
                   NULL, NULL, NULL, 0);
        *inputs[i] = set->inputs[i].tensor;
    }
    for (int r = 0; r < RESULTS; r++) {
        int side = result_sides[r];
        set->results[r] = array_of(p, r == LSE ? RA_FLOAT32 : result_type, ra_plan_rows(plan, side),
                                   heads_of(c, side), result_width(p, r));
        *results[r] = set->results[r].tensor;
    }
    set->mask = array_of(p, RA_BOOL, ra_plan_rows(plan, RA_KEY_SIDE), 1, 1);
    if (c->has_mask)
        move_array(p, plan, RA_KEY_SIDE, &set->mask, 1, NULL, p->mask, NULL, NULL, 0);
    set->x.mask = set->mask.tensor;
    CUDA(cudaStreamCreateWithFlags(&set->stream, cudaStreamNonBlocking));
    CUDA(cudaDeviceSynchronize());
}

static void check_set(const struct problem *p, const struct ra_plan *plan, struct set *set)
{
    for (int r = 0; r < (p->config.forward_only ? DQ : RESULTS); r++)
        move_array(p, plan, result_sides[r], &set->results[r], r == O || r == DV ? set->sign : 1,
                   NULL, NULL, p->results[r], result_names[r],
                   r == LSE ? 1e-4 + p->tolerance / 4 : p->tolerance);
}

static void free_set(struct set *set)
{
    for (int i = 0; i < INPUTS; i++)
        CUDA(__real_cudaFree(set->inputs[i].tensor.data));
    for (int r = 0; r < RESULTS; r++)
        CUDA(__real_cudaFree(set->results[r].tensor.data));
    CUDA(__real_cudaFree(set->mask.tensor.data));
    CUDA(cudaStreamDestroy(set->stream));
}

/* This rank's link, as the transport of the problem wants it. */
static struct ra_link link_of(struct problem *p, int rank)
{
    struct ra_link link = thread_ring_link(p->ring, rank);
    return p->config.transport == RA_DEVICE_LINK ? device_link_over(link) : link;
}

/* Until a common time: functions of the host run one after the other, also those of several
 * streams. */
static void rest_until(void *then)
{
    while (seconds() < *(double *)then)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
}

static void compute(void *context, int rank)
{
    struct problem *p = context;
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    CUDA(cudaSetDevice(rank % devices));
    if (!is_well(ra_cuda_link_plan_create(&plan, &p->config, link_of(p, rank), error), error, rank))
        return;
    enum ra_transport wanted = p->config.transport;
    if (p->ranks > 1 && ra_plan_hops(plan) > 1 && wanted != RA_ANY_TRANSPORT &&
        plan->cuda->transport != wanted)
        trouble("rank %d: the transport is number %d", rank, (int)plan->cuda->transport);

    /* Two sets of arrays, each on its own stream, so that two calls of this plan are under way. */
    struct set sets[2];
    for (int i = 0; i < 2; i++)
        make_set(p, plan, &sets[i], i == 0 ? 1 : -1);
    pthread_barrier_wait(&meeting);
    for (int i = 0; i < 2 && p->late > 0; i++)
        CUDA(cudaLaunchHostFunc(sets[i].stream, rest_until, &p->late));
    for (int round = 0; round < p->rounds; round++) {
        struct set *set = &sets[round % 2];
        is_well(ra_cuda_forward(plan, &set->x, set->stream), ra_plan_error(plan), rank);
        if (!p->config.forward_only)
            is_well(ra_cuda_backward(plan, &set->x, set->stream), ra_plan_error(plan), rank);
    }
    is_well(ra_cuda_wait(plan), ra_plan_error(plan), rank);
    pthread_barrier_wait(&meeting);
    for (int i = 0; i < 2; i++) {
        if (i < p->rounds)
            check_set(p, plan, &sets[i]);
        free_set(&sets[i]);
    }
    ra_plan_destroy(plan);
}

/* Runs a problem on its ring. */
static void run(struct problem *p)
{
    begin_problem(p);
    run_ranks(p, compute);
    end_problem(p);
    if (bytes_taken(false) + bytes_taken(true) != 0)
        trouble("%" PRId64 " bytes were not freed", bytes_taken(false) + bytes_taken(true));
}

/* A small problem with a bit of everything. */
static struct problem usual(int ranks, enum ra_type type)
{
    struct problem p = {.config = RA_CONFIG_INIT, .ranks = ranks, .rounds = 2};
    p.config.batch = 2;
    p.config.queries = 37;
    p.config.heads = 4;
    p.config.key_heads = 2;
    p.config.dim = 16;
    p.config.type = type;
    p.config.causal = true;
    p.config.timeout = 30;
    p.tolerance = type == RA_FLOAT32 ? 2e-5 : type == RA_FLOAT16 ? 4e-3 : 3e-2;
    return p;
}

static const char *const type_names[] = {"float32", "float16", "bfloat16"};
static const char *const layout_names[] = {"contiguous", "striped", "zigzag"};
static const char *const transport_names[] = {"any", "peer", "device", "host"};

/* ---- Tests of results. */

static void test_layouts(void)
{
    for (int type = RA_FLOAT32; type <= RA_BFLOAT16; type++)
        for (int layout = RA_CONTIGUOUS; layout <= RA_ZIGZAG; layout++)
            for (int ranks = 1; ranks <= 4; ranks++) {
                struct problem p = usual(ranks, type);
                p.config.layout = layout;
                run(&p);
                verdict("%s, %s, %d ranks", type_names[type], layout_names[layout], ranks);
            }
}

static void test_transports(void)
{
    for (int transport = RA_ANY_TRANSPORT; transport <= RA_HOST_LINK; transport++)
        for (int ranks = 1; ranks <= 4; ranks++) {
            struct problem p = usual(ranks, RA_BFLOAT16);
            p.config.layout = RA_STRIPED;
            p.config.has_mask = true;
            p.config.transport = transport;
            run(&p);
            verdict("transport %s, %d ranks", transport_names[transport], ranks);
        }
}

static void test_shapes(void)
{
    static const struct shape {
        const char *name;
        int ranks;
        int64_t N, M, lookback, bucket;
        bool causal, has_mask, strided, interleaved, forward_only, local_keys;
        double softcap;
        enum ra_layout_kind layout;
        int type;
    } shapes[] = {
        {"not causal", 3, 40, 40, -1, 0, 0, 0, 0, 0, 0, 0, 0, RA_CONTIGUOUS, RA_FLOAT32},
        {"buckets", 3, 61, 61, -1, 4, 1, 0, 0, 0, 0, 0, 0, RA_STRIPED, RA_FLOAT32},
        {"buckets", 4, 61, 61, 7, 3, 1, 0, 0, 0, 0, 0, 0, RA_STRIPED, RA_BFLOAT16},
        {"lookback skips hops", 4, 64, 64, 5, 0, 1, 0, 0, 0, 0, 0, 0, RA_CONTIGUOUS, RA_FLOAT32},
        {"lookback skips hops", 4, 64, 64, 5, 0, 1, 0, 0, 0, 0, 0, 0, RA_ZIGZAG, RA_FLOAT16},
        {"lookback 0", 4, 64, 64, 0, 0, 1, 0, 0, 0, 0, 0, 0, RA_STRIPED, RA_FLOAT32},
        {"interleaved heads", 2, 33, 33, -1, 0, 1, 0, 0, 1, 0, 0, 0, RA_ZIGZAG, RA_BFLOAT16},
        {"soft cap", 3, 33, 33, -1, 0, 1, 0, 0, 0, 0, 0, 3, RA_STRIPED, RA_FLOAT32},
        {"key mask", 4, 45, 45, -1, 0, 1, 1, 0, 0, 0, 0, 0, RA_ZIGZAG, RA_FLOAT32},
        {"key mask", 3, 45, 45, -1, 0, 0, 1, 1, 0, 0, 0, 0, RA_CONTIGUOUS, RA_BFLOAT16},
        {"strided arrays", 3, 45, 45, -1, 0, 1, 0, 1, 0, 0, 0, 0, RA_STRIPED, RA_FLOAT32},
        {"strided arrays", 2, 45, 45, -1, 0, 1, 1, 1, 0, 0, 0, 0, RA_ZIGZAG, RA_FLOAT16},
        {"more ranks than rows", 4, 3, 3, -1, 0, 1, 0, 0, 0, 0, 0, 0, RA_STRIPED, RA_FLOAT32},
        {"more ranks than rows", 4, 3, 3, -1, 0, 0, 1, 0, 0, 0, 0, 0, RA_CONTIGUOUS, RA_BFLOAT16},
        {"more ranks than rows", 4, 5, 5, -1, 0, 1, 0, 0, 0, 0, 0, 0, RA_ZIGZAG, RA_FLOAT32},
        {"fewer keys, some see none", 3, 40, 11, -1, 0, 1, 0, 0, 0, 0, 0, 0, RA_CONTIGUOUS,
         RA_FLOAT32},
        {"fewer keys, some see none", 4, 40, 11, -1, 0, 1, 1, 0, 0, 0, 0, 0, RA_STRIPED,
         RA_BFLOAT16},
        {"more keys", 3, 11, 50, -1, 0, 1, 0, 0, 0, 0, 0, 0, RA_STRIPED, RA_FLOAT32},
        {"more keys", 4, 11, 50, -1, 0, 0, 0, 0, 0, 0, 0, 0, RA_ZIGZAG, RA_FLOAT16},
        {"no keys", 3, 11, 0, -1, 0, 1, 0, 0, 0, 0, 0, 0, RA_CONTIGUOUS, RA_FLOAT32},
        {"no queries", 3, 0, 11, -1, 0, 1, 0, 0, 0, 0, 0, 0, RA_CONTIGUOUS, RA_FLOAT32},
        {"forward only", 4, 45, 45, -1, 0, 1, 0, 0, 0, 1, 0, 0, RA_STRIPED, RA_BFLOAT16},
        {"forward only, rank 0 only sends", 3, 45, 45, -1, 0, 1, 0, 0, 0, 1, 0, 0, RA_CONTIGUOUS,
         RA_FLOAT32},
        {"local keys", 3, 45, 45, -1, 0, 0, 0, 0, 0, 0, 1, 0, RA_CONTIGUOUS, RA_FLOAT32},
        {"several tiles", 4, 700, 700, -1, 0, 1, 1, 0, 0, 0, 0, 0, RA_STRIPED, RA_BFLOAT16},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = &shapes[i];
        struct problem p = usual(s->ranks, (enum ra_type)s->type);
        p.config.queries = s->N;
        p.config.keys = s->M;
        p.config.lookback = s->lookback;
        p.config.bucket = s->bucket;
        p.config.causal = s->causal;
        p.config.has_mask = s->has_mask;
        p.config.head_map = s->interleaved ? RA_INTERLEAVED : RA_GROUPED;
        p.config.forward_only = s->forward_only;
        p.config.softcap = s->softcap;
        p.config.layout = s->layout;
        p.strided = s->strided;
        p.rounds = s->forward_only ? 20 : p.rounds;
        for (int transport = RA_PEER_COPIES; transport <= RA_HOST_LINK; transport++) {
            /* Local keys are not those of a whole sequence: only that the calls go through. */
            p.config.transport = transport;
            p.config.local_keys = s->local_keys;
            if (s->local_keys) {
                p.config.local_keys = true;
                p.rounds = 0;
            }
            run(&p);
            verdict("%s: %s, %s, %d ranks, transport %s", s->name, type_names[s->type],
                    layout_names[s->layout], s->ranks, transport_names[transport]);
        }
    }
}

/* A plan that is used often, always with two calls under way. */
static void test_often(void)
{
    for (int ranks = 2; ranks <= 4; ranks++) {
        struct problem p = usual(ranks, RA_BFLOAT16);
        p.config.layout = RA_ZIGZAG;
        p.config.has_mask = true;
        p.rounds = 50;
        run(&p);
        verdict("50 calls of each kind, %d ranks", ranks);
    }
}

/* What the caller's stream has to do before a call does not count as lateness of a rank, also where a
 * rank sends nothing at first, as the last one of a causal ring. */
static void test_late_streams(void)
{
    for (int transport = RA_PEER_COPIES; transport <= RA_HOST_LINK; transport++) {
        struct problem p = usual(3, RA_FLOAT32);
        p.config.timeout = 1;
        p.config.transport = transport;
        p.late = seconds() + 3;
        run(&p);
        verdict("streams with other work, transport %s", transport_names[transport]);
    }
}

static void test_created_often(void)
{
    struct problem p = usual(3, RA_FLOAT32);
    p.config.layout = RA_STRIPED;
    for (int i = 0; i < 50 && troubles == 0; i++)
        run(&p);
    verdict("50 plans, one after the other");
}

/* ---- Equal bits. */

static void compute_twice(void *context, int rank)
{
    struct problem *p = context;
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    CUDA(cudaSetDevice(rank % devices));
    if (!is_well(ra_cuda_link_plan_create(&plan, &p->config, link_of(p, rank), error), error, rank))
        return;
    struct set sets[2];
    for (int i = 0; i < 2; i++)
        make_set(p, plan, &sets[i], 1);
    pthread_barrier_wait(&meeting);
    for (int i = 0; i < 2; i++) {
        is_well(ra_cuda_forward(plan, &sets[i].x, sets[i].stream), ra_plan_error(plan), rank);
        is_well(ra_cuda_backward(plan, &sets[i].x, sets[i].stream), ra_plan_error(plan), rank);
        is_well(ra_cuda_wait(plan), ra_plan_error(plan), rank);
    }
    pthread_barrier_wait(&meeting);
    for (int r = 0; r < RESULTS; r++) {
        const struct array *a = sets[0].results;
        size_t bytes = (size_t)(a[r].numbers * ra_type_bytes(a[r].tensor.type));
        char *one = malloc(bytes), *two = malloc(bytes);
        CUDA(cudaMemcpy(one, a[r].tensor.data, bytes, cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(two, sets[1].results[r].tensor.data, bytes, cudaMemcpyDeviceToHost));
        if (memcmp(one, two, bytes) != 0)
            trouble("rank %d: %s differs", rank, result_names[r]);
        free(one);
        free(two);
    }
    for (int i = 0; i < 2; i++) {
        check_set(p, plan, &sets[i]);
        free_set(&sets[i]);
    }
    ra_plan_destroy(plan);
}

static void test_deterministic(void)
{
    for (int type = RA_FLOAT32; type <= RA_BFLOAT16; type++) {
        struct problem p = usual(3, (enum ra_type)type);
        p.config.queries = 500;
        p.config.deterministic = true;
        p.config.layout = RA_STRIPED;
        begin_problem(&p);
        run_ranks(&p, compute_twice);
        end_problem(&p);
        verdict("equal bits, %s", type_names[type]);
    }
}

/* ---- Memory. */

static int64_t said[MOST_RANKS]; /* by rank */

static void check_memory(void *context, int rank)
{
    struct problem *p = context;
    struct ra_plan *plan = NULL;
    char error[RA_ERROR_SIZE];
    CUDA(cudaSetDevice(rank % devices));
    bool well =
        is_well(ra_cuda_link_plan_create(&plan, &p->config, link_of(p, rank), error), error, rank);
    said[rank] = well ? ra_plan_bytes(plan) - plan->fixed_bytes : 0;
    pthread_barrier_wait(&meeting);

    /* What the plans have is what was taken, but for struct ra_cuda and its arrays. */
    int64_t all = 0, taken = bytes_taken(false) + bytes_taken(true);
    for (int r = 0; r < p->ranks; r++)
        all += said[r];
    if (rank == 0 && !(all > taken && all <= taken + 8192 * p->ranks))
        trouble("the plans say that they have %" PRId64 " bytes; %" PRId64 " were taken", all,
                taken);
    pthread_barrier_wait(&meeting);
    if (!well)
        return;
    char text[4096];
    int64_t length = ra_plan_describe(plan, rank, text, sizeof text);
    if (length >= (int64_t)sizeof text || !strstr(text, "transport: ") || !strstr(text, "device "))
        trouble("rank %d: the description is %s", rank, text);
    struct set set;
    make_set(p, plan, &set, 1);
    pthread_barrier_wait(&meeting);
    is_well(ra_cuda_forward(plan, &set.x, set.stream), ra_plan_error(plan), rank);
    is_well(ra_cuda_backward(plan, &set.x, set.stream), ra_plan_error(plan), rank);
    is_well(ra_cuda_wait(plan), ra_plan_error(plan), rank);
    pthread_barrier_wait(&meeting);
    if (bytes_taken(false) + bytes_taken(true) != taken)
        trouble("rank %d: a call has taken memory", rank);
    pthread_barrier_wait(&meeting);
    free_set(&set);
    ra_plan_destroy(plan);
}

/* A plan to look at says how much rank 0 of the last run had. */
static void check_forecast(const struct problem *p)
{
    struct ra_config config = p->config;
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    config.ring_size = p->ranks;
    if (!is_well(ra_cuda_plan_create(&plan, &config, error), error, 0))
        return;
    int64_t bytes = ra_plan_bytes(plan) - plan->fixed_bytes;
    if (bytes != said[0])
        trouble("to look at, rank 0 has %" PRId64 " bytes, in the ring %" PRId64, bytes, said[0]);
    ra_plan_destroy(plan);
}

static void test_memory(void)
{
    for (int transport = RA_ANY_TRANSPORT; transport <= RA_HOST_LINK; transport++)
        for (int ranks = 1; ranks <= 3; ranks++) {
            struct problem p = usual(ranks, transport == 0 ? RA_FLOAT32 : RA_BFLOAT16);
            p.config.transport = transport;
            p.config.has_mask = true;
            p.config.deterministic = ranks == 2;
            begin_problem(&p);
            run_ranks(&p, check_memory);
            end_problem(&p);
            if (transport != RA_ANY_TRANSPORT && ranks > 1)
                check_forecast(&p);
            verdict("memory is what was predicted, transport %s, %d ranks",
                    transport_names[transport], ranks);
        }

    /* A plan to look at says what each rank is going to have, without a device. */
    struct problem p = usual(3, RA_BFLOAT16);
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    p.config.ring_size = 3;
    p.config.transport = RA_PEER_COPIES;
    if (is_well(ra_cuda_plan_create(&plan, &p.config, error), error, 0)) {
        struct ra_arrays x = RA_ARRAYS_INIT;
        if (ra_plan_bytes(plan) < 3 * 2 * 37 || ra_cuda_forward(plan, &x, NULL) != RA_INVALID ||
            !strstr(ra_plan_error(plan), "to look at") || ra_cuda_wait(plan) != RA_OK)
            trouble("%" PRId64 " bytes; %s", ra_plan_bytes(plan), ra_plan_error(plan));
        ra_plan_destroy(plan);
    }
    verdict("a plan to look at");
}

/* ---- Errors. */

static enum ra_status statuses[MOST_RANKS];
static char texts[MOST_RANKS][RA_ERROR_SIZE];
static int odd_rank; /* which one is different */
static enum { NO_CALL, NO_ARRAY, OTHER_HEADS, LARGE_DIM, NO_DEVICE_LINK } oddity;

static void err(void *context, int rank)
{
    struct problem *p = context;
    struct ra_config config = p->config;
    struct ra_plan *plan;
    bool odd = rank == odd_rank;
    CUDA(cudaSetDevice(rank % devices));
    if (odd && oddity == OTHER_HEADS)
        config.heads *= 2;
    if (odd && oddity == LARGE_DIM)
        config.dim = 300;
    if (oddity == NO_DEVICE_LINK)
        config.transport = RA_DEVICE_LINK;
    texts[rank][0] = '\0';
    statuses[rank] =
        ra_cuda_link_plan_create(&plan, &config, thread_ring_link(p->ring, rank), texts[rank]);
    if (statuses[rank] != RA_OK) {
        if (plan)
            trouble("rank %d: a plan after an error", rank);
        return;
    }
    struct set set;
    make_set(p, plan, &set, 1);
    pthread_barrier_wait(&meeting);
    if (odd && oddity == NO_ARRAY)
        set.x.q.data = NULL;
    if (!odd || oddity != NO_CALL)
        statuses[rank] = ra_cuda_forward(plan, &set.x, set.stream);
    if (statuses[rank] == RA_OK && (!odd || oddity != NO_CALL))
        statuses[rank] = ra_cuda_wait(plan);
    snprintf(texts[rank], RA_ERROR_SIZE, "%s", ra_plan_error(plan));

    /* Once lost, always lost. */
    if (!odd && statuses[rank] == RA_LOST && ra_cuda_forward(plan, &set.x, set.stream) != RA_LOST)
        trouble("rank %d: a lost plan computes", rank);
    CUDA(cudaStreamSynchronize(set.stream));

    /* To free memory is to wait for the whole device, and so for ranks that still wait for this. */
    pthread_barrier_wait(&meeting);
    ra_plan_destroy(plan);
}

/* Runs three ranks, one of which is odd; compares what all of them got. */
static void expect(const char *name, enum ra_transport transport, double timeout,
                   enum ra_status odd_status, enum ra_status status, const char *word)
{
    struct problem p = usual(3, RA_FLOAT32);
    p.config.causal = false; /* everybody needs everybody */
    p.config.transport = transport;
    p.config.timeout = timeout;
    begin_problem(&p);
    for (odd_rank = 0; odd_rank < 3; odd_rank++) {
        double began = seconds();
        run_ranks(&p, err);
        if (seconds() - began > (oddity == NO_CALL ? 2 * timeout + 3 : timeout / 2))
            trouble("rank %d is odd: that took %.1f seconds", odd_rank, seconds() - began);
        for (int rank = 0; rank < 3; rank++) {
            enum ra_status wanted = rank == odd_rank ? odd_status : status;
            bool says_it = (rank == odd_rank && oddity == NO_CALL) || strstr(texts[rank], word);
            if (statuses[rank] != wanted || !says_it)
                trouble("rank %d is odd; rank %d: %s: %s", odd_rank, rank,
                        ra_status_text(statuses[rank]), texts[rank]);
        }
    }
    end_problem(&p);
    verdict("%s, transport %s", name, transport_names[transport]);
}

static void test_errors(void)
{
    /* What a lost ring had stays: who was lost might still write to it. */
    oddity = OTHER_HEADS;
    expect("ranks that disagree", RA_ANY_TRANSPORT, 20, RA_DISAGREEMENT, RA_DISAGREEMENT,
           "config.heads");
    oddity = LARGE_DIM;
    expect("a config that is refused", RA_ANY_TRANSPORT, 20, RA_INVALID, RA_INVALID,
           "config.dim = 300");
    oddity = NO_DEVICE_LINK;
    expect("a transport that cannot be", RA_ANY_TRANSPORT, 20, RA_INVALID, RA_INVALID,
           "RA_DEVICE_LINK");
    oddity = NO_ARRAY;
    expect("an array that is refused", RA_PEER_COPIES, 20, RA_INVALID, RA_LOST, "arrays.q.data");
    expect("an array that is refused", RA_HOST_LINK, 20, RA_INVALID, RA_LOST, "arrays.q.data");
    oddity = NO_CALL;
    expect("a rank that is dead", RA_PEER_COPIES, 2, RA_OK, RA_LOST, "hop ");
    expect("a rank that is dead", RA_HOST_LINK, 2, RA_OK, RA_LOST, "hop ");
}

static void test_wrong_calls(void)
{
    struct problem p = usual(1, RA_FLOAT32);
    struct ra_arrays x = RA_ARRAYS_INIT;
    struct ra_plan *device, *host;
    char error[RA_ERROR_SIZE];
    if (is_well(ra_cuda_plan_create(&device, &p.config, error), error, 0) &&
        is_well(ra_plan_create(&host, &p.config, error), error, 0)) {
        if (ra_forward(device, &x) != RA_INVALID ||
            !strstr(ra_plan_error(device), "ra_cuda_forward") ||
            ra_backward(device, &x) != RA_INVALID)
            trouble("%s", ra_plan_error(device));
        if (ra_cuda_forward(host, &x, NULL) != RA_INVALID ||
            !strstr(ra_plan_error(host), "ra_forward") ||
            ra_cuda_backward(host, &x, NULL) != RA_INVALID || ra_cuda_wait(host) != RA_INVALID)
            trouble("%s", ra_plan_error(host));
        ra_plan_destroy(device);
        ra_plan_destroy(host);
    }
    verdict("calls of the other library");

    /* Types: what is multiplied is of the plan's type, results may be float32. */
    p = usual(1, RA_BFLOAT16);
    if (is_well(ra_cuda_plan_create(&device, &p.config, error), error, 0)) {
        void *data;
        CUDA(__real_cudaMalloc(&data, 1 << 16));
        x.q = ra_tensor_bnhd(data, RA_FLOAT32, 37, 4, 16);
        x.k = x.v = ra_tensor_bnhd(data, RA_BFLOAT16, 37, 2, 16);
        if (ra_cuda_forward(device, &x, NULL) != RA_INVALID ||
            !strstr(ra_plan_error(device), "arrays.q.type = RA_FLOAT32: give RA_BFLOAT16"))
            trouble("%s", ra_plan_error(device));
        x.q = ra_tensor_bnhd(data, RA_BFLOAT16, 37, 4, 16);
        x.q.row = -x.q.row;
        if (ra_cuda_forward(device, &x, NULL) != RA_INVALID ||
            !strstr(ra_plan_error(device), "below 0"))
            trouble("%s", ra_plan_error(device));
        CUDA(__real_cudaFree(data));
        ra_plan_destroy(device);
    }
    verdict("types and strides that are refused");
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {{"layouts", test_layouts},
                 {"transports", test_transports},
                 {"shapes", test_shapes},
                 {"often", test_often},
                 {"created", test_created_often},
                 {"late", test_late_streams},
                 {"deterministic", test_deterministic},
                 {"memory", test_memory},
                 {"calls", test_wrong_calls},
                 {"errors", test_errors}};

    for (int a = 1; a < argc; a++) {
        bool known = false;
        for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
            known = known || strcmp(argv[a], tests[i].name) == 0;
        if (!known) {
            fprintf(stderr, "usage: check-cuda-ring [PART...]      PART:");
            for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
                fprintf(stderr, " %s", tests[i].name);
            fprintf(stderr, " (default: all)\n");
            return 2;
        }
    }

    /* Several ranks of one process on one GPU: see ring_attention_cuda.h. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("no CUDA device: nothing was run\n0 passed, 0 failed\n");
        return 1;
    }
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        bool wanted = argc == 1;
        for (int a = 1; a < argc; a++)
            wanted = wanted || strcmp(argv[a], tests[i].name) == 0;
        if (wanted)
            tests[i].run();
    }
    printf("%d passed, %d failed\n", passed, failed);
    return passed > 0 && failed == 0 ? 0 : 1;
}
