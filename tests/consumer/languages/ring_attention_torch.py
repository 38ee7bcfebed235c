"""ring_attention_torch: attention for PyTorch by libringattn, on the host and on GPUs. Copy this
file and ring_attention.py.

    dist.init_process_group("gloo")
    with Plan(Gloo(), queries=4096, heads=8, dim=64, causal=True, layout="zigzag") as plan:
        sides = QUERY_SIDE, KEY_SIDE, KEY_SIDE
        q, k, v = (shard(x, plan, side) for x, side in zip((q, k, v), sides))
        attention(q, k, v, plan).sum().backward()

Plan(queries=4096, ...) is for one process, and CudaPlan in the place of Plan for tensors on GPUs.
Tensors are (B, rows, heads, D) of any strides, as long as the D numbers of a head lie side by side.
Those of scaled_dot_product_attention need a transpose(1, 2).
"""
import os
import time
from collections import Counter

import torch
import torch.distributed as dist

from ring_attention import Link, Plan, c_int, c_void_p, load


class CudaPlan(Plan):
    """A Plan on the GPU that is the current one when it is made, after torch.cuda.set_device. Calls
    are enqueued on the current stream, where the tensors' other work is: they are used in its order
    and may be freed at once. The next call, or wait(), raises what came of the last one. Memory of
    the plan is beside that of PyTorch's allocator. No call can be captured into a CUDA graph."""

    def __init__(self, ring=None, **config):
        cuda = load("ringattn_cuda", ra_cuda=(c_void_p,), **{
            f"ra_cuda_{name}": (c_int, c_void_p, c_void_p, c_void_p) for name in self.passes})
        self.passes = {name: getattr(cuda, f"ra_cuda_{name}") for name in self.passes}
        self.place = f"cuda:{torch.cuda.current_device()}"
        super().__init__(ring, cuda.ra_cuda(), **config)

    def stream(self):
        return (torch.cuda.current_stream(self.place).cuda_stream,)


class Attention(torch.autograd.Function):
    """o and lse. The library reads q, k and v where they lie: they are not copied."""

    @staticmethod
    def forward(ctx, q, k, v, mask, plan):
        o = q.new_empty((*q.shape[:3], v.shape[3]))
        lse = q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)
        plan.call("forward", q=q, k=k, v=v, mask=mask, o=o, lse=lse)
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
        dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
        ctx.plan.call("backward", q=q, k=k, v=v, mask=mask, o=o, lse=lse, d_out=d_out,
                      dq=dq, dk=dk, dv=dv)
        return dq, dk, dv, None, None


def attention(q, k, v, plan, mask=None):
    """o of this rank's rows. All ranks call it together, and their backward passes, too."""
    return Attention.apply(q, k, v, mask, plan)[0]


def shard(whole, plan, side):
    """This rank's rows of a tensor (B, rows, ...) that every rank has; differentiable."""
    return whole[:, torch.from_numpy(plan.positions(side))]


class Gloo(Link):
    """The processes of torch.distributed as a ring. All call it; those of `ranks` are in it. Where
    GPUs reach each other's memory, rows do not come by here: what ranks agree on does, a few bytes
    for each call, which go through the store."""

    SMALL = 4096  # bytes of a message that goes through the store, at most

    def __init__(self, ranks=None):
        self.group = dist.new_group(ranks, backend="gloo")  # its messages never meet yours
        self.store, self.begun = self.group.get_group_store(), Counter()
        super().__init__(dist.get_rank(self.group), dist.get_world_size(self.group),
                         int(os.environ.get("LOCAL_WORLD_SIZE", 0)))

    def send(self, message, peer, data):
        key = self.key(message, self.rank, peer)
        if len(data) > self.SMALL:
            return self.pass_on(dist.isend, message, peer, data, key)
        return self.store.set(key, bytes(data))

    def receive(self, message, peer, data):
        key = self.key(message, peer, self.rank)
        if len(data) > self.SMALL:
            return self.pass_on(dist.irecv, message, peer, data, key)

        def done(seconds):
            came = self.take(key, seconds)
            if came is not None:
                data[:] = came
            return came is not None
        return done

    def key(self, message, sender, receiver):
        """The name of the next message of this kind between the two."""
        self.begun[message, sender, receiver] += 1
        return f"{message} {self.begun[message, sender, receiver]} {sender} to {receiver}"

    def pass_on(self, begin, message, peer, data, key):
        """Begins a message. A wait of Gloo cannot be ended, so the two ranks first tell each other
        through the store that they have begun: after that the wait is short."""
        work = begin(torch.frombuffer(data, dtype=torch.uint8),
                     dist.get_global_rank(self.group, peer), self.group, message)
        self.store.set(f"{key}: {self.rank}", "")

        def done(seconds):
            came = self.take(f"{key}: {peer}", seconds)
            if came is not None:
                work.wait()
            return came is not None
        return done

    def take(self, key, seconds):
        """What is in the store under this name, which is then free; None if it does not come."""
        until = time.monotonic() + seconds
        while not self.store.check([key]):
            if time.monotonic() > until:
                return None
            time.sleep(1e-4)
        came = self.store.get(key)
        self.store.delete_key(key)
        return came

    def tell(self, reason):
        self.store.set("failed", reason)

    def told(self):
        return self.store.get("failed").decode() if self.store.check(["failed"]) else ""
