/* ra_loss: logits and cross-entropy, block by block. See ra_loss.h.
 *
 * Chapter 10.
 */
#include "ra_loss.h"
#include <math.h>
#include <string.h>
#include "ra_layers.h"
#include "ra_rounding.h"
#include "ra_vector.h"

/* The most rows of a block, and its logits, or a little more. */
enum { ROWS = 256, LOGITS = 1 << 22 };

static int64_t rows_of_block(int64_t vocabulary)
{
    int64_t rows = LOGITS / vocabulary;
    return rows > ROWS ? ROWS : rows < 32 ? 32 : rows;
}

int64_t ra_loss_scratch(int64_t vocabulary, double softcap)
{
    return rows_of_block(vocabulary) * vocabulary * (softcap > 0 ? 2 : 1);
}

void ra_loss_softcap(int threads, int64_t count, double softcap, float *x, float *slopes)
{
    float cap = (float)softcap;
    if (!(softcap > 0))
        return;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < count; i++) {
        float share = tanhf(x[i] / cap);
        x[i] = cap * share;
        if (slopes)
            slopes[i] = (1 - share) * (1 + share);
    }
}

int64_t ra_loss_labels(int64_t rows, const int32_t *labels)
{
    int64_t count = 0;
    for (int64_t a = 0; a < rows; a++)
        count += labels[a] >= 0;
    return count;
}

/* The loss of one row, -log softmax(logits)[label] = log(sum exp(logits)) - logits[label]. Its
 * logits become its gradients: (softmax(logits) - 1 at the label) times factor. A row without a
 * label counts for nothing. */
static double row_loss(const struct ra_vector *vector, int64_t vocabulary, float *logits,
                       int32_t label, double factor)
{
    if (label < 0) {
        memset(logits, 0, (size_t)vocabulary * sizeof *logits);
        return 0;
    }
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
               const float *x, const float *weight, const float *bias, double softcap,
               const int32_t *labels, double factor, float *dx, float *d_weight, float *d_bias,
               float *scratch)
{
    double loss = 0, losses[ROWS];
    int64_t block = rows_of_block(vocabulary);
    float *slopes = softcap > 0 ? scratch + block * vocabulary : NULL;
    for (int64_t first = 0; first < rows; first += block) {
        int64_t count = rows - first < block ? rows - first : block;
        if (bias)
            ra_bias_forward(work->threads, count, vocabulary, bias, NULL, scratch);
        ra_matrix_multiply(work, count, dim, vocabulary, ra_matrix(x + first * dim, dim),
                           ra_matrix_transposed(weight, dim), scratch, vocabulary, bias != NULL);
        ra_loss_softcap(work->threads, count * vocabulary, softcap, scratch, slopes);
#pragma omp parallel for num_threads(work->threads) if (work->threads > 1)
        for (int64_t a = 0; a < count; a++)
            losses[a] = row_loss(work->vector, vocabulary, scratch + a * vocabulary,
                                 labels[first + a], factor);
        for (int64_t a = 0; a < count; a++)
            loss += losses[a];
        if (!dx)
            continue;
        for (int64_t i = 0; i < count * vocabulary && slopes; i++)
            scratch[i] *= slopes[i];
        ra_round(work, count * vocabulary, scratch);
        ra_matrix_multiply(work, count, vocabulary, dim, ra_matrix(scratch, vocabulary),
                           ra_matrix(weight, dim), dx + first * dim, dim, false);
        ra_matrix_multiply(work, vocabulary, count, dim, ra_matrix_transposed(scratch, vocabulary),
                           ra_matrix(x + first * dim, dim), d_weight, dim, true);
        if (bias)
            ra_bias_backward(work->threads, count, vocabulary, scratch, d_bias);
    }
    if (dx)
        ra_round(work, rows * dim, dx);
    return loss;
}
