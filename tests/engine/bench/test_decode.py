"""`minillm bench decode`: what is measured is a steady decode, and the numbers belong together."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from integrity import check_engine
from typer.testing import Result

from minillm.bench import decode
from minillm.bench.decode import KernelCost, KernelRun, idle_share, kernel_costs, summarize
from minillm.bench.errors import BenchmarkError
from minillm.bench.machine_peaks import measure_peaks
from minillm.bench.steady import SteadyDecode
from minillm.bench.target import Costs, Target
from minillm.core.errors import ConfigError
from minillm.frontend.engine import Engine
from minillm.model.arithmetic import ModelBytes, ModelFlops
from minillm.runner import sampler

COSTS = Costs(ModelBytes(weights=1000, kv_per_token=10), ModelFlops(per_token=4, per_logit_row=6, per_pair=2))


def engine(path: Path, **fields: Any) -> Engine:
    return Engine(Target(str(path), dtype="float32", fields={"num_kv_blocks": 64, **fields}).config())


def test_numbers_belong_together(bench_json: Callable[..., Any]) -> None:
    report = bench_json("decode", "--context", "20")
    roof = report["roof"]
    assert roof["memory"] == roof["bandwidth"][roof["memory_kind"]]
    assert [row["batch"] for row in report["results"]] == [1, 2]
    for row in report["results"]:
        assert row["num_steps"] == report["settings"]["steps"]
        assert row["mbu"] == pytest.approx(row["floor_s"] / row["step_s"])
        assert row["bandwidth"] == pytest.approx(row["bytes"] / row["step_s"])
        assert row["mbu"] == pytest.approx(row["bandwidth"] / roof["memory"])
        assert row["tokens_per_s"] == pytest.approx(row["batch"] / row["step_s"])
        kv = row["batch"] * row["context"] * report["kv_bytes_per_token"]
        assert row["bytes"] == pytest.approx(report["weight_bytes"] + kv)
        assert 0 < row["step_s"] <= row["step_p99_s"]
        assert 16 < row["context"] < 16 + 2 * report["settings"]["steps"] + 2
    assert report["settings"]["engine"]["attention"] == "SDPAAttention"


def test_summary_by_hand() -> None:
    result = summarize(2, 50.0, [4.0, 2.0, 3.0], COSTS, memory_bandwidth=1000.0)
    assert (result.step_s, result.tokens_per_s) == (3.0, pytest.approx(2 / 3))
    assert result.bytes == 1000 + 10 * 100
    assert (result.floor_s, result.mbu) == (2.0, pytest.approx(2 / 3))


def test_steps_hold_the_whole_batch_and_contexts_are_counted(tiny_llama_path: Path) -> None:
    one = engine(tiny_llama_path, max_num_batched_tokens=32)
    # A budget of 32 tokens: the first sequences decode while the last are prefilled. Those steps do not count.
    decode = SteadyDecode(one, batch=3, context=30, num_steps=8)
    lead = [request.num_computed_tokens for request in one.scheduler.running]
    measured = decode.run(5)
    assert len(measured.steps) == 5
    # One more step leads in; then the five steps' contexts rise by one each, with their mean in the middle.
    assert measured.mean_context == pytest.approx(sum(lead) / 3 + 1 + 3)
    assert max(lead) > min(lead) >= 30
    for record in list(one.steps)[-5:]:
        assert [share.is_prefill for share in record.shares] == [False] * 3
    decode.stop()
    assert not one.has_unfinished
    check_engine(one)


def test_idleness_is_looked_at_when_all_is_timed(
    bench_json: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a pretended GPU; a profiler slows down what runs under it."""
    order: list[object] = []

    def profiled(steady: SteadyDecode, num_steps: int) -> list[KernelRun]:
        steady.run(num_steps)
        order.append(steady.batch)
        return [KernelRun("add", 0.0, 1.0), KernelRun("multiply", 2.0, 4.0)]

    run = SteadyDecode.run
    monkeypatch.setattr(SteadyDecode, "run", lambda self, steps: (order.append("run"), run(self, steps))[1])
    monkeypatch.setattr(decode, "kernel_runs", profiled)
    monkeypatch.setattr(decode, "measure_peaks", lambda device, *rest: measure_peaks(torch.device("cpu"), *rest))
    monkeypatch.setattr(Target, "torch_device", lambda self: torch.device("cuda"))
    report = bench_json("decode", "--idle")
    assert report["idle"] == {"1": 0.25, "2": 0.25}
    assert [kernel["name"] for kernel in report["kernels"]["1"]] == ["multiply", "add"]
    assert order == ["run", "run", "run", 1, "run", 2]


def test_gaps_too_short_to_launch_anything_in_are_no_idleness() -> None:
    overlapping = [(3.0, 4.0), (0.0, 2.0), (1.0, 1.5), (2.0 + 5e-6, 2.5)]
    assert idle_share(KernelRun("", *each) for each in overlapping) == pytest.approx(0.5 / 4)
    assert idle_share([KernelRun("", 0.0, 1.0), KernelRun("", 1.0 + 9e-6, 2.0)]) == 0


def test_kernels_are_added_up_by_name() -> None:
    runs = [KernelRun("norm", start, start + 2e-6) for start in (0.0, 1.0, 2.0, 3.0)]
    costs = kernel_costs([*runs, KernelRun("product", 4.0, 4.0 + 30e-6)], num_steps=2)
    assert costs == [KernelCost("product", 0.5, 15.0), KernelCost("norm", 2.0, 4.0)]


def test_tokens_are_drawn_as_asked_for(bench_json: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    draw = sampler.draw_filtered
    monkeypatch.setattr(sampler, "draw_filtered", lambda logits, rows: (drawn.append(len(rows)), draw(logits, rows))[1])
    assert bench_json("decode", "--sample", "top_p=0.9")["settings"]["sampling"] == {"top_p": 0.9}
    assert set(drawn) == {1, 2}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out", "/no/such/folder/x.json"], "no folder"),
        (["--set", "block_sise=3"], "did you mean 'block_size'"),
        (["--set", "max_num_seqs=1"], "needs as many slots"),
        (["--set", "num_kv_blocks=3"], "KV"),
        (["--idle"], "on a CPU"),
    ],
    ids=str,
)
def test_bad_settings_are_refused_before_anything_is_measured(
    bench: Callable[..., Result], arguments: list[str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        bench("decode", *arguments)


def test_a_sequence_that_ends_too_soon_is_not_measured(tiny_llama_path: Path) -> None:
    # Without batching the second one waits for the first, so they never decode together.
    alone = engine(tiny_llama_path, batching="none", max_model_len=64)
    with pytest.raises(BenchmarkError, match="before all 2 decoded together"):
        SteadyDecode(alone, batch=2, context=20, num_steps=4)


def test_more_than_the_window_is_refused(tiny_llama_path: Path) -> None:
    with pytest.raises(ConfigError, match="lower --context or --steps"):
        SteadyDecode(engine(tiny_llama_path, max_model_len=64), batch=1, context=60, num_steps=10)
