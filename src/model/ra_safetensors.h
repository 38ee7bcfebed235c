/* ra_safetensors: weights in .safetensors files, read and written.
 *
 * Chapter 10. A file is eight bytes, the length of its header, little-endian; the header, a JSON
 * object
 *
 *     {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
 *
 * maybe with texts by name in "__metadata__", and with spaces behind it; then the numbers,
 * little-endian, row by row, one array behind the other without holes. A large model is in several
 * files, its shards; model.safetensors.index.json says which array is in which.
 *
 * Numbers are read where they shall be, in pieces: no file is ever in memory as a whole. Nor is it
 * mapped there, where a file that another program cuts short would end this one.
 */
#ifndef RA_SAFETENSORS_H
#define RA_SAFETENSORS_H

#include <stdbool.h>
#include <stdint.h>
#include "ra_status.h"

enum ra_stored_type { RA_STORED_F64, RA_STORED_F32, RA_STORED_F16, RA_STORED_BF16 };

/* An array: a scalar has no axes. */
struct ra_stored {
    const char *name;
    enum ra_stored_type type;
    int axes;
    int64_t shape[8], count; /* numbers in all */
    int file;                /* which of the files, and where in it */
    int64_t offset;
};

/* All arrays of a folder, by name in the order of strcmp. */
struct ra_safetensors {
    struct ra_stored *stored;
    int64_t count;
    struct ra_safetensors_file *files; /* for the functions below */
    int file_count;
};

/* Tells whether a folder has this name, which may be a link that leads nowhere. RA_INVALID: that
 * cannot be told, as on a disk that fails, and is not the same as no. */
RA_CHECKED enum ra_status ra_safetensors_look(const char *path, bool *there,
                                              char error[RA_ERROR_SIZE]);

/* Opens FOLDER/model.safetensors, or all shards that FOLDER/model.safetensors.index.json names, and
 * reads their headers. RA_INVALID, and nothing is open, if a file is not what it must be, or an
 * array stands in two of them, or the index and the files differ: the text names file and array. */
RA_CHECKED enum ra_status ra_safetensors_open(struct ra_safetensors *tensors, const char *folder,
                                              char error[RA_ERROR_SIZE]);
void ra_safetensors_close(struct ra_safetensors *tensors);

/* Opens one file by its path. */
RA_CHECKED enum ra_status ra_safetensors_open_file(struct ra_safetensors *tensors, const char *path,
                                                   char error[RA_ERROR_SIZE]);

/* Finds an array. NULL: there is none of this name. */
const struct ra_stored *ra_safetensors_find(const struct ra_safetensors *tensors, const char *name);

/* Returns the path of the file that has an array, for errors. */
const char *ra_safetensors_path(const struct ra_safetensors *tensors,
                                const struct ra_stored *stored);

/* Reads all numbers of an array; of F64 the nearest of float32. */
RA_CHECKED enum ra_status ra_safetensors_read(const struct ra_safetensors *tensors,
                                              const struct ra_stored *stored, float *numbers,
                                              char error[RA_ERROR_SIZE]);

/* An array to be written. */
struct ra_to_store {
    char name[80];
    int axes;
    int64_t shape[2];
    const float *numbers;
};

/* Writes arrays, in the order of their names, into a folder in which nothing has these names:
 * model.safetensors; or, if they have more than `most` bytes (0: never), shards of at most that,
 * or of one array, and their index. `type` is RA_STORED_F32 or RA_STORED_BF16, to which numbers are
 * rounded, to nearest even; one that would become infinite is an error. `metadata` adds
 * {"format": "pt"}, by which transformers knows its files. The list is sorted. */
RA_CHECKED enum ra_status ra_safetensors_write(const char *folder, struct ra_to_store *list,
                                               int64_t count, enum ra_stored_type type,
                                               int64_t most, bool metadata,
                                               char error[RA_ERROR_SIZE]);

#endif
