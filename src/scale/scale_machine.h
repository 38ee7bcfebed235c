/* scale_machine: machines and networks that somebody has measured, or a maker's data sheet tells; and numbers with
 * units. Plumbing of chapter 12.
 */
#ifndef SCALE_MACHINE_H
#define SCALE_MACHINE_H

#include "ra_options.h"
#include "ring_attention_scale.h"

/* A line of chapters/img/12-rates.csv: what one GPU alone did in launches of so many queries and as many keys, one
 * sequence of 32 heads, in 10^12 operations a second of pairs that see each other. */
struct scale_rate {
    const char *machine, *kernel, *type;
    int64_t dim;
    const char *mask; /* "causal" or "full" */
    int64_t rows;
    double forward, backward;
};
extern const struct scale_rate scale_rates[]; /* until one that has no machine */

/* A preset: what no flag gives. Its rates are those of a machine in the table, so many times. */
struct scale_preset {
    struct ra_scale_machine machine;
    double
        dense_rate; /* multiply-adds a second of large products of 16-bit matrices; 0: not known */
    const char *rates;
    double times;
    const char *source;
};
extern const struct ra_choice scale_machines[], scale_networks[];
extern const struct scale_preset scale_machine_presets[], scale_network_presets[];

/* Fills what is 0 in a machine by a preset, but for rates. */
void scale_take(struct ra_scale_machine *to, const struct scale_preset *preset);

/* Fills rates that are 0 by what the preset's GPU does alone: for this type, this number per head, and these
 * launches, interpolated between the rows that were measured. `told` has the rates in 10^12 operations a second
 * as they were measured, forward and backward. The kernels' name; NULL if nothing like that was measured. */
const char *scale_take_rates(struct ra_scale_machine *to, double told[2],
                             const struct scale_preset *preset, const struct ra_config *config);

/* The number that a text says: 1e6, 2^20; with k, M, G, T or Ki, Mi, Gi, Ti behind it; and then perhaps with a unit.
 * `unit` is what the number counts: 0 nothing, 'B' bytes, 'W' bytes a second, 's' seconds, 'F' multiply-adds a second.
 * Returns whether it is such a text. */
bool scale_number(const char *text, char unit, double *number);

/* Bandwidth and latency of a link on which two long messages took so many seconds, and a short one `shortest`.
 * Above MPI's eager limit a message first asks, so it has three times the latency of a short one: both numbers
 * must be found from long messages, as those of a ring are. */
void scale_line(const double bytes[2], const double seconds[2], double shortest, double *bandwidth,
                double *latency);

#endif
