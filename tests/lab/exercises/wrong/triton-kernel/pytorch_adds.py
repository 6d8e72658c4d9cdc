# feedback: lets PyTorch do
import os

os.environ["TRITON_INTERPRET"] = "1"

import triton
import triton.language as tl


@triton.jit
def norm_rows(x, weight, out, x_stride, out_stride, size, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    places = tl.arange(0, BLOCK)
    mask = places < size
    numbers = tl.load(x + row * x_stride + places, mask=mask, other=0.0).to(tl.float32)
    mean_square = tl.sum(numbers * numbers, axis=0) / size
    weights = tl.load(weight + places, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + places, numbers / tl.sqrt(mean_square + eps) * weights, mask=mask)


def rms_norm(x, weight, eps, out):
    rows, size = x.shape
    block = triton.next_power_of_2(size)
    norm_rows[(rows,)](x, weight, out, x.stride(0), out.stride(0), size, eps, BLOCK=block)


def add_rms_norm(x, delta, weight, eps, total, normed):
    total[:] = x + delta
    rms_norm(total, weight, eps, normed)
