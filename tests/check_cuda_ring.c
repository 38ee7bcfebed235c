/* check_cuda_ring: rings of GPUs against tests/rig/truth.h. A rank has GPU number rank modulo the
 * number of GPUs, so one is enough.
 *
 *   mpirun -n 4 build/check-cuda-ring [PART...]
 *
 * A ring of fewer ranks than four has the first ones; the others wait. Without a GPU it says that
 * nothing was run. build/check-cuda-ring-on-host is the same program without a GPU: see
 * cuda_on_host.c.
 */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "arrays.h"
#include "patterns.h"
#include "ra_cuda_launch.h"
#include "ra_cuda_peers.h"
#include "ra_cuda_spans.h"
#include "ra_cuda_steps.h"
#include "ra_kernel.h"
#include "ra_options.h"
#include "ring_attention_cuda.h"
#include "ring_attention_mpi.h"
#include "ring_attention_scale.h"
#include "thread_link.h"
#include "truth.h"
#include "verdict.h"

enum { MOST_RANKS = 4 };

static int devices, world_rank;

static bool cuda(cudaError_t code, const char *what)
{
    if (code != cudaSuccess)
        WRONG("%s: %s", what, cudaGetErrorString(code));
    return code == cudaSuccess;
}

#define CUDA(call) cuda(call, #call)

static bool is_well(enum ra_status status, const char *error, int rank)
{
    if (status != RA_OK)
        WRONG("rank %d: %s: %s", rank, ra_status_text(status), error);
    return status == RA_OK;
}

/* ---- Device memory that the library takes, and what goes wrong in this thread: the linker sends
 * its calls through here. */

cudaError_t __real_cudaMalloc(void **pointer, size_t bytes);
cudaError_t __real_cudaFree(void *pointer);
cudaError_t __real_cudaHostAlloc(void **pointer, size_t bytes, unsigned flags);
cudaError_t __real_cudaFreeHost(void *pointer);
cudaError_t __wrap_cudaMalloc(void **pointer, size_t bytes);
cudaError_t __wrap_cudaFree(void *pointer);
cudaError_t __wrap_cudaHostAlloc(void **pointer, size_t bytes, unsigned flags);
cudaError_t __wrap_cudaFreeHost(void *pointer);
cudaError_t __real_cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned flags);
cudaError_t __wrap_cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned flags);
ra_kernel_launch __real_ra_k02_forward, __wrap_ra_k02_forward;
ra_kernel_launch __real_ra_k02_backward, __wrap_ra_k02_backward;
ra_kernel_launch __real_ra_k07_forward, __wrap_ra_k07_forward;
ra_kernel_launch __real_ra_k07_backward, __wrap_ra_k07_backward;
int64_t __real_ra_cuda_deferred_keys(const struct ra_plan *plan);
int64_t __wrap_ra_cuda_deferred_keys(const struct ra_plan *plan);

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool no_device_memory, no_host_memory, no_foreign_memory, no_launch;
static _Thread_local int foreign_memory; /* there is, so often, before there is none */

static struct block {
    void *pointer;
    int64_t bytes;
} blocks[4096];

static void remember(void *pointer, size_t bytes)
{
    pthread_mutex_lock(&mutex);
    int i = 0;
    while (blocks[i].pointer)
        i++;
    blocks[i] = (struct block){pointer, (int64_t)bytes};
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

static int64_t bytes_taken(void)
{
    int64_t sum = 0;
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < 4096; i++)
        sum += blocks[i].pointer ? blocks[i].bytes : 0;
    pthread_mutex_unlock(&mutex);
    return sum;
}

cudaError_t __wrap_cudaMalloc(void **pointer, size_t bytes)
{
    cudaError_t code =
        no_device_memory ? cudaErrorMemoryAllocation : __real_cudaMalloc(pointer, bytes);
    if (code == cudaSuccess)
        remember(*pointer, bytes);
    return code;
}

cudaError_t __wrap_cudaFree(void *pointer)
{
    forget(pointer);
    return __real_cudaFree(pointer);
}

cudaError_t __wrap_cudaHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    /* Not what host and device share, which is mapped, but memory for messages. */
    bool none = no_host_memory && !(flags & cudaHostAllocMapped);
    cudaError_t code =
        none ? cudaErrorMemoryAllocation : __real_cudaHostAlloc(pointer, bytes, flags);
    if (code == cudaSuccess)
        remember(*pointer, bytes);
    return code;
}

cudaError_t __wrap_cudaFreeHost(void *pointer)
{
    forget(pointer);
    return __real_cudaFreeHost(pointer);
}

cudaError_t __wrap_cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned flags)
{
    return no_foreign_memory && foreign_memory-- <= 0
               ? cudaErrorNotSupported
               : __real_cudaIpcOpenMemHandle(memory, handle, flags);
}

/* How many of these a thread has launched. */
static _Thread_local int launches;

cudaError_t __wrap_ra_k02_forward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    launches++;
    return no_launch ? cudaErrorInvalidValue : __real_ra_k02_forward(kernel, stream);
}

cudaError_t __wrap_ra_k02_backward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    launches++;
    return __real_ra_k02_backward(kernel, stream);
}

cudaError_t __wrap_ra_k07_forward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    launches++;
    return __real_ra_k07_forward(kernel, stream);
}

cudaError_t __wrap_ra_k07_backward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    launches++;
    return __real_ra_k07_backward(kernel, stream);
}

/* Of few own keys some are left for the end, too, where a test wants that. */
static bool leaves_a_rest;
static atomic_int rests; /* how often they were */

int64_t __wrap_ra_cuda_deferred_keys(const struct ra_plan *plan)
{
    if (!leaves_a_rest || !ra_ring_sends(&plan->ring, plan->link.rank, 0))
        return __real_ra_cuda_deferred_keys(plan);
    rests++;
    return (ra_plan_rows(plan, RA_KEY_SIDE) + 2) / 3;
}

/* ---- Links. */

/* A link that takes device pointers: another one, with copies to and from the host around it. */
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
    enum ra_message way = message == RA_GRADIENTS_RETURN ? RA_GRADIENTS : message;
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

        /* A copy out of ordinary memory returns when it has been read, not when it has arrived. */
        CUDA(cudaStreamSynchronize(0));
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

/* A whole problem, and what is right. */
struct trial {
    struct ra_config config;
    int ranks;
    bool strided; /* arrays with gaps, heads before rows, and float32 results */
    int sharing;  /* the link says that so many ranks share a host; 0: what it says */
    int apart;    /* or so many numbers between batches only */
    int rounds;   /* calls of each kind, two of which are always under way */
    struct truth truth;
    int late;         /* seconds of other work that streams have before the calls, */
    int first_late;   /* from this rank on */
    int hops;         /* of the plan; 0: never mind */
    bool device_link; /* messages pass on one that takes device pointers */
    bool unreached;   /* rank 1 does not reach the memory of others */
    int reached;      /* but of so many first */
    bool neighbours;  /* share a device, of threads */
    struct ra_slice slices[PATTERN_SLICES]; /* if config.max_slices > 0: the mask */
    int64_t slice_count;
    enum ra_deal deal;
    bool listed; /* every hop is one launch; or two, where dq comes behind dk and dv */

    /* Slopes, sinks and a gradient of lse, and the numbers of each head that come out. */
    bool extras;
    double *slopes, *sink, *d_lse; /* (H), (H), (B, N, H) */
    double *largest, *d_sink;      /* (H): of all ranks of a ring together */
    MPI_Comm comm;
    bool threads; /* the ranks are threads of the first process, on this ring */
    struct thread_ring *ring;
};

/* With local keys the rows of each rank are a sequence for themselves. */
static int *homes_of(int64_t rows, int ranks)
{
    int *homes = calloc((size_t)rows + 1, sizeof *homes);
    for (int64_t i = 0; i < rows; i++)
        homes[i] = (int)(i / ((rows + ranks - 1) / ranks));
    return homes;
}

/* Draws what is given beside the keys: sinks and slopes of both signs, and some that are none. */
static void make_extras(struct trial *p, uint64_t *state)
{
    struct truth *t = &p->truth;
    p->slopes = truth_numbers(t->H);
    p->sink = truth_numbers(t->H);
    p->d_lse = truth_numbers(t->B * t->N * t->H);
    for (int64_t h = 0; h < t->H; h++) {
        p->slopes[h] = h % 3 == 2 ? 0 : (double)(float)(0.3 * random_number(state));
        p->sink[h] = h % 4 == 1 ? -(double)INFINITY : (double)(float)random_number(state);
        p->sink[h] += h % 4 == 2 ? 50 : 0;
    }
    for (int64_t e = 0; e < t->B * t->N * t->H; e++)
        p->d_lse[e] = (double)(float)(3 * random_number(state));
    t->slopes = p->slopes;
    t->sink = p->sink;
    t->d_lse = p->d_lse;
}

/* Tells the ring what is right of each head; the first rank knows. */
static void tell_heads(struct truth *t, MPI_Comm ring, int rank)
{
    double **const all[] = {&t->largest, &t->largest_error, &t->d_sink, &t->d_sink_error};
    for (int i = 0; i < 4; i++) {
        if (rank > 0)
            *all[i] = truth_numbers(t->H);
        else if (!*all[i])
            *all[i] = truth_numbers(t->H);
        MPI_Bcast(*all[i], (int)t->H, MPI_DOUBLE, 0, ring);
    }
}

/* Finds what is right: the first rank of each ring does, and tells the others. */
static void find_truth(struct trial *p, int ring_number)
{
    struct truth *t = &p->truth;
    MPI_Comm ring;
    int rank;
    MPI_Comm_split(MPI_COMM_WORLD, ring_number, 0, &ring);
    MPI_Comm_rank(ring, &rank);
    if (rank == 0) {
        truth_forward(t);
        if (p->extras)
            truth_largest(t);
        if (!p->config.forward_only)
            truth_backward(t, NULL);
    }
    if (p->extras)
        tell_heads(t, ring, rank);
    for (enum truth_array a = O; a < ARRAYS; a++) {
        if (!truth_is_output(a) || (p->config.forward_only && a >= DQ))
            continue;
        int64_t count = truth_count(t, a), heads = t->B * truth_heads(t, a);
        if (rank > 0) {
            t->x[a] = truth_numbers(count);
            t->allowed[a] = truth_numbers(heads);
        }
        MPI_Bcast(t->x[a], (int)count, MPI_DOUBLE, 0, ring);
        MPI_Bcast(t->allowed[a], (int)heads, MPI_DOUBLE, 0, ring);
    }
    MPI_Comm_free(&ring);
}

/* Do ranks exchange heads? Then o is of the inputs' type. */
static bool exchanges(const struct trial *p)
{
    return p->config.method > RA_GATHERED_KEYS && p->ranks > 1;
}

/* Makes the inputs, and finds what is right. The backward on a GPU begins with the o that it has
 * written, rounded to its type, and multiplies weights of 16 bits. */
static void begin_problem(struct trial *p)
{
    const struct ra_config *c = &p->config;
    struct truth *t = &p->truth;
    *t = truth_of(c);
    t->weights = c->type;
    t->tanh_of_exp = true;
    for (int a = 0; a < ARRAYS; a++)
        t->type[a] =
            p->strided && truth_is_output(a) && !(a == O && exchanges(p)) ? RA_FLOAT32 : t->type[a];
    if (c->max_slices > 0) {
        t->causal = false;
        t->slices = p->slices;
        t->slice_count = p->slice_count;
    }
    for (int side = 0; side < 2 && c->local_keys; side++)
        t->home[side] = homes_of(side == RA_KEY_SIDE ? t->M : t->N, p->ranks);

    /* Every ring has a problem of its own. */
    int ring = c->ring_size > 0 ? world_rank / c->ring_size : 0;
    uint64_t state = (uint64_t)ring;
    truth_make_inputs(t, random_number, 1, &state);
    if (c->has_mask)
        t->x[MASK] = truth_numbers(t->B * t->M);
    for (int64_t e = 0; c->has_mask && e < t->B * t->M; e++)
        t->x[MASK][e] = random_below(&state, 4) == 0 ? 0 : 1 + (double)(e % 2) * 2;
    if (p->extras)
        make_extras(p, &state);
    find_truth(p, ring);

    /* A row that sees nothing has no gradient of lse: it may be anything. */
    for (int64_t e = 0; p->extras && e < t->B * t->N * t->H; e++)
        if (t->x[LSE][e] == -(double)INFINITY)
            p->d_lse[e] = (double)NAN;
}

static void end_problem(struct trial *p)
{
    free(p->slopes);
    free(p->sink);
    free(p->d_lse);
    free((void *)p->truth.home[0]);
    free((void *)p->truth.home[1]);
    truth_clear(&p->truth);
}

/* Threads that share a GPU also wait for each other when one of them takes or frees memory: so
 * ranks begin together, and free together. */
static pthread_barrier_t barrier;

static void synchronize(const struct trial *p)
{
    MPI_Request request;
    if (p->threads) {
        pthread_barrier_wait(&barrier);
    } else {
        MPI_Ibarrier(p->comm, &request);
        verdict_await(request);
    }
}

/* Runs the ranks of a problem. */
static void run_ranks(struct trial *p, void (*body)(void *problem, int rank))
{
    if (p->threads && world_rank == 0) {
        p->ring = thread_ring_open(p->ranks, p->config.timeout, THREAD_LATE);
        pthread_barrier_init(&barrier, NULL, (unsigned)p->ranks);
        thread_ring_run(p->ranks, body, p);
        pthread_barrier_destroy(&barrier);
        thread_ring_close(p->ring);
    }
    if (p->threads)
        return;
    MPI_Comm_split(MPI_COMM_WORLD, world_rank < p->ranks ? 0 : MPI_UNDEFINED, 0, &p->comm);
    if (p->comm == MPI_COMM_NULL)
        return;
    body(p, world_rank);
    MPI_Comm_free(&p->comm);
}

/* ---- One rank. */

/* Array `a` of a rank on the device, with room for what strides step over. */
struct array {
    struct ra_tensor tensor;
    int64_t rows, bytes;
};

static struct array array_of(const struct trial *p, enum truth_array a, int64_t rows)
{
    int64_t heads = truth_heads(&p->truth, a), width = truth_width(&p->truth, a);
    int64_t gap = p->strided ? 3 : 0;
    enum ra_type type = p->truth.type[a];
    struct array array = {ra_tensor_bnhd(NULL, type, rows, heads, width), rows, 0};
    array.tensor.batch += p->apart;
    if (p->strided)
        array.tensor = (struct ra_tensor){NULL, type, heads * (rows + 1) * (width + gap) + gap,
                                          width + gap, (rows + 1) * (width + gap)};
    array.bytes = p->config.batch * (heads * (rows + 1) * (width + gap) + gap) + 1;
    array.bytes *= ra_type_bytes(type);
    if (CUDA(__real_cudaMalloc(&array.tensor.data, (size_t)array.bytes)))
        CUDA(cudaMemset(array.tensor.data, 0xFF, (size_t)array.bytes));
    return array;
}

/* Copies this rank's rows of an array between the device and a whole one. */
static void move_array(const struct trial *p, const struct ra_plan *plan, enum truth_array a,
                       struct array *array, double *whole, bool to_device)
{
    struct ra_tensor image = array->tensor;
    int64_t *positions = calloc((size_t)array->rows + 1, sizeof *positions);
    ra_plan_positions(plan, side_of(a), positions);
    image.data = malloc((size_t)array->bytes);
    CUDA(cudaMemcpy(image.data, array->tensor.data, (size_t)array->bytes, cudaMemcpyDeviceToHost));
    (to_device ? arrays_put : arrays_get)(&p->truth, a, image, array->rows, positions, whole);
    if (to_device)
        CUDA(cudaMemcpy(array->tensor.data, image.data, (size_t)array->bytes,
                        cudaMemcpyHostToDevice));
    free(image.data);
    free(positions);
}

/* All arrays of a call on the device. */
struct set {
    struct ra_arrays x;
    struct array arrays[ARRAYS];
    double sign; /* of v and d_out, and so of o and dv: what is left of another call shows */
    float
        *heads; /* sinks, slopes, d_sink, largest: (4, H, 2), every other number NaN; then d_lse */
    cudaStream_t stream; /* ranks that share a GPU must not share a stream */
};

/* The whole of an array with the sign that it has in this set. */
static double *signed_copy(const struct trial *p, const struct set *set, enum truth_array a)
{
    int64_t numbers = truth_count(&p->truth, a);
    bool turns = a == V || a == D_OUT || a == O || a == DV;
    double *copy = truth_numbers(numbers);
    for (int64_t e = 0; e < numbers; e++)
        copy[e] = (turns ? set->sign : 1) * p->truth.x[a][e];
    return copy;
}

/* How many numbers set->heads has before d_lse. */
static int64_t heads_size(const struct trial *p)
{
    return 8 * p->config.heads;
}

/* Puts what there is beside the keys on the device. It is the same whatever the sign. */
static void give_extras(const struct trial *p, const struct ra_plan *plan, struct set *set)
{
    const struct truth *t = &p->truth;
    int64_t n = ra_plan_rows(plan, RA_QUERY_SIDE), H = t->H, size = heads_size(p) + t->B * n * H;
    int64_t *positions = calloc((size_t)n + 1, sizeof *positions);
    float *image = malloc((size_t)size * sizeof *image);
    ra_plan_positions(plan, RA_QUERY_SIDE, positions);
    for (int64_t i = 0; i < heads_size(p); i++)
        image[i] = NAN;
    for (int64_t h = 0; h < H; h++) {
        image[2 * h] = (float)p->sink[h];
        image[2 * (H + h)] = (float)p->slopes[h];
    }
    for (int64_t e = 0; e < t->B * n * H; e++) {
        int64_t b = e / (n * H), h = e / n % H, row = positions[e % n];
        image[heads_size(p) + e] = (float)p->d_lse[(b * t->N + row) * H + h];
    }
    if (CUDA(__real_cudaMalloc((void **)&set->heads, (size_t)size * sizeof *image)))
        CUDA(cudaMemcpy(set->heads, image, (size_t)size * sizeof *image, cudaMemcpyHostToDevice));
    struct ra_tensor *const tensors[] = {&set->x.sink, &set->x.slopes, &set->x.d_sink,
                                         &set->x.largest};
    for (int i = 0; i < 4; i++)
        *tensors[i] = (struct ra_tensor){set->heads + 2 * H * i, RA_FLOAT32, 0, 0, 2};
    set->x.d_lse = ra_tensor_bhn(set->heads + heads_size(p), n, H);
    free(image);
    free(positions);
}

/* Judges the numbers of each head, of all ranks of the ring together. */
static void check_extras(const struct trial *p, const struct ra_plan *plan, const struct set *set)
{
    const struct truth *t = &p->truth;
    int64_t H = t->H;
    float *got = malloc((size_t)heads_size(p) * sizeof *got);
    float *sums = calloc((size_t)(2 * H), sizeof *sums), *most = sums + H;
    CUDA(cudaMemcpy(got, set->heads, (size_t)heads_size(p) * sizeof *got, cudaMemcpyDeviceToHost));
    for (int64_t h = 0; h < H; h++) {
        sums[h] = got[2 * (2 * H + h)];
        most[h] = got[2 * (3 * H + h)];
        if (!isnan(got[2 * (2 * H + h) + 1]) || !isnan(got[2 * (3 * H + h) + 1]))
            WRONG("rank %d: written beside the numbers of heads", ra_plan_rank(plan));
        if (isnan(most[h]))
            WRONG("rank %d: the largest score is NaN", ra_plan_rank(plan));
    }
    MPI_Allreduce(MPI_IN_PLACE, sums, (int)H, MPI_FLOAT, MPI_SUM, p->comm);
    MPI_Allreduce(MPI_IN_PLACE, most, (int)H, MPI_FLOAT, MPI_MAX, p->comm);
    double wide = p->config.type == RA_FLOAT32 ? 1 : 2; /* see truth.h: tensor cores cut off */
    for (int64_t h = 0; h < H; h++) {
        double d_sink = t->d_sink[h], allowed = wide * t->d_sink_error[h];
        allowed += 0x1p-22 * fabs(d_sink) + 0x1p-126;
        if ((double)most[h] != t->largest[h] &&
            !(fabs((double)most[h] - t->largest[h]) <= wide * t->largest_error[h] + 0x1p-126))
            WRONG("the largest score of head %d: %.9g, not %.9g", (int)h, (double)most[h],
                  t->largest[h]);
        if (!p->config.forward_only && !(fabs((double)sums[h] - d_sink) <= allowed))
            WRONG("d_sink of head %d: %.9g, not %.9g; %.3g is allowed", (int)h, (double)sums[h],
                  d_sink, allowed);
    }
    free(got);
    free(sums);
}

/* Memory of 0 bytes would begin where the next piece does. */
static void look_at_semaphores(const struct ra_plan *plan)
{
    const struct ra_cuda *cuda = ra_cuda_of(plan);
    const struct ra_ring *ring = &plan->ring;
    const void *others[] = {cuda->list_memory,  cuda->places,       cuda->home,
                            cuda->table,        cuda->flags,        ring->keys[1],
                            ring->keys[2],      ring->gradients[0], ring->gradients[1],
                            ring->gradients[2], ring->gradients[3]};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (cuda->semaphores == others[i])
            WRONG("rank %d: the semaphore has no place of its own", ra_plan_rank(plan));
}

static void make_set(const struct trial *p, const struct ra_plan *plan, struct set *set,
                     double sign)
{
    if (p->config.type != RA_FLOAT32)
        look_at_semaphores(plan->inner ? plan->inner : plan);
    set->x = (struct ra_arrays)RA_ARRAYS_INIT;
    set->sign = sign;
    set->heads = NULL;
    for (enum truth_array a = Q; a < ARRAYS; a++) {
        set->arrays[a] = array_of(p, a, ra_plan_rows(plan, side_of(a)));
        *tensor_in(&set->x, a) = set->arrays[a].tensor;
        if (truth_is_output(a) || !p->truth.x[a])
            continue;
        double *whole = signed_copy(p, set, a);
        move_array(p, plan, a, &set->arrays[a], whole, true);
        free(whole);
    }
    if (!p->config.has_mask)
        set->x.mask = (struct ra_tensor)RA_NO_TENSOR;
    if (p->extras)
        give_extras(p, plan, set);
    CUDA(cudaStreamCreateWithFlags(&set->stream, cudaStreamNonBlocking));
    CUDA(cudaDeviceSynchronize());
}

/* Are these numbers of o such that the inputs' type has all of them? */
static bool in_16_bits(const struct trial *p, const double *o)
{
    for (int64_t e = 0; e < truth_count(&p->truth, O); e++)
        if (o[e] != number_rounded(p->config.type, o[e]))
            return false;
    return true;
}

/* Judges this rank's rows: those of the others count as right. */
static void check_set(const struct trial *p, const struct ra_plan *plan, struct set *set)
{
    for (enum truth_array a = O; a < ARRAYS; a++) {
        char text[TRUTH_TEXT];
        if (!truth_is_output(a) || (p->config.forward_only && a >= DQ))
            continue;
        double *got = signed_copy(p, set, a);
        move_array(p, plan, a, &set->arrays[a], got, false);
        if (a == O && p->strided && p->ranks == 1 && p->config.max_slices == 0 &&
            p->config.type != RA_FLOAT32 && in_16_bits(p, got))
            WRONG("o in float32 was in 16 bits before");
        for (int64_t e = 0; e < truth_count(&p->truth, a) && (a == O || a == DV); e++)
            got[e] *= set->sign;
        if (!(truth_judge(&p->truth, a, got, text) <= 1))
            WRONG("rank %d: %s", ra_plan_rank(plan), text);
        free(got);
    }
}

static void free_set(struct set *set)
{
    for (int a = 0; a < ARRAYS; a++)
        CUDA(__real_cudaFree(set->arrays[a].tensor.data));
    CUDA(__real_cudaFree(set->heads));
    CUDA(cudaStreamDestroy(set->stream));
}

/* This rank's part of a plan, which some configs of the problem ask for. */
static enum ra_status make_plan(const struct trial *p, struct ra_plan **plan,
                                const struct ra_config *config, int rank, char *error)
{
    struct ra_link link;
    struct ra_config on_gpu = *config;
    on_gpu.device = ra_cuda();
    *plan = NULL;
    CUDA(cudaSetDevice((p->neighbours ? rank / 2 : rank) % devices));
    if (p->threads) {
        link = thread_ring_link(p->ring, rank);
        return ra_plan_create(plan, &on_gpu, &link, error);
    }
    no_foreign_memory = p->unreached && rank == 1;
    foreign_memory = p->reached;
    enum ra_status status = ra_mpi_link(&link, p->comm, config->ring_size, config->timeout, error);
    if (status != RA_OK)
        return status;

    /* In place of MPI's own link, one that takes device pointers. */
    if (p->config.transport == RA_DEVICE_LINK || p->device_link)
        link = device_link_over(link);
    if (p->sharing > 0)
        link.sharing = p->sharing;
    return ra_plan_create(plan, &on_gpu, &link, error);
}

/* A plan of one process, or one to look at. */
static bool make_plan_alone(struct ra_plan **plan, const struct ra_config *config)
{
    char error[RA_ERROR_SIZE];
    struct ra_config on_gpu = *config;
    on_gpu.device = ra_cuda();
    return is_well(ra_plan_create(plan, &on_gpu, NULL, error), error, 0);
}

static bool begin_plan(const struct trial *p, struct ra_plan **plan, int rank)
{
    char error[RA_ERROR_SIZE];
    return is_well(make_plan(p, plan, &p->config, rank, error), error, rank);
}

/* Lends a plan that wants it a workspace, full of NaN. NULL: it has its own. */
static void *lend_workspace(const struct trial *p, struct ra_plan *plan)
{
    void *block = NULL;
    int64_t bytes = ra_plan_workspace_bytes(plan);
    if (!p->config.caller_workspace)
        return NULL;
    CUDA(__real_cudaMalloc(&block, (size_t)bytes));
    CUDA(cudaMemset(block, 0xFF, (size_t)bytes));
    CUDA(cudaDeviceSynchronize());
    if (ra_plan_set_workspace(plan, (char *)block + 64, bytes) != RA_INVALID ||
        ra_plan_set_workspace(plan, block, bytes - 1) != RA_INVALID)
        WRONG("a wrong workspace will do");
    is_well(ra_plan_set_workspace(plan, block, bytes), ra_plan_error(plan), ra_plan_rank(plan));
    return block;
}

/* Does a plan say this of the messages of its ring? */
static void check_said(struct ra_plan *plan, const char *wanted)
{
    char text[4096];
    ra_plan_describe(plan, ra_plan_rank(plan), text, sizeof text);
    if (!strstr(text, wanted))
        WRONG("rank %d: not '%s' in '%s'", ra_plan_rank(plan), wanted, text);
}

/* Does the plan say by which transport messages pass, and why that one? If heads are exchanged it
 * says so of them, and apart from that of the ring of groups. */
static void check_transport(const struct trial *p, struct ra_plan *plan, int rank)
{
    char text[4096], wanted[200] = "peer copies\n";
    enum ra_transport transport = p->config.transport;
    const char *asked = transport == RA_ANY_TRANSPORT ? "" : ", as config.transport says so";
    static const char *const names[] = {"peer copies", "peer copies", "device link", "host link"};
    if (ra_plan_hops(plan) == 1 && !plan->inner)
        snprintf(wanted, sizeof wanted, "none needed\n");
    else if (p->unreached && getenv("TWO_HOSTS")) /* tests/cuda: ranks 0 and 1, and the others */
        snprintf(wanted, sizeof wanted, "%s link, as rank 2 is not on the host of rank 0%s\n",
                 p->device_link ? "device" : "host",
                 p->device_link ? "" : "; the link takes no device pointers");
    else if (p->unreached)
        snprintf(wanted, sizeof wanted,
                 "%s link, as rank 1 does not reach the memory of rank 0: %s%s\n",
                 p->device_link ? "device" : "host", cudaGetErrorString(cudaErrorNotSupported),
                 p->device_link ? "" : "; the link takes no device pointers");
    else if (p->threads && p->ranks > devices)
        snprintf(wanted, sizeof wanted,
                 "host link, as %d ranks of a process share device 0; "
                 "the link takes no device pointers\n",
                 (p->ranks + devices - 1) / devices);
    else
        snprintf(wanted, sizeof wanted, "%s%s\n", names[transport], asked);
    int64_t length = ra_plan_describe(plan, ra_plan_rank(plan), text, sizeof text);
    if (p->neighbours)
        check_said(plan, "\ntransport: host link, as ");
    const char *line = plan->inner ? "\nexchange: " : "\ntransport: ";
    const char *said_it = strstr(text, line);
    said_it = said_it ? said_it + strlen(line) : "nothing";
    if (length >= (int64_t)sizeof text || !strstr(text, "\ndevice ") ||
        strncmp(said_it, wanted, strlen(wanted)) != 0)
        WRONG("rank %d: not '%.*s' but '%.*s'", rank, (int)strlen(wanted) - 1, wanted,
              (int)strcspn(said_it, "\n"), said_it);
}

/* And which kernels it launches? */
static void check_kernels(const struct trial *p, struct ra_plan *plan)
{
    struct cudaDeviceProp properties;
    int device;
    if (!CUDA(cudaGetDevice(&device)) || !CUDA(cudaGetDeviceProperties(&properties, device)))
        return;
    const char *wanted =
        p->config.type == RA_FLOAT32 ? "\nkernels: k02\n"
        : properties.major != 9      ? "\nkernels: k03\n"
        : p->config.dim % 8          ? "\nkernels: k03, as dim is not a multiple of 8\n"
        : p->config.dim_value % 8    ? "\nkernels: k03, as dim_value is not a multiple of 8\n"
        : p->config.deterministic || ra_max(p->config.dim, p->config.dim_value) > 128
            ? "\nkernels: k07 forward, k06 backward; k03 for arrays not at multiples of "
              "16 bytes\n"
            : "\nkernels: k07 forward, k07 backward; k03 for arrays not at multiples of "
              "16 bytes\n";
    check_said(plan, wanted);
}

/* Enqueues both calls of a set on a stream. */
static void call(const struct trial *p, struct ra_plan *plan, const struct set *set,
                 cudaStream_t stream)
{
    launches = 0;
    is_well(ra_cuda_forward(plan, &set->x, stream), ra_plan_error(plan), ra_plan_rank(plan));
    if (p->listed && launches > ra_plan_hops(plan))
        WRONG("rank %d: %d launches of the forward at %d hops", ra_plan_rank(plan), launches,
              ra_plan_hops(plan));
    launches = 0;
    if (!p->config.forward_only)
        is_well(ra_cuda_backward(plan, &set->x, stream), ra_plan_error(plan), ra_plan_rank(plan));
    const struct ra_config *c = &p->config;
    bool apart = c->type != RA_FLOAT32 &&
                 ra_work_separates(c->type, ra_max(c->dim, c->dim_value), c->deterministic);
    if (p->listed && launches > (apart ? 2 : 1) * ra_plan_hops(plan))
        WRONG("rank %d: %d launches of the backward at %d hops", ra_plan_rank(plan), launches,
              ra_plan_hops(plan));
}

/* Whose row is this? */
static int rank_of(const struct ra_plan *plan, enum ra_side side, int64_t row)
{
    int64_t end;
    return ra_layout_run(plan->layouts[side], row, &end);
}

/* Heads exchanged: does a rank send as many bytes as it must, in a forward and a backward? Forward,
 * its rows of the others' heads of q, k, v and the mask, and their rows of its heads of o and lse;
 * backward q, k, v, o, d_out, lse, d_lse and the mask, and dq, dk and dv in float32; if keys are
 * gathered, of these k, v, the mask, dk and dv of all heads to and from all ranks. And in all,
 * with the ring of groups, as many as the plan says beforehand? */
static void check_exchanged(struct ra_plan *plan)
{
    const struct ra_config *c = &plan->config;
    bool gathers = c->method == RA_GATHERED_KEYS;
    int U = c->method == RA_HYBRID ? c->group : ra_plan_ranks(plan), rank = ra_plan_rank(plan);
    int first = rank / U * U;
    int64_t T = ra_type_bytes(c->type), D = c->dim, D_v = c->dim_value, bytes = 0, said = 0;
    int64_t n = ra_plan_rows(plan, RA_QUERY_SIDE), m = ra_plan_rows(plan, RA_KEY_SIDE);
    struct ra_head_share own = ra_exchange_share(c->heads, c->key_heads, U, rank - first);
    struct ra_head_share all = {0, c->key_heads, 0, 0}; /* and no query heads */
    own = gathers ? all : own;
    for (int r = first; r < first + U; r++) {
        struct ra_head_share s = ra_exchange_share(c->heads, c->key_heads, U, r - first);
        s = gathers ? all : s;
        int64_t h = s.keys * s.per_key, own_h = own.keys * own.per_key;
        int64_t its_n = ra_layout_rows(plan->layouts[RA_QUERY_SIDE], r);
        int64_t its_m = ra_layout_rows(plan->layouts[RA_KEY_SIDE], r);
        int64_t keys = m * (s.keys * (D + D_v) * T + c->has_mask);
        if (r == rank)
            continue;
        bytes += c->batch * (n * h * D * T + keys + its_n * own_h * (D_v * T + 4));
        if (!c->forward_only)
            bytes += c->batch * (n * h * ((D + 2 * D_v) * T + 8) + keys + its_n * own_h * D * 4 +
                                 its_m * own.keys * (D + D_v) * 4);
    }
    if (plan->ring.bytes_sent != bytes)
        WRONG("rank %d has sent %" PRId64 " bytes to its group, not %" PRId64, rank,
              plan->ring.bytes_sent, bytes);
    for (int backward = 0; backward < (c->forward_only ? 1 : 2); backward++)
        for (int step = 0; step < ra_plan_hops(plan); step++) {
            struct ra_hop hop;
            is_well(ra_plan_hop(plan, rank, step, backward, &hop), ra_plan_error(plan), rank);
            said += hop.bytes;
        }
    if (bytes + plan->inner->ring.bytes_sent != said)
        WRONG("rank %d has sent %" PRId64 " bytes, not %" PRId64, rank,
              bytes + plan->inner->ring.bytes_sent, said);
}

/* With slices: does a rank send as many bytes as it must, in a forward and a backward? Keys go to
 * the last rank that sees some of them, and gradients the same way, one hop behind, and home. All
 * pairs are looked at. */
static void check_bytes(const struct trial *p, const struct ra_plan *plan)
{
    enum { RANKS = 8 };
    int64_t last[RANKS] = {0}, rows[RANKS] = {0}, bytes = 0;
    int P = p->ranks, rank = ra_plan_rank(plan);
    for (int64_t j = 0; j < plan->config.keys; j++) {
        int origin = rank_of(plan, RA_KEY_SIDE, j);
        rows[origin]++;
        for (int64_t i = 0; i < plan->config.queries; i++) {
            int hop = (rank_of(plan, RA_QUERY_SIDE, i) - origin + P) % P;
            for (const struct ra_slice *s = p->slices; s < p->slices + p->slice_count; s++)
                if (s->q0 <= i && i < s->q1 && s->k0 <= j && j < s->k1 && s->lo <= j - i &&
                    j - i <= s->hi)
                    last[origin] = ra_max(last[origin], hop);
        }
    }
    for (int hop = 0; hop < P; hop++) {
        int origin = (rank - hop + P) % P;
        if (hop < last[origin])
            bytes += (p->config.forward_only ? 1 : 2) * rows[origin] * plan->ring.key_bytes;
        if (hop > 0 && hop <= last[origin] && !p->config.forward_only)
            bytes += rows[origin] * plan->ring.gradient_bytes;
    }
    if (plan->ring.bytes_sent != bytes)
        WRONG("rank %d has sent %" PRId64 " bytes, not %" PRId64, rank, plan->ring.bytes_sent,
              bytes);
}

/* Gives a plan the mask of slices, if it wants one; in its place another one first. */
static void set_slices(const struct trial *p, struct ra_plan *plan, bool another)
{
    const struct ra_slice few = {0, p->config.queries / 2, 0, 1, -RA_BAND_FAR, 0};
    if (p->config.max_slices == 0)
        return;
    if (another)
        is_well(ra_plan_set_slices(plan, &few, p->config.queries > 1, RA_DEAL_LAYOUT),
                ra_plan_error(plan), ra_plan_rank(plan));
    is_well(ra_plan_set_slices(plan, p->slices, p->slice_count, p->deal), ra_plan_error(plan),
            ra_plan_rank(plan));
}

/* Behind its calls on a stream the inputs are the caller's again: here they become NaN. */
static void spoil_inputs(const struct set *set, cudaStream_t stream)
{
    for (enum truth_array a = Q; a < ARRAYS; a++)
        if (!truth_is_output(a) && set->arrays[a].bytes > 0)
            CUDA(cudaMemsetAsync(set->arrays[a].tensor.data, 0xFF, (size_t)set->arrays[a].bytes,
                                 stream));
}

static void wait_for(struct ra_plan *plan)
{
    is_well(ra_wait(plan), ra_plan_error(plan), ra_plan_rank(plan));
}

/* Functions of the host run one after the other, also of several streams: so their end is given. */
static void rest_until(void *end)
{
    double left = *(double *)end - ra_seconds();
    if (left > 0)
        verdict_pause(left);
}

/* A method that the ranks have chosen: the same on all of them, the fastest by the plan's own
 * words, and one that GPUs have. */
static void check_chosen(const struct trial *p, struct ra_plan *plan)
{
    struct ra_config made;
    char text[4096], wanted[80];
    double seconds, chosen = 0, least = (double)INFINITY;
    ra_plan_config(plan, &made, sizeof made);
    ra_plan_describe(plan, ra_plan_rank(plan), text, sizeof text);
    int choice[] = {(int)made.method, made.group}, all[MOST_RANKS][2];
    if (!p->threads)
        MPI_Allgather(choice, 2, MPI_INT, all, 2, MPI_INT, p->comm);
    for (int r = 0; r < p->ranks && !p->threads; r++)
        if (memcmp(all[r], choice, sizeof choice) != 0)
            WRONG("rank %d has chosen %d in groups of %d, rank %d %d in groups of %d", r, all[r][0],
                  all[r][1], ra_plan_rank(plan), choice[0], choice[1]);
    int used = snprintf(wanted, sizeof wanted, "\nmethod: %s, of %d by prediction",
                        ra_option_methods[made.method].word, 3 + (p->ranks == 4));
    if (p->config.expected)
        snprintf(wanted + used, sizeof wanted - (size_t)used, ", of %d slices\n",
                 (int)p->slice_count);
    const char *line = strstr(text, wanted), *end = strstr(text, "\ndevice ");
    end = end ? end : strstr(text, "\nheads exchanged in ");
    end = end ? end : strstr(text, "\nkeys gathered: ");
    for (line = line ? strstr(line, "\n  ring ") : NULL; line && line < end;
         line = strchr(line + 1, '\n')) {
        char word[8] = "";
        if (sscanf(line + 26, "%lf s, %7s", &seconds, word) > 0)
            least = fmin(least, seconds);
        chosen = strcmp(word, "chosen") == 0 ? seconds : chosen;
    }
    if (p->sharing > 0 && !strstr(text, "; between hosts of 2 "))
        WRONG("rank %d: hosts are not told apart in '%s'", ra_plan_rank(plan), text);
    if (!(chosen > 0) || chosen != least)
        WRONG("rank %d: not '%s' and the fastest in '%s'", ra_plan_rank(plan), wanted, text);
}

static void compute(void *context, int rank)
{
    struct trial *p = context;
    struct ra_plan *plan;
    if (!begin_plan(p, &plan, rank))
        return;
    if (p->config.method == RA_AUTO_METHOD)
        check_chosen(p, plan);
    check_transport(p, plan, rank);
    check_kernels(p, plan);
    set_slices(p, plan, true);
    if (p->hops > 0 && ra_plan_hops(plan) != p->hops)
        WRONG("rank %d: %d hops, not %d", rank, ra_plan_hops(plan), p->hops);
    void *workspace = lend_workspace(p, plan);

    /* Each round has arrays of its own, so that no result is lost, and one of two streams, so that
     * two calls of this plan are under way. */
    struct set *sets = calloc((size_t)p->rounds, sizeof *sets);
    for (int i = 0; i < p->rounds; i++)
        make_set(p, plan, &sets[i], i % 2 == 0 ? 1 : -1);
    synchronize(p);
    double end = ra_seconds() + p->late;
    for (int i = 0; i < 2 && p->late > 0 && rank >= p->first_late; i++)
        CUDA(cudaLaunchHostFunc(sets[i].stream, rest_until, &end));
    for (int round = 0; round < p->rounds; round++) {
        set_slices(p, plan, round > 0);
        plan->ring.messages_sent = plan->ring.bytes_sent = 0;
        if (plan->inner)
            plan->inner->ring.bytes_sent = 0;
        call(p, plan, &sets[round], sets[round % 2].stream);
        if (plan->inner)
            check_exchanged(plan);
        else if (p->config.max_slices > 0)
            check_bytes(p, plan);
        spoil_inputs(&sets[round], sets[round % 2].stream);
    }
    wait_for(plan);
    for (int i = 0; i < 2; i++)
        CUDA(cudaStreamSynchronize(sets[i].stream));
    synchronize(p);
    for (int i = 0; i < p->rounds; i++) {
        check_set(p, plan, &sets[i]);
        if (p->extras)
            check_extras(p, plan, &sets[i]);
        free_set(&sets[i]);
    }
    free(sets);
    ra_plan_destroy(plan);
    CUDA(__real_cudaFree(workspace));
}

/* Runs a problem on its ring. */
static void run(struct trial *p)
{
    int64_t before = bytes_taken();
    begin_problem(p);
    run_ranks(p, compute);
    end_problem(p);
    if (bytes_taken() != before)
        WRONG("%" PRId64 " bytes were not freed", bytes_taken() - before);
}

/* A small problem with a bit of everything. */
static struct trial usual(int ranks, enum ra_type type)
{
    struct trial p = {.config = RA_CONFIG_INIT, .ranks = ranks, .rounds = 2};
    p.config.batch = 2;
    p.config.queries = 37;
    p.config.heads = 4;
    p.config.key_heads = 2;
    p.config.dim = 16;
    p.config.type = type;
    p.config.causal = true;
    p.config.timeout = 30;
    return p;
}

/* Do the tests of shapes, extras and slices exchange heads, on as many ranks as there are, or in
 * groups of two of four, or gather keys? */
static bool with_methods;

/* Draws such a method for problem number i; returns its name, for a verdict. */
static const char *draw_method(struct trial *p, int64_t i)
{
    bool pairs = p->ranks == 4 && i % 2;
    if (!with_methods)
        return "";
    if (i % 2 == 0) {
        p->config.method = RA_GATHERED_KEYS;
        p->hops = 0;
        return ", keys gathered";
    }
    p->config.method = pairs ? RA_HYBRID : RA_EXCHANGED_HEADS;
    p->config.group = pairs ? 2 : 0;
    p->config.key_heads = i % 3 == 0 ? 1 : p->config.key_heads;
    p->hops = 0;
    return pairs ? ", heads exchanged in pairs" : ", heads exchanged";
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
                struct trial p = usual(ranks, type);
                p.config.layout = layout;
                p.config.caller_workspace = (type + layout + ranks) % 2;
                run(&p);
                verdict("%s, %s, %d ranks", type_names[type], layout_names[layout], ranks);
            }
}

static void test_transports(void)
{
    for (int transport = RA_ANY_TRANSPORT; transport <= RA_HOST_LINK; transport++)
        for (int ranks = 1; ranks <= 4; ranks++) {
            struct trial p = usual(ranks, RA_BFLOAT16);
            p.config.layout = RA_STRIPED;
            p.config.has_mask = true;
            p.config.transport = transport;
            run(&p);
            verdict("transport %s, %d ranks", transport_names[transport], ranks);
        }
}

/* One rank cannot open the memory of others: all of them take another way, and know why. */
static void test_unreached(void)
{
    for (int device_link = 0; device_link < 2; device_link++) {
        struct trial p = usual(3, RA_BFLOAT16);
        p.config.causal = false; /* everybody writes to everybody */
        p.unreached = true;
        p.device_link = device_link;
        run(&p);
        verdict("memory that a rank does not reach, a link that takes %s pointers",
                device_link ? "device" : "host");
    }
}

/* The work on own keys goes in two parts, the second behind that on all others. */
static void test_parts(void)
{
    leaves_a_rest = true;
    for (int type = RA_FLOAT32; type <= RA_BFLOAT16; type++)
        for (int layout = RA_CONTIGUOUS; layout <= RA_ZIGZAG; layout++)
            for (int ranks = 2; ranks <= 4; ranks++) {
                struct trial p = usual(ranks, type);
                p.config.layout = layout;
                p.config.has_mask = ranks == 3;
                p.strided = ranks == 4;
                p.apart = type == RA_FLOAT32;
                rests = 0;
                run(&p);

                /* Contiguous, the last rank's keys stay at home. */
                if (world_rank == 0 && rests == 0)
                    WRONG("all in one part");
                verdict("in two parts, %s, %s, %d ranks", type_names[type], layout_names[layout],
                        ranks);
            }
    leaves_a_rest = false;
}

/* Of rows of many tiles, those that are left for the end are whole waves of them, and no more than
 * two thirds; of keys that stay at home none are. */
static void check_rule(void *context, int rank)
{
    struct trial *p = context;
    struct ra_plan *plan;
    if (!begin_plan(p, &plan, rank))
        return;
    int64_t rows = ra_plan_rows(plan, RA_KEY_SIDE), rest = ra_cuda_deferred_keys(plan);
    int64_t wave = ra_cuda_of(plan)->processors / p->config.key_heads;
    bool none = p->config.queries < 65536 || (p->config.layout == RA_CONTIGUOUS && rank == 1);
    if (none ? rest != 0 : rest % (128 * wave) != 0 || rest <= 0 || rest > rows / 8)
        WRONG("rank %d: of %" PRId64 " rows %" PRId64 " are left", rank, rows, rest);
    ra_plan_destroy(plan);
}

static void test_rule(void)
{
    for (int layout = RA_CONTIGUOUS; layout <= RA_STRIPED; layout++) {
        struct trial p = usual(2, RA_BFLOAT16);
        p.config.batch = 1;
        p.config.queries = 65536;
        p.config.key_heads = p.config.heads = 16;
        p.config.dim = 1;
        p.config.layout = layout;
        run_ranks(&p, check_rule);
        p.config.queries = 6000; /* more than two thirds of them would be needed */
        run_ranks(&p, check_rule);
        verdict("what is left for the end, %s", layout_names[layout]);
    }
}

/* ---- Blocks, on plans to look at: what one launch takes, against the positions of all rows. */

/* Where row a of a rank is, as the plan keeps its rows while a call runs: those of several stripes,
 * under a causal mask, in the order of the sequence. */
static int64_t position_of(const struct ra_plan *plan, enum ra_side side, int rank, int64_t a)
{
    struct ra_layout layout = plan->layouts[side];
    if (!plan->config.causal || layout.kind != RA_STRIPED)
        return ra_layout_position(layout, rank, a);
    int64_t f = layout.stripes;
    return a / f * f * layout.ranks + rank * f + a % f;
}

/* Does query row a of a rank see row b of the keys of a step? */
static bool sees(const struct ra_plan *plan, int rank, int step, int64_t a, int64_t b)
{
    const struct ra_config *c = &plan->config;
    int64_t longer = plan->layouts[RA_KEY_SIDE].length - plan->layouts[RA_QUERY_SIDE].length;
    int64_t back = position_of(plan, RA_QUERY_SIDE, rank, a) + longer -
                   position_of(plan, RA_KEY_SIDE, ra_ring_origin(&plan->ring, rank, step), b);
    return !c->causal || (back >= 0 && back <= c->lookback);
}

/* Is row a of a rank in one of these spans? */
static bool in_spans(const struct ra_plan *plan, enum ra_side side, int rank, int64_t a,
                     struct ra_range spans)
{
    int64_t position = position_of(plan, side, rank, a);
    for (int64_t s = spans.first; s < spans.end; s++) {
        struct ra_span span = ra_layout_span(plan->layouts[side], rank, s);
        int64_t along = position - span.first;
        if (along >= 0 && along % span.stride == 0 && along / span.stride < span.count)
            return true;
    }
    return false;
}

/* Which number row a has in a block; -1 if it is not in it. */
static int64_t number_in(const struct ra_cuda_block *block, struct ra_range rows, int64_t a)
{
    int64_t along = a - rows.first;
    return along >= 0 && a < rows.end && along % block->stride == 0 ? along / block->stride : -1;
}

/* How many blocks there were of all stripes of a rank, by whether their lower edge has steps, and
 * their upper. */
static int64_t in_order[4];

/* All pairs that see each other are in the block; and if one band says so, no others within it.
 * Returns whether one does, or none is needed. */
static bool check_block(const struct ra_plan *plan, int rank, int step, struct ra_range query_spans,
                        struct ra_range key_spans)
{
    struct ra_cuda_block block = ra_cuda_block_of(plan, rank, step, query_spans, key_spans);
    int origin = ra_ring_origin(&plan->ring, rank, step);
    int64_t wrong = 0, seen = 0, keys = ra_ring_rows(&plan->ring, rank, step);
    for (int64_t a = 0; a < ra_layout_rows(plan->layouts[RA_QUERY_SIDE], rank); a++) {
        bool asked_query = in_spans(plan, RA_QUERY_SIDE, rank, a, query_spans);
        for (int64_t b = 0; b < keys && (asked_query || block.one_band); b++) {
            int64_t i = number_in(&block, block.queries, a), j = number_in(&block, block.keys, b);
            bool asked = asked_query && in_spans(plan, RA_KEY_SIDE, origin, b, key_spans);
            bool inside = i >= 0 && j >= 0;
            int64_t lo = block.band_step.lo > 0 ? i - i % block.band_step.lo : i;
            int64_t hi = block.band_step.hi > 0 ? i - i % block.band_step.hi : i;
            bool in_band = inside && j >= lo + block.band.lo && j <= hi + block.band.hi;
            bool right = asked && sees(plan, rank, step, a, b);
            seen += right;
            wrong += right && !inside;
            wrong += block.one_band && in_band != right;
        }
    }
    wrong += ra_has_steps(block.band_step) && ra_cuda_of(plan)->capability == 0;
    if (block.one_band && ra_cuda_stripes(plan) > 1 && block.stride == 1)
        in_order[(block.band_step.lo > 0) + 2 * (block.band_step.hi > 0)]++;
    bool one_pair =
        query_spans.end - query_spans.first == 1 && key_spans.end - key_spans.first == 1;
    if (wrong > 0 || (seen > 0) != (block.pairs > 0) || (seen > 0 && one_pair && !block.one_band))
        WRONG("rank %d, step %d, spans %d to %d and %d to %d: %d rows wrong of %d, %d pairs", rank,
              step, (int)query_spans.first, (int)query_spans.end, (int)key_spans.first,
              (int)key_spans.end, (int)wrong, (int)seen, (int)block.pairs);
    return block.one_band || block.pairs == 0;
}

/* All blocks of all ranks. Returns whether each step has at most one. */
static bool check_blocks(const struct ra_plan *plan)
{
    bool one = true;
    struct ra_range queries = {0, ra_layout_spans(plan->layouts[RA_QUERY_SIDE])};
    struct ra_range keys = {0, ra_layout_spans(plan->layouts[RA_KEY_SIDE])};
    for (int rank = 0; rank < plan->config.ring_size; rank++)
        for (int step = 0; step < plan->ring.schedule.count; step++) {
            one = check_block(plan, rank, step, queries, keys) && one;

            /* A launch is counted for all of its spans, so each must see something. */
            struct ra_cuda_block all = ra_cuda_block_of(plan, rank, step, queries, keys);
            for (int64_t s = all.query_spans.first; s < all.query_spans.end && all.one_band; s++)
                if (ra_cuda_block_of(plan, rank, step, (struct ra_range){s, s + 1}, keys).pairs ==
                    0)
                    WRONG("rank %d, step %d: span %d sees nothing", rank, step, (int)s);
            for (int64_t s = 0; s < queries.end; s++) {
                check_block(plan, rank, step, (struct ra_range){s, s + 1}, keys);
                for (int64_t t = 0; t < keys.end; t++)
                    check_block(plan, rank, step, (struct ra_range){s, s + 1},
                                (struct ra_range){t, t + 1});
            }
        }
    return one;
}

static void test_blocks(void)
{
    static const int64_t lookbacks[] = {RA_NO_LOOKBACK, 0, 3, 7, 20};
    for (int layout = RA_CONTIGUOUS; layout <= RA_ZIGZAG; layout++) {
        for (int i = 0; i < 4 * 6 * 6 * 6; i++) {
            struct trial p = usual(2 + i % 4, RA_BFLOAT16);
            p.config.ring_size = 2 + i % 4;
            p.config.layout = layout;
            p.config.bucket = layout == RA_STRIPED ? i / 2 % 3 * 4 : 0;
            p.config.queries = (int64_t[]){1, 5, 16, 24, 33, 48}[i / 4 % 6];
            p.config.keys = (int64_t[]){1, 5, 16, 24, 33, 48}[i / 24 % 6];
            p.config.causal = i / 144 < 5;
            if (p.config.causal)
                p.config.lookback = lookbacks[i / 144];
            struct ra_plan *plan;
            if (!make_plan_alone(&plan, &p.config))
                return;
            /* As a plan to look at it has no GPU, whose kernels may not take steps. */
            if (ra_cuda_stripes(plan) > 1)
                check_blocks(plan);
            ra_cuda_of(plan)->capability = 90;
            bool one = check_blocks(plan);
            /* Of each stripe, a row that has no key before it, and one that has. */
            bool rows_enough =
                layout != RA_STRIPED ||
                p.config.queries >=
                    2 * ra_layout_spans(plan->layouts[RA_QUERY_SIDE]) * p.config.ring_size;
            bool alike =
                p.config.queries == p.config.keys && i / 144 == 0 && layout != RA_CONTIGUOUS;
            if (!one && ((alike && rows_enough) || !p.config.causal))
                WRONG("%d ranks, %d queries: several launches", p.config.ring_size,
                      (int)p.config.queries);
            ra_plan_destroy(plan);
        }
        for (int i = 0; i < 4 && layout == RA_STRIPED; i++)
            if (in_order[i] == 0)
                WRONG("no block of all stripes has steps %s and %s", i % 2 ? "below" : "nowhere",
                      i / 2 ? "above" : "nowhere");
        verdict("blocks, %s", layout_names[layout]);
    }
}

/* Two rings of two ranks. */
static void test_rings(void)
{
    for (int transport = RA_ANY_TRANSPORT; transport <= RA_HOST_LINK; transport++) {
        struct trial p = usual(4, RA_FLOAT32);
        p.config.ring_size = 2;
        p.config.layout = RA_STRIPED;
        p.config.transport = transport;
        p.hops = 2;
        run(&p);
        verdict("two rings, transport %s", transport_names[transport]);
    }
}

#define ALL RA_NO_LOOKBACK
static const struct shape {
    const char *name;
    int ranks;
    int64_t N, M, lookback, bucket;
    bool causal, has_mask, strided, interleaved, forward_only, local_keys;
    double softcap;
    enum ra_layout_kind layout;
    int type;
} shapes[] = {
    {"not causal", 3, 40, 40, ALL, 0, 0, 0, 0, 0, 0, 0, 0, RA_CONTIGUOUS, RA_FLOAT32},
    {"buckets", 3, 61, 61, ALL, 4, 1, 0, 0, 0, 0, 0, 0, RA_STRIPED, RA_FLOAT32},
    {"buckets", 4, 61, 61, 7, 3, 1, 0, 0, 0, 0, 0, 0, RA_STRIPED, RA_BFLOAT16},
    {"buckets, strided and masked", 3, 61, 61, ALL, 4, 1, 1, 1, 0, 0, 0, 0, RA_STRIPED,
     RA_BFLOAT16},
    {"buckets, forward only", 2, 64, 64, 11, 4, 1, 1, 0, 1, 1, 0, 0, RA_STRIPED, RA_FLOAT16},
    {"buckets of one row", 3, 24, 24, ALL, 1, 1, 0, 0, 0, 0, 0, 0, RA_STRIPED, RA_BFLOAT16},
    {"buckets, fewer keys", 3, 40, 11, ALL, 3, 1, 0, 0, 0, 0, 0, 0, RA_STRIPED, RA_FLOAT16},
    {"buckets, more keys", 2, 24, 48, 20, 4, 1, 1, 1, 0, 0, 0, 0, RA_STRIPED, RA_BFLOAT16},
    {"buckets, not causal", 3, 40, 40, ALL, 4, 0, 1, 0, 0, 0, 0, 0, RA_STRIPED, RA_BFLOAT16},
    {"buckets, one rank", 1, 60, 60, ALL, 8, 1, 1, 1, 0, 0, 0, 0, RA_STRIPED, RA_BFLOAT16},
    {"lookback skips hops", 4, 64, 64, 5, 0, 1, 0, 0, 0, 0, 0, 0, RA_CONTIGUOUS, RA_FLOAT32},
    {"lookback skips hops", 4, 64, 64, 5, 0, 1, 0, 0, 0, 0, 0, 0, RA_ZIGZAG, RA_FLOAT16},
    {"lookback 0", 4, 64, 64, 0, 0, 1, 0, 0, 0, 0, 0, 0, RA_STRIPED, RA_FLOAT32},
    {"interleaved heads", 2, 33, 33, ALL, 0, 1, 0, 0, 1, 0, 0, 0, RA_ZIGZAG, RA_BFLOAT16},
    {"soft cap", 3, 33, 33, ALL, 0, 1, 0, 0, 0, 0, 0, 3, RA_STRIPED, RA_FLOAT32},
    {"key mask", 4, 45, 45, ALL, 0, 1, 1, 0, 0, 0, 0, 0, RA_ZIGZAG, RA_FLOAT32},
    {"key mask", 3, 45, 45, ALL, 0, 0, 1, 1, 0, 0, 0, 0, RA_CONTIGUOUS, RA_BFLOAT16},
    {"strided arrays", 3, 45, 45, ALL, 0, 1, 0, 1, 0, 0, 0, 0, RA_STRIPED, RA_FLOAT32},
    {"strided arrays", 2, 45, 45, ALL, 0, 1, 1, 1, 0, 0, 0, 0, RA_ZIGZAG, RA_FLOAT16},
    {"more ranks than rows", 4, 3, 3, ALL, 0, 1, 0, 0, 0, 0, 0, 0, RA_STRIPED, RA_FLOAT32},
    {"more ranks than rows", 4, 3, 3, ALL, 0, 0, 1, 0, 0, 0, 0, 0, RA_CONTIGUOUS, RA_BFLOAT16},
    {"more ranks than rows", 4, 5, 5, ALL, 0, 1, 0, 0, 0, 0, 0, 0, RA_ZIGZAG, RA_FLOAT32},
    {"fewer keys, some see none", 3, 40, 11, ALL, 0, 1, 0, 0, 0, 0, 0, 0, RA_CONTIGUOUS,
     RA_FLOAT32},
    {"fewer keys, some see none", 4, 40, 11, ALL, 0, 1, 1, 0, 0, 0, 0, 0, RA_STRIPED, RA_BFLOAT16},
    {"fewer keys, some see none", 3, 40, 11, ALL, 0, 1, 0, 0, 0, 0, 0, 0, RA_ZIGZAG, RA_FLOAT16},
    {"more keys", 3, 11, 50, ALL, 0, 1, 0, 0, 0, 0, 0, 0, RA_STRIPED, RA_FLOAT32},
    {"more keys", 4, 11, 50, ALL, 0, 0, 0, 0, 0, 0, 0, 0, RA_ZIGZAG, RA_FLOAT16},
    {"no keys", 3, 11, 0, ALL, 0, 1, 0, 0, 0, 0, 0, 0, RA_CONTIGUOUS, RA_FLOAT32},
    {"no queries", 3, 0, 11, ALL, 0, 1, 0, 0, 0, 0, 0, 0, RA_CONTIGUOUS, RA_FLOAT32},
    {"forward only", 4, 45, 45, ALL, 0, 1, 0, 0, 0, 1, 0, 0, RA_STRIPED, RA_BFLOAT16},
    {"forward only, rank 0 only sends", 3, 45, 45, ALL, 0, 1, 0, 0, 0, 1, 0, 0, RA_CONTIGUOUS,
     RA_FLOAT32},
    {"forward only, strided, rank 0 only sends", 3, 45, 45, ALL, 0, 1, 0, 1, 0, 1, 0, 0,
     RA_CONTIGUOUS, RA_FLOAT32},
    {"local keys", 3, 45, 45, ALL, 0, 0, 0, 0, 0, 0, 1, 0, RA_CONTIGUOUS, RA_FLOAT32},
    {"local keys", 4, 60, 60, 6, 0, 1, 1, 0, 0, 0, 1, 0, RA_CONTIGUOUS, RA_BFLOAT16},
    {"one rank", 1, 60, 60, 7, 0, 1, 1, 1, 0, 0, 0, 0, RA_CONTIGUOUS, RA_BFLOAT16},
    {"one rank, keys that nobody sees", 1, 11, 50, 5, 0, 1, 0, 0, 0, 0, 0, 0, RA_STRIPED,
     RA_FLOAT16},
    {"one rank, half of its queries see none", 1, 40, 20, ALL, 0, 1, 0, 0, 0, 0, 0, 0, RA_ZIGZAG,
     RA_BFLOAT16},
    {"one rank, two spans", 1, 60, 60, ALL, 0, 1, 1, 0, 0, 0, 0, 0, RA_ZIGZAG, RA_FLOAT16},
    {"one rank, no queries", 1, 0, 11, ALL, 0, 1, 0, 0, 0, 0, 0, 0, RA_CONTIGUOUS, RA_BFLOAT16},
    {"several tiles", 4, 700, 700, ALL, 0, 1, 1, 0, 0, 0, 0, 0, RA_STRIPED, RA_BFLOAT16},
};
#undef ALL

static void test_shapes(void)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = &shapes[i];
        if (!verdict_wants("%s", s->name))
            continue;
        struct trial p = usual(s->ranks, (enum ra_type)s->type);
        p.config.queries = s->N;
        p.config.keys = s->M;
        p.config.lookback = s->lookback < 0 ? RA_NO_LOOKBACK : s->lookback;
        p.config.bucket = s->bucket;
        p.config.causal = s->causal;
        p.config.has_mask = s->has_mask;
        p.config.head_map = s->interleaved ? RA_INTERLEAVED : RA_GROUPED;
        p.config.forward_only = s->forward_only;
        p.config.softcap = s->softcap;
        p.config.layout = s->layout;
        p.config.local_keys = s->local_keys;
        p.config.dim_value = i % 3 == 0 ? 0 : i % 3 == 1 ? 24 : 8;
        p.strided = s->strided;

        /* With sums in one order a rank that is alone may write dq in the caller's array. */
        p.config.deterministic = s->ranks == 1;

        /* What lies 5 tokens back, the rank has itself or the one before it. */
        p.hops = s->local_keys ? 1 : s->lookback == 5 && s->layout == RA_CONTIGUOUS ? 2 : 0;

        /* A rank that has nothing to receive waits for nobody, and so may be far ahead of the
         * others: more calls show that. */
        p.rounds = s->forward_only || s->M < s->ranks ? 20 : p.rounds;

        /* All ranks but the first come late: its next calls come while the keys of its first are
         * still there. */
        p.late = s->forward_only && s->layout == RA_CONTIGUOUS;
        p.first_late = 1;
        if (with_methods && s->local_keys)
            continue;
        const char *method = draw_method(&p, (int64_t)i);
        for (int transport = RA_PEER_COPIES; transport <= RA_HOST_LINK; transport++) {
            if (with_methods && transport != RA_PEER_COPIES + (int)i % 3)
                continue;
            p.config.transport = transport;
            leaves_a_rest = ((int)i + transport) % 2;
            run(&p);
            verdict("%s: %s, %s, %d ranks, transport %s%s%s", s->name, type_names[s->type],
                    layout_names[s->layout], s->ranks, transport_names[transport],
                    leaves_a_rest ? ", a rest" : "", method);
        }
    }
    leaves_a_rest = false;
}

/* Draws what any problem may have. */
static void draw_options(struct trial *p, uint64_t *state)
{
    p->config.layout = (enum ra_layout_kind)random_below(state, 3);
    p->config.bucket = p->config.layout == RA_STRIPED ? random_below(state, 2) * 7 : 0;
    p->config.has_mask = random_below(state, 2);
    p->config.deterministic = random_below(state, 4) == 0;
    p->config.softcap = random_below(state, 4) == 0 ? 2 : 0;
    p->config.head_map = random_below(state, 2) ? RA_INTERLEAVED : RA_GROUPED;
    if (random_below(state, 3) == 0)
        p->config.dim_value = (int64_t[]){8, 20, 64, 136}[random_below(state, 4)];
    p->config.forward_only = random_below(state, 5) == 0;
    p->config.transport = (enum ra_transport)random_below(state, 4);
    p->config.caller_workspace = random_below(state, 2);
    p->strided = random_below(state, 4) == 0;
}

/* Sinks, slopes, gradients of lse and largest scores, in any problem. */
static void test_extras(void)
{
    /* Of a single key the largest score is often negative. */
    static const int64_t sizes[][2] = {{37, 37}, {61, 61}, {3, 3},    {40, 11},
                                       {11, 50}, {1, 1},   {300, 300}};
    for (int i = 0; i < 72; i++) {
        if (!verdict_wants("extras %d", i))
            continue;
        uint64_t state = (uint64_t)i + 177;
        enum ra_type type = (enum ra_type)(i % 3);
        struct trial p = usual(1 + i % 4, type);
        int size = (int)random_below(&state, 7);
        p.extras = true;
        p.config.queries = sizes[size][0];
        p.config.keys = sizes[size][1];
        p.config.dim = (int64_t[]){16, 16, 20, 72, 136}[random_below(&state, 5)];
        p.config.causal = random_below(&state, 4) > 0;
        p.config.lookback = p.config.causal && random_below(&state, 3) == 0 ? 9 : RA_NO_LOOKBACK;
        draw_options(&p, &state);
        leaves_a_rest = random_below(&state, 2);
        const char *method = draw_method(&p, i / 4);
        run(&p);
        verdict("extras %d, %s, %s, %d ranks%s", i, type_names[type], layout_names[p.config.layout],
                p.ranks, method);
    }
    leaves_a_rest = false;
}

/* Masks of slices: by lists and, where kernels take none, cut by cut. */
/* Do the kernels of this type take a list of work? */
static bool takes_lists(enum ra_type type)
{
    struct cudaDeviceProp properties;
    return type == RA_FLOAT32 ||
           (CUDA(cudaGetDeviceProperties(&properties, 0)) && properties.major == 9);
}

static void test_slices(void)
{
    static const struct {
        int64_t N, M, dim;
    } sizes[] = {{37, 37, 16}, {300, 300, 16}, {5, 5, 8}, {150, 150, 20}, {90, 211, 16}};
    for (int i = 0; i < 8 * PATTERNS; i++) {
        if (!verdict_wants("slices %d", i))
            continue;
        uint64_t state = (uint64_t)i + 77;
        enum pattern pattern = (enum pattern)(i % PATTERNS);
        enum ra_type type = (enum ra_type)(i / 3 % 3);
        struct trial p = usual(1 + i % 4, type);
        int size = (int)random_below(&state, 5);
        p.config.queries = sizes[size].N;
        p.config.keys = pattern >= PAIRS_OF_DOCUMENTS ? sizes[size].M : sizes[size].N;
        p.config.dim = sizes[size].dim;
        p.config.causal = random_below(&state, 2);
        draw_options(&p, &state);
        p.rounds = 3;
        p.slice_count = pattern_make(pattern, p.config.queries, p.config.keys, &state, p.slices);
        p.config.max_slices = PATTERN_SLICES;
        p.deal = (enum ra_deal)random_below(&state, 2);
        p.config.max_rows = ra_max(p.config.queries, p.config.keys);
        leaves_a_rest = random_below(&state, 2);
        p.extras = random_below(&state, 3) == 0;
        const char *method = draw_method(&p, i / 4);
        run(&p);
        verdict("slices %d, %s, %s, %s, %d ranks%s%s%s", i, pattern_words[pattern],
                type_names[type], layout_names[p.config.layout], p.ranks,
                p.deal == RA_DEAL_DOCUMENTS ? ", dealt" : "", p.extras ? ", extras" : "", method);
    }
    leaves_a_rest = false;

    /* One launch a hop, on GPUs that take lists. */
    for (int i = 0; i < 16 && !with_methods && verdict_wants("one launch a hop"); i++) {
        int ranks = 1 + i % 4, kind = i / 4;
        struct trial p = usual(ranks, kind == 1 ? RA_FLOAT32 : RA_BFLOAT16);
        uint64_t state = 5;
        p.config.dim = kind == 3 ? 136 : p.config.dim;
        p.config.dim_value = kind == 3 && ranks > 2 ? 24 : 0;
        p.config.deterministic = kind == 2;
        p.config.queries = 400;
        p.config.layout = RA_ZIGZAG;
        p.config.max_slices = PATTERN_SLICES;
        p.config.max_rows = 400;
        p.deal = ranks % 2 ? RA_DEAL_DOCUMENTS : RA_DEAL_LAYOUT;
        p.slice_count = pattern_make(CAUSAL_DOCUMENTS, 400, 400, &state, p.slices);
        p.listed = takes_lists(p.config.type);
        run(&p);
        verdict("one launch a hop, %s, dim %" PRId64 ", %d ranks%s", type_names[p.config.type],
                p.config.dim, ranks, kind == 2 ? ", deterministic" : "");
    }
}

/* ---- Heads exchanged. */

/* All of them by all transports: key heads fewer than ranks and not, heads that ranks cannot share
 * equally, groups of two of four ranks, and gathered keys. */
enum { GATHERED = -1 };
static const struct exchanged {
    int ranks, group; /* 0: one group of all ranks; GATHERED: none */
    int64_t heads, key_heads;
} exchanged[] = {{2, 0, 4, 2},       {2, 0, 4, 1}, {3, 0, 6, 3},        {3, 0, 5, 5},
                 {3, 0, 6, 2},       {4, 0, 8, 2}, {4, 0, 4, 1},        {4, 2, 4, 2},
                 {4, 2, 6, 1},       {4, 2, 3, 3}, {2, GATHERED, 4, 2}, {3, GATHERED, 4, 4},
                 {4, GATHERED, 3, 1}};

static struct trial exchanged_problem(const struct exchanged *e, enum ra_type type)
{
    struct trial p = usual(e->ranks, type);
    p.config.method = e->group > 0    ? RA_HYBRID
                      : e->group == 0 ? RA_EXCHANGED_HEADS
                                      : RA_GATHERED_KEYS;
    p.config.group = e->group > 0 ? e->group : 0;
    p.config.heads = e->heads;
    p.config.key_heads = e->key_heads;
    return p;
}

static void test_methods(void)
{
    for (size_t i = 0; i < sizeof exchanged / sizeof *exchanged; i++)
        for (int transport = RA_PEER_COPIES; transport <= RA_HOST_LINK; transport++)
            for (int layout = RA_CONTIGUOUS; layout <= RA_ZIGZAG; layout++) {
                const struct exchanged *e = &exchanged[i];
                enum ra_type type = (enum ra_type)((i + (size_t)transport + (size_t)layout) % 3);
                struct trial p = exchanged_problem(e, type);
                p.config.layout = layout;
                p.config.transport = transport;
                p.config.dim_value = i % 2 ? 24 : 0;
                p.config.has_mask = (i + (size_t)layout) % 2;
                p.config.head_map = (i / 2 + (size_t)layout) % 2 ? RA_INTERLEAVED : RA_GROUPED;
                p.config.caller_workspace = (layout + transport) % 2;
                p.config.deterministic = transport == RA_HOST_LINK;
                bool gathers_stripes = layout == RA_STRIPED && e->group == GATHERED;
                if (gathers_stripes) { /* of many stripes */
                    p.config.queries = 300;
                    p.config.bucket = 40 / transport;
                }
                p.listed = gathers_stripes && takes_lists(type);
                if (!verdict_wants("exchanged %d", (int)i))
                    continue;
                run(&p);
                verdict("exchanged %d, %s, %s, %d ranks, %s %d, %d heads on %d, transport %s",
                        (int)i, type_names[type], layout_names[layout], e->ranks,
                        ra_option_methods[p.config.method].word, p.config.group, (int)e->heads,
                        (int)e->key_heads, transport_names[transport]);
            }
    with_methods = true;
    test_shapes();
    test_extras();
    test_slices();
    with_methods = false;
}

/* A plan that is used often, always with two calls under way. */
static void test_often(void)
{
    for (int i = 0; i < 6; i++) {
        struct trial p = usual(2 + i / 2, RA_BFLOAT16);
        p.config.layout = RA_ZIGZAG;
        p.config.has_mask = true;
        p.config.deterministic = i % 2;
        p.rounds = 50;
        leaves_a_rest = i % 4 == 0;
        run(&p);
        verdict("50 calls of each kind, %d ranks%s%s", p.ranks, i % 2 ? ", deterministic" : "",
                leaves_a_rest ? ", a rest" : "");
    }
    leaves_a_rest = false;
}

/* What the caller's stream has to do before a call does not count as lateness of a rank, also where
 * a rank sends nothing at first, as the last one of a causal ring. */
static void test_late_streams(void)
{
    for (int transport = RA_PEER_COPIES; transport <= RA_HOST_LINK; transport++) {
        struct trial p = usual(3, RA_FLOAT32);
        p.config.timeout = 2;
        p.config.transport = transport;
        p.late = 4;
        run(&p);
        verdict("streams with other work, transport %s", transport_names[transport]);
    }
}

/* Ranks that are threads of one process: each writes to the others' memory if it has a GPU of its
 * own. */
static void test_threads(void)
{
    for (int ranks = 2; ranks <= 4; ranks++) {
        struct trial p = usual(ranks, RA_BFLOAT16);
        p.config.layout = RA_STRIPED;
        p.config.has_mask = true;
        p.threads = true;
        run(&p);
        verdict("%d threads", ranks);
    }
}

/* In its first call a plan has room for the first message into each place, and for no other. */
static void test_created_often(void)
{
    struct trial p = usual(4, RA_FLOAT32);
    p.config.layout = RA_STRIPED;
    for (int i = 0; i < 50 && verdict_complaints() == 0; i++)
        run(&p);
    verdict("50 plans, one after the other");
}

/* Two plans over one link, which the caller keeps: their calls alternate, without waiting in
 * between. */
static void share_link(void *context, int rank)
{
    struct trial *p = context;
    struct ra_config config = p->config;
    struct ra_link link, kept;
    struct ra_plan *plan[2];
    struct set sets[2];
    char error[RA_ERROR_SIZE];
    config.device = ra_cuda();
    no_foreign_memory = false;
    CUDA(cudaSetDevice(rank % devices));
    if (!is_well(ra_mpi_link(&link, p->comm, 0, config.timeout, error), error, rank))
        return;
    kept = link;
    kept.close = NULL;
    for (int i = 0; i < 2; i++)
        if (!is_well(ra_plan_create(&plan[i], &config, &kept, error), error, rank))
            return;
    for (int i = 0; i < 2; i++)
        make_set(p, plan[i], &sets[i], 1);
    synchronize(p);
    for (int i = 0; i < 4; i++)
        call(p, plan[i % 2], &sets[i % 2], sets[i % 2].stream);
    for (int i = 0; i < 2; i++) {
        wait_for(plan[i]);
        check_set(p, plan[i], &sets[i]);
        free_set(&sets[i]);
        ra_plan_destroy(plan[i]);
    }
    if (!link.close(link.self))
        WRONG("rank %d: something is under way", rank);
}

static void test_shared_links(void)
{
    for (int transport = RA_PEER_COPIES; transport <= RA_HOST_LINK; transport += 2) {
        struct trial p = usual(3, RA_BFLOAT16);
        p.config.transport = transport;
        begin_problem(&p);
        run_ranks(&p, share_link);
        end_problem(&p);
        verdict("two plans over one link, transport %s", transport_names[transport]);
    }
}

/* ---- Equal bits. */

static void compute_twice(void *context, int rank)
{
    struct trial *p = context;
    struct ra_plan *plan;
    if (!begin_plan(p, &plan, rank))
        return;
    struct set sets[2];
    for (int i = 0; i < 2; i++)
        make_set(p, plan, &sets[i], 1);
    synchronize(p);
    for (int i = 0; i < 2; i++) {
        call(p, plan, &sets[i], sets[i].stream);
        wait_for(plan);
    }
    synchronize(p);
    for (int a = O; a < ARRAYS; a++) {
        const struct array *array = &sets[0].arrays[a];
        size_t bytes = (size_t)array->bytes;
        char *one = malloc(bytes), *two = malloc(bytes);
        CUDA(cudaMemcpy(one, array->tensor.data, bytes, cudaMemcpyDeviceToHost));
        CUDA(cudaMemcpy(two, sets[1].arrays[a].tensor.data, bytes, cudaMemcpyDeviceToHost));
        if (memcmp(one, two, bytes) != 0)
            WRONG("rank %d: %s differs", rank, truth_names[a]);
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
    for (int type = RA_FLOAT32; type <= RA_BFLOAT16; type++)
        for (int ranks = 1; ranks <= 3; ranks += 2) {
            struct trial p = usual(ranks, (enum ra_type)type);
            p.config.queries = 500;
            p.config.deterministic = true;
            p.config.layout = RA_STRIPED;
            begin_problem(&p);
            run_ranks(&p, compute_twice);
            end_problem(&p);
            verdict("equal bits, %s, %d ranks", type_names[type], ranks);
        }
}

/* ---- Memory. */

static int64_t said[MOST_RANKS]; /* by the plan of this rank, of each rank */

/* What a plan says of every rank; of another one it has less to go by than of its own. */
static void ask_of_all(struct ra_plan *plan, int64_t bytes[MOST_RANKS])
{
    char text[4096];
    for (int rank = 0; rank < ra_plan_ranks(plan); rank++) {
        bytes[rank] = ra_plan_bytes_of(plan, rank) - plan->fixed_bytes;
        int64_t length = ra_plan_describe(plan, rank, text, sizeof text);
        bool elsewhere = plan->inner && rank != ra_plan_rank(plan);
        const char *line = elsewhere ? "\ndevice: that of the other rank; " : "\ndevice";
        if (length < 1 || length >= (int64_t)sizeof text || !strstr(text, line))
            WRONG("of rank %d the plan says '%s'", rank, text);
    }
}

static void check_memory(void *context, int rank)
{
    struct trial *p = context;
    struct ra_plan *plan;
    int64_t before = bytes_taken();
    if (!begin_plan(p, &plan, rank))
        return;

    /* What the plan has is what was taken, but for struct ra_cuda and its arrays; an inner plan has
     * them, too. */
    int64_t taken = bytes_taken() - before;
    int64_t said_here = ra_plan_bytes(plan) - plan->fixed_bytes;
    int parts = plan->inner ? 2 : 1;
    if (!(said_here > taken && said_here <= taken + parts * 8192))
        WRONG("rank %d: the plan says that it has %" PRId64 " bytes; %" PRId64 " were taken", rank,
              said_here, taken);
    ask_of_all(plan, said);
    for (int other = 0; other < p->ranks; other++) {
        int64_t its = said_here;
        MPI_Bcast(&its, 1, MPI_INT64_T, other, p->comm);
        if (said[other] != its)
            WRONG("rank %d says that rank %d has %" PRId64 " bytes; that one says %" PRId64, rank,
                  other, said[other], its);
    }
    check_transport(p, plan, rank);
    check_kernels(p, plan);
    void *workspace = lend_workspace(p, plan);
    struct set set;
    make_set(p, plan, &set, 1);
    synchronize(p);
    call(p, plan, &set, set.stream);
    wait_for(plan);
    synchronize(p);
    if (bytes_taken() - before != taken)
        WRONG("rank %d: a call has taken memory", rank);
    synchronize(p);
    free_set(&set);
    ra_plan_destroy(plan);
    CUDA(__real_cudaFree(workspace));
}

/* A plan to look at says how much each rank of the last run had. */
static void check_forecast(const struct trial *p)
{
    struct ra_config config = p->config;
    struct ra_plan *plan;
    config.ring_size = p->ranks;
    if (!make_plan_alone(&plan, &config))
        return;
    int64_t bytes[MOST_RANKS];
    ask_of_all(plan, bytes);
    for (int rank = 0; rank < p->ranks; rank++)
        if (bytes[rank] != said[rank])
            WRONG("to look at, rank %d has %" PRId64 " bytes, in the ring %" PRId64, rank,
                  bytes[rank], said[rank]);
    ra_plan_destroy(plan);
}

static void test_memory(void)
{
    for (int transport = RA_ANY_TRANSPORT; transport <= RA_HOST_LINK; transport++)
        for (int ranks = 1; ranks <= 3; ranks++) {
            struct trial p = usual(ranks, transport == 0 ? RA_FLOAT32 : RA_BFLOAT16);
            p.config.transport = transport;
            p.config.has_mask = true;
            p.config.deterministic = ranks == 2;
            p.config.caller_workspace = transport % 2;
            begin_problem(&p);
            run_ranks(&p, check_memory);
            end_problem(&p);
            if (transport != RA_ANY_TRANSPORT && ranks > 1 && world_rank == 0)
                check_forecast(&p);
            verdict("memory is what was predicted, transport %s, %d ranks",
                    transport_names[transport], ranks);
        }

    /* A plan to look at says what each rank is going to have, without a device. */
    struct trial p = usual(3, RA_BFLOAT16);
    struct ra_plan *plan;
    p.config.ring_size = 3;
    p.config.transport = RA_PEER_COPIES;
    if (make_plan_alone(&plan, &p.config)) {
        struct ra_arrays x = RA_ARRAYS_INIT;
        if (ra_plan_bytes(plan) < 3 * 2 * 37 || ra_cuda_forward(plan, &x, NULL) != RA_INVALID ||
            !strstr(ra_plan_error(plan), "to look at") || ra_wait(plan) != RA_OK)
            WRONG("%" PRId64 " bytes; %s", ra_plan_bytes(plan), ra_plan_error(plan));
        ra_plan_destroy(plan);
    }
    verdict("a plan to look at");
}

/* ---- What is predicted of plans on GPUs. */

/* Of a plan to look at, the most bytes that a rank sends in a pass. */
static double most_bytes(struct ra_plan *plan, bool backward)
{
    int64_t most = 0;
    for (int rank = 0; rank < ra_plan_ranks(plan); rank++) {
        int64_t bytes = 0;
        for (int step = 0; step < ra_plan_hops(plan); step++) {
            struct ra_hop hop;
            is_well(ra_plan_hop(plan, rank, step, backward, &hop), ra_plan_error(plan), rank);
            bytes += hop.bytes;
        }
        most = ra_max(most, bytes);
    }
    return (double)most;
}

/* Bytes and memory are those of a plan on a GPU, by every method that it has; with slices too. */
static void check_prediction(const struct ra_config *config, const struct ra_scale_mask *mask)
{
    struct ra_scale_machine machine = RA_SCALE_MACHINE_INIT;
    struct ra_scale_choices all;
    char error[RA_ERROR_SIZE];
    machine.forward_rate = machine.backward_rate = 1e12;
    machine.bandwidth = 1e9;
    machine.memory_bandwidth = 1e10;
    struct ra_config own = *config;
    int hybrids = config->ring_size == 4;

    /* On two hosts, too, there is no double ring. */
    for (int here = 2; here >= 0; here -= 2) {
        machine.ranks_per_host = here;
        machine.host_bandwidth = here > 0 ? 1e8 : 0;
        own = *config;
        if (!is_well(ra_scale_choose(&all, &own, mask, &machine, NULL, error), error, 0))
            return;
        if (all.count != 3 + hybrids)
            WRONG("%d ranks on a host: %d methods", here, all.count);
    }
    for (int i = 0; i < all.count; i++) {
        const struct ra_scale_choice *choice = &all.list[i];
        struct ra_plan *plan;
        own = *config;
        own.method = choice->config_method;
        own.group = choice->group;
        if (mask) {
            own.max_slices = mask->count;
            own.max_rows = config->queries;
        }
        if (!make_plan_alone(&plan, &own))
            continue;
        if (mask)
            is_well(ra_plan_set_slices(plan, mask->slices, mask->count, mask->deal),
                    ra_plan_error(plan), 0);
        const struct ra_scale *scale = &choice->scale;
        double sent[] = {scale->forward.inside_bytes, scale->backward.inside_bytes};
        for (int pass = 0; pass < 2; pass++)
            if (sent[pass] != most_bytes(plan, pass))
                WRONG("%s, pass %d: %g bytes are predicted, %g are sent",
                      ra_option_methods[own.method].word, pass, sent[pass], most_bytes(plan, pass));
        if (!mask && scale->plan_bytes != ra_plan_bytes(plan))
            WRONG("%s: %" PRId64 " bytes are predicted, the plan has %" PRId64,
                  ra_option_methods[own.method].word, scale->plan_bytes, ra_plan_bytes(plan));

        /* All pairs see each other, and tiles are of one: the work is that of the plan, whether
         * the keys of all are there at once or not. */
        double pairs = (double)(config->heads * config->queries) * (double)config->queries;
        if (!config->causal && !mask &&
            fabs(scale->forward.multiply_adds / (2. * 16 * pairs) - 1) > 1e-9)
            WRONG("%s: %g multiply-adds", ra_option_methods[own.method].word,
                  scale->forward.multiply_adds);
        ra_plan_destroy(plan);
    }
}

static void test_predicted(void)
{
    static const struct ra_slice slices[] = {{0, 48, 0, 48, -RA_BAND_FAR, 0},
                                             {48, 60, 30, 60, -RA_BAND_FAR, RA_BAND_FAR},
                                             {60, 96, 60, 96, -5, 0}};
    for (int layout = RA_CONTIGUOUS; layout <= RA_ZIGZAG && world_rank == 0; layout++)
        for (int ranks = 2; ranks <= 4; ranks++)
            for (int kind = 0; kind < 4; kind++) {
                struct trial p = usual(ranks, RA_BFLOAT16);
                struct ra_scale_mask mask = {slices, 3, kind == 3};
                p.config.device = ra_cuda();
                p.config.batch = 1;
                p.config.ring_size = ranks;
                p.config.layout = layout;
                p.config.queries = 96;
                p.config.keys = RA_SAME;
                p.config.causal = kind > 0;
                p.config.transport = RA_PEER_COPIES;
                check_prediction(&p.config, kind > 1 ? &mask : NULL);
            }
    verdict("bytes, memory and work that are predicted of a GPU are those of its plans");
}

/* ---- Heads exchanged: bits, calls and memory. */

/* The numbers of a rank's rows against those of a plan of one rank, to the last bit. */
static void compare_rows(const struct trial *p, const struct ra_plan *plan, const struct set *set,
                         const struct set *alone, enum truth_array a)
{
    const struct array *few = &set->arrays[a], *all = &alone->arrays[a];
    int64_t *positions = calloc((size_t)few->rows + 1, sizeof *positions);
    size_t bytes = (size_t)(truth_width(&p->truth, a) * ra_type_bytes(few->tensor.type));
    char *x = malloc((size_t)few->bytes), *y = malloc((size_t)all->bytes);
    ra_plan_positions(plan, side_of(a), positions);
    CUDA(cudaMemcpy(x, few->tensor.data, (size_t)few->bytes, cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(y, all->tensor.data, (size_t)all->bytes, cudaMemcpyDeviceToHost));
    int64_t heads = truth_heads(&p->truth, a), differ = 0;
    for (int64_t i = 0; i < p->config.batch * few->rows * heads; i++) {
        int64_t b = i / heads / few->rows, row = i / heads % few->rows, h = i % heads;
        const struct ra_tensor *s = &few->tensor, *t = &all->tensor;
        int64_t to = b * s->batch + row * s->row + h * s->head;
        int64_t from = b * t->batch + positions[row] * t->row + h * t->head;
        differ +=
            memcmp(x + to * ra_type_bytes(s->type), y + from * ra_type_bytes(t->type), bytes) != 0;
    }
    if (differ > 0)
        WRONG("rank %d: %" PRId64 " heads of rows of %s are not those of one rank",
              ra_plan_rank(plan), differ, truth_names[a]);
    free(positions);
    free(x);
    free(y);
}

/* A rank that has whole key heads of all rows does what a rank alone would do with them. */
static void compare_alone(void *context, int rank)
{
    struct trial *p = context;
    struct ra_config config = p->config;
    struct ra_plan *plan, *alone;
    struct set set, all;
    config.method = RA_RING;
    if (!begin_plan(p, &plan, rank) || !make_plan_alone(&alone, &config))
        return;
    make_set(p, plan, &set, 1);
    make_set(p, alone, &all, 1);
    synchronize(p);
    call(p, plan, &set, set.stream);
    wait_for(plan);
    call(p, alone, &all, all.stream);
    wait_for(alone);
    synchronize(p);
    for (enum truth_array a = O; a < ARRAYS; a++)
        if (truth_is_output(a))
            compare_rows(p, plan, &set, &all, a);
    free_set(&set);
    free_set(&all);
    ra_plan_destroy(plan);
    ra_plan_destroy(alone);
}

static void test_exchange_bits(void)
{
    for (int type = RA_FLOAT32; type <= RA_BFLOAT16; type++)
        for (int ranks = 2; ranks <= 4; ranks++) {
            const struct exchanged e = {ranks, 0, 8, 4};
            struct trial p = exchanged_problem(&e, (enum ra_type)type);
            p.config.queries = 300;
            p.config.deterministic = true;
            p.config.layout = (enum ra_layout_kind)(ranks - 2);
            begin_problem(&p);
            run_ranks(&p, compute_twice);
            run_ranks(&p, compare_alone);
            end_problem(&p);
            verdict("exchanged: the bits of one rank, %s, %d ranks", type_names[type], ranks);

            /* dk and dv are sums over members, which are always added in the same order. */
            p.config.method = ranks == 3 ? RA_GATHERED_KEYS : RA_EXCHANGED_HEADS;
            p.config.layout = ranks == 3 ? RA_ZIGZAG : p.config.layout;
            p.config.key_heads = 1;
            begin_problem(&p);
            run_ranks(&p, compute_twice);
            end_problem(&p);
            verdict("exchanged: equal bits, one key head, %s, %d ranks", type_names[type], ranks);
        }
}

/* The same mask, its rows dealt in two ways, one after the other. */
static void compute_deals(void *context, int rank)
{
    struct trial *p = context;
    struct ra_plan *plan;
    if (!begin_plan(p, &plan, rank))
        return;
    for (int deal = RA_DEAL_LAYOUT; deal <= RA_DEAL_DOCUMENTS; deal++) {
        struct set set;
        p->deal = (enum ra_deal)deal;
        set_slices(p, plan, false);
        make_set(p, plan, &set, 1);
        synchronize(p);
        call(p, plan, &set, set.stream);
        wait_for(plan);
        synchronize(p);
        check_set(p, plan, &set);
        free_set(&set);
    }
    ra_plan_destroy(plan);
}

static void test_exchange_deals(void)
{
    for (int transport = RA_PEER_COPIES; transport <= RA_HOST_LINK; transport++) {
        const int groups[] = {2, 0, GATHERED};
        const struct exchanged e = {4, groups[transport - RA_PEER_COPIES], 4, 2};
        struct trial p = exchanged_problem(&e, RA_BFLOAT16);
        uint64_t state = 9;
        p.config.queries = 200;
        p.config.transport = transport;
        p.config.max_slices = PATTERN_SLICES;
        p.config.max_rows = 200;
        p.slice_count = pattern_make(CAUSAL_DOCUMENTS, 200, 200, &state, p.slices);
        begin_problem(&p);
        run_ranks(&p, compute_deals);
        end_problem(&p);
        verdict("exchanged: rows dealt anew, transport %s", transport_names[transport]);
    }
}

/* Calls under way, ranks that are late, rings, threads, memory out of reach, plans that share a
 * link. */
static void test_exchange_calls(void)
{
    static const struct exchanged all = {3, 0, 6, 2}, pairs = {4, 2, 4, 2},
                                  gathered = {4, GATHERED, 4, 2};
    for (int i = 0; i < 6; i++) {
        const struct exchanged *e = i % 3 == 2 ? &gathered : i % 3 ? &pairs : &all;
        struct trial p = exchanged_problem(e, RA_BFLOAT16);
        p.config.layout = RA_ZIGZAG;
        p.config.has_mask = true;
        p.rounds = 50;
        p.config.transport = i < 3 ? RA_ANY_TRANSPORT : RA_HOST_LINK;
        run(&p);
        verdict("exchanged: 50 calls of each kind, %s, transport %s",
                ra_option_methods[p.config.method].word, transport_names[p.config.transport]);
    }
    for (int transport = RA_PEER_COPIES; transport <= RA_HOST_LINK; transport++) {
        struct trial p = exchanged_problem(&all, RA_FLOAT32);
        p.config.timeout = 2;
        p.config.transport = transport;
        p.late = 4;
        run(&p);
        verdict("exchanged: streams with other work, transport %s", transport_names[transport]);
        p.late = 1;
        p.first_late = 1;
        p.config.timeout = 30;
        run(&p);
        verdict("exchanged: ranks that come late, transport %s", transport_names[transport]);

        /* Forwards alone: nothing that is read at their ends keeps a rank from being far ahead. */
        p = exchanged_problem(&gathered, RA_FLOAT32);
        p.config.forward_only = true;
        p.config.transport = transport;
        p.rounds = 20;
        p.late = 1;
        p.first_late = 2;
        run(&p);
        verdict("exchanged: keys gathered, forwards of ranks that are late, transport %s",
                transport_names[transport]);
        p = exchanged_problem(&(struct exchanged){4, 0, 4, 2}, RA_FLOAT32);
        p.config.ring_size = 2;
        p.config.transport = transport;
        p.config.layout = RA_STRIPED;
        p.ranks = 4;
        run(&p);
        verdict("exchanged: two rings, transport %s", transport_names[transport]);
    }
    for (int device_link = 0; device_link < 2; device_link++) {
        struct trial p = exchanged_problem(&all, RA_BFLOAT16);
        p.unreached = true;
        p.device_link = device_link;
        run(&p);
        verdict("exchanged: memory that a rank does not reach, a link that takes %s pointers",
                device_link ? "device" : "host");
    }
    for (int ranks = 2; ranks <= 4; ranks++) {
        struct trial p = exchanged_problem(&(struct exchanged){ranks, 0, 4, 2}, RA_BFLOAT16);
        p.threads = true;
        run(&p);
        verdict("exchanged: %d threads", ranks);
    }
    if (devices < 4) {
        struct trial p = exchanged_problem(&pairs, RA_BFLOAT16);
        p.threads = p.neighbours = true;
        run(&p);
        verdict("exchanged: threads that share a device with one of their group");
    }
    for (int transport = RA_PEER_COPIES; transport <= RA_HOST_LINK; transport += 2) {
        struct trial p = exchanged_problem(&all, RA_BFLOAT16);
        p.config.transport = transport;
        begin_problem(&p);
        run_ranks(&p, share_link);
        end_problem(&p);
        verdict("exchanged: two plans over one link, transport %s", transport_names[transport]);
    }
}

/* What a plan says of its memory. */
static void test_exchange_memory(void)
{
    static const struct exchanged kinds[] = {
        {3, 0, 6, 2}, {4, 2, 4, 1}, {4, GATHERED, 4, 1}, {4, 2, 6, 3}};
    for (int transport = RA_PEER_COPIES; transport <= RA_HOST_LINK; transport++)
        for (int i = 0; i < 4; i++) {
            struct trial p = exchanged_problem(&kinds[i], RA_BFLOAT16);
            p.config.layout = i == 3 ? RA_STRIPED : RA_CONTIGUOUS;
            p.config.transport = transport;
            p.config.has_mask = true;
            p.config.caller_workspace = transport % 2;
            begin_problem(&p);
            run_ranks(&p, check_memory);
            end_problem(&p);

            /* Which kernels stripes are for depends on the device. */
            if (world_rank == 0 && p.config.layout != RA_STRIPED)
                check_forecast(&p);
            verdict("exchanged: memory is what was predicted, transport %s, %s, %s",
                    transport_names[transport], ra_option_methods[p.config.method].word,
                    layout_names[p.config.layout]);
        }
}

/* ---- What an observer hears. */

static struct {
    int count;
    struct ra_event events[64];
} heard;

static void hear(void *observer, const struct ra_event *event)
{
    (void)observer;
    if (heard.count < 64)
        heard.events[heard.count++] = *event;
}

/* The event of this kind at a hop that was heard first, or second, or NULL. */
static const struct ra_event *event_of(enum ra_event_kind kind, bool backward, int hop, int number)
{
    for (int i = 0; i < heard.count; i++) {
        const struct ra_event *event = &heard.events[i];
        bool is_one = event->kind == kind && event->backward == backward && event->hop == hop;
        if (is_one && number-- == 0)
            return event;
    }
    return NULL;
}

static void check_observer(void *context, int rank)
{
    struct trial *p = context;
    struct ra_plan *plan;
    if (!begin_plan(p, &plan, rank))
        return;
    struct set set;
    make_set(p, plan, &set, 1);
    synchronize(p);
    double began = ra_seconds();
    heard.count = 0;
    for (int i = 0; i < 2; i++)
        call(p, plan, &set, set.stream);
    wait_for(plan);
    double ended = ra_seconds();
    for (int i = 0; i < heard.count; i++)
        if (!(heard.events[i].start >= began - 1e-3 && heard.events[i].end <= ended + 1e-3 &&
              heard.events[i].start <= heard.events[i].end))
            WRONG("rank %d: from %g to %g in a call from %g to %g", rank, heard.events[i].start,
                  heard.events[i].end, began, ended);

    /* One piece of work at each hop, in their order, and what the schedule sends; and perhaps a
     * rest. */
    int wanted = 0;
    bool peer = ra_cuda_of(plan)->transport == RA_PEER_COPIES;
    for (int call = 0; call < 2; call++) {
        double last = began - 1e-3;
        for (int step = 0; step < plan->ring.schedule.count; step++) {
            int hop = plan->ring.schedule.hop[step];
            bool keys = peer && ra_ring_sends(&plan->ring, rank, step);
            bool gradients =
                (keys && step > 0) || (peer && ra_ring_sends_home(&plan->ring, rank, step));
            const struct ra_event *work = event_of(RA_EVENT_WORK, call == 1, hop, 0);
            const struct ra_event *left = event_of(RA_EVENT_GRADIENTS, call == 1, hop, 0);
            if (!work || work->start < last - 1e-6)
                WRONG("rank %d, hop %d: no work, or too early", rank, hop);
            if (work && left && left->start < work->start - 1e-6)
                WRONG("rank %d, hop %d: gradients leave before the work", rank, hop);
            last = work ? work->end : last;
            if (keys != (event_of(RA_EVENT_KEYS, call == 1, hop, 0) != NULL))
                WRONG("rank %d, hop %d: keys", rank, hop);
            if ((call == 1 && gradients) != (left != NULL))
                WRONG("rank %d, hop %d: gradients", rank, hop);
            struct ra_hop planned = {0};
            if (ra_plan_hop(plan, rank, step, call == 1, &planned) != RA_OK ||
                (peer && planned.messages != keys + (left != NULL)))
                WRONG("rank %d, hop %d: the plan says %" PRId64 " messages", rank, hop,
                      planned.messages);
            wanted += 1 + keys + (call == 1 && gradients);
        }
        const struct ra_event *rest = event_of(RA_EVENT_WORK, true, 0, 1);
        if (call == 1 && ra_cuda_deferred_keys(plan) > 0) {
            if (!rest || rest->start < last - 1e-6)
                WRONG("rank %d: no rest, or too early", rank);
            wanted++;
        }
    }
    if (heard.count != wanted)
        WRONG("rank %d: %d events, not %d", rank, heard.count, wanted);

    /* Nothing is told twice. */
    wait_for(plan);
    if (heard.count != wanted)
        WRONG("rank %d: something is told twice", rank);
    synchronize(p);
    free_set(&set);
    ra_plan_destroy(plan);
}

static void test_observer(void)
{
    for (int transport = RA_PEER_COPIES; transport <= RA_HOST_LINK; transport++)
        for (int layout = RA_CONTIGUOUS; layout <= RA_ZIGZAG; layout++) {
            struct trial p = usual(4, RA_BFLOAT16);
            p.config.layout = layout;
            p.config.lookback = layout == RA_CONTIGUOUS ? 10 : RA_NO_LOOKBACK;
            p.config.transport = transport;
            p.config.observe = hear;
            leaves_a_rest = layout == RA_STRIPED;
            p.config.deterministic = layout == RA_ZIGZAG; /* dk and dv before dq */
            begin_problem(&p);
            run_ranks(&p, check_observer);
            end_problem(&p);
            leaves_a_rest = false;
            verdict("an observer, %s, transport %s", layout_names[layout],
                    transport_names[transport]);
        }
}

/* ---- Errors. */

static int odd_rank; /* which one is different, and what is wrong with it */
static enum oddity {
    NO_CALL,
    NO_ARRAY,
    OTHER_HEADS,
    LARGE_DIM,
    WIDE_VALUES,
    NO_DEVICE_LINK,
    NOT_REACHED,
    OTHER_CALL,
    OTHER_METHOD,
    NO_DEVICE_MEMORY,
    NO_HOST_MEMORY,
    NO_LAUNCH,
    NO_MEASURE,
    CANCELLED
} oddity;

/* What that rank gets, what the others get, and a word of all texts. */
struct expected {
    int odd, other; /* enum ra_status */
    const char *word;
};
static struct expected expected;
static bool chooses; /* the ranks choose a method */

static void *cancel_soon(void *plan)
{
    verdict_pause(0.05);
    ra_plan_cancel(plan);
    return NULL;
}

static void err(void *context, int rank)
{
    struct trial *p = context;
    struct ra_config config = p->config;
    struct ra_plan *plan;
    char text[RA_ERROR_SIZE] = "";
    bool odd = rank == odd_rank, next = rank == (odd_rank + 1) % 3;
    bool absent = (odd && oddity == NO_CALL) || (next && oddity == CANCELLED);
    enum ra_status wanted = (enum ra_status)(odd ? expected.odd : expected.other), status;
    if (odd && oddity == OTHER_HEADS)
        config.heads *= 2;
    if (odd && oddity == LARGE_DIM)
        config.dim = 300;
    if (odd && oddity == WIDE_VALUES)
        config.dim_value = 257;
    if (odd && oddity == OTHER_METHOD)
        config.method = RA_RING;
    if (oddity == NO_DEVICE_LINK)
        config.transport = RA_DEVICE_LINK;
    p->unreached = oddity == NOT_REACHED;
    no_device_memory = odd && oddity == NO_DEVICE_MEMORY;
    no_host_memory = odd && oddity == NO_HOST_MEMORY;
    no_launch = odd && oddity == NO_MEASURE;
    status = make_plan(p, &plan, &config, rank, text);
    no_launch = false;
    no_device_memory = no_host_memory = no_foreign_memory = false;
    char who[16] = "";
    if (oddity >= NO_DEVICE_MEMORY)
        snprintf(who, sizeof who, "ring rank %d", odd_rank);
    if (status != RA_OK) {
        if (plan || status != wanted || !strstr(text, expected.word) || !strstr(text, who))
            WRONG("rank %d is odd; rank %d: %s: %s%s", odd_rank, rank, ra_status_text(status), text,
                  plan ? ", and a plan" : "");
        return;
    }
    struct set set;
    make_set(p, plan, &set, 1);
    synchronize(p);
    if (odd && oddity == NO_ARRAY)
        set.x.q.data = NULL;
    no_launch = odd && oddity == NO_LAUNCH;
    pthread_t canceller;
    if (odd && oddity == CANCELLED)
        pthread_create(&canceller, NULL, cancel_soon, plan);
    if (odd && oddity == OTHER_CALL)
        status = ra_cuda_backward(plan, &set.x, set.stream);
    else if (!absent)
        status = ra_cuda_forward(plan, &set.x, set.stream);
    no_launch = false;
    if (status == RA_OK && !absent)
        status = ra_wait(plan);
    if (odd && oddity == CANCELLED)
        pthread_join(canceller, NULL);
    bool says_it = strstr(ra_plan_error(plan), expected.word) && strstr(ra_plan_error(plan), who);
    if (!absent && (status != wanted || !says_it))
        WRONG("rank %d is odd; rank %d: %s: %s", odd_rank, rank, ra_status_text(status),
              ra_plan_error(plan));

    /* Nothing uses the arrays of a call that has failed. */
    if (status != RA_OK && !absent)
        for (enum truth_array a = K; a <= V; a++)
            CUDA(__real_cudaFree(set.arrays[a].tensor.data));

    /* Once lost, always lost. */
    if (!odd && !absent && status == RA_LOST &&
        ra_cuda_forward(plan, &set.x, set.stream) != RA_LOST)
        WRONG("rank %d: a lost plan computes", rank);
    CUDA(cudaStreamSynchronize(set.stream));
    synchronize(p);
    ra_plan_destroy(plan);
}

/* Runs three ranks, one of which is odd. */
static void expect(const char *name, bool threads, enum ra_transport transport, double timeout,
                   struct expected what)
{
    struct trial p = usual(3, RA_FLOAT32);
    p.config.method = chooses ? RA_AUTO_METHOD : with_methods ? RA_EXCHANGED_HEADS : RA_RING;
    p.config.causal = false; /* everybody needs everybody */
    p.config.transport = transport;
    p.config.timeout = timeout;
    p.threads = threads;
    expected = what;
    begin_problem(&p);
    for (odd_rank = 0; odd_rank < 3; odd_rank++) {
        double began = ra_seconds();
        run_ranks(&p, err);
        if (ra_seconds() - began > (oddity == NO_CALL ? timeout + 30 : timeout / 2))
            WRONG("rank %d is odd: that took %.1f seconds", odd_rank, ra_seconds() - began);
    }
    end_problem(&p);
    verdict("%s, transport %s, %s%s", name, transport_names[transport],
            threads ? "threads" : "processes",
            chooses        ? ", a method is chosen"
            : with_methods ? ", heads exchanged"
                           : "");
}

/* Peer copies are for processes: threads that share a GPU are refused them. */
static void test_errors(void)
{
    enum { ANY = RA_ANY_TRANSPORT, PEER = RA_PEER_COPIES, HOST = RA_HOST_LINK };
    enum {
        INVALID = RA_INVALID,
        NO_MEMORY = RA_OUT_OF_MEMORY,
        LOST = RA_LOST,
        DISAGREE = RA_DISAGREEMENT
    };
    static const struct {
        const char *name;
        enum oddity oddity;
        int transport;
        double timeout;
        struct expected what;
    } cases[] = {
        {"a config that is refused", LARGE_DIM, ANY, 60, {INVALID, INVALID, "config.dim = 300"}},
        {"wide values", WIDE_VALUES, ANY, 60, {INVALID, INVALID, "config.dim_value = 257"}},
        {"a link that takes none", NO_DEVICE_LINK, ANY, 60, {INVALID, INVALID, "DEVICE_LINK"}},
        {"a device that is full", NO_DEVICE_MEMORY, ANY, 60, {NO_MEMORY, NO_MEMORY, "no memory: "}},
        {"a host that is full", NO_HOST_MEMORY, HOST, 60, {NO_MEMORY, NO_MEMORY, "no memory: "}},
        {"a launch that fails", NO_LAUNCH, PEER, 60, {RA_DEVICE, LOST, "hop 0: ra_k02_forward: "}},
        {"a launch that fails", NO_LAUNCH, HOST, 60, {RA_DEVICE, LOST, "hop 0: ra_k02_forward: "}},
        {"an array that is refused", NO_ARRAY, PEER, 60, {INVALID, LOST, "arrays.q.data"}},
        {"an array that is refused", NO_ARRAY, HOST, 60, {INVALID, LOST, "arrays.q.data"}},
        {"a rank that is dead", NO_CALL, PEER, 2, {RA_OK, LOST, "hop "}},
        {"a rank that is dead", NO_CALL, HOST, 2, {RA_OK, LOST, "hop "}},
        {"a rank that is cancelled", CANCELLED, PEER, 60, {RA_CANCELLED, LOST, "cancelled by ra_"}},
        {"a rank that is cancelled", CANCELLED, HOST, 60, {RA_CANCELLED, LOST, "cancelled by ra_"}},
        {"a rank in another call", OTHER_CALL, PEER, 60, {LOST, LOST, "make the same calls"}},
        {"a rank in another call", OTHER_CALL, HOST, 60, {LOST, LOST, "make the same calls"}},
        {"ranks that disagree", OTHER_HEADS, ANY, 60, {DISAGREE, DISAGREE, "config.heads"}},
        {"memory out of reach", NOT_REACHED, PEER, 60, {INVALID, INVALID, "not reach the memory"}},
    };

    /* What a lost ring had stays: who was lost might still write to it. */
    for (int threads = 0; threads < 2; threads++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            oddity = cases[i].oddity;
            if (!threads || cases[i].transport != PEER)
                expect(cases[i].name, threads, (enum ra_transport)cases[i].transport,
                       cases[i].timeout, cases[i].what);
        }
    oddity = NO_ARRAY;
    if (devices < 3)
        expect("threads that share a GPU", true, RA_PEER_COPIES, 60,
               (struct expected){INVALID, INVALID, "of a process share device"});
}

/* Rank 0 is cancelled while its stream has other work, so that its rows do not come. Rank 1 waits
 * for them on its device, and its host for that: does it hear at once? */
static void hear_in_time(void *context, int rank)
{
    struct trial *p = context;
    struct ra_plan *plan;
    if (!begin_plan(p, &plan, rank))
        return;
    struct set set;
    if (p->unreached && rank % 2)
        check_said(plan, "\ntransport: host link, as rank 1 does not reach the memory of rank 3");
    set_slices(p, plan, false);
    make_set(p, plan, &set, 1);
    synchronize(p);
    double began = ra_seconds(), end = began + p->late;
    pthread_t canceller;
    if (rank == 0) {
        CUDA(cudaLaunchHostFunc(set.stream, rest_until, &end));
        pthread_create(&canceller, NULL, cancel_soon, plan);
    }
    enum ra_status status = ra_cuda_forward(plan, &set.x, set.stream);
    if (rank == 1 && status == RA_OK && p->config.max_slices > 0)
        status = ra_plan_set_slices(plan, p->slices, p->slice_count, p->deal);
    else if (status == RA_OK)
        status = ra_wait(plan);
    if (rank == 0)
        pthread_join(canceller, NULL);
    double seconds = ra_seconds() - began;
    const char *text = ra_plan_error(plan);
    if (status != (rank == 0 ? RA_CANCELLED : RA_LOST) || !strstr(text, "ring rank 0") ||
        (rank == 1 && seconds > p->late / 2))
        WRONG("rank %d: %s after %.1f seconds: %s", rank, ra_status_text(status), seconds, text);
    CUDA(cudaStreamSynchronize(set.stream));
    synchronize(p);
    ra_plan_destroy(plan);
}

/* What CUDA says late of the work on some heads ends the plan all the same. */
static void note_late(void *context, int rank)
{
    struct trial *p = context;
    struct ra_plan *plan;
    if (!begin_plan(p, &plan, rank))
        return;
    struct set set;
    make_set(p, plan, &set, 1);
    synchronize(p);
    is_well(ra_cuda_forward(plan, &set.x, set.stream), ra_plan_error(plan), rank);
    CUDA(cudaStreamSynchronize(set.stream));
    synchronize(p);
    if (rank == 0) {
        ra_cuda_note(plan->inner, cudaErrorInvalidValue, "late()");
        if (ra_wait(plan) != RA_DEVICE || !strstr(ra_plan_error(plan), "rank 0: late: "))
            WRONG("%s", ra_plan_error(plan));
    }
    synchronize(p);
    ra_plan_destroy(plan);
}

static void test_exchange_hearing(void)
{
    static const struct exchanged kinds[] = {{2, 0, 4, 2}, {2, GATHERED, 4, 2}, {4, 2, 4, 2}};
    for (int i = 0; i < 3; i++) {
        uint64_t state = 1;
        struct trial p = exchanged_problem(&kinds[i], RA_FLOAT32);
        p.late = 4;
        p.config.timeout = 60;

        /* Between the groups of rank 1 messages pass by the link then, in them by peer copies. */
        p.unreached = i == 2;
        p.reached = 1;
        if (i < 2) {
            p.config.queries = 200;
            p.config.max_slices = PATTERN_SLICES;
            p.config.max_rows = 200;
            p.slice_count = pattern_make(CAUSAL_DOCUMENTS, 200, 200, &state, p.slices);
        }
        begin_problem(&p);
        run_ranks(&p, hear_in_time);
        end_problem(&p);
        verdict("exchanged: a cancelled rank is heard of %s, %s",
                i < 2 ? "before a list is made" : "between two transports",
                ra_option_methods[p.config.method].word);
    }
    for (int i = 0; i < 3; i++) {
        struct trial p = exchanged_problem(&kinds[i], RA_FLOAT32);
        begin_problem(&p);
        run_ranks(&p, note_late);
        end_problem(&p);
        verdict("exchanged: an error that CUDA tells late, %s",
                ra_option_methods[p.config.method].word);
    }
}

static void test_exchange_errors(void)
{
    with_methods = true;
    test_errors();
    with_methods = false;

    struct ra_config config = usual(3, RA_FLOAT32).config;
    struct ra_plan *plan;
    char error[RA_ERROR_SIZE] = "";
    config.device = ra_cuda();
    config.ring_size = 3;
    config.method = RA_DOUBLE_RING;
    if (ra_plan_create(&plan, &config, NULL, error) != RA_INVALID ||
        strcmp(error, "config.method = RA_DOUBLE_RING: give RA_RING or RA_GATHERED_KEYS or "
                      "RA_EXCHANGED_HEADS or RA_HYBRID to a plan on a GPU") != 0)
        WRONG("%s", error);
    verdict("methods that GPUs do not have");
}

/* Methods that the ranks choose, by what they measure. */
static void test_auto(void)
{
    for (int i = 0; i < 10 && verdict_wants("chosen"); i++) {
        bool hosts = i == 7; /* of two ranks */
        int ranks = hosts ? 4 : 2 + i % 3, transport = hosts ? RA_PEER_COPIES : (i + 1) % 4;
        struct trial p = usual(ranks, (enum ra_type)(i % 3));
        struct ra_scale_mask mask = {p.slices, 0, (enum ra_deal)(i % 2)};
        uint64_t state = (uint64_t)i;
        if (i > 7) {
            p.slice_count = mask.count = pattern_make(CAUSAL_DOCUMENTS, p.config.queries,
                                                      p.config.queries, &state, p.slices);
            p.deal = mask.deal;
            p.config.max_slices = PATTERN_SLICES;
            p.config.max_rows = p.config.queries;
            p.config.expected = &mask;
        }
        p.config.method = RA_AUTO_METHOD;
        p.config.layout = (enum ra_layout_kind)((ranks + transport) % 3);
        p.config.transport = (enum ra_transport)transport;
        p.config.caller_workspace = i % 2;
        p.config.forward_only = i == 1;
        p.threads = transport == RA_ANY_TRANSPORT;
        p.sharing = hosts ? 2 : 0;
        run(&p);
        verdict("a method is chosen, transport %s, %s, %d ranks, %s", transport_names[transport],
                layout_names[p.config.layout], ranks,
                hosts       ? "hosts of two"
                : i > 7     ? "slices"
                : p.threads ? "threads"
                            : "processes");
    }

    /* A rank that cannot measure, or does not: none waits for it. */
    static const struct {
        const char *name;
        enum oddity oddity;
        enum ra_transport transport;
        struct expected what;
    } cases[] = {{"a rank that does not choose",
                  OTHER_METHOD,
                  RA_ANY_TRANSPORT,
                  {RA_DISAGREEMENT, RA_DISAGREEMENT, "config.method"}},
                 {"a device that is full",
                  NO_DEVICE_MEMORY,
                  RA_ANY_TRANSPORT,
                  {RA_OUT_OF_MEMORY, RA_OUT_OF_MEMORY, "no memory "}},
                 {"a host that is full",
                  NO_HOST_MEMORY,
                  RA_HOST_LINK,
                  {RA_OUT_OF_MEMORY, RA_OUT_OF_MEMORY, "no memory: "}},
                 {"a launch that fails",
                  NO_MEASURE,
                  RA_ANY_TRANSPORT,
                  {RA_LOST, RA_LOST, "ra_k02_forward: "}},
                 {"memory out of reach",
                  NOT_REACHED,
                  RA_PEER_COPIES,
                  {RA_INVALID, RA_INVALID, "not reach the memory"}}};
    chooses = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int threads = 0; threads < (cases[i].transport == RA_PEER_COPIES ? 1 : 2); threads++) {
            oddity = cases[i].oddity;
            if (verdict_wants("%s", cases[i].name))
                expect(cases[i].name, threads, cases[i].transport, 60, cases[i].what);
        }
    chooses = false;
}

static void test_wrong_calls(void)
{
    struct trial p = usual(1, RA_FLOAT32);
    struct ra_arrays x = RA_ARRAYS_INIT;
    struct ra_plan *device, *host;
    char error[RA_ERROR_SIZE];
    if (make_plan_alone(&device, &p.config) &&
        is_well(ra_plan_create(&host, &p.config, NULL, error), error, 0)) {
        if (ra_forward(device, &x) != RA_INVALID || !strstr(ra_plan_error(device), "arrays.q") ||
            ra_backward(device, &x) != RA_INVALID)
            WRONG("%s", ra_plan_error(device));
        if (ra_cuda_forward(host, &x, NULL) != RA_INVALID ||
            !strstr(ra_plan_error(host), "computes on the host: call ra_forward") ||
            ra_cuda_backward(host, &x, NULL) != RA_INVALID || ra_wait(host) != RA_OK)
            WRONG("%s", ra_plan_error(host));
        if (ra_wait(NULL) != RA_INVALID || ra_cuda_forward(NULL, &x, NULL) != RA_INVALID)
            WRONG("a plan that is NULL");
        ra_plan_destroy(device);
        ra_plan_destroy(host);
    }
    verdict("calls of the other backend");

    /* Types: what is multiplied is of the plan's type, results may be float32. */
    p = usual(1, RA_BFLOAT16);
    if (make_plan_alone(&device, &p.config)) {
        void *data;
        CUDA(__real_cudaMalloc(&data, 1 << 16));
        x.q = ra_tensor_bnhd(data, RA_FLOAT32, 37, 4, 16);
        x.k = x.v = ra_tensor_bnhd(data, RA_BFLOAT16, 37, 2, 16);
        if (ra_cuda_forward(device, &x, NULL) != RA_INVALID ||
            !strstr(ra_plan_error(device), "arrays.q.type = RA_FLOAT32: give RA_BFLOAT16"))
            WRONG("%s", ra_plan_error(device));
        x.q = ra_tensor_bnhd(data, RA_BFLOAT16, 37, 4, 16);
        x.q.row = -x.q.row;
        if (ra_cuda_forward(device, &x, NULL) != RA_INVALID ||
            !strstr(ra_plan_error(device), "below 0"))
            WRONG("%s", ra_plan_error(device));
        CUDA(__real_cudaFree(data));
        ra_plan_destroy(device);
    }
    verdict("types and strides that are refused");
}

/* Arrays and streams that are not of the plan's device. */
static void test_elsewhere(void)
{
    struct trial p = usual(1, RA_FLOAT32);
    struct ra_plan *plan;
    begin_problem(&p);
    CUDA(cudaSetDevice(0));
    if (!make_plan_alone(&plan, &p.config))
        return;
    struct set set;
    make_set(&p, plan, &set, 1);

    /* Some devices reach all memory of the host: then it is as good as any. */
    struct cudaDeviceProp properties;
    struct ra_arrays x = set.x;
    x.k.data = p.truth.x[K];
    CUDA(cudaGetDeviceProperties(&properties, 0));
    enum ra_status status = ra_cuda_forward(plan, &x, set.stream);
    if (properties.pageableMemoryAccess
            ? status != RA_OK
            : status != RA_INVALID || !strstr(ra_plan_error(plan), "arrays.k.data is memory"))
        WRONG("k on the host: %s: %s", ra_status_text(status), ra_plan_error(plan));
    wait_for(plan);

    cudaGraph_t graph = NULL;
    CUDA(cudaStreamBeginCapture(set.stream, cudaStreamCaptureModeThreadLocal));
    status = ra_cuda_forward(plan, &set.x, set.stream);
    if (status != RA_INVALID || !strstr(ra_plan_error(plan), "stream is being captured"))
        WRONG("a captured stream: %s: %s", ra_status_text(status), ra_plan_error(plan));

    /* What has become of the graph is CUDA's business. */
    (void)cudaStreamEndCapture(set.stream, &graph);
    cudaGetLastError();

    if (devices > 1) {
        cudaStream_t other;
        CUDA(cudaSetDevice(1));
        CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        CUDA(cudaSetDevice(0));
        status = ra_cuda_forward(plan, &set.x, other);
        if (status != RA_INVALID || !strstr(ra_plan_error(plan), "stream is one of device 1"))
            WRONG("another device: %s: %s", ra_status_text(status), ra_plan_error(plan));
        CUDA(cudaStreamDestroy(other));
    }

    /* The plan is as good as before. */
    call(&p, plan, &set, set.stream);
    wait_for(plan);
    check_set(&p, plan, &set);
    free_set(&set);
    ra_plan_destroy(plan);
    end_problem(&p);
    verdict("calls that wait");
}

static void test_exchange(void)
{
    static const struct verdict_test tests[] = {
        {"bits", test_exchange_bits},       {"deals", test_exchange_deals},
        {"calls", test_exchange_calls},     {"memory", test_exchange_memory},
        {"hearing", test_exchange_hearing}, {"errors", test_exchange_errors}};
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (verdict_wants("%s", tests[i].name))
            tests[i].run();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } tests[] = {{"layouts", test_layouts},       {"transports", test_transports},
                 {"unreached", test_unreached},   {"rings", test_rings},
                 {"slices", test_slices},         {"extras", test_extras},
                 {"methods", test_methods},       {"exchange", test_exchange},
                 {"parts", test_parts},           {"rule", test_rule},
                 {"blocks", test_blocks},         {"shapes", test_shapes},
                 {"often", test_often},           {"threads", test_threads},
                 {"created", test_created_often}, {"shared", test_shared_links},
                 {"late", test_late_streams},     {"deterministic", test_deterministic},
                 {"memory", test_memory},         {"calls", test_wrong_calls},
                 {"elsewhere", test_elsewhere},   {"observer", test_observer},
                 {"predicted", test_predicted},   {"auto", test_auto},
                 {"errors", test_errors}};

    int size, provided;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    bool right = size == MOST_RANKS;
    for (int a = 1; a < argc; a++) {
        bool known = false;
        for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
            known = known || strcmp(argv[a], tests[i].name) == 0;
        right = right && known;
    }
    if (!right && world_rank == 0) {
        fprintf(stderr,
                "usage: mpirun -n %d build/check-cuda-ring [PART...]      PART:", MOST_RANKS);
        for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
            fprintf(stderr, " %s", tests[i].name);
        fprintf(stderr, " (default: all)\n");
    }
    bool has_device = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
    if (right && !has_device && world_rank == 0)
        printf("no CUDA device: nothing was run\n0 passed, 0 failed\n");
    if (!right || !has_device) {
        MPI_Finalize();
        return right ? 1 : 2;
    }
    verdict_state.tells = true;
    verdict_start(world_rank, 0, "rank %d: ", world_rank);
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        bool wanted = argc == 1;
        for (int a = 1; a < argc; a++)
            wanted = wanted || strcmp(argv[a], tests[i].name) == 0;
        verdict_state.test = tests[i].name;
        if (wanted)
            tests[i].run();
    }
    int code = verdict_end();
    MPI_Finalize();
    return code;
}
