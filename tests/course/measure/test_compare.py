"""What is made of the runs: pairing, medians, floors; and that no engine can do less work than asked."""

from pathlib import Path
from typing import Any

import pytest
from tiny_llama import VOCAB_SIZE

from course.measure.cli import WorkloadName
from course.measure.compare import engines_table, measure, summarize
from course.measure.contest import Minillm, TimedRun
from course.measure.peers.hf import HFContinuousBatching, HFGenerate, load_hugging_face
from course.measure.serve_overhead import gap_note
from course.measure.workloads import BY_NAME, BenchmarkWorkload, make_workloads
from minillm.bench.errors import BenchmarkError
from minillm.bench.machine_peaks import Bandwidth
from minillm.model.arithmetic import ModelBytes
from minillm.observe.spread import Spread

WORKLOAD = BenchmarkWorkload("one", "1 request", [[1] * 128], [64], constant_batch=True)
BANDWIDTH = Bandwidth(read=100.0, copy=100.0)
SIZE = ModelBytes(weights=1000, kv_per_token=10)


def run(seconds: float, itl: float = 1.0) -> TimedRun:
    return TimedRun(seconds=seconds, num_tokens=64, ttft=[0.5], itl=[itl] * 63)


class Recorder:
    """An engine that only writes down when it was called."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def describe(self) -> dict[str, Any]:
        return {}

    def warm_up(self, workload: BenchmarkWorkload) -> None:
        self.log.append(f"warm {self.name}")

    def run(self, workload: BenchmarkWorkload) -> TimedRun:
        self.log.append(self.name)
        return run(1.0)


def test_engines_take_turns_within_every_repeat() -> None:
    log: list[str] = []
    runs = measure([Recorder("a", log), Recorder("b", log)], WORKLOAD, 3)
    assert log == ["warm a", "warm b", "a", "b", "a", "b", "a", "b"]
    assert {name: len(own) for name, own in runs.items()} == {"a": 3, "b": 3}


def test_speedup_is_paired_by_repeat_against_every_baseline() -> None:
    # The machine is twice as slow in the second repeat: the ratio does not notice.
    runs = {
        "minillm": [run(1.0), run(2.0), run(1.0)],
        "good": [run(2.0), run(4.0), run(3.0)],
        "bad": [run(9.0), run(9.0), run(9.0)],
    }
    result = summarize(WORKLOAD, runs, ["good", "bad"], BANDWIDTH, SIZE)
    own, good, bad = result.peers
    assert result.reference == "good"
    assert own.speedups["good"] == Spread(median=2.0, low=2.0, high=3.0)
    assert own.speedups["bad"] == Spread(median=9.0, low=4.5, high=9.0)
    assert good.speedups == bad.speedups == {}
    assert own.tokens_per_s.median == 64.0


def test_share_of_the_floor_uses_the_mean_context_of_the_decode() -> None:
    result = summarize(WORKLOAD, {"minillm": [run(1.0, itl=52.0)]}, [], BANDWIDTH, SIZE)
    assert result.floor_itl == (1000 + 10 * (128 + 32)) / 100.0
    assert result.peers[0].percent_of_floor == pytest.approx(50.0)
    assert result.reference is None
    assert result.peers[0].speedups == {}


def test_a_prompt_alone_has_no_gap_between_tokens() -> None:
    workload = BenchmarkWorkload("prefill_128", "1 prompt", [[1] * 128], [1])
    alone = TimedRun(seconds=0.5, num_tokens=1, ttft=[0.5], itl=[])
    result = summarize(workload, {"minillm": [alone], "other": [alone]}, ["other"], BANDWIDTH, SIZE)
    own, _ = result.peers
    assert own.itl_p50 is None and own.itl_ratios == {} and own.speedups["other"].median == 1
    assert "500" in engines_table(result)


def test_gaps_are_compared_in_repeats_in_which_both_have_some() -> None:
    """A repeat in which every answer came in one piece has no gaps; the next pair isn't moved by it."""
    whole = TimedRun(seconds=1.0, num_tokens=64, ttft=[0.5], itl=[])
    runs = {"minillm": [whole, run(1.0, itl=3.0)], "other": [run(1.0, itl=9.0), run(1.0, itl=2.0)]}
    own, _ = summarize(WORKLOAD, runs, ["other"], BANDWIDTH, SIZE).peers
    assert own.itl_ratios == {"other": Spread(median=1.5, low=1.5, high=1.5)}
    served = summarize(WORKLOAD, {**runs, "minillm": [whole, whole]}, ["other"], BANDWIDTH, SIZE)
    assert "in one piece" in gap_note(served) and "1.500" in gap_note(
        summarize(WORKLOAD, runs, ["other"], BANDWIDTH, SIZE)
    )


@pytest.fixture(scope="module")
def engines(tiny_llama_path: Path) -> list[Any]:
    shared = load_hugging_face(tiny_llama_path, "float32")
    return [
        Minillm(model=str(tiny_llama_path), dtype="float32", num_kv_blocks=64),
        HFGenerate(shared),
        HFContinuousBatching(shared, max_batch_tokens=256, kv_tokens=2048),
    ]


WORKLOADS = [
    pytest.param(i, id=name, marks=[] if name == "mixed" else pytest.mark.slow)
    for i, name in enumerate(name for name in WorkloadName if name not in BY_NAME)
]


@pytest.mark.parametrize("index", WORKLOADS)
def test_every_engine_serves_every_workload_and_stamps_every_token(engines: list[Any], index: int) -> None:
    workload = make_workloads(vocab_size=VOCAB_SIZE, quick=True)[index]
    for each in engines:
        each.warm_up(workload)
        measured = each.run(workload)
        assert measured.num_tokens == sum(workload.output_lens)
        assert len(measured.ttft) == len(workload.prompts)
        assert len(measured.itl) == sum(length - 1 for length in workload.output_lens)
        assert 0 < min(measured.ttft) <= max(measured.ttft) <= measured.seconds
        assert each.describe()["dtype"] == "float32"


def test_prefix_cache_is_cold_in_every_run(engines: list[Any]) -> None:
    workload = make_workloads(vocab_size=VOCAB_SIZE, quick=True)[3]
    scheduler = engines[0].llm.engine.scheduler
    hits = []
    for _ in range(3):
        before = scheduler.prefix_hits
        engines[0].run(workload)
        hits.append(scheduler.prefix_hits - before)
    # The first request of a run finds nothing, the others find what it shares with them.
    assert hits == [(len(workload.prompts) - 1) * 64] * 3


def test_an_engine_that_emits_too_little_is_not_measured(tiny_llama_path: Path) -> None:
    cramped = Minillm(model=str(tiny_llama_path), dtype="float32", max_model_len=40)
    workload = BenchmarkWorkload("one", "1 request", [[5] * 30], [20])
    with pytest.raises(BenchmarkError, match=r"minillm emitted \[10\] tokens .* asked for \[20\]"):
        cramped.run(workload)
