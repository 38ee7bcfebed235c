/* ra_slices: one mask for documents, prefixes, chunks, windows to both sides. See ra_slices.h.
 *
 * Chapter 13. New here: a rectangle with a band, and its cut; a sweep that finds two slices that
 * overlap.
 */
#include "ra_slices.h"
#include <inttypes.h>
#include "ra_error.h"
#include "ra_math.h"
#include "ra_sort.h"

/* ---- One slice. */

/* The same slice, with no bound further out than its rectangle: then sums of them are small. */
static struct ra_slice clamp(const struct ra_slice *slice)
{
    struct ra_slice s = *slice;
    s.lo = ra_max(s.lo, s.k0 - (s.q1 - 1));
    s.hi = ra_min(s.hi, s.k1 - 1 - s.q0);
    return s;
}

bool ra_slice_is_empty(const struct ra_slice *slice)
{
    /* A diagonal that touches the rectangle has a pair in it. */
    struct ra_slice s = clamp(slice);
    return s.q0 >= s.q1 || s.k0 >= s.k1 || s.lo > s.hi;
}

struct ra_slice ra_slice_tighten(const struct ra_slice *slice)
{
    struct ra_slice s = clamp(slice);
    if (ra_slice_is_empty(slice))
        return (struct ra_slice){0};
    return (struct ra_slice){ra_max(s.q0, s.k0 - s.hi),
                             ra_min(s.q1, s.k1 - s.lo),
                             ra_max(s.k0, s.q0 + s.lo),
                             ra_min(s.k1, s.q1 + s.hi),
                             s.lo,
                             s.hi};
}

/* The sum of min(i + shift, most) for i = first .. end - 1. */
static __int128 sum_of_least(int64_t first, int64_t end, int64_t shift, int64_t most)
{
    int64_t bend = ra_min(ra_max(most - shift, first), end);
    return (__int128)(bend - first) * (first + bend - 1 + 2 * shift) / 2 +
           (__int128)(end - bend) * most;
}

int64_t ra_slice_pairs(const struct ra_slice *slice)
{
    /* Query i sees the keys max(i + lo, k0) .. min(i + hi + 1, k1) - 1; and max(x, y) is x + y -
     * min(x, y). */
    struct ra_slice s = ra_slice_tighten(slice);
    __int128 ends = sum_of_least(s.q0, s.q1, s.hi + 1, s.k1);
    __int128 begins = sum_of_least(s.q0, s.q1, s.lo, RA_BAND_FAR) + (__int128)(s.q1 - s.q0) * s.k0 -
                      sum_of_least(s.q0, s.q1, s.lo, s.k0);
    __int128 pairs = ends - begins;
    return pairs > INT64_MAX ? INT64_MAX : (int64_t)pairs;
}

/* The first local row of a span at this position or after it, 0 .. count. */
static int64_t row_at(struct ra_span span, int64_t position)
{
    int64_t row = ra_ceiling_division(position - span.first, span.stride);
    return ra_min(ra_max(row, 0), span.count);
}

struct ra_span_pair ra_slice_cut(const struct ra_slice *slice, struct ra_span queries,
                                 struct ra_span keys)
{
    int64_t stride = keys.stride, ahead = queries.first - keys.first;
    int64_t a = row_at(queries, slice->q0), b = row_at(keys, slice->k0);
    struct ra_span_pair cut = {.a = a,
                               .b = b,
                               .rows = row_at(queries, slice->q1) - a,
                               .visitors = row_at(keys, slice->k1) - b,
                               .band = RA_ALL_KEYS};
    if (slice->lo > -RA_BAND_FAR)
        cut.band.lo = ra_ceiling_division(slice->lo + ahead, stride) + a - b;
    if (slice->hi < RA_BAND_FAR)
        cut.band.hi = ra_floor_division(slice->hi + ahead, stride) + a - b;
    if (cut.rows < 0 || cut.visitors < 0 || ra_band_is_empty(cut.band, cut.rows, cut.visitors))
        cut.rows = cut.visitors = 0;
    return cut;
}

/* ---- Lists. */

/* The sweep goes over the rows of queries, first to last. In each row, every slice that has it sees
 * an interval of keys. Those intervals are kept in order, as a binary tree and as a list. From row
 * to row their ends move by one key or by none. So two slices that do not overlap never change
 * places, and two that overlap are neighbours in the order before they do: it is enough to compare
 * each slice with its neighbours, whenever it gets new ones. */
struct node {
    struct ra_slice slice; /* tightened: every row sees something */
    int64_t given;         /* its place in the caller's list */
    int64_t child[2];      /* in the tree; NONE: there is none */
    int64_t neighbour[2];  /* in the list */
    uint64_t priority;     /* a parent has a higher one than its children: a treap */
};

enum { NONE = -1 };

struct sweep {
    struct node *nodes;
    int64_t root;
    int64_t pair[2]; /* two that overlap, as soon as any do: places in the caller's list */
    bool overlap;
};

/* Compares the keys that two slices see in a row: -1 or 1 if those of one lie before or behind
 * those of the other, 0 if they overlap. */
static int compare(const struct ra_slice *one, const struct ra_slice *other, int64_t row)
{
    if (ra_min(row + one->hi, one->k1 - 1) < ra_max(row + other->lo, other->k0))
        return -1;
    return ra_max(row + one->lo, one->k0) > ra_min(row + other->hi, other->k1 - 1);
}

/* Notes two slices, either of which may be NONE, if they overlap in any row: what is in both of
 * them is a slice, too. */
static void check_pair(struct sweep *sweep, int64_t x, int64_t y)
{
    if (x == NONE || y == NONE || sweep->overlap)
        return;
    const struct node *one = &sweep->nodes[x], *other = &sweep->nodes[y];
    const struct ra_slice *a = &one->slice, *b = &other->slice;
    struct ra_slice both = {ra_max(a->q0, b->q0), ra_min(a->q1, b->q1), ra_max(a->k0, b->k0),
                            ra_min(a->k1, b->k1), ra_max(a->lo, b->lo), ra_min(a->hi, b->hi)};
    sweep->overlap = !ra_slice_is_empty(&both);
    sweep->pair[0] = ra_min(one->given, other->given);
    sweep->pair[1] = ra_max(one->given, other->given);
}

/* Cuts a tree in two: what lies before slice x in this row, and what lies behind it. */
static void split(struct node *nodes, int64_t tree, int64_t x, int64_t row, int64_t halves[2])
{
    if (tree == NONE) {
        halves[0] = halves[1] = NONE;
        return;
    }
    int side = compare(&nodes[tree].slice, &nodes[x].slice, row) > 0; /* where `tree` goes */
    split(nodes, nodes[tree].child[!side], x, row, halves);
    nodes[tree].child[!side] = halves[side];
    halves[side] = tree;
}

/* Makes one tree of two, the first of which lies before the second. */
static int64_t join(struct node *nodes, int64_t before, int64_t behind)
{
    if (before == NONE || behind == NONE)
        return before == NONE ? behind : before;
    int upper = nodes[before].priority < nodes[behind].priority;
    int64_t top = upper ? behind : before;
    if (upper)
        nodes[top].child[0] = join(nodes, before, nodes[top].child[0]);
    else
        nodes[top].child[1] = join(nodes, nodes[top].child[1], behind);
    return top;
}

static void link_nodes(struct sweep *sweep, int64_t before, int64_t behind)
{
    if (before != NONE)
        sweep->nodes[before].neighbour[1] = behind;
    if (behind != NONE)
        sweep->nodes[behind].neighbour[0] = before;
    check_pair(sweep, before, behind);
}

/* Slice x begins in this row. */
static void insert(struct sweep *sweep, int64_t x, int64_t row)
{
    struct node *nodes = sweep->nodes;
    int64_t neighbour[2] = {NONE, NONE}, *at = &sweep->root;
    for (int64_t tree = sweep->root; tree != NONE && !sweep->overlap;) {
        int order = compare(&nodes[x].slice, &nodes[tree].slice, row);
        if (order == 0)
            check_pair(sweep, x, tree);
        neighbour[order < 0] = tree;
        tree = nodes[tree].child[order > 0];
    }
    if (sweep->overlap)
        return;
    while (*at != NONE && nodes[*at].priority > nodes[x].priority)
        at = &nodes[*at].child[compare(&nodes[x].slice, &nodes[*at].slice, row) > 0];
    split(nodes, *at, x, row, nodes[x].child);
    *at = x;
    link_nodes(sweep, neighbour[0], x);
    link_nodes(sweep, x, neighbour[1]);
}

/* Slice x has ended with this row. */
static void take_out(struct sweep *sweep, int64_t x, int64_t row)
{
    struct node *nodes = sweep->nodes;
    int64_t *at = &sweep->root;
    while (*at != x)
        at = &nodes[*at].child[compare(&nodes[x].slice, &nodes[*at].slice, row) > 0];
    *at = join(nodes, nodes[x].child[0], nodes[x].child[1]);
    link_nodes(sweep, nodes[x].neighbour[0], nodes[x].neighbour[1]);
}

/* Looks for two slices that overlap. starts and ends are sorted. */
static void find_overlap(struct sweep *sweep, const struct ra_sorted *starts,
                         const struct ra_sorted *ends, int64_t count)
{
    for (int64_t start = 0, end = 0; end < count && !sweep->overlap;)
        if (start < count && starts[start].key < ends[end].key) {
            insert(sweep, starts[start].item, starts[start].key);
            start++;
        } else {
            take_out(sweep, ends[end].item, ends[end].key - 1);
            end++;
        }
}

int64_t ra_slices_storage(int64_t most)
{
    return most * (int64_t)(sizeof(struct ra_slice) + sizeof(int64_t) + sizeof(struct node) +
                            3 * sizeof(struct ra_sorted));
}

/* Checks one slice by itself. */
static enum ra_status check_slice(const struct ra_slice *s, int64_t at, int64_t queries,
                                  int64_t keys, char *error)
{
    const char *names[] = {"q0", "q1", "k0", "k1"};
    int64_t values[] = {s->q0, s->q1, s->k0, s->k1};
    for (int i = 0; i < 4; i++) {
        int64_t least = i % 2 ? values[i - 1] : 0, most = i < 2 ? queries : keys;
        if (values[i] < least || values[i] > most)
            return ra_error_set(error,
                                "slices[%" PRId64 "].%s = %" PRId64 ": give %" PRId64
                                "%s to %" PRId64 ", the number of %s",
                                at, names[i], values[i], least, i % 2 ? ", where it begins," : "",
                                most, i < 2 ? "queries" : "keys");
    }
    return RA_OK;
}

/* The furthest row of the slices first .. end - 1, in the tree that ra_slices_next searches: the
 * slice in the middle has that of all of them. */
static int64_t fill_reach(struct ra_slices *slices, int64_t first, int64_t end)
{
    if (first >= end)
        return 0;
    int64_t middle = first + (end - first) / 2;
    int64_t before = fill_reach(slices, first, middle);
    int64_t behind = fill_reach(slices, middle + 1, end);
    slices->reach[middle] = ra_max(slices->slice[middle].q1, ra_max(before, behind));
    return slices->reach[middle];
}

enum ra_status ra_slices_read(struct ra_slices *slices, const struct ra_slice *given, int64_t count,
                              int64_t queries, int64_t keys, void *storage,
                              char error[RA_ERROR_SIZE])
{
    struct ra_slice *list = storage;
    int64_t *reach = (int64_t *)(list + count), used = 0;
    struct node *nodes = (struct node *)(reach + count);
    struct ra_sorted *starts = (struct ra_sorted *)(nodes + count), *ends = starts + count;
    for (int64_t i = 0; i < count; i++) {
        enum ra_status status = check_slice(&given[i], i, queries, keys, error);
        if (status != RA_OK)
            return status;
        if (ra_slice_is_empty(&given[i]))
            continue;
        struct ra_slice tight = ra_slice_tighten(&given[i]);

        /* Any numbers without order will do as priorities. */
        uint64_t mixed = (uint64_t)i * UINT64_C(0x9E3779B97F4A7C15);
        mixed = (mixed ^ mixed >> 29) * UINT64_C(0xBF58476D1CE4E5B9);
        nodes[used] = (struct node){tight, i, {NONE, NONE}, {NONE, NONE}, mixed ^ mixed >> 32};
        starts[used] = (struct ra_sorted){tight.q0, used};
        ends[used] = (struct ra_sorted){tight.q1, used};
        used++;
    }
    ra_sort(starts, used, ends + count);
    ra_sort(ends, used, ends + count);
    struct sweep sweep = {.nodes = nodes, .root = NONE};
    find_overlap(&sweep, starts, ends, used);
    if (sweep.overlap)
        return ra_error_set(error,
                            "slices[%" PRId64 "] and slices[%" PRId64 "] overlap: give each pair "
                            "of a query and a key to one slice at most",
                            sweep.pair[0], sweep.pair[1]);

    for (int64_t i = 0; i < used; i++)
        starts[i] = (struct ra_sorted){given[nodes[i].given].q0, nodes[i].given};
    ra_sort(starts, used, ends + count);
    *slices = (struct ra_slices){used, list, reach};
    for (int64_t i = 0; i < used; i++)
        list[i] = given[starts[i].item];
    fill_reach(slices, 0, used);
    return RA_OK;
}

/* The same among the slices first .. end - 1; `end` if there is none. */
static int64_t next_among(const struct ra_slices *slices, int64_t first, int64_t end, int64_t from,
                          int64_t position, int64_t last)
{
    int64_t middle = first + (end - first) / 2;
    if (first >= end || from >= end || slices->reach[middle] <= position)
        return end;
    if (from < middle) {
        int64_t found = next_among(slices, first, middle, from, position, last);
        if (found < middle)
            return found;
    }
    const struct ra_slice *slice = &slices->slice[middle];
    if (slice->q0 > last)
        return end;
    if (middle >= from && slice->q1 > position)
        return middle;
    return next_among(slices, middle + 1, end, from, position, last);
}

int64_t ra_slices_next(const struct ra_slices *slices, int64_t from, int64_t first, int64_t last)
{
    return next_among(slices, 0, slices->count, from, first, last);
}

int64_t ra_slices_seen(const struct ra_slices *slices, int64_t first, int64_t end)
{
    int64_t pairs = 0;
    for (int64_t x = ra_slices_next(slices, 0, first, end - 1); x < slices->count;
         x = ra_slices_next(slices, x + 1, first, end - 1)) {
        struct ra_slice part = slices->slice[x];
        part.q0 = ra_max(part.q0, first);
        part.q1 = ra_min(part.q1, end);
        pairs += ra_slice_pairs(&part);
    }
    return pairs;
}

/* ---- Slices between two ranks. */

/* The positions of keys from..to that some positions of queries first..last see of a slice, which
 * is tight: `from` above `to` if there are none. */
struct sight {
    int64_t from, to;
};

static struct sight sight_of(const struct ra_slice *tight, int64_t first, int64_t last)
{
    first = ra_max(first, tight->q0);
    last = ra_min(last, tight->q1 - 1);
    if (first > last)
        return (struct sight){0, -1};
    return (struct sight){ra_max(tight->k0, first + tight->lo),
                          ra_min(tight->k1 - 1, last + tight->hi)};
}

static int64_t last_of(struct ra_span span)
{
    return span.first + (span.count - 1) * span.stride;
}

struct ra_walk ra_slices_walk(const struct ra_slices *slices, const struct ra_shard_pair *shards,
                              int64_t a, int64_t rows, int64_t b, int64_t visitors)
{
    return (struct ra_walk){.slices = slices,
                            .shards = shards,
                            .a = a,
                            .end = a + rows,
                            .b = b,
                            .keys_end = visitors > 0 ? b + visitors : b,
                            .slice = slices->count};
}

/* Goes on to the next query rows that lie in one span. False: there are none. */
static bool next_rows(struct ra_walk *walk)
{
    const struct ra_shard_pair *shards = walk->shards;
    int64_t offset;
    if (walk->a >= walk->end || walk->b >= walk->keys_end)
        return false;
    int64_t s = ra_layout_span_at(shards->queries, shards->rank, walk->a, &offset);
    struct ra_span span = ra_layout_span(shards->queries, shards->rank, s);
    walk->row = walk->a;
    walk->queries = (struct ra_span){span.first + offset * span.stride, span.stride,
                                     ra_min(span.count - offset, walk->end - walk->a)};
    walk->a += walk->queries.count;
    walk->slice = -1;
    return true;
}

/* Goes on to the next slice that these rows touch, and to the first span of keys that it can be
 * cut against. False: there is none. */
static bool next_slice(struct ra_walk *walk)
{
    const struct ra_shard_pair *shards = walk->shards;
    int64_t offset, first = walk->queries.first, last = last_of(walk->queries);
    walk->slice = ra_slices_next(walk->slices, walk->slice + 1, first, last);
    if (walk->slice == walk->slices->count)
        return false;
    walk->span = ra_layout_span_at(shards->keys, shards->origin, walk->b, &offset);

    /* Spans of a list come by position: those before what is in sight are left out. */
    struct ra_slice tight = ra_slice_tighten(&walk->slices->slice[walk->slice]);
    struct sight sight = sight_of(&tight, first, last);
    walk->to = sight.to;
    if (shards->keys.kind == RA_DEALT)
        for (int64_t end = ra_layout_spans(shards->keys); end - walk->span > 1;) {
            int64_t middle = walk->span + (end - walk->span) / 2;
            if (ra_layout_span(shards->keys, shards->origin, middle).first <= sight.from)
                walk->span = middle;
            else
                end = middle;
        }
    walk->key_row = ra_layout_rows_before(shards->keys, shards->origin, walk->span);
    return true;
}

/* Cuts this slice against the next span of keys that is not beyond its sight. False: there is
 * none. */
static bool next_keys(struct ra_walk *walk, struct ra_span_pair *cut)
{
    const struct ra_shard_pair *shards = walk->shards;
    if (walk->key_row >= walk->keys_end || walk->span >= ra_layout_spans(shards->keys))
        return false;
    struct ra_span keys = ra_layout_span(shards->keys, shards->origin, walk->span++);
    if (shards->keys.kind == RA_DEALT && keys.first > walk->to)
        return false;

    /* What of it lies among the key rows of this walk. */
    int64_t before = ra_max(walk->b - walk->key_row, 0), row = walk->key_row + before;
    walk->key_row += keys.count;
    keys.first += before * keys.stride;
    keys.count = ra_min(keys.count - before, walk->keys_end - row);
    *cut = ra_slice_cut(&walk->slices->slice[walk->slice], walk->queries, keys);
    cut->a += walk->row;
    cut->b += row;
    return true;
}

bool ra_walk_next(struct ra_walk *walk, struct ra_span_pair *cut)
{
    for (;;) {
        while (walk->slice < walk->slices->count && walk->slice >= 0 && next_keys(walk, cut))
            if (cut->rows > 0)
                return true;
        while (walk->slice == walk->slices->count || !next_slice(walk))
            if (!next_rows(walk))
                return false;
    }
}

void ra_slices_fold(struct ra_fold *fold, const struct ra_slices *slices,
                    const struct ra_shard_pair *shards, const struct ra_queries *queries, int64_t a,
                    const struct ra_keys *keys, int64_t b)
{
    struct ra_span_pair cut;
    struct ra_walk walk = ra_slices_walk(slices, shards, a, queries->rows, b, keys->rows);
    while (ra_walk_next(&walk, &cut)) {
        struct ra_queries rows = ra_queries_block(queries, cut.a - a, cut.rows);
        struct ra_keys seen = ra_keys_block(keys, cut.b - b, cut.visitors);
        if (fold->score.slope != 0)
            ra_layout_place(shards, cut.a, &rows, cut.b, &seen);
        ra_band_fold(fold, &rows, &seen, cut.band);
    }
}

/* What is known of a schedule while it is made: how many hops, and how many journeys to the far
 * end, are still not needed. */
struct needs {
    struct ra_schedule *schedule;
    int P, hops_left, journeys_left;
};

/* This rank sees keys of that one. */
static void note(struct needs *needs, int rank, int origin)
{
    int P = needs->P, hop = (rank - origin + P) % P, *last = &needs->schedule->last[origin];
    needs->hops_left -= !needs->schedule->hop[hop];
    needs->schedule->hop[hop] = 1;
    if (hop > *last) {
        *last = hop;
        needs->journeys_left -= hop == P - 1;
    }
}

/* Notes whose keys from..to a rank sees. */
static void note_keys(struct needs *needs, struct ra_layout keys, int rank, struct sight sight)
{
    /* Striped, a lap of all ranks is enough. */
    int64_t lap = keys.kind == RA_STRIPED ? keys.ranks * keys.stripes : INT64_MAX / 2;
    int64_t to = ra_min(sight.to, sight.from + lap - 1);
    for (int64_t at = sight.from; at <= to;)
        note(needs, rank, ra_layout_run(keys, at, &at));
}

struct ra_schedule ra_slices_schedule(const struct ra_slices *slices, struct ra_layout queries,
                                      struct ra_layout keys, int *storage)
{
    int P = queries.ranks;
    struct ra_schedule schedule = {0, storage, storage + P};
    struct needs needs = {&schedule, P, P, P > 1 ? P : 0};
    for (int rank = 0; rank < P; rank++)
        schedule.hop[rank] = schedule.last[rank] = 0;

    /* Home is always taken: it costs no message. */
    note(&needs, 0, 0);
    for (int64_t i = 0, end; i < queries.length; i = end) {
        int rank = ra_layout_run(queries, i, &end);
        int64_t x = ra_slices_next(slices, 0, i, end - 1);
        for (; x < slices->count; x = ra_slices_next(slices, x + 1, i, end - 1)) {
            /* Once every rank's keys travel to the last rank, nothing is new. */
            if (needs.hops_left == 0 && needs.journeys_left == 0)
                break;
            struct ra_slice tight = ra_slice_tighten(&slices->slice[x]);
            note_keys(&needs, keys, rank, sight_of(&tight, i, end - 1));
        }
    }

    /* The hops that somebody needs move up. */
    for (int hop = 0; hop < P; hop++)
        if (schedule.hop[hop])
            schedule.hop[schedule.count++] = hop;
    return schedule;
}
