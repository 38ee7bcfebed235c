/* cuda_on_host: a stand-in for the CUDA runtime and for the kernels, on which check_cuda_ring runs
 * without a GPU.
 *
 * What it is for: which work may overtake which is said by streams and events alone, and a GPU nearly
 * always takes the same way out of many. Here a thread of each process does the work of all its
 * streams, a piece at a time, and draws by lot whose turn it is. A wait that was forgotten gives wrong
 * numbers, memory begins as NaN, and whoever uses freed memory crashes.
 *
 * What it promises: the work of a stream in its order; events, also with their times; copies that
 * stop half-way; functions of the host one after the other; memory that other processes open; the
 * last error of a thread, which the next launch returns. What it does not: that kernels run at the
 * same time and slow each other down, memory that sees writes in another order than they were made,
 * the numbers of the real kernels, or an error for each wrong use.
 *
 * ON_HOST_SEED sets the lots, ON_HOST_DEVICES how many devices there are (2). As with a GPU, streams
 * of a device are one queue if CUDA_DEVICE_MAX_CONNECTIONS is 1, and launches wait for their end
 * with CUDA_LAUNCH_BLOCKING.
 */
#define _GNU_SOURCE /* memfd_create */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include "ra_heads.h"
#include "ra_kernel.h"
#include "ra_number.h"
#include "ra_signal.h"

enum { MOST_DEVICES = 16, MOST_STREAMS = 256, MOST_DIM = 256 };

/* A piece of work, and what it needs. */
struct work {
    bool (*run)(struct work *work); /* false: it is not done, and wants another turn */
    struct work *next;
    int turns; /* so far */
    double began;
    char *to;
    const char *from;
    size_t bytes;
    int value;
    cudaEvent_t event;
    int64_t number; /* which record of the event */
    cudaHostFn_t function;
    void *context;
    enum { NOT_CALLED, CALLED, RETURNED } call;
    struct ra_kernel kernel;
    struct ra_signal signal;
    struct ra_tensor out, in;
    int64_t batch, rows, heads, dim;
};

struct CUstream_st {
    int device;
    bool destroyed;
    struct work *first, **end;
};

struct CUevent_st {
    bool has_time;
    int64_t records, happened; /* how many were enqueued, and the number of the last one done */
    double time;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t some_done = PTHREAD_COND_INITIALIZER; /* or some enqueued */
static struct CUstream_st defaults[MOST_DEVICES];           /* in place of a NULL stream */
static cudaStream_t streams[MOST_STREAMS];
static int stream_count;
static bool host_is_busy; /* with a function of a stream */
static _Thread_local int device;
static _Thread_local cudaError_t last_error;

static cudaError_t fail(cudaError_t code)
{
    last_error = code;
    return code;
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int64_t setting(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoll(text, NULL, 10) : otherwise;
}

/* ---- The thread that does the work. */

static uint64_t lots;

static int draw(int below)
{
    lots = lots * 6364136223846793005u + 1442695040888963407u;
    return (int)((lots >> 33) % (uint64_t)below);
}

static void rest(int microseconds)
{
    nanosleep(&(struct timespec){0, 1000 * microseconds}, NULL);
}

static void add_stream(cudaStream_t stream, int its_device)
{
    *stream = (struct CUstream_st){.device = its_device, .end = &stream->first};
    if (stream_count == MOST_STREAMS)
        abort();
    streams[stream_count++] = stream;
}

static void remove_stream(cudaStream_t stream)
{
    int i = 0;
    while (streams[i] != stream)
        i++;
    streams[i] = streams[--stream_count];
    free(stream);
}

/* Draws a stream that has work, NULL if none has. Now and then one runs ahead of the others: this
 * stream gets the next turns, too. */
static cudaStream_t draw_stream(int *busy)
{
    static cudaStream_t ahead;
    static int turns;
    cudaStream_t found[MOST_STREAMS];
    *busy = 0;
    bool goes_on = false;
    for (int i = 0; i < stream_count; i++)
        if (streams[i]->first) {
            goes_on = goes_on || streams[i] == ahead;
            found[(*busy)++] = streams[i];
        }
    if (*busy == 0)
        return NULL;
    if (!goes_on || turns-- <= 0) {
        ahead = found[draw(*busy)];
        turns = draw(4) == 0 ? draw(20) : 0;
    }
    return ahead;
}

static void *work_for_ever(void *unused)
{
    pthread_mutex_lock(&mutex);
    for (int busy, in_vain = 0;;) {
        cudaStream_t stream = draw_stream(&busy);
        if (!stream) {
            pthread_cond_wait(&some_done, &mutex);
            continue;
        }
        struct work *work = stream->first;
        pthread_mutex_unlock(&mutex);
        bool done = work->run(work);
        work->turns++;

        /* Others need the processor when all wait. And processes, too, run ahead of each other. */
        in_vain = done ? 0 : in_vain + 1;
        if (in_vain > 2 * busy)
            rest(20);
        if (draw(100) == 0)
            rest(draw(500));
        pthread_mutex_lock(&mutex);
        if (!done)
            continue;
        stream->first = work->next;
        if (!stream->first) {
            stream->end = &stream->first;
            if (stream->destroyed)
                remove_stream(stream);
        }
        free(work);
        pthread_cond_broadcast(&some_done);
    }
    return NULL;
}

static void begin(void)
{
    /* The ranks of a ring are children of one process, whose number is as good as any. */
    int64_t seed = setting("ON_HOST_SEED", getppid()), rank = setting("OMPI_COMM_WORLD_RANK", 0);
    lots = (uint64_t)(seed * 1024 + rank);
    if (rank == 0)
        printf("on the host, in the order of ON_HOST_SEED=%lld\n", (long long)seed);
    fflush(stdout);
    pthread_mutex_lock(&mutex);
    for (int d = 0; d < MOST_DEVICES; d++)
        add_stream(&defaults[d], d);
    pthread_mutex_unlock(&mutex);
    pthread_t thread;
    if (pthread_create(&thread, NULL, work_for_ever, NULL) != 0)
        abort();
}

static cudaStream_t stream_of(cudaStream_t stream)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, begin);
    return stream ? stream : &defaults[device];
}

static cudaError_t enqueue(struct work work, cudaStream_t stream)
{
    struct work *copy = malloc(sizeof *copy);
    *copy = work;
    stream = stream_of(stream);
    pthread_mutex_lock(&mutex);
    *stream->end = copy;
    stream->end = &copy->next;
    pthread_cond_broadcast(&some_done);
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}

static cudaError_t launch(struct work work, cudaStream_t stream)
{
    enqueue(work, stream);
    if (setting("CUDA_LAUNCH_BLOCKING", 0))
        cudaStreamSynchronize(stream);
    return cudaGetLastError();
}

/* ---- Devices, and errors. */

cudaError_t cudaGetDeviceCount(int *count)
{
    stream_of(NULL);
    *count = (int)setting("ON_HOST_DEVICES", 2);
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int which)
{
    device = which;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *which)
{
    *which = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int which)
{
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "stand-in on the host");
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    pthread_mutex_lock(&mutex);
    for (int i = 0; i < stream_count; i++)
        if (streams[i]->device == device && streams[i]->first) {
            pthread_cond_wait(&some_done, &mutex);
            i = -1; /* others may be there by now */
        }
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int from, int to)
{
    *can = from != to;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int to, unsigned flags)
{
    static bool enabled[MOST_DEVICES][MOST_DEVICES];
    pthread_mutex_lock(&mutex);
    bool before = enabled[device][to];
    enabled[device][to] = true;
    pthread_mutex_unlock(&mutex);
    return before ? fail(cudaErrorPeerAccessAlreadyEnabled) : cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t code = last_error;
    last_error = cudaSuccess;
    return code;
}

const char *cudaGetErrorString(cudaError_t code)
{
    static _Thread_local char text[40];
    snprintf(text, sizeof text, "error %d on the host", (int)code);
    return text;
}

/* ---- Memory. A file without a name, which is gone with the last process that has it open. */

static struct block {
    void *memory;
    size_t bytes;
    int file; /* -1: another process has it */
    struct block *next;
} * blocks;

static cudaError_t map_block(void **memory, size_t bytes, int file, bool keep)
{
    struct block *block = malloc(sizeof *block);
    *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (*memory == MAP_FAILED)
        abort();
    if (!keep)
        close(file);
    pthread_mutex_lock(&mutex);
    *block = (struct block){*memory, bytes, keep ? file : -1, blocks};
    blocks = block;
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    int file = memfd_create("device memory", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0)
        return fail(cudaErrorMemoryAllocation);
    map_block(memory, bytes, file, true);
    memset(*memory, 0xFF, bytes);
    return cudaSuccess;
}

cudaError_t cudaFree(void *memory)
{
    pthread_mutex_lock(&mutex);
    struct block **at = &blocks, *found;
    while (*at && (*at)->memory != memory)
        at = &(*at)->next;
    found = *at;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&mutex);
    if (!found)
        return memory ? fail(cudaErrorInvalidValue) : cudaSuccess;
    munmap(memory, found->bytes);
    if (found->file >= 0)
        close(found->file);
    free(found);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    return cudaMalloc(memory, bytes);
}

cudaError_t cudaFreeHost(void *memory)
{
    return cudaFree(memory);
}

cudaError_t cudaHostGetDevicePointer(void **memory, void *host, unsigned flags)
{
    *memory = host;
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    memset(to, value, bytes);
    return cudaSuccess;
}

/* What another process needs to open a block. */
struct file_of_process {
    int process, file;
    size_t bytes;
};

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory)
{
    struct file_of_process name = {.process = getpid(), .file = -1};
    pthread_mutex_lock(&mutex);
    for (const struct block *block = blocks; block; block = block->next)
        if (block->memory == memory) {
            name.file = block->file;
            name.bytes = block->bytes;
        }
    pthread_mutex_unlock(&mutex);
    memcpy(handle, &name, sizeof name);
    return name.file >= 0 ? cudaSuccess : fail(cudaErrorInvalidValue);
}

cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned flags)
{
    struct file_of_process name;
    char path[64];
    memcpy(&name, &handle, sizeof name);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", name.process, name.file);
    int file = open(path, O_RDWR | O_CLOEXEC);
    return file < 0 ? fail(cudaErrorInvalidValue) : map_block(memory, name.bytes, file, false);
}

cudaError_t cudaIpcCloseMemHandle(void *memory)
{
    return cudaFree(memory);
}

/* ---- Streams. */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    *stream = stream_of(NULL);
    if (setting("CUDA_DEVICE_MAX_CONNECTIONS", 8) == 1)
        return cudaSuccess;
    *stream = malloc(sizeof **stream);
    pthread_mutex_lock(&mutex);
    add_stream(*stream, device);
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = *greatest = 0;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    if (stream >= defaults && stream < defaults + MOST_DEVICES)
        return cudaSuccess;
    pthread_mutex_lock(&mutex);
    stream->destroyed = true;
    if (!stream->first)
        remove_stream(stream);
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    stream = stream_of(stream);
    pthread_mutex_lock(&mutex);
    bool busy = stream->first;
    pthread_mutex_unlock(&mutex);
    return busy ? cudaErrorNotReady : cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    stream = stream_of(stream);
    pthread_mutex_lock(&mutex);
    while (stream->first)
        pthread_cond_wait(&some_done, &mutex);
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}

/* The first half in one turn, the second in another. But a signal is an int, and whole. */
static bool copy(struct work *work)
{
    size_t half = work->bytes / 2;
    if (work->bytes == sizeof(int)) {
        int value = __atomic_load_n((const int *)(const void *)work->from, __ATOMIC_ACQUIRE);
        __atomic_store_n((int *)(void *)work->to, value, __ATOMIC_RELEASE);
        return true;
    }
    if (work->turns == 0)
        memcpy(work->to, work->from, half);
    else
        memcpy(work->to + half, work->from + half, work->bytes - half);
    return work->turns > 0;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return enqueue((struct work){.run = copy, .to = to, .from = from, .bytes = bytes}, stream);
}

static bool set_bytes(struct work *work)
{
    memset(work->to, work->value, work->bytes);
    return true;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    return enqueue((struct work){.run = set_bytes, .to = to, .value = value, .bytes = bytes},
                   stream);
}

static void *call_function(void *its_work)
{
    struct work *work = its_work;
    work->function(work->context);
    pthread_mutex_lock(&mutex);
    work->call = RETURNED;
    host_is_busy = false;
    pthread_mutex_unlock(&mutex);
    return NULL;
}

/* In a thread of its own: other streams go on. */
static bool call_host(struct work *work)
{
    pthread_t thread;
    pthread_mutex_lock(&mutex);
    if (work->call == NOT_CALLED && !host_is_busy) {
        work->call = CALLED;
        host_is_busy = true;
        if (pthread_create(&thread, NULL, call_function, work) != 0)
            abort();
        pthread_detach(thread);
    }
    bool done = work->call == RETURNED;
    pthread_mutex_unlock(&mutex);
    return done;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *context)
{
    return enqueue((struct work){.run = call_host, .function = function, .context = context},
                   stream);
}

/* ---- Events. */

static cudaError_t create_event(cudaEvent_t *event, bool has_time)
{
    *event = calloc(1, sizeof **event);
    (*event)->has_time = has_time;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return create_event(event, true);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    return create_event(event, !(flags & cudaEventDisableTiming));
}

/* Something may still wait for it: its memory stays. */
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    return cudaSuccess;
}

static bool happen(struct work *work)
{
    pthread_mutex_lock(&mutex);
    if (work->event->happened < work->number) {
        work->event->happened = work->number;
        work->event->time = seconds();
    }
    pthread_mutex_unlock(&mutex);
    return true;
}

static bool has_happened(struct work *work)
{
    pthread_mutex_lock(&mutex);
    bool done = work->event->happened >= work->number;
    pthread_mutex_unlock(&mutex);
    return done;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    pthread_mutex_lock(&mutex);
    int64_t number = ++event->records;
    pthread_mutex_unlock(&mutex);
    return enqueue((struct work){.run = happen, .event = event, .number = number}, stream);
}

/* What the event stands for is its last record so far. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    pthread_mutex_lock(&mutex);
    int64_t number = event->records;
    pthread_mutex_unlock(&mutex);
    return enqueue((struct work){.run = has_happened, .event = event, .number = number}, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    struct work work = {.event = event, .number = event->records};
    return has_happened(&work) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    pthread_mutex_lock(&mutex);
    while (event->happened < event->records)
        pthread_cond_wait(&some_done, &mutex);
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    if (!from->has_time || !to->has_time || from->records == 0 || to->records == 0)
        return fail(cudaErrorInvalidResourceHandle);
    if (cudaEventQuery(from) != cudaSuccess || cudaEventQuery(to) != cudaSuccess)
        return cudaErrorNotReady;
    *milliseconds = (float)(1e3 * (to->time - from->time));
    return cudaSuccess;
}

/* ---- Signals: the same as in ra_signal.cu, looked at once a turn. */

static bool fail_signal(const struct ra_signal *signal, int failure)
{
    for (int i = 0; i < RA_SIGNALS; i++)
        __atomic_store_n(&signal->table[i], RA_SIGNAL_LOST, __ATOMIC_SEQ_CST);
    if (__atomic_exchange_n(&signal->table[RA_SIGNALS], 1, __ATOMIC_SEQ_CST) != 0)
        return true;
    struct ra_trouble *trouble = signal->trouble;
    trouble->message = signal->message;
    trouble->is_room = signal->is_room;
    trouble->hop = signal->hop;
    trouble->peer = signal->peer;
    __atomic_store_n(&trouble->failure, failure, __ATOMIC_RELEASE);
    return true;
}

static bool await(struct work *work)
{
    const struct ra_signal *signal = &work->signal;
    work->began = work->turns == 0 ? seconds() : work->began;
    int value = __atomic_load_n(signal->word, __ATOMIC_ACQUIRE);
    if (value == RA_SIGNAL_LOST)
        return fail_signal(signal, RA_SIGNAL_PEER_LOST);
    if (((unsigned)(value - signal->number) & (RA_SIGNALS - 1)) < RA_SIGNALS / 2)
        return true;
    if (__atomic_load_n(&signal->table[RA_SIGNALS], __ATOMIC_ACQUIRE) != 0)
        return fail_signal(signal, RA_SIGNAL_LATE);
    if (__atomic_load_n(&signal->trouble->stop, __ATOMIC_ACQUIRE) != 0)
        return fail_signal(signal, RA_SIGNAL_STOPPED);
    double waited = 1e9 * (seconds() - work->began);
    if (signal->nanoseconds > 0 && waited > (double)signal->nanoseconds)
        return fail_signal(signal, RA_SIGNAL_LATE);
    return false;
}

cudaError_t ra_signal_wait(const struct ra_signal *signal, cudaStream_t stream)
{
    return launch((struct work){.run = await, .signal = *signal}, stream);
}

static bool copy_mask(struct work *work)
{
    const unsigned char *from = work->in.data;
    for (int64_t i = 0; i < work->batch * work->rows; i++)
        work->to[i] = from[i / work->rows * work->in.batch + i % work->rows * work->in.row] ? 1 : 0;
    return true;
}

cudaError_t ra_signal_mask(bool *to, struct ra_tensor from, int64_t batch, int64_t rows,
                           cudaStream_t stream)
{
    return launch(
        (struct work){.run = copy_mask, .to = (char *)to, .in = from, .batch = batch, .rows = rows},
        stream);
}

/* ---- Kernels. */

static char *at(struct ra_tensor x, int64_t batch, int64_t row, int64_t head)
{
    return (char *)x.data + (batch * x.batch + row * x.row + head * x.head) * ra_type_bytes(x.type);
}

static float *floats(struct ra_tensor x, int64_t batch, int64_t row, int64_t head)
{
    return (float *)(void *)at(x, batch, row, head);
}

/* One row of queries, and one key that it sees. */
struct pair {
    int64_t batch, row, head, key_head;
    float q[MOST_DIM], d_out[MOST_DIM], k[MOST_DIM], v[MOST_DIM];
    double score, slope; /* the slope is that of the soft cap, times scale */
};

static void load(struct ra_tensor x, int64_t dim, int64_t batch, int64_t row, int64_t head,
                 float *to)
{
    ra_number_load(x.type, dim, at(x, batch, row, head), to);
}

static double product(int64_t dim, const float *x, const float *y)
{
    double sum = 0;
    for (int64_t c = 0; c < dim; c++)
        sum += (double)x[c] * (double)y[c];
    return sum;
}

/* Row number i of all batches and heads. */
static void open_row(const struct ra_kernel *x, int64_t i, struct pair *p)
{
    p->batch = i / x->queries / x->heads;
    p->head = i / x->queries % x->heads;
    p->row = i % x->queries;
    p->key_head = ra_heads_key(x->head_map, x->heads, x->key_heads, p->head);
}

/* Does the row see key b? Then its score is computed. */
static bool sees(const struct ra_kernel *x, int64_t b, struct pair *p)
{
    double cap = (double)x->score.softcap, scale = (double)x->score.scale;
    if (b - p->row < x->band.lo || b - p->row > x->band.hi ||
        (x->mask.data && !*at(x->mask, p->batch, b, 0)))
        return false;
    load(x->k, x->dim, p->batch, b, p->key_head, p->k);
    load(x->v, x->dim, p->batch, b, p->key_head, p->v);
    p->score = scale * product(x->dim, p->q, p->k);
    p->slope = scale;
    if (cap > 0) {
        p->score = cap * tanh(p->score / cap);
        p->slope *= 1 - p->score / cap * (p->score / cap);
    }
    return true;
}

static bool forward(struct work *work)
{
    const struct ra_kernel *x = &work->kernel;
    for (int64_t i = 0; i < x->batch * x->heads * x->queries; i++) {
        struct pair p;
        open_row(x, i, &p);
        float o[MOST_DIM] = {0}, max = -INFINITY, sum = 0;
        load(x->q, x->dim, p.batch, p.row, p.head, p.q);
        if (!x->first) {
            load(x->carry_o, x->dim, p.batch, p.row, p.head, o);
            max = *floats(x->carry_max, p.batch, p.row, p.head);
            sum = *floats(x->carry_sum, p.batch, p.row, p.head);
        }
        for (int64_t b = 0; b < x->keys; b++) {
            if (!sees(x, b, &p))
                continue;
            float score = (float)p.score, larger = score > max ? score : max;
            float rescale = expf(max - larger), weight = expf(score - larger);
            sum = sum * rescale + weight;
            for (int64_t c = 0; c < x->dim; c++)
                o[c] = o[c] * rescale + weight * p.v[c];
            max = larger;
        }
        if (!x->last) {
            memcpy(floats(x->carry_o, p.batch, p.row, p.head), o, x->dim * sizeof *o);
            *floats(x->carry_max, p.batch, p.row, p.head) = max;
            *floats(x->carry_sum, p.batch, p.row, p.head) = sum;
            continue;
        }
        for (int64_t c = 0; c < x->dim; c++)
            o[c] = sum > 0 ? o[c] / sum : 0;
        ra_number_store(x->o.type, x->dim, o, at(x->o, p.batch, p.row, p.head));
        *floats(x->lse, p.batch, p.row, p.head) = sum > 0 ? max + logf(sum) : -INFINITY;
    }
    return true;
}

static bool backward(struct work *work)
{
    const struct ra_kernel *x = &work->kernel;
    for (int64_t i = 0; i < x->batch * x->heads * x->queries; i++) {
        struct pair p;
        open_row(x, i, &p);
        load(x->q, x->dim, p.batch, p.row, p.head, p.q);
        load(x->d_out, x->dim, p.batch, p.row, p.head, p.d_out);
        double lse = (double)*floats(x->lse, p.batch, p.row, p.head);
        double delta = (double)*floats(x->delta, p.batch, p.row, p.head);
        float *dq = floats(x->dq, p.batch, p.row, p.head);
        for (int64_t b = 0; b < x->keys; b++) {
            if (!sees(x, b, &p))
                continue;
            float *dk = floats(x->dk, p.batch, b, p.key_head);
            float *dv = floats(x->dv, p.batch, b, p.key_head);
            double weight = exp(p.score - lse);
            double ds = weight * (product(x->dim, p.d_out, p.v) - delta) * p.slope;
            for (int64_t c = 0; c < x->dim; c++) {
                dq[c] += (float)ds * p.k[c];
                dk[c] += (float)ds * p.q[c];
                dv[c] += (float)weight * p.d_out[c];
            }
        }
    }
    return true;
}

/* As the real ones, each has only types of its own. */
static cudaError_t launch_kernel(bool (*run)(struct work *), bool narrow,
                                 const struct ra_kernel *kernel, cudaStream_t stream)
{
    if ((kernel->q.type != RA_FLOAT32) != narrow)
        return fail(cudaErrorNotSupported);
    return launch((struct work){.run = run, .kernel = *kernel}, stream);
}

cudaError_t ra_k02_forward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    return launch_kernel(forward, false, kernel, stream);
}

cudaError_t ra_k02_backward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    return launch_kernel(backward, false, kernel, stream);
}

cudaError_t ra_k03_forward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    return launch_kernel(forward, true, kernel, stream);
}

cudaError_t ra_k03_backward(const struct ra_kernel *kernel, cudaStream_t stream)
{
    return launch_kernel(backward, true, kernel, stream);
}

/* Nobody takes turns here; but memory for that is asked for. */
int64_t ra_kernel_turns(const struct ra_kernel *kernel)
{
    return kernel->keys / 64 + 1;
}

static bool write_delta(struct work *work)
{
    const struct ra_kernel *x = &work->kernel;
    for (int64_t i = 0; i < x->batch * x->heads * x->queries; i++) {
        struct pair p;
        open_row(x, i, &p);
        load(x->o, x->dim, p.batch, p.row, p.head, p.v);
        load(x->d_out, x->dim, p.batch, p.row, p.head, p.d_out);
        *floats(x->delta, p.batch, p.row, p.head) = (float)product(x->dim, p.d_out, p.v);
    }
    return true;
}

cudaError_t ra_kernel_delta(const struct ra_kernel *kernel, cudaStream_t stream)
{
    return launch((struct work){.run = write_delta, .kernel = *kernel}, stream);
}

static bool copy_numbers(struct work *work)
{
    for (int64_t i = 0; i < work->batch * work->rows * work->heads; i++) {
        int64_t b = i / work->heads / work->rows, row = i / work->heads % work->rows;
        int64_t head = i % work->heads;
        float from[MOST_DIM], to[MOST_DIM] = {0};
        load(work->in, work->dim, b, row, head, from);
        if (work->value)
            load(work->out, work->dim, b, row, head, to);
        for (int64_t c = 0; c < work->dim; c++)
            to[c] += from[c];
        ra_number_store(work->out.type, work->dim, to, at(work->out, b, row, head));
    }
    return true;
}

static cudaError_t launch_copy(bool adds, struct ra_tensor to, struct ra_tensor from, int64_t batch,
                               int64_t rows, int64_t heads, int64_t dim, cudaStream_t stream)
{
    return launch((struct work){.run = copy_numbers,
                                .value = adds,
                                .out = to,
                                .in = from,
                                .batch = batch,
                                .rows = rows,
                                .heads = heads,
                                .dim = dim},
                  stream);
}

cudaError_t ra_kernel_copy(struct ra_tensor to, struct ra_tensor from, int64_t batch, int64_t rows,
                           int64_t heads, int64_t dim, cudaStream_t stream)
{
    return launch_copy(false, to, from, batch, rows, heads, dim, stream);
}

cudaError_t ra_kernel_add(struct ra_tensor to, struct ra_tensor from, int64_t batch, int64_t rows,
                          int64_t heads, int64_t dim, cudaStream_t stream)
{
    return launch_copy(true, to, from, batch, rows, heads, dim, stream);
}
