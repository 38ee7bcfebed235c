/* Chapter 08, exercise 3: a client of its own, with the backward. */
int main(void)
{
    struct ra_config config = RA_CONFIG_INIT;
    config.queries = N, config.heads = H, config.dim = D;
    config.tile = RA_PLAIN_TILE;
    char error[RA_ERROR_SIZE];
    struct ra_plan *plan;
    if (ra_plan_create(&plan, &config, NULL, error) != RA_OK)
        exit(fprintf(stderr, "%s\n", error));
    struct ra_arrays x = RA_ARRAYS_INIT;
    x.q = load("build/lesson/problem/q.npy");
    x.k = load("build/lesson/problem/k.npy");
    x.v = load("build/lesson/problem/v.npy");
    x.o = ra_tensor_bnhd(calloc(NUMBERS, 4), RA_FLOAT32, N, H, D);
    x.lse = ra_tensor_bhn(calloc(N * H, 4), N, H);
    if (ra_forward(plan, &x) != RA_OK)
        exit(fprintf(stderr, "%s\n", ra_plan_error(plan)));
    save("build/mine/08-3/result/o.npy", x.o);

    /* dO, which is not o, and room for three results. */
    x.d_out = load("build/lesson/problem/do.npy");
    x.dq = ra_tensor_bnhd(calloc(NUMBERS, 4), RA_FLOAT32, N, H, D);
    x.dk = ra_tensor_bnhd(calloc(NUMBERS, 4), RA_FLOAT32, N, H, D);
    x.dv = ra_tensor_bnhd(calloc(NUMBERS, 4), RA_FLOAT32, N, H, D);
    if (ra_backward(plan, &x) != RA_OK)
        exit(fprintf(stderr, "%s\n", ra_plan_error(plan)));
    save("build/mine/08-3/result/dq.npy", x.dq);
    save("build/mine/08-3/result/dk.npy", x.dk);
    save("build/mine/08-3/result/dv.npy", x.dv);
    ra_plan_destroy(plan);
}
