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

With --documents sequences are packed documents, of which each sees itself alone. Their shards are dealt in
ours, or contiguous; theirs is then flex_attention, compiled, with the context_parallel of
torch.distributed.tensor.experimental._attention, which gathers all keys. Its shards are contiguous
(unbalanced), or the balance is that for each document (in PyTorch 2.11 rows are exchanged in each document
alone, and shards are still contiguous), or by blocks of rows in order of their work (PTRR). Making masks
is not counted, nor compiling, nor our plans. Documents are as long as multiples of twice the GPUs, which
the balance for each document asks for.

A rate is of one GPU: 4 H D operations for each pair of rows that see each other for the forward, 2.5 times
that for the backward, divided by the GPUs and by the time. In a turn all ranks meet, and each enqueues its
calls all at once; the turn is the median of their times by CUDA events, on the slowest rank. A rate is the
median of all turns, and the ratio the median of ours to the better of theirs, turn by turn, with its least
and its largest, for each method of ours. Inputs are random numbers in bfloat16, and are in shards before.
The forward is as in training: with what the backward will need. GHz and W are means over the GPUs in our
turns.

Before anything is measured, theirs is compared with one call over a whole sequence, a short one or of short
documents, by their errors against float64. On P GPUs each of their results is a sum of P parts, each
rounded as the result of one call is, and the sum is rounded again: P + 1 times the largest error of one
call is allowed.

Needs PyTorch, Open MPI and at least one GPU, and `ninja cuda`; without them it says so and ends with status
1. On one GPU both run, but pass nothing on.
"""
import argparse
import contextlib
import dataclasses
import functools
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
# How long documents are, 0: log-normal lengths; tokens of each GPU, heads.
DOCUMENTS = (512, 2048, 8192, 0)
TOKENS, HEADS = 32768, 16
BALANCES = ("unbalanced", "per-document", "PTRR")
DEALS = ("contiguous", "dealt")
PASSES = {"forward": 1, "forward and backward": 3.5}


@dataclasses.dataclass
class Case:
    """What is measured; a whole sequence is one document."""
    name: list  # the words for it in the table
    heads: int
    lengths: list
    theirs: tuple
    ours: dict  # a name, and what bench-cuda is asked for


class Ours:
    """A rank for each GPU."""

    def __init__(self, gpus, repeats):
        # Open MPI asks root to insist twice.
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        self.program = Program(["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(gpus), BENCH,
                                "--turns", "--repeat", str(repeats)], environment)

    def ask(self, line, first):
        """What comes after this word in the answer."""
        for words in self.program.ask(line):
            if words and words[0] == first:
                return words[1:]
        fail(f"{BENCH} has no '{line}'")

    def turn(self, line):
        """Milliseconds of each of PASSES, GHz, watts."""
        return [float(word) for word in self.ask(line, "ring")]


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

    def check(self, way, gpus):
        """The largest error as a part of what is allowed; ends the program if it is more."""
        heads, lengths = 2, [512 * gpus]
        if way in BALANCES:  # what is compiled for these is what will be measured
            heads, lengths = HEADS, [2 * gpus * length for length in (25, 129, 102)] * (TOKENS // 512)
        parts = []
        for name, error, of_one_call in self.ask(line_of("check", way, heads, lengths)):
            allowed = (gpus + 1) * float(of_one_call)
            # No comparison with NaN is true.
            if not float(error) <= allowed:
                fail(f"context_parallel's {name} with {way} is off by {error}, and {allowed} is allowed")
            parts.append(float(error) / allowed)
        return max(parts)

    def turn(self, way, heads, lengths):
        """Milliseconds of each of PASSES."""
        (times,) = self.ask(line_of("measure", way, heads, lengths))
        return [float(word) for word in times]


def line_of(task, way, heads, lengths):
    """What a Worker is asked for."""
    return " ".join(map(str, (task, way, heads, *lengths)))


class Worker:
    """One process of PyTorch's, with its GPU: all do what rank 0 reads, and rank 0 answers."""

    def __init__(self, repeats):
        import torch
        import torch.distributed
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import _attention
        from torch.distributed.tensor.parallel import parallelize_module
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        self.torch, self.dist, self.ring = torch, torch.distributed, _attention
        self.backend, self.use = SDPBackend, sdpa_kernel
        self.repeats = repeats
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        # While the GPUs are not theirs, workers wait on the host.
        self.dist.init_process_group("cpu:gloo,cuda:nccl")
        self.mesh = init_device_mesh("cuda", (self.dist.get_world_size(),))
        # A module that does nothing else: keys are gathered before it is called.
        flex = torch.nn.Module()
        flex.forward = torch.compile(flex_attention, dynamic=False)
        kind = _attention._ContextParallel
        self.flex = parallelize_module(flex, self.mesh, kind(2, kind.AttentionType.FLEX))
        self.make_mask = torch.compile(create_block_mask, dynamic=False)

    def serve(self):
        tasks = {"check": self.check, "measure": self.measure}
        while True:
            line = [sys.stdin.readline() if self.dist.get_rank() == 0 else ""]
            self.dist.broadcast_object_list(line, device=self.torch.device("cpu"))
            if not line[0]:
                return self.dist.destroy_process_group()
            task, way, heads, *lengths = line[0].split()
            answer = tasks[task](way, int(heads), [int(length) for length in lengths])
            # The other program needs this memory in its turn.
            self.torch.cuda.empty_cache()
            if self.dist.get_rank() == 0:
                for numbers in answer:
                    print("answer", *numbers)
                print("end", flush=True)

    def inputs(self, heads, tokens):
        """q, k, v and d_out, (1, H, n, D), the same on all ranks."""
        self.torch.manual_seed(1)
        return [self.torch.randn(1, heads, tokens, DIM, device="cuda", dtype=self.torch.bfloat16)
                for _ in range(4)]

    @contextlib.contextmanager
    def sharded(self, way, x, lengths):
        """Yields shards of these, what is called with q, k and v of them, and their balance if it is not
        that of whole sequences."""
        dims = [2] * len(x)
        if way in METHODS:
            self.ring.set_rotate_method(way)
            self.ring._cp_options.enable_load_balance = True
            with (self.ring.context_parallel(self.mesh, buffers=x, buffer_seq_dims=dims,
                                             no_restore_buffers=set(x)),
                  self.use(self.backend.CUDNN_ATTENTION)):
                yield self.wanting(x), self.causal, None
        else:
            mask = self.mask(lengths)
            balance = {
                "unbalanced": lambda: None,
                "per-document":
                    lambda: self.ring._PerDocumentHeadTailLoadBalancer([lengths], self.mesh.size(), "cuda"),
                "PTRR": lambda: self.ring._PTRRLoadBalancer(mask, self.mesh.size()),
            }[way]()
            *shards, mask = self.ring._context_parallel_shard(self.mesh, [*x, mask], [*dims, 2], balance)
            yield (self.wanting([shard.contiguous() for shard in shards]),
                   functools.partial(self.flex, block_mask=mask), balance)

    def wanting(self, x):
        """The same, of which the first three want gradients."""
        for input in x[:3]:
            input.requires_grad_()
        return x

    def causal(self, q, k, v):
        return self.torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def one_by_one(self, lengths, *x):
        """Each document alone."""
        documents = zip(*(input.split(lengths, dim=2) for input in x))
        return self.torch.cat([self.causal(*document) for document in documents], dim=2)

    def mask(self, lengths):
        """Of documents in which a query sees keys up to itself."""
        numbers = self.torch.arange(len(lengths), device="cuda")
        document = numbers.repeat_interleave(self.torch.tensor(lengths, device="cuda"))
        n = sum(lengths)
        return self.make_mask(lambda b, h, i, j: (j <= i) & (document[i] == document[j]), 1, 1, n, n,
                              device="cuda")

    def both(self, attend, x):
        o = attend(*x[:3])
        return [o.detach(), *self.torch.autograd.grad(o, x[:3], x[3])]

    def check(self, way, heads, lengths):
        """A line for each result: its name, the largest error of theirs, and that of one call."""
        x = self.inputs(heads, sum(lengths))
        results = {}
        for backend, kind in (("MATH", self.torch.float64),
                              ("CUDNN_ATTENTION" if way in METHODS else "FLASH_ATTENTION", self.torch.bfloat16)):
            with self.use(getattr(self.backend, backend)):
                results[backend] = self.both(functools.partial(self.one_by_one, lengths),
                                             self.wanting([input.to(kind, copy=True) for input in x]))
        truth, one_call = results.values()
        with self.sharded(way, x, lengths) as (shards, attend, balance):
            shards = self.both(attend, shards)
        ring = self.ring.context_parallel_unshard(self.mesh, shards, [2] * len(shards), balance)
        return [(name, *((other - right).abs().max().item() for other in others))
                for name, right, *others in zip(("o", "dq", "dk", "dv"), truth, ring, one_call)]

    def measure(self, way, heads, lengths):
        """A line: the milliseconds of each of PASSES."""
        with self.sharded(way, self.inputs(heads, sum(lengths)), lengths) as (x, attend, _):
            return [[self.milliseconds(run) for run in (lambda: attend(*x[:3]), lambda: self.both(attend, x))]]

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


def sequence(options, tokens, heads, key_heads):
    lines = {}
    for method in options.method:
        # Striped rows cannot be gathered for.
        layout = "zigzag" if method == "gathered-keys" and options.layout == "striped" else options.layout
        lines[method] = f"ring {tokens} {heads}/{key_heads} {DIM} {layout} method {method}"
    return Case(name_of(tokens, heads, key_heads), heads, [tokens], METHODS, lines)


def documents(options, ours, length):
    tokens = TOKENS * options.gpus
    lines = {deal: f"documents {tokens} {length} {HEADS} {DIM} {deal}" for deal in DEALS}
    lengths = [int(word) for word in ours.ask(f"lengths {tokens} {length}", "lengths")]
    return Case([str(length or "log-normal")], HEADS, lengths, BALANCES, lines)


def rows(case, times, states, gpus):
    """Of the table: for each pass one for each method of ours, from the milliseconds of each turn by name."""
    for i, (step, passes) in enumerate(PASSES.items()):
        ms = {name: [turn[i] for turn in turns] for name, turns in times.items()}
        pairs = sum(length * (length + 1) // 2 for length in case.lengths)
        work = 4e-9 * case.heads * DIM * pairs * passes / gpus
        better = min(case.theirs, key=lambda name: statistics.median(ms[name]))
        for name in case.ours:
            clock, power = (statistics.median(numbers) for numbers in zip(*states[name]))
            yield [*case.name, step, *(f"{work / statistics.median(ms[other]):.1f}" for other in case.theirs),
                   name, f"{work / statistics.median(ms[name]):.1f}", *ratio_and_spread(ms[name], ms[better]),
                   f"{clock:.2f}", f"{power:.0f}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TEXT",
                        help="only sequences with this text, such as '128k x 16,512k' or '32/8'")
    parser.add_argument("--documents", action="store_true",
                        help=f"packed documents instead, {TOKENS // 1024}k tokens for each GPU; --only 512 or "
                             "log-normal")
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
    if not options.documents and any(tokens % (2 * options.gpus) for tokens, *_ in shapes):
        fail(f"--gpus {options.gpus}: PyTorch wants sequences that have twice as many equal parts")

    print(f"{options.gpus} x {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, "
          f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}, "
          f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")
    theirs = Theirs(options.gpus, options.repeat)
    ours = Ours(options.gpus, options.repeat)
    ways = BALANCES if options.documents else METHODS
    for way in ways:
        print(f"context_parallel, {way}: errors are {theirs.check(way, options.gpus):.0%} of what is allowed "
              "at most", flush=True)
    if options.documents:
        what, first, widths = f"{HEADS} heads, d{DIM}, bf16", ("documents",), (10, 20, 10, 12, 7, 10)
        lengths = [length for length in DOCUMENTS if not options.only
                   or str(length or "log-normal") in options.only.split(",")]
        cases = [documents(options, ours, length) for length in lengths]
    else:
        what, first = f"d{DIM}, bf16, ours {options.layout}", ("sequence", "heads")
        widths = (8, 5, 20, 8, 9, 15)
        cases = [sequence(options, *shape) for shape in shapes]
    print(f"TFLOP/s of one GPU, causal, {what}: medians of {options.turns} turns of {options.repeat} calls\n")
    header = (*first, "pass", *ways, "method", "ours", "to better", "spread", "GHz", "W")
    table = Table(header, (*widths, 7, 9, 11, 5, 4), len(first) + 1, options.csv)
    for case in cases:
        times = {name: [] for name in (*case.theirs, *case.ours)}
        states = {name: [] for name in case.ours}
        for turn in range(options.turns):
            for name in in_another_order(list(times), turn):
                if name in case.ours:
                    *ms, clock, power = ours.turn(case.ours[name])
                    states[name].append((clock, power))
                else:
                    ms = theirs.turn(name, case.heads, case.lengths)
                times[name].append(ms)
        for row in rows(case, times, states, options.gpus):
            table.row(row)
    theirs.program.close()
    ours.program.close()


if __name__ == "__main__":
    main()
