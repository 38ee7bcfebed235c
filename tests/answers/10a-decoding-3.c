/* Chapter 10, Decoding, exercise 3: two means, weighted by their shares of the sum. */
void combine_means(int64_t D, float lse_from, const float *o_from, float *lse_to, float *o_to)
{
    float max = lse_from > *lse_to ? lse_from : *lse_to;
    if (max == -INFINITY) /* neither has seen a key */
        return;
    float a = expf(lse_from - max), b = expf(*lse_to - max), sum = a + b;
    for (int64_t c = 0; c < D; c++)
        o_to[c] = (a * o_from[c] + b * o_to[c]) / sum;
    *lse_to = max + logf(sum);
}
