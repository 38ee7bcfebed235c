/* scale_table: the tables of 12-scale, for people or as CSV. See scale_table.h. */
#include "scale_table.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

void scale_print_names(const struct scale *s, const char *first, const struct scale_column *columns,
                       int count, const char *heading)
{
    if (!s->csv) {
        puts(heading);
        return;
    }
    printf("%s", first);
    for (int c = 0; c < count; c++)
        printf("%s%s", c > 0 || *first ? "," : "", columns[c].name);
    putchar('\n');
}

void scale_print_line(const struct scale *s, const char *first, const struct scale_column *columns,
                      int count, const double *numbers, const char *note)
{
    printf("%s", first);
    for (int c = 0; c < count; c++) {
        bool there = !isnan(numbers[c]);
        if (!s->csv && !columns[c].format)
            continue;
        if (s->csv && (c > 0 || *first))
            putchar(',');
        if (s->csv && there)
            printf("%.12g", numbers[c]);
        else if (!s->csv && there)
            printf(columns[c].format, columns[c].width, numbers[c]);
        else if (!s->csv)
            printf("%*s", columns[c].width, "-");
    }
    puts(s->csv ? "" : note);
}

double scale_weights(const struct scale *s)
{
    char error[RA_ERROR_SIZE];
    struct ra_scale_memory alone;
    struct ra_config config = s->config;
    config.queries = config.keys = config.ring_size = 1;
    config.method = RA_RING;
    config.group = 0;
    scale_check(s, ra_scale_memory_of(&alone, &config, NULL, &s->model, error), error);
    return alone.weights / s->model.weight_bytes;
}

void scale_print_question(const struct scale *s)
{
    const struct ra_config *c = &s->config;
    int64_t key_heads = c->key_heads == RA_SAME ? c->heads : c->key_heads;
    if (s->csv)
        return;
    if (s->mode & (SCALE_STEP | SCALE_FITS))
        printf("a step of %" PRId64 " layers of %" PRId64 " numbers a token, %.3g * 10^9 weights",
               s->model.depth, s->model.dim, 1e-9 * scale_weights(s));
    else
        printf("one layer of attention");
    printf("%s", s->mode & (SCALE_STEP | SCALE_FITS) ? ":\n" : ": ");
    if (s->mode != SCALE_FITS)
        printf("%" PRId64 " tokens, ", c->queries);
    printf("%" PRId64 " heads of %" PRId64 ", %" PRId64 " key heads, %s", c->heads, c->dim,
           key_heads, ra_option_types[c->type].word);
    if (c->batch > 1)
        printf(", batch of %" PRId64, c->batch);
    if (c->causal && c->lookback != RA_NO_LOOKBACK)
        printf(", the last %" PRId64 " tokens", c->lookback + 1);
    if (s->mask)
        printf(", %" PRId64 " slice%s", s->list.count, s->list.count == 1 ? "" : "s");
    if (s->mode != SCALE_DECODE)
        printf(", %s", s->list.deal == RA_DEAL_DOCUMENTS ? "dealt by document"
                       : c->causal || s->mask            ? ra_option_layouts[c->layout].word
                                                         : "no mask");
    printf("%s%s", c->causal ? ", causal; " : "; ",
           s->mode == SCALE_DECODE          ? "a tree"
           : s->method == SCALE_ALL_METHODS ? "by every method"
                                            : scale_method(s->method));
    if (s->method == RA_SCALE_HYBRID && c->group > 0)
        printf(", groups of %d", c->group);
    putchar('\n');
    if (s->machine.memory > 0)
        printf("a rank has %g GB\n", 1e-9 * s->machine.memory);
    if (s->machine_preset)
        printf("%s: %s\n", scale_machines[s->machine_preset].word,
               scale_machine_presets[s->machine_preset].source);
    if (s->network_preset)
        printf("%s: %s\n", scale_networks[s->network_preset].word,
               scale_network_presets[s->network_preset].source);
}

double scale_fits(const struct scale *s, double bytes)
{
    return s->machine.memory > 0 ? bytes <= s->machine.memory : NAN;
}

const char *scale_note(double fits_in)
{
    return fits_in == 0 ? "  does not fit" : "";
}
