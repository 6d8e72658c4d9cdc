"""silu(gate) * up inside a kernel, rounded where PyTorch's operations round, one after the other."""

import triton
import triton.language as tl


@triton.jit
def gated(gate, up, dtype: tl.constexpr):
    """silu(gate) * up, float32, of numbers that are in `dtype` already."""
    gate, up = gate.to(tl.float32), up.to(tl.float32)
    silu = (gate / (1 + tl.exp(-gate))).to(dtype).to(tl.float32)
    return silu * up


@triton.jit
def gate_halves(product, dtype: tl.constexpr):
    """The same of a product [2 n, rows] float32: n gates, then their ups. It's rounded to `dtype` first."""
    HALF: tl.constexpr = product.shape[0] // 2
    both = tl.reshape(product.to(dtype), (2, HALF, product.shape[1]))
    gate, up = tl.split(tl.permute(both, (1, 2, 0)))
    return gated(gate, up, dtype)
