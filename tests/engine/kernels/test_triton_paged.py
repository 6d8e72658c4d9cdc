"""The Triton kernel against attention computed the slow way: on a GPU if there is one, else in Triton's interpreter.

Whatever nobody may read is NaN, so that reading it anywhere ruins the result.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from kernels.ragged import SPANS, Ragged, Span

from minillm.kernels.triton import attention as triton_paged
from minillm.kernels.triton.attention import AttentionTile, Launch, TritonAttention, splits_for, tile_for
from minillm.kernels.triton.gpu import GpuLimits

pytest.importorskip("triton", reason="triton is for Linux")

HALF = torch.float16
UNEVEN = [(n, n + 5) for n in (2, 3, 11, 2, 5, 17, 2, 40, 6, 2)]


def borders(context: int) -> list[Span]:
    """Sequences that end around the border of a page or a tile."""
    return [(1, context), (context, context), (2, context), (context - 13, context)]


def drafts(length: int) -> list[Span]:
    """Drafts to check: as many as it takes for the search of a tile's sequence to go wrong, if it can."""
    return [(length + 1, 3 * b + length + 1) for b in range(11)]


Case = tuple[list[Span], dict[str, Any], float]


def cases(
    heads: Sequence[tuple[int, int]],
    contexts: Sequence[int],
    block_sizes: Sequence[int],
    head_dims: Sequence[int],
    drafted: Sequence[int],
) -> list[Case]:
    """One with each of these, all else as usual."""
    spans = [(1, 33), (1, 2), (7, 7), (4, 21), (19, 40)]
    return [
        *((spans, dict(heads=each, head_dim=64), 1e-5) for each in heads),
        *((borders(context), dict(seed=context), 1e-5) for context in contexts),
        *((SPANS["mixed"], dict(block_size=size), 1e-5) for size in block_sizes),
        *((SPANS["mixed"], dict(heads=(3, 1), head_dim=d), 1e-5) for d in head_dims),
        *((drafts(length), dict(heads=(3, 1)), 1e-5) for length in drafted),
    ]


MORE_CASES = cases([(4, 1), (5, 1), (12, 2), (8, 1)], (31, 32, 33), (8, 12), (8, 48), (3,))
CASES: list[Case] = [
    # groups of 1 to 8 query heads, borders of pages, head dims that are padded
    *cases([(1, 1), (4, 2), (9, 3), (7, 1)], (15, 16, 17), (1, 5, 256), (12, 80), (1, 4)),
    *((spans, dict(head_dim=128), 1e-5) for spans in SPANS.values()),
    (UNEVEN, dict(heads=(3, 1)), 1e-5),
    (SPANS["mixed"], dict(spare_columns=300), 1e-5),
    # tensor core tiles: larger ones than float32 gets
    *(
        ([(1, 200), (1, 17), (70, 130), (9, 9)], dict(heads=(4, 1), head_dim=d, dtype=HALF, query_dtype=HALF), 2e-3)
        for d in (64, 128)
    ),
    # a cache in another dtype than the query
    (SPANS["mixed"], dict(dtype=HALF), 5e-3),
    (SPANS["mixed"], dict(query_dtype=HALF), 5e-3),
]


@pytest.fixture(autouse=True)
def device() -> Iterator[None]:
    """Where all tensors are made."""
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        yield


def fix_splits(monkeypatch: pytest.MonkeyPatch, splits: int) -> None:
    monkeypatch.setattr(triton_paged, "splits_for", lambda *args: splits)


@pytest.mark.parametrize(
    ("spans", "shape", "largest_error"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES)],
    ids=str,
)
def test_matches_slow_attention(spans: list[Span], shape: dict[str, Any], largest_error: float) -> None:
    fields = {"heads": (4, 2), "head_dim": 16, "block_size": 16, **shape}
    assert Ragged(spans, **fields).error(TritonAttention) < largest_error


@pytest.mark.parametrize(
    ("window", "splits"),
    [(1, 1), (33, 4), (200, 4), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((5, 4), (16, 1), (33, 1)))],
)
def test_sliding_window(window: int, splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_splits(monkeypatch, splits)
    spans = [(1, 100), (1, 3), (1, 33), (40, 70), (3, 50)]
    assert Ragged(spans, (4, 2), 16, block_size=16, window=window).error(TritonAttention) < 1e-5


@pytest.mark.parametrize("splits", [1, 2, pytest.param(8, marks=pytest.mark.slow), 16])
def test_splits(splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also more of them than there are keys: most have nothing to do."""
    fix_splits(monkeypatch, splits)
    spans = [(1, 150), (1, 1), (1, 33), (1, 65), (5, 100), (4, 4)]
    assert Ragged(spans, (3, 1), 64, block_size=16).error(TritonAttention) < 1e-5


def test_a_query_that_is_part_of_a_larger_tensor() -> None:
    batch = Ragged(SPANS["mixed"], (4, 2), 16, block_size=16)
    larger = torch.full((len(batch.query), 8, 16), float("nan"))
    larger[:, :4] = batch.query
    output = TritonAttention(batch.metadata).attend(larger[:, :4], batch.kv_cache, batch.scale)
    assert batch.error_of(output) < 1e-5


@pytest.mark.parametrize("splits", [1, 4])
def test_padded_rows_harm_nobody(splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph's bucket is filled up with sequences of length 0 or 1 in the null block, which holds NaN."""
    fix_splits(monkeypatch, splits)
    batch = Ragged([(1, 40), (1, 7), (1, 1), (1, 1)], (4, 2), 16, block_size=16, spare_columns=0)
    batch.metadata.context_lens_tensor[2:] = torch.tensor([0, 1])
    null_block = int(batch.metadata.block_tables[1, -1])
    assert batch.kv_cache[null_block].isnan().all()
    batch.metadata.block_tables[2:] = null_block
    output = TritonAttention(batch.metadata).attend(batch.query, batch.kv_cache, batch.scale)
    assert (output[:2] - batch.expected[:2]).abs().max() < 1e-5
    assert (output[2] == 0).all()


REPLAYS = {
    "decodes": ([(1, 40), (1, 300), (1, 1)], [(1, 290), (1, 17), (1, 64)]),
    "drafts": ([(5, 40), (5, 300)], [(5, 296), (5, 5)]),
    "drafts, spread otherwise": ([(4, 40), (4, 44), (4, 300)], [(1, 1), (1, 9), (10, 299)]),
}


@pytest.mark.parametrize(("captured", "replayed"), REPLAYS.values(), ids=REPLAYS)
def test_lengths_of_a_replay_come_from_the_tensors(captured: list[Span], replayed: list[Span]) -> None:
    """One backend object, as in a captured graph; then its tensors get another step's contents."""
    before = Ragged(captured, (4, 2), 16, block_size=16)
    after = Ragged(replayed, (4, 2), 16, block_size=16, seed=1)
    attention = TritonAttention(before.metadata)
    assert before.error_of(attention.attend(before.query, before.kv_cache, before.scale)) < 1e-5
    before.metadata.context_lens_tensor.copy_(after.metadata.context_lens_tensor)
    before.metadata.query_starts_tensor.copy_(after.metadata.query_starts_tensor)
    before.metadata.block_tables.copy_(after.metadata.block_tables)
    assert after.error_of(attention.attend(after.query, after.kv_cache, after.scale)) < 1e-5


def test_what_is_launched_depends_on_shapes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from minillm.kernels.triton import attention_kernels as triton_kernels

    monkeypatch.setattr(triton_paged, "gpu", lambda device: GpuLimits(8, 227 * 1024))

    def launches(spans: list[Span]) -> list[Any]:
        """Grids, and every argument that is not a tensor's contents."""
        seen: list[Any] = []

        class Recorder:
            def __init__(self, name: str) -> None:
                self.name = name

            def __getitem__(self, grid: tuple[int, ...]) -> Any:
                def launch(*args: Any, **constants: Any) -> None:
                    plain = [tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args]
                    seen.append((self.name, grid, plain, constants))

                return launch

        monkeypatch.setattr(triton_kernels, "attend_tiles", Recorder("attend_tiles"))
        monkeypatch.setattr(triton_kernels, "combine_splits", Recorder("combine_splits"))
        batch = Ragged(spans, (4, 2), 16, block_size=16, spare_columns=64 - max(-(-c // 16) for _, c in spans))
        batch.kv_cache = torch.empty(100, 16, 2, 2, 16)
        TritonAttention(batch.metadata).attend(batch.query, batch.kv_cache, batch.scale)
        return seen

    decodes = launches([(1, 900), (1, 1)])
    assert [name for name, *_ in decodes] == ["attend_tiles", "combine_splits"]
    assert decodes == launches([(1, 2), (1, 3)])
    assert launches([(5, 5), (5, 900)]) == launches([(5, 300), (5, 7)])


def test_splits_fill_the_gpu_and_no_more() -> None:
    # An H100 has 132 multiprocessors. Llama-3-8B has 8 key/value heads.
    assert splits_for(8 * 1, 8192, 132) == 32
    assert splits_for(8 * 8, 8192, 132) == 4
    assert splits_for(8 * 32, 8192, 132) == 1
    assert splits_for(8 * 1, 1024, 132) == 4  # room for 1024 tokens: parts of 256
    assert splits_for(3, 100, 132) == 1
    assert splits_for(1, 1 << 20, 132) == 64


@pytest.mark.parametrize("shared_memory", [99 * 1024, 163 * 1024, 227 * 1024])
def test_tiles_fit_registers_and_shared_memory(shared_memory: int) -> None:
    """As they are counted by hand; test_compiles.py sees what the compiler makes of them."""
    for head_dim in (16, 64, 128):
        for rows in (1, 3, 16, 20, 70, 5000):
            for itemsize in (2, 4):
                tile = tile_for(rows, head_dim, itemsize, shared_memory)
                assert tile.rows >= 16 and tile.keys >= 16
                assert tile.rows * head_dim <= 128 * 32 * tile.num_warps  # 128 registers a thread
                queries = tile.rows * head_dim * itemsize
                buffers = tile.num_stages // 2 + (tile.rows > 16)  # one more under a Hopper instruction
                assert queries + buffers * 2 * tile.keys * head_dim * itemsize <= shared_memory
    assert tile_for(4, 128, 2, shared_memory) == AttentionTile(rows=16, keys=64, num_warps=4, num_stages=5)
    stages = 3 if shared_memory < 200 * 1024 else 5
    assert tile_for(5000, 128, 2, shared_memory) == AttentionTile(rows=128, keys=64, num_warps=8, num_stages=stages)


def test_decodes_and_the_rest_are_a_launch_each() -> None:
    assert TritonAttention(Ragged(SPANS["mixed"]).metadata).launches == [Launch(0, 3, 1), Launch(3, 4, 16)]
    assert TritonAttention(Ragged(SPANS["one decode"]).metadata).launches == [Launch(0, 1, 1)]
    assert TritonAttention(Ragged(SPANS["one prefill"]).metadata).launches == [Launch(0, 1, 11)]
