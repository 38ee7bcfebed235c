"""halves: judges a program that makes float16 of the float32 on its stdin. See 08-numbers, exercise 3.

    python3 tests/rig/halves.py PROGRAM
"""
import subprocess
import sys
import numpy

halves = numpy.arange(1 << 16, dtype=numpy.uint16).view(numpy.float16).astype(numpy.float32)
bits = halves.view(numpy.uint32)
ties = [bits + shift for shift in (0, 1, 0xFFF, 0x1000, 0x1001)]
small = numpy.random.default_rng(0).integers(0, 0x38800000, 1 << 18, dtype=numpy.uint32)
others = numpy.random.default_rng(1).integers(0, 1 << 32, 1 << 19, dtype=numpy.uint32)
numbers = numpy.concatenate(ties + [small, others]).view(numpy.float32)
with numpy.errstate(over="ignore"):
    wanted = numbers.astype(numpy.float16)
out = subprocess.run(sys.argv[1], input=numbers.tobytes(), stdout=subprocess.PIPE).stdout
got = numpy.frombuffer(out, numpy.float16)
wrong = (got.view(numpy.uint16) != wanted.view(numpy.uint16)) & ~(numpy.isnan(got) & numpy.isnan(wanted))
print(f"{wrong.sum()} of {len(numbers)} are wrong")
for i in numpy.flatnonzero(wrong)[:3]:
    print(f"  {numbers[i]!r} became {got[i]!r}, not {wanted[i]!r}")
sys.exit(int(wrong.any()))
