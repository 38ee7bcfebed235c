#!/usr/bin/env python3
"""model_oracle: the judge of stage 10. A whole transformer, forward and backward, in NumPy float64.

    model_oracle.py PROBLEM RESULT
    model_oracle.py --make PROBLEM --seed 3 --causal --depth 2 --lookback none,5
    model_oracle.py --generate PROBLEM --prompt "1 2 3" --count 20

Written from the maths and from nothing in the C programs. Attention of one head is that of
oracle.py; all else is here. tests/model_finite_difference.py judges both this forward and this
backward.

PROBLEM is a folder: config.json, weights/NAME.npy, tokens.npy and labels.npy (B,N) of integers,
maybe mask.npy (B,N) of bool, false for keys that nobody sees. RESULT gets logits.npy (B,N,V),
loss.npy and gradients/NAME.npy, all float64. V is num_tokens, H is heads, D is dim_head, and G = H
divided by num_grouped_query_heads, which is the number of query heads per key/value head. So the
names and shapes of the weights, with I the number of a layer, are

    token_emb.weight                 (V, dim)
    layers.I.0.to_qkv.0.gamma        (dim)                  RMSNorm before the attention
    layers.I.0.to_qkv.1.weight       ((H + 2G) D, dim)      rows: H D of q, G D of k, G D of v
    layers.I.0.to_out.weight         (dim, H D)
    layers.I.1.0.gamma               (dim)                  RMSNorm before the feed-forward
    layers.I.1.1.weight and .bias    (ff_mult dim, dim), (ff_mult dim)
    layers.I.1.3.weight and .bias    (dim, ff_mult dim), (dim)
    to_logits.0.gamma                (dim)                  RMSNorm before the logits
    to_logits.1.weight               (V, dim)               absent if tied: token_emb.weight serves

and, each with the key that asks for it,

    pos_emb.weight                   (longest, dim)         positions learned
    layers.I.0.to_qkv.0.bias, layers.I.1.0.bias, to_logits.0.bias    (dim)      norm layer
    layers.I.0.to_qkv.1.bias, layers.I.0.to_out.bias, to_logits.1.bias          *_bias
    layers.I.0.q_norm.gamma, layers.I.0.k_norm.gamma                 (D)        head_norm
    layers.I.0.post_norm.gamma, layers.I.1.post_norm.gamma           (dim)      post_norm
                                                                     (and .bias with norm layer)

feed swiglu or geglu has twice the rows in 1.1.weight (and bias): those of the gate, then those of up.

The model:

    x = token_emb[token];  in every layer  x += attention(norm(x)), x += feed_forward(norm(x));
    logits = norm(x) W^T

With post_norm a layer adds norm(attention(norm(x))) and norm(feed_forward(norm(x))).

The loss is the mean of -log softmax(logits)[label] over all labels but ignore_index; if no label is
left, the loss and all gradients are 0. A query that sees no key gets 0 from the attention.

With --bfloat16, or R=bfloat16, what goes into a product of matrices and comes out of it is rounded
to bfloat16 by R, as src/model/ra_rounding.h lists it; nothing else is.
"""
import argparse
import json
import math
import os
import sys

import numpy as np

from oracle import Misuse, Parser, attention, load, visible_pairs

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int32", "int64", "uint16", "uint8")


def lookbacks(text):
    """"none,5" as a list: one entry per layer, None or a number of keys."""
    return [None if word == "none" else int(word) for word in text.split(",")]


# Every key of config.json: what --make takes if it is not given, how an option's text is read
# (None: a flag), whether a problem must have it, and what it means.
KEYS = {
    "num_tokens": (50, int, True, "size of the vocabulary"),
    "dim": (32, int, True, "numbers per token between the layers"),
    "depth": (2, int, True, "layers"),
    "heads": (4, int, True, "query heads"),
    "num_grouped_query_heads": (2, int, True, "query heads per key/value head"),
    "dim_head": (8, int, True, "numbers per head, even"),
    "causal": (False, None, True, "a query sees no later key"),
    "batch": (2, int, False, "batch rows"),
    "length": (24, int, False, "tokens per batch row"),
    "ignore_index": (-1, int, False, "the label that does not count"),
    "head_map": ("grouped", str, True, "query head h reads key/value head h/(H/G): "
                                       "grouped, or h mod G: interleaved"),
    "softcap": (0.0, float, False, "scores become C tanh(s/C); 0: they do not"),
    "lookback": (None, lookbacks, False, "per layer, how many earlier keys a query sees: 5,none"),
    "rotary_theta": (10000.0, float, False, "the base of the rotary frequencies"),
    "rotary_scale": (1.0, float, False, "positions are divided by this before they are rotated"),
    "tied": (False, None, False, "the logits use the weights of the embedding"),
    "attention_scale": (0.0, float, False, "the factor of scores; 0: 1 / sqrt(dim_head)"),
    "logits_softcap": (0.0, float, False, "logits become C tanh(x/C); 0: they do not"),
    "embedding_scale": (1.0, float, False, "a token's row of the embedding is multiplied by it"),
    "post_norm": (False, None, False, "what attention and feed-forward add gets a norm before"),
    "sinks": (False, None, False, "each head has a sink: one score more, without a value"),
    "norm": ("unit", str, False, "unit, rms, layer or rms_plus_one (1 + gamma for gamma)"),
    "norm_eps": (1e-6, float, False, "is added to a mean of squares by rms and layer"),
    "head_norm": (False, None, False, "q and k of every head get the norm rms"),
    "feed": ("gelu", str, False, "gelu, swiglu or geglu"),
    "qkv_bias": (False, None, False, "q, k and v have a bias"),
    "out_bias": (False, None, False, "so has what attention adds"),
    "feed_bias": (True, None, False, "so have both products of the feed-forward"),
    "logits_bias": (False, None, False, "so have the logits"),
    "positions": ("rotary", str, False, "rotary, or learned: rows of a table are added to tokens"),
    "longest": (64, int, False, "rows of that table"),
    "position_scale": (1.0, float, False, "the factor of its rows"),
    "rotary_scaling": ("plain", str, False, "plain, llama3, yarn or yarn_untruncated"),
    "rotary_factor": (8.0, float, False, "how much longer the longest waves get"),
    "rotary_low": (1.0, float, False, "waves in rotary_original that change wholly"),
    "rotary_high": (4.0, float, False, "waves in rotary_original that stay"),
    "rotary_original": (8192, int, False, "the length that was learnt"),
    "ff_mult": (4, float, False, "the feed-forward is this times as wide as dim"),
}


# ---- Rounding ----


def exact(x):
    return x


def bfloat16(x):
    """The nearest numbers of 8 bits; of two as near, the even one."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(np.ldexp(mantissa, 8)), exponent - 8)


def rounded_weights(weights, R):
    """Matrices, and the biases of q, k and v and of the feed-forward's first product."""
    biases = "0.to_qkv.1.bias", "1.1.bias"
    return {name: R(w) if w.ndim == 2 or name.endswith(biases) else w for name, w in weights.items()}


# ---- Layers: each forward, and its backward from dy, the gradient of the loss by y ----


def norm_scale(config, x):
    """z = x or x - mean, and what it is divided by, for every row of x."""
    if config["norm"] == "unit":
        return x, np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12) / math.sqrt(x.shape[-1])
    z = x - x.mean(axis=-1, keepdims=True) if config["norm"] == "layer" else x
    return z, np.sqrt((z**2).mean(axis=-1, keepdims=True) + config["norm_eps"])


def factor_of(config, w):
    return w["gamma"] + 1 if config["norm"] == "rms_plus_one" else w["gamma"]


def norm(config, w, x):
    """y = gamma z / scale + bias; w has gamma, and the norm layer has a bias."""
    z, scale = norm_scale(config, x)
    return factor_of(config, w) * z / scale + w.get("bias", 0)


def norm_backward(config, w, x, dy):
    """dx, and the gradients of w. A row shorter than 1e-12 is divided by a constant: its scale has no
    gradient. That of others is z / (scale times the length of a row)."""
    z, scale = norm_scale(config, x)
    g = factor_of(config, w) * dy
    along = (g * z).sum(axis=-1, keepdims=True) / scale**2 / x.shape[-1]
    if config["norm"] == "unit":
        along = np.where(np.linalg.norm(x, axis=-1, keepdims=True) > 1e-12, along, 0)
    dx = (g - z * along) / scale
    if config["norm"] == "layer":
        dx = dx - dx.mean(axis=-1, keepdims=True)
    rows = tuple(range(x.ndim - 1))
    d = {"gamma": (z / scale * dy).sum(axis=rows), "bias": dy.sum(axis=rows)}
    return dx, {name: d[name] for name in w}


def linear_backward(x, weight, dy):
    """dx, dweight of y = x W^T. The gradient of a bias is the sum of dy over all rows."""
    return dy @ weight, np.einsum("bno,bni->oi", dy, x)


def normal_share(x):
    """Phi(x), the share of a normal distribution below x. NumPy has no erf."""
    return (1 + np.frompyfunc(math.erf, 1, 1)(x / math.sqrt(2)).astype(np.float64)) / 2


def gelu(x):
    return x * normal_share(x)


def gelu_slope(x):
    """d/dx x Phi(x) = Phi(x) + x phi(x)."""
    return normal_share(x) + x * np.exp(-x**2 / 2) / math.sqrt(2 * math.pi)


def silu(x):
    return x / (1 + np.exp(-x))


def silu_slope(x):
    s = 1 / (1 + np.exp(-x))
    return s + x * s * (1 - s)


def gelu_tanh(x):
    """x (1 + tanh(u)) / 2, where u = sqrt(2/pi) (x + 0.044715 x^3): nearly gelu."""
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def gelu_tanh_slope(x):
    t = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return (1 + t) / 2 + x * (1 - t**2) * math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x**2) / 2


GATES = {"swiglu": (silu, silu_slope), "geglu": (gelu_tanh, gelu_tanh_slope)}


def feed(config, hidden):
    """What lies between the products of a feed-forward."""
    if config["feed"] == "gelu":
        return gelu(hidden)
    gate, up = np.split(hidden, 2, axis=-1)
    return GATES[config["feed"]][0](gate) * up


def feed_backward(config, hidden, dy):
    if config["feed"] == "gelu":
        return dy * gelu_slope(hidden)
    gate, up = np.split(hidden, 2, axis=-1)
    bend, slope = GATES[config["feed"]]
    return np.concatenate((dy * up * slope(gate), dy * bend(gate)), axis=-1)


def angles(config, length):
    """(N, D/2): position / rotary_scale * theta^(-2t/D), or with Llama 3's scaling. There, a wave of
    fewer than rotary_low turns in rotary_original positions has its frequency divided by
    rotary_factor, one of more than rotary_high keeps it, and between the frequency is linear in the
    number of turns, relative to itself. In YaRN it is linear in t, between those two t, which may be
    rounded away from each other and are not outside 0..D - 1."""
    D = config["dim_head"]
    frequency = config["rotary_theta"] ** (-2 * np.arange(D // 2) / D)
    if config["rotary_scaling"] == "llama3":
        turns = config["rotary_original"] * frequency / (2 * math.pi)
        ends = config["rotary_low"], config["rotary_high"]
        frequency = frequency * np.interp(turns, ends, (1 / config["rotary_factor"], 1))
    elif config["rotary_scaling"] != "plain":
        # theta^(-2t/D) = 2 pi turns / original
        t = [-D / 2 * math.log(2 * math.pi * turns / config["rotary_original"], config["rotary_theta"])
             for turns in (config["rotary_high"], config["rotary_low"])]
        if config["rotary_scaling"] == "yarn":
            t = [math.floor(t[0]), math.ceil(t[1])]
        t = [max(t[0], 0), min(t[1], D - 1)]
        if t[0] == t[1]:
            t[1] += 0.001
        changed = np.clip((np.arange(D // 2) - t[0]) / (t[1] - t[0]), 0, 1)
        frequency = frequency * (1 - changed + changed / config["rotary_factor"])
    return np.arange(length)[:, None] / config["rotary_scale"] * frequency


def rotate(x, angle):
    """x (B,N,heads,D): every pair (x_t, x_(t + D/2)) is turned by its angle, (N, D/2).

    Its backward turns dy back: rotate(dy, -angle).
    """
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate((first * cos - second * sin, second * cos + first * sin), axis=-1)


def all_heads(config, layer, q, k, v, mask, sinks, d_out=None, given=None):
    """Attention of every batch row and head. Returns o, or with d_out and the o that was given: dq, dk, dv, d_sinks.

    q, o, d_out (B,N,H,D), k, v (B,N,G,D), mask (B,N). dk and dv are summed over the query heads
    that read the same key/value head.
    """
    B, N, H, D = q.shape
    G = k.shape[2]
    o, dq, dk, dv = np.zeros_like(q), np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    d_sinks = np.zeros(H)
    for b in range(B):
        visible = visible_pairs(N, N, mask[b], config["causal"], config["lookback"][layer])
        for h in range(H):
            g = h // (H // G) if config["head_map"] == "grouped" else h % G
            arguments = (q[b, :, h], k[b, :, g], v[b, :, g],
                         None if d_out is None else d_out[b, :, h], visible,
                         config["attention_scale"] or 1 / math.sqrt(D),
                         config["softcap"] or None, np.float64)
            sink = None if sinks is None else sinks[h]
            one = attention(*arguments, sink=sink)
            o[b, :, h] = one["o"]
            if d_out is not None and not np.array_equal(o[b, :, h], given[b, :, h]):
                # D is that of the rounded o: d_lse is what is taken from the D of o.
                lost = (d_out[b, :, h] * (o[b, :, h] - given[b, :, h])).sum(axis=-1)
                one = attention(*arguments, sink=sink, d_lse=lost)
            if d_out is not None:
                dq[b, :, h] = one["dq"]
                dk[b, :, g] += one["dk"]
                dv[b, :, g] += one["dv"]
                d_sinks[h] += one["d_sink"]
    return o if d_out is None else (dq, dk, dv, d_sinks)


def cross_entropy(logits, labels, ignore_index):
    """The loss and its gradient by the logits: (softmax - one-hot) / count, 0 where ignored."""
    counts = labels != ignore_index
    count = max(1, counts.sum())
    shifted = logits - logits.max(axis=-1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    one_hot = np.arange(logits.shape[-1]) == labels[..., None]
    loss = (-log_softmax[one_hot & counts[..., None]]).sum() / count
    return loss, (np.exp(log_softmax) - one_hot) * counts[..., None] / count


# ---- The model ----


def forward(config, weights, tokens, mask, R=exact):
    """The logits (B,N,V), and what the backward needs: the inner arrays of every layer."""
    weights = rounded_weights(weights, R)
    B, N = tokens.shape
    H, D = config["heads"], config["dim_head"]
    G = H // config["num_grouped_query_heads"]
    angle, of_heads = angles_or_none(config, N), {**config, "norm": "rms"}
    x = config["embedding_scale"] * weights["token_emb.weight"][tokens]
    if config["positions"] == "learned":
        x = x + config["position_scale"] * weights["pos_emb.weight"][:N]
    saved = []
    for layer in range(config["depth"]):
        w = part_of(weights, f"layers.{layer}.")

        # Rows of the projection: first all heads of q, then of k, then of v.
        before = x
        normed = R(norm(config, part_of(w, "0.to_qkv.0."), x))
        qkv = R(normed @ w["0.to_qkv.1.weight"].T + w.get("0.to_qkv.1.bias", 0))
        q, k, v = np.split(qkv.reshape(B, N, H + 2 * G, D), (H, H + G), axis=2)
        raw = q, k
        if config["head_norm"]:
            q = norm(of_heads, part_of(w, "0.q_norm."), q)
            k = norm(of_heads, part_of(w, "0.k_norm."), k)
        if angle is not None:
            q, k = rotate(q, angle), rotate(k, angle)
        q, k = R(q), R(k)
        o = R(all_heads(config, layer, q, k, v, mask, w.get("0.sinks")))
        attended = o.reshape(B, N, H * D) @ w["0.to_out.weight"].T + w.get("0.to_out.bias", 0)
        x = x + (norm(config, part_of(w, "0.post_norm."), attended) if config["post_norm"] else attended)

        between = x
        ff_normed = R(norm(config, part_of(w, "1.0."), x))
        hidden = R(ff_normed @ w["1.1.weight"].T + w.get("1.1.bias", 0))
        fed = R(feed(config, hidden)) @ w["1.3.weight"].T + w.get("1.3.bias", 0)
        x = x + (norm(config, part_of(w, "1.post_norm."), fed) if config["post_norm"] else fed)
        saved.append((before, normed, raw, q, k, v, o, attended, between, ff_normed, hidden, fed))
    final = R(norm(config, part_of(weights, "to_logits.0."), x))
    logits = final @ output_weight(config, weights).T + weights.get("to_logits.1.bias", 0)
    if config["logits_softcap"]:
        logits = config["logits_softcap"] * np.tanh(logits / config["logits_softcap"])
    return logits, (saved, x, final, logits)


def backward(config, weights, tokens, mask, saved, d_logits, R=exact):
    """The gradient of every weight, by name: forward read from its end to its beginning."""
    weights = rounded_weights(weights, R)
    B, N = tokens.shape
    H, D = config["heads"], config["dim_head"]
    angle, of_heads = angles_or_none(config, N), {**config, "norm": "rms"}
    layers, x, final, logits = saved
    gradients = {name: np.zeros_like(weight) for name, weight in weights.items()}

    def add(name, gradient):
        if name in gradients:  # biases may be absent
            gradients[name] += gradient

    def back(start, dy, x):
        """Of a linear layer whose weights begin with this: dx."""
        dy = R(dy)
        dx, d_weight = linear_backward(x, weights[start + "weight"], dy)
        add(start + "weight", d_weight)
        add(start + "bias", dy.sum(axis=(0, 1)))
        return R(dx)

    def norm_back(config, start, dy, x):
        dx, d = norm_backward(config, part_of(weights, start), x, dy)
        for name, gradient in d.items():
            add(start + name, gradient)
        return dx

    if config["logits_softcap"]:
        d_logits = d_logits * (1 - (logits / config["logits_softcap"])**2)
    d_logits = R(d_logits)
    dx, d_output = linear_backward(final, output_weight(config, weights), d_logits)
    add("token_emb.weight" if config["tied"] else "to_logits.1.weight", d_output)
    add("to_logits.1.bias", d_logits.sum(axis=(0, 1)))
    dx = norm_back(config, "to_logits.0.", R(dx), x)

    for layer in reversed(range(config["depth"])):
        start = f"layers.{layer}."
        before, normed, raw, q, k, v, o, attended, between, ff_normed, hidden, fed = layers[layer]

        # x + feed-forward(norm(x)): dx goes both ways.
        d_fed = norm_back(config, start + "1.post_norm.", dx, fed) if config["post_norm"] else dx
        d_hidden = feed_backward(config, hidden, back(start + "1.3.", d_fed, R(feed(config, hidden))))
        d_normed = back(start + "1.1.", d_hidden, ff_normed)
        dx = dx + norm_back(config, start + "1.0.", d_normed, between)

        # x + attention(norm(x)).
        d_attended = norm_back(config, start + "0.post_norm.", dx, attended) if config["post_norm"] else dx
        d_o = back(start + "0.to_out.", d_attended, o.reshape(B, N, H * D))
        *d_parts, d_sinks = all_heads(config, layer, q, k, v, mask, weights.get(start + "0.sinks"),
                                      d_o.reshape(B, N, H, D), o)
        dq, dk, dv = map(R, d_parts)
        add(start + "0.sinks", d_sinks)
        if angle is not None:
            dq, dk = rotate(dq, -angle), rotate(dk, -angle)
        if config["head_norm"]:
            dq = norm_back(of_heads, start + "0.q_norm.", dq, raw[0])
            dk = norm_back(of_heads, start + "0.k_norm.", dk, raw[1])
        d_qkv = np.concatenate((dq, dk, dv), axis=2).reshape(B, N, -1)
        d_normed = back(start + "0.to_qkv.1.", d_qkv, normed)
        dx = dx + norm_back(config, start + "0.to_qkv.0.", d_normed, before)

    # A token that stands at several places gets the sum of their gradients.
    np.add.at(gradients["token_emb.weight"], tokens, config["embedding_scale"] * dx)
    if config["positions"] == "learned":
        gradients["pos_emb.weight"][:N] += config["position_scale"] * dx.sum(axis=0)
    return gradients


def angles_or_none(config, length):
    return angles(config, length) if config["positions"] == "rotary" else None


def part_of(weights, start):
    """The weights whose names begin with this, by the rest of their names."""
    return {name[len(start):]: weight for name, weight in weights.items() if name.startswith(start)}


def output_weight(config, weights):
    return weights["token_emb.weight" if config["tied"] else "to_logits.1.weight"]


def loss_of(config, weights, tokens, labels, mask):
    """The loss alone, as the finite differences need it."""
    logits, _ = forward(config, weights, tokens, mask)
    return cross_entropy(logits, labels, config["ignore_index"])[0]


def solve(config, weights, tokens, labels, mask, R=exact):
    """The logits, the loss and the gradients of a problem."""
    logits, saved = forward(config, weights, tokens, mask, R)
    loss, d_logits = cross_entropy(logits, labels, config["ignore_index"])
    return logits, loss, backward(config, weights, tokens, mask, saved, d_logits, R)


# ---- Generation ----


def probabilities(logits, temperature, top_k, top_p):
    """Of the next token, (V): softmax(logits / temperature); of these the top_k likeliest (0: all);
    of these as many of the likeliest as have top_p together, the one that reaches it included.

    What is left sums to 1 after each step. Of equals the lower id comes first. At temperature 0 the
    likeliest has 1.
    """
    order = np.argsort(-logits, kind="stable")
    if temperature == 0:
        top_k, temperature = 1, 1
    p = np.exp((logits - logits.max()) / temperature)
    if top_k > 0:
        p[order[top_k:]] = 0
    p /= p.sum()
    likelier = np.cumsum(p[order]) - p[order]  # what all that come before it have together
    p[order[1:][likelier[1:] >= top_p]] = 0
    return p / p.sum()


def generate(config, weights, prompt, count, temperature=0, top_k=0, top_p=1, forced=None):
    """The new tokens, the probabilities (count, V) they were taken from, and the margin: the least
    difference between the two largest logits of a step.

    Everything is computed anew for every token, so there is no cache to be wrong. Each token is the
    likeliest, or that of forced, so that a text that was drawn by chance elsewhere can be followed.
    """
    tokens, steps, margin = list(prompt), [], math.inf
    for step in range(count):
        prefix = np.array([tokens])
        logits = forward(config, weights, prefix, np.ones(prefix.shape, bool))[0][0, -1]
        steps.append(probabilities(logits, temperature, top_k, top_p))
        second, first = np.sort(logits)[-2:] if logits.size > 1 else (-math.inf, logits[0])
        margin = min(margin, first - second)
        tokens.append(int(steps[-1].argmax()) if forced is None else forced[step])
    return tokens[len(prompt):], np.array(steps).reshape(count, config["num_tokens"]), margin


# ---- Problems ----


def checked(config):
    """The config with everything that is optional; Misuse if it describes no model."""
    unknown = sorted(set(config) - set(KEYS))
    missing = [key for key, (_, _, needed, _) in KEYS.items() if needed and key not in config]
    if unknown or missing:
        raise Misuse(f"config: {', '.join(unknown + missing)}: "
                     f"{'no such key' if unknown else 'must be there'}")
    config = {key: config.get(key, default) for key, (default, _, _, _) in KEYS.items()
              if key in config or key not in ("batch", "length")}
    for key, value in config.items():
        kind = KEYS[key][1]
        types = {int: int, float: (int, float), str: str, None: bool,
                 lookbacks: (list, type(None))}[kind]
        if not isinstance(value, types) or (kind is int and isinstance(value, bool)):
            raise Misuse(f"config: {key} is {value!r}")
        if kind is int and value < 1 and key not in ("depth", "ignore_index"):
            raise Misuse(f"config: {key} is {value}, must be at least 1")
    if config["lookback"] is None:
        config["lookback"] = [None] * config["depth"]
    limits = [entry for entry in config["lookback"] if entry is not None]
    for wrong, message in (
            (config["depth"] < 0, "depth must be at least 0"),
            (config["heads"] % config["num_grouped_query_heads"],
             "num_grouped_query_heads must divide heads"),
            (round(config["ff_mult"] * config["dim"]) < 1, "ff_mult must be above 0"),
            (config["norm"] not in ("unit", "rms", "layer", "rms_plus_one"),
             "norm must be unit, rms, layer or rms_plus_one"),
            (not config["norm_eps"] > 0, "norm_eps must be more than 0"),
            (config["feed"] not in ("gelu", "swiglu", "geglu"), "feed must be gelu, swiglu or geglu"),
            (not 0 <= config["logits_softcap"] < math.inf, "logits_softcap must be at least 0"),
            (not 0 <= config["attention_scale"] < math.inf, "attention_scale must be at least 0"),
            (not math.isfinite(config["embedding_scale"]), "embedding_scale must be a number"),
            (config["positions"] not in ("rotary", "learned"), "positions must be rotary or learned"),
            (config["rotary_scaling"] not in ("plain", "llama3", "yarn", "yarn_untruncated"),
             "rotary_scaling must be plain, llama3, yarn or yarn_untruncated"),
            (config["rotary_scaling"].startswith("yarn") and not config["rotary_theta"] > 1,
             "rotary_theta must be more than 1"),
            (not 0 < config["rotary_low"] < config["rotary_high"],
             "rotary_low must be more than 0, and rotary_high more than that"),
            (not config["rotary_factor"] > 0, "rotary_factor must be more than 0"),
            (config["positions"] == "learned" and config.get("length", 0) > config["longest"],
             "length is more than longest"),
            (config["positions"] == "rotary" and config["dim_head"] % 2, "dim_head must be even: numbers are rotated in pairs"),
            (config["head_map"] not in ("grouped", "interleaved"),
             "head_map must be grouped or interleaved"),
            (not 0 <= config["softcap"] < math.inf, "softcap must be at least 0"),
            (not 0 < config["rotary_theta"] < math.inf, "rotary_theta must be more than 0"),
            (not 0 < config["rotary_scale"] < math.inf, "rotary_scale must be more than 0"),
            (len(config["lookback"]) != config["depth"], "lookback must have an entry per layer"),
            (any(not isinstance(entry, int) or entry < 0 for entry in limits),
             "an entry of lookback must be at least 0, or null"),
            (limits and not config["causal"], "lookback needs causal: it counts keys back")):
        if wrong:
            raise Misuse(f"config: {message}")
    return config


def shapes(config):
    """The shape of every weight, by name."""
    V, dim, D, wide = (config[key] for key in ("num_tokens", "dim", "dim_head", "ff_mult"))
    wide = round(wide * dim)
    H = config["heads"]
    G = H // config["num_grouped_query_heads"]
    up = wide if config["feed"] == "gelu" else wide * 2
    post = config["post_norm"]
    layer_norm, head_norm, feed_bias = (config["norm"] == "layer", config["head_norm"],
                                        config["feed_bias"])
    rows = [("token_emb.weight", (V, dim), True),
            ("pos_emb.weight", (config["longest"], dim), config["positions"] == "learned")]
    for layer in range(config["depth"]):
        rows += [(f"layers.{layer}.{name}", shape, exists) for name, shape, exists in (
            ("0.to_qkv.0.gamma", (dim,), True), ("0.to_qkv.0.bias", (dim,), layer_norm),
            ("0.to_qkv.1.weight", ((H + 2 * G) * D, dim), True),
            ("0.to_qkv.1.bias", ((H + 2 * G) * D,), config["qkv_bias"]),
            ("0.q_norm.gamma", (D,), head_norm), ("0.k_norm.gamma", (D,), head_norm),
            ("0.sinks", (H,), config["sinks"]),
            ("0.to_out.weight", (dim, H * D), True), ("0.to_out.bias", (dim,), config["out_bias"]),
            ("0.post_norm.gamma", (dim,), post), ("0.post_norm.bias", (dim,), post and layer_norm),
            ("1.0.gamma", (dim,), True), ("1.0.bias", (dim,), layer_norm),
            ("1.1.weight", (up, dim), True), ("1.1.bias", (up,), feed_bias),
            ("1.3.weight", (dim, wide), True), ("1.3.bias", (dim,), feed_bias),
            ("1.post_norm.gamma", (dim,), post), ("1.post_norm.bias", (dim,), post and layer_norm))]
    rows += [("to_logits.0.gamma", (dim,), True), ("to_logits.0.bias", (dim,), layer_norm),
             ("to_logits.1.weight", (V, dim), not config["tied"]),
             ("to_logits.1.bias", (V,), config["logits_bias"])]
    return {name: shape for name, shape, exists in rows if exists}


def load_model(folder):
    """The config, complete, and the weights in float64."""
    path = os.path.join(folder, "config.json")
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    except ValueError as error:
        raise Misuse(f"{path}: {error}")
    if not isinstance(config, dict):
        raise Misuse(f"{path}: must be an object")
    config = checked(config)
    weights = {}
    for name, shape in shapes(config).items():
        array = load(os.path.join(folder, "weights"), name, "RC"[:len(shape)], FLOATS)
        if array.shape != shape:
            raise Misuse(f"{folder}: {name} has shape {array.shape}, but the config asks "
                         f"for {shape}")
        weights[name] = array.astype(np.float64)
    return config, weights


def load_problem(folder):
    """What solve() takes."""
    config, weights = load_model(folder)
    tokens, labels = (load(folder, name, "BN", INTEGERS) for name in ("tokens", "labels"))
    mask = np.ones(tokens.shape, bool)
    if os.path.exists(os.path.join(folder, "mask.npy")):
        mask = load(folder, "mask", "BN", ("bool",))
    stated = tuple(config.get(key, tokens.shape[i]) for i, key in enumerate(("batch", "length")))
    for name, array in (("tokens", tokens), ("labels", labels), ("mask", mask)):
        if array.shape != stated:
            raise Misuse(f"{folder}: {name} has shape {array.shape}, but must have {stated}")
    check_ids("tokens", tokens, config)
    check_ids("labels", labels[labels != config["ignore_index"]], config)
    return config, weights, tokens, labels, mask


def check_ids(name, ids, config):
    """Misuse if an id is not in the vocabulary. A negative index would count from the end."""
    outside = [int(i) for i in np.ravel(ids) if not 0 <= i < config["num_tokens"]]
    if outside:
        raise Misuse(f"{name}: {outside[0]} is not in the vocabulary of {config['num_tokens']}")


def make(config, seed, masked=0.0, ignored=0.1):
    """A random problem, as solve() takes it; all weights are exact in float32.

    Weights of a product are normal with the variance 1/terms, so that sums keep their size. The
    labels are the next tokens, the last has none; a share of them is ignored, and a share of the
    keys is masked.
    """
    random = np.random.default_rng(seed)
    weights = {}
    for name, shape in shapes(config).items():
        if name.endswith("gamma"):
            array = random.uniform(0.5, 1.5, shape)
        elif name.endswith("bias"):
            array = random.normal(0, 0.1, shape)
        elif name.endswith("sinks"):
            array = random.normal(0, 1, shape)
        else:
            own = name == "token_emb.weight" and not config["tied"]
            array = random.normal(0, 1 if own else 1 / math.sqrt(shape[1]), shape)
        weights[name] = array.astype(np.float32).astype(np.float64)
    B, N = config["batch"], config["length"]
    text = random.integers(0, config["num_tokens"], (B, N), np.int32)
    labels = np.full((B, N), config["ignore_index"], np.int32)
    labels[:, :-1] = text[:, 1:]
    labels[random.random((B, N)) < ignored] = config["ignore_index"]
    return config, weights, text, labels, random.random((B, N)) >= masked


def works(config, key):
    """Whether a key of a whole config changes anything beside the others."""
    rotary, scaled = config["positions"] == "rotary", config["rotary_scaling"] != "plain"
    if key in ("rotary_factor", "rotary_low", "rotary_high", "rotary_original"):
        return rotary and scaled
    return {"norm_eps": config["norm"] != "unit" or config["head_norm"], "position_scale": not rotary,
            "longest": not rotary}.get(key, rotary or not key.startswith("rotary"))


def save_problem(folder, config, weights, tokens, labels, mask):
    os.makedirs(os.path.join(folder, "weights"), exist_ok=True)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump({key: value for key, value in config.items() if works(config, key)}, file, indent=1)
        file.write("\n")
    save_only(os.path.join(folder, "weights"),
              {name: weight.astype(np.float32) for name, weight in weights.items()})
    arrays = {"tokens": tokens, "labels": labels, **({} if mask.all() else {"mask": mask})}
    save_only(folder, arrays)


def save_only(folder, arrays):
    """The arrays as NAME.npy, and no other .npy: nothing of an earlier run outlives it."""
    os.makedirs(folder, exist_ok=True)
    for file in os.listdir(folder):
        if file.endswith(".npy") and file[:-4] not in arrays:
            os.remove(os.path.join(folder, file))
    for name, array in arrays.items():
        np.save(os.path.join(folder, name + ".npy"), array)


# ---- The command line ----


def numbers(text):
    return [int(word) for word in text.replace(",", " ").split()]


def make_parser():
    parser = Parser(prog="model_oracle.py", formatter_class=argparse.RawDescriptionHelpFormatter,
                    description=__doc__, allow_abbrev=False)
    parser.add_argument("folders", nargs="*", metavar="PROBLEM RESULT")
    parser.add_argument("--bfloat16", action="store_true", help="round to it around products")
    parser.add_argument("--make", metavar="PROBLEM", help="write a random problem, by these:")
    parser.add_argument("--seed", type=int, default=1, help="of what is random (1)")
    parser.add_argument("--masked", type=float, default=0, metavar="SHARE",
                        help="of keys hidden (0)")
    parser.add_argument("--ignored", type=float, default=0.1, metavar="SHARE",
                        help="of labels ignored, beside the last (0.1)")
    for key, (default, kind, _, text) in KEYS.items():
        how = {"type": kind} if kind else {"action": argparse.BooleanOptionalAction}
        parser.add_argument("--" + key.replace("_", "-"), help=text, default=default, **how)
    parser.add_argument("--generate", metavar="PROBLEM",
                        help="print the tokens that follow, by these:")
    parser.add_argument("--prompt", type=numbers, metavar="IDS", help='tokens, such as "1 2 3"')
    parser.add_argument("--count", type=int, default=20, help="how many tokens (20)")
    parser.add_argument("--temperature", type=float, default=0, help="logits are divided by it (0)")
    parser.add_argument("--top-k", type=int, default=0, help="only the likeliest K (0: all)")
    parser.add_argument("--top-p", type=float, default=1, help="only the likeliest, P together (1)")
    parser.add_argument("--forced", type=numbers, metavar="IDS",
                        help="the tokens to follow the prompt")
    parser.add_argument("--probabilities", metavar="FILE",
                        help="gets those of each step (count, V)")
    parser.add_argument("--margin", type=float, default=0,
                        help="fail if the two largest logits of a step are closer: another program "
                             "could rightly choose the other token (0)")
    return parser


def run_make(options):
    config = checked({key: getattr(options, key) for key in KEYS})
    save_problem(options.make, *make(config, options.seed, options.masked, options.ignored))


def run_generate(options):
    config, weights = load_model(options.generate)
    count = options.count if options.forced is None else len(options.forced)
    for wrong, message in ((not options.prompt, "--generate needs a --prompt"),
                           (count < 0, "--count must be at least 0"),
                           (not 0 <= options.temperature < math.inf, "--temperature: at least 0"),
                           (options.top_k < 0, "--top-k must be at least 0"),
                           (not 0 < options.top_p <= 1, "--top-p must be more than 0, at most 1")):
        if wrong:
            raise Misuse(message)
    check_ids("--prompt", options.prompt, config)
    check_ids("--forced", options.forced or [], config)
    tokens, steps, margin = generate(config, weights, options.prompt, count, options.temperature,
                                     options.top_k, options.top_p, options.forced)
    if options.probabilities:
        np.save(options.probabilities, steps)
    if margin < options.margin:
        raise Misuse(f"two logits of a step are {margin:.2g} apart: this prompt decides nothing")
    print(*tokens)


def run(options):
    if len(options.folders) != 2:
        raise Misuse(f"needs two folders, PROBLEM and RESULT, got {len(options.folders)}")
    R = bfloat16 if getattr(options, "bfloat16", False) else exact
    logits, loss, gradients = solve(*load_problem(options.folders[0]), R)
    save_only(options.folders[1], {"logits": logits, "loss": np.array(loss)})
    save_only(os.path.join(options.folders[1], "gradients"), gradients)


def main():
    try:
        options = make_parser().parse_args()
        (run_make if options.make else run_generate if options.generate else run)(options)
        return 0
    except Misuse as error:
        print(f"model_oracle.py: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"model_oracle.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
