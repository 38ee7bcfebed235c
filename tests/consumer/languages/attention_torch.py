"""attention_torch: PyTorch calls libringattn through autograd, and compares with its own attention.

    python3 attention_torch.py                             one process
    torchrun --nproc-per-node 2 attention_torch.py         the sequence in two shards, over gloo
    torchrun --nproc-per-node 2 attention_torch.py --cuda  the same on two GPUs
"""
import os
import sys

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from ring_attention import KEY_SIDE, QUERY_SIDE, Error, Plan
from ring_attention_torch import CudaPlan, Gloo, attention, shard

B, N, H, G, D = 2, 61, 4, 2, 16
MAKE, DEVICE = Plan, "cpu"
if "--cuda" in sys.argv:  # ranks may share a GPU
    MAKE, N, D = CudaPlan, 300, 64
    DEVICE = f"cuda:{int(os.environ.get('LOCAL_RANK', 0)) % torch.cuda.device_count()}"
    torch.cuda.set_device(DEVICE)


class Operations(TorchDispatchMode):
    """Notes what PyTorch does."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names = [*getattr(self, "names", []), str(function)]
        return function(*args, **(kwargs or {}))


def dense(q, k, v, mask, lookback):
    """PyTorch's own attention, causal, of (B, rows, heads, D)."""
    k, v = (x.repeat_interleave(H // G, 2) for x in (k, v))
    see = torch.ones(N, N, dtype=torch.bool, device=q.device).tril().triu(-lookback)
    see = see & mask[:, None, None]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=see).transpose(1, 2)


def apart(x):
    """The same numbers in memory of heads before rows, with NaN between them."""
    room = x.new_full((B, x.shape[2], x.shape[1], 2 * D), torch.nan)
    room.transpose(1, 2)[..., :D] = x
    return room.transpose(1, 2)[..., :D]


def with_gradients(function, inputs, d_out):
    """o, dq, dk and dv."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    o = function(*inputs)
    return [x.detach() for x in (o, *torch.autograd.grad(o, inputs, d_out))]


def compare(ring, dtype, layout, expanded, lookback):
    """The largest errors of this rank's o and gradients, and of PyTorch's in the same type."""
    torch.manual_seed(1)
    inputs = [torch.randn(B, N, heads, D).to(DEVICE, dtype) for heads in (H, G, G)]
    d_out = inputs[0].new_ones(()).expand(B, N, H, D)  # the gradient of o.sum(): strides are 0
    d_out = d_out if expanded else torch.randn(B, N, H, D).to(DEVICE, dtype)
    mask = (torch.rand(B, N) > 0.2).to(DEVICE)
    mask[:, 0] = True
    with MAKE(ring, batch=B, queries=N, heads=H, key_heads=G, dim=D, causal=True, has_mask=True,
              type=str(dtype)[6:], layout=layout, lookback=lookback) as plan:
        q, *keys = (apart(shard(x, plan, side))
                    for x, side in zip(inputs, (QUERY_SIDE, KEY_SIDE, KEY_SIDE)))
        mine = d_out[:, :q.shape[1]] if expanded else apart(shard(d_out, plan, QUERY_SIDE))
        my_mask = shard(mask, plan, KEY_SIDE)
        with Operations() as noted:
            attention(q, *keys, plan, my_mask)
        copies = [name for name in noted.names
                  if name.startswith("aten") and "empty" not in name and "detach" not in name]
        if copies:
            sys.exit(f"more than o and lse is made: {copies}")
        got = with_gradients(lambda *x: attention(*x, plan, my_mask), (q, *keys), mine)
        plan.wait()
        exact = with_gradients(lambda *x: dense(*x, mask, lookback), [x.double() for x in inputs],
                               d_out.double())
        plain = with_gradients(lambda *x: dense(*x, mask, lookback), inputs, d_out)
        sides = QUERY_SIDE, QUERY_SIDE, KEY_SIDE, KEY_SIDE
        return [((x - shard(want, plan, side)).abs().max().item(),
                 (near - want).abs().max().item(), want.abs().max().item())
                for x, want, near, side in zip(got, exact, plain, sides)]


def main():
    """All cases, on each rank."""
    ranks = int(os.environ.get("WORLD_SIZE", 0))  # of torchrun
    if ranks:
        dist.init_process_group("gloo")
    ring = Gloo() if ranks else None
    for dtype in torch.float32, torch.bfloat16, torch.float16:
        for layout in "contiguous", "striped", "zigzag":
            for expanded, lookback in (False, N), (True, 9):
                rounding = torch.finfo(dtype).eps / 2
                for off, plain, most in compare(ring, dtype, layout, expanded, lookback):
                    allowed = 1e-5 if dtype == torch.float32 else 2 * plain + rounding * most
                    if not off <= allowed:
                        sys.exit(f"{dtype}, {layout}, expanded {expanded}, lookback {lookback}: "
                                 f"off by {off}, not {allowed}")
    if ranks > 1:  # what one rank raises ends the calls of the others, with its reason
        try:
            with MAKE(Gloo(), queries=N, dim=D) as plan:
                if dist.get_rank() == 1:
                    raise ValueError("no batch")
                attention(*[torch.zeros(plan.shapes["q"], device=DEVICE)] * 3, plan)
                sys.exit("a rank is missing, and nobody has noticed")
        except (Error, ValueError) as error:
            if "no batch" not in str(error):
                raise
            print(f"ended, as it should be, by rank 1: {error}")
    print("within 1e-5 of PyTorch in float64, and in 16 bits as near as PyTorch")
    if ranks:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
