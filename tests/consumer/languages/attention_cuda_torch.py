"""attention_cuda_torch: a ring of GPUs from PyTorch, beside PyTorch's own context_parallel.

    torchrun --nproc-per-node 2 attention_cuda_torch.py
    torchrun --nproc-per-node 2 attention_cuda_torch.py --tokens 32768 --heads 16 --layout zigzag

Both compute causal attention, forward and backward, in bfloat16, on a sequence of which every rank
has its share of the rows. First a short one: errors against float64, beside those of one call on
one GPU. Then they take turns at a long one. A time is the median of a turn's calls, by CUDA events,
on the slowest rank, and what is printed the median of all turns. This needs PyTorch 2.11 or newer.
"""
import argparse
import contextlib
import os
import statistics
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import _attention as theirs
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from ring_attention import KEY_SIDE, QUERY_SIDE, WORDS
from ring_attention_torch import CudaPlan, Gloo, attention, shard

D, NAMES = 128, ("o", "dq", "dk", "dv")
SIDES = QUERY_SIDE, KEY_SIDE, KEY_SIDE, QUERY_SIDE  # of q, k, v and the gradient of o


def random(tokens, heads):
    """q, k, v and the gradient of o, (1, rows, H, D), the same on all ranks."""
    torch.manual_seed(1)
    return [torch.randn(1, tokens, heads, D, device="cuda", dtype=torch.bfloat16)
            for _ in SIDES]


def both_passes(function, q, k, v, d_out):
    """o, dq, dk and dv."""
    o = function(q, k, v)
    return [o.detach(), *torch.autograd.grad(o, (q, k, v), d_out)]


def sdpa(q, k, v):
    """PyTorch's attention, of (1, H, rows, D). It is looked up at each call: context_parallel puts
    its own in that place, so `from torch.nn.functional import` would call one of a shard."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Ours:
    """A ring by this library. Every call is this rank's part of it."""

    def __init__(self, link, layout, tokens, heads):
        self.plan = CudaPlan(link, queries=tokens, heads=heads, dim=D, causal=True,
                             type="bfloat16", layout=layout)
        self.inputs = [shard(x, self.plan, side) for x, side in zip(random(tokens, heads), SIDES)]

    def __enter__(self):
        for x in self.inputs[:3]:
            x.requires_grad_()
        return self

    def __exit__(self, kind, *raised):
        if not kind:
            self.plan.wait()  # calls only enqueue: this says what came of them
        self.plan.__exit__(kind, *raised)

    def forward(self):
        return attention(*self.inputs[:3], self.plan)

    def both(self):
        return both_passes(lambda *x: attention(*x, self.plan), *self.inputs)

    def errors(self, whole):
        """The largest of this rank's, from the whole of each result."""
        sides = QUERY_SIDE, QUERY_SIDE, KEY_SIDE, KEY_SIDE
        return [(x - shard(want, self.plan, side)).abs().max()
                for x, want, side in zip(self.both(), whole, sides)]


class Theirs(contextlib.ExitStack):
    """The same by context_parallel, whose rows pass by "alltoall" or "allgather"."""

    def __init__(self, mesh, method, tokens, heads):
        super().__init__()
        theirs.set_rotate_method(method)
        self.mesh = mesh
        self.inputs = [x.transpose(1, 2).contiguous() for x in random(tokens, heads)]

    def __enter__(self):
        shards = theirs.context_parallel(self.mesh, buffers=self.inputs, buffer_seq_dims=[2] * 4,
                                         no_restore_buffers=set(self.inputs))
        self.enter_context(shards)
        self.enter_context(sdpa_kernel(SDPBackend.CUDNN_ATTENTION))
        for x in self.inputs[:3]:
            x.requires_grad_()
        return super().__enter__()

    def forward(self):
        return sdpa(*self.inputs[:3])

    def both(self):
        return both_passes(sdpa, *self.inputs)

    def errors(self, whole):
        """The largest of all ranks'."""
        got = theirs.context_parallel_unshard(self.mesh, self.both(), [2] * 4)
        return [(x.transpose(1, 2) - want).abs().max() for x, want in zip(got, whole)]


def on_one_gpu(backend, kind, x):
    """o and gradients of the whole, by one call."""
    q, k, v, d_out = (each.transpose(1, 2).to(kind, copy=True) for each in x)
    with sdpa_kernel(backend):
        results = both_passes(sdpa, *(each.requires_grad_() for each in (q, k, v)), d_out)
    return [each.transpose(1, 2) for each in results]


def largest(numbers):
    """Of all ranks' numbers, one by one."""
    numbers = torch.tensor([float(number) for number in numbers], device="cuda")
    dist.all_reduce(numbers, dist.ReduceOp.MAX)
    return numbers.tolist()


def check(makers, tokens, heads):
    """Prints errors on a short sequence. Results of P ranks are sums of P parts, each rounded as
    that of one call is, and rounded again: P + 1 times the error of one call is allowed."""
    x = random(tokens, heads)
    exact = on_one_gpu(SDPBackend.MATH, torch.float64, x)
    one = on_one_gpu(SDPBackend.CUDNN_ATTENTION, torch.bfloat16, x)
    rows = {"one call": [(a - b).abs().max() for a, b in zip(one, exact)]}
    for name, make in makers.items():
        with make(tokens, heads) as side:
            rows[name] = side.errors(exact)
    rows = {name: largest(row) for name, row in rows.items()}
    say(f"largest errors against float64, {tokens} tokens x {heads} heads:")
    for name, row in rows.items():
        say(f"  {name:10}" + "".join(f"  {of} {off:.2e}" for of, off in zip(NAMES, row)))
    bad = [f"{of} of {name}" for name, row in rows.items()
           for of, off, one in zip(NAMES, row, rows["one call"])
           if not off <= (dist.get_world_size() + 1) * one]  # NaN is bad
    if bad:
        sys.exit(f"farther off than is allowed: {', '.join(bad)}")


def milliseconds(run, repeats):
    """The median of some calls in a row, on the slowest rank."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for _ in range(3):
        run()
    dist.barrier()
    for before, after in events:
        before.record()
        run()
        after.record()
    torch.cuda.synchronize()
    return largest([statistics.median(a.elapsed_time(b) for a, b in events)])[0]


def measure(makers, tokens, heads, turns, repeats):
    """Prints milliseconds, rates of one GPU, and how much longer the better of theirs takes."""
    times = {name: [] for name in makers}
    for turn in range(turns):
        for name in sorted(makers, reverse=turn % 2):
            with makers[name](tokens, heads) as side:
                times[name].append([milliseconds(run, repeats)
                                    for run in (side.forward, side.both)])
            torch.cuda.empty_cache()
    say(f"{tokens} tokens x {heads} heads, medians of {turns} turns of {repeats} calls:")
    for i, (step, passes) in enumerate((("forward", 1), ("forward and backward", 3.5))):
        ms = {name: statistics.median(turn[i] for turn in row) for name, row in times.items()}
        work = 2e-9 * heads * tokens ** 2 * D * passes / dist.get_world_size()
        better = min(ms["alltoall"], ms["allgather"]) / ms["ours"]
        say(f"  {step}: " + ", ".join(f"{name} {time:.3f} ms ({work / time:.0f} TFLOP/s)"
                                      for name, time in ms.items()) +
            f"; the better of theirs takes {better:.2f} times as long as ours")


def say(text):
    """Prints it on one rank."""
    if dist.get_rank() == 0:
        print(text, flush=True)


def main():
    """All ranks call it."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=131072, help="of all ranks together (131072)")
    parser.add_argument("--heads", type=int, default=16, help="(16)")
    parser.add_argument("--layout", default="striped", choices=WORDS["layout"],
                        help="of ours (striped)")
    parser.add_argument("--turns", type=int, default=5, help="0: only the errors (5)")
    parser.add_argument("--repeat", type=int, default=10, help="calls of a turn (10)")
    options = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    link = Gloo()  # one for all plans
    makers = {"ours": lambda *shape: Ours(link, options.layout, *shape)}
    for method in "alltoall", "allgather":
        makers[method] = lambda *shape, method=method: Theirs(mesh, method, *shape)
    check(makers, 512 * dist.get_world_size(), 2)
    if options.turns:
        measure(makers, options.tokens, options.heads, options.turns, options.repeat)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
