/* ra_deal: the rows of packed documents, dealt to the ranks document by document.
 *
 * Chapter 13. Documents break the balance of every layout that does not know them: the rank that
 * has the end of the longest one works while the others wait. So each document is cut into 2P
 * pieces of its own, and a rank gets an early one and the late one that makes up for it, as zigzag
 * does with the whole sequence. Pieces have any length: nothing is padded. The result is a layout
 * that is a list of spans, which is right whatever is in it.
 */
#ifndef RA_DEAL_H
#define RA_DEAL_H

#include "ra_slices.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns how many bytes of storage a list of up to `most` runs needs. */
int64_t ra_deal_list_bytes(int ranks, int64_t most);

/* Begins a list of up to `most` runs, in storage that belongs to the caller and begins at a
 * multiple of 8. It is not written to yet. */
void ra_deal_begin(struct ra_layout_list *list, int ranks, int64_t most, void *storage);

/* Gives the next rows of the sequence to a rank. If it has those before them, too, they are one
 * run. */
void ra_deal_add(struct ra_layout_list *list, int rank, int64_t rows);

/* Ends a list: finds the spans of each rank, and where they lie among its rows. */
void ra_deal_end(struct ra_layout_list *list, int ranks);

/* Counts the bytes of storage that ra_deal_documents needs for lists of up to this many slices. */
int64_t ra_deal_storage(int ranks, int64_t queries, int64_t keys, int64_t most);

/* Copies such a deal: writes layouts like those, and the lists that these refer to. All else is as
 * with ra_deal_documents, with storage for at least as many slices. */
void ra_deal_copy(const struct ra_layout from[2], void *storage, struct ra_layout_list lists[2],
                  struct ra_layout layouts[2]);

/* Deals queries and keys to the ranks. A document is a run of rows that no slice crosses; short
 * ones that are neighbours count as one. If there are as many queries as keys, both are dealt
 * alike, and no slice crosses a document's ends on either side. Writes the layouts and the lists
 * that they refer to. lists and storage belong to the caller, and must live as long as the layouts;
 * storage begins at a multiple of 8. Every rank gets the same from the same slices. */
void ra_deal_documents(const struct ra_slices *slices, int ranks, int64_t queries, int64_t keys,
                       void *storage, struct ra_layout_list lists[2], struct ra_layout layouts[2]);

#ifdef __cplusplus
}
#endif

#endif
