/* arrays: a rank's arrays, in any type and order in memory, and the whole ones of
 * tests/rig/truth.h. For tests of the library.
 */
#ifndef ARRAYS_H
#define ARRAYS_H

#include "numbers.h"
#include "ring_attention.h"
#include "truth.h"

static inline enum ra_side side_of(enum truth_array a)
{
    return truth_is_of_keys(a) ? RA_KEY_SIDE : RA_QUERY_SIDE;
}

static inline struct ra_tensor *tensor_in(struct ra_arrays *arrays, enum truth_array a)
{
    struct ra_tensor *const tensors[ARRAYS] = {
        &arrays->q,   &arrays->k,     &arrays->v,  &arrays->mask, &arrays->o,
        &arrays->lse, &arrays->d_out, &arrays->dq, &arrays->dk,   &arrays->dv};
    return tensors[a];
}

/* Calls `move` for every row of a head of an array whose local row i is row positions[i] of the
 * whole (NULL: i): with its numbers in the whole, and where it begins in the tensor. */
static inline void arrays_each_row(const struct truth *t, enum truth_array a, struct ra_tensor at,
                                   int64_t rows, const int64_t *positions, double *whole,
                                   void (*move)(enum ra_type type, void *data, int64_t first,
                                                double *numbers, int64_t width))
{
    double *arrays[TRUTHS];
    arrays[a] = whole;
    for (int64_t b = 0; b < t->B; b++)
        for (int64_t i = 0; i < rows; i++)
            for (int64_t h = 0; h < truth_heads(t, a); h++)
                move(at.type, at.data, b * at.batch + i * at.row + h * at.head,
                     truth_row(t, arrays, a, b, positions ? positions[i] : i, h),
                     truth_width(t, a));
}

static inline void arrays_put_row(enum ra_type type, void *data, int64_t first, double *numbers,
                                  int64_t width)
{
    for (int64_t c = 0; c < width; c++)
        number_put(type, data, first + c, numbers[c]);
}

static inline void arrays_get_row(enum ra_type type, void *data, int64_t first, double *numbers,
                                  int64_t width)
{
    for (int64_t c = 0; c < width; c++)
        numbers[c] = number_get(type, data, first + c);
}

/* Copies a rank's rows of an array out of the whole one, and into it. */
static inline void arrays_put(const struct truth *t, enum truth_array a, struct ra_tensor to,
                              int64_t rows, const int64_t *positions, double *whole)
{
    arrays_each_row(t, a, to, rows, positions, whole, arrays_put_row);
}

static inline void arrays_get(const struct truth *t, enum truth_array a, struct ra_tensor from,
                              int64_t rows, const int64_t *positions, double *whole)
{
    arrays_each_row(t, a, from, rows, positions, whole, arrays_get_row);
}

#endif
