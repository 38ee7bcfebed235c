/* problems: attention problems for the suites of the library: what is asked, with random inputs;
 * what is right; and a rank's arrays, in any type and order in memory.
 */
#ifndef PROBLEMS_H
#define PROBLEMS_H

#include "arrays.h"

enum masking {
    NO_MASK,
    ALL_SEEN,
    RANDOM_MASK,
    BATCH_HIDDEN, /* no key of batch 0 is seen */
    FIRST_HIDDEN, /* nor of the first half */
    LAST_SEEN,    /* and no other */
    RANK_HIDDEN,  /* no key of rank 0 is seen */
    MASKINGS
};

/* A whole problem and what is right. */
struct problem {
    struct ra_config config;
    int ranks;         /* of a ring; 0: one process, without a link */
    double size;       /* of q, and so of scores; 0 counts as 1 */
    double shift;      /* by about so much all scores are moved, by the first number of q and k, */
    double offset;     /* and all keys by this */
    bool wide[ARRAYS]; /* this array is float32 whatever config.type is */
    bool same;         /* k, v and mask are the same in all batches, d_out in all rows */
    enum masking masking;
    bool nan_hidden; /* k and v of hidden keys are NaN */
    unsigned seed;

    /* Filled in by problem_make. */
    struct truth truth;
    int64_t stripes;
    int *home[2]; /* by side: which rank has a row */
};

/* A random one of these. */
#define ONE_OF(state, list) ((list)[random_below((state), sizeof(list) / sizeof *(list))])

/* Returns a random problem of this many queries and keys, small enough to be solved in a moment. */
struct problem problem_random(uint64_t *state, int64_t N, int64_t M);

/* Makes the inputs, and says in config whether there is a mask. */
void problem_make(struct problem *p);
void problem_clear(struct problem *p);

/* Finds what is right. Of a 16-bit o, what is right in the backward depends on the o that is given:
 * then problem_is_right does. */
void problem_solve(struct problem *p);

int problem_ranks(const struct problem *p);
int64_t problem_length(const struct problem *p, enum ra_side side);
enum ra_type problem_type(const struct problem *p, enum truth_array a);

/* A row of one head of an input. */
double *problem_row(const struct problem *p, enum truth_array a, int64_t b, int64_t row, int64_t h);

/* Is this array written by the calls of this problem? */
bool problem_writes(const struct problem *p, enum truth_array a);

/* The spans of a rank, from the text of semantics, and how many: a run; every J-th row, f times; an
 * early chunk and the late one that makes up for it. */
enum { MOST_SPANS = 256 };
int problem_spans(const struct problem *p, enum ra_side side, int rank, struct ra_span *spans);

/* Arrays for all outputs of the whole. */
void outputs_make(const struct problem *p, double *got[ARRAYS]);
void outputs_clear(double *got[ARRAYS]);

enum { TEXT = 1024 };

/* Are these outputs right? False: says in `text` which is not, and of what problem. */
bool problem_is_right(struct problem *p, double *const got[ARRAYS], char text[TEXT]);

/* Adds up the squares of the errors of a plain program in float32, and of what a run got. */
void problem_add_squares(const struct problem *p, enum truth_array a, const double *got,
                         double squares[2]);

/* Orders in memory. */
enum order {
    ROWS_FIRST,  /* (B, rows, heads, D) */
    HEADS_FIRST, /* (B, heads, rows, D) */
    GAPS,        /* rows first, with gaps between heads, rows and batches */
    PACKED,      /* q, k and v side by side in one row, and dq, dk, dv */
    BACKWARDS,   /* rows and heads from the last to the first: negative strides */
    BROADCAST,   /* of a problem whose batches are the `same`: strides of 0 */
    ORDERS
};

/* Returns a random order for this problem, which may have to change for it. */
enum order problem_random_order(uint64_t *state, struct problem *p);

/* Memory of one array, or of three packed ones. */
struct block {
    unsigned char *data, *before; /* as it is, and as it was when it was looked at last */
    signed char *owner;           /* whose number a byte is part of; -1: nobody's */
    int64_t bytes;
};

/* A rank's part of a problem. */
struct shard {
    struct ra_arrays arrays;
    struct block blocks[ARRAYS], *block_of[ARRAYS];
    int64_t rows[2], *positions[2]; /* by side: which rows of the whole it has */
};

/* The arrays of the plan's rank, or the whole ones, if plan is NULL: inputs from the whole, the
 * rest NaN. */
void shard_make(const struct problem *p, struct shard *shard, enum order order,
                const struct ra_plan *plan);
void shard_clear(struct shard *shard);

/* Makes all numbers of some arrays NaN. */
void shard_poison(struct shard *shard, enum truth_array first, enum truth_array last);

/* Has a call changed nothing but what it may write: o and lse, or the gradients? False: says what
 * it wrote. */
bool shard_is_kept(struct shard *shard, bool backward, char text[TEXT]);

/* The first array in whose memory two shards of a kind differ; ARRAYS: none. */
enum truth_array shard_difference(const struct shard *a, const struct shard *b);

/* Copies a rank's outputs into the whole ones. */
void shard_collect(const struct problem *p, struct shard *shard, double *const got[ARRAYS]);

/* Returns a config with this shape, and all else at its default. */
struct ra_config problem_shape(int64_t B, int64_t N, int64_t M, int64_t H, int64_t G, int64_t D);

#endif
