"""The comparison itself: which engines are measured, and what is made of the numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from minillm.bench.baselines.base import Baseline, Minillm, Run
from minillm.bench.baselines.make import check_installed, config_in_force, make_baselines
from minillm.bench.report import Measured
from minillm.bench.target import Target
from minillm.bench.turns import in_turns
from minillm.bench.workloads import Workload, make_workloads
from minillm.model.arithmetic import ModelBytes
from minillm.observe.spread import Spread
from minillm.observe.tables import text_table
from minillm.runner.machine_peaks import Bandwidth, measure_bandwidth

COLUMNS = ("", "tok/s", "seconds", "TTFT p50", "ITL p50", "ITL p99", "floor", "speedup")
"""Of the table of engines; latencies in milliseconds."""


@dataclass(frozen=True, slots=True)
class EngineResult:
    """One engine on one workload. Times in seconds, rates in output tokens per second."""

    peer: str
    """Its name."""
    seconds: Spread
    tokens_per_s: Spread
    ttft_p50: float
    """Over all requests of all repeats; so for the inter-token latencies."""
    itl_p50: float
    itl_p99: float
    speedups: dict[str, Spread]
    """Seconds of each baseline over this one's, paired by repeat. Empty for a baseline."""
    percent_of_floor: float | None
    """100 x (seconds of reading a decode step needs) / median ITL. None where batches change shape."""


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """All engines on one workload."""

    name: str
    title: str
    num_requests: int
    num_output_tokens: int
    reference: str | None
    """The fastest of the baselines."""
    floor_itl: float | None
    """Seconds of reading in an average decode step: no engine's ITL can be shorter."""
    peers: list[EngineResult]


def measure(engines: Sequence[Baseline], workload: Workload, repeats: int) -> dict[str, list[Run]]:
    """Warm all engines up, then `repeats` rounds in which each runs once."""
    for engine in engines:
        engine.warm_up(workload)
    runs = {engine.name: partial(engine.run, workload) for engine in engines}
    return in_turns(runs, repeats, warm_up=False, label=workload.name)


def summarize(
    workload: Workload,
    runs: dict[str, list[Run]],
    baselines: Sequence[str],
    bandwidth: Bandwidth | None = None,
    size: ModelBytes | None = None,
) -> WorkloadResult:
    """Turn runs into medians, speedups over the `baselines` and (with `bandwidth` and `size`) shares of the floor."""
    floor = None
    if bandwidth is not None and size is not None and workload.constant_batch:
        floor = size.step_floor(workload.mean_decode_contexts, bandwidth.read)
    seconds = {name: [run.seconds for run in own] for name, own in runs.items()}
    results = []
    for name, own in runs.items():
        p50, p99 = np.percentile([gap for run in own for gap in run.itl], (50, 99)).tolist()
        others = [] if name in baselines else baselines
        result = EngineResult(
            peer=name,
            seconds=Spread.of(seconds[name]),
            tokens_per_s=Spread.of([run.num_tokens / run.seconds for run in own]),
            ttft_p50=float(np.median([ttft for run in own for ttft in run.ttft])),
            itl_p50=p50,
            itl_p99=p99,
            speedups={other: Spread.of_ratios(seconds[other], seconds[name]) for other in others},
            percent_of_floor=100 * floor / p50 if floor else None,
        )
        results.append(result)
    return WorkloadResult(
        name=workload.name,
        title=workload.title,
        num_requests=len(workload.prompts),
        num_output_tokens=workload.num_output_tokens,
        reference=min(baselines, key=lambda name: np.median(seconds[name]), default=None),
        floor_itl=floor,
        peers=results,
    )


def run(target: Target, quick: bool, against: Sequence[str], names: Sequence[str] | None, repeats: int) -> Measured:
    """Load minillm and the baselines, and measure each on every workload.

    Args:
        against: what it is compared with, by name; may be empty.
        names: of the workloads; None = all.
    Raises:
        BenchmarkError: an engine cannot run this model, or did other work than it was given.
        ConfigError, ModelError: see Engine.
    """
    check_installed(against)
    repeats = 1 if quick else repeats
    bandwidth = measure_bandwidth(quick=quick)
    minillm = Minillm(**target.config().model_dump(exclude_unset=True))
    engine = minillm.llm.engine
    config = config_in_force(engine)
    assert engine.vocab_size is not None
    workloads = make_workloads(engine.vocab_size, quick=quick)
    baselines = make_baselines(against, config)
    engines = [minillm, *baselines]
    size = ModelBytes.of(engine.loaded_model.model_config, config.dtype)
    results = []
    for workload in workloads:
        if not names or workload.name in names:
            runs = measure(engines, workload, repeats)
            results.append(summarize(workload, runs, [each.name for each in baselines], bandwidth, size))
    memory = f"memory reads {bandwidth.read / 1e9:.1f} GB/s, copies {bandwidth.copy / 1e9:.1f} GB/s"
    return Measured.on(
        engine,
        results,
        {"repeats": repeats},
        "\n".join([memory, *(f"\n{engines_table(result)}" for result in results)]),
        bandwidth=bandwidth,
        peers={each.name: each.describe() for each in engines},
        weight_bytes=size.weights,
        kv_bytes_per_token=size.kv_per_token,
    )


def engines_table(result: WorkloadResult) -> str:
    """The workload's title, and a row for each engine: milliseconds, and the spread over repeats in brackets."""
    floor = f"; memory floor {1e3 * result.floor_itl:.1f} ms a step" if result.floor_itl else ""
    rows = [_cells(each, result.reference) for each in result.peers]
    return f"{result.title}{floor}\n{text_table(COLUMNS, rows)}"


def _cells(result: EngineResult, reference: str | None) -> list[str]:
    speedup = "1 (reference)" if result.peer == reference else ""
    if reference in result.speedups:
        speedup = result.speedups[reference].text(unit="x")
    return [
        result.peer,
        f"{result.tokens_per_s.median:.1f}",
        result.seconds.text(),
        f"{1e3 * result.ttft_p50:.0f}",
        f"{1e3 * result.itl_p50:.1f}",
        f"{1e3 * result.itl_p99:.1f}",
        "" if result.percent_of_floor is None else f"{result.percent_of_floor:.0f}%",
        speedup,
    ]
