/* Adds up this rank's part of a piece, in the order of ranks. */
static void add(int me, float *own, const float sent[])
{
    float sum = 0;
    for (int r = 0; r < RANKS; r++) {
        float number = r == me ? *own : sent[r];
        sum = r == 0 ? number : sum + number;
    }
    *own = sum;
}
