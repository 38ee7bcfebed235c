/* 12-scale: what attention costs on many ranks, before it runs.
 *
 * Chapter 12. New here: ranks, hops and tokens that need not exist, priced by the functions of
 * ring_attention_scale.h, and written as tables.
 */
#include <inttypes.h>
#include <stdio.h>
#include "scale.h"

static const char *const passes[] = {"forward", "backward"};

/* A line for each number of ranks. */
static void print_ranks(struct scale *s)
{
    char error[RA_ERROR_SIZE];
    puts("        tokens of    forward            backward           a rank sends, GB    GB of a "
         "rank\n"
         " ranks     a rank          s  waiting         s  waiting    inside  to hosts    plan  "
         "arrays");
    for (int i = 0; i < s->count; i++) {
        struct ra_scale all;
        s->config.ring_size = s->counts[i];
        scale_check(s, ra_scale_predict(&all, &s->config, &s->machine, s->method, NULL, error),
                    error);
        const struct ra_scale_pass *f = &all.forward, *b = &all.backward;
        printf("%6d %10" PRId64 " %10.4g %6.1f %% ", s->counts[i], s->config.queries / s->counts[i],
               f->seconds, 100 * f->waiting / f->seconds);
        if (s->config.forward_only)
            printf("%9s %8s ", "-", "-");
        else
            printf("%9.4g %6.1f %% ", b->seconds, 100 * b->waiting / b->seconds);
        printf("%9.4g %9.4g %7.2f %7.2f\n", 1e-9 * (f->inside_bytes + b->inside_bytes),
               1e-9 * (f->host_bytes + b->host_bytes), 1e-9 * (double)all.plan_bytes,
               1e-9 * (double)all.array_bytes);
    }
}

/* A line for each hop of the first number of ranks. */
static void print_hops(struct scale *s)
{
    int P = s->config.ring_size = s->counts[0];
    char error[RA_ERROR_SIZE];
    struct ra_scale all;
    struct ra_scale_hop *hops = stage_allocate(&s->stage, 2 * (int64_t)P, sizeof *hops);
    scale_check(s, ra_scale_predict(&all, &s->config, &s->machine, s->method, hops, error), error);
    for (int pass = 0; pass < (s->config.forward_only ? 1 : 2); pass++) {
        const struct ra_scale_pass *sum = pass == 0 ? &all.forward : &all.backward;
        printf("%s, microseconds\n   hop  work, most  of all ranks    messages       takes\n",
               passes[pass]);
        for (int step = 0; step < all.hops; step++) {
            const struct ra_scale_hop *hop = &hops[pass * P + step];
            printf("%6d %11.1f %13.1f %11.1f %11.1f\n", hop->distance, 1e6 * hop->work,
                   1e6 * hop->mean_work, 1e6 * hop->messages, 1e6 * hop->seconds);
        }
        printf("   end %37s %11.1f\n   all %37s %11.1f\n", "", 1e6 * sum->tail, "",
               1e6 * sum->seconds);
    }
}

/* The simulation beside the formula, and what each rank did. Of many ranks every so many-th is shown. */
static void print_simulation(struct scale *s)
{
    int P = s->config.ring_size = s->counts[0], every = (P + 15) / 16;
    char error[RA_ERROR_SIZE];
    struct ra_scale all;
    struct ra_scale_rank *ranks = stage_allocate(&s->stage, P, sizeof *ranks);
    scale_check(s, ra_scale_predict(&all, &s->config, &s->machine, s->method, NULL, error), error);
    for (int pass = 0; pass < (s->config.forward_only ? 1 : 2); pass++) {
        double seconds, formula = pass == 0 ? all.forward.seconds : all.backward.seconds;
        scale_check(s,
                    ra_scale_simulate(&seconds, &s->config, &s->machine, pass == 1, ranks, error),
                    error);
        printf(
            "%s: %.6g seconds; by the formula %.6g\n  rank       works       waits  is done at\n",
            passes[pass], seconds, formula);
        for (int rank = 0; rank < P; rank++)
            if (rank % every == 0 || rank == P - 1 || rank == s->machine.slow_rank ||
                rank == s->machine.slow_link)
                printf("%6d %11.5g %11.5g %11.5g%s\n", rank, ranks[rank].work, ranks[rank].waiting,
                       ranks[rank].end,
                       rank == s->machine.slow_rank   ? "  works slowly"
                       : rank == s->machine.slow_link ? "  sends slowly"
                                                      : "");
    }
}

/* One new token. */
static void print_decoding(struct scale *s)
{
    char error[RA_ERROR_SIZE];
    puts("         cache of              microseconds          bytes of\n"
         " ranks  a rank, GB      work  messages       all    a message  rounds");
    s->config.keys = s->config.queries;
    s->config.queries = 1;
    for (int i = 0; i < s->count; i++) {
        struct ra_scale_decoding one;
        s->config.ring_size = s->counts[i];
        scale_check(s, ra_scale_decode(&one, &s->config, &s->machine, error), error);
        printf("%6d %11.3f %9.1f %9.1f %9.1f %12.0f %7d\n", s->counts[i], 1e-9 * one.cache_bytes,
               1e6 * one.work, 1e6 * one.messages, 1e6 * one.seconds, one.message_bytes,
               one.rounds);
    }
}

/* The longest sequence of a model's training. */
static void print_longest(struct scale *s)
{
    char error[RA_ERROR_SIZE];
    puts("                     tokens of      GB of a rank\n"
         " ranks      tokens      a rank   weights  activations  attention");
    for (int i = 0; i < s->count; i++) {
        struct ra_scale_memory memory;
        s->config.ring_size = s->counts[i];
        scale_check(s, ra_scale_fits(&s->config.queries, &s->config, &s->model, &s->machine, error),
                    error);
        scale_check(s, ra_scale_memory_of(&memory, &s->config, &s->model, error), error);
        printf("%6d %11" PRId64 " %11" PRId64 " %9.2f %12.2f %10.2f\n", s->counts[i],
               s->config.queries, s->config.queries / s->counts[i], 1e-9 * memory.weights,
               1e-9 * memory.activations, 1e-9 * memory.attention);
    }
}

int main(int argc, char **argv)
{
    struct scale s = {0};
    scale_begin(&s, argc, argv, "12-scale",
                "What ring attention costs on many ranks, before it runs.");
    scale_options(&s, argc, argv);
    stage_opened(&s.stage);
    if (s.measure)
        scale_measure(&s);
    else
        (s.by_hop     ? print_hops
         : s.simulate ? print_simulation
         : s.decode   ? print_decoding
         : s.fits     ? print_longest
                      : print_ranks)(&s);
    return stage_leave(&s.stage);
}
