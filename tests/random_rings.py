#!/usr/bin/env python3
"""random_rings: random configurations of the ring stages, 03 to 09 and 13, held against the oracle.

    random_rings.py BUILD [--count N] [--seed S] [--stage NN] [--only K]

A configuration is a stage, a number of ranks, flags and a problem, all drawn at random: lengths do
not divide, ranks have no rows, masks hide everything. Three judges look at each:

1. tests/rig/oracle.py: every element of o, lse, dq, dk and dv is within the error that it allows.
2. The traffic and the work, counted here from the positions of rows alone: what every rank sends
   and multiplies at every hop must be what the stage prints. (Not if it deals the rows by document, or
   has another method than the ring, whose counts check-methods and check-library judge.)
3. The stage itself, to the bit. Changing later tokens changes nothing earlier in a causal run. A
   ring of one rank is the same with --local-keys. Equal batches in two ring sets come out equal.

MPI takes half a second to start, so all configurations of one stage and number of ranks run in one
launch of BUILD/batch-NN-word. Everything lies below BUILD/random-rings; what passed is removed.
Configuration K of seed S is always the same one, and every failure prints the commands that show it
again. The last line is "N passed, N failed"; the exit status is 1 if any failed or none ran.
"""
import argparse
import json
import os
import re
import shlex
import shutil
import signal
import sys
import types

import numpy as np

sys.dont_write_bytecode = True  # nothing that is built lies outside BUILD
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "rig"))
import folders
import jobs
import oracle

PROGRAMS = {3: "03-ring", 4: "04-causal", 5: "05-striped", 6: "06-lookback", 7: "07-gqa",
            8: "08-library", 9: "09-vector", 13: "13-slices"}
FAR = 2**61  # the bound of a slice that has none
TOGETHER = 300  # configurations that lie on the disk at the same time
STAGE_SECONDS = 60  # until a rank gives up waiting for another


# ---- Drawing a configuration ----


def draw(seed, number):
    """Configuration `number` of this seed: all but the arrays."""
    rng = np.random.default_rng([seed, number])

    def pick(*choices):
        return choices[rng.integers(len(choices))]

    def sometimes(share):
        return rng.random() < share

    # The machine. A ring size divides the ranks; there are ranks / ring sets.
    c = types.SimpleNamespace(seed=seed, number=number)
    c.stage = pick(3, 3, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7, 7, 8, 8, 8, 8, 9, 9, 9, 9, 13, 13, 13, 13, 13)
    c.ranks = pick(1, 2, 2, 3, 3, 4, 4, 5, 6, 6, 7, 8)
    divisors = [size for size in range(1, c.ranks + 1) if c.ranks % size == 0]
    c.ring = c.ranks if sometimes(0.5) else pick(*divisors)
    c.sets = c.ranks // c.ring

    # The shapes: half of the lengths near the number of ranks, where shards are small or empty.
    def length():
        most = 91 if c.stage < 9 or sometimes(0.7) else 400  # several blocks of lanes
        return int(rng.integers(1, 3 * c.ring + 2 if sometimes(0.4) else most))

    c.B, c.N = pick(1, 2, 2, 3), length()
    c.M = c.N if sometimes(0.5) else length()
    c.D = pick(1, 2, 3, 4, 8, 16, 33, int(rng.integers(1, 34)))
    c.G = pick(1, 2, 3)
    c.H = c.G * pick(1, 2, 3) if c.stage >= 7 else c.G

    # Who sees whom.
    c.mask = pick("none", "none", "random", "one rank", "one batch", "last only")
    c.causal = c.stage >= 4 and sometimes(0.7)
    c.local_keys = sometimes(0.15)
    c.lookback = None
    if c.stage >= 6 and c.causal and sometimes(0.7):
        shard = -(-c.N // c.ring)
        c.lookback = pick(0, 1, shard - 1, shard, shard + 1, 2 * shard, c.M, 10**12,
                          int(rng.integers(0, c.M + 1)))
    c.slices = c.deal = None
    if c.stage >= 13 and sometimes(0.85):
        c.causal, c.lookback = False, None
        c.slices = draw_slices(rng, c.N, c.M, sometimes(0.5))
        c.deal = pick(None, "layout", "documents", "documents")
        c.local_keys = c.local_keys and c.deal != "documents"
    c.extras = c.stage >= 13 and sometimes(0.5)
    c.Dv = pick(c.D, 1, 5, 40) if c.stage >= 13 else c.D  # numbers of a row of v

    # Where the rows are. The bucket may be larger than a shard.
    c.layout = pick("contiguous", "striped", "striped", "zigzag") if c.stage >= 5 else "contiguous"
    c.bucket = None
    if c.layout == "striped" and sometimes(0.6):
        c.bucket = int(rng.integers(1, -(-c.N // c.ring) + 3))

    # How it is computed.
    c.head_map = pick(None, "grouped", "interleaved") if c.stage >= 7 else None
    c.scale = pick(None, None, None, 0.3, -0.7)
    c.softcap = pick(None, 0.5, 5, 30) if c.stage >= 8 else None
    c.forward_only = sometimes(0.1)
    c.tile_queries, c.tile_keys = (pick(None, 1, 2, 5, 16, int(rng.integers(1, 71))) for _ in "qk")
    if c.stage >= 9:  # tiles are as large as speed asks for, and work is counted here by tiles
        c.tile_queries, c.tile_keys = (pick(3, 64, 200, 1000, int(rng.integers(1, 401))) for _ in "qk")
    c.tile = pick(None, None, None, "plain") if c.stage >= 9 else None
    c.threads = pick(None, 1, 2, 5) if c.stage >= 9 else None
    c.time, c.trace = sometimes(0.1), sometimes(0.1)

    # The numbers.
    c.score_size, c.dtype = pick(0.1, 1, 1, 10, 30), pick("float32", "float32", "float16")
    c.equal_batches = c.sets > 1 and c.B > 1 and sometimes(0.5)
    c.twin = None
    if c.causal and sometimes(0.5):
        c.twin = "later tokens"
    elif c.ring == 1 and c.deal != "documents":
        c.twin = "local keys"

    draw_method(c)

    # Follows from the above: for every rank of a ring the positions of its rows, span by span.
    c.queries, c.keys = (oracle.spans(rows, c.ring, c.layout,
                                      oracle.stripes_per_rank(c.N, c.ring, c.bucket))
                         for rows in (c.N, c.M))
    return c


def draw_method(c):
    """How ranks meet: some of the library's by another method than the ring, from numbers of their own."""
    rng = np.random.default_rng([c.seed, c.number, 4])
    c.method = c.part = None
    if c.stage < 8 or c.local_keys or c.ring == 1 or rng.random() < 0.6:
        return
    if rng.random() < 0.4:  # three groups of two, or two of three
        c.ranks, c.ring, c.sets, c.equal_batches = 6, 6, 1, False
    parts = [part for part in range(2, c.ring) if c.ring % part == 0]
    ways = [("gathered-keys", None)] + [("exchanged-heads", None)] * 2 * (c.H >= c.ring)
    ways += [("double-ring", part) for part in parts or [None]]
    ways += [("hybrid", part) for part in parts or [None] if (part or 1) <= c.H]
    c.method, c.part = ways[rng.integers(len(ways))]


def draw_slices(rng, N, M, named):
    """A mask as slices (q0, q1, k0, k1, lo, hi) that do not overlap: of documents, or just any."""
    if not named:
        slices = cut((0, N, 0, M, -FAR, FAR), int(rng.integers(1, 6)), rng)
        return np.array(slices, np.int64).reshape(-1, 6)[rng.permutation(len(slices))]

    # Documents, which may be empty; of the keys others if there are not as many.
    count = int(rng.integers(1, 2 + min(N, 40)))
    ends = [np.sort(rng.integers(0, length + 1, count - 1)) for length in (N, M)]
    ends[1] = ends[0] if N == M else ends[1]
    queries, keys = (np.concatenate(([0], e, [length])) for e, length in zip(ends, (N, M)))
    lo, hi = -int(rng.integers(0, 20)), int(rng.integers(0, 20))
    first = int(rng.integers(1, 5))
    slices = []
    kind = rng.choice(["causal", "full", "window", "two sides", "prefix", "first"])
    for q0, q1, k0, k1 in zip(queries, queries[1:], keys, keys[1:]):
        bands = {"causal": (-FAR, 0), "full": (-FAR, FAR), "window": (lo, 0), "two sides": (lo, hi)}
        if kind in bands:
            slices.append((q0, q1, k0, k1, *bands[kind]))
        else:
            middle = min(k0 + first, k1)
            slices.append((q0, q1, k0, middle, -FAR, FAR if kind == "prefix" else 0))
            slices.append((q0, q1, middle, k1, -FAR if kind == "prefix" else lo, 0))
    return np.array(slices, np.int64)


def cut(piece, cuts, rng):
    """Cuts a slice by a query, a key or a diagonal, and the parts again; most of them are kept."""
    q0, q1, k0, k1, lo, hi = piece
    lowest, highest = max(lo, k0 - q1 + 1), min(hi, k1 - 1 - q0)
    if cuts == 0 or lowest > highest:
        return [piece] if rng.random() < 0.7 else []
    where = rng.integers(3)
    if where == 0:
        at = int(rng.integers(q0, q1 + 1))
        parts = (q0, at, k0, k1, lo, hi), (at, q1, k0, k1, lo, hi)
    elif where == 1:
        at = int(rng.integers(k0, k1 + 1))
        parts = (q0, q1, k0, at, lo, hi), (q0, q1, at, k1, lo, hi)
    else:
        at = int(rng.integers(lowest, highest + 1))
        parts = (q0, q1, k0, k1, lo, at - 1), (q0, q1, k0, k1, at, hi)
    return [kept for part in parts for kept in cut(part, cuts - 1, rng)]


def make_problem(c):
    """The arrays of a configuration by name: lopsided numbers, lest symmetry hide a mistake."""
    rng = np.random.default_rng([c.seed, c.number, 1])

    def array(mean, rows, heads, numbers):
        return rng.normal(mean, 1, (c.B, rows, heads, numbers)).astype(c.dtype)

    problem = {"q": array(0.2, c.N, c.H, c.D), "k": array(-0.3, c.M, c.G, c.D),
               "v": array(0.5, c.M, c.G, c.Dv)}
    problem["q"] *= np.dtype(c.dtype).type(c.score_size)
    if not c.forward_only:
        problem["do"] = array(-0.4, c.N, c.H, c.Dv)

    # The key mask: true where a key may be seen.
    if c.mask != "none":
        mask = rng.random((c.B, c.M)) < 0.7
        if c.mask == "one rank":
            for span in c.keys[rng.integers(c.ring)]:
                mask[:, list(span)] = False
        elif c.mask == "one batch":
            mask[rng.integers(c.B)] = False
        elif c.mask == "last only":
            mask[:] = np.arange(c.M) == c.M - 1
        problem["mask"] = mask
    if c.extras and not c.forward_only:
        problem["d_lse"] = rng.normal(0.3, 1, (c.B, c.H, c.N)).astype("float32")
    if c.equal_batches:
        for given in problem.values():
            given[1] = given[0]
    if c.slices is not None:
        problem["slices"] = c.slices
    if c.extras:
        problem["sink"] = np.where(rng.random(c.H) < 0.2, -np.inf, rng.normal(0.5, 2, c.H)).astype("float32")
        problem["slopes"] = rng.normal(0.05, 0.1, c.H).astype("float32")
    return problem


def first_later(c):
    """The position from which the twin "later tokens" differs; how many queries are before it."""
    position = int(np.random.default_rng([c.seed, c.number, 2]).integers(0, c.M + 1))
    return position, min(max(position - (c.M - c.N), 0), c.N)


def make_later(c, problem):
    """The problem with other numbers from first_later on."""
    rng = np.random.default_rng([c.seed, c.number, 3])
    position, query = first_later(c)
    twin = {name: array.copy() for name, array in problem.items()}
    for name, array in twin.items():
        if name not in ("q", "k", "v", "do", "mask"):
            continue
        later = array[:, query if name in ("q", "do") else position:]
        later[...] = (rng.random(later.shape) < 0.5 if name == "mask" else
                      rng.normal(-1, 3, later.shape))
    return twin


def stage_flags(c, result, local_keys):
    """The flags of the stage program."""
    flags = ["--per-hop", "--timeout", STAGE_SECONDS] + ["--time"] * c.time
    flags += ["--trace", result + ".trace"] if c.trace else []
    flags += ["--largest"] if c.extras else []
    if c.ring < c.ranks or c.number % 2:
        flags += ["--ring-size", c.ring]
    if local_keys:
        flags += ["--local-keys"]
    if c.stage >= 5:
        flags += ["--layout", c.layout]
    for flag, value in (("--tile-queries", c.tile_queries), ("--tile-keys", c.tile_keys),
                        ("--tile", c.tile), ("--threads", c.threads), ("--deal", c.deal), ("--method", c.method),
                        ("--inner" if c.method == "double-ring" else "--group", c.part)):
        flags += [] if value is None else [flag, value]
    if c.bucket is not None:
        flags += ["--bucket", c.bucket]
    return " ".join(map(str, flags + common_flags(c)))


def oracle_flags(c):
    """The flags of tests/rig/oracle.py."""
    flags = common_flags(c) + ["--largest"] * c.extras
    if c.local_keys:
        flags += ["--local-keys", c.ring, "--layout", c.layout]
        flags += [] if c.bucket is None else ["--bucket", c.bucket]
    return " ".join(map(str, flags))


def common_flags(c):
    flags = ["--causal"] if c.causal else []
    flags += ["--forward-only"] if c.forward_only else []
    for flag, value in (("--lookback", c.lookback), ("--scale", c.scale),
                        ("--softcap", c.softcap), ("--head-map", c.head_map)):
        flags += [] if value is None else [flag, value]
    return flags


# ---- What the stage must count ----


def visible(c):
    """(N, M) of bool: which query sees which key, key masks apart."""
    if c.slices is not None:
        return oracle.pairs_in_slices(c.slices, c.N, c.M)
    return oracle.visible_pairs(c.N, c.M, np.ones(c.M, bool), c.causal, c.lookback)


def expected_counts(c, with_mask):
    """{(rank of the world, hop, name): number} of all that is not 0.

    At hop t a rank works on the block of keys from t ranks to its left. Found from who sees whom by
    position; key masks are not looked at, because no other rank knows them in time.
    """
    seen = visible(c)
    hops, last = schedule(c, seen)
    counts = {}
    for rank in range(c.ranks):
        ring_rank, ring_set = rank % c.ring, rank // c.ring
        batches = len(range(ring_set, c.B, c.sets))
        for hop in hops:
            origin = (ring_rank - hop) % c.ring
            here = dict.fromkeys(("multiply-adds forward", "multiply-adds backward",
                                  "messages sent forward", "messages sent backward",
                                  "bytes sent forward", "bytes sent backward"), 0)

            # Two products of matrices per tile forward, five backward: of them two on rows of v.
            pairs = batches * c.H * tile_pairs(c, seen, ring_rank, origin)
            here["multiply-adds forward"] = pairs * (c.D + c.Dv)
            here["multiply-adds backward"] = pairs * (3 * c.D + 2 * c.Dv)

            # Keys go on unless this was their last hop; gradients go on too, or home.
            rows = batches * sum(map(len, c.keys[origin]))
            floats = 4 * rows * c.G * (c.D + c.Dv)
            keys, goes_on = floats + with_mask * rows, rows > 0 and hop < last[origin]
            comes_home = rows > 0 and hop == last[origin] > 0
            here["messages sent forward"] = int(goes_on)
            here["messages sent backward"] = 2 * goes_on + comes_home
            here["bytes sent forward"] = keys * goes_on
            here["bytes sent backward"] = keys * goes_on + floats * (goes_on or comes_home)
            for name, value in here.items():
                if value and not (c.forward_only and name.endswith("backward")):
                    counts[rank, hop, name] = value
    return counts


def schedule(c, seen):
    """The hops that a ring goes, and for the keys of each rank the hop at which they stop."""
    if c.local_keys:
        return [0], [0] * c.ring
    if c.stage < 6 or not (c.causal or c.slices is not None):
        return list(range(c.ring)), [c.ring - 1] * c.ring

    # From stage 06 on: hops at which some rank sees something; home is always one.
    needed = np.zeros((c.ring, c.ring), bool)  # (hop, origin)
    needed[0] = True
    for hop in range(c.ring):
        for origin in range(c.ring):
            rows = [i for span in c.queries[(origin + hop) % c.ring] for i in span]
            keys = [j for span in c.keys[origin] for j in span]
            needed[hop, origin] |= seen[np.ix_(rows, keys)].any()
    hops = [hop for hop in range(c.ring) if needed[hop].any()]
    return hops, [max(np.flatnonzero(needed[:, origin])) for origin in range(c.ring)]


def tile_pairs(c, seen, rank, origin):
    """Query-key pairs in all tiles that are computed between a rank's queries and a block of keys.

    Tiles are cut from every block. From stage 04 on, one in which nobody sees anything is skipped.
    """
    pairs = 0
    for queries, keys, block in blocks(c, seen, rank, origin):
        if not queries or not keys:
            continue
        if c.stage < 4 or not (c.causal or c.slices is not None):
            pairs += len(queries) * len(keys)
            continue
        for a in range(0, len(queries), c.tile_queries or 64):
            rows = block[a:a + (c.tile_queries or 64)]
            borders = range(0, len(keys), c.tile_keys or 64)
            widths = np.diff([*borders, len(keys)])
            computed = np.logical_or.reduceat(rows.any(axis=0), borders)
            pairs += len(rows) * int(widths[computed].sum())
    return pairs


def blocks(c, seen, rank, origin):
    """What tiles are cut from: rows of a span of queries and of a span of keys, and which see which. All
    rows, or under a mask of slices what of them lies in one."""
    for queries in c.queries[rank]:
        for keys in c.keys[origin]:
            if c.slices is None:
                yield queries, keys, seen[np.ix_(queries, keys)]
                continue
            for q0, q1, k0, k1, lo, hi in c.slices.tolist():
                rows, columns = [i for i in queries if q0 <= i < q1], [j for j in keys if k0 <= j < k1]
                offset = np.array(columns, int)[None, :] - np.array(rows, int)[:, None]
                yield rows, columns, (lo <= offset) & (offset <= hi)


def judge_counts(c, expected, path):
    """What is wrong with the counts in this file: a list of sentences."""
    phases = ["forward"] if c.forward_only else ["forward", "backward"]
    names = [f"{name} {phase}" for name in ("multiply-adds", "messages sent", "bytes sent")
             for phase in phases]

    # What must stand there: sums over ranks, the busiest rank, and each hop. A hop may be left out
    # where it is 0.
    wanted = {}
    for name in names:
        by_rank = [sum(value for (r, _, n), value in expected.items() if (r, n) == (rank, name))
                   for rank in range(c.ranks)]
        wanted[name] = sum(by_rank)
        if c.ranks > 1:
            wanted[f"{name}, busiest rank"] = max(by_rank)
    for (rank, hop, name), value in expected.items():
        wanted[f"rank {rank} hop {hop} {name}"] = value

    got = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            name, _, value = line.rstrip("\n").rpartition(" ")
            if name in got:
                return [f"counts: {name} stands there twice"]
            got[name] = value

    # Nothing else of the kind may stand there.
    wrong = [f"counts: {name}: want {value}, got {got.get(name)}"
             for name, value in wanted.items() if got.get(name) != str(value)]
    kinds = re.compile(r"multiply-adds|messages sent|bytes sent")
    wrong += [f"counts: {name}: {value} where nothing is wanted" for name, value in got.items()
              if kinds.search(name) and name not in wanted
              and not (value == "0" and name.startswith("rank ") and name.endswith(tuple(names)))]
    return wrong


# ---- Judging ----


def load_result(folder, name):
    """The array, or the reason why there is none."""
    try:
        return np.load(os.path.join(folder, name + ".npy"), allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        return str(error)


def judge_arrays(folder, exact, allowed):
    """What is wrong with a result, and the largest part of what is allowed that an error takes."""
    complaints, share = [], 0.0
    for name in oracle.NAMES:
        got = load_result(folder, name)
        if name not in exact:
            if not isinstance(got, str):
                complaints.append(f"{name}: written in spite of --forward-only")
            continue
        if isinstance(got, str):
            complaints.append(f"{name}: {got}")
            continue
        want, head = exact[name], allowed[name]
        if got.shape != want.shape or got.dtype != np.float32:
            complaints.append(f"{name}: {got.dtype}{got.shape} where float32{want.shape} is wanted")
            continue

        # -inf in lse must be met exactly. All else is wrong unless both are finite and near.
        limit = head[:, :, None] if name == "lse" else head[:, None, :, None]
        met = (want == -np.inf) & (got == want) & (name == "lse")
        sound = np.isfinite(want) & np.isfinite(got)
        error = np.where(met, 0, np.inf)
        error[sound] = np.abs(got[sound] - want[sound])
        wrong = ~((error <= limit) & np.isfinite(limit))
        if wrong.any():
            place = np.unravel_index(np.argmax(np.where(wrong, error, -1)), error.shape)
            complaints.append(f"{name}: {wrong.sum()} of {wrong.size} wrong, the worst at "
                              f"{tuple(map(int, place))}: want {want[place]:.9g}, got "
                              f"{got[place]:.9g}, may be off by "
                              f"{np.broadcast_to(limit, error.shape)[place]:.2g}")
        elif np.any(limit > 0):
            share = max(share, float((error / np.where(limit > 0, limit, np.inf)).max()))
    return complaints, share


def judge_heads(folder, exact, allowed):
    """What is wrong with the numbers of each head: the largest score, and the gradient of the sink."""
    complaints = []
    for name in {"largest", "d_sink"} & set(exact):
        got = load_result(folder, name)
        if isinstance(got, str) or got.shape != exact[name].shape:
            complaints.append(f"{name}: {got if isinstance(got, str) else got.shape}")
            continue
        with np.errstate(invalid="ignore"):
            good = (got == exact[name]) | (np.abs(got - exact[name]) <= allowed[name])
        complaints += [f"{name} of head {h}: want {exact[name][h]:.9g}, got {got[h]:.9g}, may be off by "
                       f"{allowed[name][h]:.2g}" for h in np.flatnonzero(~good)]
    return complaints


def judge_equal(what, names, arrays, others):
    """Complaints about arrays that should be equal, NaN being unlike anything."""
    return [f"{name}: {what}" for name, a, b in zip(names, arrays, others)
            if not np.array_equal(a, b)]


def judge_bits(c, result, twin):
    """What the results of a configuration must have in common with themselves and with its twin."""
    names = [name for name in oracle.NAMES if not (c.forward_only and name.startswith("d"))]
    arrays = [load_result(result, name) for name in names]
    others = [load_result(twin, name) for name in names] if c.twin else []
    missing = [text for text in arrays + others if isinstance(text, str)]
    if missing:
        return missing[:1]

    complaints = []
    if c.equal_batches:
        complaints += judge_equal("equal batches in two ring sets differ", names,
                                  [array[0] for array in arrays], [array[1] for array in arrays])
    if c.twin == "local keys":
        complaints += judge_equal("a ring of one rank differs with and without --local-keys", names,
                                  arrays, others)
    if c.twin == "later tokens":
        _, query = first_later(c)
        early = [name for name in names if name in ("o", "lse", "dq")]
        rows = {name: (slice(None), slice(None), slice(query)) if name == "lse" else
                (slice(None), slice(query)) for name in early}
        complaints += judge_equal(f"later tokens change queries before {query}", early,
                                  [arrays[names.index(name)][rows[name]] for name in early],
                                  [others[names.index(name)][rows[name]] for name in early])
    return complaints


def judge(c):
    """All complaints about a configuration that has run, and its share of the allowed error."""
    pairs = oracle.pairs_in_slices(c.slices, c.N, c.M) if c.slices is not None else None
    if c.local_keys:
        local = oracle.same_rank(c.N, c.M, c.ring, c.layout, c.bucket)
        pairs = local if pairs is None else pairs & local
    mask = c.problem.get("mask", np.ones((c.B, c.M), bool))
    exact, allowed = oracle.solve(*(c.problem[name] for name in "qkv"), c.problem.get("do"), mask,
                                  c.causal, c.lookback, c.head_map or "grouped", c.softcap, c.scale,
                                  c.forward_only, pairs,
                                  extras={name: c.problem[name] for name in ("sink", "slopes", "d_lse")
                                          if name in c.problem})

    # The twin does the same work and sends the same messages; so both are held against one count.
    complaints, share = judge_arrays(c.runs[0].result, exact, allowed)
    complaints += judge_heads(c.runs[0].result, exact, allowed) if c.extras else []
    counted = c.deal != "documents" and c.method is None
    expected = expected_counts(c, "mask" in c.problem) if counted else None
    for its in c.runs:
        try:
            complaints += judge_counts(c, expected, its.result + ".counts") if expected is not None else []
            if c.trace:
                with open(its.result + ".trace", encoding="utf-8") as file:
                    json.load(file)
        except (OSError, ValueError) as error:
            complaints.append(f"counts or trace of {its.result}: {error}")
    return complaints + judge_bits(c, c.runs[0].result, c.runs[-1].result), share


# ---- The whole test ----


def prepare(c, folder):
    """Writes the problem of a configuration and of its twin, and notes their runs."""
    c.folder = os.path.join(folder, str(c.number))
    c.problem = make_problem(c)
    save(os.path.join(c.folder, "problem"), c.problem)
    c.runs = []
    for name in ("result", "twin") if c.twin else ("result",):
        result = os.path.join(c.folder, name)
        c.runs.append(types.SimpleNamespace(
            flags=stage_flags(c, result, c.local_keys), problem=os.path.join(c.folder, "problem"),
            result=result, failure=None))

    # The twin has the same problem and another flag, or other tokens and the same flags.
    if c.twin == "local keys":
        c.runs[1].flags = stage_flags(c, c.runs[1].result, not c.local_keys)
    if c.twin == "later tokens":
        c.runs[1].problem = os.path.join(c.folder, "later")
        save(c.runs[1].problem, make_later(c, c.problem))


def save(folder, arrays):
    os.makedirs(folder)
    for name, array in arrays.items():
        np.save(os.path.join(folder, name + ".npy"), array)


def report(c, build, complaints):
    """Prints a failure and how to see it again."""
    print(f"FAILED  configuration {c.number}: {PROGRAMS[c.stage]}, {c.ranks} ranks")
    for complaint in complaints[:6]:
        print(f"    {complaint}")
    if len(complaints) > 6:
        print(f"    and {len(complaints) - 6} more")
    if jobs.NOT_RUN in complaints:
        return

    # The files are there now; the first line makes them again.
    here = os.path.relpath(__file__)
    commands = [["/usr/bin/python3", here, build, "--seed", str(c.seed), "--only", str(c.number)]]
    for its in c.runs:
        program = os.path.join(build, PROGRAMS[c.stage])
        commands.append(jobs.mpirun(c.ranks, program, *its.flags.split(), its.problem, its.result))
    exact = os.path.join(c.folder, "oracle")
    commands.append(["/usr/bin/python3", os.path.relpath(oracle.__file__), *oracle_flags(c).split(),
                     c.runs[0].problem, exact])
    only = ["--only", "o,lse"] if c.forward_only else []
    commands.append([os.path.join(build, "compare"), *only, exact, exact, c.runs[0].result])
    for command in commands:
        print(f"    $ {shlex.join(command)}")


def run_together(configurations, build, folder, worst):
    """Runs and judges these configurations. Returns how many failed; notes in worst, by stage, the
    largest share of the allowed error."""
    groups = {}
    for c in configurations:
        prepare(c, folder)
        groups.setdefault((c.stage, c.ranks), []).extend(c.runs)
    left = jobs.LOST_LAUNCHES
    for (stage, ranks), runs in sorted(groups.items()):
        lines = [f"{its.flags} {its.problem} {its.result}" for its in runs]
        failures = jobs.run_lines(os.path.join(build, f"batch-{PROGRAMS[stage]}"), ranks, lines,
                                  os.path.join(folder, f"list-{stage:02}-{ranks}"), left)
        left = max(left - len(failures), 0)
        for index, failure in failures.items():
            runs[index].failure = failure

    failed = 0
    for c in configurations:
        complaints = [its.failure for its in c.runs if its.failure]
        share = 0.0
        if not complaints:
            complaints, share = judge(c)
        worst[c.stage] = max(worst.get(c.stage, 0.0), share)
        if complaints:
            failed += 1
            report(c, build, complaints)
        else:
            shutil.rmtree(c.folder)
        del c.problem  # the arrays of many configurations would fill the memory
    return failed


def main():
    parser = argparse.ArgumentParser(
        description="Random configurations of the ring stages, held against the oracle.")
    parser.add_argument("build", metavar="BUILD", help="the folder of batch-03-ring and so on")
    parser.add_argument("--count", type=int, default=300, help="configurations to draw (300)")
    parser.add_argument("--seed", type=int, default=1, help="what they are drawn from (1)")
    parser.add_argument("--stage", type=int, choices=PROGRAMS, help="run this stage's alone")
    parser.add_argument("--only", type=int, metavar="K", help="run configuration K alone")
    arguments = parser.parse_args()

    # Whoever ends this test ends its ranks, too: see run().
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = os.path.join(arguments.build, "-".join(["random-rings", *os.environ.get("RA_VECTOR", "").split()]))
    folders.begin(folder)
    numbers = range(arguments.count) if arguments.only is None else [arguments.only]
    print(f"seed {arguments.seed}, {len(numbers)} configurations from {min(numbers, default=0)} on",
          flush=True)

    # Some hundred at a time, so that any number of them finds room on the disk.
    ran = failed = 0
    worst = {}
    for first in range(0, len(numbers), TOGETHER):
        together = [draw(arguments.seed, number) for number in numbers[first:first + TOGETHER]]
        together = [c for c in together if arguments.stage in (None, c.stage)]
        ran += len(together)
        failed += run_together(together, arguments.build, folder, worst)
        sys.stdout.flush()
    for stage, share in sorted(worst.items()):
        print(f"{PROGRAMS[stage]}: the worst error is {share:.2f} of what is allowed")
    print(f"{ran - failed} passed, {failed} failed")
    return 1 if failed or ran == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
