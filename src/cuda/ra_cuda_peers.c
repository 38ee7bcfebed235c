/* ra_cuda_peers: which GPUs of a ring reach each other's memory, and what they write there. See
 * ra_cuda.h and ra_signal.h.
 *
 * Chapter 11. New here: a rank that writes to another's memory, for which that rank does nothing.
 * So it must know where, and when there is room.
 */
#include "ra_cuda.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Who sends what to whom, as it follows from the schedule. */

int ra_cuda_rank_at(const struct ra_plan *plan, int rank, int distance)
{
    int P = plan->link.size;
    return ((rank + distance) % P + P) % P;
}

bool ra_cuda_has_keys(const struct ra_plan *plan, int rank, int step)
{
    return plan->config.batch > 0 && ra_plan_visitors(plan, rank, step) > 0;
}

bool ra_cuda_receives(const struct ra_plan *plan, int rank, int step)
{
    return step > 0 && ra_cuda_has_keys(plan, rank, step);
}

bool ra_cuda_sends(const struct ra_plan *plan, int rank, int step)
{
    return ra_cuda_has_keys(plan, rank, step) && ra_plan_travel_on(plan, rank, step);
}

bool ra_cuda_sends_home(const struct ra_plan *plan, int rank, int step)
{
    return ra_cuda_receives(plan, rank, step) && !ra_plan_travel_on(plan, rank, step);
}

int ra_cuda_jump(const struct ra_plan *plan, int step)
{
    return plan->schedule.hop[step + 1] - plan->schedule.hop[step];
}

int ra_cuda_sender_of(const struct ra_plan *plan, int rank, int step)
{
    return ra_cuda_rank_at(plan, rank, -ra_cuda_jump(plan, step - 1));
}

/* The message that comes into the same place after that of this step; once round, in the next call.
 * Keys have two places, for odd steps and for even ones; gradients have one. */
static int next_in_place(const struct ra_plan *plan, int rank, enum ra_message message, int step,
                         bool *next_call)
{
    int period = message == RA_KEYS ? 2 : 1;
    *next_call = false;
    do {
        step += period;
        if (step >= plan->schedule.count) {
            step = message == RA_KEYS && step % 2 == 0 ? 2 : 1;
            *next_call = true;
        }
    } while (!ra_cuda_receives(plan, rank, step));
    return step;
}

/* Does this rank write to the memory of rank `other`: a message, or the word that there is room? */
static bool writes_to(const struct ra_plan *plan, int other)
{
    int rank = plan->link.rank;
    bool backward = !plan->config.forward_only;
    for (int step = 0; step < plan->schedule.count; step++)
        if ((ra_cuda_sends(plan, rank, step) &&
             ra_cuda_rank_at(plan, rank, ra_cuda_jump(plan, step)) == other) ||
            (ra_cuda_receives(plan, rank, step) && ra_cuda_sender_of(plan, rank, step) == other) ||
            (backward && ra_cuda_sends_home(plan, rank, step) &&
             ra_plan_origin(plan, rank, step) == other))
            return true;
    return false;
}

/* ---- What the ranks tell each other when a plan is created. */

/* Every rank gets the records of all, of `bytes` bytes each; its own is in its place. False: the
 * link has failed. */
static bool gather(const struct ra_link *link, void *all, int64_t bytes)
{
    int P = link->size;
    for (int i = 0; i + 1 < P; i++) {
        int known = (link->rank - i + P) % P, next = (known - 1 + P) % P;
        link->receive(link->self, RA_ROWS, 0, -1, (char *)all + next * bytes, bytes);
        link->send(link->self, RA_ROWS, 0, 1, (char *)all + known * bytes, bytes);
        if (!link->wait(link->self, RA_ROWS))
            return false;
    }
    return true;
}

/* A rank's config, and where its memory is. */
struct hello {
    struct ra_record record;
    char place[128]; /* the same in all processes that can name each other */
    int64_t process;
    int device;
    bool exported, device_memory;
    cudaIpcMemHandle_t handle;
    struct ra_peer peer; /* with its address in its own process */
};

/* How far a rank has come. */
struct verdict {
    int64_t status;
    char error[RA_ERROR_SIZE];
    bool reaches; /* all ranks that it writes to */
    char why[160];
};

/* Reads the first line of a file, or nothing. */
static void read_line(const char *path, char *line, int size)
{
    FILE *file = fopen(path, "r");
    line[0] = '\0';
    if (file && !fgets(line, size, file))
        line[0] = '\0';
    line[strcspn(line, "\n")] = '\0';
    if (file)
        fclose(file);
}

static void introduce(const struct ra_plan *plan, struct hello *hello)
{
    /* Hosts differ in the number of their boot, containers in their names for processes. */
    char boot[64], space[60] = "";
    read_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0)
        space[0] = '\0';
    snprintf(hello->place, sizeof hello->place, "%s %s", boot, space);
    hello->process = getpid();
    struct ra_cuda *cuda = plan->cuda;
    hello->device = cuda->device;
    hello->device_memory = plan->link.device_memory;
    struct ra_peer *peer = &hello->peer;
    peer->memory = cuda->memory;
    if (plan->schedule.count == 1)
        return;
    for (int i = 1; i < 3; i++)
        peer->keys[i] = cuda->keys[i] ? (char *)cuda->keys[i] - cuda->memory : 0;
    for (int i = 0; i < 4; i++)
        peer->gradients[i] = cuda->gradients[i] ? (char *)cuda->gradients[i] - cuda->memory : 0;
    peer->words = (char *)cuda->words - cuda->memory;
    hello->exported = cudaIpcGetMemHandle(&hello->handle, cuda->memory) == cudaSuccess;

    /* Who cannot export is told so; the error is not one of later calls. */
    cudaGetLastError();
}

/* Makes the memory of rank `other` one that this rank can write to. */
static bool reach(struct ra_plan *plan, const struct hello *hellos, int other, char why[160])
{
    const struct hello *mine = &hellos[plan->link.rank], *theirs = &hellos[other];
    struct ra_peer *peer = &plan->cuda->peers[other];
    *peer = theirs->peer;
    peer->memory = NULL;
    int sharing = 0, can = 0, rank = plan->link.rank;
    for (int r = 0; r < plan->link.size; r++)
        sharing += strcmp(mine->place, hellos[r].place) == 0 &&
                   mine->process == hellos[r].process && mine->device == hellos[r].device;
    if (sharing > 1) {
        /* Their streams may lie in one queue, also if they do not write to each other. */
        snprintf(why, 160, "%d ranks of a process share device %d", sharing, mine->device);
    } else if (strcmp(mine->place, theirs->place) != 0) {
        snprintf(why, 160, "rank %d is not on the host of rank %d", other, rank);
    } else if (mine->process != theirs->process) {
        void *memory = NULL;
        cudaError_t code = cudaErrorNotSupported;
        if (theirs->exported)
            code = cudaIpcOpenMemHandle(&memory, theirs->handle, cudaIpcMemLazyEnablePeerAccess);
        if (code == cudaSuccess)
            peer->memory = memory;
        else
            snprintf(why, 160, "rank %d does not reach the memory of rank %d: %.80s", rank, other,
                     cudaGetErrorString(code));
        peer->opened = code == cudaSuccess;
    } else {
        cudaError_t code = cudaDeviceCanAccessPeer(&can, mine->device, theirs->device);
        if (code == cudaSuccess && can)
            code = cudaDeviceEnablePeerAccess(theirs->device, 0);
        if (can && (code == cudaSuccess || code == cudaErrorPeerAccessAlreadyEnabled))
            peer->memory = theirs->peer.memory;
        else
            snprintf(why, 160, "device %d does not reach the memory of device %d", mine->device,
                     theirs->device);
    }

    /* What was only tried is no error of later calls. */
    cudaGetLastError();
    return peer->memory != NULL;
}

static void close_peers(struct ra_plan *plan)
{
    for (int r = 0; r < plan->link.size; r++) {
        struct ra_peer *peer = &plan->cuda->peers[r];
        if (peer->opened)
            cudaIpcCloseMemHandle(peer->memory);
        peer->opened = false;
        peer->memory = NULL;
    }
}

/* The transport of all ranks, from what all of them say. */
static enum ra_status choose(const struct ra_plan *plan, const struct hello *hellos,
                             const struct verdict *verdicts, enum ra_transport *transport,
                             char *why, char *error)
{
    const struct ra_config *c = &plan->config;
    bool device_link = true;
    const char *reason = "";
    for (int r = plan->link.size - 1; r >= 0; r--) {
        device_link = device_link && hellos[r].device_memory;
        reason = verdicts[r].reaches ? reason : verdicts[r].why;
    }
    *transport = c->transport;
    if (c->transport == RA_ANY_TRANSPORT)
        *transport = !reason[0] ? RA_PEER_COPIES : device_link ? RA_DEVICE_LINK : RA_HOST_LINK;
    if (c->transport == RA_PEER_COPIES && reason[0])
        return ra_refuse(error, "config.transport = RA_PEER_COPIES: %s", reason);
    if (c->transport == RA_DEVICE_LINK && !device_link)
        return ra_refuse(error,
                         "config.transport = RA_DEVICE_LINK: the link takes no device pointers");
    why[0] = '\0';
    if (c->transport != RA_ANY_TRANSPORT)
        snprintf(why, 200, "config.transport says so");
    else if (reason[0])
        snprintf(why, 200, "%s%s", reason,
                 device_link ? "" : "; the link takes no device pointers");
    return RA_OK;
}

/* The steps of ra_cuda_plan_connect. After each the ranks hear from all how it went; the first in
 * trouble speaks for all. */
static enum ra_status hear_verdicts(const struct ra_link *link, struct verdict *verdicts,
                                    enum ra_status status, char *error)
{
    struct verdict *mine = &verdicts[link->rank];
    mine->status = status;
    if (status != RA_OK)
        snprintf(mine->error, sizeof mine->error, "%s", error);
    if (!gather(link, verdicts, sizeof *verdicts)) {
        snprintf(error, RA_ERROR_SIZE, "%.300s", link->error(link->self));
        return RA_LOST;
    }
    for (int r = 0; r < link->size; r++)
        if (verdicts[r].status != RA_OK) {
            ra_refuse(error, "rank %d: %.300s", r, verdicts[r].error);
            return (enum ra_status)verdicts[r].status;
        }
    return RA_OK;
}

/* The whole conversation, with memory for what is said. */
static enum ra_status converse(struct ra_plan *plan, const struct ra_link *link,
                               enum ra_status status, struct hello *hellos,
                               struct ra_record *records, struct verdict *verdicts, char *error)
{
    /* First everybody says what it plans, and where its memory is. */
    int P = link->size, rank = link->rank;
    struct hello *mine = &hellos[rank];
    mine->record = ra_config_record(plan ? &plan->config : NULL, status, error);
    if (plan)
        introduce(plan, mine);
    if (!gather(link, hellos, sizeof *hellos)) {
        snprintf(error, RA_ERROR_SIZE, "%.300s", link->error(link->self));
        return RA_LOST;
    }
    for (int r = 0; r < P; r++)
        records[r] = hellos[r].record;
    status = ra_config_compare(records, P, P, error);
    if (status != RA_OK || !plan)
        return status;

    /* Then everybody tries to reach those it writes to. From here on close_peers is needed. */
    struct ra_cuda *cuda = plan->cuda;
    bool may_reach = plan->config.transport <= RA_PEER_COPIES;
    verdicts[rank].reaches = may_reach;
    for (int r = 0; r < P && may_reach && verdicts[rank].reaches; r++)
        if (r != rank && writes_to(plan, r))
            verdicts[rank].reaches = reach(plan, hellos, r, verdicts[rank].why);
    status = hear_verdicts(link, verdicts, RA_OK, error);
    if (status == RA_OK)
        status = choose(plan, hellos, verdicts, &cuda->transport, cuda->why, error);
    if (status != RA_OK || cuda->transport != RA_PEER_COPIES)
        close_peers(plan);

    /* And all leave together, so that nobody frees what another still has open. choose was the same
     * on all ranks; memory may not be there on one. */
    enum ra_status chosen = status;
    if (status == RA_OK)
        status = ra_cuda_take_staging(plan, error);
    char text[RA_ERROR_SIZE];
    snprintf(text, sizeof text, "%s", status == RA_OK ? "" : error);
    status = hear_verdicts(link, verdicts, chosen == RA_OK ? status : RA_OK, text);
    if (chosen != RA_OK)
        return chosen;
    if (status != RA_OK)
        snprintf(error, RA_ERROR_SIZE, "%s", text);
    cuda->connected = true;
    return status;
}

enum ra_status ra_cuda_plan_connect(struct ra_plan *plan, const struct ra_link *link,
                                    enum ra_status status, char *error)
{
    size_t P = (size_t)link->size;
    if (P == 1)
        return status;
    struct hello *hellos = calloc(P, sizeof *hellos);
    struct ra_record *records = calloc(P, sizeof *records);
    struct verdict *verdicts = calloc(P, sizeof *verdicts);
    if (hellos && records && verdicts) {
        status = converse(plan, link, status, hellos, records, verdicts, error);
    } else {
        ra_refuse(error, "rank %d: no memory to speak with %d ranks", link->rank, link->size);
        link->fail(link->self, error);
        status = RA_OUT_OF_MEMORY;
    }
    if (status == RA_LOST && plan)
        plan->lost = RA_LOST;
    free(hellos);
    free(records);
    free(verdicts);
    return status;
}

bool ra_cuda_part(struct ra_plan *plan)
{
    struct ra_cuda *cuda = plan->cuda;
    if (!cuda->connected || plan->schedule.count == 1 || cuda->transport != RA_PEER_COPIES)
        return true;

    /* Once all have come here, nobody writes to another's memory any more. */
    close_peers(plan);
    return plan->lost == RA_OK && gather(&plan->link, cuda->met, 1);
}

/* ---- Signals. */

int64_t ra_cuda_word_count(const struct ra_plan *plan)
{
    return 3 * 2 * (int64_t)plan->schedule.count;
}

static int64_t word_of(const struct ra_plan *plan, enum ra_message message, bool is_room, int step)
{
    return (message * 2 + is_room) * (int64_t)plan->schedule.count + step;
}

void ra_cuda_begin_signals(struct ra_plan *plan, int *words)
{
    struct ra_cuda *cuda = plan->cuda;
    int rank = plan->link.rank, table[RA_SIGNALS + 1] = {0};
    for (int i = 0; i < RA_SIGNALS; i++)
        table[i] = i;
    memset(words, 0, (size_t)ra_cuda_word_count(plan) * sizeof *words);
    for (int step = 0; step + 1 < plan->schedule.count; step++)
        for (int message = RA_KEYS; message <= RA_GRADIENTS; message++) {
            if (!ra_cuda_sends(plan, rank, step))
                continue;

            /* It is the first there if, round the ring of messages in that place, no earlier one
             * comes before the call ends. */
            int to = ra_cuda_rank_at(plan, rank, ra_cuda_jump(plan, step)), before = step + 1;
            bool first = true;
            for (before -= message == RA_KEYS ? 2 : 1; before > 0;
                 before -= message == RA_KEYS ? 2 : 1)
                first = first && !ra_cuda_receives(plan, to, before);
            words[word_of(plan, message, true, step + 1)] = first;
        }
    RA_DO(plan, cudaMemcpy(cuda->table, table, sizeof table, cudaMemcpyHostToDevice));
    RA_DO(plan, cudaMemcpy(cuda->words, words, (size_t)ra_cuda_word_count(plan) * sizeof *words,
                           cudaMemcpyHostToDevice));
}

/* Sends another rank the number of the call, behind what was sent on this stream before. */
static void tell(struct ra_plan *plan, int to, enum ra_message message, bool is_room, int step,
                 int number, cudaStream_t stream)
{
    struct ra_peer *peer = &plan->cuda->peers[to];
    int *word = (int *)(void *)(peer->memory + peer->words) + word_of(plan, message, is_room, step);
    RA_DO(plan, cudaMemcpyAsync(word, plan->cuda->table + number % RA_SIGNALS, sizeof *word,
                                cudaMemcpyDefault, stream));
}

void ra_cuda_await(struct ra_plan *plan, int from, enum ra_message message, bool is_room, int step,
                   int number, cudaStream_t stream)
{
    struct ra_cuda *cuda = plan->cuda;
    double nanoseconds = 1e9 * plan->config.timeout;
    struct ra_signal signal = {.word = cuda->words + word_of(plan, message, is_room, step),
                               .number = number % RA_SIGNALS,
                               .table = cuda->table,
                               .trouble = cuda->device_trouble,
                               .message = message,
                               .is_room = is_room,
                               .hop = plan->schedule.hop[step],
                               .peer = from};

    /* More than three centuries are for ever. */
    signal.nanoseconds = nanoseconds < 1e19 / 2 ? (int64_t)nanoseconds : 0;
    if (plan->config.timeout > 0 && nanoseconds < 1)
        signal.nanoseconds = 1;
    RA_DO(plan, ra_signal_wait(&signal, stream));
}

void ra_cuda_tell_of_room(struct ra_plan *plan, enum ra_message message, int step, int number,
                          cudaStream_t stream)
{
    int rank = plan->link.rank;
    bool next_call;
    int next = next_in_place(plan, rank, message, step, &next_call);
    tell(plan, ra_cuda_sender_of(plan, rank, next), message, true, next, number + next_call,
         stream);
}

void ra_cuda_push(struct ra_plan *plan, int to, enum ra_message message, int step, int number,
                  int64_t offset, const void *from, int64_t bytes, struct ra_moment *moment,
                  cudaStream_t stream)
{
    /* Gradients that come home replace the share that lay there, which has left before. */
    if (message != RA_HOME)
        ra_cuda_await(plan, to, message, true, step, number, stream);
    ra_cuda_begins(plan, moment, stream);
    RA_DO(plan, cudaMemcpyAsync(plan->cuda->peers[to].memory + offset, from, (size_t)bytes,
                                cudaMemcpyDefault, stream));
    ra_cuda_ends(plan, moment, stream);
    tell(plan, to, message, false, step, number, stream);
}
