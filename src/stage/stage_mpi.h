/* stage_mpi: a stage program that runs on the ranks of an MPI job.
 *
 * Scaffolding, like stage: no chapter teaches it.
 */
#ifndef STAGE_MPI_H
#define STAGE_MPI_H

#include "ra_link.h"
#include "stage.h"

/* Opens a program on every rank of MPI_COMM_WORLD, as stage_open does, with results in float32.
 * Starts MPI, and stage_close ends it; if the caller has started MPI itself, neither happens. */
void stage_open_mpi(struct stage *stage, int argc, char **argv, int number, const char *program,
                    const char *about);

/* Starts MPI, as stage_open_mpi does, for a program that calls stage_begin next, and fills what
 * that asks for. */
void stage_begin_mpi(struct stage *stage, int argc, char **argv, int number, const char *program,
                     const char *about);

/* Lets all ranks hear from now on, now and then, that this one makes progress, as long as it polls
 * this link, of which a program has one: other rings know nothing of it, but may wait for its
 * report. */
void stage_show_progress(const struct stage *stage, struct ra_link *link);

#endif
