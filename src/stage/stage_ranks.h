/* stage_ranks: the ranks of a program: what they agree on, how one that fails ends them all, and
 * what they tell the user on the terminal.
 */
#ifndef STAGE_RANKS_H
#define STAGE_RANKS_H

#include <stdbool.h>
#include <stdint.h>
#include "ra_status.h"

struct stage;

/* The ranks that run a stage together. One process alone is a world of one rank. */
struct stage_world {
    int rank, ranks;
    int ranks_here; /* how many of them share this machine's memory */

    /* Every rank gives one integer and gets those of all, in order of rank. Returns the first rank
     * that did not come, or `ranks`: one has not if no rank has shown progress for somewhat longer
     * than the timeout (seconds, 0: no limit). */
    int (*gather)(int64_t mine, int64_t *all, double timeout);
    bool (*speaks)(void);          /* of ranks that fail at about the same time, the lowest */
    void (*show)(double timeout);  /* tells the others, now and then, that this rank is at work */
    void (*follow)(void);          /* waits for the end that another rank is about to make */
    void (*stop)(int exit_code);   /* ends all ranks at once */
    void (*leave)(double timeout); /* says goodbye to the others, before exit */
};

/* One process alone. */
extern const struct stage_world stage_alone;

/* Takes one number of every rank, and puts those of all into stage->gathered. */
void stage_gather(const struct stage *stage, int64_t mine);

/* Ends this rank if another one is in trouble; all ranks call it. */
void stage_check_all(const struct stage *stage);

/* Returns the first rank whose number differs from that of rank 0, or 0 if all have the same. Ends
 * this rank if another one has failed. */
int stage_other(const struct stage *stage, int64_t mine);

/* Ends all ranks with this exit code unless `mine` is the same on all; `what` is its name in the
 * error. */
void stage_agree(const struct stage *stage, int exit_code, const char *what, int64_t mine);

/* Tells whether anything has this name, even a link that leads nowhere. If the system cannot say,
 * the run fails. */
bool stage_is_there(const struct stage *stage, const char *path);

/* Tells whether anything has this name on all ranks. Each looks for itself, and they must agree. */
bool stage_all_find(const struct stage *stage, const char *path);

/* Returns which batch of the whole problem is batch b of this ring. */
int64_t stage_whole_batch(const struct stage *stage, int64_t b);

/* Prints "program: rank R: message" on stderr and ends all ranks with exit code 1. */
__attribute__((noreturn, format(printf, 2, 3))) void stage_fail(const struct stage *stage,
                                                                const char *format, ...);

/* Fails with this text unless the status is RA_OK. */
void stage_check(const struct stage *stage, enum ra_status status, const char *error);

/* Prints "program: message" as one line on stderr and ends all ranks with this exit code. */
__attribute__((noreturn, format(printf, 3, 4))) void stage_end(const struct stage *stage,
                                                               int exit_code, const char *format,
                                                               ...);

/* Shows how far a phase of the work is, on stderr if that is a terminal, at most once a second. */
void stage_progress(const struct stage *stage, const char *phase, int64_t done, int64_t total);

/* Ends the line of progress on the terminal, if one is open. */
void stage_progress_end(void);

/* Sends what was printed on its way; stdout may be closed, or a full disk. */
void stage_flush(const struct stage *stage);

#endif
