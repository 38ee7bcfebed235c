/* stage_client: a stage program that is a client of the library: a config, a link, a plan, two calls.
 *
 * Scaffolding, like stage: it sees the headers that are installed, and no other of the library.
 */
#ifndef STAGE_CLIENT_H
#define STAGE_CLIENT_H

/* The whole of stage 08 and of stage 09, which differ in the flags that they know and in their defaults.
 * Returns the exit code. */
int stage_client(int argc, char **argv, int number, const char *program, const char *about);

#endif
