/* scale_measure: the rates of this machine, and the link between its ranks. See scale.h. */
#include <stdio.h>
#include "ra_config_check.h"
#include "ra_scale_measure.h"
#include "ring_attention_mpi.h"
#include "scale.h"

/* Rows with which a rank's rate is measured, and rows of its keys, so that the longest message has
 * 16 MiB if heads have 64 numbers. And how often everything is measured. */
enum { ROWS = 1024, KEYS = 8192, TIMES = 9 };

void scale_measure(struct scale *scale)
{
    int P = scale->stage.world.ranks;
    struct ra_config c = scale->config, config;
    struct ra_scale_machine machine = RA_SCALE_MACHINE_INIT;
    struct ra_link link;
    char error[RA_ERROR_SIZE];
    c.ring_size = P;
    c.queries = (int64_t)KEYS * P;
    c.keys = RA_SAME;
    c.heads = 4;
    c.key_heads = RA_SAME;
    c.type = RA_FLOAT32;
    c.forward_only = false;
    scale_check(scale, ra_config_read(&config, &c, error), error);
    scale_check(scale, ra_mpi_link(&link, MPI_COMM_WORLD, P, c.timeout, error), error);
    scale_check(scale, ra_scale_measure(&machine, &config, &link, ROWS, TIMES, error), error);
    if (link.close)
        link.close(link.self);
    if (scale->stage.world.rank != 0)
        return;
    printf("--forward-rate %.4g --backward-rate %.4g", machine.forward_rate, machine.backward_rate);
    if (P > 1)
        printf(" --bandwidth %.4g --latency %.3g", machine.bandwidth, machine.latency);
    if (machine.ranks_per_host > 0)
        printf(" --ranks-per-host %d --host-bandwidth %.4g --host-latency %.3g",
               machine.ranks_per_host, machine.host_bandwidth, machine.host_latency);
    putchar('\n');
}
