/* 10-transformer: a language model that is trained and run with its sequence cut into shards.
 *
 * Chapter 10.
 */
#include "transformer_bench.h"
#include "transformer_convert.h"
#include "transformer_generate.h"
#include "transformer_step.h"
#include "transformer_train.h"

static void (*const commands[])(struct transformer *) = {
    [TRANSFORMER_TRAIN] = transformer_train,   [TRANSFORMER_GENERATE] = transformer_generate,
    [TRANSFORMER_STEP] = transformer_step,     [TRANSFORMER_EXPORT] = transformer_export,
    [TRANSFORMER_IMPORT] = transformer_import, [TRANSFORMER_BENCH] = transformer_bench,
};

int main(int argc, char **argv)
{
    struct transformer t = {0};
    stage_begin_mpi(&t.stage, argc, argv, 10, stage_called(argv, "10-transformer"),
                    "A transformer whose sequence is sharded over the ranks of a ring.");
    stage_begin(&t.stage, argc, argv);
    enum transformer_command command = transformer_options(&t, argc, argv);
    stage_guard();
    commands[command](&t);
    stage_flush(&t.stage);

    /* Rank 0 may still write, alone. If it fails it ends all ranks, and mpirun may crash if one of
     * them is in MPI_Finalize by then: so none goes there before all are done. */
    stage_gather(&t.stage, 0);
    return stage_leave(&t.stage);
}
