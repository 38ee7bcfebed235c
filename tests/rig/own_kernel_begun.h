/* Your kernel: o = softmax(scale q k^T) v for one head. A thread has a row of queries, and reads
 * every key and value from memory. */
__global__ void attend(numbers q, numbers k, numbers v, float *o, int n, float scale)
{
    int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    float max = -INFINITY, sum = 0, row[DIM] = {0};
    for (int j = 0; j < n; j++) {
        float s = 0;
        for (int c = 0; c < DIM; c++)
            s += scale * q[i * DIM + c] * k[j * DIM + c];
        float old = max;
        max = fmaxf(max, s);
        float rescale = expf(old - max), p = expf(s - max);
        sum = sum * rescale + p;
        for (int c = 0; c < DIM; c++)
            row[c] = row[c] * rescale + p * v[j * DIM + c];
    }
    for (int c = 0; c < DIM; c++)
        o[i * DIM + c] = row[c] / sum;
}
