/* letters: deals the letters of a text to ranks, in one layout per line, and collects them again. A
 * small program for chapter 05: letters TEXT RANKS. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ra_layout.h"

int main(int argc, char **argv)
{
    if (argc != 3 || strlen(argv[1]) > 99)
        return 2;
    int ranks = atoi(argv[2]);
    int64_t length = (int64_t)strlen(argv[1]);
    struct ra_layout layouts[] = {
        {RA_CONTIGUOUS, ranks, length, 1, NULL},
        {RA_STRIPED, ranks, length, 1, NULL},
        {RA_ZIGZAG, ranks, length, 1, NULL},
        {RA_STRIPED, ranks, length, ra_layout_stripes(ranks, length, 2), NULL}};
    for (int n = 0; n < 4; n++) {
        char again[100] = "";
        for (int rank = 0; rank < ranks; rank++) {
            char local[100] = "";
            ra_layout_shard(layouts[n], rank, 1, argv[1], local);
            ra_layout_unshard(layouts[n], rank, 1, local, again);
            printf("%s ", local);
        }
        printf("-> %s\n", again);
    }
}
