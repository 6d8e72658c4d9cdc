"""The layers of a decode step as one call of native/layers.cpp: what it is to be given, and when it can be used."""

from collections.abc import Sequence
from ctypes import Structure, byref, c_float, c_long, c_void_p

import torch
from torch import Tensor, nn

from minillm.kernels.attention.cache import KVCache
from minillm.kernels.attention.native import NativeAttention, suits
from minillm.kernels.cpu import NativeKernels
from minillm.kernels.cpu.bands import LANES
from minillm.model.decoder import Layer, Pass
from minillm.model.linear import FEW_ROWS, CPULinear, PackedInBands
from minillm.model.quantized import QuantizedLinear


class NativeMatrix(Structure):
    """A weight matrix, as the C++ sees it: layers.cpp has the same struct."""

    _fields_ = [
        *((name, c_void_p) for name in ("numbers", "scales", "bias")),
        *((name, c_long) for name in ("size", "out", "bits", "group")),
    ]

    @classmethod
    def of(cls, layer: nn.Module, size: int) -> "NativeMatrix | None":
        """Of a linear layer with `size` inputs; None if its weights are not in the order that the C++ reads."""
        if isinstance(layer, QuantizedLinear):
            bits, group = (8, 0) if layer.numbers.dtype == torch.int8 else (4, size // layer.scales.shape[1])
            return cls(address(layer.numbers), address(layer.scales), address(layer.bias), size, layer.out, bits, group)
        if isinstance(layer, CPULinear) and isinstance(layer.few, PackedInBands):
            packed = layer.few
            return cls(address(packed.banded), None, address(packed.bias), size, packed.out, 16, 0)
        return None


class NativeLayer(Structure):
    """The norms and matrices of one layer."""

    _fields_ = [
        *((name, c_void_p) for name in ("input_norm", "post_attention_norm", "query_norm", "key_norm")),
        *((name, NativeMatrix) for name in ("qkv", "o", "gate_up", "down")),
    ]


class NativeCache(Structure):
    """The keys and values of one layer, with their scales if they are rounded."""

    _fields_ = [("numbers", c_void_p), ("scales", c_void_p)]

    @classmethod
    def of(cls, cache: KVCache) -> "NativeCache":
        numbers, scales = (cache, None) if isinstance(cache, Tensor) else cache
        return cls(address(numbers), address(scales))


class NativeStep(Structure):
    """The sizes and addresses of one decode step."""

    _fields_ = [
        *(
            (name, c_long)
            for name in (
                "rows", "hidden", "inner", "heads", "kv_heads", "d", "block_size", "table_width", "window", "sinks",
            )
        ),
        *((name, c_float) for name in ("eps", "scale")),
        *((name, c_void_p) for name in ("cos", "sin", "slots", "tables", "lens")),
    ]  # fmt: skip


def address(tensor: Tensor | None) -> int | None:
    """Where a tensor's numbers lie; None stays None."""
    return None if tensor is None else tensor.data_ptr()


class NativeLayers:
    """Some layers of a decoder, as the C++ sees them. It keeps them, and addresses: they must not change any more.

    Args:
        layers: all of one shape.
    """

    def __init__(self, layers: Sequence[Layer], kernels: NativeKernels) -> None:
        self.layers, self.kernels = layers, kernels
        described = [native for layer in layers if (native := describe(layer)) is not None]
        self.table = (NativeLayer * len(layers))(*described) if len(described) == len(layers) else None
        """None: there are weights that the C++ cannot read"""
        linears = (module for layer in layers for module in layer.modules() if isinstance(module, CPULinear))
        self.only_few = any(linear.few is not linear.many for linear in linears)
        """With many rows another kernel is better"""

    def run(self, x: Tensor, delta: Tensor, kv_caches: Sequence[KVCache], step: Pass) -> tuple[Tensor, Tensor] | None:
        """What Ops.run_layers says; None if this step is not one for it: not all of its tokens are decodes, or
        attention or weights are of another kind."""
        if self.table is None or not isinstance(step.attention, NativeAttention):
            return None
        metadata, first, attention = step.attention.metadata, self.table[0], self.layers[0].attention
        rows, heads, cache = x.shape[0], first.o.size // attention.head_dim, kv_caches[0]
        if (
            metadata.num_decodes != rows
            or (self.only_few and rows > FEW_ROWS)
            or first.down.size % LANES
            or not suits(x.dtype, heads, attention.head_dim, cache)
        ):
            return None
        arguments = NativeStep(
            rows=rows,
            hidden=x.shape[1],
            inner=first.down.size,
            heads=heads,
            kv_heads=attention.num_kv_heads,
            d=attention.head_dim,
            block_size=cache.shape[1],
            table_width=metadata.block_tables.stride(0),
            window=metadata.window or 0,
            sinks=metadata.sinks,
            eps=self.layers[0].input_norm.eps,
            scale=attention.scale,
            cos=address(step.rotation.cos),
            sin=address(step.rotation.sin),
            slots=address(step.rotation.slot_mapping),
            tables=address(metadata.block_tables),
            lens=address(metadata.context_lens_tensor),
        )
        caches = (NativeCache * len(kv_caches))(*map(NativeCache.of, kv_caches))
        x, delta = x.clone(), delta.clone()
        self.kernels.decode_layers(self.table, caches, len(caches), byref(arguments), x.data_ptr(), delta.data_ptr())
        return x, delta


def describe(layer: Layer) -> NativeLayer | None:
    """None if a matrix cannot be read."""
    attention, mlp = layer.attention, layer.mlp
    qkv = NativeMatrix.of(attention.qkv_proj, len(layer.input_norm.weight))
    gate_up = NativeMatrix.of(mlp.gate_up_proj, len(layer.input_norm.weight))
    if qkv is None or gate_up is None:
        return None
    o = NativeMatrix.of(attention.o_proj, qkv.out - 2 * attention.num_kv_heads * attention.head_dim)
    down = NativeMatrix.of(mlp.down_proj, gate_up.out // 2)
    if o is None or down is None:
        return None
    norms = (layer.input_norm, layer.post_attention_norm, attention.q_norm, attention.k_norm)
    return NativeLayer(*(None if norm is None else address(norm.weight) for norm in norms), qkv, o, gate_up, down)
