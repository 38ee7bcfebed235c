/* ra_layout: which rank holds which rows of a sequence. See ra_layout.h.
 *
 * Chapter 05. New here: striped and zigzag shards, as lists of spans, and the fold of span by span.
 */
#include "ra_layout.h"
#include <string.h>
#include "ra_math.h"

/* n / d rounded up, for n >= 0 and d > 0. */
static int64_t quotient_up(int64_t n, int64_t d)
{
    return n / d + (n % d > 0);
}

int64_t ra_layout_stripes(int ranks, int64_t length, int64_t bucket)
{
    int64_t stripes = bucket > 0 ? quotient_up(quotient_up(length, bucket), ranks) : 1;
    return stripes > 0 ? stripes : 1;
}

struct ra_layout ra_layout_of(const struct ra_config *config, int64_t length)
{
    int64_t stripes = ra_layout_stripes(config->ring_size, config->queries, config->bucket);
    return (struct ra_layout){config->layout, config->ring_size, length, stripes};
}

int64_t ra_layout_spans(struct ra_layout layout)
{
    switch (layout.kind) {
    case RA_STRIPED:
        return layout.stripes;
    case RA_ZIGZAG:
        return 2;
    default:
        return 1;
    }
}

struct ra_span ra_layout_span(struct ra_layout layout, int rank, int64_t s)
{
    int64_t P = layout.ranks, length = layout.length;
    switch (layout.kind) {
    case RA_STRIPED: {
        /* There are J stripes; stripe j has the rows j, j + J, j + 2J, ... A rank has f of them. */
        int64_t J = P * layout.stripes, j = rank * layout.stripes + s;
        return (struct ra_span){j, J, j < length ? quotient_up(length - j, J) : 0};
    }
    case RA_ZIGZAG:
        /* An early chunk, which sees little, and the late one that makes up for it. */
        return ra_span_chunk(length, 2 * P, s == 0 ? rank : 2 * P - 1 - rank);
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
    for (int64_t s = 0; s < ra_layout_spans(layout); s++)
        rows += ra_layout_span(layout, rank, s).count;
    return rows;
}

int64_t ra_layout_most_rows(struct ra_layout layout)
{
    /* Chunks and stripes only get shorter. So rank 0 has the most rows; or, zigzag, where the end
     * of the sequence may leave it the longest chunk and none, the last rank, with the two in the
     * middle. */
    int64_t first = ra_layout_rows(layout, 0), last = ra_layout_rows(layout, layout.ranks - 1);
    return first > last ? first : last;
}

int64_t ra_layout_position(struct ra_layout layout, int rank, int64_t a)
{
    int64_t s = 0;
    struct ra_span span = ra_layout_span(layout, rank, s);
    while (a >= span.count) {
        a -= span.count;
        span = ra_layout_span(layout, rank, ++s);
    }
    return span.first + a * span.stride;
}

int ra_layout_find(struct ra_layout layout, int64_t position, int64_t *row)
{
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

/* How many rows lie before span s. */
static int64_t rows_before(struct ra_layout layout, int rank, int64_t s)
{
    int64_t rows = 0;
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
    struct ra_span_pair pair = {.a = rows_before(shards->queries, shards->rank, s),
                                .b = rows_before(shards->keys, shards->origin, t),
                                .rows = queries.count,
                                .visitors = keys.count,
                                .band = RA_ALL_KEYS};
    queries.first += shards->keys.length - shards->queries.length;
    if (shards->causal)
        pair.band = ra_band_causal(queries, keys, shards->lookback);
    return pair;
}

void ra_layout_fold(struct ra_fold *fold, const struct ra_shard_pair *shards,
                    const struct ra_queries *queries, const struct ra_keys *keys)
{
    for (int64_t s = 0; s < ra_layout_spans(shards->queries); s++)
        for (int64_t t = 0; t < ra_layout_spans(shards->keys); t++) {
            struct ra_span_pair pair = ra_layout_pair(shards, s, t);
            struct ra_queries rows = ra_queries_block(queries, pair.a, pair.rows);
            struct ra_keys seen = ra_keys_block(keys, pair.b, pair.visitors);
            ra_band_fold(fold, &rows, &seen, pair.band);
        }
}
