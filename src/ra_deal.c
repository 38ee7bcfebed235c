/* ra_deal: the rows of packed documents, dealt to the ranks document by document. See ra_deal.h.
 *
 * Chapter 13. New here: a zigzag for each document, whose pieces go to the ranks that have least
 * to do.
 */
#include "ra_deal.h"
#include <string.h>
#include "ra_math.h"
#include "ra_sort.h"

/* ---- Lists. */

int64_t ra_deal_list_bytes(int ranks, int64_t most)
{
    return (ranks + 1) * (int64_t)sizeof(int64_t) +
           most * (int64_t)(sizeof(int64_t) + sizeof(struct ra_run));
}

void ra_deal_begin(struct ra_layout_list *list, int ranks, int64_t most, void *storage)
{
    int64_t *first = storage, *span = first + ranks + 1;
    *list = (struct ra_layout_list){
        .run = (struct ra_run *)(void *)(span + most), .span = span, .first = first};
}

void ra_deal_add(struct ra_layout_list *list, int rank, int64_t rows)
{
    struct ra_run *last = list->count > 0 ? &list->run[list->count - 1] : NULL;
    if (last && last->rank == rank)
        last->count += rows;
    else
        list->run[list->count++] =
            (struct ra_run){last ? last->first + last->count : 0, rows, 0, rank};
}

void ra_deal_end(struct ra_layout_list *list, int ranks)
{
    /* first[rank + 1] counts the runs of a rank; then, all runs up to its last one; and in the end,
     * when it has counted back, all before its first one. */
    int64_t *first = list->first;
    memset(first, 0, (size_t)(ranks + 1) * sizeof *first);
    for (int64_t run = 0; run < list->count; run++)
        first[list->run[run].rank + 1]++;
    for (int rank = 0; rank < ranks; rank++) {
        list->spans = ra_max(list->spans, first[rank + 1]);
        first[rank + 1] += first[rank];
    }
    for (int64_t run = list->count - 1; run >= 0; run--)
        list->span[--first[list->run[run].rank + 1]] = run;
    for (int rank = 0; rank < ranks; rank++)
        first[rank] = first[rank + 1];
    first[ranks] = list->count;

    for (int rank = 0; rank < ranks; rank++) {
        int64_t rows = 0;
        for (int64_t s = first[rank]; s < first[rank + 1]; s++) {
            list->run[list->span[s]].row = rows;
            rows += list->run[list->span[s]].count;
        }
        list->rows = ra_max(list->rows, rows);
    }
}

/* ---- Storage of a deal. */

/* No piece has fewer rows than this but for that of a document that is itself shorter: tiles of
 * fewer rows have little for lanes to do, and every piece is a span. */
enum { PIECE = 32 };

/* Pieces of short documents that each rank gets, at most. Their work differs; more of them differ
 * less in sum. */
enum { SHARES = 8 };

/* A document, or neighbouring short ones: rows begin .. end - 1, cut into so many pieces, the first
 * of which is number `piece` of all. */
struct document {
    int64_t begin, end, pieces, piece;
    bool is_long; /* pieces are dealt in pairs */
};

/* What is used up while rows are dealt. */
struct deal {
    const struct ra_slices *slices;
    int ranks;
    bool by_rows;              /* work is how many rows there are: keys, which only travel */
    int64_t count;             /* documents */
    struct document *document; /* (count) */
    struct ra_sorted *order;   /* (count), or intervals before there are documents */
    struct ra_sorted *room;    /* half as many */
    int *owner;                /* (pieces): the rank */
    int64_t *work, *rows;      /* (ranks): dealt so far */
    struct ra_sorted *units; /* (SHARES * ranks): parts of a document, that with most work first */
    struct ra_sorted *idle;  /* (ranks): ranks, that with least work first */
    struct ra_sorted *few;   /* half as many */
};

/* The most pieces of a sequence. Pieces are PIECE rows or more, but for one of each document that
 * is short, and no two of these are neighbours. */
static int64_t most_pieces(int ranks, int64_t length, int64_t intervals)
{
    int64_t documents = 2 * intervals + 1, each = SHARES * (int64_t)ranks;
    int64_t by_length = 2 * (length / PIECE) + 1;
    return documents < by_length / each ? documents * each : by_length;
}

/* Gives the next bytes of the storage, a multiple of 8. */
static void *take(char **storage, int64_t bytes)
{
    char *piece = *storage;
    *storage += ra_round_up(bytes, 8);
    return piece;
}

/* Gives everything its place; returns how many bytes that takes. */
static int64_t place(char *storage, int ranks, const int64_t lengths[2], int64_t slices,
                     struct deal *deal, struct ra_layout_list lists[2])
{
    char *at = storage;
    bool alike = lengths[0] == lengths[1];
    int64_t intervals = alike ? 2 * slices : slices, most = 0,
            sorted = (int64_t)sizeof *deal->order;
    for (int side = 0; side < (alike ? 1 : 2); side++) {
        int64_t pieces = most_pieces(ranks, lengths[side], intervals);
        ra_deal_begin(&lists[side], ranks, pieces, at);
        at += ra_deal_list_bytes(ranks, pieces);
        most = ra_max(most, pieces);
    }
    deal->document = take(&at, most * (int64_t)sizeof *deal->document);
    deal->owner = take(&at, most * (int64_t)sizeof *deal->owner);
    deal->order = take(&at, ra_max(most, intervals) * sorted);
    deal->room = take(&at, ra_max(most, intervals) * sorted);
    deal->work = take(&at, ranks * (int64_t)sizeof *deal->work);
    deal->rows = take(&at, ranks * (int64_t)sizeof *deal->rows);
    deal->units = take(&at, SHARES * ranks * sorted);
    deal->idle = take(&at, ranks * sorted);
    deal->few = take(&at, SHARES * ranks * sorted);
    return at - storage;
}

int64_t ra_deal_storage(int ranks, int64_t queries, int64_t keys, int64_t most)
{
    struct deal deal;
    struct ra_layout_list lists[2];
    const int64_t lengths[2] = {queries, keys};
    char nowhere = 0;
    return place(&nowhere, ranks, lengths, most, &deal, lists);
}

/* ---- Documents. */

/* Adds a document, unless it and the one before are both short: then the two are one. */
static void add_document(struct deal *deal, int64_t begin, int64_t end)
{
    int64_t enough = 2 * (int64_t)deal->ranks * PIECE;
    struct document *last = deal->count > 0 ? &deal->document[deal->count - 1] : NULL;
    if (begin == end)
        return;
    bool is_long = end - begin >= enough;
    if (last && !is_long && !last->is_long)
        last->end = end;
    else
        deal->document[deal->count++] = (struct document){begin, end, 0, 0, is_long};
}

/* Finds the documents of one side, or of both: intervals of rows that slices touch, joined where
 * they overlap, and what lies between. */
static void find_documents(struct deal *deal, const bool sides[2], int64_t length)
{
    const struct ra_slices *slices = deal->slices;
    int64_t intervals = 0, begin = 0, end = 0;
    for (int64_t x = 0; x < slices->count; x++)
        for (int side = 0; side < 2; side++)
            if (sides[side])
                deal->order[intervals++] = (struct ra_sorted){
                    side == 0 ? slices->slice[x].q0 : slices->slice[x].k0, 2 * x + side};
    ra_sort(deal->order, intervals, deal->room);
    deal->count = 0;
    for (int64_t i = 0; i < intervals; i++) {
        const struct ra_slice *slice = &slices->slice[deal->order[i].item / 2];
        int64_t first = deal->order[i].key;
        int64_t last = deal->order[i].item % 2 == 0 ? slice->q1 : slice->k1;
        if (first >= end) {
            add_document(deal, begin, end);
            add_document(deal, end, first);
            begin = first;
        }
        end = ra_max(end, last);
    }
    add_document(deal, begin, end);
    add_document(deal, end, length);

    int64_t piece = 0;
    for (int64_t d = 0; d < deal->count; d++) {
        struct document *document = &deal->document[d];
        int64_t rows = document->end - document->begin;
        document->pieces = 2 * deal->ranks;
        if (!document->is_long)
            document->pieces = ra_min(ra_max(rows / PIECE, 1), SHARES * (int64_t)deal->ranks);
        document->piece = piece;
        piece += document->pieces;
    }
}

/* ---- Pieces. */

/* Where piece number c of a document begins; the first ones are longer by a row, if any are. */
static int64_t piece_begin(const struct document *document, int64_t c)
{
    int64_t rows = document->end - document->begin, pieces = document->pieces;
    return document->begin + rows / pieces * c + ra_min(rows % pieces, c);
}

static int64_t work_of(const struct deal *deal, int64_t begin, int64_t end)
{
    return deal->by_rows ? end - begin : ra_slices_seen(deal->slices, begin, end);
}

/* Lists the ranks, that with least to do first; of those that have as much, that with fewer
 * rows. */
static void list_idle(struct deal *deal)
{
    for (int rank = 0; rank < deal->ranks; rank++)
        deal->idle[rank] = (struct ra_sorted){deal->rows[rank], rank};
    ra_sort(deal->idle, deal->ranks, deal->few);
    for (int i = 0; i < deal->ranks; i++)
        deal->idle[i].key = deal->work[deal->idle[i].item];
    ra_sort(deal->idle, deal->ranks, deal->few);
}

/* Deals a document. Its units, a piece of short ones or an early piece and the late one that makes
 * up for it, go to the ranks that have least to do, the largest to the one that has least of all;
 * when every rank has got one, the next round begins. */
static void deal_document(struct deal *deal, const struct document *document)
{
    int64_t pieces = document->pieces, units = document->is_long ? pieces / 2 : pieces;
    for (int64_t u = 0; u < units; u++) {
        int64_t work = work_of(deal, piece_begin(document, u), piece_begin(document, u + 1));
        if (document->is_long)
            work += work_of(deal, piece_begin(document, pieces - 1 - u),
                            piece_begin(document, pieces - u));
        deal->units[u] = (struct ra_sorted){-work, u};
    }
    ra_sort(deal->units, units, deal->few);
    for (int64_t i = 0; i < units; i++) {
        if (i % deal->ranks == 0)
            list_idle(deal);
        int rank = (int)deal->idle[i % deal->ranks].item;
        deal->work[rank] -= deal->units[i].key;
        for (int late = 0; late <= document->is_long; late++) {
            int64_t u = deal->units[i].item, c = late ? pieces - 1 - u : u;
            deal->owner[document->piece + c] = rank;
            deal->rows[rank] += piece_begin(document, c + 1) - piece_begin(document, c);
        }
    }
}

/* Deals all documents, those with most work first: small ones make up for what these leave. */
static void deal_all(struct deal *deal)
{
    for (int rank = 0; rank < deal->ranks; rank++)
        deal->work[rank] = deal->rows[rank] = 0;
    for (int64_t d = 0; d < deal->count; d++) {
        const struct document *document = &deal->document[d];
        int64_t work = work_of(deal, document->begin, document->end);
        deal->order[d] = (struct ra_sorted){-work, d};
    }
    ra_sort(deal->order, deal->count, deal->room);
    for (int64_t i = 0; i < deal->count; i++)
        deal_document(deal, &deal->document[deal->order[i].item]);
}

/* Lists the pieces in order, with the ranks that have got them. */
static void write_list(const struct deal *deal, struct ra_layout_list *list)
{
    for (const struct document *d = deal->document; d < deal->document + deal->count; d++)
        for (int64_t c = 0; c < d->pieces; c++)
            ra_deal_add(list, deal->owner[d->piece + c], piece_begin(d, c + 1) - piece_begin(d, c));
    ra_deal_end(list, deal->ranks);
}

void ra_deal_documents(const struct ra_slices *slices, int ranks, int64_t queries, int64_t keys,
                       void *storage, struct ra_layout_list lists[2], struct ra_layout layouts[2])
{
    struct deal deal = {.slices = slices, .ranks = ranks};
    const int64_t lengths[2] = {queries, keys};
    bool alike = queries == keys;
    place(storage, ranks, lengths, slices->count, &deal, lists);
    for (int side = 0; side < (alike ? 1 : 2); side++) {
        const bool sides[2] = {side == 0, side == 1 || alike};
        deal.by_rows = side == 1;
        find_documents(&deal, sides, lengths[side]);
        deal_all(&deal);
        write_list(&deal, &lists[side]);
    }
    for (int side = 0; side < 2; side++)
        layouts[side] =
            (struct ra_layout){RA_DEALT, ranks, lengths[side], 1, &lists[alike ? 0 : side]};
}

void ra_deal_copy(const struct ra_layout from[2], void *storage, struct ra_layout_list lists[2],
                  struct ra_layout layouts[2])
{
    char *at = storage;
    bool alike = from[0].list == from[1].list;
    for (int side = 0; side < 2; side++) {
        const struct ra_layout_list *list = from[side].list;
        struct ra_layout_list *copy = &lists[alike ? 0 : side];
        layouts[side] = from[side];
        layouts[side].list = copy;
        if (alike && side == 1)
            continue;
        ra_deal_begin(copy, from[side].ranks, list->count, at);
        at += ra_deal_list_bytes(from[side].ranks, list->count);
        for (const struct ra_run *run = list->run; run < list->run + list->count; run++)
            ra_deal_add(copy, run->rank, run->count);
        ra_deal_end(copy, from[side].ranks);
    }
}
