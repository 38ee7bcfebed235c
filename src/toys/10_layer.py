"""10_layer: chapter 10 as a toy: the forward of a whole transformer, in one process.

    10_layer.py FOLDER     a model and a batch, as in tests/fixtures/causal-gqa; prints the loss
"""
import math
import sys
import numpy as np

DEPTH, HEADS, KEY_HEADS, D = 2, 4, 2, 8  # of this model

# Our names of a layer's weights, and those of the original.
NAMES = {"attention_gamma": "0.to_qkv.0.gamma", "qkv": "0.to_qkv.1.weight",
         "out": "0.to_out.weight", "feed_gamma": "1.0.gamma",
         "up": "1.1.weight", "up_bias": "1.1.bias",
         "down": "1.3.weight", "down_bias": "1.3.bias"}

gelu = np.vectorize(lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2)


def norm(x, gamma):
    """RMSNorm: gives every row the same length."""
    return gamma * x * math.sqrt(x.shape[1]) / np.linalg.norm(x, axis=1, keepdims=True)


def rotate(x):
    """Rotates each row of a head of q or k by its position."""
    angle = np.outer(np.arange(len(x)), 10000.0 ** (-np.arange(D // 2) * 2 / D))
    u, w = np.split(x, 2, axis=1)
    return np.hstack([u * np.cos(angle) - w * np.sin(angle), w * np.cos(angle) + u * np.sin(angle)])


def attention(qkv):
    """Causal attention as in chapter 01. A row of qkv has all heads of q, then of k, then of v."""
    heads = np.split(qkv, HEADS + 2 * KEY_HEADS, axis=1)
    future = np.triu(np.full((len(qkv), len(qkv)), -np.inf), 1)
    o = []
    for h in range(HEADS):
        g = HEADS + h % KEY_HEADS
        q, k, v = rotate(heads[h]), rotate(heads[g]), heads[g + KEY_HEADS]
        p = np.exp(q @ k.T / math.sqrt(D) + future)
        o.append(p @ v / p.sum(axis=1, keepdims=True))
    return np.hstack(o)


def layer(x, w):
    """Makes of the rows of x, one for each token, those that the next layer gets."""
    qkv = norm(x, w["attention_gamma"]) @ w["qkv"].T
    mid = x + attention(qkv) @ w["out"].T
    up = norm(mid, w["feed_gamma"]) @ w["up"].T + w["up_bias"]
    down = gelu(up) @ w["down"].T + w["down_bias"]
    return mid + down


def load(path):
    return np.load(sys.argv[1] + "/" + path + ".npy")


losses = []
for tokens, labels in zip(load("tokens"), load("labels")):
    x = load("weights/token_emb.weight")[tokens]
    for l in range(DEPTH):
        x = layer(x, {ours: load(f"weights/layers.{l}.{name}") for ours, name in NAMES.items()})
    logits = norm(x, load("weights/to_logits.0.gamma")) @ load("weights/to_logits.1.weight").T
    losses += [math.log(np.exp(z).sum()) - z[i] for z, i in zip(logits, labels) if i >= 0]
print("loss %.6f" % np.mean(losses))
