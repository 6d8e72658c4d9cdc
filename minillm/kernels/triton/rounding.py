"""Rounding to 8 bits inside a kernel: the numbers and scales of `minillm.kernels.quantization`, bit for bit.

e4m3 (a sign, 4 bits of exponent, 3 of mantissa) is made and read by integer operations on its byte. GPUs before compute
capability 8.9 have no instruction for it, and Triton has no such type for them; the others take the same way, so that
it's the one that's tested. Reading takes two operations a number on top of those that int8 takes as well.
"""

import triton
import triton.language as tl

from minillm.kernels import quantization

INT8_MAX, FP8_MAX = tl.constexpr(float(quantization.INT8_MAX)), tl.constexpr(quantization.FP8_MAX)
SMALLEST_SCALE = tl.constexpr(quantization.SMALLEST_SCALE)
INTEGERS = tl.constexpr(1.5 * 2**23)
"""Float32 numbers of this size are whole: adding it rounds to the nearest, the even one of two."""
E4M3_UNIT = tl.constexpr(256.0)
"""What a scale is multiplied by where its numbers come out of `from_e4m3`."""


@triton.jit
def quantize(x, scale_dtype: tl.constexpr, FORMAT: tl.constexpr):
    """Quantize as `minillm.kernels.quantization.quantize` does, a scale for each row.

    Args:
        x: [rows, columns] float32; columns that only pad it are 0.
        FORMAT: "int8" or "fp8".
    Returns:
        Bytes [rows, columns] int8 and scales [rows, 1]. NaN and infinity end up in the scale.
    """
    most: tl.constexpr = FP8_MAX if FORMAT == "fp8" else INT8_MAX
    # Without their signs numbers are in the order of their bits, with NaN after infinity: tl.max would lose a NaN.
    largest = tl.max(x.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1, keep_dims=True).to(tl.float32, bitcast=True)
    scale = tl.div_rn(largest, most)  # `/` would be off by a bit
    scale = tl.where(scale < SMALLEST_SCALE, SMALLEST_SCALE, scale).to(scale_dtype)
    numbers = tl.div_rn(x, scale.to(tl.float32))
    numbers = tl.minimum(tl.maximum(numbers, -most), most)
    if FORMAT == "fp8":
        return to_e4m3(numbers), scale
    return (numbers + INTEGERS - INTEGERS).to(tl.int8), scale


@triton.jit
def to_e4m3(x):
    """The byte, as int8, of the number in e4m3 that is nearest to x, the even one of two. x: float32, -448 to 448."""
    bits = x.to(tl.int32, bitcast=True)
    sign, magnitude = (bits >> 24) & 0x80, bits & 0x7FFFFFFF
    # Keep 3 bits of the mantissa, of which rounding up may carry into the exponent, and shift its zero from 127 to 7.
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    # Below 2^-6 numbers are multiples of 2^-9, as float32's are at 2^14.
    subnormal = (magnitude.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True) & 0xFF
    return (sign | tl.where(magnitude < ((127 - 6) << 23), subnormal, normal)).to(tl.int8)


@triton.jit
def from_e4m3(byte):
    """The number in e4m3 with this byte (int8), over 256, as float16: exact, but for NaN, which its scale says.

    With the exponent's bits where float16 has them, only its zero is off: 7 instead of 15, so a factor of 2^8.
    """
    # Widening repeats the sign, of which the mask leaves the first.
    return ((byte.to(tl.int16) << 7) & ~0x4000).to(tl.float16, bitcast=True)
