"""`minillm bench attention`: made-up batches are valid ones, and a backend that is wrong is not timed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from typer.testing import Result

from course.measure import attention as bench_attention
from course.measure.attention import Setup, compare_outputs
from course.measure.attention_shapes import HeadShape, PreparedAttention, Shape, make_cache, make_metadata
from minillm.bench.errors import BenchmarkError
from minillm.core.errors import ConfigError
from minillm.kernels.attention.eager import attend
from minillm.kernels.attention.select import select_backend

CPU = torch.device("cpu")
HEADS = HeadShape(num_heads=4, num_kv_heads=2, head_dim=8)
SHAPES = [Shape("decode", 3, 1, 9), Shape("prefill", 1, 7, 0), Shape("extend", 1, 5, 6)]


def test_counts_by_hand() -> None:
    decode = Shape("decode", 3, 1, 9)
    assert decode.kv_bytes(HEADS, 2) == 3 * 10 * 2 * 2 * 8 * 2
    assert decode.flops(HEADS) == 4 * 4 * 8 * 3 * 10
    assert Shape("prefill", 1, 10, 0).flops(HEADS) == 4 * 4 * 8 * 50
    assert Shape("extend", 1, 10, 20).flops(HEADS) == 4 * 4 * 8 * (200 + 50)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.kind)
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_made_up_batches_are_valid(shape: Shape, backend: str) -> None:
    block_size = 4
    metadata = make_metadata(shape, block_size, CPU)
    cache = make_cache(shape, HEADS, block_size, torch.float32, CPU, seed=0)
    assert metadata.block_tables.max() < len(cache) - 1, "no sequence has the null block"
    assert metadata.block_tables.unique().numel() == metadata.block_tables.numel(), "no page is shared"
    query = torch.randn(shape.batch * shape.new, 4, 8)
    output = PreparedAttention(select_backend(backend, CPU), metadata, query)(cache)
    for b in range(shape.batch):
        keys, values = cache[metadata.block_tables[b]].flatten(0, 1)[: shape.context].unbind(1)
        rows = slice(b * shape.new, (b + 1) * shape.new)
        torch.testing.assert_close(output[rows], attend(query[rows], keys, values, 8**-0.5))


def test_numbers_belong_together(bench_json: Callable[..., Any]) -> None:
    report = bench_json("attention")
    assert report["settings"]["heads"] == {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16}
    assert {row["shape"]["kind"] for row in report["results"]} == {"decode", "prefill", "extend"}
    assert {"eager"}.isdisjoint(found := {row["backend"] for row in report["results"]}) and "sdpa" in found
    for row in report["results"]:
        heads, shape = HeadShape(**report["settings"]["heads"]), Shape(**row["shape"])
        work, roof = (shape.kv_bytes(heads, 4), "memory") if shape.kind == "decode" else (shape.flops(heads), "matmul")
        assert row["reached"] == pytest.approx(work / row["call_s"]["median"])
        assert row["share_of_roof"] == pytest.approx(row["reached"] / report["roof"][roof])
        assert row["difference"] < 1e-4
    kinds = [[row for row in report["results"] if row["shape"]["kind"] == kind] for kind in ("decode", "extend")]
    assert all(min(row["time_over_best"] for row in rows) == 1.0 for rows in kinds)


@pytest.mark.parametrize("wrong", [1.2, float("nan")])
def test_a_backend_that_computes_something_else_is_not_timed(wrong: float) -> None:
    right = torch.ones(2, 4, 8)
    assert compare_outputs({"a": right, "b": right * 1.01}, SHAPES[0])["b"] == pytest.approx(0.01, rel=1e-3)
    with pytest.raises(BenchmarkError, match="b and a differ"):
        compare_outputs({"a": right, "b": right * wrong}, SHAPES[0])


def test_caches_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []

    class Recorder(PreparedAttention):
        def __call__(self, kv_cache: torch.Tensor) -> torch.Tensor:
            used.append(kv_cache.data_ptr())
            return super().__call__(kv_cache)

    monkeypatch.setattr(bench_attention, "PreparedAttention", Recorder)
    seconds, _ = bench_attention.measure_shape(
        SHAPES[0],
        Setup(HEADS, 4, torch.float32, torch.float32, CPU, 2, 3, rotation_bytes=3 * SHAPES[0].kv_bytes(HEADS, 4)),
        {"sdpa": select_backend("sdpa", CPU)},
    )
    assert len(seconds["sdpa"]) == 2
    warm_up, *timed = used
    assert len(timed) == 6
    assert timed[:3] == timed[3:]
    assert len(set(timed)) == 3
    assert warm_up in timed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--backend", "magic"], "there are hopper, fa3, triton"),
        (["--backend", "fa3"], "cannot run here"),
        (["--set", "max_num_seqs=4"], "drop --set max_num_seqs"),
    ],
    ids=str,
)
def test_bad_settings_are_refused(bench: Callable[..., Result], arguments: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bench("attention", *arguments)
