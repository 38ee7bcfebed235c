/* ra_parameters: what a model is made of: its shape, and its weights, each with a name.
 *
 * Chapter 10. New here: all weights lie in one array, one after the other. Gradients, and what an
 * optimizer keeps, lie in arrays of the same order; so ranks add them up with one call, and an
 * optimizer is one loop.
 *
 * Names and shapes are those of ring-attention-pytorch, whose weights can be used.
 */
#ifndef RA_PARAMETERS_H
#define RA_PARAMETERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "ra_config.h"
#include "ra_layer.h"
#include "ra_parts.h"
#include "ra_status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { RA_MOST_LAYERS = 256 };

/* The shape of a model, and what its attention sees. Begin with ra_model_config_init: the size
 * tells the library which fields your header has. */
struct ra_model_config {
    size_t size;
    int64_t vocabulary; /* V: tokens are 0..V-1 */
    int64_t dim;        /* numbers of a token between layers */
    int64_t depth;      /* layers, 1..RA_MOST_LAYERS */
    int64_t heads;      /* H query heads */
    int64_t key_heads;  /* G, divides H */
    int64_t head_dim;   /* D, even */
    int64_t hidden;     /* of a feed-forward layer */
    bool causal;
    bool tied; /* the logits have the embedding's table */
    enum ra_head_map head_map;
    double softcap;                    /* 0: none */
    double rotary_theta, rotary_scale; /* see ra_rotary_angles */
    struct ra_rotary_scaling rotary_scaling;
    enum ra_norm_kind norm;
    double norm_eps; /* of RMS and LAYER, above 0 */
    bool head_norm;  /* q and k of each head get the norm RMS before they are rotated */
    enum ra_feed_kind feed;
    bool qkv_bias, out_bias, feed_bias, logits_bias;
    enum ra_position_kind position;
    int64_t longest;       /* rows of the table of positions, if there is one */
    double position_scale; /* its rows' factor */
    enum ra_family family;
    int64_t lookback[RA_MOST_LAYERS]; /* of each layer; RA_NO_LOOKBACK: none */
    double attention_scale;           /* of scores; 0: 1 / sqrt(head_dim) */
    double logits_softcap;            /* c: logits become c tanh(logits / c); 0: none */
    double embedding_scale;           /* a token's row of the embedding is multiplied by it */
    bool post_norm;                   /* what attention or a feed-forward adds gets a norm before */
    bool reserved_post_norm[7];       /* not read, as its like below */
    bool sinks; /* each layer learns a sink for each head, as in ring_attention.h */
    bool reserved_sinks[7];
};

/* Sets defaults: 256 tokens, dim 256, depth 4, 4 heads of 64, hidden 1,024, causal. `size` is that
 * of the caller's struct, sizeof *config, here and wherever a config is written. */
void ra_model_config_init(struct ra_model_config *config, size_t size);

/* Checks that a config is one of a model; the error names the field that is wrong. */
RA_CHECKED enum ra_status ra_model_check(const struct ra_model_config *config,
                                         char error[RA_ERROR_SIZE]);

/* Lists the arrays of weights: how many there are; which is number `index`, a matrix (rows,
 * columns), or a vector if columns is 0, that begins at `first` in the array of all; and how many
 * numbers that has. What lies between two of them is 0. Here, and for ra_share and the widths
 * below, the config must be one that ra_model_check accepts; of one that has not begun as it must
 * there are 0, and the struct that is returned has 0 everywhere, as for an index that is none. */
struct ra_parameter {
    char name[40];
    int64_t rows, columns, first, count;
};
int ra_parameter_count(const struct ra_model_config *config);
struct ra_parameter ra_parameter(const struct ra_model_config *config, int index);
int64_t ra_parameter_numbers(const struct ra_model_config *config);

/* Arrays, and the shares of ranks, begin at lines of the cache, of this many numbers. */
enum { RA_SHARE_LINE = 16 };

/* Numbers first, ..., end - 1 of the array of all: the share of one of this many ranks. */
struct ra_share {
    int64_t first, end;
};
struct ra_share ra_share(const struct ra_model_config *config, int rank, int ranks);

/* The weights of a layer, and those outside of layers, in an array of all: of weights, or of their
 * gradients. Begin with RA_LAYER_WEIGHTS_INIT and RA_END_WEIGHTS_INIT. Matrices are (out, in): a
 * layer computes x times the transpose. What the config does not have is NULL. R is hidden, or
 * twice that with a gate. */
struct ra_layer_weights {
    size_t size;
    struct ra_attention_weights attention; /* with a size of its own */
    float *attended_gamma, *attended_bias; /* (dim), of the norm of what attention adds */
    float *feed_gamma, *feed_bias;         /* (dim), of the norm */
    float *up, *up_bias;                   /* (R, dim), (R): rows of the gate first */
    float *down, *down_bias;               /* (dim, hidden), (dim) */
    float *fed_gamma, *fed_bias;           /* (dim), of the norm of what the feed-forward adds */
};
struct ra_end_weights {
    size_t size;
    float *embedding, *positions; /* (V, dim), (longest, dim) */
    float *gamma, *bias;          /* (dim), of the last norm */
    float *logits, *logits_bias;  /* (V, dim), which is the embedding if tied; (V) */
};

#define RA_LAYER_WEIGHTS_INIT                                                                     \
    {                                                                                             \
        sizeof(struct ra_layer_weights), RA_ATTENTION_WEIGHTS_INIT, NULL, NULL, NULL, NULL, NULL, \
            NULL, NULL, NULL, NULL, NULL                                                          \
    }
#define RA_END_WEIGHTS_INIT                                               \
    {                                                                     \
        sizeof(struct ra_end_weights), NULL, NULL, NULL, NULL, NULL, NULL \
    }

/* Writes where the weights of a layer, and those outside of layers, begin in an array of all.
 * RA_INVALID: there is no such layer, or a struct has not begun as it must; `error` says so, and
 * nothing is written. */
RA_CHECKED enum ra_status ra_model_layer_weights(const struct ra_model_config *config,
                                                 const float *all, int64_t layer,
                                                 struct ra_layer_weights *weights,
                                                 char error[RA_ERROR_SIZE]);
RA_CHECKED enum ra_status ra_model_end_weights(const struct ra_model_config *config,
                                               const float *all, struct ra_end_weights *weights,
                                               char error[RA_ERROR_SIZE]);

/* Counts the numbers of a row of q, k and v side by side; and R, those that a feed-forward's first
 * matrix gives for a row. */
int64_t ra_qkv_width(const struct ra_model_config *config);
int64_t ra_feed_width(const struct ra_model_config *config);

/* Refuses a NaN or an Inf in an array like weights: the error names where it was read, the
 * parameter, and which of its numbers. */
RA_CHECKED enum ra_status ra_parameters_finite(const struct ra_model_config *config,
                                               const float *all, const char *where,
                                               char error[RA_ERROR_SIZE]);

/* Writes random weights for a model that has not learnt anything: normal, of deviation 0.02, and
 * less where a layer adds to what goes by; gammas are 1, or 0 where 1 is added, and biases 0. They
 * depend on the seed alone. A large array is shared by as many threads as OpenMP gives. Nothing is
 * written if the config has not begun as it must. */
void ra_parameters_begin(const struct ra_model_config *config, uint64_t seed, float *weights);

#ifdef __cplusplus
}
#endif

#endif
