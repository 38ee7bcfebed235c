/* ra_span: which rows of the whole sequence lie side by side in a rank's memory.
 * Chapter 03. A shard, the rows of one rank, is a list of spans: one for a run of neighbours
 * (stride 1), one for every P-th row (stride P), several for the layouts of chapter 05.
 */
#ifndef RA_SPAN_H
#define RA_SPAN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Local row a of a span is row first + a * stride of the whole; count rows, stride >= 1. */
struct ra_span {
    int64_t first, stride, count;
};

/* Returns chunk number `chunk` of `length` rows that are cut into `chunks` runs of equal length,
 * rounded up. The last chunks get what is left, possibly nothing. */
struct ra_span ra_span_chunk(int64_t length, int64_t chunks, int64_t chunk);

#ifdef __cplusplus
}
#endif

#endif
