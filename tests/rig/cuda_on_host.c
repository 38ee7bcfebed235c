/* cuda_on_host: a stand-in for the CUDA runtime and for the kernels, on which check_cuda_ring runs
 * without a GPU.
 *
 * What it is for: streams and events alone say what may overtake what, and a GPU nearly always
 * takes the same way out of many. Here a thread of each process does the work of all its streams, a
 * piece at a time, and draws by lot whose turn it is. A wait that was forgotten gives wrong
 * numbers, and memory begins as NaN.
 *
 * What it promises: the work of a stream in its order; events, also with their times; copies that
 * stop half-way; functions of the host one after the other; memory that other processes open; the
 * last error of a thread, which the next launch returns. What it does not: kernels that run at the
 * same time and slow each other down, memory that sees writes in another order than they were made,
 * the numbers of the real kernels, or an error for each wrong use.
 *
 * ON_HOST_SEED sets the lots, ON_HOST_DEVICES how many devices there are (2), ON_HOST_PAGEABLE
 * whether they reach memory of the host that they were not told of (0). As with a GPU, streams of a
 * device are one queue if CUDA_DEVICE_MAX_CONNECTIONS is 1, and launches wait for their end with
 * CUDA_LAUNCH_BLOCKING.
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
#include "ra_carry.h"
#include "ra_clock.h"
#include "ra_heads.h"
#include "ra_kernel.h"
#include "ra_move.h"
#include "ra_number.h"
#include "ra_signal.h"
#include "ra_tile.h"

enum { MOST_DEVICES = 16, MOST_STREAMS = 256 };

/* For how many turns a stream comes last, at most, and for how many seconds nothing else must
 * happen before it goes on. */
enum { MOST_TURNS = 200 };
static const double QUIET = 3e-4;

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
    struct ra_moves moves;
    struct ra_tensor out, in, plus;
    int64_t batch, rows, heads, dim;
};

struct CUstream_st {
    int device;
    bool destroyed, captured;
    struct work *first, **end;
};

struct CUevent_st {
    bool has_time;
    int64_t records, happened; /* how many were enqueued, and the number of the last one done */
    double time;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t some_enqueued = PTHREAD_COND_INITIALIZER;
static pthread_cond_t some_done = PTHREAD_COND_INITIALIZER; /* a stream's last, or an event */
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

/* Draws a stream that may go on now, NULL if none may. For a time one of them, by lot, comes last:
 * it gets a turn only when all others have waited in vain for a while. So its work is done as late
 * as it may be, and a stream that should have waited for that work, and did not, is seen. */
static cudaStream_t draw_stream(double last_done, int *busy)
{
    static cudaStream_t last;
    static int turns;
    cudaStream_t found[MOST_STREAMS];
    int count = 0;
    for (int i = 0; i < stream_count; i++)
        if (streams[i]->first)
            found[count++] = streams[i];
    if (turns-- <= 0 && count > 0) {
        last = found[draw(count)];
        turns = draw(MOST_TURNS);
    }
    *busy = 0;
    for (int i = 0; i < count; i++)
        if (found[i] != last || ra_seconds() - last_done > QUIET)
            found[(*busy)++] = found[i];
    return *busy > 0 ? found[draw(*busy)] : NULL;
}

static bool has_work(void)
{
    for (int i = 0; i < stream_count; i++)
        if (streams[i]->first)
            return true;
    return false;
}

static void *work_for_ever(void *unused)
{
    pthread_mutex_lock(&mutex);
    double last_done = 0;
    for (int busy, in_vain = 0;;) {
        cudaStream_t stream = draw_stream(last_done, &busy);
        if (!stream && !has_work()) {
            pthread_cond_wait(&some_enqueued, &mutex);
            continue;
        }
        if (!stream) {
            struct timespec soon;
            clock_gettime(CLOCK_REALTIME, &soon);
            soon.tv_nsec += 300000;
            soon.tv_sec += soon.tv_nsec / 1000000000;
            soon.tv_nsec %= 1000000000;
            pthread_cond_timedwait(&some_enqueued, &mutex, &soon);
            continue;
        }
        struct work *work = stream->first;
        pthread_mutex_unlock(&mutex);
        bool done = work->run(work);
        work->turns++;

        /* Others need the processor when all wait, and more of it, the longer that takes. And
         * processes, too, run ahead of each other. */
        in_vain = done ? 0 : in_vain + 1;
        if (in_vain > 2 * busy)
            rest(20 + (in_vain < 4000 ? in_vain / 4 : 1000));
        if (draw(100) == 0)
            rest(draw(500));
        pthread_mutex_lock(&mutex);
        if (!done)
            continue;
        last_done = ra_seconds();
        stream->first = work->next;
        if (!stream->first) {
            stream->end = &stream->first;
            if (stream->destroyed)
                remove_stream(stream);
        }
        if (work->event || !work->next)
            pthread_cond_broadcast(&some_done);
        free(work);
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
    pthread_cond_signal(&some_enqueued);
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}

/* A launch hears of the last error of its thread, whatever that was. */
static cudaError_t launch(struct work work, cudaStream_t stream)
{
    enqueue(work, stream);
    if (setting("CUDA_LAUNCH_BLOCKING", 0))
        cudaStreamSynchronize(stream);
    return cudaGetLastError();
}

/* ---- Calls. Those that always go well are shorter with this. */

#define WELL(call, ...)     \
    cudaError_t call        \
    {                       \
        __VA_ARGS__;        \
        return cudaSuccess; \
    }

/* And those that say in a word what they do. */
#define RETURNS(call, ...)  \
    cudaError_t call        \
    {                       \
        return __VA_ARGS__; \
    }

WELL(cudaSetDevice(int which), device = which)
WELL(cudaGetDevice(int *which), *which = device)
WELL(cudaDeviceCanAccessPeer(int *can, int from, int to), *can = from != to)
WELL(cudaHostGetDevicePointer(void **memory, void *host, unsigned flags), *memory = host)

/* Bytes that went to the device, and from there. */
static int64_t sent_up, sent_down;

int64_t cuda_on_host_bytes(bool up);
int64_t cuda_on_host_bytes(bool up)
{
    return __atomic_load_n(up ? &sent_up : &sent_down, __ATOMIC_RELAXED);
}

static void count_bytes(size_t bytes, enum cudaMemcpyKind kind)
{
    if (kind == cudaMemcpyHostToDevice)
        __atomic_fetch_add(&sent_up, (int64_t)bytes, __ATOMIC_RELAXED);
    if (kind == cudaMemcpyDeviceToHost)
        __atomic_fetch_add(&sent_down, (int64_t)bytes, __ATOMIC_RELAXED);
}

WELL(cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind),
     count_bytes(bytes, kind);
     memcpy(to, from, bytes))
WELL(cudaMemset(void *to, int value, size_t bytes), memset(to, value, bytes))
WELL(cudaDeviceGetStreamPriorityRange(int *least, int *greatest), *least = *greatest = 0)

/* Something may still wait for it: its memory stays. */
WELL(cudaEventDestroy(cudaEvent_t event), (void)0)

/* ---- Devices, and errors. */

cudaError_t cudaGetDeviceCount(int *count)
{
    stream_of(NULL);
    *count = (int)setting("ON_HOST_DEVICES", 2);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int which)
{
    memset(properties, 0, sizeof *properties);
    strcpy(properties->name, "stand-in on the host");
    properties->major = 9;
    properties->multiProcessorCount = 132;
    properties->pageableMemoryAccess = (int)setting("ON_HOST_PAGEABLE", 0);
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

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address)
{
    *attributes = (struct cudaPointerAttributes){.type = cudaMemoryTypeUnregistered};
    pthread_mutex_lock(&mutex);
    for (const struct block *block = blocks; block; block = block->next)
        if ((const char *)address >= (const char *)block->memory &&
            (const char *)address < (const char *)block->memory + block->bytes)
            attributes->type = cudaMemoryTypeDevice;
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}

RETURNS(cudaHostAlloc(void **memory, size_t bytes, unsigned flags), cudaMalloc(memory, bytes))
RETURNS(cudaFreeHost(void *memory), cudaFree(memory))

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

RETURNS(cudaIpcCloseMemHandle(void *memory), cudaFree(memory))

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

RETURNS(cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags),
        cudaStreamCreateWithPriority(stream, flags, 0))

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

/* Whoever asks whether something is done asks over and over, and would take the processor from the
 * thread that does it. */
static cudaError_t answer(bool done)
{
    if (!done)
        rest(100);
    return done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    stream = stream_of(stream);
    pthread_mutex_lock(&mutex);
    bool done = !stream->first;
    pthread_mutex_unlock(&mutex);
    return answer(done);
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

WELL(cudaStreamGetDevice(cudaStream_t stream, int *its_device),
     *its_device = stream_of(stream)->device)

/* Nothing is captured, but the stream says so. */
WELL(cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode),
     stream->captured = true)
WELL(cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph), stream->captured = false)

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    *status =
        stream_of(stream)->captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
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
    count_bytes(bytes, kind);
    return enqueue((struct work){.run = copy, .to = to, .from = from, .bytes = bytes}, stream);
}

static bool set_bytes(struct work *work)
{
    memset(work->to, work->value, work->bytes);
    return true;
}

RETURNS(cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream),
        enqueue((struct work){.run = set_bytes, .to = to, .value = value, .bytes = bytes}, stream))

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

RETURNS(cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *context),
        enqueue((struct work){.run = call_host, .function = function, .context = context}, stream))

/* ---- Events. */

static cudaError_t create_event(cudaEvent_t *event, bool has_time)
{
    *event = calloc(1, sizeof **event);
    (*event)->has_time = has_time;
    return cudaSuccess;
}

RETURNS(cudaEventCreate(cudaEvent_t *event), create_event(event, true))
RETURNS(cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags),
        create_event(event, !(flags & cudaEventDisableTiming)))

static bool happen(struct work *work)
{
    pthread_mutex_lock(&mutex);
    if (work->event->happened < work->number) {
        work->event->happened = work->number;
        work->event->time = ra_seconds();
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
    return answer(has_happened(&work));
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
    struct ra_device_error *error = signal->error;
    error->message = signal->message;
    error->is_credit = signal->is_credit;
    error->hop = signal->hop;
    error->peer = signal->peer;
    __atomic_store_n(&error->failure, failure, __ATOMIC_RELEASE);
    return true;
}

static bool await(struct work *work)
{
    const struct ra_signal *signal = &work->signal;
    work->began = work->turns == 0 ? ra_seconds() : work->began;
    int value = __atomic_load_n(signal->word, __ATOMIC_ACQUIRE);
    if (value == RA_SIGNAL_LOST)
        return fail_signal(signal, RA_SIGNAL_PEER_LOST);
    if (((unsigned)(value - signal->number) & (RA_SIGNALS - 1)) < RA_SIGNALS / 2)
        return true;
    if (__atomic_load_n(&signal->table[RA_SIGNALS], __ATOMIC_ACQUIRE) != 0)
        return fail_signal(signal, RA_SIGNAL_LATE);
    if (__atomic_load_n(&signal->error->stop, __ATOMIC_ACQUIRE) != 0)
        return fail_signal(signal, RA_SIGNAL_STOPPED);
    double waited = 1e9 * (ra_seconds() - work->began);
    if (signal->nanoseconds > 0 && waited > (double)signal->nanoseconds)
        return fail_signal(signal, RA_SIGNAL_LATE);
    return false;
}

RETURNS(ra_signal_wait(const struct ra_signal *signal, cudaStream_t stream),
        launch((struct work){.run = await, .signal = *signal}, stream))

static bool copy_mask(struct work *work)
{
    const unsigned char *from = work->in.data;
    for (int64_t i = 0; i < work->batch * work->rows; i++)
        ((bool *)
             work->out.data)[i / work->rows * work->out.batch + i % work->rows * work->out.row] =
            from[i / work->rows * work->in.batch + i % work->rows * work->in.row] != 0;
    return true;
}

RETURNS(ra_signal_mask(struct ra_tensor to, struct ra_tensor from, int64_t batch, int64_t rows,
                       cudaStream_t stream),
        launch((struct work){.run = copy_mask, .out = to, .in = from, .batch = batch, .rows = rows},
               stream))

/* ---- Kernels: the tiles of the library on the host, on copies of one head in float32. */

static void *copies[24];
static int copy_count;

/* Rows of one head, without gaps; of no array, zeros. */
static float *copy_of(struct ra_tensor x, int64_t rows, int64_t width, int64_t batch, int64_t head)
{
    float *to = calloc((size_t)(rows * width) + 1, sizeof *to);
    const char *from = x.data;
    for (int64_t row = 0; from && row < rows; row++)
        ra_number_load(x.type, width,
                       from +
                           (batch * x.batch + row * x.row + head * x.head) * ra_type_bytes(x.type),
                       to + row * width);
    copies[copy_count++] = to;
    return to;
}

/* And back; nowhere, if there is no array. */
static void put_back(struct ra_tensor x, int64_t rows, int64_t width, int64_t batch, int64_t head,
                     const float *from)
{
    char *to = x.data;
    for (int64_t row = 0; to && row < rows; row++)
        ra_number_store(x.type, width, from + row * width,
                        to + (batch * x.batch + row * x.row + head * x.head) *
                                 ra_type_bytes(x.type));
}

static void free_copies(void)
{
    while (copy_count > 0)
        free(copies[--copy_count]);
}

static struct ra_dims dims_of(const struct ra_kernel *kernel)
{
    return (struct ra_dims){kernel->dim, kernel->dim_value};
}

/* The slope of the head that is computed; and what for, in a list. */
static float slope_now;
static enum ra_work_use use_now;

static float of_head(struct ra_tensor x, int64_t h)
{
    return x.data ? ((const float *)x.data)[h * x.head] : 0;
}

typedef void tile_fold(struct ra_dims, struct ra_score, const struct ra_queries *,
                       const struct ra_keys *, struct ra_band, float *);

/* Folds these queries and keys, from row a and row b on. With slopes a pair at a time, as rows may
 * lie anywhere. */
static void fold_rows(const struct ra_kernel *kernel, tile_fold *tile,
                      const struct ra_queries *queries, int64_t a, int64_t rows,
                      const struct ra_keys *keys, int64_t b, int64_t count, struct ra_band band,
                      float *workspace)
{
    struct ra_score score = kernel->score;
    if (!kernel->slopes.data) {
        struct ra_queries some = ra_queries_block(queries, a, rows);
        struct ra_keys seen = ra_keys_block(keys, b, count);
        tile(dims_of(kernel), score, &some, &seen, band, workspace);
        return;
    }
    score.slope = slope_now;
    for (int64_t e = 0; e < rows * count; e++) {
        int64_t i = e / count, j = e % count;
        struct ra_queries row = ra_queries_block(queries, a + i, 1);
        struct ra_keys key = ra_keys_block(keys, b + j, 1);
        row.at.first =
            ((const int32_t *)kernel->query_place.data)[(a + i) * kernel->query_place.row];
        key.at.first = ((const int32_t *)kernel->key_place.data)[(b + j) * kernel->key_place.row];
        if (j - i >= band.lo && j - i <= band.hi)
            tile(dims_of(kernel), score, &row, &key, RA_ALL_KEYS, workspace);
    }
}

/* The rows of a tile, one by one, each with what it sees: queries of keys or, backward, keys of
 * queries. */
static void fold_parts(const struct ra_kernel *kernel, tile_fold *tile,
                       const struct ra_queries *queries, const struct ra_keys *keys,
                       float *workspace)
{
    const struct ra_work_tile *of = kernel->work.tile;
    bool of_keys = use_now == RA_WORK_BACKWARD;
    int rows =
        ra_work_rows(kernel->q.type, ra_kernel_widest(kernel), kernel->deterministic, use_now);
    for (int i = 0; i < of->parts * of->rows; i++) {
        int part = of->part + i / of->rows, row = i % of->rows;
        struct ra_sight sight = kernel->work.sight[(int64_t)part * rows + row];
        int64_t first = sight.first, count = ra_max(0, sight.end - sight.first);
        if (count > 0 && of_keys)
            fold_rows(kernel, tile, queries, first, count, keys, row, 1, RA_ALL_KEYS, workspace);
        else if (count > 0)
            fold_rows(kernel, tile, queries, row, 1, keys, first, count, RA_ALL_KEYS, workspace);
    }
}

/* Row by row, if the edges of the band have steps. */
static void fold(const struct ra_kernel *kernel, tile_fold *tile, const struct ra_queries *queries,
                 const struct ra_keys *keys, float *workspace)
{
    if (!ra_has_steps(kernel->band_step) && kernel->work.count == 0)
        fold_rows(kernel, tile, queries, 0, kernel->queries, keys, 0, kernel->keys, kernel->band,
                  workspace);
    if (kernel->work.count > 0)
        fold_parts(kernel, tile, queries, keys, workspace);
    for (int64_t a = 0; a < kernel->queries && ra_has_steps(kernel->band_step); a++) {
        struct ra_band band = {kernel->band.lo + a - ra_within_step(a, kernel->band_step.lo),
                               kernel->band.hi + a - ra_within_step(a, kernel->band_step.hi)};
        fold_rows(kernel, tile, queries, a, 1, keys, 0, kernel->keys, band, workspace);
    }
}

/* As the real ones, in ints that are ordered as the numbers are. */
static int ordered(float x)
{
    int bits;
    memcpy(&bits, &x, sizeof bits);
    return x != x ? 0x7fffffff : bits < 0 ? bits ^ 0x7fffffff : bits;
}

static void raise_largest(const struct ra_kernel *kernel, int64_t h,
                          const struct ra_queries *queries)
{
    int *at = (int *)kernel->largest.data + h * kernel->largest.head;
    int mine = ordered(ra_carry_largest(queries, -INFINITY));
    *at = mine > *at ? mine : *at;
}

static void attend(const struct ra_kernel *kernel, bool backward, int64_t b, int64_t h,
                   float *workspace)
{
    const struct ra_tensor none = RA_NO_TENSOR;
    int64_t n = kernel->queries, m = kernel->keys, D = kernel->dim, D_v = kernel->dim_value;
    int64_t widest = ra_kernel_widest(kernel);
    int64_t g = ra_heads_key(kernel->head_map, kernel->heads, kernel->key_heads, h);
    bool carried = !backward && !kernel->first;
    const float *before = copy_of(carried ? kernel->carry_sum : none, n, 1, b, h);
    double *sum = copies[copy_count++] = calloc((size_t)n + 1, sizeof *sum);
    for (int64_t a = 0; a < n; a++)
        sum[a] = before[a];
    struct ra_queries queries = {
        .rows = n,
        .stride = {D, D_v, D_v, D, widest},
        .q = copy_of(kernel->q, n, D, b, h),
        .o = copy_of(carried ? kernel->carry_o : none, n, D_v, b, h),
        .max = copy_of(carried ? kernel->carry_max : none, n, 1, b, h),
        .sum = sum,
        .comp = copy_of(none, n, widest, b, h),
        .lse = copy_of(backward ? kernel->lse : none, n, 1, b, h),
        .d_out = copy_of(kernel->d_out, n, D_v, b, h),
        .delta = copy_of(kernel->delta, n, 1, b, h),
        .dq = copy_of(kernel->dq.type == RA_FLOAT32 ? kernel->dq : none, n, D, b, h)};
    struct ra_keys keys = {.rows = m,
                           .stride = {D, D_v, D, D_v, D, D_v},
                           .k = copy_of(kernel->k, m, D, b, g),
                           .v = copy_of(kernel->v, m, D_v, b, g),
                           .dk = copy_of(kernel->dk, m, D, b, g),
                           .dv = copy_of(kernel->dv, m, D_v, b, g),
                           .dk_comp = copy_of(none, m, D, b, g),
                           .dv_comp = copy_of(none, m, D_v, b, g)};
    if (kernel->mask.data) {
        bool *mask = copies[copy_count++] = calloc((size_t)m + 1, sizeof *mask);
        for (int64_t i = 0; i < m; i++)
            mask[i] =
                ((const bool *)kernel->mask.data)[b * kernel->mask.batch + i * kernel->mask.row];
        keys.mask = mask;
    }
    slope_now = of_head(kernel->slopes, h);
    if (backward) {
        fold(kernel, ra_tile_backward, &queries, &keys, workspace);
        put_back(kernel->dq, n, D, b, h, queries.dq);
        put_back(kernel->dk, m, D, b, g, keys.dk);
        put_back(kernel->dv, m, D_v, b, g, keys.dv);
        return;
    }
    if (kernel->first)
        ra_tile_begin(dims_of(kernel), &queries);
    fold(kernel, ra_tile_forward, &queries, &keys, workspace);
    if (kernel->last && kernel->largest.data)
        raise_largest(kernel, h, &queries);
    if (kernel->last && kernel->sink.data)
        ra_carry_add_sink(D_v, &queries, of_head(kernel->sink, h));
    if (kernel->last) {
        ra_tile_finish(dims_of(kernel), &queries);
        put_back(kernel->o, n, D_v, b, h, queries.o);
        put_back(kernel->lse, n, 1, b, h, queries.lse);
    } else {
        put_back(kernel->carry_o, n, D_v, b, h, queries.o);
        put_back(kernel->carry_max, n, 1, b, h, queries.max);
        float *rounded = copy_of(none, n, 1, b, h);
        for (int64_t a = 0; a < n; a++)
            rounded[a] = (float)sum[a];
        put_back(kernel->carry_sum, n, 1, b, h, rounded);
    }
}

/* The part of a launch that is one tile of a list. Where dq has a list of its own, keys that stay
 * are not for dq, and queries not for dk and dv. */
static struct ra_kernel tile_of(struct ra_kernel kernel, const struct ra_work *list, int64_t i)
{
    const struct ra_work_tile *tile = &list->tile[i];
    bool apart = ra_work_separates(kernel.q.type, ra_kernel_widest(&kernel), kernel.deterministic);
    kernel.work = *list;
    kernel.work.count = 1;
    kernel.work.tile = tile;
    if (use_now == RA_WORK_DQ)
        kernel.dk = kernel.dv = (struct ra_tensor)RA_NO_TENSOR;
    if (use_now == RA_WORK_BACKWARD) {
        if (apart)
            kernel.dq = (struct ra_tensor)RA_NO_TENSOR;
        kernel.keys = tile->rows;
        struct ra_tensor *const all[] = {&kernel.k,  &kernel.v,  &kernel.mask,
                                         &kernel.dk, &kernel.dv, &kernel.key_place};
        for (int n = 0; n < 6; n++)
            *all[n] = ra_tensor_from_row(*all[n], tile->row);
        return kernel;
    }
    kernel.queries = tile->rows;
    kernel.first = tile->first;
    kernel.last = tile->last;
    struct ra_tensor *const all[] = {
        &kernel.q,         &kernel.o,           &kernel.lse,   &kernel.carry_o, &kernel.carry_max,
        &kernel.carry_sum, &kernel.query_place, &kernel.d_out, &kernel.delta,   &kernel.dq};
    for (int n = 0; n < 10; n++)
        *all[n] = ra_tensor_from_row(*all[n], tile->row);
    return kernel;
}

/* All heads, and all tiles of a list, if there is one. */
static void attend_list(const struct ra_kernel *kernel, const struct ra_work *list, bool backward,
                        float *workspace)
{
    int64_t tiles = list ? list->count : 1;
    for (int64_t i = 0; i < kernel->batch * kernel->heads * tiles; i++) {
        int64_t head = i / tiles;
        struct ra_kernel one = list ? tile_of(*kernel, list, i % tiles) : *kernel;
        attend(&one, backward, head / kernel->heads, head % kernel->heads, workspace);
        free_copies();
    }
}

static bool attend_all(struct work *work)
{
    struct ra_kernel kernel = work->kernel;
    int64_t numbers = ra_tile_workspace(kernel.queries, kernel.keys, dims_of(&kernel));
    float *workspace = malloc((size_t)numbers * sizeof *workspace + 1);

    /* dk and dv that are written are sums over several heads, too: in float32, from 0 on. */
    struct ra_tensor sums[2] = {kernel.dk, kernel.dv}, written[2] = {kernel.dk, kernel.dv};
    bool writes = work->value && (kernel.writes_keys || kernel.dk.type != RA_FLOAT32);
    size_t heads = (size_t)(kernel.batch * kernel.keys * kernel.key_heads);
    const int64_t widths[] = {kernel.dim, kernel.dim_value};
    for (int i = 0; i < 2 && writes; i++)
        sums[i] = ra_tensor_bnhd(calloc(heads * (size_t)widths[i] + 1, sizeof(float)), RA_FLOAT32,
                                 kernel.keys, kernel.key_heads, widths[i]);
    kernel.dk = sums[0];
    kernel.dv = sums[1];
    use_now = work->value ? RA_WORK_BACKWARD : RA_WORK_FORWARD;
    attend_list(&kernel, kernel.work.count > 0 ? &kernel.work : NULL, work->value, workspace);
    if (work->value && kernel.work.count > 0 && kernel.dq.data &&
        ra_work_separates(kernel.q.type, ra_kernel_widest(&kernel), kernel.deterministic)) {
        use_now = RA_WORK_DQ;
        attend_list(&kernel, &kernel.dq_work, true, workspace);
    }
    for (int i = 0; i < 2 && writes; i++) {
        for (int64_t h = 0; h < kernel.batch * kernel.key_heads; h++) {
            int64_t b = h / kernel.key_heads, g = h % kernel.key_heads;
            put_back(written[i], kernel.keys, widths[i], b, g,
                     copy_of(sums[i], kernel.keys, widths[i], b, g));
            free_copies();
        }
        free(sums[i].data);
    }
    free(workspace);
    return true;
}

/* As k07's forward: it draws with the semaphore, which is 0 before and after. If that were
 * part of something else, it would be destroyed. */
static bool attend_drawing(struct work *work)
{
    int *drawn = work->kernel.semaphores;
    if (!drawn || *drawn != 0) {
        fputs("FAILED k07's forward: its semaphore is not there, or not 0\n", stderr);
        abort();
    }
    *drawn = 1;
    attend_all(work);
    *drawn = 0;
    return true;
}

/* As the real ones, each has only types of its own. */
static cudaError_t launch_kernel(bool narrow, bool backward, bool draws,
                                 const struct ra_kernel *kernel, cudaStream_t stream)
{
    bool alone = backward && (!kernel->dq.data || !kernel->dk.data);
    bool separates =
        ra_work_separates(kernel->q.type, ra_kernel_widest(kernel), kernel->deterministic);
    if ((kernel->q.type != RA_FLOAT32) != narrow || (alone && !(narrow && separates)))
        return fail(cudaErrorNotSupported);
    return launch((struct work){.run = draws ? attend_drawing : attend_all,
                                .value = backward,
                                .kernel = *kernel},
                  stream);
}

RETURNS(ra_k02_forward(const struct ra_kernel *kernel, cudaStream_t stream),
        launch_kernel(false, false, false, kernel, stream))
RETURNS(ra_k02_backward(const struct ra_kernel *kernel, cudaStream_t stream),
        launch_kernel(false, true, false, kernel, stream))
RETURNS(ra_k07_forward(const struct ra_kernel *kernel, cudaStream_t stream),
        launch_kernel(true, false, true, kernel, stream))
RETURNS(ra_k07_backward(const struct ra_kernel *kernel, cudaStream_t stream),
        launch_kernel(true, true, false, kernel, stream))

/* As the real one, but that any lengths and strides will do. */
cudaError_t ra_k07_writes(const struct ra_kernel *kernel, bool *keys, bool *queries)
{
    enum ra_type type = kernel->q.type;
    *keys = type != RA_FLOAT32 && (kernel->dk.type == type || kernel->dk.type == RA_FLOAT32) &&
            kernel->dv.type == kernel->dk.type && kernel->queries <= ra_kernel_most_queries(kernel);
    *queries = *keys && kernel->dk.type == type && kernel->dq.type == type &&
               ra_work_separates(type, ra_kernel_widest(kernel), kernel->deterministic);
    return cudaSuccess;
}

cudaError_t ra_k07_separates(const struct ra_kernel *kernel, bool *separates)
{
    *separates = kernel->q.type != RA_FLOAT32 &&
                 ra_work_separates(kernel->q.type, ra_kernel_widest(kernel), kernel->deterministic);
    return cudaSuccess;
}

/* As the real ones: all else goes cut by cut. */
cudaError_t ra_k07_takes_forward(const struct ra_kernel *kernel, bool *takes)
{
    *takes = kernel->dim % 8 == 0 && kernel->dim_value % 8 == 0 &&
             ra_kernel_widest(kernel) <= RA_MOST_DIM;
    return cudaSuccess;
}

RETURNS(ra_k07_takes_backward(const struct ra_kernel *kernel, bool *takes),
        ra_k07_takes_forward(kernel, takes))

/* The backward of the stand-in needs no semaphores; but memory for them is asked for. */
int64_t ra_kernel_semaphores(const struct ra_kernel *kernel)
{
    return kernel->keys / 64 + 1;
}

static bool write_delta(struct work *work)
{
    const struct ra_kernel *kernel = &work->kernel;
    int64_t n = kernel->queries, D = kernel->dim_value;
    for (int64_t i = 0; i < kernel->batch * kernel->heads; i++) {
        int64_t b = i / kernel->heads, h = i % kernel->heads;
        struct ra_queries queries = {.rows = n,
                                     .stride = {D, D, D, D, D},
                                     .o = copy_of(kernel->o, n, D, b, h),
                                     .d_out = copy_of(kernel->d_out, n, D, b, h),
                                     .delta = copy_of(kernel->delta, n, 1, b, h),
                                     .dq = copy_of((struct ra_tensor)RA_NO_TENSOR, n, D, b, h),
                                     .comp = copy_of((struct ra_tensor)RA_NO_TENSOR, n, D, b, h)};
        ra_tile_begin_backward(RA_DIMS(D), &queries);
        const float *lse = copy_of(kernel->lse, n, 1, b, h),
                    *d_lse = copy_of(kernel->d_lse, n, 1, b, h);
        for (int64_t a = 0; a < n && kernel->d_lse.data; a++)
            queries.delta[a] -= lse[a] == -INFINITY ? 0 : d_lse[a];
        put_back(kernel->delta, n, 1, b, h, queries.delta);
        free_copies();
    }
    return true;
}

RETURNS(ra_kernel_delta(const struct ra_kernel *kernel, cudaStream_t stream),
        launch((struct work){.run = write_delta, .kernel = *kernel}, stream))

/* Begins and ends the largest scores. */
static bool turn_largest(struct work *work)
{
    const struct ra_kernel *kernel = &work->kernel;
    for (int64_t h = 0; h < kernel->heads; h++) {
        int *at = (int *)kernel->largest.data + h * kernel->largest.head;
        int now = *at < 0 ? *at ^ 0x7fffffff : *at;
        *at = work->value ? now : ordered(-INFINITY);
    }
    return true;
}

RETURNS(ra_kernel_begin_largest(const struct ra_kernel *kernel, cudaStream_t stream),
        launch((struct work){.run = turn_largest, .kernel = *kernel}, stream))
RETURNS(ra_kernel_end_largest(const struct ra_kernel *kernel, cudaStream_t stream),
        launch((struct work){.run = turn_largest, .value = 1, .kernel = *kernel}, stream))

static bool write_sink_gradient(struct work *work)
{
    const struct ra_kernel *kernel = &work->kernel;
    for (int64_t h = 0; h < kernel->heads; h++) {
        double gradient = 0;
        for (int64_t b = 0; b < kernel->batch; b++) {
            struct ra_queries queries = {.rows = kernel->queries,
                                         .lse = copy_of(kernel->lse, kernel->queries, 1, b, h),
                                         .delta = copy_of(kernel->delta, kernel->queries, 1, b, h)};
            gradient += ra_carry_sink_gradient(&queries, of_head(kernel->sink, h));
            free_copies();
        }
        ((float *)work->out.data)[h * work->out.head] = (float)gradient;
    }
    return true;
}

RETURNS(ra_kernel_sink_gradient(const struct ra_kernel *kernel, struct ra_tensor d_sink,
                                cudaStream_t stream),
        launch((struct work){.run = write_sink_gradient, .kernel = *kernel, .out = d_sink}, stream))

/* To `out` out of `in` and, if it is there, `plus`. */
static bool copy_numbers(struct work *work)
{
    int64_t rows = work->rows, D = work->dim;
    for (int64_t i = 0; i < work->batch * work->heads; i++) {
        int64_t b = i / work->heads, h = i % work->heads;
        float *from = copy_of(work->in, rows, D, b, h);
        const float *plus = copy_of(work->plus, rows, D, b, h);
        for (int64_t e = 0; work->plus.data && e < rows * D; e++)
            from[e] += plus[e];
        put_back(work->out, rows, D, b, h, from);
        free_copies();
    }
    return true;
}

RETURNS(ra_kernel_sum(struct ra_tensor to, struct ra_tensor x, struct ra_tensor y, int64_t batch,
                      int64_t rows, int64_t heads, int64_t dim, cudaStream_t stream),
        launch((struct work){.run = copy_numbers,
                             .out = to,
                             .in = x,
                             .plus = y,
                             .batch = batch,
                             .rows = rows,
                             .heads = heads,
                             .dim = dim},
               stream))

cudaError_t ra_kernel_copy(struct ra_tensor to, struct ra_tensor from, int64_t batch, int64_t rows,
                           int64_t heads, int64_t dim, cudaStream_t stream)
{
    const struct ra_tensor none = RA_NO_TENSOR;
    return ra_kernel_sum(to, from, none, batch, rows, heads, dim, stream);
}

/* Where head (i, j) of a row of a view begins. */
static char *head_at(const struct ra_rows_view *view, int64_t b, int64_t row, int i, int j)
{
    const struct ra_tensor *array = &view->array;
    int64_t at = b * array->batch + (view->row ? view->row[row] : row) * array->row + i * view->key;
    return (char *)array->data + (at + j * array->head) * ra_type_bytes(array->type);
}

static void move_head(const struct ra_move *move, char *to, const char *from)
{
    enum ra_type in = move->from.array.type, out = move->to.array.type;
    if (in == RA_BOOL) {
        for (int c = 0; c < move->width; c++)
            to[c] = from[c] != 0;
        return;
    }
    float *x = calloc((size_t)(2 * move->width), sizeof *x), *y = x + move->width;
    ra_number_load(in, move->width, from, x);
    if (move->adds)
        ra_number_load(out, move->width, to, y);
    for (int c = 0; c < move->width && move->adds; c++)
        x[c] += y[c];
    ra_number_store(out, move->width, x, to);
    free(x);
}

/* Every other row in one turn, the rest in another. */
static bool move_rows(struct work *work)
{
    const struct ra_moves *moves = &work->moves;
    for (const struct ra_move *move = moves->move; move < moves->move + moves->count; move++)
        for (int64_t i = work->turns; i < moves->batch * move->rows; i += 2)
            for (int h = 0; h < move->keys * move->per_key; h++) {
                int64_t b = i / move->rows, row = i % move->rows;
                int key = h / move->per_key, query = h % move->per_key;
                move_head(move, head_at(&move->to, b, row, key, query),
                          head_at(&move->from, b, row, key, query));
            }
    return work->turns > 0;
}

RETURNS(ra_move_rows(const struct ra_moves *moves, cudaStream_t stream),
        launch((struct work){.run = move_rows, .moves = *moves}, stream))
