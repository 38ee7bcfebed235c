#!/usr/bin/env python3
"""sdpa: the speed of PyTorch's attention on the shapes of bench-cuda, with its conventions.

torch.nn.functional.scaled_dot_product_attention with the FlashAttention-2 kernels and with cuDNN's.
Rates count forward 4 B H n m D operations, backward 2.5 times that, causal half. Times are medians
of CUDA events around one call, which are enqueued all at once; inputs are normal random numbers,
in as many copies as it takes to be four times the L2 cache. The backward is torch.autograd.grad for
q, k and v: with all that this does, as for bench-cuda.

Needs PyTorch and a GPU; without them it says so and ends with status 1.
"""
import argparse
import statistics
import sys
import time

# Batches, query heads, key/value heads, tokens, numbers per head: those of tests/rig/bench_kernels.c.
SHAPES = (
    (4, 16, 16, 4096, 128), (4, 32, 32, 4096, 64), (16, 16, 16, 1024, 128),
    (1, 16, 16, 16384, 128), (1, 4, 4, 65536, 128), (1, 32, 8, 16384, 128),
    (16, 32, 32, 1024, 64), (1, 32, 32, 16384, 64),
)
# One GPU's share of the rings that bench-cuda measures.
SHARES = ((1, 16, 16, 32768, 128), (1, 32, 8, 8192, 128))


def shape_name(B, H, G, n):
    heads = str(H) if H == G else f"{H}/{G}"
    rows = f"{n // 1024}k" if n % 1024 == 0 else str(n)
    return f"{B}x{heads}x{rows}"


def measure(torch, runs, repeats):
    """Milliseconds of a run: the median, after a warm-up that makes every run once."""
    began = time.monotonic()
    while time.monotonic() - began < 0.05:
        runs[0]()
        torch.cuda.synchronize()
    for i in range(len(runs) + 2):
        runs[i % len(runs)]()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for i, (start, end) in enumerate(events):
        start.record()
        runs[i % len(runs)]()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events)


def copies_of(torch, shape, kind):
    """Tuples of q, k, v and d_out, (B, H, n, D): four times the L2 cache of them, sixteen at most.

    They lie in memory as (B, n, H, D), as for bench-cuda.
    """
    B, H, G, n, D = shape
    count = 1
    copies = []
    while len(copies) < count:
        copies.append([torch.randn(B, n, heads, D, device="cuda", dtype=kind).transpose(1, 2)
                       for heads in (H, G, G, H)])
        size = sum(x.numel() * x.element_size() for x in copies[0])
        cache = torch.cuda.get_device_properties(0).L2_cache_size
        count = max(1, min(16, -(-4 * cache // size)))
    return copies


def lines(torch, backend, name, shape, type_name, options):
    from torch.nn.attention import sdpa_kernel

    B, H, G, n, D = shape
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[type_name]
    attention = torch.nn.functional.scaled_dot_product_attention
    grouped = {"enable_gqa": True} if H != G else {}
    copies = None
    for mask in ("full", "causal"):
        labels = {step: f"{name} {step} {shape_name(B, H, G, n)} d{D} {mask} {type_name}"
                  for step in ("forward", "backward")}
        if options.only and not any(options.only in label for label in labels.values()):
            continue
        copies = copies or copies_of(torch, shape, kind)
        work = 4 * B * H * n * n * D * (0.5 if mask == "causal" else 1)

        try:
            with sdpa_kernel(backend):
                # The forward as in training: with what the backward will need.
                for q, k, v, _ in copies:
                    for x in (q, k, v):
                        x.requires_grad_()
                forwards = [lambda x=x: attention(*x[:3], is_causal=mask == "causal", **grouped)
                            for x in copies]
                times = {}
                if not options.only or options.only in labels["forward"]:
                    times["forward"] = measure(torch, forwards, options.repeat)
                if not options.only or options.only in labels["backward"]:
                    outputs = [forward() for forward in forwards]
                    backwards = [lambda x=x, o=o: torch.autograd.grad(o, x[:3], x[3],
                                                                      retain_graph=True)
                                 for x, o in zip(copies, outputs)]
                    times["backward"] = measure(torch, backwards, options.repeat)
        except RuntimeError as error:
            print(f"{name:<6} {shape_name(B, H, G, n)} d{D} {mask} {type_name}: "
                  f"{str(error).splitlines()[0]}", flush=True)
            continue

        for step, ms in times.items():
            rate = 1e-9 * work * (2.5 if step == "backward" else 1) / ms
            print(f"{name:<6} {step:<25} {shape_name(B, H, G, n):<11} d{D:<4}{mask:<6} "
                  f"{type_name:<4} {ms:9.3f} {rate:7.1f}", flush=True)
            if options.csv:
                print(f"{name},{step},{shape_name(B, H, G, n)},{D},{mask},{type_name},{ms:.6f},"
                      f"{rate:.3f}", file=options.csv, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="TEXT",
                        help="only lines whose name has this text, such as 'cuDNN forward'")
    parser.add_argument("--quick", action="store_true", help="fewer shapes, three repeats")
    parser.add_argument("--repeat", type=int, metavar="N", help="repeats (10)")
    parser.add_argument("--csv", type=argparse.FileType("w"), metavar="FILE",
                        help="the same numbers, separated by commas")
    options = parser.parse_args()
    options.repeat = options.repeat or (3 if options.quick else 10)

    try:
        import torch
        from torch.nn.attention import SDPBackend
    except ImportError as error:
        sys.exit(f"sdpa: needs PyTorch 2.3 or newer, which is not installed here ({error})")
    if not torch.cuda.is_available():
        sys.exit("sdpa: PyTorch finds no CUDA device")

    torch.manual_seed(1)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, CUDA {torch.version.cuda}, "
          f"cuDNN {torch.backends.cudnn.version()}")
    print("rates: forward 4 B H n m D operations, backward 2.5 times that, causal half; medians of "
          f"{options.repeat}\n")
    print(f"{'kernel':<6} {'pass':<25} {'shape':<11} {'dim':<4} {'mask':<6} {'type':<4} {'ms':>9} "
          f"{'TFLOP/s':>7}")
    if options.csv:
        print("kernel,pass,shape,dim,mask,type,ms,TFLOP/s", file=options.csv)
    backends = (("FA2", SDPBackend.FLASH_ATTENTION), ("cuDNN", SDPBackend.CUDNN_ATTENTION))
    for shape in SHAPES[:2] if options.quick else SHAPES + SHARES:
        for name, backend in backends:
            lines(torch, backend, name, shape, "bf16", options)
    if not options.quick:
        for name, backend in backends:
            lines(torch, backend, name, SHAPES[0], "fp16", options)


if __name__ == "__main__":
    main()
