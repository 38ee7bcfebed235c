/* hidden: how long a ring of four GPUs copies at a hop, in percent of the time that it works.
 *
 * Chapter 11. Plans to look at tell the bytes and multiply-adds of hop 1, striped and causal;
 * the rates are those that the chapter measures on an H200. Plain tiles, 64 x 64, leave out what is
 * hidden about as finely as those of a GPU do; the tile of a processor with vectors is much larger.
 */
#include <inttypes.h>
#include <ring_attention.h>
#include <stdio.h>

int main(void)
{
    puts("  rows  H / G   bytes a hop   multiply-adds  copy / work: NVLink   host");
    for (int rows = 512; rows <= 32768; rows *= 8)
        for (int heads = 16; heads >= 2; heads /= 8) {
            struct ra_config config = RA_CONFIG_INIT;
            config.queries = 4 * rows;
            config.heads = 16;
            config.key_heads = heads;
            config.dim = 128;
            config.causal = true;
            config.layout = RA_STRIPED;
            config.type = RA_BFLOAT16;
            config.ring_size = 4;
            config.tile = RA_PLAIN_TILE;
            struct ra_plan *plan;
            struct ra_hop hop;
            char error[RA_ERROR_SIZE];
            if (ra_plan_create(&plan, &config, NULL, error) != RA_OK)
                return fprintf(stderr, "%s\n", error);
            if (ra_plan_hop(plan, 0, 1, false, &hop) != RA_OK)
                return fprintf(stderr, "%s\n", ra_plan_error(plan));
            double work = 2 * (double)hop.multiply_adds / 660e12, bytes = (double)hop.bytes;
            printf("%6d %6d %13" PRId64 " %15" PRId64 " %18.1f %% %4.0f %%\n", rows, 16 / heads,
                   hop.bytes, hop.multiply_adds, 100 * bytes / 390e9 / work,
                   100 * bytes / 6e9 / work);
            ra_plan_destroy(plan);
        }
}
