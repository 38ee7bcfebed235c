/* ra_span: which rows of the whole sequence lie side by side in a rank's memory. See ra_span.h.
 *
 * Chapter 03. New here: a sequence that is cut into runs, whether or not its length divides.
 */
#include "ra_span.h"
#include "ra_math.h"

struct ra_span ra_span_chunk(int64_t length, int64_t chunks, int64_t chunk)
{
    int64_t rows = ra_ceiling_division(length, chunks), first = ra_min(chunk * rows, length);
    return (struct ra_span){first, 1, ra_min(rows, length - first)};
}
