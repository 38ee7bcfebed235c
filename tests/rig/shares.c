/* shares: how evenly the ranks of a ring share packed documents, in each layout and dealt. It asks
 * plans without a link; nothing is computed. For page 13-work: shares RANKS TILE LENGTH..., and up
 * to 32 tokens are drawn, each as the number of its rank. */
#include <ring_attention.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 1000, DRAWN = 32, D = 64 };
static struct ra_slice slices[MOST];
static int64_t bounds[MOST + 1], count;

/* A plan of the documents, for this layout or dealt, that never runs. */
static struct ra_plan *plan_of(int ranks, int tile, enum ra_layout_kind layout, enum ra_deal deal)
{
    struct ra_config config = RA_CONFIG_INIT;
    config.queries = bounds[count], config.dim = D;
    config.ring_size = ranks, config.layout = layout;
    config.tile_queries = config.tile_keys = tile;
    config.max_slices = count, config.max_rows = config.queries;

    struct ra_plan *plan;
    char error[RA_ERROR_SIZE];
    if (ra_plan_create(&plan, &config, NULL, error) != RA_OK ||
        ra_plan_set_slices(plan, slices, count, deal) != RA_OK) {
        fprintf(stderr, "shares: %s\n", plan ? ra_plan_error(plan) : error);
        exit(1);
    }
    return plan;
}

/* Prints a line: the busiest rank's work and the most rows, both over the mean; what tiles compute
 * over what is visible; hops; messages of keys. */
static void look(const char *name, struct ra_plan *plan, int ranks)
{
    int64_t work, most = 0, all = 0, computed = 0, messages = 0;
    for (int rank = 0; rank < ranks; rank++) {
        work = ra_plan_work(plan, rank);
        all += work, most = work > most ? work : most;
        for (int step = 0; step < ra_plan_hops(plan); step++) {
            struct ra_hop hop;
            if (ra_plan_hop(plan, rank, step, false, &hop) != RA_OK)
                exit(1);
            computed += hop.multiply_adds / (2 * D), messages += hop.messages;
        }
    }
    struct ra_layout layout = ra_plan_layout(plan, RA_QUERY_SIDE);
    printf("%-10s  %5.3f  %5.3f  %5.3f  %4d  %8d", name, (double)most * ranks / (double)all,
           (double)(ra_layout_most_rows(layout) * ranks) / (double)layout.length,
           (double)computed / (double)all, ra_plan_hops(plan), (int)messages);
    for (int64_t i = 0, end; layout.length <= DRAWN && i < layout.length; i = end)
        for (int rank = ra_layout_run(layout, i, &end), c = (int)i; c < end; c++)
            printf("%s%d", c == 0 ? "  " : "", rank);
    puts("");
    ra_plan_destroy(plan);
}

int main(int argc, char **argv)
{
    if (argc < 4 || argc - 3 > MOST)
        return 2;
    int ranks = atoi(argv[1]), tile = atoi(argv[2]);
    for (count = 0; count < argc - 3; count++)
        bounds[count + 1] = bounds[count] + atoll(argv[count + 3]);
    ra_slices_documents(bounds, count, RA_NO_LOOKBACK, 0, slices);
    puts("layout       work   rows  tiles  hops  messages");
    look("contiguous", plan_of(ranks, tile, RA_CONTIGUOUS, RA_DEAL_LAYOUT), ranks);
    look("striped", plan_of(ranks, tile, RA_STRIPED, RA_DEAL_LAYOUT), ranks);
    look("zigzag", plan_of(ranks, tile, RA_ZIGZAG, RA_DEAL_LAYOUT), ranks);
    look("dealt", plan_of(ranks, tile, RA_CONTIGUOUS, RA_DEAL_DOCUMENTS), ranks);
    return 0;
}
