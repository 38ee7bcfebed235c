/* ra_processors: how many processors this process may use. See ra_processors.h.
 *
 * Chapter 09. New here: affinity and control groups, by which a machine is shared.
 */
#include "ra_processors.h"
#include "ra_system.h"
#ifdef _OPENMP
#include <omp.h>
#endif
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int ra_processors(void)
{
    int count = ra_system_processors(), quota = ra_system_quota();
    if (quota > 0 && quota < count)
        count = quota;
    return count > 0 ? count : 1;
}

int ra_processors_threads(int asked, int sharing, int64_t pieces)
{
    /* OpenMP's number: that of OMP_NUM_THREADS or omp_set_num_threads, or all processors. */
    const char *environment = getenv("OMP_NUM_THREADS");
    bool is_set = asked != 0 || (environment && *environment);
    int64_t threads = asked;
    if (asked == 0)
#ifdef _OPENMP
        threads = omp_get_max_threads();
#else
        threads = is_set ? strtol(environment, NULL, 10) : pieces;
#endif
    threads = threads < pieces ? threads : pieces;

    /* Without OMP_NUM_THREADS, this rank's share of the processors at most. To ask for their number
     * can take longer than to make a small plan. */
    if (!is_set && threads > 1) {
        int64_t share = ra_processors() / (sharing > 1 ? sharing : 1);
        threads = share < threads ? share : threads;
    }
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
    unsigned char set[128];
    gethostname(host, sizeof host - 1);
    size_t bytes = ra_system_affinity(set, sizeof set);
    return (int64_t)hash(hash(0xCBF29CE484222325, host, strlen(host)), set, bytes);
}
