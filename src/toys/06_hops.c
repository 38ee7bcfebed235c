/* 06_hops: chapter 06 as a toy: which hops does a ring need, and how far does each block of keys
 * travel? It goes through all visible pairs of positions.
 *
 *     06_hops LAYOUT P N L
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64 };
static const char *layout;
static int P, N;

/* Which rank has position i. P divides N, and for zigzag 2P does. */
static int rank_of(int i)
{
    int chunk = i / (N / (2 * P));
    if (strcmp(layout, "striped") == 0)
        return i % P;
    if (strcmp(layout, "zigzag") == 0)
        return chunk < P ? chunk : 2 * P - 1 - chunk;
    return i / (N / P);
}

int main(int argc, char **argv)
{
    if (argc != 5 || (P = atoi(argv[2])) < 1 || P > MOST || (N = atoi(argv[3])) % (2 * P) != 0)
        return 2;
    layout = argv[1];
    int L = atoi(argv[4]), last[MOST] = {0}, messages = 0;
    bool taken[MOST] = {true}, seen[MOST][MOST] = {{0}}; /* seen: keys of this rank, at this hop */

    /* All visible pairs: the rank of i needs the keys of the rank of j. */
    for (int i = 0; i < N; i++)
        for (int j = i; j >= 0 && i - j <= L; j--) {
            int origin = rank_of(j), hop = (rank_of(i) - origin + P) % P;
            taken[hop] = seen[origin][hop] = true;
            last[origin] = hop > last[origin] ? hop : last[origin];
        }

    for (int origin = 0; origin < P; origin++) {
        printf("keys of rank %d are seen at hops", origin);
        for (int hop = 0; hop < P; hop++) {
            if (seen[origin][hop])
                printf(" %d", hop);
            else
                printf(" -");
            messages += taken[hop] && hop > 0 && hop <= last[origin];
        }
        printf(", last at %d\n", last[origin]);
    }
    printf("hops taken:");
    for (int hop = 0; hop < P; hop++)
        if (taken[hop])
            printf(" %d", hop);
    printf("; messages forward: %d\n", messages);
    return 0;
}
