/* stage: what every stage program does besides attention. One command line, the problem's files,
 * the results' files, counted memory, counts per rank and hop, a trace, exit codes.
 * Scaffolding: chapters/00-notation.md says how to use it, no chapter teaches it. A stage program
 * reads: stage_open, stage_input..., compute, stage_write..., stage_close. Every function here, and
 * in the headers below, either succeeds or prints one line and exits: 2 when the command line is
 * wrong, 1 for all else.
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
#include "stage_inputs.h"
#include "stage_memory.h"
#include "stage_ranks.h"
#include "stage_report.h"
#include "stage_results.h"

struct ra_span; /* ra_span.h */

struct stage {
    const char *program; /* "02-flash" */
    int number;          /* 2; 0 is a kernel, which has the stages' command line */
    const char *about;   /* the first line of --help */
    struct stage_world world;

    /* The command line. */
    struct ra_config config; /* complete: the shape is the problem's */
    bool time, per_hop;
    const char *trace_path;
    int64_t pieces; /* of the keys, one launch each */

    /* The flags that make a mask of slices: texts or NULL, rows or 0. Who gets which rows: enum
     * ra_deal. */
    const char *documents, *key_documents, *window;
    int64_t prefix, first, chunk, deal;
    bool answers;
    bool largest; /* the largest score of each head is a result, too */

    /* The problem: q, do (B, N, H, D), k, v (B, M, G, D), mask (B, M) or none. B is how many
     * batches this ring has: the batches are dealt to the rings, one after the other. The config
     * has the same numbers, by their long names. */
    const char *problem_folder;
    int64_t B, N, M, H, G, D;
    int64_t Dv; /* numbers of a row of v, and so of o, do and dv: D before stage 13 */
    struct npy inputs[STAGE_INPUTS];

    /* This rank's rows: n query rows and m key rows in each batch (all, until stage_shard). */
    int64_t n, m;
    const struct ra_span *query_spans, *key_spans;
    int64_t query_span_count, key_span_count;

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

/* Opens a program that is one kernel, as stage_open does, with numbers of this type unless the
 * command line says otherwise. Results are float32. */
void stage_open_kernel(struct stage *stage, int argc, char **argv, const char *program,
                       const char *about, enum ra_type type);

/* Opens a program on every rank of a world, as stage_open does. The caller has filled program,
 * number, about, world, config, with the defaults of this program, and result_type; all else is
 * zero. */
void stage_open_in(struct stage *stage, int argc, char **argv);

/* Begins as stage_open_in does, but reads no command line and opens no file: for a program that has
 * those of its own. */
void stage_begin(struct stage *stage, int argc, char **argv);

/* Returns the name of a program that is also installed: ringattn-... if it was called by such a
 * name, or else its own. */
const char *stage_called(char **argv, const char *own);

/* Removes what is unfinished when a signal ends the program, from here on. */
void stage_guard(void);

/* Says that all is open: an error from here on is of one rank, and the trace begins. */
void stage_opened(struct stage *stage);

/* Says which rows of the sequence this rank has: the spans, one after the other. They must live
 * until stage_close. Together the ranks of a ring have every row once. */
void stage_shard(struct stage *stage, const struct ra_span *query_spans, int64_t query_span_count,
                 const struct ra_span *key_spans, int64_t key_span_count);

/* Gives the results their names, all of them, prints the counts and peak_bytes and, with --time,
 * the laps on stderr (of the slowest rank). Returns the exit code 0. */
int stage_close(struct stage *stage);

/* Frees all and says goodbye to the other ranks: stage_close for a program without its results.
 * Returns the exit code 0. */
int stage_leave(struct stage *stage);

#endif
