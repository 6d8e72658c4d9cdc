"""Which attention backend runs, and why."""

from dataclasses import dataclass

import torch

from minillm.attention.base import AttentionBackend
from minillm.attention.eager import EagerAttention
from minillm.attention.flash import FlashAttention2, FlashAttention3, TorchVarlenAttention
from minillm.attention.native import NativeAttention
from minillm.attention.sdpa import SDPAAttention
from minillm.attention.triton_paged import TritonAttention
from minillm.errors import ConfigError

BACKENDS: dict[str, type[AttentionBackend]] = {
    "fa3": FlashAttention3,
    "triton": TritonAttention,
    "fa2": FlashAttention2,
    "torch_varlen": TorchVarlenAttention,
    "native": NativeAttention,
    "sdpa": SDPAAttention,
    "eager": EagerAttention,
}
PREFERENCE = {"cuda": ("triton", "fa3", "sdpa"), "cpu": ("native", "sdpa")}
"""auto takes the first of these that can run. FlashAttention-2's large pages (256 tokens) waste KV memory
and prefix hits, so it is there to be compared with, not chosen."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend, and what speaks against it on this device."""

    name: str
    missing: str | None
    """None = it can run"""


def survey(device: torch.device) -> list[Choice]:
    """Every backend, and whether it can run on `device`. For `minillm doctor` and the benchmarks."""
    return [Choice(name, backend.missing(device)) for name, backend in BACKENDS.items()]


def select_backend(
    name: str, device: torch.device, block_size: int | None = None, dtype: torch.dtype | None = None
) -> type[AttentionBackend]:
    """The backend called `name` in EngineConfig.attention_backend; auto = the fastest that can run here.

    Args:
        block_size: tokens per KV block, if the configuration says so; None = whatever the backend likes.
        dtype: of the model, if known.
    Raises:
        ConfigError: it cannot run on this device, or not with these blocks or this dtype.
    """
    if name == "auto":
        candidates = [BACKENDS[candidate] for candidate in PREFERENCE.get(device.type, ("sdpa",))]
        # The last candidate, sdpa, has no wishes: one is always found.
        return next(backend for backend in candidates if not _objection(backend, device, block_size, dtype))
    if objection := _objection(BACKENDS[name], device, block_size, dtype):
        raise ConfigError(f"attention_backend={name!r} cannot run here: {objection}")
    return BACKENDS[name]


def _objection(
    backend: type[AttentionBackend], device: torch.device, block_size: int | None, dtype: torch.dtype | None
) -> str | None:
    if reason := backend.missing(device):
        return reason
    if block_size is not None and block_size % backend.block_size_step:
        return (
            f"block_size is {block_size} and it needs a multiple of {backend.block_size_step}: "
            "leave block_size out, or choose another backend"
        )
    if dtype is not None and backend.dtypes is not None and dtype not in backend.dtypes:
        return f"it has no kernels for {dtype}: choose another dtype, or another backend"
    return None
