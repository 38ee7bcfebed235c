/* stage_output: what a program writes, on all its ranks, so that it appears whole or not at all.
 * See stage_output.h.
 */
#include "stage_output.h"

#include "stage.h"
#include "stage_cleanup.h"

void stage_begin_output(const struct stage *stage, struct ra_whole *whole, const char *path,
                        unsigned how, const char *const *replaces, bool shared, const char *flag)
{
    char error[RA_ERROR_SIZE];
    bool first = stage->world.rank == 0;
    stage_cleanup_add(whole);
    if (first && ra_whole_begin(whole, path, how, replaces, error) != RA_OK)
        stage_fail(stage, "%s%s", flag, error);
    stage_check_all(stage);
    stage_gather(stage, whole->number);
    if (!first && ra_whole_join(whole, path, how, stage->gathered[0], error) != RA_OK && shared)
        stage_fail(stage, "%s%s", flag, error);
    stage_check_all(stage);
}

void stage_name_output(const struct stage *stage, struct ra_whole *whole, const char *flag)
{
    char error[RA_ERROR_SIZE];
    if (ra_whole_publish(whole, error) != RA_OK)
        stage_fail(stage, "%s%s", flag, error);
    ra_whole_end(whole);
}
