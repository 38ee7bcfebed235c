/* ra_dataset: samples of tokens to train on, and the label of every token. See ra_dataset.h.
 *
 * Chapter 10.
 */
#include "ra_dataset.h"
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include "ra_random.h"

/* Rounds of the Feistel network. Four are enough in theory, for large domains; small ones want
 * more. */
enum { ROUNDS = 8 };

/* Checks that a text is long enough for a window. */
static enum ra_status check_text(const struct ra_tokens *tokens, int64_t length, char *error)
{
    if (length >= 1 && length < tokens->count)
        return RA_OK;
    snprintf(error, RA_ERROR_SIZE,
             "length = %" PRId64 ": give 1 to %" PRId64 ", as %s has %" PRId64
             " tokens, and a window needs one more than its length, for its last label",
             length, tokens->count - 1, tokens->path, tokens->count);
    return RA_INVALID;
}

/* Checks that rows are as long as a window needs, and that each has a label: two tokens side by
 * side. So there is no step without labels, whose loss would be nothing. */
static enum ra_status check_rows(const struct ra_tokens *tokens, int64_t length,
                                 int64_t document_end, char *error)
{
    int64_t columns = tokens->columns;
    if (length != columns - 1 || length < 1) {
        snprintf(error, RA_ERROR_SIZE,
                 "length = %" PRId64 ": %s has rows of %" PRId64
                 " tokens, which are not cut, and the last is a label only: the length must be "
                 "%" PRId64 ", and at least 1",
                 length, tokens->path, columns, columns - 1);
        return RA_INVALID;
    }
    for (int64_t first = 0; first < tokens->count; first += columns) {
        int32_t token = -1, before = -1;
        bool labelled = false;
        for (int64_t c = 0; c < columns && !labelled; c++) {
            before = token;
            if (ra_tokens_get(tokens, first + c, &token, error) != RA_OK)
                return RA_INVALID;
            labelled = token >= 0 && before >= 0 && before != document_end;
        }
        if (!labelled) {
            snprintf(error, RA_ERROR_SIZE,
                     "%s: row %" PRId64 " has no two tokens side by side in a document, so no "
                     "label: take it out",
                     tokens->path, first / columns);
            return RA_INVALID;
        }
    }
    return RA_OK;
}

static enum ra_status check_window(const struct ra_dataset *dataset, int64_t window, char *error)
{
    if (window >= 0 && window < dataset->windows)
        return RA_OK;
    snprintf(error, RA_ERROR_SIZE, "window = %" PRId64 ": give 0 to %" PRId64, window,
             dataset->windows - 1);
    return RA_INVALID;
}

/* Where a window begins in the file. */
static int64_t begin_of(const struct ra_dataset *dataset, int64_t window)
{
    int64_t columns = dataset->tokens->columns;
    return window * (columns > 0 ? columns : dataset->length);
}

/* How many documents of the file end at token number i or before. */
static int64_t ended_by(const struct ra_tokens *tokens, int64_t i)
{
    int64_t low = 0, high = tokens->documents;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (tokens->ends[middle] <= i + 1)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Does a document end with token number i of the file? */
static bool ends_document(const struct ra_dataset *dataset, int64_t i, int32_t token)
{
    const struct ra_tokens *tokens = dataset->tokens;
    int64_t ended = tokens->documents > 0 ? ended_by(tokens, i) : 0;
    return (token >= 0 && token == dataset->document_end) ||
           (ended > 0 && tokens->ends[ended - 1] == i + 1);
}

/* Counts the documents of a window, and writes their bounds unless that is NULL. */
static enum ra_status find_documents(const struct ra_dataset *dataset, int64_t window,
                                     int64_t *bounds, int64_t *count, char *error)
{
    int64_t N = dataset->length, first = begin_of(dataset, window);
    int32_t token = -1;
    *count = 0;
    for (int64_t i = 0; i < N; i++) {
        if (i == 0 || ends_document(dataset, first + i - 1, token)) {
            if (bounds)
                bounds[*count] = i;
            ++*count;
        }
        if (dataset->document_end >= 0 &&
            ra_tokens_get(dataset->tokens, first + i, &token, error) != RA_OK)
            return RA_INVALID;
    }
    if (bounds)
        bounds[*count] = N;
    return RA_OK;
}

/* Refuses a window of a text without a label: `count` documents of one token each, which it ends.
 * The loss of a step with such windows alone would be nothing. */
static enum ra_status check_labels(const struct ra_dataset *dataset, int64_t window, int64_t count,
                                   char *error)
{
    const struct ra_tokens *tokens = dataset->tokens;
    int64_t first = begin_of(dataset, window), last = first + dataset->length - 1;
    int32_t token = -1;
    if (tokens->columns > 0 || count < dataset->length) /* rows have been checked */
        return RA_OK;
    if (ra_tokens_get(tokens, last, &token, error) != RA_OK)
        return RA_INVALID;
    if (!ends_document(dataset, last, token))
        return RA_OK;
    snprintf(error, RA_ERROR_SIZE,
             "%s: each of the tokens [%" PRId64 "] to [%" PRId64
             "] ends a document, so their window has no label: take them out, or give a larger "
             "length",
             tokens->path, first, last);
    return RA_INVALID;
}

/* How many documents a window has at most. A token that ends none, anywhere, is a mistake. */
static enum ra_status count_documents(struct ra_dataset *dataset, char *error)
{
    const struct ra_tokens *tokens = dataset->tokens;
    int32_t token = -1;
    bool named = dataset->document_end >= 0;
    for (int64_t i = 0; i < tokens->count && named && token != dataset->document_end; i++)
        if (ra_tokens_get(tokens, i, &token, error) != RA_OK)
            return RA_INVALID;
    if (named && token != dataset->document_end) {
        snprintf(error, RA_ERROR_SIZE,
                 "document_end = %" PRId64 ": %s has no such token, so no document would end",
                 dataset->document_end, tokens->path);
        return RA_INVALID;
    }
    for (int64_t w = 0, count; w < dataset->windows; w++) {
        if (find_documents(dataset, w, NULL, &count, error) != RA_OK ||
            check_labels(dataset, w, count, error) != RA_OK)
            return RA_INVALID;
        if (count > dataset->most_documents)
            dataset->most_documents = count;
    }
    return RA_OK;
}

enum ra_status ra_dataset_documents(const struct ra_dataset *dataset, int64_t window,
                                    int64_t *bounds, int64_t *count, char *error)
{
    enum ra_status status = check_window(dataset, window, error);
    return status == RA_OK ? find_documents(dataset, window, bounds, count, error) : status;
}

enum ra_status ra_dataset_open(struct ra_dataset *dataset, const struct ra_tokens *tokens,
                               int64_t length, double validation, uint64_t seed,
                               int64_t document_end, char *error)
{
    bool rows = tokens->columns > 0;
    enum ra_status status =
        rows ? check_rows(tokens, length, document_end, error) : check_text(tokens, length, error);
    if (status != RA_OK)
        return status;
    if (document_end < -1) {
        snprintf(error, RA_ERROR_SIZE, "document_end = %" PRId64 ": give a token, or -1 for none",
                 document_end);
        return RA_INVALID;
    }
    /* Written so that NaN is refused, too. */
    if (!(validation >= 0 && validation < 1)) {
        snprintf(error, RA_ERROR_SIZE, "validation = %g: give a share of at least 0 and below 1",
                 validation);
        return RA_INVALID;
    }
    int64_t windows = rows ? tokens->count / tokens->columns : (tokens->count - 1) / length;
    int64_t held_out = llround(validation * (double)windows);
    if (validation > 0 && held_out == 0)
        held_out = 1;
    if (held_out >= windows) {
        snprintf(error, RA_ERROR_SIZE,
                 "validation = %g: leaves nothing to train on of the %" PRId64
                 " windows of %" PRId64 " tokens in %s; give less, or 0, or a smaller length",
                 validation, windows, length, tokens->path);
        return RA_INVALID;
    }
    *dataset =
        (struct ra_dataset){tokens, length, windows, windows - held_out, seed, document_end, 1};
    return document_end >= 0 || tokens->documents > 0 ? count_documents(dataset, error) : RA_OK;
}

int64_t ra_dataset_left_out(const struct ra_dataset *dataset)
{
    if (dataset->tokens->columns > 0)
        return 0;
    /* The token after the last window is its last label. */
    return dataset->tokens->count - 1 - dataset->windows * dataset->length;
}

/* Where number i goes in a permutation of 0 .. count - 1 that follows from the key. A Feistel
 * network permutes all numbers of 2 * half bits (M. Luby, C. Rackoff, How to construct pseudorandom
 * permutations from pseudorandom functions, 1988): a round exchanges the halves and changes one by
 * what only depends on the other, so that it can be undone. A number that is too large is permuted
 * again until it is not (J. Black, P. Rogaway, Ciphers with arbitrary finite domains, 2002: cycle
 * walking): there are at most four times as many numbers, so that this takes at most four
 * permutations on average. */
static int64_t permute(uint64_t key, int64_t count, int64_t i)
{
    int half = 1;
    while (count > INT64_C(1) << 2 * half)
        half++;
    uint64_t mask = (UINT64_C(1) << half) - 1, x = (uint64_t)i;
    do {
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t left = x >> half, right = x & mask;
            x = right << half | (left ^ (ra_random_mix(key + ROUNDS * right + round) & mask));
        }
    } while (x >= (uint64_t)count);
    return (int64_t)x;
}

int64_t ra_dataset_window(const struct ra_dataset *dataset, int64_t sample)
{
    uint64_t epoch = (uint64_t)(sample / dataset->training);
    return permute(ra_random_mix(ra_random_mix(dataset->seed) + epoch), dataset->training,
                   sample % dataset->training);
}

enum ra_status ra_dataset_read(const struct ra_dataset *dataset, int64_t window, int64_t count,
                               const int64_t *positions, int32_t *tokens, int32_t *labels,
                               char *error)
{
    int64_t N = dataset->length;
    if (check_window(dataset, window, error) != RA_OK)
        return RA_INVALID;
    for (int64_t a = 0; a < count; a++) {
        if (positions[a] < 0 || positions[a] >= N) {
            snprintf(error, RA_ERROR_SIZE,
                     "positions[%" PRId64 "] = %" PRId64 ": give 0 to %" PRId64, a, positions[a],
                     N - 1);
            return RA_INVALID;
        }
        /* The label by its position, and not by its place in the shard: in a shard the next token
         * may be P positions on, and that of the last one is on another rank. */
        int64_t i = begin_of(dataset, window) + positions[a];
        if (ra_tokens_get(dataset->tokens, i, &tokens[a], error) != RA_OK ||
            ra_tokens_get(dataset->tokens, i + 1, &labels[a], error) != RA_OK)
            return RA_INVALID;
        if (tokens[a] < 0 || ends_document(dataset, i, tokens[a]))
            labels[a] = -1;
    }
    return RA_OK;
}
