#!/usr/bin/env python3
"""families: 10-transformer against models of other packages, which those computed in float64.

    families.py BUILD [NAME...]

tests/fixtures/families/NAME holds a model as its package writes it, a batch, and what the package
computed: logits, loss and all gradients. make.py beside them made them. The program reads these
folders as they are. For the oracle the model becomes a folder of this project, by two tables: what a
config means (parts_of), and which of our arrays has which of theirs (TRANSFORMERS, MGQA). Then

- the oracle, tests/rig/model_oracle.py, must agree to 1e-12 of each array's largest number: so it
  means the same by each part as the packages do;
- `10-transformer step` must agree to 1e-6, or to twice of what the package itself is off by in
  float32 (float32.npy, of the instruction set where that is most), on 1 to 4 ranks, in every layout, with
  --recompute and --gather. Only single gradients are beyond 1e-6, at most 2.5e-6 (qwen3, the norm of keys: a sum
  that almost cancels), where the package is off by 1.3e-6; without fused multiply-add (RA_VECTOR=sse2) at most
  3.2e-6, and the package by 2.0e-6. If all products and sums over rows are taken in double, some still are:
  activations are float32;
- `10-transformer generate` must go on with a text as the package does, on 1 to 4 ranks;
- a model that is imported and exported again must have the package's files, byte by byte; and the
  same weights if it is imported once more from shards.

Page 10e must have the table of fields as src/model/ra_family.c has them; `families.py --page`
prints it.

The last line is "N passed, N failed".
"""
import argparse
import glob
import json
import math
import os
import re
import subprocess
import sys
import textwrap

import numpy as np

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "rig")]
import folders
import jobs
import model_oracle
import safetensors_folder

FIXTURES = os.path.join(HERE, "fixtures", "families")
TOLERANCE, OF_ORACLE, PROMPT = 1e-6, 1e-12, 8

# Layouts and what else a run may ask for, in turns.
FLAGS = ("", "--layout striped", "--layout zigzag --recompute", "--layout striped --bucket 4",
         "--gather", "--recompute", "--layout zigzag --gather")


def parts_of(config):
    """Our config of one of theirs."""
    if "num_grouped_query_heads" in config:  # one of ours
        return config
    if "model_type" not in config:
        return dict(
            num_tokens=config["num_tokens"], dim=config["dim"], depth=config["depth"],
            heads=config["heads"], dim_head=config["attn_dim_head"], ff_mult=4, causal=True,
            num_grouped_query_heads=config["heads"] // config["attn_kv_heads"],
            head_map="interleaved", norm="layer", norm_eps=1e-5, logits_bias=True,
            positions="learned", longest=config["max_seq_len"],
            position_scale=config["dim"] ** -0.5)
    heads, depth = config["num_attention_heads"], config["num_hidden_layers"]
    rope = config.get("rope_parameters") or {"rope_theta": config["rope_theta"],
                                             **(config.get("rope_scaling") or {})}
    window = config.get("sliding_window")
    windows = [window - 1 if window and kind == "sliding_attention" else None
               for kind in config.get("layer_types") or
               ["sliding_attention" if config["model_type"] == "mistral" else "full_attention"] * depth]
    scaling = {} if rope.get("rope_type", "default") != "llama3" else dict(
        rotary_scaling="llama3", rotary_factor=rope["factor"], rotary_low=rope["low_freq_factor"],
        rotary_high=rope["high_freq_factor"],
        rotary_original=rope["original_max_position_embeddings"])
    if rope.get("rope_type") == "linear":
        scaling = dict(rotary_scale=rope["factor"])
    if rope.get("rope_type") == "yarn":
        scaling = dict(
            rotary_scaling="yarn", rotary_factor=rope["factor"], rotary_low=1.0, rotary_high=32.0,
            rotary_original=rope["original_max_position_embeddings"],
            attention_scale=(0.1 * math.log(rope["factor"]) + 1)**2 * config["head_dim"]**-0.5)
    bias = config.get("attention_bias", False)
    gemma = {} if config["model_type"] != "gemma2" else dict(
        attention_scale=config["query_pre_attn_scalar"]**-0.5, softcap=config["attn_logit_softcapping"] or 0.0,
        logits_softcap=config["final_logit_softcapping"] or 0.0, embedding_scale=config["hidden_size"]**0.5,
        post_norm=True)
    return dict(
        num_tokens=config["vocab_size"], dim=config["hidden_size"], depth=depth, heads=heads,
        num_grouped_query_heads=heads // config["num_key_value_heads"], head_map="grouped",
        dim_head=config.get("head_dim") or config["hidden_size"] // heads, causal=True,
        ff_mult=config["intermediate_size"] / config["hidden_size"],
        norm="rms_plus_one" if gemma else "rms",
        norm_eps=config["rms_norm_eps"], feed="geglu" if gemma else "swiglu", feed_bias=config.get("mlp_bias", False),
        qkv_bias=bias or config["model_type"] == "qwen2", out_bias=bias,
        head_norm=config["model_type"] == "qwen3", tied=config["tie_word_embeddings"],
        rotary_theta=rope["rope_theta"], lookback=windows, **scaling, **gemma)


# Of transformers' models and of MGQA's, in the order of our rows.
TRANSFORMERS = {
    "token_emb.weight": ["model.embed_tokens.weight"], "to_logits.0.gamma": ["model.norm.weight"],
    "to_logits.1.weight": ["lm_head.weight"],
    "0.to_qkv.0.gamma": ["input_layernorm.weight"],
    "0.to_qkv.1.weight": ["self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"],
    "0.to_qkv.1.bias": ["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"],
    "0.q_norm.gamma": ["self_attn.q_norm.weight"], "0.k_norm.gamma": ["self_attn.k_norm.weight"],
    "0.sinks": ["self_attn.sinks"],
    "0.to_out.weight": ["self_attn.o_proj.weight"], "0.to_out.bias": ["self_attn.o_proj.bias"],
    "1.0.gamma": ["post_attention_layernorm.weight"],
    "1.1.weight": ["mlp.gate_proj.weight", "mlp.up_proj.weight"],
    "1.1.bias": ["mlp.gate_proj.bias", "mlp.up_proj.bias"],
    "1.3.weight": ["mlp.down_proj.weight"], "1.3.bias": ["mlp.down_proj.bias"]}
GEMMA2 = {**TRANSFORMERS, "0.post_norm.gamma": ["post_attention_layernorm.weight"],
          "1.0.gamma": ["pre_feedforward_layernorm.weight"],
          "1.post_norm.gamma": ["post_feedforward_layernorm.weight"]}
MGQA = {
    "token_emb.weight": ["token_emb.emb.weight"], "pos_emb.weight": ["pos_emb.emb.weight"],
    "to_logits.0.gamma": ["attn_layers.final_norm.weight"],
    "to_logits.0.bias": ["attn_layers.final_norm.bias"], "to_logits.1.weight": ["to_logits.weight"],
    "to_logits.1.bias": ["to_logits.bias"],
    "0.to_qkv.0.gamma": ["{0}.0.0.weight"], "0.to_qkv.0.bias": ["{0}.0.0.bias"],
    "0.to_qkv.1.weight": ["{0}.1.to_q.weight", "{0}.1.to_k.weight", "{0}.1.to_v.weight"],
    "0.to_out.weight": ["{0}.1.to_out.weight"],
    "1.0.gamma": ["{1}.0.0.weight"], "1.0.bias": ["{1}.0.0.bias"],
    "1.1.weight": ["{1}.1.ff.0.0.weight"], "1.1.bias": ["{1}.1.ff.0.0.bias"],
    "1.3.weight": ["{1}.1.ff.2.weight"], "1.3.bias": ["{1}.1.ff.2.bias"]}


def names_of(family, name):
    """Their arrays that, one above the other, are ours of this name."""
    if family is None:
        return [name]
    if not name.startswith("layers."):
        return family[name]
    layer, rest = name.split(".", 2)[1:]
    inner = [theirs.format(2 * int(layer), 2 * int(layer) + 1) for theirs in family[rest]]
    start = "attn_layers.layers." if family is MGQA else f"model.layers.{layer}."
    return [start + theirs for theirs in inner]


def load(folder, work):
    """The weights of a model by their names, from all its files."""
    weights = {}
    for number, path in enumerate(sorted(glob.glob(os.path.join(folder, "*.safetensors")))):
        safetensors_folder.unpack(path, os.path.join(work, str(number)))
        for file in os.listdir(os.path.join(work, str(number))):
            weights[file[:-4]] = np.load(os.path.join(work, str(number), file))
    return weights


def error_of(truth, result):
    """max |truth - result| / max |truth|; infinite if not finite or of another shape."""
    if truth.shape != np.shape(result) or not np.isfinite(result).all():
        return np.inf
    return np.abs(truth - result).max() / max(np.abs(truth).max(), 1e-300)


def compare(folder, logits, loss, gradients):
    """The worst error, and where, of a result: gradients are by their names."""
    errors = {"logits": error_of(np.load(os.path.join(folder, "logits.npy")), logits),
              "loss": error_of(np.load(os.path.join(folder, "loss.npy")), loss)}
    there = {file[:-4] for file in os.listdir(os.path.join(folder, "gradients"))}
    for name in there | set(gradients):
        errors[name] = np.inf
        if name in there and name in gradients:
            errors[name] = error_of(np.load(os.path.join(folder, "gradients", name + ".npy")), gradients[name])
    worst = max(errors, key=lambda name: np.nan_to_num(errors[name], nan=np.inf))
    return errors[worst], worst


def split(family, weights, gradients):
    """Gradients by our names as those by theirs, which have the rows of their weights."""
    result = {}
    for name, gradient in gradients.items():
        theirs = names_of(family, name)
        rows = np.cumsum([len(weights[t]) for t in theirs])[:-1]
        result.update(zip(theirs, np.split(gradient, rows)))
    return result


def load_result(folder):
    """Logits, loss and gradients that a step has written."""
    gradients = {file[:-4]: np.load(os.path.join(folder, "gradients", file))
                 for file in os.listdir(os.path.join(folder, "gradients"))}
    return (*(np.load(os.path.join(folder, file)) for file in ("logits.npy", "loss.npy")), gradients)


def convert(build, folder, work, flags):
    """What is wrong with a model that is imported and exported, or nothing."""
    def run(*words):
        job = subprocess.run(jobs.alone(work, os.path.join(build, "10-transformer"), *words),
                             stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
        return f"{words[0]}: {job.stderr}" if job.returncode else ""
    model, out, shards, again, single = (os.path.join(work, end) for end in (
        "model", "out", "shards", "again", "single"))
    os.makedirs(work)
    said = (run("import", folder, model) or run("export", *flags, model, out) or
            run("export", *flags, "--shard", "9000", model, shards) or run("import", shards, again) or
            run("export", *flags, again, single))
    if said:
        return said
    if not os.path.exists(os.path.join(shards, "model.safetensors.index.json")):
        return "--shard writes no shards"
    same = [(out, single)] + ([(folder, out)] if os.path.exists(os.path.join(
        folder, "model.safetensors")) else [])
    for one, other in same:
        with open(os.path.join(one, "model.safetensors"), "rb") as a, \
             open(os.path.join(other, "model.safetensors"), "rb") as b:
            if a.read() != b.read():
                return f"the weights of {one} and {other} differ"
    with open(os.path.join(out, "config.json"), encoding="utf-8") as a, \
         open(os.path.join(single, "config.json"), encoding="utf-8") as b:
        return "" if a.read() == b.read() else "the configs differ"


# ---- The page ----


TITLES = {"LLAMA": "Llama", "MISTRAL": "Mistral", "QWEN2": "Qwen2", "QWEN3": "Qwen3",
          "GEMMA2": "Gemma 2"}
GROUPS = {"HUGGING": list(TITLES), "QWENS": ["QWEN2", "QWEN3"], "SWIGLUS": list(TITLES)[:4]}

# What each field that is used becomes, in our keys.
BECOMES = {
    "vocab_size": "`num_tokens`", "hidden_size": "`dim`", "intermediate_size": "`dim` times `ff_mult`",
    "num_hidden_layers": "`depth`", "num_attention_heads": "`heads`",
    "num_key_value_heads": "key heads; null: as many as `heads`",
    "head_dim": "`dim_head`; null: `dim` / `heads`",
    "max_position_embeddings": "`rotary_original`, if [rotation](#rotation) has none",
    "model_type": "`family`", "rms_norm_eps": "`norm_eps`", "tie_word_embeddings": "`tied`",
    "query_pre_attn_scalar": "`attention_scale`, as 1 / its root", "attn_logit_softcapping": "`softcap`",
    "final_logit_softcapping": "`logits_softcap`", "attention_bias": "`qkv_bias` and `out_bias`",
    "mlp_bias": "`feed_bias`", "rope_parameters": "[rotation](#rotation)", "rope_scaling": "[rotation](#rotation)",
    "rope_theta": "`rotary_theta`", "sliding_window": "`lookback` + 1: [windows](#windows)",
    "use_sliding_window": "[windows](#windows)", "max_window_layers": "[windows](#windows)",
    "layer_types": "[windows](#windows)", "architectures": "nothing: null, or the family's causal model alone",
    "num_tokens": "`num_tokens`", "max_seq_len": "`longest`", "tie_embedding": "`tied`; if false, `logits_bias`",
    "dim": "`dim`", "depth": "`depth`", "heads": "`heads`", "causal": "`causal`", "attn_dim_head": "`dim_head`",
    "attn_kv_heads": "key heads; null: as many as `heads`", "attn_one_kv_head": "one key head",
    "attn_max_attend_past": "`lookback`", "ff_mult": "`ff_mult`", "ff_no_bias": "not `feed_bias`"}


def fields():
    """Rows of the table of ra_family.c: topic, name, families as a list, use, value or None, and why."""
    with open(os.path.join(HERE, "..", "src", "model", "ra_family.c"), encoding="utf-8") as file:
        source = file.read()
    source = source[source.index("fields[] = {"):source.index("enum { FIELDS")]
    rows, topic = [], ""
    for found in re.finditer(r'\n    /\* ([\w ,-]+).*\*/\n|\{"(\w+)",\s+([A-Z0-9 |]+),\s+([A-Z]+),\s+'
                             r'(NULL|"(?:\\.|[^"\\])*"),\s+(NULL|"(?:[^"]|"\s+")*")\}', source):
        title, name, who, use, value, why = found.groups()
        if title:
            topic = title
            continue
        families = sorted({name for word in who.split(" | ") for name in GROUPS.get(word, [word])}, key=[
            *TITLES, "MGQA"].index)
        rows.append((topic, name, families, use, None if value == "NULL" else value[1:-1].replace('\\"', '"'),
                     re.sub(r'"\s+"', "", why)[1:-1]))
    if len(rows) != source.count('{"'):
        raise SystemExit(f"{len(rows)} rows of {source.count('{') - 1} could be read")
    return rows


def of(families):
    return "" if families == ["MGQA"] or len(families) == len(TITLES) else \
        f" (of {', '.join(TITLES[f] for f in families)})"


def used(rows):
    """A table of what is used: what it becomes, and what holds in each family if it is left out."""
    columns = ["MGQA"] if rows[0][2] == ["MGQA"] else list(TITLES)
    titles = ["if left out"] if columns == ["MGQA"] else list(TITLES.values())
    cells = {}
    for _, name, families, use, value, _ in rows:
        if use == "USED":
            cells.setdefault(name, {}).update((f, value or "an error") for f in families)
    lines = [f"| field | is our | {' | '.join(titles)} |", "|---" * (2 + len(titles)) + "|"]
    return lines + [f"| `{name}` | {BECOMES[name]} | {' | '.join(of.get(c, '–') for c in columns)} |"
                    for name, of in cells.items()]


def only(rows):
    """A table of fields that may have one value alone, by topics; those with the same reason in one row."""
    lines, together, before = ["| field | must be | because |", "|---|---|---|"], {}, None
    for topic, name, families, use, value, why in rows:
        if use == "ONLY":
            topic = topic if families == ["MGQA"] else ""
            together.setdefault((topic, value, why), []).append(f"`{name}`{of(families)}")
    for (topic, value, why), names in together.items():
        if topic != before and topic:
            lines.append(f"| **{topic}** | | |")
        before = topic
        lines.append(f"| {', '.join(names)} | {value} | {why} |")
    return lines


def page():
    """The tables of fields, as Markdown, from the table of ra_family.c."""
    lines = []
    for mgqa in (False, True):
        rows = [row for row in fields() if (row[2] == ["MGQA"]) == mgqa]
        title = "MGQA" if mgqa else "Llama, Mistral, Qwen2, Qwen3 and Gemma 2"
        free = [f"`{name}`{of(families)}" for _, name, families, use, _, _ in rows if use == "FREE"]
        lines += [f"### {title}", "", "Fields that are used:", "", *used(rows), ""]
        few = "Fields that may be there, but only with this value"
        lines += [f"<details><summary>{few}</summary>", "", *only(rows), "", "</details>", ""] if mgqa else [
            f"{few}:", "", *only(rows), ""]
        lines += [f"<details><summary>{len(free)} fields that may have any value, since they change no result"
                  "</summary>", "", *textwrap.wrap(", ".join(free) + ".", 119, break_long_words=False,
                                                   break_on_hyphens=False), "", "</details>", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", metavar="BUILD", nargs="?", default="build")
    parser.add_argument("--page", action="store_true", help="print the tables of page 10e")
    parser.add_argument("names", nargs="*", metavar="NAME", help="some of the fixtures (all)")
    options = parser.parse_args()
    if options.page:
        print(page())
        return 0
    work = os.path.join(options.build, "-".join(["families", *os.environ.get("RA_VECTOR", "").split()]))
    folders.begin(work)
    passed = failed = 0

    def judge(name, error, tolerance):
        nonlocal passed, failed
        good = error[0] <= tolerance
        passed, failed = passed + good, failed + (not good)
        print(f"{'passed' if good else 'FAILED'}  {name}: {error[0]:.1e} at {error[1]}", flush=True)

    for name in options.names or sorted(name for name in os.listdir(FIXTURES) if "." not in name):
        folder, problem = os.path.join(FIXTURES, name), os.path.join(work, name)
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            theirs = json.load(file)
        family = (None if "num_grouped_query_heads" in theirs else MGQA if "model_type" not in theirs else
                  GEMMA2 if theirs["model_type"] == "gemma2" else TRANSFORMERS)
        config = model_oracle.checked({key: row[0] for key, row in model_oracle.KEYS.items()
                                       if key not in ("batch", "length")} | parts_of(theirs))
        weights = load(folder, os.path.join(work, name + "-files"))
        ours = {mine: np.concatenate([weights[t] for t in names_of(family, mine)])
                for mine in model_oracle.shapes(config)}
        tokens, labels = (np.load(os.path.join(folder, file)) for file in ("tokens.npy", "labels.npy"))
        model_oracle.save_problem(problem, config, ours, tokens, labels, np.ones(tokens.shape, bool))
        logits, loss, gradients = model_oracle.solve(*model_oracle.load_problem(problem))
        judge(f"{name}: oracle", compare(folder, logits, loss, split(family, weights, gradients)), OF_ORACLE)
        said = convert(options.build, folder, os.path.join(work, name + "-converted"), [] if family else ["--safetensors"])
        judge(f"{name}: imported and exported {said}", (float(bool(said)), "all"), 0)

        tolerance = max(TOLERANCE, 2 * float(np.load(os.path.join(folder, "float32.npy"))))
        text = np.load(os.path.join(folder, "text.npy"))
        for ranks in range(1, 5):
            runs = [f"step {flags} {folder} {problem}-{ranks}-{number}"
                    for number, flags in enumerate(FLAGS)]
            model, prompt = f"{problem}-{ranks}", "\t".join(map(str, text[:PROMPT]))
            os.symlink(os.path.abspath(folder), model)  # beside which it writes what it prints
            runs.append(f"generate --prompt {prompt} --count {len(text) - PROMPT} {model}")
            lost = jobs.run_lines(os.path.join(options.build, "batch-10-transformer"), ranks, runs,
                                  os.path.join(work, f"lines-{name}-{ranks}"))
            for number, flags in enumerate(FLAGS):
                result = f"{problem}-{ranks}-{number}"
                title = f"{name}: {ranks} ranks {flags}"
                if number in lost:
                    judge(f"{title}: {lost[number]}", (np.inf, "all"), tolerance)
                    continue
                judge(title, compare(folder, *load_result(result)), tolerance)
            title, written = f"{name}: {ranks} ranks go on with a text", []
            if len(FLAGS) not in lost:
                with open(model + ".counts", encoding="utf-8") as file:
                    written = [int(word) for word in file.read().split()]
            judge(title, (float(written != list(text)), lost.get(len(FLAGS), "a token")), 0)
    with open(os.path.join(HERE, "..", "chapters", "10e-reference.md"), encoding="utf-8") as file:
        judge("page 10e has all fields", (float(page() not in file.read()), "(families.py --page)"), 0)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
