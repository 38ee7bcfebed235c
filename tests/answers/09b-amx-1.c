/* Chapter 09b, exercise 1: right tiles of a matrix and of its transpose. */
static void shuffle(short matrix[K][C], short tile[K / 2][C][2])
{
    for (int p = 0; p < K / 2; p++)
        for (int c = 0; c < C; c++)
            for (int x = 0; x < 2; x++)
                tile[p][c][x] = matrix[2 * p + x][c];
}

static void turn(short matrix[C][K], short tile[K / 2][C][2])
{
    for (int p = 0; p < K / 2; p++)
        for (int c = 0; c < C; c++)
            for (int x = 0; x < 2; x++)
                tile[p][c][x] = matrix[c][2 * p + x];
}
