/* ra_parts: the parts that a transformer can be made of. A model is one choice of each, and in
 * nothing else do families of models differ.
 *
 * Chapter 10.
 */
#ifndef RA_PARTS_H
#define RA_PARTS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a row x of dim numbers gets its length. UNIT: sqrt(dim) x / |x| gamma, as in
 * ring-attention-pytorch. RMS: x / sqrt(mean of squares + eps) gamma. LAYER: (x - mean) /
 * sqrt(variance + eps) gamma + bias. RMS_PLUS_ONE: that of RMS, with 1 + gamma for gamma. */
enum ra_norm_kind { RA_NORM_UNIT, RA_NORM_RMS, RA_NORM_LAYER, RA_NORM_RMS_PLUS_ONE };

/* What a feed-forward does between its matrices. GELU: down gelu(up x). SWIGLU: down (silu(gate x)
 * times up x), where silu(x) = x / (1 + exp(-x)). GEGLU: the same with an approximation of gelu,
 * x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2, for silu. */
enum ra_feed_kind { RA_FEED_GELU, RA_FEED_SWIGLU, RA_FEED_GEGLU };

/* How a model knows positions. ROTARY: q and k are rotated. LEARNED: a row of a table, times a
 * factor, is added to the embedding. */
enum ra_position_kind { RA_POSITIONS_ROTARY, RA_POSITIONS_LEARNED };

/* How rotary frequencies are changed for texts longer than those that a model learnt from: waves of
 * more than original / low positions get `factor` times as long, those of less than original / high
 * stay, and those between get a mean of both frequencies. LLAMA3: the mean is linear in how often a
 * wave comes round in the original positions. YARN: it is linear in the number of the pair, between
 * those of both limits, which are rounded to whole pairs, away from each other; in YARN_UNTRUNCATED
 * they are not. YaRN also multiplies cosines and sines by a factor, 0.1 log(factor) + 1 in its
 * paper. Only scores change by that: their scale has to have its square in it. */
enum ra_rotary_kind {
    RA_ROTARY_PLAIN,
    RA_ROTARY_LLAMA3,
    RA_ROTARY_YARN,
    RA_ROTARY_YARN_UNTRUNCATED
};
struct ra_rotary_scaling {
    enum ra_rotary_kind kind;
    double factor, low, high;
    int64_t original; /* positions that the model learnt from at first */
};

/* Whose names and files a model has when it is written. It changes nothing that is computed. */
enum ra_family {
    RA_FAMILY_ORIGINAL, /* ring-attention-pytorch */
    RA_FAMILY_MGQA,
    RA_FAMILY_LLAMA,
    RA_FAMILY_MISTRAL,
    RA_FAMILY_QWEN2,
    RA_FAMILY_QWEN3,
    RA_FAMILY_GEMMA2
};

#ifdef __cplusplus
}
#endif

#endif
