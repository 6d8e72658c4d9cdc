"""The layers of a decode step as layers.cpp reads them. It has the same structs."""

from collections.abc import Iterable, Sequence
from ctypes import Structure, c_float, c_long, c_void_p
from typing import Any, Protocol, runtime_checkable

from minillm.kernels.attention.cache import KVCache, parts_of
from minillm.kernels.cpu import address
from minillm.kernels.ops import DecoderLayer, Projection


def fields(kind: type, names: str) -> list[tuple[str, type]]:
    """Fields of a struct: these names, all of one kind."""
    return [(name, kind) for name in names.split()]


class NativeMatrix(Structure):
    """A weight matrix: where its numbers lie, in bands (bands.py) of `bits` each, and its scales and its bias if it has
    them; `size` inputs, `out` outputs, in 4 bits `group` inputs that share a scale, and
    whether x is rounded to bfloat16 (`dots`)."""

    _fields_ = fields(c_void_p, "numbers scales bias") + fields(c_long, "size out bits group dots")


class NativeLayer(Structure):
    """The norms and matrices of one layer."""

    _fields_ = [
        *fields(c_void_p, "input_norm post_attention_norm query_norm key_norm"),
        *fields(NativeMatrix, "qkv o gate_up down"),
    ]


class NativeCache(Structure):
    """The keys and values of one layer, with their scales if they are rounded."""

    _fields_ = fields(c_void_p, "numbers scales")

    @classmethod
    def of(cls, cache: KVCache) -> "NativeCache":
        return cls(*map(address, parts_of(cache)))


class NativeStep(Structure):
    """The sizes and addresses of one decode step."""

    _fields_ = [
        *fields(c_long, "rows hidden inner heads kv_heads d block_size table_width window sinks"),
        *fields(c_float, "eps scale"),
        *fields(c_void_p, "cos sin slots tables lens"),
    ]


class NativeLayers:
    """Some layers of a decoder, all of one shape. Addresses: the weights stay where they are as long as this is used.

    Args:
        head_dim: d, numbers in a head.
        eps: the epsilon of all norms.
        max_rows: with more rows another kernel is better; None = with no number of them.
    """

    def __init__(
        self, layers: Sequence[NativeLayer], num_kv_heads: int, head_dim: int, eps: float, max_rows: int | None
    ) -> None:
        self.table = (NativeLayer * len(layers))(*layers)
        self.num_heads, self.num_kv_heads, self.head_dim = layers[0].o.size // head_dim, num_kv_heads, head_dim
        self.inner = layers[0].down.size
        self.eps, self.max_rows = eps, max_rows


@runtime_checkable
class PackedProjection(Protocol):
    """A projection whose weights our C++ may be able to read."""

    max_rows: int | None
    """Most rows for which the kernel that reads `native` is the best one; None = any number."""

    def native(self) -> NativeMatrix | None:
        """W as our C++ reads it; None if it is not in that order."""


def pack_layers(layers: Iterable[DecoderLayer]) -> NativeLayers | None:
    """A decoder's layers as our C++ sees them; None if it can't read one of their matrices.

    Their weights must be final: what is kept are addresses.
    """
    all_layers: list[Any] = list(layers)
    packed = [native for layer in all_layers if (native := pack_layer(layer)) is not None]
    if len(packed) < len(all_layers):
        return None
    first = all_layers[0].attention
    max_rows = first.qkv_proj.max_rows  # one choice of kernels for all matrices
    return NativeLayers(packed, first.num_kv_heads, first.head_dim, all_layers[0].input_norm.eps, max_rows)


def pack_layer(layer: Any) -> NativeLayer | None:
    """A decoder layer as our C++ sees it; None if it can't read a matrix, or the layer has experts."""
    attention, mlp = layer.attention, layer.mlp
    if not hasattr(mlp, "gate_up_proj"):
        return None
    products = (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)
    matrices = [each.native() if isinstance(each, PackedProjection) else None for each in products]
    if None in matrices:
        return None
    norms = (layer.input_norm, layer.post_attention_norm, attention.q_norm, attention.k_norm)
    return NativeLayer(*(None if norm is None else address(norm.weight) for norm in norms), *matrices)


def pack_gate_up(projection: Projection) -> NativeMatrix | None:
    """A matrix for the kernel that multiplies and goes on with SwiGLU; None if it can't read this one."""
    if not isinstance(projection, PackedProjection) or projection.max_rows is not None:
        return None
    matrix = projection.native()
    suits = matrix is not None and matrix.dots and matrix.bits == 16 and not matrix.bias
    return matrix if suits else None
