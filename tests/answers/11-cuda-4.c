__global__ void attend(int n, const float *q, int m, const float *k, const float *v, float *o)
{
    int step = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
        float mu = -INFINITY, l = 0, u = 0;
        for (int j = 0; j < m; j++) {
            float s = q[i] * k[j], old_mu = mu;
            mu = fmaxf(mu, s);
            float rho = expf(old_mu - mu), p = expf(s - mu);
            l = rho * l + p;
            u = rho * u + p * v[j];
        }
        o[i] += u / l;
    }
}
