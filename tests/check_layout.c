/* check_layout: every layout against its definition, position by position; and the fold of one
 * rank's keys into another's queries.
 *
 * The reference here asks of each position whether it belongs to a part of a rank, and lists those
 * that do. It knows no spans. Every test in a loop runs once for each layout in `layouts`.
 */
#include "ra_layout.h"
#include "suite.h"
#include <stdbool.h>
#include <string.h>

/* Lengths 0..LENGTH, ranks 1..RANKS, rows of up to ROW_BYTES. */
enum { LENGTH = 40, RANKS = 6, ROW_BYTES = 12 };

static const struct {
    enum ra_layout_kind kind;
    int64_t bucket; /* striped only */
} layouts[] = {{RA_CONTIGUOUS, 0}, {RA_ZIGZAG, 0},  {RA_STRIPED, 0}, {RA_STRIPED, 1},
               {RA_STRIPED, 2},    {RA_STRIPED, 3}, {RA_STRIPED, 7}, {RA_STRIPED, 1000}};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

static struct ra_layout make(int n, int ranks, int64_t length)
{
    struct ra_layout layout = {layouts[n].kind, ranks, length, 0, NULL};
    /* The other kinds do not look at stripes. */
    if (layout.kind == RA_STRIPED)
        layout.stripes = ra_layout_stripes(ranks, length, layouts[n].bucket);
    return layout;
}

/* Fails the test and names the case. Unlike ck_assert it costs nothing when all is well: there are
 * many cases. */
static void wrong(const char *what, struct ra_layout layout, int rank, int64_t at)
{
    static const char *const names[] = {
        [RA_CONTIGUOUS] = "contiguous", [RA_STRIPED] = "striped", [RA_ZIGZAG] = "zigzag"};
    ck_abort_msg("%s: %s, %d ranks, length %d, stripes %d: rank %d, at %d", what,
                 names[layout.kind], layout.ranks, (int)layout.length, (int)layout.stripes, rank,
                 (int)at);
}

/* Rows of a run when a sequence is cut into so many runs: the fewest that suffice. */
static int64_t run_of(int64_t length, int64_t runs)
{
    int64_t rows = 0;
    while (rows * runs < length)
        rows++;
    return rows;
}

/* Is the position in this part of the rank's rows? A contiguous rank has one part, a zigzag rank
 * two, a striped rank one for each stripe. */
static bool holds(struct ra_layout layout, int rank, int64_t part, int64_t position)
{
    int64_t P = layout.ranks, N = layout.length;
    switch (layout.kind) {
    case RA_CONTIGUOUS:
        return position / run_of(N, P) == rank;
    case RA_ZIGZAG:
        return position / run_of(N, 2 * P) == (part == 0 ? rank : 2 * P - 1 - rank);
    case RA_STRIPED:
        return position % (P * layout.stripes) == rank * layout.stripes + part;
    default:
        return false;
    }
}

static int64_t parts(struct ra_layout layout)
{
    return layout.kind == RA_STRIPED ? layout.stripes : layout.kind == RA_ZIGZAG ? 2 : 1;
}

/* Writes the positions of a rank's rows, in order; returns how many. */
static int64_t list(struct ra_layout layout, int rank, int64_t *positions)
{
    int64_t rows = 0;
    for (int64_t part = 0; part < parts(layout); part++)
        for (int64_t position = 0; position < layout.length; position++)
            if (holds(layout, rank, part, position))
                positions[rows++] = position;
    return rows;
}

/* Which row where, and where which row: the same answer from every function, and every position
 * has exactly one place. */
static void judge_places(struct ra_layout layout)
{
    int held[LENGTH] = {0};
    for (int rank = 0; rank < layout.ranks; rank++) {
        int64_t want[LENGTH], rows = list(layout, rank, want), row = -1;
        if (ra_layout_rows(layout, rank) != rows)
            wrong("rows", layout, rank, rows);
        for (int64_t a = 0; a < rows; a++) {
            held[want[a]]++;
            if (ra_layout_position(layout, rank, a) != want[a])
                wrong("position", layout, rank, a);
            if (ra_layout_find(layout, want[a], &row) != rank || row != a)
                wrong("find", layout, rank, a);
        }

        /* The spans, one after the other, are the same list. */
        int64_t a = 0;
        if (ra_layout_spans(layout) != parts(layout))
            wrong("number of spans", layout, rank, parts(layout));
        for (int64_t s = 0; s < ra_layout_spans(layout); s++) {
            struct ra_span span = ra_layout_span(layout, rank, s);
            if (span.stride < 1 || span.count < 0 || a + span.count > rows)
                wrong("span", layout, rank, s);
            for (int64_t i = 0; i < span.count; i++, a++)
                if (span.first + i * span.stride != want[a])
                    wrong("row of a span", layout, rank, a);
        }
        if (a != rows)
            wrong("sum of the spans", layout, rank, a);
    }
    for (int64_t position = 0; position < layout.length; position++)
        if (held[position] != 1)
            wrong("held by exactly one", layout, held[position], position);

    /* Positions that are not in the sequence. */
    for (int64_t beyond = 1; beyond <= LENGTH; beyond++) {
        int64_t row;
        if (ra_layout_find(layout, -beyond, &row) != -1 ||
            ra_layout_find(layout, layout.length - 1 + beyond, &row) != -1)
            wrong("find outside", layout, -1, beyond);
    }
}

TESTS(every_row_has_one_place, 0, LAYOUTS)
{
    for (int ranks = 1; ranks <= RANKS; ranks++)
        for (int64_t length = 0; length <= LENGTH; length++)
            judge_places(make(_i, ranks, length));
}

/* Bytes of data differ from row to row and are never POISON, which as a float is NaN. */
enum { POISON = 0xFF, GUARD = 64, BYTES = LENGTH * ROW_BYTES };

static unsigned char data(int64_t position, int64_t byte)
{
    return (unsigned char)((31 * position + 7 * byte) % 251);
}

static bool is_poison(const unsigned char *bytes, int64_t count)
{
    for (int64_t e = 0; e < count; e++)
        if (bytes[e] != POISON)
            return false;
    return true;
}

static bool is_row(const unsigned char *bytes, int64_t row_bytes, int64_t position)
{
    for (int64_t e = 0; e < row_bytes; e++)
        if (bytes[e] != data(position, e))
            return false;
    return true;
}

/* Takes every rank's rows out of the whole and puts them back into an empty one. Between poisoned
 * guards, and rank by rank: what a rank does not hold must stay poisoned. */
static void judge_copies(struct ra_layout layout, int64_t row_bytes)
{
    unsigned char before[GUARD + BYTES + GUARD], after[GUARD + BYTES + GUARD];
    unsigned char shard[GUARD + BYTES + GUARD];
    unsigned char *whole = before + GUARD, *local = shard + GUARD, *again = after + GUARD;
    int64_t bytes = layout.length * row_bytes;
    bool back[LENGTH] = {false};
    memset(before, POISON, sizeof before);
    memset(after, POISON, sizeof after);
    for (int64_t e = 0; e < bytes; e++)
        whole[e] = data(e / row_bytes, e % row_bytes);

    for (int rank = 0; rank < layout.ranks; rank++) {
        int64_t want[LENGTH], rows = list(layout, rank, want), used = rows * row_bytes;
        memset(shard, POISON, sizeof shard);
        ra_layout_shard(layout, rank, row_bytes, whole, local);
        for (int64_t a = 0; a < rows; a++)
            if (!is_row(local + a * row_bytes, row_bytes, want[a]))
                wrong("shard", layout, rank, a);
        if (!is_poison(shard, GUARD) || !is_poison(local + used, BYTES + GUARD - used))
            wrong("shard writes outside", layout, rank, rows);

        ra_layout_unshard(layout, rank, row_bytes, local, again);
        for (int64_t a = 0; a < rows; a++)
            back[want[a]] = true;
        for (int64_t i = 0; i < layout.length; i++) {
            const unsigned char *row = again + i * row_bytes;
            if (back[i] ? !is_row(row, row_bytes, i) : !is_poison(row, row_bytes))
                wrong("unshard", layout, rank, i);
        }
        if (!is_poison(after, GUARD) || !is_poison(again + bytes, BYTES + GUARD - bytes))
            wrong("unshard writes outside", layout, rank, rows);
    }
    if (memcmp(before, after, sizeof before) != 0)
        wrong("shard, then unshard", layout, -1, row_bytes);
}

TESTS(shard_then_unshard_changes_nothing, 0, LAYOUTS)
{
    static const int64_t row_bytes[] = {1, 4, ROW_BYTES};
    for (int ranks = 1; ranks <= RANKS; ranks++)
        for (int64_t length = 0; length <= LENGTH; length++)
            for (int n = 0; n < 3; n++)
                judge_copies(make(_i, ranks, length), row_bytes[n]);
}

/* Queries and keys of different lengths in the same number of stripes: span for span the same
 * stride, without which there is no band between them. */
TESTS(same_stripes_same_strides, 0, LAYOUTS)
{
    for (int ranks = 1; ranks <= RANKS; ranks++)
        for (int64_t N = 0; N <= LENGTH; N++)
            for (int64_t M = N; M <= LENGTH; M++) {
                struct ra_layout queries = make(_i, ranks, N), keys = make(_i, ranks, M);
                queries.stripes = keys.stripes;
                judge_places(queries);
                if (ra_layout_spans(queries) != ra_layout_spans(keys))
                    wrong("spans of the longer", keys, -1, N);
                int64_t stride = ra_layout_span(keys, 0, 0).stride;
                for (int rank = 0; rank < ranks; rank++)
                    for (int64_t s = 0; s < ra_layout_spans(keys); s++)
                        if (ra_layout_span(queries, rank, s).stride != stride ||
                            ra_layout_span(keys, rank, s).stride != stride)
                            wrong("strides", queries, rank, M);
            }
}

/* The fewest stripes per rank whose longest, the first, has no more rows than the bucket. */
TEST(stripes_fit_the_bucket)
{
    for (int ranks = 1; ranks <= RANKS; ranks++)
        for (int64_t length = 0; length <= LENGTH; length++) {
            ck_assert_int_eq(ra_layout_stripes(ranks, length, 0), 1);
            for (int64_t bucket = 1; bucket <= LENGTH + 2; bucket++) {
                int64_t stripes = 1;
                while (run_of(length, ranks * stripes) > bucket)
                    stripes++;
                ck_assert_int_eq(ra_layout_stripes(ranks, length, bucket), stripes);
            }
        }
}

/* The slots of the original, `b (i j) d -> b (j i) d` with i the bucket, are the ranks' rows, one
 * rank after the other. Without a bucket rank r has the positions r, r + P, r + 2P, ... */
TEST(striped_slots)
{
    for (int P = 1; P <= RANKS; P++)
        for (int64_t bucket = 1; bucket <= 5; bucket++)
            for (int64_t stripes = 1; stripes <= 4; stripes++) {
                int64_t J = P * stripes, length = bucket * J, slots[5 * RANKS * 4];
                for (int64_t i = 0; i < bucket; i++)
                    for (int64_t j = 0; j < J; j++)
                        slots[j * bucket + i] = i * J + j;

                ck_assert_int_eq(ra_layout_stripes(P, length, bucket), stripes);
                struct ra_layout layout = {RA_STRIPED, P, length, stripes, NULL};
                for (int64_t slot = 0; slot < length; slot++) {
                    int64_t rows = length / P;
                    ck_assert_int_eq(ra_layout_position(layout, (int)(slot / rows), slot % rows),
                                     slots[slot]);
                }

                layout.stripes = ra_layout_stripes(P, length, 0);
                for (int64_t a = 0; a < length / P; a++)
                    ck_assert_int_eq(ra_layout_position(layout, P - 1, a), a * P + P - 1);
            }
}

/* Gathered stripes, those of all ranks, are a layout of one rank that any rank may ask: the rows of
 * rank 0 come first, in its order, then those of rank 1. */
TEST(gathered_stripes)
{
    for (int P = 1; P <= RANKS; P++)
        for (int64_t stripes = 1; stripes <= 3; stripes++)
            for (int64_t length = 0; length <= LENGTH; length++) {
                struct ra_layout layout = {RA_STRIPED, P, length, stripes, NULL};
                struct ra_layout all = {RA_STRIPED, 1, length, P * stripes, NULL};
                int64_t row = 0;
                for (int r = 0; r < P; r++)
                    for (int64_t a = 0; a < ra_layout_rows(layout, r); a++, row++)
                        for (int asks = 0; asks < P; asks++)
                            ck_assert_int_eq(ra_layout_position(all, asks, row),
                                             ra_layout_position(layout, r, a));
                for (int asks = 0; asks < P; asks++)
                    ck_assert_int_eq(ra_layout_rows(all, asks), length);
            }
}

/* Sixteen rows in buckets of two: slots hold 0, 8, 1, 9, ... whatever the number of ranks. */
TEST(sixteen_rows_in_buckets_of_two)
{
    static const int want[] = {0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15};
    for (int P = 1; P <= 8; P *= 2) {
        struct ra_layout layout = {RA_STRIPED, P, 16, ra_layout_stripes(P, 16, 2), NULL};
        for (int slot = 0; slot < 16; slot++) {
            int rows = 16 / P;
            ck_assert_int_eq(ra_layout_position(layout, slot / rows, slot % rows), want[slot]);
        }
    }
}

/* The positions that a rank holds, as written down by hand; -1 ends them. */
static void holds_exactly(struct ra_layout layout, int rank, const int *want)
{
    int rows = 0;
    for (; want[rows] >= 0; rows++)
        ck_assert_int_eq(ra_layout_position(layout, rank, rows), want[rows]);
    ck_assert_int_eq(ra_layout_rows(layout, rank), rows);
}

#define HOLDS(layout, rank, ...) holds_exactly(layout, rank, (const int[]){__VA_ARGS__, -1})

TEST(examples)
{
    /* The first ranks get ceil(N / P) rows, the last what is left, perhaps nothing. */
    struct ra_layout contiguous = {RA_CONTIGUOUS, 3, 7, 0, NULL};
    HOLDS(contiguous, 0, 0, 1, 2);
    HOLDS(contiguous, 1, 3, 4, 5);
    HOLDS(contiguous, 2, 6);
    contiguous.length = 4;
    HOLDS(contiguous, 1, 2, 3);
    ck_assert_int_eq(ra_layout_rows(contiguous, 2), 0);

    /* Chunks r and 2P - 1 - r; of 13 rows in 6 chunks the fifth has one and the sixth none. */
    struct ra_layout zigzag = {RA_ZIGZAG, 4, 16, 0, NULL};
    HOLDS(zigzag, 0, 0, 1, 14, 15);
    HOLDS(zigzag, 3, 6, 7, 8, 9);
    zigzag = (struct ra_layout){RA_ZIGZAG, 3, 13, 0, NULL};
    HOLDS(zigzag, 0, 0, 1, 2);
    HOLDS(zigzag, 1, 3, 4, 5, 12);
    HOLDS(zigzag, 2, 6, 7, 8, 9, 10, 11);

    /* Ten rows, two ranks, two stripes each: four stripes, of 3, 3, 2 and 2 rows. */
    struct ra_layout striped = {RA_STRIPED, 2, 10, 2, NULL};
    HOLDS(striped, 0, 0, 4, 8, 1, 5, 9);
    HOLDS(striped, 1, 2, 6, 3, 7);
}

/* ---- Folding one rank's keys into another's queries. */

enum { DIM = 14, TILE_QUERIES = 3, TILE_KEYS = 4 };

/* With q = k = 0 every visible key has the weight 1; when the value of the key at position j is 1
 * in column j and 0 elsewhere, the carry o shows who saw whom, and how often. */
static void judge_fold(struct ra_layout queries, int rank, struct ra_layout keys, int origin,
                       bool causal, int64_t lookback)
{
    float zeros[DIM * DIM] = {0}, v[DIM * DIM] = {0}, o[DIM * DIM], comp[DIM * DIM], max[DIM];
    float workspace[3 * DIM * DIM];
    double sum[DIM];
    int64_t query_positions[LENGTH], key_positions[LENGTH];
    struct ra_queries rows = {.rows = list(queries, rank, query_positions),
                              .stride = {DIM, DIM, DIM, DIM, DIM},
                              .q = zeros,
                              .o = o,
                              .comp = comp,
                              .max = max,
                              .sum = sum};
    struct ra_keys seen = {.rows = list(keys, origin, key_positions),
                           .stride = {DIM, DIM, DIM, DIM, DIM, DIM},
                           .k = zeros,
                           .v = v};
    for (int64_t b = 0; b < seen.rows; b++)
        v[b * DIM + key_positions[b]] = 1;

    struct ra_fold fold = {.dims = RA_DIMS(DIM),
                           .tile = ra_tile_forward,
                           .score = {.scale = 1},
                           .tile_queries = TILE_QUERIES,
                           .tile_keys = TILE_KEYS,
                           .workspace = workspace};
    ck_assert(ra_tile_workspace(TILE_QUERIES, TILE_KEYS, RA_DIMS(DIM)) <= 3 * DIM * DIM);
    ra_tile_begin(RA_DIMS(DIM), &rows);
    struct ra_shard_pair shards = {queries, keys, rank, origin, causal, lookback};
    ra_layout_fold(&fold, &shards, &rows, &seen);

    for (int64_t a = 0; a < rows.rows; a++) {
        float want[DIM] = {0};
        for (int64_t b = 0; b < seen.rows; b++) {
            int64_t back = query_positions[a] + keys.length - queries.length - key_positions[b];
            bool near = lookback >= RA_BAND_FAR || back <= lookback;
            want[key_positions[b]] = !causal || (back >= 0 && near);
        }
        for (int c = 0; c < DIM; c++)
            if (o[a * DIM + c] != want[c])
                wrong("fold", queries, rank, query_positions[a]);
    }
}

TESTS(fold, 0, LAYOUTS)
{
    static const int64_t lengths[] = {0, 1, 2, 5, 7, 12, DIM};
    static const int64_t lookbacks[] = {0, 1, 2, 3, 6, 7, DIM, RA_BAND_FAR, INT64_MAX};
    for (int P = 1; P <= RANKS; P++)
        for (int n = 0; n < 7; n++)
            for (int m = 0; m < 7; m++) {
                /* The longer of the two says how many stripes both have. */
                struct ra_layout queries = make(_i, P, lengths[n]);
                struct ra_layout keys = make(_i, P, lengths[m]);
                queries.stripes = keys.stripes = (n > m ? queries : keys).stripes;
                for (int rank = 0; rank < P; rank++)
                    for (int origin = 0; origin < P; origin++) {
                        for (int L = 0; L < 9; L++)
                            judge_fold(queries, rank, keys, origin, true, lookbacks[L]);
                        judge_fold(queries, rank, keys, origin, false, RA_BAND_FAR);
                    }
            }
}

int main(void)
{
    return suite_main("layout", 60);
}
