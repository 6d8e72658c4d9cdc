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


def select_likeliest(device: torch.device) -> Callable[[Tensor], Tensor]:
    """What finds each row's likeliest token."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return likeliest
    from minillm.kernels.triton import likeliest as on_gpu

    return on_gpu.likeliest


def likeliest(logits: Tensor) -> Tensor:
    """[R] int64: the id of the largest of each row of logits [R, V], the first of equal ones; -1 where a logit is NaN,
    or the largest one infinite."""
    # max() gives the largest logit along with its token, and hands NaN on, so the check costs nothing.
    largest, token_ids = logits.max(dim=-1)
    return torch.where(largest.isfinite(), token_ids, -1)


def select_draw_wide(device: torch.device) -> Callable[..., Tensor] | None:
    """What draws from a nucleus of any width without being told how wide; None = the device has to be asked."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    from minillm.kernels.triton.nucleus import draw_wide

    return draw_wide
