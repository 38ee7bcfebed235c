/* ra_model: a transformer whose sequence is cut into shards, one for each rank of a ring.
 *
 * Chapter 10. New here: attention is the only layer that looks from one token at another. All
 * others work on the rows that a rank has; so a model is sharded as soon as its attention is. What
 * is left to do together are sums: of the loss, and of the gradients of weights, which all ranks
 * have alike.
 *
 * Letters: B batches of this ring, N tokens of a sequence, n of them on this rank. W ranks in all
 * are W/P rings of P. Every function here is called by all ranks together, unless it says
 * otherwise.
 */
#ifndef RA_MODEL_H
#define RA_MODEL_H

#include "ra_parameters.h"
#include "ring_attention_mpi.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ra_model_device; /* ra_model_device.h */

/* How a model runs. Begin with RA_MODEL_RUN_INIT. Zero is a good value of all but size, batch and
 * length. */
struct ra_model_run {
    size_t size;
    int64_t batch, length; /* B of this ring, N */
    bool has_mask;         /* calls bring a key mask */
    bool forward_only;     /* no gradients: less memory */
    bool keep_keys;        /* with forward_only: keeps what ra_model_keys returns */
    bool recompute;        /* keeps only the rows that enter a layer, and computes the rest again */
    bool gather;           /* ranks gather all keys, instead of passing them round the ring */
    enum ra_layout_kind layout;
    int64_t bucket;     /* of layout RA_STRIPED, as in ra_config */
    int64_t max_slices; /* the most that a batch brings; 0: none does */
    int64_t max_rows;   /* n, if batches are dealt by document: as in ra_config */
    int ring_size;      /* P; 0: all ranks */
    int threads;        /* of this rank; 0: its share of the processors */
    double timeout;     /* seconds until a silent rank counts as lost; 0: never */
    void (*observe)(void *observer, const struct ra_event *event); /* of attention; may be NULL */
    void *observer;
    enum ra_type cache_type; /* of a decoder's keys and values, as in ra_tree.h */

    const struct ra_model_device *device; /* where it computes; NULL: on the host */
    enum ra_type type;  /* of the numbers that products read: RA_FLOAT32 or RA_BFLOAT16 */
    bool deterministic; /* with a device: equal bits in each run, even if that is slower */

    /* With a device only. How messages pass between ranks, as in ra_config; and whether each rank
     * keeps the means and squares of its own share of the weights alone. If so, the gradients of a
     * step are complete only in a rank's own share. */
    enum ra_transport transport;
    bool shard_optimizer;

    /* Of a decoder: the most rows of a prompt that a rank computes at once, so that the memory for
     * computing does not grow with the prompt. 0: 8,192. */
    int64_t prompt_rows;
};

#define RA_MODEL_RUN_INIT                                                                          \
    {                                                                                              \
        sizeof(struct ra_model_run), 0, 0, false, false, false, false, false, RA_CONTIGUOUS, 0, 0, \
            0, 0, 0, 0, NULL, NULL, RA_FLOAT32, NULL, RA_FLOAT32, false, RA_ANY_TRANSPORT, false,  \
            0                                                                                      \
    }

/* What a rank has of a batch: (B, n), its rows in the order of ra_model_positions. Begin with
 * RA_MODEL_BATCH_INIT; what is not used is 0. */
struct ra_model_batch {
    size_t size;
    const int32_t *tokens;
    const int32_t *labels; /* negative: does not count; NULL: no loss is asked for */
    const bool *mask;      /* true: this key may be seen; NULL unless has_mask */

    /* A mask of slices, such as packed documents, the same for all B and on all ranks of the ring:
     * a token sees what a slice lets it see and its layer's causal and lookback, too. NULL: all
     * of the sequence is one slice. With RA_DEAL_DOCUMENTS these say which rows are this rank's:
     * see ra_model_set_slices. */
    const struct ra_slice *slices;
    int64_t slice_count;
    enum ra_deal deal;

    /* (n): where a row counts as being, for rotary angles or a table of positions: such as its
     * place in its document. NULL: its place in the sequence. */
    const int64_t *positions;
};

#define RA_MODEL_BATCH_INIT                                                            \
    {                                                                                  \
        sizeof(struct ra_model_batch), NULL, NULL, NULL, NULL, 0, RA_DEAL_LAYOUT, NULL \
    }

struct ra_model;

/* Makes a model's memory and plans, on all ranks or on none. The weights are the caller's, and no
 * part of it. Otherwise *model is NULL and error has the reason, that of the first rank which has
 * one, with its number. After RA_LOST, here and below, the model is at its end,
 * and MPI may still use `comm` and the arrays of the call: neither may be freed. What it uses of
 * the model's own stays. */
RA_CHECKED enum ra_status ra_model_create(struct ra_model **model,
                                          const struct ra_model_config *config,
                                          const struct ra_model_run *run, MPI_Comm comm,
                                          char error[RA_ERROR_SIZE]);
void ra_model_destroy(struct ra_model *model);
const char *ra_model_error(const struct ra_model *model);

/* Takes the slices and the deal of a batch, before its tokens are there: n and positions are those
 * of this batch from now on. Forward and step take them by themselves; so only who deals by
 * document needs this, to find out which tokens to bring. Nothing is sent. RA_INVALID: as
 * ra_plan_set_slices. */
RA_CHECKED enum ra_status ra_model_set_slices(struct ra_model *model,
                                              const struct ra_model_batch *batch);

/* Counts the rows of this rank, n; writes which tokens of the sequence these are; and counts the
 * bytes that the model holds on this rank. */
int64_t ra_model_rows(const struct ra_model *model);
void ra_model_positions(const struct ra_model *model, int64_t *positions);
int64_t ra_model_bytes(const struct ra_model *model);

/* Counts the threads that this rank computes with. */
int ra_model_threads(const struct ra_model *model);

/* Computes the last layer's rows, which ra_model_logits turns into logits (count, V), of rows
 * first..first + count - 1 of the B n: with the same weights, and no other rank need call it
 * (RA_DEVICE: a device has failed, and logits are NaN). Keys or values of a layer are those that
 * went into its attention, (B, n, G, D): valid until the next forward.
 *
 * If a rank refuses what a forward or a step is given, such as a token that is none, all ranks get
 * RA_INVALID and the text of the first that does, which begins with its number, and can go on. */
RA_CHECKED enum ra_status ra_model_forward(struct ra_model *model, const float *weights,
                                           const struct ra_model_batch *batch);
RA_CHECKED enum ra_status ra_model_logits(struct ra_model *model, const float *weights,
                                          int64_t first, int64_t count, float *logits);
struct ra_tensor ra_model_keys(const struct ra_model *model, int64_t layer);
struct ra_tensor ra_model_values(const struct ra_model *model, int64_t layer);

/* The mean of -log p(label) over all labels that count, and how many they are; 0 and 0 if none
 * does. */
struct ra_model_loss {
    double mean;
    int64_t labels;
};

/* Computes the loss of `count` micro-batches, 1 or more and the same number on all ranks, over the
 * labels of all of them on all ranks, and unless `gradients` is NULL its gradients with respect to
 * all weights: written, and the same on all ranks. The loss is one mean: a micro-batch with twice
 * the labels weighs twice as much. Micro-batches are computed one after the other in the memory of
 * one; ranks add up gradients once. */
RA_CHECKED enum ra_status ra_model_step(struct ra_model *model, const float *weights, int64_t count,
                                        const struct ra_model_batch *batches, float *gradients,
                                        struct ra_model_loss *loss);

/* Gives all ranks all of an array like weights, of which each has its ra_share. */
RA_CHECKED enum ra_status ra_model_gather(struct ra_model *model, float *all);

/* Returns the share of this rank. */
struct ra_share ra_model_share(const struct ra_model *model);

#ifdef __cplusplus
}
#endif

#endif
