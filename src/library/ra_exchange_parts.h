/* ra_exchange_parts: what ranks that exchange heads send each other: which heads, which rows, which
 * arrays. Internal.
 *
 * Chapter 12. No number is moved here. The host (ra_exchange.c) and GPUs (ra_cuda_exchange.c) pack,
 * count and unpack by the same table.
 */
#ifndef RA_EXCHANGE_PARTS_H
#define RA_EXCHANGE_PARTS_H

#include "ra_plan.h"

/* Says which heads are those of a rank of a group: `per_key` query heads of each of `keys` key
 * heads, the latter from number `key` on, the former from number `first` of each on. */
struct ra_head_share {
    int64_t key, keys, first, per_key;
};

/* Returns the share of member `member` of a group of U that exchanges H heads on G. Members get
 * whole key heads, as equal in number as can be; if there are fewer key heads than members, several
 * neighbours get one key head, and a part each of the query heads that read it. H is at least U. */
struct ra_head_share ra_exchange_share(int64_t H, int64_t G, int U, int member);

/* Tells whether keys are gathered, so that the inner plan has the caller's arrays of queries and
 * all keys. */
bool ra_exchange_gathers(const struct ra_plan *plan);

/* Counts the ranks of a group, which exchange with each other. Keys are gathered, where that is an
 * exchange, by all: then a share has all heads, and of the parts only keys are exchanged. */
int ra_exchange_group(const struct ra_plan *plan);

/* Returns the share of a member, as ra_exchange_share does, of a plan's heads and groups. */
struct ra_head_share ra_exchange_share_of(const struct ra_plan *plan, int member);

/* Returns the first rank of the group that a rank is in. */
int ra_exchange_first(const struct ra_plan *plan, int rank);

/* Inwards, from rows to heads, and outwards, in both directions. */
enum ra_exchange_phase {
    RA_FORWARD_IN = 1,
    RA_FORWARD_OUT = 2,
    RA_BACKWARD_IN = 4,
    RA_BACKWARD_OUT = 8
};

static inline enum ra_exchange_phase ra_exchange_phase_of(bool backward, bool outwards)
{
    return (enum ra_exchange_phase)((backward ? RA_BACKWARD_IN : RA_FORWARD_IN) << outwards);
}

static inline bool ra_exchange_is_inwards(enum ra_exchange_phase phase)
{
    return phase == RA_FORWARD_IN || phase == RA_BACKWARD_IN;
}

/* A part of messages: an array, and in which phases it is exchanged. */
struct ra_exchange_part {
    size_t offset; /* in struct ra_arrays */
    enum ra_side side;
    enum { RA_PART_NUMBER, RA_PART_GRADIENT, RA_PART_ROWS, RA_PART_MASK } form;
    bool is_value;
    int phases;
};

/* The parts in their order in a message: of four bytes first. What is an output of the backward, or
 * has one number to a head, is float32, the mask bool, and the rest as the plan. */
enum { RA_EXCHANGE_PARTS = 11 };
extern const struct ra_exchange_part ra_exchange_parts[RA_EXCHANGE_PARTS];

struct ra_tensor *ra_exchange_tensor(struct ra_arrays *arrays, const struct ra_exchange_part *part);
enum ra_type ra_exchange_type(const struct ra_config *c, const struct ra_exchange_part *part);

/* Counts the numbers of a head in a row, and the heads of a part in a share. */
int64_t ra_exchange_width(const struct ra_config *c, const struct ra_exchange_part *part);
int64_t ra_exchange_heads(const struct ra_exchange_part *part, struct ra_head_share share);

/* Tells whether this part is in messages of this phase. */
bool ra_exchange_has(const struct ra_config *c, const struct ra_exchange_part *part,
                     enum ra_exchange_phase phase);

/* Tells whether calls of a plan with this config need this part at all. */
bool ra_exchange_needs(const struct ra_config *c, const struct ra_exchange_part *part);

/* Counts the bytes of a part: so many rows of each batch, and the heads of a share. */
int64_t ra_exchange_part_bytes(const struct ra_config *c, const struct ra_exchange_part *part,
                               int64_t rows, struct ra_head_share share);

/* Counts the bytes of a message of this phase from one member of a group to another; `first` is the
 * first rank of the group. And the most that any message of a plan has. */
int64_t ra_exchange_bytes_between(const struct ra_plan *plan, enum ra_exchange_phase phase,
                                  int first, int from, int to);
int64_t ra_exchange_most_bytes(const struct ra_plan *plan);

/* Counts the bytes that a rank sends to another of its group in a call, or keeps if that is itself:
 * inwards, before attention, or outwards, after it. */
int64_t ra_exchange_bytes(const struct ra_plan *plan, int from, int to, bool backward,
                          bool outwards);

/* Counts what a rank sends within its group in a call: messages, and bytes in them. */
void ra_exchange_count(const struct ra_plan *plan, int rank, bool backward, int64_t *messages,
                       int64_t *bytes);

/* Returns an array (B, rows, heads of the share, width) without gaps, in the type in which it
 * travels. */
struct ra_tensor ra_exchange_packed(const struct ra_config *c, const struct ra_exchange_part *part,
                                    void *data, int64_t rows, struct ra_head_share share);

/* Returns the heads of a share that read its key head number i, of an array of all heads; on the
 * key's side that head itself. */
struct ra_tensor ra_exchange_heads_at(const struct ra_config *c,
                                      const struct ra_exchange_part *part, struct ra_tensor all,
                                      struct ra_head_share share, int64_t i);

/* Where the rows of a member of this rank's group are among those of the group. */
struct ra_exchange_rows {
    struct ra_layout layout, group;
    int rank;
    int64_t before; /* of stripes: rows of the members before it */
};

struct ra_exchange_rows ra_exchange_rows_of(const struct ra_plan *plan, enum ra_side side,
                                            int member);

/* Returns which row of the group is local row a of that member, at this position of the whole. */
int64_t ra_exchange_row(const struct ra_exchange_rows *rows, int64_t a, int64_t position);

#endif
