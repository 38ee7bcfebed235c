/* held: what k06_dq would have to store if its tiles had a row for each key.
 *
 * Chapter 11e, exercise 4. `guess.h` has the reader's numbers. Two warpgroups have 64 rows each of
 * a tile of 128 queries and 128 keys, and each multiplies dq of 64 queries. A left operand in
 * registers has its own rows: those of the result.
 */
#include <stdbool.h>
#include <stdio.h>

#include "guess.h"

enum { TILE = 128, ROWS = 64, DIM = 128, KIB = 1024 };

/* Bytes of ds, in 16 bits, that are not in the registers of the warpgroup that needs them, in its
 * rows. */
static int stored(bool rows_are_keys)
{
    int bytes = 0;
    for (int query = 0; query < TILE; query++)
        for (int key = 0; key < TILE; key++) {
            int has = (rows_are_keys ? key : query) / ROWS, needs = query / ROWS;
            bytes += rows_are_keys || has != needs ? 2 : 0;
        }
    return bytes;
}

/* Of the keys over which dq of a query is summed, how many has the warpgroup that multiplies it? */
static int own_keys(void)
{
    int own = 0;
    for (int key = 0; key < TILE; key++)
        own += key / ROWS == 0;
    return own;
}

static int judge(const char *name, int mine, int wanted)
{
    if (mine != wanted)
        printf("%s: not %d\n", name, mine);
    return mine != wanted;
}

int main(void)
{
    int tile = 2 * TILE * DIM, wrong = 0;
    wrong += judge("stored by k06_dq", STORED_BY_K06, stored(false));
    wrong += judge("stored if rows are keys", STORED_IF_KEYS, stored(true));
    wrong += judge("own keys", OWN_KEYS, own_keys());
    wrong += judge("shared memory", SHARED_KIB, (2 * tile + 2 * 2 * tile + stored(true)) / KIB);
    return wrong > 0;
}
