"""rounding: how the error of o grows if a ring rounds it to bfloat16 at every hop. See 08-numbers."""
import numpy


def bfloat16(x):
    bits = x.astype(numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).view(numpy.float32)


def ring(q, k, v, P, rounded):
    """o after P hops, by the carry (o, top, total); o is a mean after each hop, and rounded then."""
    o, top, total = 0 * q, -numpy.inf, 0
    for keys, values in zip(numpy.split(k, P), numpy.split(v, P)):
        s = q @ keys.T / 8
        new = numpy.maximum(top, s.max(axis=1, keepdims=True))
        p = numpy.exp(s - new)
        old = total * numpy.exp(top - new)
        o = o * old + p @ values
        top, total = new, old + p.sum(axis=1, keepdims=True)
        o = bfloat16(o / total) if rounded else o / total
    return o


random = numpy.random.default_rng(0)
q, k, v = (bfloat16(random.normal(size=(1024, 64))) for _ in range(3))
exact = ring(*(x.astype(float) for x in (q, k, v)), 1, False)
print(" P   once  every hop  factor  sqrt((P + 1) / 2)")
for P in (1, 2, 4, 8, 16, 32):
    results = bfloat16(ring(q, k, v, P, False)), ring(q, k, v, P, True)
    once, often = (numpy.sqrt(((o - exact) ** 2).mean() / (exact**2).mean()) for o in results)
    print(f"{P:2} {once:.4f}     {often:.4f}    {often / once:.2f}               {((P + 1) / 2) ** 0.5:.2f}")
