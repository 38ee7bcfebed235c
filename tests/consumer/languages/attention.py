"""attention: NumPy calls libringattn, forward and backward, and compares with its own definition.

    python3 attention.py                                      one process
    python3 attention.py --threads 3                          a ring of threads
    mpirun --oversubscribe -n 4 python3 attention.py --mpi    on ranks, with mpi4py
"""
import sys

import numpy

from ring_attention import KEY_SIDE, QUERY_SIDE, Error, Plan, threads

B, N, H, G, D = 2, 37, 4, 2, 8
random = numpy.random.default_rng(1)
q, d_out = (random.standard_normal((B, N, H, D), numpy.float32) for _ in range(2))
k, v = (random.standard_normal((B, N, G, D), numpy.float32) for _ in range(2))


def naive(q, k, v, d_out):
    """o, lse, dq, dk, dv by the definition, causal, in float64. H / G query heads share keys."""
    q, d_out = (x.astype(float).reshape(B, N, G, H // G, D) for x in (q, d_out))
    k, v = k.astype(float), v.astype(float)
    s = numpy.einsum("bigrc,bjgc->bgrij", q, k) / D**0.5
    s[..., numpy.triu(numpy.full((N, N), True), 1)] = -numpy.inf
    lse = numpy.log(numpy.exp(s).sum(-1))
    p = numpy.exp(s - lse[..., None])
    o = numpy.einsum("bgrij,bjgc->bigrc", p, v)
    dp = numpy.einsum("bigrc,bjgc->bgrij", d_out, v)
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / D**0.5
    return (o.reshape(B, N, H, D), lse.reshape(B, H, N),
            numpy.einsum("bgrij,bjgc->bigrc", ds, k).reshape(B, N, H, D),
            numpy.einsum("bgrij,bigrc->bjgc", ds, q), numpy.einsum("bgrij,bigrc->bjgc", p, d_out))


def attend(ring):
    """Computes the rows of one rank of a ring. Returns how many they are, and the largest error."""
    with Plan(ring, batch=B, queries=N, heads=H, key_heads=G, dim=D, causal=True,
              layout="zigzag") as plan:
        rows, keys = plan.positions(QUERY_SIDE), plan.positions(KEY_SIDE)
        mine = q[:, rows], k[:, keys], v[:, keys]
        o, lse = plan.forward(*mine)
        dq, dk, dv = plan.backward(*mine, o, lse, d_out[:, rows])
    want = naive(q, k, v, d_out)
    want = (want[0][:, rows], want[1][..., rows], want[2][:, rows],
            want[3][:, keys], want[4][:, keys])
    off = [abs(x - y).max(initial=0) for x, y in zip((o, lse, dq, dk, dv), want)]
    return len(rows), numpy.max(off)  # NaN stays NaN


def main():
    """Runs the ranks, and reports."""
    comm = None
    if "--mpi" in sys.argv:
        from mpi4py import MPI
        comm = MPI.COMM_WORLD
    ranks = threads(int(sys.argv[2]), attend) if "--threads" in sys.argv else [attend(comm)]

    # All ranks of a ring get the same text when one of them is wrong; here every one is.
    try:
        Plan(comm, queries=N, heads=H, key_heads=3, dim=D)
        sys.exit("3 key heads for 4 heads were not refused")
    except Error as error:
        print(f"refused, as it should be: {error.status}: {error}")
    for count, worst in ranks:
        if not worst <= 1e-5:
            sys.exit(f"off by {worst}")
        print(f"{count} of {N} rows, within 1e-5 of the definition")


if __name__ == "__main__":
    main()
