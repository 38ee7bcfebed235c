/* pads: judges exercise 3 of page 11a. Of 8 neighbouring rows of shared memory, 16 bytes each are
 * read: with which pads do they lie in all 32 banks? */
#include <stdbool.h>
#include <stdio.h>

enum { D = 128, MOST = 32, BANKS = 32 };

bool will_do(int pad); /* the reader's */

/* The most rows that need the same bank. */
static int rows_in_one_bank(int pad)
{
    int wanted[BANKS] = {0}, most = 0;
    for (int row = 0; row < 8; row++)
        for (int number = 0; number < 4; number++) {
            int bank = (row * (D + pad) + number) % BANKS;
            wanted[bank]++;
            most = wanted[bank] > most ? wanted[bank] : most;
        }
    return most;
}

int main(void)
{
    for (int pad = 0; pad <= MOST; pad++) {
        int rows = rows_in_one_bank(pad);
        if (will_do(pad) != (rows == 1)) {
            printf("pad %d: %d rows in one bank, and you say that it %s\n", pad, rows,
                   will_do(pad) ? "will do" : "will not do");
            return 1;
        }
    }
    return 0;
}
