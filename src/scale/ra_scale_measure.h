/* ra_scale_measure: the machine that the ranks of a link are. Internal.
 *
 * Chapter 12.
 */
#ifndef RA_SCALE_MEASURE_H
#define RA_SCALE_MEASURE_H

#include "ra_link.h"
#include "ring_attention_scale.h"

/* Measures rates, the memory's bandwidth, and messages, with the shapes of this config, which has
 * been read, but at most `rows` rows [0: as many as are usual there]; messages inside a host and
 * between hosts, if all hosts have as many ranks. Everything is measured where the config computes,
 * whose backend has a meter, `times` times on all ranks at once, and the slowest counts. All ranks
 * of the link call it, with the same arguments, and get the same machine. */
RA_CHECKED enum ra_status ra_scale_measure(struct ra_scale_machine *machine,
                                           const struct ra_config *config,
                                           const struct ra_link *link, int64_t rows, int times,
                                           char *error);

/* Finds bandwidth and latency of a link from the seconds of two long messages and of a short one,
 * `shortest`. Above MPI's eager limit the sender first asks, so a long message has three times the
 * latency of a short one. The messages of a ring are long, so both numbers come from the long ones.
 */
void ra_scale_line(const double bytes[2], const double seconds[2], double shortest,
                   double *bandwidth, double *latency);

#endif
