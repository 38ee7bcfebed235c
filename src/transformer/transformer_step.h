/* transformer_step: logits, loss and gradients of one batch, from files into files. */
#ifndef TRANSFORMER_STEP_H
#define TRANSFORMER_STEP_H

#include "transformer_options.h"

/* Computes logits, loss and every gradient of one batch, or its logits alone. */
void transformer_step(struct transformer *t);

#endif
