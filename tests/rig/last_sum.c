/* last_sum: judges exercise 2 of chapter 11. Adds floats of 0.125, one after the other, until the
 * sum is wrong. */
#include <stdio.h>

extern const long last; /* the reader's: the largest n for which the sum of n of them is right */

int main(void)
{
    long right = 0;
    for (float sum = 0.125f; sum == 0.125 * (double)(right + 1); sum += 0.125f)
        right++;
    if (last != right)
        printf("the sum of %ld numbers is %s\n", last,
               last < right ? "right, and so is that of one more" : "wrong");
    return last != right;
}
