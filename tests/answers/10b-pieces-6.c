static void relu2_forward(int64_t count, const float *x, float *y)
{
    for (int64_t i = 0; i < count; i++)
        y[i] = x[i] > 0 ? x[i] * x[i] : 0;
}

static void relu2_backward(int64_t count, const float *x, const float *dy, float *dx)
{
    for (int64_t i = 0; i < count; i++)
        dx[i] = x[i] > 0 ? 2 * x[i] * dy[i] : 0;
}
