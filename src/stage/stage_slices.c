/* stage_slices: the mask of a problem as slices. See stage_slices.h. */
#include "stage_slices.h"
#include <inttypes.h>

/* Fails if rows `begin` to `end` of a slice are not within this many. */
static void check_rows(const struct stage *stage, int64_t at, const char *names, int64_t begin,
                       int64_t end, char letter, int64_t rows)
{
    if (begin < 0 || begin > end || end > rows)
        stage_fail(stage,
                   "%s: slice %" PRId64 ": %s = %" PRId64 ", %" PRId64 "; give 0 to %c = %" PRId64
                   ", the first not above the second",
                   stage->inputs[STAGE_SLICES].path, at, names, begin, end, letter, rows);
}

const struct ra_slice *stage_slices(struct stage *stage, int64_t *count)
{
    struct npy *file = &stage->inputs[STAGE_SLICES];
    *count = 0;
    if (file->fd < 0)
        return NULL;
    *count = file->shape[0];
    struct ra_slice *slices = stage_allocate(stage, *count, sizeof *slices);
    if (!npy_read(file, (struct npy_slice){0, 0, 0, 1, *count}, NPY_INT64, slices))
        stage_fail(stage, "%s", file->error);
    for (int64_t s = 0; s < *count; s++) {
        check_rows(stage, s, "q0, q1", slices[s].q0, slices[s].q1, 'N', stage->N);
        check_rows(stage, s, "k0, k1", slices[s].k0, slices[s].k1, 'M', stage->M);
    }
    return slices;
}
