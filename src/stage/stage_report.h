/* stage_report: what a program counts, the timeline that it traces, the seconds that it took. */
#ifndef STAGE_REPORT_H
#define STAGE_REPORT_H

#include <stdint.h>

struct stage;

enum stage_lap { STAGE_READ, STAGE_FORWARD, STAGE_BACKWARD, STAGE_WAIT, STAGE_WRITE, STAGE_LAPS };
enum stage_lane {
    STAGE_LANE_WORK,
    STAGE_LANE_KEYS,
    STAGE_LANE_GRADIENTS,
    STAGE_LANE_PARTS, /* of a model on a GPU, by layer instead of hop; and of sums over ranks */
    STAGE_LANE_SUMS,
    STAGE_LANES
};

/* Adds to a count that every machine repeats. stage_close prints its sum over hops and ranks, and
 * with --per-hop each number of it. All ranks count the same names and hops in the same order. name
 * is not copied. */
void stage_count(struct stage *stage, const char *name, int hop, int64_t value);

/* Prints, on rank 0, what all ranks counted: with --per-hop every number; of each name the total
 * and, if there are several ranks, the busiest rank's share of it. */
void stage_print_counts(struct stage *stage);

/* Creates the file of --trace on rank 0, where it is not seen. Together with stage_close_trace, for
 * a program without stage_open. */
void stage_open_trace(struct stage *stage);

/* Notes for --trace what happened from start to end, seconds on CLOCK_MONOTONIC. name is not
 * copied. */
void stage_trace(struct stage *stage, enum stage_lane lane, const char *name, int hop, double start,
                 double end);

/* Forgets what was noted so far: the trace begins now. All ranks call it. */
void stage_begin_trace(struct stage *stage);

/* Writes the trace: every rank its own part of one file, behind those of the ranks before it. */
void stage_write_trace(struct stage *stage);

/* Gives the trace its name, on rank 0, when all ranks have written. */
void stage_name_trace(struct stage *stage);

/* Writes and names the trace; all ranks call it. */
void stage_close_trace(struct stage *stage);

/* Books the time since the last lap (since stage_open, for the first) under this name, for
 * --time. */
void stage_lap(struct stage *stage, enum stage_lap lap);

/* Prints the seconds of each lap, of the rank that took longest. */
void stage_print_laps(struct stage *stage);

#endif
