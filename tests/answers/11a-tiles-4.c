__global__ void attend(numbers q, numbers k, numbers v, float *o, int n, float scale)
{
    __shared__ float keys[THREADS * DIM], values[THREADS * DIM];
    int i = blockIdx.x * THREADS + threadIdx.x, mine = threadIdx.x * DIM;
    float max = -INFINITY, sum = 0, row[DIM] = {0}, query[DIM] = {0};
    for (int c = 0; c < DIM && i < n; c++)
        query[c] = scale * q[i * DIM + c];
    for (int first = 0; first < n; first += THREADS) {
        int count = n - first < THREADS ? n - first : THREADS;
        for (int c = 0; c < DIM && (int)threadIdx.x < count; c++) {
            keys[mine + c] = k[first * DIM + mine + c];
            values[mine + c] = v[first * DIM + mine + c];
        }
        __syncthreads(); /* all rows are there */
        for (int j = 0; j < count; j++) {
            float s = 0;
            for (int c = 0; c < DIM; c++)
                s += query[c] * keys[j * DIM + c];
            float old = max;
            max = fmaxf(max, s);
            float rescale = expf(old - max), p = expf(s - max);
            sum = sum * rescale + p;
            for (int c = 0; c < DIM; c++)
                row[c] = row[c] * rescale + p * values[j * DIM + c];
        }
        __syncthreads(); /* all have read them */
    }
    for (int c = 0; c < DIM && i < n; c++)
        o[i * DIM + c] = row[c] / sum;
}
