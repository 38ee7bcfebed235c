/* stage_results: the result files, written by rows, and named all at once when all are whole. */
#ifndef STAGE_RESULTS_H
#define STAGE_RESULTS_H

#include <stdbool.h>

struct stage;

enum stage_result {
    STAGE_O,
    STAGE_LSE,
    STAGE_DQ,
    STAGE_DK,
    STAGE_DV,
    STAGE_D_SINK,
    STAGE_LARGEST,
    STAGE_RESULTS
};

/* Creates the result files on rank 0, where they are not seen, and opens them on the others. */
void stage_open_results(struct stage *stage);

/* Writes this rank's rows of a result, which are float or double, whichever result_type says: o
 * and dq (B, n, H, D), lse (B, H, n), dk and dv (B, m, G, D). A NaN or Inf in them, but for -inf
 * in lse, ends the program. */
void stage_write(struct stage *stage, enum stage_result result, const void *rows);

/* Tells whether this run writes this result: d_sink if there is a sink, largest if it is asked
 * for. */
bool stage_writes(const struct stage *stage, enum stage_result result);

/* Writes d_sink or largest (H), of all ranks, from rank 0. */
void stage_write_heads(struct stage *stage, enum stage_result result, const double *numbers);

/* Writes the gradients of this rank's keys, dk (B, m, G, D) and dv behind it. */
void stage_write_gradients(struct stage *stage, const float *gradients);

/* Closes this rank's files. */
void stage_close_results(struct stage *stage);

/* Gives the results their names, all at once, on rank 0, when all ranks have closed their files. */
void stage_name_results(struct stage *stage);

#endif
