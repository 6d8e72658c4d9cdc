"""Each row's likeliest token, PyTorch's way and ours: on a GPU if there is one, else interpreted."""

import math

import pytest
import torch

from minillm.kernels.ops import Ops

triton_likeliest = pytest.importorskip(
    "minillm.kernels.triton.likeliest", reason="triton is for Linux", exc_type=ImportError
)
WAYS = [Ops().likeliest, triton_likeliest.likeliest]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("likeliest", WAYS)
@pytest.mark.parametrize(("rows", "vocab"), [(0, 9), (1, 7), (3, 5000), (20, 4097)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_of_the_largest(likeliest, rows: int, vocab: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    logits = torch.randn(rows, vocab).to(dtype)  # in 16 bits many are equal
    logits[1::3] = -math.inf
    logits[1::3, vocab // 2 :] = -2.5  # a grammar's: what it allows lies in one part of the row
    expected = [row.index(max(row)) for row in logits.tolist()]
    assert likeliest(logits.to(DEVICE)).tolist() == expected


@pytest.mark.parametrize("likeliest", WAYS)
@pytest.mark.parametrize("at", [0, 2047, 2048, 4999])
def test_broken_rows_have_none(likeliest, at: int) -> None:
    logits = torch.randn(5, 5000)
    logits[1, at], logits[2, at], logits[3] = math.nan, math.inf, -math.inf
    logits[4, at] = -math.inf
    found = likeliest(logits.to(DEVICE)).tolist()
    assert found[1:4] == [-1, -1, -1] and found[0] >= 0 and found[4] == logits[4].argmax()
