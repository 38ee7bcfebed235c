/* ra_tree: attention of a few new tokens over a cache of keys and values that is sharded over the
 * ranks of a ring.
 *
 * Chapter 10. New here: tree decoding (Shyam and others 2024). Keys stay where they are, and so no
 * message grows with the cache: each rank folds its own keys into the carry (max, sum, o) of the
 * new queries, and one reduction combines the carries of all ranks. The sum of two carries is a
 * carry, in any order: it need not go round a ring, and takes as many steps as a tree of the ranks
 * has levels.
 *
 * Rank r of P holds positions r, r + P, r + 2P, ...: the striped layout. So the cache grows by a
 * token on one rank after the other, and a prompt that a striped ring has computed lies where it
 * belongs.
 */
#ifndef RA_TREE_H
#define RA_TREE_H

#include "ring_attention_mpi.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ra_tree;

/* Makes an empty cache for up to config.keys positions, and attention for up to config.queries new
 * tokens at once: a longer cache needs no new one. The config is that of a plan for the last of
 * these calls: striped without a bucket, without a key mask; causal, lookback, head_map, scale,
 * softcap, tiles and threads mean what they do there, and all batches have the same length.
 * config.type is that of the numbers in the cache alone: RA_BFLOAT16 and RA_FLOAT16 halve its
 * memory, and round every key and value once. Arrays of calls are float32 in any case.
 * All ranks of `ring` call this together and give the same. If it fails, *tree is NULL and error
 * has the reason, the same on all ranks; after RA_LOST `ring` must not be freed. */
RA_CHECKED enum ra_status ra_tree_create(struct ra_tree **tree, const struct ra_config *config,
                                         MPI_Comm ring, char error[RA_ERROR_SIZE]);

/* Frees it, on all ranks together; NULL is none. What MPI may still use, after RA_LOST, stays. */
void ra_tree_destroy(struct ra_tree *tree);

/* Returns the text of the last error of a call with this tree. */
const char *ra_tree_error(const struct ra_tree *tree);

/* Counts the positions of the cache; the bytes that the tree holds on this rank; and the bytes that
 * one reduction for `count` new tokens combines, whatever the cache's length: a rank sends them to
 * another ceil(log2 P) times, if MPI doubles the distance at each step. */
int64_t ra_tree_length(const struct ra_tree *tree);
int64_t ra_tree_bytes(const struct ra_tree *tree);
int64_t ra_tree_reduced(const struct ra_tree *tree, int64_t count);

/* Puts a prompt of `length` positions into the cache, instead of all that was there: k and v are
 * this rank's striped shard of it, (B, rows, G, D) of float32. */
RA_CHECKED enum ra_status ra_tree_fill(struct ra_tree *tree, int64_t length, struct ra_tensor k,
                                       struct ra_tensor v);

/* Puts positions first, ..., first + count - 1 behind those before them, of which first, a multiple
 * of P and at most the length of the cache, is the number: k and v are this rank's striped shard of
 * the `count`, as in ra_tree_fill. What was there from first on is forgotten. */
RA_CHECKED enum ra_status ra_tree_extend(struct ra_tree *tree, int64_t first, int64_t count,
                                         struct ra_tensor k, struct ra_tensor v);

/* Returns the keys of the cache, or its values, where they are: (B, rows, G, D) of config.type, of
 * which rows first, ... of this rank, those of positions rank + P first and so on. Valid until the
 * next call that changes the cache. */
struct ra_tensor ra_tree_cached(const struct ra_tree *tree, int64_t first, bool values);

/* Puts positions first, ..., first + count - 1 there: k and v are the whole, (B, count, G, D), the
 * same on all ranks, of which each keeps its own rows. first is at most the length of the cache;
 * what was there from first on is forgotten. */
RA_CHECKED enum ra_status ra_tree_keep(struct ra_tree *tree, int64_t first, int64_t count,
                                       struct ra_tensor k, struct ra_tensor v);

/* Computes o = attention of the last `count` positions of the cache, whose queries are q, over all
 * of the cache. Both are (B, count, H, D) of float32 (o: D_v numbers); q is the same on all ranks,
 * and o has the same bits on all. A query sees its own position and those before it, or, if the
 * config is not causal, all of the cache, also the new tokens behind it. Of the arrays that may be
 * empty, sink and slopes are read, which are the same on all ranks, too, and largest is written, as
 * by ra_forward, on every rank that of all queries. No other array is used.
 *
 * All ranks call this together, after the same calls. If one rank refuses its arrays, RA_INVALID,
 * the others get RA_LOST and the same text: the tree is at its end. */
RA_CHECKED enum ra_status ra_tree_attend(struct ra_tree *tree, int64_t count,
                                         const struct ra_arrays *arrays);

#ifdef __cplusplus
}
#endif

#endif
