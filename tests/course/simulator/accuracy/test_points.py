"""Rows as they are written, and what engines add to them."""

from collections.abc import Callable
from pathlib import Path

import pytest
from simulator.accuracy.made_points import DENSE, MIXTURE, POOLS, points_of

from course.simulator.accuracy import engines
from course.simulator.accuracy.engines import Formats, budget_of, card_of, formats_of, profile_for, shape_of
from course.simulator.accuracy.points import Point, Refusal, Ways, read_points
from course.simulator.cost.models import find_model
from course.simulator.cost.profile import find_profile
from course.simulator.errors import RecordingError


def test_a_row_is_read_as_it_is_written(tmp_path: Path) -> None:
    dense, mixture, pools = points_of(tmp_path, DENSE, MIXTURE, POOLS)
    assert (dense.isl, dense.concurrency, dense.ttft_s, dense.tpot_s) == (512, 8, 0.05, 0.007)
    assert dense.server == Ways(1, None, None, 1, 1, None) and dense.prefill is None
    assert (dense.is_inferencex, mixture.is_inferencex) == (False, True)
    assert pools.server is None and pools.decode is not None and pools.decode.workers == 2
    # Without a day, attention's ranks give InferenceX's rows away: no others state them.
    undated, other = points_of(tmp_path, {**MIXTURE, "measured": ""}, {**DENSE, "isl": 1024, "osl": 1024})
    assert undated.is_inferencex and not other.is_inferencex


def test_what_is_wrong_with_a_table_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"points.csv:3: silicon_tpot_ms is ''"):
        points_of(tmp_path, DENSE, {**DENSE, "silicon_tpot_ms": ""})
    with pytest.raises(RecordingError, match=r"points.csv:2: isl is missing"):
        points_of(tmp_path, {**DENSE, "isl": ""})
    with pytest.raises(RecordingError, match="has no points"):
        points_of(tmp_path)
    with pytest.raises(RecordingError, match="cannot read"):
        read_points(tmp_path / "nothing.csv")
    (tmp_path / "other.csv").write_text("id,mode\nx,agg\n")
    with pytest.raises(RecordingError, match="has no column"):
        read_points(tmp_path / "other.csv")


def test_names_of_checkpoints_and_cards() -> None:
    assert shape_of("nvidia/Llama-3.1-8B-Instruct-FP8") == "llama-3.1-8b"
    assert shape_of("nvidia/DeepSeek-V3.1-NVFP4") == shape_of("deepseek-ai/DeepSeek-R1-0528") == "deepseek-v3"
    assert shape_of("Qwen/Qwen3-235B-A22B-FP8") == "qwen3-235b-a22b"
    assert shape_of("Qwen/Qwen3-30B-A3B-Instruct-2507") == "qwen3-30b-a3b"
    assert (card_of("h100_sxm"), card_of("b300_sxm"), card_of("gb200")) == ("h100-sxm", "b300", "gb200")
    for name, reason in ((shape_of, engines.NO_MODEL), (card_of, engines.NO_HARDWARE)):
        with pytest.raises(Refusal, match=reason):
            name("acme/nonesuch")
    assert find_profile(profile_for("vllm", "0.19.0", "h200", "minimax-m2.5", "fp8")).hardware.name == "h200"


def formats(point: Point) -> Formats:
    return formats_of(point, shape_of(point.model), card_of(point.system))


def test_formats_and_budgets_by_engine(tmp_path: Path) -> None:
    gpt = {**MIXTURE, "model_path": "openai/gpt-oss-120b", "system": "h200_sxm", "precision": "fp4"}
    sglang = {**MIXTURE, "backend": "sglang", "model_path": "deepseek-ai/DeepSeek-V3"}
    dense, mixture, gpt_vllm, gpt_trt, latent, pools, modelopt = points_of(
        tmp_path,
        DENSE,
        MIXTURE,
        gpt,
        {**gpt, "backend": "trtllm"},
        sglang,
        POOLS,
        {**DENSE, "model_path": "nvidia/Llama-3.1-8B-Instruct-FP8", "precision": "fp8"},
    )
    assert formats(modelopt) == Formats("fp8", "fp8")
    assert formats(dense) == Formats("bfloat16", "bfloat16")
    assert formats(mixture) == Formats("fp8", "fp8")
    assert formats(gpt_vllm) == Formats("fp4", "bfloat16")
    assert formats(gpt_trt) == Formats("fp4", "fp8")
    budgets = [
        budget_of(point, shape_of(point.model), card_of(point.system))
        for point in (dense, mixture, gpt_vllm, gpt_trt, latent, pools)
    ]
    assert budgets == [8192, 2048, 8192, 20_000, 32_768, 8192]
    tensorrt = {**MIXTURE, "backend": "trtllm", "model_path": "deepseek-ai/DeepSeek-V3", "concurrency": 64}
    autumn, spring = points_of(tmp_path, {**tensorrt, "measured": "2025-11-02"}, tensorrt)
    assert [budget_of(point, "deepseek-v3", "b200") for point in (autumn, spring)] == [1152, 8192], "one prompt a step"
    for field, reason in (("precision", engines.NO_PRECISION), ("backend", engines.NO_BACKEND)):
        (odd,) = points_of(tmp_path, {**DENSE, field: "odd"})
        with pytest.raises(Refusal, match=reason):
            formats(odd)


@pytest.mark.parametrize(
    ("shape", "billions", "active"),
    [
        ("gpt-oss-120b", 116.8, 5.1),
        ("minimax-m2.5", 229, 10),
        ("qwen3-235b-a22b", 235, 22),
        ("qwen3.5-397b-a17b", 397, 17),
        ("kimi-k2.5", 1026, 32.9),
        ("glm-5", 744, 40),
    ],
)
def test_shapes_have_the_published_sizes(shape: str, billions: float, active: float) -> None:
    """The publishers count with or without embeddings: within a billion and a half."""
    cost = find_model(shape)
    assert (cost.active_params + cost.idle_params) / 1e9 == pytest.approx(billions, rel=5e-3)
    assert cost.read_params / 1e9 - 1.5 < active < cost.active_params / 1e9 + 0.5


def test_every_shared_row_is_read(recording: Callable[[str], Path]) -> None:
    points = read_points(recording("silicon_measured.csv"))
    assert len(points) == 2302
    assert {card_of(point.system) for point in points} == {"h100-sxm", "h200", "b200", "b300", "gb200", "gb300"}
    assert all(shape_of(point.model) and formats(point) for point in points)
