/* ra_loss: logits and cross-entropy, block by block. See ra_loss.h.
 *
 * Chapter 10.
 */
#include "ra_loss.h"
#include <math.h>
#include "ra_layers.h"
#include "ra_vector.h"

/* The most rows of a block, and its logits, or a little more. */
enum { ROWS = 256, LOGITS = 1 << 22 };

static int64_t rows_of_block(int64_t vocabulary)
{
    int64_t rows = LOGITS / vocabulary;
    return rows > ROWS ? ROWS : rows < 32 ? 32 : rows;
}

int64_t ra_loss_scratch(int64_t vocabulary)
{
    return rows_of_block(vocabulary) * vocabulary;
}

int64_t ra_loss_labels(int64_t rows, const int32_t *labels)
{
    int64_t count = 0;
    for (int64_t a = 0; a < rows; a++)
        count += labels[a] >= 0;
    return count;
}

/* The loss of one row, -log softmax(logits)[label] = log(sum exp(logits)) - logits[label]. Its
 * logits become its gradients: (softmax(logits) - 1 at the label) times factor. */
static double row_loss(const struct ra_vector *vector, int64_t vocabulary, float *logits,
                       int32_t label, double factor)
{
    float max = -INFINITY;
    double sum = 0;
    for (int64_t c = 0; c < vocabulary; c++)
        max = logits[c] > max || isnan(logits[c]) ? logits[c] : max;
    float of_label = logits[label] - max;
    for (int64_t c = 0; c < vocabulary; c++)
        logits[c] -= max;
    vector->exp(vocabulary, logits, logits);
    for (int64_t c = 0; c < vocabulary; c++)
        sum += logits[c];
    float share = (float)(factor / sum);
    for (int64_t c = 0; c < vocabulary; c++)
        logits[c] *= share;
    logits[label] -= (float)factor;
    return log(sum) - of_label;
}

double ra_loss(const struct ra_matrix_work *work, int64_t rows, int64_t dim, int64_t vocabulary,
               const float *x, const float *weight, const float *bias, const int32_t *labels,
               double factor, float *dx, float *d_weight, float *d_bias, float *scratch)
{
    double loss = 0, losses[ROWS];
    int64_t block = rows_of_block(vocabulary);
    for (int64_t first = 0; first < rows; first += block) {
        int64_t count = rows - first < block ? rows - first : block;
        if (bias)
            ra_bias_forward(work->threads, count, vocabulary, bias, NULL, scratch);
        ra_matrix_multiply(work, count, dim, vocabulary, ra_matrix(x + first * dim, dim),
                           ra_matrix_transposed(weight, dim), scratch, vocabulary, bias != NULL);
#pragma omp parallel for num_threads(work->threads) if (work->threads > 1)
        for (int64_t a = 0; a < count; a++) {
            float *logits = scratch + a * vocabulary;
            losses[a] = 0;
            if (labels[first + a] >= 0)
                losses[a] = row_loss(work->vector, vocabulary, logits, labels[first + a], factor);
            else
                for (int64_t c = 0; c < vocabulary; c++)
                    logits[c] = 0;
        }
        for (int64_t a = 0; a < count; a++)
            loss += losses[a];
        if (!dx)
            continue;
        ra_matrix_multiply(work, count, vocabulary, dim, ra_matrix(scratch, vocabulary),
                           ra_matrix(weight, dim), dx + first * dim, dim, false);
        ra_matrix_multiply(work, vocabulary, count, dim, ra_matrix_transposed(scratch, vocabulary),
                           ra_matrix(x + first * dim, dim), d_weight, dim, true);
        if (bias)
            ra_bias_backward(work->threads, count, vocabulary, scratch, d_bias);
    }
    return loss;
}
