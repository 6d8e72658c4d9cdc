"""Which attention backend runs, and why."""

from dataclasses import dataclass, replace

import torch

from minillm.core.errors import ConfigError
from minillm.kernels.attention.base import AttentionBackend, AttentionMetadata
from minillm.kernels.attention.eager import EagerAttention
from minillm.kernels.attention.flash import FlashAttention2, FlashAttention3
from minillm.kernels.attention.hopper import HopperAttention
from minillm.kernels.attention.native import NativeAttention
from minillm.kernels.attention.sdpa import SDPAAttention
from minillm.kernels.attention.window import Window
from minillm.kernels.quantization import dtype_name
from minillm.kernels.triton.attention import TritonAttention

BACKENDS: dict[str, type[AttentionBackend]] = {
    "hopper": HopperAttention,
    "fa3": FlashAttention3,
    "triton": TritonAttention,
    "fa2": FlashAttention2,
    "native": NativeAttention,
    "sdpa": SDPAAttention,
    "eager": EagerAttention,
}
PREFERENCE = {"cuda": ("hopper", "triton", "sdpa"), "cpu": ("native", "sdpa")}
"""auto takes the first of these that can run. FlashAttention-2's large pages (256 tokens) waste KV memory and prefix
hits, so it is there to be compared with, not chosen."""


@dataclass(frozen=True, slots=True)
class Demands:
    """What a configuration wants of a backend."""

    block_size: int | None = None
    """Tokens per KV block; None = whatever the backend likes."""
    dtype: torch.dtype | None = None
    """The model's dtype, if known."""
    kv_dtype: torch.dtype | None = None
    """Dtype of a quantized KV cache; None = the model's."""
    sinks: bool = False
    """Attention sinks."""
    head_dim: int | None = None
    """The model's head size d, if known."""


def survey(device: torch.device, demands: Demands = Demands()) -> dict[str, str | None]:
    """What speaks against each backend on `device`; None = it can run. For `minillm doctor` and the benchmarks."""
    return {name: _objection(backend, device, demands) for name, backend in BACKENDS.items()}


def select_backend(name: str, device: torch.device, demands: Demands = Demands()) -> type[AttentionBackend]:
    """The backend called `name` in EngineConfig.attention_backend; auto = the first of PREFERENCE that can run here.

    Raises:
        ConfigError: it cannot run on this device, or cannot do what is demanded.
    """
    if name == "auto":
        candidates = [BACKENDS[candidate] for candidate in PREFERENCE[device.type]]
        # The last candidate, sdpa, can do everything: one is always found.
        return next(backend for backend in candidates if not _objection(backend, device, demands))
    if objection := _objection(BACKENDS[name], device, demands):
        raise ConfigError(f"attention_backend={name!r} cannot run here: {objection}")
    return BACKENDS[name]


def with_window(backend: type[AttentionBackend], window: Window) -> type[AttentionBackend]:
    """The backend, changed so that tokens see a window only; itself if there is none."""
    if window.size is None:
        return backend

    class Windowed(backend):  # type: ignore[misc, valid-type]  # a class that is an argument
        def __init__(self, metadata: AttentionMetadata) -> None:
            super().__init__(replace(metadata, window=window.size, sinks=window.sinks))

    Windowed.__name__ = backend.__name__
    return Windowed


def _objection(backend: type[AttentionBackend], device: torch.device, demands: Demands) -> str | None:
    block_size, dtype, kv_dtype = demands.block_size, demands.dtype, demands.kv_dtype
    if reason := backend.missing(device):
        return reason
    if block_size is not None and block_size % backend.block_size_step:
        return (
            f"block_size is {block_size} and it needs a multiple of {backend.block_size_step}: "
            "leave block_size out, or choose another backend"
        )
    if kv_dtype is not None and kv_dtype not in backend.quantized_caches:
        return (
            f"it does not read a KV cache in {dtype_name(kv_dtype)}: choose one that does "
            f"({', '.join(name for name, other in BACKENDS.items() if kv_dtype in other.quantized_caches)}), "
            'or kv_cache_dtype="auto"'
        )
    if demands.sinks and not backend.sees_sinks:
        return (
            "it has a window, but no attention sinks: set attention_sinks=0, or choose one that has "
            f"({', '.join(name for name, other in BACKENDS.items() if other.sees_sinks)})"
        )
    if kv_dtype is None and dtype is not None and backend.dtypes is not None and dtype not in backend.dtypes:
        return f"it has no kernels for {dtype}: choose another dtype, or another backend"
    if demands.head_dim is not None and (built := backend.head_dims()) is not None and demands.head_dim not in built:
        sizes = " and ".join(map(str, built))
        return f"it was built for heads of {sizes}, and the model's have {demands.head_dim}: choose another backend"
    return None
