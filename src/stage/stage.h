/* stage: what every stage program does besides attention. One command line, the problem's files,
 * the results' files, counted memory, counts per rank and hop, a trace, exit codes.
 * Scaffolding: chapters/00-notation.md says how to use it, no chapter teaches it. A stage program
 * reads: stage_open, stage_input..., compute, stage_write..., stage_close. Every function here
 * either succeeds or prints one line and exits: 2 when the command line is wrong, 1 for all else.
 * Until stage_close gives them their names, results are in a hidden folder beside RESULT; on any
 * exit, and on SIGINT and the like, it is removed; after SIGKILL, by the next run into RESULT.
 * A program of several ranks (stage_mpi.h) calls the same functions on each of them. A wrong
 * command line or problem is reported once and ends all ranks; a later error of one rank, too,
 * ends them all.
 */
#ifndef STAGE_H
#define STAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "npy.h"
#include "ra_config.h"
#include "ra_span.h"

/* The number of a program that is one kernel: it is no stage, but has their command line. */
enum { STAGE_KERNEL = 0 };

enum stage_input { STAGE_Q, STAGE_K, STAGE_V, STAGE_D_OUT, STAGE_MASK, STAGE_INPUTS };
enum stage_result { STAGE_O, STAGE_LSE, STAGE_DQ, STAGE_DK, STAGE_DV, STAGE_RESULTS };
enum stage_lap { STAGE_READ, STAGE_FORWARD, STAGE_BACKWARD, STAGE_WAIT, STAGE_WRITE, STAGE_LAPS };
enum stage_lane { STAGE_LANE_WORK, STAGE_LANE_KEYS, STAGE_LANE_GRADIENTS, STAGE_LANES };

/* The ranks that run a stage together. One process alone is a world of one rank. */
struct stage_world {
    int rank, ranks;
    int ranks_here; /* how many of them share this machine's memory */

    /* Every rank gives one integer and gets those of all, in order of rank. Returns the first rank
     * that did not come, or `ranks`: one has not if no rank has shown progress for somewhat longer
     * than the timeout (seconds, 0: wait for ever). */
    int (*gather)(int64_t mine, int64_t *all, double timeout);
    bool (*speaks)(void);          /* of ranks that fail at about the same time, the lowest */
    void (*show)(double timeout);  /* tells the others, now and then, that this rank is at work */
    void (*follow)(void);          /* waits for the end that another rank is about to make */
    void (*stop)(int exit_code);   /* ends all ranks at once */
    void (*leave)(double timeout); /* says goodbye to the others, before exit */
};

struct stage {
    const char *program; /* "02-flash" */
    int number;          /* 2, or STAGE_KERNEL */
    const char *about;   /* the first line of --help */
    struct stage_world world;

    /* The command line. */
    struct ra_config config; /* complete: the shape is the problem's */
    bool time, per_hop;
    const char *trace_path;
    int64_t pieces; /* of the keys, one launch each */

    /* The problem: q, do (B, N, H, D), k, v (B, M, G, D), mask (B, M) or none. B is how many
     * batches this ring has: the batches are dealt to the rings, one after the other. The config
     * has the same numbers, by their long names. */
    const char *problem_folder;
    int64_t B, N, M, H, G, D;
    struct npy inputs[STAGE_INPUTS];

    /* This rank's rows: n query rows and m key rows in each batch (all, until stage_shard). */
    int64_t n, m;
    const struct ra_span *query_spans, *key_spans;
    int64_t query_span_count, key_span_count;
    struct ra_span all_queries, all_keys;

    /* The results: o, dq (B, N, H, D), lse (B, H, N), dk, dv (B, M, G, D), of one type. */
    enum npy_type result_type;
    struct npy results[STAGE_RESULTS];
    const char *result_folder;

    struct stage_memory *memory; /* what stage_allocate gave, the last first */
    int64_t peak_bytes;          /* how much that is */
    struct stage_counter *counters;
    struct stage_event *events;
    int64_t counter_count, event_count;
    double seconds[STAGE_LAPS], lap_start, trace_start;
    int64_t *gathered; /* (ranks) what every rank gave the last time */
    bool opened;       /* from here on an error is of one rank; before, it was of all */
};

/* Reads the command line of stage `number`, opens and checks the problem, and reserves the results
 * as files of result_type. */
void stage_open(struct stage *stage, int argc, char **argv, int number, const char *program,
                const char *about, enum npy_type result_type);

/* The same for a program that is one kernel, whose numbers are of this type unless the command line
 * says otherwise. Results are float32. */
void stage_open_kernel(struct stage *stage, int argc, char **argv, const char *program,
                       const char *about, enum ra_type type);

/* The same on every rank of a world. The caller has filled program, number, about, world, config,
 * with the defaults of this program, and result_type; all else is zero. */
void stage_open_in(struct stage *stage, int argc, char **argv);

/* The parts of stage_open_in, for a program that has a command line and results of its own. Begin:
 * all but the command line and files. Guard: signals that end the program remove what is
 * unfinished. Opened: errors from here on are of one rank; the trace begins, which is opened and
 * closed by all ranks together. Leave: frees all and says goodbye to the other ranks; returns the
 * exit code 0. */
void stage_begin(struct stage *stage, int argc, char **argv);

/* The name of a program that is also installed: ringattn-... if it was called by such a name, or
 * else its own. */
const char *stage_called(char **argv, const char *own);
void stage_guard(void);
void stage_opened(struct stage *stage);
void stage_open_trace(struct stage *stage);
void stage_close_trace(struct stage *stage);
int stage_leave(struct stage *stage);

/* Says which rows of the sequence this rank has: the spans, one after the other. They must live
 * until stage_close. Together the ranks of a ring have every row once. */
void stage_shard(struct stage *stage, const struct ra_span *query_spans, int64_t query_span_count,
                 const struct ra_span *key_spans, int64_t key_span_count);

/* Memory for count elements of this size, every byte 0xFF: a NaN in float and in double, so that an
 * element that nobody wrote shows in the results. Counted into peak_bytes; stage_close frees it. */
void *stage_allocate(struct stage *stage, int64_t count, int64_t size);

/* The same, every byte 0: for sums, which must start somewhere. */
void *stage_zeros(struct stage *stage, int64_t count, int64_t size);

/* Reads this rank's rows of an input into the caller's memory: q and do (B, n, H, D), k and v (B,
 * m, G, D), as float32; mask (B, m), as bool. A NaN or Inf in them ends the program. */
void stage_read(struct stage *stage, enum stage_input input, void *rows);

/* The same rows in memory from stage_allocate; of the mask, NULL if the problem has none. */
float *stage_input(struct stage *stage, enum stage_input input);
bool *stage_mask(struct stage *stage);

/* Reads this rank's keys into one message of the ring: k (B, m, G, D), v, then the mask (B, m) if
 * there is one. */
void stage_read_keys(struct stage *stage, float *message);

/* Writes the gradients of this rank's keys, dk (B, m, G, D) and dv behind it. */
void stage_write_gradients(struct stage *stage, const float *gradients);

/* Writes this rank's rows of a result, which are float or double, whichever result_type says: o
 * and dq (B, n, H, D), lse (B, H, n), dk and dv (B, m, G, D). A NaN or Inf in them, but for -inf
 * in lse, ends the program. */
void stage_write(struct stage *stage, enum stage_result result, const void *rows);

/* Adds to a count that every machine repeats. stage_close prints its sum over hops and ranks, and
 * with --per-hop each number of it. All ranks count the same names and hops in the same order. name
 * is not copied. */
void stage_count(struct stage *stage, const char *name, int hop, int64_t value);

/* Notes for --trace what happened from start to end, seconds on CLOCK_MONOTONIC. name is not
 * copied. */
void stage_trace(struct stage *stage, enum stage_lane lane, const char *name, int hop, double start,
                 double end);

/* Shows how far a phase of the work is, on stderr if that is a terminal, at most once a second. */
void stage_progress(const struct stage *stage, const char *phase, int64_t done, int64_t total);

/* Books the time since the last lap (since stage_open, for the first) under this name, for
 * --time. */
void stage_lap(struct stage *stage, enum stage_lap lap);

/* Prints "program: rank R: message" on stderr and ends all ranks with exit code 1. */
__attribute__((noreturn, format(printf, 2, 3))) void stage_fail(const struct stage *stage,
                                                                const char *format, ...);

/* Gives the results their names, all of them, prints the counts and peak_bytes and, with --time,
 * the laps on stderr (of the slowest rank). Returns the exit code 0. */
int stage_close(struct stage *stage);

#endif
