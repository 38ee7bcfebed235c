/* transformer_generate: goes on with a text. */
#ifndef TRANSFORMER_GENERATE_H
#define TRANSFORMER_GENERATE_H

#include "transformer_options.h"

/* Goes on with a text. */
void transformer_generate(struct transformer *t);

#endif
