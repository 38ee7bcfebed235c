/* bench_cuda: what the parts of bench-cuda share.
 *
 * Scaffolding, like stage: no chapter teaches it.
 */
#ifndef BENCH_CUDA_H
#define BENCH_CUDA_H

#include <stdio.h>

#include "cuda_rig.h"
#include "ra_ladder.h"

/* What was asked for. */
extern struct bench {
    const char *only;
    bool quick, turns;
    int repeats;
    FILE *csv, *timeline; /* rank 0's */
    bool has_timeline;
} bench;

extern int64_t cache_bytes; /* of the L2 cache */

/* ---- One problem, as often as it takes to keep the L2 cache from helping. */

struct shape {
    int64_t batch, rows, heads, key_heads, dim, dim_value; /* B, n = m, H, G, D, D_v */
};

/* All arrays of a problem, in one piece of device memory. */
struct set {
    const struct ra_rung *rung;
    struct ra_kernel kernel;
    struct ra_tensor dq, dk, dv; /* what a caller gets, of the inputs' type */
    char *memory;
    int64_t bytes;
};

enum { MOST_SETS = 16 };

/* Makes sets, as many as it takes to be four times the cache; returns how many. Outputs are NaN. */
int sets_make(struct set sets[MOST_SETS], const struct ra_rung *rung, struct shape shape,
              enum ra_type type);
void sets_free(struct set *sets, int count);

/* The same byte everywhere in so many numbers. */
void set_bytes(struct ra_tensor x, int byte, int64_t numbers);

/* Results are NaN until a kernel writes them. Looks at the end of an array, where kernels that stop
 * too early leave that. */
void check(struct ra_tensor x, int64_t numbers, const char *name);

/* "1x32/8x16k": batches, heads/key heads, tokens; and "d128", or "d192/128" with D_v. */
void shape_name(struct shape shape, char *name, size_t size);
void width_name(struct shape shape, char *name, size_t size);

/* ---- What is timed. */

typedef void pass_run(struct set *set);

struct pass {
    const char *name;
    pass_run *run;
    bool is_backward, carries;
};

enum { PASSES = 4 };
extern const struct pass passes[PASSES];
void forward(struct set *set);
void backward(struct set *set);

/* Between two events. */
double milliseconds(cudaEvent_t start, cudaEvent_t end);

/* Milliseconds of a run: the median, after a warm-up that sees every set. Runs take turns on the
 * sets, and are enqueued all at once, so that the GPU does not wait for the host. */
double measure(pass_run *run, struct set *sets, int count, int repeats);

/* Of the GPU, half-way through the last measure. */
extern struct rig_state state;

/* What has to be done, whoever does it. */
struct work {
    double operations, exponentials, bytes;
};

struct work work_of(struct shape shape, enum ra_type type, bool causal, const struct pass *pass);

/* ---- The parts. */

/* Finds out what the GPU can do at best, and on rank 0 says so. */
void find_ceiling(void);

/* Cuts so many rows into documents of this length; 0: of log-normal ones, round(exp(N(6.5, 1.2))).
 * Lengths are rounded up to multiples of `unit`. Writes their bounds (rows + 1), and returns how
 * many documents these are. */
int64_t bench_bounds(int64_t length, int64_t unit, int64_t rows, int64_t *bounds);

/* A line: this word, and the lengths of so many documents. */
void bench_print_lengths(const char *word, int64_t count, const int64_t *bounds);

/* Measures the kernels on one GPU; the ring, which is for all ranks together. */
void bench_kernels(void);
void bench_slices(void);
void bench_rings(void);
void bench_document_rings(void);

/* Measures the causal ring that this line of --turns asks for; none if it asks for something else,
 * or if its tokens are no multiple of the ranks. */
void bench_ring_turn(const char *line);

/* The same of a line that asks for documents, or for their lengths. These are multiples of 2P: they
 * can be cut into as many equal parts. */
void bench_document_turn(const char *line);

#endif
