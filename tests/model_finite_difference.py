#!/usr/bin/env python3
"""model_finite_difference: is tests/rig/model_oracle.py right?

Three judgements, each of which trusts something else:

- Fixtures: logits, loss and every gradient of two models that the original package ran in float64
  (tests/fixtures). It rounded its rotary frequencies to float32 and stored them; with these in
  place of the oracle's own, all must agree to 1e-13 of the largest number of an array, about a
  thousand roundings.
- Identities of the forward, for the options that no fixture has: what must change nothing, and
  what must.
- Slopes: every gradient of every parameter of a few tiny models against the five-point formula

      slope = (8 (loss(x + h) - loss(x - h)) - (loss(x + 2h) - loss(x - 2h))) / 12h

  A loss of about 3 is rounded by 4e-16 a few times, and h = 2^-11, so a slope errs by about 1e-12.
  The formula itself errs by h^4/30 = 2e-15 times the fifth derivative, which is at most some 1e4
  here: weights are about 1, and so is what becomes of them. The tolerance, 1e-8 of the largest
  slope or of 1e-2 if all are less, is above both; a wrong term shows as 1e-3 of the largest slope
  or more.
"""
import os
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "rig"))

import model_oracle as oracle  # noqa: E402: it lies in the folder that the line before names

FIXTURE_TOLERANCE = 1e-13
SLOPE_TOLERANCE = 1e-8
H_STEP = 2.0**-11
STEPS = ((1, 8), (-1, -8), (2, -1), (-2, 1))  # in h, and the weight of the loss there, over 12 h


class Count:
    """Prints each judgement and counts it."""

    def __init__(self):
        self.passed = self.failed = 0

    def judge(self, name, good, found):
        self.passed, self.failed = self.passed + bool(good), self.failed + (not good)
        print(f"{'passed' if good else 'FAILED'}  {name}: {found}")


def error_of(truth, result):
    """max |truth - result| / max |truth|; infinite if not finite or of another shape."""
    truth, result = np.asarray(truth), np.asarray(result)
    if truth.shape != result.shape or not np.isfinite(result).all():
        return np.inf
    return np.abs(truth - result).max() / np.abs(truth).max()


# ---- The fixtures ----


def fixtures(count):
    own_angles = oracle.angles
    for name in ("causal-gqa", "masked"):
        folder = os.path.join(HERE, "fixtures", name)

        def read(path):
            return np.load(os.path.join(folder, path + ".npy"))

        # The plain attention of the original gives a row that sees nothing the mean of v, not 0.
        problem = oracle.load_problem(folder)
        count.judge(f"{name}: every row sees a key", problem[4].any(axis=1).all(),
                    f"{problem[4].sum(axis=1).min()} keys or more in a batch row")

        frequency = read("weights/rotary_emb.inv_freq")
        oracle.angles = lambda config, length: np.arange(length)[:, None] * frequency
        logits, loss, gradients = oracle.solve(*problem)
        oracle.angles = own_angles
        stored = set(os.listdir(os.path.join(folder, "gradients")))
        count.judge(f"{name}: a gradient of every weight",
                    stored == {g + ".npy" for g in gradients}, f"{len(stored)} gradients")
        results = {"logits": logits, "loss": loss}
        results.update({f"gradients/{g}": array for g, array in gradients.items()})
        for path, array in results.items():
            error = error_of(read(path), array)
            count.judge(f"{name}: {path}", error <= FIXTURE_TOLERANCE, f"error {error:.1e}")

        # Float32 frequencies are off by up to 6e-8 of themselves: angles by 3e-6 at position 47.
        error = error_of(logits, oracle.forward(problem[0], problem[1], problem[2], problem[4])[0])
        count.judge(f"{name}: logits with exact frequencies", 0 < error < 1e-7,
                    f"error {error:.1e}")


# ---- Identities of the forward ----


def model(**keys):
    """A config: a tiny causal model, but for these keys."""
    base = {"num_tokens": 7, "dim": 6, "depth": 2, "heads": 4, "num_grouped_query_heads": 2,
            "dim_head": 4, "causal": True, "batch": 2, "length": 7, "head_map": "grouped",
            "ff_mult": 2}
    return oracle.checked({**base, **keys})


def identities(count):
    config, weights, tokens, labels, mask = oracle.make(model(), 5)
    base = oracle.forward(config, weights, tokens, mask)[0]

    def same(name, expected, **keys):
        """These keys leave the logits as they are, or do not."""
        other_weights = keys.pop("weights", weights)
        other_mask = keys.pop("mask", mask)
        logits = oracle.forward(model(**keys), other_weights, tokens, other_mask)[0]
        error = error_of(base, logits)
        good = error < 1e-14 if expected else 1e-4 < error < np.inf
        count.judge(f"{name} {'changes nothing' if expected else 'changes the logits'}", good,
                    f"error {error:.1e}")

    same("a lookback of the whole length", True, lookback=[6, 100])
    same("a lookback one less than that", False, lookback=[5, 5])
    same("a lookback in the first layer only", False, lookback=[0, None])
    same("a lookback in the last layer only", False, lookback=[None, 0])
    same("a soft cap of 1e9", True, softcap=1e9)
    same("a soft cap of 1", False, softcap=1.0)
    same("no causality", False, causal=False)
    same("another rotary base", False, rotary_theta=50.0)
    same("a rotary scale", False, rotary_scale=2.0)
    same("the other head map", False, head_map="interleaved")
    hidden = mask.copy()
    hidden[:, 0] = False
    same("hiding the first key", False, mask=hidden)

    # Interleaved heads are grouped heads in another order: head h of the one is head place[h] of
    # the other.
    D, place = 4, [0, 2, 1, 3]
    other = dict(weights)
    for layer in range(2):
        qkv, out = f"layers.{layer}.0.to_qkv.1.weight", f"layers.{layer}.0.to_out.weight"
        q = weights[qkv][:4 * D].reshape(4, D, 6)[place].reshape(4 * D, 6)
        other[qkv] = np.concatenate((q, weights[qkv][4 * D:]))
        other[out] = weights[out].reshape(6, 4, D)[:, place].reshape(6, 4 * D)
    same("the other head map with its heads in that order", True,
         head_map="interleaved", weights=other)

    # Tied weights are own weights that happen to be equal; the gradients of the two then add.
    tied = {name: w for name, w in weights.items() if name != "to_logits.1.weight"}
    twice = {**tied, "to_logits.1.weight": tied["token_emb.weight"]}
    one = oracle.solve(model(tied=True), tied, tokens, labels, mask)
    two = oracle.solve(model(), twice, tokens, labels, mask)
    both = two[2]["token_emb.weight"] + two[2]["to_logits.1.weight"]
    error = max(error_of(two[0], one[0]), error_of(both, one[2]["token_emb.weight"]))
    count.judge("tied weights are two equal ones", error < 1e-14, f"error {error:.1e}")

    # The rotation, as complex numbers: x_t + i x_(t + D/2) times 
    # exp(i position theta^(-2t/D) / scale).
    x = np.random.default_rng(1).normal(size=(1, 5, 3, 8))
    turn = np.exp(1j * np.arange(5)[:, None] / 3 * 50.0 ** (-np.arange(4) / 4))[:, None]
    product = (x[..., :4] + 1j * x[..., 4:]) * turn
    angle = oracle.angles(model(dim_head=8, rotary_theta=50.0, rotary_scale=3.0), 5)
    error = error_of(np.concatenate((product.real, product.imag), axis=-1), oracle.rotate(x, angle))
    count.judge("rotary is a product of complex numbers", error < 1e-14, f"error {error:.1e}")

    # Nobody sees the future, and no label means no loss.
    later = tokens.copy()
    later[:, 4:] = (later[:, 4:] + 1) % 7
    logits = oracle.forward(config, weights, later, mask)[0]
    count.judge("later tokens leave earlier logits alone",
                (logits[:, :4] == base[:, :4]).all() and (logits[:, 4:] != base[:, 4:]).all(),
                "bits")
    _, loss, gradients = oracle.solve(config, weights, tokens, np.full_like(labels, -1), mask)
    count.judge("without labels all is 0",
                loss == 0 and not any(g.any() for g in gradients.values()), f"loss {loss}")

    # Generation: the likeliest token of each step, and what top-k and top-p leave of known numbers.
    new, steps, _ = oracle.generate(config, weights, [1, 2], 3)
    text = np.array([[1, 2, *new]])
    again = oracle.forward(config, weights, text, text >= 0)[0][0, 1:4].argmax(axis=-1)
    count.judge("generated tokens are the likeliest",
                list(again) == new and (steps.max(axis=1) == 1).all(), f"{new}")
    quarters = np.log([0.125, 0.5, 0.25, 0.125])
    for arguments, expected in (((1, 0, 1), [1, 4, 2, 1]), ((1, 2, 1), [0, 2, 1, 0]),
                                ((1, 3, 1), [1, 4, 2, 0]), ((1, 0, 0.5), [0, 1, 0, 0]),
                                ((1, 0, 0.55), [0, 2, 1, 0]), ((0.5, 2, 0.9), [0, 4, 1, 0]),
                                ((1, 2, 0.6), [0, 1, 0, 0]), ((0, 0, 1), [0, 1, 0, 0])):
        p = oracle.probabilities(quarters, *arguments)
        error = error_of(np.array(expected) / sum(expected), p)
        count.judge("temperature {}, top-k {}, top-p {}".format(*arguments), error < 1e-14,
                    f"error {error:.1e}")


# ---- Slopes ----


def tiny_models():
    """Name, config, share of keys hidden."""
    return (
        ("causal, grouped heads, soft cap, lookback", model(softcap=1.5, lookback=[2, None]), 0),
        ("causal, interleaved heads, tied, key mask, lookback",
         model(head_map="interleaved", tied=True, lookback=[None, 1]), 0.3),
        ("not causal, key mask, soft cap, rotary options",
         model(causal=False, depth=1, softcap=2.0, rotary_theta=50.0, rotary_scale=3.0), 0.4),
        ("one key/value head, tied", model(depth=1, num_grouped_query_heads=4, tied=True), 0),
        ("as many key/value heads as query heads, lookback 0",
         model(depth=1, num_grouped_query_heads=1, lookback=[0]), 0),
        ("no layers, tied", model(depth=0, tied=True), 0),
        ("norm rms, swiglu, norm of heads, biases of logits and attention",
         model(norm="rms", norm_eps=0.1, feed="swiglu", head_norm=True, logits_bias=True, out_bias=True,
               feed_bias=False), 0),
        ("norm layer, learned positions, bias of q, k and v",
         model(norm="layer", norm_eps=0.1, positions="learned", longest=9, position_scale=0.3,
               qkv_bias=True, depth=1, dim_head=3, causal=False), 0.3),
        ("norm rms_plus_one, geglu, norms behind, scales, soft cap of logits",
         model(norm="rms_plus_one", norm_eps=1.0, feed="geglu", post_norm=True, attention_scale=0.2,
               softcap=2.5, logits_softcap=1.5, embedding_scale=1.5, tied=True, lookback=[2, None]), 0),
        ("norm layer behind, geglu with biases",
         model(norm="layer", norm_eps=0.1, feed="geglu", post_norm=True, depth=1, logits_bias=True,
               logits_softcap=1.2), 0),
        ("swiglu with biases, Llama 3's frequencies",
         model(feed="swiglu", depth=1, rotary_scaling="llama3", rotary_original=20, rotary_theta=50.0,
               dim_head=8), 0),
        ("sinks, YaRN's frequencies",
         model(sinks=True, rotary_scaling="yarn", rotary_original=60, rotary_theta=50.0, rotary_low=0.5,
               dim_head=8, lookback=[2, None]), 0.2),
    )


def worst_difference(problem):
    """How many gradients, and the worst |gradient - slope|, relative as in the tolerance."""
    config, weights, tokens, labels, mask = problem
    gradients = oracle.solve(*problem)[2]
    elements, worst = 0, 0.0
    for name, weight in weights.items():
        slopes = np.zeros(weight.size)
        for place in range(weight.size):
            kept = weight.flat[place]
            for step, factor in STEPS:
                weight.flat[place] = kept + step * H_STEP
                slopes[place] += factor * oracle.loss_of(config, weights, tokens, labels, mask)
            weight.flat[place] = kept
        slopes /= 12 * H_STEP
        difference = np.abs(gradients[name].ravel() - slopes).max()
        difference /= max(1e-2, np.abs(slopes).max())
        # A NaN must not be lost in a comparison, and slopes of 0 would agree with gradients
        # that were never computed.
        good = np.isfinite(difference) and slopes.any()
        worst = max(worst, difference if good else np.inf)
        elements += weight.size
    return elements, worst


def slopes(count):
    for seed, (name, config, masked) in enumerate(tiny_models()):
        problem = oracle.make(config, seed, masked, 0.2)
        # Under a mask one batch row sees no key at all, and the first query of the other sees
        # none if it is causal.
        if masked:
            problem[4][1] = False
            problem[4][0, 0] = False
        elements, worst = worst_difference(problem)
        count.judge(f"slopes: {name}", worst <= SLOPE_TOLERANCE,
                    f"{elements} parameters, worst difference {worst:.1e}")


def main():
    if len(sys.argv) > 1:
        print(__doc__)
        return 0 if sys.argv[1:] == ["--help"] else 2
    count = Count()
    fixtures(count)
    identities(count)
    slopes(count)
    print(f"{count.passed} passed, {count.failed} failed")
    return 1 if count.failed else 0


if __name__ == "__main__":
    sys.exit(main())
