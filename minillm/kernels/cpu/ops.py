"""The small operations of a decoder on a CPU, each as one call of our own C++ (native/ops.cpp).

In a decode step each of them handles a few kilobytes. PyTorch makes some forty calls a layer of them, of
several microseconds each; these are four. Of a step in which everybody decodes, all layers are one call.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from minillm.kernels.attention.cache import KVCache
from minillm.kernels.cpu import NativeKernels
from minillm.kernels.cpu.bands import LANES
from minillm.kernels.cpu.layers import NativeLayers
from minillm.kernels.ops import Ops, Rotation
from minillm.model.decoder import Layer, Pass


class NativeOps(Ops):
    """Same methods, same results to rounding; see Ops. Activations are float32, the cache is bfloat16 or int8."""

    def __init__(self, kernels: NativeKernels) -> None:
        self.kernels = kernels
        self._layers: dict[int, NativeLayers] = {}
        """By the id of their list: a draft head has layers of its own"""

    def run_layers(
        self, layers: Sequence[Layer], x: Tensor, delta: Tensor, kv_caches: Sequence[KVCache], step: Pass
    ) -> tuple[Tensor, Tensor]:
        if id(layers) not in self._layers:
            self._layers[id(layers)] = NativeLayers(layers, self.kernels)
        done = self._layers[id(layers)].run(x, delta, kv_caches, step)
        return super().run_layers(layers, x, delta, kv_caches, step) if done is None else done

    def add_rms_norm(self, x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x, delta = x.contiguous(), delta.contiguous()
        total, normed = torch.empty_like(x), torch.empty_like(x)
        addresses = (tensor.data_ptr() for tensor in (x, delta, weight, total, normed))
        self.kernels.add_rms_norm(*addresses, *x.shape, eps)
        return total, normed

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
        if inner % LANES:
            return super().silu_mul(gate_up)
        gate_up, output = gate_up.contiguous(), gate_up.new_empty(rows, inner)
        self.kernels.silu_mul(gate_up.data_ptr(), output.data_ptr(), rows, inner)
        return output

    def rotate_and_write(
        self,
        qkv: Tensor,
        num_kv_heads: int,
        norms: tuple[Tensor, Tensor, float] | None,
        rotation: Rotation,
        kv_cache: KVCache,
    ) -> Tensor:
        num_tokens, num_all, head_dim = qkv.shape
        num_heads = num_all - 2 * num_kv_heads
        query_weight, key_weight, eps = norms or (None, None, 0.0)
        numbers, scales = (kv_cache, None) if isinstance(kv_cache, Tensor) else kv_cache
        if numbers.dtype not in self.kernels.rotate_and_write:  # a draft head's own cache beside a quantized one
            return super().rotate_and_write(qkv, num_kv_heads, norms, rotation, kv_cache)
        self.kernels.rotate_and_write[numbers.dtype](
            qkv.data_ptr(),
            None if query_weight is None else query_weight.data_ptr(),
            None if key_weight is None else key_weight.data_ptr(),
            rotation.cos.data_ptr(),
            rotation.sin.data_ptr(),
            rotation.slot_mapping.data_ptr(),
            numbers.data_ptr(),
            None if scales is None else scales.data_ptr(),
            num_tokens,
            num_heads,
            num_kv_heads,
            head_dim,
            eps,
        )
        return qkv[:, :num_heads]
