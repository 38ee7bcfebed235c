/* ra_config: what is to be computed, as one struct. The stage programs fill it from the command
 * line, callers of the library by hand, and both mean the same by it. Installed with the library,
 * whose reference is chapters/08-reference.md; each field arrives in the chapter that ra_options.c
 * names.
 *
 * Letters: B batches, N query rows, M key rows, H query heads, G key/value heads, D numbers per
 * head (D_v those of a value), P ranks of a ring.
 */
#ifndef RA_CONFIG_H
#define RA_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Types of numbers. Sums are float32 inside whatever the arrays are, over all hops, and rounded
 * once at the end, to nearest, ties to even. */
enum ra_type { RA_FLOAT32, RA_FLOAT16, RA_BFLOAT16, RA_BOOL };

/* Which rows of the sequence a rank has. Chapter 05. RA_DEALT is a layout that is a list, as
 * ra_plan_set_slices makes it; no config asks for it. */
enum ra_layout_kind { RA_CONTIGUOUS, RA_STRIPED, RA_ZIGZAG, RA_DEALT };

/* Which key/value head query head h reads. Grouped: neighbours share, h / (H / G), as in Llama and
 * flash-attention. Interleaved: every G-th shares, h mod G, as in ring-attention-pytorch. Weights
 * that were trained with one are wrong under the other. Chapter 07. */
enum ra_head_map { RA_GROUPED, RA_INTERLEAVED };

/* How the GPUs of a ring pass messages: one writes into the memory of the other, or the link passes
 * pointers to device memory, or to host memory, by way of a copy there. Chapter 11. */
enum ra_transport { RA_ANY_TRANSPORT, RA_PEER_COPIES, RA_DEVICE_LINK, RA_HOST_LINK };

/* How tiles are computed on the host: on vectors, or by the plain loops of chapter 02, which give
 * the bits of the stages before 09. Chapter 09. */
enum ra_tile_kind { RA_VECTOR_TILE, RA_PLAIN_TILE };

/* How queries meet keys that other ranks have. Chapter 12. Keys go round the ring; or every rank
 * collects all keys and computes alone; or ranks exchange heads, so that each has some heads of all
 * rows; or both: heads are exchanged inside groups of neighbouring ranks, and keys go round between
 * the groups. Or keys go round inside a host, and on to the next host once for each such round. Or
 * the one of these that is predicted to be fastest, by what the ranks measure when the plan is
 * made. */
enum ra_method {
    RA_RING,
    RA_GATHERED_KEYS,
    RA_EXCHANGED_HEADS,
    RA_HYBRID,
    RA_DOUBLE_RING,
    RA_AUTO_METHOD
};

struct ra_event;      /* ra_ring.h: what an observer is told */
struct ra_backend;    /* where a plan computes: ring_attention_cuda.h has one for GPUs */
struct ra_scale_mask; /* a list of slices, and their deal: ring_attention_scale.h */

/* What to compute. Always begin with RA_CONFIG_INIT, or with ra_config_init where there are no
 * macros: it sets the size, by which the library knows which fields your header has, and the
 * defaults in brackets. A config that began otherwise is refused, as 0 is a value of most fields
 * and not their default. All ranks of a ring give the same, but for the observer. */
struct ra_config {
    size_t size;

    /* The shape of the whole. batch is that of this ring. Any of the first three may be 0. */
    int64_t batch;     /* B [1] */
    int64_t queries;   /* N [0] */
    int64_t keys;      /* M [RA_SAME: as queries] */
    int64_t heads;     /* H, at least 1 [1] */
    int64_t key_heads; /* G, divides H [RA_SAME: as heads] */
    int64_t dim;       /* D, at least 1 [0] */

    /* The arrays: of this type, or of float32. k and v, which travel, are of this type. */
    enum ra_type type; /* [RA_FLOAT32] */
    bool has_mask;     /* calls give a key mask [false] */
    bool forward_only; /* ra_backward will not be called: less memory [false] */

    /* Visibility. The last query stands beside the last key: query i is at position i + M - N
     * of the keys. */
    bool causal;               /* no query sees keys after its own position [false] */
    bool local_keys;           /* no ring: each rank sees its own keys only [false] */
    int64_t lookback;          /* causal only: the most tokens back [RA_NO_LOOKBACK: no limit] */
    enum ra_head_map head_map; /* [RA_GROUPED] */

    /* A score is scale * q . k, then, with a soft cap c > 0, c * tanh(score / c). */
    double scale;   /* [RA_DEFAULT_SCALE: 1 / sqrt(D)] */
    double softcap; /* [0: none] */

    /* Who has which rows. */
    enum ra_layout_kind layout; /* [RA_CONTIGUOUS] */
    int64_t bucket;             /* striped only: query rows of a stripe at most [0: one stripe] */
    int ring_size; /* P: that of the link, or of a plan to look at [0: the link's, 1] */

    /* How. Tiles change the last bits of results, and speed. */
    int64_t tile_queries, tile_keys; /* rows of a tile at most [0: 64 if they are plain,
                                      * else about a thousand] */
    double timeout; /* seconds of silence after which a rank that others wait for counts as lost
                     * [600]; 0: never. A rank that computes is not silent (but on GPUs) */
    void (*observe)(void *observer, const struct ra_event *event); /* may be NULL [NULL] */
    void *observer;                                                /* its first argument [NULL] */

    /* Where. transport and deterministic are for GPUs: plans for the host check and ignore them. */
    const struct ra_backend *device; /* [NULL: the host]; ra_cuda(): the current GPU */
    enum ra_transport transport;     /* [RA_ANY_TRANSPORT: the best that all ranks can have] */
    bool deterministic; /* the backward gives equal bits for equal inputs, which on the host it
                         * always does [false] */
    int initialised;    /* [1]: this config began with its defaults */

    /* On the host. Results do not depend on the number of threads. */
    enum ra_tile_kind tile; /* [RA_VECTOR_TILE] */
    int threads; /* of this rank, at most [0: OMP_NUM_THREADS, or else its fair share of the
                  * processors of its machine, at most what omp_set_num_threads allows] */

    /* Memory. */
    bool caller_workspace; /* calls compute in the memory of ra_plan_set_workspace [false] */

    /* Slices: what ra_plan_set_slices may give. Room for as much is taken when a plan is made. */
    int64_t max_slices; /* [0: none, the mask is causal and lookback] */
    int64_t max_rows;   /* rows of a rank [0: as many as by the layout]; more: for a deal per
                         * document */

    /* Values may have another number of numbers per head than queries and keys. */
    int64_t dim_value; /* D_v, of v, o, d_out and dv, at least 1 [0: D] */

    /* On the host any; on GPUs not RA_DOUBLE_RING. */
    enum ra_method method; /* [RA_RING] */
    int group; /* hybrid only: ranks that exchange heads, 0..U-1, the next U, ...; divides P [0: as
                * many as there are key heads for] */
    int inner; /* double ring only: ranks of a host, 0..I-1, the next I, ...; divides P [0: as many
                * as share this rank's processors, or fewer] */
    int reserved; /* not read [0] */

    /* RA_AUTO_METHOD only: the mask that ra_plan_set_slices is going to give, or one like it, as
     * the method is chosen before. Read while the plan is made. [NULL: causal and lookback] */
    const struct ra_scale_mask *expected;
};

#define RA_SAME (-1)
#define RA_NO_LOOKBACK INT64_MAX
#define RA_BAND_FAR (INT64_MAX / 4) /* no two positions are this far apart: as a bound it is none */
#define RA_DEFAULT_SCALE (-1.7976931348623157e308) /* a number that is no scale */

#define RA_CONFIG_INIT                                                                            \
    {                                                                                             \
        sizeof(struct ra_config), 1, 0, RA_SAME, 1, RA_SAME, 0, RA_FLOAT32, false, false, false,  \
            false, RA_NO_LOOKBACK, RA_GROUPED, RA_DEFAULT_SCALE, 0, RA_CONTIGUOUS, 0, 0, 0, 0,    \
            600, NULL, NULL, NULL, RA_ANY_TRANSPORT, false, 1, RA_VECTOR_TILE, 0, false, 0, 0, 0, \
            RA_RING, 0, 0, 0, NULL                                                                \
    }

#endif
