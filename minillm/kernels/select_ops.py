"""How the small operations are done: fused, where that is possible and wanted."""

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

from minillm.kernels.cpu import native_kernels
from minillm.kernels.cpu.ops import NativeOps
from minillm.kernels.ops import Ops


def select_ops(fused: bool, device: torch.device, kv_dtype: torch.dtype, activation_dtype: torch.dtype) -> Ops:
    """Triton's on a GPU, our C++ on a CPU; PyTorch's if those are not there, or `fused` is off.

    Args:
        kv_dtype: the KV cache's. In float32 a CPU computes as Hugging Face does, operation by operation, so
            that tokens can be compared.
        activation_dtype: the C++ handles float32 rows and nothing else.
    """
    if fused and device.type == "cuda" and importlib.util.find_spec("triton"):
        from minillm.kernels.triton.ops import TritonOps

        return TritonOps()
    suits = device.type == "cpu" and kv_dtype in (torch.bfloat16, torch.int8) and activation_dtype == torch.float32
    if fused and suits and (kernels := native_kernels()) is not None:
        return NativeOps(kernels)
    return Ops()


def select_draw_wide(device: torch.device) -> Callable[..., Tensor] | None:
    """What draws from a nucleus of any width without being told how wide; None = the device has to be asked."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    from minillm.kernels.triton.nucleus import draw_wide

    return draw_wide
