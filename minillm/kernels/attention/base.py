"""What every attention backend gets, and gives. Passed as arguments: there is no global context."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from minillm.core.block_pool import blocks_for
from minillm.host.device import to_device
from minillm.kernels.attention.cache import KVCache
from minillm.kernels.attention.window import Window


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """One step's ragged batch. Its T tokens are the sequences' new tokens, one after the other.

    Sequences that compute a single token (decode) come first, then the rest.

    Lengths are here twice: as Python numbers, for backends that plan with them on the host, and as
    tensors, for kernels. A CUDA graph repeats what the host planned when it was captured, so a backend
    that can be captured (`capturable`) must read lengths from the tensors only.
    """

    query_starts: list[int]
    """[B + 1] sequence b owns rows query_starts[b] : query_starts[b + 1]"""
    context_lens: list[int]
    """[B] tokens in the cache after this step's keys and values are written"""
    query_starts_tensor: Tensor
    """[B + 1] int32, the same on the device"""
    context_lens_tensor: Tensor
    """[B] int32, the same on the device"""
    block_tables: Tensor
    """[B, max_blocks] int32: block of position p of sequence b is [b, p // block_size]; padded with the
    null block, which belongs to no sequence"""
    slot_mapping: Tensor
    """[T] int64: where each new token's key and value go: block * block_size + offset"""
    num_decodes: int
    """the first this many sequences have exactly one new token"""
    block_size: int
    window: int | None = None
    """Sliding window: a token sees itself and the window - 1 tokens before it. None = all before it. Blocks that no
    new token sees into are the null block in its table."""
    sinks: int = 0
    """How many of its sequence's first tokens a token sees besides its window."""

    @property
    def max_query_len(self) -> int:
        """Most new tokens any sequence has."""
        return max(end - start for start, end in zip(self.query_starts, self.query_starts[1:]))

    def live_blocks(self, b: int) -> list[int]:
        """Which blocks of sequence b, counted from its first, hold keys that its new tokens see."""
        position = self.context_lens[b] - (self.query_starts[b + 1] - self.query_starts[b])
        return Window(self.window, self.sinks).live_blocks(position, self.context_lens[b], self.block_size)

    def context(self, b: int) -> tuple[Tensor, Tensor]:
        """The blocks in which sequence b's new tokens see keys, and the positions in it of the tokens they hold."""
        context_len, device = self.context_lens[b], self.block_tables.device
        if self.window is None:
            blocks = self.block_tables[b, : blocks_for(context_len, self.block_size)]
            return blocks, torch.arange(context_len, device=device)
        live = np.array(self.live_blocks(b))
        positions = (live[:, None] * self.block_size + np.arange(self.block_size)).reshape(-1)
        num_keys = len(positions) - -context_len % self.block_size  # the last block may not be full
        return self.block_tables[b, to_device(live, device)], to_device(positions[:num_keys], device)


class AttentionFn(Protocol):
    """What a layer calls: attention, made for one step."""

    def attend(self, query: Tensor, kv_cache: KVCache, scale: float) -> Tensor:
        """See :class:`AttentionBackend`."""
        ...


class AttentionBackend(ABC):
    """Causal attention of one step's T new tokens over the paged cache.

    A backend is a class. Made once a step from the metadata, it prepares what all layers share (page
    lists, masks); then every layer calls `attend`. By then the step's keys and values are in the cache,
    of all sequences: one may read blocks that another one fills in the very same step.
    """

    block_size: ClassVar[int] = 16
    """Tokens per KV block where the configuration does not say."""
    block_size_step: ClassVar[int] = 1
    """It works with block sizes that are multiples of this."""
    capturable: ClassVar[bool] = False
    """Its launches depend on shapes only, so a CUDA graph of it is right for any lengths."""
    device_types: ClassVar[tuple[str, ...]] = ("cpu", "cuda")
    dtypes: ClassVar[tuple[torch.dtype, ...] | None] = None
    """Dtypes of model and cache that it computes in; None = any."""
    quantized_caches: ClassVar[tuple[torch.dtype, ...]] = ()
    """Dtypes of a quantized cache that it reads."""
    gathers: ClassVar[bool] = False
    """It copies the contexts of a step out of their blocks, layer by layer."""
    warm_up_steps: ClassVar[tuple[tuple[int, int], ...]] = ((128, 128), (128, 1))
    """(context, new tokens in it) of prompts that use all kernels there are to compile, each beside a decode."""
    sees_sinks: ClassVar[bool] = False
    """It has attention sinks. A sliding window they all have."""

    def __init__(self, metadata: AttentionMetadata) -> None:
        self.metadata = metadata

    @abstractmethod
    def attend(self, query: Tensor, kv_cache: KVCache, scale: float) -> Tensor:
        """Attend.

        Args:
            query: [T, n_heads, d], rotated.
            kv_cache: [num_blocks, block_size, 2, n_kv_heads, d]
        Returns:
            [T, n_heads, d], in the query's dtype.
        """

    @classmethod
    def missing(cls, device: torch.device) -> str | None:
        """Why it cannot run on this device, and what to do about it; None if it can."""
        if device.type not in cls.device_types:
            return f"it runs on {' and '.join(cls.device_types)}, not on {device.type}"
        return None

    @classmethod
    def head_dims(cls) -> tuple[int, ...] | None:
        """Head sizes d that it has kernels for; None = any, or it doesn't say. Asked only if nothing is `missing`."""
        return None
