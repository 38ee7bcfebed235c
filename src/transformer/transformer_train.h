/* transformer_train: trains a model on a file of tokens. */
#ifndef TRANSFORMER_TRAIN_H
#define TRANSFORMER_TRAIN_H

#include "transformer_options.h"

/* Trains a model on a file of tokens. */
void transformer_train(struct transformer *t);

#endif
