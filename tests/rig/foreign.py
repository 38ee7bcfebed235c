"""foreign: a small model in the form in which the weights of Llama were first published.

    foreign.py FAMILY FOLDER neighbours|halves

FAMILY is llama or mistral, of tests/fixtures/families. FOLDER must not be there. It gets
NAME.npy for each array, and tokens.npy and logits.npy: a text, and what the model says of it. Heads
rotate neighbours: numbers 2 t and 2 t + 1 are a point, as in that form; or, with the same names,
halves: numbers t and t + D / 2, as in transformers and here. For the exercises of chapter 10c.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
FAMILIES = os.path.join(ROOT, "tests", "fixtures", "families")
NAMES = {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head",
         "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
         "attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj",
         "attention.wv": "self_attn.v_proj", "attention.wo": "self_attn.o_proj",
         "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj",
         "feed_forward.w3": "mlp.up_proj"}
ROTATED = "attention.wq", "attention.wk"


def unpack(file, folder):
    subprocess.run([sys.executable, os.path.join(ROOT, "tests", "safetensors_folder.py"), "unpack",
                    file, folder], check=True, stdout=subprocess.DEVNULL)


def config_of(family):
    with open(os.path.join(FAMILIES, family, "config.json"), encoding="utf-8") as file:
        return json.load(file)


def split(name):
    """layers.3.norm is ("3.", "norm"), and output is ("", "output")."""
    if not name.startswith("layers."):
        return "", name
    layer, inner = name[len("layers."):].split(".", 1)
    return layer + ".", inner


def write(family, folder, kind):
    """Writes the model in their form."""
    os.mkdir(folder)
    D, source = config_of(family)["head_dim"], os.path.join(FAMILIES, family)
    there = {ours: theirs for theirs, ours in NAMES.items()}
    with tempfile.TemporaryDirectory() as weights:
        unpack(os.path.join(source, "model.safetensors"), weights)
        for file in os.listdir(weights):
            x, name = numpy.load(os.path.join(weights, file)), file[:-len(".weight.npy")]
            layer, inner = split(name[len("model."):] if ".layers." in name else name)
            inner = there[inner]
            if kind == "neighbours" and inner in ROTATED:
                x = x.reshape(-1, 2, D // 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
            name = ("layers." + layer if layer else "") + inner
            numpy.save(os.path.join(folder, name + ".weight.npy"), x)
    for name in "tokens.npy", "logits.npy":
        shutil.copy(os.path.join(source, name), folder)
    with open(os.path.join(folder, "family"), "w", encoding="utf-8") as file:
        file.write(family)


def logits(folder, kind):
    """What the model in this folder says of its text, (B, N, V), if its heads rotate this kind."""
    with open(os.path.join(folder, "family"), encoding="utf-8") as file:
        family = file.read()
    D = config_of(family)["head_dim"]
    with tempfile.TemporaryDirectory() as made:
        os.mkdir(os.path.join(made, "weights"))
        shutil.copy(os.path.join(folder, "tokens.npy"), made)
        shutil.copy(os.path.join(FAMILIES, family, "config.json"), made)
        for file in os.listdir(folder):
            if not file.endswith(".weight.npy"):
                continue
            x = numpy.load(os.path.join(folder, file))
            layer, inner = split(file[:-len(".weight.npy")])
            if kind == "neighbours" and inner in ROTATED:
                x = x.reshape(-1, D // 2, 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
            name = ("model.layers." + layer if layer else "") + NAMES[inner]
            numpy.save(os.path.join(made, "weights", name + ".weight.npy"), x)
        result = os.path.join(made, "result")
        subprocess.run([os.path.join(ROOT, "build", "10-transformer"), "step", made, result],
                       check=True, stdout=subprocess.DEVNULL)
        return numpy.load(os.path.join(result, "logits.npy"))


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[3] not in ("neighbours", "halves"):
        sys.exit(__doc__)
    write(*sys.argv[1:])
