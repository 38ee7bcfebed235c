/* stage_parts: what the parts of stage.h have of each other: unfinished.c, world.c, memory.c,
 * options.c, inputs.c, results.c, report.c and, on top of them, stage.c. No program includes this.
 */
#ifndef STAGE_PARTS_H
#define STAGE_PARTS_H

#include <limits.h>

#include "ra_options.h"
#include "stage.h"

/* ---- unfinished.c: what must go if the program ends before stage_close. */

/* Notes what is hidden, four at most, which must live until the program ends. */
struct ra_whole;
void stage_unfinished_add(struct ra_whole *whole);
void stage_unfinished_disarm(void);
void stage_unfinished_remove(void);

/* Removes them at exit and on SIGINT, SIGTERM and their like as well, from the first call on. */
void stage_unfinished_guard(void);

/* From here to the next guard these signals are ignored: it is too late for them. */
void stage_unfinished_commit(void);

/* ---- world.c: what the ranks agree on, and what they tell the user. */

/* One process alone. */
extern const struct stage_world stage_alone;

/* Every rank gives one number and gets those of all, in stage->gathered. */
void stage_gather(const struct stage *stage, int64_t mine);

/* Ends this rank if another one is in trouble; all ranks call it. */
void stage_check_all(const struct stage *stage);

/* Returns the first rank whose number differs from that of rank 0, or 0 if all have the same. Ends
 * this rank if another one has failed. */
int stage_other(const struct stage *stage, int64_t mine);

/* Ends all ranks with this exit code unless `mine` is the same on all; `what` is its name in the
 * error. */
void stage_agree(const struct stage *stage, int exit_code, const char *what, int64_t mine);

/* Whether anything has this name, even a link that leads nowhere. If the system cannot say, the run
 * fails. */
bool stage_is_there(const struct stage *stage, const char *path);

/* Whether anything has this name on all ranks. Each looks for itself, and they must agree. */
bool stage_all_find(const struct stage *stage, const char *path);

/* The batch of the whole problem that is batch b of this ring. */
int64_t stage_whole_batch(const struct stage *stage, int64_t b);

/* Prints "program: message" as one line on stderr and ends all ranks with this exit code. */
__attribute__((noreturn, format(printf, 3, 4))) void stage_end(const struct stage *stage,
                                                               int exit_code, const char *format,
                                                               ...);

/* Ends the line of progress on the terminal, if one is open. */
void stage_progress_end(void);

/* Sends what was printed on its way; stdout may be closed, or a full disk. */
void stage_flush(const struct stage *stage);

/* ---- memory.c: frees all that stage_allocate gave. */
void stage_free_all(struct stage *stage);

/* ---- options.c: the command line. Returns the path of PROBLEM. */
const char *stage_read_options(struct stage *stage, int argc, char **argv);

/* Ends the program if a field is not the default, and without what a table says that it needs. */
void stage_check_needs(const struct stage *stage, const struct ra_option *table, int count,
                       const void *fields, const void *defaults);

/* The same of a config, by ra_options. */
void stage_check_config(const struct stage *stage, const struct ra_config *config);

/* Reads the flags of a table, and gives them to `each` as they come; what is left begins at optind.
 * It answers -h, --help, by calling `help` on one rank, and --version itself, and ends the program
 * with that. */
enum { STAGE_FLAGS = 64 };
typedef void stage_flag(struct stage *, const struct ra_option *, const char *text);
void stage_read_flags(struct stage *stage, int argc, char **argv, const struct ra_option *options,
                      int count, stage_flag *each, void (*help)(const struct stage *));

/* A line of --help for a flag. */
void stage_print_flag(const struct ra_option *option);

/* The value that the text gives to the option, as ra_option_load would; 0 for a path. */
int64_t stage_parse(const struct stage *stage, const struct ra_option *option, const char *text);

/* ---- inputs.c: the problem. Opens and checks its files, and takes its shape. */
void stage_open_inputs(struct stage *stage, const char *folder);

/* Ends all ranks unless their files of the problem have the same types, and the same bytes at some
 * places. */
void stage_agree_inputs(const struct stage *stage);

/* ---- results.c: the results' files. Rank 0 creates them, then the others open them. */
void stage_open_results(struct stage *stage);
void stage_close_results(struct stage *stage);

/* Gives the results their names, all at once, when all ranks have closed their files. Rank 0 does
 * it. */
void stage_name_results(struct stage *stage);

/* ---- report.c: counts, the trace, laps. */

/* All ranks write into it, then rank 0 names it. */
void stage_write_trace(struct stage *stage);
void stage_name_trace(struct stage *stage);
void stage_print_counts(struct stage *stage);
void stage_print_laps(struct stage *stage);

#endif
