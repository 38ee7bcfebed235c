#!/usr/bin/env python3
"""sdpa: this library's kernels on a GPU beside PyTorch's attention, in the same run.

Ours is a kernel of the ladder as build/bench-cuda runs it; theirs is
torch.nn.functional.scaled_dot_product_attention with the FlashAttention-2 kernels and with cuDNN's. They
take turns, in another order each time, since a GPU under load gets warm and slow for whoever comes next.

Rates count forward 2 B H n m (D + D_v) operations, backward 2 B H n m (3 D + 2 D_v), causal half. A turn
is a median of CUDA events around single calls, which are enqueued all at once; a rate is the median of all
turns, and the ratio the median of ours to cuDNN's, turn by turn, with its least and its largest. Inputs are normal
random numbers, in as many copies as it takes to be four times the L2 cache. The backward is all that a
caller pays: torch.autograd.grad for q, k and v; ours with delta, emptying dq, dk and dv, and rounding them.

Needs PyTorch and a GPU, and `ninja cuda`; without them it says so and ends with status 1.
"""
import argparse
import contextlib
import importlib
import os
import statistics
import subprocess
import sys
import time

BENCH = "build/bench-cuda"
# Batches, query heads, key/value heads, tokens, numbers per head of keys and of values: those of
# tests/rig/bench_kernels.c.
SHAPES = (
    (1, 16, 16, 16384, 128, 128), (1, 32, 32, 16384, 64, 64), (4, 16, 16, 4096, 128, 128),
    (4, 32, 32, 4096, 64, 64), (16, 16, 16, 1024, 128, 128), (1, 32, 8, 16384, 128, 128),
    (1, 4, 4, 65536, 128, 128), (16, 32, 32, 1024, 64, 64), (1, 8, 8, 16384, 256, 256),
    (1, 16, 16, 16384, 192, 128), (4, 16, 16, 4096, 192, 128),
)


def shape_name(B, H, G, n):
    heads = str(H) if H == G else f"{H}/{G}"
    rows = f"{n // 1024}k" if n % 1024 == 0 else str(n)
    return f"{B}x{heads}x{rows}"


def width_name(D, D_v):
    return f"d{D}" if D == D_v else f"d{D}/{D_v}"


def fail(text):
    sys.exit(f"{os.path.basename(sys.argv[0]).removesuffix('.py')}: {text}")


def find_torch(version, *modules, program=BENCH):
    """PyTorch, if it has these modules, a GPU, and beside it our program."""
    try:
        torch = importlib.import_module("torch")
        for module in modules:
            importlib.import_module(module)
    except ImportError as error:
        fail(f"needs PyTorch {version} or newer, which is not installed here ({error})")
    if not torch.cuda.is_available():
        fail("PyTorch finds no CUDA device")
    if not os.path.exists(program):
        fail(f"there is no {program}: run this from the repository's root, after ninja cuda")
    return torch


class Program:
    """Another program, which answers a line with lines, of which the last is 'end'."""

    def __init__(self, command, environment=None):
        self.command = command
        try:
            self.process = subprocess.Popen(command, text=True, bufsize=1, stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, env=environment)
        except OSError as error:
            fail(f"cannot start {command[0]}: {error.strerror}")

    def ask(self, line):
        """The words of each line of the answer."""
        try:
            print(line, file=self.process.stdin)
        except BrokenPipeError:
            pass  # it has ended, and so has its output
        answer = []
        for text in self.process.stdout:
            words = text.split()
            if words == ["end"]:
                return answer
            answer.append(words)
        fail(f"asked for '{line}', {' '.join(self.command)} has ended")

    def close(self):
        self.process.communicate()


class Ours:
    """A process that measures whatever line it is asked for."""

    def __init__(self, repeats):
        self.program = Program([BENCH, "--turns", "--repeat", str(repeats)])

    def turn(self, rung, label):
        """Milliseconds, GHz, watts."""
        for words in self.program.ask(f"{rung} {label}"):
            if words and words[0] == rung:
                return float(words[6]), float(words[-4]), float(words[-3])
        fail(f"{BENCH} has no line '{rung} {label}'")


class Theirs:
    """PyTorch's attention with one of its backends, on copies of q, k, v and d_out, (B, H, n, D); or, with None,
    flash-attn-4's."""

    def __init__(self, torch, backend, copies, causal, grouped):
        self.torch, self.backend, self.copies = torch, backend, copies
        self.options = {"is_causal": causal, **({"enable_gqa": True} if grouped else {})}
        self.outputs = None

    def forward(self, x):
        if self.backend is None:
            from flash_attn.cute import flash_attn_func
            o = flash_attn_func(*(input.transpose(1, 2) for input in x[:3]), causal=self.options["is_causal"])
            return (o[0] if isinstance(o, tuple) else o).transpose(1, 2)
        return self.torch.nn.functional.scaled_dot_product_attention(*x[:3], **self.options)

    def turn(self, step, repeats):
        from torch.nn.attention import sdpa_kernel

        with sdpa_kernel(self.backend) if self.backend else contextlib.nullcontext():
            # The forward as in training: with what the backward will need.
            if step == "forward":
                runs = [lambda x=x: self.forward(x) for x in self.copies]
            else:
                self.outputs = self.outputs or [self.forward(x) for x in self.copies]
                runs = [lambda x=x, o=o: self.torch.autograd.grad(o, x[:3], x[3], retain_graph=True)
                        for x, o in zip(self.copies, self.outputs)]
            return milliseconds(self.torch, runs, repeats)


def milliseconds(torch, runs, repeats):
    """Of a run: the median, after a warm-up that makes every run once."""
    began = time.monotonic()
    while time.monotonic() - began < 0.05:
        runs[0]()
        torch.cuda.synchronize()
    for i in range(len(runs) + 2):
        runs[i % len(runs)]()
    return milliseconds_in_a_row(torch, runs, repeats)


def milliseconds_in_a_row(torch, runs, repeats):
    """Of a run, enqueued all at once: the median."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for i, (start, end) in enumerate(events):
        start.record()
        runs[i % len(runs)]()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


def copies_of(torch, shape, kind):
    """Four times the L2 cache of inputs, sixteen at most. They lie in memory as (B, n, H, D)."""
    B, H, G, n, D, D_v = shape
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    size = 2 * B * n * (D + D_v) * (H + G)
    arrays = ((H, D), (G, D), (G, D_v), (H, D_v))
    copies = [[torch.randn(B, n, heads, width, device="cuda", dtype=kind).transpose(1, 2)
               for heads, width in arrays] for _ in range(max(1, min(16, -(-4 * cache // size))))]
    for x in copies:
        for input in x[:3]:
            input.requires_grad_()
    return copies


class Table:
    """Prints rows as they come, and writes them to a file with commas, if there is one."""

    def __init__(self, header, widths, left, csv):
        self.widths, self.left, self.csv = widths, left, csv
        self.show(header)
        self.write([name.replace(" ", "_").replace("-", "_") for name in header])

    def show(self, cells):
        print("  ".join(f"{text:{'<' if i < self.left else '>'}{width}}"
                        for i, (text, width) in enumerate(zip(cells, self.widths))), flush=True)

    def write(self, cells):
        if self.csv:
            print(",".join(cells), file=self.csv, flush=True)

    def row(self, cells):
        self.show(cells)
        self.write(cells)


def ratio_and_spread(ours, theirs):
    """How many times as fast ours is, turn by turn: the median; the least and the largest."""
    ratios = sorted(b / a for a, b in zip(ours, theirs))
    if not ratios:
        return ["-", "-"]
    return [f"{statistics.median(ratios):.3f}", f"{ratios[0]:.2f}-{ratios[-1]:.2f}"]


def in_another_order(names, turn):
    first = turn % len(names)
    return names[first:] + names[:first]


def measure(torch, ours, backends, shape, type_name, mask, step, copies, options):
    """The lines' milliseconds by name, and the GPU's state in our turns."""
    B, H, G, n, *widths = shape
    label = f"{step} {shape_name(B, H, G, n)} {width_name(*widths)} {mask} {type_name}"
    peers = {name: Theirs(torch, backend, copies, mask == "causal", H != G)
             for name, backend in backends.items()}
    times = {name: [] for name in (*peers, "ours")}
    states = []
    for turn in range(options.turns):
        for name in in_another_order(list(times), turn):
            try:
                if name == "ours":
                    ms, *state = ours.turn(options.rung, label)
                    states.append(state)
                else:
                    ms = peers[name].turn(step, options.repeat)
                times[name].append(ms)
            except RuntimeError:
                times.pop(name)  # a backend that cannot do this
    return times, [statistics.median(numbers) for numbers in zip(*states)]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TEXT",
                        help="only lines with this text, such as 'forward 1x16x16k d128 full'")
    parser.add_argument("--rung", default="k07",
                        help="which of our kernels, such as k06, whose backward is deterministic "
                             "(k07, which the library launches)")
    parser.add_argument("--turns", type=int, default=5, metavar="T", help="turns of each (5)")
    parser.add_argument("--repeat", type=int, default=10, metavar="N", help="calls of a turn (10)")
    parser.add_argument("--no-fa2", action="store_true", help="cuDNN alone")
    parser.add_argument("--fa4", action="store_true", help="flash-attn-4, too")
    parser.add_argument("--csv", type=argparse.FileType("w"), metavar="FILE",
                        help="the same numbers, separated by commas")
    options = parser.parse_args()

    torch = find_torch("2.3", "torch.nn.attention", *(["flash_attn.cute"] if options.fa4 else []))
    from torch.nn.attention import SDPBackend

    torch.manual_seed(1)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}, "
          f"cuDNN {torch.backends.cudnn.version()}")
    print(f"TFLOP/s: medians of {options.turns} turns of {options.repeat} calls\n")
    header = ("pass", "shape", "dim", "mask", "type", "ours is", "FA2", "FA4", "cuDNN", "ours", "to cuDNN", "spread", "GHz", "W")
    table = Table(header, (9, 11, 8, 6, 4, 7, 7, 7, 7, 7, 8, 11, 5, 4), 6, options.csv)
    backends = {} if options.no_fa2 else {"FA2": SDPBackend.FLASH_ATTENTION}
    if options.fa4:
        backends["FA4"] = None
    backends["cuDNN"] = SDPBackend.CUDNN_ATTENTION
    ours = Ours(options.repeat)
    for shape, type_name in [(shape, "bf16") for shape in SHAPES] + [(SHAPES[2], "fp16")]:
        B, H, G, n, D, D_v = shape
        copies = None
        for mask in ("full", "causal"):
            for step in ("forward", "backward"):
                label = f"{step} {shape_name(B, H, G, n)} {width_name(D, D_v)} {mask} {type_name}"
                if options.only and not any(text in label for text in options.only.split(",")):
                    continue
                kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[type_name]
                copies = copies or copies_of(torch, shape, kind)
                times, state = measure(torch, ours, backends, shape, type_name, mask, step, copies,
                                       options)
                products = D + D_v if step == "forward" else 3 * D + 2 * D_v
                work = 2e-9 * B * H * n * n * products * (0.5, 1)[mask == "full"]
                rates = {name: work / statistics.median(ms) for name, ms in times.items()}
                row = [step, shape_name(B, H, G, n), width_name(D, D_v), mask, type_name, options.rung]
                row += [f"{rates[name]:.1f}" if name in rates else "-"
                        for name in ("FA2", "FA4", "cuDNN", "ours")]
                row += ratio_and_spread(times["ours"], times.get("cuDNN", ()))
                row += [f"{state[0]:.2f}", f"{state[1]:.0f}"]
                table.row(row)


if __name__ == "__main__":
    main()
