/* ra_gpu_ranks: arrays of several ranks, added up and gathered. See ra_gpu_ranks.h.
 *
 * Chapter 14. By peer copies all of it is enqueued on a stream of its own. Per piece a rank
 *   1. pushes its numbers of each part into the `sent` place of the rank that has the part,
 *   2. waits for all others to have done so, and adds up,
 *   3. pushes its own part into the `summed` place of all others,
 *   4. waits for all others again, and copies their parts.
 * Each push is followed by a signal, of the kinds of chapter 11. No credit is needed: who has seen
 * all signals of 3 knows that all have read what came by 1, and who has seen those of the next 2
 * knows that all have read what came by 3. So signals are sent also where a half is left out.
 *
 * By the host the same four steps wait for each other there, and a piece for the one before it.
 */
#include "ra_gpu_ranks.h"
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "ra_clock.h"
#include "ra_collective.h"
#include "ra_cuda_reach.h"
#include "ra_math.h"
#include "ra_model_kernels.h"
#include "ra_signal.h"

enum signal { SENT, SUMMED, SIGNALS };

/* What a rank says: where its memory is, and then why it does not reach another's. */
struct word {
    struct ra_cuda_address at;
    bool failed, reaches;
    char why[160];
};

/* A piece that the host has to do with, and how far it is. */
struct job {
    float *array;
    struct ra_gpu_piece piece;
    bool reduce, gather;
    cudaEvent_t computed; /* kept for the next job in this place */
    enum { BEGUN, SENDING, ADDING, GATHERING, DONE } stage;
};

struct ra_gpu_ranks {
    MPI_Comm comm;
    int rank, count, device;
    double timeout;
    cudaStream_t compute, stream;
    cudaEvent_t computed, moved;
    int64_t most, part; /* numbers of a piece, and of a part, at most */

    /* One allocation: (count, part) that came to be added up, (count, part) sums of others, the
     * table of numbers that signals are copied from, and (SIGNALS, count) signals. */
    char *memory;
    int64_t bytes;
    float *sent, *summed;
    int *table, *flags;
    struct ra_device_error *failure, *mapped_failure;
    struct word *words; /* of all ranks */
    char **peers;       /* their memory, if it is reached */
    bool *opened;
    bool by_peers;
    char transport[200];
    int number; /* of the piece, modulo RA_SIGNALS */

    /* By the host: a queue, and pinned places for pieces that go and come. */
    struct job *jobs;
    int first_job, job_count, job_room;
    float *pinned, *going, *coming;
    int *counts, *places; /* of parts, twice: for what goes and what comes */
    MPI_Request request;
    int begun; /* what MPI said of it */

    cudaError_t code;
    char error[RA_ERROR_SIZE]; /* of MPI */
    bool lost;
};

struct ra_gpu_piece ra_gpu_part(struct ra_gpu_piece piece, int rank, int ranks)
{
    int64_t lines = (piece.end - piece.first) / RA_PIECE_LINE;
    return (struct ra_gpu_piece){piece.first + lines * rank / ranks * RA_PIECE_LINE,
                                 piece.first + lines * (rank + 1) / ranks * RA_PIECE_LINE};
}

static void note(struct ra_gpu_ranks *ranks, cudaError_t code)
{
    ranks->code = ranks->code == cudaSuccess ? code : ranks->code;
}

/* A call, unless one has failed. */
#define DO(ranks, call) note(ranks, (ranks)->code == cudaSuccess ? (call) : cudaSuccess)

/* ---- Memory. */

static int64_t lay_out(struct ra_gpu_ranks *ranks, char *memory)
{
    int64_t sums = ranks->count * ranks->part;
    ranks->sent = (float *)(void *)memory;
    ranks->summed = ranks->sent + sums;
    ranks->table = (int *)(void *)(ranks->summed + sums);
    ranks->flags = ranks->table + RA_SIGNALS + 1;
    return 2 * sums * (int64_t)sizeof(float) +
           (RA_SIGNALS + 1 + SIGNALS * ranks->count) * (int64_t)sizeof(int);
}

/* An address of this rank's memory, in that of another. */
static void *of_peer(const struct ra_gpu_ranks *ranks, int peer, const void *mine)
{
    return ranks->peers[peer] + ((const char *)mine - ranks->memory);
}

static void take_device(struct ra_gpu_ranks *ranks)
{
    int table[RA_SIGNALS + 1] = {0}, least, greatest;
    for (int i = 0; i < RA_SIGNALS; i++)
        table[i] = i;
    ranks->bytes = ra_cuda_reach_bytes(lay_out(ranks, NULL));
    DO(ranks, cudaGetDevice(&ranks->device));
    DO(ranks, cudaMalloc((void **)&ranks->memory, (size_t)ranks->bytes));
    if (ranks->code != cudaSuccess)
        return;
    lay_out(ranks, ranks->memory);
    DO(ranks, cudaMemset(ranks->memory, 0, (size_t)ranks->bytes));
    DO(ranks, cudaMemcpy(ranks->table, table, sizeof table, cudaMemcpyHostToDevice));
    DO(ranks, cudaHostAlloc((void **)&ranks->failure, sizeof *ranks->failure, cudaHostAllocMapped));
    if (ranks->code != cudaSuccess)
        return;
    memset(ranks->failure, 0, sizeof *ranks->failure);
    DO(ranks, cudaHostGetDevicePointer((void **)&ranks->mapped_failure, ranks->failure, 0));
    DO(ranks, cudaDeviceGetStreamPriorityRange(&least, &greatest));
    DO(ranks, cudaStreamCreateWithPriority(&ranks->stream, cudaStreamNonBlocking, greatest));
    DO(ranks, cudaEventCreateWithFlags(&ranks->computed, cudaEventDisableTiming));
    DO(ranks, cudaEventCreateWithFlags(&ranks->moved, cudaEventDisableTiming));
    DO(ranks, cudaDeviceSynchronize());
}

static void take_pinned(struct ra_gpu_ranks *ranks)
{
    size_t places = (size_t)(ranks->count * ranks->part);
    ranks->counts = calloc(4 * (size_t)ranks->count, sizeof *ranks->counts);
    DO(ranks, ranks->counts
                  ? cudaHostAlloc((void **)&ranks->pinned, 2 * places * sizeof *ranks->pinned,
                                  cudaHostAllocDefault)
                  : cudaErrorMemoryAllocation);
    ranks->going = ranks->pinned;
    ranks->coming = ranks->pinned + places;
    ranks->places = ranks->counts + 2 * ranks->count;
}

/* ---- Beginning. */

static bool tell_all(struct ra_gpu_ranks *ranks)
{
    int code = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, ranks->words, (int)sizeof *ranks->words,
                              MPI_BYTE, ranks->comm, &ranks->request);
    return ra_collective_wait(ranks->comm, code, &ranks->request, ranks->timeout,
                              "the memory of all GPUs", ranks->error);
}

/* The first rank of which this is so, or -1. */
static int first_with(const struct ra_gpu_ranks *ranks, bool failed)
{
    for (int r = 0; r < ranks->count; r++)
        if (failed ? ranks->words[r].failed : !ranks->words[r].reaches)
            return r;
    return -1;
}

static enum ra_status connect(struct ra_gpu_ranks *ranks, enum ra_transport transport)
{
    struct word *words = ranks->words, *mine = &words[ranks->rank];
    ra_cuda_address_write(&mine->at, ranks->device, ranks->memory);
    if (!tell_all(ranks))
        return RA_LOST;
    mine->reaches = transport <= RA_PEER_COPIES;
    snprintf(mine->why, sizeof mine->why, "run.transport says so");
    for (int r = 0; r < ranks->count && mine->reaches; r++) {
        ranks->peers[r] = r == ranks->rank ? ranks->memory
                                           : ra_cuda_reach(&mine->at, ranks->rank, &words[r].at, r,
                                                           &ranks->opened[r], mine->why);
        mine->reaches = ranks->peers[r] != NULL;
    }
    if (!tell_all(ranks))
        return RA_LOST;
    int apart = first_with(ranks, false), failed = -1;
    ranks->by_peers = apart < 0;
    bool fits = ranks->count * ranks->part <= INT_MAX; /* or MPI cannot count them */
    if (apart >= 0 && fits) {
        /* Before anybody frees memory, nobody has it open. */
        for (int r = 0; r < ranks->count; r++)
            if (ranks->opened[r])
                cudaIpcCloseMemHandle(ranks->peers[r]);
        memset(ranks->opened, 0, (size_t)ranks->count * sizeof *ranks->opened);
        take_pinned(ranks);
        mine->failed = ranks->code != cudaSuccess;
        if (!tell_all(ranks))
            return RA_LOST;
        failed = first_with(ranks, true);
    }
    if (apart < 0)
        snprintf(ranks->transport, sizeof ranks->transport, "peer copies");
    else
        snprintf(ranks->transport, sizeof ranks->transport, "the host, as %s", words[apart].why);
    if (failed >= 0)
        snprintf(ranks->error, sizeof ranks->error,
                 "rank %d has not enough memory of the host from which its GPU copies", failed);
    else if (apart >= 0 && !fits)
        snprintf(ranks->error, sizeof ranks->error,
                 "pieces of %" PRId64 " numbers: by the host the ranks' parts have at most %d in "
                 "all (of a decoder: give most_new fewer tokens)",
                 ranks->most, INT_MAX);
    else if (transport == RA_PEER_COPIES && apart >= 0)
        snprintf(ranks->error, sizeof ranks->error, "run.transport = RA_PEER_COPIES: %s",
                 words[apart].why);
    return failed >= 0 ? RA_DEVICE : ranks->error[0] ? RA_INVALID : RA_OK;
}

struct ra_gpu_ranks *ra_gpu_ranks_create(MPI_Comm comm, int64_t most, double timeout,
                                         cudaStream_t stream)
{
    struct ra_gpu_ranks *ranks = calloc(1, sizeof *ranks);
    if (!ranks)
        return NULL;
    *ranks =
        (struct ra_gpu_ranks){.comm = comm, .timeout = timeout, .compute = stream, .most = most};
    MPI_Comm_rank(comm, &ranks->rank);
    MPI_Comm_size(comm, &ranks->count);
    ranks->part =
        ra_gpu_part((struct ra_gpu_piece){0, most + ranks->count * RA_PIECE_LINE}, 0, ranks->count)
            .end;
    ranks->words = calloc((size_t)ranks->count, sizeof *ranks->words);
    ranks->peers = calloc((size_t)ranks->count, sizeof *ranks->peers);
    ranks->opened = calloc((size_t)ranks->count, sizeof *ranks->opened);
    take_device(ranks);
    if (ranks->words && ranks->peers && ranks->opened && ranks->code == cudaSuccess)
        return ranks;
    ra_gpu_ranks_destroy(ranks);
    return NULL;
}

enum ra_status ra_gpu_ranks_connect(struct ra_gpu_ranks *ranks, enum ra_transport transport,
                                    char error[RA_ERROR_SIZE])
{
    enum ra_status status = connect(ranks, transport);
    ranks->lost = status == RA_LOST;
    if (status != RA_OK)
        snprintf(error, RA_ERROR_SIZE, "%s", ranks->error);
    return status;
}

bool ra_gpu_ranks_destroy(struct ra_gpu_ranks *ranks)
{
    if (!ranks)
        return true;

    /* Where a call has failed, messages may be under way, and others in another call. */
    bool pending = ranks->by_peers || ranks->first_job < ranks->job_count;
    ranks->lost = ranks->lost || (ranks->code != cudaSuccess && pending);
    if (ranks->failure)
        __atomic_store_n(&ranks->failure->stop, 1, __ATOMIC_RELEASE);
    if (ranks->stream)
        cudaStreamSynchronize(ranks->stream);
    for (int r = 0; r < ranks->count && ranks->opened; r++)
        if (ranks->opened[r])
            cudaIpcCloseMemHandle(ranks->peers[r]);

    /* Once all have come here, nobody writes to another's memory any more. */
    char error[RA_ERROR_SIZE];
    if (!ranks->lost && ranks->by_peers) {
        int code = MPI_Ibarrier(ranks->comm, &ranks->request);
        ranks->lost = !ra_collective_wait(ranks->comm, code, &ranks->request, ranks->timeout,
                                          "the end", error);
    }
    if (ranks->stream)
        cudaStreamDestroy(ranks->stream);
    if (ranks->computed)
        cudaEventDestroy(ranks->computed);
    if (ranks->moved)
        cudaEventDestroy(ranks->moved);
    for (int i = 0; i < ranks->job_room && ranks->jobs[i].computed; i++)
        cudaEventDestroy(ranks->jobs[i].computed);
    free(ranks->opened);
    free(ranks->peers);
    if (ranks->lost)
        return false;
    free(ranks->words);
    cudaFreeHost(ranks->failure);
    cudaFreeHost(ranks->pinned);
    cudaFree(ranks->memory);
    free(ranks->counts);
    free(ranks->jobs);
    free(ranks);
    return true;
}

int64_t ra_gpu_ranks_bytes(const struct ra_gpu_ranks *ranks)
{
    return ranks->bytes;
}

const char *ra_gpu_ranks_transport(const struct ra_gpu_ranks *ranks)
{
    return ranks->transport;
}

cudaStream_t ra_gpu_ranks_stream(const struct ra_gpu_ranks *ranks)
{
    return ranks->by_peers ? ranks->stream : NULL;
}

/* ---- By peer copies. */

static void copy(struct ra_gpu_ranks *ranks, float *to, const float *from, int64_t numbers,
                 enum cudaMemcpyKind kind)
{
    if (numbers > 0)
        DO(ranks, cudaMemcpyAsync(to, from, (size_t)numbers * sizeof *to, kind, ranks->stream));
}

static void send_signal(struct ra_gpu_ranks *ranks, int peer, enum signal signal)
{
    int *flag = of_peer(ranks, peer, ranks->flags + signal * ranks->count + ranks->rank);
    DO(ranks, cudaMemcpyAsync(flag, ranks->table + ranks->number, sizeof *flag, cudaMemcpyDefault,
                              ranks->stream));
}

static void await_signal(struct ra_gpu_ranks *ranks, int peer, enum signal signal)
{
    double nanoseconds = 1e9 * ranks->timeout;
    struct ra_signal wait = {.word = ranks->flags + signal * ranks->count + peer,
                             .number = ranks->number,
                             .table = ranks->table,
                             .error = ranks->mapped_failure,
                             .nanoseconds = nanoseconds < 1e18 ? (int64_t)nanoseconds : 0,
                             .message = (int)signal,
                             .peer = peer};
    if (ranks->timeout > 0 && nanoseconds < 1)
        wait.nanoseconds = 1;
    DO(ranks, ra_signal_wait(&wait, ranks->stream));
}

/* Adds up this rank's part of a piece, in the order of ranks. */
static void add(struct ra_gpu_ranks *ranks, float *array, struct ra_gpu_piece own)
{
    if (own.end > own.first)
        DO(ranks, ra_kernel_add_parts(own.end - own.first, ranks->count, ranks->rank,
                                      array + own.first, ranks->sent, ranks->part, ranks->stream));
}

/* Number i of the others, from the next rank on: so not all write to the same at a time. */
static int other(const struct ra_gpu_ranks *ranks, int i)
{
    return (ranks->rank + i) % ranks->count;
}

/* Sends all others a signal, behind what was sent to them, and waits for theirs. */
static void meet(struct ra_gpu_ranks *ranks, enum signal signal)
{
    for (int i = 1; i < ranks->count; i++)
        send_signal(ranks, other(ranks, i), signal);
    for (int i = 1; i < ranks->count; i++)
        await_signal(ranks, other(ranks, i), signal);
}

static void enqueue(struct ra_gpu_ranks *ranks, float *array, struct ra_gpu_piece piece,
                    bool reduce, bool gather)
{
    struct ra_gpu_piece own = ra_gpu_part(piece, ranks->rank, ranks->count);
    ranks->number = (ranks->number + 1) % RA_SIGNALS;
    for (int i = 1; i < ranks->count && reduce; i++) {
        struct ra_gpu_piece part = ra_gpu_part(piece, other(ranks, i), ranks->count);
        copy(ranks, of_peer(ranks, other(ranks, i), ranks->sent + ranks->rank * ranks->part),
             array + part.first, part.end - part.first, cudaMemcpyDefault);
    }
    meet(ranks, SENT);
    if (reduce)
        add(ranks, array, own);
    for (int i = 1; i < ranks->count && gather; i++)
        copy(ranks, of_peer(ranks, other(ranks, i), ranks->summed + ranks->rank * ranks->part),
             array + own.first, own.end - own.first, cudaMemcpyDefault);
    meet(ranks, SUMMED);
    for (int i = 1; i < ranks->count && gather; i++) {
        struct ra_gpu_piece part = ra_gpu_part(piece, other(ranks, i), ranks->count);
        copy(ranks, array + part.first, ranks->summed + other(ranks, i) * ranks->part,
             part.end - part.first, cudaMemcpyDefault);
    }
}

/* ---- By the host. */

/* Copies the part of rank r of a piece between the device and its place at r * part. */
static void move_part(struct ra_gpu_ranks *ranks, const struct job *job, int r, float *pinned,
                      bool up)
{
    struct ra_gpu_piece part = ra_gpu_part(job->piece, r, ranks->count);
    float *place = pinned + r * ranks->part, *array = job->array + part.first;
    copy(ranks, up ? array : place, up ? place : array, part.end - part.first,
         up ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost);
}

static void send_parts(struct ra_gpu_ranks *ranks, const struct job *job)
{
    struct ra_gpu_piece own = ra_gpu_part(job->piece, ranks->rank, ranks->count);
    int *come = ranks->counts + ranks->count, *to = ranks->places + ranks->count;
    for (int r = 0; r < ranks->count; r++) {
        struct ra_gpu_piece part = ra_gpu_part(job->piece, r, ranks->count);
        ranks->counts[r] = r == ranks->rank ? 0 : (int)(part.end - part.first);
        come[r] = r == ranks->rank ? 0 : (int)(own.end - own.first);
        ranks->places[r] = to[r] = (int)(r * ranks->part);
    }
    ranks->begun = MPI_Ialltoallv(ranks->going, ranks->counts, ranks->places, MPI_FLOAT,
                                  ranks->coming, come, to, MPI_FLOAT, ranks->comm, &ranks->request);
}

static void gather_parts(struct ra_gpu_ranks *ranks, const struct job *job)
{
    for (int r = 0; r < ranks->count; r++) {
        struct ra_gpu_piece part = ra_gpu_part(job->piece, r, ranks->count);
        ranks->counts[r] = (int)(part.end - part.first);
        ranks->places[r] = (int)(r * ranks->part);
    }
    ranks->begun = MPI_Iallgatherv(
        ranks->going + ranks->rank * ranks->part, ranks->counts[ranks->rank], MPI_FLOAT,
        ranks->coming, ranks->counts, ranks->places, MPI_FLOAT, ranks->comm, &ranks->request);
}

/* What came is copied to where it is added up, and the sum to where it can be sent. */
static void add_parts(struct ra_gpu_ranks *ranks, const struct job *job)
{
    struct ra_gpu_piece own = ra_gpu_part(job->piece, ranks->rank, ranks->count);
    for (int r = 0; r < ranks->count && job->reduce; r++)
        if (r != ranks->rank)
            copy(ranks, ranks->sent + r * ranks->part, ranks->coming + r * ranks->part,
                 own.end - own.first, cudaMemcpyHostToDevice);
    if (job->reduce)
        add(ranks, job->array, own);
    if (job->gather)
        move_part(ranks, job, ranks->rank, ranks->going, false);
    DO(ranks, cudaEventRecord(ranks->moved, ranks->stream));
}

static void begin_job(struct ra_gpu_ranks *ranks, const struct job *job)
{
    DO(ranks, cudaStreamWaitEvent(ranks->stream, job->computed, 0));
    for (int r = 0; r < ranks->count && job->reduce; r++)
        if (r != ranks->rank)
            move_part(ranks, job, r, ranks->going, false);
    DO(ranks, cudaEventRecord(ranks->moved, ranks->stream));
}

/* Is what MPI does, or the stream, done? Waits for it, if it is to. */
static bool mpi_is_done(struct ra_gpu_ranks *ranks, bool wait)
{
    int done = 0, code = ranks->begun;
    if (code == MPI_SUCCESS && !wait)
        code = MPI_Test(&ranks->request, &done, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS || wait)
        ranks->lost = !ra_collective_wait(ranks->comm, code, &ranks->request, ranks->timeout,
                                          "numbers of all ranks", ranks->error);
    return (wait || done) && !ranks->lost;
}

static bool stream_is_done(struct ra_gpu_ranks *ranks, bool wait)
{
    cudaError_t code = wait ? cudaEventSynchronize(ranks->moved) : cudaEventQuery(ranks->moved);
    if (code != cudaErrorNotReady)
        note(ranks, code);
    return code == cudaSuccess;
}

/* Brings the first job as far as it can; true: to its end. */
static bool advance(struct ra_gpu_ranks *ranks, struct job *job, bool wait)
{
    if (job->stage == BEGUN && stream_is_done(ranks, wait)) {
        if (job->reduce)
            send_parts(ranks, job);
        job->stage = SENDING;
    }
    if (job->stage == SENDING && (!job->reduce || mpi_is_done(ranks, wait))) {
        add_parts(ranks, job);
        job->stage = ADDING;
    }
    if (job->stage == ADDING && stream_is_done(ranks, wait)) {
        if (job->gather)
            gather_parts(ranks, job);
        job->stage = GATHERING;
    }
    if (job->stage == GATHERING && (!job->gather || mpi_is_done(ranks, wait))) {
        for (int r = 0; r < ranks->count && job->gather; r++)
            if (r != ranks->rank)
                move_part(ranks, job, r, ranks->coming, true);
        job->stage = DONE;
    }
    return job->stage == DONE;
}

static void advance_all(struct ra_gpu_ranks *ranks, bool wait)
{
    while (ranks->first_job < ranks->job_count && !ranks->lost && ranks->code == cudaSuccess &&
           advance(ranks, &ranks->jobs[ranks->first_job], wait)) {
        if (++ranks->first_job < ranks->job_count)
            begin_job(ranks, &ranks->jobs[ranks->first_job]);
    }
    if (ranks->first_job == ranks->job_count)
        ranks->first_job = ranks->job_count = 0;
}

static void add_job(struct ra_gpu_ranks *ranks, struct job job)
{
    if (ranks->job_count == ranks->job_room) {
        int room = 2 * ranks->job_room + 16;
        struct job *more = realloc(ranks->jobs, (size_t)room * sizeof *ranks->jobs);
        DO(ranks, more ? cudaSuccess : cudaErrorMemoryAllocation);
        if (!more)
            return;
        memset(more + ranks->job_room, 0, (size_t)(room - ranks->job_room) * sizeof *more);
        ranks->jobs = more;
        ranks->job_room = room;
    }
    struct job *place = &ranks->jobs[ranks->job_count++];
    job.computed = place->computed;
    if (!job.computed)
        DO(ranks, cudaEventCreateWithFlags(&job.computed, cudaEventDisableTiming));
    *place = job;
    DO(ranks, cudaEventRecord(place->computed, ranks->compute));
    if (ranks->first_job == ranks->job_count - 1)
        begin_job(ranks, place);
}

/* ---- Calls. */

void ra_gpu_ranks_begin(struct ra_gpu_ranks *ranks, float *array, struct ra_gpu_piece piece,
                        bool reduce, bool gather)
{
    if (!ranks->by_peers) {
        add_job(ranks,
                (struct job){.array = array, .piece = piece, .reduce = reduce, .gather = gather});
        return;
    }
    DO(ranks, cudaEventRecord(ranks->computed, ranks->compute));
    DO(ranks, cudaStreamWaitEvent(ranks->stream, ranks->computed, 0));
    enqueue(ranks, array, piece, reduce, gather);
}

void ra_gpu_ranks_advance(struct ra_gpu_ranks *ranks)
{
    if (!ranks->by_peers)
        advance_all(ranks, false);
}

void ra_gpu_ranks_join(struct ra_gpu_ranks *ranks)
{
    if (!ranks->by_peers)
        advance_all(ranks, true);
    DO(ranks, cudaEventRecord(ranks->moved, ranks->stream));
    DO(ranks, cudaStreamWaitEvent(ranks->compute, ranks->moved, 0));
}

/* What the device says of waits that failed. */
static enum ra_status device_status(struct ra_gpu_ranks *ranks)
{
    int failure = __atomic_load_n(&ranks->failure->failure, __ATOMIC_ACQUIRE),
        peer = ranks->failure->peer;
    if (failure == RA_SIGNAL_LATE)
        snprintf(ranks->error, sizeof ranks->error,
                 "rank %d: waited %g s for numbers of rank %d; has it died? If it is only slow, "
                 "wait longer",
                 ranks->rank, ranks->timeout, peer);
    else if (failure != RA_SIGNAL_NONE)
        snprintf(ranks->error, sizeof ranks->error, "rank %d: rank %d has failed", ranks->rank,
                 peer);
    ranks->lost = ranks->lost || failure != RA_SIGNAL_NONE;
    return ranks->lost ? RA_LOST : ranks->code != cudaSuccess ? RA_DEVICE : RA_OK;
}

void ra_gpu_ranks_stop(struct ra_gpu_ranks *ranks)
{
    __atomic_store_n(&ranks->failure->stop, 1, __ATOMIC_RELEASE);
    ranks->lost = true;
}

enum ra_status ra_gpu_ranks_end(struct ra_gpu_ranks *ranks, bool stop, char error[RA_ERROR_SIZE])
{
    if (stop)
        ra_gpu_ranks_stop(ranks);
    if (!ranks->by_peers)
        advance_all(ranks, true);
    cudaError_t code = cudaStreamSynchronize(ranks->stream);
    note(ranks, code);
    enum ra_status status = device_status(ranks);
    if (status != RA_OK && !stop)
        snprintf(error, RA_ERROR_SIZE, "%s",
                 ranks->error[0] ? ranks->error : cudaGetErrorString(ranks->code));
    return status;
}

enum ra_status ra_gpu_ranks_share(struct ra_gpu_ranks *ranks, int count, double *all,
                                  char error[RA_ERROR_SIZE])
{
    int code = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DOUBLE, all, count, MPI_DOUBLE, ranks->comm,
                              &ranks->request);
    if (ra_collective_wait(ranks->comm, code, &ranks->request, ranks->timeout,
                           "the length of the gradient", error))
        return RA_OK;
    ranks->lost = true;
    return RA_LOST;
}
