/* ra_tokens: a file of tokens, read piece by piece.
 *
 * Chapter 10. New here: the file is never in memory as a whole, so it may be larger than the memory
 * of any rank.
 */
#ifndef RA_TOKENS_H
#define RA_TOKENS_H

#include <stdbool.h>
#include <stdint.h>
#include "ra_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a file without a type of its own has: tokens one after the other, little-endian and without
 * a header, or as llm.c writes them: its header of 1,024 bytes says whether uint16 or uint32
 * follows. NAME.bin of Megatron-LM has no header, but NAME.idx beside it: that says the type, and
 * where documents end. */
enum ra_token_type {
    RA_TOKEN_UINT8,
    RA_TOKEN_UINT16,
    RA_TOKEN_UINT32,
    RA_TOKEN_LLMC,
    RA_TOKEN_MEGATRON
};

/* A file whose path ends with .npy has an array of integers: with one axis, a text; with two,
 * (samples, columns), a text in each row, where negative numbers are padding. Any other file is a
 * text of tokens of the type that its reader names. If the file becomes shorter while it is open,
 * reading a token that is gone is an error. */
struct ra_tokens {
    int64_t count;   /* of tokens and padding, at least 1 */
    int64_t columns; /* of a row; 0: there are no rows, but one text */

    /* Tokens are 0 .. vocabulary - 1. To begin with this is what the type of the file can hold: 256
     * for bytes, 65,536 for uint16, 2^31 at most. The caller may lower it to that of a model: then
     * a token from there on is an error where it is read. */
    int64_t vocabulary;

    /* Where documents end, if the file says so: number d has the tokens before ends[d], from
     * ends[d - 1] on. 0 and NULL: it does not. */
    int64_t documents, *ends;

    /* For the functions below. */
    int type, file, width;         /* of npy.h; descriptor; bytes of a token */
    int64_t start;                 /* bytes before the first token */
    bool raw;                      /* errors tell bytes, too */
    struct ra_tokens_block *block; /* what has been read last */
    char path[160];                /* the end of it, for errors */
};

/* Opens a file; `type` says what it has unless it is a .npy. RA_INVALID: it cannot be read, is
 * empty, or is no file of this type; error (RA_ERROR_SIZE characters) names the path, and there is
 * nothing to close. */
RA_CHECKED enum ra_status ra_tokens_open(struct ra_tokens *tokens, const char *path,
                                         enum ra_token_type type, char *error);

/* Reads token number `index`, of rows one after the other; padding is -1. One thread at a time.
 * RA_INVALID: there is no such token, it cannot be read, or it is outside of the vocabulary; the
 * error names path and index. */
RA_CHECKED enum ra_status ra_tokens_get(const struct ra_tokens *tokens, int64_t index,
                                        int32_t *token, char *error);

/* Reads tokens first, ..., end - 1, refuses one outside of the vocabulary, and adds them to a
 * checksum, which depends on their values alone: a file of another type with the same tokens has
 * the same. All parts but the last must have a multiple of RA_TOKENS_PART tokens. */
enum { RA_TOKENS_PART = 1024 };
RA_CHECKED enum ra_status ra_tokens_scan(const struct ra_tokens *tokens, int64_t first, int64_t end,
                                         uint64_t *sum, char *error);

/* Closes the file. Closing twice is harmless. */
void ra_tokens_close(struct ra_tokens *tokens);

#ifdef __cplusplus
}
#endif

#endif
