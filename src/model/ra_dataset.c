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
static enum ra_status check_rows(const struct ra_tokens *tokens, int64_t length, char *error)
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
        for (int64_t c = 0; c < columns && (token < 0 || before < 0); c++) {
            before = token;
            if (ra_tokens_get(tokens, first + c, &token, error) != RA_OK)
                return RA_INVALID;
        }
        if (token < 0 || before < 0) {
            snprintf(error, RA_ERROR_SIZE,
                     "%s: row %" PRId64 " has no two tokens side by side, so no label: take it out",
                     tokens->path, first / columns);
            return RA_INVALID;
        }
    }
    return RA_OK;
}

enum ra_status ra_dataset_open(struct ra_dataset *dataset, const struct ra_tokens *tokens,
                               int64_t length, double validation, uint64_t seed, char *error)
{
    bool rows = tokens->columns > 0;
    enum ra_status status =
        rows ? check_rows(tokens, length, error) : check_text(tokens, length, error);
    if (status != RA_OK)
        return status;
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
    *dataset = (struct ra_dataset){tokens, length, windows, windows - held_out, seed};
    return RA_OK;
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
    int64_t N = dataset->length, columns = dataset->tokens->columns;
    if (window < 0 || window >= dataset->windows) {
        snprintf(error, RA_ERROR_SIZE, "window = %" PRId64 ": give 0 to %" PRId64, window,
                 dataset->windows - 1);
        return RA_INVALID;
    }
    for (int64_t a = 0; a < count; a++) {
        if (positions[a] < 0 || positions[a] >= N) {
            snprintf(error, RA_ERROR_SIZE,
                     "positions[%" PRId64 "] = %" PRId64 ": give 0 to %" PRId64, a, positions[a],
                     N - 1);
            return RA_INVALID;
        }
        /* The label by its position, and not by its place in the shard: in a shard the next token
         * may be P positions on, and that of the last one is on another rank. */
        int64_t i = window * (columns > 0 ? columns : N) + positions[a];
        if (ra_tokens_get(dataset->tokens, i, &tokens[a], error) != RA_OK ||
            ra_tokens_get(dataset->tokens, i + 1, &labels[a], error) != RA_OK)
            return RA_INVALID;
        if (tokens[a] < 0)
            labels[a] = -1;
    }
    return RA_OK;
}
