/* ra_processors: how many processors this process may use. See ra_processors.h.
 *
 * Chapter 09. New here: affinity and control groups, by which a machine is shared.
 */
#define _GNU_SOURCE
#include "ra_processors.h"
#ifdef _OPENMP
#include <omp.h>
#endif
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads a quota of processor time, as Linux writes it: "max 100000", or so many microseconds of each
 * period. Returns processors, rounded up; 0: no limit, or no such file. */
static int quota_of(const char *group)
{
    char path[4200];
    long long quota = 0, period = 0;
    snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", group);
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    bool limited = fscanf(file, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0;
    fclose(file);
    return limited ? (int)((quota + period - 1) / period) : 0;
}

/* The least quota of the control groups of this process: its own, and those around it. */
static int least_quota(void)
{
    char group[4096] = "";
    int least = quota_of("");
    FILE *file = fopen("/proc/self/cgroup", "r");
    bool found = file && fscanf(file, "0::%4095[^\n]", group) == 1;
    if (file)
        fclose(file);
    for (char *end = group + strlen(group); found && end; end = strrchr(group, '/')) {
        *end = '\0';
        int quota = quota_of(group);
        if (quota > 0 && (least == 0 || quota < least))
            least = quota;
    }
    return least;
}

int ra_processors(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                            : (int)sysconf(_SC_NPROCESSORS_ONLN);
    int quota = least_quota();
    if (quota > 0 && quota < count)
        count = quota;
    return count > 0 ? count : 1;
}

int ra_processors_threads(int asked, int sharing, int64_t pieces)
{
    int64_t threads = asked, share = ra_processors() / (sharing > 1 ? sharing : 1);
    if (threads == 0) {
        /* What the environment or omp_set_num_threads said last, or else all processors: then this
         * rank's share of them is less. */
        const char *usual = getenv("OMP_NUM_THREADS");
#ifdef _OPENMP
        threads = omp_get_max_threads();
#else
        threads = usual ? strtol(usual, NULL, 10) : share;
#endif
        if (!usual && share < threads)
            threads = share;
    }
    threads = threads < pieces ? threads : pieces;
    return threads > 1 ? (int)threads : 1;
}

/* The hash of Fowler, Noll and Vo. */
static uint64_t hash(uint64_t so_far, const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        so_far = (so_far ^ ((const unsigned char *)bytes)[i]) * 0x100000001B3;
    return so_far;
}

int64_t ra_processors_key(void)
{
    char host[256] = "";
    cpu_set_t set;
    CPU_ZERO(&set);
    gethostname(host, sizeof host - 1);
    sched_getaffinity(0, sizeof set, &set);
    return (int64_t)hash(hash(0xCBF29CE484222325, host, strlen(host)), &set, sizeof set);
}
