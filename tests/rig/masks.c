/* masks: draws a list of slices: a row for each query, a column for each key, a letter for each
 * slice. A small program for chapter 13: masks QUERIES KEYS SLICE..., where a slice is
 * q0,q1,k0,k1,lo,hi and a bound of `-` is none. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_slices.h"

enum { MOST = 26 };

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

int main(int argc, char **argv)
{
    struct ra_slice given[MOST];
    struct ra_slices slices;
    char error[RA_ERROR_SIZE];
    int64_t count = argc - 3;
    if (argc < 3 || count > MOST)
        return 2;
    int64_t queries = atoll(argv[1]), keys = atoll(argv[2]);
    for (int64_t s = 0; s < count; s++) {
        int64_t *numbers[] = {&given[s].q0, &given[s].q1, &given[s].k0,
                              &given[s].k1, &given[s].lo, &given[s].hi};
        char *text = argv[3 + s];
        for (int n = 0; n < 6; n++)
            *numbers[n] = number(&text, n == 4 ? -RA_BAND_FAR : RA_BAND_FAR);
    }

    /* The list is read, so that one that overlaps is refused, as the library refuses it. */
    void *storage = malloc((size_t)ra_slices_storage(count) + 1);
    if (!storage || ra_slices_read(&slices, given, count, queries, keys, storage, error) != RA_OK) {
        fprintf(stderr, "masks: %s\n", storage ? error : "no memory");
        return 1;
    }
    for (int64_t i = 0; i < queries; i++) {
        for (int64_t j = 0; j < keys; j++) {
            char letter = '.';
            for (int64_t s = 0; s < count; s++)
                if (i >= given[s].q0 && i < given[s].q1 && j >= given[s].k0 && j < given[s].k1 &&
                    j - i >= given[s].lo && j - i <= given[s].hi)
                    letter = (char)('a' + s);
            printf(" %c", letter);
        }
        puts("");
    }
    free(storage);
}
