#!/usr/bin/env python3
"""slices_table: the masks that people ask for, as slices, in every layout on 1 to 8 ranks: how far
13-slices is from the definition, what it sends, and how even its work is.

    slices_table.py BUILD [--ranks P,P,...]

Of each mask in each layout the worst error of o, lse, dq, dk and dv over all numbers of ranks; the worst
of them as a share of what tests/rig/oracle.py allows (above 1 is wrong); then of the largest ring: bytes
sent, forward and backward, by all ranks, and the work of the busiest rank, the mean being 1. All is left
in BUILD/slices-table. The last line is "N passed, N failed"; one test is a mask in a layout.
"""
import argparse
import os
import sys

import numpy as np

sys.dont_write_bytecode = True  # nothing that is built lies outside BUILD
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "rig"))
import folders
import jobs
import oracle

N, M, H, G, D = 203, 157, 4, 2, 16  # M: only of cross-attention
ENDS = (0, 5, 22, 23, 90, 150, N)
KEY_ENDS = (0, 30, 31, 60, 61, 100, M)
FAR = 2**61
LAYOUTS = {"contiguous": "--layout contiguous", "striped": "--layout striped", "zigzag": "--layout zigzag",
           "by document": "--deal documents"}


def masks():
    """The table: a name, and slices (q0, q1, k0, k1, lo, hi)."""
    documents = list(zip(ENDS, ENDS[1:]))
    chunks = [(b, min(b + 32, N)) for b in range(0, N, 32)]
    prefixes = [(b, b + (e - b) // 3, e) for b, e in documents]
    pairs = zip(documents, zip(KEY_ENDS, KEY_ENDS[1:]))
    question, *answers = documents[1:]
    return {
        "documents, causal": [(b, e, b, e, -FAR, 0) for b, e in documents],
        "documents": [(b, e, b, e, -FAR, FAR) for b, e in documents],
        "window of 20 in documents": [(b, e, b, e, -20, 0) for b, e in documents],
        "prefix LM in documents": [(b, e, b, p, -FAR, FAR) for b, p, e in prefixes] +
                                  [(b, e, p, e, -FAR, 0) for b, p, e in prefixes],
        "chunks of 32": [(b, e, b, e, -FAR, 0) for b, e in chunks],
        "window, 7 back and 3 ahead": [(0, N, 0, N, -7, 3)],
        "first 4 and a window of 20": [(0, N, 0, 4, -FAR, 0), (0, N, 4, N, -20, 0)],
        "a question, many answers": [(question[0], N, *question, -FAR, 0)] +
                                    [(b, e, b, e, -FAR, 0) for b, e in answers],
        "pairs of documents, N != M": [(*q, *k, -FAR, FAR) for q, k in pairs],
    }


def make_problem(folder, slices, keys):
    """Writes a problem, and returns its arrays."""
    rng = np.random.default_rng(13)
    shapes = {"q": (1, N, H, D), "k": (1, keys, G, D), "v": (1, keys, G, D), "do": (1, N, H, D)}
    problem = {name: rng.normal(0.2, 1.5 if name == "q" else 1, shape).astype("float32")
               for name, shape in shapes.items()}
    os.makedirs(folder)
    for name, array in {**problem, "slices": np.array(slices, np.int64)}.items():
        np.save(os.path.join(folder, name + ".npy"), array)
    return [problem[name] for name in shapes]


def compare(result, exact, allowed):
    """The largest error of each array, and the largest share of what is allowed; infinite for NaN."""
    errors, share = [], 0.0
    for name in oracle.NAMES:
        got, want = np.load(os.path.join(result, name + ".npy")), exact[name]
        limit = allowed[name][:, :, None] if name == "lse" else allowed[name][:, None, :, None]
        with np.errstate(invalid="ignore"):
            error = np.where(got == want, 0, np.nan_to_num(np.abs(got - want), nan=np.inf))
        errors.append(error.max())
        share = max(share, (error / np.maximum(limit, 1e-300)).max())
    return errors, share


def counts(path):
    """What a stage has printed, by name."""
    with open(path, encoding="utf-8") as lines:
        pairs = (line.rsplit(" ", 1) for line in lines)
        return {name: int(value) for name, value in pairs}


def row(results, exact, allowed):
    """One line of the table, from the results on each number of ranks; and whether all are right."""
    compared = [compare(result, exact, allowed) for result in results.values()]
    share = max(share for _, share in compared)
    ranks = max(results)
    of = counts(results[ranks] + ".counts")
    sent = [of["bytes sent forward"], of["bytes sent backward"]] if ranks > 1 else [0, 0]
    work, most = (sum(of[f"multiply-adds {phase}{which}"] for phase in ("forward", "backward"))
                  for which in ("", ", busiest rank" if ranks > 1 else ""))
    errors = " ".join(f"{max(e):7.1e}" for e in zip(*(errors for errors, _ in compared)))
    return f"{errors} {share:6.2f} {sent[0]:8} {sent[1]:9} {most * ranks / max(work, 1):8.2f}", share <= 1


def main():
    parser = argparse.ArgumentParser(description="Masks of slices in every layout on 1 to 8 ranks.")
    parser.add_argument("build", metavar="BUILD", help="the folder of batch-13-slices")
    parser.add_argument("--ranks", default="1,2,3,4,5,6,7,8", help="numbers of ranks (1,2,...,8)")
    arguments = parser.parse_args()
    ranks = [int(word) for word in arguments.ranks.split(",")]
    folder = os.path.join(arguments.build, "slices-table")
    folders.begin(folder)

    truths, lines, results = [], [], {}
    for number, (name, slices) in enumerate(masks().items()):
        problem = os.path.join(folder, f"problem-{number}")
        keys = M if slices[-1][3] == M else N
        arrays = make_problem(problem, slices, keys)
        seen = oracle.pairs_in_slices(np.array(slices), N, keys)
        truths.append(oracle.solve(*arrays, np.ones((1, keys), bool), allowed_pairs=seen))
        for layout, flags in LAYOUTS.items():
            result = os.path.join(folder, f"{number}-{layout.replace(' ', '-')}")
            results[name, layout] = result
            lines.append(f"{flags} --tile-queries 4 --tile-keys 4 {problem} {result}-@")
    wrong = []
    for p in ranks:
        its = [line.replace("@", str(p)) for line in lines]
        failures = jobs.run_lines(os.path.join(arguments.build, "batch-13-slices"), p, its,
                                  os.path.join(folder, f"list-{p}"))
        wrong += [f"{its[at]} on {p} ranks: {failure}" for at, failure in failures.items()]
    if wrong:
        print("\n".join(wrong))
        print(f"0 passed, {len(wrong)} failed")
        return 1

    print(f"{'mask':26} {'layout':11} {'o':>7} {'lse':>7} {'dq':>7} {'dk':>7} {'dv':>7} {'share':>6}"
          f" {'sent fwd':>8} {'sent bwd':>9} {'busiest':>8}")
    right = 0
    for number, name in enumerate(masks()):
        for layout in LAYOUTS:
            text, good = row({p: f"{results[name, layout]}-{p}" for p in ranks}, *truths[number])
            right += good
            print(f"{name:26} {layout:11} {text}{'' if good else '  WRONG'}")
    print(f"{right} passed, {len(results) - right} failed")
    return 0 if right == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
