/* o has n rows of D floats; lse and, with a backward, delta have n floats; each thread has SCRATCH
 * bytes. Returns how many bytes all of it takes. */
static int64_t lay_out(char *start, int64_t n, bool backward, int threads, struct arrays *arrays)
{
    struct ra_arena arena = {start, 64, 0};
    int64_t row_bytes = n * (int64_t)sizeof(float);
    arrays->o = ra_arena_take(&arena, D * row_bytes);
    arrays->lse = ra_arena_take(&arena, row_bytes);
    arrays->delta = backward ? ra_arena_take(&arena, row_bytes) : NULL;
    for (int t = 0; t < threads; t++)
        arrays->scratch[t] = ra_arena_take(&arena, SCRATCH);
    return arena.used;
}
