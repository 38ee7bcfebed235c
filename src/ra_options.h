/* ra_options: the one table of all options. The command line of the programs, the library's reader
 * and comparer of configs, and its descriptions are made from it. A new option needs a row here, a
 * field in struct ra_config, and the code that computes with it.
 *
 * Chapter 08. Not installed.
 */
#ifndef RA_OPTIONS_H
#define RA_OPTIONS_H

#include "ra_config.h"

/* What a value is: nothing or a bool; an int64_t; an int; a double; one of a few names, which is an
 * enum; a path, or other text. */
enum ra_option_kind {
    RA_OPTION_FLAG,
    RA_OPTION_WHOLE,
    RA_OPTION_INT,
    RA_OPTION_REAL,
    RA_OPTION_CHOICE,
    RA_OPTION_PATH
};

/* Which programs have a flag, as a set: the stages from the option's chapter on; 01-naive, which
 * judges them; the programs of one kernel each. */
enum { RA_STAGES = 1, RA_JUDGE = 2, RA_KERNELS = 4 };

/* A value of an enum: its word on the command line, and its name in C. */
struct ra_choice {
    const char *word, *constant;
};

/* By value, and ended by a word that is NULL. */
extern const struct ra_choice ra_option_tiles[], ra_option_types[], ra_option_layouts[],
    ra_option_head_maps[], ra_option_deals[], ra_option_methods[], ra_option_transports[];

struct ra_option {
    const char *field; /* of struct ra_config; NULL: only programs have this option */
    const char *flag;  /* of programs; NULL: only the library has this option */
    size_t offset;     /* of the field */
    enum ra_option_kind kind;

    double least, most; /* of a good value; unused by FLAG, CHOICE and PATH */
    const char *good;   /* REAL: a good value in words, unless they follow from least and most */
    const char *unset;  /* how a config leaves this option to its default; NULL: it cannot */
    const struct ra_choice *choices;
    char unit; /* of stage 12: what the number counts, as scale_number has it; 0: nothing */

    /* Whether this option may be set at all: only beside another one of this value, or if `other`,
     * of any but this; and why. */
    const char *needs, *because;
    int needed;
    bool other;

    int chapter; /* which teaches it: its stage is the first that has the flag */
    unsigned programs;
    const char *value,
        *help; /* for --help: the value's name, NULL if there is none; what it does */
};

enum { RA_OPTIONS = 47 };
extern const struct ra_option ra_options[RA_OPTIONS];

/* Reads, or writes, the value of a field of `fields`: a struct ra_config, or whatever struct the
 * table's offsets are of. Of a REAL its bits, see below. A flag is read as a byte, since a bool
 * that holds neither 0 nor 1 may not be read at all. */
int64_t ra_option_load(const struct ra_option *option, const void *fields);
void ra_option_store(const struct ra_option *option, void *fields, int64_t value);

int64_t ra_option_bits(double real);
double ra_option_real(int64_t bits);

/* Tells whether a value is between `least` and `most`, or one of the choices. */
bool ra_option_in_range(const struct ra_option *option, int64_t value);

/* What to give instead of a value out of range, as text: "at least 1"; "striped or zigzag", or the
 * same as constants of C. */
enum { RA_OPTION_TEXT = 120 };
const char *ra_option_advice(const struct ra_option *option, int64_t value, bool constants,
                             char text[RA_OPTION_TEXT]);

/* Returns the first option of a table whose field is not the default, and without what it needs, or
 * NULL. Writes what that is, as flags of a program, "--layout striped", or in C, "layout =
 * RA_STRIPED"; of one that needs another value than that, "--layout other than striped". */
const struct ra_option *ra_option_unmet(const struct ra_option *table, int count,
                                        const void *fields, const void *defaults, bool constants,
                                        char text[RA_OPTION_TEXT]);

#endif
