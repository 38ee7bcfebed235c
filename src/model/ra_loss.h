/* ra_loss: the logits, how far they are from the labels, and the way back.
 *
 * Chapter 10. New here: logits are V numbers for each token, more than all else of it. So a block
 * of rows gets its logits, its loss and its gradients at once, and the next block the same memory.
 */
#ifndef RA_LOSS_H
#define RA_LOSS_H

#include "ra_matrix.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Counts the floats of memory that ra_loss needs: twice as many with a soft cap. */
int64_t ra_loss_scratch(int64_t vocabulary, double softcap);

/* Turns each of `count` numbers x into softcap tanh(x / softcap), unless softcap is 0; slopes
 * (count), unless it is NULL, gets the derivative there. */
void ra_loss_softcap(int threads, int64_t count, double softcap, float *x, float *slopes);

/* Counts the labels that count: those that are not negative. */
int64_t ra_loss_labels(int64_t rows, const int32_t *labels);

/* Returns the sum, over the rows whose label counts, of -log softmax(x weight^T + bias)[label]: x
 * (rows, dim), weight (vocabulary, dim), bias (vocabulary) or NULL; softcap above 0 is one of these
 * logits. Unless dx is NULL also the gradients of that sum times `factor`: dx (rows, dim) is
 * written, d_weight and d_bias added to. */
double ra_loss(const struct ra_matrix_work *work, int64_t rows, int64_t dim, int64_t vocabulary,
               const float *x, const float *weight, const float *bias, double softcap,
               const int32_t *labels, double factor, float *dx, float *d_weight, float *d_bias,
               float *scratch);

#ifdef __cplusplus
}
#endif

#endif
