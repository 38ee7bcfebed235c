/* 14-gpu-transformer: the transformer of stage 10 on GPUs, one for each rank.
 *
 * Chapter 14. New here: one line, which says where the model computes. The commands are those of
 * 10-transformer, and so are their files.
 */
#include "ring_attention_model_cuda.h"
#include "stage_device.h"
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
    struct transformer t = {.run.device = ra_model_cuda()};
    stage_begin_mpi(&t.stage, argc, argv, 14, stage_called(argv, "14-gpu-transformer"),
                    "A transformer that is trained on GPUs.");
    stage_begin(&t.stage, argc, argv);
    enum transformer_command command = transformer_options(&t, argc, argv);
    stage_take_device(&t.stage);
    stage_guard();
    commands[command](&t);
    stage_flush(&t.stage);
    stage_gather(&t.stage, 0);
    return stage_leave(&t.stage);
}
