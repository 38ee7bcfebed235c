#!/usr/bin/env python3
"""varlen: masks of slices on a GPU beside what PyTorch and flash-attn-4 have for them, in one run.

Ours is k07 with a list of work, as `build/bench-cuda --only slices` runs it, before the others and once
more behind them. Theirs are varlen_attn and compiled flex_attention of PyTorch and, if it can be imported,
flash_attn_varlen_func of flash-attn-4: for the same rows, the same documents, bfloat16, 16 heads of 128.

Rates count 4 D operations for each visible pair and head, backward 2.5 times that. A time is a median of
CUDA events around single calls, which are enqueued all at once, on as many copies of the inputs as it takes
to be four times the L2 cache. Making the mask is not counted, nor compiling. The backward is all that a
caller pays: torch.autograd.grad for q, k and v; ours with delta, emptying dq, dk and dv, and rounding them.

Needs PyTorch 2.10 or newer and a GPU, and `ninja cuda`; without them it says so and ends with status 1.
"""
import argparse
import inspect
import statistics
import subprocess
import sys

sys.path.insert(0, "tests")
import sdpa

ROWS, HEADS, DIM = 32768, 16, 128
NEVER = 1 << 30


class Mask:
    """Documents of these lengths; each key at most `back` rows back, or in the first `prefix` rows."""

    def __init__(self, name, lengths, back=NEVER, prefix=0):
        self.name, self.lengths, self.back, self.prefix = name, lengths, back, prefix

    def pairs(self):
        return sum(min(i + 1, self.back + 1) + max(0, self.prefix - i - 1) for rows in self.lengths
                   for i in range(rows))


def bench():
    """The lines of our program: by pass and mask milliseconds; and the log-normal lengths."""
    said = subprocess.run([sdpa.BENCH, "--only", "slices", "--repeat", "20"], text=True, check=True,
                          stdout=subprocess.PIPE).stdout.splitlines()
    times, lengths = {}, []
    for line in said:
        words = line.split()
        if line.startswith("log-normal lengths:"):
            lengths = [int(word) for word in words[2:]]
        if words[:1] == ["k07"] and f"d{DIM}" in words:
            end = words.index(f"1x{HEADS}x{ROWS // 1024}k")
            times[words[1], " ".join(words[2:end])] = float(words[words.index("ms") - 1])
    return times, lengths


def milliseconds(torch, run, count, repeats=20):
    """A median over calls of run(copy)."""
    for i in range(3 * count):
        run(i % count)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * repeats)]
    torch.cuda.synchronize()
    for i in range(repeats):
        events[2 * i].record()
        run(i % count)
        events[2 * i + 1].record()
    torch.cuda.synchronize()
    return statistics.median(events[2 * i].elapsed_time(events[2 * i + 1]) for i in range(repeats))


def flex(torch, mask):
    """flex_attention of this mask, compiled, for (rows, heads, dim)."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    document = torch.repeat_interleave(torch.arange(len(mask.lengths), device="cuda"),
                                       torch.tensor(mask.lengths, device="cuda"))
    begins = torch.tensor([0] + mask.lengths[:-1], device="cuda").cumsum(0)
    start = begins[document]
    back, prefix = mask.back, mask.prefix

    def sees(b, h, i, j):
        seen = j <= i
        if back < NEVER:
            seen = seen & (i - j <= back)
        if prefix:
            seen = seen | (j - start[j] < prefix)
        return seen & (document[i] == document[j])

    block_mask = create_block_mask(sees, None, None, ROWS, ROWS, device="cuda", _compile=True)
    attend = torch.compile(flex_attention, dynamic=False)
    return lambda q, k, v: attend(*(x.transpose(0, 1)[None] for x in (q, k, v)),
                                  block_mask=block_mask)[0].transpose(0, 1)


def varlen(torch, mask):
    """varlen_attn of PyTorch; None: it has no such mask."""
    from torch.nn.attention.varlen import varlen_attn
    if mask.prefix:
        return None
    bounds = torch.tensor([0] + mask.lengths, device="cuda").cumsum(0).to(torch.int32)
    longest = max(mask.lengths)
    if "is_causal" in inspect.signature(varlen_attn).parameters:  # PyTorch 2.10
        causal = None if mask.back < NEVER else {"is_causal": True}
    else:
        causal = {"window_size": (-1 if mask.back == NEVER else mask.back, 0)}
    return causal and (lambda q, k, v: varlen_attn(q, k, v, bounds, bounds, longest, longest, **causal))


def flash(torch, mask):
    """flash_attn_varlen_func of flash-attn-4; None: it has no such mask."""
    from flash_attn.cute import flash_attn_varlen_func
    if mask.prefix:
        return None
    bounds = torch.tensor([0] + mask.lengths, device="cuda").cumsum(0).to(torch.int32)
    longest = max(mask.lengths)
    window = (None, None) if mask.back == NEVER else (mask.back, 0)

    def attend(q, k, v):
        o = flash_attn_varlen_func(q, k, v, cu_seqlens_q=bounds, cu_seqlens_k=bounds,
                                   max_seqlen_q=longest, max_seqlen_k=longest, causal=True,
                                   window_size=window)
        return o[0] if isinstance(o, tuple) else o
    return attend


def measure(torch, make, mask, copies):
    """Milliseconds forward and backward, and how far o is from flex_attention's."""
    torch.compiler.reset()
    attend = make(torch, mask)
    if attend is None:
        return None
    with torch.no_grad():
        forward = milliseconds(torch, lambda i: attend(*copies[i][:3]), len(copies))
    outputs = [attend(*copy[:3]) for copy in copies]
    backward = milliseconds(torch, lambda i: torch.autograd.grad(
        outputs[i], copies[i][:3], copies[i][3], retain_graph=True), len(copies))
    return forward, backward, outputs[0].detach()


def main():
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--csv", type=argparse.FileType("w"), metavar="FILE",
                        help="the same numbers, separated by commas")
    options = parser.parse_args()
    torch = sdpa.find_torch("2.10", "torch.nn.attention.varlen")
    before, lengths = bench()
    whole = [ROWS]
    masks = [Mask("documents 512", [512] * (ROWS // 512)), Mask("documents 2k", [2048] * (ROWS // 2048)),
             Mask("documents 8k", [8192] * (ROWS // 8192)), Mask("documents log-normal", lengths),
             Mask("causal", whole), Mask("prefix of a quarter", whole, prefix=ROWS // 4),
             Mask("window 1k in documents", lengths, back=1024)]
    torch.manual_seed(1)
    copies = [[torch.randn(ROWS, HEADS, DIM, dtype=torch.bfloat16, device="cuda", requires_grad=i < 3)
               for i in range(4)] for _ in range(2)]
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}; TFLOP/s of visible pairs", flush=True)
    theirs = {}
    for mask in masks:
        right = None
        for name, make in (("flex_attention", flex), ("varlen_attn", varlen), ("flash-attn-4", flash)):
            try:
                got = measure(torch, make, mask, copies)
            except Exception as error:  # whatever a peer cannot do is its answer
                print(f"{name}, {mask.name}: {type(error).__name__}: {str(error).splitlines()[0][:150]}", flush=True)
                continue
            if got is None:
                continue
            right = got[2] if right is None else right
            apart = (got[2].float() - right.float()).abs().max().item()
            if not apart < 0.05:
                print(f"{name}, {mask.name}: o differs from flex_attention's by {apart}", flush=True)
            theirs["forward", mask.name, name], theirs["backward", mask.name, name] = got[:2]
    after, _ = bench()
    names = ("flash-attn-4", "flex_attention", "varlen_attn")
    if options.csv:
        print("pass,mask,before,after", *names, "to_best", sep=",", file=options.csv)
    for mask in masks:
        for step, factor in (("forward", 4), ("backward", 10)):
            work = 1e-9 * factor * mask.pairs() * HEADS * DIM
            ours = [work / times[step, mask.name] for times in (before, after)]
            peers = {name: work / ms for (a, b, name), ms in theirs.items() if (a, b) == (step, mask.name)}
            best = max(peers.values(), default=float("nan"))
            print(f"{step:8} {mask.name:24} ours {ours[0]:.0f} and {ours[1]:.0f}; " +
                  ", ".join(f"{name} {rate:.0f}" for name, rate in peers.items()) +
                  f"; ours to the best {statistics.mean(ours) / best:.2f}", flush=True)
            if options.csv:
                rates = [f"{rate:.1f}" for rate in ours] + [f"{peers[name]:.1f}" if name in peers else "-" for name in names]
                print(step, mask.name, *rates, f"{statistics.mean(ours) / best:.3f}", sep=",", file=options.csv)


if __name__ == "__main__":
    main()
