#!/usr/bin/env python3
"""assert: do the ranks of a ring compute what one process computes? With the options of the assert.py of
ring-attention-pytorch.

    assert.py [OPTIONS]             a model as these say, with random weights and tokens
    assert.py [OPTIONS] FOLDER      a model and a batch of your own, such as tests/fixtures/causal-gqa

The original compares its ring with its attention in one process: outputs, and the gradient of what goes in.
This compares a ring of WORLD_SIZE ranks with the definition in float64 (tests/rig/model_oracle.py), or with the
logits, the loss and the gradients that FOLDER has: all logits, and every gradient. It says what it compared
and how far the worst is off, and fails above 2e-5, as tests/model_compare.py does.
"""
import argparse
import os
import subprocess
import sys
import tempfile

import numpy as np

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "rig"))
import jobs
sys.path.insert(0, HERE)
import model_compare
import model_oracle

TOLERANCE = 2e-5

REFUSED = {
    "use_cuda": "models run on hosts; rings on GPUs are compared by build/check-cuda-ring",
    "cuda_kernel": "models run on hosts; kernels are compared by build/check-kernels",
}


def make_parser():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", nargs="?", help="a model and a batch, and what is right")
    sizes = (("world-size", 8, "ranks"), ("batch-size", 2, "sequences"),
             ("num-sharded-batches", 1, "rings, each of WORLD_SIZE / this many ranks"),
             ("num-buckets", 2, "stripes of a rank, with --striped-ring-attn; the original's tiles"),
             ("seq-len", 31, "tokens of a sequence"), ("model-dim", 8, "numbers of a token"),
             ("heads", 8, "query heads"), ("num-grouped-query-heads", 2, "query heads that share a key head"),
             ("dim-head", 16, "numbers of a head"), ("depth", 1, "layers"))
    for name, value, text in sizes:
        parser.add_argument(f"--{name}", type=int, default=value, metavar="N", help=f"{text} ({value})")
    parser.add_argument("--batch-size-var-len", action="store_true",
                        help="rows that no number of ranks divides: WORLD_SIZE - 1 more")
    parser.add_argument("--causal", action="store_true", help="a token sees itself and those before it")
    parser.add_argument("--striped-ring-attn", action="store_true", help="striped; otherwise contiguous")
    parser.add_argument("--zig-zag", action="store_true", help="zigzag, as assert_zig_zag.py")
    parser.add_argument("--compare-regular-attn", action="store_true",
                        help="no effect: the definition is regular attention")
    for name, reason in REFUSED.items():
        parser.add_argument("--" + name.replace("_", "-"), action="store_true", help="refused: " + reason)
    parser.add_argument("--build", default="build", help="the folder of 10-transformer (build)")
    return parser


def make_problem(options, folder):
    """Writes a problem, and its truth beside it."""
    rows = options.batch_size + (options.world_size - 1 if options.batch_size_var_len else 0)
    config = {key: row[0] for key, row in model_oracle.KEYS.items()}
    config.update(num_tokens=256, dim=options.model_dim, depth=options.depth, heads=options.heads,
                  num_grouped_query_heads=options.num_grouped_query_heads, dim_head=options.dim_head,
                  causal=options.causal, head_map="interleaved", batch=rows, length=options.seq_len)
    model_oracle.save_problem(folder, *model_oracle.make(model_oracle.checked(config), 0))
    model_oracle.run(argparse.Namespace(folders=[folder, folder + "-truth"]))
    return folder + "-truth"


def flags_of(options):
    """The flags of step that mean the same."""
    layout = "zigzag" if options.zig_zag else "striped" if options.striped_ring_attn else "contiguous"
    flags = ["--layout", layout]
    ring = options.world_size // options.num_sharded_batches
    if layout == "striped" and options.num_buckets > 1:
        # A rank's tokens in as many pieces: as ceil(seq_len / world) * num_sharded_batches // num_buckets.
        flags += ["--bucket", max(1, -(-options.seq_len // ring) // options.num_buckets)]
    return flags + ["--ring-size", ring]


def main():
    parser = make_parser()
    options = parser.parse_args()
    for name, reason in REFUSED.items():
        if getattr(options, name):
            parser.error(f"--{name.replace('_', '-')}: {reason}")
    if options.num_sharded_batches < 1 or options.world_size % options.num_sharded_batches != 0:
        parser.error(f"--num-sharded-batches {options.num_sharded_batches}: does not divide the "
                     f"{options.world_size} ranks")
    if options.zig_zag and options.striped_ring_attn:
        parser.error("--zig-zag and --striped-ring-attn: give one of them")
    with tempfile.TemporaryDirectory() as scratch:
        problem, result = options.folder or os.path.join(scratch, "problem"), os.path.join(scratch, "result")
        try:
            truth = problem if options.folder else make_problem(options, problem)
        except model_oracle.Misuse as reason:
            parser.error(str(reason))
        words = ["step", *flags_of(options), problem, result]
        job = subprocess.run(jobs.mpirun(options.world_size, os.path.join(options.build, "10-transformer"),
                                         *map(str, words)), check=False, stdout=subprocess.DEVNULL)
        if job.returncode != 0:
            print("FAILED  the ranks did not come to a result")
            return 1
        paths, worst, wrong = sorted(model_compare.files(truth)), 0.0, []
        if paths != sorted(model_compare.files(result)) or len(paths) < 3:
            wrong.append(f"has {len(model_compare.files(result))} arrays, the truth {len(paths)}")
            paths = []
        for path in paths:
            error = model_compare.error_of(*(np.load(os.path.join(folder, path)) for folder in (truth, result)))
            if isinstance(error, str) or not error <= TOLERANCE:
                wrong.append(f"{path}: {error if isinstance(error, str) else f'error {error:.1e}'}")
            else:
                worst = max(worst, error)
    for text in wrong[:5]:
        print(f"FAILED  {text}")
    if not wrong:
        print(f"logits, loss and {len(paths) - 2} gradients of {options.world_size} ranks are those of one: "
              f"the worst is off by {worst:.1e}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
