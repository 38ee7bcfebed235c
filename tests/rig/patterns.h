/* patterns: masks of slices for tests: those that people ask for, by name, and random ones. */
#ifndef PATTERNS_H
#define PATTERNS_H

#include "ra_slice.h"

/* The first eight need as many keys as queries. */
enum pattern {
    CAUSAL_DOCUMENTS,
    DOCUMENTS,
    WINDOWED_DOCUMENTS,
    PREFIXES,
    CHUNKS,
    TWO_SIDED_WINDOW,
    FIRST_TOKENS,
    ANSWERS,
    PAIRS_OF_DOCUMENTS,
    NO_SLICES,
    RANDOM_SLICES,
    PATTERNS
};

/* Their words for people, ended by NULL. */
extern const char *const pattern_words[PATTERNS + 1];

enum { PATTERN_SLICES = 80 }; /* more than any pattern has */

/* Whether this pattern can be had on this many queries and keys. */
bool pattern_fits(enum pattern pattern, int64_t queries, int64_t keys);

/* Writes the slices of a pattern, drawn from the state; returns how many. They do not overlap, and
 * stand in any order. */
int64_t pattern_make(enum pattern pattern, int64_t queries, int64_t keys, uint64_t *state,
                     struct ra_slice slices[PATTERN_SLICES]);

#endif
