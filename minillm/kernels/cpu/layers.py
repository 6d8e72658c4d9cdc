"""The layers of a decode step as layers.cpp reads them. It has the same structs."""

from collections.abc import Sequence
from ctypes import Structure, c_float, c_long, c_void_p

from minillm.kernels.attention.cache import KVCache, parts_of
from minillm.kernels.cpu import address


def fields(kind: type, names: str) -> list[tuple[str, type]]:
    """Of a struct: these names, all of one kind."""
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
        head_dim: d.
        eps: of the norms.
        max_rows: with more rows another kernel is better; None = with no number of them.
    """

    def __init__(
        self, layers: Sequence[NativeLayer], num_kv_heads: int, head_dim: int, eps: float, max_rows: int | None
    ) -> None:
        self.table = (NativeLayer * len(layers))(*layers)
        self.num_heads, self.num_kv_heads, self.head_dim = layers[0].o.size // head_dim, num_kv_heads, head_dim
        self.inner = layers[0].down.size
        self.eps, self.max_rows = eps, max_rows
