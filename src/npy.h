/* npy: NumPy's array files (.npy), read and written by slices.
 *
 * Scaffolding for the stage programs and the test rig; no chapter teaches it. It handles the files
 * that this project passes around and refuses all others with a reason: format versions 1 to 3,
 * little-endian, C order, bool, float16, float32, float64, uint8, uint16, uint32, int32 and int64,
 * at most NPY_MAX_DIMS axes.
 *
 * Format: numpy.org/doc/stable/reference/generated/numpy.lib.format.html
 */
#ifndef NPY_H
#define NPY_H

#include <stdbool.h>
#include <stdint.h>

#define NPY_MAX_DIMS 8

enum npy_type {
    NPY_BOOL,
    NPY_FLOAT16,
    NPY_FLOAT32,
    NPY_FLOAT64,
    NPY_UINT8,
    NPY_UINT16,
    NPY_UINT32,
    NPY_INT32,
    NPY_INT64
};

struct npy {
    int fd; /* -1 when closed */
    enum npy_type type;
    int dims;
    int64_t shape[NPY_MAX_DIMS]; /* 1 past dims: an array of no axes has one row of axis 0 */
    int64_t data_offset;         /* bytes before the first element */
    char path[4096];
    char error[4600]; /* after a call returned false: one line that begins with the path */
};

/* Which rows of an array a call means. `axis` is the axis that the rows lie along; `outer` is the
 * flattened index of all axes before it; a row is everything after it. In q (B, N, H, D) with axis
 * 1 and outer b, row i is the H*D numbers of position i in batch b. The rows are first, first +
 * stride, ... : count of them, stride >= 1; count 0 is allowed and touches nothing. A slice that
 * is not inside the array is an error. */
struct npy_slice {
    int axis;
    int64_t outer, first, stride, count;
};

/* Opens an existing file and checks all of its header and its size: a truncated file and one with
 * bytes after the data are refused. An array with an axis of length 0 opens; its reader decides. */
bool npy_open(struct npy *file, const char *path);

/* Opens a file that npy_create made, to write into it: several processes may share one file, each
 * with its own rows. Checks what npy_open does. A symbolic link is refused. */
bool npy_edit(struct npy *file, const char *path);

/* Creates a file of this type and shape and reserves its whole space on disk, so that a full disk
 * is found now and not after the computation. Whatever stands at the path already, a link too, is
 * left alone, and the call fails. The data are zero until written. No file is left on failure. */
bool npy_create(struct npy *file, const char *path, enum npy_type type, int dims,
                const int64_t *shape);

/* Reads the slice into out, count rows one after the other, converted to `as`: NPY_BOOL from a bool
 * file (a byte other than 0 or 1 is an error that names its index), NPY_FLOAT32 from float16 or
 * float32, NPY_FLOAT64 from any float type, NPY_INT64 from any integer type. Reads no byte of any
 * other row. */
bool npy_read(struct npy *file, struct npy_slice slice, enum npy_type as, void *out);

/* Writes count rows into the slice, converting from `as`: NPY_BOOL to bool; NPY_FLOAT32 or
 * NPY_FLOAT64 to any float type, rounded to nearest even (overflow becomes Inf); NPY_INT64 to any
 * integer type (a number that does not fit is an error; what comes before it may be written). */
bool npy_write(struct npy *file, struct npy_slice slice, enum npy_type as, const void *rows);

/* Closes, and reports a write error that the system kept until now. It does not wait for the disk
 * (no fsync). Closing twice, or after a failed open or create (fd is -1 then), is harmless. */
bool npy_close(struct npy *file);

/* Counts the elements of one row of this axis. */
int64_t npy_row_elements(const struct npy *file, int axis);

/* Counts the elements of the whole array. */
int64_t npy_elements(const struct npy *file);

/* Writes the index of a flat element, 0 <= element < npy_elements, as "[0, 17, 3, 5]" into text
 * (size bytes). */
void npy_index_text(const struct npy *file, int64_t element, char *text, int64_t size);

/* Returns integer number `index` of an array of this type in memory, as it lies in a file. */
int64_t npy_integer(enum npy_type type, const void *integers, int64_t index);

/* Returns the name of a type: "float32" and so on. */
const char *npy_type_name(enum npy_type type);

#endif
