/* ra_layout: which rank holds which rows of a sequence. See ra_layout.h.
 *
 * Chapter 05. New here: striped and zigzag shards, as lists of spans, and the fold of span by span.
 */
#include "ra_layout.h"
#include <string.h>
#include "ra_math.h"

int64_t ra_layout_stripes(int ranks, int64_t length, int64_t bucket)
{
    int64_t stripes =
        bucket > 0 ? ra_ceiling_division(ra_ceiling_division(length, bucket), ranks) : 1;
    return ra_max(stripes, 1);
}

struct ra_layout ra_layout_of(const struct ra_config *config, int64_t length)
{
    int64_t stripes = ra_layout_stripes(config->ring_size, config->queries, config->bucket);
    return (struct ra_layout){config->layout, config->ring_size, length, stripes, NULL};
}

int64_t ra_layout_spans(struct ra_layout layout)
{
    switch (layout.kind) {
    case RA_STRIPED:
        return layout.stripes;
    case RA_ZIGZAG:
        return 2;
    case RA_DEALT:
        return layout.list->spans;
    default:
        return 1;
    }
}

/* Counts the spans of a rank that are in the list; those behind them are empty. */
static int64_t listed(struct ra_layout layout, int rank)
{
    return layout.list->first[rank + 1] - layout.list->first[rank];
}

/* Returns the run of the list that is span s of a rank. */
static const struct ra_run *listed_run(struct ra_layout layout, int rank, int64_t s)
{
    return &layout.list->run[layout.list->span[layout.list->first[rank] + s]];
}

static struct ra_span listed_span(struct ra_layout layout, int rank, int64_t s)
{
    if (s >= listed(layout, rank))
        return (struct ra_span){layout.length, 1, 0};
    const struct ra_run *run = listed_run(layout, rank, s);
    return (struct ra_span){run->first, 1, run->count};
}

/* Counts the local rows before span s of a rank. */
static int64_t listed_before(struct ra_layout layout, int rank, int64_t s)
{
    int64_t spans = listed(layout, rank);
    if (spans == 0)
        return 0;
    const struct ra_run *run = listed_run(layout, rank, ra_min(s, spans - 1));
    return s < spans ? run->row : run->row + run->count;
}

struct ra_span ra_layout_span(struct ra_layout layout, int rank, int64_t s)
{
    int64_t P = layout.ranks, length = layout.length;
    rank %= layout.ranks;
    switch (layout.kind) {
    case RA_STRIPED: {
        /* There are J stripes; stripe j has the rows j, j + J, j + 2J, ... A rank has f of them.
         * Those that would begin behind the end are empty. */
        int64_t J = P * layout.stripes, j = rank * layout.stripes + s;
        return (struct ra_span){j, J, ra_ceiling_division(length - j, J)};
    }
    case RA_ZIGZAG:
        /* An early chunk, which sees little, and the late one that makes up for it. */
        return ra_span_chunk(length, 2 * P, s == 0 ? rank : 2 * P - 1 - rank);
    case RA_DEALT:
        return listed_span(layout, rank, s);
    default:
        return ra_span_chunk(length, P, rank);
    }
}

int64_t ra_layout_alike(struct ra_layout layout, int rank, int64_t s)
{
    struct ra_span span = ra_layout_span(layout, rank, s);
    int64_t left = ra_layout_spans(layout) - s;
    if (layout.kind != RA_STRIPED)
        return 1;

    /* Stripes of a row more come first, up to the one that would end behind the sequence. */
    return span.count == 0
               ? left
               : ra_min(left, layout.length - (span.count - 1) * span.stride - span.first);
}

int64_t ra_layout_rows(struct ra_layout layout, int rank)
{
    int64_t rows = 0;
    if (layout.kind == RA_DEALT)
        return listed_before(layout, rank, listed(layout, rank));
    for (int64_t s = 0; s < ra_layout_spans(layout); s++)
        rows += ra_layout_span(layout, rank, s).count;
    return rows;
}

int64_t ra_layout_most_rows(struct ra_layout layout)
{
    if (layout.kind == RA_DEALT)
        return layout.list->rows;

    /* Chunks and stripes only get shorter. So rank 0 has the most rows; or, zigzag, where the end
     * of the sequence may leave it the longest chunk and none, the last rank, with the two in the
     * middle. */
    return ra_max(ra_layout_rows(layout, 0), ra_layout_rows(layout, layout.ranks - 1));
}

int64_t ra_layout_span_at(struct ra_layout layout, int rank, int64_t a, int64_t *offset)
{
    int64_t s = 0;
    if (layout.kind == RA_DEALT) {
        for (int64_t end = listed(layout, rank); end - s > 1;) {
            int64_t middle = s + (end - s) / 2;
            if (listed_before(layout, rank, middle) <= a)
                s = middle;
            else
                end = middle;
        }
        *offset = a - listed_before(layout, rank, s);
        return s;
    }
    int64_t count = ra_layout_span(layout, rank, s).count;
    while (a >= count) {
        a -= count;
        count = ra_layout_span(layout, rank, ++s).count;
    }
    *offset = a;
    return s;
}

int64_t ra_layout_position(struct ra_layout layout, int rank, int64_t a)
{
    int64_t offset, s = ra_layout_span_at(layout, rank, a, &offset);
    struct ra_span span = ra_layout_span(layout, rank, s);
    return span.first + offset * span.stride;
}

/* Returns the run of the list that has this row. */
static const struct ra_run *run_with(const struct ra_layout_list *list, int64_t position)
{
    int64_t first = 0;
    for (int64_t end = list->count; end - first > 1;) {
        int64_t middle = first + (end - first) / 2;
        if (list->run[middle].first <= position)
            first = middle;
        else
            end = middle;
    }
    return &list->run[first];
}

int ra_layout_find(struct ra_layout layout, int64_t position, int64_t *row)
{
    if (layout.kind == RA_DEALT && position >= 0 && position < layout.length) {
        const struct ra_run *run = run_with(layout.list, position);
        *row = run->row + position - run->first;
        return run->rank;
    }
    for (int rank = 0; rank < layout.ranks; rank++) {
        *row = 0;
        for (int64_t s = 0; s < ra_layout_spans(layout); s++) {
            struct ra_span span = ra_layout_span(layout, rank, s);
            int64_t along = position - span.first;
            if (along >= 0 && along % span.stride == 0 && along / span.stride < span.count) {
                *row += along / span.stride;
                return rank;
            }
            *row += span.count;
        }
    }
    return -1; /* the position is not in the sequence */
}

int ra_layout_run(struct ra_layout layout, int64_t position, int64_t *end)
{
    int64_t P = layout.ranks, chunks = layout.kind == RA_ZIGZAG ? 2 * P : P, length = layout.length;
    if (layout.kind == RA_DEALT) {
        const struct ra_run *run = run_with(layout.list, position);
        *end = run->first + run->count;
        return run->rank;
    }

    /* Every other layout deals out runs of equal length, from rank 0 to the last and, zigzag, back
     * again; striped, from rank 0 on again. */
    int64_t rows = layout.kind == RA_STRIPED ? layout.stripes : ra_ceiling_division(length, chunks);
    int64_t run = position / rows;
    *end = ra_min((run + 1) * rows, length);
    if (layout.kind == RA_ZIGZAG && run >= P)
        run = chunks - 1 - run;
    return (int)(run % P);
}

void ra_layout_shard(struct ra_layout layout, int rank, int64_t row_bytes, const void *whole,
                     void *local)
{
    char *to = local;
    for (int64_t s = 0; s < ra_layout_spans(layout); s++) {
        struct ra_span span = ra_layout_span(layout, rank, s);
        for (int64_t a = 0; a < span.count; a++, to += row_bytes)
            memcpy(to, (const char *)whole + (span.first + a * span.stride) * row_bytes,
                   (size_t)row_bytes);
    }
}

void ra_layout_unshard(struct ra_layout layout, int rank, int64_t row_bytes, const void *local,
                       void *whole)
{
    const char *from = local;
    for (int64_t s = 0; s < ra_layout_spans(layout); s++) {
        struct ra_span span = ra_layout_span(layout, rank, s);
        for (int64_t a = 0; a < span.count; a++, from += row_bytes)
            memcpy((char *)whole + (span.first + a * span.stride) * row_bytes, from,
                   (size_t)row_bytes);
    }
}

int64_t ra_layout_rows_before(struct ra_layout layout, int rank, int64_t s)
{
    int64_t rows = 0;
    if (layout.kind == RA_DEALT)
        return listed_before(layout, rank, s);
    for (int64_t alike, i = 0; i < s; i += alike) {
        alike = ra_min(ra_layout_alike(layout, rank, i), s - i);
        rows += alike * ra_layout_span(layout, rank, i).count;
    }
    return rows;
}

struct ra_span_pair ra_layout_pair(const struct ra_shard_pair *shards, int64_t s, int64_t t)
{
    struct ra_span queries = ra_layout_span(shards->queries, shards->rank, s);
    struct ra_span keys = ra_layout_span(shards->keys, shards->origin, t);
    struct ra_span_pair pair = {.a = ra_layout_rows_before(shards->queries, shards->rank, s),
                                .b = ra_layout_rows_before(shards->keys, shards->origin, t),
                                .rows = queries.count,
                                .visitors = keys.count,
                                .band = RA_ALL_KEYS};
    queries.first += shards->keys.length - shards->queries.length;
    if (shards->causal)
        pair.band = ra_band_causal(queries, keys, shards->lookback);
    return pair;
}

/* Where `count` rows of a rank lie, from local row a on. */
static struct ra_places places_of(struct ra_layout layout, int rank, int64_t a, int64_t count)
{
    struct ra_places places = {count > 0 ? ra_layout_position(layout, rank, a) : 0, 1};
    if (count > 1)
        places.step = ra_layout_position(layout, rank, a + 1) - places.first;
    return places;
}

void ra_layout_place(const struct ra_shard_pair *shards, int64_t a, struct ra_queries *queries,
                     int64_t b, struct ra_keys *keys)
{
    keys->at = places_of(shards->keys, shards->origin, b, keys->rows);
    queries->at = places_of(shards->queries, shards->rank, a, queries->rows);
    queries->at.first += shards->keys.length - shards->queries.length;
}

void ra_layout_fold(struct ra_fold *fold, const struct ra_shard_pair *shards,
                    const struct ra_queries *queries, const struct ra_keys *keys)
{
    for (int64_t s = 0; s < ra_layout_spans(shards->queries); s++)
        for (int64_t t = 0; t < ra_layout_spans(shards->keys); t++) {
            struct ra_span_pair pair = ra_layout_pair(shards, s, t);
            struct ra_queries rows = ra_queries_block(queries, pair.a, pair.rows);
            struct ra_keys seen = ra_keys_block(keys, pair.b, pair.visitors);
            if (fold->score.slope != 0)
                ra_layout_place(shards, pair.a, &rows, pair.b, &seen);
            ra_band_fold(fold, &rows, &seen, pair.band);
        }
}
