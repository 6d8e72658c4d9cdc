"""Programmatic dependent launch (PDL): a kernel starts before the one ahead of it in the stream has ended.

A decode step is a chain of some 300 short kernels. Launched as usual, one starts when the last program of the one
ahead has ended. So 300 times processors run dry, and memory is idle until new programs have computed addresses and
their first loads come back. On Hopper and later a kernel may start as soon as every program of the one ahead has
started. It computes its addresses, asks for its first weights, which no kernel writes, and only then waits for the
one ahead to end.

Who starts early must wait before it touches anything else: loads would find what isn't written yet, and stores could
hit what is still being read. To wait for the one ahead is to wait for all, since that one has waited, too.

Source: "Programmatic Dependent Launch and Synchronization" in NVIDIA's CUDA programming guide; FlashInfer and
TensorRT-LLM launch so. Ours hasn't run on a GPU yet, so it's off unless MINILLM_PDL=1 is set: `make gpu-check` has
sections that compare both.
"""

import os

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

from minillm.kernels.triton.gpu import gpu

PREFETCHED_LINES = tl.constexpr(256)
"""Lines of weights, 128 bytes each, that a program asks for while it waits: some 13 MB for an H100's programs
together, where its L2 cache has 50."""


def pdl_options(device: torch.device) -> dict[str, bool]:
    """What a launch is given if its kernel calls `wait_for_previous` first of all."""
    is_asked = os.environ.get("MINILLM_PDL") == "1"
    has_it = device.type != "cpu" and torch.version.hip is None and gpu(device).capability >= 90
    return {"PDL": True, "launch_pdl": True} if is_asked and has_it else {"PDL": False}


@triton.jit
def wait_for_previous(PDL: tl.constexpr):
    """Let the next kernel start, then wait until the one ahead has ended, and what it wrote can be seen."""
    if PDL:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()


@triton.jit
def prefetch(lines, begin, end, STRIDE: tl.constexpr, BLOCKS: tl.constexpr):
    """Ask for lines of memory in the first of the blocks `begin` to `end`, to be in the L2 cache later.

    Args:
        lines: pointers [n] to lines of block 0.
        STRIDE: elements from a block to the next.
        BLOCKS: how many are asked for; past the end, the last one is asked for again.
    """
    block = tl.minimum(begin + tl.arange(0, BLOCKS), end - 1)
    addresses = (lines[:, None] + (block * STRIDE)[None, :]).to(tl.int64)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // $0", "=r,l", [addresses], dtype=tl.int32, is_pure=False, pack=1
    )
