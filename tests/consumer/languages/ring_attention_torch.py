"""ring_attention_torch: attention for PyTorch on the host, by libringattn. Copy this file and
ring_attention.py.

    dist.init_process_group("gloo")
    with Plan(Gloo(), queries=4096, heads=8, dim=64, causal=True, layout="zigzag") as plan:
        sides = QUERY_SIDE, KEY_SIDE, KEY_SIDE
        q, k, v = (shard(x, plan, side) for x, side in zip((q, k, v), sides))
        attention(q, k, v, plan).sum().backward()

Plan(queries=4096, ...) is for one process. Tensors are (B, rows, heads, D) of any strides, as long
as the D numbers of a head lie side by side. Those of scaled_dot_product_attention need a
transpose(1, 2).
"""
import os
import time
from collections import Counter

import torch
import torch.distributed as dist

from ring_attention import Link, lib


class Attention(torch.autograd.Function):
    """o and lse. The library reads q, k and v where they lie: they are not copied."""

    @staticmethod
    def forward(ctx, q, k, v, mask, plan):
        o = torch.empty((*q.shape[:3], v.shape[3]), dtype=q.dtype)
        lse = torch.empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)
        plan.call(lib.ra_forward, q=q, k=k, v=v, mask=mask, o=o, lse=lse)
        ctx.save_for_backward(q, k, v, mask, o, lse)
        ctx.plan = plan
        ctx.mark_non_differentiable(lse)
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_out, _):
        q, k, v, mask, o, lse = ctx.saved_tensors
        if d_out.stride(3) != 1:  # expanded, say, by sum()
            d_out = d_out.contiguous()
        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype) for x in (q, k, v))
        ctx.plan.call(lib.ra_backward, q=q, k=k, v=v, mask=mask, o=o, lse=lse, d_out=d_out,
                      dq=dq, dk=dk, dv=dv)
        return dq, dk, dv, None, None


def attention(q, k, v, plan, mask=None):
    """o of this rank's rows. All ranks call it together, and their backward passes, too."""
    return Attention.apply(q, k, v, mask, plan)[0]


def shard(whole, plan, side):
    """This rank's rows of a tensor (B, rows, ...) that every rank has; differentiable."""
    return whole[:, torch.from_numpy(plan.positions(side))]


class Gloo(Link):
    """The processes of torch.distributed as a ring. All call it; those of `ranks` are in it."""

    def __init__(self, ranks=None):
        self.group = dist.new_group(ranks, backend="gloo")  # its messages never meet yours
        self.store, self.begun = self.group.get_group_store(), Counter()
        super().__init__(dist.get_rank(self.group), dist.get_world_size(self.group),
                         int(os.environ.get("LOCAL_WORLD_SIZE", 0)))

    def send(self, message, peer, data):
        return self.pass_on(dist.isend, message, peer, data)

    def receive(self, message, peer, data):
        return self.pass_on(dist.irecv, message, peer, data)

    def pass_on(self, begin, message, peer, data):
        """Begins a message. A wait of Gloo cannot be ended, so the two ranks first tell each other
        through the store that they have begun: after that the wait is short."""
        self.begun[begin, message, peer] += 1
        key = f"{message} {self.begun[begin, message, peer]} "
        ways = f"{self.rank} to {peer}", f"{peer} to {self.rank}"
        key += ways[begin is dist.irecv]
        work = begin(torch.frombuffer(data, dtype=torch.uint8),
                     dist.get_global_rank(self.group, peer), self.group, message)
        self.store.set(f"{key}: {self.rank}", "")

        def done(seconds):
            until = time.monotonic() + seconds
            while not self.store.check([f"{key}: {peer}"]):
                if time.monotonic() > until:
                    return False
                time.sleep(1e-4)
            self.store.delete_key(f"{key}: {peer}")
            work.wait()
            return True
        return done

    def tell(self, reason):
        self.store.set("failed", reason)

    def told(self):
        return self.store.get("failed").decode() if self.store.check(["failed"]) else ""
