/* scale_machine: presets, and rates by type, head size and rows. See scale_machine.h. */
#include "scale_machine.h"
#include <math.h>
#include <string.h>
#include "ra_math.h"
#include "ra_pairs.h"

#define GPU(memory_is, reads, nvlink)      \
    .machine = {.memory = memory_is,       \
                .memory_bandwidth = reads, \
                .tile_queries = 192,       \
                .tile_keys = 128,          \
                .overhead = 5e-6,          \
                .ranks_per_host = 8,       \
                .bandwidth = nvlink,       \
                .latency = 6e-6}

const struct ra_choice scale_machines[] = {
    {"none", NULL}, {"h100", NULL}, {"h200", NULL}, {"b200", NULL}, {0}};
const struct scale_preset scale_machine_presets[] = {
    {.source = ""},
    {GPU(80e9, 3.35e12, 393e9), 390e12, "h100", 1,
     "rates and NVLink: measured, chapter 12; memory: NVIDIA's data sheet"},
    {GPU(141e9, 4.15e12, 393e9), 390e12, "h200", 1,
     "rates, NVLink, bytes of memory a second: measured, chapters 12 and 14; memory: NVIDIA's data "
     "sheet"},
    {GPU(180e9, 8e12, 780e9), 886e12, "h100", 2250. / 990,
     "an estimate: NVIDIA's data sheet of the DGX B200, rates and NVLink times the share of theirs "
     "that the h100 reaches; this library has no kernels for the b200 yet"}};

const struct ra_choice scale_networks[] = {
    {"none", NULL}, {"infiniband400", NULL}, {"ethernet400", NULL}, {0}};
const struct scale_preset scale_network_presets[] = {
    {.source = ""},
    {.machine = {.host_bandwidth = 50e9, .host_latency = 5e-6},
     .source = "400 Gb/s for each rank, the rate of the line; latency assumed"},
    {.machine = {.host_bandwidth = 50e9, .host_latency = 20e-6},
     .source = "400 Gb/s for each rank, the rate of the line; latency assumed"}};

void scale_take(struct ra_scale_machine *to, const struct scale_preset *preset)
{
    const struct ra_scale_machine *from = &preset->machine;
#define FILL(field) to->field = to->field != 0 ? to->field : from->field
    FILL(memory);
    FILL(memory_bandwidth);
    FILL(tile_queries);
    FILL(tile_keys);
    FILL(overhead);
    FILL(ranks_per_host);
    FILL(bandwidth);
    FILL(latency);
    FILL(host_bandwidth);
    FILL(host_latency);
#undef FILL
}

/* The rates of launches of this many rows, interpolated between the measured numbers of rows next
 * to it. A kernel pads a head to the next size that it has, and computes all of that. False:
 * nothing was measured. */
static bool measured(const char *machine, const char *type, int64_t dim, const char *mask,
                     double rows, double rates[2], const char **kernel)
{
    const struct scale_rate *below = NULL, *above = NULL;
    int64_t padded = INT64_MAX;
    for (const struct scale_rate *r = scale_rates; r->machine; r++)
        if (strcmp(r->machine, machine) == 0 && strcmp(r->type, type) == 0 && r->dim >= dim)
            padded = r->dim < padded ? r->dim : padded;
    for (const struct scale_rate *r = scale_rates; r->machine; r++) {
        if (strcmp(r->machine, machine) != 0 || strcmp(r->type, type) != 0 || r->dim != padded ||
            strcmp(r->mask, mask) != 0)
            continue;
        if ((double)r->rows <= rows && (!below || r->rows > below->rows))
            below = r;
        if ((double)r->rows >= rows && (!above || r->rows < above->rows))
            above = r;
    }
    if (!below && !above)
        return false;
    below = below ? below : above;
    above = above ? above : below;
    double part = above == below ? 0
                                 : log2(rows / (double)below->rows) /
                                       log2((double)above->rows / (double)below->rows);
    double used = (double)dim / (double)padded;
    rates[0] = used * (below->forward + part * (above->forward - below->forward));
    rates[1] = used * (below->backward + part * (above->backward - below->backward));
    *kernel = below->kernel;
    return true;
}

/* The part of a rank's pairs that are computed in launches with a diagonal: the busiest rank's. */
static double diagonal_part(const struct ra_config *config, int ranks)
{
    if (!config->causal)
        return 0;
    if (config->layout == RA_STRIPED || config->lookback != RA_NO_LOOKBACK ||
        config->max_slices > 0)
        return 1;
    return config->layout == RA_ZIGZAG ? 1. / ranks : 1. / (2 * ranks - 1);
}

const char *scale_take_rates(struct ra_scale_machine *to, double told[2],
                             const struct scale_preset *preset, const struct ra_config *config)
{
    int ranks = config->ring_size > 1 ? config->ring_size : 1;
    int64_t rows = ra_ceiling_division(config->queries, ranks);
    const char *type = ra_option_types[config->type].word, *kernel = "";
    double causal[2] = {0, 0}, full[2] = {0, 0}, *rates[] = {&to->forward_rate, &to->backward_rate};
    bool known =
        preset->rates &&
        measured(preset->rates, type, config->dim, "causal", (double)rows, causal, &kernel) &&
        measured(preset->rates, type, config->dim, "full", (double)rows, full, &kernel);

    /* The rates count pairs that see each other, a machine's those that are computed, by tiles of
     * that kernel. */
    struct ra_band band = {-RA_BAND_FAR, 0};
    const struct ra_scale_machine *gpu = &preset->machine;
    double part = diagonal_part(config, ranks);
    double edges = !known ? 1
                          : ra_pairs_computed(band, rows, rows, gpu->tile_queries, gpu->tile_keys) /
                                (double)ra_pairs_visible(band, rows, rows);
    for (int pass = 0; pass < 2; pass++) {
        told[pass] = 2e-12 * *rates[pass];
        if (*rates[pass] != 0 || !known)
            continue;
        told[pass] = preset->times / (part / causal[pass] + (1 - part) / full[pass]);
        *rates[pass] =
            0.5e12 * preset->times / (part / (causal[pass] * edges) + (1 - part) / full[pass]);
    }
    return known ? kernel : NULL;
}
