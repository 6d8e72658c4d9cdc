"""How the small operations are done: fused, where that is possible and wanted."""

import importlib.util

import torch

from minillm.models.ops import Ops


def select_ops(fused: bool, device: torch.device) -> Ops:
    """Triton's on a GPU, unless `fused` is off or Triton is not there."""
    if fused and device.type == "cuda" and importlib.util.find_spec("triton"):
        from minillm.models.triton_ops import TritonOps

        return TritonOps()
    return Ops()
