/* 03_circle: the obvious ring of chapter 03, which hangs with long messages: 03_circle BYTES. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rank, ranks, bytes = argc == 2 ? atoi(argv[1]) : 1000;
    char *mine = calloc((size_t)bytes, 1), *theirs = calloc((size_t)bytes, 1);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    /* To the right, then from the left. */
    MPI_Send(mine, bytes, MPI_BYTE, (rank + 1) % ranks, 0, MPI_COMM_WORLD);
    MPI_Recv(theirs, bytes, MPI_BYTE, (rank + ranks - 1) % ranks, 0, MPI_COMM_WORLD,
             MPI_STATUS_IGNORE);
    if (rank == 0)
        printf("%d bytes went round\n", bytes);

    MPI_Finalize();
    free(mine);
    free(theirs);
    return 0;
}
