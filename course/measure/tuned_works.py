"""What `tune_kernels` measures: one row in 16 bits, products with few bits, decodes over a KV cache in 8 bits, and a
mixture of experts.

Each is a `Work`: its tensors, what it must compute, what is in use now, and what else could do it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course.measure.row_kernel import NormBefore, RowTile, product_of_row
from minillm.kernels.attention.base import AttentionMetadata
from minillm.kernels.attention.cache import QUANTIZED_DTYPES, SCALE_DTYPE, QuantizedKV
from minillm.kernels.ops import Ops, StackedExperts
from minillm.kernels.quantization import FP8, dequantize, dequantize_int4, quantize, quantize_int4, quantize_rows
from minillm.kernels.triton import experts, few_rows, fp8_rows, fragments
from minillm.kernels.triton import likeliest as on_gpu
from minillm.kernels.triton.attention import Launch
from minillm.kernels.triton.counters import counters_for
from minillm.kernels.triton.few_rows import FragmentTile
from minillm.kernels.triton.fragments import Fragments
from minillm.kernels.triton.gpu import gpu
from minillm.kernels.triton.ops import TritonOps
from minillm.kernels.triton.rounded_attention import PairTile, attend_decodes
from minillm.kernels.triton.widening import INT4_BASE
from minillm.model.config import ModelConfig
from minillm.model.decoder import make_mlp
from minillm.model.moe import MoE

APART = 200_000_000
"""Bytes between two uses of the same weights: four times an H100's L2."""
MOST_COPIES = 48

Run = Callable[[int], Tensor]
"""Does the work once, on the copy of this number."""

SIXTEEN_BITS, ROUNDED_ROWS, TWO_LAUNCHES = "16 bits", "rows rounded to fp8", "product, then SwiGLU"
"""What stands beside "now": the plain product; fp8's for a prompt, which rounds x, too; and two kernels for one."""


@dataclass(frozen=True, slots=True)
class RowLayer:
    """A matrix of a decoder's layer, and what lies around it."""

    name: str
    size: int
    out: int
    norm: bool = False
    """What goes in is the norm of the residual stream and what is added to it."""
    swiglu: bool = False
    """What comes out are gates, then ups."""


def row_layers(model: str, hidden: int, query: int, kv: int, inner: int | None = None) -> list[RowLayer]:
    """A layer's matrices; without those of an MLP if it has experts."""
    attention = [
        RowLayer(f"{model} qkv", hidden, query + 2 * kv, norm=True),
        RowLayer(f"{model} o", query, hidden),
    ]
    if inner is None:
        return attention
    gate_up = RowLayer(f"{model} gate_up", hidden, 2 * inner, norm=True, swiglu=True)
    return [*attention, gate_up, RowLayer(f"{model} down", inner, hidden)]


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large everything is: as in the models, or small enough for Triton's interpreter."""

    row_layers: list[RowLayer]
    vocab: int
    sampled: tuple[int, ...]
    """Rows of logits"""
    window: int
    contexts: tuple[int, ...]
    """Tokens of one request"""
    layers: dict[str, tuple[int, int]]
    """Inputs and outputs of a dense model's matrices"""
    rows: tuple[int, ...]
    crowd: tuple[int, ...]
    """Rows of a large batch"""
    prompt: int
    batches: tuple[int, ...]
    context: int
    tokens: tuple[int, ...]
    num_experts: int
    hidden: int
    inner: int
    k: int
    dtype: torch.dtype


MODELS = Sizes(
    row_layers=[
        *row_layers("0.6B", 1024, 2048, 1024, 3072),
        *row_layers("30B-A3B", 2048, 4096, 512),
        *row_layers("8B", 4096, 4096, 1024, 14336),
    ],
    vocab=151936,
    sampled=(1, 32, 256),
    window=40960,
    contexts=(512, 4096),
    layers={"o": (4096, 4096), "qkv": (4096, 6144), "gate_up": (4096, 28672), "down": (14336, 4096)},
    rows=(1, 32),
    crowd=(64, 128),
    prompt=2048,
    batches=(32, 128),
    context=2048,
    tokens=(1, 8, 64, 128),
    num_experts=128,
    hidden=2048,
    inner=768,
    k=8,
    dtype=torch.bfloat16,
)
SMALL = Sizes(
    row_layers=row_layers("small", 512, 512, 128, 512),
    vocab=5000,
    sampled=(1, 3),
    window=600,
    contexts=(70,),
    layers={"o": (256, 128)},
    rows=(1, 20),
    crowd=(40,),
    prompt=70,
    batches=(2,),
    context=70,
    tokens=(1, 5),
    num_experts=8,
    hidden=512,
    inner=256,
    k=2,
    dtype=torch.float16,  # the interpreter multiplies bfloat16 wrongly
)


class Work(ABC):
    """One thing to do, on one shape."""

    section: str
    shape: str
    bytes: int
    """That must be read, at least"""
    copies: int = 1
    tolerance = 0.03
    """Largest error, relative to the largest number of the reference; bfloat16 rounds to 0.004"""

    spared = 0.0
    """Share of rows that may be further off"""

    @abstractmethod
    def prepare(self, device: str) -> None:
        """Make tensors. On "meta" they have no contents: then kernels are only compiled."""

    @abstractmethod
    def reference(self) -> Tensor:
        """What copy 0 gives, in float32."""

    @abstractmethod
    def in_use(self) -> dict[str, Run]:
        """What is in use, and what 16 bits take."""

    @abstractmethod
    def first(self) -> Sequence[Any]:
        """Candidates."""

    def next(self, best: Sequence[Any]) -> Sequence[Any]:
        """More of them, given the best two of the first; the better one first."""
        return ()

    @abstractmethod
    def run(self, candidate: Any) -> Run:
        """Do it this way."""

    def release(self) -> None:
        """Forget the tensors."""
        for name in [name for name, value in vars(self).items() if name.startswith("on_")]:
            delattr(self, name)


def copies_of(size: int) -> int:
    return max(2, min(MOST_COPIES, -(-APART // size)))


def like(tensor: Tensor, copies: int) -> list[Tensor]:
    """The tensor, and others with random contents in its place."""
    if tensor.device.type == "meta" or tensor.is_floating_point() or tensor.dtype == torch.int32:
        return [tensor, *(tensor.clone() for _ in range(copies - 1))]
    low, high = torch.iinfo(tensor.dtype).min, torch.iinfo(tensor.dtype).max + 1
    others = (
        torch.randint(low, high, tensor.shape, dtype=tensor.dtype, device=tensor.device) for _ in range(copies - 1)
    )
    return [tensor, *others]


@dataclass(frozen=True, slots=True)
class Shared:
    """A tile, and how many programs each multiprocessor should get."""

    tile: FragmentTile
    programs: int = few_rows.PROGRAMS

    def __str__(self) -> str:
        t = self.tile
        sizes = f"{t.outputs}x{t.rows} step {t.step} warps {t.num_warps} stages {t.num_stages}"
        return f"{sizes} programs {self.programs}"


FEW = {
    "int4": [
        FragmentTile(64, 8, 2, 4, 4),  # N = 8: mma.sync
        FragmentTile(64, 16, 2, 4, 4),  # N = 16: wgmma
        FragmentTile(64, 8, 1, 2, 6),
        FragmentTile(128, 8, 1, 4, 5),
        FragmentTile(128, 16, 2, 4, 4),
        FragmentTile(64, 8, 4, 4, 3),
        FragmentTile(128, 8, 1, 4, 7),
        FragmentTile(128, 8, 2, 4, 4),
    ],
    "int8": [
        FragmentTile(64, 8, 4, 4, 4),
        FragmentTile(64, 16, 4, 4, 4),
        FragmentTile(64, 16, 2, 4, 6),
        FragmentTile(64, 8, 2, 2, 6),
        FragmentTile(128, 8, 2, 4, 5),
        FragmentTile(128, 16, 2, 4, 4),
    ],
    "fp8": [
        FragmentTile(64, 8, 2, 4, 4),
        FragmentTile(64, 8, 2, 2, 4),
        FragmentTile(64, 8, 1, 2, 6),
        FragmentTile(64, 8, 4, 4, 3),
        FragmentTile(128, 8, 2, 4, 4),
        FragmentTile(128, 8, 1, 4, 5),
        FragmentTile(64, 16, 2, 4, 4),
    ],
}
SOME = {
    "int4": [
        FragmentTile(64, 32, 2, 4, 4),
        FragmentTile(128, 32, 2, 4, 4),
        FragmentTile(128, 32, 2, 8, 4),
        FragmentTile(256, 32, 2, 8, 3),
        FragmentTile(64, 32, 2, 4, 3),
        FragmentTile(64, 32, 2, 4, 6),
        FragmentTile(128, 32, 2, 4, 3),
    ],
    "int8": [
        FragmentTile(64, 32, 4, 4, 4),
        FragmentTile(128, 32, 2, 4, 5),
        FragmentTile(128, 32, 4, 4, 3),
        FragmentTile(128, 32, 4, 8, 4),
        FragmentTile(256, 32, 2, 8, 4),
    ],
    "fp8": [
        FragmentTile(64, 32, 2, 4, 4),
        FragmentTile(64, 32, 2, 4, 3),
        FragmentTile(64, 32, 4, 4, 3),
        FragmentTile(128, 32, 2, 4, 3),
        FragmentTile(128, 32, 2, 8, 4),
    ],
}
CROWD = [
    FragmentTile(64, 64, 2, 4, 3),
    FragmentTile(128, 64, 2, 4, 3),
    FragmentTile(64, 128, 2, 4, 3),
    FragmentTile(128, 128, 2, 8, 3),
]
"""For the rows of a large batch, beside what is used for 32: weights are unpacked once for more of them."""
MANY = [
    FragmentTile(128, 128, 2, 8, 3),
    FragmentTile(128, 64, 2, 4, 3),
    FragmentTile(256, 64, 2, 8, 3),
    FragmentTile(128, 256, 2, 8, 2),
]


@dataclass(frozen=True, slots=True)
class WidenedFirst:
    """All weights in 16 bits, then PyTorch's product: of the whole matrix, or of a band of outputs after another, whose
    16-bit weights may still be in the L2 cache."""

    step: int
    """Blocks that a program widens"""
    band: int = 0
    """Outputs, a multiple of 64; 0 = all"""

    def __str__(self) -> str:
        return f"widened, {self.step} blocks at once" + (f", bands of {self.band}" if self.band else "")

    def product(self, x: Tensor, weights: Fragments) -> Tensor:
        if not self.band:
            return F.linear(x, fragments.widened(weights, x.dtype, self.step))
        y = x.new_empty(len(x), weights.out)
        for first in range(0, weights.out, self.band):
            part = outputs_of(weights, first, min(first + self.band, weights.out))
            torch.mm(x, fragments.widened(part, x.dtype, self.step).t(), out=y[:, first : first + self.band])
        return y


def outputs_of(weights: Fragments, first: int, end: int) -> Fragments:
    """Some outputs of int4 or int8, from a multiple of 64 on."""
    units = slice(first // fragments.UNIT, -(-end // fragments.UNIT))
    scales = weights.scales[units] if weights.kind == "int4" else weights.scales[first:]
    return replace(weights, pairs=weights.pairs[units], scales=scales, out=end - first)


class LinearWork(Work):
    """x W^T with W in few bits."""

    def __init__(self, sizes: Sizes, kind: str, layer: str, rows: int) -> None:
        self.sizes, self.kind, self.layer, self.rows = sizes, kind, layer, rows
        self.size, self.out = sizes.layers[layer]
        self.group = 32 if kind == "int4" else 0
        self.section, self.shape = kind, f"{layer} {self.size}x{self.out}, {rows} rows"
        self.bytes = int(self.size * self.out * (0.5 + 4 / self.group if self.group else 1))
        self.copies = copies_of(self.bytes)

    def prepare(self, device: str) -> None:
        with torch.device(device):
            self.on_x = torch.randn(self.rows, self.size).to(self.sizes.dtype)
            weight = torch.randn(self.out, self.size) / 50
            if self.kind == "int4":
                self.on_numbers, self.on_scales = quantize_int4(weight, self.group, INT4_BASE)
            else:
                self.on_numbers, self.on_scales = quantize_rows(weight, torch.int8 if self.kind == "int8" else FP8)
            first = fragments.to_fragments(self.on_numbers, self.on_scales, self.kind)
            self.on_weights = [replace(first, pairs=pairs) for pairs in like(first.pairs, self.copies)]
            if self.kind == "int4":
                scales = [first.scales.clone() for _ in range(self.copies)]
                self.on_weights = [replace(w, scales=s) for w, s in zip(self.on_weights, scales)]
            self.on_counters = torch.zeros(8192, dtype=torch.int32)

    def reference(self) -> Tensor:
        if self.kind == "int4":
            weight = dequantize_int4(self.on_numbers, self.on_scales, INT4_BASE)
        else:
            weight = dequantize(self.on_numbers, self.on_scales)
        return F.linear(self.on_x.float(), weight)

    def in_use(self) -> dict[str, Run]:
        x = self.on_x
        ways: dict[str, Run] = {}
        if few_rows.are_few(x, self.on_weights[0]) or self.kind != "fp8":
            ways["now"] = lambda i: few_rows.linear(x, self.on_weights[i], None, self.on_counters)
        if self.kind == "fp8" and x.device.type == "cuda":
            ways[ROUNDED_ROWS] = self.rounded_rows
        return ways

    def rounded_rows(self, i: int) -> Tensor:
        """As CudaFP8Linear multiplies a prompt's rows."""
        rounded, scales = fp8_rows.quantize_fp8(self.on_x)
        numbers, weight_scales = self.on_weights[i].pairs.flatten(1).view(FP8), self.on_scales[None, :]
        return torch._scaled_mm(rounded, numbers.t(), scales[:, None], weight_scales, out_dtype=torch.bfloat16)

    def whole(self) -> Run:
        """In 16 bits."""
        size = self.size * self.out * 2
        weights = [torch.randn(self.out, self.size, device=self.on_x.device, dtype=self.sizes.dtype)]
        weights += [weights[0].clone() for _ in range(copies_of(size) - 1)]
        return lambda i: F.linear(self.on_x, weights[i % len(weights)])

    def first(self) -> Sequence[Shared]:
        tiles = FEW[self.kind] if self.rows <= 8 else SOME[self.kind]
        return [Shared(tile) for tile in (tiles if self.rows <= 32 else [tiles[0], *CROWD])]

    def next(self, best: Sequence[Shared]) -> Sequence[Shared]:
        return [replace(one, programs=programs) for one in best for programs in (2, 4, 8)]

    def shared(self, candidate: Shared) -> FragmentTile:
        """The candidate's tile, by as many programs as it wants."""
        num_programs = candidate.programs * gpu(self.on_x.device).num_processors
        return few_rows.with_splits(candidate.tile, self.on_weights[0], self.rows, num_programs)

    def run(self, candidate: Shared) -> Run:
        tile = self.shared(candidate)
        return lambda i: few_rows.multiply(self.on_x, self.on_weights[i], None, tile, self.on_counters)


class SwigluWork(LinearWork):
    """The same of gates and ups, and silu(gate) * up: in one launch or two."""

    def __init__(self, sizes: Sizes, kind: str, layer: str, rows: int) -> None:
        super().__init__(sizes, kind, layer, rows)
        self.section, self.shape = "swiglu", f"{kind} {self.shape}"

    def reference(self) -> Tensor:
        return Ops().silu_mul(super().reference())

    def in_use(self) -> dict[str, Run]:
        x, counters, ops = self.on_x, self.on_counters, TritonOps()
        return {
            "now": lambda i: few_rows.linear_swiglu(x, self.on_weights[i], None, counters),
            TWO_LAUNCHES: lambda i: ops.silu_mul(few_rows.linear(x, self.on_weights[i], None, counters)),
        }

    def whole(self) -> Run:
        product, ops = super().whole(), TritonOps()
        return lambda i: ops.silu_mul(product(i))

    def next(self, best: Sequence[Shared]) -> Sequence[Shared]:
        return [replace(best[0], programs=programs) for programs in (2, 4)]

    def run(self, candidate: Shared) -> Run:
        tile = self.shared(candidate)
        return lambda i: few_rows.multiply(self.on_x, self.on_weights[i], None, tile, self.on_counters, swiglu=True)


class PromptWork(LinearWork):
    """The same for a prompt's rows, in int4 or int8: all weights widened first, or tile by tile."""

    def __init__(self, sizes: Sizes, kind: str, layer: str, rows: int) -> None:
        super().__init__(sizes, kind, layer, rows)
        self.section, self.copies = "prompts", 2
        self.shape = f"{kind} {self.shape}"
        self.line = fragments.LINE_INPUTS // fragments.BLOCK_INPUTS[kind]

    def first(self) -> Sequence[Any]:
        # A band has enough outputs for all multiprocessors, and of 4,096 inputs 17 or 34 MB: an H100's L2 has 50.
        bands = [WidenedFirst(self.line, band) for band in (2048, 4096)] if self.out > 4096 else []
        return [*(WidenedFirst(step) for step in (1, 2, 4)), *bands, *(Shared(tile, 1) for tile in MANY)]

    def next(self, best: Sequence[Any]) -> Sequence[Any]:
        return ()

    def run(self, candidate: Any) -> Run:
        if isinstance(candidate, Shared):
            return super().run(candidate)
        return lambda i: candidate.product(self.on_x, self.on_weights[i])


KV_TILES = [
    PairTile(64, 1, 4, 5),
    PairTile(64, 1, 4, 7),
    PairTile(64, 1, 2, 5),
    PairTile(128, 1, 4, 5),
    PairTile(128, 1, 4, 7),
    PairTile(128, 1, 8, 5),
    PairTile(32, 1, 2, 7),
]
HEADS, KV_HEADS, HEAD_DIM, BLOCK = 32, 8, 128, 16


class KVWork(Work):
    """Decodes of Llama 3 8B's heads over a cache in 8 bits."""

    section = "kv"

    def __init__(self, sizes: Sizes, kind: str, batch: int) -> None:
        self.sizes, self.kind, self.batch = sizes, kind, batch
        self.shape = f"{kind} {batch} x {sizes.context}"
        self.bytes = batch * sizes.context * KV_HEADS * 2 * (HEAD_DIM + 2)
        self.copies = 2

    def prepare(self, device: str) -> None:
        blocks = -(-self.sizes.context // BLOCK)
        with torch.device(device):
            self.on_query = torch.randn(self.batch, HEADS, HEAD_DIM).to(self.sizes.dtype)
            shape = (self.batch * blocks, BLOCK, 2, KV_HEADS, HEAD_DIM)
            kv = torch.randn(shape).to(self.sizes.dtype)
            self.on_whole = [kv, kv.clone()]
            numbers, scales = zip(*(quantize(part, QUANTIZED_DTYPES[self.kind], SCALE_DTYPE) for part in kv.split(512)))
            bytes = torch.cat([part.view(torch.int8) for part in numbers])
            self.on_numbers = [bytes, bytes.clone()]
            self.on_scales = [torch.cat(scales), torch.cat(scales)]
            order = torch.arange(len(kv)) if device == "meta" else torch.randperm(len(kv))
            self.on_tables = order.view(self.batch, blocks).int()
            self.on_starts = torch.arange(self.batch + 1, dtype=torch.int32)
            self.on_lengths = torch.full((self.batch,), self.sizes.context, dtype=torch.int32)

    def reference(self) -> Tensor:
        rows = []
        for table, query in zip(self.on_tables.long(), self.on_query.float()):
            numbers = self.on_numbers[0][table].view(QUANTIZED_DTYPES[self.kind])
            kv = dequantize(numbers, self.on_scales[0][table]).flatten(0, 1)[: self.sizes.context]
            keys, values = kv.repeat_interleave(HEADS // KV_HEADS, dim=2).unbind(1)
            weights = (torch.einsum("hd,lhd->hl", query, keys) * HEAD_DIM**-0.5).softmax(-1)
            rows.append(torch.einsum("hl,lhd->hd", weights, values))
        return torch.stack(rows)

    def in_use(self) -> dict[str, Run]:
        from minillm.kernels.triton.attention import TritonAttention

        backend, caches, scale = TritonAttention(self.metadata()), self.caches(), HEAD_DIM**-0.5
        return {
            "now": lambda i: backend.attend(self.on_query, caches[i], scale),
            SIXTEEN_BITS: lambda i: backend.attend(self.on_query, self.on_whole[i], scale),
        }

    def metadata(self) -> AttentionMetadata:
        lengths, starts = [self.sizes.context] * self.batch, list(range(self.batch + 1))
        tensors = (self.on_starts, self.on_lengths, self.on_tables, self.on_starts[1:].long())
        return AttentionMetadata(starts, lengths, *tensors, self.batch, BLOCK)

    def caches(self) -> list[QuantizedKV]:
        dtype = QUANTIZED_DTYPES[self.kind]
        return [QuantizedKV(n.view(dtype), s) for n, s in zip(self.on_numbers, self.on_scales)]

    def first(self) -> Sequence[PairTile]:
        return KV_TILES

    def next(self, best: Sequence[PairTile]) -> Sequence[PairTile]:
        return [replace(one, splits=splits) for one in best for splits in (2, 4)]

    def run(self, candidate: PairTile) -> Run:
        metadata, caches, sequences = self.metadata(), self.caches(), range(self.batch)

        def attend(i: int) -> Tensor:
            output = torch.empty_like(self.on_query)
            attend_decodes(self.on_query, caches[i], metadata, HEAD_DIM**-0.5, output, candidate, sequences)
            return output

        return attend


@dataclass(frozen=True, slots=True)
class Heads:
    """A model's attention."""

    model: str
    heads: int
    kv_heads: int


ATTENTION = (Heads("0.6B", 16, 8), Heads("30B-A3B", 32, 4), Heads("8B", 32, 8))


class SplitWork(Work):
    """A decode of one request, whose context is much shorter than the window: splits are chosen by the window, so that
    a CUDA graph holds for any context, and most of them get no keys."""

    section = "splits"

    def __init__(self, sizes: Sizes, heads: Heads, context: int) -> None:
        self.heads, self.context, self.window, self.dtype = heads, context, sizes.window, sizes.dtype
        self.shape = f"{heads.model} 1 x {context} of {self.window}"
        self.bytes = context * heads.kv_heads * 2 * HEAD_DIM * self.dtype.itemsize
        self.copies = copies_of(self.bytes)

    def prepare(self, device: str) -> None:
        with torch.device(device):
            self.on_query = torch.randn(1, self.heads.heads, HEAD_DIM).to(self.dtype)
            kv = torch.randn(-(-self.context // BLOCK), BLOCK, 2, self.heads.kv_heads, HEAD_DIM).to(self.dtype)
            self.on_caches = like(kv, self.copies)
            self.on_tables = torch.zeros(1, -(-self.window // BLOCK), dtype=torch.int32)
            self.on_tables[0, : len(kv)] = torch.arange(len(kv))
            self.on_numbers = torch.tensor([0, 1, self.context], dtype=torch.int32)

    def reference(self) -> Tensor:
        keys, values = self.on_caches[0].flatten(0, 1)[: self.context].float().unbind(1)
        group = self.heads.heads // self.heads.kv_heads
        query, keys, values = (
            each.transpose(0, 1)
            for each in (self.on_query.float(), *(kv.repeat_interleave(group, dim=1) for kv in (keys, values)))
        )
        return F.scaled_dot_product_attention(query, keys, values).transpose(0, 1)

    def metadata(self) -> AttentionMetadata:
        tensors = (self.on_numbers[:2], self.on_numbers[2:], self.on_tables, self.on_numbers[:1].long())
        return AttentionMetadata([0, 1], [self.context], *tensors, 1, BLOCK)

    def in_use(self) -> dict[str, Run]:
        return {"now": self.run(None)}

    def first(self) -> Sequence[int]:
        return (2, 4, 8, 16, 32, 64)

    def run(self, candidate: int | None) -> Run:
        metadata, launch = self.metadata(), Launch(0, 1, 1, candidate)

        def attend(i: int) -> Tensor:
            output = torch.empty_like(self.on_query)
            launch(metadata, self.on_query, self.on_caches[i], HEAD_DIM**-0.5, output)
            return output

        return attend


@dataclass(frozen=True, slots=True)
class TwoTiles:
    first: experts.ExpertTile
    second: experts.ExpertTile

    def __str__(self) -> str:
        tiles = (self.first, self.second)
        return ", ".join(f"{t.outputs}x{t.rows}x{t.inputs} warps {t.num_warps} stages {t.num_stages}" for t in tiles)


class MoEWork(Work):
    """A layer of experts, router and all."""

    section = "moe"

    spared = 0.1
    """Share of tokens that may differ: of two experts that are equally good, either may be chosen."""

    def __init__(self, sizes: Sizes, tokens: int) -> None:
        self.sizes, self.tokens = sizes, tokens
        self.shape, self.copies = f"{tokens} tokens", 4
        self.bytes = 0

    def prepare(self, device: str) -> None:
        s = self.sizes
        with torch.device(device):
            self.on_x = torch.randn(self.tokens, s.hidden).to(s.dtype)
        self.on_layers = [self.layer(torch.device(device)) for _ in range(self.copies)]
        if device != "meta":
            active = [len(layer.router(self.on_x)[0].unique()) for layer in self.on_layers]
            each = 3 * s.hidden * s.inner * self.on_x.element_size()
            self.bytes = sum(active) * each // self.copies + self.on_layers[0].router.weight.nbytes

    def layer(self, device: torch.device) -> MoE:
        """The engine's, with random weights."""
        s = self.sizes
        hf = dict(architectures=["Qwen3MoeForCausalLM"], vocab_size=1, max_position_embeddings=1)
        hf |= dict(num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, hidden_size=s.hidden)
        hf |= dict(num_experts=s.num_experts, num_experts_per_tok=s.k, norm_topk_prob=True)
        hf |= dict(intermediate_size=s.inner, moe_intermediate_size=s.inner)
        layer = make_mlp(ModelConfig.from_hf(hf), 0, s.dtype, device)
        assert isinstance(layer, MoE)
        for weight in layer.parameters():
            weight.normal_(std=weight.shape[-1] ** -0.5)
        layer.stack()
        return layer

    def reference(self) -> Tensor:
        (chosen, shares), stacked = self.on_layers[0].router(self.on_x), self.stacked(0)
        gate_up, down = stacked.gate_up, stacked.down
        result = torch.zeros(self.on_x.shape, dtype=torch.float32, device=self.on_x.device)
        for expert in chosen.unique().tolist():
            token, place = (chosen == expert).nonzero(as_tuple=True)
            gate, up = F.linear(self.on_x[token].float(), gate_up[expert].float()).chunk(2, dim=-1)
            y = F.linear(F.silu(gate) * up, down[expert].float())
            result.index_add_(0, token, y * shares[token, place].float()[:, None])
        return result

    def in_use(self) -> dict[str, Run]:
        ops = TritonOps() if self.on_x.device.type == "cuda" else Ops()
        return {
            "now": lambda i: self.on_layers[i](self.on_x, ops),
            f"{SIXTEEN_BITS}, routing alone": lambda i: self.on_layers[i].router(self.on_x)[1],
        }

    def first(self) -> Sequence[Any]:
        Tile = experts.ExpertTile
        rows = 8 if self.tokens <= 8 else 16
        pairs = [
            (Tile(64, rows, 128, 4, 4), Tile(64, rows, 128, 4, 4)),
            (Tile(32, rows, 128, 4, 5), Tile(32, rows, 128, 4, 5)),
            (Tile(32, rows, 256, 4, 3), Tile(32, rows, 256, 4, 3)),
            (Tile(64, 16, 64, 4, 6), Tile(64, 16, 64, 4, 6)),
            (Tile(64, 16, 128, 4, 4), Tile(64, 16, 128, 4, 4)),
            (Tile(128, 16, 64, 4, 4), Tile(128, 16, 64, 4, 4)),
            (Tile(128, 16, 128, 8, 3), Tile(128, 16, 128, 8, 3)),
        ]
        return ["routing alone", *(TwoTiles(*pair) for pair in pairs)]

    def next(self, best: Sequence[Any]) -> Sequence[Any]:
        if len(best) < 2 or not all(isinstance(one, TwoTiles) for one in best):
            return ()
        return [TwoTiles(best[0].first, best[1].second), TwoTiles(best[1].first, best[0].second)]

    def stacked(self, i: int) -> StackedExperts:
        stacked = self.on_layers[i].stacked
        assert stacked is not None
        return stacked

    def run(self, candidate: Any) -> Run:
        def routed(i: int) -> tuple[Tensor, Tensor]:
            s = self.stacked(i)
            return experts.choose(self.on_x, s.router, s.k, s.normalize, counters_for(self.on_x.device))

        if not isinstance(candidate, TwoTiles):
            return lambda i: routed(i)[1]

        def mixed(i: int) -> Tensor:
            s = self.stacked(i)
            return experts.mix(self.on_x, *routed(i), s.gate_up, s.down, candidate.first, candidate.second)

        return mixed


ROW_TILES = [
    *(RowTile(4, 1024, 4), RowTile(4, 2048, 4), RowTile(8, 512, 4), RowTile(8, 1024, 4), RowTile(8, 1024, 8)),
    *(RowTile(16, 512, 8), RowTile(16, 1024, 8), RowTile(4, 256, 2), RowTile(16, 256, 4)),
]


class RowWork(Work):
    """One row times a matrix in 16 bits, with the norm before it and SwiGLU after it where a layer has them."""

    section = "row"
    eps = 1e-6

    def __init__(self, layer: RowLayer, dtype: torch.dtype) -> None:
        self.layer, self.dtype = layer, dtype
        self.bytes = layer.size * layer.out * dtype.itemsize
        self.shape, self.copies = f"{layer.name} {layer.size}x{layer.out}", copies_of(self.bytes)

    def prepare(self, device: str) -> None:
        layer = self.layer
        with torch.device(device):
            self.on_x, self.on_delta = torch.randn(2, 1, layer.size).to(self.dtype)
            self.on_norm = torch.rand(layer.size).to(self.dtype)
            weight = torch.randn(layer.out, layer.size) / layer.size**0.5
            self.on_weights = [weight.to(self.dtype), *(weight.to(self.dtype) for _ in range(self.copies - 1))]

    def reference(self) -> Tensor:
        return self.one_by_one(Ops(), self.on_weights[0], torch.float32)

    def one_by_one(self, ops: Ops, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """A launch for each: as the decoder does."""
        row = self.on_x.to(dtype)
        if self.layer.norm:
            _, row = ops.add_rms_norm(row, self.on_delta.to(dtype), self.on_norm.to(dtype), self.eps)
        product = F.linear(row, weight.to(dtype))
        return ops.silu_mul(product) if self.layer.swiglu else product

    def in_use(self) -> dict[str, Run]:
        ops = TritonOps() if self.on_x.device.type == "cuda" else Ops()
        return {
            "now": lambda i: self.one_by_one(ops, self.on_weights[i], self.dtype),
            "16 bits, product alone": lambda i: F.linear(self.on_x, self.on_weights[i]),
        }

    def first(self) -> Sequence[RowTile]:
        return [tile for tile in ROW_TILES if self.layer.size % tile.inputs == 0 and self.layer.out % tile.outputs == 0]

    def run(self, candidate: RowTile) -> Run:
        norm = NormBefore(self.on_delta, self.on_norm, self.eps) if self.layer.norm else None
        return lambda i: product_of_row(self.on_x, self.on_weights[i], candidate, norm, self.layer.swiglu)


class LikeliestWork(Work):
    """Each row's likeliest token: our kernels beside PyTorch's max()."""

    section = "likeliest"
    tolerance = 0.0
    """Token ids have to be equal."""

    def __init__(self, sizes: Sizes, rows: int) -> None:
        self.rows, self.vocab, self.dtype = rows, sizes.vocab, sizes.dtype
        self.shape, self.bytes = f"{rows} x {self.vocab}", rows * self.vocab * self.dtype.itemsize
        self.copies = copies_of(self.bytes)

    def prepare(self, device: str) -> None:
        with torch.device(device):
            self.on_logits = like(torch.randn(self.rows, self.vocab).to(self.dtype), self.copies)

    def reference(self) -> Tensor:
        return self.on_logits[0].max(dim=-1).indices[:, None].float()

    def in_use(self) -> dict[str, Run]:
        return {
            "now": lambda i: on_gpu.likeliest(self.on_logits[i])[:, None],
            "16 bits, PyTorch": lambda i: Ops().likeliest(self.on_logits[i])[:, None],
        }

    def first(self) -> Sequence[Any]:
        return ()

    def run(self, candidate: Any) -> Run:
        raise AssertionError("there are no candidates")


def works(sizes: Sizes) -> list[Work]:
    """What has never been timed first, then in the order of worth."""
    few, some = sizes.rows
    widest = max(sizes.layers, key=lambda layer: sizes.layers[layer][1])
    order: list[Work] = [LinearWork(sizes, "fp8", layer, rows) for rows in (few, some) for layer in sizes.layers]
    order += [SwigluWork(sizes, kind, widest, rows) for rows in (few, some) for kind in ("int4", "int8", "fp8")]
    order += [
        PromptWork(sizes, kind, layer, sizes.prompt) for kind in ("int4", "int8") for layer in list(sizes.layers)[-2:]
    ]
    order += [LinearWork(sizes, kind, widest, rows) for rows in sizes.crowd for kind in ("int4", "int8", "fp8")]
    order += [RowWork(layer, sizes.dtype) for layer in sizes.row_layers]
    order += [LikeliestWork(sizes, rows) for rows in sizes.sampled]
    order += [SplitWork(sizes, heads, context) for heads in ATTENTION for context in sizes.contexts]
    order += [
        LinearWork(sizes, kind, layer, rows)
        for kind in ("int4", "int8")
        for rows in (few, some)
        for layer in sizes.layers
    ]
    order += [KVWork(sizes, kind, batch) for batch in sizes.batches for kind in ("int8", "fp8")]
    order += [MoEWork(sizes, tokens) for tokens in sizes.tokens]
    return order
