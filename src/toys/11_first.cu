/* 11_first: chapter 11 as a toy: a kernel, and what the host does around it. Each thread has one
 * query; queries, keys and values are single numbers, and the keys and values those of 02_fold.
 */
#include <math.h>
#include <stdio.h>

enum { N = 6, M = 8, THREADS = 4 };

static const float queries[N] = {0, 1, 2, 3, -1, -2};
static const float keys[M] = {1, 3, 2, 5, 4, 5.5, 0, 2}, values[M] = {1, 2, 4, 3, 2, 5, 1, 4};

__global__ void attend(int n, const float *q, int m, const float *k, const float *v, float *o)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    float mu = -INFINITY, l = 0, u = 0;
    for (int j = 0; j < m; j++) {
        float s = q[i] * k[j], old_mu = mu;
        mu = fmaxf(mu, s);
        float rho = expf(old_mu - mu), p = expf(s - mu);
        l = rho * l + p;
        u = rho * u + p * v[j];
    }
    o[i] = u / l;
}

/* A copy of an array, in the GPU's memory. */
static float *on_gpu(const float *array, size_t bytes)
{
    float *copy;
    cudaMalloc(&copy, bytes);
    cudaMemcpy(copy, array, bytes, cudaMemcpyHostToDevice);
    return copy;
}

int main(void)
{
    float outputs[N] = {0}, *o = on_gpu(outputs, sizeof outputs);
    const float *q = on_gpu(queries, sizeof queries);
    const float *k = on_gpu(keys, sizeof keys), *v = on_gpu(values, sizeof values);

    int blocks = (N + THREADS - 1) / THREADS;
    attend<<<blocks, THREADS>>>(N, q, M, k, v, o);

    cudaError_t error = cudaMemcpy(outputs, o, sizeof outputs, cudaMemcpyDeviceToHost);
    printf("%d blocks of %d threads: %s\n", blocks, THREADS, cudaGetErrorString(error));
    for (int i = 0; i < N; i++)
        printf("block %d  thread %d  q %2.0f  o %.4f\n", i / THREADS, i % THREADS, queries[i],
               outputs[i]);
    return error != cudaSuccess;
}
