/* ra_cuda_plan: the life of a plan for a GPU: its memory, what goes wrong, and its end. See
 * ring_attention_cuda.h and ra_cuda.h.
 *
 * Chapter 11. New here: all memory of the device is one allocation, laid out by a function that
 * also only counts; and a host that hears of errors while the device works.
 */
#include "ra_cuda.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "ring_attention_cuda.h"

/* Blocks of device memory begin where any access is aligned. */
enum { LINE = 256 };

/* CUDA shares whole pages between processes: with other ranks, memory is a number of such. */
#define PAGE ((int64_t)2 << 20)

/* The largest head that the kernels have, and the least compute capability, times ten. */
enum { MOST_DIM = 256, LEAST_CAPABILITY = 80 };

/* Of enum ra_event_kind. */
enum { EVENT_KINDS = RA_EVENT_GRADIENTS + 1 };

static const char *const message_names[] = {"keys", "gradients", "gradients coming home"};
static const char *const transport_names[] = {"none", "peer copies", "device link", "host link"};

/* ---- CUDA calls. */

bool ra_cuda_goes_on(const struct ra_plan *plan)
{
    return plan->cuda->code == cudaSuccess && plan->lost == RA_OK;
}

bool ra_cuda_note(struct ra_plan *plan, cudaError_t code, const char *call)
{
    struct ra_cuda *cuda = plan->cuda;
    if (code != cudaSuccess && cuda->code == cudaSuccess) {
        cuda->code = code;
        cuda->failed_hop = cuda->hop;
        snprintf(cuda->call, sizeof cuda->call, "%.*s", (int)strcspn(call, "("), call);
    }
    return ra_cuda_goes_on(plan);
}

/* The text of the error that was noted. */
static enum ra_status say_error(const struct ra_plan *plan, char *error)
{
    snprintf(error, RA_ERROR_SIZE, "%s: %s", plan->cuda->call,
             cudaGetErrorString(plan->cuda->code));
    return RA_DEVICE;
}

/* ---- Memory. */

/* Takes the next block of `bytes` bytes. Without memory, `start` = NULL, it only counts. */
static void *take(char *start, int64_t *used, int64_t bytes)
{
    void *block = start && bytes > 0 ? start + *used : NULL;
    *used += (bytes + LINE - 1) / LINE * LINE;
    return block;
}

/* Gives everything that a rank has on its device a place there; returns how much that is. */
static int64_t lay_out(const struct ra_plan *plan, int rank, struct ra_cuda *cuda, char *start)
{
    const struct ra_config *c = &plan->config;
    int64_t n = ra_layout_rows(plan->layouts[RA_QUERY_SIDE], rank);
    int64_t m = ra_layout_rows(plan->layouts[RA_KEY_SIDE], rank);
    int64_t most = ra_layout_most_rows(plan->layouts[RA_KEY_SIDE]);
    int64_t used = 0, row_bytes = c->batch * n * c->heads * (int64_t)sizeof(float), turns;
    int hops = plan->schedule.count;
    bool backward = !c->forward_only, carries;
    ra_cuda_survey(plan, rank, NULL, &carries, &turns);
    cuda->wide = take(start, &used, carries || backward ? row_bytes * c->dim : 0);
    cuda->max = take(start, &used, carries ? row_bytes : 0);
    cuda->sum = take(start, &used, carries ? row_bytes : 0);
    cuda->delta = take(start, &used, backward ? row_bytes : 0);
    cuda->turns = take(start, &used, turns * (int64_t)sizeof(int));

    /* Own keys need a message only if they travel, visitors only if there are any. */
    bool travels = plan->schedule.last[rank] > 0;
    cuda->keys[0] = take(start, &used, travels ? ra_plan_key_bytes(plan, m) : 0);
    cuda->mask = take(start, &used, c->has_mask ? c->batch * m : 0);
    for (int i = 1; i < 3; i++)
        cuda->keys[i] = take(start, &used, i < hops ? ra_plan_key_bytes(plan, most) : 0);
    int64_t numbers = c->batch * c->key_heads * c->dim;
    for (int i = 0; i < 4; i++) {
        bool needed = backward && (i < 3 ? i < hops : hops > 1);
        int64_t rows = i == 0 ? m : most;
        cuda->gradients[i] =
            take(start, &used, needed ? 2 * numbers * rows * (int64_t)sizeof(float) : 0);
    }
    cuda->table = take(start, &used, hops > 1 ? (RA_SIGNALS + 1) * sizeof(int) : 0);
    cuda->words =
        take(start, &used, hops > 1 ? ra_cuda_word_count(plan) * (int64_t)sizeof(int) : 0);

    /* Of no bytes CUDA gives no memory. */
    used = used > 0 ? used : LINE;
    return hops > 1 ? (used + PAGE - 1) / PAGE * PAGE : used;
}

/* The same with host memory for messages that pass through the host. */
static int64_t lay_out_staging(const struct ra_plan *plan, int rank, struct ra_cuda *cuda,
                               char *start)
{
    const struct ra_config *c = &plan->config;
    int64_t m = ra_layout_rows(plan->layouts[RA_KEY_SIDE], rank), used = 0;
    int64_t most = ra_layout_most_rows(plan->layouts[RA_KEY_SIDE]);
    int64_t stride = c->key_heads * c->dim;
    int hops = plan->schedule.count;
    for (int i = 0; i < 3; i++)
        cuda->host_keys[i] = take(
            start, &used, hops > 1 && i < hops ? ra_plan_key_bytes(plan, i == 0 ? m : most) : 0);
    bool backward = !c->forward_only && hops > 1;
    int64_t home = ra_message_gradient_bytes(c->batch, stride, m);
    int64_t other = ra_message_gradient_bytes(c->batch, stride, most);
    cuda->host_home = take(start, &used, backward ? home : 0);
    cuda->host_out = take(start, &used, backward ? other : 0);
    cuda->host_in = take(start, &used, backward ? other : 0);
    return used;
}

/* How many moments there are, if anybody observes. */
static int64_t moment_count(const struct ra_plan *plan)
{
    return plan->config.observe ? 2 * EVENT_KINDS * plan->schedule.count : 0;
}

/* Host memory of the plan: struct ra_cuda and its arrays. */
static int64_t lay_out_host(const struct ra_plan *plan, struct ra_cuda *cuda)
{
    int64_t used = 0, spans = ra_layout_spans(plan->layouts[RA_QUERY_SIDE]);
    int64_t counts = spans * (int64_t)sizeof(int64_t);
    char *start = (char *)cuda;
    take(start, &used, sizeof *cuda);
    void *launches = take(start, &used, counts), *launched = take(start, &used, counts);
    void *peers = take(start, &used, plan->link.size * (int64_t)sizeof(struct ra_peer));
    void *met = take(start, &used, plan->link.size);
    void *moments = take(start, &used, moment_count(plan) * (int64_t)sizeof(struct ra_moment));
    if (cuda) {
        cuda->moments = moments;
        cuda->launches = launches;
        cuda->launched = launched;
        cuda->peers = peers;
        cuda->met = met;
    }
    return used;
}

enum ra_status ra_cuda_take_staging(struct ra_plan *plan, char *error)
{
    struct ra_cuda *cuda = plan->cuda;
    int64_t bytes = lay_out_staging(plan, plan->link.rank, cuda, NULL);
    if (cuda->transport != RA_HOST_LINK || bytes == 0)
        return RA_OK;
    if (cudaHostAlloc((void **)&cuda->staging, (size_t)bytes, cudaHostAllocPortable) !=
        cudaSuccess) {
        cudaGetLastError();
        cuda->staging = NULL;
        ra_refuse(error, "no memory: messages need %" PRId64 " bytes of the host's", bytes);
        return RA_OUT_OF_MEMORY;
    }
    lay_out_staging(plan, plan->link.rank, cuda, cuda->staging);
    return RA_OK;
}

static int64_t bytes_of(const struct ra_plan *plan, int rank)
{
    struct ra_cuda other;
    int64_t bytes = lay_out(plan, rank, &other, NULL) + lay_out_host(plan, NULL);
    bytes += plan->schedule.count > 1 ? (int64_t)sizeof(struct ra_trouble) : 0;
    if (plan->cuda->transport == RA_HOST_LINK)
        bytes += lay_out_staging(plan, rank, &other, NULL);
    return bytes;
}

static int describe(const struct ra_plan *plan, int rank, char *text, size_t size)
{
    const struct ra_cuda *cuda = plan->cuda;
    struct ra_cuda other;
    const char *transport = transport_names[cuda->transport];
    if (plan->look_only)
        return snprintf(text, size,
                        "device: none, this is a plan to look at; %" PRId64 " bytes on it\n",
                        lay_out(plan, rank, &other, NULL));
    bool given = plan->schedule.count > 1 && cuda->why[0];
    if (plan->schedule.count == 1)
        transport = "none needed";
    return snprintf(text, size, "device %d: %s; %" PRId64 " bytes on it\ntransport: %s%s%s\n",
                    cuda->device, cuda->device_name, lay_out(plan, rank, &other, NULL), transport,
                    given ? ", as " : "", given ? cuda->why : "");
}

/* ---- Trouble, and waiting. */

enum ra_status ra_cuda_end_plan(struct ra_plan *plan, enum ra_status status, const char *text)
{
    struct ra_cuda *cuda = plan->cuda;
    snprintf(plan->error, sizeof plan->error, "%s", text);
    plan->lost = status;
    if (cuda->trouble)
        __atomic_store_n(&cuda->trouble->stop, 1, __ATOMIC_RELEASE);
    if (plan->link.fail)
        plan->link.fail(plan->link.self, plan->error);
    return status;
}

enum ra_status ra_cuda_end_by_cuda(struct ra_plan *plan)
{
    char text[RA_ERROR_SIZE], named[RA_ERROR_SIZE], hop[24] = "";
    say_error(plan, text);
    if (plan->cuda->failed_hop >= 0)
        snprintf(hop, sizeof hop, "hop %d: ", plan->cuda->failed_hop);
    snprintf(named, sizeof named, "rank %d: %s%.300s", plan->link.rank, hop, text);
    return ra_cuda_end_plan(plan, RA_DEVICE, plan->link.size > 1 ? named : text);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Lets go of the processor for a moment, which others need to send what is waited for. */
static void rest(void)
{
    nanosleep(&(struct timespec){0, 20000}, NULL);
}

enum ra_status ra_cuda_listen(struct ra_plan *plan)
{
    const struct ra_link *link = &plan->link;
    struct ra_trouble *trouble = plan->cuda->trouble;
    if (link->size == 1)
        return plan->lost;

    /* A refused call has ended the plan, too: what earlier ones wait for may never come. */
    if (plan->lost != RA_OK) {
        if (trouble)
            __atomic_store_n(&trouble->stop, 1, __ATOMIC_RELEASE);
        return plan->lost;
    }
    int failure = trouble ? __atomic_load_n(&trouble->failure, __ATOMIC_ACQUIRE) : 0;

    /* Who failed first knows why, and is about to say so. */
    bool well = !link->poll || link->poll(link->self);
    double began = seconds();
    while (well && failure == RA_SIGNAL_PEER_LOST && seconds() - began < 1) {
        rest();
        well = !link->poll || link->poll(link->self);
    }
    if (!well)
        return ra_cuda_end_plan(plan, RA_LOST, link->error(link->self));
    if (failure == RA_SIGNAL_WELL)
        return RA_OK;
    char text[RA_ERROR_SIZE];
    const char *name = message_names[trouble->message];
    if (failure == RA_SIGNAL_PEER_LOST)
        snprintf(text, sizeof text, "rank %d: hop %d: rank %d has failed", link->rank, trouble->hop,
                 trouble->peer);
    else if (trouble->is_room)
        snprintf(text, sizeof text, "rank %d: hop %d: rank %d took no %s in %g seconds", link->rank,
                 trouble->hop, trouble->peer, name, plan->config.timeout);
    else
        snprintf(text, sizeof text, "rank %d: hop %d: no %s from rank %d in %g seconds", link->rank,
                 trouble->hop, name, trouble->peer, plan->config.timeout);
    return ra_cuda_end_plan(plan, RA_LOST, text);
}

/* Is this done? An error counts as done, and is noted. */
static bool is_done(struct ra_plan *plan, cudaError_t code, const char *call)
{
    return code != cudaErrorNotReady && (ra_cuda_note(plan, code, call), true);
}

/* Waits until all is done that was enqueued. */
static void finish_all(struct ra_plan *plan)
{
    struct ra_cuda *cuda = plan->cuda;
    while (!is_done(plan, cudaEventQuery(cuda->ended), "cudaEventQuery") ||
           !is_done(plan, cudaStreamQuery(cuda->keys_stream), "cudaStreamQuery") ||
           !is_done(plan, cudaStreamQuery(cuda->gradients_stream), "cudaStreamQuery")) {
        /* What cannot be helped shows in plan->lost, and what waits on the device is let go. */
        (void)ra_cuda_listen(plan);
        if (plan->link.size > 1)
            rest();
    }
}

/* ---- The observer, and the wait that tells it. */

struct ra_moment *ra_cuda_moment(const struct ra_plan *plan, bool backward, int step,
                                 enum ra_event_kind kind)
{
    if (!plan->cuda->moments)
        return NULL;
    return &plan->cuda->moments[(backward * plan->schedule.count + step) * EVENT_KINDS + (int)kind];
}

void ra_cuda_begins(struct ra_plan *plan, struct ra_moment *moment, cudaStream_t stream)
{
    if (moment)
        RA_DO(plan, cudaEventRecord(moment->began, stream));
}

void ra_cuda_ends(struct ra_plan *plan, struct ra_moment *moment, cudaStream_t stream)
{
    if (moment)
        moment->happened = RA_DO(plan, cudaEventRecord(moment->ended, stream));
}

/* Tells the observer what has happened since the last time. */
static void tell_observer(struct ra_plan *plan)
{
    const struct ra_config *c = &plan->config;
    struct ra_cuda *cuda = plan->cuda;
    if (!cuda->moments)
        return;

    /* Events have no clock, but know how long ago they were. */
    RA_DO(plan, cudaEventRecord(cuda->now, cuda->keys_stream));
    RA_DO(plan, cudaEventSynchronize(cuda->now));
    double now = seconds();
    for (int64_t i = 0; i < moment_count(plan); i++) {
        struct ra_moment *moment = &cuda->moments[i];
        float began = 0, ended = 0; /* milliseconds ago */
        if (!moment->happened)
            continue;
        moment->happened = false;
        RA_DO(plan, cudaEventElapsedTime(&began, moment->began, cuda->now));
        if (!RA_DO(plan, cudaEventElapsedTime(&ended, moment->ended, cuda->now)))
            return;
        int64_t step = i / EVENT_KINDS;
        struct ra_event event = {.kind = (enum ra_event_kind)(i % EVENT_KINDS),
                                 .backward = step >= plan->schedule.count,
                                 .hop = plan->schedule.hop[step % plan->schedule.count],
                                 .start = now - 1e-3 * (double)began,
                                 .end = now - 1e-3 * (double)ended};
        c->observe(c->observer, &event);
    }
}

enum ra_status ra_cuda_wait(struct ra_plan *plan)
{
    if (!plan)
        return RA_INVALID;
    if (plan->device != &ra_cuda_device)
        return ra_refuse(plan->error, "this plan computes on the host: there is nothing to wait "
                                      "for after ra_forward and ra_backward");
    if (plan->look_only)
        return RA_OK;
    int before = 0;
    cudaGetDevice(&before);
    cudaSetDevice(plan->cuda->device);
    finish_all(plan);
    enum ra_status status = ra_cuda_listen(plan);
    if (status == RA_OK)
        tell_observer(plan);
    if (status == RA_OK && plan->cuda->code != cudaSuccess)
        status = ra_cuda_end_by_cuda(plan);
    cudaSetDevice(before);
    return status;
}

/* ---- The end of a plan. */

static bool leave(struct ra_plan *plan)
{
    struct ra_cuda *cuda = plan->cuda;
    if (plan->look_only)
        return true;
    int before = 0;
    cudaGetDevice(&before);
    cudaSetDevice(cuda->device);
    finish_all(plan);
    bool unused = ra_cuda_part(plan);
    cudaSetDevice(before);
    return unused;
}

static void release(struct ra_plan *plan, bool unused)
{
    /* Nothing is under way here any more; of what was not created there is nothing to destroy. */
    struct ra_cuda *cuda = plan->cuda;
    int before = 0;
    bool has_device = !plan->look_only && cudaGetDevice(&before) == cudaSuccess;
    if (has_device)
        cudaSetDevice(cuda->device);
    cudaStream_t streams[] = {cuda->keys_stream, cuda->gradients_stream};
    for (int i = 0; i < 2; i++)
        if (streams[i])
            cudaStreamDestroy(streams[i]);
    cudaEvent_t events[] = {
        cuda->packed, cuda->keys_left, cuda->keys_arrived, cuda->computed, cuda->gradients_arrived,
        cuda->summed, cuda->ended,     cuda->left[0],      cuda->left[1],  cuda->left[2],
        cuda->now};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            cudaEventDestroy(events[i]);
    for (int64_t i = 0; i < moment_count(plan); i++) {
        struct ra_moment *moment = &cuda->moments[i];
        if (moment->began)
            cudaEventDestroy(moment->began);
        if (moment->ended)
            cudaEventDestroy(moment->ended);
    }
    if (cuda->trouble)
        cudaFreeHost(cuda->trouble);
    if (cuda->staging && unused)
        cudaFreeHost(cuda->staging);
    if (cuda->memory && unused)
        cudaFree(cuda->memory);
    if (has_device)
        cudaSetDevice(before);
    free(cuda);
}

/* What CUDA does not know is the host's. Most devices do not reach that, and an access to it would be
 * the end of all that this process has on the device. */
static enum ra_status check_address(const struct ra_plan *plan, const char *array,
                                    const void *address, char *error)
{
    struct cudaPointerAttributes attributes;
    if (plan->cuda->reaches_all_memory ||
        cudaPointerGetAttributes(&attributes, address) != cudaSuccess ||
        attributes.type != cudaMemoryTypeUnregistered)
        return RA_OK;
    return ra_refuse(
        error,
        "arrays.%s.data is memory of the host: give memory of device %d, as cudaMalloc "
        "does",
        array, plan->cuda->device);
}

const struct ra_device ra_cuda_device = {.calls = "ra_cuda_forward and ra_cuda_backward",
                                         .bytes = bytes_of,
                                         .describe = describe,
                                         .check_address = check_address,
                                         .leave = leave,
                                         .free = release};

/* ---- The beginning of a plan. */

/* Streams and events, and what host and device share. */
static void begin_device(struct ra_plan *plan)
{
    struct ra_cuda *cuda = plan->cuda;
    struct cudaDeviceProp properties;
    int least, greatest;
    if (!RA_DO(plan, cudaGetDevice(&cuda->device)))
        return;
    if (RA_DO(plan, cudaGetDeviceProperties(&properties, cuda->device))) {
        snprintf(cuda->device_name, sizeof cuda->device_name, "%.60s", properties.name);
        cuda->capability = 10 * properties.major + properties.minor;
        cuda->reaches_all_memory = properties.pageableMemoryAccess;
    }

    /* A wait is a kernel of one thread: of high priority, so that it gets the next place
     * that is free. */
    RA_DO(plan, cudaDeviceGetStreamPriorityRange(&least, &greatest));
    RA_DO(plan, cudaStreamCreateWithPriority(&cuda->keys_stream, cudaStreamNonBlocking, greatest));
    RA_DO(plan,
          cudaStreamCreateWithPriority(&cuda->gradients_stream, cudaStreamNonBlocking, greatest));
    cudaEvent_t *events[] = {&cuda->packed,   &cuda->keys_left,         &cuda->keys_arrived,
                             &cuda->computed, &cuda->gradients_arrived, &cuda->summed,
                             &cuda->ended,    &cuda->left[0],           &cuda->left[1],
                             &cuda->left[2]};
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        RA_DO(plan, cudaEventCreateWithFlags(events[i], cudaEventDisableTiming));

    /* Those of the observer know the time. */
    for (int64_t i = 0; i < moment_count(plan); i++) {
        RA_DO(plan, cudaEventCreate(&cuda->moments[i].began));
        RA_DO(plan, cudaEventCreate(&cuda->moments[i].ended));
    }
    if (cuda->moments)
        RA_DO(plan, cudaEventCreate(&cuda->now));
    if (plan->schedule.count > 1) {
        RA_DO(plan, cudaHostAlloc((void **)&cuda->trouble, sizeof *cuda->trouble,
                                  cudaHostAllocMapped | cudaHostAllocPortable));
        if (ra_cuda_goes_on(plan))
            memset(cuda->trouble, 0, sizeof *cuda->trouble);
        RA_DO(plan, cudaHostGetDevicePointer((void **)&cuda->device_trouble, cuda->trouble, 0));
    }
}

/* All of the plan that is on a device. */
static enum ra_status take_device(struct ra_plan *plan, char *error)
{
    struct ra_cuda *cuda = plan->cuda;
    begin_device(plan);
    if (!ra_cuda_goes_on(plan)) {
        cudaGetLastError();
        return say_error(plan, error);
    }
    if (cuda->capability < LEAST_CAPABILITY) {
        ra_refuse(error, "device %d, %s, has compute capability %d.%d: %d.%d or newer is needed",
                  cuda->device, cuda->device_name, cuda->capability / 10, cuda->capability % 10,
                  LEAST_CAPABILITY / 10, LEAST_CAPABILITY % 10);
        return RA_DEVICE;
    }
    if (!RA_DO(plan, cudaMalloc((void **)&cuda->memory, (size_t)cuda->device_bytes))) {
        cudaGetLastError();
        ra_refuse(error, "no memory: the plan needs %" PRId64 " bytes on device %d: %s",
                  cuda->device_bytes, cuda->device, cudaGetErrorString(cuda->code));
        return RA_OUT_OF_MEMORY;
    }
    lay_out(plan, plan->link.rank, cuda, cuda->memory);

    /* What takes turns begins with the first. */
    RA_DO(plan, cudaMemset(cuda->memory, 0, (size_t)cuda->device_bytes));
    int *words = NULL;
    if (plan->schedule.count > 1) {
        words = malloc((size_t)ra_cuda_word_count(plan) * sizeof *words);
        if (!words) {
            ra_refuse(error, "no memory for %" PRId64 " signals", ra_cuda_word_count(plan));
            return RA_OUT_OF_MEMORY;
        }
        ra_cuda_begin_signals(plan, words);
        free(words);
    }
    RA_DO(plan, cudaDeviceSynchronize());
    return ra_cuda_goes_on(plan) ? RA_OK : say_error(plan, error);
}

enum ra_status ra_cuda_plan_build(struct ra_plan **plan, const struct ra_config *config,
                                  struct ra_link link, bool look_only, char *error)
{
    *plan = NULL;
    if (config->dim > MOST_DIM)
        return ra_refuse(error, "config.dim = %" PRId64 ": a plan for a GPU has at most %d",
                         config->dim, MOST_DIM);
    struct ra_plan *made = NULL;
    enum ra_status status = ra_plan_build(&made, config, link, true, error);
    if (status != RA_OK)
        return status;
    made->look_only = look_only;
    made->device = &ra_cuda_device;
    int64_t host_bytes = lay_out_host(made, NULL);
    made->cuda = calloc(1, (size_t)host_bytes);
    if (!made->cuda) {
        ra_refuse(error, "no memory: the plan needs %" PRId64 " bytes of the host's", host_bytes);
        free(made);
        return RA_OUT_OF_MEMORY;
    }
    lay_out_host(made, made->cuda);

    /* A plan to look at asks nobody: that the host passes messages is known only if config says
     * so. */
    if (look_only)
        made->cuda->transport = config->transport;
    made->cuda->hop = -1;
    bool carries;
    int64_t turns;
    ra_cuda_survey(made, link.rank, made->cuda->launches, &carries, &turns);
    made->cuda->device_bytes = lay_out(made, link.rank, made->cuda, NULL);
    if (!look_only)
        status = take_device(made, error);
    if (status == RA_OK) {
        *plan = made;
        return RA_OK;
    }
    release(made, true);
    free(made);
    return status;
}

/* ---- The calls that create one. */

enum ra_status ra_cuda_plan_create(struct ra_plan **plan, const struct ra_config *config,
                                   char error[RA_ERROR_SIZE])
{
    return ra_plan_make(plan, config, error, ra_cuda_plan_build);
}

enum ra_status ra_cuda_link_plan_create(struct ra_plan **plan, const struct ra_config *config,
                                        struct ra_link link, char error[RA_ERROR_SIZE])
{
    char text[RA_ERROR_SIZE];
    struct ra_plan *made = NULL;
    struct ra_config checked = RA_CONFIG_INIT;
    enum ra_status status = ra_plan_read(plan, &checked, config, &link, text);
    if (status == RA_OK)
        status = ra_cuda_plan_build(&made, &checked, link, false, text);

    /* Whatever came of it, the others wait for this rank. */
    status = ra_cuda_plan_connect(made, &link, status, text);
    if (status == RA_OK) {
        *plan = made;
        return RA_OK;
    }
    if (made)
        ra_plan_destroy(made);
    else if (link.close)
        link.close(link.self);
    return ra_plan_report(status, text, error);
}
