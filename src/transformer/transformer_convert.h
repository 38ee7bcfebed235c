/* transformer_convert: models from files to folders, and back. */
#ifndef TRANSFORMER_CONVERT_H
#define TRANSFORMER_CONVERT_H

#include "transformer_options.h"

/* Writes a model as a folder that other programs read. */
void transformer_export(struct transformer *t);

/* Writes a folder of another program as a model in one file. */
void transformer_import(struct transformer *t);

#endif
