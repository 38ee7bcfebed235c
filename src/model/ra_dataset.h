/* ra_dataset: samples of tokens to train on, and the label of every token.
 *
 * Chapter 10. New here: labels that are shifted before the sequence is cut into shards, and an
 * order that needs no memory and can be resumed at any sample.
 *
 * A text is cut into windows: w has the tokens w * N .. w * N + N - 1. The label of a token is the
 * token after it, even if that is in the next window: a rank asks for positions of a window, and no
 * rank needs a token of another. The last windows are kept for validation.
 *
 * A text may be packed: documents one after the other, each with a token that ends it. Then a
 * window has parts of documents, cut at its borders too, and no token learns what the next document
 * begins with: the token that ends one has no label, and is the label of the token before it. If
 * the file says where documents end (ra_tokens.h), no such token is needed: the last token of each
 * has no label.
 *
 * Of an array of two axes each row is a window, of N = columns - 1 positions, as the last column is
 * a label only. Padding has no label, and is never one.
 */
#ifndef RA_DATASET_H
#define RA_DATASET_H

#include <stdint.h>
#include "ra_status.h"
#include "ra_tokens.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ra_dataset {
    const struct ra_tokens *tokens;
    int64_t length;         /* N, tokens of a window */
    int64_t windows;        /* of the whole file */
    int64_t training;       /* windows 0 .. training - 1 are trained on, at least 1 */
    uint64_t seed;          /* of their order */
    int64_t document_end;   /* the token that ends a document; -1: windows have no documents */
    int64_t most_documents; /* parts of documents in a window, at most */
};

/* Cuts tokens, which stay the caller's and must stay open, into windows. Rows are not cut: their
 * length must be columns - 1. Each window must have a label. The share `validation` of the windows,
 * 0 <= validation < 1, rounded, and at least one if it is not 0, is never trained on. If there is a
 * document_end (-1: none) all tokens are read once, and one of them must be it. error has room for
 * RA_ERROR_SIZE characters. */
RA_CHECKED enum ra_status ra_dataset_open(struct ra_dataset *dataset,
                                          const struct ra_tokens *tokens, int64_t length,
                                          double validation, uint64_t seed, int64_t document_end,
                                          char *error);

/* Counts the tokens at the end of the file that are in no window, not even as a label. */
int64_t ra_dataset_left_out(const struct ra_dataset *dataset);

/* Returns the window that is sample number `sample`, 0, 1, 2, ... of training. Each epoch,
 * `training` samples long, has every window once, in an order of its own that follows from the
 * seed. */
int64_t ra_dataset_window(const struct ra_dataset *dataset, int64_t sample);

/* Finds the documents of a window: writes where each begins, and N after the last, into bounds, and
 * their number into count. The caller owns bounds, of most_documents + 1 numbers; they are those
 * that ra_slices_documents takes. Without a document_end the window is one. */
RA_CHECKED enum ra_status ra_dataset_documents(const struct ra_dataset *dataset, int64_t window,
                                               int64_t *bounds, int64_t *count, char *error);

/* Reads tokens and labels at `count` positions, each 0 .. N - 1, of a window: one of training, or
 * of validation, training .. windows - 1. Padding is -1, and so is a label where the token or the
 * next one is padding, or the token ends a document. The caller owns the arrays, of count numbers
 * each. */
RA_CHECKED enum ra_status ra_dataset_read(const struct ra_dataset *dataset, int64_t window,
                                          int64_t count, const int64_t *positions, int32_t *tokens,
                                          int32_t *labels, char *error);

#ifdef __cplusplus
}
#endif

#endif
