/* ra_slice: masks as people name them, written as slices. See ra_slice.h. */
#include "ra_slice.h"
#include "ra_math.h"

/* So far back, or ahead, seen from a query at distance `shift` of its own position. */
static int64_t back_of(int64_t back, int64_t shift)
{
    return back >= RA_BAND_FAR ? -RA_BAND_FAR : shift - back;
}

static int64_t ahead_of(int64_t ahead, int64_t shift)
{
    return ahead >= RA_BAND_FAR ? RA_BAND_FAR : shift + ahead;
}

int64_t ra_slices_documents(const int64_t *bounds, int64_t count, int64_t back, int64_t ahead,
                            struct ra_slice *slices)
{
    for (int64_t i = 0; i < count; i++)
        slices[i] = (struct ra_slice){bounds[i],     bounds[i + 1],    bounds[i],
                                      bounds[i + 1], back_of(back, 0), ahead_of(ahead, 0)};
    return count;
}

int64_t ra_slices_window(int64_t queries, int64_t keys, int64_t back, int64_t ahead,
                         struct ra_slice *slices)
{
    int64_t shift = keys - queries;
    slices[0] =
        (struct ra_slice){0, queries, 0, keys, back_of(back, shift), ahead_of(ahead, shift)};
    return 1;
}

/* Writes two slices for a document: all of it sees its first `first` rows as far as `ahead`, and
 * the others as far as `back`. */
static void write_two(int64_t begin, int64_t end, int64_t first, int64_t ahead, int64_t back,
                      struct ra_slice *slices)
{
    int64_t cut = begin + ra_min(first, end - begin);
    slices[0] = (struct ra_slice){begin, end, begin, cut, -RA_BAND_FAR, ahead_of(ahead, 0)};
    slices[1] = (struct ra_slice){begin, end, cut, end, back_of(back, 0), 0};
}

int64_t ra_slices_prefix(const int64_t *bounds, int64_t count, const int64_t *prefixes,
                         struct ra_slice *slices)
{
    for (int64_t i = 0; i < count; i++)
        write_two(bounds[i], bounds[i + 1], prefixes[i], RA_BAND_FAR, RA_BAND_FAR, slices + 2 * i);
    return 2 * count;
}

int64_t ra_slices_chunks(int64_t length, int64_t chunk, struct ra_slice *slices)
{
    int64_t count = 0;
    for (int64_t begin = 0; begin < length; begin += chunk) {
        int64_t end = ra_min(begin + chunk, length);
        slices[count++] = (struct ra_slice){begin, end, begin, end, -RA_BAND_FAR, 0};
    }
    return count;
}

int64_t ra_slices_first(const int64_t *bounds, int64_t count, int64_t first, int64_t back,
                        struct ra_slice *slices)
{
    for (int64_t i = 0; i < count; i++)
        write_two(bounds[i], bounds[i + 1], first, 0, back, slices + 2 * i);
    return 2 * count;
}

int64_t ra_slices_pairs(const int64_t *query_bounds, const int64_t *key_bounds, int64_t count,
                        struct ra_slice *slices)
{
    for (int64_t i = 0; i < count; i++)
        slices[i] = (struct ra_slice){query_bounds[i],   query_bounds[i + 1], key_bounds[i],
                                      key_bounds[i + 1], -RA_BAND_FAR,        RA_BAND_FAR};
    return count;
}

int64_t ra_slices_answers(const int64_t *bounds, int64_t count, struct ra_slice *slices)
{
    for (int64_t i = 0; i < count; i++)
        slices[i] = (struct ra_slice){
            bounds[i], bounds[i == 0 ? count : i + 1], bounds[i], bounds[i + 1], -RA_BAND_FAR, 0};
    return count;
}

void ra_slices_places(const int64_t *bounds, int64_t count, int64_t rows, int64_t *positions)
{
    for (int64_t a = 0; a < rows; a++) {
        /* The last document that does not begin after it. */
        int64_t low = 0, high = count - 1;
        while (low < high) {
            int64_t middle = (low + high + 1) / 2;
            if (bounds[middle] <= positions[a])
                low = middle;
            else
                high = middle - 1;
        }
        positions[a] -= bounds[low];
    }
}
