/* 08-library: the same attention, and not a line of it here: a client of libringattn.
 *
 * Chapter 08. New here: a config, a plan, two calls, in stage_client.c. What the stages before had in
 * their own drivers is behind ring_attention_mpi.h, and the client sees nothing else of it.
 */
#include "stage_client.h"

int main(int argc, char **argv)
{
    return stage_client(argc, argv, 8, "08-library",
                        "The same attention, computed by the library.");
}
