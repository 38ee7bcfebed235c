/* guessed: judges exercises 2 and 3 of page 11f-ring, and 4 of 11f-transports: what becomes of
 * changed copies of `streams`. `guess.h` has the reader's guesses, and the input a line that each
 * copy has printed.
 */
#include <stdbool.h>
#include <stdio.h>

struct guess {
    bool stuck, wrong;
};

/* The reader's. */
#include "guess.h"

static int judge(int copy, const char *what, bool guess, int runs)
{
    if (guess != (runs > 0))
        printf("copy %d: %d runs %s\n", copy, runs, what);
    return guess != (runs > 0);
}

int main(void)
{
    int count = (int)(sizeof guesses / sizeof guesses[0]), wrong = 0, stuck, mixed;
    for (int i = 0; i < count; i++) {
        if (scanf("%*d runs: %d got stuck, %d used wrong keys", &stuck, &mixed) != 2)
            return 2;
        wrong += judge(i + 1, "got stuck", guesses[i].stuck, stuck);
        wrong += judge(i + 1, "used wrong keys", guesses[i].wrong, mixed);
    }
    return wrong > 0;
}
