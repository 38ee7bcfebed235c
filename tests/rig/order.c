/* order: judges an order of samples. For the exercise of chapter 10d.
 *
 * Each epoch must be a permutation of the windows; epochs and seeds must have other orders, and
 * none may go through the file in equal steps.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

int64_t window_of(uint64_t seed, int64_t count, int64_t sample);

/* Does each window of this epoch come once? */
static int is_permutation(uint64_t seed, int64_t count, int64_t epoch)
{
    static char seen[5000];
    memset(seen, 0, sizeof seen);
    for (int64_t i = 0; i < count; i++) {
        int64_t window = window_of(seed, count, epoch * count + i);
        if (window < 0 || window >= count) {
            printf("of %d windows, seed %d: sample %d is window %lld, which is not there\n",
                   (int)count, (int)seed, (int)(epoch * count + i), (long long)window);
            return 0;
        }
        if (seen[window]++) {
            printf("of %d windows, seed %d, window %d comes twice in epoch %d\n", (int)count,
                   (int)seed, (int)window, (int)epoch);
            return 0;
        }
    }
    return 1;
}

int main(void)
{
    enum { COUNT = 1000, FEW = 10 };
    for (int64_t count = 1; count <= 4100; count += count < 70 ? 1 : 403)
        for (uint64_t seed = 1; seed <= 3; seed++)
            for (int64_t epoch = 0; epoch < 3; epoch++)
                if (!is_permutation(seed, count, epoch))
                    return 1;

    /* Of two orders without relation one window in a thousand is at the same place. */
    int epochs = 0, seeds = 0, steps = 0;
    for (int64_t i = 0; i + 2 < COUNT; i++) {
        int64_t here = window_of(1, COUNT, i), next = window_of(1, COUNT, i + 1);
        epochs += here == window_of(1, COUNT, COUNT + i);
        seeds += here == window_of(2, COUNT, i);
        steps += next - here == window_of(1, COUNT, i + 2) - next;
    }
    int good = epochs < FEW && seeds < FEW && steps < FEW;
    printf("%sof 998 samples, %d have the same window in the next epoch, %d with another seed, and "
           "%d are as far behind the one before as that was\n",
           good ? "" : "this is no random order: ", epochs, seeds, steps);
    return !good;
}
