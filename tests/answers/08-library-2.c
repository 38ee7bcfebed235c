/* Chapter 08, exercise 2: a client of its own, with the backward. */
int main(void)
{
    struct ra_config config = RA_CONFIG_INIT;
    config.queries = N, config.heads = H, config.dim = D;
    config.tile = RA_PLAIN_TILE;
    char error[RA_ERROR_SIZE];
    struct ra_plan *plan;
    if (ra_plan_create(&plan, &config, NULL, error) != RA_OK)
        exit(fprintf(stderr, "%s\n", error));
    struct ra_arrays arrays = RA_ARRAYS_INIT;
    arrays.q = load("build/lesson/problem/q.npy");
    arrays.k = load("build/lesson/problem/k.npy");
    arrays.v = load("build/lesson/problem/v.npy");
    arrays.o = ra_tensor_bnhd(calloc(NUMBERS, 4), RA_FLOAT32, N, H, D);
    arrays.lse = ra_tensor_bhn(calloc(N * H, 4), N, H);
    if (ra_forward(plan, &arrays) != RA_OK)
        exit(fprintf(stderr, "%s\n", ra_plan_error(plan)));
    save("build/mine/08-3/result/o.npy", arrays.o);

    /* dO, which is not o, and room for three results. */
    arrays.d_out = load("build/lesson/problem/do.npy");
    arrays.dq = ra_tensor_bnhd(calloc(NUMBERS, 4), RA_FLOAT32, N, H, D);
    arrays.dk = ra_tensor_bnhd(calloc(NUMBERS, 4), RA_FLOAT32, N, H, D);
    arrays.dv = ra_tensor_bnhd(calloc(NUMBERS, 4), RA_FLOAT32, N, H, D);
    if (ra_backward(plan, &arrays) != RA_OK)
        exit(fprintf(stderr, "%s\n", ra_plan_error(plan)));
    save("build/mine/08-3/result/dq.npy", arrays.dq);
    save("build/mine/08-3/result/dk.npy", arrays.dk);
    save("build/mine/08-3/result/dv.npy", arrays.dv);
    ra_plan_destroy(plan);
}
