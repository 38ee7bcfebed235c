/* 14b_splits: chapter 14 as a toy: one query over many keys, which several blocks share. Each block
 * leaves a carry, and the carries become one.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>

#ifndef KEYS
#define KEYS 1000
#endif
#ifndef SPLITS
#define SPLITS 7
#endif
enum { D = 4, ROOM = KEYS + 1 };

static double score[ROOM], value[ROOM][D];

struct carry {
    double max, sum, o[D];
};

/* What one block finds: keys first, ..., end - 1, one after the other. */
static struct carry fold(int first, int end)
{
    struct carry x = {-INFINITY, 0, {0}};
    for (int j = first; j < end; j++) {
        double max = fmax(x.max, score[j]), old = exp(x.max - max), now = exp(score[j] - max);
        x.max = max;
        x.sum = old * x.sum + now;
        for (int c = 0; c < D; c++)
            x.o[c] = old * x.o[c] + now * value[j][c];
    }
    return x;
}

/* Makes one carry of several, of which some may have met no key. */
static struct carry join(const struct carry *part, int count)
{
    struct carry all = {-INFINITY, 0, {0}};
    for (int p = 0; p < count; p++)
        all.max = fmax(all.max, part[p].max);
    for (int p = 0; p < count; p++) {
        double weight = part[p].sum > 0 ? exp(part[p].max - all.max) : 0;
        all.sum += weight * part[p].sum;
        for (int c = 0; c < D; c++)
            all.o[c] += weight * part[p].o[c];
    }
    return all;
}

int main(void)
{
    for (int j = 0; j < KEYS; j++) {
        score[j] = 800 * sin(0.7 * j);
        for (int c = 0; c < D; c++)
            value[j][c] = cos(0.001 * j + c);
    }
    struct carry part[SPLITS], whole = fold(0, KEYS);
    for (int p = 0; p < SPLITS; p++)
        part[p] = fold((int)((long)KEYS * p / SPLITS), (int)((long)KEYS * (p + 1) / SPLITS));
    struct carry joined = join(part, SPLITS);
    bool equal = fabs(joined.sum - whole.sum) <= 1e-12 * whole.sum; /* no NaN is */
    printf("%d keys, %d blocks:", KEYS, SPLITS);
    for (int c = 0; c < D; c++) {
        double o = joined.sum > 0 ? joined.o[c] / joined.sum : 0;
        double right = whole.sum > 0 ? whole.o[c] / whole.sum : 0;
        equal = equal && fabs(o - right) <= 1e-12;
        printf(" %.6f", o);
    }
    printf("\n%s one block's\n", equal ? "equal to" : "different from");
    return !equal;
}
