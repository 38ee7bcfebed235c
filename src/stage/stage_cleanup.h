/* stage_cleanup: what must go if the program ends before its results have their names. */
#ifndef STAGE_CLEANUP_H
#define STAGE_CLEANUP_H

#include "ra_whole.h"

/* Notes something unfinished, of four at most, which must live until the program ends. */
void stage_cleanup_add(struct ra_whole *whole);

/* Removes all that was noted. */
void stage_cleanup_now(void);

/* Removes them at exit, too, and on SIGINT, SIGTERM and their like, from the first call on. */
void stage_cleanup_begin(void);

/* Ignores these signals until stage_cleanup_begin is called again: it is too late for them. */
void stage_cleanup_end(void);

/* Forgets all that was noted, and removes nothing: it is another rank's from here on. */
void stage_cleanup_forget(void);

#endif
