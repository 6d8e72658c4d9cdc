"""The package that docs/flash_attention_2/build.sh makes: what it tells the kernels, read the way that they read it.

In place of the kernels, which take a Hopper GPU, plain torch follows the pointers and strides of the launch.
"""

import ctypes
import importlib.util
import math
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from kernels.ragged import SPANS, Ragged, Span
from torch import Tensor

from minillm.kernels.attention.flash import FlashAttention2

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "flash_attention_2"
MULTIPROCESSORS = 132


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("flash_attn", FOLDER / "flash_attn" / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    monkeypatch.setattr(module, "multiprocessors", lambda device: MULTIPROCESSORS)
    return module


@pytest.fixture
def launches(package: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[ctypes.Structure]:
    """Every launch, after it was computed."""
    seen: list[ctypes.Structure] = []

    def launch(call: ctypes.Structure, device: torch.device) -> None:
        compute(call)
        seen.append(call)

    monkeypatch.setattr(package, "launch", launch)
    return seen


def memory(address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype = torch.int32) -> Tensor:
    elements = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))
    raw = (ctypes.c_char * (elements * dtype.itemsize)).from_address(address)
    return torch.frombuffer(raw, dtype=dtype).as_strided(shape, strides)


def compute(call: ctypes.Structure) -> None:
    """One launch: causal or in a window, the last query beside the last key."""
    dtype = torch.bfloat16 if call.is_bfloat16 else torch.float16
    assert bool(call.key_starts) != bool(call.key_lengths)
    if call.key_lengths:
        lengths = memory(call.key_lengths, (call.batch,), (1,))
    else:
        lengths = memory(call.key_starts, (call.batch + 1,), (1,)).diff()
    starts = memory(call.query_starts, (call.batch + 1,), (1,)) if call.query_starts else None

    def rows(b: int, address: int, strides: ctypes.Structure) -> Tensor:
        n, offset = call.max_query_len, b * strides.batch
        if starts is not None:
            n, offset = int(starts[b + 1] - starts[b]), int(starts[b]) * strides.row
        shape = (n, call.heads, call.head_dim)
        return memory(address + offset * dtype.itemsize, shape, (strides.row, strides.head, 1), dtype)

    def context(b: int, address: int, strides: ctypes.Structure) -> Tensor:
        length = int(lengths[b])
        num_blocks = -(-length // call.page_size)
        blocks = memory(call.block_tables + b * call.block_table_stride * 4, (num_blocks,), (1,)).tolist()
        shape = (call.page_size, call.kv_heads, call.head_dim)
        pages = [
            memory(address + block * strides.batch * dtype.itemsize, shape, (strides.row, strides.head, 1), dtype)
            for block in blocks
        ]
        return torch.cat(pages)[:length].float().repeat_interleave(call.heads // call.kv_heads, dim=1)

    for b in range(call.batch):
        query = rows(b, call.query, call.query_strides)
        keys, values = context(b, call.keys, call.key_strides), context(b, call.values, call.value_strides)
        assert len(query) <= call.max_query_len and len(keys) <= call.max_key_len
        distance = torch.arange(len(keys)) - (torch.arange(len(query)) + len(keys) - len(query))[:, None]
        hidden = torch.zeros_like(distance, dtype=torch.bool)
        if call.window_left >= 0:
            hidden |= distance < -call.window_left
        if call.window_right >= 0:
            hidden |= distance > call.window_right
        scores = torch.einsum("qhd,khd->hqk", query.float(), keys) * call.scale
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        rows(b, call.output, call.output_strides).copy_(torch.einsum("hqk,khd->qhd", weights, values))


def ragged(spans: list[Span], heads: tuple[int, int], head_dim: int, dtype: torch.dtype, window: int | None) -> Ragged:
    """In pages of 256; what lies before a window is not NaN, since the kernels multiply it by 0."""
    longer = [(n, context + 250) for n, context in spans]
    poison = math.nan if window is None else 100
    return Ragged(longer, heads, head_dim, 256, dtype, dtype, window=window, poison=poison)


@pytest.mark.parametrize("window", [None, 3, 255])
@pytest.mark.parametrize("heads", [(2, 2), (8, 2), (8, 1)], ids=str)
@pytest.mark.parametrize(("head_dim", "dtype"), [(64, torch.bfloat16), (128, torch.float16)], ids=str)
def test_the_backend_gets_right_attention(
    launches: list[ctypes.Structure], head_dim: int, dtype: torch.dtype, heads: tuple[int, int], window: int | None
) -> None:
    batch = ragged(SPANS["mixed"], heads, head_dim, dtype, window)
    assert batch.error(FlashAttention2) < (2e-2 if dtype == torch.bfloat16 else 2e-3)
    decodes, prompts = launches
    assert (decodes.batch, prompts.batch) == (3, 4)


def test_query_heads_of_a_key_head_are_rows_of_one_tile(launches: list[ctypes.Structure]) -> None:
    ragged(SPANS["decodes of many lengths"], (8, 2), 64, torch.float16, None).error(FlashAttention2)
    (call,) = launches
    assert (call.heads, call.kv_heads, call.max_query_len) == (2, 2, 4)


def test_long_sequences_are_split_and_many_are_not(launches: list[ctypes.Structure]) -> None:
    assert ragged([(1, 2000)], (4, 1), 64, torch.float16, None).error(FlashAttention2) < 2e-3
    assert ragged([(1, 3)] * 106, (2, 2), 64, torch.float16, None).error(FlashAttention2) < 2e-3
    few, many = launches
    assert few.num_splits > 1 and few.split_output and few.split_log_sum_exp
    assert many.num_splits == 1 and not many.split_output and not many.split_log_sum_exp


def test_the_rule_of_splits(package: ModuleType) -> None:
    assert package.splits_for(48, 108, 64) == 2, "upstream's example: 0.89 of the GPU, with 3 splits 0.67"
    assert package.splits_for(90, 108, 64) == 1
    assert package.splits_for(1, 264, 4) == 4
    assert package.splits_for(1, 264, 1000) <= package.MOST_SPLITS


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_c_and_python_lay_a_launch_out_alike(package: ModuleType, tmp_path: Path) -> None:
    names = [name for name, _ in package.PagedAttention._fields_]
    offsets = "".join(f'printf("%zu\\n", offsetof(PagedAttention, {name}));' for name in names)
    source = '#include <cstddef>\n#include <cstdio>\n#include "paged_attention.h"\n'
    source += f'int main() {{ {offsets} printf("%zu\\n", sizeof(PagedAttention)); }}'
    (tmp_path / "layout.cpp").write_text(source)
    subprocess.run(["g++", f"-I{FOLDER}", "layout.cpp", "-o", "layout"], cwd=tmp_path, check=True)
    printed = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout
    expected = [getattr(package.PagedAttention, name).offset for name in names]
    assert list(map(int, printed.split())) == [*expected, ctypes.sizeof(package.PagedAttention)]


WRONG = {
    "head sizes 64 and 128": dict(head_dim=32),
    "float16 and bfloat16": dict(dtype=torch.float32),
    "multiples of 256": dict(block_size=128),
    "cannot share 2 key heads": dict(heads=3),
    "16 bytes": dict(query_stride=70),
    "block_table must be int32": dict(table_dtype=torch.int64),
    "cache_seqlens must have the shape": dict(num_lengths=3),
}


@pytest.mark.parametrize("message", WRONG)
def test_what_it_was_not_built_for_is_refused(package: ModuleType, message: str) -> None:
    given = dict(head_dim=64, dtype=torch.float16, block_size=256, heads=4, table_dtype=torch.int32, num_lengths=2)
    given |= WRONG[message]
    head_dim, dtype, heads = given["head_dim"], given["dtype"], given["heads"]
    stride = given.get("query_stride", head_dim)
    query = torch.zeros(2, 1, heads, stride, dtype=dtype)[..., :head_dim]
    cache = torch.zeros(3, given["block_size"], 2, 2, head_dim, dtype=dtype)
    table = torch.zeros(2, 2, dtype=given["table_dtype"])
    lengths = torch.ones(given["num_lengths"], dtype=torch.int32)
    with pytest.raises(ValueError, match=message):
        package.flash_attn_with_kvcache(
            query, cache[:, :, 0], cache[:, :, 1], cache_seqlens=lengths, block_table=table, causal=True
        )


def test_without_a_gpu_it_says_so(package: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="CUDA GPU"):
        ragged([(1, 5)], (4, 2), 64, torch.float16, None).error(FlashAttention2)


def test_without_the_kernels_it_says_so(package: ModuleType) -> None:
    with pytest.raises(RuntimeError, match=r"libpaged_forward.so: build.sh makes it"):
        package.library()
