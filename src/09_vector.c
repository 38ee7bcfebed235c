/* 09-vector: the same client, whose tiles are computed on vectors, by all processors of the machine.
 *
 * Chapter 09. New here: --tile and --threads. The library does the rest.
 */
#include "stage_client.h"

int main(int argc, char **argv)
{
    return stage_client(argc, argv, 9, "09-vector",
                        "The same attention, on vectors and by several threads.");
}
