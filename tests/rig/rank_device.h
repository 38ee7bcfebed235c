/* rank_device: which GPU a rank of a benchmark has.
 *
 * Scaffolding, like stage: no chapter teaches it.
 */
#ifndef RANK_DEVICE_H
#define RANK_DEVICE_H

/* Chooses a device for this rank of MPI_COMM_WORLD: one for each, as far as there are as many. If
 * some rank has none, ends all of them, and those without say so. Warns, once on each machine, where
 * ranks share: `shared` says what that means. All ranks call this together. */
void rank_device_choose(const char *program, const char *shared);

#endif
