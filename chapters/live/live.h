/* live: what the parts of the module behind live pictures share. */
#ifndef LIVE_H
#define LIVE_H

/* Returns the end of the memory that is taken; with `to`, gives back all that was taken since
 * live_heap returned that. */
void *live_heap(void *to);

/* A function that live.js calls by this name. */
#define EXPORT(name) __attribute__((export_name(#name)))

#endif
