/* ring_attention_model: all of libringattn_model: what stands around attention in a transformer,
 * from one layer to a model that is trained and writes.
 *
 * Chapter 10; chapters/10b-library.md shows it. On the ranks of an MPI communicator, as
 * ring_attention_mpi.h. The manners are those of ring_attention.h: nothing is printed, no signal or
 * exit is used, there is no state outside of what a `create` function returns, and the text of an
 * error names the argument, what it was and what would be right.
 */
#ifndef RING_ATTENTION_MODEL_H
#define RING_ATTENTION_MODEL_H

/* Promised to stay within a minor version: a layer (ra_layer), the way between whole rows of a
 * batch and shards (ra_batch), keys that are gathered instead of going round (ra_gathered),
 * attention over a cache (ra_tree); a model (ra_model), its shape and weights (ra_parameters,
 * ra_parts, ra_model_config), its folder and its file (ra_folder, ra_checkpoint, ra_whole), how it
 * learns (ra_optimizer), reads (ra_tokens, ra_dataset) and writes (ra_decoder, ra_sample). */
#include "ra_batch.h"
#include "ra_checkpoint.h"
#include "ra_dataset.h"
#include "ra_decoder.h"
#include "ra_folder.h"
#include "ra_gathered.h"
#include "ra_layer.h"
#include "ra_model.h"
#include "ra_model_config.h"
#include "ra_optimizer.h"
#include "ra_parameters.h"
#include "ra_parts.h"
#include "ra_sample.h"
#include "ra_tokens.h"
#include "ra_tree.h"

/* There for the book, without a promise: the parts that these are made of, which trust their
 * arguments. */
#include "ra_collective.h"
#include "ra_layers.h"
#include "ra_loss.h"
#include "ra_matrix.h"
#include "ra_rotary.h"

#endif
