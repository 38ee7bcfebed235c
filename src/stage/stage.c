/* stage: what every stage program does besides attention. See stage.h. Here is how a run begins and
 * ends; stage.h names the other files.
 */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "ra_checksum.h"
#include "ra_clock.h"
#include "ra_math.h"
#include "ra_span.h"
#include "stage.h"
#include "stage_cleanup.h"
#include "stage_options.h"

/* Fails unless all ranks were given the same flags. argv[0] may differ, the folders may not. */
static void check_flags(const struct stage *stage, int argc, char **argv)
{
    uint64_t sum = (uint64_t)argc;
    for (int a = 1; a < argc; a++)
        sum = ra_checksum(sum, argv[a], strlen(argv[a]));
    if (stage_other(stage, (int64_t)sum) == 0)
        return;

    /* Find the first one that differs. */
    int least = argc;
    stage_gather(stage, argc);
    for (int r = 0; r < stage->world.ranks; r++)
        least = stage->gathered[r] < least ? (int)stage->gathered[r] : least;
    for (int a = 1; a < least; a++) {
        int other = stage_other(stage, (int64_t)ra_checksum(0, argv[a], strlen(argv[a])));
        if (other > 0)
            stage_end(stage, 2,
                      "ranks disagree about argument %d: rank 0 has %s, rank %d has another", a,
                      argv[a], other);
    }
    stage_agree(stage, 2, "how many arguments there are", argc - 1);
}

/* Fails unless all ranks have found the same problem: its files may lie on several hosts. */
static void check_problem(const struct stage *stage)
{
    const struct {
        const char *name;
        int64_t value;
    } facts[] = {{"B, batches of q.npy", stage->B},
                 {"N, positions of q.npy", stage->N},
                 {"M, positions of k.npy", stage->M},
                 {"H, heads of q.npy", stage->H},
                 {"G, heads of k.npy", stage->G},
                 {"D, numbers of a head of q.npy", stage->D},
                 {"D_v, numbers of a head of v.npy", stage->Dv}};
    for (int f = 0; f < 7 && stage->world.ranks > 1; f++)
        stage_agree(stage, 2, facts[f].name, facts[f].value);
    stage_agree_inputs(stage);
}

/* Fills in what the flags have left open, and the shape. The batches are dealt to the rings, and
 * the whole sequence to this rank, until stage_shard. */
static void complete(struct stage *stage)
{
    struct ra_config *c = &stage->config;
    if (c->ring_size == 0)
        c->ring_size = stage->world.ranks;
    if (c->scale == RA_DEFAULT_SCALE)
        c->scale = 1 / sqrt((double)stage->D);

    /* A tile is no larger than what there is, and no larger than 2^30 rows: no machine holds its
     * scores, and the count of their bytes must not overflow. 0: the library knows best. */
    const int64_t most = 1 << 30, usual = c->tile == RA_PLAIN_TILE ? 64 : 0;
    int64_t queries = c->tile_queries > 0 ? c->tile_queries : usual;
    int64_t keys = c->tile_keys > 0 ? c->tile_keys : usual;
    c->tile_queries = ra_min(queries, ra_min(stage->N, most));
    c->tile_keys = ra_min(keys, ra_min(stage->M, most));

    int rings = stage->world.ranks / c->ring_size, ring = stage->world.rank / c->ring_size;
    stage->B = ra_ceiling_division(stage->B - ring, rings);
    c->batch = stage->B;
    c->queries = stage->N;
    c->keys = stage->M;
    c->heads = stage->H;
    c->key_heads = stage->G;
    c->dim = stage->D;
    c->dim_value = stage->Dv == stage->D ? 0 : stage->Dv;
    static struct ra_span all_queries, all_keys;
    all_queries = (struct ra_span){0, 1, stage->N};
    all_keys = (struct ra_span){0, 1, stage->M};
    stage_shard(stage, &all_queries, 1, &all_keys, 1);
}

void stage_begin(struct stage *stage, int argc, char **argv)
{
    stage->config.timeout = 60;
    if (stage->number < 9) /* the chapter of the vector tile */
        stage->config.tile = RA_PLAIN_TILE;
    stage->pieces = 1;
    for (int f = 0; f < STAGE_INPUTS; f++)
        stage->inputs[f].fd = -1;
    for (int r = 0; r < STAGE_RESULTS; r++)
        stage->results[r].fd = -1;
    stage->gathered = calloc((size_t)stage->world.ranks, sizeof *stage->gathered);
    if (!stage->gathered) {
        fprintf(stderr, "%s: out of memory\n", stage->program);
        stage->world.stop(1);
    }

    /* First the flags: a rank that only shows its help would not take part in what comes later. */
    check_flags(stage, argc, argv);
}

const char *stage_called(char **argv, const char *own)
{
    const char *slash = argv[0] ? strrchr(argv[0], '/') : NULL, *name = slash ? slash + 1 : argv[0];
    return name && strncmp(name, "ringattn-", 9) == 0 ? name : own;
}

void stage_guard(void)
{
    /* A reader of stdout that has gone, and `ulimit -f`, kill by default; ignored, they become
     * errors of write, which are reported. */
    stage_cleanup_begin();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

void stage_opened(struct stage *stage)
{
    stage->opened = true;
    stage->lap_start = ra_seconds();
    stage_begin_trace(stage);
}

void stage_open_in(struct stage *stage, int argc, char **argv)
{
    stage_begin(stage, argc, argv);
    stage_open_inputs(stage, stage_read_options(stage, argc, argv));
    stage_check_all(stage);
    check_problem(stage);
    complete(stage);

    /* From here on there is something to clean up. */
    stage_guard();
    stage_open_results(stage);
    stage_opened(stage);
}

void stage_open(struct stage *stage, int argc, char **argv, int number, const char *program,
                const char *about, enum npy_type result_type)
{
    *stage = (struct stage){.program = program,
                            .number = number,
                            .about = about,
                            .world = stage_alone,
                            .config = RA_CONFIG_INIT,
                            .result_type = result_type};
    stage_open_in(stage, argc, argv);
}

void stage_open_kernel(struct stage *stage, int argc, char **argv, const char *program,
                       const char *about, enum ra_type type)
{
    *stage = (struct stage){.program = program,
                            .number = STAGE_KERNEL,
                            .about = about,
                            .world = stage_alone,
                            .config = RA_CONFIG_INIT,
                            .result_type = NPY_FLOAT32};
    stage->config.type = type;
    stage_open_in(stage, argc, argv);
}

/* The rows in all of these spans. */
static int64_t rows_in(const struct ra_span *spans, int64_t count)
{
    int64_t rows = 0;
    for (int64_t s = 0; s < count; s++)
        rows += spans[s].count;
    return rows;
}

void stage_shard(struct stage *stage, const struct ra_span *query_spans, int64_t query_span_count,
                 const struct ra_span *key_spans, int64_t key_span_count)
{
    stage->query_spans = query_spans;
    stage->query_span_count = query_span_count;
    stage->key_spans = key_spans;
    stage->key_span_count = key_span_count;
    stage->n = rows_in(query_spans, query_span_count);
    stage->m = rows_in(key_spans, key_span_count);
}

int stage_close(struct stage *stage)
{
    stage_close_results(stage);
    stage_write_trace(stage);
    stage_lap(stage, STAGE_WRITE);

    /* The counts go first: a run that could not print them has failed, and leaves nothing. The
     * hidden files are rank 0's alone from here on, so that nobody removes what has its name. */
    if (stage->world.rank > 0)
        stage_cleanup_forget();
    stage_print_counts(stage);
    if (stage->time)
        stage_print_laps(stage);
    stage_flush(stage);

    /* When all are here, nothing is left to do but to name the results: no rank that dies or stops
     * later makes a failure of a run whose results are there. Rank 0 names, the others leave. */
    stage_gather(stage, 0);
    stage_cleanup_end();
    if (stage->world.rank == 0) {
        stage_name_trace(stage);
        stage_name_results(stage);
    }
    return stage_leave(stage);
}

int stage_leave(struct stage *stage)
{
    stage_flush(stage);
    for (int i = 0; i < STAGE_INPUTS; i++)
        npy_close(&stage->inputs[i]);
    stage_free_all(stage);
    free(stage->counters);
    free(stage->events);
    free(stage->gathered);
    stage->world.leave(stage->config.timeout);
    return 0;
}
