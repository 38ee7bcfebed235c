/* ra_sort: sorting without memory of its own. Internal.
 *
 * Chapter 13. The C library's qsort may ask for memory, and a plan must not.
 */
#ifndef RA_SORT_H
#define RA_SORT_H

#include <stdint.h>

/* Something that is sorted: by its key. */
struct ra_sorted {
    int64_t key, item;
};

/* Sorts by key, ascending; what has the same key stays in its order. `room` is for half as
 * many. */
void ra_sort(struct ra_sorted *list, int64_t count, struct ra_sorted *room);

#endif
