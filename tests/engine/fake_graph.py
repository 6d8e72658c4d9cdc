"""What tests put in the place of CUDA graphs, and an attention backend that can be captured, without a GPU."""

from collections.abc import Callable

import torch
from torch import Tensor

from minillm.kernels.attention.base import AttentionBackend
from minillm.kernels.attention.eager import attend


class FakeGraph:
    """Replays by running the captured work again, into the same memory, as a graph would.

    What the host decided while capturing stays decided: `work` closes over it.
    """

    def __init__(self) -> None:
        self.num_replays = 0

    def capture(self, work: Callable[[], object]) -> "FakeGraph":
        self.work = work
        work()
        return self

    def replay(self) -> None:
        self.num_replays += 1
        self.work()


class TensorLengthAttention(AttentionBackend):
    """The textbook, but for lengths it looks at the tensors only, and at nothing the host knows."""

    capturable = True

    def attend(self, query: Tensor, kv_cache: Tensor, scale: float) -> Tensor:
        metadata, output = self.metadata, torch.empty_like(query)
        starts, lens = metadata.query_starts_tensor.tolist(), metadata.context_lens_tensor.tolist()
        for b, context_len in enumerate(lens):
            context = kv_cache[metadata.block_tables[b]].flatten(0, 1)[:context_len].to(query.dtype)
            rows = slice(starts[b], starts[b + 1])
            output[rows] = attend(query[rows], *context.unbind(1), scale)
        return output


class HostLengthAttention(TensorLengthAttention):
    """The bug: it plans with the lengths that the host knew while capturing."""

    def attend(self, query: Tensor, kv_cache: Tensor, scale: float) -> Tensor:
        self.metadata.context_lens_tensor.copy_(torch.tensor(self.metadata.context_lens))
        return super().attend(query, kv_cache, scale)
