/* scale_machine: machines and networks, as measured or from a maker's data sheet, and numbers with
 * units. Plumbing of chapter 12.
 */
#ifndef SCALE_MACHINE_H
#define SCALE_MACHINE_H

#include "ra_options.h"
#include "ring_attention_scale.h"

/* A line of chapters/img/12-rates.csv: the rates of one GPU alone, in launches of one sequence of
 * 32 heads with this many queries and keys, in 10^12 operations a second. Only visible pairs of a
 * query and a key count. */
struct scale_rate {
    const char *machine, *kernel, *type;
    int64_t dim;
    const char *mask; /* "causal" or "full" */
    int64_t rows;
    double forward, backward;
};
extern const struct scale_rate scale_rates[]; /* the last has no machine */

/* A preset: what holds where no flag gives a number. Its rates are those of machine `rates` in the
 * table, multiplied by `times`. */
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

/* Fills every field of a machine that is 0, except rates, from a preset. */
void scale_take(struct ra_scale_machine *to, const struct scale_preset *preset);

/* Fills rates that are 0 with those of the preset's GPU alone, for the type, the head size and the
 * launches of this config, interpolated between the numbers of rows that were measured. `told` gets
 * the measured rates, forward and backward, in 10^12 operations a second. Returns the kernels'
 * name; NULL if nothing like that was measured. */
const char *scale_take_rates(struct ra_scale_machine *to, double told[2],
                             const struct scale_preset *preset, const struct ra_config *config);

/* Reads a number from a text such as 1e6 or 2^20, which may be followed by k, M, G, T or Ki, Mi,
 * Gi, Ti, and then by a unit. `unit` says what is counted: 'B' bytes, 'W' bytes a second, 's'
 * seconds, 'F' multiply-adds a second, or 0 for a number without unit. Returns whether the text is
 * such a number. */
bool scale_number(const char *text, char unit, double *number);

#endif
