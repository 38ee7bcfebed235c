/* ra_checksum: a number that tells different bytes apart: of flags, files and weights that all
 * ranks must have alike, and of a file that must not have changed.
 */
#ifndef RA_CHECKSUM_H
#define RA_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Adds bytes to a checksum, eight at a time. Each step can be undone, so no change of a single word
 * is lost. Bytes in parts have the same checksum if all parts but the last have a multiple of
 * eight. */
static inline uint64_t ra_checksum(uint64_t sum, const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i += 8) {
        uint64_t next = 0;
        memcpy(&next, (const char *)bytes + i, count - i < 8 ? count - i : 8);
        sum = (sum ^ next) * UINT64_C(0x9E3779B97F4A7C15);
        sum ^= sum >> 29;
    }
    return sum;
}

#endif
