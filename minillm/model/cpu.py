"""A decoder, or a draft head, made ready for a CPU: weights in an order that is read fast, activations in float32."""

import torch

from minillm.kernels.cpu import address
from minillm.kernels.cpu.layers import NativeLayer, NativeLayers
from minillm.model.decoder import Decoder, Layer, LayeredModel, Layers, RMSNorm
from minillm.model.linear import AnyLinear
from minillm.model.moe import MoE, Router
from minillm.model.packing import pack_linears


def optimise_for_cpu(decoder: Decoder) -> None:
    """Pack 16-bit weights for the CPU where that works, and compute with float32 activations.

    16-bit activations would be widened and rounded again around every operation. The embedding table
    stays plain; a tied head shares it.
    """
    if pack_linears(decoder):
        compute_in_float32(decoder)


def compute_in_float32(model: LayeredModel) -> None:
    """Activations are float32 from now on, whatever the weights are.

    The matrices are made for that already, and final: our C++ keeps their addresses.
    """
    model.activation_dtype = torch.float32
    for module in model.modules():
        if isinstance(module, RMSNorm | Router):
            module.weight.data = module.weight.data.float()
    model.layers.native = native_layers(model.layers)


def native_layers(layers: Layers) -> NativeLayers | None:
    """The layers as our C++ sees them; None if it can't read one of the matrices."""
    natives = [native for layer in layers if (native := native_layer(layer)) is not None]
    if len(natives) < len(layers):
        return None
    first = next(iter(layers))
    attention, max_rows = first.attention, first.attention.qkv_proj.max_rows  # one choice of kernels for all matrices
    return NativeLayers(natives, attention.num_kv_heads, attention.head_dim, first.input_norm.eps, max_rows)


def native_layer(layer: Layer) -> NativeLayer | None:
    """One of them; None if C++ can't read a matrix, or it has experts."""
    attention, mlp = layer.attention, layer.mlp
    if isinstance(mlp, MoE):
        return None
    products: list[AnyLinear] = [attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj]
    norms = (layer.input_norm, layer.post_attention_norm, attention.q_norm, attention.k_norm)
    matrices = [matrix for product in products if (matrix := product.native()) is not None]
    if len(matrices) < len(products):
        return None
    return NativeLayer(*(None if norm is None else address(norm.weight) for norm in norms), *matrices)
