/* extras: what a problem of tests/rig/problems.h may have beside its keys, which are arrays of
 * struct ra_arrays that may be empty: slopes, sinks, a gradient of lse; and the numbers of each
 * head that come out of it.
 */
#ifndef EXTRAS_H
#define EXTRAS_H

#include "problems.h"

enum { SLOPES = 1, SINKS = 2, LSE_GRADIENT = 4, LARGEST = 8, ALL_EXTRAS = 15 };

/* What sinks are like: as large as scores, far above or below them, -inf, 0, or all of these. */
enum sinks { USUAL_SINKS, HIGH_SINKS, LOW_SINKS, NO_SINKS, ZERO_SINKS, MIXED_SINKS, SINK_KINDS };

/* Of a whole problem: what is given, and what came out, together with all ranks. */
struct extras {
    struct problem *p;
    int which;
    double *slopes, *sink, *d_lse;
    double *largest, *d_sink;
};

/* Of a rank. Numbers of heads lie two apart, with NaN between them. */
struct extras_part {
    float *d_lse, *slopes, *sink, *d_sink, *largest;
};

/* Draws what is given to a problem that has been made, and finds what is right. A row that sees
 * nothing has NaN in its gradient of lse. */
void extras_solve(struct extras *extras, struct problem *p, int which, enum sinks sinks);
void extras_clear(struct extras *extras);

/* Makes a rank's part, and puts it into the arrays of its shard. */
void extras_give(const struct extras *extras, struct shard *shard, struct extras_part *part);

/* Adds what a rank has got. False: it has written elsewhere. Frees the part. */
bool extras_collect(struct extras *extras, struct extras_part *part);

/* Is what all ranks have got right? False: says in `text` what is not. After problem_is_right. */
bool extras_are_right(const struct extras *extras, char text[TEXT]);

#endif
