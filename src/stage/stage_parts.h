/* stage_parts: what the parts of stage.h have of each other: unfinished.c, world.c, options.c,
 * inputs.c, results.c, report.c and, on top of them, stage.c. No program includes this.
 */
#ifndef STAGE_PARTS_H
#define STAGE_PARTS_H

#include "stage.h"

/* ---- unfinished.c: files that must go if the program ends before stage_close. */

/* Notes the file, or with STAGE_RESULTS the folder; "" forgets it. */
void stage_unfinished_note(enum stage_result result, const char *path);
const char *stage_unfinished_path(enum stage_result result);
void stage_unfinished_forget(void);
void stage_unfinished_remove(void);

/* Removes them at exit and on SIGINT, SIGTERM and SIGHUP as well, from the first call on. */
void stage_unfinished_guard(void);

/* Between these two, signals are ignored: results get their names all or not at all. */
void stage_unfinished_keep(bool keep);

/* ---- world.c: what the ranks agree on, and what they tell the user. */

/* One process alone. */
extern const struct stage_world stage_alone;

/* Every rank gives one number and gets those of all, in stage->gathered. */
void stage_gather(const struct stage *stage, int64_t mine);

/* The last time that all meet, when rank 0 has given the results their names: whoever has heard rank 0
 * knows that they are complete, whatever becomes of the others. */
void stage_meet_at_end(const struct stage *stage);

/* Ends this rank if another one is in trouble; all ranks call it. */
void stage_check_all(const struct stage *stage);

/* Prints "program: message" as one line on stderr and ends all ranks with this exit code. */
__attribute__((noreturn, format(printf, 3, 4))) void stage_end(const struct stage *stage,
                                                               int exit_code, const char *format,
                                                               ...);

/* Ends the line of progress on the terminal, if one is open. */
void stage_progress_end(void);

/* Sends what was printed on its way; stdout may be closed, or a full disk. */
void stage_flush(const struct stage *stage);

/* ---- options.c: the command line. Returns the path of PROBLEM. */
const char *stage_read_options(struct stage *stage, int argc, char **argv);

/* ---- inputs.c: the problem. Opens and checks its files, and takes its shape. */
void stage_open_inputs(struct stage *stage, const char *folder);

/* The batch of the whole problem that is batch b of this ring. */
int64_t stage_whole_batch(const struct stage *stage, int64_t b);

/* ---- results.c: hidden files, and how they get their names. */

/* Rank 0 creates them, then the others open them. */
void stage_open_results(struct stage *stage);
void stage_close_results(struct stage *stage);
void stage_rename_results(struct stage *stage);

/* ---- report.c: counts, the trace, laps. */
void stage_create_trace(const struct stage *stage);
void stage_write_trace(struct stage *stage);
void stage_print_counts(struct stage *stage);
void stage_print_laps(struct stage *stage);

#endif
