/* median: the order of measured numbers. For tests. */
#ifndef MEDIAN_H
#define MEDIAN_H

#include <stdint.h>
#include <stdlib.h>

static inline int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts numbers, the least first. */
static inline void sort_numbers(double *numbers, int64_t count)
{
    qsort(numbers, (size_t)count, sizeof *numbers, compare_numbers);
}

/* Sorts numbers and returns the median: of an even number of them, the mean of the two in the
 * middle. */
static inline double median(double *numbers, int64_t count)
{
    sort_numbers(numbers, count);
    return 0.5 * (numbers[(count - 1) / 2] + numbers[count / 2]);
}

#endif
