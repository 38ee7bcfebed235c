#!/usr/bin/env python3
"""finite_difference: are the gradients of a program the slopes of its own forward?

    finite_difference.py build/01-naive

The loss is sum(o * do) + sum(lse * d_lse). For every element x of q, k and v, the gradient that the program wrote (dq,
dk, dv) is held against the slope of the loss at x, by the five-point formula

    slope = (8 (loss(x + h) - loss(x - h)) - (loss(x + 2h) - loss(x - 2h))) / 12h

This needs no second implementation: it trusts the forward (which tests/rig/oracle.py judges) and
nothing else. One run of the program serves a whole configuration, because batches are independent:
the batch axis holds the problem itself and then a copy of it for every element and every step.

The tolerance. A program in double rounds its losses to about 1e-16 of the terms added, so a slope
to about 1e-16 / h = 1e-12. The formula itself errs by h^4 / 30 times the fifth derivative: h^4 is
4e-15, and the fifth derivative about (the largest change of a score per unit of x)^5, 1e4 for the
wildest scores here. Both are below 1e-10 of the largest slope, or of 1 if all are less. The
tolerance is a hundred times that: 1e-8. A wrong term shows as 1e-3 or more.
"""
import os
import subprocess
import sys
import tempfile

import numpy as np

H_STEP = 2.0**-12  # h
STEPS = (1, -1, 2, -2)  # in h
WEIGHTS = (8, -8, -1, 1)  # of the losses at these steps, over 12 h
TOLERANCE = 1e-8  # of the largest slope or of 1, whichever is more


def configurations():
    """Name, flags, (B, N, M, H, G, D), score factor, and the other files."""
    some = np.array([[1, 0, 1, 1, 0, 1, 1], [0, 0, 1, 0, 1, 1, 0]], bool)
    one_batch_hidden = np.array([[1, 0, 1, 1, 0, 1], [0, 0, 0, 0, 0, 0]], bool)
    first_hidden = np.array([[0, 0, 1, 1, 1]], bool)
    tail_hidden = np.array([[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0, 0]], bool)
    extras = {"sink": np.array([1, -0.5]), "slopes": np.array([0.25, -0.125]), "d_lse": 1.5}
    slices = np.array([(0, 3, 0, 2, -2**61, 2**61), (1, 6, 2, 6, -2, 1), (1, 4, 3, 6, 2, 3)])
    return (
        ("plain", "", (2, 5, 5, 2, 2, 3), 1, {}),
        ("one query, one key", "", (1, 1, 1, 1, 1, 2), 1, {}),
        ("cross, fewer queries", "", (1, 4, 7, 2, 2, 3), 1, {}),
        ("cross, more queries", "", (1, 7, 4, 2, 2, 3), 1, {}),
        ("causal", "--causal", (2, 6, 6, 2, 2, 3), 1, {}),
        ("causal, N < M", "--causal", (1, 4, 7, 2, 2, 3), 1, {}),
        ("causal, N > M: rows that see nothing", "--causal", (1, 7, 4, 2, 2, 3), 1, {}),
        ("lookback 0", "--causal --lookback 0", (1, 5, 5, 2, 2, 3), 1, {}),
        ("lookback 2, N < M", "--causal --lookback 2", (1, 5, 8, 2, 2, 3), 1, {}),
        ("key mask", "", (2, 5, 7, 2, 2, 3), 1, {"mask": some}),
        ("key mask that hides a whole batch", "", (2, 4, 6, 2, 2, 3), 1, {"mask": one_batch_hidden}),
        ("causal, first keys hidden", "--causal", (1, 5, 5, 2, 2, 3), 1, {"mask": first_hidden}),
        ("grouped heads", "", (1, 5, 6, 4, 2, 3), 1, {}),
        ("interleaved heads", "--head-map interleaved", (1, 5, 6, 4, 2, 3), 1, {}),
        ("one key/value head", "--causal", (1, 5, 5, 3, 1, 3), 1, {}),
        ("soft cap", "--softcap 2", (1, 5, 6, 2, 2, 3), 2, {}),
        ("scale", "--scale 0.3", (1, 5, 6, 2, 2, 3), 1, {}),
        ("negative scale", "--scale -0.7", (1, 5, 6, 2, 2, 3), 1, {}),
        ("larger scores", "", (1, 5, 6, 2, 2, 3), 4, {}),
        ("all together", "--causal --lookback 3 --softcap 5 --scale 0.4 --head-map interleaved",
         (2, 5, 7, 4, 2, 3), 4, {"mask": tail_hidden}),
        ("slices", "", (2, 7, 6, 2, 2, 3), 1, {"slices": slices}),
        ("sink, slopes, gradient of lse", "--softcap 3", (2, 5, 7, 2, 2, 3), 1, extras),
        ("the same, causal", "--causal", (2, 7, 5, 2, 2, 3), 1, extras),
        ("slices, key mask", "--softcap 3", (2, 7, 7, 4, 2, 3), 1, {"mask": some, "slices": slices}),
    )


def make_problem(shape, factor):
    """Lopsided q, k, v, do as float64, on a grid so coarse that x +- 2h is exact in float32."""
    B, N, M, H, G, D = shape
    numbers = np.random.default_rng(20240229)

    def array(low, high, *lengths):
        return numbers.integers(low, high, lengths) / 1024

    # factor is a power of two, so that q stays on the grid.
    return {"q": factor * array(-1200, 1800, B, N, H, D), "k": array(-1900, 1300, B, M, G, D),
            "v": array(-1000, 3000, B, M, G, D), "do": array(-1700, 2500, B, N, H, D)}


def run(program, flags, problem, others):
    """Runs the program on these arrays and returns its o, dq, dk, dv, by name."""
    with tempfile.TemporaryDirectory() as folder:
        source, result = os.path.join(folder, "problem"), os.path.join(folder, "result")
        os.mkdir(source)
        for name, array in problem.items():
            rounded = array.astype(np.float32)
            assert (rounded == array).all(), f"{name} is not exact in float32"
            np.save(os.path.join(source, name + ".npy"), rounded)
        for name, array in others.items():
            float64 = array.dtype == np.float64
            np.save(os.path.join(source, name + ".npy"), array.astype(np.float32) if float64 else array)
        done = subprocess.run([program, *flags.split(), source, result], timeout=600,
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"exit status {done.returncode}: {done.stderr.strip()}")

        # Slopes of float32 losses would be noise.
        arrays = {name: np.load(os.path.join(result, name + ".npy"))
                  for name in ("o", "lse", "dq", "dk", "dv")}
        for name, array in arrays.items():
            if array.dtype != np.float64:
                raise RuntimeError(f"{name} is {array.dtype}; this test needs float64 results")
        return arrays


def worst_difference(program, flags, shape, factor, others):
    """Returns (elements compared, worst |gradient - slope|, largest |slope|)."""
    base = make_problem(shape, factor)
    B = shape[0]
    elements = [(name, b, place) for name in "qkv" for b in range(B)
                for place in range(base[name][b].size)]

    # The batch axis: the problem, then for every element one copy of its batch per step.
    copied = [b for _, b, _ in elements for _ in STEPS]
    batches = list(range(B)) + copied
    problem = {name: array[batches] for name, array in base.items()}
    for e, (name, _, place) in enumerate(elements):
        for s, step in enumerate(STEPS):
            problem[name][B + e * len(STEPS) + s].flat[place] += step * H_STEP
    others = dict(others)
    d_lse = np.full((B, shape[3], shape[1]), others.pop("d_lse", 0.0))
    d_lse[:, :, ::2] *= -0.5
    others = {name: array[batches] if name == "mask" else array for name, array in others.items()}
    if d_lse.any():
        others["d_lse"] = d_lse[batches]
    result = run(program, flags, problem, others)

    # -inf - -inf: a row that sees nothing has no slope.
    result["lse"] = np.where(result["lse"] > -np.inf, result["lse"], 0)

    # The losses are subtracted element by element and then summed, so that what did not change
    # cancels before it can round.
    worst, largest = 0.0, 0.0
    for e, (name, b, place) in enumerate(elements):
        first = B + e * len(STEPS)
        change = {array: sum(weight * (result[array][first + s] - result[array][b])
                             for s, weight in enumerate(WEIGHTS)) for array in ("o", "lse")}
        slope = ((change["o"] * base["do"][b]).sum() + (change["lse"] * d_lse[b]).sum()) / (12 * H_STEP)
        gradient = result["d" + name][b].flat[place]
        # A NaN must not be lost in a comparison: it counts as infinitely wrong.
        difference = abs(gradient - slope)
        worst = max(worst, difference if np.isfinite(difference) else np.inf)
        largest = max(largest, abs(slope))
    return len(elements), worst, largest


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__, file=sys.stdout if sys.argv[1:] == ["--help"] else sys.stderr)
        return 0 if sys.argv[1:] == ["--help"] else 2
    program = os.path.abspath(sys.argv[1])
    passed = failed = 0
    for name, flags, shape, factor, others in configurations():
        try:
            count, worst, largest = worst_difference(program, flags, shape, factor, others)
            allowed = TOLERANCE * max(1.0, largest)
            # Slopes of 0 throughout would agree with gradients that were never computed.
            good = worst <= allowed < np.inf and largest > 0
            print(f"{'passed' if good else 'FAILED'}  {name}: {count} gradients up to "
                  f"{largest:.2g}, worst difference {worst:.1e}, allowed {allowed:.1e}")
        except (RuntimeError, OSError, ValueError, subprocess.SubprocessError) as error:
            good = False
            print(f"FAILED  {name}: {error}")
        passed, failed = passed + good, failed + (not good)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
