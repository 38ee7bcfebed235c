#!/usr/bin/env python3
"""context_parallel: this library's GPUs beside PyTorch's context_parallel, in the same run.

Ours is the ring, or any other of --method, as build/bench-cuda runs it, a rank of MPI for each GPU; theirs is
torch.distributed.tensor.experimental.context_parallel around scaled_dot_product_attention with cuDNN's
kernels, a process of torch.distributed.run for each GPU, which passes keys on by "alltoall" or
"allgather". Under the causal mask ranks share the work as --layout says in ours, and in theirs as PyTorch
balances it unless told otherwise. They take turns on the same GPUs, in another order each time.

Sequences of 32/8 heads have 8 heads of keys for 32 of queries. Theirs gets these keys and values repeated
before anything is measured, 32 heads of each, as its ring asks for: so it passes four times as many bytes
of keys on as ours, and its gradients are those of the repeated ones.

A rate is of one GPU: 4 B H n n D operations over the whole sequence for the forward, 2.5 times that for
the backward, causal half, divided by the GPUs and by the time. In a turn all ranks meet, and each enqueues
its calls all at once; the turn is the median of their times by CUDA events, on the slowest rank. A rate is
the median of all turns, and the ratio the median of ours to the better of theirs, turn by turn, with its
least and its largest, for each method of ours. Inputs are random numbers in bfloat16, and are in shards before. The forward is as in
training: with what the backward will need. GHz and W are means over the GPUs in our turns.

Before anything is measured, theirs is compared with one call over a whole short sequence, by their errors
against float64. On P GPUs each of their results is a sum of P parts, each rounded as the result of one call
is, and the sum is rounded again: P + 1 times the largest error of one call is allowed.

Needs PyTorch, Open MPI and at least one GPU, and `ninja cuda`; without them it says so and ends with status
1. On one GPU both run, but pass nothing on.
"""
import argparse
import contextlib
import os
import statistics
import sys
import time

sys.dont_write_bytecode = True  # nothing that is built lies outside build
from sdpa import BENCH, Program, Table, fail, find_torch, in_another_order
from sdpa import milliseconds_in_a_row, ratio_and_spread

# Tokens of all GPUs together, heads, heads of keys.
SHAPES = ((32768, 16, 16), (131072, 16, 16), (524288, 8, 8), (8192, 32, 8), (32768, 32, 8), (131072, 32, 8))
DIM = 128
METHODS = ("alltoall", "allgather")
PASSES = {"forward": 1, "forward and backward": 3.5}


class Ours:
    """A rank for each GPU."""

    def __init__(self, gpus, layout, repeats):
        # Open MPI asks root to insist twice.
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        self.program = Program(["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(gpus), BENCH,
                                "--turns", "--repeat", str(repeats)], environment)
        self.layout = layout

    def turn(self, method, tokens, heads, key_heads):
        """Milliseconds of each of PASSES, GHz, watts."""
        # Striped rows cannot be gathered for.
        layout = "zigzag" if method == "gathered-keys" and self.layout == "striped" else self.layout
        line = f"ring {tokens} {heads}/{key_heads} {DIM} {layout} method {method}"
        for words in self.program.ask(line):
            if words and words[0] == "ring":
                return [float(word) for word in words[1:]]
        fail(f"{BENCH} has no '{line}'")


class Theirs:
    """Workers, one for each GPU."""

    def __init__(self, gpus, repeats):
        # Without this torch.distributed.run says that it sets it.
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        self.program = Program([sys.executable, "-m", "torch.distributed.run", "--standalone",
                                "--nproc-per-node", str(gpus), os.path.abspath(__file__), "--worker",
                                "--repeat", str(repeats)], environment)

    def ask(self, line):
        """The words of each line of the answer. NCCL may also have something to say."""
        return [words[1:] for words in self.program.ask(line) if words and words[0] == "answer"]

    def check(self, method, gpus):
        """The largest error as a part of what is allowed; ends the program if it is more."""
        parts = []
        for name, error, of_one_call in self.ask(f"check {method} {512 * gpus} 2 {DIM}"):
            allowed = (gpus + 1) * float(of_one_call)
            # No comparison with NaN is true.
            if not float(error) <= allowed:
                fail(f"context_parallel's {name} with {method} is off by {error}, and {allowed} is allowed")
            parts.append(float(error) / allowed)
        return max(parts)

    def turn(self, method, tokens, heads):
        """Milliseconds of each of PASSES."""
        (times,) = self.ask(f"measure {method} {tokens} {heads} {DIM}")
        return [float(word) for word in times]


class Worker:
    """One process of PyTorch's, with its GPU: all do what rank 0 reads, and rank 0 answers."""

    def __init__(self, repeats):
        import torch
        import torch.distributed
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import _attention
        from torch.nn.attention import SDPBackend, sdpa_kernel

        self.torch, self.dist, self.ring = torch, torch.distributed, _attention
        self.backend, self.use = SDPBackend, sdpa_kernel
        self.repeats = repeats
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        # While the GPUs are not theirs, workers wait on the host.
        self.dist.init_process_group("cpu:gloo,cuda:nccl")
        self.mesh = init_device_mesh("cuda", (self.dist.get_world_size(),))

    def serve(self):
        tasks = {"check": self.check, "measure": self.measure}
        while True:
            line = [sys.stdin.readline() if self.dist.get_rank() == 0 else ""]
            self.dist.broadcast_object_list(line, device=self.torch.device("cpu"))
            if not line[0]:
                return self.dist.destroy_process_group()
            task, method, *shape = line[0].split()
            self.ring.set_rotate_method(method)
            answer = tasks[task](*map(int, shape))
            # The other program needs this memory in its turn.
            self.torch.cuda.empty_cache()
            if self.dist.get_rank() == 0:
                for numbers in answer:
                    print("answer", *numbers)
                print("end", flush=True)

    def inputs(self, tokens, heads, dim):
        """q, k, v and d_out, (1, H, n, D), the same on all ranks."""
        self.torch.manual_seed(1)
        return [self.torch.randn(1, heads, tokens, dim, device="cuda", dtype=self.torch.bfloat16)
                for _ in range(4)]

    @contextlib.contextmanager
    def sharded(self, x):
        """Makes shards of these, and a ring of PyTorch's attention."""
        with (self.ring.context_parallel(self.mesh, buffers=x, buffer_seq_dims=[2] * len(x),
                                         no_restore_buffers=set(x)),
              self.use(self.backend.CUDNN_ATTENTION)):
            for input in x[:3]:
                input.requires_grad_()
            yield

    def forward(self, x):
        return self.torch.nn.functional.scaled_dot_product_attention(*x[:3], is_causal=True)

    def both(self, x):
        o = self.forward(x)
        return [o.detach(), *self.torch.autograd.grad(o, x[:3], x[3])]

    def check(self, *shape):
        """A line for each result: its name, the largest error of theirs, and that of one call."""
        x = self.inputs(*shape)
        results = {}
        for backend, kind in (("MATH", self.torch.float64), ("CUDNN_ATTENTION", self.torch.bfloat16)):
            with self.use(getattr(self.backend, backend)):
                results[backend] = self.both([input.to(kind, copy=True).requires_grad_() for input in x])
        truth, one_call = results.values()
        with self.sharded(x):
            shards = self.both(x)
        ring = self.ring.context_parallel_unshard(self.mesh, shards, [2] * len(shards))
        return [(name, *((other - right).abs().max().item() for other in others))
                for name, right, *others in zip(("o", "dq", "dk", "dv"), truth, ring, one_call)]

    def measure(self, *shape):
        """A line: the milliseconds of each of PASSES."""
        x = self.inputs(*shape)
        with self.sharded(x):
            return [[self.milliseconds(run) for run in (lambda: self.forward(x), lambda: self.both(x))]]

    def milliseconds(self, run):
        run()
        self.torch.cuda.synchronize()
        # A GPU that was idle takes a while to reach its clock. All ranks must run equally often.
        began = time.monotonic()
        run()
        self.torch.cuda.synchronize()
        seconds = self.largest(time.monotonic() - began)
        for _ in range(int(0.05 / seconds)):
            run()
        self.torch.cuda.synchronize()
        self.largest(0)  # all ranks have met
        return self.largest(milliseconds_in_a_row(self.torch, [run], self.repeats))

    def largest(self, number):
        """Of all ranks' numbers."""
        numbers = self.torch.tensor([number], dtype=self.torch.float64)
        self.dist.all_reduce(numbers, self.dist.ReduceOp.MAX)
        return numbers.item()


def name_of(tokens, heads, key_heads):
    """The words for a shape in the table: a sequence, and its heads."""
    return [f"{tokens // 1024}k", str(heads) if heads == key_heads else f"{heads}/{key_heads}"]


def rows(shape, times, states, options):
    """Of the table: for each pass one for each method of ours, from the milliseconds of each turn by name."""
    tokens, heads, _ = shape
    for i, (step, passes) in enumerate(PASSES.items()):
        ms = {name: [turn[i] for turn in turns] for name, turns in times.items()}
        work = 2e-9 * heads * tokens * tokens * DIM * passes / options.gpus
        better = min(METHODS, key=lambda name: statistics.median(ms[name]))
        for name in options.method:
            clock, power = (statistics.median(numbers) for numbers in zip(*states[name]))
            yield [*name_of(*shape), step, *(f"{work / statistics.median(ms[other]):.1f}" for other in METHODS),
                   name, f"{work / statistics.median(ms[name]):.1f}", *ratio_and_spread(ms[name], ms[better]),
                   f"{clock:.2f}", f"{power:.0f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TEXT",
                        help="only sequences with this text, such as '128k x 16,512k' or '32/8'")
    parser.add_argument("--gpus", type=int, metavar="P", help="how many GPUs (all)")
    parser.add_argument("--layout", choices=("striped", "zigzag", "contiguous"), default="striped",
                        help="of our rows (striped)")
    parser.add_argument("--method", type=lambda text: text.split(","), default=["ring"], metavar="NAME,...",
                        help="of ours, each in turn: ring, exchanged-heads, gathered-keys, whose rows are zigzag "
                             "if they are not to be contiguous (ring)")
    parser.add_argument("--turns", type=int, default=5, metavar="T", help="turns of each (5)")
    parser.add_argument("--repeat", type=int, default=10, metavar="N", help="calls of a turn (10)")
    parser.add_argument("--csv", type=argparse.FileType("w"), metavar="FILE",
                        help="the same numbers, separated by commas")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return Worker(options.repeat).serve()

    torch = find_torch("2.11", "torch.distributed.tensor.experimental._attention")
    there = torch.cuda.device_count()
    options.gpus = options.gpus or there
    if not 1 <= options.gpus <= there:
        fail(f"--gpus {options.gpus}: PyTorch finds {there}")
    shapes = [shape for shape in SHAPES if not options.only
              or any(text in " x ".join(name_of(*shape)) for text in options.only.split(","))]
    if any(tokens % (2 * options.gpus) for tokens, *_ in shapes):
        fail(f"--gpus {options.gpus}: PyTorch wants sequences that have twice as many equal parts")

    print(f"{options.gpus} x {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, "
          f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}, "
          f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")
    theirs = Theirs(options.gpus, options.repeat)
    ours = Ours(options.gpus, options.layout, options.repeat)
    for method in METHODS:
        print(f"context_parallel with {method}: errors are {theirs.check(method, options.gpus):.0%} of what "
              "is allowed at most")
    print(f"TFLOP/s of one GPU, causal, d{DIM}, bf16, ours {options.layout}: medians of {options.turns} "
          f"turns of {options.repeat} calls\n")
    header = ("sequence", "heads", "pass", *METHODS, "method", "ours", "to better", "spread", "GHz", "W")
    table = Table(header, (8, 5, 20, 8, 9, 15, 7, 9, 11, 5, 4), 3, options.csv)
    for shape in shapes:
        times = {name: [] for name in (*METHODS, *options.method)}
        states = {name: [] for name in options.method}
        for turn in range(options.turns):
            for name in in_another_order(list(times), turn):
                if name in options.method:
                    *ms, clock, power = ours.turn(name, *shape)
                    states[name].append((clock, power))
                else:
                    ms = theirs.turn(name, *shape[:2])
                times[name].append(ms)
        for row in rows(shape, times, states, options):
            table.row(row)
    theirs.program.close()
    ours.program.close()


if __name__ == "__main__":
    main()
