/* stage_inputs: the problem: its files, their shapes, and this rank's rows of them. */
#ifndef STAGE_INPUTS_H
#define STAGE_INPUTS_H

#include <limits.h>
#include <stdbool.h>

struct stage;

enum stage_input {
    STAGE_Q,
    STAGE_K,
    STAGE_V,
    STAGE_D_OUT,
    STAGE_MASK,
    STAGE_SLICES,
    STAGE_SINK,
    STAGE_SLOPES,
    STAGE_D_LSE,
    STAGE_INPUTS
};

/* The names of their files, without .npy. */
extern const char *const stage_input_names[STAGE_INPUTS];

/* Tells whether this program knows what chapter 13 adds to a problem: slices, sink, slopes,
 * d_lse. */
bool stage_knows_slices(const struct stage *stage);

/* Tells whether the problem has this input. */
bool stage_has(const struct stage *stage, enum stage_input input);

/* Opens a file of slices that belongs to no problem, as an input of a program without one. */
void stage_open_slices(struct stage *stage, const char *path);

/* Writes FOLDER/NAME.npy, or ends the program if that is longer than a path may be: cut, it would
 * be another file, or one that is not there. */
void stage_input_path(const struct stage *stage, const char *folder, const char *name,
                      char path[PATH_MAX]);

/* Opens and checks the files of the problem, and takes its shape. */
void stage_open_inputs(struct stage *stage, const char *folder);

/* Ends all ranks unless their files of the problem have the same types, and the same bytes at some
 * places. */
void stage_agree_inputs(const struct stage *stage);

/* Reads this rank's rows of an input into the caller's memory: q and do (B, n, H, D), k and v (B,
 * m, G, D), as float32; mask (B, m), as bool. A NaN or Inf in them ends the program. */
void stage_read(struct stage *stage, enum stage_input input, void *rows);

/* Reads this rank's rows of an input, as stage_read does, into memory from stage_allocate. */
float *stage_input(struct stage *stage, enum stage_input input);

/* Reads this rank's mask (B, m) into memory from stage_allocate; NULL if the problem has none. */
bool *stage_mask(struct stage *stage);

/* Reads the numbers (H) of sink or slopes, or this rank's d_lse (B, H, n), into memory from
 * stage_allocate; NULL if the problem has none. */
float *stage_heads(struct stage *stage, enum stage_input input);
float *stage_d_lse(struct stage *stage);

/* Reads this rank's keys into one message of the ring: k (B, m, G, D), v, then the mask (B, m) if
 * there is one. */
void stage_read_keys(struct stage *stage, float *message);

#endif
