#!/usr/bin/env python3
"""step_gpu: a training step of stage 14's transformer on GPUs beside PyTorch's, in the same run.

Theirs is the model of tests/step_cpu.py, compiled, under bfloat16 autocast, with cuDNN's attention,
clip_grad_norm_ and torch.optim.AdamW, fused; on several GPUs, a process of torch.distributed.run for each,
attention is context_parallel's, by the better of "alltoall" and "allgather", and each gradient is
all-reduced as soon as it is there. Ours is

    mpirun -n P build/14-gpu-transformer bench --type bfloat16 --layout zigzag ...

The two take turns on the same GPUs, and print the medians of all turns, their ratio, which is how many
times as fast ours is, with its least and its largest, and gigabytes of one GPU: PyTorch's peak of what it
has allocated; of ours, all arrays, which are there from the beginning. Before anything is measured, theirs
is held against tests/fixtures/causal-gqa.

With --original there is also the transformer of ring-attention-pytorch, with its Triton kernels, not
compiled, under float16 autocast (its kernels refuse the mixture that bfloat16 makes of rotated keys and of
values), on several GPUs with its striped ring. FOLDER has it and what it imports:

    pip install --no-deps --target FOLDER ring-attention-pytorch==0.5.20 einops beartype jaxtyping wadler-lindig

Needs PyTorch, Open MPI and at least one GPU, and `ninja cuda`; without them it says so and ends with status
1.
"""
import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True  # nothing that is built lies outside build
import step_cpu
from sdpa import Program, Table, fail, find_torch, in_another_order, ratio_and_spread

OURS = "build/14-gpu-transformer"
# dim, depth, heads, numbers per head, tokens
SHAPES = ((1024, 8, 16, 64, 8192), (2048, 8, 16, 128, 16384), (2048, 8, 16, 128, 65536))
VOCABULARY = 32000
METHODS = ("alltoall", "allgather")
ORIGINAL = "original"


def ours(gpus, shape, options):
    """Milliseconds of a step, GB of a GPU."""
    names = ("--dim", "--depth", "--heads", "--dim-head", "--tokens")
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(gpus), OURS, "bench", "--type",
               "bfloat16", "--layout", "zigzag", "--vocabulary", str(VOCABULARY), "--repeat", str(options.repeat)]
    command += [word for pair in zip(names, map(str, shape)) for word in pair] + options.flag
    # Open MPI asks root to insist twice.
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    run = subprocess.run(command, text=True, capture_output=True, env=environment)
    lines = dict(line.rsplit(" ", 1) for line in run.stdout.splitlines() if " " in line)
    if run.returncode != 0 or "seconds per step" not in lines:
        fail(f"{' '.join(command)}: exit status {run.returncode}: {(run.stderr or run.stdout).strip()}")
    return 1e3 * float(lines["seconds per step"]), 1e-9 * float(lines["bytes of a rank"])


class Theirs:
    """Workers, one for each GPU."""

    def __init__(self, gpus, options):
        # Without this torch.distributed.run says that it sets it.
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        if options.original:
            environment["PYTHONPATH"] = os.pathsep.join([options.original, os.environ.get("PYTHONPATH", "")])
        self.program = Program([sys.executable, "-m", "torch.distributed.run", "--standalone",
                                "--nproc-per-node", str(gpus), os.path.abspath(__file__), "--worker",
                                "--repeat", str(options.repeat)], environment)

    def ask(self, line):
        """The words of the answer. NCCL may also have something to say."""
        for words in self.program.ask(line):
            if words and words[0] == "answer":
                return [float(word) for word in words[1:]]
        fail(f"no answer to '{line}'")


class Worker:
    """One process of PyTorch's, with its GPU: all do what rank 0 reads, and rank 0 answers."""

    def __init__(self, repeats):
        import torch
        import torch.distributed
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.experimental import _attention
        from torch.nn.attention import SDPBackend, sdpa_kernel

        self.torch, self.dist, self.ring = torch, torch.distributed, _attention
        self.kernels = lambda: sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION])
        self.repeats = repeats
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        self.dist.init_process_group("cpu:gloo,cuda:nccl")
        self.ranks = self.dist.get_world_size()
        self.mesh = init_device_mesh("cuda", (self.ranks,))
        self.shape = None

    def serve(self):
        while True:
            line = [sys.stdin.readline() if self.dist.get_rank() == 0 else ""]
            self.dist.broadcast_object_list(line, device=self.torch.device("cpu"))
            if not line[0]:
                return self.dist.destroy_process_group()
            method, *shape = line[0].split()
            answer = self.measure(method, tuple(map(int, shape)))
            if self.dist.get_rank() == 0:
                print("answer", *answer)
                print("end", flush=True)

    def begin(self, original, shape):
        """Another model, if it is not that of the last call."""
        if (original, shape) == self.shape:
            return
        torch, self.shape = self.torch, (original, shape)
        self.model = self.optimizer = self.parameters = self.buffers = None
        torch.compiler.reset()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        dim, depth, heads, D, length = shape
        torch.manual_seed(1)
        if original:
            self.model = self.original(shape)
            self.parameters = list(self.model.parameters())
        else:
            weights = step_cpu.weights_of(torch, dim, depth, heads, heads, D, VOCABULARY, "cuda")
            self.parameters = list(weights.values())
        if self.ranks > 1:
            for parameter in self.parameters:
                parameter.register_post_accumulate_grad_hook(self.reduce)
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-3, weight_decay=0.1, fused=True)
        text = torch.randint(VOCABULARY, (1, length + 1), device="cuda")
        self.buffers = [text[:, :-1].contiguous(), text[:, 1:].contiguous()]
        if original:  # a stripe of one row
            self.buffers = [rows[:, self.dist.get_rank()::self.ranks].contiguous() for rows in self.buffers]
        else:
            self.model = step_cpu.Model(torch, weights, depth, heads, heads, length)
            self.buffers += self.model.cos.cuda(), self.model.sin.cuda()
        self.losses = {}

    def original(self, shape):
        """The transformer of ring-attention-pytorch."""
        import importlib.metadata

        version = importlib.metadata.version  # it asks for an older name of triton
        importlib.metadata.version = lambda name: version("triton" if name == "triton-nightly" else name)
        from ring_attention_pytorch import RingTransformer

        dim, depth, heads, D, length = shape
        n, ring = length // self.ranks, self.ranks > 1
        return RingTransformer(num_tokens=VOCABULARY, dim=dim, depth=depth, causal=True, dim_head=D, heads=heads,
                               bucket_size=n, ring_attn=ring, striped_ring_attn=ring, ring_seq_size=n,
                               auto_shard_seq=False, use_cuda_kernel=True).cuda()

    def loss_by(self, method):
        """The compiled model. What was compiled holds the method of its first call."""
        if method not in self.losses:
            def loss(tokens, labels, cos, sin):
                return self.model.loss(tokens, labels, (cos, sin))

            loss.__code__ = loss.__code__.replace(co_name=method)  # PyTorch goes by the code
            self.losses[method] = self.torch.compile(loss)
        return self.losses[method]

    def reduce(self, parameter):
        self.waits.append(self.dist.all_reduce(parameter.grad, self.dist.ReduceOp.AVG, async_op=True))

    def step(self, loss):
        torch, self.waits = self.torch, []
        if self.shape[0]:
            with torch.autocast("cuda", torch.float16):
                loss = self.model(self.buffers[0], labels=self.buffers[1])
            loss.backward()
        else:
            inputs = [buffer.clone() for buffer in self.buffers] if self.ranks > 1 else self.buffers
            shards = (self.ring.context_parallel(self.mesh, buffers=inputs, buffer_seq_dims=[1, 1, 0, 0])
                      if self.ranks > 1 else contextlib.nullcontext())
            with torch.autocast("cuda", torch.bfloat16), self.kernels(), shards:
                loss(*inputs).backward()
        for wait in self.waits:
            wait.wait()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def measure(self, method, shape):
        """Milliseconds of a step, GB."""
        torch, original = self.torch, method == ORIGINAL
        if self.ranks > 1 and not original:
            self.ring.set_rotate_method(method)
        self.begin(original, shape)
        loss = None if original else self.loss_by(method)
        for _ in range(3):
            self.step(loss)
        times = []
        for _ in range(self.repeats):
            torch.cuda.synchronize()
            self.largest(0)  # all ranks have met
            began = time.monotonic()
            self.step(loss)
            torch.cuda.synchronize()
            times.append(self.largest(time.monotonic() - began))
        return 1e3 * statistics.median(times), self.largest(1e-9 * torch.cuda.max_memory_allocated())

    def largest(self, number):
        """Of all ranks' numbers."""
        numbers = self.torch.tensor([number], dtype=self.torch.float64)
        self.dist.all_reduce(numbers, self.dist.ReduceOp.MAX)
        return numbers.item()


def measure(gpus, shape, theirs, options):
    """Of each way: milliseconds and GB, turn by turn."""
    ways = {"ours": lambda: ours(gpus, shape, options)}
    for method in () if options.alone else METHODS[:1] if gpus == 1 else METHODS:
        ways[method] = lambda method=method: theirs.ask(" ".join(map(str, (method, *shape))))
    if options.original:
        ways[ORIGINAL] = lambda: theirs.ask(" ".join(map(str, (ORIGINAL, *shape))))
    times = {way: [] for way in ways}
    for turn in range(options.turns):
        for way in in_another_order(list(ways), turn):
            times[way].append(ways[way]())
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", metavar="P,..", help="how many GPUs (1, and all)")
    parser.add_argument("--only", metavar="TEXT",
                        help="only rows with this text, such as 'dim 1024,tokens 65536'")
    parser.add_argument("--alone", action="store_true", help="ours alone")
    parser.add_argument("--original", metavar="FOLDER", type=os.path.abspath,
                        help="also ring-attention-pytorch, which is in FOLDER; with --alone, ours and that")
    parser.add_argument("--turns", type=int, default=3, metavar="T", help="turns of each (3)")
    parser.add_argument("--repeat", type=int, default=7, metavar="N", help="steps of a turn (7)")
    parser.add_argument("--flag", action="append", default=[], metavar="FLAG",
                        help="one more flag of ours, such as --flag=--shard-optimizer")
    parser.add_argument("--csv", type=argparse.FileType("w"), metavar="FILE",
                        help="the same numbers, separated by commas")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return Worker(options.repeat).serve()

    torch = find_torch("2.11", "torch.distributed.tensor.experimental._attention", program=OURS)
    there = torch.cuda.device_count()
    gpus = [int(P) for P in options.gpus.split(",")] if options.gpus else sorted({1, there})
    if not all(1 <= P <= there for P in gpus):
        fail(f"--gpus {options.gpus}: PyTorch finds {there}")
    import numpy
    step_cpu.check_fixture(torch, numpy)

    print(f"{there} x {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA "
          f"{torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}")
    print(f"ms of a step, GB of a GPU: medians of {options.turns} turns of {options.repeat} steps\n")
    header = ("model", "tokens", "GPUs", *METHODS, "ours", "to_better", "spread", "GB_theirs", "GB_ours",
              ORIGINAL, "GB_original")
    table = Table(header, (28, 7, 4, 9, 9, 9, 9, 11, 9, 9, 9, 11), 1, options.csv)
    for P in gpus:
        theirs = None if options.alone and not options.original else Theirs(P, options)
        for shape in SHAPES:
            dim, depth, heads, D, length = shape
            row = [f"dim {dim} depth {depth} {heads}x{D}", str(length), str(P)]
            if options.only and not any(text in f"{row[0]} tokens {length}" for text in options.only.split(",")):
                continue
            times = measure(P, shape, theirs, options)
            ms = {way: [turn[0] for turn in turns] for way, turns in times.items()}
            better = min((way for way in METHODS if way in ms), default=None,
                         key=lambda way: statistics.median(ms[way]))
            row += [f"{statistics.median(ms[way]):.1f}" if way in ms else "-" for way in (*METHODS, "ours")]
            row += ratio_and_spread(ms["ours"], ms.get(better, ()))
            most = {way: f"{max(turn[1] for turn in turns):.1f}" for way, turns in times.items()}
            row += [most.get(way, "-") for way in (better, "ours")]
            row += [f"{statistics.median(ms[ORIGINAL]):.1f}" if ORIGINAL in ms else "-", most.get(ORIGINAL, "-")]
            table.row(row)
        if theirs:
            theirs.program.close()


if __name__ == "__main__":
    main()
