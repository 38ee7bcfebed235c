#!/usr/bin/env python3
"""model_compare: is the result of a model as near to the truth as float32 can be?

    model_compare.py TRUTH RESULT [--tolerance X]

Both are folders with logits.npy, loss.npy and gradients/NAME.npy, as tests/rig/model_oracle.py
writes them. The error of an array is max |truth - result| / max |truth|, 0 if both are 0
throughout. NaN or Inf, another shape, and a file that only one folder has, fail.

The tolerance, 2e-5 unless given. A float32 program rounds each operation by at most u = 2^-24 =
6e-8 of its result. What reaches a gradient has gone through some hundreds of such operations, one
behind the other: a few sums of dim, N or V terms per layer, forward and backward, whose errors add
like a random walk, so as the root of their number: about sqrt(1000) u = 2e-6. Norms, softmax and
differences such as dp - D amplify that by what cancels in them, a factor of a few; ten is allowed.
A wrong term, a head, key or label in the wrong place, or a sum that lacks a rank shows as 1e-3 or
more of the array.
"""
import argparse
import os
import sys

import numpy as np


def files(folder):
    """The arrays of a result, by their paths inside it."""
    inner = os.path.join(folder, "gradients")
    paths = ["logits.npy", "loss.npy"]
    if os.path.isdir(inner):
        paths += [os.path.join("gradients", name) for name in os.listdir(inner)]
    return {path for path in paths if os.path.exists(os.path.join(folder, path))}


def error_of(truth, result):
    """The error as a number, or a text that says what is wrong."""
    if truth.shape != result.shape:
        return f"has shape {result.shape}, the truth {truth.shape}"
    if not (np.issubdtype(result.dtype, np.floating) and np.issubdtype(truth.dtype, np.floating)):
        return f"is {result.dtype}, the truth {truth.dtype}: must be floats"
    if not np.isfinite(truth).all():
        return "the truth holds NaN or Inf"
    if not np.isfinite(result).all():
        return "holds NaN or Inf"
    worst = np.abs(truth.astype(np.float64) - result).max(initial=0)
    largest = np.abs(truth).max(initial=0)
    if worst == 0:
        return 0.0
    return float(worst / largest) if largest > 0 else "is not 0, the truth is 0 throughout"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("truth", metavar="TRUTH")
    parser.add_argument("result", metavar="RESULT")
    parser.add_argument("--tolerance", type=float, default=2e-5, metavar="X",
                        help="2e-5 unless given")
    options = parser.parse_args()
    if not 0 <= options.tolerance < 1:
        parser.error(f"--tolerance {options.tolerance}: must be from 0 to less than 1")

    passed = failed = 0
    here, there = files(options.truth), files(options.result)
    for path in sorted(here | there | {"logits.npy", "loss.npy"}):
        if path not in here or path not in there:
            found = f"is not in {options.truth if path not in here else options.result}"
        else:
            try:
                found = error_of(*(np.load(os.path.join(folder, path), allow_pickle=False)
                                   for folder in (options.truth, options.result)))
            except (OSError, ValueError, EOFError) as error:
                found = f"cannot be read: {error}"
        good = isinstance(found, float) and found <= options.tolerance
        print(f"{'passed' if good else 'FAILED'}  {path}: "
              f"{found if isinstance(found, str) else f'error {found:.1e}'}")
        passed, failed = passed + good, failed + (not good)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
