/* pair_sums: judges exercise 3 of page 11e-tuning: a pair of blocks adds up its two shares of
 * dq before they leave, each block for half of the columns. Counts what that moves in the shared
 * memory of a block, in every step of k07 with D = 128.
 */
#include <stddef.h>
#include <stdio.h>

/* The reader's, in bytes. */
#include "pair.h"

enum { SHARE = 64 * 128 * 4, HALF = SHARE / 2 };

/* Clocks of a step for all that shared memory does but for dq, and for each byte more; clocks for
 * each byte that is added in L2. See balance.c. */
static const double OTHERS = 2048, FOR_BYTE = 1 / 128.0, FOR_BYTE_ADDED = 1 / 14.7;

int main(void)
{
    enum { STORE = HALF, COMES = HALF, READ = HALF, TMA_READS = HALF };
    const struct {
        const char *name;
        int yours, wanted;
    } answers[] = {
        {"both_stored", both_stored(), STORE + COMES + 2 * READ + STORE + TMA_READS},
        {"own_in_registers", own_in_registers(), COMES + READ + STORE + TMA_READS},
        {"leaves", leaves(), TMA_READS},
    };
    int wrong = 0;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (answers[i].yours != answers[i].wanted) {
            printf("%s: %d bytes are too %s\n", answers[i].name, answers[i].yours,
                   answers[i].yours < answers[i].wanted ? "few" : "many");
            wrong++;
        }
    if (!wrong)
        printf("clocks of shared memory: %.0f now, %.0f if both are stored, %.0f if not; "
               "of sums: %.0f now, then %.0f\n",
               OTHERS + 2 * SHARE * FOR_BYTE, OTHERS + both_stored() * FOR_BYTE,
               OTHERS + own_in_registers() * FOR_BYTE, SHARE * FOR_BYTE_ADDED,
               leaves() * FOR_BYTE_ADDED);
    return wrong > 0;
}
