"""torch_on_host: CudaPlan of ring_attention_torch.py on the stand-in for a GPU, which any machine has.

    python3 -m torch.distributed.run --nproc-per-node 2 tests/torch_on_host.py FOLDER [TRANSPORT]

FOLDER has libringattn.so, and the stand-in as cuda/on-host/libringattn_cuda.so. To that GPU all memory of the host
is its own, so tensors lie there, and what they are given to is attention_torch.py, unchanged.
"""
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

STREAMS = []
FOLDER, TRANSPORT = Path(sys.argv[1]), (sys.argv[2:] or ["peer_copies"])[0]
os.environ.update(RA_LIB=str(FOLDER), ON_HOST_PAGEABLE="1")
sys.path.insert(0, "tests/consumer/languages")
import attention_torch
import ring_attention_torch
import torch


class OnHost(ring_attention_torch.CudaPlan):
    """A plan on the stand-in, whose tensors PyTorch does not know as a GPU's."""

    def __init__(self, ring=None, **config):
        with mock.patch.dict(os.environ, RA_LIB=str(FOLDER / "cuda/on-host")):
            super().__init__(ring, transport=TRANSPORT, **config)
        self.refuses()
        self.place = "cpu"
        if ring and ring.size > 1 and TRANSPORT.replace("_", " ") not in self.describe():
            sys.exit(f"messages do not pass by {TRANSPORT}: {self.describe()}")

    def refuses(self):
        """A tensor that is not where the plan computes."""
        x = torch.zeros(self.shapes["q"], dtype=torch.bfloat16)
        try:
            ring_attention_torch.attention(x, x, x, self)
            sys.exit("a tensor of the host is taken")
        except ValueError as error:
            if "q is bfloat16" not in str(error) or "on cuda:3" not in str(error):
                raise

    def call(self, which, **arrays):
        STREAMS.clear()
        super().call(which, **arrays)
        if STREAMS != [self.place]:
            sys.exit("the current stream was not asked for")
        self.wait()  # PyTorch reads the results in no order of a stream


def current_stream(device):
    """The default one, to the stand-in."""
    STREAMS.append(device)
    return SimpleNamespace(cuda_stream=0)


attention_torch.MAKE = OnHost
with (mock.patch("torch.cuda.current_device", lambda: 3),
      mock.patch("torch.cuda.current_stream", current_stream)):
    attention_torch.main()
