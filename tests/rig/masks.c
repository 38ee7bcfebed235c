/* masks: draws a list of slices: a row for each query, a column for each key, a letter for each
 * slice. It draws what ra_slice_cut makes of them between ranks that have stripes. A small program
 * for chapter 13: masks QUERIES KEYS RANKS SLICE..., where a slice is q0,q1,k0,k1,lo,hi and a bound
 * of `-` is none. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_slices.h"

enum { MOST = 26, LONGEST = 60 };

/* Reads the number that a text begins with, or none for `-`, and moves behind the comma. */
static int64_t number(char **text, int64_t none)
{
    char *end = *text + 1;
    int64_t value = none;
    if (**text != '-' || (*end != ',' && *end != '\0'))
        value = strtoll(*text, &end, 10);
    *text = *end == ',' ? end + 1 : end;
    return value;
}

/* The rows that a rank has of a sequence, striped. */
static struct ra_span stripe(int64_t length, int ranks, int rank)
{
    return (struct ra_span){rank, ranks, (length - rank + ranks - 1) / ranks};
}

/* Draws what the queries of one stripe see of the keys of another. False: there are rows, but
 * nobody sees anything. */
static bool draw(const struct ra_slice *slice, struct ra_span queries, struct ra_span keys,
                 char letter, char picture[LONGEST][LONGEST])
{
    struct ra_span_pair cut = ra_slice_cut(slice, queries, keys);
    bool seen = cut.rows == 0;
    for (int64_t a = 0; a < cut.rows; a++)
        for (int64_t b = 0; b < cut.visitors; b++)
            if (b - a >= cut.band.lo && b - a <= cut.band.hi) {
                int64_t i = queries.first + (cut.a + a) * queries.stride;
                int64_t j = keys.first + (cut.b + b) * keys.stride;
                picture[i][j] = letter;
                seen = true;
            }
    return seen;
}

int main(int argc, char **argv)
{
    struct ra_slice given[MOST];
    struct ra_slices slices;
    char error[RA_ERROR_SIZE], picture[LONGEST][LONGEST];
    int64_t count = argc - 4;
    if (argc < 4 || count > MOST)
        return 2;
    int64_t N = atoll(argv[1]), M = atoll(argv[2]);
    int ranks = atoi(argv[3]);
    if (ranks < 1 || ranks > N || ranks > M || N > LONGEST || M > LONGEST)
        return 2;
    for (int64_t s = 0; s < count; s++) {
        int64_t *numbers[] = {&given[s].q0, &given[s].q1, &given[s].k0,
                              &given[s].k1, &given[s].lo, &given[s].hi};
        char *text = argv[4 + s];
        for (int n = 0; n < 6; n++)
            *numbers[n] = number(&text, n == 4 ? -RA_BAND_FAR : RA_BAND_FAR);
    }

    /* The list is read, so that one that overlaps is refused, as the library refuses it. */
    void *storage = malloc((size_t)ra_slices_storage(count) + 1);
    if (!storage || ra_slices_read(&slices, given, count, N, M, storage, error) != RA_OK) {
        fprintf(stderr, "masks: %s\n", storage ? error : "no memory");
        return 1;
    }
    free(storage);

    memset(picture, '.', sizeof picture);
    for (int64_t s = 0; s < count; s++)
        for (int pair = 0; pair < ranks * ranks; pair++)
            if (!draw(&given[s], stripe(N, ranks, pair / ranks), stripe(M, ranks, pair % ranks),
                      (char)('a' + s), picture)) {
                fprintf(stderr, "masks: slice %c: a cut with rows, in which nobody sees anything\n",
                        (char)('a' + s));
                return 1;
            }
    for (int64_t i = 0; i < N; i++) {
        for (int64_t j = 0; j < M; j++)
            printf(" %c", picture[i][j]);
        puts("");
    }
}
