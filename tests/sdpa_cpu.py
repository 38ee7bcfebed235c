#!/usr/bin/env python3
"""sdpa_cpu: this library on the CPU beside PyTorch's attention, in the same run.

Ours is ra_forward and ra_backward of one plan (build/bench-host); theirs is
torch.nn.functional.scaled_dot_product_attention, which on a CPU is a flash attention of its own, and
torch.autograd.grad for q, k and v. Both get normal random numbers as (B, N, H, D), in memory one behind
the other. They take turns, call by call, so that whatever else the machine does disturbs both alike.

Rates count forward 4 N N D H operations, backward 2.5 times that, causal half: medians of all turns. The
ratio is how many times as fast ours is; "by processor" is the same ratio from the seconds that
processors spent on the call, which other programs disturb less; the spread is that of the ratio over turns,
between its quartiles.

PyTorch goes into a folder outside the repository, and this is run from the repository's root:

    python3 -m venv SOME-FOLDER
    SOME-FOLDER/bin/pip install torch --index-url https://download.pytorch.org/whl/cpu
    ninja build/bench-host && SOME-FOLDER/bin/python tests/sdpa_cpu.py
"""
import argparse
import os
import platform
import statistics
import subprocess
import sys
import time

BENCH = "build/bench-host"
COLUMNS = ("ours", "torch", "ratio", "by processor", "spread")


def problems(quick):
    """N, D, causal, type, threads: few and short ones first."""
    processors = len(os.sched_getaffinity(0))
    for N in (4096,) if quick else (4096, 16384):
        for kind in ("float32", "bfloat16"):
            for D in (64, 128):
                for mask in ("full", "causal"):
                    for threads in sorted({1, processors}):
                        yield N, D, mask, kind, threads


class Ours:
    """A process that makes both calls whenever it is asked to."""

    def __init__(self, N, D, H, mask, kind, threads):
        flags = ["--queries", N, "--dim-head", D, "--heads", H, "--type", kind, "--threads", threads]
        flags += ["--causal"] if mask == "causal" else []
        self.process = subprocess.Popen([BENCH, "--turns", *map(str, flags)], text=True, bufsize=1,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def turn(self):
        """Seconds on the clock and of processors: of the forward, and of the backward."""
        print(file=self.process.stdin)
        numbers = [float(word) for word in self.process.stdout.readline().split()]
        if len(numbers) != 4:
            sys.exit(f"sdpa_cpu: {BENCH} has stopped")
        return numbers[:2], numbers[2:]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Theirs:
    def __init__(self, torch, N, D, H, mask, kind, threads):
        torch.set_num_threads(threads)
        self.torch, self.causal = torch, mask == "causal"
        q, k, v, self.d_out = (torch.randn(1, N, H, D, dtype=getattr(torch, kind)).transpose(1, 2)
                               for _ in range(4))
        self.inputs = [x.requires_grad_() for x in (q, k, v)]
        self.turn()

    def turn(self):
        attention = self.torch.nn.functional.scaled_dot_product_attention
        start = time.perf_counter(), time.process_time()
        o = attention(*self.inputs, is_causal=self.causal)
        middle = time.perf_counter(), time.process_time()
        self.torch.autograd.grad(o, self.inputs, self.d_out)
        end = time.perf_counter(), time.process_time()
        return ([b - a for a, b in zip(start, middle)], [b - a for a, b in zip(middle, end)])


def measure(torch, problem, turns):
    """For each pass: its name and the numbers of COLUMNS."""
    N, D, mask, kind, threads = problem
    H = max(2, threads)
    ours, theirs = Ours(N, D, H, mask, kind, threads), Theirs(torch, N, D, H, mask, kind, threads)
    seconds = [(ours.turn(), theirs.turn()) for _ in range(turns)]
    ours.close()

    for step, name in enumerate(("forward", "backward")):
        work = 4e-9 * N * N * D * H * (0.5, 1)[mask == "full"] * (1, 2.5)[step]
        clock, processor = (list(zip(*((mine[step][i], other[step][i]) for mine, other in seconds)))
                            for i in range(2))
        mine, other = map(statistics.median, clock)
        ratios = sorted(b / a for a, b in zip(*clock))
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        busy = statistics.median(processor[1]) / statistics.median(processor[0])
        yield name, (f"{work / mine:.1f}", f"{work / other:.1f}", f"{other / mine:.2f}", f"{busy:.2f}",
                     f"{low:.2f}-{high:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TEXT",
                        help="only lines with this text, such as '16384 d128 causal float32'")
    parser.add_argument("--quick", action="store_true", help="N = 4,096 only")
    parser.add_argument("--turns", type=int, default=5, metavar="T", help="turns of each (5)")
    options = parser.parse_args()
    try:
        import torch
    except ImportError as error:
        sys.exit(f"sdpa_cpu: needs PyTorch ({error}); --help says how to get it")
    if not os.path.exists(BENCH):
        sys.exit(f"sdpa_cpu: there is no {BENCH}: run this from the repository's root, after ninja")

    torch.manual_seed(1)
    print(f"PyTorch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()}), Python "
          f"{platform.python_version()}, {len(os.sched_getaffinity(0))} processors, RA_VECTOR "
          f"{os.environ.get('RA_VECTOR', 'not set')}")
    print(f"GFLOP/s: medians of {options.turns} turns; one batch, at least two heads\n")
    print(f"{'N, D, mask, type, threads':<35} {'pass':<9}" +
          "".join(f"{name:>{len(name) + 4}}" for name in COLUMNS))
    for problem in problems(options.quick):
        N, D, mask, kind, threads = problem
        label = f"{N:<5} d{D:<3} {mask:<6} {kind:<8} {threads:>2}"
        if options.only and options.only not in " ".join(label.split()):
            continue
        for name, row in measure(torch, problem, options.turns):
            print(f"{label:<35} {name:<9}" + "".join(
                f"{text:>{len(column) + 4}}" for text, column in zip(row, COLUMNS)), flush=True)


if __name__ == "__main__":
    main()
