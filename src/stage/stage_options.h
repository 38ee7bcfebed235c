/* stage_options: the command line of the programs, from the table of ra_options.h. */
#ifndef STAGE_OPTIONS_H
#define STAGE_OPTIONS_H

#include "ra_options.h"

struct stage;

/* The number of a program that is one kernel: it is no stage, but has their command line. */
enum { STAGE_KERNEL = 0 };

/* Reads the command line of a stage, and returns the path of PROBLEM. */
const char *stage_read_options(struct stage *stage, int argc, char **argv);

/* Ends the program if a field is not the default, and without what a table says that it needs. */
void stage_check_needs(const struct stage *stage, const struct ra_option *table, int count,
                       const void *fields, const void *defaults);

/* Checks a config as stage_check_needs does, by ra_options. */
void stage_check_config(const struct stage *stage, const struct ra_config *config);

/* Reads the flags of a table, and gives them to `each` as they come; what is left begins at optind.
 * It answers -h, --help, by calling `help` on one rank, and --version itself, and ends the program
 * with that. */
enum { STAGE_FLAGS = 80 };
typedef void stage_flag(struct stage *, const struct ra_option *, const char *text);
void stage_read_flags(struct stage *stage, int argc, char **argv, const struct ra_option *options,
                      int count, stage_flag *each, void (*help)(const struct stage *));

/* Prints a line of --help for a flag. */
void stage_print_flag(const struct ra_option *option);

/* Returns the value that the text gives to the option, as ra_option_load would; 0 for a path. */
int64_t stage_parse(const struct stage *stage, const struct ra_option *option, const char *text);

#endif
