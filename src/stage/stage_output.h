/* stage_output: what a program writes, on all its ranks, so that it appears whole or not at all. */
#ifndef STAGE_OUTPUT_H
#define STAGE_OUTPUT_H

#include <stdbool.h>
#include "ra_whole.h"

struct stage;

/* Begins a file or folder on rank 0, as ra_whole_begin does, and finds it on the others. It is
 * removed if any rank ends before it has its name. `shared`: all ranks write there, so all must
 * find it. `flag` stands before an error: "--trace ", or nothing. All ranks call it. */
void stage_begin_output(const struct stage *stage, struct ra_whole *whole, const char *path,
                        unsigned how, const char *const *replaces, bool shared, const char *flag);

/* Gives it its name, on rank 0, when the other ranks have written and will remove nothing any
 * more. */
void stage_name_output(const struct stage *stage, struct ra_whole *whole, const char *flag);

#endif
