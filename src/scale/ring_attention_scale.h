/* ring_attention_scale: what attention costs on ranks that need not exist: time, waiting, memory
 * and messages, before anything runs.
 *
 * Chapter 12. Installed with the library; needs no MPI and no GPU. A plan to look at counts work
 * and bytes; a machine, told by a few measured numbers, turns them into seconds.
 *
 *     struct ra_scale_machine machine = RA_SCALE_MACHINE_INIT;
 *     machine.forward_rate = 1.8e14; ...                      what was measured,
 *     ra_scale_predict(&scale, &config, NULL, &machine, RA_SCALE_RING, NULL, error);
 *
 * config.ring_size is how many ranks there are. Layouts have one stripe a rank: a bucket is
 * refused. Work for a rank and a hop takes the same time however long the sequence is; a ring of P
 * ranks takes P^2 of it. Every function may be called by any thread at any time. Memory is taken
 * only during a call.
 */
#ifndef RING_ATTENTION_SCALE_H
#define RING_ATTENTION_SCALE_H

#include "ra_config.h"
#include "ra_status.h"
#include "ring_attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A machine. Begin with RA_SCALE_MACHINE_INIT; a number that is still 0 is missing, and is asked
 * for by name when it is needed, unless the comment says what 0 means. */
struct ra_scale_machine {
    size_t size;

    /* A rank: multiply-adds a second of pairs of a query and a key that see each other; bytes of
     * its memory, and bytes a second of it [0: no time is counted for carries, sums and the copies
     * of an exchange, and no decoding]. */
    double forward_rate, backward_rate;
    double memory, memory_bandwidth;

    /* Of a tile in which anybody sees anything, all is computed: query and key rows of it [1,
     * 1]. */
    int64_t tile_queries, tile_keys;
    double overhead; /* seconds of a hop besides [0] */

    /* Messages between two ranks of one host, and between two hosts: bytes a second that a rank
     * sends while all others send, too; seconds until the first byte is there [0]. */
    int ranks_per_host; /* [0: all are on one] */
    double bandwidth, latency;
    double host_bandwidth, host_latency;

    /* What is wrong: the work of one rank, and the messages that one rank sends, take this many
     * times as long [rank -1: none; factor 1]. */
    int slow_rank, slow_link;
    double slow_rank_factor, slow_link_factor;
};

#define RA_SCALE_MACHINE_INIT                                                             \
    {                                                                                     \
        sizeof(struct ra_scale_machine), 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, -1, -1, 1, 1 \
    }

/* A mask of slices in the place of causal and lookback, as ra_plan_set_slices takes it: an
 * argument, or config.expected. Room for it is counted as if config had max_slices and max_rows for
 * just this mask. */
struct ra_scale_mask {
    const struct ra_slice *slices;
    int64_t count;
    enum ra_deal deal;
};

/* How queries meet keys: as by the methods of enum ra_method, of which a hybrid's group is
 * config.group; or round a ring in each host, and between hosts from ring to ring. */
enum ra_scale_method {
    RA_SCALE_RING,
    RA_SCALE_DOUBLE_RING,
    RA_SCALE_GATHERED_KEYS,
    RA_SCALE_EXCHANGED_HEADS,
    RA_SCALE_HYBRID
};

/* One hop of a pass, in seconds: the work of the rank that has most of it, and of a rank on
 * average; the messages that are to be hidden behind it; and what the hop takes, the larger of the
 * two. */
struct ra_scale_hop {
    int distance; /* of the origin of its keys, as in struct ra_hop; gathered keys are one hop */
    double work, mean_work, messages, seconds;
};

/* A pass, forward or backward. */
struct ra_scale_pass {
    double seconds;       /* until the last rank is done */
    double work;          /* of these a rank computes, on average */
    double busiest;       /* the rank that has most to compute computes so long */
    double waiting;       /* seconds - work: a rank waits so long, on average */
    double tail;          /* of these behind no work: gradients on their way home; all messages of
                           * gathered keys; the exchange of heads, and its copies */
    double multiply_adds; /* of all ranks; of pairs that see each other */
    double inside_bytes,
        host_bytes; /* that one rank sends to ranks of its host, to other hosts: most */
};

struct ra_scale {
    int hops;
    struct ra_scale_pass forward, backward; /* backward is 0 if config.forward_only */
    int64_t plan_bytes;                     /* of the rank with most, as ra_plan_bytes says */
    int64_t array_bytes; /* of it besides: q, k, v, o, lse; backward d_out, dq, dk, dv as well */
};

/* Predicts the time of attention by formula: each hop takes as long as the slowest of all ranks'
 * work and messages, as if ranks met after each hop. Bytes and memory are those of a plan of this
 * method, whatever config.method is. `hops`, unless it is NULL, has room for 2 * ring_size of them:
 * those of the forward come first, those of the backward from ring_size on. `mask` NULL:
 * config.expected, and if that is NULL causal and lookback.
 *
 * RA_INVALID: the error names the field of config or machine that is wrong, or the number that is
 * missing, or the slice. RA_OUT_OF_MEMORY: some bytes for each rank were not to be had. */
RA_CHECKED enum ra_status ra_scale_predict(struct ra_scale *scale, const struct ra_config *config,
                                           const struct ra_scale_mask *mask,
                                           const struct ra_scale_machine *machine,
                                           enum ra_scale_method method, struct ra_scale_hop *hops,
                                           char error[RA_ERROR_SIZE]);

/* A method that a plan may have, and what is predicted of it. */
struct ra_scale_choice {
    enum ra_scale_method method;
    enum ra_method config_method; /* it is config.method, with config.group and config.inner */
    int group, inner;
    bool possible;         /* false: so many ranks cannot share the heads; nothing is predicted */
    bool fits;             /* plan and arrays: into machine->memory; true if that is 0 */
    struct ra_scale scale; /* what ra_scale_predict says */
};

/* All of them that plans have on config.device, in the order of enum ra_scale_method: the double
 * ring if there are several hosts of several ranks, and as many on each; a hybrid for each group
 * that divides the ranks and can share the heads. `best` is the place of the one whose forward and
 * backward together take least time, of those that fit; of equals the first; -1: none fits. */
enum { RA_SCALE_CHOICES = 128 }; /* no ring has as many */
struct ra_scale_choices {
    int count, best;
    struct ra_scale_choice list[RA_SCALE_CHOICES];
};

/* Predicts each method, and gives config the best: its method, group and inner, which before may be
 * anything; if none fits, config stays. On the same config, mask and machine every rank chooses
 * alike. `hops`, unless it is NULL, has room for 2 * ring_size for each choice; mask and errors are
 * those of ra_scale_predict. */
RA_CHECKED enum ra_status ra_scale_choose(struct ra_scale_choices *choices,
                                          struct ra_config *config,
                                          const struct ra_scale_mask *mask,
                                          const struct ra_scale_machine *machine,
                                          struct ra_scale_hop *hops, char error[RA_ERROR_SIZE]);

/* What one rank did in a simulated pass: seconds of work, of waiting for keys or gradients, and
 * when it was done. */
struct ra_scale_rank {
    double work, waiting, end;
};

/* Finds the time of one pass by a simulation of the ring: a rank begins a hop when it is done with
 * the one before, its keys have come and those before have gone; a message begins when sender and
 * receiver have come to its hop and the sender's link is free. config.method is RA_RING. `ranks`,
 * unless it is NULL, has room for ring_size. Returns the seconds in *seconds. mask and errors are
 * those of ra_scale_predict. */
RA_CHECKED enum ra_status ra_scale_simulate(double *seconds, const struct ra_config *config,
                                            const struct ra_scale_mask *mask,
                                            const struct ra_scale_machine *machine, bool backward,
                                            struct ra_scale_rank *ranks, char error[RA_ERROR_SIZE]);

/* A few new tokens, config.queries of them, over a cache of config.keys that is sharded over all
 * ranks: tree decoding (chapter 10). */
struct ra_scale_decoding {
    double seconds, work,
        messages;         /* work: the cache is read, or multiplied if that takes longer */
    int rounds;           /* of messages, one after the other */
    double message_bytes; /* of each */
    double cache_bytes;   /* that a rank keeps and reads */
};
RA_CHECKED enum ra_status ra_scale_decode(struct ra_scale_decoding *decoding,
                                          const struct ra_config *config,
                                          const struct ra_scale_machine *machine,
                                          char error[RA_ERROR_SIZE]);

/* A transformer around it, as in chapter 10: what its layers keep for their backward. Begin with
 * RA_SCALE_MODEL_INIT. heads, key_heads, dim of a head, batch and type are the config's. */
struct ra_scale_model {
    size_t size;
    int64_t dim, depth, hidden, vocabulary; /* hidden: of a feed-forward layer */
    bool recompute;  /* a layer keeps dim numbers of a token, and computes the rest again [false] */
    bool replicated; /* every rank has all weights [false: each has its share] */
    double weight_bytes; /* of a weight, its gradient and its optimizer: [16]: 2 + 2, and 3 of
                          * float32 */
};

#define RA_SCALE_MODEL_INIT                                         \
    {                                                               \
        sizeof(struct ra_scale_model), 0, 0, 0, 0, false, false, 16 \
    }

/* Where the bytes of a rank are when it trains on config.queries tokens: of the rank that has most
 * of them. `mask` as for ra_scale_predict. */
struct ra_scale_memory {
    double weights, activations;
    double attention; /* the plan: layers share one */
};
RA_CHECKED enum ra_status ra_scale_memory_of(struct ra_scale_memory *memory,
                                             const struct ra_config *config,
                                             const struct ra_scale_mask *mask,
                                             const struct ra_scale_model *model,
                                             char error[RA_ERROR_SIZE]);

/* Finds how many tokens the longest sequence has that fits into machine->memory of each rank; a
 * multiple of twice the number of ranks, so that all have as many; 0 if the weights alone do not.
 * config.queries is not looked at. */
RA_CHECKED enum ra_status ra_scale_fits(int64_t *tokens, const struct ra_config *config,
                                        const struct ra_scale_model *model,
                                        const struct ra_scale_machine *machine,
                                        char error[RA_ERROR_SIZE]);

#ifdef __cplusplus
}
#endif

#endif
