/* patterns: masks of slices for tests. See patterns.h. */
#include "patterns.h"

#include "numbers.h"
#include "ra_math.h"

enum { MOST_DOCUMENTS = 12, MOST_CUTS = 5 };

const char *const pattern_words[PATTERNS + 1] = {
    "causal-documents", "documents", "windowed-documents",
    "prefixes",         "chunks",    "window",
    "first-tokens",     "answers",   "pairs",
    "no-slices",        "random",    NULL};

bool pattern_fits(enum pattern pattern, int64_t queries, int64_t keys)
{
    return queries == keys || pattern >= PAIRS_OF_DOCUMENTS;
}

/* Where documents begin in `rows`: 0, then `count` random rows in ascending order, the last of them
 * at the end. Some may be empty. */
static void draw_bounds(int64_t rows, int64_t count, uint64_t *state, int64_t *bounds)
{
    bounds[0] = 0;
    for (int64_t i = 1; i <= count; i++) {
        int64_t row = i < count ? random_below(state, rows + 1) : rows, at = i;
        for (; bounds[at - 1] > row; at--)
            bounds[at] = bounds[at - 1];
        bounds[at] = row;
    }
}

/* Cuts a slice by a query, by a key or by a diagonal, and those that come out again; keeps most.
 * So the slices of a random mask never overlap, and touch wherever slices can. */
static int64_t cut(struct ra_slice slice, int cuts, uint64_t *state, struct ra_slice *out)
{
    int64_t lowest = ra_max(slice.lo, slice.k0 - slice.q1 + 1);
    int64_t highest = ra_min(slice.hi, slice.k1 - 1 - slice.q0);
    struct ra_slice rest = slice;
    if (cuts == 0 || lowest > highest) {
        out[0] = slice;
        return random_below(state, 4) > 0;
    }
    switch (random_below(state, 3)) {
    case 0:
        slice.q1 = rest.q0 = slice.q0 + random_below(state, slice.q1 - slice.q0 + 1);
        break;
    case 1:
        slice.k1 = rest.k0 = slice.k0 + random_below(state, slice.k1 - slice.k0 + 1);
        break;
    default:
        rest.lo = lowest + random_below(state, highest - lowest + 1);
        slice.hi = rest.lo - 1;
    }
    int64_t count = cut(slice, cuts - 1, state, out);
    return count + cut(rest, cuts - 1, state, out + count);
}

int64_t pattern_make(enum pattern pattern, int64_t queries, int64_t keys, uint64_t *state,
                     struct ra_slice slices[PATTERN_SLICES])
{
    int64_t bounds[MOST_DOCUMENTS + 1], key_bounds[MOST_DOCUMENTS + 1], prefixes[MOST_DOCUMENTS];
    int64_t documents = 1 + random_below(state, MOST_DOCUMENTS), used = 0;
    int64_t back = random_below(state, ra_min(keys, 40) + 1), ahead = random_below(state, 9);
    draw_bounds(queries, documents, state, bounds);
    draw_bounds(keys, documents, state, key_bounds);
    for (int64_t i = 0; i < documents; i++)
        prefixes[i] = random_below(state, bounds[i + 1] - bounds[i] + 1);
    switch (pattern) {
    case CAUSAL_DOCUMENTS:
        used = ra_slices_documents(bounds, documents, RA_NO_LOOKBACK, 0, slices);
        break;
    case DOCUMENTS:
        used = ra_slices_documents(bounds, documents, RA_NO_LOOKBACK, RA_NO_LOOKBACK, slices);
        break;
    case WINDOWED_DOCUMENTS:
        used = ra_slices_documents(bounds, documents, back, 0, slices);
        break;
    case PREFIXES:
        used = ra_slices_prefix(bounds, documents, prefixes, slices);
        break;
    case CHUNKS:
        used = ra_slices_chunks(queries, 1 + queries / 70 + random_below(state, 30), slices);
        break;
    case TWO_SIDED_WINDOW:
        used = ra_slices_window(queries, keys, back, ahead, slices);
        break;
    case FIRST_TOKENS:
        used = ra_slices_first(bounds, documents, 1 + ahead, back, slices);
        break;
    case ANSWERS:
        used = ra_slices_answers(bounds, documents, slices);
        break;
    case PAIRS_OF_DOCUMENTS:
        used = ra_slices_pairs(bounds, key_bounds, documents, slices);
        break;
    case RANDOM_SLICES:
        used = cut((struct ra_slice){0, queries, 0, keys, -RA_BAND_FAR, RA_BAND_FAR}, MOST_CUTS,
                   state, slices);
        break;
    default:
        break;
    }
    for (int64_t i = used - 1; i > 0; i--) {
        int64_t other = random_below(state, i + 1);
        struct ra_slice kept = slices[i];
        slices[i] = slices[other];
        slices[other] = kept;
    }
    return used;
}
