/* ra_sort: sorting without memory of its own. See ra_sort.h.
 *
 * Chapter 13.
 */
#include "ra_sort.h"
#include <stdbool.h>

void ra_sort(struct ra_sorted *list, int64_t count, struct ra_sorted *room)
{
    int64_t half = count / 2;
    bool sorted = true;
    for (int64_t i = 1; i < count && sorted; i++)
        sorted = list[i - 1].key <= list[i].key;
    if (sorted)
        return;
    ra_sort(list, half, room);
    ra_sort(list + half, count - half, room);
    for (int64_t i = 0; i < half; i++)
        room[i] = list[i];
    for (int64_t i = 0, left = 0, right = half; left < half; i++)
        list[i] = right < count && list[right].key < room[left].key ? list[right++] : room[left++];
}
