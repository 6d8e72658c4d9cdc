"""The order in which linear.cpp reads weights: in bands of 16 outputs, which stand side by side for each input.

A band's vector of 16 weights is multiplied with one number of x, so a sum never has to be added up across a vector, and
a pass over the matrix is a pass over memory (Goto and van de Geijn 2008, "Anatomy of high-performance matrix
multiplication"). The last band is filled up with zeros.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

LANES = 16
"""Outputs in a band: the floats in a 512-bit vector."""
INT4_IN_WORD = 8


def in_bands(rows: Tensor) -> Tensor:
    """[out, ...] to [bands, 16, ...]."""
    padding = -rows.shape[0] % LANES
    if padding:
        rows = torch.cat((rows, rows.new_zeros(padding, *rows.shape[1:])))
    return rows.unflatten(0, (-1, LANES))


def band_bfloat16(weight: Tensor) -> Tensor:
    """bfloat16 [out, in] to [bands, in / 2, 16, 2]: an odd `in` is filled up, too."""
    even = F.pad(weight, (0, weight.shape[1] % 2))
    return in_bands(even).unflatten(2, (-1, 2)).transpose(1, 2).contiguous()


def band_int8(numbers: Tensor) -> Tensor:
    """int8 [out, in] to [bands, in, 16]."""
    return in_bands(numbers).transpose(1, 2).contiguous()


def band_int4(numbers: Tensor) -> Tensor:
    """uint8 [out, in] in 0 .. 15 to int32 [bands, in / 8, 16]: eight inputs in a word, the first one lowest."""
    eight = in_bands(numbers).unflatten(2, (-1, INT4_IN_WORD)).transpose(1, 2)
    words = torch.zeros(eight.shape[:3], dtype=torch.int32)
    for place in range(INT4_IN_WORD):
        words |= eight[..., place].int() << 4 * place  # the last one reaches into the sign
    return words


def numbers_of(banded: Tensor, ids: Tensor) -> Tensor:
    """Rows of what `band_int8` (int8) or `band_int4` (int32) made, as they were: [n, in]."""
    chosen = banded[ids // LANES, :, ids % LANES]
    if chosen.dtype == torch.int8:
        return chosen
    return (chosen[:, :, None] >> 4 * torch.arange(INT4_IN_WORD) & 15).flatten(1)
