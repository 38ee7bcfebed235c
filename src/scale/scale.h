/* scale: the command line of 12-scale, and what --measure measures. Plumbing of chapter 12.
 */
#ifndef SCALE_H
#define SCALE_H

#include "ring_attention_scale.h"
#include "scale_machine.h"
#include "stage_mpi.h"

enum { SCALE_MOST_COUNTS = 32, SCALE_MOST_FLAGS = 64 };

/* --method all, beside the methods of enum ra_scale_method. */
enum { SCALE_ALL_METHODS = RA_SCALE_HYBRID + 1 };

/* The questions, as bits of a set: each flag has the set of those on which it has an effect. */
enum scale_mode {
    SCALE_RANKS = 1,
    SCALE_STEP = 2,
    SCALE_HOPS = 4,
    SCALE_SIMULATE = 8,
    SCALE_DECODE = 16,
    SCALE_FITS = 32,
    SCALE_MEASURE = 64
};

/* All that the command line says. */
struct scale {
    struct stage stage;
    struct ra_config config;
    struct ra_scale_machine machine;
    struct ra_scale_model model;
    int method; /* of enum ra_scale_method, or SCALE_ALL_METHODS */

    enum scale_mode mode;
    bool given[SCALE_MOST_FLAGS];       /* by row of the table of flags */
    int machine_preset, network_preset; /* 0: none */
    const char *ranks;                  /* as text: "8", or "8,64,512" */
    const char *slices;                 /* the path of --slices */
    struct ra_scale_mask list, *mask;   /* mask: NULL, or the list of --documents or --slices */
    int counts[SCALE_MOST_COUNTS], count;
    double feed_multiple, dense_rate;
    double factor; /* of the slow rank or link */
    bool by_hop, simulate, decode, fits, measure, csv;
};

/* Begins a program of one process; or of all ranks of an MPI job, if it is to --measure. */
void scale_begin(struct scale *scale, int argc, char **argv, const char *program,
                 const char *about);

/* Reads the command line. Then config, machine and model are complete, except for rates and for
 * numbers that neither a flag nor a preset gives. */
void scale_options(struct scale *scale, int argc, char **argv);

/* Sets the number of ranks of the ring, and returns the machine with the rates for it. `told` gets
 * the rates as from scale_take_rates. */
struct ra_scale_machine scale_on(struct scale *scale, int ranks, double told[2]);

/* Returns the word of a method. */
const char *scale_method(int method);

/* Unless the status is RA_OK, ends the program with the text, in which fields become flags. */
void scale_check(const struct scale *scale, enum ra_status status, const char *error);

/* Measures this rank's rates, all ranks at the same time, and the link to its neighbour, and prints
 * them as flags. All ranks call it. */
void scale_measure(struct scale *scale);

#endif
