/* ra_model_parts: what a model holds. Internal.
 *
 * Chapter 10.
 */
#ifndef RA_MODEL_PARTS_H
#define RA_MODEL_PARTS_H

#include "ra_collective.h"
#include "ra_matrix.h"
#include "ra_model.h"
#include "ra_model_struct.h"
#include "ra_tree.h"

/* What a layer's forward leaves to its backward. T = B n rows. */
struct ra_layer_rows {
    float *x;        /* (T, dim), what comes in */
    float *raw;      /* q (T, H D) and k (T, G D) before the norm of heads, if there is one */
    float *qkv;      /* (T, H D + 2 G D), q and k rotated by their positions */
    float *o, *lse;  /* (T, H D), (B, H, n) */
    float *attended; /* (T, dim), what attention adds, before its norm, if there is one */
    float *mid;      /* (T, dim), after attention */
    float *up;       /* (T, R), what the feed-forward's first matrix gives */
    float *fed;      /* (T, dim), what the feed-forward adds, before its norm, if there is one */
};

/* Numbers that one message adds up, at most: MPI counts in ints. */
#ifndef RA_MOST_SUMMED
#define RA_MOST_SUMMED ((int64_t)1 << 30)
#endif

struct ra_model {
    struct ra_model_config config;
    struct ra_model_run run;
    MPI_Comm comm;
    int64_t n, rows; /* of this rank: n, and T = B n; while memory is laid out, at most */
    int64_t first;   /* the position of the first token: of a decoder's new ones, or of a piece */
    char error[RA_ERROR_SIZE];
    enum ra_status status; /* RA_LOST: a rank did not come, and the model is at its end */

    /* By layer. Attention of a whole sequence: layers that see as much share a plan. Of a decoder:
     * each has its own keys. */
    struct ra_plan *plans[RA_MOST_LAYERS];
    struct ra_tree *trees[RA_MOST_LAYERS];
    const struct ra_model *past; /* of a piece of a prompt: the decoder whose trees have the keys
                                  * before `first`, and get those of the piece */
    struct ra_slice *slices;     /* (max_slices + 1): of a layer */
    int64_t *positions;          /* (n) */
    float *cosines, *sines;      /* (n, D / 2), if they are rotary */
    bool placed;                 /* positions are places in the sequence, which stay */

    struct ra_layer_rows layers[RA_MOST_LAYERS + 1]; /* the last has only x: what comes out */
    float *normal;                                   /* (T, dim): after a norm, and its gradient */
    float *gradient;                                 /* (T, dim): of what goes by between layers */
    float *rounded, *rounded_gradient; /* in bfloat16: the weights, and what `gradient` was */
    float *wide;                       /* (T, ...): inside a layer, and of the loss */
    float *scales; /* (2 T), or (2 T H) for a norm of heads; sinks: (H) or more */
    float *logits; /* ra_loss_scratch */
    struct ra_matrix_work work;
    float *memory;
    int64_t bytes;

    void *own; /* of the device */

    int rank, ranks, *counts, *places; /* of all ranks: how many lines a share has, and where */
    MPI_Datatype line;                 /* RA_SHARE_LINE numbers */
    MPI_Request *requests;             /* sums of gradients that are under way */
    int request_count, begun;          /* how many, and what MPI said of the last */
    double sum;                        /* that is added up over all ranks */
    struct ra_refusal refusal;         /* what they say of a step that one cannot begin */
};

/* Seconds that a rank which cannot take part waits to tell the others, at most. */
#define RA_MODEL_PATIENCE 60

/* Brings all ranks of comm together, each with its status and, unless that is RA_OK, the reason in
 * `error`. All get that of the first which cannot take part; or RA_OK, and how many share this
 * one's processors. */
enum ra_status ra_model_meet(MPI_Comm comm, double timeout, enum ra_status status, int *sharing,
                             char error[RA_ERROR_SIZE]);

/* Checks the config and the length, and finds out what a model computes with: communicator,
 * threads, vectors. All ranks come, each with its status so far, and all get the same. */
enum ra_status ra_model_begin(struct ra_model *model, MPI_Comm comm, enum ra_status status);

/* Copies a caller's run, and a caller's batch, whatever sizes their headers give them. */
RA_CHECKED enum ra_status ra_model_run_take(struct ra_model_run *run,
                                            const struct ra_model_run *given, char *error);
RA_CHECKED enum ra_status ra_model_batch_take(struct ra_model *model, struct ra_model_batch *batch,
                                              const struct ra_model_batch *given);

/* Deals the rows of a batch that was taken, as ra_model_set_slices does. */
enum ra_status ra_model_deal(struct ra_model *model, const struct ra_model_batch *batch);

/* Makes a model as ra_model_create does; if past is not NULL, of the run->length tokens of a prompt
 * from position `first` on, a multiple of the ranks. */
RA_CHECKED enum ra_status ra_model_make(struct ra_model **model,
                                        const struct ra_model_config *config,
                                        const struct ra_model_run *run, MPI_Comm comm,
                                        const struct ra_model *past, int64_t first,
                                        char error[RA_ERROR_SIZE]);

/* Returns the first position that a layer of a piece of a prompt sees, rounded down to a multiple
 * of the ranks; 0 for any other model. */
int64_t ra_model_seen_from(const struct ra_model *model, int64_t layer);

/* Takes memory for as many rows as model->n and model->rows say; false: there is none. */
bool ra_model_allocate(struct ra_model *model);

/* Returns what a layer's attention is planned with. */
struct ra_config ra_model_attention(const struct ra_model *model, int64_t layer);

/* Sets the model's error; returns the status. */
__attribute__((format(printf, 3, 4))) enum ra_status ra_model_fail(struct ra_model *model,
                                                                   enum ra_status status,
                                                                   const char *format, ...);

/* Ends with the error of the first rank that comes with one, on all ranks, so that none waits for
 * it. */
enum ra_status ra_model_agree(struct ra_model *model, enum ra_status status);

/* Ends a call. If it has failed on this rank, those of its ring must not wait for it: the links of
 * all layers fail with the model's error. Returns the status. */
enum ra_status ra_model_end(struct ra_model *model, enum ra_status status);

/* Waits for all ranks in what MPI has begun, and answered with `code`; in a ring, no longer than
 * until one of its ranks has failed. */
enum ra_status ra_model_await(struct ra_model *model, int code, MPI_Request *request,
                              const char *what);

/* Notes that the model is at its end, if this is RA_LOST; returns the status. */
enum ra_status ra_model_note(struct ra_model *model, enum ra_status status);

#endif
