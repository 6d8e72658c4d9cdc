"""Which attention backend runs, and why."""

from dataclasses import dataclass

import torch

from minillm.attention.base import AttentionBackend
from minillm.attention.eager import EagerAttention
from minillm.attention.flash import FlashAttention2, FlashAttention3, TorchVarlenAttention
from minillm.attention.sdpa import SDPAAttention
from minillm.attention.triton_paged import TritonAttention
from minillm.errors import ConfigError

BACKENDS: dict[str, type[AttentionBackend]] = {
    "fa3": FlashAttention3,
    "triton": TritonAttention,
    "fa2": FlashAttention2,
    "torch_varlen": TorchVarlenAttention,
    "sdpa": SDPAAttention,
    "eager": EagerAttention,
}
PREFERENCE = {"cuda": ("fa3", "triton", "sdpa"), "cpu": ("sdpa",)}
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


def select_backend(name: str, device: torch.device, block_size: int | None = None) -> type[AttentionBackend]:
    """The backend called `name` in EngineConfig.attention_backend; auto = the fastest that can run here.

    Args:
        block_size: tokens per KV block, if the configuration says so; None = whatever the backend likes.
    Raises:
        ConfigError: it cannot run on this device, or not with these blocks.
    """
    if name == "auto":
        candidates = [BACKENDS[candidate] for candidate in PREFERENCE[device.type]]
        return next(backend for backend in candidates if not backend.missing(device) and _fits(backend, block_size))
    backend = BACKENDS[name]
    if reason := backend.missing(device):
        raise ConfigError(f"attention_backend={name!r} cannot run here: {reason}")
    if not _fits(backend, block_size):
        raise ConfigError(
            f"attention_backend={name!r} needs a block_size that is a multiple of {backend.block_size_step}, "
            f"and it is {block_size}: leave block_size out, or choose another backend"
        )
    return backend


def _fits(backend: type[AttentionBackend], block_size: int | None) -> bool:
    return block_size is None or block_size % backend.block_size_step == 0
