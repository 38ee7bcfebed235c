/* check_model_lost: models and decoders of which one rank comes too late, or refuses what it is
 * given, on the ranks of a communicator.
 *
 *   mpirun -n RANKS build/check-model-lost      (3 ranks or more)
 *
 * The others give up, and destroy what they have of it. Then the late rank comes, and MPI goes on
 * with what they had begun: on communicators, and in memory, that must still be there.
 *
 * Linked with --wrap of malloc, calloc, aligned_alloc and posix_memalign, so that memory can be
 * refused.
 */
#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ra_decoder.h"
#include "ra_model.h"
#include "ra_mpi_link.h"
#include "verdict.h"

/* The late rank comes when the others have given up, but before they would have given up twice. */
static const double timeout = 0.4, delay = 0.7;

static int rank, ranks;
static int duplicates; /* how often this rank has duplicated a communicator, */
static int late_at;    /* and at which of them the last rank is late */
static bool met;

/* The others tell the late rank that they begin to wait for it. It comes so much later than the
 * last of them, however slow that is. */
static void meet(void)
{
    enum { WAITS = 77 };
    int last = ranks - 1;
    for (int r = 0; r < last && rank == last && !met; r++)
        PMPI_Recv(NULL, 0, MPI_BYTE, r, WAITS, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == last && !met)
        verdict_pause(delay);
    else if (!met)
        PMPI_Send(NULL, 0, MPI_BYTE, last, WAITS, MPI_COMM_WORLD);
    met = true;
}

int MPI_Comm_idup(MPI_Comm old, MPI_Comm *comm, MPI_Request *request)
{
    if (++duplicates == late_at || late_at == 0)
        meet();
    return PMPI_Comm_idup(old, comm, request);
}

/* A model that duplicates without a timeout, which it must not, waits here. */
int MPI_Comm_dup(MPI_Comm old, MPI_Comm *comm)
{
    if (late_at == 0)
        meet();
    return PMPI_Comm_dup(old, comm);
}

/* ---- What fails on this rank: the n-th call of its kind that the library makes. */

enum kind { MEMORY, MESSAGE, SUM, KINDS };
static int64_t calls[KINDS], fails_at[KINDS]; /* 0: none */

/* A message fails late, when the others have gone on as far as they can: to other layers, too. */
static bool fails(enum kind kind)
{
    bool now = ++calls[kind] == fails_at[kind];
    if (now && kind != MEMORY)
        verdict_pause(0.05);
    return now;
}

/* Without memory for a link a rank cannot tell the others, who wait for it. */
static bool refused(size_t size)
{
    size_t link = sizeof(struct ra_mpi_link) + (size_t)ranks * (sizeof(double) + sizeof(int64_t));
    return size != link && fails(MEMORY);
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_posix_memalign(void **block, size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_posix_memalign(void **block, size_t alignment, size_t size);

void *__wrap_malloc(size_t size)
{
    return refused(size) ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return refused(count * size) ? NULL : __real_calloc(count, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return refused(size) ? NULL : __real_aligned_alloc(alignment, size);
}

int __wrap_posix_memalign(void **block, size_t alignment, size_t size)
{
    return refused(size) ? ENOMEM : __real_posix_memalign(block, alignment, size);
}

int MPI_Isend(const void *from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    bool counts = tag < RA_CALL; /* keys and gradients */
    return counts && fails(MESSAGE) ? MPI_ERR_OTHER
                                    : PMPI_Isend(from, count, type, to, tag, comm, request);
}

int MPI_Iallreduce(const void *from, void *to, int count, MPI_Datatype type, MPI_Op op,
                   MPI_Comm comm, MPI_Request *request)
{
    bool counts = type == MPI_FLOAT; /* gradients */
    return counts && fails(SUM) ? MPI_ERR_OTHER
                                : PMPI_Iallreduce(from, to, count, type, op, comm, request);
}

/* Lets call number `at` of this kind fail on rank `odd`; 0: none. */
static void let_fail(enum kind kind, int odd, int64_t at)
{
    for (int k = 0; k < KINDS; k++)
        calls[k] = fails_at[k] = 0;
    fails_at[kind] = rank == odd ? at : 0;
    PMPI_Barrier(MPI_COMM_WORLD);
}

/* Ends that. Has rank `odd` made so many calls? */
static bool has_failed(enum kind kind, int odd, int64_t at)
{
    bool reached = calls[kind] >= at;
    for (int k = 0; k < KINDS; k++)
        fails_at[k] = 0;
    PMPI_Bcast(&reached, 1, MPI_C_BOOL, odd, MPI_COMM_WORLD);
    return reached;
}

/* All ranks make a model, or a decoder; the last is late at this duplication of a communicator, or
 * (0) with all of it. Rank 0 does not look after MPI for a while when it has given up, so that all
 * is still under way. */
static void lose(int at, bool decodes)
{
    struct ra_model_config config;
    struct ra_model_run run = {
        .size = sizeof run, .batch = 1, .length = 64, .threads = 1, .timeout = timeout};
    struct ra_model *model = NULL;
    struct ra_decoder *decoder = NULL;
    char error[RA_ERROR_SIZE] = "";
    MPI_Comm comm;
    PMPI_Comm_dup(MPI_COMM_WORLD, &comm);
    ra_model_config_init(&config, sizeof config);
    config.dim = config.hidden = 16;
    config.heads = config.key_heads = 1;
    config.head_dim = 16;
    duplicates = 0;
    late_at = at;
    met = false;
    PMPI_Barrier(MPI_COMM_WORLD);
    if (late_at == 0 && rank == ranks - 1)
        meet();
    enum ra_status status = decodes ? ra_decoder_create(&decoder, &config, &run, 4, comm, error)
                                    : ra_model_create(&model, &config, &run, comm, error);
    (void)HOLDS(status == RA_LOST && !model && !decoder, "%s: %s", ra_status_text(status), error);
    meet(); /* who gave up before it came to this duplication */
    if (rank == 0)
        verdict_pause(delay);

    /* Meanwhile the numbers of communicators that were freed would be given to others. */
    for (int i = 0; i < 20; i++) {
        MPI_Comm other;
        PMPI_Comm_dup(MPI_COMM_WORLD, &other);
        PMPI_Barrier(other);
        PMPI_Comm_free(&other);
    }
}

TEST(begin)
{
    lose(0, false);
}

/* The first duplicate is that by which a model finds out who shares its processors. */
TEST(first)
{
    lose(1, false);
}

/* The second is that of a layer's plan. */
TEST(layer)
{
    lose(2, false);
}

TEST(decoder)
{
    lose(2, true);
}

/* Rings of one rank each, which only add up together: the last does not come, and the others say
 * so. */
TEST(sum)
{
    struct ra_model_config config;
    struct ra_model_run run = {
        .size = sizeof run, .batch = 1, .length = 4, .ring_size = 1, .threads = 1, .timeout = 2};
    struct ra_model *model;
    char error[RA_ERROR_SIZE] = "", due[100];
    static float weights[1 << 16]; /* they stay */
    ra_model_config_init(&config, sizeof config);
    config.dim = config.hidden = config.vocabulary = config.head_dim = 16;
    config.depth = config.heads = config.key_heads = 1;
    if (!HOLDS(ra_parameter_numbers(&config) <= 1 << 16 &&
                   ra_model_create(&model, &config, &run, MPI_COMM_WORLD, error) == RA_OK,
               "%s", error))
        return;
    snprintf(due, sizeof due, "waited 2 s for weights of all ranks: rank %d has not come",
             ranks - 1);
    PMPI_Barrier(MPI_COMM_WORLD);
    if (rank < ranks - 1) {
        enum ra_status status = ra_model_gather(model, weights);
        const char *said = ra_model_error(model);
        (void)HOLDS(status == RA_LOST && strstr(said, due), "%s: %s", ra_status_text(status), said);
    }
    PMPI_Barrier(MPI_COMM_WORLD);
    if (rank == ranks - 1)
        (void)HOLDS(ra_model_gather(model, weights) == RA_OK, "%s", ra_model_error(model));
}

/* A small model of two layers that do not see as much, so that each has a plan. */
static struct ra_model_config small(void)
{
    struct ra_model_config config;
    ra_model_config_init(&config, sizeof config);
    config.dim = config.hidden = config.vocabulary = config.head_dim = 16;
    config.heads = config.key_heads = 1;
    config.depth = 2;
    config.lookback[0] = 5;
    return config;
}

/* Each block of memory in turn is refused to a rank. All others hear of it, and none waits. */
TEST(memory)
{
    static float weights[1 << 16], logits[16];
    static const int32_t tokens[16];
    struct ra_model_config config = small();
    struct ra_model_run run = {.size = sizeof run,
                               .batch = 1,
                               .length = 16,
                               .ring_size = ranks % 2 ? 0 : ranks / 2,
                               .max_slices = 2,
                               .threads = 1,
                               .timeout = 20};
    struct ra_model_run text = {.size = sizeof text, .length = 16, .threads = 1, .timeout = 20};
    for (int decodes = 0; decodes < 2; decodes++) {
        bool more = true;
        for (int64_t at = 1; more; at++) {
            int odd = (int)(at % ranks);
            struct ra_model *model = NULL;
            struct ra_decoder *decoder = NULL;
            char error[RA_ERROR_SIZE] = "";
            let_fail(MEMORY, odd, at);
            enum ra_status status =
                decodes ? ra_decoder_create(&decoder, &config, &text, 3, MPI_COMM_WORLD, error)
                        : ra_model_create(&model, &config, &run, MPI_COMM_WORLD, error);
            if (decoder) {
                status = ra_decoder_prompt(decoder, weights, 16, tokens, logits);
                snprintf(error, sizeof error, "%s", ra_decoder_error(decoder));
            }
            more = has_failed(MEMORY, odd, at);
            bool said =
                (status == RA_OUT_OF_MEMORY || status == RA_LOST) && strstr(error, "no memory");
            (void)HOLDS(more ? said : at > 1 && status == RA_OK, "block %d of rank %d: %s: %s",
                        (int)at, odd, ra_status_text(status), error);
            ra_model_destroy(model);
            ra_decoder_destroy(decoder);
        }
    }
}

/* Each message of a step in turn cannot be sent by a rank: all others hear why, wherever they
 * are. */
TEST(messages)
{
    enum { ROWS = 4 };
    static float weights[1 << 16], gradients[1 << 16];
    static const int32_t tokens[ROWS];
    struct ra_model_config config = small();
    struct ra_model_run run = {.size = sizeof run,
                               .batch = 1,
                               .length = ROWS * ranks,
                               .layout = RA_STRIPED,
                               .threads = 1,
                               .timeout = 20};
    struct ra_model_batch batch = {.size = sizeof batch, .tokens = tokens, .labels = tokens};
    for (int kind = MESSAGE; kind < KINDS; kind++) {
        bool more = true;
        for (int64_t at = 1; more; at++) {
            int odd = (int)(at % ranks);
            struct ra_model *model;
            struct ra_model_loss loss;
            char error[RA_ERROR_SIZE] = "";
            MPI_Comm comm; /* stays: a call that is lost may still use it */
            PMPI_Comm_dup(MPI_COMM_WORLD, &comm);
            if (!HOLDS(ra_model_create(&model, &config, &run, comm, error) == RA_OK, "%s", error))
                return;
            let_fail((enum kind)kind, odd, at);
            enum ra_status status = ra_model_step(model, weights, 1, &batch, gradients, &loss);
            more = has_failed((enum kind)kind, odd, at);
            const char *why = kind == MESSAGE ? "sending " : "MPI fails at gradients";
            bool said = status == RA_LOST && strstr(ra_model_error(model), why);
            int wrong =
                !HOLDS(more ? said : at > 1 && status == RA_OK, "call %d of rank %d: %s: %s",
                       (int)at, odd, ra_status_text(status), ra_model_error(model));

            /* No rank closes its links before all have heard: that would wake them as well. */
            PMPI_Allreduce(MPI_IN_PLACE, &wrong, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
            ra_model_destroy(model);
            if (wrong)
                return;
        }
    }
}

/* What ranks from one on refuse is said at once, on all ranks, in the words of the first of them: a
 * token or label that is none, with its place in the whole batch; arguments that are none. */
TEST(refusals)
{
    enum { BATCH = 2, ROWS = 3, ODD = ROWS + 1 }; /* of the second row the second token */
    enum { LABEL, TOKEN, NO_TOKENS, NO_LABELS, NO_MASK, NO_BATCH, NO_SIZE, FORWARD_TOKEN, WAYS };
    struct ra_model_config config;
    struct ra_model_run run = {.size = sizeof run,
                               .batch = BATCH,
                               .length = ROWS * ranks,
                               .has_mask = true,
                               .layout = RA_STRIPED,
                               .threads = 1,
                               .timeout = 20};
    const bool mask[BATCH * ROWS] = {true};
    struct ra_model *model;
    char error[RA_ERROR_SIZE] = "", due[160], place[60];
    static float weights[1 << 16];
    int32_t well[BATCH * ROWS] = {0}, ill[BATCH * ROWS] = {0};
    struct ra_model_loss loss;
    ra_model_config_init(&config, sizeof config);
    config.dim = config.hidden = config.vocabulary = config.head_dim = 16;
    config.depth = config.heads = config.key_heads = 1;
    if (!HOLDS(ra_model_create(&model, &config, &run, MPI_COMM_WORLD, error) == RA_OK, "%s", error))
        return;
    ill[ODD] = 16;
    for (int i = 0; i < ranks * WAYS; i++) {
        int first = i % ranks, way = i / ranks;
        bool refuses = rank >= first;
        struct ra_model_batch batch = {
            .size = sizeof batch, .tokens = well, .labels = well, .mask = mask};
        snprintf(place, sizeof place, "row 1, position %d is 16", ranks + first);
        snprintf(due, sizeof due, "rank %d: ", first);
        char *end = due + strlen(due);
        size_t left = sizeof due - strlen(due);
        if (way == LABEL)
            snprintf(end, left, "labels: %s: give at most 15", place);
        else if (way == TOKEN || way == FORWARD_TOKEN)
            snprintf(end, left, "tokens: %s: give 0 to 15", place);
        else if (way == NO_TOKENS || way == NO_LABELS)
            snprintf(end, left, "%s is NULL: give one for each row of this rank",
                     way == NO_TOKENS ? "tokens" : "labels");
        else if (way == NO_MASK)
            snprintf(end, left, "mask is NULL: give one for each row of this rank");
        else if (way == NO_BATCH)
            snprintf(end, left, "count = 0: give 1 micro-batch or more");
        else
            snprintf(end, left, "batch.size = 0: begin with RA_MODEL_BATCH_INIT");
        if (refuses) {
            batch.labels = way == LABEL ? ill : way == NO_LABELS ? NULL : well;
            batch.tokens = way == TOKEN || way == FORWARD_TOKEN ? ill
                           : way == NO_TOKENS                   ? NULL
                                                                : well;
            batch.mask = way == NO_MASK ? NULL : mask;
            batch.size = way == NO_SIZE ? 0 : sizeof batch;
        }
        double began = ra_seconds();
        enum ra_status status =
            way == FORWARD_TOKEN ? ra_model_forward(model, weights, &batch)
                                 : ra_model_step(model, weights, refuses && way == NO_BATCH ? 0 : 1,
                                                 &batch, NULL, &loss);
        (void)HOLDS(status == RA_INVALID && strncmp(ra_model_error(model), due, strlen(due)) == 0,
                    "%s: %s, not %s", ra_status_text(status), ra_model_error(model), due);
        (void)HOLDS(ra_seconds() - began < 10, "it waited");
    }

    /* Then they can go on. */
    struct ra_model_batch batch = {
        .size = sizeof batch, .tokens = well, .labels = well, .mask = mask};
    (void)HOLDS(ra_model_step(model, weights, 1, &batch, NULL, &loss) == RA_OK &&
                    loss.labels == BATCH * ROWS * ranks,
                "%s", ra_model_error(model));
    ra_model_destroy(model);
}

int main(int argc, char **argv)
{
    verdict_begin_ranks(argc, argv, 60, &rank, &ranks, NULL);
    verdict_run_noted();
    int code = verdict_end();
    MPI_Finalize();
    return code;
}
