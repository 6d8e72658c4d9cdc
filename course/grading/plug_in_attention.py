"""A learner's paged attention inside the real engine: every layer of every step asks it (exercise paged-attention)."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course.grading.blame import shown
from course.grading.plug_in_guard import FallbackGuard
from minillm.kernels.attention.base import AttentionBackend, AttentionMetadata
from minillm.kernels.attention.cache import KVCache, gather_blocks
from minillm.runner.torch_runner import TorchRunner

PagedAttention = Callable[..., Any]
"""(query, key_cache, value_cache, block_tables, context_lens, query_lens) -> [T, n_heads, d], in NumPy."""


class OwnAttention(AttentionBackend):
    """One step's attention by a learner's function. It gets the blocks that the step's tables name, renumbered: the
    whole cache would have to be copied for NumPy.

    Args:
        ours: the engine's own, which takes over.
    """

    def __init__(self, attend: PagedAttention, guard: FallbackGuard, ours: AttentionBackend) -> None:
        super().__init__(ours.metadata)
        self._theirs, self._guard, self._ours = attend, guard, ours
        self._blocks, tables = torch.unique(self.metadata.block_tables, return_inverse=True)
        self._tables = tables.cpu().numpy()

    def attend(self, query: Tensor, kv_cache: KVCache, scale: float) -> Tensor:
        return self._guard.call(lambda: self._asked(query, kv_cache), lambda: self._ours.attend(query, kv_cache, scale))

    def _asked(self, query: Tensor, kv_cache: KVCache) -> Tensor:
        if self.metadata.window is not None:
            raise ValueError("it knows no sliding window")
        pages = gather_blocks(kv_cache, self._blocks, torch.float32).cpu().numpy()
        keys, values = np.moveaxis(pages, 2, 0)
        found = self._theirs(
            query.float().cpu().numpy(),
            np.ascontiguousarray(keys),
            np.ascontiguousarray(values),
            self._tables.copy(),
            np.array(self.metadata.context_lens),
            np.diff(self.metadata.query_starts),
        )
        output = np.asarray(found, dtype=np.float32)
        if output.shape != tuple(query.shape):
            raise ValueError(f"its result has shape {shown(output.shape)}, not {tuple(query.shape)}")
        if not np.isfinite(output).all():
            raise ValueError("its result is not finite: was a slot read that was never written?")
        return torch.from_numpy(output).to(query)


def attend_with(runner: TorchRunner, attend: PagedAttention, guard: FallbackGuard) -> None:
    """Let a runner's steps use a learner's attention, which is never part of a recorded step."""
    ours = runner.attention

    def of_step(metadata: AttentionMetadata) -> AttentionBackend:
        return OwnAttention(attend, guard, ours(metadata))

    runner.attention = of_step
    runner.fast_decode = None
