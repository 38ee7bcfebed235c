/* transformer_bench: how long a training step takes. */
#ifndef TRANSFORMER_BENCH_H
#define TRANSFORMER_BENCH_H

#include "transformer_options.h"

/* Measures how long a training step takes. */
void transformer_bench(struct transformer *t);

#endif
