"""The small operations of a decoder on a CPU, each as one call of our own C++ (ops.cpp).

In a decode step each of them handles a few kilobytes. PyTorch makes some forty calls a layer of them, of several
microseconds each; these are four. Of a step in which every token is a decode, all layers are one call (layers.cpp).
"""

from collections.abc import Iterable, Sequence
from ctypes import byref

import torch
from torch import Tensor

from minillm.kernels.attention.cache import KVCache, parts_of
from minillm.kernels.attention.native import NativeAttention, suits
from minillm.kernels.cpu import NativeKernels, address
from minillm.kernels.cpu.layers import (
    NativeCache,
    NativeLayers,
    NativeMatrix,
    NativeStep,
    pack_gate_up,
    pack_layers,
)
from minillm.kernels.ops import AttentionBlock, DecoderLayer, ForwardContext, GatedProjection, Ops


class NativeOps(Ops):
    """Same methods, same results to rounding; see Ops. Activations are float32, the cache is bfloat16 or int8."""

    def __init__(self, kernels: NativeKernels) -> None:
        self.kernels = kernels
        # The weights as our C++ reads them, by whose they are; None where it can't. Filled at their first step.
        self.packed_layers: dict[object, NativeLayers | None] = {}
        self.packed_gate_ups: dict[object, NativeMatrix | None] = {}

    def add_rms_norm(self, x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x, delta = x.contiguous(), delta.contiguous()
        total, normed = torch.empty_like(x), torch.empty_like(x)
        self.kernels.add_rms_norm(*map(address, (x, delta, weight, total, normed)), *x.shape, eps)
        return total, normed

    def swiglu(self, gate_up_proj: GatedProjection, x: Tensor) -> Tensor:
        if gate_up_proj not in self.packed_gate_ups:
            self.packed_gate_ups[gate_up_proj] = pack_gate_up(gate_up_proj)
        if (w := self.packed_gate_ups[gate_up_proj]) is not None:
            x, output = x.contiguous(), x.new_empty(x.shape[0], w.out // 2)
            if self.kernels.linear_silu_mul(x.data_ptr(), w.numbers, output.data_ptr(), *x.shape, w.out // 2):
                return output
        return super().swiglu(gate_up_proj, x)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate_up, output = gate_up.contiguous(), gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)
        self.kernels.silu_mul(gate_up.data_ptr(), output.data_ptr(), *output.shape)
        return output

    def project_and_cache(self, block: AttentionBlock, x: Tensor, kv_cache: KVCache, context: ForwardContext) -> Tensor:
        numbers, scales = parts_of(kv_cache)
        rotate_and_write = self.kernels.rotate_and_write.get(numbers.dtype)
        if rotate_and_write is None:  # a draft head's own cache beside a quantized one
            return super().project_and_cache(block, x, kv_cache, context)
        qkv = block.qkv_proj(x).view(x.shape[0], -1, block.head_dim)
        query_weight, key_weight, eps = block.qk_norms or (None, None, 0.0)
        tensors = (qkv, query_weight, key_weight, context.cos, context.sin, context.slot_mapping, numbers, scales)
        sizes = (x.shape[0], block.num_heads, block.num_kv_heads, block.head_dim)
        rotate_and_write(*map(address, tensors), *sizes, eps)
        return qkv[:, : block.num_heads]

    def run_layers(
        self,
        layers: Iterable[DecoderLayer],
        x: Tensor,
        delta: Tensor,
        kv_caches: Sequence[KVCache],
        context: ForwardContext,
    ) -> tuple[Tensor, Tensor]:
        """A step in which every token is a decode is one call."""
        if layers not in self.packed_layers:
            self.packed_layers[layers] = pack_layers(layers)
        native, attention, rows, cache = self.packed_layers[layers], context.attention, x.shape[0], kv_caches[0]
        if (
            native is None
            or not isinstance(attention, NativeAttention)
            or attention.metadata.num_decodes != rows
            or (native.max_rows is not None and rows > native.max_rows)
            or not suits(x.dtype, native.num_heads, native.head_dim, cache)
        ):
            return super().run_layers(layers, x, delta, kv_caches, context)
        metadata = attention.metadata
        step = NativeStep(
            rows=rows,
            hidden=x.shape[1],
            inner=native.inner,
            heads=native.num_heads,
            kv_heads=native.num_kv_heads,
            d=native.head_dim,
            block_size=cache.shape[1],
            table_width=metadata.block_tables.stride(0),
            window=metadata.window or 0,
            sinks=metadata.sinks,
            eps=native.eps,
            scale=native.head_dim**-0.5,
            cos=address(context.cos),
            sin=address(context.sin),
            slots=address(context.slot_mapping),
            tables=address(metadata.block_tables),
            lens=address(metadata.context_lens_tensor),
        )
        caches = (NativeCache * len(kv_caches))(*map(NativeCache.of, kv_caches))
        x, delta = x.clone(), delta.clone()
        self.kernels.decode_layers(native.table, caches, len(caches), byref(step), x.data_ptr(), delta.data_ptr())
        return x, delta
