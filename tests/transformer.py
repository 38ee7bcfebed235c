#!/usr/bin/env python3
"""transformer: 10-transformer as a whole, on many ranks, held against the oracle and against itself.

    transformer.py BUILD [PART...] [--seed S] [--rounds N] [--ranks W]

The parts, all of them unless some are named:

    equivalence   one step: logits, loss and every gradient, against tests/rig/model_oracle.py
    documents     one step on packed documents, against the oracle on each of them by itself
    shifts        one step, where all keys have much in common
    bfloat16      one step that rounds around products, against the oracle, which rounds at the same places
    curves        the loss of one training on all ranks and layouts, and the bits of --recompute
    adamw         some steps of training, also on padded rows, packed documents and in micro-batches, against
                  the oracle and AdamW in float64
    resume        jobs that are killed at any moment, and go on
    decoding      the tokens that follow, against the oracle, and on all numbers of ranks
    trouble       ranks that die or stop in training and in decoding
    files         outputs that are whole or not at all, and take the place of nothing that is needed
    commands      what is refused, and models that go out and come in again
    moving        models of ring-attention-pytorch, whose config.json is its keyword arguments
    assert        tests/assert.py itself

--seed draws other models and runs; each further round (--rounds) has random models; --ranks runs less:
what is compared with the oracle, on one number of ranks alone. Everything lies below
BUILD/transformer; runs of one number of ranks share a launch of BUILD/batch-10-transformer. The
last line is "N passed, N failed"; the exit status is 1 if any failed or none ran.
"""
import argparse
import concurrent.futures
import glob
import json
import math
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import numpy as np

sys.dont_write_bytecode = True  # nothing that is built lies outside BUILD
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "rig"))
import folders
import jobs
sys.path.insert(0, HERE)
import model_compare
import model_oracle

PYTHON = sys.executable
TIMEOUT = 60  # seconds until a rank gives up waiting for another, where nobody stops one
HANGS = 600  # seconds until a job counts as hanging: on a busy machine one of a second may take more than a minute

# One step may be off by so much, see model_compare.py.
TOLERANCE = 2e-5


class Test:
    """What a part of the test has: where it may write, and what has passed and failed."""

    def __init__(self, build, folder, options):
        self.build, self.folder, self.options = build, folder, options
        self.program = os.path.join(build, "10-transformer")
        self.passed = self.failed = 0

    def path(self, *names):
        """A path below the test's folder. Folders on the way to it are made."""
        path = os.path.join(self.folder, *names)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def wants(self, name):
        """Whether to run what is called so, a model or one of adamw's ways."""
        return self.options.only in (None, str(name).replace(" ", "_"))

    def verdict(self, name, complaints):
        """Notes a test; complaints is a list of texts, or what is wrong as one text, or nothing."""
        complaints = [complaints] if isinstance(complaints, str) and complaints else complaints or []
        self.passed, self.failed = self.passed + (not complaints), self.failed + bool(complaints)
        if complaints:
            print(f"FAILED  {name}: " + "; ".join(complaints[:4]) +
                  (f"; and {len(complaints) - 4} more" if len(complaints) > 4 else ""), flush=True)

    def run_batches(self, runs):
        """Runs all (ranks, words), those of one number of ranks in one launch. The last word of a run
        is its result, beside which what it prints goes. Returns what failed, by the place in runs."""
        failures = {}
        for ranks in sorted({ranks for ranks, _ in runs}):
            places = [place for place, run in enumerate(runs) if run[0] == ranks]
            lines = [" ".join(map(str, runs[place][1])) for place in places]
            number = len(os.listdir(self.folder))
            lost = jobs.run_lines(os.path.join(self.build, "batch-10-transformer"), ranks, lines,
                                  self.path(f"lines-{number}-{ranks}"))
            failures.update({places[line]: text for line, text in lost.items()})
        return failures

    def command(self, ranks, *words):
        """The command line of a run by itself. One rank does without mpirun."""
        words = [self.program, *map(str, words)]
        return jobs.mpirun(ranks, *words) if ranks > 1 else jobs.alone(self.folder, *words)


# ---- Equivalence: one step, against the oracle ----


# Models: what differs from model_oracle's small model of 2 layers with 4 query heads and 2 of keys,
# and then which labels and keys there are.
MODELS = {
    "plain": {},
    "causal, odd length": dict(causal=True, length=31, num_grouped_query_heads=1),
    "one head of keys": dict(causal=True, num_grouped_query_heads=4, head_map="interleaved"),
    "interleaved": dict(causal=True, heads=6, num_grouped_query_heads=3, head_map="interleaved"),
    "lookback": dict(causal=True, depth=3, lookback=[5, None, 0], length=31, batch=1),
    "lookback over ranks": dict(causal=True, depth=2, lookback=[13, 100], length=40),
    "soft cap": dict(causal=True, softcap=1.5, head_map="interleaved"),
    "tied": dict(causal=True, tied=True, batch=5),
    "mask": dict(masked=0.3, softcap=3.0),
    "mask, causal": dict(causal=True, masked=0.5, lookback=[9, None], batch=3),
    "row without keys": dict(masked="a row", batch=2),
    "labels ignored": dict(causal=True, ignored=0.7, batch=4),
    "labels of one rank": dict(causal=True, ignored="all but some at the end", batch=1),
    "no labels": dict(causal=True, ignored=1.0, batch=2),
    "narrow, odd sizes": dict(causal=True, ff_mult=1, dim=13, dim_head=6, num_tokens=7, heads=3,
                              num_grouped_query_heads=3),
    "rotary": dict(causal=True, rotary_theta=300.0, rotary_scale=2.5, length=37),
    "wide": dict(causal=True, dim=80, dim_head=20, ff_mult=3, num_tokens=300, length=70, batch=1,
                 depth=1),
    "norm rms": dict(causal=True, norm="rms", norm_eps=1e-2),
    "norm layer": dict(causal=True, norm="layer", norm_eps=1e-3, dim=33),
    "norm of heads": dict(causal=True, head_norm=True, norm_eps=0.03, dim_head=6, length=29),
    "swiglu": dict(feed="swiglu", feed_bias=False, dim=20, ff_mult=3),
    "swiglu with biases": dict(feed="swiglu", causal=True),
    "gelu without biases": dict(feed_bias=False, causal=True),
    "bias of q, k and v": dict(qkv_bias=True, causal=True),
    "bias of attention": dict(out_bias=True, causal=True, lookback=[3, None]),
    "bias of logits": dict(logits_bias=True, causal=True, num_tokens=51),
    "bias of tied logits": dict(logits_bias=True, tied=True),
    "learned positions": dict(causal=True, positions="learned", longest=40, position_scale=0.3, dim_head=5,
                              length=37),
    "llama 3's frequencies": dict(causal=True, rotary_scaling="llama3", rotary_original=40, rotary_theta=50.0,
                                  dim_head=16, length=45),
    "scaled twice": dict(rotary_scaling="llama3", rotary_factor=3.0, rotary_low=2.0, rotary_high=3.0,
                         rotary_original=77, rotary_scale=2.0, dim_head=16),
    "mgqa": dict(causal=True, norm="layer", norm_eps=1e-5, positions="learned", position_scale=32**-0.5,
                 logits_bias=True, head_map="interleaved"),
    "llama": dict(causal=True, norm="rms", norm_eps=1e-5, feed="swiglu", feed_bias=False),
    "qwen 2": dict(causal=True, norm="rms", feed="swiglu", feed_bias=False, qkv_bias=True, tied=True),
    "qwen 3": dict(causal=True, norm="rms", feed="swiglu", feed_bias=False, head_norm=True, dim_head=12,
                   tied=True),
    "norm rms plus one": dict(causal=True, norm="rms_plus_one", head_norm=True),
    "geglu": dict(feed="geglu", feed_bias=False, dim=20, ff_mult=3),
    "norms behind": dict(causal=True, post_norm=True, norm="layer", feed="geglu", out_bias=True),
    "soft cap of logits": dict(causal=True, logits_softcap=1.5, logits_bias=True, num_tokens=51),
    "scales": dict(causal=True, attention_scale=0.4, embedding_scale=3.0, positions="learned"),
    "gemma 2": dict(causal=True, norm="rms_plus_one", feed="geglu", feed_bias=False, post_norm=True, tied=True,
                    attention_scale=12**-0.5, softcap=2.0, logits_softcap=3.0, embedding_scale=32**0.5,
                    lookback=[6, None]),
    "sinks": dict(causal=True, sinks=True, lookback=[6, None], head_norm=True, masked=0.3),
    "yarn": dict(causal=True, rotary_scaling="yarn", rotary_original=60, rotary_theta=50.0, rotary_low=0.5,
                 dim_head=16, length=45, rotary_scale=2.0),
    "gpt-oss without experts": dict(causal=True, norm="rms", feed="swiglu", feed_bias=False, qkv_bias=True, out_bias=True,
                                    sinks=True, rotary_scaling="yarn_untruncated", rotary_factor=32.0, rotary_high=32.0,
                                    rotary_original=400, rotary_theta=150000.0, attention_scale=0.5, lookback=[6, None]),
    "all parts": dict(norm="layer", norm_eps=0.1, feed="swiglu", qkv_bias=True, out_bias=True, head_norm=True,
                      logits_bias=True, positions="learned", longest=24, masked=0.2),
    "fewer tokens than ranks": dict(causal=True, length=3, batch=4),
    "one token": dict(length=1, batch=3, ignored=0.0),
}

# Ranks and sizes of rings; layouts.
RINGS = ((1, 1), (2, 2), (3, 3), (4, 4), (4, 2), (6, 3), (6, 2), (8, 8))
LAYOUTS = ("contiguous", "striped", "bucket", "zigzag")


def random_model(rng):
    """Another of them, drawn at random."""
    def pick(*choices):
        return choices[rng.integers(len(choices))]
    sharing, depth, causal = pick(1, 2, 4), pick(1, 2, 3), pick(True, True, False)
    lookback = [pick(None, int(rng.integers(0, 50))) for _ in range(depth)] if causal else None
    return dict(causal=causal, depth=depth, lookback=lookback, num_grouped_query_heads=sharing,
                heads=sharing * pick(1, 2, 3), head_map=pick("grouped", "interleaved"),
                dim=pick(8, 17, 32, 64), dim_head=pick(2, 8, 16), num_tokens=pick(5, 50, 257),
                length=int(rng.integers(1, 80)), batch=pick(1, 2, 3, 5), softcap=pick(0.0, 0.0, 2.0),
                tied=pick(True, False), ff_mult=pick(1, 2, 4), masked=pick(0.0, 0.0, 0.4),
                ignored=pick(0.0, 0.1, 0.8))


def make_problem(model, seed, folder):
    """Writes the problem of a model."""
    masked, ignored = model.get("masked", 0.0), model.get("ignored", 0.1)
    given = {key: value for key, value in model.items() if key not in ("masked", "ignored")}
    config = model_oracle.checked({key: row[0] for key, row in model_oracle.KEYS.items()} | given)
    problem = model_oracle.make(config, seed, masked if masked != "a row" else 0.0,
                                ignored if isinstance(ignored, float) else 0.0)
    _, _, _, labels, mask = problem
    if masked == "a row":
        mask[0] = False
    if isinstance(ignored, str):
        labels[:, :-5] = config["ignore_index"]
    model_oracle.save_problem(folder, *problem)


def step_flags(rng, number, ranks, ring):
    """Flags of a run; layouts take turns, all else is drawn."""
    layout = LAYOUTS[number % len(LAYOUTS)]
    flags = ["--layout", "striped" if layout == "bucket" else layout, "--timeout", TIMEOUT]
    flags += ["--bucket", int(rng.integers(1, 9))] if layout == "bucket" else []
    flags += ["--ring-size", ring] if ring < ranks else []
    flags += ["--recompute"] * (rng.random() < 0.4) + ["--gather"] * (rng.random() < 0.4)
    return flags + (["--threads", int(rng.integers(1, 4))] if rng.random() < 0.3 else [])


def judge_step(truth, result):
    """Complaints about a result, and its worst error."""
    complaints, worst = [], 0.0
    if model_compare.files(result) != model_compare.files(truth):
        return ["has other files than the truth"], worst
    for path in sorted(model_compare.files(truth)):
        try:
            error = model_compare.error_of(np.load(os.path.join(truth, path)),
                                           np.load(os.path.join(result, path)))
        except (OSError, ValueError, EOFError) as reason:
            error = str(reason)
        if isinstance(error, str) or not error <= TOLERANCE:
            complaints.append(f"{path}: {error}")
        else:
            worst = max(worst, error)
    return complaints, worst


def judge_unlabelled(result, labelled):
    """Complaints about the result of a problem without labels: logits alone, those of the run with labels to
    the bit, and it says so."""
    with open(result + ".counts", encoding="utf-8") as file:
        said = file.read()
    complaints = [f"says {said!r}"] if "no loss" not in said else []
    if sorted(os.listdir(result)) != ["logits.npy"]:
        return [*complaints, f"wrote {sorted(os.listdir(result))}"]
    differ = same_bytes(*(os.path.join(folder, "logits.npy") for folder in (result, labelled)))
    return complaints + ([differ] if differ else [])


def make_later(problem, folder):
    """The problem with other tokens in its second half. Returns where that begins."""
    shutil.copytree(problem, folder)
    tokens = np.load(os.path.join(folder, "tokens.npy"))
    half = tokens.shape[1] // 2
    tokens[:, half:] = (tokens[:, half:] + 1) % (tokens.max() + 1)
    np.save(os.path.join(folder, "tokens.npy"), tokens)
    return half


def equivalence(test):
    rng = np.random.default_rng([test.options.seed, 1])
    problems = {f"tests/fixtures/{name}": os.path.join(HERE, "fixtures", name)
                for name in ("causal-gqa", "masked")}
    models = dict(MODELS)
    for extra in range(1, test.options.rounds):
        models.update({f"random {extra}.{i}": random_model(rng) for i in range(len(MODELS))})
    for number, (name, model) in enumerate(models.items()):
        problems[name] = test.path("problems", str(number))
        if test.wants(name):
            make_problem(model, [test.options.seed, number], problems[name])

    # The truth of the fixtures is the original's, that of all others the oracle's.
    truths = {}
    for name, problem in problems.items():
        truths[name] = problem
        if not name.startswith("tests"):
            truths[name] = problem + "-truth"
        if os.path.exists(problem) and truths[name] != problem:
            model_oracle.run(argparse.Namespace(folders=[problem, truths[name]]))

    # Every model in every ring, or in one of those of --ranks; some also without labels, and of one that is
    # causal, some with other later tokens.
    runs, twins, unlabelled = [], {}, {}
    for turn, (name, problem) in enumerate(problems.items()):
        rings = [ring for ring in RINGS if test.options.ranks in (None, ring[0])]
        rings = [rings[turn % len(rings)]] if test.options.ranks else rings
        for number, (ranks, ring) in enumerate(rings):
            words = ["step", *step_flags(rng, turn + number, ranks, ring)]
            if not test.wants(name):
                continue
            runs.append((ranks, [*words, problem, test.path("results", str(len(runs)))], name))
            if (turn + number) % 8 == 1:
                bare = shutil.copytree(problem, test.path("bare", str(len(runs))))
                os.remove(os.path.join(bare, "labels.npy"))
                unlabelled[len(runs)] = len(runs) - 1
                runs.append((ranks, [*(word for word in words if word != "--recompute"), bare,
                                     test.path("results", str(len(runs)))], name))
            with open(os.path.join(problem, "config.json"), encoding="utf-8") as file:
                causal = json.load(file)["causal"]
            if causal and (turn + number) % 4 == 0:
                later = test.path("later", str(len(runs)))
                twins[len(runs)] = (len(runs) - 1, make_later(problem, later))
                runs.append((ranks, [*words, later, test.path("results", str(len(runs)))], name))
    failures = test.run_batches([(ranks, words) for ranks, words, _ in runs])

    worst = 0.0
    for place, (ranks, words, name) in enumerate(runs):
        complaints, error = [failures[place]] if place in failures else [], 0.0
        if not complaints and place in twins:
            before, half = twins[place]
            logits = [np.load(os.path.join(runs[which][1][-1], "logits.npy"))[:, :half]
                      for which in (before, place) if which not in failures]
            if len(logits) == 2 and not np.array_equal(*logits):
                complaints = [f"later tokens change logits before position {half}"]
        elif not complaints and place in unlabelled:
            complaints = judge_unlabelled(words[-1], runs[unlabelled[place]][1][-1])
        elif not complaints:
            complaints, error = judge_step(truths[name], words[-1])
        worst = max(worst, error)
        test.verdict(f"{name}: {shlex.join(test.command(ranks, *words))}", complaints)
    print(f"equivalence: {len(runs)} runs, the worst error is {worst:.1e} of {TOLERANCE:g}")


def bfloat16(test):
    """A step that rounds. Sums of float32 and of float64 differ in the eighth digit, so that a number between
    two of bfloat16 may go to either, and what follows from it differs in the third. In a small model that is
    rare: of eight problems of each, two or more must agree as those of float32 do. Rounding at one more place, or one
    less, moves all of them."""
    seeds, small = 8, dict(causal=True, length=6, dim=8, batch=1, num_tokens=10, depth=2)
    runs = []
    for number, name in enumerate(("plain", "soft cap", "mgqa", "llama", "qwen 2", "qwen 3", "gemma 2", "all parts")):
        for seed in range(seeds if test.wants(name) else 0):
            problem = test.path("problems", f"{number}-{seed}")
            make_problem({**MODELS[name], **small}, [test.options.seed, number, seed], problem)
            model_oracle.run(argparse.Namespace(folders=[problem, problem + "-truth"], bfloat16=True))
            flags = ["--type", "bfloat16", "--layout", ("contiguous", "striped", "zigzag")[seed % 3],
                     *["--recompute"] * (seed % 2), *["--gather"] * (seed == 3)]
            runs.append((1 + seed % 4, ["step", *flags, problem, problem + "-result"], name))
    failures = test.run_batches([(ranks, words) for ranks, words, _ in runs])
    for first in range(0, len(runs), seeds):
        broken = [failures[place] for place in range(first, first + seeds) if place in failures]
        judged = [] if broken else [judge_step(words[-2] + "-truth", words[-1])[0]
                                    for _, words, _ in runs[first:first + seeds]]
        agree = judged.count([])
        print(f"bfloat16, {runs[first][2]}: {agree} of {seeds} agree to {TOLERANCE:g}")
        test.verdict(f"bfloat16, {runs[first][2]}",
                     broken or ([] if agree >= 2 else [f"only {agree} of {seeds} agree", *judged[0]]))


def parts_of(tokens, labels, mask, end):
    """The documents of a batch (B, N), each a batch (1, n), and where they begin: a token `end` ends one."""
    for b, row in enumerate(tokens):
        borders = [0, *(np.flatnonzero(row[:-1] == end) + 1), len(row)]
        for i, j in zip(borders, borders[1:]):
            yield b, i, [array[b:b + 1, i:j] for array in (tokens, labels, mask)]


def documents(test):
    """Packed documents in a model, against the oracle, which gets each of them alone. Labels are those of the
    problem: step changes none."""
    rng = np.random.default_rng([test.options.seed, 7])
    names = ["plain", "causal, odd length", "interleaved", "lookback", "tied", "mask, causal", "rotary",
             "norm of heads", "learned positions", "all parts"]
    runs = []
    for number, name in enumerate(names):
        problem, end = test.path("problems", str(number)), 3
        make_problem({"num_tokens": 7, "length": MODELS[name].get("longest", 33), **MODELS[name]}, [test.options.seed, number], problem)
        config, weights, tokens, labels, mask = model_oracle.load_problem(problem)
        tokens[rng.random(tokens.shape) < 0.15] = end
        np.save(os.path.join(problem, "tokens.npy"), tokens)
        parts = list(parts_of(tokens, labels, mask, end))
        count = (labels != config["ignore_index"]).sum()
        logits = np.zeros((*tokens.shape, config["num_tokens"]))
        loss, sums = 0, {key: 0 * weight for key, weight in weights.items()}
        for b, first, part in parts:
            logits[b, first:first + part[0].shape[1]], own, gradients = model_oracle.solve(config, weights, *part)
            share = (part[1] != config["ignore_index"]).sum() / count
            loss += share * own
            for key, gradient in gradients.items():
                sums[key] += share * gradient
        model_oracle.save_only(problem + "-truth", {"logits": logits, "loss": np.array(loss)})
        model_oracle.save_only(os.path.join(problem + "-truth", "gradients"), sums)
        for turn, (ranks, ring) in enumerate([(1, 1), (2, 2), (3, 3), (4, 4), (4, 2)]):
            if test.options.ranks in (None, ranks):
                runs.append((ranks, ["step", *step_flags(rng, number + turn, ranks, ring), "--document-end", end,
                                     problem, test.path("results", str(len(runs)))], name))
    failures, worst = test.run_batches([run[:2] for run in runs]), 0.0
    for place, (ranks, words, name) in enumerate(runs):
        complaints, error = [failures[place]] if place in failures else [], 0.0
        if not complaints:
            complaints, error = judge_step(words[-2] + "-truth", words[-1])
        worst = max(worst, error)
        test.verdict(f"documents: {name}: {shlex.join(test.command(ranks, *words))}", complaints)
    print(f"documents: {len(runs)} runs, the worst error is {worst:.1e} of {TOLERANCE:g}")


def shifted(shift, seed):
    """A problem whose keys have a number in common, which moves all scores of its layer by about `shift`: the
    first of each head, of which all queries have the opposite. Tokens are as long as each other, have their
    first number in common, and positions turn nothing."""
    config = model_oracle.checked({key: row[0] for key, row in model_oracle.KEYS.items()} | dict(
        depth=1, heads=2, dim=32, dim_head=48, num_tokens=40, length=150, batch=2, rotary_scale=1e12))
    problem = model_oracle.make(config, seed)
    weights = problem[1]
    table, qkv = weights["token_emb.weight"], weights["layers.0.0.to_qkv.1.weight"]
    table[:, 0] = 4
    table[:, 1:] *= 5 / np.linalg.norm(table[:, 1:], axis=1, keepdims=True)
    normed = model_oracle.norm(config, model_oracle.part_of(weights, "layers.0.0.to_qkv.0."), table[:1])[0, 0]
    common = math.sqrt(-shift * math.sqrt(48)) / normed
    for head in range(4):  # two of queries, and two of keys
        qkv[48 * head] = 0
        qkv[48 * head, 0] = common if head < 2 else -common
    for name in weights:
        weights[name] = weights[name].astype(np.float32).astype(np.float64)
    return problem


def shifts(test):
    """Forward and backward must weigh a pair by the same rounded score: then the sum of ds over keys is 0, and
    what keys have in common is no matter. Gradients err by at most twice what they err by if attention alone is
    computed in plain float32, and by what one step may be off."""
    runs, truths = [], []
    for shift in (-100, -1000, -60000):
        problem = shifted(shift, [test.options.seed, -shift])
        folder = test.path("problems", f"shifted{shift}")
        model_oracle.save_problem(folder, *problem)
        exact, in_double = model_oracle.solve(*problem)[2], model_oracle.attention
        model_oracle.attention = lambda *a, **more: {name: array.astype(np.float64) for name, array in
                                                     in_double(*a[:-1], np.float32, **more).items()}
        twin = model_oracle.solve(*problem)[2]
        model_oracle.attention = in_double
        for ranks, flags in (1, []), (2, ["--gather"]), (3, ["--layout", "striped"]):
            if test.options.ranks in (None, ranks):
                result = test.path("results", f"shifted{shift}-{ranks}")
                runs.append((ranks, ["step", *flags, folder, result]))
                truths.append((exact, twin))
    failures = test.run_batches(runs)
    for place, ((ranks, words), (exact, twin)) in enumerate(zip(runs, truths)):
        complaints = [failures[place]] if place in failures else []
        for name in exact if not complaints else ():
            got = np.load(os.path.join(words[-1], "gradients", name + ".npy"))
            size, error, plain = (np.sqrt((array ** 2).mean()) for array in
                                  (exact[name], got - exact[name], twin[name] - exact[name]))
            if not error <= 2 * plain + TOLERANCE * size:
                complaints.append(f"{name}: off by {error / size:.1e} of its size, in plain float32 by "
                                  f"{plain / size:.1e}")
        test.verdict(shlex.join(test.command(ranks, *words)), complaints)


# ---- Training ----


def write_text(path, length, seed):
    """Bytes that can be learnt: words out of twenty, in any order."""
    rng = np.random.default_rng(seed)
    words = [bytes(rng.integers(97, 123, rng.integers(2, 8), np.uint8)) for _ in range(20)]
    text = b" ".join(words[i] for i in rng.integers(0, 20, length))[:length]
    with open(path, "wb") as file:
        file.write(text)
    return path


def curve_of(model):
    """The columns step, loss, rate and gradient that a run printed beside its MODEL; the lines of its
    end are left out."""
    with open(model + ".counts", encoding="utf-8") as file:
        lines = file.read().splitlines()
    return np.array([[float(word) for word in line.split()] for line in lines
                     if re.match(r"\d+ ", line)]).reshape(-1, 4)


def same_bytes(one, other):
    """Nothing, or a complaint."""
    try:
        with open(one, "rb") as a, open(other, "rb") as b:
            return None if a.read() == b.read() else f"{one} and {other} differ"
    except OSError as error:
        return str(error)


# A model that is trained in a second, with everything that a layer may have.
SMALL = ("--dim 32 --depth 2 --heads 4 --key-heads 2 --dim-head 8 --lookback 16,none --tokens 40 "
         "--batch 3 --rate 0.01 --warmup 5 --steps 20 --seed 3 --validation 0.2").split()

# Curves of one training, of which rounding alone differs. The first loss is a sum of float32, off by
# 1e-6 as printed. Gradients are off by 1e-6 of their arrays, and AdamW, which divides each by its own
# size, moves a weight whose gradient is small by so much more of it: weights are 1e-6 to 1e-5 apart
# after some steps, of 0.1. The loss is as flat in them as its gradient, whose length is about 1, is
# short: so it is 1e-5 apart at most, and here five times that is allowed. A wrong label, term or rank
# shows as 1e-3 or more.
CURVE_TOLERANCE = 5e-5


def curves(test):
    """One training on all ranks and layouts has one curve."""
    data = write_text(test.path("text"), 6000, 1)
    ways = [(1, ""), (1, "--recompute --threads 1"), (2, ""), (2, "--layout zigzag --gather"),
            (3, "--layout zigzag"), (4, ""), (4, "--recompute"), (4, "--layout striped"),
            (4, "--layout striped --bucket 2"), (4, "--layout zigzag"), (4, "--ring-size 2"),
            (4, "--ring-size 1"), (4, "--gather"), (4, "--recompute --gather"),
            (1, "--batch 1 --accumulate 3"), (4, "--batch 1 --accumulate 3 --layout striped")]
    models = [test.path("models", str(place)) for place in range(len(ways))]
    failures = test.run_batches([(ranks, ["train", *SMALL, *flags.split(), data, models[place]])
                                 for place, (ranks, flags) in enumerate(ways)])
    first, worst = None, 0.0
    for place, (ranks, flags) in enumerate(ways):
        complaints = [failures[place]] if place in failures else []
        if not complaints:
            curve = curve_of(models[place])
            first = curve if first is None else first
            apart = np.abs(curve[:, 1] - first[:, 1]).max() if curve.shape == first.shape else np.inf
            worst = max(worst, apart)
            if len(curve) != 20 or not apart <= CURVE_TOLERANCE:
                complaints = [f"{len(curve)} steps, the losses are up to {apart:.1e} apart"]
            elif abs(curve[0, 1] - np.log(256)) > 0.1 or not curve[-1, 1] < 4:
                complaints = [f"the loss goes from {curve[0, 1]} to {curve[-1, 1]}"]
        test.verdict(f"training on {ranks} ranks, {flags}", complaints)
    print(f"curves: they are up to {worst:.1e} apart, of {CURVE_TOLERANCE:g}")

    # What is computed again has the same bits; so have the model and the means of its gradients.
    for flags, again in (("", "--recompute"), ("--gather", "--recompute --gather")):
        pair = [models[ways.index((4, which))] for which in (flags, again)]
        test.verdict(f"4 ranks, '{again}' and '{flags}'", same_bytes(*pair))


def samples_of(rows):
    """What the rows of a DATA of two axes say, as solve() takes it: without the padding at their ends, so that
    none is left but in the middle."""
    samples = []
    for row in rows:
        real = np.flatnonzero(row >= 0)
        row = row[real[0]:real[-1] + 1][None].astype(int)
        labels = np.where((row[:, :-1] < 0) | (row[:, 1:] < 0), -1, row[:, 1:])
        samples.append((np.maximum(row[:, :-1], 0), labels, row[:, :-1] >= 0))
    return samples


def packed_samples(windows, end):
    """Each document of windows (W, N + 1), whose last column is a label only, as a sample. A token that ends a
    document has no label."""
    tokens, labels = windows[:, :-1].astype(int), windows[:, 1:].astype(int)
    labels = np.where((tokens < 0) | (tokens == end), -1, labels)
    parts = [part for _, _, part in parts_of(np.maximum(tokens, 0), labels, tokens >= 0, end)]
    return [part for part in parts if (part[1] >= 0).any()]


def solve_all(config, weights, samples):
    """Loss and gradients of samples, over all their labels."""
    count = sum((labels >= 0).sum() for _, labels, _ in samples)
    loss, sums = 0, {name: 0 * weight for name, weight in weights.items()}
    for tokens, labels, mask in samples:
        share = (labels >= 0).sum() / count
        _, own, gradients = model_oracle.solve(config, weights, tokens, labels, mask)
        loss += share * own
        for name, gradient in gradients.items():
            sums[name] += share * gradient
    return loss, sums


def train_in_double(config, weights, samples):
    """Six steps of AdamW, each of all samples. Returns the losses; changes the weights."""
    means, squares = ({name: 0 * weight for name, weight in weights.items()} for _ in "ms")
    losses = []
    for step in range(1, 7):
        loss, gradients = solve_all(config, weights, samples)
        losses.append(loss)
        length = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
        rate = 0.02 * (step / 2 if step <= 2 else 0.55 + 0.45 * np.cos(np.pi * (step - 2) / 4))
        for name, gradient in gradients.items():
            gradient = gradient * min(1, 0.7 / length)
            means[name] = 0.9 * means[name] + 0.1 * gradient
            squares[name] = 0.95 * squares[name] + 0.05 * gradient**2
            if gradient.ndim == 2:  # gammas and biases do not decay
                weights[name] = weights[name] * (1 - rate * 0.3)
            weights[name] = weights[name] - rate * means[name] / (1 - 0.9**step) / (
                np.sqrt(squares[name] / (1 - 0.95**step)) + 1e-8)
    return losses


def padded_rows(rng):
    """Eight rows of 25: six to train on, with padding at either end, at both, in the middle, with none, and
    with a single label; then two to validate on, one with three times the labels of the other."""
    rows = rng.integers(0, 30, (8, 25)).astype(np.int32)
    rows[0, 9:] = -1
    rows[1, :14] = -100
    rows[2, :3], rows[2, 20:] = -1, -1
    rows[3, 7:11], rows[3, 15] = -1, -1
    rows[5, 2:] = -1
    rows[6, 8:] = -1
    rows[7, :3] = -1
    return rows


END = 29  # of a document
LEARNED = "--positions learned --longest 24"  # as long as a window: places in the sequence are not in the table
def write_indexed(path, tokens, ends):
    """PATH.bin and PATH.idx as Megatron-LM keeps them: documents of uint16, each one sequence, which end before
    these places."""
    bounds = np.unique([0, *ends, len(tokens)])
    tokens.tofile(path + ".bin")
    with open(path + ".idx", "wb") as file:
        file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(bounds) - 1, len(bounds)))
        np.diff(bounds).astype("<i4").tofile(file)
        (2 * bounds[:-1]).astype("<i8").tofile(file)
        np.arange(len(bounds), dtype="<i8").tofile(file)


FILES = {"text": "text.npy", "rows": "rows.npy", "packed": "packed.bin", "indexed": "indexed.bin",
         "ended rows": "rows.npy"}


def adamw(test):
    """A few steps against the oracle's gradients and AdamW in float64. Each step has all that there is to train
    on, so its order does not matter: of a text one window, twice, or all rows of an array with padding, of
    which the oracle sees none."""
    rng = np.random.default_rng([test.options.seed, 2])
    text, rows = rng.integers(0, 30, 25).astype(np.uint16), padded_rows(rng)
    np.save(test.path("text.npy"), text)
    np.save(test.path("rows.npy"), rows)

    # Eight windows of 24 tokens, in which 29 ends documents; one has nothing but ends, one ends with one.
    packed = rng.integers(0, 29, 8 * 24 + 1).astype(np.uint16)
    packed[rng.random(len(packed)) < 0.15] = END
    packed[24:47], packed[71], packed[6 * 24:7 * 24] = END, END, rng.integers(0, 29, 24)
    packed.astype("<u2").tofile(test.path("packed.bin"))
    write_indexed(test.path("indexed"), packed.astype("<u2"), np.flatnonzero(packed == END) + 1)
    windows = np.stack([packed[24 * w:24 * w + 25] for w in range(8)])
    flags = ("--vocabulary 30 --dim 16 --depth 1 --heads 2 --dim-head 8 --rate 0.02 --warmup 2 "
             "--decay 0.3 --clip 0.7 --tied").split()
    texts, padded = "--tokens 24 --validation 0 --batch ", "--validation 0.25 --batch "
    packs = f"--token-type uint16 --document-end {END} --tokens 24 " + padded
    ways = [("text", 3, texts + "2"), ("text", 2, texts + "1 --accumulate 2 --layout zigzag"),
            ("rows", 1, padded + "6"), ("rows", 1, padded + "1 --accumulate 6"),
            ("rows", 2, padded + "2 --accumulate 3 --layout striped --recompute"),
            ("rows", 3, padded + "6 --gather"), ("rows", 3, padded + "6 --tokens 24 --layout zigzag"),
            ("rows", 4, padded + "1 --accumulate 6"),  # some ranks have no token of a row
            ("rows", 4, padded + "3 --accumulate 2 --ring-size 2 --layout striped --bucket 3"),
            ("rows", 4, padded + "1 --accumulate 6 --ring-size 1"),
            ("rows", 4, padded + "6 --lookback 4 --layout striped"),
            ("packed", 1, packs + "6"), ("packed", 2, packs + "6"), ("packed", 4, packs + "6"),
            ("packed", 3, packs + "2 --accumulate 3"),
            ("packed", 4, packs + "3 --accumulate 2 --ring-size 2"),  # a ring has one window, one has two
            ("packed", 2, packs + "6 --layout zigzag"), ("packed", 3, packs + "6 --layout contiguous"),
            ("packed", 4, packs + "6 --layout striped --bucket 5 --recompute"),
            ("packed", 4, packs + "6 --lookback 3"), ("packed", 2, packs + "1 --accumulate 6 --gather"),
            ("packed", 3, packs + "6 " + LEARNED), ("packed", 2, packs + "6 --layout striped " + LEARNED),
            ("indexed", 2, "--token-type megatron --tokens 24 " + padded + "6"),
            ("ended rows", 3, f"--document-end {rows[4, 10]} {padded}6")]
    ways = [way for number, way in enumerate(ways) if test.wants(number)]
    start, learned = test.path("start"), test.path("learned")
    models = [test.path("model", str(way)) for way in range(len(ways))]
    failures = list(test.run_batches(
        [(1, ["train", *flags, *texts.split(), 1, *more.split(), "--steps", 0, test.path("text.npy"), begin])
         for more, begin in (("", start), (LEARNED, learned))] +
        [(ranks, ["train", *flags, *more.split(), "--steps", 6, test.path(FILES[data]), model])
         for (data, ranks, more), model in zip(ways, models)]).values())
    failures += test.run_batches([(1, ["export", model, model + "-folder"])
                                  for model in [start, learned, *models]]).values()
    if failures:
        test.verdict("AdamW", failures)
        return
    for (data, ranks, more), model in zip(ways, models):
        config, weights = model_oracle.load_model((learned if LEARNED in more else start) + "-folder")
        config["lookback"] = model_oracle.load_model(model + "-folder")[0]["lookback"]
        seen, unseen = [{"text": lambda part: samples_of([text]), "rows": lambda part: samples_of(rows[part]),
                         "packed": lambda part: packed_samples(windows[part], END),
                         "indexed": lambda part: packed_samples(windows[part], END),
                         "ended rows": lambda part: packed_samples(rows[part], rows[4, 10])}[data](part)
                        for part in (slice(0, 6), slice(6, 8))]
        losses = train_in_double(config, weights, seen)
        curve, trained = curve_of(model), model_oracle.load_model(model + "-folder")[1]
        apart = np.abs(curve[:, 1] - losses).max() if len(curve) == 6 else np.inf
        off = np.max([np.abs(trained[name] - weight).max() for name, weight in weights.items()])
        wrong = []
        if not apart <= 2e-5:
            wrong.append(f"losses are {apart:.1e} off")
        if not off <= 1e-3:  # six steps of rate 0.02 move a weight by 0.1 at most
            wrong.append(f"weights are {off:.1e} off")
        if data != "text":
            with open(model + ".counts", encoding="utf-8") as file:
                printed = float(re.search(r"^validation (\S+)$", file.read(), re.M)[1])
            apart = abs(printed - solve_all(config, trained, unseen)[0])
            wrong += [f"the loss of validation is {apart:.1e} off"] if not apart <= 2e-5 else []
        print(f"adamw: {data}, {ranks} ranks, {more}: losses are {apart:.1e} off, weights {off:.1e}")
        test.verdict(f"AdamW: {data}, {ranks} ranks, {more}", wrong)


class Job:
    """A run in the background, whose ranks can be sent signals."""

    def __init__(self, test, name, ranks, *words):
        self.path = test.path("jobs", name)
        self.ranks = ranks
        note = 'echo $$ >"$0.$OMPI_COMM_WORLD_RANK"; exec "$@"'
        command = jobs.mpirun(ranks, "sh", "-c", note, self.path, test.program, *map(str, words))
        with open(self.path + ".out", "wb") as out, open(self.path + ".err", "wb") as err:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=err, start_new_session=True)

    def said(self, which="out"):
        with open(f"{self.path}.{which}", encoding="utf-8", errors="replace") as file:
            return file.read()

    def pid(self, rank):
        with open(f"{self.path}.{rank}", encoding="utf-8") as file:
            return int(file.read())

    def await_words(self, count):
        """Waits until it has printed so many words, or has ended."""
        end = time.time() + HANGS
        while len(self.said().split()) < count and self.process.poll() is None and time.time() < end:
            time.sleep(0.02)

    def signal(self, number, *ranks):
        for rank in ranks:
            try:
                os.kill(self.pid(rank), number)
            except ProcessLookupError:
                pass

    def kill(self):
        """Ends mpirun and all ranks at once, without a chance to do anything."""
        self.process.kill()
        self.signal(signal.SIGKILL, *range(self.ranks))
        self.process.wait()

    def end(self, seconds):
        """Waits for its end. Returns complaints about one that hangs, or that leaves processes."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL, *range(self.ranks))
            jobs.stop(self.process)
            return [f"no end after {seconds} s"]
        end = time.time() + 60
        while any(map(self.runs, range(self.ranks))) and time.time() < end:
            time.sleep(0.05)
        left = [rank for rank in range(self.ranks) if self.runs(rank)]
        self.signal(signal.SIGKILL, *left)
        return [f"rank {rank} still runs" for rank in left]

    def runs(self, rank):
        try:
            with open(f"/proc/{self.pid(rank)}/stat", encoding="utf-8") as file:
                return file.read().rpartition(")")[2].split()[0] != "Z"
        except (OSError, ValueError):
            return False


def checkpoint_step(path):
    """How many steps the model in a checkpoint has made; -1 if there is none."""
    try:
        with open(path, "rb") as file:
            return struct.unpack("<16s3qq", file.read(48))[-1]
    except OSError:
        return -1
    except struct.error:
        return -2


def watch(model, size, seconds, until_part):
    """Looks at a checkpoint for a while, or until a new one is being written beside it. Complains if what has
    the model's name has not all its bytes."""
    end, seen = time.time() + seconds, set()
    part = os.path.join(os.path.dirname(model), f".{os.path.basename(model)}.*", "new")
    while time.time() < end and not (until_part and glob.glob(part)):
        try:
            seen.add(os.path.getsize(model))
        except FileNotFoundError:
            pass
    return [f"had {other} bytes of {size}" for other in seen - {size}]


def resume(test):
    """Jobs that are killed at any moment, and go on: what comes out has the bits of one that was not."""
    data = write_text(test.path("text"), 6000, 1)
    rng = np.random.default_rng([test.options.seed, 3])
    flags = [*SMALL[:-6], "--steps", 60, "--seed", 3, "--validation", 0.2, "--batch", 1, "--accumulate", 2]
    whole, model = test.path("whole"), test.path("killed", "model")
    failures = test.run_batches([(4, ["train", *flags, data, whole])])
    words = ["train", *flags, "--save-every", 1, "--resume", data, model]
    if failures:
        test.verdict("not killed", list(failures.values()))
        return
    complaints, before, kept = [], -1, None
    for number in range(8):
        job = Job(test, f"killed-{number}", 4, *words)
        last = number == 7 or before == 60
        if not last:
            job.await_words(5)
            complaints += watch(model, os.path.getsize(whole), rng.uniform(0, 0.25), number % 2 == 1)
            job.kill()
        else:
            complaints += job.end(HANGS)
            if job.process.returncode != 0:
                complaints.append(f"does not go on: {job.said('err')[:300]}")
        lines = [line for line in job.said().splitlines() if re.match(r"\d+ \d", line)]
        if lines and int(lines[0].split()[0]) != max(before, 0) + 1:
            complaints.append(f"goes on with step {lines[0].split()[0]} after {before}")
        if checkpoint_step(model) < before:
            complaints.append(f"step {before} was saved, now {checkpoint_step(model)} is")
        before = checkpoint_step(model)
        if 0 < before < 60:
            kept = shutil.copy(model, test.path("kept", "model"))
        if last:
            break
    test.verdict("killed at any moment, and resumed", complaints + ([same_bytes(whole, model)]
                 if same_bytes(whole, model) else []))
    left = set(os.listdir(os.path.dirname(model))) - {"model"}
    test.verdict("nothing is left beside the model", f"{left}" if left else "")

    # On other ranks the bits are others, the curve is the same.
    if not kept:
        print("skipped going on with other ranks: no job was killed between its first and last step")
        return
    step = checkpoint_step(kept)
    failures = test.run_batches([(3, ["train", *flags, "--layout", "striped", "--resume", data, kept])])
    complaints = list(failures.values())
    if not complaints:
        own, others = curve_of(kept), curve_of(whole)[step:]
        apart = np.abs(own - others)[:, :2].max() if own.shape == others.shape else np.inf
        complaints = f"from step {step}: {apart:.1e} apart" if not apart <= CURVE_TOLERANCE else ""
        print(f"resume: on other ranks from step {step} on, {apart:.1e} of {CURVE_TOLERANCE:g} apart")
    test.verdict("resumed on other ranks", complaints)


# ---- Decoding ----


DECODED = ("causal, odd length", "one head of keys", "interleaved", "lookback", "soft cap", "tied",
           "rotary", "wide", "learned positions", "norm of heads", "llama 3's frequencies", "mgqa", "qwen 3")
MARGIN = 1e-2  # of logits, whose errors are 1e-6 of numbers of 1 to 10


def choose_prompt(rng, folder, length, count):
    """A prompt after which the oracle's choices are clear, and these."""
    config, weights = model_oracle.load_model(folder)
    for _ in range(50):
        prompt = rng.integers(0, config["num_tokens"], length).tolist()
        tokens, _, margin = model_oracle.generate(config, weights, prompt, count)
        if margin > MARGIN:
            return prompt, tokens
    raise RuntimeError(f"{folder}: no prompt decides anything")


def decoding(test):
    rng = np.random.default_rng([test.options.seed, 4])
    folders = {"tests/fixtures/causal-gqa": os.path.join(HERE, "fixtures", "causal-gqa")}
    for number, name in enumerate(DECODED):
        folders[name] = test.path("problems", str(number))
        make_problem(MODELS[name], [test.options.seed, number], folders[name])
    folders = {name: folder for name, folder in folders.items() if test.wants(name)}
    runs, wanted = [], []

    def add(name, ranks, prompt, count, flags, group):
        # What is printed goes beside the last word, so that has another name each time.
        link = test.path("models", str(len(runs)))
        os.symlink(os.path.abspath(folders[name]), link)
        # A prompt is an argument, a text in a file, or an array.
        how, text = len(runs) % 3, "\t".join(map(str, prompt))
        path = test.path(f"prompt-{len(runs)}" + (".npy" if how == 2 else ""))
        if how == 1:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text + "\n")
        elif how == 2:
            np.save(path, np.array(prompt, "u2"))
        words = ["generate", *(("--prompt-file", path) if how else ("--prompt", text)), "--count", count,
                 "--timeout", TIMEOUT, *flags, link]
        runs.append((ranks, words))
        wanted.append((name, prompt, group))

    # The likeliest tokens; prompts of one token, and of more.
    for number, name in enumerate(folders):
        for length in (1, int(rng.integers(2, 20))):
            prompt, tokens = choose_prompt(rng, folders[name], length, 12)
            for ranks in (1, 2, 3, 4, 8):
                if test.options.ranks in (None, ranks):
                    flags = ["--threads", 1 + (number + ranks) % 3]
                    add(name, ranks, prompt, 12, flags, tokens)

    # Tokens drawn by chance: the same on any ranks, and none that the oracle rules out.
    for seed, name in enumerate(folders):
        prompt = rng.integers(0, 7, 5).tolist()
        flags = ["--temperature", 0.9, "--top-k", 12, "--top-p", 0.8, "--seed", seed]
        for ranks in (1, 2, 4):
            if test.options.ranks in (None, ranks):
                add(name, ranks, prompt, 12, flags, "drawn")
    failures = test.run_batches(runs)

    drawn = {}
    for place, ((ranks, words), (name, prompt, tokens)) in enumerate(zip(runs, wanted)):
        complaints = [failures[place]] if place in failures else []
        if not complaints:
            with open(words[-1] + ".counts", encoding="utf-8") as file:
                got = [int(word) for word in file.read().split()]
            if tokens == "drawn":
                drawn.setdefault(name, (prompt, got))
                tokens = drawn[name][1][len(prompt):]
            if got != prompt + tokens:
                complaints = [f"got {got}, want {prompt + tokens}"]
        test.verdict(f"{name}: {shlex.join(test.command(ranks, *words))}", complaints)
    for name, (prompt, got) in drawn.items():
        _, steps, _ = model_oracle.generate(*model_oracle.load_model(folders[name]), prompt, 12, 0.9,
                                            12, 0.8, got[len(prompt):])
        least = min(steps[i, token] for i, token in enumerate(got[len(prompt):]))
        test.verdict(f"{name}: drawn tokens are possible", "" if least > 0 else "one is not")


# ---- Trouble ----


def trouble(test):
    """A rank dies or stops. The job ends, in time, and says why; what it had saved is whole."""
    data = write_text(test.path("text"), 6000, 1)
    tiny = test.path("model")
    failures = test.run_batches([(1, ["train", *SMALL[:-6], "--steps", 0, data, tiny])])
    test.verdict("a model to decode", list(failures.values()))
    train = ["train", *SMALL[:-6], "--steps", 10**6, "--save-every", 5, "--timeout", 2]
    # Open MPI 5 shows words when their line ends, and what has none before an error's first.
    generate = ["generate", "--prompt", "the\n", "--count", 10**5, "--timeout", 2]
    cases = [(name, words, number, rank) for name, words in (
        ("ring", train), ("sets", [*train, "--ring-size", 1]), ("gathered", [*train, "--gather"]),
        ("decoding", generate)) for number, rank in ((signal.SIGKILL, 1), (signal.SIGSTOP, 2),
                                                     (signal.SIGSTOP, 0))
        if number == signal.SIGSTOP or name in ("ring", "decoding")]

    def try_one(case):
        name, words, number, rank = case
        name = f"{name}, {number.name} to rank {rank}"
        model = tiny if words is generate else test.path("models", name.replace(" ", "-"))
        job = Job(test, name.replace(" ", "-"), 3, *words, *([] if words is generate else [data]), model)
        job.await_words(1 if words is generate else 44)
        time.sleep(0.2)
        job.signal(number, rank)
        # Ranks wait twice the timeout for one that does not report, and mpirun takes its time.
        complaints = job.end(HANGS)
        code, errors = job.process.returncode, job.said("err")
        if code != (1 if number == signal.SIGSTOP else 137):
            complaints.append(f"exit status {code}: {errors[:300]}")
        if number == signal.SIGSTOP and not re.search(r"10-transformer: .*waited .*2 s for", errors):
            complaints.append(f"says {errors[:300]}")
        if number == signal.SIGSTOP and name.split(",")[0] in ("sets", "gathered", "decoding") and not re.search(
                rf"waited .*\branks? .*\b{rank}\b", errors):
            complaints.append(f"does not name rank {rank}: {errors[:300]}")
        if words is not generate:
            reason = jobs.run(test.command(1, "export", model, model + "-folder"), HANGS)
            complaints += [f"its model: {reason}"] if reason else []
        return name, complaints

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for name, complaints in pool.map(try_one, cases):
            test.verdict(name, complaints)


# ---- The command line ----


def refusals(test):
    """(exit code, words of the message, ranks, command line)."""
    data, text = test.path("text"), write_text(test.path("text"), 147 * 41, 1)
    missing, model, used = test.path("missing"), test.path("model"), test.path("used")
    small = [*SMALL[:-6], "--steps", 2]
    test.verdict("a model", list(test.run_batches([(1, ["train", *small, data, used])]).values()))
    fixture = os.path.join(HERE, "fixtures", "causal-gqa")
    masked, imported = os.path.join(HERE, "fixtures", "masked"), test.path("imported")
    reason = jobs.run(test.command(1, "import", masked, imported), HANGS)
    test.verdict("a model that is not causal", reason)

    def write(name, content):
        with open(test.path(name), "wb") as file:
            file.write(content)
        return test.path(name)

    with open(used, "rb") as file:
        content = file.read()
    copies = iter(range(100))

    def own():  # a run that goes on with a model locks it, and others run at the same time
        return write(f"own-{next(copies)}/used", content)

    with open(text, "rb") as file:
        edited = file.read()
    edited = edited[:77] + bytes([edited[77] ^ 1]) + edited[78:]
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1:]
    np.save(test.path("tokens.npy"), np.arange(500) % 40)
    np.save(test.path("other-rows.npy"), np.fromfile(text, np.uint8).reshape(147, 41))
    np.save(test.path("floats.npy"), np.arange(500) / 7)
    np.save(test.path("axes.npy"), np.zeros((2, 3, 4), int))
    rows = test.path("rows.npy")
    np.save(rows, np.where(np.arange(27).reshape(3, 9) > 17, -1, 0))
    problems = {name: shutil.copytree(fixture, test.path(name))
                for name in ("nan", "no-weight", "other-shape", "label", "no-config", "no-depth", "lookback", "bare")}
    os.remove(os.path.join(problems["bare"], "labels.npy"))
    os.remove(os.path.join(problems["no-weight"], "weights", "layers.1.1.3.bias.npy"))
    np.save(os.path.join(problems["other-shape"], "weights", "layers.0.1.1.bias.npy"), np.ones(5))
    bias = np.load(os.path.join(fixture, "weights", "layers.0.1.1.bias.npy"))
    bias[5] = np.nan
    np.save(os.path.join(problems["nan"], "weights", "layers.0.1.1.bias.npy"), bias)
    labels = np.load(os.path.join(fixture, "labels.npy"))
    labels[1, 7] = 64
    np.save(os.path.join(problems["label"], "labels.npy"), labels)
    write("no-config/config.json", b"dim: 3")
    write("no-depth/config.json", b'{"num_tokens": 64, "dim": 32}')
    with open(os.path.join(fixture, "config.json"), "rb") as file:
        write("lookback/config.json", file.read().replace(b"{", b'{"lookback": [5],'))

    table, longer = test.path("table"), test.path("longer")
    make_problem(MODELS["learned positions"], 1, table)
    shutil.copytree(table, longer)
    for name in ("tokens", "labels"):
        array = np.load(os.path.join(longer, name + ".npy"))
        np.save(os.path.join(longer, name + ".npy"), np.concatenate((array, array), axis=1))
    with open(os.path.join(table, "config.json"), encoding="utf-8") as file:
        table_config = json.load(file)
    rotary = dict(positions="rotary", longest=0, position_scale=1, dim_head=6)
    for name, change in (("no-such-norm", dict(norm="batch")), ("no-eps", dict(norm="rms", norm_eps=0)),
                         ("no-rows", dict(longest=0)),
                         ("no-factor", dict(rotary, rotary_scaling="llama3", rotary_factor=0)),
                         ("other-parts", dict(qkv_bias=True)), ("fewer-parts", rotary)):
        write(f"{name}/config.json", json.dumps({**table_config, **change}).encode())
        shutil.copytree(os.path.join(table, "weights"), test.path(name, "weights"))

    def flag(*words, says=None, command="train", ranks=1):
        ends = {"train": [data, model], "generate": [used], "bench": []}[command]
        return 2, says or f"^10-transformer: {words[0]}", ranks, [command, *words, *ends]

    return [
        (2, "give a command", 1, []), (2, "give a command.* not walk", 3, ["walk", data, model]),
        (2, "give a command", 1, ["--dim", 8, "train", data, model]),
        (2, "train: give DATA MODEL .got 0", 1, ["train"]),
        (2, "train: give DATA MODEL .got 3", 2, ["train", data, model, "more"]),
        (2, "generate: give MODEL .got 0", 1, ["generate", "--count", 3]),
        (2, "step: give PROBLEM RESULT .got 1", 3, ["step", fixture]),
        (2, "bench: give flags alone", 1, ["bench", data]),
        flag("--prompt", "x", says="--prompt is no flag of train"),
        flag("--steps", 3, says="--steps is no flag of generate", command="generate"),
        flag("--layout", "zigzag", says="--layout is no flag of generate", command="generate"),
        flag("--resume", says="--resume is no flag of bench", command="bench"),
        flag("--no-such-flag", says="no-such-flag"), flag("--dim", says="needs 2 arguments|dim|DATA"),
        *[flag(name, value) for name, values in {
            "--vocabulary": (0, "1e3"), "--dim": (0, "x"), "--depth": (0, 100000), "--heads": (0,),
            "--key-heads": (-1,), "--dim-head": (1,), "--ff-mult": (0,), "--head-map": ("round",),
            "--softcap": (0, "nan"), "--logits-softcap": (0, "inf"), "--attention-scale": (0, "nan"),
            "--embedding-scale": ("nan", "x"), "--rotary-theta": (0,), "--rotary-scale": ("inf",),
            "--rotary-scaling": ("ntk",), "--rotary-factor": (3,), "--rotary-original": (9,),
            "--lookback": ("x", "3,4", -1, "5,none,5,5,5"), "--layout": ("round",), "--bucket": (3,),
            "--threads": (0,), "--timeout": (-1, "nan"), "--batch": (0,), "--tokens": (0,),
            "--steps": (-1,), "--rate": (-1, "nan"), "--warmup": (-1,), "--decay": (-0.1,),
            "--clip": (-1,), "--validation": (0.95,), "--save-every": (0,), "--seed": (-1,)}.items()
          for value in values],
        flag("--type", "bfloat16", says="generate --type bfloat16 is for 14-gpu-transformer", command="generate"),
        *[flag(name, value, command="generate") for name, value in (
            ("--count", -1), ("--cache-type", "bool"), ("--temperature", -1), ("--top-k", 0), ("--top-p", 0), ("--top-p", 1.5))],
        # What changes nothing beside the others.
        *[flag(*words, says=says, command=command) for says, command, words in (
            ("--rotary-factor needs --rotary-scaling", "train", ("--rotary-factor", 8)),
            ("--rotary-high needs --rotary-scaling", "bench", ("--rotary-high", 4)),
            ("--rotary-theta needs --positions rotary", "train", ("--positions", "learned", "--longest", 40,
                                                                  "--rotary-theta", 10000)),
            ("--rotary-scaling needs --positions rotary", "train", ("--positions", "learned", "--longest", 40,
                                                                    "--rotary-scaling", "yarn")),
            ("--longest needs --positions learned", "train", ("--longest", 40)),
            ("--head-map: has no effect", "train", ("--head-map", "interleaved")),
            ("--norm-eps: has no effect", "bench", ("--norm-eps", 0.1)),
            ("--top-k needs --temperature", "generate", ("--prompt", "x", "--top-k", 5)),
            ("--seed needs --temperature", "generate", ("--prompt", "x", "--seed", 5, "--temperature", 0)))],

        # What a text says is good, is what the program takes.
        *[flag(name, value, says=f"{name} {value}: give {good}$", command=command)
          for name, value, good, command in (
              ("--temperature", "1e30", "0 to 1000000", "generate"),
              ("--top-p", 2, "a number above 0, at most 1", "generate"), ("--rate", "1e7", "0 to 1000000", "train"),
              ("--depth", "99999999999999999999", "a whole number, at most 256", "train"),
              ("--validation", 0.95, "0 to 0.9", "train"), ("--clip", -1, "0 or above", "train"),
              ("--rotary-theta", 0, "a number above 0", "train"),
              ("--softcap", "1e-40", "a normal number of float32 above 0", "bench"))],
        flag("--ring-size", 3, says="--ring-size 3: does not divide the 2 ranks", ranks=2),
        flag("--dim-head", 7, says="head_dim must be even"),
        flag("--heads", 6, "--key-heads", 4, says="key_heads must divide heads"),

        # A table of positions ends; parts that are none, or that the weights do not have.
        *[(1, "a text of 41 tokens: the model's table of positions has only 40 rows", ranks,
           ["generate", "--prompt", "1 2 3", "--count", 38, table]) for ranks in (1, 3)],
        *[(1, "a text of 74 tokens: the model's table", ranks, ["step", longer, missing]) for ranks in (1, 3)],
        *[(1, f"{name}/.*{says}", 1, ["generate", "--prompt", "1", test.path(name)]) for name, says in (
            ("no-such-norm", '"norm" is wrong: give "unit", "rms", "layer" or "rms_plus_one"'),
            ("no-eps", "norm_eps must be above 0"),
            ("no-rows", "longest is 0"), ("no-factor", "factor must be above 0"),
            ("other-parts", "layers.0.0.to_qkv.1.bias"), ("fewer-parts", "weights"))],

        # Trouble with files.
        (1, "missing: .*No such file", 1, ["train", missing, model]),
        (1, "missing: .*No such file", 3, ["train", missing, model]),
        (1, "empty: is empty", 2, ["train", write("empty", b""), model]),
        (1, "length = 40: give 1 to 39", 3, ["train", *small, write("short", b"a" * 40), model]),
        (1, "integers", 1, ["train", test.path("floats.npy"), model]),
        (1, r"^10-transformer: .*tokens.npy: token \[32\] is 32; tokens are 0 to 31", 3,
         ["train", *small, "--vocabulary", 32, test.path("tokens.npy"), model]),
        (1, "rows.npy: row 2 has no two tokens", 2, ["train", "--steps", 1, rows, model]),
        (1, "length = 40: .*rows.npy has rows of 9 tokens.* must be 8", 2, ["train", *small, rows, model]),
        (1, "3 axes", 1, ["train", *small, test.path("axes.npy"), model]),
        (1, "another --accumulate", 2, ["train", *small, "--accumulate", 2, "--resume", text, own()]),
        (1, "used: is there already; give --resume", 1, ["train", *small, text, own()]),
        (1, "used: is there already; give --resume", 3, ["train", *small, text, own()]),
        (1, "another --rate", 3, ["train", *small, "--rate", 0.02, "--resume", text, own()]),
        (1, "another DATA", 1, ["train", *small, "--resume", write("other", b"a" * 5000), own()]),
        (1, "trained with another --type", 2, ["train", *small, "--type", "bfloat16", "--resume", text, own()]),
        (1, "another DATA", 1, ["train", *small, "--type", "bfloat16", "--resume", write("others", b"a" * 6027), own()]),
        (1, "another DATA", 2, ["train", *small, "--resume", write("edited", edited), own()]),
        (1, "another DATA", 1, ["train", *small, "--resume", test.path("other-rows.npy"), own()]),
        *[(1, f"used has another {words[0]}", 1, ["train", *small, *words, "--resume", text, own()])
          for words in (("--dim", 16), ("--depth", 3, "--lookback", "none"), ("--vocabulary", 300), ("--tied",),
                        ("--softcap", 3), ("--ff-mult", 2), ("--lookback", "16,17"), ("--post-norm",),
                        ("--logits-softcap", 9), ("--attention-scale", 0.1), ("--embedding-scale", 2),
                        ("--head-map", "interleaved"))],
        (1, "is not causal: it would see its labels", 2,
         ["train", "--tokens", 40, "--resume", test.path("tokens.npy"), imported]),
        (1, "used/model: cannot be created: Not a directory", 1, ["train", *small, "--resume", text, used + "/model"]),
        (1, "used/model: Not a directory", 2, ["generate", "--prompt", "x", used + "/model"]),
        (1, "is a model in format 1, and this program reads", 1,
         ["generate", "--prompt", "x", write("format-1", content[:15] + b"1" + content[16:])]),
        *[(1, r"layers.0.1.1.bias\[5\] is nan: every number must be finite", 1,
           [command, problems["nan"], test.path("nan-result")]) for command in ("import", "step")],
        (1, "is damaged", 1, ["train", *small, "--resume", text, write("cut", content[:-1])]),
        (1, "is damaged", 2, ["generate", "--prompt", "x", write("flipped", flipped)]),
        (1, "is no model", 1, ["generate", "--prompt", "x", text]),
        (1, "missing: No such file", 3, ["generate", "--prompt", "x", missing]),
        (1, "--prompt", 1, ["generate", used]),
        (2, "--prompt and --prompt-file: give one of them", 2,
         ["generate", "--prompt", "x", "--prompt-file", text, used]),
        (1, "--prompt-file: .*missing: No such file", 3, ["generate", "--prompt-file", missing, used]),
        (1, "--prompt-file: give a text", 2, ["generate", "--prompt-file", "-", used]),
        (1, "--prompt-file: MIT, number 1 of the text, is no token", 2,
         ["generate", "--prompt-file", "LICENSE", fixture]),
        (1, "other-rows.npy.*token", 2, ["generate", "--prompt-file", test.path("other-rows.npy"), fixture]),
        (1, "--prompt: 64, number 2 of the text, is no token", 2, ["generate", "--prompt", "1 64", fixture]),
        (1, "--prompt: x, number 3 of the text, is no token", 1, ["generate", "--prompt", "1 2 x", fixture]),
        (1, "causal", 1, ["generate", "--prompt", "1", masked]),
        (1, "layers.1.1.3.bias", 2, ["step", problems["no-weight"], test.path("result")]),
        (1, "layers.0.1.1.bias", 1, ["step", problems["other-shape"], test.path("result")]),
        (1, r"^10-transformer: .*labels.npy: \[1, 7\] is 64: give at most 63", 4, ["step", problems["label"], test.path("result")]),
        (1, "--recompute: .* no labels.npy", 2, ["step", "--recompute", problems["bare"], missing]),
        (1, "holds .*, which this program does not replace", 2, ["step", problems["bare"], fixture]),
        (1, "config.json", 1, ["step", problems["no-config"], test.path("result")]),
        (1, "config.json: has no .depth", 1, ["step", problems["no-depth"], test.path("result")]),
        (1, "lookback", 2, ["step", problems["lookback"], test.path("result")]),
        (1, "missing", 1, ["export", missing, test.path("result")]),
        (1, "missing", 2, ["import", missing, test.path("result")]),
        (1, "no-folder/model.*No such file", 2, ["import", fixture, missing + "/no-folder/model"]),
    ]


def hosts_differ(test):
    """(words of the message, command, what host 1 has in the place of what host 0 has, or has not): hosts with
    disks of their own, where the same path leads to another file."""
    text, fixture = write_text(test.path("host-text"), 6000, 1), os.path.join(HERE, "fixtures", "causal-gqa")
    small = ["train", *SMALL[:-6], "--steps", 2]
    models = {name: test.path(name) for name in ("host-model", "host-untrained", "host-seed")}
    failures = test.run_batches([(1, [*small, "--seed", 3, text, models["host-model"]]),
                                 (1, [*small, "--steps", 0, "--seed", 3, text, models["host-untrained"]]),
                                 (1, [*small, "--seed", 4, text, models["host-seed"]])])
    test.verdict("models of hosts", list(failures.values()))
    with open(text, "rb") as file:
        content = file.read()
    resume = [*small, "--seed", 3, "--resume", "data", "model"]

    def put(what, name):
        return lambda folder: shutil.copyfile(what, os.path.join(folder, name))

    def cut(count, last=b""):
        def write(folder):
            with open(os.path.join(folder, "data"), "wb") as file:
                file.write(content[:count] + last)
        return write

    def add_mask(folder):
        np.save(os.path.join(folder, "problem", "mask.npy"), np.ones((2, 40), bool))

    def other_tokens(folder):
        path = os.path.join(folder, "problem", "tokens.npy")
        tokens = np.load(path)
        tokens[-1, -1] ^= 1
        np.save(path, tokens)

    def other_ends(folder):
        with open(os.path.join(folder, "llama", "generation_config.json"), "w", encoding="utf-8") as file:
            json.dump({"eos_token_id": [2, 7]}, file)

    def other_columns(folder):
        path = os.path.join(folder, "problem", "tokens.npy")
        np.save(path, np.load(path).reshape(4, -1))

    return text, models, fixture, [
        ("rank 1: data: .*No such file", resume, lambda folder: os.remove(os.path.join(folder, "data"))),
        ("ranks disagree about model: rank 0 has it, rank 1 has none", resume,
         lambda folder: os.remove(os.path.join(folder, "model"))),
        ("ranks disagree about the step of MODEL: rank 0 has 2, rank 1 has 0", resume,
         put(models["host-untrained"], "model")),
        ("ranks disagree about the tokens of DATA: rank 0 has 6000, rank 1 has 5000", resume, cut(5000)),
        ("ranks disagree about tokens of data: rank 1 has read others", resume, cut(5999, b"?")),
        ("ranks disagree about the columns of DATA: rank 0 has 48, rank 1 has 24",
         ["train", "--steps", 1, "--ring-size", 1, os.path.join("problem", "tokens.npy"), "new"], other_columns),
        *[("ranks disagree about weights of model: rank 1 has read others", words, put(models["host-seed"], "model"))
          for words in (["generate", "--prompt", "x", "model"], ["export", "model", "out"])],
        ("ranks disagree about eos_token_id of llama: rank 1 has read others",
         ["generate", "--document-end", "eos", "--prompt", "3 1 4", "llama"], other_ends),
        ("ranks disagree about problem/mask.npy: rank 0 has none, rank 1 has it", ["step", "problem", "out"],
         add_mask),
        ("ranks disagree about rows of problem/tokens.npy", ["step", "problem", "out"], other_tokens)]


def differs(test, number, text, models, fixture, case):
    """Runs a command on two ranks, each in a folder of its own."""
    words, command, change = case
    for host in (0, 1):
        folder = test.path("hosts", f"{number}-{host}")
        os.makedirs(folder)
        shutil.copyfile(text, os.path.join(folder, "data"))
        shutil.copyfile(models["host-model"], os.path.join(folder, "model"))
        shutil.copytree(fixture, os.path.join(folder, "problem"))
        shutil.copytree(os.path.join(HERE, "fixtures", "families", "llama"), os.path.join(folder, "llama"))
        if host == 1:
            change(folder)
    # mpirun of Debian 13 crashes on a list of commands, split by colons.
    job = [*jobs.mpirun(2), "sh", "-c", 'cd "$0$OMPI_COMM_WORLD_RANK" && exec "$@"',
           os.path.abspath(test.path("hosts", f"{number}-")), os.path.abspath(test.program),
           *map(str, command)]
    done = subprocess.run(job, stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=HANGS,
                          errors="replace")
    own = [line for line in done.stderr.splitlines() if line.startswith("10-transformer: ")]
    good = done.returncode == 1 and len(own) == 1 and re.search(words, own[0]) and not done.stdout
    return f"hosts: {words}", "" if good else f"exit status {done.returncode}, {own}, {done.stdout[:100]}"


def refused(test, case):
    """Runs a command line that must be refused: one line of ours on stderr, none on stdout. In the midst of
    its work each rank speaks for itself, and of those that miss it, too."""
    code, says, ranks, words = case
    own = os.path.join(tempfile.mkdtemp(dir=test.folder), "model")  # only one at a time may write it
    words = [own if word == test.path("model") else word for word in words]
    name = shlex.join(["mpirun", "-n", str(ranks), "10-transformer", *map(str, words)])
    try:
        job = subprocess.run(test.command(ranks, *words), stdin=subprocess.DEVNULL, text=True,
                             capture_output=True, timeout=HANGS, start_new_session=True, errors="replace")
    except subprocess.TimeoutExpired:
        return name, [f"no end after {HANGS} s"]
    own = [line for line in job.stderr.splitlines() if line.startswith("10-transformer: ")]
    wrong = [f"exit status {job.returncode} instead of {code}"] if job.returncode != code else []
    at_work = says.startswith("rank")
    if not any(re.search(says, line) for line in own) or (len(own) > 1 and not at_work):
        wrong.append(f"says {own or job.stderr[:500]}")
    return name, wrong + ([f"prints {job.stdout[:100]}"] if job.stdout and not at_work else [])


def commands(test):
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        cases = [case for case in refusals(test) if not test.options.only or
                 test.options.only in [os.path.basename(str(word)) for word in case[3]]]
        for name, complaints in pool.map(lambda case: refused(test, case), cases):
            test.verdict(name, complaints)
        if test.options.only:
            return
        text, models, fixture, cases = hosts_differ(test)
        for name, complaints in pool.map(
                lambda numbered: differs(test, numbered[0], text, models, fixture, numbered[1]), enumerate(cases)):
            test.verdict(name, complaints)

    # A training that may go on begins where there is nothing, and says so. Where nothing is left to do, its
    # speed is that of no step.
    for words in ("is not there, so training begins", " 0 tokens per second"):
        job = subprocess.run(test.command(1, "train", *SMALL[:-6], "--steps", 2, "--resume", text, test.path("begun")),
                             stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=HANGS)
        good = job.returncode == 0 and words in job.stderr
        test.verdict(f"--resume: {words}", "" if good else f"{job.returncode} {job.stderr}")

    # In bfloat16 it goes on in bfloat16 alone.
    begun = ["train", *SMALL[:-6], "--steps", 2, "--resume", text, test.path("begun-16")]
    said = [subprocess.run(test.command(1, *begun[:-2], *more, *begun[-2:]), stdin=subprocess.DEVNULL, text=True,
                           capture_output=True, timeout=HANGS) for more in (["--type", "bfloat16"],) * 2 + ([],)]
    good = [job.returncode for job in said] == [0, 0, 1] and "trained with another --type" in said[2].stderr
    test.verdict("--resume in bfloat16", "" if good else f"{[job.stderr for job in said]}")

    # A step of no label says that its loss is none.
    bare = shutil.copytree(os.path.join(HERE, "fixtures", "causal-gqa"), test.path("no-label"))
    np.save(os.path.join(bare, "labels.npy"), np.full_like(np.load(os.path.join(bare, "labels.npy")), -1))
    job = subprocess.run(test.command(2, "step", bare, test.path("no-label-result")), stdin=subprocess.DEVNULL,
                         text=True, capture_output=True, timeout=HANGS)
    good = job.returncode == 0 and job.stderr.count("no-label/labels.npy has no label: loss and gradients are 0") == 1
    test.verdict("step without a label", "" if good else f"{job.returncode} {job.stderr}")
    for words in (["--help"], ["train", "--help"]):
        job = subprocess.run(test.command(3, *words), stdin=subprocess.DEVNULL, text=True,
                             capture_output=True, timeout=HANGS)
        good = job.returncode == 0 and job.stdout.count("Usage: ") == 1 and not job.stderr
        test.verdict(" ".join(words), "" if good else f"{job.returncode} {job.stdout} {job.stderr}")

    # The flag reaches the cache: with room for many tokens, 16 bits take less memory. The first token ends the text.
    folder = os.path.join(HERE, "fixtures", "causal-gqa")
    prompt, tokens = choose_prompt(np.random.default_rng(test.options.seed), folder, 3, 1)
    taken = {}
    for kind in ("float32", "bfloat16", "float16"):
        words = ["generate", "--time", "--cache-type", kind, "--prompt", " ".join(map(str, prompt)), "--count", 20000,
                 "--document-end", tokens[0], folder]
        job = subprocess.run(test.command(1, *words), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                             timeout=HANGS)
        said = re.search(r" ([0-9]+) bytes on a rank$", job.stderr.strip())
        good = job.returncode == 0 and job.stdout.split() == [str(token) for token in (*prompt, tokens[0])]
        taken[kind] = int(said[1]) if said and good else 0
    test.verdict("a cache of 16 bits takes less memory",
                 "" if 0 < taken["bfloat16"] == taken["float16"] < taken["float32"] else f"bytes: {taken}")

    # --document-end eos stops where generation_config.json says, or else config.json.
    source = os.path.join(HERE, "fixtures", "families", "llama")
    job = subprocess.run(test.command(1, "generate", "--prompt", "3 1 4", "--count", 8, source), text=True,
                         stdin=subprocess.DEVNULL, capture_output=True, timeout=HANGS)
    new = [int(word) for word in job.stdout.split()][3:]
    first, second = new[0], next(token for token in new if token != new[0])
    until = new[:new.index(second) + 1]
    outside = next(token for token in range(64) if token not in new)
    for number, (own, other, wanted) in enumerate((
            (second, first, until), ([outside, second], None, until), (None, second, until),
            ("no file", [second], until), (outside, first, new), ("no file", None, "no token is known"),
            (-1, None, "no token of this model"), ([0.5], None, "no token of this model"))):
        folder = shutil.copytree(source, test.path("eos", str(number)))
        for file, token in (("generation_config.json", own), ("config.json", other)):
            path = os.path.join(folder, file)
            with open(path, encoding="utf-8") as opened:
                config = json.load(opened)
            os.remove(path)
            if token != "no file":
                with open(path, "w", encoding="utf-8") as opened:
                    json.dump({**config, "eos_token_id": token}, opened)
        job = subprocess.run(test.command(1 + number % 2, "generate", "--document-end", "eos", "--prompt", "3 1 4",
                                          "--count", 8, folder), stdin=subprocess.DEVNULL, text=True,
                             capture_output=True, timeout=HANGS)
        if isinstance(wanted, str):
            good = job.returncode == 1 and wanted in job.stderr
        else:
            good = (job.returncode == 0 and [int(word) for word in job.stdout.split()][3:] == wanted and
                    "per token" not in job.stderr)
        test.verdict(f"--document-end eos: {own}, {other}", "" if good else f"{job.returncode} {job.stdout} {job.stderr}")

    # Vectors that the processor lacks, on some of the ranks or all.
    fixture = os.path.join(HERE, "fixtures", "causal-gqa")
    for words in (["generate", "--prompt", "1", fixture], ["step", fixture, test.path("no-vectors")],
                  ["train", *SMALL[:-6], "--layout", "striped", "--bucket", 2, text, test.path("no-vectors")]):
        for ranks, lacks in ((1, "0"), (3, "[012]"), (3, "1")):
            case = f'case $OMPI_COMM_WORLD_RANK in {lacks}) export RA_VECTOR=mmx ;; esac; exec "$0" "$@"'
            job = subprocess.run(jobs.mpirun(ranks, "sh", "-c", case, test.program, *map(str, words)),
                                 stdin=subprocess.DEVNULL, text=True, capture_output=True, timeout=HANGS)
            good = (job.returncode == 1 and "RA_VECTOR=mmx in the environment: this processor has no" in job.stderr and
                    not re.search(r"rank \d: rank \d:", job.stderr))
            test.verdict(f"{words[0]}: no such vectors, {lacks} of {ranks}",
                         "" if good else f"{job.returncode} {job.stderr}")

    # What --rotary-high is, if it is left out, depends on the kind.
    for kind, high in (("llama3", 4), ("yarn", 32), ("yarn_untruncated", 32)):
        file, folder = test.path(f"{kind}-model"), test.path(f"{kind}-folder")
        failures = [jobs.run(test.command(1, *words), HANGS) for words in (
            ["train", *SMALL[:-6], "--steps", 0, "--rotary-scaling", kind, text, file], ["export", file, folder])]
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as opened:
            found = json.load(opened)["rotary_high"]
        test.verdict(f"--rotary-high of {kind}", [f for f in failures if f] or ("" if found == high else f"{found}"))

    # Models go out as folders and as one file of others' format, and come in again, to the bit.
    script = os.path.join(HERE, "safetensors_folder.py")
    for number, name in enumerate(("lookback", "tied", "one head of keys", "soft cap", "rotary")):
        given, file, folder, again, packed = (test.path("exported", f"{number}-{what}") for what in (
            "given", "file", "folder", "again", "weights.safetensors"))
        make_problem(MODELS[name], number, given)
        failures = [jobs.run(command, HANGS) for command in (
            test.command(2, "import", given, file), test.command(3, "export", file, folder),
            [PYTHON, script, "pack", os.path.join(folder, "weights"), packed],
            [PYTHON, script, "unpack", packed, os.path.join(again, "weights")],
            test.command(1, "import", folder, file + "-again"))]
        complaints = [failure for failure in failures if failure]
        for weight in os.listdir(os.path.join(given, "weights")):
            for other in (folder, again):
                complaints.append(same_bytes(os.path.join(given, "weights", weight),
                                             os.path.join(other, "weights", weight)))
        complaints.append(same_bytes(file, file + "-again"))
        test.verdict(f"{name}: exported and imported", [text for text in complaints if text])


# ---- Models that move over ----


# The keyword arguments of ring-attention-pytorch beside num_tokens, dim and depth; what they are to the oracle;
# and the defaults that the import prints, or a part of why it refuses.
HEADS = dict(heads=4, dim_head=8)

# The arguments of ring-attention-pytorch 0.5.20, but for num_tokens, dim and depth.
RING_TRANSFORMER = ("causal dim_head heads ff_mult num_grouped_query_heads bucket_size ring_attn striped_ring_attn "
                    "ring_seq_size auto_shard_seq max_lookback_seq_len rotary_embed_theta ignore_index "
                    "force_regular_attn use_cuda_kernel").split()
RING_ATTENTION = ("dim dim_head heads num_grouped_query_heads causal eps bucket_size ring_attn ring_seq_size "
                  "max_lookback_seq_len striped_ring_attn auto_shard_seq prenorm force_regular_attn rotary_embed "
                  "rotary_embed_theta use_cuda_kernel mask rotary_emb force_ring_reduce_off ring_size").split()
RING_FLASH_ATTN = ("q k v mask causal bucket_size ring_reduce_col striped_ring_attn max_lookback_seq_len ring_size "
                   "softclamp_qk_sim softclamp_value").split()

MOVES = {
    "causal": (dict(HEADS, causal=True), dict(causal=True), ""),
    "grouped": (dict(HEADS, causal=True, num_grouped_query_heads=2),
                dict(causal=True, num_grouped_query_heads=2, head_map="interleaved"),
                "head_map interleaved"),
    "not causal": (dict(HEADS, bucket_size=16), {}, "causal false"),
    "not causal, grouped": (dict(HEADS, num_grouped_query_heads=2),
                            dict(num_grouped_query_heads=2, head_map="interleaved"),
                            "causal false, head_map interleaved"),
    "one head of keys": (dict(HEADS, causal=True, num_grouped_query_heads=4),
                         dict(causal=True, num_grouped_query_heads=4), ""),
    "theta": (dict(HEADS, causal=True, rotary_embed_theta=500000),
              dict(causal=True, rotary_theta=500000.0), ""),
    "theta, in bfloat16": (dict(HEADS, causal=True, rotary_embed_theta=500000),
                           dict(causal=True, rotary_theta=500000.0), ""),
    "soft cap": (dict(HEADS, causal=True, softclamp_qk_sim=True, softclamp_value=2),
                 dict(causal=True, softcap=2.0), ""),
    "window": (dict(HEADS, causal=True, max_lookback_seq_len=[5, 0], bucket_size=1,
                    use_cuda_kernel=False), dict(causal=True, lookback=[5, 0]), ""),
    "feed-forward": (dict(HEADS, causal=True, ff_mult=3, ignore_index=-1),
                     dict(causal=True, ff_mult=3), ""),
    "plain attention": (dict(HEADS, causal=True, force_regular_attn=True, use_cuda_kernel=False, ring_seq_size=8),
                        dict(causal=True), ""),
    "a GPU's kernel": (dict(HEADS, causal=True, use_cuda_kernel=True), dict(causal=True), ""),
    "plain attention in a ring": (dict(HEADS, causal=True, ring_attn=True, force_regular_attn=True),
                                  dict(causal=True), "ring_attn with force_regular_attn"),
    "stripes without a ring": (dict(HEADS, causal=True, striped_ring_attn=True), dict(causal=True),
                               "striped_ring_attn"),
    "shards without a ring": (dict(HEADS, causal=True, auto_shard_seq=True), dict(causal=True),
                              "auto_shard_seq"),
    "another label ignored": (dict(HEADS, causal=True, ignore_index=3), dict(causal=True), "ignore_index is 3"),
    "half a feed-forward": (dict(HEADS, causal=True, ff_mult=2.5), dict(causal=True, ff_mult=2.5), ""),
    "a window on a GPU": (dict(HEADS, causal=True, max_lookback_seq_len=4, bucket_size=1, use_cuda_kernel=True),
                          dict(causal=True), "use_cuda_kernel false"),
    "eps of a module": (dict(HEADS, causal=True, eps=1e-10), dict(causal=True), "eps"),
    "default heads": (dict(use_cuda_kernel=None), dict(heads=8, dim_head=64),
                      "heads 8, dim_head 64, causal false"),
    "ring": (dict(HEADS, causal=True, ring_attn=True, striped_ring_attn=True, ring_seq_size=64,
                  bucket_size=64, auto_shard_seq=True), dict(causal=True),
             "ring_attn true: attention over the whole sequence, as striped_ring_attn has it on several "
             "processes, but not on one"),
    "theta forgotten": (dict(HEADS, causal=True), dict(causal=True, rotary_theta=500000.0),
                        "inv_freq.npy: number 1 .*theta 500000 would fit"),
    "heads changed": (dict(causal=True, heads=8, dim_head=4), dict(causal=True),
                      "inv_freq.npy: must be .2.: half of dim_head"),
    "tied forgotten": (dict(HEADS, causal=True), dict(causal=True, tied=True), "to_logits.1.weight"),
    "causal open": (HEADS, {}, "has no .causal.: give true .*false"),
    "windows of buckets": (dict(HEADS, causal=True, max_lookback_seq_len=[16, 64], bucket_size=16),
                           dict(causal=True), "whole buckets"),
}


def moving(test):
    """Each model as a folder of the original; the oracle's truth of what it means. Every argument occurs, and
    so do those of its modules in the tables of the book."""
    missing = set(RING_TRANSFORMER) - {key for given, _, _ in MOVES.values() for key in given}
    test.verdict("moving: every argument of RingTransformer", ", ".join(sorted(missing)))
    for page, names in (("10e-reference.md", RING_TRANSFORMER), ("10b-library.md", RING_ATTENTION),
                        ("08-reference.md", [*RING_FLASH_ATTN, *RING_ATTENTION])):
        with open(os.path.join(HERE, "..", "chapters", page), encoding="utf-8") as file:
            text = file.read()
        missing = [name for name in names if f"`{name}`" not in text]
        test.verdict(f"moving: arguments of the original on page {page}", ", ".join(missing))

    kept, runs = {}, []
    for number, (name, (given, meant, words)) in enumerate(MOVES.items()):
        problem, truth, file = (test.path(f"{number}-{what}") for what in ("problem", "truth", "file"))
        meant = {"num_grouped_query_heads": 1, **meant}
        make_problem(meant, [test.options.seed, number], problem)
        model_oracle.run(argparse.Namespace(folders=[problem, truth]))
        config = model_oracle.load_model(problem)[0]
        frequencies = np.float32(config["rotary_theta"]) ** -(
            np.arange(0, config["dim_head"], 2, dtype=np.float32) / np.float32(config["dim_head"]))
        if "bfloat16" in name:  # as safetensors_folder.py widens it
            frequencies = (frequencies.view(np.uint32) + 0x8000 & 0xffff0000).view(np.float32)
        np.save(os.path.join(problem, "weights", "rotary_emb.inv_freq.npy"), frequencies)
        with open(os.path.join(problem, "config.json"), "w", encoding="utf-8") as out:
            json.dump({key: config[key] for key in ("num_tokens", "dim", "depth")} | given, out)

        job = subprocess.run(test.command(1, "import", problem, file), stdin=subprocess.DEVNULL,
                             text=True, capture_output=True, timeout=HANGS)
        said = job.stderr.strip()
        if job.returncode != 0:
            good = job.returncode == 1 and re.search(words, said) and not os.path.exists(file)
            test.verdict(f"moving: {name} is refused", "" if good and words else said)
            continue
        want = f"10-transformer: {problem}/config.json: read as ring-attention-pytorch's: {words}"
        good = not job.stdout and said == (want if words else "")
        test.verdict(f"moving: {name}", "" if good else f"prints {job.stdout} and says {said}")
        kept[len(runs)] = (name, truth)
        runs.append((1, ["step", problem, test.path(f"{number}-result")]))
    failures = test.run_batches(runs)
    for place, (name, truth) in kept.items():
        complaints = [failures[place]] if place in failures else judge_step(truth, runs[place][1][-1])[0]
        test.verdict(f"moving: {name}: against the oracle", complaints)


def asserting(test):
    """tests/assert.py: options of the original's, its own models, and a truth that is wrong."""
    script, fixtures = os.path.join(HERE, "assert.py"), os.path.join(HERE, "fixtures")
    wrong = shutil.copytree(os.path.join(fixtures, "masked"), test.path("wrong"))
    path = os.path.join(wrong, "gradients", "token_emb.weight.npy")
    np.save(path, np.load(path) * 1.001)
    cases = ((0, "are those of one", ["--world-size", 4, "--causal", "--striped-ring-attn", "--num-sharded-batches", 2,
                                      "--batch-size-var-len"]),
             (0, "are those of one", ["--world-size", 3, "--zig-zag", os.path.join(fixtures, "causal-gqa")]),
             (0, "are those of one", ["--world-size", 2, os.path.join(fixtures, "masked")]),
             (1, "FAILED  gradients/token_emb.weight.npy: error 1", ["--world-size", 2, wrong]),
             (2, "does not divide the 8 ranks", ["--num-sharded-batches", 3]),
             (2, "models run on hosts", ["--use-cuda"]))
    for code, says, words in cases:
        job = subprocess.run([PYTHON, script, "--build", test.options.build, *map(str, words)], text=True,
                             capture_output=True, stdin=subprocess.DEVNULL, timeout=HANGS)
        good = job.returncode == code and says in job.stdout + job.stderr
        test.verdict(f"assert.py {shlex.join(map(str, words))}", "" if good else f"{job.returncode} {job.stdout} {job.stderr}")


# ---- Files that must survive ----


def contents(*paths):
    """The bytes of files, and of all files in folders, by their paths."""
    found = {}
    for path in paths:
        names = [os.path.join(at, name) for at, _, names in os.walk(path) for name in names]
        for name in names if os.path.isdir(path) else [path]:
            with open(name, "rb") as file:
                found[name] = file.read()
    return found


def hidden(folder):
    return [name for name in os.listdir(folder) if name.startswith(".")]


def eaten(test, flags, data, models):
    """No output takes the place of what is there, by whatever name; and a training that could not write its model
    says so before its first step."""
    folder = test.path("eaten")
    os.mkdir(folder)
    at = lambda *names: os.path.join(folder, *names)
    text, model, exported, problem = at("text"), at("model"), at("exported"), at("problem")
    shutil.copy(data, text)
    shutil.copy(models[0], model)
    shutil.copytree(models[0] + "-folder", exported)
    shutil.copytree(os.path.join(HERE, "fixtures", "causal-gqa"), problem)
    os.symlink("text", at("link"))
    os.link(text, at("hard"))
    os.symlink("model", at("model-link"))
    shutil.copy(data, at("text.idx"))
    before, train = contents(folder), ["train", *flags]
    result = test.path("eaten-result")
    cases = (
        (2, "--trace .*text: is DATA", 1, [*train, "--trace", text, text, result]),
        (2, "--trace .*text: is DATA", 3, [*train, "--trace", text, text, result]),
        (2, "--trace .*link: is DATA", 1, [*train, "--trace", at("link"), text, result]),
        (2, "--trace .*hard: is DATA", 1, [*train, "--trace", at("hard"), text, result]),
        (2, "--trace .*text: is DATA", 1, [*train, "--trace", text, at("hard"), result]),
        (2, "--trace .*: is MODEL", 1, [*train, "--trace", result, text, result]),
        (2, "--trace .*: is the .idx of DATA", 1,
         [*train, "--token-type", "megatron", "--trace", at("text.idx"), at("text.bin"), result]),
        (2, "--trace .*: is MODEL", 3, [*train, "--resume", "--trace", at("model-link"), text, model]),
        (2, "--trace .*: is not a regular file", 1, [*train, "--trace", exported, text, result]),
        (2, "--trace .*: is not a regular file", 2, ["bench", "--trace", exported]),
        (1, "is there already", 1, [*train, text, model]),
        (1, "is there already", 1, [*train, text, text]),
        (1, "is there already", 1, ["import", exported, model]),
        (1, "is there already", 3, ["import", exported, at("model-link")]),
        (1, "is there already", 1, ["import", exported, os.path.join(exported, "config.json")]),
        (1, "a folder, not a file", 1, ["import", exported, exported]),
        (1, "not a folder", 1, ["export", model, model]),
        (1, "holds ", 1, ["export", exported, exported]),
        (1, "holds ", 3, ["export", model, exported]),
        (1, "holds ", 1, ["export", exported, os.path.join(exported, "weights")]),
        (1, "holds ", 2, ["step", problem, problem]),
        (1, "holds ", 1, ["step", problem, os.path.join(problem, "weights")]),
        (1, "not a folder", 1, ["step", problem, text]),
        (1, "No such file", 1, [*train, text, at("nowhere", "model")]),
        (1, "No such file", 3, [*train, text, at("nowhere", "model")]),
        (1, "a folder, not a file", 1, [*train, text, exported]),
        (1, "nothing can be written beside it", 1, [*train, text, "/proc/model"]),
        (1, "No such file", 1, [*train, "--trace", at("nowhere", "trace"), text, result]),
        (1, "No such file", 2, ["bench", "--trace", at("nowhere", "trace")]),
        (1, "No such file", 2, ["step", problem, at("nowhere", "result")]),
        (1, "No such file", 1, ["export", model, at("nowhere", "folder")]))
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        for name, complaints in pool.map(lambda case: refused(test, case), cases):
            test.verdict(name, complaints)
    changed = contents(folder) != before or hidden(folder) or os.path.exists(result)
    test.verdict("what was there is there", "something was changed" if changed else "")

    # A disk that has no room for the model.
    command = ["sh", "-c", 'ulimit -f 20; exec "$@"', "sh", *test.command(1, *train, text, result)]
    job = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANGS)
    good = job.returncode == 1 and re.search(r"cannot have its \d+ bytes: File too large", job.stderr)
    test.verdict("no room for the model", "" if good and not job.stdout else
                 f"exit status {job.returncode}: {job.stderr[:300]} {job.stdout[:100]}")


def one_at_a_time(test, flags, data, models):
    """While a training runs, nobody else may write its model; it leaves nothing hidden when it is ended."""
    model = test.path("alone", "model")
    train = ["train", *flags, "--steps", 10**6, "--save-every", 5, "--resume", data]
    job = Job(test, "alone-first", 2, *train, model)
    job.await_words(44)
    os.symlink("model", model + "-link")
    for ranks, words in ((1, [*train, model]), (2, [*train, model + "-link"]),
                         (1, ["train", *flags, "--seed", 9, data, model]),
                         (1, ["import", models[0] + "-folder", model])):
        name, complaints = refused(test, (1, "another run is writing it|is there already", ranks, words))
        test.verdict(f"while another runs: {name}", complaints)
    name, complaints = refused(test, (1, "another run is writing it", 1, [*train, model]))
    if job.process.poll() is not None:
        complaints = [*complaints, f"the first has ended: {job.said('err')[:300]}"]
    job.kill()
    failure = jobs.run(test.command(1, "export", model, model + "-folder"), HANGS)
    test.verdict("a second training of one model", [*complaints, *([failure] if failure else [])])

    # What a killed run has left, the next one removes; one that is told to end leaves nothing.
    complaints = [] if hidden(os.path.dirname(model)) else ["a killed run has left nothing to remove"]
    job = Job(test, "alone-next", 2, *train, model)
    job.await_words(44)
    if len(hidden(os.path.dirname(model))) != 1:
        complaints.append(f"hidden: {hidden(os.path.dirname(model))}")
    job.signal(signal.SIGTERM, 0)
    complaints += job.end(HANGS)
    if hidden(os.path.dirname(model)):
        complaints.append(f"SIGTERM leaves {hidden(os.path.dirname(model))}")
    if checkpoint_step(model) < 5:
        complaints.append(f"its model is of step {checkpoint_step(model)}")
    test.verdict("a training that was killed, and one that was ended", complaints)


def whole_or_not(test, flags, data, models):
    """step, export and the saving of a training, with one system call that fails or kills: what a reader finds is of
    one run."""
    inject = os.path.join(test.build, "inject")
    if subprocess.run([inject, "1", "EIO", "none", "true"], check=False).returncode == 98:
        print("skipped system calls that fail: no process can be traced here")
        return
    place = test.path("injected", "place")
    problems = [os.path.join(HERE, "fixtures", "causal-gqa"), test.path("other-problem")]
    shutil.copytree(problems[0], problems[1])
    tokens = np.load(os.path.join(problems[0], "tokens.npy"))
    np.save(os.path.join(problems[1], "tokens.npy"), (tokens + 1) % tokens.max())
    train = ["train", *flags, "--save-every", 1, "--resume", data]
    rng = np.random.default_rng([test.options.seed, 9])
    for name, old, new, calls in (
            ("step", ["step", problems[0], place], ["step", problems[1], place], 240),
            ("export", None, ["export", models[0], place], 200),
            ("train", ["import", models[0] + "-folder", place], [*train, place], 100)):
        def run(words, *before):
            command = test.command(1, *words)
            at = command.index(test.program)
            return subprocess.run([*command[:at], *before, *command[at:]], stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=HANGS)

        def start(words):
            """The place as this run leaves it."""
            shutil.rmtree(os.path.dirname(place))
            os.mkdir(os.path.dirname(place))
            return run(words).returncode if words else 0

        complaints = [f"{words[0]} fails" for words in (old, new) if start(words) != 0]
        after = [relative(place)]
        start(old)
        before = relative(place)
        tried = 0
        for number in sorted(rng.choice(calls, 5, replace=False) + 1):
            for fault in ("KILL", "ENOSPC"):
                if relative(place) != before:
                    start(old)
                job = run(new, inject, str(number), fault, "injected")
                found = relative(place)
                tried += "inject: " in job.stderr
                # A training is saved after each of its steps, and each of these is a whole model.
                if name == "train" and found not in (before, *after):
                    failure = jobs.run(test.command(1, "export", place, place + "-whole"), HANGS)
                    complaints += [f"{fault} at call {number}: {failure}"] if failure else []
                elif found not in (before, *after):
                    complaints.append(f"{fault} at call {number}: neither of both runs")
                if job.returncode == 0 and found == before and before not in after:
                    complaints.append(f"{fault} at call {number}: exit status 0")
        if tried < 4:
            complaints.append(f"only {tried} faults came about")
        test.verdict(f"{name}: whole or not at all", complaints)


def unreadable(test, flags, data, models):
    """A disk that fails while MODEL, DATA or PROBLEM is read: each run says so, or does without what failed, as
    the closing of a file. It calls nothing damaged, or not there, that is whole."""
    inject = os.path.join(test.build, "inject")
    if subprocess.run([inject, "1", "EIO", "none", "true"], check=False).returncode == 98:
        print("skipped disks that fail: no process can be traced here")
        return
    folder, families = test.path("unread"), os.path.join(HERE, "fixtures", "families")
    os.mkdir(folder)
    model, text, problem, llama = (os.path.join(folder, name) for name in ("model", "text", "problem", "llama"))
    shutil.copy(models[0], model)
    shutil.copy(data, text)
    shutil.copytree(os.path.join(HERE, "fixtures", "causal-gqa"), problem)
    shutil.copytree(os.path.join(families, "llama"), llama)
    ignored = {"close", "fstat", "newfstatat", "statx", "readlink", "readlinkat", "access", "faccessat", "faccessat2"}
    # Between its first and its last, the calls of a folder are those of one array as of another.
    ends = [*range(1, 26), *range(120, 160)]
    for name, word, words, numbers in (
            ("model", "unread/model", ["generate", "--prompt", "x", "--count", 3, model], range(1, 60)),
            ("text", "unread/text", ["train", *flags, text, None], range(1, 20)),
            ("problem", "unread/problem/", ["step", problem, None], ends),
            ("safetensors", "unread/llama/", ["import", llama, None], range(1, 60))):
        def run(number):
            place = test.path("unread-result", f"{name}-{number}")
            command = test.command(1, *(place if word is None else word for word in words))
            at = command.index(test.program)
            job = subprocess.run([*command[:at], inject, str(number), "EIO", word, *command[at:]],
                                 stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANGS,
                                 errors="replace")
            return job, relative(place)

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            jobs_of = list(pool.map(run, [10**6, *numbers]))
        # What is not injected has exit status 99, as there are fewer calls.
        whole, tried, complaints = jobs_of[0], 0, []
        for number, (job, found) in zip(numbers, jobs_of[1:]):
            failed = re.search(r"^inject: EIO at (\w+)", job.stderr, re.M)
            own = [line for line in job.stderr.splitlines() if line.startswith("10-transformer: ")]
            tried += bool(failed)
            said = job.returncode == 1 and found is None and len(own) == 1 and own[0].endswith(": Input/output error")
            same = job.returncode == 0 and (job.stdout, found) == (whole[0].stdout, whole[1])
            if failed and not said and not (same and failed[1] in ignored):
                complaints.append(f"call {number}, {failed[1]}: exit status {job.returncode}, {own}")
        if tried < 4:
            complaints.append(f"only {tried} calls failed: {whole[0].stderr[:300]}")
        test.verdict(f"a disk that fails, {name}", complaints)


def relative(place):
    """What is at a place, by names in it; None: nothing."""
    if not os.path.exists(place):
        return None
    return {os.path.relpath(path, place): data for path, data in contents(place).items()}


def outputs(test, flags, data, models):
    """stdout that cannot be written: a full disk, and a reader that has gone."""
    result, model = test.path("out-result"), test.path("out-model")
    fixture = os.path.join(HERE, "fixtures", "masked")
    for words in (["train", *flags, data, model], ["generate", "--prompt", "ab", "--count", 5, models[0]],
                  ["step", fixture, result], ["bench", *flags[:10], "--repeat", 1], ["--help"],
                  ["train", "--help"]):
        for ranks in (1, 3):
            for where in ("full", "gone"):
                if where == "gone" and "--help" in words:
                    continue  # SIGPIPE ends it, as any other
                if os.path.exists(model):
                    os.remove(model)
                if where == "full":
                    out = os.open("/dev/full", os.O_WRONLY)
                else:
                    reader, out = os.pipe()
                    os.close(reader)
                # mpirun reads what its ranks print, so each of them gets this stdout by itself.
                command = test.command(ranks, *words)
                if ranks > 1:
                    at = command.index(test.program)
                    command[at:at] = ["sh", "-c", 'exec "$@" >/dev/full', "sh"]
                job = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                     stdout=subprocess.DEVNULL if ranks > 1 else out, timeout=HANGS)
                os.close(out)
                complaints = []
                if job.returncode != 1 or "cannot write to stdout" not in job.stderr:
                    complaints.append(f"exit status {job.returncode}: {job.stderr[:300]}")
                if os.path.exists(result):
                    complaints.append("RESULT is there")
                if words[0] == "train" and "--help" not in words and not os.path.exists(model):
                    complaints.append("MODEL is lost")
                test.verdict(f"{words[0]}, stdout {where}, {ranks} ranks", complaints)
                if ranks > 1:
                    break


def traced(test, flags):
    """The timeline of bench is that of one step, on one axis for all ranks; on GPUs with its parts."""
    trace, programs = test.path("trace.json"), [test.program]
    programs += [path for path in [os.path.join(test.build, "cuda", "14-gpu-transformer-on-host")]
                 if os.path.exists(path)]
    for program in programs:
        for ranks in (1, 3):
            words = ["bench", *flags[:10], "--repeat", 2, "--layout", "striped", "--trace", trace]
            complaint = jobs.run(jobs.mpirun(ranks, program, *map(str, words)), HANGS)
            complaints = [complaint] if complaint else []
            with open(trace) as file:
                events = [event for event in json.load(file) if event["ph"] == "X"]
            os.remove(trace)
            steps = [event for event in events if event["name"] == "step"]
            if sorted((event["pid"], event["args"]["hop"]) for event in steps) != [(r, 2) for r in range(ranks)]:
                complaints.append(f"steps {steps}")
            start = min(event["ts"] for event in steps)
            end = max(event["ts"] + event["dur"] for event in steps)
            if start < -1e6 or max(event["ts"] for event in steps) > min(event["ts"] + event["dur"] for event in steps):
                complaints.append(f"no common axis: {steps}")
            for event in events:
                if event["dur"] < 0 or event["ts"] < start - 1000 or event["ts"] + event["dur"] > end + 1000:
                    complaints.append(f"{event} is not between {start} and {end}")
            on_gpus = program != test.program
            for rank in range(ranks):
                names = {event["name"] for event in events if event["pid"] == rank}
                wanted = {"step", "forward", "backward"}
                wanted |= {"clear", "loss", "attention", "attention backward", "AdamW"} if on_gpus else set()
                wanted |= {"sums"} if on_gpus and ranks > 1 else set()
                if wanted - names or ("loss" in names) != on_gpus:
                    complaints.append(f"rank {rank} has {sorted(names)}")
            test.verdict(f"trace of {os.path.basename(program)}, {ranks} ranks", complaints)


def overflowing(test):
    """What overflows is no result: step writes none, and a training leaves the model that was there."""
    fixture, tokens = os.path.join(HERE, "fixtures", "causal-gqa"), test.path("overflow", "tokens.npy")
    np.save(tokens, np.arange(2000) * 7 % 60)
    last = np.load(tokens)
    last[-100:] = 63
    np.save(test.path("overflow", "last.npy"), last)

    def folder(name, **factors):
        """The fixture, with arrays times a factor, as far as float32 goes."""
        place = shutil.copytree(fixture, test.path("overflow", name))
        for array, factor in factors.items():
            path = os.path.join(place, "weights", f"{array}.npy")
            np.save(path, np.clip(np.load(path) * factor, -3e38, 3e38))
        return place

    table, embedding = "to_logits.1.weight", "token_emb.weight"
    loss, gradient, mean = (folder(name, **factors) for name, factors in (
        ("loss", {table: 1e40}), ("gradient", {table: 1e35, embedding: 1e-12}), ("mean", {table: 1e21})))
    bare = folder("bare", **{table: 1e40})
    os.remove(os.path.join(bare, "labels.npy"))

    # A token of validation alone has the one number that meets the large weights of queries and keys.
    late = folder("late")
    path = os.path.join(late, "weights", f"{embedding}.npy")
    weights = np.load(path)
    weights[:, 5] = 0
    weights[63] = np.where(np.arange(weights.shape[1]) == 5, 1, 0)
    np.save(path, weights)
    path = os.path.join(late, "weights", "layers.0.0.to_qkv.1.weight.npy")
    weights = np.load(path)
    weights[:, 5] = 3e38
    np.save(path, weights)

    train = ["train", "--tokens", 40, "--clip", 0, "--steps", 1, "--resume"]
    for name, says, ranks, words, source in (
            ("loss", "the loss is -?nan: the model has overflowed", 1, ["step", loss], None),
            ("loss", "the loss is -?nan: the model has overflowed", 3, ["step", loss], None),
            ("logits", r"logits\[[01], \d+, \d+\] is -?(inf|nan): the model has overflowed", 3, ["step", bare], None),
            ("gradients", r"gradients: .*\[\d+, \d+\] is .*: every number must be finite", 2, ["step", gradient], None),
            ("means", "model, mean square of a gradient: .* is inf: every number must be finite", 2,
             [*train, "--validation", 0, tokens], mean),
            ("validation", "after step 1 the loss of validation is -?nan", 1,
             [*train, "--validation", 0.05, "--warmup", 0, test.path("overflow", "last.npy")], late)):
        place = test.path("overflow", f"result-{name}-{ranks}", "model")
        complaints = [jobs.run(test.command(1, "import", source, place), HANGS)] if source else []
        before = relative(place)
        job = subprocess.run(test.command(ranks, *words, place), stdin=subprocess.DEVNULL, capture_output=True,
                             text=True, timeout=HANGS)
        if job.returncode != 1 or not re.search(f"^10-transformer: (rank [0-2]: )?.*{says}", job.stderr, re.M):
            complaints.append(f"exit status {job.returncode}: {job.stderr[:300]} {job.stdout[-100:]}")
        if relative(place) != before or hidden(os.path.dirname(place)):
            complaints.append("something was written")
        test.verdict(f"{words[0]} overflows, {name}, {ranks} ranks", [text for text in complaints if text])


def cut_short(test, flags):
    """DATA that somebody cuts short during a training is an error of one line, not SIGBUS."""
    data = write_text(test.path("cut-text"), 200000, 1)
    job = Job(test, "cut", 2, "train", *flags, "--steps", 10**6, data, test.path("cut-model"))
    job.await_words(44)
    os.truncate(data, 3000)
    complaints = job.end(HANGS)
    if job.process.returncode != 1 or not re.search(
            r"^10-transformer: rank \d: .*cut-text: token \[\d+\] is missing; the file has been cut short",
            job.said("err"), re.M):
        complaints.append(f"exit status {job.process.returncode}: {job.said('err')[:500]}")
    test.verdict("DATA is cut short", complaints)


def files(test):
    data = write_text(test.path("text"), 6000, 1)
    flags = [*SMALL[:-6], "--threads", 1]
    short, models = [*flags, "--steps", 2], [test.path(f"model-{seed}") for seed in (1, 2)]
    failures = test.run_batches([(1, ["train", *short, "--seed", seed, data, model])
                                 for seed, model in enumerate(models)])
    failures.update(test.run_batches([(1, ["export", model, model + "-folder"]) for model in models]))
    test.verdict("models", list(failures.values()))
    eaten(test, short, data, models)
    one_at_a_time(test, flags, data, models)
    whole_or_not(test, short, data, models)
    unreadable(test, short, data, models)
    outputs(test, short, data, models)
    traced(test, short)
    overflowing(test)
    cut_short(test, flags)


def main():
    parts = {"equivalence": equivalence, "documents": documents, "shifts": shifts, "bfloat16": bfloat16, "curves": curves, "adamw": adamw, "resume": resume,
             "decoding": decoding, "trouble": trouble, "files": files, "commands": commands,
             "moving": moving, "assert": asserting}
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", metavar="BUILD", help="the folder of 10-transformer")
    parser.add_argument("parts", metavar="PART", nargs="*", help="run these alone")
    parser.add_argument("--seed", type=int, default=1, help="of what is random (1)")
    parser.add_argument("--rounds", type=int, default=1, help="sets of models (1)")
    parser.add_argument("--ranks", type=int, help="compare with the oracle on so many ranks alone")
    parser.add_argument("--only", metavar="NAME", help="of equivalence, bfloat16 and decoding this model alone, _ for its "
                        "blanks; of adamw the way with this number, from 0; of commands what is refused and has this "
                        "word, or a path that ends in it")
    options = parser.parse_args()
    if set(options.parts) - set(parts):
        parser.error(f"the parts are {', '.join(parts)}")

    # Whoever ends this test ends its ranks, too: see jobs.run().
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    passed = failed = 0
    for name in options.parts or parts:
        folder = os.path.join(options.build, "transformer", name)
        folders.begin(folder)
        test, began = Test(options.build, folder, options), time.time()
        parts[name](test)
        passed, failed = passed + test.passed, failed + test.failed
        print(f"{name}: {test.passed} of {test.passed + test.failed} passed, "
              f"{time.time() - began:.0f} s", flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
