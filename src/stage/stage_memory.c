/* stage_memory: what a stage program allocates, and how much there is. See stage.h. */
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include "ra_system.h"
#include "stage.h"

struct stage_memory {
    struct stage_memory *next;
    _Alignas(max_align_t) char bytes[];
};

/* How many bytes a rank may have, and what sets that limit. */
static int64_t memory_limit(const struct stage *stage, const char **limit)
{
    int64_t bytes = ra_system_memory(), group = ra_system_memory_quota();
    *limit = "this machine has";
    if (group < bytes) {
        bytes = group;
        *limit = "the control group of this container allows";
    }
    bytes /= stage->world.ranks_here;

    struct rlimit addresses;
    if (getrlimit(RLIMIT_AS, &addresses) == 0 && addresses.rlim_cur < (rlim_t)bytes) {
        bytes = (int64_t)addresses.rlim_cur;
        *limit = "ulimit -v allows";
    }
    return bytes;
}

void *stage_allocate(struct stage *stage, int64_t count, int64_t size)
{
    /* Refuse what there cannot be: Linux would promise it, and kill the program later. */
    const char *limit;
    int64_t most = memory_limit(stage, &limit);
    struct stage_memory *memory = NULL;
    if (count <= (most - stage->peak_bytes) / size)
        memory = malloc(sizeof *memory + (size_t)(count * size));
    if (!memory)
        stage_fail(stage,
                   "out of memory: %" PRId64 " elements of %" PRId64 " bytes on top of %" PRId64
                   " bytes; %s %" PRId64 " for each rank",
                   count, size, stage->peak_bytes, limit, most);

    memory->next = stage->memory;
    stage->memory = memory;
    stage->peak_bytes += count * size;
    return memset(memory->bytes, 0xFF, (size_t)(count * size));
}

void *stage_zeros(struct stage *stage, int64_t count, int64_t size)
{
    return memset(stage_allocate(stage, count, size), 0, (size_t)(count * size));
}

void stage_free_all(struct stage *stage)
{
    while (stage->memory) {
        struct stage_memory *next = stage->memory->next;
        free(stage->memory);
        stage->memory = next;
    }
}
