/* 12-scale: what attention costs on many ranks, before it runs.
 *
 * Chapter 12. New here: ranks, hops and tokens that need not exist, priced by the functions of
 * ring_attention_scale.h.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "scale_table.h"

static const char *const passes[] = {"forward", "backward"};

/* ---- One layer. */

/* A prediction, and of each pass the seconds in which a rank waits for messages: its other waiting
 * is for ranks that have more to do. */
struct answer {
    struct ra_scale all;
    double rates[2], for_messages[2];
};

/* Seconds of each pass in which a rank waits for messages. */
static void find_waits(const struct ra_scale *all, const struct ra_scale_hop *hops, int ranks,
                       double for_messages[2])
{
    for (int pass = 0; pass < 2; pass++) {
        for_messages[pass] = (pass == 0 ? all->forward : all->backward).tail;
        for (int step = 0; step < all->hops; step++)
            for_messages[pass] +=
                fmax(hops[pass * ranks + step].seconds - hops[pass * ranks + step].work, 0);
    }
}

static struct answer predict(struct scale *s, int P, struct ra_scale_hop *hops)
{
    char error[RA_ERROR_SIZE];
    struct answer answer = {.rates = {0, 0}};
    struct ra_scale_machine machine = scale_on(s, P, answer.rates);
    struct ra_scale_hop *own = hops ? hops : stage_allocate(&s->stage, 2 * (int64_t)P, sizeof *own);
    scale_check(s,
                ra_scale_predict(&answer.all, &s->config, s->mask, &machine,
                                 (enum ra_scale_method)s->method, own, error),
                error);
    find_waits(&answer.all, own, P, answer.for_messages);
    return answer;
}

/* What a line says of a pass: TFLOP/s of a rank, and those that were assumed; seconds, and how many
 * percent of them a rank waits, and waits for messages. NAN, where the pass is not there. */
static void numbers_of_pass(const struct answer *answer, int pass, bool there, int ranks,
                            double numbers[5])
{
    const struct ra_scale_pass *p = pass == 0 ? &answer->all.forward : &answer->all.backward;
    numbers[0] = there ? 2e-12 * p->multiply_adds / ranks / p->seconds : NAN;
    numbers[1] = there ? answer->rates[pass] : NAN;
    numbers[2] = there ? p->seconds : NAN;
    numbers[3] = there ? 100 * p->waiting / p->seconds : NAN;
    numbers[4] = there ? 100 * answer->for_messages[pass] / p->seconds : NAN;
}

/* A line for each number of ranks. */
static void print_ranks(struct scale *s)
{
    static const struct scale_column columns[] = {
        {"ranks", "%*.0f", 6},
        {"rows", "%*.0f", 9},
        {"forward_tflops", "%*.1f", 7},
        {"forward_assumed_tflops", " of %-*.0f", 4},
        {"forward_seconds", "%*.4g", 9},
        {"forward_waiting_percent", "%*.1f %%", 6},
        {"forward_for_messages_percent", "%*.1f %%", 6},
        {"backward_tflops", "%*.1f", 8},
        {"backward_assumed_tflops", " of %-*.0f", 4},
        {"backward_seconds", "%*.4g", 9},
        {"backward_waiting_percent", "%*.1f %%", 6},
        {"backward_for_messages_percent", "%*.1f %%", 6},
        {"inside_gigabytes", "%*.4g", 7},
        {"host_gigabytes", "%*.4g", 9},
        {"plan_gigabytes", NULL, 0},
        {"array_gigabytes", NULL, 0},
        {"rank_gigabytes", "%*.2f", 7},
        {"fits", NULL, 0},
        {"forward_balance", NULL, 0},
        {"backward_balance", NULL, 0},
    };
    enum { COLUMNS = sizeof columns / sizeof *columns };

    /* All answers come before the first line, so that an error never ends a table that has
     * begun. */
    struct answer answers[SCALE_MOST_COUNTS];
    for (int i = 0; i < s->count; i++)
        answers[i] = predict(s, s->counts[i], NULL);
    scale_print_question(s);
    scale_print_names(
        s, "", columns, COLUMNS,
        "                forward:                   waits, for  backward:                  "
        "waits, for"
        "   sends, GB      GB of\n"
        " ranks its tokens TFLOP/s          s             messages TFLOP/s          s      "
        "       messages"
        " inside to hosts a rank");
    for (int i = 0; i < s->count; i++) {
        const struct ra_scale *all = &answers[i].all;
        const struct ra_scale_pass *both[] = {&all->forward, &all->backward};
        double numbers[COLUMNS] = {s->counts[i], (double)(s->config.queries / s->counts[i])};
        for (int pass = 0; pass < 2; pass++) {
            bool there = pass == 0 || !s->config.forward_only;
            numbers_of_pass(&answers[i], pass, there, s->counts[i], numbers + 2 + 5 * pass);
            numbers[18 + pass] = there ? both[pass]->busiest / both[pass]->work : NAN;
        }
        numbers[12] = 1e-9 * (both[0]->inside_bytes + both[1]->inside_bytes);
        numbers[13] = 1e-9 * (both[0]->host_bytes + both[1]->host_bytes);
        numbers[14] = 1e-9 * (double)all->plan_bytes;
        numbers[15] = 1e-9 * (double)all->array_bytes;
        numbers[16] = numbers[14] + numbers[15];
        numbers[17] = scale_fits(s, 1e9 * numbers[16]);
        char more[64] = "";
        if (s->mask && !isnan(numbers[18]))
            snprintf(more, sizeof more, "  busiest / mean %.3f", numbers[18]);
        strcat(more, scale_note(numbers[17]));
        scale_print_line(s, "", columns, COLUMNS, numbers, more);
    }
}

/* --method all: the choices of a number of ranks, and the hops of each. */
struct table {
    int ranks;
    struct ra_scale_choices all;
    struct ra_scale_hop *hops;
};

static void choose(struct scale *s, int P, struct table *table)
{
    char error[RA_ERROR_SIZE];
    double rates[2];
    struct ra_scale_machine machine = scale_on(s, P, rates);
    struct ra_config config = s->config; /* that of the question stays */
    table->ranks = P;
    table->hops = stage_allocate(&s->stage, 2 * (int64_t)P * RA_SCALE_CHOICES, sizeof *table->hops);
    scale_check(s, ra_scale_choose(&table->all, &config, s->mask, &machine, table->hops, error),
                error);
}

static void print_method(const struct scale *s, const struct table *table, int place,
                         const struct scale_column *columns, int count)
{
    const struct ra_scale_choice *choice = &table->all.list[place];
    const struct ra_scale_pass *f = &choice->scale.forward, *b = &choice->scale.backward;
    char name[40], first[40];
    snprintf(name, sizeof name, choice->group && !s->csv ? "%s, groups of %d" : "%s",
             scale_method(choice->method), choice->group);
    snprintf(first, sizeof first, s->csv ? "%s" : "%-22s", name);
    if (!choice->possible) {
        if (!s->csv)
            printf("%s%6d  cannot share %" PRId64 " heads\n", first, table->ranks, s->config.heads);
        return;
    }
    double seconds = f->seconds + b->seconds, for_messages[2];
    find_waits(&choice->scale, table->hops + 2 * (int64_t)table->ranks * place, table->ranks,
               for_messages);
    double messages = for_messages[0] + for_messages[1];
    double bytes = (double)(choice->scale.plan_bytes + choice->scale.array_bytes);
    bool best = place == table->all.best;
    double numbers[] = {table->ranks,
                        choice->group,
                        f->seconds,
                        s->config.forward_only ? NAN : b->seconds,
                        seconds,
                        100 * (f->waiting + b->waiting) / seconds,
                        100 * messages / seconds,
                        1e-9 * (f->inside_bytes + b->inside_bytes),
                        1e-9 * (f->host_bytes + b->host_bytes),
                        1e-9 * bytes,
                        scale_fits(s, bytes),
                        best};
    scale_print_line(s, first, columns, count, numbers, best ? "  best" : scale_note(numbers[10]));
}

/* A line for each method. */
static void print_methods(struct scale *s)
{
    static const struct scale_column columns[] = {{"ranks", "%*.0f", 6},
                                                  {"group", NULL, 0},
                                                  {"forward_seconds", "%*.4g", 10},
                                                  {"backward_seconds", "%*.4g", 10},
                                                  {"seconds", "%*.4g", 10},
                                                  {"waiting_percent", "%*.1f %%", 7},
                                                  {"for_messages_percent", "%*.1f %%", 7},
                                                  {"inside_gigabytes", "%*.4g", 9},
                                                  {"host_gigabytes", "%*.4g", 9},
                                                  {"rank_gigabytes", "%*.2f", 9},
                                                  {"fits", NULL, 0},
                                                  {"best", NULL, 0}};
    enum { COLUMNS = sizeof columns / sizeof *columns };
    struct table *tables = stage_allocate(&s->stage, s->count, sizeof *tables);
    for (int i = 0; i < s->count; i++)
        choose(s, s->counts[i], &tables[i]);
    scale_print_question(s);
    scale_print_names(
        s, "method", columns, COLUMNS,
        "                                       seconds              waits, for    sends, "
        "GB               GB of\n"
        "method                 ranks   forward  backward      both           messages   "
        "inside to hosts    a rank");
    for (int i = 0; i < s->count; i++)
        for (int place = 0; place < tables[i].all.count; place++)
            print_method(s, &tables[i], place, columns, COLUMNS);
}

/* A line for each hop of a number of ranks. */
static void print_hops(struct scale *s)
{
    static const struct scale_column columns[] = {{"hop", "%*.0f", 6},
                                                  {"most_work_microseconds", "%*.1f", 12},
                                                  {"mean_work_microseconds", "%*.1f", 14},
                                                  {"messages_microseconds", "%*.1f", 12},
                                                  {"microseconds", "%*.1f", 12}};
    enum { COLUMNS = sizeof columns / sizeof *columns };
    int P = s->counts[0];
    struct ra_scale_hop *hops = stage_allocate(&s->stage, 2 * (int64_t)P, sizeof *hops);
    struct answer answer = predict(s, P, hops);
    scale_print_question(s);
    scale_print_names(s, "pass", columns, COLUMNS,
                      "microseconds     work, most  of all ranks    messages       takes");
    for (int pass = 0; pass < (s->config.forward_only ? 1 : 2); pass++) {
        const struct ra_scale_pass *sum = pass == 0 ? &answer.all.forward : &answer.all.backward;
        char name[16];
        snprintf(name, sizeof name, s->csv ? "%s" : "%-9s", passes[pass]);
        for (int step = 0; step < answer.all.hops; step++) {
            const struct ra_scale_hop *hop = &hops[pass * P + step];
            const double numbers[] = {hop->distance, 1e6 * hop->work, 1e6 * hop->mean_work,
                                      1e6 * hop->messages, 1e6 * hop->seconds};
            scale_print_line(s, name, columns, COLUMNS, numbers, "");
        }
        if (s->csv)
            continue;
        printf("%-9s   end %37s %12.1f\n", "", "", 1e6 * sum->tail);
        printf("%-9s   all %37s %12.1f\n", "", "", 1e6 * sum->seconds);
    }
}

/* The simulation beside the formula, and what each rank did. Of many ranks one of several is
 * shown. */
static void print_simulation(struct scale *s)
{
    static const struct scale_column columns[] = {{"rank", "%*.0f", 6},
                                                  {"works_seconds", "%*.5g", 12},
                                                  {"waits_seconds", "%*.5g", 12},
                                                  {"done_seconds", "%*.5g", 12}};
    enum { COLUMNS = sizeof columns / sizeof *columns };
    int P = s->counts[0], every = s->csv ? 1 : (P + 15) / 16,
        count = s->config.forward_only ? 1 : 2;
    char error[RA_ERROR_SIZE];
    struct ra_scale_rank *ranks = stage_allocate(&s->stage, 2 * (int64_t)P, sizeof *ranks);
    struct answer answer = predict(s, P, NULL);
    struct ra_scale_machine machine = scale_on(s, P, answer.rates);
    double seconds[2];
    for (int pass = 0; pass < count; pass++)
        scale_check(s,
                    ra_scale_simulate(&seconds[pass], &s->config, s->mask, &machine, pass == 1,
                                      ranks + (int64_t)pass * P, error),
                    error);
    scale_print_question(s);
    if (s->csv)
        scale_print_names(s, "pass", columns, COLUMNS, NULL);
    for (int pass = 0; pass < count; pass++) {
        double formula = pass == 0 ? answer.all.forward.seconds : answer.all.backward.seconds;
        if (!s->csv)
            printf("%s: %.6g seconds; by the formula %.6g\n"
                   "  rank       works       waits  is done at\n",
                   passes[pass], seconds[pass], formula);
        for (int rank = 0; rank < P; rank++) {
            const struct ra_scale_rank *one = &ranks[(int64_t)pass * P + rank];
            const double numbers[] = {rank, one->work, one->waiting, one->end};
            if (rank % every == 0 || rank == P - 1 || rank == machine.slow_rank ||
                rank == machine.slow_link)
                scale_print_line(s, s->csv ? passes[pass] : "", columns, COLUMNS, numbers,
                                 rank == machine.slow_rank   ? "  works slowly"
                                 : rank == machine.slow_link ? "  sends slowly"
                                                             : "");
        }
    }
}

/* One new token. */
static void print_decoding(struct scale *s)
{
    static const struct scale_column columns[] = {{"ranks", "%*.0f", 6},
                                                  {"cache_gigabytes", "%*.3f", 12},
                                                  {"work_microseconds", "%*.1f", 10},
                                                  {"messages_microseconds", "%*.1f", 10},
                                                  {"microseconds", "%*.1f", 10},
                                                  {"message_bytes", "%*.0f", 13},
                                                  {"rounds", "%*.0f", 8},
                                                  {"fits", NULL, 0}};
    enum { COLUMNS = sizeof columns / sizeof *columns };
    char error[RA_ERROR_SIZE];
    struct ra_scale_decoding all[SCALE_MOST_COUNTS];
    double rates[2];
    scale_print_question(s);
    s->config.keys = s->config.queries;
    s->config.queries = 1;
    for (int i = 0; i < s->count; i++) {
        struct ra_scale_machine machine = scale_on(s, s->counts[i], rates);
        scale_check(s, ra_scale_decode(&all[i], &s->config, &machine, error), error);
    }
    scale_print_names(s, "", columns, COLUMNS,
                      "         cache of              microseconds          bytes of\n"
                      " ranks  a rank, GB      work  messages       all    a message  rounds");
    for (int i = 0; i < s->count; i++) {
        const struct ra_scale_decoding *one = &all[i];
        const double numbers[] = {s->counts[i],       1e-9 * one->cache_bytes,
                                  1e6 * one->work,    1e6 * one->messages,
                                  1e6 * one->seconds, one->message_bytes,
                                  one->rounds,        scale_fits(s, one->cache_bytes)};
        scale_print_line(s, "", columns, COLUMNS, numbers, scale_note(numbers[COLUMNS - 1]));
    }
}

/* ---- A model. */

/* The seconds of a step's products with weights, `rows` to a rank. A weight is multiplied once
 * forward, twice backward; those of layers that compute again once more. The embedding is looked
 * up. NAN: the rate of such products is not known. */
static double products_of_step(const struct scale *s, double rows)
{
    double again = s->model.recompute ? 2 : 1;
    double words = (double)s->model.dim * (double)s->model.vocabulary;
    double layers = scale_weights(s) - 2 * words;
    double products = rows * ((again + 2) * layers + 3 * words);
    return s->dense_rate > 0 ? products / s->dense_rate : NAN;
}

/* The seconds of a step that are neither attention nor a product, `rows` to a rank: bytes at the
 * rate of its memory, as in the balance sheet of chapter 14; and the sums of gradients over ranks
 * that all have all weights, as if nothing hid them. NAN: the rate of memory is not known. */
static double rest_of_step(const struct scale *s, double rows, int ranks)
{
    const struct ra_scale_machine *machine = &s->machine;
    const struct ra_scale_model *m = &s->model;
    const struct ra_config *c = &s->config;
    double again = m->recompute ? 2 : 1, dim = (double)m->dim, hidden = (double)m->hidden;
    double weights = scale_weights(s);
    double heads = (double)(c->heads + (c->key_heads == RA_SAME ? c->heads : c->key_heads));
    double rotated = heads * (double)c->dim, share = m->replicated ? 1 : 1. / ranks;

    /* Two norms, with their backward and what it computes again; rotations; GELU; biases. */
    double layer = (again + 1) * 2 * 6 * dim + 2 * 16 * dim + (again + 1) * 4 * rotated +
                   (again * 4 + 8) * hidden + 2 * (hidden + dim);
    double loss = 6 * (double)m->vocabulary;
    double learning = (4 + 30) * share * weights;
    double bytes = rows * ((double)m->depth * layer + loss) + learning;
    bool leaves = machine->ranks_per_host > 0 && ranks > machine->ranks_per_host;
    double wire = leaves ? machine->host_bandwidth : machine->bandwidth;
    double sums = m->replicated && ranks > 1 ? 2. * (ranks - 1) / ranks * 4 * weights / wire : 0;
    return machine->memory_bandwidth > 0 ? bytes / machine->memory_bandwidth + sums : NAN;
}

/* A training step: attention of all layers, products with weights, the rest, and memory. */
static void print_steps(struct scale *s)
{
    static const struct scale_column columns[] = {{"ranks", "%*.0f", 6},
                                                  {"rows", "%*.0f", 10},
                                                  {"forward_assumed_tflops", "%*.1f", 8},
                                                  {"backward_assumed_tflops", "%*.1f", 9},
                                                  {"attention_seconds", "%*.4g", 11},
                                                  {"waiting_percent", "%*.1f %%", 6},
                                                  {"for_messages_percent", "%*.1f %%", 6},
                                                  {"weights_seconds", "%*.4g", 9},
                                                  {"rest_seconds", "%*.3g", 8},
                                                  {"step_seconds", "%*.4g", 10},
                                                  {"weight_gigabytes", "%*.2f", 8},
                                                  {"activation_gigabytes", "%*.2f", 8},
                                                  {"plan_gigabytes", "%*.2f", 7},
                                                  {"fits", NULL, 0}};
    enum { COLUMNS = sizeof columns / sizeof *columns };
    const struct ra_scale_model *m = &s->model;
    char error[RA_ERROR_SIZE];
    double lines[SCALE_MOST_COUNTS][COLUMNS];
    double again = m->recompute ? 2 : 1, depth = (double)m->depth;
    for (int i = 0; i < s->count; i++) {
        struct ra_scale_memory memory;
        struct answer a = predict(s, s->counts[i], NULL);
        const struct ra_scale_pass *f = &a.all.forward, *b = &a.all.backward;
        scale_check(s, ra_scale_memory_of(&memory, &s->config, s->mask, m, error), error);
        double held = (double)a.all.plan_bytes;
        double bytes = memory.weights + memory.activations + held;

        double rows = (double)s->config.batch * (double)s->config.queries / s->counts[i];
        double attention = depth * (again * f->seconds + b->seconds);
        double weights = products_of_step(s, rows);
        double rest = rest_of_step(s, rows, s->counts[i]);
        double numbers[COLUMNS] = {s->counts[i],
                                   (double)(s->config.queries / s->counts[i]),
                                   a.rates[0],
                                   a.rates[1],
                                   attention,
                                   100 * depth * (again * f->waiting + b->waiting) / attention,
                                   100 * depth * (again * a.for_messages[0] + a.for_messages[1]) /
                                       attention,
                                   weights,
                                   rest,
                                   attention + weights + (isnan(rest) ? 0 : rest),
                                   1e-9 * memory.weights,
                                   1e-9 * memory.activations,
                                   1e-9 * held,
                                   scale_fits(s, bytes)};
        for (int k = 0; k < COLUMNS; k++)
            lines[i][k] = numbers[k];
    }
    scale_print_question(s);
    if (!s->csv && s->dense_rate > 0)
        printf("products with weights at %.0f TFLOP/s; %s\n", 2e-12 * s->dense_rate,
               m->replicated ? "the rest: bytes of memory, and sums of gradients that nothing hides"
                             : "the rest: bytes of memory; messages that share weights and sum "
                               "gradients are not counted");
    scale_print_names(
        s, "", columns, COLUMNS,
        "                 TFLOP/s assumed  attention      waits, for   weights    rest "
        "all of it       GB of a rank\n"
        " ranks its tokens forward backward          s        messages         s       s "
        "        s weights  layers   plan");
    for (int i = 0; i < s->count; i++)
        scale_print_line(s, "", columns, COLUMNS, lines[i], scale_note(lines[i][COLUMNS - 1]));
}

/* The longest sequence of a model's training. */
static void print_longest(struct scale *s)
{
    static const struct scale_column columns[] = {{"ranks", "%*.0f", 6},
                                                  {"tokens", "%*.0f", 12},
                                                  {"rows", "%*.0f", 12},
                                                  {"weight_gigabytes", "%*.2f", 10},
                                                  {"activation_gigabytes", "%*.2f", 13},
                                                  {"attention_gigabytes", "%*.2f", 11}};
    enum { COLUMNS = sizeof columns / sizeof *columns };
    char error[RA_ERROR_SIZE];
    struct ra_scale_memory memories[SCALE_MOST_COUNTS];
    int64_t tokens[SCALE_MOST_COUNTS];
    for (int i = 0; i < s->count; i++) {
        s->config.ring_size = s->counts[i];
        scale_check(s, ra_scale_fits(&tokens[i], &s->config, &s->model, &s->machine, error), error);
        s->config.queries = tokens[i];
        scale_check(s, ra_scale_memory_of(&memories[i], &s->config, NULL, &s->model, error), error);
    }
    s->config.queries = 0;
    scale_print_question(s);
    scale_print_names(s, "", columns, COLUMNS,
                      "                     tokens of      GB of a rank\n"
                      " ranks      tokens      a rank   weights  activations  attention");
    for (int i = 0; i < s->count; i++) {
        const double numbers[] = {s->counts[i],
                                  (double)tokens[i],
                                  (double)(tokens[i] / s->counts[i]),
                                  1e-9 * memories[i].weights,
                                  1e-9 * memories[i].activations,
                                  1e-9 * memories[i].attention};
        scale_print_line(s, "", columns, COLUMNS, numbers,
                         tokens[i] == 0 ? "  the weights alone do not fit" : "");
    }
}

int main(int argc, char **argv)
{
    struct scale s = {0};
    scale_begin(&s, argc, argv, "12-scale",
                "What ring attention costs on many ranks, before it runs.");
    scale_options(&s, argc, argv);
    stage_opened(&s.stage);
    (s.mode == SCALE_HOPS            ? print_hops
     : s.mode == SCALE_SIMULATE      ? print_simulation
     : s.mode == SCALE_DECODE        ? print_decoding
     : s.mode == SCALE_FITS          ? print_longest
     : s.mode == SCALE_STEP          ? print_steps
     : s.mode == SCALE_MEASURE       ? scale_measure
     : s.method == SCALE_ALL_METHODS ? print_methods
                                     : print_ranks)(&s);
    return stage_leave(&s.stage);
}
