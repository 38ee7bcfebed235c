/* ra_layout: which rank holds which rows of a sequence.
 *
 * Chapter 05. Contiguous, striped (with any bucket) and zigzag, each as a list of spans per rank.
 * Everything follows from a few numbers that all ranks know, so any rank can tell the rows of any
 * other: lengths need not divide, and messages need no headers.
 */
#ifndef RA_LAYOUT_H
#define RA_LAYOUT_H

#include "ra_band.h"
#include "ra_config.h"
#include "ra_span.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A run of neighbouring rows of one rank: they begin at row `first` of the whole, and there at
 * local row `row`. */
struct ra_run {
    int64_t first, count, row;
    int rank;
};

/* A layout that is a list: who made it owns it. */
struct ra_layout_list {
    int64_t count, spans, rows; /* runs in all; of the rank that has the most: spans, and rows */
    struct ra_run *run;         /* (count), in order: each begins where the one before ends */
    int64_t *span;  /* (count): numbers of runs, those of rank 0 first; each a span of its rank */
    int64_t *first; /* (ranks + 1): where the numbers of each rank begin in `span` */
};

struct ra_layout {
    enum ra_layout_kind kind;
    int ranks;                         /* P >= 1; 1, not dealt: any rank has all rows */
    int64_t length;                    /* rows of the whole sequence, N >= 0 */
    int64_t stripes;                   /* striped only: stripes of one rank, f >= 1 */
    const struct ra_layout_list *list; /* dealt only */
};

/* Counts the stripes that a rank needs so that none has more than `bucket` rows (bucket 0: one
 * stripe, however long). Queries and keys of different lengths must have the same number. */
int64_t ra_layout_stripes(int ranks, int64_t length, int64_t bucket);

/* Returns the layout that a config asks for, of queries or keys of this length, on the ring_size
 * ranks of its ring. Queries and keys have the same number of stripes, that of the queries. */
struct ra_layout ra_layout_of(const struct ra_config *config, int64_t length);

/* Counts the spans of a rank, of which all ranks have as many. */
int64_t ra_layout_spans(struct ra_layout layout);

/* Returns span s of a rank, which may be empty. Local rows are numbered through the spans in
 * order. */
struct ra_span ra_layout_span(struct ra_layout layout, int rank, int64_t s);

/* Finds the span of a rank that has local row a, 0 <= a < ra_layout_rows, and writes which row of
 * the span that is. */
int64_t ra_layout_span_at(struct ra_layout layout, int rank, int64_t a, int64_t *offset);

/* Counts the local rows that lie before span s of a rank. */
int64_t ra_layout_rows_before(struct ra_layout layout, int rank, int64_t s);

/* Counts the rows of a rank. */
int64_t ra_layout_rows(struct ra_layout layout, int rank);

/* Counts the rows of the rank that has the most. */
int64_t ra_layout_most_rows(struct ra_layout layout);

/* Returns which row of the whole is local row a of this rank, 0 <= a < ra_layout_rows. */
int64_t ra_layout_position(struct ra_layout layout, int rank, int64_t a);

/* Finds row `position` of the whole: returns the rank that has it, and writes which local row it is
 * there; -1 if there is no such row. */
int ra_layout_find(struct ra_layout layout, int64_t position, int64_t *row);

/* Returns which rank has row `position` of the whole, 0 <= position < length, and writes the first
 * row behind it, or the length, that another rank may have. */
int ra_layout_run(struct ra_layout layout, int64_t position, int64_t *end);

/* Copies a rank's rows out of the whole sequence. A row is row_bytes long. The caller owns whole
 * (length rows) and local (ra_layout_rows). */
void ra_layout_shard(struct ra_layout layout, int rank, int64_t row_bytes, const void *whole,
                     void *local);

/* Copies a rank's rows back into the whole sequence. A row is row_bytes long. The caller owns local
 * (ra_layout_rows) and whole (length rows), whose other rows stay as they are. */
void ra_layout_unshard(struct ra_layout layout, int rank, int64_t row_bytes, const void *local,
                       void *whole);

/* Counts the stripes from number s on that have as many rows as this one, one after the other; 1 in
 * the other layouts. */
int64_t ra_layout_alike(struct ra_layout layout, int rank, int64_t s);

/* Two shards that meet: the queries of `rank` and the keys of `origin`. The layouts have the same
 * kind, ranks and stripes; but gathered keys are of one rank. The last query stands beside the last
 * key: query row i is at position i + M - N. */
struct ra_shard_pair {
    struct ra_layout queries, keys;
    int rank, origin;
    bool causal;
    int64_t lookback; /* as in ra_band_causal */
};

/* A span of the queries and a span of the keys of two shards: the local rows where they begin, how
 * many they have, and the band that counts from there; RA_ALL_KEYS without a causal mask. */
struct ra_span_pair {
    int64_t a, b, rows, visitors;
    struct ra_band band;
};

/* Returns span s of the queries and span t of the keys of two shards, with their band. */
struct ra_span_pair ra_layout_pair(const struct ra_shard_pair *shards, int64_t s, int64_t t);

/* Says where rows of two shards lie, for a slope: queries from local row a on and keys from row b
 * on, each all of one span. Keys are at their positions, and query i is at i + M - N, as for a
 * causal mask. */
void ra_layout_place(const struct ra_shard_pair *shards, int64_t a, struct ra_queries *queries,
                     int64_t b, struct ra_keys *keys);

/* Folds all keys of one shard into all queries of the other, every span into every span. */
void ra_layout_fold(struct ra_fold *fold, const struct ra_shard_pair *shards,
                    const struct ra_queries *queries, const struct ra_keys *keys);

#ifdef __cplusplus
}
#endif

#endif
