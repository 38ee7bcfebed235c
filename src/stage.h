/* stage: what every stage program does besides attention. One command line, the problem's files, the
 * results' files, counted memory, exit codes.
 *
 * Scaffolding: chapters/00-notation.md says how to use it, no chapter teaches it. A stage program
 * reads: stage_open, stage_input..., compute, stage_write..., stage_close. Every function here either
 * succeeds or prints one line and exits: 2 when the command line is wrong, 1 for all else. Until
 * stage_close has renamed them, results are hidden files beside their final names; on any exit,
 * and on SIGINT, SIGTERM and SIGHUP, they are removed.
 */
#ifndef STAGE_H
#define STAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "npy.h"

enum stage_input { STAGE_Q, STAGE_K, STAGE_V, STAGE_D_OUT, STAGE_MASK, STAGE_INPUTS };
enum stage_result { STAGE_O, STAGE_LSE, STAGE_DQ, STAGE_DK, STAGE_DV, STAGE_RESULTS };
enum stage_lap { STAGE_READ, STAGE_FORWARD, STAGE_BACKWARD, STAGE_WRITE, STAGE_LAPS };

struct stage {
    const char *program; /* "02-flash" */
    int number;          /* 2 */

    /* The command line. */
    bool causal, interleaved_heads, forward_only, time;
    int64_t lookback;                /* tokens, -1: no limit */
    double scale;                    /* factor of q.k; 1/sqrt(D) unless given */
    double softcap;                  /* 0: none */
    int64_t tile_queries, tile_keys; /* rows of a tile, at most N and M */

    /* The problem: q, do (B, N, H, D), k, v (B, M, G, D), mask (B, M) or none. */
    int64_t B, N, M, H, G, D;
    bool has_mask;
    struct npy inputs[STAGE_INPUTS];

    /* The results: o, dq (B, N, H, D), lse (B, H, N), dk, dv (B, M, G, D), of one type. */
    enum npy_type result_type;
    struct npy results[STAGE_RESULTS];
    const char *result_folder;

    struct stage_memory *memory; /* what stage_allocate gave, the last first */
    int64_t peak_bytes;          /* how much that is */
    double seconds[STAGE_LAPS], lap_start;
};

/* Reads the command line of stage `number`, opens and checks the problem, and reserves the results
 * as files of result_type. `about` is the first line of --help. */
void stage_open(struct stage *stage, int argc, char **argv, int number, const char *program,
                const char *about, enum npy_type result_type);

/* Memory for count elements of this size, every byte 0xFF: a NaN in float and in double, so that an
 * element that nobody wrote shows in the results. Counted into peak_bytes; stage_close frees it. */
void *stage_allocate(struct stage *stage, int64_t count, int64_t size);

/* The same, every byte 0: for sums, which must start somewhere. */
void *stage_zeros(struct stage *stage, int64_t count, int64_t size);

/* Rows first, first + stride, ... (count of them, in every batch) of an input, as float32, in memory
 * from stage_allocate: (B, count, heads, D). A NaN or Inf in them ends the program. */
float *stage_input(struct stage *stage, enum stage_input input, int64_t first, int64_t stride,
                   int64_t count);

/* The same rows of the key mask, (B, count), or NULL if the problem has none. */
bool *stage_mask(struct stage *stage, int64_t first, int64_t stride, int64_t count);

/* Writes the same rows of a result, which are float or double, whichever result_type says:
 * (B, count, heads, D), for lse (B, H, count). A NaN or Inf in them, but for -inf in lse, ends the
 * program. */
void stage_write(struct stage *stage, enum stage_result result, int64_t first, int64_t stride,
                 int64_t count, const void *rows);

/* One line on stdout: a name and an integer that every machine repeats. */
void stage_count(const char *name, int64_t value);

/* Shows how far a phase of the work is, on stderr if that is a terminal, at most once a second. */
void stage_progress(const struct stage *stage, const char *phase, int64_t done, int64_t total);

/* Books the time since the last lap (since stage_open, for the first) under this name, for --time. */
void stage_lap(struct stage *stage, enum stage_lap lap);

/* Gives the results their names, all of them, prints peak_bytes and, with --time, the laps on stderr.
 * Returns the exit code 0. */
int stage_close(struct stage *stage);

#endif
