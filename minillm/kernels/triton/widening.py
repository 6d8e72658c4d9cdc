"""Weights in 4 or 8 bits as 16-bit numbers, inside a kernel.

Bits are taken apart where a conversion would take four times as long. A bfloat16 has 7 bits behind its leading 1. int4:
0x4180 | 8 q is 16 + q, and the low is that much lower (`quantize_int4`'s base), so a weight takes one instruction that
multiplies and adds. int8: 0x4300 | its lower 7 bits is 128 and those; 128 are subtracted, or 256 where it's negative.
fp8: with its exponent where bfloat16 has one, all that's off is where zero is: a factor of 2^120.

Two 16-bit words lie in a register, and each of its parts gives two numbers. What isn't bfloat16 on a GPU takes
Triton's own operations (PTX = False), with the same results.
"""

import triton
import triton.language as tl

INT4_BASE = 16
"""int4: what q is added to, see quantize_int4."""
BASE = tl.constexpr(float(INT4_BASE))

INT4_TO_BF16 = tl.constexpr(
    """
{
.reg .b32 q, step, low;
.reg .b16 a, b, c, d;
mov.b32 {a, b}, $5;
mov.b32 {c, d}, $6;
mov.b32 step, {a, c};
mov.b32 low, {b, d};
shl.b32 q, $4, 3;
lop3.b32 q, q, 0x00780078, 0x41804180, 0xEA;
fma.rn.bf16x2 $0, q, step, low;
shr.u32 q, $4, 1;
lop3.b32 q, q, 0x00780078, 0x41804180, 0xEA;
fma.rn.bf16x2 $1, q, step, low;
mov.b32 {a, b}, $7;
mov.b32 {c, d}, $8;
mov.b32 step, {a, c};
mov.b32 low, {b, d};
shr.u32 q, $4, 5;
lop3.b32 q, q, 0x00780078, 0x41804180, 0xEA;
fma.rn.bf16x2 $2, q, step, low;
shr.u32 q, $4, 9;
lop3.b32 q, q, 0x00780078, 0x41804180, 0xEA;
fma.rn.bf16x2 $3, q, step, low;
}
"""
)
INT8_TO_BF16 = tl.constexpr(
    """
{
.reg .b32 p, q, r, one;
mov.b32 one, 0x3F803F80;
mov.b32 p, $2;
lop3.b32 q, p, 0x007F007F, 0x43004300, 0xEA;
lop3.b32 r, p, 0x00800080, 0xC300C300, 0xEA;
fma.rn.bf16x2 $0, q, one, r;
shr.u32 p, p, 8;
lop3.b32 q, p, 0x007F007F, 0x43004300, 0xEA;
lop3.b32 r, p, 0x00800080, 0xC300C300, 0xEA;
fma.rn.bf16x2 $1, q, one, r;
}
"""
)
FP8_TO_BF16 = tl.constexpr(
    """
{
.reg .b32 p, q, r, factor, zero;
mov.b32 factor, 0x7B807B80;
mov.b32 zero, 0x80008000;
shl.b32 p, $2, 8;
shr.u32 q, p, 4;
and.b32 r, p, 0x80008000;
lop3.b32 q, q, 0x07F007F0, r, 0xEA;
fma.rn.bf16x2 $0, q, factor, zero;
shr.u32 q, $2, 4;
and.b32 r, $2, 0x80008000;
lop3.b32 q, q, 0x07F007F0, r, 0xEA;
fma.rn.bf16x2 $1, q, factor, zero;
}
"""
)


@triton.jit
def _e4m3(byte, dtype: tl.constexpr):
    """The number with this byte (0 .. 255), by the exponent of a float32."""
    magnitude = ((byte & 127) << 20).to(tl.float32, bitcast=True) * 2.0**120
    return tl.where(byte >= 128, -magnitude, magnitude).to(dtype)


@triton.jit
def widen_two(pairs, KIND: tl.constexpr, dtype: tl.constexpr, PTX: tl.constexpr):
    """The lower and the upper numbers of pairs of bytes (int16), int8 or fp8, without their scales."""
    if PTX:
        lower, upper = tl.inline_asm_elementwise(
            INT8_TO_BF16 if KIND == "int8" else FP8_TO_BF16,
            "=&r,=&r,r",
            [pairs],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    elif KIND == "int8":
        lower, upper = pairs.to(tl.int8).to(dtype), (pairs >> 8).to(tl.int8).to(dtype)
    else:
        lower, upper = _e4m3(pairs.to(tl.int32) & 255, dtype), _e4m3(pairs.to(tl.int32) >> 8 & 255, dtype)
    return lower, upper


@triton.jit
def widen_four(words, first, second, dtype: tl.constexpr, PTX: tl.constexpr):
    """The four int4 numbers of 16-bit words (int16), the lowest bits first, scaled.

    Args:
        first, second: (step, low) of the first two numbers and of the others, of the words' shape: int32, whose lower
            half is the step, as a bfloat16, and the upper the low.
    """
    if PTX:
        a, b, c, d = tl.inline_asm_elementwise(
            INT4_TO_BF16,
            "=&r,=&r,=&r,=&r,r,r,r,r,r",
            [words, first, second],
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=2,
        )
    else:
        bits = words.to(tl.int32)
        step, low = (first << 16).to(tl.float32, bitcast=True), (first & -65536).to(tl.float32, bitcast=True)
        a = (((bits & 15).to(tl.float32) + BASE) * step + low).to(dtype)
        b = (((bits >> 4 & 15).to(tl.float32) + BASE) * step + low).to(dtype)
        step, low = (second << 16).to(tl.float32, bitcast=True), (second & -65536).to(tl.float32, bitcast=True)
        c = (((bits >> 8 & 15).to(tl.float32) + BASE) * step + low).to(dtype)
        d = (((bits >> 12 & 15).to(tl.float32) + BASE) * step + low).to(dtype)
    return a, b, c, d
