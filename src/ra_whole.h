/* ra_whole: a file or a folder that appears whole or not at all.
 *
 * Common ground, first used in chapter 10. Until it is whole it is hidden beside its final name:
 *
 *     .NAME.0123456789abcdef/new     what is being written, a file or a folder
 *     .NAME.0123456789abcdef/lock    locked for as long as its writer lives
 *
 * The digits are random, so two writers never share them, whichever machines they run on. The
 * system unlocks the lock however the writer ends. A hidden folder without a locked lock was left
 * by a writer that was killed, and the next writer of that name removes it. On the way no symbolic
 * link is followed.
 */
#ifndef RA_WHOLE_H
#define RA_WHOLE_H

#include <stdint.h>
#include "ra_status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How it is written. */
enum {
    RA_WHOLE_FOLDER = 1, /* a folder, not a file */
    RA_WHOLE_NEW = 2,    /* nothing may have its name before */
    RA_WHOLE_ALONE = 4,  /* refused while another run writes the same */
    RA_WHOLE_HASTY = 8   /* does not wait for the disk, so a loss of power can lose it */
};

enum { RA_WHOLE_PATH = 4096 }; /* characters of a path, its final 0 included */

struct ra_whole {
    char path[RA_WHOLE_PATH]; /* where to write it: at first nothing is there */
    int64_t number;           /* the random digits, by which other ranks find it */

    /* For the functions below. */
    char final[RA_WHOLE_PATH];  /* its name, links resolved */
    char hidden[RA_WHOLE_PATH]; /* the hidden folder; "" when there is none */
    const char *const *replaces;
    unsigned how;
    int lock;
};

/* Makes the hidden folder beside `path`, which may be a link to where the file shall be, and locks
 * it; removes what killed writers of this name have left. It fails if the result could not get its
 * name: if `path` is of the other kind, or a folder that is mounted, or that of the running
 * program, or that holds more than what may be replaced. `replaces` are patterns, ended by NULL, of
 * what an earlier folder may hold, such as "loss.npy" and "gradients/?*.npy"; NULL: it must be
 * empty. `error` has RA_ERROR_SIZE characters and names the path. */
RA_CHECKED enum ra_status ra_whole_begin(struct ra_whole *whole, const char *path, unsigned how,
                                         const char *const *replaces, char *error);

/* Finds on another rank what one rank has begun, by its number: fills in path and hidden. Every
 * rank may write there; only the one that began publishes. */
RA_CHECKED enum ra_status ra_whole_join(struct ra_whole *whole, const char *path, unsigned how,
                                        int64_t number, char *error);

/* Gives what was written its name, in one step, when all of it is on the disk. All its files must
 * be closed. What had the name before is gone then; on an error it is still there. If something
 * that may not be replaced has taken the name since ra_whole_begin, `error` says under which name
 * the new one is kept. What replaces another takes over its owner and permissions. Afterwards
 * `path` is free again, and the next version may be written there. */
RA_CHECKED enum ra_status ra_whole_publish(struct ra_whole *whole, char *error);

/* Removes what is hidden. A signal handler may call this, and whoever has ended, joined or zeroed
 * it. */
void ra_whole_end(struct ra_whole *whole);

/* Forgets it and removes nothing, as other ranks must before the first one publishes. */
void ra_whole_forget(struct ra_whole *whole);

#ifdef __cplusplus
}
#endif

#endif
