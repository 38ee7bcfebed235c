#!/usr/bin/env python3
"""oracle: the second judge. Exact attention of a problem, in NumPy float64.

Written from the maths and from nothing else in this project, so that a mistake in the C programs
cannot hide here too. Reads the folder PROBLEM: q, do (B,N,H,D), k, v (B,M,G,D), maybe mask (B,M),
maybe slices (n,6) of int64, sink and slopes (H), d_lse (B,H,N).
Writes to the folder RESULT, all float64:

    o, dq (B,N,H,D)   lse (B,H,N)   dk, dv (B,M,G,D)      what the exact answer is
    o_allowed, lse_allowed, dq_allowed (B,H), dk_allowed, dv_allowed (B,G)
                                                          how far a float32 program may be from it

The flags are those of the stages; only --local-keys needs a number here, the ranks of the ring.
With --list FILE, every line of FILE is the arguments of a run.


How the allowed error is found
------------------------------
It is not tuned to any program. Per array, batch and head it is

    allowed = 2 * max |plain - exact|  +  4 * u * max magnitude          u = 2^-24

plain is the same definition done step by step in NumPy float32, so the first term says: at most
twice as wrong as the obvious float32 program. That alone would be unfair where the obvious program
is right by luck (one key: its weight is 1, whatever the score). The second term is a few roundings,
and roundings are counted by a running error bound:

A float32 operation errs by at most u times its result (u = 2^-24, half the distance from 1 to the
next float32). So a sum errs in proportion to the terms that were added, not to what is left after
they cancelled: 1000 - 999.9 is small, but its error is that of 1000. The magnitude of an array is
that sum of absolute terms, plus what the errors of its inputs make of it, to first order. All in
units of u:

    score    s_ij = scale * sum_c q_ic k_jc errs by scale * sum_c |q_ic| |k_jc|, and its weight, being
             an exponential, by as much relative to itself:
                 e_ij = 1 + |scale| sum_c |q_ic| |k_jc|              (1: the rounding of exp)
    o        all weights of a row are divided by their own sum, so if they all err alike nothing
             happens; a weight's error counts by how far its value lies from the mean:
                 o_ic:   sum_j p_ij |v_jc|  +  sum_j p_ij e_ij |v_jc - o_ic|
    lse      the mean of the errors, the rounding of the log, and its own:
                 lse_i:  1 + sum_j p_ij e_ij + |lse_i|
    weight   in the backward, exp(s - lse):   b_ij = e_ij + (what lse_i errs by)
    dv       dv_jc:  sum_i p_ij b_ij |dO_ic|
    ds       the weight's error times the true difference dp - D, and the rounding of dp and of D,
             which do not cancel when dp and D do:
                 ds_ij:  p_ij (b_ij |dp_ij - D_i| + sum_c |dO_ic| (|v_jc| + |o_ic| + what o_ic errs by))
    dq, dk   |scale| times the sums of these times |k| and |q|

The maxima run over one head of one batch, the unit within which all elements have like sizes.

With --weights TYPE the program multiplies on tensor cores: it rounds weights and ds to 16 bits, keeps
its o in them, and may round all results. plain then does so, too, and

    allowed = 2 * max |plain - exact|  +  8 * u * max magnitude  +  2 * max rounding  +  half a step

where rounding is what independent roundings of at most half a step h(x) make of a result, the root of
the sum of the squares, and half a step is that of the largest result. tests/rig/truth.h argues the
factors, and tests/rig/oracle.h derives the squares:

    o        sum_j h(p_ij)^2 v_jc^2
    D        sum_c dO_ic^2 (h(o_ic)^2 + o's)
    dq       scale^2 (sum_j h(ds_ij)^2 k_jc^2 + D's (sum_j p_ij k_jc)^2)
    dk       scale^2 sum_i (h(ds_ij)^2 + D's p_ij^2) q_ic^2
    dv       sum_i h(p_ij)^2 dO_ic^2
"""
import argparse
import math
import os
import shlex
import sys

import numpy as np

U = 2.0**-24  # the unit roundoff of float32: one rounding to nearest errs by at most U * |result|
NAMES = ("o", "lse", "dq", "dk", "dv")


# The digits of the 16-bit types, and half of their smallest step.
NARROW = {"float16": (11, 2.0**-25), "bfloat16": (8, 2.0**-134)}


class Misuse(Exception):
    """The arguments or the problem are wrong; the text says what would be right."""


# ---- Numbers of 16 bits ----


def half_step(x, weights):
    """How far rounding to this type moves a number at most; None: to none."""
    if weights is None:
        return np.zeros_like(x)
    digits, least = NARROW[weights]
    return np.maximum(2.0**-digits * np.abs(x), least)


def narrow(x, weights):
    """x rounded to this type, to nearest, ties to even, and back; None: x. No x here overflows."""
    if weights is None:
        return x
    digits, least = NARROW[weights]
    exponent = np.frexp(x.astype(np.float64))[1]
    step = np.maximum(np.ldexp(1.0, exponent - digits), 2 * least)
    return (np.rint(x / step) * step).astype(x.dtype)


# ---- The definition ----


def visible_pairs(N, M, key_mask, causal, lookback):
    """(N, M) of bool: query i sees key j. key_mask is (M,) of bool.

    Key j stands at position j, query i at position i + (M - N): the last query beside the last key.
    """
    query = np.arange(N)[:, None] + (M - N)
    key = np.arange(M)[None, :]
    visible = np.broadcast_to(key_mask, (N, M))
    if causal:
        visible = visible & (key <= query)
    if lookback is not None:
        visible = visible & (query - key <= lookback)
    return visible


def pairs_in_slices(slices, N, M):
    """(N, M) of bool: query i and key j are in a slice (q0, q1, k0, k1, lo, hi), whose rows are q0 <= i <
    q1 and keys k0 <= j < k1, and lo <= j - i <= hi. Misuse unless they lie within the sequences, apart."""
    count = np.zeros((N, M), int)
    offset = np.arange(M)[None, :] - np.arange(N)[:, None]
    for number, (q0, q1, k0, k1, lo, hi) in enumerate(slices.tolist()):
        if not (0 <= q0 <= q1 <= N and 0 <= k0 <= k1 <= M):
            raise Misuse(f"slice {number}: its rows {q0}, {q1} or keys {k0}, {k1} are not within {N}, {M}")
        block = np.s_[q0:q1, k0:k1]
        count[block] += (lo <= offset[block]) & (offset[block] <= hi)
    if count.max(initial=0) > 1:
        i, j = np.argwhere(count > 1)[0]
        raise Misuse(f"slices overlap: {count[i, j]} let query {i} see key {j}")
    return count > 0


def spans(length, ranks, layout, stripes):
    """For every rank, the positions it holds in the order of its local rows: a list of ranges."""
    if layout == "striped":
        J = ranks * stripes  # stripe s of all is s, s + J, s + 2J, ...
        return [[range(rank * stripes + s, length, J) for s in range(stripes)]
                for rank in range(ranks)]

    # Chunks of equal length; the last ones get what is left, maybe nothing. Zigzag pairs an early
    # one with a late one.
    chunks = 2 * ranks if layout == "zigzag" else ranks
    rows = math.ceil(length / chunks)
    chunk = [range(c * rows, min((c + 1) * rows, length)) for c in range(chunks)]
    if layout == "zigzag":
        return [[chunk[rank], chunk[2 * ranks - 1 - rank]] for rank in range(ranks)]
    return [[chunk[rank]] for rank in range(ranks)]


def stripes_per_rank(N, ranks, bucket):
    """As many stripes per rank as keep a stripe of queries within the bucket; no bucket: one."""
    return 1 if bucket is None else max(1, math.ceil(math.ceil(N / bucket) / ranks))


def same_rank(N, M, ranks, layout, bucket):
    """(N, M) of bool: query row i lives on the rank on which key row j lives."""
    stripes = stripes_per_rank(N, ranks, bucket)
    home = []
    for length in (N, M):
        home.append(np.full(length, -1))
        for rank, its_spans in enumerate(spans(length, ranks, layout, stripes)):
            for span in its_spans:
                home[-1][list(span)] = rank
    return home[0][:, None] == home[1][None, :]


def product(a, b):
    """The product of two matrices. In float32 every sum is taken one term after the other, as in the
    plainest loop: a library would choose an order of its own, and another one on the next machine.
    As many rows at a time as leave their sums in the processor's cache."""
    if a.dtype == np.float64:
        return a @ b
    out = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    rows = max(1, 2**15 // b.shape[1])
    for first in range(0, len(a), rows):
        sums = out[first : first + rows]
        columns = np.ascontiguousarray(a[first : first + rows].T)
        for c in range(len(columns)):
            sums += columns[c][:, None] * b[c]
    return out


def attention(q, k, v, d_out, visible, scale, softcap, number, weights=None, distance=None,
              sink=None, d_lse=None):
    """One query head, forward and backward, with every step in the type `number`, and what tensor cores
    multiply in the type `weights`. distance (N,M) is added to the scores; sink is one score more, without a
    value; d_lse (N,) is the gradient of lse.

    q, d_out (N,D), k, v (M,D), visible (N,M); d_out None: forward only. Returns o, lse, dq, dk, dv
    by name, and scores s, weights p and ds, all (N,M), for those who look closer.
    """
    q, k, v = (array.astype(number) for array in (q, k, v))
    scale = number(scale)

    # s_ij = scale q_i.k_j, soft cap: s <- c tanh(s/c). The hidden get no weight: exp(-inf) = 0.
    s = scale * product(q, k.T)
    if softcap is not None:
        c = number(softcap)
        s = c * np.tanh(s / c)
    capped = s
    if distance is not None:
        s = s + distance.astype(number)
    hidden = np.where(visible, s, number(-np.inf))

    # p = softmax over what is visible. The largest score is taken out, so that exp cannot overflow.
    # A row that sees nothing has no largest score and the sum 0: 0 and 1 stand in, and give p = 0.
    # The sink takes part in all of this, as a key whose value is 0.
    sink = number(-np.inf if sink is None else sink)
    largest = np.maximum(hidden.max(axis=1), sink)
    empty = largest == -np.inf
    largest = np.where(empty, number(0), largest)
    weight = np.exp(hidden - largest[:, None])
    total = product(weight, np.ones((len(k), 1), number))[:, 0] + np.exp(sink - largest)
    total = np.where(empty, number(1), total)[:, None]
    p = weight / total

    # o_i = sum_j p_ij v_j;  lse_i = log sum_j exp s_ij. log 0 = -inf is meant, so it is no warning.
    o = product(p, v) if weights is None else product(narrow(weight, weights), v) / total
    with np.errstate(divide="ignore"):
        lse = largest + np.log(np.where(empty, number(0), total[:, 0]))
    result = {"o": o, "lse": lse, "s": s, "p": p, "capped": capped, "largest": hidden.max()}
    if d_out is None:
        return result

    # Backward: p = exp(s - lse);  D_i = sum_c dO_ic o_ic;  dv_j = sum_i p_ij dO_i.
    d_out = d_out.astype(number)
    p = np.exp(hidden - np.where(empty, number(0), lse)[:, None])
    D = (d_out * narrow(o, weights)).sum(axis=1)
    if d_lse is not None:
        D = D - d_lse.astype(number)
    d_sink = -(np.where(empty, number(0), np.exp(sink - lse)) * D).sum() if sink > -np.inf else number(0)
    dv = product(narrow(p, weights).T, d_out)

    # dp_ij = dO_i.v_j;  ds = p (dp - D), soft cap: times 1 - (s/c)^2.
    dp = product(d_out, v.T)
    ds = p * (dp - D[:, None])
    if softcap is not None:
        ds = ds * (1 - (capped / c) ** 2)

    # dq_i = scale sum_j ds_ij k_j;  dk_j = scale sum_i ds_ij q_i.
    ds = narrow(ds, weights)
    result.update(dq=scale * product(ds, k), dk=scale * product(ds.T, q), dv=dv, ds=ds, D=D, d_sink=d_sink)
    return result


def magnitudes(q, k, v, d_out, visible, scale, softcap, exact, distance=None, sink=None, d_lse=None):
    """The magnitude of every array (see the head of this file) for one query head, in float64.

    exact is what attention() returned for the same arguments.
    """
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    p, s, o = exact["p"], exact["capped"], exact["o"]
    lse = np.where(np.isfinite(exact["lse"]), np.abs(exact["lse"]), 0)

    # The error of a score. A soft cap flattens it by its slope, 1 - (s/c)^2, and rounds once more.
    e = 1 + np.abs(scale) * (np.abs(q) @ np.abs(k).T)
    if softcap is not None:
        tanh = np.abs(s) / softcap
        slope = 1 - tanh**2
        e = 1 + slope * e + np.abs(s)
    of_cap = e

    # A distance times a slope rounds twice, and so does what it is added to.
    if distance is not None:
        e = e + 2 * np.abs(distance) + np.abs(exact["s"])

    # |v_j - o_i| would be an array (N, M, D); a dimension at a time is enough, and of so many rows as the
    # processor's cache holds.
    spread, rows = np.empty_like(o), max(1, 2**17 // len(v))
    for first in range(0, len(o), rows):
        some = slice(first, first + rows)
        weight = p[some] * e[some]
        for c in range(v.shape[1]):
            spread[some, c] = (weight * np.abs(v[:, c] - o[some, c : c + 1])).sum(axis=1)
    result = {"o": p @ np.abs(v) + spread, "lse": 1 + (p * e).sum(axis=1) + lse,
              "largest": np.where(visible, e, 0).max(initial=0)}
    if d_out is None:
        return result

    # ds: dp - D is exact here; the sums of absolute terms are what rounding sees of it.
    d_out = d_out.astype(np.float64)
    b = e + result["lse"][:, None]
    difference = np.abs(d_out @ v.T - exact["D"][:, None])
    of_D = (np.abs(d_out) * (np.abs(o) + result["o"])).sum(axis=1)
    if d_lse is not None:
        of_D = of_D + np.abs(exact["D"])
    rounding = np.abs(d_out) @ np.abs(v).T + of_D[:, None]
    ds = p * (b * difference + rounding)

    # The weight of the sink, times D.
    if sink is not None:
        weight = np.exp(sink - np.where(exact["lse"] > -np.inf, exact["lse"], np.inf))
        result["d_sink"] = (weight * (result["lse"] * np.abs(exact["D"]) + of_D)).sum()

    # Soft cap: ds is multiplied by the slope, whose own error is that of 1, of (s/c)^2 and of s.
    if softcap is not None:
        ds = ds * slope + p * difference * (1 + tanh**2 + 2 * tanh * of_cap / softcap)
    result.update(dq=abs(scale) * (ds @ np.abs(k)), dk=abs(scale) * (ds.T @ np.abs(q)),
                  dv=(p * b).T @ np.abs(d_out))
    return result


def roundings(q, k, v, d_out, scale, exact, weights):
    """The squares of the rounding of every array (see the head of this file) for one query head."""
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    p, o = exact["p"], exact["o"]
    of_p = half_step(p, weights)**2 * (p > 0)
    of_o = of_p @ v**2
    result = {"o": of_o, "lse": np.zeros(len(q))}
    if d_out is None:
        return result
    d_out = d_out.astype(np.float64)
    of_ds = half_step(exact["ds"], weights)**2 * (p > 0)
    of_D = (d_out**2 * (half_step(o, weights)**2 + of_o)).sum(axis=1)[:, None]
    result.update(dq=scale**2 * (of_ds @ k**2 + of_D * (p @ k)**2),
                  dk=scale**2 * ((of_ds + of_D * p**2).T @ q**2), dv=of_p.T @ d_out**2)
    return result


# ---- A whole problem ----


def load(folder, name, axes, types):
    """The array NAME.npy of the folder; Misuse if it is missing or not what a problem holds."""
    path = os.path.join(folder, name + ".npy")
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise Misuse(f"{path}: cannot read it: {error}")
    if array.dtype.name not in types:
        raise Misuse(f"{path}: is {array.dtype}, must be {' or '.join(types)}")
    if array.ndim != len(axes) or 0 in array.shape:
        raise Misuse(f"{path}: shape {array.shape} must be ({', '.join(axes)}), each at least 1")
    if array.dtype != bool and not (np.isfinite(array) | (name == "sink") & (array == -np.inf)).all():
        raise Misuse(f"{path}: holds NaN or Inf")
    return array


def load_problem(folder, forward_only):
    """q, k, v, do and the key mask of a problem, checked against each other. do may be None."""
    floats = ("float16", "float32")
    q = load(folder, "q", "BNHD", floats)
    k = load(folder, "k", "BMGD", floats)
    v = load(folder, "v", "BMGD", floats)
    d_out = None if forward_only else load(folder, "do", "BNHD", floats)
    B, _, H, D = q.shape
    M, G = k.shape[1:3]
    if os.path.exists(os.path.join(folder, "mask.npy")):
        mask = load(folder, "mask", "BM", ("bool",))
    else:
        mask = np.ones((B, M), bool)

    # Every shape follows from those of q and k.
    Dv = v.shape[3]  # D, or another number
    wanted = {"k": (B, M, G, D), "v": (B, M, G, Dv), "do": (B, q.shape[1], H, Dv), "mask": (B, M)}
    for name, array in (("k", k), ("v", v), ("do", d_out), ("mask", mask)):
        if array is not None and array.shape != wanted[name]:
            raise Misuse(f"{folder}: {name} has shape {array.shape}, but the others ask for "
                         f"{wanted[name]}")
    if H % G:
        raise Misuse(f"{folder}: G = {G} key/value heads do not divide H = {H} query heads")
    return q, k, v, d_out, mask


def load_slices(folder, N, M):
    """pairs_in_slices of the problem's slices; None if it has none."""
    path = os.path.join(folder, "slices.npy")
    if not os.path.exists(path):
        return None
    slices = np.load(path, allow_pickle=False)
    if slices.dtype != np.int64 or slices.ndim != 2 or slices.shape[1] != 6:
        raise Misuse(f"{path}: is {slices.dtype} {slices.shape}, must be int64 (n, 6)")
    return pairs_in_slices(slices, N, M)


def load_extras(folder, problem):
    """sink, slopes and d_lse, as far as the problem has them."""
    B, N, H, _ = problem[0].shape
    extras = {}
    for name, axes, shape in (("sink", "H", (H,)), ("slopes", "H", (H,)), ("d_lse", "BHN", (B, H, N))):
        if os.path.exists(os.path.join(folder, name + ".npy")):
            extras[name] = load(folder, name, axes, ("float16", "float32"))
            if extras[name].shape != shape:
                raise Misuse(f"{folder}: {name} has shape {extras[name].shape}, must be {shape}")
    return extras


def place(name, batch, head):
    """The index of one head of one batch: lse is (B,H,N), all others are (B, position, head, D)."""
    return (batch, head) if name == "lse" else (batch, slice(None), head)


def worst(array):
    """The largest absolute value; 0 if there is none."""
    return np.abs(array).max(initial=0)


def solve(q, k, v, d_out, mask, causal=False, lookback=None, head_map="grouped", softcap=None,
          scale=None, forward_only=False, allowed_pairs=None, weights=None, extras={}):
    """The exact results and the allowed errors of a problem, as two dictionaries by array name.

    allowed_pairs (N,M) of bool hides all other pairs; None hides none. weights is None or one of NARROW.
    extras may have sink and slopes (H), d_lse (B,H,N); distances count from query i + M - N. The largest score of each head and the gradient of its sink are results, too.
    """
    B, N, H, D = q.shape
    M, G = k.shape[1:3]
    scale = 1 / math.sqrt(D) if scale is None else scale
    Dv = v.shape[3]
    shapes = {"o": (B, N, H, Dv), "lse": (B, H, N), "dq": (B, N, H, D), "dk": (B, M, G, D),
              "dv": (B, M, G, Dv)}
    names = NAMES[:2] if forward_only else NAMES
    distance = np.arange(M)[None, :] - np.arange(N)[:, None] - (M - N)
    sums = {name: np.zeros((3, H)) for name in ("largest", "d_sink")}  # exact, plain, magnitude
    sums["largest"][:2] = -np.inf
    exact = {name: np.zeros(shapes[name]) for name in names}
    plain = {name: np.zeros(shapes[name], np.float32) for name in names}
    magnitude = {name: np.zeros(shapes[name]) for name in names}
    rounding = {name: np.zeros(shapes[name]) for name in names}

    # Head by head. Query heads that share a key/value head add up in its dk and dv.
    for b in range(B):
        visible = visible_pairs(N, M, mask[b], causal, lookback)
        if allowed_pairs is not None:
            visible = visible & allowed_pairs
        for h in range(H):
            g = h // (H // G) if head_map == "grouped" else h % G
            inputs = (q[b, :, h], k[b, :, g], v[b, :, g], None if d_out is None else d_out[b, :, h],
                      visible, scale, softcap)
            beside = {"distance": extras["slopes"][h] * distance.astype(float) if "slopes" in extras else None,
                      "sink": float(extras["sink"][h]) if "sink" in extras else None,
                      "d_lse": extras["d_lse"][b, h] if "d_lse" in extras else None}
            head = attention(*inputs, np.float64, **beside)
            if beside["sink"] is None:
                check_weights(head, visible)
            # float32 may overflow where float64 does not; that is looked for at the end.
            with np.errstate(over="ignore", invalid="ignore"):
                head_plain = attention(*inputs, np.float32, weights, **beside)
            head_magnitude = magnitudes(*inputs, head, **beside)
            for row, one in enumerate((head, head_plain, head_magnitude)):
                sums["largest"][row, h] = max(sums["largest"][row, h], one["largest"])
                sums["d_sink"][row, h] += one.get("d_sink", 0)
            head_rounding = roundings(*inputs[:4], scale, head, weights)
            for all_heads, one in ((exact, head), (plain, head_plain), (magnitude, head_magnitude),
                                   (rounding, head_rounding)):
                for name in names:
                    all_heads[name][place(name, b, g if name in ("dk", "dv") else h)] += one[name]

    # The formula of the head of this file, over each head of each batch. Where lse is -inf it is exact
    # and has no error.
    ulps = 4 if weights is None else 8
    allowed = {}
    for name in names:
        heads = shapes[name][1 if name == "lse" else 2]
        allowed[name] = np.zeros((B, heads))
        for b in range(B):
            for h in range(heads):
                rows = place(name, b, h)
                finite = np.isfinite(exact[name][rows])
                if not np.array_equal(finite, np.isfinite(plain[name][rows])):
                    raise Misuse(f"{name} of batch {b}, head {h} overflows in float32: no float32 "
                                 f"program can be held against it; make the numbers smaller")
                error = worst(plain[name][rows][finite] - exact[name][rows][finite])
                allowed[name][b, h] = (2 * error + ulps * U * worst(magnitude[name][rows][finite]) +
                                       2 * math.sqrt(worst(rounding[name][rows])))
                if name != "lse":
                    allowed[name][b, h] += half_step(worst(exact[name][rows]), weights)

    for name in ["largest"] + ["d_sink"] * ("sink" in extras and not forward_only):
        exact[name], plain_sum, magnitude_sum = sums[name]
        with np.errstate(invalid="ignore"):
            error = np.where(exact[name] == plain_sum, 0, np.abs(exact[name] - plain_sum))
        allowed[name] = 2 * error + 4 * U * magnitude_sum
    return exact, allowed


def check_weights(head, visible):
    """The oracle's own sanity: weights of a row sum to 1, or to 0 where nothing is visible."""
    sums = head["p"].sum(axis=1)
    wrong = np.abs(sums - visible.any(axis=1)).max()
    assert wrong < 1e-12, f"the weights of a row sum to 1 or 0 but for {wrong}"
    assert (head["p"][~visible] == 0).all(), "a hidden key has weight"


# ---- The command line ----


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Misuse(f"{message}; see --help")


def make_parser():
    parser = Parser(
        prog="oracle.py", formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        description="Exact attention of a problem, in NumPy float64, with the error that a\n"
                    "float32 program may have. For every array of the result (o, lse, dq, dk,\n"
                    "dv; of heads with a sink d_sink) writes NAME.npy, and NAME_allowed.npy: one error\n"
                    "per batch and head.")
    parser.add_argument("--causal", action="store_true", help="a query sees no later key")
    parser.add_argument("--lookback", type=int, metavar="L",
                        help="with --causal: a query sees itself and L keys back")
    parser.add_argument("--head-map", choices=("grouped", "interleaved"), default="grouped",
                        help="query head h reads key/value head h/(H/G) or h mod G (grouped)")
    parser.add_argument("--softcap", type=float, metavar="C", help="scores become C tanh(s/C)")
    parser.add_argument("--scale", type=float, metavar="S", help="scores are S q.k (1/sqrt(D))")
    parser.add_argument("--forward-only", action="store_true", help="o and lse only, no do.npy")
    parser.add_argument("--largest", action="store_true", help="write largest.npy, too: of each head")
    parser.add_argument("--weights", choices=tuple(NARROW), metavar="TYPE",
                        help="what is allowed to a program that multiplies float16 or bfloat16")
    parser.add_argument("--local-keys", type=int, metavar="P",
                        help="a query sees only the keys on its own rank, of P in the ring")
    parser.add_argument("--layout", choices=("contiguous", "striped", "zigzag"),
                        default="contiguous",
                        help="which rank has which rows (contiguous); matters to --local-keys only")
    parser.add_argument("--bucket", type=int, metavar="ROWS",
                        help="with --layout striped: a stripe of queries has at most so many rows")
    parser.add_argument("--list", metavar="FILE",
                        help="each line of FILE is the arguments of one run; # starts a comment")
    parser.add_argument("folders", nargs="*", metavar="PROBLEM RESULT",
                        help="the folder to read and the folder to write, created if missing")
    return parser


def run(arguments):
    """One run: checks the arguments, computes, writes."""
    if len(arguments.folders) != 2:
        raise Misuse(f"needs two folders, PROBLEM and RESULT, got {len(arguments.folders)}")
    if arguments.lookback is not None and not arguments.causal:
        raise Misuse("--lookback needs --causal: it counts keys back from the query")
    if arguments.lookback is not None and arguments.lookback < 0:
        raise Misuse(f"--lookback {arguments.lookback}: must be at least 0")
    if arguments.softcap is not None and not 0 < arguments.softcap < math.inf:
        raise Misuse(f"--softcap {arguments.softcap}: must be more than 0")
    if arguments.scale is not None and not math.isfinite(arguments.scale):
        raise Misuse(f"--scale {arguments.scale}: must be a finite number")

    for flag, value in (("--local-keys", arguments.local_keys), ("--bucket", arguments.bucket)):
        if value is not None and value < 1:
            raise Misuse(f"{flag} {value}: must be at least 1")

    # Layouts move rows between ranks. That changes the answer only where ranks see their own keys.
    folder, result = arguments.folders
    problem = load_problem(folder, arguments.forward_only)
    N, M = problem[0].shape[1], problem[1].shape[1]
    allowed_pairs = slices = load_slices(folder, N, M)
    if slices is not None and arguments.causal:
        raise Misuse("--causal: slices.npy is the whole mask; a causal one has hi = M - N")
    if arguments.local_keys is not None:
        home = same_rank(N, M, arguments.local_keys, arguments.layout, arguments.bucket)
        allowed_pairs = home if allowed_pairs is None else allowed_pairs & home
    exact, allowed = solve(*problem, arguments.causal, arguments.lookback, arguments.head_map,
                           arguments.softcap, arguments.scale, arguments.forward_only,
                           allowed_pairs, arguments.weights, load_extras(folder, problem))

    if not arguments.largest:
        del exact["largest"]
    # Gradients of an earlier run do not outlive it.
    os.makedirs(result, exist_ok=True)
    for name in (*NAMES, "largest", "d_sink"):
        for path, arrays in ((name, exact), (name + "_allowed", allowed)):
            path = os.path.join(result, path + ".npy")
            if name in arrays:
                np.save(path, arrays[name])
            elif os.path.exists(path):
                os.remove(path)


def run_list(parser, path):
    """Runs every line of the file; reports every line that fails. Returns the exit status."""
    status = 0
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                words = shlex.split(line, comments=True)
                if not words:
                    continue
                if {"--help", "-h", "--list"} & set(words):
                    raise Misuse("--help and --list have no place in a list")
                run(parser.parse_args(words))
            except (Misuse, OSError, ValueError, AssertionError) as error:
                print(f"oracle.py: {path}:{number}: {error}", file=sys.stderr)
                status = 1
    return status


def main():
    parser = make_parser()
    try:
        arguments = parser.parse_args()
        if arguments.list is None:
            run(arguments)
            return 0
        if arguments.folders:
            raise Misuse("--list FILE takes no folders; they stand in FILE")
        return run_list(parser, arguments.list)
    except Misuse as error:
        print(f"oracle.py: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"oracle.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
