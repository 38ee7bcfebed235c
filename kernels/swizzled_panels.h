/* swizzled_panels: where a number lies in shared memory as TMA writes it and wgmma reads it, and
 * the 64 bits that tell wgmma where. Plain arithmetic, for the device and for the host, where it is
 * tested.
 *
 * Chapter 11d.
 */
#ifndef SWIZZLED_PANELS_H
#define SWIZZLED_PANELS_H

#include "ra_range.h"

/* A tile of 16-bit numbers is cut into panels of 64 columns, which lie one behind the other. A row
 * of a panel has 128 bytes, 8 chunks, in the places of ra_swizzle. The hardware takes the row's
 * number out of the address, bits 7 to 9: so a panel begins at a multiple of 1,024 bytes, and a
 * tile has a multiple of 8 rows. */
enum { RA_PANEL_COLUMNS = 64, RA_PANEL_ROW = 128, RA_PANEL_ALIGNMENT = 1024 };

/* From one panel of this many rows to the next, in bytes. */
RA_BOTH int ra_panel_stride(int rows)
{
    return rows * RA_PANEL_ROW;
}

/* The byte of a tile of panels of this many rows at which a number begins. Of (0, 16 i) and (16
 * i, 0) it is how far the i-th 16 columns or rows are from the first: see ra_descriptor_beyond. */
RA_BOTH int ra_panel_offset(int row, int column, int rows)
{
    int panel = column / RA_PANEL_COLUMNS, chunk = column % RA_PANEL_COLUMNS / 8;
    return panel * ra_panel_stride(rows) + row * RA_PANEL_ROW + ra_swizzle(row, chunk) * 16 +
           column % 8 * 2;
}

/* From the offset, or the address in shared memory, of a number in one of the first 16 columns of a
 * row to that this many columns further on, a multiple of 16: the swizzle stays within a panel, and
 * the bits of a column are apart from those of the row. */
RA_BOTH uint32_t ra_panel_along(uint32_t offset, int columns, int rows)
{
    int panels = columns / RA_PANEL_COLUMNS * RA_PANEL_COLUMNS;
    return (offset ^ (uint32_t)ra_panel_offset(0, columns - panels, rows)) +
           (uint32_t)ra_panel_offset(0, panels, rows);
}

/* The descriptor of a matrix in panels that begins at this address of shared memory, a multiple of
 * 16. Only a transposed matrix wider than one panel needs the stride from one panel to the next, in
 * bytes; for others it is not looked at. In units of 16 bytes: bits 0-13 the address, 16-29 the
 * stride, 32-45 from 8 rows to the next 8; bit 62 says how chunks are swizzled. In a cluster an
 * address has the block's rank above its 18 bits; it must not come into the stride. */
RA_BOTH uint64_t ra_descriptor(uint32_t address, int panel_stride)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(panel_stride >> 4) << 16 |
           (uint64_t)(8 * RA_PANEL_ROW >> 4) << 32 | UINT64_C(1) << 62;
}

/* The same matrix this many bytes further on, a multiple of 16 and not negative. */
RA_BOTH uint64_t ra_descriptor_beyond(uint64_t descriptor, int bytes)
{
    return descriptor + (uint32_t)(bytes >> 4);
}

#endif
