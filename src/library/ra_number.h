/* ra_number: float16 and bfloat16, to float32 and back.
 *
 * Chapter 08. All arithmetic is in float32; this is the door through which other types come in and
 * go out.
 */
#ifndef RA_NUMBER_H
#define RA_NUMBER_H

#include "ring_attention.h"

/* Copies `count` numbers of this type, which is not RA_BOOL, into float32: exactly. */
void ra_number_load(enum ra_type type, int64_t count, const void *from, float *to);

/* Stores float32 as numbers of a type, rounded to nearest, ties to even. What is too large for the
 * type becomes infinite, and NaN stays NaN. */
void ra_number_store(enum ra_type type, int64_t count, const float *from, void *to);

/* Copies an array of the caller's, (B, rows, heads, width) in any order, to one without gaps: as it
 * is, or as float32; and from float32 back. */
void ra_number_pack(struct ra_tensor from, int64_t B, int64_t rows, int64_t heads, int64_t width,
                    void *to);
void ra_number_load_all(struct ra_tensor from, int64_t B, int64_t rows, int64_t heads,
                        int64_t width, float *to);
void ra_number_store_all(struct ra_tensor to, int64_t B, int64_t rows, int64_t heads, int64_t width,
                         const float *from);

#endif
