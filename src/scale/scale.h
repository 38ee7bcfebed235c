/* scale: the command line of 12-scale, and what --measure measures. Plumbing of chapter 12.
 */
#ifndef SCALE_H
#define SCALE_H

#include "ring_attention_scale.h"
#include "stage_mpi.h"

enum { SCALE_MOST_COUNTS = 32 };

/* All that the command line says. */
struct scale {
    struct stage stage;
    struct ra_config config;
    struct ra_scale_machine machine;
    struct ra_scale_model model;
    enum ra_scale_method method;

    int machine_preset, network_preset; /* 0: none */
    const char *ranks;                  /* as text: "8", or "8,64,512" */
    int counts[SCALE_MOST_COUNTS], count;
    int64_t feed_multiple;
    double factor; /* of the slow rank or link */
    bool by_hop, simulate, decode, fits, measure;
};

/* Begins a program of one process; or of all ranks of an MPI job, if it is to --measure. */
void scale_begin(struct scale *scale, int argc, char **argv, const char *program,
                 const char *about);

/* Reads the command line: config, machine and model are complete, but for numbers that nobody gave. */
void scale_options(struct scale *scale, int argc, char **argv);

/* Unless the status is RA_OK, ends the program with the text, in which fields become flags. */
void scale_check(const struct scale *scale, enum ra_status status, const char *error);

/* Measures this rank's rates, all ranks at the same time, and the link to its neighbour, and prints them as
 * flags. All ranks call it. */
void scale_measure(struct scale *scale);

#endif
