/* check_batch: a batch on its way from whole rows to shards of the sequence, and back, between the
 * ranks of a world. An MPI program, and therefore without libcheck, which runs each test in a
 * process of its own.
 *
 *   mpirun -n RANKS build/check-batch
 *
 * Every rank runs every test, for every ring size that divides the world. Tokens are bytes that say
 * which number of the batch they are, so that a wrong one is never taken for the right one. Which
 * row comes to whom is counted here row by row.
 */
#include <inttypes.h>
#include <limits.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "verdict.h"

#include "ra_batch.h"

enum { GUARD = 16, POISON = 0xA5 };
/* What no error is worth waiting for; and the timeout where a rank does not come. */
static const double patience = 60, soon = 0.5;
static int rank, ranks;

/* ---- What the module asks of MPI. A program may stand in for MPI's functions, under whose second
 * names, PMPI_..., the work is still done. */

static int64_t tokens_sent, tokens_received, bytes_shared; /* since they were set to 0 */
static int types;                                          /* made and not freed */

int MPI_Ialltoallv(const void *from, const int sent[], const int sent_at[], MPI_Datatype type,
                   void *into, const int received[], const int received_at[], MPI_Datatype other,
                   MPI_Comm comm, MPI_Request *request)
{
    for (int r = 0; r < ranks; r++) {
        tokens_sent += sent[r];
        tokens_received += received[r];
    }
    return PMPI_Ialltoallv(from, sent, sent_at, type, into, received, received_at, other, comm,
                           request);
}

int MPI_Iallgather(const void *from, int count, MPI_Datatype type, void *into, int each,
                   MPI_Datatype received, MPI_Comm comm, MPI_Request *request)
{
    int size;
    PMPI_Type_size(received, &size);
    bytes_shared += each * size;
    return PMPI_Iallgather(from, count, type, into, each, received, comm, request);
}

int MPI_Type_contiguous(int count, MPI_Datatype old, MPI_Datatype *type)
{
    types++;
    return PMPI_Type_contiguous(count, old, type);
}

int MPI_Type_free(MPI_Datatype *type)
{
    types--;
    return PMPI_Type_free(type);
}

/* ---- Batches. */

/* How many rows a rank brings: one each; none; ragged, with and without zeros; all on one rank; and
 * one row, so that there are fewer than sets. */
enum { PATTERNS = 7 };
static int64_t rows_of(int pattern, int r)
{
    const int64_t patterns[PATTERNS] = {
        1, 0, r, (r * 7 + 3) % 4, r == ranks - 1 ? 5 : 0, r == 0 ? 3 : 0, r == ranks / 2};
    return patterns[pattern];
}

/* Where this rank's rows begin in the whole batch, and how many that has. */
static int64_t first_of(int pattern, int r)
{
    int64_t first = 0;
    for (int other = 0; other < r; other++)
        first += rows_of(pattern, other);
    return first;
}

/* Byte c of the token at position i of row `row`. */
static unsigned char byte_of(int64_t row, int64_t i, int64_t c)
{
    uint64_t x = (uint64_t)(row * 1009 + i * 31 + c) * 0x9e3779b97f4a7c15;
    return (unsigned char)(x >> 40);
}

/* Memory for so many bytes, full of what no test writes, with a guard behind. */
static unsigned char *poisoned(int64_t bytes)
{
    unsigned char *memory = malloc((size_t)bytes + GUARD);
    if (!memory)
        PMPI_Abort(MPI_COMM_WORLD, 1);
    return memset(memory, POISON, (size_t)bytes + GUARD);
}

/* Is nothing written behind it? Frees it. */
static void release(unsigned char *memory, int64_t bytes)
{
    for (int g = 0; g < GUARD; g++)
        EXPECT(memory[bytes + g] == POISON, "guard %d of %" PRId64 " bytes", g, bytes);
    free(memory);
}

static struct ra_layout layout_of(int kind, int P, int64_t N, int64_t bucket)
{
    return (struct ra_layout){(enum ra_layout_kind)kind, P, N, ra_layout_stripes(P, N, bucket),
                              NULL};
}

static struct ra_batch *create(struct ra_layout layout, int64_t token_bytes, int64_t rows)
{
    struct ra_batch *batch;
    char error[RA_ERROR_SIZE];
    enum ra_status status =
        ra_batch_create(&batch, MPI_COMM_WORLD, layout, token_bytes, rows, patience, error);
    EXPECT(status == RA_OK, "%s", error);
    return batch;
}

/* The shard of this rank, as it should be: its positions of every row of its set. */
static int64_t check_shard(const unsigned char *shard, struct ra_layout layout, int64_t total,
                           int64_t bytes)
{
    int P = layout.ranks, S = ranks / P;
    int64_t b = 0, n = ra_layout_rows(layout, rank % P);
    for (int64_t row = 0; row < total; row++) {
        if (row % S != rank / P)
            continue;
        for (int64_t a = 0; a < n; a++)
            for (int64_t c = 0; c < bytes; c++) {
                int64_t i = ra_layout_position(layout, rank % P, a);
                EXPECT(shard[((b * n) + a) * bytes + c] == byte_of(row, i, c),
                       "row %" PRId64 " position %" PRId64 " byte %" PRId64, row, i, c);
            }
        b++;
    }
    return b;
}

/* There, and back again. */
static void round_trip(struct ra_layout layout, int64_t bytes, int pattern)
{
    int64_t N = layout.length, rows = rows_of(pattern, rank), total = first_of(pattern, ranks);
    struct ra_batch *batch = create(layout, bytes, rows);
    if (!batch)
        return;
    int64_t n = ra_layout_rows(layout, rank % layout.ranks), whole = rows * N * bytes;
    int64_t shard_bytes = batch->set_rows * n * bytes;
    unsigned char *given = poisoned(whole), *back = poisoned(whole), *shard = poisoned(shard_bytes);
    for (int64_t e = 0; e < whole; e++)
        given[e] = byte_of(first_of(pattern, rank) + e / bytes / N, e / bytes % N, e % bytes);

    char error[RA_ERROR_SIZE];
    tokens_sent = tokens_received = 0;
    EXPECT(ra_batch_shard(batch, given, shard, error) == RA_OK, "%s", error);
    int64_t b = check_shard(shard, layout, total, bytes);
    EXPECT(batch->rows == rows && batch->first == first_of(pattern, rank) && batch->total == total,
           "%" PRId64 " of %" PRId64, batch->first, batch->total);
    EXPECT(batch->set == rank / layout.ranks && batch->set_rows == b && batch->length == n,
           "set %d: %" PRId64 " rows of %" PRId64, batch->set, batch->set_rows, batch->length);

    /* What a rank sends is its rows, and what it gets its shard: nothing goes to whom it is not
     * for. */
    EXPECT(tokens_sent == rows * N && tokens_received == b * n, "%" PRId64 " and %" PRId64,
           tokens_sent, tokens_received);
    EXPECT(ra_batch_unshard(batch, shard, back, error) == RA_OK, "%s", error);
    EXPECT(memcmp(given, back, (size_t)whole) == 0, "%" PRId64 " rows do not come back", rows);
    ra_batch_destroy(batch);
    release(given, whole);
    release(back, whole);
    release(shard, shard_bytes);
}

/* Every layout: contiguous, striped with one stripe and with several, zigzag. */
static const struct {
    const char *name;
    int kind;
    int64_t bucket;
} layouts[] = {{"contiguous", RA_CONTIGUOUS, 0},
               {"striped", RA_STRIPED, 0},
               {"striped by 2", RA_STRIPED, 2},
               {"zigzag", RA_ZIGZAG, 0}};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

static void test_round_trips(void)
{
    static const int64_t lengths[] = {0, 1, 5, 31, 32}, widths[] = {4, 1, 12};
    for (int P = 1; P <= ranks; P++)
        for (int l = 0; l < LAYOUTS && ranks % P == 0; l++) {
            bytes_shared = 0;
            for (int pattern = 0; pattern < PATTERNS; pattern++)
                for (int i = 0; i < 5; i++)
                    round_trip(layout_of(layouts[l].kind, P, lengths[i], layouts[l].bucket),
                               widths[(i + pattern) % 3], pattern);
            EXPECT(bytes_shared <= 8 * 5 * PATTERNS, "%" PRId64 " bytes shared", bytes_shared);
            verdict("round trips, rings of %d, %s", P, layouts[l].name);
        }
}

/* <Ax, y> = <x, A'y> for activations of 3 doubles per token. All numbers are small integers, so
 * that sums are exact and the two are equal. */
static void test_adjoint(void)
{
    enum { D = 3, N = 31 };
    for (int P = 1; P <= ranks; P++)
        for (int l = 0; l < LAYOUTS && ranks % P == 0; l++)
            for (int pattern = 0; pattern < PATTERNS; pattern++) {
                struct ra_layout layout = layout_of(layouts[l].kind, P, N, layouts[l].bucket);
                int64_t rows = rows_of(pattern, rank), at = first_of(pattern, rank);
                struct ra_batch *batch = create(layout, D * sizeof(double), rows);
                if (!batch)
                    continue;
                int64_t numbers = rows * N * D, own = batch->set_rows * batch->length * D;
                double *x = (double *)poisoned(8 * numbers),
                       *back = (double *)poisoned(8 * numbers);
                double *y = (double *)poisoned(8 * own), *ax = (double *)poisoned(8 * own);
                for (int64_t e = 0; e < numbers; e++)
                    x[e] = byte_of(at, e, 1) - 128;
                for (int64_t e = 0; e < own; e++)
                    y[e] = byte_of(rank, e, 2) - 128;
                char error[RA_ERROR_SIZE];
                EXPECT(ra_batch_shard(batch, x, ax, error) == RA_OK, "%s", error);
                EXPECT(ra_batch_unshard(batch, y, back, error) == RA_OK, "%s", error);
                double products[2] = {0, 0};
                for (int64_t e = 0; e < own; e++)
                    products[0] += ax[e] * y[e];
                for (int64_t e = 0; e < numbers; e++)
                    products[1] += x[e] * back[e];
                MPI_Request request;
                PMPI_Iallreduce(MPI_IN_PLACE, products, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD,
                                &request);
                verdict_await(request);
                EXPECT(products[0] == products[1], "rings of %d, %s: <Ax, y> = %g, <x, A'y> = %g",
                       P, layouts[l].name, products[0], products[1]);
                EXPECT(products[0] != 0 || first_of(pattern, ranks) == 0, "a sum of nothing");
                ra_batch_destroy(batch);
                release((unsigned char *)x, 8 * numbers);
                release((unsigned char *)back, 8 * numbers);
                release((unsigned char *)y, 8 * own);
                release((unsigned char *)ax, 8 * own);
            }
    verdict("adjoint");
}

/* One plan, many calls, larger messages: more than MPI sends at once. */
static void test_large(void)
{
    enum { BYTES = 1 << 12, N = 301 };
    struct ra_batch *batch = create(layout_of(RA_ZIGZAG, ranks, N, 0), BYTES, 1 + rank % 2);
    if (batch) {
        int64_t whole = batch->rows * N * BYTES;
        int64_t shard_bytes = batch->set_rows * batch->length * BYTES;
        unsigned char *given = poisoned(whole), *back = poisoned(whole);
        unsigned char *shard = poisoned(shard_bytes);
        for (int round = 0; round < 3; round++) {
            char error[RA_ERROR_SIZE];
            for (int64_t e = 0; e < whole; e++)
                given[e] = byte_of(batch->first + e / BYTES / N, e / BYTES % N + round, e % BYTES);
            EXPECT(ra_batch_shard(batch, given, shard, error) == RA_OK, "%s", error);
            EXPECT(ra_batch_unshard(batch, shard, back, error) == RA_OK, "%s", error);
            EXPECT(memcmp(given, back, (size_t)whole) == 0, "round %d", round);
        }
        release(given, whole);
        release(back, whole);
        release(shard, shard_bytes);
    }
    ra_batch_destroy(batch);
    verdict("large");
}

/* ---- Misuse: the same status and the same text on all ranks. */

static void refused(enum ra_status expected, const char *words, struct ra_layout layout,
                    int64_t token_bytes, int64_t rows)
{
    struct ra_batch *batch = (struct ra_batch *)&rows;
    char error[RA_ERROR_SIZE] = "", first[RA_ERROR_SIZE];
    enum ra_status status =
        ra_batch_create(&batch, MPI_COMM_WORLD, layout, token_bytes, rows, patience, error);
    EXPECT(status == expected && strstr(error, words), "%d, \"%s\", without \"%s\"", status, error,
           words);
    EXPECT(batch == NULL, "a batch");
    ra_batch_destroy(batch);
    memcpy(first, error, sizeof first);
    PMPI_Bcast(first, sizeof first, MPI_CHAR, 0, MPI_COMM_WORLD);
    EXPECT(strcmp(first, error) == 0, "rank 0 has \"%s\", this one \"%s\"", first, error);
}

static void test_misuse(void)
{
    bool last = rank == ranks - 1;
    struct ra_layout good = layout_of(RA_STRIPED, ranks, 31, 0), bad = good;
    static const int sizes[] = {0, -1, INT_MIN};
    for (int c = 0; c < 3; c++) {
        bad.ranks = sizes[c];
        refused(RA_INVALID, "layout.ranks = ", bad, 4, 1);
    }
    for (int P = 2; P <= 2 * ranks; P++) {
        bad.ranks = P;
        if (ranks % P != 0)
            refused(RA_INVALID, "give a ring size that divides", bad, 4, 1);
    }
    bad = good;
    bad.length = -1;
    refused(RA_INVALID, "layout.length = -1", bad, 4, 1);
    bad.length = INT64_MAX;
    refused(RA_INVALID, "more than INT_MAX tokens", bad, 4, 1);
    bad.length = 1 << 16;
    refused(RA_INVALID, "more than INT_MAX tokens", bad, 4, last ? 1 << 15 : 0);
    bad = good;
    bad.kind = (enum ra_layout_kind)7;
    refused(RA_INVALID, "layout.kind = 7", bad, 4, 1);
    bad = good;
    bad.stripes = 0;
    refused(RA_INVALID, "layout.stripes = 0", bad, 4, 1);
    refused(RA_INVALID, "token_bytes = 0", good, 0, 1);
    refused(RA_INVALID, "token_bytes = 2147483648", good, INT64_C(1) << 31, 1);
    refused(RA_INVALID, "rows = -1", good, 4, last ? -1 : 1);
    refused(RA_INVALID, "rows = 2147483648", good, 4, rank == 0 ? INT64_C(1) << 31 : 1);

    /* Rows of one token: those of no rank are too many, but those of a shard. */
    if (ranks > 2) {
        bad = layout_of(RA_CONTIGUOUS, ranks, 1, 0);
        refused(RA_INVALID, "more than INT_MAX tokens of a shard", bad, 1,
                (1 << 30) - 1 + (1 << 29));
    }

    /* Without room for what one rank sends, nobody can. */
    bad = good;
    bad.length = INT_MAX;
    refused(RA_OUT_OF_MEMORY, "no memory", bad, INT_MAX, last ? 1 : 0);
    verdict("misuse");
}

static void test_disagreement(void)
{
    for (int odd = 0; odd < ranks && ranks > 1; odd += ranks - 1) {
        bool differs = rank == odd;
        struct ra_layout good = layout_of(RA_STRIPED, ranks, 31, 0), bad = good;
        refused(RA_DISAGREEMENT, "disagree about token_bytes", good, differs ? 8 : 4, 1);
        bad.length = differs ? 32 : 31;
        refused(RA_DISAGREEMENT, "disagree about layout.length: one has 31, another 32", bad, 4, 1);
        bad.length = differs ? -1 : 31;
        refused(RA_DISAGREEMENT, "disagree about layout.length", bad, 4, 1);
        bad.length = differs ? INT64_MIN : INT64_MAX;
        refused(RA_DISAGREEMENT, "disagree about layout.length", bad, 4, 0);
        bad = good;
        bad.ranks = differs ? 1 : ranks;
        refused(RA_DISAGREEMENT, "disagree about layout.ranks", bad, 4, 1);
        bad = good;
        bad.kind = differs ? RA_ZIGZAG : RA_CONTIGUOUS;
        refused(RA_DISAGREEMENT, "disagree about layout.kind", bad, 4, 1);
        bad = good;
        bad.stripes = differs ? 2 : 1;
        refused(RA_DISAGREEMENT, "disagree about layout.stripes", bad, 4, 1);

        /* Stripes of what has none do not count. */
        bad.kind = RA_ZIGZAG;
        bad.stripes = differs ? 0 : 7;
        struct ra_batch *batch = create(bad, 4, 1);
        ra_batch_destroy(batch);
    }
    verdict("disagreement");
}

/* One rank cannot take part in a call: all learn so at once, in the same words, and can go on. */
static void expect_refused(enum ra_status status, const char *error, enum ra_status expected,
                           const char *words)
{
    char first[RA_ERROR_SIZE];
    memcpy(first, error, sizeof first);
    PMPI_Bcast(first, sizeof first, MPI_CHAR, 0, MPI_COMM_WORLD);
    EXPECT(status == expected && strstr(error, words) == error, "%d, \"%s\", not \"%s\"", status,
           error, words);
    EXPECT(strcmp(first, error) == 0, "rank 0 has \"%s\", this one \"%s\"", first, error);
}

static void test_one_refuses(void)
{
    enum { N = 31 };
    struct ra_batch *batch = create(layout_of(RA_ZIGZAG, 1, N, 0), 1, 1);
    if (!batch)
        return;
    unsigned char *rows = poisoned(N), *shard = poisoned(N), *back = poisoned(N);
    for (int64_t i = 0; i < N; i++)
        rows[i] = byte_of(rank, i, 0);
    for (int odd = 0; odd < ranks; odd++) {
        bool refuses = rank == odd;
        char words[80], error[RA_ERROR_SIZE] = "";
        double start = ra_seconds();
        snprintf(words, sizeof words, "rank %d: rows is NULL: give 1 rows of 31 tokens", odd);
        expect_refused(ra_batch_shard(batch, refuses ? NULL : rows, shard, error), error,
                       RA_INVALID, words);
        expect_refused(ra_batch_unshard(batch, shard, refuses ? NULL : back, error), error,
                       RA_INVALID, words);
        snprintf(words, sizeof words, "rank %d: shard is NULL: give room for 1 rows of 31", odd);
        expect_refused(ra_batch_shard(batch, rows, refuses ? NULL : shard, error), error,
                       RA_INVALID, words);
        for (int64_t i = 0; i < N; i++)
            EXPECT(shard[i] == POISON && back[i] == POISON, "byte %" PRId64 " is written", i);

        /* Of two, the first rank speaks. */
        snprintf(error, sizeof error, "text %d", rank);
        snprintf(words, sizeof words, "rank %d: text %d", odd, odd);
        expect_refused(ra_batch_agree(batch, rank >= odd ? RA_OUT_OF_MEMORY : RA_OK, error), error,
                       RA_OUT_OF_MEMORY, words);
        EXPECT(ra_seconds() - start < patience / 2, "they waited");
    }
    char error[RA_ERROR_SIZE];
    EXPECT(ra_batch_agree(batch, RA_OK, error) == RA_OK, "%s", error);
    EXPECT(ra_batch_agree(NULL, RA_OK, error) == RA_INVALID && strstr(error, "batch is NULL"), "%s",
           error);
    EXPECT(ra_batch_shard(batch, rows, shard, error) == RA_OK, "%s", error);
    EXPECT(ra_batch_unshard(batch, shard, back, error) == RA_OK, "%s", error);
    EXPECT(memcmp(rows, back, N) == 0, "rows do not come back");
    ra_batch_destroy(batch);
    release(rows, N);
    release(shard, N);
    release(back, N);
    verdict("one refuses");
}

/* ---- A rank that does not come, in communicators that nobody uses again. */

/* Does the error say how long for what, and that the last rank is missing? On a busy machine others
 * may be missing, too. */
static bool names_last(const char *error, const char *what)
{
    char waited[80], last[40];
    snprintf(waited, sizeof waited, "waited 0.5 s for %s: rank", what);
    snprintf(last, sizeof last, " %d ha", ranks - 1);
    return strstr(error, waited) && strstr(error, last) && strstr(error, " not come");
}

static void test_lost(void)
{
    char error[RA_ERROR_SIZE] = "";
    bool late = rank == ranks - 1;
    struct ra_layout layout = layout_of(RA_CONTIGUOUS, ranks, 2 * ranks, 0);
    struct ra_batch *batch = NULL;
    MPI_Comm comm;
    PMPI_Comm_dup(MPI_COMM_WORLD, &comm);

    /* These arrays stay. */
    static int32_t rows[64], shard[64];
    EXPECT(ra_batch_create(&batch, comm, layout, 4, 1, patience, error) == RA_OK, "%s", error);
    if (batch && !late) {
        batch->timeout = soon;
        for (int call = 0; call < 3; call++) {
            double start = ra_seconds();
            enum ra_status status = call == 1 ? ra_batch_unshard(batch, shard, rows, error)
                                              : ra_batch_shard(batch, rows, shard, error);
            EXPECT(status == RA_LOST, "call %d: status %d", call, status);
            EXPECT(call == 0 ? names_last(error, "what other ranks say")
                             : strstr(error, "in an earlier call") != NULL,
                   "%s", error);
            EXPECT(ra_seconds() - start < 30, "%g s", ra_seconds() - start);
        }
        ra_batch_destroy(batch);
    }
    if (late)
        ra_batch_destroy(batch);
    verdict("lost in a call");
}

static void test_lost_in_create(void)
{
    char error[RA_ERROR_SIZE] = "";
    struct ra_batch *batch = NULL;
    MPI_Comm comm;
    PMPI_Comm_dup(MPI_COMM_WORLD, &comm);
    if (ranks > 1 && rank != ranks - 1) {
        struct ra_layout layout = layout_of(RA_CONTIGUOUS, ranks, 2 * ranks, 0);
        enum ra_status status = ra_batch_create(&batch, comm, layout, 4, 1, soon, error);
        EXPECT(status == RA_LOST && batch == NULL, "status %d", status);
        EXPECT(names_last(error, "sizes of a batch"), "%s", error);
    }
    verdict("lost in create");
}

int main(int argc, char **argv)
{
    verdict_begin_ranks(argc, argv, patience, &rank, &ranks, NULL);
    static const struct verdict_test tests[] = {{"round trips", test_round_trips},
                                                {"adjoint", test_adjoint},
                                                {"large", test_large},
                                                {"misuse", test_misuse},
                                                {"disagreement", test_disagreement},
                                                {"one refuses", test_one_refuses},
                                                {"lost in create", test_lost_in_create},
                                                {"lost in a call", test_lost}};
    for (int t = 0; t < 8; t++) {
        if (!verdict_wants("%s", tests[t].name))
            continue;
        verdict_state.test = tests[t].name;
        if (t == 6) {
            EXPECT(types == 0, "%d types are left", types);
            verdict("all freed");
        }
        tests[t].run();
    }
    int code = verdict_end();
    MPI_Finalize();
    return code;
}
