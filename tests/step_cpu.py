#!/usr/bin/env python3
"""step_cpu: a training step of stage 10's transformer in PyTorch, on the CPU, and ours beside it.

The same model (tests/rig/model_oracle.py says which) from PyTorch's own parts, float32:
functional.linear, rms_norm, gelu, cross_entropy, scaled_dot_product_attention with causal grouped
heads, of dim/heads numbers each; then clip_grad_norm_ and torch.optim.AdamW, fused. A step is all
of this: forward, backward, clipping, update. First the model is held against
tests/fixtures/causal-gqa: its loss and its gradients. Then

    step_cpu.py --dim 256 --depth 4 --tokens 1024

prints the median of --repeat steps, after two to warm up:

    seconds per step 0.5

With --ours build/10-transformer the two take turns, --rounds times, and it prints the medians of
both, their ratio, which is how many times as fast ours is, and the least and the greatest ratio of
a round. Ours is called

    build/10-transformer bench --dim .. --depth .. --heads .. --key-heads .. --tokens .. --batch ..
        --vocabulary .. --threads .. --repeat ..

and must print the same line.

With --ours and --ranks P there is no PyTorch: one rank, P ranks with a thread each, and P programs
of one rank at once take turns, each rank or program on a processor of its own. The last says what P
processors of this machine are worth at the same time: they share clock, memory and caches, and on a
virtual machine with others. A quarter of the tokens is enough for that.

    step_cpu.py --tokens 8192 --repeat 2 --rounds 3 --ours build/10-transformer --ranks 8

PyTorch goes into a folder outside the repository, and this is run from the repository's root:

    python3 -m venv SOME-FOLDER
    SOME-FOLDER/bin/pip install torch numpy --index-url https://download.pytorch.org/whl/cpu
    SOME-FOLDER/bin/python tests/step_cpu.py
"""
import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time

FIXTURE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fixtures", "causal-gqa")
SIZES = (("dim", 256), ("depth", 4), ("heads", 8), ("key-heads", 2), ("tokens", 1024), ("batch", 1),
         ("vocabulary", 256), ("threads", len(os.sched_getaffinity(0))), ("repeat", 5))
LINE = re.compile(r"^seconds per step (\S+)$", re.MULTILINE)


class Model:
    """The transformer, with grouped heads. weights are by the names of the fixtures."""

    def __init__(self, torch, weights, depth, heads, key_heads, length):
        self.torch, self.weights = torch, weights
        self.depth, self.heads, self.key_heads = depth, heads, key_heads
        D = weights["layers.0.0.to_out.weight"].shape[1] // heads
        frequency = 10000.0 ** (-2 * torch.arange(D // 2, dtype=torch.float64) / D)
        angle = torch.arange(length)[:, None] * frequency.repeat(2)
        self.cos, self.sin = angle.cos().float(), angle.sin().float()

    def rotate(self, x, angles):
        first, second = x.chunk(2, dim=-1)
        cos, sin = angles
        return x * cos + self.torch.cat((-second, first), dim=-1) * sin

    def attention(self, x, layer, angles):
        F, w = self.torch.nn.functional, self.weights
        B, N, _ = x.shape
        H, G = self.heads, self.key_heads
        qkv = F.linear(x, w[f"layers.{layer}.0.to_qkv.1.weight"]).view(B, N, H + 2 * G, -1)
        q, k, v = qkv.transpose(1, 2).split((H, G, G), dim=1)
        o = F.scaled_dot_product_attention(self.rotate(q, angles).to(v.dtype),
                                           self.rotate(k, angles).to(v.dtype), v,
                                           is_causal=True, **({"enable_gqa": True} if H != G else {}))
        return F.linear(o.transpose(1, 2).reshape(B, N, -1), w[f"layers.{layer}.0.to_out.weight"])

    def feed_forward(self, x, layer):
        F, w = self.torch.nn.functional, self.weights
        start = f"layers.{layer}.1."
        hidden = F.gelu(F.linear(x, w[start + "1.weight"], w[start + "1.bias"]))
        return F.linear(hidden, w[start + "3.weight"], w[start + "3.bias"])

    def norm(self, x, name):
        gamma = self.weights[name + ".gamma"]
        return self.torch.nn.functional.rms_norm(x, gamma.shape, gamma, eps=1e-24)

    def loss(self, tokens, labels, angles=None):
        """angles: those of these tokens, if they are not the first of the sequence."""
        F, w = self.torch.nn.functional, self.weights
        angles = angles or (self.cos, self.sin)
        x = F.embedding(tokens, w["token_emb.weight"])
        for layer in range(self.depth):
            x = x + self.attention(self.norm(x, f"layers.{layer}.0.to_qkv.0"), layer, angles)
            x = x + self.feed_forward(self.norm(x, f"layers.{layer}.1.0"), layer)
        logits = F.linear(self.norm(x, "to_logits.0"), w["to_logits.1.weight"])
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1)


# ---- The fixture ----


def grouped(name, array, heads, key_heads):
    """A weight of the fixture with its query heads in another order, or the gradient of one.

    There, query head h reads key/value head h mod G; in this order it reads h/(H/G).
    """
    order = [h for g in range(key_heads) for h in range(g, heads, key_heads)]
    if name.endswith("to_out.weight"):
        return array.unflatten(1, (heads, -1))[:, order].flatten(1)
    if name.endswith("to_qkv.1.weight"):
        rows = array.unflatten(0, (heads + 2 * key_heads, -1))
        return rows[order + list(range(heads, heads + 2 * key_heads))].flatten(0, 1)
    return array


def check_fixture(torch, np):
    """Ends the program unless this is the fixture's model."""
    with open(os.path.join(FIXTURE, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    heads = config["heads"]
    key_heads = heads // config["num_grouped_query_heads"]

    def read(*path):
        return torch.from_numpy(np.load(os.path.join(FIXTURE, *path)))

    names = [file[:-4] for file in sorted(os.listdir(os.path.join(FIXTURE, "gradients")))]
    weights = {}
    for name in names:
        weight = grouped(name, read("weights", name + ".npy"), heads, key_heads)
        weights[name] = weight.float().requires_grad_()
    model = Model(torch, weights, config["depth"], heads, key_heads, read("tokens.npy").shape[-1])
    loss = model.loss(read("tokens.npy").long(), read("labels.npy").long())
    loss.backward()
    error = abs(loss.item() - read("loss.npy").item())
    worst = 0.0
    for name in names:
        truth = grouped(name, read("gradients", name + ".npy"), heads, key_heads)
        worst = max(worst, ((truth - weights[name].grad).abs().max() / truth.abs().max()).item())
    if not (error < 1e-5 and worst < 2e-5):
        sys.exit(f"step_cpu: PyTorch's model is not that of {FIXTURE}: loss off by {error:.1e}, a "
                 f"gradient by {worst:.1e} of its largest number")


# ---- The two that take turns ----


def weights_of(torch, dim, depth, heads, key_heads, D, vocabulary, device="cpu"):
    """Random ones, by the names of the fixtures."""
    shapes = {"token_emb.weight": (vocabulary, dim)}
    for layer in range(depth):
        shapes.update({f"layers.{layer}.{name}": shape for name, shape in (
            ("0.to_qkv.0.gamma", (dim,)),
            ("0.to_qkv.1.weight", ((heads + 2 * key_heads) * D, dim)),
            ("0.to_out.weight", (dim, heads * D)),
            ("1.0.gamma", (dim,)), ("1.1.weight", (4 * dim, dim)), ("1.1.bias", (4 * dim,)),
            ("1.3.weight", (dim, 4 * dim)), ("1.3.bias", (dim,)))})
    shapes.update({"to_logits.0.gamma": (dim,), "to_logits.1.weight": (vocabulary, dim)})
    return {name: (torch.ones(shape, device=device) if name.endswith("gamma") else
                   torch.randn(shape, device=device) / math.sqrt(dim)).requires_grad_()
            for name, shape in shapes.items()}


class Theirs:
    def __init__(self, torch, options):
        torch.set_num_threads(options.threads)
        torch.manual_seed(1)
        weights = weights_of(torch, options.dim, options.depth, options.heads, options.key_heads,
                             options.dim // options.heads, options.vocabulary)
        self.torch = torch
        self.parameters = list(weights.values())
        self.model = Model(torch, weights, options.depth, options.heads, options.key_heads,
                           options.tokens)
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-3, weight_decay=0.1, fused=True)
        text = torch.randint(options.vocabulary, (options.batch, options.tokens + 1))
        self.tokens, self.labels = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        self.repeat = options.repeat
        for _ in range(2):
            self.step()

    def step(self):
        self.optimizer.zero_grad()
        self.model.loss(self.tokens, self.labels).backward()
        self.torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()

    def seconds(self):
        times = []
        for _ in range(self.repeat):
            start = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - start)
        return statistics.median(times)


class Ours:
    def __init__(self, program, options, **changed):
        self.command = [program, "bench"]
        for name, _ in SIZES:
            value = changed.get(name, getattr(options, name.replace("-", "_")))
            self.command += ["--" + name, str(value)]

    def start(self, before=()):
        # Open MPI asks root to insist twice.
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        return subprocess.Popen([*before, *self.command], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, env=environment)

    def seconds(self, process=None):
        process = process or self.start()
        output, errors = process.communicate()
        line = LINE.search(output)
        if process.returncode != 0 or not line:
            sys.exit(f"step_cpu: {' '.join(self.command)}: exit status {process.returncode}, no "
                     f"line 'seconds per step X': {(errors or output).strip()}")
        return float(line[1])


# ---- Ranks ----


def scale(options):
    P, processors = options.ranks, sorted(os.sched_getaffinity(0))
    places = processors[::len(processors) // P][:P]
    whole = Ours(options.ours, options, threads=1)
    whole.command += ["--layout", "zigzag"]
    part = Ours(options.ours, options, threads=1, tokens=max(1, options.tokens // 4))
    ranks = ["mpirun", "--bind-to", "none", "-n", str(P), "sh", "-c", "place=$(echo $0 | cut -d, -f"
             "$((OMPI_COMM_WORLD_RANK + 1))) && exec taskset -c $place \"$@\"",
             ",".join(map(str, places))]

    def alone(ours):
        return ours.seconds(ours.start(("taskset", "-c", str(places[0]))))

    one, together, worth = [], [], []
    for _ in range(options.rounds):
        one.append(alone(whole))
        together.append(whole.seconds(whole.start(ranks)))
        before = alone(part)
        jobs = [part.start(("taskset", "-c", str(place))) for place in places]
        times = [part.seconds(job) for job in jobs]
        worth.append((before + alone(part)) / 2 * sum(1 / time for time in times))
    ratios = sorted(mine / ours for mine, ours in zip(one, together))
    print(f"one rank   seconds per step {statistics.median(one):.4g}")
    print(f"{P} ranks    seconds per step {statistics.median(together):.4g}: "
          f"{statistics.median(ratios):.2f} x ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    print(f"{P} processors at once are worth {statistics.median(worth):.2f} "
          f"({min(worth):.2f} to {max(worth):.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in SIZES:
        parser.add_argument("--" + name, type=int, default=default, metavar="X",
                            help=f"({default})")
    parser.add_argument("--ours", metavar="PROGRAM",
                        help="our program, which takes turns with PyTorch")
    parser.add_argument("--rounds", type=int, default=5, metavar="X",
                        help="turns of each, with --ours (5)")
    parser.add_argument("--ranks", type=int, metavar="P",
                        help="with --ours, instead of PyTorch: P ranks against one")
    options = parser.parse_args()
    if min(getattr(options, name.replace("-", "_")) for name, _ in SIZES) < 1 or options.rounds < 1:
        parser.error("all sizes must be at least 1")
    if options.dim % (2 * options.heads) or options.heads % options.key_heads:
        parser.error("--dim must be an even multiple of --heads, and --heads a multiple of "
                     "--key-heads")
    if options.ranks is not None:
        if not options.ours or not 1 <= options.ranks <= len(os.sched_getaffinity(0)):
            parser.error("--ranks wants --ours, and from 1 to as many as there are processors")
        scale(options)
        return
    try:
        import numpy
        import torch
    except ImportError as error:
        sys.exit(f"step_cpu: needs PyTorch and NumPy ({error}); --help says how to get them")
    check_fixture(torch, numpy)

    theirs = Theirs(torch, options)
    if not options.ours:
        print(f"seconds per step {theirs.seconds():.4g}")
        return
    ours = Ours(options.ours, options)
    rounds = [(ours.seconds(), theirs.seconds()) for _ in range(options.rounds)]
    ratios = sorted(other / mine for mine, other in rounds)
    mine, other = (statistics.median(times) for times in zip(*rounds))
    print(f"ours     seconds per step {mine:.4g}")
    print(f"PyTorch  seconds per step {other:.4g}")
    print(f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
