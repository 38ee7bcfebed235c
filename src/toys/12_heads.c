/* 12_heads: page 12b as a toy: rows of all heads become all rows of some heads, and rows again.
 * In between each head adds up its numbers, token by token, which takes the rows of all ranks.
 */
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>

enum { TOKENS = 8, HEADS = 4, MOST = TOKENS * HEADS };

/* This rank's rows to a message, rank after rank: of each row the heads of that rank. Or back. */
static void pack(bool packs, int ranks, int *rows, int *message)
{
    int n = TOKENS / ranks, own = HEADS / ranks;
    for (int r = 0; r < ranks; r++)
        for (int a = 0; a < n; a++)
            for (int h = 0; h < own; h++, message++) {
                int *number = &rows[a * HEADS + r * own + h];
                if (packs)
                    *message = *number;
                else
                    *number = *message;
            }
}

/* Inwards, from rows of all heads to all rows of this rank's heads, or outwards, back. What comes
 * is in order already: rank after rank, and so token after token. */
static void exchange(bool inwards, int ranks, int *rows, int *heads)
{
    int message[MOST], count = TOKENS / ranks * (HEADS / ranks);
    if (inwards)
        pack(true, ranks, rows, message);
    MPI_Alltoall(inwards ? message : heads, count, MPI_INT, inwards ? heads : message, count,
                 MPI_INT, MPI_COMM_WORLD);
    if (!inwards)
        pack(false, ranks, rows, message);
}

/* On one of the ranks. */
static void print(int rank, int ranks, const char *name, const int *numbers, int count)
{
    if (rank != 1 % ranks)
        return;
    printf("%-26s", name);
    for (int i = 0; i < count; i++)
        printf("%5d", numbers[i]);
    printf("\n");
}

int main(int argc, char **argv)
{
    int ranks, rank, rows[MOST], heads[MOST];
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int n = TOKENS / ranks, own = HEADS / ranks;

    /* Head h of token t has the number 10 t + h. */
    for (int i = 0; i < n * HEADS; i++)
        rows[i] = 10 * (rank * n + i / HEADS) + i % HEADS;
    print(rank, ranks, "my rows of all heads", rows, n * HEADS);
    exchange(true, ranks, rows, heads);
    print(rank, ranks, "all rows of my heads", heads, TOKENS * own);
    for (int i = own; i < TOKENS * own; i++)
        heads[i] += heads[i - own];
    print(rank, ranks, "added up", heads, TOKENS * own);
    exchange(false, ranks, rows, heads);
    print(rank, ranks, "my rows of all heads", rows, n * HEADS);
    MPI_Finalize();
}
