/* scale_table: the tables of 12-scale, for people or as CSV. Plumbing of chapter 12.
 */
#ifndef SCALE_TABLE_H
#define SCALE_TABLE_H

#include "scale.h"

/* A column: its name with --csv, and its printf format otherwise. A number that does not exist is
 * NAN. */
struct scale_column {
    const char *name, *format; /* NULL: only with --csv */
    int width;
};

/* Says what is priced, and with which numbers. */
void scale_print_question(const struct scale *scale);

/* Prints the head of a table: `first`, and the names of the columns, as CSV; otherwise the heading,
 * in which they stand one above the other. */
void scale_print_names(const struct scale *scale, const char *first,
                       const struct scale_column *columns, int count, const char *heading);

/* Prints a line: `first`, a number for each column, and the note behind them, if it is for
 * people. */
void scale_print_line(const struct scale *scale, const char *first,
                      const struct scale_column *columns, int count, const double *numbers,
                      const char *note);

/* Returns how many weights the model has, as the library counts them. */
double scale_weights(const struct scale *scale);

/* Returns whether a rank's memory is enough: 1 or 0; NAN if its size is not known. */
double scale_fits(const struct scale *scale, double bytes);

/* Returns the note of a line for what scale_fits has returned. */
const char *scale_note(double fits);

#endif
