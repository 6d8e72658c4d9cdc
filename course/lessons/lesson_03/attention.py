"""One layer's attention over a whole prompt, textbook and fused, as the engine calls it: seconds and peak memory."""

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course.lab.lab import Lab
from course.lessons.lesson_03 import traffic
from course.lessons.lesson_03.costs import lab_shape
from course.measure.attention_shapes import HeadShape, PreparedAttention, Shape, make_cache, make_metadata
from minillm.core.brief import brief
from minillm.host.timing import seconds_per_call
from minillm.kernels.attention.select import BACKENDS
from minillm.model.config import ModelConfig

TEXTBOOK, FUSED = "textbook", "fused"
BACKEND_OF = {TEXTBOOK: "eager", FUSED: "sdpa"}
"""As EngineConfig.attention_backend calls them. sdpa is PyTorch's own fused kernel: there is one on every device."""
BLOCK_SIZE = 16
ROUNDS = 5
MAX_SCORE_BYTES = 8e9
"""Textbook attention with larger score matrices is not tried."""
ALLOCATOR_BYTES = 30 * 2**20
"""Until glibc has freed a block of nearly 32 MiB, it gives smaller ones back to the system at once, and each call pays
for its pages anew: 512 tokens then take longer than 1024."""


@dataclass(frozen=True)
class Point:
    """One prompt length, both ways, one layer."""

    tokens: int
    seconds: dict[str, float]
    """Of the fastest call: whatever disturbs a machine can only slow it down."""
    peak: dict[str, int]
    """Most bytes of tensors that existed at once inside the call, over what was there before."""
    difference: float
    """Largest deviation of fused from textbook, relative to the largest output."""

    __repr__ = brief

    @property
    def speedup(self) -> float:
        return self.seconds[TEXTBOOK] / self.seconds[FUSED]

    @property
    def memory(self) -> float:
        """Fused over textbook."""
        return self.peak[FUSED] / self.peak[TEXTBOOK]


class PeakBytes(TorchDispatchMode):
    """Counts the bytes of tensors made inside it that live at the same time. A kernel's own scratch is not a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen = weakref.WeakSet[Any]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for given in tree_leaves((args, kwargs)):  # what was there before costs nothing
            if isinstance(given, Tensor) and given.untyped_storage() not in self._seen:
                self._seen.add(given.untyped_storage())
        for made in tree_leaves(result):
            if isinstance(made, Tensor) and made.untyped_storage() not in self._seen:
                self._count(made.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        self._seen.add(storage)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, size)

    def _freed(self, size: int) -> None:
        self.now -= size


@torch.inference_mode()
def measure(config: ModelConfig, tokens: int, device: torch.device, rounds: int = ROUNDS) -> Point:
    """Both ways on one prompt, taking turns. In float32 on a CPU, so that nothing differs but the algorithm."""
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    heads = HeadShape(config.num_heads, config.num_kv_heads, config.head_dim)
    shape = Shape("prefill", 1, tokens, 0)
    metadata = make_metadata(shape, BLOCK_SIZE, device)
    cache = make_cache(shape, heads, BLOCK_SIZE, dtype, device, seed=1)
    generator = torch.Generator(device).manual_seed(2)
    query = torch.randn(tokens, heads.num_heads, heads.head_dim, generator=generator, device=device, dtype=dtype)
    ways = {name: PreparedAttention(BACKENDS[backend], metadata, query) for name, backend in BACKEND_OF.items()}
    outputs = {name: way(cache).float() for name, way in ways.items()}  # and warms up
    largest = outputs[TEXTBOOK].abs().max()
    difference = ((outputs[FUSED] - outputs[TEXTBOOK]).abs().max() / largest).item()
    del outputs
    peak = {}
    for name, way in ways.items():
        with PeakBytes() as counted:
            way(cache)
        peak[name] = counted.peak
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            seconds[name].append(seconds_per_call(lambda way=way: way(cache), device))
    return Point(tokens, {name: min(taken) for name, taken in seconds.items()}, peak, difference)


def compare(lab: Lab) -> list[Point]:
    """A point for each length of the ladder but the shortest; one step beyond the ladder where it is whole."""
    config, device = lab_shape(lab), torch.device(traffic.device(lab))
    torch.empty(ALLOCATOR_BYTES, dtype=torch.uint8)
    ladder = traffic.lengths(lab)
    lengths = (*ladder[1:], *((2 * ladder[-1],) if lab.scale == 1 else ()))
    small_enough = (tokens for tokens in lengths if tokens * tokens * config.num_heads * 4 <= MAX_SCORE_BYTES)
    return [measure(config, tokens, device) for tokens in small_enough]
